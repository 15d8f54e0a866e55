//! Appending: what a harness may write, whole batches, and the clock.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::World;

fn turn(words: &str) -> Value {
    json!({"type": "turn", "payload": {"body": words}})
}

#[tokio::test]
async fn a_batch_is_written_in_order_with_its_envelope() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, session) = world.working(&agent).await;
    let id = "9b2f3c1e-8f3a-4a55-9f0e-2c8a6d7c1b11";
    let body = json!({"session_id": session, "events": [
        {"event_id": id, "type": "turn", "payload": {"body": "", "decision": "go", "more": [1]}},
        {"type": "tool.called", "actor_kind": "subagent", "actor_id": "scout", "schema_version": 1,
            "payload": {"tool": "sh", "mutating": true, "duration_ms": 3}},
        {"type": "phase.changed", "payload": {"phase": "plan", "furthest_milestone": "read"}},
        {"type": "todos.updated", "payload": {"todos": []}},
        {"type": "check.reported", "payload": {"name": "tests", "verdict": "pass", "delta": -1}},
        {"type": "phase.changed", "payload": {"phase": "build"}},
    ]});
    let reply = agent.post(&format!("/agent-tasks/{task}/events"), &body).await;
    let answer = reply.expect(201);
    assert_eq!(answer["duplicates"], json!([]));
    let written = answer["written"].as_array().unwrap();
    assert_eq!(world.log(&task).await[3..], written[..]);
    for (index, event) in written.iter().enumerate() {
        assert_eq!((&event["seq"], &event["type"]), (&json!(index + 4), &body["events"][index]["type"]));
        assert_eq!(event["payload"], body["events"][index]["payload"]);
        assert_eq!((&event["session_id"], &event["channel"]), (&json!(session), &json!("harness")));
        assert_eq!((&event["redacted"], &event["at"]), (&json!([]), &event["recorded_at"]));
    }
    let actor = |index: usize| (&written[index]["actor_kind"], &written[index]["actor_id"]);
    assert_eq!((&written[0]["event_id"], actor(0)), (&json!(id), (&json!("agent"), &json!(world.seed.agent.id))));
    assert_eq!(actor(1), (&json!("subagent"), &json!("scout")));
    let read = world.person("ada").get(&format!("/agent-tasks/{task}")).await;
    assert_eq!((&read.body["phase"], &read.body["furthest_milestone"]), (&json!("build"), &json!("read")));
    assert_eq!((&read.body["last_seq"], &read.body["log_digest"]), (&json!(9), &written[5]["digest"]));
    assert_eq!(read.body["updated_at"], written[5]["recorded_at"]);
}

#[tokio::test]
async fn a_harness_writes_only_its_own_types() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let before = world.footprint().await;
    let reserved = "task.created state.changed control.changed owner.changed session.opened session.closed usage.reported \
        request.opened request.resolved request.expired outcome.set dependency.added dependency.removed \
        project.associated project.dissociated child.created child.closed child.adjusted";
    for name in reserved.split_whitespace() {
        let reply = agent.append(&task, json!([turn("first"), {"type": name, "payload": {"body": "x"}}])).await;
        reply.refused(422, "event_type_reserved");
        assert_eq!(reply.places(), ["/events/1/type"], "{name}");
    }
    for name in ["Turn", "turn ", "tool_called", "made.up", "", " "] {
        let reply = agent.append(&task, json!([{"type": name, "payload": {"body": "x"}}])).await;
        reply.invalid_at(&["/events/0/type"]);
    }
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn each_type_names_what_it_lacks() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let before = world.footprint().await;
    let cases = [
        ("turn", json!({}), vec!["/body"]),
        ("turn", json!({"body": null}), vec!["/body"]),
        ("turn", json!({"body": 7}), vec!["/body"]),
        ("tool.called", json!({}), vec!["/tool", "/mutating"]),
        ("tool.called", json!({"tool": "", "mutating": "yes"}), vec!["/tool", "/mutating"]),
        ("tool.called", json!({"tool": "sh", "mutating": null}), vec!["/mutating"]),
        ("phase.changed", json!({}), vec!["/phase"]),
        ("phase.changed", json!({"phase": "p", "furthest_milestone": 1}), vec!["/furthest_milestone"]),
        ("todos.updated", json!({}), vec!["/todos"]),
        ("todos.updated", json!({"todos": {}}), vec!["/todos"]),
        ("check.reported", json!({"value": 1}), vec!["/name", "/verdict"]),
        ("check.reported", json!({"name": "n", "verdict": true}), vec!["/verdict"]),
        ("turn", json!("x"), vec![""]),
        ("turn", json!([]), vec![""]),
    ];
    for (name, payload, lacks) in cases {
        let reply = agent.append(&task, json!([turn("fine"), {"type": name, "payload": payload}])).await;
        reply.refused(422, "invalid_body");
        let mut places = reply.places();
        places.dedup();
        let expected: Vec<_> = lacks.iter().map(|place| format!("/events/1/payload{place}")).collect();
        assert_eq!(places[..expected.len()], expected, "{name} {payload}");
    }
    let absent = agent.append(&task, json!([{"type": "todos.updated"}])).await;
    assert!(absent.places().contains(&"/events/0/payload"), "{}", absent.text);
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn the_envelope_is_checked_as_well() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let before = world.footprint().await;
    let cases = [
        (json!({"event_id": "42"}), "/event_id"),
        (json!({"schema_version": 2}), "/schema_version"),
        (json!({"schema_version": "1"}), "/schema_version"),
        (json!({"schema_version": 1.0}), "/schema_version"),
        (json!({"actor_kind": "human"}), "/actor_kind"),
        (json!({"actor_kind": "system"}), "/actor_kind"),
        (json!({"actor_kind": "robot"}), "/actor_kind"),
        (json!({"actor_id": ""}), "/actor_id"),
        (json!({"actor_id": 7}), "/actor_id"),
        (json!({"at": 1_700_000_000}), "/at"),
    ];
    for (member, place) in cases {
        let mut event = turn("x");
        for (key, value) in member.as_object().unwrap() {
            event[key] = value.clone();
        }
        agent.append(&task, json!([event])).await.invalid_at(&[&format!("/events/0{place}")]);
    }
    for events in [json!(null), json!([]), json!({}), json!("x")] {
        agent.append(&task, events).await.invalid_at(&["/events"]);
    }
    agent.append(&task, json!([7])).await.refused(422, "invalid_body");
    agent.post(&format!("/agent-tasks/{task}/events"), &json!([turn("x")])).await.refused(422, "invalid_body");
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn a_batch_has_at_most_a_hundred_events() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let batch = |count: usize| Value::Array((0..count).map(|index| turn(&index.to_string())).collect());
    let before = world.footprint().await;
    agent.append(&task, batch(101)).await.invalid_at(&["/events"]);
    assert_eq!(world.footprint().await, before);
    let reply = agent.append(&task, batch(100)).await;
    let seqs: Vec<_> =
        reply.expect(201)["written"].as_array().unwrap().iter().map(|e| e["seq"].as_i64().unwrap()).collect();
    assert_eq!(seqs, (2..=101).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_session_that_is_no_session_of_the_task_is_refused() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, _) = world.working(&agent).await;
    let (_, foreign) = world.working(&agent).await;
    let before = world.footprint().await;
    for session in [json!(foreign), json!("01890a5d-ac96-774b-bcce-b302099a8057"), json!("s1"), json!(7)] {
        let body = json!({"session_id": session, "events": [turn("x")]});
        agent.post(&format!("/agent-tasks/{task}/events"), &body).await.invalid_at(&["/session_id"]);
    }
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn an_instant_is_kept_to_the_microsecond_whatever_its_offset() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let cases = [
        ("2026-01-31T15:00:00.000001+05:30", "2026-01-31T09:30:00.000001Z"),
        ("2026-01-31T09:30:00.123456789Z", "2026-01-31T09:30:00.123456Z"),
        ("2026-01-31T09:30:00.9999999999999-00:00", "2026-01-31T09:30:00.999999Z"),
        ("2026-01-31t09:30:00z", "2026-01-31T09:30:00.000000Z"),
        ("1970-01-01T05:30:00+05:30", "1970-01-01T00:00:00.000000Z"),
        ("1969-12-31T19:00:00-05:00", "1970-01-01T00:00:00.000000Z"),
    ];
    for (sent, kept) in cases {
        let mut event = turn("x");
        event["at"] = json!(sent);
        let reply = agent.append(&task, json!([event])).await;
        assert_eq!(reply.expect(201)["written"][0]["at"], kept, "{sent}");
        assert_eq!(world.log(&task).await.last().unwrap()["at"], kept, "{sent}");
    }
}

#[tokio::test]
async fn an_instant_outside_of_what_can_have_happened_is_refused() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let before = world.footprint().await;
    let ahead = |seconds: i64| {
        let now = world.now().micros() + seconds * 1_000_000;
        mandate::domain::time::Timestamp::from_micros(now).unwrap().to_string()
    };
    let refused = [
        "2099-01-01T00:00:00Z",
        "9999-12-31T23:59:59Z",
        "1969-12-31T23:59:59.9999999Z",
        "1970-01-01T00:00:00+05:30",
        "0001-01-01T00:00:00Z",
        "2026-01-31T09:30:00",
        "2026-01-31",
        "2026-02-30T00:00:00Z",
        "2026-01-31T25:00:00Z",
        "2026-01-31 09:30",
        "now",
        "",
    ];
    for at in refused.into_iter().map(str::to_owned).chain([ahead(310)]) {
        let mut event = turn("x");
        event["at"] = json!(at);
        agent.append(&task, json!([turn("fine"), event])).await.invalid_at(&["/events/1/at"]);
    }
    assert_eq!(world.footprint().await, before);
    let mut event = turn("x");
    event["at"] = json!(ahead(290));
    agent.append(&task, json!([event])).await.expect(201);
}

#[tokio::test]
async fn order_is_seq_though_the_servers_clock_goes_back() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, first) = world.working(&agent).await;
    agent.say(&task, &first, "before").await.expect(201);
    world.skew_clock(-3_600);
    // Tokens of the time to come are not valid yet.
    let agent = world.agent().await;
    agent.say(&task, &first, "after").await.expect(201);
    agent.spend(&task, "u", 100, 0).await.expect(201);
    let second = agent.open_session(&task, "s2").await;
    let log = world.log(&task).await;
    let seqs: Vec<_> = log.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, (1..=7).collect::<Vec<_>>());
    let recorded = |index: usize| log[index]["recorded_at"].as_str().unwrap();
    assert!(recorded(4) < recorded(3), "{} is not before {}", recorded(4), recorded(3));
    let bodies: Vec<_> = log.iter().filter_map(|event| event["payload"]["body"].as_str()).collect();
    assert_eq!(bodies, ["before", "after"]);
    // What the server's clock says is not silence: neither session is lost.
    assert_eq!(world.step().await.lost, 0);
    for session in [&first, &second] {
        agent.post_nothing(&format!("/agent-tasks/{task}/sessions/{session}/heartbeat")).await.expect(200);
    }
    // The limit of what lies ahead moves with the server's clock.
    let mut event = turn("x");
    event["at"] = json!(log[3]["recorded_at"]);
    agent.append(&task, json!([event])).await.invalid_at(&["/events/0/at"]);
    agent.finish(&task).await.expect(200);
    world.skew_clock(0);
    let read = world.person("ada").get(&format!("/agent-tasks/{task}/events?after_seq=3")).await;
    let seqs: Vec<_> =
        read.expect(200).as_array().unwrap().iter().map(|event| event["seq"].as_i64().unwrap()).collect();
    assert_eq!(seqs[..4], [4, 5, 6, 7]);
}

#[tokio::test]
async fn only_the_account_of_the_tasks_agent_appends() {
    let world = World::new().await;
    let task = world.task().await;
    let before = world.footprint().await;
    let other = crate::support::Seed::agent(&world.db, world.seed.organization_id, "other").await;
    let other = world.account(&other.client_id, &other.client_secret).await;
    for caller in [world.person("ada"), world.person("oscar"), world.trigger().await, other] {
        caller.append(&task, json!([turn("x")])).await.refused(403, "agent_task_forbidden");
    }
    let anyone = world.anyone();
    let request = anyone.request(Method::POST, &format!("/agent-tasks/{task}/events"));
    anyone.send(request.json(&json!({"events": [turn("x")]}))).await.refused(401, "unauthenticated");
    assert_eq!(world.footprint().await, before);
}
