//! Tokens of service principals: OAuth 2.0 client credentials. The 400 and 401 answers are OAuth's own.

use std::num::NonZeroU32;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use url::form_urlencoded;
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::body::RawBody;
use super::problem::Problem;
use super::respond::{Answer, ok};
use crate::auth::secrets;
use crate::auth::tokens::ServiceClaims;
use crate::domain::ids::CredentialId;
use crate::service::ServiceError;

/// The most bytes of a form that buys a token. Whoever sends it has not said who he is.
const FORM_BYTES_MAX: usize = 16 * 1024;

/// Limits the tokens of one client.
pub type Limit = DefaultKeyedRateLimiter<CredentialId>;

/// At most `per_minute` tokens a minute for each client.
pub fn limit(per_minute: u32) -> Limit {
    let per_minute = NonZeroU32::new(per_minute).unwrap_or(NonZeroU32::MIN);
    RateLimiter::keyed(Quota::per_minute(per_minute))
}

/// A client-credentials grant, as a form. The credentials may stand in HTTP Basic instead.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"grant_type": "client_credentials", "client_id": "01890a5d-ac96-774b-bcce-b302099a8057",
    "client_secret": "mds_…"}))]
#[allow(dead_code, reason = "describes the form, which is read pair by pair")]
pub struct TokenRequest {
    /// `client_credentials`.
    grant_type: String,
    /// The credential.
    client_id: Option<String>,
    /// Its secret.
    client_secret: Option<String>,
}

/// An access token.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"access_token": "eyJ…", "token_type": "Bearer", "expires_in": 900}))]
pub struct TokenAnswer {
    /// A JWT, to be sent as `Authorization: Bearer …`.
    pub access_token: String,
    /// `Bearer`.
    pub token_type: &'static str,
    /// For how many seconds.
    pub expires_in: u64,
}

/// Why no token is given.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"error": "invalid_client", "error_description": "the client id or its secret is wrong"}))]
pub struct TokenError {
    /// `invalid_request`, `invalid_client` or `unsupported_grant_type`.
    pub error: &'static str,
    /// For a person.
    pub error_description: &'static str,
}

fn oauth(status: StatusCode, error: &'static str, error_description: &'static str) -> Response {
    let text = serde_json::to_string(&TokenError { error, error_description }).unwrap_or_default();
    let mut response = (status, text).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"mandate\""));
    }
    response
}

fn wrong_client() -> Response {
    oauth(StatusCode::UNAUTHORIZED, "invalid_client", "the client id or its secret is wrong")
}

fn malformed(what: &'static str) -> Response {
    oauth(StatusCode::BAD_REQUEST, "invalid_request", what)
}

/// The client id and secret of HTTP Basic, form-decoded as RFC 6749 says.
fn basic(headers: &HeaderMap) -> Option<Result<(String, String), Box<Response>>> {
    let header = headers.get(AUTHORIZATION)?;
    let read = || {
        let (scheme, encoded) = header.to_str().ok()?.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("basic") {
            return None;
        }
        let text = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
        let (id, secret) = text.split_once(':')?;
        let decode = |part: &str| {
            let pair = form_urlencoded::parse(part.as_bytes()).next();
            pair.map(|(key, _)| key.into_owned()).unwrap_or_default()
        };
        Some((decode(id), decode(secret)))
    };
    Some(read().ok_or_else(|| Box::new(wrong_client())))
}

fn credentials(headers: &HeaderMap, body: &Bytes) -> Result<(String, String), Box<Response>> {
    let mut form = std::collections::BTreeMap::new();
    for (key, value) in form_urlencoded::parse(body) {
        if form.insert(key.into_owned(), value.into_owned()).is_some() {
            return Err(Box::new(malformed("a parameter is repeated")));
        }
    }
    match form.get("grant_type").map(String::as_str) {
        Some("client_credentials") => {}
        Some(_) => {
            let what = "only client_credentials is supported";
            return Err(Box::new(oauth(StatusCode::BAD_REQUEST, "unsupported_grant_type", what)));
        }
        None => return Err(Box::new(malformed("grant_type is required"))),
    }
    if headers.get_all(AUTHORIZATION).iter().count() > 1 {
        return Err(Box::new(malformed("there is more than one Authorization header")));
    }
    match (basic(headers), form.remove("client_id"), form.remove("client_secret")) {
        (Some(_), _, Some(_)) => {
            Err(Box::new(malformed("credentials stand in the header or in the form, not in both")))
        }
        (Some(Ok((id, secret))), named, None) => {
            if named.is_some_and(|named| named != id) {
                Err(Box::new(malformed("two client ids are given")))
            } else {
                Ok((id, secret))
            }
        }
        (Some(Err(refusal)), _, None) => Err(refusal),
        (None, Some(id), Some(secret)) => Ok((id, secret)),
        (None, _, _) => Err(Box::new(wrong_client())),
    }
}

/// Get a token.
///
/// OAuth 2.0 client credentials, by form or HTTP Basic. The token is short-lived; ask again when it ends.
#[utoipa::path(post, path = "/auth/token", operation_id = "issue_token", tag = "auth",
    request_body(content = TokenRequest, content_type = "application/x-www-form-urlencoded"),
    responses((status = 200, description = "A token", body = TokenAnswer),
        (status = 400, description = "The request is malformed", body = TokenError, content_type = "application/json"),
        (status = 401, description = "The client is unknown or its secret wrong", body = TokenError,
            content_type = "application/json")))]
pub async fn issue(State(app): State<App>, headers: HeaderMap, request: Request) -> Result<Response, Problem> {
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !media_type.to_ascii_lowercase().starts_with("application/x-www-form-urlencoded") {
        return Ok(malformed("the body is application/x-www-form-urlencoded"));
    }
    let body = RawBody::read_whole(request, FORM_BYTES_MAX).await;
    let bytes = body.bytes()?;
    let (id, secret) = match credentials(&headers, bytes) {
        Ok(pair) => pair,
        Err(refusal) => return Ok(*refusal),
    };
    let Ok(id) = Uuid::try_parse(&id).map(CredentialId) else { return Ok(wrong_client()) };
    let known = app.directory().credential(id).await.map_err(ServiceError::from)?;
    let Some(known) = known else { return Ok(wrong_client()) };
    if !secrets::matches(&secret, &known.secret_hash) {
        return Ok(wrong_client());
    }
    // Counted once the secret is right: client ids are no secret, and nobody may lock a harness out by guessing. A
    // secret of 256 random bits needs no limit on guesses.
    if let Err(early) = app.token_limit().check_key(&id) {
        let wait: Duration = early.wait_time_from(DefaultClock::default().now());
        return Err(Problem::rate_limited(wait.as_secs() + 1));
    }
    let claims = ServiceClaims {
        organization_id: known.organization_id,
        account_id: known.account_id,
        credential_id: id,
        name: known.account_slug,
    };
    let issued = app.verifier().issuer().issue(&claims, app.service().clock().now());
    let mut response =
        ok(&TokenAnswer { access_token: issued.token, token_type: "Bearer", expires_in: issued.expires_in_seconds })?;
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// The server's public keys.
#[utoipa::path(get, path = "/.well-known/jwks.json", operation_id = "jwks", tag = "auth",
    responses((status = 200, description = "A JSON Web Key Set", body = serde_json::Value,
        example = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "…", "x": "…", "alg": "EdDSA", "use": "sig"}]}))))]
pub async fn jwks(State(app): State<App>) -> Answer {
    let keys = app.verifier().issuer().keyring().jwks();
    ok(&keys)
}
