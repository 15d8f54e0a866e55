//! A task's log: read and appended to.

use std::time::Duration;

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
use super::conditional::Tag;
use super::export;
use super::query::Query;
use super::respond::{Answer, json, linked, page};
use super::stream;
use super::views::{AppendedView, EventView};
use super::waiting::{self, Wait};
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
    /// What `openapi/events/TYPE.v1.json` says, and more, kept verbatim but for redactions. What is
    /// over 64 KiB of JSON goes to the artifact store, if there is one: the entry then keeps what its type requires, and
    /// `artifact` with digest, size, media type and preview.
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
///
/// With `wait` the answer is held until there is such an event or the time is up (then it is empty). As
/// `text/event-stream` the log is sent and then followed: `id` is the seq, `event` the type, `data` the event. The
/// stream ends when a closed task's log is sent whole, and when the token ends; `Last-Event-ID` goes on behind what was
/// seen.
#[utoipa::path(get, path = "/organizations/{org}/agent-tasks/{task}/events", operation_id = "read_events", tag = "events",
    params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The task's short id"),
        ("after_seq" = Option<i64>, Query, description = "Strictly after this seq; default 0"),
        ("before_seq" = Option<i64>, Query, description = "Strictly before this seq"),
        ("type" = Option<Vec<String>>, Query, description = "Repeatable: only of these types"),
        ("limit" = Option<u32>, Query, description = "1 to 1000, default 100"),
        ("wait" = Option<u32>, Query, minimum = 0, maximum = 55,
            description = "Hold the answer for up to so many seconds, until there is an event; not beside before_seq"),
        ("Prefer" = Option<String>, Header, description = "`wait=20` asks for the same, at most for 55 seconds"),
        ("If-None-Match" = Option<String>, Header, description = "The `ETag` of what the caller has; not beside wait"),
        ("Last-Event-ID" = Option<String>, Header,
            description = "Of a stream: strictly after this seq, whatever after_seq says")),
    responses((status = 200, description = "Events; the Link header leads on. As application/x-ndjson one a line, each \
        with its task_id, and to the end of the log unless there is a limit",
        content((Vec<EventView> = "application/json"), (String = "application/x-ndjson"),
            (String = "text/event-stream"))),
        (status = 304, description = "The caller has it already"),
        (status = 204, description = "A stream: the task is closed and everything was sent; do not come again")))]
pub async fn read(State(app): State<App>, auth: Authenticated, headers: HeaderMap, query: Query) -> Answer {
    // What is boxed here is gone while a read waits.
    let located = Box::pin(app.service().read(&auth.caller, auth.param("task"))).await?;
    let mut parameters = query.parameters();
    let wanted = EventPage {
        after_seq: parameters.number("after_seq"),
        before_seq: parameters.number("before_seq"),
        types: parameters.all("type").into_iter().map(str::to_owned).collect(),
        limit: parameters.limit(EVENTS_DEFAULT, app.settings().events_page_max),
    };
    let bounded = parameters.text("limit").is_some();
    let wait = waiting::asked(&query, &headers).unwrap_or_else(|detail| {
        parameters.fault("wait", detail);
        None
    });
    let streamed = stream::is_wanted(&headers);
    if wait.is_some_and(|wait| !wait.preferred) && (wanted.before_seq.is_some() || export::is_wanted(&headers)) {
        parameters.fault("wait", "goes with neither before_seq nor application/x-ndjson");
    }
    let last_event_id = if streamed { stream::last_event_id(&headers, &mut parameters) } else { None };
    if streamed && wanted.before_seq.is_some() {
        parameters.fault("before_seq", "a stream has no end that is known");
    }
    let mut wanted = parameters.finish(wanted)?;
    if streamed {
        wanted.after_seq = last_event_id.or(wanted.after_seq);
        return Box::pin(stream::follow(app, auth, located, wanted)).await;
    }
    if export::is_wanted(&headers) {
        if !bounded {
            wanted.limit = app.settings().events_page_max;
        }
        let backwards = wanted.is_backwards();
        let (response, next) = Box::pin(export::lines(app.clone(), located, wanted, bounded)).await?;
        let next = next.map(|seq| query.with(&[(if backwards { "before_seq" } else { "after_seq" }, seq.to_string())]));
        return Ok(varying(linked(&app, response, next.as_deref())));
    }
    let backwards = wanted.is_backwards();
    let wait = wait.filter(|_| wanted.before_seq.is_none());
    // Who waits wants an answer when there is one.
    let (events, more, tag) = if let Some(wait) = wait {
        let found = app.service().await_events(&located, &wanted, Duration::from_secs(wait.seconds)).await?;
        Box::pin(auth.still_reads(&app, &located)).await?;
        (found.0, found.1, None)
    } else {
        let read = Box::pin(app.service().look(&located, &wanted)).await?;
        (read.events, read.more, Some(Tag::of(read.head.last_seq)))
    };
    let edge = if backwards { events.first() } else { events.last() };
    let name = if backwards { "before_seq" } else { "after_seq" };
    let next = edge.filter(|_| more).map(|edge| query.with(&[(name, edge.seq.to_string())]));
    let view = || page(&app, &events.iter().map(EventView::from).collect::<Vec<_>>(), next.as_deref());
    let mut response = match tag {
        Some(tag) => tag.answer(&headers, view)?,
        None => view()?,
    };
    if let Some(Wait { seconds, preferred: true }) = wait
        && let Ok(applied) = HeaderValue::from_str(&format!("wait={seconds}"))
    {
        response.headers_mut().insert("preference-applied", applied);
    }
    Ok(varying(response))
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
