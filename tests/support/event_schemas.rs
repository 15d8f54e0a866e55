//! The JSON Schemas of `openapi/events`, for every test that causes events.

#![allow(dead_code, reason = "each test uses its part")]

use std::collections::BTreeMap;
use std::path::Path;

use jsonschema::{Draft, Validator};
use serde_json::Value;

/// One published schema.
pub struct EventSchema {
    /// The document.
    pub document: Value,
    validator: Validator,
}

/// All of them, by event type and schema version.
pub struct EventSchemas(BTreeMap<(String, i64), EventSchema>);

impl EventSchemas {
    /// Reads the folder; a file that is no valid schema, or is not named `TYPE.vN.json`, fails the test.
    pub fn load() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi/events");
        let mut schemas = BTreeMap::new();
        for entry in std::fs::read_dir(&folder).expect("openapi/events is there") {
            let path = entry.expect("a folder entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("a file name");
            let named = name.strip_suffix(".json").and_then(|stem| stem.rsplit_once(".v"));
            let (event_type, version) = named.unwrap_or_else(|| panic!("{name} is not named TYPE.vN.json"));
            let version = version.parse().unwrap_or_else(|_| panic!("{name} has no version"));
            let text = std::fs::read_to_string(&path).expect("a schema can be read");
            let document: Value = serde_json::from_str(&text).unwrap_or_else(|fault| panic!("{name}: {fault}"));
            let validator = jsonschema::options()
                .with_draft(Draft::Draft202012)
                .should_validate_formats(true)
                .build(&document)
                .unwrap_or_else(|fault| panic!("{name}: {fault}"));
            schemas.insert((event_type.to_owned(), version), EventSchema { document, validator });
        }
        Self(schemas)
    }

    /// Type, version and schema of each.
    pub fn iter(&self) -> impl Iterator<Item = (&str, i64, &EventSchema)> {
        self.0.iter().map(|((event_type, version), schema)| (event_type.as_str(), *version, schema))
    }

    /// Every way in which the payload breaks the schema of its type and version.
    pub fn faults(&self, event_type: &str, version: i64, payload: &Value) -> Vec<String> {
        match self.0.get(&(event_type.to_owned(), version)) {
            None => vec![format!("{event_type}.v{version} has no schema")],
            Some(schema) => schema.faults(payload),
        }
    }

    /// Fails the test when the entry, as the events route answers it, breaks the schema of its type.
    pub fn assert_entry(&self, entry: &Value) {
        let event_type = entry["type"].as_str().expect("an entry has a type");
        let version = entry["schema_version"].as_i64().expect("an entry has a version");
        let faults = self.faults(event_type, version, &entry["payload"]);
        assert!(faults.is_empty(), "{entry:#}\nbreaks {event_type}.v{version}: {faults:#?}");
    }
}

impl EventSchema {
    /// Every way in which the payload breaks it.
    pub fn faults(&self, payload: &Value) -> Vec<String> {
        let fault = |fault: jsonschema::ValidationError<'_>| format!("{}: {fault}", fault.instance_path());
        self.validator.iter_errors(payload).map(fault).collect()
    }
}
