//! The port to the directory: who there is, as the service asks. The store implements it; [`cached`] stands before it.

pub mod cached;
pub mod records;

use futures::future::BoxFuture;

use crate::domain::ids::{AccountId, AgentId, CredentialId, OrganizationId, PersonId, ProjectId};
use crate::domain::money::Money;
use crate::domain::principal::Role;
use crate::domain::time::Timestamp;
use crate::domain::usage::PricedModel;

/// The directory could not be asked.
#[derive(Debug, thiserror::Error)]
#[error("the directory is unavailable: {0}")]
pub struct DirectoryError(pub String);

/// The answer of the directory.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, DirectoryError>>;

/// What a service principal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccountKind {
    /// The account of an agent.
    Agent(AgentId),
    /// A scheduler or webhook gateway.
    Trigger,
}

/// The bounds that an agent's settings set.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct AgentSettings {
    /// The default and highest budget of a task, in US dollars.
    pub task_budget: Option<Money>,
    /// An advisory cap on the cost of a month, in US dollars.
    pub monthly_cost_cap: Option<Money>,
    /// How many tasks it may work at once.
    pub max_concurrent_tasks: Option<u32>,
    /// How long a task may take from its first session on.
    pub task_timeout_seconds: Option<u32>,
    /// How deep its tasks may delegate.
    pub max_depth: u32,
    /// How many open children a task may have.
    pub max_children: u32,
}

impl Default for AgentSettings {
    fn default() -> Self {
        Self {
            task_budget: None,
            monthly_cost_cap: None,
            max_concurrent_tasks: None,
            task_timeout_seconds: None,
            max_depth: MAX_DEPTH_DEFAULT,
            max_children: MAX_CHILDREN_DEFAULT,
        }
    }
}

/// How deep tasks may delegate unless the agent says otherwise.
pub const MAX_DEPTH_DEFAULT: u32 = 5;
/// How many open children a task may have unless the agent says otherwise.
pub const MAX_CHILDREN_DEFAULT: u32 = 50;

/// An agent definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agent {
    /// The agent.
    pub id: AgentId,
    /// Its name in routes.
    pub slug: String,
    /// The version that new tasks pin.
    pub version: i32,
    /// The version of its prompt that new tasks pin.
    pub prompt_version: i32,
    /// Whether tasks may be created for it.
    pub enabled: bool,
    /// Its account.
    pub service_account_id: AccountId,
    /// Its bounds.
    pub settings: AgentSettings,
}

/// A client-credentials pair, for the token route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    /// The tenant.
    pub organization_id: OrganizationId,
    /// Its slug.
    pub organization_slug: String,
    /// The account.
    pub account_id: AccountId,
    /// Its slug.
    pub account_slug: String,
    /// SHA-256 of the secret.
    pub secret_hash: [u8; 32],
}

/// What the service asks of the directory. Deleted agents, accounts and projects and revoked credentials are absent.
pub trait Directory: Send + Sync + 'static {
    /// How often this process has changed the directory: who remembers answers forgets them when it moves.
    fn changes(&self) -> u64 {
        0
    }
    /// The organization of that slug.
    fn organization(&self, slug: String) -> Answer<'_, Option<OrganizationId>>;
    /// The roles of a member; absent when the person is none.
    fn member(&self, organization: OrganizationId, person: PersonId) -> Answer<'_, Option<Vec<Role>>>;
    /// The account behind a token, while both the account and the credential live.
    fn account(
        &self,
        organization: OrganizationId,
        account: AccountId,
        credential: CredentialId,
    ) -> Answer<'_, Option<AccountKind>>;
    /// The credential of that client id.
    fn credential(&self, client: CredentialId) -> Answer<'_, Option<Credential>>;
    /// The agent of that slug.
    fn agent(&self, organization: OrganizationId, slug: String) -> Answer<'_, Option<Agent>>;
    /// The agent of that id, deleted or not.
    fn agent_by_id(&self, organization: OrganizationId, id: AgentId) -> Answer<'_, Option<Agent>>;
    /// The project of that id, with its slug.
    fn project(&self, organization: OrganizationId, id: ProjectId) -> Answer<'_, Option<String>>;
    /// The model of that slug, provider's name or alias, with the prices in force at `at`.
    fn model(&self, organization: OrganizationId, name: String, at: Timestamp) -> Answer<'_, Option<PricedModel>>;
}
