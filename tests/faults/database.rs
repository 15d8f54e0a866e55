//! A database that ends connections, or hangs.

use std::time::Duration;

use mandate::domain::time::Timestamp;
use mandate::service::ServiceError;
use serde_json::{Value, json};
use sqlx::Connection as _;
use uuid::Uuid;

use crate::support::{Client, World, eventually};
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

/// Asks on a task for what expires in two seconds.
async fn asks(world: &World, agent: &Client, task: &str) {
    let soon = Timestamp::from_micros(world.now().micros() + 2_000_000).unwrap().to_string();
    agent.on(task, "requests", json!({"kind": "feedback", "title": "?", "expires_at": soon})).await.expect(201);
}

/// How many requests expired and were not closed yet.
async fn overdue(world: &World) -> i64 {
    let due = "SELECT count(*) FROM agent_runtime.requests WHERE status = 'open' AND expires_at <= clock_timestamp()";
    sqlx::query_scalar(due).fetch_one(&world.db).await.unwrap()
}

async fn closed(world: &World, task: &str) -> bool {
    world.person("ada").get(&format!("/agent-tasks/{task}")).await.expect(200)["status"] == "closed"
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_that_somebody_holds_keep_no_other_from_being_closed_by_time() {
    let world = World::with(|settings| {
        settings.server.request_timeout_seconds = 600;
        settings.database.statement_timeout_seconds = 600;
    })
    .await;
    let agent = world.agent().await;
    // The row of the one is held, and of the other the row of its parent, to which its close is told.
    let (held, parent) = (world.task().await, world.task().await);
    let child = json!({"agent_slug": world.seed.agent.slug, "title": "A part", "description": ""});
    let child = agent.on(&parent, "children", child).await.expect(201).clone();
    let child = child["short_id"].as_str().unwrap();
    let mut others = Vec::new();
    for _ in 0..6 {
        others.push(world.task().await);
    }
    for task in [&held, child].into_iter().chain(others.iter().map(String::as_str)) {
        asks(&world, &agent, task).await;
    }
    eventually("all are overdue", async || overdue(&world).await == 8).await;
    let mut db = sqlx::PgConnection::connect(&world.database_url).await.unwrap();
    let mut lock = db.begin().await.unwrap();
    let lock_rows = "SELECT id FROM agent_runtime.tasks WHERE short_number = ANY($1) FOR UPDATE";
    let numbers = [&held, &parent].map(|task| task.trim_start_matches("T-").parse::<i64>().unwrap());
    sqlx::query(lock_rows).bind(&numbers[..]).execute(&mut *lock).await.unwrap();
    let patience = Duration::from_secs(30);
    let step = tokio::time::timeout(patience, world.step()).await.expect("the step waits with those that are held");
    assert_eq!((step.expired, step.failed), (6, 2), "{step:?}");
    for task in &others {
        assert!(closed(&world, task).await, "{task}");
    }
    // What is due later is not held up either, and nobody waits twice for what is held.
    let later = world.task().await;
    asks(&world, &agent, &later).await;
    eventually("it is overdue too", async || overdue(&world).await == 3).await;
    let step = tokio::time::timeout(patience, world.step()).await.expect("the step waits with those that are held");
    assert_eq!((step.expired, step.failed), (1, 0), "{step:?}");
    assert!(closed(&world, &later).await && !closed(&world, &held).await && !closed(&world, child).await);
    lock.rollback().await.unwrap();
    eventually("those are closed too", async || closed(&world, &held).await && closed(&world, child).await).await;
    assert!(world.step().await.is_idle());
    settled(&world.db).await;
    world.prove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_time_closes_is_closed_although_one_kind_of_it_cannot_be_looked_for() {
    let world = World::new().await;
    let set_limit = "UPDATE agent_directory.agents SET task_timeout_seconds = $1";
    sqlx::query(set_limit).bind(Some(600)).execute(&world.db).await.unwrap();
    let agent = world.agent().await;
    let (timed, _) = world.working(&agent).await;
    sqlx::query(set_limit).bind(None::<i32>).execute(&world.db).await.unwrap();
    let asked = world.task().await;
    asks(&world, &agent, &asked).await;
    // A session that is to be looked at, and cannot be.
    sqlx::raw_sql(
        "UPDATE agent_runtime.sessions SET check_at = now();
         CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'this index cannot be read'; END $$;
         CREATE TRIGGER refuse BEFORE UPDATE OF check_at ON agent_runtime.sessions
            FOR EACH ROW EXECUTE FUNCTION public.refuse()",
    )
    .execute(&world.db)
    .await
    .unwrap();
    eventually("the request is overdue", async || overdue(&world).await == 1).await;
    world.skew_clock(610);
    let step = world.service.close_what_is_due(100).await;
    assert!(matches!(step, Err(ServiceError::Internal(_))), "{step:?}");
    assert_eq!((closed(&world, &asked).await, closed(&world, &timed).await), (true, true));
    let reason: Value = world.person("ada").get(&format!("/agent-tasks/{timed}")).await.expect(200)["outcome"].clone();
    assert_eq!(reason, "exceeded_ceiling");
    world.prove().await;
}
