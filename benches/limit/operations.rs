//! The rows of the table: what is asked for, and how it is seen that it was done.

use clap::ValueEnum;
use serde::Serialize;

use super::scripts::FOUND;

/// What the clients ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// One event.
    #[value(name = "append-1")]
    Append1,
    /// A batch of 10.
    #[value(name = "append-10")]
    Append10,
    /// A batch of 100.
    #[value(name = "append-100")]
    Append100,
    /// A sign of life.
    Heartbeat,
    /// A poll with nothing new, as the harness of this contract sends it: `after_seq` and `limit`.
    PollNothing,
    /// The same with the `ETag` of the last answer: 304.
    PollUnchanged,
    /// A poll that finds 10 events.
    #[value(name = "poll-10")]
    Poll10,
    /// A usage report.
    Usage,
    /// A person's answer to a question.
    Resolve,
    /// Creation, session, append, usage report, outcome.
    Life,
}

/// Who is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    Mandate,
    Bare,
    Pgbench,
}

impl Contender {
    pub const ALL: [Self; 3] = [Self::Mandate, Self::Bare, Self::Pgbench];
}

impl Operation {
    /// How it is named in the table.
    pub fn title(self) -> &'static str {
        match self {
            Self::Append1 => "append of 1 event",
            Self::Append10 => "append of 10 events",
            Self::Append100 => "append of 100 events",
            Self::Heartbeat => "heartbeat",
            Self::PollNothing => "poll, nothing new",
            Self::PollUnchanged => "poll, nothing new, with its tag (304)",
            Self::Poll10 => "poll of 10 events",
            Self::Usage => "usage report",
            Self::Resolve => "resolve",
            Self::Life => "whole life of a task (5 calls)",
        }
    }

    /// Events of a batch, of what appends.
    pub fn batch(self) -> Option<usize> {
        match self {
            Self::Append1 => Some(1),
            Self::Append10 => Some(10),
            Self::Append100 => Some(100),
            Self::Heartbeat
            | Self::PollNothing
            | Self::PollUnchanged
            | Self::Poll10
            | Self::Usage
            | Self::Resolve
            | Self::Life => None,
        }
    }

    /// How far before the end a poll begins.
    pub fn behind(self) -> i64 {
        if self == Self::Poll10 { FOUND } else { 0 }
    }

    /// A statement that counts what was done so far, and what it rises by with each. Polls write nothing: there the
    /// answers are looked at. A heartbeat leaves only its time, so there it is counted whose last one is not older than
    /// the round.
    pub fn proof(self) -> Option<(&'static str, u64)> {
        match self {
            Self::Append1 | Self::Append10 | Self::Append100 => {
                let batch = self.batch().and_then(|batch| u64::try_from(batch).ok()).unwrap_or_default();
                Some(("SELECT count(*) FROM agent_runtime.events WHERE task_id = ANY ($1)", batch))
            }
            Self::Usage => Some(("SELECT count(*) FROM agent_runtime.budget_ledger WHERE task_id = ANY ($1)", 1)),
            Self::Resolve => Some((
                "SELECT count(*) FROM agent_runtime.requests WHERE status = 'answered' AND $1::uuid[] IS NOT NULL
                    AND organization_id = (SELECT organization_id FROM bench.asked_tasks) AND id = task_id",
                1,
            )),
            Self::Life => Some((
                "SELECT count(*) FROM agent_runtime.tasks WHERE outcome = 'done_acted' AND last_seq = (
                    SELECT last_seq FROM bench.lived) AND $1::uuid[] IS NOT NULL",
                1,
            )),
            Self::Heartbeat | Self::PollNothing | Self::PollUnchanged | Self::Poll10 => None,
        }
    }
}
