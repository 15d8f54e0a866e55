//! Creation by people: what is pinned, budgets, numbers.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{Seed, World};

/// The smallest creation of the seeded agent, with these members too.
fn new_task(more: &Value) -> Value {
    let mut body = json!({"agent_slug": "reviewer", "title": "Review", "description": ""});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// Changes a setting of the seeded agent, as the directory would.
async fn set_agent(world: &World, assignment: &str) {
    let statement = format!("UPDATE agent_directory.agents SET {assignment} WHERE slug = 'reviewer'");
    sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&world.db).await.unwrap();
}

#[tokio::test]
async fn a_new_task_answers_every_field_and_its_first_event() {
    let world = World::new().await;
    let ada = world.person("ada");
    let reply = ada.post("/agent-tasks/", &new_task(&json!({"project_id": world.seed.project_id}))).await;
    let task = reply.expect(201);
    let fields = "id short_id agent_id agent_slug agent_version prompt_version service_account_id project_id title \
        description subject labels params origin idempotency_key owner budget status status_since control phase \
        furthest_milestone outcome outcome_reason result cost_total set_aside budget_remaining budget_certain tokens_in \
        tokens_out cache_read_tokens cache_write_tokens unmeasured_reports unpriced_reports open_requests open_sessions \
        last_seq log_digest created_at updated_at closed_at log_archived_at";
    let keys: BTreeSet<_> = task.as_object().unwrap().keys().map(String::as_str).collect();
    let missing: Vec<_> = fields.split_whitespace().filter(|field| !keys.contains(field)).collect();
    assert_eq!(missing, Vec::<&str>::new());
    assert_eq!(task["origin"], json!({"kind": "human", "user": "ada"}));
    assert_eq!((&task["owner"], &task["status"], &task["control"]), (&json!("ada"), &json!("queued"), &json!("run")));
    assert_eq!((&task["project_id"], &task["labels"]), (&json!(world.seed.project_id), &json!({})));
    assert_eq!(task["service_account_id"], json!(world.seed.agent.account_id));
    for null in ["subject", "params", "budget", "budget_remaining", "idempotency_key", "phase", "outcome", "closed_at"]
    {
        assert_eq!(task[null], Value::Null, "{null}");
    }
    assert_eq!((&task["cost_total"], &task["set_aside"], &task["last_seq"]), (&json!("0"), &json!("0"), &json!(1)));
    let log = world.log("T-1").await;
    assert_eq!(log.len(), 1);
    let (event, payload) = (&log[0], &log[0]["payload"]);
    assert_eq!(
        (&event["type"], &event["seq"], &event["schema_version"]),
        (&json!("task.created"), &json!(1), &json!(1))
    );
    assert_eq!(
        (&event["actor_kind"], &event["actor_id"], &event["channel"]),
        (&json!("human"), &json!("ada"), &json!("api"))
    );
    assert_eq!(
        (&payload["short_id"], &payload["owner"], &payload["project_slug"]),
        (&json!("T-1"), &json!("ada"), &json!("app"))
    );
    assert_eq!(event["digest"], task["log_digest"]);
    assert_eq!(ada.get("/agent-tasks/t-1").await.expect(200), task);
}

#[tokio::test]
async fn numbers_have_no_holes_though_many_create_at_once_and_some_fail() {
    let world = World::new().await;
    Seed::plant(&world.db, "globex").await;
    let ada = world.person("ada");
    let calls = (0..300).map(|index| {
        let org = if index % 2 == 0 { "acme" } else { "globex" };
        let ada = ada.in_organization(org);
        // Half of what is refused is refused only after the agent was found.
        let bad = match index % 20 {
            0 => json!({"title": 7}),
            1 => json!({"budget": "-1"}),
            10 => json!({"agent_slug": "nobody"}),
            11 => json!({"project_id": "01890a5d-ac96-774b-bcce-b302099a8057"}),
            _ => json!({}),
        };
        tokio::spawn(async move { (org, ada.post("/agent-tasks/", &new_task(&bad)).await) })
    });
    let mut numbers = [("acme", BTreeSet::new()), ("globex", BTreeSet::new())];
    let mut refused = 0;
    for call in calls.collect::<Vec<_>>() {
        let (org, reply) = call.await.unwrap();
        if reply.status == 201 {
            let name = reply.body["short_id"].as_str().unwrap().to_owned();
            let of_org = numbers.iter_mut().find(|(known, _)| *known == org).unwrap();
            assert!(of_org.1.insert(name.trim_start_matches("T-").parse::<u32>().unwrap()), "{org} {name} twice");
        } else {
            reply.refused(422, "invalid_body");
            refused += 1;
        }
    }
    assert_eq!(refused, 60);
    for (org, numbers) in numbers {
        assert_eq!(numbers, (1..=120).collect(), "{org}");
    }
}

#[tokio::test]
async fn every_fault_of_a_creation_is_named_at_once() {
    let world = World::new().await;
    let before = world.footprint().await;
    let ada = world.person("ada");
    let body = json!({"title": " ", "description": 7, "project_id": "app", "budget": true, "subject": "",
        "labels": {"a": 1, "": "x", "b": "fine"}, "params": {"any": [null]}, "unknown": {"is": "ignored"}});
    ada.post("/agent-tasks/", &body).await.invalid_at(&[
        "/agent_slug",
        "/title",
        "/description",
        "/project_id",
        "/budget",
        "/subject",
        "/labels/",
        "/labels/a",
    ]);
    for no_object in [json!([]), json!("x"), json!(7)] {
        ada.post("/agent-tasks/", &no_object).await.refused(422, "invalid_body");
    }
    ada.post("/agent-tasks/", &new_task(&json!({"title": "x".repeat(501)}))).await.invalid_at(&["/title"]);
    ada.post("/agent-tasks/", &new_task(&json!({"description": "x".repeat(20_001)})))
        .await
        .invalid_at(&["/description"]);
    assert_eq!(world.footprint().await, before);
    ada.post("/agent-tasks/", &new_task(&json!({"title": "é".repeat(500), "description": "x".repeat(20_000)})))
        .await
        .expect(201);
}

#[tokio::test]
async fn an_agent_or_project_that_does_not_exist_is_named() {
    let world = World::new().await;
    let before = world.footprint().await;
    let ada = world.person("ada");
    ada.post("/agent-tasks/", &new_task(&json!({"agent_slug": "nobody"}))).await.invalid_at(&["/agent_slug"]);
    let unknown = json!({"project_id": "01890a5d-ac96-774b-bcce-b302099a8057"});
    ada.post("/agent-tasks/", &new_task(&unknown)).await.invalid_at(&["/project_id"]);
    set_agent(&world, "deleted_at = now()").await;
    ada.post("/agent-tasks/", &new_task(&json!({}))).await.invalid_at(&["/agent_slug"]);
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn a_disabled_agent_gets_no_new_tasks_and_keeps_those_it_has() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let (task, session) = world.working(&agent).await;
    set_agent(&world, "enabled = false").await;
    let before = world.footprint().await;
    ada.post("/agent-tasks/", &new_task(&json!({}))).await.refused(409, "agent_disabled");
    // The state of the agent ranks before the rest of the body.
    ada.post("/agent-tasks/", &new_task(&json!({"title": 7}))).await.refused(409, "agent_disabled");
    assert_eq!(world.footprint().await, before);
    agent.say(&task, &session, "I go on.").await.expect(201);
    agent.finish(&task).await.expect(200);
}

#[tokio::test]
async fn a_budget_is_exact_or_refused() {
    let world = World::new().await;
    let ada = world.person("ada");
    let exact = [
        ("0.1", "0.1"),
        ("\"0.10\"", "0.1"),
        ("4.81", "4.81"),
        ("1e-7", "0.0000001"),
        ("\"1E2\"", "100"),
        ("0.000000000001", "0.000000000001"),
        ("9999999999999999.999999999999", "9999999999999999.999999999999"),
        ("0", "0"),
        ("-0.0", "0"),
        ("\"007\"", "7"),
    ];
    for (sent, kept) in exact {
        let body = format!(r#"{{"agent_slug":"reviewer","title":"t","description":"","budget":{sent}}}"#);
        let reply = ada.post_raw("/agent-tasks/", body).await;
        let task = reply.expect(201);
        assert_eq!((&task["budget"], &task["budget_remaining"]), (&json!(kept), &json!(kept)), "{sent}");
        let again = ada.get(&format!("/agent-tasks/{}", task["short_id"].as_str().unwrap())).await;
        assert_eq!(again.body["budget"], kept, "{sent}");
    }
    let before = world.footprint().await;
    let refused = [
        "-1",
        "\"-1\"",
        "-0.000000000001",
        "\"1,5\"",
        "\"NaN\"",
        "\"Infinity\"",
        "\"\"",
        "\" 1\"",
        "\"1 USD\"",
        "\"+1\"",
        "\".5\"",
        "\"5.\"",
        "\"0x10\"",
        "1234567890123456789",
        "0.1234567890123456789",
        "1e16",
        "1e-13",
        "1e400",
        "1e-400",
        "\"1e99999999999\"",
        "true",
        "[]",
        "{}",
        "\"٣\"",
    ];
    for sent in refused {
        let body = format!(r#"{{"agent_slug":"reviewer","title":"t","description":"","budget":{sent}}}"#);
        let reply = ada.post_raw("/agent-tasks/", body).await;
        assert_eq!((reply.status, reply.places()), (422, vec!["/budget"]), "{sent}: {}", reply.text);
    }
    let no_json = r#"{"agent_slug":"reviewer","title":"t","description":"","budget":NaN}"#;
    ada.post_raw("/agent-tasks/", no_json).await.refused(400, "invalid_json");
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn a_caller_may_only_lower_the_agents_budget() {
    let world = World::new().await;
    set_agent(&world, "task_budget = 2.5").await;
    let ada = world.person("ada");
    let default = ada.post("/agent-tasks/", &new_task(&json!({}))).await;
    assert_eq!(default.expect(201)["budget"], "2.5");
    for (sent, kept) in [(json!("2.50"), "2.5"), (json!(1), "1"), (json!("0"), "0"), (json!(null), "2.5")] {
        let reply = ada.post("/agent-tasks/", &new_task(&json!({"budget": sent}))).await;
        assert_eq!(reply.expect(201)["budget"], kept, "{sent}");
    }
    let before = world.footprint().await;
    let above = ada.post("/agent-tasks/", &new_task(&json!({"budget": "2.500000000001"}))).await;
    assert_eq!(above.refused(422, "budget_above_default")["limit"], "2.5");
    assert_eq!(above.places(), ["/budget"]);
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn what_creation_pinned_does_not_move_when_the_agent_changes() {
    let world = World::new().await;
    set_agent(&world, "task_budget = 2.5").await;
    let ada = world.person("ada");
    let first = ada.post("/agent-tasks/", &new_task(&json!({}))).await;
    let first = first.expect(201);
    set_agent(&world, "version = 4, prompt_version = 9, task_budget = 7, name = 'Renamed'").await;
    sqlx::query("UPDATE agent_directory.projects SET slug = 'moved'").execute(&world.db).await.unwrap();
    assert_eq!(ada.get("/agent-tasks/T-1").await.expect(200), first);
    let second = ada.post("/agent-tasks/", &new_task(&json!({}))).await;
    let second = second.expect(201);
    let pins = |task: &Value| json!([task["agent_version"], task["prompt_version"], task["budget"]]);
    assert_eq!((pins(first), pins(second)), (json!([3, 7, "2.5"]), json!([4, 9, "7"])));
    // A commit on the first task afterwards keeps its pins, too.
    ada.post_nothing("/agent-tasks/T-1/pause").await.expect(200);
    assert_eq!(pins(ada.get("/agent-tasks/T-1").await.expect(200)), json!([3, 7, "2.5"]));
}

#[tokio::test]
async fn members_that_name_the_caller_or_the_tenant_are_ignored() {
    let world = World::new().await;
    let forged = json!({"owner": "oscar", "origin": {"kind": "human", "user": "oscar"}, "actor_id": "oscar",
        "organization_id": "01890a5d-ac96-774b-bcce-b302099a8057", "status": "closed", "short_id": "T-77",
        "agent_version": 99, "cost_total": "-5", "id": "01890a5d-ac96-774b-bcce-b302099a8057"});
    let reply = world.person("ada").post("/agent-tasks/", &new_task(&forged)).await;
    let task = reply.expect(201);
    assert_eq!((&task["owner"], &task["short_id"], &task["status"]), (&json!("ada"), &json!("T-1"), &json!("queued")));
    assert_eq!((&task["agent_version"], &task["cost_total"]), (&json!(3), &json!("0")));
    assert_ne!(task["id"], forged["id"]);
    assert_eq!(world.log("T-1").await[0]["actor_id"], "ada");
}
