//! Two servers on one database.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::process::Process;
use crate::support::World;
use crate::writers::{Writers, assert_kept, never, tasks};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_servers_write_the_same_tasks_without_a_gap_and_without_a_loss() {
    let world = World::new().await;
    let (agent, tasks) = (world.agent().await, tasks(&world, 4).await);
    let mut servers = [Process::start(&world, &[]).await, Process::start(&world, &[]).await];
    let bases: Vec<_> = servers.iter().map(|server| server.base.clone()).collect();
    // Both servers have writers on every task.
    let writers = Writers::start(16, &tasks, |nth| agent.at(&bases[nth / 4 % 2]), never);
    writers.advance(1_000).await;
    let written = writers.end().await;
    assert!(written.iter().all(|writer| writer.unanswered.is_none() && !writer.events.is_empty()));
    assert_kept(&world.db, &written).await;
    let acknowledged: usize = written.iter().map(|writer| writer.events.len() + writer.reports.len()).sum();
    // Of each task: created, opened, running.
    assert_eq!(world.prove().await, acknowledged + 3 * tasks.len());
    for server in &mut servers {
        server.signal(Signal::SIGTERM);
        assert_eq!(server.exit_code(Duration::from_secs(10)).await, Some(0), "{}", server.log());
    }
}
