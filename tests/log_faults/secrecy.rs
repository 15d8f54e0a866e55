//! Why the log store refuses a row: that quotes the row, and has no place in a log line.

use serde_json::json;

use crate::place::{Place, at_length, only, process};
use crate::refusal::dead_letters;
use crate::writers::tasks;
use mandate::config::Role;

/// Said in an event that an operator's constraint refuses.
const WORD: &str = "xyzzy-said-in-confidence";
const FULLEST: (&str, &str) = ("MANDATE_TELEMETRY__LOG_FILTER", "trace");

async fn refuse(place: &Place) {
    place.in_store("ALTER TABLE agent_task_events ADD CONSTRAINT odd CHECK position(payload, 'xyzzy') = 0").await;
}

fn keeps_the_word(log: &str) {
    let line = log.lines().find(|line| line.contains(WORD));
    assert_eq!(line, None, "the log says what was said");
    let told = |line: &str| line.contains("469") && line.contains("VIOLATED_CONSTRAINT") && line.contains("odd");
    assert!(log.lines().any(told), "the log does not say which constraint it was: {log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_sink_sets_apart_is_quoted_beside_the_row_alone() {
    let place = Place::shared();
    let world = place.world(|settings| only(settings, &[Role::Api, Role::Publisher])).await;
    refuse(&place).await;
    let (agent, tasks) = (world.agent().await, tasks(&world, 1).await);
    let sink = process(&world, "sink", &[FULLEST]).await;
    agent.append(&tasks[0], json!([{"type": "turn", "payload": {"body": WORD}}])).await.expect(201);
    sink.wait_for("a message is set apart").await;
    keeps_the_word(&sink.log());
    let found = tokio::task::spawn_blocking(move || dead_letters(&place)).await.unwrap();
    assert!(found.iter().all(|(reason, _)| reason.contains(WORD) && reason.contains("469")), "{found:?}");
    assert_eq!(found.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_the_store_refuses_of_a_publisher_or_a_sweep_is_not_quoted() {
    let place = Place::shared().direct();
    let world = place
        .world(|settings| {
            only(settings, &[Role::Api]);
            settings.archive.patience_seconds = 0;
        })
        .await;
    refuse(&place).await;
    let tasks = tasks(&world, 1).await;
    let server = process(&world, "api,publisher,sweep", &[FULLEST]).await;
    let agent = world.agent().await.at(&server.base);
    agent.append(&tasks[0], json!([{"type": "turn", "payload": {"body": WORD}}])).await.expect(201);
    for words in ["the log store refuses an event", "not everything was handed over", "not everything was sent again"] {
        server.wait_for(words).await;
    }
    keeps_the_word(&server.log());
    at_length("the sweep tries", async || server.log().contains("swept")).await;
    keeps_the_word(&server.log());
}
