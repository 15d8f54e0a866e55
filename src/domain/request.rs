//! Requests: questions to people.

use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::event::Channel;
use super::ids::{RequestId, SessionId};
use super::names::names;
use super::payload::JsonText;
use super::time::Timestamp;

names! {
    /// What is asked for.
    RequestKind, RequestKindError: "request kind" {
        /// A decision.
        Feedback = "feedback",
        /// A permitted effect, bound to digests.
        Approval = "approval",
    }
}

names! {
    /// Where a request stands.
    RequestStatus, RequestStatusError: "request status" {
        /// Waits for a person.
        Open = "open",
        /// Feedback was given.
        Answered = "answered",
        /// The effect is permitted.
        Approved = "approved",
        /// The effect is refused.
        Rejected = "rejected",
        /// Nobody answered in time.
        Expired = "expired",
        /// Withdrawn, superseded, or its task closed.
        Void = "void",
    }
}

/// Something the person decides on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Its SHA-256.
    pub digest: Digest,
    /// What it is called.
    pub name: String,
    /// Its media type.
    pub media_type: String,
    /// Its size in bytes.
    pub size: i64,
    /// The first lines, redacted.
    #[serde(default)]
    pub preview: Option<String>,
}

/// How a person resolved a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolution {
    /// A free answer.
    pub answer: Option<String>,
    /// The option chosen.
    pub choice: Option<String>,
    /// Conditions.
    pub constraints: Option<JsonText>,
    /// What it binds to: always the request's digests.
    pub artifact_digests: Vec<Digest>,
    /// The way it came.
    pub channel: Option<Channel>,
}

/// A question to a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The request.
    pub id: RequestId,
    /// The session that asked.
    pub session_id: Option<SessionId>,
    /// What is asked for.
    pub kind: RequestKind,
    /// Where it stands.
    pub status: RequestStatus,
    /// The question.
    pub title: String,
    /// Why it is asked.
    pub why: Option<String>,
    /// The answers to choose from; empty: a free answer.
    pub options: Vec<String>,
    /// What the person decides on.
    pub artifacts: Vec<Artifact>,
    /// What an approval binds to.
    pub artifact_digests: Vec<Digest>,
    /// When it expires.
    pub expires_at: Timestamp,
    /// When it opened.
    pub opened_at: Timestamp,
    /// The harness's key for it.
    pub request_key: Option<String>,
    /// Who settled it; absent when nobody did.
    pub resolved_by: Option<String>,
    /// When it was settled.
    pub resolved_at: Option<Timestamp>,
    /// What the person said; absent when nobody did.
    pub resolution: Option<Resolution>,
    /// The request that took its place.
    pub superseded_by: Option<RequestId>,
}

impl Request {
    /// Whether it waits for a person.
    pub fn is_open(&self) -> bool {
        self.status == RequestStatus::Open
    }

    /// Whether it was asked for under `key` and binds to `digests`: the same question again.
    pub fn repeats(&self, key: Option<&str>, digests: &[Digest]) -> bool {
        key.is_some() && self.request_key.as_deref() == key && self.binds_to(digests)
    }

    /// Whether `digests` are the digests it is bound to, in any order.
    pub fn binds_to(&self, digests: &[Digest]) -> bool {
        let sorted = |digests: &[Digest]| {
            let mut bytes: Vec<_> = digests.iter().map(|digest| digest.0).collect();
            bytes.sort_unstable();
            bytes
        };
        sorted(&self.artifact_digests) == sorted(digests)
    }
}
