//! Members and their roles.

use axum::extract::State;
use serde::Deserialize;
use utoipa::ToSchema;

use super::views::MemberView;
use super::{gone, records, stored};
use crate::directory::records::{Member, MemberDraft};
use crate::domain::ids::PersonId;
use crate::domain::limits::NAME_MAX;
use crate::domain::principal::Role;
use crate::domain::refusal::{Checked, Fault, Refusal};
use crate::http::App;
use crate::http::auth::Authenticated;
use crate::http::body::{Body, RawBody};
use crate::http::query::Query;
use crate::http::respond::{Answer, ok};

/// A membership as it shall be.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"roles": ["operator", "approver"], "name": "Ada Lovelace", "email": "ada@example.com"}))]
#[allow(dead_code, reason = "describes the body; it is read field by field, so that one answer names every fault")]
pub struct PutMember {
    /// Any of viewer, operator, approver and admin; permissions add up.
    roles: Vec<String>,
    /// Absent: none.
    name: Option<String>,
    /// Absent: none.
    email: Option<String>,
    /// Their name elsewhere; absent: none.
    external_ref: Option<String>,
}

fn read_draft(body: &Body<'_>) -> Checked<MemberDraft> {
    let mut fields = body.fields();
    if fields.member("roles").is_none() {
        fields.fault("roles", "is required");
    }
    let mut roles = Vec::new();
    for (index, item) in fields.list("roles", Role::ALL.len()).iter().enumerate() {
        if let Some(Ok(role)) = item.as_str().map(str::parse) {
            roles.push(role);
        } else {
            let detail = format!("must be one of {}", Role::NAMES.join(", "));
            fields.extend([Fault::new(format!("/roles/{index}"), detail)]);
        }
    }
    roles.sort_unstable();
    roles.dedup();
    let draft = MemberDraft {
        roles,
        name: fields.text_opt("name", 1..=NAME_MAX),
        email: fields.text_opt("email", 1..=NAME_MAX),
        external_ref: fields.text_opt("external_ref", 1..=NAME_MAX),
    };
    fields.finish(draft)
}

/// List the members.
#[utoipa::path(get, path = "/organizations/{org}/members", operation_id = "list_members", tag = "directory",
    params(("org" = String, Path, description = "The organization's slug"),
        ("external_ref" = Option<String>, Query, description = "With this name elsewhere"),
        ("limit" = Option<u32>, Query, description = "1 to 100, default 50"),
        ("cursor" = Option<String>, Query, description = "Of the link to the next page")),
    responses((status = 200, description = "A page of members, by id; the Link header leads on",
        body = Vec<MemberView>)))]
pub async fn list(State(app): State<App>, auth: Authenticated, query: Query) -> Answer {
    records(&app, &auth, &query, |member: &Member| MemberView::from(member)).await
}

/// Read a member.
#[utoipa::path(get, path = "/organizations/{org}/members/{person}", operation_id = "read_member", tag = "directory",
    params(("org" = String, Path, description = "The organization's slug"),
        ("person" = String, Path, description = "The person, in any letter case")),
    responses((status = 200, description = "The member", body = MemberView)))]
pub async fn read(State(app): State<App>, auth: Authenticated) -> Answer {
    let member: Member = app.service().record(&auth.caller, auth.param("person")).await?;
    ok(&MemberView::from(&member))
}

/// Make a person a member, or change the membership.
///
/// Replaces the whole membership: what is absent is none. Takes effect within 10 s everywhere. The last administrator
/// stays one (409 `last_admin`).
#[utoipa::path(put, path = "/organizations/{org}/members/{person}", operation_id = "put_member", tag = "directory",
    params(("org" = String, Path, description = "The organization's slug"),
        ("person" = String, Path, description = "The person, as their token names them, in any letter case")),
    request_body = PutMember,
    responses((status = 201, description = "The person is a member now", body = MemberView),
        (status = 200, description = "The member", body = MemberView)))]
pub async fn put(State(app): State<App>, auth: Authenticated, body: RawBody) -> Answer {
    let name = auth.param("person");
    let (_, editor) = app.service().target::<Member>(&auth.caller, name).await?;
    let person =
        PersonId::parse(name).map_err(|fault| Refusal::Invalid(vec![Fault::path("person", fault.to_string())]))?;
    let draft = read_draft(&body.required(&[])?)?;
    let put = app.service().put_member(&editor, &person, &draft).await?;
    stored(&MemberView::from(&put.record), put.created)
}

/// End a membership.
///
/// Takes effect within 10 s everywhere. The last administrator stays (409 `last_admin`). Tasks keep their owner.
#[utoipa::path(delete, path = "/organizations/{org}/members/{person}", operation_id = "delete_member",
    tag = "directory", params(("org" = String, Path, description = "The organization's slug"),
        ("person" = String, Path, description = "The person, in any letter case")),
    responses((status = 204, description = "The person is no member")))]
pub async fn delete(State(app): State<App>, auth: Authenticated) -> Answer {
    let (member, editor) = app.service().record_to_change::<Member>(&auth.caller, auth.param("person")).await?;
    app.service().delete_member(&editor, &member.person_id).await?;
    Ok(gone())
}
