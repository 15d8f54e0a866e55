//! Changes: what a decision writes. A change holds at least one event and is built only here.

use uuid::Uuid;

use super::aggregate::{Aggregate, LogError};
use super::digest::{Digest, chain};
use super::event::{Actor, Event};
use super::ids::{EventId, OrganizationId, RequestId, SessionId, ShortId, TaskId};
use super::limits::PAYLOAD_BYTES_MAX;
use super::outcome::Ending;
use super::payload::{
    JsonText, OutcomeSet, Payload, RequestExpired, RequestResolved, SessionClosed, StateChanged, TaskCreated,
    UsageReported,
};
use super::refusal::Refusal;
use super::relation::{Edit, ProjectEdit};
use super::request::{Request, RequestStatus};
use super::session::TASK_CLOSED;
use super::status::StateReason;
use super::task::status_of;
use super::time::Timestamp;
use super::usage::LedgerRow;

/// SHA-256 of a canonical request body, kept to tell a repeat with another body.
pub type BodyHash = [u8; 32];

/// Who decides, and when: time and randomness are parameters.
pub struct Context<'a> {
    /// The caller, as events carry it.
    pub actor: Actor,
    /// The server's clock.
    pub now: Timestamp,
    /// Fresh ids.
    pub new_id: &'a mut dyn FnMut() -> Uuid,
    /// The body's hash, kept with the row that the command creates.
    pub body_hash: BodyHash,
    /// JSON pointers of what was redacted in the body; they hold in the payload too, which has the body's names.
    pub redacted: Vec<String>,
}

/// What must still hold in the database at the moment of the commit, beside the version.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guards {
    /// By the database's clock none of these requests has expired.
    pub unexpired: Vec<RequestId>,
    /// The agent works fewer than so many other tasks.
    pub concurrency: Option<u32>,
    /// These sessions gave no sign of life since then.
    pub silent: Option<(Vec<SessionId>, Timestamp)>,
    /// The artifact store has these: they hold what its events leave out.
    pub stored: Vec<Digest>,
}

/// A change of one task: its events, the state after them, and what must hold when they are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    expected_seq: i64,
    events: Vec<Event>,
    next: Aggregate,
    ledger: Option<LedgerRow>,
    guards: Guards,
    alive: Option<SessionId>,
    touched_sessions: Vec<SessionId>,
    touched_requests: Vec<RequestId>,
    project: Option<ProjectEdit>,
    body_hash: BodyHash,
}

impl Change {
    /// The version that the change was decided on; 0 for a creation.
    pub fn expected_seq(&self) -> i64 {
        self.expected_seq
    }

    /// Its events, at least one, in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The state after it.
    pub fn next(&self) -> &Aggregate {
        &self.next
    }

    /// The state after it, when the change itself is done with.
    pub fn into_parts(self) -> (Aggregate, Vec<Event>, Option<LedgerRow>) {
        (self.next, self.events, self.ledger)
    }

    /// The row of the ledger that it adds.
    pub fn ledger(&self) -> Option<&LedgerRow> {
        self.ledger.as_ref()
    }

    /// What must hold when it is written.
    pub fn guards(&self) -> &Guards {
        &self.guards
    }

    /// The session to which it is a sign of life.
    pub fn alive(&self) -> Option<SessionId> {
        self.alive
    }

    /// The sessions that it opened or closed.
    pub fn touched_sessions(&self) -> &[SessionId] {
        &self.touched_sessions
    }

    /// The requests that it opened or settled.
    pub fn touched_requests(&self) -> &[RequestId] {
        &self.touched_requests
    }

    /// The associated project that it adds or removes.
    pub fn project(&self) -> Option<&ProjectEdit> {
        self.project.as_ref()
    }

    /// The hash of the body that asked for it.
    pub fn body_hash(&self) -> BodyHash {
        self.body_hash
    }
}

/// What a command leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Something to write.
    Change(Box<Change>),
    /// The wanted state is there already: answer it, write nothing.
    Unchanged,
}

/// A change in the making.
pub(in crate::domain) struct Draft<'a, 'c> {
    context: &'c mut Context<'a>,
    change: Change,
}

impl<'a, 'c> Draft<'a, 'c> {
    /// Begins a change of `base`.
    pub fn of(base: &Aggregate, context: &'c mut Context<'a>) -> Self {
        let change = Change {
            expected_seq: base.task.facts.last_seq,
            events: Vec::new(),
            next: base.clone(),
            ledger: None,
            guards: Guards::default(),
            alive: None,
            touched_sessions: Vec::new(),
            touched_requests: Vec::new(),
            project: None,
            body_hash: context.body_hash,
        };
        Self { context, change }
    }

    /// Begins the change that creates a task.
    pub fn create(
        organization_id: OrganizationId,
        task_id: TaskId,
        short_id: ShortId,
        mut created: TaskCreated,
        context: &'c mut Context<'a>,
    ) -> Result<Self, Refusal> {
        created.short_id = short_id.to_string();
        let (event_type, payload) = Payload::TaskCreated(Box::new(created.clone())).write().ok_or_else(unwritable)?;
        let mut event = Event {
            event_id: EventId((context.new_id)()),
            seq: 1,
            event_type: event_type.as_str().into(),
            schema_version: 1,
            actor: context.actor.clone(),
            session_id: None,
            at: context.now,
            recorded_at: context.now,
            payload,
            redacted: context.redacted.clone(),
            digest: Digest::ZERO,
        };
        fits(&event)?;
        event.digest = chain(Digest::ZERO, task_id, &event);
        let next = Aggregate::begin(organization_id, task_id, created, &event).ok_or_else(unwritable)?;
        let change = Change {
            expected_seq: 0,
            events: vec![event],
            next,
            ledger: None,
            guards: Guards::default(),
            alive: None,
            touched_sessions: Vec::new(),
            touched_requests: Vec::new(),
            project: None,
            body_hash: context.body_hash,
        };
        Ok(Self { context, change })
    }

    /// The state so far.
    pub fn next(&self) -> &Aggregate {
        &self.change.next
    }

    /// The clock.
    pub fn now(&self) -> Timestamp {
        self.context.now
    }

    /// The caller's id, as events carry it.
    pub fn actor_id(&self) -> String {
        self.context.actor.id.clone()
    }

    /// A fresh id.
    pub fn new_id(&mut self) -> Uuid {
        (self.context.new_id)()
    }

    /// The guards, to be set.
    pub fn guards(&mut self) -> &mut Guards {
        &mut self.change.guards
    }

    /// Names the session to which the change is a sign of life.
    pub fn alive(&mut self, session: Option<SessionId>) {
        self.change.alive = session;
    }

    /// Writes an event of the server's, caused by the caller; what the body had redacted is redacted in it.
    pub fn write_content(&mut self, payload: &Payload, session: Option<SessionId>) -> Result<(), Refusal> {
        let redacted = self.context.redacted.clone();
        self.push(payload, session, redacted)
    }

    /// Writes an event of the server's, caused by the caller.
    pub fn write(&mut self, payload: &Payload, session: Option<SessionId>) -> Result<(), Refusal> {
        self.push(payload, session, Vec::new())
    }

    fn push(&mut self, payload: &Payload, session: Option<SessionId>, redacted: Vec<String>) -> Result<(), Refusal> {
        let (event_type, text) = payload.write().ok_or_else(unwritable)?;
        let event = Event {
            event_id: EventId(self.new_id()),
            seq: 0,
            event_type: event_type.as_str().into(),
            schema_version: 1,
            actor: self.context.actor.clone(),
            session_id: session,
            at: self.context.now,
            recorded_at: self.context.now,
            payload: text,
            redacted,
            digest: Digest::ZERO,
        };
        self.push_event(event, payload)
    }

    /// Writes an event that a caller composed; its seq, clock and digest are set here.
    pub fn push_event(&mut self, mut event: Event, payload: &Payload) -> Result<(), Refusal> {
        fits(&event)?;
        let task = &self.change.next.task;
        event.seq = task.facts.last_seq + 1;
        event.recorded_at = self.context.now;
        event.digest = chain(task.facts.log_digest, task.id(), &event);
        match self.change.next.apply(&event, payload) {
            Ok(()) => self.change.events.push(event),
            Err(LogError::Total { .. }) => {
                return Err(Refusal::invalid("", "the task's totals could no longer be kept exactly"));
            }
            Err(fault) => return Err(Refusal::invalid("", fault.to_string())),
        }
        Ok(())
    }

    /// Writes `session.opened` for a new session.
    pub fn open_session(&mut self, opened: super::payload::SessionOpened) -> Result<(), Refusal> {
        let id = opened.session_id;
        self.change.touched_sessions.push(id);
        self.write_content(&Payload::SessionOpened(opened), Some(id))
    }

    /// Writes `session.closed` for an open session.
    pub fn close_session(&mut self, id: SessionId, reason: &str) -> Result<(), Refusal> {
        let harness_instance = self.next().session(id).and_then(|session| session.harness_instance.clone());
        self.change.touched_sessions.push(id);
        let closed = SessionClosed { session_id: id, harness_instance, reason: reason.to_owned() };
        if Aggregate::is_server_reason(reason) {
            self.write(&Payload::SessionClosed(closed), Some(id))
        } else {
            self.write_content(&Payload::SessionClosed(closed), Some(id))
        }
    }

    /// Writes the event of a request that opens, is settled or expires.
    pub fn request(&mut self, id: RequestId, payload: &Payload, session: Option<SessionId>) -> Result<(), Refusal> {
        self.change.touched_requests.push(id);
        self.write_content(payload, session)
    }

    /// Adds or removes an associated project with its event.
    pub fn project(&mut self, edit: ProjectEdit) -> Result<(), Refusal> {
        let payload = match &edit {
            Edit::Add(row) => Payload::ProjectAssociated(row.clone()),
            Edit::Remove(row) => Payload::ProjectDissociated(row.clone()),
        };
        self.change.project = Some(edit);
        self.write(&payload, None)
    }

    /// Voids an open request.
    pub fn void(&mut self, id: RequestId, superseded_by: Option<RequestId>) -> Result<(), Refusal> {
        self.change.touched_requests.push(id);
        self.write(
            &Payload::RequestResolved(Box::new(RequestResolved {
                request_id: id,
                status: RequestStatus::Void,
                answer: None,
                choice: None,
                constraints: None,
                artifact_digests: Vec::new(),
                resolved_by: None,
                superseded_by,
            })),
            None,
        )
    }

    /// Time has expired an open request.
    pub fn expire(&mut self, request: &Request) -> Result<(), Refusal> {
        let Request { id, kind, expires_at, .. } = *request;
        self.request(id, &Payload::RequestExpired(RequestExpired { request_id: id, kind, expires_at }), None)
    }

    /// Adds a row to the ledger with its event.
    pub fn report(&mut self, mut row: LedgerRow, session: Option<SessionId>) -> Result<(), Refusal> {
        row.seq = self.next().task.facts.last_seq + 1;
        row.recorded_at = self.context.now;
        let mut report = UsageReported {
            report_id: row.id,
            idempotency_key: row.idempotency_key.clone(),
            model_id: row.model_id.clone(),
            model_ref: row.model_ref,
            tokens: row.measured.then_some(row.tokens),
            prices: row.prices,
            cost: row.cost,
            measured: row.measured,
            corrects: row.corrects,
            unmeasured_delta: row.unmeasured_delta,
            unpriced_delta: row.unpriced_delta,
            cost_total: self.next().task.facts.cost_total,
            budget_remaining: None,
        };
        let too_large = |_| Refusal::invalid("", "the task's totals could no longer be kept exactly");
        let cost = row.cost.unwrap_or_default();
        report.cost_total = report.cost_total.checked_add(cost).map_err(too_large)?;
        report.budget_remaining =
            self.next().task.budget_remaining().map(|rest| rest.checked_sub(cost)).transpose().map_err(too_large)?;
        self.write(&Payload::UsageReported(Box::new(report)), session)?;
        self.change.ledger = Some(row);
        Ok(())
    }

    /// Writes `state.changed` exactly when the status differs from what the facts give.
    pub fn settle(&mut self, reason: StateReason) -> Result<(), Refusal> {
        let facts = &self.next().task.facts;
        let (from, to) = (facts.status, status_of(facts));
        if from == to {
            return Ok(());
        }
        self.write(&Payload::StateChanged(StateChanged { from, to, reason }), None)
    }

    /// Closes the task, in the contract's order: open sessions, `state.changed`, `outcome.set`, open requests, which
    /// become void or, when their time is over, expired.
    pub fn close(
        &mut self,
        ending: Ending,
        result: Option<JsonText>,
        session: Option<SessionId>,
    ) -> Result<(), Refusal> {
        let open: Vec<_> = self.next().sessions.iter().filter(|session| session.is_open()).map(|s| s.id).collect();
        for id in open {
            self.close_session(id, TASK_CLOSED)?;
        }
        let from = self.next().task.facts.status;
        let to = super::status::Status::Closed;
        self.write(&Payload::StateChanged(StateChanged { from, to, reason: StateReason::OutcomeSet }), None)?;
        let has_content = result.is_some();
        let set = OutcomeSet { outcome: ending.outcome(), reason: ending.reason(), result };
        if has_content {
            self.write_content(&Payload::OutcomeSet(set), session)?;
        } else {
            self.write(&Payload::OutcomeSet(set), session)?;
        }
        let open: Vec<_> = self.next().requests.iter().filter(|request| request.is_open()).cloned().collect();
        for request in open {
            // What readers were shown as expired stays so, though no worker has written it yet.
            if self.next().overdue.contains(&request.id) {
                self.expire(&request)?;
            } else {
                self.change.guards.unexpired.push(request.id);
                self.void(request.id, None)?;
            }
        }
        Ok(())
    }

    /// The finished change.
    pub fn finish(self) -> Decision {
        if self.change.events.is_empty() { Decision::Unchanged } else { Decision::Change(Box::new(self.change)) }
    }
}

/// The limit of a payload holds for what the server writes out of a body too.
fn fits(event: &Event) -> Result<(), Refusal> {
    if event.payload.len() <= PAYLOAD_BYTES_MAX {
        return Ok(());
    }
    Err(Refusal::PayloadTooLarge { limit: PAYLOAD_BYTES_MAX, what: String::new() })
}

fn unwritable() -> Refusal {
    Refusal::invalid("", "the content could not be written as JSON")
}
