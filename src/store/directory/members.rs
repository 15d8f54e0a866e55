//! The organization and its members.

use sqlx::postgres::PgRow;
use time::OffsetDateTime;

use super::edit::{Edit, EditError, Editing, Put};
use crate::directory::records::{Action, Key, Member, MemberDraft, Naming, Organization};
use crate::domain::ids::{OrganizationId, PersonId, Slug};
use crate::domain::principal::Role;
use crate::domain::refusal::Refusal;
use crate::store::Store;
use crate::store::error::StoreError;
use crate::store::rows::Reader;

/// What [`Store::init_organization`] found and made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Initialized {
    /// The organization.
    pub organization: Organization,
    /// Whether it is new.
    pub created: bool,
    /// Whether the person became an administrator.
    pub admin_added: bool,
}

const ORGANIZATION_COLUMNS: &str = "id, slug, name, external_ref, created_at, updated_at";

fn organization(row: &PgRow) -> Result<Organization, StoreError> {
    let r = Reader { table: "agent_directory.organizations", row };
    Ok(Organization {
        id: r.id("id")?,
        slug: r.get("slug")?,
        name: r.get("name")?,
        external_ref: r.get("external_ref")?,
        created_at: r.at("created_at")?,
        updated_at: r.at("updated_at")?,
    })
}

const READ_ORGANIZATION: &str = "SELECT id, slug, name, external_ref, created_at, updated_at
    FROM agent_directory.organizations WHERE id = $1";

impl Store {
    /// The organization itself.
    pub async fn organization_record(&self, id: OrganizationId) -> Result<Option<Organization>, StoreError> {
        let row = self.one(sqlx::query(READ_ORGANIZATION).bind(id.0)).await?;
        row.map(|row| organization(&row)).transpose()
    }

    /// Changes the organization.
    pub async fn put_organization(&self, edit: Edit, draft: &Naming) -> Result<Organization, EditError> {
        let mut editing = self.edit(edit).await?;
        let rows = editing.all(sqlx::query(READ_ORGANIZATION).bind(editing.organization())).await?;
        let before = rows.first().map(organization).transpose()?.ok_or(Refusal::NotFound("organization"))?;
        let mut after =
            Organization { name: draft.name.clone(), external_ref: draft.external_ref.clone(), ..before.clone() };
        if after == before {
            return Ok(before);
        }
        after.updated_at = editing.at;
        let query = sqlx::query(
            "UPDATE agent_directory.organizations SET name = $2, external_ref = $3, updated_at = $4 WHERE id = $1",
        )
        .bind(editing.organization())
        .bind(after.name.clone())
        .bind(after.external_ref.clone())
        .bind(editing.instant());
        editing.run(query).await?;
        editing.audit(Action::Updated, Some(&before), Some(&after)).await?;
        editing.commit().await?;
        Ok(after)
    }

    /// Makes a person a member, or changes the membership.
    pub async fn put_member(
        &self,
        edit: Edit,
        person: &PersonId,
        draft: &MemberDraft,
    ) -> Result<Put<Member>, EditError> {
        let mut editing = self.edit(edit).await?;
        let put = editing.put_member(person, draft).await?;
        editing.commit().await?;
        Ok(put)
    }

    /// Ends a membership.
    pub async fn delete_member(&self, edit: Edit, person: &PersonId) -> Result<(), EditError> {
        let mut editing = self.edit(edit).await?;
        let before: Member = editing.existing(&Key::Name(person.to_string())).await?;
        if before.is_admin() {
            editing.keep_an_admin_beside(person).await?;
        }
        let query = sqlx::query("DELETE FROM agent_directory.members WHERE organization_id = $1 AND person_id = $2")
            .bind(editing.organization())
            .bind(person.to_string());
        editing.run(query).await?;
        editing.audit(Action::Deleted, Some(&before), None).await?;
        editing.commit().await
    }

    /// Makes an organization and its administrator, where they are not there yet. `edit` names the id that a new
    /// organization gets.
    pub async fn init_organization(
        &self,
        mut edit: Edit,
        slug: &Slug,
        name: &str,
        admin: &PersonId,
    ) -> Result<Initialized, EditError> {
        let (permit, mut lease) = self.begin_edit().await?;
        let at = (edit.now)();
        let insert = "INSERT INTO agent_directory.organizations (id, slug, name, created_at, updated_at)
             VALUES ($1, $2, $3, $4, $4) ON CONFLICT (slug) DO NOTHING";
        let written = sqlx::query(insert)
            .bind(edit.organization.0)
            .bind(slug.as_str())
            .bind(name.to_owned())
            .bind(OffsetDateTime::from(at))
            .persistent(self.named())
            .execute(&mut *lease)
            .await?;
        let row = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {ORGANIZATION_COLUMNS} FROM agent_directory.organizations WHERE slug = $1 FOR NO KEY UPDATE"
        )))
        .bind(slug.as_str())
        .persistent(self.named())
        .fetch_one(&mut *lease)
        .await?;
        let (organization, created) = (organization(&row)?, written.rows_affected() == 1);
        edit.organization = organization.id;
        let mut editing = Editing::begun(self, (permit, lease), edit);
        if created {
            editing.audit(Action::Created, None, Some(&organization)).await?;
        }
        let known = editing.find::<Member>(&Key::Name(admin.to_string())).await?;
        let admin_added = !known.as_ref().is_some_and(Member::is_admin);
        if admin_added {
            let mut draft = MemberDraft { roles: vec![Role::Admin], name: None, email: None, external_ref: None };
            if let Some(known) = known {
                draft.roles = [known.roles, draft.roles].concat();
                (draft.name, draft.email, draft.external_ref) = (known.name, known.email, known.external_ref);
            }
            editing.put_member(admin, &draft).await?;
        }
        editing.commit().await?;
        Ok(Initialized { organization, created, admin_added })
    }
}

impl Editing<'_> {
    async fn put_member(&mut self, person: &PersonId, draft: &MemberDraft) -> Result<Put<Member>, EditError> {
        let before = self.find::<Member>(&Key::Name(person.to_string())).await?;
        let created_at = before.as_ref().map_or(self.at, |before| before.created_at);
        let mut after = Member {
            person_id: person.clone(),
            roles: draft.roles.clone(),
            name: draft.name.clone(),
            email: draft.email.clone(),
            external_ref: draft.external_ref.clone(),
            created_at,
            updated_at: before.as_ref().map_or(self.at, |before| before.updated_at),
        };
        if before.as_ref() == Some(&after) {
            return Ok(Put { record: after, created: false });
        }
        if before.as_ref().is_some_and(Member::is_admin) && !after.is_admin() {
            self.keep_an_admin_beside(person).await?;
        }
        after.updated_at = self.at;
        let query = sqlx::query(
            "INSERT INTO agent_directory.members
                (organization_id, person_id, roles, name, email, external_ref, created_at, updated_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
             ON CONFLICT (organization_id, person_id) DO UPDATE SET roles = excluded.roles, name = excluded.name,
                email = excluded.email, external_ref = excluded.external_ref, updated_at = excluded.updated_at",
        )
        .bind(self.organization())
        .bind(person.to_string())
        .bind(after.roles.iter().map(|role| role.as_str()).collect::<Vec<_>>())
        .bind(after.name.clone())
        .bind(after.email.clone())
        .bind(after.external_ref.clone())
        .bind(OffsetDateTime::from(created_at))
        .bind(self.instant());
        self.run(query).await?;
        let action = if before.is_some() { Action::Updated } else { Action::Created };
        self.audit(action, before.as_ref(), Some(&after)).await?;
        Ok(Put { record: after, created: before.is_none() })
    }

    async fn keep_an_admin_beside(&mut self, person: &PersonId) -> Result<(), EditError> {
        let query = sqlx::query(
            "SELECT count(*) FROM agent_directory.members
             WHERE organization_id = $1 AND person_id <> $2 AND 'admin' = ANY (roles)",
        )
        .bind(self.organization())
        .bind(person.to_string());
        if self.count(query).await? == 0 { Err(Refusal::LastAdmin.into()) } else { Ok(()) }
    }
}
