//! The consumer, and the messages that it took and whose offsets are not committed.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::consumer::{CommitMode, Consumer as _, StreamConsumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::BorrowedMessage;
use rdkafka::{Offset, TopicPartitionList};
use tokio::task::coop::consume_budget;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::parcel::Parcel;
use super::{SinkError, Stopped};
use crate::log::Batch;
use crate::log::kafka::KafkaOptions;
use crate::log::kafka::client::{Client, Ear};
use crate::log::kafka::topics::Topics;

/// How long a commit may take; the group's coordinator may be away.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(10);

/// After how long the group hears from a member whose append still goes on.
const LONG_APPEND: Duration = Duration::from_secs(5);

/// How long a consumer that met errors may bring nothing before it is made anew.
const QUIET_MAX: Duration = Duration::from_secs(15);

type Consumer = StreamConsumer<Ear>;

pub(super) struct Inbox {
    options: KafkaOptions,
    topics: Topics,
    consumer: Option<Arc<Client<Consumer>>>,
    parcels: Vec<Parcel>,
    /// What they weigh.
    bytes: usize,
    /// Whether the consumer was told to fetch nothing.
    paused: bool,
    /// Whether the consumer met an error since its last message.
    troubled: bool,
}

impl Inbox {
    pub(super) fn new(options: KafkaOptions, topics: Topics) -> Self {
        Self { options, topics, consumer: None, parcels: Vec::new(), bytes: 0, paused: false, troubled: false }
    }

    /// Messages that are not committed.
    pub(super) fn parcels(&self) -> &[Parcel] {
        &self.parcels
    }

    /// Waits for a message and gathers what comes soon after it, up to a batch; what was taken meanwhile is the
    /// beginning.
    pub(super) async fn gather(&mut self, ear: &Ear) -> Result<(), SinkError> {
        let consumer = self.consumer().await?;
        if self.paused {
            self.blocking(resume).await;
            self.paused = false;
        }
        let soon = |inbox: &Self| Instant::now() + inbox.options.linger;
        let mut deadline = (!self.parcels.is_empty()).then(|| soon(self));
        while !self.holds(1) {
            let Some(native) = consumer.get() else { break };
            let received = match deadline {
                None => match tokio::time::timeout(QUIET_MAX, native.recv()).await {
                    Ok(received) => received,
                    // Quiet after trouble may be the trouble: a consumer can lose a topic that was made anew for good.
                    Err(_) if self.troubled => {
                        tracing::info!("nothing has come since the consumer met errors; it is made anew");
                        (self.consumer, self.troubled) = (None, false);
                        return Ok(());
                    }
                    // A pause that was begun and given up may come after the resumption.
                    Err(_) => {
                        self.blocking(resume).await;
                        continue;
                    }
                },
                Some(deadline) => match tokio::time::timeout_at(deadline, native.recv()).await {
                    Ok(received) => received,
                    Err(_) => break,
                },
            };
            match received {
                Ok(message) => {
                    self.take(&message);
                    deadline.get_or_insert_with(|| soon(self));
                }
                Err(error) => self.endure(&error, ear)?,
            }
            // The library answers from memory without ever waiting.
            consume_budget().await;
        }
        Ok(())
    }

    /// Takes further messages, up to another batch, while one is on its way. Never ends: it is dropped when that has
    /// arrived.
    pub(super) async fn gather_ahead(&mut self, ear: &Ear) -> Infallible {
        let begun = Instant::now();
        while let Some(consumer) = self.consumer.clone() {
            if self.holds(2) {
                // To pause throws away what the library has fetched, so only what takes long is worth it: then the group
                // must hear from this member.
                tokio::time::sleep_until(begun + LONG_APPEND).await;
                self.pause().await;
            }
            let Some(native) = consumer.get() else { break };
            match native.recv().await {
                Ok(message) => self.take(&message),
                // Without a consumer these rows cannot be committed; they come again.
                Err(error) => drop(self.endure(&error, ear)),
            }
            consume_budget().await;
        }
        std::future::pending().await
    }

    fn take(&mut self, message: &BorrowedMessage<'_>) {
        self.troubled = false;
        let parcel = Parcel::new(message, &self.topics);
        self.bytes += parcel.bytes();
        self.parcels.push(parcel);
    }

    /// Whether so many batches are at hand.
    fn holds(&self, batches: usize) -> bool {
        self.parcels.len() >= batches * self.options.batch_rows || self.bytes >= batches * self.options.batch_bytes
    }

    /// Tells the consumer to fetch nothing. Again after each message: partitions that are newly assigned are not paused.
    async fn pause(&mut self) {
        self.paused = true;
        self.blocking(pause).await;
    }

    /// The rows of the first messages, at most a batch, and how many messages there are.
    pub(super) fn batch(&mut self) -> (usize, Batch) {
        let (mut batch, mut count, mut bytes) = (Batch::default(), 0, 0);
        for parcel in &mut self.parcels {
            if count == self.options.batch_rows || bytes >= self.options.batch_bytes {
                break;
            }
            (count, bytes) = (count + 1, bytes + parcel.bytes());
            parcel.send(&mut batch);
        }
        (count, batch)
    }

    /// Waits before another try. Meanwhile nothing is fetched, but the consumer is asked all the same, or the group
    /// would wait for its answer to every change of its members and in the end take it for dead.
    pub(super) async fn wait(&mut self, time: Duration, ear: &Ear, stop: &CancellationToken) -> Result<(), Stopped> {
        let until = Instant::now() + time;
        loop {
            let Some(consumer) = self.consumer.clone() else {
                // A new one is made when the rows at hand are through.
                return tokio::select! {
                    () = stop.cancelled() => Err(Stopped),
                    () = tokio::time::sleep_until(until) => Ok(()),
                };
            };
            self.pause().await;
            let Some(native) = consumer.get() else { return Ok(()) };
            let received = tokio::select! {
                () = stop.cancelled() => return Err(Stopped),
                () = tokio::time::sleep_until(until) => return Ok(()),
                received = native.recv() => received,
            };
            match received {
                Ok(message) => self.take(&message),
                // Without a consumer these rows cannot be committed; they come again.
                Err(error) => drop(self.endure(&error, ear)),
            }
        }
    }

    /// Forgets the first `count` messages and commits their offsets. That may fail, for example while partitions move:
    /// then a later commit covers them, or the rows come again.
    pub(super) async fn commit(&mut self, count: usize, ear: &Ear) {
        let mut next = HashMap::new();
        for parcel in self.parcels.drain(..count.min(self.parcels.len())) {
            self.bytes -= parcel.bytes();
            // The last one counts, not the highest: a topic that came back empty counts from 0 again.
            next.insert((parcel.topic, parcel.partition), parcel.offset + 1);
        }
        let commit = self.blocking(move |consumer| commit(consumer, &next));
        let fault = match tokio::time::timeout(COMMIT_TIMEOUT, commit).await {
            Ok(None | Some(Ok(()))) => return,
            Ok(Some(Err(error))) => error.to_string(),
            Err(_) => "no answer in time".to_owned(),
        };
        if ear.loud() {
            tracing::warn!(fault, "offsets could not be committed; a later commit covers them, or the rows come again");
        } else {
            tracing::debug!(fault, "offsets could not be committed");
        }
    }

    /// Leaves the group. What is not committed comes again.
    pub(super) async fn close(&mut self) {
        self.clear();
        if let Some(consumer) = self.consumer.take().and_then(Arc::into_inner) {
            consumer.end().await;
        }
    }

    fn clear(&mut self) {
        self.parcels.clear();
        self.bytes = 0;
    }

    async fn consumer(&mut self) -> Result<Arc<Client<Consumer>>, SinkError> {
        if let Some(consumer) = &self.consumer {
            return Ok(Arc::clone(consumer));
        }
        let (config, topics) = (self.options.consumer(), [self.topics.events.clone(), self.topics.usage.clone()]);
        let made = tokio::task::spawn_blocking(move || {
            let consumer: Consumer = config.create_with_context(Ear::default())?;
            consumer.subscribe(&topics.each_ref().map(String::as_str))?;
            KafkaResult::Ok(Client::new(consumer))
        });
        let made = made.await.map_err(|error| SinkError(error.to_string()))?;
        let made = Arc::new(made.map_err(|error| SinkError(error.to_string()))?);
        self.paused = false;
        Ok(Arc::clone(self.consumer.insert(made)))
    }

    /// Most errors pass: a broker that is away, a topic that is not there yet. One that does not ends the consumer.
    fn endure(&mut self, error: &KafkaError, ear: &Ear) -> Result<(), SinkError> {
        self.troubled = true;
        if matches!(error, KafkaError::MessageConsumptionFatal(_)) {
            self.consumer = None;
            self.clear();
            return Err(SinkError(error.to_string()));
        }
        if ear.loud() {
            tracing::warn!(%error, "the sink waits for its messages");
        } else {
            tracing::debug!(%error, "the sink waits for its messages");
        }
        Ok(())
    }

    /// Asks the consumer something that waits for the library's threads. Nothing when there is no consumer.
    async fn blocking<T: Send + 'static>(&self, ask: impl FnOnce(&Consumer) -> T + Send + 'static) -> Option<T> {
        let client = Arc::clone(self.consumer.as_ref()?);
        tokio::task::spawn_blocking(move || client.get().map(ask)).await.ok().flatten()
    }
}

fn pause(consumer: &Consumer) -> KafkaResult<()> {
    consumer.pause(&consumer.assignment()?)
}

fn resume(consumer: &Consumer) -> KafkaResult<()> {
    consumer.resume(&consumer.assignment()?)
}

/// Commits the offsets of the partitions that are still this member's: another may have gone on since.
fn commit(consumer: &Consumer, next: &HashMap<(String, i32), i64>) -> KafkaResult<()> {
    let mut offsets = TopicPartitionList::new();
    for held in consumer.assignment()?.elements() {
        if let Some(next) = next.get(&(held.topic().to_owned(), held.partition())) {
            offsets.add_partition_offset(held.topic(), held.partition(), Offset::Offset(*next))?;
        }
    }
    if offsets.count() == 0 { Ok(()) } else { consumer.commit(&offsets, CommitMode::Sync) }
}
