//! Where the log of a test goes, and the settings that lead there.

use std::time::Duration;

use mandate::config::{Role, SecretUrl, Settings};
use tokio::time::Instant;
use uuid::Uuid;

use crate::process::Process;
use crate::support::World;

/// Clients find out soon that a broker is back, by default after up to 10 s, and that it has no topics, by default
/// after 30 s.
const SOON: &str = "reconnect.backoff.max.ms=500&topic.metadata.propagation.max.ms=1000";

/// Of each topic.
pub const PARTITIONS: i32 = 4;

/// The topics and the database of one test.
#[derive(Debug, Clone)]
pub struct Place {
    kafka: Option<String>,
    clickhouse: String,
    pub name: String,
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is set by tests/run"))
}

impl Place {
    /// On the servers that the tests share.
    pub fn shared() -> Self {
        Self {
            kafka: Some(variable("MANDATE_TEST_KAFKA")),
            clickhouse: variable("MANDATE_TEST_CLICKHOUSE"),
            name: format!("mandate_test_{}", Uuid::new_v4().simple()),
        }
    }

    /// With a broker of its own.
    pub fn on_kafka(self, address: String) -> Self {
        Self { kafka: Some(address), ..self }
    }

    /// With a log store of its own.
    pub fn on_clickhouse(self, url: String) -> Self {
        Self { clickhouse: url, ..self }
    }

    /// Without a stream.
    pub fn direct(self) -> Self {
        Self { kafka: None, ..self }
    }

    pub fn broker(&self) -> &str {
        self.kafka.as_deref().unwrap()
    }

    pub fn topic(&self, name: &str) -> String {
        format!("{}.{name}", self.name)
    }

    /// A server over this place that does everything, in short intervals, with its topics and tables.
    pub async fn world(&self, change: impl Fn(&mut Settings)) -> World {
        World::prepared(|settings| {
            if let Some(kafka) = &self.kafka {
                settings.log.stream_url = SecretUrl::new(format!("kafka://{kafka}/?{SOON}"));
                settings.log.topic_prefix = format!("{}.", self.name);
                settings.log.sink_group.clone_from(&self.name);
                settings.log.topic_partitions = PARTITIONS;
            }
            let server = self.clickhouse.split_once("://").unwrap().1;
            settings.log.store_url = Some(SecretUrl::new(format!("clickhouse://{server}/{}", self.name)));
            settings.log.batch_linger_ms = 50;
            settings.log.publish_timeout_seconds = 2;
            settings.workers.roles = Role::all();
            settings.archive.sweep_interval_seconds = 1;
            settings.archive.lease_seconds = 1;
            settings.archive.patience_seconds = 2;
            change(settings);
        })
        .await
    }

    /// Runs a statement in the log store itself; answers its rows as text, tab-separated.
    pub async fn in_store(&self, statement: &str) -> String {
        let url = format!("{}/?database={}", self.clickhouse, self.name);
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let answer = client.post(url).body(statement.to_owned()).send().await.unwrap();
        let status = answer.status();
        let text = answer.text().await.unwrap();
        assert!(status.is_success(), "{text}");
        text.trim_end().to_owned()
    }
}

/// Only these roles.
pub fn only(settings: &mut Settings, roles: &[Role]) {
    settings.workers.roles = roles.to_vec();
}

/// A process of its own with the log of `world` and these roles.
pub async fn process(world: &World, roles: &str, more: &[(&str, &str)]) -> Process {
    let Settings { log, archive, .. } = &world.settings;
    let mut settings = vec![
        ("MANDATE_WORKERS__ROLES", roles.to_owned()),
        ("MANDATE_DATABASE__MIGRATE_AT_START", "false".to_owned()),
        ("MANDATE_LOG__STREAM_URL", log.stream_url.expose().to_owned()),
        ("MANDATE_LOG__STORE_URL", log.store_url.as_ref().unwrap().expose().to_owned()),
        ("MANDATE_LOG__TOPIC_PREFIX", log.topic_prefix.clone()),
        ("MANDATE_LOG__SINK_GROUP", log.sink_group.clone()),
        ("MANDATE_LOG__BATCH_ROWS", log.batch_rows.to_string()),
        ("MANDATE_LOG__BATCH_LINGER_MS", log.batch_linger_ms.to_string()),
        ("MANDATE_LOG__PUBLISH_TIMEOUT_SECONDS", log.publish_timeout_seconds.to_string()),
        ("MANDATE_ARCHIVE__GRACE_SECONDS", archive.grace_seconds.to_string()),
        ("MANDATE_ARCHIVE__SWEEP_INTERVAL_SECONDS", archive.sweep_interval_seconds.to_string()),
        ("MANDATE_ARCHIVE__SWEEP_BATCH", archive.sweep_batch.to_string()),
        ("MANDATE_ARCHIVE__LEASE_SECONDS", archive.lease_seconds.to_string()),
        ("MANDATE_ARCHIVE__PATIENCE_SECONDS", archive.patience_seconds.to_string()),
        ("MANDATE_ARCHIVE__QUIET_SECONDS", archive.quiet_seconds.to_string()),
    ];
    settings.extend(more.iter().map(|(name, value)| (*name, (*value).to_owned())));
    let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
    Process::start(world, &settings).await
}

/// How long something stays away at least. A long outage is tried by hand.
pub fn outage() -> Duration {
    let seconds = std::env::var("MANDATE_TEST_OUTAGE_SECONDS").map(|text| text.parse().unwrap());
    Duration::from_secs(seconds.unwrap_or(3))
}

/// Waits until `condition` holds, for at most four minutes.
pub async fn at_length<F, Fut>(what: &str, condition: F)
where
    F: Fn() -> Fut,
    Fut: Future<Output = bool>,
{
    let deadline = Instant::now() + Duration::from_mins(4);
    while Instant::now() < deadline {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("in vain: {what}");
}

/// A counter or gauge of the server at `base`.
pub async fn metric(base: &str, name: &str) -> u64 {
    let text = reqwest::Client::builder().no_proxy().build().unwrap().get(format!("{base}/metrics")).send().await;
    let text = text.unwrap().text().await.unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in:\n{text}")).parse().unwrap()
}
