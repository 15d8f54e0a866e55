//! What operators read of the permanent log: what agents cost, what was decided, and how whole a log is.

use super::caller::Located;
use super::outbox::Outbox;
use super::{Caller, Service, ServiceError};
use crate::domain::digest::Digest;
use crate::domain::ids::{OrganizationId, ShortId, TaskId};
use crate::domain::money::Money;
use crate::domain::principal::Permission;
use crate::domain::refusal::{Fault, Refusal};
use crate::domain::time::Timestamp;
use crate::domain::usage::{CapWarning, cap_warning};
use crate::log::{Operation, OperationsQuery, UsageGroup, UsageKey, UsageQuery};

/// The most groups of one answer.
pub const USAGE_GROUPS_MAX: u32 = 10_000;

/// An agent's month so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentMonth {
    /// Its sums.
    pub sums: UsageGroup,
    /// Its advisory cap on the cost of a month.
    pub cap: Option<Money>,
    /// How near the cost is to the cap.
    pub warning: Option<CapWarning>,
}

/// What agents used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentUsage {
    /// The sums asked for.
    pub groups: Vec<UsageGroup>,
    /// The sum over all of it; absent when nothing was reported.
    pub total: Option<UsageGroup>,
    /// When the month began.
    pub month_start: Timestamp,
    /// Each agent that reported in this month.
    pub months: Vec<AgentMonth>,
}

/// Where a log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLocation {
    /// In Postgres, with the state.
    Postgres,
    /// In the permanent log.
    LogStore,
}

impl LogLocation {
    /// Its name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::LogStore => "log_store",
        }
    }
}

/// What proves a copy of a log whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// The tenant.
    pub organization: OrganizationId,
    /// The task.
    pub task: TaskId,
    /// Its quotable name.
    pub short_id: ShortId,
    /// The length of the log.
    pub last_seq: i64,
    /// Its head.
    pub log_digest: Digest,
    /// Where it is.
    pub location: LogLocation,
    /// Up to where it was last found whole in the permanent log; 0: not yet.
    pub verified_seq: i64,
    /// When that was.
    pub verified_at: Option<Timestamp>,
    /// When it moved there for good.
    pub log_archived_at: Option<Timestamp>,
}

impl Service {
    /// What agents used from `start` until `end`, grouped, and each agent's month to date beside its cap.
    pub async fn agent_usage(
        &self,
        caller: &Caller,
        start: Timestamp,
        end: Timestamp,
        group_by: Vec<UsageKey>,
    ) -> Result<AgentUsage, ServiceError> {
        caller.require(Permission::Read)?;
        let organization = caller.organization;
        let query = |group_by, start, end, limit| UsageQuery { organization, start, end, group_by, limit };
        let now = self.clock.now();
        let month_start = now.month_start();
        // One microsecond on, so that what was recorded at this very instant counts.
        let until = now.plus(std::time::Duration::from_micros(1));
        let groups = query(group_by, start, end, USAGE_GROUPS_MAX + 1);
        let total = query(Vec::new(), start, end, 1);
        let month = query(vec![UsageKey::Agent], month_start, until, u32::MAX);
        // Together, so that the three take no longer than one may.
        let (groups, mut total, sums) =
            futures::try_join!(self.log.usage(&groups), self.log.usage(&total), self.log.usage(&month))?;
        let total = total.pop();
        if groups.len() > USAGE_GROUPS_MAX as usize {
            let detail = format!("makes more than {USAGE_GROUPS_MAX} groups; narrow start and end");
            return Err(Refusal::Invalid(vec![Fault::query("group_by", detail)]).into());
        }
        let mut months = Vec::with_capacity(sums.len());
        for sums in sums {
            let agent = match sums.agent_id {
                Some(id) => self.directory.agent_by_id(organization, id).await?,
                None => None,
            };
            let cap = agent.and_then(|agent| agent.settings.monthly_cost_cap);
            let warning = sums.cost.zip(cap).and_then(|(cost, cap)| cap_warning(cost, cap));
            months.push(AgentMonth { sums, cap, warning });
        }
        Ok(AgentUsage { groups, total, month_start, months })
    }

    /// Resolutions and terminal outcomes, the newest first; and whether there is more.
    pub async fn operations_log(
        &self,
        caller: &Caller,
        mut query: OperationsQuery,
    ) -> Result<(Vec<Operation>, bool), ServiceError> {
        caller.require(Permission::Read)?;
        let limit = query.limit;
        query.limit = limit + 1;
        let mut operations = self.log.operations(&query).await?;
        let more = operations.len() > limit as usize;
        operations.truncate(limit as usize);
        Ok((operations, more))
    }

    /// What proves a copy of the task's log whole.
    pub async fn proof(&self, located: &Located) -> Result<Proof, ServiceError> {
        let organization = located.task.organization;
        let found = self.store.verification(organization, located.id).await?;
        let (task, verified_seq, verified_at) = found.ok_or(Refusal::TaskNotFound)?;
        let log_archived_at = task.log_archived_at();
        let location = if log_archived_at.is_some() { LogLocation::LogStore } else { LogLocation::Postgres };
        Ok(Proof {
            organization,
            task: task.id(),
            short_id: task.pinned().short_id,
            last_seq: task.facts().last_seq,
            log_digest: task.facts().log_digest,
            location,
            verified_seq,
            verified_at,
            log_archived_at,
        })
    }

    /// For how many seconds the oldest entry waits that is not known to be in the log store, and how many logs the store
    /// contradicts for good; over all organizations.
    pub async fn log_backlog(&self) -> Result<(i64, i64), ServiceError> {
        let backlog = self.store.log_backlog().await?;
        let age = |at: Timestamp| self.clock.now().micros().saturating_sub(at.micros()).max(0) / 1_000_000;
        Ok((backlog.oldest_unverified.map_or(0, age), backlog.mismatches))
    }

    /// How many committed rows wait to be handed over.
    pub fn queued(&self) -> usize {
        self.outbox.as_ref().map_or(0, Outbox::waiting)
    }
}
