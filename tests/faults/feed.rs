//! A follower of the organization's feed while servers are killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::process::Process;
use crate::support::{Client, World};
use crate::writers::{Writers, never, settled, tasks};

/// Follows, and keeps nothing but the cursor of the last event, until it has what `expected` says once that is known.
async fn follow(client: Client, expected: Arc<AtomicUsize>) -> Vec<(String, i64)> {
    let (begun, mut noted, mut path) = (Instant::now(), Vec::new(), "/agent-events?limit=50".to_owned());
    loop {
        assert!(begun.elapsed() < Duration::from_mins(2), "only {} events", noted.len());
        let page = client.get(&format!("{path}&wait=1")).await;
        let entries = page.expect(200).as_array().unwrap();
        for entry in entries {
            noted.push((entry["task"]["short_id"].as_str().unwrap().to_owned(), entry["seq"].as_i64().unwrap()));
            path = format!("/agent-events?limit=50&after={}", entry["cursor"].as_str().unwrap());
        }
        let expected = expected.load(Ordering::SeqCst);
        if expected > 0 && noted.len() >= expected && entries.is_empty() {
            return noted;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_follower_meets_every_event_once_although_the_server_that_writes_is_killed() {
    let world = World::with(|settings| settings.waiting.tick_ms = 50).await;
    let (agent, tasks) = (world.agent().await, tasks(&world, 4).await);
    let expected = Arc::new(AtomicUsize::new(0));
    let follower = tokio::spawn(follow(world.person("vera"), Arc::clone(&expected)));
    for _ in 0..3 {
        let mut server = Process::start(&world, &[]).await;
        let writers = Writers::start(16, &tasks, |_| agent.at(&server.base), never);
        writers.advance(200).await;
        server.kill();
        let written = writers.end().await;
        assert!(written.iter().any(|writer| writer.unanswered.is_some()), "nothing was in flight");
    }
    settled(&world.db).await;
    let query = "SELECT 'T-' || t.short_number, e.seq FROM agent_runtime.events e
        JOIN agent_runtime.tasks t ON t.id = e.task_id ORDER BY e.tx, e.task_id, e.seq";
    let all: Vec<(String, i64)> = sqlx::query_as(query).fetch_all(&world.db).await.unwrap();
    expected.store(all.len(), Ordering::SeqCst);
    assert!(follower.await.unwrap() == all, "the follower met other events, or in another order");
    assert_eq!(world.prove().await, all.len());
}
