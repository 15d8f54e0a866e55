//! A log store that answers, but not about every log.

use std::sync::Arc;
use std::time::Duration;

use mandate::log::clickhouse::{ClickHouseLog, ClickHouseLogOptions};
use mandate::service::sweep::{Sweep, SweepSettings};
use mandate::store::Store;
use serde_json::json;

use crate::combination::{Combination, Place, archived, landed};
use crate::support::{Client, World};

/// A sweep whose user's profile in the log store has a limit.
fn limited(world: &World, store: &Store, batch: u32, (limit, value): (&str, &str)) -> Sweep {
    let patience = Duration::from_secs(30);
    let options = ClickHouseLogOptions { query_timeout: patience, append_timeout: patience };
    let log = ClickHouseLog::connect(world.settings.log.store_url.as_ref().unwrap().expose(), options).unwrap();
    let settings = SweepSettings {
        grace: Duration::ZERO,
        lease: Duration::from_secs(10),
        batch,
        patience: Duration::ZERO,
        quiet: Duration::ZERO,
    };
    Sweep::new(
        store.clone(),
        Arc::new(log.with_setting(limit, value)),
        Arc::clone(&world.log.stream),
        world.service.clock().clone(),
        settings,
        world.service.counters().log.clone(),
    )
}

async fn world() -> (World, Store, Client) {
    let world = Place::new(Combination::DirectClickhouse).world().await;
    let store = Store::connect(&mandate::app::store_options(&world.settings)).unwrap();
    let agent = world.agent().await;
    (world, store, agent)
}

/// A closed task with so many turns, in the log store.
async fn closed(world: &World, agent: &Client, turns: usize) -> String {
    let (task, _) = world.working(agent).await;
    let turns: Vec<_> = (0..turns).map(|n| json!({"type": "turn", "payload": {"body": n.to_string()}})).collect();
    agent.append(&task, json!(turns)).await.expect(201);
    agent.finish(&task).await.expect(200);
    landed(world, &task).await;
    task
}

async fn is_archived(world: &World, task: &str) -> bool {
    !world.person("ada").get(&format!("/agent-tasks/{task}")).await.expect(200)["log_archived_at"].is_null()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_too_much_for_the_store_keeps_no_other_from_being_archived() {
    let (world, store, agent) = world().await;
    let large = closed(&world, &agent, 90).await;
    let others = [closed(&world, &agent, 3).await, closed(&world, &agent, 3).await];
    let last_seq = world.log(&large).await.len();
    for batch in [1, 500] {
        let late = closed(&world, &agent, 3).await;
        let swept = limited(&world, &store, batch, ("max_result_rows", "60")).round().await.unwrap();
        assert_eq!((swept.failed, swept.mismatched, swept.republished), (1, 0, 0), "{swept:?}");
        for task in others.iter().chain([&late]) {
            assert!(is_archived(&world, task).await, "batches of {batch}");
        }
        assert!(!is_archived(&world, &large).await);
        assert_eq!(world.log(&large).await.len(), last_seq);
    }
    assert_eq!(world.service.counters().log.failed_rounds.get(), 0);
    // When the limit is gone, it follows.
    archived(&world, &large).await;
    world.prove().await;
    store.close().await;
}

/// Twenty failures end a round; they must not end every round.
#[tokio::test(flavor = "multi_thread")]
async fn however_many_logs_are_too_much_for_the_store_the_others_have_their_turn() {
    const LARGE: usize = 45;
    let (world, store, agent) = world().await;
    for _ in 0..LARGE {
        closed(&world, &agent, 20).await;
    }
    let small = closed(&world, &agent, 1).await;
    assert!(world.log(&small).await.len() < 15);
    let sweep = limited(&world, &store, 5, ("max_result_rows", "15"));
    let mut rounds = 0;
    while !is_archived(&world, &small).await {
        // The rounds before it end with the tasks that failed.
        assert!(rounds < 3, "its turn never comes");
        let swept = sweep.round().await;
        assert_eq!(swept.is_ok(), is_archived(&world, &small).await, "{swept:?}");
        rounds += 1;
    }
    assert!(rounds > 1, "so many failures ended no round");
    // Now those that failed have theirs again.
    assert!(sweep.round().await.is_err());
    for _ in 0..2 {
        world.sweep().await;
    }
    let left = "SELECT count(*) FROM agent_runtime.tasks WHERE log_archived_at IS NULL";
    assert_eq!(sqlx::query_scalar::<_, i64>(left).fetch_one(&world.db).await.unwrap(), 0);
    world.prove().await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_answers_about_one_log_at_a_time_is_asked_about_each() {
    let (world, store, agent) = world().await;
    let tasks = [closed(&world, &agent, 3).await, closed(&world, &agent, 3).await, closed(&world, &agent, 3).await];
    let sweep = limited(&world, &store, 500, ("max_rows_in_set", "2"));
    let swept = sweep.round().await.unwrap();
    assert_eq!((swept.archived, swept.failed, swept.republished), (3, 0, 0), "{swept:?}");
    for task in &tasks {
        assert!(is_archived(&world, task).await);
    }
    world.prove().await;
    store.close().await;
}
