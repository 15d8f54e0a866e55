//! Reading a task's log.

use sqlx::{Postgres, QueryBuilder};
use uuid::Uuid;

use super::Store;
use super::error::StoreError;
use super::rows::{EVENT_COLUMNS, event};
use crate::domain::event::Event;
use crate::domain::ids::{EventId, OrganizationId, TaskId};
use crate::domain::log_page::EventPage;

impl Store {
    /// A part of the log, ascending, and whether there is more in the direction that was read.
    pub async fn events(
        &self,
        organization: OrganizationId,
        task: TaskId,
        page: &EventPage,
    ) -> Result<(Vec<Event>, bool), StoreError> {
        let newest = page.after_seq.is_none() && page.before_seq.is_some();
        let mut query = QueryBuilder::<Postgres>::new("SELECT ");
        query.push(EVENT_COLUMNS).push(" FROM agent_runtime.events WHERE organization_id = ");
        query.push_bind(organization.0).push(" AND task_id = ").push_bind(task.0);
        query.push(" AND seq > ").push_bind(page.after_seq.unwrap_or_default());
        if let Some(before) = page.before_seq {
            query.push(" AND seq < ").push_bind(before);
        }
        if !page.types.is_empty() {
            query.push(" AND type = ANY (").push_bind(page.types.clone()).push(")");
        }
        query.push(if newest { " ORDER BY seq DESC LIMIT " } else { " ORDER BY seq LIMIT " });
        query.push_bind(i64::from(page.limit) + 1);
        let mut lease = self.lease().await?;
        let rows = query.build().persistent(self.named()).fetch_all(&mut *lease).await?;
        lease.done().await?;
        let mut events = rows.iter().map(event).collect::<Result<Vec<_>, _>>()?;
        let more = events.len() > page.limit as usize;
        events.truncate(page.limit as usize);
        if newest {
            events.reverse();
        }
        Ok((events, more))
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
