//! The rows as ClickHouse has them: times in microseconds, decimals as whole numbers of their last digit.

use clickhouse::Row;
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::domain::digest::Digest;
use crate::domain::ids::{ModelId, ReportId, SessionId};
use crate::domain::money::{MONEY_DECIMALS, Money, PRICE_DECIMALS, Price, Prices, TokenCounts};
use crate::domain::time::Timestamp;
use crate::log::{EventRow, LogStoreError, Reason, UsageRow};

/// What a `DateTime64` can be, in microseconds: the years 1900 to 2299.
const TIMES: std::ops::Range<i64> = -2_208_988_800_000_000..10_413_792_000_000_000;

/// A row of `agent_task_events`.
#[derive(Row, Serialize, Deserialize)]
pub(super) struct StoredEvent {
    #[serde(with = "clickhouse::serde::uuid")]
    pub(super) organization_id: Uuid,
    #[serde(with = "clickhouse::serde::uuid")]
    pub(super) task_id: Uuid,
    pub(super) seq: i64,
    #[serde(with = "clickhouse::serde::uuid")]
    pub(super) event_id: Uuid,
    #[serde(rename = "type")]
    pub(super) event_type: String,
    pub(super) schema_version: i32,
    pub(super) actor_kind: String,
    pub(super) actor_id: String,
    pub(super) channel: Option<String>,
    #[serde(with = "clickhouse::serde::uuid::option")]
    pub(super) session_id: Option<Uuid>,
    pub(super) at: i64,
    pub(super) recorded_at: i64,
    pub(super) payload: String,
    pub(super) redacted: Vec<String>,
    pub(super) digest: String,
    pub(super) short_number: i64,
    #[serde(with = "clickhouse::serde::uuid")]
    pub(super) agent_id: Uuid,
    pub(super) agent_slug: String,
    #[serde(with = "clickhouse::serde::uuid::option")]
    pub(super) project_id: Option<Uuid>,
    pub(super) version: u64,
}

impl StoredEvent {
    /// # Errors
    /// A time that ClickHouse cannot keep.
    pub(super) fn new(row: &EventRow) -> Result<Self, LogStoreError> {
        Ok(Self {
            organization_id: row.organization_id.0,
            task_id: row.task_id.0,
            seq: row.seq,
            event_id: row.event_id.0,
            event_type: row.event_type.clone(),
            schema_version: row.schema_version,
            actor_kind: row.actor_kind.clone(),
            actor_id: row.actor_id.clone(),
            channel: row.channel.clone(),
            session_id: row.session_id.map(|id| id.0),
            at: kept_time(row.at, "at")?,
            recorded_at: kept_time(row.recorded_at, "recorded_at")?,
            payload: row.payload.clone(),
            redacted: row.redacted.clone(),
            digest: row.digest.to_string(),
            short_number: row.short_number,
            agent_id: row.agent_id.0,
            agent_slug: row.agent_slug.clone(),
            project_id: row.project_id.map(|id| id.0),
            version: row.version,
        })
    }

    pub(super) fn into_row(self) -> Result<EventRow, LogStoreError> {
        Ok(EventRow {
            organization_id: self.organization_id.into(),
            task_id: self.task_id.into(),
            seq: self.seq,
            event_id: self.event_id.into(),
            event_type: self.event_type,
            schema_version: self.schema_version,
            actor_kind: self.actor_kind,
            actor_id: self.actor_id,
            channel: self.channel,
            session_id: self.session_id.map(SessionId),
            at: time(self.at, "at")?,
            recorded_at: time(self.recorded_at, "recorded_at")?,
            payload: self.payload,
            redacted: self.redacted,
            digest: Digest::parse(&self.digest).ok_or_else(|| impossible("digest"))?,
            short_number: self.short_number,
            agent_id: self.agent_id.into(),
            agent_slug: self.agent_slug,
            project_id: self.project_id.map(Into::into),
            version: self.version,
            trace: None,
        })
    }
}

/// A row of `agent_usage`.
#[derive(Row, Serialize, Deserialize)]
pub(super) struct StoredUsage {
    #[serde(with = "clickhouse::serde::uuid")]
    organization_id: Uuid,
    #[serde(with = "clickhouse::serde::uuid")]
    task_id: Uuid,
    #[serde(with = "clickhouse::serde::uuid")]
    report_id: Uuid,
    seq: i64,
    #[serde(with = "clickhouse::serde::uuid")]
    account_id: Uuid,
    idempotency_key: String,
    #[serde(with = "clickhouse::serde::uuid::option")]
    session_id: Option<Uuid>,
    model_id: String,
    #[serde(with = "clickhouse::serde::uuid::option")]
    model_ref: Option<Uuid>,
    tokens_in: i64,
    tokens_out: i64,
    cache_read_tokens: i64,
    cache_write_tokens: i64,
    input_cost_per_million: Option<i64>,
    output_cost_per_million: Option<i64>,
    cache_read_cost_per_million: Option<i64>,
    cache_write_cost_per_million: Option<i64>,
    cost: Option<i128>,
    measured: bool,
    #[serde(with = "clickhouse::serde::uuid::option")]
    corrects: Option<Uuid>,
    unmeasured_delta: i16,
    unpriced_delta: i16,
    recorded_at: i64,
    short_number: i64,
    #[serde(with = "clickhouse::serde::uuid")]
    agent_id: Uuid,
    agent_slug: String,
    #[serde(with = "clickhouse::serde::uuid::option")]
    project_id: Option<Uuid>,
    project_slug: Option<String>,
    version: u64,
}

impl StoredUsage {
    /// # Errors
    /// A time or an amount that ClickHouse cannot keep.
    pub(super) fn new(row: &UsageRow) -> Result<Self, LogStoreError> {
        Ok(Self {
            organization_id: row.organization_id.0,
            task_id: row.task_id.0,
            report_id: row.report_id.0,
            seq: row.seq,
            account_id: row.account_id.0,
            idempotency_key: row.idempotency_key.clone(),
            session_id: row.session_id.map(|id| id.0),
            model_id: row.model_id.clone(),
            model_ref: row.model_ref.map(|id| id.0),
            tokens_in: row.tokens.tokens_in,
            tokens_out: row.tokens.tokens_out,
            cache_read_tokens: row.tokens.cache_read_tokens,
            cache_write_tokens: row.tokens.cache_write_tokens,
            input_cost_per_million: kept_price(row.prices.input_cost_per_million)?,
            output_cost_per_million: kept_price(row.prices.output_cost_per_million)?,
            cache_read_cost_per_million: kept_price(row.prices.cache_read_cost_per_million)?,
            cache_write_cost_per_million: kept_price(row.prices.cache_write_cost_per_million)?,
            cost: row.cost.map(|cost| kept_decimal(cost.decimal(), MONEY_DECIMALS, "cost")).transpose()?,
            measured: row.measured,
            corrects: row.corrects.map(|id| id.0),
            unmeasured_delta: row.unmeasured_delta,
            unpriced_delta: row.unpriced_delta,
            recorded_at: kept_time(row.recorded_at, "recorded_at")?,
            short_number: row.short_number,
            agent_id: row.agent_id.0,
            agent_slug: row.agent_slug.clone(),
            project_id: row.project_id.map(|id| id.0),
            project_slug: row.project_slug.clone(),
            version: row.version,
        })
    }

    pub(super) fn into_row(self) -> Result<UsageRow, LogStoreError> {
        Ok(UsageRow {
            organization_id: self.organization_id.into(),
            task_id: self.task_id.into(),
            report_id: self.report_id.into(),
            seq: self.seq,
            account_id: self.account_id.into(),
            idempotency_key: self.idempotency_key,
            session_id: self.session_id.map(SessionId),
            model_id: self.model_id,
            model_ref: self.model_ref.map(ModelId),
            tokens: TokenCounts {
                tokens_in: self.tokens_in,
                tokens_out: self.tokens_out,
                cache_read_tokens: self.cache_read_tokens,
                cache_write_tokens: self.cache_write_tokens,
            },
            prices: Prices {
                input_cost_per_million: price(self.input_cost_per_million)?,
                output_cost_per_million: price(self.output_cost_per_million)?,
                cache_read_cost_per_million: price(self.cache_read_cost_per_million)?,
                cache_write_cost_per_million: price(self.cache_write_cost_per_million)?,
            },
            cost: money(self.cost, "cost")?,
            measured: self.measured,
            corrects: self.corrects.map(ReportId),
            unmeasured_delta: self.unmeasured_delta,
            unpriced_delta: self.unpriced_delta,
            recorded_at: time(self.recorded_at, "recorded_at")?,
            short_number: self.short_number,
            agent_id: self.agent_id.into(),
            agent_slug: self.agent_slug,
            project_id: self.project_id.map(Into::into),
            project_slug: self.project_slug,
            version: self.version,
            trace: None,
        })
    }
}

pub(super) fn impossible(column: &'static str) -> LogStoreError {
    LogStoreError::ImpossibleRow(format!("{column} has a value that cannot be"))
}

fn refused(column: &'static str, value: &dyn std::fmt::Display) -> LogStoreError {
    LogStoreError::Refused(Reason {
        full: format!("{column} cannot be {value}"),
        shown: format!("{column} has a value that cannot be kept"),
    })
}

/// Outside its years ClickHouse would keep another instant without a word.
fn kept_time(at: Timestamp, column: &'static str) -> Result<i64, LogStoreError> {
    if TIMES.contains(&at.micros()) { Ok(at.micros()) } else { Err(refused(column, &at)) }
}

/// A bound of times that ClickHouse can compare: no row is beyond it.
pub(super) fn bound(at: Timestamp) -> i64 {
    at.micros().clamp(TIMES.start, TIMES.end)
}

pub(super) fn time(micros: i64, column: &'static str) -> Result<Timestamp, LogStoreError> {
    Timestamp::from_micros(micros).ok_or_else(|| impossible(column))
}

/// `amount` in units of its last of `decimals` digits: exact, or refused.
fn kept_decimal(amount: Decimal, decimals: u32, column: &'static str) -> Result<i128, LogStoreError> {
    let exact = amount.normalize();
    let factor = decimals.checked_sub(exact.scale()).and_then(|missing| 10_i128.checked_pow(missing));
    factor.and_then(|factor| exact.mantissa().checked_mul(factor)).ok_or_else(|| refused(column, &amount))
}

fn kept_price(price: Option<Price>) -> Result<Option<i64>, LogStoreError> {
    let Some(price) = price else { return Ok(None) };
    let units = kept_decimal(price.decimal(), PRICE_DECIMALS, "a price")?;
    i64::try_from(units).map(Some).map_err(|_| refused("a price", &price))
}

fn price(units: Option<i64>) -> Result<Option<Price>, LogStoreError> {
    units.map(|units| Price::new(Decimal::new(units, PRICE_DECIMALS))).transpose().map_err(|_| impossible("a price"))
}

pub(super) fn money(units: Option<i128>, column: &'static str) -> Result<Option<Money>, LogStoreError> {
    let Some(units) = units else { return Ok(None) };
    let amount = Decimal::try_from_i128_with_scale(units, MONEY_DECIMALS).map_err(|_| impossible(column))?;
    Money::new(amount).map(Some).map_err(|_| impossible(column))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_kept_to_the_last_digit() {
        for text in ["0", "-0.000000000001", "9999999999999999.999999999999", "-9999999999999999.999999999999", "12.5"]
        {
            let amount: Money = text.parse().unwrap();
            let units = kept_decimal(amount.decimal(), MONEY_DECIMALS, "cost").unwrap();
            assert_eq!(money(Some(units), "cost").unwrap().unwrap().to_string(), text);
        }
        assert!(kept_decimal("0.0000000000001".parse().unwrap(), MONEY_DECIMALS, "cost").is_err(), "never rounded");
        for text in ["0", "0.000001", "1000000"] {
            let whole: Price = text.parse().unwrap();
            assert_eq!(price(kept_price(Some(whole)).unwrap()).unwrap(), Some(whole));
        }
    }

    #[test]
    fn times_beyond_the_column_are_refused() {
        let at = |text| Timestamp::parse(text).unwrap();
        for text in ["1900-01-01T00:00:00Z", "1969-12-31T23:59:59.999999Z", "2299-12-31T23:59:59.999999Z"] {
            assert_eq!(kept_time(at(text), "at").unwrap(), at(text).micros());
        }
        for text in ["1899-12-31T23:59:59.999999Z", "2300-01-01T00:00:00Z", "9999-12-31T23:59:59Z"] {
            assert!(matches!(kept_time(at(text), "at"), Err(LogStoreError::Refused(_))), "{text}");
        }
    }
}
