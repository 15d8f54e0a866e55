//! Recorded runs of SWE-agent: `.traj` files.

use std::fs::File;
use std::io::Read as _;
use std::ops::Range;
use std::path::Path;

use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

/// The largest file that is read.
pub const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// The most steps that a file may have.
pub const STEPS_MAX: usize = 100_000;
/// The most model calls that a file may claim.
pub const CALLS_MAX: u64 = 100_000;
/// The most tokens that a file may claim: a report may name no more.
pub const TOKENS_MAX: u64 = 1_000_000_000_000;

/// Why a file is no recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordingFault {
    /// It cannot be read.
    #[error("cannot read the file: {0}")]
    File(#[from] std::io::Error),
    /// It is too large.
    #[error("the file is larger than {} MiB", FILE_BYTES_MAX / (1024 * 1024))]
    Large,
    /// It is no JSON.
    #[error("not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// Something in it is not what it should be.
    #[error("{place} {what}")]
    Shape {
        /// JSON pointer.
        place: String,
        /// What is wrong.
        what: String,
    },
}

/// A recorded run.
#[derive(Debug)]
pub struct Recording {
    /// The file's name without its extension, for people.
    pub name: String,
    /// SHA-256 of the file.
    pub sha256: [u8; 32],
    /// What the agent was asked to do; empty when the file does not say.
    pub task: String,
    /// What it did, in order; at least one.
    pub steps: Vec<Step>,
    /// What that took.
    pub usage: Usage,
    /// How the run ended.
    pub exit_status: Option<String>,
    /// What it handed in.
    pub submission: Option<String>,
}

/// One turn of the model and what came of it.
#[derive(Debug, Default)]
pub struct Step {
    /// The command; blank when the model called no tool.
    pub action: String,
    /// What the environment answered.
    pub observation: String,
    /// All that the model said.
    pub response: String,
    /// What it said beside the command.
    pub thought: String,
    /// How long the command took, in milliseconds.
    pub duration_ms: Option<u64>,
    /// The function call that the command was made from.
    pub call: Option<FunctionCall>,
}

/// A function call of the model.
#[derive(Debug)]
pub struct FunctionCall {
    /// The provider's id for it.
    pub id: Option<String>,
    /// The function.
    pub name: String,
    /// Its arguments.
    pub arguments: Value,
}

/// What a run took in total.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Calls of the model.
    pub calls: u64,
    /// Tokens in and out; absent when nobody counted.
    pub tokens: Option<(u64, u64)>,
}

impl Usage {
    /// The tokens of one call, from 0; those of all calls add up to the total exactly.
    pub fn of_call(&self, call: u64) -> Option<(u64, u64)> {
        let (tokens_in, tokens_out) = self.tokens?;
        Some((spread(tokens_in, self.calls, call), spread(tokens_out, self.calls, call)))
    }

    /// The calls that were made for one of `steps` steps.
    pub fn of_step(&self, step: usize, steps: usize) -> Range<u64> {
        let before = |step: usize| (step as u64 * self.calls).div_ceil(steps.max(1) as u64);
        before(step)..before(step + 1)
    }
}

/// The part of `total` that falls to the `index`-th of `parts`: whole numbers that differ by at most one and add up.
pub fn spread(total: u64, parts: u64, index: u64) -> u64 {
    let until = |end: u64| u128::from(total) * u128::from(end.min(parts)) / u128::from(parts.max(1));
    // A difference of two numbers of at most `total`.
    u64::try_from(until(index + 1) - until(index.min(parts))).unwrap_or(total)
}

impl Recording {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, RecordingFault> {
        let mut bytes = Vec::new();
        File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        Self::parse(&name.unwrap_or_default(), &bytes)
    }

    /// Reads the content of a file.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Self, RecordingFault> {
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(RecordingFault::Large);
        }
        let mut document: Value = serde_json::from_slice(bytes)?;
        clean(&mut document);
        let root = object(&document, "the file")?;
        let trajectory = list(root, "/trajectory", "trajectory")?;
        if trajectory.is_empty() || trajectory.len() > STEPS_MAX {
            return Err(shape("/trajectory", format!("must have 1 to {STEPS_MAX} steps, not {}", trajectory.len())));
        }
        let read = |(index, step)| read_step(step, &format!("/trajectory/{index}"));
        let mut steps = trajectory.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
        let history = match root.get("history") {
            None | Some(Value::Null) => &[],
            Some(_) => list(root, "/history", "history")?,
        };
        assign_calls(&mut steps, history)?;
        let nothing = Map::new();
        let info = match root.get("info") {
            None | Some(Value::Null) => &nothing,
            Some(info) => object(info, "/info")?,
        };
        Ok(Self {
            name: name.to_owned(),
            sha256: Sha256::digest(bytes).into(),
            task: history.iter().find_map(asked).unwrap_or_default(),
            usage: read_usage(info, steps.len() as u64)?,
            steps,
            exit_status: text(info, "/info", "exit_status")?.filter(|status| !status.trim().is_empty()),
            submission: text(info, "/info", "submission")?.filter(|submission| !submission.is_empty()),
        })
    }
}

fn shape(place: impl Into<String>, what: impl Into<String>) -> RecordingFault {
    RecordingFault::Shape { place: place.into(), what: what.into() }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// U+0000 has no place in a log; recordings of binary output have it.
fn clean(value: &mut Value) {
    match value {
        Value::String(text) if text.contains('\0') => *text = text.replace('\0', "\u{fffd}"),
        Value::Array(items) => items.iter_mut().for_each(clean),
        Value::Object(members) => {
            if members.keys().any(|key| key.contains('\0')) {
                *members = std::mem::take(members).into_iter().map(|(k, v)| (k.replace('\0', "\u{fffd}"), v)).collect();
            }
            members.values_mut().for_each(clean);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn object<'a>(value: &'a Value, place: &str) -> Result<&'a Map<String, Value>, RecordingFault> {
    value.as_object().ok_or_else(|| shape(place, format!("must be an object, not {}", kind(value))))
}

fn list<'a>(of: &'a Map<String, Value>, place: &str, name: &str) -> Result<&'a [Value], RecordingFault> {
    let value = of.get(name).ok_or_else(|| shape(place, "is missing: this is no recording of SWE-agent"))?;
    let items = value.as_array().ok_or_else(|| shape(place, format!("must be an array, not {}", kind(value))))?;
    Ok(items)
}

fn text(of: &Map<String, Value>, place: &str, name: &str) -> Result<Option<String>, RecordingFault> {
    match of.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => Err(shape(format!("{place}/{name}"), format!("must be a string, not {}", kind(other)))),
    }
}

fn count(of: &Map<String, Value>, place: &str, name: &str, most: u64) -> Result<Option<u64>, RecordingFault> {
    match of.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64() {
            Some(number) if number <= most => Ok(Some(number)),
            Some(_) | None => {
                Err(shape(format!("{place}/{name}"), format!("must be a whole number from 0 to {most}, not {value}")))
            }
        },
    }
}

fn read_step(step: &Value, place: &str) -> Result<Step, RecordingFault> {
    let members = object(step, place)?;
    let member = |name: &str| text(members, place, name).map(Option::unwrap_or_default);
    let duration_ms = match members.get("execution_time") {
        None | Some(Value::Null) => None,
        Some(value) => {
            let fault = || shape(format!("{place}/execution_time"), format!("must be seconds, not {value}"));
            let seconds = value.as_f64().ok_or_else(fault)?;
            let duration = std::time::Duration::try_from_secs_f64(seconds).map_err(|_| fault())?;
            Some(u64::try_from(duration.as_millis()).map_err(|_| fault())?)
        }
    };
    Ok(Step {
        action: member("action")?,
        observation: member("observation")?,
        response: member("response")?,
        thought: member("thought")?,
        duration_ms,
        call: None,
    })
}

fn is_demonstration(message: &Value) -> bool {
    message["is_demo"].as_bool().unwrap_or_default()
}

/// What the first message of a user asks for.
fn asked(message: &Value) -> Option<String> {
    if message["role"] != "user" || is_demonstration(message) {
        return None;
    }
    match &message["content"] {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => Some(parts.iter().filter_map(|part| part["text"].as_str()).collect()),
        _ => None,
    }
}

/// Gives the steps the function calls of the history. Messages that led to no step (a model that was asked again) are
/// passed over; where history and steps differ in more than that, steps go without.
fn assign_calls(steps: &mut [Step], history: &[Value]) -> Result<(), RecordingFault> {
    let mut rest = steps.iter_mut().peekable();
    for (index, message) in history.iter().enumerate() {
        if message["role"] != "assistant" || is_demonstration(message) {
            continue;
        }
        let same = |step: &&mut Step| message["action"].as_str().is_some_and(|action| action == step.action);
        if let Some(step) = rest.next_if(same) {
            step.call = read_call(message, &format!("/history/{index}/tool_calls/0"))?;
        }
    }
    Ok(())
}

fn read_call(message: &Value, place: &str) -> Result<Option<FunctionCall>, RecordingFault> {
    let Some(call) = message["tool_calls"].get(0) else { return Ok(None) };
    let function = object(&call["function"], &format!("{place}/function"))?;
    let name = text(function, &format!("{place}/function"), "name")?.filter(|name| !name.trim().is_empty());
    let name = name.ok_or_else(|| shape(format!("{place}/function/name"), "is missing"))?;
    let arguments = match function.get("arguments") {
        None => Value::Null,
        Some(Value::String(text)) => match serde_json::from_str(text) {
            Ok(mut arguments) => {
                clean(&mut arguments);
                arguments
            }
            // What a model writes need not be JSON.
            Err(_) => Value::String(text.clone()),
        },
        Some(other) => other.clone(),
    };
    let id = call["id"].as_str().filter(|id| !id.is_empty()).map(str::to_owned);
    Ok(Some(FunctionCall { id, name, arguments }))
}

/// The totals. A file without counts writes zeros: nobody counted. A file without calls had one for each step.
fn read_usage(info: &Map<String, Value>, steps: u64) -> Result<Usage, RecordingFault> {
    const PLACE: &str = "/info/model_stats";
    let stats = match info.get("model_stats") {
        None | Some(Value::Null) => return Ok(Usage { calls: steps, tokens: None }),
        Some(stats) => object(stats, PLACE)?,
    };
    let calls = count(stats, PLACE, "api_calls", CALLS_MAX)?.filter(|calls| *calls > 0).unwrap_or(steps);
    let sent = count(stats, PLACE, "tokens_sent", TOKENS_MAX)?.unwrap_or_default();
    let received = count(stats, PLACE, "tokens_received", TOKENS_MAX)?.unwrap_or_default();
    let tokens = (sent > 0 || received > 0).then_some((sent, received));
    Ok(Usage { calls, tokens })
}
