//! Reading a task's log.

use sqlx::postgres::PgRow;
use sqlx::{Postgres, QueryBuilder, Row as _};
use uuid::Uuid;

use super::Store;
use super::error::StoreError;
use super::rows::{EVENT_COLUMNS, Reader, event};
use crate::domain::digest::Digest;
use crate::domain::event::Event;
use crate::domain::ids::{EventId, OrganizationId, TaskId};
use crate::domain::log_page::{EventPage, LogHead};

/// One look at a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogRead {
    /// How far it is.
    pub head: LogHead,
    /// A part of it; of an archived log none, which is whole and sealed in the log store.
    pub events: Vec<Event>,
    /// Whether there is more.
    pub more: bool,
    /// The head of its digest chain; of an archived log only.
    pub archived_digest: Option<Digest>,
}

/// The statement that reads `page` of a task's log.
pub(super) fn read(organization: OrganizationId, task: TaskId, page: &EventPage) -> QueryBuilder<Postgres> {
    let direction = if page.is_backwards() { "DESC" } else { "ASC" };
    let mut query = QueryBuilder::<Postgres>::new(
        "SELECT t.last_seq, t.log_digest, t.status = 'closed' AS closed, t.log_archived_at IS NOT NULL AS archived, e.*
         FROM agent_runtime.tasks t LEFT JOIN LATERAL (SELECT ",
    );
    query.push(EVENT_COLUMNS).push(
        " FROM agent_runtime.events e WHERE e.organization_id = t.organization_id AND e.task_id = t.id AND seq > ",
    );
    let rows = i64::from(page.limit) + 1;
    query.push_bind(page.after_seq.unwrap_or_default().min(i64::MAX - rows));
    if page.before_seq.is_none() && page.types.is_empty() {
        // A log has no gaps. Without an end in sight Postgres plans a poll of a long log anew each time.
        query.push(" AND seq <= $1 + $2");
    }
    if let Some(before) = page.before_seq {
        query.push(" AND seq < ").push_bind(before);
    }
    if !page.types.is_empty() {
        query.push(" AND type = ANY (").push_bind(page.types.clone()).push(")");
    }
    query.push(format!(" ORDER BY seq {direction} LIMIT ")).push_bind(rows);
    query.push(") e ON true WHERE t.organization_id = ").push_bind(organization.0);
    query.push(" AND t.id = ").push_bind(task.0).push(format!(" ORDER BY e.seq {direction}"));
    query
}

impl Store {
    /// A part of the log, ascending, and whether there is more in the direction that was read; or where else the log
    /// is. One statement, so one consistent look: a reader that races the archiver sees all of the log or none of it.
    pub async fn events(
        &self,
        organization: OrganizationId,
        task: TaskId,
        page: &EventPage,
    ) -> Result<LogRead, StoreError> {
        let mut query = read(organization, task, page);
        let mut lease = self.lease().await?;
        let rows = query.build().persistent(self.named()).fetch_all(&mut *lease).await?;
        lease.done().await?;
        let Some(first) = rows.first() else { return Ok(LogRead::default()) };
        let head = head(first)?;
        // The task is there and has no such event.
        if head.archived {
            let r = Reader { table: "agent_runtime.tasks", row: first };
            return Ok(LogRead { head, archived_digest: Some(r.digest("log_digest")?), ..LogRead::default() });
        }
        if first.try_get::<Option<i64>, _>("seq")?.is_none() {
            return Ok(LogRead { head, ..LogRead::default() });
        }
        let events = rows.iter().map(event).collect::<Result<Vec<_>, _>>()?;
        let (events, more) = page.cut(events);
        Ok(LogRead { head, events, more, archived_digest: None })
    }

    /// Those of `watched` logs that moved since they were last seen. One of the queries that cross organizations: who
    /// may see what comes of it was asked before.
    pub async fn moved(
        &self,
        watched: &[(OrganizationId, TaskId, LogHead)],
    ) -> Result<Vec<(OrganizationId, TaskId, LogHead)>, StoreError> {
        let query = sqlx::query(
            "SELECT t.organization_id, t.id, t.last_seq, t.status = 'closed' AS closed,
                t.log_archived_at IS NOT NULL AS archived
             FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::boolean[])
                AS w (organization_id, id, last_seq, archived)
             JOIN agent_runtime.tasks t ON t.organization_id = w.organization_id AND t.id = w.id
             WHERE t.last_seq > w.last_seq OR (t.log_archived_at IS NOT NULL AND NOT w.archived)",
        )
        .bind(watched.iter().map(|(organization, ..)| organization.0).collect::<Vec<Uuid>>())
        .bind(watched.iter().map(|(_, task, _)| task.0).collect::<Vec<Uuid>>())
        .bind(watched.iter().map(|(.., head)| head.last_seq).collect::<Vec<i64>>())
        .bind(watched.iter().map(|(.., head)| head.archived).collect::<Vec<bool>>());
        let rows = self.all(query).await?;
        let moved = rows.iter().map(|row| {
            let organization = OrganizationId(row.try_get("organization_id")?);
            Ok((organization, TaskId(row.try_get("id")?), head(row)?))
        });
        moved.collect()
    }

    /// Those of `ids` that the task has.
    pub async fn events_by_id(
        &self,
        organization: OrganizationId,
        task: TaskId,
        ids: &[EventId],
    ) -> Result<Vec<Event>, StoreError> {
        let query = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {EVENT_COLUMNS} FROM agent_runtime.events
             WHERE organization_id = $1 AND task_id = $2 AND event_id = ANY ($3)"
        )))
        .bind(organization.0)
        .bind(task.0)
        .bind(ids.iter().map(|id| id.0).collect::<Vec<Uuid>>());
        let rows = self.all(query).await?;
        rows.iter().map(event).collect()
    }
}

fn head(row: &PgRow) -> Result<LogHead, StoreError> {
    Ok(LogHead {
        last_seq: row.try_get("last_seq")?,
        closed: row.try_get("closed")?,
        archived: row.try_get("archived")?,
    })
}
