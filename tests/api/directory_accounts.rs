//! Triggers, and the credentials of agents and triggers: the secret is shown once, rotated and revoked.

use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Client, Reply, World, eventually};

/// Tries to buy a token.
async fn buy(world: &World, client_id: &Value, secret: &Value) -> Reply {
    let (id, secret) = (client_id.as_str().unwrap(), secret.as_str().unwrap());
    let form = [("grant_type", "client_credentials"), ("client_id", id), ("client_secret", secret)];
    let anyone = world.anyone();
    anyone.send(anyone.request(Method::POST, "//auth/token").form(&form)).await
}

async fn account(world: &World, issued: &Value) -> Client {
    world.account(issued["client_id"].as_str().unwrap(), issued["client_secret"].as_str().unwrap()).await
}

async fn create(trigger: &Client) -> Reply {
    let body = json!({"agent_slug": "reviewer", "title": "Nightly", "description": ""});
    let request = trigger.request(Method::POST, "/agent-tasks/").json(&body);
    trigger.send(request.header("X-Mandate-Scheduled-Task", "nightly").header("X-Mandate-Accountable", "ada")).await
}

#[tokio::test]
async fn a_secret_is_shown_when_it_is_made_and_never_again() {
    let world = World::new().await;
    let ada = world.person("ada");
    for kind in ["agents", "triggers"] {
        let (path, body) = (format!("/{kind}/fresh"), json!({"name": "Fresh"}));
        let made = ada.put(&path, &body).await;
        let secret = made.expect(201)["client_secret"].as_str().unwrap().to_owned();
        assert_eq!(made.header("cache-control"), Some("no-store"));
        account(&world, &made.body).await.get("/agent-tasks/").await.expect(200);
        let again = ada.put(&path, &body).await;
        assert_eq!((&again.expect(200)["client_id"], &again.body["client_secret"]), (&json!(null), &json!(null)));
        let rotated = ada.post_nothing(&format!("{path}/credentials")).await;
        let other = rotated.expect(201)["client_secret"].as_str().unwrap().to_owned();
        assert_eq!(rotated.header("cache-control"), Some("no-store"));
        assert_ne!(secret, other);
        for path in [path.clone(), format!("/{kind}"), format!("{path}/credentials"), "/directory-audit".to_owned()] {
            let read = ada.get(&path).await;
            read.expect(200);
            for word in [secret.as_str(), other.as_str(), "client_secret", "hash"] {
                assert!(!read.text.contains(word), "{path} shows {word}");
            }
        }
    }
}

#[tokio::test]
async fn a_rotated_credential_works_beside_the_old_one_until_that_is_revoked() {
    let world = World::with(|settings| settings.auth.directory_cache_seconds = 10).await;
    let ada = world.person("ada");
    for kind in ["agents", "triggers"] {
        let path = format!("/{kind}/fresh");
        let first = ada.put(&path, &json!({"name": "Fresh"})).await.expect(201).clone();
        let second = ada.post_nothing(&format!("{path}/credentials")).await.expect(201).clone();
        let (old, new) = (account(&world, &first).await, account(&world, &second).await);
        for client in [&old, &new] {
            client.get("/agent-tasks/").await.expect(200);
        }
        let revoke = format!("{path}/credentials/{}", first["client_id"].as_str().unwrap());
        ada.delete(&revoke).await.expect(204);
        // At this server at once, whatever it remembers.
        old.get("/agent-tasks/").await.refused(401, "unauthenticated");
        assert_eq!(buy(&world, &first["client_id"], &first["client_secret"]).await.status, 401);
        new.get("/agent-tasks/").await.expect(200);
        buy(&world, &second["client_id"], &second["client_secret"]).await.expect(200);
        let listed = ada.get(&format!("{path}/credentials")).await.expect(200).clone();
        let ids: Vec<_> = listed.as_array().unwrap().iter().map(|entry| &entry["client_id"]).collect();
        assert_eq!(ids, [&first["client_id"], &second["client_id"]], "the oldest first");
        assert!(listed[0]["revoked_at"].is_string() && listed[1]["revoked_at"].is_null(), "{listed}");
        // Again is fine, and the first instant stays.
        let before = world.directory_footprint().await;
        ada.delete(&revoke).await.expect(204);
        assert_eq!(world.directory_footprint().await, before);
    }
    let trail = world.trail().await;
    assert_eq!(trail.iter().filter(|entry| *entry == &("revoked".to_owned(), "credential".to_owned())).count(), 2);
}

#[tokio::test]
async fn revocation_reaches_another_server_within_the_cache_time() {
    let world = World::with(|settings| settings.auth.directory_cache_seconds = 1).await;
    let beside = World::beside(&world).await;
    let agent = beside.agent().await;
    agent.get("/agent-tasks/").await.expect(200);
    let path = format!("/agents/reviewer/credentials/{}", world.seed.agent.client_id);
    world.person("ada").delete(&path).await.expect(204);
    eventually("the other server refuses the token", || async { agent.get("/agent-tasks/").await.status == 401 }).await;
}

#[tokio::test]
async fn a_credential_is_revoked_only_where_it_belongs() {
    let world = World::new().await;
    let ada = world.person("ada");
    let (agent, trigger) = (world.seed.agent.client_id.clone(), world.seed.trigger_client_id.clone());
    let before = world.directory_footprint().await;
    let nobody = "01890a5d-ac96-774b-bcce-b302099a8057";
    for path in [
        format!("/agents/reviewer/credentials/{trigger}"),
        format!("/triggers/cron/credentials/{agent}"),
        format!("/agents/reviewer/credentials/{nobody}"),
        "/agents/reviewer/credentials/x".to_owned(),
        format!("/agents/nobody/credentials/{agent}"),
        format!("/triggers/reviewer/credentials/{agent}"),
        format!("/agents/{}/credentials/{agent}", world.seed.agent.account_id),
    ] {
        ada.delete(&path).await.refused(404, "not_found");
    }
    ada.post_nothing("/agents/cron/credentials").await.refused(404, "not_found");
    ada.get("/triggers/reviewer/credentials").await.refused(404, "not_found");
    ada.post_raw("/agents/reviewer/credentials", "{").await.refused(400, "invalid_json");
    assert_eq!(world.directory_footprint().await, before);
    world.agent().await.get("/agent-tasks/").await.expect(200);
}

#[tokio::test]
async fn a_trigger_creates_tasks_until_it_is_deleted() {
    let world = World::new().await;
    let ada = world.person("ada");
    let made = ada.put("/triggers/nightly", &json!({"name": "Nightly", "external_ref": "cron-7"})).await;
    let made = made.expect(201).clone();
    let id = made["id"].as_str().unwrap();
    let trigger = account(&world, &made).await;
    let task = create(&trigger).await.expect(201)["short_id"].as_str().unwrap().to_owned();
    assert_eq!(world.log(&task).await[0]["actor_id"], made["id"]);
    let renamed = ada.put(&format!("/triggers/{id}"), &json!({"name": "Every night"})).await;
    assert_eq!((&renamed.expect(200)["slug"], &renamed.body["name"]), (&json!("nightly"), &json!("Every night")));
    assert_eq!((&renamed.body["external_ref"], &renamed.body["id"]), (&json!(null), &made["id"]));
    create(&trigger).await.expect(201);
    ada.put("/triggers/x", &json!({"name": 1, "external_ref": []})).await.invalid_at(&["/name", "/external_ref"]);
    let before = world.still(&task).await;
    ada.delete("/triggers/nightly").await.expect(204);
    create(&trigger).await.refused(401, "unauthenticated");
    assert_eq!(buy(&world, &made["client_id"], &made["client_secret"]).await.status, 401);
    world.unmoved(&before).await;
    for path in [format!("/triggers/{id}"), "/triggers/nightly/credentials".to_owned()] {
        ada.get(&path).await.refused(404, "not_found");
    }
    ada.post_nothing("/triggers/nightly/credentials").await.refused(404, "not_found");
    let next = ada.put("/triggers/nightly", &json!({"name": "Nightly"})).await.expect(201).clone();
    assert_ne!(next["id"], made["id"]);
    // The task belongs to the account that made it, not to the next one of its name.
    let next = account(&world, &next).await;
    next.get(&format!("/agent-tasks/{task}")).await.refused(403, "permission_denied");
    assert!(next.all("/agent-tasks/").await.is_empty());
}

#[tokio::test]
async fn no_credential_outlives_its_account_however_rotations_race_the_deletion() {
    let world = World::new().await;
    let ada = world.person("ada");
    for round in 0..6 {
        let path = format!("/{}/fresh", if round % 2 == 0 { "agents" } else { "triggers" });
        ada.put(&path, &json!({"name": "Fresh"})).await.expect(201);
        let (credentials, body) = (format!("{path}/credentials"), json!({}));
        let rotations = join_all((0..6).map(|_| ada.post(&credentials, &body)));
        let (rotated, gone) = tokio::join!(rotations, ada.delete(&path));
        gone.expect(204);
        for reply in rotated {
            if reply.status == 201 {
                let refused = buy(&world, &reply.body["client_id"], &reply.body["client_secret"]).await;
                assert_eq!((refused.status, &refused.body["error"]), (401, &json!("invalid_client")));
            } else {
                reply.refused(404, "not_found");
            }
        }
    }
    let live = "SELECT count(*) FROM agent_directory.credentials c JOIN agent_directory.service_accounts a
        ON a.id = c.account_id WHERE a.deleted_at IS NOT NULL AND c.revoked_at IS NULL";
    assert_eq!(sqlx::query_scalar::<_, i64>(live).fetch_one(&world.db).await.unwrap(), 0);
}
