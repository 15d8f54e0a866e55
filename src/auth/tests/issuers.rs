//! Configuration, and what an identity takes from a token.

use serde_json::{Value, json};

use super::super::Refusal;
use super::super::issuers::IssuerConfigError;
use super::*;
use crate::domain::event::Channel;
use crate::domain::principal::Role;

fn refused(configs: Vec<PersonIssuerConfig>) -> String {
    let result = PersonIssuers::new(configs, DEFAULT_COOLDOWN, HttpSettings::default());
    match result {
        Err(IssuerConfigError { problem, .. }) => problem,
        Ok(_) => panic!("accepted"),
    }
}

#[test]
fn weak_or_contradictory_configurations_are_refused() {
    let url = "https://login.example.com/jwks.json";
    for algorithms in [json!(["none"]), json!(["RS256", "HS256"]), json!(["hs512"]), json!(["ES512"]), json!([])] {
        let problem = refused(vec![config(&json!({ "jwks_url": url, "algorithms": algorithms }))]);
        assert!(problem.contains("algorithm"), "{algorithms}: {problem}");
    }
    for more in [
        json!({}),
        json!({ "jwks_url": url, "key_file": "keys.json" }),
        json!({ "jwks_url": "http://login.example.com/jwks.json" }),
        json!({ "jwks_url": "http://127.0.0.1.example.com/jwks.json" }),
        json!({ "jwks_url": "http://localhost.example.com/jwks.json" }),
        json!({ "jwks_url": "file:///etc/passwd", "allow_http_jwks": true }),
        json!({ "jwks_url": "ftp://127.0.0.1/jwks.json" }),
        json!({ "jwks_url": "jwks.json" }),
        json!({ "jwks_url": url, "issuer": "" }),
        json!({ "jwks_url": url, "audience": "" }),
        json!({ "key_file": "/nowhere/keys.json" }),
    ] {
        assert!(!refused(vec![config(&more)]).is_empty(), "{more}");
    }
    let twice = config(&json!({ "jwks_url": url }));
    assert!(refused(vec![twice.clone(), twice]).contains("twice"));
    for url in [
        "https://login.example.com/jwks.json",
        "http://127.0.0.1:9/jwks.json",
        "http://[::1]:9/jwks.json",
        "http://localhost:9/jwks.json",
    ] {
        people(config(&json!({ "jwks_url": url })));
    }
    people(config(&json!({ "jwks_url": "http://login.example.com/jwks.json", "allow_http_jwks": true })));
}

#[test]
fn a_key_file_that_cannot_serve_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    let private = super::super::keys::SigningKey::generate().unwrap();
    let ed = PersonMint::generate().unwrap().jwks();
    for text in ["", "{}", r#"{"keys":{}}"#, r#"{"keys":[]}"#, &private, "-----BEGIN CERTIFICATE-----\n"] {
        std::fs::write(&file, text).unwrap();
        assert!(refused(vec![config(&json!({ "key_file": file }))]).contains("key_file"), "{text}");
    }
    std::fs::write(&file, ed.to_string()).unwrap();
    refused(vec![config(&json!({ "key_file": file, "algorithms": ["RS256"] }))]);
}

#[test]
fn a_typing_error_in_the_configuration_is_noticed() {
    let result: Result<PersonIssuerConfig, _> =
        serde_json::from_value(json!({ "issuer": "i", "audience": "a", "algorithm": ["RS256"] }));
    assert!(result.is_err());
    let role: Result<PersonIssuerConfig, _> =
        serde_json::from_value(json!({ "issuer": "i", "audience": "a", "roles_map": { "x": "root" } }));
    assert!(role.is_err());
}

#[tokio::test]
async fn a_public_pem_verifies_whatever_kid_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let key = PersonMint::open(folder.path()).unwrap();
    let text = std::fs::read_to_string(folder.path().join("current.pem")).unwrap();
    let public = super::super::keys::SigningKey::parse(&text).unwrap().public().to_pem();
    let (people, _folder) = people_by_file(&public, json!({}));
    assert_eq!(person(people.verify(&mint(&key, json!({})), now()).await.unwrap()), "alice");
    let stranger = PersonMint::generate().unwrap();
    assert_eq!(refusal(people.verify(&mint(&stranger, json!({})), now()).await), Refusal::Signature);
}

#[tokio::test]
async fn an_identity_holds_what_the_configuration_says() {
    let key = PersonMint::generate().unwrap();
    let more = json!({
        "subject_claim": "email",
        "roles_claim": "/realm_access/roles",
        "channel_claim": "via",
        "roles_map": { "Mandate Admins": "admin", "ops": "operator", "eyes": "viewer", "more-ops": "operator" },
    });
    let (people, _folder) = people_of(&key, more);
    let verify = async |claims: Value| {
        let mut all = json!({ "email": "Alice@Example.com", "email_verified": true });
        all.as_object_mut().unwrap().extend(extra(claims));
        people.verify(&mint(&key, all), now()).await
    };
    let roles = async |roles: Value| match verify(json!({ "realm_access": { "roles": roles } })).await.unwrap() {
        Identity::Person { mapped_roles, .. } => mapped_roles,
        Identity::Service { .. } => panic!("no person"),
    };
    assert_eq!(person(verify(json!({})).await.unwrap()), "alice@example.com");
    assert_eq!(roles(json!(["ops", "more-ops", "admin", "eyes", 7])).await, [Role::Viewer, Role::Operator]);
    assert_eq!(roles(json!("Mandate Admins")).await, [Role::Admin]);
    assert_eq!(roles(json!("ops eyes")).await, [Role::Viewer, Role::Operator]);
    assert_eq!(roles(json!({ "ops": true })).await, []);
    assert_eq!(roles(json!(null)).await, []);

    for (claimed, channel) in [
        (json!("web"), Some(Channel::Web)),
        (json!("slack"), Some(Channel::Slack)),
        (json!("mcp"), Some(Channel::Mcp)),
        (json!("harness"), None),
        (json!("fax"), None),
        (json!(["web"]), None),
        (json!(null), None),
    ] {
        match verify(json!({ "via": claimed.clone() })).await.unwrap() {
            Identity::Person { channel: found, expires_at, .. } => {
                assert_eq!(found, channel, "{claimed}");
                assert_eq!(expires_at.micros(), second(3600) * 1_000_000);
            }
            Identity::Service { .. } => panic!("no person"),
        }
    }
    assert_eq!(refusal(verify(json!({ "email": null })).await), Refusal::Claims);
}

/// Claims with an address and what is said of it.
type Address = fn(Value, Value) -> Value;

#[tokio::test]
async fn an_address_names_somebody_only_if_it_is_verified() {
    let key = PersonMint::generate().unwrap();
    // By the place at which the address stands.
    let places: [(&str, Address); 6] = [
        ("email", |email, verified| json!({ "email": email, "email_verified": verified })),
        ("/email", |email, verified| json!({ "email": email, "email_verified": verified })),
        ("Email", |email, verified| json!({ "Email": email, "email_verified": verified })),
        ("/user/email", |email, verified| json!({ "user": { "email": email, "email_verified": verified } })),
        (
            "https://a.example/email",
            |email, verified| json!({ "https://a.example/email": email, "https://a.example/email_verified": verified }),
        ),
        (
            "/https:~1~1a.example~1email",
            |email, verified| json!({ "https://a.example/email": email, "https://a.example/email_verified": verified }),
        ),
    ];
    for (name, claims) in places {
        let (strict, _folder) = people_of(&key, json!({ "subject_claim": name }));
        let (trusting, _other) = people_of(&key, json!({ "subject_claim": name, "trust_unverified_email": true }));
        for (verified, fine) in [
            (json!(true), true),
            // Some issuers write all values as texts.
            (json!("true"), true),
            (json!(false), false),
            (json!("false"), false),
            (json!("TRUE"), false),
            (json!(1), false),
            (json!(null), false),
            (json!([true]), false),
        ] {
            let token = mint(&key, claims(json!("Alice@Example.com"), verified.clone()));
            match strict.verify(&token, now()).await {
                Ok(identity) if fine => assert_eq!(person(identity), "alice@example.com"),
                Err(error) if !fine => {
                    assert!(matches!(error, TokenError::Refused { reason: Refusal::Claims, .. }));
                    assert!(error.detail().contains("trust_unverified_email"), "{}", error.detail());
                }
                other => panic!("{name} {verified}: {other:?}"),
            }
            assert_eq!(person(trusting.verify(&token, now()).await.unwrap()), "alice@example.com");
        }
        // Absent: minting leaves out what is null at the top.
        let mut absent = claims(json!("Alice@Example.com"), json!(null));
        absent["sub"] = json!("bob");
        absent["email_verified"] = if name == "/user/email" { json!(true) } else { json!(null) };
        let token = mint(&key, absent);
        assert_eq!(refusal(strict.verify(&token, now()).await), Refusal::Claims, "{name}");
        // Trusted or not, it is an address of the token.
        let token = mint(&key, claims(json!(null), json!(true)));
        assert_eq!(refusal(trusting.verify(&token, now()).await), Refusal::Claims, "{name}");
    }
    // No other claim needs it.
    for name in ["sub", "emails", "/user/mail", "email/id"] {
        let (people, _folder) = people_of(&key, json!({ "subject_claim": name }));
        let claims = json!({ "emails": "alice", "user": { "mail": "alice" }, "email/id": "alice" });
        assert_eq!(person(people.verify(&mint(&key, claims), now()).await.unwrap()), "alice", "{name}");
    }
}

#[tokio::test]
async fn several_issuers_do_not_mix() {
    let folder = tempfile::tempdir().unwrap();
    let mints: Vec<PersonMint> = (0..2).map(|_| PersonMint::generate().unwrap()).collect();
    let configs = mints.iter().enumerate().map(|(n, mint)| {
        let file = folder.path().join(n.to_string());
        std::fs::write(&file, mint.jwks().to_string()).unwrap();
        config(&json!({ "issuer": format!("https://{n}/"), "audience": format!("aud-{n}"), "key_file": file }))
    });
    let people = PersonIssuers::new(configs.collect(), DEFAULT_COOLDOWN, HttpSettings::default()).unwrap();
    for (n, mint) in mints.iter().enumerate() {
        for issuer in 0..2 {
            for audience in 0..2 {
                let (iss, aud) = (format!("https://{issuer}/"), format!("aud-{audience}"));
                let token = mint.mint("alice", &iss, &aud, HOUR, Map::new(), now());
                let fits = n == issuer && n == audience;
                assert_eq!(people.verify(&token, now()).await.is_ok(), fits, "{n} {issuer} {audience}");
            }
        }
    }
}

#[tokio::test]
async fn neither_text_of_an_error_shows_the_token() {
    let (key, stranger) = (PersonMint::generate().unwrap(), PersonMint::generate().unwrap());
    let (people, _folder) = people_of(&key, json!({}));
    let long = format!("evil\n{}", "x".repeat(500));
    for token in [
        mint(&stranger, json!({})),
        mint(&key, json!({ "exp": 1 })),
        mint(&key, json!({ "iss": long })),
        mint(&key, json!({ "sub": "secret subject" })),
        "not.a.token".to_owned(),
    ] {
        let error = people.verify(&token, now()).await.unwrap_err();
        let (shown, logged) = (error.to_string(), error.detail().to_owned());
        assert!(!shown.contains("evil") && !shown.contains("secret") && !shown.contains("alice"), "{shown}");
        assert!(logged.len() < 250 && !logged.contains('\n') && !logged.contains(&token), "{logged}");
    }
}
