//! `openapi/events` says exactly what the log holds: one schema per event type, checked against payloads that the
//! domain writes and against what it accepts of harnesses.

#![allow(clippy::unwrap_used)]

#[path = "support/sample_logs.rs"]
mod sample;
#[path = "support/event_schemas.rs"]
mod schemas;

use std::collections::{BTreeMap, BTreeSet};

use mandate::domain::event::{ActorKind, EventType};
use mandate::domain::harness_event::{BatchLimits, read_batch};
use mandate::domain::json;
use mandate::domain::outcome::{Outcome, OutcomeReason};
use mandate::domain::request::{RequestKind, RequestStatus};
use mandate::domain::status::{Control, StateReason, Status};
use schemas::EventSchemas;
use serde_json::{Value, json};

#[test]
fn every_event_type_has_exactly_one_schema() {
    let schemas = EventSchemas::load();
    let published: Vec<_> = schemas.iter().map(|(event_type, version, _)| (event_type, version)).collect();
    let mut wanted: Vec<_> = EventType::ALL.iter().map(|event_type| (event_type.as_str(), 1)).collect();
    wanted.sort_unstable();
    assert_eq!(published, wanted);
}

#[test]
fn every_schema_is_valid_and_says_what_it_is() {
    for (event_type, version, schema) in EventSchemas::load().iter() {
        let document = &schema.document;
        if let Err(fault) = jsonschema::draft202012::meta::validate(document) {
            panic!("{event_type}: {fault}");
        }
        assert_eq!(document["$schema"], "https://json-schema.org/draft/2020-12/schema", "{event_type}");
        assert_eq!(document["$id"], format!("{event_type}.v{version}.json"));
        assert_eq!(document["title"], event_type);
        assert_eq!(document["additionalProperties"], true, "{event_type}: readers are open");
        for (place, part) in parts(document) {
            let text = part["description"].as_str().unwrap_or_default();
            assert!(!text.is_empty(), "{event_type}: {place} has no description");
        }
    }
}

#[test]
fn every_example_is_valid() {
    for (event_type, _, schema) in EventSchemas::load().iter() {
        let examples = schema.document["examples"].as_array().unwrap();
        assert!(!examples.is_empty(), "{event_type} has no example");
        for example in examples {
            assert_eq!(schema.faults(example), Vec::<String>::new(), "{event_type}: {example}");
        }
    }
}

#[test]
fn what_the_domain_writes_is_valid() {
    let schemas = EventSchemas::load();
    let mut seen = BTreeSet::new();
    for (event_type, payload) in sample::payloads() {
        let faults = schemas.faults(&event_type, 1, &payload);
        assert!(faults.is_empty(), "{event_type} {payload:#}\n{faults:#?}");
        seen.insert(event_type);
    }
    let unseen: Vec<_> = EventType::NAMES.iter().filter(|name| !seen.contains(**name)).collect();
    assert!(unseen.is_empty(), "the sample has no {unseen:?}");
}

#[test]
fn schemas_of_server_events_list_exactly_the_members_that_are_written() {
    let schemas = EventSchemas::load();
    let by_type: BTreeMap<_, _> = schemas.iter().map(|(event_type, _, schema)| (event_type, schema)).collect();
    for (event_type, payload) in sample::payloads() {
        if event_type.parse::<EventType>().unwrap().is_written_by_harness() {
            continue;
        }
        let document = &by_type[event_type.as_str()].document;
        let required: BTreeSet<_> = document["required"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let listed = names(&document["properties"]);
        let written = names(&payload);
        if event_type == EventType::UsageReported.as_str() && payload["measured"] == false {
            assert_eq!(written, required, "{event_type}, unmeasured");
        } else {
            assert_eq!(written, listed, "{event_type}");
        }
        let optional: Vec<_> = listed.difference(&required).copied().collect();
        let counts = ["cache_read_tokens", "cache_write_tokens", "tokens_in", "tokens_out"];
        let expected: &[&str] = if event_type == "usage.reported" { &counts } else { &[] };
        assert_eq!(optional, expected, "{event_type}: serde writes null, so every member is required");
    }
}

#[test]
fn schemas_refuse_what_the_server_never_writes() {
    let schemas = EventSchemas::load();
    let (_, _, report) = schemas.iter().find(|(event_type, ..)| *event_type == "usage.reported").unwrap();
    let measured = report.document["examples"][0].clone();
    let lies = [
        ("cost", json!("0.10")),
        ("cost", json!("-0")),
        ("cost", json!("1e3")),
        ("cost", json!(0.5)),
        ("cost_total", Value::Null),
        ("measured", json!(false)),
        ("tokens_in", Value::Null),
        ("report_id", json!("none")),
        ("input_cost_per_million", json!("-1")),
    ];
    for (name, value) in lies {
        let mut changed = measured.clone();
        changed[name] = value.clone();
        assert!(!report.faults(&changed).is_empty(), "{name} {value}");
    }
    let (_, _, expired) = schemas.iter().find(|(event_type, ..)| *event_type == "request.expired").unwrap();
    for time in ["2026-01-31T09:30:00Z", "2026-01-31T09:30:00.000001+01:00", "2026-13-31T09:30:00.000001Z"] {
        let mut changed = expired.document["examples"][0].clone();
        changed["expires_at"] = json!(time);
        assert!(!expired.faults(&changed).is_empty(), "{time}");
    }
}

/// Payloads of harnesses, and whether they are accepted.
fn harness_payloads() -> Vec<(&'static str, Value, bool)> {
    let long = "x".repeat(501);
    vec![
        ("turn", json!({"body": ""}), true),
        ("turn", json!({"body": "x", "decision": {"go": true}, "more": [1]}), true),
        ("turn", json!({}), false),
        ("turn", json!({"body": null}), false),
        ("turn", json!({"body": ["x"]}), false),
        ("turn", json!("x"), false),
        ("tool.called", json!({"tool": "ls", "mutating": false}), true),
        ("tool.called", json!({"tool": "ls", "mutating": true, "duration_ms": "12", "call_id": null}), true),
        ("tool.called", json!({"tool": "", "mutating": true}), false),
        ("tool.called", json!({"tool": " ", "mutating": true}), false),
        ("tool.called", json!({"tool": long, "mutating": true}), false),
        ("tool.called", json!({"tool": "ls"}), false),
        ("tool.called", json!({"tool": "ls", "mutating": "no"}), false),
        ("phase.changed", json!({"phase": "done", "furthest_milestone": null}), true),
        ("phase.changed", json!({"phase": "done", "furthest_milestone": "merged"}), true),
        ("phase.changed", json!({"phase": "done", "furthest_milestone": ""}), false),
        ("phase.changed", json!({"phase": "done", "furthest_milestone": 3}), false),
        ("phase.changed", json!({"phase": "\t"}), false),
        ("todos.updated", json!({"todos": []}), true),
        ("todos.updated", json!({"todos": [1, "two", {"title": "three"}, null]}), true),
        ("todos.updated", json!({"todos": {}}), false),
        ("todos.updated", json!({}), false),
        ("check.reported", json!({"name": "tests", "verdict": "pass", "value": 1}), true),
        ("check.reported", json!({"name": "tests"}), false),
        ("check.reported", json!({"name": "tests", "verdict": true}), false),
    ]
}

#[test]
fn schemas_of_harness_events_say_what_is_accepted() {
    let schemas = EventSchemas::load();
    for (event_type, payload, accepted) in harness_payloads() {
        let body = json!({"events": [{"type": event_type, "payload": payload}]}).to_string();
        let mut scanned = json::scan(body.as_bytes()).unwrap();
        let batch =
            read_batch(&mut scanned.value, &[], BatchLimits::default(), sample::now(), &mut || uuid::Uuid::nil());
        assert_eq!(batch.events.is_ok(), accepted, "{event_type} {payload}: {:?}", batch.events);
        assert_eq!(schemas.faults(event_type, 1, &payload).is_empty(), accepted, "{event_type} {payload}");
    }
}

/// The closed sets of the domain by the member that holds one.
fn closed_set(event_type: &str, place: &str) -> Option<Vec<&'static str>> {
    let settled = |status: &&RequestStatus| !matches!(status, RequestStatus::Open | RequestStatus::Expired);
    Some(match (event_type, place) {
        ("task.created", "/origin/kind") => vec!["human", "schedule", "webhook", "task"],
        ("state.changed", "/from" | "/to") => Status::NAMES.to_vec(),
        ("state.changed", "/reason") => StateReason::NAMES.to_vec(),
        ("control.changed", "/from" | "/to") => Control::NAMES.to_vec(),
        ("request.opened" | "request.expired", "/kind") => RequestKind::NAMES.to_vec(),
        ("request.resolved", "/status") => {
            RequestStatus::ALL.iter().filter(settled).map(|status| status.as_str()).collect()
        }
        (_, "/outcome") => Outcome::NAMES.to_vec(),
        ("outcome.set", "/reason") | (_, "/outcome_reason") => OutcomeReason::NAMES.to_vec(),
        (_, "/side") => vec!["dependent", "prerequisite"],
        (_, "/created_by_kind" | "/added_by_kind") => ActorKind::NAMES.to_vec(),
        _ => return None,
    })
}

#[test]
fn names_of_closed_sets_are_those_of_the_domain() {
    for (event_type, _, schema) in EventSchemas::load().iter() {
        for (place, part) in parts(&schema.document) {
            let published = part["x-extensible-enum"].as_array();
            let published = published.map(|names| names.iter().filter_map(Value::as_str).collect::<Vec<_>>());
            assert_eq!(published, closed_set(event_type, &place), "{event_type}: {place}");
            assert_eq!(part.get("enum"), None, "{event_type}: {place}: readers are open");
        }
    }
}

fn names(object: &Value) -> BTreeSet<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

/// The members of a schema and of the objects within, each with its place.
fn parts(document: &Value) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    let Some(properties) = document["properties"].as_object() else { return found };
    for (name, part) in properties {
        found.push((format!("/{name}"), part));
        let inner = if part["items"]["properties"].is_object() { &part["items"] } else { part };
        found.extend(parts(inner).into_iter().map(|(place, part)| (format!("/{name}{place}"), part)));
    }
    found
}
