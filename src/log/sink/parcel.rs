//! What arrives by the stream: a message, and the row that it should be.

use rdkafka::Message;
use rdkafka::message::BorrowedMessage;
use serde_json::error::Category;

use crate::domain::time::Timestamp;
use crate::log::kafka::topics::Topics;
use crate::log::{Batch, EventRow, Reason, UsageRow};

/// A message that was taken from the stream and whose offset is not committed.
#[derive(Debug)]
pub(super) struct Parcel {
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    /// Whether it is from the topic of events.
    is_event: bool,
    pub content: Content,
}

/// What it holds.
#[derive(Debug)]
pub(super) enum Content {
    Event(Box<EventRow>),
    Usage(Box<UsageRow>),
    /// A row that is on its way to the store, and when it was recorded. Should it be needed again, the value has it.
    Sent(Timestamp),
    /// No row, and why.
    Poison(Reason),
}

impl Parcel {
    pub(super) fn new(message: &BorrowedMessage<'_>, topics: &Topics) -> Self {
        let is_event = message.topic() == topics.events;
        Self {
            topic: message.topic().to_owned(),
            partition: message.partition(),
            offset: message.offset(),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            is_event,
            content: read(message.payload(), is_event),
        }
    }

    /// Adds its row, if it is one, to `batch`, and keeps none: most rows are needed once.
    pub(super) fn send(&mut self, batch: &mut Batch) {
        if matches!(self.content, Content::Sent(_)) {
            self.content = read(self.value.as_deref(), self.is_event);
        }
        let recorded_at = match &self.content {
            Content::Event(row) => row.recorded_at,
            Content::Usage(row) => row.recorded_at,
            Content::Sent(_) | Content::Poison(_) => return,
        };
        match std::mem::replace(&mut self.content, Content::Sent(recorded_at)) {
            Content::Event(row) => batch.events.push(*row),
            Content::Usage(row) => batch.usage.push(*row),
            Content::Sent(_) | Content::Poison(_) => {}
        }
    }

    /// What it counts for towards the most bytes of a batch.
    pub(super) fn bytes(&self) -> usize {
        self.key.as_ref().map_or(0, Vec::len) + self.value.as_ref().map_or(0, Vec::len)
    }

    /// What it holds, read again if that is on its way.
    pub(super) fn reread(&self) -> Content {
        read(self.value.as_deref(), self.is_event)
    }
}

impl Content {
    /// Whether its row is the one row of `batch`.
    pub(super) fn is_row_of(&self, batch: &Batch) -> bool {
        match self {
            Self::Event(row) => batch.events.first() == Some(row),
            Self::Usage(row) => batch.usage.first() == Some(row),
            Self::Sent(_) | Self::Poison(_) => false,
        }
    }
}

fn read(value: Option<&[u8]>, is_event: bool) -> Content {
    match value {
        None => {
            let reason = "the message has no value".to_owned();
            Content::Poison(Reason { full: reason.clone(), shown: reason })
        }
        Some(value) if is_event => serde_json::from_slice(value).map_or_else(|error| poison(&error), Content::Event),
        Some(value) => serde_json::from_slice(value).map_or_else(|error| poison(&error), Content::Usage),
    }
}

/// The parser quotes values, which have no place in the log.
fn poison(error: &serde_json::Error) -> Content {
    let kind = match error.classify() {
        Category::Data => "JSON, but no row",
        Category::Io | Category::Syntax | Category::Eof => "no JSON",
    };
    let shown = format!("{kind} (line {}, column {})", error.line(), error.column());
    Content::Poison(Reason { full: format!("not a row: {error}"), shown })
}
