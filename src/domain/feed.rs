//! The feed of an organization: the events of all its tasks, in an order that no later commit can slip into.

use super::event::Event;
use super::ids::{AccountId, AgentId, PersonId, ProjectId, ShortId, TaskId};
use super::status::Status;
use super::task::{Origin, Pinned};

/// Whose events a caller's feed holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FeedScope {
    /// All of the organization.
    All,
    /// Those of an agent's tasks and of what these delegated.
    Agent {
        /// The agent's account.
        account: AccountId,
        /// The agent.
        agent: AgentId,
    },
    /// Those of the tasks that a trigger created.
    CreatedBy(AccountId),
}

impl FeedScope {
    /// Whether the events of such a task belong to it.
    pub fn holds(&self, task: &Pinned) -> bool {
        match self {
            Self::All => true,
            Self::Agent { account, agent } => {
                let delegated = matches!(&task.origin, Origin::Task { agent_id, .. } if agent_id == agent);
                task.service_account_id == *account || delegated
            }
            Self::CreatedBy(account) => task.created_by_account == Some(*account),
        }
    }
}

/// A place in the feed: behind the event of that task and seq, which that transaction wrote. Ordered as the feed is.
///
/// A follower is only ever told places behind events that it could see. Numbers of transactions that wrote nothing are
/// given again after a crash of the database, so a place further on could lie behind events that are yet to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FeedPosition {
    /// The transaction, as Postgres counts them.
    pub tx: u64,
    /// The task.
    pub task: TaskId,
    /// The seq.
    pub seq: i64,
}

impl FeedPosition {
    /// Before everything.
    pub const START: Self = Self { tx: 0, task: TaskId(uuid::Uuid::nil()), seq: 0 };

    /// Behind everything that will ever be.
    pub const END: Self = Self { tx: u64::MAX, task: TaskId(uuid::Uuid::max()), seq: i64::MAX };
}

/// What a follower keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeedCursor {
    /// The history of which the transactions are: another cluster, or the same one after a restore, has another.
    pub home: u64,
    /// The number of the organization's latest archiving when the follower read: it missed nothing up to that one.
    pub archives: i64,
    /// Where it is.
    pub position: FeedPosition,
}

/// Where a reading of the feed begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedStart {
    /// At the oldest event that is still there.
    Oldest,
    /// At what comes from now on.
    Now,
    /// Behind this.
    After(FeedCursor),
}

/// The task of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedTask {
    /// Its id.
    pub id: TaskId,
    /// Its name.
    pub short_id: ShortId,
    /// Its agent.
    pub agent_id: AgentId,
    /// The agent's slug at creation.
    pub agent_slug: String,
    /// Its primary project.
    pub project_id: Option<ProjectId>,
    /// Its parent.
    pub parent_task_id: Option<TaskId>,
    /// Its title.
    pub title: String,
    /// What it is about.
    pub subject: Option<String>,
    /// Who is accountable, when it was read.
    pub owner: PersonId,
    /// Its status, when it was read.
    pub status: Status,
}

/// An event in the feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedEntry {
    /// The event.
    pub event: Event,
    /// Its task.
    pub task: FeedTask,
    /// The place behind it.
    pub cursor: FeedCursor,
}

/// A part of the feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedPage {
    /// Its entries, in the order of the feed.
    pub entries: Vec<FeedEntry>,
    /// Where the next part begins; behind an empty one too.
    pub next: FeedCursor,
    /// Whether there is more to read at once.
    pub more: bool,
    /// Whether something was committed that shows only when older transactions have ended.
    pub pending: bool,
}
