//! A short memory of who is who. Membership, roles and revocations take effect everywhere within its time to live.

use std::sync::Arc;
use std::time::Duration;

use moka::future::Cache;

use super::{AccountKind, Agent, Answer, Credential, Directory};
use crate::domain::ids::{AccountId, AgentId, CredentialId, OrganizationId, PersonId, ProjectId};
use crate::domain::principal::Role;
use crate::domain::time::Timestamp;
use crate::domain::usage::PricedModel;

/// The longest time to live: revocation holds within it.
pub const CACHE_TTL_MAX: Duration = Duration::from_secs(10);
/// The most entries of each kind.
const CAPACITY: u64 = 100_000;

/// How often this process had changed the directory when it was asked. Part of every key, so that an answer that was
/// on its way during a change is not taken for one that came after it.
type Changes = u64;

/// Remembers organizations, memberships and accounts; asks for everything else each time.
pub struct CachedDirectory {
    inner: Arc<dyn Directory>,
    organizations: Cache<String, OrganizationId>,
    members: Cache<(Changes, OrganizationId, PersonId), Option<Vec<Role>>>,
    accounts: Cache<(Changes, OrganizationId, AccountId, CredentialId), Option<AccountKind>>,
}

impl CachedDirectory {
    /// Remembers what `inner` says for `ttl`, at most [`CACHE_TTL_MAX`]; zero remembers nothing.
    pub fn new(inner: Arc<dyn Directory>, ttl: Duration) -> Self {
        let ttl = ttl.min(CACHE_TTL_MAX);
        Self {
            inner,
            organizations: Cache::builder().max_capacity(CAPACITY).time_to_live(ttl).build(),
            members: Cache::builder().max_capacity(CAPACITY).time_to_live(ttl).build(),
            accounts: Cache::builder().max_capacity(CAPACITY).time_to_live(ttl).build(),
        }
    }

    /// Forgets everything. What this process itself changes is forgotten without it, by [`Directory::changes`].
    pub fn forget(&self) {
        self.organizations.invalidate_all();
        self.members.invalidate_all();
        self.accounts.invalidate_all();
    }
}

impl Directory for CachedDirectory {
    fn changes(&self) -> u64 {
        self.inner.changes()
    }

    fn organization(&self, slug: String) -> Answer<'_, Option<OrganizationId>> {
        Box::pin(async move {
            if let Some(known) = self.organizations.get(&slug).await {
                return Ok(Some(known));
            }
            // An unknown slug is not remembered: anybody could fill the memory with them.
            let found = self.inner.organization(slug.clone()).await?;
            if let Some(id) = found {
                self.organizations.insert(slug, id).await;
            }
            Ok(found)
        })
    }

    fn member(&self, organization: OrganizationId, person: PersonId) -> Answer<'_, Option<Vec<Role>>> {
        Box::pin(async move {
            let key = (self.changes(), organization, person);
            if let Some(known) = self.members.get(&key).await {
                return Ok(known);
            }
            let roles = self.inner.member(organization, key.2.clone()).await?;
            self.members.insert(key, roles.clone()).await;
            Ok(roles)
        })
    }

    fn account(
        &self,
        organization: OrganizationId,
        account: AccountId,
        credential: CredentialId,
    ) -> Answer<'_, Option<AccountKind>> {
        Box::pin(async move {
            let key = (self.changes(), organization, account, credential);
            if let Some(known) = self.accounts.get(&key).await {
                return Ok(known);
            }
            let kind = self.inner.account(organization, account, credential).await?;
            self.accounts.insert(key, kind).await;
            Ok(kind)
        })
    }

    fn credential(&self, client: CredentialId) -> Answer<'_, Option<Credential>> {
        self.inner.credential(client)
    }

    fn agent(&self, organization: OrganizationId, slug: String) -> Answer<'_, Option<Agent>> {
        self.inner.agent(organization, slug)
    }

    fn agent_by_id(&self, organization: OrganizationId, id: AgentId) -> Answer<'_, Option<Agent>> {
        self.inner.agent_by_id(organization, id)
    }

    fn project(&self, organization: OrganizationId, id: ProjectId) -> Answer<'_, Option<String>> {
        self.inner.project(organization, id)
    }

    fn model(&self, organization: OrganizationId, name: String, at: Timestamp) -> Answer<'_, Option<PricedModel>> {
        self.inner.model(organization, name, at)
    }
}
