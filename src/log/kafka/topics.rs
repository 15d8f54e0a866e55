//! The topics: their names, and that they exist and take the largest row.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tokio::time::Instant;

use super::client::{Client, Ear};
use super::{KafkaOptions, MESSAGE_BYTES_MAX, ROW_BYTES_MAX};
use crate::log::StreamError;

/// How long all of [`prepare`] may take.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long to wait for what was made to be known everywhere.
const PAUSE: Duration = Duration::from_millis(100);
/// How often a topic is looked at that was made and is not known.
const TRIES: usize = 100;
/// The topic's largest batch of messages, as the broker names it.
const LIMIT: &str = "max.message.bytes";

/// The names of the topics.
#[derive(Debug, Clone)]
pub(in crate::log) struct Topics {
    /// Rows of `agent_task_events`.
    pub events: String,
    /// Rows of `agent_usage`.
    pub usage: String,
    /// What was no row, or which the store refuses.
    pub dead_letters: String,
}

impl Topics {
    pub(in crate::log) fn new(prefix: &str) -> Self {
        Self {
            events: format!("{prefix}agent_task_events"),
            usage: format!("{prefix}agent_usage"),
            dead_letters: format!("{prefix}agent_dead_letters"),
        }
    }
}

/// Makes the topics that are missing and looks at those that are there.
pub(super) async fn prepare(options: &KafkaOptions) -> Result<(), StreamError> {
    let fault = |error: &KafkaError| StreamError(error.to_string());
    let config = options.address.client();
    let admin = tokio::task::spawn_blocking(move || config.create_with_context::<_, AdminClient<Ear>>(Ear::default()));
    let admin = admin.await.map_err(|error| StreamError(error.to_string()))?.map_err(|error| fault(&error))?;
    let admin = Client::new(admin);
    let prepared = match admin.get() {
        Some(admin) => tokio::time::timeout(PREPARE_TIMEOUT, Preparation { admin, options }.run()).await,
        None => Ok(Ok(())),
    };
    admin.end().await;
    prepared.map_err(|_| StreamError(format!("no answer within {} seconds", PREPARE_TIMEOUT.as_secs())))?
}

struct Preparation<'a> {
    admin: &'a AdminClient<Ear>,
    options: &'a KafkaOptions,
}

impl Preparation<'_> {
    async fn run(self) -> Result<(), StreamError> {
        let topics = Topics::new(&self.options.topic_prefix);
        let deadline = Instant::now() + PREPARE_TIMEOUT;
        for topic in [&topics.events, &topics.usage, &topics.dead_letters] {
            let mut tries = 0;
            while !self.stands(topic, deadline).await? {
                if tries == TRIES {
                    return Err(StreamError(format!(
                        "topic {topic} is there, but its {LIMIT} is not told: the right to describe its configuration \
                         may be missing"
                    )));
                }
                tries += 1;
                self.make(topic, deadline).await?;
                // A broker that has not heard of it yet still says that there is none.
                tokio::time::sleep(PAUSE).await;
            }
        }
        Ok(())
    }

    /// Whether the topic is there; a fault when it is and does not take the largest row. The library keeps to itself
    /// that the broker has no answer about a topic, and shows a configuration without entries.
    async fn stands(&self, topic: &str, deadline: Instant) -> Result<bool, StreamError> {
        let fault = |error: &dyn std::fmt::Display| StreamError(format!("topic {topic} cannot be looked at: {error}"));
        let described = self.admin.describe_configs(&[ResourceSpecifier::Topic(topic)], &until(deadline)).await;
        let described = described.map_err(|error| fault(&error))?;
        let config = match described.into_iter().next() {
            Some(Ok(config)) if config.entries.is_empty() => return Ok(false),
            Some(Ok(config)) => config,
            Some(Err(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic)) => return Ok(false),
            Some(Err(error)) => return Err(fault(&error)),
            None => return Err(fault(&"no answer about it")),
        };
        let limit = config.get(LIMIT).and_then(|entry| entry.value.as_deref()).and_then(|value| value.parse().ok());
        match limit {
            Some(limit) if ROW_BYTES_MAX <= limit => Ok(true),
            Some(limit) => Err(StreamError(format!(
                "topic {topic} takes at most {limit} bytes ({LIMIT}), but the largest row needs {ROW_BYTES_MAX}"
            ))),
            None => Err(fault(&format!("its {LIMIT} is not told"))),
        }
    }

    async fn make(&self, topic: &str, deadline: Instant) -> Result<(), StreamError> {
        let fault = |error: &dyn std::fmt::Display| {
            StreamError(format!("topic {topic} is not there and cannot be made: {error}"))
        };
        let limit = MESSAGE_BYTES_MAX.to_string();
        let replication = TopicReplication::Fixed(self.options.replication);
        let new = NewTopic::new(topic, self.options.partitions, replication).set(LIMIT, &limit);
        let made = self.admin.create_topics(&[new], &until(deadline)).await.map_err(|error| fault(&error))?;
        match made.into_iter().next() {
            Some(Ok(_)) => {
                tracing::info!(topic, partitions = self.options.partitions, "topic made");
                Ok(())
            }
            // Somebody else was first.
            Some(Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => Ok(()),
            Some(Err((_, error))) => Err(fault(&error)),
            None => Err(fault(&"no answer about it")),
        }
    }
}

/// For a call that must be over by `deadline`.
fn until(deadline: Instant) -> AdminOptions {
    let left = deadline.saturating_duration_since(Instant::now()).max(PAUSE);
    AdminOptions::new().request_timeout(Some(left)).operation_timeout(Some(left))
}
