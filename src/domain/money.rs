//! Money and prices: exact decimals that are never rounded.
//!
//! Every amount is US dollars with at most 12 decimals and less than 10¹⁶ in size, so that its digits fit the
//! 96 bits of a [`Decimal`] and no sum or product that is let through was rounded. What does not fit is an error.

use std::fmt;
use std::str::FromStr;

use rust_decimal::Decimal;

/// Decimals of a cost: six of the price and six of "per million".
pub const MONEY_DECIMALS: u32 = 12;
/// Decimals of a price per million tokens.
pub const PRICE_DECIMALS: u32 = 6;
/// Every amount is smaller than ten to this power.
pub const MONEY_MAGNITUDE: u32 = 16;
/// The highest price per million tokens that a model may have.
pub const PRICE_MAX: i64 = 1_000_000;
/// The most tokens that one count of one report may name.
pub const TOKENS_PER_REPORT_MAX: i64 = 1_000_000_000_000;
/// The longest text that is read as a number: nothing exact is longer.
const NUMBER_TEXT_MAX: usize = 64;

/// Why a text or a result is no amount of money.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MoneyError {
    /// Not a decimal number.
    #[error("not a decimal number")]
    Format,
    /// Below zero where that has no meaning.
    #[error("must not be negative")]
    Negative,
    /// More decimals than are kept.
    #[error("has more than {0} decimals")]
    Decimals(u32),
    /// Too large to be kept exactly.
    #[error("is too large to be kept exactly")]
    TooLarge,
}

/// An exact amount of US dollars; may be negative (a correction, an overspent remainder).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Money(Decimal);

impl Money {
    /// Nothing.
    pub const ZERO: Self = Self(Decimal::ZERO);

    /// Wraps `amount` when it can be kept exactly.
    pub fn new(amount: Decimal) -> Result<Self, MoneyError> {
        let amount = amount.normalize();
        if amount.scale() > MONEY_DECIMALS {
            return Err(MoneyError::Decimals(MONEY_DECIMALS));
        }
        if amount.trunc().abs() >= Decimal::from(10_i64.pow(MONEY_MAGNITUDE)) {
            return Err(MoneyError::TooLarge);
        }
        Ok(Self(amount))
    }

    /// Reads a decimal text, with or without exponent, that must not be negative.
    pub fn parse_amount(text: &str) -> Result<Self, MoneyError> {
        let amount = Self::new(parse_decimal(text)?)?;
        if amount.0.is_sign_negative() && !amount.0.is_zero() {
            return Err(MoneyError::Negative);
        }
        Ok(amount)
    }

    /// The exact sum.
    pub fn checked_add(self, other: Self) -> Result<Self, MoneyError> {
        // Both have at most 12 decimals and 16 digits before the point, so the addition itself is exact.
        Self::new(self.0.checked_add(other.0).ok_or(MoneyError::TooLarge)?)
    }

    /// The exact difference.
    pub fn checked_sub(self, other: Self) -> Result<Self, MoneyError> {
        self.checked_add(Self(-other.0))
    }

    /// Whether the amount is below zero.
    pub fn is_negative(self) -> bool {
        self.0 < Decimal::ZERO
    }

    /// The number itself.
    pub fn decimal(self) -> Decimal {
        self.0
    }
}

/// A plain decimal without exponent or trailing zeros.
impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let normal = self.0.normalize();
        if normal.is_zero() { f.write_str("0") } else { normal.fmt(f) }
    }
}

impl FromStr for Money {
    type Err = MoneyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::new(parse_decimal(text)?)
    }
}

/// Reads a decimal text without ever rounding: what `Decimal` cannot hold exactly is refused.
fn parse_decimal(text: &str) -> Result<Decimal, MoneyError> {
    let shape = |b: u8| b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'+' | b'e' | b'E');
    if text.is_empty() || !text.bytes().all(shape) {
        return Err(MoneyError::Format);
    }
    if text.len() > NUMBER_TEXT_MAX {
        return Err(MoneyError::TooLarge);
    }
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        None => (text, 0),
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().map_err(|_| MoneyError::Format)?),
    };
    let (negative, digits) = match mantissa.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, mantissa),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let has_point = digits.contains('.');
    let digits_only = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || (has_point && fraction.is_empty()) || !digits_only(whole) || !digits_only(fraction) {
        return Err(MoneyError::Format);
    }
    let all = format!("{whole}{fraction}");
    let significant = all.trim_start_matches('0');
    let trimmed = significant.trim_end_matches('0');
    if trimmed.is_empty() {
        return Ok(Decimal::ZERO);
    }
    let fraction_digits = i64::try_from(fraction.len()).map_err(|_| MoneyError::TooLarge)?;
    let dropped_zeros = i64::try_from(significant.len() - trimmed.len()).map_err(|_| MoneyError::TooLarge)?;
    let scale = fraction_digits - dropped_zeros - i64::from(exponent);
    let scale_limit = i64::from(MONEY_DECIMALS);
    if scale > scale_limit {
        return Err(MoneyError::Decimals(MONEY_DECIMALS));
    }
    // What 128 bits hold and 96 do not, `Decimal` refuses.
    let number = trimmed.parse::<i128>().map_err(|_| MoneyError::TooLarge)?;
    let power = u32::try_from((-scale).max(0)).ok().and_then(|power| 10_i128.checked_pow(power));
    let number = power.and_then(|power| number.checked_mul(power)).ok_or(MoneyError::TooLarge)?;
    let scale = u32::try_from(scale.max(0)).map_err(|_| MoneyError::TooLarge)?;
    let number = if negative { -number } else { number };
    Decimal::try_from_i128_with_scale(number, scale).map_err(|_| MoneyError::TooLarge)
}

macro_rules! serde_as_decimal_string {
    ($name:ident) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

serde_as_decimal_string!(Money);
serde_as_decimal_string!(Price);

/// US dollars per million tokens: zero to [`PRICE_MAX`], at most six decimals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Price(Decimal);

impl Price {
    /// Wraps `price` when it is in range and exact.
    pub fn new(price: Decimal) -> Result<Self, MoneyError> {
        let price = price.normalize();
        if price < Decimal::ZERO {
            return Err(MoneyError::Negative);
        }
        if price.scale() > PRICE_DECIMALS {
            return Err(MoneyError::Decimals(PRICE_DECIMALS));
        }
        if price > Decimal::from(PRICE_MAX) {
            return Err(MoneyError::TooLarge);
        }
        Ok(Self(price))
    }

    /// The number itself.
    pub fn decimal(self) -> Decimal {
        self.0
    }
}

impl FromStr for Price {
    type Err = MoneyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::new(parse_decimal(text)?)
    }
}

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Money(self.0).fmt(f)
    }
}

/// The four prices of a model; one that is absent is unknown, which is not zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Prices {
    /// Uncached input.
    pub input_cost_per_million: Option<Price>,
    /// Output.
    pub output_cost_per_million: Option<Price>,
    /// Input that was read from the cache.
    pub cache_read_cost_per_million: Option<Price>,
    /// Input that was written to the cache.
    pub cache_write_cost_per_million: Option<Price>,
}

impl Prices {
    /// Price by price its own, or that of `other` where it has none.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            input_cost_per_million: self.input_cost_per_million.or(other.input_cost_per_million),
            output_cost_per_million: self.output_cost_per_million.or(other.output_cost_per_million),
            cache_read_cost_per_million: self.cache_read_cost_per_million.or(other.cache_read_cost_per_million),
            cache_write_cost_per_million: self.cache_write_cost_per_million.or(other.cache_write_cost_per_million),
        }
    }
}

/// The four disjoint counts of a report: `tokens_in` is uncached input only. In a ledger row they may be
/// negative, because a correction is a signed difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct TokenCounts {
    /// Uncached input.
    pub tokens_in: i64,
    /// Output.
    pub tokens_out: i64,
    /// Input that was read from the cache.
    pub cache_read_tokens: i64,
    /// Input that was written to the cache.
    pub cache_write_tokens: i64,
}

impl TokenCounts {
    /// The sum, count by count; `None` where one would overflow.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        Some(Self {
            tokens_in: self.tokens_in.checked_add(other.tokens_in)?,
            tokens_out: self.tokens_out.checked_add(other.tokens_out)?,
            cache_read_tokens: self.cache_read_tokens.checked_add(other.cache_read_tokens)?,
            cache_write_tokens: self.cache_write_tokens.checked_add(other.cache_write_tokens)?,
        })
    }

    /// The difference, count by count; `None` where one would overflow.
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        Some(Self {
            tokens_in: self.tokens_in.checked_sub(other.tokens_in)?,
            tokens_out: self.tokens_out.checked_sub(other.tokens_out)?,
            cache_read_tokens: self.cache_read_tokens.checked_sub(other.cache_read_tokens)?,
            cache_write_tokens: self.cache_write_tokens.checked_sub(other.cache_write_tokens)?,
        })
    }
}

/// Prices `counts`: Σ count × price per million ÷ 10⁶, exactly. `None` when a count that is not zero has no price.
pub fn cost(counts: TokenCounts, prices: &Prices) -> Result<Option<Money>, MoneyError> {
    let pairs = [
        (counts.tokens_in, prices.input_cost_per_million),
        (counts.tokens_out, prices.output_cost_per_million),
        (counts.cache_read_tokens, prices.cache_read_cost_per_million),
        (counts.cache_write_tokens, prices.cache_write_cost_per_million),
    ];
    let mut total = Money::ZERO;
    for (count, price) in pairs {
        if count == 0 {
            continue;
        }
        let Some(price) = price else { return Ok(None) };
        if count.abs() > TOKENS_PER_REPORT_MAX {
            return Err(MoneyError::TooLarge);
        }
        // At most 13 digits of count times 13 digits of price: the mantissa is exact, and the shift by six
        // decimals only moves the point.
        let per_million = Decimal::from(count).checked_mul(price.0).ok_or(MoneyError::TooLarge)?.normalize();
        let mantissa = per_million.mantissa();
        let exact =
            Decimal::try_from_i128_with_scale(mantissa, per_million.scale() + 6).map_err(|_| MoneyError::TooLarge)?;
        total = total.checked_add(Money::new(exact)?)?;
    }
    Ok(Some(total))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_case_from_the_field_is_exact_to_the_last_digit() {
        let prices = Prices {
            input_cost_per_million: Some("1.25".parse().unwrap()),
            output_cost_per_million: Some("10".parse().unwrap()),
            cache_read_cost_per_million: Some("0.625".parse().unwrap()),
            cache_write_cost_per_million: None,
        };
        let counts =
            TokenCounts { tokens_in: 5_005, tokens_out: 1_744, cache_read_tokens: 257_955, cache_write_tokens: 0 };
        assert_eq!(cost(counts, &prices).unwrap().unwrap().to_string(), "0.184918125");
        let cached = TokenCounts { cache_write_tokens: 1, ..counts };
        assert_eq!(cost(cached, &prices).unwrap(), None, "a positive count without a price is not zero");
    }

    #[test]
    fn numbers_are_exact_or_refused() {
        let exact = [
            ("0.1", "0.1"),
            ("0.10", "0.1"),
            ("4.81", "4.81"),
            ("1e-7", "0.0000001"),
            ("1E3", "1000"),
            ("0", "0"),
            ("0.000", "0"),
            ("1234567.890123456789", "1234567.890123456789"),
            ("9999999999999999.999999999999", "9999999999999999.999999999999"),
        ];
        for (text, shown) in exact {
            assert_eq!(Money::parse_amount(text).unwrap().to_string(), shown, "{text}");
        }
        let refused = [
            "",
            "NaN",
            "-1",
            "1,5",
            "1e-13",
            "10000000000000000",
            "1e400",
            ".5",
            "5.",
            "1e",
            "0x1",
            " 1",
            "--1",
            "1.2.3",
        ];
        for text in refused {
            assert!(Money::parse_amount(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_text_that_is_too_long_is_too_large_if_it_is_a_number() {
        let number = |digits: usize| format!("{}1", "0".repeat(digits - 1)).parse::<Money>();
        assert_eq!(number(NUMBER_TEXT_MAX).unwrap().to_string(), "1");
        for digits in [NUMBER_TEXT_MAX + 1, NUMBER_TEXT_MAX + 2, 2 * NUMBER_TEXT_MAX] {
            assert_eq!(number(digits), Err(MoneyError::TooLarge), "{digits}");
        }
        assert_eq!("x".repeat(2 * NUMBER_TEXT_MAX).parse::<Money>(), Err(MoneyError::Format));
        for large in ["1e17", "1e2147483647", "9".repeat(30).as_str(), "9".repeat(60).as_str(), "12345678901234567.5"] {
            assert_eq!(large.parse::<Money>(), Err(MoneyError::TooLarge), "{large}");
        }
        assert_eq!("1e-2147483647".parse::<Money>(), Err(MoneyError::Decimals(MONEY_DECIMALS)));
    }

    #[test]
    fn a_price_that_is_not_there_is_the_other_ones() {
        let prices = |texts: [Option<&str>; 4]| {
            let [input, output, read, write] = texts.map(|text| text.map(|text| text.parse().unwrap()));
            Prices {
                input_cost_per_million: input,
                output_cost_per_million: output,
                cache_read_cost_per_million: read,
                cache_write_cost_per_million: write,
            }
        };
        let own = prices([Some("1"), None, Some("3"), None]);
        let other = prices([Some("5"), Some("6"), None, None]);
        assert_eq!(own.or(other), prices([Some("1"), Some("6"), Some("3"), None]));
    }

    #[test]
    fn counts_are_added_and_taken_away_one_by_one_or_not_at_all() {
        let counts = |all: [i64; 4]| TokenCounts {
            tokens_in: all[0],
            tokens_out: all[1],
            cache_read_tokens: all[2],
            cache_write_tokens: all[3],
        };
        let (one, other) = (counts([10, 20, 30, 40]), counts([1, 2, 3, 4]));
        assert_eq!(one.checked_add(other), Some(counts([11, 22, 33, 44])));
        assert_eq!(one.checked_sub(other), Some(counts([9, 18, 27, 36])));
        for nth in 0..4 {
            let mut most = [0; 4];
            most[nth] = i64::MAX;
            assert_eq!(counts(most).checked_add(other), None);
            most[nth] = i64::MIN;
            assert_eq!(counts(most).checked_sub(other), None);
        }
    }

    #[test]
    fn a_count_that_no_report_may_name_has_no_cost() {
        let prices = Prices { input_cost_per_million: Some("1".parse().unwrap()), ..Prices::default() };
        let of = |count| cost(TokenCounts { tokens_in: count, ..TokenCounts::default() }, &prices);
        assert_eq!(of(TOKENS_PER_REPORT_MAX).unwrap().unwrap().to_string(), "1000000");
        assert_eq!(of(-TOKENS_PER_REPORT_MAX).unwrap().unwrap().to_string(), "-1000000");
        for large in [TOKENS_PER_REPORT_MAX + 1, -TOKENS_PER_REPORT_MAX - 1, 2 * TOKENS_PER_REPORT_MAX] {
            assert_eq!(of(large), Err(MoneyError::TooLarge), "{large}");
        }
    }

    proptest! {
        #[test]
        fn a_cost_equals_the_integer_arithmetic(
            count in 0..=TOKENS_PER_REPORT_MAX,
            micros in 0..=PRICE_MAX * 1_000_000,
        ) {
            let price = Price::new(Decimal::new(micros, 6)).unwrap();
            let prices = Prices { input_cost_per_million: Some(price), ..Prices::default() };
            let counts = TokenCounts { tokens_in: count, ..TokenCounts::default() };
            let expected = i128::from(count) * i128::from(micros);
            let got = cost(counts, &prices).unwrap().unwrap().decimal();
            let scaled = got.mantissa() * 10_i128.pow(12 - got.scale());
            prop_assert_eq!(scaled, expected);
        }

        #[test]
        fn sums_are_exact_and_text_goes_round(
            a in -10_i64.pow(18)..10_i64.pow(18),
            b in -10_i64.pow(18)..10_i64.pow(18),
        ) {
            let (x, y) = (Money::new(Decimal::new(a, 12)).unwrap(), Money::new(Decimal::new(b, 12)).unwrap());
            let sum = x.checked_add(y).unwrap();
            prop_assert_eq!(sum, Money::new(Decimal::new(a + b, 12)).unwrap());
            prop_assert_eq!(sum.to_string().parse::<Money>().unwrap(), sum);
            prop_assert!(!sum.to_string().contains(['e', 'E']));
        }
    }
}
