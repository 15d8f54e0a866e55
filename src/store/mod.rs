//! Postgres: the only room that knows sqlx. The pool is private to it, and [`Store::commit`] is the only writer of
//! tasks and events.

mod artifacts;
mod audit;
#[doc(hidden)]
pub mod bare;
mod commit;
mod create;
pub mod directory;
mod due;
mod error;
mod events;
mod family;
mod feed;
mod group;
mod heartbeat;
mod lease;
mod lists;
mod relations;
mod requests;
mod rows;
mod search;
mod sessions;
mod shelf;
mod statements;
mod sweep;
mod tasks;
mod usage;
mod worker_lease;

use std::str::FromStr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, PgConnection, PgPool};
use tokio::sync::Semaphore;

pub use artifacts::{ArtifactReader, Received, StoredArtifact, Upload};
pub use audit::{Archive, Audit, Finding};
pub use create::NewTask;
pub use directory::{Edit, EditError, Initialized, Listing, Page, Put, Record, SUBJECT_KINDS, WithCredential};
pub use due::{DueRequests, DueSessions};
pub use error::{CommitError, StoreError};
pub use events::LogRead;
pub use feed::{ARCHIVES_KEPT, FeedLook};
use group::Groups;
pub use lists::{InboxCounts, Sort, TaskFilter, TaskPage, TaskPosition};
pub use requests::{InboxPage, InboxRow};
use shelf::Shelf;
pub use sweep::{Backlog, LogPart, SweptTask, VERIFY_FAILURES_MAX};
pub use tasks::Want;
pub use usage::StoredReport;

/// The migrations, in the binary: `mandate migrate` needs no files.
static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| {
    let mut migrations = sqlx::migrate!("./migrations/postgres");
    // Its lock is the session's, which a transaction-pooling proxy would leave behind; `migrate_over` takes another.
    migrations.set_locking(false);
    migrations
});

/// The key of the lock under which one process at a time migrates.
const MIGRATION_LOCK: i64 = 0x6d61_6e64_6174_6501;

/// How to reach Postgres.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// A `postgres://` URL.
    pub url: String,
    /// The most connections that are open at once.
    pub max_connections: u32,
    /// How long a call waits for a connection.
    pub acquire_timeout: Duration,
    /// How long a statement may run.
    pub statement_timeout: Duration,
    /// How long a search through the tasks' texts may run.
    pub search_timeout: Duration,
    /// Whether a transaction-pooling proxy stands between: then no statement is named, and each stands in an
    /// explicit transaction.
    pub transaction_pooler: bool,
    /// How long a session may be silent.
    pub session_timeout: Duration,
}

/// Applies the migrations in one transaction that holds the lock, so that it works behind a transaction-pooling proxy
/// too. The connection is this call's alone, because its prepared statements are gone afterwards.
async fn migrate_over(mut connection: PgConnection) -> Result<(), StoreError> {
    let mut transaction = connection.begin().await.map_err(StoreError::from)?;
    // The migrator prepares statements by name. Behind a proxy they would meet those of an earlier run, and stay.
    let begin =
        format!("SET LOCAL statement_timeout = 0; DEALLOCATE ALL; SELECT pg_advisory_xact_lock({MIGRATION_LOCK})");
    sqlx::raw_sql(sqlx::AssertSqlSafe(begin)).execute(&mut *transaction).await.map_err(StoreError::from)?;
    MIGRATIONS.run_direct(None, &mut *transaction, false).await.map_err(StoreError::from)?;
    sqlx::raw_sql("SELECT agent_runtime.settle_feed(); DEALLOCATE ALL")
        .execute(&mut *transaction)
        .await
        .map_err(StoreError::from)?;
    transaction.commit().await.map_err(StoreError::from)?;
    connection.close().await.map_err(StoreError::from)
}

/// The state.
#[derive(Debug, Clone)]
pub struct Store {
    pool: PgPool,
    shelf: Arc<Shelf>,
    /// Appends that are committed together.
    groups: Arc<Groups>,
    pooled_by_proxy: bool,
    session_timeout: Duration,
    search_timeout: Duration,
    /// How often this process has changed the directory.
    directory_changes: Arc<AtomicU64>,
    /// Changes of the directory that may be under way.
    directory_edits: Arc<Semaphore>,
}

impl Store {
    /// Opens a pool. Connections are made when they are needed.
    pub fn connect(options: &StoreOptions) -> Result<Self, StoreError> {
        let mut connect = PgConnectOptions::from_str(&options.url).map_err(StoreError::from)?;
        if options.transaction_pooler {
            connect = connect.statement_cache_capacity(0);
        } else {
            let timeout = options.statement_timeout.as_millis().to_string();
            connect = connect.options([("statement_timeout", timeout.as_str()), ("timezone", "UTC")]);
        }
        let connect = connect.application_name("mandate");
        let pool = PgPoolOptions::new()
            .max_connections(options.max_connections)
            .acquire_timeout(options.acquire_timeout)
            .test_before_acquire(false)
            .connect_lazy_with(connect);
        let shelf = Arc::new(Shelf::new(pool.clone(), options.max_connections, options.acquire_timeout));
        Ok(Self {
            pool,
            shelf,
            groups: Arc::default(),
            pooled_by_proxy: options.transaction_pooler,
            session_timeout: options.session_timeout,
            search_timeout: options.search_timeout,
            directory_changes: Arc::default(),
            directory_edits: Arc::new(Semaphore::new(directory::EDITS_MAX)),
        })
    }

    /// Applies the migrations, one process at a time.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        let connection = PgConnection::connect_with(&self.pool.connect_options()).await.map_err(StoreError::from)?;
        migrate_over(connection).await
    }

    /// Applies the migrations without a store.
    pub async fn migrate_url(url: &str) -> Result<(), StoreError> {
        migrate_over(PgConnection::connect(url).await.map_err(StoreError::from)?).await
    }

    /// Whether Postgres answers and has this version's schema.
    pub async fn ping(&self) -> Result<(), StoreError> {
        let wanted = MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or_default();
        let applied: Option<i64> =
            self.scalar("SELECT max(version) FROM public._sqlx_migrations WHERE success").await?;
        if applied.unwrap_or_default() < wanted {
            return Err(StoreError::NotMigrated);
        }
        Ok(())
    }

    async fn scalar<T>(&self, statement: &'static str) -> Result<T, StoreError>
    where
        T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
    {
        let mut lease = self.lease().await?;
        let value = sqlx::query_scalar(statement).persistent(self.named()).fetch_one(&mut *lease).await?;
        lease.done().await?;
        Ok(value)
    }

    /// How long a session may be silent.
    pub fn session_timeout(&self) -> Duration {
        self.session_timeout
    }

    /// Closes the pool; calls that are under way end first.
    pub async fn close(&self) {
        self.shelf.close();
        self.pool.close().await;
    }
}
