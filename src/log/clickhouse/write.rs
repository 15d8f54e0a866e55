//! Writing: one insert a table.

use clickhouse::{Row, RowOwned, RowWrite};

use super::ClickHouseLog;
use super::fault::within;
use super::rows::{StoredEvent, StoredUsage};
use crate::log::{Batch, LogStoreError};

impl ClickHouseLog {
    pub(super) async fn write(&self, batch: &Batch) -> Result<(), LogStoreError> {
        // All before the first is sent, so that a row we refuse ourselves costs no insert.
        let events = batch.events.iter().map(StoredEvent::new).collect::<Result<Vec<_>, _>>()?;
        let usage = batch.usage.iter().map(StoredUsage::new).collect::<Result<Vec<_>, _>>()?;
        self.insert("agent_task_events", &events).await?;
        self.insert("agent_usage", &usage).await
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
        within(limit, sending).await
    }
}
