//! Instants, kept to the microsecond in UTC.

use std::fmt;
use std::time::Duration;

use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};

/// An instant: microseconds since 1970-01-01T00:00:00Z. The clock is a parameter, so there is no `now` here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(i64);

/// Why a text is no instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TimestampError {
    /// Not RFC 3339, or no offset.
    #[error("a time is RFC 3339 with an offset, such as 2026-01-31T09:30:00.000001Z")]
    Format,
    /// Outside the years 0001 to 9999.
    #[error("the time is outside the years that can be kept")]
    Range,
}

const MICROS_PER_SECOND: i64 = 1_000_000;
/// 0001-01-01T00:00:00Z.
const FIRST: i64 = -62_135_596_800 * MICROS_PER_SECOND;
/// 9999-12-31T23:59:59.999999Z.
const LAST: i64 = 253_402_300_800 * MICROS_PER_SECOND - 1;

impl Timestamp {
    /// 1970-01-01T00:00:00Z.
    pub const EPOCH: Self = Self(0);

    /// From microseconds since 1970; `None` outside the years 0001 to 9999.
    pub fn from_micros(micros: i64) -> Option<Self> {
        (FIRST..=LAST).contains(&micros).then_some(Self(micros))
    }

    /// Microseconds since 1970.
    pub fn micros(self) -> i64 {
        self.0
    }

    /// Parses RFC 3339 with an offset; digits below the microsecond are cut off.
    pub fn parse(text: &str) -> Result<Self, TimestampError> {
        let parsed = OffsetDateTime::parse(text, &Rfc3339).map_err(|_| TimestampError::Format)?;
        // With its offset a time may lie beyond the years that can be kept.
        Self::from_micros(Self::from(parsed).0).ok_or(TimestampError::Range)
    }

    /// 00:00 UTC of the first day of this instant's month.
    #[must_use]
    pub fn month_start(self) -> Self {
        let at = OffsetDateTime::from(self).to_offset(UtcOffset::UTC);
        // Every month has a first day.
        at.replace_day(1).map_or(self, |first| first.replace_time(time::Time::MIDNIGHT).into())
    }

    /// Later by `by`, saturating at the end of what can be kept.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        let micros = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
        Self::from_micros(self.0.saturating_add(micros)).unwrap_or(Self(LAST))
    }

    /// Earlier by `by`, saturating at 1970.
    #[must_use]
    pub fn minus(self, by: Duration) -> Self {
        let micros = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_sub(micros).max(0))
    }
}

impl From<OffsetDateTime> for Timestamp {
    fn from(at: OffsetDateTime) -> Self {
        let micros = at.unix_timestamp_nanos().div_euclid(1_000);
        // Every OffsetDateTime lies within ±9999 years, which fits 64 bits of microseconds.
        Self(i64::try_from(micros).unwrap_or(i64::MAX))
    }
}

impl From<Timestamp> for OffsetDateTime {
    fn from(at: Timestamp) -> Self {
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.0) * 1_000).unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }
}

/// RFC 3339, UTC, always six digits: `2026-01-31T09:30:00.000001Z`.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = OffsetDateTime::from(*self).to_offset(UtcOffset::UTC);
        write!(
            f,
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z",
            at.year(),
            u8::from(at.month()),
            at.day(),
            at.hour(),
            at.minute(),
            at.second(),
            at.microsecond()
        )
    }
}

impl serde::Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(text).unwrap()
    }

    #[test]
    fn a_month_begins_on_its_first_day() {
        for (text, start) in [
            ("2026-01-31T09:30:00.000001Z", "2026-01-01T00:00:00Z"),
            ("2026-02-01T00:00:00Z", "2026-02-01T00:00:00Z"),
            ("2024-02-29T23:59:59.999999Z", "2024-02-01T00:00:00Z"),
            ("2026-01-01T00:30:00+01:00", "2025-12-01T00:00:00Z"),
        ] {
            assert_eq!(at(text).month_start(), at(start), "{text}");
        }
    }

    #[test]
    fn time_ends_where_it_can_be_kept_no_longer() {
        let (last, day) = (at("9999-12-31T23:59:59.999999Z"), Duration::from_hours(24));
        assert_eq!(at("2026-01-31T09:30:00Z").plus(day), at("2026-02-01T09:30:00Z"));
        assert_eq!(at("2026-02-01T09:30:00Z").minus(day), at("2026-01-31T09:30:00Z"));
        assert_eq!(at("9999-12-31T23:00:00Z").plus(day), last);
        assert_eq!(last.plus(Duration::MAX), last);
        assert_eq!(at("1970-01-01T12:00:00Z").minus(day), Timestamp::EPOCH);
        assert_eq!(last.minus(Duration::MAX), Timestamp::EPOCH);
        assert_eq!(Timestamp::from_micros(last.micros() + 1), None);
        let first = at("0001-01-01T00:00:00Z");
        assert_eq!(Timestamp::from_micros(first.micros()), Some(first));
        assert_eq!(Timestamp::from_micros(first.micros() - 1), None);
        assert_eq!(Timestamp::parse("0001-01-01T00:30:00+01:00"), Err(TimestampError::Range));
        assert_eq!(Timestamp::parse("2026-01-31T09:30:00"), Err(TimestampError::Format));
    }

    #[test]
    fn an_instant_and_a_date_time_are_the_same() {
        for text in ["1969-12-31T23:59:59.999999Z", "1970-01-01T00:00:00Z", "2299-06-01T01:02:03.000004Z"] {
            let instant = at(text);
            assert_eq!(Timestamp::from(OffsetDateTime::from(instant)), instant, "{text}");
        }
    }
}
