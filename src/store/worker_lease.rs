//! Which process does what only one may do at a time: a row, not a lock of the session, which breaks behind poolers.

use std::time::Duration;

use uuid::Uuid;

use super::Store;
use super::error::StoreError;

impl Store {
    /// Takes or renews the lease `name` for `holder`, by the database's clock; answers whether it is theirs for `ttl`.
    pub async fn hold_worker_lease(&self, name: &'static str, holder: Uuid, ttl: Duration) -> Result<bool, StoreError> {
        let mut lease = self.lease().await?;
        let held = sqlx::query(
            "INSERT INTO agent_runtime.worker_leases AS l (name, holder, expires_at)
             VALUES ($1, $2, clock_timestamp() + $3 * interval '1 microsecond')
             ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at
             WHERE l.holder = excluded.holder OR l.expires_at <= clock_timestamp()",
        )
        .bind(name)
        .bind(holder)
        .bind(i64::try_from(ttl.as_micros()).unwrap_or(i64::MAX))
        .persistent(self.named())
        .execute(&mut *lease)
        .await?;
        lease.done().await?;
        Ok(held.rows_affected() == 1)
    }

    /// Gives the lease back, if it is still theirs.
    pub async fn release_worker_lease(&self, name: &'static str, holder: Uuid) -> Result<(), StoreError> {
        let mut lease = self.lease().await?;
        sqlx::query("DELETE FROM agent_runtime.worker_leases WHERE name = $1 AND holder = $2")
            .bind(name)
            .bind(holder)
            .persistent(self.named())
            .execute(&mut *lease)
            .await?;
        lease.done().await?;
        Ok(())
    }
}
