//! Case 43 and its family: times of every wrong kind, for people's tokens and for our own.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::keys::KeyRing;
use super::super::tokens::TokenIssuer;
use super::super::{LEEWAY, Refusal};
use super::*;

/// What each claim is replaced by, and why the token is then refused.
fn refused_times() -> Vec<(Value, Refusal)> {
    let beyond_leeway = i64::try_from(LEEWAY.as_secs()).unwrap() + 1;
    vec![
        (json!({ "exp": "never" }), Refusal::Claims),
        (json!({ "exp": second(60).to_string() }), Refusal::Claims),
        (json!({ "exp": null }), Refusal::Claims), // the claim is missing then
        (json!({ "exp": 1e300 }), Refusal::Claims),
        (json!({ "exp": f64::MAX }), Refusal::Claims),
        (json!({ "exp": u64::MAX }), Refusal::Claims),
        (json!({ "exp": i64::MAX }), Refusal::Claims),
        (json!({ "exp": 253_402_300_800_i64 }), Refusal::Claims),
        (json!({ "exp": second(3600) * 1000 }), Refusal::Claims), // milliseconds, a common mistake
        (json!({ "exp": -1 }), Refusal::Claims),
        (json!({ "exp": true }), Refusal::Claims),
        (json!({ "exp": [second(60)] }), Refusal::Claims),
        (json!({ "exp": {} }), Refusal::Claims),
        (json!({ "exp": 0 }), Refusal::Expired),
        (json!({ "exp": second(0) }), Refusal::Expired),
        (json!({ "exp": second(-1) }), Refusal::Expired),
        (json!({ "nbf": 4_070_908_800_i64 }), Refusal::NotYetValid), // 2099
        (json!({ "nbf": second(120) }), Refusal::NotYetValid),
        (json!({ "nbf": second(beyond_leeway) }), Refusal::NotYetValid),
        (json!({ "nbf": "now" }), Refusal::Claims),
        (json!({ "nbf": 1e300 }), Refusal::Claims),
        (json!({ "iat": second(120) }), Refusal::NotYetValid),
        (json!({ "iat": "now" }), Refusal::Claims),
    ]
}

#[tokio::test]
async fn times_of_a_persons_token_are_read_strictly() {
    let key = PersonMint::generate().unwrap();
    let (people, _folder) = people_of(&key, json!({}));
    for (claims, reason) in refused_times() {
        let token = mint(&key, claims.clone());
        assert_eq!(refusal(people.verify(&token, now()).await), reason, "{claims}");
    }
    for accepted in [
        json!({}),
        json!({ "exp": 1_769_855_400.75 }), // a quarter of a second from now
        json!({ "exp": 253_402_300_799_i64 }),
        json!({ "nbf": null, "iat": null }),
        json!({ "nbf": second(59) }),
        json!({ "iat": second(59) }),
    ] {
        let token = mint(&key, accepted.clone());
        assert!(people.verify(&token, now()).await.is_ok(), "{accepted}");
    }
}

#[test]
fn times_of_our_own_token_are_read_strictly() {
    let ring = Arc::new(KeyRing::ephemeral().unwrap());
    let issuer = TokenIssuer::new(Arc::clone(&ring), ISSUER, AUDIENCE, HOUR);
    let signed = |changes: &Value| {
        let id = "00000000-0000-4000-8000-000000000001";
        let mut claims = good_claims();
        for (name, value) in [("sub", id), ("client_id", id), ("organization_id", id)] {
            claims[name] = json!(value);
        }
        claims["iat"] = json!(second(0));
        claims["nbf"] = json!(second(0));
        for (name, value) in changes.as_object().unwrap() {
            claims[name] = value.clone();
        }
        claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        ring.sign_jws(claims.to_string().as_bytes(), "at+jwt")
    };
    assert!(issuer.verify(&signed(&json!({})), now()).is_ok());
    for (claims, reason) in refused_times() {
        assert_eq!(refusal(issuer.verify(&signed(&claims), now())), reason, "{claims}");
    }
    for name in ["iss", "aud", "sub", "exp", "nbf", "iat", "client_id", "organization_id"] {
        for value in [json!(null), json!(7.5), json!([]), json!("")] {
            let token = signed(&json!({ name: value.clone() }));
            // A number is an instant, and an empty list names no audience: both are looked at and refused or past.
            if matches!(name, "nbf" | "iat") && value.is_number() {
                continue;
            }
            assert!(issuer.verify(&token, now()).is_err(), "{name} {value}");
        }
    }
}

#[tokio::test]
async fn a_number_that_is_no_number_is_refused() {
    let key = PersonMint::generate().unwrap();
    let (people, _folder) = people_of(&key, json!({}));
    let good = mint(&key, json!({}));
    let mut parts = good.split('.');
    let header = parts.next().unwrap();
    for exp in ["1e400", "-1e400", "NaN", "Infinity", "0x7fffffff", "1_000"] {
        let payload = format!(r#"{{"iss":"{ISSUER}","aud":"{AUDIENCE}","sub":"a","exp":{exp}}}"#);
        let token = format!("{header}.{}.{}", encode(payload), encode([0; 64]));
        assert_eq!(refusal(people.verify(&token, now()).await), Refusal::Malformed, "{exp}");
    }
}

#[tokio::test]
async fn issuer_and_audience_must_fit() {
    let key = PersonMint::generate().unwrap();
    let (people, _folder) = people_of(&key, json!({}));
    for (claims, reason) in [
        (json!({ "iss": "https://login.example.com" }), Refusal::Issuer), // a slash is missing
        (json!({ "iss": "https://LOGIN.example.com/" }), Refusal::Issuer),
        (json!({ "iss": [ISSUER] }), Refusal::Claims),
        (json!({ "iss": null }), Refusal::Claims),
        (json!({ "aud": "mandate-staging" }), Refusal::Audience),
        (json!({ "aud": ["a", "b"] }), Refusal::Audience),
        (json!({ "aud": [] }), Refusal::Audience),
        (json!({ "aud": { "mandate": true } }), Refusal::Claims),
        (json!({ "aud": null }), Refusal::Claims),
        (json!({ "sub": null }), Refusal::Claims),
        (json!({ "sub": 7 }), Refusal::Claims),
        (json!({ "sub": "" }), Refusal::Claims),
        (json!({ "sub": "two words" }), Refusal::Claims),
    ] {
        let token = mint(&key, claims.clone());
        assert_eq!(refusal(people.verify(&token, now()).await), reason, "{claims}");
    }
    let token = mint(&key, json!({ "aud": ["other", AUDIENCE] }));
    assert!(people.verify(&token, now()).await.is_ok());
}
