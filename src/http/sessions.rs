//! Sessions: opened, kept alive, closed.

use axum::extract::State;
use serde::Deserialize;
use utoipa::ToSchema;

use super::App;
use super::auth::Authenticated;
use super::body::{RawBody, path_id};
use super::respond::{Answer, created, ok};
use super::views::{SessionAnswer, SessionView, TaskState};
use crate::domain::command::NewSession;
use crate::domain::limits::{NAME_MAX, REASON_MAX};
use crate::domain::refusal::Refusal;
use crate::domain::session::SERVER_CLOSE_REASONS;

/// A session to open.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"session_key": "run-1a2b3c4d", "harness_instance": "harness-7", "takeover": false}))]
#[allow(dead_code, reason = "describes the body; it is read field by field, so that one answer names every fault")]
pub struct OpenSession {
    /// At most 200 characters, unique per task.
    session_key: String,
    /// The harness process.
    harness_instance: Option<String>,
    /// Supersedes the sessions that are open.
    takeover: Option<bool>,
}

/// Why a session ends.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"reason": "waiting_for_reply"}))]
#[allow(dead_code, reason = "describes the body; it is read field by field, so that one answer names every fault")]
pub struct CloseSession {
    /// At most 1,000 characters; none of the server's own reasons.
    reason: String,
}

/// Open a session.
///
/// The key of an open session answers that one; the key of a closed session is refused.
#[utoipa::path(post, path = "/organizations/{org}/agent-tasks/{task}/sessions", operation_id = "open_session",
    tag = "sessions", params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The task's short id")),
    request_body = OpenSession, responses((status = 201, description = "The session was opened", body = SessionAnswer),
        (status = 200, description = "The key opened it before", body = SessionAnswer)))]
pub async fn open(State(app): State<App>, auth: Authenticated, body: RawBody) -> Answer {
    let located = app.service().locate(&auth.caller, auth.param("task")).await?;
    auth.caller.harness_of(&located.task)?;
    let body = body.required(&["harness_instance"])?;
    let mut fields = body.fields();
    let session = NewSession {
        session_key: fields.key("session_key"),
        harness_instance: fields.text_opt("harness_instance", 1..=NAME_MAX),
        takeover: fields.bool_opt("takeover").unwrap_or_default(),
    };
    let session = fields.finish(session);
    let answered = app.service().open_session(&body.call(&auth.caller), &located, session).await?;
    let (session, task) = &answered.value;
    let view = SessionAnswer { session: SessionView::from(session), task: app.task_state(task) };
    created(&view, answered.replay)
}

/// Send a sign of life.
///
/// Answers what the harness needs at every turn: the control, the length of the log and the remaining budget.
#[utoipa::path(post, path = "/organizations/{org}/agent-tasks/{task}/sessions/{session}/heartbeat",
    operation_id = "heartbeat", tag = "sessions",
    params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The task's short id"),
        ("session" = uuid::Uuid, Path, description = "The session")),
    responses((status = 200, description = "The task's state", body = TaskState)))]
pub async fn heartbeat(State(app): State<App>, auth: Authenticated, body: RawBody) -> Answer {
    let located = app.service().locate(&auth.caller, auth.param("task")).await?;
    let session = path_id(auth.param("session"), Refusal::SessionNotFound)?;
    if let Err(refusal) = auth.caller.harness_of(&located.task) {
        // Not found ranks before the permission; the harness itself is spared the look.
        app.service().require_session(&located, session).await?;
        return Err(refusal.into());
    }
    body.optional(&[])?;
    let standing = app.service().heartbeat(&located, session).await?;
    ok(&app.task_state(standing))
}

/// Close a session.
///
/// The last session of a cancelled task closes the task. Closing a closed session changes nothing.
#[utoipa::path(post, path = "/organizations/{org}/agent-tasks/{task}/sessions/{session}/close",
    operation_id = "close_session", tag = "sessions",
    params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The task's short id"),
        ("session" = uuid::Uuid, Path, description = "The session")),
    request_body = CloseSession, responses((status = 200, description = "The task's state", body = TaskState)))]
pub async fn close(State(app): State<App>, auth: Authenticated, body: RawBody) -> Answer {
    let located = app.service().locate(&auth.caller, auth.param("task")).await?;
    let session = path_id(auth.param("session"), Refusal::SessionNotFound)?;
    app.service().require_session(&located, session).await?;
    auth.caller.harness_of(&located.task)?;
    let body = body.required(&["reason"])?;
    let mut fields = body.fields();
    let reason = fields.text("reason", 1..=REASON_MAX);
    if SERVER_CLOSE_REASONS.contains(&reason.as_str()) {
        fields.fault("reason", "is a reason that only the server gives");
    }
    let reason = fields.finish(reason);
    let task = app.service().close_session(&body.call(&auth.caller), &located, session, reason).await?;
    ok(&app.task_state(&task))
}
