//! What a server writes into its own log while it is used, attacked and refused: no secret, and no line that a client
//! composed.

use std::time::Duration;

use base64::Engine as _;
use mandate::auth::mint::PersonMint;
use reqwest::Method;
use serde_json::{Map, json};

use crate::process::Process;
use crate::support::{Client, World};

/// A token of a known shape that was never one.
fn provider_key() -> String {
    format!("ghp_{}", "a1B2".repeat(9))
}

/// What only who may use a token should have of it.
fn signature(token: &str) -> String {
    token.rsplit('.').next().unwrap().to_owned()
}

async fn texts(calls: impl IntoIterator<Item = reqwest::RequestBuilder>) -> Vec<String> {
    let mut texts = Vec::new();
    for call in calls {
        let answer = call.send().await.unwrap();
        let headers = format!("{:?}", answer.headers());
        texts.push(format!("{headers} {}", answer.text().await.unwrap()));
    }
    texts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_secret_reaches_the_log_or_an_answer_however_much_is_logged() {
    let world = World::new().await;
    let process = Process::start(&world, &[("MANDATE_TELEMETRY__LOG_FILTER", "trace")]).await;
    let agent = world.agent().await.at(&process.base);
    let (task, session) = world.working(&agent).await;
    let seed = &world.seed.agent;
    let (id, secret, key) = (&seed.client_id, &seed.client_secret, provider_key());
    let forged = format!("{}x{}", &agent.token()[..agent.token().len() - 8], "AAAAAAA");
    let anyone = world.anyone().at(&process.base);
    let buy = |fields: &[(&str, &str)]| anyone.request(Method::POST, "//auth/token").form(fields);
    let grant = ("grant_type", "client_credentials");

    // The one answer that must have a secret: the token itself.
    let bought = buy(&[grant, ("client_id", id), ("client_secret", secret)]).send().await.unwrap();
    let bought: serde_json::Value = bought.json().await.unwrap();
    let bought = bought["access_token"].as_str().unwrap().to_owned();
    let events = format!("/agent-tasks/{task}/events");
    let event = |words: &str| json!({"session_id": session, "events": [{"type": "turn", "payload": {"body": words}}]});
    let post = |client: &Client, body: String| {
        client.request(Method::POST, &events).header("content-type", "application/json").body(body)
    };
    let answers = texts([
        buy(&[grant]).basic_auth(id, Some(secret)),
        buy(&[("grant_type", secret.as_str()), ("client_id", id), ("client_secret", secret)]),
        buy(&[grant, ("client_id", secret), ("client_secret", secret)]),
        buy(&[grant, ("client_id", id), ("client_secret", secret), ("client_secret", secret)]),
        post(&agent, event(&format!("export TOKEN={key}")).to_string()),
        // Refused, and the reason must not quote it.
        post(&agent, format!("{{\"events\": [{{\"type\": \"turn\", \"payload\": {{\"body\": \"{key}")),
        post(&agent, json!({"events": [{"type": "turn", "payload": {"body": 7}, key.as_str(): key}]}).to_string()),
        post(&agent, json!({"session_id": key, "events": []}).to_string()),
        post(&world.bearer(&forged).at(&process.base), event("Let me in.").to_string()),
        agent.request(Method::GET, &format!("/agent-tasks/{task}?access_token={bought}")),
        agent.request(Method::GET, &format!("/agent-tasks/{key}")),
        agent.request(Method::GET, &format!("{events}?after={key}")).header("x-request-id", "the-last-one"),
    ])
    .await;
    process.wait_for("the-last-one").await;
    let log = process.log();
    assert!(log.contains(" DEBUG ") && log.contains("sqlx::query"), "the log is not at its fullest: {log}");
    // Quoted back to who sent it wrong is fine; a log is read by others.
    for (what, secret) in [
        ("the client's secret", secret.clone()),
        ("a token", signature(agent.token())),
        ("a token", signature(&bought)),
        ("what was no token", signature(&forged)),
        ("a key in an event", key.clone()),
        ("the password of the database", password(&world.database_url)),
    ] {
        let line = log.lines().find(|line| line.contains(&secret));
        assert_eq!(line, None, "{what} is in the log");
    }
    for answer in &answers[1..] {
        for secret in [secret, &signature(agent.token()), &signature(&bought), &signature(&forged)] {
            assert!(!answer.contains(secret.as_str()), "{answer}");
        }
    }
}

/// The password in a database's URL.
fn password(url: &str) -> String {
    let url = url::Url::parse(url).unwrap();
    // Without one, the URL itself is looked for.
    url.password().map_or_else(|| format!("{}@", url.username()), str::to_owned)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_secret_of_the_settings_reaches_the_log_when_what_they_name_is_away() {
    const SECRET: &str = "hunter22hunter22";
    const ISSUER: &str = "https://login.example.com";
    let world = World::new().await;
    // Nothing listens on port 1.
    let issuer = |name: &str, url: &str| {
        format!(
            "{{issuer = \"{name}\", jwks_url = \"{url}\", allow_http_jwks = true, audience = \"mandate\", \
             algorithms = [\"EdDSA\"]}}"
        )
    };
    let by_query = issuer(ISSUER, &format!("http://127.0.0.1:1/keys?apikey={SECRET}"));
    let by_password = issuer("https://b.example.com", &format!("http://login:{SECRET}@127.0.0.1:1/keys"));
    let stream = format!("kafka://127.0.0.1:1/?sasl.username=m&sasl.password={SECRET}&debug=all");
    let process = Process::start(
        &world,
        &[
            ("MANDATE_TELEMETRY__LOG_FILTER", "trace"),
            ("MANDATE_AUTH__ISSUERS", &format!("[{by_query}, {by_password}]")),
            ("MANDATE_LOG__STORE_URL", &format!("clickhouse://mandate:{SECRET}@127.0.0.1:1/log")),
            ("MANDATE_LOG__STREAM_URL", &stream),
            ("MANDATE_ARTIFACTS__STORE_URL", "s3://bucket/prefix"),
            ("MANDATE_ARTIFACTS__S3_ENDPOINT", "http://127.0.0.1:1"),
            ("MANDATE_ARTIFACTS__S3_ACCESS_KEY_ID", "the-id-of-the-key"),
            ("MANDATE_ARTIFACTS__S3_SECRET_ACCESS_KEY", SECRET),
        ],
    )
    .await;
    let agent = world.agent().await.at(&process.base);
    let (task, session) = world.working(&agent).await;
    agent.say(&task, &session, "Is anybody there?").await.expect(201);
    agent.send_artifact("Hello.", "text/plain").await.1.refused(503, "unavailable");
    let key = PersonMint::generate().unwrap();
    let token = key.mint("ada", ISSUER, "mandate", Duration::from_hours(1), Map::new(), world.now());
    world.bearer(&token).at(&process.base).get("/agent-tasks/").await.refused(503, "unavailable");
    // Each of them has said why it cannot do its work.
    for words in [
        "an issuer's keys could not be fetched",
        "the permanent log is not prepared yet",
        "kafka client",
        "the artifact store is unavailable",
    ] {
        process.wait_for(words).await;
    }
    let log = process.log();
    let basic = base64::engine::general_purpose::STANDARD.encode(format!("login:{SECRET}"));
    for secret in [SECRET, &basic] {
        let line = log.lines().find(|line| line.contains(secret));
        assert_eq!(line, None, "a secret of the settings is in the log");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_client_begins_a_line_of_the_log() {
    let world = World::new().await;
    let process = Process::start(&world, &[("MANDATE_TELEMETRY__LOG_FILTER", "mandate=trace")]).await;
    let agent = world.agent().await.at(&process.base);
    let (task, session) = world.working(&agent).await;
    let forged = "\nFORGED line\r\nFORGED \u{1b}[31mred";
    let name = format!("name {forged}");
    for body in [
        json!({"session_id": session, "events": [{"type": "turn", "payload": {"body": forged}}]}),
        json!({"session_id": session, "events": [{"type": forged, "payload": {"body": "x"}}]}),
        json!({name.as_str(): 1, "events": []}),
        json!({"session_id": forged, "events": [{"type": "turn", "payload": {"body": "x"}}]}),
    ] {
        agent.post(&format!("/agent-tasks/{task}/events"), &body).await;
    }
    agent.post_raw(&format!("/agent-tasks/{task}/events"), format!("{{\"events\": {forged}")).await;
    let path = "%0AFORGED%0D%0AFORGED";
    agent.get(&format!("/agent-tasks/{path}")).await;
    agent.get(&format!("/agent-tasks/?q={path}&cursor={path}")).await;
    agent.get(&format!("/{path}")).await;
    for header in ["x-request-id", "traceparent", "user-agent", "prefer", "if-none-match"] {
        let value = reqwest::header::HeaderValue::from_bytes(b"\tFORGED \xff\xfe").unwrap();
        agent.send(agent.request(Method::GET, &format!("/agent-tasks/{task}")).header(header, value)).await;
    }
    let last = agent.request(Method::GET, "/agent-tasks/none").header("x-request-id", "the-last-one");
    agent.send(last).await.refused(404, "task_not_found");
    process.wait_for("the-last-one").await;
    let log = process.log();
    for line in log.lines() {
        let starts = line.trim_start().as_bytes().first().is_some_and(u8::is_ascii_digit);
        assert!(starts && !line.contains('\u{1b}'), "{line:?}");
    }
}
