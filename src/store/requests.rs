//! Reading requests. A read shows an open request as expired from the moment on at which it is, by the database's
//! clock, and writes nothing.

use sqlx::postgres::PgRow;
use sqlx::{Postgres, QueryBuilder, Row};
use time::OffsetDateTime;

use super::Store;
use super::error::StoreError;
use super::rows::{REQUEST_COLUMNS, TASK_COLUMNS, request, task};
use crate::domain::change::BodyHash;
use crate::domain::digest::Digest;
use crate::domain::ids::{AgentId, OrganizationId, RequestId, TaskId};
use crate::domain::request::{Request, RequestKind, RequestStatus};
use crate::domain::task::Task;
use crate::domain::time::Timestamp;

/// Where a page of the inbox begins: after this request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InboxPage {
    /// When it opened.
    pub at: Timestamp,
    /// The request.
    pub id: RequestId,
}

/// A request of the inbox with its task.
#[derive(Debug)]
pub struct InboxRow {
    /// The request.
    pub request: Request,
    /// Its task.
    pub task: Task,
}

const DUE: &str = "(status = 'open' AND expires_at <= statement_timestamp()) AS due";

fn shown(row: &PgRow) -> Result<Request, StoreError> {
    let mut request = request(row)?;
    if row.try_get::<bool, _>("due")? {
        request.status = RequestStatus::Expired;
    }
    Ok(request)
}

/// A page of the inbox as it is asked for. The time is that of the statement, which an index can be asked for.
struct Inbox {
    organization: OrganizationId,
    kind: Option<RequestKind>,
    agent: Option<AgentId>,
    after: Option<InboxPage>,
    limit: u32,
}

impl Inbox {
    /// The statement. What has expired is what was written so and what no worker has seen yet: two lists, merged.
    fn push(&self, query: &mut QueryBuilder<Postgres>, status: RequestStatus) {
        match status {
            RequestStatus::Open => self.push_branch(query, status, " AND expires_at > statement_timestamp()"),
            RequestStatus::Expired => {
                query.push("SELECT * FROM ((");
                self.push_branch(query, status, "");
                query.push(") UNION ALL (");
                self.push_branch(query, RequestStatus::Open, " AND expires_at <= statement_timestamp()");
                query.push(")) AS merged ORDER BY opened_at, id LIMIT ").push_bind(i64::from(self.limit) + 1);
            }
            other => self.push_branch(query, other, ""),
        }
    }

    fn push_branch(&self, query: &mut QueryBuilder<Postgres>, status: RequestStatus, condition: &'static str) {
        query.push("SELECT ").push(REQUEST_COLUMNS).push(", task_id, ").push(DUE);
        query.push(" FROM agent_runtime.requests WHERE organization_id = ").push_bind(self.organization.0);
        query.push(" AND status = ").push_bind(status.as_str()).push(condition);
        if let Some(kind) = self.kind {
            query.push(" AND kind = ").push_bind(kind.as_str());
        }
        if let Some(agent) = self.agent {
            query.push(" AND agent_id = ").push_bind(agent.0);
        }
        if let Some(position) = self.after {
            query.push(" AND (opened_at, id) > (").push_bind(OffsetDateTime::from(position.at)).push(", ");
            query.push_bind(position.id.0).push(")");
        }
        query.push(" ORDER BY opened_at, id LIMIT ").push_bind(i64::from(self.limit) + 1);
    }
}

impl Store {
    /// The task's requests, oldest first.
    pub async fn requests(&self, organization: OrganizationId, task: TaskId) -> Result<Vec<Request>, StoreError> {
        let query = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {REQUEST_COLUMNS}, {DUE} FROM agent_runtime.requests
             WHERE organization_id = $1 AND task_id = $2 ORDER BY opened_at, id"
        )))
        .bind(organization.0)
        .bind(task.0);
        let rows = self.all(query).await?;
        rows.iter().map(shown).collect()
    }

    /// One request of the task.
    pub async fn request(
        &self,
        organization: OrganizationId,
        task: TaskId,
        id: RequestId,
    ) -> Result<Option<Request>, StoreError> {
        let query = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {REQUEST_COLUMNS}, {DUE} FROM agent_runtime.requests
             WHERE organization_id = $1 AND task_id = $2 AND id = $3"
        )))
        .bind(organization.0)
        .bind(task.0)
        .bind(id.0);
        let row = self.first(query).await?;
        row.map(|row| shown(&row)).transpose()
    }

    /// The newest request that was asked under `key` with the same digests, as it is now, and its body's hash.
    pub async fn asked_before(
        &self,
        organization: OrganizationId,
        task: TaskId,
        key: &str,
        digests: &[Digest],
    ) -> Result<Option<(Request, BodyHash)>, StoreError> {
        let query = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {REQUEST_COLUMNS}, {DUE}, request_hash FROM agent_runtime.requests
             WHERE organization_id = $1 AND task_id = $2 AND request_key = $3 ORDER BY opened_at DESC, id DESC"
        )))
        .bind(organization.0)
        .bind(task.0)
        .bind(key.to_owned());
        let rows = self.all(query).await?;
        for row in &rows {
            let request = shown(row)?;
            if request.binds_to(digests) {
                let hash: Vec<u8> = row.try_get("request_hash")?;
                return Ok(Some((request, hash.try_into().unwrap_or_default())));
            }
        }
        Ok(None)
    }

    /// How Postgres answers such a page of the inbox: the plan of the very statement, run and measured, as JSON.
    #[doc(hidden)]
    pub async fn explain_inbox(
        &self,
        organization: OrganizationId,
        status: RequestStatus,
        kind: Option<RequestKind>,
        agent: Option<AgentId>,
        after: Option<InboxPage>,
        limit: u32,
    ) -> Result<serde_json::Value, StoreError> {
        let mut query = QueryBuilder::new("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ");
        Inbox { organization, kind, agent, after, limit }.push(&mut query, status);
        let mut lease = self.lease().await?;
        let plan = query.build_query_scalar().persistent(false).fetch_one(&mut *lease).await?;
        lease.done().await?;
        Ok(plan)
    }

    /// The organization's requests, oldest first, each with its task.
    pub async fn inbox(
        &self,
        organization: OrganizationId,
        status: RequestStatus,
        kind: Option<RequestKind>,
        agent: Option<AgentId>,
        after: Option<InboxPage>,
        limit: u32,
    ) -> Result<(Vec<InboxRow>, Option<InboxPage>), StoreError> {
        let mut query = QueryBuilder::<Postgres>::new("");
        Inbox { organization, kind, agent, after, limit }.push(&mut query, status);
        let mut lease = self.lease().await?;
        // Never named, like the lists of tasks: one plan for all values would not serve each.
        let rows = query.build().persistent(false).fetch_all(&mut *lease).await?;
        let ids: Vec<uuid::Uuid> = rows.iter().map(|row| row.try_get("task_id")).collect::<Result<_, _>>()?;
        let tasks = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {TASK_COLUMNS} FROM agent_runtime.tasks WHERE organization_id = $1 AND id = ANY ($2)"
        )))
        .bind(organization.0)
        .bind(&ids)
        .persistent(self.named())
        .fetch_all(&mut *lease)
        .await?;
        lease.done().await?;
        let tasks = tasks.iter().map(task).collect::<Result<Vec<_>, _>>()?;
        let mut found = Vec::new();
        for (row, id) in rows.iter().zip(ids) {
            let Some(task) = tasks.iter().find(|task| task.id().0 == id) else { continue };
            found.push(InboxRow { request: shown(row)?, task: task.clone() });
        }
        let more = found.len() > limit as usize;
        found.truncate(limit as usize);
        let next = found.last().filter(|_| more);
        let next = next.map(|row| InboxPage { at: row.request.opened_at, id: row.request.id });
        Ok((found, next))
    }
}
