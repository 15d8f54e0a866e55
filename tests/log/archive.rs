//! From a closed task to an archived log, and what is still allowed on the way.

use serde_json::{Value, json};

use crate::combination::{Place, archived, landed, without_publisher};
use crate::over_every_combination;
use crate::support::{Client, World, digest_of, keep_artifacts};

over_every_combination!(
    an_archived_log_reads_as_before,
    what_nobody_published_is_sent_by_the_sweep,
    after_the_archive_everything_is_refused,
    nothing_is_archived_before_its_grace_is_over,
    money_and_effects_after_the_close_are_archived_too,
    a_parent_is_archived_after_its_children,
    a_payload_in_the_artifact_store_reads_as_before,
);

/// A payload that another JSON writer would change.
pub const PAYLOAD: &str = r#"{"body":"é\u00e9\/ 🦀 \"quoted\" \\ \t","n":10,"big":9007199254740993,"d":0.10,"e":1E400,"z":-0.0,"a":[],"o":{}}"#;

/// A task with a log of many types, closed; its short id.
pub async fn closed_task(world: &World, agent: &Client) -> String {
    closed_task_with(world, agent, r#"{"body":"Grüße 🦀"}"#).await
}

/// The same with this payload of a turn.
pub async fn closed_task_with(world: &World, agent: &Client, payload: &str) -> String {
    let task = world.task_with(json!({"labels": {"b": "2", "a": "1"}, "params": {"z": 1.0, "a": [1e5]}})).await;
    let session = agent.open_session(&task, "s1").await;
    let body = format!(
        r#"{{"session_id":"{session}","events":[
            {{"type":"turn","at":"2026-01-31T15:00:00.123456+05:30","payload":{payload}}},
            {{"type":"tool.called","actor_kind":"subagent","actor_id":"helper","payload":{{"tool":"t","mutating":true,"password":"hunter2"}}}},
            {{"type":"phase.changed","payload":{{"phase":"look","furthest_milestone":"m"}}}}]}}"#
    );
    agent.post_raw(&format!("/agent-tasks/{task}/events"), body).await.expect(201);
    let request = agent.ask(&task, &["yes", "no"]).await;
    let resolve = format!("/agent-tasks/{task}/requests/{request}/resolve");
    world.person("abe").post(&resolve, &json!({"status": "answered", "choice": "yes"})).await.expect(201);
    agent.spend(&task, "u1", 5_005, 1_744).await.expect(201);
    let unknown = json!({"idempotency_key": "u2", "model_id": "nobody-knows-it", "tokens_in": 7});
    agent.on(&task, "usage", unknown).await.expect(201);
    agent.on(&task, "usage", json!({"idempotency_key": "u3", "model_id": "sonnet"})).await.expect(201);
    agent.finish(&task).await.expect(200);
    task
}

/// What a reader is given for each of many ways to read a log, as its very text.
async fn readings(world: &World, task: &str) -> Vec<String> {
    let vera = world.person("vera");
    let mut texts = Vec::new();
    for query in [
        "?limit=1000",
        "",
        "?after_seq=3&limit=4",
        "?before_seq=9&limit=3",
        "?before_seq=1",
        "?after_seq=2&before_seq=6",
        "?type=turn&type=outcome.set",
        "?type=usage.reported&limit=2",
        "?type=usage.reported&before_seq=1000&limit=2",
        "?after_seq=100000",
        "?type=nothing.of.the.kind",
    ] {
        let reply = vera.get(&format!("/agent-tasks/{task}/events{query}")).await;
        reply.expect(200);
        texts.push(format!("{query} {:?} {}", reply.next(), reply.text));
    }
    let lines = vera.request(reqwest::Method::GET, &format!("/agent-tasks/{task}/events"));
    let lines = lines.header("accept", "application/x-ndjson").send().await.unwrap();
    assert_eq!(lines.headers()["content-type"], "application/x-ndjson");
    texts.push(lines.text().await.unwrap());
    texts.push(vera.get(&format!("/agent-tasks/{task}/usage")).await.text);
    texts.push(vera.get(&format!("/agent-tasks/{task}/sessions")).await.text);
    texts.push(vera.get(&format!("/agent-tasks/{task}/requests")).await.text);
    texts
}

async fn an_archived_log_reads_as_before(place: Place) {
    let world = place.world().await;
    let agent = world.agent().await;
    let task = closed_task_with(&world, &agent, PAYLOAD).await;
    landed(&world, &task).await;
    let before = readings(&world, &task).await;
    assert!(before[0].contains(PAYLOAD), "{}", before[0]);
    let row = world.person("ada").get(&format!("/agent-tasks/{task}")).await.expect(200).clone();
    let archived = archived(&world, &task).await;
    assert_eq!(readings(&world, &task).await, before);
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM agent_runtime.events").fetch_one(&world.db).await.unwrap();
    assert_eq!(left, 0, "archived, and still in postgres");
    // Nothing else of the task moved.
    let without = |mut row: Value| {
        row["log_archived_at"] = Value::Null;
        row
    };
    assert_eq!(without(archived), row);
    world.prove().await;
    // A round that finds nothing to do.
    let idle = world.sweep().await;
    assert_eq!((idle.archived, idle.republished, idle.mismatched), (0, 0, 0));
}

async fn a_payload_in_the_artifact_store_reads_as_before(place: Place) {
    let world = place.world_with(keep_artifacts).await;
    let (agent, vera) = (world.agent().await, world.person("vera"));
    let payload = format!(r#"{{"more":[{PAYLOAD}],"body":"{}"}}"#, "x".repeat(70_000));
    let task = closed_task_with(&world, &agent, &payload).await;
    landed(&world, &task).await;
    let before = readings(&world, &task).await;
    let digest = digest_of(payload.as_bytes());
    assert!(before[0].contains(&digest) && before[0].len() < 20_000, "{}", before[0]);
    assert_eq!(vera.artifact(&digest).await.text, payload);
    archived(&world, &task).await;
    assert_eq!(readings(&world, &task).await, before);
    // The references of an archived log are kept, and so is what it refers to.
    world.service.sweep_artifacts(std::time::Duration::ZERO, 100).await.unwrap();
    assert_eq!(vera.artifact(&digest).await.text, payload);
    world.prove().await;
}

async fn what_nobody_published_is_sent_by_the_sweep(place: Place) {
    let world = place.world_with(without_publisher).await;
    let agent = world.agent().await;
    let (open, closed) = (world.task().await, closed_task(&world, &agent).await);
    let key =
        crate::combination::key(&world, world.person("ada").get(&format!("/agent-tasks/{closed}")).await.expect(200));
    assert_eq!(world.log.store.coverage(&[key]).await.unwrap(), []);
    // Old enough to be lost.
    world.skew_clock(2);
    let first = world.sweep().await;
    assert!(first.republished > 0 && first.unpublished == 0, "{first:?}");
    archived(&world, &closed).await;
    landed(&world, &open).await;
    // Both flags are gone, once what was sent has landed.
    crate::support::eventually("nothing waits", async || {
        world.sweep().await;
        let dirty = "SELECT count(*) FROM agent_runtime.tasks WHERE dirty";
        sqlx::query_scalar::<_, i64>(dirty).fetch_one(&world.db).await.unwrap() == 0
    })
    .await;
    world.prove().await;
}

async fn after_the_archive_everything_is_refused(place: Place) {
    let world = place.world().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let (task, session) = world.working(&agent).await;
    let request = agent.ask(&task, &["yes"]).await;
    let reply = format!("/agent-tasks/{task}/reply");
    let words = json!({"body": "My password=hunter2-hunter2 is not for the log.", "hold": false});
    ada.post_keyed(&reply, "r1", &words).await.expect(200);
    let id = uuid::Uuid::new_v4();
    let event = json!({"event_id": id, "type": "tool.called", "payload": {"tool": "t", "mutating": true}});
    agent.append(&task, json!([event])).await.expect(201);
    agent.spend(&task, "u1", 10, 10).await.expect(201);
    agent.finish(&task).await.expect(200);
    let archived = archived(&world, &task).await;
    let before = world.footprint().await;
    let path = format!("/agent-tasks/{task}");
    let tool = json!([{"type": "tool.called", "payload": {"tool": "t", "mutating": true}}]);
    agent.append(&task, tool).await.refused(409, "task_archived");
    // Not even the same id again: its content cannot be compared any more.
    agent.append(&task, json!([event])).await.refused(409, "task_archived");
    agent
        .on(&task, "events", json!({"events": [{"type": "task.created", "payload": {}}]}))
        .await
        .refused(409, "task_archived");
    agent.say(&task, &session, "late").await.refused(409, "task_archived");
    agent.spend(&task, "u2", 1, 1).await.refused(409, "task_archived");
    agent.on(&task, "sessions", json!({"session_key": "s2"})).await.refused(409, "task_archived");
    agent.on(&task, "requests", json!({"kind": "feedback", "title": "?"})).await.refused(409, "task_archived");
    agent
        .on(&task, "outcome", json!({"outcome": "partial_capped", "reason": "turn_cap"}))
        .await
        .refused(409, "task_archived");
    for control in ["pause", "resume", "cancel"] {
        ada.post_nothing(&format!("{path}/{control}")).await.refused(409, "task_archived");
    }
    ada.post(&format!("{path}/reassign"), &json!({"owner": "oscar"})).await.refused(409, "task_archived");
    ada.post(&format!("{path}/reply"), &json!({"body": "late"})).await.refused(409, "task_archived");
    let resolve = format!("{path}/requests/{request}/resolve");
    ada.post(&resolve, &json!({"status": "answered", "choice": "yes"})).await.refused(409, "task_archived");
    // A key that was used is answered before any state.
    assert!(agent.spend(&task, "u1", 10, 10).await.is_replayed());
    let again = ada.post_keyed(&reply, "r1", &words).await;
    assert_eq!((&again.expect(200)["short_id"], again.is_replayed()), (&json!(task), true));
    ada.post_keyed(&reply, "r1", &json!({"body": "Other words."})).await.expect(200);
    ada.post_keyed(&reply, "r2", &words).await.refused(409, "task_archived");
    // A sign of life is told how it ended.
    let beat = agent.post_nothing(&format!("{path}/sessions/{session}/heartbeat")).await;
    let told = beat.refused(409, "task_archived");
    assert_eq!((&told["outcome"], &told["last_seq"]), (&json!("done_acted"), &archived["last_seq"]));
    // Bad content ranks before the archive, a closed session's close stays a success that changes nothing.
    agent.post_raw(&format!("{path}/events"), "{").await.refused(400, "invalid_json");
    assert_eq!(world.footprint().await, before);
}

async fn nothing_is_archived_before_its_grace_is_over(place: Place) {
    let world = place.world_with(|settings| settings.archive.grace_seconds = 900).await;
    let agent = world.agent().await;
    let task = closed_task(&world, &agent).await;
    landed(&world, &task).await;
    for seconds in [0, 890] {
        world.skew_clock(seconds);
        assert_eq!(world.sweep().await.archived, 0, "after {seconds} s");
    }
    // Verified it is all the same.
    let proof = world.person("vera").get(&format!("/agent-tasks/{task}/proof")).await;
    assert_eq!(proof.expect(200)["verified_seq"], proof.body["last_seq"]);
    assert_eq!(proof.body["location"], "postgres");
    world.skew_clock(910);
    assert_eq!(world.sweep().await.archived, 1);
    world.prove().await;
}

async fn money_and_effects_after_the_close_are_archived_too(place: Place) {
    let world = place.world_with(|settings| settings.archive.grace_seconds = 900).await;
    let agent = world.agent().await;
    let task = closed_task(&world, &agent).await;
    world.sweep().await;
    agent.spend(&task, "late", 1_000_000, 0).await.expect(201);
    let tool = json!([{"type": "tool.called", "payload": {"tool": "late", "mutating": true}}]);
    agent.append(&task, tool).await.expect(201);
    landed(&world, &task).await;
    let log = world.log(&task).await;
    world.skew_clock(910);
    archived(&world, &task).await;
    assert_eq!(world.log(&task).await, log);
    assert_eq!(log[log.len() - 1]["payload"]["tool"], "late");
    world.prove().await;
}

async fn a_parent_is_archived_after_its_children(place: Place) {
    let world = place.world().await;
    let agent = world.agent().await;
    let parent = world.task().await;
    let part = json!({"agent_slug": world.seed.agent.slug, "title": "A part", "description": "Do it."});
    let child = agent.on(&parent, "children", part).await.expect(201)["short_id"].as_str().unwrap().to_owned();
    agent.on(&parent, "sessions", json!({"session_key": "s"})).await.expect(201);
    agent.finish(&parent).await.expect(200);
    landed(&world, &parent).await;
    landed(&world, &child).await;
    for _ in 0..3 {
        assert_eq!(world.sweep().await.archived, 0, "its child is open");
    }
    agent.on(&child, "sessions", json!({"session_key": "s"})).await.expect(201);
    agent.finish(&child).await.expect(200);
    archived(&world, &parent).await;
    let order = "SELECT p.log_archived_at >= c.log_archived_at FROM agent_runtime.tasks p, agent_runtime.tasks c
        WHERE p.short_number = 1 AND c.short_number = 2";
    assert!(sqlx::query_scalar::<_, bool>(order).fetch_one(&world.db).await.unwrap());
    world.prove().await;
}
