//! Reading tasks.

use super::caller::Located;
use super::{Caller, Principal, Service, ServiceError};
use crate::domain::digest::{Digest, chain};
use crate::domain::event::Event;
use crate::domain::ids::{AgentId, ReportId, ShortId, TaskId};
use crate::domain::log_page::EventPage;
use crate::domain::principal::Permission;
use crate::domain::refusal::Refusal;
use crate::domain::request::{Request, RequestKind, RequestStatus};
use crate::domain::session::Session;
use crate::domain::task::Task;
use crate::domain::usage::LedgerRow;
use crate::store::{InboxCounts, InboxPage, InboxRow, LogRead, Sort, TaskFilter, TaskPage, TaskPosition};

/// How many entries of an archived log are read at a time to prove some of them.
const ARCHIVED_WALK: u32 = 100;

impl Service {
    /// The task that a route names.
    pub async fn locate(&self, caller: &Caller, short_id: &str) -> Result<Located, ServiceError> {
        let short_id: ShortId = short_id.parse().map_err(|_| Refusal::TaskNotFound)?;
        let key = (caller.organization, short_id);
        if let Some(known) = self.located.get(&key).await {
            return Ok(known);
        }
        // A number that no task has is not remembered: it may be given at any moment.
        let task = self.store.task(caller.organization, short_id).await?.ok_or(Refusal::TaskNotFound)?;
        let located = Located { id: task.id(), task: task.pinned().into() };
        self.located.insert(key, located).await;
        Ok(located)
    }

    /// The task that a route names as it is now, for a caller who may read it.
    pub async fn task(&self, caller: &Caller, short_id: &str) -> Result<Task, ServiceError> {
        let short_id: ShortId = short_id.parse().map_err(|_| Refusal::TaskNotFound)?;
        let task = self.store.task(caller.organization, short_id).await?.ok_or(Refusal::TaskNotFound)?;
        caller.may_read(&task.pinned().into())?;
        Ok(task)
    }

    /// The task that a route names, for a caller who may read it.
    pub async fn read(&self, caller: &Caller, short_id: &str) -> Result<Located, ServiceError> {
        let located = self.locate(caller, short_id).await?;
        caller.may_read(&located.task)?;
        Ok(located)
    }

    /// A page of the tasks that the caller may read.
    pub async fn list(
        &self,
        caller: &Caller,
        mut filter: TaskFilter,
        sort: Sort,
        after: Option<TaskPosition>,
        limit: u32,
    ) -> Result<TaskPage, ServiceError> {
        match &caller.principal {
            Principal::Person { .. } => caller.require(Permission::Read)?,
            Principal::Agent { agent, .. } => {
                if filter.agent.is_some_and(|wanted| wanted != *agent) {
                    return Ok(TaskPage { tasks: Vec::new(), next: None });
                }
                filter.agent = Some(*agent);
            }
            Principal::Trigger { account } => filter.created_by = Some(*account),
        }
        Ok(self.store.tasks(caller.organization, &filter, sort, after, limit).await?)
    }

    /// What of what the caller may read waits for a person.
    pub async fn waiting(&self, caller: &Caller) -> Result<InboxCounts, ServiceError> {
        let agent = match &caller.principal {
            Principal::Person { .. } => {
                caller.require(Permission::Read)?;
                None
            }
            Principal::Agent { agent, .. } => Some(*agent),
            Principal::Trigger { .. } => return Err(Refusal::PermissionDenied(Permission::Read).into()),
        };
        Ok(self.store.waiting(caller.organization, agent).await?)
    }

    /// A part of a task's log, and whether there is more, wherever the log is.
    pub async fn events(&self, located: &Located, page: &EventPage) -> Result<(Vec<Event>, bool), ServiceError> {
        let LogRead { events, more, .. } = self.look(located, page).await?;
        Ok((events, more))
    }

    /// The same, with how far the log was at that very moment.
    pub async fn look(&self, located: &Located, page: &EventPage) -> Result<LogRead, ServiceError> {
        let read = self.look_at_postgres(located, page).await?;
        self.look_at_archive(located, page, read).await
    }

    /// The first half of a look: what Postgres has, which of an archived log is how far it is.
    pub(super) async fn look_at_postgres(&self, located: &Located, page: &EventPage) -> Result<LogRead, ServiceError> {
        Ok(self.store.events(located.task.organization, located.id, page).await?)
    }

    /// The second half: of an archived log what the log store has.
    pub(super) async fn look_at_archive(
        &self,
        located: &Located,
        page: &EventPage,
        read: LogRead,
    ) -> Result<LogRead, ServiceError> {
        let Some(digest) = read.archived_digest else { return Ok(read) };
        let (events, more) = self.archived_events(located, page, read.head.last_seq, digest).await?;
        Ok(LogRead { events, more, ..read })
    }

    /// A part of an archived log of `last_seq` entries that ends in `head`. It is sealed, so that a second look finds the
    /// same. A store that does not have all of it, because it is another one or was set back, or that has something else,
    /// must not pass for one that has it.
    async fn archived_events(
        &self,
        located: &Located,
        page: &EventPage,
        last_seq: i64,
        head: Digest,
    ) -> Result<(Vec<Event>, bool), ServiceError> {
        let organization = located.task.organization;
        let (events, more) = self.log.events(organization, located.id, page).await?;
        let ends = |events: &[Event]| events.last().is_none_or(|last| last.seq != last_seq || last.digest == head);
        let genuine = if page.types.is_empty() {
            page.is_whole(last_seq, events.iter().map(|event| event.seq))
                && ends(&events)
                && match events.first() {
                    None => true,
                    Some(first) => {
                        let before = self.archived_digest(located, first.seq - 1).await?;
                        before.is_some_and(|before| is_chained(located.id, before, &events))
                    }
                }
        } else {
            let found = self.log.coverage(&[(organization, located.id)]).await?;
            found.first().is_some_and(|coverage| coverage.seqs == last_seq)
                && ends(&events)
                && self.stand_in_archive(located, &events).await?
        };
        if !genuine {
            tracing::error!(%organization, task = %located.id, last_seq, store = self.log.name(),
                "an archived log is not whole in the log store, or was changed there");
            return Err(ServiceError::Unavailable("an archived log is not whole in the log store".to_owned()));
        }
        Ok((events, more))
    }

    /// The digest of the entry `seq` of an archived log; none if the store lacks it. Before the first there is zero.
    async fn archived_digest(&self, located: &Located, seq: i64) -> Result<Option<Digest>, ServiceError> {
        if seq == 0 {
            return Ok(Some(Digest::ZERO));
        }
        let page = EventPage { after_seq: Some(seq - 1), before_seq: Some(seq + 1), limit: 1, ..EventPage::default() };
        let (found, _) = self.log.events(located.task.organization, located.id, &page).await?;
        Ok(found.first().map(|event| event.digest))
    }

    /// Whether what was picked out of an archived log stands so in its chain. What lies in between is read too: an
    /// entry's digest covers the one before it.
    async fn stand_in_archive(&self, located: &Located, picked: &[Event]) -> Result<bool, ServiceError> {
        let (Some(first), Some(last)) = (picked.first(), picked.last()) else { return Ok(true) };
        let (mut after, end) = (first.seq - 1, last.seq);
        let Some(mut before) = self.archived_digest(located, after).await? else { return Ok(false) };
        let mut picked = picked.iter().peekable();
        while after < end {
            let page = EventPage {
                after_seq: Some(after),
                before_seq: Some(end + 1),
                limit: ARCHIVED_WALK,
                ..EventPage::default()
            };
            let (events, _) = self.log.events(located.task.organization, located.id, &page).await?;
            if !page.is_whole(end, events.iter().map(|event| event.seq)) || !is_chained(located.id, before, &events) {
                return Ok(false);
            }
            let Some(reached) = events.last() else { return Ok(false) };
            (after, before) = (reached.seq, reached.digest);
            for event in &events {
                if picked.next_if(|wanted| wanted.seq == event.seq).is_some_and(|wanted| wanted != event) {
                    return Ok(false);
                }
            }
        }
        Ok(picked.peek().is_none())
    }

    /// A task's version, its `last_seq`. Asked before what it shall be the version of: should that be newer, its reader
    /// is given it once more.
    pub async fn version(&self, located: &Located) -> Result<i64, ServiceError> {
        let found = self.store.version(located.task.organization, located.id).await?;
        Ok(found.ok_or(Refusal::TaskNotFound)?)
    }

    /// A task's sessions.
    pub async fn sessions(&self, located: &Located) -> Result<Vec<Session>, ServiceError> {
        Ok(self.store.sessions(located.task.organization, located.id).await?)
    }

    /// A task's requests.
    pub async fn requests(&self, located: &Located) -> Result<Vec<Request>, ServiceError> {
        Ok(self.store.requests(located.task.organization, located.id).await?)
    }

    /// A page of a task's ledger, and whether there is more.
    pub async fn usage(
        &self,
        located: &Located,
        after: Option<ReportId>,
        limit: u32,
    ) -> Result<(Vec<LedgerRow>, bool), ServiceError> {
        Ok(self.store.usage(located.task.organization, located.id, after, limit).await?)
    }

    /// A page of the organization's requests, each with its task.
    pub async fn inbox(
        &self,
        caller: &Caller,
        status: RequestStatus,
        kind: Option<RequestKind>,
        agent: Option<AgentId>,
        after: Option<InboxPage>,
        limit: u32,
    ) -> Result<(Vec<InboxRow>, Option<InboxPage>), ServiceError> {
        caller.require(Permission::Read)?;
        Ok(self.store.inbox(caller.organization, status, kind, agent, after, limit).await?)
    }
}

/// Whether each of these entries of a task's log, which follow each other, has the digest that its content and the one
/// `before` it give.
fn is_chained(task: TaskId, before: Digest, events: &[Event]) -> bool {
    events
        .iter()
        .scan(before, |previous, event| {
            Some(chain(std::mem::replace(previous, event.digest), task, event) == event.digest)
        })
        .all(|fits| fits)
}
