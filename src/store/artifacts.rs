//! What is in the artifact store, and which logs refer to it.
//!
//! Three kinds of transactions meet here: a commit that refers to an artifact, an upload that becomes one, and the removal
//! of one that nobody refers to. Each takes the digest's advisory lock ([`lock`]) in a statement of its own before it
//! looks and writes, and holds it until it commits. So they come one after another, and each sees, by the snapshot of
//! its next statement, all that those before it committed:
//!
//! * A removal after a commit sees its reference and removes nothing. A commit after a removal finds no artifact: one whose
//!   own content lies there ([`Guards::stored`](crate::domain::change::Guards)) is not written, and the content is stored
//!   again; any other may refer to what is not there.
//! * An upload after a removal makes a new row under a new upload id. The removal's bytes have the old one, so removing
//!   them after the commit, however late, cannot hit the new ones.
//! * An upload that was taken for dead is marked abandoned before its bytes are removed, and it becomes an artifact only
//!   by deleting its own mark in the same transaction: one of the two wins.
//!
//! Bytes are always named by a row, of `artifacts` or of `artifact_uploads`, from before they are sent until after they
//! are removed: whatever dies in between leaves nothing behind that is not found again. Locks on tasks are taken before
//! those on digests, and digests in the order of their keys, so that no two wait for each other.

use std::time::Duration;

use sqlx::PgConnection;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::Store;
use super::error::{CommitError, StoreError};
use super::rows::Reader;
use crate::domain::artifact::ArtifactRef;
use crate::domain::digest::Digest;
use crate::domain::ids::{AccountId, AgentId, OrganizationId, TaskId};
use crate::domain::time::Timestamp;

/// An artifact of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredArtifact {
    /// Its digest.
    pub digest: Digest,
    /// A part of the name of its bytes.
    pub upload: Uuid,
    /// Its size in bytes.
    pub size: u64,
    /// Its media type.
    pub media_type: String,
    /// When it came.
    pub created_at: Timestamp,
}

/// Bytes of the store that no artifact names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Upload {
    /// The tenant.
    pub organization: OrganizationId,
    /// What they are, or were to be.
    pub digest: Digest,
    /// A part of their name.
    pub id: Uuid,
}

/// What came in.
#[derive(Debug, Clone, Copy)]
pub struct Received<'a> {
    /// The size in bytes.
    pub size: u64,
    /// The media type.
    pub media_type: &'a str,
    /// Who sent it.
    pub sender: &'a str,
}

/// Who reads, beside those who sent it: everybody who may read a task that refers to it.
#[derive(Debug, Clone, Copy)]
pub enum ArtifactReader {
    /// Whoever may read every task of the organization.
    EveryTask,
    /// An agent's account: tasks of its own and their children.
    Agent(AccountId, AgentId),
    /// A trigger: the tasks that it created.
    Trigger(AccountId),
}

const COLUMNS: &str = "digest, upload_id, size, media_type, created_at";

fn artifact(row: &PgRow) -> Result<StoredArtifact, StoreError> {
    let r = Reader { table: "agent_runtime.artifacts", row };
    Ok(StoredArtifact {
        digest: r.digest("digest")?,
        upload: r.get("upload_id")?,
        size: u64::try_from(r.get::<i64>("size")?).unwrap_or_default(),
        media_type: r.get("media_type")?,
        created_at: r.at("created_at")?,
    })
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

fn bytes(digests: &[Digest]) -> Vec<&[u8]> {
    digests.iter().map(|digest| digest.0.as_slice()).collect()
}

/// The keys of the digests' locks, in the order in which they are taken.
fn lock_keys(organization: OrganizationId, digests: &[Digest]) -> Vec<i64> {
    let key = |digest: &Digest| {
        let hash = Digest::of(&[organization.0.as_bytes().as_slice(), &digest.0].concat());
        let (first, _) = hash.0.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        i64::from_be_bytes(*first)
    };
    let mut keys: Vec<i64> = digests.iter().map(key).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

impl Store {
    /// Takes the digests' locks, which end with the transaction. In a statement of its own: the next one's snapshot is
    /// then younger than every commit that was waited for.
    async fn lock(
        &self,
        db: &mut PgConnection,
        organization: OrganizationId,
        digests: &[Digest],
    ) -> Result<(), sqlx::Error> {
        sqlx::query("SELECT pg_advisory_xact_lock(key) FROM unnest($1::bigint[]) AS key")
            .bind(lock_keys(organization, digests))
            .persistent(self.named())
            .execute(db)
            .await?;
        Ok(())
    }

    /// Writes what a commit refers to, in its transaction, after its task's row is locked. `stored` must be there.
    pub(super) async fn refer(
        &self,
        db: &mut PgConnection,
        (organization, task): (OrganizationId, TaskId),
        refs: &[ArtifactRef],
        stored: &[Digest],
    ) -> Result<(), CommitError> {
        let digests: Vec<Digest> = refs.iter().map(|named| named.digest).collect();
        self.lock(db, organization, &digests).await?;
        let found: i64 = sqlx::query_scalar(
            "WITH r AS (
                INSERT INTO agent_runtime.artifact_refs (organization_id, digest, task_id, seq)
                SELECT $1, r.digest, $2, r.seq FROM unnest($3::bytea[], $4::bigint[]) AS r(digest, seq)
                ON CONFLICT (organization_id, digest, task_id) DO NOTHING
             ), a AS (
                UPDATE agent_runtime.artifacts SET referenced = true
                WHERE organization_id = $1 AND digest = ANY ($3) AND NOT referenced
             )
             SELECT count(*) FROM agent_runtime.artifacts WHERE organization_id = $1 AND digest = ANY ($5)",
        )
        .bind(organization.0)
        .bind(task.0)
        .bind(bytes(&digests))
        .bind(refs.iter().map(|named| named.seq).collect::<Vec<_>>())
        .bind(bytes(stored))
        .persistent(self.named())
        .fetch_one(db)
        .await?;
        let mut wanted = stored.to_vec();
        wanted.sort_unstable_by_key(|digest| digest.0);
        wanted.dedup();
        if found == i64::try_from(wanted.len()).unwrap_or(i64::MAX) { Ok(()) } else { Err(CommitError::ArtifactGone) }
    }

    /// Notes bytes that are about to be sent: should nothing come of them within `grace`, they are removed.
    pub async fn begin_upload(&self, upload: Upload, grace: Duration) -> Result<(), StoreError> {
        let query = sqlx::query(
            "INSERT INTO agent_runtime.artifact_uploads (organization_id, id, digest, remove_at, abandoned)
             VALUES ($1, $2, $3, clock_timestamp() + $4 * interval '1 microsecond', false)",
        )
        .bind(upload.organization.0)
        .bind(upload.id)
        .bind(upload.digest.0.as_slice())
        .bind(micros(grace));
        self.run(query).await?;
        Ok(())
    }

    /// Makes an artifact of bytes that came whole. When there is one already, that one is kept and answered, and the
    /// bytes are abandoned. Absent when the remover had taken them for dead.
    pub async fn finish_upload(
        &self,
        upload: Upload,
        received: Received<'_>,
    ) -> Result<Option<StoredArtifact>, StoreError> {
        let mut lease = self.transaction().await?;
        self.lock(&mut lease, upload.organization, &[upload.digest]).await?;
        let row = sqlx::query(sqlx::AssertSqlSafe(format!(
            "INSERT INTO agent_runtime.artifacts AS a (organization_id, digest, upload_id, size, media_type, created_at,
                kept_at, uploaded_by, referenced)
             SELECT $1, $2, $3, $4, $5, clock_timestamp(), clock_timestamp(), ARRAY[$6], EXISTS (
                SELECT FROM agent_runtime.artifact_refs r WHERE r.organization_id = $1 AND r.digest = $2)
             ON CONFLICT (organization_id, digest) DO UPDATE SET kept_at = clock_timestamp(), uploaded_by = CASE
                WHEN $6 = ANY (a.uploaded_by) THEN a.uploaded_by ELSE a.uploaded_by || $6 END
             RETURNING {COLUMNS}"
        )))
        .bind(upload.organization.0)
        .bind(upload.digest.0.as_slice())
        .bind(upload.id)
        .bind(i64::try_from(received.size).unwrap_or(i64::MAX))
        .bind(received.media_type)
        .bind(received.sender)
        .persistent(self.named())
        .fetch_one(&mut *lease)
        .await?;
        let kept = artifact(&row)?;
        let mark = if kept.upload == upload.id {
            "DELETE FROM agent_runtime.artifact_uploads WHERE organization_id = $1 AND id = $2 AND NOT abandoned"
        } else {
            "UPDATE agent_runtime.artifact_uploads SET abandoned = true, remove_at = clock_timestamp()
             WHERE organization_id = $1 AND id = $2"
        };
        let marked = sqlx::query(mark)
            .bind(upload.organization.0)
            .bind(upload.id)
            .persistent(self.named())
            .execute(&mut *lease)
            .await?;
        if kept.upload == upload.id && marked.rows_affected() == 0 {
            // A lease that is dropped rolls back.
            return Ok(None);
        }
        lease.done().await?;
        Ok(Some(kept))
    }

    /// Keeps an artifact that was sent again from then on, and lets its sender read it. Absent when there is none.
    pub async fn keep_artifact(
        &self,
        organization: OrganizationId,
        digest: Digest,
        sender: &str,
    ) -> Result<Option<StoredArtifact>, StoreError> {
        let mut lease = self.transaction().await?;
        self.lock(&mut lease, organization, &[digest]).await?;
        let row = sqlx::query(sqlx::AssertSqlSafe(format!(
            "UPDATE agent_runtime.artifacts a SET kept_at = clock_timestamp(), uploaded_by = CASE
                WHEN $3 = ANY (a.uploaded_by) THEN a.uploaded_by ELSE a.uploaded_by || $3 END
             WHERE organization_id = $1 AND digest = $2 RETURNING {COLUMNS}"
        )))
        .bind(organization.0)
        .bind(digest.0.as_slice())
        .bind(sender)
        .persistent(self.named())
        .fetch_optional(&mut *lease)
        .await?;
        lease.done().await?;
        row.as_ref().map(artifact).transpose()
    }

    /// Whether the store has the artifact, whoever may read it.
    pub async fn has_artifact(&self, organization: OrganizationId, digest: Digest) -> Result<bool, StoreError> {
        let mut lease = self.lease().await?;
        let found = sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM agent_runtime.artifacts WHERE organization_id = $1 AND digest = $2)",
        )
        .bind(organization.0)
        .bind(digest.0.as_slice())
        .persistent(self.named())
        .fetch_one(&mut *lease)
        .await?;
        lease.done().await?;
        Ok(found)
    }

    /// The artifact, for a reader who sent it or may read a task that refers to it.
    pub async fn artifact(
        &self,
        organization: OrganizationId,
        digest: Digest,
        sender: &str,
        reader: ArtifactReader,
    ) -> Result<Option<StoredArtifact>, StoreError> {
        let (every, account, agent, creator) = match reader {
            ArtifactReader::EveryTask => (true, None, None, None),
            ArtifactReader::Agent(account, agent) => (false, Some(account.0), Some(agent.0), None),
            ArtifactReader::Trigger(account) => (false, None, None, Some(account.0)),
        };
        let query = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {COLUMNS} FROM agent_runtime.artifacts a
             WHERE a.organization_id = $1 AND a.digest = $2 AND ($3 = ANY (a.uploaded_by) OR EXISTS (
                SELECT FROM agent_runtime.artifact_refs r
                JOIN agent_runtime.tasks t ON t.organization_id = r.organization_id AND t.id = r.task_id
                WHERE r.organization_id = $1 AND r.digest = $2
                    AND ($4 OR t.service_account_id = $5 OR t.origin_agent_id = $6 OR t.created_by_account = $7)))"
        )))
        .bind(organization.0)
        .bind(digest.0.as_slice())
        .bind(sender)
        .bind(every)
        .bind(account)
        .bind(agent)
        .bind(creator);
        let row = self.first(query).await?;
        row.as_ref().map(artifact).transpose()
    }

    /// Artifacts that no log refers to and that nobody sent for `grace`, over all organizations.
    pub async fn unreferenced_artifacts(
        &self,
        grace: Duration,
        limit: i64,
    ) -> Result<Vec<(OrganizationId, Digest)>, StoreError> {
        let query = sqlx::query(
            "SELECT organization_id, digest FROM agent_runtime.artifacts
             WHERE NOT referenced AND kept_at <= clock_timestamp() - $1 * interval '1 microsecond'
             ORDER BY kept_at LIMIT $2",
        )
        .bind(micros(grace))
        .bind(limit);
        let rows = self.all(query).await?;
        let found = rows.iter().map(|row| {
            let r = Reader { table: "agent_runtime.artifacts", row };
            Ok((r.id("organization_id")?, r.digest("digest")?))
        });
        found.collect()
    }

    /// Removes the artifact, if no log refers to it by now and nobody sent it in the meantime; its bytes are then to be
    /// removed as abandoned. Answers whether it did.
    pub async fn remove_artifact(
        &self,
        organization: OrganizationId,
        digest: Digest,
        grace: Duration,
    ) -> Result<bool, StoreError> {
        let mut lease = self.transaction().await?;
        self.lock(&mut lease, organization, &[digest]).await?;
        let removed = sqlx::query(
            "WITH a AS (
                DELETE FROM agent_runtime.artifacts a
                WHERE a.organization_id = $1 AND a.digest = $2
                    AND a.kept_at <= clock_timestamp() - $3 * interval '1 microsecond'
                    AND NOT EXISTS (
                        SELECT FROM agent_runtime.artifact_refs r WHERE r.organization_id = $1 AND r.digest = $2)
                RETURNING a.upload_id
             )
             INSERT INTO agent_runtime.artifact_uploads (organization_id, id, digest, remove_at, abandoned)
             SELECT $1, a.upload_id, $2, clock_timestamp(), true FROM a",
        )
        .bind(organization.0)
        .bind(digest.0.as_slice())
        .bind(micros(grace))
        .persistent(self.named())
        .execute(&mut *lease)
        .await?;
        lease.done().await?;
        Ok(removed.rows_affected() == 1)
    }

    /// Gives an upload up before its time.
    pub async fn abandon_upload(&self, upload: Upload) -> Result<(), StoreError> {
        let query = sqlx::query(
            "UPDATE agent_runtime.artifact_uploads SET abandoned = true, remove_at = clock_timestamp()
             WHERE organization_id = $1 AND id = $2",
        )
        .bind(upload.organization.0)
        .bind(upload.id);
        self.run(query).await?;
        Ok(())
    }

    /// Takes uploads whose time is over, and gives out what is abandoned, over all organizations.
    pub async fn abandoned_uploads(&self, limit: i64) -> Result<Vec<Upload>, StoreError> {
        let query = sqlx::query(
            "WITH due AS (
                SELECT organization_id, id FROM agent_runtime.artifact_uploads
                WHERE remove_at <= clock_timestamp() ORDER BY remove_at LIMIT $1 FOR UPDATE SKIP LOCKED
             )
             UPDATE agent_runtime.artifact_uploads u SET abandoned = true
             FROM due WHERE u.organization_id = due.organization_id AND u.id = due.id
             RETURNING u.organization_id, u.id, u.digest",
        )
        .bind(limit);
        let rows = self.all(query).await?;
        let found = rows.iter().map(|row| {
            let r = Reader { table: "agent_runtime.artifact_uploads", row };
            Ok(Upload { organization: r.id("organization_id")?, digest: r.digest("digest")?, id: r.get("id")? })
        });
        found.collect()
    }

    /// Looks at abandoned bytes again only after `pause`: the artifact store refuses to remove them now.
    pub async fn postpone_removal(&self, upload: Upload, pause: Duration) -> Result<(), StoreError> {
        let query = sqlx::query(
            "UPDATE agent_runtime.artifact_uploads SET remove_at = clock_timestamp() + $3 * interval '1 microsecond'
             WHERE organization_id = $1 AND id = $2",
        )
        .bind(upload.organization.0)
        .bind(upload.id)
        .bind(micros(pause));
        self.run(query).await?;
        Ok(())
    }

    /// Forgets abandoned bytes that are gone.
    pub async fn forget_upload(&self, upload: Upload) -> Result<(), StoreError> {
        let query = sqlx::query(
            "DELETE FROM agent_runtime.artifact_uploads WHERE organization_id = $1 AND id = $2 AND abandoned",
        )
        .bind(upload.organization.0)
        .bind(upload.id);
        self.run(query).await?;
        Ok(())
    }
}

/// What the rows say that a task's log refers to, for the audit.
pub(super) fn referred(rows: &[PgRow]) -> Result<Vec<ArtifactRef>, StoreError> {
    let found = rows.iter().map(|row| {
        let r = Reader { table: "agent_runtime.artifact_refs", row };
        Ok(ArtifactRef { digest: r.digest("digest")?, seq: r.get("seq")? })
    });
    found.collect()
}

/// Where the rows differ from what the log refers to.
pub(super) fn reference_fault(mut rows: Vec<ArtifactRef>, mut log: Vec<ArtifactRef>) -> Option<String> {
    let key = |named: &ArtifactRef| (named.seq, named.digest.0);
    rows.sort_unstable_by_key(key);
    log.sort_unstable_by_key(key);
    (rows != log).then(|| format!("its references to artifacts differ from its log: rows {rows:?}, log {log:?}"))
}
