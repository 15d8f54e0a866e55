//! Workers. Each is one idempotent step without input that a test can call; the loop is shared.

mod artifacts;
mod expiry;
mod lookout;
mod publisher;
mod sink;
mod sweep;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use artifacts::ArtifactRemover;
pub use expiry::Expiry;
pub use lookout::Lookout;
pub use publisher::Publisher;
pub use sink::run_sink;
pub use sweep::Sweeper;

/// One idempotent step.
pub trait Worker: Send + Sync + 'static {
    /// The worker's name in the log.
    const NAME: &'static str;

    /// Does what is to be done now. Answers whether there may be more to do at once.
    fn step(&self) -> impl Future<Output = bool> + Send;
}

/// The pause after a step that took so long: a tick goes from beginning to beginning, so that it is no longer than it
/// says, and a step that takes most of it is followed by half of one still.
fn pause(every: Duration, took: Duration) -> Duration {
    every.saturating_sub(took).max(every / 2)
}

/// Steps at every tick until `stop`; a step that is under way ends first. A step that says that there is more is
/// followed by the next one at once.
pub async fn run<W: Worker>(worker: Arc<W>, every: Duration, stop: CancellationToken) {
    tracing::debug!(worker = W::NAME, "the worker starts");
    while !stop.is_cancelled() {
        let (own, begun) = (Arc::clone(&worker), Instant::now());
        // In a task of its own, so that a step that panics ends itself and not the worker.
        match tokio::spawn(async move { own.step().await }).await {
            Ok(true) => continue,
            Ok(false) => {}
            Err(fault) => {
                tracing::error!(worker = W::NAME, %fault, "a step ended without an answer; the worker goes on");
            }
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause(every, begun.elapsed())) => {}
        }
    }
    tracing::debug!(worker = W::NAME, "the worker ends");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_goes_from_beginning_to_beginning_and_leaves_half_of_it_free() {
        for (took, left) in [(0, 100), (30, 70), (50, 50), (80, 50), (300, 50)] {
            let pause = pause(Duration::from_millis(100), Duration::from_millis(took));
            assert_eq!(pause, Duration::from_millis(left), "after {took} ms");
        }
    }
}
