//! Several sinks in one group.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::store::Faulty;
use crate::support::{Running, World, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn members_share_the_partitions_and_come_and_go_without_loss() {
    let world = World::new().await;
    let stores: Vec<_> = (0..3).map(|_| Faulty::over(&world.store)).collect();
    let mut running: Vec<_> = stores.iter().map(|store| Running::start(world.sink(store.clone()))).collect();
    let mut published = 0;
    // All three take part.
    while stores.iter().any(|store| store.rows() == 0) {
        world.publish(&world.batch(20, 5)).await;
        published += 100;
        assert!(published < 200_000, "one of the three never gets anything");
    }
    // One goes in the middle of the work, another one dies.
    world.publish(&world.batch(20, 5)).await;
    let begun = Instant::now();
    running.pop().unwrap().stop().await;
    assert!(begun.elapsed() < Duration::from_secs(8), "leaving took {:?}", begun.elapsed());
    world.publish(&world.batch(20, 5)).await;
    running.pop().unwrap().kill().await;
    world.publish(&world.batch(20, 5)).await;
    published += 300;
    world.has_stored(published, 0).await;
    eventually("all offsets are committed", async || world.committed("agent_task_events").await == published).await;
    running.pop().unwrap().stop().await;
    let rows: usize = stores.iter().map(|store| store.rows()).sum();
    assert!(i64::try_from(rows).unwrap() >= published);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_whose_store_is_away_does_not_hold_the_group_up() {
    let world = World::new().await;
    let stuck = Faulty::over(&world.store);
    stuck.away.store(true, Ordering::SeqCst);
    let first = Running::start(world.sink(stuck.clone()));
    world.publish(&world.batch(20, 5)).await;
    eventually("the first has rows", async || stuck.asked() >= 2).await;
    // It has all partitions and cannot go on; the newcomer gets its share all the same.
    let well = Faulty::over(&world.store);
    let second = Running::start(world.sink(Arc::clone(&well) as _));
    eventually("the newcomer lands rows", async || well.rows() > 0).await;
    stuck.away.store(false, Ordering::SeqCst);
    world.publish(&world.batch(20, 5)).await;
    world.has_stored(200, 0).await;
    eventually("all offsets are committed", async || world.committed("agent_task_events").await == 200).await;
    first.stop().await;
    second.stop().await;
}
