//! What a change carries beside the state after it: who wrote it, what was redacted, what asked for it.

use mandate::domain::aggregate::Aggregate;
use mandate::domain::change::{Change, Context, Decision};
use mandate::domain::command::{ClaimedOutcome, Command, NewSession};
use mandate::domain::event::{Actor, ActorKind, Channel, EventType};
use mandate::domain::ids::{EventId, ProjectId, SessionId};
use mandate::domain::limits::PAYLOAD_BYTES_MAX;
use mandate::domain::outcome::{Ending, Outcome};
use mandate::domain::payload::{JsonText, Project};
use mandate::domain::refusal::Refusal;
use mandate::domain::relation::Edit;
use uuid::Uuid;

use crate::cases::{append, close, open, outcome};
use crate::life::{Life, decided_by};

/// What `command` of ada's writes, in whose body `/reason` was redacted.
fn written(task: &Aggregate, command: Command) -> Result<Decision, Refusal> {
    let actor = Actor { kind: ActorKind::Human, id: "ada".to_owned(), channel: Some(Channel::Api) };
    decided_by(actor, |context: &mut Context<'_>| {
        context.redacted = vec!["/reason".to_owned()];
        task.decide(command, context)
    })
}

fn change(task: &Aggregate, command: Command) -> Change {
    match written(task, command) {
        Ok(Decision::Change(change)) => *change,
        other => panic!("nothing was written: {other:?}"),
    }
}

/// The types of its events, each with whether it carries what the body had redacted.
fn marked(change: &Change) -> Vec<(&str, bool)> {
    let marked = |redacted: &[String]| match redacted {
        [] => false,
        [one] if one == "/reason" => true,
        other => panic!("{other:?}"),
    };
    change.events().iter().map(|event| (event.event_type.as_ref(), marked(&event.redacted))).collect()
}

#[test]
fn what_a_body_had_redacted_is_marked_in_the_event_that_has_its_content_and_in_no_other() {
    let mut life = Life::begin(None);
    let one = open(&mut life, "one");
    let said = Command::CloseSession { session: one, reason: Ok("done".to_owned()) };
    assert_eq!(marked(&change(&life.task, said)), [("session.closed", true), ("state.changed", false)]);
    let taken = NewSession { session_key: "two".to_owned(), harness_instance: None, takeover: true };
    let taken = Command::OpenSession { session: Ok(taken), max_concurrent_tasks: None };
    assert_eq!(marked(&change(&life.task, taken)), [("session.closed", false), ("session.opened", true)]);
    let lost = Command::LoseSessions { sessions: vec![one], silent_since: life.now };
    assert_eq!(marked(&change(&life.task, lost)), [("session.closed", false), ("state.changed", false)]);
    let closes = [("session.closed", false), ("state.changed", false)];
    let [first, second] = closes;
    assert_eq!(marked(&change(&life.task, outcome())), [first, second, ("outcome.set", false)]);
    let pause = |reason: Option<&str>| Command::Pause { reason: Ok(reason.map(str::to_owned)) };
    assert_eq!(marked(&change(&life.task, pause(Some("why"))))[0], ("control.changed", true));
    assert_eq!(marked(&change(&life.task, pause(None)))[0], ("control.changed", false));
}

#[test]
fn a_control_names_who_changed_it_and_a_change_the_body_that_asked_for_it() {
    let task = Life::begin(None).task;
    let pause = change(&task, Command::Pause { reason: Ok(None) });
    let payload: serde_json::Value = serde_json::from_str(&pause.events()[0].payload).unwrap();
    assert_eq!(payload["actor"], "ada");
    assert_eq!(pause.body_hash(), [7; 32]);
}

#[test]
fn an_association_is_written_with_its_row() {
    let task = Life::begin(None).task;
    let project = ProjectId(Uuid::from_u128(77));
    let associate = Command::AssociateProject { project, slug: "shop".to_owned(), found: None };
    let added = change(&task, associate);
    let row = Project {
        project_id: project,
        project_slug: "shop".to_owned(),
        added_by_kind: "human".to_owned(),
        added_by: "ada".to_owned(),
        added_at: added.events()[0].recorded_at,
    };
    assert_eq!(added.project(), Some(&Edit::Add(row.clone())));
    let removed = change(&task, Command::DissociateProject { project, found: Some(row.clone()) });
    assert_eq!(removed.project(), Some(&Edit::Remove(row)));
    assert_eq!(change(&task, Command::Pause { reason: Ok(None) }).project(), None);
}

#[test]
fn once_a_session_was_taken_over_a_write_must_name_its_own() {
    let mut life = Life::begin(None);
    let one = open(&mut life, "one");
    life.write(append(None, EventType::Turn, 900));
    let taken = NewSession { session_key: "two".to_owned(), harness_instance: None, takeover: true };
    life.write(Command::OpenSession { session: Ok(taken), max_concurrent_tasks: None });
    let nobody = || append(None, EventType::Turn, 901);
    assert_eq!(life.decide(&life.task, nobody()), Err(Refusal::SessionRequired));
    // For good: whatever else closes afterwards.
    let two = life.task.sessions().iter().find(|session| session.session_key == "two").unwrap().id;
    life.write(close(two));
    assert_eq!(life.decide(&life.task, nobody()), Err(Refusal::SessionRequired));
    let superseded = life.decide(&life.task, append(Some(one), EventType::Turn, 902));
    assert!(matches!(superseded, Err(Refusal::SessionSuperseded { .. })), "{superseded:?}");
}

#[test]
fn a_snapshot_that_is_kept_forgets_what_is_over() {
    let mut life = Life::begin(None);
    let (one, two) = (open(&mut life, "one"), open(&mut life, "two"));
    life.write(close(one));
    let mut kept = life.task.clone().with_overdue(vec![Uuid::from_u128(9).into()]);
    kept.trim();
    let sessions: Vec<SessionId> = kept.sessions().iter().map(|session| session.id).collect();
    assert_eq!(sessions, [two]);
    let overdue = kept.clone().with_overdue(Vec::new());
    assert_eq!(kept, overdue);
}

/// A reply of so many characters.
fn reply(length: usize) -> Command {
    Command::Reply { event_id: EventId(Uuid::from_u128(3)), body: Ok("x".repeat(length)), hold: Ok(false) }
}

#[test]
fn what_the_server_writes_of_a_body_is_within_the_limit_of_payloads() {
    // 64 KiB of JSON.
    assert_eq!(PAYLOAD_BYTES_MAX, 65_536);
    let task = Life::begin(None).task;
    let around = r#"{"body":""}"#.len();
    let most = change(&task, reply(PAYLOAD_BYTES_MAX - around));
    assert_eq!(most.events()[0].payload.len(), PAYLOAD_BYTES_MAX);
    let refused = written(&task, reply(PAYLOAD_BYTES_MAX - around + 1));
    assert_eq!(refused, Err(Refusal::PayloadTooLarge { limit: PAYLOAD_BYTES_MAX, what: String::new() }));
}

#[test]
fn a_result_is_kept_to_the_letter() {
    let mut life = Life::begin(None);
    let ending = Ending::new(Outcome::DoneActed, None).unwrap();
    let text = r#"{"summary":"s","ratio":1.0E400}"#;
    let claimed = ClaimedOutcome { ending, result: Some(JsonText::new(text)) };
    let change = life.write(Command::SetOutcome { session: Ok(None), outcome: Ok(claimed) });
    assert_eq!(life.task.task().facts().result.as_ref().map(JsonText::as_str), Some(text));
    assert!(change.events().iter().any(|event| event.payload.contains(text)), "{:?}", change.events());
}
