//! A log store that holds something else than the log: nothing is pruned, and the metric says so.

use std::sync::atomic::{AtomicI64, Ordering};

use mandate::log::{Batch, EventRow};
use mandate::service::sweep::Swept;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::archive::closed_task;
use crate::combination::{Place, archived, landed, without_publisher};
use crate::duplicates::stored;
use crate::over_every_combination;
use crate::support::{World, eventually};

over_every_combination!(
    a_missing_row_keeps_the_log_until_it_is_there_again,
    a_foreign_row_keeps_the_log_for_good,
    a_row_past_the_end_keeps_the_log_for_good,
    an_altered_payload_that_cannot_be_replaced_keeps_the_log_for_good,
    an_altered_row_is_written_anew_and_then_archived,
    an_altered_report_is_written_anew_and_then_archived,
    a_row_that_cannot_be_read_stands_in_nobody_elses_way,
    an_archived_log_that_the_store_lost_is_never_read_as_empty,
    a_task_that_is_never_still_is_verified_as_far_as_it_is,
);

/// A closed task whose log has landed; its short id and row.
async fn landed_task(world: &World) -> (String, Value) {
    let agent = world.agent().await;
    let task = closed_task(world, &agent).await;
    landed(world, &task).await;
    let row = world.person("ada").get(&format!("/agent-tasks/{task}")).await.expect(200).clone();
    (task, row)
}

/// The value of a metric.
async fn metric(world: &World, name: &str) -> i64 {
    let text = world.anyone().get("//metrics").await.text;
    let line = text.lines().find(|line| line.split(' ').next() == Some(name));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).rsplit(' ').next().unwrap().parse().unwrap()
}

async fn events_in_postgres(world: &World) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM agent_runtime.events").fetch_one(&world.db).await.unwrap()
}

/// Rounds until the log is left; whatever they do, every event stays in Postgres.
async fn left_for_good(world: &World, task: &str, row: &Value) {
    let last_seq = row["last_seq"].as_i64().unwrap();
    let later = AtomicI64::new(0);
    eventually("the metric says so", async || {
        // What was written anew is waited for.
        world.skew_clock(later.fetch_add(20, Ordering::SeqCst));
        let Swept { archived, .. } = world.sweep().await;
        assert_eq!(archived, 0);
        metric(world, "mandate_log_mismatch").await == 1
    })
    .await;
    for _ in 0..3 {
        assert_eq!(world.sweep().await.archived, 0);
    }
    assert_eq!(events_in_postgres(world).await, last_seq);
    assert!(metric(world, "mandate_log_contradictions_total").await >= 3);
    // It is read as ever.
    assert_eq!(world.log(task).await.len(), usize::try_from(last_seq).unwrap());
    world.prove().await;
}

async fn a_missing_row_keeps_the_log_until_it_is_there_again(place: Place) {
    let world = place.world_with(|settings| settings.archive.patience_seconds = 600).await;
    let (task, row) = landed_task(&world).await;
    let last = row["last_seq"].as_i64().unwrap();
    place.in_store(&world, &format!("DELETE FROM {{events}} WHERE seq = {}", last - 1)).await;
    // The store has 1..n−2 and n, of n. What is missing may still be on its way.
    let waiting = world.sweep().await;
    assert_eq!((waiting.archived, waiting.republished, waiting.whole), (0, 0, 0));
    assert_eq!(events_in_postgres(&world).await, last);
    assert_eq!(metric(&world, "mandate_log_mismatch").await, 0);
    // Patience is over.
    world.skew_clock(601);
    assert!(metric(&world, "mandate_log_oldest_unverified_seconds").await >= 600);
    let mended = world.sweep().await;
    assert_eq!(mended.republished, 1, "{mended:?}");
    archived(&world, &task).await;
    assert_eq!(metric(&world, "mandate_log_oldest_unverified_seconds").await, 0);
    world.prove().await;
}

async fn a_foreign_row_keeps_the_log_for_good(place: Place) {
    let world = place.world().await;
    let (task, row) = landed_task(&world).await;
    let (events, _) = stored(&world, &row).await;
    let foreign = EventRow { event_id: Uuid::new_v4().into(), ..events[3].clone() };
    world.log.store.append(&Batch { events: vec![foreign], usage: Vec::new() }).await.unwrap();
    left_for_good(&world, &task, &row).await;
}

async fn a_row_past_the_end_keeps_the_log_for_good(place: Place) {
    let world = place.world().await;
    let (task, row) = landed_task(&world).await;
    let (events, _) = stored(&world, &row).await;
    let seq = row["last_seq"].as_i64().unwrap() + 1;
    let past = EventRow { event_id: Uuid::new_v4().into(), seq, ..events[3].clone() };
    world.log.store.append(&Batch { events: vec![past], usage: Vec::new() }).await.unwrap();
    left_for_good(&world, &task, &row).await;
}

/// A version that nothing of ours exceeds.
const HIGHEST: u64 = i64::MAX as u64;

async fn an_altered_payload_that_cannot_be_replaced_keeps_the_log_for_good(place: Place) {
    let world = place.world().await;
    let (task, row) = landed_task(&world).await;
    let (events, _) = stored(&world, &row).await;
    let payload = json!({"body": "never said"}).to_string();
    let version = if place.is_clickhouse() { u64::MAX } else { HIGHEST };
    if place.is_clickhouse() {
        // A merge would keep the newer of two rows under one version, which is the right one.
        place.in_store(&world, "SYSTEM STOP MERGES {events}").await;
    }
    let altered = EventRow { payload, version, ..events[3].clone() };
    world.log.store.append(&Batch { events: vec![altered], usage: Vec::new() }).await.unwrap();
    left_for_good(&world, &task, &row).await;
    // An operator who mends the store tells the sweep to look again.
    let mended = if place.is_clickhouse() { " AND payload LIKE '%never said%'" } else { "" };
    if place.is_clickhouse() {
        place.in_store(&world, "SYSTEM START MERGES {events}").await;
    }
    place.in_store(&world, &format!("DELETE FROM {{events}} WHERE version = {version}{mended}")).await;
    assert_eq!(world.sweep.retry_left().await.unwrap(), 1);
    archived(&world, &task).await;
    assert_eq!(metric(&world, "mandate_log_mismatch").await, 0);
    world.prove().await;
}

async fn an_altered_row_is_written_anew_and_then_archived(place: Place) {
    let world = place.world().await;
    let (task, row) = landed_task(&world).await;
    let before = world.log(&task).await;
    let (events, _) = stored(&world, &row).await;
    // Not in the chain, but part of what is read.
    let altered = EventRow { redacted: vec!["/invented".to_owned()], version: 7, ..events[2].clone() };
    world.log.store.append(&Batch { events: vec![altered], usage: Vec::new() }).await.unwrap();
    assert_eq!(world.sweep().await.mismatched, 1);
    archived(&world, &task).await;
    assert_eq!(world.log(&task).await, before);
    assert_eq!(metric(&world, "mandate_log_mismatch").await, 0);
    let (events, _) = stored(&world, &row).await;
    assert!(events.iter().any(|row| row.version == 8), "the whole log has a version above the altered one");
    world.prove().await;
}

async fn an_altered_report_is_written_anew_and_then_archived(place: Place) {
    let world = place.world().await;
    let (task, row) = landed_task(&world).await;
    let used = world.person("vera").get("/agent-usage").await.expect(200)["total"].clone();
    let (_, usage) = stored(&world, &row).await;
    let mut altered = usage[0].clone();
    altered.tokens.tokens_in += 1_000_000;
    altered.version = 2;
    world.log.store.append(&Batch { events: Vec::new(), usage: vec![altered] }).await.unwrap();
    assert_ne!(world.person("vera").get("/agent-usage").await.expect(200)["total"], used);
    assert_eq!(world.sweep().await.mismatched, 1);
    archived(&world, &task).await;
    assert_eq!(world.person("vera").get("/agent-usage").await.expect(200)["total"], used);
    world.prove().await;
}

async fn a_row_that_cannot_be_read_stands_in_nobody_elses_way(place: Place) {
    let world = place.world_with(|settings| settings.archive.grace_seconds = 900).await;
    let (first, row) = landed_task(&world).await;
    let agent = world.agent().await;
    let mut others = Vec::new();
    for _ in 0..4 {
        others.push(closed_task(&world, &agent).await);
    }
    for task in &others {
        landed(&world, task).await;
    }
    // The oldest, so that it comes first; the store would refuse to answer anything about it.
    let id = row["id"].as_str().unwrap();
    let spoil = if place.is_clickhouse() {
        format!("ALTER TABLE {{events}} UPDATE digest = 'x' WHERE task_id = '{id}' AND seq = 2")
    } else {
        format!("UPDATE {{events}} SET digest = 'x' WHERE task_id = '{id}' AND seq = 2")
    };
    place.in_store(&world, &spoil).await;
    world.skew_clock(901);
    let swept = world.sweep().await;
    assert_eq!((swept.archived, swept.mismatched, swept.failed), (4, 1, 0), "{swept:?}");
    // Written anew with a version above it, it is right again.
    archived(&world, &first).await;
    world.prove().await;
}

async fn an_archived_log_that_the_store_lost_is_never_read_as_empty(place: Place) {
    let world = place.world().await;
    let (task, row) = landed_task(&world).await;
    archived(&world, &task).await;
    let (events, usage) = stored(&world, &row).await;
    let (vera, path) = (world.person("vera"), format!("/agent-tasks/{task}/events"));
    place.in_store(&world, "DELETE FROM {events} WHERE seq = 5").await;
    // Nor can what follows right on it be proven.
    for query in ["", "?limit=1000", "?after_seq=3&limit=4", "?after_seq=5", "?before_seq=8&limit=5", "?type=turn"] {
        let reply = vera.get(&format!("{path}{query}")).await;
        reply.refused(503, "unavailable");
        assert!(reply.header("retry-after").is_some());
    }
    // What is there all the same is read.
    vera.get(&format!("{path}?limit=4")).await.expect(200);
    vera.get(&format!("{path}?after_seq=6")).await.expect(200);
    place.in_store(&world, "DELETE FROM {events} WHERE seq > 0").await;
    for query in ["", "?limit=1", "?before_seq=4", "?type=turn", "?type=nothing.of.the.kind"] {
        vera.get(&format!("{path}{query}")).await.refused(503, "unavailable");
    }
    let lines = vera.request(reqwest::Method::GET, &path).header("accept", "application/x-ndjson");
    assert_eq!(lines.send().await.unwrap().status(), 503);
    // Nothing lies beyond the end, there or not.
    assert_eq!(vera.get(&format!("{path}?after_seq=1000")).await.expect(200), &json!([]));
    world.log.store.append(&Batch { events: events.clone(), usage }).await.unwrap();
    assert_eq!(vera.all(&format!("{path}?limit=5")).await.len(), events.len());
    // Changed is as bad as lost, wherever the page begins, to the last entry.
    let last = events.last().unwrap();
    for changed in [&events[3], last] {
        let altered = EventRow { payload: "{\"body\":\"never said\"}".to_owned(), version: 5, ..changed.clone() };
        world.log.store.append(&Batch { events: vec![altered], usage: Vec::new() }).await.unwrap();
        let (before, after) = (changed.seq - 1, changed.seq + 1);
        for query in [
            String::new(),
            format!("?after_seq={}", before - 1),
            format!("?after_seq={before}"),
            format!("?after_seq={before}&limit=1"),
            format!("?before_seq={after}&limit=1"),
            format!("?after_seq={before}&before_seq={after}"),
            format!("?type={}", changed.event_type),
            format!("?type={}&after_seq={before}", changed.event_type),
        ] {
            vera.get(&format!("{path}{query}")).await.refused(503, "unavailable");
        }
        let right = EventRow { version: 6, ..changed.clone() };
        world.log.store.append(&Batch { events: vec![right], usage: Vec::new() }).await.unwrap();
        vera.get(&path).await.expect(200);
        let picked = vera.get(&format!("{path}?type={}&after_seq={before}", changed.event_type)).await;
        assert_eq!(picked.expect(200)[0]["seq"], changed.seq);
    }
    world.prove().await;
}

async fn a_task_that_is_never_still_is_verified_as_far_as_it_is(place: Place) {
    let world = place
        .world_with(|settings| {
            without_publisher(settings);
            settings.archive.patience_seconds = 60;
        })
        .await;
    let agent = world.agent().await;
    let (task, session) = world.working(&agent).await;
    let row = world.person("ada").get(&format!("/agent-tasks/{task}")).await.expect(200).clone();
    world.skew_clock(61);
    world.sweep().await;
    landed(&world, &task).await;
    // More is said after the store has what was there, and nobody has handed it over.
    agent.say(&task, &session, "and on").await.expect(201);
    agent.say(&task, &session, "and on").await.expect(201);
    assert_eq!(world.sweep().await.whole, 0);
    let proof = world.person("vera").get(&format!("/agent-tasks/{task}/proof")).await.expect(200).clone();
    assert_eq!(proof["verified_seq"], row["last_seq"]);
    assert_eq!(proof["last_seq"], row["last_seq"].as_i64().unwrap() + 2);
    world.prove().await;
}
