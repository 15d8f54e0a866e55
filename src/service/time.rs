//! What time closes: expired requests, lost sessions, task timeouts. Each through the same commit as everything else,
//! so that several processes may do it side by side.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Done, Order, Service, ServiceError};
use crate::domain::command::Command;
use crate::domain::event::Actor;
use crate::domain::ids::{OrganizationId, TaskId};
use crate::store::{DueRequests, DueSessions, StoreError, Want};

/// At how many tasks a process is at once. Somebody may hold the row of one, for as long as a statement may take.
const AT_ONCE: usize = 4;
/// After so long in which no task was done a step leaves those that it is at to themselves, and the next one goes on
/// with others.
const HELD_UP: Duration = Duration::from_secs(2);

type Key = (OrganizationId, TaskId);

/// What one step closed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Closed {
    /// Tasks closed because a request expired.
    pub expired: u64,
    /// Tasks that lost a session.
    pub lost: u64,
    /// Tasks whose time limit passed.
    pub timed_out: u64,
    /// Tasks at which the step failed, or which it left to themselves; they are due again.
    pub failed: u64,
}

/// What is to be closed of a task.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Expired,
    Lost,
    TimedOut,
}

/// What is due of each task, in the order in which it is closed.
type Due = BTreeMap<Key, Vec<(Kind, Want, Command)>>;

/// The tasks that are being closed by this process, those that earlier steps left to themselves among them.
#[derive(Debug)]
pub(super) struct Closing {
    turns: Arc<Semaphore>,
    under_way: Arc<Mutex<HashSet<Key>>>,
}

impl Default for Closing {
    fn default() -> Self {
        Self { turns: Arc::new(Semaphore::new(AT_ONCE)), under_way: Arc::default() }
    }
}

impl Closing {
    fn count(&self) -> i64 {
        let count = self.under_way.lock().unwrap_or_else(PoisonError::into_inner).len();
        i64::try_from(count).unwrap_or(i64::MAX)
    }

    /// The place of a task among them; none when it has one.
    fn begin(&self, key: Key) -> Option<UnderWay> {
        let begun = self.under_way.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
        begun.then(|| UnderWay { key, all: Arc::clone(&self.under_way) })
    }
}

/// A task that is being closed, until this is dropped.
struct UnderWay {
    key: Key,
    all: Arc<Mutex<HashSet<Key>>>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

impl Closed {
    fn of(&mut self, kind: Kind) -> &mut u64 {
        match kind {
            Kind::Expired => &mut self.expired,
            Kind::Lost => &mut self.lost,
            Kind::TimedOut => &mut self.timed_out,
        }
    }

    fn add(&mut self, other: Self) {
        self.expired += other.expired;
        self.lost += other.lost;
        self.timed_out += other.timed_out;
        self.failed += other.failed;
    }

    /// Whether the step found anything to do.
    pub fn is_idle(&self) -> bool {
        *self == Self::default()
    }
}

impl Service {
    async fn by_time(
        &self,
        organization: OrganizationId,
        task: TaskId,
        want: Want,
        command: &Command,
    ) -> Result<bool, ServiceError> {
        let order = Order {
            organization,
            task,
            want,
            hot: false,
            account: None,
            actor: Actor::worker(),
            body_hash: [0; 32],
            redacted: &[],
        };
        let done = self.carry_out(order, command).await?;
        Ok(matches!(done, Done::Changed(_)))
    }

    /// One step: closes at most `batch` of each kind that is due now. Idempotent.
    ///
    /// # Errors
    /// When one of the kinds could not be looked for; the others are closed all the same.
    pub async fn close_what_is_due(self: &Arc<Self>, batch: i64) -> Result<Closed, ServiceError> {
        // Those that are under way are due too, and must take no other's place.
        let (due, fault) = self.due(batch.saturating_add(self.closing.count())).await;
        let (mut closed, mut working) = (Closed::default(), JoinSet::new());
        for (key, parts) in due {
            let Some(under_way) = self.closing.begin(key) else { continue };
            let turn = timeout(HELD_UP, Arc::clone(&self.closing.turns).acquire_owned()).await;
            let Ok(Ok(turn)) = turn else { break };
            let service = Arc::clone(self);
            working.spawn(async move {
                let _held = (under_way, turn);
                service.close_one(key, parts).await
            });
        }
        while let Ok(Some(done)) = timeout(HELD_UP, working.join_next()).await {
            // It only ends without an answer by a panic.
            closed.add(done.unwrap_or(Closed { failed: 1, ..Closed::default() }));
        }
        closed.failed += working.len() as u64;
        working.detach_all();
        fault.map_or(Ok(closed), |fault| Err(fault.into()))
    }

    /// What is due, and why not everything was looked for.
    async fn due(&self, batch: i64) -> (Due, Option<StoreError>) {
        let (mut due, mut faults) = (Due::new(), Vec::new());
        let requests = self.store.due_requests(batch).await;
        for found in requests.map_err(|fault| faults.push(fault)).unwrap_or_default() {
            let DueRequests { organization, task, requests } = found;
            let want = Want { requests: requests.clone(), ..Want::default() };
            let part = (Kind::Expired, want, Command::ExpireRequests { due: requests });
            due.entry((organization, task)).or_default().push(part);
        }
        let sessions = self.store.due_sessions(batch).await;
        for found in sessions.map_err(|fault| faults.push(fault)).unwrap_or_default() {
            let DueSessions { organization, task, sessions, silent_since } = found;
            let part = (Kind::Lost, Want::default(), Command::LoseSessions { sessions, silent_since });
            due.entry((organization, task)).or_default().push(part);
        }
        let tasks = self.store.due_tasks(self.clock.now(), batch).await;
        for key in tasks.map_err(|fault| faults.push(fault)).unwrap_or_default() {
            due.entry(key).or_default().push((Kind::TimedOut, Want::default(), Command::TimeOut));
        }
        (due, faults.into_iter().next())
    }

    /// Closes what is due of one task.
    async fn close_one(&self, (organization, task): Key, parts: Vec<(Kind, Want, Command)>) -> Closed {
        let mut closed = Closed::default();
        for (kind, want, command) in parts {
            match self.by_time(organization, task, want, &command).await {
                Ok(changed) => *closed.of(kind) += u64::from(changed),
                Err(error) => {
                    tracing::warn!(%task, ?error, "what time closes could not be closed; it is due again");
                    closed.failed += 1;
                }
            }
        }
        closed
    }

    /// How many sessions are open, over all organizations.
    pub async fn open_sessions(&self) -> Result<i64, ServiceError> {
        Ok(self.store.open_sessions().await?)
    }
}
