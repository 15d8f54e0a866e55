//! Trees of tasks while their server is killed: what is set aside is never lost, nor given twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::join_all;
use serde_json::{Value, json};

use crate::process::Process;
use crate::support::{Client, World, eventually};
use crate::writers::settled;

/// Calls of one grower in a round: a child, what it spends, its end, and what comes after its end.
const ROUNDS: usize = 12;

/// Makes the same call until it is answered; `None` when the server went away.
async fn call(client: &Client, path: &str, body: &Value) -> Option<Value> {
    let reply = client.try_post(path, body).await?;
    assert!([200, 201].contains(&reply.status), "{path}: {reply:?}");
    Some(reply.body)
}

/// Delegates, spends, closes and reports late, each call under a key of its own, from the beginning. Repeats find what was
/// done before the last kill.
async fn grow(client: Client, root: String, grower: usize, done: Arc<AtomicUsize>) -> Option<()> {
    for round in 0..ROUNDS {
        let key = format!("g{grower}-{round}");
        let part = json!({"agent_slug": "reviewer", "title": key, "description": "", "budget": "0.5",
            "idempotency_key": key});
        let child = call(&client, &format!("/agent-tasks/{root}/children"), &part).await?;
        let child = child["short_id"].as_str().unwrap().to_owned();
        let report = |key: &str| json!({"idempotency_key": key, "model_id": "sonnet", "tokens_in": 80_000});
        call(&client, &format!("/agent-tasks/{child}/usage"), &report("own")).await?;
        call(&client, &format!("/agent-tasks/{child}/outcome"), &json!({"outcome": "done_acted"})).await?;
        call(&client, &format!("/agent-tasks/{child}/usage"), &report("late")).await?;
        done.fetch_add(1, Ordering::SeqCst);
    }
    Some(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_tree_adds_up_although_the_server_that_grows_it_is_killed() {
    let world = World::new().await;
    let agent = world.agent().await;
    let roots = [world.task_with(json!({"budget": "50"})).await, world.task_with(json!({"budget": "50"})).await];
    for kill in 1..=4 {
        let done = Arc::new(AtomicUsize::new(0));
        let mut server = Process::start(&world, &[]).await;
        let growers: Vec<_> = (0..8)
            .map(|grower| {
                let (client, root) = (agent.at(&server.base), roots[grower % 2].clone());
                tokio::spawn(grow(client, root, grower, Arc::clone(&done)))
            })
            .collect();
        if kill < 4 {
            // Beyond what earlier rounds did, and before the end.
            let goal = kill * 8 * ROUNDS / 5;
            eventually("the trees grow", || async { done.load(Ordering::SeqCst) >= goal }).await;
            server.kill();
            let ended = join_all(growers).await;
            assert!(ended.iter().any(|grower| matches!(grower, Ok(None))), "nothing was in flight");
            settled(&world.db).await;
            world.prove().await;
        } else {
            for grower in join_all(growers).await {
                assert_eq!(grower.unwrap(), Some(()));
            }
        }
    }
    for root in &roots {
        let task = world.person("ada").get(&format!("/agent-tasks/{root}")).await.expect(200).clone();
        // 4 growers, each child 0.10 before and after its close.
        assert_eq!((&task["cost_total"], &task["set_aside"]), (&json!("0"), &json!("9.6")));
        let tree = world.person("ada").all(&format!("/agent-tasks/{root}/tree?limit=20")).await;
        assert_eq!((tree.len(), &tree[0]["subtree"]["cost_total"]), (1 + 4 * ROUNDS, &json!("9.6")));
        assert_eq!(tree[0]["subtree"]["open_tasks"], 1);
    }
    world.prove().await;
}
