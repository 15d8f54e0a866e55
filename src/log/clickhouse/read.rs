//! Reading: the port itself.
//!
//! Values are parameters of the server's (`{name:Type}`). UUIDs are ordered by `UUIDToNum`, because ClickHouse itself
//! orders them by their second half.

use clickhouse::query::Query;
use clickhouse::{Row, RowOwned, RowRead};
use futures::FutureExt as _;
use serde::Deserialize;
use uuid::Uuid;

use super::ClickHouseLog;
use super::fault::within;
use super::rows::{StoredEvent, StoredUsage, bound};
use crate::domain::event::{Event, EventType};
use crate::domain::ids::{OrganizationId, ReportId, ShortId, TaskId};
use crate::domain::log_page::EventPage;
use crate::log::{
    Answer, Batch, Coverage, EventRow, LogStore, LogStoreError, Operation, OperationKind, OperationsQuery, UsageGroup,
    UsageQuery, UsageRow,
};

/// Tasks, or reports, that one question names, so that its text stays far below every limit.
const KEYS_PER_QUESTION: usize = 1_000;

const COVERAGE: &str = "
SELECT ?fields FROM (
    SELECT organization_id, task_id, toInt64(sum(e)) AS seqs, toInt64(sum(m)) AS max_seq, toInt64(sum(i)) AS event_ids,
        toInt64(sum(r)) AS reports
    FROM (
        SELECT organization_id, task_id, uniqExact(seq) AS e, max(seq) AS m, uniqExact(event_id) AS i, 0 AS r
        FROM agent_task_events WHERE (organization_id, task_id) IN {tasks:Array(Tuple(UUID, UUID))}
        GROUP BY organization_id, task_id
        UNION ALL
        SELECT organization_id, task_id, 0 AS e, 0 AS m, 0 AS i, uniqExact(report_id) AS r
        FROM agent_usage WHERE (organization_id, task_id) IN {tasks:Array(Tuple(UUID, UUID))}
        GROUP BY organization_id, task_id
    )
    GROUP BY organization_id, task_id
)";

#[derive(Row, Deserialize)]
struct Covered {
    #[serde(with = "clickhouse::serde::uuid")]
    organization_id: Uuid,
    #[serde(with = "clickhouse::serde::uuid")]
    task_id: Uuid,
    seqs: i64,
    max_seq: i64,
    event_ids: i64,
    reports: i64,
}

#[derive(Row, Deserialize)]
struct Seq {
    seq: i64,
}

#[derive(Row, Deserialize)]
struct Report {
    #[serde(with = "clickhouse::serde::uuid")]
    report_id: Uuid,
}

impl ClickHouseLog {
    /// A question that the rows of one organization answer.
    pub(super) fn ask(&self, sql: &str, organization: OrganizationId) -> Query {
        self.client(self.options.query_timeout).query(sql).param("organization", organization.0)
    }

    pub(super) async fn all<T: RowOwned + RowRead>(&self, query: Query) -> Result<Vec<T>, LogStoreError> {
        within(self.options.query_timeout, query.fetch_all()).await.map_err(LogStoreError::on_read)
    }

    async fn covered(&self, tasks: &[(OrganizationId, TaskId)]) -> Result<Vec<Coverage>, LogStoreError> {
        let mut coverage = Vec::with_capacity(tasks.len());
        for some in tasks.chunks(KEYS_PER_QUESTION) {
            let ids: Vec<(Uuid, Uuid)> = some.iter().map(|(organization, task)| (organization.0, task.0)).collect();
            let query = self.client(self.options.query_timeout).query(COVERAGE).param("tasks", ids);
            coverage.extend(self.all::<Covered>(query).await?.into_iter().map(|row| Coverage {
                organization: row.organization_id.into(),
                task: row.task_id.into(),
                seqs: row.seqs,
                max_seq: row.max_seq,
                event_ids: row.event_ids,
                reports: row.reports,
            }));
        }
        Ok(coverage)
    }

    async fn page(
        &self,
        organization: OrganizationId,
        task: TaskId,
        page: &EventPage,
    ) -> Result<(Vec<Event>, bool), LogStoreError> {
        let direction = if page.is_backwards() { "DESC" } else { "ASC" };
        let mut part =
            "organization_id = {organization:UUID} AND task_id = {task:UUID} AND seq > {after:Int64}".to_owned();
        if page.before_seq.is_some() {
            part.push_str(" AND seq < {before:Int64}");
        }
        let newest = format!("ORDER BY seq {direction}, version DESC LIMIT 1 BY seq");
        // The type is looked at when each seq has its one row; payloads only of the rows of the page.
        let typed = if page.types.is_empty() {
            String::new()
        } else {
            format!(
                "AND seq IN (SELECT seq FROM (SELECT seq, type FROM agent_task_events WHERE {part} {newest})
                    WHERE type IN {{types:Array(String)}} ORDER BY seq {direction} LIMIT {{limit:UInt64}})"
            )
        };
        let sql = format!("SELECT ?fields FROM agent_task_events WHERE {part} {typed} {newest} LIMIT {{limit:UInt64}}");
        let mut query = self.ask(&sql, organization).param("task", task.0).param("limit", u64::from(page.limit) + 1);
        query = query.param("after", page.after_seq.unwrap_or_default());
        if let Some(before) = page.before_seq {
            query = query.param("before", before);
        }
        if !page.types.is_empty() {
            query = query.param("types", &page.types);
        }
        let rows = self.all::<StoredEvent>(query).await?;
        let events = rows.into_iter().map(|row| Ok(row.into_row()?.into_event()?));
        Ok(page.cut(events.collect::<Result<Vec<_>, LogStoreError>>()?))
    }

    async fn operations_page(&self, asked: &OperationsQuery) -> Result<Vec<Operation>, LogStoreError> {
        let mut sql = "SELECT ?fields FROM operations_log WHERE organization_id = {organization:UUID}".to_owned();
        if asked.start.is_some() {
            sql += " AND recorded_at >= fromUnixTimestamp64Micro({start:Int64}, 'UTC')";
        }
        if asked.end.is_some() {
            sql += " AND recorded_at < fromUnixTimestamp64Micro({end:Int64}, 'UTC')";
        }
        if asked.agent.is_some() {
            sql += " AND agent_id = {agent:UUID}";
        }
        if asked.kind.is_some() {
            sql += " AND kind = {kind:String}";
        }
        if asked.after.is_some() {
            // The first part is implied; months are left out by it.
            sql += " AND recorded_at <= fromUnixTimestamp64Micro({after_time:Int64}, 'UTC')
                AND (recorded_at, UUIDToNum(task_id), seq) <
                    (fromUnixTimestamp64Micro({after_time:Int64}, 'UTC'), UUIDToNum({after_task:UUID}),
                        {after_seq:Int64})";
        }
        sql += " ORDER BY recorded_at DESC, UUIDToNum(task_id) DESC, seq DESC LIMIT {limit:UInt64}";
        let mut query = self.ask(&sql, asked.organization).param("limit", u64::from(asked.limit));
        if let Some(start) = asked.start {
            query = query.param("start", bound(start));
        }
        if let Some(end) = asked.end {
            query = query.param("end", bound(end));
        }
        if let Some(agent) = asked.agent {
            query = query.param("agent", agent.0);
        }
        if let Some(kind) = asked.kind {
            query = query.param("kind", kind.as_str());
        }
        if let Some(after) = asked.after {
            query = query.param("after_time", bound(after.recorded_at));
            query = query.param("after_task", after.task.0).param("after_seq", after.seq);
        }
        let rows = self.all::<StoredEvent>(query).await?;
        rows.into_iter().map(|row| operation(row.into_row()?)).collect()
    }
}

fn operation(row: EventRow) -> Result<Operation, LogStoreError> {
    // As the view has it.
    let is_outcome = row.event_type == EventType::OutcomeSet.as_str();
    Ok(Operation {
        kind: if is_outcome { OperationKind::Outcome } else { OperationKind::Resolution },
        task: row.task_id,
        short_id: ShortId(row.short_number),
        agent_id: row.agent_id,
        agent_slug: row.agent_slug.clone(),
        project_id: row.project_id,
        event: row.into_event()?,
    })
}

impl LogStore for ClickHouseLog {
    fn name(&self) -> &'static str {
        "clickhouse"
    }

    fn migrate(&self) -> Answer<'_, ()> {
        self.create().boxed()
    }

    fn append<'a>(&'a self, batch: &'a Batch) -> Answer<'a, ()> {
        self.write(batch).boxed()
    }

    fn coverage<'a>(&'a self, tasks: &'a [(OrganizationId, TaskId)]) -> Answer<'a, Vec<Coverage>> {
        self.covered(tasks).boxed()
    }

    fn seqs(&self, organization: OrganizationId, task: TaskId) -> Answer<'_, Vec<i64>> {
        async move {
            let sql = "SELECT DISTINCT ?fields FROM agent_task_events
                WHERE organization_id = {organization:UUID} AND task_id = {task:UUID} ORDER BY seq";
            let rows = self.all::<Seq>(self.ask(sql, organization).param("task", task.0)).await?;
            Ok(rows.into_iter().map(|row| row.seq).collect())
        }
        .boxed()
    }

    fn report_ids(&self, organization: OrganizationId, task: TaskId) -> Answer<'_, Vec<ReportId>> {
        async move {
            let sql = "SELECT DISTINCT ?fields FROM agent_usage
                WHERE organization_id = {organization:UUID} AND task_id = {task:UUID}";
            let rows = self.all::<Report>(self.ask(sql, organization).param("task", task.0)).await?;
            Ok(rows.into_iter().map(|row| row.report_id.into()).collect())
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
            let sql = "SELECT ?fields FROM agent_task_events
                WHERE organization_id = {organization:UUID} AND task_id IN {tasks:Array(UUID)}
                    AND seq BETWEEN {first:Int64} AND {last:Int64}
                ORDER BY UUIDToNum(task_id), seq, version DESC";
            let ids: Vec<Uuid> = tasks.iter().map(|task| task.0).collect();
            let query = self.ask(sql, organization).param("tasks", ids).param("first", first).param("last", last);
            self.all::<StoredEvent>(query).await?.into_iter().map(StoredEvent::into_row).collect()
        }
        .boxed()
    }

    fn stored_usage<'a>(
        &'a self,
        organization: OrganizationId,
        reports: &'a [(TaskId, ReportId)],
    ) -> Answer<'a, Vec<UsageRow>> {
        async move {
            let sql = "SELECT ?fields FROM agent_usage
                WHERE organization_id = {organization:UUID}
                    AND (task_id, report_id) IN {reports:Array(Tuple(UUID, UUID))}";
            let mut rows = Vec::with_capacity(reports.len());
            for some in reports.chunks(KEYS_PER_QUESTION) {
                let ids: Vec<(Uuid, Uuid)> = some.iter().map(|(task, report)| (task.0, report.0)).collect();
                for row in self.all::<StoredUsage>(self.ask(sql, organization).param("reports", ids)).await? {
                    rows.push(row.into_row()?);
                }
            }
            Ok(rows)
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
}
