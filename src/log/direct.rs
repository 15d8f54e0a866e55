//! No stream at all: the publisher writes to the log store itself.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::time::{Instant, sleep};

use super::{Batch, LogStore, LogStoreError, Pace, Published, Stream, StreamError, append_or_set_apart};

const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// The way straight into the log store.
pub struct DirectStream {
    store: Arc<dyn LogStore>,
    timeout: Duration,
    pace: Pace,
}

impl DirectStream {
    /// Writes to `store`, for at most `timeout` a batch.
    pub fn new(store: Arc<dyn LogStore>, timeout: Duration, rows: usize, linger: Duration) -> Self {
        Self { store, timeout, pace: Pace { in_flight: 1, linger, rows } }
    }
}

impl Stream for DirectStream {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn prepare(&self) -> BoxFuture<'_, Result<(), StreamError>> {
        async { Ok(()) }.boxed()
    }

    fn lands(&self) -> bool {
        true
    }

    fn pace(&self) -> Pace {
        self.pace
    }

    fn publish(&self, batch: Batch) -> BoxFuture<'_, Published> {
        async move {
            let rows = batch.len() as u64;
            let until = Instant::now() + self.timeout;
            let mut backoff = BACKOFF_FIRST;
            loop {
                match append_or_set_apart(self.store.as_ref(), batch.clone()).await {
                    Ok(refused) => {
                        let count = refused.len() as u64;
                        return Published { delivered: rows - count, failed: 0, refused: count, fault: None };
                    }
                    Err(LogStoreError::Unavailable(_)) if Instant::now() + backoff < until => {
                        sleep(backoff).await;
                        backoff = (backoff * 2).min(BACKOFF_MAX);
                    }
                    Err(fault) => {
                        return Published { failed: rows, fault: Some(fault.to_string()), ..Published::default() };
                    }
                }
            }
        }
        .boxed()
    }
}
