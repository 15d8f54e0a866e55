//! The payloads that the server writes, one struct per event type, and what folding needs of the harness's.
//!
//! To add an event type: 1. name it in [`EventType`]; 2. give it a struct here and a variant
//! of [`Payload`]; 3. say in `aggregate.rs` what it changes; 4. write its JSON Schema to `openapi/events/`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::digest::Digest;
use super::event::EventType;
use super::ids::{
    AccountId, AgentId, ModelId, OperationId, PersonId, ProjectId, ReportId, RequestId, SessionId, TaskId,
};
use super::money::{Money, Prices, TokenCounts};
use super::outcome::{Outcome, OutcomeReason};
use super::request::{Artifact, RequestKind, RequestStatus};
use super::status::{Control, StateReason, Status};
use super::task::Origin;
use super::time::Timestamp;

/// JSON text that was validated when it came in and is kept verbatim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonText(Arc<str>);

impl JsonText {
    /// Wraps text that the scanner of [`json`](super::json) has validated.
    pub fn new(valid: &str) -> Self {
        Self(Arc::from(valid))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Serialize for JsonText {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        RawValue::from_string(self.0.to_string()).map_err(serde::ser::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for JsonText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(Arc::from(Box::<RawValue>::deserialize(deserializer)?.get())))
    }
}

/// `task.created`: everything that creation pins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskCreated {
    /// The quotable name.
    pub short_id: String,
    /// The agent.
    pub agent_id: AgentId,
    /// The agent's slug at creation.
    pub agent_slug: String,
    /// The pinned version of the agent.
    pub agent_version: i32,
    /// The pinned version of its prompt.
    pub prompt_version: i32,
    /// The agent's account.
    pub service_account_id: AccountId,
    /// The primary project.
    pub project_id: Option<ProjectId>,
    /// Its slug at creation.
    pub project_slug: Option<String>,
    /// The title.
    pub title: String,
    /// The description.
    pub description: String,
    /// What the task is about, as its creator names it.
    pub subject: Option<String>,
    /// Free labels.
    pub labels: BTreeMap<String, String>,
    /// Free parameters for the agent.
    pub params: Option<JsonText>,
    /// Who or what asked for it.
    pub origin: Origin,
    /// The trigger's account, when a trigger created it.
    pub created_by_account: Option<AccountId>,
    /// The creation key, if one was given.
    pub idempotency_key: Option<String>,
    /// The accountable person.
    pub owner: PersonId,
    /// The hard budget in US dollars; absent: no ceiling.
    pub budget: Option<Money>,
    /// The pinned time limit, from the first session on.
    pub task_timeout_seconds: Option<u32>,
    /// The pinned limit on the depth of delegation.
    pub max_depth: u32,
    /// The pinned limit on open children.
    pub max_children: u32,
    /// 0 for a root.
    pub depth: u32,
}

/// `state.changed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateChanged {
    /// The status before.
    pub from: Status,
    /// The status now.
    pub to: Status,
    /// Why.
    pub reason: StateReason,
}

/// `control.changed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlChanged {
    /// The control before.
    pub from: Control,
    /// The control now.
    pub to: Control,
    /// The person who set it.
    pub actor: String,
    /// What they said.
    pub reason: Option<String>,
}

/// `owner.changed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerChanged {
    /// The accountable person before.
    pub from: PersonId,
    /// The accountable person now.
    pub to: PersonId,
}

/// `session.opened`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionOpened {
    /// The session.
    pub session_id: SessionId,
    /// The harness's key for it.
    pub session_key: String,
    /// The harness process.
    pub harness_instance: Option<String>,
    /// 1, 2, … per task.
    pub generation: u32,
    /// Whether it superseded the sessions that were open.
    pub takeover: bool,
}

/// `session.closed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionClosed {
    /// The session.
    pub session_id: SessionId,
    /// The harness process.
    pub harness_instance: Option<String>,
    /// The harness's words, or `task_closed`, `heartbeat_lost`, `superseded`.
    pub reason: String,
}

/// `turn`, as the server writes it for a person's reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// The message.
    pub body: String,
    /// Whether it also paused the task.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hold: bool,
}

/// `usage.reported`: one row of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageReported {
    /// The ledger's row.
    pub report_id: ReportId,
    /// The report's key.
    pub idempotency_key: String,
    /// The model as the harness named it.
    pub model_id: String,
    /// The directory's model, when the name is known.
    pub model_ref: Option<ModelId>,
    /// The counts; signed differences in a correction, absent when unmeasured.
    #[serde(flatten)]
    pub tokens: Option<TokenCounts>,
    /// The prices used.
    #[serde(flatten)]
    pub prices: Prices,
    /// The cost; absent when unmeasured or unpriced, which is not zero.
    pub cost: Option<Money>,
    /// Whether any count was given.
    pub measured: bool,
    /// The row that this one corrects.
    pub corrects: Option<ReportId>,
    /// Change of the task's unmeasured reports.
    pub unmeasured_delta: i16,
    /// Change of the task's unpriced reports.
    pub unpriced_delta: i16,
    /// The task's cost afterwards.
    pub cost_total: Money,
    /// What remains of the budget afterwards.
    pub budget_remaining: Option<Money>,
}

/// `request.opened`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestOpened {
    /// The request.
    pub request_id: RequestId,
    /// A decision, or a permitted effect.
    pub kind: RequestKind,
    /// The question.
    pub title: String,
    /// Why it is asked.
    pub why: Option<String>,
    /// The answers to choose from; empty: a free answer.
    pub options: Vec<String>,
    /// What the person decides on.
    pub artifacts: Vec<Artifact>,
    /// What an approval binds to.
    pub artifact_digests: Vec<Digest>,
    /// When it expires.
    pub expires_at: Timestamp,
    /// The harness's key for it.
    pub request_key: Option<String>,
    /// The request that this one voids.
    pub supersedes: Option<RequestId>,
}

/// `request.resolved`: flat, as harnesses read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestResolved {
    /// The request.
    pub request_id: RequestId,
    /// `answered`, `approved`, `rejected` or `void`.
    pub status: RequestStatus,
    /// A free answer.
    pub answer: Option<String>,
    /// The option chosen.
    pub choice: Option<String>,
    /// Conditions of the person.
    pub constraints: Option<JsonText>,
    /// What the resolution binds to.
    pub artifact_digests: Vec<Digest>,
    /// The person; absent when void.
    pub resolved_by: Option<String>,
    /// The request that took this one's place.
    pub superseded_by: Option<RequestId>,
}

/// `request.expired`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestExpired {
    /// The request.
    pub request_id: RequestId,
    /// Its kind.
    pub kind: RequestKind,
    /// When it expired.
    pub expires_at: Timestamp,
}

/// `outcome.set`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutcomeSet {
    /// The outcome.
    pub outcome: Outcome,
    /// Its reason; null exactly for `done_acted`.
    pub reason: Option<OutcomeReason>,
    /// What the harness says of it: `{summary, artifacts}`.
    pub result: Option<JsonText>,
}

/// `dependency.added` and `dependency.removed`, on the log of each of the two tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependency {
    /// The same on both logs.
    pub operation_id: OperationId,
    /// `dependent` or `prerequisite`: which of the two this log belongs to.
    pub side: String,
    /// The task that requires.
    pub dependent_task_id: TaskId,
    /// Its quotable name.
    pub dependent_short_id: String,
    /// The task that is required.
    pub prerequisite_task_id: TaskId,
    /// Its quotable name.
    pub prerequisite_short_id: String,
    /// Who added the row: kind.
    pub created_by_kind: String,
    /// Who added the row: id.
    pub created_by: String,
    /// When the row was added.
    pub created_at: Timestamp,
}

/// `project.associated` and `project.dissociated`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Project {
    /// The project.
    pub project_id: ProjectId,
    /// Its slug when it was associated.
    pub project_slug: String,
    /// Who added the row: kind.
    pub added_by_kind: String,
    /// Who added the row: id.
    pub added_by: String,
    /// When the row was added.
    pub added_at: Timestamp,
}

/// `child.created`, `child.closed` and `child.adjusted`, on the parent's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Child {
    /// The child.
    pub child_task_id: TaskId,
    /// Its quotable name.
    pub child_short_id: String,
    /// Its agent.
    pub agent_id: AgentId,
    /// Signed change of what the parent has set aside.
    pub set_aside_delta: Money,
    /// The child's outcome, once it is closed.
    pub outcome: Option<Outcome>,
    /// Its reason.
    pub outcome_reason: Option<OutcomeReason>,
    /// The child's own cost.
    pub cost_total: Money,
}

/// What folding needs of a harness's `phase.changed`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct PhaseChanged {
    /// The phase's name.
    pub phase: String,
    /// The furthest milestone, when it moved.
    #[serde(default)]
    pub furthest_milestone: Option<String>,
}

/// A payload, as far as the server knows its type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// `task.created`.
    TaskCreated(Box<TaskCreated>),
    /// `state.changed`.
    StateChanged(StateChanged),
    /// `control.changed`.
    ControlChanged(ControlChanged),
    /// `owner.changed`.
    OwnerChanged(OwnerChanged),
    /// `session.opened`.
    SessionOpened(SessionOpened),
    /// `session.closed`.
    SessionClosed(SessionClosed),
    /// `turn` of a person.
    Turn(Turn),
    /// `usage.reported`.
    UsageReported(Box<UsageReported>),
    /// `request.opened`.
    RequestOpened(Box<RequestOpened>),
    /// `request.resolved`.
    RequestResolved(Box<RequestResolved>),
    /// `request.expired`.
    RequestExpired(RequestExpired),
    /// `outcome.set`.
    OutcomeSet(OutcomeSet),
    /// `dependency.added`.
    DependencyAdded(Box<Dependency>),
    /// `dependency.removed`.
    DependencyRemoved(Box<Dependency>),
    /// `project.associated`.
    ProjectAssociated(Project),
    /// `project.dissociated`.
    ProjectDissociated(Project),
    /// `child.created`.
    ChildCreated(Box<Child>),
    /// `child.closed`.
    ChildClosed(Box<Child>),
    /// `child.adjusted`.
    ChildAdjusted(Box<Child>),
    /// `phase.changed`, written by a harness.
    PhaseChanged(PhaseChanged),
    /// Any other that changes no fact: a harness's `turn`, `tool.called`, …, or a type of a later version.
    Other,
}

impl Payload {
    /// Reads the payload of a stored event, as far as folding needs it.
    pub fn read(event_type: &str, text: &str) -> Result<Self, serde_json::Error> {
        fn of<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, serde_json::Error> {
            serde_json::from_str(text)
        }
        let Ok(known) = event_type.parse::<EventType>() else { return Ok(Self::Other) };
        Ok(match known {
            EventType::TaskCreated => Self::TaskCreated(of(text)?),
            EventType::StateChanged => Self::StateChanged(of(text)?),
            EventType::ControlChanged => Self::ControlChanged(of(text)?),
            EventType::OwnerChanged => Self::OwnerChanged(of(text)?),
            EventType::SessionOpened => Self::SessionOpened(of(text)?),
            EventType::SessionClosed => Self::SessionClosed(of(text)?),
            EventType::UsageReported => Self::UsageReported(of(text)?),
            EventType::RequestOpened => Self::RequestOpened(of(text)?),
            EventType::RequestResolved => Self::RequestResolved(of(text)?),
            EventType::RequestExpired => Self::RequestExpired(of(text)?),
            EventType::OutcomeSet => Self::OutcomeSet(of(text)?),
            EventType::DependencyAdded => Self::DependencyAdded(of(text)?),
            EventType::DependencyRemoved => Self::DependencyRemoved(of(text)?),
            EventType::ProjectAssociated => Self::ProjectAssociated(of(text)?),
            EventType::ProjectDissociated => Self::ProjectDissociated(of(text)?),
            EventType::ChildCreated => Self::ChildCreated(of(text)?),
            EventType::ChildClosed => Self::ChildClosed(of(text)?),
            EventType::ChildAdjusted => Self::ChildAdjusted(of(text)?),
            EventType::PhaseChanged => Self::PhaseChanged(of(text)?),
            EventType::Turn | EventType::ToolCalled | EventType::TodosUpdated | EventType::CheckReported => Self::Other,
        })
    }

    /// The type and JSON text of a payload that the server writes; `None` for what only a harness writes.
    pub fn write(&self) -> Option<(EventType, String)> {
        fn text<T: Serialize>(payload: &T) -> Option<String> {
            serde_json::to_string(payload).ok()
        }
        Some(match self {
            Self::TaskCreated(p) => (EventType::TaskCreated, text(p)?),
            Self::StateChanged(p) => (EventType::StateChanged, text(p)?),
            Self::ControlChanged(p) => (EventType::ControlChanged, text(p)?),
            Self::OwnerChanged(p) => (EventType::OwnerChanged, text(p)?),
            Self::SessionOpened(p) => (EventType::SessionOpened, text(p)?),
            Self::SessionClosed(p) => (EventType::SessionClosed, text(p)?),
            Self::Turn(p) => (EventType::Turn, text(p)?),
            Self::UsageReported(p) => (EventType::UsageReported, text(p)?),
            Self::RequestOpened(p) => (EventType::RequestOpened, text(p)?),
            Self::RequestResolved(p) => (EventType::RequestResolved, text(p)?),
            Self::RequestExpired(p) => (EventType::RequestExpired, text(p)?),
            Self::OutcomeSet(p) => (EventType::OutcomeSet, text(p)?),
            Self::DependencyAdded(p) => (EventType::DependencyAdded, text(p)?),
            Self::DependencyRemoved(p) => (EventType::DependencyRemoved, text(p)?),
            Self::ProjectAssociated(p) => (EventType::ProjectAssociated, text(p)?),
            Self::ProjectDissociated(p) => (EventType::ProjectDissociated, text(p)?),
            Self::ChildCreated(p) => (EventType::ChildCreated, text(p)?),
            Self::ChildClosed(p) => (EventType::ChildClosed, text(p)?),
            Self::ChildAdjusted(p) => (EventType::ChildAdjusted, text(p)?),
            Self::PhaseChanged(_) | Self::Other => return None,
        })
    }
}
