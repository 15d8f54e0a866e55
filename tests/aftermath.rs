//! What the tests have left behind, looked at when they are all over. `tests/run` runs this last, by its name; `cargo
//! test` alone leaves it out, because then nothing is over.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use sqlx::{Connection as _, PgConnection};

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
