use serde_json::json;

use super::*;
use crate::domain::event::{Actor, ActorKind};
use crate::domain::harness_event::{Batch, BatchLimits, read_batch};
use crate::domain::ids::EventId;
use crate::domain::json::scan;
use crate::domain::refusal::Refusal;
use crate::domain::time::Timestamp;

fn digest(of: &str) -> Digest {
    Digest::of(of.as_bytes())
}

fn event(seq: i64, event_type: &'static str, payload: &serde_json::Value) -> Event {
    Event {
        event_id: EventId(uuid::Uuid::nil()),
        seq,
        event_type: event_type.into(),
        schema_version: 1,
        actor: Actor { kind: ActorKind::Agent, id: "a".to_owned(), channel: None },
        session_id: None,
        at: Timestamp::EPOCH,
        recorded_at: Timestamp::EPOCH,
        payload: payload.to_string(),
        redacted: Vec::new(),
        digest: Digest::ZERO,
    }
}

fn digests(event_type: &'static str, payload: &serde_json::Value) -> Vec<Digest> {
    refs(&[event(1, event_type, payload)]).iter().map(|found| found.digest).collect()
}

#[test]
fn what_a_log_refers_to_is_found_where_it_is_named() {
    let (a, b, c) = (digest("a"), digest("b"), digest("c"));
    for harness in ["turn", "tool.called", "phase.changed", "todos.updated", "check.reported"] {
        assert_eq!(digests(harness, &json!({"artifact": {"size": 1, "digest": a, "more": [b]}})), [a], "{harness}");
        assert_eq!(digests(harness, &json!({"artifact": a.to_string(), "result": {"artifacts": [b]}})), []);
    }
    let opened = json!({"artifacts": [{"digest": a, "name": "n"}, {"digest": b}], "artifact_digests": [b, c]});
    assert_eq!(digests("request.opened", &opened), [a, b, c]);
    let set =
        json!({"outcome": "done_acted", "result": {"summary": "s", "artifacts": [{"digest": a}, b, 7, {"x": c}]}});
    assert_eq!(digests("outcome.set", &set), [a, b]);
}

#[test]
fn what_only_looks_like_a_reference_is_none() {
    let a = digest("a");
    assert_eq!(digests("turn", &json!({"body": a})), []);
    assert_eq!(digests("turn", &json!([{"artifact": {"digest": a}}])), []);
    assert_eq!(digests("turn", &json!({"artifact": {"digest": a.to_string().to_uppercase()}})), []);
    for server in ["request.resolved", "state.changed", "session.opened", "usage.reported"] {
        assert_eq!(digests(server, &json!({"artifact": {"digest": a}, "artifact_digests": [a]})), [], "{server}");
    }
    assert_eq!(digests("outcome.set", &json!({"result": null, "artifacts": [a]})), []);
    assert_eq!(digests("outcome.set", &json!({"result": [[[a]]]})), []);
    assert_eq!(digests("nothing.of.the.kind", &json!({"artifact": {"digest": a}})), []);
}

#[test]
fn a_digest_is_found_however_it_is_spelled_and_counted_once() {
    let a = digest("a");
    let mut spelled = event(4, "turn", &json!({}));
    spelled.payload = format!(r#"{{"\u0061rtifact":{{"digest":"{}"}}}}"#, a.to_string().replace(':', "\\u003a"));
    spelled.payload.insert_str(1, r#""n":1E400,"#);
    let again = event(5, "tool.called", &json!({"artifact": {"digest": a}}));
    assert_eq!(refs(&[event(3, "turn", &json!({"body": ""})), spelled, again]), [ArtifactRef { digest: a, seq: 4 }]);
}

fn batch(body: &str, limits: BatchLimits) -> Batch {
    let mut scanned = scan(body.as_bytes()).unwrap();
    read_batch(&mut scanned.value, &[], limits, Timestamp::EPOCH, &mut uuid::Uuid::nil)
}

fn spilling() -> BatchLimits {
    BatchLimits { spill_bytes: Some(1_000_000), ..BatchLimits::default() }
}

#[test]
fn a_large_payload_leaves_what_its_type_requires() {
    let big = "x".repeat(70_000);
    let todos: Vec<_> = (0..2_000).map(|n| json!({"title": format!("thing {n}"), "done": false})).collect();
    let cases = [
        ("turn", json!({"body": big, "decision": "go"}), json!({"body": format!("{}…", "x".repeat(2_000))})),
        ("turn", json!({"more": big, "body": "short"}), json!({"body": "short"})),
        (
            "tool.called",
            json!({"result": big, "mutating": true, "tool": "ls"}),
            json!({"tool": "ls", "mutating": true}),
        ),
        (
            "phase.changed",
            json!({"phase": "p", "more": big, "furthest_milestone": "m"}),
            json!({"phase": "p", "furthest_milestone": "m"}),
        ),
        ("todos.updated", json!({"todos": todos}), json!({"todos": todos[..220]})),
        ("check.reported", json!({"name": "n", "value": big, "verdict": "v"}), json!({"name": "n", "verdict": "v"})),
    ];
    for (event_type, payload, kept) in cases {
        let body = json!({"events": [{"type": event_type, "payload": payload}]}).to_string();
        let read = batch(&body, spilling()).events.unwrap().remove(0);
        let whole = read.spilled.unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&whole.text).unwrap(), payload, "{event_type}");
        assert_eq!(whole.digest, digest(&whole.text));
        let mut stored: serde_json::Value = serde_json::from_str(&read.payload).unwrap();
        let artifact = stored.as_object_mut().unwrap().remove("artifact").unwrap();
        let preview: String = whole.text.chars().take(500).collect();
        assert_eq!(
            artifact,
            json!({"digest": whole.digest, "size": whole.text.len(), "media_type": "application/json", "preview": preview})
        );
        if event_type == "todos.updated" {
            let (some, all) = (stored["todos"].as_array().unwrap().len(), todos.len());
            assert!((100..all).contains(&some), "{some}");
            assert_eq!(stored["todos"].as_array().unwrap()[..], todos[..some]);
        } else {
            assert_eq!(stored, kept, "{event_type}");
        }
        assert!(read.payload.len() < 20_000);
        let stored = Event { payload: read.payload, ..event(7, event_type, &json!({})) };
        assert_eq!(refs(&[stored]), [ArtifactRef { digest: whole.digest, seq: 7 }]);
    }
}

#[test]
fn only_what_is_over_the_limit_is_split() {
    let of =
        |bytes: usize| json!({"events": [{"type": "turn", "payload": {"body": "x".repeat(bytes - 11)}}]}).to_string();
    let limits = BatchLimits { payload_bytes: 5_000, spill_bytes: Some(9_000), ..BatchLimits::default() };
    assert_eq!(batch(&of(5_000), limits).events.unwrap()[0].spilled, None);
    assert!(batch(&of(5_001), limits).events.unwrap()[0].spilled.is_some());
    assert!(batch(&of(9_000), limits).events.is_ok());
    let too_large = |limit| Refusal::PayloadTooLarge { limit, what: "/events/0/payload".to_owned() };
    assert_eq!(batch(&of(9_001), limits).events, Err(too_large(9_000)));
    let none = BatchLimits { spill_bytes: None, ..limits };
    assert_eq!(batch(&of(5_001), none).events, Err(too_large(5_000)));
}

#[test]
fn neither_the_preview_nor_the_artifact_shows_a_secret() {
    let token = format!("ghp_{}", "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8");
    let payload = json!({"tool": "t", "mutating": false, "password": "hunter2", "result": [token, "x".repeat(70_000)]});
    let body = json!({"events": [{"type": "tool.called", "payload": payload}]}).to_string();
    let read = batch(&body, spilling()).events.unwrap().remove(0);
    let whole = read.spilled.unwrap().text;
    for text in [&whole, &read.payload] {
        assert!(text.contains("[redacted]") && !text.contains("hunter2") && !text.contains(&token), "{text:.600}");
    }
    assert_eq!(read.redacted, ["/password", "/result/0"]);
}

#[test]
fn a_media_type_is_served_only_if_it_is_one() {
    for (sent, kept) in [
        ("text/plain", "text/plain"),
        ("Text/HTML; Charset=\"UTF-8\"", "text/html; charset=utf-8"),
        ("application/vnd.acme+json; version=1", "application/vnd.acme+json"),
        ("text/plain; charset=a b", "text/plain"),
        ("", UNKNOWN_MEDIA_TYPE),
        ("text", UNKNOWN_MEDIA_TYPE),
        ("text/", UNKNOWN_MEDIA_TYPE),
        ("text/pl ain", UNKNOWN_MEDIA_TYPE),
        ("text/plain\r\nx: y", UNKNOWN_MEDIA_TYPE),
        ("täxt/plain", UNKNOWN_MEDIA_TYPE),
    ] {
        assert_eq!(media_type(sent), kept, "{sent}");
    }
    // What is kept has 200 bytes at most.
    let long = |sub: usize| format!("text/{}", "x".repeat(sub));
    assert_eq!(media_type(&long(195)), long(195));
    assert_eq!(media_type(&long(196)), UNKNOWN_MEDIA_TYPE);
    let utf8 = |sub: usize| format!("{}; charset=utf-8", long(sub));
    assert_eq!(media_type(&utf8(180)), utf8(180));
    assert_eq!(media_type(&utf8(181)), long(181));
}

#[test]
fn a_list_keeps_the_entries_that_fit_with_their_commas() {
    // 64 bytes each.
    let entries: Vec<String> = vec!["x".repeat(61); 129];
    for given in [127, 128, 129] {
        let payload = json!({"todos": entries[..given]}).to_string();
        let scanned = scan(payload.as_bytes()).unwrap();
        let (kept, _) = spill(EventType::TodosUpdated, &scanned.value, payload.clone());
        let kept: serde_json::Value = serde_json::from_str(&kept).unwrap();
        assert_eq!(kept["todos"].as_array().unwrap().len(), given.min(128));
    }
}

#[test]
fn a_payload_that_goes_to_the_store_refers_to_what_it_named_still() {
    let (own, long) = (digest("own"), "x".repeat(70_000));
    let text = json!({"body": "b", "artifact": {"digest": own, "name": "report"}, "more": long}).to_string();
    let scanned = scan(text.as_bytes()).unwrap();
    let (kept, spilled) = spill(EventType::Turn, &scanned.value, text.clone());
    let kept = serde_json::from_str(&kept).unwrap();
    assert_eq!(digests("turn", &kept), [spilled.digest, own]);
    let plain = json!({"body": "b", "artifact": "report", "more": long}).to_string();
    let scanned = scan(plain.as_bytes()).unwrap();
    let (kept, spilled) = spill(EventType::Turn, &scanned.value, plain.clone());
    assert_eq!(digests("turn", &serde_json::from_str(&kept).unwrap()), [spilled.digest]);
}
