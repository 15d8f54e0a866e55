//! Delegation: a task gives work, and a part of its budget, to children.
//!
//! What a child may spend is set aside from its parent when it is created, and settled when it closes, so that no report
//! of a child looks at another task. What a task's change means for the tasks above it is an [`Ascent`]: it is taken
//! ancestor by ancestor, because each may close and so have news for the next.

use super::Life;
use crate::domain::aggregate::Aggregate;
use crate::domain::change::{Change, Context, Decision, Draft};
use crate::domain::ids::{SessionId, ShortId, TaskId};
use crate::domain::money::Money;
use crate::domain::outcome::{Ending, OutcomeReason};
use crate::domain::payload::{Child, Payload, TaskCreated};
use crate::domain::refusal::{Checked, Refusal};
use crate::domain::task::{Origin, Task};

/// The creation of a child: a change of each of the two tasks, written together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delegation {
    /// The task that delegates: `child.created`.
    pub parent: Box<Change>,
    /// The new task.
    pub child: Box<Change>,
}

/// Refuses a parent that may not delegate now, before the body of the child is looked at. Answers the session that the
/// call names.
pub fn may_delegate(parent: &Aggregate, session: Checked<Option<SessionId>>) -> Result<Option<SessionId>, Refusal> {
    match parent.life() {
        Life::Archived => return Err(Refusal::TaskArchived),
        Life::Closed => return Err(parent.closed()),
        Life::Cancelling => return Err(Refusal::TaskCancelled),
        Life::Open => {}
    }
    let session = parent.named_session(session, false)?;
    let pinned = parent.task().pinned();
    if pinned.depth >= pinned.max_depth {
        return Err(Refusal::DepthLimit(pinned.max_depth));
    }
    if parent.task().facts().open_children >= pinned.max_children {
        return Err(Refusal::ChildrenLimit(pinned.max_children));
    }
    Ok(session)
}

/// Decides the creation of a child. `created.budget` is what the caller asked for, or the default of the child's agent;
/// `asked` tells which: what was asked for is never lowered silently.
pub fn delegate(
    parent: &Aggregate,
    session: Checked<Option<SessionId>>,
    task_id: TaskId,
    short_id: ShortId,
    mut created: TaskCreated,
    asked: bool,
    context: &mut Context<'_>,
) -> Result<Delegation, Refusal> {
    let session = may_delegate(parent, session)?;
    let task = parent.task();
    let pinned = task.pinned();
    created.budget = match (created.budget, task.budget_remaining()) {
        (budget, None) => budget,
        (_, Some(left)) if left <= Money::ZERO => return Err(Refusal::BudgetExhausted(left)),
        (Some(budget), Some(left)) if asked && budget > left => return Err(Refusal::BudgetExhausted(left)),
        (Some(budget), Some(left)) => Some(budget.min(left)),
        (None, Some(left)) => Some(left),
    };
    created.depth = pinned.depth + 1;
    created.owner = task.facts().owner.clone();
    created.origin = Origin::Task {
        parent_task_id: pinned.id,
        parent_short_id: pinned.short_id.to_string(),
        agent_id: pinned.agent_id,
    };
    let child = Draft::create(pinned.organization_id, task_id, short_id, created, context)?.finish();
    let Decision::Change(child) = child else { return Err(Refusal::invalid("", "creates nothing")) };
    let mut draft = Draft::of(parent, context);
    let told = told(child.next().task(), reserved(child.next().task()));
    draft.write(&Payload::ChildCreated(Box::new(told)), session)?;
    super::sign_of_life(&mut draft, session);
    let Decision::Change(parent) = draft.finish() else { return Err(Refusal::invalid("", "creates nothing")) };
    Ok(Delegation { parent, child })
}

/// What a task's parent holds for it while it is open.
fn reserved(task: &Task) -> Money {
    task.pinned().budget.unwrap_or(Money::ZERO)
}

fn told(child: &Task, set_aside_delta: Money) -> Child {
    let pinned = child.pinned();
    Child {
        child_task_id: pinned.id,
        child_short_id: pinned.short_id.to_string(),
        agent_id: pinned.agent_id,
        set_aside_delta,
        outcome: child.outcome(),
        outcome_reason: child.outcome_reason(),
        cost_total: child.facts().cost_total,
    }
}

fn parent_of(task: &Task) -> Option<TaskId> {
    match &task.pinned().origin {
        Origin::Task { parent_task_id, .. } => Some(*parent_task_id),
        Origin::Human { .. } | Origin::Schedule { .. } | Origin::Webhook { .. } => None,
    }
}

/// News for the tasks above.
#[derive(Debug, Clone)]
enum News {
    /// A task closed: for its parent, be that open or not.
    Closed(Child),
    /// More was spent below than is held for it, or less: for the nearest open ancestor.
    Adjusted(Child),
}

/// What the change of a task means for the tasks above it. Take each [`next`](Self::next) one in turn, then write all
/// [`changes`](Self::changes) together with the one that began it.
#[derive(Debug)]
pub struct Ascent {
    rising: Option<(TaskId, News)>,
    changes: Vec<Change>,
}

impl Ascent {
    /// The news of `change`, which was decided on `base`; nothing rises from a root, nor from what a parent need not know.
    pub fn of(base: &Aggregate, change: &Change) -> Result<Self, Refusal> {
        let (before, after) = (base.task(), change.next().task());
        Ok(Self { rising: news(before, after)?, changes: Vec::new() })
    }

    /// The ancestor that is to be looked at next.
    pub fn next(&self) -> Option<TaskId> {
        self.rising.as_ref().map(|(ancestor, _)| *ancestor)
    }

    /// Takes the news to `ancestor`, which must be [`next`](Self::next).
    pub fn take(&mut self, ancestor: &Aggregate, context: &mut Context<'_>) -> Result<(), Refusal> {
        let Some((_, news)) = self.rising.take() else { return Ok(()) };
        let open = match ancestor.life() {
            Life::Open | Life::Cancelling => true,
            Life::Closed => false,
            // A task is archived after its children.
            Life::Archived => return Err(Refusal::TaskArchived),
        };
        let payload = match (news, open) {
            (News::Closed(child), true) => Payload::ChildClosed(Box::new(child)),
            (News::Closed(child), false) => {
                // What is returned to a closed task stops there; what was spent beyond it does not.
                if child.set_aside_delta > Money::ZERO {
                    self.rising = parent_of(ancestor.task()).map(|id| (id, News::Adjusted(child.clone())));
                }
                Payload::ChildClosed(Box::new(child))
            }
            (News::Adjusted(child), true) => Payload::ChildAdjusted(Box::new(child)),
            (news @ News::Adjusted(_), false) => {
                self.rising = parent_of(ancestor.task()).map(|id| (id, news));
                return Ok(());
            }
        };
        let mut draft = Draft::of(ancestor, context);
        draft.write(&payload, None)?;
        if open && draft.next().task().budget_remaining().is_some_and(Money::is_negative) {
            draft.close(Ending::because(OutcomeReason::Budget), None, None)?;
        }
        if let Decision::Change(change) = draft.finish() {
            if open {
                self.rising = self::news(ancestor.task(), change.next().task())?;
            }
            self.changes.push(*change);
        }
        Ok(())
    }

    /// The changes of ancestors, nearest first.
    pub fn changes(self) -> Vec<Change> {
        self.changes
    }
}

/// What the tasks above need to know of a task that was `before` and is `after`.
fn news(before: &Task, after: &Task) -> Result<Option<(TaskId, News)>, Refusal> {
    let Some(parent) = parent_of(after) else { return Ok(None) };
    let inexact = |_| Refusal::invalid("", "the totals of the tasks above could no longer be kept exactly");
    let used = |task: &Task| task.facts().cost_total.checked_add(task.facts().set_aside).map_err(inexact);
    let news = match (before.facts().ending, after.facts().ending) {
        (None, Some(_)) => {
            let delta = used(after)?.checked_sub(reserved(after)).map_err(inexact)?;
            Some(News::Closed(told(after, delta)))
        }
        (Some(_), _) => {
            let spent = after.facts().cost_total.checked_sub(before.facts().cost_total).map_err(inexact)?;
            (spent != Money::ZERO).then(|| News::Adjusted(told(after, spent)))
        }
        (None, None) => None,
    };
    Ok(news.map(|news| (parent, news)))
}
