//! Tokens of service principals: bought by client credentials, ended by revocation, tied to one organization.

use std::time::Duration;

use jsonwebtoken::jwk::JwkSet;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use mandate::auth::keys::KeyRing;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Client, Reply, Seed, World, eventually};

/// Asks the token route with a form and, maybe, HTTP Basic.
async fn ask(anyone: &Client, form: &[(&str, &str)], basic: Option<(&str, &str)>) -> Reply {
    let mut request = anyone.request(Method::POST, "//auth/token").form(form);
    if let Some((id, secret)) = basic {
        request = request.basic_auth(id, Some(secret));
    }
    anyone.send(request).await
}

#[track_caller]
fn refused(reply: &Reply, status: u16, error: &str) {
    assert_eq!((reply.status, reply.body["error"].as_str()), (status, Some(error)), "{}", reply.text);
    assert!(reply.body["error_description"].is_string());
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.header("cache-control"), Some("no-store"));
    assert_eq!(reply.header("www-authenticate").is_some(), status == 401);
}

async fn revoke(world: &World, client_id: &str) {
    let query = "UPDATE agent_directory.credentials SET revoked_at = now() WHERE id = $1::text::uuid";
    sqlx::query(query).bind(client_id).execute(&world.db).await.unwrap();
}

#[tokio::test]
async fn a_token_is_bought_by_form_and_by_basic() {
    let world = World::new().await;
    let (anyone, task) = (world.anyone(), world.task().await);
    let (id, secret) = (world.seed.agent.client_id.as_str(), world.seed.agent.client_secret.as_str());
    let grant = ("grant_type", "client_credentials");
    for (form, basic) in [
        (vec![grant, ("client_id", id), ("client_secret", secret)], None),
        (vec![grant], Some((id, secret))),
        (vec![grant, ("client_id", id)], Some((id, secret))),
        (vec![grant, ("scope", "anything"), ("client_id", id), ("client_secret", secret)], None),
    ] {
        let reply = ask(&anyone, &form, basic).await;
        let answer = reply.expect(200);
        assert_eq!((&answer["token_type"], &answer["expires_in"]), (&json!("Bearer"), &json!(900)));
        assert_eq!(reply.header("cache-control"), Some("no-store"));
        let bearer = world.bearer(answer["access_token"].as_str().unwrap());
        bearer.get(&format!("/agent-tasks/{task}")).await.expect(200);
    }
}

#[tokio::test]
async fn what_is_wrong_at_the_token_route_is_told_as_oauth_says() {
    let world = World::new().await;
    let anyone = world.anyone();
    let (id, secret) = (world.seed.agent.client_id.as_str(), world.seed.agent.client_secret.as_str());
    let other = world.seed.trigger_client_id.as_str();
    let grant = ("grant_type", "client_credentials");
    let nobody = "01890a5d-ac96-774b-bcce-b302099a8057";
    for (form, basic) in [
        (vec![grant, ("client_id", id), ("client_secret", "wrong")], None),
        (vec![grant, ("client_id", id), ("client_secret", "")], None),
        (vec![grant, ("client_id", other), ("client_secret", secret)], None),
        (vec![grant, ("client_id", nobody), ("client_secret", secret)], None),
        (vec![grant, ("client_id", "reviewer"), ("client_secret", secret)], None),
        (vec![grant, ("client_id", id)], None),
        (vec![grant], None),
        (vec![grant], Some((id, "wrong"))),
        (vec![grant], Some(("", ""))),
    ] {
        refused(&ask(&anyone, &form, basic).await, 401, "invalid_client");
    }
    for (form, basic) in [
        (vec![("client_id", id), ("client_secret", secret)], None),
        (vec![], Some((id, secret))),
        (vec![grant, grant, ("client_id", id), ("client_secret", secret)], None),
        (vec![grant, ("client_id", id), ("client_secret", secret)], Some((id, secret))),
        (vec![grant, ("client_id", other)], Some((id, secret))),
    ] {
        refused(&ask(&anyone, &form, basic).await, 400, "invalid_request");
    }
    for other in ["password", "authorization_code", "refresh_token", ""] {
        let form = [("grant_type", other), ("client_id", id), ("client_secret", secret)];
        refused(&ask(&anyone, &form, None).await, 400, "unsupported_grant_type");
    }
    let body = json!({"grant_type": "client_credentials", "client_id": id, "client_secret": secret});
    refused(&anyone.post("//auth/token", &body).await, 400, "invalid_request");
    refused(&anyone.post_nothing("//auth/token").await, 400, "invalid_request");
    anyone.get("//auth/token").await.refused(405, "method_not_allowed");
    let two = anyone.request(Method::POST, "//auth/token").form(&[grant]);
    let two = two.basic_auth(id, Some(secret)).header("authorization", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
    refused(&anyone.send(two).await, 400, "invalid_request");
    // A person's token is no client's.
    let form = [grant, ("client_id", id)];
    let ada = world.person("ada");
    let request = ada.request(Method::POST, "//auth/token").form(&form);
    refused(&ada.send(request).await, 401, "invalid_client");
}

#[tokio::test]
async fn tokens_of_one_client_are_limited_and_others_are_not() {
    let world = World::with(|settings| settings.auth.token_rate_per_minute = 3).await;
    let anyone = world.anyone();
    let (id, secret) = (world.seed.agent.client_id.as_str(), world.seed.agent.client_secret.as_str());
    let form = [("grant_type", "client_credentials"), ("client_id", id), ("client_secret", secret)];
    let wrong = [form[0], form[1], ("client_secret", "wrong")];
    // Client ids are no secret: whoever guesses locks nobody out.
    for _ in 0..5 {
        refused(&ask(&anyone, &wrong, None).await, 401, "invalid_client");
    }
    for _ in 0..3 {
        ask(&anyone, &form, None).await.expect(200);
    }
    let reply = ask(&anyone, &form, None).await;
    reply.refused(429, "rate_limited");
    let wait: u64 = reply.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=20).contains(&wait), "{wait}");
    world.account(&world.seed.trigger_client_id, &world.seed.trigger_client_secret).await;
}

#[tokio::test]
async fn a_revoked_credential_buys_nothing_and_its_tokens_end_within_the_cache_time() {
    let world = World::with(|settings| settings.auth.directory_cache_seconds = 1).await;
    let (agent, task) = (world.agent().await, world.task().await);
    let path = format!("/agent-tasks/{task}");
    let session = agent.open_session(&task, "s1").await;
    revoke(&world, &world.seed.agent.client_id).await;
    let (id, secret) = (world.seed.agent.client_id.as_str(), world.seed.agent.client_secret.as_str());
    let form = [("grant_type", "client_credentials"), ("client_id", id), ("client_secret", secret)];
    refused(&ask(&world.anyone(), &form, None).await, 401, "invalid_client");
    eventually("the token of a revoked credential is refused", || async { agent.get(&path).await.status == 401 }).await;
    agent.get(&path).await.refused(401, "unauthenticated");
    agent.say(&task, &session, "I am still here.").await.refused(401, "unauthenticated");
    agent.in_organization("nowhere").get(&path).await.refused(401, "unauthenticated");
    let read = world.person("ada").get(&path).await;
    assert_eq!(read.expect(200)["last_seq"], 3);
}

#[tokio::test]
async fn a_token_says_the_same_of_a_foreign_organization_as_of_an_unknown_one() {
    let world = World::new().await;
    let globex = Seed::plant(&world.db, "globex").await;
    sqlx::query("DELETE FROM agent_directory.members WHERE organization_id = $1")
        .bind(globex.organization_id)
        .execute(&world.db)
        .await
        .unwrap();
    let trigger = world.account(&world.seed.trigger_client_id, &world.seed.trigger_client_secret).await;
    let task = world.task().await;
    for client in [world.agent().await, trigger, world.person("ada"), world.person("stranger")] {
        for path in ["/agent-tasks/", &format!("/agent-tasks/{task}"), "/agent-tasks/T-99", "/requests"] {
            let mut answers = Vec::new();
            for organization in ["globex", "unknown"] {
                let reply = client.in_organization(organization).get(path).await;
                reply.refused(403, "organization_forbidden");
                let mut body = reply.body.clone();
                body["request_id"] = Value::Null;
                let mut headers = reply.headers.clone();
                for own in ["x-request-id", "date", "content-length"] {
                    headers.remove(own);
                }
                answers.push((body, headers));
            }
            assert_eq!(answers[0], answers[1], "{path}");
        }
    }
    let outcome = world.agent().await.in_organization("globex").finish(&task).await;
    outcome.refused(403, "organization_forbidden");
}

#[tokio::test]
async fn who_is_no_member_any_more_is_out_and_a_new_role_holds_at_once() {
    let world = World::new().await;
    let (oscar, task) = (world.person("oscar"), world.task().await);
    let path = format!("/agent-tasks/{task}");
    oscar.post_nothing(&format!("{path}/pause")).await.expect(200);
    let set = "UPDATE agent_directory.members SET roles = ARRAY['viewer'] WHERE person_id = 'oscar'";
    sqlx::query(set).execute(&world.db).await.unwrap();
    let reply = oscar.post_nothing(&format!("{path}/resume")).await;
    assert_eq!(reply.refused(403, "permission_denied")["permission"], "agent_task:manage");
    oscar.get(&path).await.expect(200);
    sqlx::query("UPDATE agent_directory.members SET roles = '{}' WHERE person_id = 'oscar'")
        .execute(&world.db)
        .await
        .unwrap();
    assert_eq!(oscar.get(&path).await.refused(403, "permission_denied")["permission"], "agent_task:read");
    sqlx::query("DELETE FROM agent_directory.members WHERE person_id = 'oscar'").execute(&world.db).await.unwrap();
    oscar.get(&path).await.refused(403, "organization_forbidden");
    let read = world.person("ada").get(&path).await;
    assert_eq!((&read.expect(200)["status"], &read.body["last_seq"]), (&json!("paused"), &json!(3)));
}

#[tokio::test]
async fn a_header_that_is_no_good_token_is_refused() {
    let world = World::new().await;
    let anyone = world.anyone();
    let agent = world.agent().await;
    let good = agent.token().to_owned();
    for header in ["", "Bearer", "Bearer ", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==", &good, "Bearer x", "Bearer a.b.c"] {
        let request = anyone.request(Method::GET, "/agent-tasks/").header("authorization", header);
        let reply = anyone.send(request).await;
        reply.refused(401, "unauthenticated");
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"), "{header}");
    }
    anyone.get("/agent-tasks/").await.refused(401, "unauthenticated");
    let (before, at, after) = (&good[..good.len() / 2], good.as_bytes()[good.len() / 2], &good[good.len() / 2 + 1..]);
    let tampered = format!("{before}{}{after}", if at == b'A' { 'B' } else { 'A' });
    world.bearer(&tampered).get("/agent-tasks/").await.refused(401, "unauthenticated");
    let request = anyone.request(Method::GET, "/agent-tasks/").header("authorization", format!("bearer {good}"));
    anyone.send(request).await.expect(200);
    // Of two nobody knows which counts: not even twice the same passes.
    let twice = anyone.request(Method::GET, "/agent-tasks/");
    let twice =
        twice.header("authorization", format!("Bearer {good}")).header("authorization", format!("Bearer {good}"));
    anyone.send(twice).await.refused(401, "unauthenticated");
    // Just before its end, by more than a busy machine takes for a call.
    world.skew_clock(870);
    agent.get("/agent-tasks/").await.expect(200);
    world.skew_clock(3_600);
    agent.get("/agent-tasks/").await.refused(401, "unauthenticated");
    world.agent().await.get("/agent-tasks/").await.expect(200);
}

#[tokio::test]
async fn the_published_keys_verify_a_token() {
    let world = World::new().await;
    let agent = world.agent().await;
    let published = world.anyone().get("//.well-known/jwks.json").await;
    let keys: JwkSet = serde_json::from_value(published.expect(200).clone()).unwrap();
    assert_eq!(published.header("content-type"), Some("application/json"));
    for key in published.body["keys"].as_array().unwrap() {
        assert_eq!(key["d"], Value::Null, "a private key is published");
    }
    let kid = decode_header(agent.token()).unwrap().kid.unwrap();
    let key = DecodingKey::from_jwk(keys.find(&kid).unwrap()).unwrap();
    let mut validation = Validation::new(Algorithm::EdDSA);
    validation.set_audience(std::slice::from_ref(&world.settings.auth.audience));
    validation.set_issuer(&["mandate"]);
    let claims = decode::<Value>(agent.token(), &key, &validation).unwrap().claims;
    assert_eq!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(), 900);
}

#[tokio::test]
async fn a_rotated_key_signs_and_the_old_tokens_stay_good() {
    let world = World::new().await;
    let (old, task) = (world.agent().await, world.task().await);
    let folder = world.settings.auth.data_folder.join("keys");
    let kid = KeyRing::open(&folder).unwrap().rotate(&folder).unwrap();
    // Another process, begun after the rotation.
    let after = World::beside(&world).await;
    let path = format!("/agent-tasks/{task}");
    // The one before takes and publishes what the later one signs, and signs with the new key itself.
    world.bearer(after.agent().await.token()).get(&path).await.expect(200);
    let published = world.anyone().get("//.well-known/jwks.json").await;
    assert_eq!(published.expect(200)["keys"][0]["kid"], json!(kid));
    assert_eq!(decode_header(world.agent().await.token()).unwrap().kid.unwrap(), kid);
    after.bearer(old.token()).get(&path).await.expect(200);
    let new = after.agent().await;
    new.get(&path).await.expect(200);
    assert_eq!(decode_header(new.token()).unwrap().kid.unwrap(), kid);
    assert_ne!(decode_header(old.token()).unwrap().kid.unwrap(), kid);
    let published = after.anyone().get("//.well-known/jwks.json").await;
    let keys = published.expect(200)["keys"].as_array().unwrap();
    assert_eq!((keys.len(), &keys[0]["kid"]), (2, &json!(kid)), "the current one first, the old one still there");
    after.skew_clock(Duration::from_secs(901).as_secs().cast_signed());
    after.bearer(old.token()).get(&path).await.refused(401, "unauthenticated");
}
