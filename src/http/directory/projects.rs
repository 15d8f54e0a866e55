//! Projects.

use axum::extract::State;
use serde::Deserialize;
use utoipa::ToSchema;

use super::views::ProjectView;
use super::{gone, read_naming, records, stored};
use crate::directory::records::Project;
use crate::http::App;
use crate::http::auth::Authenticated;
use crate::http::body::RawBody;
use crate::http::query::Query;
use crate::http::respond::{Answer, ok};

/// A project as it shall be.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"name": "Website", "external_ref": "github.com/acme/website"}))]
#[allow(dead_code, reason = "describes the body; it is read field by field, so that one answer names every fault")]
pub struct PutProject {
    /// At most 500 characters.
    name: String,
    /// Its name elsewhere; absent: none.
    external_ref: Option<String>,
}

/// List the projects.
#[utoipa::path(get, path = "/organizations/{org}/projects", operation_id = "list_projects", tag = "directory",
    params(("org" = String, Path, description = "The organization's slug"),
        ("external_ref" = Option<String>, Query, description = "With this name elsewhere"),
        ("limit" = Option<u32>, Query, description = "1 to 100, default 50"),
        ("cursor" = Option<String>, Query, description = "Of the link to the next page")),
    responses((status = 200, description = "A page of projects, by slug; the Link header leads on",
        body = Vec<ProjectView>)))]
pub async fn list(State(app): State<App>, auth: Authenticated, query: Query) -> Answer {
    records(&app, &auth, &query, |project: &Project| ProjectView::from(project)).await
}

/// Read a project.
#[utoipa::path(get, path = "/organizations/{org}/projects/{project}", operation_id = "read_project",
    tag = "directory", params(("org" = String, Path, description = "The organization's slug"),
        ("project" = String, Path, description = "The project's slug or id")),
    responses((status = 200, description = "The project", body = ProjectView)))]
pub async fn read(State(app): State<App>, auth: Authenticated) -> Answer {
    let project: Project = app.service().record(&auth.caller, auth.param("project")).await?;
    ok(&ProjectView::from(&project))
}

/// Make a project, or change it.
///
/// A slug makes or changes a project, an id only changes one. Replaces the whole: what is absent is none.
#[utoipa::path(put, path = "/organizations/{org}/projects/{project}", operation_id = "put_project",
    tag = "directory", params(("org" = String, Path, description = "The organization's slug"),
        ("project" = String, Path, description = "The project's slug, or the id of one that exists")),
    request_body = PutProject,
    responses((status = 201, description = "The project is new", body = ProjectView),
        (status = 200, description = "The project", body = ProjectView)))]
pub async fn put(State(app): State<App>, auth: Authenticated, body: RawBody) -> Answer {
    let (key, editor) = app.service().target::<Project>(&auth.caller, auth.param("project")).await?;
    let draft = read_naming(&body.required(&[])?)?;
    let put = app.service().put_project(&editor, &key, &draft).await?;
    stored(&ProjectView::from(&put.record), put.created)
}

/// Delete a project.
///
/// Tasks keep its id. Its slug is free again.
#[utoipa::path(delete, path = "/organizations/{org}/projects/{project}", operation_id = "delete_project",
    tag = "directory", params(("org" = String, Path, description = "The organization's slug"),
        ("project" = String, Path, description = "The project's slug or id")),
    responses((status = 204, description = "The project is gone")))]
pub async fn delete(State(app): State<App>, auth: Authenticated) -> Answer {
    let (project, editor) = app.service().record_to_change::<Project>(&auth.caller, auth.param("project")).await?;
    app.service().delete_project(&editor, project.id).await?;
    Ok(gone())
}
