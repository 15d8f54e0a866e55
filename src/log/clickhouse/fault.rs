//! What an error of ClickHouse means for the rows.

use std::error::Error as _;
use std::fmt::Write as _;
use std::future::Future;
use std::time::Duration;

use clickhouse::error::Error;

use crate::log::{LogStoreError, Reason};

/// The errors that blame a row, by ClickHouse's numbers: the same row would be refused again. Everything else may pass
/// (the network, memory, too many parts, a missing table or right).
const REFUSALS: [(u32, &str); 11] = [
    (6, "CANNOT_PARSE_TEXT"),
    (69, "ARGUMENT_OUT_OF_BOUND"),
    (72, "CANNOT_PARSE_NUMBER"),
    (117, "INCORRECT_DATA"),
    (128, "TOO_LARGE_ARRAY_SIZE"),
    (131, "TOO_LARGE_STRING_SIZE"),
    (321, "VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE"),
    (349, "CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN"),
    (376, "CANNOT_PARSE_UUID"),
    (407, "DECIMAL_OVERFLOW"),
    (469, "VIOLATED_CONSTRAINT"),
];

/// The longest text of an error that is passed on, in characters: a violated constraint quotes the whole row.
const TEXT_MAX: usize = 500;

impl From<Error> for LogStoreError {
    fn from(error: Error) -> Self {
        match &error {
            Error::BadResponse(text) if code(text).is_some_and(is_refusal) => {
                Self::Refused(Reason { full: short(text), shown: shown(text) })
            }
            Error::InvalidUtf8Encoding(_) | Error::InvalidTagEncoding(_) => Self::ImpossibleRow(error.to_string()),
            _ => unavailable(&error),
        }
    }
}

/// The store is away, with all that is known of why.
fn unavailable(error: &Error) -> LogStoreError {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        // Some wrappers print their cause, some do not.
        if !text.contains(&inner.to_string()) {
            let _ = write!(text, ": {inner}");
        }
        cause = inner.source();
    }
    LogStoreError::Unavailable(short(&text))
}

/// What an error means that met an insert: whatever the server says of it may quote a row, also where it is not the row
/// that is to blame.
pub(super) fn on_insert(error: Error) -> LogStoreError {
    match &error {
        Error::BadResponse(text) if code(text).is_some_and(|code| !is_refusal(code)) => {
            LogStoreError::Unavailable(shown(text))
        }
        _ => error.into(),
    }
}

/// Waits for `work`, but not longer than `limit`.
pub(super) async fn within<T, E>(limit: Duration, work: impl Future<Output = Result<T, E>>) -> Result<T, LogStoreError>
where
    LogStoreError: From<E>,
{
    match tokio::time::timeout(limit, work).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(LogStoreError::Unavailable(format!("no answer within {limit:?}"))),
    }
}

/// The number in `Code: 469. DB::Exception: …`.
fn code(text: &str) -> Option<u32> {
    let rest = text.strip_prefix("Code: ")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn is_refusal(code: u32) -> bool {
    REFUSALS.iter().any(|(number, _)| *number == code)
}

/// What may be told of an error whoever reads it: its number, its name, and that of the constraint.
fn shown(text: &str) -> String {
    let mut shown = code(text).map_or_else(|| "an error".to_owned(), |code| format!("error {code}"));
    if let Some(name) = name(text) {
        let _ = write!(shown, " ({name})");
    }
    if let Some(constraint) = constraint(text) {
        let _ = write!(shown, " of constraint {constraint:?}");
    }
    shown
}

/// The name in `… (VIOLATED_CONSTRAINT) (version 26.7.3.1)`, the end of every text.
fn name(text: &str) -> Option<&str> {
    let (before, _) = text.rsplit_once(") (version ")?;
    let (_, name) = before.rsplit_once('(')?;
    let is_name = name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_');
    is_name.then_some(name)
}

/// The name in ``Code: 469. DB::Exception: Constraint `odd` for table …``, which stands before every value.
fn constraint(text: &str) -> Option<&str> {
    let rest = text.strip_prefix("Code: 469. DB::Exception: Constraint `")?;
    Some(rest.split_once("` for table ")?.0)
}

fn short(text: &str) -> String {
    match text.char_indices().nth(TEXT_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_blames_a_row_refuses_it() {
        let of = |text: &str| LogStoreError::from(Error::BadResponse(text.to_owned()));
        assert!(matches!(of("Code: 469. DB::Exception: Constraint `c`"), LogStoreError::Refused(_)));
        assert!(matches!(of("Code: 407. DB::Exception: overflow"), LogStoreError::Refused(_)));
        for passing in [
            "Code: 241. DB::Exception: Memory limit",
            "Code: 252. DB::Exception: Too many parts",
            "Code: 60. DB::Exception: Unknown table",
            "Code: 516. DB::Exception: Authentication failed",
            "Code: 159. DB::Exception: Timeout exceeded",
            "Code: 4690. DB::Exception: not known",
            "502 Bad Gateway",
            "",
        ] {
            assert!(matches!(of(passing), LogStoreError::Unavailable(_)), "{passing}");
        }
    }

    #[test]
    fn what_is_shown_quotes_no_row() {
        let text = "Code: 469. DB::Exception: Constraint `odd` for table log.agent_task_events (5f0c) is violated \
            at row 1. Expression: (position(payload, 'x') = 0). Column values: payload = '{\"body\":\"(XYZZY) (version 1)\"}'. \
            (VIOLATED_CONSTRAINT) (version 26.7.3.1 (official build))";
        let LogStoreError::Refused(reason) = on_insert(Error::BadResponse(text.to_owned())) else { unreachable!() };
        assert_eq!(reason.shown, "error 469 (VIOLATED_CONSTRAINT) of constraint \"odd\"");
        assert!(reason.full.contains("XYZZY"));
        for printed in [format!("{reason}"), format!("{reason:?}"), LogStoreError::Refused(reason).to_string()] {
            assert!(!printed.contains("XYZZY"), "{printed}");
        }
        // A view that an operator put on the table cannot read a payload.
        let text =
            "Code: 41. DB::Exception: Cannot parse DateTime: 'xyzzy'. (CANNOT_PARSE_DATETIME) (version 26.7.3.1)";
        let LogStoreError::Unavailable(shown) = on_insert(Error::BadResponse(text.to_owned())) else { unreachable!() };
        assert_eq!(shown, "error 41 (CANNOT_PARSE_DATETIME)");
        let text = "Code: 999. DB::Exception: 'xyzzy (lower case) (version 1)";
        let LogStoreError::Unavailable(shown) = on_insert(Error::BadResponse(text.to_owned())) else { unreachable!() };
        assert_eq!(shown, "error 999");
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let cut = short(&"ü".repeat(TEXT_MAX + 1));
        assert_eq!(cut.chars().count(), TEXT_MAX + 1);
        assert!(cut.ends_with('…'));
    }
}
