//! Questions that wait for their answer, one on a task of its own, for as many answers as a round gives. They are
//! written as copies of the sample's, in SQL: the rows of the task, its session and its request. The tasks have no
//! entries in the log before the answer's, and nothing looks for them.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Executor as _, PgConnection};
use uuid::Uuid;

use super::Failure;

/// How many answers a second there may be. A round that needs more ends the run and says so.
const PER_SECOND: u64 = 8_000;
/// What a round takes beyond its length, in the longest case: pgbench's.
const BEYOND: Duration = Duration::from_secs(2);
/// The first of their numbers: above all that Mandate gives out here.
const FIRST: u32 = 100_000_000;

/// The questions of a round, a part for each client.
#[derive(Debug, Clone, Copy)]
pub struct Questions {
    pub each: u32,
    pub clients: u32,
}

/// The short number of the task with the question `number`.
pub fn short_number(number: u32) -> u32 {
    FIRST + number
}

/// The id of the task, and of the question. pgbench makes it the same way, so the number stands there in decimal.
pub fn id(number: u32) -> Uuid {
    let digits = u128::from_str_radix(&number.to_string(), 16).unwrap_or_default();
    Uuid::from_u128(0x0000_0000_0000_7000_8000_0000_0000_0000 + digits)
}

/// The same in SQL, of a number in SQL.
pub fn id_in_sql(number: &str) -> String {
    format!("('00000000-0000-7000-8000-' || lpad({number}, 12, '0'))::uuid")
}

impl Questions {
    /// For a round of this length.
    pub fn of(clients: usize, length: Duration) -> Result<Self, Failure> {
        let all = PER_SECOND * (length + BEYOND).as_secs();
        let clients = u32::try_from(clients)?;
        Ok(Self { each: u32::try_from(all)?.div_ceil(clients), clients })
    }

    /// Sees to it that all of them are open, as if none had been answered.
    pub async fn open(self, db: &mut PgConnection) -> Result<(), Failure> {
        let (all, id) = (self.each * self.clients, id_in_sql("n::text"));
        // The guards would want an event for each and forbid what is deleted here.
        let place = "t.organization_id = (SELECT organization_id FROM bench.asked_tasks)";
        let delete = |table: &str, key: &str| {
            format!("DELETE FROM agent_runtime.{table} t USING wanted w WHERE t.{key} = w.id AND {place};")
        };
        let copy = |table: &str, values: &str| {
            format!(
                "INSERT INTO agent_runtime.{table} SELECT p.* FROM wanted w, bench.asked_{table} s,
                    LATERAL jsonb_populate_record(s, jsonb_build_object({values})) AS p;"
            )
        };
        let statements = [
            "SET session_replication_role = replica;".to_owned(),
            format!(
                "CREATE TEMP TABLE wanted AS SELECT n, {id} AS id FROM generate_series(0, {all} - 1) AS n
                 WHERE NOT EXISTS (
                    SELECT FROM agent_runtime.tasks t WHERE {place} AND t.id = {id} AND t.open_requests > 0);"
            ),
            "ANALYZE wanted;".to_owned(),
            delete("events", "task_id"),
            delete("requests", "task_id"),
            delete("sessions", "task_id"),
            delete("tasks", "id"),
            copy("tasks", &format!("'id', w.id, 'short_number', {FIRST} + w.n")),
            copy("sessions", "'task_id', w.id"),
            copy("requests", "'task_id', w.id, 'id', w.id"),
            "DROP TABLE wanted; SET session_replication_role = origin".to_owned(),
        ];
        let statements = statements.concat();
        db.execute(AssertSqlSafe(statements)).await?;
        db.execute("VACUUM ANALYZE agent_runtime.tasks, agent_runtime.sessions, agent_runtime.requests").await?;
        Ok(())
    }
}
