//! Compact JWS: three base64url parts, one key, one algorithm.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use serde_json::{Map, Value};

use super::MAX_TOKEN_BYTES;
use super::error::{Refusal, TokenError, quoted};

/// Base64url without padding.
pub(super) fn base64url(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// An asymmetric algorithm by its name; `none` and the HMACs have no place here.
pub(super) fn asymmetric(name: &str) -> Option<Algorithm> {
    name.parse::<Algorithm>().ok().filter(|algorithm| algorithm.family() != AlgorithmFamily::Hmac)
}

/// A JWS that was taken apart and not yet believed.
pub(super) struct Jws<'a> {
    /// The algorithm that the header names: to be compared with the key's, never to be followed.
    pub(super) algorithm: Algorithm,
    /// Names a key in a map. `jku`, `x5u`, `jwk` and `x5c` are not even read.
    pub(super) kid: Option<String>,
    typ: Option<String>,
    /// The decoded payload.
    pub(super) payload: Vec<u8>,
    message: &'a str,
    signature: &'a str,
}

impl<'a> Jws<'a> {
    /// Takes `token` apart. Nothing in it can be trusted before [`VerificationKey::check`] says so.
    pub(super) fn parse(token: &'a str) -> Result<Self, TokenError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(malformed(format!("the token has {} bytes", token.len())));
        }
        let (message, signature) = token.rsplit_once('.').ok_or_else(|| malformed("no compact JWS"))?;
        let (header, payload) = message.split_once('.').ok_or_else(|| malformed("no compact JWS"))?;
        let header: Map<String, Value> = serde_json::from_slice(&decode(header, "header")?)
            .map_err(|_| malformed("the header is no JSON object"))?;
        // We understand no extension, and one that is critical must be understood.
        if header.contains_key("crit") {
            return Err(malformed("the header has crit"));
        }
        let name = text(&header, "alg")?.ok_or_else(|| malformed("the header has no alg"))?;
        let algorithm = asymmetric(&name).ok_or_else(|| {
            TokenError::refused(Refusal::Signature, format!("alg {} is never accepted", quoted(&name)))
        })?;
        Ok(Self {
            algorithm,
            kid: text(&header, "kid")?,
            typ: text(&header, "typ")?,
            payload: decode(payload, "payload")?,
            message,
            signature,
        })
    }

    /// Whether `typ` is one of `kinds`; letter case and the prefix `application/` do not count (RFC 7515, 4.1.9).
    pub(super) fn check_kind(&self, kinds: &[&str], absent_is_fine: bool) -> Result<(), TokenError> {
        let fits = match &self.typ {
            None => absent_is_fine,
            Some(typ) => {
                let typ = typ.to_ascii_lowercase();
                kinds.contains(&typ.strip_prefix("application/").unwrap_or(&typ))
            }
        };
        if fits {
            return Ok(());
        }
        let shown = self.typ.as_deref().map_or_else(|| "absent".to_owned(), quoted);
        Err(TokenError::refused(Refusal::Kind, format!("typ is {shown}")))
    }
}

/// A public key with the one algorithm that it is used with.
pub(super) struct VerificationKey {
    pub(super) algorithm: Algorithm,
    pub(super) key: DecodingKey,
}

impl VerificationKey {
    /// Checks the signature, under the key's own algorithm.
    pub(super) fn check(&self, jws: &Jws<'_>) -> Result<(), TokenError> {
        if jws.algorithm != self.algorithm {
            let detail = format!("alg is {:?}, the key is for {:?}", jws.algorithm, self.algorithm);
            return Err(TokenError::refused(Refusal::Signature, detail));
        }
        let genuine = jsonwebtoken::crypto::verify(jws.signature, jws.message.as_bytes(), &self.key, self.algorithm);
        if genuine.is_ok_and(|genuine| genuine) {
            return Ok(());
        }
        Err(TokenError::refused(Refusal::Signature, "the signature does not fit the key"))
    }
}

fn malformed(detail: impl Into<String>) -> TokenError {
    TokenError::refused(Refusal::Malformed, detail)
}

fn decode(part: &str, what: &str) -> Result<Vec<u8>, TokenError> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| malformed(format!("the {what} is no base64url")))
}

fn text(header: &Map<String, Value>, name: &str) -> Result<Option<String>, TokenError> {
    match header.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(malformed(format!("{name} in the header is no string"))),
    }
}
