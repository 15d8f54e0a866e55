//! A task: what creation pinned, and the facts that events change.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::ids::{AccountId, AgentId, OrganizationId, PersonId, ProjectId, ShortId, TaskId};
use super::money::{Money, TokenCounts};
use super::outcome::{Ending, Outcome, OutcomeReason};
use super::payload::JsonText;
use super::status::{Control, Status, status};
use super::time::Timestamp;

/// Who or what asked for a task. Immutable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Origin {
    /// A person.
    Human {
        /// The person.
        user: PersonId,
    },
    /// A scheduler.
    Schedule {
        /// The scheduled task, as the scheduler names it.
        scheduled_task: String,
    },
    /// A webhook.
    Webhook {
        /// The webhook, as its gateway names it.
        webhook: String,
        /// The delivery.
        delivery: String,
    },
    /// Another task, by delegation.
    Task {
        /// The parent.
        parent_task_id: TaskId,
        /// Its quotable name.
        parent_short_id: String,
        /// Its agent.
        agent_id: AgentId,
    },
}

impl Origin {
    /// Every kind's name.
    pub const KINDS: &'static [&'static str] = &["human", "schedule", "webhook", "task"];

    /// The kind's name.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Human { .. } => "human",
            Self::Schedule { .. } => "schedule",
            Self::Webhook { .. } => "webhook",
            Self::Task { .. } => "task",
        }
    }

    /// Whom a creation key belongs to: the user, the scheduled task, the webhook or the parent task.
    pub fn principal(&self) -> String {
        match self {
            Self::Human { user } => user.to_string(),
            Self::Schedule { scheduled_task } => scheduled_task.clone(),
            Self::Webhook { webhook, .. } => webhook.clone(),
            Self::Task { parent_task_id, .. } => parent_task_id.to_string(),
        }
    }
}

/// Identity, origin and everything else that creation pins. Immutable, and shared by the snapshots of a task.
#[derive(Debug, PartialEq, Eq)]
pub struct Pinned {
    /// The tenant.
    pub organization_id: OrganizationId,
    /// The task.
    pub id: TaskId,
    /// Its quotable number.
    pub short_id: ShortId,
    /// The agent.
    pub agent_id: AgentId,
    /// The agent's slug at creation.
    pub agent_slug: String,
    /// The agent's version.
    pub agent_version: i32,
    /// The version of its prompt.
    pub prompt_version: i32,
    /// The agent's account, the only caller of the harness's routes.
    pub service_account_id: AccountId,
    /// The primary project.
    pub project_id: Option<ProjectId>,
    /// Its slug at creation.
    pub project_slug: Option<String>,
    /// The title.
    pub title: String,
    /// The description.
    pub description: String,
    /// What the task is about.
    pub subject: Option<String>,
    /// Free labels.
    pub labels: BTreeMap<String, String>,
    /// Free parameters.
    pub params: Option<JsonText>,
    /// Who or what asked for it.
    pub origin: Origin,
    /// The trigger's account, when a trigger created it.
    pub created_by_account: Option<AccountId>,
    /// The creation key.
    pub idempotency_key: Option<String>,
    /// The hard budget in US dollars; absent: no ceiling.
    pub budget: Option<Money>,
    /// Time limit in seconds from the first session on.
    pub task_timeout_seconds: Option<u32>,
    /// Limit on the depth of delegation.
    pub max_depth: u32,
    /// Limit on open children.
    pub max_children: u32,
    /// 0 for a root.
    pub depth: u32,
    /// When it was created.
    pub created_at: Timestamp,
}

/// The facts that events change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The accountable person.
    pub owner: PersonId,
    /// Follows from the other facts; see [`status`].
    pub status: Status,
    /// Since when.
    pub status_since: Timestamp,
    /// What people want of it.
    pub control: Control,
    /// The agent's phase.
    pub phase: Option<String>,
    /// The furthest milestone.
    pub furthest_milestone: Option<String>,
    /// How it ended; set exactly when closed.
    pub ending: Option<Ending>,
    /// What the harness says of the ending.
    pub result: Option<JsonText>,
    /// Σ of the ledger's costs.
    pub cost_total: Money,
    /// What is set aside for children.
    pub set_aside: Money,
    /// Σ of the ledger's counts.
    pub tokens: TokenCounts,
    /// Reports without usable counts.
    pub unmeasured_reports: i64,
    /// Reports that could not be priced.
    pub unpriced_reports: i64,
    /// Open requests.
    pub open_requests: u32,
    /// Open sessions.
    pub open_sessions: u32,
    /// Open children.
    pub open_children: u32,
    /// The last session's generation; 0 before the first.
    pub last_generation: u32,
    /// Whether a session was ever taken over; from then on every harness write names its session.
    pub taken_over: bool,
    /// The length of the log, and the row's version.
    pub last_seq: i64,
    /// The head of the digest chain.
    pub log_digest: Digest,
    /// The clock at the last commit.
    pub updated_at: Timestamp,
    /// When it closed.
    pub closed_at: Option<Timestamp>,
    /// When its time limit ends; set by the first session.
    pub timeout_at: Option<Timestamp>,
}

/// A task. Its facts change only by folding events; there are no setters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    pinned: Arc<Pinned>,
    pub(in crate::domain) facts: Facts,
    log_archived_at: Option<Timestamp>,
}

/// A row that no history of events can have produced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("task {task}: {fault}")]
pub struct ImpossibleTask {
    /// The row.
    pub task: TaskId,
    /// What is wrong with it.
    pub fault: &'static str,
}

impl Task {
    /// Rebuilds a task from its stored row, and refuses a row that contradicts itself.
    pub fn restore(
        pinned: Arc<Pinned>,
        facts: Facts,
        log_archived_at: Option<Timestamp>,
    ) -> Result<Self, ImpossibleTask> {
        let fault = if facts.status != status_of(&facts) {
            Some("its status does not follow from its facts")
        } else if facts.ending.is_some() != facts.closed_at.is_some() {
            Some("it has an outcome and no time of closing, or the other way round")
        } else if facts.last_seq < 1 {
            Some("it has no event")
        } else if log_archived_at.is_some() && facts.ending.is_none() {
            Some("its log is archived and it is open")
        } else {
            None
        };
        match fault {
            Some(fault) => Err(ImpossibleTask { task: pinned.id, fault }),
            None => Ok(Self { pinned, facts, log_archived_at }),
        }
    }

    pub(in crate::domain) fn begin(pinned: Arc<Pinned>, facts: Facts) -> Self {
        Self { pinned, facts, log_archived_at: None }
    }

    /// What creation pinned.
    pub fn pinned(&self) -> &Pinned {
        &self.pinned
    }

    /// What creation pinned, shared: it never changes.
    pub fn shared(&self) -> Arc<Pinned> {
        Arc::clone(&self.pinned)
    }

    /// The facts.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// When the log moved to the permanent store.
    pub fn log_archived_at(&self) -> Option<Timestamp> {
        self.log_archived_at
    }

    /// The task's id.
    pub fn id(&self) -> TaskId {
        self.pinned.id
    }

    /// The outcome, once closed.
    pub fn outcome(&self) -> Option<Outcome> {
        self.facts.ending.map(Ending::outcome)
    }

    /// The outcome's reason.
    pub fn outcome_reason(&self) -> Option<OutcomeReason> {
        self.facts.ending.and_then(Ending::reason)
    }

    /// `budget − cost_total − set_aside`: negative by the calls in flight; absent without a budget.
    pub fn budget_remaining(&self) -> Option<Money> {
        remaining(self.pinned.budget, self.facts.cost_total, self.facts.set_aside)
    }

    /// Whether the cost is all there is: no report went unmeasured or unpriced.
    pub fn budget_certain(&self) -> bool {
        self.facts.unmeasured_reports == 0 && self.facts.unpriced_reports == 0
    }
}

/// What a harness needs to know of its task at every turn, and no more: it is read with every heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The quotable number.
    pub short_id: ShortId,
    /// What the task is doing.
    pub status: Status,
    /// What people want of it.
    pub control: Control,
    /// The agent's phase.
    pub phase: Option<String>,
    /// How it ended; set exactly when closed.
    pub ending: Option<Ending>,
    /// The length of the log.
    pub last_seq: i64,
    /// The hard budget.
    pub budget: Option<Money>,
    /// Σ of the ledger's costs.
    pub cost_total: Money,
    /// What is set aside for children.
    pub set_aside: Money,
    /// Whether the cost is all there is.
    pub budget_certain: bool,
    /// Open requests.
    pub open_requests: u32,
}

impl From<&Task> for Standing {
    fn from(task: &Task) -> Self {
        let facts = task.facts();
        Self {
            short_id: task.pinned().short_id,
            status: facts.status,
            control: facts.control,
            phase: facts.phase.clone(),
            ending: facts.ending,
            last_seq: facts.last_seq,
            budget: task.pinned().budget,
            cost_total: facts.cost_total,
            set_aside: facts.set_aside,
            budget_certain: task.budget_certain(),
            open_requests: facts.open_requests,
        }
    }
}

impl Standing {
    /// As [`Task::budget_remaining`].
    pub fn budget_remaining(&self) -> Option<Money> {
        remaining(self.budget, self.cost_total, self.set_aside)
    }
}

pub(in crate::domain) fn remaining(budget: Option<Money>, cost_total: Money, set_aside: Money) -> Option<Money> {
    // Each of the three is far inside the range in which differences are exact.
    budget?.checked_sub(cost_total).and_then(|rest| rest.checked_sub(set_aside)).ok()
}

/// The status that follows from `facts`.
pub fn status_of(facts: &Facts) -> Status {
    status(facts.ending.map(Ending::outcome), facts.control, facts.open_requests, facts.open_sessions)
}
