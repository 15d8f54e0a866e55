//! What holds for every tree of tasks: it cannot spend more than its root's budget but by the calls in flight, whoever
//! delegates, reports, corrects and closes, in whatever order, and whichever of these fails halfway.

use std::collections::{BTreeMap, BTreeSet};

use mandate::domain::aggregate::{Aggregate, fold};
use mandate::domain::change::{Change, Context, Decision};
use mandate::domain::command::{ClaimedOutcome, Command, Correction, NewReport};
use mandate::domain::decide::{self, Ascent, Delegation};
use mandate::domain::event::{Actor, ActorKind, Channel, Event};
use mandate::domain::ids::{AccountId, ModelId, ShortId, TaskId};
use mandate::domain::money::{Money, Prices, TokenCounts};
use mandate::domain::outcome::{Ending, Outcome, OutcomeReason};
use mandate::domain::refusal::Refusal;
use mandate::domain::task::Origin;
use mandate::domain::time::Timestamp;
use mandate::domain::usage::{LedgerRow, PricedModel};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::TestCaseError;
use uuid::Uuid;

use crate::life::{ORGANIZATION, created};

/// What one call does to one of the tasks.
#[derive(Debug, Clone)]
enum Act {
    Delegate(Option<&'static str>),
    /// So many millionths of a dollar.
    Report(i64),
    /// The report that is corrected, and what it should have been.
    Correct(Index, i64),
    Finish,
    Cancel,
}

#[derive(Debug, Clone)]
struct Step {
    task: Index,
    act: Act,
    /// What happens to it.
    fate: Fate,
}

#[derive(Debug, Clone, Copy)]
enum Fate {
    /// It is written.
    Written,
    /// The process dies before it is.
    Lost,
    /// It was decided on what the next one changes, and is decided again when that is found out.
    Late,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let money = 0_i64..4_000_000;
    let act = prop_oneof![
        4 => select(vec![None, Some("0"), Some("0.5"), Some("2"), Some("6")]).prop_map(Act::Delegate),
        8 => money.clone().prop_map(Act::Report),
        2 => (any::<Index>(), money).prop_map(|(report, right)| Act::Correct(report, right)),
        2 => Just(Act::Finish),
        1 => Just(Act::Cancel),
    ];
    let fate = prop_oneof![6 => Just(Fate::Written), 1 => Just(Fate::Lost), 2 => Just(Fate::Late)];
    let step = (any::<Index>(), act, fate).prop_map(|(task, act, fate)| Step { task, act, fate });
    prop::collection::vec(step, 1..60)
}

/// Changes of several tasks, to be written together.
struct Together {
    changes: Vec<Change>,
    child: Option<Box<Change>>,
}

/// All tasks, as a store would keep them.
struct Forest {
    tasks: BTreeMap<TaskId, Aggregate>,
    logs: BTreeMap<TaskId, Vec<Event>>,
    ledgers: BTreeMap<TaskId, Vec<LedgerRow>>,
    /// Cost reported at or after a crossing of the task or of one above it, per root.
    in_flight: BTreeMap<TaskId, Money>,
    /// Cost reported of tasks that were closed, by calls that were in flight when nothing had been crossed, per root.
    late: BTreeMap<TaskId, Money>,
    ids: u128,
}

fn millionths(amount: i64) -> TokenCounts {
    TokenCounts { tokens_in: amount, ..TokenCounts::default() }
}

fn parent(task: &Aggregate) -> Option<TaskId> {
    match &task.task().pinned().origin {
        Origin::Task { parent_task_id, .. } => Some(*parent_task_id),
        _ => None,
    }
}

impl Forest {
    fn plant(budgets: &[Option<&str>]) -> Self {
        let mut forest = Self {
            tasks: BTreeMap::new(),
            logs: BTreeMap::new(),
            ledgers: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            late: BTreeMap::new(),
            ids: 0,
        };
        for budget in budgets {
            let (id, number) = (TaskId(forest.id()), forest.number());
            let change = forest
                .with(|context| decide::create(ORGANIZATION, id, number, created(*budget), None, context).unwrap());
            let Decision::Change(change) = change else { panic!("a creation that creates nothing") };
            forest.put(*change);
        }
        forest
    }

    fn id(&mut self) -> Uuid {
        self.ids += 1;
        Uuid::from_u128(self.ids)
    }

    fn number(&self) -> ShortId {
        ShortId(i64::try_from(self.tasks.len()).unwrap() + 1)
    }

    fn with<T>(&mut self, decide: impl FnOnce(&mut Context<'_>) -> T) -> T {
        let mut ids = self.ids;
        let mut new_id = || {
            ids += 1;
            Uuid::from_u128(ids)
        };
        let decided = decide(&mut Context {
            actor: Actor { kind: ActorKind::Agent, id: "agent".to_owned(), channel: Some(Channel::Harness) },
            now: Timestamp::from_micros(1_000_000).unwrap(),
            new_id: &mut new_id,
            body_hash: [0; 32],
            redacted: Vec::new(),
        });
        self.ids = ids;
        decided
    }

    /// Decides what `act` leads to, for the task and for those above it.
    fn decide(&mut self, id: TaskId, act: &Act) -> Result<Option<Together>, Refusal> {
        let task = self.tasks[&id].clone();
        let command = match act {
            Act::Delegate(budget) => {
                let (child, number) = (TaskId(self.id()), self.number());
                let created = created(*budget);
                let asked = budget.is_some();
                let Delegation { parent, child } =
                    self.with(|context| decide::delegate(&task, Ok(None), child, number, created, asked, context))?;
                return Ok(Some(Together { changes: vec![*parent], child: Some(child) }));
            }
            Act::Report(amount) => self.report(&task, *amount, None),
            Act::Correct(which, right) => {
                let ledger = self.ledgers.get(&id).map(Vec::as_slice).unwrap_or_default();
                let originals: Vec<_> = ledger.iter().filter(|row| row.corrects.is_none()).collect();
                if originals.is_empty() {
                    return Ok(None);
                }
                let original = which.get(&originals).id;
                let chain = ledger.iter().filter(|row| row.id == original || row.corrects == Some(original));
                let correction = Correction { original, chain: chain.cloned().collect() };
                self.report(&task, *right, Some(correction))
            }
            Act::Finish => {
                let ending = Ending::new(Outcome::DoneActed, None).unwrap();
                Command::SetOutcome { session: Ok(None), outcome: Ok(ClaimedOutcome { ending, result: None }) }
            }
            Act::Cancel => Command::Cancel { reason: Ok(None), force: Ok(false) },
        };
        let Decision::Change(change) = self.with(|context| task.decide(command, context))? else { return Ok(None) };
        let mut ascent = Ascent::of(&task, &change)?;
        while let Some(above) = ascent.next() {
            let above = self.tasks[&above].clone();
            self.with(|context| ascent.take(&above, context))?;
        }
        let mut changes = vec![*change];
        changes.extend(ascent.changes());
        Ok(Some(Together { changes, child: None }))
    }

    fn report(&mut self, _task: &Aggregate, amount: i64, corrects: Option<Correction>) -> Command {
        let prices = Prices { input_cost_per_million: Some("1".parse().unwrap()), ..Prices::default() };
        let report = NewReport {
            idempotency_key: self.id().to_string(),
            account_id: AccountId(Uuid::from_u128(4)),
            model_id: "sonnet".to_owned(),
            model: Some(PricedModel { id: ModelId(Uuid::from_u128(3)), prices }),
            counts: Some(millionths(amount)),
            corrects,
        };
        Command::Report { session: Ok(None), report: Ok(Box::new(report)) }
    }

    /// Writes all of it if every task is as it was when it was read, else nothing.
    fn write(&mut self, together: Together) -> bool {
        let fits =
            |change: &Change| self.tasks[&change.next().task().id()].task().facts().last_seq == change.expected_seq();
        if !together.changes.iter().all(fits) {
            return false;
        }
        let spent = together.changes[0].ledger().and_then(|row| row.cost).unwrap_or_default();
        let reported = together.changes[0].next().task().id();
        let closed = self.tasks[&reported].task().facts().ending.is_some();
        for change in together.changes.into_iter().chain(together.child.map(|child| *child)) {
            self.put(change);
        }
        let mut above = Some(reported);
        let (mut crossed, mut root) = (false, reported);
        while let Some(id) = above {
            let task = &self.tasks[&id];
            crossed |= task.task().budget_remaining().is_some_and(Money::is_negative);
            (root, above) = (id, parent(task));
        }
        if (crossed || closed) && spent > Money::ZERO {
            let of = if crossed { &mut self.in_flight } else { &mut self.late };
            let sum = of.entry(root).or_default();
            *sum = sum.checked_add(spent).unwrap();
        }
        true
    }

    fn put(&mut self, change: Change) {
        let id = change.next().task().id();
        let (next, events, ledger) = change.into_parts();
        self.logs.entry(id).or_default().extend(events);
        self.ledgers.entry(id).or_default().extend(ledger);
        self.tasks.insert(id, next);
    }

    fn below(&self, root: TaskId) -> Vec<&Aggregate> {
        let mut found = BTreeSet::from([root]);
        // A child has a later id than its parent.
        for (id, task) in &self.tasks {
            if parent(task).is_some_and(|parent| found.contains(&parent)) {
                found.insert(*id);
            }
        }
        found.iter().map(|id| &self.tasks[id]).collect()
    }

    fn look(&self) -> Result<(), TestCaseError> {
        let sum = |amounts: Vec<Money>| {
            amounts.into_iter().try_fold(Money::ZERO, Money::checked_add).map_err(|_| TestCaseError::fail("too large"))
        };
        for (id, task) in &self.tasks {
            let (pinned, facts) = (task.task().pinned(), task.task().facts());
            let folded = fold(ORGANIZATION, *id, &self.logs[id]);
            prop_assert_eq!(&folded.map_err(|fault| TestCaseError::fail(fault.to_string()))?, task);
            let children: Vec<_> = self.tasks.values().filter(|child| parent(child) == Some(*id)).collect();
            let open = children.iter().filter(|child| child.task().facts().ending.is_none()).count();
            prop_assert_eq!(facts.open_children as usize, open);
            if facts.ending.is_none() {
                let left = task.task().budget_remaining();
                prop_assert!(left.is_none_or(|left| !left.is_negative()), "open with {:?} left", left);
            }
            if pinned.budget.is_some() {
                prop_assert!(children.iter().all(|child| child.task().pinned().budget.is_some()));
            }
            let (Some(budget), None) = (pinned.budget, parent(task)) else { continue };
            let held = facts.cost_total.checked_add(facts.set_aside).unwrap();
            let allowed = sum(vec![budget, self.in_flight.get(id).copied().unwrap_or_default()])?;
            prop_assert!(held <= allowed, "{} spent and set aside, {} allowed", held, allowed);
            let allowed = sum(vec![allowed, self.late.get(id).copied().unwrap_or_default()])?;
            let spent = sum(self.below(*id).iter().map(|task| task.task().facts().cost_total).collect())?;
            prop_assert!(spent <= allowed, "{} spent by the tree, {} allowed", spent, allowed);
            if facts.ending.is_none() {
                prop_assert!(spent <= held, "{} spent by the tree, {} known to its root", spent, held);
            }
        }
        Ok(())
    }
}

fn grow(steps: &[Step], mut look: impl FnMut(&Forest) -> Result<(), TestCaseError>) -> Result<Forest, TestCaseError> {
    let mut forest = Forest::plant(&[Some("10"), None, Some("3")]);
    let mut late: Option<(TaskId, Act, Together)> = None;
    for step in steps {
        let ids: Vec<TaskId> = forest.tasks.keys().copied().collect();
        let id = *step.task.get(&ids);
        if let Ok(Some(together)) = forest.decide(id, &step.act) {
            match step.fate {
                Fate::Written => prop_assert!(forest.write(together)),
                Fate::Lost => {}
                Fate::Late => {
                    late = Some((id, step.act.clone(), together));
                    continue;
                }
            }
        }
        if let Some((id, act, together)) = late.take()
            && !forest.write(together)
            && let Ok(Some(again)) = forest.decide(id, &act)
        {
            prop_assert!(forest.write(again));
        }
        look(&forest)?;
    }
    Ok(forest)
}

proptest! {
    #![proptest_config(crate::config(150))]

    #[test]
    fn a_tree_spends_no_more_than_its_roots_budget_but_by_the_calls_in_flight(steps in steps()) {
        grow(&steps, Forest::look)?;
    }
}

/// The generator is worth something only when it makes what is rare.
#[test]
fn the_random_trees_are_deep_and_cross_their_budgets_at_every_level() {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut depths, mut crossed, mut types) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for _ in 0..300 {
        let steps = steps().new_tree(&mut runner).unwrap().current();
        let forest = grow(&steps, |_| Ok(())).unwrap();
        for task in forest.tasks.values() {
            let depth = task.task().pinned().depth;
            depths.insert(depth);
            if task.task().facts().ending.and_then(Ending::reason) == Some(OutcomeReason::Budget) {
                crossed.insert(depth);
            }
        }
        types.extend(forest.logs.values().flatten().map(|event| event.event_type.to_string()));
    }
    assert!(depths.contains(&3) && crossed.is_superset(&BTreeSet::from([0, 1, 2])), "{depths:?} {crossed:?}");
    for wanted in ["child.created", "child.closed", "child.adjusted"] {
        assert!(types.contains(wanted), "{types:?}");
    }
}
