//! Who may call what: every route of people, against every role.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Client, World};

/// The roles, as the members that the seed plants hold them.
const MEMBERS: [(&str, &str); 4] = [("vera", "viewer"), ("oscar", "operator"), ("abe", "approver"), ("ada", "admin")];

/// A route of people: method, path below the organization, body, the permission, and what it answers those who hold it.
/// `{t}` is a fresh task with an open request `{r}` that refers to an artifact `{a}`; `{o}` is another task and `{p}` a
/// project. Who sends artifacts, people and agents, is in `artifact_access.rs`.
fn routes() -> Vec<(Method, &'static str, Value, &'static str, u16)> {
    let (get, post, put, delete) = (Method::GET, Method::POST, Method::PUT, Method::DELETE);
    let new = json!({"agent_slug": "reviewer", "title": "t", "description": "d"});
    vec![
        (post.clone(), "/agent-tasks/", new, "create", 201),
        (get.clone(), "/agent-tasks/", Value::Null, "read", 200),
        (get.clone(), "/agent-tasks/waiting", Value::Null, "read", 200),
        (get.clone(), "/agent-tasks/{t}", Value::Null, "read", 200),
        (get.clone(), "/agent-tasks/{t}/events", Value::Null, "read", 200),
        (get.clone(), "/agent-tasks/{t}/sessions", Value::Null, "read", 200),
        (get.clone(), "/agent-tasks/{t}/requests", Value::Null, "read", 200),
        (get.clone(), "/agent-tasks/{t}/usage", Value::Null, "read", 200),
        (get.clone(), "/agent-tasks/{t}/proof", Value::Null, "read", 200),
        (get.clone(), "/agent-usage", Value::Null, "read", 200),
        (get.clone(), "/operations-log", Value::Null, "read", 200),
        (get.clone(), "/agent-events", Value::Null, "read", 200),
        (get.clone(), "/agent-tasks/{t}/relations", Value::Null, "read", 200),
        (get.clone(), "/agent-tasks/{t}/projects", Value::Null, "read", 200),
        (put.clone(), "/agent-tasks/{t}/requires/{o}", Value::Null, "manage", 204),
        (delete.clone(), "/agent-tasks/{t}/requires/{o}", Value::Null, "manage", 204),
        (put, "/agent-tasks/{t}/projects/{p}", Value::Null, "manage", 204),
        (delete, "/agent-tasks/{t}/projects/{p}", Value::Null, "manage", 204),
        (get.clone(), "/artifacts/{a}", Value::Null, "read", 200),
        (get, "/requests", Value::Null, "read", 200),
        (post.clone(), "/agent-tasks/{t}/pause", Value::Null, "manage", 200),
        (post.clone(), "/agent-tasks/{t}/resume", Value::Null, "manage", 200),
        (post.clone(), "/agent-tasks/{t}/cancel", Value::Null, "manage", 200),
        (post.clone(), "/agent-tasks/{t}/reassign", json!({"owner": "vera"}), "manage", 200),
        (post.clone(), "/agent-tasks/{t}/reply", json!({"body": "Go on."}), "manage", 200),
        (post.clone(), "/agents/reviewer/stop", Value::Null, "manage", 200),
        (
            post,
            "/agent-tasks/{t}/requests/{r}/resolve",
            json!({"status": "answered", "answer": "Yes."}),
            "resolve",
            201,
        ),
    ]
}

fn grants(role: &str, permission: &str) -> bool {
    match role {
        "viewer" => permission == "read",
        "operator" => ["read", "create", "manage"].contains(&permission),
        "approver" => ["read", "resolve"].contains(&permission),
        "admin" => true,
        other => panic!("{other} is no role"),
    }
}

async fn call(client: &Client, method: &Method, path: &str, body: &Value) -> crate::support::Reply {
    let mut request = client.request(method.clone(), path);
    if !body.is_null() {
        request = request.json(body);
    }
    client.send(request).await
}

/// The path of a route, with another task and the seeded project where it names them.
async fn path_of(world: &World, route: &str, task: &str, request: &str) -> String {
    let other = if route.contains("{o}") { world.task().await } else { String::new() };
    let project = world.seed.project_id.to_string();
    let mut route = route.to_owned();
    if route.contains("{a}") {
        let agent = world.agent().await;
        let (digest, _) = agent.send_artifact("x", "text/plain").await;
        let payload = json!({"body": "", "artifact": {"digest": digest}});
        agent.append(task, json!([{"type": "turn", "payload": payload}])).await.expect(201);
        route = route.replace("{a}", &digest);
    }
    route.replace("{t}", task).replace("{r}", request).replace("{o}", &other).replace("{p}", &project)
}

async fn standing(ada: &Client, task: &str) -> Value {
    ada.get(&format!("/agent-tasks/{task}")).await.expect(200).clone()
}

#[tokio::test]
async fn every_route_of_people_is_open_to_the_roles_that_hold_its_permission_and_to_no_others() {
    let world = World::with_artifacts().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    for (method, route, body, permission, status) in routes() {
        for (person, role) in MEMBERS {
            let task = world.task().await;
            let request = agent.ask(&task, &[]).await;
            let path = path_of(&world, route, &task, &request).await;
            let before = standing(&ada, &task).await;
            let reply = call(&world.person(person), &method, &path, &body).await;
            let what = format!("{role}: {method} {route}");
            if grants(role, permission) {
                assert_eq!(reply.status, status, "{what}: {}", reply.text);
            } else {
                let problem = reply.refused(403, "permission_denied");
                assert_eq!(problem["permission"], format!("agent_task:{permission}"), "{what}");
                assert_eq!(standing(&ada, &task).await, before, "{what} changed the task");
            }
        }
        // Who holds no role in the organization, and who does not say who they are.
        let task = world.task().await;
        let request = agent.ask(&task, &[]).await;
        let path = path_of(&world, route, &task, &request).await;
        let before = standing(&ada, &task).await;
        call(&world.person("stranger"), &method, &path, &body).await.refused(403, "organization_forbidden");
        call(&world.anyone(), &method, &path, &body).await.refused(401, "unauthenticated");
        assert_eq!(standing(&ada, &task).await, before, "{method} {route}");
    }
}

#[tokio::test]
async fn service_accounts_hold_no_permission_of_people() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let trigger = world.account(&world.seed.trigger_client_id, &world.seed.trigger_client_secret).await;
    for (method, route, body, permission, _) in routes() {
        if permission == "read" {
            continue;
        }
        let task = world.task().await;
        let request = agent.ask(&task, &[]).await;
        let path = path_of(&world, route, &task, &request).await;
        let before = standing(&ada, &task).await;
        let code = if permission == "resolve" { "person_required" } else { "permission_denied" };
        call(&agent, &method, &path, &body).await.refused(403, code);
        if permission != "create" {
            call(&trigger, &method, &path, &body).await.refused(403, code);
        }
        assert_eq!(standing(&ada, &task).await, before, "{method} {route}");
    }
    // A trigger creates only with an origin.
    let new = json!({"agent_slug": "reviewer", "title": "t", "description": "d"});
    trigger.post("/agent-tasks/", &new).await.refused(422, "invalid_body");
}

#[tokio::test]
async fn the_routes_of_the_harness_are_closed_to_people_and_to_other_accounts() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let other = crate::support::Seed::agent(&world.db, world.seed.organization_id, "packer").await;
    let packer = world.account(&other.client_id, &other.client_secret).await;
    let trigger = world.account(&world.seed.trigger_client_id, &world.seed.trigger_client_secret).await;
    let (task, session) = world.working(&agent).await;
    let request = agent.ask(&task, &[]).await;
    let before = standing(&ada, &task).await;
    let people = MEMBERS.map(|(person, _)| world.person(person));
    for client in people.iter().chain([&packer, &trigger]) {
        for (route, body) in [
            ("sessions".to_owned(), json!({"session_key": "x"})),
            (format!("sessions/{session}/heartbeat"), Value::Null),
            (format!("sessions/{session}/close"), json!({"reason": "x"})),
            ("events".to_owned(), json!({"events": [{"type": "turn", "payload": {"body": "x"}}]})),
            ("usage".to_owned(), json!({"idempotency_key": "x", "model_id": "sonnet", "tokens_in": 1})),
            ("requests".to_owned(), json!({"kind": "feedback", "title": "x"})),
            (format!("requests/{request}/withdraw"), Value::Null),
            ("outcome".to_owned(), json!({"outcome": "done_acted"})),
        ] {
            let path = format!("/agent-tasks/{task}/{route}");
            call(client, &Method::POST, &path, &body).await.refused(403, "agent_task_forbidden");
        }
    }
    assert_eq!(standing(&ada, &task).await, before);
}
