//! Keys that grow old, clocks that are set back, and what a failed fetch tells.

use axum::http::StatusCode;
use serde_json::json;

use super::super::Refusal;
use super::super::issuers::{FIRST_FETCH_RETRY, KEY_MAX_AGE, KEYS_KEPT};
use super::super::key_cache::chain;
use super::fetching::{flood, long_token, people_at};
use super::server::{Answer, KeyServer};
use super::*;

/// How far the clock was ahead before it was set right.
const AHEAD: u64 = 1800;

const AWAY: Answer = Answer::Status(StatusCode::BAD_GATEWAY);

/// A token that outlives every key here.
fn lasting_token(key: &PersonMint) -> String {
    key.mint("Alice", ISSUER, AUDIENCE, HOUR * 24 * 400, Map::new(), now())
}

fn unavailable<T: std::fmt::Debug>(result: Result<T, TokenError>) -> (Duration, String) {
    match result {
        Err(TokenError::Unavailable { retry_after, detail }) => (retry_after, detail),
        other => panic!("not unavailable: {other:?}"),
    }
}

#[tokio::test]
async fn a_clock_that_is_set_back_does_not_hold_up_the_search_for_a_new_key() {
    let (old, new) = (PersonMint::generate().unwrap(), PersonMint::generate().unwrap());
    let server = KeyServer::start(old.jwks()).await;
    let people = people_at(&server);
    assert!(people.verify(&long_token(&old), after(AHEAD)).await.is_ok());
    flood(&people, 1, after(AHEAD)).await;
    assert_eq!(server.asked(), 2);

    server.answer(new.jwks());
    assert!(people.verify(&long_token(&new), now()).await.is_ok());
    assert_eq!(server.asked(), 3);
    // From now on the cool-down is one by the clock that was set right.
    flood(&people, 10, after(DEFAULT_COOLDOWN.as_secs() - 1)).await;
    assert_eq!(server.asked(), 3);
    flood(&people, 10, after(DEFAULT_COOLDOWN.as_secs())).await;
    assert_eq!(server.asked(), 4);
}

#[tokio::test]
async fn a_clock_that_is_set_back_does_not_hold_up_the_renewal() {
    let (old, new) = (PersonMint::generate().unwrap(), PersonMint::generate().unwrap());
    let server = KeyServer::start(old.jwks()).await;
    let people = people_at(&server);
    assert!(people.verify(&long_token(&old), after(AHEAD)).await.is_ok());
    // A renewal that failed has a cool-down of its own.
    server.answer(AWAY);
    let renewal = AHEAD + KEY_MAX_AGE.as_secs();
    assert!(people.verify(&long_token(&old), after(renewal)).await.is_ok());
    assert_eq!(server.asked(), 2);

    server.answer(new.jwks());
    assert_eq!(refusal(people.verify(&long_token(&old), now()).await), Refusal::Signature, "withdrawn");
    assert_eq!(server.asked(), 3);
}

#[tokio::test]
async fn a_clock_that_is_set_back_does_not_hold_up_the_first_fetch() {
    let key = PersonMint::generate().unwrap();
    let server = KeyServer::start(AWAY).await;
    let people = people_at(&server);
    unavailable(people.verify(&long_token(&key), after(AHEAD)).await);
    let (retry_after, _) = unavailable(people.verify(&long_token(&key), now()).await);
    assert_eq!((server.asked(), retry_after), (2, FIRST_FETCH_RETRY));
    unavailable(people.verify(&long_token(&key), after(FIRST_FETCH_RETRY.as_secs() - 1)).await);
    assert_eq!(server.asked(), 2);
    server.answer(key.jwks());
    assert!(people.verify(&long_token(&key), after(FIRST_FETCH_RETRY.as_secs())).await.is_ok());
}

#[tokio::test]
async fn a_call_that_read_the_clock_a_moment_earlier_does_not_fetch_again() {
    let key = PersonMint::generate().unwrap();
    let server = KeyServer::start(key.jwks()).await;
    let people = people_at(&server);
    assert!(people.verify(&long_token(&key), after(1)).await.is_ok());
    flood(&people, 1, after(1)).await;
    assert_eq!(server.asked(), 2);
    flood(&people, 10, now()).await;
    assert!(people.verify(&long_token(&key), now()).await.is_ok());
    assert_eq!(server.asked(), 2);
}

#[tokio::test]
async fn keys_that_cannot_be_renewed_are_accepted_for_a_day_and_no_longer() {
    let key = PersonMint::generate().unwrap();
    let server = KeyServer::start(key.jwks()).await;
    let people = people_at(&server);
    let token = lasting_token(&key);
    assert!(people.verify(&token, now()).await.is_ok());
    server.answer(AWAY);
    let end = KEYS_KEPT.as_secs();
    assert!(people.verify(&token, after(end - 1)).await.is_ok());
    assert_eq!(server.asked(), 2);

    // As at an issuer that was never reached, with attempts as often as there.
    let retry = FIRST_FETCH_RETRY.as_secs();
    let next = end - 1 + DEFAULT_COOLDOWN.as_secs();
    for (at, asked) in [(next, 3), (next + retry - 1, 3), (next + retry, 4)] {
        let (retry_after, detail) = unavailable(people.verify(&token, after(at)).await);
        assert!((1..=retry).contains(&retry_after.as_secs()), "{retry_after:?}");
        assert!(detail.contains("renewed"), "{detail}");
        // Nothing is said about a token under another key either.
        unavailable(people.verify(&lasting_token(&PersonMint::generate().unwrap()), after(at)).await);
        assert_eq!(server.asked(), asked);
    }
    server.answer(key.jwks());
    assert!(people.verify(&token, after(next + 2 * retry)).await.is_ok());
    assert_eq!(server.asked(), 5);
}

#[tokio::test]
async fn nobody_is_refused_because_the_issuer_was_not_asked_for_long() {
    let (old, new) = (PersonMint::generate().unwrap(), PersonMint::generate().unwrap());
    let server = KeyServer::start(old.jwks()).await;
    let people = people_at(&server);
    assert!(people.verify(&lasting_token(&old), now()).await.is_ok());
    let late = after(KEYS_KEPT.as_secs() * 30);
    assert!(people.verify(&lasting_token(&old), late).await.is_ok());
    assert_eq!(server.asked(), 2);
    // Set back by as much, the clock makes keys as old.
    server.answer(new.jwks());
    assert_eq!(refusal(people.verify(&lasting_token(&old), now()).await), Refusal::Signature);
    assert_eq!(server.asked(), 3);
}

#[tokio::test]
async fn a_key_file_that_went_away_is_forgotten_after_a_day() {
    let key = PersonMint::generate().unwrap();
    let (people, folder) = people_of(&key, json!({}));
    std::fs::remove_file(folder.path().join("keys")).unwrap();
    let token = lasting_token(&key);
    // It was read at the start, before any instant was known, and counts as old since it was first asked for.
    assert!(people.verify(&token, now()).await.is_ok());
    let end = KEYS_KEPT.as_secs() - KEY_MAX_AGE.as_secs();
    assert!(people.verify(&token, after(end - 1)).await.is_ok());
    unavailable(people.verify(&token, after(end)).await);
    std::fs::write(folder.path().join("keys"), key.jwks().to_string()).unwrap();
    assert!(people.verify(&token, after(end + DEFAULT_COOLDOWN.as_secs())).await.is_ok());
}

#[tokio::test]
async fn why_a_fetch_failed_is_told_without_the_address() {
    // Nothing listens on port 1.
    for url in ["http://127.0.0.1:1/keys?apikey=hunter2", "http://127.0.0.1:1/hunter2"] {
        let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).build().unwrap();
        let error = client.get(url).send().await.unwrap_err();
        assert!(error.to_string().contains("hunter2"), "the library's own words have the address: {error}");
        let text = chain(error);
        assert!(!text.contains("hunter2") && text.contains(": "), "{text}");
    }
}
