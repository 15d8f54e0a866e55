//! Closes what time closes: expired requests, lost sessions, task timeouts.

use std::sync::Arc;

use super::Worker;
use crate::service::Service;

/// The expiry worker. Any number of processes may run one side by side.
pub struct Expiry {
    service: Arc<Service>,
    batch: u32,
}

impl Expiry {
    /// Closes at most `batch` of each kind in one step.
    pub fn new(service: Arc<Service>, batch: u32) -> Self {
        Self { service, batch }
    }
}

impl Worker for Expiry {
    const NAME: &'static str = "expiry";

    async fn step(&self) -> bool {
        match self.service.close_what_is_due(i64::from(self.batch)).await {
            Ok(closed) => {
                let batch = u64::from(self.batch);
                if !closed.is_idle() {
                    tracing::info!(
                        expired = closed.expired,
                        lost = closed.lost,
                        timed_out = closed.timed_out,
                        failed = closed.failed,
                        "closed what was due"
                    );
                }
                // A full batch that went well means that more may wait; one that failed waits for the next tick.
                closed.failed == 0 && [closed.expired, closed.lost, closed.timed_out].iter().any(|n| *n >= batch)
            }
            Err(error) => {
                tracing::warn!(?error, "what is due could not be looked for; the next tick tries again");
                false
            }
        }
    }
}
