use std::collections::HashSet;

use serde_json::{Value, json};

use crate::replay::keys::Keys;
use crate::replay::plan::{Event, PAYLOAD_BYTES, Plan, is_mutating};
use crate::replay::recording::{FunctionCall, Recording, Step};

fn recording(steps: Vec<Step>) -> Recording {
    let mut recording = Recording::parse("run", br#"{"trajectory": [{}], "info": {"submission": "diff"}}"#).unwrap();
    recording.usage.calls = steps.len() as u64;
    recording.steps = steps;
    recording
}

fn plan(steps: Vec<Step>) -> Plan {
    let recording = recording(steps);
    Plan::of(&recording, Keys::of(&recording.sha256, "agent", ""))
}

fn payload(event: &Event) -> Value {
    serde_json::from_str(event.payload.get()).unwrap()
}

fn step(action: &str, observation: &str) -> Step {
    Step {
        action: action.to_owned(),
        observation: observation.to_owned(),
        response: "I say.".to_owned(),
        thought: "I think.".to_owned(),
        ..Step::default()
    }
}

#[test]
fn a_step_is_a_turn_and_a_tool_call() {
    let plan = plan(vec![Step { duration_ms: Some(12), ..step("ls -F src\n", "\na.rs\nb.rs\n") }]);
    let events = &plan.steps[0].events;
    assert_eq!(events.iter().map(|event| event.kind).collect::<Vec<_>>(), ["turn", "tool.called"]);
    assert_eq!(payload(&events[0]), json!({"body": "I say.", "step": 1}));
    let called = json!({"tool": "ls", "mutating": false, "arguments": {"command": "ls -F src"},
        "result": "\na.rs\nb.rs\n", "result_summary": "a.rs", "duration_ms": 12});
    assert_eq!(payload(&events[1]), called);
}

#[test]
fn a_function_call_names_the_tool() {
    let call = FunctionCall { id: Some("c1".to_owned()), name: "bash".to_owned(), arguments: json!({"command": "ls"}) };
    let plan = plan(vec![Step { call: Some(call), ..step("ls", "") }]);
    let called = payload(&plan.steps[0].events[1]);
    assert_eq!(called["tool"], "bash");
    assert_eq!(called["call_id"], "c1");
    assert_eq!(called["arguments"], json!({"command": "ls"}));
    assert_eq!(called["mutating"], false);
}

#[test]
fn a_step_without_a_call_is_a_turn_alone() {
    let plan = plan(vec![Step { response: String::new(), ..step(" \n", "exceeded the limit") }]);
    let events = &plan.steps[0].events;
    assert_eq!(events.len(), 1);
    assert_eq!(payload(&events[0]), json!({"body": "I think.", "step": 1, "observation": "exceeded the limit"}));
}

#[test]
fn every_payload_fits_whatever_the_recording_holds() {
    let deep = (0..500).fold(json!(1), |inner, _| json!([inner]));
    let wide = json!({"text": "\u{1}".repeat(50_000)});
    let large = "\"é\u{1}".repeat(40_000);
    let mut steps = vec![step(&large, &large), step("", &large), step(&"x".repeat(1_000_000), "")];
    steps.extend([deep, wide].map(|arguments| Step {
        response: large.clone(),
        call: Some(FunctionCall { id: Some(large.clone()), name: large.clone(), arguments }),
        ..step("x", &large)
    }));
    for step in plan(steps).steps {
        for event in step.events {
            let length = event.payload.get().len();
            assert!(length <= PAYLOAD_BYTES, "{}: {length}", event.kind);
            let payload = payload(&event);
            assert!(payload["tool"].as_str().is_none_or(|tool| tool.chars().count() <= 100));
        }
    }
}

#[test]
fn arguments_that_nest_too_deep_for_the_log_are_text() {
    let deep = (0..65).fold(json!(1), |inner, _| json!([inner]));
    let call = |arguments| FunctionCall { id: None, name: "x".to_owned(), arguments };
    let plan = plan(vec![
        Step { call: Some(call(deep[0].clone())), ..step("x", "") },
        Step { call: Some(call(deep.clone())), ..step("x", "") },
    ]);
    let arguments = |index: usize| payload(&plan.steps[index].events[1])["arguments"].clone();
    assert_eq!((arguments(0), arguments(1)), (deep[0].clone(), json!({"text": deep.to_string()})));
}

#[test]
fn an_observation_that_fits_is_kept_whole() {
    let observation = "x".repeat(50_000);
    let plan = plan(vec![step("cat a", &observation)]);
    assert_eq!(payload(&plan.steps[0].events[1])["result"], json!(observation));
}

#[test]
fn commands_change_something_unless_they_are_known_to_read() {
    for command in ["ls -F", "cat a.py", "find_file \"a.py\" src", "open a.py 293\n", "file release"] {
        assert!(!is_mutating(command), "{command}");
    }
    for command in
        ["", "rm a", "python a.py", "edit 1:1\nx", "cat a > b", "ls; rm a", "cat $(rm a)", "ls\nrm a", "submit"]
    {
        assert!(is_mutating(command), "{command}");
    }
}

#[test]
fn ids_follow_from_the_content_and_are_distinct() {
    let steps = || vec![step("ls", "a"), step("ls", "a"), step("rm a", "")];
    let (one, same) = (plan(steps()), plan(steps()));
    let ids: Vec<_> = one.event_ids().collect();
    assert_eq!(ids, same.event_ids().collect::<Vec<_>>());
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
    assert_eq!(ids.len(), 2 + 2 + 6 + 3);
    let keys = |content: u8, agent: &str, run: &str| Keys::of(&[content; 32], agent, run).task();
    let all = [keys(1, "a", ""), keys(2, "a", ""), keys(1, "b", ""), keys(1, "a", "2"), keys(1, "", "a")];
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
    let keys = Keys::of(&[1; 32], "a", "");
    assert_eq!(keys.session(1), keys.task());
    assert_eq!(keys.session(3), format!("{}-3", keys.task()));
    assert_eq!(keys.usage(7), format!("{}-call-7", keys.task()));
}

#[test]
fn the_task_and_its_result_are_within_the_servers_limits() {
    let mut recording = recording(vec![step("ls", "")]);
    recording.name = "é".repeat(2_000);
    recording.task = "é".repeat(50_000);
    recording.exit_status = Some("é".repeat(5_000));
    let plan = Plan::of(&recording, Keys::of(&recording.sha256, "agent", ""));
    let characters = |name: &str| plan.task[name].as_str().unwrap().chars().count();
    assert!(characters("title") <= 500 && characters("subject") <= 500 && characters("description") <= 20_000);
    assert!(plan.result["summary"].as_str().unwrap().chars().count() < 500);
    assert_eq!(plan.result["artifacts"][0]["size"], 4);
    assert_eq!(payload(&plan.end[0])["verdict"], "fail");
}
