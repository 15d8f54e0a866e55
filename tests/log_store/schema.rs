//! The two stores' tables.

use clickhouse::Row;
use sqlx::{Connection as _, PgConnection, Row as _};

use crate::database;
use crate::store::{Engine, on_clickhouse};

const TABLES: [&str; 3] = ["agent_task_events", "agent_usage", "operations_log"];

/// Table, column, whether it may be null.
type Column = (String, String, bool);

async fn postgres_columns(url: &str) -> Vec<Column> {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let query = "SELECT c.relname::text, a.attname::text, NOT a.attnotnull FROM pg_attribute a
                 JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
                 WHERE n.nspname = 'agent_log' AND c.relname = ANY ($1) AND a.attnum > 0 AND NOT a.attisdropped
                 ORDER BY c.relname, a.attnum";
    let rows = sqlx::query(query).bind(TABLES.as_slice()).fetch_all(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
}

#[derive(Row, serde::Deserialize)]
struct Described {
    table: String,
    name: String,
    is_nullable: u8,
}

#[tokio::test]
async fn both_stores_have_the_same_columns() {
    on_clickhouse(|fixture| async move {
        let Engine::ClickHouse(client) = &fixture.engine else { unreachable!() };
        let query = "SELECT table, name, startsWith(type, 'Nullable') OR startsWith(type, 'LowCardinality(Nullable')
                        AS is_nullable
                     FROM system.columns
                     WHERE database = currentDatabase() AND table NOT IN ('agent_operations', 'agent_operations_feed')
                     ORDER BY table, position";
        let found = client.query(query).fetch_all::<Described>().await.unwrap();
        let found: Vec<Column> = found.into_iter().map(|row| (row.table, row.name, row.is_nullable == 1)).collect();
        // PostgreSQL knows nothing of the columns of a view but their names.
        let names =
            |columns: &[Column]| columns.iter().map(|(table, name, _)| format!("{table}.{name}")).collect::<Vec<_>>();
        let expected = postgres_columns(&database::create().await).await;
        assert_eq!(names(&found), names(&expected));
        let of_tables = |columns: Vec<Column>| -> Vec<Column> {
            columns.into_iter().filter(|(table, ..)| table != "operations_log").collect()
        };
        assert_eq!(of_tables(found), of_tables(expected));
    })
    .await;
}

/// PostgreSQL is pruned on the word of these tables.
#[tokio::test]
async fn what_clickhouse_acknowledges_is_on_disk() {
    on_clickhouse(|fixture| async move {
        let Engine::ClickHouse(client) = &fixture.engine else { unreachable!() };
        for table in ["agent_task_events", "agent_usage", "agent_operations"] {
            let query =
                "SELECT engine_full FROM system.tables WHERE database = currentDatabase() AND name = {table:String}";
            let engine = client.query(query).param("table", table).fetch_one::<String>().await.unwrap();
            let expected = [
                "ReplacingMergeTree(version)",
                "PARTITION BY toYYYYMM(recorded_at)",
                "fsync_after_insert = 1",
                "fsync_part_directory = 1",
                "min_compressed_bytes_to_fsync_after_merge = 1",
            ];
            for part in expected {
                assert!(engine.contains(part), "{table}: {engine}");
            }
            assert!(!engine.contains("TTL"), "{table}: {engine}");
        }
    })
    .await;
}
