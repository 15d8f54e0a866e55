//! A task with its sessions and requests, and the one function that changes them: folding an event.

use std::sync::Arc;

use super::event::Event;
use super::ids::{OrganizationId, RequestId, SessionId, ShortId, TaskId};
use super::money::{Money, MoneyError};
use super::outcome::Ending;
use super::payload::{Payload, RequestOpened, TaskCreated, UsageReported};
use super::request::{Request, RequestStatus, Resolution};
use super::session::{HEARTBEAT_LOST, SUPERSEDED, Session, TASK_CLOSED};
use super::status::{Control, Status};
use super::task::{Facts, Pinned, Task};

/// A snapshot of a task: its row, its open sessions and requests, and those that a command names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aggregate {
    pub(in crate::domain) task: Task,
    pub(in crate::domain) sessions: Vec<Session>,
    pub(in crate::domain) requests: Vec<Request>,
    /// Open requests that had expired, by the database's clock, when they were read.
    pub(in crate::domain) overdue: Vec<RequestId>,
}

/// A log that no sequence of commits can have written.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The log does not begin with `task.created`.
    #[error("the log does not begin with task.created at seq 1")]
    Beginning,
    /// A hole or a repetition.
    #[error("seq {found} follows seq {previous}")]
    Gap {
        /// The sequence number before.
        previous: i64,
        /// The sequence number found.
        found: i64,
    },
    /// The chain breaks.
    #[error("the digest of seq {0} does not follow from the log")]
    Digest(i64),
    /// A payload of a known type that cannot be read.
    #[error("the payload of seq {seq} cannot be read: {fault}")]
    Payload {
        /// The sequence number.
        seq: i64,
        /// What is wrong.
        fault: serde_json::Error,
    },
    /// An event names what is not there.
    #[error("seq {seq} names {what}, which is not there")]
    Dangling {
        /// The sequence number.
        seq: i64,
        /// What.
        what: String,
    },
    /// A total leaves the exact range.
    #[error("seq {seq} makes a total that cannot be kept exactly")]
    Total {
        /// The sequence number.
        seq: i64,
    },
}

impl Aggregate {
    /// A snapshot as the store read it.
    pub fn new(task: Task, sessions: Vec<Session>, requests: Vec<Request>) -> Self {
        Self { task, sessions, requests, overdue: Vec::new() }
    }

    /// The same, of which these open requests have expired by the database's clock, though no worker has written it yet.
    #[must_use]
    pub fn with_overdue(self, overdue: Vec<RequestId>) -> Self {
        Self { overdue, ..self }
    }

    /// The task.
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// The session, when the snapshot holds it.
    pub fn session(&self, id: SessionId) -> Option<&Session> {
        self.sessions.iter().find(|session| session.id == id)
    }

    /// The request, when the snapshot holds it.
    pub fn request(&self, id: RequestId) -> Option<&Request> {
        self.requests.iter().find(|request| request.id == id)
    }

    /// The sessions of the snapshot.
    pub fn sessions(&self) -> &[Session] {
        &self.sessions
    }

    /// The requests of the snapshot.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Drops what is closed and settled, so that a snapshot that is kept does not grow.
    pub fn trim(&mut self) {
        self.sessions.retain(Session::is_open);
        self.requests.retain(Request::is_open);
        self.overdue.clear();
    }

    /// Adds a session and a request that a command names and the snapshot lacks.
    pub fn complete(&mut self, session: Option<Session>, request: Option<Request>) {
        if let Some(session) = session.filter(|session| self.session(session.id).is_none()) {
            self.sessions.push(session);
        }
        if let Some(request) = request.filter(|request| self.request(request.id).is_none()) {
            self.requests.push(request);
        }
    }

    /// The state right after `task.created`; `event` carries its envelope.
    pub(in crate::domain) fn begin(
        organization_id: OrganizationId,
        task_id: TaskId,
        created: TaskCreated,
        event: &Event,
    ) -> Option<Self> {
        let now = event.recorded_at;
        let pinned = Pinned {
            organization_id,
            id: task_id,
            short_id: created.short_id.parse::<ShortId>().ok()?,
            agent_id: created.agent_id,
            agent_slug: created.agent_slug,
            agent_version: created.agent_version,
            prompt_version: created.prompt_version,
            service_account_id: created.service_account_id,
            project_id: created.project_id,
            project_slug: created.project_slug,
            title: created.title,
            description: created.description,
            subject: created.subject,
            labels: created.labels,
            params: created.params,
            origin: created.origin,
            created_by_account: created.created_by_account,
            idempotency_key: created.idempotency_key,
            budget: created.budget,
            task_timeout_seconds: created.task_timeout_seconds,
            max_depth: created.max_depth,
            max_children: created.max_children,
            depth: created.depth,
            created_at: now,
        };
        let facts = Facts {
            owner: created.owner,
            status: Status::Queued,
            status_since: now,
            control: Control::Run,
            phase: None,
            furthest_milestone: None,
            ending: None,
            result: None,
            cost_total: Money::ZERO,
            set_aside: Money::ZERO,
            tokens: super::money::TokenCounts::default(),
            unmeasured_reports: 0,
            unpriced_reports: 0,
            open_requests: 0,
            open_sessions: 0,
            open_children: 0,
            last_generation: 0,
            taken_over: false,
            last_seq: event.seq,
            log_digest: event.digest,
            updated_at: now,
            closed_at: None,
            timeout_at: None,
        };
        Some(Self {
            task: Task::begin(Arc::new(pinned), facts),
            sessions: Vec::new(),
            requests: Vec::new(),
            overdue: Vec::new(),
        })
    }

    /// Folds one event into the state. This is the only place where a fact changes.
    pub(in crate::domain) fn apply(&mut self, event: &Event, payload: &Payload) -> Result<(), LogError> {
        let now = event.recorded_at;
        let facts = &mut self.task.facts;
        facts.last_seq = event.seq;
        facts.log_digest = event.digest;
        facts.updated_at = now;
        match payload {
            Payload::StateChanged(change) => {
                facts.status = change.to;
                facts.status_since = now;
            }
            Payload::ControlChanged(change) => facts.control = change.to,
            Payload::OwnerChanged(change) => facts.owner = change.to.clone(),
            Payload::SessionOpened(opened) => {
                facts.open_sessions += 1;
                facts.last_generation = opened.generation;
                if let (None, Some(seconds)) = (facts.timeout_at, self.task.pinned().task_timeout_seconds) {
                    let limit = std::time::Duration::from_secs(u64::from(seconds));
                    self.task.facts.timeout_at = Some(now.plus(limit));
                }
                self.sessions.push(Session {
                    id: opened.session_id,
                    session_key: opened.session_key.clone(),
                    harness_instance: opened.harness_instance.clone(),
                    generation: opened.generation,
                    opened_at: now,
                    heartbeat_at: now,
                    closed: None,
                });
            }
            Payload::SessionClosed(closed) => {
                facts.open_sessions = facts.open_sessions.saturating_sub(1);
                facts.taken_over |= closed.reason == SUPERSEDED;
                let session = self.sessions.iter_mut().find(|session| session.id == closed.session_id);
                let session = session.ok_or_else(|| dangling(event, "session", closed.session_id))?;
                session.closed = Some((now, closed.reason.clone()));
            }
            Payload::UsageReported(report) => self.add_usage(event, report)?,
            Payload::RequestOpened(opened) => {
                facts.open_requests += 1;
                self.requests.push(request(opened, event));
            }
            Payload::RequestResolved(resolved) => {
                facts.open_requests = facts.open_requests.saturating_sub(1);
                let settled = self.settle(event, resolved.request_id, resolved.status)?;
                settled.superseded_by = resolved.superseded_by;
                settled.resolved_by.clone_from(&resolved.resolved_by);
                if resolved.status != RequestStatus::Void {
                    settled.resolution = Some(Resolution {
                        answer: resolved.answer.clone(),
                        choice: resolved.choice.clone(),
                        constraints: resolved.constraints.clone(),
                        artifact_digests: resolved.artifact_digests.clone(),
                        channel: event.actor.channel,
                    });
                }
            }
            Payload::RequestExpired(expired) => {
                facts.open_requests = facts.open_requests.saturating_sub(1);
                self.settle(event, expired.request_id, RequestStatus::Expired)?;
            }
            Payload::OutcomeSet(set) => {
                facts.ending = Ending::new(set.outcome, set.reason);
                facts.result.clone_from(&set.result);
                facts.closed_at = Some(now);
            }
            Payload::PhaseChanged(change) => {
                facts.phase = Some(change.phase.clone());
                if change.furthest_milestone.is_some() {
                    facts.furthest_milestone.clone_from(&change.furthest_milestone);
                }
            }
            Payload::ChildCreated(child) | Payload::ChildClosed(child) | Payload::ChildAdjusted(child) => {
                let total = facts.set_aside.checked_add(child.set_aside_delta);
                facts.set_aside = total.map_err(|_| LogError::Total { seq: event.seq })?;
                match payload {
                    Payload::ChildCreated(_) => facts.open_children += 1,
                    Payload::ChildClosed(_) => facts.open_children = facts.open_children.saturating_sub(1),
                    _ => {}
                }
            }
            Payload::TaskCreated(_) => return Err(LogError::Beginning),
            Payload::Turn(_)
            | Payload::DependencyAdded(_)
            | Payload::DependencyRemoved(_)
            | Payload::ProjectAssociated(_)
            | Payload::ProjectDissociated(_)
            | Payload::Other => {}
        }
        Ok(())
    }

    fn add_usage(&mut self, event: &Event, report: &UsageReported) -> Result<(), LogError> {
        let overflow = |_: MoneyError| LogError::Total { seq: event.seq };
        let facts = &mut self.task.facts;
        facts.cost_total = facts.cost_total.checked_add(report.cost.unwrap_or_default()).map_err(overflow)?;
        facts.tokens =
            facts.tokens.checked_add(report.tokens.unwrap_or_default()).ok_or(LogError::Total { seq: event.seq })?;
        facts.unmeasured_reports += i64::from(report.unmeasured_delta);
        facts.unpriced_reports += i64::from(report.unpriced_delta);
        Ok(())
    }

    fn settle(&mut self, event: &Event, id: RequestId, status: RequestStatus) -> Result<&mut Request, LogError> {
        let request = self.requests.iter_mut().find(|request| request.id == id);
        let request = request.ok_or_else(|| dangling(event, "request", id))?;
        request.status = status;
        request.resolved_at = Some(event.recorded_at);
        Ok(request)
    }

    /// Whether a session closed for a reason of the server's.
    pub(in crate::domain) fn is_server_reason(reason: &str) -> bool {
        [TASK_CLOSED, HEARTBEAT_LOST, SUPERSEDED].contains(&reason)
    }
}

fn request(opened: &RequestOpened, event: &Event) -> Request {
    Request {
        id: opened.request_id,
        session_id: event.session_id,
        kind: opened.kind,
        status: RequestStatus::Open,
        title: opened.title.clone(),
        why: opened.why.clone(),
        options: opened.options.clone(),
        artifacts: opened.artifacts.clone(),
        artifact_digests: opened.artifact_digests.clone(),
        expires_at: opened.expires_at,
        opened_at: event.recorded_at,
        request_key: opened.request_key.clone(),
        resolved_by: None,
        resolved_at: None,
        resolution: None,
        superseded_by: None,
    }
}

fn dangling(event: &Event, what: &str, id: impl std::fmt::Display) -> LogError {
    LogError::Dangling { seq: event.seq, what: format!("{what} {id}") }
}

/// Folds a whole log: `fold(log)` equals the row. Checks that seq is 1..n and that the digests chain.
pub fn fold(organization_id: OrganizationId, task_id: TaskId, log: &[Event]) -> Result<Aggregate, LogError> {
    let (first, rest) = log.split_first().ok_or(LogError::Beginning)?;
    let read = |event: &Event| {
        Payload::read(&event.event_type, &event.payload).map_err(|fault| LogError::Payload { seq: event.seq, fault })
    };
    let Payload::TaskCreated(created) = read(first)? else { return Err(LogError::Beginning) };
    if first.seq != 1 {
        return Err(LogError::Beginning);
    }
    let mut head = super::digest::chain(super::digest::Digest::ZERO, task_id, first);
    if head != first.digest {
        return Err(LogError::Digest(1));
    }
    let mut aggregate = Aggregate::begin(organization_id, task_id, *created, first).ok_or(LogError::Beginning)?;
    for event in rest {
        let previous = aggregate.task.facts.last_seq;
        if event.seq != previous + 1 {
            return Err(LogError::Gap { previous, found: event.seq });
        }
        head = super::digest::chain(head, task_id, event);
        if head != event.digest {
            return Err(LogError::Digest(event.seq));
        }
        aggregate.apply(event, &read(event)?)?;
    }
    Ok(aggregate)
}
