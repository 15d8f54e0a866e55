//! What can go wrong between here and Postgres.

use crate::domain::task::ImpossibleTask;

/// A fault of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Postgres cannot be reached, or answers too late: try again.
    #[error("postgres is unavailable: {0}")]
    Unavailable(sqlx::Error),
    /// A search took longer than searches may.
    #[error("the search was cancelled after {0:?}")]
    SearchTooSlow(std::time::Duration),
    /// The schema is older than this version.
    #[error("the schema is not migrated; run `mandate migrate`")]
    NotMigrated,
    /// A migration failed.
    #[error("migration failed: {0}")]
    Migration(#[from] sqlx::migrate::MigrateError),
    /// A row that this version cannot have written.
    #[error("impossible row in {table} ({row}): {fault}")]
    ImpossibleRow {
        /// The table.
        table: &'static str,
        /// Which row.
        row: String,
        /// What is wrong with it.
        fault: String,
    },
    /// A value that is bound to be unique is there already; the constraint's name says which.
    #[error("duplicate: {0}")]
    Duplicate(String),
    /// Another transaction was first (serialization failure or deadlock).
    #[error("conflict with another transaction")]
    Conflict,
    /// A guard of the database refused.
    #[error("refused by the database: {0}")]
    Refused(String),
    /// Anything else.
    #[error("postgres: {0}")]
    Database(sqlx::Error),
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        if let sqlx::Error::Database(fault) = &error {
            let code = fault.code().unwrap_or_default();
            return match code.as_ref() {
                "23505" => Self::Duplicate(fault.constraint().unwrap_or_default().to_owned()),
                "40001" | "40P01" => Self::Conflict,
                "MD001" => Self::Refused(fault.message().to_owned()),
                // A schema or table that is not there.
                "3F000" | "42P01" => Self::NotMigrated,
                // Shutting down, starting, out of connections, cancelled by its time limit, a dropped pooler link.
                code if code.starts_with("57P")
                    || code.starts_with("53")
                    || code.starts_with("08")
                    || code == "57014" =>
                {
                    Self::Unavailable(error)
                }
                _ => Self::Database(error),
            };
        }
        match error {
            sqlx::Error::Io(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::Protocol(_)
            | sqlx::Error::Tls(_) => Self::Unavailable(error),
            _ => Self::Database(error),
        }
    }
}

impl From<ImpossibleTask> for StoreError {
    fn from(fault: ImpossibleTask) -> Self {
        Self::ImpossibleRow { table: "agent_runtime.tasks", row: fault.task.to_string(), fault: fault.fault.to_owned() }
    }
}

/// Why a change was not written. Nothing of it was.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// Somebody was first: read again, decide again.
    #[error("the task changed since it was read")]
    Conflict,
    /// The task has one of the event ids already.
    #[error("the task has one of the event ids already")]
    DuplicateEvent,
    /// The key was used before: read the first result.
    #[error("the key was used before")]
    DuplicateKey,
    /// By the database's clock a request has expired.
    #[error("a request has expired")]
    Expired,
    /// The agent works as many other tasks as it may.
    #[error("the agent works as many tasks as it may")]
    Concurrency,
    /// The agent was deleted in the meantime.
    #[error("the agent was deleted")]
    AgentDeleted,
    /// A session gave a sign of life in the meantime.
    #[error("a session gave a sign of life")]
    Alive,
    /// The artifact store no longer has what the change left there.
    #[error("an artifact was removed")]
    ArtifactGone,
    /// A fault of the store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for CommitError {
    fn from(error: sqlx::Error) -> Self {
        match StoreError::from(error) {
            StoreError::Conflict => Self::Conflict,
            StoreError::Duplicate(constraint) => match constraint.as_str() {
                "events_event_id" => Self::DuplicateEvent,
                "budget_ledger_key" | "tasks_creation_key" => Self::DuplicateKey,
                // A sequence number, a session or request key, a generation: another process was first.
                _ => Self::Conflict,
            },
            other => Self::Store(other),
        }
    }
}
