//! What operators and load balancers ask.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde::Serialize;
use tokio::time::timeout;
use utoipa::ToSchema;

use super::App;
use super::metrics::Scraped;
use super::problem::Problem;
use super::respond::{Answer, ok};

/// The state of the service.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"status": "ok", "version": "0.1.0"}))]
pub struct Health {
    /// `ok`.
    pub status: &'static str,
    /// The version that answers.
    pub version: &'static str,
}

/// How long Postgres may take to answer a probe. Whoever asks tells a hanging database by it, and gives up sooner than
/// callers do.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

const HEALTHY: Health = Health { status: "ok", version: env!("CARGO_PKG_VERSION") };

/// Whether the process lives.
#[utoipa::path(get, path = "/healthz", operation_id = "healthz", tag = "service",
    responses((status = 200, description = "It lives", body = Health)))]
pub async fn healthz() -> Answer {
    ok(&HEALTHY)
}

/// Whether the process can serve: Postgres answers, within two seconds, and is migrated.
#[utoipa::path(get, path = "/readyz", operation_id = "readyz", tag = "service",
    responses((status = 200, description = "It serves", body = Health)))]
pub async fn readyz(State(app): State<App>) -> Answer {
    match timeout(PROBE_TIMEOUT, app.service().ready()).await {
        Ok(Ok(())) => ok(&HEALTHY),
        Ok(Err(fault)) => Err(Problem::unavailable(format!("{fault:?}"))),
        Err(_) => Err(Problem::unavailable("Postgres does not answer".to_owned())),
    }
}

/// Metrics in the text format of `OpenMetrics`. What Postgres does not tell within two seconds keeps its last value.
#[utoipa::path(get, path = "/metrics", operation_id = "metrics", tag = "service",
    responses((status = 200, description = "Metrics", body = String, content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8")))]
pub async fn metrics(State(app): State<App>) -> Response {
    let (open_sessions, backlog) = tokio::join!(
        timeout(PROBE_TIMEOUT, app.service().open_sessions()),
        timeout(PROBE_TIMEOUT, app.service().log_backlog()),
    );
    let scraped = Scraped {
        open_sessions: open_sessions.ok().and_then(Result::ok),
        queued: app.service().queued(),
        waiting: app.service().waiting_reads().counts().reads,
        backlog: backlog.ok().and_then(Result::ok),
    };
    let text = app.metrics().encode(scraped);
    ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text).into_response()
}

/// No such route.
pub async fn no_route() -> Problem {
    Problem::no_route()
}

/// The route exists, the method does not. The router adds `Allow`.
pub async fn no_method() -> Problem {
    method_problem()
}

pub(super) fn method_problem() -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        "the route does not know this method; see the Allow header",
    )
}
