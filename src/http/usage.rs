//! Usage reports.

use axum::extract::State;
use serde::Deserialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::auth::Authenticated;
use super::body::RawBody;
use super::respond::{Answer, created};
use super::views::{LedgerView, UsageAnswer};
use crate::domain::limits::NAME_MAX;
use crate::domain::money::{TOKENS_PER_REPORT_MAX, TokenCounts};
use crate::service::usage::ReportBody;

/// Tokens of one model call. The four counts are disjoint: `tokens_in` is uncached input only. Providers differ in
/// whether their input count includes cached tokens; subtract them where it does.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"idempotency_key": "run-1a2b3c4d-1", "model_id": "sonnet", "tokens_in": 1200,
    "tokens_out": 300, "cache_read_tokens": 5000, "cache_write_tokens": 800}))]
#[allow(dead_code, reason = "describes the body; it is read field by field, so that one answer names every fault")]
pub struct ReportUsage {
    /// At most 200 characters; may also be the `Idempotency-Key` header. A repeat answers the first result.
    idempotency_key: Option<String>,
    /// A model's slug, its provider's name or an alias. An unknown one is recorded and not priced.
    model_id: String,
    /// Uncached input. All four absent: recorded as unmeasured, not as zero.
    tokens_in: Option<i64>,
    /// Output.
    tokens_out: Option<i64>,
    /// Input read from the cache.
    cache_read_tokens: Option<i64>,
    /// Input written to the cache.
    cache_write_tokens: Option<i64>,
    /// The session that reports.
    session_id: Option<Uuid>,
    /// The report to correct; the counts are then the full right ones.
    corrects: Option<Uuid>,
}

/// Report tokens.
///
/// The server prices the report, adds it to the ledger and closes the task when its budget falls below zero. Accepted
/// after the close too: money that was spent is never lost.
#[utoipa::path(post, path = "/organizations/{org}/agent-tasks/{task}/usage", operation_id = "report_usage", tag = "usage",
    params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The task's short id"),
        ("Idempotency-Key" = Option<String>, Header, description = "Instead of idempotency_key")),
    request_body = ReportUsage, responses((status = 201, description = "The ledger's row", body = UsageAnswer),
        (status = 200, description = "The key reported it before", body = UsageAnswer)))]
pub async fn report(State(app): State<App>, auth: Authenticated, body: RawBody) -> Answer {
    let located = app.service().locate(&auth.caller, auth.param("task")).await?;
    let account = auth.caller.harness_of(&located.task)?;
    let body = body.required(&[])?;
    let mut fields = body.fields();
    let key = match body.key("idempotency_key") {
        Ok(key) => key,
        Err(crate::domain::refusal::Refusal::Invalid(faults)) => {
            fields.extend(faults);
            None
        }
        Err(other) => return Err(other.into()),
    };
    if key.is_none() && fields.is_faultless() {
        fields.fault("idempotency_key", "is required");
    }
    let names = ["tokens_in", "tokens_out", "cache_read_tokens", "cache_write_tokens"];
    let [tokens_in, tokens_out, cache_read, cache_write] =
        names.map(|name| fields.integer_opt(name, 0..=TOKENS_PER_REPORT_MAX));
    let counts = [tokens_in, tokens_out, cache_read, cache_write].iter().any(Option::is_some).then(|| TokenCounts {
        tokens_in: tokens_in.unwrap_or_default(),
        tokens_out: tokens_out.unwrap_or_default(),
        cache_read_tokens: cache_read.unwrap_or_default(),
        cache_write_tokens: cache_write.unwrap_or_default(),
    });
    let report =
        ReportBody { model_id: fields.text("model_id", 1..=NAME_MAX), counts, corrects: fields.id_opt("corrects") };
    let report = fields.finish(report);
    let call = body.call(&auth.caller);
    let answered = app.service().report(&call, &located, account, key, body.session(), report).await?;
    let (row, task) = &answered.value;
    created(&UsageAnswer { row: LedgerView::from(row), task: app.task_state(task) }, answered.replay)
}
