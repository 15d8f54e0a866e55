//! Outcomes.

use axum::extract::State;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::auth::Authenticated;
use super::body::{Body, RawBody};
use super::respond::{Answer, ok};
use super::tasks::read_ending;
use super::views::TaskState;
use crate::domain::command::ClaimedOutcome;
use crate::domain::json;
use crate::domain::outcome::{Ending, Outcome};
use crate::domain::payload::JsonText;
use crate::domain::refusal::Checked;

/// What a harness says of the ending, kept verbatim whatever it holds: no ending is refused for its words.
#[derive(Debug, Deserialize, ToSchema)]
#[allow(dead_code, reason = "describes the body; it is read field by field, so that one answer names every fault")]
pub struct OutcomeResult {
    /// A text: in a few sentences.
    summary: Option<Value>,
    /// A list: what was made.
    artifacts: Option<Value>,
}

/// How a task ends.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"outcome": "done_acted", "reason": null, "result": {"summary": "Opened pull request 43.",
    "artifacts": []}}))]
#[allow(dead_code, reason = "describes the body; it is read field by field, so that one answer names every fault")]
pub struct SetOutcome {
    /// One of the closed set.
    outcome: String,
    /// One of the outcome's reasons; none for `done_acted`.
    reason: Option<String>,
    /// Kept verbatim.
    result: Option<OutcomeResult>,
    /// The session that reports.
    session_id: Option<Uuid>,
}

fn read_outcome(body: &Body<'_>) -> Checked<ClaimedOutcome> {
    let mut fields = body.fields();
    let outcome = fields.parsed::<Outcome>("outcome");
    let ending = read_ending(&mut fields, outcome, "reason");
    let result = fields.member("result");
    if result.is_some_and(|result| !matches!(result, json::Value::Object(_))) {
        fields.fault("result", "must be an object");
    }
    let result = result.map(|result| JsonText::new(&result.to_text()));
    let fallback = Ending::because(crate::domain::outcome::OutcomeReason::InternalError);
    fields.finish(ClaimedOutcome { ending: ending.unwrap_or(fallback), result })
}

/// End a task.
///
/// The same outcome and reason again is fine; another one is refused and names the recorded one.
#[utoipa::path(post, path = "/organizations/{org}/agent-tasks/{task}/outcome", operation_id = "set_outcome",
    tag = "outcome", params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The task's short id")),
    request_body = SetOutcome, responses((status = 200, description = "The task's state", body = TaskState)))]
pub async fn set(State(app): State<App>, auth: Authenticated, body: RawBody) -> Answer {
    let located = app.service().locate(&auth.caller, auth.param("task")).await?;
    auth.caller.harness_of(&located.task)?;
    let body = body.required(&["result"])?;
    let outcome = read_outcome(&body);
    let task = app.service().set_outcome(&body.call(&auth.caller), &located, body.session(), outcome).await?;
    ok(&app.task_state(&task))
}
