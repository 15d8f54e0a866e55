//! What a process keeps between calls: connections, which come back however a call ends, and whose a task is, which
//! never decides in the place of the database.

use std::time::Duration;

use futures::future::join_all;
use reqwest::Method;
use serde_json::json;
use uuid::Uuid;

use crate::support::World;

#[tokio::test]
async fn connections_come_back_however_a_call_ends() {
    let world = World::with(|settings| settings.database.max_connections = 2).await;
    // Opening a session then needs a transaction.
    sqlx::query("UPDATE agent_directory.agents SET max_concurrent_tasks = 50").execute(&world.db).await.unwrap();
    let agent = world.agent().await;
    let (task, session) = world.working(&agent).await;
    let path = format!("/agent-tasks/{task}/events");
    let event_id = Uuid::now_v7();
    for round in 0..10 {
        // The database itself refuses the repeated id.
        let events = json!([{"event_id": event_id, "type": "turn", "payload": {"body": round.to_string()}}]);
        let reply = agent.post(&path, &json!({"session_id": session, "events": events})).await;
        assert_eq!(reply.status, if round == 0 { 201 } else { 409 }, "{}", reply.text);
    }
    let body = json!({"session_id": session, "events": [{"type": "turn", "payload": {"body": "Who listens?"}}]});
    for _ in 0..100 {
        let call = agent.request(Method::POST, &path).json(&body).timeout(Duration::from_millis(1));
        // Most clients are gone before their answer.
        let _ = call.send().await;
    }
    let all = join_all((0..20).map(|_| async {
        let (task, session) = world.working(&agent).await;
        agent.say(&task, &session, "I begin.").await.expect(201);
        agent.post_nothing(&format!("/agent-tasks/{task}/sessions/{session}/heartbeat")).await.expect(200);
    }));
    tokio::time::timeout(Duration::from_secs(20), all).await.expect("no connection is lost");
    tokio::time::timeout(Duration::from_secs(5), world.stop()).await.expect("the pool closes");
}

#[tokio::test]
async fn what_is_remembered_of_a_task_decides_nothing_about_its_state() {
    let world = World::new().await;
    let other = World::beside(&world).await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    ada.get("/agent-tasks/T-1").await.refused(404, "task_not_found");
    let (task, session) = world.working(&agent).await;
    assert_eq!(task, "T-1", "a name that no task had is not remembered");
    ada.get("/agent-tasks/t-1").await.expect(200);
    agent.say(&task, &session, "I begin.").await.expect(201);

    let elsewhere = other.person("ada");
    elsewhere.post(&format!("/agent-tasks/{task}/pause"), &json!({})).await.expect(200);
    let beat = agent.post_nothing(&format!("/agent-tasks/{task}/sessions/{session}/heartbeat")).await;
    assert_eq!(beat.expect(200)["control"], "pause");
    other.agent().await.finish(&task).await.expect(200);
    agent.say(&task, &session, "Too late.").await.refused(409, "task_closed");
    let beat = agent.post_nothing(&format!("/agent-tasks/{task}/sessions/{session}/heartbeat")).await;
    beat.refused(409, "task_closed");
    assert_eq!(ada.get(&format!("/agent-tasks/{task}")).await.expect(200)["status"], "closed");
}
