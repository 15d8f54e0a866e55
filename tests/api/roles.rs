//! Who may call what: every route of the document, by everybody who might try. A route that is not in the table fails.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Client, Reply, Seed, World};

/// Who calls, in the order of the columns. `nemo` is a member without a role, `grace` an administrator elsewhere. The task
/// is the reviewer's, delegated by the planner; the packer has nothing to do with it.
const CALLERS: [&str; 11] =
    ["nobody", "grace", "nemo", "vera", "oscar", "abe", "ada", "reviewer", "packer", "planner", "trigger"];

/// A route: its method and path, what a call that is allowed answers, and what each caller is told. `ok` is that answer,
/// everything else a refusal of [`refusal`].
const ROUTES: &[(&str, &str, u16, &str)] = &[
    //                                                           nobody elsewhere none read +manage +resolve all own other parent trigger
    ("GET", "/agent-tasks/", 200, "401 org per ok ok ok ok ok ok ok ok"),
    ("POST", "/agent-tasks/", 201, "401 org per per ok per ok per per per ok"),
    ("GET", "/agent-tasks/waiting", 200, "401 org per ok ok ok ok ok ok ok per"),
    ("GET", "/agent-tasks/{task}", 200, "401 org per ok ok ok ok ok task ok per"),
    ("GET", "/agent-tasks/{task}/events", 200, "401 org per ok ok ok ok ok task ok per"),
    ("GET", "/agent-tasks/{task}/proof", 200, "401 org per ok ok ok ok ok task ok per"),
    ("GET", "/agent-tasks/{task}/sessions", 200, "401 org per ok ok ok ok ok task ok per"),
    ("GET", "/agent-tasks/{task}/requests", 200, "401 org per ok ok ok ok ok task ok per"),
    ("GET", "/agent-tasks/{task}/usage", 200, "401 org per ok ok ok ok ok task ok per"),
    ("GET", "/agent-tasks/{task}/tree", 200, "401 org per ok ok ok ok ok task ok per"),
    ("GET", "/agent-tasks/{task}/relations", 200, "401 org per ok ok ok ok per per per per"),
    ("GET", "/agent-tasks/{task}/projects", 200, "401 org per ok ok ok ok per per per per"),
    ("GET", "/agent-events", 200, "401 org per ok ok ok ok ok ok ok ok"),
    ("GET", "/requests", 200, "401 org per ok ok ok ok per per per per"),
    ("GET", "/agent-usage", 200, "401 org per ok ok ok ok per per per per"),
    ("GET", "/operations-log", 200, "401 org per ok ok ok ok per per per per"),
    ("GET", "/artifacts/{digest}", 200, "401 org per ok ok ok ok ok 404 ok 404"),
    ("PUT", "/artifacts/{digest}", 200, "401 org per per ok per ok ok ok ok per"),
    ("POST", "/agent-tasks/{task}/pause", 200, "401 org per per ok per ok per per per per"),
    ("POST", "/agent-tasks/{task}/resume", 200, "401 org per per ok per ok per per per per"),
    ("POST", "/agent-tasks/{task}/cancel", 200, "401 org per per ok per ok per per per per"),
    ("POST", "/agent-tasks/{task}/reassign", 200, "401 org per per ok per ok per per per per"),
    ("POST", "/agent-tasks/{task}/reply", 200, "401 org per per ok per ok per per per per"),
    ("POST", "/agents/{agent}/stop", 200, "401 org per per ok per ok per per per per"),
    ("PUT", "/agent-tasks/{task}/requires/{other}", 204, "401 org per per ok per ok per per per per"),
    ("DELETE", "/agent-tasks/{task}/requires/{other}", 204, "401 org per per ok per ok per per per per"),
    ("PUT", "/agent-tasks/{task}/projects/{project}", 204, "401 org per per ok per ok per per per per"),
    ("DELETE", "/agent-tasks/{task}/projects/{project}", 204, "401 org per per ok per ok per per per per"),
    ("POST", "/agent-tasks/{task}/requests/{request}/resolve", 201, "401 org per per per ok ok ppl ppl ppl ppl"),
    ("POST", "/agent-tasks/{task}/sessions", 201, "401 org task task task task task ok task task task"),
    (
        "POST",
        "/agent-tasks/{task}/sessions/{session}/heartbeat",
        200,
        "401 org task task task task task ok task task task",
    ),
    ("POST", "/agent-tasks/{task}/sessions/{session}/close", 200, "401 org task task task task task ok task task task"),
    ("POST", "/agent-tasks/{task}/events", 201, "401 org task task task task task ok task task task"),
    ("POST", "/agent-tasks/{task}/usage", 201, "401 org task task task task task ok task task task"),
    ("POST", "/agent-tasks/{task}/requests", 201, "401 org task task task task task ok task task task"),
    (
        "POST",
        "/agent-tasks/{task}/requests/{request}/withdraw",
        200,
        "401 org task task task task task ok task task task",
    ),
    ("POST", "/agent-tasks/{task}/outcome", 200, "401 org task task task task task ok task task task"),
    ("POST", "/agent-tasks/{task}/children", 201, "401 org task task task task task ok task task task"),
    // The directory: members read, administrators change, service accounts do neither.
    ("GET", "", 200, "401 org ok ok ok ok ok per per per per"),
    ("PUT", "", 200, "401 org per per per per ok per per per per"),
    ("GET", "/members", 200, "401 org ok ok ok ok ok per per per per"),
    ("GET", "/members/{person}", 200, "401 org ok ok ok ok ok per per per per"),
    ("PUT", "/members/{person}", 200, "401 org per per per per ok per per per per"),
    ("DELETE", "/members/{person}", 204, "401 org per per per per ok per per per per"),
    ("GET", "/agents", 200, "401 org ok ok ok ok ok per per per per"),
    ("GET", "/agents/{agent}", 200, "401 org ok ok ok ok ok per per per per"),
    ("PUT", "/agents/{agent}", 200, "401 org per per per per ok per per per per"),
    ("DELETE", "/agents/{agent}", 204, "401 org per per per per ok per per per per"),
    ("GET", "/agents/{agent}/credentials", 200, "401 org ok ok ok ok ok per per per per"),
    ("POST", "/agents/{agent}/credentials", 201, "401 org per per per per ok per per per per"),
    ("DELETE", "/agents/{agent}/credentials/{client_id}", 204, "401 org per per per per ok per per per per"),
    ("GET", "/triggers", 200, "401 org ok ok ok ok ok per per per per"),
    ("GET", "/triggers/{trigger}", 200, "401 org ok ok ok ok ok per per per per"),
    ("PUT", "/triggers/{trigger}", 200, "401 org per per per per ok per per per per"),
    ("DELETE", "/triggers/{trigger}", 204, "401 org per per per per ok per per per per"),
    ("GET", "/triggers/{trigger}/credentials", 200, "401 org ok ok ok ok ok per per per per"),
    ("POST", "/triggers/{trigger}/credentials", 201, "401 org per per per per ok per per per per"),
    ("DELETE", "/triggers/{trigger}/credentials/{client_id}", 204, "401 org per per per per ok per per per per"),
    ("GET", "/models", 200, "401 org ok ok ok ok ok per per per per"),
    ("GET", "/models/{model}", 200, "401 org ok ok ok ok ok per per per per"),
    ("PUT", "/models/{model}", 200, "401 org per per per per ok per per per per"),
    ("DELETE", "/models/{model}", 204, "401 org per per per per ok per per per per"),
    ("GET", "/projects", 200, "401 org ok ok ok ok ok per per per per"),
    ("GET", "/projects/{project}", 200, "401 org ok ok ok ok ok per per per per"),
    ("PUT", "/projects/{project}", 200, "401 org per per per per ok per per per per"),
    ("DELETE", "/projects/{project}", 204, "401 org per per per per ok per per per per"),
    ("GET", "/directory-audit", 200, "401 org per per per per ok per per per per"),
];

/// Routes for everybody: they tell nothing of any organization.
const OPEN: [(&str, &str); 5] = [
    ("POST", "/auth/token"),
    ("GET", "/.well-known/jwks.json"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
];

fn refusal(told: &str) -> (u16, &'static str) {
    match told {
        "401" => (401, "unauthenticated"),
        "org" => (403, "organization_forbidden"),
        "per" => (403, "permission_denied"),
        "task" => (403, "agent_task_forbidden"),
        "ppl" => (403, "person_required"),
        "404" => (404, "not_found"),
        other => panic!("{other} is no refusal"),
    }
}

fn body(method: &str, path: &str) -> Value {
    let new = json!({"agent_slug": "reviewer", "title": "t", "description": "d"});
    match (method, path.rsplit('/').next().unwrap_or_default()) {
        ("GET" | "DELETE", _)
        | (_, "heartbeat" | "withdraw" | "pause" | "resume" | "cancel" | "stop" | "credentials") => Value::Null,
        ("POST", "" | "children") => new,
        (_, "reassign") => json!({"owner": "vera"}),
        (_, "reply") => json!({"body": "Go on."}),
        (_, "resolve") => json!({"status": "answered", "answer": "Yes."}),
        (_, "sessions") => json!({"session_key": "another"}),
        (_, "close") => json!({"reason": "done"}),
        (_, "events") => json!({"events": [{"type": "turn", "payload": {"body": "x"}}]}),
        (_, "usage") => json!({"idempotency_key": "x", "model_id": "sonnet", "tokens_in": 1}),
        (_, "requests") => json!({"kind": "feedback", "title": "x"}),
        (_, "outcome") => json!({"outcome": "done_acted"}),
        (_, "{person}") => json!({"name": "Spare", "roles": ["viewer"]}),
        (_, "{agent}") => json!({"name": "Spare", "version": 9, "prompt_version": 9}),
        (_, "{model}") => json!({"provider": "acme", "model_id": "spare"}),
        _ if path.is_empty() || path.contains("{trigger}") || path.starts_with("/projects") => json!({"name": "Spare"}),
        other => panic!("{other:?} has no body"),
    }
}

/// A model's names are its own.
fn named_after(mut body: Value, slug: &str) -> Value {
    if body["provider"] == "acme" {
        body["model_id"] = json!(slug);
    }
    body
}

/// What the routes name, fresh for each call that may change it.
struct Ground {
    names: Vec<(&'static str, String)>,
}

struct Cast {
    world: World,
    clients: Vec<Client>,
    artifact: String,
    made: usize,
}

impl Cast {
    async fn new() -> Self {
        let world = World::with_artifacts().await;
        let organization = world.seed.organization_id;
        Seed::plant(&world.db, "globex").await;
        sqlx::query(
            "WITH elsewhere AS (INSERT INTO agent_directory.members
                SELECT id, 'grace', '{admin}', NULL, NULL, NULL, now(), now() FROM agent_directory.organizations
                WHERE slug = 'globex')
             INSERT INTO agent_directory.members VALUES ($1, 'nemo', '{}', NULL, NULL, NULL, now(), now())",
        )
        .bind(organization)
        .execute(&world.db)
        .await
        .unwrap();
        let mut clients = vec![world.anyone()];
        clients.extend(CALLERS[1..7].iter().map(|person| world.person(person)));
        clients.push(world.agent().await);
        for slug in ["packer", "planner"] {
            let agent = Seed::agent(&world.db, organization, slug).await;
            clients.push(world.account(&agent.client_id, &agent.client_secret).await);
        }
        clients.push(world.trigger().await);
        let (artifact, sent) = clients[7].send_artifact("x", "text/plain").await;
        sent.expect(201);
        Self { world, clients, artifact, made: 0 }
    }

    fn client(&self, name: &str) -> &Client {
        &self.clients[CALLERS.iter().position(|caller| *caller == name).unwrap()]
    }

    /// A task of the reviewer's that the planner delegated, with everything that a route may name.
    async fn ground(&mut self, path: &str) -> Ground {
        self.made += 1;
        let spare = format!("spare-{}", self.made);
        let (ada, reviewer) = (self.client("ada"), self.client("reviewer"));
        let mut names = vec![("{digest}", self.artifact.clone())];
        if path.starts_with("/agent-tasks/{task}") || path.contains("{digest}") {
            let planned = self.world.task_with(json!({"agent_slug": "planner"})).await;
            let part = json!({"agent_slug": "reviewer", "title": "A part", "description": ""});
            let part = self.client("planner").on(&planned, "children", part).await;
            let task = part.expect(201)["short_id"].as_str().unwrap().to_owned();
            let payload = json!({"body": "", "artifact": {"digest": self.artifact}});
            reviewer.append(&task, json!([{"type": "turn", "payload": payload}])).await.expect(201);
            names.push(("{session}", reviewer.open_session(&task, "s").await));
            names.push(("{request}", reviewer.ask(&task, &[]).await));
            names.push(("{other}", self.world.task().await));
            names.push(("{project}", self.world.seed.project_id.to_string()));
            names.push(("{task}", task));
        } else {
            for (kind, placeholder) in
                [("agents", "{agent}"), ("triggers", "{trigger}"), ("models", "{model}"), ("projects", "{project}")]
            {
                if path.contains(placeholder) {
                    let body = named_after(body("PUT", &format!("/{kind}/{placeholder}")), &spare);
                    let made = ada.put(&format!("/{kind}/{spare}"), &body).await;
                    let made = made.expect(201);
                    names.push(("{client_id}", made["client_id"].as_str().unwrap_or_default().to_owned()));
                    names.push((placeholder, spare.clone()));
                }
            }
            if path.contains("{person}") {
                ada.put(&format!("/members/{spare}"), &json!({"roles": ["viewer"]})).await.expect(201);
                names.push(("{person}", spare.clone()));
            }
        }
        Ground { names }
    }

    async fn call(&self, caller: &str, method: &str, path: &str, ground: &Ground) -> Reply {
        let body = body_of(method, path);
        let mut named = path.to_owned();
        for (placeholder, name) in &ground.names {
            named = named.replace(placeholder, name);
        }
        let client = self.client(caller);
        let mut request = client.request(Method::from_bytes(method.as_bytes()).unwrap(), &named);
        request = match body {
            Sent::Nothing => request,
            Sent::Json(body) => request.json(&named_after(body, named.rsplit('/').next().unwrap())),
            Sent::Bytes(bytes) => request.body(bytes),
        };
        if caller == "trigger" && (method, path) == ("POST", "/agent-tasks/") {
            request = request.header("x-mandate-scheduled-task", "nightly").header("x-mandate-accountable", "ada");
        }
        client.send(request).await
    }

    async fn footprint(&self) -> String {
        self.world.footprint().await + &self.world.directory_footprint().await
    }
}

enum Sent {
    Nothing,
    Json(Value),
    Bytes(&'static str),
}

fn body_of(method: &str, path: &str) -> Sent {
    if (method, path) == ("PUT", "/artifacts/{digest}") {
        return Sent::Bytes("x");
    }
    if method == "PUT" && path.starts_with("/agent-tasks/") {
        return Sent::Nothing;
    }
    match body(method, path) {
        Value::Null => Sent::Nothing,
        body => Sent::Json(body),
    }
}

#[test]
fn every_route_of_the_document_is_in_the_table_and_no_other() {
    let document = serde_json::to_value(mandate::http::document()).unwrap();
    let mut documented = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        let methods =
            operations.as_object().unwrap().keys().filter(|key| !["parameters", "summary"].contains(&key.as_str()));
        documented.extend(methods.map(|method| (method.to_uppercase(), path.clone())));
    }
    let own = ROUTES.iter().map(|(method, path, ..)| ((*method).to_owned(), format!("/organizations/{{org}}{path}")));
    let open = OPEN.iter().map(|(method, path)| ((*method).to_owned(), (*path).to_owned()));
    let listed: Vec<_> = own.chain(open).collect();
    assert_eq!(listed.iter().cloned().collect::<BTreeSet<_>>(), documented);
    assert_eq!(listed.len(), documented.len(), "a route is listed twice");
}

#[tokio::test]
async fn every_route_answers_every_caller_as_the_table_says() {
    let mut cast = Cast::new().await;
    let mut wrong = Vec::new();
    for (method, path, status, row) in ROUTES {
        let row: Vec<_> = row.split(' ').collect();
        assert_eq!(row.len(), CALLERS.len(), "{method} {path}");
        let mut ground = cast.ground(path).await;
        let before = cast.footprint().await;
        // Refusals first: they write nothing.
        for (caller, told) in CALLERS.iter().zip(&row).filter(|(_, told)| **told != "ok") {
            let reply = cast.call(caller, method, path, &ground).await;
            let expected = refusal(told);
            if (reply.status, reply.body["code"].as_str().unwrap_or_default()) != expected {
                wrong.push(format!("{method} {path} by {caller}: {expected:?}, not {} {}", reply.status, reply.text));
            } else if *told == "per" {
                assert!(reply.body["permission"].is_string(), "{}", reply.text);
            }
        }
        if cast.footprint().await != before {
            wrong.push(format!("{method} {path}: a refusal wrote something"));
        }
        for (caller, _) in CALLERS.iter().zip(&row).filter(|(_, told)| **told == "ok") {
            let reply = cast.call(caller, method, path, &ground).await;
            if reply.status != *status {
                wrong.push(format!("{method} {path} by {caller}: {status}, not {} {}", reply.status, reply.text));
            }
            if *method != "GET" {
                ground = cast.ground(path).await;
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test]
async fn what_is_open_to_everybody_needs_no_token() {
    let world = World::new().await;
    let anyone = world.anyone();
    for (method, path) in OPEN.iter().filter(|(method, _)| *method == "GET") {
        let url = anyone.request(Method::from_bytes(method.as_bytes()).unwrap(), &format!("/{path}"));
        assert_eq!(url.send().await.unwrap().status(), 200, "{path}");
    }
    // The token route is what a secret is for.
    world.agent().await.get("/agent-tasks/").await.expect(200);
}
