//! Reading tasks: one, with what a command needs. Lists stand in `lists.rs`.

use sqlx::Row as _;
use uuid::Uuid;

use super::Store;
use super::error::StoreError;
use super::rows::{REQUEST_COLUMNS, SESSION_COLUMNS, TASK_COLUMNS, request, session, task};
use crate::domain::aggregate::Aggregate;
use crate::domain::ids::{AgentId, OrganizationId, RequestId, SessionId, ShortId, TaskId};
use crate::domain::task::Task;

/// What a command names beside the task itself: read although it may be closed or settled.
#[derive(Debug, Clone, Default)]
pub struct Want {
    /// A session by id.
    pub session: Option<SessionId>,
    /// A session by key.
    pub session_key: Option<String>,
    /// Requests by id.
    pub requests: Vec<RequestId>,
    /// Requests by key.
    pub request_key: Option<String>,
}

impl Store {
    /// The task of that number.
    pub async fn task(&self, organization: OrganizationId, short_id: ShortId) -> Result<Option<Task>, StoreError> {
        let query = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {TASK_COLUMNS} FROM agent_runtime.tasks WHERE organization_id = $1 AND short_number = $2"
        )))
        .bind(organization.0)
        .bind(short_id.0);
        let row = self.first(query).await?;
        row.map(|row| task(&row)).transpose()
    }

    /// The task's version: its `last_seq`.
    pub async fn version(&self, organization: OrganizationId, task: TaskId) -> Result<Option<i64>, StoreError> {
        let mut lease = self.lease().await?;
        let statement = "SELECT last_seq FROM agent_runtime.tasks WHERE organization_id = $1 AND id = $2";
        let found = sqlx::query_scalar(statement)
            .bind(organization.0)
            .bind(task.0)
            .persistent(self.named())
            .fetch_optional(&mut *lease)
            .await?;
        lease.done().await?;
        Ok(found)
    }

    /// The task with its open sessions and requests and those that `want` names. The task is read first: should the
    /// rest be newer, the commit's compare finds out.
    pub async fn load(
        &self,
        organization: OrganizationId,
        task_id: TaskId,
        want: &Want,
    ) -> Result<Option<Aggregate>, StoreError> {
        let mut lease = self.lease().await?;
        let row = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {TASK_COLUMNS} FROM agent_runtime.tasks WHERE organization_id = $1 AND id = $2"
        )))
        .bind(organization.0)
        .bind(task_id.0)
        .persistent(self.named())
        .fetch_optional(&mut *lease)
        .await?;
        let Some(row) = row else {
            lease.done().await?;
            return Ok(None);
        };
        let task = task(&row)?;
        let mut sessions = Vec::new();
        if task.facts().open_sessions > 0 || want.session.is_some() || want.session_key.is_some() {
            let rows = sqlx::query(sqlx::AssertSqlSafe(format!(
                "SELECT {SESSION_COLUMNS} FROM agent_runtime.sessions WHERE organization_id = $1 AND task_id = $2
                    AND (closed_at IS NULL OR id = $3 OR session_key = $4) ORDER BY generation"
            )))
            .bind(organization.0)
            .bind(task_id.0)
            .bind(want.session.map(|id| id.0))
            .bind(want.session_key.clone())
            .persistent(self.named())
            .fetch_all(&mut *lease)
            .await?;
            sessions = rows.iter().map(session).collect::<Result<Vec<_>, _>>()?;
        }
        let (mut requests, mut overdue) = (Vec::new(), Vec::new());
        if task.facts().open_requests > 0 || !want.requests.is_empty() || want.request_key.is_some() {
            let rows = sqlx::query(sqlx::AssertSqlSafe(format!(
                "SELECT {REQUEST_COLUMNS}, status = 'open' AND expires_at <= clock_timestamp() AS overdue
                 FROM agent_runtime.requests WHERE organization_id = $1 AND task_id = $2
                    AND (status = 'open' OR id = ANY ($3) OR request_key = $4) ORDER BY opened_at, id"
            )))
            .bind(organization.0)
            .bind(task_id.0)
            .bind(want.requests.iter().map(|id| id.0).collect::<Vec<Uuid>>())
            .bind(want.request_key.clone())
            .persistent(self.named())
            .fetch_all(&mut *lease)
            .await?;
            for row in &rows {
                let request = request(row)?;
                if row.try_get("overdue")? {
                    overdue.push(request.id);
                }
                requests.push(request);
            }
        }
        lease.done().await?;
        Ok(Some(Aggregate::new(task, sessions, requests).with_overdue(overdue)))
    }

    /// The ids of an agent's open tasks, after `after`, in id order.
    pub async fn open_tasks_of(
        &self,
        organization: OrganizationId,
        agent: AgentId,
        after: Option<TaskId>,
        limit: i64,
    ) -> Result<Vec<TaskId>, StoreError> {
        let mut lease = self.lease().await?;
        let ids: Vec<Uuid> = sqlx::query_scalar(
            "SELECT id FROM agent_runtime.tasks WHERE organization_id = $1 AND agent_id = $2 AND outcome IS NULL
                AND id > $3 ORDER BY id LIMIT $4",
        )
        .bind(organization.0)
        .bind(agent.0)
        .bind(after.map_or(Uuid::nil(), |id| id.0))
        .bind(limit)
        .persistent(self.named())
        .fetch_all(&mut *lease)
        .await?;
        lease.done().await?;
        Ok(ids.into_iter().map(TaskId).collect())
    }

    /// How many tasks have an open session, over all organizations.
    pub async fn open_sessions(&self) -> Result<i64, StoreError> {
        self.scalar("SELECT count(*) FROM agent_runtime.sessions WHERE closed_at IS NULL").await
    }
}
