//! The sink: carries rows from the stream into the log store, as one of a consumer group.
//!
//! An offset is committed only after the store has acknowledged the rows up to it, and what was set apart is on the
//! topic for dead letters. So a row may come several times, never not at all: after a restart, a move of a partition or a
//! commit that failed, the rows since the last commit come again, and the store keeps one per key.

mod apart;
mod inbox;
mod parcel;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use rdkafka::error::KafkaError;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::LogStore;
use super::kafka::client::Ear;
use super::kafka::producer::Producer;
use super::kafka::topics::Topics;
use super::kafka::{KafkaOptions, MESSAGE_BYTES_MAX};
use super::patience::{Backoff, append_to_the_end};
use crate::domain::time::Timestamp;
use apart::{DeadLetter, sort};
use inbox::Inbox;

/// How long to wait after the first failure.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
/// The longest wait between two tries.
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// How many messages are set apart at once.
const AT_ONCE: usize = 100;
/// How long leaving the group may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// What a step brought.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Landed {
    /// When each row was recorded that the store has acknowledged. Some may have been there before.
    pub rows: Vec<Timestamp>,
    /// Messages that were set apart.
    pub refused: u64,
}

/// The consumer cannot go on. The next step begins with a new one.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the sink's consumer: {0}")]
pub struct SinkError(String);

/// One member of the sink's consumer group.
pub struct Sink {
    store: Arc<dyn LogStore>,
    producer: Producer,
    dead_letters: String,
    ear: Ear,
    inbox: Mutex<Inbox>,
}

/// Told to stop before it was done.
struct Stopped;

impl Sink {
    /// Connects to nothing yet; the first step joins the group.
    pub fn new(options: KafkaOptions, store: Arc<dyn LogStore>) -> Self {
        let topics = Topics::new(&options.topic_prefix);
        // Room for the largest message of the other topics, with the reason.
        let producer = Producer::new(&options, 2 * MESSAGE_BYTES_MAX);
        let dead_letters = topics.dead_letters.clone();
        let inbox = Mutex::new(Inbox::new(options, topics));
        Self { store, producer, dead_letters, ear: Ear::default(), inbox }
    }

    /// Waits for messages, gathers a batch and carries it to the store, trying as long as that takes. Told to stop, it
    /// answers at once and commits nothing that is not in the store; a further step goes on with the same batch. The
    /// same holds for a step whose future is dropped.
    ///
    /// # Errors
    /// When there can be no consumer, or it has failed for good.
    pub async fn step(&self, stop: &CancellationToken) -> Result<Landed, SinkError> {
        let mut inbox = self.inbox.lock().await;
        let gathered = tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(Landed::default()),
            gathered = inbox.gather(&self.ear) => gathered,
        };
        gathered?;
        let (count, landed) = match self.land(&mut inbox, stop).await {
            Ok(landed) => landed,
            Err(Stopped) => return Ok(Landed::default()),
        };
        inbox.commit(count, &self.ear).await;
        Ok(landed)
    }

    /// Leaves the group, so that the others take over at once. Waits for a step that is under way: stop it first.
    pub async fn close(&self) {
        let mut inbox = self.inbox.lock().await;
        if tokio::time::timeout(CLOSE_TIMEOUT, inbox.close()).await.is_err() {
            tracing::warn!("the sink could not leave its group in time; the group notices when its session is over");
        }
    }

    /// Has the messages at hand acknowledged, by the store or on the topic for dead letters. Answers how many they
    /// were.
    async fn land(&self, inbox: &mut Inbox, stop: &CancellationToken) -> Result<(usize, Landed), Stopped> {
        let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MAX);
        let (count, refused) = loop {
            let (count, batch) = inbox.batch();
            let appending = pin!(append_to_the_end(&self.store, batch));
            let appended = tokio::select! {
                biased;
                () = stop.cancelled() => return Err(Stopped),
                appended = appending => appended,
                // The next batch is read meanwhile.
                never = inbox.gather_ahead(&self.ear) => match never {},
            };
            match appended {
                Ok(refused) => break (count, refused),
                Err(fault) => self.complain(&fault, "rows wait for the log store"),
            }
            inbox.wait(backoff.next(), &self.ear, stop).await?;
        };
        let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MAX);
        let mut done = 0;
        loop {
            let parcels = inbox.parcels().get(..count).unwrap_or_default();
            let (rows, dead) = sort(parcels, &refused);
            let sent = tokio::select! {
                biased;
                () = stop.cancelled() => return Err(Stopped),
                sent = self.set_apart(&dead, &mut done) => sent,
            };
            match sent {
                Ok(()) => return Ok((count, Landed { rows, refused: u64::try_from(dead.len()).unwrap_or(u64::MAX) })),
                Err(fault) => self.complain(&fault, "messages wait to be set apart"),
            }
            inbox.wait(backoff.next(), &self.ear, stop).await?;
        }
    }

    /// Sends what is not `done`, some at a time.
    async fn set_apart(&self, dead: &[DeadLetter<'_>], done: &mut usize) -> Result<(), KafkaError> {
        while let Some(some) = dead.get(*done..).filter(|left| !left.is_empty()) {
            let some = &some[..some.len().min(AT_ONCE)];
            let sent = some.iter().map(|letter| letter.send(&self.producer, &self.dead_letters));
            for (letter, is_taken) in some.iter().zip(try_join_all(sent).await?) {
                // It may have been too large in one batch with others.
                let is_kept = is_taken || letter.send_cut(&self.producer, &self.dead_letters).await?;
                letter.tell(is_kept);
            }
            *done += some.len();
        }
        Ok(())
    }

    fn complain(&self, fault: &dyn std::fmt::Display, what: &str) {
        if self.ear.loud() {
            tracing::warn!(store = self.store.name(), %fault, "{what}");
        } else {
            tracing::debug!(store = self.store.name(), %fault, "{what}");
        }
    }
}
