//! Streams that take nothing: one that says so, and one that panics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use mandate::app::store_options;
use mandate::config::Role;
use mandate::domain::time::Timestamp;
use mandate::log::{Batch, Pace, Published, Stream, StreamError};
use mandate::service::outbox::{OutboxLimits, outbox};
use mandate::service::sweep::{Sweep, SweepSettings};
use mandate::service::{LogCounters, Service};
use mandate::store::Store;
use mandate::workers::Publisher;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::place::{Place, at_length, only};
use crate::proof::{archived, prove};
use crate::support::World;
use crate::writers::tasks;

struct Stubborn;

impl Stream for Stubborn {
    fn name(&self) -> &'static str {
        "stubborn"
    }

    fn prepare(&self) -> BoxFuture<'_, Result<(), StreamError>> {
        Box::pin(async { Ok(()) })
    }

    fn pace(&self) -> Pace {
        Pace { in_flight: 1, linger: Duration::ZERO, rows: 1 }
    }

    fn publish(&self, batch: Batch) -> BoxFuture<'_, Published> {
        let failed = batch.len() as u64;
        Box::pin(async move { Published { failed, fault: Some("no".to_owned()), ..Published::default() } })
    }
}

/// A sweep of `world` that waits for nothing and can send nothing, and its store.
fn stubborn_sweep(world: &World) -> (Sweep, Store) {
    let store = Store::connect(&store_options(&world.settings)).unwrap();
    let settings = SweepSettings {
        grace: Duration::ZERO,
        lease: Duration::from_secs(1),
        batch: 1,
        patience: Duration::ZERO,
        quiet: Duration::ZERO,
    };
    let sweep = Sweep::new(
        store.clone(),
        Arc::clone(&world.log.store),
        Arc::new(Stubborn),
        world.service.clock().clone(),
        settings,
        world.service.counters().log.clone(),
    );
    (sweep, store)
}

/// The state of each log in its order: archived, failed verifications, how often it was sent again.
async fn logs(world: &World) -> Vec<(bool, i32, i32)> {
    let logs = "SELECT log_archived_at IS NOT NULL, verify_failures, republications FROM agent_runtime.tasks
        ORDER BY short_number";
    sqlx::query_as(logs).fetch_all(&world.db).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stream_that_takes_nothing_keeps_no_whole_log_back_and_makes_no_contradiction_final() {
    let place = Place::shared().direct();
    let world = place
        .world(|settings| {
            only(settings, &[Role::Api, Role::Publisher]);
            settings.archive.patience_seconds = 0;
        })
        .await;
    let (agent, tasks) = (world.agent().await, tasks(&world, 3).await);
    for task in &tasks {
        agent.append(task, json!([{"type": "turn", "payload": {"body": "said"}}])).await.expect(201);
        agent.finish(task).await;
    }
    let committed = "SELECT count(*) FROM agent_runtime.events";
    let committed: i64 = sqlx::query_scalar(committed).fetch_one(&world.db).await.unwrap();
    let stored = "SELECT uniqExact(task_id, seq) FROM agent_task_events";
    at_length("every log has landed", async || place.in_store(stored).await == committed.to_string()).await;
    // The first lacks a row, the second has another one, the third is whole.
    let short = |nth: usize| tasks[nth].trim_start_matches("T-").to_owned();
    let lost = format!("DELETE FROM agent_task_events WHERE short_number = {} AND seq = 2", short(0));
    place.in_store(&lost).await;
    let other = format!(
        "INSERT INTO agent_task_events SELECT * REPLACE ('{{\"body\":\"other\"}}' AS payload, 5 AS version)
         FROM agent_task_events WHERE short_number = {} AND type = 'turn'",
        short(1)
    );
    place.in_store(&other).await;
    let (sweep, store) = stubborn_sweep(&world);
    for _ in 0..4 {
        let swept = sweep.round().await.unwrap();
        assert!(swept.unpublished > 0 && swept.republished == 0, "{swept:?}");
        assert_eq!(logs(&world).await, [(false, 0, 0), (false, 0, 0), (true, 0, 0)]);
    }
    store.close().await;
    // One that takes rows mends both.
    at_length("both are mended", async || {
        world.sweep().await;
        logs(&world).await.iter().all(|(archived, ..)| *archived)
    })
    .await;
    archived(&world).await;
    prove(&world, &place, &[]).await;
}

/// All events of the task are there and it is still, so nothing but the flag brings the sweep back to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_task_that_lacks_only_a_report_stays_on_the_list_until_that_is_sent() {
    let place = Place::shared().direct();
    let world = place
        .world(|settings| {
            only(settings, &[Role::Api, Role::Publisher]);
            settings.archive.patience_seconds = 0;
        })
        .await;
    let (agent, tasks) = (world.agent().await, tasks(&world, 1).await);
    agent.spend(&tasks[0], "lost", 7, 3).await.expect(201);
    let stored = "SELECT count() FROM agent_usage";
    at_length("the report has landed", async || place.in_store(stored).await == "1").await;
    let committed = "SELECT count(*) FROM agent_runtime.events";
    let committed: i64 = sqlx::query_scalar(committed).fetch_one(&world.db).await.unwrap();
    let events = "SELECT uniqExact(task_id, seq) FROM agent_task_events";
    at_length("every event has landed", async || place.in_store(events).await == committed.to_string()).await;
    place.in_store("DELETE FROM agent_usage WHERE true").await;
    let (sweep, store) = stubborn_sweep(&world);
    for _ in 0..2 {
        let swept = sweep.round().await.unwrap();
        assert_eq!((swept.republished, swept.whole), (0, 0), "{swept:?}");
    }
    store.close().await;
    assert_eq!(world.sweep().await.republished, 1);
    assert_eq!(place.in_store(stored).await, "1");
}

/// Panics at its first batch and takes every other.
#[derive(Default)]
struct Fragile {
    panicked: AtomicBool,
    taken: AtomicU64,
}

impl Stream for Fragile {
    fn name(&self) -> &'static str {
        "fragile"
    }

    fn prepare(&self) -> BoxFuture<'_, Result<(), StreamError>> {
        Box::pin(async { Ok(()) })
    }

    fn pace(&self) -> Pace {
        Pace { in_flight: 1, linger: Duration::ZERO, rows: 1 }
    }

    fn publish(&self, batch: Batch) -> BoxFuture<'_, Published> {
        Box::pin(async move {
            assert!(self.panicked.swap(true, Ordering::SeqCst), "as every stream may");
            let delivered = batch.len() as u64;
            self.taken.fetch_add(delivered, Ordering::SeqCst);
            Published { delivered, ..Published::default() }
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stream_that_panics_takes_no_room_from_what_is_committed_later() {
    let world = Place::shared().direct().world(|settings| only(settings, &[Role::Api])).await;
    let store = Store::connect(&store_options(&world.settings)).unwrap();
    let (counters, stream, stop) = (LogCounters::default(), Arc::new(Fragile::default()), CancellationToken::new());
    // Room for what one expiry commits, and not for two.
    let (handing_in, inbox) = outbox(OutboxLimits { rows: 4, bytes: 1 << 20 }, counters.clone());
    let clock = world.service.clock().clone();
    let publisher = Publisher::new(inbox, Arc::clone(&stream) as Arc<dyn Stream>, counters.clone(), clock.clone());
    let publishing = tokio::spawn(publisher.run(stop.clone()));
    let service = Service::new(
        store.clone(),
        Arc::new(store.clone()),
        Arc::clone(&world.log.store),
        clock,
        world.service.settings().clone(),
    );
    let service = Arc::new(service.publishing(handing_in));
    let agent = world.agent().await;
    for nth in 1..=3 {
        let soon = Timestamp::from_micros(world.now().micros() + 1_000_000).unwrap().to_string();
        let task = world.task().await;
        agent.on(&task, "requests", json!({"kind": "feedback", "title": "?", "expires_at": soon})).await.expect(201);
        at_length("it has expired", async || service.close_what_is_due(10).await.unwrap().expired == 1).await;
        at_length("it is answered", async || counters.published.get() + counters.unpublished.get() == 3 * nth).await;
    }
    stop.cancel();
    publishing.await.unwrap();
    assert_eq!((counters.unpublished.get(), counters.published.get()), (3, 6), "the rest is left to the sweep");
    assert_eq!(stream.taken.load(Ordering::SeqCst), 6);
    store.close().await;
    world.prove().await;
}
