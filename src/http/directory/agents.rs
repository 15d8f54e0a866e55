//! Agents, each with its account.

use axum::extract::State;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::views::{AgentAnswer, AgentView, FirstCredential, StoppedView};
use super::{gone, naming, records, stored, unkept};
use crate::directory::records::{AgentDraft, AgentRecord};
use crate::directory::{AgentSettings, MAX_CHILDREN_DEFAULT, MAX_DEPTH_DEFAULT};
use crate::domain::json::Value as Json;
use crate::domain::principal::Permission;
use crate::domain::read::Fields;
use crate::domain::refusal::{Checked, Fault};
use crate::http::App;
use crate::http::auth::Authenticated;
use crate::http::body::{Body, RawBody};
use crate::http::query::Query;
use crate::http::respond::{Answer, ok};

/// The bounds of an agent; what is absent has its default.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"task_budget": "5", "monthly_cost_cap": "500", "max_concurrent_tasks": 4}))]
#[allow(dead_code, reason = "describes the body; it is read field by field, so that one answer names every fault")]
pub struct PutAgentSettings {
    /// The default and highest budget of a task, in US dollars: a number or a decimal string. Absent: no ceiling.
    #[schema(value_type = Option<String>)]
    task_budget: Option<Value>,
    /// An advisory cap on the cost of a month, in US dollars. Absent: none.
    #[schema(value_type = Option<String>)]
    monthly_cost_cap: Option<Value>,
    /// How many tasks it may work at once, at least 1. Absent: any number.
    max_concurrent_tasks: Option<u32>,
    /// How long a task may take from its first session on, at least 1. Absent: any time.
    task_timeout_seconds: Option<u32>,
    /// How deep its tasks may delegate. Absent: 5.
    max_depth: Option<u32>,
    /// How many open children a task may have. Absent: 50.
    max_children: Option<u32>,
}

/// An agent as it shall be.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"name": "Reviewer", "version": 3, "prompt_version": 7, "enabled": true,
    "settings": {"task_budget": "5", "max_concurrent_tasks": 4}}))]
#[allow(dead_code, reason = "describes the body; it is read field by field, so that one answer names every fault")]
pub struct PutAgent {
    /// At most 500 characters.
    name: String,
    /// The version that new tasks pin; only rises. Absent: 1 in a new agent, else as it is.
    version: Option<i32>,
    /// The version of its prompt that new tasks pin; only rises. Absent: 1 in a new agent, else as it is.
    prompt_version: Option<i32>,
    /// Whether tasks may be created for it. Absent: true in a new agent, else as it is.
    enabled: Option<bool>,
    /// Its bounds. Absent: as they are, of a new agent all defaults.
    settings: Option<PutAgentSettings>,
    /// Its name elsewhere; absent: none.
    external_ref: Option<String>,
}

fn read_settings(settings: &Json<'_>) -> (AgentSettings, Vec<Fault>) {
    let mut fields = Fields::new(settings, "/settings");
    let mut count = |name: &str, least: i64| {
        let count = fields.integer_opt(name, least..=i64::from(i32::MAX));
        count.and_then(|count| u32::try_from(count).ok())
    };
    let (max_concurrent_tasks, task_timeout_seconds) =
        (count("max_concurrent_tasks", 1), count("task_timeout_seconds", 1));
    let (max_depth, max_children) = (count("max_depth", 0), count("max_children", 0));
    let settings = AgentSettings {
        task_budget: fields.money_opt("task_budget"),
        monthly_cost_cap: fields.money_opt("monthly_cost_cap"),
        max_concurrent_tasks,
        task_timeout_seconds,
        max_depth: max_depth.unwrap_or(MAX_DEPTH_DEFAULT),
        max_children: max_children.unwrap_or(MAX_CHILDREN_DEFAULT),
    };
    (settings, fields.into_faults())
}

fn read_draft(body: &Body<'_>) -> Checked<AgentDraft> {
    let mut fields = body.fields();
    // A change of the name must not lift a budget: settings that are not there stay as they are.
    let settings = fields.member("settings").map(|settings| {
        let (settings, faults) = read_settings(settings);
        fields.extend(faults);
        settings
    });
    let mut version = |name: &str| {
        let version = fields.integer_opt(name, 1..=i64::from(i32::MAX));
        version.and_then(|version| i32::try_from(version).ok())
    };
    let (version, prompt_version) = (version("version"), version("prompt_version"));
    let draft = AgentDraft {
        version,
        prompt_version,
        enabled: fields.bool_opt("enabled"),
        naming: naming(&mut fields),
        settings,
    };
    fields.finish(draft)
}

/// List the agents.
#[utoipa::path(get, path = "/organizations/{org}/agents", operation_id = "list_agents", tag = "directory",
    params(("org" = String, Path, description = "The organization's slug"),
        ("external_ref" = Option<String>, Query, description = "With this name elsewhere"),
        ("limit" = Option<u32>, Query, description = "1 to 100, default 50"),
        ("cursor" = Option<String>, Query, description = "Of the link to the next page")),
    responses((status = 200, description = "A page of agents, by slug; the Link header leads on",
        body = Vec<AgentView>)))]
pub async fn list(State(app): State<App>, auth: Authenticated, query: Query) -> Answer {
    records(&app, &auth, &query, |agent: &AgentRecord| AgentView::from(agent)).await
}

/// Read an agent.
#[utoipa::path(get, path = "/organizations/{org}/agents/{agent}", operation_id = "read_agent", tag = "directory",
    params(("org" = String, Path, description = "The organization's slug"),
        ("agent" = String, Path, description = "The agent's slug or id")),
    responses((status = 200, description = "The agent", body = AgentView)))]
pub async fn read(State(app): State<App>, auth: Authenticated) -> Answer {
    let agent: AgentRecord = app.service().record(&auth.caller, auth.param("agent")).await?;
    ok(&AgentView::from(&agent))
}

/// Make an agent, or change it.
///
/// A slug makes or changes an agent, an id only changes one. Absent `settings`, `version`, `prompt_version` and
/// `enabled` stay as they are; `settings` that are there are replaced as a whole, and an absent `external_ref` is none. A lower version is 422. Tasks keep what they pinned. A new agent comes with its service account and a
/// credential, whose secret is shown in this answer and never again; make another one when it is lost.
#[utoipa::path(put, path = "/organizations/{org}/agents/{agent}", operation_id = "put_agent", tag = "directory",
    params(("org" = String, Path, description = "The organization's slug"),
        ("agent" = String, Path, description = "The agent's slug, or the id of one that exists")),
    request_body = PutAgent,
    responses((status = 201, description = "The agent is new", body = AgentAnswer),
        (status = 200, description = "The agent", body = AgentAnswer)))]
pub async fn put(State(app): State<App>, auth: Authenticated, body: RawBody) -> Answer {
    let (key, editor) = app.service().target::<AgentRecord>(&auth.caller, auth.param("agent")).await?;
    let draft = read_draft(&body.required(&[])?)?;
    let put = app.service().put_agent(&editor, &key, &draft).await?;
    let view = AgentAnswer { agent: AgentView::from(&put.record), first: FirstCredential::from(&put) };
    unkept(stored(&view, put.issued.is_some()))
}

/// Delete an agent.
///
/// Removes its service account too and revokes its credentials within 10 s everywhere. Tasks keep both ids; the slug is
/// free again. Open tasks refuse it (409 `open_tasks`), or are closed with `force`: `unhandled_no_actor`,
/// `agent_deleted`. A forced deletion that breaks off leaves the agent disabled; try again.
#[utoipa::path(delete, path = "/organizations/{org}/agents/{agent}", operation_id = "delete_agent", tag = "directory",
    params(("org" = String, Path, description = "The organization's slug"),
        ("agent" = String, Path, description = "The agent's slug or id"),
        ("force" = Option<bool>, Query, description = "Closes its open tasks first")),
    responses((status = 204, description = "The agent is gone")))]
pub async fn delete(State(app): State<App>, auth: Authenticated, query: Query, body: RawBody) -> Answer {
    let (agent, editor) = app.service().record_to_change::<AgentRecord>(&auth.caller, auth.param("agent")).await?;
    let body = body.optional(&[])?;
    let mut parameters = query.parameters();
    let force = parameters.bool("force").unwrap_or_default();
    let force = parameters.finish(force)?;
    app.service().delete_agent(&body.call(&auth.caller), &editor, agent.id, force).await?;
    Ok(gone())
}

/// Stop an agent.
///
/// The emergency stop: closes every open task of the agent, with or without its harness: `interrupted_by_operator`,
/// `emergency_stop`, one after the other, until none is open. Disable the agent first where new tasks shall not be
/// created in the meantime. A task that cannot be closed stands in no other's way and is told by a 5xx at the end; then
/// call again.
#[utoipa::path(post, path = "/organizations/{org}/agents/{agent}/stop", operation_id = "stop_agent", tag = "directory",
    params(("org" = String, Path, description = "The organization's slug"),
        ("agent" = String, Path, description = "The agent's slug or id")),
    responses((status = 200, description = "How many tasks were closed", body = StoppedView)))]
pub async fn stop(State(app): State<App>, auth: Authenticated, body: RawBody) -> Answer {
    auth.caller.require(Permission::Manage)?;
    let agent: AgentRecord = app.service().record(&auth.caller, auth.param("agent")).await?;
    let body = body.optional(&[])?;
    let stopped = app.service().emergency_stop(&body.call(&auth.caller), agent.id).await?;
    ok(&StoppedView { stopped })
}
