//! A log store that notes when each row first landed in it: exact, where metrics have buckets.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt as _;
use mandate::domain::event::Event;
use mandate::domain::ids::{OrganizationId, ReportId, TaskId};
use mandate::domain::log_page::EventPage;
use mandate::domain::time::Timestamp;
use mandate::log::{
    Answer, Batch, Coverage, EventRow, LogStore, Operation, OperationsQuery, UsageGroup, UsageQuery, UsageRow,
};
use mandate::service::Clock;

/// The store, observed.
pub struct Observed {
    store: Arc<dyn LogStore>,
    clock: Clock,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// When each event was recorded, and when it first was in the store.
    events: HashMap<(TaskId, i64), (Timestamp, Timestamp)>,
    reports: HashSet<ReportId>,
    rows: usize,
    batches: usize,
}

/// What was seen.
pub struct Landings {
    /// When each event was recorded, and when it first was in the store.
    pub events: Vec<(Timestamp, Timestamp)>,
    /// Rows that were appended and that the store had already.
    pub duplicates: usize,
    /// Rows of an append, on average.
    pub batch: usize,
}

impl Observed {
    pub fn new(store: Arc<dyn LogStore>) -> Self {
        Self { store, clock: Clock::system(), seen: Mutex::default() }
    }

    fn note(&self, batch: &Batch) {
        let now = self.clock.now();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for row in &batch.events {
            seen.events.entry((row.task_id, row.seq)).or_insert((row.recorded_at, now));
        }
        seen.reports.extend(batch.usage.iter().map(|row| row.report_id));
        seen.rows += batch.len();
        seen.batches += 1;
    }

    pub fn landings(&self) -> Landings {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        Landings {
            events: seen.events.values().copied().collect(),
            duplicates: seen.rows - seen.events.len() - seen.reports.len(),
            batch: seen.rows / seen.batches.max(1),
        }
    }
}

impl LogStore for Observed {
    fn name(&self) -> &'static str {
        self.store.name()
    }

    fn migrate(&self) -> Answer<'_, ()> {
        self.store.migrate()
    }

    fn append<'a>(&'a self, batch: &'a Batch) -> Answer<'a, ()> {
        async move {
            self.store.append(batch).await?;
            self.note(batch);
            Ok(())
        }
        .boxed()
    }

    fn coverage<'a>(&'a self, tasks: &'a [(OrganizationId, TaskId)]) -> Answer<'a, Vec<Coverage>> {
        self.store.coverage(tasks)
    }

    fn seqs(&self, organization: OrganizationId, task: TaskId) -> Answer<'_, Vec<i64>> {
        self.store.seqs(organization, task)
    }

    fn report_ids(&self, organization: OrganizationId, task: TaskId) -> Answer<'_, Vec<ReportId>> {
        self.store.report_ids(organization, task)
    }

    fn stored_events<'a>(
        &'a self,
        organization: OrganizationId,
        tasks: &'a [TaskId],
        first: i64,
        last: i64,
    ) -> Answer<'a, Vec<EventRow>> {
        self.store.stored_events(organization, tasks, first, last)
    }

    fn stored_usage<'a>(
        &'a self,
        organization: OrganizationId,
        reports: &'a [(TaskId, ReportId)],
    ) -> Answer<'a, Vec<UsageRow>> {
        self.store.stored_usage(organization, reports)
    }

    fn events<'a>(
        &'a self,
        organization: OrganizationId,
        task: TaskId,
        page: &'a EventPage,
    ) -> Answer<'a, (Vec<Event>, bool)> {
        self.store.events(organization, task, page)
    }

    fn usage<'a>(&'a self, query: &'a UsageQuery) -> Answer<'a, Vec<UsageGroup>> {
        self.store.usage(query)
    }

    fn operations<'a>(&'a self, query: &'a OperationsQuery) -> Answer<'a, Vec<Operation>> {
        self.store.operations(query)
    }
}
