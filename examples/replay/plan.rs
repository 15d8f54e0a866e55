//! What a harness would have reported of a recorded run.

use std::ops::Range;

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::keys::Keys;
use super::recording::{Recording, Step, Usage};
use super::text::{first_line, fit, shorten};

/// The size to which payloads are cut. The server takes 64 KiB; the rest is for the marks that its redaction leaves.
pub const PAYLOAD_BYTES: usize = 60 * 1024;
/// The most that a call's arguments may take of it.
const ARGUMENTS_BYTES: usize = 24 * 1024;
/// How deep arguments may nest.
const ARGUMENTS_DEPTH: usize = 64;
/// The longest name of a tool, in characters.
const TOOL_MAX: usize = 100;
/// The longest summary of a result, in characters.
const SUMMARY_MAX: usize = 200;
/// The longest description of a task, in characters.
const DESCRIPTION_MAX: usize = 8_000;

/// Commands that read, as their first word. Anything else may have changed something.
const READERS: [&str; 18] = [
    "cat",
    "decompile",
    "disassemble",
    "file",
    "find_file",
    "goto",
    "grep",
    "head",
    "ls",
    "open",
    "pwd",
    "scroll_down",
    "scroll_up",
    "search_dir",
    "search_file",
    "stat",
    "tail",
    "wc",
];
/// What lets a command do more than its first word says.
const SHELL_MARKS: [char; 7] = ['>', '|', ';', '&', '`', '$', '\n'];

/// An event as it is sent.
#[derive(Debug, Serialize)]
pub struct Event {
    /// Its id, which follows from the recording.
    #[serde(rename = "event_id")]
    pub id: Uuid,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Its payload, written once, so that every retry sends the same bytes.
    pub payload: Box<RawValue>,
}

/// One step: the reports of its model calls, and its events.
#[derive(Debug)]
pub struct PlannedStep {
    /// The model calls that were made for it.
    pub calls: Range<u64>,
    /// A turn, and a tool call if there was one.
    pub events: Vec<Event>,
}

/// Everything that is reported of a run, in order.
#[derive(Debug)]
pub struct Plan {
    /// The keys of this run.
    pub keys: Keys,
    /// The body that creates the task, but for the agent.
    pub task: Value,
    /// What comes before the first step.
    pub start: Vec<Event>,
    /// The steps.
    pub steps: Vec<PlannedStep>,
    /// What comes before the step in the middle.
    pub middle: Vec<Event>,
    /// What comes after the last step.
    pub end: Vec<Event>,
    /// What the model calls took.
    pub usage: Usage,
    /// The result that goes with the outcome.
    pub result: Value,
}

#[derive(Serialize)]
struct Turn<'a> {
    body: &'a str,
    step: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    observation: Option<&'a str>,
}

#[derive(Serialize)]
struct ToolCalled<'a> {
    tool: &'a str,
    mutating: bool,
    arguments: &'a Value,
    result: &'a str,
    result_summary: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    call_id: Option<&'a str>,
}

impl Plan {
    /// The plan of a recording under `keys`.
    pub fn of(recording: &Recording, keys: Keys) -> Self {
        let milestones = |place: &'static str, phase: &str, milestone: Option<&str>, done: usize| {
            let titles = ["Read the task", "Work through it step by step", "Hand in the result"];
            let todos: Vec<_> =
                titles.iter().enumerate().map(|(n, title)| json!({"title": title, "done": n < done})).collect();
            let changed = match milestone {
                Some(milestone) => json!({"phase": phase, "furthest_milestone": milestone}),
                None => json!({"phase": phase}),
            };
            vec![
                event(&keys, &format!("{place}/todos"), "todos.updated", &json!({"todos": todos})),
                event(&keys, &format!("{place}/phase"), "phase.changed", &changed),
            ]
        };
        let steps = recording.steps.len();
        let planned = |(index, step): (usize, &Step)| PlannedStep {
            calls: recording.usage.of_step(index, steps),
            events: step_events(&keys, index, step),
        };
        let status = recording.exit_status.as_deref().unwrap_or("unknown");
        let status = shorten(status, SUMMARY_MAX);
        let verdict = if status == "submitted" { "pass" } else { "fail" };
        let check =
            json!({"name": "recorded exit", "verdict": verdict, "value": status, "source": "/info/exit_status"});
        let mut end = vec![event(&keys, "end/check", "check.reported", &check)];
        end.extend(milestones("end", "done", Some("handed_in"), 3));
        Self {
            keys,
            task: task(recording),
            start: milestones("start", "investigate", None, 0),
            middle: milestones("middle", "work", Some("half_way"), 1),
            steps: recording.steps.iter().enumerate().map(planned).collect(),
            end,
            usage: recording.usage,
            result: result(recording, &status),
        }
    }

    /// The ids of all its events.
    pub fn event_ids(&self) -> impl Iterator<Item = Uuid> {
        let steps = self.steps.iter().flat_map(|step| &step.events);
        self.start.iter().chain(&self.middle).chain(steps).chain(&self.end).map(|event| event.id)
    }
}

fn event(keys: &Keys, place: &str, kind: &'static str, payload: &impl Serialize) -> Event {
    // Maps with text keys and finite numbers always serialize.
    let payload = to_raw_value(payload).expect("the payload is plain JSON");
    Event { id: keys.event(place), kind, payload }
}

fn task(recording: &Recording) -> Value {
    let name = shorten(if recording.name.is_empty() { "recording" } else { &recording.name }, SUMMARY_MAX);
    json!({
        "title": format!("Replay of {name}"),
        "description": shorten(&recording.task, DESCRIPTION_MAX),
        "subject": format!("recording/{name}"),
        "labels": {"source": "replay"},
        "params": {"sha256": hex::encode(recording.sha256), "steps": recording.steps.len()},
    })
}

fn result(recording: &Recording, status: &str) -> Value {
    let artifact = |submission: &String| {
        json!({
            "digest": format!("sha256:{}", hex::encode(Sha256::digest(submission))),
            "name": "submission",
            "media_type": "text/plain",
            "size": submission.len(),
        })
    };
    let summary = format!(
        "{} steps and {} model calls; the recorded run ended as: {status}.",
        recording.steps.len(),
        recording.usage.calls
    );
    json!({"summary": summary, "artifacts": recording.submission.iter().map(artifact).collect::<Vec<_>>()})
}

fn step_events(keys: &Keys, index: usize, step: &Step) -> Vec<Event> {
    let place = |what: &str| format!("step/{index}/{what}");
    let body = if step.response.trim().is_empty() { &step.thought } else { &step.response };
    let called = step.call.is_some() || !step.action.trim().is_empty();
    // Without a call the environment's answer would have no place of its own.
    let observation = (!called && !step.observation.is_empty()).then(|| fit(&step.observation, PAYLOAD_BYTES / 2));
    let room = PAYLOAD_BYTES - 256 - observation.as_deref().map_or(0, super::text::json_length);
    let body = fit(body, room);
    let turn = Turn { body: &body, step: index + 1, observation: observation.as_deref() };
    let mut events = vec![event(keys, &place("turn"), "turn", &turn)];
    if called {
        events.push(tool_called(keys, &place("tool"), step));
    }
    events
}

fn tool_called(keys: &Keys, place: &str, step: &Step) -> Event {
    let command = step.action.trim();
    let name = step.call.as_ref().map_or_else(|| command.split_whitespace().next(), |call| Some(call.name.trim()));
    let arguments = match &step.call {
        Some(call) => small(&call.arguments),
        None => small(&json!({"command": command})),
    };
    let summary = first_line(&step.observation, SUMMARY_MAX);
    let mut called = ToolCalled {
        tool: &shorten(name.unwrap_or("unknown"), TOOL_MAX),
        mutating: is_mutating(command),
        arguments: &arguments,
        result: "",
        result_summary: &summary,
        duration_ms: step.duration_ms,
        call_id: step.call.as_ref().and_then(|call| call.id.as_deref()).filter(|id| id.len() <= SUMMARY_MAX),
    };
    let taken = serde_json::to_string(&called).map_or(PAYLOAD_BYTES, |text| text.len());
    let result = fit(&step.observation, PAYLOAD_BYTES.saturating_sub(taken));
    called.result = &result;
    event(keys, place, "tool.called", &called)
}

/// The arguments, or their text where they are too large or too deep.
fn small(arguments: &Value) -> Value {
    let text = arguments.to_string();
    if text.len() <= ARGUMENTS_BYTES && depth(arguments) <= ARGUMENTS_DEPTH {
        return arguments.clone();
    }
    json!({"text": fit(&text, ARGUMENTS_BYTES)})
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or_default(),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or_default(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Whether a command may have changed something: yes, unless it is known to read only.
pub fn is_mutating(command: &str) -> bool {
    let word = command.split_whitespace().next().unwrap_or_default();
    !READERS.contains(&word) || command.trim().contains(SHELL_MARKS)
}
