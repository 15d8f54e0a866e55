//! What a round has done so far, and when it is enough.

use std::collections::HashSet;
use std::time::Duration;

use super::{SweepError, Swept};
use crate::domain::ids::{OrganizationId, TaskId};
use crate::store::SweptTask;

/// A task's key.
pub(super) type Key = (OrganizationId, TaskId);

/// How long a round waits in all for a stream that takes nothing: each batch would wait as long again.
const IN_VAIN_MAX: Duration = Duration::from_secs(5);
/// At so many tasks a round may fail before it ends: then it is hardly the tasks.
pub(super) const FAILURES_MAX: u64 = 20;

/// A round under way.
pub(super) struct Round {
    /// What it did.
    pub swept: Swept,
    /// Tasks that were judged: one that is on both lists is judged once a round.
    pub contradicted: HashSet<Key>,
    /// Tasks of which nothing could be sent.
    pub unsent: HashSet<Key>,
    /// Tasks of which the last round could send nothing. They come after the others, which is in the next round.
    pub waiting: HashSet<Key>,
    /// Tasks at which it failed.
    pub failed: HashSet<Key>,
    /// Tasks at which rounds before it failed that did not come to the end of the lists. They come after the others.
    pub aside: HashSet<Key>,
    /// How long it waited for a stream that took nothing.
    pub in_vain: Duration,
}

impl Round {
    pub fn new(waiting: HashSet<Key>, aside: HashSet<Key>) -> Self {
        Self {
            swept: Swept::default(),
            contradicted: HashSet::new(),
            unsent: HashSet::new(),
            waiting,
            failed: HashSet::new(),
            aside,
            in_vain: Duration::ZERO,
        }
    }

    /// Whether nothing more is sent in this round.
    pub fn is_in_vain(&self) -> bool {
        self.in_vain >= IN_VAIN_MAX
    }

    /// Whether a task is not looked at again, or not at all, in this round.
    pub fn passes_over(&self, task: &SweptTask) -> bool {
        [&self.contradicted, &self.failed, &self.aside].iter().any(|tasks| tasks.contains(&task.key()))
    }

    /// Notes that the round failed at one task. It goes on with the others, unless too many fail.
    pub fn fail(&mut self, task: &SweptTask, error: SweepError) -> Result<(), SweepError> {
        self.swept.failed += 1;
        let (organization, id) = task.key();
        self.failed.insert(task.key());
        tracing::warn!(%organization, task = %id, %error, "the sweep failed at this task; another round tries again");
        if self.swept.failed > FAILURES_MAX { Err(error) } else { Ok(()) }
    }
}
