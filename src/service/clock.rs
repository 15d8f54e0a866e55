//! Time and randomness, as parameters. Nothing else in the crate asks the system for either.

use std::sync::Arc;

use uuid::Uuid;

use crate::domain::time::Timestamp;

/// A clock and a source of ids.
#[derive(Clone)]
pub struct Clock {
    now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

impl Clock {
    /// The system's clock.
    #[allow(clippy::disallowed_methods, reason = "this is the one place that asks the system for the time")]
    pub fn system() -> Self {
        Self { now: Arc::new(|| time::OffsetDateTime::now_utc().into()) }
    }

    /// A clock that a test sets.
    pub fn fixed(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self { now: Arc::new(now) }
    }

    /// Now.
    pub fn now(&self) -> Timestamp {
        (self.now)()
    }

    /// A fresh id that sorts by the time of its making, which keeps the indexes compact.
    #[allow(clippy::disallowed_methods, reason = "this is the one place that makes ids")]
    pub fn new_id() -> Uuid {
        Uuid::now_v7()
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}
