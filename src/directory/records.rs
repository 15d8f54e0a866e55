//! The directory as administrators see it: its records, and what a change of one says.
//!
//! Records are serialized into the audit trail, so none of them holds a secret or its hash.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::AgentSettings;
use crate::domain::ids::{
    AccountId, AgentId, CredentialId, ModelId, OrganizationId, PersonId, PersonIdError, ProjectId, Slug, SlugError,
};
use crate::domain::money::Prices;
use crate::domain::names::names;
use crate::domain::payload::JsonText;
use crate::domain::principal::Role;
use crate::domain::time::Timestamp;

/// How a route names a record: by its name, or by its id where it has one. No text is both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    /// A slug; of members the person.
    Name(String),
    /// An id.
    Id(Uuid),
}

/// Why a text names nothing that could be there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// No slug.
    #[error(transparent)]
    Slug(#[from] SlugError),
    /// No person.
    #[error(transparent)]
    Person(#[from] PersonIdError),
}

impl Key {
    /// A slug or an id.
    pub fn slug_or_id(text: &str) -> Result<Self, KeyError> {
        match Uuid::try_parse(text) {
            Ok(id) => Ok(Self::Id(id)),
            Err(_) => Ok(Self::Name(text.parse::<Slug>()?.to_string())),
        }
    }

    /// A person.
    pub fn person(text: &str) -> Result<Self, KeyError> {
        Ok(Self::Name(PersonId::parse(text)?.to_string()))
    }
}

names! {
    /// What was done to a record.
    Action, ActionError: "action" {
        /// It was made.
        Created = "created",
        /// It was changed.
        Updated = "updated",
        /// It was removed.
        Deleted = "deleted",
        /// A credential was revoked.
        Revoked = "revoked",
    }
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Organization {
    /// The tenant.
    pub id: OrganizationId,
    /// Its name in routes, which never changes.
    pub slug: String,
    /// Its name.
    pub name: String,
    /// Its name elsewhere.
    pub external_ref: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
}

/// What an organization, trigger or project is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Naming {
    /// The name.
    pub name: String,
    /// The name elsewhere.
    pub external_ref: Option<String>,
}

/// A person in an organization.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Member {
    /// The person.
    pub person_id: PersonId,
    /// What they may do; permissions add up.
    pub roles: Vec<Role>,
    /// Their name.
    pub name: Option<String>,
    /// Their address.
    pub email: Option<String>,
    /// Their name elsewhere.
    pub external_ref: Option<String>,
    /// Since when they are a member.
    pub created_at: Timestamp,
    /// When the membership was last changed.
    pub updated_at: Timestamp,
}

impl Member {
    /// Whether the member administers the organization.
    pub fn is_admin(&self) -> bool {
        self.roles.contains(&Role::Admin)
    }
}

/// A membership as it shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberDraft {
    /// What they may do, in order and each once.
    pub roles: Vec<Role>,
    /// Their name.
    pub name: Option<String>,
    /// Their address.
    pub email: Option<String>,
    /// Their name elsewhere.
    pub external_ref: Option<String>,
}

/// An agent definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AgentRecord {
    /// The agent.
    pub id: AgentId,
    /// Its name in routes, which never changes.
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
    pub settings: AgentSettings,
    /// Its account.
    pub service_account_id: AccountId,
    /// Its name elsewhere.
    pub external_ref: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
}

/// An agent definition as it shall be. What is absent of the first three is 1 and true in a new agent and stays as it
/// is in one that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentDraft {
    /// The version that new tasks pin; it only rises.
    pub version: Option<i32>,
    /// The version of its prompt that new tasks pin; it only rises.
    pub prompt_version: Option<i32>,
    /// Whether tasks may be created for it.
    pub enabled: Option<bool>,
    /// What it is called.
    pub naming: Naming,
    /// Its bounds; absent: those it has, or the defaults of a new one.
    pub settings: Option<AgentSettings>,
}

/// A scheduler or webhook gateway: a service account of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Trigger {
    /// The account.
    pub id: AccountId,
    /// Its name in routes, which never changes.
    pub slug: String,
    /// Its name.
    pub name: String,
    /// Its name elsewhere.
    pub external_ref: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
}

/// A client-credentials pair without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CredentialRecord {
    /// The OAuth client id.
    pub client_id: CredentialId,
    /// The account that it opens.
    pub account_id: AccountId,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
}

/// A model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Model {
    /// The model.
    pub id: ModelId,
    /// Its name in routes, which never changes.
    pub slug: String,
    /// Who serves it.
    pub provider: String,
    /// The provider's name of it.
    pub model_id: String,
    /// Other names under which harnesses may report it.
    pub aliases: Vec<String>,
    /// Its name elsewhere.
    pub external_ref: Option<String>,
    /// Every price that it had, has or will have, the newest first.
    pub prices: Vec<PricePoint>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
}

impl Model {
    /// The prices in force at `at`.
    pub fn in_force(&self, at: Timestamp) -> Option<&PricePoint> {
        self.prices.iter().find(|point| point.effective_from <= at)
    }
}

/// Prices from an instant on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PricePoint {
    /// The instant.
    pub effective_from: Timestamp,
    /// The prices.
    #[serde(flatten)]
    pub prices: Prices,
}

/// A model as it shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelDraft {
    /// Who serves it.
    pub provider: String,
    /// The provider's name of it.
    pub model_id: String,
    /// Other names under which harnesses may report it; absent: those it has.
    pub aliases: Option<Vec<String>>,
    /// Its name elsewhere.
    pub external_ref: Option<String>,
    /// Its prices; absent: those it has. One that is absent among others is unknown.
    pub prices: Option<Prices>,
    /// From when on they hold; absent: now.
    pub effective_from: Option<Timestamp>,
}

/// A project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Project {
    /// The project.
    pub id: ProjectId,
    /// Its name in routes, which never changes.
    pub slug: String,
    /// Its name.
    pub name: String,
    /// Its name elsewhere.
    pub external_ref: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
}

/// One entry of the audit trail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// The entry.
    pub id: Uuid,
    /// When.
    pub at: Timestamp,
    /// `human`, or `system` for the server itself.
    pub actor_kind: String,
    /// The person, or `mandate`.
    pub actor_id: String,
    /// What was done.
    pub action: String,
    /// To what kind of record.
    pub subject_kind: String,
    /// To which one: an id, of a member the person.
    pub subject_id: String,
    /// The record before; absent when it was made.
    pub before: Option<JsonText>,
    /// The record after; absent when it was removed.
    pub after: Option<JsonText>,
}
