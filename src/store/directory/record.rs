//! What all records have in common: how they are found, listed and named in the audit trail.

use serde::Serialize;
use sqlx::Postgres;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;

use crate::directory::records::{
    AgentRecord, CredentialRecord, Key, KeyError, Member, Model, Organization, Project, Trigger,
};
use crate::domain::ids::OrganizationId;
use crate::store::Store;
use crate::store::error::StoreError;

/// What the audit trail speaks of.
pub trait Subject: Serialize + Send + Sync {
    /// The kind of record.
    const KIND: &'static str;

    /// Which one of its kind.
    fn subject_id(&self) -> String;
}

/// A record that routes name and list.
pub trait Record: Subject + Sized + Unpin + 'static {
    /// The parameter of the path that names it.
    const PARAMETER: &'static str = Self::KIND;
    /// Its table.
    const TABLE: &'static str;
    /// The columns that [`Record::read`] reads.
    const COLUMNS: &'static str;
    /// Which rows of the table are such records.
    const FILTER: &'static str = "deleted_at IS NULL";
    /// The column of its name, which lists are sorted by.
    const NAME: &'static str = "slug";

    /// Parses how a route names it.
    fn key(text: &str) -> Result<Key, KeyError> {
        Key::slug_or_id(text)
    }

    /// Its name in routes.
    fn route_name(&self) -> &str;

    /// Reads a row.
    fn read(row: &PgRow) -> Result<Self, StoreError>;
}

macro_rules! subjects {
    ($($record:ident = $kind:literal by $id:ident;)+) => {
        /// Every kind of record.
        pub const SUBJECT_KINDS: &[&str] = &[$($kind),+];

        $(impl Subject for $record {
            const KIND: &'static str = $kind;

            fn subject_id(&self) -> String {
                self.$id.to_string()
            }
        })+
    };
}

subjects! {
    Organization = "organization" by id;
    Member = "member" by person_id;
    AgentRecord = "agent" by id;
    Trigger = "trigger" by id;
    CredentialRecord = "credential" by client_id;
    Model = "model" by id;
    Project = "project" by id;
}

/// What a list holds.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// Only those with this name elsewhere.
    pub external_ref: Option<String>,
    /// Only those after this name.
    pub after: Option<String>,
    /// At most so many.
    pub limit: u32,
}

/// One page of a list, by name.
#[derive(Debug)]
pub struct Page<T> {
    /// The records.
    pub records: Vec<T>,
    /// After which name the next page begins, if there is more.
    pub next: Option<String>,
}

pub(super) fn find<T: Record>(organization: OrganizationId, key: &Key) -> Query<'static, Postgres, PgArguments> {
    let (table, columns, filter) = (T::TABLE, T::COLUMNS, T::FILTER);
    let select = format!("SELECT {columns} FROM {table} r WHERE organization_id = $1 AND {filter}");
    match key {
        Key::Name(name) => {
            let statement = format!("{select} AND {} = $2", T::NAME);
            sqlx::query(sqlx::AssertSqlSafe(statement)).bind(organization.0).bind(name.clone())
        }
        Key::Id(id) => {
            let statement = format!("{select} AND id = $2");
            sqlx::query(sqlx::AssertSqlSafe(statement)).bind(organization.0).bind(*id)
        }
    }
}

impl Store {
    /// The record of that key.
    pub async fn record<T: Record>(&self, organization: OrganizationId, key: &Key) -> Result<Option<T>, StoreError> {
        self.one(find::<T>(organization, key)).await?.map(|row| T::read(&row)).transpose()
    }

    /// A page of the organization's records of one kind.
    pub async fn records<T: Record>(
        &self,
        organization: OrganizationId,
        listing: &Listing,
    ) -> Result<Page<T>, StoreError> {
        let (table, columns, filter, name) = (T::TABLE, T::COLUMNS, T::FILTER, T::NAME);
        let query = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {columns} FROM {table} r WHERE organization_id = $1 AND {filter}
                AND ($2::text IS NULL OR external_ref = $2) AND ($3::text IS NULL OR {name} > $3)
             ORDER BY {name} LIMIT $4"
        )))
        .bind(organization.0)
        .bind(listing.external_ref.clone())
        .bind(listing.after.clone())
        .bind(i64::from(listing.limit) + 1);
        let rows = self.many(query).await?;
        let mut records = rows.iter().map(T::read).collect::<Result<Vec<T>, _>>()?;
        let more = records.len() > listing.limit as usize;
        records.truncate(listing.limit as usize);
        let next = records.last().filter(|_| more).map(|last| last.route_name().to_owned());
        Ok(Page { records, next })
    }
}
