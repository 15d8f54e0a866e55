//! The digest chain: a copy of a log can be proven whole by reading it.
//!
//! `digest = SHA-256(0x01 ‖ previous digest ‖ fields)`, the previous digest being 32 zero bytes for the first entry.
//! A field is 0x00 when null, else 0x01 ‖ length (u32, big-endian) ‖ bytes. Integers and times (microseconds since
//! 1970) are i64 big-endian, UUIDs 16 bytes, text UTF-8. `openapi/digest-test-vector.json` pins the encoding.

use std::fmt;

use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::event::Event;
use super::ids::TaskId;

/// A SHA-256 digest, written `sha256:` and 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// What the first entry of a chain follows.
    pub const ZERO: Self = Self([0; 32]);

    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Reads `sha256:` and 64 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("sha256:")?;
        if digits.bytes().any(|b| b.is_ascii_uppercase()) {
            return None;
        }
        let mut bytes = [0; 32];
        hex::decode_to_slice(digits, &mut bytes).ok()?;
        Some(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", hex::encode(self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl serde::Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        Self::parse(&text)
            .ok_or_else(|| serde::de::Error::custom("a digest is sha256: and 64 lower-case hexadecimal digits"))
    }
}

struct Chain(Sha256);

impl Chain {
    fn field(&mut self, bytes: &[u8]) {
        // A field is at most a payload, far below 4 GiB.
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.0.update([1]);
        self.0.update(length.to_be_bytes());
        self.0.update(bytes);
    }

    fn integer(&mut self, value: i64) {
        self.field(&value.to_be_bytes());
    }

    fn uuid(&mut self, value: Uuid) {
        self.field(value.as_bytes());
    }

    fn optional(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.field(bytes),
            None => self.0.update([0]),
        }
    }
}

/// The digest of `event` (its own `digest` is not looked at) when it follows `previous` in the log of `task_id`.
pub fn chain(previous: Digest, task_id: TaskId, event: &Event) -> Digest {
    let mut chain = Chain(Sha256::new());
    chain.0.update([1]);
    chain.0.update(previous.0);
    chain.uuid(task_id.0);
    chain.integer(event.seq);
    chain.uuid(event.event_id.0);
    chain.field(event.event_type.as_bytes());
    chain.integer(i64::from(event.schema_version));
    chain.field(event.actor.kind.as_str().as_bytes());
    chain.field(event.actor.id.as_bytes());
    chain.optional(event.actor.channel.map(|channel| channel.as_str().as_bytes()));
    chain.optional(event.session_id.as_ref().map(|session| session.0.as_bytes().as_slice()));
    chain.integer(event.at.micros());
    chain.integer(event.recorded_at.micros());
    chain.field(&Sha256::digest(event.payload.as_bytes()));
    Digest(chain.0.finalize().into())
}
