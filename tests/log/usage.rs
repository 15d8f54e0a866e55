//! `GET /agent-usage`: sums over the permanent log.

use mandate::domain::time::Timestamp;
use serde_json::{Value, json};

use crate::combination::{Combination, Place, archived, landed};
use crate::over_every_combination;
use crate::support::{AgentSeed, Client, Seed, World, eventually};

over_every_combination!(
    sums_are_exact_however_they_are_grouped_and_wherever_the_log_is,
    times_that_no_report_can_have_are_answered_too,
);

const ALWAYS: &str = "start=1970-01-01&end=2100-01-01";

/// Moves the server's clock to the second after `time`.
fn go_to(world: &World, time: &str) {
    world.skew_clock(0);
    let ahead = Timestamp::parse(time).unwrap().micros() - world.now().micros();
    world.skew_clock(ahead.div_euclid(1_000_000) + 1);
}

async fn usage(world: &World, query: &str) -> Value {
    world.person("vera").get(&format!("/agent-usage?{query}")).await.expect(200).clone()
}

/// Waits until so many reports and corrections have landed.
async fn counted(world: &World, rows: i64) {
    eventually("the reports have landed", async || {
        let total = usage(world, ALWAYS).await["total"].clone();
        total["reports"].as_i64().unwrap() + total["corrections"].as_i64().unwrap() == rows
    })
    .await;
}

async fn report(agent: &Client, task: &str, key: &str, model: &str, more: Value) -> Value {
    let mut body = json!({"idempotency_key": key, "model_id": model});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    agent.on(task, "usage", body).await.expect(201).clone()
}

/// Another agent of the organization.
async fn another(world: &World, slug: &str) -> (AgentSeed, Client) {
    let seed = Seed::agent(&world.db, world.seed.organization_id, slug).await;
    let client = world.account(&seed.client_id, &seed.client_secret).await;
    (seed, client)
}

/// A group's members that matter, as text.
fn shown(group: &Value, names: &[&str]) -> String {
    names.iter().map(|name| group[*name].to_string()).collect::<Vec<_>>().join(" ")
}

fn shown_all(answer: &Value, names: &[&str]) -> Vec<String> {
    answer["groups"].as_array().unwrap().iter().map(|group| shown(group, names)).collect()
}

const COUNTS: &[&str] = &[
    "tokens_in",
    "tokens_out",
    "cache_read_tokens",
    "cache_write_tokens",
    "cost",
    "reports",
    "corrections",
    "unmeasured_reports",
    "unpriced_reports",
];

async fn sums_are_exact_however_they_are_grouped_and_wherever_the_log_is(place: Place) {
    let world = place.world().await;
    go_to(&world, "2031-03-30T23:00:00Z");
    let (writer, by_writer) = another(&world, "writer").await;
    let in_project = world.task_with(json!({"project_id": world.seed.project_id})).await;
    let (alone, of_writer) = (world.task().await, world.task_with(json!({"agent_slug": "writer"})).await);
    let agent = world.agent().await;
    let body = json!({"tokens_in": 5_005, "cache_read_tokens": 257_955, "tokens_out": 1_744});
    report(&agent, &in_project, "u1", "sonnet", body).await;
    // The same model by another name, and one millionth of what a token costs.
    report(&agent, &alone, "u1", "sonnet-latest", json!({"tokens_in": 1})).await;
    let unpriced = report(&agent, &in_project, "u2", "gpt-17", json!({"tokens_in": 7})).await["id"].clone();
    let unmeasured = report(&by_writer, &of_writer, "u1", "sonnet", json!({})).await["id"].clone();
    agent.finish(&in_project).await.expect(200);
    counted(&world, 4).await;
    let shown_then = shown_all(&usage(&world, &format!("{ALWAYS}&group_by=agent")).await, &["agent_slug", "cost"]);
    assert_eq!(shown_then.len(), 2);
    // Nothing is known of what the writer cost, which is not nothing.
    assert!(shown_then.contains(&r#""writer" null"#.to_owned()), "{shown_then:?}");

    go_to(&world, "2031-03-31T23:00:00Z");
    let (agent, by_writer) = (world.agent().await, world.account(&writer.client_id, &writer.client_secret).await);
    // Now both are known, the one cheaper than a correction before said.
    report(&agent, &in_project, "c1", "sonnet", json!({"corrects": unpriced, "tokens_in": 9})).await;
    report(&agent, &in_project, "c2", "sonnet", json!({"corrects": unpriced, "tokens_in": 8})).await;
    report(&by_writer, &of_writer, "c1", "sonnet", json!({"corrects": unmeasured, "tokens_out": 3})).await;
    counted(&world, 7).await;

    let groups = ["", "day", "agent", "model", "project", "day,agent", "day,agent,model,project"];
    let mut before = Vec::new();
    for by in groups {
        let answer = usage(&world, &format!("{ALWAYS}&group_by={by}")).await;
        let total = shown(&answer["total"], COUNTS);
        assert_eq!(total, r#"5014 1747 257955 0 "0.184959375" 4 3 0 0"#, "{by}");
        let keys: Vec<&str> = by.split(',').filter(|key| !key.is_empty()).collect();
        assert_eq!(answer["group_by"], json!(keys));
        for name in COUNTS.iter().filter(|name| **name != "cost") {
            let sum: i64 = answer["groups"].as_array().unwrap().iter().map(|g| g[*name].as_i64().unwrap()).sum();
            assert_eq!(answer["total"][*name], sum, "{name} by {by}");
        }
        before.push(answer["groups"].clone());
    }
    let by = async |key: &str, names: &[&str]| {
        shown_all(&usage(&world, &format!("{ALWAYS}&group_by={key}")).await, &[names, COUNTS].concat())
    };
    assert_eq!(
        by("", &["day", "agent_id", "model_id", "project_id"]).await,
        [r#"null null null null 5014 1747 257955 0 "0.184959375" 4 3 0 0"#]
    );
    assert_eq!(
        by("day", &["day"]).await,
        [r#""2031-03-30" 5013 1744 257955 0 "0.184919375" 4 0 1 1"#, r#""2031-03-31" 1 3 0 0 "0.00004" 0 3 -1 -1"#,]
    );
    let mut agents = by("agent", &["agent_slug"]).await;
    agents.sort();
    assert_eq!(
        agents,
        [r#""reviewer" 5014 1744 257955 0 "0.184929375" 3 2 0 0"#, r#""writer" 0 3 0 0 "0.00003" 1 1 0 0"#,]
    );
    let mut models = by("model", &["model_id"]).await;
    models.sort();
    // By the names under which harnesses reported them last.
    assert_eq!(models, [r#""gpt-17" 7 0 0 0 null 1 0 0 1"#, r#""sonnet" 5007 1747 257955 0 "0.184959375" 3 3 0 -1"#]);
    let mut projects = by("project", &["project_slug"]).await;
    projects.sort();
    assert_eq!(
        projects,
        [r#""app" 5013 1744 257955 0 "0.184928125" 2 2 0 0"#, r#"null 1 3 0 0 "0.00003125" 2 1 0 0"#,]
    );

    // Once each, also where the log is archived.
    archived(&world, &in_project).await;
    for (by, before) in groups.into_iter().zip(before) {
        assert_eq!(usage(&world, &format!("{ALWAYS}&group_by={by}")).await["groups"], before, "{by}");
    }
    world.prove().await;
}

async fn times_that_no_report_can_have_are_answered_too(place: Place) {
    let world = place.world().await;
    let (agent, task) = (world.agent().await, world.task().await);
    report(&agent, &task, "u1", "sonnet", json!({"tokens_in": 1})).await;
    agent.finish(&task).await.expect(200);
    // Events and reports take their own ways.
    landed(&world, &task).await;
    let vera = world.person("vera");
    for (period, found) in [
        ("start=0001-01-01&end=9999-12-31", 1),
        ("start=0001-01-01&end=0001-01-02", 0),
        ("start=1899-12-31&end=2300-01-01", 1),
        ("start=1969-12-31T23:59:59.999999Z&end=2262-04-12", 1),
        ("start=2262-04-12&end=9999-12-31T23:59:59.999999Z", 0),
    ] {
        for group_by in ["", "day,agent,model,project"] {
            let reply = vera.get(&format!("/agent-usage?{period}&group_by={group_by}")).await;
            assert_eq!(reply.expect(200)["total"]["reports"], found, "{period}");
        }
        let reply = vera.get(&format!("/operations-log?{period}")).await;
        assert_eq!(reply.expect(200).as_array().unwrap().len(), found, "{period}");
    }
}

async fn embedded() -> World {
    Place::new(Combination::DirectPostgres).world().await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_asks_of_its_parameters() {
    let world = embedded().await;
    let vera = world.person("vera");
    for (query, keys) in [
        ("", json!([])),
        ("group_by=", json!([])),
        ("group_by=agent,day", json!(["agent", "day"])),
        ("group_by=agent&group_by=day", json!(["agent", "day"])),
        ("group_by=day,agent,day&group_by=model&group_by=agent,project", json!(["day", "agent", "model", "project"])),
        ("unknown=1&group_by=day", json!(["day"])),
    ] {
        assert_eq!(usage(&world, query).await["group_by"], keys, "{query}");
    }
    for (query, start) in [
        ("start=2026-01-31", "2026-01-31T00:00:00.000000Z"),
        ("start=2026-01-31T02:00:00%2B02:00", "2026-01-31T00:00:00.000000Z"),
        ("start=2026-01-31T00:00:00.000001Z", "2026-01-31T00:00:00.000001Z"),
    ] {
        assert_eq!(usage(&world, query).await["start"], start, "{query}");
    }
    for (query, places) in [
        ("group_by=week", vec!["group_by"]),
        ("group_by=day,", vec!["group_by"]),
        ("group_by=Day", vec!["group_by"]),
        ("group_by=day,week&group_by=hour", vec!["group_by", "group_by"]),
        ("group_by=day%00", vec!["group_by"]),
        ("start=yesterday", vec!["start"]),
        ("start=2026-02-30", vec!["start"]),
        ("start=2026-1-1", vec!["start"]),
        ("start=2026-01-31T00:00:00", vec!["start"]),
        // A plus that is not escaped is a space.
        ("start=2026-01-31T02:00:00+02:00", vec!["start"]),
        ("end=1700000000", vec!["end"]),
        ("start=2026-02-01&end=2026-01-31", vec!["end"]),
        ("start=2026-02-01T00:00:00.000001Z&end=2026-02-01", vec!["end"]),
        // What cannot be read is not compared.
        ("start=x&end=1999-01-01", vec!["start"]),
        ("start=x&end=y&group_by=z", vec!["start", "end", "group_by"]),
    ] {
        let reply = vera.get(&format!("/agent-usage?{query}")).await;
        reply.invalid_at(&places);
    }
    let told = vera.get("/agent-usage?group_by=week").await.body["errors"][0]["detail"].clone();
    assert_eq!(told, "\"week\" is not one of day, agent, model, project");
    // An empty time is one.
    usage(&world, "start=2026-02-01&end=2026-02-01").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_reported_is_not_zero_cost() {
    let world = embedded().await;
    let answer = usage(&world, ALWAYS).await;
    assert_eq!(shown(&answer["total"], COUNTS), "0 0 0 0 null 0 0 0 0");
    assert_eq!((&answer["groups"], &answer["month_to_date"]), (&json!([]), &json!([])));
    let (agent, task) = (world.agent().await, world.task().await);
    report(&agent, &task, "u1", "sonnet", json!({})).await;
    report(&agent, &task, "u2", "nobody-knows-it", json!({"tokens_in": 3})).await;
    counted(&world, 2).await;
    let answer = usage(&world, ALWAYS).await;
    assert_eq!(shown(&answer["total"], COUNTS), "3 0 0 0 null 2 0 1 1");
    assert_eq!(answer["groups"][0], answer["total"]);
    let month = &answer["month_to_date"][0];
    assert_eq!(shown(month, &["agent_slug", "cost", "monthly_cost_cap", "warning"]), r#""reviewer" null null null"#);
    assert_eq!(shown(month, &["unmeasured_reports", "unpriced_reports"]), "1 1");
    // What is known to cost nothing is zero.
    report(&agent, &task, "u3", "sonnet", json!({"tokens_in": 0})).await;
    counted(&world, 3).await;
    assert_eq!(usage(&world, ALWAYS).await["total"]["cost"], "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn start_counts_and_end_does_not() {
    let world = embedded().await;
    go_to(&world, "2031-03-31T23:59:00Z");
    let (agent, task) = (world.agent().await, world.task().await);
    let first = report(&agent, &task, "u1", "sonnet", json!({"tokens_in": 1})).await;
    go_to(&world, "2031-04-02T12:00:00Z");
    let agent = world.agent().await;
    let second = report(&agent, &task, "u2", "sonnet", json!({"tokens_in": 10})).await;
    counted(&world, 2).await;
    let at = |report: &Value, more: i64| {
        let at = Timestamp::parse(report["recorded_at"].as_str().unwrap()).unwrap();
        Timestamp::from_micros(at.micros() + more).unwrap().to_string()
    };
    for (start, end, tokens) in [
        (at(&first, 0), at(&second, 0), 1),
        (at(&first, 1), at(&second, 0), 0),
        (at(&first, 1), at(&second, 1), 10),
        (at(&first, 0), at(&second, 1), 11),
        (at(&first, 0), at(&first, 0), 0),
        (at(&first, 0), at(&first, 1), 1),
    ] {
        let answer = usage(&world, &format!("start={start}&end={end}")).await;
        assert_eq!(answer["total"]["tokens_in"], tokens, "from {start} until {end}");
        assert_eq!((&answer["start"], &answer["end"]), (&json!(start), &json!(end)));
    }
    // By default from the first of the month until now.
    let now = world.now();
    let answer = usage(&world, "").await;
    assert_eq!(answer["start"], "2031-04-01T00:00:00.000000Z");
    assert_eq!(answer["month_start"], answer["start"]);
    let end = Timestamp::parse(answer["end"].as_str().unwrap()).unwrap();
    assert!(now <= end && end <= world.now(), "{now} {end}");
    assert_eq!(answer["total"]["tokens_in"], 10);
    assert_eq!(usage(&world, "start=2031-03-01").await["total"]["tokens_in"], 11);
    world.person("vera").get("/agent-usage?end=2031-03-31").await.invalid_at(&["end"]);
}

async fn cap(world: &World, cap: Option<&str>) {
    let query = "UPDATE agent_directory.agents SET monthly_cost_cap = $1::text::numeric WHERE slug = 'reviewer'";
    sqlx::query(query).bind(cap).execute(&world.db).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_month_is_compared_with_the_agents_cap_to_the_last_digit() {
    let world = embedded().await;
    go_to(&world, "2031-03-31T12:00:00Z");
    let (agent, task) = (world.agent().await, world.task().await);
    let old = report(&agent, &task, "old", "sonnet", json!({"tokens_out": 90_000})).await["id"].clone();
    counted(&world, 1).await;
    cap(&world, Some("1")).await;
    let month = async || {
        let answer = usage(&world, "start=2031-01-01&end=2031-01-02").await;
        let months = answer["month_to_date"].as_array().unwrap().clone();
        assert!(months.len() < 2, "{months:?}");
        months.first().map(|month| shown(month, &["agent_slug", "cost", "monthly_cost_cap", "warning"]))
    };
    assert_eq!(month().await.unwrap(), r#""reviewer" "0.9" "1" "at_80""#);
    // A new month, in which nothing was reported yet.
    go_to(&world, "2031-04-01T00:00:00Z");
    assert_eq!(month().await, None);
    let agent = world.agent().await;
    // What a correction takes off counts in the month of the correction.
    report(&agent, &task, "less", "sonnet", json!({"corrects": old, "tokens_out": 80_000})).await;
    counted(&world, 2).await;
    assert_eq!(month().await.unwrap(), r#""reviewer" "-0.1" "1" null"#);
    for (rows, tokens_out, shown) in [
        (3, 89_999, r#""reviewer" "0.79999" "1" null"#),
        (4, 1, r#""reviewer" "0.8" "1" "at_80""#),
        (5, 19_999, r#""reviewer" "0.99999" "1" "at_80""#),
        (6, 1, r#""reviewer" "1" "1" "at_100""#),
        (7, 1, r#""reviewer" "1.00001" "1" "at_100""#),
    ] {
        report(&agent, &task, &rows.to_string(), "sonnet", json!({"tokens_out": tokens_out})).await;
        counted(&world, rows).await;
        assert_eq!(month().await.unwrap(), shown);
    }
    // The cap is the directory's of now, and stops nothing.
    cap(&world, Some("1.2500125")).await;
    assert_eq!(month().await.unwrap(), r#""reviewer" "1.00001" "1.2500125" "at_80""#);
    cap(&world, Some("1.250012500001")).await;
    assert_eq!(month().await.unwrap(), r#""reviewer" "1.00001" "1.250012500001" null"#);
    cap(&world, None).await;
    assert_eq!(month().await.unwrap(), r#""reviewer" "1.00001" null null"#);
    cap(&world, Some("1")).await;
    // What is deleted has cost all the same.
    world.person("ada").delete("/agents/reviewer?force=true").await.expect(204);
    assert_eq!(month().await.unwrap(), r#""reviewer" "1.00001" "1" "at_100""#);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_shows_one_organization_and_only_to_its_members() {
    let world = embedded().await;
    let other = Seed::plant(&world.db, "other").await;
    let foreign = world.account(&other.agent.client_id, &other.agent.client_secret).await.in_organization("other");
    let body = json!({"agent_slug": "reviewer", "title": "t", "description": "d"});
    let ada = world.person("ada").in_organization("other");
    let theirs = ada.post("/agent-tasks/", &body).await.expect(201)["short_id"].as_str().unwrap().to_owned();
    foreign.spend(&theirs, "u1", 1_000, 0).await.expect(201);
    let (agent, ours) = (world.agent().await, world.task().await);
    agent.spend(&ours, "u1", 10, 0).await.expect(201);
    counted(&world, 1).await;
    eventually("the other's report has landed", async || {
        let answer = ada.get(&format!("/agent-usage?{ALWAYS}")).await;
        answer.expect(200)["total"]["tokens_in"] == 1_000
    })
    .await;
    let answer = usage(&world, &format!("{ALWAYS}&group_by=agent")).await;
    assert_eq!((&answer["total"]["tokens_in"], answer["groups"].as_array().unwrap().len()), (&json!(10), 1));
    assert_eq!(answer["month_to_date"].as_array().unwrap().len(), 1);
    let trigger = world.trigger().await;
    for path in ["/agent-usage", "/operations-log"] {
        for person in ["vera", "oscar", "abe", "ada"] {
            world.person(person).get(path).await.expect(200);
        }
        // Who may not is told so before anything that is wrong with the parameters.
        for service in [&agent, &trigger] {
            service.get(path).await.refused(403, "permission_denied");
            service.get(&format!("{path}?start=x")).await.refused(403, "permission_denied");
        }
        world.person("mallory").get(path).await.refused(403, "organization_forbidden");
        foreign.in_organization("acme").get(path).await.refused(403, "organization_forbidden");
        world.anyone().get(path).await.refused(401, "unauthenticated");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn more_groups_than_one_answer_takes_are_refused() {
    let place = Place::new(Combination::DirectPostgres);
    let world = place.world().await;
    let (agent, task) = (world.agent().await, world.task().await);
    report(&agent, &task, "u1", "m1", json!({"tokens_in": 1})).await;
    counted(&world, 1).await;
    let columns = "SELECT string_agg(attname, ', ' ORDER BY attnum) FROM pg_attribute
        WHERE attrelid = 'agent_log.agent_usage'::regclass AND attnum > 0 AND NOT attisdropped";
    let columns = place.in_store(&world, columns).await;
    let values = columns.replace("report_id", "gen_random_uuid()").replace("model_id", "'m' || n");
    let more = async |from: i64, to: i64| {
        let insert = format!(
            "INSERT INTO {{usage}} ({columns}) SELECT {values} FROM {{usage}}, generate_series({from}, {to}) AS n
             WHERE model_id = 'm1'"
        );
        place.in_store(&world, &insert).await;
    };
    more(2, 10_000).await;
    let all = usage(&world, &format!("{ALWAYS}&group_by=model")).await;
    assert_eq!(all["groups"].as_array().unwrap().len(), 10_000);
    assert_eq!(all["total"]["reports"], 10_000);
    more(10_001, 10_001).await;
    let vera = world.person("vera");
    vera.get(&format!("/agent-usage?{ALWAYS}&group_by=model")).await.invalid_at(&["group_by"]);
    assert_eq!(usage(&world, &format!("{ALWAYS}&group_by=day")).await["total"]["reports"], 10_001);
}
