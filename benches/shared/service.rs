//! Mandate as a process of its own, and a durable PostgreSQL under it.

use std::fs::{File, Permissions};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use mandate::dev::postgres::{ManagedPostgres, PostgresOptions};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use super::Failure;

/// The most connections of each pool: Mandate's default.
pub const MAX_CONNECTIONS: u32 = 10;
/// How long a server may take to be ready.
const START: Duration = Duration::from_secs(30);
/// A day, in seconds: nothing ends by time while it is measured.
const LONG: &str = "86400";

/// Settings of Mandate, as variables.
pub type Variables = Vec<(String, String)>;

/// A folder for everything of a run.
pub fn folder() -> Result<TempDir, Failure> {
    let folder = tempfile::tempdir()?;
    // As root, PostgreSQL runs as another user, who must get through.
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o711))?;
    Ok(folder)
}

/// A PostgreSQL of the run's own, with fsync on.
pub async fn start_postgres(folder: &Path) -> Result<ManagedPostgres, Failure> {
    let mut options = PostgresOptions::new(folder.join("data"));
    options.fallback = folder.join("fallback");
    Ok(ManagedPostgres::start(options).await?)
}

/// What every process of Mandate here is told.
pub fn settings(folder: &Path, database_url: &str, issuers: &str) -> Variables {
    let pairs = [
        ("MANDATE_DATABASE__URL", database_url),
        ("MANDATE_DATABASE__MAX_CONNECTIONS", &MAX_CONNECTIONS.to_string()),
        ("MANDATE_AUTH__DATA_FOLDER", &folder.join("mandate").display().to_string()),
        ("MANDATE_AUTH__ISSUERS", issuers),
        ("MANDATE_AUTH__TOKEN_TTL_SECONDS", LONG),
        ("MANDATE_SESSIONS__TIMEOUT_SECONDS", LONG),
    ];
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
}

/// A command of the program with exactly these settings.
pub fn command(folder: &Path, variables: &Variables) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mandate"));
    for (name, _) in std::env::vars_os() {
        // What this terminal is set up for is not what is measured.
        if name.to_string_lossy().starts_with("MANDATE_") {
            command.env_remove(name);
        }
    }
    command.current_dir(folder).kill_on_drop(true);
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command
}

/// `mandate serve`. Killed when it is dropped.
pub struct Service {
    child: Child,
    address: SocketAddr,
}

impl Service {
    /// Starts one that is told `variables`, and waits until it is ready. Its log is the file `name`.log in `folder`.
    pub async fn start(
        folder: &Path,
        name: &str,
        variables: &Variables,
        http: &reqwest::Client,
    ) -> Result<Self, Failure> {
        let (address, log) = (free_address()?, folder.join(format!("{name}.log")));
        let mut command = command(folder, variables);
        command.arg("serve").env("MANDATE_SERVER__LISTEN", address.to_string()).stderr(File::create(&log)?);
        let mut service = Self { child: command.spawn()?, address };
        let (deadline, ready) = (Instant::now() + START, format!("{}/readyz", service.base()));
        loop {
            if http.get(&ready).send().await.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(service);
            }
            if service.child.try_wait()?.is_some() || Instant::now() > deadline {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                return Err(format!("Mandate did not get ready:\n{said}").into());
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The base of its URLs.
    pub fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its process.
    pub fn pid(&self) -> Result<u32, Failure> {
        self.child.id().ok_or_else(|| "a server has ended".into())
    }

    /// Ends it.
    pub async fn kill(&mut self) -> Result<(), Failure> {
        Ok(self.child.kill().await?)
    }
}

/// A figure of a service's metrics.
#[allow(dead_code, reason = "not every benchmark asks for one")]
pub async fn metric(http: &reqwest::Client, service: &Service, name: &str) -> Result<u64, Failure> {
    let text = http.get(format!("{}/metrics", service.base())).send().await?.error_for_status()?.text().await?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(value.ok_or_else(|| format!("no metric {name}"))?.parse()?)
}

/// A request, ready to go.
pub fn request(host: SocketAddr, path: &str, token: Option<&str>, body: &str) -> Vec<u8> {
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    let kind = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nhost: {host}\r\n{token}{kind}content-length: {length}\r\n\r\n{body}").into_bytes()
}

/// An address that nobody listens on.
pub fn free_address() -> Result<SocketAddr, Failure> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
