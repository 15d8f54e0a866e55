//! A queue that is full.

use crate::place::Place;
use crate::proof::end_and_prove;
use crate::servers::KafkaServer;
use crate::writers::{Writers, never, tasks};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_finds_no_room_is_counted_and_left_to_the_sweep() {
    let kafka = KafkaServer::start();
    let place = Place::shared().on_kafka(kafka.address());
    let world = place
        .world(|settings| {
            settings.log.queue_rows = 10;
            // Nothing is given up for its age before the end.
            settings.log.publish_timeout_seconds = 60;
        })
        .await;
    let (agent, tasks) = (world.agent().await, tasks(&world, 4).await);
    kafka.freeze();
    let log = &world.service.counters().log;
    let (published, republished) = (log.published.get(), log.republished.get());
    let writers = Writers::start(8, &tasks, |_| agent.clone(), never);
    while log.unpublished.get() < 100 {
        writers.advance(20).await;
    }
    let written = writers.end().await;
    assert!(log.published.get() <= published + 20, "a broker that hangs acknowledges nothing");
    kafka.thaw();
    end_and_prove(&world, &place, &tasks, &written).await;
    assert!(log.republished.get() >= republished + 100, "the sweep sent what had found no room");
}
