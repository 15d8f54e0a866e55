//! Appending events.

use std::sync::Arc;

use super::caller::Located;
use super::{Call, Done, Failed, Order, Service, ServiceError};
use crate::domain::command::{Command, HarnessEvent};
use crate::domain::event::{Event, EventType};
use crate::domain::harness_event::Batch;
use crate::domain::ids::{EventId, SessionId};
use crate::domain::refusal::{Checked, Refusal};

/// What became of a batch.
#[derive(Debug)]
pub struct Appended {
    /// The events that were written.
    pub written: Vec<Event>,
    /// The ids that were there already with the same content.
    pub duplicates: Vec<EventId>,
}

impl Service {
    /// Appends a batch, all or nothing. Ids that the task has with the same content are skipped and listed.
    pub async fn append(
        &self,
        call: &Call,
        located: &Located,
        session: Checked<Option<SessionId>>,
        batch: Batch,
    ) -> Result<Appended, ServiceError> {
        let mut events = match batch.events {
            // Too large for the log whatever the state of the task.
            Err(refusal @ Refusal::PayloadTooLarge { .. }) => return Err(refusal.into()),
            // An id is answered before the state, but for an archived log, which has none to compare with.
            Err(refusal @ Refusal::EventIdConflict(_)) => {
                let sealed = self.snapshot(located).await?.task().log_archived_at().is_some();
                return Err(if sealed { Refusal::TaskArchived } else { refusal }.into());
            }
            events => events,
        };
        let mut duplicates: Vec<EventId> = Vec::new();
        let mut only_tool_calls = batch.only_tool_calls;
        // Two rounds suffice but for a race with a batch that shares ids or with the remover of artifacts; a third cannot
        // find new ones.
        for _ in 0..3 {
            let command = Command::Append { session: session.clone(), only_tool_calls, events: events.clone() };
            let order = Order {
                want: crate::store::Want { session: session.clone().ok().flatten(), ..Default::default() },
                hot: true,
                ..Order::of(call, located.id)
            };
            let left = self.leave_payloads(call, &order, &command, events.as_deref().unwrap_or_default()).await;
            let failed = match when(left, self.carry_out(order, &command)).await {
                Ok(Done::Changed(change)) => {
                    let (_, written, _) = Arc::unwrap_or_clone(change).into_parts();
                    return Ok(Appended { written, duplicates });
                }
                Ok(Done::Unchanged(_)) => {
                    self.lives(located, session.ok().flatten()).await?;
                    return Ok(Appended { written: Vec::new(), duplicates });
                }
                Err(failed @ Failed::Error(ServiceError::Refused(Refusal::TaskArchived))) => return Err(failed.into()),
                // Removed between its storing and the commit: once more.
                Err(Failed::ArtifactGone) => continue,
                Err(failed @ (Failed::DuplicateEvent | Failed::Error(ServiceError::Refused(_)))) => failed,
                Err(failed) => return Err(failed.into()),
            };
            // A repeated id is answered before any state: see which of them are there.
            let Ok(fresh) = &events else { return Err(failed.into()) };
            let (known, rest) = self.split(call, located, &batch.named_ids, fresh).await?;
            if known.is_empty() {
                return Err(failed.into());
            }
            duplicates.extend(known);
            if rest.is_empty() {
                self.lives(located, session.ok().flatten()).await?;
                return Ok(Appended { written: Vec::new(), duplicates });
            }
            // What is left is judged by itself: a repeated turn does not keep a new tool call out.
            only_tool_calls = rest.iter().all(|event| event.event_type == EventType::ToolCalled);
            events = Ok(rest);
        }
        Err(ServiceError::Unavailable(
            "the same events are being written by another call, or their artifacts removed".to_owned(),
        ))
    }

    /// Tells the events that the task has from those that it lacks; other content under a known id is a conflict.
    async fn split(
        &self,
        call: &Call,
        located: &Located,
        named: &[EventId],
        events: &[HarnessEvent],
    ) -> Result<(Vec<EventId>, Vec<HarnessEvent>), ServiceError> {
        let stored = self.store.events_by_id(call.caller.organization, located.id, named).await?;
        let (mut known, mut rest) = (Vec::new(), Vec::new());
        for event in events {
            match stored.iter().find(|stored| stored.event_id == event.event_id) {
                None => rest.push(event.clone()),
                Some(stored) if is_same(stored, event, located) => known.push(event.event_id),
                Some(_) => return Err(Refusal::EventIdConflict(event.event_id).into()),
            }
        }
        Ok((known, rest))
    }
}

/// Does what is next only when what was before succeeded.
async fn when(left: Result<(), Failed>, next: impl Future<Output = Result<Done, Failed>>) -> Result<Done, Failed> {
    left?;
    next.await
}

fn is_same(stored: &Event, event: &HarnessEvent, located: &Located) -> bool {
    let agent = located.task.agent.to_string();
    let actor_id = event.actor_id.as_deref().unwrap_or(&agent);
    stored.event_type == event.event_type.as_str()
        && stored.schema_version == event.schema_version
        && (stored.payload == event.payload || is_whole(stored, event))
        && stored.actor.kind == event.actor_kind
        && stored.actor.id == actor_id
        && event.at.is_none_or(|at| at == stored.at)
}

/// Whether the log holds the whole of a payload that would be too large for it now: the limit was lowered.
fn is_whole(stored: &Event, event: &HarnessEvent) -> bool {
    event.spilled.as_ref().is_some_and(|spilled| spilled.text == stored.payload)
}
