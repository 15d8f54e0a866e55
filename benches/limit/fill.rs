//! Tables filled with copies of two tasks, in SQL: one that was closed and one with an open session, each with its rows
//! and its log as Mandate wrote them. Only their digests are not right: those cover the id of the task.

use futures::{StreamExt as _, TryStreamExt as _};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use uuid::Uuid;

use super::Failure;
use super::sample;
use super::seed::{Callers, Target};

/// Events of each copied task.
pub const EVENTS: usize = 10;
/// One in so many has an open session.
const OPEN: u32 = 20;
/// The first of their numbers.
const FIRST: u32 = 200_000_000;
/// Tasks that one transaction copies.
const AT_ONCE: u32 = 20_000;
/// Transactions at a time.
const LANES: usize = 2;
/// What is copied, with the column that names the task.
const TABLES: [(&str, &str); 5] = [
    ("tasks", "id"),
    ("task_texts", "task_id"),
    ("sessions", "task_id"),
    ("budget_ledger", "task_id"),
    ("events", "task_id"),
];

/// The tasks that are copied.
#[derive(Debug, Clone, Copy)]
pub struct Templates {
    closed: Uuid,
    open: Uuid,
}

impl Templates {
    /// Makes both, each with [`EVENTS`] events.
    pub async fn make(callers: &Callers) -> Result<Self, Failure> {
        let [closed, open] = <[Target; 2]>::try_from(callers.targets(2).await?).map_err(|_| "not two tasks")?;
        let path = |target: &Target, action: &str| format!("/agent-tasks/{}/{action}", target.short_id);
        // An outcome writes three: the session's close, the change of state and itself.
        let beginning = usize::try_from(closed.last_seq)?;
        let turns = sample::events(closed.session, EVENTS - beginning - 4);
        callers.agent.post(&path(&closed, "events"), &turns).await?;
        callers.agent.post(&path(&closed, "usage"), &sample::usage(closed.session, &Uuid::nil().to_string())).await?;
        let end = callers.agent.post(&path(&closed, "outcome"), &sample::outcome(closed.session)).await?;
        if end["last_seq"] != EVENTS {
            return Err(format!("the closed task has other events than {EVENTS}: {end}").into());
        }
        callers.agent.post(&path(&open, "events"), &sample::events(open.session, EVENTS - beginning)).await?;
        Ok(Self { closed: closed.task, open: open.task })
    }
}

/// Copies them until there are so many, older than what there is. Indexes are made afterwards.
pub async fn fill(url: &str, templates: Templates, tasks: u32) -> Result<(), Failure> {
    let mut db = PgConnection::connect(url).await?;
    let indexes = drop_indexes(&mut db).await?;
    let mut copies = Vec::new();
    for (table, key) in TABLES {
        copies.push(copy(&mut db, table, key).await?);
    }
    let copies = copies.concat();
    let chunks = (0..tasks.div_ceil(AT_ONCE)).map(|chunk| (chunk * AT_ONCE, tasks.min((chunk + 1) * AT_ONCE)));
    let Templates { closed, open } = templates;
    let chunk = async |(from, to): (u32, u32)| -> Result<(), Failure> {
        let mut db = PgConnection::connect(url).await?;
        // The guards would want a commit for each event.
        let wanted = format!(
            "SET session_replication_role = replica; SET synchronous_commit = off;
             CREATE TEMP TABLE wanted AS SELECT n, {FIRST} + n AS number,
                CASE n % {OPEN} WHEN 0 THEN '{open}' ELSE '{closed}' END::uuid AS template,
                timestamptz '2026-01-01 00:00:00+00' + n * interval '1 second' AS created_at,
                (lpad(to_hex(1767225600000 + n * 1000), 12, '0') || '7' || substr(md5(n::text), 1, 19))::uuid AS id
             FROM generate_series({from}::bigint, {to} - 1) AS n;
             ANALYZE wanted; {copies}"
        );
        db.execute(AssertSqlSafe(wanted)).await?;
        Ok(db.close().await?)
    };
    futures::stream::iter(chunks).map(chunk).buffer_unordered(LANES).try_collect::<()>().await?;
    let make = async |index: String| -> Result<(), Failure> {
        let mut db = PgConnection::connect(url).await?;
        db.execute("SET maintenance_work_mem = '256MB'; SET max_parallel_maintenance_workers = 0").await?;
        db.execute(AssertSqlSafe(index)).await?;
        Ok(db.close().await?)
    };
    futures::stream::iter(indexes).map(make).buffer_unordered(LANES).try_collect::<()>().await?;
    db.execute("VACUUM ANALYZE").await?;
    // Both templates are there too.
    let there: i64 = sqlx::query_scalar("SELECT count(*) FROM agent_runtime.events").fetch_one(&mut db).await?;
    if usize::try_from(there)? != (usize::try_from(tasks)? + 2) * EVENTS {
        return Err(format!("{there} events in {tasks} tasks").into());
    }
    Ok(db.close().await?)
}

/// Drops the indexes that no constraint needs; answers what makes them again, the slowest first.
async fn drop_indexes(db: &mut PgConnection) -> Result<Vec<String>, Failure> {
    let found: Vec<(String, String)> = sqlx::query_as(
        "SELECT i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid) FROM pg_index i
         JOIN pg_class c ON c.oid = i.indrelid
         WHERE c.relnamespace = 'agent_runtime'::regnamespace AND c.relname = ANY ($1)
            AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid)
         ORDER BY c.relname <> 'events', pg_get_indexdef(i.indexrelid) NOT LIKE '%gin%'",
    )
    .bind(TABLES.map(|(table, _)| table).as_slice())
    .fetch_all(&mut *db)
    .await?;
    for (name, _) in &found {
        db.execute(AssertSqlSafe(format!("DROP INDEX {name}"))).await?;
    }
    Ok(found.into_iter().map(|(_, definition)| definition).collect())
}

/// What copies the templates' rows of a table, with other values where a row names its task.
async fn copy(db: &mut PgConnection, table: &str, key: &str) -> Result<String, Failure> {
    let columns = "SELECT attname::text FROM pg_attribute
        WHERE attrelid = ('agent_runtime.' || $1)::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum";
    let columns: Vec<String> = sqlx::query_scalar(columns).bind(table).fetch_all(db).await?;
    let value = |column: &String| match column.as_str() {
        name if name == key => "w.id".to_owned(),
        "short_number" => "w.number".to_owned(),
        // With the status since then, so that a list by status shows the newest of those that are worked.
        "created_at" | "status_since" => "w.created_at".to_owned(),
        // In an order of its own, as commits have it.
        "tx" => "pg_current_xact_id()".to_owned(),
        // As the sweep leaves what it has compared.
        "dirty" => "false".to_owned(),
        other => format!("s.{other}"),
    };
    let (names, values) = (columns.join(", "), columns.iter().map(value).collect::<Vec<_>>().join(", "));
    let order = if table == "events" { "w.n, s.seq" } else { "w.n" };
    Ok(format!(
        "INSERT INTO agent_runtime.{table} ({names}) SELECT {values}
         FROM wanted w JOIN agent_runtime.{table} s ON s.{key} = w.template ORDER BY {order};"
    ))
}
