//! An issuer of people's tokens, as configured.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::part::{Faults, SecretUrl};
use crate::domain::principal::Role;

/// The signature algorithms that an issuer may be given; symmetric ones are left out, because whoever can check
/// such a token could make one.
pub const ALGORITHMS: &[&str] = &["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"];

/// One issuer of people's tokens: a `[[auth.issuers]]` table.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IssuerSettings {
    /// The exact `iss` of its tokens.
    pub issuer: String,
    /// URL of its key set. Either this or `key_file`.
    pub jwks_url: Option<SecretUrl>,
    /// File with its key set (JSON) or one public key (PEM). Either this or `jwks_url`.
    pub key_file: Option<PathBuf>,
    /// The `aud` that its tokens must carry.
    pub audience: String,
    /// The signature algorithms that are accepted, of [`ALGORITHMS`].
    pub algorithms: Vec<String>,
    /// The claim that names the person.
    pub subject_claim: String,
    /// The claim that names groups or roles; a text or a list of texts.
    pub roles_claim: Option<String>,
    /// What a value of `roles_claim` grants to members of the organization.
    pub roles_map: BTreeMap<String, Role>,
    /// The claim that names the channel (`web`, `slack`, `mcp`).
    pub channel_claim: String,
    /// Whether an e-mail address names the person although the token does not say that it is verified.
    pub trust_unverified_email: bool,
    /// Whether `jwks_url` may be plain HTTP: for tests and closed networks.
    pub allow_http_jwks: bool,
}

/// Without issuer, audience, keys and algorithms, which [`Settings::validate`](super::Settings::validate) asks for.
impl Default for IssuerSettings {
    fn default() -> Self {
        Self {
            issuer: String::new(),
            jwks_url: None,
            key_file: None,
            audience: String::new(),
            algorithms: Vec::new(),
            subject_claim: "sub".to_owned(),
            roles_claim: None,
            roles_map: BTreeMap::new(),
            channel_claim: "channel".to_owned(),
            trust_unverified_email: false,
            allow_http_jwks: false,
        }
    }
}

impl IssuerSettings {
    /// Adds this issuer's faults; `name` is its place, such as `auth.issuers[0]`.
    pub(super) fn check(&self, name: &str, faults: &mut Faults) {
        let named = |field: &str| format!("{name}.{field}");
        for (field, text) in [
            ("issuer", &self.issuer),
            ("audience", &self.audience),
            ("subject_claim", &self.subject_claim),
            ("channel_claim", &self.channel_claim),
        ] {
            faults.require(!text.is_empty(), named(field), "must not be empty");
        }
        let schemes: &[&str] = if self.allow_http_jwks { &["http", "https"] } else { &["https"] };
        match (&self.jwks_url, &self.key_file) {
            (Some(url), None) => faults.url(named("jwks_url"), url.expose(), schemes),
            (None, Some(file)) => faults.require(file.is_file(), named("key_file"), "must name a file"),
            _ => faults.add(named("jwks_url"), "give either jwks_url or key_file"),
        }
        faults.require(!self.algorithms.is_empty(), named("algorithms"), "must name at least one");
        for algorithm in &self.algorithms {
            let known = ALGORITHMS.contains(&algorithm.as_str());
            let problem = format!("{algorithm} is not one of {}", ALGORITHMS.join(", "));
            faults.require(known, named("algorithms"), problem);
        }
        let mapped = self.roles_claim.is_some() || self.roles_map.is_empty();
        faults.require(mapped, named("roles_claim"), "must be set for roles_map to have an effect");
    }
}
