//! Rows that the store refuses.

use mandate::log::clickhouse::ClickHouseLog;
use mandate::log::{Batch, LogStore, LogStoreError, append_or_set_apart};
use uuid::Uuid;

use crate::operations::query;
use crate::samples::{Sample, at, of_events};
use crate::store::{Fixture, clickhouse_options, clickhouse_url, on_clickhouse};

pub async fn a_refused_row_is_set_apart_and_all_else_kept(fixture: Fixture) {
    let (store, sample) = (fixture.store.as_ref(), Sample::new());
    fixture.execute("ALTER TABLE agent_log.agent_task_events ADD CONSTRAINT c CHECK (actor_id <> 'refused')").await;
    fixture.execute("ALTER TABLE agent_log.agent_usage ADD CONSTRAINT c CHECK (model_id <> 'refused')").await;
    let mut batch = Batch { events: sample.events(1..=100), usage: (1..=9).map(|seq| sample.report(seq)).collect() };
    batch.events[30].actor_id = "refused".to_owned();
    batch.events[99].actor_id = "refused".to_owned();
    batch.usage[0].model_id = "refused".to_owned();
    let fault = store.append(&batch).await.unwrap_err();
    assert!(matches!(fault, LogStoreError::Refused(_)), "{fault}");
    let mut refused = append_or_set_apart(store, batch.clone()).await.unwrap();
    refused.sort_by_key(|(row, _)| row.events.first().map(|row| row.seq));
    let expected = [
        Batch { events: Vec::new(), usage: vec![batch.usage[0].clone()] },
        of_events(&batch.events[30..31]),
        of_events(&batch.events[99..]),
    ];
    assert_eq!(refused.iter().map(|(row, _)| row.clone()).collect::<Vec<_>>(), expected);
    for (_, reason) in &refused {
        assert!(!reason.full.is_empty() && reason.full.chars().count() < 600, "{reason}");
        // Which constraint it was is told, and nothing of the row.
        assert!(reason.shown.contains("\"c\""), "{reason}");
    }
    let seqs = store.seqs(sample.organization, sample.task).await.unwrap();
    assert_eq!(seqs, (1..=99).filter(|seq| *seq != 31).collect::<Vec<_>>());
    assert_eq!(store.report_ids(sample.organization, sample.task).await.unwrap().len(), 8);
}

/// ClickHouse would keep another instant without a word.
#[tokio::test]
async fn a_year_beyond_the_column_is_set_apart() {
    on_clickhouse(|fixture| async move {
        let (store, sample) = (fixture.store.as_ref(), Sample::new());
        let mut rows = sample.events(1..=3);
        rows[1].at = at("9999-12-31T23:59:59Z");
        let refused = append_or_set_apart(store, of_events(&rows)).await.unwrap();
        assert_eq!(refused.len(), 1);
        assert_eq!(refused[0].0, of_events(&rows[1..2]));
        assert_eq!(store.seqs(sample.organization, sample.task).await.unwrap(), [1, 3]);
    })
    .await;
}

/// A fault of the schema is not the row's: everything would be set apart.
#[tokio::test]
async fn a_store_without_its_tables_is_away() {
    let database = format!("mandate_test_{}", Uuid::new_v4().simple());
    let store = ClickHouseLog::connect(&clickhouse_url(&database), clickhouse_options()).unwrap();
    let sample = Sample::new();
    for fault in [
        store.append(&of_events(&sample.events(1..=1))).await.unwrap_err(),
        store.seqs(sample.organization, sample.task).await.unwrap_err(),
    ] {
        assert!(matches!(fault, LogStoreError::Unavailable(_)), "{fault}");
    }
}

/// Tables that were dropped and made again, or altered, while the process runs.
#[tokio::test]
async fn a_schema_that_changes_underneath_refuses_no_row() {
    on_clickhouse(|fixture| async move {
        let (store, sample) = (fixture.store.as_ref(), Sample::new());
        let rows = sample.events(1..=3);
        store.append(&of_events(&rows[..1])).await.unwrap();
        fixture.execute("ALTER TABLE agent_task_events ADD COLUMN later String DEFAULT ''").await;
        store.append(&of_events(&rows[1..2])).await.unwrap();
        fixture.execute("ALTER TABLE agent_task_events MODIFY COLUMN schema_version String").await;
        for _ in 0..2 {
            let fault = store.append(&of_events(&rows[2..])).await.unwrap_err();
            assert!(matches!(fault, LogStoreError::Unavailable(_)), "{fault}");
        }
        fixture.execute("ALTER TABLE agent_task_events MODIFY COLUMN schema_version Int32").await;
        store.append(&of_events(&rows)).await.unwrap();
        assert_eq!(store.seqs(sample.organization, sample.task).await.unwrap(), [1, 2, 3]);
        let refused = append_or_set_apart(store, of_events(&rows)).await.unwrap();
        assert!(refused.is_empty());
    })
    .await;
}

/// The view copies operations only of what is inserted once it is there.
#[tokio::test]
async fn nothing_is_written_before_the_operations_log_copies_it() {
    on_clickhouse(|fixture| async move {
        let (store, sample) = (fixture.store.as_ref(), Sample::new());
        let operations = query(&sample, 10);
        let mut rows = sample.events(1..=2);
        for row in &mut rows {
            row.event_type = "outcome.set".to_owned();
        }
        let waits = async |batch: &Batch| {
            let fault = store.append(batch).await.unwrap_err();
            assert!(matches!(&fault, LogStoreError::Unavailable(text) if text.contains("not prepared")), "{fault}");
        };
        // At the first insert of this process, and after one that failed.
        fixture.execute("DROP VIEW agent_operations_feed").await;
        waits(&of_events(&rows[..1])).await;
        store.migrate().await.unwrap();
        store.append(&of_events(&rows[..1])).await.unwrap();
        fixture.execute("RENAME TABLE agent_task_events TO elsewhere").await;
        store.append(&of_events(&rows[1..])).await.unwrap_err();
        fixture.execute("DROP VIEW agent_operations_feed").await;
        fixture.execute("RENAME TABLE elsewhere TO agent_task_events").await;
        waits(&of_events(&rows[1..])).await;
        assert_eq!(store.seqs(sample.organization, sample.task).await.unwrap(), [1]);
        store.migrate().await.unwrap();
        store.append(&of_events(&rows[1..])).await.unwrap();
        assert_eq!(store.operations(&operations).await.unwrap().len(), 2);
    })
    .await;
}
