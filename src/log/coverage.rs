//! What the log store has of a task.

use crate::domain::ids::{OrganizationId, TaskId};

/// Counts over a task's rows in the log store. Sequences start at 1 and have no gap, so only the full set 1..=n has n
/// distinct ones and the maximum n.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coverage {
    /// The tenant.
    pub organization: OrganizationId,
    /// The task.
    pub task: TaskId,
    /// Distinct seqs.
    pub seqs: i64,
    /// The highest seq.
    pub max_seq: i64,
    /// Distinct event ids.
    pub event_ids: i64,
    /// Distinct usage rows.
    pub reports: i64,
}

impl Coverage {
    /// The coverage of a task of which the store has nothing.
    pub fn none(organization: OrganizationId, task: TaskId) -> Self {
        Self { organization, task, seqs: 0, max_seq: 0, event_ids: 0, reports: 0 }
    }

    /// Whether it is that of a whole log of `last_seq` events with `reports` usage rows.
    pub fn is_whole(&self, last_seq: i64, reports: i64) -> bool {
        self.seqs == last_seq && self.max_seq == last_seq && self.event_ids == last_seq && self.reports == reports
    }

    /// Whether its events are the first of a log, without a hole.
    pub fn is_prefix(&self) -> bool {
        self.seqs == self.max_seq && self.event_ids == self.max_seq
    }

    /// Whether it has rows that no log of `last_seq` events with `reports` usage rows has: nothing that is missing
    /// explains it.
    pub fn has_foreign(&self, last_seq: i64, reports: i64) -> bool {
        self.max_seq > last_seq || self.event_ids > self.seqs || self.seqs > last_seq || self.reports > reports
    }
}
