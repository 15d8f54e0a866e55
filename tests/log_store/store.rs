//! A fresh store for each case.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use clickhouse::Client;
use mandate::log::LogStore;
use mandate::log::clickhouse::{ClickHouseLog, ClickHouseLogOptions};
use mandate::log::postgres::{PostgresLog, PostgresLogOptions};
use sqlx::{Connection as _, Executor as _, PgConnection};
use uuid::Uuid;

use crate::database;

/// A store and the server behind it.
#[derive(Clone)]
pub struct Fixture {
    pub store: Arc<dyn LogStore>,
    pub engine: Engine,
}

#[derive(Clone)]
pub enum Engine {
    /// The URL of the database.
    Postgres(String),
    /// A client of the database.
    ClickHouse(Box<Client>),
}

impl Fixture {
    /// Runs a statement at the server, beside the store; `agent_log.` is left out for ClickHouse.
    pub async fn execute(&self, sql: &str) {
        match &self.engine {
            Engine::Postgres(url) => {
                let mut connection = PgConnection::connect(url).await.unwrap();
                connection.execute(sqlx::AssertSqlSafe(sql.to_owned())).await.unwrap();
                connection.close().await.unwrap();
            }
            Engine::ClickHouse(client) => client.query_raw(&sql.replace("agent_log.", "")).execute().await.unwrap(),
        }
    }

    /// Whether a row that came again lies beside its twin: ClickHouse, which is told not to merge.
    pub async fn keeps_duplicates(&self) -> bool {
        let Engine::ClickHouse(_) = self.engine else { return false };
        self.execute("SYSTEM STOP MERGES agent_log.agent_task_events").await;
        self.execute("SYSTEM STOP MERGES agent_log.agent_usage").await;
        true
    }
}

pub fn postgres_options(url: &str, transaction_pooler: bool) -> PostgresLogOptions {
    PostgresLogOptions {
        url: url.to_owned(),
        acquire_timeout: Duration::from_secs(30),
        statement_timeout: Duration::from_secs(30),
        transaction_pooler,
    }
}

pub fn clickhouse_options() -> ClickHouseLogOptions {
    ClickHouseLogOptions { query_timeout: Duration::from_secs(30), append_timeout: Duration::from_secs(30) }
}

/// The test server, as a URL for HTTP that ends with the host.
fn clickhouse_server() -> url::Url {
    let server = std::env::var("MANDATE_TEST_CLICKHOUSE").expect("MANDATE_TEST_CLICKHOUSE is set by tests/run");
    url::Url::parse(&server).unwrap()
}

/// The store's URL of a database of the test server.
pub fn clickhouse_url(database: &str) -> String {
    let server = clickhouse_server();
    let rest = server.as_str().split_once("://").unwrap().1.trim_end_matches('/').to_owned();
    format!("clickhouse://{rest}/{database}")
}

fn clickhouse_client(database: &str) -> Client {
    let server = clickhouse_server();
    let origin = server.origin().ascii_serialization();
    let client = Client::default().with_url(origin).with_database(database).with_user(server.username());
    client.with_password(server.password().unwrap_or_default())
}

pub async fn on_postgres<F: Future<Output = ()>>(transaction_pooler: bool, case: fn(Fixture) -> F) {
    let url = database::create().await;
    let store = PostgresLog::connect(&postgres_options(&url, transaction_pooler)).unwrap();
    store.migrate().await.unwrap();
    case(Fixture { store: Arc::new(store.clone()), engine: Engine::Postgres(url) }).await;
    store.close().await;
}

pub async fn on_clickhouse<F: Future<Output = ()> + Send + 'static>(case: fn(Fixture) -> F) {
    let database = format!("mandate_test_{}", Uuid::new_v4().simple());
    let store = ClickHouseLog::connect(&clickhouse_url(&database), clickhouse_options()).unwrap();
    store.migrate().await.unwrap();
    let fixture =
        Fixture { store: Arc::new(store), engine: Engine::ClickHouse(Box::new(clickhouse_client(&database))) };
    // In a task of its own, so that the database goes when the case fails too.
    let over = tokio::spawn(case(fixture)).await;
    let server = clickhouse_client("default");
    server.query_raw(&format!("DROP DATABASE {database} SYNC")).execute().await.unwrap();
    if let Err(failure) = over {
        std::panic::resume_unwind(failure.into_panic());
    }
}
