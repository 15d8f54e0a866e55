//! A server that is told to stop.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;
use sqlx::{Connection as _, PgConnection, Postgres, Transaction};

use crate::process::Process;
use crate::support::{World, eventually};
use crate::writers::{Writers, assert_kept, settled, tasks, unavailable};

/// Holds every task's row, so that a write waits.
async fn hold(db: &mut PgConnection) -> Transaction<'_, Postgres> {
    let mut lock = db.begin().await.unwrap();
    sqlx::query("SELECT id FROM agent_runtime.tasks FOR UPDATE").execute(&mut *lock).await.unwrap();
    lock
}

/// Waits until a write of the service waits for a row.
async fn waits(world: &World) {
    let waiting = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'mandate' AND wait_event_type = 'Lock'";
    eventually("a write waits", async || sqlx::query_scalar::<_, i64>(waiting).fetch_one(&world.db).await.unwrap() > 0)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_call_in_flight_is_answered_before_the_server_stops_and_nobody_else_comes_in() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, session) = world.working(&agent).await;
    let mut server = Process::start(&world, &[]).await;
    let mut db = PgConnection::connect(&world.database_url).await.unwrap();
    let lock = hold(&mut db).await;
    let there = agent.at(&server.base);
    let call = tokio::spawn(async move { there.say(&task, &session, "in flight").await });
    waits(&world).await;
    server.signal(Signal::SIGTERM);
    server.wait_for("draining").await;
    eventually("new connections are refused", async || server.refuses_connections().await).await;
    assert!(!call.is_finished());
    lock.rollback().await.unwrap();
    call.await.unwrap().expect(201);
    assert_eq!(server.exit_code(Duration::from_secs(10)).await, Some(0), "{}", server.log());
    world.prove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_that_stops_under_writers_loses_nothing_and_exits_with_0() {
    let world = World::new().await;
    let (agent, tasks) = (world.agent().await, tasks(&world, 4).await);
    let mut server = Process::start(&world, &[]).await;
    let base = server.base.clone();
    let writers = Writers::start(8, &tasks, |_| agent.at(&base), unavailable);
    writers.advance(200).await;
    server.signal(Signal::SIGTERM);
    assert_eq!(server.exit_code(Duration::from_secs(10)).await, Some(0), "{}", server.log());
    let written = writers.end().await;
    assert_kept(&world.db, &written).await;
    world.prove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_second_signal_ends_the_server_at_once() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, session) = world.working(&agent).await;
    let mut server = Process::start(&world, &[]).await;
    let mut db = PgConnection::connect(&world.database_url).await.unwrap();
    let lock = hold(&mut db).await;
    let there = agent.at(&server.base);
    let call = tokio::spawn(async move {
        let body = json!({"session_id": session, "events": [{"type": "turn", "payload": {"body": "cut off"}}]});
        there.try_post(&format!("/agent-tasks/{task}/events"), &body).await
    });
    waits(&world).await;
    server.signal(Signal::SIGTERM);
    server.wait_for("draining").await;
    server.signal(Signal::SIGTERM);
    assert_eq!(server.exit_code(Duration::from_secs(2)).await, Some(143), "{}", server.log());
    assert!(call.await.unwrap().is_none(), "an answer from a server that is gone");
    lock.rollback().await.unwrap();
    settled(&world.db).await;
    world.prove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_database_that_hangs_does_not_keep_the_server_beyond_its_grace() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, session) = world.working(&agent).await;
    let mut server = Process::start(&world, &[("MANDATE_SERVER__SHUTDOWN_GRACE_SECONDS", "1")]).await;
    let mut db = PgConnection::connect(&world.database_url).await.unwrap();
    let lock = hold(&mut db).await;
    let there = agent.at(&server.base);
    let call = tokio::spawn(async move {
        let body = json!({"session_id": session, "events": [{"type": "turn", "payload": {"body": "held"}}]});
        there.try_post(&format!("/agent-tasks/{task}/events"), &body).await
    });
    waits(&world).await;
    server.signal(Signal::SIGTERM);
    assert_eq!(server.exit_code(Duration::from_secs(5)).await, Some(0), "{}", server.log());
    assert!(call.await.unwrap().is_none());
    lock.rollback().await.unwrap();
    settled(&world.db).await;
    world.prove().await;
}
