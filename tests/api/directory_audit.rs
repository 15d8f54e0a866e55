//! Who may change the directory and who may read it, and the trail that every change leaves.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Client, Reply, Seed, World};

/// Every change: method, path, body. In this order each finds what it needs.
fn changes() -> Vec<(Method, &'static str, Value)> {
    let (put, post, delete) = (Method::PUT, Method::POST, Method::DELETE);
    let named = || json!({"name": "Name", "external_ref": "e-1"});
    let model = json!({"provider": "p", "model_id": "m", "output_cost_per_million": "2"});
    vec![
        (put.clone(), "", named()),
        (put.clone(), "/members/grace", json!({"roles": ["viewer"]})),
        (delete.clone(), "/members/grace", Value::Null),
        (put.clone(), "/agents/fresh", named()),
        (post.clone(), "/agents/fresh/credentials", Value::Null),
        (delete.clone(), "/agents/reviewer/credentials/{agent}", Value::Null),
        (delete.clone(), "/agents/fresh", Value::Null),
        (delete.clone(), "/agents/reviewer?force=true", Value::Null),
        (put.clone(), "/triggers/fresh", named()),
        (post, "/triggers/fresh/credentials", Value::Null),
        (delete.clone(), "/triggers/cron/credentials/{trigger}", Value::Null),
        (delete.clone(), "/triggers/fresh", Value::Null),
        (put.clone(), "/models/fresh", model),
        (delete.clone(), "/models/fresh", Value::Null),
        (put, "/projects/fresh", named()),
        (delete, "/projects/fresh", Value::Null),
    ]
}

const READS: [&str; 13] = [
    "",
    "/members",
    "/members/ada",
    "/agents",
    "/agents/reviewer",
    "/agents/reviewer/credentials",
    "/triggers",
    "/triggers/cron",
    "/triggers/cron/credentials",
    "/models",
    "/models/sonnet",
    "/projects",
    "/projects/app",
];

async fn send(client: &Client, method: &Method, path: &str, body: &Value) -> Reply {
    let request = client.request(method.clone(), path);
    client.send(if body.is_null() { request } else { request.json(body) }).await
}

fn filled(world: &World, path: &str) -> String {
    path.replace("{agent}", &world.seed.agent.client_id).replace("{trigger}", &world.seed.trigger_client_id)
}

#[tokio::test]
async fn only_administrators_change_the_directory() {
    let world = World::new().await;
    let task = world.task().await;
    let ada = world.person("ada");
    // What the deletions among the changes name is there, so that nothing but the caller decides.
    for (kind, body) in [
        ("agents", json!({"name": "n"})),
        ("triggers", json!({"name": "n"})),
        ("projects", json!({"name": "n"})),
        ("models", json!({"provider": "p", "model_id": "m2"})),
    ] {
        ada.put(&format!("/{kind}/fresh"), &body).await.expect(201);
    }
    ada.put("/members/grace", &json!({"roles": []})).await.expect(201);
    let (runtime, directory) = (world.footprint().await, world.directory_footprint().await);
    let (agent, trigger) = (world.agent().await, world.trigger().await);
    let callers = [
        (world.person("vera"), "permission_denied", json!("agent_directory:manage")),
        (world.person("oscar"), "permission_denied", json!("agent_directory:manage")),
        (world.person("abe"), "permission_denied", json!("agent_directory:manage")),
        (world.person("grace"), "permission_denied", json!(null)),
        (agent, "permission_denied", json!(null)),
        (trigger, "permission_denied", json!(null)),
        (world.person("mallory"), "organization_forbidden", json!(null)),
        (world.person_claiming("vera", json!({"roles": ["admin"]})), "permission_denied", json!(null)),
    ];
    for (method, path, body) in changes() {
        let path = filled(&world, path);
        for (caller, code, permission) in &callers {
            let reply = send(caller, &method, &path, &body).await;
            let problem = reply.refused(403, code);
            if !permission.is_null() {
                assert_eq!(&problem["permission"], permission, "{method} {path}");
            }
        }
        world.anyone().send(world.anyone().request(method, &path)).await.refused(401, "unauthenticated");
    }
    assert_eq!((world.footprint().await, world.directory_footprint().await), (runtime, directory));
    assert_eq!(ada.get(&format!("/agent-tasks/{task}")).await.expect(200)["status"], "queued");
}

#[tokio::test]
async fn members_read_the_directory_and_nobody_else() {
    let world = World::new().await;
    world.person("ada").put("/members/grace", &json!({"roles": []})).await.expect(201);
    let (agent, trigger) = (world.agent().await, world.trigger().await);
    for path in READS {
        // Grace has no role.
        for person in ["vera", "oscar", "abe", "ada", "grace"] {
            world.person(person).get(path).await.expect(200);
        }
        for caller in [&agent, &trigger] {
            let refused = caller.get(path).await;
            assert_eq!(refused.refused(403, "permission_denied")["permission"], "agent_task:read", "{path}");
        }
        world.person("mallory").get(path).await.refused(403, "organization_forbidden");
        world.anyone().get(path).await.refused(401, "unauthenticated");
    }
    // Service accounts learn nothing of what there is.
    agent.get("/agents/nobody").await.refused(403, "permission_denied");
    trigger.put("/agents/01890a5d-ac96-774b-bcce-b302099a8057", &json!({})).await.refused(403, "permission_denied");
    // Who may read but not change learns first whether it is there.
    world.person("vera").delete("/agents/nobody").await.refused(404, "not_found");
}

#[tokio::test]
async fn only_administrators_read_the_audit_trail() {
    let world = World::new().await;
    world.person("ada").get("/directory-audit").await.expect(200);
    for caller in [world.person("vera"), world.person("oscar"), world.person("abe"), world.agent().await] {
        let refused = caller.get("/directory-audit").await;
        assert_eq!(refused.refused(403, "permission_denied")["permission"], "agent_directory:manage");
    }
    world.trigger().await.get("/directory-audit").await.refused(403, "permission_denied");
    world.person("mallory").get("/directory-audit").await.refused(403, "organization_forbidden");
}

#[tokio::test]
async fn an_administrator_of_another_organization_sees_and_changes_nothing_here() {
    let world = World::new().await;
    let globex = Seed::plant(&world.db, "globex").await;
    let theirs = world.person("ada").in_organization("globex");
    theirs.put("/members/grace", &json!({"roles": ["admin"]})).await.expect(201);
    let grace = world.person("grace");
    grace.in_organization("globex").get("/agents").await.expect(200);
    let before = world.directory_footprint().await;
    for (method, path, body) in changes() {
        let path = filled(&world, path);
        let foreign = send(&grace, &method, &path, &body).await;
        let unknown = send(&grace.in_organization("nowhere"), &method, &path, &body).await;
        assert_eq!(foreign.refused(403, "organization_forbidden")["detail"], unknown.body["detail"]);
    }
    for path in READS {
        grace.get(path).await.refused(403, "organization_forbidden");
    }
    // Ids of one organization name nothing in another.
    let grace = grace.in_organization("globex");
    let (agent, project) = (world.seed.agent.id, world.seed.project_id);
    for path in [format!("/agents/{agent}"), format!("/projects/{project}")] {
        grace.get(&path).await.refused(404, "not_found");
        grace.put(&path, &json!({"name": "x"})).await.refused(404, "not_found");
        grace.delete(&path).await.refused(404, "not_found");
    }
    let credential = format!("/agents/reviewer/credentials/{}", world.seed.agent.client_id);
    grace.delete(&credential).await.refused(404, "not_found");
    assert_eq!(world.directory_footprint().await, before);
    // The same slugs live side by side.
    grace.delete("/projects/app").await.expect(204);
    assert_eq!(world.person("ada").get("/projects/app").await.expect(200)["id"], json!(project));
    assert_ne!(globex.project_id, project);
    // Each sees its own trail.
    assert!(world.trail().await.is_empty());
    let trail = grace.all("/directory-audit").await;
    let actors: Vec<_> = trail.iter().map(|entry| (&entry["actor_id"], &entry["action"])).collect();
    assert_eq!(actors, [(&json!("grace"), &json!("deleted")), (&json!("ada"), &json!("created"))]);
}

#[tokio::test]
async fn every_change_leaves_one_row_that_says_who_did_what() {
    let world = World::new().await;
    let ada = world.person("ada");
    let secrets = [world.seed.agent.client_secret.clone(), world.seed.trigger_client_secret.clone()];
    let mut secrets = Vec::from(secrets);
    for (method, path, body) in changes() {
        let reply = send(&ada, &method, &filled(&world, path), &body).await;
        assert!([200, 201, 204].contains(&reply.status), "{method} {path}: {}", reply.text);
        secrets.extend(reply.body["client_secret"].as_str().map(str::to_owned));
    }
    assert_eq!(secrets.len(), 6);
    let expected = "updated organization, created member, deleted member, created agent, created credential, \
        created credential, revoked credential, revoked credential, revoked credential, deleted agent, \
        updated agent, deleted agent, created trigger, created credential, created credential, revoked credential, \
        revoked credential, revoked credential, deleted trigger, created model, deleted model, created project, \
        deleted project";
    let trail: Vec<_> = world.trail().await.into_iter().map(|(action, kind)| format!("{action} {kind}")).collect();
    assert_eq!(trail.join(", "), expected);
    let read = ada.get("/directory-audit?limit=100").await;
    for secret in &secrets {
        assert!(!read.text.contains(secret.as_str()), "the trail has a secret");
    }
    for word in ["secret", "hash", "mds_"] {
        assert!(!read.text.contains(word), "the trail says {word}");
    }
    let entries = read.expect(200).as_array().unwrap();
    for entry in entries {
        assert_eq!((&entry["actor_kind"], &entry["actor_id"]), (&json!("human"), &json!("ada")));
        let (before, after) = (&entry["before"], &entry["after"]);
        match entry["action"].as_str().unwrap() {
            "created" => assert!(before.is_null() && after.is_object(), "{entry}"),
            "deleted" => assert!(before.is_object() && after.is_null(), "{entry}"),
            _ => assert!(before.is_object() && after.is_object() && before != after, "{entry}"),
        }
        let record = if after.is_null() { before } else { after };
        let id = ["client_id", "person_id", "id"].into_iter().find_map(|name| record.get(name)).unwrap();
        assert_eq!(&entry["subject_id"], id);
    }
    let first = entries.last().unwrap();
    assert_eq!((&first["before"]["name"], &first["after"]["name"]), (&json!("acme"), &json!("Name")));
    assert_eq!(first["at"], first["after"]["updated_at"]);
    // Pages lead through all of it, the newest first, and a new change disturbs none of them.
    let whole: Vec<Value> = entries.clone();
    let page = ada.get("/directory-audit?limit=10").await;
    ada.put("/projects/later", &json!({"name": "n"})).await.expect(201);
    let rest = ada.all(&format!("/{}", page.next().unwrap())).await;
    assert_eq!([page.body.as_array().unwrap().clone(), rest].concat(), whole);
    ada.get("/directory-audit?cursor=x").await.refused(400, "invalid_cursor");
    ada.get("/directory-audit?limit=101").await.invalid_at(&["limit"]);
}

#[tokio::test]
async fn a_put_that_changes_nothing_writes_nothing() {
    let world = World::new().await;
    let ada = world.person("ada");
    let puts = [
        ("", json!({"name": "Acme", "external_ref": "e"})),
        ("/members/grace", json!({"roles": ["operator", "viewer"], "email": "g@example.com"})),
        ("/agents/fresh", json!({"name": "n", "version": 2, "settings": {"task_budget": "5", "max_depth": 3}})),
        ("/triggers/fresh", json!({"name": "n"})),
        (
            "/models/fresh",
            json!({"provider": "p", "model_id": "m", "aliases": ["b", "a"], "input_cost_per_million": 1}),
        ),
        ("/projects/fresh", json!({"name": "n"})),
    ];
    for (path, body) in &puts {
        ada.put(path, body).await;
        let (read, before) = (ada.get(path).await, world.directory_footprint().await);
        ada.put(path, body).await.expect(200);
        assert_eq!(ada.get(path).await.expect(200), read.expect(200));
        assert_eq!(world.directory_footprint().await, before, "{path}");
    }
    // Written otherwise, it is the same: numbers and strings, defaults and their absence.
    let before = world.directory_footprint().await;
    let settings = json!({"task_budget": 5.00, "max_depth": 3, "max_children": 50, "monthly_cost_cap": null});
    ada.put("/agents/fresh", &json!({"name": "n", "settings": settings})).await.expect(200);
    ada.put("/members/GRACE", &json!({"roles": ["viewer", "operator"], "email": "g@example.com"})).await.expect(200);
    assert_eq!(world.directory_footprint().await, before);
}
