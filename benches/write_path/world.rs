//! What is measured: a durable PostgreSQL of the benchmark's own, Mandate, and the bare server beside it.

use std::fs::{File, Permissions};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use mandate::dev::postgres::{ManagedPostgres, PostgresOptions};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use super::Failure;
use super::bare::Plan;
use super::load::{Operation, Subject};
use super::seed::{Callers, ORG, people};

/// The most connections of each pool: Mandate's default.
const MAX_CONNECTIONS: u32 = 10;
/// How long a server may take to be ready.
const START: Duration = Duration::from_secs(30);
/// A day, in seconds: nothing ends by time while it is measured.
const LONG: &str = "86400";

/// Everything that runs.
pub struct World {
    pub mandate: Subject,
    pub bare: Subject,
    postgres: ManagedPostgres,
    // Killed when they are dropped.
    servers: [Child; 2],
    _folder: TempDir,
}

impl World {
    /// Starts everything, with a task of its own for each of `clients` on either server.
    pub async fn start(clients: usize) -> Result<Self, Failure> {
        let folder = tempfile::tempdir()?;
        // As root, PostgreSQL runs as another user, who must get through.
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o711))?;
        let mut options = PostgresOptions::new(folder.path().join("data"));
        options.fallback = folder.path().join("fallback");
        let postgres = ManagedPostgres::start(options).await?;
        postgres.ensure_database("mandate").await?;
        let database_url = postgres.url("mandate");

        let (mint, issuers) = people(&folder.path().join("people.json"))?;
        let address = free_address()?;
        let mut mandate = start_mandate(folder.path(), &database_url, address, &issuers)?;
        let http = reqwest::Client::builder().no_proxy().build()?;
        let base = format!("http://{address}");
        until_ready(&http, &base, &mut mandate, folder.path()).await?;
        let callers = Callers::plant(&database_url, &base, &http, &mint).await?;
        let (mut complete, mut targets) = (Vec::new(), Vec::new());
        for _ in 0..clients {
            complete.push(callers.target().await?);
            targets.push(callers.target().await?);
        }

        let plan = Plan { database_url, max_connections: MAX_CONNECTIONS, targets };
        let file = folder.path().join("bare.json");
        std::fs::write(&file, serde_json::to_vec(&plan)?)?;
        let (other, bare_address) = start_bare(&file).await?;

        let payload = json!({"body": "I read the failing test and the function that it covers. ".repeat(4)});
        let token = callers.agent.token();
        let to_mandate = |operation: Operation, client: usize| {
            let target = &complete[client];
            let task = format!("/organizations/{ORG}/agent-tasks/{}", target.short_id);
            let (path, body) = match operation {
                Operation::Append => {
                    let events = json!([{"type": "turn", "payload": payload}]);
                    let body = json!({"session_id": target.session, "events": events}).to_string();
                    (format!("{task}/events"), body)
                }
                Operation::Heartbeat => (format!("{task}/sessions/{}/heartbeat", target.session), String::new()),
            };
            request(address, &path, Some(token), &body)
        };
        let to_bare = |operation: Operation, client: usize| match operation {
            Operation::Append => request(bare_address, &format!("/append/{client}"), None, &payload.to_string()),
            Operation::Heartbeat => request(bare_address, &format!("/heartbeat/{client}"), None, ""),
        };
        Ok(Self {
            mandate: Subject::new(address, pid(&mandate)?, clients, to_mandate),
            bare: Subject::new(bare_address, pid(&other)?, clients, to_bare),
            postgres,
            servers: [mandate, other],
            _folder: folder,
        })
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
        for mut server in self.servers {
            server.kill().await?;
        }
        Ok(self.postgres.stop().await?)
    }
}

fn request(host: SocketAddr, path: &str, token: Option<&str>, body: &str) -> Vec<u8> {
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    let kind = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nhost: {host}\r\n{token}{kind}content-length: {length}\r\n\r\n{body}").into_bytes()
}

fn pid(child: &Child) -> Result<u32, Failure> {
    child.id().ok_or_else(|| "a server has ended".into())
}

fn free_address() -> Result<SocketAddr, Failure> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

fn start_mandate(folder: &Path, database_url: &str, listen: SocketAddr, issuers: &str) -> Result<Child, Failure> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mandate"));
    for (name, _) in std::env::vars_os() {
        // What this terminal is set up for is not what is measured.
        if name.to_string_lossy().starts_with("MANDATE_") {
            command.env_remove(name);
        }
    }
    command.arg("serve").current_dir(folder).kill_on_drop(true).stderr(File::create(folder.join("mandate.log"))?);
    command.env("MANDATE_SERVER__LISTEN", listen.to_string());
    command.env("MANDATE_DATABASE__URL", database_url);
    command.env("MANDATE_DATABASE__MAX_CONNECTIONS", MAX_CONNECTIONS.to_string());
    command.env("MANDATE_AUTH__DATA_FOLDER", folder.join("mandate"));
    command.env("MANDATE_AUTH__ISSUERS", issuers);
    command.env("MANDATE_AUTH__TOKEN_TTL_SECONDS", LONG);
    command.env("MANDATE_SESSIONS__TIMEOUT_SECONDS", LONG);
    Ok(command.spawn()?)
}

async fn until_ready(http: &reqwest::Client, base: &str, server: &mut Child, folder: &Path) -> Result<(), Failure> {
    let deadline = Instant::now() + START;
    loop {
        if http.get(format!("{base}/readyz")).send().await.is_ok_and(|answer| answer.status().is_success()) {
            return Ok(());
        }
        if server.try_wait()?.is_some() || Instant::now() > deadline {
            let said = std::fs::read_to_string(folder.join("mandate.log")).unwrap_or_default();
            return Err(format!("Mandate did not get ready:\n{said}").into());
        }
        sleep(Duration::from_millis(20)).await;
    }
}

async fn start_bare(plan: &Path) -> Result<(Child, SocketAddr), Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--bare").arg(plan).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn()?;
    let output = child.stdout.take().ok_or("the bare server has no output")?;
    let line = BufReader::new(output).lines().next_line().await?.ok_or("the bare server ended")?;
    Ok((child, line.parse()?))
}
