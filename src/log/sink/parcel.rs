//! What arrives by the stream: a message, and the row that it should be.

use rdkafka::Message;
use rdkafka::message::BorrowedMessage;
use serde_json::error::Category;

use crate::log::kafka::topics::Topics;
use crate::log::{Batch, EventRow, UsageRow};

/// A message that was taken from the stream and whose offset is not committed.
#[derive(Debug)]
pub(super) struct Parcel {
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub content: Content,
}

/// What it holds.
#[derive(Debug)]
pub(super) enum Content {
    Event(Box<EventRow>),
    Usage(Box<UsageRow>),
    Poison(Poison),
}

/// Why a message is no row.
#[derive(Debug)]
pub(super) struct Poison {
    /// In full, for whoever may see the message itself.
    pub reason: String,
    /// Without anything of the message, for the log.
    pub shown: String,
}

impl Parcel {
    pub(super) fn new(message: &BorrowedMessage<'_>, topics: &Topics) -> Self {
        let content = match message.payload() {
            None => Content::Poison(Poison::of("the message has no value")),
            Some(value) if message.topic() == topics.events => {
                serde_json::from_slice(value).map_or_else(|error| Poison::json(&error), Content::Event)
            }
            Some(value) => serde_json::from_slice(value).map_or_else(|error| Poison::json(&error), Content::Usage),
        };
        Self {
            topic: message.topic().to_owned(),
            partition: message.partition(),
            offset: message.offset(),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            content,
        }
    }

    /// What it counts for towards the most bytes of a batch.
    pub(super) fn bytes(&self) -> usize {
        self.key.as_ref().map_or(0, Vec::len) + self.value.as_ref().map_or(0, Vec::len)
    }

    /// Whether its row is the one row of `batch`.
    pub(super) fn holds(&self, batch: &Batch) -> bool {
        match &self.content {
            Content::Event(row) => batch.events.first() == Some(row),
            Content::Usage(row) => batch.usage.first() == Some(row),
            Content::Poison(_) => false,
        }
    }
}

impl Poison {
    fn of(reason: &str) -> Self {
        Self { reason: reason.to_owned(), shown: reason.to_owned() }
    }

    /// The parser quotes values, which have no place in the log.
    fn json(error: &serde_json::Error) -> Content {
        let kind = match error.classify() {
            Category::Data => "JSON, but no row",
            Category::Io | Category::Syntax | Category::Eof => "no JSON",
        };
        let shown = format!("{kind} (line {}, column {})", error.line(), error.column());
        Content::Poison(Self { reason: format!("not a row: {error}"), shown })
    }
}
