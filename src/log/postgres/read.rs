//! Reading: the port itself.

use futures::FutureExt as _;
use futures::future::BoxFuture;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Postgres, QueryBuilder, Row as _};
use time::OffsetDateTime;
use uuid::Uuid;

use super::PostgresLog;
use crate::domain::digest::Digest;
use crate::domain::event::Event;
use crate::domain::ids::{OrganizationId, ReportId, ShortId, TaskId};
use crate::domain::log_page::EventPage;
use crate::domain::money::{Money, Price, Prices, TokenCounts};
use crate::log::{
    Answer, Batch, Coverage, EventRow, LogStore, LogStoreError, Operation, OperationsQuery, UsageGroup, UsageKey,
    UsageQuery, UsageRow,
};

const EVENT_COLUMNS: &str = "organization_id, task_id, seq, event_id, type, schema_version, actor_kind, actor_id, \
    channel, session_id, at, recorded_at, payload, redacted, digest, short_number, agent_id, agent_slug, project_id, \
    version";

const USAGE_COLUMNS: &str = "organization_id, task_id, report_id, seq, account_id, idempotency_key, session_id, \
    model_id, model_ref, tokens_in, tokens_out, cache_read_tokens, cache_write_tokens, input_cost_per_million, \
    output_cost_per_million, cache_read_cost_per_million, cache_write_cost_per_million, cost, measured, corrects, \
    unmeasured_delta, unpriced_delta, recorded_at, short_number, agent_id, agent_slug, project_id, project_slug, \
    version";

fn impossible(column: &'static str) -> LogStoreError {
    LogStoreError::ImpossibleRow(format!("{column} has a value that cannot be"))
}

fn money(amount: Option<rust_decimal::Decimal>, column: &'static str) -> Result<Option<Money>, LogStoreError> {
    amount.map(Money::new).transpose().map_err(|_| impossible(column))
}

fn event_row(row: &PgRow) -> Result<EventRow, LogStoreError> {
    let uuid = |column: &str| row.try_get::<Uuid, _>(column);
    let some = |column: &str| row.try_get::<Option<Uuid>, _>(column);
    Ok(EventRow {
        organization_id: uuid("organization_id")?.into(),
        task_id: uuid("task_id")?.into(),
        seq: row.try_get("seq")?,
        event_id: uuid("event_id")?.into(),
        event_type: row.try_get("type")?,
        schema_version: row.try_get("schema_version")?,
        actor_kind: row.try_get("actor_kind")?,
        actor_id: row.try_get("actor_id")?,
        channel: row.try_get("channel")?,
        session_id: some("session_id")?.map(Into::into),
        at: row.try_get::<OffsetDateTime, _>("at")?.into(),
        recorded_at: row.try_get::<OffsetDateTime, _>("recorded_at")?.into(),
        payload: row.try_get("payload")?,
        redacted: row.try_get("redacted")?,
        digest: Digest::parse(row.try_get("digest")?).ok_or_else(|| impossible("digest"))?,
        short_number: row.try_get("short_number")?,
        agent_id: uuid("agent_id")?.into(),
        agent_slug: row.try_get("agent_slug")?,
        project_id: some("project_id")?.map(Into::into),
        version: u64::try_from(row.try_get::<i64, _>("version")?).map_err(|_| impossible("version"))?,
        trace: None,
    })
}

fn tokens(row: &PgRow) -> Result<TokenCounts, LogStoreError> {
    Ok(TokenCounts {
        tokens_in: row.try_get("tokens_in")?,
        tokens_out: row.try_get("tokens_out")?,
        cache_read_tokens: row.try_get("cache_read_tokens")?,
        cache_write_tokens: row.try_get("cache_write_tokens")?,
    })
}

fn usage_row(row: &PgRow) -> Result<UsageRow, LogStoreError> {
    let uuid = |column: &str| row.try_get::<Uuid, _>(column);
    let some = |column: &str| row.try_get::<Option<Uuid>, _>(column);
    let price = |column: &'static str| -> Result<Option<Price>, LogStoreError> {
        row.try_get::<Option<rust_decimal::Decimal>, _>(column)?
            .map(Price::new)
            .transpose()
            .map_err(|_| impossible(column))
    };
    Ok(UsageRow {
        organization_id: uuid("organization_id")?.into(),
        task_id: uuid("task_id")?.into(),
        report_id: uuid("report_id")?.into(),
        seq: row.try_get("seq")?,
        account_id: uuid("account_id")?.into(),
        idempotency_key: row.try_get("idempotency_key")?,
        session_id: some("session_id")?.map(Into::into),
        model_id: row.try_get("model_id")?,
        model_ref: some("model_ref")?.map(Into::into),
        tokens: tokens(row)?,
        prices: Prices {
            input_cost_per_million: price("input_cost_per_million")?,
            output_cost_per_million: price("output_cost_per_million")?,
            cache_read_cost_per_million: price("cache_read_cost_per_million")?,
            cache_write_cost_per_million: price("cache_write_cost_per_million")?,
        },
        cost: money(row.try_get("cost")?, "cost")?,
        measured: row.try_get("measured")?,
        corrects: some("corrects")?.map(Into::into),
        unmeasured_delta: row.try_get("unmeasured_delta")?,
        unpriced_delta: row.try_get("unpriced_delta")?,
        recorded_at: row.try_get::<OffsetDateTime, _>("recorded_at")?.into(),
        short_number: row.try_get("short_number")?,
        agent_id: uuid("agent_id")?.into(),
        agent_slug: row.try_get("agent_slug")?,
        project_id: some("project_id")?.map(Into::into),
        project_slug: row.try_get("project_slug")?,
        version: u64::try_from(row.try_get::<i64, _>("version")?).map_err(|_| impossible("version"))?,
        trace: None,
    })
}

impl PostgresLog {
    async fn rows(&self, query: Query<'_, Postgres, PgArguments>) -> Result<Vec<PgRow>, LogStoreError> {
        self.fetch(query).await.map_err(LogStoreError::on_read)
    }

    async fn fetch(&self, query: Query<'_, Postgres, PgArguments>) -> Result<Vec<PgRow>, LogStoreError> {
        if self.named {
            return Ok(query.fetch_all(&self.pool).await?);
        }
        let mut transaction = self.begin().await?;
        let rows = query.persistent(false).fetch_all(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(rows)
    }

    async fn covered(&self, tasks: &[(OrganizationId, TaskId)]) -> Result<Vec<Coverage>, LogStoreError> {
        let query = sqlx::query(
            "SELECT w.organization_id, w.task_id, e.seqs, coalesce(e.max_seq, 0) AS max_seq, e.event_ids, u.reports
             FROM unnest($1::uuid[], $2::uuid[]) AS w(organization_id, task_id),
             LATERAL (
                SELECT count(DISTINCT seq) AS seqs, max(seq) AS max_seq, count(DISTINCT event_id) AS event_ids
                FROM agent_log.agent_task_events e
                WHERE e.organization_id = w.organization_id AND e.task_id = w.task_id
             ) e,
             LATERAL (
                SELECT count(*) AS reports FROM agent_log.agent_usage u
                WHERE u.organization_id = w.organization_id AND u.task_id = w.task_id
             ) u
             WHERE e.seqs > 0 OR u.reports > 0",
        );
        let organizations: Vec<Uuid> = tasks.iter().map(|(organization, _)| organization.0).collect();
        let ids: Vec<Uuid> = tasks.iter().map(|(_, task)| task.0).collect();
        let rows = self.rows(query.bind(organizations).bind(ids)).await?;
        let coverage = rows.iter().map(|row| {
            Ok(Coverage {
                organization: row.try_get::<Uuid, _>("organization_id")?.into(),
                task: row.try_get::<Uuid, _>("task_id")?.into(),
                seqs: row.try_get("seqs")?,
                max_seq: row.try_get("max_seq")?,
                event_ids: row.try_get("event_ids")?,
                reports: row.try_get("reports")?,
            })
        });
        coverage.collect()
    }

    async fn page(
        &self,
        organization: OrganizationId,
        task: TaskId,
        page: &EventPage,
    ) -> Result<(Vec<Event>, bool), LogStoreError> {
        let mut query = QueryBuilder::<Postgres>::new("SELECT ");
        query.push(EVENT_COLUMNS).push(" FROM (SELECT DISTINCT ON (seq) * FROM agent_log.agent_task_events");
        query.push(" WHERE organization_id = ").push_bind(organization.0).push(" AND task_id = ").push_bind(task.0);
        query.push(" AND seq > ").push_bind(page.after_seq.unwrap_or_default());
        if let Some(before) = page.before_seq {
            query.push(" AND seq < ").push_bind(before);
        }
        let direction = if page.is_backwards() { "DESC" } else { "ASC" };
        query.push(format!(" ORDER BY seq {direction}, version DESC) log"));
        if !page.types.is_empty() {
            query.push(" WHERE type = ANY (").push_bind(page.types.clone()).push(")");
        }
        query.push(format!(" ORDER BY seq {direction} LIMIT ")).push_bind(i64::from(page.limit) + 1);
        let rows = self.rows(query.build()).await?;
        let events =
            rows.iter().map(|row| Ok(event_row(row)?.into_event()?)).collect::<Result<Vec<_>, LogStoreError>>();
        Ok(page.cut(events?))
    }

    async fn sums(&self, asked: &UsageQuery) -> Result<Vec<UsageGroup>, LogStoreError> {
        let by = |key| asked.group_by.contains(&key);
        let column = |key, column: &str, kind: &str| if by(key) { column.to_owned() } else { format!("NULL::{kind}") };
        let day = column(UsageKey::Day, "date_trunc('day', recorded_at, 'UTC')", "timestamptz");
        let agent = column(UsageKey::Agent, "agent_id", "uuid");
        let model_ref = column(UsageKey::Model, "model_ref", "uuid");
        let model = column(UsageKey::Model, "(CASE WHEN model_ref IS NULL THEN model_id END) COLLATE \"C\"", "text");
        let project = column(UsageKey::Project, "project_id", "uuid");
        let newest = |key, value: &str| {
            column(key, &format!("(array_agg({value} ORDER BY recorded_at DESC, report_id DESC))[1]"), "text")
        };
        let statement = format!(
            "SELECT {day} AS day, {agent} AS agent_id, {model_ref} AS model_ref, {model} AS model,
                {project} AS project_id, {} AS agent_slug, {} AS model_id, {} AS project_slug,
                sum(tokens_in)::bigint AS tokens_in, sum(tokens_out)::bigint AS tokens_out,
                sum(cache_read_tokens)::bigint AS cache_read_tokens,
                sum(cache_write_tokens)::bigint AS cache_write_tokens, sum(cost) AS cost,
                count(*) FILTER (WHERE corrects IS NULL) AS reports,
                count(*) FILTER (WHERE corrects IS NOT NULL) AS corrections,
                sum(unmeasured_delta)::bigint AS unmeasured, sum(unpriced_delta)::bigint AS unpriced
             FROM agent_log.agent_usage
             WHERE organization_id = $1 AND recorded_at >= $2 AND recorded_at < $3
             GROUP BY 1, 2, 3, 4, 5 HAVING count(*) > 0 ORDER BY 1, 2, 3, 4, 5 LIMIT $4",
            newest(UsageKey::Agent, "agent_slug"),
            newest(UsageKey::Model, "model_id"),
            newest(UsageKey::Project, "project_slug"),
        );
        let query = sqlx::query(AssertSqlSafe(statement))
            .bind(asked.organization.0)
            .bind(OffsetDateTime::from(asked.start))
            .bind(OffsetDateTime::from(asked.end))
            .bind(i64::from(asked.limit));
        let groups = self.rows(query).await?.into_iter().map(|row| {
            Ok(UsageGroup {
                day: row.try_get::<Option<OffsetDateTime>, _>("day")?.map(Into::into),
                agent_id: row.try_get::<Option<Uuid>, _>("agent_id")?.map(Into::into),
                agent_slug: row.try_get("agent_slug")?,
                model_ref: row.try_get::<Option<Uuid>, _>("model_ref")?.map(Into::into),
                model_id: row.try_get("model_id")?,
                project_id: row.try_get::<Option<Uuid>, _>("project_id")?.map(Into::into),
                project_slug: row.try_get("project_slug")?,
                tokens: tokens(&row)?,
                cost: money(row.try_get("cost")?, "cost")?,
                reports: row.try_get("reports")?,
                corrections: row.try_get("corrections")?,
                unmeasured_reports: row.try_get("unmeasured")?,
                unpriced_reports: row.try_get("unpriced")?,
            })
        });
        groups.collect()
    }

    async fn operations_page(&self, asked: &OperationsQuery) -> Result<Vec<Operation>, LogStoreError> {
        let mut query = QueryBuilder::<Postgres>::new("SELECT kind, ");
        query.push(EVENT_COLUMNS).push(" FROM agent_log.operations_log WHERE organization_id = ");
        // Repeats what the view says, so that the partial index is seen to fit.
        query.push_bind(asked.organization.0).push(" AND type IN ('outcome.set', 'request.resolved')");
        if let Some(start) = asked.start {
            query.push(" AND recorded_at >= ").push_bind(OffsetDateTime::from(start));
        }
        if let Some(end) = asked.end {
            query.push(" AND recorded_at < ").push_bind(OffsetDateTime::from(end));
        }
        if let Some(agent) = asked.agent {
            query.push(" AND agent_id = ").push_bind(agent.0);
        }
        if let Some(kind) = asked.kind {
            query.push(" AND kind = ").push_bind(kind.as_str());
        }
        if let Some(after) = asked.after {
            query.push(" AND (recorded_at, task_id, seq) < (").push_bind(OffsetDateTime::from(after.recorded_at));
            query.push(", ").push_bind(after.task.0).push(", ").push_bind(after.seq).push(")");
        }
        query.push(" ORDER BY recorded_at DESC, task_id DESC, seq DESC LIMIT ").push_bind(i64::from(asked.limit));
        let operations = self.rows(query.build()).await?.into_iter().map(|row| {
            let kind = row.try_get::<String, _>("kind")?.parse().map_err(|_| impossible("kind"))?;
            let row = event_row(&row)?;
            Ok(Operation {
                kind,
                task: row.task_id,
                short_id: ShortId(row.short_number),
                agent_id: row.agent_id,
                agent_slug: row.agent_slug.clone(),
                project_id: row.project_id,
                event: row.into_event()?,
            })
        });
        operations.collect()
    }
}

impl LogStore for PostgresLog {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn migrate(&self) -> Answer<'_, ()> {
        // Its schema is one of the database's migrations.
        async { Ok(()) }.boxed()
    }

    fn append<'a>(&'a self, batch: &'a Batch) -> Answer<'a, ()> {
        self.write(batch).boxed()
    }

    fn coverage<'a>(&'a self, tasks: &'a [(OrganizationId, TaskId)]) -> Answer<'a, Vec<Coverage>> {
        self.covered(tasks).boxed()
    }

    fn seqs(&self, organization: OrganizationId, task: TaskId) -> Answer<'_, Vec<i64>> {
        async move {
            let query = sqlx::query(
                "SELECT DISTINCT seq FROM agent_log.agent_task_events
                 WHERE organization_id = $1 AND task_id = $2 ORDER BY seq",
            );
            let rows = self.rows(query.bind(organization.0).bind(task.0)).await?;
            rows.iter().map(|row| Ok(row.try_get("seq")?)).collect()
        }
        .boxed()
    }

    fn report_ids(&self, organization: OrganizationId, task: TaskId) -> Answer<'_, Vec<ReportId>> {
        async move {
            let query =
                sqlx::query("SELECT report_id FROM agent_log.agent_usage WHERE organization_id = $1 AND task_id = $2");
            let rows = self.rows(query.bind(organization.0).bind(task.0)).await?;
            rows.iter().map(|row| Ok(ReportId(row.try_get("report_id")?))).collect()
        }
        .boxed()
    }

    fn stored_events<'a>(
        &'a self,
        organization: OrganizationId,
        tasks: &'a [TaskId],
        first: i64,
        last: i64,
    ) -> Answer<'a, Vec<EventRow>> {
        async move {
            let statement = format!(
                "SELECT {EVENT_COLUMNS} FROM agent_log.agent_task_events
                 WHERE organization_id = $1 AND task_id = ANY ($2) AND seq BETWEEN $3 AND $4
                 ORDER BY task_id, seq, version DESC"
            );
            let ids: Vec<Uuid> = tasks.iter().map(|task| task.0).collect();
            let query = sqlx::query(AssertSqlSafe(statement)).bind(organization.0).bind(ids).bind(first).bind(last);
            self.rows(query).await?.iter().map(event_row).collect()
        }
        .boxed()
    }

    fn stored_usage<'a>(
        &'a self,
        organization: OrganizationId,
        reports: &'a [(TaskId, ReportId)],
    ) -> Answer<'a, Vec<UsageRow>> {
        async move {
            let statement = format!(
                "SELECT {USAGE_COLUMNS} FROM agent_log.agent_usage
                 WHERE organization_id = $1 AND (task_id, report_id) IN (SELECT * FROM unnest($2::uuid[], $3::uuid[]))"
            );
            let (tasks, ids): (Vec<Uuid>, Vec<Uuid>) = reports.iter().map(|(task, report)| (task.0, report.0)).unzip();
            let query = sqlx::query(AssertSqlSafe(statement)).bind(organization.0).bind(tasks).bind(ids);
            self.rows(query).await?.iter().map(usage_row).collect()
        }
        .boxed()
    }

    fn events<'a>(
        &'a self,
        organization: OrganizationId,
        task: TaskId,
        page: &'a EventPage,
    ) -> Answer<'a, (Vec<Event>, bool)> {
        self.page(organization, task, page).boxed()
    }

    fn usage<'a>(&'a self, query: &'a UsageQuery) -> Answer<'a, Vec<UsageGroup>> {
        self.sums(query).boxed()
    }

    fn operations<'a>(&'a self, query: &'a OperationsQuery) -> Answer<'a, Vec<Operation>> {
        self.operations_page(query).boxed()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.pool.close().boxed()
    }
}
