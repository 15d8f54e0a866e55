//! Questions to people, one case of the decision table after the other.

use std::time::Duration;

use mandate::domain::change::{Change, Decision};
use mandate::domain::command::{Command, NewRequest, NewResolution};
use mandate::domain::decide::REQUEST_TTL_MAX;
use mandate::domain::digest::Digest;
use mandate::domain::ids::{PersonId, RequestId};
use mandate::domain::outcome::{Ending, OutcomeReason};
use mandate::domain::payload::JsonText;
use mandate::domain::refusal::{Place, Refusal};
use mandate::domain::request::{Request, RequestKind, RequestStatus};
use mandate::domain::time::Timestamp;
use serde_json::Value;
use uuid::Uuid;

use crate::life::Life;

const TTL: Duration = Duration::from_mins(10);

fn digest(text: &str) -> Digest {
    Digest::of(text.as_bytes())
}

fn question(kind: RequestKind, key: Option<&str>, digests: &[Digest]) -> NewRequest {
    NewRequest {
        kind,
        title: "Which?".to_owned(),
        why: None,
        options: vec!["this".to_owned(), "that".to_owned()],
        artifacts: Vec::new(),
        artifact_digests: digests.to_vec(),
        expires_at: None,
        ttl: TTL,
        request_key: key.map(str::to_owned),
    }
}

fn feedback(key: Option<&str>) -> NewRequest {
    question(RequestKind::Feedback, key, &[])
}

fn approval(key: Option<&str>, of: &str) -> NewRequest {
    question(RequestKind::Approval, key, &[digest(of), digest("both")])
}

fn command(request: NewRequest, supersedes: Option<RequestId>) -> Command {
    Command::OpenRequest { session: Ok(None), supersedes, request: Ok(Box::new(request)) }
}

/// Opens it; answers its id.
fn ask(life: &mut Life, request: NewRequest) -> RequestId {
    opened(&life.write(command(request, None)))
}

fn opened(change: &Change) -> RequestId {
    let event = change.events().iter().find(|event| event.event_type == "request.opened").unwrap();
    RequestId(payload(event)["request_id"].as_str().unwrap().parse().unwrap())
}

fn payload(event: &mandate::domain::event::Event) -> Value {
    serde_json::from_str(&event.payload).unwrap()
}

fn request(life: &Life, id: RequestId) -> &Request {
    life.task.request(id).unwrap()
}

fn status(life: &Life, id: RequestId) -> RequestStatus {
    request(life, id).status
}

fn resolution(status: RequestStatus) -> NewResolution {
    NewResolution { status, answer: None, choice: None, constraints: None, artifact_digests: None }
}

fn answer(choice: &str) -> NewResolution {
    NewResolution { choice: Some(choice.to_owned()), ..resolution(RequestStatus::Answered) }
}

fn resolve(id: RequestId, person: &str, new: NewResolution) -> Command {
    resolve_at(id, person, new, None)
}

fn resolve_at(id: RequestId, person: &str, new: NewResolution, expected: Option<Vec<i64>>) -> Command {
    Command::Resolve { request: id, person: PersonId::parse(person).unwrap(), expected, resolution: Ok(new) }
}

fn decided(life: &Life, command: Command) -> Result<Decision, Refusal> {
    life.decide(&life.task, command)
}

#[test]
fn a_key_and_its_digests_ask_once_and_other_digests_ask_anew() {
    let mut life = Life::begin(None);
    let first = ask(&mut life, approval(Some("merge"), "one"));
    assert_eq!(decided(&life, command(approval(Some("merge"), "one"), None)), Ok(Decision::Unchanged));
    let change = life.write(command(approval(Some("merge"), "two"), None));
    let second = opened(&change);
    assert_eq!((status(&life, first), status(&life, second)), (RequestStatus::Void, RequestStatus::Open));
    assert_eq!(request(&life, first).superseded_by, Some(second));
    let event = change.events().iter().find(|event| event.event_type == "request.opened").unwrap();
    assert_eq!(payload(event)["supersedes"], first.0.to_string());
    // Only what no longer expires may be voided, which the database judges.
    assert_eq!(change.guards().unexpired, [first]);
    // Without a key, or under another, they stand beside each other.
    let others = [None, None, Some("other")].map(|key| ask(&mut life, feedback(key)));
    for id in others.into_iter().chain([second]) {
        assert_eq!(status(&life, id), RequestStatus::Open);
    }
}

#[test]
fn a_request_supersedes_an_open_one_and_no_settled_one() {
    let mut life = Life::begin(None);
    let (first, other) = (ask(&mut life, feedback(None)), ask(&mut life, feedback(None)));
    let second = opened(&life.write(command(feedback(None), Some(first))));
    assert_eq!(status(&life, first), RequestStatus::Void);
    assert_eq!((status(&life, other), status(&life, second)), (RequestStatus::Open, RequestStatus::Open));
    life.write(resolve(other, "ada", answer("this")));
    for settled in [first, other] {
        let refused = decided(&life, command(feedback(None), Some(settled)));
        let expected = status(&life, settled);
        assert!(matches!(&refused, Err(Refusal::RequestResolved { status, .. }) if *status == expected), "{refused:?}");
    }
    let nowhere = decided(&life, command(feedback(None), Some(RequestId(Uuid::from_u128(7)))));
    let Err(Refusal::Invalid(faults)) = nowhere else { panic!("it supersedes nothing") };
    assert_eq!(faults[0].place, Place::Body("/supersedes".to_owned()));
}

#[test]
fn a_request_expires_when_it_says_or_after_the_time_that_is_set() {
    let mut life = Life::begin(None);
    let first = ask(&mut life, feedback(None));
    assert_eq!(request(&life, first).expires_at, life.now.plus(TTL));
    let at = Timestamp::from_micros(77_000_000).unwrap();
    let second = ask(&mut life, NewRequest { expires_at: Some(at), ..feedback(None) });
    assert_eq!(request(&life, second).expires_at, at);
    assert_eq!(REQUEST_TTL_MAX, Duration::from_hours(2_160));
}

#[test]
fn a_harness_takes_back_what_is_open() {
    let mut life = Life::begin(None);
    let (first, second) = (ask(&mut life, feedback(None)), ask(&mut life, feedback(None)));
    let withdraw = |id| Command::Withdraw { request: id, session: Ok(None) };
    let change = life.write(withdraw(first));
    assert_eq!((status(&life, first), change.guards().unexpired.as_slice()), (RequestStatus::Void, &[first][..]));
    assert_eq!(decided(&life, withdraw(first)), Ok(Decision::Unchanged));
    life.write(resolve(second, "ada", answer("this")));
    assert!(matches!(decided(&life, withdraw(second)), Err(Refusal::RequestResolved { .. })));
    assert_eq!(decided(&life, withdraw(RequestId(Uuid::from_u128(7)))), Err(Refusal::RequestNotFound));
}

#[test]
fn a_resolution_is_for_the_version_that_was_looked_at() {
    let mut life = Life::begin(None);
    let id = ask(&mut life, feedback(None));
    let last_seq = life.task.task().facts().last_seq;
    for versions in [vec![], vec![last_seq - 1], vec![last_seq + 1, 1]] {
        let refused = decided(&life, resolve_at(id, "ada", answer("this"), Some(versions)));
        assert_eq!(refused, Err(Refusal::PreconditionFailed { last_seq }));
    }
    let change = life.write(resolve_at(id, "ada", answer("this"), Some(vec![1, last_seq])));
    assert_eq!(change.guards().unexpired, [id]);
    // Who comes again is answered, whatever version the first call made of it.
    let again = decided(&life, resolve_at(id, "ada", answer("this"), Some(vec![last_seq])));
    assert_eq!(again, Ok(Decision::Unchanged));
}

#[test]
fn only_the_same_persons_same_resolution_is_a_repeat() {
    let mut life = Life::begin(None);
    let id = ask(&mut life, approval(None, "one"));
    let said = NewResolution {
        answer: Some("Fine.".to_owned()),
        choice: Some("this".to_owned()),
        constraints: Some(JsonText::new("{}")),
        artifact_digests: Some(vec![digest("one"), digest("both")]),
        ..resolution(RequestStatus::Approved)
    };
    life.write(resolve(id, "ada", said.clone()));
    let repeats = [
        said.clone(),
        NewResolution { artifact_digests: None, ..said.clone() },
        NewResolution { artifact_digests: Some(vec![digest("both"), digest("one")]), ..said.clone() },
    ];
    for same in repeats {
        assert_eq!(decided(&life, resolve(id, "Ada", same.clone())), Ok(Decision::Unchanged), "{same:?}");
    }
    let others = [
        NewResolution { status: RequestStatus::Rejected, ..said.clone() },
        NewResolution { answer: None, ..said.clone() },
        NewResolution { choice: Some("that".to_owned()), ..said.clone() },
        NewResolution { constraints: None, ..said.clone() },
        NewResolution { artifact_digests: Some(vec![digest("one")]), ..said.clone() },
    ];
    for other in others {
        let refused = decided(&life, resolve(id, "ada", other.clone()));
        let Err(Refusal::RequestResolved { status, resolved_by, .. }) = refused else { panic!("a repeat: {other:?}") };
        assert_eq!((status, resolved_by.as_deref()), (RequestStatus::Approved, Some("ada")));
    }
    assert!(matches!(decided(&life, resolve(id, "abe", said)), Err(Refusal::RequestResolved { .. })));
}

#[test]
fn each_kind_is_resolved_in_its_own_way() {
    let mut life = Life::begin(None);
    let (asked, merge) = (ask(&mut life, feedback(None)), ask(&mut life, approval(None, "one")));
    let place = |refused: Result<Decision, Refusal>| match refused {
        Err(Refusal::Invalid(faults)) => faults[0].place.clone(),
        other => panic!("not refused: {other:?}"),
    };
    let at = |pointer: &str| Place::Body(pointer.to_owned());
    assert_eq!(place(decided(&life, resolve(asked, "ada", answer("neither")))), at("/choice"));
    assert_eq!(place(decided(&life, resolve(asked, "ada", resolution(RequestStatus::Answered)))), at("/answer"));
    assert_eq!(place(decided(&life, resolve(asked, "ada", resolution(RequestStatus::Approved)))), at("/status"));
    assert_eq!(place(decided(&life, resolve(merge, "ada", answer("this")))), at("/status"));
    let digests = request(&life, merge).artifact_digests.clone();
    let of = |status, digests: Option<Vec<Digest>>| NewResolution { artifact_digests: digests, ..resolution(status) };
    for wrong in [
        of(RequestStatus::Approved, None),
        of(RequestStatus::Approved, Some(vec![digest("one")])),
        of(RequestStatus::Approved, Some(vec![digest("one"), digest("both"), digest("more")])),
        of(RequestStatus::Rejected, Some(vec![digest("other")])),
    ] {
        let refused = decided(&life, resolve(merge, "ada", wrong.clone()));
        assert_eq!(refused, Err(Refusal::DigestMismatch(digests.clone())), "{wrong:?}");
    }
    for right in [
        of(RequestStatus::Approved, Some(digests.clone())),
        of(RequestStatus::Rejected, Some(digests)),
        of(RequestStatus::Rejected, None),
    ] {
        assert!(matches!(decided(&life, resolve(merge, "ada", right)), Ok(Decision::Change(_))));
    }
    let free = NewResolution { answer: Some("Both.".to_owned()), ..resolution(RequestStatus::Answered) };
    for right in [free, answer("that")] {
        assert!(matches!(decided(&life, resolve(asked, "ada", right)), Ok(Decision::Change(_))));
    }
    assert_eq!(
        decided(&life, resolve(RequestId(Uuid::from_u128(7)), "ada", answer("this"))),
        Err(Refusal::RequestNotFound)
    );
}

#[test]
fn what_is_due_expires_in_its_order_and_the_first_says_why_the_task_ends() {
    let mut life = Life::begin(None);
    let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
    let later = ask(&mut life, NewRequest { expires_at: at(90), ..feedback(None) });
    let sooner = ask(&mut life, NewRequest { expires_at: at(80), ..approval(None, "one") });
    let settled = ask(&mut life, NewRequest { expires_at: at(70), ..feedback(None) });
    let not_due = ask(&mut life, NewRequest { expires_at: at(60), ..feedback(None) });
    life.write(resolve(settled, "ada", answer("this")));
    for nothing in [vec![], vec![settled], vec![RequestId(Uuid::from_u128(7))]] {
        assert_eq!(decided(&life, Command::ExpireRequests { due: nothing }), Ok(Decision::Unchanged));
    }
    let change = life.write(Command::ExpireRequests { due: vec![later, settled, sooner] });
    let expired = change.events().iter().filter(|event| event.event_type == "request.expired");
    let expired: Vec<_> = expired.map(|event| payload(event)["request_id"].clone()).collect();
    assert_eq!(expired, [sooner, later].map(|id| Value::from(id.0.to_string())));
    let ending = life.task.task().facts().ending.and_then(Ending::reason);
    assert_eq!(ending, Some(OutcomeReason::ApprovalExpired));
    assert_eq!((status(&life, sooner), status(&life, not_due)), (RequestStatus::Expired, RequestStatus::Void));
    let refused = decided(&life, resolve(sooner, "ada", resolution(RequestStatus::Rejected)));
    assert_eq!(refused, Err(Refusal::RequestExpired(at(80).unwrap())));
}

/// Whoever closes the task: what readers were shown as expired is told so, and only what is not may become void.
#[test]
fn a_close_expires_what_is_overdue_and_makes_the_rest_void() {
    let mut life = Life::begin(None);
    let (over, open) = (ask(&mut life, approval(None, "one")), ask(&mut life, feedback(None)));
    life.task = life.task.clone().with_overdue(vec![over]);
    let change = life.write(Command::Cancel { reason: Ok(None), force: Ok(false) });
    assert_eq!((status(&life, over), status(&life, open)), (RequestStatus::Expired, RequestStatus::Void));
    assert_eq!(change.guards().unexpired, [open]);
    assert_eq!(change.events().iter().filter(|event| event.event_type == "request.expired").count(), 1);
}
