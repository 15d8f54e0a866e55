//! Rows of a ledger that the log store lacks: in a ledger that is longer than what is read of it at once, and while
//! events go on arriving.

use std::sync::Arc;

use mandate::log::Batch;
use serde_json::Value;

use crate::combination::{Place, archived, key, landed};
use crate::duplicates::stored;
use crate::over_every_combination;
use crate::support::{World, eventually};

over_every_combination!(
    every_part_of_a_long_ledger_is_compared_and_mended,
    a_report_that_is_lost_is_sent_again_once_although_events_go_on_arriving,
);

/// Of 500 rows.
const REPORTS: usize = 1_010;

async fn every_part_of_a_long_ledger_is_compared_and_mended(place: Place) {
    let world = place.world_with(|settings| settings.archive.grace_seconds = 900).await;
    let (agent, vera) = (world.agent().await, world.person("vera"));
    let (task, _) = world.working(&agent).await;
    for nth in 0..REPORTS {
        agent.spend(&task, &format!("r{nth}"), 7, 3).await.expect(201);
    }
    agent.finish(&task).await.expect(200);
    landed(&world, &task).await;
    let row = world.person("ada").get(&format!("/agent-tasks/{task}")).await.expect(200).clone();
    let used = vera.get("/agent-usage").await.expect(200)["total"].clone();
    let (_, mut usage) = stored(&world, &row).await;
    usage.sort_by_key(|row| row.report_id);
    assert_eq!(usage.len(), REPORTS);
    // One of each part is lost.
    let lost = [3, 700, REPORTS - 1].map(|nth| format!("'{}'", usage[nth].report_id)).join(", ");
    place.in_store(&world, &format!("DELETE FROM {{usage}} WHERE report_id IN ({lost})")).await;
    world.skew_clock(2);
    let swept = world.sweep().await;
    assert_eq!((swept.republished, swept.mismatched), (3, 0), "{swept:?}");
    landed(&world, &task).await;
    // One of the last part is altered.
    let mut altered = usage[REPORTS - 2].clone();
    altered.tokens.tokens_out += 1;
    altered.version = 9;
    world.log.store.append(&Batch { events: Vec::new(), usage: vec![altered] }).await.unwrap();
    world.skew_clock(902);
    let swept = world.sweep().await;
    assert_eq!((swept.archived, swept.mismatched), (0, 1), "{swept:?}");
    archived(&world, &task).await;
    assert_eq!(vera.get("/agent-usage").await.expect(200)["total"], used);
    let (_, usage) = stored(&world, &row).await;
    // Written anew, all of it.
    assert_eq!(usage.iter().filter(|row| row.version == 10).count(), REPORTS);
    world.prove().await;
}

/// How old a row must be to count as lost, in seconds.
const PATIENCE: i64 = 100;
/// What passes between two rounds.
const STEP: i64 = 30;

async fn row(world: &World, task: &str) -> Value {
    world.person("ada").get(&format!("/agent-tasks/{task}")).await.expect(200).clone()
}

/// Writes an event more, and waits until the store has it.
async fn goes_on(world: &World, task: &str, session: &str) {
    world.agent().await.say(task, session, "Still at it.").await.expect(201);
    let row = row(world, task).await;
    let (last_seq, key, store) = (row["last_seq"].as_i64().unwrap(), key(world, &row), Arc::clone(&world.log.store));
    eventually("the events have landed", async || {
        store.coverage(&[key]).await.unwrap().first().is_some_and(|found| found.seqs == last_seq)
    })
    .await;
}

/// Loses every report that the store has of the task.
async fn lose_reports(place: &Place, world: &World, task: &str) {
    let (_, usage) = stored(world, &row(world, task).await).await;
    assert!(!usage.is_empty());
    let ids = usage.iter().map(|row| format!("'{}'", row.report_id)).collect::<Vec<_>>().join(", ");
    place.in_store(world, &format!("DELETE FROM {{usage}} WHERE report_id IN ({ids})")).await;
}

/// What `/agent-usage` says of all.
async fn used(world: &World) -> Value {
    world.person("vera").get("/agent-usage").await.expect(200)["total"].clone()
}

async fn a_report_that_is_lost_is_sent_again_once_although_events_go_on_arriving(place: Place) {
    let world = place.world_with(|settings| settings.archive.patience_seconds = PATIENCE.unsigned_abs()).await;
    let agent = world.agent().await;
    let (task, session) = world.working(&agent).await;
    agent.spend(&task, "lost", 700, 30).await.expect(201);
    landed(&world, &task).await;
    let sum = used(&world).await;
    lose_reports(&place, &world, &task).await;
    let mut again = Vec::new();
    for passed in (STEP..4 * PATIENCE).step_by(30) {
        world.skew_clock(passed);
        // Whatever arrives meanwhile.
        goes_on(&world, &task, &session).await;
        let swept = world.sweep().await;
        assert_eq!((swept.unpublished, swept.mismatched, swept.failed), (0, 0, 0), "after {passed} s: {swept:?}");
        if swept.republished == 0 {
            continue;
        }
        assert_eq!(swept.republished, 1, "after {passed} s");
        again.push(passed);
        landed(&world, &task).await;
        assert_eq!(used(&world).await, sum);
        if place.is_kafka() {
            // As if it were still on its way.
            lose_reports(&place, &world, &task).await;
        }
    }
    // Not while it may be on its way: neither at first, nor when it was sent again, which is waited for twice as long.
    let due = PATIENCE..PATIENCE + STEP;
    match again[..] {
        [first] => assert!(!place.is_kafka() && due.contains(&first), "{again:?}"),
        [first, second] => {
            assert!(place.is_kafka() && due.contains(&first), "{again:?}");
            assert!((2 * PATIENCE..2 * PATIENCE + STEP).contains(&(second - first)), "{again:?}");
        }
        _ => panic!("{again:?}"),
    }
    world.agent().await.finish(&task).await.expect(200);
    world.skew_clock(100 * PATIENCE);
    archived(&world, &task).await;
    assert_eq!(used(&world).await, sum);
    world.prove().await;
}
