//! The OpenAPI document: generated from the handlers, completed here with what holds everywhere.

mod examples;
mod headers;
mod links;
mod rules;

use std::sync::LazyLock;

use serde_json::{Map, Value, json};
use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Document;

use crate::directory::records::Action;
use crate::domain::event::{ActorKind, Channel};
use crate::domain::outcome::{Outcome, OutcomeReason};
use crate::domain::principal::Role;
use crate::domain::request::{RequestKind, RequestStatus};
use crate::domain::status::{Control, Status};
use crate::domain::task::Origin;

#[derive(OpenApi)]
#[openapi(info(
    title = "Mandate",
    description = "The system of record and control point for the work of AI agents.",
    license(name = "Unlicensed")
))]
struct Base;

/// What the routes are added to.
pub(super) fn base() -> Document {
    Base::openapi()
}

/// The whole document.
pub fn document() -> Value {
    let (_, document) = super::routes().split_for_parts();
    let mut document = serde_json::to_value(document).unwrap_or_default();
    complete(&mut document);
    document
}

/// The document's text, as it is committed and served.
pub(super) fn text() -> &'static str {
    static TEXT: LazyLock<String> =
        LazyLock::new(|| serde_json::to_string_pretty(&document()).map(|text| text + "\n").unwrap_or_default());
    &TEXT
}

/// The closed sets behind strings. Readers must expect more: the sets grow.
fn open_enums() -> Vec<(&'static str, &'static str, &'static [&'static str])> {
    vec![
        ("TaskView", "status", Status::NAMES),
        ("TaskView", "control", Control::NAMES),
        ("TaskView", "outcome", Outcome::NAMES),
        ("TaskView", "outcome_reason", OutcomeReason::NAMES),
        ("TaskState", "status", Status::NAMES),
        ("TaskState", "control", Control::NAMES),
        ("TaskState", "outcome", Outcome::NAMES),
        ("TaskState", "outcome_reason", OutcomeReason::NAMES),
        ("OriginView", "kind", Origin::KINDS),
        ("RelatedTaskView", "status", Status::NAMES),
        ("RelatedTaskView", "outcome", Outcome::NAMES),
        ("RelatedTaskView", "outcome_reason", OutcomeReason::NAMES),
        ("RelatedTaskView", "created_by_kind", ActorKind::NAMES),
        ("AssociatedProjectView", "added_by_kind", ActorKind::NAMES),
        ("RequestView", "kind", RequestKind::NAMES),
        ("RequestView", "status", RequestStatus::NAMES),
        ("ResolutionView", "channel", Channel::NAMES),
        ("EventView", "type", crate::domain::event::EventType::NAMES),
        ("EventView", "actor_kind", ActorKind::NAMES),
        ("EventView", "channel", Channel::NAMES),
        ("FeedTaskView", "status", Status::NAMES),
        ("MemberView", "roles", Role::NAMES),
        ("AuditView", "actor_kind", ActorKind::NAMES),
        ("AuditView", "action", Action::NAMES),
        ("AuditView", "subject_kind", crate::service::SUBJECT_KINDS),
    ]
}

fn complete(document: &mut Value) {
    document["info"]["version"] = json!(env!("CARGO_PKG_VERSION"));
    document["components"]["schemas"]["Problem"] = problem_schema();
    document["components"]["securitySchemes"] = json!({
        "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
    });
    for (schema, property, names) in open_enums() {
        // Looked up, not indexed: an index would add what is not there.
        let place = document.pointer_mut(&format!("/components/schemas/{schema}/properties/{property}"));
        if let Some(place) = place.and_then(Value::as_object_mut) {
            let place = match place.get_mut("items").and_then(Value::as_object_mut) {
                Some(items) => items,
                None => place,
            };
            place.insert("x-extensible-enum".to_owned(), json!(names));
        }
    }
    document["servers"] = json!([{"url": "/", "description": "The server that answers this document"}]);
    document["components"]["headers"] = headers::components();
    rules::complete(document);
    links::complete(document);
    let schemas = document["components"]["schemas"].as_object().cloned().unwrap_or_default();
    let Some(paths) = document["paths"].as_object_mut() else { return };
    for (path, operations) in paths {
        let Some(operations) = operations.as_object_mut() else { continue };
        for (method, operation) in operations {
            complete_operation(path, method, operation);
            raw_bytes(operation);
            headers::complete(operation);
            examples::complete(operation, &schemas);
        }
    }
}

/// Bodies that are bytes and no text: a client must not decode them.
fn raw_bytes(operation: &mut Value) {
    let complete = |body: &mut Value| {
        for media_type in ["application/octet-stream", "*/*"] {
            if let Some(place) = body.get_mut("content").and_then(|content| content.get_mut(media_type)) {
                place["schema"] = json!({"type": "string", "format": "binary"});
            }
        }
    };
    operation.get_mut("requestBody").into_iter().for_each(complete);
    operation["responses"].as_object_mut().into_iter().flat_map(Map::values_mut).for_each(complete);
}

fn complete_operation(path: &str, method: &str, operation: &mut Value) {
    let has_body = !operation["requestBody"].is_null();
    let scoped = path.starts_with("/organizations/");
    operation["security"] = if scoped { json!([{"bearer": []}]) } else { json!([]) };
    let mut problems: Vec<(&str, &str, &str, &str)> = Vec::new();
    if scoped {
        problems.push(("401", "unauthenticated", "The token is missing, wrong or revoked", "Unauthorized"));
        problems.push(("403", "organization_forbidden", "The caller may not do this", "Forbidden"));
    }
    let directory = operation["tags"][0] == "directory";
    let artifacts = operation["tags"][0] == "artifacts";
    if artifacts {
        problems.extend(artifact_problems(method));
    }
    if scoped && path.matches('{').count() > 1 {
        let code = if directory || artifacts { "not_found" } else { "task_not_found" };
        problems.push(("404", code, "There is no such thing for this caller", "Not Found"));
    }
    if operation["tags"][0] == "relations" && method != "get" {
        let code = if path.ends_with("{project}") && method == "put" { "primary_project" } else { "task_archived" };
        problems.push(("409", code, "The state refuses", "Conflict"));
        if path.ends_with("{other}") && method == "put" {
            problems.push(("422", "invalid_body", "A task does not require itself", "Unprocessable Content"));
        }
    }
    if directory {
        problems.extend(conflict_of(path, method).map(|code| ("409", code, "The state refuses", "Conflict")));
    } else if has_body && scoped {
        problems.push(("409", "task_closed", "The state refuses", "Conflict"));
    }
    if has_body && scoped {
        problems.push(("400", "invalid_json", "The body is not JSON", "Bad Request"));
        problems.push(("413", "payload_too_large", "The body or a payload is too large", "Payload Too Large"));
        problems.push(("415", "unsupported_media_type", "The body is not application/json", "Unsupported Media Type"));
    }
    let has_query = operation["parameters"].as_array().is_some_and(|all| all.iter().any(|p| p["in"] == "query"));
    if scoped && (has_body || has_query) {
        problems.push(("422", "invalid_body", "The body or a parameter breaks a rule", "Unprocessable Content"));
    }
    let has_cursor = operation["parameters"].as_array().is_some_and(|all| all.iter().any(|p| p["name"] == "cursor"));
    if scoped && has_cursor {
        problems.push(("400", "invalid_cursor", "The cursor is damaged or belongs to another query", "Bad Request"));
    }
    if path.ends_with("/agent-events") {
        problems.push(("400", "invalid_cursor", "The cursor is damaged or belongs to another caller", "Bad Request"));
        problems.push((
            "410",
            "cursor_expired",
            "Events behind the cursor were archived before they were read",
            "Gone",
        ));
    }
    if path.ends_with("/heartbeat") || path.contains("/sessions/") {
        problems.push(("409", "session_closed", "The session or the task is closed", "Conflict"));
    }
    if operation["parameters"].as_array().is_some_and(|all| all.iter().any(|p| p["name"] == "If-Match")) {
        problems.push(("412", "precondition_failed", "The task is at another version", "Precondition Failed"));
    }
    if path == "/auth/token" {
        problems.push(("429", "rate_limited", "Too many tokens; see Retry-After", "Too Many Requests"));
        problems.push(("413", "payload_too_large", "The body is too large", "Payload Too Large"));
    }
    problems.push(("503", "unavailable", "Try again; see Retry-After", "Service Unavailable"));
    let Some(responses) = operation["responses"].as_object_mut() else { return };
    for (status, code, description, title) in problems {
        responses.entry(status).or_insert_with(|| problem_response(status, code, description, title));
    }
}

/// What is refused of artifacts, in place of what is refused of JSON.
fn artifact_problems(method: &str) -> Vec<(&'static str, &'static str, &'static str, &'static str)> {
    let none = ("409", "no_artifact_store", "This installation keeps no artifacts", "Conflict");
    if method != "put" {
        let range = "The artifact has no such range; see Content-Range";
        return vec![none, ("416", "range_not_satisfiable", range, "Range Not Satisfiable")];
    }
    vec![
        none,
        ("400", "incomplete_body", "The body ended before it was complete", "Bad Request"),
        ("413", "payload_too_large", "The artifact is too large", "Payload Too Large"),
        ("415", "unsupported_media_type", "An artifact is sent without Content-Encoding", "Unsupported Media Type"),
        ("422", "digest_mismatch", "The body has another digest, which `found` names", "Unprocessable Content"),
    ]
}

/// What the state of the directory refuses.
fn conflict_of(path: &str, method: &str) -> Option<&'static str> {
    match (path.rsplit('/').next().unwrap_or_default(), method) {
        ("{person}", "put" | "delete") => Some("last_admin"),
        ("{agent}", "delete") => Some("open_tasks"),
        ("{model}", "put") => Some("name_taken"),
        _ => None,
    }
}

fn problem_response(status: &str, code: &str, description: &str, title: &str) -> Value {
    json!({
        "description": description,
        "content": {"application/problem+json": {
            "schema": {"$ref": "#/components/schemas/Problem"},
            "example": {
                "type": format!("urn:mandate:problem:{code}"),
                "title": title,
                "status": status.parse::<u16>().unwrap_or_default(),
                "detail": description,
                "code": code,
                "request_id": "01890a5d-ac96-774b-bcce-b302099a8057"
            }
        }}
    })
}

fn problem_schema() -> Value {
    let text = |description: &str| json!({"type": "string", "description": description});
    let mut properties = Map::new();
    properties.insert("type".to_owned(), text("A URN that ends in the code"));
    properties.insert("title".to_owned(), text("The status in words"));
    properties.insert("status".to_owned(), json!({"type": "integer", "description": "The HTTP status"}));
    properties.insert("detail".to_owned(), text("What is wrong, for a person"));
    properties.insert("code".to_owned(), text("What is wrong, for a program"));
    properties.insert("request_id".to_owned(), text("The request, as the log names it"));
    properties.insert(
        "errors".to_owned(),
        json!({"type": "array", "description": "What is wrong where", "items": {
            "type": "object",
            "required": ["detail"],
            "properties": {
                "pointer": text("A JSON pointer into the body"),
                "parameter": text("A parameter of the query or the path"),
                "header": text("A header"),
                "detail": text("What is wrong there")
            }
        }}),
    );
    json!({
        "type": "object",
        "description": "Problem details (RFC 9457). Further members are the facts that a program needs, such as limit, \
            resolved_by, outcome and last_seq.",
        "required": ["type", "title", "status", "detail", "code", "request_id"],
        "properties": properties,
        "additionalProperties": true
    })
}
