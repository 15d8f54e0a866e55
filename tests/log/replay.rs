//! Recorded runs of a real agent, archived: they read as they did before, byte for byte.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use crate::combination::{Place, archived};
use crate::over_every_combination;
use crate::support::World;

#[path = "../../examples/replay/mod.rs"]
mod harness;

use harness::Options;
use harness::keys::Keys;
use harness::plan::Plan;
use harness::player;
use harness::recording::Recording;

over_every_combination!(recorded_runs_read_the_same_once_archived);

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

async fn recorded_runs_read_the_same_once_archived(place: Place) {
    let world = place.world_with(|settings| settings.archive.grace_seconds = 900).await;
    let data = std::env::var("MANDATE_TEST_DATA").expect("MANDATE_TEST_DATA is set by tests/run");
    let options = options(&world).await;
    let vera = world.person("vera");
    let mut read = Vec::new();
    for name in ["pydicom-1458.traj", "test-repo-1c2844.traj", "marshmallow-1867.traj", "ctf-crypto-katy.traj"] {
        let recording = Recording::read(&PathBuf::from(&data).join("trajectories").join(name)).unwrap();
        let plan = Plan::of(&recording, Keys::of(&recording.sha256, &options.agent, "archive"));
        let summary = player::play(&options, &plan, &mut |_| {}).await.unwrap();
        assert!(summary.is_as_intended(), "{summary}");
        let log = vera.get(&format!("/agent-tasks/{}/events?limit=1000", summary.task)).await;
        read.push((summary.task, log.text.clone()));
        assert!(log.next().is_none());
    }
    world.skew_clock(901);
    for (task, before) in read {
        archived(&world, &task).await;
        let after = vera.get(&format!("/agent-tasks/{task}/events?limit=1000")).await;
        assert_eq!(after.text, before, "{task}");
    }
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM agent_runtime.events").fetch_one(&world.db).await.unwrap();
    assert_eq!(left, 0);
    world.prove().await;
}
