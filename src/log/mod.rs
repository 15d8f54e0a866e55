//! The way to the permanent log: two ports, each with a distributed engine and an embedded one, chosen by URL.
//!
//! [`Stream`] carries committed rows away ([`kafka`], or [`direct`] into the store); [`LogStore`] keeps them for good
//! ([`clickhouse`], or [`postgres`] in a schema of its own). Rows may arrive more than once and in any order: the store
//! keeps one per key, that of the highest version. Nothing here is asked before a transaction has committed, and
//! nothing is pruned on the word of the stream: the sweep reads the store.

mod apart;
pub mod clickhouse;
mod coverage;
pub mod direct;
pub mod kafka;
mod operations;
mod patience;
pub mod postgres;
mod row;
pub mod sink;
mod usage;

use futures::future::BoxFuture;

pub use apart::{Reason, Refused, append_or_set_apart};
pub use coverage::Coverage;
pub use operations::{Operation, OperationKind, OperationPosition, OperationsQuery};
pub use row::{Batch, EventRow, RowError, UsageRow};
pub use usage::{UsageGroup, UsageKey, UsageQuery};

use crate::domain::event::Event;
use crate::domain::ids::{OrganizationId, ReportId, TaskId};
use crate::domain::log_page::EventPage;

/// Why the log store did not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LogStoreError {
    /// It cannot be reached, answers too late, or cannot work now: try again.
    #[error("the log store is unavailable: {0}")]
    Unavailable(String),
    /// It refuses at least one row of the batch, and would again. Nothing of the batch counts as written.
    #[error("the log store refuses a row: {0}")]
    Refused(Reason),
    /// It holds a row that no version of this program wrote.
    #[error("impossible row in the log store: {0}")]
    ImpossibleRow(String),
    /// Where it is cannot be read from the settings.
    #[error("{0}")]
    Setting(String),
}

impl LogStoreError {
    /// What it means on reading: nothing was offered, so what blames a row blames one that is there.
    fn on_read(self) -> Self {
        match self {
            Self::Refused(reason) => Self::ImpossibleRow(reason.shown),
            other => other,
        }
    }
}

impl From<RowError> for LogStoreError {
    fn from(fault: RowError) -> Self {
        Self::ImpossibleRow(fault.to_string())
    }
}

/// The answer of the log store.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, LogStoreError>>;

/// The permanent log.
pub trait LogStore: Send + Sync + 'static {
    /// The engine's name, for log lines.
    fn name(&self) -> &'static str;

    /// Brings the schema up to date. Idempotent.
    fn migrate(&self) -> Answer<'_, ()>;

    /// Keeps `batch`: durable once answered. A row that is there already lands beside its twin or replaces an older
    /// version.
    fn append<'a>(&'a self, batch: &'a Batch) -> Answer<'a, ()>;

    /// What the store has of each task, all versions and duplicates counted once. A task of which it has nothing is
    /// absent.
    fn coverage<'a>(&'a self, tasks: &'a [(OrganizationId, TaskId)]) -> Answer<'a, Vec<Coverage>>;

    /// The seqs of a task that the store has, ascending.
    fn seqs(&self, organization: OrganizationId, task: TaskId) -> Answer<'_, Vec<i64>>;

    /// The usage rows of a task that the store has.
    fn report_ids(&self, organization: OrganizationId, task: TaskId) -> Answer<'_, Vec<ReportId>>;

    /// Every event row of `tasks` with a seq from `first` to `last`, duplicates and superseded versions too, by task,
    /// seq and falling version. For verification.
    fn stored_events<'a>(
        &'a self,
        organization: OrganizationId,
        tasks: &'a [TaskId],
        first: i64,
        last: i64,
    ) -> Answer<'a, Vec<EventRow>>;

    /// Every usage row of these reports, duplicates and superseded versions too, in any order. For verification, which
    /// asks for so many as it can hold.
    fn stored_usage<'a>(
        &'a self,
        organization: OrganizationId,
        reports: &'a [(TaskId, ReportId)],
    ) -> Answer<'a, Vec<UsageRow>>;

    /// A part of a task's log, ascending, each seq once, and whether there is more in the direction that was read.
    fn events<'a>(
        &'a self,
        organization: OrganizationId,
        task: TaskId,
        page: &'a EventPage,
    ) -> Answer<'a, (Vec<Event>, bool)>;

    /// Sums over usage rows.
    fn usage<'a>(&'a self, query: &'a UsageQuery) -> Answer<'a, Vec<UsageGroup>>;

    /// Resolutions and terminal outcomes, the newest first.
    fn operations<'a>(&'a self, query: &'a OperationsQuery) -> Answer<'a, Vec<Operation>>;

    /// Closes what is open towards it.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// The stream could not be prepared.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the stream: {0}")]
pub struct StreamError(pub String);

/// What became of a batch that was handed over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Published {
    /// Rows that the stream has acknowledged.
    pub delivered: u64,
    /// Rows that it has not; the sweep finds them missing.
    pub failed: u64,
    /// Rows among them that the log store refuses, and would again.
    pub refused: u64,
    /// Why, for the log.
    pub fault: Option<String>,
}

/// How a stream wants to be fed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Batches that may be under way at once.
    pub in_flight: usize,
    /// How long rows are gathered before a batch that is not full goes.
    pub linger: std::time::Duration,
    /// The most rows of a batch.
    pub rows: usize,
}

/// The way from the commit to the log store.
pub trait Stream: Send + Sync + 'static {
    /// The engine's name, for log lines.
    fn name(&self) -> &'static str;

    /// Makes topics, and checks that they take rows of the largest size. Idempotent.
    fn prepare(&self) -> BoxFuture<'_, Result<(), StreamError>>;

    /// Whether what it has acknowledged is in the log store already.
    fn lands(&self) -> bool {
        false
    }

    /// How it wants to be fed.
    fn pace(&self) -> Pace;

    /// Hands rows over; answers once each is acknowledged or given up. Bounded in time.
    fn publish(&self, batch: Batch) -> BoxFuture<'_, Published>;
}
