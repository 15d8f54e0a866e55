//! Models: four exact prices with a history, and names of which each leads to one model.

use serde_json::{Value, json};

use crate::support::{Client, Reply, World};

const PRICES: [&str; 4] = [
    "input_cost_per_million",
    "output_cost_per_million",
    "cache_read_cost_per_million",
    "cache_write_cost_per_million",
];

/// A model of that name with these prices.
fn model(model_id: &str, prices: [Value; 4]) -> Value {
    let mut body = json!({"provider": "acme", "model_id": model_id});
    for (name, price) in PRICES.into_iter().zip(prices) {
        body[name] = price;
    }
    body
}

fn prices(shown: &Value) -> [&Value; 4] {
    PRICES.map(|name| &shown[name])
}

/// Reports the four counts.
async fn report(agent: &Client, task: &str, key: &str, name: &str, counts: [i64; 4]) -> Reply {
    let body = json!({"idempotency_key": key, "model_id": name, "tokens_in": counts[0], "tokens_out": counts[1],
        "cache_read_tokens": counts[2], "cache_write_tokens": counts[3]});
    agent.on(task, "usage", body).await
}

#[tokio::test]
async fn four_prices_are_kept_exactly_and_price_what_is_reported() {
    let world = World::new().await;
    let (ada, agent, task) = (world.person("ada"), world.agent().await, world.task().await);
    let body = model("m-2026", [json!("1.250000"), json!("1000000"), json!(0.000_001), json!("0")]);
    let put = ada.put("/models/exact", &body).await;
    let made = put.expect(201);
    assert_eq!(prices(made), [&json!("1.25"), &json!("1000000"), &json!("0.000001"), &json!("0")]);
    assert_eq!((&made["slug"], &made["model_id"], &made["aliases"]), (&json!("exact"), &json!("m-2026"), &json!([])));
    assert_eq!(ada.get("/models/exact").await.expect(200), made);
    assert_eq!(ada.get(&format!("/models/{}", made["id"].as_str().unwrap())).await.expect(200), made);
    let reply = report(&agent, &task, "u1", "m-2026", [3, 1, 1, 7]).await;
    assert_eq!(reply.expect(201)["cost"], "1.000003750001");
    assert_eq!(prices(&reply.body), prices(made));
    // A free model costs zero; one without a price is unknown.
    let counted = report(&agent, &task, "u2", "exact", [0, 0, 0, 1_000]).await;
    assert_eq!(counted.expect(201)["cost"], "0");
    assert_eq!(counted.body["task"]["budget_certain"], true);
}

#[tokio::test]
async fn an_absent_price_is_unknown_and_never_zero() {
    let world = World::new().await;
    let (ada, agent, task) = (world.person("ada"), world.agent().await, world.task().await);
    let put = ada.put("/models/part", &model("m", [json!("1"), json!("2"), json!(null), json!(null)])).await;
    assert_eq!(prices(put.expect(201)), [&json!("1"), &json!("2"), &json!(null), &json!(null)]);
    let known = report(&agent, &task, "u1", "part", [1, 1, 0, 0]).await;
    assert_eq!(known.expect(201)["cost"], "0.000003");
    let unknown = report(&agent, &task, "u2", "part", [1, 1, 1, 0]).await;
    assert_eq!((&unknown.expect(201)["cost"], &unknown.body["task"]["budget_certain"]), (&json!(null), &json!(false)));
    // A new alias unprices nothing: prices that are not there stay, and so do aliases.
    let body = json!({"provider": "acme", "model_id": "m", "aliases": ["part-latest"]});
    let same = ada.put("/models/part", &body).await;
    assert_eq!(prices(same.expect(200)), [&json!("1"), &json!("2"), &json!(null), &json!(null)]);
    let less = json!({"provider": "acme", "model_id": "m", "output_cost_per_million": "2"});
    let less = ada.put("/models/part", &less).await;
    assert_eq!(less.expect(200)["aliases"], json!(["part-latest"]));
    // Beside another one an absent price is unknown.
    assert_eq!(prices(&less.body), [&json!(null), &json!("2"), &json!(null), &json!(null)]);
    let unknown = report(&agent, &task, "u3", "part", [1, 0, 0, 0]).await;
    assert_eq!(unknown.expect(201)["cost"], json!(null));
    let never = ada.put("/models/never", &json!({"provider": "acme", "model_id": "n"})).await;
    assert_eq!((&never.expect(201)["effective_from"], &never.body["prices"]), (&json!(null), &json!([])));
    report(&agent, &task, "u4", "never", [1, 0, 0, 0]).await.expect(201);
    let read = ada.get(&format!("/agent-tasks/{task}")).await;
    assert_eq!((&read.expect(200)["unpriced_reports"], &read.body["cost_total"]), (&json!(3), &json!("0.000003")));
}

#[tokio::test]
async fn a_new_price_holds_from_now_on_and_rewrites_nothing() {
    let world = World::new().await;
    let (ada, agent, task) = (world.person("ada"), world.agent().await, world.task().await);
    let put = |price: &str, from: Option<&str>| {
        let mut body = model("m", [json!(price), json!(null), json!(null), json!(null)]);
        body["effective_from"] = json!(from);
        let ada = ada.clone();
        async move { ada.put("/models/priced", &body).await }
    };
    put("1", None).await.expect(201);
    report(&agent, &task, "u1", "m", [1_000_000, 0, 0, 0]).await.expect(201);
    let second = put("2", None).await.expect(200).clone();
    report(&agent, &task, "u2", "m", [1_000_000, 0, 0, 0]).await.expect(201);
    // Before what is in force: that was charged already.
    let third = put("3", Some("2020-01-01T00:00:00Z")).await.expect(200).clone();
    report(&agent, &task, "u3", "m", [1_000_000, 0, 0, 0]).await.expect(201);
    let history: Vec<_> = third["prices"].as_array().unwrap().iter().map(|point| &point[PRICES[0]]).collect();
    assert_eq!(history, [&json!("3"), &json!("2"), &json!("1")], "the newest first");
    assert!(third["effective_from"].as_str() > second["effective_from"].as_str(), "{third}");
    assert_eq!(third["prices"].as_array().unwrap()[1..], second["prices"].as_array().unwrap()[..]);
    let ledger = ada.all(&format!("/agent-tasks/{task}/usage")).await;
    let mut costs: Vec<_> = ledger.iter().map(|row| row["cost"].as_str().unwrap()).collect();
    costs.sort_unstable();
    assert_eq!(costs, ["1", "2", "3"]);
    assert_eq!(ada.get(&format!("/agent-tasks/{task}")).await.expect(200)["cost_total"], "6");
    // A repeat of an old report is answered as it was.
    let again = report(&agent, &task, "u1", "m", [1_000_000, 0, 0, 0]).await;
    assert_eq!((&again.expect(200)["cost"], again.is_replayed()), (&json!("1"), true));
    let before = world.directory_footprint().await;
    put("3", None).await.expect(200);
    put("3.0", Some("2021-01-01T00:00:00Z")).await.expect(200);
    assert_eq!(world.directory_footprint().await, before);
}

#[tokio::test]
async fn of_changes_within_one_instant_the_last_one_holds() {
    let world = World::new().await;
    let (ada, agent, task) = (world.person("ada"), world.agent().await, world.task().await);
    world.freeze_clock();
    for price in ["1", "2", "3"] {
        let body = model("m", [json!(price), json!(null), json!(null), json!(null)]);
        let put = ada.put("/models/quick", &body).await;
        assert!([200, 201].contains(&put.status), "{}", put.text);
    }
    world.move_frozen_clock(1);
    let read = ada.get("/models/quick").await;
    let history: Vec<_> =
        read.expect(200)["prices"].as_array().unwrap().iter().map(|point| &point[PRICES[0]]).collect();
    assert_eq!(history, [&json!("3"), &json!("1")], "the first was in force, the second never");
    assert_eq!(read.body[PRICES[0]], "3");
    assert_eq!(report(&agent, &task, "u1", "m", [1_000_000, 0, 0, 0]).await.expect(201)["cost"], "3");
}

#[tokio::test]
async fn an_announced_price_takes_effect_by_the_clock() {
    let world = World::new().await;
    let (ada, task) = (world.person("ada"), world.task().await);
    ada.put("/models/priced", &model("m", [json!("1"), json!(null), json!(null), json!(null)])).await.expect(201);
    let soon = world.now().plus(std::time::Duration::from_mins(10)).to_string();
    let announce = |price: &str| {
        let mut body = model("m", [json!(price), json!(null), json!(null), json!(null)]);
        body["effective_from"] = json!(soon);
        let ada = ada.clone();
        async move { ada.put("/models/priced", &body).await }
    };
    let announced = announce("5").await;
    assert_eq!(
        (&announced.expect(200)[PRICES[0]], &announced.body["prices"][0][PRICES[0]]),
        (&json!("1"), &json!("5"))
    );
    // Another PUT of the same instant replaces it.
    let announced = announce("7").await;
    let points = announced.expect(200)["prices"].as_array().unwrap();
    assert_eq!((points.len(), &points[0]["effective_from"], &points[0][PRICES[0]]), (2, &json!(soon), &json!("7")));
    let before = world.directory_footprint().await;
    announce("7.00").await.expect(200);
    assert_eq!(world.directory_footprint().await, before);
    let agent = world.agent().await;
    let now = report(&agent, &task, "u1", "m", [1_000_000, 0, 0, 0]).await;
    assert_eq!(now.expect(201)["cost"], "1");
    world.skew_clock(599);
    let still = report(&agent, &task, "u2", "m", [1_000_000, 0, 0, 0]).await;
    assert_eq!(still.expect(201)["cost"], "1");
    world.skew_clock(601);
    let then = report(&agent, &task, "u3", "m", [1_000_000, 0, 0, 0]).await;
    assert_eq!(then.expect(201)["cost"], "7");
    let read = ada.get("/models/priced").await;
    assert_eq!((&read.expect(200)[PRICES[0]], &read.body["effective_from"]), (&json!("7"), &json!(soon)));
    assert_eq!(world.directory_footprint().await, before, "time alone writes nothing");
    // What came into force is not rewritten by its own instant.
    let late = announce("9").await;
    let points = late.expect(200)["prices"].as_array().unwrap();
    assert_eq!((points.len(), &points[0][PRICES[0]], &points[1][PRICES[0]]), (3, &json!("9"), &json!("7")));
    assert_eq!(points[1]["effective_from"], json!(soon));
}

#[tokio::test]
async fn a_name_leads_to_one_model() {
    let world = World::new().await;
    let (ada, agent, task) = (world.person("ada"), world.agent().await, world.task().await);
    let body = |model_id: &str, aliases: Value, price: &str| {
        let mut body = model(model_id, [json!(price), json!(null), json!(null), json!(null)]);
        body["aliases"] = aliases;
        body
    };
    ada.put("/models/one", &body("one-2026", json!(["uno", "one", "one-2026"]), "1")).await.expect(201);
    ada.put("/models/two", &body("two-2026", json!(["Uno", "deux"]), "2")).await.expect(201);
    let before = world.directory_footprint().await;
    for (path, put, place) in [
        ("/models/uno", body("x", json!([]), "3"), "model"),
        ("/models/one-2026", body("x", json!([]), "3"), "model"),
        ("/models/three", body("uno", json!([]), "3"), "/model_id"),
        ("/models/three", body("one", json!([]), "3"), "/model_id"),
        ("/models/three", body("x", json!(["y", "one-2026"]), "3"), "/aliases/1"),
        ("/models/three", body("x", json!(["two"]), "3"), "/aliases/0"),
        ("/models/two", body("one-2026", json!([]), "3"), "/model_id"),
        ("/models/two", body("two-2026", json!(["deux", "trois", "uno"]), "3"), "/aliases/2"),
    ] {
        let reply = ada.put(path, &put).await;
        reply.refused(409, "name_taken");
        assert_eq!(reply.places(), [place], "{path}");
    }
    assert_eq!(world.directory_footprint().await, before);
    for (key, name, cost) in [
        ("u1", "one", json!("1")),
        ("u2", "uno", json!("1")),
        ("u3", "one-2026", json!("1")),
        ("u4", "Uno", json!("2")),
        ("u5", "UNO", json!(null)),
    ] {
        let reply = report(&agent, &task, key, name, [1_000_000, 0, 0, 0]).await;
        assert_eq!((&reply.expect(201)["cost"], name), (&cost, name));
    }
    // A name that is given up is free, and may change hands.
    ada.put("/models/one", &body("one-2026", json!([]), "1")).await.expect(200);
    let unknown = report(&agent, &task, "u6", "uno", [1_000_000, 0, 0, 0]).await;
    assert_eq!(unknown.expect(201)["cost"], json!(null));
    ada.put("/models/two", &body("two-2026", json!(["uno"]), "2")).await.expect(200);
    let moved = report(&agent, &task, "u7", "uno", [1_000_000, 0, 0, 0]).await;
    assert_eq!(moved.expect(201)["cost"], "2");
}

#[tokio::test]
async fn parallel_claims_of_one_name_have_one_winner() {
    let world = World::new().await;
    let ada = world.person("ada");
    let claims = (0..6).map(|number| {
        let (ada, path) = (ada.clone(), format!("/models/m-{number}"));
        async move { ada.put(&path, &json!({"provider": "p", "model_id": path, "aliases": ["latest"]})).await }
    });
    let answers = futures::future::join_all(claims).await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 1);
    for lost in answers.iter().filter(|answer| answer.status != 201) {
        lost.refused(409, "name_taken");
        assert_eq!(lost.places(), ["/aliases/0"]);
    }
    assert_eq!(ada.all("/models?limit=1").await.len(), 2, "the seeded one and the winner");
}

#[tokio::test]
async fn a_deleted_model_frees_its_names_and_leaves_the_ledger() {
    let world = World::new().await;
    let (ada, agent, task) = (world.person("ada"), world.agent().await, world.task().await);
    let body = model("m", [json!("1"), json!(null), json!(null), json!(null)]);
    let first = ada.put("/models/gone", &body).await.expect(201).clone();
    report(&agent, &task, "u1", "m", [1_000_000, 0, 0, 0]).await.expect(201);
    ada.delete("/models/gone").await.expect(204);
    ada.get("/models/gone").await.refused(404, "not_found");
    ada.delete("/models/gone").await.refused(404, "not_found");
    let after = report(&agent, &task, "u2", "m", [1_000_000, 0, 0, 0]).await;
    assert_eq!(after.expect(201)["cost"], json!(null));
    let read = ada.get(&format!("/agent-tasks/{task}")).await;
    assert_eq!((&read.expect(200)["cost_total"], &read.body["unpriced_reports"]), (&json!("1"), &json!(1)));
    let next = ada.put("/models/gone", &model("m", [json!("2"), json!(null), json!(null), json!(null)])).await;
    assert_ne!(next.expect(201)["id"], first["id"]);
    assert_eq!(next.body["prices"].as_array().unwrap().len(), 1, "the old one's history is not its own");
    let priced = report(&agent, &task, "u3", "gone", [1_000_000, 0, 0, 0]).await;
    assert_eq!(priced.expect(201)["cost"], "2");
}

#[tokio::test]
async fn every_fault_of_a_model_is_named_at_once() {
    let world = World::new().await;
    let ada = world.person("ada");
    let before = world.directory_footprint().await;
    let mut body = model("", [json!("0.0000001"), json!(-1), json!(1_000_000.1), json!("1,5")]);
    body["provider"] = json!(null);
    body["effective_from"] = json!("tomorrow");
    body["external_ref"] = json!(" ");
    body["aliases"] = json!(["a", " ", 5, "a", ""]);
    let reply = ada.put("/models/x", &body).await;
    reply.refused(422, "invalid_body");
    let mut places = reply.places();
    places.sort_unstable();
    let all = "/aliases/1 /aliases/2 /aliases/3 /aliases/4 /cache_read_cost_per_million /cache_write_cost_per_million \
        /effective_from /external_ref /input_cost_per_million /model_id /output_cost_per_million /provider";
    assert_eq!(places, all.split(' ').collect::<Vec<_>>());
    let put = |aliases: Value| {
        let ada = ada.clone();
        async move { ada.put("/models/x", &json!({"provider": "p", "model_id": "m", "aliases": aliases})).await }
    };
    put(json!("a")).await.invalid_at(&["/aliases"]);
    put(json!(vec!["a"; 101])).await.invalid_at(&["/aliases"]);
    for instant in [
        "2026-01-01",
        "2026-01-01T00:00:00",
        "1",
        "10000-01-01T00:00:00Z",
        "9999-12-31T23:59:59-14:00",
        "0000-12-31T23:59:59Z",
    ] {
        let body = json!({"provider": "p", "model_id": "m", "effective_from": instant});
        ada.put("/models/x", &body).await.invalid_at(&["/effective_from"]);
    }
    assert_eq!(world.directory_footprint().await, before);
}

#[tokio::test]
async fn a_price_holds_from_the_first_to_the_last_instant_that_can_be_written() {
    let world = World::new().await;
    let (ada, agent, task) = (world.person("ada"), world.agent().await, world.task().await);
    for (index, (instant, cost)) in [
        ("0001-01-01T00:00:00Z", json!("1")),
        ("0000-12-31T23:00:00-01:00", json!("1")),
        ("1969-12-31T23:59:59.999999Z", json!("1")),
        ("9999-12-31T23:59:59.999999Z", json!(null)),
    ]
    .into_iter()
    .enumerate()
    {
        let (slug, name) = (format!("m-{index}"), format!("name-{index}"));
        let mut body = model(&name, [json!("1"), json!(null), json!(null), json!(null)]);
        body["effective_from"] = json!(instant);
        let put = ada.put(&format!("/models/{slug}"), &body).await;
        put.expect(201);
        assert_eq!(ada.get(&format!("/models/{slug}")).await.expect(200), &put.body, "{instant}");
        let reply = report(&agent, &task, &slug, &name, [1_000_000, 0, 0, 0]).await;
        assert_eq!(reply.expect(201)["cost"], cost, "{instant}");
    }
    ada.get("/directory-audit").await.expect(200);
    ada.get("/models").await.expect(200);
}
