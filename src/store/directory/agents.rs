//! Agents, each with its account.

use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;

use super::accounts::WithCredential;
use super::edit::{Edit, EditError, Editing, new_name};
use crate::directory::records::{Action, AgentDraft, AgentRecord, Key};
use crate::domain::ids::{AccountId, AgentId};
use crate::domain::money::Money;
use crate::domain::refusal::{Fault, Refusal};
use crate::store::Store;
use crate::store::error::StoreError;

impl Store {
    /// Makes an agent with its account and first credential, or changes it. Only the hash of the secret is kept.
    pub async fn put_agent(
        &self,
        edit: Edit,
        key: &Key,
        draft: &AgentDraft,
        secret_hash: [u8; 32],
    ) -> Result<WithCredential<AgentRecord>, EditError> {
        let mut editing = self.edit(edit).await?;
        if let Some(before) = editing.find::<AgentRecord>(key).await? {
            let record = editing.update_agent(before, draft).await?;
            editing.commit().await?;
            return Ok(WithCredential { record, credential: None });
        }
        let record = AgentRecord {
            id: AgentId(editing.new_id()),
            slug: new_name::<AgentRecord>(key)?,
            name: draft.naming.name.clone(),
            version: draft.version.unwrap_or(1),
            prompt_version: draft.prompt_version.unwrap_or(1),
            enabled: draft.enabled.unwrap_or(true),
            settings: draft.settings.clone().unwrap_or_default(),
            service_account_id: AccountId(editing.new_id()),
            external_ref: draft.naming.external_ref.clone(),
            created_at: editing.at,
            updated_at: editing.at,
        };
        let account = record.service_account_id;
        editing.insert_account(account, "agent", &record.slug, &draft.naming).await?;
        editing.write_agent(INSERT, &record).await?;
        editing.audit(Action::Created, None, Some(&record)).await?;
        let credential = editing.add_credential(account, secret_hash).await?;
        editing.commit().await?;
        Ok(WithCredential { record, credential: Some(credential) })
    }

    /// Stops the creation of tasks for an agent.
    pub async fn disable_agent(&self, edit: Edit, id: AgentId) -> Result<(), EditError> {
        let mut editing = self.edit(edit).await?;
        let before: AgentRecord = editing.existing(&Key::Id(id.0)).await?;
        if before.enabled {
            let after = AgentRecord { enabled: false, updated_at: editing.at, ..before.clone() };
            editing.write_agent(UPDATE, &after).await?;
            editing.audit(Action::Updated, Some(&before), Some(&after)).await?;
        }
        editing.commit().await
    }

    /// Removes an agent and its account, unless it has open tasks. A creation holds the agent until its task is there
    /// ([`Store::create`]), so none slips in between the count and the removal.
    pub async fn delete_agent(&self, edit: Edit, id: AgentId) -> Result<(), EditError> {
        let mut editing = self.edit(edit).await?;
        let lock =
            sqlx::query("SELECT id FROM agent_directory.agents WHERE organization_id = $1 AND id = $2 FOR UPDATE")
                .bind(editing.organization())
                .bind(id.0);
        editing.all(lock).await?;
        let before: AgentRecord = editing.existing(&Key::Id(id.0)).await?;
        let count = sqlx::query(
            "SELECT count(*) FROM agent_runtime.tasks
             WHERE organization_id = $1 AND agent_id = $2 AND outcome IS NULL",
        )
        .bind(editing.organization())
        .bind(id.0);
        let open = editing.count(count).await?;
        if open > 0 {
            return Err(Refusal::OpenTasks(open).into());
        }
        let delete = sqlx::query(
            "UPDATE agent_directory.agents SET deleted_at = $3, updated_at = $3
             WHERE organization_id = $1 AND id = $2",
        )
        .bind(editing.organization())
        .bind(id.0)
        .bind(editing.instant());
        editing.run(delete).await?;
        editing.remove_account(before.service_account_id).await?;
        editing.audit(Action::Deleted, Some(&before), None).await?;
        editing.commit().await
    }
}

const INSERT: &str = "INSERT INTO agent_directory.agents
        (organization_id, id, slug, name, version, prompt_version, enabled, task_budget, monthly_cost_cap,
         max_concurrent_tasks, task_timeout_seconds, max_depth, max_children, external_ref, updated_at, created_at,
         service_account_id)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $15, $16)";

const UPDATE: &str = "UPDATE agent_directory.agents SET name = $4, version = $5, prompt_version = $6, enabled = $7,
        task_budget = $8, monthly_cost_cap = $9, max_concurrent_tasks = $10, task_timeout_seconds = $11,
        max_depth = $12, max_children = $13, external_ref = $14, updated_at = $15
    WHERE organization_id = $1 AND id = $2 AND slug = $3 AND service_account_id = $16";

/// A count as the database keeps it.
fn integer(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

impl Editing<'_> {
    async fn write_agent(&mut self, statement: &'static str, agent: &AgentRecord) -> Result<(), StoreError> {
        let settings = &agent.settings;
        let query: Query<'_, Postgres, PgArguments> = sqlx::query(statement)
            .bind(self.organization())
            .bind(agent.id.0)
            .bind(agent.slug.clone())
            .bind(agent.name.clone())
            .bind(agent.version)
            .bind(agent.prompt_version)
            .bind(agent.enabled)
            .bind(settings.task_budget.map(Money::decimal))
            .bind(settings.monthly_cost_cap.map(Money::decimal))
            .bind(settings.max_concurrent_tasks.map(integer))
            .bind(settings.task_timeout_seconds.map(integer))
            .bind(integer(settings.max_depth))
            .bind(integer(settings.max_children))
            .bind(agent.external_ref.clone())
            .bind(self.instant())
            .bind(agent.service_account_id.0);
        self.run(query).await?;
        Ok(())
    }

    async fn update_agent(&mut self, before: AgentRecord, draft: &AgentDraft) -> Result<AgentRecord, EditError> {
        let mut after = AgentRecord {
            name: draft.naming.name.clone(),
            version: draft.version.unwrap_or(before.version),
            prompt_version: draft.prompt_version.unwrap_or(before.prompt_version),
            enabled: draft.enabled.unwrap_or(before.enabled),
            settings: draft.settings.clone().unwrap_or_else(|| before.settings.clone()),
            external_ref: draft.naming.external_ref.clone(),
            ..before.clone()
        };
        let versions = [
            ("/version", before.version, after.version),
            ("/prompt_version", before.prompt_version, after.prompt_version),
        ];
        let fallen = versions.into_iter().filter(|(_, before, after)| after < before);
        let faults: Vec<_> =
            fallen.map(|(place, now, _)| Fault::new(place, format!("only rises, and is {now} already"))).collect();
        if !faults.is_empty() {
            return Err(Refusal::Invalid(faults).into());
        }
        if after == before {
            return Ok(before);
        }
        after.updated_at = self.at;
        self.write_agent(UPDATE, &after).await?;
        self.rename_account(after.service_account_id, &draft.naming).await?;
        self.audit(Action::Updated, Some(&before), Some(&after)).await?;
        Ok(after)
    }
}
