//! Several processes on one database and one cluster.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::place::{Place, at_length, metric, process};
use crate::proof::end_and_prove;
use crate::support::World;
use crate::writers::{Writers, never, tasks};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_of_everything_and_a_sink_that_comes_and_goes_archive_each_log_once_and_lose_nothing() {
    let place = Place::shared();
    let one = place.world(|_| {}).await;
    let other = World::beside(&one).await;
    let (agent, tasks) = (one.agent().await, tasks(&one, 16).await);
    let bases = [one.base.clone(), other.base.clone()];
    let writers = Writers::start(8, &tasks, |nth| agent.at(&bases[nth % 2]), never);
    writers.advance(100).await;
    let stored = |world: &World| world.service.counters().log.stored.get();
    for _ in 0..2 {
        let mut third = process(&one, "sink", &[]).await;
        at_length("the third sink has a share", async || {
            writers.advance(5).await;
            metric(&third.base, "mandate_log_stored_rows_total").await > 0
        })
        .await;
        third.signal(Signal::SIGTERM);
        assert_eq!(third.exit_code(Duration::from_secs(20)).await, Some(0), "{}", third.log());
        let before = (stored(&one), stored(&other));
        at_length("both others go on", async || {
            writers.advance(5).await;
            stored(&one) > before.0 && stored(&other) > before.1
        })
        .await;
    }
    let written = writers.end().await;
    end_and_prove(&one, &place, &tasks, &written).await;
    let archived = |world: &World| world.service.counters().log.archived.get();
    assert_eq!(archived(&one) + archived(&other), tasks.len() as u64, "each log is archived once");
    let contradicted = |world: &World| world.service.counters().log.mismatched.get();
    assert_eq!((contradicted(&one), contradicted(&other)), (0, 0));
}
