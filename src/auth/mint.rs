//! Minting tokens of people: `mandate dev` is its own issuer with it, and tests are any issuer they like.

use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::keys::{KeyError, KeyRing};
use crate::domain::time::Timestamp;

/// An issuer of person tokens with one Ed25519 key. Whoever configures its keys as an issuer trusts it entirely.
#[derive(Debug)]
pub struct PersonMint(KeyRing);

impl PersonMint {
    /// Loads the key of `folder`, or makes it, as [`KeyRing::open`] does. Not the folder of the server's own key.
    pub fn open(folder: &Path) -> Result<Self, KeyError> {
        KeyRing::open(folder).map(Self)
    }

    /// A new key that is kept nowhere.
    pub fn generate() -> Result<Self, KeyError> {
        KeyRing::ephemeral().map(Self)
    }

    /// Mints a token for `subject` that is valid from `now` for `ttl`.
    ///
    /// `extra` claims come last: one that has the name of another replaces it, and a `null` removes it.
    pub fn mint(
        &self,
        subject: &str,
        issuer: &str,
        audience: &str,
        ttl: Duration,
        extra: Map<String, Value>,
        now: Timestamp,
    ) -> String {
        let from = now.micros().div_euclid(1_000_000);
        let mut claims = Map::new();
        claims.insert("iss".into(), issuer.into());
        claims.insert("aud".into(), audience.into());
        claims.insert("sub".into(), subject.into());
        claims.insert("iat".into(), from.into());
        claims.insert("nbf".into(), from.into());
        claims.insert("exp".into(), json!(from.saturating_add_unsigned(ttl.as_secs())));
        claims.extend(extra);
        claims.retain(|_, value| !value.is_null());
        self.0.sign_jws(Value::Object(claims).to_string().as_bytes(), "JWT")
    }

    /// The public key as a JSON Web Key Set, as an issuer's `jwks_url` or `key_file` holds it.
    pub fn jwks(&self) -> Value {
        self.0.jwks()
    }
}
