//! One task's life and one question through Mandate, step by step, so that the bare server and pgbench write what
//! Mandate writes: the same events with the same payloads, the same facts, the same rows beside them.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};
use uuid::Uuid;

use super::Failure;
use super::seed::{Callers, MODEL, text};

/// What stands for the number of a task in what creates it.
pub const NUMBER: &str = "@number@";
/// How long a session may be silent, as Mandate is told here, in microseconds.
const SILENCE: i64 = 86_400_000_000;

/// The facts of a task, as the statements take them.
const FACTS: &str = "\
    owner status status_since control phase furthest_milestone outcome outcome_reason result cost_total \
    set_aside tokens_in tokens_out cache_read_tokens cache_write_tokens unmeasured_reports unpriced_reports \
    open_requests open_sessions open_children last_generation taken_over last_seq log_digest closed_at \
    timeout_at";
/// What its creation pins.
const PINNED: &str = "\
    short_number agent_id agent_slug agent_version prompt_version service_account_id project_id project_slug \
    title description subject labels params origin_kind origin_principal origin_delivery origin_agent_id \
    parent_task_id parent_short_number created_by_account idempotency_key request_hash budget \
    task_timeout_seconds max_depth max_children depth";
const OPENED: &str = "id session_key harness_instance generation request_hash";
const SETTLED: &str =
    "id status resolved_by answer choice constraints superseded_by resolution_digests resolution_channel";

/// An event as it was written.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Event {
    pub name: String,
    pub actor_kind: String,
    pub actor_id: String,
    pub channel: Option<String>,
    pub in_session: bool,
    pub payload: String,
}

/// What one call wrote.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Step {
    /// The length of the log before.
    pub expected: i64,
    pub events: Vec<Event>,
    /// The facts afterwards, as JSON.
    pub facts: String,
    /// What was written beside: what was pinned, sessions opened or closed, requests settled; as JSON.
    pub rows: String,
}

/// A task that was asked a question about, and the answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Asked {
    pub task: Uuid,
    pub request: Uuid,
    pub resolve: Step,
}

/// Everything.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sample {
    pub organization: Uuid,
    pub agent: Uuid,
    pub account: Uuid,
    pub model: Uuid,
    pub session: Uuid,
    pub create: Step,
    pub open: Step,
    pub append: Step,
    pub report: Step,
    pub close: Step,
    pub asked: Asked,
}

/// What a turn says, about as long as one is.
pub fn payload() -> Value {
    json!({"body": "I read the failing test and the function that it covers. ".repeat(4)})
}

/// A body that appends `count` events.
pub fn events(session: Uuid, count: usize) -> Value {
    json!({"session_id": session, "events": vec![json!({"type": "turn", "payload": payload()}); count]})
}

/// A body that creates a task.
pub fn task() -> Value {
    json!({"agent_slug": super::seed::AGENT, "title": "A task", "description": "Do it."})
}

/// A body that reports tokens under `key`.
pub fn usage(session: Uuid, key: &str) -> Value {
    json!({"idempotency_key": key, "model_id": MODEL, "tokens_in": 1_200, "tokens_out": 300,
        "cache_read_tokens": 5_000, "cache_write_tokens": 800, "session_id": session})
}

/// A body that ends a task.
pub fn outcome(session: Uuid) -> Value {
    json!({"outcome": "done_acted", "session_id": session})
}

/// A body that answers a question.
pub fn answer() -> Value {
    json!({"status": "answered", "answer": "Yes, and tell me when it is done."})
}

impl Sample {
    /// Lives through it. The rows of the question's task, as they were before the answer, are kept in the tables
    /// `bench.asked_tasks`, `…_sessions` and `…_requests`.
    pub async fn take(callers: &Callers, database_url: &str) -> Result<Self, Failure> {
        let mut seen = Seen { db: PgConnection::connect(database_url).await?, task: Uuid::nil(), last_seq: 0 };

        let (path, session) = seen.begin(callers).await?;
        let opened_at = seen.last_seq;
        callers.agent.post(&format!("{path}/events"), &events(session, 1)).await?;
        let append = seen.step(opened_at, "").await?;
        callers.agent.post(&format!("{path}/usage"), &usage(session, &Uuid::nil().to_string())).await?;
        let report = seen.step(append.expected + 1, "").await?;
        callers.agent.post(&format!("{path}/outcome"), &outcome(session)).await?;
        let mut close = seen.step(report.expected + 1, "").await?;
        close.rows = json!([{"id": session, "reason": "task_closed"}]).to_string();
        let [create, open] = seen.beginning(session, opened_at, &close).await?;

        let (path, session) = seen.begin(callers).await?;
        let question = json!({"kind": "feedback", "title": "May I go on?", "session_id": session});
        let asked = callers.agent.post(&format!("{path}/requests"), &question).await?;
        let request: Uuid = text(&asked, "/request/id")?.parse()?;
        let expected = asked["task"]["last_seq"].as_i64().ok_or("an answer without the length of the log")?;
        seen.keep().await?;
        callers.person.post(&format!("{path}/requests/{request}/resolve"), &answer()).await?;
        let mut resolve = seen.step(expected, "").await?;
        resolve.rows = format!("[{}]", seen.row("requests", "task_id", SETTLED).await?);

        let pinned: (Uuid, Uuid, Uuid, Uuid) = sqlx::query_as(
            "SELECT t.organization_id, t.agent_id, t.service_account_id, m.id FROM agent_runtime.tasks t
             JOIN agent_directory.models m USING (organization_id) WHERE t.id = $1",
        )
        .bind(seen.task)
        .fetch_one(&mut seen.db)
        .await?;
        let (organization, agent, account, model) = pinned;
        let asked = Asked { task: seen.task, request, resolve };
        let session = serde_json::from_str::<Value>(&open.rows)?[0]["id"].as_str().ok_or("no session")?.parse()?;
        seen.db.close().await?;
        Ok(Self { organization, agent, account, model, session, create, open, append, report, close, asked })
    }
}

/// The task that is looked at.
struct Seen {
    db: PgConnection,
    task: Uuid,
    last_seq: i64,
}

impl Seen {
    /// A task with a session; answers its path and the session.
    async fn begin(&mut self, callers: &Callers) -> Result<(String, Uuid), Failure> {
        let target = callers.targets(1).await?.pop().ok_or("no task")?;
        (self.task, self.last_seq) = (target.task, target.last_seq);
        Ok((format!("/agent-tasks/{}", target.short_id), target.session))
    }

    /// What was written behind `expected`, and the facts now.
    async fn step(&mut self, expected: i64, rows: &str) -> Result<Step, Failure> {
        let events = self.events(expected, i64::MAX).await?;
        let facts = self.row("tasks", "id", FACTS).await?;
        Ok(Step { expected, events, facts, rows: rows.to_owned() })
    }

    /// The first two steps, which are one call of the callers: the facts after each follow from those at the end.
    async fn beginning(&mut self, session: Uuid, opened_at: i64, close: &Step) -> Result<[Step; 2], Failure> {
        let facts = |status: &str, open_sessions: i64, last_seq: i64| -> Result<String, Failure> {
            let mut facts: Value = serde_json::from_str(&close.facts)?;
            for nothing in ["outcome", "closed_at"] {
                facts[nothing] = Value::Null;
            }
            for zero in ["cost_total", "tokens_in", "tokens_out", "cache_read_tokens", "cache_write_tokens"] {
                facts[zero] = json!(0);
            }
            facts["status"] = json!(status);
            facts["open_sessions"] = json!(open_sessions);
            facts["last_generation"] = json!(open_sessions);
            facts["last_seq"] = json!(last_seq);
            Ok(facts.to_string())
        };
        let mut pinned: Value = serde_json::from_str(&self.row("tasks", "id", PINNED).await?)?;
        pinned["short_number"] = json!(NUMBER);
        let found_by = sqlx::query_scalar("SELECT text FROM agent_runtime.task_texts WHERE task_id = $1");
        let found_by: String = found_by.bind(self.task).fetch_one(&mut self.db).await?;
        pinned["found_by"] = json!(found_by);
        let mut opened: Value = serde_json::from_str(&self.row("sessions", "task_id", OPENED).await?)?;
        opened["timeout_us"] = json!(SILENCE);
        if opened["id"] != json!(session) {
            return Err("the task has another session".into());
        }
        let (created, opening) = (self.events(0, 1).await?, self.events(1, opened_at).await?);
        Ok([
            Step { expected: 0, events: created, facts: facts("queued", 0, 1)?, rows: pinned.to_string() },
            Step {
                expected: 1,
                events: opening,
                facts: facts("running", 1, opened_at)?,
                rows: json!([opened]).to_string(),
            },
        ])
    }

    /// The events behind `after` up to `last`.
    async fn events(&mut self, after: i64, last: i64) -> Result<Vec<Event>, Failure> {
        let rows = sqlx::query(
            "SELECT type, actor_kind, actor_id, channel, session_id IS NOT NULL AS in_session, payload::text AS payload
             FROM agent_runtime.events WHERE task_id = $1 AND seq > $2 AND seq <= $3 ORDER BY seq",
        );
        let rows = rows.bind(self.task).bind(after).bind(last).fetch_all(&mut self.db).await?;
        let event = |row: &sqlx::postgres::PgRow| {
            Ok(Event {
                name: row.try_get("type")?,
                actor_kind: row.try_get("actor_kind")?,
                actor_id: row.try_get("actor_id")?,
                channel: row.try_get("channel")?,
                in_session: row.try_get("in_session")?,
                payload: row.try_get("payload")?,
            })
        };
        rows.iter().map(event).collect()
    }

    /// Some columns of the task's one row in a table, as a JSON object.
    async fn row(&mut self, table: &str, key: &str, columns: &str) -> Result<String, Failure> {
        let statement = AssertSqlSafe(format!(
            "SELECT (SELECT jsonb_object_agg(c.key, c.value)::text
                FROM jsonb_each(to_jsonb(r)) c WHERE c.key = ANY ($2))
             FROM agent_runtime.{table} r WHERE r.{key} = $1"
        ));
        let columns: Vec<_> = columns.split_whitespace().collect();
        Ok(sqlx::query_scalar(statement).bind(self.task).bind(columns).fetch_one(&mut self.db).await?)
    }

    /// Keeps the rows of the task as they are now.
    async fn keep(&mut self) -> Result<(), Failure> {
        let task = self.task;
        let copies = [("tasks", "id"), ("sessions", "task_id"), ("requests", "task_id")].map(|(table, key)| {
            format!("CREATE TABLE bench.asked_{table} AS SELECT * FROM agent_runtime.{table} WHERE {key} = '{task}';")
        });
        let statements = format!("CREATE SCHEMA IF NOT EXISTS bench; {}", copies.concat());
        sqlx::raw_sql(AssertSqlSafe(statements)).execute(&mut self.db).await?;
        Ok(())
    }
}
