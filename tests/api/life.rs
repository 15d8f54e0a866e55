//! The life of a task, from creation to close.

use serde_json::json;

use crate::support::World;

#[tokio::test]
async fn a_task_goes_from_creation_to_close() {
    let world = World::new().await;
    let ada = world.person("ada");
    let body = json!({"agent_slug": "reviewer", "title": "Review", "description": "Look.", "budget": "5",
        "labels": {"team": "core"}, "params": {"n": 1.0, "z": 1, "a": 2}});
    let created = ada.post("/agent-tasks/", &body).await;
    let task = created.expect(201);
    assert_eq!(task["short_id"], "T-1");
    assert_eq!(task["status"], "queued");
    assert_eq!(task["agent_version"], 3);
    assert_eq!(task["budget_remaining"], "5");
    assert!(
        created.text.contains(r#""params":{"n":1.0,"z":1,"a":2}"#)
            || created.text.contains(r#""params":{"a":2,"n":1.0,"z":1}"#),
        "{}",
        created.text
    );
    let agent = world.agent().await;
    let session = agent.open_session("t-1", "key-1").await;
    let reply = agent.say("T-1", &session, "I begin.").await;
    let written = &reply.expect(201)["written"];
    assert_eq!(written[0]["seq"], 4);
    let usage = agent
        .post(
            "/agent-tasks/T-1/usage",
            &json!({"idempotency_key": "u1", "model_id": "claude-sonnet", "tokens_in": 5005,
            "tokens_out": 1744, "cache_read_tokens": 257_955, "session_id": session}),
        )
        .await;
    assert_eq!(usage.expect(201)["cost"], "0.184918125");
    assert_eq!(usage.body["task"]["budget_remaining"], "4.815081875");
    let request = agent.ask("T-1", &["yes", "no"]).await;
    let beat = agent.post_nothing(&format!("/agent-tasks/T-1/sessions/{session}/heartbeat")).await;
    assert_eq!(beat.expect(200)["status"], "blocked");
    let resolved = ada
        .post(&format!("/agent-tasks/T-1/requests/{request}/resolve"), &json!({"status": "answered", "choice": "yes"}))
        .await;
    assert_eq!(resolved.expect(201)["task"]["status"], "running");
    let closed = agent.post("/agent-tasks/T-1/outcome", &json!({"outcome": "done_acted", "reason": null})).await;
    assert_eq!(closed.expect(200)["status"], "closed");
    assert_eq!(
        world.types("T-1").await,
        [
            "task.created",
            "session.opened",
            "state.changed",
            "turn",
            "usage.reported",
            "request.opened",
            "state.changed",
            "request.resolved",
            "state.changed",
            "session.closed",
            "state.changed",
            "outcome.set"
        ]
    );
    let read = ada.get("/agent-tasks/T-1").await;
    assert_eq!(read.expect(200)["cost_total"], "0.184918125");
    assert_eq!(read.body["last_seq"], 12);
}
