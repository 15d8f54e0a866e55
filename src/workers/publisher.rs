//! Hands over what this process has committed.

use std::sync::Arc;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::domain::time::Timestamp;
use crate::log::{Published, Stream};
use crate::service::outbox::{DRAIN_MAX, Gathered, Inbox, Share};
use crate::service::{Clock, LogCounters};

/// The publisher. One a process: it takes what this process commits.
pub struct Publisher {
    inbox: Arc<Inbox>,
    stream: Arc<dyn Stream>,
    counters: LogCounters,
    clock: Clock,
}

impl Publisher {
    /// Takes from `inbox` and gives to `stream`.
    pub fn new(inbox: Inbox, stream: Arc<dyn Stream>, counters: LogCounters, clock: Clock) -> Self {
        Self { inbox: Arc::new(inbox), stream, counters, clock }
    }

    /// Hands batches over, several at once if the stream wants that, until `stop`; then what still waits, for a bounded
    /// time. What is left is the sweep's.
    pub async fn run(self, stop: CancellationToken) {
        let pace = self.stream.pace();
        let mut under_way = JoinSet::new();
        loop {
            let room = under_way.len() < pace.in_flight;
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(done) = under_way.join_next(), if !under_way.is_empty() => self.note(done),
                batch = self.inbox.gather(pace), if room => match batch {
                    Some(gathered) => self.hand_over(gathered, &mut under_way),
                    None => break,
                },
            }
        }
        let drained = tokio::time::timeout(DRAIN_MAX, async {
            while let Some(gathered) = self.inbox.take(pace).await {
                self.hand_over(gathered, &mut under_way);
                if under_way.len() >= pace.in_flight
                    && let Some(done) = under_way.join_next().await
                {
                    self.note(done);
                }
            }
            while let Some(done) = under_way.join_next().await {
                self.note(done);
            }
        });
        if drained.await.is_err() {
            tracing::warn!("the stream did not take everything in time; the sweep sends the rest");
        }
    }

    fn hand_over(&self, gathered: Gathered, under_way: &mut JoinSet<Handed>) {
        let stream = Arc::clone(&self.stream);
        let (batch, share) = gathered.into_parts();
        // Only where the stream writes to the store itself is what it acknowledges in the store already.
        let recorded = if stream.lands() {
            let events = batch.events.iter().map(|row| row.recorded_at);
            events.chain(batch.usage.iter().map(|row| row.recorded_at)).collect()
        } else {
            Vec::new()
        };
        let (inbox, counters) = (Arc::clone(&self.inbox), self.counters.clone());
        let held = Held { inbox, counters, share, rows: batch.len() as u64 };
        under_way.spawn(async move { Handed { recorded, held, published: stream.publish(batch).await } });
    }

    fn note(&self, done: Result<Handed, tokio::task::JoinError>) {
        let Ok(Handed { recorded, held, published }) = done else {
            tracing::error!("handing over ended without an answer; the sweep sends it again");
            return;
        };
        held.answered();
        let Published { delivered, failed, refused, fault } = published;
        self.counters.published.inc_by(delivered);
        self.counters.unpublished.inc_by(failed);
        self.counters.refused.inc_by(refused);
        // Which rows of a batch were refused is not told; then none of it tells the lag.
        if failed == 0 {
            self.counters.landed(recorded, self.clock.now());
        }
        if let Some(fault) = fault {
            tracing::warn!(
                delivered,
                failed,
                refused,
                fault,
                "not everything was handed over; the sweep sends it again"
            );
        }
    }
}

/// A batch that was handed over.
struct Handed {
    /// When its rows were recorded, if they are in the store once acknowledged.
    recorded: Vec<Timestamp>,
    held: Held,
    published: Published,
}

/// What a batch takes of the outbox's limits, given back when this is dropped: publishing may end by a panic too, and
/// then none of its rows counts as handed over.
struct Held {
    inbox: Arc<Inbox>,
    counters: LogCounters,
    share: Share,
    /// Of which nobody has said what became of them.
    rows: u64,
}

impl Held {
    fn answered(mut self) {
        self.rows = 0;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.inbox.settle(self.share);
        self.counters.unpublished.inc_by(self.rows);
    }
}
