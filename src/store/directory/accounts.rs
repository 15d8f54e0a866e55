//! Service accounts: triggers, and the credentials of triggers and agents.

use super::edit::{Edit, EditError, Editing, new_name};
use super::rows::{CREDENTIAL_COLUMNS, credential};
use crate::directory::records::{Action, CredentialRecord, Key, Naming, Trigger};
use crate::domain::ids::{AccountId, CredentialId, OrganizationId};
use crate::domain::refusal::Refusal;
use crate::store::Store;
use crate::store::error::StoreError;

/// A record with an account after a PUT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WithCredential<T> {
    /// The record.
    pub record: T,
    /// The first credential, when the record is new.
    pub credential: Option<CredentialRecord>,
}

impl Store {
    /// Makes a trigger with its first credential, or changes it. Only the hash of the secret is kept.
    pub async fn put_trigger(
        &self,
        edit: Edit,
        key: &Key,
        draft: &Naming,
        secret_hash: [u8; 32],
    ) -> Result<WithCredential<Trigger>, EditError> {
        let mut editing = self.edit(edit).await?;
        if let Some(before) = editing.find::<Trigger>(key).await? {
            let record = editing.update_trigger(before, draft).await?;
            editing.commit().await?;
            return Ok(WithCredential { record, credential: None });
        }
        let record = Trigger {
            id: AccountId(editing.new_id()),
            slug: new_name::<Trigger>(key)?,
            name: draft.name.clone(),
            external_ref: draft.external_ref.clone(),
            created_at: editing.at,
            updated_at: editing.at,
        };
        editing.insert_account(record.id, "trigger", &record.slug, draft).await?;
        editing.audit(Action::Created, None, Some(&record)).await?;
        let credential = editing.add_credential(record.id, secret_hash).await?;
        editing.commit().await?;
        Ok(WithCredential { record, credential: Some(credential) })
    }

    /// Removes a trigger and revokes its credentials.
    pub async fn delete_trigger(&self, edit: Edit, id: AccountId) -> Result<(), EditError> {
        let mut editing = self.edit(edit).await?;
        let before: Trigger = editing.existing(&Key::Id(id.0)).await?;
        editing.remove_account(id).await?;
        editing.audit(Action::Deleted, Some(&before), None).await?;
        editing.commit().await
    }

    /// The credentials of an account, the oldest first.
    pub async fn credentials(
        &self,
        organization: OrganizationId,
        account: AccountId,
    ) -> Result<Vec<CredentialRecord>, StoreError> {
        let query = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {CREDENTIAL_COLUMNS} FROM agent_directory.credentials
             WHERE organization_id = $1 AND account_id = $2 ORDER BY created_at, id"
        )))
        .bind(organization.0)
        .bind(account.0);
        self.many(query).await?.iter().map(credential).collect()
    }

    /// Gives an account that lives one more credential. Only the hash of its secret is kept.
    pub async fn add_credential(
        &self,
        edit: Edit,
        account: AccountId,
        secret_hash: [u8; 32],
    ) -> Result<CredentialRecord, EditError> {
        let mut editing = self.edit(edit).await?;
        let live = sqlx::query(
            "SELECT id FROM agent_directory.service_accounts
             WHERE organization_id = $1 AND id = $2 AND deleted_at IS NULL",
        )
        .bind(editing.organization())
        .bind(account.0);
        if editing.all(live).await?.is_empty() {
            return Err(Refusal::NotFound("service account").into());
        }
        let credential = editing.add_credential(account, secret_hash).await?;
        editing.commit().await?;
        Ok(credential)
    }

    /// Revokes a credential of an account; again changes nothing.
    pub async fn revoke_credential(&self, edit: Edit, account: AccountId, id: CredentialId) -> Result<(), EditError> {
        let mut editing = self.edit(edit).await?;
        let query = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {CREDENTIAL_COLUMNS} FROM agent_directory.credentials
             WHERE organization_id = $1 AND account_id = $2 AND id = $3"
        )))
        .bind(editing.organization())
        .bind(account.0)
        .bind(id.0);
        let rows = editing.all(query).await?;
        let before = rows.first().map(credential).transpose()?.ok_or(Refusal::NotFound("credential"))?;
        if before.revoked_at.is_none() {
            editing.revoke(before).await?;
        }
        editing.commit().await
    }
}

impl Editing<'_> {
    async fn update_trigger(&mut self, before: Trigger, draft: &Naming) -> Result<Trigger, EditError> {
        let mut after =
            Trigger { name: draft.name.clone(), external_ref: draft.external_ref.clone(), ..before.clone() };
        if after == before {
            return Ok(before);
        }
        after.updated_at = self.at;
        self.rename_account(after.id, draft).await?;
        self.audit(Action::Updated, Some(&before), Some(&after)).await?;
        Ok(after)
    }

    pub(super) async fn insert_account(
        &mut self,
        id: AccountId,
        kind: &'static str,
        slug: &str,
        naming: &Naming,
    ) -> Result<(), StoreError> {
        let query = sqlx::query(
            "INSERT INTO agent_directory.service_accounts
                (organization_id, id, kind, slug, name, external_ref, created_at, updated_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $7)",
        )
        .bind(self.organization())
        .bind(id.0)
        .bind(kind)
        .bind(slug.to_owned())
        .bind(naming.name.clone())
        .bind(naming.external_ref.clone())
        .bind(self.instant());
        self.run(query).await?;
        Ok(())
    }

    pub(super) async fn rename_account(&mut self, id: AccountId, naming: &Naming) -> Result<(), StoreError> {
        let query = sqlx::query(
            "UPDATE agent_directory.service_accounts SET name = $3, external_ref = $4, updated_at = $5
             WHERE organization_id = $1 AND id = $2",
        )
        .bind(self.organization())
        .bind(id.0)
        .bind(naming.name.clone())
        .bind(naming.external_ref.clone())
        .bind(self.instant());
        self.run(query).await?;
        Ok(())
    }

    /// Ends an account and revokes its credentials. The row stays: tasks keep its id.
    pub(super) async fn remove_account(&mut self, id: AccountId) -> Result<(), StoreError> {
        let query = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {CREDENTIAL_COLUMNS} FROM agent_directory.credentials
             WHERE organization_id = $1 AND account_id = $2 AND revoked_at IS NULL ORDER BY id"
        )))
        .bind(self.organization())
        .bind(id.0);
        let live = self.all(query).await?;
        for row in &live {
            self.revoke(credential(row)?).await?;
        }
        let query = sqlx::query(
            "UPDATE agent_directory.service_accounts SET deleted_at = $3, updated_at = $3
             WHERE organization_id = $1 AND id = $2",
        )
        .bind(self.organization())
        .bind(id.0)
        .bind(self.instant());
        self.run(query).await?;
        Ok(())
    }

    pub(super) async fn add_credential(
        &mut self,
        account: AccountId,
        secret_hash: [u8; 32],
    ) -> Result<CredentialRecord, StoreError> {
        let record = CredentialRecord {
            client_id: CredentialId(self.new_id()),
            account_id: account,
            created_at: self.at,
            revoked_at: None,
        };
        let query = sqlx::query(
            "INSERT INTO agent_directory.credentials (organization_id, id, account_id, secret_hash, created_at)
             VALUES ($1, $2, $3, $4, $5)",
        )
        .bind(self.organization())
        .bind(record.client_id.0)
        .bind(account.0)
        .bind(secret_hash.to_vec())
        .bind(self.instant());
        self.run(query).await?;
        self.audit(Action::Created, None, Some(&record)).await?;
        Ok(record)
    }

    async fn revoke(&mut self, before: CredentialRecord) -> Result<(), StoreError> {
        let after = CredentialRecord { revoked_at: Some(self.at), ..before.clone() };
        let query = sqlx::query(
            "UPDATE agent_directory.credentials SET revoked_at = $3 WHERE organization_id = $1 AND id = $2",
        )
        .bind(self.organization())
        .bind(before.client_id.0)
        .bind(self.instant());
        self.run(query).await?;
        self.audit(Action::Revoked, Some(&before), Some(&after)).await
    }
}
