//! Whatever is sent as a token or stands in a key file.

use std::sync::Arc;

use jsonwebtoken::Algorithm;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::super::MAX_TOKEN_BYTES;
use super::super::claims::Claims;
use super::super::jws::Jws;
use super::super::key_set::KeySet;
use super::super::keys::{KeyRing, SigningKey};
use super::tokens::{claims, issuer};
use super::*;

/// Any JSON that a header or payload could be, made of what is looked at in them.
fn json() -> impl Strategy<Value = Value> {
    let names =
        ["alg", "kid", "typ", "crit", "iss", "aud", "sub", "exp", "nbf", "iat", "keys", "kty", "crv", "x", "use"];
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        select(vec!["EdDSA", "RS256", "HS256", "none", "at+jwt", "JWT", "OKP", "Ed25519", ISSUER, AUDIENCE, ""])
            .prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    scalar.prop_recursive(3, 20, 5, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((select(names.to_vec()), inner), 0..6).prop_map(|members| {
                Value::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
            }),
        ]
    })
}

/// A token, its parts anything.
fn tokens() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        3 => json().prop_map(|value| encode(value.to_string())),
        1 => vec(any::<u8>(), 0..40).prop_map(encode),
        1 => "[A-Za-z0-9_=.-]{0,20}",
    ];
    prop_oneof![4 => vec(part, 1..5).prop_map(|parts| parts.join(".")), 1 => any::<String>()]
}

proptest! {
    #[test]
    fn any_token_is_taken_apart_or_refused(token in tokens()) {
        if let Ok(jws) = Jws::parse(&token) {
            // What was taken apart has the three parts of a compact JWS, and no more.
            prop_assert_eq!(token.split('.').count(), 3);
            let header = URL_SAFE_NO_PAD.decode(token.split('.').next().unwrap()).unwrap();
            let header: Value = serde_json::from_slice(&header).unwrap();
            prop_assert_eq!(jws.kid.as_deref(), header["kid"].as_str());
            prop_assert!(!["none", "HS256"].contains(&header["alg"].as_str().unwrap()));
            prop_assert_eq!(encode(&jws.payload), token.split('.').nth(1).unwrap());
        }
    }

    #[test]
    fn any_payload_is_read_as_what_it_is(payload in json(), name in "/?[a-z~/0-9]{0,8}") {
        let text = payload.to_string();
        let read = Claims::parse(text.as_bytes());
        prop_assert_eq!(read.is_ok(), payload.is_object());
        let Ok(claims) = read else { return Ok(()) };
        prop_assert_eq!(claims.text("sub").ok(), payload["sub"].as_str());
        prop_assert!(name.starts_with('/') || claims.find(&name) == payload.get(&name));
        if let Ok(end) = claims.check_times(now()) {
            prop_assert!(end > now() && payload["exp"].is_number());
        }
        let audiences = payload["aud"].as_array().cloned().unwrap_or_else(|| vec![payload["aud"].clone()]);
        prop_assert_eq!(claims.check_audience(AUDIENCE).is_ok(), audiences.contains(&AUDIENCE.into()));
    }

    #[test]
    fn no_other_token_passes_for_ours(at: Index, byte in "[A-Za-z0-9_.=-]", token in tokens()) {
        let ours = issuer(&Arc::new(KeyRing::ephemeral().unwrap()));
        prop_assert!(ours.verify(&token, now()).is_err());
        let issued = ours.issue(&claims(), now()).token;
        let at = at.index(issued.len());
        let damaged = format!("{}{byte}{}", &issued[..at], &issued[at + 1..]);
        prop_assert_eq!(ours.verify(&damaged, now()).is_ok(), damaged == issued, "{}", damaged);
        prop_assert!(ours.verify(&issued[..at], now()).is_err());
        prop_assert!(ours.verify(&(issued + &byte), now()).is_err());
    }

    #[test]
    fn a_refusal_tells_the_client_nothing_of_the_token(token in "[A-Za-z0-9_-]{20,40}(\\.[A-Za-z0-9_-]{0,40}){0,4}") {
        let Err(fault) = Jws::parse(&token) else { return Ok(()) };
        let parts: Vec<_> = token.split('.').filter(|part| part.len() > 8).collect();
        let told = format!("{fault} {}", fault.detail());
        prop_assert!(parts.iter().all(|part| !told.contains(part)), "{}", told);
    }

    #[test]
    fn any_key_set_is_read_or_refused(set in json(), bytes in vec(any::<u8>(), 0..200)) {
        let allowed = [Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA];
        let text = json!({ "keys": [set.clone(), set] }).to_string();
        let read = KeySet::from_file(text.as_bytes(), &allowed).expect("keys that are none are left out");
        prop_assert!(read.is_empty());
        prop_assert!(KeySet::from_file(&bytes, &allowed).is_err());
    }

    #[test]
    fn a_key_is_whole_or_refused(at: Index, byte: u8) {
        let mut pem = SigningKey::generate().unwrap().into_bytes();
        let at = at.index(pem.len());
        let whole = String::from_utf8(pem.clone()).unwrap();
        let kid = |text: &str| SigningKey::parse(text).ok().map(|key| key.public().kid().to_owned());
        prop_assert!(kid(&whole).is_some());
        pem[at] = byte;
        // Another key may come of it, but none of a text that is none.
        if let Ok(damaged) = String::from_utf8(pem) {
            let _ = kid(&damaged);
            let _ = KeySet::from_file(damaged.as_bytes(), &[Algorithm::EdDSA]);
        }
        prop_assert!(kid(&whole[..at]).is_none() || at + 1 >= whole.len());
    }
}

#[test]
fn a_token_that_is_too_long_is_not_read() {
    let long = format!("{}.{}.", encode(r#"{"alg":"EdDSA"}"#), "A".repeat(MAX_TOKEN_BYTES));
    assert_eq!(refusal(Jws::parse(&long).map(|_| ())), Refusal::Malformed);
}
