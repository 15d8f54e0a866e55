//! Reading the audit trail.

use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::directory::records::AuditEntry;
use crate::domain::ids::OrganizationId;
use crate::store::Store;
use crate::store::error::StoreError;
use crate::store::rows::Reader;

fn entry(row: &PgRow) -> Result<AuditEntry, StoreError> {
    let r = Reader { table: "agent_directory.audit", row };
    Ok(AuditEntry {
        id: r.id("id")?,
        at: r.at("at")?,
        actor_kind: r.get("actor_kind")?,
        actor_id: r.get("actor_id")?,
        action: r.get("action")?,
        subject_kind: r.get("subject_kind")?,
        subject_id: r.get("subject_id")?,
        before: r.json_opt("before")?,
        after: r.json_opt("after")?,
    })
}

impl Store {
    /// A page of the audit trail, the newest first, and whether there is more. Ids are made while the organization is
    /// held and sort by time, so their order is that of the changes.
    pub async fn audit_trail(
        &self,
        organization: OrganizationId,
        before: Option<Uuid>,
        limit: u32,
    ) -> Result<(Vec<AuditEntry>, bool), StoreError> {
        let query = sqlx::query(
            "SELECT id, at, actor_kind, actor_id, action, subject_kind, subject_id,
                before::text AS before, after::text AS after
             FROM agent_directory.audit
             WHERE organization_id = $1 AND ($2::uuid IS NULL OR id < $2) ORDER BY id DESC LIMIT $3",
        )
        .bind(organization.0)
        .bind(before)
        .bind(i64::from(limit) + 1);
        let rows = self.many(query).await?;
        let mut entries = rows.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
        let more = entries.len() > limit as usize;
        entries.truncate(limit as usize);
        Ok((entries, more))
    }
}
