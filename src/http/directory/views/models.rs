//! Models and their prices as answers.

use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::directory::records::{Model, PricePoint};
use crate::domain::money::{Price, Prices};
use crate::domain::time::Timestamp;

/// Prices in US dollars per million tokens; null is unknown, which is not zero.
#[derive(Debug, Serialize, ToSchema)]
#[allow(clippy::struct_field_names, reason = "these are the names on the wire")]
pub struct PricesView {
    /// Of uncached input.
    #[schema(required, example = "1.25")]
    pub input_cost_per_million: Option<String>,
    /// Of output.
    #[schema(required, example = "10")]
    pub output_cost_per_million: Option<String>,
    /// Of input read from the cache.
    #[schema(required, example = "0.125")]
    pub cache_read_cost_per_million: Option<String>,
    /// Of input written to the cache.
    #[schema(required)]
    pub cache_write_cost_per_million: Option<String>,
}

impl From<&Prices> for PricesView {
    fn from(prices: &Prices) -> Self {
        let text = |price: Option<Price>| price.map(|price| price.to_string());
        Self {
            input_cost_per_million: text(prices.input_cost_per_million),
            output_cost_per_million: text(prices.output_cost_per_million),
            cache_read_cost_per_million: text(prices.cache_read_cost_per_million),
            cache_write_cost_per_million: text(prices.cache_write_cost_per_million),
        }
    }
}

/// Prices from an instant on.
#[derive(Debug, Serialize, ToSchema)]
pub struct PricePointView {
    /// The instant.
    #[schema(format = DateTime)]
    pub effective_from: String,
    /// The prices.
    #[serde(flatten)]
    pub prices: PricesView,
}

impl From<&PricePoint> for PricePointView {
    fn from(point: &PricePoint) -> Self {
        Self { effective_from: point.effective_from.to_string(), prices: PricesView::from(&point.prices) }
    }
}

/// A model with the prices in force now.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"id": "01890a5d-ac96-774b-bcce-b302099a8057", "slug": "gpt-5", "provider": "openai",
    "model_id": "gpt-5-2026-01-15", "aliases": ["gpt-5-latest"], "external_ref": null,
    "effective_from": "2026-01-31T09:30:00.000000Z", "input_cost_per_million": "1.25",
    "output_cost_per_million": "10", "cache_read_cost_per_million": "0.125", "cache_write_cost_per_million": null,
    "prices": [{"effective_from": "2026-01-31T09:30:00.000000Z", "input_cost_per_million": "1.25",
        "output_cost_per_million": "10", "cache_read_cost_per_million": "0.125",
        "cache_write_cost_per_million": null}],
    "created_at": "2026-01-31T09:30:00.000000Z", "updated_at": "2026-01-31T09:30:00.000000Z"}))]
pub struct ModelView {
    /// The model.
    pub id: Uuid,
    /// Its name in routes; it never changes.
    pub slug: String,
    /// Who serves it.
    pub provider: String,
    /// The provider's name of it.
    pub model_id: String,
    /// Other names under which harnesses may report it.
    pub aliases: Vec<String>,
    /// Its name elsewhere.
    #[schema(required)]
    pub external_ref: Option<String>,
    /// Since when the prices in force hold; null when there are none.
    #[schema(required, format = DateTime)]
    pub effective_from: Option<String>,
    /// The prices in force.
    #[serde(flatten)]
    pub in_force: PricesView,
    /// All prices, the newest first: those to come, those in force and those of the past.
    pub prices: Vec<PricePointView>,
    /// When it was made.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it was last changed.
    #[schema(format = DateTime)]
    pub updated_at: String,
}

impl ModelView {
    /// The model with the prices that are in force at `now`.
    pub fn new(record: &Model, now: Timestamp) -> Self {
        let in_force = record.in_force(now);
        Self {
            id: record.id.0,
            slug: record.slug.clone(),
            provider: record.provider.clone(),
            model_id: record.model_id.clone(),
            aliases: record.aliases.clone(),
            external_ref: record.external_ref.clone(),
            effective_from: in_force.map(|point| point.effective_from.to_string()),
            in_force: PricesView::from(&in_force.map(|point| point.prices).unwrap_or_default()),
            prices: record.prices.iter().map(PricePointView::from).collect(),
            created_at: record.created_at.to_string(),
            updated_at: record.updated_at.to_string(),
        }
    }
}
