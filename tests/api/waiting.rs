//! Waiting for events without polling (contract, section 10; case 30).

use std::time::{Duration, Instant};

use futures::future::join_all;
use mandate::service::waiting::WaitingCounts;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::{Client, Reply, Sse, World, eventually};

/// A world that finds nothing by itself that another process writes, so that what wakes is a commit.
async fn unassisted() -> World {
    World::with(|settings| settings.waiting.tick_ms = 10_000).await
}

fn seqs(events: &Value) -> Vec<i64> {
    events.as_array().unwrap().iter().map(|event| event["seq"].as_i64().unwrap()).collect()
}

/// A read in the background.
fn read(client: &Client, task: &str, query: &str) -> JoinHandle<Reply> {
    let (client, path) = (client.clone(), format!("/agent-tasks/{task}/events?{query}"));
    tokio::spawn(async move { client.get(&path).await })
}

fn reads(world: &World) -> usize {
    world.service.waiting_reads().counts().reads
}

async fn waits(world: &World, count: usize) {
    eventually("so many reads wait", async || reads(world) == count).await;
    // One more round trip, so that most of them have looked by then; those that have not meet what follows.
    world.service.ready().await.unwrap();
}

/// Whether nothing of a wait is left.
async fn assert_nothing_left(world: &World) {
    eventually("nothing waits", async || world.service.waiting_reads().counts() == WaitingCounts::default()).await;
}

async fn archived(world: &World, task: &str) {
    eventually("the log is archived", async || {
        world.sweep().await;
        let row = world.person("ada").get(&format!("/agent-tasks/{task}")).await;
        !row.expect(200)["log_archived_at"].is_null()
    })
    .await;
}

#[tokio::test]
async fn a_commit_of_the_same_process_wakes_at_once() {
    let world = unassisted().await;
    let (vera, agent) = (world.person("vera"), world.agent().await);
    let (task, session) = world.working(&agent).await;
    let head = world.log(&task).await.len();
    let waiting: Vec<_> = (0..3).map(|_| read(&vera, &task, &format!("after_seq={head}&wait=50"))).collect();
    waits(&world, 3).await;
    assert_eq!(world.service.waiting_reads().counts().tasks, 1);
    let begun = Instant::now();
    agent.say(&task, &session, "Here.").await.expect(201);
    for reply in join_all(waiting).await {
        let reply = reply.unwrap();
        assert_eq!(seqs(reply.expect(200)), [i64::try_from(head).unwrap() + 1]);
        assert_eq!(reply.header("preference-applied"), None);
    }
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert_nothing_left(&world).await;
}

#[tokio::test]
async fn what_a_worker_commits_wakes_too() {
    let world = World::with(|settings| {
        settings.waiting.tick_ms = 10_000;
        settings.requests.ttl_seconds = 1;
    })
    .await;
    let (vera, agent) = (world.person("vera"), world.agent().await);
    let (task, _) = world.working(&agent).await;
    agent.ask(&task, &[]).await;
    let head = world.log(&task).await.len();
    let waiting = read(&vera, &task, &format!("after_seq={head}&type=request.expired&wait=50"));
    waits(&world, 1).await;
    eventually("the request expires", async || !world.step().await.is_idle()).await;
    assert_eq!(waiting.await.unwrap().expect(200)[0]["type"], "request.expired");
}

#[tokio::test]
async fn what_another_process_writes_is_found_within_the_tick() {
    let world = World::with(|settings| settings.waiting.tick_ms = 200).await;
    let other = World::beside(&world).await;
    let (vera, agent) = (world.person("vera"), other.agent().await);
    let (task, session) = other.working(&agent).await;
    for round in 0..3 {
        let head = world.log(&task).await.len();
        let waiting = read(&vera, &task, &format!("after_seq={head}&wait=50"));
        waits(&world, 1).await;
        agent.say(&task, &session, &round.to_string()).await.expect(201);
        let written = Instant::now();
        assert_eq!(seqs(waiting.await.unwrap().expect(200)).len(), 1);
        assert!(written.elapsed() < Duration::from_secs(3), "{:?}", written.elapsed());
    }
}

#[tokio::test]
async fn one_look_finds_what_moved_of_all_that_is_watched_and_asks_nothing_when_nobody_waits() {
    let world = unassisted().await;
    let other = World::beside(&world).await;
    let (vera, agent) = (world.person("vera"), other.agent().await);
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let (task, session) = other.working(&agent).await;
        let read = read(&vera, &task, "after_seq=2&type=turn&wait=50");
        waiting.push((task, session, read));
    }
    waits(&world, 3).await;
    eventually("all that there is was seen", async || world.service.look_for_news().await.unwrap() == 0).await;
    for (task, session, _) in &waiting[..2] {
        agent.say(task, session, "Here.").await.expect(201);
    }
    assert_eq!(world.service.look_for_news().await.unwrap(), 2);
    eventually("one still waits", async || reads(&world) == 1).await;
    let (task, session, _) = &waiting[2];
    agent.say(task, session, "Here.").await.expect(201);
    assert_eq!(world.service.look_for_news().await.unwrap(), 1);
    for (_, _, read) in waiting {
        assert_eq!(read.await.unwrap().expect(200)[0]["type"], "turn");
    }
    assert_nothing_left(&world).await;
    world.stop().await;
    // The pool is closed: a query would fail.
    assert_eq!(world.service.look_for_news().await.unwrap(), 0);
}

#[tokio::test]
async fn an_event_that_comes_just_before_the_wait_is_in_the_first_answer() {
    let world = unassisted().await;
    let (vera, agent) = (world.person("vera"), world.agent().await);
    let (task, session) = world.working(&agent).await;
    let mut head = i64::try_from(world.log(&task).await.len()).unwrap();
    for round in 0..100 {
        let path = format!("/agent-tasks/{task}/events?after_seq={head}&wait=20");
        let begun = Instant::now();
        let reply = if round % 10 == 0 {
            agent.say(&task, &session, "between").await.expect(201);
            vera.get(&path).await
        } else {
            let write = async {
                // At another moment of the read each time.
                tokio::time::sleep(Duration::from_micros(100 * (round % 25))).await;
                agent.say(&task, &session, "beside").await.expect(201);
            };
            tokio::join!(vera.get(&path), write).0
        };
        assert_eq!(seqs(reply.expect(200)), [head + 1], "round {round}");
        assert!(begun.elapsed() < Duration::from_secs(5), "round {round}: {:?}", begun.elapsed());
        head += 1;
    }
}

#[tokio::test]
async fn a_wait_goes_on_until_there_is_an_event_of_its_types() {
    let world = unassisted().await;
    let (vera, agent) = (world.person("vera"), world.agent().await);
    let (task, session) = world.working(&agent).await;
    let waiting = read(&vera, &task, "type=outcome.set&type=control.changed&wait=50");
    waits(&world, 1).await;
    for n in 0..20 {
        agent.say(&task, &session, &n.to_string()).await.expect(201);
    }
    assert_eq!(reads(&world), 1, "an event of another type ends no wait");
    agent.finish(&task).await.expect(200);
    let reply = waiting.await.unwrap();
    let types: Vec<_> = reply.expect(200).as_array().unwrap().iter().map(|event| event["type"].clone()).collect();
    assert_eq!(types, ["outcome.set"]);
}

#[tokio::test]
async fn when_the_time_is_up_the_answer_is_empty_however_short_other_calls_are() {
    let world = World::with(|settings| settings.server.request_timeout_seconds = 1).await;
    let vera = world.person("vera");
    let task = world.task().await;
    for (query, prefer, seconds) in [("&wait=1", None, 1), ("&wait=3", None, 3), ("", Some("wait=2"), 2)] {
        let begun = Instant::now();
        let mut request = vera.request(Method::GET, &format!("/agent-tasks/{task}/events?after_seq=9{query}"));
        if let Some(prefer) = prefer {
            request = request.header("prefer", prefer);
        }
        let reply = vera.send(request).await;
        assert_eq!(*reply.expect(200), json!([]));
        assert_eq!(reply.header("preference-applied"), prefer);
        assert_eq!(reply.next(), None);
        let took = begun.elapsed();
        assert!(took >= Duration::from_secs(seconds) && took < Duration::from_secs(seconds + 2), "{took:?}");
    }
    assert_nothing_left(&world).await;
}

#[tokio::test]
async fn what_is_there_is_answered_at_once_in_pages() {
    let world = World::new().await;
    let (vera, agent) = (world.person("vera"), world.agent().await);
    let (task, session) = world.working(&agent).await;
    agent.say(&task, &session, "One.").await.expect(201);
    let whole = vera.get(&format!("/agent-tasks/{task}/events?limit=2")).await;
    let begun = Instant::now();
    let waited = vera.get(&format!("/agent-tasks/{task}/events?limit=2&wait=20")).await;
    assert_eq!(waited.expect(200), whole.expect(200));
    assert!(waited.next().unwrap().contains("after_seq=2"), "{:?}", waited.next());
    let pages = vera.get(&format!("/{}", waited.next().unwrap())).await;
    assert_eq!(seqs(pages.expect(200))[0], 3);
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_wait_that_cannot_be_is_named() {
    let world = World::new().await;
    let vera = world.person("vera");
    let task = world.task().await;
    for wait in ["56", "x", "-1", "1.5", "99999999999999999999", "%00"] {
        let reply = vera.get(&format!("/agent-tasks/{task}/events?wait={wait}")).await;
        reply.invalid_at(&["wait"]);
    }
    vera.get(&format!("/agent-tasks/{task}/events?wait=5&before_seq=3")).await.invalid_at(&["wait"]);
    let lines = vera.request(Method::GET, &format!("/agent-tasks/{task}/events?wait=5"));
    vera.send(lines.header("accept", "application/x-ndjson")).await.invalid_at(&["wait"]);
    // 0 is no wait.
    let reply = vera.get(&format!("/agent-tasks/{task}/events?after_seq=9&wait=0")).await;
    assert_eq!(reply.expect(200), &json!([]));
    // A preference that cannot be is none.
    for prefer in ["wait=0", "wait=x", "respond-async", "wait"] {
        let request = vera.request(Method::GET, &format!("/agent-tasks/{task}/events?after_seq=9"));
        let reply = vera.send(request.header("prefer", prefer)).await;
        assert_eq!((reply.expect(200), reply.header("preference-applied")), (&json!([]), None));
    }
    let request = vera.request(Method::GET, &format!("/agent-tasks/{task}/events?before_seq=1"));
    let reply = vera.send(request.header("prefer", "wait=50")).await;
    assert_eq!((reply.expect(200), reply.header("preference-applied")), (&json!([]), None));
    // Who may not read does not wait.
    let path = format!("/agent-tasks/{task}/events?after_seq=9&wait=50");
    world.anyone().get(&path).await.refused(401, "unauthenticated");
    world.person("nobody").get(&path).await.refused(403, "organization_forbidden");
    vera.get("/agent-tasks/T-99/events?wait=50").await.refused(404, "task_not_found");
}

#[tokio::test]
async fn more_reads_than_may_wait_are_told_to_come_again() {
    let world = World::with(|settings| settings.waiting.reads_max = 2).await;
    let (vera, agent) = (world.person("vera"), world.agent().await);
    let (task, session) = world.working(&agent).await;
    let waiting: Vec<_> = (0..2).map(|_| read(&vera, &task, "after_seq=3&type=turn&wait=50")).collect();
    waits(&world, 2).await;
    let reply = vera.get(&format!("/agent-tasks/{task}/events?wait=50")).await;
    reply.refused(503, "unavailable");
    assert_eq!(reply.header("retry-after"), Some("1"));
    let stream = Sse::ask(&vera, &task, "", None).await;
    assert_eq!((stream.status().as_u16(), &stream.headers()["retry-after"]), (503, &"1".parse().unwrap()));
    vera.get(&format!("/agent-tasks/{task}/events")).await.expect(200);
    let metrics = world.anyone().get("//metrics").await;
    assert!(metrics.text.contains("mandate_waiting_reads 2"), "{}", metrics.text);
    agent.say(&task, &session, "Here.").await.expect(201);
    for read in waiting {
        read.await.unwrap().expect(200);
    }
    vera.get(&format!("/agent-tasks/{task}/events?wait=50")).await.expect(200);
    assert_nothing_left(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_hang_up_leave_nothing_behind_and_hold_no_connection() {
    const READERS: usize = 200;
    let world = World::with(|settings| settings.database.max_connections = 2).await;
    let (vera, agent) = (world.person("vera"), world.agent().await);
    let (task, session) = world.working(&agent).await;
    let waiting: Vec<_> = (0..READERS).map(|_| read(&vera, &task, "after_seq=9&wait=50")).collect();
    waits(&world, READERS).await;
    eventually("nobody is busy at the database", async || {
        let busy = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND application_name = 'mandate' AND state <> 'idle'";
        sqlx::query_scalar::<_, i64>(busy).fetch_one(&world.db).await.unwrap() == 0
    })
    .await;
    // Two connections serve everybody else meanwhile.
    agent.say(&task, &session, "Who listens?").await.expect(201);
    waiting.iter().for_each(JoinHandle::abort);
    assert_nothing_left(&world).await;
    let all = join_all((0..20).map(|n| agent.say(&task, &session, ["a", "b"][n % 2])));
    for reply in tokio::time::timeout(Duration::from_secs(20), all).await.expect("no connection is lost") {
        reply.expect(201);
    }
    tokio::time::timeout(Duration::from_secs(5), world.stop()).await.expect("the pool closes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_that_one_commit_wakes_is_served_in_turn_and_keeps_nobody_out() {
    const READERS: usize = 500;
    let world = World::with(|settings| {
        settings.waiting.tick_ms = 10_000;
        settings.database.acquire_timeout_seconds = 1;
    })
    .await;
    let (vera, agent) = (world.person("vera"), world.agent().await);
    let (task, session) = world.working(&agent).await;
    let mut waiting = Vec::new();
    for chunk in 1..=READERS / 50 {
        waiting.extend((0..50).map(|_| read(&vera, &task, "type=turn&wait=50")));
        waits(&world, 50 * chunk).await;
    }
    for n in 0..5 {
        agent.say(&task, &session, &n.to_string()).await.expect(201);
    }
    for reply in join_all(waiting).await {
        assert_eq!(reply.unwrap().expect(200)[0]["payload"]["body"], "0");
    }
    assert_nothing_left(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_ends_every_wait_at_once() {
    let world = World::new().await;
    let vera = world.person("vera");
    let task = world.task().await;
    let mut stream = Sse::open(&vera, &task, "", None).await;
    let waiting: Vec<_> = (0..20).map(|_| read(&vera, &task, "after_seq=9&wait=50")).collect();
    waits(&world, 21).await;
    let begun = Instant::now();
    let ended = tokio::join!(world.stop(), stream.rest()).1;
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert_eq!(ended.len(), 1, "{ended:?}");
    for reply in join_all(waiting).await {
        assert_eq!(*reply.unwrap().expect(200), json!([]));
    }
    assert_eq!(world.service.waiting_reads().counts(), WaitingCounts::default());
}

#[tokio::test]
async fn a_closed_log_is_waited_for_until_it_is_archived() {
    let world = unassisted().await;
    let (vera, agent) = (world.person("vera"), world.agent().await);
    let (task, _) = world.working(&agent).await;
    agent.finish(&task).await.expect(200);
    let head = world.log(&task).await.len();
    let waiting = read(&vera, &task, &format!("after_seq={head}&wait=50"));
    waits(&world, 1).await;
    // Money that was spent before the end is reported after it.
    agent.spend(&task, "late", 1, 1).await.expect(201);
    assert_eq!(waiting.await.unwrap().expect(200)[0]["type"], "usage.reported");

    let head = world.log(&task).await.len();
    let waiting = read(&vera, &task, &format!("after_seq={head}&wait=50"));
    waits(&world, 1).await;
    archived(&world, &task).await;
    eventually("the archive is noticed", async || {
        world.service.look_for_news().await.unwrap();
        reads(&world) == 0
    })
    .await;
    assert_eq!(*waiting.await.unwrap().expect(200), json!([]));

    let begun = Instant::now();
    let path = format!("/agent-tasks/{task}/events?wait=50");
    assert_eq!(seqs(vera.get(&path).await.expect(200)).len(), head);
    for query in [&format!("&after_seq={head}"), "&type=nothing.of.the.kind"] {
        assert_eq!(*vera.get(&format!("{path}{query}")).await.expect(200), json!([]), "{query}");
    }
    let mut stream = Sse::open(&vera, &task, "", None).await;
    assert_eq!(stream.rest().await.len(), head);
    assert_eq!(Sse::ask(&vera, &task, "", Some(&head.to_string())).await.status(), 204);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_nothing_left(&world).await;
}
