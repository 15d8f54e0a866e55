//! Tokens that try to choose their own algorithm or key.

use aws_lc_rs::encoding::{AsDer as _, Pkcs8V1Der};
use aws_lc_rs::{hmac, rsa, signature};
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey};
use serde_json::{Value, json};

use super::super::jws::base64url;
use super::super::{MAX_TOKEN_BYTES, Refusal};
use super::*;

fn pem(tag: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> = text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {tag}-----\n{}\n-----END {tag}-----\n", lines.join("\n"))
}

fn sign(key: &EncodingKey, algorithm: Algorithm) -> impl Fn(&[u8]) -> Vec<u8> {
    let key = key.clone();
    move |message| URL_SAFE_NO_PAD.decode(jsonwebtoken::crypto::sign(message, &key, algorithm).unwrap()).unwrap()
}

fn jwk(key: &EncodingKey, algorithm: Algorithm, more: &Value) -> Value {
    let mut jwk = serde_json::to_value(Jwk::from_encoding_key(key, algorithm).unwrap()).unwrap();
    for (name, value) in more.as_object().unwrap() {
        jwk[name] = value.clone();
    }
    jwk.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    jwk
}

struct Rsa {
    private: EncodingKey,
    public_pem: String,
}

fn rsa_key() -> Rsa {
    let pair = rsa::KeyPair::generate(rsa::KeySize::Rsa2048).unwrap();
    let private: Pkcs8V1Der<'_> = pair.as_der().unwrap();
    let public = signature::KeyPair::public_key(&pair).as_der().unwrap();
    let public: aws_lc_rs::encoding::PublicKeyX509Der<'_> = public;
    Rsa {
        private: EncodingKey::from_rsa_pem(pem("PRIVATE KEY", private.as_ref()).as_bytes()).unwrap(),
        public_pem: pem("PUBLIC KEY", public.as_ref()),
    }
}

fn ec_key(algorithm: &'static signature::EcdsaSigningAlgorithm) -> EncodingKey {
    let document = signature::EcdsaKeyPair::generate_pkcs8(algorithm, &aws_lc_rs::rand::SystemRandom::new()).unwrap();
    EncodingKey::from_ec_der(document.as_ref())
}

#[tokio::test]
async fn every_accepted_algorithm_works_and_only_with_its_own_key() {
    let rsa = rsa_key().private;
    let p256 = ec_key(&signature::ECDSA_P256_SHA256_FIXED_SIGNING);
    let p384 = ec_key(&signature::ECDSA_P384_SHA384_FIXED_SIGNING);
    let ed = EncodingKey::from_ed_der(signature::Ed25519KeyPair::generate().unwrap().to_pkcs8v1().unwrap().as_ref());
    let names = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"];
    let private = |name: &str| match name {
        "ES256" => &p256,
        "ES384" => &p384,
        "EdDSA" => &ed,
        _ => &rsa,
    };
    let keys: Vec<Value> =
        names.iter().map(|name| jwk(private(name), name.parse().unwrap(), &json!({ "kid": name }))).collect();
    let (people, _folder) = people_by_file(&json!({ "keys": keys }).to_string(), json!({ "algorithms": names }));
    for kid in names {
        for alg in names {
            let token =
                forge(&json!({ "alg": alg, "kid": kid }), &good_claims(), sign(private(alg), alg.parse().unwrap()));
            let result = people.verify(&token, now()).await;
            if kid == alg {
                assert_eq!(person(result.unwrap()), "alice", "{kid}");
            } else {
                // The RSA keys are one and the same: even so each is used with its own algorithm only.
                assert_eq!(refusal(result), Refusal::Signature, "{alg} with the key {kid}");
            }
        }
    }
}

#[tokio::test]
async fn hmac_with_the_public_key_is_refused() {
    let key = rsa_key();
    let jwks = json!({ "keys": [jwk(&key.private, Algorithm::RS256, &json!({ "kid": "k" }))] });
    let (people, _folder) = people_by_file(&jwks.to_string(), json!({}));
    let (people_pem, _folder_pem) = people_by_file(&key.public_pem, json!({}));
    let good = forge(&json!({ "alg": "RS256", "kid": "k" }), &good_claims(), sign(&key.private, Algorithm::RS256));
    for people in [&people, &people_pem] {
        assert!(people.verify(&good, now()).await.is_ok());
        for (alg, algorithm) in
            [("HS256", hmac::HMAC_SHA256), ("HS384", hmac::HMAC_SHA384), ("HS512", hmac::HMAC_SHA512)]
        {
            for secret in
                [key.public_pem.as_bytes(), key.public_pem.trim().as_bytes(), jwks.to_string().as_bytes(), b""]
            {
                let mac = |message: &[u8]| hmac::sign(&hmac::Key::new(algorithm, secret), message).as_ref().to_vec();
                let token = forge(&json!({ "alg": alg, "kid": "k" }), &good_claims(), mac);
                assert_eq!(refusal(people.verify(&token, now()).await), Refusal::Signature, "{alg}");
            }
        }
    }
}

#[tokio::test]
async fn none_and_unlisted_algorithms_are_refused() {
    let key = PersonMint::generate().unwrap();
    let (people, _folder) = people_of(&key, json!({ "algorithms": ["RS256", "EdDSA"] }));
    for alg in ["none", "None", "NONE", "", "eddsa", "HS256", "ES256", "RS1", "ES512"] {
        for signature in [vec![], vec![0; 64]] {
            let token = forge(&json!({ "alg": alg }), &good_claims(), |_| signature);
            assert_eq!(refusal(people.verify(&token, now()).await), Refusal::Signature, "{alg}");
        }
    }
    let (rsa_only, _folder) = {
        let rsa = rsa_key().private;
        let keys = json!({ "keys": [jwk(&rsa, Algorithm::RS256, &json!({})), key.jwks()["keys"][0]] });
        people_by_file(&keys.to_string(), json!({ "algorithms": ["RS256"] }))
    };
    assert_eq!(refusal(rsa_only.verify(&mint(&key, json!({})), now()).await), Refusal::Signature);
}

#[tokio::test]
async fn a_header_cannot_bring_its_own_key() {
    let (trusted, stranger) = (PersonMint::generate().unwrap(), PersonMint::generate().unwrap());
    let (people, _folder) = people_of(&trusted, json!({}));
    let pair = signature::Ed25519KeyPair::generate().unwrap();
    let own = base64url(signature::KeyPair::public_key(&pair).as_ref());
    let kid = trusted.jwks()["keys"][0]["kid"].clone();
    for more in [
        json!({ "jwk": { "kty": "OKP", "crv": "Ed25519", "x": own } }),
        json!({ "jku": "https://attacker.example/jwks.json" }),
        json!({ "x5u": "https://attacker.example/cert.pem" }),
        json!({ "x5c": ["AAAA"] }),
        json!({ "kid": "https://attacker.example/jwks.json" }),
        json!({ "kid": "../../../../dev/null" }),
    ] {
        let mut header = json!({ "alg": "EdDSA", "kid": kid });
        header.as_object_mut().unwrap().extend(extra(more));
        let token = forge(&header, &good_claims(), |message| pair.sign(message).as_ref().to_vec());
        assert_eq!(refusal(people.verify(&token, now()).await), Refusal::Signature, "{header}");
    }
    assert_eq!(refusal(people.verify(&mint(&stranger, json!({})), now()).await), Refusal::Signature);
}

#[tokio::test]
async fn malformed_oversized_and_critical_tokens_are_refused() {
    let key = PersonMint::generate().unwrap();
    let (people, _folder) = people_of(&key, json!({}));
    let good = mint(&key, json!({}));
    let parts: Vec<&str> = good.split('.').collect();
    let header = |value: &Value| format!("{}.{}.{}", encode(value.to_string()), parts[1], parts[2]);
    let (h, p, s) = (parts[0], parts[1], parts[2]);
    for token in [
        String::new(),
        ".".to_owned(),
        "..".to_owned(),
        "a.b.c".to_owned(),
        format!("{h}.{p}"),
        format!("{h}.{p}.{s}.{s}"),
        format!(".{p}.{s}"),
        format!("{h}..{s}"),
        format!("{h}=.{p}.{s}"),
        format!(" {h}.{p}.{s}"),
        format!("{}.{p}.{s}", encode("[]")),
        format!("{}.{p}.{s}", encode(r#"{"alg":"EdDSA""#)),
        format!("{h}.{}.{s}", encode("null")),
        format!("{h}.{}.{s}", encode([0xff, 0xfe])),
        format!("{h}.{}.{s}", encode("[".repeat(5000))),
        header(&json!({})),
        header(&json!({ "alg": 7 })),
        header(&json!({ "alg": "EdDSA", "kid": 7 })),
        header(&json!({ "alg": "EdDSA", "crit": ["b64"], "b64": true })),
        header(&json!({ "alg": "EdDSA", "crit": ["exp"] })),
        header(&json!({ "alg": "EdDSA", "crit": [] })),
        mint(&key, json!({ "padding": "x".repeat(MAX_TOKEN_BYTES) })),
    ] {
        let reason = refusal(people.verify(&token, now()).await);
        assert_eq!(reason, Refusal::Malformed, "{}", &token[..token.len().min(80)]);
    }
    for typ in ["logout+jwt", "secevent+jwt", "mandate-proof+jws", ""] {
        let token = header(&json!({ "alg": "EdDSA", "typ": typ }));
        assert_eq!(refusal(people.verify(&token, now()).await), Refusal::Kind, "{typ}");
    }
}

#[tokio::test]
async fn a_changed_token_is_refused() {
    let key = PersonMint::generate().unwrap();
    let (people, _folder) = people_of(&key, json!({}));
    let good = mint(&key, json!({}));
    assert!(people.verify(&good, now()).await.is_ok());
    for place in 0..good.len() {
        let mut bytes = good.clone().into_bytes();
        bytes[place] = if bytes[place] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(bytes).unwrap();
        assert!(people.verify(&changed, now()).await.is_err(), "at {place}");
    }
    let other = mint(&key, json!({ "sub": "bob" }));
    let (message, _) = good.rsplit_once('.').unwrap();
    let (_, signature) = other.rsplit_once('.').unwrap();
    assert_eq!(refusal(people.verify(&format!("{message}.{signature}"), now()).await), Refusal::Signature);
}

#[tokio::test]
async fn a_token_without_kid_needs_exactly_one_key_that_fits() {
    let (a, b) = (PersonMint::generate().unwrap(), PersonMint::generate().unwrap());
    let nameless = |mint: &PersonMint| {
        let mut key = mint.jwks()["keys"][0].clone();
        key.as_object_mut().unwrap().remove("kid");
        key
    };
    let rsa = rsa_key().private;
    let rsa_jwk = jwk(&rsa, Algorithm::RS256, &json!({ "alg": null }));
    let without_kid = |claims: &Value| forge(&json!({ "alg": "RS256" }), claims, sign(&rsa, Algorithm::RS256));

    let (people, _f) = people_by_file(&json!({ "keys": [nameless(&a), rsa_jwk] }).to_string(), json!({}));
    assert!(people.verify(&without_kid(&good_claims()), now()).await.is_ok());
    // A kid that is named must be found, although a nameless key would fit.
    assert_eq!(refusal(people.verify(&mint(&a, json!({})), now()).await), Refusal::Signature);

    let (two, _f) = people_by_file(&json!({ "keys": [rsa_jwk, rsa_jwk, nameless(&b)] }).to_string(), json!({}));
    assert_eq!(refusal(two.verify(&without_kid(&good_claims()), now()).await), Refusal::Signature);
}

#[tokio::test]
async fn keys_that_are_not_for_verifying_are_left_out() {
    let ed = EncodingKey::from_ed_der(signature::Ed25519KeyPair::generate().unwrap().to_pkcs8v1().unwrap().as_ref());
    let token = forge(&json!({ "alg": "EdDSA", "kid": "k" }), &good_claims(), sign(&ed, Algorithm::EdDSA));
    let with = |more: Value| {
        let spare = PersonMint::generate().unwrap().jwks()["keys"][0].clone();
        let tomorrow = json!({ "kty": "AKP", "alg": "ML-DSA-44", "pub": 7, "kid": ["odd"] });
        let key = jwk(&ed, Algorithm::EdDSA, &json!({ "kid": "k" }));
        let mut key = key;
        for (name, value) in more.as_object().unwrap() {
            key[name] = value.clone();
        }
        people_by_file(&json!({ "keys": [tomorrow, key, spare] }).to_string(), json!({}))
    };
    for fine in [json!({}), json!({ "use": "sig" }), json!({ "key_ops": ["sign", "verify"] })] {
        let (people, _folder) = with(fine.clone());
        assert!(people.verify(&token, now()).await.is_ok(), "{fine}");
    }
    for unfit in [
        json!({ "use": "enc" }),
        json!({ "key_ops": ["sign"] }),
        json!({ "alg": "HS256" }),
        json!({ "alg": "ES256" }),
        json!({ "alg": "ECDH-ES" }),
        json!({ "crv": "X25519" }),
        json!({ "kty": "oct", "k": "AAAA", "x": null }),
    ] {
        let (people, _folder) = with(unfit.clone());
        assert_eq!(refusal(people.verify(&token, now()).await), Refusal::Signature, "{unfit}");
    }
}
