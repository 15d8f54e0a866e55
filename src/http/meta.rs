//! What operators and load balancers ask.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde::Serialize;
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

const HEALTHY: Health = Health { status: "ok", version: env!("CARGO_PKG_VERSION") };

/// Whether the process lives.
#[utoipa::path(get, path = "/healthz", operation_id = "healthz", tag = "service",
    responses((status = 200, description = "It lives", body = Health)))]
pub async fn healthz() -> Answer {
    ok(&HEALTHY)
}

/// Whether the process can serve: Postgres answers and is migrated.
#[utoipa::path(get, path = "/readyz", operation_id = "readyz", tag = "service",
    responses((status = 200, description = "It serves", body = Health)))]
pub async fn readyz(State(app): State<App>) -> Answer {
    match app.service().ready().await {
        Ok(()) => ok(&HEALTHY),
        Err(fault) => Err(Problem::unavailable(format!("{fault:?}"))),
    }
}

/// Metrics in the text format of `OpenMetrics`.
#[utoipa::path(get, path = "/metrics", operation_id = "metrics", tag = "service",
    responses((status = 200, description = "Metrics", body = String, content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8")))]
pub async fn metrics(State(app): State<App>) -> Response {
    let scraped = Scraped {
        open_sessions: app.service().open_sessions().await.ok(),
        queued: app.service().queued(),
        waiting: app.service().waiting_reads().counts().reads,
        backlog: app.service().log_backlog().await.ok(),
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
