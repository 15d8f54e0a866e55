//! What a task is related to beside its parent: the tasks that it requires, and the projects that it touches.

use super::change::Change;
use super::ids::{OrganizationId, TaskId};
use super::payload::Project;
use super::time::Timestamp;

/// "`dependent` requires `prerequisite`": one row, read in two directions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    /// The task that requires.
    pub dependent: TaskId,
    /// The task that is required.
    pub prerequisite: TaskId,
    /// Who added the row: kind.
    pub created_by_kind: String,
    /// Who added the row: id.
    pub created_by: String,
    /// When the row was added.
    pub created_at: Timestamp,
}

/// What happens to a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit<R> {
    /// It is added.
    Add(R),
    /// It is removed; this is the whole of it.
    Remove(R),
}

impl<R> Edit<R> {
    /// The row.
    pub fn row(&self) -> &R {
        match self {
            Self::Add(row) | Self::Remove(row) => row,
        }
    }
}

/// What happens to an associated project's row.
pub type ProjectEdit = Edit<Project>;

/// A change of a dependency: the row, and a change of each of its two tasks whose log is not archived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DependencyChange {
    /// The tenant of both tasks.
    pub organization: OrganizationId,
    /// What happens to the row.
    pub edit: Edit<Dependency>,
    /// One or two changes, which carry the same operation id.
    pub changes: Vec<Change>,
}
