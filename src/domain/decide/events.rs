//! What a harness appends.

use crate::domain::aggregate::Aggregate;
use crate::domain::change::{Context, Decision, Draft};
use crate::domain::command::HarnessEvent;
use crate::domain::digest::Digest;
use crate::domain::event::{Actor, Event};
use crate::domain::ids::SessionId;
use crate::domain::payload::Payload;
use crate::domain::refusal::{Checked, Refusal};

/// Appends all of `events` or none.
pub(super) fn append(
    base: &Aggregate,
    session: Checked<Option<SessionId>>,
    kept: bool,
    events: Checked<Vec<HarnessEvent>>,
    context: &mut Context<'_>,
) -> Result<Decision, Refusal> {
    let session = base.named_session(session, kept)?;
    let events = events?;
    let (now, channel) = (context.now, context.actor.channel);
    let mut draft = Draft::of(base, context);
    for event in events {
        draft.guards().stored.extend(event.spilled.as_ref().map(|spilled| spilled.digest));
        let payload = event.phase.map_or(Payload::Other, Payload::PhaseChanged);
        let actor_id = event.actor_id.unwrap_or_else(|| base.task().pinned().agent_id.to_string());
        let event = Event {
            event_id: event.event_id,
            seq: 0,
            event_type: event.event_type.as_str().into(),
            schema_version: event.schema_version,
            actor: Actor { kind: event.actor_kind, id: actor_id, channel },
            session_id: session,
            at: event.at.unwrap_or(now),
            recorded_at: now,
            payload: event.payload,
            redacted: event.redacted,
            digest: Digest::ZERO,
        };
        draft.push_event(event, &payload)?;
    }
    super::sign_of_life(&mut draft, session);
    Ok(draft.finish())
}
