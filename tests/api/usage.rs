//! Usage reports: one row for each key, priced at the moment of the report, and never lost.

use futures::future::join_all;
use serde_json::{Value, json};

use crate::money::assert_totals;
use crate::support::{Client, Reply, Seed, World};

async fn report(agent: &Client, task: &str, body: &Value) -> Reply {
    agent.post(&format!("/agent-tasks/{task}/usage"), body).await
}

/// What a refusal must not move.
async fn standing(world: &World, task: &str) -> (Value, Value, usize) {
    let ada = world.person("ada");
    let read = ada.get(&format!("/agent-tasks/{task}")).await;
    let row = read.expect(200);
    let ledger = ada.all(&format!("/agent-tasks/{task}/usage?limit=100")).await;
    (row["last_seq"].clone(), row["updated_at"].clone(), ledger.len())
}

#[tokio::test]
async fn a_model_goes_by_its_slug_its_providers_name_and_its_aliases() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    for name in ["sonnet", "claude-sonnet", "sonnet-latest"] {
        let reply = report(&agent, &task, &json!({"idempotency_key": name, "model_id": name, "tokens_in": 4})).await;
        assert_eq!(reply.expect(201)["cost"], "0.000005");
        assert_eq!(reply.body["model_id"], name, "the row keeps the name that the harness used");
    }
    assert_totals(&world.person("ada"), &task).await;
}

#[tokio::test]
async fn the_price_is_the_one_in_force_at_the_report() {
    let world = World::new().await;
    let agent = world.agent().await;
    let organization = world.seed.organization_id;
    let model = Seed::model(&world.db, organization, "moving", [Some("2"), None, None, None]).await;
    let from = world.now().plus(std::time::Duration::from_mins(10)).to_string();
    Seed::prices(&world.db, organization, model, &from, [Some("3"), None, None, None]).await;
    let task = world.task().await;
    let spend = |key: &str| json!({"idempotency_key": key, "model_id": "moving", "tokens_in": 1_000_000});
    assert_eq!(report(&agent, &task, &spend("before")).await.expect(201)["cost"], "2");
    world.skew_clock(601);
    let after = report(&agent, &task, &spend("after")).await;
    assert_eq!(after.expect(201)["cost"], "3");
    assert_eq!(after.body["input_cost_per_million"], "3");
    let rows = world.person("ada").all(&format!("/agent-tasks/{task}/usage")).await;
    let prices: Vec<_> = rows.iter().map(|row| row["input_cost_per_million"].as_str().unwrap()).collect();
    assert_eq!(prices, ["2", "3"], "a row keeps the prices used");
    assert_eq!(report(&agent, &task, &spend("before")).await.expect(200)["cost"], "2", "a repeat is not priced anew");
    assert_totals(&world.person("ada"), &task).await;
}

#[tokio::test]
async fn a_model_whose_first_price_lies_ahead_is_unpriced() {
    let world = World::new().await;
    let agent = world.agent().await;
    let organization = world.seed.organization_id;
    let model = Seed::model(&world.db, organization, "coming", [None; 4]).await;
    sqlx::query("DELETE FROM agent_directory.model_prices WHERE model_id = $1")
        .bind(model)
        .execute(&world.db)
        .await
        .unwrap();
    let from = world.now().plus(std::time::Duration::from_mins(1)).to_string();
    Seed::prices(&world.db, organization, model, &from, [Some("3"), None, None, None]).await;
    let task = world.task().await;
    let reply = report(&agent, &task, &json!({"idempotency_key": "u", "model_id": "coming", "tokens_in": 1})).await;
    assert_eq!(reply.expect(201)["cost"], Value::Null);
    assert_eq!(reply.body["task"]["budget_certain"], false);
}

#[tokio::test]
async fn a_new_session_finds_what_the_earlier_ones_left() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task_with(json!({"budget": "1.00"})).await;
    let first = agent.open_session(&task, "s1").await;
    agent.spend(&task, "u", 0, 90_000).await.expect(201);
    let close = format!("/agent-tasks/{task}/sessions/{first}/close");
    agent.post(&close, &json!({"reason": "done"})).await.expect(200);
    let opened = agent.post(&format!("/agent-tasks/{task}/sessions"), &json!({"session_key": "s2"})).await;
    let state = &opened.expect(201)["task"];
    assert_eq!(state["budget"], "1");
    assert_eq!(state["cost_total"], "0.9");
    assert_eq!(state["budget_remaining"], "0.1");
}

#[tokio::test]
async fn equal_reports_under_two_keys_count_twice_and_one_key_counts_once() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    agent.spend(&task, "a", 0, 10_000).await.expect(201);
    agent.spend(&task, "b", 0, 10_000).await.expect(201);
    let again = agent.spend(&task, "b", 0, 10_000).await;
    assert_eq!(again.expect(200)["task"]["cost_total"], "0.2");
    assert!(again.is_replayed());
    assert_eq!(again.header("idempotency-body-match"), None);
    assert_totals(&world.person("ada"), &task).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_in_twenty_parallel_reports_makes_one_row() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let calls = (0..20).map(|_| agent.spend(&task, "once", 0, 10_000));
    let replies = join_all(calls).await;
    assert_eq!(replies.iter().filter(|reply| reply.status == 201).count(), 1);
    for reply in &replies {
        assert!(reply.status == 201 || reply.is_replayed(), "{}", reply.text);
        assert_eq!(reply.body["id"], replies[0].body["id"]);
    }
    assert_eq!(standing(&world, &task).await.2, 1);
}

#[tokio::test]
async fn a_key_belongs_to_the_account_and_the_task() {
    let world = World::new().await;
    let agent = world.agent().await;
    let other = Seed::agent(&world.db, world.seed.organization_id, "other").await;
    let others = world.account(&other.client_id, &other.client_secret).await;
    let (first, second) = (world.task().await, world.task().await);
    let third = world.task_with(json!({"agent_slug": "other"})).await;
    let mut rows = Vec::new();
    for (account, task) in [(&agent, &first), (&agent, &second), (&others, &third)] {
        let reply = account.spend(task, "same", 0, 10_000).await;
        rows.push(reply.expect(201)["id"].clone());
        assert_eq!(reply.body["task"]["cost_total"], "0.1");
    }
    for (account, task, row) in [(&agent, &first, &rows[0]), (&agent, &second, &rows[1]), (&others, &third, &rows[2])] {
        assert_eq!(&account.spend(task, "same", 0, 10_000).await.expect(200)["id"], row);
    }
    others.spend(&first, "same", 0, 1).await.refused(403, "agent_task_forbidden");
}

#[tokio::test]
async fn a_repeated_key_answers_the_first_row_whatever_the_body() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let first = agent.spend(&task, "k", 1_000, 2).await.expect(201).clone();
    let before = standing(&world, &task).await;
    let path = format!("/agent-tasks/{task}/usage");
    let reordered = r#"{ "tokens_out": 2, "tokens_in": 1000, "model_id": "sonnet", "idempotency_key": "k" }"#;
    let reply = agent.post_raw(&path, reordered).await;
    assert_eq!(reply.expect(200)["id"], first["id"]);
    assert!(reply.is_replayed());
    assert_eq!(reply.header("idempotency-body-match"), None, "other order, the same body");
    let keyed = agent.post_keyed(&path, "k", &json!({"model_id": "sonnet", "tokens_in": 1000, "tokens_out": 2})).await;
    assert_eq!(keyed.expect(200)["id"], first["id"]);
    assert_eq!(keyed.header("idempotency-body-match"), None, "the key in the header, the same body");
    for other in [
        json!({"idempotency_key": "k", "model_id": "sonnet", "tokens_in": 1001, "tokens_out": 2}),
        json!({"idempotency_key": "k", "model_id": "gpt-17", "tokens_in": 1000, "tokens_out": 2}),
        json!({"idempotency_key": "k", "model_id": "sonnet", "tokens_in": -7}),
        json!({"idempotency_key": "k", "model_id": "sonnet", "corrects": first["id"], "tokens_in": 0}),
        json!({"idempotency_key": "k"}),
    ] {
        let reply = agent.post(&path, &other).await;
        assert_eq!(reply.expect(200)["id"], first["id"], "{other}");
        assert_eq!(reply.body["tokens_in"], 1_000);
        assert_eq!(reply.body["cost"], first["cost"]);
        assert!(reply.is_replayed());
        assert_eq!(reply.header("idempotency-body-match"), Some("false"), "{other}");
    }
    assert_eq!(standing(&world, &task).await, before);
    agent.finish(&task).await.expect(200);
    let reply = agent.spend(&task, "k", 1_000, 2).await;
    assert_eq!(reply.expect(200)["task"]["status"], "closed", "the row is the first, the state is today's");
    assert!(reply.is_replayed());
    assert_eq!(agent.spend(&task, "k", 9, 9).await.header("idempotency-body-match"), Some("false"));
}

#[tokio::test]
async fn a_report_that_breaks_a_rule_is_refused_and_writes_nothing() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    agent.spend(&task, "first", 1, 1).await.expect(201);
    let before = standing(&world, &task).await;
    let key = "k".repeat(201);
    for (body, pointer) in [
        (json!({"model_id": "sonnet", "tokens_in": 1}), "/idempotency_key"),
        (json!({"idempotency_key": "", "model_id": "sonnet", "tokens_in": 1}), "/idempotency_key"),
        (json!({"idempotency_key": key, "model_id": "sonnet", "tokens_in": 1}), "/idempotency_key"),
        (json!({"idempotency_key": "x", "tokens_in": 1}), "/model_id"),
        (json!({"idempotency_key": "x", "model_id": "", "tokens_in": 1}), "/model_id"),
        (json!({"idempotency_key": "x", "model_id": 7, "tokens_in": 1}), "/model_id"),
        (json!({"idempotency_key": "x", "model_id": "sonnet", "tokens_in": -1}), "/tokens_in"),
        (json!({"idempotency_key": "x", "model_id": "sonnet", "tokens_out": 1.5}), "/tokens_out"),
        (json!({"idempotency_key": "x", "model_id": "sonnet", "tokens_out": "1"}), "/tokens_out"),
        (
            json!({"idempotency_key": "x", "model_id": "sonnet", "cache_read_tokens": 1_000_000_000_001_i64}),
            "/cache_read_tokens",
        ),
        (json!({"idempotency_key": "x", "model_id": "sonnet", "cache_write_tokens": true}), "/cache_write_tokens"),
        (json!({"idempotency_key": "x", "model_id": "sonnet", "session_id": "s"}), "/session_id"),
        (json!({"idempotency_key": "x", "model_id": "sonnet", "session_id": uuid::Uuid::nil()}), "/session_id"),
        (json!({"idempotency_key": "x", "model_id": "sonnet", "tokens_in": 1, "corrects": "c"}), "/corrects"),
    ] {
        let reply = report(&agent, &task, &body).await;
        let problem = reply.refused(422, "invalid_body");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{body}");
    }
    let two_keys = json!({"idempotency_key": "another", "model_id": "sonnet", "tokens_in": 1});
    let reply = agent.post_keyed(&format!("/agent-tasks/{task}/usage"), "one", &two_keys).await;
    reply.refused(422, "invalid_body");
    for person in ["ada", "oscar"] {
        world.person(person).spend(&task, "x", 1, 1).await.refused(403, "agent_task_forbidden");
    }
    assert_eq!(standing(&world, &task).await, before);
}

#[tokio::test]
async fn money_spent_is_kept_after_the_close_and_from_any_session_of_the_task() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let ended = agent.open_session(&task, "ended").await;
    let close = format!("/agent-tasks/{task}/sessions/{ended}/close");
    agent.post(&close, &json!({"reason": "done"})).await.expect(200);
    let superseded = agent.open_session(&task, "superseded").await;
    let takeover = json!({"session_key": "winner", "takeover": true});
    let opened = agent.post(&format!("/agent-tasks/{task}/sessions"), &takeover).await;
    let winner = opened.expect(201)["session"]["id"].as_str().unwrap().to_owned();
    let spend = async |key: &str, session: &Value| {
        let body = json!({"idempotency_key": key, "model_id": "sonnet", "tokens_out": 10_000, "session_id": session});
        report(&agent, &task, &body).await
    };
    for (at, session) in [&ended, &superseded, &winner].into_iter().enumerate() {
        let reply = spend(&format!("open-{at}"), &json!(session)).await;
        assert_eq!(reply.expect(201)["session_id"], json!(session));
    }
    spend("unnamed", &Value::Null).await.refused(422, "session_required");
    let body = json!({"outcome": "done_acted", "session_id": winner});
    agent.post(&format!("/agent-tasks/{task}/outcome"), &body).await.expect(200);
    for (at, session) in [&ended, &superseded, &winner].into_iter().enumerate() {
        let reply = spend(&format!("closed-{at}"), &json!(session)).await;
        assert_eq!(reply.expect(201)["task"]["status"], "closed");
    }
    let elsewhere = world.task().await;
    let foreign = agent.open_session(&elsewhere, "s").await;
    spend("foreign", &json!(foreign)).await.refused(422, "invalid_body");
    let read = agent.get(&format!("/agent-tasks/{task}")).await;
    let row = read.expect(200);
    assert_eq!((&row["cost_total"], &row["outcome"]), (&json!("0.6"), &json!("done_acted")));
    assert_eq!(world.types(&task).await.iter().filter(|kind| *kind == "usage.reported").count(), 6);
    assert_totals(&world.person("ada"), &task).await;
}

#[tokio::test]
async fn the_ledger_is_told_in_the_order_of_the_log_even_when_the_clock_goes_back() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    for (at, skew) in [0, -300, 200, -3_000, 0].into_iter().enumerate() {
        world.skew_clock(skew);
        world.agent().await.spend(&task, &format!("u{at}"), 1, 0).await.expect(201);
    }
    world.skew_clock(0);
    let pages = agent.pages(&format!("/agent-tasks/{task}/usage?limit=2")).await;
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
    let rows = pages.concat();
    let keys: Vec<_> = rows.iter().map(|row| row["idempotency_key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["u0", "u1", "u2", "u3", "u4"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn totals_that_could_not_be_kept_exactly_are_refused() {
    let world = World::with(|settings| settings.auth.directory_cache_seconds = 10).await;
    let agent = world.agent().await;
    let dear = Some("1000000");
    Seed::model(&world.db, world.seed.organization_id, "dear", [dear; 4]).await;
    let task = world.task().await;
    let most = 1_000_000_000_000_i64;
    let body = move |key: String| {
        json!({"idempotency_key": key, "model_id": "dear", "tokens_in": most, "tokens_out": most,
            "cache_read_tokens": most, "cache_write_tokens": most})
    };
    // Each costs 4·10¹², so that 2,499 of them stay below 10¹⁶.
    let writers = (0..7).map(|writer| {
        let (agent, task) = (agent.clone(), task.clone());
        tokio::spawn(async move {
            for n in 0..357 {
                let reply = report(&agent, &task, &body(format!("{writer}-{n}"))).await;
                assert_eq!(reply.expect(201)["cost"], "4000000000000");
            }
        })
    });
    for writer in join_all(writers).await {
        writer.unwrap();
    }
    let before = standing(&world, &task).await;
    let reply = report(&agent, &task, &body("over".to_owned())).await;
    reply.refused(422, "invalid_body");
    let after = standing(&world, &task).await;
    assert_eq!(after, before);
    assert_eq!(after.2, 2_499);
    let less = json!({"idempotency_key": "fits", "model_id": "dear", "tokens_in": most, "tokens_out": most,
        "cache_read_tokens": most, "cache_write_tokens": most - 1});
    assert_eq!(report(&agent, &task, &less).await.expect(201)["task"]["cost_total"], "9999999999999999");
    assert_totals(&world.person("ada"), &task).await;
}
