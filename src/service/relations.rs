//! Dependencies between tasks, and the projects that a task touches beside its primary one.

use super::caller::Located;
use super::{ATTEMPTS_MAX, Call, Clock, Order, Queue, Service, ServiceError};
use crate::domain::aggregate::Aggregate;
use crate::domain::change::Context;
use crate::domain::command::Command;
use crate::domain::decide;
use crate::domain::event::ActorKind;
use crate::domain::ids::{ProjectId, TaskId};
use crate::domain::payload::Project;
use crate::domain::principal::Permission;
use crate::domain::refusal::Refusal;
use crate::domain::relation::{Dependency, DependencyChange};
use crate::domain::task::{Origin, Task};
use crate::domain::time::Timestamp;
use crate::store::{CommitError, Want};

/// A task that another is related to, and who made the relation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelatedTask {
    /// The task, as it is now.
    pub task: Task,
    /// Who made the relation: kind.
    pub created_by_kind: String,
    /// Who made the relation: id.
    pub created_by: String,
    /// When.
    pub created_at: Timestamp,
}

/// Everything that a task is related to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Relations {
    /// The tasks that it requires.
    pub requires: Vec<RelatedTask>,
    /// The tasks that require it.
    pub required_by: Vec<RelatedTask>,
    /// The task that delegated it.
    pub parent: Option<RelatedTask>,
    /// The tasks that it delegated.
    pub children: Vec<RelatedTask>,
}

/// A project that a task touches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssociatedProject {
    /// The row.
    pub row: Project,
    /// Whether the project still exists.
    pub available: bool,
}

impl Service {
    /// What the task is related to. Parent and children follow from the origins of tasks.
    pub async fn relations(&self, located: &Located) -> Result<Relations, ServiceError> {
        let organization = located.task.organization;
        let rows = self.store.dependencies(organization, located.id).await?;
        let mut ids: Vec<TaskId> = rows.iter().flat_map(|row| [row.dependent, row.prerequisite]).collect();
        ids.push(located.id);
        let tasks = self.store.tasks_by_id(organization, &ids).await?;
        let task_of = |id: TaskId| tasks.iter().find(|task| task.id() == id).cloned();
        let own = task_of(located.id).ok_or(Refusal::TaskNotFound)?;
        let mut relations = Relations::default();
        for row in rows {
            let requires = row.dependent == located.id;
            let other = task_of(if requires { row.prerequisite } else { row.dependent });
            let related = other.map(|task| depends(task, row));
            if requires { relations.requires.extend(related) } else { relations.required_by.extend(related) }
        }
        if let Origin::Task { parent_task_id, .. } = &own.pinned().origin {
            let parent = self.store.tasks_by_id(organization, &[*parent_task_id]).await?.pop();
            relations.parent = parent.map(|parent| delegated(parent, &own));
        }
        let children = self.store.children(organization, located.id).await?;
        relations.children = children.into_iter().map(|child| delegated(child.clone(), &child)).collect();
        Ok(relations)
    }

    /// Makes the task require `other`, or no longer. What is so already writes nothing.
    pub async fn set_dependency(
        &self,
        call: &Call,
        located: &Located,
        other: &Located,
        wanted: bool,
    ) -> Result<(), ServiceError> {
        call.caller.require(Permission::Manage)?;
        if located.id == other.id {
            let task = self.snapshot(located).await?;
            self.decide_dependency(call, [&task, &task], wanted, None)?;
            return Ok(());
        }
        // In the order in which everybody takes several.
        let (low, high) = (located.id.min(other.id), located.id.max(other.id));
        let queues = [self.queue(call, low).await, self.queue(call, high).await];
        let (mut first, mut second) = (queues[0].lock().await, queues[1].lock().await);
        for _ in 0..ATTEMPTS_MAX {
            let tasks = [self.fresh(call, located.id).await?, self.fresh(call, other.id).await?];
            // After both: what changes the row moves `last_seq` of a task that is compared.
            let found = self.store.dependency(call.caller.organization, located.id, other.id).await?;
            let Some(change) = self.decide_dependency(call, [&tasks[0], &tasks[1]], wanted, found)? else {
                return Ok(());
            };
            // Whatever comes of it, what they keep is old.
            (*first, *second) = (None, None);
            match self.store.commit_pair(&change).await {
                Ok(()) => {
                    for side in &change.changes {
                        self.committed(side, None);
                    }
                    return Ok(());
                }
                Err(CommitError::Conflict) => self.counters.conflict(),
                Err(CommitError::Store(fault)) => return Err(fault.into()),
                Err(other) => return Err(ServiceError::Internal(other.to_string())),
            }
        }
        Err(ServiceError::Unavailable("the tasks change too fast".to_owned()))
    }

    fn decide_dependency(
        &self,
        call: &Call,
        [dependent, prerequisite]: [&Aggregate; 2],
        wanted: bool,
        found: Option<Dependency>,
    ) -> Result<Option<DependencyChange>, Refusal> {
        let mut new_id = Clock::new_id;
        let mut context = Context {
            actor: call.caller.actor(),
            now: self.clock.now(),
            new_id: &mut new_id,
            body_hash: call.body_hash,
            redacted: Vec::new(),
        };
        decide::dependency(dependent, prerequisite, wanted, found, &mut context)
    }

    async fn queue(&self, call: &Call, task: TaskId) -> Queue {
        self.queues.get_with((call.caller.organization, task), async { Queue::default() }).await
    }

    async fn fresh(&self, call: &Call, task: TaskId) -> Result<Aggregate, ServiceError> {
        let loaded = self.store.load(call.caller.organization, task, &Want::default()).await?;
        loaded.ok_or(ServiceError::Refused(Refusal::TaskNotFound))
    }

    /// The task's associated projects. One that was deleted stays, as no longer available.
    pub async fn associated_projects(&self, located: &Located) -> Result<Vec<AssociatedProject>, ServiceError> {
        let organization = located.task.organization;
        let mut projects = Vec::new();
        for row in self.store.task_projects(organization, located.id).await? {
            let available = self.directory.project(organization, row.project_id).await?.is_some();
            projects.push(AssociatedProject { row, available });
        }
        Ok(projects)
    }

    /// The slug of a project that the organization has.
    pub async fn project_slug(&self, located: &Located, project: ProjectId) -> Result<String, ServiceError> {
        let slug = self.directory.project(located.task.organization, project).await?;
        slug.ok_or(ServiceError::Refused(Refusal::NotFound("project")))
    }

    /// Refuses a project that neither the organization has nor, since it was deleted, the task.
    pub async fn require_project(&self, located: &Located, project: ProjectId) -> Result<(), ServiceError> {
        if self.store.task_project(located.task.organization, located.id, project).await?.is_some() {
            return Ok(());
        }
        self.project_slug(located, project).await.map(drop)
    }

    /// Associates a project with the task. One that is associated already writes nothing.
    pub async fn associate(
        &self,
        call: &Call,
        located: &Located,
        project: ProjectId,
        slug: String,
    ) -> Result<(), ServiceError> {
        call.caller.require(Permission::Manage)?;
        let command = Command::AssociateProject { project, slug, found: None };
        self.carry_out(Order::of(call, located.id), &command).await?;
        Ok(())
    }

    /// Takes the association of a project back. One that is not associated writes nothing.
    pub async fn dissociate(&self, call: &Call, located: &Located, project: ProjectId) -> Result<(), ServiceError> {
        call.caller.require(Permission::Manage)?;
        let command = Command::DissociateProject { project, found: None };
        self.carry_out(Order::of(call, located.id), &command).await?;
        Ok(())
    }
}

fn depends(task: Task, row: Dependency) -> RelatedTask {
    RelatedTask { task, created_by_kind: row.created_by_kind, created_by: row.created_by, created_at: row.created_at }
}

/// A relation of delegation: the parent's agent made it when it created `child`.
fn delegated(task: Task, child: &Task) -> RelatedTask {
    let pinned = child.pinned();
    let created_by = match &pinned.origin {
        Origin::Task { agent_id, .. } => agent_id.to_string(),
        origin @ (Origin::Human { .. } | Origin::Schedule { .. } | Origin::Webhook { .. }) => origin.principal(),
    };
    let created_by_kind = ActorKind::Agent.as_str().to_owned();
    RelatedTask { task, created_by_kind, created_by, created_at: pinned.created_at }
}
