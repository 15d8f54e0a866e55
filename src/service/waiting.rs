//! Waiting for events without polling, an optimization on which nothing depends.
//!
//! A read that waits is registered first and reads then, so that an event between the two wakes it. What this process
//! commits wakes its own readers at once; what others commit is found by one query a tick over all watched tasks. While
//! a read waits it holds a place in the registry and nothing else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::caller::Located;
use super::feed::Feeds;
use super::{EventPage, Service, ServiceError};
use crate::domain::event::Event;
use crate::domain::ids::{OrganizationId, TaskId};
use crate::domain::log_page::LogHead;
use crate::domain::task::Task;

/// How many readers that were woken read at once: a crowd that one commit wakes must leave connections to the others.
const WOKEN_MAX: usize = 4;

type Key = (OrganizationId, TaskId);

/// Which tasks are watched, and how far their logs are known to be.
#[derive(Debug)]
pub struct Waiting {
    watched: Mutex<HashMap<Key, Watched>>,
    feeds: Arc<Feeds>,
    places: Arc<Semaphore>,
    turns: Semaphore,
    over: CancellationToken,
}

#[derive(Debug)]
struct Watched {
    head: watch::Sender<LogHead>,
    readers: usize,
}

/// How much waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitingCounts {
    /// Tasks that are watched.
    pub tasks: usize,
    /// Reads that wait or stream.
    pub reads: usize,
}

impl Waiting {
    /// Lets at most `reads_max` reads wait at once.
    pub(super) fn new(reads_max: usize) -> Self {
        let places = Arc::new(Semaphore::new(reads_max.min(Semaphore::MAX_PERMITS)));
        let (turns, over) = (Semaphore::new(WOKEN_MAX), CancellationToken::new());
        Self { watched: Mutex::default(), feeds: Arc::default(), places, turns, over }
    }

    /// The feeds that are watched.
    pub(super) fn feeds(&self) -> &Arc<Feeds> {
        &self.feeds
    }

    /// Leave to wait; none when too many do.
    pub(super) fn permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).try_acquire_owned().ok()
    }

    /// The turn of a reader that was woken.
    pub(super) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.turns.acquire().await.ok()
    }

    /// Ends when every wait does.
    pub(super) fn over(&self) -> CancellationToken {
        self.over.clone()
    }

    fn watched(&self) -> MutexGuard<'_, HashMap<Key, Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place among those that watch the task; none when too many wait.
    fn enter(self: &Arc<Self>, key: Key) -> Option<Place> {
        let permit = self.permit()?;
        let mut watched = self.watched();
        let entry = watched.entry(key).or_insert_with(|| Watched { head: watch::Sender::default(), readers: 0 });
        entry.readers += 1;
        let head = entry.head.subscribe();
        drop(watched);
        Some(Place { waiting: Arc::clone(self), key, head, _permit: permit })
    }

    /// Tells those who watch a task how far its log is.
    fn note(&self, key: Key, head: LogHead) {
        if let Some(entry) = self.watched().get(&key) {
            entry.head.send_if_modified(|known| {
                let news = head.is_news_after(known);
                *known = known.joined(head);
                news
            });
        }
    }

    /// Tells those who watch `task`, or a feed with it, that it was committed.
    pub(super) fn committed(&self, task: &Task) {
        self.feeds.committed(task);
        let closed = task.facts().closed_at.is_some();
        let head = LogHead { last_seq: task.facts().last_seq, closed, archived: false };
        self.note((task.pinned().organization_id, task.id()), head);
    }

    fn heads(&self) -> Vec<(OrganizationId, TaskId, LogHead)> {
        self.watched()
            .iter()
            .map(|((organization, task), entry)| (*organization, *task, *entry.head.borrow()))
            .collect()
    }

    /// How much waits.
    pub fn counts(&self) -> WaitingCounts {
        let feeds = self.feeds.readers();
        let watched = self.watched();
        let logs: usize = watched.values().map(|entry| entry.readers).sum();
        WaitingCounts { tasks: watched.len(), reads: logs + feeds }
    }

    /// Ends every wait, and those that would begin.
    pub fn end(&self) {
        self.over.cancel();
    }
}

/// A place in the registry, given up when it is dropped, however the read ends.
#[derive(Debug)]
struct Place {
    waiting: Arc<Waiting>,
    key: Key,
    head: watch::Receiver<LogHead>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut watched = self.waiting.watched();
        if let Some(entry) = watched.get_mut(&self.key) {
            entry.readers -= 1;
            if entry.readers == 0 {
                watched.remove(&self.key);
            }
        }
    }
}

/// A read that goes on where it was when there is more.
#[derive(Debug)]
pub struct Following {
    place: Place,
    located: Located,
    page: EventPage,
    seen: LogHead,
    more: bool,
    /// Whether it was woken and has not looked since.
    woken: bool,
}

impl Following {
    /// Whether there is more to read at once.
    pub fn has_more(&self) -> bool {
        self.more
    }

    /// Whether the task was closed when its log was last looked at.
    pub fn is_closed(&self) -> bool {
        self.seen.closed
    }

    /// Waits until there may be more to read. Answers false when the process ends.
    pub async fn news(&mut self) -> bool {
        let (seen, over) = (self.seen, self.place.waiting.over.clone());
        self.woken = tokio::select! {
            biased;
            () = over.cancelled() => false,
            // Compared by value: what was told between the look and now counts too.
            news = self.place.head.wait_for(|head| head.is_news_after(&seen)) => news.is_ok(),
        };
        self.woken
    }
}

impl Service {
    /// The reads that wait.
    pub fn waiting_reads(&self) -> &Waiting {
        &self.waiting
    }

    /// Begins to follow a log from where `page` says. Registers before anything is read.
    pub fn follow(&self, located: Located, page: EventPage) -> Result<Following, ServiceError> {
        let place = self.waiting.enter((located.task.organization, located.id));
        let place = place.ok_or_else(|| ServiceError::Unavailable("too many reads wait".to_owned()))?;
        Ok(Following { place, located, page, seen: LogHead::default(), more: false, woken: false })
    }

    /// What came since the last look, and moves on behind it.
    pub async fn next_events(&self, following: &mut Following) -> Result<Vec<Event>, ServiceError> {
        let turn = if following.woken { self.waiting.turn().await } else { None };
        let (located, page) = (&following.located, &following.page);
        // Boxed: who waits keeps no room for a look.
        let mut read = Box::pin(self.look_at_postgres(located, page)).await?;
        // The log store may take its time; that must not be the others'.
        drop(turn);
        // Who waited for more knows by the head alone that there is none.
        if !(following.woken && page.after_seq.unwrap_or_default() >= read.head.last_seq) {
            read = Box::pin(self.look_at_archive(located, page, read)).await?;
        }
        following.woken = false;
        self.waiting.note(following.place.key, read.head);
        following.seen = read.head;
        following.more = read.more;
        // What other types there are up to the head was looked at too, and need not be again.
        let looked = if read.more { read.events.last().map(|event| event.seq) } else { Some(read.head.last_seq) };
        following.page.after_seq = following.page.after_seq.max(looked);
        Ok(read.events)
    }

    /// A part of a task's log as soon as it has an event, and whether there is more; nothing when the time is up first,
    /// or nothing can come any more.
    pub async fn await_events(
        &self,
        located: &Located,
        page: &EventPage,
        wait: Duration,
    ) -> Result<(Vec<Event>, bool), ServiceError> {
        let until = Instant::now() + wait;
        let mut following = self.follow(*located, page.clone())?;
        loop {
            let events = self.next_events(&mut following).await?;
            if !events.is_empty() || following.seen.archived {
                return Ok((events, following.more));
            }
            if !timeout_at(until, following.news()).await.unwrap_or(false) {
                return Ok((Vec::new(), false));
            }
        }
    }

    /// Looks for what other processes wrote to the watched tasks and feeds, and wakes who waits for it. Asks nothing
    /// when nobody waits. Answers how many logs and feeds had moved.
    pub async fn look_for_news(&self) -> Result<usize, ServiceError> {
        let feeds = self.look_at_feeds().await?;
        let watched = self.waiting.heads();
        if watched.is_empty() {
            return Ok(feeds);
        }
        let moved = self.store.moved(&watched).await?;
        for (organization, task, head) in &moved {
            self.waiting.note((*organization, *task), *head);
        }
        Ok(moved.len() + feeds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u128) -> Key {
        (OrganizationId(uuid::Uuid::from_u128(1)), TaskId(uuid::Uuid::from_u128(n)))
    }

    fn at(last_seq: i64) -> LogHead {
        LogHead { last_seq, ..LogHead::default() }
    }

    #[test]
    fn places_are_bounded_and_leave_nothing_behind() {
        let waiting = Arc::new(Waiting::new(3));
        let places: Vec<_> = [1, 1, 2].into_iter().map(|n| waiting.enter(key(n)).unwrap()).collect();
        assert_eq!(waiting.counts(), WaitingCounts { tasks: 2, reads: 3 });
        assert!(waiting.enter(key(1)).is_none());
        drop(places);
        assert_eq!(waiting.counts(), WaitingCounts::default());
        assert!(waiting.enter(key(3)).is_some());
    }

    #[test]
    fn what_is_known_of_a_log_never_goes_back() {
        let waiting = Arc::new(Waiting::new(3));
        let place = waiting.enter(key(1)).unwrap();
        waiting.note(key(1), at(5));
        waiting.note(key(1), at(3));
        waiting.note(key(2), at(9));
        assert_eq!(*place.head.borrow(), at(5));
        waiting.note(key(1), LogHead { closed: true, archived: true, ..at(5) });
        assert_eq!(*place.head.borrow(), LogHead { closed: true, archived: true, ..at(5) });
        assert!(place.head.has_changed().unwrap());
    }
}
