//! The permanent log, put together by the settings.

use std::sync::Arc;
use std::time::Duration;

use super::StartError;
use crate::config::Settings;
use crate::log::clickhouse::{ClickHouseLog, ClickHouseLogOptions};
use crate::log::direct::DirectStream;
use crate::log::kafka::{KafkaAddress, KafkaOptions, KafkaStream};
use crate::log::postgres::{PostgresLog, PostgresLogOptions};
use crate::log::sink::Sink;
use crate::log::{LogStore, Stream, StreamError};

/// The URL of the stream that is none.
const DIRECT: &str = "direct:";
/// How long ClickHouse may take for a query. Shorter than a request may, so that the caller is told.
const QUERY_TIMEOUT: Duration = Duration::from_secs(20);
/// How long ClickHouse may take to write a batch to disk.
const APPEND_TIMEOUT: Duration = Duration::from_mins(1);

/// The stream and the log store.
#[derive(Clone)]
pub struct Log {
    /// Where the log is kept.
    pub store: Arc<dyn LogStore>,
    /// The way there.
    pub stream: Arc<dyn Stream>,
    kafka: Option<KafkaOptions>,
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
        let timeout = Duration::from_secs(log.publish_timeout_seconds);
        let linger = Duration::from_millis(log.batch_linger_ms);
        let kafka = match log.stream_url.expose() {
            DIRECT => None,
            url => Some(KafkaOptions {
                address: KafkaAddress::parse(url).map_err(|fault| StreamError(fault.to_string()))?,
                topic_prefix: log.topic_prefix.clone(),
                partitions: log.topic_partitions,
                replication: log.topic_replication,
                // Who may change schemas at the start may do so later too.
                remake: database.migrate_at_start,
                group: format!("{}{}", log.topic_prefix, log.sink_group),
                publish_timeout: timeout,
                batch_rows: log.batch_rows,
                batch_bytes: log.batch_bytes,
                linger,
            }),
        };
        let stream: Arc<dyn Stream> = match &kafka {
            None => Arc::new(DirectStream::new(Arc::clone(&store), timeout, log.batch_rows, linger)),
            Some(options) => Arc::new(KafkaStream::new(options.clone())),
        };
        Ok(Self { store, stream, kafka })
    }

    /// What carries rows from the stream into the store; none where the stream writes there itself.
    pub fn sink(&self) -> Option<Arc<Sink>> {
        let options = self.kafka.clone()?;
        Some(Arc::new(Sink::new(options, Arc::clone(&self.store))))
    }

    /// Brings the log store's schema and the stream's topics up to date.
    pub async fn migrate(&self) -> Result<(), StartError> {
        self.store.migrate().await?;
        self.stream.prepare().await?;
        Ok(())
    }
}
