//! Case 44 and its family: keys are found when they are rotated, and the issuer is left alone otherwise.

use std::sync::Arc;

use axum::http::StatusCode;
use futures::future::join_all;
use serde_json::json;

use super::super::Refusal;
use super::super::issuers::{FIRST_FETCH_RETRY, KEY_MAX_AGE, MAX_KEY_SET_BYTES};
use super::server::{Answer, KeyServer};
use super::*;

pub(super) fn people_at(server: &KeyServer) -> Arc<PersonIssuers> {
    Arc::new(people(config(&json!({ "jwks_url": server.url }))))
}

/// A token that is good but for its key, which nobody knows.
fn random_kid(n: usize) -> String {
    let header = json!({ "alg": "EdDSA", "kid": format!("random-{n}") });
    forge(&header, &good_claims(), |_| vec![0; 64])
}

pub(super) fn long_token(key: &PersonMint) -> String {
    key.mint("Alice", ISSUER, AUDIENCE, HOUR * 24, Map::new(), now())
}

/// `count` tokens with random kids at once, all refused.
pub(super) async fn flood(people: &Arc<PersonIssuers>, count: usize, at: Timestamp) {
    let tasks = (0..count).map(|n| {
        let people = Arc::clone(people);
        tokio::spawn(async move { people.verify(&random_kid(n), at).await })
    });
    for result in join_all(tasks).await {
        assert_eq!(refusal(result.unwrap()), Refusal::Signature);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_key_works_after_one_fetch_and_random_kids_cause_no_more() {
    let (old, new) = (PersonMint::generate().unwrap(), PersonMint::generate().unwrap());
    let server = KeyServer::start(old.jwks()).await;
    let people = people_at(&server);
    for _ in 0..10 {
        assert_eq!(person(people.verify(&long_token(&old), now()).await.unwrap()), "alice");
    }
    assert_eq!(server.asked(), 1);

    server.answer(new.jwks());
    assert_eq!(person(people.verify(&long_token(&new), after(1)).await.unwrap()), "alice");
    assert_eq!(server.asked(), 2);
    assert_eq!(refusal(people.verify(&long_token(&old), after(1)).await), Refusal::Signature);

    flood(&people, 1_000, after(2)).await;
    flood(&people, 10, after(60)).await;
    assert_eq!(server.asked(), 2);
    assert!(people.verify(&long_token(&new), after(60)).await.is_ok());

    // The cool-down began with the fetch at second 1 and is measured by the callers' clock.
    flood(&people, 1_000, after(61)).await;
    assert_eq!(server.asked(), 3);
    flood(&people, 10, after(120)).await;
    assert_eq!(server.asked(), 3);
    flood(&people, 10, after(121)).await;
    assert_eq!(server.asked(), 4);
    assert!(people.verify(&long_token(&new), after(121)).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_strangers_at_the_start_cause_one_fetch() {
    let key = PersonMint::generate().unwrap();
    let server = KeyServer::start(key.jwks()).await;
    let people = people_at(&server);
    people.preload(now()).await;
    assert_eq!(server.asked(), 1);
    people.preload(now()).await;
    assert_eq!(server.asked(), 1);
    flood(&people, 1_000, now()).await;
    assert_eq!(server.asked(), 2);

    // Nobody preloaded, and all of them wait for the one first fetch.
    let server = KeyServer::start_gated(key.jwks()).await;
    let people = people_at(&server);
    let barrier = Arc::new(tokio::sync::Barrier::new(51));
    let tasks: Vec<_> = (0..50)
        .map(|n| {
            let (people, barrier) = (Arc::clone(&people), Arc::clone(&barrier));
            tokio::spawn(async move {
                let token = random_kid(0);
                // Their clocks differ by more than any waiting time, and the one fetch is everybody's all the same.
                let verify = people.verify(&token, after(n * 2));
                tokio::pin!(verify);
                // Polled once, it has seen that there are no keys.
                assert!(futures::poll!(&mut verify).is_pending());
                barrier.wait().await;
                verify.await
            })
        })
        .collect();
    server.until_asked().await;
    barrier.wait().await;
    server.open();
    for result in join_all(tasks).await {
        assert_eq!(refusal(result.unwrap()), Refusal::Signature);
    }
    assert_eq!(server.asked(), 1);
}

#[tokio::test]
async fn tokens_that_are_refused_anyway_cause_no_fetch() {
    let key = PersonMint::generate().unwrap();
    let server = KeyServer::start(key.jwks()).await;
    let people = people_at(&server);
    for claims in
        [json!({ "exp": 1 }), json!({ "aud": "other" }), json!({ "iss": "other" }), json!({ "nbf": second(999) })]
    {
        assert!(people.verify(&mint(&key, claims), now()).await.is_err());
    }
    let unlisted = forge(&json!({ "alg": "PS512", "kid": "x" }), &good_claims(), |_| vec![]);
    assert!(people.verify(&unlisted, now()).await.is_err());
    assert_eq!(server.asked(), 0);
}

#[tokio::test]
async fn old_keys_stay_in_use_when_a_fetch_fails() {
    let (old, new) = (PersonMint::generate().unwrap(), PersonMint::generate().unwrap());
    let server = KeyServer::start(old.jwks()).await;
    let people = people_at(&server);
    assert!(people.verify(&long_token(&old), now()).await.is_ok());

    let huge = {
        let mut body = new.jwks().to_string().into_bytes();
        body.resize(MAX_KEY_SET_BYTES + 1, b' ');
        Answer::Body(body)
    };
    let elsewhere = server.url.replace("jwks.json", "elsewhere");
    let bad = [
        Answer::Status(StatusCode::INTERNAL_SERVER_ERROR),
        Answer::Status(StatusCode::NOT_FOUND),
        Answer::Status(StatusCode::NO_CONTENT),
        Answer::Body(b"<html>".to_vec()),
        Answer::Body(b"{\"keys\":7}".to_vec()),
        Answer::Redirect(elsewhere),
        Answer::Redirect("file:///etc/passwd".to_owned()),
        Answer::Endless,
        huge,
    ];
    let mut at = 0;
    for (n, answer) in bad.into_iter().enumerate() {
        at += 60;
        server.answer(answer);
        assert_eq!(refusal(people.verify(&long_token(&new), after(at)).await), Refusal::Signature);
        assert_eq!(server.asked(), n + 2);
        assert!(people.verify(&long_token(&old), after(at)).await.is_ok());
    }
    assert_eq!(server.asked_elsewhere(), 0);

    // As large as is allowed.
    let mut body = new.jwks().to_string().into_bytes();
    body.resize(MAX_KEY_SET_BYTES, b' ');
    server.answer(Answer::Body(body));
    assert!(people.verify(&long_token(&new), after(at + 60)).await.is_ok());
}

#[tokio::test]
async fn an_issuer_that_was_never_reached_is_unavailable() {
    let key = PersonMint::generate().unwrap();
    let server = KeyServer::start(Answer::Status(StatusCode::BAD_GATEWAY)).await;
    let people = people_at(&server);
    let retry = FIRST_FETCH_RETRY.as_secs();
    for (at, asked, wait) in [(0, 1, retry), (1, 1, retry - 1), (retry - 1, 1, 1), (retry, 2, retry)] {
        match people.verify(&long_token(&key), after(at)).await {
            Err(error @ TokenError::Unavailable { retry_after, .. }) => {
                assert_eq!(retry_after, Duration::from_secs(wait));
                assert!(!error.to_string().contains("login"));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(server.asked(), asked);
    }
    server.answer(key.jwks());
    assert!(people.verify(&long_token(&key), after(retry + 1)).await.is_err());
    assert!(people.verify(&long_token(&key), after(2 * retry)).await.is_ok());
    assert_eq!(server.asked(), 3);
}

#[tokio::test]
async fn a_server_that_does_not_answer_in_time_is_given_up() {
    let key = PersonMint::generate().unwrap();
    let server = KeyServer::start_gated(key.jwks()).await;
    let http = HttpSettings { timeout: Duration::from_millis(50), ..HttpSettings::default() };
    let configs = vec![config(&json!({ "jwks_url": server.url }))];
    let people = PersonIssuers::new(configs, DEFAULT_COOLDOWN, http).unwrap();
    let error = people.verify(&long_token(&key), now()).await.unwrap_err();
    assert!(matches!(error, TokenError::Unavailable { .. }), "{error:?}");
}

#[tokio::test]
async fn old_keys_are_fetched_again_and_withdrawn_ones_end() {
    let (old, new) = (PersonMint::generate().unwrap(), PersonMint::generate().unwrap());
    let server = KeyServer::start(old.jwks()).await;
    let people = people_at(&server);
    let age = KEY_MAX_AGE.as_secs();
    assert!(people.verify(&long_token(&old), now()).await.is_ok());
    server.answer(new.jwks());
    assert!(people.verify(&long_token(&old), after(age - 1)).await.is_ok());
    assert_eq!(server.asked(), 1);
    assert_eq!(refusal(people.verify(&long_token(&old), after(age)).await), Refusal::Signature);
    assert_eq!(server.asked(), 2);

    // While the server is away, it is asked once per cool-down, and its keys stay.
    server.answer(Answer::Status(StatusCode::SERVICE_UNAVAILABLE));
    for at in [2 * age, 2 * age + 1, 2 * age + 59] {
        assert!(people.verify(&long_token(&new), after(at)).await.is_ok());
        assert_eq!(server.asked(), 3);
    }
    assert!(people.verify(&long_token(&new), after(2 * age + 60)).await.is_ok());
    assert_eq!(server.asked(), 4);
}

#[tokio::test]
async fn a_client_that_hangs_up_does_not_end_the_fetch() {
    let key = PersonMint::generate().unwrap();
    let server = KeyServer::start_gated(key.jwks()).await;
    let people = people_at(&server);
    let verify = {
        let (people, token) = (Arc::clone(&people), long_token(&key));
        tokio::spawn(async move { people.verify(&token, now()).await })
    };
    server.until_asked().await;
    verify.abort();
    assert!(verify.await.unwrap_err().is_cancelled());
    server.open();
    assert!(people.verify(&long_token(&key), now()).await.is_ok());
    assert_eq!(server.asked(), 1);
}

#[tokio::test]
async fn known_keys_do_not_wait_for_a_search() {
    let (old, new) = (PersonMint::generate().unwrap(), PersonMint::generate().unwrap());
    let server = KeyServer::start_gated(old.jwks()).await;
    let people = people_at(&server);
    let search = |token: String| {
        let people = Arc::clone(&people);
        tokio::spawn(async move { people.verify(&token, now()).await })
    };
    let first = search(long_token(&old));
    server.until_asked().await;
    server.open_once();
    assert!(first.await.unwrap().is_ok());

    server.answer(new.jwks());
    let searching = search(long_token(&new));
    server.until_asked().await;
    assert!(people.verify(&long_token(&old), now()).await.is_ok());
    // A second token under the new key joins the fetch in flight, although its cool-down has begun.
    let token = long_token(&new);
    let joining = people.verify(&token, now());
    tokio::pin!(joining);
    assert!(futures::poll!(&mut joining).is_pending());
    server.open_once();
    assert!(searching.await.unwrap().is_ok());
    assert!(joining.await.is_ok());
    assert_eq!(server.asked(), 2);
}

#[tokio::test]
async fn a_key_file_that_changes_is_read_again() {
    let (old, new) = (PersonMint::generate().unwrap(), PersonMint::generate().unwrap());
    let (people, folder) = people_of(&old, json!({}));
    assert!(people.verify(&long_token(&old), now()).await.is_ok());
    std::fs::write(folder.path().join("keys"), new.jwks().to_string()).unwrap();
    assert!(people.verify(&long_token(&new), now()).await.is_ok());
    std::fs::remove_file(folder.path().join("keys")).unwrap();
    assert!(people.verify(&long_token(&new), after(3600)).await.is_ok());
}
