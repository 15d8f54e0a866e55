//! The directory as administrators see it: who may change it, and the changes.
//!
//! Every change needs an [`Editor`], so that none can forget to ask for the permission.

mod accounts;
mod agents;
mod members;
mod models;
mod projects;

pub use accounts::{Issued, WithSecret};

use uuid::Uuid;

use super::{Caller, Clock, Service, ServiceError};
use crate::directory::records::{AuditEntry, Key};
use crate::domain::event::Actor;
use crate::domain::ids::OrganizationId;
use crate::domain::principal::Permission;
use crate::domain::refusal::{Fault, Refusal};
use crate::store::{Edit, EditError, Listing, Page, Record};

impl From<EditError> for ServiceError {
    fn from(error: EditError) -> Self {
        match error {
            EditError::Refused(refusal) => refusal.into(),
            EditError::Store(fault) => fault.into(),
        }
    }
}

/// Who may change an organization's directory.
#[derive(Debug, Clone)]
pub struct Editor {
    organization: OrganizationId,
    actor: Actor,
}

impl Editor {
    /// A person whose roles allow it.
    pub fn of(caller: &Caller) -> Result<Self, Refusal> {
        caller.person_with(Permission::ManageDirectory)?;
        Ok(Self { organization: caller.organization, actor: caller.actor() })
    }

    /// The server itself: whoever runs its program on its machine.
    pub fn server(organization: OrganizationId) -> Self {
        Self { organization, actor: Actor::worker() }
    }

    /// The tenant.
    pub fn organization(&self) -> OrganizationId {
        self.organization
    }
}

/// Refuses a caller who is no member, with roles or without. Service accounts are told nothing of what there is.
fn reader(caller: &Caller) -> Result<(), Refusal> {
    caller.member()
}

impl Service {
    fn edit(&self, editor: &Editor) -> Edit {
        let clock = self.clock.clone();
        Edit {
            organization: editor.organization,
            actor: editor.actor.clone(),
            now: Box::new(move || clock.now()),
            new_id: Clock::new_id,
        }
    }

    /// The record that a route names, for a caller who may read the directory.
    pub async fn record<T: Record>(&self, caller: &Caller, name: &str) -> Result<T, ServiceError> {
        reader(caller)?;
        let key = T::key(name).map_err(|_| Refusal::NotFound(T::KIND))?;
        let found = self.store.record(caller.organization, &key).await?;
        Ok(found.ok_or(Refusal::NotFound(T::KIND))?)
    }

    /// The record that a route names, and the right to change it.
    pub async fn record_to_change<T: Record>(&self, caller: &Caller, name: &str) -> Result<(T, Editor), ServiceError> {
        let record = self.record(caller, name).await?;
        Ok((record, Editor::of(caller)?))
    }

    /// What a PUT names, and the right to write it. An id names what is there; a name may be new.
    pub async fn target<T: Record>(&self, caller: &Caller, name: &str) -> Result<(Key, Editor), ServiceError> {
        reader(caller)?;
        let key = T::key(name);
        if let Ok(Key::Id(_)) = key {
            self.record::<T>(caller, name).await?;
        }
        let editor = Editor::of(caller)?;
        let key = key.map_err(|fault| Refusal::Invalid(vec![Fault::path(T::PARAMETER, fault.to_string())]))?;
        Ok((key, editor))
    }

    /// A page of the records of one kind.
    pub async fn records<T: Record>(&self, caller: &Caller, listing: &Listing) -> Result<Page<T>, ServiceError> {
        reader(caller)?;
        Ok(self.store.records(caller.organization, listing).await?)
    }

    /// A page of the audit trail, the newest first, and whether there is more.
    pub async fn audit_trail(
        &self,
        caller: &Caller,
        before: Option<Uuid>,
        limit: u32,
    ) -> Result<(Vec<AuditEntry>, bool), ServiceError> {
        Editor::of(caller)?;
        Ok(self.store.audit_trail(caller.organization, before, limit).await?)
    }
}
