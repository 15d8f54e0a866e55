//! Sums over what agents used.

use crate::domain::ids::{AgentId, ModelId, OrganizationId, ProjectId};
use crate::domain::money::{Money, TokenCounts};
use crate::domain::names::names;
use crate::domain::time::Timestamp;

names! {
    /// What sums are grouped by.
    UsageKey, UsageKeyError: "key of usage groups" {
        /// The UTC day of `recorded_at`.
        Day = "day",
        /// The task's agent.
        Agent = "agent",
        /// The model: the directory's when the name was known, else the name as reported.
        Model = "model",
        /// The task's primary project.
        Project = "project",
    }
}

/// Which usage rows to add up, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageQuery {
    /// The tenant.
    pub organization: OrganizationId,
    /// Recorded at this instant or later.
    pub start: Timestamp,
    /// Recorded before this instant.
    pub end: Timestamp,
    /// The keys; empty: one sum over everything.
    pub group_by: Vec<UsageKey>,
    /// At most so many groups, in the order of their keys (day, agent, model, project).
    pub limit: u32,
}

/// One sum. Each row counts once, in its highest version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageGroup {
    /// 00:00 UTC of the day, when grouped by it.
    pub day: Option<Timestamp>,
    /// The agent, when grouped by it.
    pub agent_id: Option<AgentId>,
    /// Its newest slug among the rows.
    pub agent_slug: Option<String>,
    /// The directory's model, when grouped by model and the name was known.
    pub model_ref: Option<ModelId>,
    /// The newest name under which harnesses reported it, when grouped by model.
    pub model_id: Option<String>,
    /// The project, when grouped by it and the task has one.
    pub project_id: Option<ProjectId>,
    /// Its newest slug among the rows.
    pub project_slug: Option<String>,
    /// The sum of the counts.
    pub tokens: TokenCounts,
    /// The sum of the costs that are known; absent when none is.
    pub cost: Option<Money>,
    /// Reports, corrections not counted.
    pub reports: i64,
    /// Corrections.
    pub corrections: i64,
    /// Reports whose counts are unknown (what corrections settled is taken off).
    pub unmeasured_reports: i64,
    /// Reports whose price is unknown (what corrections settled is taken off).
    pub unpriced_reports: i64,
}
