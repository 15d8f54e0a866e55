use std::time::Duration;

use serde_json::json;

use super::stand_in::{Misfortune as M, Shared, serve};
use crate::replay::keys::Keys;
use crate::replay::plan::Plan;
use crate::replay::player::play;
use crate::replay::recording::Recording;
use crate::replay::summary::Summary;
use crate::replay::{Fault, Options};

fn plan(tokens: u64) -> Plan {
    let step = |action: &str| json!({"action": action, "observation": "x", "response": "I say."});
    let document = json!({"trajectory": [step("ls"), step("rm a"), step("submit")],
        "info": {"exit_status": "submitted", "model_stats": {"api_calls": 4, "tokens_sent": tokens}}});
    let recording = Recording::parse("run", document.to_string().as_bytes()).unwrap();
    Plan::of(&recording, Keys::of(&recording.sha256, "reviewer", ""))
}

async fn run(options: &Options, plan: &Plan) -> Result<Summary, Fault> {
    let mut lines = Vec::new();
    tokio::time::timeout(Duration::from_secs(20), play(options, plan, &mut |line| lines.push(line.to_owned())))
        .await
        .unwrap()
}

fn calls(known: &Shared, route: &str) -> usize {
    known.lock().unwrap().calls.iter().filter(|call| *call == route).count()
}

#[tokio::test]
async fn a_run_goes_from_creation_to_close() {
    let (known, options) = serve(&[]).await;
    let plan = plan(10);
    let summary = run(&options, &plan).await.unwrap();
    assert!(summary.is_as_intended(), "{summary}");
    assert_eq!((summary.task.as_str(), summary.tokens, summary.duplicates, summary.retries), ("T-1", (10, 0), 0, 0));
    let known = known.lock().unwrap();
    assert_eq!(known.bodies[0]["agent_slug"], "reviewer");
    assert_eq!(known.reports.iter().map(|(_, tokens)| tokens.unwrap()).collect::<Vec<_>>(), [2, 3, 2, 3]);
    let types: Vec<_> =
        known.log.iter().map(|(_, kind)| kind.as_str()).filter(|kind| *kind != "usage.reported").collect();
    let wanted = [
        "todos.updated",
        "phase.changed",
        "turn",
        "tool.called",
        "todos.updated",
        "phase.changed",
        "turn",
        "tool.called",
        "turn",
        "tool.called",
        "check.reported",
        "todos.updated",
        "phase.changed",
    ];
    assert_eq!(types, wanted);
}

#[tokio::test]
async fn a_second_run_adds_nothing() {
    let (known, options) = serve(&[]).await;
    let plan = plan(0);
    run(&options, &plan).await.unwrap();
    let length = known.lock().unwrap().log.len();
    let again = run(&options, &plan).await.unwrap();
    assert!(again.is_as_intended(), "{again}");
    assert_eq!((again.unmeasured, known.lock().unwrap().log.len()), (4, length));
    assert_eq!(calls(&known, "outcome"), 1, "a closed task is left alone");
}

#[tokio::test]
async fn a_run_that_was_cut_off_goes_on() {
    let (known, options) = serve(&[("usage", &[M::None, M::None, M::Status(403)])]).await;
    let plan = plan(10);
    assert!(matches!(run(&options, &plan).await, Err(Fault::Refused { status: 403, .. })));
    let begun = known.lock().unwrap().log.len();
    let summary = run(&options, &plan).await.unwrap();
    assert!(summary.is_as_intended(), "{summary}");
    // The events of the start, the first step and the middle; and the two reports of the first step.
    assert_eq!((summary.duplicates, begun), (2 + 2 + 2, 6 + 2));
    assert_eq!(known.lock().unwrap().sessions.len(), 1, "its session was still open");
}

#[tokio::test]
async fn answers_that_are_lost_change_nothing() {
    let lost = &[M::AnswerLost, M::None, M::AnswerLost][..];
    let routes = ["agent-tasks", "sessions", "events", "usage", "heartbeat", "outcome", "token"];
    let (known, options) = serve(&routes.map(|route| (route, lost))).await;
    let summary = run(&options, &plan(10)).await.unwrap();
    assert!(summary.is_as_intended(), "{summary}");
    assert!(summary.retries >= 10, "{summary}");
    assert_eq!(known.lock().unwrap().sessions.len(), 1);
}

#[tokio::test]
async fn a_cancel_is_obeyed_at_the_next_turn() {
    let (known, options) = serve(&[("heartbeat", &[M::None, M::Cancel])]).await;
    let summary = run(&options, &plan(10)).await.unwrap();
    assert_eq!(summary.outcome.as_deref(), Some("cancelled_by_human"));
    assert_eq!(summary.outcome_reason.as_deref(), Some("cancel_seen"));
    assert!(!summary.is_as_intended());
    assert_eq!(known.lock().unwrap().log.iter().filter(|(_, kind)| kind == "turn").count(), 1);
}

#[tokio::test]
async fn a_run_that_begins_under_a_cancel_confirms_it() {
    let (known, options) = serve(&[("sessions", &[M::Cancel])]).await;
    // An earlier run left a session open.
    let plan = plan(10);
    known.lock().unwrap().sessions.push((plan.keys.session(1), true));
    let summary = run(&options, &plan).await.unwrap();
    assert_eq!(summary.outcome.as_deref(), Some("cancelled_by_human"));
    assert_eq!((calls(&known, "outcome"), calls(&known, "events")), (1, 1), "it only reads the log");
}

#[tokio::test]
async fn a_pause_holds_the_run_until_it_is_resumed() {
    let (known, options) = serve(&[("heartbeat", &[M::None, M::Pause, M::None, M::Resume])]).await;
    let summary = run(&options, &plan(10)).await.unwrap();
    assert!(summary.is_as_intended(), "{summary}");
    // Three turns and the end, and two looks while it held.
    assert_eq!(calls(&known, "heartbeat"), 6);
}

#[tokio::test]
async fn a_lost_session_is_followed_by_the_next() {
    for route in ["events", "heartbeat", "outcome"] {
        let (known, options) = serve(&[(route, &[M::SessionLost])]).await;
        let plan = plan(10);
        let summary = run(&options, &plan).await.unwrap();
        assert!(summary.is_as_intended(), "{route}: {summary}");
        let keys: Vec<_> = known.lock().unwrap().sessions.iter().map(|(key, _)| key.clone()).collect();
        assert_eq!(keys, [plan.keys.session(1), plan.keys.session(2)], "{route}");
    }
}

#[tokio::test]
async fn a_budget_that_ends_stops_the_run_and_an_effect_is_not_lost() {
    let (known, options) = serve(&[("usage", &[M::None, M::Close])]).await;
    let summary = run(&options, &plan(10)).await.unwrap();
    assert_eq!(summary.outcome_reason.as_deref(), Some("budget"));
    assert!(!summary.is_as_intended());
    assert_eq!(calls(&known, "outcome"), 0);

    let (known, options) = serve(&[("events", &[M::None, M::Close])]).await;
    let summary = run(&options, &plan(10)).await.unwrap();
    assert!(!summary.is_as_intended());
    let known = known.lock().unwrap();
    assert_eq!(known.log.last().unwrap().1, "tool.called", "the tool was called before the task closed");
}

#[tokio::test]
async fn the_heart_beats_between_slow_steps() {
    let (known, options) = serve(&[]).await;
    let slow = Options { pace: Duration::from_millis(1_050), ..options };
    assert!(run(&slow, &plan(10)).await.unwrap().is_as_intended());
    assert!(calls(&known, "heartbeat") >= 4 + 3, "{}", calls(&known, "heartbeat"));
}
