//! What a harness reports as spent.

use crate::domain::aggregate::Aggregate;
use crate::domain::change::{Context, Decision, Draft};
use crate::domain::command::{Correction, NewReport};
use crate::domain::ids::{ReportId, SessionId};
use crate::domain::money::{Money, MoneyError};
use crate::domain::outcome::{Ending, OutcomeReason};
use crate::domain::refusal::{Checked, Refusal};
use crate::domain::usage::{LedgerRow, Priced, price, price_correction};

/// Adds a row to the ledger, and closes an open task in the same change when its budget falls below zero.
pub(super) fn report(
    base: &Aggregate,
    session: Checked<Option<SessionId>>,
    report: Checked<Box<NewReport>>,
    context: &mut Context<'_>,
) -> Result<Decision, Refusal> {
    let session = base.named_session(session, true)?;
    let report = *report?;
    let priced = priced(&report)?;
    let mut draft = Draft::of(base, context);
    let row = LedgerRow {
        id: ReportId(draft.new_id()),
        idempotency_key: report.idempotency_key,
        session_id: session,
        model_id: report.model_id,
        model_ref: priced.model_ref,
        tokens: priced.tokens,
        prices: priced.prices,
        cost: priced.cost,
        measured: priced.measured,
        corrects: report.corrects.map(|correction| correction.original),
        unmeasured_delta: priced.unmeasured_delta,
        unpriced_delta: priced.unpriced_delta,
        seq: 0,
        recorded_at: draft.now(),
    };
    draft.report(row, session)?;
    let open = base.task().facts().ending.is_none();
    if open && draft.next().task().budget_remaining().is_some_and(Money::is_negative) {
        draft.close(Ending::because(OutcomeReason::Budget), None, None)?;
    }
    super::sign_of_life(&mut draft, session);
    Ok(draft.finish())
}

fn priced(report: &NewReport) -> Result<Priced, Refusal> {
    let inexact = |fault: MoneyError| Refusal::invalid("", format!("the cost {fault}"));
    let Some(Correction { original, chain }) = &report.corrects else {
        return price(report.counts, report.model.as_ref()).map_err(inexact);
    };
    let Some(first) = chain.first().filter(|first| first.id == *original) else {
        return Err(Refusal::invalid("/corrects", "names no report of this task"));
    };
    if first.corrects.is_some() {
        return Err(Refusal::invalid("/corrects", "names a correction; name the report that it corrects"));
    }
    let Some(counts) = report.counts else {
        return Err(Refusal::invalid("", "a correction gives the full right counts, at least one of the four"));
    };
    let settled = chain.iter().find(|row| row.cost.is_some());
    let named = report.model.as_ref().map(|model| model.id);
    // A name that leads elsewhere by now, or nowhere, still names the report that used it.
    if settled.is_some_and(|row| row.model_ref != named && row.model_id != report.model_id) {
        return Err(Refusal::invalid("/model_id", "a correction names the model of the report that it corrects"));
    }
    price_correction(counts, chain, report.model.as_ref()).map_err(inexact)
}
