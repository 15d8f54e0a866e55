//! Agents, triggers and their credentials as answers.

use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::directory::AgentSettings;
use crate::directory::records::{AgentRecord, CredentialRecord, Trigger};
use crate::service::directory::{Issued, WithSecret};

/// The bounds of an agent. A task pins all but `monthly_cost_cap` and `max_concurrent_tasks` when it is created.
#[derive(Debug, Serialize, ToSchema)]
pub struct AgentSettingsView {
    /// The default and highest budget of a task, in US dollars.
    #[schema(required, example = "5")]
    pub task_budget: Option<String>,
    /// An advisory cap on the cost of a month, in US dollars.
    #[schema(required, example = "500")]
    pub monthly_cost_cap: Option<String>,
    /// How many tasks it may work at once; null: any number.
    #[schema(required)]
    pub max_concurrent_tasks: Option<u32>,
    /// How long a task may take from its first session on; null: any time.
    #[schema(required)]
    pub task_timeout_seconds: Option<u32>,
    /// How deep its tasks may delegate.
    pub max_depth: u32,
    /// How many open children a task may have.
    pub max_children: u32,
}

impl From<&AgentSettings> for AgentSettingsView {
    fn from(settings: &AgentSettings) -> Self {
        Self {
            task_budget: settings.task_budget.map(|money| money.to_string()),
            monthly_cost_cap: settings.monthly_cost_cap.map(|money| money.to_string()),
            max_concurrent_tasks: settings.max_concurrent_tasks,
            task_timeout_seconds: settings.task_timeout_seconds,
            max_depth: settings.max_depth,
            max_children: settings.max_children,
        }
    }
}

/// An agent.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"id": "01890a5d-ac96-774b-bcce-b302099a8057", "slug": "reviewer", "name": "Reviewer",
    "version": 3, "prompt_version": 7, "enabled": true, "settings": {"task_budget": "5", "monthly_cost_cap": null,
    "max_concurrent_tasks": 4, "task_timeout_seconds": 3600, "max_depth": 5, "max_children": 50},
    "service_account_id": "01890a5d-ac96-7b2b-8a3a-7d6b1f0c9e11", "external_ref": null,
    "created_at": "2026-01-31T09:30:00.000000Z", "updated_at": "2026-01-31T09:30:00.000000Z"}))]
pub struct AgentView {
    /// The agent.
    pub id: Uuid,
    /// Its name in routes; it never changes.
    pub slug: String,
    /// Its name.
    pub name: String,
    /// The version that new tasks pin.
    pub version: i32,
    /// The version of its prompt that new tasks pin.
    pub prompt_version: i32,
    /// Whether tasks may be created for it.
    pub enabled: bool,
    /// Its bounds.
    pub settings: AgentSettingsView,
    /// Its account.
    pub service_account_id: Uuid,
    /// Its name elsewhere.
    #[schema(required)]
    pub external_ref: Option<String>,
    /// When it was made.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it was last changed.
    #[schema(format = DateTime)]
    pub updated_at: String,
}

impl From<&AgentRecord> for AgentView {
    fn from(record: &AgentRecord) -> Self {
        Self {
            id: record.id.0,
            slug: record.slug.clone(),
            name: record.name.clone(),
            version: record.version,
            prompt_version: record.prompt_version,
            enabled: record.enabled,
            settings: AgentSettingsView::from(&record.settings),
            service_account_id: record.service_account_id.0,
            external_ref: record.external_ref.clone(),
            created_at: record.created_at.to_string(),
            updated_at: record.updated_at.to_string(),
        }
    }
}

/// A trigger: a scheduler or webhook gateway, a service account of its own.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"id": "01890a5d-ac96-774b-bcce-b302099a8057", "slug": "nightly", "name": "Nightly runs",
    "external_ref": null, "created_at": "2026-01-31T09:30:00.000000Z", "updated_at": "2026-01-31T09:30:00.000000Z"}))]
pub struct TriggerView {
    /// The account.
    pub id: Uuid,
    /// Its name in routes; it never changes.
    pub slug: String,
    /// Its name.
    pub name: String,
    /// Its name elsewhere.
    #[schema(required)]
    pub external_ref: Option<String>,
    /// When it was made.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it was last changed.
    #[schema(format = DateTime)]
    pub updated_at: String,
}

impl From<&Trigger> for TriggerView {
    fn from(record: &Trigger) -> Self {
        Self {
            id: record.id.0,
            slug: record.slug.clone(),
            name: record.name.clone(),
            external_ref: record.external_ref.clone(),
            created_at: record.created_at.to_string(),
            updated_at: record.updated_at.to_string(),
        }
    }
}

/// The first credential of what a PUT made; null when it was there before.
#[derive(Debug, Serialize, ToSchema)]
pub struct FirstCredential {
    /// The OAuth client id.
    #[schema(required)]
    pub client_id: Option<Uuid>,
    /// Its secret, which is shown only here.
    #[schema(required, example = "mds_…")]
    pub client_secret: Option<String>,
}

impl<T> From<&WithSecret<T>> for FirstCredential {
    fn from(put: &WithSecret<T>) -> Self {
        Self {
            client_id: put.issued.as_ref().map(|issued| issued.credential.client_id.0),
            client_secret: put.issued.as_ref().map(|issued| issued.secret.expose().to_owned()),
        }
    }
}

/// An agent after a PUT.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"id": "01890a5d-ac96-774b-bcce-b302099a8057", "slug": "reviewer", "name": "Reviewer",
    "version": 1, "prompt_version": 1, "enabled": true, "settings": {"task_budget": "5", "monthly_cost_cap": null,
    "max_concurrent_tasks": 4, "task_timeout_seconds": null, "max_depth": 5, "max_children": 50},
    "service_account_id": "01890a5d-ac96-7b2b-8a3a-7d6b1f0c9e11", "external_ref": null,
    "created_at": "2026-01-31T09:30:00.000000Z", "updated_at": "2026-01-31T09:30:00.000000Z",
    "client_id": "01890a5d-ac96-7d1e-9f65-2a0c4e8b7713", "client_secret": "mds_…"}))]
pub struct AgentAnswer {
    /// The agent.
    #[serde(flatten)]
    pub agent: AgentView,
    /// Its first credential.
    #[serde(flatten)]
    pub first: FirstCredential,
}

/// A trigger after a PUT.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"id": "01890a5d-ac96-774b-bcce-b302099a8057", "slug": "nightly", "name": "Nightly runs",
    "external_ref": null, "created_at": "2026-01-31T09:30:00.000000Z", "updated_at": "2026-01-31T09:30:00.000000Z",
    "client_id": "01890a5d-ac96-7d1e-9f65-2a0c4e8b7713", "client_secret": "mds_…"}))]
pub struct TriggerAnswer {
    /// The trigger.
    #[serde(flatten)]
    pub trigger: TriggerView,
    /// Its first credential.
    #[serde(flatten)]
    pub first: FirstCredential,
}

/// A client-credentials pair without its secret.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"client_id": "01890a5d-ac96-774b-bcce-b302099a8057",
    "created_at": "2026-01-31T09:30:00.000000Z", "revoked_at": null}))]
pub struct CredentialView {
    /// The OAuth client id.
    pub client_id: Uuid,
    /// When it was made.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it was revoked.
    #[schema(required, format = DateTime)]
    pub revoked_at: Option<String>,
}

impl From<&CredentialRecord> for CredentialView {
    fn from(record: &CredentialRecord) -> Self {
        Self {
            client_id: record.client_id.0,
            created_at: record.created_at.to_string(),
            revoked_at: record.revoked_at.map(|at| at.to_string()),
        }
    }
}

/// A new client-credentials pair.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"client_id": "01890a5d-ac96-774b-bcce-b302099a8057",
    "created_at": "2026-01-31T09:30:00.000000Z", "revoked_at": null, "client_secret": "mds_…"}))]
pub struct IssuedCredential {
    /// The credential.
    #[serde(flatten)]
    pub credential: CredentialView,
    /// Its secret, which is shown only here.
    #[schema(example = "mds_…")]
    pub client_secret: String,
}

impl From<&Issued> for IssuedCredential {
    fn from(issued: &Issued) -> Self {
        Self { credential: CredentialView::from(&issued.credential), client_secret: issued.secret.expose().to_owned() }
    }
}

/// How many tasks a stop closed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"stopped": 3}))]
pub struct StoppedView {
    /// The tasks.
    pub stopped: u64,
}
