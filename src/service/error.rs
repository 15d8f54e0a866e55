//! What a use case answers when it does not answer.

use crate::artifacts::ArtifactStoreError;
use crate::directory::DirectoryError;
use crate::domain::refusal::Refusal;
use crate::log::LogStoreError;
use crate::store::StoreError;

/// Why a call came to nothing. Nothing was written.
#[derive(Debug)]
pub enum ServiceError {
    /// The contract refuses it.
    Refused(Refusal),
    /// Postgres is away or too busy: try again. The text is for the log.
    Unavailable(String),
    /// The permanent log is away: try again. The text is for the log.
    LogUnavailable(String),
    /// A fault of ours. The text is for the log.
    Internal(String),
}

impl From<Refusal> for ServiceError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<StoreError> for ServiceError {
    fn from(fault: StoreError) -> Self {
        match fault {
            StoreError::SearchTooSlow(limit) => Refusal::SearchTooSlow(limit).into(),
            StoreError::Unavailable(_) | StoreError::Conflict | StoreError::NotMigrated => {
                Self::Unavailable(fault.to_string())
            }
            StoreError::Migration(_)
            | StoreError::ImpossibleRow { .. }
            | StoreError::Duplicate(_)
            | StoreError::Refused(_)
            | StoreError::Database(_) => Self::Internal(fault.to_string()),
        }
    }
}

impl From<LogStoreError> for ServiceError {
    fn from(fault: LogStoreError) -> Self {
        match fault {
            LogStoreError::Unavailable(_) => Self::LogUnavailable(fault.to_string()),
            LogStoreError::Refused(_) | LogStoreError::ImpossibleRow(_) | LogStoreError::Setting(_) => {
                Self::Internal(fault.to_string())
            }
        }
    }
}

impl From<ArtifactStoreError> for ServiceError {
    fn from(fault: ArtifactStoreError) -> Self {
        match fault {
            // Its row was there: it is being removed, or somebody emptied the store.
            ArtifactStoreError::Missing(_) | ArtifactStoreError::Unavailable(_) => Self::Unavailable(fault.to_string()),
            ArtifactStoreError::Setting(_) => Self::Internal(fault.to_string()),
        }
    }
}

impl From<DirectoryError> for ServiceError {
    fn from(fault: DirectoryError) -> Self {
        Self::Unavailable(fault.to_string())
    }
}
