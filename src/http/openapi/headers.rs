//! Headers of answers.

use serde_json::{Value, json};

fn header(description: &str, schema: &Value, required: bool) -> Value {
    json!({"description": description, "schema": schema, "required": required})
}

/// The operations that take a key and say when they answer by an earlier call of it.
const REPEATABLE: &[&str] = &[
    "create_task",
    "delegate_task",
    "open_session",
    "report_usage",
    "open_request",
    "resolve_request",
    "reply_to_task",
];

/// The headers that answers refer to.
pub(super) fn components() -> Value {
    let text = json!({"type": "string"});
    let seconds = json!({"type": "integer", "minimum": 1});
    let page = "RFC 8288: the next page as `rel=\"next\"`, when there is more";
    let mut etag = header("The version: the log's length, and what else the answer depends on", &text, false);
    etag["example"] = json!("\"17\"");
    json!({
        "X-Request-Id": header("The request, as the log names it: the caller's id or a fresh one", &text, true),
        "WWW-Authenticate": header("The scheme that is asked for", &text, true),
        "Retry-After": header("After how many seconds to try again", &seconds, true),
        "Link": header(page, &text, false),
        "LinkOn": header("RFC 8288: where the feed goes on, as `rel=\"next\"`", &text, true),
        "Preference-Applied": header("The wait that was granted of the one preferred", &text, false),
        "Idempotency-Replayed": header("`true`: a repeat, which wrote nothing", &only("true"), false),
        "Idempotency-Body-Match": header("`false`: the first call had another body", &only("false"), false),
        "ETag": etag
    })
}

fn only(name: &str) -> Value {
    json!({"type": "string", "pattern": format!("^{name}$")})
}

/// Gives every answer of an operation its headers.
pub(super) fn complete(operation: &mut Value) {
    let has = |name: &str| operation["parameters"].as_array().is_some_and(|all| all.iter().any(|p| p["name"] == name));
    let (pages, waits) = (has("cursor"), has("wait"));
    let link = match operation["operationId"].as_str() {
        Some("follow_events") => Some("LinkOn"),
        Some("read_events") => Some("Link"),
        Some(_) | None => pages.then_some("Link"),
    };
    let repeats = operation["operationId"].as_str().is_some_and(|id| REPEATABLE.contains(&id));
    let Some(responses) = operation["responses"].as_object_mut() else { return };
    let is_conditional = responses.contains_key("304");
    for (status, response) in responses {
        let mut refer = |name: &str, component: &str| {
            response["headers"][name] = json!({"$ref": format!("#/components/headers/{component}")});
        };
        refer("X-Request-Id", "X-Request-Id");
        match status.as_str() {
            "200" => {
                if let Some(component) = link {
                    refer("Link", component);
                }
                if waits {
                    refer("Preference-Applied", "Preference-Applied");
                }
                if repeats {
                    refer("Idempotency-Replayed", "Idempotency-Replayed");
                    refer("Idempotency-Body-Match", "Idempotency-Body-Match");
                }
            }
            "401" => refer("WWW-Authenticate", "WWW-Authenticate"),
            "429" | "503" => refer("Retry-After", "Retry-After"),
            _ => {}
        }
        if is_conditional && matches!(status.as_str(), "200" | "206" | "304") {
            refer("ETag", "ETag");
        }
    }
}
