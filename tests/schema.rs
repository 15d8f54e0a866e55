//! The schema, as the catalogue tells it.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

#[path = "api/support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};

use mandate::config::Settings;
use mandate::domain::event::{ActorKind, Channel};
use mandate::domain::outcome::Outcome;
use mandate::domain::principal::Role;
use mandate::domain::request::{RequestKind, RequestStatus};
use mandate::domain::status::{Control, Status};
use mandate::store::Store;
use serde_json::json;
use sqlx::{Connection as _, PgConnection};
use support::{World, database, program};

const SCHEMAS: &str = "n.nspname IN ('agent_runtime', 'agent_directory', 'agent_log')";

async fn fresh() -> PgConnection {
    PgConnection::connect(&database::create().await).await.unwrap()
}

/// Rows of two texts.
async fn pairs(db: &mut PgConnection, query: String) -> BTreeSet<(String, String)> {
    sqlx::query_as(sqlx::AssertSqlSafe(query)).fetch_all(db).await.unwrap().into_iter().collect()
}

fn set(pairs: &[(&str, &str)]) -> BTreeSet<(String, String)> {
    pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

#[tokio::test]
async fn every_key_and_unique_index_leads_with_the_organization() {
    let mut db = fresh().await;
    let others = format!(
        "SELECT c.relname::text, i.relname::text FROM pg_index x JOIN pg_class c ON c.oid = x.indrelid
         JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
         LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = x.indkey[0]
         WHERE {SCHEMAS} AND x.indisunique AND a.attname IS DISTINCT FROM 'organization_id'"
    );
    // An organization is where its own row lives, and its slug names it across the whole installation. A lease is of
    // the whole installation too, and so is the cluster that counts its transactions.
    let own = set(&[
        ("feed_home", "feed_home_pkey"),
        ("organizations", "organizations_pkey"),
        ("organizations", "organizations_slug_key"),
        ("worker_leases", "worker_leases_pkey"),
    ]);
    assert_eq!(pairs(&mut db, others).await, own);
    let all = format!(
        "SELECT c.relname::text, i.relname::text FROM pg_index x JOIN pg_class c ON c.oid = x.indrelid
         JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE {SCHEMAS} AND x.indisunique"
    );
    assert!(pairs(&mut db, all).await.len() > 20);
}

#[tokio::test]
async fn every_table_has_a_primary_key() {
    let mut db = fresh().await;
    let without = format!(
        "SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE {SCHEMAS} AND c.relkind IN ('r', 'p')
            AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'p')"
    );
    assert_eq!(pairs(&mut db, without).await, set(&[]));
}

#[tokio::test]
async fn every_foreign_key_leads_with_the_organization_and_none_leaves_its_schema() {
    let mut db = fresh().await;
    let foreign = |condition: &str| {
        format!(
            "SELECT c.relname::text, k.conname::text FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
             JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_class f ON f.oid = k.confrelid
             JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.conkey[1]
             JOIN pg_attribute b ON b.attrelid = f.oid AND b.attnum = k.confkey[1]
             WHERE {SCHEMAS} AND k.contype = 'f' AND {condition}"
        )
    };
    assert!(pairs(&mut db, foreign("true")).await.len() > 10);
    assert_eq!(pairs(&mut db, foreign("a.attname <> 'organization_id'")).await, set(&[]));
    let target = "b.attname <> 'organization_id' AND NOT (f.relname = 'organizations' AND b.attname = 'id')";
    assert_eq!(pairs(&mut db, foreign(target)).await, set(&[]));
    assert_eq!(pairs(&mut db, foreign("c.relnamespace <> f.relnamespace")).await, set(&[]));
}

#[tokio::test]
async fn only_the_discovery_of_due_work_and_of_a_client_crosses_organizations() {
    let mut db = fresh().await;
    let others = format!(
        "SELECT c.relname::text, i.relname::text FROM pg_index x JOIN pg_class c ON c.oid = x.indrelid
         JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
         LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = x.indkey[0]
         WHERE {SCHEMAS} AND NOT x.indisunique AND a.attname IS DISTINCT FROM 'organization_id'"
    );
    let known = set(&[
        ("tasks", "tasks_timeout_due"),
        ("tasks", "tasks_to_archive"),
        ("sessions", "sessions_check_due"),
        ("requests", "requests_due"),
        ("credentials", "credentials_client"),
        ("artifacts", "artifacts_unreferenced"),
        ("artifact_uploads", "artifact_uploads_due"),
    ]);
    assert_eq!(pairs(&mut db, others).await, known);
}

#[tokio::test]
async fn every_row_of_the_runtime_names_its_organization() {
    let mut db = fresh().await;
    let without =
        "SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspname = 'agent_runtime' AND c.relkind IN ('r', 'p') AND NOT EXISTS (
            SELECT FROM pg_attribute a
            WHERE a.attrelid = c.oid AND a.attname = 'organization_id' AND a.attnotnull)";
    let own = set(&[("agent_runtime", "feed_home"), ("agent_runtime", "worker_leases")]);
    assert_eq!(pairs(&mut db, without.to_owned()).await, own);
}

/// The names in quotes in a CHECK that lists them.
fn quoted(definition: &str) -> Vec<String> {
    definition.split('\'').skip(1).step_by(2).map(str::to_owned).collect()
}

#[tokio::test]
async fn every_check_on_a_closed_set_lists_the_names_of_the_domain() {
    let mut db = fresh().await;
    let query = format!(
        "SELECT c.relname || '.' || a.attname, pg_get_constraintdef(k.oid) FROM pg_constraint k
         JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
         JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.conkey[1]
         WHERE {SCHEMAS} AND k.contype = 'c' AND cardinality(k.conkey) = 1
            AND pg_get_constraintdef(k.oid) LIKE '%ARRAY[%'"
    );
    let mut found: Vec<(String, Vec<String>)> =
        pairs(&mut db, query).await.into_iter().map(|(column, check)| (column, quoted(&check))).collect();
    found.sort();
    let mut expected: Vec<(String, Vec<String>)> = [
        ("events.actor_kind", ActorKind::NAMES),
        ("events.channel", Channel::NAMES),
        ("members.roles", Role::NAMES),
        ("requests.kind", RequestKind::NAMES),
        ("requests.status", RequestStatus::NAMES),
        ("service_accounts.kind", &["agent", "trigger"]),
        ("tasks.control", Control::NAMES),
        ("tasks.origin_kind", &["human", "schedule", "webhook", "task"]),
        ("tasks.outcome", Outcome::NAMES),
        ("tasks.status", Status::NAMES),
    ]
    .into_iter()
    .map(|(column, names)| (column.to_owned(), names.iter().map(|name| (*name).to_owned()).collect()))
    .collect();
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn every_trigger_stands_below_a_comment_that_names_its_guard() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations/postgres");
    let mut triggers = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let mut comment = false;
        for line in text.lines() {
            if line.starts_with("-- Guard: ") {
                comment = true;
            } else if line.trim().is_empty() {
                comment = false;
            } else if line.starts_with("CREATE TRIGGER") {
                assert!(comment, "{line} has no comment that begins with Guard");
                triggers += 1;
            }
        }
        for word in ["SET search_path TO", "set_config('search_path'"] {
            assert!(!text.contains(word), "a migration must not move the search path: sqlx looks for its table by it");
        }
        let functions = text.matches("CREATE FUNCTION").count();
        assert_eq!(functions, text.matches("LANGUAGE plpgsql SET search_path = pg_catalog").count());
    }
    assert!(triggers > 15);
}

/// What a migration could change: relations, columns, constraints, triggers, functions, and what sqlx remembers.
async fn fingerprint(db: &mut PgConnection) -> String {
    let query = "SELECT md5(string_agg(line, E'\\n' ORDER BY line)) FROM (
        SELECT format('%s %s %s', attrelid, attname, atttypid) AS line FROM pg_attribute
            WHERE attrelid >= 16384 AND attrelid::regclass::text NOT LIKE 'pg_%'
        UNION ALL SELECT format('%s %s', oid, pg_get_constraintdef(oid)) FROM pg_constraint WHERE oid >= 16384
        UNION ALL SELECT format('%s %s', oid, pg_get_triggerdef(oid)) FROM pg_trigger WHERE NOT tgisinternal
        UNION ALL SELECT format('%s %s', oid, prosrc) FROM pg_proc WHERE oid >= 16384
        UNION ALL SELECT _sqlx_migrations::text FROM public._sqlx_migrations) AS lines";
    sqlx::query_scalar(query).fetch_one(db).await.unwrap()
}

#[tokio::test]
async fn migrating_twice_changes_nothing() {
    let url = database::empty().await;
    Store::migrate_url(&url).await.unwrap();
    let mut db = PgConnection::connect(&url).await.unwrap();
    let first = fingerprint(&mut db).await;
    Store::migrate_url(&url).await.unwrap();
    assert_eq!(fingerprint(&mut db).await, first);
    sqlx::query("ALTER TABLE agent_runtime.task_projects ADD COLUMN x text").execute(&mut db).await.unwrap();
    assert_ne!(fingerprint(&mut db).await, first, "the fingerprint sees nothing");
}

fn migrate(url: &str) -> Child {
    Command::new(program())
        .arg("migrate")
        .current_dir(std::env::temp_dir())
        .env("MANDATE_DATABASE__URL", url)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn processes_that_migrate_at_once_all_succeed_and_migrate_once() {
    let url = database::empty().await;
    let all: Vec<_> = (0..4).map(|_| migrate(&url)).collect();
    for process in all {
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let mut db = PgConnection::connect(&url).await.unwrap();
    let applied: Vec<i64> = sqlx::query_scalar("SELECT version FROM public._sqlx_migrations WHERE success ORDER BY 1")
        .fetch_all(&mut db)
        .await
        .unwrap();
    assert_eq!(applied, (1..=i64::try_from(applied.len()).unwrap()).collect::<Vec<_>>());
    let before = fingerprint(&mut db).await;
    assert!(migrate(&url).wait_with_output().unwrap().status.success());
    assert_eq!(fingerprint(&mut db).await, before);
}

#[tokio::test]
async fn hot_writes_touch_no_index() {
    let world = World::new().await;
    let agent = world.agent().await;
    let mut working = Vec::new();
    for _ in 0..4 {
        working.push(world.working(&agent).await);
    }
    for nth in 0..500 {
        let (short_id, session) = &working[nth % working.len()];
        let (reply, expected) = match nth % 3 {
            0 => (agent.say(short_id, session, "a turn").await, 201),
            1 => {
                let body = json!({"idempotency_key": nth.to_string(), "model_id": "sonnet", "tokens_in": 1,
                    "session_id": session});
                (agent.post(&format!("/agent-tasks/{short_id}/usage"), &body).await, 201)
            }
            _ => (agent.post_nothing(&format!("/agent-tasks/{short_id}/sessions/{session}/heartbeat")).await, 200),
        };
        reply.expect(expected);
    }
    assert_hot(&world, &[("tasks", 330), ("sessions", 500)]).await;
}

/// Stops the server, and asserts that of at least so many updates of each table nearly all were HOT.
async fn assert_hot(world: &World, tables: &[(&str, i64)]) {
    let counts = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
        WHERE schemaname = 'agent_runtime' AND relname = $1";
    // A backend hands in its counts when it ends at the latest.
    world.stop().await;
    for (table, least) in tables {
        let counted = async || -> (i64, i64) { sqlx::query_as(counts).bind(table).fetch_one(&world.db).await.unwrap() };
        support::eventually("the statistics arrive", async || counted().await.0 >= *least).await;
        let (all, hot) = counted().await;
        assert!(hot * 100 > all * 95, "{table}: only {hot} of {all} updates were HOT");
    }
}

#[tokio::test]
async fn the_sweep_keeps_its_books_of_a_working_task_without_touching_an_index() {
    // The patience and the quiet of an installation that changes nothing.
    let world = World::with(|settings| settings.archive = Settings::default().archive).await;
    let agent = world.agent().await;
    let mut working = Vec::new();
    for _ in 0..3 {
        working.push(world.working(&agent).await);
    }
    let verified = "SELECT count(*) FROM agent_runtime.tasks WHERE verified_seq = last_seq AND dirty";
    for nth in 0..400 {
        let (task, session) = &working[nth % working.len()];
        agent.say(task, session, "a turn").await.expect(201);
        if nth % 3 == 0 {
            let beat = format!("/agent-tasks/{task}/sessions/{session}/heartbeat");
            agent.post_nothing(&beat).await.expect(200);
        }
        if nth % 20 == 19 {
            // Whole in the log store, and on the list all the same.
            support::eventually("the sweep finds them whole", async || {
                world.sweep().await;
                sqlx::query_scalar::<_, i64>(verified).fetch_one(&world.db).await.unwrap() == 3
            })
            .await;
        }
    }
    assert_hot(&world, &[("tasks", 400 + 3 * 20)]).await;
}
