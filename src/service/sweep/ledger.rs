//! Reading a ledger in parts: that of a long task need not fit into memory.

use crate::domain::ids::{AccountId, ReportId};
use crate::domain::usage::LedgerRow;
use crate::store::{Store, StoreError, SweptTask};

/// The ledger of a task, up to the `last_seq` that was read of it.
pub(super) struct Ledger<'a> {
    task: &'a SweptTask,
    after: Option<ReportId>,
    limit: u32,
    is_over: bool,
}

impl<'a> Ledger<'a> {
    /// In parts of `limit` rows.
    pub fn of(task: &'a SweptTask, limit: u32) -> Self {
        Self { task, after: None, limit, is_over: task.reports == 0 }
    }

    /// Its next part; `None` after the last.
    pub async fn next(&mut self, store: &Store) -> Result<Option<Vec<(AccountId, LedgerRow)>>, StoreError> {
        if self.is_over {
            return Ok(None);
        }
        let rows = store.ledger_of(self.task.key(), self.task.last_seq, self.after, self.limit).await?;
        self.after = rows.last().map(|(_, row)| row.id);
        self.is_over = rows.len() < self.limit as usize;
        Ok(Some(rows))
    }
}
