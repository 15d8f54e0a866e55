//! The envelope of a log entry.

use std::borrow::Cow;

use super::digest::Digest;
use super::ids::{EventId, SessionId};
use super::names::names;
use super::time::Timestamp;

names! {
    /// The way by which an event reached the log.
    Channel, ChannelError: "channel" {
        /// A web interface.
        Web = "web",
        /// A Slack conversation.
        Slack = "slack",
        /// An MCP client.
        Mcp = "mcp",
        /// The REST API itself.
        Api = "api",
        /// A harness.
        Harness = "harness",
    }
}

names! {
    /// What kind of actor caused an event.
    ActorKind, ActorKindError: "actor kind" {
        /// A person.
        Human = "human",
        /// The task's agent.
        Agent = "agent",
        /// A helper of the agent, within the same task.
        Subagent = "subagent",
        /// The server itself, or a trigger.
        System = "system",
    }
}

names! {
    /// The types of events that this version writes. Readers pass on types that they do not know.
    EventType, EventTypeError: "event type" {
        /// A task was created.
        TaskCreated = "task.created",
        /// The status changed.
        StateChanged = "state.changed",
        /// A person set the control.
        ControlChanged = "control.changed",
        /// The accountable person changed.
        OwnerChanged = "owner.changed",
        /// A session opened.
        SessionOpened = "session.opened",
        /// A session closed.
        SessionClosed = "session.closed",
        /// A message of a person or the agent.
        Turn = "turn",
        /// The agent called a tool.
        ToolCalled = "tool.called",
        /// The agent entered a phase.
        PhaseChanged = "phase.changed",
        /// The agent's whole list of things to do.
        TodosUpdated = "todos.updated",
        /// A check gave a verdict.
        CheckReported = "check.reported",
        /// Tokens were reported and priced.
        UsageReported = "usage.reported",
        /// A question to a person was opened.
        RequestOpened = "request.opened",
        /// A question was settled.
        RequestResolved = "request.resolved",
        /// A question expired.
        RequestExpired = "request.expired",
        /// The task ended.
        OutcomeSet = "outcome.set",
        /// A dependency was added.
        DependencyAdded = "dependency.added",
        /// A dependency was removed.
        DependencyRemoved = "dependency.removed",
        /// A project was associated.
        ProjectAssociated = "project.associated",
        /// A project was dissociated.
        ProjectDissociated = "project.dissociated",
        /// A child was created.
        ChildCreated = "child.created",
        /// A child closed.
        ChildClosed = "child.closed",
        /// A closed child's cost changed.
        ChildAdjusted = "child.adjusted",
    }
}

impl EventType {
    /// Whether a harness may send it; the server writes all others.
    pub fn is_written_by_harness(self) -> bool {
        matches!(self, Self::Turn | Self::ToolCalled | Self::PhaseChanged | Self::TodosUpdated | Self::CheckReported)
    }
}

/// Who caused an event, and the way it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// The kind.
    pub kind: ActorKind,
    /// The person, agent or service account; `mandate` for the server's workers.
    pub id: String,
    /// Absent for the server's workers.
    pub channel: Option<Channel>,
}

impl Actor {
    /// The server's own workers.
    pub fn worker() -> Self {
        Self { kind: ActorKind::System, id: "mandate".to_owned(), channel: None }
    }
}

/// One entry of a task's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Stable id, unique within the task.
    pub event_id: EventId,
    /// 1, 2, 3 … per task, no gap.
    pub seq: i64,
    /// The type; one that this version does not know is passed on.
    pub event_type: Cow<'static, str>,
    /// Version of the payload's schema for this type.
    pub schema_version: i32,
    /// Who caused it.
    pub actor: Actor,
    /// The session it came from, if any.
    pub session_id: Option<SessionId>,
    /// When it happened.
    pub at: Timestamp,
    /// The server's clock at the write.
    pub recorded_at: Timestamp,
    /// JSON text, verbatim but for insignificant white space and redactions.
    pub payload: String,
    /// JSON pointers into the payload of what was redacted.
    pub redacted: Vec<String>,
    /// The chain up to and with this entry.
    pub digest: Digest,
}
