//! What holds for every task, whatever is asked of it and in whatever order.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, missing_docs)]

mod cases;
mod chain;
mod corrections;
mod delegation;
mod dependencies;
mod life;
mod questions;
mod rules;
mod step;
mod task;
mod trees;
mod writes;

use life::{Life, ORGANIZATION, TASK, create, snapshot};
use mandate::domain::aggregate::fold;
use mandate::domain::change::Decision;
use mandate::domain::outcome::{Ending, Outcome};
use mandate::domain::refusal::Refusal;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestCaseError;
use step::{Step, steps};

/// Fewer cases than usual, because a case is a whole life that is folded again at every step.
fn config(cases: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok());
    ProptestConfig { cases: asked.unwrap_or(cases), failure_persistence: None, ..ProptestConfig::default() }
}

fn budget() -> impl Strategy<Value = Option<&'static str>> {
    select(vec![None, Some("0"), Some("2.5"), Some("1000")])
}

/// Leads a life and looks at it after every step.
fn live(budget: Option<&str>, steps: &[Step], look: rules::Look) -> Result<(), TestCaseError> {
    let mut life = Life::begin(budget);
    for step in steps {
        let Some(stepped) = life.take(step) else { continue };
        look(&life, &stepped)?;
    }
    Ok(())
}

macro_rules! holds {
    ($($name:ident: $look:path;)+) => {
        proptest! {
            #![proptest_config(config(110))]
            $(
                #[test]
                fn $name(budget in budget(), steps in steps()) {
                    live(budget, &steps, $look)?;
                }
            )+
        }
    };
}

holds! {
    closed_stays_closed_and_only_what_was_spent_or_done_is_added: rules::closed_is_final;
    every_change_has_events_that_number_the_log_without_a_gap: rules::events_number_the_log;
    status_is_the_function_of_the_facts_and_changes_exactly_with_an_event: rules::status_follows;
    totals_are_the_sums_of_the_ledger: rules::totals_are_sums;
    open_counts_are_those_of_the_sessions_and_requests: rules::counts_match;
    a_cancel_is_never_taken_back: rules::cancel_stays;
    closing_is_in_the_order_of_the_contract: rules::closing_order;
    a_change_names_every_row_that_it_touches_and_no_other: rules::touched_rows;
    what_is_refused_depends_on_the_life_of_the_task_as_the_table_says: rules::table;
    a_spent_budget_closes_in_the_change_that_spends_it: rules::budget_closes;
}

proptest! {
    #![proptest_config(config(80))]

    #[test]
    fn folding_the_log_gives_the_task_after_every_step(budget in budget(), steps in steps()) {
        live(budget, &steps, |life, stepped| {
            match &stepped.decision {
                Ok(Decision::Change(_)) => {
                    let folded = fold(ORGANIZATION, TASK, &life.log);
                    let folded = folded.map_err(|fault| TestCaseError::fail(fault.to_string()))?;
                    prop_assert_eq!(&folded, &life.task);
                }
                Ok(Decision::Unchanged) | Err(_) => prop_assert_eq!(&life.task, &stepped.before),
            }
            Ok(())
        })?;
    }

    #[test]
    fn deciding_on_what_the_store_reads_is_deciding_on_everything(budget in budget(), steps in steps()) {
        let mut life = Life::begin(budget);
        for step in &steps {
            let Some(stepped) = life.take(step) else { continue };
            let small = snapshot(&stepped.before, &stepped.command);
            let small = life.decide(&small, stepped.command.clone());
            let whole = life.decide(&stepped.before, stepped.command);
            match (small, whole) {
                (Ok(Decision::Change(small)), Ok(Decision::Change(whole))) => {
                    prop_assert_eq!(small.events(), whole.events());
                    prop_assert_eq!(small.next().task(), whole.next().task());
                    prop_assert_eq!(small.guards(), whole.guards());
                    prop_assert_eq!(small.ledger(), whole.ledger());
                }
                (small, whole) => prop_assert_eq!(small, whole),
            }
        }
    }

    #[test]
    fn a_task_that_is_closed_from_the_start_is_whole(budget in budget(), outcome in select(Outcome::ALL), nth in 0_usize..6) {
        let reason = outcome.reasons().get(nth % outcome.reasons().len().max(1)).copied();
        let ending = Ending::new(outcome, reason).unwrap();
        match create(budget, Some(ending)) {
            Ok(change) => {
                prop_assert!(!ending.is_reserved() && outcome != Outcome::CancelledByHuman);
                let types: Vec<_> = change.events().iter().map(|event| event.event_type.as_ref()).collect();
                prop_assert_eq!(types, ["task.created", "state.changed", "outcome.set"]);
                prop_assert_eq!(change.next().task().facts().ending, Some(ending));
                prop_assert_eq!(&fold(ORGANIZATION, TASK, change.events()).unwrap(), change.next());
            }
            Err(Refusal::OutcomeReserved) => prop_assert!(ending.is_reserved()),
            Err(Refusal::NotCancelled(_)) => prop_assert!(outcome == Outcome::CancelledByHuman),
            Err(other) => return Err(TestCaseError::fail(format!("{other:?}"))),
        }
    }
}

/// How many commands there are.
const COMMANDS: usize = 20;

/// The generator is worth something only when it reaches every part of the table.
#[test]
fn the_random_lives_meet_every_command_in_every_life_and_close_in_many_ways() {
    use std::collections::BTreeSet;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut met, mut endings, mut kinds) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for _ in 0..1_200 {
        let steps = steps().new_tree(&mut runner).unwrap().current();
        let mut life = Life::begin(Some("1000"));
        for step in &steps {
            let archived = life.is_archived();
            let Some(stepped) = life.take(step) else { continue };
            let facts = stepped.before.task().facts();
            let state = (archived, facts.ending.is_some(), facts.control.as_str() == "cancel");
            let name = format!("{:?}", stepped.command);
            let name = name.split([' ', '(']).next().unwrap().to_owned();
            met.insert((name.clone(), state.0, state.1));
            if state == (false, false, true) {
                met.insert((format!("{name} while cancelling"), false, false));
            }
            if matches!(stepped.decision, Ok(Decision::Change(_))) {
                kinds.insert(name);
            }
            endings.extend(life.task.task().facts().ending.map(|ending| (ending.outcome(), ending.reason())));
        }
    }
    assert_eq!(kinds.len(), COMMANDS, "every command changes something at some point: {kinds:?}");
    assert_eq!(met.len(), COMMANDS * 4, "every command, open, cancelling, closed and archived: {met:?}");
    assert!(endings.len() > 15, "{endings:?}");
}
