//! The organization and its members.

use super::{Editor, reader};
use crate::directory::records::{Member, MemberDraft, Naming, Organization};
use crate::domain::ids::{OrganizationId, PersonId, Slug};
use crate::domain::refusal::Refusal;
use crate::service::{Caller, Clock, Service, ServiceError};
use crate::store::{Initialized, Put};

impl Service {
    /// The organization itself.
    pub async fn organization(&self, caller: &Caller) -> Result<Organization, ServiceError> {
        reader(caller)?;
        let found = self.store.organization_record(caller.organization).await?;
        Ok(found.ok_or(Refusal::OrganizationForbidden)?)
    }

    /// Changes the organization.
    pub async fn put_organization(&self, editor: &Editor, draft: &Naming) -> Result<Organization, ServiceError> {
        Ok(self.store.put_organization(self.edit(editor), draft).await?)
    }

    /// Makes a person a member, or changes the membership.
    pub async fn put_member(
        &self,
        editor: &Editor,
        person: &PersonId,
        draft: &MemberDraft,
    ) -> Result<Put<Member>, ServiceError> {
        Ok(self.store.put_member(self.edit(editor), person, draft).await?)
    }

    /// Ends a membership.
    pub async fn delete_member(&self, editor: &Editor, person: &PersonId) -> Result<(), ServiceError> {
        Ok(self.store.delete_member(self.edit(editor), person).await?)
    }

    /// Makes an organization of that slug and name, and its administrator, where they are not there yet: what
    /// `mandate admin init` does. A member becomes an administrator too; an existing organization keeps its name.
    /// Whoever runs it has the database, so nobody is asked for a permission.
    pub async fn init_organization(
        &self,
        slug: &Slug,
        name: &str,
        admin: &PersonId,
    ) -> Result<Initialized, ServiceError> {
        let editor = Editor::server(OrganizationId(Clock::new_id()));
        Ok(self.store.init_organization(self.edit(&editor), slug, name, admin).await?)
    }
}
