//! Composition: from settings to a running service.

mod artifacts;
mod log;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::artifacts::ArtifactStoreError;
use crate::auth::issuers::{HttpSettings as FetchSettings, IssuerConfigError, PersonIssuerConfig, PersonIssuers};
use crate::auth::keys::{KeyError, KeyRing};
use crate::auth::tokens::TokenIssuer;
use crate::auth::verifier::Verifier;
use crate::config::{IssuerSettings, Role, Settings};
use crate::directory::Directory;
use crate::directory::cached::CachedDirectory;
use crate::domain::harness_event::BatchLimits;
use crate::http::server::{ServerSettings, serve};
use crate::http::{App, HttpSettings, probes, router};
use crate::log::{LogStoreError, StreamError};
use crate::service::outbox::{Inbox, OutboxLimits, outbox};
use crate::service::sweep::{Sweep, SweepSettings};
use crate::service::{Clock, Service, ServiceSettings};
use crate::shutdown::Shutdown;
use crate::store::{Store, StoreError, StoreOptions};
use crate::workers::{self, ArtifactRemover, Expiry, Lookout, Publisher, Sweeper, run_sink};
pub use log::Log;

/// The folder of the signing key within the data folder.
const KEYS: &str = "keys";

/// After how long the permanent log is prepared again when it could not be.
const PREPARE_AGAIN: Duration = Duration::from_secs(5);

/// How long connections may take to close after the grace.
const POOL_CLOSE: Duration = Duration::from_secs(1);

/// Why the service does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Postgres.
    #[error("database.url: {0}")]
    Store(#[from] StoreError),
    /// The signing key.
    #[error("auth.signing_key: {0}")]
    Key(#[from] KeyError),
    /// An issuer of people's tokens.
    #[error("auth.issuers: {issuer}: {problem}")]
    Issuer {
        /// Which.
        issuer: String,
        /// What is wrong.
        problem: String,
    },
    /// The port.
    #[error("server.listen: {address}: {fault}")]
    Listen {
        /// Where it should listen.
        address: SocketAddr,
        /// What the system says.
        fault: std::io::Error,
    },
    /// The log store.
    #[error("log.store_url: {0}")]
    LogStore(#[from] LogStoreError),
    /// The artifact store.
    #[error("artifacts.store_url: {0}")]
    Artifacts(#[from] ArtifactStoreError),
    /// The stream.
    #[error("log.stream_url: {0}")]
    Stream(#[from] StreamError),
}

impl From<IssuerConfigError> for StartError {
    fn from(fault: IssuerConfigError) -> Self {
        Self::Issuer { issuer: fault.issuer, problem: fault.problem }
    }
}

/// How to reach Postgres, by the settings.
pub fn store_options(settings: &Settings) -> StoreOptions {
    let database = &settings.database;
    StoreOptions {
        url: database.url.expose().to_owned(),
        max_connections: database.max_connections,
        acquire_timeout: Duration::from_secs(database.acquire_timeout_seconds),
        statement_timeout: Duration::from_secs(database.statement_timeout_seconds),
        search_timeout: Duration::from_millis(database.search_timeout_ms),
        transaction_pooler: database.transaction_pooler,
        session_timeout: Duration::from_secs(settings.sessions.timeout_seconds),
    }
}

/// The server's keys, by the settings.
pub fn key_ring(settings: &Settings) -> Result<KeyRing, KeyError> {
    match &settings.auth.signing_key {
        Some(pem) => {
            let retired: Vec<String> = settings.auth.retired_keys.iter().map(|key| key.expose().to_owned()).collect();
            KeyRing::from_pem(pem.expose(), &retired)
        }
        None => KeyRing::open(&key_folder(settings)),
    }
}

/// The folder of the signing key, when the settings do not give one.
pub fn key_folder(settings: &Settings) -> PathBuf {
    settings.auth.data_folder.join(KEYS)
}

fn person_issuer(settings: &IssuerSettings) -> PersonIssuerConfig {
    PersonIssuerConfig {
        issuer: settings.issuer.clone(),
        jwks_url: settings.jwks_url.as_ref().map(|url| url.expose().to_owned()),
        key_file: settings.key_file.clone(),
        audience: settings.audience.clone(),
        algorithms: settings.algorithms.clone(),
        subject_claim: settings.subject_claim.clone(),
        roles_claim: settings.roles_claim.clone(),
        roles_map: settings.roles_map.clone(),
        channel_claim: settings.channel_claim.clone(),
        trust_unverified_email: settings.trust_unverified_email,
        allow_http_jwks: settings.allow_http_jwks,
    }
}

/// A service that is put together and not yet serving.
pub struct Mandate {
    settings: Settings,
    store: Store,
    log: Log,
    inbox: Option<Inbox>,
    clock: Clock,
    service: Arc<Service>,
    directory: Arc<CachedDirectory>,
    app: App,
}

impl Mandate {
    /// Puts the service together. Applies the migrations first, if the settings say so.
    pub async fn build(settings: Settings, clock: Clock) -> Result<Self, StartError> {
        let store = Store::connect(&store_options(&settings))?;
        if settings.database.migrate_at_start {
            store.migrate().await?;
        }
        let ttl = Duration::from_secs(settings.auth.directory_cache_seconds);
        let directory = Arc::new(CachedDirectory::new(Arc::new(store.clone()), ttl));
        let log = Log::open(&settings)?;
        let mut service = Service::new(
            store.clone(),
            Arc::<CachedDirectory>::clone(&directory) as Arc<dyn Directory>,
            Arc::clone(&log.store),
            clock.clone(),
            ServiceSettings {
                heartbeat_interval: Duration::from_secs(settings.sessions.heartbeat_interval_seconds),
                request_ttl: Duration::from_secs(settings.requests.ttl_seconds),
                waiting_reads_max: settings.waiting.reads_max,
            },
        );
        let artifacts = artifacts::open(&settings.artifacts)?;
        let spill_bytes = artifacts.as_ref().map(|artifacts| usize::try_from(artifacts.size_max).unwrap_or(usize::MAX));
        if let Some(artifacts) = artifacts {
            service = service.keeping(artifacts);
        }
        let mut inbox = None;
        if does(&settings, Role::Publisher) {
            let limits = OutboxLimits { rows: settings.log.queue_rows, bytes: settings.log.queue_bytes };
            let (outbox, taken_from) = outbox(limits, service.counters().log.clone());
            service = service.publishing(outbox);
            inbox = Some(taken_from);
        }
        let service = Arc::new(service);
        let verifier = verifier(&settings)?;
        verifier.people().preload(clock.now()).await;
        let app = App::new(
            Arc::clone(&service),
            Arc::<CachedDirectory>::clone(&directory) as Arc<dyn Directory>,
            verifier,
            HttpSettings {
                body_limit_bytes: settings.server.body_limit_bytes,
                request_timeout: Duration::from_secs(settings.server.request_timeout_seconds),
                public_base: settings.server.public_base().map(str::to_owned),
                cors_origins: settings.server.cors_origins.clone(),
                token_rate_per_minute: settings.auth.token_rate_per_minute,
                batch: BatchLimits {
                    events: settings.limits.batch_events_max,
                    payload_bytes: settings.limits.payload_bytes_max,
                    spill_bytes,
                },
                page_size_max: settings.limits.page_size_max,
                events_page_max: settings.limits.events_page_max,
                comment_interval: Duration::from_millis(settings.waiting.comment_ms),
                upload_timeout: Duration::from_secs(settings.artifacts.upload_timeout_seconds),
            },
        );
        Ok(Self { settings, store, log, inbox, clock, service, directory, app })
    }

    /// The use cases.
    pub fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// Who is who.
    pub fn directory(&self) -> &Arc<CachedDirectory> {
        &self.directory
    }

    /// The HTTP layer.
    pub fn http(&self) -> &App {
        &self.app
    }

    /// Ends without having served.
    pub async fn close(self) {
        self.log.store.close().await;
        self.store.close().await;
    }

    /// Listens where the settings say; port 0 takes a free one.
    pub async fn listen(&self) -> Result<TcpListener, StartError> {
        let address = self.settings.server.listen;
        TcpListener::bind(address).await.map_err(|fault| StartError::Listen { address, fault })
    }

    /// The sweep, to be run by hand.
    pub fn sweep(&self) -> Arc<Sweep> {
        Arc::new(self.new_sweep())
    }

    fn new_sweep(&self) -> Sweep {
        let archive = &self.settings.archive;
        Sweep::new(
            self.store.clone(),
            Arc::clone(&self.log.store),
            Arc::clone(&self.log.stream),
            self.clock.clone(),
            SweepSettings {
                grace: Duration::from_secs(archive.grace_seconds),
                lease: Duration::from_secs(archive.lease_seconds),
                batch: archive.sweep_batch,
                patience: Duration::from_secs(archive.patience_seconds),
                quiet: Duration::from_secs(archive.quiet_seconds),
            },
            self.service.counters().log.clone(),
        )
    }

    /// The stream and the log store.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Serves and works, as its roles say, until the shutdown is over: admission stops, what is in flight drains, what
    /// was committed is handed over, the pool closes.
    pub async fn run(self, listener: TcpListener, shutdown: Shutdown) {
        let expiry = Arc::new(Expiry::new(Arc::clone(&self.service), self.settings.workers.expiry_batch));
        if does(&self.settings, Role::Expiry) {
            let tick = Duration::from_millis(self.settings.workers.expiry_interval_ms);
            shutdown.tasks().spawn(workers::run(expiry, tick, shutdown.soft().clone()));
            let grace = Duration::from_secs(self.settings.artifacts.grace_seconds);
            let remover = Arc::new(ArtifactRemover::new(Arc::clone(&self.service), grace));
            let tick = Duration::from_secs(self.settings.artifacts.sweep_interval_seconds);
            shutdown.tasks().spawn(workers::run(remover, tick, shutdown.soft().clone()));
        }
        if does(&self.settings, Role::Api) {
            let tick = Duration::from_millis(self.settings.waiting.tick_ms);
            let lookout = Arc::new(Lookout::new(Arc::clone(&self.service)));
            shutdown.tasks().spawn(workers::run(lookout, tick, shutdown.soft().clone()));
            let (service, stop) = (Arc::clone(&self.service), shutdown.soft().clone());
            shutdown.tasks().spawn(async move {
                stop.cancelled().await;
                // Nobody who waits holds up the end.
                service.waiting_reads().end();
            });
        }
        if does(&self.settings, Role::Sweep) {
            let tick = Duration::from_secs(self.settings.archive.sweep_interval_seconds);
            let sweeper = Arc::new(Sweeper::new(Arc::new(self.new_sweep().until(shutdown.soft().clone()))));
            shutdown.tasks().spawn(workers::run(sweeper, tick, shutdown.soft().clone()));
        }
        if self.settings.database.migrate_at_start {
            shutdown.tasks().spawn(prepare_log(self.log.clone(), shutdown.soft().clone()));
        }
        if let Some(sink) = self.log.sink().filter(|_| does(&self.settings, Role::Sink)) {
            let (counters, clock) = (self.service.counters().log.clone(), self.clock.clone());
            shutdown.tasks().spawn(run_sink(sink, counters, clock, shutdown.soft().clone()));
        }
        let limits = ServerSettings {
            header_timeout: Duration::from_secs(self.settings.server.header_timeout_seconds),
            idle_timeout: Duration::from_secs(self.settings.server.idle_timeout_seconds),
            max_connections: self.settings.server.max_connections,
        };
        // No call commits any more once it is cancelled; what a worker's last step commits is left to the sweep.
        let quiet = CancellationToken::new();
        let (app, server, all_committed) = (self.app.clone(), shutdown.clone(), quiet.clone());
        let whole = does(&self.settings, Role::Api);
        shutdown.tasks().spawn(async move {
            let router = if whole { router(app.clone()) } else { probes(app.clone()) };
            serve(listener, router, limits, server.clone()).await;
            // Calls whose client went away finish too.
            tokio::select! {
                () = server.hard().cancelled() => {}
                () = app.drained() => {}
            }
            all_committed.cancel();
        });
        if self.inbox.is_none() && [Role::Api, Role::Expiry].iter().any(|role| does(&self.settings, *role)) {
            tracing::warn!("this process commits and does not publish: the sweep sends what it commits, later");
        }
        if let Some(inbox) = self.inbox {
            let counters = self.service.counters().log.clone();
            let publisher = Publisher::new(inbox, Arc::clone(&self.log.stream), counters, self.clock.clone());
            shutdown.tasks().spawn(publisher.run(quiet));
        }
        let ended = shutdown.finish().await;
        // What holds a connection now is held up by the database itself; it must not hold up the end too.
        let close = async {
            self.log.store.close().await;
            self.store.close().await;
        };
        let closed = tokio::time::timeout(POOL_CLOSE, close).await.is_ok();
        tracing::info!(?ended, connections_closed = closed, "ended");
    }
}

/// Brings the log's tables and topics up to date, trying until both are there or `stop`: the service does not wait for
/// them, nor does its end. What was begun is finished by the next start.
async fn prepare_log(log: Log, stop: CancellationToken) {
    let preparing = async {
        while let Err(fault) = log.migrate().await {
            tracing::warn!(%fault, "the permanent log is not prepared yet; trying again");
            tokio::time::sleep(PREPARE_AGAIN).await;
        }
    };
    stop.run_until_cancelled(preparing).await;
}

/// Whether this process has the role.
fn does(settings: &Settings, role: Role) -> bool {
    settings.workers.roles.contains(&role)
}

fn verifier(settings: &Settings) -> Result<Verifier, StartError> {
    let ring = Arc::new(key_ring(settings)?);
    let issuer = TokenIssuer::new(
        ring,
        settings.auth.own_issuer(settings.server.public_base()),
        settings.auth.audience.clone(),
        Duration::from_secs(settings.auth.token_ttl_seconds),
    );
    let people = PersonIssuers::new(
        settings.auth.issuers.iter().map(person_issuer).collect(),
        Duration::from_secs(settings.auth.jwks_cooldown_seconds),
        FetchSettings::default(),
    )?;
    Ok(Verifier::new(issuer, people)?)
}
