//! Models and their prices.

use axum::extract::State;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::views::ModelView;
use super::{gone, records, stored};
use crate::directory::records::{Model, ModelDraft};
use crate::domain::limits::NAME_MAX;
use crate::domain::money::Prices;
use crate::domain::refusal::{Checked, Fault};
use crate::http::App;
use crate::http::auth::Authenticated;
use crate::http::body::{Body, RawBody};
use crate::http::query::Query;
use crate::http::respond::{Answer, ok};

/// The most aliases of a model.
pub const ALIASES_MAX: usize = 100;

/// A model as it shall be. Prices are US dollars per million tokens, a number or a decimal string with at most six
/// decimals; an absent one is unknown, which is not zero.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"provider": "openai", "model_id": "gpt-5-2026-01-15", "aliases": ["gpt-5-latest"],
    "input_cost_per_million": "1.25", "output_cost_per_million": "10", "cache_read_cost_per_million": "0.125"}))]
#[allow(dead_code, reason = "describes the body; it is read field by field, so that one answer names every fault")]
pub struct PutModel {
    /// Who serves it.
    provider: String,
    /// The provider's name of it.
    model_id: String,
    /// Other names under which harnesses may report it, at most 100. Absent: as they are, of a
    /// new model none.
    aliases: Option<Vec<String>>,
    /// Of uncached input.
    #[schema(value_type = Option<String>)]
    input_cost_per_million: Option<Value>,
    /// Of output.
    #[schema(value_type = Option<String>)]
    output_cost_per_million: Option<Value>,
    /// Of input read from the cache.
    #[schema(value_type = Option<String>)]
    cache_read_cost_per_million: Option<Value>,
    /// Of input written to the cache.
    #[schema(value_type = Option<String>)]
    cache_write_cost_per_million: Option<Value>,
    /// Since when the prices hold. Absent: from now on.
    #[schema(format = DateTime)]
    effective_from: Option<String>,
    /// Its name elsewhere; absent: none.
    external_ref: Option<String>,
}

fn read_draft(body: &Body<'_>) -> Checked<ModelDraft> {
    let mut fields = body.fields();
    let mut aliases: Vec<String> = Vec::new();
    for (index, item) in fields.list("aliases", ALIASES_MAX).iter().enumerate() {
        let fault = match item.as_str() {
            Some(alias) if alias.trim().is_empty() => "must not be blank".to_owned(),
            Some(alias) if aliases.iter().any(|earlier| earlier == alias) => "repeats an alias".to_owned(),
            Some(alias) if alias.chars().count() <= NAME_MAX => {
                aliases.push(alias.to_owned());
                continue;
            }
            Some(_) | None => format!("must be a string of 1 to {NAME_MAX} characters"),
        };
        fields.extend([Fault::new(format!("/aliases/{index}"), fault)]);
    }
    // A new alias must not unprice a model: prices and aliases that are not there stay as they are.
    let prices = ["input", "output", "cache_read", "cache_write"].map(|kind| format!("{kind}_cost_per_million"));
    let names_prices =
        prices.iter().map(String::as_str).chain(["effective_from"]).any(|name| fields.member(name).is_some());
    let [input, output, cache_read, cache_write] = prices.map(|name| fields.price_opt(&name));
    let prices = Prices {
        input_cost_per_million: input,
        output_cost_per_million: output,
        cache_read_cost_per_million: cache_read,
        cache_write_cost_per_million: cache_write,
    };
    let draft = ModelDraft {
        provider: fields.text("provider", 1..=NAME_MAX),
        model_id: fields.text("model_id", 1..=NAME_MAX),
        aliases: fields.member("aliases").is_some().then_some(aliases),
        external_ref: fields.text_opt("external_ref", 1..=NAME_MAX),
        prices: names_prices.then_some(prices),
        effective_from: fields.time_opt("effective_from"),
    };
    fields.finish(draft)
}

/// List the models.
#[utoipa::path(get, path = "/organizations/{org}/models", operation_id = "list_models", tag = "directory",
    params(("org" = String, Path, description = "The organization's slug"),
        ("external_ref" = Option<String>, Query, description = "With this name elsewhere"),
        ("limit" = Option<u32>, Query, description = "1 to 100, default 50"),
        ("cursor" = Option<String>, Query, description = "Of the link to the next page")),
    responses((status = 200, description = "A page of models, by slug; the Link header leads on",
        body = Vec<ModelView>)))]
pub async fn list(State(app): State<App>, auth: Authenticated, query: Query) -> Answer {
    let now = app.service().clock().now();
    records(&app, &auth, &query, |model: &Model| ModelView::new(model, now)).await
}

/// Read a model.
#[utoipa::path(get, path = "/organizations/{org}/models/{model}", operation_id = "read_model", tag = "directory",
    params(("org" = String, Path, description = "The organization's slug"),
        ("model" = String, Path, description = "The model's slug or id")),
    responses((status = 200, description = "The model with the prices in force", body = ModelView)))]
pub async fn read(State(app): State<App>, auth: Authenticated) -> Answer {
    let model: Model = app.service().record(&auth.caller, auth.param("model")).await?;
    ok(&ModelView::new(&model, app.service().clock().now()))
}

/// Make a model, or change it.
///
/// A slug makes or changes a model, an id only changes one. Absent `aliases` stay as they are, and so do the
/// prices when none of the four is there; a price that is absent beside another is unknown. Slug, `model_id` and aliases are one name space, because a report names exactly one model or none: a name of
/// another model is 409 `name_taken`.
///
/// Prices have a history. New ones hold from `effective_from`: in the future they are announced, and replaced by another
/// PUT of the same instant. What was in force is never rewritten: with an instant that is not after the prices in force
/// they hold from now on. Prices that are in force already write nothing.
#[utoipa::path(put, path = "/organizations/{org}/models/{model}", operation_id = "put_model", tag = "directory",
    params(("org" = String, Path, description = "The organization's slug"),
        ("model" = String, Path, description = "The model's slug, or the id of one that exists")),
    request_body = PutModel,
    responses((status = 201, description = "The model is new", body = ModelView),
        (status = 200, description = "The model with the prices in force", body = ModelView)))]
pub async fn put(State(app): State<App>, auth: Authenticated, body: RawBody) -> Answer {
    let (key, editor) = app.service().target::<Model>(&auth.caller, auth.param("model")).await?;
    let draft = read_draft(&body.required(&[])?)?;
    let put = app.service().put_model(&editor, &key, &draft).await?;
    stored(&ModelView::new(&put.record, app.service().clock().now()), put.created)
}

/// Delete a model.
///
/// Frees its names: reports of them are recorded and unpriced. The ledger keeps the prices that it used.
#[utoipa::path(delete, path = "/organizations/{org}/models/{model}", operation_id = "delete_model", tag = "directory",
    params(("org" = String, Path, description = "The organization's slug"),
        ("model" = String, Path, description = "The model's slug or id")),
    responses((status = 204, description = "The model is gone")))]
pub async fn delete(State(app): State<App>, auth: Authenticated) -> Answer {
    let (model, editor) = app.service().record_to_change::<Model>(&auth.caller, auth.param("model")).await?;
    app.service().delete_model(&editor, model.id).await?;
    Ok(gone())
}
