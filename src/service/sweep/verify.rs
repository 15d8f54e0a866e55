//! Proving a log as the store has it: read back, compared row by row, its chain recomputed.

use std::collections::HashMap;
use std::sync::Arc;

use super::ledger::Ledger;
use super::round::FAILURES_MAX;
use super::{Sweep, SweepError};
use crate::domain::digest::{Digest, chain};
use crate::domain::ids::TaskId;
use crate::domain::log_page::EventPage;
use crate::domain::task::Pinned;
use crate::log::{EventRow, LogStoreError, UsageRow};
use crate::service::archive::unlike;
use crate::store::SweptTask;

/// How many rows are read back at once.
const ROWS_AT_ONCE: i64 = 500;
/// The same for a log that is read as its readers do.
const READ_AT_ONCE: u32 = 500;
/// How many rows of ledgers are compared at once.
const REPORTS_AT_ONCE: u32 = 500;
/// How many reads of the store are under way at once. With the rows at once it bounds the memory: payloads have up to
/// 64 KiB, and are there twice.
const READS_AT_ONCE: usize = 2;

/// What verifying a log came to.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The store has exactly this log, and its chain ends in the head.
    Proven,
    /// The log moved while it was read.
    Moved,
    /// It could not be verified.
    Failed(SweepError),
    /// The store has something else.
    Contradicted {
        /// The highest version of a row that it has of the task.
        highest_version: u64,
        /// What differs.
        detail: String,
    },
}

impl Sweep {
    /// Verifies tasks that the store has whole by count. Small logs are read many at once; where that fails, each is read
    /// alone, so that one that cannot be read does not stand for the others. Fails when the store is away.
    pub(super) async fn verify(&self, due: Vec<SweptTask>) -> Result<Vec<(SweptTask, Verdict)>, SweepError> {
        use futures::{StreamExt as _, TryStreamExt as _};
        let groups = groups(due).into_iter().map(|group| self.verify_apart(group));
        let mut groups = futures::stream::iter(groups).buffer_unordered(READS_AT_ONCE);
        let (mut verdicts, mut failed) = (Vec::new(), 0);
        while let Some((some, failures)) = groups.try_next().await? {
            verdicts.extend(some);
            failed += failures;
            // The round ends with these, and each question that fails may take its full time.
            if failed > FAILURES_MAX {
                break;
            }
        }
        Ok(verdicts)
    }

    /// Verdicts, and how many of them are failures.
    async fn verify_apart(&self, group: Vec<SweptTask>) -> Result<(Vec<(SweptTask, Verdict)>, u64), SweepError> {
        if group.len() > 1 {
            match self.verify_group(&group).await {
                Ok(verdicts) => return Ok((group.into_iter().zip(verdicts).collect(), 0)),
                Err(error) => drop(self.check_log(error).await?),
            }
        }
        let (mut verdicts, mut failed) = (Vec::with_capacity(group.len()), 0);
        for task in group {
            let verdict = match self.verify_alone(&task).await {
                Ok(verdict) => verdict,
                Err(error) => {
                    failed += 1;
                    Verdict::Failed(self.check_log(error).await?)
                }
            };
            verdicts.push((task, verdict));
            if failed > FAILURES_MAX {
                break;
            }
        }
        Ok((verdicts, failed))
    }

    async fn verify_alone(&self, task: &SweptTask) -> Result<Verdict, SweepError> {
        let mut verdict = self.verify_group(std::slice::from_ref(task)).await.map(|mut verdicts| verdicts.pop());
        if matches!(verdict, Err(SweepError::Log(LogStoreError::ImpossibleRow(_)))) {
            // A superseded version may be what cannot be read.
            verdict = self.verify_as_read(task).await.map(Some);
        }
        match verdict {
            // The store has something that nobody wrote: what it is cannot be told, so its version is not known.
            Err(SweepError::Log(LogStoreError::ImpossibleRow(detail))) => {
                let highest_version = 1 + u64::from(task.verify_failures.unsigned_abs());
                Ok(Verdict::Contradicted { highest_version, detail })
            }
            verdict => Ok(verdict?.unwrap_or(Verdict::Moved)),
        }
    }

    /// Verifies a log by what its readers are given, superseded versions left aside.
    async fn verify_as_read(&self, task: &SweptTask) -> Result<Verdict, SweepError> {
        let (organization, id) = task.key();
        let mut check = Check::default();
        while check.seq < task.last_seq {
            let page = EventPage { after_seq: Some(check.seq), limit: READ_AT_ONCE, ..EventPage::default() };
            let (read, _) = self.log.events(organization, id, &page).await?;
            let (first, last) = (check.seq + 1, (check.seq + i64::from(READ_AT_ONCE)).min(task.last_seq));
            let Some(part) = self.store.log_of(task.key(), first, last).await? else {
                return Ok(Verdict::Moved);
            };
            if part.task.facts().last_seq != task.last_seq {
                return Ok(Verdict::Moved);
            }
            if read != part.events {
                check.fault(format!("what is read from seq {first} on differs"));
                break;
            }
            check.pinned.get_or_insert_with(|| part.task.shared());
            for event in read {
                check.head = Some(chain(check.head.unwrap_or(Digest::ZERO), id, &event));
                check.seq = event.seq;
            }
        }
        let mut checks = HashMap::from([(id, check)]);
        self.verify_reports(std::slice::from_ref(task), &mut checks).await?;
        Ok(checks.remove(&id).unwrap_or_default().verdict(task))
    }

    /// Verifies tasks of one organization, read together; a verdict for each.
    async fn verify_group(&self, group: &[SweptTask]) -> Result<Vec<Verdict>, SweepError> {
        let Some(first) = group.first() else { return Ok(Vec::new()) };
        let organization = first.organization;
        let ids: Vec<TaskId> = group.iter().map(|task| task.task).collect();
        let longest = group.iter().map(|task| task.last_seq).max().unwrap_or_default();
        let mut checks: HashMap<TaskId, Check> = group.iter().map(|task| (task.task, Check::default())).collect();
        let mut from = 1;
        while from <= longest {
            let to = from + ROWS_AT_ONCE - 1;
            let rows = self.log.stored_events(organization, &ids, from, to).await?;
            let mut rows = by_task(rows, |row| row.task_id);
            for task in group.iter().filter(|task| from <= task.last_seq) {
                let Some(check) = checks.get_mut(&task.task) else { continue };
                let stored = rows.remove(&task.task).unwrap_or_default();
                match self.store.log_of(task.key(), from, to.min(task.last_seq)).await? {
                    Some(part) if part.task.facts().last_seq == task.last_seq => {
                        let pinned = part.task.pinned();
                        let expected = part.events.iter().map(|event| EventRow::new(pinned, event, 0, None)).collect();
                        check.events(task.task, expected, stored);
                        check.pinned.get_or_insert_with(|| part.task.shared());
                    }
                    _ => check.moved = true,
                }
            }
            from = to + 1;
        }
        self.verify_reports(group, &mut checks).await?;
        let verdicts = group.iter().map(|task| checks.remove(&task.task).unwrap_or_default().verdict(task));
        Ok(verdicts.collect())
    }

    /// Compares the ledgers of tasks of one organization, some rows at a time. A report that is in no ledger need not be
    /// looked for: the store has as many as the ledgers, and each of theirs.
    async fn verify_reports(&self, group: &[SweptTask], checks: &mut HashMap<TaskId, Check>) -> Result<(), SweepError> {
        let mut expected = Vec::new();
        for task in group {
            let Some(check) = checks.get_mut(&task.task).filter(|check| !check.moved) else { continue };
            let Some(pinned) = check.pinned.clone() else { continue };
            let mut ledger = Ledger::of(task, REPORTS_AT_ONCE);
            while let Some(rows) = ledger.next(&self.store).await? {
                let new = |(account, row): &(_, _)| UsageRow::new(&pinned, *account, row, 0, None);
                expected.extend(rows.iter().map(new));
                if expected.len() >= REPORTS_AT_ONCE as usize {
                    self.compare_reports(std::mem::take(&mut expected), checks).await?;
                }
            }
        }
        self.compare_reports(expected, checks).await
    }

    async fn compare_reports(
        &self,
        expected: Vec<UsageRow>,
        checks: &mut HashMap<TaskId, Check>,
    ) -> Result<(), SweepError> {
        let Some(organization) = expected.first().map(|row| row.organization_id) else { return Ok(()) };
        let ids: Vec<_> = expected.iter().map(|row| (row.task_id, row.report_id)).collect();
        let mut stored = by_task(self.log.stored_usage(organization, &ids).await?, |row| row.task_id);
        for (task, expected) in by_task(expected, |row| row.task_id) {
            if let Some(check) = checks.get_mut(&task) {
                check.reports(expected, stored.remove(&task).unwrap_or_default());
            }
        }
        Ok(())
    }
}

fn by_task<R>(rows: Vec<R>, task: impl Fn(&R) -> TaskId) -> HashMap<TaskId, Vec<R>> {
    let mut groups: HashMap<TaskId, Vec<R>> = HashMap::new();
    for row in rows {
        groups.entry(task(&row)).or_default().push(row);
    }
    groups
}

/// Tasks that are read together: of one organization, and few rows in all, or one task alone.
fn groups(mut tasks: Vec<SweptTask>) -> Vec<Vec<SweptTask>> {
    tasks.sort_by_key(SweptTask::key);
    let mut groups: Vec<Vec<SweptTask>> = Vec::new();
    let mut rows = 0;
    for task in tasks {
        let fits = groups
            .last()
            .and_then(|group| group.last())
            .is_some_and(|last| last.organization == task.organization && rows + task.last_seq <= ROWS_AT_ONCE);
        rows = if fits { rows + task.last_seq } else { task.last_seq };
        match groups.last_mut() {
            Some(group) if fits => group.push(task),
            _ => groups.push(vec![task]),
        }
    }
    groups
}

/// The verification of one log under way.
#[derive(Default)]
struct Check {
    head: Option<Digest>,
    seq: i64,
    highest_version: u64,
    fault: Option<String>,
    moved: bool,
    /// What the task's creation pinned, once it is read.
    pinned: Option<Arc<Pinned>>,
    /// How many rows of the ledger were compared.
    reports: i64,
}

impl Check {
    fn fault(&mut self, detail: String) {
        self.fault.get_or_insert(detail);
    }

    /// Compares a part of the log. `stored` is what the store has, by seq and falling version.
    fn events(&mut self, task: TaskId, expected: Vec<EventRow>, stored: Vec<EventRow>) {
        self.highest_version = stored.iter().map(|row| row.version).max().unwrap_or_default().max(self.highest_version);
        let mut by_seq: HashMap<i64, Vec<EventRow>> = HashMap::new();
        for row in stored {
            by_seq.entry(row.seq).or_default().push(row);
        }
        for wanted in expected {
            let Some(rows) = by_seq.remove(&wanted.seq) else {
                self.fault(format!("seq {} is missing", wanted.seq));
                continue;
            };
            // A reader is given the highest version; of two that differ under one version it could be given either.
            let top = rows.first().map(|row| row.version).unwrap_or_default();
            let wanted = EventRow { version: top, ..wanted };
            if rows.iter().filter(|row| row.version == top).any(|row| *row != wanted) {
                self.fault(format!("seq {} differs", wanted.seq));
            }
            let Some(Ok(event)) = rows.into_iter().next().map(EventRow::into_event) else {
                self.fault(format!("seq {} cannot be read", wanted.seq));
                continue;
            };
            self.head = Some(chain(self.head.unwrap_or(Digest::ZERO), task, &event));
            self.seq = event.seq;
        }
        if let Some(seq) = by_seq.keys().min() {
            self.fault(format!("seq {seq} is not of this log"));
        }
    }

    /// Compares a part of the ledger. `stored` is what the store has of its reports.
    fn reports(&mut self, expected: Vec<UsageRow>, stored: Vec<UsageRow>) {
        self.highest_version = stored.iter().map(|row| row.version).max().unwrap_or_default().max(self.highest_version);
        self.reports += i64::try_from(expected.len()).unwrap_or(i64::MAX);
        if let Some(id) = unlike(expected, stored).first() {
            self.fault(format!("report {id} is missing or differs"));
        }
    }

    fn verdict(self, task: &SweptTask) -> Verdict {
        let Self { head, seq, highest_version, fault, moved, reports, .. } = self;
        if moved {
            return Verdict::Moved;
        }
        let chained = head == Some(task.log_digest) && seq == task.last_seq;
        let unchained = || (!chained).then(|| "the chain does not end in the head".to_owned());
        let uncounted =
            || (reports != task.reports).then(|| format!("{reports} reports could be compared, of {}", task.reports));
        match fault.or_else(unchained).or_else(uncounted) {
            Some(detail) => Verdict::Contradicted { highest_version, detail },
            None => Verdict::Proven,
        }
    }
}
