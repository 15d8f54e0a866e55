//! A database of one size with a Mandate over it, and what is asked of it.

use std::path::Path;

use mandate::dev::postgres::ManagedPostgres;
use serde_json::Value;
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::calls::get;
use super::fill::{self, Templates};
use super::load::{self, Repeat, Script};
use super::seed::{Callers, ORG, Target, people};
use super::service::{self, Service, request};
use super::{Failure, sample};

/// Clients, each about its part of the tasks that are worked.
pub const CLIENTS: usize = 16;
/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    Append,
    Heartbeat,
    Poll,
    PollOfTen,
    List,
    ListOfStatus,
}

impl Ask {
    pub const ALL: [Self; 6] =
        [Self::Append, Self::Heartbeat, Self::Poll, Self::PollOfTen, Self::List, Self::ListOfStatus];

    pub fn title(self) -> &'static str {
        match self {
            Self::Append => "append of 1 event",
            Self::Heartbeat => "heartbeat",
            Self::Poll => "poll, nothing new",
            Self::PollOfTen => "poll of 10 events",
            Self::List => "list of tasks, the newest 50",
            Self::ListOfStatus => "list of tasks, the newest 50 that run",
        }
    }
}

/// A database of one size, and the Mandate over it.
pub struct Size {
    pub tasks: u32,
    url: String,
    callers: Callers,
    worked: Vec<Target>,
    pub service: Service,
}

/// What appends left behind: bytes of PostgreSQL's log per event, and the share of updates of tasks that touched no
/// index.
#[derive(Debug, Default, Clone, Copy)]
pub struct Traces {
    pub wal: u64,
    pub events: u64,
    pub updates: i64,
    pub hot: i64,
}

impl Size {
    /// Makes one with so many tasks, of which `worked` are worked.
    pub async fn make(postgres: &ManagedPostgres, folder: &Path, tasks: u32, worked: u32) -> Result<Self, Failure> {
        let name = format!("tasks_{tasks}");
        postgres.ensure_database(&name).await?;
        let url = postgres.url(&name);
        let (mint, issuers) = people(&folder.join(format!("{name}.json")))?;
        let http = reqwest::Client::builder().no_proxy().build()?;
        let mut settings = service::settings(folder, &url, &issuers);
        settings.push(("MANDATE_WORKERS__ROLES".to_owned(), "api".to_owned()));
        let service = Service::start(folder, &name, &settings, &http).await?;
        let callers = Callers::plant(&url, &service.base(), &http, &mint).await?;
        callers.price().await?;
        if tasks > worked {
            fill::fill(&url, Templates::make(&callers).await?, tasks - worked).await?;
        }
        let worked = callers.targets(usize::try_from(worked)?).await?;
        for target in &worked {
            let path = format!("/agent-tasks/{}/events", target.short_id);
            callers.agent.post(&path, &sample::events(target.session, fill::EVENTS)).await?;
        }
        let mut db = PgConnection::connect(&url).await?;
        db.execute("VACUUM ANALYZE").await?;
        db.close().await?;
        let size = Self { tasks, url, callers, worked, service };
        for (ask, entries) in [(Ask::Poll, 0), (Ask::PollOfTen, 10), (Ask::List, 50), (Ask::ListOfStatus, 50)] {
            size.require(ask, entries).await?;
        }
        Ok(size)
    }

    /// Refuses answers that have not what they are measured for.
    async fn require(&self, ask: Ask, entries: usize) -> Result<(), Failure> {
        let mut stream = TcpStream::connect(self.service.address()).await?;
        stream.write_all(&self.request(ask, &self.worked[0])).await?;
        let mut buffer = Vec::new();
        load::answer(&mut stream, &mut buffer).await?;
        let answer = std::str::from_utf8(&buffer)?;
        let body = answer.split_once("\r\n\r\n").ok_or("an answer without a head")?.1;
        match serde_json::from_str(body) {
            Ok(Value::Array(found)) if found.len() == entries => Ok(()),
            _ => Err(format!("{} is not answered with {entries}: {answer}", ask.title()).into()),
        }
    }

    /// What each client sends: one call after the other about each of its tasks.
    pub fn scripts(&self, ask: Ask) -> Vec<Box<dyn Script>> {
        let part = self.worked.len().div_ceil(CLIENTS);
        let script = |targets: &[Target]| {
            Repeat::in_turn(targets.iter().map(|target| self.request(ask, target)).collect::<Vec<_>>())
        };
        self.worked.chunks(part).map(script).collect()
    }

    fn request(&self, ask: Ask, target: &Target) -> Vec<u8> {
        let (host, token) = (self.service.address(), self.callers.agent.token());
        let tasks = format!("/organizations/{ORG}/agent-tasks/");
        let task = format!("{tasks}{}", target.short_id);
        let agent = format!("authorization: Bearer {token}\r\n");
        let person = format!("authorization: Bearer {}\r\n", self.callers.person.token());
        match ask {
            Ask::Append => {
                let body = sample::events(target.session, 1).to_string();
                request(host, &format!("{task}/events"), Some(token), &body)
            }
            Ask::Heartbeat => request(host, &format!("{task}/sessions/{}/heartbeat", target.session), Some(token), ""),
            // Beyond any end.
            Ask::Poll => get(host, &format!("{task}/events?after_seq={}&limit=100", u32::MAX), &agent),
            Ask::PollOfTen => get(host, &format!("{task}/events?after_seq={}&limit=10", target.last_seq), &agent),
            Ask::List => get(host, &format!("{tasks}?limit=50"), &person),
            Ask::ListOfStatus => get(host, &format!("{tasks}?limit=50&status=running"), &person),
        }
    }

    /// What there is to see by now.
    pub async fn traces(&self) -> Result<Traces, Failure> {
        let mut db = PgConnection::connect(&self.url).await?;
        let (wal, updates, hot): (i64, i64, i64) = sqlx::query_as(
            "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint, n_tup_upd, n_tup_hot_upd
             FROM pg_stat_user_tables WHERE schemaname = 'agent_runtime' AND relname = 'tasks'",
        )
        .fetch_one(&mut db)
        .await?;
        db.close().await?;
        Ok(Traces { wal: u64::try_from(wal)?, events: 0, updates, hot })
    }
}
