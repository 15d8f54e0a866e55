//! A server that is told to stop: while it has much to hand over, and while what it waits for never answers.

use std::time::Duration;

use futures::future::join_all;
use mandate::config::Role;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use uuid::Uuid;

use crate::place::{Place, at_length, metric, only, process};
use crate::process::Process;
use crate::proof::end_and_prove;
use crate::servers::KafkaServer;
use crate::writers::{Written, tasks};

const GRACE: u64 = 10;
/// A grace that nobody waits for who has nothing to hand over.
const LONG_GRACE: (&str, &str) = ("MANDATE_SERVER__SHUTDOWN_GRACE_SECONDS", "60");
/// How soon such a process ends.
const SOON: Duration = Duration::from_secs(15);

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

/// Asks it to end, and waits until it has, well before its grace is over.
async fn ends_soon(mut server: Process, what: &str) {
    let begun = Instant::now();
    server.signal(Signal::SIGTERM);
    assert_eq!(server.exit_code(SOON).await, Some(0), "{what}: {}", server.log());
    println!("{what}: it ended after {:?}", begun.elapsed());
    assert!(server.log().contains("ended=Drained"), "{what}: {}", server.log());
}

/// The next `count` connections that are made there; nobody answers on them.
async fn callers(listener: &TcpListener, count: usize) -> Vec<TcpStream> {
    let mut callers = Vec::new();
    for _ in 0..count {
        let caller = tokio::time::timeout(Duration::from_secs(30), listener.accept()).await;
        callers.push(caller.expect("nobody calls").unwrap().0);
    }
    callers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn while_the_broker_is_away_or_hangs_a_process_without_rows_ends_at_once_in_every_role() {
    let world = Place::shared().world(|settings| only(settings, &[Role::Api])).await;
    // One that prepares the topics, and the sink's consumer.
    for (roles, count) in
        [("sweep", 1), ("sink", 2), ("api,publisher,expiry", 1), ("api,publisher,sink,sweep,expiry", 2)]
    {
        for hangs in [true, false] {
            let broker = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("kafka://{}", broker.local_addr().unwrap());
            let settings =
                [LONG_GRACE, ("MANDATE_LOG__STREAM_URL", url.as_str()), ("MANDATE_DATABASE__MIGRATE_AT_START", "true")];
            let server = process(&world, roles, &settings).await;
            // It waits for an answer, or has met nobody and waits to try again.
            let waiting = (callers(&broker, count).await, broker);
            let _waiting = hangs.then_some(waiting);
            ends_soon(server, &format!("{roles}, the broker hangs: {hangs}")).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn while_the_log_store_hangs_a_process_without_rows_ends_at_once() {
    let world = Place::shared().world(|settings| only(settings, &[Role::Api])).await;
    // The sweep asks about it.
    tasks(&world, 1).await;
    for (prepares, roles) in [("false", "sweep"), ("true", "api,publisher,expiry")] {
        let store = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("clickhouse://default@{}/mandate", store.local_addr().unwrap());
        let settings = [
            LONG_GRACE,
            ("MANDATE_LOG__STREAM_URL", "direct:"),
            ("MANDATE_LOG__STORE_URL", url.as_str()),
            ("MANDATE_DATABASE__MIGRATE_AT_START", prepares),
        ];
        let server = process(&world, roles, &settings).await;
        let _callers = callers(&store, 1).await;
        ends_soon(server, roles).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_process_without_rows_ends_soon_when_the_broker_hangs_with_which_it_worked() {
    let kafka = KafkaServer::start();
    let place = Place::shared().on_kafka(kafka.address());
    let world = place.world(|settings| only(settings, &[Role::Api])).await;
    let server = process(&world, "api,publisher,sink,sweep,expiry", &[LONG_GRACE]).await;
    let (agent, tasks) = (world.agent().await, tasks(&world, 1).await);
    agent.at(&server.base).append(&tasks[0], json!([{"type": "turn", "payload": {"body": "sent"}}])).await.expect(201);
    let landed = "SELECT count() FROM agent_task_events WHERE type = 'turn'";
    at_length("the event has landed", async || place.in_store(landed).await == "1").await;
    kafka.freeze();
    ends_soon(server, "all roles").await;
    kafka.thaw();
}
