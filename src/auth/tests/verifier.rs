//! The one door, and its memory.

use std::sync::Arc;

use serde_json::json;

use super::super::keys::KeyRing;
use super::super::verifier::{CACHE_TTL, Verifier};
use super::super::{MAX_TOKEN_BYTES, Refusal};
use super::server::KeyServer;
use super::*;

#[tokio::test]
async fn each_issuer_answers_for_its_own() {
    let key = PersonMint::generate().unwrap();
    let (people, _folder) = people_of(&key, json!({}));
    let ring = Arc::new(KeyRing::ephemeral().unwrap());
    let verifier = Verifier::new(tokens::issuer(&ring), people).unwrap();
    let service = verifier.issuer().issue(&tokens::claims(), now()).token;
    assert!(matches!(verifier.verify(&service, now()).await, Ok(Identity::Service { .. })));
    assert_eq!(person(verifier.verify(&mint(&key, json!({})), now()).await.unwrap()), "alice");

    // Neither key opens the other's door.
    let iss = verifier.issuer().issuer();
    let crossed = key.mint("alice", iss, AUDIENCE, HOUR, Map::new(), now());
    assert_eq!(refusal(verifier.verify(&crossed, now()).await), Refusal::Kind);
    let crossed = ring.sign_jws(good_claims().to_string().as_bytes(), "JWT");
    assert_eq!(refusal(verifier.verify(&crossed, now()).await), Refusal::Signature);

    for token in ["", "Bearer", "a.b", &"x".repeat(MAX_TOKEN_BYTES + 1)] {
        assert_eq!(refusal(verifier.verify(token, now()).await), Refusal::Malformed);
    }
}

#[tokio::test]
async fn the_servers_own_issuer_has_no_people() {
    let key = PersonMint::generate().unwrap();
    let (people, _folder) = people_of(&key, json!({ "issuer": "https://mandate.example" }));
    let ring = Arc::new(KeyRing::ephemeral().unwrap());
    assert!(Verifier::new(tokens::issuer(&ring), people).is_err());
}

#[tokio::test]
async fn a_remembered_token_ends_on_time() {
    let key = PersonMint::generate().unwrap();
    let (people, _folder) = people_of(&key, json!({}));
    let verifier = Verifier::new(tokens::issuer(&Arc::new(KeyRing::ephemeral().unwrap())), people).unwrap();
    let token = mint(&key, json!({ "exp": second(30) }));
    for at in [0, 1, 29] {
        assert!(verifier.verify(&token, after(at)).await.is_ok());
    }
    assert_eq!(refusal(verifier.verify(&token, after(30)).await), Refusal::Expired);
    assert!(verifier.verify(&token, now()).await.is_ok());
    assert!(verifier.verify(&mint(&key, json!({ "nbf": second(50) })), now()).await.is_ok());
    let token = mint(&key, json!({ "nbf": second(50), "iat": null }));
    assert!(verifier.verify(&token, now()).await.is_ok());
    // Remembered from a later instant, it is not used for an earlier one.
    assert_eq!(refusal(verifier.verify(&token, now().minus(Duration::from_secs(20))).await), Refusal::NotYetValid);
}

#[tokio::test]
async fn a_remembered_token_ends_with_its_key() {
    let (key, next) = (PersonMint::generate().unwrap(), PersonMint::generate().unwrap());
    let server = KeyServer::start(key.jwks()).await;
    let base = tempfile::tempdir().unwrap();
    let folder = base.path().join("keys");
    let ring = Arc::new(KeyRing::open(&folder).unwrap());
    let verifier = Verifier::new(tokens::issuer(&ring), people(config(&json!({ "jwks_url": server.url })))).unwrap();
    let token = mint(&key, json!({}));
    assert!(verifier.verify(&token, now()).await.is_ok());

    server.answer(next.jwks());
    // Remembered: nobody asked for the new keys yet.
    assert!(verifier.verify(&token, after(1)).await.is_ok());
    assert!(verifier.verify(&mint(&next, json!({})), after(2)).await.is_ok());
    assert_eq!(refusal(verifier.verify(&token, after(2)).await), Refusal::Signature);

    let service = verifier.issuer().issue(&tokens::claims(), now()).token;
    let old = ring.current_kid();
    assert!(verifier.verify(&service, now()).await.is_ok());
    ring.rotate(&folder).unwrap();
    assert!(verifier.verify(&service, now()).await.is_ok());
    std::fs::remove_file(folder.join(format!("retired-{old}.pem"))).unwrap();
    ring.jwks();
    assert_eq!(refusal(verifier.verify(&service, now()).await), Refusal::Signature);
}

#[tokio::test]
async fn nothing_is_remembered_for_longer_than_the_cache_says() {
    let key = PersonMint::generate().unwrap();
    let (people, folder) = people_of(&key, json!({}));
    let verifier = Verifier::new(tokens::issuer(&Arc::new(KeyRing::ephemeral().unwrap())), people).unwrap();
    let token = mint(&key, json!({}));
    // The first use reads the file again, and then the keys are fresh for a while.
    assert!(verifier.verify(&token, now()).await.is_ok());
    let next = PersonMint::generate().unwrap();
    std::fs::write(folder.path().join("keys"), next.jwks().to_string()).unwrap();
    let old = super::super::issuers::KEY_MAX_AGE.as_secs();
    assert!(verifier.verify(&token, after(old - 1)).await.is_ok());
    // Verified at old - 1 and remembered, although the keys are old by now and would be read again.
    assert!(verifier.verify(&token, after(old - 1 + CACHE_TTL.as_secs() - 1)).await.is_ok());
    assert_eq!(refusal(verifier.verify(&token, after(old - 1 + CACHE_TTL.as_secs())).await), Refusal::Signature);
}
