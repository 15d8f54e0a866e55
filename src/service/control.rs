//! What people want of a task.

use std::collections::HashSet;

use uuid::Uuid;

use super::caller::Located;
use super::{Answered, Call, Clock, Done, Failed, Order, Service, ServiceError};
use crate::domain::aggregate::Aggregate;
use crate::domain::command::Command;
use crate::domain::event::{Event, EventType};
use crate::domain::ids::{AgentId, EventId, PersonId};
use crate::domain::log_page::EventPage;
use crate::domain::principal::Permission;
use crate::domain::refusal::{Checked, Fault, Refusal};
use crate::domain::task::Task;

/// The name space of turns that a person's idempotency key names.
const REPLY_KEYS: Uuid = Uuid::from_u128(0x7c2f_16d8_51f3_4f0c_9a0e_43d6_0c1b_9d27);
/// How many tasks an emergency stop closes between two looks.
const STOP_PAGE: i64 = 200;
/// How many turns of an archived log are read at a time to find one.
const ARCHIVED_PAGE: u32 = 100;
/// How often an emergency stop looks over all of an agent's open tasks.
const STOP_LOOKS_MAX: u32 = 50;
/// After so many tasks in a row that cannot be closed it is not the tasks that fail.
const STOP_FAULTS_MAX: u32 = 10;

impl Service {
    async fn manage(&self, call: &Call, located: &Located, command: &Command) -> Result<Task, ServiceError> {
        let done = self.carry_out(Order::of(call, located.id), command).await?;
        Ok(done.aggregate().task().clone())
    }

    /// Pauses the task.
    pub async fn pause(
        &self,
        call: &Call,
        located: &Located,
        reason: Checked<Option<String>>,
    ) -> Result<Task, ServiceError> {
        self.manage(call, located, &Command::Pause { reason }).await
    }

    /// Lets the task go on.
    pub async fn resume(
        &self,
        call: &Call,
        located: &Located,
        reason: Checked<Option<String>>,
    ) -> Result<Task, ServiceError> {
        self.manage(call, located, &Command::Resume { reason }).await
    }

    /// Cancels the task. With `cascade` the open tasks below it too, root first; on a closed task they alone are, where
    /// there are any, so that a cascade that was cut short can be finished.
    pub async fn cancel(
        &self,
        call: &Call,
        located: &Located,
        reason: Checked<Option<String>>,
        force: Checked<bool>,
        cascade: bool,
    ) -> Result<Task, ServiceError> {
        let forced = force == Ok(true);
        let command = Command::Cancel { reason, force };
        match self.manage(call, located, &command).await {
            Ok(task) if !cascade => return Ok(task),
            Ok(_) => {}
            Err(ServiceError::Refused(Refusal::TaskClosed(_))) if cascade && self.has_open_below(located).await? => {}
            refused @ Err(_) => return refused,
        }
        self.cancel_below(call, located, &command, forced).await?;
        // What closed below changed what the task has set aside.
        Ok(self.snapshot(located).await?.task().clone())
    }

    /// Names another owner, who must be a member.
    pub async fn reassign(
        &self,
        call: &Call,
        located: &Located,
        owner: Checked<PersonId>,
    ) -> Result<Task, ServiceError> {
        let owner = match owner {
            Ok(owner) => self.member(call, owner, Fault::new("/owner", "names no member")).await?,
            Err(refusal) => Err(refusal),
        };
        self.manage(call, located, &Command::Reassign { owner }).await
    }

    /// Checks that a person is a member; `fault` says where the call names them.
    pub(super) async fn member(
        &self,
        call: &Call,
        person: PersonId,
        fault: Fault,
    ) -> Result<Checked<PersonId>, ServiceError> {
        let member = self.directory.member(call.caller.organization, person.clone()).await?;
        Ok(match member {
            Some(_) => Ok(person),
            None => Err(Refusal::OwnerNotMember(fault)),
        })
    }

    /// A person's turn. With a key the turn's id follows from it, so a repeat finds the first one.
    pub async fn reply(
        &self,
        call: &Call,
        located: &Located,
        key: Option<String>,
        body: Checked<String>,
        hold: Checked<bool>,
    ) -> Result<Answered<Task>, ServiceError> {
        let event_id = match &key {
            None => EventId(Clock::new_id()),
            Some(key) => {
                let person = call.caller.person()?;
                let name = format!("{}\n{}\n{person}\n{key}", call.caller.organization, located.id);
                EventId(Uuid::new_v5(&REPLY_KEYS, name.as_bytes()))
            }
        };
        let command = Command::Reply { event_id, body: body.clone(), hold: hold.clone() };
        let carried = self.carry_out(Order::of(call, located.id), &command).await;
        let error = match carried {
            Ok(done) => return Ok(Answered::first(done.aggregate().task().clone())),
            // A key that was used is answered before any state.
            Err(failed @ (Failed::DuplicateEvent | Failed::Error(ServiceError::Refused(_)))) if key.is_some() => failed,
            Err(failed) => return Err(failed.into()),
        };
        let organization = call.caller.organization;
        let first = match error {
            Failed::Error(ServiceError::Refused(Refusal::TaskArchived)) => {
                self.archived_turn(located, event_id).await?
            }
            _ => self.store.events_by_id(organization, located.id, &[event_id]).await?.pop(),
        };
        let Some(first) = first else { return Err(error.into()) };
        let now = self.store.load(organization, located.id, &crate::store::Want::default()).await?;
        let task = now.ok_or(Refusal::TaskNotFound)?.task().clone();
        let turn = serde_json::from_str::<crate::domain::payload::Turn>(&first.payload);
        let same = turn.is_ok_and(|turn| body == Ok(turn.body) && hold == Ok(turn.hold));
        Ok(Answered { value: task, replay: Some(super::Replay { body_matches: same }) })
    }

    /// The turn of that id in a log that is archived. Its key lives as long as the log does.
    async fn archived_turn(&self, located: &Located, id: EventId) -> Result<Option<Event>, ServiceError> {
        let types = vec![EventType::Turn.as_str().to_owned()];
        let mut page = EventPage { after_seq: None, before_seq: None, types, limit: ARCHIVED_PAGE };
        loop {
            let (events, more) = self.events(located, &page).await?;
            page.after_seq = events.last().map(|last| last.seq);
            if let Some(found) = events.into_iter().find(|event| event.event_id == id) {
                return Ok(Some(found));
            }
            if !more {
                return Ok(None);
            }
        }
    }

    /// Closes every open task of an agent, one transaction each, until none is left. Answers how many it closed. One
    /// that cannot be closed stands in no other's way; what went wrong is told once the others are closed.
    ///
    /// Ids are older than the commits of their tasks, so that one may appear behind the place that a look has reached:
    /// it ends only with a look over all that finds nothing but what cannot be closed.
    pub async fn stop_agent(&self, call: &Call, agent: AgentId, command: Command) -> Result<u64, ServiceError> {
        let (mut stopped, mut looks, mut after, mut found) = (0, 0, None, false);
        let (mut fault, mut in_a_row, mut failed) = (None, 0, HashSet::new());
        loop {
            let page = self.store.open_tasks_of(call.caller.organization, agent, after, STOP_PAGE).await?;
            let Some(last) = page.last() else {
                if !found {
                    return fault.map_or(Ok(stopped), Err);
                }
                looks += 1;
                if looks == STOP_LOOKS_MAX {
                    let created = "tasks of the agent are created faster than they close; disable it first";
                    return Err(ServiceError::Unavailable(created.to_owned()));
                }
                (after, found) = (None, false);
                continue;
            };
            after = Some(*last);
            for task in page {
                if failed.contains(&task) {
                    continue;
                }
                match self.carry_out(Order::of(call, task), &command).await {
                    Ok(done) => {
                        let closed = matches!(done, Done::Changed(_));
                        found |= closed;
                        stopped += u64::from(closed);
                        in_a_row = 0;
                    }
                    Err(error) => {
                        let error = ServiceError::from(error);
                        tracing::error!(%task, ?error, "an open task of an agent that is stopped cannot be closed");
                        in_a_row += 1;
                        if in_a_row == STOP_FAULTS_MAX {
                            return Err(error);
                        }
                        failed.insert(task);
                        fault.get_or_insert(error);
                    }
                }
            }
        }
    }

    /// Stops every open task of an agent.
    pub async fn emergency_stop(&self, call: &Call, agent: AgentId) -> Result<u64, ServiceError> {
        call.caller.require(Permission::Manage)?;
        self.stop_agent(call, agent, Command::Stop).await
    }

    /// The state of a task with nothing but what is open.
    pub async fn snapshot(&self, located: &Located) -> Result<Aggregate, ServiceError> {
        let organization = located.task.organization;
        let loaded = self.store.load(organization, located.id, &crate::store::Want::default()).await?;
        loaded.ok_or(ServiceError::Refused(Refusal::TaskNotFound))
    }
}
