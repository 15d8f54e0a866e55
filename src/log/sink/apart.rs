//! Setting apart: what is no row, or what the store refuses, goes to a topic of its own, so that the rest goes on.

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};

use super::parcel::{Content, Parcel};
use crate::domain::time::Timestamp;
use crate::log::Refused;
use crate::log::kafka::producer::{Producer, Sent};

/// The longest reason in a header, in characters.
const REASON_MAX: usize = 1_000;
/// What is kept of a message that the topic for dead letters does not take whole.
const CUT_TO: usize = 64 * 1024;

/// A message that is set apart, and why.
pub(super) struct DeadLetter<'a> {
    parcel: &'a Parcel,
    reason: &'a str,
    shown: &'a str,
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
            Content::Poison(poison) => {
                dead.push(DeadLetter { parcel, reason: &poison.reason, shown: &poison.shown });
                continue;
            }
        };
        // A row that came twice was refused twice.
        let refused = if left.is_empty() { None } else { Some(parcel.reread()) };
        let place = refused.and_then(|content| left.iter().position(|(row, _)| content.is_row_of(row)));
        match place {
            Some(at) => {
                let (_, reason) = left.swap_remove(at);
                dead.push(DeadLetter { parcel, reason, shown: reason });
            }
            None => landed.push(recorded_at),
        }
    }
    (landed, dead)
}

impl DeadLetter<'_> {
    /// Sends it and waits until it is acknowledged.
    pub(super) async fn send(&self, producer: &Producer, topic: &str) -> Result<(), KafkaError> {
        let value = self.parcel.value.as_deref();
        let sent = self.send_value(producer, topic, value).await;
        let Err(KafkaError::MessageProduction(
            RDKafkaErrorCode::MessageSizeTooLarge | RDKafkaErrorCode::InvalidMessageSize,
        )) = sent
        else {
            return sent;
        };
        // Larger than any row can be. Its beginning must do, or the partition would stand still for ever.
        self.send_value(producer, topic, value.map(|value| &value[..value.len().min(CUT_TO)])).await
    }

    async fn send_value(&self, producer: &Producer, topic: &str, value: Option<&[u8]>) -> Result<(), KafkaError> {
        let headers = &self.headers();
        let sending = producer.sending().await?;
        let delivery = sending.send(Sent { topic, key: self.parcel.key.as_deref(), value, headers }).await?;
        sending.arrival(delivery).await
    }

    fn headers(&self) -> OwnedHeaders {
        let Parcel { topic, partition, offset, .. } = self.parcel;
        let reason: String = self.reason.chars().take(REASON_MAX).collect();
        [
            ("mandate-topic", topic),
            ("mandate-partition", &partition.to_string()),
            ("mandate-offset", &offset.to_string()),
            ("mandate-reason", &reason),
        ]
        .into_iter()
        .fold(OwnedHeaders::new(), |headers, (key, value)| headers.insert(Header { key, value: Some(value) }))
    }

    /// Says that it was set apart; never what is in it.
    pub(super) fn tell(&self) {
        let Parcel { topic, partition, offset, .. } = self.parcel;
        let (task, seq) = match self.parcel.reread() {
            Content::Event(row) => (Some(row.task_id), Some(row.seq)),
            Content::Usage(row) => (Some(row.task_id), Some(row.seq)),
            Content::Sent(_) | Content::Poison(_) => (None, None),
        };
        let task = task.map(tracing::field::display);
        tracing::error!(topic, partition, offset, task, seq, reason = self.shown, "a message is set apart");
    }
}
