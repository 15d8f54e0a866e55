//! Entries of the organization's feed as answers.

use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::EventView;
use crate::domain::feed::FeedTask;

/// The task of an entry: enough to tell somebody, or to route a webhook.
#[derive(Debug, Serialize, ToSchema)]
pub struct FeedTaskView {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub short_id: String,
    /// Its agent.
    pub agent_id: Uuid,
    /// The agent's slug at creation.
    pub agent_slug: String,
    /// Its primary project.
    #[schema(required)]
    pub project_id: Option<Uuid>,
    /// The task that delegated it.
    #[schema(required)]
    pub parent_task_id: Option<Uuid>,
    /// Its title.
    pub title: String,
    /// What it is about.
    #[schema(required)]
    pub subject: Option<String>,
    /// Who is accountable when this is read, not when the event happened.
    pub owner: String,
    /// Its status when this is read, not when the event happened.
    pub status: String,
}

impl From<&FeedTask> for FeedTaskView {
    fn from(task: &FeedTask) -> Self {
        Self {
            id: task.id.0,
            short_id: task.short_id.to_string(),
            agent_id: task.agent_id.0,
            agent_slug: task.agent_slug.clone(),
            project_id: task.project_id.map(|id| id.0),
            parent_task_id: task.parent_task_id.map(|id| id.0),
            title: task.title.clone(),
            subject: task.subject.clone(),
            owner: task.owner.to_string(),
            status: task.status.to_string(),
        }
    }
}

/// An event with its task, and the place behind it.
#[derive(Debug, Serialize, ToSchema)]
pub struct FeedEntryView {
    /// Where to go on once this was dealt with. Opaque.
    #[schema(example = "MTJhYi41LjNlOS4wMTg5MGE1ZA")]
    pub cursor: String,
    /// Its task.
    pub task: FeedTaskView,
    /// The event, as the task's log has it.
    #[serde(flatten)]
    pub event: EventView,
}
