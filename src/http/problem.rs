//! Problem details (RFC 9457): the one shape of every refusal, framework rejections included.

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use serde_json::{Map, Value, json};

use crate::domain::outcome::{Ending, OutcomeReason};
use crate::domain::refusal::{Closed, Fault, Place, Refusal};
use crate::service::ServiceError;

/// The media type.
pub const PROBLEM_JSON: &str = "application/problem+json";
/// After how many seconds a caller may try again when Postgres was away.
pub const RETRY_AFTER_SECONDS: u64 = 1;

/// A refusal on its way to the wire. The outermost layer writes its body, with the request's id.
#[derive(Debug, Clone)]
pub struct Problem {
    /// The HTTP status.
    pub status: StatusCode,
    /// The code that programs look at.
    pub code: &'static str,
    /// What is wrong, for a person.
    pub detail: String,
    /// The facts that a program needs.
    pub facts: Map<String, Value>,
    /// After how many seconds to try again.
    pub retry_after: Option<u64>,
    /// What the log says instead, when that is more than the caller may know.
    pub log: Option<String>,
}

impl Problem {
    /// A problem without facts.
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), facts: Map::new(), retry_after: None, log: None }
    }

    /// Adds a fact.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.facts.insert(name.to_owned(), value.into());
        self
    }

    /// Postgres, or what else is needed, is away.
    pub fn unavailable(log: impl Into<String>) -> Self {
        let mut problem =
            Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "the service cannot answer right now; try again");
        problem.retry_after = Some(RETRY_AFTER_SECONDS);
        problem.log = Some(log.into());
        problem
    }

    /// A fault of ours.
    pub fn internal(log: impl Into<String>) -> Self {
        let mut problem =
            Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", "the service failed; the fault was logged");
        problem.log = Some(log.into());
        problem
    }

    /// Too many calls.
    pub fn rate_limited(retry_after: u64) -> Self {
        let mut problem = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", "too many calls; try again later");
        problem.retry_after = Some(retry_after.max(1));
        problem
    }

    /// No such route.
    pub fn no_route() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", "there is no such route")
    }

    /// The body, with the id of the request.
    pub fn body(&self, request_id: &str) -> Value {
        let mut body = Map::new();
        body.insert("type".to_owned(), json!(format!("urn:mandate:problem:{}", self.code)));
        body.insert("title".to_owned(), json!(self.status.canonical_reason().unwrap_or("Error")));
        body.insert("status".to_owned(), json!(self.status.as_u16()));
        body.insert("detail".to_owned(), json!(self.detail));
        body.insert("code".to_owned(), json!(self.code));
        body.insert("request_id".to_owned(), json!(request_id));
        body.extend(self.facts.clone());
        Value::Object(body)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(self);
        response
    }
}

impl From<ServiceError> for Problem {
    fn from(error: ServiceError) -> Self {
        match error {
            ServiceError::Refused(refusal) => refusal.into(),
            ServiceError::Unavailable(log) => Self::unavailable(log),
            ServiceError::LogUnavailable(log) => {
                let detail =
                    "the permanent log, where archived logs and sums are read, cannot answer right now; try again";
                Self { detail: detail.into(), ..Self::unavailable(log) }
            }
            ServiceError::Internal(log) => Self::internal(log),
        }
    }
}

fn conflict(code: &'static str, detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::CONFLICT, code, detail)
}

fn unprocessable(code: &'static str, detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail)
}

fn forbidden(code: &'static str, detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, code, detail)
}

fn not_found(code: &'static str, detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, code, detail)
}

fn errors(faults: &[Fault]) -> Value {
    let entry = |fault: &Fault| match &fault.place {
        Place::Body(pointer) => json!({"pointer": pointer, "detail": fault.detail}),
        Place::Path(name) | Place::Query(name) => json!({"parameter": name, "detail": fault.detail}),
        Place::Header(name) => json!({"header": name, "detail": fault.detail}),
    };
    Value::Array(faults.iter().map(entry).collect())
}

fn closed(closed: &Closed) -> Problem {
    let outcome = closed.ending.outcome();
    let problem = conflict("task_closed", format!("the task is closed with outcome {outcome}"));
    ended(problem.with("task_status", "closed"), Some(closed.ending), closed.last_seq)
}

/// How the task ended, if it has, and how long its log is: what a harness that is refused needs to know.
fn ended(problem: Problem, ending: Option<Ending>, last_seq: i64) -> Problem {
    problem
        .with("outcome", ending.map(|ending| ending.outcome().as_str()))
        .with("outcome_reason", ending.and_then(Ending::reason).map(OutcomeReason::as_str))
        .with("last_seq", last_seq)
}

fn archived() -> Problem {
    conflict("task_archived", "the task's log is archived; nothing can be added").with("task_status", "closed")
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::TaskClosed(facts) => closed(&facts),
            Refusal::TaskArchived => archived(),
            Refusal::EndedAndArchived(Closed { ending, last_seq }) => ended(archived(), Some(ending), last_seq),
            Refusal::TaskCancelled => conflict("task_cancelled", "a cancel is pending; nothing new may begin"),
            Refusal::CancelPending(status) => {
                conflict("cancel_pending", "a cancel is pending and cannot be taken back")
                    .with("task_status", status.as_str())
            }
            Refusal::NotCancelled(status) => {
                conflict("not_cancelled", "nobody has cancelled the task").with("task_status", status.as_str())
            }
            Refusal::SessionClosed { reason, ending, last_seq } => {
                let problem = conflict("session_closed", format!("the session is closed: {reason}"));
                ended(problem.with("close_reason", reason), ending, last_seq)
            }
            Refusal::SessionSuperseded { ending, last_seq } => {
                ended(conflict("session_superseded", "another session took over"), ending, last_seq)
            }
            Refusal::SessionRequired => unprocessable(
                "session_required",
                "a session of this task was taken over, so every write names its session",
            )
            .with("errors", errors(&[Fault::new("/session_id", "is required")])),
            Refusal::ConcurrencyLimit(limit) => {
                conflict("concurrency_limit", format!("the agent works {limit} other tasks already"))
                    .with("limit", limit)
            }
            Refusal::EventIdConflict(id) => conflict(
                "event_id_conflict",
                format!("event {id} was sent before with other content, or is twice in this batch"),
            )
            .with("event_id", id.to_string()),
            Refusal::EventTypeReserved(fault) => {
                unprocessable("event_type_reserved", fault.detail.clone()).with("errors", errors(&[fault]))
            }
            Refusal::OutcomeReserved => {
                unprocessable("outcome_reserved", "only the server sets this outcome and reason")
            }
            Refusal::RequestResolved { status, resolved_by, resolved_at, superseded_by } => {
                let how = match (&resolved_by, superseded_by) {
                    (Some(who), _) => format!(", by {who}"),
                    (None, Some(newer)) => format!(", superseded by request {newer}"),
                    (None, None) => String::new(),
                };
                conflict("request_resolved", format!("the request is {status} already{how}"))
                    .with("request_status", status.as_str())
                    .with("resolved_by", resolved_by)
                    .with("resolved_at", resolved_at.map(|at| at.to_string()))
                    .with("superseded_by", superseded_by.map(|newer| newer.to_string()))
            }
            Refusal::RequestExpired(at) => {
                conflict("request_expired", format!("the request expired at {at}")).with("expires_at", at.to_string())
            }
            Refusal::DigestMismatch(digests) => {
                conflict("digest_mismatch", "the request binds to other digests; it stays open")
                    .with("artifact_digests", digests.iter().map(ToString::to_string).collect::<Vec<_>>())
            }
            Refusal::PrimaryProject => {
                conflict("primary_project", "the project is the task's primary one; only others are associated")
            }
            Refusal::DepthLimit(limit) => conflict(
                "depth_limit",
                format!("tasks of this agent delegate down to depth {limit}, and this is there"),
            )
            .with("limit", limit),
            Refusal::ChildrenLimit(limit) => {
                conflict("children_limit", format!("the task has {limit} open children, as many as it may"))
                    .with("limit", limit)
            }
            Refusal::BudgetExhausted(left) => conflict(
                "budget_exhausted",
                format!("the parent has {left} left, and a child's whole budget is set aside from it"),
            )
            .with("budget_remaining", left.to_string()),
            Refusal::AgentDisabled => conflict("agent_disabled", "the agent is disabled"),
            Refusal::BudgetAboveDefault(limit) => {
                unprocessable("budget_above_default", format!("the agent's budget is {limit}; it can only be lowered"))
                    .with("limit", limit)
                    .with("errors", errors(&[Fault::new("/budget", "is above the agent's budget")]))
            }
            Refusal::OwnerNotMember(fault) => {
                unprocessable("owner_not_member", "the owner is no member of the organization")
                    .with("errors", errors(&[fault]))
            }
            Refusal::OpenTasks(count) => {
                conflict("open_tasks", format!("{count} open tasks depend on it; use force to close them"))
                    .with("open_tasks", count)
            }
            Refusal::NameTaken(fault) => conflict("name_taken", fault.detail.clone()).with("errors", errors(&[fault])),
            Refusal::LastAdmin => conflict("last_admin", "an organization keeps at least one administrator"),
            Refusal::TaskNotFound => not_found("task_not_found", "there is no such task"),
            Refusal::SessionNotFound => not_found("session_not_found", "the task has no such session"),
            Refusal::RequestNotFound => not_found("request_not_found", "the task has no such request"),
            Refusal::NotFound(what) => not_found("not_found", format!("there is no such {what}")),
            other => access(other),
        }
    }
}

/// Refusals of who calls and of what cannot be read.
fn access(refusal: Refusal) -> Problem {
    match refusal {
        Refusal::Unauthenticated(detail) => Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", detail),
        Refusal::PermissionDenied(permission) => {
            let name = permission.as_str();
            forbidden("permission_denied", format!("this needs the permission {name}")).with("permission", name)
        }
        Refusal::OrganizationForbidden => {
            forbidden("organization_forbidden", "the caller has no access to this organization")
        }
        Refusal::AgentTaskForbidden => {
            forbidden("agent_task_forbidden", "only the service account of the task's agent may do this")
        }
        Refusal::OriginForbidden => forbidden(
            "origin_forbidden",
            "only a trigger names a scheduled task, a webhook, an accountable person or an initial outcome",
        ),
        Refusal::PersonRequired => forbidden("person_required", "only people may do this"),
        Refusal::InvalidJson(detail) => Problem::new(StatusCode::BAD_REQUEST, "invalid_json", detail),
        Refusal::InvalidCursor => {
            Problem::new(StatusCode::BAD_REQUEST, "invalid_cursor", "the cursor is damaged or belongs to another query")
        }
        Refusal::CursorExpired => Problem::new(
            StatusCode::GONE,
            "cursor_expired",
            "events behind the cursor were archived, or the database was restored; begin again without a cursor",
        ),
        Refusal::PayloadTooLarge { limit, what } => {
            let whole = what.is_empty();
            let subject = if whole { "the body".to_owned() } else { what.clone() };
            let problem = Problem::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "payload_too_large",
                format!("{subject} is larger than {limit} bytes"),
            )
            .with("limit", limit);
            if whole { problem } else { problem.with("errors", errors(&[Fault::new(what, "is too large")])) }
        }
        Refusal::BodyCut => {
            Problem::new(StatusCode::BAD_REQUEST, "incomplete_body", "the body ended before it was complete")
        }
        Refusal::ArtifactMismatch(found) => {
            unprocessable("digest_mismatch", format!("the body's digest is {found}")).with("found", found.to_string())
        }
        Refusal::NoArtifactStore => {
            conflict("no_artifact_store", "this installation keeps no artifacts: artifacts.store_url is not set")
        }
        Refusal::UnsupportedMediaType => Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            "a body is application/json, without Content-Encoding",
        ),
        Refusal::Invalid(faults) => {
            let first = faults.first().map_or("the body breaks a rule", |fault| fault.detail.as_str());
            let place = faults.first().map(|fault| match &fault.place {
                Place::Body(pointer) if pointer.is_empty() => "the body".to_owned(),
                Place::Body(pointer) => pointer.clone(),
                Place::Path(name) => format!("path parameter {name}"),
                Place::Query(name) => format!("query parameter {name}"),
                Place::Header(name) => format!("header {name}"),
            });
            let detail = place.map_or_else(|| first.to_owned(), |place| format!("{place}: {first}"));
            unprocessable("invalid_body", detail).with("errors", errors(&faults))
        }
        Refusal::SearchTooSlow(limit) => {
            let fault = Fault::query("q", format!("took longer than {limit:?}; narrow it with more text or a filter"));
            let mut problem = Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "unavailable",
                format!("the search took longer than {limit:?}; narrow it with more text or another filter"),
            )
            .with("errors", errors(&[fault]));
            problem.retry_after = Some(RETRY_AFTER_SECONDS);
            problem
        }
        Refusal::PreconditionFailed { last_seq } => Problem::new(
            StatusCode::PRECONDITION_FAILED,
            "precondition_failed",
            format!("the task is at version {last_seq}; read it again"),
        )
        .with("last_seq", last_seq),
        // Every other refusal is of the state, and was told above.
        other => Problem::internal(format!("a refusal without a problem: {other:?}")),
    }
}
