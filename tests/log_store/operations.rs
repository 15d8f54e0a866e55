//! The operations log.

use mandate::domain::ids::AgentId;
use mandate::log::{EventRow, Operation, OperationKind, OperationPosition, OperationsQuery};

use crate::samples::{Sample, at, fresh, micros_later, of_events};
use crate::store::Fixture;

/// All of the sample's organization.
pub fn query(sample: &Sample, limit: u32) -> OperationsQuery {
    OperationsQuery {
        organization: sample.organization,
        start: None,
        end: None,
        agent: None,
        kind: None,
        after: None,
        limit,
    }
}

fn of_type(sample: &Sample, seq: i64, event_type: &str, payload: &str) -> EventRow {
    EventRow { event_type: event_type.to_owned(), payload: payload.to_owned(), ..sample.event(seq) }
}

fn operation(row: &EventRow, kind: OperationKind) -> Operation {
    Operation {
        kind,
        task: row.task_id,
        short_id: mandate::domain::ids::ShortId(row.short_number),
        agent_id: row.agent_id,
        agent_slug: row.agent_slug.clone(),
        project_id: row.project_id,
        event: row.clone().into_event().unwrap(),
    }
}

pub async fn resolutions_and_outcomes_are_listed_the_newest_first(fixture: Fixture) {
    let (store, sample) = (fixture.store.as_ref(), Sample::new());
    fixture.keeps_duplicates().await;
    let resolved = "request.resolved";
    let mut rows = vec![
        of_type(&sample, 1, "turn", r#"{"status":"approved"}"#),
        of_type(&sample, 2, resolved, r#"{"request_id":"r","status":"answered","answer":"yes"}"#),
        of_type(&sample, 3, resolved, r#"{"request_id":"r","status":"void","answer":null}"#),
        of_type(&sample, 4, resolved, r#"{"request_id":"r","status":"approved"}"#),
        of_type(
            &sample,
            5,
            resolved,
            r#"{"request_id": "r", "constraints": {"status": "void"}, "status": "rejected"}"#,
        ),
        of_type(&sample, 6, resolved, r#"{"request_id":"r","constraints":{"status":"approved"}}"#),
        of_type(&sample, 7, "outcome.set", r#"{"outcome":"done_acted"}"#),
        of_type(&sample, 8, "request.expired", r#"{"status":"approved"}"#),
    ];
    rows[6].project_id = None;
    for _ in 0..3 {
        store.append(&of_events(&rows)).await.unwrap();
    }
    store.append(&of_events(&[of_type(&Sample::new(), 1, "outcome.set", "{}")])).await.unwrap();
    let found = store.operations(&query(&sample, 100)).await.unwrap();
    let expected = [
        operation(&rows[6], OperationKind::Outcome),
        operation(&rows[4], OperationKind::Resolution),
        operation(&rows[3], OperationKind::Resolution),
        operation(&rows[1], OperationKind::Resolution),
    ];
    assert_eq!(found, expected);

    // Written anew, another status: the older version is not found any more.
    let mut anew = rows[3].clone();
    anew.version = 2;
    anew.payload = r#"{"request_id":"r","status":"void"}"#.to_owned();
    store.append(&of_events(&[anew])).await.unwrap();
    store.append(&of_events(&rows)).await.unwrap();
    let found = store.operations(&query(&sample, 100)).await.unwrap();
    assert_eq!(found, [&expected[..2], &expected[3..]].concat());
}

pub async fn pages_lose_and_repeat_nothing(fixture: Fixture) {
    let (store, sample) = (fixture.store.as_ref(), Sample::new());
    fixture.keeps_duplicates().await;
    let mut rows = Vec::new();
    for task in 0..15 {
        let sample = sample.sibling();
        for seq in 1..=4 {
            let mut row = of_type(&sample, seq, "outcome.set", "{}");
            // Several tasks, and several entries of one, at the same instant; over two months.
            row.recorded_at = micros_later(at("2026-02-28T23:59:59.999999Z"), task / 4 + seq / 2);
            rows.push(row);
        }
    }
    store.append(&of_events(&rows)).await.unwrap();
    store.append(&of_events(&rows)).await.unwrap();
    rows.sort_by_key(|row| std::cmp::Reverse((row.recorded_at, row.task_id, row.seq)));
    let expected: Vec<_> = rows.iter().map(|row| operation(row, OperationKind::Outcome)).collect();
    for limit in [1, 7, 60, 61] {
        let mut found: Vec<Operation> = Vec::new();
        loop {
            let after = found.last().map(|last| OperationPosition {
                recorded_at: last.event.recorded_at,
                task: last.task,
                seq: last.event.seq,
            });
            let page = store.operations(&OperationsQuery { after, ..query(&sample, limit) }).await.unwrap();
            let full = page.len() == limit as usize;
            found.extend(page);
            if !full {
                break;
            }
        }
        assert_eq!(found, expected, "pages of {limit}");
    }
}

pub async fn filters_hold(fixture: Fixture) {
    let (store, sample) = (fixture.store.as_ref(), Sample::new());
    let other = Sample { agent: fresh::<AgentId>(), ..sample.sibling() };
    let start = at("2026-03-01T00:00:00Z");
    let mut rows = Vec::new();
    for (n, whose) in (0..).zip([&sample, &other, &sample, &other]) {
        let mut outcome = of_type(whose, 10 + n, "outcome.set", "{}");
        outcome.recorded_at = micros_later(start, n);
        let mut resolution = of_type(whose, 20 + n, "request.resolved", r#"{"status":"approved"}"#);
        resolution.recorded_at = micros_later(start, n);
        rows.extend([outcome, resolution]);
    }
    store.append(&of_events(&rows)).await.unwrap();
    let any = query(&sample, 100);
    let cases = [
        OperationsQuery { kind: Some(OperationKind::Outcome), ..any.clone() },
        OperationsQuery { kind: Some(OperationKind::Resolution), ..any.clone() },
        OperationsQuery { agent: Some(other.agent), ..any.clone() },
        OperationsQuery { start: Some(micros_later(start, 1)), ..any.clone() },
        OperationsQuery { end: Some(micros_later(start, 3)), ..any.clone() },
        OperationsQuery {
            start: Some(at("0001-01-01T00:00:00Z")),
            end: Some(at("9999-12-31T23:59:59Z")),
            ..any.clone()
        },
        OperationsQuery {
            start: Some(micros_later(start, 1)),
            end: Some(micros_later(start, 3)),
            agent: Some(sample.agent),
            kind: Some(OperationKind::Outcome),
            ..any.clone()
        },
        OperationsQuery { agent: Some(fresh()), ..any.clone() },
    ];
    for asked in cases {
        let kind = |row: &EventRow| match row.event_type.as_str() {
            "outcome.set" => OperationKind::Outcome,
            _ => OperationKind::Resolution,
        };
        let mut expected: Vec<&EventRow> = rows.iter().collect();
        expected.retain(|row| {
            asked.kind.is_none_or(|wanted| wanted == kind(row))
                && asked.agent.is_none_or(|agent| agent == row.agent_id)
                && asked.start.is_none_or(|start| row.recorded_at >= start)
                && asked.end.is_none_or(|end| row.recorded_at < end)
        });
        expected.sort_by_key(|row| std::cmp::Reverse((row.recorded_at, row.task_id, row.seq)));
        let expected: Vec<_> = expected.into_iter().map(|row| operation(row, kind(row))).collect();
        assert_eq!(store.operations(&asked).await.unwrap(), expected, "{asked:?}");
    }
}

/// JSON functions that read numbers into machine words give up on these.
pub async fn a_resolution_with_numbers_beyond_any_machine_is_found(fixture: Fixture) {
    let (store, sample) = (fixture.store.as_ref(), Sample::new());
    let constraints = r#"{"limit":1E400,"big":123456789012345678901234567890,"status":"void"}"#;
    let payload =
        |status| format!(r#"{{"request_id":"r","status":"{status}","answer":null,"constraints":{constraints}}}"#);
    let found = of_type(&sample, 1, "request.resolved", &payload("approved"));
    let void = of_type(&sample, 2, "request.resolved", &payload("void").replace("}}", ",\"x\":\"approved\"}}"));
    store.append(&of_events(&[found.clone(), void])).await.unwrap();
    let expected = [operation(&found, OperationKind::Resolution)];
    assert_eq!(store.operations(&query(&sample, 10)).await.unwrap(), expected);
}
