//! All servers: two processes of Mandate over a durable PostgreSQL, Kafka and ClickHouse, each of which can be stopped
//! or killed and started again.

use std::fs::{File, OpenOptions, Permissions};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mandate::auth::mint::PersonMint;
use mandate::dev::postgres::{ManagedPostgres, PostgresOptions};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep, timeout};

use super::Failure;
use super::client::{AUDIENCE, ISSUER};
use super::harness::SESSION_TIMEOUT;
use super::memory::Roster;
use super::servers::{ClickHouseServer, KafkaServer};

/// How long a process of Mandate may take to be ready, and to end when it is asked to.
const START: Duration = Duration::from_mins(1);
const END: Duration = Duration::from_secs(40);
/// How long a closed task's log stays in PostgreSQL.
pub const GRACE: Duration = Duration::from_secs(20);

/// What can be away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    First,
    Second,
    Postgres,
    Kafka,
    ClickHouse,
}

impl Part {
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "mandate 1",
            Self::Second => "mandate 2",
            Self::Postgres => "PostgreSQL",
            Self::Kafka => "Kafka",
            Self::ClickHouse => "ClickHouse",
        }
    }
}

/// How it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// It is asked to end (SIGTERM).
    Asked,
    /// It is killed (SIGKILL).
    Killed,
}

/// `mandate serve` at an address that stays.
struct Serving {
    address: SocketAddr,
    child: Option<Child>,
}

/// Everything that runs.
pub struct World {
    pub mint: Arc<PersonMint>,
    pub roster: Roster,
    kafka: KafkaServer,
    clickhouse: ClickHouseServer,
    postgres: Option<ManagedPostgres>,
    serving: [Serving; 2],
    program: PathBuf,
    variables: Vec<(String, String)>,
    folder: TempDir,
}

impl World {
    /// Starts the servers, and both processes of `program`.
    pub async fn start(program: &Path) -> Result<Self, Failure> {
        let folder = tempfile::tempdir()?;
        // As root, PostgreSQL runs as another user, who must get through.
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o711))?;
        let (kafka, clickhouse) = block_in_place(|| (KafkaServer::start(), ClickHouseServer::start()));
        let serving = || Ok::<_, Failure>(Serving { address: free_address()?, child: None });
        let mut world = Self {
            mint: Arc::new(PersonMint::generate()?),
            roster: Roster::default(),
            kafka,
            clickhouse,
            postgres: None,
            serving: [serving()?, serving()?],
            program: program.to_owned(),
            variables: Vec::new(),
            folder,
        };
        world.begin(Part::Postgres).await?;
        world.settle_variables().await?;
        for part in [Part::Kafka, Part::ClickHouse] {
            world.roster.began(part.name(), world.pid(part)?);
        }
        let made = world.command().args(["admin", "init", "--org", super::client::ORG, "--admin", "ada"]).output();
        let made = made.await?;
        if !made.status.success() {
            return Err(String::from_utf8_lossy(&made.stderr).into());
        }
        world.begin(Part::First).await?;
        world.begin(Part::Second).await?;
        Ok(world)
    }

    async fn settle_variables(&mut self) -> Result<(), Failure> {
        let postgres = self.postgres.as_ref().ok_or("PostgreSQL is away")?;
        postgres.ensure_database("mandate").await?;
        let key_file = self.folder.path().join("people.json");
        std::fs::write(&key_file, self.mint.jwks().to_string())?;
        let issuers = format!(
            r#"[{{issuer = "{ISSUER}", key_file = "{}", audience = "{AUDIENCE}", algorithms = ["EdDSA"]}}]"#,
            key_file.display()
        );
        let artifacts = self.folder.path().join("artifacts");
        std::fs::create_dir(&artifacts)?;
        let clickhouse = self.clickhouse.url().replacen("http://", "clickhouse://", 1);
        let pairs = [
            ("DATABASE__URL", postgres.url("mandate")),
            ("AUTH__DATA_FOLDER", self.folder.path().join("mandate").display().to_string()),
            ("AUTH__ISSUERS", issuers),
            ("AUTH__TOKEN_TTL_SECONDS", "300".to_owned()),
            ("LOG__STREAM_URL", format!("kafka://{}", self.kafka.address())),
            ("LOG__STORE_URL", format!("{clickhouse}/soak")),
            ("ARTIFACTS__STORE_URL", format!("file://{}", artifacts.display())),
            ("SESSIONS__TIMEOUT_SECONDS", SESSION_TIMEOUT.as_secs().to_string()),
            ("SESSIONS__HEARTBEAT_INTERVAL_SECONDS", "10".to_owned()),
            ("ARCHIVE__GRACE_SECONDS", GRACE.as_secs().to_string()),
            ("ARCHIVE__SWEEP_INTERVAL_SECONDS", "5".to_owned()),
            ("ARCHIVE__LEASE_SECONDS", "10".to_owned()),
            ("ARCHIVE__PATIENCE_SECONDS", "15".to_owned()),
            ("ARCHIVE__QUIET_SECONDS", "15".to_owned()),
        ];
        self.variables = pairs.map(|(name, value)| (format!("MANDATE_{name}"), value)).to_vec();
        Ok(())
    }

    /// A command of the program with exactly these settings.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        for (name, _) in std::env::vars_os() {
            // What this terminal is set up for is not what is tried.
            if name.to_string_lossy().starts_with("MANDATE_") {
                command.env_remove(name);
            }
        }
        command.current_dir(self.folder.path()).kill_on_drop(true);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// The bases of both processes' URLs.
    pub fn bases(&self) -> [String; 2] {
        [0, 1].map(|nth: usize| format!("http://{}", self.serving[nth].address))
    }

    /// Where the logs of Mandate are, and what may be written.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The database.
    pub fn database_url(&self) -> Result<String, Failure> {
        Ok(self.postgres.as_ref().ok_or("PostgreSQL is away")?.url("mandate"))
    }

    fn log(&self, part: Part) -> PathBuf {
        self.folder.path().join(format!("{}.log", part.name()))
    }

    fn pid(&self, part: Part) -> Result<u32, Failure> {
        let of = |pid: Pid| pid.as_raw().unsigned_abs();
        Ok(match part {
            Part::First | Part::Second => self.serving[usize::from(part == Part::Second)]
                .child
                .as_ref()
                .and_then(Child::id)
                .ok_or("it is away")?,
            Part::Postgres => self.postgres.as_ref().ok_or("it is away")?.pid().unsigned_abs(),
            Part::Kafka => of(self.kafka.pid()),
            Part::ClickHouse => of(self.clickhouse.pid()),
        })
    }

    /// Takes a part away for so long.
    pub async fn outage(&mut self, part: Part, way: Way, away: Duration) -> Result<(), Failure> {
        self.roster.ended(part.name());
        self.end(part, way).await?;
        sleep(away).await;
        self.begin(part).await
    }

    async fn end(&mut self, part: Part, way: Way) -> Result<(), Failure> {
        match part {
            Part::First | Part::Second => self.end_serving(part, way).await,
            Part::Postgres => {
                let postgres = self.postgres.take().ok_or("PostgreSQL is away")?;
                if way == Way::Asked {
                    return Ok(postgres.stop().await?);
                }
                kill(Pid::from_raw(postgres.pid()), Signal::SIGKILL)?;
                postgres.ended().await;
                Ok(())
            }
            Part::Kafka => {
                block_in_place(|| if way == Way::Asked { self.kafka.stop() } else { self.kafka.kill() });
                Ok(())
            }
            Part::ClickHouse => {
                block_in_place(|| if way == Way::Asked { self.clickhouse.stop() } else { self.clickhouse.kill() });
                Ok(())
            }
        }
    }

    async fn end_serving(&mut self, part: Part, way: Way) -> Result<(), Failure> {
        let serving = &mut self.serving[usize::from(part == Part::Second)];
        let mut child = serving.child.take().ok_or("it is away")?;
        if way == Way::Killed {
            return Ok(child.kill().await?);
        }
        let pid = child.id().ok_or("it has ended")?;
        kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGTERM)?;
        let status = timeout(END, child.wait()).await.map_err(|_| format!("{} did not end", part.name()))??;
        if status.success() { Ok(()) } else { Err(format!("{} ended with {status}", part.name()).into()) }
    }

    async fn begin(&mut self, part: Part) -> Result<(), Failure> {
        match part {
            Part::First | Part::Second => self.begin_serving(part).await?,
            Part::Postgres => {
                let mut options = PostgresOptions::new(self.folder.path().join("data"));
                options.fallback = self.folder.path().join("fallback");
                self.postgres = Some(ManagedPostgres::start(options).await?);
            }
            Part::Kafka => block_in_place(|| self.kafka.start_again()),
            Part::ClickHouse => block_in_place(|| self.clickhouse.start_again()),
        }
        self.roster.began(part.name(), self.pid(part)?);
        Ok(())
    }

    async fn begin_serving(&mut self, part: Part) -> Result<(), Failure> {
        let nth = usize::from(part == Part::Second);
        let address = self.serving[nth].address;
        let log = OpenOptions::new().create(true).append(true).open(self.log(part))?;
        let mut command = self.command();
        command.arg("serve").env("MANDATE_SERVER__LISTEN", address.to_string()).stderr(log);
        let mut child = command.spawn()?;
        let (deadline, http) = (Instant::now() + START, reqwest::Client::builder().no_proxy().build()?);
        let ready = format!("http://{address}/readyz");
        while !http.get(&ready).send().await.is_ok_and(|answer| answer.status().is_success()) {
            if let Some(status) = child.try_wait()? {
                return Err(format!("{} ended with {status}", part.name()).into());
            }
            if Instant::now() > deadline {
                return Err(format!("{} did not get ready", part.name()).into());
            }
            sleep(Duration::from_millis(20)).await;
        }
        self.serving[nth].child = Some(child);
        Ok(())
    }

    /// Errors and panics in the logs of Mandate: how many, and the first few.
    pub fn complaints(&self) -> Result<(usize, Vec<String>), Failure> {
        let (mut errors, mut first) = (0, Vec::new());
        for part in [Part::First, Part::Second] {
            for line in std::io::read_to_string(File::open(self.log(part))?)?.lines() {
                if line.contains("ERROR") || line.contains("panicked") {
                    errors += 1;
                    if line.contains("panicked") || first.len() < 10 {
                        first.push(line.to_owned());
                    }
                }
            }
        }
        Ok((errors, first))
    }

    /// Keeps the folder, for who wants to look what went wrong.
    pub fn keep(self) -> PathBuf {
        self.folder.keep()
    }

    /// Stops everything.
    pub async fn stop(mut self) -> Result<(), Failure> {
        for part in [Part::First, Part::Second] {
            self.end_serving(part, Way::Asked).await?;
        }
        match self.postgres.take() {
            Some(postgres) => Ok(postgres.stop().await?),
            None => Ok(()),
        }
    }
}

fn free_address() -> Result<SocketAddr, Failure> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
