//! Reading back what was written.

use mandate::domain::log_page::EventPage;
use mandate::domain::money::{Prices, TokenCounts};
use mandate::log::Batch;

use crate::samples::{Sample, as_events, at, fresh, ledgers, micros_later, of_events, of_usage, whole};
use crate::store::Fixture;

pub async fn what_was_written_is_read_back_to_the_byte(fixture: Fixture) {
    let (store, sample) = (fixture.store.as_ref(), Sample::new());
    let mut rows = sample.events(1..=9);
    let payloads = [
        r#"{"n":10,"big":9007199254740993,"d":0.10,"e":1E400}"#,
        "{\"b\":1,\"a\":2,\"text\":\"ünïcødé 東京 🦀 \\u0041\"}",
        r#"{"quotes":"'\"`\\ \t\r\n ? ?? {x:String} $1 \b --"}"#,
        "{}",
        "null",
        "\"\"",
        "[1,-0,0e0,123456789012345678901234567890.123456789012345678901234567890]",
        "{\"controls\":\"\u{1}\u{7f}\u{2028}\"}",
        "{\"tab\":\t1,\n\"line\": 2}",
    ];
    for (row, payload) in rows.iter_mut().zip(payloads) {
        row.payload = payload.to_owned();
    }
    rows[0].channel = None;
    rows[0].session_id = None;
    rows[0].project_id = None;
    rows[0].redacted = Vec::new();
    rows[1].redacted = vec![String::new(), "/a~1b/0".to_owned(), "/ü'\"\\,{}[]NULL".to_owned(), "NULL".to_owned()];
    rows[1].actor_kind = "human".to_owned();
    rows[1].channel = Some("slack".to_owned());
    rows[1].actor_id = "o'neil\\\"东".to_owned();
    rows[2].event_type = "type.of.a.later.version".to_owned();
    rows[2].schema_version = i32::MAX;
    rows[3].at = at("1970-01-01T00:00:00.000000Z");
    rows[4].at = at("2026-10-25T02:30:00.000001+05:30");
    rows[5].at = at("2299-12-31T23:59:59.999999Z");
    rows[6].short_number = i64::MAX;
    rows[7].version = 7;
    store.append(&of_events(&rows)).await.unwrap();
    let stored = store.stored_events(sample.organization, &[sample.task], 1, 9).await.unwrap();
    assert_eq!(stored, rows);
    assert_eq!(whole(store, &sample).await, as_events(&rows));

    let mut usage: Vec<_> = (1..=5).map(|seq| sample.report(seq)).collect();
    usage[0].cost = Some("9999999999999999.999999999999".parse().unwrap());
    usage[1].cost = Some("-9999999999999999.999999999999".parse().unwrap());
    usage[1].corrects = Some(usage[0].report_id);
    usage[1].tokens = TokenCounts { tokens_in: i64::MIN, tokens_out: i64::MAX, ..TokenCounts::default() };
    usage[1].unmeasured_delta = -1;
    usage[1].unpriced_delta = i16::MIN;
    usage[2].cost = None;
    usage[2].prices = Prices::default();
    usage[2].measured = false;
    usage[2].unmeasured_delta = 1;
    usage[2].session_id = None;
    usage[2].model_ref = None;
    usage[2].project_id = None;
    usage[2].project_slug = None;
    usage[3].cost = Some("0.000000000001".parse().unwrap());
    usage[3].prices.input_cost_per_million = Some("1000000".parse().unwrap());
    usage[3].prices.cache_write_cost_per_million = Some("999999.999999".parse().unwrap());
    usage[4].cost = Some("0".parse().unwrap());
    usage[4].idempotency_key = "ключ '\\\" 🦀".to_owned();
    usage[4].model_id = String::new();
    store.append(&of_usage(&usage)).await.unwrap();
    assert_eq!(ledgers(store, sample.organization, &[sample.task]).await, usage);
}

pub async fn pages_go_both_ways(fixture: Fixture) {
    let (store, sample) = (fixture.store.as_ref(), Sample::new());
    let rows = sample.events(1..=10);
    // In an order that is not the log's.
    store.append(&of_events(&rows[5..])).await.unwrap();
    store.append(&of_events(&rows[..5])).await.unwrap();
    let log = as_events(&rows);
    let cases = [
        (None, None, 4, 0..4, true),
        (Some(0), None, 10, 0..10, false),
        (Some(4), None, 4, 4..8, true),
        (Some(6), None, 4, 6..10, false),
        (Some(10), None, 4, 0..0, false),
        (Some(2), Some(6), 10, 2..5, false),
        (Some(2), Some(6), 2, 2..4, true),
        (None, Some(8), 3, 4..7, true),
        (None, Some(4), 3, 0..3, false),
        (None, Some(1), 3, 0..0, false),
        (None, Some(i64::MAX), 1, 9..10, true),
        (Some(i64::MAX), None, 1, 0..0, false),
    ];
    for (after_seq, before_seq, limit, expected, more) in cases {
        let page = EventPage { after_seq, before_seq, types: Vec::new(), limit };
        let answer = store.events(sample.organization, sample.task, &page).await.unwrap();
        assert_eq!(answer, (log[expected].to_vec(), more), "{page:?}");
    }
}

pub async fn types_are_filtered_as_they_were_written(fixture: Fixture) {
    let (store, sample) = (fixture.store.as_ref(), Sample::new());
    let mut rows = sample.events(1..=12);
    let odd = "o'dd \\ \"type\", ü]";
    rows[7].event_type = odd.to_owned();
    store.append(&of_events(&rows)).await.unwrap();
    let log = as_events(&rows);
    let page = |types: &[&str], after_seq, before_seq, limit| EventPage {
        after_seq,
        before_seq,
        types: types.iter().map(|&text| text.to_owned()).collect(),
        limit,
    };
    let cases = [
        (page(&["tool.called"], None, None, 3), vec![3, 6, 9], true),
        (page(&["tool.called"], Some(3), None, 3), vec![6, 9, 12], false),
        (page(&["tool.called"], None, Some(12), 2), vec![6, 9], true),
        (page(&["tool.called"], None, Some(7), 2), vec![3, 6], false),
        (page(&[odd], None, None, 9), vec![8], false),
        (page(&[odd, "tool.called", "unknown"], Some(5), Some(12), 9), vec![6, 8, 9], false),
        (page(&["unknown"], None, None, 9), vec![], false),
        (page(&["turn') OR ('1'='1"], None, None, 9), vec![], false),
    ];
    for (page, seqs, more) in cases {
        let expected = seqs.iter().map(|&seq: &usize| log[seq - 1].clone()).collect();
        let answer = store.events(sample.organization, sample.task, &page).await.unwrap();
        assert_eq!(answer, (expected, more), "{page:?}");
    }
}

pub async fn an_organization_reads_only_its_own(fixture: Fixture) {
    let (store, ours) = (fixture.store.as_ref(), Sample::new());
    // The same task id in another organization.
    let theirs = Sample { organization: fresh(), ..ours.clone() };
    let (our_rows, their_rows) = (ours.events(1..=3), theirs.events(1..=5));
    let (our_report, their_report) = (ours.report(1), theirs.report(1));
    store.append(&Batch { events: our_rows.clone(), usage: vec![our_report.clone()] }).await.unwrap();
    store.append(&Batch { events: their_rows, usage: vec![their_report] }).await.unwrap();
    assert_eq!(whole(store, &ours).await, as_events(&our_rows));
    assert_eq!(store.seqs(ours.organization, ours.task).await.unwrap(), [1, 2, 3]);
    assert_eq!(store.report_ids(ours.organization, ours.task).await.unwrap(), [our_report.report_id]);
    assert_eq!(store.stored_events(ours.organization, &[ours.task], 1, 9).await.unwrap(), our_rows);
    assert_eq!(ledgers(store, ours.organization, &[ours.task]).await, [our_report]);
    let coverage = store.coverage(&[(ours.organization, ours.task)]).await.unwrap();
    assert_eq!(coverage.len(), 1);
    assert!(coverage[0].is_whole(3, 1), "{coverage:?}");
}

pub async fn lists_say_what_is_there(fixture: Fixture) {
    let (store, one) = (fixture.store.as_ref(), Sample::new());
    let mut samples = [one.clone(), one.sibling(), one.sibling(), one.sibling()];
    samples.sort_by_key(|sample| sample.task);
    let mut events = Vec::new();
    let mut usage = Vec::new();
    for sample in &samples {
        events.extend(sample.events(1..=4));
        usage.extend((1..=3).map(|seq| sample.report(seq)));
    }
    let mut shuffled = Batch { events: events.clone(), usage: usage.clone() };
    shuffled.events.reverse();
    shuffled.usage.reverse();
    store.append(&shuffled).await.unwrap();
    let tasks: Vec<_> = samples.iter().rev().map(|sample| sample.task).collect();
    let stored = store.stored_events(one.organization, &tasks, 2, 3).await.unwrap();
    let expected: Vec<_> = events.iter().filter(|row| (2..=3).contains(&row.seq)).cloned().collect();
    assert_eq!(stored, expected, "by task and seq");
    assert_eq!(ledgers(store, one.organization, &tasks).await, usage, "by task and seq");
    for (sample, reports) in samples.iter().zip(usage.chunks(3)) {
        assert_eq!(store.seqs(one.organization, sample.task).await.unwrap(), [1, 2, 3, 4]);
        let mut found = store.report_ids(one.organization, sample.task).await.unwrap();
        let mut expected: Vec<_> = reports.iter().map(|row| row.report_id).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
    }
}

pub async fn rows_of_many_months_go_in_one_batch(fixture: Fixture) {
    const ROWS: i64 = 2_000;
    let (store, sample) = (fixture.store.as_ref(), Sample::new());
    let month = 30 * 86_400_000_000;
    let mut batch =
        Batch { events: sample.events(1..=ROWS), usage: (1..=ROWS).map(|seq| sample.report(seq)).collect() };
    // Over more months than the hundred that ClickHouse takes in one block by default.
    for row in &mut batch.events {
        row.recorded_at = micros_later(at("2014-01-15T00:00:00Z"), row.seq % 130 * month);
    }
    for row in &mut batch.usage {
        row.recorded_at = micros_later(at("2024-01-15T00:00:00Z"), row.seq % 30 * month);
    }
    store.append(&batch).await.unwrap();
    let coverage = store.coverage(&[(sample.organization, sample.task)]).await.unwrap();
    assert!(coverage[0].is_whole(ROWS, ROWS), "{coverage:?}");
    assert_eq!(store.stored_events(sample.organization, &[sample.task], 1, ROWS).await.unwrap(), batch.events);
    assert_eq!(ledgers(store, sample.organization, &[sample.task]).await, batch.usage);
}

pub async fn an_empty_batch_and_an_empty_store_are_no_fault(fixture: Fixture) {
    let (store, sample) = (fixture.store.as_ref(), Sample::new());
    store.append(&Batch::default()).await.unwrap();
    assert!(whole(store, &sample).await.is_empty());
    assert!(store.seqs(sample.organization, sample.task).await.unwrap().is_empty());
    assert!(store.report_ids(sample.organization, sample.task).await.unwrap().is_empty());
    assert!(store.coverage(&[(sample.organization, sample.task)]).await.unwrap().is_empty());
    assert!(store.coverage(&[]).await.unwrap().is_empty());
    assert!(store.stored_events(sample.organization, &[], 1, 9).await.unwrap().is_empty());
    assert!(store.stored_usage(sample.organization, &[]).await.unwrap().is_empty());
}

pub async fn migrating_again_changes_nothing(fixture: Fixture) {
    let (store, sample) = (fixture.store.as_ref(), Sample::new());
    let rows = sample.events(1..=3);
    store.append(&of_events(&rows)).await.unwrap();
    store.migrate().await.unwrap();
    assert_eq!(whole(store, &sample).await, as_events(&rows));
    store.append(&of_events(&[sample.event(4)])).await.unwrap();
    assert_eq!(store.seqs(sample.organization, sample.task).await.unwrap(), [1, 2, 3, 4]);
}
