//! Heartbeats: one small statement that never locks the task row.

use std::sync::LazyLock;

use super::Store;
use super::error::StoreError;
use super::rows::{STANDING_COLUMNS, standing};
use crate::domain::ids::{OrganizationId, SessionId, TaskId};
use crate::domain::task::Standing;

pub(super) static HEARTBEAT: LazyLock<String> = LazyLock::new(|| {
    format!(
        "WITH s AS (
            UPDATE agent_runtime.sessions SET heartbeat_at = greatest(heartbeat_at, clock_timestamp())
            WHERE organization_id = $1 AND task_id = $2 AND id = $3 AND closed_at IS NULL RETURNING task_id
        )
        SELECT {STANDING_COLUMNS} FROM agent_runtime.tasks t, s WHERE t.organization_id = $1 AND t.id = s.task_id"
    )
});

impl Store {
    /// Records a sign of life of an open session and reads how its task stands; `None` when there is no such session.
    pub async fn heartbeat(
        &self,
        organization: OrganizationId,
        task_id: TaskId,
        session: SessionId,
    ) -> Result<Option<Standing>, StoreError> {
        let query = sqlx::query(HEARTBEAT.as_str()).bind(organization.0).bind(task_id.0).bind(session.0);
        let row = self.first(query).await?;
        row.as_ref().map(standing).transpose()
    }
}
