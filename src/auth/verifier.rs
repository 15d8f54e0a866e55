//! One door for every bearer token.

use std::sync::Arc;
use std::time::Duration;

use moka::future::Cache;
use sha2::{Digest as _, Sha256};

use super::MAX_TOKEN_BYTES;
use super::claims::Claims;
use super::error::{Refusal, TokenError};
use super::issuers::{IssuerConfigError, PersonIssuers};
use super::jws::Jws;
use super::tokens::TokenIssuer;
use crate::domain::principal::Identity;
use crate::domain::time::Timestamp;

/// How many verified tokens are remembered.
pub const CACHE_CAPACITY: u64 = 10_000;

/// How long a verified token is remembered, its own end permitting.
pub const CACHE_TTL: Duration = Duration::from_mins(1);

/// Verifies the tokens of service accounts and of people, and remembers for a while which were good.
pub struct Verifier {
    issuer: TokenIssuer,
    people: PersonIssuers,
    /// By the token's SHA-256, so that a look into memory finds no tokens. Refusals are not kept: strangers would
    /// fill the cache with them.
    cache: Cache<[u8; 32], Arc<Verified>>,
}

struct Verified {
    identity: Identity,
    at: Timestamp,
    until: Timestamp,
    /// Under which keys. Others have to be asked again, because the one that signed may be gone.
    epochs: (u64, u64),
}

impl Verifier {
    /// Refuses a configuration in which people could be issued this server's own tokens.
    pub fn new(issuer: TokenIssuer, people: PersonIssuers) -> Result<Self, IssuerConfigError> {
        if people.contains(issuer.issuer()) {
            return Err(IssuerConfigError {
                issuer: issuer.issuer().to_owned(),
                problem: "this is the server's own issuer, which has no tokens for people".to_owned(),
            });
        }
        let cache = Cache::builder().max_capacity(CACHE_CAPACITY).time_to_live(CACHE_TTL).build();
        Ok(Self { issuer, people, cache })
    }

    /// Issues tokens.
    pub fn issuer(&self) -> &TokenIssuer {
        &self.issuer
    }

    /// The issuers of people's tokens.
    pub fn people(&self) -> &PersonIssuers {
        &self.people
    }

    /// Who the bearer token belongs to.
    pub async fn verify(&self, bearer: &str, now: Timestamp) -> Result<Identity, TokenError> {
        // Before the hash: nobody makes us hash megabytes.
        if bearer.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::refused(Refusal::Malformed, format!("the token has {} bytes", bearer.len())));
        }
        let key: [u8; 32] = Sha256::digest(bearer.as_bytes()).into();
        // Read before the verification: keys that change during it make its result stale at once.
        let epochs = self.epochs();
        if let Some(known) = self.cache.get(&key).await
            && known.holds(now, epochs)
        {
            return Ok(known.identity.clone());
        }
        let jws = Jws::parse(bearer)?;
        let claims = Claims::parse(&jws.payload)?;
        let identity = if claims.text("iss")? == self.issuer.issuer() {
            self.issuer.identify(&jws, &claims, now)?
        } else {
            self.people.identify(&jws, &claims, now).await?
        };
        let until = now.plus(CACHE_TTL).min(expiry(&identity));
        let verified = Verified { identity: identity.clone(), at: now, until, epochs };
        self.cache.insert(key, Arc::new(verified)).await;
        Ok(identity)
    }

    fn epochs(&self) -> (u64, u64) {
        (self.issuer.keyring().epoch(), self.people.epoch())
    }
}

impl Verified {
    fn holds(&self, now: Timestamp, epochs: (u64, u64)) -> bool {
        self.epochs == epochs && self.at <= now && now < self.until
    }
}

fn expiry(identity: &Identity) -> Timestamp {
    match identity {
        Identity::Person { expires_at, .. } | Identity::Service { expires_at, .. } => *expires_at,
    }
}
