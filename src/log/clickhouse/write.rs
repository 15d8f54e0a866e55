//! Writing: one insert a table.

use std::sync::atomic::Ordering;

use clickhouse::{Row, RowOwned, RowWrite};

use super::ClickHouseLog;
use super::fault::{on_insert, within};
use super::rows::{StoredEvent, StoredUsage};
use crate::log::{Batch, LogStoreError};

impl ClickHouseLog {
    pub(super) async fn write(&self, batch: &Batch) -> Result<(), LogStoreError> {
        // All before the first is sent, so that a row we refuse ourselves costs no insert.
        let events = batch.events.iter().map(StoredEvent::new).collect::<Result<Vec<_>, _>>()?;
        let usage = batch.usage.iter().map(StoredUsage::new).collect::<Result<Vec<_>, _>>()?;
        if !batch.is_empty() {
            self.check_prepared().await?;
        }
        self.insert("agent_task_events", &events).await?;
        self.insert("agent_usage", &usage).await
    }

    /// Keeps rows back until the view is there that copies operations from them. It copies what is inserted from then on,
    /// and nobody would miss the others.
    async fn check_prepared(&self) -> Result<(), LogStoreError> {
        if self.prepared.load(Ordering::Acquire) {
            return Ok(());
        }
        let limit = self.options.query_timeout;
        let views = "SELECT count() FROM system.tables
            WHERE database = currentDatabase() AND name = 'agent_operations_feed'";
        if within(limit, self.client(limit).query(views).fetch_one::<u64>()).await? == 0 {
            return Err(LogStoreError::Unavailable("its tables are not prepared yet".to_owned()));
        }
        self.prepared.store(true, Ordering::Release);
        Ok(())
    }

    async fn insert<T>(&self, table: &str, rows: &[T]) -> Result<(), LogStoreError>
    where
        T: RowOwned + RowWrite,
        for<'a> T: Row<Value<'a> = T>,
    {
        if rows.is_empty() {
            return Ok(());
        }
        let sent = self.send(table, rows).await;
        if matches!(sent, Err(LogStoreError::Unavailable(_))) {
            self.prepared.store(false, Ordering::Release);
        }
        if sent.is_err() {
            // The client remembers the columns' types and names them in each insert; the table may have others by now.
            self.client.clear_cached_metadata().await;
        }
        match sent {
            // A row is only to blame if it is refused by the types of today.
            Err(LogStoreError::Refused(_)) => self.send(table, rows).await,
            other => other,
        }
    }

    async fn send<T>(&self, table: &str, rows: &[T]) -> Result<(), LogStoreError>
    where
        T: RowOwned + RowWrite,
        for<'a> T: Row<Value<'a> = T>,
    {
        let limit = self.options.append_timeout;
        let client = self.client(limit);
        let sending = async {
            let mut insert = client.insert::<T>(table).await?;
            for row in rows {
                insert.write(row).await?;
            }
            // Answered when every part is written; until then nothing counts.
            insert.end().await
        };
        let sending = async { sending.await.map_err(on_insert) };
        within(limit, sending).await
    }
}
