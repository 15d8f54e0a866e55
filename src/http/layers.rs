//! What surrounds every handler: the request's id and trace, its time limit, panics, problems, counting, CORS, and
//! the detachment of mutating calls from their client.

use std::time::Instant;

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};
use tracing::Instrument as _;

use super::App;
use super::problem::{PROBLEM_JSON, Problem};
use super::{artifacts, waiting};
use crate::service::{Clock, trace};

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The longest request id that is taken from a client.
const REQUEST_ID_MAX: usize = 128;

/// Wraps `router`: the last layer here is the outermost.
pub fn wrap(router: Router<App>, app: App) -> Router<App> {
    let cors = cors(&app);
    router
        .layer(middleware::from_fn_with_state(app.clone(), detach))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn_with_state(app.clone(), limit_time))
        .layer(cors)
        .layer(middleware::from_fn_with_state(app, observe))
}

fn cors(app: &App) -> CorsLayer {
    let origins = &app.settings().cors_origins;
    let allowed = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()))
    };
    // Named one by one, because `*` does not cover Authorization.
    let headers = AllowHeaders::mirror_request();
    CorsLayer::new().allow_origin(allowed).allow_methods(Any).allow_headers(headers).expose_headers(Any)
}

/// A mutating call goes on when its client hangs up: a transaction that is dropped half-way would poison its
/// connection, and the client could not know what became of the call.
async fn detach(State(app): State<App>, request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) {
        return next.run(request).await;
    }
    let call = app.0.mutations.spawn(trace::within(trace::current(), next.run(request)).in_current_span());
    match call.await {
        Ok(response) => response,
        Err(fault) => Problem::internal(format!("the call ended without an answer: {fault}")).into_response(),
    }
}

#[allow(clippy::needless_pass_by_value, reason = "the signature of tower-http")]
fn panicked(panic: Box<dyn std::any::Any + Send + 'static>) -> Response {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    Problem::internal(format!("panic: {text}")).into_response()
}

async fn limit_time(State(app): State<App>, request: Request, next: Next) -> Response {
    let longer = waiting::allowance(&request) + artifacts::allowance(&app, &request);
    let limit = app.settings().request_timeout + longer;
    match tokio::time::timeout(limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Problem::unavailable("the request took too long").into_response(),
    }
}

/// The outermost layer: names the request, counts it, and writes the bodies of problems.
async fn observe(State(app): State<App>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let id = request_id(&request);
    let traceparent = request.headers().get("traceparent").and_then(|value| value.to_str().ok()).and_then(trace::parse);
    let method = known(request.method());
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let span = tracing::info_span!("request", method, route = route.as_deref(), request_id = %id,
        traceparent = traceparent.as_deref());
    let mut response = trace::within(traceparent, next.run(request)).instrument(span.clone()).await;
    let status = response.status();
    if status.is_client_error() || status.is_server_error() {
        response = span.in_scope(|| finish_problem(&app, response, &id));
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID.clone(), id);
    }
    // Unknown paths share one label: a scanner must not fill the registry.
    let route = route.unwrap_or_else(|| "none".to_owned());
    app.metrics().answered(method, &route, response.status(), begun.elapsed());
    response
}

/// A method's name for metrics and the log. All that no route has share one: a client could make up any number of them,
/// each as long as a header may be.
fn known(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

/// The id of a request: the client's, or a fresh one.
fn request_id(request: &Request) -> String {
    let given = request.headers().get(&REQUEST_ID).and_then(|value| value.to_str().ok());
    let fits = |id: &&str| (1..=REQUEST_ID_MAX).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic());
    given.filter(fits).map_or_else(|| Clock::new_id().to_string(), str::to_owned)
}

/// Writes a problem's body, and makes a problem of every refusal that is none yet (but the token route's own).
fn finish_problem(app: &App, response: Response, id: &str) -> Response {
    let (mut parts, body) = response.into_parts();
    let problem = match parts.extensions.remove::<Problem>() {
        Some(problem) => problem,
        None if body.size_hint().exact() != Some(0) && is_json(&parts.headers) => {
            return Response::from_parts(parts, body);
        }
        None => from_status(parts.status),
    };
    app.metrics().refused(problem.code);
    if problem.status.is_server_error() {
        tracing::error!(code = problem.code, log = problem.log.as_deref(), "the request failed");
    } else {
        tracing::debug!(code = problem.code, log = problem.log.as_deref(), detail = problem.detail, "refused");
    }
    let text = problem.body(id).to_string();
    parts.headers.remove(CONTENT_LENGTH);
    parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    Response::from_parts(parts, Body::from(text))
}

fn is_json(headers: &http::HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(|value| value.contains("json"))
}

fn from_status(status: StatusCode) -> Problem {
    match status {
        StatusCode::NOT_FOUND => Problem::no_route(),
        StatusCode::METHOD_NOT_ALLOWED => super::meta::method_problem(),
        StatusCode::PAYLOAD_TOO_LARGE => Problem::new(status, "payload_too_large", "the request is too large"),
        status if status.is_server_error() => Problem::internal("an answer without a body"),
        status => Problem::new(status, "bad_request", "the request cannot be understood"),
    }
}
