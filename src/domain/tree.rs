//! A task with the tasks below it, and what each part of the tree cost.

use std::collections::BTreeMap;

use super::ids::{AgentId, PersonId, ShortId, TaskId};
use super::money::{Money, TokenCounts};
use super::outcome::{Outcome, OutcomeReason};
use super::status::{Control, Status};
use super::task::remaining;
use super::time::Timestamp;

/// What a tree shows of one task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeTask {
    /// The task.
    pub id: TaskId,
    /// Its quotable number.
    pub short_id: ShortId,
    /// The task that delegated it.
    pub parent: Option<TaskId>,
    /// That task's quotable number.
    pub parent_short_id: Option<ShortId>,
    /// Its title.
    pub title: String,
    /// Its agent.
    pub agent_id: AgentId,
    /// The agent's slug at its creation.
    pub agent_slug: String,
    /// The accountable person.
    pub owner: PersonId,
    /// 0 for a root.
    pub depth: u32,
    /// What it is doing.
    pub status: Status,
    /// What people want of it.
    pub control: Control,
    /// How it ended.
    pub outcome: Option<Outcome>,
    /// Why so.
    pub outcome_reason: Option<OutcomeReason>,
    /// Its budget.
    pub budget: Option<Money>,
    /// Its own cost.
    pub cost_total: Money,
    /// What is set aside for its children.
    pub set_aside: Money,
    /// Its own tokens.
    pub tokens: TokenCounts,
    /// Its own reports without usable counts.
    pub unmeasured_reports: i64,
    /// Its own reports that could not be priced.
    pub unpriced_reports: i64,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it closed.
    pub closed_at: Option<Timestamp>,
}

impl TreeTask {
    /// As [`Task::budget_remaining`](super::task::Task::budget_remaining).
    pub fn budget_remaining(&self) -> Option<Money> {
        remaining(self.budget, self.cost_total, self.set_aside)
    }
}

/// Sums over a task and every task below it, each counted once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// How many tasks.
    pub tasks: u64,
    /// How many of them are open.
    pub open_tasks: u64,
    /// Σ of their own costs.
    pub cost_total: Money,
    /// Σ of their own tokens.
    pub tokens: TokenCounts,
    /// Σ of their reports without usable counts.
    pub unmeasured_reports: i64,
    /// Σ of their reports that could not be priced.
    pub unpriced_reports: i64,
}

impl Totals {
    fn of(task: &TreeTask) -> Self {
        Self {
            tasks: 1,
            open_tasks: u64::from(task.outcome.is_none()),
            cost_total: task.cost_total,
            tokens: task.tokens,
            unmeasured_reports: task.unmeasured_reports,
            unpriced_reports: task.unpriced_reports,
        }
    }

    fn plus(self, other: Self) -> Option<Self> {
        Some(Self {
            tasks: self.tasks + other.tasks,
            open_tasks: self.open_tasks + other.open_tasks,
            cost_total: self.cost_total.checked_add(other.cost_total).ok()?,
            tokens: self.tokens.checked_add(other.tokens)?,
            unmeasured_reports: self.unmeasured_reports + other.unmeasured_reports,
            unpriced_reports: self.unpriced_reports + other.unpriced_reports,
        })
    }
}

/// A task in its tree, with the sums of the part that hangs from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The task.
    pub task: TreeTask,
    /// Itself and everything below it.
    pub subtree: Totals,
}

/// Orders the tree of `root`: each task before its children, children by their creation. Absent when the root is not
/// among `tasks`, or a sum leaves the exact range.
pub fn arrange(root: TaskId, tasks: Vec<TreeTask>) -> Option<Vec<Node>> {
    let mut children: BTreeMap<TaskId, Vec<TreeTask>> = BTreeMap::new();
    let mut top = None;
    for task in tasks {
        match task.parent {
            _ if task.id == root => top = Some(task),
            Some(parent) => children.entry(parent).or_default().push(task),
            None => {}
        }
    }
    let mut nodes: Vec<Node> = Vec::new();
    // A stack, not recursion: how deep a tree goes is a setting.
    let mut stack = vec![top?];
    while let Some(task) = stack.pop() {
        let mut below = children.remove(&task.id).unwrap_or_default();
        below.sort_by_key(|child| std::cmp::Reverse((child.created_at, child.id)));
        nodes.push(Node { subtree: Totals::of(&task), task });
        stack.append(&mut below);
    }
    // Backwards every task comes after those below it.
    let places: BTreeMap<TaskId, usize> = nodes.iter().enumerate().map(|(place, node)| (node.task.id, place)).collect();
    for place in (1..nodes.len()).rev() {
        let (before, from_here) = nodes.split_at_mut(place);
        let Some(node) = from_here.first() else { break };
        let parent = node.task.parent.and_then(|parent| places.get(&parent)).and_then(|parent| before.get_mut(*parent));
        let parent = parent?;
        parent.subtree = parent.subtree.plus(node.subtree)?;
    }
    Some(nodes)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn task(number: u128, parent: Option<u128>, created_at: i64, cost: &str) -> TreeTask {
        let id = |number| TaskId(Uuid::from_u128(number));
        let count = i64::try_from(number).unwrap();
        TreeTask {
            id: id(number),
            short_id: ShortId(count),
            parent: parent.map(id),
            parent_short_id: None,
            title: String::new(),
            agent_id: AgentId(Uuid::nil()),
            agent_slug: String::new(),
            owner: PersonId::parse("ada").unwrap(),
            depth: 0,
            status: Status::Queued,
            control: Control::Run,
            outcome: number.is_multiple_of(2).then_some(Outcome::DoneActed),
            outcome_reason: None,
            budget: Some("5".parse().unwrap()),
            cost_total: cost.parse().unwrap(),
            set_aside: "1.5".parse().unwrap(),
            tokens: TokenCounts { tokens_in: count, tokens_out: 10 * count, ..TokenCounts::default() },
            unmeasured_reports: 100 * count,
            unpriced_reports: 1_000 * count,
            created_at: Timestamp::from_micros(created_at).unwrap(),
            closed_at: None,
        }
    }

    fn places(nodes: &[Node]) -> Vec<u128> {
        nodes.iter().map(|node| node.task.id.0.as_u128()).collect()
    }

    #[test]
    fn each_task_comes_before_its_children_which_come_by_their_creation_and_counts_once() {
        let tasks = vec![
            task(5, Some(3), 50, "0.5"),
            task(4, Some(2), 40, "4"),
            task(3, Some(2), 30, "0.25"),
            task(2, Some(1), 20, "2"),
            task(6, Some(2), 30, "0.125"),
            // Of another tree.
            task(9, Some(8), 10, "9"),
            task(8, None, 10, "9"),
        ];
        let root = TaskId(Uuid::from_u128(2));
        let nodes = arrange(root, tasks.clone()).unwrap();
        // Those of the same instant come by their ids.
        assert_eq!(places(&nodes), [2, 3, 5, 6, 4]);
        let sums = |nth: usize| {
            let totals = nodes[nth].subtree;
            (totals.tasks, totals.open_tasks, totals.cost_total.to_string(), totals.tokens.tokens_in)
        };
        assert_eq!(sums(0), (5, 2, "6.875".to_owned(), 20));
        assert_eq!(sums(1), (2, 2, "0.75".to_owned(), 8));
        assert_eq!(sums(2), (1, 1, "0.5".to_owned(), 5));
        let whole = nodes[0].subtree;
        assert_eq!((whole.tokens.tokens_out, whole.unmeasured_reports, whole.unpriced_reports), (200, 2_000, 20_000));
        assert_eq!(arrange(TaskId(Uuid::from_u128(7)), tasks), None);
    }

    #[test]
    fn a_sum_that_is_not_exact_is_none() {
        let large = "9000000000000000";
        let tasks = vec![task(1, None, 1, large), task(2, Some(1), 2, large)];
        assert_eq!(arrange(TaskId(Uuid::from_u128(1)), tasks), None);
    }

    #[test]
    fn what_remains_is_neither_spent_nor_set_aside() {
        assert_eq!(task(1, None, 1, "2").budget_remaining().unwrap().to_string(), "1.5");
        assert_eq!(TreeTask { budget: None, ..task(1, None, 1, "2") }.budget_remaining(), None);
    }
}
