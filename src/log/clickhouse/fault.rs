//! What an error of ClickHouse means for the rows.

use std::error::Error as _;
use std::fmt::Write as _;
use std::future::Future;
use std::time::Duration;

use clickhouse::error::{Error, Result as ClickHouseResult};

use crate::log::LogStoreError;

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
            Error::BadResponse(text) if code(text).is_some_and(is_refusal) => Self::Refused(short(text)),
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

/// Waits for `work`, but not longer than `limit`.
pub(super) async fn within<T>(
    limit: Duration,
    work: impl Future<Output = ClickHouseResult<T>>,
) -> Result<T, LogStoreError> {
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
    fn a_long_text_is_cut_between_characters() {
        let cut = short(&"ü".repeat(TEXT_MAX + 1));
        assert_eq!(cut.chars().count(), TEXT_MAX + 1);
        assert!(cut.ends_with('…'));
    }
}
