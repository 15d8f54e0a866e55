//! Payloads that are too large for the log (contract, section 3 "Size"; case 35).

use serde_json::{Value, json};
use uuid::Uuid;

use crate::schemas::EventSchemas;
use crate::support::{World, digest_of, keep_artifacts};

/// A payload of exactly so many bytes.
fn payload(bytes: usize) -> Value {
    json!({"body": "x".repeat(bytes - 11)})
}

fn turn(payload: &Value) -> Value {
    json!({"type": "turn", "payload": payload})
}

#[tokio::test]
async fn just_under_the_cap_is_stored_and_just_over_it_spilled() {
    let world = World::with_artifacts().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let (under, over) = (payload(65_536), payload(65_537));
    let reply = agent.append(&task, json!([turn(&under), turn(&over), turn(&payload(20))])).await;
    let written = reply.expect(201)["written"].clone();
    assert_eq!(written[0]["payload"], under);
    let text = over.to_string();
    let artifact = json!({"digest": digest_of(text.as_bytes()), "size": 65_537, "media_type": "application/json",
        "preview": text[..500]});
    assert_eq!(written[1]["payload"], json!({"body": format!("{}…", "x".repeat(2_000)), "artifact": artifact}));
    assert_eq!(written[2]["payload"], payload(20));
    // The whole is there for whoever may read the task.
    let whole = world.person("vera").artifact(&digest_of(text.as_bytes())).await;
    assert_eq!((whole.status, &whole.text), (200, &text));
    assert_eq!(whole.header("content-type"), Some("application/json"));
    assert_eq!(world.artifact_files().len(), 1);
    // The log and its proof hold what was stored.
    assert_eq!(world.log(&task).await[2]["payload"], written[1]["payload"]);
    world.prove().await;
}

#[tokio::test]
async fn every_type_keeps_what_it_requires_and_its_schema() {
    let world = World::with_artifacts().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let big = "é".repeat(40_000);
    let todos: Vec<_> =
        (0..1_000).map(|n| json!({"title": format!("{n} {}", "x".repeat(100)), "done": false})).collect();
    let cases = [
        ("turn", json!({"body": "short", "more": big}), json!({"body": "short"})),
        ("tool.called", json!({"tool": "t", "mutating": true, "result": big}), json!({"tool": "t", "mutating": true})),
        (
            "phase.changed",
            json!({"phase": "look", "furthest_milestone": "m", "more": big}),
            json!({"phase": "look", "furthest_milestone": "m"}),
        ),
        ("check.reported", json!({"name": "n", "verdict": "v", "value": big}), json!({"name": "n", "verdict": "v"})),
        ("todos.updated", json!({"todos": todos}), Value::Null),
    ];
    let schemas = EventSchemas::load();
    for (event_type, payload, kept) in &cases {
        let reply = agent.append(&task, json!([{"type": event_type, "payload": payload}])).await;
        let mut written = reply.expect(201)["written"][0].clone();
        schemas.assert_entry(&written);
        let artifact = written["payload"].as_object_mut().unwrap().remove("artifact").unwrap();
        let whole = world.person("vera").artifact(artifact["digest"].as_str().unwrap()).await;
        assert_eq!(whole.expect(200), payload, "{event_type}");
        if kept.is_null() {
            let some = written["payload"]["todos"].as_array().unwrap();
            assert!(some.len() > 10 && some[..] == todos[..some.len()], "{}", some.len());
        } else {
            assert_eq!(written["payload"], *kept, "{event_type}");
        }
    }
    // What the server folds is folded all the same.
    let row = world.person("ada").get(&format!("/agent-tasks/{task}")).await.expect(200).clone();
    assert_eq!((&row["phase"], &row["furthest_milestone"]), (&json!("look"), &json!("m")));
    world.prove().await;
}

#[tokio::test]
async fn what_is_spilled_is_redacted_and_verbatim_in_all_else() {
    let world = World::with_artifacts().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let digits = r#""n":10,"big":9007199254740993,"d":0.10,"e":1E400,"a":{"y":1.0,"x":2},"u":"\u00e9\/é""#;
    let filler = "x".repeat(70_000);
    let sent = format!(
        r#"{{"events":[{{"type":"tool.called","payload":{{"tool":"t","mutating":false,
        "password":"hunter2", {digits}, "result":"{filler}"}}}}]}}"#
    );
    let reply = agent.post_raw(&format!("/agent-tasks/{task}/events"), sent).await;
    let written = reply.expect(201)["written"][0].clone();
    assert_eq!(written["redacted"], json!(["/password"]));
    assert!(!reply.text.contains("hunter2"));
    let stored = format!(r#"{{"tool":"t","mutating":false,"password":"[redacted]",{digits},"result":"{filler}"}}"#);
    let digest = written["payload"]["artifact"]["digest"].as_str().unwrap();
    assert_eq!(digest, digest_of(stored.as_bytes()));
    assert_eq!(world.person("vera").artifact(digest).await.text, stored);
}

#[tokio::test]
async fn the_same_again_is_a_duplicate_and_something_else_a_conflict() {
    let world = World::with_artifacts().await;
    let other = World::beside(&world).await;
    let agent = world.agent().await;
    let task = world.task().await;
    let (id, large) = (Uuid::new_v4(), payload(100_000));
    let event = |payload: &Value| json!([{"event_id": id, "type": "turn", "payload": payload}]);
    agent.append(&task, event(&large)).await.expect(201);
    let before = world.footprint().await;
    for client in [&agent, &other.agent().await] {
        let again = client.append(&task, event(&large)).await;
        assert_eq!(again.expect(200)["duplicates"], json!([id]));
        let mut differs = large.clone();
        differs["body"] = json!(format!("y{}", "x".repeat(99_988)));
        client.append(&task, event(&differs)).await.refused(409, "event_id_conflict");
        client.append(&task, event(&payload(100))).await.refused(409, "event_id_conflict");
    }
    assert_eq!(world.footprint().await, before, "a repeat wrote something");
    assert_eq!(world.artifact_files().len(), 1, "what was refused was stored");
    // A duplicate beside something new, both large.
    let fresh = payload(90_000);
    let mixed = json!([event(&large)[0], turn(&fresh)]);
    let reply = agent.append(&task, mixed).await;
    assert_eq!(reply.expect(201)["duplicates"], json!([id]));
    assert_eq!(reply.body["written"].as_array().unwrap().len(), 1);
    // The same content in another event is stored once.
    agent.append(&task, json!([turn(&fresh), turn(&fresh)])).await.expect(201);
    assert_eq!(world.artifact_files().len(), 2);
    // After the close too: an id is answered before the state.
    agent.finish(&task).await.expect(200);
    let again = agent.append(&task, event(&large)).await;
    assert_eq!(again.expect(200)["duplicates"], json!([id]));
    world.prove().await;
}

#[tokio::test]
async fn what_is_refused_is_not_stored() {
    let world = World::with_artifacts().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let session = agent.open_session(&task, "s1").await;
    let large = payload(100_000);
    let faulty = json!([turn(&large), {"type": "nonsense", "payload": {}}]);
    agent.append(&task, faulty).await.refused(422, "invalid_body");
    let reserved = json!([turn(&large), {"type": "outcome.set", "payload": {}}]);
    agent.append(&task, reserved).await.refused(422, "event_type_reserved");
    agent
        .append(&task, json!([{"type": "turn", "payload": {"more": "x".repeat(100_000)}}]))
        .await
        .invalid_at(&["/events/0/payload/body"]);
    world.person("ada").append(&task, json!([turn(&large)])).await.refused(403, "agent_task_forbidden");
    let takeover = json!({"session_key": "s2", "takeover": true});
    let heir = agent.on(&task, "sessions", takeover).await.expect(201)["session"]["id"].clone();
    let late = json!({"session_id": session, "events": [turn(&large)]});
    agent.on(&task, "events", late).await.refused(409, "session_superseded");
    agent.on(&task, "outcome", json!({"outcome": "done_acted", "session_id": heir})).await.expect(200);
    let late = json!({"session_id": heir, "events": [turn(&large)]});
    agent.on(&task, "events", late).await.refused(409, "task_closed");
    assert_eq!(world.artifact_files(), []);
    // An effect that was made is never lost, however large its record is.
    let effect =
        json!({"type": "tool.called", "payload": {"tool": "t", "mutating": true, "result": "x".repeat(80_000)}});
    agent.on(&task, "events", json!({"session_id": session, "events": [effect]})).await.expect(201);
    assert_eq!(world.artifact_files().len(), 1);
    world.prove().await;
}

#[tokio::test]
async fn what_no_store_takes_is_refused_before_the_commit() {
    let world = World::with(|settings| {
        keep_artifacts(settings);
        settings.artifacts.size_bytes_max = 80_000;
    })
    .await;
    let agent = world.agent().await;
    let task = world.task().await;
    agent.append(&task, json!([turn(&payload(80_000))])).await.expect(201);
    let before = world.footprint().await;
    let over = agent.append(&task, json!([turn(&payload(70_000)), turn(&payload(80_001))])).await;
    assert_eq!(over.refused(413, "payload_too_large")["limit"], 80_000);
    assert_eq!(over.places(), ["/events/1/payload"]);
    // What the server writes itself is what the state is made of: it stays in the log, and so within its limit.
    let big = "x".repeat(65_536);
    let outcome = json!({"outcome": "done_acted", "result": {"summary": big}});
    agent.on(&task, "outcome", outcome).await.refused(413, "payload_too_large");
    let reply = format!("/agent-tasks/{task}/reply");
    world.person("ada").post(&reply, &json!({"body": big})).await.refused(413, "payload_too_large");
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn when_the_store_is_away_nothing_commits() {
    let world = World::with_artifacts().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let folder: url::Url = world.settings.artifacts.store_url.as_ref().unwrap().expose().parse().unwrap();
    let folder = folder.to_file_path().unwrap();
    // A file where the folder was: nothing can be written there, not even by root.
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::write(&folder, "").unwrap();
    let before = world.log(&task).await;
    let reply = agent.append(&task, json!([turn(&payload(100_000))])).await;
    reply.refused(503, "unavailable");
    assert_eq!(world.log(&task).await, before);
    // What needs no store goes on.
    agent.append(&task, json!([turn(&payload(100))])).await.expect(201);
    std::fs::remove_file(&folder).unwrap();
    std::fs::create_dir(&folder).unwrap();
    agent.append(&task, json!([turn(&payload(100_000))])).await.expect(201);
    world.prove().await;
}

#[tokio::test]
async fn a_payload_that_fit_when_it_came_is_still_the_same_under_a_lower_limit() {
    let world = World::with_artifacts().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let event = json!([{"event_id": Uuid::new_v4(), "type": "turn", "payload": payload(50_000)}]);
    agent.append(&task, event.clone()).await.expect(201);
    let stricter = World::beside_with(&world, |own| own.limits.payload_bytes_max = 10_000).await;
    let again = stricter.agent().await.append(&task, event.clone()).await;
    assert_eq!(again.expect(200)["duplicates"], json!([event[0]["event_id"]]));
    assert_eq!(world.artifact_files(), []);
}
