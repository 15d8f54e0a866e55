//! Who may delegate, and whose feed has what.

use mandate::domain::aggregate::Aggregate;
use mandate::domain::change::Decision;
use mandate::domain::command::{ClaimedOutcome, Command, NewSession};
use mandate::domain::decide::may_delegate;
use mandate::domain::feed::FeedScope;
use mandate::domain::ids::{AccountId, AgentId, SessionId, TaskId};
use mandate::domain::outcome::{Ending, OutcomeReason};
use mandate::domain::refusal::Refusal;
use mandate::domain::task::{Origin, Pinned};
use uuid::Uuid;

use crate::cases::{close, delegate, open, outcome};
use crate::life::{Life, copy};

fn asks(task: &Aggregate, session: Option<SessionId>) -> Result<Option<SessionId>, Refusal> {
    may_delegate(task, Ok(session))
}

#[test]
fn a_task_delegates_while_it_is_open_by_its_own_session() {
    let mut life = Life::begin(None);
    let one = open(&mut life, "one");
    assert_eq!((asks(&life.task, None), asks(&life.task, Some(one))), (Ok(None), Ok(Some(one))));
    let nowhere = asks(&life.task, Some(SessionId(Uuid::from_u128(7))));
    assert!(matches!(nowhere, Err(Refusal::Invalid(_))), "{nowhere:?}");
    let taken = NewSession { session_key: "two".to_owned(), harness_instance: None, takeover: true };
    life.write(Command::OpenSession { session: Ok(taken), max_concurrent_tasks: None });
    assert_eq!(asks(&life.task, None), Err(Refusal::SessionRequired));
    assert!(matches!(asks(&life.task, Some(one)), Err(Refusal::SessionSuperseded { .. })));

    let mut cancelled = Life::begin(None);
    open(&mut cancelled, "one");
    cancelled.write(Command::Cancel { reason: Ok(None), force: Ok(false) });
    assert_eq!(asks(&cancelled.task, None), Err(Refusal::TaskCancelled));

    let mut closed = Life::begin(None);
    let session = open(&mut closed, "one");
    closed.write(close(session));
    assert!(matches!(asks(&closed.task, Some(session)), Err(Refusal::SessionClosed { .. })));
    closed.write(outcome());
    assert!(matches!(asks(&closed.task, None), Err(Refusal::TaskClosed(_))));
    let open = Life::begin(None).task;
    assert_eq!(asks(&Life::archived(&open), None), Err(Refusal::TaskArchived));
}

#[test]
fn the_number_of_open_children_and_the_depth_are_bounded() {
    // As many as its creation pinned.
    let mut parent = Life::begin(None).task;
    for nth in 0..50 {
        assert_eq!(asks(&parent, None), Ok(None), "{nth}");
        parent = delegate(&parent, 100 + nth, None, false).unwrap().parent.next().clone();
    }
    assert_eq!(asks(&parent, None), Err(Refusal::ChildrenLimit(50)));
    let mut task = Life::begin(None).task;
    for depth in 0..5 {
        assert_eq!((task.task().pinned().depth, asks(&task, None)), (depth, Ok(None)));
        task = delegate(&task, 100 + u128::from(depth), None, false).unwrap().child.next().clone();
    }
    assert_eq!(asks(&task, None), Err(Refusal::DepthLimit(5)));
}

#[test]
fn a_feed_has_the_tasks_that_its_reader_may_read() {
    let pinned = copy(Life::begin(None).task.task().pinned());
    let (own, other) = (pinned.service_account_id, AccountId(Uuid::from_u128(99)));
    let (agent, stranger) = (AgentId(Uuid::from_u128(98)), AgentId(Uuid::from_u128(97)));
    let origin =
        |agent_id| Origin::Task { parent_task_id: TaskId(Uuid::nil()), parent_short_id: "T-1".to_owned(), agent_id };
    let delegated = Pinned { origin: origin(agent), ..copy(&pinned) };
    let triggered = Pinned { created_by_account: Some(other), ..copy(&pinned) };
    let all = [&pinned, &delegated, &triggered];
    let held = |scope: FeedScope| all.map(|task| scope.holds(task));
    assert_eq!(held(FeedScope::All), [true; 3]);
    assert_eq!(held(FeedScope::Agent { account: own, agent: stranger }), [true; 3]);
    assert_eq!(held(FeedScope::Agent { account: other, agent }), [false, true, false]);
    assert_eq!(held(FeedScope::Agent { account: other, agent: stranger }), [false; 3]);
    assert_eq!(held(FeedScope::CreatedBy(other)), [false, false, true]);
    assert_eq!(held(FeedScope::CreatedBy(own)), [false; 3]);
}

#[test]
fn the_outcome_that_is_recorded_may_be_said_again() {
    let mut life = Life::begin(None);
    life.write(outcome());
    assert_eq!(life.decide(&life.task, outcome()), Ok(Decision::Unchanged));
    for other in OutcomeReason::ALL {
        let claimed = ClaimedOutcome { ending: Ending::because(*other), result: None };
        let again = life.decide(&life.task, Command::SetOutcome { session: Ok(None), outcome: Ok(claimed) });
        assert!(matches!(again, Err(Refusal::TaskClosed(_))), "{other}: {again:?}");
    }
}
