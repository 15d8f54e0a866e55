//! What the use cases count.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use crate::domain::time::Timestamp;

/// Counters of the write path.
#[derive(Debug, Clone, Default)]
pub struct Counters {
    /// Changes that were committed.
    pub commits: Counter,
    /// Events that were committed.
    pub events: Counter,
    /// Commits that found that somebody else was first.
    pub conflicts: Counter,
    /// The way to the permanent log.
    pub log: LogCounters,
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

/// Counters of the way to the permanent log.
#[derive(Debug, Clone)]
pub struct LogCounters {
    /// Rows that the stream acknowledged.
    pub published: Counter,
    /// Rows that were not handed over, or not acknowledged: the sweep sends them again.
    pub unpublished: Counter,
    /// Rows that the log store refuses: they were set apart.
    pub refused: Counter,
    /// Rows that were put into the log store.
    pub stored: Counter,
    /// From the commit until the log store has acknowledged, in seconds.
    pub lag: Histogram,
    /// Rows that the sweep sent again.
    pub republished: Counter,
    /// Logs that were archived.
    pub archived: Counter,
    /// Verifications that found the log store to contradict a log.
    pub mismatched: Counter,
    /// Rounds of the sweep that came to their end.
    pub rounds: Counter,
    /// Rounds of the sweep that did not.
    pub failed_rounds: Counter,
}

impl Default for LogCounters {
    fn default() -> Self {
        Self {
            published: Counter::default(),
            unpublished: Counter::default(),
            refused: Counter::default(),
            stored: Counter::default(),
            // From a millisecond to a little over two hours.
            lag: Histogram::new(exponential_buckets(0.001, 2.0, 24)),
            republished: Counter::default(),
            archived: Counter::default(),
            mismatched: Counter::default(),
            rounds: Counter::default(),
            failed_rounds: Counter::default(),
        }
    }
}

impl LogCounters {
    /// Counts rows, recorded at these instants, that the log store has acknowledged at `now`.
    pub fn landed(&self, recorded: impl IntoIterator<Item = Timestamp>, now: Timestamp) {
        for at in recorded {
            self.stored.inc();
            let micros = now.micros().saturating_sub(at.micros()).max(0);
            #[allow(clippy::cast_precision_loss, reason = "a lag in seconds needs no more than a double holds")]
            self.lag.observe(micros as f64 / 1_000_000.0);
        }
    }
}
