//! The stream that is none.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mandate::log::direct::DirectStream;
use mandate::log::{Batch, LogStore, Pace, Published, Stream as _};
use sqlx::Executor as _;

use crate::store::Faulty;
use crate::support::World;

fn direct(store: Arc<dyn LogStore>, timeout: Duration) -> DirectStream {
    DirectStream::new(store, timeout, 300, Duration::from_millis(20))
}

#[tokio::test]
async fn rows_go_straight_to_the_store() {
    let world = World::bare().await;
    let stream = direct(Arc::clone(&world.store) as _, Duration::from_secs(20));
    assert_eq!(stream.pace(), Pace { in_flight: 1, linger: Duration::from_millis(20), rows: 300 });
    stream.prepare().await.unwrap();
    let mut batch = world.batch(2, 5);
    batch.usage.push(world.usage(batch.events[0].task_id, 1));
    for _ in 0..2 {
        let published = stream.publish(batch.clone()).await;
        assert_eq!(published, Published { delivered: 11, ..Published::default() });
    }
    assert_eq!(world.stored().await, (10, 1));
    assert_eq!(stream.publish(Batch::default()).await, Published::default());
}

#[tokio::test]
async fn refused_rows_are_counted_and_the_rest_lands() {
    let world = World::bare().await;
    world.db.execute("ALTER TABLE agent_log.agent_task_events ADD CONSTRAINT odd CHECK (seq <> 3)").await.unwrap();
    let stream = direct(Arc::clone(&world.store) as _, Duration::from_secs(20));
    let published = stream.publish(world.batch(2, 5)).await;
    assert_eq!((published.delivered, published.failed, published.refused), (8, 2, 2));
    assert!(published.fault.unwrap().contains("odd"));
    assert_eq!(world.stored().await, (8, 0));
}

#[tokio::test]
async fn a_store_that_comes_back_gets_the_rows_and_one_that_does_not_fails_them_in_time() {
    let world = World::bare().await;
    let store = Faulty::over(&world.store);
    store.away.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    let stream = direct(Arc::clone(&store) as _, Duration::from_millis(700));
    let published = stream.publish(world.batch(1, 4)).await;
    assert_eq!((published.delivered, published.failed, published.refused), (0, 4, 0));
    assert!(published.fault.unwrap().contains("away"));
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert!(store.asked() > 2, "it was tried {} times only", store.asked());
    assert_eq!(world.stored().await, (0, 0));

    let tries = store.asked();
    let stream = direct(Arc::clone(&store) as _, Duration::from_secs(30));
    let comes_back = async {
        while store.asked() < tries + 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        store.away.store(false, Ordering::SeqCst);
    };
    let (published, ()) = tokio::join!(stream.publish(world.batch(1, 4)), comes_back);
    assert_eq!(published, Published { delivered: 4, ..Published::default() });
    assert_eq!(world.stored().await, (4, 0));
}
