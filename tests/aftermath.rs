//! What the tests have left behind, looked at when they are all over. `tests/run` runs this last, by its name; `cargo
//! test` alone leaves it out, because then nothing is over.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "support/event_schemas.rs"]
mod event_schemas;

use std::sync::Arc;
use std::time::Duration;

use mandate::app::{Log, store_options};
use mandate::config::{SecretUrl, Settings};
use mandate::service::archive::ArchivedLogs;
use mandate::store::{Archive, Store};
use sqlx::{Connection as _, PgConnection};

use event_schemas::EventSchemas;

async fn connect(database: &str) -> PgConnection {
    let server = std::env::var("MANDATE_TEST_DATABASE_URL").expect("MANDATE_TEST_DATABASE_URL is set by tests/run");
    let mut url = url::Url::parse(&server).unwrap();
    url.set_path(database);
    PgConnection::connect(url.as_str()).await.unwrap()
}

/// Every database that the tests made and did not drop.
async fn databases() -> Vec<String> {
    let query = "SELECT datname FROM pg_database WHERE datallowconn AND NOT datistemplate AND datname <> 'postgres'";
    sqlx::query_scalar(query).fetch_all(&mut connect("postgres").await).await.unwrap()
}

#[tokio::test]
async fn nothing_is_still_connected() {
    let mut connection = connect("postgres").await;
    let query = "SELECT coalesce(string_agg(format('%s: %s', datname, query), '; '), '') FROM pg_stat_activity \
                 WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND datname <> 'postgres'";
    let mut clients = String::new();
    for _ in 0..100 {
        clients = sqlx::query_scalar(query).fetch_one(&mut connection).await.unwrap();
        if clients.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the tests left a process behind that is still connected: {clients}");
}

#[tokio::test]
async fn no_transaction_was_left_prepared() {
    for database in databases().await {
        let mut connection = connect(&database).await;
        let query = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()";
        let prepared: i64 = sqlx::query_scalar(query).fetch_one(&mut connection).await.unwrap();
        assert_eq!(prepared, 0, "{database}");
    }
}

/// A connection's URL for a database of the test server.
fn url_of(database: &str) -> String {
    let server = std::env::var("MANDATE_TEST_DATABASE_URL").expect("MANDATE_TEST_DATABASE_URL is set by tests/run");
    let mut url = url::Url::parse(&server).unwrap();
    url.set_path(database);
    url.to_string()
}

/// The databases in which tests worked tasks.
async fn worked() -> Vec<String> {
    let names = databases().await;
    names.into_iter().filter(|name| name.starts_with("mandate_test_")).collect()
}

/// The audit of every database that the tests used: logs replayed, rows compared, chains checked, ledgers added up.
#[tokio::test]
async fn the_audit_finds_nothing_anywhere() {
    let (mut tasks, mut findings) = (0, Vec::new());
    for database in worked().await {
        let query = "SELECT to_regclass('public.spoiled_on_purpose') IS NOT NULL";
        if sqlx::query_scalar(query).fetch_one(&mut connect(&database).await).await.unwrap() {
            continue;
        }
        let mut settings = Settings::default();
        settings.database.url = SecretUrl::new(url_of(&database));
        settings.database.max_connections = 1;
        let store = Store::connect(&store_options(&settings)).unwrap();
        let log = Log::open(&settings).unwrap();
        let archive = ArchivedLogs::new(Arc::clone(&log.store));
        // Where the embedded store is empty, a test kept its log elsewhere and has proven that itself.
        let query = "SELECT EXISTS (SELECT FROM agent_log.agent_task_events)";
        let here: bool = sqlx::query_scalar(query).fetch_one(&mut connect(&database).await).await.unwrap();
        let audit = store.audit(here.then_some(&archive as &dyn Archive)).await.unwrap();
        log.store.close().await;
        store.close().await;
        tasks += audit.tasks;
        findings.extend(audit.findings.into_iter().map(|finding| format!("{database}: {finding:?}")));
    }
    assert_eq!(findings, Vec::<String>::new());
    assert!(tasks > 0, "no test worked a task");
}

/// Every event that the tests caused keeps to the schema of its type and version.
#[tokio::test]
async fn every_event_keeps_to_its_schema() {
    let schemas = EventSchemas::load();
    let (mut events, mut faults) = (0_u64, Vec::new());
    for database in worked().await {
        let mut connection = connect(&database).await;
        let query = "SELECT type, schema_version, payload::text FROM agent_runtime.events";
        let rows: Vec<(String, i32, String)> = sqlx::query_as(query).fetch_all(&mut connection).await.unwrap();
        for (event_type, version, payload) in rows {
            events += 1;
            // A number that this reader cannot hold is a harness's own; the schemas say nothing of it.
            let Ok(payload) = serde_json::from_str(&payload) else { continue };
            let found = schemas.faults(&event_type, i64::from(version), &payload);
            faults.extend(found.into_iter().map(|fault| format!("{database}: {event_type}: {fault}")));
        }
    }
    assert_eq!(faults, Vec::<String>::new());
    assert!(events > 0, "no test caused an event");
}
