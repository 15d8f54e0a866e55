//! What a task is related to: the tasks that it requires, and the projects that it touches. Only people with manage
//! change it.

use axum::extract::State;
use axum::response::IntoResponse;
use http::StatusCode;

use super::App;
use super::auth::Authenticated;
use super::body::path_id;
use super::respond::{Answer, ok};
use super::views::{AssociatedProjectView, RelationsView};
use crate::domain::principal::Permission;
use crate::domain::refusal::Refusal;
use crate::service::Call;

/// A call without a body.
fn call(auth: &Authenticated) -> Call {
    Call { caller: auth.caller.clone(), body_hash: [0; 32], redacted: Vec::new() }
}

/// Read what a task is related to.
///
/// Dependencies are information: they change no status and do not hold a task back. Parent and children follow from the
/// origins of tasks.
#[utoipa::path(get, path = "/organizations/{org}/agent-tasks/{task}/relations", operation_id = "read_relations",
    tag = "relations", params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The task's short id")),
    responses((status = 200, description = "The tasks that it is related to", body = RelationsView)))]
pub async fn relations(State(app): State<App>, auth: Authenticated) -> Answer {
    let located = app.service().locate(&auth.caller, auth.param("task")).await?;
    auth.caller.require(Permission::Read)?;
    ok(&RelationsView::from(&app.service().relations(&located).await?))
}

async fn set_dependency(app: &App, auth: &Authenticated, wanted: bool) -> Answer {
    let located = app.service().locate(&auth.caller, auth.param("task")).await?;
    let other = app.service().locate(&auth.caller, auth.param("other")).await?;
    auth.caller.require(Permission::Manage)?;
    app.service().set_dependency(&call(auth), &located, &other, wanted).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Make a task require another.
///
/// Writes `dependency.added` to the logs of both, in one transaction; to the one that is not archived, when one is. A
/// dependency that is there already is fine.
#[utoipa::path(put, path = "/organizations/{org}/agent-tasks/{task}/requires/{other}",
    operation_id = "add_dependency", tag = "relations",
    params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The short id of the task that requires"),
        ("other" = String, Path, description = "The short id of the task that is required")),
    responses((status = 204, description = "The task requires the other")))]
pub async fn require(State(app): State<App>, auth: Authenticated) -> Answer {
    set_dependency(&app, &auth, true).await
}

/// Make a task no longer require another.
///
/// Writes `dependency.removed` as adding does. A dependency that is not there is fine.
#[utoipa::path(delete, path = "/organizations/{org}/agent-tasks/{task}/requires/{other}",
    operation_id = "remove_dependency", tag = "relations",
    params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The short id of the task that requires"),
        ("other" = String, Path, description = "The short id of the task that is required")),
    responses((status = 204, description = "The task does not require the other")))]
pub async fn release(State(app): State<App>, auth: Authenticated) -> Answer {
    set_dependency(&app, &auth, false).await
}

/// List the projects that a task touches beside its primary one.
#[utoipa::path(get, path = "/organizations/{org}/agent-tasks/{task}/projects",
    operation_id = "list_associated_projects", tag = "relations",
    params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The task's short id")),
    responses((status = 200, description = "Its associated projects, oldest first",
        body = Vec<AssociatedProjectView>)))]
pub async fn projects(State(app): State<App>, auth: Authenticated) -> Answer {
    let located = app.service().locate(&auth.caller, auth.param("task")).await?;
    auth.caller.require(Permission::Read)?;
    let projects = app.service().associated_projects(&located).await?;
    ok(&projects.iter().map(AssociatedProjectView::from).collect::<Vec<_>>())
}

/// Associate a project with a task.
///
/// The primary project is not among them. A project that is associated already is fine.
#[utoipa::path(put, path = "/organizations/{org}/agent-tasks/{task}/projects/{project}",
    operation_id = "associate_project", tag = "relations",
    params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The task's short id"),
        ("project" = Uuid, Path, description = "The project")),
    responses((status = 204, description = "The project is associated")))]
pub async fn associate(State(app): State<App>, auth: Authenticated) -> Answer {
    let located = app.service().locate(&auth.caller, auth.param("task")).await?;
    let project = path_id(auth.param("project"), Refusal::NotFound("project"))?;
    let slug = app.service().project_slug(&located, project).await?;
    auth.caller.require(Permission::Manage)?;
    app.service().associate(&call(&auth), &located, project, slug).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Take the association of a project back.
///
/// A project that was deleted since can be taken off too. One that is not associated is fine.
#[utoipa::path(delete, path = "/organizations/{org}/agent-tasks/{task}/projects/{project}",
    operation_id = "dissociate_project", tag = "relations",
    params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The task's short id"),
        ("project" = Uuid, Path, description = "The project")),
    responses((status = 204, description = "The project is not associated")))]
pub async fn dissociate(State(app): State<App>, auth: Authenticated) -> Answer {
    let located = app.service().locate(&auth.caller, auth.param("task")).await?;
    let project = path_id(auth.param("project"), Refusal::NotFound("project"))?;
    app.service().require_project(&located, project).await?;
    auth.caller.require(Permission::Manage)?;
    app.service().dissociate(&call(&auth), &located, project).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
