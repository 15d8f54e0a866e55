//! Archived logs for the audit.

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;

use crate::domain::event::Event;
use crate::domain::ids::{OrganizationId, TaskId};
use crate::domain::log_page::EventPage;
use crate::log::LogStore;
use crate::store::Archive;

/// How many events are read at once.
const PAGE: u32 = 1_000;

/// The log store as the audit reads it: as every reader does.
pub struct ArchivedLogs(Arc<dyn LogStore>);

impl ArchivedLogs {
    /// Reads from `log`.
    pub fn new(log: Arc<dyn LogStore>) -> Self {
        Self(log)
    }
}

impl Archive for ArchivedLogs {
    fn log(&self, organization: OrganizationId, task: TaskId) -> BoxFuture<'_, Result<Vec<Event>, String>> {
        async move {
            let mut log: Vec<Event> = Vec::new();
            loop {
                let after_seq = log.last().map(|event| event.seq);
                let page = EventPage { after_seq, limit: PAGE, ..EventPage::default() };
                let read = self.0.events(organization, task, &page).await;
                let (events, more) = read.map_err(|fault| fault.to_string())?;
                log.extend(events);
                if !more {
                    return Ok(log);
                }
            }
        }
        .boxed()
    }
}
