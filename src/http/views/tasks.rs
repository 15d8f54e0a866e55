//! Tasks as answers.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::raw;
use crate::domain::outcome::Ending;
use crate::domain::task::{Origin, Standing, Task};
use crate::service::InboxCounts;

/// Who or what asked for a task. The members follow from `kind`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"kind": "human", "user": "ada"}))]
pub struct OriginView {
    /// `human`, `schedule`, `webhook` or `task`.
    pub kind: String,
    /// Of `human`: the person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Of `schedule`: the scheduled task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduled_task: Option<String>,
    /// Of `webhook`: the webhook.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<String>,
    /// Of `webhook`: the delivery.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<String>,
    /// Of `task`: the parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_task_id: Option<Uuid>,
    /// Of `task`: the parent's quotable name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_short_id: Option<String>,
    /// Of `task`: the parent's agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<Uuid>,
}

impl From<&Origin> for OriginView {
    fn from(origin: &Origin) -> Self {
        let mut view = Self {
            kind: origin.kind().to_owned(),
            user: None,
            scheduled_task: None,
            webhook: None,
            delivery: None,
            parent_task_id: None,
            parent_short_id: None,
            agent_id: None,
        };
        match origin {
            Origin::Human { user } => view.user = Some(user.to_string()),
            Origin::Schedule { scheduled_task } => view.scheduled_task = Some(scheduled_task.clone()),
            Origin::Webhook { webhook, delivery } => {
                view.webhook = Some(webhook.clone());
                view.delivery = Some(delivery.clone());
            }
            Origin::Task { parent_task_id, parent_short_id, agent_id } => {
                view.parent_task_id = Some(parent_task_id.0);
                view.parent_short_id = Some(parent_short_id.clone());
                view.agent_id = Some(agent_id.0);
            }
        }
        view
    }
}

/// A task.
#[derive(Debug, Serialize, ToSchema)]
pub struct TaskView {
    /// The task.
    pub id: Uuid,
    /// Its quotable name: `T-1`, `T-2`, … per organization.
    #[schema(example = "T-12")]
    pub short_id: String,
    /// The agent.
    pub agent_id: Uuid,
    /// The agent's slug at creation.
    pub agent_slug: String,
    /// The pinned version of the agent.
    pub agent_version: i32,
    /// The pinned version of its prompt.
    pub prompt_version: i32,
    /// The agent's account: the only caller of the harness's routes.
    pub service_account_id: Uuid,
    /// The primary project.
    #[schema(required)]
    pub project_id: Option<Uuid>,
    /// The title, redacted.
    pub title: String,
    /// The description, redacted.
    pub description: String,
    /// What the task is about.
    #[schema(required)]
    pub subject: Option<String>,
    /// Free labels.
    pub labels: BTreeMap<String, String>,
    /// Free parameters, verbatim.
    #[schema(required, value_type = Option<serde_json::Value>)]
    pub params: Option<Box<RawValue>>,
    /// Who or what asked for it. Immutable.
    pub origin: OriginView,
    /// The creation key.
    #[schema(required)]
    pub idempotency_key: Option<String>,
    /// The accountable person.
    pub owner: String,
    /// The hard budget in US dollars; null: no ceiling.
    #[schema(required, example = "5")]
    pub budget: Option<String>,
    /// What the task is doing.
    pub status: String,
    /// Since when.
    #[schema(format = DateTime)]
    pub status_since: String,
    /// What people want of it.
    pub control: String,
    /// The agent's phase.
    #[schema(required)]
    pub phase: Option<String>,
    /// The furthest milestone.
    #[schema(required)]
    pub furthest_milestone: Option<String>,
    /// How it ended.
    #[schema(required)]
    pub outcome: Option<String>,
    /// Why so; null for `done_acted`.
    #[schema(required)]
    pub outcome_reason: Option<String>,
    /// What the harness says of the ending, verbatim.
    #[schema(required, value_type = Option<serde_json::Value>)]
    pub result: Option<Box<RawValue>>,
    /// Σ of the ledger's costs in US dollars.
    #[schema(example = "0.184918125")]
    pub cost_total: String,
    /// What is set aside for children, in US dollars.
    pub set_aside: String,
    /// `budget − cost_total − set_aside`; negative by the calls in flight; null without a budget.
    #[schema(required)]
    pub budget_remaining: Option<String>,
    /// Whether every report was measured and priced.
    pub budget_certain: bool,
    /// Σ of uncached input tokens.
    pub tokens_in: i64,
    /// Σ of output tokens.
    pub tokens_out: i64,
    /// Σ of input tokens read from the cache.
    pub cache_read_tokens: i64,
    /// Σ of input tokens written to the cache.
    pub cache_write_tokens: i64,
    /// Reports without usable counts.
    pub unmeasured_reports: i64,
    /// Reports that could not be priced.
    pub unpriced_reports: i64,
    /// Open requests.
    pub open_requests: u32,
    /// Open sessions.
    pub open_sessions: u32,
    /// The length of the log.
    pub last_seq: i64,
    /// The head of the digest chain.
    pub log_digest: String,
    /// When it was created.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it last changed.
    #[schema(format = DateTime)]
    pub updated_at: String,
    /// When it closed.
    #[schema(required, format = DateTime)]
    pub closed_at: Option<String>,
    /// When its log moved to the permanent store.
    #[schema(required, format = DateTime)]
    pub log_archived_at: Option<String>,
}

impl From<&Task> for TaskView {
    fn from(task: &Task) -> Self {
        let (pinned, facts) = (task.pinned(), task.facts());
        Self {
            id: pinned.id.0,
            short_id: pinned.short_id.to_string(),
            agent_id: pinned.agent_id.0,
            agent_slug: pinned.agent_slug.clone(),
            agent_version: pinned.agent_version,
            prompt_version: pinned.prompt_version,
            service_account_id: pinned.service_account_id.0,
            project_id: pinned.project_id.map(|id| id.0),
            title: pinned.title.clone(),
            description: pinned.description.clone(),
            subject: pinned.subject.clone(),
            labels: pinned.labels.clone(),
            params: pinned.params.as_ref().and_then(|text| raw(text.as_str())),
            origin: (&pinned.origin).into(),
            idempotency_key: pinned.idempotency_key.clone(),
            owner: facts.owner.to_string(),
            budget: pinned.budget.map(|budget| budget.to_string()),
            status: facts.status.to_string(),
            status_since: facts.status_since.to_string(),
            control: facts.control.to_string(),
            phase: facts.phase.clone(),
            furthest_milestone: facts.furthest_milestone.clone(),
            outcome: task.outcome().map(|outcome| outcome.to_string()),
            outcome_reason: task.outcome_reason().map(|reason| reason.to_string()),
            result: facts.result.as_ref().and_then(|text| raw(text.as_str())),
            cost_total: facts.cost_total.to_string(),
            set_aside: facts.set_aside.to_string(),
            budget_remaining: task.budget_remaining().map(|rest| rest.to_string()),
            budget_certain: task.budget_certain(),
            tokens_in: facts.tokens.tokens_in,
            tokens_out: facts.tokens.tokens_out,
            cache_read_tokens: facts.tokens.cache_read_tokens,
            cache_write_tokens: facts.tokens.cache_write_tokens,
            unmeasured_reports: facts.unmeasured_reports,
            unpriced_reports: facts.unpriced_reports,
            open_requests: facts.open_requests,
            open_sessions: facts.open_sessions,
            last_seq: facts.last_seq,
            log_digest: facts.log_digest.to_string(),
            created_at: pinned.created_at.to_string(),
            updated_at: facts.updated_at.to_string(),
            closed_at: facts.closed_at.map(|at| at.to_string()),
            log_archived_at: task.log_archived_at().map(|at| at.to_string()),
        }
    }
}

/// What a harness needs to know of its task at every turn.
#[derive(Debug, Serialize, ToSchema)]
pub struct TaskState {
    /// The quotable name.
    #[schema(example = "T-12")]
    pub short_id: String,
    /// What the task is doing.
    pub status: String,
    /// What people want of it; act on it at the next turn boundary.
    pub control: String,
    /// The agent's phase.
    #[schema(required)]
    pub phase: Option<String>,
    /// How it ended.
    #[schema(required)]
    pub outcome: Option<String>,
    /// Why so.
    #[schema(required)]
    pub outcome_reason: Option<String>,
    /// The length of the log: read events when it grew.
    pub last_seq: i64,
    /// The hard budget in US dollars.
    #[schema(required)]
    pub budget: Option<String>,
    /// Σ of the ledger's costs in US dollars.
    pub cost_total: String,
    /// What remains; null without a budget.
    #[schema(required)]
    pub budget_remaining: Option<String>,
    /// Whether every report was measured and priced.
    pub budget_certain: bool,
    /// Open requests.
    pub open_requests: u32,
    /// How often to heartbeat, in seconds.
    pub heartbeat_interval_seconds: u64,
}

impl TaskState {
    /// The state of a task, with the interval that harnesses are told.
    pub fn new(task: Standing, heartbeat_interval: std::time::Duration) -> Self {
        Self {
            short_id: task.short_id.to_string(),
            status: task.status.to_string(),
            control: task.control.to_string(),
            outcome: task.ending.map(|ending| ending.outcome().to_string()),
            outcome_reason: task.ending.and_then(Ending::reason).map(|reason| reason.to_string()),
            last_seq: task.last_seq,
            budget: task.budget.map(|budget| budget.to_string()),
            cost_total: task.cost_total.to_string(),
            budget_remaining: task.budget_remaining().map(|rest| rest.to_string()),
            budget_certain: task.budget_certain,
            open_requests: task.open_requests,
            phase: task.phase,
            heartbeat_interval_seconds: heartbeat_interval.as_secs(),
        }
    }
}

/// What waits for a person.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"count": 2, "requests": 3, "feedback": 2, "approval": 1}))]
pub struct WaitingView {
    /// Open tasks with an open request.
    pub count: i64,
    /// Open requests: what the inbox shows.
    pub requests: i64,
    /// Those for feedback.
    pub feedback: i64,
    /// Those for approval.
    pub approval: i64,
}

impl From<InboxCounts> for WaitingView {
    fn from(counts: InboxCounts) -> Self {
        let InboxCounts { tasks, feedback, approval } = counts;
        Self { count: tasks, requests: feedback + approval, feedback, approval }
    }
}
