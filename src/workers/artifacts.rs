//! Removes artifacts that no log refers to, and what uploads that came to nothing left.

use std::sync::Arc;
use std::time::Duration;

use super::Worker;
use crate::service::Service;
use crate::service::artifacts::ArtifactsSwept;

/// How many artifacts one step removes at most.
const BATCH: u32 = 100;

/// The remover. Any number of processes may run one side by side.
pub struct ArtifactRemover {
    service: Arc<Service>,
    grace: Duration,
}

impl ArtifactRemover {
    /// Removes what nobody sent for `grace` and no log refers to.
    pub fn new(service: Arc<Service>, grace: Duration) -> Self {
        Self { service, grace }
    }
}

impl Worker for ArtifactRemover {
    const NAME: &'static str = "artifacts";

    async fn step(&self) -> bool {
        match self.service.sweep_artifacts(self.grace, BATCH).await {
            Ok(ArtifactsSwept { removed, cleared, failed, more }) => {
                if removed + cleared + failed > 0 {
                    tracing::info!(removed, cleared, failed, "removed artifacts that nobody refers to");
                }
                more && failed == 0
            }
            Err(error) => {
                tracing::warn!(
                    ?error,
                    "artifacts that nobody refers to could not be removed; the next tick tries again"
                );
                false
            }
        }
    }
}
