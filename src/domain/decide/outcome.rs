//! How a task ends.

use crate::domain::aggregate::Aggregate;
use crate::domain::change::{Context, Decision, Draft};
use crate::domain::command::ClaimedOutcome;
use crate::domain::ids::SessionId;
use crate::domain::outcome::{Ending, Outcome, OutcomeReason};
use crate::domain::refusal::{Checked, Refusal};

/// A harness ends the task.
pub(super) fn set(
    base: &Aggregate,
    session: Checked<Option<SessionId>>,
    outcome: Checked<ClaimedOutcome>,
    cancelling: bool,
    context: &mut Context<'_>,
) -> Result<Decision, Refusal> {
    let session = base.named_session(session, false)?;
    let outcome = outcome?;
    if outcome.ending.is_reserved() {
        return Err(Refusal::OutcomeReserved);
    }
    if outcome.ending.outcome() == Outcome::CancelledByHuman && !cancelling {
        return Err(Refusal::NotCancelled(base.task().facts().status));
    }
    let mut draft = Draft::of(base, context);
    draft.close(outcome.ending, outcome.result, session)?;
    Ok(draft.finish())
}

/// An outcome for a closed task: the recorded one again is fine, another is refused.
pub(super) fn repeat(base: &Aggregate, outcome: &Checked<ClaimedOutcome>) -> Result<Decision, Refusal> {
    match outcome {
        Ok(claimed) if Some(claimed.ending) == base.task().facts().ending => Ok(Decision::Unchanged),
        Ok(_) | Err(_) => Err(base.closed()),
    }
}

/// The time limit ends the task, if it has passed.
pub(super) fn time_out(base: &Aggregate, context: &mut Context<'_>) -> Result<Decision, Refusal> {
    match base.task().facts().timeout_at {
        Some(limit) if limit <= context.now => end(base, OutcomeReason::TaskTimeout, context),
        Some(_) | None => Ok(Decision::Unchanged),
    }
}

/// The server ends the task.
pub(super) fn end(base: &Aggregate, reason: OutcomeReason, context: &mut Context<'_>) -> Result<Decision, Refusal> {
    let mut draft = Draft::of(base, context);
    draft.close(Ending::because(reason), None, None)?;
    Ok(draft.finish())
}
