//! Events as answers.

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::raw;
use crate::domain::event::Event;

/// One entry of a task's log. Readers pass on types that they do not know.
#[derive(Debug, Serialize, ToSchema)]
pub struct EventView {
    /// Stable id, unique within the task.
    pub event_id: Uuid,
    /// 1, 2, 3 … per task, no gap. The order of the log.
    pub seq: i64,
    /// The type; its payload's schema is `openapi/events/TYPE.vN.json`.
    #[serde(rename = "type")]
    pub event_type: String,
    /// Version of the payload's schema.
    pub schema_version: i32,
    /// Who caused it.
    pub actor_kind: String,
    /// The person, agent or service account.
    pub actor_id: String,
    /// The way it came; null for the server's workers.
    #[schema(required)]
    pub channel: Option<String>,
    /// The session it came from.
    #[schema(required)]
    pub session_id: Option<Uuid>,
    /// When it happened.
    #[schema(format = DateTime)]
    pub at: String,
    /// The server's clock at the write.
    #[schema(format = DateTime)]
    pub recorded_at: String,
    /// The payload, verbatim but for redactions.
    #[schema(value_type = serde_json::Value)]
    pub payload: Option<Box<RawValue>>,
    /// JSON pointers into the payload of what was redacted.
    pub redacted: Vec<String>,
    /// The digest chain up to and with this entry.
    pub digest: String,
}

impl From<&Event> for EventView {
    fn from(event: &Event) -> Self {
        Self {
            event_id: event.event_id.0,
            seq: event.seq,
            event_type: event.event_type.to_string(),
            schema_version: event.schema_version,
            actor_kind: event.actor.kind.to_string(),
            actor_id: event.actor.id.clone(),
            channel: event.actor.channel.map(|channel| channel.to_string()),
            session_id: event.session_id.map(|id| id.0),
            at: event.at.to_string(),
            recorded_at: event.recorded_at.to_string(),
            payload: raw(&event.payload),
            redacted: event.redacted.clone(),
            digest: event.digest.to_string(),
        }
    }
}

/// What became of a batch.
#[derive(Debug, Serialize, ToSchema)]
pub struct AppendedView {
    /// The events that were written, as they are in the log.
    pub written: Vec<EventView>,
    /// The ids that the task had already with the same content.
    pub duplicates: Vec<Uuid>,
}
