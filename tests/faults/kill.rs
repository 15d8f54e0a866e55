//! A server that is killed.

use crate::process::Process;
use crate::support::World;
use crate::writers::{Writers, assert_kept, never, settled, tasks};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_that_is_killed_under_writers_loses_nothing_that_it_acknowledged() {
    let world = World::new().await;
    let (agent, tasks) = (world.agent().await, tasks(&world, 12).await);
    let mut server = Process::start(&world, &[]).await;
    for round in 0..2 {
        let base = server.base.clone();
        let writers = Writers::start(16, &tasks, |_| agent.at(&base), never);
        // Writers of a later round repeat the calls of an earlier one first, which are answered as repeats.
        writers.advance(300 * (round + 1)).await;
        server.kill();
        let written = writers.end().await;
        assert!(written.iter().any(|writer| writer.unanswered.is_some()), "nothing was in flight");
        settled(&world.db).await;
        assert_kept(&world.db, &written).await;
        world.prove().await;

        server = Process::start(&world, &[]).await;
        let agent = agent.at(&server.base);
        for (path, body) in written.into_iter().filter_map(|writer| writer.unanswered) {
            let reply = agent.post(&path, &body).await;
            assert!([200, 201].contains(&reply.status), "a call that is repeated: {reply:?}");
        }
        world.prove().await;
    }
}
