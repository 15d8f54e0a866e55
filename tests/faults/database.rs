//! A database that ends connections, or hangs.

use std::time::Duration;

use serde_json::json;
use sqlx::Connection as _;
use uuid::Uuid;

use crate::support::{World, eventually};
use crate::writers::{Writers, assert_kept, settled, tasks, unavailable};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn connections_that_the_database_ends_cost_a_503_at_most() {
    let world = World::with(|settings| settings.database.max_connections = 8).await;
    let (agent, tasks) = (world.agent().await, tasks(&world, 8).await);
    let writers = Writers::start(16, &tasks, |_| agent.clone(), unavailable);
    let end_all = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'mandate'";
    let mut ended = 0;
    for _ in 0..10 {
        writers.advance(40).await;
        ended += sqlx::query_scalar::<_, i64>(end_all).fetch_one(&world.db).await.unwrap();
    }
    assert!(ended >= 10, "{ended}");
    writers.advance(100).await;
    let written = writers.end().await;
    settled(&world.db).await;
    assert_kept(&world.db, &written).await;
    world.prove().await;
    for task in &tasks {
        let body = json!({"events": [{"type": "turn", "payload": {"body": "after"}}]});
        agent.post(&format!("/agent-tasks/{task}/events"), &body).await.expect(201);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reads_and_other_calls_meet_ended_connections_as_503_too() {
    let world = World::new().await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let (task, session) = world.working(&agent).await;
    let end_all = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'mandate'";
    for path in [
        "/agent-tasks/".to_owned(),
        "/agent-tasks/waiting".to_owned(),
        "/requests".to_owned(),
        format!("/agent-tasks/{task}"),
        format!("/agent-tasks/{task}/events"),
        format!("/agent-tasks/{task}/usage"),
        format!("/agent-tasks/{task}/sessions"),
    ] {
        sqlx::query(end_all).execute(&world.db).await.unwrap();
        eventually("the read recovers", async || {
            let reply = ada.get(&path).await;
            assert!(reply.status == 200 || unavailable(&reply), "{reply:?}");
            reply.status == 200
        })
        .await;
    }
    sqlx::query(end_all).execute(&world.db).await.unwrap();
    eventually("the heartbeat recovers", async || {
        let reply = agent.post_nothing(&format!("/agent-tasks/{task}/sessions/{session}/heartbeat")).await;
        assert!(reply.status == 200 || unavailable(&reply), "{reply:?}");
        reply.status == 200
    })
    .await;
    sqlx::query(end_all).execute(&world.db).await.unwrap();
    eventually("the service is ready again", async || {
        let reply = ada.get("//readyz").await;
        assert!(reply.status == 200 || unavailable(&reply), "{reply:?}");
        reply.status == 200
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_call_that_the_database_holds_up_is_503_in_time_and_then_wholly_done_or_not() {
    let world = World::with(|settings| settings.server.request_timeout_seconds = 1).await;
    let agent = world.agent().await;
    let (task, session) = world.working(&agent).await;
    let path = format!("/agent-tasks/{task}/events");
    let id = Uuid::from_u128(7);
    let body = json!({"events": [{"event_id": id, "type": "turn", "payload": {"body": "late"}}]});

    let mut held = sqlx::PgConnection::connect(&world.database_url).await.unwrap();
    let mut lock = held.begin().await.unwrap();
    sqlx::query("SELECT id FROM agent_runtime.tasks FOR UPDATE").execute(&mut *lock).await.unwrap();
    let begun = tokio::time::Instant::now();
    let reply = agent.post(&path, &body).await;
    reply.refused(503, "unavailable");
    assert!(reply.header("retry-after").is_some(), "{reply:?}");
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    // A heartbeat never waits for the task's row, nor does a read.
    agent.post_nothing(&format!("/agent-tasks/{task}/sessions/{session}/heartbeat")).await.expect(200);
    assert_eq!(agent.get(&format!("/agent-tasks/{task}")).await.expect(200)["last_seq"], 3);
    lock.rollback().await.unwrap();

    settled(&world.db).await;
    world.prove().await;
    let reply = agent.post(&path, &body).await;
    assert!([200, 201].contains(&reply.status), "{reply:?}");
    let log = world.log(&task).await;
    assert_eq!(log.iter().filter(|event| event["event_id"] == json!(id)).count(), 1);
    assert_eq!(log.len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn probes_tell_a_database_that_hangs_sooner_than_callers_would() {
    let world = World::with(|settings| {
        settings.server.request_timeout_seconds = 600;
        settings.database.statement_timeout_seconds = 600;
    })
    .await;
    let ada = world.person("ada");
    let mut held = sqlx::PgConnection::connect(&world.database_url).await.unwrap();
    let mut lock = held.begin().await.unwrap();
    let hang =
        "LOCK TABLE public._sqlx_migrations, agent_runtime.tasks, agent_runtime.sessions IN ACCESS EXCLUSIVE MODE";
    sqlx::query(hang).execute(&mut *lock).await.unwrap();
    let patience = Duration::from_secs(30);
    let ready = tokio::time::timeout(patience, ada.get("//readyz")).await.expect("/readyz waits with the database");
    assert!(unavailable(&ready), "{ready:?}");
    let metrics = tokio::time::timeout(patience, ada.get("//metrics")).await.expect("/metrics waits with the database");
    assert!(metrics.status == 200 && metrics.text.contains("mandate_open_sessions"), "{metrics:?}");
    lock.rollback().await.unwrap();
    eventually("the service is ready again", async || ada.get("//readyz").await.status == 200).await;
}
