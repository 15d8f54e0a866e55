//! Which stream and which log store a test runs over.

use std::sync::Arc;

use mandate::config::{Role, SecretUrl, Settings};
use serde_json::Value;
use uuid::Uuid;

use crate::support::{World, eventually};

/// A stream and a log store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Combination {
    DirectPostgres,
    DirectClickhouse,
    KafkaPostgres,
    KafkaClickhouse,
}

/// Makes one test per combination of each named function, which takes a [`Place`].
#[macro_export]
macro_rules! over_every_combination {
    ($($test:ident),+ $(,)?) => {$(
        mod $test {
            use $crate::combination::{Combination, Place};

            #[tokio::test(flavor = "multi_thread")]
            async fn over_direct_and_postgres() {
                super::$test(Place::new(Combination::DirectPostgres)).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn over_direct_and_clickhouse() {
                super::$test(Place::new(Combination::DirectClickhouse)).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn over_kafka_and_postgres() {
                super::$test(Place::new(Combination::KafkaPostgres)).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn over_kafka_and_clickhouse() {
                super::$test(Place::new(Combination::KafkaClickhouse)).await;
            }
        }
    )+};
}

/// The topics and the database of one test.
#[derive(Debug, Clone)]
pub struct Place {
    combination: Combination,
    name: String,
}

/// The ClickHouse of the tests, over HTTP.
pub fn clickhouse_http() -> String {
    std::env::var("MANDATE_TEST_CLICKHOUSE").expect("MANDATE_TEST_CLICKHOUSE is set by tests/run")
}

/// The brokers of the tests.
pub fn kafka() -> String {
    std::env::var("MANDATE_TEST_KAFKA").expect("MANDATE_TEST_KAFKA is set by tests/run")
}

impl Place {
    pub fn new(combination: Combination) -> Self {
        Self { combination, name: format!("mandate_test_{}", Uuid::new_v4().simple()) }
    }

    pub fn is_kafka(&self) -> bool {
        matches!(self.combination, Combination::KafkaPostgres | Combination::KafkaClickhouse)
    }

    pub fn is_clickhouse(&self) -> bool {
        matches!(self.combination, Combination::DirectClickhouse | Combination::KafkaClickhouse)
    }

    /// Points the settings here.
    pub fn settle(&self, settings: &mut Settings) {
        if self.is_kafka() {
            settings.log.stream_url = SecretUrl::new(format!("kafka://{}", kafka()));
            settings.log.topic_prefix = format!("{}.", self.name);
            settings.log.sink_group.clone_from(&self.name);
            settings.log.topic_partitions = 2;
            // What was sent again takes a moment to land.
            settings.archive.patience_seconds = 1;
        }
        if self.is_clickhouse() {
            let rest = clickhouse_http().split_once("://").unwrap().1.to_owned();
            settings.log.store_url = Some(SecretUrl::new(format!("clickhouse://{rest}/{}", self.name)));
        }
    }

    /// A server over this place, with its topics and tables.
    pub async fn world(&self) -> World {
        self.world_with(|_| {}).await
    }

    /// The same, with other settings too.
    pub async fn world_with(&self, change: impl Fn(&mut Settings)) -> World {
        World::prepared(|settings| {
            self.settle(settings);
            change(settings);
        })
        .await
    }

    /// Runs a statement in the log store itself; answers its rows as text, tab-separated. `{events}` and `{usage}` stand
    /// for the tables.
    pub async fn in_store(&self, world: &World, statement: &str) -> String {
        if !self.is_clickhouse() {
            let statement = statement
                .replace("{events}", "agent_log.agent_task_events")
                .replace("{usage}", "agent_log.agent_usage");
            if !statement.trim_start().to_ascii_lowercase().starts_with("select") {
                sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&world.db).await.unwrap();
                return String::new();
            }
            let rows: Vec<String> =
                sqlx::query_scalar(sqlx::AssertSqlSafe(statement)).fetch_all(&world.db).await.unwrap();
            return rows.join("\n");
        }
        let statement = statement.replace("{events}", "agent_task_events").replace("{usage}", "agent_usage");
        let url = format!("{}/?database={}&mutations_sync=1", clickhouse_http(), self.name);
        let answer = reqwest::Client::builder().no_proxy().build().unwrap().post(url).body(statement).send();
        let answer = answer.await.unwrap();
        let status = answer.status();
        let text = answer.text().await.unwrap();
        assert!(status.is_success(), "{text}");
        text.trim_end().to_owned()
    }
}

/// Rounds of the sweep until the task's log is archived.
pub async fn archived(world: &World, task: &str) -> Value {
    let path = format!("/agent-tasks/{task}");
    eventually("the log is archived", async || {
        world.sweep().await;
        !world.person("ada").get(&path).await.expect(200)["log_archived_at"].is_null()
    })
    .await;
    world.person("ada").get(&path).await.expect(200).clone()
}

/// Waits until the log store has the task's whole log, without a sweep: the publisher, and the sink, did it.
pub async fn landed(world: &World, task: &str) {
    let row = world.person("ada").get(&format!("/agent-tasks/{task}")).await.expect(200).clone();
    let (last_seq, key) = (row["last_seq"].as_i64().unwrap(), key(world, &row));
    let store = Arc::clone(&world.log.store);
    // Usage rows have a topic and a table of their own, so they may come after the events.
    let reports = "SELECT count(*) FROM agent_runtime.budget_ledger WHERE organization_id = $1 AND task_id = $2";
    let reports: i64 = sqlx::query_scalar(reports).bind(key.0.0).bind(key.1.0).fetch_one(&world.db).await.unwrap();
    eventually("the log has landed", async || {
        let found = store.coverage(&[key]).await.unwrap();
        found.first().is_some_and(|coverage| coverage.is_whole(last_seq, reports))
    })
    .await;
}

/// The key of a task's row.
pub fn key(world: &World, row: &Value) -> (mandate::domain::ids::OrganizationId, mandate::domain::ids::TaskId) {
    let task: Uuid = row["id"].as_str().unwrap().parse().unwrap();
    (world.seed.organization_id.into(), task.into())
}

/// Settings of a server that publishes nothing itself: everything is left to the sweep.
pub fn without_publisher(settings: &mut Settings) {
    settings.workers.roles.retain(|role| *role != Role::Publisher);
}
