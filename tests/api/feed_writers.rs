//! The organization's feed under writers of all kinds: every event once, none missed, each task's in order.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;

use crate::support::{Client, Seed, World, eventually};

const TASKS: usize = 50;
const WRITERS: usize = 16;
/// Calls of each writer.
const ROUNDS: usize = 30;
const PATIENCE: Duration = Duration::from_mins(2);

/// A number that looks like chance and is the same each time.
fn chance(a: usize, b: usize) -> usize {
    let mixed = (a as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (b as u64 + 7).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    usize::try_from((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33).unwrap()
}

/// One event as a follower noted it: the task and the seq.
type Noted = (String, i64);

/// Follows until it has as many events as `expected` says once that is known. It is restarted at random: then all that
/// it has is the cursor of the last event that it noted.
async fn follow(client: Client, name: usize, expected: Arc<AtomicUsize>) -> Vec<Noted> {
    let begun = Instant::now();
    let (mut noted, mut cursor): (Vec<Noted>, Option<String>) = (Vec::new(), None);
    let mut restarts = 0;
    for round in 0.. {
        assert!(begun.elapsed() < PATIENCE, "follower {name} has {} events", noted.len());
        let after = cursor.as_deref().unwrap_or_default();
        let mut path = format!("/agent-events?limit={}&after={after}", 1 + chance(name, round) % 40);
        if chance(round, name).is_multiple_of(3) {
            path.push_str("&wait=1");
        }
        let page = client.get(&path).await;
        let entries = page.expect(200).as_array().unwrap();
        let restart = chance(name + 100, round).is_multiple_of(4);
        let dealt_with = if restart { chance(round, name + 50) % (entries.len() + 1) } else { entries.len() };
        for entry in &entries[..dealt_with] {
            let task = entry["task"]["short_id"].as_str().unwrap().to_owned();
            noted.push((task, entry["seq"].as_i64().unwrap()));
            cursor = Some(entry["cursor"].as_str().unwrap().to_owned());
        }
        if restart {
            restarts += 1;
        } else {
            let next = page.next().unwrap();
            let after = next.split(['?', '&']).find_map(|part| part.strip_prefix("after=")).unwrap();
            cursor = Some(after.to_owned());
        }
        let expected = expected.load(Ordering::SeqCst);
        if expected > 0 && noted.len() >= expected && entries.is_empty() {
            break;
        }
    }
    assert!(restarts > 3);
    noted
}

/// One call that writes something, or is refused as it may be.
async fn write(client: &Client, person: &Client, tasks: &[String], writer: usize, round: usize) {
    let task = &tasks[chance(writer, round) % tasks.len()];
    let other = &tasks[chance(round, writer) % tasks.len()];
    let key = format!("w{writer}-{round}");
    let put = |method: Method, path: String| person.send(person.request(method, &path));
    let reply = match chance(writer + 31, round) % 8 {
        0 => client.on(task, "sessions", json!({"session_key": key})).await,
        1 => client.on(task, "sessions", json!({"session_key": key, "takeover": true})).await,
        2 => client.spend(task, &key, 1, 1).await,
        3 => put(Method::PUT, format!("/agent-tasks/{task}/requires/{other}")).await,
        4 => put(Method::DELETE, format!("/agent-tasks/{task}/requires/{other}")).await,
        5 => {
            person
                .post(&format!("/agent-tasks/{task}/reply"), &json!({"body": key, "hold": round.is_multiple_of(2)}))
                .await
        }
        _ => {
            let turn = |nth: usize| json!({"type": "turn", "payload": {"body": format!("{key} {nth}")}});
            client.append(task, json!([turn(0), turn(1)])).await
        }
    };
    // A task that was taken over wants a session named; a dependency on itself is none.
    let allowed = match reply.body["code"].as_str() {
        None => reply.status < 300,
        Some(code) => ["concurrency_limit", "session_required", "invalid_body"].contains(&code),
    };
    assert!(allowed, "{reply:?}");
}

async fn silence(world: &World) {
    let statement = "UPDATE agent_runtime.sessions SET heartbeat_at = now() - interval '1 hour', check_at = now()
        WHERE closed_at IS NULL AND generation % 2 = 1";
    sqlx::query(statement).execute(&world.db).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followers_that_are_restarted_at_random_meet_every_event_once_whatever_writes() {
    let world = Arc::new(World::with(|settings| settings.waiting.tick_ms = 100).await);
    let beside = Arc::new(World::beside(&world).await);
    sqlx::query("UPDATE agent_directory.agents SET max_concurrent_tasks = 15").execute(&world.db).await.unwrap();
    let agents = [world.agent().await, beside.agent().await];
    let people = [world.person("oscar"), beside.person("oscar")];
    let mut tasks = Vec::new();
    for _ in 0..TASKS {
        tasks.push(world.task().await);
    }
    let tasks = Arc::new(tasks);
    let expected = Arc::new(AtomicUsize::new(0));
    let followers = [world.person("vera"), beside.person("vera"), agents[0].clone(), agents[1].clone()];
    let followers: Vec<_> = followers
        .into_iter()
        .enumerate()
        .map(|(name, client)| tokio::spawn(follow(client, name, Arc::clone(&expected))))
        .collect();
    let (written, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (client, person) = (agents[writer % 2].clone(), people[writer % 2].clone());
            let (tasks, written) = (Arc::clone(&tasks), Arc::clone(&written));
            tokio::spawn(async move {
                for round in 0..ROUNDS {
                    write(&client, &person, &tasks, writer, round).await;
                    written.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    // Transactions that are held open on purpose, each until others have written for a while.
    let (db, at, done) = (world.db.clone(), Arc::clone(&written), Arc::clone(&over));
    let holder = tokio::spawn(async move {
        let mut held = 0;
        while !done.load(Ordering::SeqCst) {
            let mut transaction = db.begin().await.unwrap();
            sqlx::query("SELECT pg_current_xact_id()").execute(&mut *transaction).await.unwrap();
            let goal = at.load(Ordering::SeqCst) + 15;
            while at.load(Ordering::SeqCst) < goal && !done.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            transaction.rollback().await.unwrap();
            held += 1;
        }
        held
    });
    // Sessions are lost all the while, in two processes.
    let (one, two, done) = (Arc::clone(&world), Arc::clone(&beside), Arc::clone(&over));
    let losses = tokio::spawn(async move {
        let mut lost = 0;
        while !done.load(Ordering::SeqCst) {
            silence(&one).await;
            let (one, two) = tokio::join!(one.step(), two.step());
            lost += one.lost + two.lost;
        }
        lost
    });
    for writer in writers {
        writer.await.unwrap();
    }
    over.store(true, Ordering::SeqCst);
    let (held, lost) = (holder.await.unwrap(), losses.await.unwrap());
    assert!(held > 5 && lost > 5, "{held} transactions were held open, {lost} sessions lost");
    let query = "SELECT 'T-' || t.short_number, e.seq FROM agent_runtime.events e
        JOIN agent_runtime.tasks t ON t.id = e.task_id ORDER BY e.tx, e.task_id, e.seq";
    let all: Vec<Noted> = sqlx::query_as(query).fetch_all(&world.db).await.unwrap();
    expected.store(all.len(), Ordering::SeqCst);
    assert!(all.len() > TASKS + WRITERS * ROUNDS / 2, "{} events", all.len());
    for (name, follower) in followers.into_iter().enumerate() {
        let noted = follower.await.unwrap();
        assert_eq!(noted.iter().collect::<HashSet<_>>().len(), noted.len(), "follower {name} met an event twice");
        assert!(noted == all, "follower {name} met other events, or in another order");
        for task in tasks.iter() {
            let own: Vec<i64> = noted.iter().filter(|(of, _)| of == task).map(|(_, seq)| *seq).collect();
            assert_eq!(own, (1..=i64::try_from(own.len()).unwrap()).collect::<Vec<_>>(), "{task}");
        }
    }
    // The audit looks at the order too.
    assert_eq!(world.prove().await, all.len());
}

#[tokio::test]
async fn the_audit_finds_a_log_that_the_feed_shows_in_another_order() {
    let world = World::new().await;
    world.spoil().await;
    world.working(&world.agent().await).await;
    assert_eq!(world.audit().await, Vec::<String>::new());
    let mut db = world.db.acquire().await.unwrap();
    sqlx::raw_sql("SET session_replication_role = replica").execute(&mut *db).await.unwrap();
    sqlx::query("UPDATE agent_runtime.events SET tx = '3' WHERE seq = 2").execute(&mut *db).await.unwrap();
    drop(db.detach());
    let findings = world.audit().await;
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].ends_with("the feed shows seq 2 before the one before it"), "{findings:?}");
}

/// Blocks that were touched of the tables that a page reads and their indexes, and sequential scans of them.
async fn work(world: &World) -> (i64, i64) {
    let busy = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'mandate'";
    // A backend hands in its counts when it ends at the latest.
    eventually("the service's backends end", async || {
        sqlx::query_scalar::<_, i64>(busy).fetch_one(&world.db).await.unwrap() == 0
    })
    .await;
    let query = "SELECT sum(i.heap_blks_read + i.heap_blks_hit + i.idx_blks_read + i.idx_blks_hit)::bigint,
            sum(t.seq_scan)::bigint
        FROM pg_statio_user_tables i JOIN pg_stat_user_tables t USING (relid)
        WHERE t.schemaname = 'agent_runtime' AND t.relname IN ('events', 'tasks', 'feed_archives')";
    sqlx::query_as(query).fetch_one(&world.db).await.unwrap()
}

/// Pages that each reader reads: the plan of a statement that is used often is made anew.
const PAGES: i64 = 20;

#[tokio::test]
async fn a_page_of_a_long_feed_reads_little_of_it() {
    let mut world = World::new().await;
    world.spoil().await;
    let packer = Seed::agent(&world.db, world.seed.organization_id, "packer").await;
    // One task of a hundred is the reviewer's.
    for nth in 0..200 {
        let agent = if nth % 100 == 0 { "reviewer" } else { "packer" };
        world.task_with(json!({"agent_slug": agent})).await;
    }
    let plant = "INSERT INTO agent_runtime.events (organization_id, task_id, seq, event_id, type, schema_version,
            actor_kind, actor_id, at, recorded_at, payload, redacted, digest, tx)
        SELECT t.organization_id, t.id, 2 + n / 200, gen_random_uuid(), 'turn', 1, 'agent', 'a', now(), now(),
            json_build_object('body', repeat('x', 200)), '{}', t.log_digest,
            (3 + n * (pg_current_xact_id()::text::bigint - 4) / 100000)::text::xid8
        FROM generate_series(0, 99999) n JOIN agent_runtime.tasks t ON t.short_number = n % 200 + 1";
    let archives = "INSERT INTO agent_runtime.feed_archives
        SELECT $1, n, '3', gen_random_uuid(), 1 FROM generate_series(1, 100000) n";
    let number = "INSERT INTO agent_runtime.feed_archive_numbers VALUES ($1, 100000)";
    let mut db = world.db.acquire().await.unwrap();
    sqlx::raw_sql("SET session_replication_role = replica").execute(&mut *db).await.unwrap();
    sqlx::query(plant).execute(&mut *db).await.unwrap();
    sqlx::query(archives).bind(world.seed.organization_id).execute(&mut *db).await.unwrap();
    sqlx::query(number).bind(world.seed.organization_id).execute(&mut *db).await.unwrap();
    for table in ["events", "tasks", "feed_archives"] {
        let vacuum = format!("VACUUM ANALYZE agent_runtime.{table}");
        sqlx::query(sqlx::AssertSqlSafe(vacuum)).execute(&mut *db).await.unwrap();
    }
    drop(db.detach());
    // The rows of a hundred entries and of their tasks, each by way of an index; who reads a part of the organization
    // pays for the tasks of the events that are passed over too.
    for (reader, blocks_max) in [("vera", 1_500), ("packer", 6_000), ("reviewer", 6_000)] {
        world.stop().await;
        let before = work(&world).await;
        world = world.restarted().await;
        let client = match reader {
            "vera" => world.person("vera"),
            "packer" => world.account(&packer.client_id, &packer.client_secret).await,
            _ => world.agent().await,
        };
        let mut path = "/agent-events".to_owned();
        for _ in 0..PAGES {
            let page = client.get(&path).await;
            assert!(!page.expect(200).as_array().unwrap().is_empty());
            path = format!("/{}", page.next().unwrap().split_once("/acme/").unwrap().1);
        }
        world.stop().await;
        let after = work(&world).await;
        let (blocks, scans) = ((after.0 - before.0) / PAGES, after.1 - before.1);
        assert_eq!(scans, 0, "{reader}: a page scans a table");
        assert!(blocks < blocks_max, "{reader}: {blocks} blocks a page");
    }
}
