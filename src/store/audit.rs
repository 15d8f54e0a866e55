//! The audit: replays logs and compares them with the rows. What guards in the database would cost too much on the
//! write path is found here.

use futures::future::BoxFuture;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::Store;
use super::artifacts::{reference_fault, referred};
use super::error::StoreError;
use super::rows::{
    EVENT_COLUMNS, LEDGER_COLUMNS, REQUEST_COLUMNS, SESSION_COLUMNS, TASK_COLUMNS, event, ledger, request, session,
    task,
};
use super::search::FoundBy;
use crate::domain::aggregate::{Aggregate, fold};
use crate::domain::artifact;
use crate::domain::event::{Event, EventType};
use crate::domain::ids::{AccountId, OrganizationId, TaskId};
use crate::domain::money::{Money, TokenCounts};
use crate::domain::session::Session;
use crate::domain::task::{Pinned, Task};
use crate::domain::time::Timestamp;
use crate::domain::usage::LedgerRow;

/// Something that should not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Where: an organization, or one of its tasks.
    pub place: String,
    /// What.
    pub fault: String,
}

/// What an audit looked at, and what it found.
#[derive(Debug, Default)]
pub struct Audit {
    /// Tasks whose log was replayed or, when it is archived, whose ledger was added up.
    pub tasks: u64,
    /// Events replayed.
    pub events: u64,
    /// Rows of the ledger added up.
    pub reports: u64,
    /// What should not be.
    pub findings: Vec<Finding>,
}

/// Where archived logs are read, so that they are audited like all others.
pub trait Archive: Send + Sync {
    /// The whole log of an archived task, in order.
    fn log(&self, organization: OrganizationId, task: TaskId) -> BoxFuture<'_, Result<Vec<Event>, String>>;

    /// Where the usage that is kept of an archived task differs from its ledger.
    fn usage_faults<'a>(
        &'a self,
        task: &'a Pinned,
        ledger: &'a [(AccountId, LedgerRow)],
    ) -> BoxFuture<'a, Result<Vec<String>, String>>;
}

/// Tasks read between two looks.
const PAGE: i64 = 500;

impl Store {
    /// Audits every task, one consistent look each. Writes nothing; may run beside a live service. Without `archive` an
    /// archived task has only its ledger added up.
    pub async fn audit(&self, archive: Option<&dyn Archive>) -> Result<Audit, StoreError> {
        let mut audit = Audit::default();
        self.audit_numbers(&mut audit).await?;
        let (mut organization, mut after) = (Uuid::nil(), Uuid::nil());
        loop {
            let query = sqlx::query(
                "SELECT organization_id, id FROM agent_runtime.tasks
                 WHERE (organization_id, id) > ($1, $2) ORDER BY organization_id, id LIMIT $3",
            )
            .bind(organization)
            .bind(after)
            .bind(PAGE);
            let rows = self.all(query).await?;
            let Some(last) = rows.last() else { return Ok(audit) };
            (organization, after) = (last.try_get("organization_id")?, last.try_get("id")?);
            for row in &rows {
                let key = (row.try_get("organization_id")?, row.try_get("id")?);
                self.audit_task(key, archive, &mut audit).await?;
            }
        }
    }

    /// Short ids have no holes.
    async fn audit_numbers(&self, audit: &mut Audit) -> Result<(), StoreError> {
        let query = sqlx::query(
            "SELECT coalesce(s.organization_id, t.organization_id) AS organization_id,
                coalesce(s.last_number, 0) AS last_number, coalesce(t.tasks, 0) AS tasks,
                coalesce(t.highest, 0) AS highest
             FROM agent_runtime.task_id_sequences s
             FULL JOIN (
                SELECT organization_id, count(*) AS tasks, max(short_number) AS highest
                FROM agent_runtime.tasks GROUP BY organization_id
             ) t ON t.organization_id = s.organization_id",
        );
        let rows = self.all(query).await?;
        for row in rows {
            let id: Uuid = row.try_get("organization_id")?;
            let numbers: [i64; 3] = [row.try_get("last_number")?, row.try_get("tasks")?, row.try_get("highest")?];
            if numbers.iter().any(|number| *number != numbers[0]) {
                let [last, tasks, highest] = numbers;
                let fault = format!("{tasks} tasks, the highest T-{highest}, but the counter says {last}");
                audit.findings.push(Finding { place: format!("organization {id}"), fault });
            }
        }
        Ok(())
    }

    async fn audit_task(
        &self,
        key: (Uuid, Uuid),
        archive: Option<&dyn Archive>,
        audit: &mut Audit,
    ) -> Result<(), StoreError> {
        let mut lease = self.transaction().await?;
        sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            .persistent(self.named())
            .execute(&mut *lease)
            .await?;
        let mut read = async |columns: &str, table: &str, id: &str, order: &str| {
            let statement = format!(
                "SELECT {columns} FROM agent_runtime.{table} WHERE organization_id = $1 AND {id} = $2 ORDER BY {order}"
            );
            self.rows_of(&mut lease, statement, key).await
        };
        let rows = read(TASK_COLUMNS, "tasks", "id", "id").await?;
        let Some(row) = rows.first() else { return Ok(()) };
        let row = task(row)?;
        let events = read(EVENT_COLUMNS, "events", "task_id", "seq").await?;
        let events = events.iter().map(event).collect::<Result<Vec<_>, _>>()?;
        let sessions = read(SESSION_COLUMNS, "sessions", "task_id", "generation").await?;
        let sessions = sessions.iter().map(session).collect::<Result<Vec<_>, _>>()?;
        let requests = read(REQUEST_COLUMNS, "requests", "task_id", "opened_at, id").await?;
        let requests = requests.iter().map(request).collect::<Result<Vec<_>, _>>()?;
        let reports = read(&format!("account_id, {LEDGER_COLUMNS}"), "budget_ledger", "task_id", "seq").await?;
        let reports = reports.iter().map(|row| Ok((AccountId(row.try_get("account_id")?), ledger(row)?)));
        let reports = reports.collect::<Result<Vec<_>, StoreError>>()?;
        let refs = referred(&read("digest, seq", "artifact_refs", "task_id", "digest").await?)?;
        let labels = read("key, value", "task_labels", "task_id", "key").await?;
        let texts = read("text", "task_texts", "task_id", "task_id").await?;
        let found_by = FoundBy::read(&labels, &texts)?;
        let related = self.related(&mut lease, key).await?;
        let children = self.children_of(&mut lease, key).await?;
        let inverted = self.inverted(&mut lease, key).await?;
        lease.done().await?;
        let (events, left_behind, mut faults) = match archive.filter(|_| row.log_archived_at().is_some()) {
            Some(archive) => match archived(archive, row.pinned(), &reports).await {
                Ok((archived, faults)) => (archived, events.len(), faults),
                Err(fault) => {
                    // What cannot be read is not proven.
                    let fault = format!("its log is archived and cannot be read: {fault}");
                    audit.findings.push(Finding { place: place(&row), fault });
                    return Ok(());
                }
            },
            None => (events, 0, Vec::new()),
        };
        let reports: Vec<_> = reports.into_iter().map(|(_, row)| row).collect();
        audit.tasks += 1;
        audit.events += events.len() as u64;
        audit.reports += reports.len() as u64;
        let kept = Aggregate::new(row, sessions, requests);
        faults.extend(ledger_faults(kept.task(), &reports));
        faults.extend(inverted.map(|seq| format!("the feed shows seq {seq} before the one before it")));
        faults.extend(found_by.faults(kept.task().pinned()));
        if kept.task().log_archived_at().is_some() && archive.is_none() {
            faults.extend(left_in_postgres(events.len()));
        } else {
            faults.extend(left_in_postgres(left_behind));
            faults.extend(log_faults(&kept, &events, &reports));
            faults.extend(reference_fault(refs, artifact::refs(&events)));
        }
        // Of an archived task the log of the other side tells what became of a dependency.
        if kept.task().log_archived_at().is_none() {
            faults.extend(related.faults(&events));
            faults.extend(children.faults(kept.task(), &events));
        }
        for fault in faults {
            audit.findings.push(Finding { place: place(kept.task()), fault });
        }
        Ok(())
    }

    pub(super) async fn rows_of(
        &self,
        db: &mut PgConnection,
        statement: String,
        (organization, id): (Uuid, Uuid),
    ) -> Result<Vec<PgRow>, StoreError> {
        let query = sqlx::query(sqlx::AssertSqlSafe(statement)).bind(organization).bind(id);
        Ok(query.persistent(self.named()).fetch_all(db).await?)
    }
}

/// An archived log, and where its usage differs from the ledger.
async fn archived(
    archive: &dyn Archive,
    task: &Pinned,
    ledger: &[(AccountId, LedgerRow)],
) -> Result<(Vec<Event>, Vec<String>), String> {
    Ok((archive.log(task.organization_id, task.id).await?, archive.usage_faults(task, ledger).await?))
}

fn place(task: &Task) -> String {
    format!("{} of organization {}", task.pinned().short_id, task.pinned().organization_id)
}

/// Archiving deletes every event.
fn left_in_postgres(events: usize) -> Option<String> {
    (events > 0).then(|| format!("its log is archived, but {events} events are still here"))
}

fn log_faults(kept: &Aggregate, events: &[Event], reports: &[LedgerRow]) -> Vec<String> {
    let mut faults = report_faults(events, reports);
    let (organization, task): (OrganizationId, TaskId) = (kept.task().pinned().organization_id, kept.task().id());
    match fold(organization, task, events) {
        Err(fault) => faults.push(fault.to_string()),
        Ok(folded) => faults.extend(differences(kept, &folded)),
    }
    faults
}

/// Totals are Σ of the ledger.
fn ledger_faults(task: &Task, reports: &[LedgerRow]) -> Vec<String> {
    let mut tokens = TokenCounts::default();
    let (mut cost, mut unmeasured, mut unpriced) = (Money::ZERO, 0, 0);
    for row in reports {
        let (Some(sum), Ok(total)) = (tokens.checked_add(row.tokens), cost.checked_add(row.cost.unwrap_or_default()))
        else {
            return vec!["its ledger cannot be added up exactly".to_owned()];
        };
        (tokens, cost) = (sum, total);
        unmeasured += i64::from(row.unmeasured_delta);
        unpriced += i64::from(row.unpriced_delta);
    }
    let facts = task.facts();
    let mut faults = Vec::new();
    if cost != facts.cost_total {
        faults.push(format!("its cost is {}, but its ledger adds up to {cost}", facts.cost_total));
    }
    if tokens != facts.tokens {
        faults.push(format!("its tokens are {:?}, but its ledger adds up to {tokens:?}", facts.tokens));
    }
    if (unmeasured, unpriced) != (facts.unmeasured_reports, facts.unpriced_reports) {
        faults.push("its counts of unmeasured or unpriced reports differ from its ledger".to_owned());
    }
    faults
}

/// Every row of the ledger has its event, and every event its row.
fn report_faults(events: &[Event], reports: &[LedgerRow]) -> Vec<String> {
    let reported = EventType::UsageReported.as_str();
    let logged: Vec<i64> = events.iter().filter(|event| event.event_type == reported).map(|event| event.seq).collect();
    let rows: Vec<i64> = reports.iter().map(|row| row.seq).collect();
    if logged == rows {
        Vec::new()
    } else {
        vec![format!("its ledger has rows for seq {rows:?}, its log reports usage at {logged:?}")]
    }
}

/// Where the rows differ from what the log folds to.
fn differences(kept: &Aggregate, folded: &Aggregate) -> Vec<String> {
    let mut faults = Vec::new();
    if kept.task().pinned() != folded.task().pinned() {
        faults.push("what creation pinned differs from its log".to_owned());
    }
    if kept.task().facts() != folded.task().facts() {
        let (row, log) = (kept.task().facts(), folded.task().facts());
        faults.push(format!("its row differs from its log: row {row:?}, log {log:?}"));
    }
    // A heartbeat is bookkeeping: it moves without an event.
    let still = |session: &Session| Session { heartbeat_at: Timestamp::EPOCH, ..session.clone() };
    let rows: Vec<_> = kept.sessions().iter().map(still).collect();
    let log: Vec<_> = folded.sessions().iter().map(still).collect();
    if rows != log {
        faults.push(format!("its sessions differ from its log: rows {rows:?}, log {log:?}"));
    }
    let sorted = |aggregate: &Aggregate| {
        let mut requests = aggregate.requests().to_vec();
        requests.sort_by_key(|request| request.id);
        requests
    };
    let (rows, log) = (sorted(kept), sorted(folded));
    if rows != log {
        faults.push(format!("its requests differ from its log: rows {rows:?}, log {log:?}"));
    }
    faults
}
