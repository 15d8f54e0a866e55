//! Triggers: schedulers and webhook gateways.

use axum::extract::State;
use serde::Deserialize;
use utoipa::ToSchema;

use super::views::{FirstCredential, TriggerAnswer, TriggerView};
use super::{gone, read_naming, records, stored, unkept};
use crate::directory::records::Trigger;
use crate::http::App;
use crate::http::auth::Authenticated;
use crate::http::body::RawBody;
use crate::http::query::Query;
use crate::http::respond::{Answer, ok};

/// A trigger as it shall be.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"name": "Nightly runs", "external_ref": "cron-7"}))]
#[allow(dead_code, reason = "describes the body; it is read field by field, so that one answer names every fault")]
pub struct PutTrigger {
    /// At most 500 characters.
    name: String,
    /// Its name elsewhere; absent: none.
    external_ref: Option<String>,
}

/// List the triggers.
#[utoipa::path(get, path = "/organizations/{org}/triggers", operation_id = "list_triggers", tag = "directory",
    params(("org" = String, Path, description = "The organization's slug"),
        ("external_ref" = Option<String>, Query, description = "With this name elsewhere"),
        ("limit" = Option<u32>, Query, description = "1 to 100, default 50"),
        ("cursor" = Option<String>, Query, description = "Of the link to the next page")),
    responses((status = 200, description = "A page of triggers, by slug; the Link header leads on",
        body = Vec<TriggerView>)))]
pub async fn list(State(app): State<App>, auth: Authenticated, query: Query) -> Answer {
    records(&app, &auth, &query, |trigger: &Trigger| TriggerView::from(trigger)).await
}

/// Read a trigger.
#[utoipa::path(get, path = "/organizations/{org}/triggers/{trigger}", operation_id = "read_trigger",
    tag = "directory", params(("org" = String, Path, description = "The organization's slug"),
        ("trigger" = String, Path, description = "The trigger's slug or id")),
    responses((status = 200, description = "The trigger", body = TriggerView)))]
pub async fn read(State(app): State<App>, auth: Authenticated) -> Answer {
    let trigger: Trigger = app.service().record(&auth.caller, auth.param("trigger")).await?;
    ok(&TriggerView::from(&trigger))
}

/// Make a trigger, or change it.
///
/// A slug makes or changes a trigger, an id only changes one. Replaces the whole: what is absent is none. A new trigger
/// comes with a credential, whose secret is shown in this answer and never again; make another one when it is lost.
#[utoipa::path(put, path = "/organizations/{org}/triggers/{trigger}", operation_id = "put_trigger",
    tag = "directory", params(("org" = String, Path, description = "The organization's slug"),
        ("trigger" = String, Path, description = "The trigger's slug, or the id of one that exists")),
    request_body = PutTrigger,
    responses((status = 201, description = "The trigger is new", body = TriggerAnswer),
        (status = 200, description = "The trigger", body = TriggerAnswer)))]
pub async fn put(State(app): State<App>, auth: Authenticated, body: RawBody) -> Answer {
    let (key, editor) = app.service().target::<Trigger>(&auth.caller, auth.param("trigger")).await?;
    let draft = read_naming(&body.required(&[])?)?;
    let put = app.service().put_trigger(&editor, &key, &draft).await?;
    let view = TriggerAnswer { trigger: TriggerView::from(&put.record), first: FirstCredential::from(&put) };
    unkept(stored(&view, put.issued.is_some()))
}

/// Delete a trigger.
///
/// Revokes its credentials within 10 s everywhere. Its slug is free again.
#[utoipa::path(delete, path = "/organizations/{org}/triggers/{trigger}", operation_id = "delete_trigger",
    tag = "directory", params(("org" = String, Path, description = "The organization's slug"),
        ("trigger" = String, Path, description = "The trigger's slug or id")),
    responses((status = 204, description = "The trigger is gone")))]
pub async fn delete(State(app): State<App>, auth: Authenticated) -> Answer {
    let (trigger, editor) = app.service().record_to_change::<Trigger>(&auth.caller, auth.param("trigger")).await?;
    app.service().delete_trigger(&editor, trigger.id).await?;
    Ok(gone())
}
