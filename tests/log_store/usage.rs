//! Sums over usage.

use std::collections::BTreeMap;

use mandate::domain::ids::{AgentId, ModelId, ProjectId};
use mandate::domain::money::{Money, TokenCounts};
use mandate::domain::time::Timestamp;
use mandate::log::{UsageGroup, UsageKey, UsageQuery, UsageRow};

use crate::samples::{Sample, at, fresh, micros_later, of_usage};
use crate::store::Fixture;

const DAY: i64 = 86_400_000_000;

fn query(sample: &Sample, group_by: &[UsageKey], start: Timestamp, end: Timestamp, limit: u32) -> UsageQuery {
    UsageQuery { organization: sample.organization, start, end, group_by: group_by.to_vec(), limit }
}

/// Absent comes last.
type Last<T> = (bool, Option<T>);

fn last<T>(value: Option<T>) -> Last<T> {
    (value.is_none(), value)
}

type Key = (Last<Timestamp>, Last<AgentId>, Last<ModelId>, Last<String>, Last<ProjectId>);

/// The same sums by plain arithmetic.
fn added(rows: &[UsageRow], asked: &UsageQuery) -> Vec<UsageGroup> {
    let by = |key| asked.group_by.contains(&key);
    let mut groups: BTreeMap<Key, Vec<&UsageRow>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.recorded_at >= asked.start && row.recorded_at < asked.end) {
        let day = Timestamp::from_micros(row.recorded_at.micros() / DAY * DAY).unwrap();
        let unknown = row.model_ref.is_none().then(|| row.model_id.clone());
        let key = (
            last(by(UsageKey::Day).then_some(day)),
            last(by(UsageKey::Agent).then_some(row.agent_id)),
            last(row.model_ref.filter(|_| by(UsageKey::Model))),
            last(unknown.filter(|_| by(UsageKey::Model))),
            last(row.project_id.filter(|_| by(UsageKey::Project))),
        );
        groups.entry(key).or_default().push(row);
    }
    let sums = groups.into_iter().map(|(key, rows)| {
        let newest = rows.iter().max_by_key(|row| (row.recorded_at, row.report_id)).unwrap();
        let cost = rows.iter().filter_map(|row| row.cost).reduce(|a: Money, b| a.checked_add(b).unwrap());
        let zero = TokenCounts::default();
        let corrections = i64::try_from(rows.iter().filter(|row| row.corrects.is_some()).count()).unwrap();
        UsageGroup {
            day: key.0.1,
            agent_id: key.1.1,
            agent_slug: by(UsageKey::Agent).then(|| newest.agent_slug.clone()),
            model_ref: key.2.1,
            model_id: by(UsageKey::Model).then(|| newest.model_id.clone()),
            project_id: key.4.1,
            project_slug: newest.project_slug.clone().filter(|_| by(UsageKey::Project)),
            tokens: rows.iter().fold(zero, |sum, row| sum.checked_add(row.tokens).unwrap()),
            cost,
            reports: i64::try_from(rows.len()).unwrap() - corrections,
            corrections,
            unmeasured_reports: rows.iter().map(|row| i64::from(row.unmeasured_delta)).sum(),
            unpriced_reports: rows.iter().map(|row| i64::from(row.unpriced_delta)).sum(),
        }
    });
    sums.take(asked.limit as usize).collect()
}

/// Rows of a few days, agents, models and projects: measured or not, priced or not, some corrected.
fn ledger(sample: &Sample) -> Vec<UsageRow> {
    let agents: [AgentId; 3] = [fresh(), fresh(), fresh()];
    let models: [Option<ModelId>; 3] = [Some(fresh()), Some(fresh()), None];
    let projects: [Option<ProjectId>; 3] = [Some(fresh()), Some(fresh()), None];
    let mut rows = Vec::new();
    for n in 0..120_usize {
        let mut row = sample.report(i64::try_from(n).unwrap());
        row.recorded_at = micros_later(at("2026-02-26T23:59:59.999999Z"), i64::try_from(n).unwrap() * (DAY / 25) + 1);
        row.agent_id = agents[n % 3];
        row.agent_slug = format!("agent-{}-{n}", n % 3);
        row.model_ref = models[n / 3 % 3];
        row.model_id = ["Zeta", "alpha", "ζ"][n / 2 % 3].to_owned();
        row.project_id = projects[n / 5 % 3];
        row.project_slug = row.project_id.map(|_| format!("project-{n}"));
        row.tokens.tokens_in = i64::try_from(n).unwrap() * 1_000_000_007;
        row.cost = Some(format!("{n}.{n:012}").parse().unwrap());
        match n % 7 {
            3 => {
                (row.cost, row.measured, row.unmeasured_delta) = (None, false, 1);
                row.tokens = TokenCounts::default();
            }
            5 => (row.cost, row.unpriced_delta) = (None, 1),
            _ => {}
        }
        rows.push(row.clone());
        if n % 14 >= 10 {
            let mut correction = sample.report(1_000 + i64::try_from(n).unwrap());
            correction.corrects = Some(row.report_id);
            correction.recorded_at = micros_later(row.recorded_at, DAY / 3);
            correction.agent_id = row.agent_id;
            correction.model_ref = row.model_ref;
            correction.model_id.clone_from(&row.model_id);
            correction.project_id = row.project_id;
            correction.project_slug.clone_from(&row.project_slug);
            correction.tokens.tokens_out = -7;
            correction.cost = Some("-0.000000000001".parse().unwrap());
            correction.unmeasured_delta = -row.unmeasured_delta;
            correction.unpriced_delta = -row.unpriced_delta;
            rows.push(correction);
        }
    }
    rows
}

pub async fn sums_are_those_of_plain_arithmetic(fixture: Fixture) {
    let (store, sample) = (fixture.store.as_ref(), Sample::new());
    fixture.keeps_duplicates().await;
    let rows = ledger(&sample);
    store.append(&of_usage(&rows)).await.unwrap();
    store.append(&of_usage(&rows[10..90])).await.unwrap();
    // Another organization's count for nothing.
    store.append(&of_usage(&ledger(&Sample::new()))).await.unwrap();
    let whole = (at("2026-01-01T00:00:00Z"), at("2027-01-01T00:00:00Z"));
    let part = (at("2026-02-27T12:00:00Z"), at("2026-03-01T00:00:00Z"));
    for combination in 0..16_usize {
        let keys: Vec<_> = UsageKey::ALL.iter().enumerate().filter(|(n, _)| combination >> n & 1 == 1).collect();
        let mut keys: Vec<_> = keys.into_iter().map(|(_, key)| *key).collect();
        keys.reverse();
        for (start, end) in [whole, part] {
            for limit in [1_000, 3] {
                let asked = query(&sample, &keys, start, end, limit);
                let expected = added(&rows, &asked);
                assert!(!expected.is_empty());
                assert_eq!(store.usage(&asked).await.unwrap(), expected, "{asked:?}");
            }
        }
    }
}

pub async fn sums_of_nothing_are_none(fixture: Fixture) {
    let (store, sample) = (fixture.store.as_ref(), Sample::new());
    let (start, end) = (at("0001-01-01T00:00:00Z"), at("9999-12-31T23:59:59.999999Z"));
    assert!(store.usage(&query(&sample, &[], start, end, 10)).await.unwrap().is_empty());
    assert!(store.usage(&query(&sample, UsageKey::ALL, start, end, 10)).await.unwrap().is_empty());
    let mut row = sample.report(1);
    row.cost = None;
    store.append(&of_usage(&[row.clone()])).await.unwrap();
    let groups = store.usage(&query(&sample, &[], start, end, 10)).await.unwrap();
    assert_eq!(groups, added(&[row], &query(&sample, &[], start, end, 10)));
    assert_eq!(groups[0].cost, None, "unknown is not zero");
}

pub async fn groups_are_cut_in_the_order_of_their_keys(fixture: Fixture) {
    let (store, sample) = (fixture.store.as_ref(), Sample::new());
    let rows: Vec<_> = (0..40)
        .map(|seq| {
            let mut row = sample.report(seq);
            row.agent_id = fresh();
            row
        })
        .collect();
    store.append(&of_usage(&rows)).await.unwrap();
    let asked = query(&sample, &[UsageKey::Agent], at("2026-01-01T00:00:00Z"), at("2027-01-01T00:00:00Z"), 7);
    let groups = store.usage(&asked).await.unwrap();
    let mut agents: Vec<_> = rows.iter().map(|row| row.agent_id).collect();
    agents.sort();
    assert_eq!(groups.iter().map(|group| group.agent_id.unwrap()).collect::<Vec<_>>(), agents[..7]);
}

pub async fn bounds_of_time_are_to_the_microsecond(fixture: Fixture) {
    let (store, sample) = (fixture.store.as_ref(), Sample::new());
    let start = at("2026-03-01T00:00:00.000000Z");
    let end = at("2026-04-01T00:00:00.000000Z");
    let times = [micros_later(start, -1), start, micros_later(end, -1), end];
    let rows: Vec<_> = (1..)
        .zip(times)
        .map(|(seq, recorded_at)| {
            let mut row = sample.report(seq);
            row.recorded_at = recorded_at;
            row.tokens.tokens_in = 10_i64.pow(u32::try_from(seq).unwrap());
            row
        })
        .collect();
    store.append(&of_usage(&rows)).await.unwrap();
    let groups = store.usage(&query(&sample, &[], start, end, 10)).await.unwrap();
    assert_eq!((groups[0].reports, groups[0].tokens.tokens_in), (2, 1_100));
    let days = store.usage(&query(&sample, &[UsageKey::Day], times[0], micros_later(end, 1), 10)).await.unwrap();
    let days: Vec<_> = days.iter().map(|group| group.day.unwrap().to_string()).collect();
    assert_eq!(
        days,
        ["2026-02-28", "2026-03-01", "2026-03-31", "2026-04-01"].map(|day| format!("{day}T00:00:00.000000Z"))
    );
}

pub async fn amounts_at_their_limits_add_up(fixture: Fixture) {
    let (store, sample) = (fixture.store.as_ref(), Sample::new());
    let limit = "9999999999999999.999999999999";
    let mut rows: Vec<_> = (1..=3).map(|seq| sample.report(seq)).collect();
    rows[0].cost = Some(limit.parse().unwrap());
    rows[1].cost = Some(format!("-{limit}").parse().unwrap());
    rows[2].cost = Some("0.000000000001".parse().unwrap());
    rows[0].tokens.tokens_in = i64::MAX - 5;
    rows[1].tokens.tokens_in = -10;
    rows[2].tokens.tokens_in = 15;
    store.append(&of_usage(&rows)).await.unwrap();
    let asked = query(&sample, &[], at("2026-01-01T00:00:00Z"), at("2027-01-01T00:00:00Z"), 1);
    let groups = store.usage(&asked).await.unwrap();
    assert_eq!(groups[0].cost, Some("0.000000000001".parse().unwrap()));
    assert_eq!(groups[0].tokens.tokens_in, i64::MAX);
    let over = sample.report(4);
    store.append(&of_usage(&[over])).await.unwrap();
    let fault = store.usage(&asked).await.unwrap_err();
    assert!(matches!(fault, mandate::log::LogStoreError::ImpossibleRow(_)), "never a wrong number: {fault}");
}

pub async fn the_newest_name_is_shown(fixture: Fixture) {
    let (store, sample) = (fixture.store.as_ref(), Sample::new());
    let (model, project) = (fresh::<ModelId>(), fresh::<ProjectId>());
    let rows: Vec<_> = (1..=3)
        .map(|seq| {
            let mut row = sample.report(seq);
            (row.model_ref, row.project_id) = (Some(model), Some(project));
            let age = if seq == 2 { "new" } else { "old" };
            row.agent_slug = format!("{age}-agent");
            row.model_id = format!("{age}-model");
            // The newest row may have no name where older ones have.
            row.project_slug = (seq != 2).then(|| "old-project".to_owned());
            row.recorded_at = at(if seq == 2 { "2026-03-02T00:00:00Z" } else { "2026-03-01T00:00:00Z" });
            row
        })
        .collect();
    store.append(&of_usage(&rows)).await.unwrap();
    let keys = [UsageKey::Agent, UsageKey::Model, UsageKey::Project];
    let asked = query(&sample, &keys, at("2026-01-01T00:00:00Z"), at("2027-01-01T00:00:00Z"), 9);
    let groups = store.usage(&asked).await.unwrap();
    assert_eq!(groups, added(&rows, &asked));
    assert_eq!(groups.len(), 1);
    assert_eq!(groups[0].agent_slug.as_deref(), Some("new-agent"));
    assert_eq!(groups[0].project_slug, None);
}
