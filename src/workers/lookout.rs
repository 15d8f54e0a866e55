//! Wakes the reads that wait for what other processes write.

use std::sync::Arc;

use super::Worker;
use crate::service::Service;

/// The lookout. Every process that answers the API runs its own, for its own readers.
pub struct Lookout(Arc<Service>);

impl Lookout {
    /// Looks for those who wait at `service`.
    pub fn new(service: Arc<Service>) -> Self {
        Self(service)
    }
}

impl Worker for Lookout {
    const NAME: &'static str = "lookout";

    async fn step(&self) -> bool {
        if let Err(error) = self.0.look_for_news().await {
            tracing::warn!(?error, "what others wrote could not be looked for; the next tick tries again");
        }
        false
    }
}
