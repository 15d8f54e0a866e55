//! Rows to preload, and the type as which the bare client inserts them: the table's columns, in their order.

use clickhouse::Row;
use mandate::domain::digest::Digest;
use mandate::domain::ids::{AgentId, EventId, OrganizationId, SessionId, TaskId};
use mandate::log::EventRow;
use mandate::service::Clock;
use serde::Serialize;
use uuid::Uuid;

/// How long a task's log is.
const LOG: i64 = 100;

/// `count` rows, as a harness's turns are.
pub fn rows(count: usize) -> Vec<EventRow> {
    let (organization, agent) = (OrganizationId(Clock::new_id()), AgentId(Clock::new_id()));
    let now = Clock::system().now();
    let (mut task, mut session) = (TaskId(Clock::new_id()), SessionId(Clock::new_id()));
    let text = "I read the failing test and the function that it covers. ".repeat(4);
    let mut seqs = (1..=LOG).cycle();
    let row = |_| {
        let seq = seqs.next().unwrap_or(1);
        if seq == 1 {
            (task, session) = (TaskId(Clock::new_id()), SessionId(Clock::new_id()));
        }
        let event = Clock::new_id();
        EventRow {
            organization_id: organization,
            task_id: task,
            seq,
            event_id: EventId(event),
            event_type: "turn".to_owned(),
            schema_version: 1,
            actor_kind: "agent".to_owned(),
            actor_id: agent.to_string(),
            channel: Some("harness".to_owned()),
            session_id: Some(session),
            at: now,
            recorded_at: now,
            payload: format!(r#"{{"body":"{text}{seq}"}}"#),
            redacted: Vec::new(),
            digest: Digest::of(event.as_bytes()),
            short_number: 1,
            agent_id: agent,
            agent_slug: "worker".to_owned(),
            project_id: None,
            version: 1,
            trace: None,
        }
    };
    (0..count).map(row).collect()
}

/// A row of the table, in its own types.
#[derive(Row, Serialize)]
pub struct Bare {
    #[serde(with = "clickhouse::serde::uuid")]
    organization_id: Uuid,
    #[serde(with = "clickhouse::serde::uuid")]
    task_id: Uuid,
    seq: i64,
    #[serde(with = "clickhouse::serde::uuid")]
    event_id: Uuid,
    #[serde(rename = "type")]
    event_type: String,
    schema_version: i32,
    actor_kind: String,
    actor_id: String,
    channel: Option<String>,
    #[serde(with = "clickhouse::serde::uuid::option")]
    session_id: Option<Uuid>,
    at: i64,
    recorded_at: i64,
    payload: String,
    redacted: Vec<String>,
    digest: String,
    short_number: i64,
    #[serde(with = "clickhouse::serde::uuid")]
    agent_id: Uuid,
    agent_slug: String,
    #[serde(with = "clickhouse::serde::uuid::option")]
    project_id: Option<Uuid>,
    version: u64,
}

impl From<&EventRow> for Bare {
    fn from(row: &EventRow) -> Self {
        Self {
            organization_id: row.organization_id.0,
            task_id: row.task_id.0,
            seq: row.seq,
            event_id: row.event_id.0,
            event_type: row.event_type.clone(),
            schema_version: row.schema_version,
            actor_kind: row.actor_kind.clone(),
            actor_id: row.actor_id.clone(),
            channel: row.channel.clone(),
            session_id: row.session_id.map(|id| id.0),
            at: row.at.micros(),
            recorded_at: row.recorded_at.micros(),
            payload: row.payload.clone(),
            redacted: row.redacted.clone(),
            digest: row.digest.to_string(),
            short_number: row.short_number,
            agent_id: row.agent_id.0,
            agent_slug: row.agent_slug.clone(),
            project_id: row.project_id.map(|id| id.0),
            version: row.version,
        }
    }
}
