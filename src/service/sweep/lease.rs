//! The lease under which one process sweeps, and its renewal while a round lasts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::SweepError;
use crate::store::Store;

/// The name of the lease.
pub(super) const LEASE: &str = "sweep";
/// How often in its time the lease is renewed.
const RENEWALS: u32 = 3;

/// Renews the lease until `done`. When another process has taken it, `taken` says so; a round looks there between any two
/// batches.
pub(super) async fn keep_lease(
    store: Store,
    holder: Uuid,
    ttl: Duration,
    done: CancellationToken,
    taken: Arc<AtomicBool>,
) {
    loop {
        tokio::select! {
            () = done.cancelled() => return,
            () = tokio::time::sleep(ttl / RENEWALS) => {}
        }
        match store.hold_worker_lease(LEASE, holder, ttl).await {
            Ok(true) => {}
            Ok(false) => taken.store(true, Ordering::Release),
            // Postgres may be back before the lease is over.
            Err(error) => tracing::warn!(%error, "the lease of the sweep could not be renewed"),
        }
    }
}

/// Ends a round whose lease another process has taken.
pub(super) fn check_lease(taken: &AtomicBool) -> Result<(), SweepError> {
    if taken.load(Ordering::Acquire) { Err(SweepError::LeaseLost) } else { Ok(()) }
}
