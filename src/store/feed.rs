//! Reading the organization's feed.
//!
//! Its order is (transaction, task, seq). A page ends below the oldest transaction that still runs, so that nothing can
//! come in before what was read. Within a task that is the order of the log: the seq that a commit compares was read
//! before its transaction began, so the transaction that wrote it had its number already. Whoever locks first must
//! keep to that; the audit looks.

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};
use uuid::Uuid;

use super::Store;
use super::error::StoreError;
use super::rows::{EVENT_COLUMNS, Reader, event};
use crate::domain::feed::{FeedCursor, FeedEntry, FeedPage, FeedPosition, FeedScope, FeedStart, FeedTask};
use crate::domain::ids::{OrganizationId, ShortId, TaskId};

/// How many archivings of an organization are remembered, so that a follower who comes again is told exactly whether it
/// missed one. One who was away for more is told that it may have.
pub const ARCHIVES_KEPT: i64 = 100_000;
/// How many events a look passes over at most, to find those of a scope.
const SCAN_MAX: u32 = 1_000;

/// The history of which transactions are: the cluster, its timeline, which a restore changes, and the database.
const HOME: &str = "SELECT c.system_identifier,
    hashtextextended(format('%s/%s/%s', c.system_identifier, left(pg_walfile_name(pg_current_wal_lsn()), 8),
        (SELECT oid FROM pg_database WHERE datname = current_database())), 0) AS home
    FROM pg_control_system() c";

/// Whether the task of `x` is in the scope of `$6` (account), `$7` (agent) and `$8` (creator).
const IN_SCOPE: &str = "t.organization_id = $1 AND t.id = x.task_id
    AND ($6::uuid IS NULL OR t.service_account_id = $6 OR t.origin_agent_id = $7)
    AND ($8::uuid IS NULL OR t.created_by_account = $8)";

/// What a look at the feed found.
#[derive(Debug)]
pub enum FeedLook {
    /// A part of it.
    Page(FeedPage),
    /// Events behind the cursor were archived before they were read, or the cursor is of another history.
    Expired,
}

impl Store {
    /// A part of the feed, in one consistent look. LIMITs keep the planner on the keys' indexes.
    pub async fn feed(
        &self,
        organization: OrganizationId,
        scope: &FeedScope,
        start: &FeedStart,
        limit: u32,
    ) -> Result<FeedLook, StoreError> {
        let (account, agent, creator) = match scope {
            FeedScope::All => (None, None, None),
            FeedScope::Agent { account, agent } => (Some(account.0), Some(agent.0), None),
            FeedScope::CreatedBy(account) => (None, None, Some(account.0)),
        };
        let scan = if *scope == FeedScope::All { limit + 1 } else { SCAN_MAX.max(limit + 1) };
        let cursor = match start {
            FeedStart::After(cursor) => Some(cursor),
            FeedStart::Oldest | FeedStart::Now => None,
        };
        let from = match start {
            // So that nothing is read.
            FeedStart::Now => FeedPosition::END,
            FeedStart::Oldest => FeedPosition::START,
            FeedStart::After(cursor) => cursor.position,
        };
        let query = sqlx::query(AssertSqlSafe(format!(
            "WITH k AS MATERIALIZED (
                SELECT e.tx, e.task_id, e.seq FROM agent_runtime.events e
                WHERE e.organization_id = $1 AND (e.tx, e.task_id, e.seq) > ($2::text::xid8, $3::uuid, $4::bigint)
                    AND e.tx < pg_snapshot_xmin(pg_current_snapshot())
                ORDER BY e.tx, e.task_id, e.seq LIMIT $5
             ), m AS MATERIALIZED (
                SELECT x.*, t.* FROM k x CROSS JOIN LATERAL (
                    SELECT t.short_number, t.agent_id, t.agent_slug, t.project_id, t.parent_task_id, t.title,
                        t.subject, t.owner, t.status
                    FROM agent_runtime.tasks t WHERE {IN_SCOPE} LIMIT 1) t
                ORDER BY x.tx, x.task_id, x.seq LIMIT $9
             ), h AS (
                SELECT h.home, EXISTS (SELECT FROM agent_runtime.feed_home f
                        WHERE f.system_identifier = h.system_identifier) AS settled,
                    pg_snapshot_xmin(pg_current_snapshot())::text AS horizon,
                    coalesce((SELECT n.last_number FROM agent_runtime.feed_archive_numbers n
                        WHERE n.organization_id = $1), 0) AS archives,
                    EXISTS (SELECT FROM agent_runtime.feed_archives x
                        WHERE x.organization_id = $1 AND x.number > $10
                            AND (x.tx, x.task_id, x.seq) > ($2::text::xid8, $3::uuid, $4::bigint)
                            AND (($6::uuid IS NULL AND $8::uuid IS NULL)
                                OR EXISTS (SELECT FROM agent_runtime.tasks t WHERE {IN_SCOPE}))) AS missed,
                    EXISTS (SELECT FROM agent_runtime.events e WHERE e.organization_id = $1
                        AND e.tx >= pg_snapshot_xmin(pg_current_snapshot())) AS pending,
                    (SELECT count(*) FROM k) AS scanned
                FROM ({HOME}) h
             )
             SELECT h.*, l.tx::text AS last_tx, l.task_id AS last_task, l.seq AS last_seq, m.tx::text AS tx, m.task_id,
                m.short_number, m.agent_id, m.agent_slug, m.project_id, m.parent_task_id, m.title, m.subject, m.owner,
                m.status, e.*
             FROM h LEFT JOIN (
                SELECT * FROM (
                    SELECT * FROM k
                    UNION ALL
                    (SELECT e.tx, e.task_id, e.seq FROM agent_runtime.events e
                     WHERE $11 AND e.organization_id = $1 AND e.tx < pg_snapshot_xmin(pg_current_snapshot())
                     ORDER BY e.tx DESC, e.task_id DESC, e.seq DESC LIMIT 1)) b
                ORDER BY b.tx DESC, b.task_id DESC, b.seq DESC LIMIT 1) l ON true
             LEFT JOIN m ON true
             LEFT JOIN LATERAL (
                SELECT {EVENT_COLUMNS} FROM agent_runtime.events e
                WHERE e.organization_id = $1 AND e.task_id = m.task_id AND e.seq = m.seq LIMIT 1) e ON true
             ORDER BY m.tx, m.task_id, m.seq"
        )))
        .bind(organization.0)
        .bind(from.tx.to_string())
        .bind(from.task.0)
        .bind(from.seq)
        .bind(i64::from(scan))
        .bind(account)
        .bind(agent)
        .bind(creator)
        .bind(i64::from(limit) + 1)
        .bind(cursor.map(|cursor| cursor.archives))
        .bind(*start == FeedStart::Now);
        let rows = self.all(query).await?;
        let Some(first) = rows.first() else { return Err(StoreError::NotMigrated) };
        let now = Now::read(first)?;
        if cursor.is_some_and(|cursor| now.is_too_late_for(cursor)) {
            return Ok(FeedLook::Expired);
        }
        let from = if *start == FeedStart::Now { FeedPosition::START } else { from };
        now.page(&rows, from, scan, limit).map(FeedLook::Page)
    }

    /// The first seq of a task that the feed shows before its predecessor, for the audit.
    pub(super) async fn inverted(&self, db: &mut PgConnection, key: (Uuid, Uuid)) -> Result<Option<i64>, StoreError> {
        let statement = "SELECT seq FROM (
                SELECT seq, tx < lag(tx) OVER (ORDER BY seq) AS inverted FROM agent_runtime.events
                WHERE organization_id = $1 AND task_id = $2) e
             WHERE inverted ORDER BY seq LIMIT 1";
        let rows = self.rows_of(db, statement.to_owned(), key).await?;
        Ok(rows.first().map(|row| row.try_get("seq")).transpose()?)
    }

    /// The newest transaction of each organization's feed that shows, of those that have one. One of the queries that
    /// cross organizations: who may see what comes of it was asked before.
    pub async fn feed_heads(&self, organizations: &[OrganizationId]) -> Result<Vec<(OrganizationId, u64)>, StoreError> {
        let query = sqlx::query(
            "SELECT w.id, e.tx::text AS tx FROM unnest($1::uuid[]) AS w (id) CROSS JOIN LATERAL (
                SELECT e.tx FROM agent_runtime.events e
                WHERE e.organization_id = w.id AND e.tx < pg_snapshot_xmin(pg_current_snapshot())
                ORDER BY e.tx DESC LIMIT 1) e",
        )
        .bind(organizations.iter().map(|organization| organization.0).collect::<Vec<Uuid>>());
        let rows = self.all(query).await?;
        let head = |row: &PgRow| {
            let r = Reader { table: "agent_runtime.events", row };
            Ok((r.id("id")?, r.parse("tx")?))
        };
        rows.iter().map(head).collect()
    }
}

/// How things stood at a look.
struct Now {
    home: u64,
    horizon: u64,
    archives: i64,
    missed: bool,
    pending: bool,
    scanned: i64,
}

impl Now {
    fn read(row: &PgRow) -> Result<Self, StoreError> {
        // A dump that was restored and not migrated: its transactions are those of another cluster.
        if !row.try_get::<bool, _>("settled")? {
            return Err(StoreError::NotMigrated);
        }
        let r = Reader { table: "agent_runtime.events", row };
        Ok(Self {
            home: r.get::<i64>("home")?.cast_unsigned(),
            horizon: r.parse("horizon")?,
            archives: r.get("archives")?,
            missed: r.get("missed")?,
            pending: r.get("pending")?,
            scanned: r.get("scanned")?,
        })
    }

    /// Whether what follows `cursor` cannot be given any more, or not be known to be all.
    fn is_too_late_for(&self, cursor: &FeedCursor) -> bool {
        self.missed
            || cursor.home != self.home
            // What is not yet counted was counted before: the database was set back.
            || cursor.position.tx >= self.horizon
            || cursor.archives > self.archives
            || cursor.archives < self.archives - ARCHIVES_KEPT
    }

    fn page(&self, rows: &[PgRow], from: FeedPosition, scan: u32, limit: u32) -> Result<FeedPage, StoreError> {
        let at = |position| FeedCursor { home: self.home, archives: self.archives, position };
        let mut entries = Vec::new();
        for row in rows {
            if row.try_get::<Option<&str>, _>("tx")?.is_some() {
                let task = feed_task(row)?;
                let r = Reader { table: "agent_runtime.events", row };
                let event = event(row)?;
                let position = FeedPosition { tx: r.parse("tx")?, task: task.id, seq: event.seq };
                entries.push(FeedEntry { event, task, cursor: at(position) });
            }
        }
        let cut = entries.len() > limit as usize;
        entries.truncate(limit as usize);
        let more = cut || self.scanned >= i64::from(scan);
        let next = match entries.last() {
            Some(last) if cut => last.cursor.position,
            _ => looked_to(rows)?.unwrap_or(from),
        };
        Ok(FeedPage { entries, next: at(next), more, pending: self.pending })
    }
}

/// The last event that a look saw or passed over, if any.
fn looked_to(rows: &[PgRow]) -> Result<Option<FeedPosition>, StoreError> {
    let Some(row) = rows.first() else { return Ok(None) };
    let r = Reader { table: "agent_runtime.events", row };
    let Some(tx) = r.parse_opt("last_tx")? else { return Ok(None) };
    Ok(Some(FeedPosition { tx, task: r.id("last_task")?, seq: r.get("last_seq")? }))
}

fn feed_task(row: &PgRow) -> Result<FeedTask, StoreError> {
    let r = Reader { table: "agent_runtime.tasks", row };
    Ok(FeedTask {
        id: r.id::<TaskId>("task_id")?,
        short_id: ShortId(r.get("short_number")?),
        agent_id: r.id("agent_id")?,
        agent_slug: r.get("agent_slug")?,
        project_id: r.id_opt("project_id")?,
        parent_task_id: r.id_opt("parent_task_id")?,
        title: r.get("title")?,
        subject: r.get("subject")?,
        owner: r.person("owner")?,
        status: r.parse("status")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_good_while_nothing_behind_it_was_lost() {
        let now = Now { home: 7, horizon: 100, archives: ARCHIVES_KEPT + 5, missed: false, pending: false, scanned: 0 };
        let behind = |tx| FeedPosition { tx, ..FeedPosition::END };
        let good = FeedCursor { home: 7, archives: ARCHIVES_KEPT, position: behind(99) };
        assert!(!now.is_too_late_for(&good));
        assert!(!now.is_too_late_for(&FeedCursor { archives: 5, ..good }));
        // One too many archivings ago, or more than there were; a transaction that is not counted yet; another history.
        for bad in [
            FeedCursor { archives: 4, ..good },
            FeedCursor { archives: ARCHIVES_KEPT + 6, ..good },
            FeedCursor { position: behind(100), ..good },
            FeedCursor { home: 8, ..good },
        ] {
            assert!(now.is_too_late_for(&bad), "{bad:?}");
        }
        assert!(Now { missed: true, ..now }.is_too_late_for(&good));
    }
}
