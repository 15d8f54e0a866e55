//! Rows that came more than once, and rows that were written anew.

use mandate::domain::log_page::EventPage;
use mandate::log::{Batch, UsageQuery};

use crate::samples::{Sample, as_events, at, ledgers, of_events, whole};
use crate::store::Fixture;

pub async fn duplicates_show_once(fixture: Fixture) {
    let (store, sample) = (fixture.store.as_ref(), Sample::new());
    let keeps = fixture.keeps_duplicates().await;
    let batch = Batch { events: sample.events(1..=12), usage: vec![sample.report(3), sample.report(6)] };
    for _ in 0..3 {
        store.append(&batch).await.unwrap();
    }
    let mut twice = batch.clone();
    twice.extend(batch.clone());
    store.append(&twice).await.unwrap();
    let stored = store.stored_events(sample.organization, &[sample.task], 1, 12).await.unwrap();
    // A block that is inserted is itself merged, so the last insert adds one of each.
    assert_eq!(stored.len(), if keeps { 48 } else { 12 }, "as many as there are");
    let stored = ledgers(store, sample.organization, &[sample.task]).await;
    assert_eq!(stored.len(), if keeps { 8 } else { 2 }, "as many as there are");

    let log = as_events(&batch.events);
    assert_eq!(whole(store, &sample).await, log);
    let mut forwards = Vec::new();
    loop {
        let after_seq = forwards.last().map(|event: &mandate::domain::event::Event| event.seq);
        let page = EventPage { after_seq, limit: 5, ..EventPage::default() };
        let (events, more) = store.events(sample.organization, sample.task, &page).await.unwrap();
        forwards.extend(events);
        if !more {
            break;
        }
    }
    assert_eq!(forwards, log);
    let backwards = EventPage { before_seq: Some(9), limit: 5, ..EventPage::default() };
    let answer = store.events(sample.organization, sample.task, &backwards).await.unwrap();
    assert_eq!(answer, (log[3..8].to_vec(), true));
    let tools = ["tool.called".to_owned()];
    let typed = EventPage { types: tools.to_vec(), limit: 4, ..EventPage::default() };
    let (events, more) = store.events(sample.organization, sample.task, &typed).await.unwrap();
    assert_eq!((events.iter().map(|event| event.seq).collect::<Vec<_>>(), more), (vec![3, 6, 9, 12], false));
    let typed = EventPage { before_seq: Some(12), limit: 2, types: tools.to_vec(), after_seq: None };
    let (events, more) = store.events(sample.organization, sample.task, &typed).await.unwrap();
    assert_eq!((events.iter().map(|event| event.seq).collect::<Vec<_>>(), more), (vec![6, 9], true));

    assert_eq!(store.seqs(sample.organization, sample.task).await.unwrap(), (1..=12).collect::<Vec<_>>());
    assert_eq!(store.report_ids(sample.organization, sample.task).await.unwrap().len(), 2);
    let coverage = store.coverage(&[(sample.organization, sample.task)]).await.unwrap();
    assert!(coverage.len() == 1 && coverage[0].is_whole(12, 2), "{coverage:?}");
    let groups = store.usage(&everything(&sample)).await.unwrap();
    assert_eq!((groups[0].reports, groups[0].tokens.tokens_in), (2, 20));
    assert_eq!(groups[0].cost, Some("0.36983625".parse().unwrap()));
}

fn everything(sample: &Sample) -> UsageQuery {
    UsageQuery {
        organization: sample.organization,
        start: at("0001-01-01T00:00:00Z"),
        end: at("9999-12-31T23:59:59Z"),
        group_by: Vec::new(),
        limit: 10,
    }
}

pub async fn the_highest_version_counts_whenever_it_came(fixture: Fixture) {
    let store = fixture.store.as_ref();
    let keeps = fixture.keeps_duplicates().await;
    // The numbers are the order in which the versions come, in one batch or each in its own.
    for (order, together) in [([1, 2, 3], false), ([3, 1, 2], false), ([2, 3, 1], true)] {
        let sample = Sample::new();
        let (first, first_report) = (sample.events(1..=3), sample.report(2));
        let of_version = |version: u64| {
            let mut batch = Batch { events: first.clone(), usage: vec![first_report.clone()] };
            for row in &mut batch.events {
                row.version = version;
                row.payload = format!("{{\"version\":{version}}}");
            }
            batch.usage[0].version = version;
            batch.usage[0].tokens.tokens_in = i64::try_from(version).unwrap() * 100;
            batch
        };
        if together {
            let mut all = Batch::default();
            for version in order {
                all.extend(of_version(version));
            }
            store.append(&all).await.unwrap();
        } else {
            for version in order {
                store.append(&of_version(version)).await.unwrap();
            }
        }
        let newest = of_version(3);
        assert_eq!(whole(store, &sample).await, as_events(&newest.events), "{order:?}");
        let backwards = EventPage { before_seq: Some(4), limit: 2, ..EventPage::default() };
        let (events, _) = store.events(sample.organization, sample.task, &backwards).await.unwrap();
        assert_eq!(events, as_events(&newest.events[1..]));
        let typed = EventPage { types: vec!["turn".to_owned()], limit: 9, ..EventPage::default() };
        let (events, _) = store.events(sample.organization, sample.task, &typed).await.unwrap();
        assert_eq!(events, as_events(&newest.events[..2]));
        let groups = store.usage(&everything(&sample)).await.unwrap();
        assert_eq!((groups[0].reports, groups[0].tokens.tokens_in), (1, 300), "{order:?}");

        let stored = store.stored_events(sample.organization, &[sample.task], 1, 3).await.unwrap();
        let versions: Vec<_> = stored.iter().map(|row| (row.seq, row.version)).collect();
        let usage = ledgers(store, sample.organization, &[sample.task]).await;
        let of_usage: Vec<_> = usage.iter().map(|row| row.version).collect();
        if keeps && !together {
            assert_eq!(versions, [(1, 3), (1, 2), (1, 1), (2, 3), (2, 2), (2, 1), (3, 3), (3, 2), (3, 1)]);
            assert_eq!(of_usage, [3, 2, 1]);
        } else {
            assert_eq!(versions, [(1, 3), (2, 3), (3, 3)]);
            assert_eq!(of_usage, [3]);
        }
        let coverage = store.coverage(&[(sample.organization, sample.task)]).await.unwrap();
        assert!(coverage[0].is_whole(3, 1), "{coverage:?}");
    }
}

pub async fn a_superseded_type_is_not_found(fixture: Fixture) {
    let (store, sample) = (fixture.store.as_ref(), Sample::new());
    fixture.keeps_duplicates().await;
    let mut rows = sample.events(1..=2);
    rows[0].event_type = "wrong".to_owned();
    store.append(&of_events(&rows)).await.unwrap();
    rows[0].event_type = "right".to_owned();
    rows[0].version = 2;
    // Another event under the seq: what was written anew counts.
    let mut foreign = sample.event(2);
    foreign.event_type = "foreign".to_owned();
    store.append(&of_events(&[foreign])).await.unwrap();
    rows[1].version = 2;
    store.append(&of_events(&rows)).await.unwrap();
    assert_eq!(whole(store, &sample).await, as_events(&rows));
    for (kind, expected) in [("wrong", 0..0), ("right", 0..1), ("foreign", 0..0), ("turn", 1..2)] {
        let page = EventPage { types: vec![kind.to_owned()], limit: 9, ..EventPage::default() };
        let answer = store.events(sample.organization, sample.task, &page).await.unwrap();
        assert_eq!(answer, (as_events(&rows[expected]), false), "{kind}");
    }
}
