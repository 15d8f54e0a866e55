//! Reading the ledger.

use sqlx::Row;

use super::Store;
use super::error::StoreError;
use super::rows::{LEDGER_COLUMNS, ledger};
use crate::domain::change::BodyHash;
use crate::domain::ids::{AccountId, OrganizationId, ReportId, TaskId};
use crate::domain::usage::LedgerRow;

/// A report that was made before under the same key, with the hash of the body that made it.
#[derive(Debug, Clone)]
pub struct StoredReport {
    /// The ledger's row.
    pub row: LedgerRow,
    /// The hash of the first body.
    pub body_hash: BodyHash,
}

impl Store {
    /// The task's ledger in the order of the log, after the row `after`: clocks may go back, seq does not.
    pub async fn usage(
        &self,
        organization: OrganizationId,
        task: TaskId,
        after: Option<ReportId>,
        limit: u32,
    ) -> Result<(Vec<LedgerRow>, bool), StoreError> {
        let query = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {LEDGER_COLUMNS} FROM agent_runtime.budget_ledger
             WHERE organization_id = $1 AND task_id = $2 AND seq > coalesce((
                SELECT seq FROM agent_runtime.budget_ledger
                WHERE organization_id = $1 AND task_id = $2 AND id = $3), 0)
             ORDER BY seq LIMIT $4"
        )))
        .bind(organization.0)
        .bind(task.0)
        .bind(after.map(|id| id.0))
        .bind(i64::from(limit) + 1);
        let rows = self.all(query).await?;
        let mut rows = rows.iter().map(ledger).collect::<Result<Vec<_>, _>>()?;
        let more = rows.len() > limit as usize;
        rows.truncate(limit as usize);
        Ok((rows, more))
    }

    /// The report that `account` made before under `key`.
    pub async fn reported_before(
        &self,
        organization: OrganizationId,
        account: AccountId,
        task: TaskId,
        key: &str,
    ) -> Result<Option<StoredReport>, StoreError> {
        let query = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {LEDGER_COLUMNS}, request_hash FROM agent_runtime.budget_ledger
             WHERE organization_id = $1 AND account_id = $2 AND task_id = $3 AND idempotency_key = $4"
        )))
        .bind(organization.0)
        .bind(account.0)
        .bind(task.0)
        .bind(key.to_owned());
        let row = self.first(query).await?;
        let Some(row) = row else { return Ok(None) };
        let hash: Vec<u8> = row.try_get("request_hash")?;
        Ok(Some(StoredReport { row: ledger(&row)?, body_hash: hash.try_into().unwrap_or_default() }))
    }

    /// A report and its corrections, oldest first; empty when the task has no such report.
    pub async fn correction_chain(
        &self,
        organization: OrganizationId,
        task: TaskId,
        original: ReportId,
    ) -> Result<Vec<LedgerRow>, StoreError> {
        let query = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {LEDGER_COLUMNS} FROM agent_runtime.budget_ledger
             WHERE organization_id = $1 AND task_id = $2 AND (id = $3 OR corrects = $3) ORDER BY seq"
        )))
        .bind(organization.0)
        .bind(task.0)
        .bind(original.0);
        let rows = self.all(query).await?;
        rows.iter().map(ledger).collect()
    }
}
