//! Rows at the edges: very small ones, the largest, and instants.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use mandate::domain::digest::Digest;
use serde_json::{Value, json};

use crate::place::Place;
use crate::proof::{archived, end_and_prove, prove};
use crate::servers::ClickHouseServer;
use crate::writers::tasks;

/// Case 42.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn five_thousand_tiny_events_one_by_one_make_few_parts() {
    const CLIENTS: usize = 10;
    let place = Place::shared().direct();
    let world = place.world(|_| {}).await;
    let (agent, tasks) = (world.agent().await, tasks(&world, CLIENTS).await);
    let over = AtomicBool::new(false);
    let parts = format!("SELECT count() FROM system.parts WHERE active AND database = '{}'", place.name);
    let watching = async {
        let mut most = 0;
        while !over.load(Ordering::SeqCst) {
            most = most.max(place.in_store(&parts).await.parse::<u64>().unwrap());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        most
    };
    let writing = async {
        join_all(tasks.iter().map(async |task| {
            for nth in 0..5_000 / CLIENTS {
                agent.append(task, json!([{"type": "turn", "payload": {"body": nth.to_string()}}])).await.expect(201);
            }
        }))
        .await;
        over.store(true, Ordering::SeqCst);
    };
    let (most, ()) = tokio::join!(watching, writing);
    assert!(most < 300, "{most} parts at once");
    end_and_prove(&world, &place, &tasks, &[]).await;
    let log = &world.service.counters().log;
    assert_eq!((log.unpublished.get(), log.refused.get(), log.failed_rounds.get()), (0, 0, 0));
    let events = place.in_store("SELECT uniqExact(task_id, seq) FROM agent_task_events WHERE type = 'turn'").await;
    assert_eq!(events, "5000");
}

/// A turn whose payload is JSON of so many bytes, all quotes: as a JSON string it is twice as long.
fn quotes(bytes: usize) -> String {
    let frame = r#"{"body":""}"#.len();
    let filled = r#"\""#.repeat((bytes - frame) / 2) + &"x".repeat((bytes - frame) % 2);
    let payload = format!(r#"{{"body":"{filled}"}}"#);
    assert_eq!(payload.len(), bytes);
    payload
}

/// Case 35.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_largest_payload_is_published_and_archived_and_one_byte_more_is_refused() {
    let place = Place::shared();
    let world = place.world(|_| {}).await;
    let (agent, tasks) = (world.agent().await, tasks(&world, 1).await);
    let path = format!("/agent-tasks/{}/events", tasks[0]);
    let body = |payload: &str| format!(r#"{{"events":[{{"type":"turn","payload":{payload}}}]}}"#);
    let largest = quotes(65_536);
    let before = world.still(&tasks[0]).await;
    let over = agent.post_raw(&path, body(&quotes(65_537))).await;
    assert_eq!(over.status, 413, "{over:?}");
    world.unmoved(&before).await;
    for _ in 0..20 {
        agent.post_raw(&path, body(&largest)).await.expect(201);
    }
    end_and_prove(&world, &place, &tasks, &[]).await;
    let log = &world.service.counters().log;
    assert_eq!((log.unpublished.get(), log.refused.get()), (0, 0));
    let kept = "SELECT DISTINCT concat('sha256:', lower(hex(SHA256(payload)))), count(DISTINCT seq) OVER ()
        FROM agent_task_events WHERE type = 'turn'";
    assert_eq!(place.in_store(kept).await, format!("{}\t20", Digest::of(largest.as_bytes())));
}

/// Case 41.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_log_store_in_another_time_zone_keeps_the_instant() {
    let clickhouse = ClickHouseServer::start_in("Asia/Kolkata");
    let place = Place::shared().on_clickhouse(clickhouse.url());
    let world = place.world(|_| {}).await;
    assert_eq!(place.in_store("SELECT timezone()").await, "Asia/Kolkata");
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let (task, _) = world.working(&agent).await;
    let event = |at: &str| json!([{"type": "turn", "at": at, "payload": {"body": at}}]);
    let times = [
        ("2026-01-31T00:00:00.000001+05:30", "2026-01-30T18:30:00.000001Z"),
        ("2026-03-29T02:30:00.999999+01:00", "2026-03-29T01:30:00.999999Z"),
        ("1970-01-01T05:30:00+05:30", "1970-01-01T00:00:00.000000Z"),
    ];
    for (at, _) in times {
        agent.append(&task, event(at)).await.expect(201);
    }
    for at in ["1969-12-31T23:59:59.999999Z", "2299-12-31T23:59:59Z", "2300-01-01T00:00:00Z", "9999-12-31T23:59:59Z"] {
        agent.append(&task, event(at)).await.refused(422, "invalid_body");
    }
    agent.spend(&task, "r1", 1, 1).await.expect(201);
    agent.finish(&task).await;
    let before = world.log(&task).await;
    archived(&world).await;
    prove(&world, &place, &[]).await;
    assert_eq!(world.log(&task).await, before, "the same log from the store");
    let kept: Vec<_> = before.iter().filter(|event| event["type"] == "turn").map(|event| event["at"].clone()).collect();
    assert_eq!(kept, times.map(|(_, at)| Value::from(at)));
    let path = "/agent-usage?start=2020-01-01&group_by=day";
    let day = ada.get(path).await.expect(200)["groups"][0]["day"].clone();
    let recorded = before.iter().find(|event| event["type"] == "usage.reported").unwrap()["recorded_at"].clone();
    assert_eq!(day.as_str().unwrap(), &recorded.as_str().unwrap()[..10], "days are UTC");
}
