//! The organization itself.

use axum::extract::State;
use serde::Deserialize;
use utoipa::ToSchema;

use super::read_naming;
use super::views::OrganizationView;
use crate::http::App;
use crate::http::auth::Authenticated;
use crate::http::body::RawBody;
use crate::http::respond::{Answer, ok};
use crate::service::directory::Editor;

/// An organization as it shall be.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"name": "Acme", "external_ref": "crm-4711"}))]
#[allow(dead_code, reason = "describes the body; it is read field by field, so that one answer names every fault")]
pub struct PutOrganization {
    /// At most 500 characters.
    name: String,
    /// Its name elsewhere; absent: none.
    external_ref: Option<String>,
}

/// Read the organization.
#[utoipa::path(get, path = "/organizations/{org}", operation_id = "read_organization", tag = "directory",
    params(("org" = String, Path, description = "The organization's slug")),
    responses((status = 200, description = "The organization", body = OrganizationView)))]
pub async fn read(State(app): State<App>, auth: Authenticated) -> Answer {
    ok(&OrganizationView::from(&app.service().organization(&auth.caller).await?))
}

/// Change the organization.
///
/// The slug never changes.
#[utoipa::path(put, path = "/organizations/{org}", operation_id = "put_organization", tag = "directory",
    params(("org" = String, Path, description = "The organization's slug")),
    request_body = PutOrganization,
    responses((status = 200, description = "The organization", body = OrganizationView)))]
pub async fn put(State(app): State<App>, auth: Authenticated, body: RawBody) -> Answer {
    let editor = Editor::of(&auth.caller)?;
    let draft = read_naming(&body.required(&[])?)?;
    ok(&OrganizationView::from(&app.service().put_organization(&editor, &draft).await?))
}
