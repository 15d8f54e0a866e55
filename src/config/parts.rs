//! The parts of the settings, one struct each.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use tracing_subscriber::EnvFilter;

use super::issuers::IssuerSettings;
use super::part::{Faults, Secret, SecretUrl, part};

part! {
    /// The HTTP server.
    ServerSettings: "server" {
        /// Address and port to listen on; port 0 takes a free one.
        listen: SocketAddr = SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
        /// The URL under which clients reach the server: the base of Link headers and, unless `auth.issuer` is set,
        /// the issuer of its tokens. Unset: relative links.
        public_url: Option<String> = None,
        /// Origins of web pages that may call the API from a browser; `*` allows every one.
        cors_origins: Vec<String> = Vec::new(),
        /// The largest request body, in bytes.
        body_limit_bytes: usize = 8 * 1024 * 1024; 1024..=256 * 1024 * 1024,
        /// How long one request may take, in seconds. Waiting reads have their own limit.
        request_timeout_seconds: u64 = 30; 1..=600,
        /// How long a client may take to send its request's headers, in seconds.
        header_timeout_seconds: u64 = 10; 1..=120,
        /// How long a client may be silent between two requests of one connection, or take nothing of an answer, in
        /// seconds: longer than harnesses are silent between two heartbeats, and than a proxy before it keeps its
        /// connections.
        idle_timeout_seconds: u64 = 120; 1..=3_600,
        /// How long requests in flight may go on after the first stop signal, in seconds.
        shutdown_grace_seconds: u64 = 20; 0..=600,
        /// The most client connections open at once; further ones wait to be accepted.
        max_connections: usize = 20_000; 1..=1_000_000,
    }
}

impl ServerSettings {
    /// [`public_url`](Self::public_url) without a slash at its end, ready to have a path appended.
    pub fn public_base(&self) -> Option<&str> {
        self.public_url.as_deref().map(|url| url.trim_end_matches('/'))
    }

    pub(super) fn check(&self, faults: &mut Faults) {
        self.check_ranges(faults);
        if let Some(url) = &self.public_url {
            faults.url("server.public_url", url, &["http", "https"]);
            faults.require(!url.contains(['?', '#']), "server.public_url", "must have no query and no fragment");
        }
        for (index, origin) in self.cors_origins.iter().enumerate() {
            let exact = url::Url::parse(origin).is_ok_and(|url| url.origin().ascii_serialization() == *origin);
            faults.require(
                origin == "*" || exact,
                format!("server.cors_origins[{index}]"),
                "must be `*` or an origin such as https://app.example.com, with no path and no slash at its end",
            );
        }
    }
}

/// The parameters that the database's driver takes in its URL. Others it leaves out and logs with their values, one of
/// which may be a password (`sslpassword`).
const DATABASE_PARAMETERS: &[&str] = &[
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    "options",
    "password",
    "port",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "ssl-mode",
    "ssl-root-cert",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "statement-cache-capacity",
    "user",
];

part! {
    /// The database in which the directory and the work live.
    DatabaseSettings: "database" {
        /// URL of the PostgreSQL database, `postgres://user:password@host:5432/name`. Must be set to serve.
        url: SecretUrl = SecretUrl::default(),
        /// The most connections that this process opens; where the same database keeps the permanent log, up to 6 more.
        max_connections: u32 = 10; 1..=1_000,
        /// How long a request waits for a free connection, in seconds, before it is 503.
        acquire_timeout_seconds: u64 = 5; 1..=120,
        /// After how long the database cancels one statement, in seconds.
        statement_timeout_seconds: u64 = 30; 1..=600,
        /// After how long the database cancels a search (`q` of the task list), in milliseconds.
        search_timeout_ms: u64 = 3_000; 10..=60_000,
        /// Whether a proxy that pools by transaction stands in between: then statements are unnamed and run inside
        /// explicit transactions, at the price of more round trips.
        transaction_pooler: bool = false,
        /// Whether `serve` brings the schema up to date first, under a lock, and makes the log's tables and topics,
        /// topics that the cluster has lost too; otherwise `mandate migrate` must.
        migrate_at_start: bool = true,
    }
}

impl DatabaseSettings {
    pub(super) fn check(&self, faults: &mut Faults) {
        self.check_ranges(faults);
        if self.url.is_empty() {
            faults.add("database.url", "must be set, for example postgres://mandate:password@localhost:5432/mandate");
        } else {
            faults.url("database.url", self.url.expose(), &["postgres", "postgresql"]);
        }
        let Ok(url) = url::Url::parse(self.url.expose()) else { return };
        let known = |name: &str| DATABASE_PARAMETERS.contains(&name) || name.starts_with("options[");
        for (name, _) in url.query_pairs().filter(|(name, _)| !known(name)) {
            let problem = format!("has the parameter {name}; it can only have {}", DATABASE_PARAMETERS.join(", "));
            faults.add("database.url", problem);
        }
    }
}

part! {
    /// Tokens, keys, and who may issue tokens for people.
    AuthSettings: "auth" {
        /// Folder in which the signing key lives when `auth.signing_key` is unset; made when it is missing.
        data_folder: PathBuf = PathBuf::from("./.mandate"),
        /// The Ed25519 private key (PKCS #8, PEM) that signs this server's tokens. Unset: kept in the data folder.
        signing_key: Option<Secret> = None,
        /// Former keys (PEM) whose tokens are still accepted.
        retired_keys: Vec<Secret> = Vec::new(),
        /// The `iss` of this server's tokens. Unset: `server.public_url`, else `mandate`.
        issuer: Option<String> = None,
        /// The `aud` of this server's tokens.
        audience: String = "mandate".to_owned(),
        /// How long a token of this server lives, in seconds.
        token_ttl_seconds: u64 = 900; 60..=86_400,
        /// The most tokens that one client id may ask for in a minute.
        token_rate_per_minute: u32 = 60; 1..=100_000,
        /// The shortest time between two fetches of an issuer's keys, in seconds.
        jwks_cooldown_seconds: u64 = 60; 1..=3_600,
        /// How long membership, roles and revocations may be remembered, in seconds.
        directory_cache_seconds: u64 = 5; 0..=10,
        /// Who issues tokens for people: one table per issuer.
        issuers: Vec<IssuerSettings> = Vec::new(),
    }
}

impl AuthSettings {
    /// The `iss` of this server's tokens: as set, else `public_base` (the server's own URL), else `mandate`.
    pub fn own_issuer<'a>(&'a self, public_base: Option<&'a str>) -> &'a str {
        self.issuer.as_deref().or(public_base).unwrap_or("mandate")
    }

    pub(super) fn check(&self, faults: &mut Faults) {
        self.check_ranges(faults);
        faults.require(!self.data_folder.as_os_str().is_empty(), "auth.data_folder", "must not be empty");
        faults.require(!self.audience.is_empty(), "auth.audience", "must not be empty");
        faults.require(self.issuer.as_deref() != Some(""), "auth.issuer", "must not be empty");
        let pem = |key: &Secret| key.expose().trim_start().starts_with("-----BEGIN ");
        if let Some(key) = &self.signing_key {
            faults.require(pem(key), "auth.signing_key", "must be a PEM text that begins with -----BEGIN");
        }
        for (index, key) in self.retired_keys.iter().enumerate() {
            let name = format!("auth.retired_keys[{index}]");
            faults.require(pem(key), name, "must be a PEM text that begins with -----BEGIN");
        }
        for (index, issuer) in self.issuers.iter().enumerate() {
            let name = format!("auth.issuers[{index}]");
            issuer.check(&name, faults);
            let twice = self.issuers[..index].iter().any(|earlier| earlier.issuer == issuer.issuer);
            faults.require(!twice, format!("{name}.issuer"), "is configured twice");
        }
    }
}

part! {
    /// Sessions of harnesses.
    SessionSettings: "sessions" {
        /// How often a harness is asked to send a heartbeat, in seconds.
        heartbeat_interval_seconds: u64 = 30; 1..=3_600,
        /// After how long without a sign of life a session is closed as `heartbeat_lost`, in seconds; at least twice the
        /// interval.
        timeout_seconds: u64 = 300; 2..=86_400,
    }
}

impl SessionSettings {
    pub(super) fn check(&self, faults: &mut Faults) {
        self.check_ranges(faults);
        faults.require(
            self.timeout_seconds >= self.heartbeat_interval_seconds.saturating_mul(2),
            "sessions.timeout_seconds",
            "must be at least twice sessions.heartbeat_interval_seconds, or one late heartbeat ends a session",
        );
    }
}

part! {
    /// Questions to people.
    RequestSettings: "requests" {
        /// How long a request stays open when the harness names no end, in seconds.
        ttl_seconds: u64 = 7 * 86_400; 1..=90 * 86_400,
    }
}

part! {
    /// The move of closed tasks' logs to the permanent log.
    ArchiveSettings: "archive" {
        /// How long a task's log stays in the database after its close, in seconds.
        grace_seconds: u64 = 900; 0..=90 * 86_400,
        /// How often the sweep compares what moved with the log store, in seconds.
        sweep_interval_seconds: u64 = 30; 1..=3_600,
        /// How long a sweep that died keeps others out, in seconds. One that works renews its lease all the time.
        lease_seconds: u64 = 30; 1..=3_600,
        /// How many tasks the sweep compares at once.
        sweep_batch: u32 = 500; 1..=10_000,
        /// How old an entry or a report must be before the sweep takes it for lost, in seconds; after each time that it
        /// was sent again, twice as long as before, up to 16 times as long.
        patience_seconds: u64 = 60; 0..=86_400,
        /// How long a task must have been still before the sweep takes it off its list, in seconds: taking a busy one off
        /// and putting it on again would cost its appends more.
        quiet_seconds: u64 = 60; 0..=86_400,
    }
}

part! {
    /// Limits of what clients may send. They can be lowered, not raised beyond what the contract names.
    LimitSettings: "limits" {
        /// The most events in one batch.
        batch_events_max: usize = 100; 1..=100,
        /// The largest payload kept in the log itself, in bytes of JSON.
        payload_bytes_max: usize = 65_536; 1_024..=65_536,
        /// The most entries of a page of a list.
        page_size_max: u32 = 100; 1..=100,
        /// The most events of a page of a log.
        events_page_max: u32 = 1_000; 1..=1_000,
    }
}

/// What a process does.
#[derive(Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub enum Role {
    /// Answers the API.
    Api,
    /// Hands over what this process commits.
    Publisher,
    /// Carries what comes by the stream into the log store.
    Sink,
    /// Verifies the log store, repairs and archives.
    Sweep,
    /// Closes what time closes.
    Expiry,
}

impl Role {
    /// Every role with its name.
    const NAMES: [(Self, &str); 5] = [
        (Self::Api, "api"),
        (Self::Publisher, "publisher"),
        (Self::Sink, "sink"),
        (Self::Sweep, "sweep"),
        (Self::Expiry, "expiry"),
    ];

    /// All of them: what a process does unless it is told otherwise.
    pub fn all() -> Vec<Self> {
        Self::NAMES.map(|(role, _)| role).to_vec()
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::NAMES.iter().find(|(_, name)| *name == text);
        found
            .map(|(role, _)| *role)
            .ok_or_else(|| format!("not one of {}", Self::NAMES.map(|(_, name)| name).join(", ")))
    }
}

/// So that one that is none is told which there are, as on the command line.
impl TryFrom<String> for Role {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

/// As it is written in the settings, because the reference table shows it so.
impl fmt::Debug for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(role, _)| role == self).map_or("", |(_, name)| name);
        write!(f, "{name:?}")
    }
}

part! {
    /// The background workers of this process.
    WorkerSettings: "workers" {
        /// What this process does: `api`, `publisher` (hands over what this process commits), `sink`, `sweep`, `expiry`.
        roles: Vec<Role> = Role::all(),
        /// How often what time closes is looked for (expired requests, lost sessions, task timeouts), in milliseconds.
        expiry_interval_ms: u64 = 1_000; 10..=60_000,
        /// The most that one look closes.
        expiry_batch: u32 = 100; 1..=10_000,
    }
}

part! {
    /// Reads that wait for events.
    WaitingSettings: "waiting" {
        /// How often the database is asked, in one query for all reads that wait, what other processes wrote, in
        /// milliseconds. What the same process writes is seen at once.
        tick_ms: u64 = 500; 10..=10_000,
        /// The most reads that wait or stream at once in this process; further ones are 503.
        reads_max: usize = 10_000; 1..=1_000_000,
        /// How often a stream writes a comment and looks whether its reader may still read, in milliseconds.
        comment_ms: u64 = 14_000; 100..=15_000,
    }
}

/// How log lines are written.
#[derive(Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// As it is written in the settings, because the reference table shows it so.
impl fmt::Debug for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "\"text\"",
            Self::Json => "\"json\"",
        })
    }
}

part! {
    /// What the process tells about itself, on standard error.
    TelemetrySettings: "telemetry" {
        /// `text` or `json`.
        log_format: LogFormat = LogFormat::Text,
        /// What is logged: a level, or levels by module such as `info,mandate::http=debug`.
        log_filter: String = "info,sqlx=warn".to_owned(),
    }
}

impl TelemetrySettings {
    pub(super) fn check(&self, faults: &mut Faults) {
        self.check_ranges(faults);
        if let Err(error) = EnvFilter::try_new(&self.log_filter) {
            faults.add("telemetry.log_filter", error.to_string());
        }
    }
}

part! {
    /// Where the permanent log goes.
    LogSettings: "log" {
        /// The stream: `direct:` (none: the publisher writes to the log store itself) or `kafka://host:port,…/?property=value&…`,
        /// with properties of librdkafka.
        stream_url: SecretUrl = SecretUrl::new("direct:"),
        /// The log store: `clickhouse://user:password@host:8123/database`, with `?secure=true` for TLS; without
        /// a database, `mandate`. Unset: a schema of the same PostgreSQL database.
        store_url: Option<SecretUrl> = None,
        /// What the names of the topics and of the sink's group begin with, so that several installations can share a
        /// cluster.
        topic_prefix: String = String::new(),
        /// Partitions of a topic that `mandate migrate` makes.
        topic_partitions: i32 = 12; 1..=10_000,
        /// Replicas of a topic that `mandate migrate` makes; -1: what the cluster does by default.
        topic_replication: i32 = -1; -1..=100,
        /// The consumer group of the sink.
        sink_group: String = "mandate-sink".to_owned(),
        /// The most rows that go to the log store at once.
        batch_rows: usize = 5_000; 1..=100_000,
        /// The most bytes that go to the log store at once.
        batch_bytes: usize = 16 * 1024 * 1024; 1024 * 1024..=256 * 1024 * 1024,
        /// How long rows are gathered for the log store, in milliseconds.
        batch_linger_ms: u64 = 250; 1..=60_000,
        /// The most committed rows that wait in this process to be handed over; what is over it is left to the sweep.
        queue_rows: usize = 20_000; 1..=10_000_000,
        /// The most bytes of them.
        queue_bytes: usize = 64 * 1024 * 1024; 1024 * 1024..=1024 * 1024 * 1024,
        /// How long handing a row over may take, in seconds, before it is left to the sweep.
        publish_timeout_seconds: u64 = 30; 1..=900,
    }
}

impl LogSettings {
    pub(super) fn check(&self, faults: &mut Faults) {
        self.check_ranges(faults);
        let stream = self.stream_url.expose();
        // A list of brokers is no URL to a strict parser, so only the beginning is looked at.
        let known = stream == "direct:" || stream.strip_prefix("kafka://").is_some_and(|rest| !rest.is_empty());
        faults.require(known, "log.stream_url", "must be `direct:` or begin with kafka://");
        if let Some(url) = &self.store_url {
            faults.url("log.store_url", url.expose(), &["clickhouse"]);
        }
        let legal = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
        let fits = legal(&self.topic_prefix) && self.topic_prefix.len() <= 200;
        faults.require(fits, "log.topic_prefix", "must have at most 200 of a-z, A-Z, 0-9, '.', '_' and '-'");
        faults.require(!self.sink_group.is_empty(), "log.sink_group", "must not be empty");
        faults.require(self.topic_replication != 0, "log.topic_replication", "must not be 0");
    }
}

part! {
    /// Where artifacts are kept: large payloads, and what harnesses and people send.
    ArtifactSettings: "artifacts" {
        /// The artifact store: `file:///folder`, or `s3://bucket/prefix` of Amazon S3 or what speaks like it. Unset:
        /// none; payloads over `limits.payload_bytes_max` are then refused.
        store_url: Option<SecretUrl> = None,
        /// The URL of a service that is not Amazon's, such as `https://minio.example.com:9000`.
        s3_endpoint: Option<String> = None,
        /// The region of the bucket.
        s3_region: String = "us-east-1".to_owned(),
        /// The id of the key. Unset: what the machine or the environment (`AWS_…`) grants.
        s3_access_key_id: Option<Secret> = None,
        /// The key.
        s3_secret_access_key: Option<Secret> = None,
        /// Whether the bucket's name stands in the host rather than in the path.
        s3_virtual_hosted: bool = false,
        /// The largest artifact, in bytes.
        size_bytes_max: u64 = 100 * 1024 * 1024; 1024..=5 * 1024 * 1024 * 1024_u64,
        /// How long an artifact may take to come, in seconds.
        upload_timeout_seconds: u64 = 300; 1..=3_600,
        /// The most artifacts that come at once in this process, each of which takes up to 24 MiB of memory; further ones
        /// are 503.
        uploads_max: usize = 64; 1..=10_000,
        /// How long an artifact is kept that no log refers to, in seconds, from when it was last sent.
        grace_seconds: u64 = 86_400; 60..=365 * 86_400,
        /// How often what no log refers to is looked for, by the role `expiry`, in seconds.
        sweep_interval_seconds: u64 = 300; 1..=86_400,
    }
}

impl ArtifactSettings {
    pub(super) fn check(&self, faults: &mut Faults) {
        self.check_ranges(faults);
        if let Some(url) = &self.store_url {
            faults.url("artifacts.store_url", url.expose(), &["file", "s3"]);
        }
        if let Some(endpoint) = &self.s3_endpoint {
            faults.url("artifacts.s3_endpoint", endpoint, &["http", "https"]);
            let telling = url::Url::parse(endpoint)
                .is_ok_and(|url| !url.username().is_empty() || url.password().is_some() || url.query().is_some());
            let problem = "must have no user, no password and no query, because errors show it";
            faults.require(!telling, "artifacts.s3_endpoint", problem);
        }
        faults.require(
            self.s3_access_key_id.is_some() == self.s3_secret_access_key.is_some(),
            "artifacts.s3_secret_access_key",
            "must be set together with artifacts.s3_access_key_id",
        );
        faults.require(
            self.grace_seconds > self.upload_timeout_seconds,
            "artifacts.grace_seconds",
            "must be more than artifacts.upload_timeout_seconds, or what is still coming is taken for dead",
        );
    }
}
