//! Rows of every kind, and statements that go past the application.

use serde_json::json;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Executor as _, PgPool, Row as _};
use tokio::sync::{Mutex, MutexGuard, OnceCell};
use uuid::Uuid;

use crate::support::World;

/// One database for all of these tests, because none of them leaves a change in it.
static PLANTED: OnceCell<(String, Uuid)> = OnceCell::const_new();
/// One test at a time: what locks whole tables would meet what locks rows.
static TURN: Mutex<()> = Mutex::const_new(());

/// A task that is open, with everything in it, and one that is closed.
pub struct Rows {
    pub db: PgPool,
    organization: Uuid,
    _turn: MutexGuard<'static, ()>,
}

/// What the database says to a statement.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    pub code: String,
    pub message: String,
}

/// Leads two tasks through the API, and stops the server.
async fn plant() -> (String, Uuid) {
    let world = World::new().await;
    let agent = world.agent().await;
    let ada = world.person("ada");
    let (open, session) = world.working(&agent).await;
    agent.say(&open, &session, "I begin.").await.expect(201);
    agent.spend(&open, "u1", 10, 10).await.expect(201);
    let other = agent.open_session(&open, "s2").await;
    let path = format!("/agent-tasks/{open}/sessions/{other}/close");
    agent.post(&path, &json!({"reason": "done"})).await.expect(200);
    let settled = agent.ask(&open, &[]).await;
    let path = format!("/agent-tasks/{open}/requests/{settled}/resolve");
    ada.post(&path, &json!({"status": "answered", "answer": "yes"})).await.expect(201);
    agent.ask(&open, &[]).await;
    let digest = format!("sha256:{}", "a".repeat(64));
    let body = json!({"kind": "approval", "title": "Merge?", "artifact_digests": [digest], "request_key": "k"});
    agent.post(&format!("/agent-tasks/{open}/requests"), &body).await.expect(201);
    let closed = world.task_with(json!({"idempotency_key": "c1", "budget": "5"})).await;
    let session = agent.open_session(&closed, "s1").await;
    agent.say(&closed, &session, "I begin.").await.expect(201);
    agent.spend(&closed, "u1", 10, 10).await.expect(201);
    agent.finish(&closed).await.expect(200);
    assert_eq!((open.as_str(), closed.as_str()), ("T-1", "T-2"));
    world.stop().await;
    world.db.close().await;
    (world.database_url.clone(), world.seed.organization_id)
}

impl Rows {
    pub async fn new() -> Self {
        let turn = TURN.lock().await;
        let (url, organization) = PLANTED.get_or_init(plant).await;
        let db = PgPoolOptions::new().max_connections(2).connect(url).await.unwrap();
        Self { db, organization: *organization, _turn: turn }
    }

    /// `:open` and `:closed` stand for the ids of the two tasks, `:org` for the organization.
    async fn resolve(&self, statement: &str) -> String {
        let tasks = "SELECT id::text FROM agent_runtime.tasks ORDER BY short_number";
        let ids: Vec<String> = sqlx::query_scalar(tasks).fetch_all(&self.db).await.unwrap();
        let organization = self.organization;
        statement
            .replace(":open", &format!("'{}'", ids[0]))
            .replace(":closed", &format!("'{}'", ids[1]))
            .replace(":org", &format!("'{organization}'"))
    }

    /// What becomes of the last of `statements` after the others, in a transaction that is rolled back: the number of
    /// rows, or the refusal.
    pub async fn attempt(&self, statements: &[&str]) -> Result<u64, Refused> {
        let (last, before) = statements.split_last().unwrap();
        let mut transaction = self.db.begin().await.unwrap();
        for statement in before {
            let statement = self.resolve(statement).await;
            let done = transaction.execute(AssertSqlSafe(statement.clone())).await;
            assert!(done.unwrap_or_else(|fault| panic!("{statement}: {fault}")).rows_affected() > 0, "{statement}");
        }
        let result = transaction.execute(AssertSqlSafe(self.resolve(last).await)).await;
        let result = match result {
            Ok(done) => Ok(done.rows_affected()),
            Err(sqlx::Error::Database(fault)) => {
                Err(Refused { code: fault.code().unwrap().into_owned(), message: fault.message().to_owned() })
            }
            Err(other) => panic!("{last}: {other}"),
        };
        transaction.rollback().await.unwrap();
        result
    }

    /// Asserts that a guard refuses the last of `statements`, in these words.
    pub async fn refuses(&self, statements: &[&str], words: &str) {
        let result = self.attempt(statements).await;
        assert_eq!(result, Err(Refused { code: "MD001".to_owned(), message: words.to_owned() }), "{statements:?}");
    }

    /// Asserts that the CHECK of this name refuses `statement`.
    pub async fn breaks(&self, statement: &str, check: &str) {
        let refused = self.attempt(&[statement]).await.expect_err(statement);
        assert_eq!(refused.code, "23514", "{statement}: {refused:?}");
        assert!(refused.message.contains(&format!("\"{check}\"")), "{statement}: {refused:?}");
    }

    /// The columns of a table, with an expression for another value of each.
    pub async fn columns(&self, table: &str) -> Vec<(String, String)> {
        let query = "SELECT attname::text, format_type(atttypid, NULL) AS type FROM pg_attribute
            WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum";
        let rows = sqlx::query(query).bind(table).fetch_all(&self.db).await.unwrap();
        let other = |row: &sqlx::postgres::PgRow| {
            let (name, kind): (String, String) = (row.get("attname"), row.get("type"));
            let other = match kind.as_str() {
                "uuid" => "gen_random_uuid()".to_owned(),
                "text" => format!("coalesce({name}, '') || 'x'"),
                "integer" | "bigint" | "smallint" | "numeric" => format!("coalesce({name}, 0) + 1"),
                "boolean" => format!("NOT {name}"),
                "timestamp with time zone" => format!("coalesce({name}, now()) + interval '1 second'"),
                "json" | "jsonb" => format!("'{{\"x\": 1}}'::{kind}"),
                "bytea" => "decode(repeat('ab', 32), 'hex')".to_owned(),
                "text[]" => "'{x}'::text[]".to_owned(),
                "xid8" => "'7'::xid8".to_owned(),
                other => panic!("{table}.{name} is a {other}: say how to alter it"),
            };
            (name, other)
        };
        rows.iter().map(other).collect()
    }

    /// A statement that inserts a copy of a row of `table`, with other values in some columns.
    pub async fn copy(&self, table: &str, of: &str, overrides: &[(&str, &str)]) -> String {
        let columns = self.columns(table).await;
        for (name, _) in overrides {
            assert!(columns.iter().any(|(column, _)| column == name), "{table} has no {name}");
        }
        let names: Vec<_> = columns.iter().map(|(name, _)| name.as_str()).collect();
        let values: Vec<_> = names
            .iter()
            .map(|name| overrides.iter().find(|(column, _)| column == name).map_or(*name, |(_, value)| *value))
            .collect();
        let (names, values) = (names.join(", "), values.join(", "));
        format!("INSERT INTO {table} ({names}) SELECT {values} FROM {table} WHERE {of} LIMIT 1")
    }
}
