//! Writing: one statement a table.

use rust_decimal::Decimal;
use sqlx::types::Json;
use sqlx::{Postgres, Transaction};
use time::OffsetDateTime;
use uuid::Uuid;

use super::PostgresLog;
use crate::domain::money::{Money, Price};
use crate::log::{Batch, EventRow, LogStoreError, UsageRow};

const EVENTS: &str = "
INSERT INTO agent_log.agent_task_events (
    organization_id, task_id, seq, event_id, type, schema_version, actor_kind, actor_id, channel, session_id, at,
    recorded_at, payload, redacted, digest, short_number, agent_id, agent_slug, project_id, version)
SELECT DISTINCT ON (organization_id, task_id, seq, event_id)
    organization_id, task_id, seq, event_id, type, schema_version, actor_kind, actor_id, channel, session_id, at,
    recorded_at, payload, ARRAY(SELECT json_array_elements_text(redacted)), digest, short_number, agent_id, agent_slug,
    project_id, version
FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::uuid[], $5::text[], $6::integer[], $7::text[], $8::text[],
    $9::text[], $10::uuid[], $11::timestamptz[], $12::timestamptz[], $13::text[], $14::json[], $15::text[],
    $16::bigint[], $17::uuid[], $18::text[], $19::uuid[], $20::bigint[])
    AS row(organization_id, task_id, seq, event_id, type, schema_version, actor_kind, actor_id, channel, session_id, at,
        recorded_at, payload, redacted, digest, short_number, agent_id, agent_slug, project_id, version)
-- In the order of the key, so that two writers of the same rows cannot lock each other out.
ORDER BY organization_id, task_id, seq, event_id, version DESC
ON CONFLICT (organization_id, task_id, seq, event_id) DO UPDATE SET
    type = excluded.type, schema_version = excluded.schema_version, actor_kind = excluded.actor_kind,
    actor_id = excluded.actor_id, channel = excluded.channel, session_id = excluded.session_id, at = excluded.at,
    recorded_at = excluded.recorded_at, payload = excluded.payload, redacted = excluded.redacted,
    digest = excluded.digest, short_number = excluded.short_number, agent_id = excluded.agent_id,
    agent_slug = excluded.agent_slug, project_id = excluded.project_id, version = excluded.version
WHERE excluded.version > agent_task_events.version";

const USAGE: &str = "
INSERT INTO agent_log.agent_usage (
    organization_id, task_id, report_id, seq, account_id, idempotency_key, session_id, model_id, model_ref, tokens_in,
    tokens_out, cache_read_tokens, cache_write_tokens, input_cost_per_million, output_cost_per_million,
    cache_read_cost_per_million, cache_write_cost_per_million, cost, measured, corrects, unmeasured_delta,
    unpriced_delta, recorded_at, short_number, agent_id, agent_slug, project_id, project_slug, version)
SELECT DISTINCT ON (organization_id, task_id, report_id) *
FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::bigint[], $5::uuid[], $6::text[], $7::uuid[], $8::text[],
    $9::uuid[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::numeric[], $15::numeric[],
    $16::numeric[], $17::numeric[], $18::numeric[], $19::boolean[], $20::uuid[], $21::smallint[], $22::smallint[],
    $23::timestamptz[], $24::bigint[], $25::uuid[], $26::text[], $27::uuid[], $28::text[], $29::bigint[])
    AS row(organization_id, task_id, report_id, seq, account_id, idempotency_key, session_id, model_id, model_ref,
        tokens_in, tokens_out, cache_read_tokens, cache_write_tokens, input_cost_per_million, output_cost_per_million,
        cache_read_cost_per_million, cache_write_cost_per_million, cost, measured, corrects, unmeasured_delta,
        unpriced_delta, recorded_at, short_number, agent_id, agent_slug, project_id, project_slug, version)
ORDER BY organization_id, task_id, report_id, version DESC
ON CONFLICT (organization_id, task_id, report_id) DO UPDATE SET
    seq = excluded.seq, account_id = excluded.account_id, idempotency_key = excluded.idempotency_key,
    session_id = excluded.session_id, model_id = excluded.model_id, model_ref = excluded.model_ref,
    tokens_in = excluded.tokens_in, tokens_out = excluded.tokens_out, cache_read_tokens = excluded.cache_read_tokens,
    cache_write_tokens = excluded.cache_write_tokens, input_cost_per_million = excluded.input_cost_per_million,
    output_cost_per_million = excluded.output_cost_per_million,
    cache_read_cost_per_million = excluded.cache_read_cost_per_million,
    cache_write_cost_per_million = excluded.cache_write_cost_per_million, cost = excluded.cost,
    measured = excluded.measured, corrects = excluded.corrects, unmeasured_delta = excluded.unmeasured_delta,
    unpriced_delta = excluded.unpriced_delta, recorded_at = excluded.recorded_at,
    short_number = excluded.short_number, agent_id = excluded.agent_id, agent_slug = excluded.agent_slug,
    project_id = excluded.project_id, project_slug = excluded.project_slug, version = excluded.version
WHERE excluded.version > agent_usage.version";

impl PostgresLog {
    pub(super) async fn write(&self, batch: &Batch) -> Result<(), LogStoreError> {
        let mut transaction = self.begin().await?;
        if !batch.events.is_empty() {
            self.write_events(&mut transaction, &batch.events).await?;
        }
        if !batch.usage.is_empty() {
            self.write_usage(&mut transaction, &batch.usage).await?;
        }
        Ok(transaction.commit().await?)
    }

    async fn write_events(&self, db: &mut Transaction<'_, Postgres>, rows: &[EventRow]) -> Result<(), LogStoreError> {
        let ids = |f: fn(&EventRow) -> Uuid| rows.iter().map(f).collect::<Vec<_>>();
        let texts = |f: fn(&EventRow) -> &str| rows.iter().map(f).collect::<Vec<_>>();
        let times = |f: fn(&EventRow) -> OffsetDateTime| rows.iter().map(f).collect::<Vec<_>>();
        sqlx::query(EVENTS)
            .bind(ids(|row| row.organization_id.0))
            .bind(ids(|row| row.task_id.0))
            .bind(rows.iter().map(|row| row.seq).collect::<Vec<_>>())
            .bind(ids(|row| row.event_id.0))
            .bind(texts(|row| &row.event_type))
            .bind(rows.iter().map(|row| row.schema_version).collect::<Vec<_>>())
            .bind(texts(|row| &row.actor_kind))
            .bind(texts(|row| &row.actor_id))
            .bind(rows.iter().map(|row| row.channel.as_deref()).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| row.session_id.map(|id| id.0)).collect::<Vec<_>>())
            .bind(times(|row| row.at.into()))
            .bind(times(|row| row.recorded_at.into()))
            .bind(texts(|row| &row.payload))
            .bind(rows.iter().map(|row| Json(&row.redacted)).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| row.digest.to_string()).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| row.short_number).collect::<Vec<_>>())
            .bind(ids(|row| row.agent_id.0))
            .bind(texts(|row| &row.agent_slug))
            .bind(rows.iter().map(|row| row.project_id.map(|id| id.0)).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| stored_version(row.version)).collect::<Vec<_>>())
            .persistent(self.named)
            .execute(&mut **db)
            .await?;
        Ok(())
    }

    async fn write_usage(&self, db: &mut Transaction<'_, Postgres>, rows: &[UsageRow]) -> Result<(), LogStoreError> {
        let ids = |f: fn(&UsageRow) -> Uuid| rows.iter().map(f).collect::<Vec<_>>();
        let some_ids = |f: fn(&UsageRow) -> Option<Uuid>| rows.iter().map(f).collect::<Vec<_>>();
        let texts = |f: fn(&UsageRow) -> &str| rows.iter().map(f).collect::<Vec<_>>();
        let numbers = |f: fn(&UsageRow) -> i64| rows.iter().map(f).collect::<Vec<_>>();
        let decimals = |f: fn(&UsageRow) -> Option<Decimal>| rows.iter().map(f).collect::<Vec<_>>();
        sqlx::query(USAGE)
            .bind(ids(|row| row.organization_id.0))
            .bind(ids(|row| row.task_id.0))
            .bind(ids(|row| row.report_id.0))
            .bind(numbers(|row| row.seq))
            .bind(ids(|row| row.account_id.0))
            .bind(texts(|row| &row.idempotency_key))
            .bind(some_ids(|row| row.session_id.map(|id| id.0)))
            .bind(texts(|row| &row.model_id))
            .bind(some_ids(|row| row.model_ref.map(|id| id.0)))
            .bind(numbers(|row| row.tokens.tokens_in))
            .bind(numbers(|row| row.tokens.tokens_out))
            .bind(numbers(|row| row.tokens.cache_read_tokens))
            .bind(numbers(|row| row.tokens.cache_write_tokens))
            .bind(decimals(|row| row.prices.input_cost_per_million.map(Price::decimal)))
            .bind(decimals(|row| row.prices.output_cost_per_million.map(Price::decimal)))
            .bind(decimals(|row| row.prices.cache_read_cost_per_million.map(Price::decimal)))
            .bind(decimals(|row| row.prices.cache_write_cost_per_million.map(Price::decimal)))
            .bind(decimals(|row| row.cost.map(Money::decimal)))
            .bind(rows.iter().map(|row| row.measured).collect::<Vec<_>>())
            .bind(some_ids(|row| row.corrects.map(|id| id.0)))
            .bind(rows.iter().map(|row| row.unmeasured_delta).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| row.unpriced_delta).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| OffsetDateTime::from(row.recorded_at)).collect::<Vec<_>>())
            .bind(numbers(|row| row.short_number))
            .bind(ids(|row| row.agent_id.0))
            .bind(texts(|row| &row.agent_slug))
            .bind(some_ids(|row| row.project_id.map(|id| id.0)))
            .bind(rows.iter().map(|row| row.project_slug.as_deref()).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| stored_version(row.version)).collect::<Vec<_>>())
            .persistent(self.named)
            .execute(&mut **db)
            .await?;
        Ok(())
    }
}

/// Versions count failures of verification, so they are small.
fn stored_version(version: u64) -> i64 {
    i64::try_from(version).unwrap_or(i64::MAX)
}
