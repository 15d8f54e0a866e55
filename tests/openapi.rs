//! The API's description: committed, current, whole, and served.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

#[path = "api/support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::path::Path;

use reqwest::Method;
use serde_json::{Value, json};
use support::World;

fn document() -> Value {
    mandate::http::document()
}

/// Every operation: path, method, description.
fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let paths = document["paths"].as_object().unwrap();
    paths
        .iter()
        .flat_map(|(path, operations)| {
            let operations = operations.as_object().unwrap();
            operations.iter().map(move |(method, operation)| (path.clone(), method.clone(), operation.clone()))
        })
        .collect()
}

/// Every body of an operation: where, media type, description.
fn bodies(operation: &Value) -> Vec<(String, String, Value)> {
    let mut places = vec![("the request".to_owned(), operation["requestBody"]["content"].clone())];
    for (status, response) in operation["responses"].as_object().unwrap() {
        places.push((status.clone(), response["content"].clone()));
    }
    let mut found = Vec::new();
    for (place, content) in places {
        for (media_type, body) in content.as_object().into_iter().flatten() {
            found.push((place.clone(), media_type.clone(), body.clone()));
        }
    }
    found
}

fn walk(value: &Value, pointer: &str, see: &mut impl FnMut(&str, &Value)) {
    see(pointer, value);
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                walk(member, &format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1")), see);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                walk(item, &format!("{pointer}/{index}"), see);
            }
        }
        _ => {}
    }
}

#[test]
fn the_committed_document_is_the_one_of_the_code() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi/mandate.json");
    let committed = std::fs::read_to_string(file).unwrap();
    let current = serde_json::to_string_pretty(&document()).unwrap() + "\n";
    assert!(committed == current, "stale: cargo run -- openapi > openapi/mandate.json");
}

#[test]
fn every_reference_resolves_and_every_component_is_used() {
    let document = document();
    let mut targets = BTreeSet::new();
    walk(&document, "", &mut |at, value| {
        let Some(target) = value.get("$ref").and_then(Value::as_str) else { return };
        let pointer = target.strip_prefix('#').unwrap_or_else(|| panic!("{at} leads outside: {target}"));
        assert!(document.pointer(pointer).is_some_and(Value::is_object), "{at}: nothing is at {target}");
        targets.insert(pointer.to_owned());
    });
    assert!(targets.len() > 20);
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        assert!(schema.get("type").or_else(|| schema.get("allOf")).is_some(), "{name} is no schema: {schema}");
        assert!(targets.contains(&format!("/components/schemas/{name}")), "nothing uses {name}");
    }
}

#[test]
fn every_operation_has_an_id_a_summary_a_tag_and_its_errors() {
    let mut ids = BTreeSet::new();
    for (path, method, operation) in operations(&document()) {
        let name = format!("{method} {path}");
        let id = operation["operationId"].as_str().unwrap_or_else(|| panic!("{name} has no operationId"));
        assert!(ids.insert(id.to_owned()), "{id} names two operations");
        assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{name} has no summary");
        assert_eq!(operation["tags"].as_array().map(Vec::len), Some(1), "{name}");
        let mut expected = vec!["503"];
        if path.starts_with("/organizations/") {
            expected.extend(["401", "403"]);
            assert_eq!(operation["security"], json!([{"bearer": []}]), "{name}");
            if path.matches('{').count() > 1 {
                expected.push("404");
            }
            if !operation["requestBody"].is_null() {
                expected.extend(["400", "413", "415", "422"]);
            }
        }
        for status in expected {
            let content = &operation["responses"][status]["content"]["application/problem+json"];
            assert_eq!(content["schema"]["$ref"], "#/components/schemas/Problem", "{name} {status}");
            assert_eq!(content["example"]["status"].to_string(), status, "{name}");
        }
        let parameters: BTreeSet<_> = operation["parameters"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|parameter| parameter["in"] == "path")
            .map(|parameter| parameter["name"].as_str().unwrap().to_owned())
            .collect();
        let named: BTreeSet<_> =
            path.split('{').skip(1).map(|rest| rest.split('}').next().unwrap().to_owned()).collect();
        assert_eq!(parameters, named, "{name}");
    }
}

#[test]
fn every_body_has_an_example_that_fits_its_schema() {
    let document = document();
    let mut seen = 0;
    for (path, method, operation) in operations(&document) {
        for (place, media_type, body) in bodies(&operation) {
            let name = format!("{method} {path}, {place}");
            if !media_type.contains("json") && !media_type.contains("urlencoded") {
                continue;
            }
            let example = body.get("example").unwrap_or_else(|| panic!("{name} has no example"));
            let mut schema = body["schema"].clone();
            schema["components"] = document["components"].clone();
            let validator = jsonschema::validator_for(&schema).unwrap();
            let faults: Vec<_> =
                validator.iter_errors(example).map(|fault| format!("{}: {fault}", fault.instance_path())).collect();
            assert!(faults.is_empty(), "{name}: {faults:?}");
            seen += 1;
        }
    }
    assert!(seen > 100, "{seen}");
}

#[test]
fn no_answer_closes_a_set_of_names() {
    let document = document();
    let mut open = 0;
    for (path, method, operation) in operations(&document) {
        for (place, _, body) in bodies(&operation) {
            if place == "the request" {
                continue;
            }
            let mut queue = vec![body["schema"].clone()];
            let mut seen = BTreeSet::new();
            while let Some(schema) = queue.pop() {
                walk(&schema, "", &mut |at, value| {
                    let closed = value.get("enum").is_some_and(Value::is_array) || value.get("const").is_some();
                    assert!(!closed, "{method} {path} {place} {at} is a closed set: readers could not meet a new name");
                    open += usize::from(value.get("x-extensible-enum").is_some());
                    let target = value.get("$ref").and_then(Value::as_str);
                    if let Some(target) = target.filter(|target| seen.insert((*target).to_owned())) {
                        queue.push(document.pointer(&target[1..]).unwrap().clone());
                    }
                });
            }
        }
    }
    assert!(open > 0, "the sets are named as x-extensible-enum");
}

#[test]
fn money_is_a_string_and_every_field_of_an_answer_is_required() {
    let document = document();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for (name, money) in [("TaskView", "cost_total"), ("TaskState", "budget_remaining"), ("LedgerView", "cost")] {
        let kind = &schemas[name]["properties"][money]["type"];
        assert!(*kind == "string" || *kind == json!(["string", "null"]), "{name}.{money}: {kind}");
    }
    for name in ["TaskView", "TaskState", "SessionView", "RequestView", "EventView", "LedgerView"] {
        let all: BTreeSet<_> = schemas[name]["properties"].as_object().unwrap().keys().cloned().collect();
        let required = schemas[name]["required"].as_array().unwrap();
        let required: BTreeSet<_> = required.iter().map(|field| field.as_str().unwrap().to_owned()).collect();
        assert_eq!(all, required, "{name}: answers carry every field, null included");
    }
}

#[test]
fn every_handler_that_is_described_is_routed_and_nothing_is_routed_beside() {
    let described: BTreeSet<_> =
        operations(&document()).iter().map(|(_, _, operation)| operation["operationId"].to_string()).collect();
    let mut handlers = 0;
    let mut files = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http")];
    while let Some(file) = files.pop() {
        if file.is_dir() {
            files.extend(std::fs::read_dir(file).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = std::fs::read_to_string(&file).unwrap();
        for part in text.split("operation_id = ").skip(1) {
            let id = part.split(['"']).nth(1).unwrap();
            assert!(described.contains(&format!("\"{id}\"")), "{id} is described and in no list of routes");
            handlers += 1;
        }
        let unseen = text.matches(".route(").count();
        let allowed = usize::from(file.ends_with("docs.rs"));
        assert_eq!(unseen, allowed, "{}: a route that the document does not have", file.display());
    }
    assert_eq!(handlers, described.len());
}

/// The document names schemas by their types' names: of two with one name it would show one in both places.
#[test]
fn no_two_types_of_bodies_have_one_name() {
    let mut names = BTreeSet::new();
    let mut files = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(file) = files.pop() {
        if file.is_dir() {
            files.extend(std::fs::read_dir(file).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = std::fs::read_to_string(&file).unwrap();
        for part in text.split("#[derive(").skip(1).filter(|part| part.split(')').next().unwrap().contains("ToSchema"))
        {
            let kind = part.find("\npub struct ").map(|at| at + "\npub struct ".len());
            let name = part[kind.unwrap()..].split(|c: char| !c.is_alphanumeric()).next().unwrap();
            assert!(names.insert(name.to_owned()), "{}: a second {name}", file.display());
        }
    }
    assert!(names.len() > 50, "{names:?}");
}

/// The schemas of what callers send, each with where it stands.
fn sent(document: &Value) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for (path, method, operation) in operations(document) {
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let name = parameter["name"].as_str().unwrap();
            found.push((format!("{method} {path} {name}"), parameter["schema"].clone()));
        }
        let mut queue: Vec<_> = bodies(&operation).into_iter().filter(|(place, _, _)| place == "the request").collect();
        while let Some((_, _, body)) = queue.pop() {
            walk(&body, "", &mut |_, value| {
                let Some(target) = value.get("$ref").and_then(Value::as_str) else { return };
                if seen.insert(target.to_owned()) {
                    let schema = document.pointer(&target[1..]).unwrap();
                    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
                        found.push((format!("{target} {name}"), member.clone()));
                    }
                    queue.push((String::new(), String::new(), schema.clone()));
                }
            });
        }
    }
    found
}

/// What is said of texts, numbers and lists that callers send; each is bounded by more than its type.
#[test]
fn everything_that_callers_send_says_what_is_right() {
    // Any text is right: filters that match what is there, opaque cursors, headers with a lenient reader, OAuth's own.
    let free = [
        "subject",
        "external_ref",
        "q",
        "type",
        "cursor",
        "after",
        "Prefer",
        "If-None-Match",
        "Last-Event-ID",
        "Range",
        "client_id",
        "client_secret",
        "artifacts",
    ];
    let mut looked = 0;
    for (place, schema) in sent(&document()) {
        if free.contains(&place.rsplit(' ').next().unwrap()) && schema.get("maxLength").is_none() {
            continue;
        }
        let is = |kind: &str| {
            schema["type"] == kind || schema["type"].as_array().is_some_and(|all| all.contains(&json!(kind)))
        };
        let says = |names: &[&str]| names.iter().any(|name| !schema[*name].is_null());
        assert!(!is("string") || says(&["maxLength", "pattern", "format", "anyOf"]), "{place}: which text? {schema}");
        assert!(!is("integer") || (says(&["minimum"]) && says(&["maximum"])), "{place}: how many? {schema}");
        let is_query = schema["items"]["$ref"].is_string() || schema["items"]["pattern"].is_string();
        assert!(!is("array") || is_query || says(&["maxItems"]), "{place}: how many entries? {schema}");
        looked += 1;
    }
    assert!(looked > 200, "{looked}");
}

#[test]
fn every_link_leads_to_an_operation_and_names_the_parameters_of_its_path() {
    let document = document();
    let all = operations(&document);
    let links = document["components"]["links"].as_object().unwrap();
    for (name, link) in links {
        let (path, _, _) =
            all.iter().find(|(_, _, operation)| operation["operationId"] == link["operationId"]).unwrap();
        let wanted: BTreeSet<_> = path.split('{').skip(1).map(|rest| rest.split('}').next().unwrap()).collect();
        let given: BTreeSet<_> = link["parameters"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(given, wanted, "{name}");
        let (_, _, source) = all
            .iter()
            .find(|(_, _, source)| name.starts_with(&format!("{}_then_", source["operationId"].as_str().unwrap())))
            .unwrap();
        for pointer in link["parameters"]
            .as_object()
            .unwrap()
            .values()
            .filter_map(|value| value.as_str()?.strip_prefix("$response.body#"))
        {
            for (status, response) in
                source["responses"].as_object().unwrap().iter().filter(|(status, _)| status.starts_with('2'))
            {
                let example = &response["content"]["application/json"]["example"];
                assert!(
                    example.pointer(pointer).is_some_and(Value::is_string),
                    "{name} {status}: nothing at {pointer}"
                );
            }
        }
    }
    assert!(links.len() > 50, "{}", links.len());
}

#[tokio::test]
async fn every_documented_operation_is_answered_by_the_router() {
    let world = World::new().await;
    let anyone = world.anyone();
    let path_of = |path: &str| {
        let parts = path.split('/').map(|part| if part.starts_with('{') { "x" } else { part });
        format!("//{}", parts.skip(1).collect::<Vec<_>>().join("/"))
    };
    let mut paths = BTreeSet::new();
    for (path, method, _) in operations(&document()) {
        let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
        let reply = anyone.send(anyone.request(method.clone(), &path_of(&path))).await;
        if path.starts_with("/organizations/") {
            reply.refused(401, "unauthenticated");
        } else {
            assert!(![404, 405, 500].contains(&reply.status), "{method} {path}: {reply:?}");
        }
        paths.insert(path);
    }
    for path in paths {
        let reply = anyone.send(anyone.request(Method::PATCH, &path_of(&path))).await;
        reply.refused(405, "method_not_allowed");
        assert!(reply.header("allow").is_some_and(|methods| !methods.is_empty()), "{path}");
    }
}

#[tokio::test]
async fn the_binary_serves_the_document_and_the_pages_that_show_it() {
    let world = World::new().await;
    let anyone = world.anyone();
    let served = anyone.get("//openapi.json").await;
    assert_eq!(served.header("content-type"), Some("application/json"));
    assert!(served.expect(200) == &document(), "another document than the code's");

    let index = anyone.get("//docs/").await;
    index.expect(200);
    assert!(index.header("content-type").is_some_and(|kind| kind.starts_with("text/html")), "{index:?}");
    for file in ["swagger-ui.css", "swagger-ui-bundle.js", "swagger-initializer.js"] {
        assert!(index.text.contains(file), "the page does not name {file}");
        let part = anyone.get(&format!("//docs/{file}")).await;
        assert_eq!(part.status, 200, "{file}");
        assert!(!part.text.is_empty(), "{file}");
    }
    for source in index.text.split(['"', '\'']).filter(|text| text.contains("//")) {
        assert!(!source.starts_with("http") && !source.starts_with("//"), "the page fetches from elsewhere: {source}");
    }
    let start = anyone.get("//docs/swagger-initializer.js").await;
    assert!(start.text.contains("/openapi.json"), "{}", start.text);

    let without_slash = anyone.get("//docs").await;
    without_slash.expect(200);
    assert_eq!(without_slash.text, index.text);
}
