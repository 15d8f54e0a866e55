//! What operators read of the permanent log, as answers.

use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::EventView;
use crate::service::operations::{AgentMonth, AgentUsage, Proof};
use crate::service::{Operation, UsageGroup};

/// One sum over usage reports. Members by which was not grouped are null.
#[derive(Debug, Serialize, ToSchema)]
pub struct UsageGroupView {
    /// The UTC day, `YYYY-MM-DD`.
    #[schema(required, example = "2026-01-31")]
    pub day: Option<String>,
    /// The agent.
    #[schema(required)]
    pub agent_id: Option<Uuid>,
    /// Its newest slug among the reports.
    #[schema(required)]
    pub agent_slug: Option<String>,
    /// The model as harnesses named it last.
    #[schema(required)]
    pub model_id: Option<String>,
    /// The directory's model; null when the name was not known.
    #[schema(required)]
    pub model_ref: Option<Uuid>,
    /// The tasks' primary project; null for tasks without one too.
    #[schema(required)]
    pub project_id: Option<Uuid>,
    /// Its newest slug among the reports.
    #[schema(required)]
    pub project_slug: Option<String>,
    /// Uncached input.
    pub tokens_in: i64,
    /// Output.
    pub tokens_out: i64,
    /// Input read from the cache.
    pub cache_read_tokens: i64,
    /// Input written to the cache.
    pub cache_write_tokens: i64,
    /// What is known of the cost, in US dollars; null when nothing is, which is not zero. With unmeasured or unpriced
    /// reports it is a lower bound.
    #[schema(required, example = "0.184918125")]
    pub cost: Option<String>,
    /// Reports, corrections not counted.
    pub reports: i64,
    /// Corrections.
    pub corrections: i64,
    /// Reports whose counts are unknown.
    pub unmeasured_reports: i64,
    /// Reports whose price is unknown.
    pub unpriced_reports: i64,
}

/// The sum over nothing.
const NOTHING: UsageGroupView = UsageGroupView {
    day: None,
    agent_id: None,
    agent_slug: None,
    model_id: None,
    model_ref: None,
    project_id: None,
    project_slug: None,
    tokens_in: 0,
    tokens_out: 0,
    cache_read_tokens: 0,
    cache_write_tokens: 0,
    cost: None,
    reports: 0,
    corrections: 0,
    unmeasured_reports: 0,
    unpriced_reports: 0,
};

impl From<&UsageGroup> for UsageGroupView {
    fn from(group: &UsageGroup) -> Self {
        Self {
            // The first ten characters of a time are its day.
            day: group.day.map(|day| day.to_string().chars().take(10).collect()),
            agent_id: group.agent_id.map(|id| id.0),
            agent_slug: group.agent_slug.clone(),
            model_id: group.model_id.clone(),
            model_ref: group.model_ref.map(|id| id.0),
            project_id: group.project_id.map(|id| id.0),
            project_slug: group.project_slug.clone(),
            tokens_in: group.tokens.tokens_in,
            tokens_out: group.tokens.tokens_out,
            cache_read_tokens: group.tokens.cache_read_tokens,
            cache_write_tokens: group.tokens.cache_write_tokens,
            cost: group.cost.map(|cost| cost.to_string()),
            reports: group.reports,
            corrections: group.corrections,
            unmeasured_reports: group.unmeasured_reports,
            unpriced_reports: group.unpriced_reports,
        }
    }
}

/// An agent's month so far, beside its advisory cap. The cap stops nothing.
#[derive(Debug, Serialize, ToSchema)]
pub struct AgentMonthView {
    /// The agent.
    #[schema(required)]
    pub agent_id: Option<Uuid>,
    /// Its newest slug among the reports.
    #[schema(required)]
    pub agent_slug: Option<String>,
    /// What is known of the month's cost, in US dollars; null when nothing is.
    #[schema(required, example = "81.5")]
    pub cost: Option<String>,
    /// The agent's `monthly_cost_cap`.
    #[schema(required, example = "100")]
    pub monthly_cost_cap: Option<String>,
    /// `at_80` from 80 % of the cap on, `at_100` from all of it on, else null.
    #[schema(required, example = "at_80")]
    pub warning: Option<String>,
    /// Reports whose counts are unknown.
    pub unmeasured_reports: i64,
    /// Reports whose price is unknown.
    pub unpriced_reports: i64,
}

impl From<&AgentMonth> for AgentMonthView {
    fn from(month: &AgentMonth) -> Self {
        Self {
            agent_id: month.sums.agent_id.map(|id| id.0),
            agent_slug: month.sums.agent_slug.clone(),
            cost: month.sums.cost.map(|cost| cost.to_string()),
            monthly_cost_cap: month.cap.map(|cap| cap.to_string()),
            warning: month.warning.map(|warning| warning.to_string()),
            unmeasured_reports: month.sums.unmeasured_reports,
            unpriced_reports: month.sums.unpriced_reports,
        }
    }
}

/// What agents used.
#[derive(Debug, Serialize, ToSchema)]
pub struct AgentUsageView {
    /// Recorded at this instant or later.
    #[schema(format = DateTime)]
    pub start: String,
    /// Recorded before this instant.
    #[schema(format = DateTime)]
    pub end: String,
    /// By what the sums are grouped.
    pub group_by: Vec<String>,
    /// The sums, by day, agent, model and project.
    pub groups: Vec<UsageGroupView>,
    /// The sum over all of them.
    pub total: UsageGroupView,
    /// When the current month began, UTC.
    #[schema(format = DateTime)]
    pub month_start: String,
    /// Each agent that reported in the current month, whatever `start` and `end` say.
    pub month_to_date: Vec<AgentMonthView>,
}

impl AgentUsageView {
    /// The answer to a query from `start` to `end`.
    pub fn new(start: String, end: String, group_by: Vec<String>, usage: &AgentUsage) -> Self {
        Self {
            start,
            end,
            group_by,
            groups: usage.groups.iter().map(UsageGroupView::from).collect(),
            total: usage.total.as_ref().map_or(NOTHING, UsageGroupView::from),
            month_start: usage.month_start.to_string(),
            month_to_date: usage.months.iter().map(AgentMonthView::from).collect(),
        }
    }
}

/// One entry of the operations log: a projection of the event that it carries.
#[derive(Debug, Serialize, ToSchema)]
pub struct OperationView {
    /// `resolution` or `outcome`.
    pub kind: String,
    /// The task.
    pub task_id: Uuid,
    /// Its quotable name.
    pub short_id: String,
    /// Its agent.
    pub agent_id: Uuid,
    /// The agent's slug when the task was created.
    pub agent_slug: String,
    /// Its primary project.
    #[schema(required)]
    pub project_id: Option<Uuid>,
    /// `request.resolved` or `outcome.set`: who did it, when, and what.
    pub event: EventView,
}

impl From<&Operation> for OperationView {
    fn from(operation: &Operation) -> Self {
        Self {
            kind: operation.kind.to_string(),
            task_id: operation.task.0,
            short_id: operation.short_id.to_string(),
            agent_id: operation.agent_id.0,
            agent_slug: operation.agent_slug.clone(),
            project_id: operation.project_id.map(|id| id.0),
            event: EventView::from(&operation.event),
        }
    }
}

/// What proves a copy of a log whole: a log of `last_seq` entries whose digests end in `log_digest` is this one.
#[derive(Debug, Serialize, ToSchema)]
pub struct ProofView {
    /// The tenant.
    pub organization_id: Uuid,
    /// The task; its id is part of every digest.
    pub task_id: Uuid,
    /// Its quotable name.
    pub short_id: String,
    /// The length of the log.
    pub last_seq: i64,
    /// The head of the digest chain.
    pub log_digest: String,
    /// Where the log is: `postgres` while the task may still move, then `log_store`.
    pub location: String,
    /// Up to where it was last found whole in the permanent log; 0: not yet.
    pub verified_seq: i64,
    /// When that was.
    #[schema(required, format = DateTime)]
    pub verified_at: Option<String>,
    /// When it moved there for good.
    #[schema(required, format = DateTime)]
    pub log_archived_at: Option<String>,
    /// When this was said.
    #[schema(format = DateTime)]
    pub issued_at: String,
    /// Who says so.
    pub issuer: String,
    /// All of the above as a compact JWS of type `mandate-proof+jws`, by a key of `/.well-known/jwks.json`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub jws: String,
}

impl ProofView {
    /// The proof as `issuer` says it at `issued_at`, not yet signed.
    pub fn new(proof: &Proof, issuer: &str, issued_at: String) -> Self {
        Self {
            organization_id: proof.organization.0,
            task_id: proof.task.0,
            short_id: proof.short_id.to_string(),
            last_seq: proof.last_seq,
            log_digest: proof.log_digest.to_string(),
            location: proof.location.as_str().to_owned(),
            verified_seq: proof.verified_seq,
            verified_at: proof.verified_at.map(|at| at.to_string()),
            log_archived_at: proof.log_archived_at.map(|at| at.to_string()),
            issued_at,
            issuer: issuer.to_owned(),
            jws: String::new(),
        }
    }
}
