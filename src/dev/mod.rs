//! `mandate dev`: everything on a laptop from one command, without a setting.

mod demo;
pub mod postgres;
mod seed;

use std::fmt::Write as _;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::TcpListener;
use url::Url;

use self::demo::DemoError;
use self::postgres::{InstallError, ManagedPostgres, ManagedPostgresError, PostgresOptions};
use self::seed::SeedError;
use crate::app::{Mandate, StartError};
use crate::auth::keys::KeyError;
use crate::auth::mint::PersonMint;
use crate::config::{ArchiveSettings, IssuerSettings, SecretUrl, Settings, SettingsError};
use crate::domain::ids::PersonId;
use crate::service::{Clock, ServiceError};
use crate::shutdown::Shutdown;

/// The port that is taken when none is asked for and it is free.
pub const DEFAULT_PORT: u16 = 8080;
/// The folder of the artifacts within the data folder.
const ARTIFACTS: &str = "artifacts";
/// The database within the managed cluster.
const DATABASE: &str = "mandate";
/// The issuer of the two people's tokens. It is nobody's host: the key lies in the data folder.
const ISSUER: &str = "mandate-dev";
/// The first person, with every permission.
const ADA: &str = "ada";
/// The second person, with every permission too.
const GRACE: &str = "grace";
/// How long the people's tokens live.
const TOKEN_TTL: Duration = Duration::from_hours(30 * 24);

/// What the command line says.
#[derive(Debug, Clone)]
pub struct DevOptions {
    /// The port; absent: [`DEFAULT_PORT`], or any free one when that is taken.
    pub port: Option<u16>,
    /// Where everything is kept.
    pub data: PathBuf,
    /// Where shell variables are written once it is ready.
    pub env_file: Option<PathBuf>,
    /// Whether to play the demo.
    pub demo: bool,
    /// Whether to end after the demo.
    pub once: bool,
    /// Whether to install PostgreSQL with the system's package manager when it is missing.
    pub install: bool,
    /// The folder of PostgreSQL's programs; absent: looked for.
    pub programs: Option<PathBuf>,
}

/// Why `mandate dev` ends early.
#[derive(Debug, thiserror::Error)]
pub enum DevError {
    /// The settings.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The managed PostgreSQL.
    #[error(transparent)]
    Postgres(#[from] ManagedPostgresError),
    /// Its installation.
    #[error(transparent)]
    Install(#[from] InstallError),
    /// The service.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A file.
    #[error("{path}: {fault}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system says.
        fault: io::Error,
    },
    /// The system.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The first organization.
    #[error("the first organization could not be made: {0:?}")]
    Organization(ServiceError),
    /// The rest of the seed.
    #[error(transparent)]
    Seed(#[from] SeedError),
    /// The demo.
    #[error("the demo: {0}")]
    Demo(#[from] DemoError),
    /// PostgreSQL ended under the service.
    #[error("{0}")]
    PostgresEnded(String),
}

/// How to reach what was seeded.
#[derive(Debug, Clone)]
pub struct Access {
    /// The server.
    pub url: String,
    /// The organization's slug.
    pub org: String,
    /// The agent's slug.
    pub agent: String,
    /// The model's slug.
    pub model: String,
    /// The agent's credential.
    pub client_id: String,
    /// Its secret.
    pub client_secret: String,
    /// A person with every permission.
    pub token: String,
    /// A second one.
    pub token_2: String,
}

impl Access {
    /// The shell variables, one `NAME=value` a line; no value needs quotes.
    fn variables(&self) -> String {
        let pairs = [
            ("MANDATE_URL", &self.url),
            ("MANDATE_ORG", &self.org),
            ("MANDATE_AGENT", &self.agent),
            ("MANDATE_MODEL", &self.model),
            ("MANDATE_CLIENT_ID", &self.client_id),
            ("MANDATE_CLIENT_SECRET", &self.client_secret),
            ("MANDATE_TOKEN", &self.token),
            ("MANDATE_TOKEN_2", &self.token_2),
        ];
        pairs.iter().fold(String::new(), |mut text, (name, value)| {
            // Writing to a String does not fail.
            let _ = writeln!(text, "{name}={value}");
            text
        })
    }
}

/// Runs everything until a signal, or until the demo is over.
pub async fn run(options: DevOptions) -> Result<(), DevError> {
    let mut settings = Settings::load(None)?;
    let shutdown = Shutdown::listen(Duration::from_secs(settings.server.shutdown_grace_seconds))?;
    let data = absolute(&options.data)?;
    let postgres = start_postgres(&options, &data).await?;
    for note in postgres.notes() {
        eprintln!("note: {note}");
    }
    let served = serve(&options, &data, &mut settings, &postgres, &shutdown).await;
    shutdown.begin();
    shutdown.finish().await;
    postgres.stop().await?;
    served
}

async fn serve(
    options: &DevOptions,
    data: &Path,
    settings: &mut Settings,
    postgres: &ManagedPostgres,
    shutdown: &Shutdown,
) -> Result<(), DevError> {
    postgres.ensure_database(DATABASE).await?;
    settings.database.url = SecretUrl::new(postgres.url(DATABASE));
    data.clone_into(&mut settings.auth.data_folder);
    let mint = PersonMint::open(&data.join("people"))?;
    let key_file = data.join("people.jwks.json");
    write_file(&key_file, &mint.jwks().to_string())?;
    settings.auth.issuers.push(IssuerSettings {
        issuer: ISSUER.to_owned(),
        key_file: Some(key_file),
        audience: settings.auth.audience.clone(),
        algorithms: vec!["EdDSA".to_owned()],
        ..IssuerSettings::default()
    });
    if settings.artifacts.store_url.is_none() {
        let folder =
            Url::from_file_path(data.join(ARTIFACTS)).map_err(|()| io::Error::other("the data folder is no path"))?;
        settings.artifacts.store_url = Some(SecretUrl::new(folder.to_string()));
    }
    hasten(&mut settings.archive);
    let listener = listen(options.port).await?;
    let url = format!("http://{}", listener.local_addr()?);
    settings.server.public_url.get_or_insert_with(|| url.clone());
    settings.validate()?;
    crate::telemetry::init(&settings.telemetry).ok();
    let clock = Clock::system();
    let mandate = Mandate::build(settings.clone(), clock.clone()).await?;
    let names = seed::ORG.parse().ok().zip(PersonId::parse(ADA).ok());
    let (org, admin) = names.ok_or_else(|| io::Error::other("the seed's names are no names"))?;
    mandate.service().init_organization(&org, "Acme", &admin).await.map_err(DevError::Organization)?;
    let person =
        |id: &str| mint.mint(id, ISSUER, &settings.auth.audience, TOKEN_TTL, serde_json::Map::new(), clock.now());
    let (token, token_2) = (person(ADA), person(GRACE));
    let server = tokio::spawn(mandate.run(listener, shutdown.clone()));
    let access = seed::plant(&url, data, token, token_2, GRACE).await?;
    if let Some(file) = &options.env_file {
        write_file(file, &access.variables())?;
    }
    print_welcome(&access);
    if options.demo {
        demo::play(&access).await?;
        if options.once {
            return Ok(());
        }
    }
    tokio::select! {
        () = shutdown.soft().cancelled() => Ok(()),
        last_words = postgres.ended() => Err(DevError::PostgresEnded(last_words)),
        _ = server => Ok(()),
    }
}

/// On a laptop nobody waits a quarter of an hour to see a log archived. What was set is left as it is.
fn hasten(archive: &mut ArchiveSettings) {
    let usual = ArchiveSettings::default();
    let shorten = |setting: &mut u64, usual: u64, short: u64| {
        if *setting == usual {
            *setting = short;
        }
    };
    shorten(&mut archive.grace_seconds, usual.grace_seconds, 3);
    shorten(&mut archive.sweep_interval_seconds, usual.sweep_interval_seconds, 1);
    shorten(&mut archive.patience_seconds, usual.patience_seconds, 5);
    shorten(&mut archive.quiet_seconds, usual.quiet_seconds, 5);
}

async fn start_postgres(options: &DevOptions, data: &Path) -> Result<ManagedPostgres, DevError> {
    let wanted = || PostgresOptions { programs: options.programs.clone(), ..PostgresOptions::new(data) };
    match ManagedPostgres::start(wanted()).await {
        Err(ManagedPostgresError::Missing(_)) if options.install => {
            tokio::task::spawn_blocking(postgres::install).await.map_err(io::Error::other)??;
            Ok(ManagedPostgres::start(wanted()).await?)
        }
        started => Ok(started?),
    }
}

/// The port that was asked for; else the default one, or any free one when that is taken.
async fn listen(port: Option<u16>) -> Result<TcpListener, DevError> {
    let bind = |port| TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let wanted = port.unwrap_or(DEFAULT_PORT);
    match bind(wanted).await {
        Ok(listener) => Ok(listener),
        Err(_) if port.is_none() => {
            let listener = bind(0).await?;
            eprintln!("note: port {DEFAULT_PORT} is taken; listening on {} instead", listener.local_addr()?.port());
            Ok(listener)
        }
        Err(fault) => {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, wanted));
            Err(StartError::Listen { address, fault }.into())
        }
    }
}

fn absolute(path: &Path) -> Result<PathBuf, DevError> {
    let file = |fault| DevError::File { path: path.to_owned(), fault };
    std::fs::create_dir_all(path).map_err(file)?;
    path.canonicalize().map_err(file)
}

/// Writes a file that only its owner reads, whole or not at all.
fn write_file(path: &Path, text: &str) -> Result<(), DevError> {
    let file = |fault| DevError::File { path: path.to_owned(), fault };
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    // A leftover could have other permissions.
    let _ = std::fs::remove_file(&new);
    let mut out = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).map_err(file)?;
    io::Write::write_all(&mut out, text.as_bytes()).map_err(file)?;
    std::fs::rename(&new, path).map_err(file)
}

fn print_welcome(access: &Access) {
    let Access { url, org, agent, token, client_id, client_secret, .. } = access;
    println!(
        "
Mandate is ready at {url} (documentation: {url}/docs)

As a person (ada, every permission):

  TOKEN={token}
  curl -s -H \"Authorization: Bearer $TOKEN\" -H 'Content-Type: application/json' {url}/organizations/{org}/agent-tasks/ \\
    -d '{{\"agent_slug\": \"{agent}\", \"title\": \"A first task\", \"description\": \"Say hello.\"}}'
  curl -s -H \"Authorization: Bearer $TOKEN\" {url}/organizations/{org}/agent-tasks/T-1/events

As the harness of agent {agent}:

  AGENT=$(curl -s {url}/auth/token -d grant_type=client_credentials \\
    -d client_id={client_id} -d client_secret={client_secret} | sed 's/.*\"access_token\":\"\\([^\"]*\\).*/\\1/')
  curl -s -H \"Authorization: Bearer $AGENT\" -H 'Content-Type: application/json' \\
    {url}/organizations/{org}/agent-tasks/T-1/sessions -d '{{\"session_key\": \"first\"}}'
"
    );
}
