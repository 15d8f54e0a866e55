//! What the rules ask of parameters and of the members of bodies, said in the document with the limits of the code.
//! utoipa takes literals only, and a literal would be a second place for each limit.

use serde_json::{Map, Value, json};

use crate::domain::event::{ActorKind, EventType};
use crate::domain::ids::{PERSON_ID_MAX, SLUG_MAX};
use crate::domain::limits::{
    ARTIFACTS_MAX, BATCH_EVENTS_MAX, KEY_MAX, LABEL_KEY_MAX, LABEL_VALUE_MAX, LABELS_MAX, NAME_MAX, OPTIONS_MAX,
    REASON_MAX, TEXT_MAX, TITLE_MAX,
};
use crate::domain::money::TOKENS_PER_REPORT_MAX;
use crate::domain::outcome::{Outcome, OutcomeReason};
use crate::domain::principal::Role;
use crate::domain::request::{RequestKind, RequestStatus};
use crate::domain::status::Status;
use crate::domain::task::Origin;
use crate::http::children::TREE_PAGE_MAX;
use crate::http::directory::ALIASES_MAX;
use crate::service::{OperationKind, UsageKey};

/// The largest `page_size_max` that can be set.
const PAGE_MAX: u32 = 100;
/// The largest `events_page_max` that can be set.
const EVENTS_PAGE_MAX: u32 = 1_000;

/// Adds the rules to every schema of a body and to every parameter.
pub(super) fn complete(document: &mut Value) {
    for (name, description, names) in sets() {
        let set = json!({"type": "string", "description": description, "enum": names});
        document["components"]["schemas"][name] = set;
    }
    for (schema, member, rule) in members() {
        let place = document.pointer_mut(&format!("/components/schemas/{schema}/properties/{member}"));
        if let Some(place) = place.and_then(Value::as_object_mut) {
            add(place, rule);
        }
    }
    let paths = document["paths"].as_object_mut().into_iter().flatten();
    for operation in paths.flat_map(|(_, operations)| operations.as_object_mut().into_iter().flatten()) {
        let (_, operation) = operation;
        let id = operation["operationId"].as_str().unwrap_or_default().to_owned();
        let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
        for parameter in parameters.into_iter().flatten() {
            complete_parameter(&id, parameter);
        }
    }
}

fn complete_parameter(operation: &str, parameter: &mut Value) {
    let text = |name: &str| parameter[name].as_str().unwrap_or_default().to_owned();
    let (name, place) = (text("name"), text("in"));
    if place == "query" {
        // An empty one counts as absent.
        parameter["allowEmptyValue"] = json!(true);
    }
    let Some(schema) = parameter["schema"].as_object_mut() else { return };
    // A header or a part of a query is there or not, but never null.
    if let Some(kinds) = schema.get("type").and_then(Value::as_array) {
        let kind = kinds.iter().find(|kind| **kind != "null").cloned().unwrap_or_default();
        schema.insert("type".to_owned(), kind);
    }
    if let Some(rule) = parameter_rule(operation, &name) {
        add(schema, rule);
    }
}

/// Adds `rule` to a schema. A list hands on what is of its items; a named schema takes the place of the type.
fn add(schema: &mut Map<String, Value>, rule: Value) {
    let Value::Object(mut rule) = rule else { return };
    if let (Some(Value::Object(items)), Some(more)) = (schema.get_mut("items"), rule.remove("items")) {
        add(items, more);
    }
    if let Some(reference) = rule.remove("$ref") {
        let may_be_null = schema.remove("type").is_some_and(|kinds| kinds.is_array());
        if may_be_null {
            schema.insert("oneOf".to_owned(), json!([{"type": "null"}, {"$ref": reference}]));
        } else {
            schema.insert("$ref".to_owned(), reference);
        }
    }
    schema.extend(rule);
}

/// A text of so many characters, which is not blank when it must have some.
fn text(least: usize, most: usize) -> Value {
    let mut rule = json!({"minLength": least, "maxLength": most});
    if least > 0 {
        rule["pattern"] = json!(r"\S");
    }
    rule
}

/// One of the names of that set.
fn one_of(set: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{set}")})
}

/// The closed sets of names that callers choose from. Those in answers are open: readers must expect more.
fn sets() -> Vec<(&'static str, &'static str, Vec<&'static str>)> {
    let settles = [RequestStatus::Answered, RequestStatus::Approved, RequestStatus::Rejected];
    let actors = [ActorKind::Agent, ActorKind::Subagent];
    let types = EventType::ALL.iter().filter(|kind| kind.is_written_by_harness());
    vec![
        ("TaskStatusName", "A task's status", Status::NAMES.to_vec()),
        ("OriginKindName", "Who or what asked for a task", Origin::KINDS.to_vec()),
        ("OutcomeName", "How a task ends", Outcome::NAMES.to_vec()),
        ("OutcomeReasonName", "Why it ends so", OutcomeReason::NAMES.to_vec()),
        ("RequestKindName", "What is asked of a person", RequestKind::NAMES.to_vec()),
        ("RequestStatusName", "Where a request stands", RequestStatus::NAMES.to_vec()),
        ("ResolutionName", "How a person settles a request", settles.map(RequestStatus::as_str).to_vec()),
        ("HarnessEventName", "What a harness writes", types.map(|kind| kind.as_str()).collect()),
        ("HarnessActorName", "Who acts in it", actors.map(ActorKind::as_str).to_vec()),
        ("RoleName", "What a member may do", Role::NAMES.to_vec()),
        ("OperationKindName", "An entry of the operations log", OperationKind::NAMES.to_vec()),
        ("UsageKeyName", "What sums are grouped by", UsageKey::NAMES.to_vec()),
        ("TaskOrderName", "An order of tasks", vec!["created_at", "status_since"]),
        ("GrantName", "An OAuth grant", vec!["client_credentials"]),
    ]
}

fn list_of(items: &Value, most: usize) -> Value {
    json!({"items": items, "maxItems": most})
}

/// At most so many different ones.
fn set_of(items: &Value, most: usize) -> Value {
    json!({"items": items, "maxItems": most, "uniqueItems": true})
}

fn number(least: i64, most: i64) -> Value {
    json!({"minimum": least, "maximum": most})
}

fn digest() -> Value {
    json!({"pattern": "^sha256:[0-9a-f]{64}$"})
}

fn person() -> Value {
    json!({"minLength": 1, "maxLength": PERSON_ID_MAX, "pattern": r"^[^\s\u0000-\u001f\u007f-\u009f]+$"})
}

/// An amount of US dollars: a number, or a text so that no reader in between rounds it.
fn money() -> Value {
    json!({"type": ["string", "number", "null"], "minimum": 0, "pattern": r"^[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$"})
}

fn count(least: i64) -> Value {
    number(least, i64::from(i32::MAX))
}

/// Of each member of a body: schema, member, rule.
fn members() -> Vec<(&'static str, &'static str, Value)> {
    let mut all = work();
    all.extend(directory());
    all
}

fn work() -> Vec<(&'static str, &'static str, Value)> {
    let mut all = Vec::new();
    for task in ["CreateTask", "DelegateTask"] {
        let labels = json!({"maxProperties": LABELS_MAX, "additionalProperties": {"type": "string",
            "maxLength": LABEL_VALUE_MAX}, "propertyNames": {"minLength": 1, "maxLength": LABEL_KEY_MAX}});
        all.extend([
            (task, "agent_slug", text(1, NAME_MAX)),
            (task, "title", text(1, TITLE_MAX)),
            (task, "description", text(0, TEXT_MAX)),
            (task, "budget", money()),
            (task, "subject", text(1, NAME_MAX)),
            (task, "labels", labels),
            (task, "idempotency_key", text(1, KEY_MAX)),
        ]);
    }
    all.extend([
        ("CreateTask", "initial_outcome", one_of("OutcomeName")),
        ("CreateTask", "initial_outcome_reason", one_of("OutcomeReasonName")),
        ("Because", "reason", text(1, REASON_MAX)),
        ("Cancel", "reason", text(1, REASON_MAX)),
        ("Reassign", "owner", person()),
        ("Reply", "body", json!({"minLength": 1, "pattern": r"\S"})),
        ("OpenSession", "session_key", text(1, KEY_MAX)),
        ("OpenSession", "harness_instance", text(1, NAME_MAX)),
        ("CloseSession", "reason", text(1, REASON_MAX)),
        ("AppendEvents", "events", json!({"minItems": 1, "maxItems": BATCH_EVENTS_MAX})),
        ("NewEvent", "type", one_of("HarnessEventName")),
        ("NewEvent", "payload", json!({"type": "object", "additionalProperties": true})),
        ("NewEvent", "schema_version", number(1, 1)),
        ("NewEvent", "actor_kind", one_of("HarnessActorName")),
        ("NewEvent", "actor_id", text(1, NAME_MAX)),
        ("ReportUsage", "idempotency_key", text(1, KEY_MAX)),
        ("ReportUsage", "model_id", text(1, NAME_MAX)),
        ("ReportUsage", "tokens_in", number(0, TOKENS_PER_REPORT_MAX)),
        ("ReportUsage", "tokens_out", number(0, TOKENS_PER_REPORT_MAX)),
        ("ReportUsage", "cache_read_tokens", number(0, TOKENS_PER_REPORT_MAX)),
        ("ReportUsage", "cache_write_tokens", number(0, TOKENS_PER_REPORT_MAX)),
        ("NewArtifact", "digest", digest()),
        ("NewArtifact", "name", text(1, NAME_MAX)),
        ("NewArtifact", "media_type", text(1, NAME_MAX)),
        ("NewArtifact", "size", number(0, i64::MAX)),
        ("NewArtifact", "preview", text(0, TEXT_MAX)),
        ("AskPerson", "kind", one_of("RequestKindName")),
        ("AskPerson", "title", text(1, TITLE_MAX)),
        ("AskPerson", "why", text(0, TEXT_MAX)),
        ("AskPerson", "options", list_of(&json!({"minLength": 1, "maxLength": TITLE_MAX}), OPTIONS_MAX)),
        ("AskPerson", "artifacts", json!({"maxItems": ARTIFACTS_MAX})),
        ("AskPerson", "artifact_digests", set_of(&digest(), ARTIFACTS_MAX)),
        ("AskPerson", "request_key", text(1, KEY_MAX)),
        ("Resolve", "status", one_of("ResolutionName")),
        ("Resolve", "answer", text(1, TEXT_MAX)),
        ("Resolve", "choice", text(1, TITLE_MAX)),
        ("Resolve", "artifact_digests", set_of(&digest(), ARTIFACTS_MAX)),
        ("SetOutcome", "outcome", one_of("OutcomeName")),
        ("SetOutcome", "reason", one_of("OutcomeReasonName")),
        ("TokenRequest", "grant_type", one_of("GrantName")),
    ]);
    all
}

fn directory() -> Vec<(&'static str, &'static str, Value)> {
    let mut all = Vec::new();
    for named in ["PutOrganization", "PutAgent", "PutMember", "PutTrigger", "PutProject"] {
        all.extend([(named, "name", text(1, NAME_MAX)), (named, "external_ref", text(1, NAME_MAX))]);
    }
    all.push(("PutModel", "external_ref", text(1, NAME_MAX)));
    for price in ["input", "output", "cache_read", "cache_write"] {
        let member = match price {
            "input" => "input_cost_per_million",
            "output" => "output_cost_per_million",
            "cache_read" => "cache_read_cost_per_million",
            _ => "cache_write_cost_per_million",
        };
        all.push(("PutModel", member, money()));
    }
    all.extend([
        ("PutAgent", "version", count(1)),
        ("PutAgent", "prompt_version", count(1)),
        ("PutAgentSettings", "task_budget", money()),
        ("PutAgentSettings", "monthly_cost_cap", money()),
        ("PutAgentSettings", "max_concurrent_tasks", count(1)),
        ("PutAgentSettings", "task_timeout_seconds", count(1)),
        ("PutAgentSettings", "max_depth", count(0)),
        ("PutAgentSettings", "max_children", count(0)),
        ("PutMember", "roles", list_of(&one_of("RoleName"), Role::ALL.len())),
        ("PutMember", "email", text(1, NAME_MAX)),
        ("PutModel", "provider", text(1, NAME_MAX)),
        ("PutModel", "model_id", text(1, NAME_MAX)),
        ("PutModel", "aliases", set_of(&text(1, NAME_MAX), ALIASES_MAX)),
    ]);
    all
}

/// The rule of a parameter of that name.
fn parameter_rule(operation: &str, name: &str) -> Option<Value> {
    let slug = || json!({"pattern": format!("^[a-z0-9][a-z0-9._-]{{0,{}}}$", SLUG_MAX - 1)});
    Some(match name {
        "org" | "agent" | "trigger" | "model" => slug(),
        "project" if !matches!(operation, "associate_project" | "dissociate_project") => slug(),
        "task" | "other" => json!({"pattern": "^[Tt]-[1-9][0-9]{0,18}$"}),
        "person" | "owner" | "X-Mandate-Accountable" => person(),
        "digest" => digest(),
        "limit" => {
            let most = match operation {
                "read_events" | "follow_events" => EVENTS_PAGE_MAX,
                "read_tree" => TREE_PAGE_MAX,
                _ => PAGE_MAX,
            };
            number(1, most.into())
        }
        "after_seq" | "before_seq" => number(0, i64::MAX),
        "status" if operation == "list_tasks" => json!({"items": one_of("TaskStatusName")}),
        "status" => one_of("RequestStatusName"),
        "origin_kind" => one_of("OriginKindName"),
        "kind" if operation == "list_inbox" => one_of("RequestKindName"),
        "kind" => one_of("OperationKindName"),
        "group_by" => json!({"items": one_of("UsageKeyName")}),
        "label" => json!({"items": {"pattern": "="}}),
        "sort" => one_of("TaskOrderName"),
        "start" | "end" => json!({"anyOf": [{"format": "date"}, {"format": "date-time"}]}),
        "Idempotency-Key" | "X-Mandate-Scheduled-Task" | "X-Mandate-Webhook" | "X-Mandate-Delivery" => text(1, KEY_MAX),
        "If-Match" => json!({"pattern": r#"^(\*|(W/)?"[^"]*"( *, *(W/)?"[^"]*")*)$"#}),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_has_its_place() {
        let document = super::super::document();
        for (schema, member, _) in members() {
            let place = format!("/components/schemas/{schema}/properties/{member}");
            assert!(document.pointer(&place).is_some(), "nothing is at {place}");
        }
    }
}
