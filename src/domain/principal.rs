//! Who calls, and what they may do.

use super::ids::{AccountId, CredentialId, OrganizationId, PersonId};
use super::names::names;
use super::time::Timestamp;

/// What a role of the directory allows. Service accounts hold none of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Permission {
    /// `agent_task:read`: list and read tasks and their events.
    Read,
    /// `agent_task:create`: create a task.
    Create,
    /// `agent_task:manage`: pause, resume, cancel, reassign, reply.
    Manage,
    /// `agent_task:resolve`: answer feedback requests and resolve approvals.
    Resolve,
    /// `agent_directory:manage`: change the directory.
    ManageDirectory,
}

impl Permission {
    /// The permission's name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "agent_task:read",
            Self::Create => "agent_task:create",
            Self::Manage => "agent_task:manage",
            Self::Resolve => "agent_task:resolve",
            Self::ManageDirectory => "agent_directory:manage",
        }
    }
}

names! {
    /// A member's role. A member may hold several; permissions add up.
    Role, RoleError: "role" {
        /// Reads.
        Viewer = "viewer",
        /// Reads, creates and manages tasks.
        Operator = "operator",
        /// Reads, and resolves requests.
        Approver = "approver",
        /// Everything, the directory included.
        Admin = "admin",
    }
}

impl Role {
    /// Whether the role alone grants `permission`.
    pub fn grants(self, permission: Permission) -> bool {
        match self {
            Self::Viewer => matches!(permission, Permission::Read),
            Self::Operator => {
                matches!(permission, Permission::Read | Permission::Create | Permission::Manage)
            }
            Self::Approver => matches!(permission, Permission::Read | Permission::Resolve),
            Self::Admin => true,
        }
    }
}

/// Who a verified token says is calling. It proves who; what they may do comes from the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// A person, by a token of a configured issuer.
    Person {
        /// The case-folded subject.
        id: PersonId,
        /// What the issuer's `roles_claim` map grants, should the person be a member.
        mapped_roles: Vec<Role>,
        /// The channel that the token claims (`web`, `slack`, `mcp`), if any.
        channel: Option<super::event::Channel>,
        /// When the token ends.
        expires_at: Timestamp,
    },
    /// A service principal (an agent's account or a trigger), by a token of this server.
    Service {
        /// The only organization in which it exists.
        organization_id: OrganizationId,
        /// The account.
        account_id: AccountId,
        /// The credential that the token was bought with; its revocation ends the token.
        credential_id: CredentialId,
        /// When the token ends.
        expires_at: Timestamp,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_grants_what_the_contract_says() {
        use Permission::{Create, Manage, ManageDirectory, Read, Resolve};
        let all = [Read, Create, Manage, Resolve, ManageDirectory];
        for (role, granted) in [
            (Role::Viewer, vec![Read]),
            (Role::Operator, vec![Read, Create, Manage]),
            (Role::Approver, vec![Read, Resolve]),
            (Role::Admin, all.to_vec()),
        ] {
            let found: Vec<_> = all.into_iter().filter(|permission| role.grants(*permission)).collect();
            assert_eq!(found, granted, "{role}");
        }
        let names = all.map(Permission::as_str);
        let told = ["agent_task:read", "agent_task:create", "agent_task:manage", "agent_task:resolve"];
        assert_eq!((&names[..4], names[4]), (&told[..], "agent_directory:manage"));
    }
}
