//! Corrections of usage reports.

use mandate::domain::change::Decision;
use mandate::domain::command::{Command, Correction, NewReport};
use mandate::domain::ids::{AccountId, ModelId, ReportId};
use mandate::domain::money::{Prices, TokenCounts};
use mandate::domain::refusal::{Place, Refusal};
use mandate::domain::usage::{LedgerRow, PricedModel};
use uuid::Uuid;

use crate::life::Life;

fn model(id: u128, price: &str) -> PricedModel {
    let prices = Prices { input_cost_per_million: Some(price.parse().unwrap()), ..Prices::default() };
    PricedModel { id: ModelId(Uuid::from_u128(id)), prices }
}

fn report(name: &str, model: Option<PricedModel>, count: Option<i64>, corrects: Option<Correction>) -> Command {
    let report = NewReport {
        idempotency_key: "key".to_owned(),
        account_id: AccountId(Uuid::from_u128(4)),
        model_id: name.to_owned(),
        model,
        counts: count.map(|count| TokenCounts { tokens_in: count, ..TokenCounts::default() }),
        corrects,
    };
    Command::Report { session: Ok(None), report: Ok(Box::new(report)) }
}

/// A task, and the row of a report of a million tokens of the model 1 at a dollar.
fn reported() -> (Life, LedgerRow) {
    let mut life = Life::begin(None);
    let change = life.write(report("sonnet", Some(model(1, "1")), Some(1_000_000), None));
    (life, change.ledger().unwrap().clone())
}

fn correction(of: &[&LedgerRow]) -> Correction {
    Correction { original: of[0].id, chain: of.iter().map(|row| (*row).clone()).collect() }
}

fn place(refused: Result<Decision, Refusal>) -> Place {
    match refused {
        Err(Refusal::Invalid(faults)) => faults[0].place.clone(),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_correction_writes_the_difference_and_names_the_first_report() {
    let (mut life, first) = reported();
    assert_eq!((first.cost.unwrap().to_string(), first.corrects), ("1".to_owned(), None));
    assert_eq!((first.unmeasured_delta, first.unpriced_delta), (0, 0));
    let of_first = Some(correction(&[&first]));
    let second = life.write(report("sonnet", Some(model(1, "1")), Some(250_000), of_first));
    let second = second.ledger().unwrap().clone();
    assert_eq!((second.cost.unwrap().to_string(), second.corrects), ("-0.75".to_owned(), Some(first.id)));
    let third = report("sonnet", Some(model(1, "1")), Some(300_000), Some(correction(&[&first, &second])));
    let third = life.write(third).ledger().unwrap().clone();
    assert_eq!((third.tokens.tokens_in, third.cost.unwrap().to_string()), (50_000, "0.05".to_owned()));
    assert_eq!(life.task.task().facts().cost_total.to_string(), "0.3");
    // A correction is none to be corrected.
    let wrong = report("sonnet", Some(model(1, "1")), Some(1), Some(correction(&[&second])));
    assert_eq!(place(life.decide(&life.task, wrong)), Place::Body("/corrects".to_owned()));
}

#[test]
fn a_correction_of_nothing_or_by_nothing_is_refused() {
    let (life, first) = reported();
    let nowhere = ReportId(Uuid::from_u128(7));
    for chain in [vec![], vec![first.clone()]] {
        let corrects = Some(Correction { original: nowhere, chain });
        let wrong = report("sonnet", Some(model(1, "1")), Some(1), corrects);
        assert_eq!(place(life.decide(&life.task, wrong)), Place::Body("/corrects".to_owned()));
    }
    let without_counts = report("sonnet", Some(model(1, "1")), None, Some(correction(&[&first])));
    assert_eq!(place(life.decide(&life.task, without_counts)), Place::Body(String::new()));
}

#[test]
fn a_correction_names_the_model_of_the_report_by_any_of_its_names() {
    let (life, first) = reported();
    let corrected = |name: &str, of: Option<PricedModel>| {
        life.decide(&life.task, report(name, of, Some(500_000), Some(correction(&[&first]))))
    };
    let cost = |decision: Result<Decision, Refusal>| match decision {
        Ok(Decision::Change(change)) => change.ledger().unwrap().cost.map(|cost| cost.to_string()),
        other => panic!("not written: {other:?}"),
    };
    let half = Some("-0.5".to_owned());
    assert_eq!(cost(corrected("sonnet", Some(model(1, "1")))), half);
    assert_eq!(cost(corrected("an alias", Some(model(1, "9")))), half);
    // The name leads elsewhere by now, or nowhere: the price of the report stays.
    assert_eq!(cost(corrected("sonnet", Some(model(2, "9")))), half);
    assert_eq!(cost(corrected("sonnet", None)), half);
    for other in [Some(model(2, "9")), None] {
        assert_eq!(place(corrected("opus", other)), Place::Body("/model_id".to_owned()));
    }
}

#[test]
fn what_had_no_price_has_the_one_that_is_known_by_now() {
    let mut life = Life::begin(None);
    let first = life.write(report("sonnet", None, Some(1_000_000), None)).ledger().unwrap().clone();
    assert_eq!((first.cost, first.unpriced_delta), (None, 1));
    assert_eq!(life.task.task().facts().unpriced_reports, 1);
    let change = life.write(report("opus", Some(model(2, "3")), Some(1_000_000), Some(correction(&[&first]))));
    let row = change.ledger().unwrap();
    assert_eq!((row.cost.unwrap().to_string(), row.unpriced_delta), ("3".to_owned(), -1));
    assert_eq!(life.task.task().facts().unpriced_reports, 0);
}

#[test]
fn what_was_not_measured_is_measured_by_its_correction() {
    let mut life = Life::begin(None);
    let first = life.write(report("sonnet", Some(model(1, "1")), None, None)).ledger().unwrap().clone();
    assert_eq!((first.measured, first.cost, first.unmeasured_delta), (false, None, 1));
    assert_eq!(first.unpriced_delta, 0);
    let change = life.write(report("sonnet", Some(model(1, "1")), Some(2_000_000), Some(correction(&[&first]))));
    let row = change.ledger().unwrap();
    assert_eq!((row.measured, row.cost.unwrap().to_string(), row.unmeasured_delta), (true, "2".to_owned(), -1));
    let facts = life.task.task().facts();
    assert_eq!((facts.unmeasured_reports, facts.unpriced_reports), (0, 0));
}
