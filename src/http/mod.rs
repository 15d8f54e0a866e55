//! HTTP: thin. Extract, call the service, answer.
//!
//! To add an endpoint: 1. write its handler with its `utoipa::path` in the file of its resource; 2. add it to
//! [`routes`]; 3. run `cargo run -- openapi > openapi/mandate.json`; 4. add it to the list of roles in `tests/api/`.

mod artifacts;
mod auth;
mod body;
mod children;
mod conditional;
mod connection;
mod control;
mod cursor;
mod directory;
mod docs;
mod events;
mod export;
mod feed;
mod feed_stream;
mod layers;
mod meta;
mod metrics;
mod openapi;
mod operations;
mod outcome;
mod patience;
pub mod problem;
mod query;
mod relations;
mod requests;
mod respond;
pub mod server;
mod sessions;
mod stream;
mod tasks;
mod token;
mod usage;
mod views;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio_util::task::TaskTracker;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::verifier::Verifier;
use crate::directory::Directory;
use crate::domain::harness_event::BatchLimits;
use crate::domain::task::Standing;
use crate::service::Service;
pub use metrics::Metrics;
pub use openapi::document;

/// Settings of the HTTP layer.
#[derive(Debug, Clone)]
pub struct HttpSettings {
    /// The largest body, in bytes.
    pub body_limit_bytes: usize,
    /// How long one request may take.
    pub request_timeout: Duration,
    /// The base of links; absent: links are relative.
    pub public_base: Option<String>,
    /// Origins of web pages that may call; `*` allows every one.
    pub cors_origins: Vec<String>,
    /// Tokens that one client may ask for in a minute.
    pub token_rate_per_minute: u32,
    /// What a batch may hold.
    pub batch: BatchLimits,
    /// The most entries of a page of a list.
    pub page_size_max: u32,
    /// The most events of a page of a log.
    pub events_page_max: u32,
    /// How often a stream writes a comment.
    pub comment_interval: Duration,
    /// How long an artifact may take to come.
    pub upload_timeout: Duration,
}

/// What handlers work with.
#[derive(Clone)]
pub struct App(Arc<Parts>);

struct Parts {
    service: Arc<Service>,
    directory: Arc<dyn Directory>,
    verifier: Verifier,
    settings: HttpSettings,
    metrics: Metrics,
    token_limit: token::Limit,
    mutations: TaskTracker,
}

impl App {
    /// Puts the HTTP layer together. `directory` may remember; the service has its own.
    pub fn new(
        service: Arc<Service>,
        directory: Arc<dyn Directory>,
        verifier: Verifier,
        settings: HttpSettings,
    ) -> Self {
        let metrics = Metrics::new(service.counters());
        let token_limit = token::limit(settings.token_rate_per_minute);
        let mutations = TaskTracker::new();
        Self(Arc::new(Parts { service, directory, verifier, settings, metrics, token_limit, mutations }))
    }

    /// The use cases.
    pub fn service(&self) -> &Arc<Service> {
        &self.0.service
    }

    /// Who is who.
    pub fn directory(&self) -> &dyn Directory {
        self.0.directory.as_ref()
    }

    /// Who verifies tokens.
    pub fn verifier(&self) -> &Verifier {
        &self.0.verifier
    }

    /// The settings.
    pub fn settings(&self) -> &HttpSettings {
        &self.0.settings
    }

    /// What is counted.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    fn token_limit(&self) -> &token::Limit {
        &self.0.token_limit
    }

    /// Waits until every mutating call has ended, also those whose client went away.
    pub async fn drained(&self) {
        self.0.mutations.close();
        self.0.mutations.wait().await;
    }

    fn task_state(&self, task: impl Into<Standing>) -> views::TaskState {
        views::TaskState::new(task.into(), self.0.service.settings().heartbeat_interval)
    }
}

/// Every route, with its documentation.
fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::base())
        .routes(routes!(tasks::create, tasks::list))
        .routes(routes!(tasks::waiting))
        .routes(routes!(tasks::read))
        .routes(routes!(events::read, events::append))
        .routes(routes!(operations::proof))
        .routes(routes!(feed::follow))
        .routes(routes!(tasks::sessions, sessions::open))
        .routes(routes!(sessions::heartbeat))
        .routes(routes!(sessions::close))
        .routes(routes!(tasks::usage, usage::report))
        .routes(routes!(tasks::requests, requests::open))
        .routes(routes!(requests::withdraw))
        .routes(routes!(requests::resolve))
        .routes(routes!(requests::inbox))
        .routes(routes!(control::pause))
        .routes(routes!(control::resume))
        .routes(routes!(control::cancel))
        .routes(routes!(control::reassign))
        .routes(routes!(control::reply))
        .routes(routes!(outcome::set))
        .routes(routes!(children::delegate))
        .routes(routes!(children::tree))
        .routes(routes!(relations::relations))
        .routes(routes!(relations::require, relations::release))
        .routes(routes!(relations::projects))
        .routes(routes!(relations::associate, relations::dissociate))
        .routes(routes!(operations::agent_usage))
        .routes(routes!(operations::operations_log))
        .routes(routes!(artifacts::send, artifacts::read))
        .merge(directory::routes())
        .routes(routes!(token::issue))
        .routes(routes!(token::jwks))
        .routes(routes!(meta::healthz))
        .routes(routes!(meta::readyz))
        .routes(routes!(meta::metrics))
}

/// The whole router, layers and documentation included.
pub fn router(app: App) -> Router {
    let (router, _) = routes().split_for_parts();
    let router = router.merge(docs::routes()).fallback(meta::no_route).method_not_allowed_fallback(meta::no_method);
    layers::wrap(router, app.clone()).with_state(app)
}

/// The router of a process that does not answer the API: whether it lives, whether it is ready, and its metrics.
pub fn probes(app: App) -> Router {
    let probes = OpenApiRouter::new()
        .routes(routes!(meta::healthz))
        .routes(routes!(meta::readyz))
        .routes(routes!(meta::metrics));
    let (router, _) = probes.split_for_parts();
    let router = router.fallback(meta::no_route).method_not_allowed_fallback(meta::no_method);
    layers::wrap(router, app.clone()).with_state(app)
}
