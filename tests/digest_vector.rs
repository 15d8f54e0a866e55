//! `openapi/digest-test-vector.json` pins the encoding of the digest chain. The file was computed by a program that
//! shares no code with the server, so that an agreement of the two says something.

#![allow(clippy::unwrap_used)]

use mandate::domain::aggregate::fold;
use mandate::domain::digest::{Digest, chain};
use mandate::domain::event::{Actor, Event};
use mandate::domain::ids::{OrganizationId, TaskId};
use mandate::domain::time::Timestamp;
use serde_json::Value;
use uuid::Uuid;

fn vector() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi/digest-test-vector.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("{name} is no text"))
}

fn task_id(vector: &Value) -> TaskId {
    text(vector, "task_id").parse().unwrap()
}

fn log(vector: &Value) -> Vec<Event> {
    let event = |entry: &Value| Event {
        event_id: text(entry, "event_id").parse().unwrap(),
        seq: entry["seq"].as_i64().unwrap(),
        event_type: text(entry, "type").to_owned().into(),
        schema_version: i32::try_from(entry["schema_version"].as_i64().unwrap()).unwrap(),
        actor: Actor {
            kind: text(entry, "actor_kind").parse().unwrap(),
            id: text(entry, "actor_id").to_owned(),
            channel: entry["channel"].as_str().map(|name| name.parse().unwrap()),
        },
        session_id: entry["session_id"].as_str().map(|id| id.parse().unwrap()),
        at: Timestamp::parse(text(entry, "at")).unwrap(),
        recorded_at: Timestamp::parse(text(entry, "recorded_at")).unwrap(),
        payload: text(entry, "payload_text").to_owned(),
        redacted: Vec::new(),
        digest: Digest::parse(text(entry, "digest")).unwrap(),
    };
    vector["events"].as_array().unwrap().iter().map(event).collect()
}

#[test]
fn the_chain_gives_the_published_digests() {
    let vector = vector();
    let mut head = Digest::ZERO;
    for event in log(&vector) {
        head = chain(head, task_id(&vector), &event);
        assert_eq!(head, event.digest, "seq {}", event.seq);
    }
    assert_eq!(head.to_string(), text(&vector, "log_digest"));
}

#[test]
fn the_published_preimage_and_payload_hashes_are_those_of_the_digests() {
    let vector = vector();
    let preimage = hex::decode(text(&vector, "first_preimage_hex")).unwrap();
    assert_eq!(Digest::of(&preimage), log(&vector)[0].digest);
    for entry in vector["events"].as_array().unwrap() {
        let hash = Digest::of(text(entry, "payload_text").as_bytes()).to_string();
        assert_eq!(hash, format!("sha256:{}", text(entry, "payload_sha256")));
    }
}

#[test]
fn the_published_log_covers_what_is_easy_to_get_wrong() {
    let log = log(&vector());
    assert!(log.iter().any(|event| event.actor.channel.is_none() && event.session_id.is_none()));
    assert!(log.iter().any(|event| event.actor.channel.is_some() && event.session_id.is_some()));
    assert!(log.iter().any(|event| !event.payload.is_ascii()));
    assert!(log.iter().any(|event| event.at != event.recorded_at && event.at.micros() % 1_000 != 0));
}

#[test]
fn the_published_log_is_one_that_the_server_could_have_written() {
    let vector = vector();
    let log = log(&vector);
    let folded = fold(OrganizationId(Uuid::nil()), task_id(&vector), &log).unwrap();
    assert_eq!(folded.task().facts().log_digest.to_string(), text(&vector, "log_digest"));
    assert_eq!(folded.task().facts().last_seq, 6);
    assert_eq!(folded.task().facts().open_sessions, 0);
}

#[test]
fn any_change_of_any_entry_breaks_the_chain() {
    type Tamper = (&'static str, fn(&mut Event));
    let tampers: [Tamper; 11] = [
        ("seq", |event| event.seq += 1),
        ("event_id", |event| event.event_id.0 = Uuid::nil()),
        ("type", |event| event.event_type = "turn ".into()),
        ("schema_version", |event| event.schema_version += 1),
        ("actor_kind", |event| event.actor.kind = mandate::domain::event::ActorKind::Agent),
        ("actor_id", |event| event.actor.id.push('x')),
        ("channel", |event| event.actor.channel = None),
        ("session_id", |event| event.session_id = None),
        ("at", |event| event.at = event.at.plus(std::time::Duration::from_micros(1))),
        ("recorded_at", |event| event.recorded_at = event.recorded_at.minus(std::time::Duration::from_micros(1))),
        ("payload", |event| event.payload.push(' ')),
    ];
    let vector = vector();
    let log = log(&vector);
    // The turn has every field, so that each can be changed.
    for (what, tamper) in tampers {
        let mut changed = log[3].clone();
        tamper(&mut changed);
        assert_ne!(chain(log[2].digest, task_id(&vector), &changed), log[3].digest, "{what}");
    }
    assert_ne!(chain(log[1].digest, task_id(&vector), &log[3]), log[3].digest, "another previous digest");
    assert_ne!(chain(log[2].digest, TaskId(Uuid::nil()), &log[3]), log[3].digest, "another task");
}
