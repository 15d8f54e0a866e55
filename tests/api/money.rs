//! Money: exact to the last digit, never rounded, and one close at the first crossing.

use futures::future::join_all;
use rust_decimal::Decimal;
use serde_json::{Value, json};

use crate::support::{Client, Seed, World};

/// The members that hold money or a price, wherever they stand.
const MONEY: &[&str] = &[
    "budget",
    "budget_remaining",
    "cost",
    "cost_total",
    "set_aside",
    "input_cost_per_million",
    "output_cost_per_million",
    "cache_read_cost_per_million",
    "cache_write_cost_per_million",
];

/// Checks that all money in `value` is null or a plain decimal string; answers how many strings there were.
fn plain_money(value: &Value) -> usize {
    let is_plain = |text: &str| {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "1"));
        let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        number(whole)
            && number(fraction)
            && (whole == "0" || !whole.starts_with('0'))
            && !fraction.ends_with('0')
            && text != "-0"
    };
    match value {
        Value::Array(items) => items.iter().map(plain_money).sum(),
        Value::Object(members) => members
            .iter()
            .map(|(key, value)| match value {
                Value::Null => 0,
                Value::String(text) if MONEY.contains(&key.as_str()) => {
                    assert!(is_plain(text), "{key}: {text}");
                    1
                }
                other => {
                    assert!(!MONEY.contains(&key.as_str()), "{key} is no string: {other}");
                    plain_money(other)
                }
            })
            .sum(),
        _ => 0,
    }
}

fn decimal(value: &Value) -> Decimal {
    value.as_str().unwrap().parse().unwrap()
}

/// The task's totals are those of its ledger.
pub async fn assert_totals(ada: &Client, task: &str) {
    let rows = ada.all(&format!("/agent-tasks/{task}/usage?limit=100")).await;
    let read = ada.get(&format!("/agent-tasks/{task}")).await;
    let row = read.expect(200);
    let cost: Decimal = rows.iter().filter(|row| !row["cost"].is_null()).map(|row| decimal(&row["cost"])).sum();
    assert_eq!(decimal(&row["cost_total"]), cost);
    for count in ["tokens_in", "tokens_out", "cache_read_tokens", "cache_write_tokens"] {
        let sum: i64 = rows.iter().map(|row| row[count].as_i64().unwrap_or_default()).sum();
        assert_eq!(row[count], sum, "{count}");
    }
    if let Some(remaining) = row["budget_remaining"].as_str() {
        assert_eq!(remaining.parse::<Decimal>().unwrap(), decimal(&row["budget"]) - cost);
    }
}

async fn report(agent: &Client, task: &str, body: &Value) -> crate::support::Reply {
    agent.post(&format!("/agent-tasks/{task}/usage"), body).await
}

#[tokio::test]
async fn a_recorded_call_costs_its_tokens_times_the_prices_exactly() {
    let world = World::new().await;
    let agent = world.agent().await;
    let prices = [Some("1.25"), Some("10"), Some("0.625"), None];
    Seed::model(&world.db, world.seed.organization_id, "field", prices).await;
    let task = world.task().await;
    let body = json!({"idempotency_key": "u", "model_id": "field", "tokens_in": 5005, "tokens_out": 1744,
        "cache_read_tokens": 257_955});
    let reply = report(&agent, &task, &body).await;
    let row = reply.expect(201);
    assert_eq!(row["cost"], "0.184918125");
    assert_eq!(row["cache_write_tokens"], 0);
    assert_eq!(row["input_cost_per_million"], "1.25");
    assert_eq!(row["output_cost_per_million"], "10");
    assert_eq!(row["cache_read_cost_per_million"], "0.625");
    assert_eq!(row["cache_write_cost_per_million"], Value::Null);
    assert_eq!(row["measured"], true);
    assert_eq!(row["corrects"], Value::Null);
    assert_eq!(row["task"]["cost_total"], "0.184918125");
    assert_eq!(row["task"]["budget"], Value::Null);
    assert_eq!(row["task"]["budget_remaining"], Value::Null);
    assert_eq!(row["task"]["budget_certain"], true);
    assert_totals(&world.person("ada"), &task).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parallel_reports_close_the_task_once_at_the_first_crossing() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task_with(json!({"budget": "1.00"})).await;
    let session = agent.open_session(&task, "s1").await;
    let reports = (0..20).map(|n| {
        let (agent, task, session) = (agent.clone(), task.clone(), session.clone());
        tokio::spawn(async move {
            let body = json!({"idempotency_key": format!("u{n}"), "model_id": "sonnet", "tokens_out": 10_000,
                "session_id": session});
            report(&agent, &task, &body).await.expect(201)["cost"].clone()
        })
    });
    for cost in join_all(reports).await {
        assert_eq!(cost.unwrap(), "0.1");
    }
    let ada = world.person("ada");
    let read = ada.get(&format!("/agent-tasks/{task}")).await;
    let row = read.expect(200);
    assert_eq!((&row["outcome"], &row["outcome_reason"]), (&json!("exceeded_ceiling"), &json!("budget")));
    assert_eq!((&row["cost_total"], &row["budget_remaining"]), (&json!("2"), &json!("-1")));
    assert_eq!(ada.all(&format!("/agent-tasks/{task}/usage")).await.len(), 20);
    assert_totals(&ada, &task).await;

    let log = world.log(&task).await;
    let left: Vec<_> = log.iter().filter(|event| event["type"] == "usage.reported").collect();
    let left: Vec<_> = left.iter().map(|event| decimal(&event["payload"]["budget_remaining"])).collect();
    assert_eq!(left, (1..=20).map(|n| Decimal::new(10 - n, 1)).collect::<Vec<_>>());
    let crossing = log.iter().position(|event| event["payload"]["budget_remaining"] == "-0.1").unwrap();
    let types: Vec<_> = log[crossing..crossing + 4].iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["usage.reported", "session.closed", "state.changed", "outcome.set"]);
    assert_eq!(log[crossing]["recorded_at"], log[crossing + 3]["recorded_at"]);
    assert_eq!(log.iter().filter(|event| event["type"] == "outcome.set").count(), 1);
    assert_eq!(log[log.len() - 1]["seq"], log.len());
}

#[tokio::test]
async fn a_total_that_equals_the_budget_stays_open_and_one_token_more_closes() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task_with(json!({"budget": "0.10"})).await;
    let state = agent.spend(&task, "u1", 0, 10_000).await;
    assert_eq!(state.expect(201)["task"]["budget_remaining"], "0");
    assert_eq!(state.body["task"]["status"], "queued");
    let state = agent.spend(&task, "u2", 1, 0).await;
    assert_eq!(state.expect(201)["task"]["status"], "closed");
    assert_eq!(state.body["task"]["outcome"], "exceeded_ceiling");
    assert_eq!(state.body["task"]["outcome_reason"], "budget");
    assert_eq!(state.body["task"]["budget_remaining"], "-0.00000125");
    let types = world.types(&task).await;
    assert_eq!(types, ["task.created", "usage.reported", "usage.reported", "state.changed", "outcome.set"]);
}

#[tokio::test]
async fn a_budget_of_nothing_is_open_until_something_is_spent() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task_with(json!({"budget": 0})).await;
    assert_eq!(agent.spend(&task, "u1", 0, 0).await.expect(201)["task"]["status"], "queued");
    assert_eq!(agent.spend(&task, "u2", 1, 0).await.expect(201)["task"]["status"], "closed");
}

#[tokio::test]
async fn a_report_that_cannot_be_priced_is_recorded_and_never_costs_zero() {
    let world = World::new().await;
    let agent = world.agent().await;
    let two = [Some("1"), Some("2"), None, None];
    Seed::model(&world.db, world.seed.organization_id, "uncached", two).await;
    let task = world.task_with(json!({"budget": "1"})).await;
    let counts = json!({"tokens_in": 1_000_000_000});
    let unpriced = [
        ("unknown", json!({"model_id": "gpt-17", "tokens_in": 1_000_000_000})),
        ("longer", json!({"model_id": "sonnet-4", "tokens_in": counts["tokens_in"]})),
        ("shorter", json!({"model_id": "sonne", "tokens_in": counts["tokens_in"]})),
        ("other case", json!({"model_id": "Sonnet", "tokens_in": counts["tokens_in"]})),
        ("no tokens of an unknown one", json!({"model_id": "gpt-17", "tokens_in": 0})),
        ("cached without a price", json!({"model_id": "uncached", "tokens_in": 5, "cache_read_tokens": 1})),
    ];
    for (at, (key, body)) in unpriced.iter().enumerate() {
        let mut body = body.clone();
        body["idempotency_key"] = json!(key);
        let reply = report(&agent, &task, &body).await;
        let row = reply.expect(201);
        assert_eq!(row["cost"], Value::Null, "{key}");
        assert_eq!(row["measured"], true, "{key}");
        assert_eq!(row["task"]["budget_certain"], false, "{key}");
        assert_eq!(row["task"]["cost_total"], "0", "{key}");
        let read = agent.get(&format!("/agent-tasks/{task}")).await;
        assert_eq!(read.expect(200)["unpriced_reports"], at + 1);
        assert_eq!(read.body["unmeasured_reports"], 0);
    }
    // A count of zero needs no price.
    let priced = json!({"idempotency_key": "zero", "model_id": "uncached", "tokens_in": 5, "cache_read_tokens": 0});
    assert_eq!(report(&agent, &task, &priced).await.expect(201)["cost"], "0.000005");
    let unmeasured = report(&agent, &task, &json!({"idempotency_key": "m", "model_id": "sonnet"})).await;
    let row = unmeasured.expect(201);
    assert_eq!((&row["measured"], &row["cost"]), (&json!(false), &Value::Null));
    for count in ["tokens_in", "tokens_out", "cache_read_tokens", "cache_write_tokens"] {
        assert_eq!(row[count], Value::Null, "{count}");
    }
    let read = agent.get(&format!("/agent-tasks/{task}")).await;
    let row = read.expect(200);
    assert_eq!((&row["unpriced_reports"], &row["unmeasured_reports"]), (&json!(6), &json!(1)));
    assert_eq!((&row["status"], &row["budget_remaining"]), (&json!("queued"), &json!("0.999995")));
    assert_totals(&world.person("ada"), &task).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_reports_of_one_token_are_exact_to_the_last_digit() {
    let world = World::with(|settings| settings.auth.directory_cache_seconds = 10).await;
    let agent = world.agent().await;
    let prices = [Some("0.15"), None, None, None];
    Seed::model(&world.db, world.seed.organization_id, "small", prices).await;
    let task = world.task().await;
    let writers = (0..16).map(|writer| {
        let (agent, task) = (agent.clone(), task.clone());
        tokio::spawn(async move {
            for n in 0..625 {
                let key = format!("{writer}-{n}");
                let body = json!({"idempotency_key": key, "model_id": "small", "tokens_in": 1});
                assert_eq!(report(&agent, &task, &body).await.expect(201)["cost"], "0.00000015");
            }
        })
    });
    for writer in join_all(writers).await {
        writer.unwrap();
    }
    let read = agent.get(&format!("/agent-tasks/{task}")).await;
    let row = read.expect(200);
    assert_eq!(row["cost_total"], "0.0015");
    assert_eq!(row["tokens_in"], 10_000);
    assert_eq!(row["last_seq"], 10_001);
    assert_eq!(row["budget_certain"], true);
    assert_totals(&world.person("ada"), &task).await;
}

#[tokio::test]
async fn a_budget_is_exact_or_refused() {
    let world = World::new().await;
    let ada = world.person("ada");
    let create = async |budget: &str| {
        let body = format!(r#"{{"agent_slug":"reviewer","title":"t","description":"d","budget":{budget}}}"#);
        ada.post_raw("/agent-tasks/", body).await
    };
    let exact = [
        ("0.1", "0.1"),
        (r#""0.10""#, "0.1"),
        ("4.81", "4.81"),
        (r#""4.81""#, "4.81"),
        ("1e-7", "0.0000001"),
        (r#""1E-7""#, "0.0000001"),
        ("1E3", "1000"),
        ("10.00", "10"),
        ("0.0", "0"),
        ("-0", "0"),
        ("1234567.890123456789", "1234567.890123456789"),
        ("9999999999999999.999999999999", "9999999999999999.999999999999"),
    ];
    for (sent, kept) in exact {
        let reply = create(sent).await;
        assert_eq!(reply.expect(201)["budget"], kept, "{sent}");
        assert_eq!(reply.body["budget_remaining"], kept, "{sent}");
        let short_id = reply.body["short_id"].as_str().unwrap();
        let read = ada.get(&format!("/agent-tasks/{short_id}")).await;
        assert_eq!(read.expect(200)["budget"], kept, "{sent} as it was kept");
    }
    assert_eq!(create("null").await.expect(201)["budget"], Value::Null);
    let known = ada.all("/agent-tasks/").await.len();
    let refused = [
        "1234567890123456789",
        r#""1234567890123456789""#,
        "1e16",
        "1e400",
        r#""NaN""#,
        r#""Infinity""#,
        "-1",
        r#""-0.01""#,
        r#""1,5""#,
        r#""1.5 ""#,
        r#""+1""#,
        r#""""#,
        r#"" ""#,
        r#""0x10""#,
        r#"".5""#,
        "0.0000000000001",
        "true",
        "[]",
        r#"{"amount":1}"#,
    ];
    for sent in refused {
        let reply = create(sent).await;
        let problem = reply.refused(422, "invalid_body");
        assert_eq!(problem["errors"][0]["pointer"], "/budget", "{sent}");
    }
    create("NaN").await.refused(400, "invalid_json");
    create("1,5").await.refused(400, "invalid_json");
    assert_eq!(ada.all("/agent-tasks/").await.len(), known, "a refused creation leaves nothing");
}

#[tokio::test]
async fn a_callers_budget_may_only_lower_the_agents() {
    let world = World::new().await;
    let ada = world.person("ada");
    sqlx::query("UPDATE agent_directory.agents SET task_budget = 4.81").execute(&world.db).await.unwrap();
    let create = async |budget: Value| {
        let body = json!({"agent_slug": "reviewer", "title": "t", "description": "d", "budget": budget});
        ada.post("/agent-tasks/", &body).await
    };
    assert_eq!(create(Value::Null).await.expect(201)["budget"], "4.81");
    assert_eq!(create(json!("4.810")).await.expect(201)["budget"], "4.81");
    assert_eq!(create(json!("0.5")).await.expect(201)["budget"], "0.5");
    let reply = create(json!("4.810000000001")).await;
    assert_eq!(reply.refused(422, "budget_above_default")["limit"], "4.81");
    assert_eq!(reply.body["errors"][0]["pointer"], "/budget");
    // What a task pinned does not move with the agent's settings.
    sqlx::query("UPDATE agent_directory.agents SET task_budget = 1").execute(&world.db).await.unwrap();
    assert_eq!(ada.get("/agent-tasks/T-1").await.expect(200)["budget"], "4.81");
}

#[tokio::test]
async fn money_is_a_plain_decimal_string_wherever_it_is_told() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let task = world.task_with(json!({"budget": 4.810})).await;
    let session = agent.open_session(&task, "s1").await;
    let body = json!({"idempotency_key": "u", "model_id": "sonnet", "tokens_in": 1, "tokens_out": 100_000,
        "cache_read_tokens": 8, "cache_write_tokens": 500_000});
    let reply = report(&agent, &task, &body).await;
    assert_eq!(reply.expect(201)["cost"], "2.00000625");
    assert_eq!(reply.body["output_cost_per_million"], "10");
    // The row: cost and four prices; the state: budget, cost_total, budget_remaining.
    assert_eq!(plain_money(&reply.body), 8);
    let path = format!("/agent-tasks/{task}");
    assert_eq!(plain_money(ada.get(&path).await.expect(200)), 4);
    assert_eq!(plain_money(ada.get("/agent-tasks/").await.expect(200)), 4);
    assert_eq!(plain_money(ada.get(&format!("{path}/usage")).await.expect(200)), 5);
    let beat = agent.post_nothing(&format!("{path}/sessions/{session}/heartbeat")).await;
    assert_eq!(plain_money(beat.expect(200)), 3);
    let log = ada.get(&format!("{path}/events")).await;
    // task.created: budget; usage.reported: cost, cost_total, budget_remaining, four prices.
    assert_eq!(plain_money(log.expect(200)), 8, "{}", log.text);
    agent.spend(&task, "over", 0, 1_000_000).await.expect(201);
    let read = ada.get(&path).await;
    assert_eq!(read.expect(200)["budget_remaining"], "-7.19000625");
    assert_eq!(plain_money(&read.body), 4);
}
