//! Sessions as answers.

use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::TaskState;
use crate::domain::session::Session;

/// One period in which a harness works a task: a record, not a lease.
#[derive(Debug, Serialize, ToSchema)]
pub struct SessionView {
    /// The session.
    pub id: Uuid,
    /// The harness's key for it.
    pub session_key: String,
    /// The harness process.
    #[schema(required)]
    pub harness_instance: Option<String>,
    /// 1, 2, … per task.
    pub generation: u32,
    /// When it opened.
    #[schema(format = DateTime)]
    pub opened_at: String,
    /// The last sign of life.
    #[schema(format = DateTime)]
    pub heartbeat_at: String,
    /// When it closed.
    #[schema(required, format = DateTime)]
    pub closed_at: Option<String>,
    /// Why: the harness's words, or `task_closed`, `heartbeat_lost`, `superseded`.
    #[schema(required)]
    pub close_reason: Option<String>,
}

impl From<&Session> for SessionView {
    fn from(session: &Session) -> Self {
        Self {
            id: session.id.0,
            session_key: session.session_key.clone(),
            harness_instance: session.harness_instance.clone(),
            generation: session.generation,
            opened_at: session.opened_at.to_string(),
            heartbeat_at: session.heartbeat_at.to_string(),
            closed_at: session.closed.as_ref().map(|(at, _)| at.to_string()),
            close_reason: session.closed.as_ref().map(|(_, reason)| reason.clone()),
        }
    }
}

/// An opened session and the state of its task.
#[derive(Debug, Serialize, ToSchema)]
pub struct SessionAnswer {
    /// The session.
    pub session: SessionView,
    /// The task's state.
    pub task: TaskState,
}
