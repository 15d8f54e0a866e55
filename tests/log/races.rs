//! The archiver against everything that still moves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::combination::{Place, archived};
use crate::over_every_combination;
use crate::support::{World, eventually};

over_every_combination!(
    late_writes_are_archived_or_refused_and_never_lost,
    a_reader_that_pages_across_the_archive_misses_nothing,
    sweeps_side_by_side_take_turns,
);

async fn late_writes_are_archived_or_refused_and_never_lost(place: Place) {
    const TASKS: usize = 6;
    let world = Arc::new(place.world().await);
    let agent = world.agent().await;
    let stop = Arc::new(AtomicBool::new(false));
    let sweeper = {
        let (world, stop) = (Arc::clone(&world), Arc::clone(&stop));
        tokio::spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                world.sweep().await;
            }
        })
    };
    for n in 0..TASKS {
        let (task, session) = world.working(&agent).await;
        agent.finish(&task).await.expect(200);
        // The sweep runs all the while, so that some of these come before the archive, some after, some just then. A
        // task that moves all the time is never archived, so they pause for longer and longer.
        let (mut accepted, mut refused) = (Vec::new(), false);
        for i in 0..100 {
            tokio::time::sleep(Duration::from_millis(i * 5)).await;
            let name = format!("late-{n}-{i}");
            let (reply, kind) = if i % 2 == 0 {
                let event = json!({"type": "tool.called", "payload": {"tool": name, "mutating": true}});
                (agent.on(&task, "events", json!({"session_id": session, "events": [event]})).await, "tool")
            } else {
                (agent.spend(&task, &name, 1, 1).await, "idempotency_key")
            };
            if reply.status == 201 {
                assert!(!refused, "{name} was accepted after the archive");
                accepted.push((kind, name));
                continue;
            }
            reply.refused(409, "task_archived");
            if refused {
                break;
            }
            refused = true;
        }
        assert!(refused, "the log was not archived in time");
        let log = world.log(&task).await;
        for (kind, name) in &accepted {
            assert!(log.iter().any(|event| event["payload"][kind] == **name), "{name} was accepted and is lost");
        }
        let row = world.person("ada").get(&format!("/agent-tasks/{task}")).await.expect(200).clone();
        assert_eq!(row["last_seq"], log.len());
        assert!(!row["log_archived_at"].is_null());
    }
    stop.store(true, Ordering::SeqCst);
    sweeper.await.unwrap();
    world.prove().await;
}

async fn a_reader_that_pages_across_the_archive_misses_nothing(place: Place) {
    let world = Arc::new(place.world().await);
    let agent = world.agent().await;
    for _ in 0..4 {
        let (task, session) = world.working(&agent).await;
        let turns: Vec<_> = (0..60).map(|n| json!({"type": "turn", "payload": {"body": n.to_string()}})).collect();
        agent.on(&task, "events", json!({"session_id": session, "events": turns})).await.expect(201);
        agent.finish(&task).await.expect(200);
        let before = world.log(&task).await;
        let done = Arc::new(AtomicBool::new(false));
        let reader = {
            let (vera, done, task, before) = (world.person("vera"), Arc::clone(&done), task.clone(), before.clone());
            tokio::spawn(async move {
                let mut rounds = 0;
                loop {
                    let last = done.load(Ordering::SeqCst);
                    let forwards = vera.all(&format!("/agent-tasks/{task}/events?limit=7")).await;
                    assert_eq!(forwards, before);
                    let mut backwards =
                        vera.pages(&format!("/agent-tasks/{task}/events?before_seq=1000&limit=9")).await;
                    backwards.reverse();
                    assert_eq!(backwards.concat(), before);
                    rounds += 1;
                    if last {
                        return rounds;
                    }
                }
            })
        };
        archived(&world, &task).await;
        done.store(true, Ordering::SeqCst);
        assert!(reader.await.unwrap() >= 1);
    }
    world.prove().await;
}

async fn sweeps_side_by_side_take_turns(place: Place) {
    let world = place.world().await;
    let agent = world.agent().await;
    let beside = World::beside(&world).await;
    let mut tasks = Vec::new();
    for _ in 0..6 {
        let task = world.task().await;
        agent.on(&task, "sessions", json!({"session_key": "s1"})).await.expect(201);
        agent.finish(&task).await.expect(200);
        tasks.push(task);
    }
    eventually("everything is archived, each once", async || {
        let (one, other) = tokio::join!(world.sweep(), beside.sweep());
        assert!(!(one.elsewhere && other.elsewhere), "nobody swept");
        let archived = "SELECT count(*) FROM agent_runtime.tasks WHERE log_archived_at IS NOT NULL";
        sqlx::query_scalar::<_, i64>(archived).fetch_one(&world.db).await.unwrap() == 6
    })
    .await;
    // A lease that nobody gives back ends by itself, by the database's clock.
    let holder =
        "INSERT INTO agent_runtime.worker_leases VALUES ('sweep', gen_random_uuid(), now() + interval '1 hour')";
    sqlx::query(holder).execute(&world.db).await.unwrap();
    assert!(world.sweep().await.elsewhere);
    sqlx::query("UPDATE agent_runtime.worker_leases SET expires_at = now()").execute(&world.db).await.unwrap();
    assert!(!world.sweep().await.elsewhere);
    beside.stop().await;
    world.prove().await;
}
