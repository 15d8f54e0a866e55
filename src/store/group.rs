//! Appends of different tasks that wait at the same moment are committed together: one transaction, one statement, one
//! flush of the log. Who comes while few are being written is written alone at once, so that nobody waits for company.
//!
//! Each append keeps what it has alone: its task's row and its events are written both or neither, it is compared with
//! the version that it was decided on, and what is refused for one (its task moved on, is locked by somebody, or has
//! one of the event ids) touches none of the others.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::Row as _;
use time::OffsetDateTime;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::Store;
use super::commit::redacted;
use super::error::{CommitError, StoreError};
use super::statements;
use crate::domain::change::Change;
use crate::domain::event::Channel;
use crate::domain::task::{Facts, Pinned};

/// How many transactions of appends a process has open before further ones wait for company.
const TURNS_MAX: usize = 2;
/// After how long a transaction no longer counts as one of them: whatever holds it up must not hold up the rest.
const TURN_TIME_MAX: Duration = Duration::from_millis(20);
/// The most appends that are committed together.
const GROUP_MAX: usize = 64;
/// The most bytes of payloads that are committed together; what is larger goes alone.
const GROUP_BYTES_MAX: usize = 1024 * 1024;

/// Appends that are under way or wait.
#[derive(Debug, Default)]
pub(super) struct Groups(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    turns: usize,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    change: Arc<Change>,
    written: oneshot::Sender<Result<Written, StoreError>>,
}

/// What became of one append of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    Yes,
    /// Nothing of it was written: it is to be tried by itself, which tells why.
    No,
}

/// The right to write now. Whoever has it passes it on, however it ends.
struct Turn(Option<Store>);

impl Groups {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
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
        let Some(store) = self.0.take() else { return };
        let mut state = store.groups.state();
        let group = state.next();
        // Without a runtime nobody waits any more.
        match Handle::try_current() {
            Ok(runtime) if !group.is_empty() => {
                drop(state);
                runtime.spawn(store.write_group(group));
            }
            _ => state.turns -= 1,
        }
    }
}

impl Store {
    /// Writes a change that only appends; answers whether its task was as the change was decided on.
    pub(super) async fn append(&self, change: &Arc<Change>) -> Result<bool, CommitError> {
        let written = {
            let mut state = self.groups.state();
            if state.turns < TURNS_MAX {
                state.turns += 1;
                None
            } else {
                let (written, told) = oneshot::channel();
                state.waiting.push_back(Waiting { change: Arc::clone(change), written });
                Some(told)
            }
        };
        let Some(written) = written else {
            return Ok(within(Turn(Some(self.clone())), self.write_alone(change)).await?);
        };
        match written.await {
            Ok(Ok(Written::Yes)) => Ok(true),
            Ok(Ok(Written::No)) => Ok(self.write_alone(change).await?),
            Ok(Err(fault)) => Err(fault.into()),
            Err(_) => Err(StoreError::Unavailable(sqlx::Error::WorkerCrashed).into()),
        }
    }

    async fn write_alone(&self, change: &Change) -> Result<bool, sqlx::Error> {
        let mut lease = self.lease().await?;
        let written = self.write_plain(&mut lease, change, None).await?;
        lease.done().await?;
        Ok(written)
    }

    /// Writes a group and tells each of it. It is a task of its own: no caller that hangs up takes the others along.
    async fn write_group(self, group: Vec<Waiting>) {
        let turn = Turn(Some(self.clone()));
        let (changes, tell): (Vec<_>, Vec<_>) =
            group.into_iter().map(|waiting| (waiting.change, waiting.written)).unzip();
        let outcome = within(turn, self.write_together(&changes)).await.map_err(StoreError::from);
        // The callers have their changes for themselves again.
        drop(changes);
        let count = tell.len();
        for (place, tell) in tell.into_iter().enumerate() {
            let told = match &outcome {
                Ok(written) if written.contains(&place) => Ok(Written::Yes),
                // Whether it was written is not known, so trying again could write it twice.
                Err(StoreError::Unavailable(fault)) => {
                    let fault = format!("{fault} (with {count} appends committed together)");
                    Err(StoreError::Unavailable(sqlx::Error::Protocol(fault)))
                }
                // The database refused one of them and so wrote none.
                Ok(_) | Err(_) => Ok(Written::No),
            };
            // Nobody listens when the caller has hung up.
            let _ = tell.send(told);
        }
    }

    /// Writes those whose tasks are as they were and locked by nobody; answers their places.
    async fn write_together(&self, changes: &[Arc<Change>]) -> Result<Vec<usize>, sqlx::Error> {
        let mut lease = self.lease().await?;
        let rows = together(changes).persistent(self.named()).fetch_all(&mut *lease).await?;
        lease.done().await?;
        let place = |row: &sqlx::postgres::PgRow| {
            row.try_get::<i64, _>(0).map(|n| usize::try_from(n - 1).unwrap_or(usize::MAX))
        };
        rows.iter().map(place).collect()
    }
}

/// Lets go of the turn when the work is done or takes too long; the work goes on.
async fn within<T>(turn: Turn, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    match timeout(TURN_TIME_MAX, &mut work).await {
        Ok(done) => {
            drop(turn);
            done
        }
        Err(_) => {
            drop(turn);
            work.await
        }
    }
}

type Rows<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

/// Binds the parameters of [`statements::APPENDS`].
fn together(changes: &[Arc<Change>]) -> Rows<'_> {
    fn pinned(change: &Arc<Change>) -> &Pinned {
        change.next().task().pinned()
    }
    fn facts(change: &Arc<Change>) -> &Facts {
        change.next().task().facts()
    }
    let events = || (1_i64..).zip(changes).flat_map(|(n, change)| change.events().iter().map(move |event| (n, event)));
    let recorded_at =
        |change: &Arc<Change>| change.events().first().map(|event| OffsetDateTime::from(event.recorded_at));
    sqlx::query(statements::APPENDS)
        .bind(changes.iter().map(|change| pinned(change).organization_id.0).collect::<Vec<_>>())
        .bind(changes.iter().map(|change| pinned(change).id.0).collect::<Vec<_>>())
        .bind(changes.iter().map(|change| change.expected_seq()).collect::<Vec<_>>())
        .bind(changes.iter().map(recorded_at).collect::<Vec<_>>())
        .bind(changes.iter().map(|change| facts(change).last_seq).collect::<Vec<_>>())
        .bind(changes.iter().map(|change| facts(change).log_digest.0.as_slice()).collect::<Vec<_>>())
        .bind(changes.iter().map(|change| facts(change).phase.as_deref()).collect::<Vec<_>>())
        .bind(changes.iter().map(|change| facts(change).furthest_milestone.as_deref()).collect::<Vec<_>>())
        .bind(changes.iter().map(|change| change.alive().map(|id| id.0)).collect::<Vec<_>>())
        .bind(events().map(|(n, _)| n).collect::<Vec<_>>())
        .bind(events().map(|(_, event)| event.seq).collect::<Vec<_>>())
        .bind(events().map(|(_, event)| event.event_id.0).collect::<Vec<_>>())
        .bind(events().map(|(_, event)| event.event_type.as_ref()).collect::<Vec<&str>>())
        .bind(events().map(|(_, event)| event.schema_version).collect::<Vec<_>>())
        .bind(events().map(|(_, event)| event.actor.kind.as_str()).collect::<Vec<_>>())
        .bind(events().map(|(_, event)| event.actor.id.as_ref()).collect::<Vec<&str>>())
        .bind(events().map(|(_, event)| event.actor.channel.map(Channel::as_str)).collect::<Vec<_>>())
        .bind(events().map(|(_, event)| event.session_id.map(|id| id.0)).collect::<Vec<_>>())
        .bind(events().map(|(_, event)| OffsetDateTime::from(event.at)).collect::<Vec<_>>())
        .bind(events().map(|(_, event)| event.payload.as_ref()).collect::<Vec<&str>>())
        .bind(events().map(|(_, event)| redacted(event)).collect::<Vec<_>>())
        .bind(events().map(|(_, event)| event.digest.0.as_slice()).collect::<Vec<_>>())
}
