//! Access tokens of service accounts, which this server issues to itself (RFC 9068).

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use super::claims::Claims;
use super::error::{Refusal, TokenError, quoted};
use super::jws::{Jws, base64url};
use super::keys::KeyRing;
use super::random;
use crate::domain::ids::{AccountId, CredentialId, OrganizationId};
use crate::domain::principal::Identity;
use crate::domain::time::Timestamp;

/// The `typ` of an access token, which keeps other things that the same key signs from passing for one.
const ACCESS_TOKEN: &str = "at+jwt";
const ORGANIZATION: &str = "organization_id";

/// What a service account's token says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceClaims {
    /// The only organization in which the account exists.
    pub organization_id: OrganizationId,
    /// The account (`sub`).
    pub account_id: AccountId,
    /// The credential that the token is bought with (`client_id`).
    pub credential_id: CredentialId,
    /// The account's name, for people who look into a token; nothing depends on it.
    pub name: String,
}

/// An issued token.
#[derive(Clone, PartialEq, Eq)]
pub struct IssuedToken {
    /// The bearer token.
    pub token: String,
    /// How long it is valid.
    pub expires_in_seconds: u64,
}

/// Prints the lifetime and nothing of the token.
impl std::fmt::Debug for IssuedToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IssuedToken").field("expires_in_seconds", &self.expires_in_seconds).finish_non_exhaustive()
    }
}

/// Issues and verifies the tokens of service accounts.
#[derive(Debug)]
pub struct TokenIssuer {
    keyring: Arc<KeyRing>,
    issuer: String,
    audience: String,
    ttl: Duration,
}

impl TokenIssuer {
    /// Tokens by `keyring`, from `issuer` for `audience`, valid for `ttl` (whole seconds).
    pub fn new(keyring: Arc<KeyRing>, issuer: impl Into<String>, audience: impl Into<String>, ttl: Duration) -> Self {
        Self { keyring, issuer: issuer.into(), audience: audience.into(), ttl }
    }

    /// The keys that sign and verify.
    pub fn keyring(&self) -> &Arc<KeyRing> {
        &self.keyring
    }

    /// The `iss` of these tokens.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Issues a token, valid from the second of `now` on.
    pub fn issue(&self, claims: &ServiceClaims, now: Timestamp) -> IssuedToken {
        let from = now.micros().div_euclid(1_000_000);
        let expires_in_seconds = self.ttl.as_secs();
        let payload = json!({
            "iss": self.issuer,
            "aud": self.audience,
            "sub": claims.account_id,
            "client_id": claims.credential_id,
            ORGANIZATION: claims.organization_id,
            "name": claims.name,
            "iat": from,
            "nbf": from,
            "exp": from.saturating_add_unsigned(expires_in_seconds),
            "jti": base64url(random::<16>()),
        });
        let token = self.keyring.sign_jws(payload.to_string().as_bytes(), ACCESS_TOKEN);
        IssuedToken { token, expires_in_seconds }
    }

    /// Who a token of this server belongs to. Whether its credential still stands is for the directory to say.
    pub fn verify(&self, token: &str, now: Timestamp) -> Result<Identity, TokenError> {
        let jws = Jws::parse(token)?;
        self.identify(&jws, &Claims::parse(&jws.payload)?, now)
    }

    pub(super) fn identify(&self, jws: &Jws<'_>, claims: &Claims, now: Timestamp) -> Result<Identity, TokenError> {
        self.keyring.check(jws, ACCESS_TOKEN)?;
        let issuer = claims.text("iss")?;
        if issuer != self.issuer {
            return Err(TokenError::refused(Refusal::Issuer, format!("iss is {}", quoted(issuer))));
        }
        claims.check_audience(&self.audience)?;
        claims.required_time("nbf")?;
        claims.required_time("iat")?;
        let expires_at = claims.check_times(now)?;
        Ok(Identity::Service {
            organization_id: id(claims, ORGANIZATION)?.into(),
            account_id: id(claims, "sub")?.into(),
            credential_id: id(claims, "client_id")?.into(),
            expires_at,
        })
    }
}

fn id(claims: &Claims, name: &str) -> Result<Uuid, TokenError> {
    Uuid::parse_str(claims.text(name)?)
        .map_err(|_| TokenError::refused(Refusal::Claims, format!("claim {name} is no UUID")))
}
