//! Processes that are killed.

use mandate::config::Role;
use serde_json::json;
use sqlx::{Connection as _, PgConnection};

use crate::place::{Place, at_length, metric, only, process};
use crate::proof::{archived, end_and_prove, prove};
use crate::support::{World, eventually};
use crate::writers::{Writers, never, settled, tasks};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_killed_server_acknowledged_is_in_the_log_store_in_the_end() {
    let place = Place::shared();
    let world = place.world(|settings| only(settings, &[Role::Api])).await;
    let (agent, tasks) = (world.agent().await, tasks(&world, 4).await);
    let _carries = process(&world, "sink,sweep", &[]).await;
    let mut all = Vec::new();
    for round in 1..=2 {
        let mut server = process(&world, "api,publisher", &[]).await;
        let writers = Writers::start(8, &tasks, |_| agent.at(&server.base), never);
        // Writers of a later round repeat the calls of an earlier one first, which are answered as repeats.
        writers.advance(150 * round).await;
        server.kill();
        let written = writers.end().await;
        assert!(written.iter().any(|writer| writer.unanswered.is_some()), "nothing was in flight");
        all.extend(written);
        settled(&world.db).await;
    }
    end_and_prove(&world, &place, &tasks, &all).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sinks_that_are_killed_in_the_middle_of_batches_lose_nothing() {
    let place = Place::shared();
    let world = place
        .world(|settings| {
            only(settings, &[Role::Api, Role::Publisher, Role::Sweep]);
            settings.log.batch_rows = 50;
            settings.log.topic_partitions = 6;
            // Longer than a group takes to notice that a member is dead, so that the sinks do it, not the sweep.
            settings.archive.patience_seconds = 60;
        })
        .await;
    let (agent, tasks) = (world.agent().await, tasks(&world, 16).await);
    let mut sinks = Vec::new();
    for _ in 0..5 {
        sinks.push(process(&world, "sink", &[]).await);
    }
    let writers = Writers::start(8, &tasks, |_| agent.clone(), never);
    for mut sink in sinks {
        let stored = async || metric(&sink.base, "mandate_log_stored_rows_total").await;
        let before = stored().await;
        at_length("the sink carries rows", async || {
            writers.advance(5).await;
            // The last ones wait until the group has noticed that the others are dead.
            stored().await > before
        })
        .await;
        sink.kill();
    }
    let _last = process(&world, "sink", &[]).await;
    let written = writers.end().await;
    end_and_prove(&world, &place, &tasks, &written).await;
    assert_eq!(world.service.counters().log.republished.get(), 0, "the sinks left something to the sweep");
}

/// Asserts that no log is pruned by half; answers how many are archived.
async fn none_is_half_pruned(world: &World) -> usize {
    let logs = "SELECT t.log_archived_at IS NOT NULL, t.last_seq, count(e.seq)
        FROM agent_runtime.tasks t
        LEFT JOIN agent_runtime.events e ON e.organization_id = t.organization_id AND e.task_id = t.id
        GROUP BY t.organization_id, t.id";
    let logs: Vec<(bool, i64, i64)> = sqlx::query_as(logs).fetch_all(&world.db).await.unwrap();
    for (archived, last_seq, kept) in &logs {
        assert_eq!(*kept, if *archived { 0 } else { *last_seq });
    }
    logs.iter().filter(|(archived, ..)| *archived).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sweeps_that_are_killed_while_they_archive_prune_nothing_by_half_and_leave_nothing() {
    const KILLS: usize = 5;
    let place = Place::shared();
    let world = place
        .world(|settings| {
            only(settings, &[Role::Api, Role::Publisher, Role::Sink]);
            settings.archive.sweep_batch = 4;
        })
        .await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    for task in tasks(&world, 4 * KILLS).await {
        agent.append(&task, json!([{"type": "turn", "payload": {"body": "to be archived"}}])).await.expect(201);
        agent.spend(&task, "r1", 1, 1).await.expect(201);
        agent.finish(&task).await;
    }
    let committed =
        "SELECT (SELECT count(*) FROM agent_runtime.events) + (SELECT count(*) FROM agent_runtime.budget_ledger)";
    let committed: i64 = sqlx::query_scalar(committed).fetch_one(&world.db).await.unwrap();
    let stored = "SELECT (SELECT uniqExact(task_id, seq) FROM agent_task_events) +
        (SELECT uniqExact(report_id) FROM agent_usage)";
    at_length("every log has landed", async || place.in_store(stored).await == committed.to_string()).await;
    let mut db = PgConnection::connect(&world.database_url).await.unwrap();
    let mut archived_before = 0;
    for _ in 0..KILLS {
        // The second in the sweep's order, whose archiving waits for the row.
        let mut lock = db.begin().await.unwrap();
        let nth = "SELECT id FROM agent_runtime.tasks WHERE log_archived_at IS NULL
            ORDER BY organization_id, id OFFSET 1 LIMIT 1 FOR UPDATE";
        let held = sqlx::query_scalar::<_, uuid::Uuid>(nth).fetch_optional(&mut *lock).await.unwrap();
        assert!(held.is_some(), "too few tasks");
        let mut sweep = process(&world, "sweep", &[]).await;
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
            AND application_name = 'mandate' AND wait_event_type = 'Lock' AND query LIKE '%pruned AS%'";
        at_length("the sweep archives", async || {
            sqlx::query_scalar::<_, i64>(waiting).fetch_one(&world.db).await.unwrap() > 0
        })
        .await;
        sweep.kill();
        lock.rollback().await.unwrap();
        settled(&world.db).await;
        let archived = none_is_half_pruned(&world).await;
        assert!(archived > archived_before, "the next sweep goes on where a killed one ended");
        archived_before = archived;
    }
    // The one that died last holds the lease.
    let held: i64 = sqlx::query_scalar("SELECT count(*) FROM agent_runtime.worker_leases WHERE name = 'sweep'")
        .fetch_one(&world.db)
        .await
        .unwrap();
    assert_eq!(held, 1);
    let sweep = process(&world, "sweep", &[]).await;
    archived(&world).await;
    prove(&world, &place, &[]).await;
    eventually("rounds end well", async || metric(&sweep.base, "mandate_sweep_rounds_total").await > 0).await;
    assert_eq!(ada.get("/agent-tasks/?limit=1").await.status, 200);
}
