//! Creation by triggers: schedulers and webhook gateways that name an origin and an owner.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Client, Reply, World};

const SCHEDULE: &str = "X-Mandate-Scheduled-Task";
const WEBHOOK: &str = "X-Mandate-Webhook";
const DELIVERY: &str = "X-Mandate-Delivery";
const ACCOUNTABLE: &str = "X-Mandate-Accountable";

async fn create(client: &Client, headers: &[(&str, &str)], more: &Value) -> Reply {
    let mut body = json!({"agent_slug": "reviewer", "title": "Nightly", "description": ""});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    let mut request = client.request(Method::POST, "/agent-tasks/").json(&body);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    client.send(request).await
}

async fn disable(world: &World) {
    sqlx::query("UPDATE agent_directory.agents SET enabled = false").execute(&world.db).await.unwrap();
}

#[tokio::test]
async fn a_trigger_names_the_origin_and_the_owner() {
    let world = World::new().await;
    let trigger = world.trigger().await;
    let nightly = create(&trigger, &[(SCHEDULE, "nightly"), (ACCOUNTABLE, "Oscar")], &json!({})).await;
    assert_eq!(nightly.expect(201)["origin"], json!({"kind": "schedule", "scheduled_task": "nightly"}));
    assert_eq!(nightly.body["owner"], "oscar");
    let hook = [(WEBHOOK, "github"), (DELIVERY, "d-1"), (ACCOUNTABLE, "ada")];
    let hook = create(&trigger, &hook, &json!({})).await;
    assert_eq!(hook.expect(201)["origin"], json!({"kind": "webhook", "webhook": "github", "delivery": "d-1"}));
    let log = world.log("T-1").await;
    let account = &log[0]["payload"]["created_by_account"];
    assert_eq!((&log[0]["actor_kind"], &log[0]["actor_id"]), (&json!("system"), account));
    assert_eq!(log[0]["channel"], "harness");
    // It reads what it created, and nothing else.
    let other = world.task().await;
    assert_eq!(trigger.get("/agent-tasks/T-1").await.expect(200)["short_id"], "T-1");
    trigger.get(&format!("/agent-tasks/{other}")).await.refused(403, "permission_denied");
    let listed = trigger.get("/agent-tasks/").await;
    let listed: Vec<_> = listed.expect(200).as_array().unwrap().iter().map(|task| &task["short_id"]).collect();
    assert_eq!(listed, ["T-2", "T-1"]);
    trigger.post_nothing("/agent-tasks/T-1/pause").await.refused(403, "permission_denied");
}

#[tokio::test]
async fn an_origin_is_whole_and_only_one() {
    let world = World::new().await;
    let trigger = world.trigger().await;
    let before = world.footprint().await;
    let owner = (ACCOUNTABLE, "ada");
    let long = "x".repeat(201);
    let cases: [(&[(&str, &str)], &str); 9] = [
        (&[owner], SCHEDULE),
        (&[owner, (WEBHOOK, "github")], DELIVERY),
        (&[owner, (DELIVERY, "d-1")], WEBHOOK),
        (&[owner, (SCHEDULE, "nightly"), (WEBHOOK, "github"), (DELIVERY, "d-1")], SCHEDULE),
        (&[owner, (SCHEDULE, "nightly"), (DELIVERY, "d-1")], SCHEDULE),
        (&[owner, (SCHEDULE, "")], SCHEDULE),
        (&[owner, (SCHEDULE, &long)], SCHEDULE),
        (&[(SCHEDULE, "nightly")], ACCOUNTABLE),
        (&[(SCHEDULE, "nightly"), (ACCOUNTABLE, "two words")], ACCOUNTABLE),
    ];
    for (headers, named) in cases {
        let reply = create(&trigger, headers, &json!({})).await;
        assert_eq!((reply.status, reply.places()), (422, vec![named]), "{headers:?}: {}", reply.text);
    }
    let stranger = create(&trigger, &[(SCHEDULE, "nightly"), (ACCOUNTABLE, "mallory")], &json!({})).await;
    stranger.refused(422, "owner_not_member");
    assert_eq!(stranger.places(), [ACCOUNTABLE]);
    // What cannot be read ranks before the headers, and so does the state of the agent.
    trigger.post_raw("/agent-tasks/", "{").await.refused(400, "invalid_json");
    disable(&world).await;
    create(&trigger, &[(SCHEDULE, &long)], &json!({})).await.refused(409, "agent_disabled");
    let keyed = json!({"idempotency_key": long});
    create(&trigger, &[(SCHEDULE, "nightly"), owner], &keyed).await.refused(409, "agent_disabled");
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn only_a_trigger_names_an_origin_or_an_initial_outcome() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let before = world.footprint().await;
    let long = "x".repeat(201);
    for header in [SCHEDULE, WEBHOOK, DELIVERY, ACCOUNTABLE] {
        for value in ["ada", long.as_str()] {
            create(&ada, &[(header, value)], &json!({})).await.refused(403, "origin_forbidden");
        }
    }
    create(&ada, &[], &json!({"initial_outcome": "done_acted"})).await.refused(403, "origin_forbidden");
    create(&ada, &[], &json!({"initial_outcome_reason": "no_harness"})).await.refused(403, "origin_forbidden");
    create(&agent, &[(SCHEDULE, "nightly"), (ACCOUNTABLE, "ada")], &json!({})).await.refused(403, "permission_denied");
    create(&world.person("vera"), &[(SCHEDULE, "x")], &json!({})).await.refused(403, "permission_denied");
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn a_task_may_be_closed_from_the_start() {
    let world = World::new().await;
    let trigger = world.trigger().await;
    let headers = [(SCHEDULE, "nightly"), (ACCOUNTABLE, "ada")];
    let ending = json!({"initial_outcome": "suppressed_duplicate", "initial_outcome_reason": "same_trigger"});
    let reply = create(&trigger, &headers, &ending).await;
    let task = reply.expect(201);
    assert_eq!((&task["status"], &task["outcome"]), (&json!("closed"), &json!("suppressed_duplicate")));
    assert_eq!((&task["outcome_reason"], &task["last_seq"]), (&json!("same_trigger"), &json!(3)));
    assert_eq!(task["closed_at"], task["created_at"]);
    assert_eq!(world.types("T-1").await, ["task.created", "state.changed", "outcome.set"]);
    let log = world.log("T-1").await;
    assert_eq!(log[1]["payload"], json!({"from": "queued", "to": "closed", "reason": "outcome_set"}));
    world
        .agent()
        .await
        .post("/agent-tasks/T-1/sessions", &json!({"session_key": "k"}))
        .await
        .refused(409, "task_closed");
    // That an agent did not run because it is disabled is on the record, too.
    disable(&world).await;
    let ending = json!({"initial_outcome": "unhandled_no_actor", "initial_outcome_reason": "agent_disabled"});
    let reply = create(&trigger, &headers, &ending).await;
    assert_eq!(reply.expect(201)["outcome_reason"], "agent_disabled");
    create(&trigger, &headers, &json!({})).await.refused(409, "agent_disabled");
    let unknown = create(&trigger, &headers, &json!({"agent_slug": "x", "initial_outcome": "done_acted"})).await;
    unknown.invalid_at(&["/agent_slug"]);
}

#[tokio::test]
async fn an_initial_outcome_is_one_that_a_caller_may_claim() {
    let world = World::new().await;
    let trigger = world.trigger().await;
    let before = world.footprint().await;
    let attempt = |outcome: &str, reason: Value| {
        let trigger = trigger.clone();
        let more = json!({"initial_outcome": outcome, "initial_outcome_reason": reason});
        async move { create(&trigger, &[(SCHEDULE, "nightly"), (ACCOUNTABLE, "ada")], &more).await }
    };
    for (outcome, reason) in [
        ("exceeded_ceiling", "budget"),
        ("exceeded_ceiling", "task_timeout"),
        ("unhandled_no_actor", "agent_deleted"),
        ("interrupted_by_operator", "forced_unconfirmed"),
        ("interrupted_by_operator", "emergency_stop"),
        ("request_expired", "feedback_expired"),
        ("request_expired", "approval_expired"),
        ("cancelled_by_human", "cancelled_without_session"),
        ("cancelled_by_human", "harness_lost"),
    ] {
        attempt(outcome, json!(reason)).await.refused(422, "outcome_reserved");
    }
    attempt("cancelled_by_human", json!("cancel_seen")).await.refused(409, "not_cancelled");
    attempt("exploded", json!(null)).await.invalid_at(&["/initial_outcome"]);
    attempt("done_acted", json!("already_satisfied")).await.invalid_at(&["/initial_outcome_reason"]);
    attempt("no_reason_to_run", json!(null)).await.invalid_at(&["/initial_outcome_reason"]);
    attempt("no_reason_to_run", json!("same_trigger")).await.invalid_at(&["/initial_outcome_reason"]);
    let headers = [(SCHEDULE, "nightly"), (ACCOUNTABLE, "ada")];
    let alone = create(&trigger, &headers, &json!({"initial_outcome_reason": "same_trigger"})).await;
    alone.invalid_at(&["/initial_outcome_reason"]);
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn a_creation_key_belongs_to_the_scheduled_task_or_webhook() {
    let world = World::new().await;
    let trigger = world.trigger().await;
    let key = json!({"idempotency_key": "k"});
    let owner = (ACCOUNTABLE, "ada");
    let first = create(&trigger, &[owner, (SCHEDULE, "nightly")], &key).await;
    assert_eq!(first.expect(201)["short_id"], "T-1");
    let repeat = create(&trigger, &[owner, (SCHEDULE, "nightly")], &key).await;
    assert_eq!((&repeat.expect(200)["short_id"], repeat.is_replayed()), (&json!("T-1"), true));
    let weekly = create(&trigger, &[owner, (SCHEDULE, "weekly")], &key).await;
    assert_eq!(weekly.expect(201)["short_id"], "T-2");
    let hook = create(&trigger, &[owner, (WEBHOOK, "nightly"), (DELIVERY, "1")], &key).await;
    assert_eq!(hook.expect(201)["short_id"], "T-3");
    // Another delivery of the same event is the same creation.
    let again = create(&trigger, &[owner, (WEBHOOK, "nightly"), (DELIVERY, "2")], &key).await;
    assert_eq!(again.expect(200)["short_id"], "T-3");
    // A repeat is answered though its owner has left and the agent is disabled.
    disable(&world).await;
    let late = create(&trigger, &[(ACCOUNTABLE, "mallory"), (SCHEDULE, "nightly")], &key).await;
    assert_eq!(late.expect(200)["short_id"], "T-1");
}
