//! Proof that what stands in a database is what its logs tell.

use mandate::domain::aggregate::fold;
use mandate::domain::digest::Digest;
use mandate::domain::event::{Actor, Event};
use mandate::domain::ids::{EventId, OrganizationId, SessionId, TaskId};
use mandate::domain::time::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::{PgPool, Row as _};
use time::OffsetDateTime;
use uuid::Uuid;

/// Folds every log and compares it with its rows: no gap, the chain, the facts, the sums, the sessions and requests.
/// Answers how many events there are.
pub async fn prove(db: &PgPool) -> usize {
    let tasks = sqlx::query("SELECT *, row_to_json(t)::text AS row FROM agent_runtime.tasks t");
    let tasks = tasks.fetch_all(db).await.unwrap();
    let mut events = 0;
    for task in &tasks {
        events += prove_task(db, task).await;
    }
    events
}

async fn prove_task(db: &PgPool, row: &PgRow) -> usize {
    let (organization, id): (Uuid, Uuid) = (row.get("organization_id"), row.get("id"));
    let log = log(db, organization, id).await;
    let shown: &str = row.get("row");
    let folded = fold(OrganizationId(organization), TaskId(id), &log);
    let folded = folded.unwrap_or_else(|fault| panic!("{fault}: {shown}"));
    let facts = folded.task().facts();
    let text = |column: &str| row.get::<Option<String>, _>(column);
    assert_eq!(row.get::<i64, _>("last_seq"), facts.last_seq, "{shown}");
    assert_eq!(row.get::<Vec<u8>, _>("log_digest"), facts.log_digest.0, "{shown}");
    assert_eq!(text("status").as_deref(), Some(facts.status.as_str()), "{shown}");
    assert_eq!(text("control").as_deref(), Some(facts.control.as_str()), "{shown}");
    assert_eq!(text("owner").as_deref(), Some(facts.owner.as_str()), "{shown}");
    assert_eq!(text("phase"), facts.phase, "{shown}");
    assert_eq!(text("outcome"), folded.task().outcome().map(|name| name.to_string()), "{shown}");
    assert_eq!(text("outcome_reason"), folded.task().outcome_reason().map(|name| name.to_string()), "{shown}");
    let sums: (rust_decimal::Decimal, i64, i64) = sqlx::query_as(
        "SELECT coalesce(sum(cost), 0), coalesce(sum(tokens_in), 0)::bigint, count(*)
         FROM agent_runtime.budget_ledger WHERE task_id = $1",
    )
    .bind(id)
    .fetch_one(db)
    .await
    .unwrap();
    assert_eq!(row.get::<rust_decimal::Decimal, _>("cost_total"), facts.cost_total.decimal(), "{shown}");
    assert_eq!((sums.0, sums.1), (facts.cost_total.decimal(), facts.tokens.tokens_in), "{shown}");
    let reports = log.iter().filter(|event| event.event_type == "usage.reported").count();
    assert_eq!(usize::try_from(sums.2).unwrap(), reports, "{shown}");
    for (table, known) in [("sessions", folded.sessions().len()), ("requests", folded.requests().len())] {
        let query = format!("SELECT count(*) FROM agent_runtime.{table} WHERE task_id = $1");
        let count: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(query)).bind(id).fetch_one(db).await.unwrap();
        assert_eq!(usize::try_from(count).unwrap(), known, "{table} of {shown}");
    }
    log.len()
}

async fn log(db: &PgPool, organization: Uuid, task: Uuid) -> Vec<Event> {
    let query = "SELECT *, payload::text AS payload_text FROM agent_runtime.events
        WHERE organization_id = $1 AND task_id = $2 ORDER BY seq";
    let rows = sqlx::query(query).bind(organization).bind(task).fetch_all(db).await.unwrap();
    let time = |row: &PgRow, column: &str| Timestamp::from(row.get::<OffsetDateTime, _>(column));
    rows.iter()
        .map(|row| Event {
            event_id: EventId(row.get("event_id")),
            seq: row.get("seq"),
            event_type: row.get::<String, _>("type").into(),
            schema_version: row.get("schema_version"),
            actor: Actor {
                kind: row.get::<String, _>("actor_kind").parse().unwrap(),
                id: row.get("actor_id"),
                channel: row.get::<Option<String>, _>("channel").map(|name| name.parse().unwrap()),
            },
            session_id: row.get::<Option<Uuid>, _>("session_id").map(SessionId),
            at: time(row, "at"),
            recorded_at: time(row, "recorded_at"),
            payload: row.get("payload_text"),
            redacted: row.get("redacted"),
            digest: Digest(row.get::<Vec<u8>, _>("digest").try_into().unwrap()),
        })
        .collect()
}
