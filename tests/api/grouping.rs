//! Changes of different tasks that are committed in one transaction: each is written as if it were alone.

use std::time::Duration;

use futures::future::{join, join_all};
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Client, Reply, Seed, World, eventually};

/// Tasks at work, so many that several of their changes meet.
const TASKS: usize = 24;

type Working = (String, String);

async fn at_work(world: &World, agent: &Client) -> Vec<Working> {
    join_all((0..TASKS).map(|_| world.working(agent))).await
}

/// How many transactions wrote events of several tasks.
async fn shared(world: &World) -> i64 {
    let shared = "SELECT count(*) FROM (
        SELECT FROM agent_runtime.events GROUP BY tx HAVING count(DISTINCT task_id) > 1) AS shared";
    sqlx::query_scalar(shared).fetch_one(&world.db).await.unwrap()
}

fn turn(session: &str, id: Uuid, words: &str) -> Value {
    json!({"session_id": session, "events": [{"event_id": id, "type": "turn", "payload": {"body": words}}]})
}

async fn append(agent: &Client, (task, _): &Working, body: Value) -> Reply {
    agent.on(task, "events", body).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn appends_and_reports_that_share_a_transaction_are_each_whole() {
    let world = World::new().await;
    let agent = world.agent().await;
    let tasks = at_work(&world, &agent).await;
    let rounds = 10;
    join_all(tasks.iter().map(async |(task, session)| {
        for round in 0..rounds {
            let events = json!([
                {"type": "turn", "payload": {"body": format!("{task}, {round}")}},
                {"type": "phase.changed", "payload": {"phase": format!("phase {round}")}},
            ]);
            agent.on(task, "events", json!({"session_id": session, "events": events})).await.expect(201);
            agent.spend(task, &format!("turn {round}"), 1_000, 10).await.expect(201);
        }
    }))
    .await;
    assert!(shared(&world).await > 0, "no two changes met");
    for (task, _) in &tasks {
        let log = world.sound(task).await;
        let said: Vec<_> = log.iter().filter(|event| event["type"] == "turn").collect();
        let words = |round| format!("{task}, {round}");
        assert_eq!(said.len(), rounds);
        assert!((0..rounds).all(|round| said[round]["payload"]["body"] == words(round)), "{said:?}");
        let row = world.person("ada").get(&format!("/agent-tasks/{task}")).await;
        assert_eq!(row.expect(200)["phase"], format!("phase {}", rounds - 1));
        assert_eq!(row.body["tokens_in"], 10_000);
        assert_eq!(row.body["tokens_out"], 100);
        let mut reports = log.iter().filter(|event| event["type"] == "usage.reported");
        assert_eq!(reports.next_back().unwrap()["payload"]["cost_total"], row.body["cost_total"]);
        assert_eq!(agent.all(&format!("/agent-tasks/{task}/usage")).await.len(), rounds);
    }
    assert!(world.prove().await >= TASKS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_refused_for_one_task_touches_no_other() {
    let world = World::new().await;
    let other = World::beside(&world).await;
    let (agent, elsewhere) = (world.agent().await, other.person("ada"));
    let tasks = at_work(&world, &agent).await;
    let (used, key) = (Uuid::now_v7(), "first");
    append(&agent, &tasks[1], turn(&tasks[1].1, used, "Once.")).await.expect(201);
    append(&agent, &tasks[2], turn(&tasks[2].1, used, "Twice.")).await.expect(201);
    agent.spend(&tasks[3].0, key, 1, 1).await.expect(201);
    // What this process keeps of these tasks is old now.
    elsewhere.post(&format!("/agent-tasks/{}/pause", tasks[4].0), &json!({})).await.expect(200);
    other.agent().await.finish(&tasks[5].0).await.expect(200);

    let mut met = shared(&world).await;
    for round in 0..20 {
        let mut lock = world.db.begin().await.unwrap();
        sqlx::query("SELECT FROM agent_runtime.tasks WHERE 'T-' || short_number = $1 FOR UPDATE")
            .bind(&tasks[0].0)
            .execute(&mut *lock)
            .await
            .unwrap();
        // The first has its turn and cannot use it; the others wait behind it, and in the end not for it.
        let held = append(&agent, &tasks[0], turn(&tasks[0].1, Uuid::now_v7(), "Held up."));
        let others = async {
            let (conflicting, repeated, report, moved_on, closed, rest) = tokio::join!(
                append(&agent, &tasks[1], turn(&tasks[1].1, used, "Something else.")),
                append(&agent, &tasks[2], turn(&tasks[2].1, used, "Twice.")),
                agent.spend(&tasks[3].0, key, 2, 2),
                append(&agent, &tasks[4], turn(&tasks[4].1, Uuid::now_v7(), "Paused?")),
                append(&agent, &tasks[5], turn(&tasks[5].1, Uuid::now_v7(), "Too late.")),
                join_all(
                    tasks[6..]
                        .iter()
                        .map(|working| { append(&agent, working, turn(&working.1, Uuid::now_v7(), "I go on.")) })
                ),
            );
            conflicting.refused(409, "event_id_conflict");
            assert_eq!(repeated.expect(200)["duplicates"], json!([used]));
            assert_eq!(report.expect(200)["tokens_in"], 1, "the first report is answered");
            moved_on.expect(201);
            closed.refused(409, "task_closed");
            for reply in rest {
                reply.expect(201);
            }
            lock.rollback().await.unwrap();
        };
        let (held, ()) = join(held, others).await;
        held.expect(201);
        let now = shared(&world).await;
        if round > 4 && now > met {
            break;
        }
        met = now;
        assert!(round < 19, "no changes met");
    }
    for (task, _) in &tasks {
        world.sound(task).await;
    }
    world.prove().await;
}

/// One organization is one shard's work, and none waits for another's.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn changes_of_two_organizations_share_no_transaction() {
    let world = World::new().await;
    let seed = Seed::plant(&world.db, "globex").await;
    let account = world.account(&seed.agent.client_id, &seed.agent.client_secret).await;
    let theirs = account.in_organization("globex");
    let create = json!({"agent_slug": "reviewer", "title": "Theirs", "description": ""});
    let (agent, owner) = (world.agent().await, world.person("ada").in_organization("globex"));
    let ours = at_work(&world, &agent).await;
    let mut others = Vec::new();
    for nth in 0..TASKS {
        let task = owner.post("/agent-tasks/", &create).await.expect(201)["short_id"].as_str().unwrap().to_owned();
        let session = theirs.open_session(&task, &format!("s{nth}")).await;
        others.push((task, session));
    }
    let say = async |agent: &Client, tasks: &[Working]| {
        join_all(tasks.iter().map(async |working| {
            for _ in 0..10 {
                append(agent, working, turn(&working.1, Uuid::now_v7(), "I go on.")).await.expect(201);
            }
        }))
        .await
    };
    tokio::join!(say(&agent, &ours), say(&theirs, &others));
    assert!(shared(&world).await > 0, "no two changes met");
    let mixed = "SELECT count(*) FROM (
        SELECT FROM agent_runtime.events GROUP BY tx HAVING count(DISTINCT organization_id) > 1) AS mixed";
    assert_eq!(sqlx::query_scalar::<_, i64>(mixed).fetch_one(&world.db).await.unwrap(), 0);
    world.prove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_hangs_up_takes_no_other_along() {
    let world = World::new().await;
    let agent = world.agent().await;
    let tasks = at_work(&world, &agent).await;
    for round in 0..20 {
        let (gone, kept) = tasks.split_at(TASKS / 2);
        let gone = join_all(gone.iter().enumerate().map(async |(place, (task, session))| {
            let call = agent.request(Method::POST, &format!("/agent-tasks/{task}/events"));
            let body = turn(session, Uuid::now_v7(), "Who listens?");
            // Some are gone before they are queued, some while they wait, some while they are written.
            let patience = Duration::from_micros(500 * (place as u64 + 1));
            let _ = call.json(&body).timeout(patience).send().await;
        }));
        let kept = join_all(
            kept.iter().map(|working| append(&agent, working, turn(&working.1, Uuid::now_v7(), &round.to_string()))),
        );
        for reply in join(gone, kept).await.1 {
            reply.expect(201);
        }
    }
    for (task, session) in &tasks {
        agent.say(task, session, "I go on.").await.expect(201);
        world.sound(task).await;
    }
    world.prove().await;
}

/// The process ids of the server's backends that write a group and wait for a lock.
async fn held_up(world: &World) -> Vec<i32> {
    let waiting = "SELECT pid FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%WITH ORDINALITY%'";
    sqlx::query_scalar(waiting).fetch_all(&world.db).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_locked_session_holds_up_its_own_change_only() {
    let world = World::new().await;
    let agent = world.agent().await;
    let tasks = at_work(&world, &agent).await;
    for round in 0..20 {
        let mut lock = world.db.begin().await.unwrap();
        sqlx::query("SELECT FROM agent_runtime.sessions WHERE id = ANY ($1) FOR UPDATE")
            .bind([0, 1].map(|place: usize| tasks[place].1.parse::<Uuid>().unwrap()))
            .execute(&mut *lock)
            .await
            .unwrap();
        let met = shared(&world).await;
        let say = async |working| append(&agent, working, turn(&working.1, Uuid::now_v7(), "I go on.")).await;
        let others = async {
            for reply in join_all(tasks[2..].iter().map(say)).await {
                reply.expect(201);
            }
            // Not one by one after their group had failed.
            let together = shared(&world).await > met;
            lock.rollback().await.unwrap();
            together
        };
        let (held, together) = join(join_all(tasks[..2].iter().map(say)), others).await;
        for reply in held {
            reply.expect(201);
        }
        if round > 4 && together {
            break;
        }
        assert!(round < 19, "no changes met");
    }
    for (task, _) in &tasks {
        world.sound(task).await;
    }
    world.prove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_members_of_a_group_that_the_database_cut_off_are_written_alone() {
    let world = World::new().await;
    let agent = world.agent().await;
    let tasks = at_work(&world, &agent).await;
    let mut lock = world.db.begin().await.unwrap();
    sqlx::query("LOCK TABLE agent_runtime.events IN SHARE MODE").execute(&mut *lock).await.unwrap();
    let appends = join_all(
        tasks.iter().map(async |working| append(&agent, working, turn(&working.1, Uuid::now_v7(), "Again.")).await),
    );
    let cut_off = async {
        eventually("a group waits", async || !held_up(&world).await.is_empty()).await;
        let groups = held_up(&world).await;
        for pid in &groups {
            sqlx::query("SELECT pg_cancel_backend($1)").bind(pid).execute(&world.db).await.unwrap();
        }
        eventually("it waits no more", async || !held_up(&world).await.iter().any(|pid| groups.contains(pid))).await;
        lock.rollback().await.unwrap();
    };
    for reply in join(appends, cut_off).await.0 {
        reply.expect(201);
    }
    for (task, _) in &tasks {
        assert_eq!(world.sound(task).await.iter().filter(|event| event["type"] == "turn").count(), 1);
    }
    world.prove().await;
}
