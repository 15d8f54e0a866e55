use std::time::{Duration, Instant};

use super::stand_in::{Misfortune as M, options, serve};
use crate::replay::client::{As, Call, Client};
use crate::replay::{Fault, Options};

fn read(client: &Client) -> Call {
    Call::get(As::Agent, client.url(&["organizations", "acme", "agent-tasks", "T-1"]))
}

#[tokio::test]
async fn calls_are_repeated_while_the_server_is_away_or_busy() {
    let (known, options) = serve(&[("T-1", &[M::Status(503), M::Status(429), M::Status(500), M::Status(408)])]).await;
    let mut client = Client::new(&options).unwrap();
    let call = read(&client);
    assert_eq!(client.call(&call).await.unwrap()["short_id"], "T-1");
    assert_eq!(client.retries(), 4);
    assert_eq!(known.lock().unwrap().calls, ["token", "T-1", "T-1", "T-1", "T-1", "T-1"]);
}

#[tokio::test]
async fn refusals_are_not_repeated() {
    for status in [400, 403, 404, 409, 413, 422] {
        let (known, options) = serve(&[("T-1", &[M::Status(status)])]).await;
        let mut client = Client::new(&options).unwrap();
        let call = read(&client);
        let fault = client.call(&call).await.unwrap_err();
        assert_eq!(fault.code(), Some("misfortune"));
        assert_eq!(
            fault.to_string(),
            format!("GET /organizations/acme/agent-tasks/T-1: {status} misfortune: so it is")
        );
        assert_eq!(known.lock().unwrap().calls.len(), 2);
    }
}

#[tokio::test]
async fn a_server_that_stays_away_ends_the_patience() {
    // A port that was free a moment ago: nobody listens there.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let impatient = Options { patience: Duration::from_millis(500), ..options(&url) };
    let mut client = Client::new(&impatient).unwrap();
    let call = read(&client);
    let begun = Instant::now();
    let fault = client.call(&call).await.unwrap_err();
    assert!(matches!(&fault, Fault::Patience { .. }), "{fault}");
    assert!(fault.to_string().contains("POST /auth/token"), "{fault}");
    assert!(begun.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn a_wait_that_is_longer_than_the_patience_is_not_begun() {
    let (_, options) = serve(&[("T-1", &[M::Status(503); 100])]).await;
    let mut client = Client::new(&Options { patience: Duration::ZERO, ..options }).unwrap();
    let call = read(&client);
    assert!(matches!(client.call(&call).await, Err(Fault::Patience { .. })));
}

#[tokio::test]
async fn a_refused_token_is_renewed_once() {
    let (known, options) = serve(&[("T-1", &[M::Status(401)])]).await;
    let mut client = Client::new(&options).unwrap();
    let call = read(&client);
    client.call(&call).await.unwrap();
    assert_eq!(known.lock().unwrap().calls, ["token", "T-1", "token", "T-1"]);

    let (known, options) = serve(&[("T-1", &[M::Status(401), M::Status(401)])]).await;
    let mut client = Client::new(&options).unwrap();
    let call = read(&client);
    assert!(matches!(client.call(&call).await, Err(Fault::Refused { status: 401, .. })));
    assert_eq!(known.lock().unwrap().calls, ["token", "T-1", "token", "T-1"]);
}

#[tokio::test]
async fn wrong_credentials_end_at_once() {
    let (known, options) = serve(&[]).await;
    let mut client = Client::new(&Options { client_secret: "wrong".to_owned(), ..options.clone() }).unwrap();
    let call = read(&client);
    assert!(matches!(client.call(&call).await, Err(Fault::Refused { status: 401, .. })));
    let mut client = Client::new(&Options { token: "expired".to_owned(), ..options }).unwrap();
    let url = client.url(&["organizations", "acme", "agent-tasks", ""]);
    let create = Call::post(As::Person, url, Some("{}".to_owned())).with_key("k".to_owned());
    let fault = client.call(&create).await.unwrap_err().to_string();
    assert_eq!(fault, "POST /organizations/acme/agent-tasks/: 401 unauthenticated: so it is");
    assert_eq!(known.lock().unwrap().calls, ["token", "agent-tasks"]);
}

#[tokio::test]
async fn an_address_that_is_none_is_told() {
    for url in ["", "127.0.0.1:8080", "ftp://host", "mailto:a@b", "http://"] {
        assert!(matches!(Client::new(&options(url)), Err(Fault::Options(_))), "{url}");
    }
    let client = Client::new(&options("http://127.0.0.1:1/base/")).unwrap();
    assert_eq!(client.url(&["a", "b/c", ""]).path(), "/base/a/b%2Fc/");
}
