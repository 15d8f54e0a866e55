//! A log store that holds something else than the log: nothing is pruned, and the metric says so.

use mandate::log::{Batch, EventRow};
use mandate::service::sweep::Swept;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::archive::closed_task;
use crate::combination::{Place, archived, key, landed};
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
);

/// A closed task whose log has landed; its short id and row.
async fn landed_task(world: &World) -> (String, Value) {
    let agent = world.agent().await;
    let task = closed_task(world, &agent).await;
    landed(world, &task).await;
    let row = world.person("ada").get(&format!("/agent-tasks/{task}")).await.expect(200).clone();
    let reports = 3;
    eventually("its reports have landed", async || stored(world, &row).await.1.len() >= reports).await;
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
    eventually("the metric says so", async || {
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
    let _ = key(&world, &row);
    world.prove().await;
}
