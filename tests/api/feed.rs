//! The organization's feed (contract, section 10): order, scopes, cursors, archived logs, waiting.

use std::time::{Duration, Instant};

use mandate::service::waiting::WaitingCounts;
use mandate::store::Store;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::{Client, Reply, Seed, World, eventually};

/// Transactions of other databases of the server hold the feed up too; that is never for long.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// Reads on from `path` until there are `count` entries.
pub async fn read(client: &Client, path: &str, count: usize) -> Vec<Value> {
    let begun = Instant::now();
    let (mut path, mut entries) = (path.to_owned(), Vec::new());
    while entries.len() < count {
        assert!(begun.elapsed() < PATIENCE, "in vain: {} of {count} entries", entries.len());
        let reply = client.get(&path).await;
        entries.extend(reply.expect(200).as_array().unwrap().iter().cloned());
        path = format!("/{}", reply.next().unwrap().split_once("/acme/").unwrap().1);
    }
    assert_eq!(entries.len(), count, "{entries:?}");
    entries
}

/// The path behind an entry.
fn after(entry: &Value) -> String {
    format!("/agent-events?after={}", entry["cursor"].as_str().unwrap())
}

/// The path that a page leads on to.
fn next(reply: &Reply) -> String {
    format!("/{}", reply.next().unwrap().split_once("/acme/").unwrap().1)
}

pub fn names(entries: &[Value]) -> Vec<(String, i64)> {
    let name = |entry: &Value| (entry["task"]["short_id"].as_str().unwrap().to_owned(), entry["seq"].as_i64().unwrap());
    entries.iter().map(name).collect()
}

pub async fn archive(world: &World, task: &str) {
    let ada = world.person("ada");
    eventually("the log is archived", async || {
        world.sweep().await;
        !ada.get(&format!("/agent-tasks/{task}")).await.expect(200)["log_archived_at"].is_null()
    })
    .await;
}

/// A read in the background.
fn waiting(client: &Client, path: &str) -> JoinHandle<Reply> {
    let (client, path) = (client.clone(), path.to_owned());
    tokio::spawn(async move { client.get(&path).await })
}

async fn waits(world: &World, count: usize) {
    eventually("so many reads wait", async || world.service.waiting_reads().counts().reads == count).await;
}

/// The place behind all that there is.
async fn end(client: &Client) -> String {
    next(&client.get("/agent-events?after=now").await)
}

#[tokio::test]
async fn the_feed_is_the_logs_one_after_the_other_each_with_its_task_and_a_cursor() {
    let world = World::new().await;
    let (vera, agent) = (world.person("vera"), world.agent().await);
    assert_eq!(vera.get("/agent-events").await.expect(200), &json!([]));
    let more = json!({"subject": "s#1", "project_id": world.seed.project_id});
    let first = world.task_with(more).await;
    let session = agent.open_session(&first, "s1").await;
    let second = world.task().await;
    agent.say(&first, &session, "Hello.").await.expect(201);
    let entries = read(&vera, "/agent-events?limit=2", 5).await;
    let expected = [("T-1", 1), ("T-1", 2), ("T-1", 3), ("T-2", 1), ("T-1", 4)];
    assert_eq!(names(&entries), expected.map(|(task, seq)| (task.to_owned(), seq)));
    // Each is the entry of the log, and more.
    for task in [&first, &second] {
        let own = entries.iter().filter(|entry| entry["task"]["short_id"] == **task).cloned().map(|mut entry| {
            entry.as_object_mut().unwrap().retain(|name, _| name != "task" && name != "cursor");
            entry
        });
        assert_eq!(own.collect::<Vec<_>>(), world.log(task).await);
    }
    let row = vera.get(&format!("/agent-tasks/{first}")).await.body;
    let mut task = entries[4]["task"].clone();
    assert_eq!(task["parent_task_id"].take(), Value::Null);
    for (name, value) in task.as_object().unwrap().iter().filter(|(name, _)| *name != "parent_task_id") {
        assert_eq!(*value, row[name], "{name}");
    }
    assert_eq!(task.as_object().unwrap().len(), 10);
    // Behind each one come the others.
    for (nth, entry) in entries.iter().enumerate() {
        assert_eq!(names(&read(&vera, &after(entry), 4 - nth).await), names(&entries[nth + 1..]));
    }
}

#[tokio::test]
async fn the_link_always_leads_on_and_now_is_the_end() {
    let world = World::new().await;
    let vera = world.person("vera");
    world.task().await;
    let page = vera.get("/agent-events?after=now&limit=7").await;
    assert_eq!(page.expect(200), &json!([]));
    let at = next(&page);
    assert!(at.contains("limit=7"), "{at}");
    let here = vera.get(&at).await;
    assert!(here.expect(200).as_array().unwrap().len() <= 1);
    let next_task = world.task().await;
    // What was committed just before may not have shown yet at that time.
    let begun = Instant::now();
    let mut path = at;
    loop {
        let page = vera.get(&path).await;
        let seen = names(page.expect(200).as_array().unwrap());
        if seen.contains(&(next_task.clone(), 1)) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE);
        path = next(&page);
    }
}

#[tokio::test]
async fn everybody_sees_the_tasks_that_they_may_read() {
    let world = World::new().await;
    world.spoil().await;
    let other = Seed::agent(&world.db, world.seed.organization_id, "packer").await;
    let (agent, packer) = (world.agent().await, world.account(&other.client_id, &other.client_secret).await);
    let trigger = world.trigger().await;
    world.task().await;
    world.task_with(json!({"agent_slug": "packer"})).await;
    let new = json!({"agent_slug": "packer", "title": "Nightly", "description": ""});
    let request = trigger.request(Method::POST, "/agent-tasks/").json(&new);
    let request = request.header("x-mandate-scheduled-task", "nightly").header("x-mandate-accountable", "ada");
    trigger.send(request).await.expect(201);
    // What a task of the reviewer delegated to the packer. Its row is planted.
    world.task_with(json!({"agent_slug": "packer"})).await;
    let mut db = world.db.acquire().await.unwrap();
    sqlx::raw_sql("SET session_replication_role = replica").execute(&mut *db).await.unwrap();
    sqlx::query(
        "UPDATE agent_runtime.tasks t SET origin_kind = 'task', origin_principal = p.id::text, parent_task_id = p.id,
            parent_short_number = 1, origin_agent_id = p.agent_id
         FROM agent_runtime.tasks p WHERE p.short_number = 1 AND t.short_number = 4",
    )
    .execute(&mut *db)
    .await
    .unwrap();
    drop(db.detach());
    for (client, tasks) in [
        (world.person("vera"), &["T-1", "T-2", "T-3", "T-4"][..]),
        (agent, &["T-1", "T-4"]),
        (packer, &["T-2", "T-3", "T-4"]),
        (trigger, &["T-3"]),
    ] {
        let entries = read(&client, "/agent-events", tasks.len()).await;
        let seen: Vec<_> = entries.iter().map(|entry| entry["task"]["short_id"].as_str().unwrap()).collect();
        assert_eq!(seen, tasks);
        for task in &seen {
            client.get(&format!("/agent-tasks/{task}")).await.expect(200);
        }
        // A page of one passes over what others have.
        assert_eq!(names(&read(&client, "/agent-events?limit=1", tasks.len()).await), names(&entries));
    }
    // Another organization has a feed of its own.
    let their = Seed::plant(&world.db, "umbrella").await;
    assert_ne!(their.organization_id, world.seed.organization_id);
    let reply = world.person("vera").in_organization("umbrella").get("/agent-events").await;
    assert_eq!(reply.expect(200), &json!([]));
}

#[tokio::test]
async fn a_cursor_is_of_one_organization_and_one_scope_and_whole() {
    let world = World::new().await;
    Seed::plant(&world.db, "umbrella").await;
    let (vera, agent, trigger) = (world.person("vera"), world.agent().await, world.trigger().await);
    world.task().await;
    let entry = &read(&vera, "/agent-events", 1).await[0];
    let cursor = entry["cursor"].as_str().unwrap();
    let path = after(entry);
    // All people of the organization share a feed.
    world.person("ada").get(&path).await.expect(200);
    for client in [&agent, &trigger, &vera.in_organization("umbrella")] {
        client.get(&path).await.refused(400, "invalid_cursor");
    }
    let own = next(&agent.get("/agent-events").await);
    vera.get(&own).await.refused(400, "invalid_cursor");
    let tasks = vera.get("/agent-tasks/?limit=1").await;
    assert_eq!(tasks.next(), None);
    for bad in ["x", "NOW", "0", &cursor[1..], &cursor[..cursor.len() - 2], &format!("{cursor}AAAA"), "%00"] {
        vera.get(&format!("/agent-events?after={bad}")).await.refused(400, "invalid_cursor");
        vera.get(&format!("/agent-events?after={bad}&wait=5")).await.refused(400, "invalid_cursor");
    }
    let first = if cursor.starts_with('A') { "B" } else { "A" };
    let flipped = format!("{first}{}", &cursor[1..]);
    vera.get(&format!("/agent-events?after={flipped}")).await.refused(400, "invalid_cursor");
    for (query, place) in [("limit=0", "limit"), ("limit=1001", "limit"), ("wait=56", "wait")] {
        let refused = vera.get(&format!("/agent-events?{query}")).await;
        assert_eq!(refused.refused(422, "invalid_body")["errors"][0]["parameter"], place, "{query}");
    }
}

#[tokio::test]
async fn who_had_read_an_archived_log_goes_on_and_who_had_not_is_told() {
    let world = World::new().await;
    let (vera, agent) = (world.person("vera"), world.agent().await);
    let old = world.task().await;
    let done = world.task().await;
    agent.finish(&done).await.expect(200);
    let last = world.task().await;
    let entries = read(&vera, "/agent-events", 5).await;
    assert_eq!(names(&entries)[4], (last.clone(), 1));
    archive(&world, &done).await;
    // Behind its last event nothing was missed, before it something.
    for (nth, entry) in entries.iter().enumerate() {
        let reply = vera.get(&after(entry)).await;
        if names(&entries[nth + 1..]).iter().any(|(task, _)| *task == done) {
            reply.refused(410, "cursor_expired");
        } else {
            assert_eq!(names(reply.expect(200).as_array().unwrap()), names(&entries[nth + 1..]));
        }
    }
    vera.get(&format!("{}&wait=5", after(&entries[0]))).await.refused(410, "cursor_expired");
    // Without a cursor a follower begins at what there is, and goes on however much was archived before.
    let retained = read(&vera, "/agent-events?limit=1", 2).await;
    assert_eq!(names(&retained), [(old.clone(), 1), (last, 1)]);
    assert_eq!(names(&read(&vera, &after(&retained[0]), 1).await), names(&retained[1..]));
    // What is archived from then on is missed.
    let closing = world.task().await;
    agent.finish(&closing).await.expect(200);
    archive(&world, &closing).await;
    vera.get(&after(&retained[0])).await.refused(410, "cursor_expired");
    vera.get(&after(&retained[1])).await.refused(410, "cursor_expired");
}

#[tokio::test]
async fn what_others_had_archived_expires_no_cursor() {
    let world = World::new().await;
    let other = Seed::agent(&world.db, world.seed.organization_id, "packer").await;
    let (vera, agent) = (world.person("vera"), world.agent().await);
    let packer = world.account(&other.client_id, &other.client_secret).await;
    let task = world.task().await;
    read(&vera, "/agent-events", 1).await;
    let (own, all) = (end(&agent).await, end(&vera).await);
    let theirs = world.task_with(json!({"agent_slug": "packer"})).await;
    packer.finish(&theirs).await.expect(200);
    archive(&world, &theirs).await;
    vera.get(&all).await.refused(410, "cursor_expired");
    agent.get(&own).await.expect(200);
    let session = agent.open_session(&task, "s1").await;
    agent.say(&task, &session, "Still here.").await.expect(201);
    assert_eq!(names(&read(&agent, &own, 3).await), [2, 3, 4].map(|seq| (task.clone(), seq)));
    agent.finish(&task).await.expect(200);
    archive(&world, &task).await;
    agent.get(&own).await.refused(410, "cursor_expired");
}

#[tokio::test]
async fn a_database_that_was_set_back_expires_its_cursors() {
    let world = World::new().await;
    let (vera, agent) = (world.person("vera"), world.agent().await);
    let done = world.task().await;
    agent.finish(&done).await.expect(200);
    archive(&world, &done).await;
    let at = end(&vera).await;
    vera.get(&at).await.expect(200);
    for table in ["feed_archive_numbers", "feed_archives"] {
        let delete = format!("DELETE FROM agent_runtime.{table}");
        sqlx::query(sqlx::AssertSqlSafe(delete)).execute(&world.db).await.unwrap();
    }
    vera.get(&at).await.refused(410, "cursor_expired");
    let at = end(&vera).await;
    vera.get(&at).await.expect(200);
}

#[tokio::test]
async fn a_dump_that_another_cluster_restored_is_settled_by_the_migration() {
    let world = World::new().await;
    let (vera, agent) = (world.person("vera"), world.agent().await);
    let (first, session) = world.working(&agent).await;
    let second = world.task().await;
    agent.say(&first, &session, "Hello.").await.expect(201);
    let before = read(&vera, "/agent-events", 5).await;
    // As if the transactions had been counted elsewhere.
    sqlx::query("UPDATE agent_runtime.feed_home SET system_identifier = 1").execute(&world.db).await.unwrap();
    let refused = vera.get("/agent-events").await;
    refused.refused(503, "unavailable");
    agent.say(&first, &session, "Written before it was noticed.").await.expect(201);
    Store::migrate_url(&world.database_url).await.unwrap();
    let entries = read(&vera, "/agent-events", 6).await;
    let of = |entries: &[Value], task: &str| names(entries).into_iter().filter(|(name, _)| name == task).count();
    assert_eq!((of(&entries, &first), of(&entries, &second)), (5, 1));
    let own: Vec<_> = names(&entries).into_iter().filter(|(name, _)| *name == first).map(|(_, seq)| seq).collect();
    assert_eq!(own, [1, 2, 3, 4, 5]);
    assert_ne!(names(&entries), names(&before));
    agent.say(&first, &session, "And after.").await.expect(201);
    assert_eq!(names(&read(&vera, &after(&entries[5]), 1).await), [(first, 6)]);
    assert!(world.prove().await > 6);
    // Nothing moves a second time, and events stay as they are.
    let footprint = world.footprint().await;
    Store::migrate_url(&world.database_url).await.unwrap();
    assert_eq!(world.footprint().await, footprint);
    let refused = sqlx::query("UPDATE agent_runtime.events SET seq = seq").execute(&world.db).await;
    assert!(refused.unwrap_err().to_string().contains("events never change"));
}

#[tokio::test]
async fn a_transaction_that_is_held_open_holds_the_feed_up_and_nothing_is_lost() {
    let world = World::with(|settings| settings.waiting.tick_ms = 50).await;
    let (vera, agent) = (world.person("vera"), world.agent().await);
    let (task, session) = world.working(&agent).await;
    let at = after(read(&vera, "/agent-events", 3).await.last().unwrap());
    let mut held = world.db.begin().await.unwrap();
    sqlx::query("SELECT pg_current_xact_id()").execute(&mut *held).await.unwrap();
    agent.say(&task, &session, "Behind it.").await.expect(201);
    assert_eq!(world.log(&task).await.len(), 4, "the log shows it at once");
    let empty = vera.get(&at).await;
    assert_eq!(empty.expect(200), &json!([]));
    let short = vera.get(&format!("{at}&wait=1")).await;
    assert_eq!(short.expect(200), &json!([]));
    let wait = waiting(&vera, &format!("{}&wait=50", next(&empty)));
    waits(&world, 1).await;
    assert!(!wait.is_finished());
    held.rollback().await.unwrap();
    let found = wait.await.unwrap();
    assert_eq!(names(found.expect(200).as_array().unwrap()), [(task, 4)]);
}

#[tokio::test]
async fn an_older_transaction_that_commits_late_is_not_passed_over() {
    let world = World::new().await;
    let (vera, oscar, agent) = (world.person("vera"), world.person("oscar"), world.agent().await);
    let (first, second) = (world.task().await, world.task().await);
    let third = world.task().await;
    let mut at = after(read(&vera, "/agent-events", 3).await.last().unwrap());
    // The dependency's transaction locks the first task and waits for the second.
    let mut held = world.db.begin().await.unwrap();
    sqlx::query("SELECT FROM agent_runtime.tasks WHERE short_number = 2 FOR NO KEY UPDATE")
        .execute(&mut *held)
        .await
        .unwrap();
    let path = format!("/agent-tasks/{first}/requires/{second}");
    let pair = tokio::spawn(async move { oscar.send(oscar.request(Method::PUT, &path)).await });
    let blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'
        AND transactionid IN (SELECT transactionid FROM pg_locks WHERE granted AND pid = pg_backend_pid())";
    eventually("the transaction waits", async || {
        let all = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
            AND wait_event_type = 'Lock'";
        sqlx::query_scalar::<_, i64>(all).fetch_one(&world.db).await.unwrap() == 1
    })
    .await;
    let waiters: i64 = sqlx::query_scalar(blocked).fetch_one(&mut *held).await.unwrap();
    assert_eq!(waiters, 1);
    agent.open_session(&third, "s1").await;
    let page = vera.get(&at).await;
    assert_eq!(page.expect(200), &json!([]));
    at = next(&page);
    held.rollback().await.unwrap();
    pair.await.unwrap().expect(204);
    let entries = read(&vera, &at, 4).await;
    let tasks: Vec<_> = names(&entries).into_iter().map(|(task, _)| task).collect();
    assert_eq!(tasks, [first, second, third.clone(), third], "the older transaction comes first");
}

#[tokio::test]
async fn a_commit_of_the_same_process_wakes_at_once_and_only_whose_feed_it_is() {
    let world = World::with(|settings| settings.waiting.tick_ms = 10_000).await;
    let other = Seed::agent(&world.db, world.seed.organization_id, "packer").await;
    let (vera, agent) = (world.person("vera"), world.agent().await);
    let packer = world.account(&other.client_id, &other.client_secret).await;
    let (task, session) = world.working(&agent).await;
    read(&vera, "/agent-events", 3).await;
    let reads = [(&vera, 1), (&agent, 1), (&packer, 0)];
    let mut waits_for = Vec::new();
    for (client, _) in reads {
        let at = end(client).await;
        waits_for.push(waiting(client, &format!("{at}&wait=5")));
    }
    waits(&world, 3).await;
    assert_eq!(world.service.waiting_reads().counts().tasks, 0);
    let begun = Instant::now();
    agent.say(&task, &session, "Here.").await.expect(201);
    for (wait, (_, count)) in waits_for.into_iter().zip(reads) {
        let reply = wait.await.unwrap();
        let seen = names(reply.expect(200).as_array().unwrap());
        assert_eq!(seen.len(), count, "{seen:?}");
        assert_eq!(begun.elapsed() >= Duration::from_secs(4), count == 0, "{:?}", begun.elapsed());
    }
    eventually("nothing waits", async || world.service.waiting_reads().counts() == WaitingCounts::default()).await;
}

#[tokio::test]
async fn what_another_process_writes_is_found_within_the_tick() {
    let world = World::with(|settings| settings.waiting.tick_ms = 200).await;
    let beside = World::beside(&world).await;
    let (vera, agent) = (world.person("vera"), beside.agent().await);
    let (task, session) = beside.working(&agent).await;
    let mut at = after(read(&vera, "/agent-events", 3).await.last().unwrap());
    for round in 0..3 {
        let wait = waiting(&vera, &format!("{at}&wait=50"));
        waits(&world, 1).await;
        agent.say(&task, &session, &round.to_string()).await.expect(201);
        let reply = wait.await.unwrap();
        assert_eq!(names(reply.expect(200).as_array().unwrap()), [(task.clone(), 4 + round)]);
        at = after(&reply.body[0]);
    }
}

#[tokio::test]
async fn when_the_time_is_up_the_answer_is_empty_and_leads_on() {
    let world = World::with(|settings| settings.server.request_timeout_seconds = 1).await;
    let vera = world.person("vera");
    let at = end(&vera).await;
    for (query, prefer) in [("&wait=2", None), ("", Some("wait=2"))] {
        let begun = Instant::now();
        let mut request = vera.request(Method::GET, &format!("{at}{query}"));
        if let Some(prefer) = prefer {
            request = request.header("prefer", prefer);
        }
        let reply = vera.send(request).await;
        assert_eq!(reply.expect(200), &json!([]));
        assert_eq!(reply.header("preference-applied"), prefer);
        vera.get(&next(&reply).replace("&wait=2", "")).await.expect(200);
        assert!(begun.elapsed() >= Duration::from_secs(2));
    }
}

#[tokio::test]
async fn a_follower_whose_permission_goes_while_it_waits_is_shown_nothing() {
    let world = World::new().await;
    let (vera, agent) = (world.person("vera"), world.agent().await);
    let (task, session) = world.working(&agent).await;
    read(&vera, "/agent-events", 3).await;
    let wait = waiting(&vera, &format!("{}&wait=50", end(&vera).await));
    waits(&world, 1).await;
    world.person("ada").delete("/members/vera").await.expect(204);
    agent.say(&task, &session, "Here.").await.expect(201);
    wait.await.unwrap().refused(403, "organization_forbidden");
}
