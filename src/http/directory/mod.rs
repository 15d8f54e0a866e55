//! The directory's routes: who may call, which agents, models and projects there are.

mod agents;
mod audit;
mod credentials;
mod members;
mod models;
mod organization;
mod projects;
mod triggers;
mod views;

use axum::response::{IntoResponse, Response};
use http::header::CACHE_CONTROL;
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use self::models::ALIASES_MAX;

use super::auth::Authenticated;
use super::body::Body;
use super::query::Query;
use super::respond::{Answer, json, page};
use super::tasks::PAGE_DEFAULT;
use super::{App, cursor};
use crate::directory::records::Naming;
use crate::domain::limits::NAME_MAX;
use crate::domain::read::Fields;
use crate::domain::refusal::Checked;
use crate::service::{Listing, Record};

/// The directory's routes.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(organization::read, organization::put))
        .routes(routes!(members::list))
        .routes(routes!(members::read, members::put, members::delete))
        .routes(routes!(agents::list))
        .routes(routes!(agents::read, agents::put, agents::delete))
        .routes(routes!(agents::stop))
        .routes(routes!(credentials::of_agent, credentials::rotate_of_agent))
        .routes(routes!(credentials::revoke_of_agent))
        .routes(routes!(triggers::list))
        .routes(routes!(triggers::read, triggers::put, triggers::delete))
        .routes(routes!(credentials::of_trigger, credentials::rotate_of_trigger))
        .routes(routes!(credentials::revoke_of_trigger))
        .routes(routes!(models::list))
        .routes(routes!(models::read, models::put, models::delete))
        .routes(routes!(projects::list))
        .routes(routes!(projects::read, projects::put, projects::delete))
        .routes(routes!(audit::list))
}

/// A page of the records of one kind, by name.
async fn records<T: Record, V: Serialize>(
    app: &App,
    auth: &Authenticated,
    query: &Query,
    view: impl Fn(&T) -> V + Send,
) -> Answer {
    auth.caller.member()?;
    let mut parameters = query.parameters();
    let limit = parameters.limit(PAGE_DEFAULT, app.settings().page_size_max);
    let external_ref = parameters.text("external_ref").map(str::to_owned);
    let cursor = parameters.cursor();
    parameters.finish(())?;
    let fingerprint = query.fingerprint();
    let after = cursor.map(|cursor| cursor::read_name(&cursor, &fingerprint)).transpose()?;
    let found = app.service().records::<T>(&auth.caller, &Listing { external_ref, after, limit }).await?;
    let views: Vec<_> = found.records.iter().map(view).collect();
    let next = found.next.map(|name| query.with(&[("cursor", cursor::write_name(&name, &fingerprint))]));
    page(app, &views, next.as_deref())
}

/// What an organization, trigger or project is called.
fn read_naming(body: &Body<'_>) -> Checked<Naming> {
    let mut fields = body.fields();
    let naming = naming(&mut fields);
    fields.finish(naming)
}

fn naming(fields: &mut Fields<'_>) -> Naming {
    Naming { name: fields.text("name", 1..=NAME_MAX), external_ref: fields.text_opt("external_ref", 1..=NAME_MAX) }
}

/// A record after a PUT: 201 when it is new.
fn stored<T: Serialize>(view: &T, created: bool) -> Answer {
    json(if created { StatusCode::CREATED } else { StatusCode::OK }, view)
}

/// An answer that may hold a secret: nobody on the way keeps it.
fn unkept(answer: Answer) -> Answer {
    let mut response = answer?;
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// 204.
fn gone() -> Response {
    StatusCode::NO_CONTENT.into_response()
}
