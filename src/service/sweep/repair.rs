//! Sending again what the log store lacks.

use std::collections::HashSet;
use std::sync::PoisonError;

use tokio::time::Instant;

use super::compare::Other;
use super::ledger::Ledger;
use super::round::{Key, Round};
use super::{Answering, PATIENCE_DOUBLINGS_MAX, Sweep, SweepError};
use crate::domain::ids::ReportId;
use crate::domain::task::Pinned;
use crate::domain::time::Timestamp;
use crate::log::{Batch, Coverage, EventRow, Published, UsageRow};
use crate::store::{LogPart, SweptTask, VERIFY_FAILURES_MAX};

/// The version of a row that is sent again as it was: it lands beside its twin.
const AGAIN: u64 = 1;
/// How many seqs are read at once.
const CHUNK: i64 = 500;
/// How many rows of the ledger.
const LEDGER_CHUNK: u32 = 500;
/// Rows of several tasks go together, so many of them at least.
const BATCH_ROWS: usize = 1_000;

/// Rows that were read and not yet sent, and the tasks they are of.
#[derive(Default)]
struct Parcel {
    batch: Batch,
    tasks: Vec<SweptTask>,
}

/// Tasks whose events the store has up to the `last_seq` that each carries, and not to their end.
#[derive(Default)]
pub(super) struct Prefixes {
    /// Everything that was sent again has arrived.
    pub arrived: Vec<SweptTask>,
    /// Rows of the ledger are missing, or something was sent again just now.
    pub awaited: Vec<SweptTask>,
}

impl Sweep {
    /// Looks closer at tasks that the store does not have whole: what is missing is sent again, what no log can have is
    /// counted. Answers the tasks of which rows were sent and taken, and those of which the store has more than was
    /// known.
    pub(super) async fn mend(&self, other: Other, round: &mut Round) -> Result<(Vec<Key>, Prefixes), SweepError> {
        // Read after the store was: what is in the store was committed before, so no row of it can be ahead of this.
        let keys: Vec<_> = other.keys().copied().collect();
        let (mut mended, mut found, mut parcel) = (Vec::new(), Vec::new(), Parcel::default());
        for task in self.store.swept_tasks(&keys).await? {
            let Some((_, coverage)) = other.get(&task.key()) else { continue };
            if coverage.is_prefix() && coverage.max_seq > task.verified_seq && coverage.max_seq <= task.last_seq {
                // A busy task is never whole at the moment of the look; as far as it is, it need not be looked at again.
                let prefix = SweptTask { last_seq: coverage.max_seq, ..task.clone() };
                found.push((prefix, coverage.reports < task.reports));
            }
            if let Err(error) = self.mend_one(&task, coverage, &mut parcel, round).await {
                let error = self.check_log(error).await?;
                round.fail(&task, error)?;
            }
            if parcel.batch.len() >= BATCH_ROWS {
                self.send_parcel(std::mem::take(&mut parcel), &mut mended, round).await?;
            }
        }
        self.send_parcel(parcel, &mut mended, round).await?;
        let mut prefixes = Prefixes::default();
        for (prefix, lacks_reports) in found {
            let awaited = lacks_reports || mended.contains(&prefix.key());
            if awaited { &mut prefixes.awaited } else { &mut prefixes.arrived }.push(prefix);
        }
        Ok((mended, prefixes))
    }

    async fn mend_one(
        &self,
        task: &SweptTask,
        coverage: &Coverage,
        parcel: &mut Parcel,
        round: &mut Round,
    ) -> Result<(), SweepError> {
        let foreign = coverage.has_foreign(task.last_seq, task.reports);
        if foreign && round.contradicted.insert(task.key()) {
            round.swept.mismatched += 1;
            let detail = format!(
                "it has {} seqs up to {}, {} event ids and {} reports, where the log has {} events and {} reports",
                coverage.seqs, coverage.max_seq, coverage.event_ids, coverage.reports, task.last_seq, task.reports
            );
            self.contradicted(task, &detail).await?;
        }
        let lacking = coverage.seqs < task.last_seq || coverage.reports < task.reports;
        if foreign && !lacking && task.verify_failures >= VERIFY_FAILURES_MAX {
            // Nothing is missing, and what is too much nobody here can take away.
            return Ok(self.store.leave(task).await?);
        }
        let later = round.waiting.contains(&task.key()) || round.is_in_vain() || self.stop.is_cancelled();
        let Some(lost_before) = self.waited_before(task).filter(|_| !later) else { return Ok(()) };
        // The events say nothing of the ledger: its rows take their own way.
        let (looks_at_events, lacks_reports) = (may_lack(task, lost_before), coverage.reports < task.reports);
        if !(looks_at_events || lacks_reports && self.ledger_is_due(task)) {
            return Ok(());
        }
        let missing = if looks_at_events { self.missing_events(task, coverage).await? } else { Vec::new() };
        let known_reports = if lacks_reports { self.known_reports(task, coverage).await? } else { HashSet::new() };
        let ranges = ranges(&missing);
        // At least one look, for the ledger, when no event is missing.
        let looks = if ranges.is_empty() { vec![(0, 0)] } else { ranges };
        let missing: HashSet<i64> = missing.into_iter().collect();
        let before = parcel.batch.len();
        for (number, (first, last)) in looks.into_iter().enumerate() {
            let Some(part) = self.store.log_of(task.key(), first, last).await? else { break };
            let pinned = part.task.pinned();
            let lost = |at: Timestamp| at <= lost_before;
            let events = part.events.iter().filter(|event| lost(event.recorded_at) && missing.contains(&event.seq));
            parcel.batch.events.extend(events.map(|event| EventRow::new(pinned, event, AGAIN, None)));
            if number == 0 && lacks_reports {
                self.add_reports(task, pinned, &known_reports, lost_before, &mut parcel.batch).await?;
            }
            if parcel.batch.len() >= BATCH_ROWS {
                // The rest of a long log comes in the rounds that follow.
                break;
            }
        }
        if parcel.batch.len() > before {
            parcel.tasks.push(task.clone());
        }
        Ok(())
    }

    /// Adds the rows of the ledger that are lost, as far as they fit, and notes when the next one can be.
    async fn add_reports(
        &self,
        task: &SweptTask,
        pinned: &Pinned,
        known: &HashSet<ReportId>,
        lost_before: Timestamp,
        batch: &mut Batch,
    ) -> Result<(), SweepError> {
        let (mut ledger, mut next) = (Ledger::of(task, LEDGER_CHUNK), self.clock.now());
        while batch.len() < BATCH_ROWS {
            let Some(rows) = ledger.next(&self.store).await? else {
                self.ledgers.lock().unwrap_or_else(PoisonError::into_inner).insert(task.key(), next);
                break;
            };
            for (account, row) in rows.iter().filter(|(_, row)| !known.contains(&row.id)) {
                if row.recorded_at <= lost_before {
                    batch.usage.push(UsageRow::new(pinned, *account, row, AGAIN, None));
                } else {
                    next = next.min(row.recorded_at);
                }
            }
        }
        Ok(())
    }

    /// Whether a row of the ledger can be lost that the last look at it did not find lost.
    fn ledger_is_due(&self, task: &SweptTask) -> bool {
        let lost_before = self.clock.now().minus(self.settings.patience);
        let mut ledgers = self.ledgers.lock().unwrap_or_else(PoisonError::into_inner);
        ledgers.retain(|_, oldest| *oldest > lost_before);
        !ledgers.contains_key(&task.key())
    }

    /// The seqs that the store lacks, ascending. Asks only what the counts do not tell.
    async fn missing_events(&self, task: &SweptTask, coverage: &Coverage) -> Result<Vec<i64>, SweepError> {
        if coverage.is_prefix() {
            return Ok((coverage.max_seq + 1..=task.last_seq).collect());
        }
        let (organization, id) = task.key();
        let stored: HashSet<i64> = self.log.seqs(organization, id).await?.into_iter().collect();
        Ok((1..=task.last_seq).filter(|seq| !stored.contains(seq)).collect())
    }

    /// The reports that the store has. Asks only what the counts do not tell.
    async fn known_reports(&self, task: &SweptTask, coverage: &Coverage) -> Result<HashSet<ReportId>, SweepError> {
        if coverage.reports == 0 {
            return Ok(HashSet::new());
        }
        let (organization, id) = task.key();
        Ok(self.log.report_ids(organization, id).await?.into_iter().collect())
    }

    /// How old an event of `task` must be to count as lost, or `None` while none is, or what was sent last may still
    /// arrive. Asks nobody, so that a store that is behind is not asked about every task in every round.
    pub(super) fn lost_before(&self, task: &SweptTask) -> Option<Timestamp> {
        self.waited_before(task).filter(|lost_before| may_lack(task, *lost_before))
    }

    /// How old a row of `task` must be to count as lost, or `None` while what was sent last, or waited for a log store
    /// that was away, may still arrive.
    fn waited_before(&self, task: &SweptTask) -> Option<Timestamp> {
        let now = self.clock.now();
        let doublings = task.republications.clamp(0, PATIENCE_DOUBLINGS_MAX);
        let patience = self.settings.patience * 2_u32.pow(doublings.unsigned_abs());
        let waited = task.republished_at.is_none_or(|at| at <= now.minus(patience));
        let lost_before = now.minus(self.settings.patience);
        let answering = *self.answering.lock().unwrap_or_else(PoisonError::into_inner);
        let caught_up = match answering {
            Answering::Since(at) => self.stream.lands() || at <= lost_before,
            Answering::Always | Answering::No => true,
        };
        (waited && caught_up).then_some(lost_before)
    }

    /// Sends the rows of several tasks together and notes what became of each.
    async fn send_parcel(&self, parcel: Parcel, mended: &mut Vec<Key>, round: &mut Round) -> Result<(), SweepError> {
        if parcel.batch.is_empty() {
            return Ok(());
        }
        let published = self.send(parcel.batch, round).await;
        let now = self.clock.now();
        for task in parcel.tasks {
            // What a stream that is away did not take was not sent: it is tried again without more patience, but after
            // the others, should it be the rows themselves that are not taken.
            if published.delivered + published.refused == 0 {
                round.unsent.insert(task.key());
                continue;
            }
            mended.push(task.key());
            self.store.mark_republished(&task, now).await?;
        }
        Ok(())
    }

    /// Sends rows. A stream that takes nothing costs the time that it is waited for.
    async fn send(&self, batch: Batch, round: &mut Round) -> Published {
        let begun = Instant::now();
        let stopped = Published { failed: batch.len() as u64, ..Published::default() };
        let published = tokio::select! {
            biased;
            () = self.stop.cancelled() => stopped,
            published = self.stream.publish(batch) => published,
        };
        let Published { delivered, failed, refused, .. } = published;
        if delivered + refused == 0 {
            round.in_vain += begun.elapsed();
        }
        round.swept.republished += delivered;
        round.swept.unpublished += failed;
        self.counters.republished.inc_by(delivered);
        self.counters.refused.inc_by(refused);
        if let Some(fault) = &published.fault {
            tracing::warn!(failed, refused, fault, "not everything was sent again");
        }
        published
    }

    /// Sends the whole log and ledger of a task under `version`. Answers whether all of it was taken, or refused by the
    /// store itself.
    pub(super) async fn write_anew(
        &self,
        task: &SweptTask,
        version: u64,
        round: &mut Round,
    ) -> Result<bool, SweepError> {
        let (mut first, mut ledger) = (1, Ledger::of(task, LEDGER_CHUNK));
        loop {
            if round.is_in_vain() || self.stop.is_cancelled() {
                return Ok(false);
            }
            let last = (first + CHUNK - 1).min(task.last_seq);
            let Some(LogPart { task: row, events }) = self.store.log_of(task.key(), first, last).await? else {
                return Ok(false);
            };
            let reports = ledger.next(&self.store).await?.unwrap_or_default();
            if first > task.last_seq && reports.is_empty() {
                break;
            }
            let pinned = row.pinned();
            let mut batch = Batch::default();
            batch.events.extend(events.iter().map(|event| EventRow::new(pinned, event, version, None)));
            let rows = reports.iter().map(|(account, row)| UsageRow::new(pinned, *account, row, version, None));
            batch.usage.extend(rows);
            let published = self.send(batch, round).await;
            if published.failed > published.refused {
                return Ok(false);
            }
            first = last + 1;
        }
        self.store.mark_republished(task, self.clock.now()).await?;
        Ok(true)
    }
}

/// Whether an event that old can be lost: where the log is known to be whole up to an entry, nothing older than the
/// next one can.
fn may_lack(task: &SweptTask, lost_before: Timestamp) -> bool {
    task.unverified_since.is_none_or(|since| since <= lost_before)
}

/// `seqs`, ascending, as ranges that are read at once: a range may span others when that reads little more.
fn ranges(seqs: &[i64]) -> Vec<(i64, i64)> {
    let mut ranges: Vec<(i64, i64)> = Vec::new();
    for seq in seqs {
        match ranges.last_mut() {
            Some((first, last)) if *seq - *first < CHUNK => *last = *seq,
            _ => ranges.push((*seq, *seq)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_every_seq_and_are_bounded() {
        let seqs: Vec<i64> = (1..=1_200).filter(|seq| seq % 7 != 0).chain([5_000, 9_000_000]).collect();
        let ranges = ranges(&seqs);
        assert!(seqs.iter().all(|seq| ranges.iter().any(|(first, last)| (first..=last).contains(&seq))));
        assert!(ranges.iter().all(|(first, last)| last - first < CHUNK));
        assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0));
        assert_eq!(ranges.len(), 5);
        assert!(super::ranges(&[]).is_empty());
    }
}
