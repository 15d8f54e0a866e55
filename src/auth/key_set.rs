//! An issuer's public keys, each with the one algorithm that it is used with.

use std::collections::HashMap;
use std::sync::Arc;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde_json::Value;

use super::jws::VerificationKey;

const RSA: &[Algorithm] =
    &[Algorithm::RS256, Algorithm::RS384, Algorithm::RS512, Algorithm::PS256, Algorithm::PS384, Algorithm::PS512];
const P256: &[Algorithm] = &[Algorithm::ES256];
const P384: &[Algorithm] = &[Algorithm::ES384];
const ED25519: &[Algorithm] = &[Algorithm::EdDSA];

/// The usable keys of an issuer.
#[derive(Default)]
pub(super) struct KeySet {
    all: Vec<Arc<VerificationKey>>,
    by_kid: HashMap<String, Vec<Arc<VerificationKey>>>,
    /// A key from a PEM file has no id and is meant whatever id the token names.
    any_kid: bool,
}

/// What a token's `kid` and `alg` lead to.
pub(super) enum Lookup {
    /// The key.
    Found(Arc<VerificationKey>),
    /// No such key: a newer key set might hold it.
    Unknown,
    /// There is such a key, but not one that fits: a newer key set is not asked for.
    Unfit(&'static str),
}

impl KeySet {
    /// Reads a JSON Web Key Set. Keys that cannot be used, or not under one of `allowed`, are left out.
    pub(super) fn from_jwks(text: &[u8], allowed: &[Algorithm]) -> Result<Self, &'static str> {
        #[derive(serde::Deserialize)]
        struct Keys {
            // Each on its own: a key of tomorrow's kind must not take the others with it.
            keys: Vec<Value>,
        }
        let Keys { keys } = serde_json::from_slice(text).map_err(|_| "not a JSON Web Key Set")?;
        let mut set = Self::default();
        for value in keys {
            let read = serde_json::from_value::<Jwk>(value).map_err(|_| "it is no JSON Web Key");
            match read.and_then(|jwk| Ok((usable(&jwk, allowed)?, jwk.common.key_id))) {
                Ok((key, kid)) => set.add(key, kid),
                Err(problem) => tracing::debug!(problem, "a key of a key set is left out"),
            }
        }
        Ok(set)
    }

    /// Reads one public key as PEM.
    pub(super) fn from_pem(text: &str, allowed: &[Algorithm]) -> Result<Self, &'static str> {
        if text.matches("-----BEGIN ").count() > 1 {
            return Err("a PEM file holds one public key: use a JSON Web Key Set for several");
        }
        // Certificates are not supported, and a private key has no business here.
        if !text.contains("-----BEGIN PUBLIC KEY-----") && !text.contains("-----BEGIN RSA PUBLIC KEY-----") {
            return Err("neither a JSON Web Key Set nor a public key as PEM");
        }
        let pem = text.as_bytes();
        let (key, fitting) = if let Ok(key) = DecodingKey::from_ed_pem(pem) {
            (key, ED25519)
        } else if let Ok(key) = DecodingKey::from_ec_pem(pem) {
            let fitting = match key.try_get_as_bytes().map(<[u8]>::len) {
                Ok(65) => P256,
                Ok(97) => P384,
                _ => return Err("an elliptic curve that is not supported"),
            };
            (key, fitting)
        } else {
            (DecodingKey::from_rsa_pem(pem).map_err(|_| "not a public key as PEM")?, RSA)
        };
        let mut set = Self { any_kid: true, ..Self::default() };
        let algorithm = first_allowed(allowed, fitting).ok_or("a key for none of the issuer's algorithms")?;
        set.add(VerificationKey { algorithm, key }, None);
        Ok(set)
    }

    /// Reads a key file, of either kind.
    pub(super) fn from_file(text: &[u8], allowed: &[Algorithm]) -> Result<Self, &'static str> {
        match std::str::from_utf8(text) {
            Ok(text) if text.contains("-----BEGIN ") => Self::from_pem(text, allowed),
            _ => Self::from_jwks(text, allowed),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The one key that a token's header leads to. A token without `kid` has to leave no choice.
    pub(super) fn find(&self, kid: Option<&str>, algorithm: Algorithm) -> Lookup {
        let named = match kid {
            Some(kid) if !self.any_kid => match self.by_kid.get(kid) {
                Some(named) => named,
                None => return Lookup::Unknown,
            },
            _ => &self.all,
        };
        let mut fitting = named.iter().filter(|key| key.algorithm == algorithm);
        match (fitting.next(), fitting.next()) {
            (Some(one), None) => Lookup::Found(Arc::clone(one)),
            (Some(_), Some(_)) => Lookup::Unfit("several keys fit"),
            (None, _) if kid.is_none() => Lookup::Unknown,
            (None, _) => Lookup::Unfit("the key is for another algorithm"),
        }
    }

    fn add(&mut self, key: VerificationKey, kid: Option<String>) {
        let key = Arc::new(key);
        if let Some(kid) = kid {
            self.by_kid.entry(kid).or_default().push(Arc::clone(&key));
        }
        self.all.push(key);
    }
}

/// The key and its one algorithm: the one that it names, else the first of `allowed` that its type can do.
fn usable(jwk: &Jwk, allowed: &[Algorithm]) -> Result<VerificationKey, &'static str> {
    let common = &jwk.common;
    if common.public_key_use.as_ref().is_some_and(|meant| *meant != PublicKeyUse::Signature) {
        return Err("it is not for signatures");
    }
    if common.key_operations.as_ref().is_some_and(|meant| !meant.contains(&KeyOperations::Verify)) {
        return Err("it is not for verifying");
    }
    let fitting = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => RSA,
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => P256,
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P384 => P384,
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => ED25519,
        _ => return Err("its type is not supported"),
    };
    let algorithm = match common.key_algorithm {
        Some(named) => {
            Algorithm::try_from(named).ok().filter(|named| fitting.contains(named) && allowed.contains(named))
        }
        None => first_allowed(allowed, fitting),
    };
    let algorithm = algorithm.ok_or("it is for none of the issuer's algorithms")?;
    let key = DecodingKey::from_jwk(jwk).map_err(|_| "its numbers cannot be read")?;
    Ok(VerificationKey { algorithm, key })
}

fn first_allowed(allowed: &[Algorithm], fitting: &[Algorithm]) -> Option<Algorithm> {
    allowed.iter().copied().find(|algorithm| fitting.contains(algorithm))
}
