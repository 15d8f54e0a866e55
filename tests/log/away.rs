//! The log store is away: what needs it says so, and nothing else notices.

use mandate::config::SecretUrl;
use reqwest::Method;
use serde_json::{Value, json};

use crate::archive::closed_task;
use crate::combination::{Combination, Place, archived};
use crate::support::{Reply, World, eventually};

/// Nobody listens there.
const NOWHERE: &str = "clickhouse://default@127.0.0.1:1/away";

/// A server that had a log store, and one archived log in it, until now.
async fn left_alone() -> (World, String) {
    let mut world = Place::new(Combination::DirectPostgres).world().await;
    let agent = world.agent().await;
    let task = closed_task(&world, &agent).await;
    archived(&world, &task).await;
    world.settings.log.publish_timeout_seconds = 1;
    world.settings.log.store_url = Some(SecretUrl::new(NOWHERE));
    (world.restarted().await, task)
}

#[track_caller]
fn unavailable(reply: &Reply) {
    reply.refused(503, "unavailable");
    assert!(reply.header("retry-after").is_some_and(|after| after.parse::<u32>().is_ok()), "{reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_needs_the_store_is_unavailable_and_nothing_else_notices() {
    let (world, gone) = left_alone().await;
    let (agent, ada, vera) = (world.agent().await, world.person("ada"), world.person("vera"));
    for path in [
        "/agent-usage".to_owned(),
        "/agent-usage?group_by=day".to_owned(),
        "/operations-log".to_owned(),
        format!("/agent-tasks/{gone}/events"),
        format!("/agent-tasks/{gone}/events?after_seq=100000"),
        format!("/agent-tasks/{gone}/events?before_seq=1"),
    ] {
        unavailable(&vera.get(&path).await);
    }
    let lines = vera.request(Method::GET, &format!("/agent-tasks/{gone}/events"));
    unavailable(&vera.send(lines.header("accept", "application/x-ndjson")).await);
    // Bad parameters and missing permissions are told first.
    vera.get("/agent-usage?start=x").await.invalid_at(&["start"]);
    agent.get("/operations-log").await.refused(403, "permission_denied");
    // What Postgres knows of the archived task.
    for path in ["", "/proof", "/usage", "/sessions", "/requests"] {
        vera.get(&format!("/agent-tasks/{gone}{path}")).await.expect(200);
    }
    agent.append(&gone, json!([{"type": "turn", "payload": {"body": "x"}}])).await.refused(409, "task_archived");

    // A whole task, from its creation to its end.
    let (task, session) = world.working(&agent).await;
    agent.say(&task, &session, "as ever").await.expect(201);
    agent.spend(&task, "u1", 5_005, 1_744).await.expect(201);
    agent.post_nothing(&format!("/agent-tasks/{task}/sessions/{session}/heartbeat")).await.expect(200);
    let request = agent.ask(&task, &["yes"]).await;
    let resolve = json!({"status": "answered", "choice": "yes"});
    world.person("abe").on(&task, &format!("requests/{request}/resolve"), resolve).await.expect(201);
    for control in ["pause", "resume"] {
        ada.post_nothing(&format!("/agent-tasks/{task}/{control}")).await.expect(200);
    }
    ada.on(&task, "reply", json!({"body": "Go on."})).await.expect(200);
    let seqs = |log: &[Value]| log.iter().map(|event| event["seq"].as_i64().unwrap()).collect::<Vec<_>>();
    let log = world.log(&task).await;
    assert_eq!(seqs(&log), (1..=i64::try_from(log.len()).unwrap()).collect::<Vec<_>>());
    agent.finish(&task).await.expect(200);
    for path in ["/agent-tasks/", "/agent-tasks/waiting", "/requests", &format!("/agent-tasks/{task}")] {
        vera.get(path).await.expect(200);
    }
    let ended = ada.post_nothing(&format!("/agent-tasks/{}/cancel", world.task().await)).await;
    ended.expect(200);
    let probes = world.anyone();
    probes.get("//readyz").await.expect(200);
    probes.get("//healthz").await.expect(200);
    // What was not handed over is counted, and left to the sweep, which touches nothing meanwhile.
    let count = async || {
        let text = probes.get("//metrics").await.text;
        let line =
            text.lines().find(|line| line.starts_with("mandate_log_unpublished_rows_total ")).unwrap().to_owned();
        line.rsplit(' ').next().unwrap().parse::<i64>().unwrap()
    };
    eventually("what was not handed over is counted", async || count().await > 0).await;
    let before = world.footprint().await;
    assert!(world.sweep.round().await.is_err());
    assert_eq!(world.footprint().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn once_it_is_back_everything_is_in_it() {
    let (world, gone) = left_alone().await;
    let agent = world.agent().await;
    let task = closed_task(&world, &agent).await;
    assert!(world.sweep.round().await.is_err());
    let mut world = world;
    world.settings.log.store_url = None;
    let world = world.restarted().await;
    archived(&world, &task).await;
    let vera = world.person("vera");
    for task in [&gone, &task] {
        let row = vera.get(&format!("/agent-tasks/{task}")).await.expect(200).clone();
        assert_eq!(json!(world.log(task).await.len()), row["last_seq"]);
    }
    assert_eq!(vera.get("/agent-usage").await.expect(200)["total"]["reports"], 6);
    assert_eq!(vera.all("/operations-log").await.len(), 4);
    world.prove().await;
}
