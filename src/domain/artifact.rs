//! Artifacts: what a log names by its digest and does not hold itself. Which digests a log refers to, and what is left
//! of a payload that is too large for it.

use super::digest::Digest;
use super::event::{Event, EventType};
use super::json::{Text, Value, scan_enveloped};

/// The media type of a payload in the artifact store.
pub const PAYLOAD_MEDIA_TYPE: &str = "application/json";
/// The media type of what is not known better.
pub const UNKNOWN_MEDIA_TYPE: &str = "application/octet-stream";
/// The longest media type that is kept, in bytes.
pub const MEDIA_TYPE_MAX: usize = 200;
/// How much of a payload's text its event shows, in characters.
pub const PREVIEW_CHARS: usize = 500;
/// How much of a turn's body its event keeps, in characters.
pub const BODY_CHARS: usize = 2_000;
/// How much of a list of things to do its event keeps, in bytes of JSON: its first entries.
pub const TODOS_BYTES: usize = 8 * 1024;

/// The member of `artifact` that keeps which artifact a payload named itself before it went to the store.
const NAMES: &str = "names";

/// The levels that the server adds around what was sent: the result of an outcome stands within its payload.
const PAYLOAD_LEVELS: usize = 1;

/// That a log refers to an artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArtifactRef {
    /// Which.
    pub digest: Digest,
    /// The first entry that names it.
    pub seq: i64,
}

/// The artifacts that `events` refer to, each once, in the order of their first mention. It is a function of the log
/// alone, so that the rows that keep artifacts from being removed can be checked against it.
///
/// A log refers to an artifact in `artifact` of what a harness appends, in `result.artifacts` of an outcome (objects with
/// a `digest`, or digests), and in `artifacts` and `artifact_digests` of a request. A resolution names its request's
/// digests only.
pub fn refs(events: &[Event]) -> Vec<ArtifactRef> {
    let mut found: Vec<ArtifactRef> = Vec::new();
    for event in events {
        for digest in named(&event.event_type, &event.payload) {
            if !found.iter().any(|known| known.digest == digest) {
                found.push(ArtifactRef { digest, seq: event.seq });
            }
        }
    }
    found
}

fn named(event_type: &str, payload: &str) -> Vec<Digest> {
    // Most payloads name nothing, and reading them would cost every append.
    if !payload.contains("sha256:") && !payload.contains("\\u") {
        return Vec::new();
    }
    let Ok(event_type) = event_type.parse::<EventType>() else { return Vec::new() };
    // Not serde: a number that it cannot hold may stand beside a digest.
    let Ok(scanned) = scan_enveloped(payload.as_bytes(), PAYLOAD_LEVELS) else { return Vec::new() };
    let payload = scanned.value;
    match event_type {
        EventType::RequestOpened => [list(payload.get("artifacts")), list(payload.get("artifact_digests"))].concat(),
        EventType::OutcomeSet => list(payload.get("result").and_then(|result| result.get("artifacts"))),
        harness if harness.is_written_by_harness() => {
            let artifact = payload.get("artifact");
            ["digest", NAMES].iter().filter_map(|member| digest_of(artifact, member)).collect()
        }
        _ => Vec::new(),
    }
}

fn digest_of(artifact: Option<&Value<'_>>, member: &str) -> Option<Digest> {
    artifact.and_then(|artifact| artifact.get(member)).and_then(Value::as_str).and_then(Digest::parse)
}

/// The digests of a list whose entries have one, or are one.
fn list(entries: Option<&Value<'_>>) -> Vec<Digest> {
    let entries = entries.and_then(Value::as_array).unwrap_or_default();
    let digest = |entry: &Value<'_>| entry.get("digest").unwrap_or(entry).as_str().and_then(Digest::parse);
    entries.iter().filter_map(digest).collect()
}

/// A payload that is too large for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spilled {
    /// Of its text.
    pub digest: Digest,
    /// Its text, redacted: what goes to the artifact store.
    pub text: String,
}

/// Splits a payload that is too large for the log: what its event keeps, as text, and what goes to the artifact store.
///
/// The event keeps what its type requires, so that readers and folding find it: scalars as they are, a long `body` and
/// a long list of `todos` only in their beginning. `artifact` says where the whole is, and names what the
/// payload named in its own, so that the log refers to it still. The same payload leaves the same
/// event, which is what makes a repeated id a duplicate.
pub fn spill(event_type: EventType, payload: &Value<'_>, text: String) -> (String, Spilled) {
    let digest = Digest::of(text.as_bytes());
    let mut members = Vec::new();
    let mut keep = |name: &'static str, value: Option<Value<'_>>| {
        members.extend(value.map(|value| (Text::new(name), value.into_owned())));
    };
    let of = |name: &str| payload.get(name).cloned();
    match event_type {
        EventType::Turn => keep("body", of("body").map(shortened)),
        EventType::ToolCalled => {
            keep("tool", of("tool"));
            keep("mutating", of("mutating"));
        }
        EventType::PhaseChanged => {
            keep("phase", of("phase"));
            keep("furthest_milestone", of("furthest_milestone"));
        }
        EventType::TodosUpdated => keep("todos", of("todos").map(first_entries)),
        EventType::CheckReported => {
            keep("name", of("name"));
            keep("verdict", of("verdict"));
        }
        _ => {}
    }
    let preview: String = text.chars().take(PREVIEW_CHARS).collect();
    let string = |text: &str| Value::String(Text::new(text));
    let mut artifact = vec![
        (Text::new("digest"), string(&digest.to_string())),
        (Text::new("size"), Value::Number(text.len().to_string().into())),
        (Text::new("media_type"), string(PAYLOAD_MEDIA_TYPE)),
        (Text::new("preview"), string(&preview)),
    ];
    if let Some(named) = digest_of(payload.get("artifact"), "digest") {
        artifact.push((Text::new(NAMES), string(&named.to_string())));
    }
    members.push((Text::new("artifact"), Value::Object(artifact)));
    (Value::Object(members).to_text(), Spilled { digest, text })
}

fn shortened(body: Value<'_>) -> Value<'_> {
    let text = body.as_str().unwrap_or_default();
    match text.char_indices().nth(BODY_CHARS) {
        Some((end, _)) => Value::String(Text::new(&format!("{}…", text.get(..end).unwrap_or_default()))),
        None => body,
    }
}

fn first_entries(todos: Value<'_>) -> Value<'_> {
    let Value::Array(entries) = todos else { return todos };
    let mut room = TODOS_BYTES;
    let fits = |entry: &Value<'_>| {
        let left = room.checked_sub(entry.to_text().len() + 1);
        room = left.unwrap_or_default();
        left.is_some()
    };
    Value::Array(entries.into_iter().take_while(fits).collect())
}

/// A media type as it may be served: `type/subtype`, lower-case, with at most a `charset`, which is left out when there
/// is no room for it; anything else is [`UNKNOWN_MEDIA_TYPE`].
pub fn media_type(sent: &str) -> String {
    let token = |text: &str| {
        let legal = |b: u8| b.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&b);
        !text.is_empty() && text.bytes().all(legal)
    };
    let mut parts = sent.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default().to_ascii_lowercase();
    let known = essence.split_once('/').is_some_and(|(kind, sub)| token(kind) && token(sub));
    if !known || essence.len() > MEDIA_TYPE_MAX {
        return UNKNOWN_MEDIA_TYPE.to_owned();
    }
    let charset = parts.find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("charset").then(|| value.trim().trim_matches('"').to_ascii_lowercase())
    });
    let whole = charset.filter(|charset| token(charset)).map(|charset| format!("{essence}; charset={charset}"));
    whole.filter(|whole| whole.len() <= MEDIA_TYPE_MAX).unwrap_or(essence)
}

#[cfg(test)]
mod tests;
