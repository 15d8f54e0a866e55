//! The sweep: compares what moved with the log store, sends again what is missing there, and archives what is closed and
//! proven whole. It replaces an outbox: whatever became of a row on its way, here it is found.

mod repair;
mod verify;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::verify::Verdict;
use super::{Clock, LogCounters};
use crate::domain::ids::{OrganizationId, TaskId};
use crate::domain::time::Timestamp;
use crate::log::{Coverage, LogStore, LogStoreError, Stream};
use crate::store::{Store, StoreError, SweptTask, VERIFY_FAILURES_MAX};

/// The name of the lease under which one process sweeps.
const LEASE: &str = "sweep";
/// How often in its time the lease is renewed.
const LEASE_RENEWALS: u32 = 3;
/// After so many times that rows were sent again in vain, the patience grows no more: 2⁶ times as long as at first.
const PATIENCE_DOUBLINGS_MAX: i32 = 6;

/// Settings of the sweep.
#[derive(Debug, Clone, Copy)]
pub struct SweepSettings {
    /// How long after its close a log may be archived.
    pub grace: Duration,
    /// How long a sweep that died keeps others out.
    pub lease: Duration,
    /// How many tasks are compared at once.
    pub batch: u32,
    /// How old an entry must be before it counts as lost.
    pub patience: Duration,
    /// How long a task must have been still before its flag is cleared.
    pub quiet: Duration,
}

/// Why a round came to no end. What it had found until then is kept; the rest is untouched.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// Postgres.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The log store.
    #[error(transparent)]
    Log(#[from] LogStoreError),
    /// Another process took the lease in the middle of the round.
    #[error("the lease was lost: this round took longer than it was held for")]
    LeaseLost,
}

/// What a round did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Tasks that were compared.
    pub compared: u64,
    /// Tasks found whole in the log store.
    pub whole: u64,
    /// Rows that were missing there and sent again.
    pub republished: u64,
    /// Rows that could not be sent again; the next round tries.
    pub unpublished: u64,
    /// Logs that were archived.
    pub archived: u64,
    /// Logs that the store contradicts.
    pub mismatched: u64,
    /// Whether another process sweeps, so that this one did nothing.
    pub elsewhere: bool,
    /// How long it waited for a stream that took nothing.
    pub in_vain: Duration,
}

/// The sweep.
pub struct Sweep {
    store: Store,
    log: Arc<dyn LogStore>,
    stream: Arc<dyn Stream>,
    clock: Clock,
    settings: SweepSettings,
    counters: LogCounters,
    /// Who this is to the lease.
    holder: Uuid,
    answering: Mutex<Answering>,
    stop: CancellationToken,
}

/// Since when the log store answers, as far as this sweep knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answering {
    /// It has never failed.
    Always,
    /// It answers again.
    Since(Timestamp),
    /// It does not.
    No,
}

impl Sweep {
    /// A sweep over `store`, which compares with `log` and sends by `stream`.
    pub fn new(
        store: Store,
        log: Arc<dyn LogStore>,
        stream: Arc<dyn Stream>,
        clock: Clock,
        settings: SweepSettings,
        counters: LogCounters,
    ) -> Self {
        let (holder, stop) = (Clock::new_id(), CancellationToken::new());
        let answering = Mutex::new(Answering::Always);
        Self { store, log, stream, clock, settings, counters, holder, answering, stop }
    }

    /// The same, whose rounds come to an early end once `stop` is cancelled.
    #[must_use]
    pub fn until(self, stop: CancellationToken) -> Self {
        Self { stop, ..self }
    }

    /// One round, unless another process is at it. Idempotent; any error leaves what it concerns untouched.
    pub async fn round(&self) -> Result<Swept, SweepError> {
        let ttl = self.settings.lease;
        if !self.store.hold_worker_lease(LEASE, self.holder, ttl).await? {
            return Ok(Swept { elsewhere: true, ..Swept::default() });
        }
        let (done, taken) = (CancellationToken::new(), Arc::new(AtomicBool::new(false)));
        let keeper = tokio::spawn(keep_lease(self.store.clone(), self.holder, ttl, done.clone(), Arc::clone(&taken)));
        let result = self.both_lists(&taken).await;
        done.cancel();
        // The keeper only ends early by a panic, and then the lease ends by itself.
        let _ = keeper.await;
        if matches!(result, Err(SweepError::Log(_))) {
            self.log_answers(false);
        }
        match &result {
            Ok(_) => self.counters.rounds.inc(),
            Err(_) => self.counters.failed_rounds.inc(),
        };
        self.store.release_worker_lease(LEASE, self.holder).await?;
        result
    }

    /// Puts the logs that were left, because the store contradicted them, back on the list; answers how many.
    pub async fn retry_left(&self) -> Result<u64, SweepError> {
        Ok(self.store.retry_left().await?)
    }

    /// What moved, then what waits to be archived: never every task.
    async fn both_lists(&self, taken: &AtomicBool) -> Result<Swept, SweepError> {
        let mut swept = Swept::default();
        // A task that is on both lists is judged once a round.
        let mut contradicted = HashSet::new();
        let mut after = None;
        loop {
            let tasks = self.store.dirty_tasks(after, self.settings.batch).await?;
            let Some(last) = tasks.last().filter(|_| !self.stop.is_cancelled()) else { break };
            after = Some(last.key());
            self.look(&tasks, &mut swept, &mut contradicted).await?;
            check_lease(taken)?;
        }
        let closed_before = self.closed_before();
        let mut after = None;
        loop {
            let mut tasks = self.store.tasks_to_archive(closed_before, after, self.settings.batch).await?;
            let Some(last) = tasks.last().filter(|_| !self.stop.is_cancelled()) else { break };
            after = last.closed_at.map(|at| (at, last.organization, last.task));
            tasks.retain(|task| !contradicted.contains(&task.key()));
            self.look(&tasks, &mut swept, &mut contradicted).await?;
            check_lease(taken)?;
        }
        Ok(swept)
    }

    fn closed_before(&self) -> Timestamp {
        self.clock.now().minus(self.settings.grace)
    }

    fn log_answers(&self, answers: bool) {
        let mut answering = self.answering.lock().unwrap_or_else(PoisonError::into_inner);
        match (*answering, answers) {
            (_, false) => *answering = Answering::No,
            (Answering::No, true) => *answering = Answering::Since(self.clock.now()),
            (Answering::Always | Answering::Since(_), true) => {}
        }
    }

    /// Compares tasks with the store and does what follows for each.
    async fn look(
        &self,
        tasks: &[SweptTask],
        swept: &mut Swept,
        contradicted: &mut HashSet<(OrganizationId, TaskId)>,
    ) -> Result<(), SweepError> {
        swept.compared += tasks.len() as u64;
        let (whole, other) = self.compare(tasks).await?;
        let mut settled = whole;
        if !other.is_empty() {
            let mended = self.mend(&other, swept).await?;
            // Where what was sent again is in the store already, the same look can end what it began.
            if !mended.is_empty() && self.stream.lands() {
                let again = self.store.swept_tasks(&mended).await?;
                settled.extend(self.compare(&again).await?.0);
            }
        }
        swept.whole += settled.len() as u64;
        self.settle(settled, swept, contradicted).await
    }

    /// Parts tasks into those that the store has whole and the others, each with what it has.
    async fn compare(&self, tasks: &[SweptTask]) -> Result<(Vec<SweptTask>, Vec<(SweptTask, Coverage)>), SweepError> {
        let keys: Vec<_> = tasks.iter().map(SweptTask::key).collect();
        let found = self.log.coverage(&keys).await?;
        self.log_answers(true);
        let found: HashMap<(OrganizationId, TaskId), Coverage> =
            found.into_iter().map(|coverage| ((coverage.organization, coverage.task), coverage)).collect();
        let (mut whole, mut other) = (Vec::new(), Vec::new());
        for task in tasks {
            let none = Coverage::none(task.organization, task.task);
            let coverage = found.get(&task.key()).copied().unwrap_or(none);
            if coverage.is_whole(task.last_seq, task.reports) {
                whole.push(task.clone());
            } else {
                other.push((task.clone(), coverage));
            }
        }
        Ok((whole, other))
    }

    /// Archives what is due and proven; notes the others as found whole.
    async fn settle(
        &self,
        whole: Vec<SweptTask>,
        swept: &mut Swept,
        contradicted: &mut HashSet<(OrganizationId, TaskId)>,
    ) -> Result<(), SweepError> {
        let closed_before = self.closed_before();
        let due = |task: &SweptTask| {
            task.closed_at.is_some_and(|at| at <= closed_before)
                && !task.awaits_children
                && task.verify_failures < VERIFY_FAILURES_MAX
        };
        // What was written anew may still be on its way, and would be read as it was.
        let settling =
            |task: &SweptTask| task.verify_failures > 0 && !self.stream.lands() && self.lost_before(task).is_none();
        let (due, mut verified): (Vec<_>, Vec<_>) = whole.into_iter().filter(|task| !settling(task)).partition(due);
        for (task, verdict) in self.verify(due).await? {
            if self.stop.is_cancelled() {
                break;
            }
            match verdict {
                Verdict::Proven => {
                    if self.store.archive(&task, self.clock.now(), closed_before).await? {
                        swept.archived += 1;
                        self.counters.archived.inc();
                    }
                    // Otherwise it moved in the meantime: the next round looks again.
                }
                Verdict::Moved => {}
                Verdict::Contradicted { highest_version, detail } => {
                    swept.mismatched += 1;
                    contradicted.insert(task.key());
                    // The last failure leaves the log as it is. One that could not be answered does not count: a stream
                    // that is away must not make it the last.
                    let last = task.verify_failures + 1 >= VERIFY_FAILURES_MAX;
                    if last || self.write_anew(&task, highest_version, swept).await? {
                        self.contradicted(&task, &detail).await?;
                    }
                }
            }
        }
        if !verified.is_empty() {
            let now = self.clock.now();
            // What is written in the order of the keys cannot lock out another that does so too.
            verified.sort_by_key(SweptTask::key);
            self.store.mark_verified(&verified, now, now.minus(self.settings.quiet)).await?;
        }
        Ok(())
    }

    /// Counts that the store contradicts a log, and says so when it is left for good.
    async fn contradicted(&self, task: &SweptTask, detail: &str) -> Result<(), SweepError> {
        self.counters.mismatched.inc();
        if task.verify_failures >= VERIFY_FAILURES_MAX {
            return Ok(());
        }
        self.store.mark_mismatched(task).await?;
        let failures = task.verify_failures + 1;
        let (organization, id) = task.key();
        if failures >= VERIFY_FAILURES_MAX {
            tracing::error!(%organization, task = %id, failures, detail,
                "log_mismatch: the log store contradicts this log; it stays in postgres and is not archived");
        } else {
            tracing::warn!(%organization, task = %id, failures, detail, "the log store contradicts this log");
        }
        Ok(())
    }
}

/// Renews the lease until `done`. When another process has taken it, `taken` says so; a round looks there between any two
/// batches.
async fn keep_lease(store: Store, holder: Uuid, ttl: Duration, done: CancellationToken, taken: Arc<AtomicBool>) {
    loop {
        tokio::select! {
            () = done.cancelled() => return,
            () = tokio::time::sleep(ttl / LEASE_RENEWALS) => {}
        }
        match store.hold_worker_lease(LEASE, holder, ttl).await {
            Ok(true) => {}
            Ok(false) => taken.store(true, Ordering::Release),
            // Postgres may be back before the lease is over.
            Err(error) => tracing::warn!(%error, "the lease of the sweep could not be renewed"),
        }
    }
}

fn check_lease(taken: &AtomicBool) -> Result<(), SweepError> {
    if taken.load(Ordering::Acquire) { Err(SweepError::LeaseLost) } else { Ok(()) }
}
