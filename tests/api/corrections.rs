//! Corrections: the signed difference against a report and its earlier corrections, in a new row.

use futures::future::join_all;
use serde_json::{Value, json};

use crate::money::assert_totals;
use crate::support::{Client, Reply, Seed, World};

async fn report(agent: &Client, task: &str, body: &Value) -> Reply {
    agent.post(&format!("/agent-tasks/{task}/usage"), body).await
}

async fn correct(agent: &Client, task: &str, key: &str, original: &Value, tokens_in: i64, tokens_out: i64) -> Reply {
    let body = json!({"idempotency_key": key, "model_id": "sonnet", "corrects": original, "tokens_in": tokens_in,
        "tokens_out": tokens_out});
    report(agent, task, &body).await
}

async fn task_row(world: &World, task: &str) -> Value {
    world.person("ada").get(&format!("/agent-tasks/{task}")).await.expect(200).clone()
}

#[tokio::test]
async fn a_correction_writes_the_difference_at_the_originals_prices() {
    let world = World::new().await;
    let agent = world.agent().await;
    let organization = world.seed.organization_id;
    let model = Seed::model(&world.db, organization, "moving", [Some("2"), Some("4"), None, None]).await;
    let task = world.task_with(json!({"budget": "100"})).await;
    let body = |key: &str, corrects: &Value, tokens_in: i64, tokens_out: i64| {
        json!({"idempotency_key": key, "model_id": "moving", "tokens_in": tokens_in, "tokens_out": tokens_out,
            "corrects": corrects})
    };
    let first = report(&agent, &task, &body("u", &Value::Null, 1_000_000, 1_000_000)).await;
    let original = first.expect(201)["id"].clone();
    assert_eq!(first.body["cost"], "6");
    let from = world.now().to_string();
    Seed::prices(&world.db, organization, model, &from, [Some("200"), Some("400"), None, None]).await;

    let less = report(&agent, &task, &body("c1", &original, 400_000, 1_000_000)).await;
    let row = less.expect(201);
    assert_eq!((&row["tokens_in"], &row["tokens_out"]), (&json!(-600_000), &json!(0)));
    assert_eq!((&row["cost"], &row["input_cost_per_million"]), (&json!("-1.2"), &json!("2")));
    assert_eq!((&row["corrects"], &row["measured"]), (&original, &json!(true)));
    assert_eq!(row["task"]["cost_total"], "4.8");
    assert_ne!(row["id"], original);

    // Against the original and the first correction together.
    let more = report(&agent, &task, &body("c2", &original, 500_000, 2_000_000)).await;
    let row = more.expect(201);
    assert_eq!((&row["tokens_in"], &row["tokens_out"]), (&json!(100_000), &json!(1_000_000)));
    assert_eq!((&row["cost"], &row["task"]["cost_total"]), (&json!("4.2"), &json!("9")));
    let same = report(&agent, &task, &body("c3", &original, 500_000, 2_000_000)).await;
    assert_eq!((&same.expect(201)["cost"], &same.body["tokens_in"]), (&json!("0"), &json!(0)));

    let read = task_row(&world, &task).await;
    assert_eq!((&read["tokens_in"], &read["tokens_out"]), (&json!(500_000), &json!(2_000_000)));
    assert_eq!(read["budget_remaining"], "91");
    assert_totals(&world.person("ada"), &task).await;
    let again = report(&agent, &task, &body("c1", &original, 400_000, 1_000_000)).await;
    assert_eq!(again.expect(200)["cost"], "-1.2");
    assert!(again.is_replayed());
    assert_eq!(task_row(&world, &task).await["last_seq"], read["last_seq"]);
}

#[tokio::test]
async fn a_correction_of_an_unpriced_report_prices_it_at_current_prices() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let unknown = json!({"idempotency_key": "u", "model_id": "gpt-17", "tokens_in": 1_000_000});
    let original = report(&agent, &task, &unknown).await.expect(201)["id"].clone();
    assert_eq!(task_row(&world, &task).await["unpriced_reports"], 1);

    // Still unknown: nothing becomes certain, nothing is counted twice.
    let body = json!({"idempotency_key": "c0", "model_id": "gpt-17", "tokens_in": 2_000_000, "corrects": original});
    let still = report(&agent, &task, &body).await;
    assert_eq!((&still.expect(201)["cost"], &still.body["tokens_in"]), (&Value::Null, &json!(1_000_000)));
    let read = task_row(&world, &task).await;
    assert_eq!((&read["unpriced_reports"], &read["budget_certain"]), (&json!(1), &json!(false)));

    Seed::model(&world.db, world.seed.organization_id, "gpt-17", [Some("3"), None, None, None]).await;
    let body = json!({"idempotency_key": "c1", "model_id": "gpt-17", "tokens_in": 2_000_000, "corrects": original});
    let priced = report(&agent, &task, &body).await;
    let row = priced.expect(201);
    assert_eq!((&row["tokens_in"], &row["cost"]), (&json!(0), &json!("6")), "the whole cost, no more tokens");
    assert_eq!(row["input_cost_per_million"], "3");
    assert_eq!(row["task"]["budget_certain"], true);
    let read = task_row(&world, &task).await;
    assert_eq!((&read["unpriced_reports"], &read["tokens_in"]), (&json!(0), &json!(2_000_000)));

    // From now on it has prices, and a later price of the model is not looked at.
    let model: uuid::Uuid = sqlx::query_scalar("SELECT id FROM agent_directory.models WHERE slug = 'gpt-17'")
        .fetch_one(&world.db)
        .await
        .unwrap();
    let from = world.now().to_string();
    Seed::prices(&world.db, world.seed.organization_id, model, &from, [Some("300"), None, None, None]).await;
    let body = json!({"idempotency_key": "c2", "model_id": "gpt-17", "tokens_in": 1_000_000, "corrects": original});
    assert_eq!(report(&agent, &task, &body).await.expect(201)["cost"], "-3");
    assert_totals(&world.person("ada"), &task).await;
}

#[tokio::test]
async fn a_correction_of_an_unmeasured_report_measures_it() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let unmeasured = json!({"idempotency_key": "u", "model_id": "sonnet"});
    let original = report(&agent, &task, &unmeasured).await.expect(201)["id"].clone();
    let read = task_row(&world, &task).await;
    assert_eq!((&read["unmeasured_reports"], &read["unpriced_reports"]), (&json!(1), &json!(0)));
    let fixed = correct(&agent, &task, "c1", &original, 4, 0).await;
    assert_eq!((&fixed.expect(201)["cost"], &fixed.body["tokens_in"]), (&json!("0.000005"), &json!(4)));
    assert_eq!(fixed.body["task"]["budget_certain"], true);
    let read = task_row(&world, &task).await;
    assert_eq!((&read["unmeasured_reports"], &read["unpriced_reports"]), (&json!(0), &json!(0)));
    assert_eq!(correct(&agent, &task, "c2", &original, 8, 0).await.expect(201)["cost"], "0.000005");
    assert_eq!(task_row(&world, &task).await["unmeasured_reports"], 0, "it falls once");
    assert_totals(&world.person("ada"), &task).await;

    // Measured, but still of a model without prices.
    let unmeasured = json!({"idempotency_key": "u2", "model_id": "gpt-17"});
    let original = report(&agent, &task, &unmeasured).await.expect(201)["id"].clone();
    let body = json!({"idempotency_key": "c3", "model_id": "gpt-17", "tokens_in": 1, "corrects": original});
    assert_eq!(report(&agent, &task, &body).await.expect(201)["cost"], Value::Null);
    let read = task_row(&world, &task).await;
    assert_eq!((&read["unmeasured_reports"], &read["unpriced_reports"]), (&json!(0), &json!(1)));
    assert_eq!(read["budget_certain"], false);
}

#[tokio::test]
async fn a_price_that_the_original_lacked_is_todays_and_the_others_are_the_originals() {
    let world = World::new().await;
    let agent = world.agent().await;
    let organization = world.seed.organization_id;
    let model = Seed::model(&world.db, organization, "partly", [Some("2"), None, None, None]).await;
    let task = world.task().await;
    let body = |key: &str, corrects: &Value, cached: i64| {
        json!({"idempotency_key": key, "model_id": "partly", "tokens_in": 1_000_000, "cache_read_tokens": cached,
            "corrects": corrects})
    };
    let priced = report(&agent, &task, &body("priced", &Value::Null, 0)).await.expect(201)["id"].clone();
    let unpriced = report(&agent, &task, &body("unpriced", &Value::Null, 1_000_000)).await.expect(201)["id"].clone();
    let more = report(&agent, &task, &body("c1", &priced, 1_000_000)).await;
    assert_eq!((&more.expect(201)["cost"], &more.body["cache_read_tokens"]), (&Value::Null, &json!(1_000_000)));
    let read = task_row(&world, &task).await;
    assert_eq!((&read["cost_total"], &read["unpriced_reports"]), (&json!("2"), &json!(2)));

    let from = world.now().to_string();
    Seed::prices(&world.db, organization, model, &from, [Some("20"), None, Some("0.5"), None]).await;
    for (key, original, cost) in [("c2", &priced, "0.5"), ("c3", &unpriced, "2.5")] {
        let fixed = report(&agent, &task, &body(key, original, 1_000_000)).await;
        assert_eq!((&fixed.expect(201)["cost"], &fixed.body["tokens_in"]), (&json!(cost), &json!(0)), "{key}");
        assert_eq!(fixed.body["input_cost_per_million"], "2", "{key}");
        assert_eq!(fixed.body["cache_read_cost_per_million"], "0.5", "{key}");
    }
    let read = task_row(&world, &task).await;
    assert_eq!((&read["unpriced_reports"], &read["budget_certain"]), (&json!(0), &json!(true)));
    assert_totals(&world.person("ada"), &task).await;
}

#[tokio::test]
async fn a_report_is_corrected_by_the_name_that_it_used_wherever_that_leads_by_now() {
    let world = World::new().await;
    let agent = world.agent().await;
    let next = Seed::model(&world.db, world.seed.organization_id, "next", [Some("100"); 4]).await;
    let task = world.task().await;
    let body = |key: &str, corrects: &Value, tokens_in: i64| json!({"idempotency_key": key, "model_id": "sonnet-latest", "tokens_in": tokens_in, "corrects": corrects});
    let original = report(&agent, &task, &body("u", &Value::Null, 4)).await.expect(201)["id"].clone();
    let moved = "UPDATE agent_directory.model_names SET model_id = $1 WHERE name = 'sonnet-latest'";
    sqlx::query(moved).bind(next).execute(&world.db).await.unwrap();
    let fixed = report(&agent, &task, &body("c1", &original, 8)).await;
    assert_eq!(
        (&fixed.expect(201)["cost"], &fixed.body["input_cost_per_million"]),
        (&json!("0.000005"), &json!("1.25"))
    );
    sqlx::query("UPDATE agent_directory.models SET deleted_at = now()").execute(&world.db).await.unwrap();
    let fixed = report(&agent, &task, &body("c2", &original, 4)).await;
    assert_eq!(fixed.expect(201)["cost"], "-0.000005");
    assert_eq!(report(&agent, &task, &body("new", &Value::Null, 4)).await.expect(201)["cost"], Value::Null);
    let by_slug = json!({"idempotency_key": "x", "model_id": "next", "tokens_in": 1, "corrects": original});
    report(&agent, &task, &by_slug).await.refused(422, "invalid_body");
    assert_totals(&world.person("ada"), &task).await;
}

#[tokio::test]
async fn what_cannot_be_corrected_is_refused_and_writes_nothing() {
    let world = World::new().await;
    let agent = world.agent().await;
    let prices = [Some("1"), None, None, None];
    Seed::model(&world.db, world.seed.organization_id, "other", prices).await;
    let (task, elsewhere) = (world.task().await, world.task().await);
    let original = agent.spend(&task, "u", 10, 0).await.expect(201)["id"].clone();
    let foreign = agent.spend(&elsewhere, "u", 10, 0).await.expect(201)["id"].clone();
    let correction = correct(&agent, &task, "c", &original, 5, 0).await.expect(201)["id"].clone();
    let before = task_row(&world, &task).await;
    for (body, pointer) in [
        (json!({"model_id": "sonnet", "tokens_in": 1, "corrects": correction}), "/corrects"),
        (json!({"model_id": "sonnet", "tokens_in": 1, "corrects": foreign}), "/corrects"),
        (json!({"model_id": "sonnet", "tokens_in": 1, "corrects": uuid::Uuid::nil()}), "/corrects"),
        (json!({"model_id": "sonnet", "tokens_in": 1, "corrects": "u"}), "/corrects"),
        (json!({"model_id": "sonnet", "corrects": original}), ""),
        (json!({"model_id": "other", "tokens_in": 1, "corrects": original}), "/model_id"),
        (json!({"model_id": "gpt-17", "tokens_in": 1, "corrects": original}), "/model_id"),
        (json!({"model_id": "sonnet", "tokens_in": -1, "corrects": original}), "/tokens_in"),
    ] {
        let mut body = body;
        body["idempotency_key"] = json!("refused");
        let reply = report(&agent, &task, &body).await;
        assert_eq!(reply.refused(422, "invalid_body")["errors"][0]["pointer"], pointer, "{body}");
    }
    assert_eq!(task_row(&world, &task).await, before);
    // The same model by another of its names is the same model.
    let body = json!({"idempotency_key": "c2", "model_id": "claude-sonnet", "tokens_in": 10, "corrects": original});
    report(&agent, &task, &body).await.expect(201);
    assert_totals(&world.person("ada"), &task).await;
}

#[tokio::test]
async fn a_correction_may_close_a_task_and_never_reopens_one() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task_with(json!({"budget": "1"})).await;
    let original = agent.spend(&task, "u", 0, 90_000).await.expect(201)["id"].clone();
    let closing = correct(&agent, &task, "c1", &original, 0, 100_001).await;
    assert_eq!(closing.expect(201)["task"]["status"], "closed");
    assert_eq!(closing.body["task"]["outcome_reason"], "budget");
    assert_eq!(closing.body["cost"], "0.10001");
    let closed = task_row(&world, &task).await;

    let back = correct(&agent, &task, "c2", &original, 0, 1).await;
    let state = &back.expect(201)["task"];
    assert_eq!((&state["status"], &state["outcome"]), (&json!("closed"), &json!("exceeded_ceiling")));
    assert_eq!((&state["cost_total"], &state["budget_remaining"]), (&json!("0.00001"), &json!("0.99999")));
    let read = task_row(&world, &task).await;
    for member in ["status", "status_since", "outcome", "outcome_reason", "closed_at", "control", "phase"] {
        assert_eq!(read[member], closed[member], "{member}");
    }
    assert_eq!(read["last_seq"].as_i64().unwrap(), closed["last_seq"].as_i64().unwrap() + 1);
    let more = correct(&agent, &task, "c3", &original, 0, 500_000).await;
    assert_eq!(more.expect(201)["task"]["budget_remaining"], "-4", "nothing closes twice");
    assert_eq!(world.types(&task).await.iter().filter(|kind| *kind == "outcome.set").count(), 1);
    assert_totals(&world.person("ada"), &task).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parallel_corrections_end_at_the_counts_of_the_last() {
    let world = World::new().await;
    let beside = World::beside(&world).await;
    let agents = [world.agent().await, beside.agent().await];
    let task = world.task().await;
    let original = agents[0].spend(&task, "u", 1_000, 0).await.expect(201)["id"].clone();
    for round in 0..5 {
        let calls = (0..20).map(|n| {
            let (agent, task, original) = (agents[n % 2].clone(), task.clone(), original.clone());
            tokio::spawn(async move {
                let right = i64::try_from(n).unwrap() * 37;
                correct(&agent, &task, &format!("{round}-{n}"), &original, right, 0).await.expect(201).clone()
            })
        });
        let rows: Vec<Value> = join_all(calls).await.into_iter().map(Result::unwrap).collect();
        let last = rows.iter().max_by_key(|row| row["task"]["last_seq"].as_i64()).unwrap();
        let n: i64 = last["idempotency_key"].as_str().unwrap().split_once('-').unwrap().1.parse().unwrap();
        let read = task_row(&world, &task).await;
        assert_eq!(read["tokens_in"], n * 37, "round {round}");
        assert_totals(&world.person("ada"), &task).await;
    }
}
