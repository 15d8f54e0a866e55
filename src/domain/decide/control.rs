//! What people want of a task: pause, resume, cancel, reassign, reply.

use crate::domain::aggregate::Aggregate;
use crate::domain::change::{Context, Decision, Draft};
use crate::domain::digest::Digest;
use crate::domain::event::{Event, EventType};
use crate::domain::ids::{EventId, PersonId};
use crate::domain::outcome::{Ending, OutcomeReason};
use crate::domain::payload::{ControlChanged, OwnerChanged, Payload, Turn};
use crate::domain::refusal::{Checked, Refusal};
use crate::domain::status::{Control, StateReason};

/// Pauses or resumes; the same value again writes nothing.
pub(super) fn set(
    base: &Aggregate,
    to: Control,
    reason: Checked<Option<String>>,
    context: &mut Context<'_>,
) -> Result<Decision, Refusal> {
    let reason = reason?;
    let mut draft = Draft::of(base, context);
    change_control(&mut draft, to, reason)?;
    draft.settle(StateReason::ControlChanged)?;
    Ok(draft.finish())
}

fn change_control(draft: &mut Draft<'_, '_>, to: Control, reason: Option<String>) -> Result<(), Refusal> {
    let from = draft.next().task().facts().control;
    if from == to {
        return Ok(());
    }
    let actor = draft.actor_id();
    let says_something = reason.is_some();
    let payload = Payload::ControlChanged(ControlChanged { from, to, actor, reason });
    // What the body had redacted is in its reason; a reply that holds has none.
    if says_something { draft.write_content(&payload, None) } else { draft.write(&payload, None) }
}

/// A first cancel: without an open session it closes at once, else it waits for the harness. `force` is ignored.
pub(super) fn cancel(
    base: &Aggregate,
    reason: Checked<Option<String>>,
    force: Checked<bool>,
    context: &mut Context<'_>,
) -> Result<Decision, Refusal> {
    let reason = reason?;
    force?;
    let mut draft = Draft::of(base, context);
    change_control(&mut draft, Control::Cancel, reason)?;
    if draft.next().task().facts().open_sessions == 0 {
        draft.close(Ending::because(OutcomeReason::CancelledWithoutSession), None, None)?;
    } else {
        draft.settle(StateReason::ControlChanged)?;
    }
    Ok(draft.finish())
}

/// A second cancel: nothing, or with `force` the end.
pub(super) fn cancel_again(
    base: &Aggregate,
    reason: Checked<Option<String>>,
    force: Checked<bool>,
    context: &mut Context<'_>,
) -> Result<Decision, Refusal> {
    reason?;
    if !force? {
        return Ok(Decision::Unchanged);
    }
    let mut draft = Draft::of(base, context);
    draft.close(Ending::because(OutcomeReason::ForcedUnconfirmed), None, None)?;
    Ok(draft.finish())
}

/// Names another owner; the same one again writes nothing.
pub(super) fn reassign(
    base: &Aggregate,
    owner: Checked<PersonId>,
    context: &mut Context<'_>,
) -> Result<Decision, Refusal> {
    let to = owner?;
    let from = base.task().facts().owner.clone();
    let mut draft = Draft::of(base, context);
    if from != to {
        draft.write(&Payload::OwnerChanged(OwnerChanged { from, to }), None)?;
    }
    Ok(draft.finish())
}

/// A person's turn, which may pause the task in the same transaction.
pub(super) fn reply(
    base: &Aggregate,
    event_id: EventId,
    body: Checked<String>,
    hold: Checked<bool>,
    cancelling: bool,
    context: &mut Context<'_>,
) -> Result<Decision, Refusal> {
    // An unreadable hold holds nothing; the fault is told below.
    if cancelling && matches!(hold, Ok(true)) {
        return Err(Refusal::CancelPending(base.task().facts().status));
    }
    let body = body?;
    let hold = hold?;
    let payload = Payload::Turn(Turn { body, hold });
    let (event_type, text) = payload.write().unwrap_or_else(|| (EventType::Turn, String::from("{}")));
    let event = Event {
        event_id,
        seq: 0,
        event_type: event_type.as_str().into(),
        schema_version: 1,
        actor: context.actor.clone(),
        session_id: None,
        at: context.now,
        recorded_at: context.now,
        payload: text,
        redacted: context.redacted.clone(),
        digest: Digest::ZERO,
    };
    let mut draft = Draft::of(base, context);
    draft.push_event(event, &payload)?;
    if hold {
        change_control(&mut draft, Control::Pause, None)?;
        draft.settle(StateReason::ControlChanged)?;
    }
    Ok(draft.finish())
}
