//! The distributed log store: ClickHouse, over HTTP.
//!
//! A row that arrives twice lands beside its twin until a merge drops one, so no read here trusts that a key stands
//! once: counts are distinct, sums read `FINAL`, a task's log takes the highest version of each seq.

mod fault;
mod place;
mod read;
mod rows;
mod sums;
mod write;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clickhouse::Client;
use clickhouse::sql::Identifier;

use self::fault::within;
use self::place::Place;
use super::LogStoreError;

/// The schema, in order. Every statement may run again.
const MIGRATIONS: [&str; 1] = [include_str!("../../migrations/clickhouse/0001_log.sql")];

/// What every statement runs with.
const SETTINGS: [(&str, &str); 11] = [
    // A profile may let a query that meets a limit answer what it has so far. Half a log would look like a whole one.
    ("timeout_overflow_mode", "throw"),
    ("read_overflow_mode", "throw"),
    ("result_overflow_mode", "throw"),
    ("group_by_overflow_mode", "throw"),
    ("sort_overflow_mode", "throw"),
    ("set_overflow_mode", "throw"),
    ("distinct_overflow_mode", "throw"),
    // Two versions of a row may lie in two months; each month on its own would show both.
    ("do_not_merge_across_partitions_select_final", "0"),
    // A filter that runs before the versions are compared would show a superseded row.
    ("optimize_move_to_prewhere_if_final", "0"),
    // An insert is written before it is answered. Asynchronous ones, which newer servers make the default, gather in
    // memory, and a profile may answer them from there.
    ("async_insert", "0"),
    // Repairs bring old rows back: a batch may be of any number of months, and is bounded by its rows.
    ("max_partitions_per_insert_block", "0"),
];

/// How to reach ClickHouse.
#[derive(Debug, Clone, Copy)]
pub struct ClickHouseLogOptions {
    /// How long a question may take.
    pub query_timeout: Duration,
    /// How long the batch of one table may take until it is acknowledged.
    pub append_timeout: Duration,
}

/// The distributed log store.
#[derive(Debug, Clone)]
pub struct ClickHouseLog {
    client: Client,
    /// One that needs no database, to make it.
    server: Client,
    database: String,
    options: ClickHouseLogOptions,
    /// Whether every table was there since an insert last failed.
    prepared: Arc<AtomicBool>,
}

impl ClickHouseLog {
    /// A client of `clickhouse://user:password@host:8123/database`, with `?secure=true` for TLS. Connections are made
    /// when they are needed.
    ///
    /// # Errors
    /// A URL that cannot be read.
    pub fn connect(url: &str, options: ClickHouseLogOptions) -> Result<Self, LogStoreError> {
        let place = Place::parse(url).map_err(LogStoreError::Setting)?;
        let mut server =
            Client::default().with_url(place.origin).with_product_info("mandate", env!("CARGO_PKG_VERSION"));
        if let Some(user) = place.user {
            server = server.with_user(user);
        }
        if let Some(password) = place.password {
            server = server.with_password(password);
        }
        for (name, value) in SETTINGS {
            server = server.with_setting(name, value);
        }
        let client = server.clone().with_database(&place.database);
        Ok(Self { client, server, database: place.database, options, prepared: Arc::default() })
    }

    /// The same with another setting for every statement, such as `session_timezone`.
    #[must_use]
    pub fn with_setting(mut self, name: &str, value: &str) -> Self {
        self.client = self.client.with_setting(name, value);
        self
    }

    /// A client for statements that stop by themselves after `limit`.
    fn client(&self, limit: Duration) -> Client {
        // Whole seconds are what every version takes; the client's own limit is exact.
        let seconds = limit.as_secs().max(1).to_string();
        self.client.clone().with_setting("max_execution_time", seconds)
    }

    async fn create(&self) -> Result<(), LogStoreError> {
        let limit = self.options.query_timeout;
        // Asked first: whoever may use a database that exists need not be allowed to create one.
        let known = self.server.query("SELECT count() FROM system.databases WHERE name = {name:String}");
        let known = known.param("name", &self.database).fetch_one::<u64>();
        if within(limit, known).await? == 0 {
            let create = self.server.query("CREATE DATABASE IF NOT EXISTS ?").bind(Identifier(&self.database));
            within(limit, create.execute()).await?;
        }
        let client = self.client(limit);
        for statement in MIGRATIONS.into_iter().flat_map(statements) {
            within(limit, client.query_raw(statement).execute()).await?;
        }
        Ok(())
    }
}

/// The statements of a migration: each ends with a semicolon at the end of a line.
fn statements(migration: &str) -> impl Iterator<Item = &str> {
    let has_sql = |text: &&str| text.lines().any(|line| !line.trim().is_empty() && !line.starts_with("--"));
    migration.split(";\n").filter(has_sql)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_migration_is_parted_into_its_statements() {
        let found: Vec<&str> = MIGRATIONS.into_iter().flat_map(statements).collect();
        assert_eq!(found.len(), 5);
        let created = |text: &str| text.lines().find(|line| line.starts_with("CREATE")).map(str::to_owned);
        for (statement, name) in found.iter().zip([
            "agent_task_events",
            "agent_usage",
            "agent_operations",
            "agent_operations_feed",
            "operations_log",
        ]) {
            assert!(created(statement).unwrap().contains(name), "{statement}");
        }
    }
}
