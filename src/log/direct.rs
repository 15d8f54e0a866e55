//! No stream at all: the publisher writes to the log store itself. For installations of one process, or without Kafka.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::Instant;

use super::patience::{Backoff, append_to_the_end};
use super::{Batch, LogStore, LogStoreError, Pace, Published, Refused, Stream, StreamError};

/// How long to wait after the first failure.
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
/// The longest wait between two tries.
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// The stream that is none.
pub struct DirectStream {
    store: Arc<dyn LogStore>,
    timeout: Duration,
    rows: usize,
    linger: Duration,
}

impl DirectStream {
    /// Writes to `store` batches of at most `rows` that were gathered for `linger`, and gives a batch up after
    /// `timeout`.
    pub fn new(store: Arc<dyn LogStore>, timeout: Duration, rows: usize, linger: Duration) -> Self {
        Self { store, timeout, rows, linger }
    }

    async fn hand_over(&self, batch: Batch) -> Published {
        let rows = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        match self.append(batch).await {
            Ok(refused) => {
                let fault = refused.first().map(|(_, reason)| reason.shown.clone());
                for (row, reason) in &refused {
                    tell(row, &reason.shown);
                }
                let refused = u64::try_from(refused.len()).unwrap_or(u64::MAX);
                Published { delivered: rows.saturating_sub(refused), failed: refused, refused, fault }
            }
            Err(fault) => Published { delivered: 0, failed: rows, refused: 0, fault: Some(fault.to_string()) },
        }
    }

    /// Tries until the time is up.
    async fn append(&self, batch: Batch) -> Result<Refused, LogStoreError> {
        let deadline = Instant::now() + self.timeout;
        let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MAX);
        loop {
            let appended = tokio::time::timeout_at(deadline, append_to_the_end(&self.store, batch.clone())).await;
            let fault = match appended {
                Ok(Ok(refused)) => return Ok(refused),
                Ok(Err(fault)) => fault,
                Err(_) => return Err(LogStoreError::Unavailable("no answer in time".to_owned())),
            };
            let next = Instant::now() + backoff.next();
            if next >= deadline {
                return Err(fault);
            }
            tracing::debug!(store = self.store.name(), %fault, "rows wait for the log store");
            tokio::time::sleep_until(next).await;
        }
    }
}

/// Says what was refused; never what is in it.
fn tell(row: &Batch, reason: &str) {
    for event in &row.events {
        tracing::error!(task = %event.task_id, seq = event.seq, reason, "the log store refuses an event");
    }
    for usage in &row.usage {
        tracing::error!(task = %usage.task_id, seq = usage.seq, reason, "the log store refuses a usage row");
    }
}

impl Stream for DirectStream {
    fn name(&self) -> &'static str {
        "direct"
    }

    /// There is nothing to prepare.
    fn prepare(&self) -> BoxFuture<'_, Result<(), StreamError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn lands(&self) -> bool {
        true
    }

    fn pace(&self) -> Pace {
        Pace { in_flight: 1, linger: self.linger, rows: self.rows }
    }

    fn publish(&self, batch: Batch) -> BoxFuture<'_, Published> {
        Box::pin(self.hand_over(batch))
    }
}
