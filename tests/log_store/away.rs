//! A store that cannot be reached, or does not answer.

use std::time::{Duration, Instant};

use mandate::domain::log_page::EventPage;
use mandate::log::clickhouse::{ClickHouseLog, ClickHouseLogOptions};
use mandate::log::postgres::{PostgresLog, PostgresLogOptions};
use mandate::log::{LogStore, LogStoreError, OperationsQuery, UsageQuery, append_or_set_apart};
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::net::TcpListener;

use crate::database;
use crate::samples::{Sample, at, fresh, of_events};
use crate::store::postgres_options;

const PATIENCE: Duration = Duration::from_millis(300);

fn stores(port: u16) -> [Box<dyn LogStore>; 2] {
    let clickhouse = ClickHouseLog::connect(
        &format!("clickhouse://user:password@127.0.0.1:{port}/log"),
        ClickHouseLogOptions { query_timeout: PATIENCE, append_timeout: PATIENCE },
    );
    let postgres = PostgresLog::connect(&PostgresLogOptions {
        url: format!("postgres://user:password@127.0.0.1:{port}/log"),
        acquire_timeout: PATIENCE,
        statement_timeout: PATIENCE,
        transaction_pooler: false,
    });
    [Box::new(clickhouse.unwrap()), Box::new(postgres.unwrap())]
}

/// Every method says that the store is away, and soon.
async fn all_say_away(store: &dyn LogStore) {
    let sample = Sample::new();
    let (organization, task) = (sample.organization, sample.task);
    let batch = of_events(&sample.events(1..=2));
    let page = EventPage { limit: 1, ..EventPage::default() };
    let (start, end) = (at("2026-01-01T00:00:00Z"), at("2026-02-01T00:00:00Z"));
    let sums = UsageQuery { organization, start, end, group_by: Vec::new(), limit: 1 };
    let operations =
        OperationsQuery { organization, start: None, end: None, agent: None, kind: None, after: None, limit: 1 };
    let begun = Instant::now();
    let faults = [
        store.append(&batch).await.err(),
        append_or_set_apart(store, batch.clone()).await.err(),
        store.coverage(&[(organization, task)]).await.err(),
        store.seqs(organization, task).await.err(),
        store.report_ids(organization, task).await.err(),
        store.stored_events(organization, &[task], 1, 2).await.err(),
        store.stored_usage(organization, &[(task, fresh())]).await.err(),
        store.events(organization, task, &page).await.err(),
        store.usage(&sums).await.err(),
        store.operations(&operations).await.err(),
    ];
    let took = begun.elapsed();
    for (n, fault) in faults.iter().enumerate() {
        let fault = fault.as_ref().unwrap_or_else(|| panic!("{} {n}: no fault", store.name()));
        assert!(matches!(fault, LogStoreError::Unavailable(_)), "{} {n}: {fault}", store.name());
        assert!(!fault.to_string().contains("password"), "{fault}");
    }
    assert!(took < PATIENCE * 10 + Duration::from_secs(3), "{}: {took:?}", store.name());
}

#[tokio::test]
async fn a_closed_port_is_away() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    for store in stores(port) {
        all_say_away(store.as_ref()).await;
        if store.name() == "clickhouse" {
            assert!(matches!(store.migrate().await, Err(LogStoreError::Unavailable(_))));
        }
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_away() {
    // Takes connections, which the kernel does by itself, and says nothing.
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for store in stores(server.local_addr().unwrap().port()) {
        all_say_away(store.as_ref()).await;
    }
}

/// The limit holds behind a proxy too, which takes no options at the start of a session.
#[tokio::test]
async fn a_statement_that_waits_at_the_server_is_ended() {
    for transaction_pooler in [false, true] {
        let url = database::create().await;
        let mut locker = PgConnection::connect(&url).await.unwrap();
        let mut held = locker.begin().await.unwrap();
        held.execute("LOCK TABLE agent_log.agent_task_events IN ACCESS EXCLUSIVE MODE").await.unwrap();
        let options = PostgresLogOptions { statement_timeout: PATIENCE, ..postgres_options(&url, transaction_pooler) };
        let (store, sample) = (PostgresLog::connect(&options).unwrap(), Sample::new());
        let begun = Instant::now();
        let faults = [
            store.seqs(sample.organization, sample.task).await.unwrap_err(),
            store.append(&of_events(&sample.events(1..=2))).await.unwrap_err(),
        ];
        assert!(begun.elapsed() < Duration::from_secs(10), "{transaction_pooler}");
        for fault in faults {
            assert!(matches!(fault, LogStoreError::Unavailable(_)), "{fault}");
        }
        held.rollback().await.unwrap();
        assert!(store.seqs(sample.organization, sample.task).await.unwrap().is_empty());
        store.close().await;
        locker.close().await.unwrap();
    }
}
