//! Artifacts: sent by their digest, verified, and read again in whole and in part.

use std::net::SocketAddr;

use bytes::Bytes;
use mandate::service::artifacts::ArtifactsSwept;
use reqwest::Method;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use crate::support::{Client, World, digest_of, eventually, keep_artifacts};

async fn count(world: &World, table: &str) -> i64 {
    let query = format!("SELECT count(*) FROM agent_runtime.{table}");
    sqlx::query_scalar(sqlx::AssertSqlSafe(query)).fetch_one(&world.db).await.unwrap()
}

#[tokio::test]
async fn an_artifact_is_sent_once_and_read_as_it_came() {
    let world = World::with_artifacts().await;
    let agent = world.agent().await;
    let (digest, sent) = agent.send_artifact("Hello.", "Text/Plain; charset=UTF-8; x=y").await;
    let first = sent.expect(201).clone();
    assert_eq!(first["digest"], digest.as_str());
    assert_eq!((&first["size"], &first["media_type"]), (&json!(6), &json!("text/plain; charset=utf-8")));
    let read = agent.artifact(&digest).await;
    assert_eq!((read.status, read.text.as_str()), (200, "Hello."));
    let etag = format!("\"{digest}\"");
    for (header, value) in [
        ("content-type", "text/plain; charset=utf-8"),
        ("content-length", "6"),
        ("etag", etag.as_str()),
        ("accept-ranges", "bytes"),
        ("content-disposition", "attachment"),
        ("x-content-type-options", "nosniff"),
        ("cache-control", "private"),
        ("content-security-policy", "default-src 'none'; sandbox"),
    ] {
        assert_eq!(read.header(header), Some(value), "{header}");
    }
    // The same again is what is there already, whatever it is called now.
    let (_, again) = agent.send_artifact("Hello.", "text/html").await;
    assert_eq!(again.expect(200), &first);
    assert_eq!(world.artifact_files().len(), 1);
    // What no browser may show is served as what it is not.
    let (odd, sent) = agent.send_artifact("<script>", "text/html, x\tb").await;
    assert_eq!(sent.expect(201)["media_type"], "application/octet-stream");
    assert_eq!(agent.artifact(&odd).await.header("content-type"), Some("application/octet-stream"));
    assert_eq!(count(&world, "artifact_uploads").await, 0);
}

#[tokio::test]
async fn head_and_conditional_reads_answer_without_the_bytes() {
    let world = World::with_artifacts().await;
    let agent = world.agent().await;
    let (digest, sent) = agent.send_artifact("Hello.", "text/plain").await;
    sent.expect(201);
    let path = format!("/artifacts/{digest}");
    let head = agent.send(agent.request(Method::HEAD, &path)).await;
    assert_eq!((head.status, head.text.as_str(), head.header("content-length")), (200, "", Some("6")));
    assert_eq!(head.header("etag"), agent.artifact(&digest).await.header("etag"));
    for tags in [format!("\"{digest}\""), format!("\"x\", W/\"{digest}\""), "*".to_owned()] {
        let same = agent.send(agent.request(Method::GET, &path).header("if-none-match", tags)).await;
        assert_eq!((same.status, same.text.as_str()), (304, ""));
    }
    let other = agent.send(agent.request(Method::GET, &path).header("if-none-match", "\"x\"")).await;
    assert_eq!((other.status, other.text.as_str()), (200, "Hello."));
    let missing = agent.request(Method::HEAD, &format!("/artifacts/{}", digest_of(b"x"))).send().await.unwrap();
    assert_eq!(missing.status(), 404);
}

#[tokio::test]
async fn one_range_of_bytes_is_read_by_itself() {
    let world = World::with_artifacts().await;
    let agent = world.agent().await;
    let (digest, sent) = agent.send_artifact("0123456789", "text/plain").await;
    sent.expect(201);
    let ask = async |range: &str, more: &[(&str, &str)]| {
        let mut request = agent.request(Method::GET, &format!("/artifacts/{digest}")).header("range", range);
        for (name, value) in more {
            request = request.header(*name, *value);
        }
        agent.send(request).await
    };
    for (range, text, part) in [
        ("bytes=0-0", "0", "bytes 0-0/10"),
        ("bytes=3-5", "345", "bytes 3-5/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=-2", "89", "bytes 8-9/10"),
        ("bytes=5-500", "56789", "bytes 5-9/10"),
    ] {
        let reply = ask(range, &[]).await;
        assert_eq!((reply.status, reply.text.as_str(), reply.header("content-range")), (206, text, Some(part)));
        assert_eq!(reply.header("content-length"), Some(text.len().to_string().as_str()));
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    }
    for range in ["bytes=10-", "bytes=12-20"] {
        let reply = ask(range, &[]).await;
        assert_eq!(reply.refused(416, "range_not_satisfiable")["size"], 10);
        assert_eq!(reply.header("content-range"), Some("bytes */10"));
    }
    for range in ["bytes=0-1,4-5", "lines=0-1", "bytes=5-2", "bytes"] {
        let reply = ask(range, &[]).await;
        assert_eq!((reply.status, reply.text.as_str()), (200, "0123456789"), "{range}");
    }
    let etag = format!("\"{digest}\"");
    assert_eq!(ask("bytes=0-0", &[("if-range", &etag)]).await.status, 206);
    assert_eq!(ask("bytes=0-0", &[("if-range", "\"other\"")]).await.status, 200);
    // Nothing has no ranges.
    let (empty, sent) = agent.send_artifact("", "text/plain").await;
    sent.expect(201);
    assert_eq!(agent.artifact(&empty).await.text, "");
    let range = agent.request(Method::GET, &format!("/artifacts/{empty}")).header("range", "bytes=0-");
    agent.send(range).await.refused(416, "range_not_satisfiable");
}

/// A PUT under the digest of `named`.
async fn send_as(client: &Client, named: &[u8], body: impl Into<reqwest::Body>) -> crate::support::Reply {
    client.send(client.request(Method::PUT, &format!("/artifacts/{}", digest_of(named))).body(body)).await
}

#[tokio::test]
async fn what_is_not_what_it_is_called_is_not_kept() {
    let world = World::with_artifacts().await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let refused = send_as(&agent, b"Hello.", "Hello!").await;
    assert_eq!(refused.refused(422, "digest_mismatch")["found"], digest_of(b"Hello!"));
    // More than goes in one piece.
    send_as(&agent, b"Hello.", vec![7; 20_000_000]).await.refused(422, "digest_mismatch");
    eventually("nothing is left", async || world.artifact_files().is_empty()).await;
    assert_eq!(count(&world, "artifacts").await, 0);
    for name in ["x", "sha256:", &digest_of(b"x").to_uppercase(), &digest_of(b"x")[..70], "sha256%3A%00"] {
        let reply = agent.send(agent.request(Method::PUT, &format!("/artifacts/{name}")).body("x")).await;
        assert!([404, 422].contains(&reply.status), "{name}: {}", reply.text);
        agent.artifact(name).await.refused(404, "not_found");
    }
    // Who only knows the digest of what is there gets no access by sending something else under it.
    let (digest, sent) = agent.send_artifact("Hello.", "text/plain").await;
    sent.expect(201);
    send_as(&ada, b"Hello.", "Hello!").await.refused(422, "digest_mismatch");
    ada.artifact(&digest).await.refused(404, "not_found");
    assert_eq!(agent.artifact(&digest).await.text, "Hello.");
    let (_, sent) = ada.send_artifact("Hello.", "text/plain").await;
    sent.expect(200);
    assert_eq!(ada.artifact(&digest).await.text, "Hello.");
    let packed = agent.request(Method::PUT, &format!("/artifacts/{digest}")).header("content-encoding", "gzip");
    agent.send(packed.body("Hello.")).await.refused(415, "unsupported_media_type");
}

#[tokio::test]
async fn what_is_too_large_is_refused_before_and_while_it_comes() {
    let world = World::with(|settings| {
        keep_artifacts(settings);
        settings.artifacts.size_bytes_max = 10_000;
    })
    .await;
    let agent = world.agent().await;
    let fits = vec![7; 10_000];
    send_as(&agent, &fits, fits.clone()).await.expect(201);
    let large = vec![7; 10_001];
    let declared = send_as(&agent, &large, large.clone()).await;
    assert_eq!(declared.refused(413, "payload_too_large")["limit"], 10_000);
    let chunks = large.chunks(1_000).map(|chunk| Ok::<_, std::io::Error>(Bytes::copy_from_slice(chunk)));
    let stream = futures::stream::iter(chunks.collect::<Vec<_>>());
    send_as(&agent, &large, reqwest::Body::wrap_stream(stream)).await.refused(413, "payload_too_large");
    assert_eq!((count(&world, "artifacts").await, world.artifact_files().len()), (1, 1));
}

#[tokio::test]
async fn an_upload_that_is_cut_leaves_nothing() {
    let world = World::with_artifacts().await;
    let agent = world.agent().await;
    let address: SocketAddr = world.base.strip_prefix("http://").unwrap().parse().unwrap();
    // One that would have fit in one piece, and one of which a part is on disk already.
    for (declared, sent) in [(1_000, 10), (30_000_000, 18_000_000)] {
        let mut connection = tokio::net::TcpStream::connect(address).await.unwrap();
        let head = format!(
            "PUT /organizations/acme/artifacts/{} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-length: {declared}\r\n\r\n",
            digest_of(b"never whole"),
            agent.token()
        );
        connection.write_all(head.as_bytes()).await.unwrap();
        connection.write_all(&vec![7; sent]).await.unwrap();
        if declared > 1_000 {
            eventually("a part is on disk", async || !world.artifact_files().is_empty()).await;
        } else {
            eventually("it has begun", async || count(&world, "artifact_uploads").await == 1).await;
        }
        drop(connection);
        let abandoned = "SELECT count(*) FROM agent_runtime.artifact_uploads WHERE abandoned";
        eventually("it is given up", async || {
            sqlx::query_scalar::<_, i64>(abandoned).fetch_one(&world.db).await.unwrap() == 1
        })
        .await;
        eventually("nothing is on disk", async || world.artifact_files().is_empty()).await;
        let swept = world.service.sweep_artifacts(std::time::Duration::from_hours(1), 10).await.unwrap();
        assert_eq!((swept.removed, swept.cleared, swept.failed), (0, 1, 0));
        assert_eq!((count(&world, "artifacts").await, count(&world, "artifact_uploads").await), (0, 0));
    }
}

#[tokio::test]
async fn an_upload_that_never_ends_is_ended() {
    let world = World::with(|settings| {
        keep_artifacts(settings);
        settings.artifacts.upload_timeout_seconds = 1;
    })
    .await;
    let agent = world.agent().await;
    let stalled = futures::StreamExt::chain(
        futures::stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"Hel"))]),
        futures::stream::pending(),
    );
    send_as(&agent, b"Hello.", reqwest::Body::wrap_stream(stalled)).await.refused(503, "unavailable");
    assert_eq!((count(&world, "artifacts").await, world.artifact_files().len()), (0, 0));
    // It may come again.
    agent.send_artifact("Hello.", "text/plain").await.1.expect(201);
}

#[tokio::test]
async fn no_more_come_at_once_than_may() {
    let world = World::with(|settings| {
        keep_artifacts(settings);
        settings.artifacts.uploads_max = 1;
    })
    .await;
    let agent = world.agent().await;
    let stalled = reqwest::Body::wrap_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
    let put = agent.request(Method::PUT, &format!("/artifacts/{}", digest_of(b"stalled"))).body(stalled);
    let first = tokio::spawn(put.send());
    eventually("the first has begun", async || count(&world, "artifact_uploads").await == 1).await;
    let second = agent.send_artifact("Hello.", "text/plain").await.1;
    second.refused(503, "unavailable");
    assert!(second.header("retry-after").is_some());
    first.abort();
    eventually("its place is free", async || agent.send_artifact("Hello.", "text/plain").await.1.status < 300).await;
}

#[tokio::test]
async fn many_who_send_the_same_at_once_make_one_artifact() {
    let world = World::with_artifacts().await;
    let other = World::beside(&world).await;
    let (here, there) = (world.agent().await, other.agent().await);
    let large = vec![b'x'; 9_000_000];
    let all = (0..8).map(|n| {
        let (client, large) = (if n % 2 == 0 { &here } else { &there }, large.clone());
        async move { client.send_artifact(large, "text/plain").await.1.status }
    });
    let statuses = futures::future::join_all(all).await;
    assert_eq!(statuses.iter().filter(|status| **status == 201).count(), 1, "{statuses:?}");
    assert!(statuses.iter().all(|status| [200, 201].contains(status)), "{statuses:?}");
    assert_eq!((count(&world, "artifacts").await, count(&world, "artifact_uploads").await), (1, 0));
    assert_eq!(world.artifact_files().len(), 1);
}

#[tokio::test]
async fn without_a_store_there_are_no_artifacts() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (digest, sent) = agent.send_artifact("Hello.", "text/plain").await;
    sent.refused(409, "no_artifact_store");
    agent.artifact(&digest).await.refused(404, "not_found");
    assert_eq!(count(&world, "artifact_uploads").await, 0);
    assert_eq!(world.service.sweep_artifacts(std::time::Duration::ZERO, 10).await.unwrap(), ArtifactsSwept::default());
}
