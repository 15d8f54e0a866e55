//! Setting apart: what is no row, or what the store refuses, goes to a topic of its own, so that the rest goes on.

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};

use super::parcel::{Content, Parcel};
use crate::domain::digest::Digest;
use crate::domain::time::Timestamp;
use crate::log::kafka::producer::{Producer, Sent};
use crate::log::{Reason, Refused};

/// The longest reason in a header, in characters.
const REASON_MAX: usize = 1_000;
/// What is kept of the value of a message that the topic for dead letters does not take whole.
const VALUE_CUT_TO: usize = 64 * 1024;
/// What is kept of its key. That of a row is an id.
const KEY_CUT_TO: usize = 1024;

/// A message that is set apart, and why.
pub(super) struct DeadLetter<'a> {
    parcel: &'a Parcel,
    reason: &'a Reason,
}

/// Parts the messages: when each row was recorded that the store took, and the messages that are set apart because they
/// are no rows or their rows were refused.
pub(super) fn sort<'a>(parcels: &'a [Parcel], refused: &'a Refused) -> (Vec<Timestamp>, Vec<DeadLetter<'a>>) {
    let mut left: Vec<_> = refused.iter().collect();
    let (mut landed, mut dead) = (Vec::with_capacity(parcels.len()), Vec::new());
    for parcel in parcels {
        let recorded_at = match &parcel.content {
            Content::Event(row) => row.recorded_at,
            Content::Usage(row) => row.recorded_at,
            Content::Sent(recorded_at) => *recorded_at,
            Content::Poison(reason) => {
                dead.push(DeadLetter { parcel, reason });
                continue;
            }
        };
        // A row that came twice was refused twice.
        let refused = if left.is_empty() { None } else { Some(parcel.reread()) };
        let place = refused.and_then(|content| left.iter().position(|(row, _)| content.is_row_of(row)));
        match place {
            Some(at) => {
                let (_, reason) = left.swap_remove(at);
                dead.push(DeadLetter { parcel, reason });
            }
            None => landed.push(recorded_at),
        }
    }
    (landed, dead)
}

impl DeadLetter<'_> {
    /// Sends it and waits until it is acknowledged. Answers whether the topic took it.
    pub(super) async fn send(&self, producer: &Producer, topic: &str) -> Result<bool, KafkaError> {
        let Parcel { key, value, .. } = self.parcel;
        if self.is_taken(producer, topic, (key.as_deref(), value.as_deref()), self.headers()).await? {
            return Ok(true);
        }
        // Larger than any row can be. Its beginning must do, or the partition would stand still for ever.
        self.send_cut(producer, topic).await
    }

    /// The same with the beginnings of key and value, and the digest of what is cut.
    pub(super) async fn send_cut(&self, producer: &Producer, topic: &str) -> Result<bool, KafkaError> {
        let Parcel { key, value, .. } = self.parcel;
        let (key, headers) = cut(key.as_deref(), KEY_CUT_TO, "mandate-key-digest", self.headers());
        let (value, headers) = cut(value.as_deref(), VALUE_CUT_TO, "mandate-value-digest", headers);
        self.is_taken(producer, topic, (key, value), headers).await
    }

    /// Whether the topic takes the parts, or they are too large for it.
    async fn is_taken(
        &self,
        producer: &Producer,
        topic: &str,
        (key, value): (Option<&[u8]>, Option<&[u8]>),
        headers: OwnedHeaders,
    ) -> Result<bool, KafkaError> {
        let sending = producer.sending().await?;
        let sent = match sending.send(Sent { topic, key, value, headers: &headers }).await {
            Ok(delivery) => sending.arrival(delivery).await,
            Err(error) => Err(error),
        };
        match sent {
            Ok(()) => Ok(true),
            Err(KafkaError::MessageProduction(
                RDKafkaErrorCode::MessageSizeTooLarge | RDKafkaErrorCode::InvalidMessageSize,
            )) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn headers(&self) -> OwnedHeaders {
        let Parcel { topic, partition, offset, .. } = self.parcel;
        let reason: String = self.reason.full.chars().take(REASON_MAX).collect();
        [
            ("mandate-topic", topic),
            ("mandate-partition", &partition.to_string()),
            ("mandate-offset", &offset.to_string()),
            ("mandate-reason", &reason),
        ]
        .into_iter()
        .fold(OwnedHeaders::new(), |headers, (key, value)| headers.insert(Header { key, value: Some(value) }))
    }

    /// Says that it was set apart, or that not even that was possible; never what is in it.
    pub(super) fn tell(&self, is_kept: bool) {
        let Parcel { topic, partition, offset, .. } = self.parcel;
        let (task, seq) = match self.parcel.reread() {
            Content::Event(row) => (Some(row.task_id), Some(row.seq)),
            Content::Usage(row) => (Some(row.task_id), Some(row.seq)),
            Content::Sent(_) | Content::Poison(_) => (None, None),
        };
        let (task, reason) = (task.map(tracing::field::display), &self.reason.shown);
        if is_kept {
            tracing::error!(topic, partition, offset, task, seq, reason, "a message is set apart");
        } else {
            tracing::error!(
                topic,
                partition,
                offset,
                task,
                seq,
                reason,
                "a message is passed over: the topic for dead letters does not take even its beginning"
            );
        }
    }
}

/// The beginning of a part of a message, at most so long. Of one that is longer the digest becomes a header.
fn cut<'a>(
    part: Option<&'a [u8]>,
    most: usize,
    header: &str,
    headers: OwnedHeaders,
) -> (Option<&'a [u8]>, OwnedHeaders) {
    match part {
        Some(whole) if whole.len() > most => {
            let digest = Digest::of(whole).to_string();
            (whole.get(..most), headers.insert(Header { key: header, value: Some(&digest) }))
        }
        short => (short, headers),
    }
}
