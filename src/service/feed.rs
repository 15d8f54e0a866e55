//! The organization's feed: read, and waited for.
//!
//! What was just committed shows only when every older transaction has ended, so a follower that a commit wakes may
//! find nothing yet. It looks again soon while something is pending, and the query that each tick asks for all watched
//! feeds finds whatever came to show, of other processes too.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, timeout_at};

use super::caller::{Caller, Principal};
use super::{Service, ServiceError};
use crate::domain::feed::{FeedPage, FeedScope, FeedStart};
use crate::domain::ids::OrganizationId;
use crate::domain::principal::Permission;
use crate::domain::refusal::Refusal;
use crate::domain::task::Task;
use crate::store::FeedLook;

/// How often a look goes on at once that was cut off before it found an event of its scope.
const LOOKS_MAX: usize = 20;
/// How soon a follower looks again for what is committed and does not show yet. Doubles with each look in vain.
const AGAIN_FIRST: Duration = Duration::from_millis(10);
/// The longest pause between two such looks.
const AGAIN_MAX: Duration = Duration::from_secs(1);

/// What is known to have come to an organization's feed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct News {
    /// How many commits this process made.
    commits: u64,
    /// The newest transaction that shows.
    shown: u64,
}

impl News {
    fn is_news_after(&self, seen: &Self) -> bool {
        self.commits != seen.commits || self.shown > seen.shown
    }
}

#[derive(Debug)]
struct Watched {
    news: watch::Sender<News>,
    readers: usize,
}

type Scopes = HashMap<FeedScope, Watched>;

/// Which feeds are watched.
#[derive(Debug, Default)]
pub(super) struct Feeds(Mutex<HashMap<OrganizationId, Scopes>>);

impl Feeds {
    fn watched(&self) -> MutexGuard<'_, HashMap<OrganizationId, Scopes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(self: &Arc<Self>, key: (OrganizationId, FeedScope), permit: OwnedSemaphorePermit) -> Place {
        let mut watched = self.watched();
        let scopes = watched.entry(key.0).or_default();
        let entry = scopes.entry(key.1).or_insert_with(|| Watched { news: watch::Sender::default(), readers: 0 });
        entry.readers += 1;
        let news = entry.news.subscribe();
        drop(watched);
        Place { feeds: Arc::clone(self), key, news, _permit: permit }
    }

    /// Wakes those in whose feed `task` is.
    pub fn committed(&self, task: &Task) {
        let watched = self.watched();
        let Some(scopes) = watched.get(&task.pinned().organization_id) else { return };
        for (scope, entry) in scopes {
            if scope.holds(task.pinned()) {
                entry.news.send_modify(|news| news.commits += 1);
            }
        }
    }

    /// Wakes those who have not seen all up to `shown`; answers whether it is news to anybody.
    fn note(&self, organization: OrganizationId, shown: u64) -> bool {
        let watched = self.watched();
        let Some(scopes) = watched.get(&organization) else { return false };
        let mut told = false;
        for entry in scopes.values() {
            told |= entry.news.send_if_modified(|news| {
                let newer = shown > news.shown;
                news.shown = news.shown.max(shown);
                newer
            });
        }
        told
    }

    fn organizations(&self) -> Vec<OrganizationId> {
        self.watched().keys().copied().collect()
    }

    /// How many reads wait for a feed.
    pub fn readers(&self) -> usize {
        self.watched().values().flat_map(HashMap::values).map(|entry| entry.readers).sum()
    }
}

/// A place among those who watch a feed, given up when it is dropped.
#[derive(Debug)]
struct Place {
    feeds: Arc<Feeds>,
    key: (OrganizationId, FeedScope),
    news: watch::Receiver<News>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut watched = self.feeds.watched();
        let Some(scopes) = watched.get_mut(&self.key.0) else { return };
        if let Some(entry) = scopes.get_mut(&self.key.1) {
            entry.readers -= 1;
            if entry.readers == 0 {
                scopes.remove(&self.key.1);
            }
        }
        if scopes.is_empty() {
            watched.remove(&self.key.0);
        }
    }
}

/// A follower that goes on where it was.
#[derive(Debug)]
pub struct FollowingFeed {
    place: Place,
    start: FeedStart,
    limit: u32,
    /// What was known when it last looked.
    seen: News,
    more: bool,
    pending: bool,
    again: Duration,
    /// Whether it was woken and has not looked since.
    woken: bool,
}

impl FollowingFeed {
    /// Whether there is more to read at once.
    pub fn has_more(&self) -> bool {
        self.more
    }
}

impl Caller {
    /// Whose events the caller may read: the tasks of [`Caller::may_read`].
    pub fn feed_scope(&self) -> Result<FeedScope, Refusal> {
        match &self.principal {
            Principal::Person { .. } => self.require(Permission::Read).map(|()| FeedScope::All),
            Principal::Agent { account, agent } => Ok(FeedScope::Agent { account: *account, agent: *agent }),
            Principal::Trigger { account } => Ok(FeedScope::CreatedBy(*account)),
        }
    }
}

impl Service {
    /// A part of the caller's feed. It may be empty where events of others were passed over: `next` leads on.
    pub async fn feed(&self, caller: &Caller, mut start: FeedStart, limit: u32) -> Result<FeedPage, ServiceError> {
        let scope = caller.feed_scope()?;
        let mut looks = 1;
        loop {
            let page = self.look_at_feed((caller.organization, scope), &start, limit).await?;
            if !page.entries.is_empty() || !page.more || looks == LOOKS_MAX {
                return Ok(page);
            }
            start = FeedStart::After(page.next);
            looks += 1;
        }
    }

    async fn look_at_feed(
        &self,
        key: (OrganizationId, FeedScope),
        start: &FeedStart,
        limit: u32,
    ) -> Result<FeedPage, ServiceError> {
        match self.store.feed(key.0, &key.1, start, limit).await? {
            FeedLook::Page(page) => Ok(page),
            FeedLook::Expired => Err(Refusal::CursorExpired.into()),
        }
    }

    /// Begins to follow the caller's feed. Registers before anything is read.
    pub fn follow_feed(&self, caller: &Caller, start: FeedStart, limit: u32) -> Result<FollowingFeed, ServiceError> {
        let scope = caller.feed_scope()?;
        let permit = self.waiting.permit();
        let permit = permit.ok_or_else(|| ServiceError::Unavailable("too many reads wait".to_owned()))?;
        let place = self.waiting.feeds().enter((caller.organization, scope), permit);
        let (seen, again) = (News::default(), AGAIN_FIRST);
        Ok(FollowingFeed { place, start, limit, seen, more: false, pending: false, again, woken: false })
    }

    /// What came since the last look, and moves on behind it.
    pub async fn next_of_feed(&self, following: &mut FollowingFeed) -> Result<FeedPage, ServiceError> {
        let turn = if following.woken { self.waiting.turn().await } else { None };
        // Taken before the look: what is told from now on is news.
        following.seen = *following.place.news.borrow_and_update();
        let page = Box::pin(self.look_at_feed(following.place.key, &following.start, following.limit)).await?;
        drop(turn);
        following.woken = false;
        following.more = page.more;
        following.pending = page.pending;
        if !page.entries.is_empty() {
            following.again = AGAIN_FIRST;
        }
        if !page.more {
            following.seen.shown = page.next.position.tx;
        }
        following.start = FeedStart::After(page.next);
        Ok(page)
    }

    /// Waits until there may be more to read. Answers false when the process ends.
    pub async fn news_of_feed(&self, following: &mut FollowingFeed) -> bool {
        if following.more {
            return true;
        }
        let (seen, over) = (following.seen, self.waiting.over());
        let again = following.pending.then(|| Instant::now() + following.again);
        let soon = async {
            match again {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        following.woken = tokio::select! {
            biased;
            () = over.cancelled() => false,
            news = following.place.news.wait_for(|news| news.is_news_after(&seen)) => news.is_ok(),
            () = soon => {
                following.again = (following.again * 2).min(AGAIN_MAX);
                true
            }
        };
        following.woken
    }

    /// A part of the caller's feed as soon as it has an event, or what there is when the time is up.
    pub async fn await_feed(
        &self,
        caller: &Caller,
        start: FeedStart,
        limit: u32,
        wait: Duration,
    ) -> Result<FeedPage, ServiceError> {
        let until = Instant::now() + wait;
        let mut following = self.follow_feed(caller, start, limit)?;
        loop {
            let page = self.next_of_feed(&mut following).await?;
            if !page.entries.is_empty()
                || Instant::now() >= until
                || !timeout_at(until, self.news_of_feed(&mut following)).await.unwrap_or(false)
            {
                return Ok(page);
            }
        }
    }

    /// Looks for what came to show in the watched feeds, and wakes who waits for it. Answers how many had news.
    pub(super) async fn look_at_feeds(&self) -> Result<usize, ServiceError> {
        let feeds = self.waiting.feeds();
        let organizations = feeds.organizations();
        if organizations.is_empty() {
            return Ok(0);
        }
        let heads = self.store.feed_heads(&organizations).await?;
        Ok(heads.into_iter().filter(|(organization, shown)| feeds.note(*organization, *shown)).count())
    }
}
