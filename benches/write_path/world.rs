//! What is measured: a durable PostgreSQL of the benchmark's own, Mandate, and the bare server beside it.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use mandate::dev::postgres::ManagedPostgres;
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::Failure;
use super::bare::Plan;
use super::load::{Operation, Subject};
use super::seed::{Callers, ORG, people};
use super::service::{self, MAX_CONNECTIONS, Service, request};

/// Everything that runs.
pub struct World {
    pub mandate: Subject,
    pub bare: Subject,
    postgres: ManagedPostgres,
    // Killed when they are dropped.
    service: Service,
    other: Child,
    _folder: TempDir,
}

impl World {
    /// Starts everything, with a task of its own for each of `clients` on either server.
    pub async fn start(clients: usize) -> Result<Self, Failure> {
        let folder = service::folder()?;
        let postgres = service::start_postgres(folder.path()).await?;
        postgres.ensure_database("mandate").await?;
        let database_url = postgres.url("mandate");

        let (mint, issuers) = people(&folder.path().join("people.json"))?;
        let http = reqwest::Client::builder().no_proxy().build()?;
        let settings = service::settings(folder.path(), &database_url, &issuers);
        let mandate = Service::start(folder.path(), "mandate", &settings, &http).await?;
        let (address, base) = (mandate.address(), mandate.base());
        let callers = Callers::plant(&database_url, &base, &http, &mint).await?;
        let (complete, targets) = (callers.targets(clients).await?, callers.targets(clients).await?);

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
            mandate: Subject::new(address, mandate.pid()?, clients, to_mandate),
            bare: Subject::new(bare_address, other.id().ok_or("the bare server has ended")?, clients, to_bare),
            postgres,
            service: mandate,
            other,
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
    pub async fn stop(mut self) -> Result<(), Failure> {
        self.service.kill().await?;
        self.other.kill().await?;
        Ok(self.postgres.stop().await?)
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
