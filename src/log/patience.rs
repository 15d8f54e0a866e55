//! Trying again, and appends that are not broken off.

use std::sync::Arc;
use std::time::Duration;

use super::{Batch, LogStore, LogStoreError, Refused, append_or_set_apart};

/// How long to wait before another try: after each failure twice as long as before.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    pub(super) fn new(first: Duration, longest: Duration) -> Self {
        Self { next: first, longest }
    }

    pub(super) fn next(&mut self) -> Duration {
        let now = self.next;
        self.next = (2 * now).min(self.longest);
        now
    }
}

/// Appends as [`append_or_set_apart`] does, in a task that goes on to its end when nobody waits for it any more. Broken
/// off in the middle, a driver may leave a pooled connection in a transaction; and to append a row late does no harm.
pub(super) async fn append_to_the_end(store: &Arc<dyn LogStore>, batch: Batch) -> Result<Refused, LogStoreError> {
    let store = Arc::clone(store);
    let appending = tokio::spawn(async move { append_or_set_apart(&*store, batch).await });
    appending.await.unwrap_or_else(|error| Err(LogStoreError::Unavailable(format!("the append ended: {error}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wait_is_twice_the_last_up_to_the_longest() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(500));
        let waits: Vec<_> = (0..5).map(|_| backoff.next().as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 500, 500]);
    }
}
