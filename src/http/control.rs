//! What people want of a task: pause, resume, cancel, reassign, reply.

use axum::extract::State;
use serde::Deserialize;
use utoipa::ToSchema;

use super::App;
use super::auth::Authenticated;
use super::body::{Body, RawBody};
use super::respond::{Answer, ok, repeated};
use super::views::TaskView;
use crate::domain::ids::PersonId;
use crate::domain::limits::REASON_MAX;
use crate::domain::principal::Permission;
use crate::domain::refusal::{Checked, Fault};

/// Why a person pauses or resumes.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"reason": "waiting for the release"}))]
#[allow(dead_code, reason = "describes the body; it is read field by field, so that one answer names every fault")]
pub struct Because {
    /// At most 1,000 characters.
    reason: Option<String>,
}

/// Why a person cancels.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"reason": "no longer needed", "force": false, "cascade": true}))]
#[allow(dead_code, reason = "describes the body; it is read field by field, so that one answer names every fault")]
pub struct Cancel {
    /// At most 1,000 characters. It stands in the log with the cancel itself; a later call changes no control, so its
    /// reason is kept nowhere.
    reason: Option<String>,
    /// On a second cancel: close the task now, without the harness. Ignored on a first one.
    force: Option<bool>,
    /// Cancel the open tasks below it too, root first, each by its own rules. Absent: children run on.
    cascade: Option<bool>,
}

/// Who shall be accountable.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"owner": "grace"}))]
#[allow(dead_code, reason = "describes the body; it is read field by field, so that one answer names every fault")]
pub struct Reassign {
    /// A member of the organization.
    owner: String,
}

/// A message to the agent.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"body": "Please keep the public API as it is.", "hold": false}))]
#[allow(dead_code, reason = "describes the body; it is read field by field, so that one answer names every fault")]
pub struct Reply {
    /// The message.
    body: String,
    /// Also pauses the task, in the same transaction.
    hold: Option<bool>,
}

fn reason(body: &Body<'_>) -> Checked<Option<String>> {
    let mut fields = body.fields();
    let reason = fields.text_opt("reason", 1..=REASON_MAX);
    fields.finish(reason)
}

/// Pause a task.
///
/// Takes effect at once in every open status; the turn in flight may still report. Pausing a paused task is fine.
#[utoipa::path(post, path = "/organizations/{org}/agent-tasks/{task}/pause", operation_id = "pause_task", tag = "control",
    params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The task's short id")),
    request_body = Option<Because>, responses((status = 200, description = "The task", body = TaskView)))]
pub async fn pause(State(app): State<App>, auth: Authenticated, body: RawBody) -> Answer {
    let located = app.service().locate(&auth.caller, auth.param("task")).await?;
    auth.caller.require(Permission::Manage)?;
    let body = body.optional(&["reason"])?;
    let task = app.service().pause(&body.call(&auth.caller), &located, reason(&body)).await?;
    ok(&TaskView::from(&task))
}

/// Resume a task.
#[utoipa::path(post, path = "/organizations/{org}/agent-tasks/{task}/resume", operation_id = "resume_task",
    tag = "control", params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The task's short id")),
    request_body = Option<Because>, responses((status = 200, description = "The task", body = TaskView)))]
pub async fn resume(State(app): State<App>, auth: Authenticated, body: RawBody) -> Answer {
    let located = app.service().locate(&auth.caller, auth.param("task")).await?;
    auth.caller.require(Permission::Manage)?;
    let body = body.optional(&["reason"])?;
    let task = app.service().resume(&body.call(&auth.caller), &located, reason(&body)).await?;
    ok(&TaskView::from(&task))
}

/// Cancel a task.
///
/// Cannot be taken back. Without an open session it closes at once; with one it waits for the harness, and a second
/// cancel with `force` closes it without. With `cascade` the open tasks below it are cancelled too; on a closed task only
/// they are, if there are any.
#[utoipa::path(post, path = "/organizations/{org}/agent-tasks/{task}/cancel", operation_id = "cancel_task",
    tag = "control", params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The task's short id")),
    request_body = Option<Cancel>, responses((status = 200, description = "The task", body = TaskView)))]
pub async fn cancel(State(app): State<App>, auth: Authenticated, body: RawBody) -> Answer {
    let located = app.service().locate(&auth.caller, auth.param("task")).await?;
    auth.caller.require(Permission::Manage)?;
    let body = body.optional(&["reason"])?;
    let mut fields = body.peek();
    let [force, cascade] = ["force", "cascade"].map(|name| fields.bool_opt(name).unwrap_or_default());
    let force = fields.finish(force);
    let call = body.call(&auth.caller);
    let task = app.service().cancel(&call, &located, reason(&body), force, cascade).await?;
    ok(&TaskView::from(&task))
}

/// Name another owner.
#[utoipa::path(post, path = "/organizations/{org}/agent-tasks/{task}/reassign", operation_id = "reassign_task",
    tag = "control", params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The task's short id")),
    request_body = Reassign, responses((status = 200, description = "The task", body = TaskView)))]
pub async fn reassign(State(app): State<App>, auth: Authenticated, body: RawBody) -> Answer {
    let located = app.service().locate(&auth.caller, auth.param("task")).await?;
    auth.caller.require(Permission::Manage)?;
    let body = body.required(&[])?;
    let mut fields = body.fields();
    let text = fields.text("owner", 1..=REASON_MAX);
    let owner = PersonId::parse(&text);
    if let (false, Err(fault)) = (text.is_empty(), &owner) {
        fields.extend([Fault::new("/owner", fault.to_string())]);
    }
    let owner = fields
        .finish(())
        .and_then(|()| owner.map_err(|fault| crate::domain::refusal::Refusal::invalid("/owner", fault.to_string())));
    let task = app.service().reassign(&body.call(&auth.caller), &located, owner).await?;
    ok(&TaskView::from(&task))
}

/// Write to the agent.
///
/// Becomes a human `turn` in the log, which the harness reads at its next poll.
#[utoipa::path(post, path = "/organizations/{org}/agent-tasks/{task}/reply", operation_id = "reply_to_task",
    tag = "control", params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The task's short id"),
        ("Idempotency-Key" = Option<String>, Header, description = "A repeat writes nothing")),
    request_body = Reply, responses((status = 200, description = "The task", body = TaskView)))]
pub async fn reply(State(app): State<App>, auth: Authenticated, body: RawBody) -> Answer {
    let located = app.service().locate(&auth.caller, auth.param("task")).await?;
    auth.caller.require(Permission::Manage)?;
    let body = body.required(&["body"])?;
    let mut fields = body.fields();
    let text = fields.text("body", 1..=app.settings().body_limit_bytes);
    let text = fields.finish(text);
    let (key, text) = match body.key("idempotency_key") {
        Ok(key) => (key, text),
        // Told with the rest of the body, after the state was looked at.
        Err(refusal) => (None, text.and(Err(refusal))),
    };
    let mut fields = body.peek();
    let hold = fields.bool_opt("hold").unwrap_or_default();
    let hold = fields.finish(hold);
    let answered = app.service().reply(&body.call(&auth.caller), &located, key, text, hold).await?;
    let response = ok(&TaskView::from(&answered.value))?;
    match answered.replay {
        Some(replay) => Ok(repeated(response, replay)),
        None => Ok(response),
    }
}
