//! A server, a session or a database in another time zone changes no instant.

use std::sync::Arc;

use mandate::log::clickhouse::ClickHouseLog;
use mandate::log::postgres::PostgresLog;
use mandate::log::{Batch, LogStore, UsageKey, UsageQuery};

use crate::samples::{Sample, as_events, at, ledgers, whole};
use crate::store::{Engine, Fixture, clickhouse_options, clickhouse_url, on_clickhouse, on_postgres, postgres_options};

async fn holds_instants(writer: &dyn LogStore, reader: &dyn LogStore) {
    let sample = Sample::new();
    let times = [
        "2026-03-01T00:00:00.000001+05:30",
        "2026-03-29T02:30:00.999999+01:00",
        "2026-10-25T02:30:00.5+02:00",
        "1970-01-01T00:00:00Z",
    ];
    let mut batch = Batch::default();
    for (seq, time) in (1..).zip(times) {
        let (mut event, mut report) = (sample.event(seq), sample.report(seq));
        (event.at, event.recorded_at, report.recorded_at) = (at(time), at(time), at(time));
        batch.events.push(event);
        batch.usage.push(report);
    }
    writer.append(&batch).await.unwrap();
    assert_eq!(whole(reader, &sample).await, as_events(&batch.events));
    assert_eq!(ledgers(reader, sample.organization, &[sample.task]).await, batch.usage);
    let asked = UsageQuery {
        organization: sample.organization,
        start: at(times[0]),
        end: at("2026-12-01T00:00:00Z"),
        group_by: vec![UsageKey::Day],
        limit: 10,
    };
    let days = reader.usage(&asked).await.unwrap();
    let days: Vec<_> = days.iter().map(|group| group.day.unwrap().to_string()).collect();
    let expected = ["2026-02-28", "2026-03-29", "2026-10-25"];
    assert_eq!(days, expected.map(|day| format!("{day}T00:00:00.000000Z")), "UTC days");
}

#[tokio::test]
async fn clickhouse_in_another_zone() {
    on_clickhouse(|fixture| async move {
        let Engine::ClickHouse(client) = &fixture.engine else { unreachable!() };
        let url = clickhouse_url(client.database().unwrap());
        let zoned = ClickHouseLog::connect(&url, clickhouse_options()).unwrap();
        let zoned = zoned.with_setting("session_timezone", "Asia/Kolkata");
        holds_instants(&zoned, fixture.store.as_ref()).await;
        holds_instants(fixture.store.as_ref(), &zoned).await;
    })
    .await;
}

async fn in_a_zone(fixture: Fixture, transaction_pooler: bool) {
    let Engine::Postgres(url) = &fixture.engine else { unreachable!() };
    let name = url.rsplit('/').next().unwrap();
    fixture.execute(&format!("ALTER DATABASE {name} SET timezone = 'Asia/Kolkata'")).await;
    let zoned: Arc<PostgresLog> = Arc::new(PostgresLog::connect(&postgres_options(url, transaction_pooler)).unwrap());
    holds_instants(zoned.as_ref(), zoned.as_ref()).await;
    zoned.close().await;
}

#[tokio::test]
async fn postgres_in_another_zone() {
    on_postgres(false, |fixture| in_a_zone(fixture, false)).await;
}

#[tokio::test]
async fn postgres_in_another_zone_behind_a_pooler() {
    on_postgres(true, |fixture| in_a_zone(fixture, true)).await;
}
