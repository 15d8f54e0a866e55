//! Creation: the short id and the task are written in one transaction, so that numbers have no holes.

use serde_json::{Value, json};
use sqlx::{PgConnection, Row};

use super::Store;
use super::commit::{begin, bytea, facts_row, raw};
use super::error::{CommitError, StoreError};
use super::rows::{TASK_COLUMNS, task};
use super::statements;
use crate::domain::change::{BodyHash, Change};
use crate::domain::ids::{AgentId, OrganizationId, ShortId};
use crate::domain::task::{Origin, Pinned, Task};

/// Takes the next number of the organization `$1` for a task of the agent `$2`.
pub(super) const NEXT_NUMBER: &str = "
WITH agent AS (
    SELECT FROM agent_directory.agents
    WHERE organization_id = $1 AND id = $2 AND deleted_at IS NULL FOR KEY SHARE
)
INSERT INTO agent_runtime.task_id_sequences AS s (organization_id, last_number) SELECT $1, 1 FROM agent
ON CONFLICT (organization_id) DO UPDATE SET last_number = s.last_number + 1 RETURNING last_number";

/// A task that was created before under the same key, with the hash of the body that asked for it.
#[derive(Debug, Clone)]
pub struct NewTask {
    /// The task as it is now.
    pub task: Task,
    /// The hash of the first body.
    pub body_hash: BodyHash,
}

impl Store {
    /// Creates a task: takes the organization's next number, lets `decide` make the change with it, and writes both
    /// together. Whatever fails gives the number back. The agent is held until the task is there, so that it cannot be
    /// deleted in between ([`Store::delete_agent`] counts its open tasks).
    pub async fn create<E>(
        &self,
        organization: OrganizationId,
        agent: AgentId,
        decide: impl FnOnce(ShortId) -> Result<Box<Change>, E> + Send,
    ) -> Result<Result<Box<Change>, E>, CommitError>
    where
        E: Send,
    {
        let mut lease = self.transaction().await?;
        let number = self.next_number(&mut lease, organization, agent).await?;
        let change = match decide(number) {
            Ok(change) => change,
            Err(refusal) => return Ok(Err(refusal)),
        };
        self.insert(&mut lease, &change).await?;
        lease.done().await?;
        Ok(Ok(change))
    }

    /// Takes the organization's next number, and holds the agent that is to work the task.
    pub(super) async fn next_number(
        &self,
        db: &mut PgConnection,
        organization: OrganizationId,
        agent: AgentId,
    ) -> Result<ShortId, CommitError> {
        let number: Option<i64> = sqlx::query_scalar(NEXT_NUMBER)
            .bind(organization.0)
            .bind(agent.0)
            .persistent(self.named())
            .fetch_optional(db)
            .await?;
        number.map(ShortId).ok_or(CommitError::AgentDeleted)
    }

    /// Writes a new task with its first events.
    pub(super) async fn insert(&self, db: &mut PgConnection, change: &Change) -> Result<(), CommitError> {
        let next = change.next().task();
        let pinned = next.pinned();
        let statement = begin(&statements::CREATE, pinned.organization_id, pinned.id, 0, change.events(), None)
            .bind(facts_row(next.facts()).to_string())
            .bind(pinned_row(pinned, change.body_hash()).to_string());
        let written = statement.persistent(self.named()).fetch_one(db).await?;
        if written == 1 { Ok(()) } else { Err(CommitError::Conflict) }
    }

    /// The task that was created under `key` by the principal of `origin`.
    pub async fn created_before(
        &self,
        organization: OrganizationId,
        origin: &Origin,
        key: &str,
    ) -> Result<Option<NewTask>, StoreError> {
        let query = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {TASK_COLUMNS}, request_hash FROM agent_runtime.tasks
             WHERE organization_id = $1 AND origin_kind = $2 AND origin_principal = $3 AND idempotency_key = $4"
        )))
        .bind(organization.0)
        .bind(origin.kind())
        .bind(origin.principal())
        .bind(key.to_owned());
        let row = self.first(query).await?;
        let Some(row) = row else { return Ok(None) };
        let hash: Option<Vec<u8>> = row.try_get("request_hash")?;
        let body_hash = hash.and_then(|hash| hash.try_into().ok()).unwrap_or_default();
        Ok(Some(NewTask { task: task(&row)?, body_hash }))
    }
}

fn pinned_row(pinned: &Pinned, body_hash: BodyHash) -> Value {
    let (delivery, parent, parent_number, origin_agent) = match &pinned.origin {
        Origin::Human { .. } | Origin::Schedule { .. } => (None, None, None, None),
        Origin::Webhook { delivery, .. } => (Some(delivery), None, None, None),
        Origin::Task { parent_task_id, parent_short_id, agent_id } => {
            (None, Some(parent_task_id), parent_short_id.parse::<ShortId>().ok(), Some(agent_id))
        }
    };
    json!({
        "short_number": pinned.short_id.0,
        "agent_id": pinned.agent_id,
        "agent_slug": pinned.agent_slug,
        "agent_version": pinned.agent_version,
        "prompt_version": pinned.prompt_version,
        "service_account_id": pinned.service_account_id,
        "project_id": pinned.project_id,
        "project_slug": pinned.project_slug,
        "title": pinned.title,
        "description": pinned.description,
        "subject": pinned.subject,
        "labels": pinned.labels,
        "params": raw(pinned.params.as_ref()),
        "origin_kind": pinned.origin.kind(),
        "origin_principal": pinned.origin.principal(),
        "origin_delivery": delivery,
        "origin_agent_id": origin_agent,
        "parent_task_id": parent,
        "parent_short_number": parent_number.map(|number| number.0),
        "created_by_account": pinned.created_by_account,
        "idempotency_key": pinned.idempotency_key,
        "request_hash": bytea(&body_hash),
        "budget": pinned.budget,
        "task_timeout_seconds": pinned.task_timeout_seconds,
        "max_depth": pinned.max_depth,
        "max_children": pinned.max_children,
        "depth": pinned.depth,
        "found_by": super::search::text_of(pinned),
    })
}
