//! Event ids: the same id with the same content is skipped, with other content refused, before any state.

use serde_json::{Value, json};

use crate::support::World;

const ONE: &str = "9b2f3c1e-8f3a-4a55-9f0e-2c8a6d7c1b11";
const TWO: &str = "9b2f3c1e-8f3a-4a55-9f0e-2c8a6d7c1b22";
const THREE: &str = "9b2f3c1e-8f3a-4a55-9f0e-2c8a6d7c1b33";

fn turn(id: &str, words: &str) -> Value {
    json!({"event_id": id, "type": "turn", "payload": {"body": words}})
}

fn tool(id: &str, name: &str) -> Value {
    json!({"event_id": id, "type": "tool.called", "payload": {"tool": name, "mutating": true}})
}

#[tokio::test]
async fn the_same_event_again_is_skipped_and_listed() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, session) = world.working(&agent).await;
    let second = agent.open_session(&task, "s2").await;
    let path = format!("/agent-tasks/{task}/events");
    agent.post(&path, &json!({"session_id": session, "events": [turn(ONE, "x")]})).await.expect(201);
    let still = world.still(&task).await;
    let skipped = json!({"written": [], "duplicates": [ONE]});
    // Whichever session it names, if any: one that is no session of the task, too.
    let unknown = "01890a5d-ac96-774b-bcce-b302099a8057";
    for named in [json!(session), json!(second), json!(null), json!(unknown), json!("s1")] {
        let reply = agent.post(&path, &json!({"session_id": named, "events": [turn(ONE, "x")]})).await;
        assert_eq!(reply.expect(200), &skipped, "{named}");
    }
    // But for the signs of life of those that it named.
    world.unmoved(&still).await;
    let before = world.footprint().await;
    // The id in another spelling is the same id, and what is the default may be said.
    for id in [ONE.to_uppercase(), ONE.replace('-', "")] {
        let mut event = turn(&id, "x");
        event["schema_version"] = json!(1);
        event["actor_kind"] = json!("agent");
        event["actor_id"] = json!(world.seed.agent.id);
        assert_eq!(agent.append(&task, json!([event])).await.expect(200), &skipped);
    }
    let spaced = format!(r#"{{"events":[{{"payload":{{ "body" : "x" }},"type":"turn","event_id":"{ONE}"}}]}}"#);
    assert_eq!(agent.post_raw(&path, spaced).await.expect(200), &skipped);
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn the_same_id_with_other_content_is_a_conflict() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let mut first = turn(ONE, "x");
    first["at"] = json!("2026-01-31T09:30:00.123456Z");
    agent.append(&task, json!([first])).await.expect(201);
    let before = world.footprint().await;
    let others = [
        json!({"payload": {"body": "y"}}),
        json!({"payload": {"body": "x", "more": 1}}),
        json!({"type": "check.reported", "payload": {"name": "n", "verdict": "v"}}),
        json!({"actor_kind": "subagent"}),
        json!({"actor_id": "someone"}),
        json!({"at": "2026-01-31T09:30:00.123457Z"}),
    ];
    for other in others {
        let mut event = turn(ONE, "x");
        for (key, value) in other.as_object().unwrap() {
            event[key] = value.clone();
        }
        let reply = agent.append(&task, json!([turn(TWO, "new"), event])).await;
        assert_eq!(reply.refused(409, "event_id_conflict")["event_id"], ONE, "{other}");
    }
    assert_eq!(world.footprint().await, before);
    // `at` counts only if it is sent, as the instant that it is.
    let mut same = turn(ONE, "x");
    agent.append(&task, json!([same])).await.expect(200);
    for at in ["2026-01-31T15:00:00.123456+05:30", "2026-01-31T09:30:00.1234569Z"] {
        same["at"] = json!(at);
        agent.append(&task, json!([same])).await.expect(200);
    }
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn an_event_without_an_instant_has_the_servers_and_conflicts_with_another() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let reply = agent.append(&task, json!([turn(ONE, "x")])).await;
    let at = reply.expect(201)["written"][0]["at"].clone();
    let mut again = turn(ONE, "x");
    again["at"] = at;
    agent.append(&task, json!([again])).await.expect(200);
    again["at"] = json!("2026-01-31T09:30:00Z");
    agent.append(&task, json!([again])).await.refused(409, "event_id_conflict");
}

#[tokio::test]
async fn an_id_stands_once_in_a_batch() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let before = world.footprint().await;
    for twice in [json!([turn(ONE, "x"), turn(ONE, "x")]), json!([turn(ONE, "x"), turn(TWO, "y"), turn(ONE, "z")])] {
        let reply = agent.append(&task, twice).await;
        assert_eq!(reply.refused(409, "event_id_conflict")["event_id"], ONE);
    }
    assert_eq!(world.footprint().await, before);
    agent.append(&task, json!([turn(ONE, "x")])).await.expect(201);
    // Also one that the task has already, and before any state.
    agent.append(&task, json!([turn(ONE, "x"), turn(ONE, "x")])).await.refused(409, "event_id_conflict");
    agent.finish(&task).await.expect(200);
    let before = world.footprint().await;
    agent.append(&task, json!([turn(ONE, "x"), turn(ONE, "x")])).await.refused(409, "event_id_conflict");
    agent.append(&task, json!([turn(TWO, "x"), turn(TWO, "x")])).await.refused(409, "event_id_conflict");
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn a_mixed_batch_writes_what_is_new_without_a_gap() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    agent.append(&task, json!([turn(ONE, "1"), turn(THREE, "3")])).await.expect(201);
    let unnamed = json!({"type": "turn", "payload": {"body": "4"}});
    let batch = json!([turn(ONE, "1"), turn(TWO, "2"), turn(THREE, "3"), unnamed]);
    let reply = agent.append(&task, batch).await;
    let answer = reply.expect(201);
    assert_eq!(answer["duplicates"], json!([ONE, THREE]));
    let written: Vec<_> =
        answer["written"].as_array().unwrap().iter().map(|e| (&e["seq"], &e["payload"]["body"])).collect();
    assert_eq!(written, [(&json!(4), &json!("2")), (&json!(5), &json!("4"))]);
    let bodies: Vec<_> = world.log(&task).await[1..].iter().map(|e| e["payload"]["body"].clone()).collect();
    assert_eq!(bodies, ["1", "3", "2", "4"]);
    // A conflict keeps all of it out.
    let before = world.footprint().await;
    let fresh = json!({"type": "turn", "payload": {"body": "5"}});
    agent.append(&task, json!([fresh, turn(ONE, "1"), turn(TWO, "other")])).await.refused(409, "event_id_conflict");
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn an_id_belongs_to_its_task() {
    let world = World::new().await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let (first, second) = (world.task().await, world.task().await);
    agent.append(&first, json!([turn(ONE, "x")])).await.expect(201);
    agent.append(&second, json!([turn(ONE, "other")])).await.expect(201);
    // The server's own events have ids, too.
    let id = world.log(&first).await[0]["event_id"].as_str().unwrap().to_owned();
    agent.append(&first, json!([turn(&id, "x")])).await.refused(409, "event_id_conflict");
    ada.post(&format!("/agent-tasks/{first}/reply"), &json!({"body": "Hello."})).await.expect(200);
    let id = world.log(&first).await[2]["event_id"].as_str().unwrap().to_owned();
    agent.append(&first, json!([turn(&id, "Hello.")])).await.refused(409, "event_id_conflict");
}

#[tokio::test]
async fn redacted_content_is_compared_as_it_is_stored() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let event = |secret: &str| {
        json!({"event_id": ONE, "type": "tool.called",
            "payload": {"tool": "sh", "mutating": false, "arguments": {"password": secret}}})
    };
    let first = agent.append(&task, json!([event("hunter2")])).await;
    assert_eq!(first.expect(201)["written"][0]["redacted"], json!(["/arguments/password"]));
    assert_eq!(first.body["written"][0]["payload"]["arguments"]["password"], "[redacted]");
    agent.append(&task, json!([event("hunter2")])).await.expect(200);
}

#[tokio::test]
async fn a_known_event_is_answered_after_its_session_and_its_task_closed() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, session) = world.working(&agent).await;
    let path = format!("/agent-tasks/{task}/events");
    let named = |events: Value| json!({"session_id": session, "events": events});
    agent.post(&path, &named(json!([turn(ONE, "x"), tool(TWO, "sh")]))).await.expect(201);
    let close = format!("/agent-tasks/{task}/sessions/{session}/close");
    agent.post(&close, &json!({"reason": "done"})).await.expect(200);
    let before = world.footprint().await;
    agent.post(&path, &named(json!([turn(ONE, "x")]))).await.expect(200);
    agent.post(&path, &named(json!([turn(ONE, "y")]))).await.refused(409, "event_id_conflict");
    agent.post(&path, &named(json!([turn(ONE, "x"), turn(THREE, "z")]))).await.refused(409, "session_closed");
    assert_eq!(world.footprint().await, before);
    agent.open_session(&task, "s2").await;
    let takeover = json!({"session_key": "s3", "takeover": true});
    agent.post(&format!("/agent-tasks/{task}/sessions"), &takeover).await.expect(201);
    agent.append(&task, json!([turn(ONE, "x")])).await.expect(200);
    agent.append(&task, json!([turn(THREE, "z")])).await.refused(422, "session_required");
    let newest = agent.get(&format!("/agent-tasks/{task}/sessions")).await.body[2]["id"].clone();
    let outcome = json!({"outcome": "done_acted", "session_id": newest});
    agent.post(&format!("/agent-tasks/{task}/outcome"), &outcome).await.expect(200);
    let before = world.footprint().await;
    assert_eq!(
        agent.append(&task, json!([turn(ONE, "x"), tool(TWO, "sh")])).await.expect(200)["duplicates"],
        json!([ONE, TWO])
    );
    agent.append(&task, json!([turn(ONE, "y")])).await.refused(409, "event_id_conflict");
    agent.append(&task, json!([turn(ONE, "x"), turn(THREE, "z")])).await.refused(409, "task_closed");
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn a_tool_call_is_kept_after_the_close_though_its_batch_repeats_a_turn() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, session) = world.working(&agent).await;
    let path = format!("/agent-tasks/{task}/events");
    let named = |events: Value| json!({"session_id": session, "events": events});
    agent.post(&path, &named(json!([turn(ONE, "x")]))).await.expect(201);
    agent.finish(&task).await.expect(200);
    let before = world.footprint().await;
    // A new turn keeps the whole batch out; what was there already does not.
    agent.post(&path, &named(json!([turn(TWO, "new"), tool(THREE, "sh")]))).await.refused(409, "task_closed");
    assert_eq!(world.footprint().await, before);
    let reply = agent.post(&path, &named(json!([turn(ONE, "x"), tool(THREE, "sh")]))).await;
    assert_eq!(reply.expect(201)["duplicates"], json!([ONE]));
    assert_eq!(reply.body["written"][0]["seq"], 8);
    assert_eq!(world.types(&task).await.last().unwrap(), "tool.called");
}

#[tokio::test]
async fn many_send_the_same_batch_and_it_is_written_once() {
    let world = World::new().await;
    let other = World::beside(&world).await;
    let task = world.task().await;
    // Two processes, so that the database decides, too.
    let agents = [world.agent().await, other.agent().await];
    let calls: Vec<_> = (0..20)
        .map(|index: usize| {
            let (agent, task) = (agents[index % 2].clone(), task.clone());
            tokio::spawn(async move { agent.append(&task, json!([turn(ONE, "1"), turn(TWO, "2")])).await })
        })
        .collect();
    let mut written = 0;
    for call in calls {
        let reply = call.await.unwrap();
        if reply.status == 201 {
            written += 1;
        } else {
            assert_eq!(reply.expect(200)["duplicates"], json!([ONE, TWO]));
        }
    }
    assert_eq!(written, 1);
    assert_eq!(world.types(&task).await, ["task.created", "turn", "turn"]);
}
