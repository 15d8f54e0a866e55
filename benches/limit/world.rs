//! What is measured: a durable PostgreSQL of the benchmark's own, Mandate, the bare server beside it, and pgbench.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use mandate::dev::postgres::ManagedPostgres;
use sqlx::{Connection as _, Executor as _, PgConnection};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use uuid::Uuid;

use super::asked::Questions;
use super::bare::Plan;
use super::calls::{ToMandate, to_bare};
use super::load::{self, Round, Subject};
use super::operations::{Contender, Operation};
use super::pgbench::{self, Script};
use super::sample::{self, Sample};
use super::seed::{Callers, Target, people, text};
use super::service::{self, MAX_CONNECTIONS, Service};
use super::{Failure, scripts};

/// The database.
const DATABASE: &str = "mandate";
/// Events of the tasks that are read, beside those of their beginning.
const EVENTS: usize = 20;

/// Everything that runs.
pub struct World {
    mandate: Subject,
    bare: Subject,
    callers: Callers,
    /// What each client of each contender writes to, so that each knows how long its logs are.
    work: [Vec<Target>; 3],
    /// What each client reads. Nobody writes to it.
    reading: Vec<Target>,
    sample: Sample,
    postgres: ManagedPostgres,
    db: PgConnection,
    // Killed when they are dropped.
    service: Service,
    other: Child,
    folder: TempDir,
}

impl World {
    /// Starts everything for so many clients. `more` are further settings of Mandate.
    pub async fn start(clients: usize, roles: &str, more: &[(String, String)]) -> Result<Self, Failure> {
        let folder = service::folder()?;
        let postgres = service::start_postgres(folder.path()).await?;
        postgres.ensure_database(DATABASE).await?;
        let database_url = postgres.url(DATABASE);

        let (mint, issuers) = people(&folder.path().join("people.json"))?;
        let http = reqwest::Client::builder().no_proxy().build()?;
        let mut settings = service::settings(folder.path(), &database_url, &issuers);
        settings.push(("MANDATE_WORKERS__ROLES".to_owned(), roles.to_owned()));
        settings.extend_from_slice(more);
        let service = Service::start(folder.path(), "mandate", &settings, &http).await?;
        let mandate = Subject { address: service.address(), pid: service.pid()? };
        let callers = Callers::plant(&database_url, &service.base(), &http, &mint).await?;
        callers.price().await?;
        let sample = Sample::take(&callers, &database_url).await?;
        let mut work = [const { Vec::new() }; 3];
        for targets in &mut work {
            *targets = callers.targets(clients).await?;
        }
        let mut reading = callers.targets(clients).await?;
        for target in &mut reading {
            let path = format!("/agent-tasks/{}/events", target.short_id);
            let written = callers.agent.post(&path, &sample::events(target.session, EVENTS)).await?;
            let last = written["written"].as_array().and_then(|written| written.last());
            target.last_seq = last.and_then(|event| event["seq"].as_i64()).ok_or("nothing was written")?;
            text(&written, "/written/0/event_id")?;
        }

        let plan = Plan {
            database_url: database_url.clone(),
            max_connections: MAX_CONNECTIONS,
            work: work[1].clone(),
            reading: reading.clone(),
            sample: sample.clone(),
        };
        let file = folder.path().join("bare.json");
        std::fs::write(&file, serde_json::to_vec(&plan)?)?;
        let (other, address) = start_bare(&file).await?;
        let bare = Subject { address, pid: other.id().ok_or("the bare server has ended")? };
        let mut db = PgConnection::connect(&database_url).await?;
        tell_pgbench(&mut db, [("work", &work[2]), ("reading", &reading)], &sample).await?;
        Ok(Self { mandate, bare, callers, work, reading, sample, postgres, db, service, other, folder })
    }

    /// Makes the tables small again, so that no row is measured over what the ones before have left: of the events only
    /// those that are read stay.
    pub async fn tidy(&mut self) -> Result<(), Failure> {
        let reading: Vec<Uuid> = self.reading.iter().map(|target| target.task).collect();
        self.db.execute("SET session_replication_role = replica").await?;
        sqlx::query("CREATE TEMP TABLE kept AS SELECT * FROM agent_runtime.events WHERE task_id = ANY ($1)")
            .bind(reading)
            .execute(&mut self.db)
            .await?;
        self.db
            .execute(
                "TRUNCATE agent_runtime.events, agent_runtime.budget_ledger;
                 INSERT INTO agent_runtime.events SELECT * FROM kept;
                 DROP TABLE kept; SET session_replication_role = origin",
            )
            .await?;
        self.db.execute("VACUUM ANALYZE agent_runtime.events, agent_runtime.tasks, agent_runtime.sessions").await?;
        Ok(())
    }

    /// One round of one contender, and the proof that it did what it says.
    pub async fn round(
        &mut self,
        contender: Contender,
        operation: Operation,
        clients: usize,
        length: Duration,
    ) -> Result<Round, Failure> {
        let questions = Questions::of(clients, length)?;
        if operation == Operation::Resolve {
            questions.open(&mut self.db).await?;
        }
        let began = self.now().await?;
        let before = self.proof(contender, operation).await?;
        let round = match contender {
            Contender::Mandate => {
                let to = ToMandate { address: self.mandate.address, callers: &self.callers, questions };
                let targets = self.work[0].iter().zip(&self.reading).take(clients);
                let all =
                    (0..).zip(targets).map(|(client, (work, reading))| to.script(operation, client, work, reading));
                load::round(self.mandate, self.postgres_pid(), all.collect::<Result<_, _>>()?, length).await?
            }
            Contender::Bare => {
                let all = (0..).zip(self.reading.iter().take(clients));
                let script = |(client, reading)| to_bare(self.bare.address, questions, operation, client, reading);
                load::round(self.bare, self.postgres_pid(), all.map(script).collect(), length).await?
            }
            Contender::Pgbench => {
                let place = pgbench::Place {
                    programs: &self.postgres.programs().folder,
                    folder: self.folder.path(),
                    url: &self.postgres.url(DATABASE),
                    postgres: self.postgres_pid(),
                };
                pgbench::round(place, &self.script(operation, questions), clients, length).await?
            }
        };
        if let (Some((_, each)), Some(before), Some(after)) =
            (operation.proof(), before, self.proof(contender, operation).await?)
            && after - before != round.total * each
        {
            let (wrote, total) = (after - before, round.total);
            return Err(format!("{contender:?} wrote {wrote} in {total} times {}", operation.title()).into());
        }
        if operation == Operation::Heartbeat {
            self.all_alive(contender, clients, began).await?;
        }
        Ok(round)
    }

    fn script(&self, operation: Operation, questions: Questions) -> Script {
        match operation {
            Operation::Append1 | Operation::Append10 | Operation::Append100 => {
                scripts::append(&self.sample, operation.batch().unwrap_or(1))
            }
            Operation::Heartbeat => scripts::heartbeat(),
            Operation::PollNothing | Operation::PollUnchanged | Operation::Poll10 => scripts::poll(operation.behind()),
            Operation::Usage => scripts::usage(&self.sample),
            Operation::Resolve => scripts::resolve(&self.sample, questions),
            Operation::Life => scripts::life(&self.sample),
        }
    }

    async fn now(&mut self) -> Result<time::OffsetDateTime, Failure> {
        Ok(sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(&mut self.db).await?)
    }

    fn work_of(&self, contender: Contender) -> Vec<Uuid> {
        let work = match contender {
            Contender::Mandate => &self.work[0],
            Contender::Bare => &self.work[1],
            Contender::Pgbench => &self.work[2],
        };
        work.iter().map(|target| target.task).collect()
    }

    async fn proof(&mut self, contender: Contender, operation: Operation) -> Result<Option<u64>, Failure> {
        let Some((statement, _)) = operation.proof() else { return Ok(None) };
        let tasks = self.work_of(contender);
        let count: i64 = sqlx::query_scalar(statement).bind(tasks).fetch_one(&mut self.db).await?;
        Ok(Some(u64::try_from(count)?))
    }

    /// That the session of each client has a sign of life since then.
    async fn all_alive(
        &mut self,
        contender: Contender,
        clients: usize,
        since: time::OffsetDateTime,
    ) -> Result<(), Failure> {
        let statement = "SELECT count(*) FROM agent_runtime.sessions WHERE task_id = ANY ($1) AND heartbeat_at >= $2";
        let alive = sqlx::query_scalar(statement).bind(self.work_of(contender)).bind(since);
        let alive: i64 = alive.fetch_one(&mut self.db).await?;
        let alive = usize::try_from(alive)?;
        if alive == clients { Ok(()) } else { Err(format!("{alive} sessions of {clients} are alive").into()) }
    }

    /// The PostgreSQL server's process.
    fn postgres_pid(&self) -> u32 {
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
        self.db.close().await?;
        Ok(self.postgres.stop().await?)
    }
}

/// Tables of what the clients of pgbench work and read, by their numbers, and how long a log is at the end of a life.
async fn tell_pgbench(
    db: &mut PgConnection,
    tables: [(&str, &Vec<Target>); 2],
    sample: &Sample,
) -> Result<(), Failure> {
    for (name, targets) in tables {
        let create = format!(
            "CREATE TABLE bench.{name} (client integer PRIMARY KEY, organization_id uuid, task_id uuid,
                session_id uuid)"
        );
        db.execute(sqlx::AssertSqlSafe(create)).await?;
        for (client, target) in (0_i32..).zip(targets) {
            sqlx::query(sqlx::AssertSqlSafe(format!("INSERT INTO bench.{name} VALUES ($1, $2, $3, $4)")))
                .bind(client)
                .bind(target.organization)
                .bind(target.task)
                .bind(target.session)
                .execute(&mut *db)
                .await?;
        }
    }
    let last = sample.close.expected + i64::try_from(sample.close.events.len())?;
    sqlx::query("CREATE TABLE bench.lived (last_seq bigint)").execute(&mut *db).await?;
    sqlx::query("INSERT INTO bench.lived VALUES ($1)").bind(last).execute(&mut *db).await?;
    Ok(())
}

async fn start_bare(plan: &Path) -> Result<(Child, SocketAddr), Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--bare").arg(plan).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn()?;
    let output = child.stdout.take().ok_or("the bare server has no output")?;
    let line = BufReader::new(output).lines().next_line().await?.ok_or("the bare server ended")?;
    Ok((child, line.parse()?))
}
