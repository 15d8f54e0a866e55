//! Children: who may have them, what a child is born with, and every refusal.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{AgentSeed, Client, Reply, Seed, World};

/// A world with a second agent, `tester`, who works the children.
pub async fn world() -> (World, AgentSeed) {
    let world = World::new().await;
    let tester = Seed::agent(&world.db, world.seed.organization_id, "tester").await;
    (world, tester)
}

/// Delegates to `tester` with these members too.
pub async fn delegate(client: &Client, parent: &str, more: Value) -> Reply {
    let mut body = json!({"agent_slug": "tester", "title": "A part", "description": "Do it."});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    client.on(parent, "children", body).await
}

/// The short id of a new child.
pub async fn child(client: &Client, parent: &str, more: Value) -> String {
    delegate(client, parent, more).await.expect(201)["short_id"].as_str().unwrap().to_owned()
}

pub async fn read(world: &World, task: &str) -> Value {
    world.person("ada").get(&format!("/agent-tasks/{task}")).await.expect(200).clone()
}

async fn set(world: &World, agent: &str, setting: &str) {
    let update = format!("UPDATE agent_directory.agents SET {setting} WHERE slug = $1");
    sqlx::query(sqlx::AssertSqlSafe(update)).bind(agent).execute(&world.db).await.unwrap();
}

#[tokio::test]
async fn a_child_has_its_parents_owner_the_origin_task_and_is_told_on_the_parents_log() {
    let (world, tester) = world().await;
    let agent = world.agent().await;
    let (parent, session) = world.working(&agent).await;
    world.person("ada").on(&parent, "reassign", json!({"owner": "oscar"})).await.expect(200);
    let before = read(&world, &parent).await;
    let more = json!({"session_id": session, "labels": {"team": "core"}, "params": {"n": 1.0}, "subject": "x",
        "project_id": world.seed.project_id});
    let made = delegate(&agent, &parent, more).await;
    let made = made.expect(201);
    assert_eq!(
        made["origin"],
        json!({"kind": "task", "parent_task_id": before["id"],
        "parent_short_id": parent, "agent_id": world.seed.agent.id})
    );
    assert_eq!((&made["owner"], &made["agent_id"]), (&json!("oscar"), &json!(tester.id)));
    assert_eq!((&made["service_account_id"], &made["status"]), (&json!(tester.account_id), &json!("queued")));
    assert_eq!((&made["agent_version"], &made["prompt_version"]), (&json!(3), &json!(7)));
    assert_eq!((&made["labels"], &made["subject"]), (&json!({"team": "core"}), &json!("x")));
    assert_eq!((&made["project_id"], &made["budget"]), (&json!(world.seed.project_id), &Value::Null));

    let log = world.log(&parent).await;
    let told = log.last().unwrap();
    assert_eq!((&told["type"], &told["schema_version"]), (&json!("child.created"), &json!(1)));
    assert_eq!((&told["actor_kind"], &told["channel"]), (&json!("agent"), &json!("harness")));
    assert_eq!(told["session_id"], session.as_str());
    assert_eq!(
        told["payload"],
        json!({"child_task_id": made["id"], "child_short_id": made["short_id"],
        "agent_id": tester.id, "set_aside_delta": "0", "outcome": null, "outcome_reason": null, "cost_total": "0"})
    );
    let after = read(&world, &parent).await;
    assert_eq!(after["last_seq"], before["last_seq"].as_i64().unwrap() + 1);
    let name = made["short_id"].as_str().unwrap();
    assert_eq!(world.types(name).await, ["task.created"]);

    // The parent's account reads its child, and works nothing of it; the child's account is its harness.
    for path in ["", "/events", "/sessions", "/requests", "/usage", "/tree"] {
        agent.get(&format!("/agent-tasks/{name}{path}")).await.expect(200);
    }
    agent.on(name, "sessions", json!({"session_key": "s"})).await.refused(403, "agent_task_forbidden");
    let worker = world.account(&tester.client_id, &tester.client_secret).await;
    worker.open_session(name, "s").await;
    worker.get(&format!("/agent-tasks/{parent}")).await.refused(403, "agent_task_forbidden");
    world.prove().await;
}

#[tokio::test]
async fn parent_and_children_are_read_as_relations() {
    let (world, _) = world().await;
    let (agent, vera) = (world.agent().await, world.person("vera"));
    let parent = world.task().await;
    let (first, second) = (child(&agent, &parent, json!({})).await, child(&agent, &parent, json!({})).await);
    let above = vera.get(&format!("/agent-tasks/{parent}/relations")).await.expect(200).clone();
    let names: Vec<_> = above["children"].as_array().unwrap().iter().map(|child| &child["short_id"]).collect();
    assert_eq!(names, [&json!(first), &json!(second)]);
    assert_eq!((&above["parent"], &above["requires"]), (&Value::Null, &json!([])));
    let below = vera.get(&format!("/agent-tasks/{first}/relations")).await.expect(200).clone();
    assert_eq!((&below["parent"]["short_id"], &below["children"]), (&json!(parent), &json!([])));
    for related in [&above["children"][0], &below["parent"]] {
        assert_eq!(related["created_by_kind"], "agent");
        assert_eq!(related["created_by"], world.seed.agent.id.to_string());
    }
    // Delegation is written by delegating alone.
    for (method, path) in [(Method::PUT, format!("requires/{first}")), (Method::DELETE, format!("requires/{first}"))] {
        let request = world.person("ada").request(method, &format!("/agent-tasks/{parent}/{path}"));
        world.person("ada").send(request).await.expect(204);
    }
    let same = vera.get(&format!("/agent-tasks/{parent}/relations")).await.expect(200).clone();
    assert_eq!(same["children"], above["children"]);
    world.prove().await;
}

#[tokio::test]
async fn only_the_account_of_the_parents_agent_delegates() {
    let (world, tester) = world().await;
    let parent = world.task().await;
    let before = world.footprint().await;
    let other = world.account(&tester.client_id, &tester.client_secret).await;
    for client in [&world.person("ada"), &world.person("oscar"), &other, &world.trigger().await] {
        delegate(client, &parent, json!({})).await.refused(403, "agent_task_forbidden");
    }
    let agent = world.agent().await;
    delegate(&agent, "T-99", json!({})).await.refused(404, "task_not_found");
    delegate(&agent, &parent, json!({"initial_outcome": "done_acted"})).await.refused(403, "origin_forbidden");
    let claiming = agent
        .request(Method::POST, &format!("/agent-tasks/{parent}/children"))
        .header("x-mandate-scheduled-task", "nightly")
        .json(&json!({"agent_slug": "tester", "title": "t", "description": "d"}));
    agent.send(claiming).await.refused(403, "origin_forbidden");
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn a_parent_that_is_closed_archived_or_being_cancelled_delegates_nothing() {
    let (world, _) = world().await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let (cancelled, session) = world.working(&agent).await;
    let first = delegate(&agent, &cancelled, json!({"idempotency_key": "k"})).await.expect(201).clone();
    ada.on(&cancelled, "cancel", json!({})).await.expect(200);
    delegate(&agent, &cancelled, json!({"session_id": session})).await.refused(409, "task_cancelled");
    // A key that was used is answered before any state.
    let again = delegate(&agent, &cancelled, json!({"idempotency_key": "k"})).await;
    assert_eq!((&again.expect(200)["id"], again.is_replayed()), (&first["id"], true));

    let closed = world.task().await;
    agent.finish(&closed).await.expect(200);
    let refused = delegate(&agent, &closed, json!({})).await;
    assert_eq!(refused.refused(409, "task_closed")["outcome"], "done_acted");
    crate::support::eventually("the log is archived", || async {
        world.sweep().await;
        !read(&world, &closed).await["log_archived_at"].is_null()
    })
    .await;
    delegate(&agent, &closed, json!({})).await.refused(409, "task_archived");
    // Pausing takes nothing from the turn in flight.
    let paused = world.task().await;
    ada.on(&paused, "pause", json!({})).await.expect(200);
    child(&agent, &paused, json!({})).await;
    world.prove().await;
}

#[tokio::test]
async fn a_session_that_was_taken_over_delegates_nothing() {
    let (world, _) = world().await;
    let agent = world.agent().await;
    let (parent, old) = world.working(&agent).await;
    agent.on(&parent, "sessions", json!({"session_key": "s2", "takeover": true})).await.expect(201);
    delegate(&agent, &parent, json!({"session_id": old})).await.refused(409, "session_superseded");
    delegate(&agent, &parent, json!({})).await.refused(422, "session_required");
    delegate(&agent, &parent, json!({"session_id": "x"})).await.invalid_at(&["/session_id"]);
    assert_eq!(read(&world, &parent).await["set_aside"], "0");
}

#[tokio::test]
async fn depth_and_the_number_of_open_children_are_settings_of_the_agent_that_delegates() {
    let (world, tester) = world().await;
    set(&world, "reviewer", "max_children = 2").await;
    set(&world, "tester", "max_depth = 1").await;
    let agent = world.agent().await;
    let worker = world.account(&tester.client_id, &tester.client_secret).await;
    let parent = world.task().await;
    let first = child(&agent, &parent, json!({})).await;
    child(&agent, &parent, json!({})).await;
    let refused = delegate(&agent, &parent, json!({})).await;
    assert_eq!(refused.refused(409, "children_limit")["limit"], 2);
    // Open ones are counted.
    worker.finish(&first).await.expect(200);
    let third = child(&agent, &parent, json!({})).await;
    delegate(&agent, &parent, json!({})).await.refused(409, "children_limit");
    // A tester's task at depth 1 is as deep as its agent's tasks go.
    let refused = delegate(&worker, &third, json!({})).await;
    assert_eq!(refused.refused(409, "depth_limit")["limit"], 1);
    // What is pinned does not move.
    set(&world, "tester", "max_depth = 5").await;
    delegate(&worker, &third, json!({})).await.refused(409, "depth_limit");
    let deep = world.task_with(json!({"agent_slug": "tester"})).await;
    let mut at = deep;
    for _ in 0..5 {
        at = child(&worker, &at, json!({})).await;
    }
    assert_eq!(delegate(&worker, &at, json!({})).await.refused(409, "depth_limit")["limit"], 5);
    world.prove().await;
}

/// Whichever call is first makes the limit that the others meet, which are it once more.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_with_one_key_at_once_are_one_child_also_at_a_limit() {
    let (world, _) = world().await;
    set(&world, "reviewer", "max_children = 1").await;
    let agent = world.agent().await;
    let body = json!({"agent_slug": "tester", "title": "A part", "description": "Do it.", "budget": "0.7"});
    for (nth, parent) in [world.task_with(json!({"budget": "1"})).await, world.task().await].iter().enumerate() {
        // Once the budget is the limit, once the number.
        let path = format!("/agent-tasks/{parent}/children");
        let calls = (0..12).map(|_| agent.post_keyed(&path, "k", &body));
        let made = futures::future::join_all(calls).await;
        let count = |status| made.iter().filter(|reply| reply.status == status).count();
        assert_eq!((count(201), count(200)), (1, 11), "{nth}: {made:?}");
        let other = agent.post_keyed(&path, "another", &body).await;
        assert_eq!(other.status, 409, "{other:?}");
    }
    world.prove().await;
}

#[tokio::test]
async fn a_bad_body_and_a_disabled_agent_are_refused_and_write_nothing() {
    let (world, _) = world().await;
    let agent = world.agent().await;
    let parent = world.task().await;
    let before = world.footprint().await;
    delegate(&agent, &parent, json!({"agent_slug": "nobody"})).await.invalid_at(&["/agent_slug"]);
    delegate(&agent, &parent, json!({"title": "", "budget": "-1"})).await.invalid_at(&["/title", "/budget"]);
    let unknown = "01890a5d-ac96-774b-bcce-b302099a8002";
    delegate(&agent, &parent, json!({"project_id": unknown})).await.invalid_at(&["/project_id"]);
    set(&world, "tester", "task_budget = 2").await;
    delegate(&agent, &parent, json!({"budget": "3"})).await.refused(422, "budget_above_default");
    set(&world, "tester", "enabled = false").await;
    delegate(&agent, &parent, json!({"title": ""})).await.refused(409, "agent_disabled");
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn a_key_belongs_to_the_parent() {
    let (world, _) = world().await;
    let agent = world.agent().await;
    let (one, two) = (world.task().await, world.task().await);
    let body = json!({"agent_slug": "tester", "title": "A part", "description": "Do it."});
    let path = format!("/agent-tasks/{one}/children");
    let first = agent.post_keyed(&path, "k", &body).await.expect(201)["id"].clone();
    let calls = (0..20).map(|_| agent.post_keyed(&path, "k", &body));
    for again in futures::future::join_all(calls).await {
        assert_eq!((&again.expect(200)["id"], again.is_replayed()), (&first, true));
        assert_eq!(again.header("idempotency-body-match"), None);
    }
    let other = json!({"agent_slug": "tester", "title": "Another", "description": "Do it."});
    let again = agent.post_keyed(&path, "k", &other).await;
    assert_eq!((&again.expect(200)["id"], again.header("idempotency-body-match")), (&first, Some("false")));
    let elsewhere = agent.post_keyed(&format!("/agent-tasks/{two}/children"), "k", &body).await;
    assert_ne!(elsewhere.expect(201)["id"], first);
    let new: Vec<_> = (0..20).map(|_| agent.post_keyed(&path, "fresh", &body)).collect();
    let made = futures::future::join_all(new).await;
    assert_eq!(made.iter().filter(|reply| reply.status == 201).count(), 1);
    let ids: std::collections::BTreeSet<_> = made.iter().map(|reply| reply.body["id"].to_string()).collect();
    assert_eq!(ids.len(), 1);
    let types = world.types(&one).await;
    assert_eq!(types.iter().filter(|kind| *kind == "child.created").count(), 2);
    world.prove().await;
}
