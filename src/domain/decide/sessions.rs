//! Sessions open, close and are lost.

use crate::domain::aggregate::Aggregate;
use crate::domain::change::{Context, Decision, Draft};
use crate::domain::command::NewSession;
use crate::domain::ids::SessionId;
use crate::domain::outcome::{Ending, OutcomeReason};
use crate::domain::payload::SessionOpened;
use crate::domain::refusal::{Checked, Refusal};
use crate::domain::session::{HEARTBEAT_LOST, SUPERSEDED};
use crate::domain::status::{Control, StateReason};
use crate::domain::time::Timestamp;

/// Opens a session; its key again while it is open changes nothing.
pub(super) fn open(
    base: &Aggregate,
    session: Checked<NewSession>,
    max_concurrent_tasks: Option<u32>,
    context: &mut Context<'_>,
) -> Result<Decision, Refusal> {
    let new = session?;
    if let Some(known) = base.sessions().iter().find(|session| session.session_key == new.session_key) {
        return match &known.closed {
            None => Ok(Decision::Unchanged),
            // However it closed, a superseded one too: its key opens nothing any more.
            Some((_, reason)) => Err(base.session_refusal(false, reason)),
        };
    }
    let mut draft = Draft::of(base, context);
    // A task that works already does not add to the agent's count.
    if base.task().facts().open_sessions == 0 {
        draft.guards().concurrency = max_concurrent_tasks;
    }
    if new.takeover {
        let open: Vec<_> =
            base.sessions().iter().filter(|session| session.is_open()).map(|session| session.id).collect();
        for id in open {
            draft.close_session(id, SUPERSEDED)?;
        }
    }
    let generation = base.task().facts().last_generation + 1;
    let opened = SessionOpened {
        session_id: SessionId(draft.new_id()),
        session_key: new.session_key,
        harness_instance: new.harness_instance,
        generation,
        takeover: new.takeover,
    };
    draft.open_session(opened)?;
    draft.settle(StateReason::SessionOpened)?;
    Ok(draft.finish())
}

/// Closes a session. A closed one changes nothing; a superseded one is refused.
pub(super) fn close(
    base: &Aggregate,
    id: SessionId,
    reason: Checked<String>,
    context: &mut Context<'_>,
) -> Result<Decision, Refusal> {
    let session = base.session(id).ok_or(Refusal::SessionNotFound)?;
    if session.is_superseded() {
        return Err(base.session_refusal(true, SUPERSEDED));
    }
    if !session.is_open() {
        return Ok(Decision::Unchanged);
    }
    let reason = reason?;
    let mut draft = Draft::of(base, context);
    draft.close_session(id, &reason)?;
    after_the_last(&mut draft, OutcomeReason::CancelSeen)?;
    Ok(draft.finish())
}

/// Closes the sessions that were silent since `silent_since`. Nothing is invented: the status is derived again and
/// the task waits for the next harness.
pub(super) fn lose(
    base: &Aggregate,
    sessions: &[SessionId],
    silent_since: Timestamp,
    context: &mut Context<'_>,
) -> Result<Decision, Refusal> {
    let mut draft = Draft::of(base, context);
    let mut lost = Vec::new();
    for id in sessions {
        if base.session(*id).is_some_and(crate::domain::session::Session::is_open) {
            draft.close_session(*id, HEARTBEAT_LOST)?;
            lost.push(*id);
        }
    }
    if lost.is_empty() {
        return Ok(Decision::Unchanged);
    }
    draft.guards().silent = Some((lost, silent_since));
    after_the_last(&mut draft, OutcomeReason::HarnessLost)?;
    Ok(draft.finish())
}

/// When the last session of a cancelled task has ended, however it ended, the task closes; else the status follows.
fn after_the_last(draft: &mut Draft<'_, '_>, reason: OutcomeReason) -> Result<(), Refusal> {
    let facts = draft.next().task().facts();
    if facts.control == Control::Cancel && facts.open_sessions == 0 {
        draft.close(Ending::because(reason), None, None)
    } else {
        draft.settle(StateReason::SessionClosed)
    }
}
