//! What all clients of a cluster share: where their words go, and how they end.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::{Statistics, TopicPartitionList};

/// A cluster that is away makes the library complain about every broker several times a second.
const LOUD_EVERY: Duration = Duration::from_secs(30);

/// The ear of a client: what the library says goes into the log, at most one loud line in [`LOUD_EVERY`].
#[derive(Debug, Default)]
pub(in crate::log) struct Ear {
    loud: Mutex<Option<Instant>>,
}

impl Ear {
    /// Whether something may be said loudly now.
    pub(in crate::log) fn loud(&self) -> bool {
        let mut last = self.loud.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|at| at.elapsed() < LOUD_EVERY) {
            return false;
        }
        *last = Some(Instant::now());
        true
    }
}

impl ClientContext for Ear {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        let grave = matches!(
            level,
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical | RDKafkaLogLevel::Error
        );
        if grave && self.loud() {
            tracing::warn!(facility, message, "kafka client");
        } else {
            tracing::debug!(facility, message, ?level, "kafka client");
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if self.loud() {
            tracing::warn!(%error, reason, "kafka client");
        } else {
            tracing::debug!(%error, reason, "kafka client");
        }
    }

    /// Nobody asks for them, and a property of the address might turn them on.
    fn stats(&self, _statistics: Statistics) {}

    fn stats_raw(&self, _statistics: &[u8]) {}
}

impl ConsumerContext for Ear {
    fn post_rebalance(&self, _consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let (change, partitions) = match rebalance {
            Rebalance::Assign(partitions) => ("assigned", partitions.count()),
            Rebalance::Revoke(partitions) => ("revoked", partitions.count()),
            Rebalance::Error(error) => {
                tracing::warn!(%error, "the sink's share of the partitions could not be changed");
                return;
            }
        };
        tracing::debug!(change, partitions, "the sink's share of the partitions changes");
    }

    fn commit_callback(&self, _result: KafkaResult<()>, _offsets: &TopicPartitionList) {}
}

/// A client that ends on a thread of its own: the library waits for its own threads then, for up to a second and more,
/// and the runtime's must not.
#[derive(Debug)]
pub(in crate::log) struct Client<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> Client<T> {
    pub(in crate::log) fn new(client: T) -> Self {
        Self(Some(client))
    }

    /// The client; there is one until this is dropped.
    pub(in crate::log) fn get(&self) -> Option<&T> {
        self.0.as_ref()
    }

    /// Ends it, and answers when it has ended.
    pub(in crate::log) async fn end(mut self) {
        if let Some(client) = self.0.take() {
            // It fails only when the runtime ends, and then so does the client.
            let _ = tokio::task::spawn_blocking(move || drop(client)).await;
        }
    }
}

impl<T: Send + 'static> Drop for Client<T> {
    fn drop(&mut self) {
        if let Some(client) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            drop(runtime.spawn_blocking(move || drop(client)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_line_of_many_is_loud() {
        let ear = Ear::default();
        assert_eq!((0..100).filter(|_| ear.loud()).count(), 1);
    }
}
