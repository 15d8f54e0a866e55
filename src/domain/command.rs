//! Commands: what callers and time ask of a task. Parts that come from a body are [`Checked`]: their faults are told
//! only after the state was looked at.

use std::time::Duration;

use super::artifact::Spilled;
use super::digest::Digest;
use super::event::ActorKind;
use super::ids::{AccountId, EventId, PersonId, ProjectId, ReportId, RequestId, SessionId};
use super::money::TokenCounts;
use super::outcome::Ending;
use super::payload::{JsonText, PhaseChanged, Project};
use super::refusal::Checked;
use super::request::{Artifact, RequestKind, RequestStatus};
use super::time::Timestamp;
use super::usage::{LedgerRow, PricedModel};

/// A session to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSession {
    /// The harness's key for it.
    pub session_key: String,
    /// The harness process.
    pub harness_instance: Option<String>,
    /// Whether it supersedes the sessions that are open.
    pub takeover: bool,
}

/// An event of a harness, checked and redacted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HarnessEvent {
    /// The harness's id for it, or a fresh one.
    pub event_id: EventId,
    /// One of the types that a harness may write.
    pub event_type: super::event::EventType,
    /// Version of the payload's schema.
    pub schema_version: i32,
    /// `agent` or `subagent`.
    pub actor_kind: ActorKind,
    /// Absent: the task's agent.
    pub actor_id: Option<String>,
    /// When it happened; absent: now.
    pub at: Option<Timestamp>,
    /// The payload's text, as the log keeps it.
    pub payload: String,
    /// Pointers of what was redacted in the payload as it was sent.
    pub redacted: Vec<String>,
    /// What a `phase.changed` changes.
    pub phase: Option<PhaseChanged>,
    /// The whole payload, when it is too large for the log.
    pub spilled: Option<Spilled>,
}

/// A usage report, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewReport {
    /// Its key.
    pub idempotency_key: String,
    /// The account that reports.
    pub account_id: AccountId,
    /// The model as the harness names it.
    pub model_id: String,
    /// The directory's model of that name, with the prices in force.
    pub model: Option<PricedModel>,
    /// The counts; absent when all four are.
    pub counts: Option<TokenCounts>,
    /// The row to correct.
    pub corrects: Option<Correction>,
}

/// What a correction corrects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Correction {
    /// The original row.
    pub original: ReportId,
    /// The original and its earlier corrections, oldest first; empty when there is no such row.
    pub chain: Vec<LedgerRow>,
}

/// A question to a person, checked and redacted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRequest {
    /// What is asked for.
    pub kind: RequestKind,
    /// The question.
    pub title: String,
    /// Why it is asked.
    pub why: Option<String>,
    /// The answers to choose from.
    pub options: Vec<String>,
    /// What the person decides on.
    pub artifacts: Vec<Artifact>,
    /// What an approval binds to.
    pub artifact_digests: Vec<Digest>,
    /// When it expires; absent: after `ttl`.
    pub expires_at: Option<Timestamp>,
    /// How long it lives by default.
    pub ttl: Duration,
    /// The harness's key for it.
    pub request_key: Option<String>,
}

/// How a person resolves a request, checked and redacted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewResolution {
    /// `answered`, `approved` or `rejected`.
    pub status: RequestStatus,
    /// A free answer.
    pub answer: Option<String>,
    /// The option chosen.
    pub choice: Option<String>,
    /// Conditions.
    pub constraints: Option<JsonText>,
    /// The digests that were reviewed.
    pub artifact_digests: Option<Vec<Digest>>,
}

/// An outcome as a harness claims it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedOutcome {
    /// The outcome and its reason.
    pub ending: Ending,
    /// `{summary, artifacts}`.
    pub result: Option<JsonText>,
}

/// What is asked of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// A harness opens a session.
    OpenSession {
        /// The session.
        session: Checked<NewSession>,
        /// How many tasks the agent may work at once; absent: any number.
        max_concurrent_tasks: Option<u32>,
    },
    /// A harness closes a session.
    CloseSession {
        /// The session.
        session: SessionId,
        /// Its words.
        reason: Checked<String>,
    },
    /// Time closes sessions that were silent.
    LoseSessions {
        /// The sessions.
        sessions: Vec<SessionId>,
        /// They gave no sign of life since then.
        silent_since: Timestamp,
    },
    /// A harness appends events.
    Append {
        /// The session that it names.
        session: Checked<Option<SessionId>>,
        /// Whether all events are `tool.called`: an effect that was made is never lost.
        only_tool_calls: bool,
        /// The events that the task does not have yet.
        events: Checked<Vec<HarnessEvent>>,
    },
    /// A harness reports tokens.
    Report {
        /// The session that it names.
        session: Checked<Option<SessionId>>,
        /// The report.
        report: Checked<Box<NewReport>>,
    },
    /// A harness asks a person.
    OpenRequest {
        /// The session that it names.
        session: Checked<Option<SessionId>>,
        /// The request that it voids, when that can be read: its state ranks before the rest of the body.
        supersedes: Option<RequestId>,
        /// The question.
        request: Checked<Box<NewRequest>>,
    },
    /// A harness takes a question back.
    Withdraw {
        /// The request.
        request: RequestId,
        /// The session that it names.
        session: Checked<Option<SessionId>>,
    },
    /// A person resolves a request.
    Resolve {
        /// The request.
        request: RequestId,
        /// The person.
        person: PersonId,
        /// The versions of the task, by `last_seq`, that the person may have looked at; absent: any.
        expected: Option<Vec<i64>>,
        /// What they say.
        resolution: Checked<NewResolution>,
    },
    /// Time expires requests.
    ExpireRequests {
        /// Those that are due by the database's clock.
        due: Vec<RequestId>,
    },
    /// A person pauses the task.
    Pause {
        /// Their words.
        reason: Checked<Option<String>>,
    },
    /// A person lets it go on.
    Resume {
        /// Their words.
        reason: Checked<Option<String>>,
    },
    /// A person cancels it.
    Cancel {
        /// Their words.
        reason: Checked<Option<String>>,
        /// Close it now, when a cancel is pending already.
        force: Checked<bool>,
    },
    /// A person names another owner.
    Reassign {
        /// A member.
        owner: Checked<PersonId>,
    },
    /// A person writes to the agent.
    Reply {
        /// The id of the turn; derived from the idempotency key when one was given.
        event_id: EventId,
        /// The message.
        body: Checked<String>,
        /// Whether it pauses the task too.
        hold: Checked<bool>,
    },
    /// A person associates a project.
    AssociateProject {
        /// The project.
        project: ProjectId,
        /// Its slug now.
        slug: String,
        /// The row, when the task has the project already; as new as the snapshot.
        found: Option<Project>,
    },
    /// A person takes the association of a project back.
    DissociateProject {
        /// The project.
        project: ProjectId,
        /// The row, when the task has the project; as new as the snapshot.
        found: Option<Project>,
    },
    /// A harness ends the task.
    SetOutcome {
        /// The session that it names.
        session: Checked<Option<SessionId>>,
        /// The outcome.
        outcome: Checked<ClaimedOutcome>,
    },
    /// Time ends the task.
    TimeOut,
    /// An operator stops every task of the agent.
    Stop,
    /// The agent is deleted.
    DeleteAgent,
}
