//! What can go wrong with the managed PostgreSQL.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::programs::{MissingPrograms, OLDEST_MAJOR, PackageManager};

/// Why there is no managed PostgreSQL. Each message says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum ManagedPostgresError {
    /// The machine has no PostgreSQL.
    #[error(transparent)]
    Missing(#[from] MissingPrograms),
    /// The folder that was named has no programs, or too old ones.
    #[error("{} has no postgres, initdb and pg_ctl of PostgreSQL {OLDEST_MAJOR} or newer", .0.display())]
    NotThere(PathBuf),
    /// Another process works in the same data folder.
    #[error("{} is in use by another mandate dev (process {pid}): stop that one, or name another folder", data.display())]
    InUse {
        /// The data folder.
        data: PathBuf,
        /// The other process, as far as it is known.
        pid: String,
    },
    /// A file or folder is not usable.
    #[error("{}: {source}", path.display())]
    Folder {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// This process is root and there is no user to run PostgreSQL as.
    #[error("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")]
    NoUser,
    /// The cluster is there, but the user as whom PostgreSQL runs cannot reach it any more.
    #[error("user {user} cannot reach the data in {}: let it pass the folders above (chmod o+x)", folder.display())]
    Unreachable {
        /// The cluster's folder.
        folder: PathBuf,
        /// The user.
        user: String,
    },
    /// A program cannot be run.
    #[error("cannot run {}: {source}", program.display())]
    NotRun {
        /// Which.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// `initdb` failed.
    #[error("cannot make a database cluster:\n{0}")]
    Initdb(String),
    /// The server ended instead of getting ready.
    #[error("PostgreSQL ended at its start; {} says:\n{tail}", log.display())]
    Ended {
        /// Its log.
        log: PathBuf,
        /// The end of it.
        tail: String,
    },
    /// The server did not get ready in time.
    #[error("PostgreSQL was not ready after {} s; its log is {}", waited.as_secs(), log.display())]
    NotReady {
        /// How long it was waited for.
        waited: Duration,
        /// Its log.
        log: PathBuf,
    },
    /// The server does not stop.
    #[error("PostgreSQL (process {0}) does not stop")]
    NotStopped(i32),
    /// A statement failed.
    #[error("PostgreSQL: {0}")]
    Database(#[from] sqlx::Error),
}

impl ManagedPostgresError {
    pub(super) fn folder(path: &Path, source: io::Error) -> Self {
        Self::Folder { path: path.to_path_buf(), source }
    }

    pub(super) fn missing() -> Self {
        Self::Missing(MissingPrograms { here: PackageManager::here() })
    }
}
