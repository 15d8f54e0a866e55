//! The sweep's work lists and bookkeeping, which writes no event. Its discovery of work crosses organizations.

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Postgres, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use super::Store;
use super::error::StoreError;
use super::feed::ARCHIVES_KEPT;
use super::rows::{EVENT_COLUMNS, LEDGER_COLUMNS, Reader, TASK_COLUMNS, event, ledger, task};
use crate::domain::digest::Digest;
use crate::domain::event::Event;
use crate::domain::ids::{AccountId, OrganizationId, ReportId, TaskId};
use crate::domain::task::Task;
use crate::domain::time::Timestamp;
use crate::domain::usage::LedgerRow;

/// After so many failed verifications a log is reported and left. The indexes of the work lists name it too.
pub const VERIFY_FAILURES_MAX: i32 = 3;

/// A task as the sweep sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweptTask {
    /// The tenant.
    pub organization: OrganizationId,
    /// The task.
    pub task: TaskId,
    /// The length of its log.
    pub last_seq: i64,
    /// The head of its log.
    pub log_digest: Digest,
    /// How many rows its ledger has.
    pub reports: i64,
    /// When it closed.
    pub closed_at: Option<Timestamp>,
    /// Whether it has a child whose log is not archived.
    pub awaits_children: bool,
    /// Up to where its log was found whole in the log store.
    pub verified_seq: i64,
    /// When the first entry after that was recorded.
    pub unverified_since: Option<Timestamp>,
    /// When missing rows were last sent again.
    pub republished_at: Option<Timestamp>,
    /// How often since it was last found whole.
    pub republications: i32,
    /// How often its log in the store contradicted it.
    pub verify_failures: i32,
}

impl SweptTask {
    /// The task's key.
    pub fn key(&self) -> (OrganizationId, TaskId) {
        (self.organization, self.task)
    }
}

/// A part of a log that is still in Postgres.
#[derive(Debug, Clone)]
pub struct LogPart {
    /// The task.
    pub task: Task,
    /// Its events of that part.
    pub events: Vec<Event>,
}

/// What waits for the sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backlog {
    /// When the oldest entry was recorded that is not yet known to be in the log store; in a large backlog, a lower
    /// bound of its age.
    pub oldest_unverified: Option<Timestamp>,
    /// Logs that contradict the store for good.
    pub mismatches: i64,
}

/// A log of more entries than this is archived without the usual limit on the time of a statement.
const LONG_LOG: i64 = 10_000;

/// Of so many tasks at most the backlog's oldest entry is looked for, so that a scrape stays cheap.
const BACKLOG_TASKS_MAX: i64 = 10_000;

/// Whether a task has a child whose log is not archived. A LIMIT keeps the planner from building a table of all parents.
const AWAITS_CHILDREN: &str = "coalesce((SELECT true FROM agent_runtime.tasks c \
    WHERE c.organization_id = t.organization_id AND c.parent_task_id = t.id AND c.log_archived_at IS NULL \
    LIMIT 1), false)";

const COLUMNS: &str = "t.organization_id, t.id, t.last_seq, t.log_digest, t.closed_at, t.verified_seq, \
    t.republished_at, t.republications, t.verify_failures, \
    (SELECT e.recorded_at FROM agent_runtime.events e WHERE e.organization_id = t.organization_id \
     AND e.task_id = t.id AND e.seq = t.verified_seq + 1) AS unverified_since, \
    (SELECT count(*) FROM agent_runtime.budget_ledger l \
     WHERE l.organization_id = t.organization_id AND l.task_id = t.id) AS reports";

fn swept(row: &PgRow) -> Result<SweptTask, StoreError> {
    let r = Reader { table: "agent_runtime.tasks", row };
    Ok(SweptTask {
        organization: r.id("organization_id")?,
        task: r.id("id")?,
        last_seq: r.get("last_seq")?,
        log_digest: r.digest("log_digest")?,
        reports: r.get("reports")?,
        closed_at: r.at_opt("closed_at")?,
        awaits_children: r.get("awaits_children")?,
        verified_seq: r.get("verified_seq")?,
        unverified_since: r.at_opt("unverified_since")?,
        republished_at: r.at_opt("republished_at")?,
        republications: r.get("republications")?,
        verify_failures: r.get("verify_failures")?,
    })
}

fn keys(tasks: &[(OrganizationId, TaskId)]) -> (Vec<Uuid>, Vec<Uuid>) {
    tasks.iter().map(|(organization, task)| (organization.0, task.0)).unzip()
}

impl Store {
    /// Tasks that moved, after `after` in the order of their keys.
    pub async fn dirty_tasks(
        &self,
        after: Option<(OrganizationId, TaskId)>,
        limit: u32,
    ) -> Result<Vec<SweptTask>, StoreError> {
        let (organization, id) =
            after.map_or((Uuid::nil(), Uuid::nil()), |(organization, task)| (organization.0, task.0));
        let query = sqlx::query(AssertSqlSafe(format!(
            "SELECT {COLUMNS}, {AWAITS_CHILDREN} AS awaits_children FROM agent_runtime.tasks t
             WHERE t.dirty AND (t.organization_id, t.id) > ($1, $2) ORDER BY t.organization_id, t.id LIMIT $3"
        )))
        .bind(organization)
        .bind(id)
        .bind(i64::from(limit));
        let rows = self.all(query).await?;
        rows.iter().map(swept).collect()
    }

    /// Closed tasks whose log waits to be archived, closed at `closed_before` or earlier, after `after` in the order of
    /// their close. Those that wait for a child, and those that were left, are not among them.
    pub async fn tasks_to_archive(
        &self,
        closed_before: Timestamp,
        after: Option<(Timestamp, OrganizationId, TaskId)>,
        limit: u32,
    ) -> Result<Vec<SweptTask>, StoreError> {
        let first = (Timestamp::EPOCH, OrganizationId(Uuid::nil()), TaskId(Uuid::nil()));
        let (at, organization, task) = after.unwrap_or(first);
        let query = sqlx::query(AssertSqlSafe(format!(
            "SELECT {COLUMNS}, false AS awaits_children FROM agent_runtime.tasks t
             WHERE t.outcome IS NOT NULL AND t.log_archived_at IS NULL AND t.verify_failures < 3
                AND t.closed_at <= $1 AND (t.closed_at, t.organization_id, t.id) > ($2, $3, $4)
                AND NOT {AWAITS_CHILDREN}
             ORDER BY t.closed_at, t.organization_id, t.id LIMIT $5"
        )))
        .bind(OffsetDateTime::from(closed_before))
        .bind(OffsetDateTime::from(at))
        .bind(organization.0)
        .bind(task.0)
        .bind(i64::from(limit));
        let rows = self.all(query).await?;
        rows.iter().map(swept).collect()
    }

    /// The tasks as they are now.
    pub async fn swept_tasks(&self, tasks: &[(OrganizationId, TaskId)]) -> Result<Vec<SweptTask>, StoreError> {
        let (organizations, ids) = keys(tasks);
        let query = sqlx::query(AssertSqlSafe(format!(
            "SELECT {COLUMNS}, {AWAITS_CHILDREN} AS awaits_children
             FROM unnest($1::uuid[], $2::uuid[]) AS w(organization_id, id)
             JOIN agent_runtime.tasks t ON t.organization_id = w.organization_id AND t.id = w.id"
        )))
        .bind(organizations)
        .bind(ids);
        let rows = self.all(query).await?;
        rows.iter().map(swept).collect()
    }

    /// Notes that the log store has the events of each of `tasks` up to its `last_seq`, and all that was sent again.
    /// The flag is cleared where `last_seq` is still that and the task has been still since `quiet_since`. Without
    /// that, something else is still waited for: no flag is cleared, and what was sent again stays noted. Rows that
    /// somebody holds are passed over: nothing waits, and the next round comes.
    pub async fn mark_verified(
        &self,
        tasks: &[SweptTask],
        now: Timestamp,
        quiet_since: Option<Timestamp>,
    ) -> Result<(), StoreError> {
        let (organizations, ids) = keys(&tasks.iter().map(SweptTask::key).collect::<Vec<_>>());
        let query = sqlx::query(
            "WITH v AS (
                SELECT t.organization_id, t.id, w.seq
                FROM unnest($1::uuid[], $2::uuid[], $3::bigint[]) AS w(organization_id, id, seq)
                JOIN agent_runtime.tasks t ON t.organization_id = w.organization_id AND t.id = w.id
                WHERE t.log_archived_at IS NULL
                    AND (t.verified_seq <> w.seq OR (t.republications > 0 AND $5::timestamptz IS NOT NULL)
                        OR (t.dirty AND t.last_seq = w.seq AND t.updated_at <= $5))
                FOR NO KEY UPDATE OF t SKIP LOCKED
             )
             UPDATE agent_runtime.tasks t SET verified_seq = greatest(t.verified_seq, v.seq), verified_at = $4,
                republished_at = CASE WHEN $5::timestamptz IS NULL THEN t.republished_at END,
                republications = CASE WHEN $5::timestamptz IS NULL THEN t.republications ELSE 0 END,
                dirty = t.dirty AND NOT coalesce(t.last_seq = v.seq AND t.updated_at <= $5, false)
             FROM v WHERE t.organization_id = v.organization_id AND t.id = v.id",
        )
        .bind(organizations)
        .bind(ids)
        .bind(tasks.iter().map(|task| task.last_seq).collect::<Vec<_>>())
        .bind(OffsetDateTime::from(now))
        .bind(quiet_since.map(OffsetDateTime::from));
        self.run(query).await?;
        Ok(())
    }

    /// Notes that rows of the task were sent again.
    pub async fn mark_republished(&self, task: &SweptTask, now: Timestamp) -> Result<(), StoreError> {
        let query = sqlx::query(
            "UPDATE agent_runtime.tasks
             SET republished_at = $3, republications = least(republications + 1, 1000)
             WHERE organization_id = $1 AND id = $2 AND log_archived_at IS NULL",
        );
        self.note(query.bind(task.organization.0).bind(task.task.0).bind(OffsetDateTime::from(now))).await
    }

    /// Notes that the store contradicts the task's log once more; answers whether nobody else did since it was read.
    pub async fn mark_mismatched(&self, task: &SweptTask) -> Result<bool, StoreError> {
        let mut lease = self.lease().await?;
        let done = sqlx::query(
            "UPDATE agent_runtime.tasks SET verify_failures = verify_failures + 1
             WHERE organization_id = $1 AND id = $2 AND log_archived_at IS NULL AND verify_failures = $3",
        )
        .bind(task.organization.0)
        .bind(task.task.0)
        .bind(task.verify_failures)
        .persistent(self.named())
        .execute(&mut *lease)
        .await?;
        lease.done().await?;
        Ok(done.rows_affected() == 1)
    }

    /// Takes a task off the list of what moved, unless it moved again, because the sweep cannot mend it.
    pub async fn leave(&self, task: &SweptTask) -> Result<(), StoreError> {
        let query = sqlx::query(
            "UPDATE agent_runtime.tasks SET dirty = false
             WHERE organization_id = $1 AND id = $2 AND log_archived_at IS NULL AND last_seq = $3",
        );
        self.note(query.bind(task.organization.0).bind(task.task.0).bind(task.last_seq)).await
    }

    /// Puts every log that was left back on the lists; answers how many there were.
    pub async fn retry_left(&self) -> Result<u64, StoreError> {
        let mut lease = self.lease().await?;
        let done = sqlx::query(
            // In the order in which everybody locks several tasks.
            "WITH l AS (
                SELECT organization_id, id FROM agent_runtime.tasks
                WHERE log_archived_at IS NULL AND verify_failures >= 3 ORDER BY id FOR NO KEY UPDATE
             )
             UPDATE agent_runtime.tasks t SET verify_failures = 0, dirty = true
             FROM l WHERE t.organization_id = l.organization_id AND t.id = l.id",
        )
        .persistent(self.named())
        .execute(&mut *lease)
        .await?;
        lease.done().await?;
        Ok(done.rows_affected())
    }

    /// Archives a task that was found whole at `task.last_seq`: under the row lock that is compared once more, then the
    /// events go and the log is sealed, in one statement, which notes for the feed what left it.
    /// Answers whether it was.
    pub async fn archive(
        &self,
        task: &SweptTask,
        now: Timestamp,
        closed_before: Timestamp,
    ) -> Result<bool, StoreError> {
        // A very long log takes longer to delete than a statement may otherwise take.
        let long = task.last_seq > LONG_LOG;
        let mut lease = if long { self.transaction().await? } else { self.lease().await? };
        if long {
            sqlx::raw_sql("SET LOCAL statement_timeout = 0").execute(&mut *lease).await?;
        }
        let archived: i64 = sqlx::query_scalar(
            "WITH t AS (
                UPDATE agent_runtime.tasks t
                SET log_archived_at = $4, dirty = false, verified_seq = last_seq, verified_at = $4, verify_failures = 0,
                    republished_at = NULL, republications = 0
                WHERE t.organization_id = $1 AND t.id = $2 AND t.last_seq = $3 AND t.log_digest = $6
                    AND t.outcome IS NOT NULL AND t.closed_at <= $5 AND t.log_archived_at IS NULL
                    AND NOT EXISTS (SELECT FROM agent_runtime.tasks c WHERE c.organization_id = t.organization_id
                        AND c.parent_task_id = t.id AND c.log_archived_at IS NULL)
                RETURNING t.organization_id, t.id, t.last_seq
             ), pruned AS (
                DELETE FROM agent_runtime.events e USING t
                WHERE e.organization_id = t.organization_id AND e.task_id = t.id
             ), n AS (
                INSERT INTO agent_runtime.feed_archive_numbers AS c (organization_id, last_number)
                SELECT t.organization_id, 1 FROM t
                ON CONFLICT (organization_id) DO UPDATE SET last_number = c.last_number + 1
                RETURNING c.organization_id, c.last_number
             ), noted AS (
                INSERT INTO agent_runtime.feed_archives (organization_id, number, tx, task_id, seq)
                SELECT e.organization_id, n.last_number, e.tx, e.task_id, e.seq
                FROM t JOIN n ON n.organization_id = t.organization_id
                JOIN agent_runtime.events e
                    ON e.organization_id = t.organization_id AND e.task_id = t.id AND e.seq = t.last_seq
             ), forgotten AS (
                DELETE FROM agent_runtime.feed_archives f USING n
                WHERE f.organization_id = n.organization_id AND f.number = n.last_number - $7
             )
             SELECT count(*) FROM t",
        )
        .bind(task.organization.0)
        .bind(task.task.0)
        .bind(task.last_seq)
        .bind(OffsetDateTime::from(now))
        .bind(OffsetDateTime::from(closed_before))
        .bind(task.log_digest.0.to_vec())
        .bind(ARCHIVES_KEPT)
        .persistent(self.named())
        .fetch_one(&mut *lease)
        .await?;
        lease.done().await?;
        Ok(archived == 1)
    }

    async fn note(&self, query: Query<'_, Postgres, PgArguments>) -> Result<(), StoreError> {
        let mut lease = self.lease().await?;
        query.persistent(self.named()).execute(&mut *lease).await?;
        lease.done().await?;
        Ok(())
    }

    /// A task, up to where its log was found whole in the log store, and when.
    pub async fn verification(
        &self,
        organization: OrganizationId,
        id: TaskId,
    ) -> Result<Option<(Task, i64, Option<Timestamp>)>, StoreError> {
        let query = sqlx::query(AssertSqlSafe(format!(
            "SELECT {TASK_COLUMNS}, verified_seq, verified_at FROM agent_runtime.tasks
             WHERE organization_id = $1 AND id = $2"
        )))
        .bind(organization.0)
        .bind(id.0);
        let row = self.first(query).await?;
        let Some(row) = row else { return Ok(None) };
        let r = Reader { table: "agent_runtime.tasks", row: &row };
        Ok(Some((task(&row)?, r.get("verified_seq")?, r.at_opt("verified_at")?)))
    }

    /// What waits for the sweep, over all organizations.
    pub async fn log_backlog(&self) -> Result<Backlog, StoreError> {
        let mut lease = self.lease().await?;
        let row = sqlx::query(
            "SELECT (
                SELECT min(since) FROM (
                    SELECT (SELECT e.recorded_at FROM agent_runtime.events e WHERE e.organization_id = t.organization_id
                        AND e.task_id = t.id AND e.seq = t.verified_seq + 1) AS since
                    FROM agent_runtime.tasks t WHERE t.dirty AND t.verified_seq < t.last_seq LIMIT $1
                ) unverified
             ) AS oldest,
             (SELECT count(*) FROM agent_runtime.tasks
              WHERE log_archived_at IS NULL AND verify_failures >= 3) AS mismatches",
        )
        .bind(BACKLOG_TASKS_MAX)
        .persistent(self.named())
        .fetch_one(&mut *lease)
        .await?;
        lease.done().await?;
        let oldest: Option<OffsetDateTime> = row.try_get("oldest")?;
        Ok(Backlog { oldest_unverified: oldest.map(Timestamp::from), mismatches: row.try_get("mismatches")? })
    }

    /// What the sweep compares and sends of a task, in one consistent look: the task, and its events with a seq from
    /// `first` to `last`. Absent when the log is archived by now.
    pub async fn log_of(
        &self,
        key: (OrganizationId, TaskId),
        first: i64,
        last: i64,
    ) -> Result<Option<LogPart>, StoreError> {
        let mut lease = self.transaction().await?;
        sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            .persistent(self.named())
            .execute(&mut *lease)
            .await?;
        let row = sqlx::query(AssertSqlSafe(format!(
            "SELECT {TASK_COLUMNS} FROM agent_runtime.tasks
             WHERE organization_id = $1 AND id = $2 AND log_archived_at IS NULL"
        )))
        .bind(key.0.0)
        .bind(key.1.0)
        .persistent(self.named())
        .fetch_optional(&mut *lease)
        .await?;
        let Some(row) = row else { return Ok(None) };
        let events = sqlx::query(AssertSqlSafe(format!(
            "SELECT {EVENT_COLUMNS} FROM agent_runtime.events
             WHERE organization_id = $1 AND task_id = $2 AND seq BETWEEN $3 AND $4 ORDER BY seq"
        )))
        .bind(key.0.0)
        .bind(key.1.0)
        .bind(first)
        .bind(last)
        .persistent(self.named())
        .fetch_all(&mut *lease)
        .await?;
        lease.done().await?;
        Ok(Some(LogPart { task: task(&row)?, events: events.iter().map(event).collect::<Result<_, _>>()? }))
    }

    /// A part of a task's ledger up to `last_seq`, which never changes: at most `limit` rows after `after`, in the order
    /// of their ids, each with the account that reported.
    pub async fn ledger_of(
        &self,
        key: (OrganizationId, TaskId),
        last_seq: i64,
        after: Option<ReportId>,
        limit: u32,
    ) -> Result<Vec<(AccountId, LedgerRow)>, StoreError> {
        let query = sqlx::query(AssertSqlSafe(format!(
            "SELECT account_id, {LEDGER_COLUMNS} FROM agent_runtime.budget_ledger
             WHERE organization_id = $1 AND task_id = $2 AND id > $3 AND seq <= $4 ORDER BY id LIMIT $5"
        )))
        .bind(key.0.0)
        .bind(key.1.0)
        .bind(after.map_or(Uuid::nil(), |after| after.0))
        .bind(last_seq)
        .bind(i64::from(limit));
        let rows = self.all(query).await?;
        rows.iter().map(|row| Ok((AccountId(row.try_get("account_id")?), ledger(row)?))).collect()
    }
}
