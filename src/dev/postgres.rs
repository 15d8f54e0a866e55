//! A private PostgreSQL as a managed child, from the programs that the machine has: for `mandate dev` and for tests.
//!
//! It listens on a Unix socket alone, in a folder that only its user can enter, so it trusts whoever gets there. It
//! ends with this process, even on kill -9, and recovers on the next start.

mod error;
mod keeper;
mod place;
mod programs;

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection};
use tokio::time::{Instant, sleep, timeout};
use url::form_urlencoded;

pub use error::ManagedPostgresError;
use keeper::{Keeper, Kept};
use place::{PORT, Place, run_as};
pub use programs::{InstallError, MissingPrograms, OLDEST_MAJOR, PackageManager, Programs, install};

/// The superuser of the managed database.
pub const SUPERUSER: &str = "mandate";
/// How long a predecessor may take to be gone: PostgreSQL itself gives its processes five seconds.
const PREDECESSOR_GRACE: Duration = Duration::from_secs(10);
/// After how long a predecessor that still answers is taken for an orphan and is asked to stop.
const ORPHAN_AFTER: Duration = Duration::from_secs(2);
/// How long a stop may wait for the last checkpoint.
const FAST_STOP: Duration = Duration::from_secs(15);
/// How long a stop without a checkpoint may take; the next start replays the log.
const IMMEDIATE_STOP: Duration = Duration::from_secs(8);
/// How often a starting server is asked whether it is ready.
const PROBE_EVERY: Duration = Duration::from_millis(10);
/// A log that is larger than this, in bytes, makes room for a new one at the next start.
const LOG_MAX: u64 = 8 * 1024 * 1024;
/// How much of a log an error message quotes, in bytes from the end.
const TAIL: u64 = 2_000;

/// What kind of PostgreSQL to start.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// The data folder; the cluster lies in `postgres-<major version>` below it. Made when it is missing.
    pub data: PathBuf,
    /// The folder with the programs. Unset: looked for, see [`Programs::find`].
    pub programs: Option<PathBuf>,
    /// Whether an acknowledged commit survives a crash of the machine. A crash of the process it always survives.
    pub durable: bool,
    /// Further settings of the server, name and value.
    pub settings: Vec<(String, String)>,
    /// Where a cluster goes that the unprivileged user could not reach below `data`; only used as root.
    pub fallback: PathBuf,
    /// How long the server may take to be ready, recovery included.
    pub start_timeout: Duration,
    /// Whether a shell ties the server to this process even where `setpriv` could.
    pub watchdog: bool,
}

impl PostgresOptions {
    /// A durable one in `data`.
    pub fn new(data: impl Into<PathBuf>) -> Self {
        Self {
            data: data.into(),
            programs: None,
            durable: true,
            settings: Vec::new(),
            fallback: PathBuf::from("/var/lib/mandate"),
            start_timeout: Duration::from_mins(2),
            watchdog: false,
        }
    }
}

/// A running PostgreSQL of this process. Dropping it asks the server to stop and does not wait.
#[derive(Debug)]
pub struct ManagedPostgres {
    place: Place,
    server: Kept,
    notes: Vec<String>,
    // Its thread is the server's parent, so it must stay.
    _keeper: Keeper,
}

impl ManagedPostgres {
    /// Starts one: makes the cluster when there is none, recovers it when the last run was killed, and returns when it
    /// answers.
    ///
    /// # Errors
    /// No programs, a data folder in use, folders or programs that do not work, a server that does not get ready.
    pub async fn start(options: PostgresOptions) -> Result<Self, ManagedPostgresError> {
        let data = options.data.clone();
        let prepared = tokio::task::spawn_blocking(move || prepare(options)).await;
        let prepared = prepared.map_err(|error| ManagedPostgresError::folder(&data, error.into()))?;
        let (options, place, keeper) = prepared?;
        if !place.is_initialized() {
            initialize(&keeper, &place, options.durable).await?;
        }
        let mut notes = place.notes.clone();
        let server = launch(&keeper, &place, &options, &mut notes).await?;
        Ok(Self { place, server, notes, _keeper: keeper })
    }

    /// The URL of `database`, for sqlx, psql and anything else that understands `host` as a socket's folder.
    pub fn url(&self, database: &str) -> String {
        url(&self.place.sockets, database)
    }

    /// What the person at the terminal should know: where the data is when it is not where it was asked for, what was
    /// recovered.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The server's log.
    pub fn log(&self) -> &Path {
        &self.place.log
    }

    /// The programs that it runs.
    pub fn programs(&self) -> &Programs {
        &self.place.programs
    }

    /// The server's process.
    pub fn pid(&self) -> i32 {
        self.server.pid()
    }

    /// Makes `database` unless it is there; whether it was made.
    ///
    /// # Errors
    /// What the database says.
    pub async fn ensure_database(&self, database: &str) -> Result<bool, ManagedPostgresError> {
        let mut connection = PgConnection::connect(&self.url("postgres")).await?;
        let known = sqlx::query_scalar::<_, bool>("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)");
        let known = known.bind(database).fetch_one(&mut connection).await?;
        if !known {
            let name = database.replace('"', "\"\"");
            // A name cannot be a parameter; quoted like this it can be nothing but a name.
            let create = AssertSqlSafe(format!("CREATE DATABASE \"{name}\""));
            sqlx::query(create).execute(&mut connection).await?;
        }
        connection.close().await?;
        Ok(!known)
    }

    /// Waits until the server has ended, which it does by itself only when something is wrong or somebody stopped it;
    /// returns how, and the end of its log.
    pub async fn ended(&self) -> String {
        let status = self.server.ended().await.map_or_else(|| "ended".to_owned(), |status| status.to_string());
        format!("PostgreSQL ended ({status}):\n{}", tail(&self.place.log, 0))
    }

    /// Stops the server: politely first, then without its last checkpoint, then by force; every commit stays in each
    /// case. Clients that are still connected are cut off.
    ///
    /// # Errors
    /// [`ManagedPostgresError::NotStopped`] when even force does not help.
    pub async fn stop(self) -> Result<(), ManagedPostgresError> {
        let ways =
            [(Signal::SIGINT, FAST_STOP), (Signal::SIGQUIT, IMMEDIATE_STOP), (Signal::SIGKILL, Duration::from_secs(2))];
        for (signal, patience) in ways {
            self.server.signal(signal);
            if timeout(patience, self.server.ended()).await.is_ok() {
                self.place.remove_short_folder();
                return Ok(());
            }
        }
        Err(ManagedPostgresError::NotStopped(self.pid()))
    }
}

impl Drop for ManagedPostgres {
    fn drop(&mut self) {
        self.server.signal(Signal::SIGINT);
    }
}

type Prepared = (PostgresOptions, Place, Keeper);

fn prepare(options: PostgresOptions) -> Result<Prepared, ManagedPostgresError> {
    let programs = match &options.programs {
        None => Programs::find(),
        Some(folder) => {
            let usable = Programs::at(folder).filter(|programs| programs.major >= OLDEST_MAJOR);
            vec![usable.ok_or_else(|| ManagedPostgresError::NotThere(folder.clone()))?]
        }
    };
    if programs.is_empty() {
        return Err(ManagedPostgresError::missing());
    }
    let place = Place::prepare(&options.data, &options.fallback, programs)?;
    let keeper = Keeper::start(options.watchdog).map_err(|source| ManagedPostgresError::folder(&place.home, source))?;
    Ok((options, place, keeper))
}

fn url(sockets: &Path, database: &str) -> String {
    let encode = |bytes: &[u8]| form_urlencoded::byte_serialize(bytes).collect::<String>().replace('+', "%20");
    let host = encode(sockets.as_os_str().as_bytes());
    let database = encode(database.as_bytes());
    format!("postgres:///{database}?host={host}&port={PORT}&user={SUPERUSER}&sslmode=disable")
}

/// Makes the cluster beside its place and moves it there as a whole, so that a kill leaves no half of one.
async fn initialize(keeper: &Keeper, place: &Place, durable: bool) -> Result<(), ManagedPostgresError> {
    let fresh = place.home.join("data.new");
    let failed = |source| ManagedPostgresError::folder(&fresh, source);
    let locale = if cfg!(target_os = "macos") { "en_US.UTF-8" } else { "C.UTF-8" };
    let with_locale = ["--lc-collate=C".to_owned(), format!("--lc-ctype={locale}"), "--lc-messages=C".to_owned()];
    let without = ["--no-locale".to_owned()];
    // Not every system has that locale; without it only the case of letters beyond ASCII is not known.
    let mut said = String::new();
    for locale in [&with_locale[..], &without[..]] {
        if fresh.exists() {
            std::fs::remove_dir_all(&fresh).map_err(failed)?;
        }
        let mut command = program(keeper, place, "initdb")?;
        command.arg("--pgdata").arg(&fresh).args(["--encoding=UTF8", "--username", SUPERUSER]).args(locale);
        command.args(["--auth-local=trust", "--auth-host=reject"]);
        if !durable {
            command.arg("--no-sync");
        }
        let initdb = run(keeper, place, command).await?;
        if initdb.ended().await.is_some_and(|status| status.success()) {
            return std::fs::rename(&fresh, place.cluster()).map_err(failed);
        }
        said = tail(&place.log, 0);
    }
    Err(ManagedPostgresError::Initdb(said))
}

/// Starts the server and waits until it is ready; gives a predecessor that is still shutting down time to be gone.
async fn launch(
    keeper: &Keeper,
    place: &Place,
    options: &PostgresOptions,
    notes: &mut Vec<String>,
) -> Result<Kept, ManagedPostgresError> {
    let begun = Instant::now();
    if place.log.metadata().is_ok_and(|log| log.len() > LOG_MAX) {
        // An old log that cannot be removed only goes on growing.
        let _ = std::fs::remove_file(&place.log);
    }
    let mut orphan_stopped = false;
    loop {
        let log_begin = place.log.metadata().map_or(0, |log| log.len());
        let server = run(keeper, place, server_command(keeper, place, options)?).await?;
        tokio::select! {
            () = ready(place, &server) => return Ok(server),
            _ = server.ended() => {}
            () = sleep(options.start_timeout.saturating_sub(begun.elapsed())) => {
                server.signal(Signal::SIGQUIT);
                let waited = begun.elapsed();
                return Err(ManagedPostgresError::NotReady { waited, log: place.log.clone() });
            }
        }
        let said = tail(&place.log, log_begin);
        if !tells_of_predecessor(&said) || begun.elapsed() > PREDECESSOR_GRACE {
            return Err(ManagedPostgresError::Ended { log: place.log.clone(), tail: said });
        }
        // This process holds the lock of the data folder, so a server that answers here belongs to nobody.
        if !orphan_stopped && begun.elapsed() > ORPHAN_AFTER && answers(place).await {
            orphan_stopped = true;
            let mut pg_ctl = program(keeper, place, "pg_ctl")?;
            pg_ctl.arg("stop").arg("--pgdata").arg(place.cluster()).args(["--mode=fast", "--timeout=8"]);
            run(keeper, place, pg_ctl).await?.ended().await;
            notes.push("stopped a PostgreSQL that an earlier run had left behind".to_owned());
        }
        sleep(Duration::from_millis(50)).await;
    }
}

fn server_command(keeper: &Keeper, place: &Place, options: &PostgresOptions) -> Result<Command, ManagedPostgresError> {
    let mut command = program(keeper, place, "postgres")?;
    command.arg("-D").arg(place.cluster());
    let sockets = place.sockets.to_string_lossy().replace('"', "\"\"");
    let mut set = |name: &str, value: &str| {
        command.arg("-c").arg(format!("{name}={value}"));
    };
    set("listen_addresses", "");
    set("port", &PORT.to_string());
    set("unix_socket_directories", &format!("\"{sockets}\""));
    set("unix_socket_permissions", "0700");
    set("logging_collector", "off");
    set("log_destination", "stderr");
    // What is read from the log must be in a language that is known.
    set("lc_messages", "C");
    if !options.durable {
        // Commits still reach the system before they are acknowledged, so a kill of processes loses none.
        set("fsync", "off");
        set("full_page_writes", "off");
    }
    for (name, value) in &options.settings {
        set(name, value);
    }
    Ok(command)
}

/// One of PostgreSQL's programs as a child that ends with this process, with its output in the log.
fn program(keeper: &Keeper, place: &Place, name: &str) -> Result<Command, ManagedPostgresError> {
    let failed = |source| ManagedPostgresError::folder(&place.log, source);
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(&place.log).map_err(failed)?;
    let mut command = keeper.command(&place.programs.folder.join(name));
    command.current_dir(&place.home).env("LC_ALL", "C").stdout(log.try_clone().map_err(failed)?).stderr(log);
    run_as(&mut command, place.user.as_ref());
    Ok(command)
}

async fn run(keeper: &Keeper, place: &Place, command: Command) -> Result<Kept, ManagedPostgresError> {
    let program = place.programs.folder.clone();
    keeper.run(command).await.map_err(|source| ManagedPostgresError::NotRun { program, source })
}

/// Waits until `server` answers: that very process, not a predecessor on the same socket.
async fn ready(place: &Place, server: &Kept) {
    let pid_file = place.cluster().join("postmaster.pid");
    let own = server.pid().to_string();
    loop {
        let running = std::fs::read_to_string(&pid_file).unwrap_or_default();
        if running.lines().next() == Some(&own) && answers(place).await {
            return;
        }
        sleep(PROBE_EVERY).await;
    }
}

/// Whether a server answers on the socket. Asks with a plain connection: a pool would hide a refusal behind its own
/// time-out.
async fn answers(place: &Place) -> bool {
    let Ok(options) = url(&place.sockets, "postgres").parse::<PgConnectOptions>() else { return false };
    let options = options.disable_statement_logging();
    match timeout(Duration::from_secs(2), PgConnection::connect_with(&options)).await {
        Ok(Ok(connection)) => {
            // It has answered; how it says good-bye does not matter.
            let _ = connection.close().await;
            true
        }
        _ => false,
    }
}

/// Whether the server ended because another one is, or seems to be, still there.
fn tells_of_predecessor(said: &str) -> bool {
    [
        "lock file \"postmaster.pid\" already exists",
        "lock file \"postmaster.pid\" is empty",
        ".lock\" already exists",
        "pre-existing shared memory block",
        "Address already in use",
    ]
    .iter()
    .any(|sign| said.contains(sign))
}

/// The end of the log, from `begin` on at most.
fn tail(log: &Path, begin: u64) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(log)?;
        let end = file.metadata()?.len();
        file.seek(SeekFrom::Start(begin.max(end.saturating_sub(TAIL))))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    read().unwrap_or_default()
}
