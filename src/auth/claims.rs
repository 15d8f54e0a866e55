//! Claims, read strictly: a claim of another type than its own is refused, never guessed at.

use serde_json::{Map, Number, Value};

use super::LEEWAY;
use super::error::{Refusal, TokenError, quoted};
use crate::domain::time::Timestamp;

/// The payload of a token.
pub(super) struct Claims(Map<String, Value>);

impl Claims {
    /// Reads a JSON object.
    pub(super) fn parse(payload: &[u8]) -> Result<Self, TokenError> {
        serde_json::from_slice(payload)
            .map(Self)
            .map_err(|_| TokenError::refused(Refusal::Malformed, "the payload is no JSON object"))
    }

    /// A required text.
    pub(super) fn text(&self, name: &str) -> Result<&str, TokenError> {
        match self.find(name) {
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(bad(name, "is no string")),
            None => Err(bad(name, "is missing")),
        }
    }

    /// A claim by its name, or by a JSON pointer if `name` begins with `/`: `/realm_access/roles`.
    pub(super) fn find(&self, name: &str) -> Option<&Value> {
        let Some(path) = name.strip_prefix('/') else { return self.0.get(name) };
        let (first, rest) = path.split_at(path.find('/').unwrap_or(path.len()));
        self.0.get(&first.replace("~1", "/").replace("~0", "~"))?.pointer(rest)
    }

    /// Whether `aud`, a text or a list, names `audience`.
    pub(super) fn check_audience(&self, audience: &str) -> Result<(), TokenError> {
        let named = match self.0.get("aud") {
            Some(Value::String(one)) => one == audience,
            Some(Value::Array(many)) => many.iter().any(|one| one.as_str() == Some(audience)),
            Some(_) => return Err(bad("aud", "is neither a string nor a list")),
            None => return Err(bad("aud", "is missing")),
        };
        if named { Ok(()) } else { Err(TokenError::refused(Refusal::Audience, format!("aud is not {audience}"))) }
    }

    /// Checks `exp` (required), `nbf` and `iat` against `now` and answers when the token ends.
    pub(super) fn check_times(&self, now: Timestamp) -> Result<Timestamp, TokenError> {
        let expires_at = self.required_time("exp")?;
        if now >= expires_at {
            return Err(TokenError::refused(Refusal::Expired, format!("exp was {expires_at}")));
        }
        for name in ["nbf", "iat"] {
            if let Some(at) = self.time(name)?
                && at > now.plus(LEEWAY)
            {
                return Err(TokenError::refused(Refusal::NotYetValid, format!("{name} is {at}")));
            }
        }
        Ok(expires_at)
    }

    /// A required instant.
    pub(super) fn required_time(&self, name: &str) -> Result<Timestamp, TokenError> {
        self.time(name)?.ok_or_else(|| bad(name, "is missing"))
    }

    /// An instant, if it is there; `null` is not "not there".
    fn time(&self, name: &str) -> Result<Option<Timestamp>, TokenError> {
        match self.0.get(name) {
            None => Ok(None),
            Some(Value::Number(seconds)) => {
                numeric_date(seconds).map(Some).ok_or_else(|| bad(name, "is no instant of our calendar"))
            }
            Some(_) => Err(bad(name, "is no number")),
        }
    }
}

/// RFC 7519's `NumericDate`: seconds since 1970, whole or not, up to the year 9999.
fn numeric_date(seconds: &Number) -> Option<Timestamp> {
    const MICROS: i64 = 1_000_000;
    const YEAR_10000: f64 = 253_402_300_800.0;
    let micros = if let Some(whole) = seconds.as_i64() {
        whole.checked_mul(MICROS)?
    } else {
        let real = seconds.as_f64().filter(|real| (0.0..YEAR_10000).contains(real))?;
        // In range, and the digits below the microsecond are of no interest.
        #[allow(clippy::cast_possible_truncation)]
        let micros = (real * 1e6) as i64;
        micros
    };
    if micros < 0 { None } else { Timestamp::from_micros(micros) }
}

fn bad(name: &str, problem: &str) -> TokenError {
    TokenError::refused(Refusal::Claims, format!("claim {} {problem}", quoted(name)))
}
