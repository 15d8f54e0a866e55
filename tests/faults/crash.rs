//! PostgreSQL itself is killed, and recovers.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use mandate::dev::postgres::{ManagedPostgres, PostgresOptions};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::support::{Client, Reply, World, eventually};

/// How many transactions that write nothing are counted again after the crash.
const BURNED: usize = 20;
/// More events than these, each in a transaction of its own.
const EVENTS: usize = 2 * BURNED;

async fn start(data: &Path) -> ManagedPostgres {
    let options = PostgresOptions { durable: true, fallback: data.join("fallback"), ..PostgresOptions::new(data) };
    ManagedPostgres::start(options).await.unwrap()
}

fn next(reply: &Reply) -> String {
    format!("/{}", reply.next().unwrap().split_once("/acme/").unwrap().1)
}

/// The first transaction that is not counted yet.
async fn counted(world: &World) -> i64 {
    let query = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
    let mut found = None;
    eventually("the database answers", async || {
        found = sqlx::query_scalar(query).fetch_one(&world.db).await.ok();
        found.is_some()
    })
    .await;
    found.unwrap()
}

/// The seqs that a follower meets from `path` on, until there are `EVENTS` of them or no more.
async fn met(client: &Client, mut path: String) -> Vec<i64> {
    let mut met = Vec::new();
    eventually("the follower has met as many events as were written", async || {
        let page = client.get(&path).await;
        path = next(&page);
        met.extend(page.expect(200).as_array().unwrap().iter().map(|entry| entry["seq"].as_i64().unwrap()));
        met.len() >= EVENTS
    })
    .await;
    met
}

/// A crash gives numbers of transactions again that wrote nothing, so a follower must not have been told that it is
/// behind them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_follower_misses_nothing_although_transactions_are_counted_again() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o711)).unwrap();
    let data = folder.path().join("data");
    let mut postgres = start(&data).await;
    postgres.ensure_database("mandate").await.unwrap();
    let world = World::elsewhere(postgres.url("mandate")).await;
    let (agent, vera) = (world.agent().await, world.person("vera"));
    let (task, _) = world.working(&agent).await;
    // What no commit waits for stays in memory, so that the crash loses it.
    sqlx::query("ALTER SYSTEM SET wal_writer_delay = '10s'").execute(&world.db).await.unwrap();
    sqlx::query("SELECT pg_reload_conf()").execute(&world.db).await.unwrap();
    let mut length = 3;
    let mut again = false;
    for _ in 0..5 {
        let mut known = "/agent-events?limit=1000".to_owned();
        eventually("the follower is behind all events", async || {
            let page = vera.get(&known).await;
            known = next(&page);
            page.expect(200).as_array().unwrap().last().is_some_and(|last| last["seq"] == length)
        })
        .await;
        for _ in 0..BURNED {
            let mut burned = world.db.begin().await.unwrap();
            sqlx::query("SELECT pg_current_xact_id()").execute(&mut *burned).await.unwrap();
            burned.rollback().await.unwrap();
        }
        let places = [next(&vera.get(&known).await), next(&vera.get("/agent-events?after=now").await)];
        let before = counted(&world).await;
        kill(Pid::from_raw(postgres.pid()), Signal::SIGKILL).unwrap();
        postgres.ended().await;
        drop(postgres);
        postgres = start(&data).await;
        again |= counted(&world).await < before;
        eventually("the service is ready again", async || vera.get("//readyz").await.status == 200).await;
        for nth in 0..EVENTS {
            let say = json!([{"type": "turn", "payload": {"body": format!("event {nth}")}}]);
            agent.append(&task, say).await.expect(201);
        }
        let expected: Vec<i64> = (length + 1..).take(EVENTS).collect();
        for place in places {
            assert_eq!(met(&vera, place).await, expected);
        }
        length += i64::try_from(EVENTS).unwrap();
        if again {
            break;
        }
    }
    assert!(again, "no crash lost what it was to lose");
    assert_eq!(vera.get(&format!("/agent-tasks/{task}")).await.expect(200)["last_seq"], Value::from(length));
    world.prove().await;
    drop(world);
    postgres.stop().await.unwrap();
}
