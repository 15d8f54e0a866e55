//! The decision table: command × life of the task → events or refusal. No arm that accepts is a wildcard.

mod control;
mod delegation;
mod events;
mod outcome;
mod relations;
mod requests;
mod sessions;
mod usage;

pub use delegation::{Ascent, Delegation, delegate, may_delegate};
pub use relations::dependency;
pub use requests::REQUEST_TTL_MAX;

use super::aggregate::Aggregate;
use super::change::{Context, Decision, Draft};
use super::command::Command;
use super::ids::{OrganizationId, SessionId, ShortId, TaskId};
use super::outcome::{Ending, Outcome, OutcomeReason};
use super::payload::TaskCreated;
use super::refusal::{Checked, Closed, Refusal};
use super::status::Control;

/// The part of a task's life that decides what may happen to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// Open, no cancel pending.
    Open,
    /// Open, a cancel is pending.
    Cancelling,
    /// Closed; the log is still in Postgres.
    Closed,
    /// Closed, and the log is sealed.
    Archived,
}

impl Aggregate {
    fn life(&self) -> Life {
        let task = self.task();
        match (task.log_archived_at(), task.facts().ending, task.facts().control) {
            (Some(_), _, _) => Life::Archived,
            (None, Some(_), _) => Life::Closed,
            (None, None, Control::Cancel) => Life::Cancelling,
            (None, None, Control::Run | Control::Pause) => Life::Open,
        }
    }

    fn closed(&self) -> Refusal {
        let facts = self.task().facts();
        match facts.ending {
            Some(ending) => Refusal::TaskClosed(Closed { ending, last_seq: facts.last_seq }),
            None => Refusal::TaskArchived,
        }
    }

    /// Decides what `command` does to the task as it is, without doing it.
    pub fn decide(&self, command: Command, context: &mut Context<'_>) -> Result<Decision, Refusal> {
        use Command as C;
        use Life as L;
        let life = self.life();
        match (command, life) {
            (C::OpenSession { session, max_concurrent_tasks }, L::Open) => {
                sessions::open(self, session, max_concurrent_tasks, context)
            }
            (C::OpenSession { .. } | C::OpenRequest { .. }, L::Cancelling) => Err(Refusal::TaskCancelled),

            (C::CloseSession { session, reason }, L::Open | L::Cancelling | L::Closed) => {
                sessions::close(self, session, reason, context)
            }
            (C::LoseSessions { sessions, silent_since }, L::Open | L::Cancelling) => {
                sessions::lose(self, &sessions, silent_since, context)
            }

            (C::Append { session, only_tool_calls, events }, L::Open | L::Cancelling) => {
                events::append(self, session, only_tool_calls, events, context)
            }
            (C::Append { session, only_tool_calls: true, events }, L::Closed) => {
                events::append(self, session, true, events, context)
            }

            (C::Report { session, report }, L::Open | L::Cancelling | L::Closed) => {
                usage::report(self, session, report, context)
            }

            (C::OpenRequest { session, supersedes, request }, L::Open) => {
                requests::open(self, session, supersedes, request, context)
            }
            // The request's state ranks before that of the task.
            (C::Withdraw { request, session }, L::Open | L::Cancelling | L::Closed) => {
                requests::withdraw(self, request, session, context)
            }
            (C::Resolve { request, person, expected, resolution }, L::Open | L::Cancelling | L::Closed) => {
                requests::resolve(self, request, &person, expected.as_deref(), resolution, context)
            }
            (C::ExpireRequests { due }, L::Open | L::Cancelling) => requests::expire(self, &due, context),

            (C::Pause { reason }, L::Open) => control::set(self, Control::Pause, reason, context),
            (C::Resume { reason }, L::Open) => control::set(self, Control::Run, reason, context),
            (C::Pause { .. } | C::Resume { .. }, L::Cancelling) => {
                Err(Refusal::CancelPending(self.task().facts().status))
            }
            (C::Cancel { reason, force }, L::Open) => control::cancel(self, reason, force, context),
            (C::Cancel { reason, force }, L::Cancelling) => control::cancel_again(self, reason, force, context),

            (C::Reassign { owner }, L::Open | L::Cancelling) => control::reassign(self, owner, context),
            (C::Reply { event_id, body, hold }, L::Open | L::Cancelling) => {
                control::reply(self, event_id, body, hold, life == L::Cancelling, context)
            }

            (C::AssociateProject { project, slug, found }, L::Open | L::Cancelling | L::Closed) => {
                relations::associate(self, project, slug, found.as_ref(), context)
            }
            (C::DissociateProject { found, .. }, L::Open | L::Cancelling | L::Closed) => {
                relations::dissociate(self, found, context)
            }

            (C::SetOutcome { session, outcome }, L::Open | L::Cancelling) => {
                outcome::set(self, session, outcome, life == L::Cancelling, context)
            }
            (C::SetOutcome { outcome, .. }, L::Closed) => outcome::repeat(self, &outcome),
            (C::TimeOut, L::Open | L::Cancelling) => outcome::time_out(self, context),
            (C::Stop, L::Open | L::Cancelling) => outcome::end(self, OutcomeReason::EmergencyStop, context),
            (C::DeleteAgent, L::Open | L::Cancelling) => outcome::end(self, OutcomeReason::AgentDeleted, context),

            // What time or an operator wanted has happened already.
            (
                C::LoseSessions { .. } | C::ExpireRequests { .. } | C::TimeOut | C::Stop | C::DeleteAgent,
                L::Closed | L::Archived,
            ) => Ok(Decision::Unchanged),

            (
                C::OpenSession { .. }
                | C::Append { .. }
                | C::OpenRequest { .. }
                | C::Pause { .. }
                | C::Resume { .. }
                | C::Cancel { .. }
                | C::Reassign { .. }
                | C::Reply { .. },
                L::Closed,
            ) => Err(self.closed()),
            (
                C::OpenSession { .. }
                | C::CloseSession { .. }
                | C::Append { .. }
                | C::Report { .. }
                | C::OpenRequest { .. }
                | C::Withdraw { .. }
                | C::Resolve { .. }
                | C::Pause { .. }
                | C::Resume { .. }
                | C::Cancel { .. }
                | C::Reassign { .. }
                | C::Reply { .. }
                | C::AssociateProject { .. }
                | C::DissociateProject { .. }
                | C::SetOutcome { .. },
                L::Archived,
            ) => Err(Refusal::TaskArchived),
        }
    }

    /// Checks the session that a harness's write names. `kept` writes (usage, tool calls) are accepted from any
    /// session of the task, because what was spent or done is never lost.
    fn named_session(&self, session: Checked<Option<SessionId>>, kept: bool) -> Result<Option<SessionId>, Refusal> {
        let Some(id) = session? else {
            return if self.task().facts().taken_over { Err(Refusal::SessionRequired) } else { Ok(None) };
        };
        let Some(session) = self.session(id) else {
            return Err(Refusal::invalid("/session_id", "names no session of this task"));
        };
        match &session.closed {
            None => Ok(Some(id)),
            Some(_) if kept => Ok(Some(id)),
            Some((_, reason)) => Err(self.session_refusal(session.is_superseded(), reason)),
        }
    }

    fn session_refusal(&self, superseded: bool, reason: &str) -> Refusal {
        let facts = self.task().facts();
        let (ending, last_seq) = (facts.ending, facts.last_seq);
        if superseded {
            Refusal::SessionSuperseded { ending, last_seq }
        } else {
            Refusal::SessionClosed { reason: reason.to_owned(), ending, last_seq }
        }
    }

    /// The refusal of a heartbeat on a session or task that is closed; `None` when the session lives.
    pub fn heartbeat_refusal(&self, id: SessionId) -> Option<Refusal> {
        let session = self.session(id)?;
        let (_, reason) = session.closed.as_ref()?;
        match self.life() {
            Life::Open | Life::Cancelling => Some(self.session_refusal(session.is_superseded(), reason)),
            Life::Closed => Some(self.closed()),
            Life::Archived => Some(match self.closed() {
                Refusal::TaskClosed(ended) => Refusal::EndedAndArchived(ended),
                other => other,
            }),
        }
    }
}

/// Decides the creation of a task; `initial` closes it from the start.
pub fn create(
    organization_id: OrganizationId,
    task_id: TaskId,
    short_id: ShortId,
    created: TaskCreated,
    initial: Option<Ending>,
    context: &mut Context<'_>,
) -> Result<Decision, Refusal> {
    if let Some(ending) = initial {
        if ending.is_reserved() {
            return Err(Refusal::OutcomeReserved);
        }
        if ending.outcome() == Outcome::CancelledByHuman {
            return Err(Refusal::NotCancelled(super::status::Status::Queued));
        }
    }
    let mut draft = Draft::create(organization_id, task_id, short_id, created, context)?;
    if let Some(ending) = initial {
        draft.close(ending, None, None)?;
    }
    Ok(draft.finish())
}

/// The alive session of a draft: the named one while it is open.
fn sign_of_life(draft: &mut Draft<'_, '_>, session: Option<SessionId>) {
    let open = session.filter(|id| draft.next().session(*id).is_some_and(super::session::Session::is_open));
    draft.alive(open);
}
