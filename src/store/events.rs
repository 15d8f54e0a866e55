//! Reading a task's log.

use sqlx::{Postgres, QueryBuilder, Row as _};
use uuid::Uuid;

use super::Store;
use super::error::StoreError;
use super::rows::{EVENT_COLUMNS, Reader, event};
use crate::domain::digest::Digest;
use crate::domain::event::Event;
use crate::domain::ids::{EventId, OrganizationId, TaskId};
use crate::domain::log_page::EventPage;

/// Where a log was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogRead {
    /// Here: a part of it, and whether there is more.
    Here(Vec<Event>, bool),
    /// In the log store, whole and sealed.
    Archived {
        /// The length of the log.
        last_seq: i64,
        /// Its head.
        head: Digest,
    },
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
        let direction = if page.is_backwards() { "DESC" } else { "ASC" };
        let mut query = QueryBuilder::<Postgres>::new(
            "SELECT t.log_archived_at IS NOT NULL AS archived, t.last_seq, t.log_digest AS head, e.* FROM agent_runtime.tasks t LEFT JOIN LATERAL (SELECT ",
        );
        query.push(EVENT_COLUMNS).push(
            " FROM agent_runtime.events e WHERE e.organization_id = t.organization_id AND e.task_id = t.id AND seq > ",
        );
        query.push_bind(page.after_seq.unwrap_or_default());
        if let Some(before) = page.before_seq {
            query.push(" AND seq < ").push_bind(before);
        }
        if !page.types.is_empty() {
            query.push(" AND type = ANY (").push_bind(page.types.clone()).push(")");
        }
        query.push(format!(" ORDER BY seq {direction} LIMIT ")).push_bind(i64::from(page.limit) + 1);
        query.push(") e ON true WHERE t.organization_id = ").push_bind(organization.0);
        query.push(" AND t.id = ").push_bind(task.0).push(format!(" ORDER BY e.seq {direction}"));
        let mut lease = self.lease().await?;
        let rows = query.build().persistent(self.named()).fetch_all(&mut *lease).await?;
        lease.done().await?;
        match rows.first() {
            Some(first) if first.try_get("archived")? => {
                let r = Reader { table: "agent_runtime.tasks", row: first };
                return Ok(LogRead::Archived { last_seq: r.get("last_seq")?, head: r.digest("head")? });
            }
            // The task is there and has no such event.
            Some(first) if first.try_get::<Option<i64>, _>("seq")?.is_none() => {
                return Ok(LogRead::Here(Vec::new(), false));
            }
            Some(_) | None => {}
        }
        let events = rows.iter().map(event).collect::<Result<Vec<_>, _>>()?;
        let (events, more) = page.cut(events);
        Ok(LogRead::Here(events, more))
    }

    /// Those of `ids` that the task has.
    pub async fn events_by_id(
        &self,
        organization: OrganizationId,
        task: TaskId,
        ids: &[EventId],
    ) -> Result<Vec<Event>, StoreError> {
        let mut lease = self.lease().await?;
        let rows = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {EVENT_COLUMNS} FROM agent_runtime.events
             WHERE organization_id = $1 AND task_id = $2 AND event_id = ANY ($3)"
        )))
        .bind(organization.0)
        .bind(task.0)
        .bind(ids.iter().map(|id| id.0).collect::<Vec<Uuid>>())
        .persistent(self.named())
        .fetch_all(&mut *lease)
        .await?;
        lease.done().await?;
        rows.iter().map(event).collect()
    }
}
