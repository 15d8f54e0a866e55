//! Refusals: what the contract answers instead of a change. The HTTP layer maps each to a status and a problem.

use super::digest::Digest;
use super::ids::{EventId, RequestId};
use super::money::Money;
use super::outcome::Ending;
use super::principal::Permission;
use super::request::RequestStatus;
use super::status::Status;
use super::time::Timestamp;

/// Where in a call something is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A JSON pointer into the body; `""` is the whole.
    Body(String),
    /// A parameter of the path.
    Path(&'static str),
    /// A parameter of the query.
    Query(&'static str),
    /// A header.
    Header(&'static str),
}

/// One thing that is wrong with a call, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Where.
    pub place: Place,
    /// What is wrong, for a person.
    pub detail: String,
}

impl Fault {
    /// A fault of the body at `pointer`.
    pub fn new(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { place: Place::Body(pointer.into()), detail: detail.into() }
    }

    /// A fault of a parameter of the path.
    pub fn path(name: &'static str, detail: impl Into<String>) -> Self {
        Self { place: Place::Path(name), detail: detail.into() }
    }

    /// A fault of a parameter of the query.
    pub fn query(name: &'static str, detail: impl Into<String>) -> Self {
        Self { place: Place::Query(name), detail: detail.into() }
    }

    /// A fault of a header.
    pub fn header(name: &'static str, detail: impl Into<String>) -> Self {
        Self { place: Place::Header(name), detail: detail.into() }
    }
}

/// How a closed task ended, for refusals that name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed {
    /// The recorded outcome and reason.
    pub ending: Ending,
    /// The length of the log.
    pub last_seq: i64,
}

/// Why a call is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The task is closed.
    TaskClosed(Closed),
    /// The task's log is archived.
    TaskArchived,
    /// The same, for a sign of life: its harness is told how the task ended.
    EndedAndArchived(Closed),
    /// A cancel is pending: no session, request or child may begin.
    TaskCancelled,
    /// A cancel cannot be taken back.
    CancelPending(Status),
    /// `cancelled_by_human` needs a cancel.
    NotCancelled(Status),
    /// The session is closed. On a closed task it names the outcome too.
    SessionClosed {
        /// Why it closed.
        reason: String,
        /// How the task ended, if it has.
        ending: Option<Ending>,
        /// The length of the task's log.
        last_seq: i64,
    },
    /// Another session took over. On a closed task it names the outcome too.
    SessionSuperseded {
        /// How the task ended, if it has.
        ending: Option<Ending>,
        /// The length of the task's log.
        last_seq: i64,
    },
    /// A session was taken over, so every write names its session.
    SessionRequired,
    /// The agent works as many tasks as it may.
    ConcurrencyLimit(u32),
    /// An event id was used with other content.
    EventIdConflict(EventId),
    /// The harness may not write this type.
    EventTypeReserved(Fault),
    /// The outcome is the server's alone.
    OutcomeReserved,
    /// The request was settled before.
    RequestResolved {
        /// How.
        status: RequestStatus,
        /// By whom; absent when nobody did.
        resolved_by: Option<String>,
        /// When.
        resolved_at: Option<Timestamp>,
        /// By which request, when a newer one took its place.
        superseded_by: Option<RequestId>,
    },
    /// The request's time is over.
    RequestExpired(Timestamp),
    /// Other digests were reviewed than the request binds to.
    DigestMismatch(Vec<Digest>),
    /// The project is the task's primary one.
    PrimaryProject,
    /// The task is as deep in its tree as its agent's tasks may delegate.
    DepthLimit(u32),
    /// The task has as many open children as it may.
    ChildrenLimit(u32),
    /// The parent has less left than the child would take; this much is left.
    BudgetExhausted(Money),
    /// The agent is disabled.
    AgentDisabled,
    /// The budget is above what the agent's settings allow.
    BudgetAboveDefault(String),
    /// The owner is no member.
    OwnerNotMember(Fault),
    /// No such task for this caller.
    TaskNotFound,
    /// No such session of the task.
    SessionNotFound,
    /// No such request of the task.
    RequestNotFound,
    /// No such thing of the directory.
    NotFound(&'static str),
    /// Missing or bad credentials.
    Unauthenticated(String),
    /// A permission is missing.
    PermissionDenied(Permission),
    /// Unknown and foreign organizations alike.
    OrganizationForbidden,
    /// Only the service account of the task's agent may do this.
    AgentTaskForbidden,
    /// This principal may not name such an origin.
    OriginForbidden,
    /// Only people may do this.
    PersonRequired,
    /// The body is not JSON.
    InvalidJson(String),
    /// The cursor was tampered with or belongs to another query.
    InvalidCursor,
    /// What follows the cursor is not all there any more, or cannot be known to be.
    CursorExpired,
    /// The body or a part of it is too large.
    PayloadTooLarge {
        /// The limit in bytes.
        limit: usize,
        /// What was too large.
        what: String,
    },
    /// The body ended before it was complete.
    BodyCut,
    /// An artifact is not what it was called; this is its digest.
    ArtifactMismatch(Digest),
    /// No artifact store is set.
    NoArtifactStore,
    /// The media type is not JSON.
    UnsupportedMediaType,
    /// The body breaks rules; each fault says where.
    Invalid(Vec<Fault>),
    /// The thing has open tasks.
    OpenTasks(i64),
    /// The name is taken.
    NameTaken(Fault),
    /// An organization keeps at least one administrator.
    LastAdmin,
    /// A search took longer than searches may: it matches too much.
    SearchTooSlow(std::time::Duration),
    /// The task is at another version than the caller's precondition says.
    PreconditionFailed {
        /// The version that it is at.
        last_seq: i64,
    },
}

impl Refusal {
    /// One fault of the body.
    pub fn invalid(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Invalid(vec![Fault::new(pointer, detail)])
    }

    /// One fault of a header.
    pub fn invalid_header(name: &'static str, detail: impl Into<String>) -> Self {
        Self::Invalid(vec![Fault::header(name, detail)])
    }
}

/// A part of a command that was read from a body. Faults are kept until the state was looked at, because refusals of
/// the state rank before those of the body.
pub type Checked<T> = Result<T, Refusal>;
