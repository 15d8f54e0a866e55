//! Clients that are too slow.

use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use crate::support::World;
use crate::wire;

async fn impatient() -> World {
    World::with(|settings| {
        settings.server.header_timeout_seconds = 1;
        settings.server.request_timeout_seconds = 1;
    })
    .await
}

#[tokio::test]
async fn headers_that_take_too_long_end_the_connection() {
    let world = impatient().await;
    let begun = tokio::time::Instant::now();
    let answer = wire::rest(wire::send(&world, b"GET /healthz HTTP/1.1\r\nhost: local").await).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!((1..5).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    world.anyone().get("//healthz").await.expect(200);
}

#[tokio::test]
async fn headers_that_drip_end_the_connection_too() {
    let world = impatient().await;
    let mut stream = wire::send(&world, b"GET /healthz HTTP/1.1\r\n").await;
    let begun = tokio::time::Instant::now();
    // One header every tenth of a second: each arrives in time, the whole does not.
    while begun.elapsed() < Duration::from_secs(5) {
        if stream.write_all(b"x: y\r\n").await.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "the server waits for ever");
}

const PROBE: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";

#[tokio::test]
async fn a_client_may_be_silent_between_two_requests_for_longer_than_headers_may_take() {
    let world = impatient().await;
    let mut stream = wire::send(&world, PROBE).await;
    for _ in 0..2 {
        let answer = wire::answer(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        // As a harness between two heartbeats.
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        stream.write_all(PROBE).await.unwrap();
    }
    let answer = wire::answer(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn headers_of_a_later_request_that_take_too_long_end_the_connection() {
    let world = impatient().await;
    let mut stream = wire::send(&world, PROBE).await;
    let answer = wire::answer(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let begun = tokio::time::Instant::now();
    stream.write_all(&PROBE[..20]).await.unwrap();
    let answer = wire::rest(stream).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(begun.elapsed() >= Duration::from_millis(900), "{:?}", begun.elapsed());
}

/// Asks for more than the system holds for a client that takes nothing, and takes nothing.
async fn ask_for_much(world: &World) -> tokio::net::TcpStream {
    let agent = world.agent().await;
    let (task, session) = world.working(&agent).await;
    let path = format!("/agent-tasks/{task}/events");
    let event = json!({"type": "turn", "payload": {"body": "A long answer. ".repeat(600)}});
    let batch = json!({"session_id": session, "events": vec![event; 100]});
    for _ in 0..9 {
        agent.post(&path, &batch).await.expect(201);
    }
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let address = world.base.strip_prefix("http://").unwrap().parse().unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    stream.write_all(&wire::get(&agent, &format!("{path}?limit=1000"))).await.unwrap();
    stream
}

/// A connection is put aside when it has been idle for a while; what was not taken by then must still come.
#[tokio::test]
async fn what_a_client_is_slow_to_take_is_not_lost() {
    let world = World::new().await;
    let mut stream = ask_for_much(&world).await;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let answer = wire::whole(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.len() > 8_000_000, "{} bytes", answer.len());
    // And the connection is served on.
    stream.write_all(PROBE).await.unwrap();
    let answer = wire::answer(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn a_client_that_takes_nothing_of_its_answer_does_not_keep_its_place_for_ever() {
    let world = World::with(|settings| {
        settings.server.idle_timeout_seconds = 1;
        settings.server.max_connections = 2;
    })
    .await;
    let first = ask_for_much(&world).await;
    // With the world's own client the places are taken; who comes next is served when the first was cut off.
    let _second = ask_for_much(&world).await;
    let answer = wire::answer(&mut wire::send(&world, PROBE).await).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let answer = wire::rest(first).await;
    assert!(answer.len() < 8_000_000, "the whole answer came: {} bytes", answer.len());
}

#[tokio::test]
async fn a_request_that_begins_with_the_end_of_another_is_answered_after_a_long_pause_too() {
    let world = World::new().await;
    let mut stream = wire::send(&world, &[PROBE, &PROBE[..20]].concat()).await;
    assert!(wire::answer(&mut stream).await.starts_with("HTTP/1.1 200"));
    // Longer than a connection keeps its buffers: what is tested is that the time passes.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    for rest in [&PROBE[20..], PROBE, PROBE] {
        stream.write_all(rest).await.unwrap();
        assert!(wire::answer(&mut stream).await.starts_with("HTTP/1.1 200"));
        tokio::time::sleep(Duration::from_millis(1_200)).await;
    }
    // One that is idle does not hold the end up.
    let begun = tokio::time::Instant::now();
    world.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(wire::rest(stream).await, "");
}

#[tokio::test]
async fn a_client_that_is_silent_for_too_long_after_a_request_loses_its_connection() {
    let world = World::with(|settings| settings.server.idle_timeout_seconds = 1).await;
    let mut stream = wire::send(&world, PROBE).await;
    let answer = wire::answer(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let begun = tokio::time::Instant::now();
    assert_eq!(wire::rest(stream).await, "");
    assert!((900..5_000).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_body_that_takes_too_long_is_answered_and_writes_nothing() {
    let world = impatient().await;
    let agent = world.agent().await;
    let (task, _) = world.working(&agent).await;
    let path = format!("/agent-tasks/{task}/events");
    let head = wire::head(&agent, &path, 200);
    let body = json!({"events": [{"type": "turn", "payload": {"body": "slow"}}]}).to_string();
    let mut stream = wire::send(&world, format!("{head}{}", &body[..20]).as_bytes()).await;
    let begun = tokio::time::Instant::now();
    let answer = wire::answer(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 503") || answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("application/problem+json") && answer.contains("x-request-id"), "{answer}");
    assert!((1..5).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    drop(stream);
    assert_eq!(world.types(&task).await, ["task.created", "session.opened", "state.changed"]);
    world.prove().await;
}

#[tokio::test]
async fn a_connection_that_sends_nothing_does_not_keep_its_place_for_ever() {
    let world = World::with(|settings| {
        settings.server.header_timeout_seconds = 1;
        settings.server.max_connections = 1;
    })
    .await;
    let silent = wire::send(&world, b"").await;
    // The only place is taken; the next client is served when the silent one was cut off.
    world.anyone().get("//healthz").await.expect(200);
    drop(silent);
}
