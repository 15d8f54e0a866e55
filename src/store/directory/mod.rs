//! The directory's tables: what the service asks (here), and what administrators read and change.
//!
//! To add a kind of record: 1. its columns and its [`Record`]; 2. its writes, each through
//! `Store::edit`, which holds the organization and writes the audit row in the same transaction.

mod accounts;
mod agents;
mod audit;
mod edit;
mod members;
mod models;
mod projects;
mod record;
mod rows;

use std::sync::atomic::Ordering;

use sqlx::Row;
use sqlx::postgres::PgRow;
use time::OffsetDateTime;
use uuid::Uuid;

use super::Store;
use super::error::StoreError;
use super::rows::Reader;
use crate::directory::{AccountKind, Agent, AgentSettings, Answer, Credential, Directory, DirectoryError};
use crate::domain::ids::{AccountId, AgentId, CredentialId, OrganizationId, PersonId, ProjectId};
use crate::domain::principal::Role;
use crate::domain::time::Timestamp;
use crate::domain::usage::PricedModel;
pub use accounts::WithCredential;
pub use edit::{EDITS_MAX, Edit, EditError, Put};
pub use members::Initialized;
pub use record::{Listing, Page, Record, SUBJECT_KINDS, Subject};

impl From<StoreError> for DirectoryError {
    fn from(fault: StoreError) -> Self {
        Self(fault.to_string())
    }
}

const AGENT_COLUMNS: &str = "id, slug, version, prompt_version, enabled, service_account_id, task_budget, \
    monthly_cost_cap, max_concurrent_tasks, task_timeout_seconds, max_depth, max_children";

fn agent(row: &PgRow) -> Result<Agent, StoreError> {
    let r = Reader { table: "agent_directory.agents", row };
    Ok(Agent {
        id: r.id("id")?,
        slug: r.get("slug")?,
        version: r.get("version")?,
        prompt_version: r.get("prompt_version")?,
        enabled: r.get("enabled")?,
        service_account_id: r.id("service_account_id")?,
        settings: settings(&r)?,
    })
}

fn settings(r: &Reader<'_>) -> Result<AgentSettings, StoreError> {
    Ok(AgentSettings {
        task_budget: r.money_opt("task_budget")?,
        monthly_cost_cap: r.money_opt("monthly_cost_cap")?,
        max_concurrent_tasks: r.count_opt("max_concurrent_tasks")?,
        task_timeout_seconds: r.count_opt("task_timeout_seconds")?,
        max_depth: r.count("max_depth")?,
        max_children: r.count("max_children")?,
    })
}

impl Store {
    async fn one(
        &self,
        query: sqlx::query::Query<'_, sqlx::Postgres, sqlx::postgres::PgArguments>,
    ) -> Result<Option<PgRow>, StoreError> {
        let mut lease = self.lease().await?;
        let row = query.persistent(self.named()).fetch_optional(&mut *lease).await?;
        lease.done().await?;
        Ok(row)
    }

    async fn many(
        &self,
        query: sqlx::query::Query<'_, sqlx::Postgres, sqlx::postgres::PgArguments>,
    ) -> Result<Vec<PgRow>, StoreError> {
        let mut lease = self.lease().await?;
        let rows = query.persistent(self.named()).fetch_all(&mut *lease).await?;
        lease.done().await?;
        Ok(rows)
    }
}

impl Directory for Store {
    fn changes(&self) -> u64 {
        self.directory_changes.load(Ordering::Acquire)
    }

    fn organization(&self, slug: String) -> Answer<'_, Option<OrganizationId>> {
        Box::pin(async move {
            let query = sqlx::query("SELECT id FROM agent_directory.organizations WHERE slug = $1").bind(slug);
            let row = self.one(query).await?;
            Ok(row.map(|row| row.try_get("id").map(OrganizationId)).transpose().map_err(StoreError::from)?)
        })
    }

    fn member(&self, organization: OrganizationId, person: PersonId) -> Answer<'_, Option<Vec<Role>>> {
        Box::pin(async move {
            let query =
                sqlx::query("SELECT roles FROM agent_directory.members WHERE organization_id = $1 AND person_id = $2")
                    .bind(organization.0)
                    .bind(person.to_string());
            let Some(row) = self.one(query).await? else { return Ok(None) };
            let names: Vec<String> = row.try_get("roles").map_err(StoreError::from)?;
            let roles = names.iter().filter_map(|name| name.parse().ok()).collect();
            Ok(Some(roles))
        })
    }

    fn account(
        &self,
        organization: OrganizationId,
        account: AccountId,
        credential: CredentialId,
    ) -> Answer<'_, Option<AccountKind>> {
        Box::pin(async move {
            let query = sqlx::query(
                "SELECT a.kind, g.id AS agent_id FROM agent_directory.service_accounts a
                 JOIN agent_directory.credentials c ON c.organization_id = a.organization_id AND c.account_id = a.id
                 LEFT JOIN agent_directory.agents g
                    ON g.organization_id = a.organization_id AND g.service_account_id = a.id AND g.deleted_at IS NULL
                 WHERE a.organization_id = $1 AND a.id = $2 AND a.deleted_at IS NULL
                    AND c.id = $3 AND c.revoked_at IS NULL",
            )
            .bind(organization.0)
            .bind(account.0)
            .bind(credential.0);
            let Some(row) = self.one(query).await? else { return Ok(None) };
            let kind: String = row.try_get("kind").map_err(StoreError::from)?;
            let agent: Option<Uuid> = row.try_get("agent_id").map_err(StoreError::from)?;
            Ok(match (kind.as_str(), agent) {
                ("trigger", _) => Some(AccountKind::Trigger),
                (_, agent) => agent.map(|id| AccountKind::Agent(AgentId(id))),
            })
        })
    }

    fn credential(&self, client: CredentialId) -> Answer<'_, Option<Credential>> {
        Box::pin(async move {
            let query = sqlx::query(
                "SELECT c.organization_id, o.slug AS organization_slug, c.account_id, a.slug AS account_slug,
                    c.secret_hash
                 FROM agent_directory.credentials c
                 JOIN agent_directory.service_accounts a ON a.organization_id = c.organization_id AND a.id = c.account_id
                 JOIN agent_directory.organizations o ON o.id = c.organization_id
                 WHERE c.id = $1 AND c.revoked_at IS NULL AND a.deleted_at IS NULL",
            )
            .bind(client.0);
            let Some(row) = self.one(query).await? else { return Ok(None) };
            let r = Reader { table: "agent_directory.credentials", row: &row };
            Ok(Some(Credential {
                organization_id: r.id("organization_id")?,
                organization_slug: r.get("organization_slug")?,
                account_id: r.id("account_id")?,
                account_slug: r.get("account_slug")?,
                secret_hash: r.digest("secret_hash")?.0,
            }))
        })
    }

    fn agent(&self, organization: OrganizationId, slug: String) -> Answer<'_, Option<Agent>> {
        Box::pin(async move {
            let query = sqlx::query(sqlx::AssertSqlSafe(format!(
                "SELECT {AGENT_COLUMNS} FROM agent_directory.agents
                 WHERE organization_id = $1 AND slug = $2 AND deleted_at IS NULL"
            )))
            .bind(organization.0)
            .bind(slug);
            Ok(self.one(query).await?.map(|row| agent(&row)).transpose()?)
        })
    }

    fn agent_by_id(&self, organization: OrganizationId, id: AgentId) -> Answer<'_, Option<Agent>> {
        Box::pin(async move {
            let query = sqlx::query(sqlx::AssertSqlSafe(format!(
                "SELECT {AGENT_COLUMNS} FROM agent_directory.agents WHERE organization_id = $1 AND id = $2"
            )))
            .bind(organization.0)
            .bind(id.0);
            Ok(self.one(query).await?.map(|row| agent(&row)).transpose()?)
        })
    }

    fn project(&self, organization: OrganizationId, id: ProjectId) -> Answer<'_, Option<String>> {
        Box::pin(async move {
            let query = sqlx::query(
                "SELECT slug FROM agent_directory.projects
                 WHERE organization_id = $1 AND id = $2 AND deleted_at IS NULL",
            )
            .bind(organization.0)
            .bind(id.0);
            let row = self.one(query).await?;
            Ok(row.map(|row| row.try_get("slug")).transpose().map_err(StoreError::from)?)
        })
    }

    fn model(&self, organization: OrganizationId, name: String, at: Timestamp) -> Answer<'_, Option<PricedModel>> {
        Box::pin(async move {
            // A model without a price in force is known and unpriced.
            let query = sqlx::query(
                "SELECT m.id, p.* FROM agent_directory.model_names n
                 JOIN agent_directory.models m
                    ON m.organization_id = n.organization_id AND m.id = n.model_id AND m.deleted_at IS NULL
                 LEFT JOIN LATERAL (
                    SELECT input_cost_per_million, output_cost_per_million, cache_read_cost_per_million,
                        cache_write_cost_per_million
                    FROM agent_directory.model_prices p
                    WHERE p.organization_id = m.organization_id AND p.model_id = m.id AND p.effective_from <= $3
                    ORDER BY p.effective_from DESC LIMIT 1
                 ) p ON true
                 WHERE n.organization_id = $1 AND n.name = $2",
            )
            .bind(organization.0)
            .bind(name)
            .bind(OffsetDateTime::from(at));
            let Some(row) = self.one(query).await? else { return Ok(None) };
            let r = Reader { table: "agent_directory.model_prices", row: &row };
            Ok(Some(PricedModel { id: r.id("id")?, prices: r.prices()? }))
        })
    }
}
