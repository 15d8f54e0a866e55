//! What the store says it has of a task.

use mandate::log::{Batch, Coverage};

use crate::samples::{Sample, of_events, of_usage};
use crate::store::Fixture;

async fn of(fixture: &Fixture, sample: &Sample) -> Coverage {
    let coverage = fixture.store.coverage(&[(sample.organization, sample.task)]).await.unwrap();
    assert_eq!(coverage.len(), 1);
    coverage[0]
}

pub async fn a_whole_log_is_seen_to_be_whole(fixture: Fixture) {
    let (store, sample) = (fixture.store.as_ref(), Sample::new());
    let batch = Batch { events: sample.events(1..=7), usage: vec![sample.report(4)] };
    store.append(&of_usage(&batch.usage)).await.unwrap();
    let coverage = of(&fixture, &sample).await;
    let nothing = Coverage::none(sample.organization, sample.task);
    assert_eq!(coverage, Coverage { reports: 1, ..nothing }, "only usage");
    store.append(&of_events(&batch.events)).await.unwrap();
    let coverage = of(&fixture, &sample).await;
    assert_eq!(coverage, Coverage { seqs: 7, max_seq: 7, event_ids: 7, reports: 1, ..nothing });
    assert!(coverage.is_whole(7, 1) && !coverage.has_foreign(7, 1));
    assert!(!coverage.is_whole(8, 1) && !coverage.is_whole(7, 2) && !coverage.is_whole(6, 1));
}

pub async fn what_is_missing_or_foreign_is_seen(fixture: Fixture) {
    let store = fixture.store.as_ref();
    fixture.keeps_duplicates().await;
    let sample = Sample::new();
    let missing: Vec<_> = sample.events(1..=7).into_iter().filter(|row| row.seq != 4).collect();
    store.append(&of_events(&missing)).await.unwrap();
    store.append(&of_events(&missing)).await.unwrap();
    let coverage = of(&fixture, &sample).await;
    assert_eq!((coverage.seqs, coverage.max_seq, coverage.event_ids), (6, 7, 6));
    assert!(!coverage.is_whole(7, 0) && !coverage.has_foreign(7, 0));
    assert_eq!(store.seqs(sample.organization, sample.task).await.unwrap(), [1, 2, 3, 5, 6, 7]);

    // Another event under a seq that is there.
    store.append(&of_events(&[sample.event(2)])).await.unwrap();
    let coverage = of(&fixture, &sample).await;
    assert_eq!((coverage.seqs, coverage.max_seq, coverage.event_ids), (6, 7, 7));
    assert!(!coverage.is_whole(7, 0) && coverage.has_foreign(7, 0));

    let sample = Sample::new();
    store.append(&of_events(&sample.events(1..=8))).await.unwrap();
    let coverage = of(&fixture, &sample).await;
    assert!(!coverage.is_whole(7, 0) && coverage.has_foreign(7, 0), "a row past the last: {coverage:?}");

    // The same event under two seqs.
    let sample = Sample::new();
    let mut rows = sample.events(1..=3);
    rows[2].event_id = rows[1].event_id;
    store.append(&of_events(&rows)).await.unwrap();
    let coverage = of(&fixture, &sample).await;
    assert_eq!((coverage.seqs, coverage.max_seq, coverage.event_ids), (3, 3, 2));
    assert!(!coverage.is_whole(3, 0));

    let reports = Batch { events: Vec::new(), usage: vec![sample.report(1), sample.report(1), sample.report(2)] };
    store.append(&reports).await.unwrap();
    store.append(&reports).await.unwrap();
    let coverage = of(&fixture, &sample).await;
    assert_eq!(coverage.reports, 3);
    assert!(coverage.has_foreign(3, 2));
}

pub async fn many_tasks_are_covered_at_once(fixture: Fixture) {
    const ASKED: usize = 10_000;
    let store = fixture.store.as_ref();
    let samples: Vec<Sample> = (0..ASKED).map(|_| Sample::new()).collect();
    // Of every third there is nothing; each has its own organization.
    let mut batch = Batch::default();
    for (n, sample) in samples.iter().enumerate().filter(|(n, _)| n % 3 != 0) {
        batch.events.extend(sample.events(1..=if n % 2 == 0 { 1 } else { 2 }));
    }
    store.append(&batch).await.unwrap();
    let tasks: Vec<_> = samples.iter().map(|sample| (sample.organization, sample.task)).collect();
    let mut coverage = store.coverage(&tasks).await.unwrap();
    coverage.sort_by_key(|row| row.task);
    let mut expected: Vec<Coverage> = Vec::new();
    for (n, &(organization, task)) in tasks.iter().enumerate().filter(|(n, _)| n % 3 != 0) {
        let events = if n % 2 == 0 { 1 } else { 2 };
        expected.push(Coverage { organization, task, seqs: events, max_seq: events, event_ids: events, reports: 0 });
    }
    expected.sort_by_key(|row| row.task);
    assert_eq!(coverage, expected);
}
