//! The operations log: resolutions and terminal outcomes, a projection of events.

use crate::domain::event::Event;
use crate::domain::ids::{AgentId, OrganizationId, ProjectId, ShortId, TaskId};
use crate::domain::names::names;
use crate::domain::time::Timestamp;

names! {
    /// What the operations log holds.
    OperationKind, OperationKindError: "kind of operation" {
        /// A person answered, approved or rejected: `request.resolved`, not void.
        Resolution = "resolution",
        /// A task ended: `outcome.set`.
        Outcome = "outcome",
    }
}

/// A place in the operations log: everything after it is older.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperationPosition {
    /// Of the last entry that was read.
    pub recorded_at: Timestamp,
    /// Its task.
    pub task: TaskId,
    /// Its seq.
    pub seq: i64,
}

/// Which operations, ordered by falling `recorded_at`, `task_id`, `seq`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationsQuery {
    /// The tenant.
    pub organization: OrganizationId,
    /// Recorded at this instant or later.
    pub start: Option<Timestamp>,
    /// Recorded before this instant.
    pub end: Option<Timestamp>,
    /// Of one agent.
    pub agent: Option<AgentId>,
    /// Of one kind.
    pub kind: Option<OperationKind>,
    /// After this place.
    pub after: Option<OperationPosition>,
    /// At most so many.
    pub limit: u32,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// What it is.
    pub kind: OperationKind,
    /// The task.
    pub task: TaskId,
    /// Its quotable name.
    pub short_id: ShortId,
    /// Its agent.
    pub agent_id: AgentId,
    /// The agent's slug when the task was created.
    pub agent_slug: String,
    /// Its primary project.
    pub project_id: Option<ProjectId>,
    /// The event that says so.
    pub event: Event,
}
