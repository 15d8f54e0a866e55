//! Refusals rank: authentication, organization, not found, permission, 400/413/415, closed, session, request state,
//! the rest of the body. Each test breaks two neighbouring rules at once and meets the first.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Client, Reply, World};

const UNKNOWN: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

async fn untyped(client: &Client, path: &str) -> Reply {
    client.send(client.request(Method::POST, path).header("content-type", "text/plain").body("x")).await
}

#[tokio::test]
async fn authentication_before_organization() {
    let world = World::new().await;
    let nowhere = |client: Client| client.in_organization("nowhere");
    nowhere(world.anyone()).get("/agent-tasks/T-1").await.refused(401, "unauthenticated");
    nowhere(world.bearer("no.token.atall")).get("/agent-tasks/T-1").await.refused(401, "unauthenticated");
    nowhere(world.anyone()).post_raw("/agent-tasks/", "{").await.refused(401, "unauthenticated");
}

#[tokio::test]
async fn organization_before_not_found() {
    let world = World::new().await;
    let task = world.task().await;
    let stranger = world.person("mallory");
    let mut answers = Vec::new();
    for (client, path) in [
        (stranger.clone(), "/agent-tasks/T-99".to_owned()),
        (stranger.clone(), format!("/agent-tasks/{task}")),
        (stranger.in_organization("nowhere"), format!("/agent-tasks/{task}")),
        (world.person("ada").in_organization("nowhere"), format!("/agent-tasks/{task}")),
        (world.agent().await.in_organization("nowhere"), format!("/agent-tasks/{task}")),
    ] {
        let mut body = client.get(&path).await.refused(403, "organization_forbidden").clone();
        body["request_id"] = Value::Null;
        answers.push(body);
    }
    answers.dedup();
    assert_eq!(answers.len(), 1);
}

#[tokio::test]
async fn not_found_before_permission() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, session) = world.working(&agent).await;
    let request = agent.ask(&task, &[]).await;
    let vera = world.person("vera");
    for action in ["pause", "resume", "cancel", "reassign", "reply"] {
        vera.post_nothing(&format!("/agent-tasks/T-99/{action}")).await.refused(404, "task_not_found");
        vera.post_nothing(&format!("/agent-tasks/{task}/{action}")).await.refused(403, "permission_denied");
    }
    for action in ["sessions", "events", "usage", "requests", "outcome"] {
        vera.post_nothing(&format!("/agent-tasks/T-99/{action}")).await.refused(404, "task_not_found");
        vera.post_nothing(&format!("/agent-tasks/{task}/{action}")).await.refused(403, "agent_task_forbidden");
    }
    for action in ["heartbeat", "close"] {
        let of = |id: &str| format!("/agent-tasks/{task}/sessions/{id}/{action}");
        vera.post_nothing(&of(UNKNOWN)).await.refused(404, "session_not_found");
        vera.post_nothing(&of(&session)).await.refused(403, "agent_task_forbidden");
    }
    for (action, code) in [("withdraw", "agent_task_forbidden"), ("resolve", "permission_denied")] {
        let of = |id: &str| format!("/agent-tasks/{task}/requests/{id}/{action}");
        vera.post_nothing(&of(UNKNOWN)).await.refused(404, "request_not_found");
        vera.post_nothing(&of(&request)).await.refused(403, code);
    }
}

#[tokio::test]
async fn permission_before_what_cannot_be_read() {
    let world = World::with(|settings| settings.server.body_limit_bytes = 65_536).await;
    let agent = world.agent().await;
    let (task, session) = world.working(&agent).await;
    let request = agent.ask(&task, &[]).await;
    let before = world.footprint().await;
    let vera = world.person("vera");
    let manage = ["pause", "resume", "cancel", "reassign", "reply"]
        .map(|action| (format!("{task}/{action}"), "permission_denied"));
    let harness = ["sessions", "events", "usage", "requests", "outcome"]
        .map(|action| (format!("{task}/{action}"), "agent_task_forbidden"));
    let rest = [
        (String::new(), "permission_denied"),
        (format!("{task}/sessions/{session}/heartbeat"), "agent_task_forbidden"),
        (format!("{task}/sessions/{session}/close"), "agent_task_forbidden"),
        (format!("{task}/requests/{request}/withdraw"), "agent_task_forbidden"),
        (format!("{task}/requests/{request}/resolve"), "permission_denied"),
    ];
    for (path, code) in manage.into_iter().chain(harness).chain(rest) {
        let path = format!("/agent-tasks/{path}");
        vera.post_raw(&path, "{").await.refused(403, code);
        vera.post_raw(&path, "x".repeat(65_537)).await.refused(403, code);
        untyped(&vera, &path).await.refused(403, code);
    }
    let origin = world.person("ada").request(Method::POST, "/agent-tasks/").header("X-Mandate-Webhook", "x");
    world.person("ada").send(origin.body("{")).await.refused(403, "origin_forbidden");
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn what_cannot_be_read_before_closed() {
    let world = World::with(|settings| settings.server.body_limit_bytes = 65_536).await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let (task, session) = world.working(&agent).await;
    let request = agent.ask(&task, &[]).await;
    agent.finish(&task).await.expect(200);
    let before = world.footprint().await;
    let people = ["pause", "resume", "cancel", "reassign", "reply"].map(|action| (&ada, format!("{task}/{action}")));
    let harness =
        ["sessions", "events", "usage", "requests", "outcome"].map(|action| (&agent, format!("{task}/{action}")));
    let rest = [
        (&agent, format!("{task}/sessions/{session}/heartbeat")),
        (&agent, format!("{task}/sessions/{session}/close")),
        (&agent, format!("{task}/requests/{request}/withdraw")),
        (&ada, format!("{task}/requests/{request}/resolve")),
    ];
    for (caller, path) in people.into_iter().chain(harness).chain(rest) {
        let path = format!("/agent-tasks/{path}");
        caller.post_raw(&path, "{").await.refused(400, "invalid_json");
        caller.post_raw(&path, "x".repeat(65_537)).await.refused(413, "payload_too_large");
        untyped(caller, &path).await.refused(415, "unsupported_media_type");
    }
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn closed_before_session() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, session) = world.working(&agent).await;
    agent.post(&format!("/agent-tasks/{task}/sessions/{session}/close"), &json!({"reason": "r"})).await.expect(200);
    agent.finish(&task).await.expect(200);
    let before = world.footprint().await;
    for session in [json!(session), json!(UNKNOWN), json!(7)] {
        let turn = json!({"session_id": session, "events": [{"type": "turn", "payload": {"body": "x"}}]});
        agent.post(&format!("/agent-tasks/{task}/events"), &turn).await.refused(409, "task_closed");
        let ask = json!({"session_id": session, "kind": "feedback", "title": "t"});
        agent.post(&format!("/agent-tasks/{task}/requests"), &ask).await.refused(409, "task_closed");
        let other = json!({"session_id": session, "outcome": "no_reason_to_run", "reason": "subject_gone"});
        agent.post(&format!("/agent-tasks/{task}/outcome"), &other).await.refused(409, "task_closed");
    }
    agent
        .post(&format!("/agent-tasks/{task}/sessions"), &json!({"session_key": "s1"}))
        .await
        .refused(409, "task_closed");
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn session_before_request_state() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let (task, session) = world.working(&agent).await;
    let request = agent.ask(&task, &[]).await;
    let resolve = json!({"status": "answered", "answer": "a"});
    ada.post(&format!("/agent-tasks/{task}/requests/{request}/resolve"), &resolve).await.expect(201);
    agent.post(&format!("/agent-tasks/{task}/sessions/{session}/close"), &json!({"reason": "r"})).await.expect(200);
    let before = world.footprint().await;
    let ask = json!({"session_id": session, "kind": "feedback", "title": "t", "supersedes": request});
    agent.post(&format!("/agent-tasks/{task}/requests"), &ask).await.refused(409, "session_closed");
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn request_state_before_the_rest_of_the_body() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let task = world.task().await;
    let request = agent.ask(&task, &[]).await;
    let resolve = format!("/agent-tasks/{task}/requests/{request}/resolve");
    ada.post(&resolve, &json!({"status": "answered", "answer": "a"})).await.expect(201);
    let before = world.footprint().await;
    ada.post(&resolve, &json!({"status": "maybe"})).await.refused(409, "request_resolved");
    ada.post(&resolve, &json!({})).await.refused(409, "request_resolved");
    let ask = json!({"supersedes": request, "kind": "nonsense"});
    agent.post(&format!("/agent-tasks/{task}/requests"), &ask).await.refused(409, "request_resolved");
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn the_state_of_a_request_before_closed_where_it_is_settled() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let task = world.task().await;
    let (answered, open) = (agent.ask(&task, &[]).await, agent.ask(&task, &[]).await);
    let path = |request: &str, action: &str| format!("/agent-tasks/{task}/requests/{request}/{action}");
    let body = json!({"status": "answered", "answer": "a"});
    ada.post(&path(&answered, "resolve"), &body).await.expect(201);
    agent.finish(&task).await.expect(200);
    let before = world.footprint().await;
    // The close has voided it.
    ada.post(&path(&open, "resolve"), &body).await.refused(409, "request_resolved");
    ada.post(&path(&answered, "resolve"), &json!({"status": "answered", "answer": "b"}))
        .await
        .refused(409, "request_resolved");
    agent.post_nothing(&path(&answered, "withdraw")).await.refused(409, "request_resolved");
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn closed_before_the_rest_of_the_body() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let task = world.task().await;
    agent.finish(&task).await.expect(200);
    let before = world.footprint().await;
    let long = "x".repeat(201);
    let calls = [
        (&ada, "pause", json!({"reason": 7})),
        (&ada, "resume", json!({"reason": ""})),
        (&ada, "cancel", json!({"force": "yes"})),
        (&ada, "reassign", json!({})),
        (&ada, "reassign", json!({"owner": "mallory"})),
        (&ada, "reply", json!({"idempotency_key": long})),
        (&agent, "sessions", json!({})),
        (&agent, "events", json!({"events": [{"type": "nonsense"}]})),
        (&agent, "events", json!({})),
        (&agent, "requests", json!({"kind": "nonsense"})),
        (&agent, "requests", json!({"request_key": long})),
        (&agent, "outcome", json!({"outcome": "nonsense"})),
    ];
    for (caller, action, body) in calls {
        let reply = caller.post(&format!("/agent-tasks/{task}/{action}"), &body).await;
        let facts = reply.refused(409, "task_closed");
        assert_eq!((&facts["outcome"], &facts["last_seq"]), (&json!("done_acted"), &json!(3)), "{action} {body}");
        ada.post_keyed(&format!("/agent-tasks/{task}/reply"), &long, &json!({})).await.refused(409, "task_closed");
    }
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn session_before_the_rest_of_the_body() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, session) = world.working(&agent).await;
    agent.post(&format!("/agent-tasks/{task}/sessions/{session}/close"), &json!({"reason": "r"})).await.expect(200);
    let before = world.footprint().await;
    for (action, mut body) in [
        ("events", json!({"events": [{"type": "nonsense"}]})),
        ("events", json!({})),
        ("requests", json!({"kind": "nonsense"})),
        ("outcome", json!({"outcome": "nonsense"})),
    ] {
        body["session_id"] = json!(session);
        agent.post(&format!("/agent-tasks/{task}/{action}"), &body).await.refused(409, "session_closed");
    }
    assert_eq!(world.footprint().await, before);
}
