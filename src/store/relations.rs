//! Dependencies and associated projects: their rows, and the one commit that changes two tasks.

use std::collections::BTreeMap;
use std::fmt::Debug;

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection};
use time::OffsetDateTime;
use uuid::Uuid;

use super::Store;
use super::error::{CommitError, StoreError};
use super::family::expected;
use super::rows::{Reader, TASK_COLUMNS, task};
use crate::domain::event::Event;
use crate::domain::ids::{OrganizationId, ProjectId, TaskId};
use crate::domain::payload::{Payload, Project};
use crate::domain::relation::{Dependency, DependencyChange, Edit, ProjectEdit};
use crate::domain::task::Task;

const DEPENDENCY_COLUMNS: &str = "dependent_task_id, prerequisite_task_id, created_by_kind, created_by, created_at";

fn dependency(row: &PgRow) -> Result<Dependency, StoreError> {
    let r = Reader { table: "agent_runtime.task_dependencies", row };
    Ok(Dependency {
        dependent: r.id("dependent_task_id")?,
        prerequisite: r.id("prerequisite_task_id")?,
        created_by_kind: r.get("created_by_kind")?,
        created_by: r.get("created_by")?,
        created_at: r.at("created_at")?,
    })
}

const PROJECT_COLUMNS: &str = "project_id, project_slug, added_by_kind, added_by, added_at";

fn project(row: &PgRow) -> Result<Project, StoreError> {
    let r = Reader { table: "agent_runtime.task_projects", row };
    Ok(Project {
        project_id: r.id("project_id")?,
        project_slug: r.get("project_slug")?,
        added_by_kind: r.get("added_by_kind")?,
        added_by: r.get("added_by")?,
        added_at: r.at("added_at")?,
    })
}

/// The rows that a task's log must tell of, for the audit.
pub(super) struct Related {
    dependencies: BTreeMap<(TaskId, TaskId), Dependency>,
    projects: BTreeMap<ProjectId, Project>,
}

impl Related {
    /// Where the rows differ from what the log tells.
    pub fn faults(&self, events: &[Event]) -> Vec<String> {
        let (mut dependencies, mut projects) = (BTreeMap::new(), BTreeMap::new());
        for event in events {
            // A payload that cannot be read is found by the folding.
            match Payload::read(&event.event_type, &event.payload) {
                Ok(Payload::DependencyAdded(told)) => {
                    let row = Dependency {
                        dependent: told.dependent_task_id,
                        prerequisite: told.prerequisite_task_id,
                        created_by_kind: told.created_by_kind,
                        created_by: told.created_by,
                        created_at: told.created_at,
                    };
                    dependencies.insert((row.dependent, row.prerequisite), row);
                }
                Ok(Payload::DependencyRemoved(told)) => {
                    dependencies.remove(&(told.dependent_task_id, told.prerequisite_task_id));
                }
                Ok(Payload::ProjectAssociated(told)) => {
                    projects.insert(told.project_id, told);
                }
                Ok(Payload::ProjectDissociated(told)) => {
                    projects.remove(&told.project_id);
                }
                _ => {}
            }
        }
        let mut faults = Vec::new();
        faults.extend(difference("dependencies", &self.dependencies, &dependencies));
        faults.extend(difference("associated projects", &self.projects, &projects));
        faults
    }
}

fn difference<K: Ord, R: Debug + PartialEq>(what: &str, rows: &BTreeMap<K, R>, log: &BTreeMap<K, R>) -> Option<String> {
    let all = |rows: &BTreeMap<K, R>| format!("{:?}", rows.values().collect::<Vec<_>>());
    (rows != log).then(|| format!("its {what} differ from its log: rows {}, log {}", all(rows), all(log)))
}

impl Store {
    /// The rows of a task, read in the transaction of an audit.
    pub(super) async fn related(&self, db: &mut PgConnection, key: (Uuid, Uuid)) -> Result<Related, StoreError> {
        let dependencies = format!(
            "SELECT {DEPENDENCY_COLUMNS} FROM agent_runtime.task_dependencies
             WHERE organization_id = $1 AND (dependent_task_id = $2 OR prerequisite_task_id = $2)"
        );
        let projects = format!(
            "SELECT {PROJECT_COLUMNS} FROM agent_runtime.task_projects WHERE organization_id = $1 AND task_id = $2"
        );
        let dependencies = self.rows_of(db, dependencies, key).await?;
        let projects = self.rows_of(db, projects, key).await?;
        let dependencies = dependencies.iter().map(dependency).collect::<Result<Vec<_>, _>>()?;
        let projects = projects.iter().map(project).collect::<Result<Vec<_>, _>>()?;
        Ok(Related {
            dependencies: dependencies.into_iter().map(|row| ((row.dependent, row.prerequisite), row)).collect(),
            projects: projects.into_iter().map(|row| (row.project_id, row)).collect(),
        })
    }

    /// The row that says that `dependent` requires `prerequisite`.
    pub async fn dependency(
        &self,
        organization: OrganizationId,
        dependent: TaskId,
        prerequisite: TaskId,
    ) -> Result<Option<Dependency>, StoreError> {
        let query = sqlx::query(AssertSqlSafe(format!(
            "SELECT {DEPENDENCY_COLUMNS} FROM agent_runtime.task_dependencies
             WHERE organization_id = $1 AND dependent_task_id = $2 AND prerequisite_task_id = $3"
        )))
        .bind(organization.0)
        .bind(dependent.0)
        .bind(prerequisite.0);
        let row = self.first(query).await?;
        row.as_ref().map(dependency).transpose()
    }

    /// The dependencies of which `task` is one of the two sides, oldest first.
    pub async fn dependencies(
        &self,
        organization: OrganizationId,
        task: TaskId,
    ) -> Result<Vec<Dependency>, StoreError> {
        let query = sqlx::query(AssertSqlSafe(format!(
            "SELECT {DEPENDENCY_COLUMNS} FROM agent_runtime.task_dependencies
             WHERE organization_id = $1 AND (dependent_task_id = $2 OR prerequisite_task_id = $2)
             ORDER BY created_at, dependent_task_id, prerequisite_task_id"
        )))
        .bind(organization.0)
        .bind(task.0);
        let rows = self.all(query).await?;
        rows.iter().map(dependency).collect()
    }

    /// The tasks with these ids, in no order.
    pub async fn tasks_by_id(&self, organization: OrganizationId, ids: &[TaskId]) -> Result<Vec<Task>, StoreError> {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        let query = sqlx::query(AssertSqlSafe(format!(
            "SELECT {TASK_COLUMNS} FROM agent_runtime.tasks WHERE organization_id = $1 AND id = ANY ($2)"
        )))
        .bind(organization.0)
        .bind(ids);
        let rows = self.all(query).await?;
        rows.iter().map(task).collect()
    }

    /// The tasks that `parent` delegated, oldest first.
    pub async fn children(&self, organization: OrganizationId, parent: TaskId) -> Result<Vec<Task>, StoreError> {
        let query = sqlx::query(AssertSqlSafe(format!(
            "SELECT {TASK_COLUMNS} FROM agent_runtime.tasks
             WHERE organization_id = $1 AND parent_task_id = $2 ORDER BY created_at, id"
        )))
        .bind(organization.0)
        .bind(parent.0);
        let rows = self.all(query).await?;
        rows.iter().map(task).collect()
    }

    /// The task's association with one project.
    pub async fn task_project(
        &self,
        organization: OrganizationId,
        task: TaskId,
        id: ProjectId,
    ) -> Result<Option<Project>, StoreError> {
        let query = sqlx::query(AssertSqlSafe(format!(
            "SELECT {PROJECT_COLUMNS} FROM agent_runtime.task_projects
             WHERE organization_id = $1 AND task_id = $2 AND project_id = $3"
        )))
        .bind(organization.0)
        .bind(task.0)
        .bind(id.0);
        let row = self.first(query).await?;
        row.as_ref().map(project).transpose()
    }

    /// The task's associated projects, oldest first.
    pub async fn task_projects(&self, organization: OrganizationId, task: TaskId) -> Result<Vec<Project>, StoreError> {
        let query = sqlx::query(AssertSqlSafe(format!(
            "SELECT {PROJECT_COLUMNS} FROM agent_runtime.task_projects
             WHERE organization_id = $1 AND task_id = $2 ORDER BY added_at, project_id"
        )))
        .bind(organization.0)
        .bind(task.0);
        let rows = self.all(query).await?;
        rows.iter().map(project).collect()
    }

    /// Adds or removes an associated project, in the transaction that wrote the task's event.
    pub(super) async fn edit_project(
        &self,
        db: &mut PgConnection,
        task: &Task,
        edit: &ProjectEdit,
    ) -> Result<(), CommitError> {
        let organization = task.pinned().organization_id;
        let query = match edit {
            Edit::Add(row) => sqlx::query(
                "INSERT INTO agent_runtime.task_projects
                    (organization_id, task_id, project_id, project_slug, added_by_kind, added_by, added_at)
                 VALUES ($1, $2, $3, $4, $5, $6, $7)",
            )
            .bind(organization.0)
            .bind(task.id().0)
            .bind(row.project_id.0)
            .bind(&row.project_slug)
            .bind(&row.added_by_kind)
            .bind(&row.added_by)
            .bind(OffsetDateTime::from(row.added_at)),
            Edit::Remove(row) => sqlx::query(
                "DELETE FROM agent_runtime.task_projects
                 WHERE organization_id = $1 AND task_id = $2 AND project_id = $3",
            )
            .bind(organization.0)
            .bind(task.id().0)
            .bind(row.project_id.0),
        };
        let done = query.persistent(self.named()).execute(db).await?;
        // The row was read before the version was compared, so it cannot be otherwise.
        if done.rows_affected() == 1 { Ok(()) } else { Err(CommitError::Conflict) }
    }

    /// Writes a change of a dependency: its row, and the event of each side, in one short transaction. The
    /// tasks are locked in id order, then compared with what the change was decided on.
    pub async fn commit_pair(&self, change: &DependencyChange) -> Result<(), CommitError> {
        let mut lease = self.transaction().await?;
        // A side that is archived is not written and stays as it is.
        let sides: Vec<_> = change.changes.iter().map(expected).collect();
        // A lease that is dropped rolls back.
        if !self.lock_as_read(&mut lease, change.organization, &sides).await? {
            return Err(CommitError::Conflict);
        }
        for side in &change.changes {
            // A task that was archived since is written no more.
            if !self.write(&mut lease, side, None).await? {
                return Err(CommitError::Conflict);
            }
        }
        if !self.edit_dependency(&mut lease, change.organization, &change.edit).await? {
            return Err(CommitError::Conflict);
        }
        lease.done().await?;
        Ok(())
    }

    async fn edit_dependency(
        &self,
        db: &mut PgConnection,
        organization: OrganizationId,
        edit: &Edit<Dependency>,
    ) -> Result<bool, sqlx::Error> {
        let query = match edit {
            Edit::Add(row) => sqlx::query(
                "INSERT INTO agent_runtime.task_dependencies (organization_id, dependent_task_id, prerequisite_task_id,
                    created_by_kind, created_by, created_at)
                 VALUES ($1, $2, $3, $4, $5, $6)",
            )
            .bind(organization.0)
            .bind(row.dependent.0)
            .bind(row.prerequisite.0)
            .bind(&row.created_by_kind)
            .bind(&row.created_by)
            .bind(OffsetDateTime::from(row.created_at)),
            Edit::Remove(row) => sqlx::query(
                "DELETE FROM agent_runtime.task_dependencies
                 WHERE organization_id = $1 AND dependent_task_id = $2 AND prerequisite_task_id = $3",
            )
            .bind(organization.0)
            .bind(row.dependent.0)
            .bind(row.prerequisite.0),
        };
        Ok(query.persistent(self.named()).execute(db).await?.rows_affected() == 1)
    }
}
