//! Tasks in their tree, as answers.

use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::domain::tree::{Node, Totals};

/// Sums over a task and every task below it, each counted once.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"tasks": 3, "open_tasks": 1, "cost_total": "0.42", "tokens_in": 12000, "tokens_out": 900,
    "cache_read_tokens": 40000, "cache_write_tokens": 0, "unmeasured_reports": 0, "unpriced_reports": 0,
    "budget_certain": true}))]
pub struct SubtreeView {
    /// How many tasks, itself included.
    pub tasks: u64,
    /// How many of them are open.
    pub open_tasks: u64,
    /// Σ of their own costs in US dollars.
    pub cost_total: String,
    /// Σ of their uncached input tokens.
    pub tokens_in: i64,
    /// Σ of their output tokens.
    pub tokens_out: i64,
    /// Σ of their tokens read from the cache.
    pub cache_read_tokens: i64,
    /// Σ of their tokens written to the cache.
    pub cache_write_tokens: i64,
    /// Σ of their reports without usable counts.
    pub unmeasured_reports: i64,
    /// Σ of their reports that could not be priced.
    pub unpriced_reports: i64,
    /// Whether every report was measured and priced.
    pub budget_certain: bool,
}

impl From<&Totals> for SubtreeView {
    fn from(totals: &Totals) -> Self {
        Self {
            tasks: totals.tasks,
            open_tasks: totals.open_tasks,
            cost_total: totals.cost_total.to_string(),
            tokens_in: totals.tokens.tokens_in,
            tokens_out: totals.tokens.tokens_out,
            cache_read_tokens: totals.tokens.cache_read_tokens,
            cache_write_tokens: totals.tokens.cache_write_tokens,
            unmeasured_reports: totals.unmeasured_reports,
            unpriced_reports: totals.unpriced_reports,
            budget_certain: totals.unmeasured_reports == 0 && totals.unpriced_reports == 0,
        }
    }
}

/// A task of a tree: what it is, what it spent itself, and what it spent with everything below it.
#[derive(Debug, Serialize, ToSchema)]
pub struct TreeNodeView {
    /// The task.
    pub id: Uuid,
    /// Its quotable name.
    #[schema(example = "T-13")]
    pub short_id: String,
    /// The task that delegated it.
    #[schema(required)]
    pub parent_task_id: Option<Uuid>,
    /// That task's quotable name.
    #[schema(required, example = "T-12")]
    pub parent_short_id: Option<String>,
    /// How deep it is: 0 for a root.
    #[schema(example = 1)]
    pub depth: u32,
    /// Its title, redacted.
    pub title: String,
    /// Its agent.
    pub agent_id: Uuid,
    /// The agent's slug at its creation.
    pub agent_slug: String,
    /// The accountable person.
    pub owner: String,
    /// What it is doing.
    pub status: String,
    /// What people want of it.
    pub control: String,
    /// How it ended.
    #[schema(required)]
    pub outcome: Option<String>,
    /// Why so.
    #[schema(required)]
    pub outcome_reason: Option<String>,
    /// Its budget in US dollars; null: no ceiling.
    #[schema(required, example = "0.5")]
    pub budget: Option<String>,
    /// Its own cost in US dollars.
    #[schema(example = "0.12")]
    pub cost_total: String,
    /// What is set aside for its children in US dollars: of an open child its budget, of a closed one what it used.
    #[schema(example = "0")]
    pub set_aside: String,
    /// What it has left in US dollars; null without a budget.
    #[schema(required, example = "0.38")]
    pub budget_remaining: Option<String>,
    /// Its own uncached input tokens.
    pub tokens_in: i64,
    /// Its own output tokens.
    pub tokens_out: i64,
    /// Its own tokens read from the cache.
    pub cache_read_tokens: i64,
    /// Its own tokens written to the cache.
    pub cache_write_tokens: i64,
    /// Its own reports without usable counts.
    pub unmeasured_reports: i64,
    /// Its own reports that could not be priced.
    pub unpriced_reports: i64,
    /// When it was created.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it closed.
    #[schema(required, format = DateTime)]
    pub closed_at: Option<String>,
    /// Itself and everything below it.
    pub subtree: SubtreeView,
}

impl From<&Node> for TreeNodeView {
    fn from(node: &Node) -> Self {
        let task = &node.task;
        Self {
            id: task.id.0,
            short_id: task.short_id.to_string(),
            parent_task_id: task.parent.map(|parent| parent.0),
            parent_short_id: task.parent_short_id.map(|parent| parent.to_string()),
            depth: task.depth,
            title: task.title.clone(),
            agent_id: task.agent_id.0,
            agent_slug: task.agent_slug.clone(),
            owner: task.owner.to_string(),
            status: task.status.to_string(),
            control: task.control.to_string(),
            outcome: task.outcome.map(|outcome| outcome.to_string()),
            outcome_reason: task.outcome_reason.map(|reason| reason.to_string()),
            budget: task.budget.map(|budget| budget.to_string()),
            cost_total: task.cost_total.to_string(),
            set_aside: task.set_aside.to_string(),
            budget_remaining: task.budget_remaining().map(|left| left.to_string()),
            tokens_in: task.tokens.tokens_in,
            tokens_out: task.tokens.tokens_out,
            cache_read_tokens: task.tokens.cache_read_tokens,
            cache_write_tokens: task.tokens.cache_write_tokens,
            unmeasured_reports: task.unmeasured_reports,
            unpriced_reports: task.unpriced_reports,
            created_at: task.created_at.to_string(),
            closed_at: task.closed_at.map(|at| at.to_string()),
            subtree: SubtreeView::from(&node.subtree),
        }
    }
}
