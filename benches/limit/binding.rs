//! The parameters of the statements, as the bare server binds them.

use mandate::service::Clock;
use mandate::store::bare;
use rust_decimal::Decimal;
use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::QueryScalar;
use time::OffsetDateTime;
use uuid::Uuid;

use super::sample::{Event, Sample, Step};
use super::seed::MODEL;

pub type Statement<'q> = QueryScalar<'q, Postgres, i64, PgArguments>;

/// What a digest is made to be: computing it is not the statement's work.
pub const DIGEST: &[u8] = &[0; 32];
/// What the model of the sample costs per million tokens, and what the report of the sample costs.
const PRICES: [(i64, u32); 4] = [(3, 0), (15, 0), (3, 1), (375, 2)];
const COST: (i64, u32) = (126, 4);

/// Binds what every statement begins with: `$1` to `$17`.
pub fn write<'q>(
    sql: &'static str,
    (organization, task): (Uuid, Uuid),
    expected: i64,
    events: &[(&'q Event, &'q str)],
    session: Option<Uuid>,
    alive: Option<Uuid>,
) -> Statement<'q> {
    let now = OffsetDateTime::from(Clock::system().now());
    let each = |text: fn(&'q Event) -> &'q str| events.iter().map(|(event, _)| text(event)).collect::<Vec<_>>();
    sqlx::query_scalar(sql)
        .bind(organization)
        .bind(task)
        .bind(expected)
        .bind(now)
        .bind((expected + 1..).take(events.len()).collect::<Vec<_>>())
        .bind(events.iter().map(|_| Clock::new_id()).collect::<Vec<_>>())
        .bind(each(|event| &event.name))
        .bind(vec![1_i32; events.len()])
        .bind(each(|event| &event.actor_kind))
        .bind(each(|event| &event.actor_id))
        .bind(events.iter().map(|(event, _)| event.channel.as_deref()).collect::<Vec<_>>())
        .bind(events.iter().map(|(event, _)| session.filter(|_| event.in_session)).collect::<Vec<_>>())
        .bind(vec![now; events.len()])
        .bind(events.iter().map(|(_, payload)| *payload).collect::<Vec<_>>())
        .bind(vec![None::<String>; events.len()])
        .bind(vec![DIGEST; events.len()])
        .bind(alive)
}

/// The events of a step with their own payloads.
fn own(step: &Step) -> Vec<(&Event, &str)> {
    step.events.iter().map(|event| (event, event.payload.as_str())).collect()
}

/// Any change: `rows` are sessions opened and closed, requests opened and settled.
pub fn change<'q>(
    step: &'q Step,
    place: (Uuid, Uuid),
    session: Option<Uuid>,
    alive: Option<Uuid>,
    rows: [&'q str; 4],
    unexpired: Vec<Uuid>,
) -> Statement<'q> {
    let query = write(bare::change(), place, step.expected, &own(step), session, alive).bind(step.facts.as_str());
    let query = rows.into_iter().fold(query, Statement::bind);
    query.bind("[]").bind(unexpired)
}

/// A creation.
pub fn create<'q>(step: &'q Step, place: (Uuid, Uuid), pinned: &'q str) -> Statement<'q> {
    write(bare::create(), place, 0, &own(step), None, None).bind(step.facts.as_str()).bind(pinned)
}

/// A usage report.
pub fn report(sample: &Sample, task: Uuid, session: Uuid, expected: i64) -> Statement<'_> {
    let counts = [1_200_i64, 300, 5_000, 800];
    let cost = Decimal::new(COST.0, COST.1);
    let session = Some(session);
    let place = (sample.organization, task);
    let query = write(bare::report(), place, expected, &own(&sample.report), session, session)
        .bind(expected + 1)
        .bind(DIGEST)
        .bind(cost);
    let query = counts.into_iter().fold(query, Statement::bind);
    let query = query
        .bind(0_i64)
        .bind(0_i64)
        .bind(true)
        .bind(Clock::new_id())
        .bind(sample.account)
        .bind(Clock::new_id().to_string())
        .bind(DIGEST)
        .bind(session)
        .bind(MODEL)
        .bind(sample.model);
    let query = counts.into_iter().fold(query, Statement::bind);
    let query = PRICES.into_iter().fold(query, |query, (price, scale)| query.bind(Decimal::new(price, scale)));
    query.bind(cost).bind(true).bind(None::<Uuid>).bind(0_i16).bind(0_i16).bind(expected + 1)
}
