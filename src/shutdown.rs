//! Shutdown: soft, then hard, and someone waits for every task.
//!
//! The first SIGTERM or SIGINT cancels the soft token: servers stop accepting, workers finish their step. When the
//! grace is over the hard token is cancelled: whoever is left drops what it does. A second signal ends the process at
//! once; what was acknowledged is in the database by then, so nothing is lost, only cut off.

use std::io;
use std::process;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long tasks may take to notice the hard token.
const HARD_GRACE: Duration = Duration::from_millis(500);

/// How a shutdown went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Every task ended within the grace.
    Drained,
    /// The grace was over first.
    GraceOver {
        /// How many tasks were then still running.
        left: usize,
    },
}

/// The process's way to its end. Clones are the same shutdown.
#[derive(Debug, Clone)]
pub struct Shutdown {
    soft: CancellationToken,
    hard: CancellationToken,
    tasks: TaskTracker,
    grace: Duration,
}

impl Shutdown {
    /// One that only [`begin`](Self::begin) starts. `grace` is how long tasks may go on after that.
    pub fn new(grace: Duration) -> Self {
        Self { soft: CancellationToken::new(), hard: CancellationToken::new(), tasks: TaskTracker::new(), grace }
    }

    /// One that SIGTERM and SIGINT start too. From here on a signal no longer kills the process by itself: the first
    /// begins the shutdown; one that comes after it has begun exits at once, with 143 or 130.
    ///
    /// # Errors
    /// When the system refuses a signal handler.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn listen(grace: Duration) -> io::Result<Self> {
        let shutdown = Self::new(grace);
        for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
            tokio::spawn(shutdown.clone().watch(kind, signal(kind)?));
        }
        Ok(shutdown)
    }

    async fn watch(self, kind: SignalKind, mut signals: Signal) {
        while signals.recv().await.is_some() {
            let signal = kind.as_raw_value();
            if self.soft.is_cancelled() {
                tracing::warn!(signal, "second stop signal: ending at once");
                process::exit(128 + signal);
            }
            let grace_seconds = self.grace.as_secs_f32();
            tracing::info!(signal, grace_seconds, "stop signal: draining; a second one ends at once");
            self.soft.cancel();
        }
    }

    /// Cancelled when the shutdown begins: admit nothing new, finish what is under way.
    pub fn soft(&self) -> &CancellationToken {
        &self.soft
    }

    /// Cancelled when the grace is over: drop what is under way.
    pub fn hard(&self) -> &CancellationToken {
        &self.hard
    }

    /// The tasks that [`finish`](Self::finish) waits for; spawn them here.
    pub fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// Begins the shutdown; a second call changes nothing.
    pub fn begin(&self) {
        self.soft.cancel();
    }

    /// Waits for the shutdown to begin, then for every task to end, at most for the grace; then cancels the hard token
    /// and waits a moment more.
    pub async fn finish(&self) -> Ended {
        self.soft.cancelled().await;
        self.tasks.close();
        if tokio::time::timeout(self.grace, self.tasks.wait()).await.is_ok() {
            return Ended::Drained;
        }
        let left = self.tasks.len();
        self.hard.cancel();
        // Whether they made it in time changes nothing: the process ends now.
        let _ = tokio::time::timeout(HARD_GRACE, self.tasks.wait()).await;
        Ended::GraceOver { left }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[tokio::test]
    async fn waits_for_every_task_after_the_soft_token() {
        let shutdown = Shutdown::new(Duration::from_secs(30));
        let finished = Arc::new(AtomicBool::new(false));
        let (soft, done) = (shutdown.soft().clone(), Arc::clone(&finished));
        shutdown.tasks().spawn(async move {
            soft.cancelled().await;
            tokio::time::sleep(Duration::from_millis(20)).await;
            done.store(true, Ordering::SeqCst);
        });
        shutdown.begin();
        assert_eq!(shutdown.finish().await, Ended::Drained);
        assert!(finished.load(Ordering::SeqCst));
        assert!(!shutdown.hard().is_cancelled());
    }

    #[tokio::test]
    async fn tells_the_stubborn_when_the_grace_is_over() {
        let shutdown = Shutdown::new(Duration::from_millis(20));
        let hard = shutdown.hard().clone();
        let stubborn = shutdown.tasks().spawn(async move { hard.cancelled().await });
        shutdown.begin();
        assert_eq!(shutdown.finish().await, Ended::GraceOver { left: 1 });
        stubborn.await.unwrap();
    }
}
