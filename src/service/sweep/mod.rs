//! The sweep: compares what moved with the log store, sends again what is missing there, and archives what is closed and
//! proven whole. It replaces an outbox: whatever became of a row on its way, here it is found.

mod compare;
mod lease;
mod ledger;
mod repair;
mod round;
mod verify;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::lease::{LEASE, check_lease, keep_lease};
use self::round::{Key, Round};
use self::verify::Verdict;
use super::{Clock, LogCounters};
use crate::domain::time::Timestamp;
use crate::log::{LogStore, LogStoreError, Stream};
use crate::store::{Store, StoreError, SweptTask, VERIFY_FAILURES_MAX};

/// After so many times that rows were sent again in vain, the patience grows no more: 2⁴ times as long as at first.
const PATIENCE_DOUBLINGS_MAX: i32 = 4;
/// So many times the patience is waited for a log that was written anew, before it counts that it did not arrive.
const ANSWER_PATIENCE: u32 = 10;
/// How long a round goes on archiving; the next one then looks first whether anything is missing.
const ARCHIVING_MAX: Duration = Duration::from_secs(30);
/// How long a round that is told to stop may go on with what it is at: a log store that hangs answers nobody.
const END_MAX: Duration = Duration::from_secs(2);

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
    /// Tasks at which the round failed; another one tries them again.
    pub failed: u64,
    /// Whether more waits to be archived than this round had time for.
    pub more: bool,
    /// Whether another process sweeps, so that this one did nothing.
    pub elsewhere: bool,
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
    /// Tasks of which the last round could send nothing: the next one lets others go first.
    unsent: Mutex<HashSet<Key>>,
    /// Tasks at which rounds failed since one came to the end of the lists: until the next does, others go first.
    aside: Mutex<HashSet<Key>>,
    /// The version under which each of these logs was last written anew by this sweep.
    rewritten: Mutex<HashMap<Key, u64>>,
    /// When the oldest row of each of these ledgers was recorded that was not lost when it was last looked at, and may
    /// be by now. Looking at a ledger asks the log store for all of its rows.
    ledgers: Mutex<HashMap<Key, Timestamp>>,
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
        Self {
            store,
            log,
            stream,
            clock,
            settings,
            counters,
            holder,
            answering,
            unsent: Mutex::default(),
            aside: Mutex::default(),
            rewritten: Mutex::default(),
            ledgers: Mutex::default(),
            stop,
        }
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
        // Should the round end by a panic, the lease is no longer renewed all the same.
        let held = done.clone().drop_guard();
        let keeper = tokio::spawn(keep_lease(self.store.clone(), self.holder, ttl, done, Arc::clone(&taken)));
        let mut round = self.begin();
        let result = tokio::select! {
            biased;
            result = self.both_lists(&mut round, &taken) => result,
            // What it was at is wholly done or not, and the next round looks again.
            () = self.end_is_over() => Ok(()),
        };
        drop(held);
        // The keeper only ends early by a panic, and then the lease ends by itself.
        let _ = keeper.await;
        let result = result.map(|()| round.swept);
        self.remember(round, result.is_ok());
        match &result {
            Ok(_) => self.counters.rounds.inc(),
            Err(_) => self.counters.failed_rounds.inc(),
        };
        self.store.release_worker_lease(LEASE, self.holder).await?;
        result
    }

    /// Ends when a round that was told to stop has had its time.
    async fn end_is_over(&self) {
        self.stop.cancelled().await;
        tokio::time::sleep(END_MAX).await;
    }

    /// Puts the logs that were left, because the store contradicted them, back on the list; answers how many.
    pub async fn retry_left(&self) -> Result<u64, SweepError> {
        Ok(self.store.retry_left().await?)
    }

    fn begin(&self) -> Round {
        let waiting = std::mem::take(&mut *self.unsent.lock().unwrap_or_else(PoisonError::into_inner));
        Round::new(waiting, self.aside.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Keeps who is to wait in the next round, however this one ended.
    fn remember(&self, round: Round, is_ok: bool) {
        *self.unsent.lock().unwrap_or_else(PoisonError::into_inner) = round.unsent;
        let mut aside = self.aside.lock().unwrap_or_else(PoisonError::into_inner);
        if is_ok && !round.swept.more && !self.stop.is_cancelled() {
            aside.clear();
        } else {
            aside.extend(round.failed);
        }
    }

    /// What moved, then what waits to be archived: never every task.
    async fn both_lists(&self, round: &mut Round, taken: &AtomicBool) -> Result<(), SweepError> {
        let mut after = None;
        loop {
            let tasks = self.store.dirty_tasks(after, self.settings.batch).await?;
            let Some(last) = tasks.last().filter(|_| !self.stop.is_cancelled()) else { break };
            after = Some(last.key());
            self.look(tasks, round).await?;
            check_lease(taken)?;
        }
        let (closed_before, begun) = (self.closed_before(), tokio::time::Instant::now());
        let mut after = None;
        loop {
            let tasks = self.store.tasks_to_archive(closed_before, after, self.settings.batch).await?;
            let Some(last) = tasks.last().filter(|_| !self.stop.is_cancelled()) else { break };
            after = last.closed_at.map(|at| (at, last.organization, last.task));
            self.look(tasks, round).await?;
            check_lease(taken)?;
            if begun.elapsed() >= ARCHIVING_MAX {
                round.swept.more = true;
                break;
            }
        }
        Ok(())
    }

    fn closed_before(&self) -> Timestamp {
        self.clock.now().minus(self.settings.grace)
    }

    /// Compares tasks with the store and does what follows for each.
    async fn look(&self, mut tasks: Vec<SweptTask>, round: &mut Round) -> Result<(), SweepError> {
        tasks.retain(|task| !round.passes_over(task));
        if tasks.is_empty() {
            return Ok(());
        }
        round.swept.compared += tasks.len() as u64;
        let (mut whole, other) = self.compare(tasks, round).await?;
        if !other.is_empty() {
            let (mended, prefixes) = self.mend(other, round).await?;
            self.note_verified(prefixes.arrived).await?;
            self.note_awaited(prefixes.awaited).await?;
            // Where what was sent again is in the store already, the same look can end what it began.
            if !mended.is_empty() && self.stream.lands() {
                let again = self.store.swept_tasks(&mended).await?;
                whole.extend(self.compare(again, round).await?.0);
            }
        }
        round.swept.whole += whole.len() as u64;
        self.settle(whole, round).await
    }

    /// Archives what is due and proven; notes the others as found whole.
    async fn settle(&self, whole: Vec<SweptTask>, round: &mut Round) -> Result<(), SweepError> {
        let closed_before = self.closed_before();
        let due = |task: &SweptTask| {
            task.closed_at.is_some_and(|at| at <= closed_before)
                && !task.awaits_children
                && task.verify_failures < VERIFY_FAILURES_MAX
        };
        // What was written anew may still be on its way, and would be read as it was.
        let settling =
            |task: &SweptTask| task.verify_failures > 0 && !self.stream.lands() && self.lost_before(task).is_none();
        let (due, verified): (Vec<_>, Vec<_>) = whole.into_iter().filter(|task| !settling(task)).partition(due);
        for (task, verdict) in self.verify(due).await? {
            if self.stop.is_cancelled() {
                break;
            }
            let done = match verdict {
                Verdict::Proven => self.archive(&task, closed_before, round).await,
                Verdict::Moved => Ok(()),
                Verdict::Failed(error) => Err(error),
                Verdict::Contradicted { highest_version, detail } => {
                    self.answer(&task, highest_version, &detail, round).await
                }
            };
            // One task must not keep the others from being archived.
            if let Err(error) = done {
                round.fail(&task, error)?;
            }
        }
        self.note_verified(verified).await
    }

    async fn archive(&self, task: &SweptTask, closed_before: Timestamp, round: &mut Round) -> Result<(), SweepError> {
        // Otherwise it moved in the meantime: the next round looks again.
        if self.store.archive(task, self.clock.now(), closed_before).await? {
            round.swept.archived += 1;
            self.counters.archived.inc();
            self.rewritten.lock().unwrap_or_else(PoisonError::into_inner).remove(&task.key());
        }
        Ok(())
    }

    /// Answers a contradiction: the log is written anew, above every version that the store has of it. The last failure
    /// leaves the log as it is. One that could not be answered does not count, nor one whose answer has not arrived: a
    /// stream or a sink that is behind must not make it the last.
    async fn answer(
        &self,
        task: &SweptTask,
        highest_version: u64,
        detail: &str,
        round: &mut Round,
    ) -> Result<(), SweepError> {
        let written = self.rewritten.lock().unwrap_or_else(PoisonError::into_inner).get(&task.key()).copied();
        let arrived = written.is_none_or(|version| version <= highest_version) || self.stream.lands();
        let awaited = self.settings.patience * ANSWER_PATIENCE;
        if !arrived && task.republished_at.is_some_and(|at| at > self.clock.now().minus(awaited)) {
            return Ok(());
        }
        round.swept.mismatched += 1;
        round.contradicted.insert(task.key());
        let last = task.verify_failures + 1 >= VERIFY_FAILURES_MAX;
        let version = highest_version.saturating_add(1);
        if last {
            self.contradicted(task, detail).await
        } else if self.write_anew(task, version, round).await? {
            self.rewritten.lock().unwrap_or_else(PoisonError::into_inner).insert(task.key(), version);
            self.contradicted(task, detail).await
        } else {
            Ok(())
        }
    }

    /// Notes tasks as found whole, up to the `last_seq` that each carries.
    async fn note_verified(&self, verified: Vec<SweptTask>) -> Result<(), SweepError> {
        let quiet_since = self.clock.now().minus(self.settings.quiet);
        self.note(verified, Some(quiet_since)).await
    }

    /// The same of tasks of which something else is waited for: they stay on the list, and what was sent again is still
    /// given its time.
    async fn note_awaited(&self, verified: Vec<SweptTask>) -> Result<(), SweepError> {
        self.note(verified, None).await
    }

    async fn note(&self, mut verified: Vec<SweptTask>, quiet_since: Option<Timestamp>) -> Result<(), SweepError> {
        if verified.is_empty() {
            return Ok(());
        }
        verified.sort_by_key(SweptTask::key);
        Ok(self.store.mark_verified(&verified, self.clock.now(), quiet_since).await?)
    }

    /// Counts that the store contradicts a log, and says so when it is left for good.
    async fn contradicted(&self, task: &SweptTask, detail: &str) -> Result<(), SweepError> {
        self.counters.mismatched.inc();
        // Another sweep may have counted it already.
        if task.verify_failures >= VERIFY_FAILURES_MAX || !self.store.mark_mismatched(task).await? {
            return Ok(());
        }
        let failures = task.verify_failures + 1;
        let (organization, id) = task.key();
        if failures >= VERIFY_FAILURES_MAX {
            self.rewritten.lock().unwrap_or_else(PoisonError::into_inner).remove(&task.key());
            tracing::error!(%organization, task = %id, failures, detail,
                "log_mismatch: the log store contradicts this log; it stays in postgres and is not archived");
        } else {
            tracing::warn!(%organization, task = %id, failures, detail, "the log store contradicts this log");
        }
        Ok(())
    }
}
