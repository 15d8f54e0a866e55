//! Answers: JSON with a status, and the headers of repeats and pages.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, LINK};
use http::{HeaderValue, StatusCode};
use serde::Serialize;

use super::App;
use super::problem::Problem;
use super::views::json_text;
use crate::service::Replay;

/// What every handler answers.
pub type Answer = Result<Response, Problem>;

/// `view` as JSON.
pub fn json<T: Serialize>(status: StatusCode, view: &T) -> Answer {
    let mut response = Body::from(json_text(view)?).into_response();
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// `view` as JSON: 200.
pub fn ok<T: Serialize>(view: &T) -> Answer {
    json(StatusCode::OK, view)
}

/// `view` as JSON: 201, or 200 with the headers of a repeat.
pub fn created<T: Serialize>(view: &T, replay: Option<Replay>) -> Answer {
    let Some(replay) = replay else { return json(StatusCode::CREATED, view) };
    Ok(repeated(ok(view)?, replay))
}

/// Marks an answer as the repeat of an earlier one.
pub fn repeated(mut response: Response, replay: Replay) -> Response {
    let headers = response.headers_mut();
    headers.insert("idempotency-replayed", HeaderValue::from_static("true"));
    if !replay.body_matches {
        headers.insert("idempotency-body-match", HeaderValue::from_static("false"));
    }
    response
}

/// An array, with a link to the next page when there is one; `next` is its path and query.
pub fn page<T: Serialize>(app: &App, views: &[T], next: Option<&str>) -> Answer {
    Ok(linked(app, ok(&views)?, next))
}

/// `response` with a link to the next page when there is one.
pub fn linked(app: &App, mut response: Response, next: Option<&str>) -> Response {
    if let Some(next) = next {
        let base = app.settings().public_base.as_deref().unwrap_or_default();
        let link = format!("<{base}{next}>; rel=\"next\"");
        if let Ok(link) = HeaderValue::from_str(&link) {
            response.headers_mut().insert(LINK, link);
        }
    }
    response
}
