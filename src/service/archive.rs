//! Archived logs for the audit, and comparing ledgers with what the log store has of them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;

use crate::domain::event::Event;
use crate::domain::ids::{AccountId, OrganizationId, ReportId, TaskId};
use crate::domain::log_page::EventPage;
use crate::domain::task::Pinned;
use crate::domain::usage::LedgerRow;
use crate::log::{LogStore, UsageRow};
use crate::store::Archive;

/// How many events are read at once.
const PAGE: u32 = 1_000;
/// How many rows of a ledger are compared at once.
const REPORTS_AT_ONCE: usize = 500;

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

    fn usage_faults<'a>(
        &'a self,
        task: &'a Pinned,
        ledger: &'a [(AccountId, LedgerRow)],
    ) -> BoxFuture<'a, Result<Vec<String>, String>> {
        async move {
            let kept = self.0.report_ids(task.organization_id, task.id).await.map_err(|fault| fault.to_string())?;
            let known: HashSet<ReportId> = ledger.iter().map(|(_, row)| row.id).collect();
            let foreign = kept.into_iter().filter(|id| !known.contains(id));
            let mut faults: Vec<_> =
                foreign.map(|id| format!("the log store has report {id}, its ledger not")).collect();
            for part in ledger.chunks(REPORTS_AT_ONCE) {
                let ids: Vec<_> = part.iter().map(|(_, row)| (task.id, row.id)).collect();
                let stored = self.0.stored_usage(task.organization_id, &ids).await;
                let stored = stored.map_err(|fault| fault.to_string())?;
                let expected = part.iter().map(|(account, row)| UsageRow::new(task, *account, row, 0, None)).collect();
                let lost = unlike(expected, stored);
                faults.extend(lost.iter().map(|id| format!("report {id} is missing in the log store, or differs")));
            }
            Ok(faults)
        }
        .boxed()
    }
}

/// The reports of `expected` that `stored` lacks or has otherwise. Of each the highest version counts; of two that
/// differ under one version a reader could be given either.
pub(super) fn unlike(expected: Vec<UsageRow>, stored: Vec<UsageRow>) -> Vec<ReportId> {
    let mut by_id: HashMap<_, Vec<UsageRow>> = HashMap::new();
    for row in stored {
        by_id.entry(row.report_id).or_default().push(row);
    }
    let mut unlike = Vec::new();
    for wanted in expected {
        let id = wanted.report_id;
        let rows = by_id.remove(&id).unwrap_or_default();
        let top = rows.iter().map(|row| row.version).max().unwrap_or_default();
        let wanted = UsageRow { version: top, ..wanted };
        let mut current = rows.iter().filter(|row| row.version == top).peekable();
        if current.peek().is_none() || current.any(|row| *row != wanted) {
            unlike.push(id);
        }
    }
    unlike
}
