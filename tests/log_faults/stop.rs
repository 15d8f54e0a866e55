//! A server that is told to stop while it has much to hand over.

use std::time::Duration;

use futures::future::join_all;
use mandate::config::Role;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::time::Instant;
use uuid::Uuid;

use crate::place::{Place, metric, only, process};
use crate::proof::end_and_prove;
use crate::servers::KafkaServer;
use crate::writers::{Written, tasks};

const GRACE: u64 = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn with_10_000_unsent_rows_and_no_broker_the_process_ends_in_time_and_all_of_it_lands_later() {
    let mut kafka = KafkaServer::start();
    let place = Place::shared().on_kafka(kafka.address());
    let world = place
        .world(|settings| {
            only(settings, &[Role::Api]);
            settings.log.publish_timeout_seconds = 60;
        })
        .await;
    let (agent, tasks) = (world.agent().await, tasks(&world, 10).await);
    let grace = GRACE.to_string();
    let roles = "api,publisher,sink,sweep,expiry";
    let mut server = process(&world, roles, &[("MANDATE_SERVER__SHUTDOWN_GRACE_SECONDS", &grace)]).await;
    kafka.kill();
    let there = agent.at(&server.base);
    let all = join_all(tasks.iter().map(async |task| {
        let mut written = Written::default();
        for _ in 0..10 {
            let ids: Vec<Uuid> = (0..100).map(|_| Uuid::new_v4()).collect();
            let event = |id: &Uuid| json!({"event_id": id, "type": "turn", "payload": {"body": "unsent"}});
            let events: Vec<Value> = ids.iter().map(event).collect();
            there.append(task, json!(events)).await.expect(201);
            written.events.extend(ids);
        }
        written
    }))
    .await;
    assert_eq!(metric(&server.base, "mandate_log_published_rows_total").await, 0);
    assert_eq!(metric(&server.base, "mandate_log_unpublished_rows_total").await, 0, "all of it still waits");
    let begun = Instant::now();
    server.signal(Signal::SIGTERM);
    assert_eq!(server.exit_code(Duration::from_secs(GRACE + 2)).await, Some(0), "{}", server.log());
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(GRACE), "it took {took:?}:\n{}", server.log());
    assert!(server.log().contains("ended=Drained"), "{}", server.log());
    kafka.start_again();
    let _again = process(&world, roles, &[]).await;
    end_and_prove(&world, &place, &tasks, &all).await;
}
