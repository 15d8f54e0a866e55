//! What time closes. The workers' discovery of due work is the one kind of query that crosses organizations.

use sqlx::Row;
use time::OffsetDateTime;
use uuid::Uuid;

use super::Store;
use super::error::StoreError;
use crate::domain::ids::{OrganizationId, RequestId, SessionId, TaskId};
use crate::domain::time::Timestamp;

/// Requests of one task that have expired by the database's clock.
#[derive(Debug)]
pub struct DueRequests {
    /// The tenant.
    pub organization: OrganizationId,
    /// The task.
    pub task: TaskId,
    /// The requests.
    pub requests: Vec<RequestId>,
}

/// Sessions of one task that gave no sign of life for too long.
#[derive(Debug)]
pub struct DueSessions {
    /// The tenant.
    pub organization: OrganizationId,
    /// The task.
    pub task: TaskId,
    /// The sessions.
    pub sessions: Vec<SessionId>,
    /// They were silent since then.
    pub silent_since: Timestamp,
}

impl Store {
    /// Expired requests, the oldest first, by task.
    pub async fn due_requests(&self, limit: i64) -> Result<Vec<DueRequests>, StoreError> {
        let query = sqlx::query(
            "SELECT organization_id, task_id, array_agg(id) AS ids FROM (
                SELECT organization_id, task_id, id FROM agent_runtime.requests
                WHERE status = 'open' AND expires_at <= clock_timestamp() ORDER BY expires_at LIMIT $1
             ) due GROUP BY organization_id, task_id",
        )
        .bind(limit);
        let rows = self.all(query).await?;
        let due = rows.iter().map(|row| {
            Ok(DueRequests {
                organization: OrganizationId(row.try_get("organization_id")?),
                task: TaskId(row.try_get("task_id")?),
                requests: row.try_get::<Vec<Uuid>, _>("ids")?.into_iter().map(RequestId).collect(),
            })
        });
        due.collect()
    }

    /// Silent sessions, by task. Sessions that are due for a look but lived in the meantime are set forward, which
    /// keeps heartbeats from touching an index.
    pub async fn due_sessions(&self, limit: i64) -> Result<Vec<DueSessions>, StoreError> {
        let timeout = i64::try_from(self.session_timeout.as_micros()).unwrap_or(i64::MAX);
        let mut lease = self.transaction().await?;
        sqlx::query(
            "UPDATE agent_runtime.sessions s SET check_at = s.heartbeat_at + $2 * interval '1 microsecond'
             FROM (
                SELECT organization_id, task_id, id FROM agent_runtime.sessions
                WHERE closed_at IS NULL AND check_at <= clock_timestamp()
                    AND heartbeat_at > clock_timestamp() - $2 * interval '1 microsecond'
                ORDER BY check_at LIMIT $1 FOR UPDATE SKIP LOCKED
             ) alive
             WHERE s.organization_id = alive.organization_id AND s.task_id = alive.task_id AND s.id = alive.id
                AND s.closed_at IS NULL",
        )
        .bind(limit)
        .bind(timeout)
        .persistent(self.named())
        .execute(&mut *lease)
        .await?;
        let rows = sqlx::query(
            "SELECT organization_id, task_id, array_agg(id) AS ids,
                clock_timestamp() - $2 * interval '1 microsecond' AS since
             FROM (
                SELECT organization_id, task_id, id FROM agent_runtime.sessions
                WHERE closed_at IS NULL AND check_at <= clock_timestamp()
                    AND heartbeat_at <= clock_timestamp() - $2 * interval '1 microsecond'
                ORDER BY check_at LIMIT $1
             ) due GROUP BY organization_id, task_id",
        )
        .bind(limit)
        .bind(timeout)
        .persistent(self.named())
        .fetch_all(&mut *lease)
        .await?;
        lease.done().await?;
        let due = rows.iter().map(|row| {
            Ok(DueSessions {
                organization: OrganizationId(row.try_get("organization_id")?),
                task: TaskId(row.try_get("task_id")?),
                sessions: row.try_get::<Vec<Uuid>, _>("ids")?.into_iter().map(SessionId).collect(),
                silent_since: row.try_get::<OffsetDateTime, _>("since")?.into(),
            })
        });
        due.collect()
    }

    /// Open tasks whose time limit has passed at `now`, the oldest first.
    pub async fn due_tasks(&self, now: Timestamp, limit: i64) -> Result<Vec<(OrganizationId, TaskId)>, StoreError> {
        let query = sqlx::query(
            "SELECT organization_id, id FROM agent_runtime.tasks
             WHERE outcome IS NULL AND timeout_at IS NOT NULL AND timeout_at <= $1 ORDER BY timeout_at LIMIT $2",
        )
        .bind(OffsetDateTime::from(now))
        .bind(limit);
        let rows = self.all(query).await?;
        let due =
            rows.iter().map(|row| Ok((OrganizationId(row.try_get("organization_id")?), TaskId(row.try_get("id")?))));
        due.collect()
    }
}
