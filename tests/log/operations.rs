//! `GET /operations-log`: what was decided, and how tasks ended.

use std::collections::HashSet;

use mandate::domain::time::Timestamp;
use reqwest::Method;
use serde_json::{Value, json};

use crate::combination::{Combination, Place, archived};
use crate::over_every_combination;
use crate::support::{Client, Seed, World, eventually};

over_every_combination!(
    it_tells_what_was_decided_and_how_tasks_ended,
    pages_over_one_instant_lose_and_repeat_nothing_while_more_arrive,
);

const DIGEST: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

async fn operations(world: &World, query: &str) -> Vec<Value> {
    world.person("vera").all(&format!("/operations-log?{query}")).await
}

/// Waits until it has so many entries.
async fn landed(world: &World, entries: usize) {
    eventually("the operations have landed", async || operations(world, "limit=100").await.len() == entries).await;
}

/// What an entry says, in short.
fn told(entry: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let payload = &entry["event"]["payload"];
    let what = if entry["kind"] == "resolution" { &payload["status"] } else { &payload["outcome"] };
    format!("{} {} {}", text(&entry["short_id"]), text(&entry["kind"]), text(what))
}

async fn resolve(person: &Client, task: &str, request: &str, body: Value) {
    person.on(task, &format!("requests/{request}/resolve"), body).await.expect(201);
}

async fn approval(agent: &Client, task: &str) -> String {
    let body = json!({"kind": "approval", "title": "Merge?", "artifact_digests": [DIGEST]});
    agent.on(task, "requests", body).await.expect(201)["request"]["id"].as_str().unwrap().to_owned()
}

/// Every line of a task's log as text, without the task's id.
async fn lines(world: &World, task: &str) -> Vec<String> {
    let request = world.person("vera").request(Method::GET, &format!("/agent-tasks/{task}/events"));
    let answer = request.header("accept", "application/x-ndjson").send().await.unwrap();
    let text = answer.text().await.unwrap();
    text.lines().map(|line| format!("{{{}", line.split_once(',').unwrap().1)).collect()
}

async fn it_tells_what_was_decided_and_how_tasks_ended(place: Place) {
    let world = place.world().await;
    let (agent, abe, ada) = (world.agent().await, world.person("abe"), world.person("ada"));
    let first = world.task_with(json!({"project_id": world.seed.project_id})).await;
    let question = agent.ask(&first, &["yes", "no"]).await;
    let answer =
        json!({"status": "answered", "choice": "yes", "answer": "Grüße é \u{1f980} 1E400", "constraints": "few"});
    resolve(&abe, &first, &question, answer).await;
    let approve = approval(&agent, &first).await;
    resolve(&abe, &first, &approve, json!({"status": "approved", "artifact_digests": [DIGEST]})).await;
    let reject = approval(&agent, &first).await;
    resolve(&abe, &first, &reject, json!({"status": "rejected"})).await;
    // Nobody decided these: withdrawn, superseded, and void at the close.
    let withdrawn = agent.ask(&first, &[]).await;
    agent.on(&first, &format!("requests/{withdrawn}/withdraw"), json!({})).await.expect(200);
    let old = agent.ask(&first, &[]).await;
    let newer = json!({"kind": "feedback", "title": "?", "supersedes": old});
    agent.on(&first, "requests", newer).await.expect(201);
    let result = r#"{"outcome":"done_acted","result":{"summary":"\u00e9 \/ 1.0"}}"#;
    agent.post_raw(&format!("/agent-tasks/{first}/outcome"), result).await.expect(200);
    // Cancelled before any session; closed by a trigger from the start; expired; out of time.
    let cancelled = world.task().await;
    ada.post_nothing(&format!("/agent-tasks/{cancelled}/cancel")).await.expect(200);
    let body = json!({"agent_slug": "reviewer", "title": "t", "description": "d",
        "initial_outcome": "suppressed_duplicate", "initial_outcome_reason": "same_trigger"});
    let trigger = world.trigger().await;
    let started = trigger.request(Method::POST, "/agent-tasks/").json(&body);
    let started = started.header("x-mandate-scheduled-task", "nightly").header("x-mandate-accountable", "ada");
    let started = trigger.send(started).await.expect(201)["short_id"].as_str().unwrap().to_owned();
    let expiring = world.task().await;
    let soon = Timestamp::from_micros(world.now().micros() + 400_000).unwrap().to_string();
    let body = json!({"kind": "feedback", "title": "?", "expires_at": soon});
    agent.on(&expiring, "requests", body).await.expect(201);
    eventually("the request expires", async || {
        world.step().await;
        !ada.get(&format!("/agent-tasks/{expiring}")).await.expect(200)["outcome"].is_null()
    })
    .await;
    let limit = "UPDATE agent_directory.agents SET task_timeout_seconds = $1::int WHERE slug = 'reviewer'";
    sqlx::query(limit).bind(600).execute(&world.db).await.unwrap();
    let (timed, _) = world.working(&agent).await;
    world.skew_clock(610);
    assert_eq!(world.step().await.timed_out, 1);

    landed(&world, 8).await;
    let all = operations(&world, "").await;
    let short: Vec<String> = all.iter().map(told).collect();
    assert_eq!(
        short,
        [
            format!("{timed} outcome exceeded_ceiling"),
            format!("{expiring} outcome request_expired"),
            format!("{started} outcome suppressed_duplicate"),
            format!("{cancelled} outcome cancelled_by_human"),
            format!("{first} outcome done_acted"),
            format!("{first} resolution rejected"),
            format!("{first} resolution approved"),
            format!("{first} resolution answered"),
        ]
    );
    let row = ada.get(&format!("/agent-tasks/{first}")).await.expect(200).clone();
    for (entry, project) in [(&all[7], json!(world.seed.project_id)), (&all[3], Value::Null)] {
        let id = if project.is_null() { &all[3]["task_id"] } else { &row["id"] };
        assert_eq!((&entry["task_id"], &entry["project_id"]), (id, &project));
        assert_eq!((&entry["agent_id"], &entry["agent_slug"]), (&row["agent_id"], &json!("reviewer")));
    }
    assert_eq!((&all[7]["event"]["type"], &all[7]["event"]["actor_id"]), (&json!("request.resolved"), &json!("abe")));

    // Its events are those of the tasks' logs, byte for byte, before and after the archive.
    let by_kind = [("resolution", 3), ("outcome", 5)];
    for round in 0..2 {
        let text = world.person("vera").get("/operations-log").await.text;
        for task in [&first, &cancelled, &started, &expiring, &timed] {
            let lines = lines(&world, task).await;
            let decisive = |line: &&String| {
                line.contains(r#""type":"outcome.set""#)
                    || (line.contains(r#""type":"request.resolved""#) && !line.contains(r#""status":"void""#))
            };
            assert!(lines.iter().any(|line| decisive(&line)));
            for line in lines.iter().filter(decisive) {
                assert!(text.contains(&format!(r#""event":{line}"#)), "{line}\nis not in {text}");
            }
        }
        for (kind, entries) in by_kind {
            assert_eq!(operations(&world, &format!("kind={kind}&limit=2")).await.len(), entries);
        }
        if round == 0 {
            archived(&world, &first).await;
        }
        assert_eq!(operations(&world, "limit=3").await, all);
    }
    world.prove().await;
}

async fn embedded() -> World {
    Place::new(Combination::DirectPostgres).world().await
}

/// So many cancelled tasks.
async fn cancel(world: &World, tasks: usize) {
    let ada = world.person("ada");
    for _ in 0..tasks {
        let task = world.task().await;
        ada.post_nothing(&format!("/agent-tasks/{task}/cancel")).await.expect(200);
    }
}

async fn pages_over_one_instant_lose_and_repeat_nothing_while_more_arrive(place: Place) {
    let world = place.world().await;
    world.freeze_clock();
    cancel(&world, 13).await;
    landed(&world, 13).await;
    let whole = operations(&world, "limit=100").await;
    let instants: HashSet<&str> = whole.iter().map(|entry| entry["event"]["recorded_at"].as_str().unwrap()).collect();
    assert_eq!(instants.len(), 1);
    for limit in [1, 5, 13] {
        let pages = world.person("vera").pages(&format!("/operations-log?limit={limit}")).await;
        assert_eq!(pages.len(), 13_usize.div_ceil(limit));
        assert_eq!(pages.concat(), whole);
    }
    // Newer ones arrive between two pages.
    let vera = world.person("vera");
    let mut reply = vera.get("/operations-log?limit=5").await;
    let mut read = reply.expect(200).as_array().unwrap().clone();
    let mut there = 13;
    while let Some(next) = reply.next() {
        world.move_frozen_clock(1);
        cancel(&world, 3).await;
        there += 3;
        landed(&world, there).await;
        reply = vera.get(&format!("/{next}")).await;
        read.extend(reply.expect(200).as_array().unwrap().clone());
    }
    assert!(there > 13);
    assert_eq!(read, whole);
    // Those are first by now.
    assert_eq!(operations(&world, "limit=100").await[there - 13..], whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_filtered_by_time_agent_and_kind() {
    let world = embedded().await;
    let other = Seed::agent(&world.db, world.seed.organization_id, "writer").await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let mine = world.task().await;
    let question = agent.ask(&mine, &["yes"]).await;
    resolve(&ada, &mine, &question, json!({"status": "answered", "choice": "yes"})).await;
    agent.finish(&mine).await.expect(200);
    let theirs = world.task_with(json!({"agent_slug": "writer"})).await;
    ada.post_nothing(&format!("/agent-tasks/{theirs}/cancel")).await.expect(200);
    landed(&world, 3).await;
    let all = operations(&world, "").await;
    let at = |nth: usize| all[nth]["event"]["recorded_at"].as_str().unwrap().to_owned();
    let (writer, reviewer) = (other.id, world.seed.agent.id);
    let (newest, middle, oldest) = (at(0), at(1), at(2));
    for (query, entries) in [
        (String::new(), vec![0, 1, 2]),
        ("kind=resolution".to_owned(), vec![2]),
        ("kind=outcome".to_owned(), vec![0, 1]),
        (format!("agent_id={writer}"), vec![0]),
        (format!("agent_id={reviewer}"), vec![1, 2]),
        (format!("agent_id={reviewer}&kind=outcome"), vec![1]),
        (format!("agent_id={}", uuid::Uuid::new_v4()), vec![]),
        (format!("start={middle}"), vec![0, 1]),
        (format!("end={middle}"), vec![2]),
        (format!("start={oldest}&end={newest}"), vec![1, 2]),
        (format!("start={oldest}&end={oldest}"), vec![]),
        ("start=1970-01-01&end=2020-01-01".to_owned(), vec![]),
        ("start=2020-01-01T00:00:00%2B01:00".to_owned(), vec![0, 1, 2]),
        ("kind=&agent_id=&start=&end=".to_owned(), vec![0, 1, 2]),
    ] {
        let expected: Vec<Value> = entries.into_iter().map(|nth: usize| all[nth].clone()).collect();
        for limit in [1, 50] {
            assert_eq!(operations(&world, &format!("{query}&limit={limit}")).await, expected, "{query}");
        }
    }
    for (query, places) in [
        ("kind=decision", vec!["kind"]),
        ("agent_id=reviewer", vec!["agent_id"]),
        ("start=x", vec!["start"]),
        ("start=2026-01-02&end=2026-01-01", vec!["end"]),
        ("end=2026-01-31T00:00:00%2001:00", vec!["end"]),
        ("limit=0", vec!["limit"]),
        ("limit=101", vec!["limit"]),
        ("start=x&end=x&agent_id=x&kind=x&limit=x", vec!["start", "end", "agent_id", "kind", "limit"]),
    ] {
        ada.get(&format!("/operations-log?{query}")).await.invalid_at(&places);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_that_is_damaged_or_of_another_list_is_refused() {
    let world = embedded().await;
    cancel(&world, 3).await;
    landed(&world, 3).await;
    let vera = world.person("vera");
    let cursor_of = async |path: &str| {
        let next = vera.get(path).await.next().unwrap();
        next.split("cursor=").nth(1).unwrap().split('&').next().unwrap().to_owned()
    };
    let cursor = cursor_of("/operations-log?limit=1&kind=outcome").await;
    let good = vera.get(&format!("/operations-log?kind=outcome&limit=2&cursor={cursor}")).await;
    assert_eq!(good.expect(200).as_array().unwrap().len(), 2);
    for query in [
        format!("cursor={cursor}"),
        format!("kind=resolution&cursor={cursor}"),
        format!("kind=outcome&start=2020-01-01&cursor={cursor}"),
    ] {
        vera.get(&format!("/operations-log?{query}")).await.refused(400, "invalid_cursor");
    }
    for nth in 0..cursor.len() {
        let mut bytes = cursor.clone().into_bytes();
        bytes[nth] = if bytes[nth] == b'A' { b'B' } else { b'A' };
        let tampered = String::from_utf8(bytes).unwrap();
        vera.get(&format!("/operations-log?kind=outcome&cursor={tampered}")).await.refused(400, "invalid_cursor");
    }
    for text in [&cursor[1..], &cursor[..cursor.len() - 1], "x", "%00", "AAAA", &format!("{cursor}AAAA")] {
        vera.get(&format!("/operations-log?kind=outcome&cursor={text}")).await.refused(400, "invalid_cursor");
    }
    let tasks = cursor_of("/agent-tasks/?limit=1").await;
    vera.get(&format!("/operations-log?cursor={tasks}")).await.refused(400, "invalid_cursor");
    let other = Seed::plant(&world.db, "other").await;
    let elsewhere = vera.in_organization(&other.slug);
    let path = format!("/operations-log?kind=outcome&cursor={cursor}");
    elsewhere.get(&path).await.refused(400, "invalid_cursor");
    assert_eq!(elsewhere.get("/operations-log").await.expect(200), &json!([]));
}
