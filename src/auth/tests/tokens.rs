//! Tokens of service accounts.

use std::sync::Arc;

use aws_lc_rs::signature::Ed25519KeyPair;
use serde_json::{Value, json};
use uuid::Uuid;

use super::super::Refusal;
use super::super::keys::{KeyRing, SigningKey};
use super::super::tokens::{ServiceClaims, TokenIssuer};
use super::*;

pub(super) fn claims() -> ServiceClaims {
    ServiceClaims {
        organization_id: Uuid::from_u128(1).into(),
        account_id: Uuid::from_u128(2).into(),
        credential_id: Uuid::from_u128(3).into(),
        name: "triage".to_owned(),
    }
}

pub(super) fn issuer(ring: &Arc<KeyRing>) -> TokenIssuer {
    TokenIssuer::new(Arc::clone(ring), "https://mandate.example", "mandate", HOUR)
}

#[test]
fn a_token_names_the_account_until_it_ends() {
    let ring = Arc::new(KeyRing::ephemeral().unwrap());
    let ours = issuer(&ring);
    let issued = ours.issue(&claims(), now());
    assert_eq!(issued.expires_in_seconds, 3600);
    assert!(!format!("{issued:?}").contains(&issued.token));
    let expires_at = Timestamp::from_micros(second(3600) * 1_000_000).unwrap();
    let expected = Identity::Service {
        organization_id: Uuid::from_u128(1).into(),
        account_id: Uuid::from_u128(2).into(),
        credential_id: Uuid::from_u128(3).into(),
        expires_at,
    };
    assert_eq!(ours.verify(&issued.token, now()).unwrap(), expected);
    assert_eq!(ours.verify(&issued.token, after(3599)).unwrap(), expected);
    assert_eq!(refusal(ours.verify(&issued.token, expires_at)), Refusal::Expired);
    // Issued by a replica whose clock is a little ahead.
    assert!(ours.verify(&issued.token, now().minus(Duration::from_secs(59))).is_ok());
    assert_eq!(refusal(ours.verify(&issued.token, now().minus(Duration::from_secs(62)))), Refusal::NotYetValid);
    assert_ne!(ours.issue(&claims(), now()).token, issued.token);

    let header: Value =
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(issued.token.split('.').next().unwrap()).unwrap()).unwrap();
    assert_eq!(header["typ"], "at+jwt");
    assert_eq!(header["alg"], "EdDSA");
    assert_eq!(header["kid"], ring.jwks()["keys"][0]["kid"]);
}

#[test]
fn other_servers_and_other_things_that_the_key_signs_are_refused() {
    let ring = Arc::new(KeyRing::ephemeral().unwrap());
    let ours = issuer(&ring);
    let other = TokenIssuer::new(Arc::clone(&ring), "https://other.example", "mandate", HOUR);
    assert_eq!(refusal(ours.verify(&other.issue(&claims(), now()).token, now())), Refusal::Issuer);
    let other = TokenIssuer::new(Arc::clone(&ring), "https://mandate.example", "other", HOUR);
    assert_eq!(refusal(ours.verify(&other.issue(&claims(), now()).token, now())), Refusal::Audience);
    let stranger = issuer(&Arc::new(KeyRing::ephemeral().unwrap()));
    assert_eq!(refusal(ours.verify(&stranger.issue(&claims(), now()).token, now())), Refusal::Signature);

    let token = ours.issue(&claims(), now()).token;
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    for typ in ["JWT", "jwt", "mandate-proof+jws", ""] {
        assert_eq!(refusal(ours.verify(&ring.sign_jws(&payload, typ), now())), Refusal::Kind, "{typ}");
    }
    for typ in ["at+jwt", "AT+JWT", "application/at+jwt"] {
        assert!(ours.verify(&ring.sign_jws(&payload, typ), now()).is_ok(), "{typ}");
    }
}

#[test]
fn tokens_outlive_a_rotation() {
    let base = tempfile::tempdir().unwrap();
    let folder = base.path().join("keys");
    let ring = Arc::new(KeyRing::open(&folder).unwrap());
    let issuer = issuer(&ring);
    let before = issuer.issue(&claims(), now()).token;
    ring.rotate(&folder).unwrap();
    let after = issuer.issue(&claims(), now()).token;
    assert!(issuer.verify(&before, now()).is_ok());
    assert!(issuer.verify(&after, now()).is_ok());
}

#[test]
fn our_key_signs_under_one_algorithm() {
    let pem = SigningKey::generate().unwrap();
    let der = jsonwebtoken::EncodingKey::from_ed_pem(pem.as_bytes()).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(der.as_bytes()).unwrap();
    let ring = KeyRing::from_pem(&pem, &[]).unwrap();
    let signed = |alg: &str, kid: Value| {
        let header = json!({ "alg": alg, "kid": kid, "typ": "test" });
        forge(&header, &json!({}), |message| pair.sign(message).as_ref().to_vec())
    };
    assert!(ring.verify_jws(&signed("EdDSA", json!(ring.current_kid())), "test").is_ok());
    for (alg, kid) in [("ES256", json!(ring.current_kid())), ("EdDSA", json!("")), ("EdDSA", json!("other"))] {
        assert_eq!(refusal(ring.verify_jws(&signed(alg, kid), "test")), Refusal::Signature);
    }
}
