//! Several tasks of one tree: written together, and read as a tree.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::Store;
use super::error::{CommitError, StoreError};
use super::rows::Reader;
use crate::domain::change::Change;
use crate::domain::decide::Delegation;
use crate::domain::event::Event;
use crate::domain::ids::{AccountId, AgentId, OrganizationId, ShortId, TaskId};
use crate::domain::money::Money;
use crate::domain::payload::Payload;
use crate::domain::task::Task;
use crate::domain::tree::TreeTask;

/// The open tasks below `$2`, nearest first. Where `$3` is given, those of which a cancel is pending, or those of which
/// none is.
const BELOW: &str = "
WITH RECURSIVE below AS (
    SELECT t.id, t.depth, t.outcome, t.control FROM agent_runtime.tasks t
    WHERE t.organization_id = $1 AND t.parent_task_id = $2
    UNION ALL
    SELECT t.id, t.depth, t.outcome, t.control FROM below
    JOIN agent_runtime.tasks t ON t.organization_id = $1 AND t.parent_task_id = below.id
)
SELECT id FROM below WHERE outcome IS NULL AND ($3::boolean IS NULL OR (control = 'cancel') = $3)
ORDER BY depth, id LIMIT $4";

/// What [`tree_task`] reads.
const TREE_COLUMNS: &str = "
SELECT t.id, t.short_number, t.parent_task_id, t.parent_short_number, t.title, t.agent_id, t.agent_slug, t.owner, t.depth,
    t.status, t.control, t.outcome, t.outcome_reason, t.budget, t.cost_total, t.set_aside, t.tokens_in, t.tokens_out,
    t.cache_read_tokens, t.cache_write_tokens, t.unmeasured_reports, t.unpriced_reports, t.created_at, t.closed_at";

/// The task `$2` and every task below it.
static TREE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "WITH RECURSIVE tree AS (
            SELECT t.id FROM agent_runtime.tasks t WHERE t.organization_id = $1 AND t.id = $2
            UNION ALL
            SELECT t.id FROM tree JOIN agent_runtime.tasks t ON t.organization_id = $1 AND t.parent_task_id = tree.id
         )
         {TREE_COLUMNS} FROM tree JOIN agent_runtime.tasks t ON t.organization_id = $1 AND t.id = tree.id"
    )
});

fn tree_task(row: &PgRow) -> Result<TreeTask, StoreError> {
    let r = Reader { table: "agent_runtime.tasks", row };
    Ok(TreeTask {
        id: r.id("id")?,
        short_id: ShortId(r.get("short_number")?),
        parent: r.id_opt("parent_task_id")?,
        parent_short_id: r.get::<Option<i64>>("parent_short_number")?.map(ShortId),
        title: r.get("title")?,
        agent_id: r.id("agent_id")?,
        agent_slug: r.get("agent_slug")?,
        owner: r.person("owner")?,
        depth: r.count("depth")?,
        status: r.parse("status")?,
        control: r.parse("control")?,
        outcome: r.parse_opt("outcome")?,
        outcome_reason: r.parse_opt("outcome_reason")?,
        budget: r.money_opt("budget")?,
        cost_total: r.money("cost_total")?,
        set_aside: r.money("set_aside")?,
        tokens: r.tokens()?,
        unmeasured_reports: r.get("unmeasured_reports")?,
        unpriced_reports: r.get("unpriced_reports")?,
        created_at: r.at("created_at")?,
        closed_at: r.at_opt("closed_at")?,
    })
}

/// The children of a task, of which its log must tell.
pub(super) struct Children(Vec<TreeTask>);

impl Children {
    /// Where the rows differ from what the log and the row of their parent tell.
    pub fn faults(&self, parent: &Task, events: &[Event]) -> Vec<String> {
        let (mut created, mut closed) = (BTreeSet::new(), BTreeSet::new());
        for event in events {
            // A payload that cannot be read is found by the folding.
            match Payload::read(&event.event_type, &event.payload) {
                Ok(Payload::ChildCreated(child)) => drop(created.insert(child.child_task_id)),
                Ok(Payload::ChildClosed(child)) => drop(closed.insert(child.child_task_id)),
                _ => {}
            }
        }
        let ended: BTreeSet<_> = self.0.iter().filter(|child| child.outcome.is_some()).map(|child| child.id).collect();
        let all: BTreeSet<_> = self.0.iter().map(|child| child.id).collect();
        let mut faults = Vec::new();
        if all != created {
            faults.push(format!("its children are {all:?}, but its log tells of {created:?}"));
        }
        if ended != closed {
            faults.push(format!("its closed children are {ended:?}, but its log tells of {closed:?}"));
        }
        // Of an open child its budget is held, of a closed one at least its own cost. Once the parent is closed, what
        // they spend is told further up.
        let held = |child: &TreeTask| match child.outcome {
            None => child.budget.unwrap_or_default(),
            Some(_) => child.cost_total,
        };
        let sum = self.0.iter().map(held).try_fold(Money::ZERO, Money::checked_add);
        let facts = parent.facts();
        if facts.ending.is_none() && sum.is_ok_and(|sum| facts.set_aside < sum) {
            faults.push(format!("it has {} set aside, which is less than its children have", facts.set_aside));
        }
        faults
    }
}

impl Store {
    /// The children of a task, read in the transaction of an audit.
    pub(super) async fn children_of(&self, db: &mut PgConnection, key: (Uuid, Uuid)) -> Result<Children, StoreError> {
        let statement =
            format!("{TREE_COLUMNS} FROM agent_runtime.tasks t WHERE t.organization_id = $1 AND t.parent_task_id = $2");
        let rows = self.rows_of(db, statement, key).await?;
        rows.iter().map(tree_task).collect::<Result<_, _>>().map(Children)
    }

    /// Locks the tasks in id order, as everybody does who locks several, then says whether each is as it was read. The
    /// transaction must have begun after they were read: so a task's events are in the order of their transactions.
    pub(super) async fn lock_as_read(
        &self,
        db: &mut PgConnection,
        organization: OrganizationId,
        expected: &[(TaskId, i64)],
    ) -> Result<bool, sqlx::Error> {
        let ids: Vec<Uuid> = expected.iter().map(|(task, _)| task.0).collect();
        let locked = sqlx::query(
            "SELECT id, last_seq FROM agent_runtime.tasks WHERE organization_id = $1 AND id = ANY ($2)
             ORDER BY id FOR NO KEY UPDATE",
        )
        .bind(organization.0)
        .bind(ids)
        .persistent(self.named())
        .fetch_all(db)
        .await?;
        let mut found = Vec::with_capacity(locked.len());
        for task in &locked {
            found.push((TaskId(task.try_get("id")?), task.try_get::<i64, _>("last_seq")?));
        }
        Ok(expected.iter().all(|task| found.contains(task)))
    }

    /// Writes `change`, whose account is named for the ledger's key, and what it means for the tasks `above`, in one
    /// short transaction.
    pub async fn commit_family(
        &self,
        change: &Change,
        above: &[Change],
        account: Option<AccountId>,
    ) -> Result<(), CommitError> {
        let mut lease = self.transaction().await?;
        let all: Vec<_> = std::iter::once(change).chain(above).map(expected).collect();
        let organization = change.next().task().pinned().organization_id;
        // A lease that is dropped rolls back.
        if !self.lock_as_read(&mut lease, organization, &all).await? {
            return Err(CommitError::Conflict);
        }
        self.hold_guards(&mut lease, change).await?;
        if !self.write(&mut lease, change, account).await? {
            drop(lease);
            return self.explain(change).await;
        }
        for ancestor in above {
            if !self.write(&mut lease, ancestor, None).await? {
                return Err(CommitError::Conflict);
            }
        }
        lease.done().await?;
        Ok(())
    }

    /// Creates a child: its parent is locked and compared with what it was when it was read, at `expected`, before the
    /// organization's next number is taken. `decide` makes both changes with that number.
    pub async fn create_child<E>(
        &self,
        organization: OrganizationId,
        agent: AgentId,
        (parent, expected): (TaskId, i64),
        decide: impl FnOnce(ShortId) -> Result<Delegation, E> + Send,
    ) -> Result<Result<Delegation, E>, CommitError>
    where
        E: Send,
    {
        let mut lease = self.transaction().await?;
        if !self.lock_as_read(&mut lease, organization, &[(parent, expected)]).await? {
            return Err(CommitError::Conflict);
        }
        let number = self.next_number(&mut lease, organization, agent).await?;
        let delegation = match decide(number) {
            Ok(delegation) => delegation,
            Err(refusal) => return Ok(Err(refusal)),
        };
        self.insert(&mut lease, &delegation.child).await?;
        if !self.write(&mut lease, &delegation.parent, None).await? {
            return Err(CommitError::Conflict);
        }
        lease.done().await?;
        Ok(Ok(delegation))
    }

    /// The first of the open tasks below `root`, nearest to it first: all, or only those of which a cancel is pending, or
    /// only those of which none is.
    pub async fn open_below(
        &self,
        organization: OrganizationId,
        root: TaskId,
        cancelling: Option<bool>,
        limit: i64,
    ) -> Result<Vec<TaskId>, StoreError> {
        let query = sqlx::query(BELOW).bind(organization.0).bind(root.0).bind(cancelling).bind(limit);
        let rows = self.all(query).await?;
        rows.iter().map(|row| Ok(TaskId(row.try_get("id")?))).collect()
    }

    /// The task and every task below it, at one moment, in no order.
    pub async fn tree(&self, organization: OrganizationId, root: TaskId) -> Result<Vec<TreeTask>, StoreError> {
        let query = sqlx::query(TREE.as_str()).bind(organization.0).bind(root.0);
        let rows = self.all(query).await?;
        rows.iter().map(tree_task).collect()
    }
}

/// The task of a change, and the version that it was decided on.
pub(super) fn expected(change: &Change) -> (TaskId, i64) {
    (change.next().task().id(), change.expected_seq())
}
