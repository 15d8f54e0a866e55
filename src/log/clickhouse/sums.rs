//! Sums over usage rows.

use clickhouse::Row;
use serde::Deserialize;
use uuid::Uuid;

use super::ClickHouseLog;
use super::rows::{bound, impossible, money, time};
use crate::domain::ids::{AgentId, ModelId, ProjectId};
use crate::domain::money::TokenCounts;
use crate::log::{LogStoreError, UsageGroup, UsageKey, UsageQuery};

/// The start of the UTC day, in microseconds, before 1970 too.
const DAY: &str =
    "toUnixTimestamp64Micro(recorded_at) - positiveModulo(toUnixTimestamp64Micro(recorded_at), 86400000000)";

#[derive(Row, Deserialize)]
struct Sums {
    day: Option<i64>,
    #[serde(with = "clickhouse::serde::uuid::option")]
    agent: Option<Uuid>,
    #[serde(with = "clickhouse::serde::uuid::option")]
    known_model: Option<Uuid>,
    #[serde(with = "clickhouse::serde::uuid::option")]
    project: Option<Uuid>,
    newest_agent: Option<String>,
    newest_model: Option<String>,
    newest_project: Option<String>,
    sum_in: i128,
    sum_out: i128,
    sum_cache_read: i128,
    sum_cache_write: i128,
    sum_cost: Option<i128>,
    reports: i64,
    corrections: i64,
    unmeasured: i64,
    unpriced: i64,
}

impl ClickHouseLog {
    /// `FINAL` counts each row once, in its highest version. A row's `recorded_at` is the same in every version, so the
    /// bounds of time may be looked at first. Counts are added as 128 bits, because ClickHouse's sums of 64 wrap.
    pub(super) async fn sums(&self, asked: &UsageQuery) -> Result<Vec<UsageGroup>, LogStoreError> {
        let column = |key, value: &str, kind: &str| {
            let value = if asked.group_by.contains(&key) { value } else { "NULL" };
            format!("CAST({value}, 'Nullable({kind})')")
        };
        // In a tuple, because aggregates leave NULL out.
        let newest = |key, name: &str| {
            let last = format!("tupleElement(argMax(tuple({name}), (recorded_at, UUIDToNum(report_id))), 1)");
            column(key, &last, "String")
        };
        let sql = format!(
            "WITH {} AS day, {} AS agent, {} AS known_model, {} AS named_model, {} AS project,
                {} AS newest_agent, {} AS newest_model, {} AS newest_project,
                sum(toInt128(tokens_in)) AS sum_in, sum(toInt128(tokens_out)) AS sum_out,
                sum(toInt128(cache_read_tokens)) AS sum_cache_read,
                sum(toInt128(cache_write_tokens)) AS sum_cache_write, sum(cost) AS sum_cost,
                toInt64(countIf(corrects IS NULL)) AS reports,
                toInt64(countIf(corrects IS NOT NULL)) AS corrections,
                sum(unmeasured_delta) AS unmeasured, sum(unpriced_delta) AS unpriced
             SELECT ?fields FROM agent_usage FINAL
             WHERE organization_id = {{organization:UUID}}
                AND recorded_at >= fromUnixTimestamp64Micro({{start:Int64}}, 'UTC')
                AND recorded_at < fromUnixTimestamp64Micro({{end:Int64}}, 'UTC')
             GROUP BY day, agent, known_model, named_model, project HAVING count() > 0
             ORDER BY day, UUIDToNum(agent), UUIDToNum(known_model), named_model, UUIDToNum(project)
             LIMIT {{limit:UInt64}}",
            column(UsageKey::Day, DAY, "Int64"),
            column(UsageKey::Agent, "agent_id", "UUID"),
            column(UsageKey::Model, "model_ref", "UUID"),
            column(UsageKey::Model, "if(model_ref IS NULL, toString(model_id), NULL)", "String"),
            column(UsageKey::Project, "project_id", "UUID"),
            newest(UsageKey::Agent, "agent_slug"),
            newest(UsageKey::Model, "model_id"),
            newest(UsageKey::Project, "project_slug"),
        );
        let query = self.ask(&sql, asked.organization).param("limit", u64::from(asked.limit));
        let query = query.param("start", bound(asked.start)).param("end", bound(asked.end));
        self.all::<Sums>(query).await?.into_iter().map(group).collect()
    }
}

fn group(row: Sums) -> Result<UsageGroup, LogStoreError> {
    let count = |sum, column| i64::try_from(sum).map_err(|_| impossible(column));
    Ok(UsageGroup {
        day: row.day.map(|day| time(day, "recorded_at")).transpose()?,
        agent_id: row.agent.map(AgentId),
        agent_slug: row.newest_agent,
        model_ref: row.known_model.map(ModelId),
        model_id: row.newest_model,
        project_id: row.project.map(ProjectId),
        project_slug: row.newest_project,
        tokens: TokenCounts {
            tokens_in: count(row.sum_in, "tokens_in")?,
            tokens_out: count(row.sum_out, "tokens_out")?,
            cache_read_tokens: count(row.sum_cache_read, "cache_read_tokens")?,
            cache_write_tokens: count(row.sum_cache_write, "cache_write_tokens")?,
        },
        cost: money(row.sum_cost, "cost")?,
        reports: row.reports,
        corrections: row.corrections,
        unmeasured_reports: row.unmeasured,
        unpriced_reports: row.unpriced,
    })
}
