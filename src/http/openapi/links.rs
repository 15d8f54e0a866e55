//! Links: where what an answer names can be read and worked with.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// What answers of an operation name: the operation, the parameter of other operations, and where its value stands.
const NAMED: &[(&str, &str, &str)] = &[
    ("create_task", "task", "/short_id"),
    ("delegate_task", "task", "/short_id"),
    ("open_session", "session", "/session/id"),
    ("open_request", "request", "/request/id"),
    ("put_agent", "agent", "/slug"),
    ("rotate_agent_credential", "client_id", "/client_id"),
    ("put_trigger", "trigger", "/slug"),
    ("rotate_trigger_credential", "client_id", "/client_id"),
    ("put_member", "person", "/person_id"),
    ("put_model", "model", "/slug"),
    ("put_project", "project", "/slug"),
    ("send_artifact", "digest", "/digest"),
];

/// An operation by its id: the parameters of its path.
type Paths = BTreeMap<String, Vec<String>>;

/// Gives every answer that names something its links.
pub(super) fn complete(document: &mut Value) {
    let mut paths = Paths::new();
    for (path, operations) in document["paths"].as_object().into_iter().flatten() {
        for operation in operations.as_object().into_iter().flat_map(Map::values) {
            let names = path.split('{').skip(1).filter_map(|rest| rest.split('}').next()).map(str::to_owned);
            paths.insert(operation["operationId"].as_str().unwrap_or_default().to_owned(), names.collect());
        }
    }
    let mut components = Map::new();
    for operations in document["paths"].as_object_mut().into_iter().flat_map(Map::values_mut) {
        for operation in operations.as_object_mut().into_iter().flat_map(Map::values_mut) {
            let id = operation["operationId"].as_str().unwrap_or_default().to_owned();
            for (_, parameter, pointer) in NAMED.iter().filter(|(source, _, _)| *source == id) {
                let links = links(&paths, &id, parameter, pointer);
                let references = links.keys().map(|name| {
                    let target = name.rsplit("_then_").next().unwrap_or_default().to_owned();
                    (target, json!({"$ref": format!("#/components/links/{name}")}))
                });
                let references: Map<_, _> = references.collect();
                for (status, response) in operation["responses"].as_object_mut().into_iter().flatten() {
                    if status.starts_with('2') {
                        response["links"] = Value::Object(references.clone());
                    }
                }
                components.extend(links);
            }
        }
    }
    document["components"]["links"] = Value::Object(components);
}

/// The links from an operation that names `parameter` to every operation whose path needs it and nothing else that is
/// not known by then.
fn links(paths: &Paths, source: &str, parameter: &str, pointer: &str) -> Map<String, Value> {
    let known = paths.get(source).cloned().unwrap_or_default();
    let reached = paths.iter().filter(|(_, names)| {
        names.iter().any(|name| name == parameter) && names.iter().all(|name| name == parameter || known.contains(name))
    });
    let link = |(target, names): (&String, &Vec<String>)| {
        let value = |name: &String| {
            let response = name == parameter;
            let value = if response { format!("$response.body#{pointer}") } else { format!("$request.path.{name}") };
            (name.clone(), json!(value))
        };
        let parameters: Map<_, _> = names.iter().map(value).collect();
        (format!("{source}_then_{target}"), json!({"operationId": target, "parameters": parameters}))
    };
    reached.map(link).collect()
}
