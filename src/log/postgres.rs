//! The embedded log store: the schema `agent_log` of the same PostgreSQL database, for installations without
//! ClickHouse.
//!
//! It has a small pool of its own, so that the log never waits behind requests, nor they behind it. One row per key
//! stands in each table; a higher version replaces a lower one.

mod read;
mod write;

use std::str::FromStr as _;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{PgPool, Postgres, Transaction};

use super::{LogStoreError, Reason};

/// The most connections of the log store's own pool: the publisher takes one, the sweep two at once, and the rest is for
/// those who read.
const CONNECTIONS_MAX: u32 = 6;

/// How to reach the database.
#[derive(Debug, Clone)]
pub struct PostgresLogOptions {
    /// A `postgres://` URL.
    pub url: String,
    /// How long a statement waits for a connection.
    pub acquire_timeout: Duration,
    /// How long a statement may run.
    pub statement_timeout: Duration,
    /// Whether a transaction-pooling proxy stands between.
    pub transaction_pooler: bool,
}

/// The embedded log store.
#[derive(Debug, Clone)]
pub struct PostgresLog {
    pool: PgPool,
    named: bool,
    statement_timeout: Duration,
}

impl PostgresLog {
    /// Opens a pool. Connections are made when they are needed.
    ///
    /// # Errors
    /// A URL that cannot be read.
    pub fn connect(options: &PostgresLogOptions) -> Result<Self, LogStoreError> {
        let mut connect = PgConnectOptions::from_str(&options.url)?.application_name("mandate log");
        if options.transaction_pooler {
            connect = connect.statement_cache_capacity(0);
        } else {
            let timeout = options.statement_timeout.as_millis().to_string();
            connect = connect.options([("statement_timeout", timeout.as_str()), ("timezone", "UTC")]);
        }
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS_MAX)
            .acquire_timeout(options.acquire_timeout)
            .connect_lazy_with(connect);
        Ok(Self { pool, named: !options.transaction_pooler, statement_timeout: options.statement_timeout })
    }

    /// A transaction: what is written in it becomes visible together, and unnamed statements survive a pooling proxy.
    async fn begin(&self) -> Result<Transaction<'static, Postgres>, LogStoreError> {
        // A `begin` that is dropped half-way would leave its connection in the pool with an open transaction.
        let pool = self.pool.clone();
        let begun = tokio::spawn(async move { pool.begin().await }).await;
        let mut transaction = begun.map_err(|_| sqlx::Error::WorkerCrashed)??;
        if !self.named {
            // Such a proxy takes no options at the start of a session.
            let timeout = self.statement_timeout.as_millis().to_string();
            let limit = sqlx::query("SELECT set_config('statement_timeout', $1, true)").bind(timeout);
            limit.persistent(false).execute(&mut *transaction).await?;
        }
        Ok(transaction)
    }
}

impl From<sqlx::Error> for LogStoreError {
    fn from(error: sqlx::Error) -> Self {
        let sqlx::Error::Database(fault) = &error else {
            return match &error {
                sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_) => {
                    Self::ImpossibleRow(error.to_string())
                }
                _ => Self::Unavailable(error.to_string()),
            };
        };
        let code = fault.code().unwrap_or_default();
        let shown = match fault.constraint() {
            Some(constraint) => format!("error {code} of constraint {constraint:?}"),
            None => format!("error {code}"),
        };
        // Data exceptions and violated constraints are the row's own fault; anything else may pass.
        match code.get(..2) {
            Some("22" | "23") => Self::Refused(Reason { full: fault.message().to_owned(), shown }),
            // What a function raises is its own text, and may quote the row.
            Some("P0") => Self::Unavailable(shown),
            _ => Self::Unavailable(error.to_string()),
        }
    }
}
