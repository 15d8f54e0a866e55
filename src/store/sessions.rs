//! Reading sessions.

use super::Store;
use super::error::StoreError;
use super::rows::{SESSION_COLUMNS, session};
use crate::domain::change::BodyHash;
use crate::domain::ids::{OrganizationId, SessionId, TaskId};
use crate::domain::session::Session;

impl Store {
    /// The task's sessions, oldest first.
    pub async fn sessions(&self, organization: OrganizationId, task: TaskId) -> Result<Vec<Session>, StoreError> {
        let query = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {SESSION_COLUMNS} FROM agent_runtime.sessions
             WHERE organization_id = $1 AND task_id = $2 ORDER BY generation"
        )))
        .bind(organization.0)
        .bind(task.0);
        let rows = self.all(query).await?;
        rows.iter().map(session).collect()
    }

    /// One session of the task.
    pub async fn session(
        &self,
        organization: OrganizationId,
        task: TaskId,
        id: SessionId,
    ) -> Result<Option<Session>, StoreError> {
        let query = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {SESSION_COLUMNS} FROM agent_runtime.sessions
             WHERE organization_id = $1 AND task_id = $2 AND id = $3"
        )))
        .bind(organization.0)
        .bind(task.0)
        .bind(id.0);
        let row = self.first(query).await?;
        row.map(|row| session(&row)).transpose()
    }

    /// The hash of the body that opened a session.
    pub async fn session_hash(
        &self,
        organization: OrganizationId,
        task: TaskId,
        id: SessionId,
    ) -> Result<BodyHash, StoreError> {
        let mut lease = self.lease().await?;
        let hash: Vec<u8> = sqlx::query_scalar(
            "SELECT request_hash FROM agent_runtime.sessions
             WHERE organization_id = $1 AND task_id = $2 AND id = $3",
        )
        .bind(organization.0)
        .bind(task.0)
        .bind(id.0)
        .persistent(self.named())
        .fetch_one(&mut *lease)
        .await?;
        lease.done().await?;
        Ok(hash.try_into().unwrap_or_default())
    }
}
