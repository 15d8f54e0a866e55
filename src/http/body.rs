//! Bodies: read whole under a limit, but judged only when the handler asks, because refusals of the caller and of the
//! route rank before those of the body.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use http::header::CONTENT_TYPE;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use uuid::Uuid;

use super::App;
use crate::domain::digest::Digest;
use crate::domain::ids::SessionId;
use crate::domain::json::{self, Value};
use crate::domain::limits::KEY_MAX;
use crate::domain::read::{Fields, redact_members};
use crate::domain::refusal::{Checked, Fault, Refusal};
use crate::service::{Call, Caller};

/// The bytes of a body, or why there are none.
pub struct RawBody {
    bytes: Result<Bytes, Refusal>,
    is_json: bool,
    idempotency_key: Option<String>,
}

impl FromRequest<App> for RawBody {
    type Rejection = std::convert::Infallible;

    async fn from_request(request: Request, app: &App) -> Result<Self, Self::Rejection> {
        let limit = app.settings().body_limit_bytes;
        let headers = request.headers();
        let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let is_json =
            essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"));
        let key = headers.get("idempotency-key").and_then(|value| value.to_str().ok()).map(str::to_owned);
        let read = Limited::new(request.into_body(), limit).collect().await;
        let bytes = match read {
            Ok(collected) => Ok(collected.to_bytes()),
            Err(fault) if fault.downcast_ref::<LengthLimitError>().is_some() => {
                Err(Refusal::PayloadTooLarge { limit, what: String::new() })
            }
            Err(_) => Err(Refusal::InvalidJson("the body ended before it was complete".to_owned())),
        };
        Ok(Self { bytes, is_json, idempotency_key: key })
    }
}

impl RawBody {
    /// The bytes, for a route whose body is no JSON.
    pub fn bytes(&self) -> Result<&Bytes, Refusal> {
        self.bytes.as_ref().map_err(Clone::clone)
    }

    /// The body of a route with required members. The members named `content` are redacted.
    pub fn required(&self, content: &[&str]) -> Result<Body<'_>, Refusal> {
        let (value, faults) = self.scan()?;
        Ok(Body::new(value, faults, content, self.idempotency_key.as_deref()))
    }

    /// A batch whose entries have ids of their own: nothing keeps its hash, so it has none.
    pub fn batch(&self) -> Result<Body<'_>, Refusal> {
        let (value, faults) = self.scan()?;
        Ok(Body { value, faults, hash: [0; 32], redacted: Vec::new(), header_key: None })
    }

    /// The body of a route without required members: it may be absent altogether.
    pub fn optional(&self, content: &[&str]) -> Result<Body<'_>, Refusal> {
        if self.bytes.as_ref().is_ok_and(Bytes::is_empty) {
            return Ok(Body::new(Value::Null, Vec::new(), content, self.idempotency_key.as_deref()));
        }
        self.required(content)
    }

    fn scan(&self) -> Result<(Value<'_>, Vec<Fault>), Refusal> {
        let bytes = self.bytes.as_ref().map_err(Clone::clone)?;
        if bytes.is_empty() {
            return Err(Refusal::InvalidJson("the body is empty".to_owned()));
        }
        if !self.is_json {
            return Err(Refusal::UnsupportedMediaType);
        }
        let scanned = json::scan(bytes).map_err(|fault| Refusal::InvalidJson(fault.to_string()))?;
        let faults = scanned
            .violations
            .iter()
            .map(|violation| Fault::new(violation.pointer.clone(), violation.kind.to_string()))
            .collect();
        Ok((scanned.value, faults))
    }
}

/// A body as JSON, redacted, with the faults that it has as JSON.
pub struct Body<'a> {
    /// The value.
    pub value: Value<'a>,
    /// What is wrong with it as JSON: duplicate keys, U+0000, lone surrogates, …
    pub faults: Vec<Fault>,
    hash: [u8; 32],
    redacted: Vec<String>,
    header_key: Option<&'a str>,
}

impl<'a> Body<'a> {
    fn new(mut value: Value<'a>, faults: Vec<Fault>, content: &[&str], header_key: Option<&'a str>) -> Self {
        let hash = hash(&value);
        let redacted = redact_members(&mut value, content);
        Self { value, faults, hash, redacted, header_key }
    }

    /// The call of `caller` with this body.
    pub fn call(&self, caller: &Caller) -> Call {
        Call { caller: caller.clone(), body_hash: self.hash, redacted: self.redacted.clone() }
    }

    /// A reader of its members; `finish` tells the faults of the JSON too.
    pub fn fields(&self) -> Fields<'_> {
        Fields::new(&self.value, "").with_faults(&self.faults)
    }

    /// A reader of single members, whose faults are told before those of the rest.
    pub fn peek(&self) -> Fields<'_> {
        Fields::new(&self.value, "")
    }

    /// The session that the body names.
    pub fn session(&self) -> Checked<Option<SessionId>> {
        let mut fields = self.peek();
        let session = fields.id_opt("session_id");
        fields.finish(session)
    }

    /// The key of the header or of the member `name`; both and different is a fault. Absent where neither can be read.
    pub fn key(&self, name: &str) -> Checked<Option<String>> {
        let mut fields = self.peek();
        let member = fields.text_opt(name, 1..=KEY_MAX);
        let member = fields.finish(member)?;
        let header = self.header_key.map(str::to_owned);
        if header.as_ref().is_some_and(|key| key.trim().is_empty() || key.chars().count() > KEY_MAX) {
            let detail = format!("must have 1 to {KEY_MAX} characters");
            return Err(Refusal::invalid_header("Idempotency-Key", detail));
        }
        match (header, member) {
            (Some(header), Some(member)) if header != member => {
                Err(Refusal::invalid_header("Idempotency-Key", format!("differs from /{name} in the body")))
            }
            (header, member) => Ok(header.or(member)),
        }
    }
}

/// The hash of a body, the same for reordered members and other white space. The key is not part of it: it may stand
/// in the header or in the body.
fn hash(value: &Value<'_>) -> [u8; 32] {
    let canonical = match value {
        Value::Object(members) if members.iter().any(|(key, _)| key.as_str() == "idempotency_key") => {
            let rest = members.iter().filter(|(key, _)| key.as_str() != "idempotency_key").cloned().collect();
            Value::Object(rest).canonical()
        }
        other => other.canonical(),
    };
    Digest::of(canonical.as_bytes()).0
}

/// Parses an id of the path; `refusal` is what an id that is none answers, like one that does not exist.
pub fn path_id<T: From<Uuid>>(text: &str, refusal: Refusal) -> Result<T, Refusal> {
    Uuid::try_parse(text).map(T::from).map_err(|_| refusal)
}
