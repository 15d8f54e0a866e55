//! Sessions: records of the periods in which a harness works a task.

use super::ids::SessionId;
use super::time::Timestamp;

/// The task closed under the session.
pub const TASK_CLOSED: &str = "task_closed";
/// The session was silent for too long.
pub const HEARTBEAT_LOST: &str = "heartbeat_lost";
/// Another session took over.
pub const SUPERSEDED: &str = "superseded";
/// The reasons that only the server gives.
pub const SERVER_CLOSE_REASONS: [&str; 3] = [TASK_CLOSED, HEARTBEAT_LOST, SUPERSEDED];

/// One period in which a harness works a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// The session.
    pub id: SessionId,
    /// The harness's key for it, unique per task.
    pub session_key: String,
    /// The harness process.
    pub harness_instance: Option<String>,
    /// 1, 2, … per task.
    pub generation: u32,
    /// When it opened.
    pub opened_at: Timestamp,
    /// The last sign of life. Bookkeeping: it moves without an event.
    pub heartbeat_at: Timestamp,
    /// When and why it closed.
    pub closed: Option<(Timestamp, String)>,
}

impl Session {
    /// Whether it is open.
    pub fn is_open(&self) -> bool {
        self.closed.is_none()
    }

    /// Whether another session took over.
    pub fn is_superseded(&self) -> bool {
        self.closed.as_ref().is_some_and(|(_, reason)| reason == SUPERSEDED)
    }
}
