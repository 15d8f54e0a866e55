//! What the use cases count.

use prometheus_client::metrics::counter::Counter;

/// Counters of the write path.
#[derive(Debug, Clone, Default)]
pub struct Counters {
    /// Changes that were committed.
    pub commits: Counter,
    /// Events that were committed.
    pub events: Counter,
    /// Commits that found that somebody else was first.
    pub conflicts: Counter,
}

impl Counters {
    pub(super) fn committed(&self, events: usize) {
        self.commits.inc();
        self.events.inc_by(events as u64);
    }

    pub(super) fn conflict(&self) {
        self.conflicts.inc();
    }
}
