//! Single cases of the decision table that random lives meet too rarely to hold them.

use std::time::Duration;

use mandate::domain::aggregate::Aggregate;
use mandate::domain::change::{Change, Context, Decision};
use mandate::domain::command::{ClaimedOutcome, Command, HarnessEvent, NewReport, NewSession};
use mandate::domain::decide::{self, Ascent, Delegation};
use mandate::domain::event::{Actor, ActorKind, Channel, EventType};
use mandate::domain::ids::{AccountId, EventId, ModelId, PersonId, SessionId, ShortId, TaskId};
use mandate::domain::money::{Money, Prices, TokenCounts};
use mandate::domain::outcome::{Ending, Outcome, OutcomeReason};
use mandate::domain::refusal::Refusal;
use mandate::domain::status::Status;
use mandate::domain::usage::PricedModel;
use uuid::Uuid;

use crate::life::{Life, created, decided_by};

pub fn open(life: &mut Life, key: &str) -> SessionId {
    let session = NewSession { session_key: key.to_owned(), harness_instance: None, takeover: false };
    life.write(Command::OpenSession { session: Ok(session), max_concurrent_tasks: None });
    life.task.sessions().iter().find(|session| session.session_key == key).unwrap().id
}

pub fn append(session: Option<SessionId>, event_type: EventType, id: u128) -> Command {
    let payload = match event_type {
        EventType::ToolCalled => r#"{"tool":"sh","mutating":true}"#,
        _ => r#"{"body":"I begin."}"#,
    };
    let event = HarnessEvent {
        event_id: EventId(Uuid::from_u128(id)),
        event_type,
        schema_version: 1,
        actor_kind: ActorKind::Agent,
        actor_id: None,
        at: None,
        payload: payload.to_owned(),
        redacted: Vec::new(),
        phase: None,
        spilled: None,
    };
    let only_tool_calls = event_type == EventType::ToolCalled;
    Command::Append { session: Ok(session), only_tool_calls, events: Ok(vec![event]) }
}

/// A report of so many millionths of a dollar.
pub fn report(session: Option<SessionId>, key: &str, millionths: i64) -> Command {
    let prices = Prices { input_cost_per_million: Some("1".parse().unwrap()), ..Prices::default() };
    let report = NewReport {
        idempotency_key: key.to_owned(),
        account_id: AccountId(Uuid::from_u128(4)),
        model_id: "sonnet".to_owned(),
        model: Some(PricedModel { id: ModelId(Uuid::from_u128(3)), prices }),
        counts: Some(TokenCounts { tokens_in: millionths, ..TokenCounts::default() }),
        corrects: None,
    };
    Command::Report { session: Ok(session), report: Ok(Box::new(report)) }
}

pub fn outcome() -> Command {
    let ending = Ending::new(Outcome::DoneActed, None).unwrap();
    Command::SetOutcome { session: Ok(None), outcome: Ok(ClaimedOutcome { ending, result: None }) }
}

fn context<T>(decide: impl FnOnce(&mut Context<'_>) -> T) -> T {
    decided_by(Actor { kind: ActorKind::Agent, id: "agent".to_owned(), channel: Some(Channel::Harness) }, decide)
}

#[test]
fn a_write_carries_the_session_that_it_names_which_lives_by_it() {
    let mut life = Life::begin(None);
    let session = open(&mut life, "one");
    for (nth, command) in
        [append(Some(session), EventType::Turn, 900), report(Some(session), "a", 1)].iter().enumerate()
    {
        let change = life.write(command.clone());
        assert_eq!(change.events()[0].session_id, Some(session), "{nth}");
        assert_eq!(change.alive(), Some(session), "{nth}");
    }
    let change = life.write(append(None, EventType::Turn, 901));
    assert_eq!((change.events()[0].session_id, change.alive()), (None, None));
    let nowhere = append(Some(SessionId(Uuid::from_u128(7))), EventType::Turn, 902);
    assert!(matches!(life.decide(&life.task, nowhere), Err(Refusal::Invalid(_))));
}

#[test]
fn a_closed_session_writes_what_was_done_and_spent_and_no_more() {
    let mut life = Life::begin(None);
    let session = open(&mut life, "one");
    life.write(Command::CloseSession { session, reason: Ok("done".to_owned()) });
    let refused = life.decide(&life.task, append(Some(session), EventType::Turn, 900));
    assert!(matches!(&refused, Err(Refusal::SessionClosed { reason, .. }) if reason == "done"), "{refused:?}");
    for kept in [append(Some(session), EventType::ToolCalled, 901), report(Some(session), "a", 1)] {
        let change = life.write(kept);
        assert_eq!(change.events()[0].session_id, Some(session));
        // It is over: nothing is a sign of its life.
        assert_eq!(change.alive(), None);
    }
}

#[test]
fn a_heartbeat_is_refused_by_what_is_closed() {
    let mut life = Life::begin(None);
    let (session, other) = (open(&mut life, "one"), open(&mut life, "two"));
    assert_eq!(life.task.heartbeat_refusal(session), None);
    life.write(Command::CloseSession { session, reason: Ok("done".to_owned()) });
    let refusal = life.task.heartbeat_refusal(session);
    assert!(matches!(&refusal, Some(Refusal::SessionClosed { reason, .. }) if reason == "done"), "{refusal:?}");
    assert_eq!(life.task.heartbeat_refusal(other), None);
    assert_eq!(life.task.heartbeat_refusal(SessionId(Uuid::from_u128(7))), None);
    life.write(outcome());
    for session in [session, other] {
        assert!(matches!(life.task.heartbeat_refusal(session), Some(Refusal::TaskClosed { .. })));
    }
}

fn cancelled() -> Command {
    let ending = Ending::new(Outcome::CancelledByHuman, Some(OutcomeReason::CancelSeen)).unwrap();
    Command::SetOutcome { session: Ok(None), outcome: Ok(ClaimedOutcome { ending, result: None }) }
}

#[test]
fn a_harness_says_that_a_person_cancelled_only_when_one_did() {
    let mut life = Life::begin(None);
    let session = open(&mut life, "one");
    assert_eq!(life.decide(&life.task, cancelled()), Err(Refusal::NotCancelled(Status::Running)));
    life.write(Command::Cancel { reason: Ok(None), force: Ok(false) });
    assert_eq!(life.task.heartbeat_refusal(session), None);
    life.write(cancelled());
    assert_eq!(life.task.task().facts().ending.map(Ending::outcome), Some(Outcome::CancelledByHuman));
}

pub fn close(session: SessionId) -> Command {
    Command::CloseSession { session, reason: Ok("done".to_owned()) }
}

fn ending_of(life: &Life) -> Option<OutcomeReason> {
    life.task.task().facts().ending.and_then(Ending::reason)
}

#[test]
fn a_task_that_is_worked_already_does_not_count_again() {
    let mut life = Life::begin(None);
    let session = |key: &str, takeover| {
        let session = NewSession { session_key: key.to_owned(), harness_instance: None, takeover };
        Command::OpenSession { session: Ok(session), max_concurrent_tasks: Some(3) }
    };
    assert_eq!(life.write(session("one", false)).guards().concurrency, Some(3));
    assert_eq!(life.write(session("two", false)).guards().concurrency, None);
    assert_eq!(life.decide(&life.task, session("two", true)), Ok(Decision::Unchanged));
    life.write(session("three", true));
    let open = life.task.sessions().iter().filter(|session| session.is_open());
    let open: Vec<_> = open.map(|session| (session.session_key.as_str(), session.generation)).collect();
    assert_eq!(open, [("three", 3)]);
    // What was taken over neither opens again nor closes.
    let first = life.task.sessions().iter().find(|session| session.session_key == "one").unwrap().id;
    let again = life.decide(&life.task, session("one", false));
    assert!(matches!(&again, Err(Refusal::SessionClosed { reason, .. }) if reason == "superseded"), "{again:?}");
    assert!(matches!(life.decide(&life.task, close(first)), Err(Refusal::SessionSuperseded { .. })));
}

#[test]
fn a_cancelled_task_ends_with_its_last_session_and_another_waits_for_the_next() {
    let mut life = Life::begin(None);
    let (one, two) = (open(&mut life, "one"), open(&mut life, "two"));
    for session in [one, two] {
        life.write(close(session));
        assert_eq!(life.task.task().facts().ending, None);
    }
    assert_eq!(life.task.task().facts().status, Status::Queued);
    assert_eq!(life.decide(&life.task, close(one)), Ok(Decision::Unchanged));
    for (lost, expected) in [(false, OutcomeReason::CancelSeen), (true, OutcomeReason::HarnessLost)] {
        let mut life = Life::begin(None);
        let (one, two) = (open(&mut life, "one"), open(&mut life, "two"));
        life.write(Command::Cancel { reason: Ok(None), force: Ok(false) });
        let since = life.now;
        let end = |session| {
            if lost { Command::LoseSessions { sessions: vec![session], silent_since: since } } else { close(session) }
        };
        let change = life.write(end(one));
        assert_eq!(change.guards().silent, lost.then(|| (vec![one], since)));
        assert_eq!(ending_of(&life), None);
        if lost {
            assert_eq!(life.decide(&life.task, end(one)), Ok(Decision::Unchanged));
        }
        life.write(end(two));
        assert_eq!(ending_of(&life), Some(expected));
    }
}

#[test]
fn the_time_limit_runs_from_the_first_session_and_ends_the_task_when_it_has_passed() {
    let mut life = Life::begin(None);
    let begun = life.now;
    let at = |life: &mut Life, seconds: u64| {
        life.now = begun.plus(Duration::from_secs(seconds));
        life.decide(&life.task, Command::TimeOut)
    };
    // Nobody works it yet.
    assert_eq!(at(&mut life, 100_000), Ok(Decision::Unchanged));
    life.now = begun;
    open(&mut life, "one");
    assert_eq!(at(&mut life, 1_199), Ok(Decision::Unchanged));
    for seconds in [1_200, 1_201] {
        let Ok(Decision::Change(change)) = at(&mut life, seconds) else { panic!("it goes on after {seconds} s") };
        let ending = change.next().task().facts().ending;
        assert_eq!(ending.and_then(Ending::reason), Some(OutcomeReason::TaskTimeout));
    }
}

#[test]
fn another_owner_is_an_event_and_the_same_one_is_none() {
    let mut life = Life::begin(None);
    let same = Command::Reassign { owner: PersonId::parse("ADA").map_err(|_| Refusal::TaskArchived) };
    assert!(matches!(life.decide(&life.task, same), Ok(Decision::Unchanged)));
    let change = life.write(Command::Reassign { owner: Ok(PersonId::parse("abe").unwrap()) });
    assert_eq!(change.events()[0].event_type, "owner.changed");
    assert_eq!(life.task.task().facts().owner.as_str(), "abe");
}

pub fn delegate(parent: &Aggregate, id: u128, budget: Option<&str>, asked: bool) -> Result<Delegation, Refusal> {
    let created = created(budget);
    let (child, number) = (TaskId(Uuid::from_u128(id)), ShortId(i64::try_from(id).unwrap()));
    context(|context| decide::delegate(parent, Ok(None), child, number, created, asked, context))
}

fn budget(delegation: &Delegation) -> Option<String> {
    delegation.child.next().task().pinned().budget.map(|budget| budget.to_string())
}

#[test]
fn a_child_gets_what_is_left_and_never_less_than_was_asked_for() {
    let parent = Life::begin(Some("1")).task;
    let of = |budget_asked, asked| delegate(&parent, 20, budget_asked, asked).map(|delegation| budget(&delegation));
    let left: Money = "1".parse().unwrap();
    assert_eq!(of(Some("0.5"), true), Ok(Some("0.5".to_owned())));
    assert_eq!(of(Some("1"), true), Ok(Some("1".to_owned())));
    assert_eq!(of(Some("1.000001"), true), Err(Refusal::BudgetExhausted(left)));
    // The default of the child's agent is lowered, and where there is none it is all that is left.
    assert_eq!(of(Some("2"), false), Ok(Some("1".to_owned())));
    assert_eq!(of(Some("0.25"), false), Ok(Some("0.25".to_owned())));
    assert_eq!(of(None, false), Ok(Some("1".to_owned())));
    let spent = delegate(&parent, 20, None, false).unwrap().parent.next().clone();
    for asked in [true, false] {
        let refused = delegate(&spent, 21, Some("0"), asked);
        assert_eq!(refused.map(|_| ()), Err(Refusal::BudgetExhausted(Money::ZERO)));
    }
    let unbounded = Life::begin(None).task;
    assert_eq!(budget(&delegate(&unbounded, 20, Some("7"), true).unwrap()), Some("7".to_owned()));
    assert_eq!(budget(&delegate(&unbounded, 20, None, false).unwrap()), None);
}

/// A root, a child of it that is closed, and a child of that with a budget of 1, which is open.
fn closed_between() -> (Aggregate, Aggregate, Aggregate) {
    let root = Life::begin(Some("10")).task;
    let first = delegate(&root, 20, Some("5"), true).unwrap();
    let (root, middle) = (first.parent.next().clone(), first.child.next().clone());
    let second = delegate(&middle, 21, Some("1"), true).unwrap();
    let (middle, leaf) = (second.parent.next().clone(), second.child.next().clone());
    let Ok(Decision::Change(change)) = context(|context| middle.decide(outcome(), context)) else { panic!("no end") };
    let mut ascent = Ascent::of(&middle, &change).unwrap();
    assert_eq!(ascent.next(), Some(root.task().id()));
    context(|context| ascent.take(&root, context)).unwrap();
    assert_eq!(ascent.next(), None);
    let risen = ascent.changes();
    assert_eq!(risen[0].events()[0].event_type, "child.closed");
    (risen[0].next().clone(), change.next().clone(), leaf)
}

/// What the end of `leaf`, which has spent so many millionths, writes above it.
fn ending(spent: i64) -> Vec<(TaskId, String)> {
    let (root, middle, leaf) = closed_between();
    let leaf = if spent == 0 {
        leaf
    } else {
        let Ok(Decision::Change(change)) = context(|context| leaf.decide(report(None, "a", spent), context)) else {
            panic!("no report")
        };
        if change.next().task().facts().ending.is_some() {
            return rise(&root, &middle, &leaf, &change);
        }
        change.next().clone()
    };
    let Ok(Decision::Change(change)) = context(|context| leaf.decide(outcome(), context)) else { panic!("no end") };
    rise(&root, &middle, &leaf, &change)
}

fn rise(root: &Aggregate, middle: &Aggregate, leaf: &Aggregate, change: &Change) -> Vec<(TaskId, String)> {
    let mut ascent = Ascent::of(leaf, change).unwrap();
    while let Some(next) = ascent.next() {
        let above = if next == middle.task().id() { middle } else { root };
        context(|context| ascent.take(above, context)).unwrap();
        assert_ne!(ascent.next(), Some(next), "the news do not rise");
    }
    let told = |change: &Change| (change.next().task().id(), change.events()[0].event_type.to_string());
    ascent.changes().iter().map(told).collect()
}

#[test]
fn what_returns_to_a_closed_task_stops_there_and_what_was_overspent_does_not() {
    let (root, middle, _) = closed_between();
    let (root, middle) = (root.task().id(), middle.task().id());
    let closed = |id| (id, "child.closed".to_owned());
    assert_eq!(ending(0), [closed(middle)]);
    assert_eq!(ending(400_000), [closed(middle)]);
    assert_eq!(ending(1_000_000), [closed(middle)]);
    assert_eq!(ending(1_000_001), [closed(middle), (root, "child.adjusted".to_owned())]);
}
