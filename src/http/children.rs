//! Delegation: children, and the tree that they make.

use std::collections::BTreeMap;

use axum::extract::State;
use http::HeaderMap;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::auth::Authenticated;
use super::body::RawBody;
use super::query::Query;
use super::respond::{Answer, created, page};
use super::tasks::{CONTENT, names_initial, names_origin, read_new_task};
use super::views::{TaskView, TreeNodeView};
use super::{App, cursor};
use crate::domain::limits::NAME_MAX;
use crate::domain::refusal::Refusal;
use crate::service::children::NewChildCall;

/// Tasks of a page of a tree when the query does not say.
const TREE_PAGE_DEFAULT: u32 = 200;
/// The most tasks of a page of a tree.
pub const TREE_PAGE_MAX: u32 = 1_000;

/// A task to delegate.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({
    "agent_slug": "tester", "title": "Write the missing tests", "description": "For the parser.", "budget": "0.50",
    "session_id": "01890a5d-ac96-774b-bcce-b302099a8003", "idempotency_key": "tests-of-the-parser"
}))]
#[allow(dead_code, reason = "describes the body; it is read field by field, so that one answer names every fault")]
pub struct DelegateTask {
    /// The agent that shall work it.
    agent_slug: String,
    /// At most 500 characters.
    title: String,
    /// At most 20,000 characters.
    description: String,
    /// The primary project. Absent: none; it is not the parent's.
    project_id: Option<Uuid>,
    /// At most the agent's budget and what the parent has left, in US dollars: a number or a decimal string. Absent: the
    /// agent's, or what the parent has left where that is less.
    #[schema(value_type = Option<String>)]
    budget: Option<Value>,
    /// What the task is about.
    subject: Option<String>,
    /// At most 64 labels.
    labels: Option<BTreeMap<String, String>>,
    /// Free parameters, kept verbatim.
    params: Option<Value>,
    /// Unique per parent; may also be the `Idempotency-Key` header.
    idempotency_key: Option<String>,
    /// The session of the parent that delegates.
    session_id: Option<Uuid>,
}

/// Delegate a task.
///
/// Its owner is the parent's. Its whole budget is set aside from what the parent has left; what it did not spend comes back
/// when it closes (`child.closed` on the parent's log).
#[utoipa::path(post, path = "/organizations/{org}/agent-tasks/{task}/children", operation_id = "delegate_task",
    tag = "delegation",
    params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The short id of the parent"),
        ("Idempotency-Key" = Option<String>, Header, description = "Instead of idempotency_key")),
    request_body = DelegateTask,
    responses((status = 201, description = "The child was created", body = TaskView),
        (status = 200, description = "The key created it before", body = TaskView)))]
pub async fn delegate(State(app): State<App>, auth: Authenticated, headers: HeaderMap, body: RawBody) -> Answer {
    let located = app.service().locate(&auth.caller, auth.param("task")).await?;
    auth.caller.harness_of(&located.task)?;
    if names_origin(&headers) {
        return Err(Refusal::OriginForbidden.into());
    }
    let body = body.required(CONTENT)?;
    let new = NewChildCall {
        session: body.session(),
        agent_slug: body.peek().text_opt("agent_slug", 1..=NAME_MAX),
        key: body.key("idempotency_key"),
        names_initial: names_initial(&body),
        body: read_new_task(&body),
    };
    let answered = app.service().delegate(&body.call(&auth.caller), &located, new).await?;
    created(&TaskView::from(&answered.value), answered.replay)
}

/// Read a task and every task below it.
///
/// Each task comes before its children, which come in the order of their creation. Every entry says what the task spent
/// itself and what it spent with everything below it, each task counted once, whatever the page.
#[utoipa::path(get, path = "/organizations/{org}/agent-tasks/{task}/tree", operation_id = "read_tree", tag = "delegation",
    params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The task's short id"),
        ("limit" = Option<u32>, Query, description = "1 to 1,000, default 200"),
        ("cursor" = Option<String>, Query, description = "Of the link to the next page")),
    responses((status = 200, description = "The tree, the task itself first; the Link header leads on",
        body = Vec<TreeNodeView>)))]
pub async fn tree(State(app): State<App>, auth: Authenticated, query: Query) -> Answer {
    let located = app.service().read(&auth.caller, auth.param("task")).await?;
    let mut parameters = query.parameters();
    let limit = parameters.limit(TREE_PAGE_DEFAULT, TREE_PAGE_MAX);
    let cursor = parameters.cursor();
    parameters.finish(())?;
    let fingerprint = query.fingerprint();
    let last = cursor.map(|cursor| cursor::read_name(&cursor, &fingerprint)).transpose()?;
    let nodes = app.service().tree(&located).await?;
    let begin = match last {
        None => 0,
        Some(last) => {
            let place = nodes.iter().position(|node| node.task.short_id.to_string() == last);
            place.ok_or(Refusal::InvalidCursor)? + 1
        }
    };
    let rest = nodes.get(begin..).unwrap_or_default();
    let shown = rest.get(..limit as usize).unwrap_or(rest);
    let views: Vec<_> = shown.iter().map(TreeNodeView::from).collect();
    let next = shown.last().filter(|_| shown.len() < rest.len());
    let next = next.map(|last| cursor::write_name(&last.task.short_id.to_string(), &fingerprint));
    let next = next.map(|cursor| query.with(&[("cursor", cursor)]));
    page(&app, &views, next.as_deref())
}
