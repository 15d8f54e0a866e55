//! The ledger as answers.

use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::TaskState;
use crate::domain::usage::LedgerRow;

/// One row of the ledger. In a correction counts and cost are signed differences; counts are null when unmeasured.
#[derive(Debug, Serialize, ToSchema)]
pub struct LedgerView {
    /// The row.
    pub id: Uuid,
    /// Its key.
    pub idempotency_key: String,
    /// The model as the harness named it.
    pub model_id: String,
    /// Uncached input only: providers differ in whether their input count includes cached tokens, so subtract them.
    #[schema(required)]
    pub tokens_in: Option<i64>,
    /// Output tokens.
    #[schema(required)]
    pub tokens_out: Option<i64>,
    /// Input tokens read from the cache.
    #[schema(required)]
    pub cache_read_tokens: Option<i64>,
    /// Input tokens written to the cache.
    #[schema(required)]
    pub cache_write_tokens: Option<i64>,
    /// Price of uncached input that was used, in US dollars per million.
    #[schema(required, example = "1.25")]
    pub input_cost_per_million: Option<String>,
    /// Price of output.
    #[schema(required, example = "10")]
    pub output_cost_per_million: Option<String>,
    /// Price of input read from the cache.
    #[schema(required, example = "0.625")]
    pub cache_read_cost_per_million: Option<String>,
    /// Price of input written to the cache.
    #[schema(required)]
    pub cache_write_cost_per_million: Option<String>,
    /// The cost in US dollars; null when unmeasured or unpriced, which is not zero.
    #[schema(required, example = "0.184918125")]
    pub cost: Option<String>,
    /// Whether any count was given.
    pub measured: bool,
    /// The row that this one corrects.
    #[schema(required)]
    pub corrects: Option<Uuid>,
    /// The session that reported.
    #[schema(required)]
    pub session_id: Option<Uuid>,
    /// The server's clock at the write.
    #[schema(format = DateTime)]
    pub recorded_at: String,
}

impl From<&LedgerRow> for LedgerView {
    fn from(row: &LedgerRow) -> Self {
        let price = |price: Option<crate::domain::money::Price>| price.map(|price| price.to_string());
        Self {
            id: row.id.0,
            idempotency_key: row.idempotency_key.clone(),
            model_id: row.model_id.clone(),
            tokens_in: row.measured.then_some(row.tokens.tokens_in),
            tokens_out: row.measured.then_some(row.tokens.tokens_out),
            cache_read_tokens: row.measured.then_some(row.tokens.cache_read_tokens),
            cache_write_tokens: row.measured.then_some(row.tokens.cache_write_tokens),
            input_cost_per_million: price(row.prices.input_cost_per_million),
            output_cost_per_million: price(row.prices.output_cost_per_million),
            cache_read_cost_per_million: price(row.prices.cache_read_cost_per_million),
            cache_write_cost_per_million: price(row.prices.cache_write_cost_per_million),
            cost: row.cost.map(|cost| cost.to_string()),
            measured: row.measured,
            corrects: row.corrects.map(|id| id.0),
            session_id: row.session_id.map(|id| id.0),
            recorded_at: row.recorded_at.to_string(),
        }
    }
}

/// A report's row and the state of its task.
#[derive(Debug, Serialize, ToSchema)]
pub struct UsageAnswer {
    /// The row.
    #[serde(flatten)]
    pub row: LedgerView,
    /// The task's state.
    pub task: TaskState,
}
