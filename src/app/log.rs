//! The permanent log, put together by the settings.

use std::sync::Arc;
use std::time::Duration;

use super::StartError;
use crate::config::Settings;
use crate::log::clickhouse::{ClickHouseLog, ClickHouseLogOptions};
use crate::log::direct::DirectStream;
use crate::log::postgres::{PostgresLog, PostgresLogOptions};
use crate::log::{LogStore, Stream};

/// How long ClickHouse may take for a query. Shorter than a request may, so that the caller is told.
const QUERY_TIMEOUT: Duration = Duration::from_secs(20);
/// How long ClickHouse may take to write a batch to disk.
const APPEND_TIMEOUT: Duration = Duration::from_secs(60);

/// The stream and the log store.
#[derive(Clone)]
pub struct Log {
    /// Where the log is kept.
    pub store: Arc<dyn LogStore>,
    /// The way there.
    pub stream: Arc<dyn Stream>,
}

impl Log {
    /// Opens both. Nothing is connected before it is needed, so that a service starts while they are away.
    pub fn open(settings: &Settings) -> Result<Self, StartError> {
        let (database, log) = (&settings.database, &settings.log);
        let store: Arc<dyn LogStore> = match &log.store_url {
            Some(url) => Arc::new(ClickHouseLog::connect(
                url.expose(),
                ClickHouseLogOptions { query_timeout: QUERY_TIMEOUT, append_timeout: APPEND_TIMEOUT },
            )?),
            None => Arc::new(PostgresLog::connect(&PostgresLogOptions {
                url: database.url.expose().to_owned(),
                acquire_timeout: Duration::from_secs(database.acquire_timeout_seconds),
                statement_timeout: Duration::from_secs(database.statement_timeout_seconds),
                transaction_pooler: database.transaction_pooler,
            })?),
        };
        let stream: Arc<dyn Stream> = Arc::new(DirectStream::new(
            Arc::clone(&store),
            Duration::from_secs(log.publish_timeout_seconds),
            log.batch_rows,
            Duration::from_millis(log.batch_linger_ms),
        ));
        Ok(Self { store, stream })
    }

    /// Brings the log store's schema and the stream's topics up to date.
    pub async fn migrate(&self) -> Result<(), StartError> {
        self.store.migrate().await?;
        self.stream.prepare().await?;
        Ok(())
    }
}
