//! A connection for one piece of work.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Transaction};
use tokio::sync::OwnedSemaphorePermit;

use super::Store;
use super::shelf::{Kept, Shelf};

/// A connection of the pool. Behind a transaction-pooling proxy it holds an explicit transaction, because unnamed
/// statements survive such a proxy only there.
///
/// Fields are dropped in order: the place is free once its connection is back.
pub(super) enum Lease {
    Plain(Kept, Arc<Shelf>, OwnedSemaphorePermit),
    Transaction(Transaction<'static, Postgres>, OwnedSemaphorePermit),
}

impl Deref for Lease {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        match self {
            Self::Plain(kept, ..) => &kept.connection,
            Self::Transaction(transaction, _) => transaction,
        }
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut PgConnection {
        match self {
            Self::Plain(kept, ..) => &mut kept.connection,
            Self::Transaction(transaction, _) => transaction,
        }
    }
}

impl Lease {
    /// Ends the work; what was written in a transaction becomes visible.
    pub async fn done(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Plain(connection, origin, _place) => {
                origin.give(connection);
                Ok(())
            }
            Self::Transaction(transaction, _place) => transaction.commit().await,
        }
    }
}

impl Store {
    /// A connection for statements that stand alone.
    pub(super) async fn lease(&self) -> Result<Lease, sqlx::Error> {
        if self.pooled_by_proxy {
            return self.transaction().await;
        }
        let (kept, place) = self.shelf.take().await?;
        Ok(Lease::Plain(kept, Arc::clone(&self.shelf), place))
    }

    /// A connection for statements that commit together.
    pub(super) async fn transaction(&self) -> Result<Lease, sqlx::Error> {
        let place = self.shelf.place().await?;
        self.shelf.spare();
        // sqlx would give out a connection again whose `begin` was dropped half-way, and what others wrote on it would
        // not be committed. So it runs to its end, and whoever is gone by then drops a transaction that sqlx knows.
        let pool = self.pool.clone();
        let begun = tokio::spawn(async move { pool.begin().await }).await;
        Ok(Lease::Transaction(begun.map_err(|_| sqlx::Error::WorkerCrashed)??, place))
    }

    /// The rows of a statement that stands alone.
    pub(super) async fn all(&self, query: Query<'_, Postgres, PgArguments>) -> Result<Vec<PgRow>, sqlx::Error> {
        let mut lease = self.lease().await?;
        let rows = query.persistent(self.named()).fetch_all(&mut *lease).await?;
        lease.done().await?;
        Ok(rows)
    }

    /// The row of a statement that stands alone, if it has one.
    pub(super) async fn first(&self, query: Query<'_, Postgres, PgArguments>) -> Result<Option<PgRow>, sqlx::Error> {
        let mut lease = self.lease().await?;
        let row = query.persistent(self.named()).fetch_optional(&mut *lease).await?;
        lease.done().await?;
        Ok(row)
    }

    /// Runs a statement that stands alone.
    pub(super) async fn run(&self, query: Query<'_, Postgres, PgArguments>) -> Result<(), sqlx::Error> {
        let mut lease = self.lease().await?;
        query.persistent(self.named()).execute(&mut *lease).await?;
        lease.done().await
    }

    /// Whether statements may be prepared by name.
    pub(super) fn named(&self) -> bool {
        !self.pooled_by_proxy
    }
}
