//! People's tokens, from the issuers that an operator configured.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jsonwebtoken::Algorithm;
use serde_json::{Value, json};
use url::{Host, Url};

use super::claims::Claims;
use super::error::{Refusal, TokenError, quoted};
use super::jws::{Jws, asymmetric};
use super::key_cache::{KeyCache, Source, chain};
use super::key_set::KeySet;
use crate::domain::event::Channel;
use crate::domain::ids::PersonId;
use crate::domain::principal::{Identity, Role};
use crate::domain::time::Timestamp;

pub use super::key_cache::{FIRST_FETCH_RETRY, KEY_MAX_AGE, KEYS_KEPT, MAX_KEY_SET_BYTES};

/// The default cool-down between two fetches for unknown keys.
pub const DEFAULT_COOLDOWN: Duration = Duration::from_mins(1);

/// The `typ`s of a person's token. Others, such as `logout+jwt`, are no proof that somebody signed in.
const KINDS: &[&str] = &["jwt", "at+jwt"];

/// One issuer of people's tokens. Every configured issuer can speak for every person: configure only what you trust.
///
/// It has no `Debug`, because `jwks_url` may hold a key.
#[derive(Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PersonIssuerConfig {
    /// The exact `iss` of its tokens.
    pub issuer: String,
    /// Where its JSON Web Key Set is. Either this or `key_file`. It must be `https`, but for loopback addresses.
    #[serde(default)]
    pub jwks_url: Option<String>,
    /// A file with a JSON Web Key Set, or with one public key as PEM (which then verifies whatever `kid` a token
    /// names). It is read again as a key set at an URL is.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// What `aud` must be, or hold.
    pub audience: String,
    /// The algorithms that it signs with, of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 and `EdDSA`. A key
    /// that names no algorithm of its own is used with the first of these that its type can do, and no other.
    #[serde(default = "default_algorithms")]
    pub algorithms: Vec<String>,
    /// The claim that is the person's id. As for the next two: a name, or a JSON pointer such as `/realm_access/roles`.
    #[serde(default = "default_subject_claim")]
    pub subject_claim: String,
    /// The claim, a text (or several, separated by spaces) or a list of texts, that `roles_map` translates.
    #[serde(default)]
    pub roles_claim: Option<String>,
    /// Which role a value of `roles_claim` grants to a member. Other values grant nothing.
    #[serde(default)]
    pub roles_map: BTreeMap<String, Role>,
    /// The claim that names the channel (`web`, `slack`, `mcp`, `api`).
    #[serde(default = "default_channel_claim")]
    pub channel_claim: String,
    /// Takes an e-mail address as the person's id although the token does not say that it is verified: for an issuer
    /// that lets nobody choose an address.
    #[serde(default)]
    pub trust_unverified_email: bool,
    /// Allows an `http` key set address that is not loopback: whoever can answer for it can then be anybody.
    #[serde(default)]
    pub allow_http_jwks: bool,
}

fn default_algorithms() -> Vec<String> {
    ["RS256", "ES256", "EdDSA"].map(str::to_owned).to_vec()
}

fn default_subject_claim() -> String {
    "sub".to_owned()
}

fn default_channel_claim() -> String {
    "channel".to_owned()
}

/// How key sets are fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpSettings {
    /// The most time for a connection.
    pub connect_timeout: Duration,
    /// The most time for the whole exchange.
    pub timeout: Duration,
}

impl Default for HttpSettings {
    /// Two seconds to connect, five in all.
    fn default() -> Self {
        Self { connect_timeout: Duration::from_secs(2), timeout: Duration::from_secs(5) }
    }
}

/// Why an issuer cannot be used as it is configured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("issuer {issuer:?}: {problem}")]
pub struct IssuerConfigError {
    /// Which issuer.
    pub issuer: String,
    /// What to change.
    pub problem: String,
}

/// The configured issuers with their keys.
pub struct PersonIssuers {
    issuers: HashMap<String, Issuer>,
    epoch: Arc<AtomicU64>,
}

struct Issuer {
    config: PersonIssuerConfig,
    algorithms: Vec<Algorithm>,
    keys: Arc<KeyCache>,
}

impl PersonIssuers {
    /// Checks the configuration and reads key files; nothing is fetched yet.
    ///
    /// `cooldown` is the least time between two fetches that unknown keys of one issuer cause.
    pub fn new(
        configs: Vec<PersonIssuerConfig>,
        cooldown: Duration,
        http: HttpSettings,
    ) -> Result<Self, IssuerConfigError> {
        let mut issuers = HashMap::new();
        let epoch = Arc::new(AtomicU64::new(0));
        for config in configs {
            let name = config.issuer.clone();
            let failed = |problem| IssuerConfigError { issuer: name.clone(), problem };
            let issuer = Issuer::new(config, cooldown, http, Arc::clone(&epoch)).map_err(failed)?;
            if issuers.insert(name.clone(), issuer).is_some() {
                return Err(failed("it is configured twice".to_owned()));
            }
        }
        Ok(Self { issuers, epoch })
    }

    /// Whether `issuer` is one of these.
    pub fn contains(&self, issuer: &str) -> bool {
        self.issuers.contains_key(issuer)
    }

    /// Fetches the keys that were not fetched yet, at the start of a server. What fails is tried again when needed.
    pub async fn preload(&self, now: Timestamp) {
        futures::future::join_all(self.issuers.values().map(|issuer| issuer.keys.preload(now))).await;
    }

    /// Who a person's token belongs to.
    pub async fn verify(&self, token: &str, now: Timestamp) -> Result<Identity, TokenError> {
        let jws = Jws::parse(token)?;
        self.identify(&jws, &Claims::parse(&jws.payload)?, now).await
    }

    pub(super) async fn identify(
        &self,
        jws: &Jws<'_>,
        claims: &Claims,
        now: Timestamp,
    ) -> Result<Identity, TokenError> {
        // Unverified, it may do no more than choose the keys that have to fit.
        let name = claims.text("iss")?;
        let issuer = self
            .issuers
            .get(name)
            .ok_or_else(|| TokenError::refused(Refusal::Issuer, format!("iss is {}", quoted(name))))?;
        issuer.identify(jws, claims, now).await
    }

    /// Rises whenever the keys of an issuer change.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }
}

impl Issuer {
    fn new(
        config: PersonIssuerConfig,
        cooldown: Duration,
        http: HttpSettings,
        epoch: Arc<AtomicU64>,
    ) -> Result<Self, String> {
        for (name, value) in [("issuer", &config.issuer), ("audience", &config.audience)] {
            if value.is_empty() {
                return Err(format!("{name} is empty"));
            }
        }
        let algorithms = config.algorithms.iter().map(|name| {
            asymmetric(name).ok_or_else(|| format!("algorithm {name:?} is not accepted: only asymmetric ones are"))
        });
        let algorithms = algorithms.collect::<Result<Vec<_>, _>>()?;
        if algorithms.is_empty() {
            return Err("algorithms is empty".to_owned());
        }
        let cache = |source| KeyCache::new(config.issuer.clone(), source, algorithms.clone(), cooldown, epoch);
        let keys = match (&config.jwks_url, &config.key_file) {
            (Some(url), None) => {
                let url = key_set_url(url, config.allow_http_jwks)?;
                let client = client(&url, http)?;
                cache(Source::Url { client, url })
            }
            (None, Some(path)) => {
                let problem = |problem: &str| format!("key_file {}: {problem}", path.display());
                let text = std::fs::read(path).map_err(|error| problem(&error.to_string()))?;
                let keys = KeySet::from_file(&text, &algorithms).map_err(problem)?;
                if keys.is_empty() {
                    return Err(problem("it holds no key that can be used with the issuer's algorithms"));
                }
                cache(Source::File(path.clone())).with_keys(&text, keys)
            }
            _ => return Err("give one of jwks_url and key_file".to_owned()),
        };
        Ok(Self { keys: Arc::new(keys), config, algorithms })
    }

    async fn identify(&self, jws: &Jws<'_>, claims: &Claims, now: Timestamp) -> Result<Identity, TokenError> {
        jws.check_kind(KINDS, true)?;
        if !self.algorithms.contains(&jws.algorithm) {
            let detail = format!("{} does not sign with {:?}", self.config.issuer, jws.algorithm);
            return Err(TokenError::refused(Refusal::Signature, detail));
        }
        // A token that is refused whatever its signature does not get to ask for keys.
        claims.check_audience(&self.config.audience)?;
        let expires_at = claims.check_times(now)?;
        self.keys.find(jws.kid.as_deref(), jws.algorithm, now).await?.check(jws)?;
        Ok(Identity::Person {
            id: self.subject(claims)?,
            mapped_roles: self.roles(claims),
            channel: self.channel(claims),
            expires_at,
        })
    }

    fn subject(&self, claims: &Claims) -> Result<PersonId, TokenError> {
        let name = &self.config.subject_claim;
        // An address that anybody may type in at the issuer is no proof of who they are.
        if let Some(flag) = verified_flag(name)
            && !self.config.trust_unverified_email
            && !claims.find(&flag).is_some_and(says_yes)
        {
            let detail = format!("claim {flag} is not true (trust_unverified_email takes such an address)");
            return Err(TokenError::refused(Refusal::Claims, detail));
        }
        PersonId::parse(claims.text(name)?)
            .map_err(|error| TokenError::refused(Refusal::Claims, format!("claim {name}: {error}")))
    }

    fn roles(&self, claims: &Claims) -> Vec<Role> {
        let claimed = self.config.roles_claim.as_deref().and_then(|name| claims.find(name));
        let granted = |value: &str| self.config.roles_map.get(value).copied();
        let mut roles: Vec<Role> = match claimed {
            Some(Value::String(text)) => {
                granted(text).into_iter().chain(text.split_whitespace().filter_map(granted)).collect()
            }
            Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).filter_map(granted).collect(),
            _ => Vec::new(),
        };
        roles.sort_unstable();
        roles.dedup();
        roles
    }

    /// A channel that is not known says nothing, and a person is no harness.
    fn channel(&self, claims: &Claims) -> Option<Channel> {
        let named = claims.find(&self.config.channel_claim)?.as_str()?;
        named.parse().ok().filter(|channel| *channel != Channel::Harness)
    }
}

/// The claim beside an `email` that says whether it is verified; none beside other claims. A name, a name with a
/// namespace (`https://example.com/email`) and a JSON pointer to either end alike.
fn verified_flag(claim: &str) -> Option<String> {
    let after = |separator: &str| claim.rfind(separator).map_or(0, |at| at + separator.len());
    // In a pointer a slash within a name is `~1`.
    let (place, last) = claim.split_at(after("/").max(after("~1")));
    last.eq_ignore_ascii_case("email").then(|| format!("{place}email_verified"))
}

/// Whether a claim is `true`. Some issuers write all values as texts.
fn says_yes(claim: &Value) -> bool {
    *claim == Value::Bool(true) || *claim == json!("true")
}

fn key_set_url(text: &str, allow_http: bool) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("jwks_url: {error}"))?;
    match url.scheme() {
        "https" => Ok(url),
        "http" if allow_http || is_loopback(&url) => Ok(url),
        _ => Err("jwks_url must be https: who can answer for it can be anybody (allow_http_jwks for http)".to_owned()),
    }
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

fn client(url: &Url, http: HttpSettings) -> Result<reqwest::Client, String> {
    let mut builder = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(http.connect_timeout)
        .timeout(http.timeout)
        .user_agent(concat!("mandate/", env!("CARGO_PKG_VERSION")));
    if is_loopback(url) {
        // A proxy has another idea of what is local.
        builder = builder.no_proxy();
    }
    if url.scheme() == "http" {
        // Nothing is encrypted, so that a machine without root certificates, such as a slim container, will do.
        builder = builder.tls_certs_only([]);
    }
    builder.build().map_err(|error| format!("no HTTP client: {}", chain(error)))
}
