//! Who calls, resolved in one organization, and what they may do there.

use crate::domain::change::BodyHash;
use crate::domain::event::{Actor, ActorKind, Channel};
use crate::domain::ids::{AccountId, AgentId, OrganizationId, PersonId, TaskId};
use crate::domain::principal::{Permission, Role};
use crate::domain::refusal::Refusal;
use crate::domain::task::{Origin, Pinned};

/// A principal within one organization.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Principal {
    /// A member.
    Person {
        /// The person.
        id: PersonId,
        /// The directory's roles and what the issuer's map adds.
        roles: Vec<Role>,
        /// The channel that the token claims.
        channel: Option<Channel>,
    },
    /// The account of an agent.
    Agent {
        /// The account.
        account: AccountId,
        /// The agent.
        agent: AgentId,
    },
    /// A scheduler or webhook gateway.
    Trigger {
        /// The account.
        account: AccountId,
    },
}

/// A caller: the principal and the organization of the route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The organization of the route, of which the principal is part.
    pub organization: OrganizationId,
    /// Who.
    pub principal: Principal,
}

impl Caller {
    /// Whether a role of the caller grants `permission`. Service accounts hold none.
    pub fn holds(&self, permission: Permission) -> bool {
        match &self.principal {
            Principal::Person { roles, .. } => roles.iter().any(|role| role.grants(permission)),
            Principal::Agent { .. } | Principal::Trigger { .. } => false,
        }
    }

    /// Refuses a caller whose roles do not grant `permission`.
    pub fn require(&self, permission: Permission) -> Result<(), Refusal> {
        if self.holds(permission) { Ok(()) } else { Err(Refusal::PermissionDenied(permission)) }
    }

    /// The person, or the refusal of a service principal, before any role is looked at.
    pub fn person(&self) -> Result<&PersonId, Refusal> {
        match &self.principal {
            Principal::Person { id, .. } => Ok(id),
            Principal::Agent { .. } | Principal::Trigger { .. } => Err(Refusal::PersonRequired),
        }
    }

    /// A person who holds `permission`.
    pub fn person_with(&self, permission: Permission) -> Result<&PersonId, Refusal> {
        self.require(permission)?;
        self.person()
    }

    /// Any member of the organization, whatever the roles; a caller who is a person is one.
    pub fn member(&self) -> Result<(), Refusal> {
        match &self.principal {
            Principal::Person { .. } => Ok(()),
            Principal::Agent { .. } | Principal::Trigger { .. } => Err(Refusal::PermissionDenied(Permission::Read)),
        }
    }

    /// The account of the task's agent, the only caller of the harness's routes.
    pub fn harness_of(&self, task: &Ownership) -> Result<AccountId, Refusal> {
        match &self.principal {
            Principal::Agent { account, .. } if *account == task.account => Ok(*account),
            Principal::Agent { .. } | Principal::Trigger { .. } | Principal::Person { .. } => {
                Err(Refusal::AgentTaskForbidden)
            }
        }
    }

    /// Whether the caller may read the task: people by role, the task's own account, the parent's account, and the
    /// trigger that created it.
    pub fn may_read(&self, task: &Ownership) -> Result<(), Refusal> {
        match &self.principal {
            Principal::Person { .. } => self.require(Permission::Read),
            Principal::Agent { account, agent } => {
                let (own, parent) = (task.account == *account, task.parent_agent == Some(*agent));
                if own || parent { Ok(()) } else { Err(Refusal::AgentTaskForbidden) }
            }
            Principal::Trigger { account } => {
                let own = task.created_by == Some(*account);
                if own { Ok(()) } else { Err(Refusal::PermissionDenied(Permission::Read)) }
            }
        }
    }

    /// The caller as events carry it.
    pub fn actor(&self) -> Actor {
        match &self.principal {
            Principal::Person { id, channel, .. } => {
                Actor { kind: ActorKind::Human, id: id.to_string(), channel: Some(channel.unwrap_or(Channel::Api)) }
            }
            Principal::Agent { agent, .. } => {
                Actor { kind: ActorKind::Agent, id: agent.to_string(), channel: Some(Channel::Harness) }
            }
            Principal::Trigger { account } => {
                Actor { kind: ActorKind::System, id: account.to_string(), channel: Some(Channel::Harness) }
            }
        }
    }
}

/// What every writing call brings along.
#[derive(Debug, Clone)]
pub struct Call {
    /// Who calls.
    pub caller: Caller,
    /// SHA-256 of the canonical body.
    pub body_hash: BodyHash,
    /// Pointers of what was redacted in the body.
    pub redacted: Vec<String>,
}

/// A change's answer: what was written or found, and whether it is a repeat.
#[derive(Debug, Clone)]
pub struct Answered<T> {
    /// The answer.
    pub value: T,
    /// The first answer again, and whether the body was the first's.
    pub replay: Option<Replay>,
}

/// A repeat of an earlier call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replay {
    /// Whether the body was that of the first call.
    pub body_matches: bool,
}

impl<T> Answered<T> {
    /// A first answer.
    pub fn first(value: T) -> Self {
        Self { value, replay: None }
    }

    /// A repeat; `first` is the hash of the body that came first.
    pub fn repeat(value: T, first: BodyHash, now: BodyHash) -> Self {
        Self { value, replay: Some(Replay { body_matches: first == now }) }
    }
}

/// What of a task decides whose it is. Creation pinned it, so it never changes and may be remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ownership {
    /// The tenant.
    pub organization: OrganizationId,
    /// The agent.
    pub agent: AgentId,
    /// The agent's account.
    pub account: AccountId,
    /// The trigger's account, when a trigger created it.
    pub created_by: Option<AccountId>,
    /// The parent's agent, when it was delegated.
    pub parent_agent: Option<AgentId>,
}

impl From<&Pinned> for Ownership {
    fn from(pinned: &Pinned) -> Self {
        let parent_agent = match &pinned.origin {
            Origin::Task { agent_id, .. } => Some(*agent_id),
            Origin::Human { .. } | Origin::Schedule { .. } | Origin::Webhook { .. } => None,
        };
        Self {
            organization: pinned.organization_id,
            agent: pinned.agent_id,
            account: pinned.service_account_id,
            created_by: pinned.created_by_account,
            parent_agent,
        }
    }
}

/// The task that a route names. Its facts are not here: they are read when something is decided on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Located {
    /// The task.
    pub id: TaskId,
    /// Whose it is.
    pub task: Ownership,
}
