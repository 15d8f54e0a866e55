//! Examples of bodies, made from their schemas where a handler gives none.

use serde_json::{Map, Value, json};

const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";
const TIME: &str = "2026-01-31T09:30:00.000001Z";
const DIGEST: &str = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
/// How deep a schema may name itself before its example is cut off.
const DEPTH_MAX: u32 = 12;

/// What fields of these names hold in examples, so that one example tells one story: a task that runs.
fn by_name(name: &str) -> Option<Value> {
    Some(match name {
        "short_id" => json!("T-12"),
        "agent_slug" => json!("reviewer"),
        "title" => json!("Review pull request 42"),
        "description" => json!("Look for missing tests."),
        "owner" | "actor_id" => json!("ada"),
        "actor_kind" => json!("human"),
        "channel" => json!("api"),
        "type" => json!("turn"),
        "payload" => json!({"body": "Please look at the tests first."}),
        "status" => json!("running"),
        "control" => json!("run"),
        "result" => Value::Null,
        "labels" => json!({"team": "core"}),
        "digest" | "log_digest" => json!(DIGEST),
        "budget" => json!("5"),
        "budget_remaining" => json!("4.815081875"),
        "cost" | "cost_total" => json!("0.184918125"),
        "set_aside" => json!("0"),
        "budget_certain" | "measured" => json!(true),
        "tokens_in" => json!(5_005),
        "tokens_out" => json!(1_744),
        "cache_read_tokens" => json!(257_955),
        "cache_write_tokens" | "open_requests" | "unmeasured_reports" | "unpriced_reports" => json!(0),
        "open_sessions" | "generation" | "schema_version" | "agent_version" | "prompt_version" => json!(1),
        "seq" | "last_seq" => json!(4),
        "heartbeat_interval_seconds" => json!(30),
        "session_key" => json!("run-1a2b3c4d"),
        "idempotency_key" => json!("run-1a2b3c4d-1"),
        "model_id" => json!("sonnet"),
        "redacted" | "duplicates" | "artifacts" | "artifact_digests" => json!([]),
        "options" => json!(["yes", "no"]),
        _ => return None,
    })
}

/// Gives every body of `operation` that has none an example.
pub(super) fn complete(operation: &mut Value, schemas: &Map<String, Value>) {
    let mut contents = Vec::new();
    if let Some(body) = operation.pointer_mut("/requestBody/content").map(Value::take) {
        contents.push(("/requestBody/content".to_owned(), body));
    }
    let statuses: Vec<String> =
        operation["responses"].as_object().map(|all| all.keys().cloned().collect()).unwrap_or_default();
    for status in statuses {
        let pointer = format!("/responses/{status}/content");
        if let Some(content) = operation.pointer_mut(&pointer).map(Value::take) {
            contents.push((pointer, content));
        }
    }
    for (pointer, mut content) in contents {
        for (media_type, body) in content.as_object_mut().into_iter().flatten() {
            let has_one = body.get("example").is_some() || body.get("examples").is_some();
            let is_structured = media_type.contains("json") || media_type.contains("urlencoded");
            if is_structured && !has_one {
                body["example"] = of(&body["schema"], None, schemas, 0);
            }
        }
        if let Some(place) = operation.pointer_mut(&pointer) {
            *place = content;
        }
    }
}

/// The example of a value of `schema` in a field of that name.
fn of(schema: &Value, name: Option<&str>, schemas: &Map<String, Value>, depth: u32) -> Value {
    if let Some(example) = schema.get("example") {
        return example.clone();
    }
    if depth > DEPTH_MAX {
        return Value::Null;
    }
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        let target = reference.rsplit('/').next().and_then(|name| schemas.get(name));
        return target.map_or(Value::Null, |target| of(target, None, schemas, depth + 1));
    }
    if let Some(parts) = schema.get("allOf").and_then(Value::as_array) {
        let mut whole = Map::new();
        for part in parts {
            if let Value::Object(members) = of(part, name, schemas, depth + 1) {
                whole.extend(members);
            }
        }
        return Value::Object(whole);
    }
    let choices = schema.get("oneOf").or_else(|| schema.get("anyOf")).and_then(Value::as_array);
    if let Some(choices) = choices {
        // A field that may be null is null, a body that may be absent is there.
        let is_null = |choice: &&Value| choice["type"] == "null";
        let null = name.and_then(|_| choices.iter().find(is_null));
        let choice = null.or_else(|| choices.iter().find(|choice| !is_null(choice)));
        return choice.map_or(Value::Null, |choice| of(choice, name, schemas, depth + 1));
    }
    if let Some(value) = name.and_then(by_name).filter(|value| fits(schema, value)) {
        return value;
    }
    if is_of_type(schema, "null") {
        return Value::Null;
    }
    if let Some(first) = schema["x-extensible-enum"].as_array().and_then(|names| names.first()) {
        return first.clone();
    }
    if is_of_type(schema, "array") {
        return json!([of(&schema["items"], None, schemas, depth + 1)]);
    }
    if let Some(properties) = schema["properties"].as_object() {
        let example =
            |(name, property): (&String, &Value)| (name.clone(), of(property, Some(name.as_str()), schemas, depth + 1));
        return Value::Object(properties.iter().map(example).collect());
    }
    match (schema["type"].as_str(), schema["format"].as_str()) {
        (Some("string"), Some("uuid")) => json!(ID),
        (Some("string"), Some("date-time")) => json!(TIME),
        (Some("string"), _) => json!("text"),
        (Some("integer" | "number"), _) => json!(1),
        (Some("boolean"), _) => json!(false),
        _ => json!({}),
    }
}

fn is_of_type(schema: &Value, wanted: &str) -> bool {
    match &schema["type"] {
        Value::String(name) => name == wanted,
        Value::Array(names) => names.iter().any(|name| name == wanted),
        _ => false,
    }
}

/// Whether the kind of `value` is one that `schema` names; a schema without a type takes any.
fn fits(schema: &Value, value: &Value) -> bool {
    let names_set = schema["x-extensible-enum"].as_array();
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let known = names_set.is_none_or(|names| !value.is_string() || names.contains(value));
    known && (schema["type"].is_null() || is_of_type(schema, kind))
}
