//! The producer: one that lasts, until it is fatal and the next one takes its place.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::OwnedHeaders;
use rdkafka::producer::{DeliveryFuture, FutureProducer, FutureRecord, Producer as _};
use tokio::time::Instant;

use super::client::{Client, Ear};
use super::{KafkaOptions, LINGER, MESSAGE_BYTES_MAX, ROW_BYTES_MAX};

/// The most messages that wait in the library.
const QUEUE_MESSAGES: usize = 20_000;
/// The most bytes of them, in KiB.
const QUEUE_KIB: usize = 64 * 1024;
/// How long to wait when that much waits.
const FULL_PAUSE: Duration = Duration::from_millis(20);
/// The library looks only once a second for what is over its time.
const LATE: Duration = Duration::from_secs(2);

type Native = FutureProducer<Ear>;

/// What is sent.
#[derive(Clone, Copy)]
pub(in crate::log) struct Sent<'a> {
    pub topic: &'a str,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    pub headers: &'a OwnedHeaders,
}

/// A producer, and its successor when it fails for good.
pub(in crate::log) struct Producer {
    config: ClientConfig,
    timeout: Duration,
    now: Mutex<Option<Arc<Client<Native>>>>,
}

impl Producer {
    /// Connects when it is needed. Messages may have `bytes_max` bytes.
    pub(in crate::log) fn new(options: &KafkaOptions, bytes_max: usize) -> Self {
        let mut config = options.address.client();
        config
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("compression.type", "zstd")
            .set("linger.ms", LINGER.as_millis().to_string())
            .set("message.timeout.ms", options.publish_timeout.as_millis().to_string())
            .set("message.max.bytes", bytes_max.to_string())
            // A topic that takes the largest row takes every batch.
            .set("batch.size", ROW_BYTES_MAX.to_string())
            // As other languages' clients part by key.
            .set("partitioner", "murmur2_random")
            .set("queue.buffering.max.messages", QUEUE_MESSAGES.to_string())
            .set("queue.buffering.max.kbytes", QUEUE_KIB.to_string())
            // Made by a broker's defaults a topic would not take the largest row.
            .set("allow.auto.create.topics", "false")
            .set("topic.metadata.refresh.interval.ms", "10000");
        Self { config, timeout: options.publish_timeout, now: Mutex::new(None) }
    }

    /// With the limits of the stream's own messages.
    pub(super) fn of_rows(options: &KafkaOptions) -> Self {
        Self::new(options, MESSAGE_BYTES_MAX)
    }

    /// One batch's use of the producer.
    pub(in crate::log) async fn sending(&self) -> Result<Sending<'_>, KafkaError> {
        let client = self.client().await?;
        Ok(Sending { producer: self, client, deadline: Instant::now() + self.timeout })
    }

    async fn client(&self) -> Result<Arc<Client<Native>>, KafkaError> {
        if let Some(client) = self.present() {
            // It may have failed after the last batch was over.
            self.renew_after(&client);
        }
        if let Some(client) = self.present() {
            return Ok(client);
        }
        let config = self.config.clone();
        let made = tokio::task::spawn_blocking(move || config.create_with_context::<_, Native>(Ear::default())).await;
        let made = Arc::new(Client::new(made.map_err(|_| KafkaError::Canceled)??));
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        // Two may have made one at once; the second is dropped.
        Ok(Arc::clone(now.get_or_insert(made)))
    }

    fn present(&self) -> Option<Arc<Client<Native>>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets go of `client` if it has failed for good; the next batch makes a new one. An idempotent producer that has
    /// lost count with a broker never sends again.
    fn renew_after(&self, client: &Arc<Client<Native>>) {
        let Some((code, reason)) = client.get().and_then(|native| native.client().fatal_error()) else { return };
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if now.as_ref().is_some_and(|present| Arc::ptr_eq(present, client)) {
            tracing::warn!(%code, reason, "the kafka producer has failed for good; the next batch makes a new one");
            *now = None;
        }
    }

    /// Waits until what is on its way has arrived, at most `within`. Answers whether it has.
    pub(super) async fn flush(&self, within: Duration) -> bool {
        let Some(client) = self.present() else { return true };
        let flushed =
            tokio::task::spawn_blocking(move || client.get().is_none_or(|native| native.flush(within).is_ok()));
        flushed.await.unwrap_or(false)
    }
}

/// One batch's use of the producer. All that it sends is answered in time, or counts as failed.
pub(in crate::log) struct Sending<'a> {
    producer: &'a Producer,
    client: Arc<Client<Native>>,
    deadline: Instant,
}

impl Sending<'_> {
    /// Hands a message to the library, waiting while it is full.
    pub(in crate::log) async fn send(&self, sent: Sent<'_>) -> Result<DeliveryFuture, KafkaError> {
        let Some(native) = self.client.get() else { return Err(KafkaError::Canceled) };
        let mut record = FutureRecord::<[u8], [u8]>::to(sent.topic).headers(sent.headers.clone());
        record.key = sent.key;
        record.payload = sent.value;
        loop {
            record = match native.send_result(record) {
                Ok(delivery) => return Ok(delivery),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back))
                    if Instant::now() < self.deadline =>
                {
                    back
                }
                Err((error, _)) => return Err(error),
            };
            tokio::time::sleep(FULL_PAUSE).await;
        }
    }

    /// Waits for the acknowledgement.
    pub(in crate::log) async fn arrival(&self, delivery: DeliveryFuture) -> Result<(), KafkaError> {
        match tokio::time::timeout_at(self.deadline + LATE, delivery).await {
            Ok(Ok(Ok(_))) => Ok(()),
            Ok(Ok(Err((error, _)))) => Err(error),
            Ok(Err(_)) => Err(KafkaError::Canceled),
            Err(_) => Err(KafkaError::MessageProduction(RDKafkaErrorCode::MessageTimedOut)),
        }
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.producer.renew_after(&self.client);
    }
}
