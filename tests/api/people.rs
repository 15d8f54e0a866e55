//! People's tokens: of configured issuers, with keys that are fetched when they are needed and no more often.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::extract::State;
use futures::stream::{self, StreamExt as _};
use mandate::auth::mint::PersonMint;
use mandate::config::{IssuerSettings, SecretUrl};
use mandate::domain::principal::Role;
use serde_json::{Map, Value, json};

use crate::support::{AUDIENCE, Client, World};

const LOGIN: &str = "https://login.example.com";
const HOUR: Duration = Duration::from_hours(1);
/// The cool-down of these tests, in seconds.
const COOLDOWN: i64 = 60;

/// A key server that counts how often it is asked.
#[derive(Clone)]
struct KeyServer {
    keys: Arc<Mutex<Value>>,
    asked: Arc<AtomicUsize>,
    url: String,
}

impl KeyServer {
    async fn start(keys: Value) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/jwks.json", listener.local_addr().unwrap());
        let server = Self { keys: Arc::new(Mutex::new(keys)), asked: Arc::default(), url };
        let answer = async |State(server): State<KeyServer>| {
            server.asked.fetch_add(1, Ordering::SeqCst);
            server.keys.lock().unwrap().to_string()
        };
        let routes = axum::Router::new().route("/jwks.json", axum::routing::get(answer)).with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        server
    }

    fn publish(&self, keys: Value) {
        *self.keys.lock().unwrap() = keys;
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// A world whose people sign in at an issuer with these keys.
    async fn world(&self) -> World {
        let issuer = IssuerSettings {
            issuer: LOGIN.to_owned(),
            jwks_url: Some(SecretUrl::new(&self.url)),
            audience: AUDIENCE.to_owned(),
            algorithms: vec!["EdDSA".to_owned()],
            allow_http_jwks: true,
            ..IssuerSettings::default()
        };
        World::with(|settings| {
            settings.auth.jwks_cooldown_seconds = COOLDOWN.unsigned_abs();
            settings.auth.issuers.push(issuer);
        })
        .await
    }
}

/// `ada` with a token of `mint`.
fn signed_in(world: &World, mint: &PersonMint) -> Client {
    world.bearer(&mint.mint("ada", LOGIN, AUDIENCE, HOUR, Map::new(), world.now()))
}

/// `count` tokens that are good but for their kid, which nobody knows, several at a time: all 401.
async fn flood(world: &World, token: &str, count: usize) {
    let (_, rest) = token.split_once('.').unwrap();
    let call = |n: usize| {
        use base64::Engine as _;
        let header = json!({"alg": "EdDSA", "typ": "JWT", "kid": format!("random-{n}")}).to_string();
        let header = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(header);
        let client = world.bearer(&format!("{header}.{rest}"));
        async move { client.get("/agent-tasks/waiting").await.refused(401, "unauthenticated").clone() }
    };
    let refused = stream::iter(0..count).map(call).buffer_unordered(32).count().await;
    assert_eq!(refused, count);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_key_works_after_one_fetch_and_random_kids_cause_one_each_cool_down() {
    let (old, new) = (PersonMint::generate().unwrap(), PersonMint::generate().unwrap());
    let server = KeyServer::start(old.jwks()).await;
    let world = server.world().await;
    // Every one of their tokens is good for an hour, and the clock stands between the looks.
    world.freeze_clock();
    signed_in(&world, &old).get("/agent-tasks/").await.expect(200);
    signed_in(&world, &old).get("/agent-tasks/").await.expect(200);
    assert_eq!(server.asked(), 1);

    server.publish(new.jwks());
    let ada = signed_in(&world, &new);
    ada.get("/agent-tasks/").await.expect(200);
    assert_eq!(server.asked(), 2, "the rotated key took one fetch");
    signed_in(&world, &old).get("/agent-tasks/").await.refused(401, "unauthenticated");

    flood(&world, ada.token(), 1_000).await;
    assert_eq!(server.asked(), 2, "still in the cool-down");
    world.move_frozen_clock(COOLDOWN - 1);
    flood(&world, ada.token(), 50).await;
    assert_eq!(server.asked(), 2);
    world.move_frozen_clock(1);
    flood(&world, ada.token(), 200).await;
    assert_eq!(server.asked(), 3);
    ada.get("/agent-tasks/").await.expect(200);
}

#[tokio::test]
async fn times_that_make_no_sense_are_refused() {
    let world = World::new().await;
    let now = world.now().micros() / 1_000_000;
    for claims in [
        json!({"exp": "never"}),
        json!({"exp": null}),
        json!({"exp": 1e300}),
        json!({"exp": -1}),
        json!({"exp": now - 3_600}),
        json!({"exp": true}),
        json!({"exp": now.to_string()}),
        json!({"nbf": 4_070_908_800_i64}),
        json!({"nbf": now + 120}),
        json!({"nbf": "tomorrow"}),
        json!({"iss": "https://elsewhere.example.com"}),
        json!({"iss": null}),
        json!({"aud": "another"}),
        json!({"aud": null}),
        json!({"sub": null}),
        json!({"sub": ""}),
        json!({"sub": 7}),
    ] {
        let reply = world.person_claiming("ada", claims.clone()).get("/agent-tasks/").await;
        reply.refused(401, "unauthenticated");
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"), "{claims}");
    }
    for claims in [json!({"nbf": null}), json!({"aud": ["another", AUDIENCE]}), json!({"exp": now + 30})] {
        world.person_claiming("ada", claims).get("/agent-tasks/").await.expect(200);
    }
    // The id is case-folded.
    let new = json!({"agent_slug": "reviewer", "title": "t", "description": "d"});
    assert_eq!(world.person("ADA").post("/agent-tasks/", &new).await.expect(201)["owner"], "ada");
}

#[tokio::test]
async fn a_mapped_role_is_granted_to_members_alone() {
    let world = World::with(|settings| {
        let issuer = &mut settings.auth.issuers[0];
        issuer.roles_claim = Some("groups".to_owned());
        issuer.roles_map = [("ops".to_owned(), Role::Operator), ("board".to_owned(), Role::Approver)].into();
    })
    .await;
    let task = world.task().await;
    let pause = format!("/agent-tasks/{task}/pause");
    let vera = |groups: Value| world.person_claiming("vera", json!({"groups": groups}));
    for groups in [json!([]), json!("nothing"), json!(["OPS"]), json!(["board"]), Value::Null, json!("admin")] {
        vera(groups).post_nothing(&pause).await.refused(403, "permission_denied");
    }
    let agent = world.agent().await;
    let request = agent.ask(&task, &[]).await;
    let resolve = format!("/agent-tasks/{task}/requests/{request}/resolve");
    let answer = json!({"status": "answered", "answer": "Yes."});
    vera(json!(["ops"])).post(&resolve, &answer).await.refused(403, "permission_denied");
    vera(json!(["ops"])).post_nothing(&pause).await.expect(200);
    vera(json!(["other", "board"])).post(&resolve, &answer).await.expect(201);
    let stranger = world.person_claiming("stranger", json!({"groups": ["ops", "board"]}));
    stranger.get("/agent-tasks/").await.refused(403, "organization_forbidden");
    // A service account's token has no such claims: it is this server's own.
    agent.post_nothing(&pause).await.refused(403, "permission_denied");
}
