//! What idle tasks cost the sweep.

use mandate::config::{Role, Settings};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

use crate::combination::{Combination, Place};
use crate::support::{World, eventually};

/// So many copies of the one task, which nothing works and the log store has whole.
async fn idle_tasks(world: &World, from: i64, to: i64) {
    let mut db = PgConnection::connect(&world.database_url).await.unwrap();
    // The guards would want each to have begun with an event.
    db.execute("SET session_replication_role = replica").await.unwrap();
    let columns = "SELECT attname::text FROM pg_attribute
        WHERE attrelid = 'agent_runtime.tasks'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum";
    let columns: Vec<String> = sqlx::query_scalar(columns).fetch_all(&mut db).await.unwrap();
    let values: Vec<&str> = columns
        .iter()
        .map(|column| match column.as_str() {
            "id" => "gen_random_uuid()",
            "short_number" => "n",
            other => other,
        })
        .collect();
    let (columns, values) = (columns.join(", "), values.join(", "));
    // In parts: a long transaction keeps the whole server from pruning, which tests of HOT updates elsewhere would see.
    for first in (from..=to).step_by(2_000) {
        let last = to.min(first + 1_999);
        let insert = format!(
            "INSERT INTO agent_runtime.tasks ({columns})
             SELECT {values} FROM agent_runtime.tasks, generate_series({first}, {last}) AS n WHERE short_number = 1"
        );
        db.execute(AssertSqlSafe(insert)).await.unwrap();
    }
    db.execute("ANALYZE agent_runtime.tasks").await.unwrap();
    db.close().await.unwrap();
}

/// Blocks of the tasks and their indexes that all backends have asked for so far. A backend hands in its counts before
/// it is gone.
async fn blocks(world: &World) -> i64 {
    let others = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'";
    let mut db = PgConnection::connect(&world.database_url).await.unwrap();
    for _ in 0..1_000 {
        let there: i64 = sqlx::query_scalar(others).fetch_one(&mut db).await.unwrap();
        if there == 0 {
            let blocks = "SELECT (heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read)::bigint
                FROM pg_statio_user_tables WHERE schemaname = 'agent_runtime' AND relname = 'tasks'";
            return sqlx::query_scalar(blocks).fetch_one(&mut db).await.unwrap();
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("somebody is still connected");
}

/// What a round of the sweep and a scrape ask for.
async fn cost_of_a_round(world: World) -> (World, i64) {
    world.stop().await;
    world.db.close().await;
    let before = blocks(&world).await;
    let world = world.restarted().await;
    let swept = world.sweep().await;
    assert_eq!((swept.compared, swept.elsewhere), (0, false));
    world.anyone().get("//metrics").await.expect(200);
    world.stop().await;
    world.db.close().await;
    let cost = blocks(&world).await - before;
    (world.restarted().await, cost)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_over_idle_tasks_costs_the_same_however_many_there_are() {
    // Nothing else looks at tasks meanwhile.
    let alone = |settings: &mut Settings| settings.workers.roles = vec![Role::Api];
    let world = Place::new(Combination::DirectPostgres).world_with(alone).await;
    world.spoil().await;
    sqlx::query("ALTER TABLE agent_runtime.tasks SET (autovacuum_enabled = false)").execute(&world.db).await.unwrap();
    let (task, agent) = (world.task().await, world.agent().await);
    agent.append(&task, json!([{"type": "turn", "payload": {"body": "x"}}])).await.expect(201);
    eventually("the log store has it", async || {
        world.sweep().await;
        let idle = "SELECT NOT dirty AND verified_seq = last_seq FROM agent_runtime.tasks";
        sqlx::query_scalar::<_, bool>(idle).fetch_one(&world.db).await.unwrap()
    })
    .await;
    idle_tasks(&world, 2, 100).await;
    let (world, few) = cost_of_a_round(world).await;
    idle_tasks(&world, 101, 100_000).await;
    let (world, many) = cost_of_a_round(world).await;
    let open: i64 = sqlx::query_scalar("SELECT count(*) FROM agent_runtime.tasks WHERE outcome IS NULL")
        .fetch_one(&world.db)
        .await
        .unwrap();
    assert_eq!(open, 100_000);
    // An index may be a level or two deeper.
    assert!(many <= few + 8, "{few} blocks over 100 tasks, {many} over 100,000");
    // That a look at each would have been counted.
    world.db.close().await;
    world.stop().await;
    assert!(blocks(&world).await > 1_000 + many);
}
