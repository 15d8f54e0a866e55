//! A database for each test, cloned from a template that has the migrations.

#![allow(clippy::disallowed_methods, reason = "fresh names and ids for rows that tests plant")]

use mandate::store::Store;
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::sync::OnceCell;
use uuid::Uuid;

static TEMPLATE: OnceCell<String> = OnceCell::const_new();
/// Held while the template is made, because several test programs may begin at once.
const LOCK: i64 = 7_316_110_024;

fn url(database: &str) -> String {
    let server = std::env::var("MANDATE_TEST_DATABASE_URL").expect("MANDATE_TEST_DATABASE_URL is set by tests/run");
    let mut url = url::Url::parse(&server).unwrap();
    url.set_path(database);
    url.to_string()
}

async fn template() -> String {
    let name = format!("mandate_template_{}", std::process::id());
    let mut server = PgConnection::connect(&url("postgres")).await.unwrap();
    sqlx::query("SELECT pg_advisory_lock($1)").bind(LOCK).execute(&mut server).await.unwrap();
    server.execute(sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.unwrap();
    Store::migrate_url(&url(&name)).await.unwrap();
    server.execute(sqlx::AssertSqlSafe(format!("ALTER DATABASE {name} IS_TEMPLATE true"))).await.unwrap();
    server.close().await.unwrap();
    name
}

/// An empty database, without the migrations; its URL.
pub async fn empty() -> String {
    let name = format!("mandate_test_{}", Uuid::new_v4().simple());
    let mut server = PgConnection::connect(&url("postgres")).await.unwrap();
    server.execute(sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.unwrap();
    server.close().await.unwrap();
    url(&name)
}

/// A fresh database; its URL.
pub async fn create() -> String {
    let template = TEMPLATE.get_or_init(template).await;
    let name = format!("mandate_test_{}", Uuid::new_v4().simple());
    let mut server = PgConnection::connect(&url("postgres")).await.unwrap();
    let statement = format!("CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy");
    server.execute(sqlx::AssertSqlSafe(statement)).await.unwrap();
    server.close().await.unwrap();
    url(&name)
}

/// Drops a database that is too large to stay.
pub async fn drop(url: &str) {
    let name = url::Url::parse(url).unwrap().path()[1..].to_owned();
    let mut server = PgConnection::connect(&self::url("postgres")).await.unwrap();
    server.execute(sqlx::AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"))).await.unwrap();
    server.close().await.unwrap();
}
