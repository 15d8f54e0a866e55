//! Changes that the tasks above must know of: decided and written together with theirs.

use std::collections::BTreeSet;

use tokio::sync::OwnedMutexGuard;

use super::{ATTEMPTS_MAX, Done, Failed, Order, Service, ServiceError};
use crate::domain::aggregate::Aggregate;
use crate::domain::change::{Change, Decision};
use crate::domain::command::Command;
use crate::domain::decide::Ascent;
use crate::domain::ids::{OrganizationId, TaskId};
use crate::domain::refusal::Refusal;
use crate::store::{CommitError, Want};

/// The queues of several tasks, held.
pub(super) type Held = Vec<OwnedMutexGuard<Option<Aggregate>>>;

impl Service {
    /// Takes the queues of several tasks, in the order in which everybody takes several, and drops what they keep: it is
    /// old once something was written.
    pub(super) async fn hold(&self, organization: OrganizationId, tasks: &BTreeSet<TaskId>) -> Held {
        let mut held = Vec::with_capacity(tasks.len());
        for task in tasks {
            let queue = self.queues.get_with((organization, *task), async { super::Queue::default() }).await;
            let mut slot = queue.lock_owned().await;
            *slot = None;
            held.push(slot);
        }
        held
    }

    /// As [`carry_out`](Self::carry_out), for a command that changes what tasks above hold for this one. Which of them
    /// are written is known once it is decided, so it is decided again when their queues are held.
    pub(super) async fn carry_up(&self, order: &Order<'_>, command: &Command) -> Result<Done, Failed> {
        let mut family = BTreeSet::from([order.task]);
        for _ in 0..ATTEMPTS_MAX {
            let held = self.hold(order.organization, &family).await;
            let aggregate = self.load(order).await.map_err(Failed::Error)?;
            let completed = self.complete(order, command).await.map_err(Failed::Error)?;
            let decided = self.decide(order, &aggregate, completed);
            // A refusal may be of two moments of the task.
            if !matches!(decided, Ok(Decision::Change(_)))
                && !self.stands(order, &aggregate).await.map_err(Failed::Error)?
            {
                continue;
            }
            let change = match decided.map_err(refused)? {
                Decision::Change(change) => change,
                Decision::Unchanged => return Ok(Done::Unchanged(Box::new(aggregate))),
            };
            let above = self.ascend(order, &aggregate, &change).await.map_err(Failed::Error)?;
            let known = family.len();
            family.extend(above.iter().map(|change| change.next().task().id()));
            if family.len() > known {
                continue;
            }
            match self.store.commit_family(&change, &above, order.account).await {
                Ok(()) => {
                    drop(held);
                    self.committed(&change, order.account);
                    for ancestor in &above {
                        self.committed(ancestor, None);
                    }
                    return Ok(Done::Changed(change.into()));
                }
                Err(CommitError::Conflict) => self.counters.conflict(),
                Err(other) => return self.refused_by_guard(other, &change, aggregate),
            }
        }
        Err(Failed::Error(ServiceError::Unavailable("the tasks change too fast".to_owned())))
    }

    /// What a change means for the tasks above.
    async fn ascend(&self, order: &Order<'_>, base: &Aggregate, change: &Change) -> Result<Vec<Change>, ServiceError> {
        let mut ascent = Ascent::of(base, change)?;
        while let Some(id) = ascent.next() {
            let ancestor = self.store.load(order.organization, id, &Want::default()).await?;
            let ancestor = ancestor.ok_or_else(|| ServiceError::Internal(format!("task {id} is not there")))?;
            self.with_context(order, |context| ascent.take(&ancestor, context))?;
        }
        Ok(ascent.changes())
    }
}

fn refused(refusal: Refusal) -> Failed {
    Failed::Error(refusal.into())
}
