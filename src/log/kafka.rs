//! Kafka: the stream through which rows reach the sink of any process.
//!
//! One message a row, keyed by its task, in the topics `agent_task_events` and `agent_usage`. A row may be on it
//! several times: what was not acknowledged in time is sent again by the sweep, with the same `ce_id`.

mod address;
pub(super) mod client;
mod message;
pub(super) mod producer;
#[cfg(test)]
mod tests;
pub(super) mod topics;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::DeliveryFuture;
use tokio::task::coop::consume_budget;
use tokio::time::Instant;

pub use address::{KafkaAddress, KafkaAddressError};

use super::{Batch, Pace, Published, Stream, StreamError};
use crate::domain::limits::PAYLOAD_BYTES_MAX;
use crate::domain::redaction::POINTER_BYTES_MAX;
use message::Record;
use producer::{Producer, Sending, Sent};
use topics::Topics;

/// The most bytes of a message that the topics take which are made here.
pub const MESSAGE_BYTES_MAX: usize = 1024 * 1024;

/// What the largest row needs. As a JSON string a payload, itself JSON text, has at most a backslash before each
/// character; pointers may consist of control characters, which take six; the rest is names, ids and headers.
pub const ROW_BYTES_MAX: usize = 2 * PAYLOAD_BYTES_MAX + 6 * POINTER_BYTES_MAX + 64 * 1024;

/// How often topics that the cluster has lost may be made again.
const REMAKE_EVERY: Duration = Duration::from_secs(10);

/// How long the producer gathers messages for one request.
const LINGER: Duration = Duration::from_millis(5);

/// Where the stream is and how it is used.
#[derive(Debug, Clone)]
pub struct KafkaOptions {
    /// The cluster.
    pub address: KafkaAddress,
    /// What the names of the topics begin with.
    pub topic_prefix: String,
    /// Partitions of topics that are made.
    pub partitions: i32,
    /// Replicas of topics that are made; -1: what the cluster does by default.
    pub replication: i32,
    /// Whether topics that the cluster has lost are made again.
    pub remake: bool,
    /// The consumer group of the sink.
    pub group: String,
    /// How long a message may take to be acknowledged.
    pub publish_timeout: Duration,
    /// The most rows that the sink hands to the log store at once.
    pub batch_rows: usize,
    /// The most bytes of them.
    pub batch_bytes: usize,
    /// How long the sink gathers rows after the first.
    pub linger: Duration,
}

impl KafkaOptions {
    /// The configuration of the sink's consumer.
    pub(super) fn consumer(&self) -> ClientConfig {
        let mut config = self.address.client();
        config
            .set("group.id", &self.group)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            // A topic that came back empty is read from its beginning, and a row that is read twice does no harm.
            .set("auto.offset.reset", "earliest")
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("session.timeout.ms", "10000")
            // The sink asks for messages even while an append takes long or the store is away.
            .set("max.poll.interval.ms", "600000")
            .set("queued.min.messages", (2 * self.batch_rows).clamp(1, 10_000_000).to_string())
            .set("queued.max.messages.kbytes", (2 * self.batch_bytes / 1024).clamp(1024, 2_097_151).to_string())
            .set("fetch.queue.backoff.ms", "50")
            // How soon a topic is found that was not there at first.
            .set("topic.metadata.refresh.interval.ms", "5000");
        config
    }
}

/// The stream over a Kafka cluster.
pub struct KafkaStream {
    options: KafkaOptions,
    topics: Topics,
    producer: Producer,
    remade: Mutex<Option<Instant>>,
}

impl KafkaStream {
    /// Connects to nothing yet.
    pub fn new(options: KafkaOptions) -> Self {
        let (topics, producer) = (Topics::new(&options.topic_prefix), Producer::of_rows(&options));
        Self { options, topics, producer, remade: Mutex::default() }
    }

    /// Waits until everything that was handed over has arrived, at most `within`. Answers whether it has.
    pub async fn flush(&self, within: Duration) -> bool {
        self.producer.flush(within).await
    }

    async fn hand_over(&self, batch: &Batch) -> Published {
        let mut published = Published::default();
        let sending = match self.producer.sending().await {
            Ok(sending) => sending,
            Err(error) => {
                published.failed = u64::try_from(batch.len()).unwrap_or(u64::MAX);
                published.fault = Some(error.to_string());
                return published;
            }
        };
        let events = batch.events.iter().map(|row| (&self.topics.events, Record::of_event(row)));
        let usage = batch.usage.iter().map(|row| (&self.topics.usage, Record::of_usage(row)));
        let mut deliveries = Vec::with_capacity(batch.len());
        let mut unknown = false;
        for (topic, record) in events.chain(usage) {
            match enqueue(&sending, topic, record).await {
                Ok(delivery) => deliveries.push(delivery),
                Err(fault) => {
                    unknown |= fault.is_unknown_topic();
                    published.fail(fault.to_string());
                }
            }
            consume_budget().await;
        }
        for delivery in deliveries {
            match sending.arrival(delivery).await.map_err(Unsent::from) {
                Ok(()) => published.delivered += 1,
                Err(fault) => {
                    unknown |= fault.is_unknown_topic();
                    published.fail(fault.to_string());
                }
            }
        }
        if unknown {
            self.remake();
        }
        published
    }

    /// Makes the topics again beside the work. A cluster that was set up anew has none, and nobody else would notice
    /// for as long as this process runs.
    fn remake(&self) {
        if !self.options.remake {
            return;
        }
        let mut remade = self.remade.lock().unwrap_or_else(PoisonError::into_inner);
        if remade.is_some_and(|at| at.elapsed() < REMAKE_EVERY) {
            return;
        }
        *remade = Some(Instant::now());
        let options = self.options.clone();
        tokio::spawn(async move {
            tracing::warn!("the cluster does not know the topics; those that are missing are made again");
            if let Err(fault) = topics::prepare(&options).await {
                tracing::warn!(%fault, "the topics could not be made again");
            }
        });
    }
}

/// Why a row was not sent.
#[derive(Debug, thiserror::Error)]
enum Unsent {
    #[error("a row cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Kafka(#[from] KafkaError),
}

impl Unsent {
    /// Only once the library has looked for the topic in vain.
    fn is_unknown_topic(&self) -> bool {
        let Self::Kafka(error) = self else { return false };
        let code = error.rdkafka_error_code();
        matches!(code, Some(RDKafkaErrorCode::UnknownTopic | RDKafkaErrorCode::UnknownTopicOrPartition))
    }
}

async fn enqueue(
    sending: &Sending<'_>,
    topic: &str,
    record: Result<Record, serde_json::Error>,
) -> Result<DeliveryFuture, Unsent> {
    let record = record?;
    let sent = Sent { topic, key: Some(record.key.as_bytes()), value: Some(&record.value), headers: &record.headers };
    Ok(sending.send(sent).await?)
}

impl Published {
    /// One row more that failed. Of several faults the first is kept: what follows is often its consequence.
    fn fail(&mut self, fault: String) {
        self.failed += 1;
        self.fault.get_or_insert(fault);
    }
}

impl Stream for KafkaStream {
    fn name(&self) -> &'static str {
        "kafka"
    }

    fn prepare(&self) -> BoxFuture<'_, Result<(), StreamError>> {
        Box::pin(topics::prepare(&self.options))
    }

    fn pace(&self) -> Pace {
        Pace { in_flight: 8, linger: LINGER, rows: 500 }
    }

    fn publish(&self, batch: Batch) -> BoxFuture<'_, Published> {
        Box::pin(async move { self.hand_over(&batch).await })
    }
}
