//! The servers, and installations of Mandate over them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use mandate::auth::mint::PersonMint;
use mandate::config::Settings;
use mandate::dev::postgres::ManagedPostgres;
use mandate::log::clickhouse::{ClickHouseLog, ClickHouseLogOptions};
use mandate::log::kafka::{KafkaAddress, KafkaOptions};
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::task::block_in_place;

use super::Failure;
use super::seed::{Callers, ORG, Target, people};
use super::servers::{ClickHouseServer, KafkaServer};
pub use super::service::metric;
use super::service::{self, Service, Variables};

/// Everything that runs.
pub struct World {
    pub kafka: KafkaServer,
    pub clickhouse: ClickHouseServer,
    pub http: reqwest::Client,
    postgres: ManagedPostgres,
    mint: PersonMint,
    issuers: String,
    folder: TempDir,
}

/// The way to the log store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    KafkaAndClickHouse,
    DirectToClickHouse,
    DirectToPostgres,
}

/// One installation: a database, a way, and the settings of its processes.
#[derive(Clone)]
pub struct Installation {
    pub database_url: String,
    pub name: String,
    variables: Variables,
    folder: PathBuf,
    http: reqwest::Client,
}

impl World {
    pub async fn start() -> Result<Self, Failure> {
        let folder = service::folder()?;
        let postgres = service::start_postgres(folder.path()).await?;
        let (kafka, clickhouse) = block_in_place(|| (KafkaServer::start(), ClickHouseServer::start()));
        let (mint, issuers) = people(&folder.path().join("people.json"))?;
        let http = reqwest::Client::builder().no_proxy().build()?;
        Ok(Self { kafka, clickhouse, http, postgres, mint, issuers, folder })
    }

    /// An installation with a database of its own, unless another is named.
    pub async fn installation(&self, name: &str, way: Way, database: Option<&str>) -> Result<Installation, Failure> {
        let database = database.unwrap_or(name);
        self.postgres.ensure_database(database).await?;
        let database_url = self.postgres.url(database);
        let mut variables = service::settings(self.folder.path(), &database_url, &self.issuers);
        let mut set = |name: &str, value: String| variables.push((format!("MANDATE_{name}"), value));
        if way == Way::KafkaAndClickHouse {
            set("LOG__STREAM_URL", format!("kafka://{}", self.kafka.address()));
            set("LOG__TOPIC_PREFIX", format!("{name}."));
            set("LOG__SINK_GROUP", name.to_owned());
        }
        if way != Way::DirectToPostgres {
            set("LOG__STORE_URL", self.store_url(name));
        }
        let (folder, http) = (self.folder.path().to_owned(), self.http.clone());
        Ok(Installation { database_url, name: name.to_owned(), variables, folder, http })
    }

    fn store_url(&self, database: &str) -> String {
        format!("{}/{database}", self.clickhouse.url().replacen("http://", "clickhouse://", 1))
    }

    /// The log store in a database of ClickHouse.
    pub fn store(&self, database: &str) -> Result<ClickHouseLog, Failure> {
        let options =
            ClickHouseLogOptions { query_timeout: Duration::from_mins(1), append_timeout: Duration::from_mins(1) };
        Ok(ClickHouseLog::connect(&self.store_url(database), options)?)
    }

    /// What ClickHouse answers, as text.
    pub async fn in_clickhouse(&self, database: &str, statement: String) -> Result<String, Failure> {
        let request = self.http.post(format!("{}/?database={database}", self.clickhouse.url()));
        let answer = request.body(statement).send().await?;
        let (status, text) = (answer.status(), answer.text().await?);
        if status.is_success() { Ok(text.trim_end().to_owned()) } else { Err(text.into()) }
    }

    /// An organization in the database of `installation`, and its callers by way of `service`.
    pub async fn callers(&self, installation: &Installation, service: &Service) -> Result<Callers, Failure> {
        Callers::plant(&installation.database_url, &service.base(), &self.http, &self.mint).await
    }

    /// The PostgreSQL server's process.
    pub fn postgres_pid(&self) -> u32 {
        self.postgres.pid().unsigned_abs()
    }

    /// The PostgreSQL server's major version.
    pub fn postgres_version(&self) -> u32 {
        self.postgres.programs().major
    }

    /// Stops everything.
    pub async fn stop(self) -> Result<(), Failure> {
        Ok(self.postgres.stop().await?)
    }
}

impl Installation {
    /// The same with more settings: names without `MANDATE_`.
    pub fn with(mut self, more: &[(&str, &str)]) -> Self {
        self.variables.extend(more.iter().map(|(name, value)| (format!("MANDATE_{name}"), (*value).to_owned())));
        self
    }

    /// Starts `mandate serve` with these roles.
    pub async fn serve(&self, roles: &str) -> Result<Service, Failure> {
        let one = self.clone().with(&[("WORKERS__ROLES", roles)]);
        let name = format!("{}.{}", self.name, roles.replace(',', "-"));
        Service::start(&self.folder, &name, &one.variables, &self.http).await
    }

    /// Another command of the program.
    pub fn command(&self, name: &str) -> Command {
        let mut command = service::command(&self.folder, &self.variables);
        command.arg(name);
        command
    }

    /// The settings, for what runs in this process.
    pub fn settings(&self) -> Result<Settings, Failure> {
        let variables = self.variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        Ok(Settings::read(None, variables)?)
    }

    /// The settings of the stream.
    pub fn kafka(&self) -> Result<KafkaOptions, Failure> {
        let log = self.settings()?.log;
        Ok(KafkaOptions {
            address: KafkaAddress::parse(log.stream_url.expose())?,
            topic_prefix: log.topic_prefix,
            partitions: log.topic_partitions,
            replication: log.topic_replication,
            remake: false,
            group: log.sink_group,
            publish_timeout: Duration::from_secs(log.publish_timeout_seconds),
            batch_rows: log.batch_rows,
            batch_bytes: log.batch_bytes,
            linger: Duration::from_millis(log.batch_linger_ms),
        })
    }
}

/// A harness's call about `target` by way of `service`, ready to go.
pub fn call(service: &Service, callers: &Callers, target: &Target, action: &str, body: &serde_json::Value) -> Vec<u8> {
    let path = format!("/organizations/{ORG}/agent-tasks/{}/{action}", target.short_id);
    service::request(service.address(), &path, Some(callers.agent.token()), &body.to_string())
}

/// An append of `count` events to the task of `target`.
pub fn append(service: &Service, callers: &Callers, target: &Target, count: usize) -> Vec<u8> {
    let text = "I read the failing test and the function that it covers. ".repeat(4);
    let events = vec![json!({"type": "turn", "payload": {"body": text}}); count];
    call(service, callers, target, "events", &json!({"session_id": target.session, "events": events}))
}

/// The last report of a task, and its end.
pub fn ending(service: &Service, callers: &Callers, target: &Target) -> [Vec<u8>; 2] {
    let usage = json!({"idempotency_key": "all", "model_id": "model", "tokens_in": 1_000, "tokens_out": 100,
        "session_id": target.session});
    let outcome = json!({"outcome": "done_acted", "session_id": target.session});
    [call(service, callers, target, "usage", &usage), call(service, callers, target, "outcome", &outcome)]
}
