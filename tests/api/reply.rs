//! A person's message to the agent.

use serde_json::{Value, json};

use crate::support::World;

#[tokio::test]
async fn a_reply_is_a_human_turn_in_the_log() {
    let world = World::new().await;
    let (agent, ada) = (world.agent().await, world.person_claiming("ada", json!({"channel": "mcp"})));
    let (task, _) = world.working(&agent).await;
    let before = world.last_seq(&task).await;
    let body = json!({"body": "Keep the API as it is.", "hold": null, "actor_kind": "agent", "session_id": "x"});
    let reply = ada.on(&task, "reply", body).await;
    assert_eq!(reply.expect(200), ada.get(&format!("/agent-tasks/{task}")).await.expect(200));
    assert_eq!((&reply.body["status"], &reply.body["last_seq"]), (&json!("running"), &json!(before + 1)));
    assert_eq!(world.since(&task, before).await, [("turn".to_owned(), json!({"body": "Keep the API as it is."}))]);
    let turn = world.log(&task).await.pop().unwrap();
    assert_eq!(
        (&turn["actor_kind"], &turn["actor_id"], &turn["channel"], &turn["session_id"]),
        (&json!("human"), &json!("ada"), &json!("mcp"), &Value::Null)
    );
    assert_eq!(turn["at"], turn["recorded_at"]);
    // The harness finds it by polling.
    let polled = agent.get(&format!("/agent-tasks/{task}/events?after_seq={before}&type=turn")).await;
    assert_eq!(polled.expect(200).as_array().unwrap(), &[turn]);
    // The same words again, without a key, are said again.
    ada.on(&task, "reply", json!({"body": "Keep the API as it is."})).await.expect(200);
    assert_eq!(world.last_seq(&task).await, before + 2);
}

#[tokio::test]
async fn a_reply_that_breaks_a_rule_writes_nothing() {
    let world = World::new().await;
    let ada = world.person("ada");
    let task = world.task().await;
    let still = world.still(&task).await;
    for (body, pointer) in [
        (json!({}), "/body"),
        (json!({"body": null}), "/body"),
        (json!({"body": ""}), "/body"),
        (json!({"body": " \n"}), "/body"),
        (json!({"body": {"text": "x"}}), "/body"),
        (json!({"body": "x", "hold": "yes"}), "/hold"),
    ] {
        let refusal = ada.on(&task, "reply", body).await;
        assert_eq!(refusal.refused(422, "invalid_body")["errors"][0]["pointer"], pointer);
    }
    ada.post_nothing(&format!("/agent-tasks/{task}/reply")).await.refused(400, "invalid_json");
    // The limit is one of bytes, of the payload's JSON.
    let frame = json!({"body": ""}).to_string().len();
    for text in ["x".repeat(65_536 - frame + 1), "é".repeat(32_768), "\n".repeat(40_000) + "x"] {
        let refusal = ada.on(&task, "reply", json!({"body": text})).await;
        assert_eq!(refusal.refused(413, "payload_too_large")["limit"], 65_536);
    }
    world.unmoved(&still).await;
    ada.on(&task, "reply", json!({"body": "x".repeat(65_536 - frame)})).await.expect(200);
}

#[tokio::test]
async fn a_reply_that_holds_pauses_in_the_same_transaction() {
    let world = World::new().await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let (task, _) = world.working(&agent).await;
    let before = world.last_seq(&task).await;
    let held = ada.on(&task, "reply", json!({"body": "Wait.", "hold": true})).await;
    assert_eq!((&held.expect(200)["status"], &held.body["control"]), (&json!("paused"), &json!("pause")));
    assert_eq!(
        world.since(&task, before).await,
        [
            ("turn".to_owned(), json!({"body": "Wait.", "hold": true})),
            ("control.changed".to_owned(), json!({"from": "run", "to": "pause", "actor": "ada", "reason": null})),
            ("state.changed".to_owned(), json!({"from": "running", "to": "paused", "reason": "control_changed"})),
        ]
    );
    let transactions: i64 =
        sqlx::query_scalar("SELECT count(DISTINCT tx::text) FROM agent_runtime.events WHERE seq > $1")
            .bind(before)
            .fetch_one(&world.db)
            .await
            .unwrap();
    assert_eq!(transactions, 1);
    // Held already: only the words are new, and they let go of nothing.
    ada.on(&task, "reply", json!({"body": "Still wait.", "hold": true})).await.expect(200);
    ada.on(&task, "reply", json!({"body": "Soon.", "hold": false})).await.expect(200);
    assert_eq!(world.since(&task, before + 3).await.len(), 2);
    let read = ada.get(&format!("/agent-tasks/{task}")).await;
    assert_eq!(read.expect(200)["status"], "paused");
}

#[tokio::test]
async fn a_repeated_key_says_nothing_twice() {
    let world = World::new().await;
    let (agent, ada, oscar) = (world.agent().await, world.person("ada"), world.person("oscar"));
    let (task, _) = world.working(&agent).await;
    let path = format!("/agent-tasks/{task}/reply");
    let body = json!({"body": "Wait.", "hold": true});
    let first = ada.post_keyed(&path, "k", &body).await;
    assert_eq!(first.expect(200)["status"], "paused");
    assert!(!first.is_replayed());
    ada.on(&task, "resume", json!({})).await.expect(200);
    let still = world.still(&task).await;
    let again = ada.post_keyed(&path, "k", &body).await;
    // The task as it is now: a repeat does not hold it again.
    assert_eq!((&again.expect(200)["status"], again.is_replayed()), (&json!("running"), true));
    assert_eq!(again.header("idempotency-body-match"), None);
    for other in [json!({"body": "Go on.", "hold": true}), json!({"body": "Wait."}), json!({"body": 1}), json!({})] {
        let other = ada.post_keyed(&path, "k", &other).await;
        assert!(other.expect(200)["status"] == "running" && other.is_replayed());
        assert_eq!(other.header("idempotency-body-match"), Some("false"));
    }
    for key in ["", " ", &"x".repeat(201)] {
        let refusal = ada.post_keyed(&path, key, &body).await;
        assert_eq!(refusal.refused(422, "invalid_body")["errors"][0]["header"], "Idempotency-Key");
    }
    world.unmoved(&still).await;
    // The key is one person's, on one task.
    let before = world.last_seq(&task).await;
    oscar.post_keyed(&path, "k", &json!({"body": "Mine."})).await.expect(200);
    let other = world.task().await;
    ada.post_keyed(&format!("/agent-tasks/{other}/reply"), "k", &json!({"body": "There."})).await.expect(200);
    assert_eq!(world.since(&task, before).await, [("turn".to_owned(), json!({"body": "Mine."}))]);
    assert_eq!(world.last_seq(&other).await, 2);
    // It is answered before any state, and a new one is not.
    ada.on(&task, "cancel", json!({})).await.expect(200);
    ada.post_keyed(&path, "k", &body).await.expect(200);
    ada.post_keyed(&path, "k2", &body).await.refused(409, "cancel_pending");
    agent.finish(&task).await.expect(200);
    let still = world.still(&task).await;
    let after = ada.post_keyed(&path, "k", &body).await;
    assert_eq!((&after.expect(200)["status"], after.is_replayed()), (&json!("closed"), true));
    ada.post_keyed(&path, "k2", &body).await.refused(409, "task_closed");
    world.unmoved(&still).await;
}

#[tokio::test]
async fn twenty_replies_with_one_key_over_two_servers_are_one_turn() {
    let world = World::new().await;
    let beside = World::beside(&world).await;
    let (ada, other) = (world.person("ada"), beside.person("ada"));
    let task = world.task().await;
    let path = format!("/agent-tasks/{task}/reply");
    let body = json!({"body": "Wait.", "hold": true});
    let calls = (0..20).map(|n| (if n % 2 == 0 { &ada } else { &other }).post_keyed(&path, "k", &body));
    let replies = futures::future::join_all(calls).await;
    assert!(replies.iter().all(|reply| reply.status == 200 && reply.body["status"] == "paused"));
    assert_eq!(replies.iter().filter(|reply| reply.is_replayed()).count(), 19);
    assert_eq!(world.types(&task).await, ["task.created", "turn", "control.changed", "state.changed"]);
}
