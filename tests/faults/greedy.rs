//! Clients that have not said who they are and want the server to hold much for them.

use crate::support::World;
use crate::wire;

#[tokio::test]
async fn methods_that_no_route_has_share_one_label() {
    let world = World::new().await;
    for nth in 0..20 {
        let made_up = format!("M{nth}{} /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", "X".repeat(1_000));
        let answer = wire::answer(&mut wire::send(&world, made_up.as_bytes()).await).await;
        assert!(answer.starts_with("HTTP/1.1 405") && answer.contains("method_not_allowed"), "{answer}");
    }
    let metrics = world.anyone().get("//metrics").await.text;
    assert!(metrics.contains("method=\"other\""), "{metrics}");
    assert!(!metrics.contains("XXXX"), "{metrics}");
}

#[tokio::test]
async fn headers_of_more_than_64_kib_are_refused_before_they_are_read_whole() {
    let world = World::new().await;
    let large = format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-large: {}\r\n", "x".repeat(80 * 1024));
    let answer = wire::answer(&mut wire::send(&world, large.as_bytes()).await).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    // A token as large as one may be, and more, is read.
    let fits = format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-large: {}\r\n\r\n", "x".repeat(40 * 1024));
    let answer = wire::answer(&mut wire::send(&world, fits.as_bytes()).await).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// Whoever asks for a token has not said who he is; the limit of the other routes' bodies is theirs.
#[tokio::test]
async fn a_form_for_a_token_has_a_limit_of_its_own() {
    let world = World::new().await;
    let head = "POST /auth/token HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-www-form-urlencoded\r\n";
    let declared = format!("{head}content-length: 20000\r\n\r\n");
    let chunk = "x".repeat(20_000);
    let chunked = format!("{head}transfer-encoding: chunked\r\n\r\n{:x}\r\n{chunk}\r\n", chunk.len());
    for begun in [declared, chunked] {
        // It is refused although the rest never comes.
        let answer = wire::answer(&mut wire::send(&world, begun.as_bytes()).await).await;
        assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("payload_too_large"), "{answer}");
    }
    // What is no form is not read at all.
    let other =
        "POST /auth/token HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\ncontent-length: 20000\r\n\r\n";
    let answer = wire::answer(&mut wire::send(&world, other.as_bytes()).await).await;
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("invalid_request"), "{answer}");
}

/// A client that sends all of its body before it reads must find an answer, not a connection that was reset.
#[tokio::test]
async fn a_body_that_is_too_large_is_answered_to_who_sends_it_all_first() {
    let world = World::with(|settings| settings.server.body_limit_bytes = 1024 * 1024).await;
    let agent = world.agent().await;
    let (task, _) = world.working(&agent).await;
    let path = format!("/agent-tasks/{task}/events");
    let large = "x".repeat(5 * 1024 * 1024);
    let declared = format!("{}{large}", wire::head(&agent, &path, large.len()));
    let head = wire::head(&agent, &path, 0).replace("content-length: 0", "transfer-encoding: chunked");
    let chunked = format!("{head}{:x}\r\n{large}\r\n0\r\n\r\n", large.len());
    for bytes in [declared, chunked] {
        let answer = wire::answer(&mut wire::send(&world, bytes.as_bytes()).await).await;
        assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("payload_too_large"), "{answer}");
    }
    assert_eq!(world.types(&task).await, ["task.created", "session.opened", "state.changed"]);
}
