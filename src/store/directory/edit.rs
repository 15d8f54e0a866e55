//! One change of the directory: a transaction that holds the organization, and its audit row.

use std::sync::atomic::Ordering;

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Postgres, Row};
use time::OffsetDateTime;
use tokio::sync::SemaphorePermit;
use uuid::Uuid;

use super::record::{Record, Subject};
use crate::directory::records::{Action, Key};
use crate::domain::event::Actor;
use crate::domain::ids::OrganizationId;
use crate::domain::refusal::Refusal;
use crate::domain::time::Timestamp;
use crate::store::Store;
use crate::store::error::StoreError;
use crate::store::lease::Lease;

/// Changes of the directory that a process has under way at once. Those of one organization wait for each other; they
/// shall not wait with every connection in their hands.
pub const EDITS_MAX: usize = 4;

/// Who changes the directory; time and ids are parameters.
pub struct Edit {
    /// The tenant.
    pub organization: OrganizationId,
    /// Who.
    pub actor: Actor,
    /// The clock. It is asked while the organization is held, so that what was written later is later.
    pub now: Box<dyn Fn() -> Timestamp + Send + Sync>,
    /// Fresh ids.
    pub new_id: fn() -> Uuid,
}

/// Why the directory was not changed.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// The contract refuses it.
    #[error("refused: {0:?}")]
    Refused(Refusal),
    /// A fault of the store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<Refusal> for EditError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<sqlx::Error> for EditError {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

/// A record after a PUT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put<T> {
    /// The record.
    pub record: T,
    /// Whether it is new.
    pub created: bool,
}

/// A change under way. Dropped, it changes nothing.
pub(super) struct Editing<'s> {
    store: &'s Store,
    lease: Lease,
    _permit: SemaphorePermit<'s>,
    edit: Edit,
    changed: bool,
    /// When the change happens.
    pub at: Timestamp,
}

/// The name that a new record gets. An id names nothing new.
pub(super) fn new_name<T: Subject>(key: &Key) -> Result<String, EditError> {
    match key {
        Key::Name(name) => Ok(name.clone()),
        Key::Id(_) => Err(Refusal::NotFound(T::KIND).into()),
    }
}

impl Store {
    /// Begins a change. Changes of one organization's directory wait for each other: they are rare, and what one of
    /// them found (a name that is free, an administrator who is not the last) stays true until it ends.
    pub(super) async fn edit(&self, edit: Edit) -> Result<Editing<'_>, EditError> {
        let (permit, mut lease) = self.begin_edit().await?;
        let held = sqlx::query("SELECT id FROM agent_directory.organizations WHERE id = $1 FOR NO KEY UPDATE")
            .bind(edit.organization.0)
            .persistent(self.named())
            .fetch_optional(&mut *lease)
            .await?;
        held.ok_or(Refusal::NotFound("organization"))?;
        Ok(Editing::begun(self, (permit, lease), edit))
    }

    /// A transaction for a change that does not hold its organization yet.
    pub(super) async fn begin_edit(&self) -> Result<(SemaphorePermit<'_>, Lease), StoreError> {
        let closed = |_| StoreError::Unavailable(sqlx::Error::PoolClosed);
        let permit = self.directory_edits.acquire().await.map_err(closed)?;
        Ok((permit, self.transaction().await?))
    }
}

impl<'s> Editing<'s> {
    /// A change in a transaction that holds the organization already.
    pub fn begun(store: &'s Store, (permit, lease): (SemaphorePermit<'s>, Lease), edit: Edit) -> Self {
        let at = (edit.now)();
        Self { store, lease, _permit: permit, edit, changed: false, at }
    }

    pub fn organization(&self) -> Uuid {
        self.edit.organization.0
    }

    /// When the change happens, for the database.
    pub fn instant(&self) -> OffsetDateTime {
        self.at.into()
    }

    pub fn new_id(&self) -> Uuid {
        (self.edit.new_id)()
    }

    pub async fn run(&mut self, query: Query<'_, Postgres, PgArguments>) -> Result<u64, StoreError> {
        Ok(query.persistent(self.store.named()).execute(&mut *self.lease).await?.rows_affected())
    }

    pub async fn all(&mut self, query: Query<'_, Postgres, PgArguments>) -> Result<Vec<PgRow>, StoreError> {
        Ok(query.persistent(self.store.named()).fetch_all(&mut *self.lease).await?)
    }

    /// The number that a query with the one column `count` answers.
    pub async fn count(&mut self, query: Query<'_, Postgres, PgArguments>) -> Result<i64, StoreError> {
        let rows = self.all(query).await?;
        Ok(rows.first().map(|row| row.try_get("count")).transpose()?.unwrap_or_default())
    }

    /// The record of that key, if there is one.
    pub async fn find<T: Record>(&mut self, key: &Key) -> Result<Option<T>, StoreError> {
        let organization = self.edit.organization;
        let rows = self.all(super::record::find::<T>(organization, key)).await?;
        rows.first().map(T::read).transpose()
    }

    /// The record of that key, or the refusal that there is none.
    pub async fn existing<T: Record>(&mut self, key: &Key) -> Result<T, EditError> {
        Ok(self.find(key).await?.ok_or(Refusal::NotFound(T::KIND))?)
    }

    /// Writes the audit row of what was made, changed or removed.
    pub async fn audit<T: Subject>(
        &mut self,
        action: Action,
        before: Option<&T>,
        after: Option<&T>,
    ) -> Result<(), StoreError> {
        let Some(subject) = after.or(before) else { return Ok(()) };
        let text = |record: &T| {
            serde_json::to_string(record).map_err(|fault| StoreError::Database(sqlx::Error::Encode(fault.into())))
        };
        let query = sqlx::query(
            "INSERT INTO agent_directory.audit
                (organization_id, id, at, actor_kind, actor_id, action, subject_kind, subject_id, before, after)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9::json, $10::json)",
        )
        .bind(self.organization())
        .bind(self.new_id())
        .bind(self.instant())
        .bind(self.edit.actor.kind.as_str())
        .bind(self.edit.actor.id.clone())
        .bind(action.as_str())
        .bind(T::KIND)
        .bind(subject.subject_id())
        .bind(before.map(text).transpose()?)
        .bind(after.map(text).transpose()?);
        self.run(query).await?;
        self.changed = true;
        Ok(())
    }

    /// Ends the change; from now on nobody in this process remembers what it replaced.
    pub async fn commit(self) -> Result<(), EditError> {
        let committed = self.lease.done().await;
        // A commit whose answer was lost may have happened.
        if self.changed {
            self.store.directory_changes.fetch_add(1, Ordering::AcqRel);
        }
        Ok(committed?)
    }
}
