//! Clients that hang up before they are answered (case 7).

use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::World;
use crate::wire;
use crate::writers::settled;

fn batch(nth: u128) -> (Vec<Uuid>, Value) {
    let ids: Vec<_> = (0..3).map(|part| Uuid::from_u128(nth << 8 | part)).collect();
    let event = |id: &Uuid| json!({"event_id": id, "type": "turn", "payload": {"body": "x"}});
    let body = json!({"events": ids.iter().map(event).collect::<Vec<_>>()});
    (ids, body)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn five_hundred_clients_that_hang_up_leave_no_connection_and_no_call_half_done() {
    let world = World::with(|settings| {
        settings.database.max_connections = 2;
        settings.database.acquire_timeout_seconds = 30;
    })
    .await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let mut tasks = Vec::new();
    for _ in 0..4 {
        tasks.push(world.working(&agent).await.0);
    }
    let mut calls = tokio::task::JoinSet::new();
    for nth in 0..500_u64 {
        let task = &tasks[usize::try_from(nth).unwrap() % tasks.len()];
        let key = format!("k{nth}");
        let bytes = match nth % 5 {
            0 | 1 => wire::post(&agent, &format!("/agent-tasks/{task}/events"), &batch(u128::from(nth)).1),
            2 => {
                let body = json!({"idempotency_key": key, "model_id": "sonnet", "tokens_in": 1});
                wire::post(&agent, &format!("/agent-tasks/{task}/usage"), &body)
            }
            3 => wire::post(&agent, &format!("/agent-tasks/{task}/sessions"), &json!({"session_key": key})),
            _ => {
                let body = json!({"agent_slug": "reviewer", "title": key, "description": "", "idempotency_key": key});
                wire::post(&ada, "/agent-tasks/", &body)
            }
        };
        while calls.len() >= 16 {
            calls.join_next().await.unwrap().unwrap();
        }
        let base = world.base.clone();
        calls.spawn(async move {
            let mut stream = tokio::net::TcpStream::connect(base.strip_prefix("http://").unwrap()).await.unwrap();
            tokio::io::AsyncWriteExt::write_all(&mut stream, &bytes).await.unwrap();
            // The case itself: the client goes away 0 to 20 ms after it sent its call.
            tokio::time::sleep(Duration::from_millis(nth * 7 % 21)).await;
            drop(stream);
        });
    }
    while let Some(call) = calls.join_next().await {
        call.unwrap();
    }
    for nth in 0..40 {
        let task = &tasks[nth % tasks.len()];
        agent.post(&format!("/agent-tasks/{task}/events"), &batch(10_000 + nth as u128).1).await.expect(201);
        ada.post(&format!("/agent-tasks/{task}/reply"), &json!({"body": "Go on."})).await.expect(200);
    }
    settled(&world.db).await;
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'";
    assert_eq!(sqlx::query_scalar::<_, i64>(open).fetch_one(&world.db).await.unwrap(), 0);

    world.prove().await;
    let mut done = 0;
    for nth in (0..500).filter(|nth| nth % 5 < 2) {
        let query = "SELECT count(*) FROM agent_runtime.events WHERE event_id = ANY ($1)";
        let there: i64 = sqlx::query_scalar(query).bind(batch(nth).0).fetch_one(&world.db).await.unwrap();
        assert!(there == 0 || there == 3, "half a batch");
        done += there / 3;
    }
    assert!(done > 100, "a call that arrived goes on without its client: {done} of 200");
    let without_log = "SELECT count(*) FROM agent_runtime.tasks t
        WHERE NOT EXISTS (SELECT FROM agent_runtime.events e WHERE e.task_id = t.id AND e.type = 'task.created')";
    assert_eq!(sqlx::query_scalar::<_, i64>(without_log).fetch_one(&world.db).await.unwrap(), 0);
    let numbers = "SELECT array_agg(short_number ORDER BY short_number) FROM agent_runtime.tasks";
    let numbers: Vec<i64> = sqlx::query_scalar(numbers).fetch_one(&world.db).await.unwrap();
    assert_eq!(numbers, (1..=i64::try_from(numbers.len()).unwrap()).collect::<Vec<_>>());
}

/// A search holds a transaction. One whose beginning is dropped must not go back to the pool with it: what others write
/// on that connection would be answered and never be committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn searches_whose_clients_hang_up_leave_no_transaction_in_which_others_write() {
    let world = World::with(|settings| {
        settings.database.max_connections = 2;
        settings.database.acquire_timeout_seconds = 30;
    })
    .await;
    let agent = world.agent().await;
    let (task, session) = world.working(&agent).await;
    let search = wire::get(&world.person("ada"), "/agent-tasks/?q=abc");
    let mut said = 0;
    for round in 0..50_u64 {
        let gone = (0..10_u64).map(async |nth| {
            let stream = wire::send(&world, &search).await;
            // From before the transaction begins to after its end.
            tokio::time::sleep(Duration::from_micros((round * 10 + nth) * 37 % 4_000)).await;
            drop(stream);
        });
        let written = async {
            for _ in 0..4 {
                agent.say(&task, &session, "x").await.expect(201);
                agent.on(&task, &format!("sessions/{session}/heartbeat"), json!({})).await.expect(200);
            }
        };
        tokio::join!(futures::future::join_all(gone), written);
        said += 4;
        // Seen from another connection: it is committed when it is answered.
        let there = "SELECT count(*) FROM agent_runtime.events WHERE type = 'turn'";
        assert_eq!(sqlx::query_scalar::<_, i64>(there).fetch_one(&world.db).await.unwrap(), said, "round {round}");
    }
    settled(&world.db).await;
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'";
    assert_eq!(sqlx::query_scalar::<_, i64>(open).fetch_one(&world.db).await.unwrap(), 0);
    world.prove().await;
}

#[tokio::test]
async fn half_a_body_leaves_nothing() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, _) = world.working(&agent).await;
    let before = world.person("ada").get(&format!("/agent-tasks/{task}")).await;
    for _ in 0..20 {
        let bytes = wire::post(&agent, &format!("/agent-tasks/{task}/events"), &batch(1).1);
        drop(wire::send(&world, &bytes[..bytes.len() - 20]).await);
        let body = json!({"agent_slug": "reviewer", "title": "half", "description": ""});
        let bytes = wire::post(&world.person("ada"), "/agent-tasks/", &body);
        drop(wire::send(&world, &bytes[..bytes.len() - 1]).await);
    }
    agent.say(&task, "", "x").await.refused(422, "invalid_body");
    settled(&world.db).await;
    let after = world.person("ada").get(&format!("/agent-tasks/{task}")).await;
    assert_eq!(after.body, before.body);
    let tasks: i64 = sqlx::query_scalar("SELECT count(*) FROM agent_runtime.tasks").fetch_one(&world.db).await.unwrap();
    assert_eq!(tasks, 1);
}
