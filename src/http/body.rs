//! Bodies: read whole under a limit, but judged only when the handler asks, because refusals of the caller and of the
//! route rank before those of the body.

use std::time::Duration;

use axum::body::{Body as HttpBody, Bytes, HttpBody as _};
use axum::extract::{FromRequest, Request};
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use uuid::Uuid;

use super::App;
use crate::domain::digest::Digest;
use crate::domain::ids::SessionId;
use crate::domain::json::{self, Value};
use crate::domain::limits::{KEY_MAX, PAYLOAD_BYTES_MAX};
use crate::domain::read::{Fields, KEY_SECRET, redact_members};
use crate::domain::redaction::holds_token;
use crate::domain::refusal::{Checked, Fault, Refusal};
use crate::service::{Call, Caller};

/// How many bytes of a body that was refused are still taken, and for how long: a client that sends all of it before it
/// reads would find its connection reset and never see the answer.
const DRAINED_MAX: usize = 64 * 1024 * 1024;
const DRAINED_FOR: Duration = Duration::from_secs(10);

/// The header that names a call.
const IDEMPOTENCY_KEY: &str = "Idempotency-Key";
/// A body's own level of nesting, around what is kept.
const BODY_LEVELS: usize = 1;
/// The levels around the payload of an event: the body, its list, the event.
const BATCH_LEVELS: usize = 3;

/// The bytes of a body, or why there are none.
pub struct RawBody {
    bytes: Result<Bytes, Refusal>,
    is_json: bool,
    idempotency_key: Checked<Option<String>>,
}

impl FromRequest<App> for RawBody {
    type Rejection = std::convert::Infallible;

    async fn from_request(request: Request, app: &App) -> Result<Self, Self::Rejection> {
        Ok(Self::read_whole(request, app.settings().body_limit_bytes).await)
    }
}

impl RawBody {
    /// Reads a body of at most `limit` bytes.
    pub async fn read_whole(request: Request, limit: usize) -> Self {
        let headers = request.headers();
        let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let is_plain = headers.get(CONTENT_ENCODING).is_none_or(|encoding| encoding == "identity");
        let is_json = is_plain
            && (essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json")));
        let key = header_key(headers);
        // What says that it is too large is refused before it is sent.
        let declared = request.body().size_hint().lower();
        if declared > limit as u64 {
            let bytes = Err(Refusal::PayloadTooLarge { limit, what: String::new() });
            tokio::spawn(drain(request.into_body()));
            return Self { bytes, is_json, idempotency_key: key };
        }
        let mut body = request.into_body();
        let read = Limited::new(&mut body, limit).collect().await;
        let bytes = match read {
            Ok(collected) => Ok(collected.to_bytes()),
            Err(fault) if fault.downcast_ref::<LengthLimitError>().is_some() => {
                tokio::spawn(drain(body));
                Err(Refusal::PayloadTooLarge { limit, what: String::new() })
            }
            Err(_) => Err(Refusal::InvalidJson("the body ended before it was complete".to_owned())),
        };
        Self { bytes, is_json, idempotency_key: key }
    }
}

/// Takes the rest of a body that was refused and keeps nothing of it.
async fn drain(mut body: HttpBody) {
    let rest = async {
        let mut taken = 0;
        while let Some(Ok(frame)) = body.frame().await {
            taken += frame.data_ref().map_or(0, Bytes::len);
            if taken > DRAINED_MAX {
                break;
            }
        }
    };
    // Who is slower has had its chance.
    let _ = tokio::time::timeout(DRAINED_FOR, rest).await;
}

/// The key of the header. One that cannot be read is a fault: ignored, it would let a repeat be done twice.
fn header_key(headers: &HeaderMap) -> Checked<Option<String>> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.any(|other| other != value) {
        return Err(Refusal::invalid_header(IDEMPOTENCY_KEY, "is given twice with different values"));
    }
    let key = std::str::from_utf8(value.as_bytes()).map(str::trim).unwrap_or_default();
    if key.is_empty() || key.chars().count() > KEY_MAX {
        return Err(Refusal::invalid_header(IDEMPOTENCY_KEY, format!("must have 1 to {KEY_MAX} characters of UTF-8")));
    }
    if holds_token(key) {
        return Err(Refusal::invalid_header(IDEMPOTENCY_KEY, KEY_SECRET));
    }
    Ok(Some(key.to_owned()))
}

impl RawBody {
    /// The bytes, for a route whose body is no JSON.
    pub fn bytes(&self) -> Result<&Bytes, Refusal> {
        self.bytes.as_ref().map_err(Clone::clone)
    }

    /// The body of a route with required members. The members named `content` are redacted.
    pub fn required(&self, content: &[&str]) -> Result<Body<'_>, Refusal> {
        self.read(content, false, BODY_LEVELS)
    }

    /// A batch of events, whose payloads are redacted and measured one by one. Its entries have ids of their own, so
    /// nothing keeps its hash and it has none.
    pub fn batch(&self) -> Result<Body<'_>, Refusal> {
        let (value, faults) = self.scan(BATCH_LEVELS)?;
        Ok(Body { value, faults, hash: [0; 32], redacted: Vec::new(), header_key: &self.idempotency_key })
    }

    /// The body of a route without required members: it may be absent altogether.
    pub fn optional(&self, content: &[&str]) -> Result<Body<'_>, Refusal> {
        self.read(content, true, BODY_LEVELS)
    }

    fn read(&self, content: &[&str], may_be_absent: bool, levels: usize) -> Result<Body<'_>, Refusal> {
        let header_key = &self.idempotency_key;
        if may_be_absent && self.bytes.as_ref().is_ok_and(Bytes::is_empty) {
            return Ok(Body::new(Value::Null, Vec::new(), content, header_key));
        }
        let (value, faults) = self.scan(levels)?;
        let body = Body::new(value, faults, content, header_key);
        check_size(&body.value, content)?;
        Ok(body)
    }

    fn scan(&self, levels: usize) -> Result<(Value<'_>, Vec<Fault>), Refusal> {
        let bytes = self.bytes.as_ref().map_err(Clone::clone)?;
        if bytes.is_empty() {
            return Err(Refusal::InvalidJson("the body is empty".to_owned()));
        }
        if !self.is_json {
            return Err(Refusal::UnsupportedMediaType);
        }
        let scanned = json::scan_enveloped(bytes, levels).map_err(|fault| Refusal::InvalidJson(fault.to_string()))?;
        let faults = scanned
            .violations
            .iter()
            .map(|violation| Fault::new(violation.pointer.clone(), violation.kind.to_string()))
            .collect();
        Ok((scanned.value, faults))
    }
}

/// Refuses content that no payload can hold. What still fits here is measured to the byte when its event is written.
fn check_size(value: &Value<'_>, content: &[&str]) -> Result<(), Refusal> {
    let (mut total, mut largest) = (0, (0, String::new()));
    for (key, member) in value.as_object().unwrap_or_default() {
        if content.contains(&key.as_str()) {
            let size = member.canonical().len();
            total += size;
            if size > largest.0 {
                largest = (size, format!("/{}", key.as_str()));
            }
        }
    }
    if total <= PAYLOAD_BYTES_MAX {
        return Ok(());
    }
    Err(Refusal::PayloadTooLarge { limit: PAYLOAD_BYTES_MAX, what: largest.1 })
}

/// A body as JSON, redacted, with the faults that it has as JSON.
pub struct Body<'a> {
    /// The value.
    pub value: Value<'a>,
    /// What is wrong with it as JSON: duplicate keys, U+0000, lone surrogates, …
    pub faults: Vec<Fault>,
    hash: [u8; 32],
    redacted: Vec<String>,
    header_key: &'a Checked<Option<String>>,
}

impl<'a> Body<'a> {
    fn new(
        mut value: Value<'a>,
        faults: Vec<Fault>,
        content: &[&str],
        header_key: &'a Checked<Option<String>>,
    ) -> Self {
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
        let member = fields.key_opt(name);
        let member = fields.finish(member)?;
        match (self.header_key.clone()?, member) {
            (Some(header), Some(member)) if header != member => {
                Err(Refusal::invalid_header(IDEMPOTENCY_KEY, format!("differs from /{name} in the body")))
            }
            (header, member) => Ok(header.or(member)),
        }
    }
}

/// The members that the `Idempotency-Key` header stands for.
const KEYS: [&str; 2] = ["idempotency_key", "request_key"];

/// The hash of a body, the same for reordered members and other white space. The key is not part of it: it may stand
/// in the header or in the body.
fn hash(value: &Value<'_>) -> [u8; 32] {
    let canonical = match value {
        Value::Object(members) if members.iter().any(|(key, _)| KEYS.contains(&key.as_str())) => {
            let rest = members.iter().filter(|(key, _)| !KEYS.contains(&key.as_str())).cloned().collect();
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
