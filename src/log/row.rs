//! The rows of the log store, which are the values of the stream too: one JSON object with the names of the columns.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::domain::digest::Digest;
use crate::domain::event::{Actor, Event};
use crate::domain::ids::{
    AccountId, AgentId, EventId, ModelId, OrganizationId, ProjectId, ReportId, SessionId, TaskId,
};
use crate::domain::money::{Money, Prices, TokenCounts};
use crate::domain::task::Pinned;
use crate::domain::time::Timestamp;
use crate::domain::usage::LedgerRow;

/// A row that cannot be taken back into the domain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{column}: {fault}")]
pub struct RowError {
    /// The column.
    pub column: &'static str,
    /// What is wrong with it.
    pub fault: String,
}

/// A row of `agent_task_events`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRow {
    /// The tenant.
    pub organization_id: OrganizationId,
    /// The task.
    pub task_id: TaskId,
    /// 1, 2, 3 … per task.
    pub seq: i64,
    /// The event.
    pub event_id: EventId,
    /// Its type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// Version of the payload's schema.
    pub schema_version: i32,
    /// Who caused it: the kind.
    pub actor_kind: String,
    /// Who caused it.
    pub actor_id: String,
    /// The way it came.
    pub channel: Option<String>,
    /// The session it came from.
    pub session_id: Option<SessionId>,
    /// When it happened.
    pub at: Timestamp,
    /// The server's clock at the write.
    pub recorded_at: Timestamp,
    /// JSON text, verbatim.
    pub payload: String,
    /// JSON pointers of what was redacted.
    pub redacted: Vec<String>,
    /// The chain up to and with this entry.
    pub digest: Digest,
    /// The number of the task's short id.
    pub short_number: i64,
    /// The task's agent.
    pub agent_id: AgentId,
    /// Its slug when the task was created.
    pub agent_slug: String,
    /// The task's primary project.
    pub project_id: Option<ProjectId>,
    /// Of rows with one key the highest version counts; 1 unless a log had to be written anew.
    pub version: u64,
    /// The W3C trace context of the call that caused it. A header of the stream; the store does not keep it.
    #[serde(skip)]
    pub trace: Option<Arc<str>>,
}

impl EventRow {
    /// The row of an event.
    pub fn new(task: &Pinned, event: &Event, version: u64, trace: Option<Arc<str>>) -> Self {
        Self {
            organization_id: task.organization_id,
            task_id: task.id,
            seq: event.seq,
            event_id: event.event_id,
            event_type: event.event_type.to_string(),
            schema_version: event.schema_version,
            actor_kind: event.actor.kind.as_str().to_owned(),
            actor_id: event.actor.id.clone(),
            channel: event.actor.channel.map(|channel| channel.as_str().to_owned()),
            session_id: event.session_id,
            at: event.at,
            recorded_at: event.recorded_at,
            payload: event.payload.clone(),
            redacted: event.redacted.clone(),
            digest: event.digest,
            short_number: task.short_id.0,
            agent_id: task.agent_id,
            agent_slug: task.agent_slug.clone(),
            project_id: task.project_id,
            version,
            trace,
        }
    }

    /// The event of the row.
    pub fn into_event(self) -> Result<Event, RowError> {
        let fault = |column, fault: &dyn std::fmt::Display| RowError { column, fault: fault.to_string() };
        Ok(Event {
            event_id: self.event_id,
            seq: self.seq,
            event_type: self.event_type.into(),
            schema_version: self.schema_version,
            actor: Actor {
                kind: self.actor_kind.parse().map_err(|error| fault("actor_kind", &error))?,
                id: self.actor_id,
                channel: self
                    .channel
                    .map(|channel| channel.parse().map_err(|error| fault("channel", &error)))
                    .transpose()?,
            },
            session_id: self.session_id,
            at: self.at,
            recorded_at: self.recorded_at,
            payload: self.payload,
            redacted: self.redacted,
            digest: self.digest,
        })
    }
}

/// A row of `agent_usage`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRow {
    /// The tenant.
    pub organization_id: OrganizationId,
    /// The task.
    pub task_id: TaskId,
    /// The row of the ledger.
    pub report_id: ReportId,
    /// The sequence number of its event.
    pub seq: i64,
    /// The account that reported.
    pub account_id: AccountId,
    /// Its key.
    pub idempotency_key: String,
    /// The session that reported.
    pub session_id: Option<SessionId>,
    /// The model as the harness named it.
    pub model_id: String,
    /// The directory's model, when the name was known.
    pub model_ref: Option<ModelId>,
    /// The counts; signed differences in a correction.
    #[serde(flatten)]
    pub tokens: TokenCounts,
    /// The prices used.
    #[serde(flatten)]
    pub prices: Prices,
    /// The cost; absent when unmeasured or unpriced.
    pub cost: Option<Money>,
    /// Whether any count was given.
    pub measured: bool,
    /// The original row, in a correction.
    pub corrects: Option<ReportId>,
    /// Change of the task's unmeasured reports.
    pub unmeasured_delta: i16,
    /// Change of the task's unpriced reports.
    pub unpriced_delta: i16,
    /// The server's clock at the write.
    pub recorded_at: Timestamp,
    /// The number of the task's short id.
    pub short_number: i64,
    /// The task's agent.
    pub agent_id: AgentId,
    /// Its slug when the task was created.
    pub agent_slug: String,
    /// The task's primary project.
    pub project_id: Option<ProjectId>,
    /// Its slug when the task was created.
    pub project_slug: Option<String>,
    /// Of rows with one key the highest version counts.
    pub version: u64,
    /// The W3C trace context of the call that caused it. A header of the stream; the store does not keep it.
    #[serde(skip)]
    pub trace: Option<Arc<str>>,
}

impl UsageRow {
    /// The row of a report.
    pub fn new(task: &Pinned, account: AccountId, row: &LedgerRow, version: u64, trace: Option<Arc<str>>) -> Self {
        Self {
            organization_id: task.organization_id,
            task_id: task.id,
            report_id: row.id,
            seq: row.seq,
            account_id: account,
            idempotency_key: row.idempotency_key.clone(),
            session_id: row.session_id,
            model_id: row.model_id.clone(),
            model_ref: row.model_ref,
            tokens: row.tokens,
            prices: row.prices,
            cost: row.cost,
            measured: row.measured,
            corrects: row.corrects,
            unmeasured_delta: row.unmeasured_delta,
            unpriced_delta: row.unpriced_delta,
            recorded_at: row.recorded_at,
            short_number: task.short_id.0,
            agent_id: task.agent_id,
            agent_slug: task.agent_slug.clone(),
            project_id: task.project_id,
            project_slug: task.project_slug.clone(),
            version,
            trace,
        }
    }
}

/// Rows on their way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// For `agent_task_events`.
    pub events: Vec<EventRow>,
    /// For `agent_usage`.
    pub usage: Vec<UsageRow>,
}

impl Batch {
    /// How many rows.
    pub fn len(&self) -> usize {
        self.events.len() + self.usage.len()
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.usage.is_empty()
    }

    /// The other's rows too.
    pub fn extend(&mut self, other: Self) {
        self.events.extend(other.events);
        self.usage.extend(other.usage);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::Index;
    use uuid::Uuid;

    use super::*;

    fn event_rows() -> impl Strategy<Value = EventRow> {
        let instant = || (0..4_000_000_000_000_000_i64).prop_map(|micros| Timestamp::from_micros(micros).unwrap());
        let texts = (any::<String>(), any::<String>(), any::<String>(), proptest::option::of("web|api|slack|harness"));
        let ids = (any::<u128>(), any::<u128>(), proptest::option::of(any::<u128>()), any::<[u8; 32]>());
        (texts, ids, instant(), instant(), any::<i64>(), any::<u64>()).prop_map(
            |((event_type, actor_id, payload, channel), (one, two, three, digest), at, recorded_at, seq, version)| {
                let [one, two] = [one, two].map(Uuid::from_u128);
                EventRow {
                    organization_id: one.into(),
                    task_id: two.into(),
                    seq,
                    event_id: one.into(),
                    event_type,
                    schema_version: 1,
                    actor_kind: "agent".to_owned(),
                    actor_id,
                    channel,
                    session_id: three.map(Uuid::from_u128).map(Into::into),
                    at,
                    recorded_at,
                    redacted: vec![payload.clone()],
                    payload,
                    digest: Digest(digest),
                    short_number: seq,
                    agent_id: two.into(),
                    agent_slug: "reviewer".to_owned(),
                    project_id: three.map(Uuid::from_u128).map(Into::into),
                    version,
                    trace: None,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn an_event_goes_round(row in event_rows()) {
            let text = serde_json::to_vec(&row).unwrap();
            let read: EventRow = serde_json::from_slice(&text).unwrap();
            prop_assert_eq!(&read, &row);
            let event = read.into_event().unwrap();
            prop_assert_eq!((event.seq, &event.payload, event.digest), (row.seq, &row.payload, row.digest));
        }

        #[test]
        fn a_damaged_row_is_refused_or_is_another_one(row in event_rows(), at: Index, byte: u8) {
            let mut text = serde_json::to_vec(&row).unwrap();
            let at = at.index(text.len());
            text[at] = byte;
            // Nothing but a name of the domain is asked for; what it says is for the digest chain to judge.
            if let Ok(read) = serde_json::from_slice::<EventRow>(&text)
                && let Ok(event) = read.clone().into_event()
            {
                prop_assert_eq!(event.event_id, read.event_id);
            }
        }

        #[test]
        fn any_bytes_are_a_row_or_none(bytes: Vec<u8>) {
            prop_assert!(serde_json::from_slice::<EventRow>(&bytes).is_err());
            prop_assert!(serde_json::from_slice::<UsageRow>(&bytes).is_err());
        }

        #[test]
        fn a_row_with_an_actor_that_is_none_names_its_column(row in event_rows(), kind in "[a-z]{1,4}") {
            let fault = EventRow { actor_kind: kind, ..row.clone() }.into_event().unwrap_err();
            prop_assert_eq!(fault.column, "actor_kind");
            let fault = EventRow { channel: Some("telegraph".to_owned()), ..row }.into_event().unwrap_err();
            prop_assert_eq!(fault.column, "channel");
        }
    }
}
