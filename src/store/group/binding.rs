//! The parameters of [`statements::GROUP`]: the organization, and arrays of what each task, event and report of a group has.

use time::OffsetDateTime;

use super::Member;
use crate::domain::change::{BodyHash, Change};
use crate::domain::event::{Channel, Event};
use crate::domain::ids::{AccountId, OrganizationId};
use crate::domain::money::{Money, Price};
use crate::domain::task::Facts;
use crate::domain::usage::LedgerRow;
use crate::store::commit::{Statement, redacted};
use crate::store::statements;

/// A row of the ledger with the number of its task in the group, the hash of the report's body and who reported.
type Report<'q> = (i64, BodyHash, AccountId, &'q LedgerRow);

/// The statement with its parameters.
pub(super) fn bound(organization: OrganizationId, members: &[Member]) -> Statement<'_> {
    let events: Vec<(i64, &Event)> =
        numbered(members).flat_map(|(n, (change, _))| change.events().iter().map(move |event| (n, event))).collect();
    let reports: Vec<Report<'_>> = numbered(members)
        .filter_map(|(n, (change, account))| Some((n, change.body_hash(), (*account)?, change.ledger()?)))
        .collect();
    let query = bind_tasks(sqlx::query_scalar(statements::GROUP).bind(organization.0), members);
    bind_reports(bind_events(query, &events), &reports)
}

fn numbered(members: &[Member]) -> impl Iterator<Item = (i64, &Member)> {
    (1..).zip(members)
}

fn bind_tasks<'q>(query: Statement<'q>, members: &'q [Member]) -> Statement<'q> {
    fn each<'q, T>(members: &'q [Member], f: impl Fn(&'q Change) -> T) -> Vec<T> {
        members.iter().map(|(change, _)| f(change)).collect()
    }
    fn facts(change: &Change) -> &Facts {
        change.next().task().facts()
    }
    let recorded_at = |change: &Change| change.events().first().map(|event| OffsetDateTime::from(event.recorded_at));
    query
        .bind(each(members, |change| change.next().task().id().0))
        .bind(each(members, Change::expected_seq))
        .bind(each(members, recorded_at))
        .bind(each(members, |change| facts(change).last_seq))
        .bind(each(members, |change| facts(change).log_digest.0.as_slice()))
        .bind(each(members, |change| facts(change).phase.as_deref()))
        .bind(each(members, |change| facts(change).furthest_milestone.as_deref()))
        .bind(each(members, |change| change.alive().map(|id| id.0)))
        .bind(each(members, |change| facts(change).cost_total.decimal()))
        .bind(each(members, |change| facts(change).tokens.tokens_in))
        .bind(each(members, |change| facts(change).tokens.tokens_out))
        .bind(each(members, |change| facts(change).tokens.cache_read_tokens))
        .bind(each(members, |change| facts(change).tokens.cache_write_tokens))
        .bind(each(members, |change| facts(change).unmeasured_reports))
        .bind(each(members, |change| facts(change).unpriced_reports))
}

fn bind_events<'q>(query: Statement<'q>, events: &[(i64, &'q Event)]) -> Statement<'q> {
    fn each<'q, T>(events: &[(i64, &'q Event)], f: impl Fn(&'q Event) -> T) -> Vec<T> {
        events.iter().map(|(_, event)| f(event)).collect()
    }
    query
        .bind(events.iter().map(|(n, _)| *n).collect::<Vec<_>>())
        .bind(each(events, |event| event.seq))
        .bind(each(events, |event| event.event_id.0))
        .bind(each(events, |event| &*event.event_type))
        .bind(each(events, |event| event.schema_version))
        .bind(each(events, |event| event.actor.kind.as_str()))
        .bind(each(events, |event| &*event.actor.id))
        .bind(each(events, |event| event.actor.channel.map(Channel::as_str)))
        .bind(each(events, |event| event.session_id.map(|id| id.0)))
        .bind(each(events, |event| OffsetDateTime::from(event.at)))
        .bind(each(events, |event| &*event.payload))
        .bind(each(events, redacted))
        .bind(each(events, |event| event.digest.0.as_slice()))
}

fn bind_reports<'q>(query: Statement<'q>, reports: &[Report<'q>]) -> Statement<'q> {
    fn each<'q, T>(reports: &[Report<'q>], f: impl Fn(&'q LedgerRow) -> T) -> Vec<T> {
        reports.iter().map(|(.., row)| f(row)).collect()
    }
    let price = |price: Option<Price>| price.map(Price::decimal);
    query
        .bind(reports.iter().map(|(n, ..)| *n).collect::<Vec<_>>())
        .bind(each(reports, |row| row.id.0))
        .bind(reports.iter().map(|(_, _, account, _)| account.0).collect::<Vec<_>>())
        .bind(each(reports, |row| row.idempotency_key.clone()))
        .bind(reports.iter().map(|(_, hash, ..)| hash.to_vec()).collect::<Vec<_>>())
        .bind(each(reports, |row| row.session_id.map(|id| id.0)))
        .bind(each(reports, |row| row.model_id.clone()))
        .bind(each(reports, |row| row.model_ref.map(|id| id.0)))
        .bind(each(reports, |row| row.tokens.tokens_in))
        .bind(each(reports, |row| row.tokens.tokens_out))
        .bind(each(reports, |row| row.tokens.cache_read_tokens))
        .bind(each(reports, |row| row.tokens.cache_write_tokens))
        .bind(each(reports, |row| price(row.prices.input_cost_per_million)))
        .bind(each(reports, |row| price(row.prices.output_cost_per_million)))
        .bind(each(reports, |row| price(row.prices.cache_read_cost_per_million)))
        .bind(each(reports, |row| price(row.prices.cache_write_cost_per_million)))
        .bind(each(reports, |row| row.cost.map(Money::decimal)))
        .bind(each(reports, |row| row.measured))
        .bind(each(reports, |row| row.corrects.map(|id| id.0)))
        .bind(each(reports, |row| row.unmeasured_delta))
        .bind(each(reports, |row| row.unpriced_delta))
        .bind(each(reports, |row| row.seq))
}
