//! What a task is related to, as answers.

use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::service::relations::{AssociatedProject, RelatedTask, Relations};

/// A task that another is related to, as it is now, and who made the relation.
#[derive(Debug, Serialize, ToSchema)]
pub struct RelatedTaskView {
    /// The task.
    pub id: Uuid,
    /// Its quotable name.
    pub short_id: String,
    /// Its title, redacted.
    pub title: String,
    /// What it is doing.
    pub status: String,
    /// How it ended.
    #[schema(required)]
    pub outcome: Option<String>,
    /// Why so.
    #[schema(required)]
    pub outcome_reason: Option<String>,
    /// Its agent.
    pub agent_id: Uuid,
    /// The agent's slug at its creation.
    pub agent_slug: String,
    /// Its accountable person.
    pub owner: String,
    /// Who made the relation: kind. Delegation is made by the parent's agent.
    #[schema(example = "human")]
    pub created_by_kind: String,
    /// Who made the relation: id.
    #[schema(example = "ada")]
    pub created_by: String,
    /// When the relation was made.
    #[schema(format = DateTime)]
    pub created_at: String,
}

impl From<&RelatedTask> for RelatedTaskView {
    fn from(related: &RelatedTask) -> Self {
        let (pinned, facts) = (related.task.pinned(), related.task.facts());
        Self {
            id: pinned.id.0,
            short_id: pinned.short_id.to_string(),
            title: pinned.title.clone(),
            status: facts.status.to_string(),
            outcome: facts.ending.map(|ending| ending.outcome().to_string()),
            outcome_reason: facts.ending.and_then(|ending| ending.reason().map(|reason| reason.to_string())),
            agent_id: pinned.agent_id.0,
            agent_slug: pinned.agent_slug.clone(),
            owner: facts.owner.to_string(),
            created_by_kind: related.created_by_kind.clone(),
            created_by: related.created_by.clone(),
            created_at: related.created_at.to_string(),
        }
    }
}

/// Everything that a task is related to. "A requires B" and "B blocks A" are the same relation.
#[derive(Debug, Serialize, ToSchema)]
pub struct RelationsView {
    /// The tasks that it requires: they block it.
    pub requires: Vec<RelatedTaskView>,
    /// The tasks that require it: it blocks them.
    pub required_by: Vec<RelatedTaskView>,
    /// The task that delegated it. Follows from its origin.
    #[schema(required)]
    pub parent: Option<RelatedTaskView>,
    /// The tasks that it delegated. Follows from their origins.
    pub children: Vec<RelatedTaskView>,
}

impl From<&Relations> for RelationsView {
    fn from(relations: &Relations) -> Self {
        let views = |related: &[RelatedTask]| related.iter().map(RelatedTaskView::from).collect();
        Self {
            requires: views(&relations.requires),
            required_by: views(&relations.required_by),
            parent: relations.parent.as_ref().map(RelatedTaskView::from),
            children: views(&relations.children),
        }
    }
}

/// A project that a task touches beside its primary one.
#[derive(Debug, Serialize, ToSchema)]
pub struct AssociatedProjectView {
    /// The project.
    pub project_id: Uuid,
    /// Its slug when it was associated.
    #[schema(example = "website")]
    pub project_slug: String,
    /// Whether the project still exists.
    #[schema(example = true)]
    pub available: bool,
    /// Who associated it: kind.
    #[schema(example = "human")]
    pub added_by_kind: String,
    /// Who associated it: id.
    #[schema(example = "ada")]
    pub added_by: String,
    /// When it was associated.
    #[schema(format = DateTime)]
    pub added_at: String,
}

impl From<&AssociatedProject> for AssociatedProjectView {
    fn from(project: &AssociatedProject) -> Self {
        Self {
            project_id: project.row.project_id.0,
            project_slug: project.row.project_slug.clone(),
            available: project.available,
            added_by_kind: project.row.added_by_kind.clone(),
            added_by: project.row.added_by.clone(),
            added_at: project.row.added_at.to_string(),
        }
    }
}
