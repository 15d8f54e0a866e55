//! A connection for one piece of work.

use std::ops::{Deref, DerefMut};

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, Postgres, Transaction};

use super::Store;

/// A connection of the pool. Behind a transaction-pooling proxy it holds an explicit transaction, because unnamed
/// statements survive such a proxy only there.
pub(super) enum Lease {
    Plain(PoolConnection<Postgres>),
    Transaction(Transaction<'static, Postgres>),
}

impl Deref for Lease {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        match self {
            Self::Plain(connection) => connection,
            Self::Transaction(transaction) => transaction,
        }
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut PgConnection {
        match self {
            Self::Plain(connection) => connection,
            Self::Transaction(transaction) => transaction,
        }
    }
}

impl Lease {
    /// Ends the work; what was written in a transaction becomes visible.
    pub async fn done(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Transaction(transaction) => transaction.commit().await,
        }
    }
}

impl Store {
    /// A connection for statements that stand alone.
    pub(super) async fn lease(&self) -> Result<Lease, sqlx::Error> {
        if self.pooled_by_proxy {
            return self.transaction().await;
        }
        Ok(Lease::Plain(self.pool.acquire().await?))
    }

    /// A connection for statements that commit together.
    pub(super) async fn transaction(&self) -> Result<Lease, sqlx::Error> {
        Ok(Lease::Transaction(self.pool.begin().await?))
    }

    /// Whether statements may be prepared by name.
    pub(super) fn named(&self) -> bool {
        !self.pooled_by_proxy
    }
}
