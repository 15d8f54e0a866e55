//! Usage reports: the ledger's rows, and how a correction is priced.

use rust_decimal::Decimal;

use super::ids::{ModelId, ReportId, SessionId};
use super::money::{Money, MoneyError, Prices, TokenCounts, cost};
use super::names::names;
use super::time::Timestamp;

/// One row of the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerRow {
    /// The row.
    pub id: ReportId,
    /// Its key.
    pub idempotency_key: String,
    /// The session that reported.
    pub session_id: Option<SessionId>,
    /// The model as the harness named it.
    pub model_id: String,
    /// The directory's model, when the name is known.
    pub model_ref: Option<ModelId>,
    /// The counts; signed differences in a correction.
    pub tokens: TokenCounts,
    /// The prices used.
    pub prices: Prices,
    /// The cost; absent when unmeasured or unpriced.
    pub cost: Option<Money>,
    /// Whether any count was given.
    pub measured: bool,
    /// The original row, in a correction.
    pub corrects: Option<ReportId>,
    /// Change of the task's unmeasured reports.
    pub unmeasured_delta: i16,
    /// Change of the task's unpriced reports.
    pub unpriced_delta: i16,
    /// The sequence number of its event.
    pub seq: i64,
    /// The server's clock at the write.
    pub recorded_at: Timestamp,
}

names! {
    /// How near an agent's cost is to its advisory monthly cap.
    CapWarning, CapWarningError: "cap warning" {
        /// At least 80 % of it.
        At80 = "at_80",
        /// All of it, or more.
        At100 = "at_100",
    }
}

/// The warning that a month's `cost` deserves beside `cap`. Nothing spent deserves none.
pub fn cap_warning(cost: Money, cap: Money) -> Option<CapWarning> {
    let (cost, cap) = (cost.decimal(), cap.decimal());
    // Exact: the cap has at most 12 decimals, one more fits.
    let eighty = cap * Decimal::new(8, 1);
    match () {
        () if cost <= Decimal::ZERO || cost < eighty => None,
        () if cost < cap => Some(CapWarning::At80),
        () => Some(CapWarning::At100),
    }
}

/// A model of the directory with the prices in force now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PricedModel {
    /// The model.
    pub id: ModelId,
    /// Its prices.
    pub prices: Prices,
}

/// A report or a correction, priced: what becomes a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Priced {
    /// The directory's model whose prices they are.
    pub model_ref: Option<ModelId>,
    /// The counts to add to the totals.
    pub tokens: TokenCounts,
    /// The prices used.
    pub prices: Prices,
    /// The cost to add to the total.
    pub cost: Option<Money>,
    /// Whether any count was given.
    pub measured: bool,
    /// Change of the task's unmeasured reports.
    pub unmeasured_delta: i16,
    /// Change of the task's unpriced reports.
    pub unpriced_delta: i16,
}

/// Prices a first report. All counts absent: unmeasured. No model, or a positive count without a price: unpriced.
/// Neither is ever a cost of zero.
pub fn price(counts: Option<TokenCounts>, model: Option<&PricedModel>) -> Result<Priced, MoneyError> {
    let prices = model.map(|model| model.prices).unwrap_or_default();
    let measured = counts.is_some();
    let tokens = counts.unwrap_or_default();
    let cost = match (counts, model) {
        (Some(counts), Some(_)) => cost(counts, &prices)?,
        (None, _) | (_, None) => None,
    };
    Ok(Priced {
        model_ref: model.map(|model| model.id),
        tokens,
        prices,
        cost,
        measured,
        unmeasured_delta: i16::from(!measured),
        unpriced_delta: i16::from(measured && cost.is_none()),
    })
}

/// Prices a correction: the signed difference between the full right `counts` and what the original and its earlier
/// corrections (`chain`, oldest first) recorded. Each count has the price that the chain used for it, or that of
/// `current` if the chain had none: what could not be priced once becomes certain when its price is known. The model
/// of a chain that has a cost stays, even if its name leads elsewhere by now.
pub fn price_correction(
    counts: TokenCounts,
    chain: &[LedgerRow],
    current: Option<&PricedModel>,
) -> Result<Priced, MoneyError> {
    let mut recorded = TokenCounts::default();
    let mut paid = Money::ZERO;
    let (mut unmeasured, mut unpriced) = (0_i16, 0_i16);
    for row in chain {
        recorded = recorded.checked_add(row.tokens).ok_or(MoneyError::TooLarge)?;
        paid = paid.checked_add(row.cost.unwrap_or_default())?;
        unmeasured += row.unmeasured_delta;
        unpriced += row.unpriced_delta;
    }
    let settled = chain.iter().find(|row| row.cost.is_some());
    let model_ref = settled.map_or(current.map(|model| model.id), |row| row.model_ref);
    let used = chain.iter().filter(|row| row.model_ref == model_ref).map(|row| row.prices);
    let today = current.filter(|model| Some(model.id) == model_ref).map(|model| model.prices);
    let prices = used.chain(today).reduce(Prices::or).unwrap_or_default();
    let full = match model_ref {
        Some(_) => cost(counts, &prices)?,
        None => None,
    };
    Ok(Priced {
        model_ref,
        tokens: counts.checked_sub(recorded).ok_or(MoneyError::TooLarge)?,
        prices,
        cost: full.map(|full| full.checked_sub(paid)).transpose()?,
        measured: true,
        unmeasured_delta: -unmeasured,
        unpriced_delta: i16::from(full.is_none()) - unpriced,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_is_warned_of_from_eighty_percent_of_its_cap_on() {
        let warning = |cost: &str, cap: &str| cap_warning(cost.parse().unwrap(), cap.parse().unwrap());
        for (cost, cap, expected) in [
            ("0", "10", None),
            ("7.999999999999", "10", None),
            ("8", "10", Some(CapWarning::At80)),
            ("9.999999999999", "10", Some(CapWarning::At80)),
            ("10", "10", Some(CapWarning::At100)),
            ("11", "10", Some(CapWarning::At100)),
            // Without anything to spend everything is too much, and nothing is nothing.
            ("0", "0", None),
            ("0.000000000001", "0", Some(CapWarning::At100)),
            ("-1", "10", None),
            ("-1", "0", None),
        ] {
            assert_eq!(warning(cost, cap), expected, "{cost} of {cap}");
        }
    }
}
