//! A commit between the sweep's proof of a log and its archiving: the log that was proven is not the log any more.

use mandate::app::store_options;
use mandate::store::{Store, SweptTask};
use serde_json::{Value, json};
use sqlx::Connection as _;

use crate::archive::closed_task;
use crate::combination::{Combination, Place, key, landed};
use crate::support::{World, eventually};

/// A closed task, and how the sweep saw it before a late event.
async fn proven(world: &World, store: &Store) -> (String, SweptTask) {
    let agent = world.agent().await;
    let task = closed_task(world, &agent).await;
    landed(world, &task).await;
    (task.clone(), seen(world, store, &task).await)
}

async fn seen(world: &World, store: &Store, task: &str) -> SweptTask {
    let row = world.person("ada").get(&format!("/agent-tasks/{task}")).await.expect(200).clone();
    store.swept_tasks(&[key(world, &row)]).await.unwrap().remove(0)
}

/// What may still be said of a closed task.
fn late() -> Value {
    json!([{"type": "tool.called", "payload": {"tool": "late", "mutating": true}}])
}

/// The archiving statement, as the sweep calls it.
async fn archives(world: &World, store: &Store, task: &SweptTask) -> bool {
    let now = world.service.clock().now();
    store.archive(task, now, now).await.unwrap()
}

/// Every event is in Postgres, `last_seq` of them, and the log is open.
async fn is_untouched(world: &World, task: &str, last_seq: i64) {
    let row = world.person("ada").get(&format!("/agent-tasks/{task}")).await.expect(200).clone();
    assert_eq!((&row["log_archived_at"], &row["last_seq"]), (&Value::Null, &json!(last_seq)));
    let kept: Vec<i64> =
        sqlx::query_scalar("SELECT seq FROM agent_runtime.events ORDER BY seq").fetch_all(&world.db).await.unwrap();
    assert_eq!(kept, (1..=last_seq).collect::<Vec<_>>());
    world.prove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_moved_since_it_was_proven_is_not_archived() {
    let world = Place::new(Combination::DirectPostgres).world().await;
    let store = Store::connect(&store_options(&world.settings)).unwrap();
    let (task, stale) = proven(&world, &store).await;
    world.agent().await.append(&task, late()).await.expect(201);
    let fresh = seen(&world, &store, &task).await;
    assert_eq!(fresh.last_seq, stale.last_seq + 1);
    let halves = [
        SweptTask { last_seq: stale.last_seq, ..fresh.clone() },
        SweptTask { log_digest: stale.log_digest, ..fresh.clone() },
    ];
    for other in [&stale, &halves[0], &halves[1]] {
        assert!(!archives(&world, &store, other).await, "{other:?}");
        is_untouched(&world, &task, fresh.last_seq).await;
    }
    landed(&world, &task).await;
    // It was that alone which was in the way.
    assert!(archives(&world, &store, &fresh).await);
    assert_eq!(world.log(&task).await.len(), usize::try_from(fresh.last_seq).unwrap());
    store.close().await;
}

/// Holds up every commit of an event in its middle: the task's row is changed, the transaction open.
const HELD: &str = "
    CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END';
    CREATE TRIGGER held AFTER UPDATE ON agent_runtime.tasks
        FOR EACH ROW WHEN (OLD.last_seq <> NEW.last_seq) EXECUTE FUNCTION held()";

/// How many statements with these words wait for a lock of this kind.
async fn waiting(world: &World, kind: &str, words: &str) -> i64 {
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
        AND wait_event_type = 'Lock' AND wait_event = ANY (string_to_array($1, ',')) AND query LIKE $2";
    sqlx::query_scalar(waiting).bind(kind).bind(format!("%{words}%")).fetch_one(&world.db).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_archive_that_waits_for_a_late_commit_sees_it_and_lets_the_log_be() {
    let world = Place::new(Combination::DirectPostgres).world().await;
    let store = Store::connect(&store_options(&world.settings)).unwrap();
    let (task, stale) = proven(&world, &store).await;
    sqlx::raw_sql(HELD).execute(&world.db).await.unwrap();
    let mut holder = sqlx::PgConnection::connect(&world.database_url).await.unwrap();
    sqlx::query("SELECT pg_advisory_lock(4711)").execute(&mut holder).await.unwrap();
    let agent = world.agent().await;
    let appending = tokio::spawn({
        let task = task.clone();
        async move { agent.append(&task, late()).await.expect(201).clone() }
    });
    eventually("the commit is held", async || waiting(&world, "advisory", "").await == 1).await;
    let archiving = archives(&world, &store, &stale);
    let releasing = async {
        eventually("the archive waits for the commit", async || {
            waiting(&world, "transactionid,tuple", "feed_archive_numbers").await == 1
        })
        .await;
        sqlx::query("SELECT pg_advisory_unlock(4711)").execute(&mut holder).await.unwrap();
    };
    let (archived, ()) = tokio::join!(archiving, releasing);
    assert!(!archived, "archived over a commit that came before it");
    appending.await.unwrap();
    is_untouched(&world, &task, stale.last_seq + 1).await;
    // Proven as it is now, it goes.
    landed(&world, &task).await;
    assert!(archives(&world, &store, &seen(&world, &store, &task).await).await);
    holder.close().await.unwrap();
    store.close().await;
}
