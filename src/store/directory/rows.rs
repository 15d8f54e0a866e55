//! Rows of the directory, parsed into its records.

use sqlx::postgres::PgRow;

use super::record::Record;
use super::settings;
use crate::directory::records::{AgentRecord, CredentialRecord, Key, KeyError, Member, Model, Project, Trigger};
use crate::domain::principal::Role;
use crate::store::error::StoreError;
use crate::store::rows::Reader;

impl Record for Member {
    const PARAMETER: &'static str = "person";
    const TABLE: &'static str = "agent_directory.members";
    const COLUMNS: &'static str = "person_id, roles, name, email, external_ref, created_at, updated_at";
    const FILTER: &'static str = "true";
    const NAME: &'static str = "person_id";

    fn key(text: &str) -> Result<Key, KeyError> {
        Key::person(text)
    }

    fn route_name(&self) -> &str {
        self.person_id.as_str()
    }

    fn read(row: &PgRow) -> Result<Self, StoreError> {
        let r = Reader { table: Self::TABLE, row };
        let roles = r.get::<Vec<String>>("roles")?;
        let role = |name: &String| name.parse::<Role>().map_err(|fault| r.fault(format!("roles: {fault}")));
        Ok(Self {
            person_id: r.person("person_id")?,
            roles: roles.iter().map(role).collect::<Result<_, _>>()?,
            name: r.get("name")?,
            email: r.get("email")?,
            external_ref: r.get("external_ref")?,
            created_at: r.at("created_at")?,
            updated_at: r.at("updated_at")?,
        })
    }
}

impl Record for AgentRecord {
    const TABLE: &'static str = "agent_directory.agents";
    const COLUMNS: &'static str = "id, slug, name, version, prompt_version, enabled, task_budget, monthly_cost_cap, \
        max_concurrent_tasks, task_timeout_seconds, max_depth, max_children, service_account_id, external_ref, \
        created_at, updated_at";

    fn route_name(&self) -> &str {
        &self.slug
    }

    fn read(row: &PgRow) -> Result<Self, StoreError> {
        let r = Reader { table: Self::TABLE, row };
        Ok(Self {
            id: r.id("id")?,
            slug: r.get("slug")?,
            name: r.get("name")?,
            version: r.get("version")?,
            prompt_version: r.get("prompt_version")?,
            enabled: r.get("enabled")?,
            settings: settings(&r)?,
            service_account_id: r.id("service_account_id")?,
            external_ref: r.get("external_ref")?,
            created_at: r.at("created_at")?,
            updated_at: r.at("updated_at")?,
        })
    }
}

impl Record for Trigger {
    const TABLE: &'static str = "agent_directory.service_accounts";
    const COLUMNS: &'static str = "id, slug, name, external_ref, created_at, updated_at";
    const FILTER: &'static str = "kind = 'trigger' AND deleted_at IS NULL";

    fn route_name(&self) -> &str {
        &self.slug
    }

    fn read(row: &PgRow) -> Result<Self, StoreError> {
        let r = Reader { table: Self::TABLE, row };
        Ok(Self {
            id: r.id("id")?,
            slug: r.get("slug")?,
            name: r.get("name")?,
            external_ref: r.get("external_ref")?,
            created_at: r.at("created_at")?,
            updated_at: r.at("updated_at")?,
        })
    }
}

impl Record for Project {
    const TABLE: &'static str = "agent_directory.projects";
    const COLUMNS: &'static str = "id, slug, name, external_ref, created_at, updated_at";

    fn route_name(&self) -> &str {
        &self.slug
    }

    fn read(row: &PgRow) -> Result<Self, StoreError> {
        let r = Reader { table: Self::TABLE, row };
        Ok(Self {
            id: r.id("id")?,
            slug: r.get("slug")?,
            name: r.get("name")?,
            external_ref: r.get("external_ref")?,
            created_at: r.at("created_at")?,
            updated_at: r.at("updated_at")?,
        })
    }
}

impl Record for Model {
    const TABLE: &'static str = "agent_directory.models";
    // Prices pass as text, so that no digit changes on the way.
    const COLUMNS: &'static str = "id, slug, provider, model_id, aliases, external_ref, created_at, updated_at, (
        SELECT coalesce(json_agg(json_build_object(
            'effective_from', to_char(p.effective_from AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'),
            'input_cost_per_million', p.input_cost_per_million::text,
            'output_cost_per_million', p.output_cost_per_million::text,
            'cache_read_cost_per_million', p.cache_read_cost_per_million::text,
            'cache_write_cost_per_million', p.cache_write_cost_per_million::text
        ) ORDER BY p.effective_from DESC), '[]')::text
        FROM agent_directory.model_prices p
        WHERE p.organization_id = r.organization_id AND p.model_id = r.id) AS prices";

    fn route_name(&self) -> &str {
        &self.slug
    }

    fn read(row: &PgRow) -> Result<Self, StoreError> {
        let r = Reader { table: Self::TABLE, row };
        Ok(Self {
            id: r.id("id")?,
            slug: r.get("slug")?,
            provider: r.get("provider")?,
            model_id: r.get("model_id")?,
            aliases: r.get("aliases")?,
            external_ref: r.get("external_ref")?,
            prices: serde_json::from_str(r.get("prices")?).map_err(|fault| r.fault(format!("prices: {fault}")))?,
            created_at: r.at("created_at")?,
            updated_at: r.at("updated_at")?,
        })
    }
}

pub(super) const CREDENTIAL_COLUMNS: &str = "id, account_id, created_at, revoked_at";

pub(super) fn credential(row: &PgRow) -> Result<CredentialRecord, StoreError> {
    let r = Reader { table: "agent_directory.credentials", row };
    Ok(CredentialRecord {
        client_id: r.id("id")?,
        account_id: r.id("account_id")?,
        created_at: r.at("created_at")?,
        revoked_at: r.at_opt("revoked_at")?,
    })
}
