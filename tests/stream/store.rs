//! A log store that fails when a test says so. Beneath it is the real one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use mandate::domain::event::Event;
use mandate::domain::ids::{OrganizationId, ReportId, TaskId};
use mandate::domain::log_page::EventPage;
use mandate::log::postgres::PostgresLog;
use mandate::log::{
    Answer, Batch, Coverage, EventRow, LogStore, LogStoreError, Operation, OperationsQuery, UsageGroup, UsageQuery,
    UsageRow,
};

pub struct Faulty {
    beneath: Arc<PostgresLog>,
    /// It takes nothing and says so.
    pub away: AtomicBool,
    /// It takes everything and its answer is lost.
    pub mute: AtomicBool,
    /// How often it was asked to append.
    pub asked: AtomicUsize,
    /// How many rows it acknowledged.
    pub rows: AtomicUsize,
}

impl Faulty {
    pub fn over(beneath: &Arc<PostgresLog>) -> Arc<Self> {
        Arc::new(Self {
            beneath: Arc::clone(beneath),
            away: AtomicBool::new(false),
            mute: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
            rows: AtomicUsize::new(0),
        })
    }

    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    pub fn rows(&self) -> usize {
        self.rows.load(Ordering::SeqCst)
    }
}

impl LogStore for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn migrate(&self) -> Answer<'_, ()> {
        self.beneath.migrate()
    }

    fn append<'a>(&'a self, batch: &'a Batch) -> Answer<'a, ()> {
        Box::pin(async move {
            self.asked.fetch_add(1, Ordering::SeqCst);
            if self.away.load(Ordering::SeqCst) {
                return Err(LogStoreError::Unavailable("away".to_owned()));
            }
            self.beneath.append(batch).await?;
            if self.mute.load(Ordering::SeqCst) {
                return Err(LogStoreError::Unavailable("the answer is lost".to_owned()));
            }
            self.rows.fetch_add(batch.len(), Ordering::SeqCst);
            Ok(())
        })
    }

    fn coverage<'a>(&'a self, tasks: &'a [(OrganizationId, TaskId)]) -> Answer<'a, Vec<Coverage>> {
        self.beneath.coverage(tasks)
    }

    fn seqs(&self, organization: OrganizationId, task: TaskId) -> Answer<'_, Vec<i64>> {
        self.beneath.seqs(organization, task)
    }

    fn report_ids(&self, organization: OrganizationId, task: TaskId) -> Answer<'_, Vec<ReportId>> {
        self.beneath.report_ids(organization, task)
    }

    fn stored_events<'a>(
        &'a self,
        organization: OrganizationId,
        tasks: &'a [TaskId],
        first: i64,
        last: i64,
    ) -> Answer<'a, Vec<EventRow>> {
        self.beneath.stored_events(organization, tasks, first, last)
    }

    fn stored_usage<'a>(
        &'a self,
        organization: OrganizationId,
        reports: &'a [(TaskId, ReportId)],
    ) -> Answer<'a, Vec<UsageRow>> {
        self.beneath.stored_usage(organization, reports)
    }

    fn events<'a>(
        &'a self,
        organization: OrganizationId,
        task: TaskId,
        page: &'a EventPage,
    ) -> Answer<'a, (Vec<Event>, bool)> {
        self.beneath.events(organization, task, page)
    }

    fn usage<'a>(&'a self, query: &'a UsageQuery) -> Answer<'a, Vec<UsageGroup>> {
        self.beneath.usage(query)
    }

    fn operations<'a>(&'a self, query: &'a OperationsQuery) -> Answer<'a, Vec<Operation>> {
        self.beneath.operations(query)
    }
}
