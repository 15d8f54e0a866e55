//! Rows that arrive more than once.

use mandate::log::{Batch, EventRow, UsageRow};
use serde_json::Value;

use crate::archive::closed_task;
use crate::combination::{Place, archived, key, landed};
use crate::over_every_combination;
use crate::support::World;

over_every_combination!(every_row_three_times_shows_each_once);

/// The rows of a task as the store has them.
pub async fn stored(world: &World, row: &Value) -> (Vec<EventRow>, Vec<UsageRow>) {
    let (organization, task) = key(world, row);
    let events = world.log.store.stored_events(organization, &[task], 1, i64::MAX).await.unwrap();
    let reports = world.log.store.report_ids(organization, task).await.unwrap();
    let reports: Vec<_> = reports.into_iter().map(|report| (task, report)).collect();
    let mut usage = world.log.store.stored_usage(organization, &reports).await.unwrap();
    usage.sort_by_key(|row| (row.seq, std::cmp::Reverse(row.version)));
    (events, usage)
}

async fn every_row_three_times_shows_each_once(place: Place) {
    let world = place.world().await;
    if place.is_clickhouse() {
        place.in_store(&world, "SYSTEM STOP MERGES {events}").await;
        place.in_store(&world, "SYSTEM STOP MERGES {usage}").await;
    }
    let (vera, agent) = (world.person("vera"), world.agent().await);
    let task = closed_task(&world, &agent).await;
    landed(&world, &task).await;
    let row = vera.get(&format!("/agent-tasks/{task}")).await.expect(200).clone();
    let (events, usage) = stored(&world, &row).await;
    for _ in 0..2 {
        world.log.store.append(&Batch { events: events.clone(), usage: usage.clone() }).await.unwrap();
    }
    if place.is_clickhouse() {
        let count = place.in_store(&world, "SELECT count() FROM {events}").await;
        assert_eq!(count.parse::<usize>().unwrap(), 3 * events.len(), "they are really there");
    }
    let before = world.log(&task).await;
    let used = vera.get("/agent-usage?group_by=agent").await.expect(200).clone();
    archived(&world, &task).await;
    assert_eq!(world.log(&task).await, before);
    for path in ["?limit=4", "?limit=1", "?before_seq=1000&limit=3", "?type=usage.reported&limit=1"] {
        let mut pages = vera.pages(&format!("/agent-tasks/{task}/events{path}")).await;
        if path.contains("before_seq") {
            pages.reverse();
        }
        let read = pages.concat();
        let wanted = before.iter().filter(|event| !path.contains("type") || event["type"] == "usage.reported");
        assert_eq!(read, wanted.cloned().collect::<Vec<_>>(), "{path}");
    }
    assert_eq!(used["groups"][0]["reports"], usage.len());
    assert_eq!(vera.get("/agent-usage?group_by=agent").await.expect(200)["groups"], used["groups"]);
    let operations = vera.all("/operations-log?limit=1").await;
    assert_eq!(operations.len(), 2, "one resolution, one outcome: {operations:?}");
    world.prove().await;
}
