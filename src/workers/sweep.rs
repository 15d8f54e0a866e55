//! Verifies the log store, sends again what it lacks, archives.

use std::sync::Arc;

use super::Worker;
use crate::service::sweep::{Sweep, Swept};

/// The sweep's worker. Any number of processes may run one: a lease lets one at a time.
pub struct Sweeper(Arc<Sweep>);

impl Sweeper {
    /// Runs the rounds of `sweep`.
    pub fn new(sweep: Arc<Sweep>) -> Self {
        Self(sweep)
    }
}

impl Worker for Sweeper {
    const NAME: &'static str = "sweep";

    async fn step(&self) -> bool {
        match self.0.round().await {
            Ok(Swept { compared, whole, republished, unpublished, archived, mismatched, failed, more, .. }) => {
                if republished + unpublished + archived + mismatched + failed > 0 {
                    tracing::info!(compared, whole, republished, unpublished, archived, mismatched, failed, "swept");
                }
                more
            }
            Err(error) => {
                tracing::warn!(%error, "the sweep's round came to no end; the next one tries again");
                false
            }
        }
    }
}
