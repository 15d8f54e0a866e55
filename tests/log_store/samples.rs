//! Rows to store.

use mandate::domain::digest::Digest;
use mandate::domain::event::Event;
use mandate::domain::ids::{
    AccountId, AgentId, EventId, ModelId, OrganizationId, ProjectId, ReportId, SessionId, TaskId,
};
use mandate::domain::log_page::EventPage;
use mandate::domain::money::{Prices, TokenCounts};
use mandate::domain::time::Timestamp;
use mandate::log::{Batch, EventRow, LogStore, UsageRow};
use uuid::Uuid;

pub fn fresh<T: From<Uuid>>() -> T {
    Uuid::new_v4().into()
}

pub fn at(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

pub fn micros_later(at: Timestamp, micros: i64) -> Timestamp {
    Timestamp::from_micros(at.micros() + micros).unwrap()
}

/// A task to which rows belong.
#[derive(Clone)]
pub struct Sample {
    pub organization: OrganizationId,
    pub task: TaskId,
    pub agent: AgentId,
}

impl Sample {
    pub fn new() -> Self {
        Self { organization: fresh(), task: fresh(), agent: fresh() }
    }

    /// Another task of the same organization and agent.
    pub fn sibling(&self) -> Self {
        Self { task: fresh(), ..self.clone() }
    }

    pub fn event(&self, seq: i64) -> EventRow {
        let payload = format!("{{\"body\":\"number {seq}\"}}");
        EventRow {
            organization_id: self.organization,
            task_id: self.task,
            seq,
            event_id: fresh::<EventId>(),
            event_type: if seq % 3 == 0 { "tool.called" } else { "turn" }.to_owned(),
            schema_version: 1,
            actor_kind: "agent".to_owned(),
            actor_id: "writer".to_owned(),
            channel: Some("harness".to_owned()),
            session_id: Some(fresh::<SessionId>()),
            at: micros_later(at("2026-03-01T08:00:00.123456Z"), seq * 7),
            recorded_at: micros_later(at("2026-03-01T08:00:00.654321Z"), seq * 1_000),
            digest: Digest::of(payload.as_bytes()),
            payload,
            redacted: vec!["/body".to_owned()],
            short_number: 12,
            agent_id: self.agent,
            agent_slug: "writer".to_owned(),
            project_id: Some(fresh::<ProjectId>()),
            version: 1,
            trace: None,
        }
    }

    pub fn events(&self, seqs: std::ops::RangeInclusive<i64>) -> Vec<EventRow> {
        seqs.map(|seq| self.event(seq)).collect()
    }

    pub fn report(&self, seq: i64) -> UsageRow {
        UsageRow {
            organization_id: self.organization,
            task_id: self.task,
            report_id: fresh::<ReportId>(),
            seq,
            account_id: fresh::<AccountId>(),
            idempotency_key: format!("turn-{seq}"),
            session_id: Some(fresh::<SessionId>()),
            model_id: "large".to_owned(),
            model_ref: Some(fresh::<ModelId>()),
            tokens: TokenCounts { tokens_in: 10, tokens_out: 20, cache_read_tokens: 30, cache_write_tokens: 40 },
            prices: Prices {
                input_cost_per_million: Some("1.25".parse().unwrap()),
                output_cost_per_million: Some("10".parse().unwrap()),
                cache_read_cost_per_million: Some("0.000001".parse().unwrap()),
                cache_write_cost_per_million: None,
            },
            cost: Some("0.184918125".parse().unwrap()),
            measured: true,
            corrects: None,
            unmeasured_delta: 0,
            unpriced_delta: 0,
            recorded_at: micros_later(at("2026-03-01T08:00:00.654321Z"), seq * 1_000),
            short_number: 12,
            agent_id: self.agent,
            agent_slug: "writer".to_owned(),
            project_id: Some(fresh::<ProjectId>()),
            project_slug: Some("press".to_owned()),
            version: 1,
            trace: None,
        }
    }
}

pub fn of_events(events: &[EventRow]) -> Batch {
    Batch { events: events.to_vec(), usage: Vec::new() }
}

pub fn of_usage(usage: &[UsageRow]) -> Batch {
    Batch { events: Vec::new(), usage: usage.to_vec() }
}

pub fn as_events(rows: &[EventRow]) -> Vec<Event> {
    rows.iter().map(|row| row.clone().into_event().unwrap()).collect()
}

/// Every usage row of tasks, by task, seq and falling version.
pub async fn ledgers(store: &dyn LogStore, organization: OrganizationId, tasks: &[TaskId]) -> Vec<UsageRow> {
    let mut reports = Vec::new();
    for task in tasks {
        reports.extend(store.report_ids(organization, *task).await.unwrap().into_iter().map(|id| (*task, id)));
    }
    let mut rows = store.stored_usage(organization, &reports).await.unwrap();
    rows.sort_by_key(|row| (row.task_id, row.seq, std::cmp::Reverse(row.version)));
    rows
}

/// The whole log, as pages show it.
pub async fn whole(store: &dyn LogStore, sample: &Sample) -> Vec<Event> {
    let page = EventPage { limit: 1_000, ..EventPage::default() };
    let (events, more) = store.events(sample.organization, sample.task, &page).await.unwrap();
    assert!(!more);
    events
}
