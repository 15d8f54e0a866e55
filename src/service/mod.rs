//! Use cases: read, ask the domain, commit. One function each.

pub mod archive;
pub mod artifacts;
pub mod caller;
pub mod children;
pub mod clock;
pub mod control;
pub mod create;
pub mod directory;
pub mod error;
pub mod events;
mod family;
pub mod feed;
mod metrics;
pub mod operations;
pub mod outbox;
pub mod outcome;
pub mod relations;
pub mod requests;
pub mod sessions;
pub mod sweep;
pub mod tasks;
pub mod time;
pub mod trace;
pub mod usage;
pub mod waiting;

use std::sync::Arc;
use std::time::Duration;

use moka::future::Cache;
use tokio::sync::Mutex;

use self::artifacts::Artifacts;
use self::caller::Located;
pub use self::caller::{Answered, Call, Caller, Principal, Replay};
pub use self::clock::Clock;
pub use self::error::ServiceError;
pub use self::metrics::{Counters, LogCounters};
use self::outbox::Outbox;
use self::waiting::Waiting;
use crate::directory::Directory;
use crate::domain::aggregate::Aggregate;
use crate::domain::change::{Change, Context, Decision};
use crate::domain::command::{Command, Correction};
use crate::domain::decide::Ascent;
use crate::domain::event::Actor;
use crate::domain::ids::{AccountId, OrganizationId, ShortId, TaskId};
use crate::domain::refusal::Refusal;
use crate::log::LogStore;
use crate::store::{CommitError, Store, Want};
// What reading routes ask for.
pub use crate::domain::log_page::EventPage;
pub use crate::log::{Operation, OperationKind, OperationPosition, OperationsQuery, UsageGroup, UsageKey};
pub use crate::store::{InboxCounts, InboxPage, Listing, Record, SUBJECT_KINDS, Sort, TaskFilter, TaskPosition};

/// How often a change is decided again after somebody else was first, before the caller is told to try later.
const ATTEMPTS_MAX: u32 = 50;
/// How many tasks keep a queue and a snapshot in memory.
const QUEUES_MAX: u64 = 20_000;
/// How long an idle one is kept.
const QUEUE_IDLE: Duration = Duration::from_mins(10);

/// How many tasks are remembered by their names, at some hundred bytes each.
const LOCATED_MAX: u64 = 100_000;

/// Settings of the use cases.
#[derive(Debug, Clone)]
pub struct ServiceSettings {
    /// What harnesses are told about how often to heartbeat.
    pub heartbeat_interval: Duration,
    /// How long a request lives when it does not say.
    pub request_ttl: Duration,
    /// The most reads that may wait at once.
    pub waiting_reads_max: usize,
}

/// The queue of a task within this process, and the snapshot that its last commit left.
type Queue = Arc<Mutex<Option<Aggregate>>>;

/// The use cases.
pub struct Service {
    store: Store,
    directory: Arc<dyn Directory>,
    clock: Clock,
    settings: ServiceSettings,
    queues: Cache<(OrganizationId, TaskId), Queue>,
    /// What tasks are named never changes, nor whose they are.
    located: Cache<(OrganizationId, ShortId), Located>,
    counters: Counters,
    log: Arc<dyn LogStore>,
    /// Where commits are handed in; absent in a process that does not publish.
    outbox: Option<Outbox>,
    /// The reads that wait for events.
    waiting: Arc<Waiting>,
    /// The artifact store; absent where none is set.
    artifacts: Option<Artifacts>,
    /// The tasks that time closes.
    closing: time::Closing,
}

/// What a command led to.
#[derive(Debug)]
pub enum Done {
    /// This was written.
    Changed(Arc<Change>),
    /// The wanted state was there already.
    Unchanged(Box<Aggregate>),
}

impl Done {
    /// The state afterwards.
    pub fn aggregate(&self) -> &Aggregate {
        match self {
            Self::Changed(change) => change.next(),
            Self::Unchanged(aggregate) => aggregate,
        }
    }
}

/// Why a command was not carried out.
#[derive(Debug)]
enum Failed {
    /// An event id was there already.
    DuplicateEvent,
    /// A key was there already.
    DuplicateKey,
    /// What the artifact store was to hold was removed from it.
    ArtifactGone,
    /// Anything that is told to the caller.
    Error(ServiceError),
}

impl From<Failed> for ServiceError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Error(error) => error,
            Failed::ArtifactGone => Self::Unavailable("an artifact was being removed".into()),
            // Only event batches and keyed calls meet these, and they look first.
            Failed::DuplicateEvent | Failed::DuplicateKey => Self::Internal("a duplicate that nobody expected".into()),
        }
    }
}

/// A command with what it needs to be decided and written.
struct Order<'a> {
    organization: OrganizationId,
    task: TaskId,
    want: Want,
    /// Whether the snapshot of the last commit may be decided on. What it refuses is decided again on a fresh one.
    hot: bool,
    account: Option<AccountId>,
    actor: Actor,
    body_hash: crate::domain::change::BodyHash,
    redacted: &'a [String],
}

impl<'a> Order<'a> {
    fn of(call: &'a Call, task: TaskId) -> Self {
        Self {
            organization: call.caller.organization,
            task,
            want: Want::default(),
            hot: false,
            account: None,
            actor: call.caller.actor(),
            body_hash: call.body_hash,
            redacted: &call.redacted,
        }
    }
}

impl Service {
    /// Puts the use cases together. Archived logs are read from `log`.
    pub fn new(
        store: Store,
        directory: Arc<dyn Directory>,
        log: Arc<dyn LogStore>,
        clock: Clock,
        settings: ServiceSettings,
    ) -> Self {
        let queues = Cache::builder().max_capacity(QUEUES_MAX).time_to_idle(QUEUE_IDLE).build();
        let located = Cache::new(LOCATED_MAX);
        let waiting = Arc::new(Waiting::new(settings.waiting_reads_max));
        let counters = Counters::default();
        Self {
            store,
            directory,
            clock,
            settings,
            queues,
            located,
            counters,
            log,
            outbox: None,
            waiting,
            artifacts: None,
            closing: time::Closing::default(),
        }
    }

    /// Hands what is committed in at `outbox`.
    #[must_use]
    pub fn publishing(mut self, outbox: Outbox) -> Self {
        self.outbox = Some(outbox);
        self
    }

    /// Keeps artifacts with `artifacts`.
    #[must_use]
    pub fn keeping(mut self, artifacts: Artifacts) -> Self {
        self.artifacts = Some(artifacts);
        self
    }

    /// After a commit, never before: counts it, wakes who waits for it and hands it over.
    fn committed(&self, change: &Change, account: Option<AccountId>) {
        self.counters.committed(change.events().len());
        self.waiting.committed(change.next().task());
        if let Some(outbox) = &self.outbox {
            outbox.hand_in(change, account);
        }
    }

    /// The clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The directory.
    pub fn directory(&self) -> &dyn Directory {
        self.directory.as_ref()
    }

    /// The settings.
    pub fn settings(&self) -> &ServiceSettings {
        &self.settings
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Whether Postgres answers and has this version's schema.
    pub async fn ready(&self) -> Result<(), ServiceError> {
        Ok(self.store.ping().await?)
    }

    /// Decides `command` and writes what it leads to. Calls on one task queue up within the process, so that it does
    /// not race itself; between processes the compare in the commit decides.
    async fn carry_out(&self, order: Order<'_>, command: &Command) -> Result<Done, Failed> {
        let key = (order.organization, order.task);
        let queue = self.queues.get_with(key, async { Arc::default() }).await;
        let mut slot = queue.lock().await;
        for _ in 0..ATTEMPTS_MAX {
            let kept = if order.hot { slot.take() } else { None };
            let fresh = kept.is_none();
            let aggregate = match kept {
                Some(aggregate) => aggregate,
                None => self.load(&order).await.map_err(Failed::Error)?,
            };
            let completed = self.complete(&order, command).await.map_err(Failed::Error)?;
            let decided = self.decide(&order, &aggregate, completed);
            // What a snapshot refuses, or finds done, may be news from another process: it is an old one, or the task
            // moved on between the reading of its row and that of its sessions and requests.
            let final_word = matches!(decided, Ok(Decision::Change(_)))
                || fresh && self.stands(&order, &aggregate).await.map_err(Failed::Error)?;
            if !final_word {
                continue;
            }
            let change = match decided {
                Ok(Decision::Change(change)) => Arc::<Change>::from(change),
                Ok(Decision::Unchanged) => return Ok(Done::Unchanged(Box::new(aggregate))),
                Err(refusal) => return Err(Failed::Error(refusal.into())),
            };
            if Ascent::of(&aggregate, &change).map_err(|refusal| Failed::Error(refusal.into()))?.next().is_some() {
                // Several queues are taken in order, so this one is let go first.
                *slot = None;
                drop(slot);
                return self.carry_up(&order, command).await;
            }
            match self.store.commit(&change, order.account).await {
                Ok(()) => {
                    self.committed(&change, order.account);
                    let mut next = change.next().clone();
                    next.trim();
                    *slot = Some(next);
                    return Ok(Done::Changed(change));
                }
                Err(CommitError::Conflict) => {
                    self.counters.conflict();
                    *slot = None;
                }
                Err(other) => {
                    *slot = None;
                    return self.refused_by_guard(other, &change, aggregate);
                }
            }
        }
        Err(Failed::Error(ServiceError::Unavailable("the task changes too fast".to_owned())))
    }

    /// Whether the task is still as it was loaded. One without sessions and requests was read at once.
    async fn stands(&self, order: &Order<'_>, aggregate: &Aggregate) -> Result<bool, ServiceError> {
        if aggregate.sessions().is_empty() && aggregate.requests().is_empty() {
            return Ok(true);
        }
        let now = self.store.version(order.organization, order.task).await?;
        Ok(now == Some(aggregate.task().facts().last_seq))
    }

    /// The command with what must be as new as the snapshot: the report that it corrects and earlier corrections, or
    /// the associated project. Read after the snapshot, for each decision: another correction or association moves
    /// `last_seq`, so the compare in the commit holds for them too.
    async fn complete(&self, order: &Order<'_>, command: &Command) -> Result<Command, ServiceError> {
        let mut command = command.clone();
        if let Command::Report { report: Ok(report), .. } = &mut command
            && let Some(Correction { original, chain }) = &mut report.corrects
        {
            *chain = self.store.correction_chain(order.organization, order.task, *original).await?;
        }
        if let Command::AssociateProject { project, found, .. } | Command::DissociateProject { project, found } =
            &mut command
        {
            *found = self.store.task_project(order.organization, order.task, *project).await?;
        }
        Ok(command)
    }

    fn decide(&self, order: &Order<'_>, aggregate: &Aggregate, command: Command) -> Result<Decision, Refusal> {
        self.with_context(order, |context| aggregate.decide(command, context))
    }

    /// Decides with the order's caller, the clock and fresh ids.
    fn with_context<T>(&self, order: &Order<'_>, decide: impl FnOnce(&mut Context<'_>) -> T) -> T {
        let mut new_id = Clock::new_id;
        decide(&mut Context {
            actor: order.actor.clone(),
            now: self.clock.now(),
            new_id: &mut new_id,
            body_hash: order.body_hash,
            redacted: order.redacted.to_vec(),
        })
    }

    fn refused_by_guard(&self, error: CommitError, change: &Change, base: Aggregate) -> Result<Done, Failed> {
        Err(match error {
            CommitError::DuplicateEvent => Failed::DuplicateEvent,
            CommitError::DuplicateKey => Failed::DuplicateKey,
            CommitError::ArtifactGone => Failed::ArtifactGone,
            CommitError::Expired => {
                let first = change.guards().unexpired.iter().filter_map(|id| base.request(*id)).map(|r| r.expires_at);
                let expires_at = first.min().unwrap_or(self.clock.now());
                Failed::Error(Refusal::RequestExpired(expires_at).into())
            }
            CommitError::Concurrency => {
                let limit = change.guards().concurrency.unwrap_or_default();
                Failed::Error(Refusal::ConcurrencyLimit(limit).into())
            }
            CommitError::Alive => return Ok(Done::Unchanged(Box::new(base))),
            CommitError::Store(fault) => Failed::Error(fault.into()),
            CommitError::Conflict | CommitError::AgentDeleted => {
                Failed::Error(ServiceError::Unavailable(error.to_string()))
            }
        })
    }

    async fn load(&self, order: &Order<'_>) -> Result<Aggregate, ServiceError> {
        let loaded = self.store.load(order.organization, order.task, &order.want).await?;
        loaded.ok_or(ServiceError::Refused(Refusal::TaskNotFound))
    }
}
