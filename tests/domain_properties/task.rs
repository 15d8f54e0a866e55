//! What a task's row tells, and which rows are refused because no history can have written them.

use std::sync::Arc;

use mandate::domain::aggregate::Aggregate;
use mandate::domain::command::{Command, NewReport};
use mandate::domain::ids::{AccountId, AgentId, PersonId, TaskId};
use mandate::domain::money::TokenCounts;
use mandate::domain::outcome::{Ending, Outcome, OutcomeReason};
use mandate::domain::status::{Control, Status};
use mandate::domain::task::{Facts, Origin, Standing, Task};
use mandate::domain::time::Timestamp;
use uuid::Uuid;

use crate::cases::{open, outcome, report};
use crate::life::{Life, copy};

#[test]
fn a_creation_key_belongs_to_whoever_asked() {
    let (user, parent_task_id) = (PersonId::parse("ada").unwrap(), TaskId(Uuid::from_u128(9)));
    let schedule = "nightly".to_owned();
    let (webhook, delivery) = ("pushes".to_owned(), "d-1".to_owned());
    let agent_id = AgentId(Uuid::from_u128(5));
    let told = [
        (Origin::Human { user }, "human", "ada".to_owned()),
        (Origin::Schedule { scheduled_task: schedule }, "schedule", "nightly".to_owned()),
        (Origin::Webhook { webhook, delivery }, "webhook", "pushes".to_owned()),
        (
            Origin::Task { parent_task_id, parent_short_id: "T-3".to_owned(), agent_id },
            "task",
            parent_task_id.to_string(),
        ),
    ];
    for ((origin, kind, principal), listed) in told.into_iter().zip(Origin::KINDS) {
        assert_eq!((origin.kind(), &origin.kind(), origin.principal()), (kind, listed, principal));
    }
}

fn restored(task: &Task, facts: Facts, archived: bool) -> Result<(), &'static str> {
    let archived = archived.then_some(Timestamp::EPOCH);
    Task::restore(Arc::new(copy(task.pinned())), facts, archived).map(|_| ()).map_err(|refused| refused.fault)
}

#[test]
fn a_row_that_contradicts_itself_is_refused() {
    let mut life = Life::begin(None);
    let begun = life.task.task().clone();
    life.write(outcome());
    let closed = life.task.task().clone();
    assert_eq!(restored(&begun, begun.facts().clone(), false), Ok(()));
    for archived in [false, true] {
        assert_eq!(restored(&closed, closed.facts().clone(), archived), Ok(()));
    }
    assert_eq!(restored(&begun, begun.facts().clone(), true), Err("its log is archived and it is open"));
    for (last_seq, expected) in [(0, Err("it has no event")), (-1, Err("it has no event")), (1, Ok(())), (2, Ok(()))] {
        assert_eq!(restored(&begun, Facts { last_seq, ..begun.facts().clone() }, false), expected, "{last_seq}");
    }
    let running = Facts { status: Status::Running, ..begun.facts().clone() };
    assert_eq!(restored(&begun, running, false), Err("its status does not follow from its facts"));
    let paused = Facts { control: Control::Pause, ..begun.facts().clone() };
    assert!(restored(&begun, paused, false).is_err());
    let when = "it has an outcome and no time of closing, or the other way round";
    let timeless = Facts { closed_at: None, ..closed.facts().clone() };
    assert_eq!(restored(&closed, timeless, false), Err(when));
    let endless = Facts { closed_at: Some(Timestamp::EPOCH), ..begun.facts().clone() };
    assert_eq!(restored(&begun, endless, false), Err(when));
}

#[test]
fn a_closed_task_tells_how_it_ended() {
    let mut life = Life::begin(None);
    assert_eq!((life.task.task().outcome(), life.task.task().outcome_reason()), (None, None));
    open(&mut life, "one");
    life.write(Command::Cancel { reason: Ok(None), force: Ok(false) });
    life.write(Command::Cancel { reason: Ok(None), force: Ok(true) });
    let task = life.task.task();
    assert_eq!(task.outcome(), Some(Outcome::InterruptedByOperator));
    assert_eq!(task.outcome_reason(), Some(OutcomeReason::ForcedUnconfirmed));
    assert_eq!(task.facts().ending, Some(Ending::because(OutcomeReason::ForcedUnconfirmed)));
}

/// A report of `model_id` under `key`, which no directory knows.
fn unpriced(key: &str, counts: Option<TokenCounts>) -> Command {
    let report = NewReport {
        idempotency_key: key.to_owned(),
        account_id: AccountId(Uuid::from_u128(4)),
        model_id: "unheard of".to_owned(),
        model: None,
        counts,
        corrects: None,
    };
    Command::Report { session: Ok(None), report: Ok(Box::new(report)) }
}

#[test]
fn a_budget_is_certain_while_every_report_was_measured_and_priced() {
    let certain = |task: &Aggregate| {
        assert_eq!(Standing::from(task.task()).budget_certain, task.task().budget_certain());
        task.task().budget_certain()
    };
    let counts = TokenCounts { tokens_in: 5, ..TokenCounts::default() };
    let mut life = Life::begin(Some("10"));
    life.write(report(None, "a", 5));
    assert!(certain(&life.task));
    for command in [unpriced("b", Some(counts)), unpriced("c", None)] {
        let mut life = Life::begin(Some("10"));
        life.write(command);
        assert!(!certain(&life.task), "{:?}", life.task.task().facts());
    }
    let mut life = Life::begin(Some("10"));
    let mut unmeasured = report(None, "d", 5);
    if let Command::Report { report: Ok(report), .. } = &mut unmeasured {
        report.counts = None;
    }
    life.write(unmeasured);
    assert!(!certain(&life.task), "{:?}", life.task.task().facts());
}

#[test]
fn what_is_left_of_a_budget_is_the_same_at_every_turn() {
    let mut life = Life::begin(Some("1"));
    life.write(report(None, "a", 400_000));
    let task = life.task.task();
    assert_eq!(task.budget_remaining(), Some("0.6".parse().unwrap()));
    assert_eq!(Standing::from(task).budget_remaining(), task.budget_remaining());
    assert_eq!(Standing::from(Life::begin(None).task.task()).budget_remaining(), None);
}
