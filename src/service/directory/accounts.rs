//! Triggers, and the credentials of triggers and agents.

use super::Editor;
use crate::auth::secrets::{self, ClientSecret};
use crate::directory::records::{CredentialRecord, Key, Naming, Trigger};
use crate::domain::ids::{AccountId, CredentialId, OrganizationId};
use crate::service::{Service, ServiceError};
use crate::store::WithCredential;

/// A new credential with its secret, which is shown once and kept nowhere.
#[derive(Debug)]
pub struct Issued {
    /// The credential.
    pub credential: CredentialRecord,
    /// Its secret.
    pub secret: ClientSecret,
}

/// A record with an account after a PUT.
#[derive(Debug)]
pub struct WithSecret<T> {
    /// The record.
    pub record: T,
    /// The first credential, when the record is new.
    pub issued: Option<Issued>,
}

impl<T> WithSecret<T> {
    pub(super) fn new(put: WithCredential<T>, secret: ClientSecret) -> Self {
        let issued = put.credential.map(|credential| Issued { credential, secret });
        Self { record: put.record, issued }
    }
}

impl Service {
    /// Makes a trigger with its first credential, or changes it.
    pub async fn put_trigger(
        &self,
        editor: &Editor,
        key: &Key,
        draft: &Naming,
    ) -> Result<WithSecret<Trigger>, ServiceError> {
        let secret = secrets::generate();
        let put = self.store.put_trigger(self.edit(editor), key, draft, secret.hash()).await?;
        Ok(WithSecret::new(put, secret))
    }

    /// Removes a trigger and revokes its credentials.
    pub async fn delete_trigger(&self, editor: &Editor, id: AccountId) -> Result<(), ServiceError> {
        Ok(self.store.delete_trigger(self.edit(editor), id).await?)
    }

    /// The credentials of an account, the oldest first.
    pub async fn credentials(
        &self,
        organization: OrganizationId,
        account: AccountId,
    ) -> Result<Vec<CredentialRecord>, ServiceError> {
        Ok(self.store.credentials(organization, account).await?)
    }

    /// Gives an account one more credential; the others stay valid.
    pub async fn issue_credential(&self, editor: &Editor, account: AccountId) -> Result<Issued, ServiceError> {
        let secret = secrets::generate();
        let credential = self.store.add_credential(self.edit(editor), account, secret.hash()).await?;
        Ok(Issued { credential, secret })
    }

    /// Revokes a credential of an account; again changes nothing.
    pub async fn revoke_credential(
        &self,
        editor: &Editor,
        account: AccountId,
        client: CredentialId,
    ) -> Result<(), ServiceError> {
        Ok(self.store.revoke_credential(self.edit(editor), account, client).await?)
    }
}
