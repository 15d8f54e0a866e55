//! The lists of tasks. Each filter alone has an index that serves the list's order, so that a page costs what it shows
//! however many tasks there are; `tests/finding` reads the plans.

use std::sync::LazyLock;
use std::time::Duration;

use sqlx::{Postgres, QueryBuilder};
use time::OffsetDateTime;

use super::Store;
use super::error::StoreError;
use super::rows::{TASK_COLUMNS, task};
use super::search;
use crate::domain::ids::{AccountId, AgentId, OrganizationId, PersonId, ProjectId, TaskId};
use crate::domain::status::Status;
use crate::domain::task::Task;
use crate::domain::time::Timestamp;

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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
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
    /// With this text in title, agent or project slug, or of this short id.
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

/// What waits for a person.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InboxCounts {
    /// Open tasks with an open request.
    pub tasks: i64,
    /// Open requests for feedback.
    pub feedback: i64,
    /// Open requests for approval.
    pub approval: i64,
}

/// The columns of the task `t`, in the form that [`task`] reads.
static COLUMNS: LazyLock<String> =
    LazyLock::new(|| TASK_COLUMNS.split(", ").map(|column| format!("t.{column}")).collect::<Vec<_>>().join(", "));

/// A list as it is asked for.
struct List<'l> {
    organization: OrganizationId,
    filter: &'l TaskFilter,
    sort: Sort,
    after: Option<TaskPosition>,
    limit: u32,
}

impl List<'_> {
    /// The statement, behind `prefix`. Several statuses are several lists that are merged, because no index holds them
    /// in one order.
    fn statement(&self, prefix: &str) -> QueryBuilder<Postgres> {
        let mut statuses = Vec::new();
        for status in &self.filter.statuses {
            if !statuses.contains(status) {
                statuses.push(*status);
            }
        }
        let mut query = QueryBuilder::new(prefix);
        match statuses.as_slice() {
            [] => self.push_branch(&mut query, None),
            [status] => self.push_branch(&mut query, Some(*status)),
            all if all.len() == Status::NAMES.len() => self.push_branch(&mut query, None),
            several => {
                query.push("SELECT * FROM (");
                for (index, status) in several.iter().enumerate() {
                    query.push(if index == 0 { "(" } else { ") UNION ALL (" });
                    self.push_branch(&mut query, Some(*status));
                }
                query.push(")) AS merged ORDER BY ").push(match self.sort {
                    Sort::Newest => "created_at DESC, id DESC",
                    Sort::StatusSince => "status_since, id",
                });
                query.push(" LIMIT ").push_bind(i64::from(self.limit) + 1);
            }
        }
        query
    }

    /// The columns that the list is ordered by, where the index stands that serves the order.
    fn order(&self) -> (&'static str, &'static str) {
        match self.sort {
            Sort::StatusSince => ("t.status_since", "t.id"),
            Sort::Newest if !self.filter.labels.is_empty() => ("l0.created_at", "l0.task_id"),
            Sort::Newest if self.filter.text.is_some() => ("x.created_at", "x.task_id"),
            Sort::Newest => ("t.created_at", "t.id"),
        }
    }

    /// Labels or the text, when the list is of them alone: then their table finds the page, and only its tasks are read.
    fn alone(&self) -> Option<(&'static str, &'static str)> {
        let TaskFilter { labels, text, .. } = self.filter;
        let rest = TaskFilter { labels: Vec::new(), text: None, statuses: Vec::new(), ..self.filter.clone() };
        match (labels.as_slice(), text, self.sort) {
            _ if rest != TaskFilter::default() => None,
            ([_], None, Sort::Newest) => Some(("agent_runtime.task_labels", "l0")),
            ([], Some(_), Sort::Newest) => Some(("agent_runtime.task_texts", "x")),
            _ => None,
        }
    }

    fn push_branch(&self, query: &mut QueryBuilder<Postgres>, status: Option<Status>) {
        query.push("SELECT ").push(COLUMNS.as_str()).push(" FROM agent_runtime.tasks t");
        if let Some((table, alias)) = self.alone().filter(|_| status.is_none()) {
            query.push(format!(" JOIN (SELECT * FROM {table} {alias} WHERE {alias}.organization_id = "));
            query.push_bind(self.organization.0);
            self.push_labels(query);
            self.push_text(query);
            self.push_page(query);
            query.push(format!(") {alias} ON {alias}.organization_id = t.organization_id AND {alias}.task_id = t.id"));
            query.push(" WHERE t.organization_id = ").push_bind(self.organization.0);
            self.push_order(query);
            return;
        }
        for index in 0..self.filter.labels.len() {
            query.push(format!(" JOIN agent_runtime.task_labels l{index}"));
            query.push(format!(" ON l{index}.organization_id = t.organization_id AND l{index}.task_id = t.id"));
        }
        if self.filter.text.is_some() {
            query
                .push(" JOIN agent_runtime.task_texts x ON x.organization_id = t.organization_id AND x.task_id = t.id");
        }
        query.push(" WHERE t.organization_id = ").push_bind(self.organization.0);
        if let Some(status) = status {
            query.push(" AND t.status = ").push_bind(status.as_str());
        }
        self.push_facts(query);
        self.push_labels(query);
        self.push_text(query);
        self.push_page(query);
    }

    /// From the cursor on, in order, one more than a page.
    fn push_page(&self, query: &mut QueryBuilder<Postgres>) {
        if let Some(position) = self.after {
            let (at, id) = self.order();
            let compare = match self.sort {
                Sort::Newest => "<",
                Sort::StatusSince => ">",
            };
            query.push(format!(" AND ({at}, {id}) {compare} (")).push_bind(OffsetDateTime::from(position.at));
            query.push(", ").push_bind(position.id.0).push(")");
        }
        self.push_order(query);
    }

    fn push_order(&self, query: &mut QueryBuilder<Postgres>) {
        let (at, id) = self.order();
        let direction = match self.sort {
            Sort::Newest => " DESC",
            Sort::StatusSince => "",
        };
        query.push(format!(" ORDER BY {at}{direction}, {id}{direction} LIMIT "));
        query.push_bind(i64::from(self.limit) + 1);
    }

    /// The conditions on the task itself.
    fn push_facts(&self, query: &mut QueryBuilder<Postgres>) {
        let filter = self.filter;
        if let Some(agent) = filter.agent {
            query.push(" AND t.agent_id = ").push_bind(agent.0);
            // An agent's open tasks have an index of their own, which holds few.
            if !filter.statuses.is_empty() && !filter.statuses.contains(&Status::Closed) {
                query.push(" AND t.outcome IS NULL");
            }
        }
        if let Some(owner) = &filter.owner {
            query.push(" AND t.owner = ").push_bind(owner.to_string());
        }
        if let Some(project) = filter.project {
            query.push(" AND t.project_id = ").push_bind(project.0);
        }
        if let Some(kind) = &filter.origin_kind {
            query.push(" AND t.origin_kind = ").push_bind(kind.clone());
        }
        if let Some(subject) = &filter.subject {
            query.push(" AND t.subject = ").push_bind(subject.clone());
        }
        if let Some(account) = filter.created_by {
            query.push(" AND t.created_by_account = ").push_bind(account.0);
        }
    }

    fn push_labels(&self, query: &mut QueryBuilder<Postgres>) {
        for (index, (key, value)) in self.filter.labels.iter().enumerate() {
            query.push(format!(" AND l{index}.key = ")).push_bind(key.clone());
            query.push(format!(" AND l{index}.value = ")).push_bind(value.clone());
        }
    }

    fn push_text(&self, query: &mut QueryBuilder<Postgres>) {
        if let Some(text) = &self.filter.text {
            for (index, pattern) in search::patterns(text).into_iter().enumerate() {
                query.push(if index == 0 { " AND (x.text LIKE " } else { " OR x.text LIKE " }).push_bind(pattern);
            }
            query.push(")");
        }
    }
}

impl Store {
    /// A page of the organization's tasks. The statement is never named: one plan for all values would serve the
    /// frequent ones or the rare ones, not both.
    pub async fn tasks(
        &self,
        organization: OrganizationId,
        filter: &TaskFilter,
        sort: Sort,
        after: Option<TaskPosition>,
        limit: u32,
    ) -> Result<TaskPage, StoreError> {
        let mut query = List { organization, filter, sort, after, limit }.statement("");
        let query = query.build().persistent(false);
        let rows = if filter.text.is_some() {
            self.in_time(query).await?
        } else {
            let mut lease = self.lease().await?;
            let rows = query.fetch_all(&mut *lease).await?;
            lease.done().await?;
            rows
        };
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

    /// Searches for no longer than searches may take.
    async fn in_time(
        &self,
        query: sqlx::query::Query<'_, Postgres, sqlx::postgres::PgArguments>,
    ) -> Result<Vec<sqlx::postgres::PgRow>, StoreError> {
        let limit = self.search_timeout;
        let mut lease = self.transaction().await?;
        sqlx::query("SELECT set_config('statement_timeout', $1, true)")
            .bind(limit.as_millis().to_string())
            .persistent(self.named())
            .execute(&mut *lease)
            .await?;
        let rows = query.fetch_all(&mut *lease).await.map_err(|error| too_slow(error, limit))?;
        lease.done().await?;
        Ok(rows)
    }

    /// How Postgres answers such a page: the plan of the very statement, run and measured, as JSON.
    #[doc(hidden)]
    pub async fn explain_tasks(
        &self,
        organization: OrganizationId,
        filter: &TaskFilter,
        sort: Sort,
        after: Option<TaskPosition>,
        limit: u32,
    ) -> Result<serde_json::Value, StoreError> {
        let list = List { organization, filter, sort, after, limit };
        let mut query = list.statement("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ");
        let mut lease = self.lease().await?;
        let plan = query.build_query_scalar().persistent(false).fetch_one(&mut *lease).await?;
        lease.done().await?;
        Ok(plan)
    }

    /// What waits for a person. A request whose time is over does not wait, though no worker has seen it yet.
    pub async fn waiting(
        &self,
        organization: OrganizationId,
        agent: Option<AgentId>,
    ) -> Result<InboxCounts, StoreError> {
        let mut lease = self.lease().await?;
        let (tasks, feedback, approval) = sqlx::query_as(
            "SELECT count(DISTINCT task_id),
                count(*) FILTER (WHERE kind = 'feedback'), count(*) FILTER (WHERE kind = 'approval')
             FROM agent_runtime.requests WHERE organization_id = $1 AND status = 'open'
                AND ($2::uuid IS NULL OR agent_id = $2) AND expires_at > statement_timestamp()",
        )
        .bind(organization.0)
        .bind(agent.map(|id| id.0))
        .persistent(self.named())
        .fetch_one(&mut *lease)
        .await?;
        lease.done().await?;
        Ok(InboxCounts { tasks, feedback, approval })
    }
}

/// Tells a search that took too long from a database that is away.
fn too_slow(error: sqlx::Error, limit: Duration) -> StoreError {
    match &error {
        sqlx::Error::Database(fault) if fault.code().as_deref() == Some("57014") => StoreError::SearchTooSlow(limit),
        _ => error.into(),
    }
}
