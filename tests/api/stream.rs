//! A log as server-sent events (contract, section 10; case 30).

use std::time::{Duration, Instant};

use mandate::service::waiting::WaitingCounts;
use serde_json::{Value, json};

use crate::support::{Block, Sse, World, eventually};

fn ids(events: &[(i64, String, Value)]) -> Vec<i64> {
    events.iter().map(|(id, ..)| *id).collect()
}

async fn assert_nothing_left(world: &World) {
    eventually("nothing waits", async || world.service.waiting_reads().counts() == WaitingCounts::default()).await;
}

#[tokio::test]
async fn a_stream_sends_what_is_there_and_what_comes_and_ends_with_the_closed_log() {
    let world = World::with(|settings| settings.waiting.tick_ms = 10_000).await;
    let (vera, agent) = (world.person("vera"), world.agent().await);
    let (task, session) = world.working(&agent).await;
    let mut stream = Sse::open(&vera, &task, "", None).await;
    assert_eq!(stream.response.headers()["x-accel-buffering"], "no");
    assert_eq!(stream.block().await, Some(Block::Comment), "the first bytes come at once");
    let mut sent = Vec::new();
    for _ in 0..3 {
        sent.push(stream.event().await.unwrap());
    }
    for body in ["Grüße 🦀", "two\nlines\r\n\r\nand data: id: more"] {
        let begun = Instant::now();
        agent.say(&task, &session, body).await.expect(201);
        let (id, event_type, data) = stream.event().await.unwrap();
        assert_eq!((event_type.as_str(), &data["payload"]["body"]), ("turn", &json!(body)));
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
        sent.push((id, event_type, data));
    }
    agent.ask(&task, &[]).await;
    agent.finish(&task).await.expect(200);
    sent.extend(stream.rest().await);
    let log = world.log(&task).await;
    let listed: Vec<_> = log
        .iter()
        .map(|event| (event["seq"].as_i64().unwrap(), event["type"].as_str().unwrap().to_owned(), event.clone()))
        .collect();
    assert_eq!(sent, listed);
    let outcome = sent.iter().position(|(_, event_type, _)| event_type == "outcome.set").unwrap();
    assert!(outcome + 1 < sent.len(), "what the close leads to is sent too: {:?}", ids(&sent));

    // At the head there is nothing to come for; elsewhere the rest is sent.
    let head = sent.len();
    for (query, last) in [("", head), ("?after_seq=1", head), ("?type=turn", head), ("", 9_000)] {
        let answer = Sse::ask(&vera, &task, query, Some(&last.to_string())).await;
        assert_eq!((answer.status().as_u16(), answer.text().await.unwrap().as_str()), (204, ""), "{query} {last}");
    }
    let mut rest = Sse::open(&vera, &task, "", Some(&(head - 2).to_string())).await;
    assert_eq!(rest.rest().await, listed[head - 2..]);
    assert_nothing_left(&world).await;
}

#[tokio::test]
async fn who_comes_again_goes_on_strictly_behind_what_was_seen() {
    let world = World::new().await;
    let (vera, agent) = (world.person("vera"), world.agent().await);
    let (task, session) = world.working(&agent).await;
    for chunk in (4..=350).collect::<Vec<i32>>().chunks(100) {
        let turns: Vec<_> = chunk.iter().map(|n| json!({"type": "turn", "payload": {"body": n.to_string()}})).collect();
        let body = json!({"session_id": session, "events": turns});
        agent.on(&task, "events", body).await.expect(201);
    }
    agent.spend(&task, "u1", 1, 1).await.expect(201);
    agent.finish(&task).await.expect(200);
    let length = i64::try_from(world.log(&task).await.len()).unwrap();
    for (query, last, first) in [
        ("", None, 1),
        ("?after_seq=7", None, 8),
        ("?after_seq=7", Some("340"), 341),
        ("?after_seq=7", Some(""), 8),
        ("?limit=1", Some("0"), 1),
    ] {
        let seen = Sse::open(&vera, &task, query, last).await.rest().await;
        assert_eq!(ids(&seen), (first..=length).collect::<Vec<_>>(), "{query} {last:?}");
    }
    let seen = Sse::open(&vera, &task, "?type=usage.reported&type=outcome.set", None).await.rest().await;
    let types: Vec<_> = seen.iter().map(|(_, event_type, _)| event_type.as_str()).collect();
    assert_eq!(types, ["usage.reported", "outcome.set"]);
    for last in ["x", "-1", "1.5", "9223372036854775808"] {
        let answer = Sse::ask(&vera, &task, "", Some(last)).await;
        assert_eq!(answer.status(), 422, "{last}");
        let problem: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        assert_eq!(problem["errors"][0]["header"], "Last-Event-ID", "{last}");
    }
    let answer = Sse::ask(&vera, &task, "?before_seq=9", None).await;
    assert_eq!(answer.status(), 422);
}

#[tokio::test]
async fn an_event_that_comes_just_before_the_stream_is_sent_first() {
    let world = World::with(|settings| settings.waiting.tick_ms = 10_000).await;
    let (vera, agent) = (world.person("vera"), world.agent().await);
    let (task, session) = world.working(&agent).await;
    let mut head = i64::try_from(world.log(&task).await.len()).unwrap();
    for round in 0..100 {
        let begun = Instant::now();
        let write = async {
            tokio::time::sleep(Duration::from_micros(100 * (round % 25))).await;
            agent.say(&task, &session, "beside").await.expect(201);
        };
        let last = head.to_string();
        let follow = async { Sse::open(&vera, &task, "", Some(&last)).await.event().await.unwrap() };
        let (first, ()) = tokio::join!(follow, write);
        assert_eq!(first.0, head + 1, "round {round}");
        assert!(begun.elapsed() < Duration::from_secs(5), "round {round}: {:?}", begun.elapsed());
        head += 1;
    }
    assert_nothing_left(&world).await;
}

#[tokio::test]
async fn nobody_sees_200_before_they_may() {
    let world = World::new().await;
    let task = world.task().await;
    for (client, named, status) in [
        (world.anyone(), task.as_str(), 401),
        (world.bearer("nonsense"), &task, 401),
        (world.person("nobody"), &task, 403),
        (world.trigger().await, &task, 403),
        (world.person("vera"), "T-99", 404),
    ] {
        let answer = Sse::ask(&client, named, "", None).await;
        assert_eq!(answer.status(), status);
        assert_eq!(answer.headers()["content-type"], "application/problem+json");
    }
    assert_eq!(world.service.waiting_reads().counts(), WaitingCounts::default());
}

#[tokio::test]
async fn a_stream_ends_with_its_token() {
    let world = World::new().await;
    let task = world.task().await;
    let ends = world.now().micros() / 1_000_000 + 3;
    let vera = world.person_claiming("vera", json!({"exp": ends}));
    let mut stream = Sse::open(&vera, &task, "", None).await;
    assert_eq!(ids(&stream.rest().await), [1]);
    let late = world.now().micros() - ends * 1_000_000;
    assert!((0..2_000_000).contains(&late), "{late} µs after the token's end");
    assert_eq!(Sse::ask(&vera, &task, "", Some("1")).await.status(), 401);
    assert_nothing_left(&world).await;
}

#[tokio::test]
async fn a_stream_ends_when_its_reader_may_read_no_longer() {
    let world = World::with(|settings| settings.waiting.comment_ms = 100).await;
    let task = world.task().await;
    let mut stream = Sse::open(&world.person("vera"), &task, "", None).await;
    stream.event().await.unwrap();
    for _ in 0..3 {
        assert_eq!(stream.block().await, Some(Block::Comment));
    }
    world.person("ada").delete("/members/vera").await.expect(204);
    assert!(tokio::time::timeout(Duration::from_secs(5), stream.rest()).await.unwrap().is_empty());
    assert_nothing_left(&world).await;
}

#[tokio::test]
async fn what_comes_after_the_permission_went_is_not_sent() {
    let world = World::new().await;
    let (vera, agent) = (world.person("vera"), world.agent().await);
    let (task, session) = world.working(&agent).await;
    let mut stream = Sse::open(&vera, &task, "", Some("2")).await;
    stream.event().await.unwrap();
    let path = format!("/agent-tasks/{task}/events?after_seq=3&wait=50");
    let waiting = tokio::spawn(async move { vera.get(&path).await });
    eventually("both wait", async || world.service.waiting_reads().counts().reads == 2).await;
    world.person("ada").delete("/members/vera").await.expect(204);
    agent.say(&task, &session, "Among us.").await.expect(201);
    assert!(stream.rest().await.is_empty());
    waiting.await.unwrap().refused(403, "organization_forbidden");
    assert_nothing_left(&world).await;
}

#[tokio::test]
async fn a_silent_stream_is_not_dead() {
    let world = World::with(|settings| {
        settings.waiting.comment_ms = 500;
        settings.server.request_timeout_seconds = 1;
    })
    .await;
    let (task, begun) = (world.task().await, Instant::now());
    let mut stream = Sse::open(&world.person("vera"), &task, "", None).await;
    assert_eq!(stream.block().await, Some(Block::Comment));
    stream.event().await.unwrap();
    for n in 1..=5 {
        assert_eq!(stream.block().await, Some(Block::Comment));
        let at = begun.elapsed();
        let due = Duration::from_millis(500 * n);
        assert!(at >= due.mul_f32(0.9) && at < due + Duration::from_secs(2), "comment {n} after {at:?}");
    }
    drop(stream);
    assert_nothing_left(&world).await;
}

#[tokio::test]
async fn what_another_process_writes_is_streamed() {
    let world = World::with(|settings| settings.waiting.tick_ms = 100).await;
    let other = World::beside(&world).await;
    let agent = other.agent().await;
    let (task, session) = other.working(&agent).await;
    let mut stream = Sse::open(&world.person("vera"), &task, "?type=turn&type=outcome.set", None).await;
    for n in 0..5 {
        agent.say(&task, &session, &n.to_string()).await.expect(201);
        assert_eq!(stream.event().await.unwrap().2["payload"]["body"], n.to_string());
    }
    agent.finish(&task).await.expect(200);
    let rest = stream.rest().await;
    assert_eq!(rest.len(), 1);
    assert_eq!(rest[0].1, "outcome.set");
}
