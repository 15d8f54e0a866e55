use serde_json::json;

use super::*;
use crate::domain::json::scan;
use crate::domain::refusal::Place;

/// A minute after 1970.
const NOW: i64 = 60_000_000;

fn read(body: &serde_json::Value) -> Batch {
    let text = body.to_string();
    let mut scanned = scan(text.as_bytes()).unwrap();
    let now = Timestamp::from_micros(NOW).unwrap();
    read_batch(&mut scanned.value, &[], BatchLimits::default(), now, &mut Uuid::nil)
}

fn batch(events: &[serde_json::Value]) -> Batch {
    read(&json!({"events": events}))
}

/// The pointers that the refusal of `batch` names.
fn pointers(batch: Batch) -> Vec<String> {
    let pointer = |fault: Fault| match fault.place {
        Place::Body(pointer) => pointer,
        other => panic!("{other:?}"),
    };
    match batch.events {
        Ok(_) => Vec::new(),
        Err(Refusal::Invalid(faults)) => faults.into_iter().map(pointer).collect(),
        Err(other) => panic!("{other:?}"),
    }
}

fn turn() -> serde_json::Value {
    json!({"type": "turn", "payload": {"body": "b"}})
}

/// `turn` with a member more.
fn with(name: &str, value: serde_json::Value) -> serde_json::Value {
    let mut event = turn();
    event[name] = value;
    event
}

#[test]
fn each_type_requires_its_members_and_keeps_all_others() {
    for (name, required) in [
        ("turn", json!({"body": ""})),
        ("tool.called", json!({"tool": "ls", "mutating": false})),
        ("phase.changed", json!({"phase": "p"})),
        ("todos.updated", json!({"todos": []})),
        ("check.reported", json!({"name": "n", "verdict": "v"})),
    ] {
        let mut more = required.clone();
        more["more"] = json!([1]);
        let events = batch(&[json!({"type": name, "payload": more})]).events.unwrap();
        assert_eq!((events[0].event_type.as_str(), serde_json::from_str(&events[0].payload).ok()), (name, Some(more)));
        for member in required.as_object().unwrap().keys() {
            let at = format!("/events/0/payload/{member}");
            for wrong in [None, Some(json!({"x": 1}))] {
                let mut payload = required.clone();
                payload.as_object_mut().unwrap().remove(member);
                if let Some(wrong) = wrong {
                    payload[member] = wrong;
                }
                assert_eq!(pointers(batch(&[json!({"type": name, "payload": payload})])), [at.as_str()], "{payload}");
            }
        }
    }
    assert_eq!(pointers(batch(&[json!({"type": "turn"})])).first().map(String::as_str), Some("/events/0/payload"));
}

#[test]
fn a_phase_is_read_for_the_state() {
    let payload = json!({"phase": "p", "furthest_milestone": "m"});
    let events = batch(&[json!({"type": "phase.changed", "payload": payload}), turn()]).events.unwrap();
    let phase = PhaseChanged { phase: "p".to_owned(), furthest_milestone: Some("m".to_owned()) };
    assert_eq!((events[0].phase.as_ref(), events[1].phase.as_ref()), (Some(&phase), None));
}

#[test]
fn what_the_server_writes_no_harness_may() {
    for event_type in EventType::ALL {
        let name = event_type.as_str();
        if event_type.is_written_by_harness() {
            continue;
        }
        let event = json!({"type": name, "payload": {"body": "b"}});
        let refused = batch(&[turn(), event.clone()]).events;
        assert!(
            matches!(&refused, Err(Refusal::EventTypeReserved(fault))
                if fault.place == Place::Body("/events/1/type".to_owned()) && fault.detail.contains(name)),
            "{refused:?}"
        );
        // Beside what is not even readable it is not told.
        assert_eq!(pointers(batch(&[event, json!({"type": "turn", "payload": {}})])), ["/events/1/payload/body"]);
    }
    for unknown in ["", "nothing.of.the.kind", "Turn"] {
        assert_eq!(pointers(batch(&[with("type", json!(unknown))])), ["/events/0/type"], "{unknown}");
    }
}

#[test]
fn an_actor_is_the_agent_or_a_helper() {
    for (kind, good) in [("agent", true), ("subagent", true), ("human", false), ("system", false)] {
        let at = pointers(batch(&[with("actor_kind", json!(kind))]));
        assert_eq!(at, if good { vec![] } else { vec!["/events/0/actor_kind"] }, "{kind}");
    }
}

#[test]
fn a_time_lies_between_1970_and_five_minutes_from_now() {
    let latest = NOW + 300_000_000;
    for (micros, good) in [(-1, false), (0, true), (1, true), (latest - 1, true), (latest, true), (latest + 1, false)] {
        let at = match micros {
            -1 => "1969-12-31T23:59:59.999999Z".to_owned(),
            _ => Timestamp::from_micros(micros).unwrap().to_string(),
        };
        let found = pointers(batch(&[with("at", json!(at))]));
        assert_eq!(found, if good { vec![] } else { vec!["/events/0/at"] }, "{at}");
    }
}

#[test]
fn a_batch_has_one_event_at_least_and_a_hundred_at_most() {
    assert_eq!(pointers(read(&json!({}))), ["/events"]);
    assert_eq!(pointers(batch(&[])), ["/events"]);
    assert_eq!(batch(&vec![turn(); 100]).events.unwrap().len(), 100);
    assert_eq!(pointers(batch(&vec![turn(); 101])), ["/events"]);
}

#[test]
fn a_batch_of_tool_calls_is_one_by_what_its_entries_say() {
    let call = || json!({"type": "tool.called", "payload": {}});
    for (events, expected) in
        [(vec![], false), (vec![call()], true), (vec![call(), turn()], false), (vec![turn()], false)]
    {
        assert_eq!(batch(&events).only_tool_calls, expected, "{events:?}");
    }
    assert!(!read(&json!({})).only_tool_calls);
}

#[test]
fn an_id_is_given_once_and_what_has_none_gets_one() {
    let named = |id: u128| with("event_id", json!(Uuid::from_u128(id)));
    let read = batch(&[named(7), turn(), named(8), turn()]);
    assert_eq!(read.named_ids, [7, 8].map(|id| EventId(Uuid::from_u128(id))));
    // The fresh ids of this test are all the same.
    let ids: Vec<_> = read.events.unwrap().iter().map(|event| event.event_id.0.as_u128()).collect();
    assert_eq!(ids, [7, 0, 8, 0]);
    let twice = batch(&[named(7), named(7), with("at", json!("never"))]).events;
    assert_eq!(twice, Err(Refusal::EventIdConflict(EventId(Uuid::from_u128(7)))));
}
