//! The directory's records as answers.

mod accounts;
mod models;

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

pub use accounts::{
    AgentAnswer, AgentView, CredentialView, FirstCredential, IssuedCredential, StoppedView, TriggerAnswer, TriggerView,
};
pub use models::ModelView;

use crate::directory::records::{AuditEntry, Member, Organization, Project};
use crate::http::views::raw;

/// An organization.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"id": "01890a5d-ac96-774b-bcce-b302099a8057", "slug": "acme", "name": "Acme",
    "external_ref": null, "created_at": "2026-01-31T09:30:00.000000Z", "updated_at": "2026-01-31T09:30:00.000000Z"}))]
pub struct OrganizationView {
    /// The organization.
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

impl From<&Organization> for OrganizationView {
    fn from(record: &Organization) -> Self {
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

/// A member of an organization.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"person_id": "ada", "roles": ["operator", "approver"], "name": "Ada Lovelace",
    "email": "ada@example.com", "external_ref": null, "created_at": "2026-01-31T09:30:00.000000Z",
    "updated_at": "2026-01-31T09:30:00.000000Z"}))]
pub struct MemberView {
    /// The person, as their token names them, in lower case.
    pub person_id: String,
    /// What they may do; permissions add up.
    pub roles: Vec<&'static str>,
    /// Their name.
    #[schema(required)]
    pub name: Option<String>,
    /// Their address.
    #[schema(required)]
    pub email: Option<String>,
    /// Their name elsewhere.
    #[schema(required)]
    pub external_ref: Option<String>,
    /// Since when they are a member.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When the membership was last changed.
    #[schema(format = DateTime)]
    pub updated_at: String,
}

impl From<&Member> for MemberView {
    fn from(record: &Member) -> Self {
        Self {
            person_id: record.person_id.to_string(),
            roles: record.roles.iter().map(|role| role.as_str()).collect(),
            name: record.name.clone(),
            email: record.email.clone(),
            external_ref: record.external_ref.clone(),
            created_at: record.created_at.to_string(),
            updated_at: record.updated_at.to_string(),
        }
    }
}

/// A project.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"id": "01890a5d-ac96-774b-bcce-b302099a8057", "slug": "website", "name": "Website",
    "external_ref": "github.com/acme/website", "created_at": "2026-01-31T09:30:00.000000Z",
    "updated_at": "2026-01-31T09:30:00.000000Z"}))]
pub struct ProjectView {
    /// The project.
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

impl From<&Project> for ProjectView {
    fn from(record: &Project) -> Self {
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

/// One change of the directory.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"id": "01890a5d-ac96-774b-bcce-b302099a8057", "at": "2026-01-31T09:30:00.000000Z",
    "actor_kind": "human", "actor_id": "ada", "action": "updated", "subject_kind": "project",
    "subject_id": "01890a5d-ac96-774b-bcce-b302099a8057", "before": {"name": "Web"}, "after": {"name": "Website"}}))]
pub struct AuditView {
    /// The entry.
    pub id: Uuid,
    /// When.
    #[schema(format = DateTime)]
    pub at: String,
    /// `human`, or `system` for the server's own program.
    pub actor_kind: String,
    /// The person, or `mandate`.
    pub actor_id: String,
    /// What was done.
    pub action: String,
    /// To what kind of record.
    pub subject_kind: String,
    /// To which one: its id, of a member the person.
    pub subject_id: String,
    /// The whole record before; null when it was made. Never a secret.
    #[schema(required, value_type = Option<serde_json::Value>)]
    pub before: Option<Box<RawValue>>,
    /// The whole record after; null when it was removed. Never a secret.
    #[schema(required, value_type = Option<serde_json::Value>)]
    pub after: Option<Box<RawValue>>,
}

impl From<&AuditEntry> for AuditView {
    fn from(entry: &AuditEntry) -> Self {
        Self {
            id: entry.id,
            at: entry.at.to_string(),
            actor_kind: entry.actor_kind.clone(),
            actor_id: entry.actor_id.clone(),
            action: entry.action.clone(),
            subject_kind: entry.subject_kind.clone(),
            subject_id: entry.subject_id.clone(),
            before: entry.before.as_ref().and_then(|text| raw(text.as_str())),
            after: entry.after.as_ref().and_then(|text| raw(text.as_str())),
        }
    }
}
