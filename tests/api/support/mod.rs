//! What every test starts from: a server of its own on a database of its own, with an organization, an agent, a model
//! and people.

#![allow(dead_code, unused_imports, reason = "several test programs share it, and none uses all of it")]

mod client;
pub mod database;
mod quiet;
mod seed;
mod sse;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use mandate::app::{Log, Mandate, store_options};
use mandate::auth::mint::PersonMint;
use mandate::config::{IssuerSettings, Role, SecretUrl, Settings};
use mandate::domain::time::Timestamp;
use mandate::service::archive::ArchivedLogs;
use mandate::service::sweep::{Sweep, Swept};
use mandate::service::{Clock, Service};
use mandate::shutdown::Shutdown;
use mandate::store::{Audit, Store};
use serde_json::{Value, json};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

pub use client::{Client, Reply};
pub use seed::{AgentSeed, Seed};
pub use sse::{Block, Sse};

/// The issuer of people's tokens in tests.
pub const ISSUER: &str = "https://people.example.com";
/// The audience of people's tokens in tests.
pub const AUDIENCE: &str = "mandate";
/// The organization of most tests.
pub const ORG: &str = "acme";

/// The value of the frozen instant while the clock runs.
const RUNNING: i64 = i64::MIN;

/// A running server with what it was seeded with.
pub struct World {
    pub base: String,
    pub seed: Seed,
    pub database_url: String,
    /// For looking at rows and for changes that no route makes. Tests never write runtime rows through it, except to
    /// see a guard refuse.
    pub db: PgPool,
    pub service: Arc<Service>,
    /// The sweep, which rounds only when a test says so.
    pub sweep: Arc<Sweep>,
    pub log: Log,
    pub settings: Settings,
    mint: Arc<PersonMint>,
    http: reqwest::Client,
    skew: Arc<AtomicI64>,
    frozen: Arc<AtomicI64>,
    shutdown: Shutdown,
    folder: tempfile::TempDir,
}

impl World {
    /// A server with the default settings, whose expiry worker steps only when a test says so.
    pub async fn new() -> Self {
        Self::with(|_| {}).await
    }

    /// A server whose settings `change` adapts.
    pub async fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let database_url = database::create().await;
        let db = PgPoolOptions::new().max_connections(2).connect(&database_url).await.unwrap();
        let seed = Seed::plant(&db, ORG).await;
        Self::over(database_url, db, seed, change).await
    }

    /// A server on an empty database of another PostgreSQL than that of the tests.
    pub async fn elsewhere(database_url: String) -> Self {
        Store::migrate_url(&database_url).await.unwrap();
        let db = PgPoolOptions::new().max_connections(2).connect(&database_url).await.unwrap();
        let seed = Seed::plant(&db, ORG).await;
        Self::over(database_url, db, seed, |_| {}).await
    }

    /// A server that keeps artifacts, in a folder of its own.
    pub async fn with_artifacts() -> Self {
        Self::with(keep_artifacts).await
    }

    /// The files of the artifact store, with their sizes.
    pub fn artifact_files(&self) -> Vec<(String, u64)> {
        let url: url::Url = self.settings.artifacts.store_url.as_ref().unwrap().expose().parse().unwrap();
        let (mut found, mut folders) = (Vec::new(), vec![url.to_file_path().unwrap()]);
        while let Some(next) = folders.pop() {
            for entry in std::fs::read_dir(next).unwrap() {
                let path = entry.unwrap().path();
                // What is removed meanwhile is not there.
                match path.metadata() {
                    Ok(folder) if folder.is_dir() => folders.push(path),
                    Ok(file) => found.push((path.display().to_string(), file.len())),
                    Err(_) => {}
                }
            }
        }
        found
    }

    /// A server whose settings `change` adapts, with the topics and tables of its log.
    pub async fn prepared(change: impl Fn(&mut Settings)) -> Self {
        let database_url = database::create().await;
        let db = PgPoolOptions::new().max_connections(2).connect(&database_url).await.unwrap();
        let seed = Seed::plant(&db, ORG).await;
        let mut settings = Settings::default();
        settings.database.url = SecretUrl::new(database_url.clone());
        change(&mut settings);
        let log = Log::open(&settings).unwrap();
        log.migrate().await.unwrap();
        log.store.close().await;
        Self::over(database_url, db, seed, change).await
    }

    /// A second server on the database of `other`: another process, as far as the state is concerned.
    pub async fn beside(other: &World) -> Self {
        Self::beside_with(other, |_| {}).await
    }

    /// The same, with other settings too.
    pub async fn beside_with(other: &World, change: impl FnOnce(&mut Settings)) -> Self {
        let settings = other.settings.clone();
        let db = PgPoolOptions::new().max_connections(2).connect(&other.database_url).await.unwrap();
        let seed = other.seed.clone();
        let mut world = Self::over(other.database_url.clone(), db, seed, |own| {
            let listen = own.server.listen;
            *own = settings;
            own.server.listen = listen;
            change(own);
        })
        .await;
        world.mint = Arc::clone(&other.mint);
        world
    }

    /// The same server again, at the same address, as after a restart.
    pub async fn restarted(mut self) -> Self {
        self.stop().await;
        let address = self.base.strip_prefix("http://").unwrap().parse().unwrap();
        let settings = self.settings.clone();
        let db = PgPoolOptions::new().max_connections(2).connect(&self.database_url).await.unwrap();
        let mut world = Self::over(self.database_url.clone(), db, self.seed.clone(), |own| {
            *own = settings;
            own.server.listen = address;
        })
        .await;
        world.mint = Arc::clone(&self.mint);
        // The keys lie there.
        std::mem::swap(&mut world.folder, &mut self.folder);
        world
    }

    /// The audit of this world's database: one consistent look at each task, also while backends still work.
    async fn look(&self) -> Audit {
        let store = Store::connect(&store_options(&self.settings)).unwrap();
        let log = Log::open(&self.settings).unwrap();
        let audit = store.audit(Some(&ArchivedLogs::new(Arc::clone(&log.store)))).await.unwrap();
        log.store.close().await;
        store.close().await;
        audit
    }

    /// What the audit finds.
    pub async fn audit(&self) -> Vec<String> {
        let audit = self.look().await;
        audit.findings.iter().map(|finding| format!("{}: {}", finding.place, finding.fault)).collect()
    }

    /// Proves that the rows are what the logs tell; answers how many events there are.
    pub async fn prove(&self) -> usize {
        let audit = self.look().await;
        assert_eq!(audit.findings, Vec::new());
        usize::try_from(audit.events).unwrap()
    }

    async fn over(database_url: String, db: PgPool, seed: Seed, change: impl FnOnce(&mut Settings)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mint = Arc::new(PersonMint::generate().unwrap());
        let key_file = folder.path().join("people.json");
        std::fs::write(&key_file, mint.jwks().to_string()).unwrap();
        let mut settings = Settings::default();
        settings.server.listen = "127.0.0.1:0".parse().unwrap();
        settings.database.url = SecretUrl::new(database_url.clone());
        settings.database.max_connections = 5;
        settings.database.migrate_at_start = false;
        settings.auth.data_folder = folder.path().to_owned();
        settings.auth.directory_cache_seconds = 0;
        settings.auth.token_rate_per_minute = 10_000;
        settings.auth.issuers = vec![IssuerSettings {
            issuer: ISSUER.to_owned(),
            key_file: Some(key_file),
            audience: AUDIENCE.to_owned(),
            algorithms: vec!["EdDSA".to_owned()],
            ..IssuerSettings::default()
        }];
        // Tests step the workers themselves.
        settings.workers.expiry_interval_ms = 60_000;
        settings.workers.roles = vec![Role::Api, Role::Publisher, Role::Sink, Role::Expiry];
        settings.archive.grace_seconds = 0;
        settings.archive.patience_seconds = 0;
        settings.archive.quiet_seconds = 0;
        settings.log.batch_linger_ms = 5;
        change(&mut settings);
        settings.validate().unwrap();
        let skew = Arc::new(AtomicI64::new(0));
        let frozen = Arc::new(AtomicI64::new(RUNNING));
        let clock = skewed(Arc::clone(&skew), Arc::clone(&frozen));
        let shutdown = Shutdown::new(Duration::from_secs(5));
        let mandate = Mandate::build(settings.clone(), clock).await.unwrap();
        let service = Arc::clone(mandate.service());
        let (sweep, log) = (mandate.sweep(), mandate.log().clone());
        let listener = mandate.listen().await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(mandate.run(listener, shutdown.clone()));
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(30)).build().unwrap();
        Self { base, seed, database_url, db, service, sweep, log, settings, mint, http, skew, frozen, shutdown, folder }
    }

    /// Moves the server's clock by so many seconds; the database's clock stays.
    pub fn skew_clock(&self, seconds: i64) {
        self.skew.store(seconds * 1_000_000, Ordering::SeqCst);
    }

    /// Stops the server's clock where it is: everything that follows happens in the same microsecond.
    pub fn freeze_clock(&self) {
        self.frozen.store(self.now().micros(), Ordering::SeqCst);
    }

    /// Moves the stopped clock on by so many seconds.
    pub fn move_frozen_clock(&self, seconds: i64) {
        self.frozen.fetch_add(seconds * 1_000_000, Ordering::SeqCst);
    }

    /// Does what time closes, once.
    pub async fn step(&self) -> mandate::service::time::Closed {
        self.service.close_what_is_due(100).await.unwrap()
    }

    /// Notes that the test leaves something in this database that the audit of all of them must not look at.
    pub async fn spoil(&self) {
        sqlx::query("CREATE TABLE public.spoiled_on_purpose ()").execute(&self.db).await.unwrap();
    }

    /// One round of the sweep.
    pub async fn sweep(&self) -> Swept {
        self.sweep.round().await.unwrap()
    }

    /// A client without a token.
    pub fn anyone(&self) -> Client {
        Client::new(self.http.clone(), self.base.clone(), self.seed.slug.clone(), None)
    }

    /// A client with this token.
    pub fn bearer(&self, token: &str) -> Client {
        Client::new(self.http.clone(), self.base.clone(), self.seed.slug.clone(), Some(token.to_owned()))
    }

    /// A person with a fresh token. `ada` is an administrator, `oscar` an operator, `vera` a viewer, `abe` an
    /// approver; everybody else is no member.
    pub fn person(&self, id: &str) -> Client {
        self.person_claiming(id, json!({}))
    }

    /// A person whose token has these claims too.
    #[allow(clippy::needless_pass_by_value, reason = "every caller makes them for this call")]
    pub fn person_claiming(&self, id: &str, claims: Value) -> Client {
        let Value::Object(claims) = claims else { panic!("claims are an object") };
        let hour = Duration::from_hours(1);
        let token = self.mint.mint(id, ISSUER, AUDIENCE, hour, claims, self.now());
        self.bearer(&token)
    }

    /// The account of the seeded agent.
    pub async fn agent(&self) -> Client {
        let agent = self.seed.agent.clone();
        self.account(&agent.client_id, &agent.client_secret).await
    }

    /// A service account, with a token bought by client credentials.
    pub async fn account(&self, client_id: &str, client_secret: &str) -> Client {
        let form = [("grant_type", "client_credentials"), ("client_id", client_id), ("client_secret", client_secret)];
        let answer = self.http.post(format!("{}/auth/token", self.base)).form(&form).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        let answer: Value = answer.json().await.unwrap();
        self.bearer(answer["access_token"].as_str().unwrap())
    }

    /// The seeded trigger.
    pub async fn trigger(&self) -> Client {
        self.account(&self.seed.trigger_client_id, &self.seed.trigger_client_secret).await
    }

    /// Everything that the runtime keeps, in one text: equal before and after a call exactly when it wrote nothing.
    pub async fn footprint(&self) -> String {
        let tables = "tasks sessions events requests budget_ledger task_id_sequences task_dependencies task_projects \
            artifacts artifact_refs artifact_uploads";
        self.rows_of("agent_runtime", tables).await
    }

    /// Everything that the directory keeps, its audit trail too, in the same way.
    pub async fn directory_footprint(&self) -> String {
        let tables = "organizations members service_accounts credentials agents models model_names model_prices \
            projects audit";
        self.rows_of("agent_directory", tables).await
    }

    async fn rows_of(&self, schema: &str, tables: &str) -> String {
        let mut footprint = String::new();
        for table in tables.split(' ') {
            let rows = format!(
                "SELECT '{table}: ' || count(*) || ' ' || coalesce(md5(string_agg(t::text, '|' ORDER BY t::text)), '')
                 FROM {schema}.{table} t"
            );
            let row: String = sqlx::query_scalar(sqlx::AssertSqlSafe(rows)).fetch_one(&self.db).await.unwrap();
            footprint.push_str(&row);
            footprint.push('\n');
        }
        footprint
    }

    /// The audit trail, the oldest change first, each as action and kind of record.
    pub async fn trail(&self) -> Vec<(String, String)> {
        let entries = self.person("ada").all("/directory-audit?limit=100").await;
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        entries.iter().rev().map(|entry| (text(&entry["action"]), text(&entry["subject_kind"]))).collect()
    }

    /// The server's clock.
    pub fn now(&self) -> Timestamp {
        self.service.clock().now()
    }

    /// A task of the seeded agent, created by `ada`; its short id.
    pub async fn task(&self) -> String {
        self.task_with(json!({})).await
    }

    /// A task with these members too.
    pub async fn task_with(&self, more: Value) -> String {
        let mut body = json!({"agent_slug": self.seed.agent.slug, "title": "A task", "description": "Do it."});
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        let reply = self.person("ada").post("/agent-tasks/", &body).await;
        reply.expect(201)["short_id"].as_str().unwrap().to_owned()
    }

    /// A task with an open session of `agent`: the short id and the session.
    pub async fn working(&self, agent: &Client) -> (String, String) {
        let task = self.task().await;
        let session = agent.open_session(&task, "s1").await;
        (task, session)
    }

    /// The whole log of a task.
    pub async fn log(&self, task: &str) -> Vec<Value> {
        let path = format!("/agent-tasks/{task}/events?limit=1000");
        self.person("ada").get(&path).await.expect(200).as_array().unwrap().clone()
    }

    /// The types of a task's log, in order.
    pub async fn types(&self, task: &str) -> Vec<String> {
        self.log(task).await.iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect()
    }

    /// Ends the server and waits until it has.
    pub async fn stop(&self) {
        self.shutdown.begin();
        self.shutdown.finish().await;
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.shutdown.begin();
    }
}

#[allow(clippy::disallowed_methods, reason = "the server's clock in tests is the system's, moved")]
fn skewed(skew: Arc<AtomicI64>, frozen: Arc<AtomicI64>) -> Clock {
    Clock::fixed(move || {
        let now = match frozen.load(Ordering::SeqCst) {
            RUNNING => Clock::system().now().micros() + skew.load(Ordering::SeqCst),
            stopped => stopped,
        };
        Timestamp::from_micros(now).unwrap()
    })
}

/// Keeps artifacts in a folder beside the keys; tests remove them themselves.
pub fn keep_artifacts(settings: &mut Settings) {
    settings.workers.roles.retain(|role| *role != Role::Expiry);
    let folder =
        url::Url::from_file_path(std::path::absolute(settings.auth.data_folder.join("artifacts")).unwrap()).unwrap();
    settings.artifacts.store_url = Some(SecretUrl::new(folder.to_string()));
}

/// The digest of `bytes`.
pub fn digest_of(bytes: &[u8]) -> String {
    mandate::domain::digest::Digest::of(bytes).to_string()
}

/// The program `mandate`.
pub fn program() -> std::path::PathBuf {
    std::env::var_os("CARGO_BIN_EXE_mandate").unwrap_or_else(|| env!("CARGO_BIN_EXE_mandate").into()).into()
}

/// Waits until `condition` holds, for at most ten seconds. For what another process does in its own time.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    for _ in 0..1_000 {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("in vain: {what}");
}
