//! The form of calls and answers: bad bodies, methods and routes, request ids, CORS.

use bytes::Bytes;
use futures::stream;
use http_body_util::StreamBody;
use hyper::body::Frame;
use reqwest::Method;
use reqwest::header::{ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_ORIGIN};
use serde_json::json;

use crate::support::{Client, Reply, World};

async fn with_type(client: &Client, path: &str, media_type: Option<&str>, body: &'static str) -> Reply {
    let mut request = client.request(Method::POST, path).body(body);
    if let Some(media_type) = media_type {
        request = request.header("content-type", media_type);
    }
    client.send(request).await
}

/// A body that creates a task.
const FINE: &str = r#"{"agent_slug":"reviewer","title":"t","description":""}"#;

#[tokio::test]
async fn a_body_that_is_no_json_is_refused() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let task = world.task().await;
    let before = world.footprint().await;
    let bad = ["{", "{}x", "{'a':1}", "[1,]", "nul", "01", "{\"a\":1,}", " ", "\u{feff}{}", "\"a\nb\"", "{\"a\":NaN}"];
    for text in bad {
        ada.post_raw("/agent-tasks/", text).await.refused(400, "invalid_json");
        agent.post_raw(&format!("/agent-tasks/{task}/events"), text).await.refused(400, "invalid_json");
        ada.post_raw(&format!("/agent-tasks/{task}/pause"), text).await.refused(400, "invalid_json");
    }
    // Where a member is required the body is, too.
    let (people, harness) = (["reassign", "reply"], ["sessions", "events", "usage", "requests", "outcome"]);
    for (caller, routes) in [(&ada, people.as_slice()), (&agent, &harness)] {
        for route in routes {
            let path = format!("/agent-tasks/{task}/{route}");
            caller.post_nothing(&path).await.refused(400, "invalid_json");
            caller.post_raw(&path, "").await.refused(400, "invalid_json");
        }
    }
    ada.post_nothing("/agent-tasks/").await.refused(400, "invalid_json");
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn a_body_is_application_json() {
    let world = World::new().await;
    let ada = world.person("ada");
    let before = world.footprint().await;
    for media_type in [None, Some("text/plain"), Some("application/x-www-form-urlencoded"), Some("text/json"), Some("")]
    {
        let reply = with_type(&ada, "/agent-tasks/", media_type, FINE).await;
        reply.refused(415, "unsupported_media_type");
    }
    let packed = ada.request(Method::POST, "/agent-tasks/").header("content-type", "application/json");
    let packed = packed.header("content-encoding", "gzip").body(FINE);
    ada.send(packed).await.refused(415, "unsupported_media_type");
    assert_eq!(world.footprint().await, before);
    for media_type in
        ["application/json", "application/json; charset=utf-8", "Application/JSON", "application/vnd.acme+json"]
    {
        with_type(&ada, "/agent-tasks/", Some(media_type), FINE).await.expect(201);
    }
    // A call without a body needs no type, and is not hurt by one.
    ada.post_nothing("/agent-tasks/T-1/pause").await.expect(200);
    with_type(&ada, "/agent-tasks/T-1/resume", Some("text/plain"), "").await.expect(200);
    with_type(&ada, "/agent-tasks/T-1/cancel", Some("application/json"), "null").await.expect(200);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_and_the_answer_arrives() {
    let world = World::with(|settings| settings.server.body_limit_bytes = 65_536).await;
    let ada = world.person("ada");
    let fits = |bytes: usize| format!("{FINE}{}", " ".repeat(bytes - FINE.len()));
    ada.post_raw("/agent-tasks/", fits(65_536)).await.expect(201);
    let before = world.footprint().await;
    for bytes in [65_537, 100_000, 20_000_000] {
        let reply = ada.post_raw("/agent-tasks/", fits(bytes)).await;
        assert_eq!(reply.refused(413, "payload_too_large")["limit"], 65_536, "{bytes}");
    }
    assert_eq!(world.footprint().await, before);
}

/// A body in chunks, which does not say how long it is.
fn chunked(text: &str) -> reqwest::Body {
    let chunk = |bytes: &[u8]| Ok::<_, std::io::Error>(Frame::data(Bytes::copy_from_slice(bytes)));
    let chunks: Vec<_> = text.as_bytes().chunks(8_192).map(chunk).collect();
    reqwest::Body::wrap(StreamBody::new(stream::iter(chunks)))
}

#[tokio::test]
async fn a_body_over_the_limit_that_does_not_say_how_long_it_is_is_refused_too() {
    let world = World::with(|settings| settings.server.body_limit_bytes = 65_536).await;
    let (ada, agent, task) = (world.person("ada"), world.agent().await, world.task().await);
    let request = agent.ask(&task, &[]).await;
    let fits = |bytes: usize| chunked(&format!("{FINE}{}", " ".repeat(bytes - FINE.len())));
    let send = |client: &Client, method: &Method, path: &str, bytes: usize| {
        let request = client.request(method.clone(), path).header("content-type", "application/json");
        let (client, request) = (client.clone(), request.body(fits(bytes)));
        async move { client.send(request).await }
    };
    send(&ada, &Method::POST, "/agent-tasks/", 65_536).await.expect(201);
    let on = |route: &str| format!("/agent-tasks/{task}/{route}");
    let before = world.footprint().await + &world.directory_footprint().await;
    for (client, method, path) in [
        (&ada, Method::POST, "/agent-tasks/".to_owned()),
        (&ada, Method::POST, on("pause")),
        (&ada, Method::POST, on("cancel")),
        (&ada, Method::POST, on("reply")),
        (&ada, Method::POST, on(&format!("requests/{request}/resolve"))),
        (&ada, Method::PUT, "/members/grace".to_owned()),
        (&ada, Method::PUT, "/agents/reviewer".to_owned()),
        (&agent, Method::POST, on("sessions")),
        (&agent, Method::POST, on("events")),
        (&agent, Method::POST, on("usage")),
        (&agent, Method::POST, on("requests")),
        (&agent, Method::POST, on("children")),
        (&agent, Method::POST, on("outcome")),
    ] {
        for bytes in [65_537, 1_000_000] {
            let reply = send(client, &method, &path, bytes).await;
            assert_eq!(reply.refused(413, "payload_too_large")["limit"], 65_536, "{method} {path} {bytes}");
        }
    }
    assert_eq!(world.footprint().await + &world.directory_footprint().await, before);
}

#[tokio::test]
async fn an_id_that_is_none_answers_like_one_that_does_not_exist() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let task = world.task().await;
    let before = world.footprint().await;
    for name in ["T-99", "T-0", "T-01", "T--1", "T-", "1", "T-9223372036854775808", "x", "T-1%2F"] {
        ada.get(&format!("/agent-tasks/{name}")).await.refused(404, "task_not_found");
    }
    for id in ["01890a5d-ac96-774b-bcce-b302099a8057", "s1", "T-1"] {
        let session = format!("/agent-tasks/{task}/sessions/{id}");
        agent.post_nothing(&format!("{session}/heartbeat")).await.refused(404, "session_not_found");
        agent.post(&format!("{session}/close"), &json!({"reason": "r"})).await.refused(404, "session_not_found");
        let request = format!("/agent-tasks/{task}/requests/{id}");
        agent.post_nothing(&format!("{request}/withdraw")).await.refused(404, "request_not_found");
        let resolve = json!({"status": "answered", "answer": "a"});
        ada.post(&format!("{request}/resolve"), &resolve).await.refused(404, "request_not_found");
    }
    let usage = json!({"idempotency_key": "u", "model_id": "m", "corrects": "x", "session_id": 7});
    let reply = agent.post(&format!("/agent-tasks/{task}/usage"), &usage).await;
    // The session ranks before the rest of the body.
    reply.invalid_at(&["/session_id"]);
    ada.get("/agent-tasks/?agent_id=x&project_id=y").await.invalid_at(&["agent_id", "project_id"]);
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn an_unknown_route_is_a_problem_whoever_asks() {
    let world = World::new().await;
    for client in [world.anyone(), world.person("ada")] {
        for path in ["//", "//nothing/here", "/nothing", "/agent-tasks/T-1/nothing", "//organizations"] {
            client.get(path).await.refused(404, "not_found");
        }
    }
}

#[tokio::test]
async fn a_wrong_method_names_the_right_ones() {
    let world = World::new().await;
    let ada = world.person("ada");
    let task = world.task().await;
    let routes = [
        (Method::DELETE, "/agent-tasks/".to_owned(), vec!["GET", "HEAD", "POST"]),
        (Method::PUT, format!("/agent-tasks/{task}"), vec!["GET", "HEAD"]),
        (Method::GET, format!("/agent-tasks/{task}/pause"), vec!["POST"]),
        (Method::PATCH, format!("/agent-tasks/{task}/events"), vec!["GET", "HEAD", "POST"]),
        (Method::POST, "//healthz".to_owned(), vec!["GET", "HEAD"]),
        (Method::GET, "//auth/token".to_owned(), vec!["POST"]),
    ];
    for (method, path, allowed) in routes {
        let reply = ada.send(ada.request(method, &path)).await;
        reply.refused(405, "method_not_allowed");
        let mut allow: Vec<_> = reply.header("allow").unwrap().split(',').map(str::trim).collect();
        allow.sort_unstable();
        assert_eq!(allow, allowed, "{path}");
    }
}

#[tokio::test]
async fn head_answers_like_get_without_the_body() {
    let world = World::new().await;
    let (ada, task) = (world.person("ada"), world.task().await);
    for (path, status) in [(format!("/agent-tasks/{task}"), 200), ("/agent-tasks/T-99".to_owned(), 404)] {
        let head = ada.request(Method::HEAD, &path).send().await.unwrap();
        let get = ada.get(&path).await;
        assert_eq!((head.status().as_u16(), get.status), (status, status));
        assert_eq!(head.headers()["content-type"].to_str().unwrap(), get.header("content-type").unwrap());
        assert!(head.headers().contains_key("x-request-id"));
        assert_eq!(head.bytes().await.unwrap().len(), 0);
    }
}

#[tokio::test]
async fn a_request_id_is_echoed_or_made() {
    let world = World::new().await;
    let ada = world.person("ada");
    let ask = |path: &'static str, id: Vec<u8>| {
        let ada = ada.clone();
        async move {
            let id = reqwest::header::HeaderValue::from_bytes(&id).unwrap();
            ada.send(ada.request(Method::GET, path).header("x-request-id", id)).await
        }
    };
    for id in ["a", "req-1/2:3", &"x".repeat(128)] {
        for path in ["/agent-tasks/", "/agent-tasks/T-99", "/nothing"] {
            assert_eq!(ask(path, id.into()).await.header("x-request-id"), Some(id));
        }
    }
    let mut made = Vec::new();
    for id in [b"".to_vec(), b"two words".to_vec(), vec![b'x'; 129], "é".as_bytes().to_vec()] {
        let reply = ask("/agent-tasks/T-99", id).await;
        made.push(uuid::Uuid::parse_str(reply.header("x-request-id").unwrap()).unwrap());
    }
    made.dedup();
    assert_eq!(made.len(), 4);
}

#[tokio::test]
async fn web_pages_of_the_configured_origins_may_call() {
    let origin = "https://app.example.com";
    let world = World::with(|settings| settings.server.cors_origins = vec![origin.to_owned()]).await;
    let ada = world.person("ada");
    let asked = "authorization,content-type,idempotency-key,if-match,if-none-match,last-event-id,prefer";
    let preflight = |from: &'static str| {
        ada.request(Method::OPTIONS, "/agent-tasks/")
            .header("origin", from)
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", asked)
            .send()
    };
    let allowed = preflight(origin).await.unwrap();
    assert_eq!(allowed.status(), 200);
    assert_eq!(allowed.headers()[ACCESS_CONTROL_ALLOW_ORIGIN], origin);
    // `*` would not cover Authorization.
    let headers = allowed.headers()[ACCESS_CONTROL_ALLOW_HEADERS].to_str().unwrap().to_lowercase();
    for name in asked.split(',') {
        assert!(headers.split(',').any(|known| known.trim() == name), "{name} is not in {headers}");
    }
    assert!(allowed.headers().contains_key("access-control-allow-methods"));
    let foreign = preflight("https://evil.example.com").await.unwrap();
    assert_eq!(foreign.headers().get(ACCESS_CONTROL_ALLOW_ORIGIN), None);
    // `*` covers every header of an answer for calls without cookies, ETag and Link too.
    // Refusals carry it too, or the page could not read why.
    for path in ["/agent-tasks/", "/agent-tasks/T-99", "/nothing"] {
        let reply = ada.send(ada.request(Method::GET, path).header("origin", origin)).await;
        assert_eq!(reply.header("access-control-allow-origin"), Some(origin), "{path}");
        assert_eq!(reply.header("access-control-expose-headers"), Some("*"), "{path}");
    }
    let closed = World::new().await;
    let reply = closed.anyone().send(closed.anyone().request(Method::GET, "//healthz").header("origin", origin)).await;
    assert_eq!(reply.header("access-control-allow-origin"), None);
}

#[tokio::test]
async fn limits_can_be_lowered_by_settings() {
    let world = World::with(|settings| {
        settings.limits.batch_events_max = 2;
        settings.limits.payload_bytes_max = 1_024;
        settings.limits.page_size_max = 1;
        settings.limits.events_page_max = 2;
    })
    .await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let task = world.task().await;
    world.task().await;
    let turn = |body: String| json!({"type": "turn", "payload": {"body": body}});
    let three = json!([turn("a".into()), turn("b".into()), turn("c".into())]);
    agent.append(&task, three).await.refused(422, "invalid_body");
    let large = agent.append(&task, json!([turn("x".repeat(1_024))])).await;
    assert_eq!(large.refused(413, "payload_too_large")["limit"], 1_024);
    agent.append(&task, json!([turn("a".into()), turn("b".into())])).await.expect(201);
    let page = ada.get("/agent-tasks/").await;
    assert_eq!(page.expect(200).as_array().unwrap().len(), 1);
    assert!(page.next().is_some());
    ada.get("/agent-tasks/?limit=2").await.refused(422, "invalid_body");
    let log = ada.get(&format!("/agent-tasks/{task}/events")).await;
    assert_eq!(log.expect(200).as_array().unwrap().len(), 2);
}
