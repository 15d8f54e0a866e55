//! Appends and reports of different tasks of an organization that wait at the same moment are committed together: one
//! transaction, one statement, one flush of the log. Who comes while nothing is being written is written at once, so
//! nobody waits for company.
//!
//! Each change keeps what it has alone: its task's row and its events are written both or neither, it is compared with
//! the version that it was decided on, and what is refused for one (its task moved on, is locked by somebody, or has
//! one of the ids) touches none of the others.

mod binding;

use std::collections::{HashMap, VecDeque};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::Store;
use super::error::{CommitError, StoreError};
use crate::domain::change::Change;
use crate::domain::ids::{AccountId, OrganizationId};

/// How many transactions of groups a process has open for an organization. A further one begins only for a whole group:
/// more changes share a transaction when they wait for one.
const TURNS_MAX: usize = 4;
/// After how long a transaction no longer counts as one of them: whatever holds it up must not hold up the rest.
const TURN_TIME_MAX: Duration = Duration::from_millis(20);
/// The most changes that are committed together.
const GROUP_MAX: usize = 64;
/// The most bytes of payloads that are committed together; what is larger goes alone.
const GROUP_BYTES_MAX: usize = 1024 * 1024;

/// Changes that are under way or wait, of organizations that have any. Each has a line of its own: no statement is of
/// several, and none waits for another's.
#[derive(Debug, Default)]
pub(super) struct Groups(Mutex<HashMap<OrganizationId, Line>>);

#[derive(Debug, Default)]
struct Line {
    turns: usize,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    change: Arc<Change>,
    account: Option<AccountId>,
    written: oneshot::Sender<Result<Written, StoreError>>,
}

/// What became of one change of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    Yes,
    /// Nothing of it was written: it is to be tried by itself, which tells why.
    No,
}

/// A change of a group, and who reported what it adds to the ledger.
type Member = (Arc<Change>, Option<AccountId>);

/// The right to write now. Whoever has it passes it on, however it ends.
struct Turn(Option<(Store, OrganizationId)>);

impl Groups {
    fn lines(&self) -> MutexGuard<'_, HashMap<OrganizationId, Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    /// The next group, in the order in which they came.
    fn next(&mut self) -> Vec<Waiting> {
        let (mut group, mut bytes) = (Vec::new(), 0);
        while let Some(first) = self.waiting.front() {
            let weight: usize = first.change.events().iter().map(|event| event.payload.len()).sum();
            if !group.is_empty() && (group.len() == GROUP_MAX || bytes + weight > GROUP_BYTES_MAX) {
                break;
            }
            bytes += weight;
            group.extend(self.waiting.pop_front().filter(|waiting| !waiting.written.is_closed()));
        }
        group
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some((store, organization)) = self.0.take() else { return };
        let mut lines = store.groups.lines();
        let Some(line) = lines.get_mut(&organization) else { return };
        let group = line.next();
        // Without a runtime nobody waits any more.
        match Handle::try_current() {
            Ok(runtime) if !group.is_empty() => {
                drop(lines);
                let turn = Turn(Some((store.clone(), organization)));
                runtime.spawn(store.write_group(turn, organization, group));
            }
            _ => {
                line.turns -= 1;
                if line.turns == 0 {
                    lines.remove(&organization);
                }
            }
        }
    }
}

impl Store {
    /// Writes a change of a task's log and counts, alone or with others; answers whether its task was as the change was
    /// decided on.
    pub(super) async fn write_grouped(
        &self,
        change: &Arc<Change>,
        account: Option<AccountId>,
    ) -> Result<bool, CommitError> {
        let organization = change.next().task().pinned().organization_id;
        let turn = match self.queue(organization, change, account) {
            None => Some(Turn(Some((self.clone(), organization)))),
            Some(written) => match written.await {
                Ok(Ok(Written::Yes)) => return Ok(true),
                Ok(Ok(Written::No)) => None,
                Ok(Err(fault)) => return Err(fault.into()),
                Err(_) => return Err(StoreError::Unavailable(sqlx::Error::WorkerCrashed).into()),
            },
        };
        let alone = pin!(self.write_alone(change, account));
        Ok(match turn {
            Some(turn) => within(turn, alone).await?,
            None => alone.await?,
        })
    }

    /// A place among those that wait; none when it is its turn at once.
    fn queue(
        &self,
        organization: OrganizationId,
        change: &Arc<Change>,
        account: Option<AccountId>,
    ) -> Option<oneshot::Receiver<Result<Written, StoreError>>> {
        let mut lines = self.groups.lines();
        let line = lines.entry(organization).or_default();
        if line.turns == 0 {
            line.turns = 1;
            return None;
        }
        let (written, told) = oneshot::channel();
        line.waiting.push_back(Waiting { change: Arc::clone(change), account, written });
        if line.waiting.len() >= GROUP_MAX && line.turns < TURNS_MAX {
            line.turns += 1;
            drop(lines);
            // A turn that ends goes to those who wait.
            drop(Turn(Some((self.clone(), organization))));
        }
        Some(told)
    }

    pub(super) async fn write_alone(&self, change: &Change, account: Option<AccountId>) -> Result<bool, sqlx::Error> {
        let mut lease = self.lease().await?;
        let written = self.write_plain(&mut lease, change, account).await?;
        lease.done().await?;
        Ok(written)
    }

    /// Writes a group and tells each of it. It is a task of its own: no caller that hangs up takes the others along.
    async fn write_group(self, turn: Turn, organization: OrganizationId, group: Vec<Waiting>) {
        let (changes, tell): (Vec<_>, Vec<_>) =
            group.into_iter().map(|waiting| ((waiting.change, waiting.account), waiting.written)).unzip();
        let outcome = within(turn, pin!(self.write_together(organization, &changes))).await;
        // The callers have their changes for themselves again.
        drop(changes);
        let count = tell.len();
        for (place, tell) in tell.into_iter().enumerate() {
            let told = match &outcome {
                Ok(written) if written.contains(&place) => Ok(Written::Yes),
                // Its task moved on or is locked, or the database refused one of them and so wrote none.
                Ok(_) => Ok(Written::No),
                // Whether it was written is not known, so trying again could write it twice.
                Err(fault) => {
                    let fault = format!("{fault} ({count} changes in one transaction)");
                    Err(StoreError::Unavailable(sqlx::Error::Protocol(fault)))
                }
            };
            // Nobody listens when the caller has hung up.
            let _ = tell.send(told);
        }
    }

    /// Writes those whose tasks are as they were and locked by nobody; answers their places.
    async fn write_together(
        &self,
        organization: OrganizationId,
        changes: &[Member],
    ) -> Result<Vec<usize>, sqlx::Error> {
        let mut lease = self.lease().await?;
        let numbers: Vec<i64> =
            match binding::bound(organization, changes).persistent(self.named()).fetch_all(&mut *lease).await {
                // The server refused the statement, or cut it off because one of the rows was locked: nothing is written.
                Err(fault) if is_refusal(&fault) => return Ok(Vec::new()),
                numbers => numbers?,
            };
        lease.done().await?;
        Ok(numbers.into_iter().filter_map(|number| usize::try_from(number - 1).ok()).collect())
    }
}

/// Whether the server answered that it did not carry the statement out, and lives on.
fn is_refusal(fault: &sqlx::Error) -> bool {
    let code = fault.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| !code.starts_with("57P") && !code.starts_with("08"))
}

/// Lets go of the turn when the work is done or takes too long; the work goes on.
async fn within<T>(turn: Turn, mut work: Pin<&mut impl Future<Output = T>>) -> T {
    let done = timeout(TURN_TIME_MAX, &mut work).await;
    drop(turn);
    match done {
        Ok(done) => done,
        Err(_) => work.await,
    }
}
