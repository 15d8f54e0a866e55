//! Reading tasks: one with what a command needs, and lists.

use sqlx::{Postgres, QueryBuilder};
use time::OffsetDateTime;
use uuid::Uuid;

use super::Store;
use super::error::StoreError;
use super::rows::{REQUEST_COLUMNS, SESSION_COLUMNS, TASK_COLUMNS, request, session, task};
use crate::domain::aggregate::Aggregate;
use crate::domain::ids::{
    AccountId, AgentId, OrganizationId, PersonId, ProjectId, RequestId, SessionId, ShortId, TaskId,
};
use crate::domain::status::Status;
use crate::domain::task::Task;
use crate::domain::time::Timestamp;

/// What a command names beside the task itself: read although it may be closed or settled.
#[derive(Debug, Clone, Default)]
pub struct Want {
    /// A session by id.
    pub session: Option<SessionId>,
    /// A session by key.
    pub session_key: Option<String>,
    /// Requests by id.
    pub requests: Vec<RequestId>,
    /// Requests by key.
    pub request_key: Option<String>,
}

/// How a list is ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sort {
    /// The newest first.
    #[default]
    Newest,
    /// The longest in its status first.
    StatusSince,
}

/// Where a page begins: after this task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskPosition {
    /// `created_at` or `status_since`, by the sort.
    pub at: Timestamp,
    /// The task.
    pub id: TaskId,
}

/// What a list of tasks holds.
#[derive(Debug, Clone, Default)]
pub struct TaskFilter {
    /// Any of these; empty: all.
    pub statuses: Vec<Status>,
    /// Of this agent.
    pub agent: Option<AgentId>,
    /// Of this owner.
    pub owner: Option<PersonId>,
    /// With this primary project.
    pub project: Option<ProjectId>,
    /// Of this kind of origin.
    pub origin_kind: Option<String>,
    /// With this subject.
    pub subject: Option<String>,
    /// With all these labels.
    pub labels: Vec<(String, String)>,
    /// With this text in title, short id, agent or project slug.
    pub text: Option<String>,
    /// Created by this trigger.
    pub created_by: Option<AccountId>,
}

/// One page of a list.
#[derive(Debug)]
pub struct TaskPage {
    /// The tasks.
    pub tasks: Vec<Task>,
    /// Where the next page begins, if there is more.
    pub next: Option<TaskPosition>,
}

impl Store {
    /// The task of that number.
    pub async fn task(&self, organization: OrganizationId, short_id: ShortId) -> Result<Option<Task>, StoreError> {
        let mut lease = self.lease().await?;
        let row = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {TASK_COLUMNS} FROM agent_runtime.tasks WHERE organization_id = $1 AND short_number = $2"
        )))
        .bind(organization.0)
        .bind(short_id.0)
        .persistent(self.named())
        .fetch_optional(&mut *lease)
        .await?;
        lease.done().await?;
        row.map(|row| task(&row)).transpose()
    }

    /// The task with its open sessions and requests and those that `want` names. The task is read first: should the
    /// rest be newer, the commit's compare finds out.
    pub async fn load(
        &self,
        organization: OrganizationId,
        task_id: TaskId,
        want: &Want,
    ) -> Result<Option<Aggregate>, StoreError> {
        let mut lease = self.lease().await?;
        let row = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {TASK_COLUMNS} FROM agent_runtime.tasks WHERE organization_id = $1 AND id = $2"
        )))
        .bind(organization.0)
        .bind(task_id.0)
        .persistent(self.named())
        .fetch_optional(&mut *lease)
        .await?;
        let Some(row) = row else {
            lease.done().await?;
            return Ok(None);
        };
        let task = task(&row)?;
        let mut sessions = Vec::new();
        if task.facts().open_sessions > 0 || want.session.is_some() || want.session_key.is_some() {
            let rows = sqlx::query(sqlx::AssertSqlSafe(format!(
                "SELECT {SESSION_COLUMNS} FROM agent_runtime.sessions WHERE organization_id = $1 AND task_id = $2
                    AND (closed_at IS NULL OR id = $3 OR session_key = $4) ORDER BY generation"
            )))
            .bind(organization.0)
            .bind(task_id.0)
            .bind(want.session.map(|id| id.0))
            .bind(want.session_key.clone())
            .persistent(self.named())
            .fetch_all(&mut *lease)
            .await?;
            sessions = rows.iter().map(session).collect::<Result<Vec<_>, _>>()?;
        }
        let mut requests = Vec::new();
        if task.facts().open_requests > 0 || !want.requests.is_empty() || want.request_key.is_some() {
            let rows = sqlx::query(sqlx::AssertSqlSafe(format!(
                "SELECT {REQUEST_COLUMNS} FROM agent_runtime.requests WHERE organization_id = $1 AND task_id = $2
                    AND (status = 'open' OR id = ANY ($3) OR request_key = $4) ORDER BY opened_at, id"
            )))
            .bind(organization.0)
            .bind(task_id.0)
            .bind(want.requests.iter().map(|id| id.0).collect::<Vec<Uuid>>())
            .bind(want.request_key.clone())
            .persistent(self.named())
            .fetch_all(&mut *lease)
            .await?;
            requests = rows.iter().map(request).collect::<Result<Vec<_>, _>>()?;
        }
        lease.done().await?;
        Ok(Some(Aggregate::new(task, sessions, requests)))
    }

    /// A page of the organization's tasks.
    pub async fn tasks(
        &self,
        organization: OrganizationId,
        filter: &TaskFilter,
        sort: Sort,
        after: Option<TaskPosition>,
        limit: u32,
    ) -> Result<TaskPage, StoreError> {
        let mut query = QueryBuilder::<Postgres>::new("SELECT ");
        query.push(TASK_COLUMNS).push(" FROM agent_runtime.tasks WHERE organization_id = ").push_bind(organization.0);
        push_filter(&mut query, filter);
        if let Some(position) = after {
            let (at, id) = (OffsetDateTime::from(position.at), position.id.0);
            let compare = match sort {
                Sort::Newest => " AND (created_at, id) < (",
                Sort::StatusSince => " AND (status_since, id) > (",
            };
            query.push(compare).push_bind(at).push(", ").push_bind(id).push(")");
        }
        query.push(match sort {
            Sort::Newest => " ORDER BY created_at DESC, id DESC LIMIT ",
            Sort::StatusSince => " ORDER BY status_since, id LIMIT ",
        });
        query.push_bind(i64::from(limit) + 1);
        let mut lease = self.lease().await?;
        let rows = query.build().persistent(self.named()).fetch_all(&mut *lease).await?;
        lease.done().await?;
        let mut tasks = rows.iter().map(task).collect::<Result<Vec<_>, _>>()?;
        let more = tasks.len() > limit as usize;
        tasks.truncate(limit as usize);
        let next = tasks.last().filter(|_| more).map(|last| TaskPosition {
            at: match sort {
                Sort::Newest => last.pinned().created_at,
                Sort::StatusSince => last.facts().status_since,
            },
            id: last.id(),
        });
        Ok(TaskPage { tasks, next })
    }

    /// How many open tasks wait for a person.
    pub async fn waiting(&self, organization: OrganizationId, agent: Option<AgentId>) -> Result<i64, StoreError> {
        let mut lease = self.lease().await?;
        let count = sqlx::query_scalar(
            "SELECT count(*) FROM agent_runtime.tasks WHERE organization_id = $1 AND open_requests > 0
                AND ($2::uuid IS NULL OR agent_id = $2)",
        )
        .bind(organization.0)
        .bind(agent.map(|id| id.0))
        .persistent(self.named())
        .fetch_one(&mut *lease)
        .await?;
        lease.done().await?;
        Ok(count)
    }

    /// The ids of an agent's open tasks, after `after`, in id order.
    pub async fn open_tasks_of(
        &self,
        organization: OrganizationId,
        agent: AgentId,
        after: Option<TaskId>,
        limit: i64,
    ) -> Result<Vec<TaskId>, StoreError> {
        let mut lease = self.lease().await?;
        let ids: Vec<Uuid> = sqlx::query_scalar(
            "SELECT id FROM agent_runtime.tasks WHERE organization_id = $1 AND agent_id = $2 AND outcome IS NULL
                AND id > $3 ORDER BY id LIMIT $4",
        )
        .bind(organization.0)
        .bind(agent.0)
        .bind(after.map_or(Uuid::nil(), |id| id.0))
        .bind(limit)
        .persistent(self.named())
        .fetch_all(&mut *lease)
        .await?;
        lease.done().await?;
        Ok(ids.into_iter().map(TaskId).collect())
    }

    /// How many tasks have an open session, over all organizations.
    pub async fn open_sessions(&self) -> Result<i64, StoreError> {
        self.scalar("SELECT count(*) FROM agent_runtime.sessions WHERE closed_at IS NULL").await
    }
}

fn push_filter(query: &mut QueryBuilder<Postgres>, filter: &TaskFilter) {
    if !filter.statuses.is_empty() {
        let names: Vec<String> = filter.statuses.iter().map(ToString::to_string).collect();
        query.push(" AND status = ANY (").push_bind(names).push(")");
    }
    if let Some(agent) = filter.agent {
        query.push(" AND agent_id = ").push_bind(agent.0);
    }
    if let Some(owner) = &filter.owner {
        query.push(" AND owner = ").push_bind(owner.to_string());
    }
    if let Some(project) = filter.project {
        query.push(" AND project_id = ").push_bind(project.0);
    }
    if let Some(kind) = &filter.origin_kind {
        query.push(" AND origin_kind = ").push_bind(kind.clone());
    }
    if let Some(subject) = &filter.subject {
        query.push(" AND subject = ").push_bind(subject.clone());
    }
    if let Some(account) = filter.created_by {
        query.push(" AND created_by_account = ").push_bind(account.0);
    }
    for (key, value) in &filter.labels {
        let label = serde_json::json!({ key: value }).to_string();
        query.push(" AND labels @> ").push_bind(label).push("::jsonb");
    }
    if let Some(text) = &filter.text {
        let escaped = text.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
        let pattern = format!("%{escaped}%");
        query.push(" AND (title ILIKE ").push_bind(pattern.clone());
        query.push(" OR agent_slug ILIKE ").push_bind(pattern.clone());
        query.push(" OR project_slug ILIKE ").push_bind(pattern);
        query.push(" OR 'T-' || short_number ILIKE ").push_bind(escaped).push(")");
    }
}
