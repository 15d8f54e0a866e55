//! Tokens that must be refused, keys that must be found, and a real key server that counts.

mod claims;
mod confusion;
mod fetching;
mod issuers;
mod keys;
mod parsing;
mod renewal;
mod server;
mod tokens;
mod verifier;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value, json};

use super::issuers::{DEFAULT_COOLDOWN, HttpSettings, PersonIssuerConfig, PersonIssuers};
use super::mint::PersonMint;
use super::{Refusal, TokenError};
use crate::domain::principal::Identity;
use crate::domain::time::Timestamp;

const ISSUER: &str = "https://login.example.com/";
const AUDIENCE: &str = "mandate";
const HOUR: Duration = Duration::from_hours(1);

fn now() -> Timestamp {
    Timestamp::parse("2026-01-31T09:30:00.5Z").unwrap()
}

fn after(seconds: u64) -> Timestamp {
    now().plus(Duration::from_secs(seconds))
}

/// The second of [`now`], moved by `offset`.
fn second(offset: i64) -> i64 {
    now().micros() / 1_000_000 + offset
}

fn config(more: &Value) -> PersonIssuerConfig {
    let mut config = json!({ "issuer": ISSUER, "audience": AUDIENCE });
    for (name, value) in more.as_object().unwrap() {
        config[name] = value.clone();
    }
    serde_json::from_value(config).unwrap()
}

fn people(config: PersonIssuerConfig) -> PersonIssuers {
    PersonIssuers::new(vec![config], DEFAULT_COOLDOWN, HttpSettings::default()).unwrap()
}

/// An issuer whose keys stand in a file. The folder has to live as long as the issuer.
fn people_by_file(keys: &str, more: Value) -> (PersonIssuers, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, keys).unwrap();
    let mut more = more;
    more["key_file"] = json!(file);
    (people(config(&more)), folder)
}

fn people_of(mint: &PersonMint, more: Value) -> (PersonIssuers, tempfile::TempDir) {
    people_by_file(&mint.jwks().to_string(), more)
}

fn extra(claims: Value) -> Map<String, Value> {
    match claims {
        Value::Object(claims) => claims,
        other => panic!("{other} is no object"),
    }
}

fn mint(mint: &PersonMint, claims: Value) -> String {
    mint.mint("Alice", ISSUER, AUDIENCE, HOUR, extra(claims), now())
}

fn encode(value: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(value)
}

/// A compact JWS with any header, signed by any means.
fn forge(header: &Value, payload: &Value, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
    let message = format!("{}.{}", encode(header.to_string()), encode(payload.to_string()));
    let signature = sign(message.as_bytes());
    format!("{message}.{}", encode(signature))
}

/// Claims that an issuer with [`config`] accepts.
fn good_claims() -> Value {
    json!({ "iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": second(3600) })
}

fn refusal<T: std::fmt::Debug>(result: Result<T, TokenError>) -> Refusal {
    match result {
        Err(TokenError::Refused { reason, .. }) => reason,
        other => panic!("not refused: {other:?}"),
    }
}

fn person(identity: Identity) -> String {
    match identity {
        Identity::Person { id, .. } => id.as_str().to_owned(),
        Identity::Service { .. } => panic!("no person: {identity:?}"),
    }
}
