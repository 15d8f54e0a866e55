//! A task's log: read and appended to.

use axum::extract::State;
use axum::response::Response;
use http::header::VARY;
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::auth::Authenticated;
use super::body::RawBody;
use super::export;
use super::query::Query;
use super::respond::{Answer, json, linked, page};
use super::views::{AppendedView, EventView};
use crate::domain::harness_event::read_batch;
use crate::service::{Clock, EventPage};

/// Events of a page when the query does not say.
pub const EVENTS_DEFAULT: u32 = 100;

/// One event of a harness.
#[derive(Debug, Deserialize, ToSchema)]
#[allow(dead_code, reason = "describes the body; it is read field by field, so that one answer names every fault")]
pub struct NewEvent {
    /// The harness's id for it: the same id with the same content again is skipped.
    event_id: Option<Uuid>,
    /// `turn`, `tool.called`, `phase.changed`, `todos.updated` or `check.reported`.
    #[serde(rename = "type")]
    event_type: String,
    /// What `openapi/events/TYPE.v1.json` says, and more: at most 64 KiB of JSON, kept verbatim but for redactions.
    payload: Value,
    /// 1.
    schema_version: Option<i32>,
    /// `agent` (default) or `subagent`.
    actor_kind: Option<String>,
    /// Default: the task's agent.
    actor_id: Option<String>,
    /// When it happened, with an offset: between 1970 and five minutes from now. Default: now.
    #[schema(format = DateTime)]
    at: Option<String>,
}

/// A batch of events: all are written, or none.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"session_id": "01890a5d-ac96-774b-bcce-b302099a8057", "events": [
    {"event_id": "9b2f3c1e-8f3a-4a55-9f0e-2c8a6d7c1b11", "type": "turn", "payload": {"body": "I look at the tests."}},
    {"type": "tool.called", "payload": {"tool": "shell", "mutating": false, "arguments": {"command": "ls"},
        "result_summary": "12 files", "duration_ms": 12}}
]}))]
#[allow(dead_code, reason = "describes the body; it is read field by field, so that one answer names every fault")]
pub struct AppendEvents {
    /// The session that appends; required once a session was taken over.
    session_id: Option<Uuid>,
    /// 1 to 100 events.
    events: Vec<NewEvent>,
}

/// Read a task's log.
///
/// Ascends by seq. `before_seq` alone gives the newest below it, still ascending.
#[utoipa::path(get, path = "/organizations/{org}/agent-tasks/{task}/events", operation_id = "read_events", tag = "events",
    params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The task's short id"),
        ("after_seq" = Option<i64>, Query, description = "Strictly after this seq; default 0"),
        ("before_seq" = Option<i64>, Query, description = "Strictly before this seq"),
        ("type" = Option<Vec<String>>, Query, description = "Repeatable: only of these types"),
        ("limit" = Option<u32>, Query, description = "1 to 1000, default 100")),
    responses((status = 200, description = "Events; the Link header leads on. As application/x-ndjson one a line, each \
        with its task_id, and to the end of the log unless there is a limit",
        content((Vec<EventView> = "application/json"), (String = "application/x-ndjson")))))]
pub async fn read(State(app): State<App>, auth: Authenticated, headers: HeaderMap, query: Query) -> Answer {
    let located = app.service().read(&auth.caller, auth.param("task")).await?;
    let mut parameters = query.parameters();
    let wanted = EventPage {
        after_seq: parameters.number("after_seq"),
        before_seq: parameters.number("before_seq"),
        types: parameters.all("type").into_iter().map(str::to_owned).collect(),
        limit: parameters.limit(EVENTS_DEFAULT, app.settings().events_page_max),
    };
    let bounded = parameters.text("limit").is_some();
    let mut wanted = parameters.finish(wanted)?;
    if export::is_wanted(&headers) {
        if !bounded {
            wanted.limit = app.settings().events_page_max;
        }
        let backwards = wanted.is_backwards();
        let (response, next) = export::lines(app.clone(), located, wanted, bounded).await?;
        let next = next.map(|seq| query.with(&[(if backwards { "before_seq" } else { "after_seq" }, seq.to_string())]));
        return Ok(varying(linked(&app, response, next.as_deref())));
    }
    let backwards = wanted.is_backwards();
    let (events, more) = app.service().events(&located, &wanted).await?;
    let edge = if backwards { events.first() } else { events.last() };
    let name = if backwards { "before_seq" } else { "after_seq" };
    let next = edge.filter(|_| more).map(|edge| query.with(&[(name, edge.seq.to_string())]));
    Ok(varying(page(&app, &events.iter().map(EventView::from).collect::<Vec<_>>(), next.as_deref())?))
}

/// Tells caches that the answer depends on what was accepted.
fn varying(mut response: Response) -> Response {
    response.headers_mut().append(VARY, HeaderValue::from_static("accept"));
    response
}

/// Append events.
///
/// All or nothing. An event id that the task has with the same content is skipped and listed in `duplicates`.
#[utoipa::path(post, path = "/organizations/{org}/agent-tasks/{task}/events", operation_id = "append_events",
    tag = "events", params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The task's short id")),
    request_body = AppendEvents, responses((status = 201, description = "Events were written", body = AppendedView),
        (status = 200, description = "All were there already", body = AppendedView)))]
pub async fn append(State(app): State<App>, auth: Authenticated, body: RawBody) -> Answer {
    let located = app.service().locate(&auth.caller, auth.param("task")).await?;
    auth.caller.harness_of(&located.task)?;
    let mut body = body.batch()?;
    let (session, call) = (body.session(), body.call(&auth.caller));
    let now = app.service().clock().now();
    let faults = std::mem::take(&mut body.faults);
    let batch = read_batch(&mut body.value, &faults, app.settings().batch, now, &mut Clock::new_id);
    let appended = app.service().append(&call, &located, session, batch).await?;
    let status = if appended.written.is_empty() { StatusCode::OK } else { StatusCode::CREATED };
    let view = AppendedView {
        written: appended.written.iter().map(EventView::from).collect(),
        duplicates: appended.duplicates.iter().map(|id| id.0).collect(),
    };
    json(status, &view)
}
