//! The main job on real input: recorded runs of a real agent go through the HTTP API, from creation to close.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{World, eventually};

#[path = "../../examples/replay/mod.rs"]
mod harness;

use harness::Options;
use harness::keys::Keys;
use harness::plan::Plan;
use harness::player;
use harness::recording::Recording;
use harness::summary::Summary;

fn recording(name: &str) -> Recording {
    let data = std::env::var("MANDATE_TEST_DATA").expect("MANDATE_TEST_DATA is set by tests/run");
    Recording::read(&PathBuf::from(data).join("trajectories").join(name)).unwrap()
}

async fn options(world: &World) -> Options {
    let ada = world.person("ada");
    let model = json!({"provider": "openai", "model_id": "gpt-4-1106-preview", "input_cost_per_million": "10",
        "output_cost_per_million": "30"});
    ada.put("/models/gpt-4", &model).await;
    Options {
        url: world.base.clone(),
        org: world.seed.slug.clone(),
        agent: world.seed.agent.slug.clone(),
        model: "gpt-4".to_owned(),
        client_id: world.seed.agent.client_id.clone(),
        client_secret: world.seed.agent.client_secret.clone(),
        token: ada.token().to_owned(),
        patience: Duration::from_mins(1),
        pace: Duration::ZERO,
    }
}

async fn play(world: &World, name: &str) -> Summary {
    let recording = recording(name);
    let options = options(world).await;
    let plan = Plan::of(&recording, Keys::of(&recording.sha256, &options.agent, "test"));
    let summary = player::play(&options, &plan, &mut |_| {}).await.unwrap();
    assert!(summary.is_as_intended(), "{summary}");
    summary
}

/// The log of a closed task has no gap, its ledger adds up, and the audit finds nothing.
async fn sound(world: &World, summary: &Summary) -> Value {
    let log = world.log(&summary.task).await;
    for (event, seq) in log.iter().zip(1..) {
        assert_eq!(event["seq"], seq);
    }
    let task = world.person("ada").get(&format!("/agent-tasks/{}", summary.task)).await.expect(200).clone();
    assert_eq!((task["status"].as_str(), task["outcome"].as_str()), (Some("closed"), Some("done_acted")));
    assert_eq!(task["last_seq"], log.len());
    assert_eq!(world.audit().await, Vec::<String>::new());
    task
}

#[tokio::test]
async fn a_recorded_run_with_counts_costs_what_it_cost_to_the_last_digit() {
    let world = World::new().await;
    let summary = play(&world, "pydicom-1458.traj").await;
    let task = sound(&world, &summary).await;
    assert_eq!(task["cost_total"], "1.26719");
    assert_eq!((task["tokens_in"].as_i64(), task["tokens_out"].as_i64()), (Some(122_612), Some(1_369)));
    assert_eq!(task["budget_certain"], true);
}

#[tokio::test]
async fn a_function_calling_run_is_exact_too() {
    let world = World::new().await;
    let summary = play(&world, "test-repo-1c2844.traj").await;
    // 7,141 in at 10 and 243 out at 30 per million.
    assert_eq!(sound(&world, &summary).await["cost_total"], "0.0787");
}

#[tokio::test]
async fn runs_without_counts_are_unmeasured_and_not_free() {
    let world = World::new().await;
    for (name, reports) in [("marshmallow-1867.traj", 11), ("ctf-crypto-katy.traj", 18)] {
        let summary = play(&world, name).await;
        let task = sound(&world, &summary).await;
        assert_eq!((&task["unmeasured_reports"], &task["budget_certain"]), (&json!(reports), &json!(false)));
    }
}

#[tokio::test]
async fn a_second_run_of_the_same_recording_writes_nothing() {
    let world = World::new().await;
    let first = play(&world, "test-repo-1c2844.traj").await;
    let before = world.log(&first.task).await;
    let second = play(&world, "test-repo-1c2844.traj").await;
    assert_eq!(second.task, first.task);
    assert_eq!(world.log(&first.task).await, before);
}

#[tokio::test]
async fn a_replay_survives_a_restart_of_the_server() {
    let world = World::new().await;
    let recording = recording("pydicom-1458.traj");
    let options = Options { pace: Duration::from_millis(20), ..options(&world).await };
    let plan = Plan::of(&recording, Keys::of(&recording.sha256, &options.agent, "restart"));
    let playing = tokio::spawn(async move { player::play(&options, &plan, &mut |_| {}).await });
    eventually("the replay is under way", async || {
        let tasks = world.person("ada").get("/agent-tasks/").await;
        tasks.expect(200)[0]["last_seq"].as_i64().unwrap_or_default() > 12
    })
    .await;
    let world = world.restarted().await;
    let summary = playing.await.unwrap().unwrap();
    assert!(summary.is_as_intended(), "{summary}");
    assert_eq!(sound(&world, &summary).await["cost_total"], "1.26719");
}
