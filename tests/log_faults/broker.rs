//! A broker that is away.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use crate::place::{Place, at_length, outage};
use crate::proof::end_and_prove;
use crate::servers::KafkaServer;
use crate::support::World;
use crate::writers::{Writers, never, tasks};

/// Between two calls of a writer.
const PAUSE: Duration = Duration::from_millis(20);

/// Waits until what is written reaches the log store.
async fn flows(world: &World, writers: &Writers) {
    let stored = || world.service.counters().log.stored.get();
    let before = stored();
    at_length("rows reach the log store", async || {
        writers.advance(5).await;
        stored() > before + 20
    })
    .await;
}

/// Writers that go on while the broker is away: until rows were given up, and the outage is long enough.
async fn goes_on_without(world: &World, writers: &Writers) {
    let begun = Instant::now();
    let given_up = || world.service.counters().log.unpublished.get();
    let before = given_up();
    while given_up() == before || begun.elapsed() < outage() {
        // Each advance is bounded in time, and fails when a writer met anything but success.
        writers.advance(20).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn while_the_broker_is_away_writes_are_answered_as_usual_and_all_of_it_lands_later() {
    let mut kafka = KafkaServer::start();
    let place = Place::shared().on_kafka(kafka.address());
    let world = place.world(|_| {}).await;
    let (agent, tasks) = (world.agent().await, tasks(&world, 8).await);
    let writers = Writers::paced(PAUSE, 8, &tasks, |_| agent.clone(), never);
    flows(&world, &writers).await;
    kafka.stop();
    goes_on_without(&world, &writers).await;
    kafka.start_again();
    flows(&world, &writers).await;
    let written = writers.end().await;
    end_and_prove(&world, &place, &tasks, &written).await;
}

/// The cluster was lost for good and set up anew: no topics, no offsets, and ids of producers from the beginning.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_broker_that_comes_back_empty_gets_its_topics_again_and_all_of_it_lands() {
    let mut kafka = KafkaServer::start();
    let place = Place::shared().on_kafka(kafka.address());
    let world = place.world(|settings| settings.database.migrate_at_start = true).await;
    let (agent, tasks) = (world.agent().await, tasks(&world, 8).await);
    let writers = Writers::paced(PAUSE, 8, &tasks, |_| agent.clone(), never);
    flows(&world, &writers).await;
    kafka.kill();
    goes_on_without(&world, &writers).await;
    kafka.start_empty();
    flows(&world, &writers).await;
    let written = writers.end().await;
    end_and_prove(&world, &place, &tasks, &written).await;
}

/// Topics are an operator's where the settings say so.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn where_serve_migrates_nothing_it_makes_no_topics() {
    let mut kafka = KafkaServer::start();
    let place = Place::shared().on_kafka(kafka.address());
    let world = place.world(|_| {}).await;
    let (agent, tasks) = (world.agent().await, tasks(&world, 2).await);
    let log = &world.service.counters().log;
    kafka.kill();
    kafka.start_empty();
    let (published, given_up) = (log.published.get(), log.unpublished.get());
    at_length("rows are given up", async || {
        agent.append(&tasks[0], json!([{"type": "turn", "payload": {"body": "?"}}])).await.expect(201);
        log.unpublished.get() > given_up + 20
    })
    .await;
    assert_eq!(log.published.get(), published, "nobody made the topics");
    world.log.migrate().await.unwrap();
    end_and_prove(&world, &place, &tasks, &[]).await;
}
