//! What a harness may append, and what each type requires. More than is required is kept.

use std::time::Duration;

use uuid::Uuid;

use super::artifact::spill;
use super::command::HarnessEvent;
use super::event::{ActorKind, EventType};
use super::ids::EventId;
use super::json::Value;
use super::limits::{BATCH_EVENTS_MAX, CLOCK_AHEAD_SECONDS, NAME_MAX, PAYLOAD_BYTES_MAX, TEXT_MAX};
use super::payload::PhaseChanged;
use super::read::Fields;
use super::redaction;
use super::refusal::{Checked, Fault, Refusal};
use super::time::Timestamp;

/// A batch as it was read: what the state's rules need, and the events or their faults.
#[derive(Debug)]
pub struct Batch {
    /// Whether every entry says that it is a tool call, be it readable or not.
    pub only_tool_calls: bool,
    /// The ids that the harness gave.
    pub named_ids: Vec<EventId>,
    /// The events, redacted.
    pub events: Checked<Vec<HarnessEvent>>,
}

/// What a batch may hold. A server may be set to less than the contract names, never to more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLimits {
    /// The most events.
    pub events: usize,
    /// The largest payload that the log itself keeps, in bytes of JSON.
    pub payload_bytes: usize,
    /// The largest payload that goes to the artifact store instead; absent: there is none.
    pub spill_bytes: Option<usize>,
}

impl Default for BatchLimits {
    fn default() -> Self {
        Self { events: BATCH_EVENTS_MAX, payload_bytes: PAYLOAD_BYTES_MAX, spill_bytes: None }
    }
}

/// Reads the member `events` of a body; `faults` are what was wrong with the body as JSON.
pub fn read_batch(
    body: &mut Value<'_>,
    faults: &[Fault],
    limits: BatchLimits,
    now: Timestamp,
    new_id: &mut dyn FnMut() -> Uuid,
) -> Batch {
    let redacted = redact_payloads(body);
    let mut fields = Fields::new(body, "").with_faults(faults);
    if fields.member("events").is_none() {
        fields.fault("events", "is required");
    }
    let items = fields.list("events", limits.events);
    if fields.is_faultless() && items.is_empty() {
        fields.fault("events", format!("must have 1 to {} entries", limits.events));
    }
    let is_tool_call = |item: &Value<'_>| item.get("type").and_then(Value::as_str) == Some("tool.called");
    let only_tool_calls = !items.is_empty() && items.iter().all(is_tool_call);
    let (mut events, mut named_ids) = (Vec::with_capacity(items.len()), Vec::new());
    let (mut too_large, mut conflict, mut reserved) = (None, None, None);
    for (index, item) in items.iter().enumerate() {
        let pointer = format!("/events/{index}");
        let pointers = redacted.get(index).cloned().unwrap_or_default();
        match read_event(item, (pointer.as_str(), limits), pointers, now, new_id) {
            Ok((event, named)) => {
                if named && named_ids.contains(&event.event_id) {
                    conflict = conflict.or(Some(Refusal::EventIdConflict(event.event_id)));
                }
                if named {
                    named_ids.push(event.event_id);
                }
                events.push(event);
            }
            Err(Refusal::Invalid(faults)) => fields.extend(faults),
            Err(other @ Refusal::PayloadTooLarge { .. }) => too_large = too_large.or(Some(other)),
            Err(other) => reserved = reserved.or(Some(other)),
        }
    }
    // What is too large ranks first; an id is answered before the state, and so before the rest of the body.
    let events = match too_large.or(conflict) {
        Some(refusal) => Err(refusal),
        None => match reserved {
            Some(refusal) if fields.is_faultless() => Err(refusal),
            Some(_) | None => fields.finish(events),
        },
    };
    Batch { only_tool_calls, named_ids, events }
}

fn redact_payloads(body: &mut Value<'_>) -> Vec<Vec<String>> {
    let Value::Object(members) = body else { return Vec::new() };
    let events = members.iter_mut().find(|(key, _)| key.as_str() == "events");
    let Some((_, Value::Array(events))) = events else { return Vec::new() };
    let redact = |event: &mut Value<'_>| {
        let Value::Object(members) = event else { return Vec::new() };
        let payload = members.iter_mut().find(|(key, _)| key.as_str() == "payload");
        payload.map(|(_, payload)| redaction::redact(payload)).unwrap_or_default()
    };
    events.iter_mut().map(redact).collect()
}

fn read_event(
    item: &Value<'_>,
    (pointer, limits): (&str, BatchLimits),
    redacted: Vec<String>,
    now: Timestamp,
    new_id: &mut dyn FnMut() -> Uuid,
) -> Result<(HarnessEvent, bool), Refusal> {
    let mut fields = Fields::new(item, pointer);
    let payload = item.get("payload").unwrap_or(&Value::Null);
    let text = payload.to_text();
    let is_large = text.len() > limits.payload_bytes;
    let limit = limits.spill_bytes.unwrap_or_default().max(limits.payload_bytes);
    if text.len() > limit {
        return Err(Refusal::PayloadTooLarge { limit, what: fields.at("payload") });
    }
    let named = fields.id_opt::<EventId>("event_id");
    let type_name = fields.text("type", 1..=NAME_MAX);
    let event_type = match type_name.parse::<EventType>() {
        Ok(known) if known.is_written_by_harness() => known,
        Ok(_) => {
            let detail = format!("{type_name} is written by the server alone");
            return Err(Refusal::EventTypeReserved(Fault::new(fields.at("type"), detail)));
        }
        Err(_) => {
            if !type_name.is_empty() {
                fields.fault("type", "is no event type that a harness writes");
            }
            EventType::Turn
        }
    };
    let schema_version = fields.integer_opt("schema_version", 1..=1).unwrap_or(1);
    let actor_kind = fields.parsed_opt::<ActorKind>("actor_kind").unwrap_or(ActorKind::Agent);
    if !matches!(actor_kind, ActorKind::Agent | ActorKind::Subagent) {
        fields.fault("actor_kind", "must be agent or subagent");
    }
    let actor_id = fields.text_opt("actor_id", 1..=NAME_MAX);
    let at = fields.time_opt("at");
    let latest = now.plus(Duration::from_secs(CLOCK_AHEAD_SECONDS));
    if at.is_some_and(|at| at < Timestamp::EPOCH || at > latest) {
        fields.fault("at", "must lie between 1970 and five minutes from now");
    }
    if fields.member("payload").is_none() {
        fields.fault("payload", "is required");
    }
    let (phase, faults) = check_payload(event_type, payload, &fields.at("payload"));
    fields.extend(faults);
    let (text, spilled) = if is_large {
        let (kept, spilled) = spill(event_type, payload, text);
        (kept, Some(spilled))
    } else {
        (text, None)
    };
    let event = HarnessEvent {
        event_id: named.unwrap_or_else(|| EventId(new_id())),
        event_type,
        schema_version: i32::try_from(schema_version).unwrap_or(1),
        actor_kind,
        actor_id,
        at,
        payload: text,
        redacted,
        phase,
        spilled,
    };
    fields.finish((event, named.is_some()))
}

/// What each type requires of its payload.
fn check_payload(event_type: EventType, payload: &Value<'_>, pointer: &str) -> (Option<PhaseChanged>, Vec<Fault>) {
    let mut fields = Fields::new(payload, pointer);
    let mut phase = None;
    match event_type {
        EventType::Turn => {
            // A turn may be empty: a model may say nothing and only call tools. The payload's limit bounds it.
            fields.text("body", 0..=usize::MAX);
        }
        EventType::ToolCalled => {
            fields.text("tool", 1..=NAME_MAX);
            fields.bool("mutating");
        }
        EventType::PhaseChanged => {
            let name = fields.text("phase", 1..=NAME_MAX);
            let furthest_milestone = fields.text_opt("furthest_milestone", 1..=NAME_MAX);
            phase = Some(PhaseChanged { phase: name, furthest_milestone });
        }
        EventType::TodosUpdated => {
            if fields.member("todos").is_none() {
                fields.fault("todos", "is required");
            }
            fields.list("todos", TEXT_MAX);
        }
        EventType::CheckReported => {
            fields.text("name", 1..=NAME_MAX);
            fields.text("verdict", 1..=NAME_MAX);
        }
        _ => {}
    }
    (phase, fields.into_faults())
}

#[cfg(test)]
mod tests;
