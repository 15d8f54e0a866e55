//! Tenants: what belongs to another organization answers like what does not exist.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Client, Reply, Seed, World, digest_of};

const UNKNOWN: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

/// Another organization with the same people, where somebody works.
struct Neighbour {
    seed: Seed,
    agent: Client,
    task_id: String,
    session: String,
    request: String,
    report: String,
    event: String,
}

async fn neighbour(world: &World) -> Neighbour {
    let seed = Seed::plant(&world.db, "globex").await;
    let account = world.account(&seed.agent.client_id, &seed.agent.client_secret).await;
    let (ada, agent) = (world.person("ada").in_organization("globex"), account.in_organization("globex"));
    let body = json!({"agent_slug": "reviewer", "title": "Theirs", "description": "", "idempotency_key": "theirs"});
    // One more than here, so that T-2 is theirs alone.
    ada.post("/agent-tasks/", &json!({"agent_slug": "reviewer", "title": "x", "description": ""})).await.expect(201);
    let task = ada.post("/agent-tasks/", &body).await;
    assert_eq!(task.expect(201)["short_id"], "T-2");
    let session = agent.open_session("T-2", "theirs").await;
    let event =
        agent.say("T-2", &session, "theirs").await.expect(201)["written"][0]["event_id"].as_str().unwrap().to_owned();
    let report = agent.spend("T-2", "theirs", 1, 1).await.expect(201)["id"].as_str().unwrap().to_owned();
    let request = agent.ask("T-2", &["yes"]).await;
    Neighbour { seed, agent, task_id: task.body["id"].as_str().unwrap().to_owned(), session, request, report, event }
}

/// The answer without what tells one call from another.
fn essence(reply: &Reply) -> (u16, Value) {
    let mut body = reply.body.clone();
    if let Some(body) = body.as_object_mut() {
        body.remove("request_id");
    }
    (reply.status, body)
}

/// Who calls a route.
#[derive(Clone, Copy)]
enum By {
    Person,
    Harness,
}
use By::{Harness, Person};

/// Every route of the document whose path names something within the organization, with who may call it and a right
/// body.
fn routes() -> Vec<(&'static str, &'static str, By, Value)> {
    let none = Value::Null;
    let answer = json!({"status": "answered", "answer": "a"});
    let event = json!({"events": [{"type": "turn", "payload": {"body": "x"}}]});
    let part = json!({"agent_slug": "reviewer", "title": "t", "description": "", "idempotency_key": "theirs"});
    let name = json!({"name": "Renamed"});
    vec![
        ("GET", "/agent-tasks/{task}", Person, none.clone()),
        ("GET", "/agent-tasks/{task}/events", Person, none.clone()),
        ("GET", "/agent-tasks/{task}/proof", Person, none.clone()),
        ("GET", "/agent-tasks/{task}/sessions", Person, none.clone()),
        ("GET", "/agent-tasks/{task}/requests", Person, none.clone()),
        ("GET", "/agent-tasks/{task}/usage", Person, none.clone()),
        ("GET", "/agent-tasks/{task}/tree", Person, none.clone()),
        ("GET", "/agent-tasks/{task}/relations", Person, none.clone()),
        ("GET", "/agent-tasks/{task}/projects", Person, none.clone()),
        ("POST", "/agent-tasks/{task}/pause", Person, json!({})),
        ("POST", "/agent-tasks/{task}/resume", Person, json!({})),
        ("POST", "/agent-tasks/{task}/cancel", Person, json!({"force": true})),
        ("POST", "/agent-tasks/{task}/reassign", Person, json!({"owner": "ada"})),
        ("POST", "/agent-tasks/{task}/reply", Person, json!({"body": "x"})),
        ("PUT", "/agent-tasks/{task}/requires/{other}", Person, none.clone()),
        ("DELETE", "/agent-tasks/{task}/requires/{other}", Person, none.clone()),
        ("PUT", "/agent-tasks/{task}/projects/{project}", Person, none.clone()),
        ("DELETE", "/agent-tasks/{task}/projects/{project}", Person, none.clone()),
        ("POST", "/agent-tasks/{task}/requests/{request}/resolve", Person, answer),
        ("POST", "/agent-tasks/{task}/requests/{request}/withdraw", Harness, json!({})),
        ("POST", "/agent-tasks/{task}/sessions", Harness, json!({"session_key": "k"})),
        ("POST", "/agent-tasks/{task}/sessions/{session}/heartbeat", Harness, json!({})),
        ("POST", "/agent-tasks/{task}/sessions/{session}/close", Harness, json!({"reason": "r"})),
        ("POST", "/agent-tasks/{task}/events", Harness, event),
        ("POST", "/agent-tasks/{task}/usage", Harness, json!({"idempotency_key": "theirs", "model_id": "sonnet"})),
        ("POST", "/agent-tasks/{task}/requests", Harness, json!({"kind": "feedback", "title": "t"})),
        ("POST", "/agent-tasks/{task}/children", Harness, part),
        ("POST", "/agent-tasks/{task}/outcome", Harness, json!({"outcome": "done_acted"})),
        ("GET", "/artifacts/{digest}", Person, none.clone()),
        ("PUT", "/artifacts/{digest}", Person, none.clone()),
        ("GET", "/members/{person}", Person, none.clone()),
        ("PUT", "/members/{person}", Person, json!({"roles": ["viewer"]})),
        ("DELETE", "/members/{person}", Person, none.clone()),
        ("GET", "/agents/{agent}", Person, none.clone()),
        ("PUT", "/agents/{agent}", Person, name.clone()),
        ("DELETE", "/agents/{agent}", Person, none.clone()),
        ("POST", "/agents/{agent}/stop", Person, none.clone()),
        ("GET", "/agents/{agent}/credentials", Person, none.clone()),
        ("POST", "/agents/{agent}/credentials", Person, none.clone()),
        ("DELETE", "/agents/{agent}/credentials/{client_id}", Person, none.clone()),
        ("GET", "/triggers/{trigger}", Person, none.clone()),
        ("PUT", "/triggers/{trigger}", Person, name.clone()),
        ("DELETE", "/triggers/{trigger}", Person, none.clone()),
        ("GET", "/triggers/{trigger}/credentials", Person, none.clone()),
        ("POST", "/triggers/{trigger}/credentials", Person, none.clone()),
        ("DELETE", "/triggers/{trigger}/credentials/{client_id}", Person, none.clone()),
        ("GET", "/models/{model}", Person, none.clone()),
        ("PUT", "/models/{model}", Person, json!({"provider": "acme", "model_id": "renamed"})),
        ("DELETE", "/models/{model}", Person, none.clone()),
        ("GET", "/projects/{project}", Person, none.clone()),
        ("PUT", "/projects/{project}", Person, name),
        ("DELETE", "/projects/{project}", Person, none),
    ]
}

/// Whether the route makes what it names: `PUT` of a record by its slug, a person's id or a digest.
fn makes(method: &str, path: &str) -> bool {
    method == "PUT" && path.matches('/').count() == 2
}

/// What a path can name: here, at the neighbour's by its name and maybe by its id, and nowhere in the same spellings.
struct Named {
    placeholder: &'static str,
    ours: String,
    theirs: Vec<String>,
    nobodys: Vec<String>,
}

#[test]
fn every_route_that_names_something_is_tried() {
    let document = serde_json::to_value(mandate::http::document()).unwrap();
    let mut documented = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        let Some(own) = path.strip_prefix("/organizations/{org}").filter(|own| own.contains('{')) else { continue };
        let methods = operations.as_object().unwrap().keys().filter(|key| *key != "parameters" && *key != "summary");
        documented.extend(methods.map(|method| (method.to_uppercase(), own.to_owned())));
    }
    let tried: Vec<_> = routes().into_iter().map(|(method, path, ..)| (method.to_owned(), path.to_owned())).collect();
    assert_eq!(tried.len(), documented.len(), "a route is listed twice");
    assert_eq!(tried.into_iter().collect::<BTreeSet<_>>(), documented);
}

/// The neighbour's records that have other names than ours.
async fn names(world: &World, theirs: &Neighbour, ours: [&str; 3]) -> Vec<Named> {
    let ada = world.person("ada").in_organization("globex");
    let id = |reply: &Reply| reply.expect(201)["id"].as_str().unwrap().to_owned();
    let agent = ada.put("/agents/their-agent", &json!({"name": "Theirs"})).await;
    let trigger = ada.put("/triggers/their-trigger", &json!({"name": "Theirs"})).await;
    let model = ada.put("/models/their-model", &json!({"provider": "acme", "model_id": "their-model"})).await;
    let project = ada.put("/projects/their-project", &json!({"name": "Theirs"})).await;
    ada.put("/members/grace", &json!({"roles": ["admin"]})).await.expect(201);
    let (digest, sent) = ada.send_artifact("Theirs.", "text/plain").await;
    sent.expect(201);
    let (own, sent) = world.person("ada").send_artifact("Ours.", "text/plain").await;
    sent.expect(201);
    let credential = |reply: &Reply| reply.body["client_id"].as_str().unwrap().to_owned();
    let [task, session, request] = ours;
    let named = |placeholder, ours: &str, theirs: Vec<String>| {
        let unknown = |name: &String| match placeholder {
            _ if uuid::Uuid::parse_str(name).is_ok() => UNKNOWN.to_owned(),
            "{digest}" => digest_of(b"Nobody's."),
            _ if name == "T-2" => "T-99".to_owned(),
            _ => "nobodys".to_owned(),
        };
        Named { placeholder, ours: ours.to_owned(), nobodys: theirs.iter().map(unknown).collect(), theirs }
    };
    vec![
        named("{task}", task, vec!["T-2".to_owned()]),
        named("{other}", task, vec!["T-2".to_owned()]),
        named("{session}", session, vec![theirs.session.clone()]),
        named("{request}", request, vec![theirs.request.clone()]),
        named("{agent}", "reviewer", vec!["their-agent".to_owned(), id(&agent)]),
        named("{trigger}", "cron", vec!["their-trigger".to_owned(), id(&trigger)]),
        named("{model}", "sonnet", vec!["their-model".to_owned(), id(&model)]),
        named("{project}", "app", vec!["their-project".to_owned(), id(&project)]),
        named("{person}", "oscar", vec!["grace".to_owned()]),
        named("{client_id}", &world.seed.agent.client_id, vec![credential(&agent), credential(&trigger)]),
        named("{digest}", &own, vec![digest]),
    ]
}

async fn call(client: &Client, method: &str, path: &str, body: &Value) -> Reply {
    let request = client.request(Method::from_bytes(method.as_bytes()).unwrap(), path);
    client.send(if body.is_null() { request } else { request.json(body) }).await
}

#[tokio::test]
async fn an_id_of_another_organization_answers_like_an_unknown_one() {
    let world = World::with_artifacts().await;
    let theirs = neighbour(&world).await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let (ours, our_session) = world.working(&agent).await;
    assert_eq!(ours, "T-1");
    let our_request = agent.ask(&ours, &[]).await;
    let names = names(&world, &theirs, [&ours, &our_session, &our_request]).await;
    let before = world.footprint().await + &world.directory_footprint().await;
    for (method, path, by, body) in routes() {
        let client = if matches!(by, Person) { &ada } else { &agent };
        let places: Vec<_> = names.iter().filter(|name| path.contains(name.placeholder)).collect();
        let count = path.matches('{').count();
        assert_eq!(places.len(), count, "{path} names something that has no example");
        // Each alone beside ours, and all at once; by name and by id.
        let mut choices: Vec<Vec<_>> = places.iter().map(|place| vec![place.placeholder]).collect();
        choices.push(places.iter().map(|place| place.placeholder).collect());
        for chosen in choices {
            let spellings = places.iter().filter(|place| chosen.contains(&place.placeholder));
            let spellings = spellings.map(|place| place.theirs.len()).max().unwrap();
            // By its name a record is made, which has a test of its own.
            for spelling in usize::from(makes(method, path))..spellings {
                let fill = |foreign: bool| {
                    places.iter().fold(path.to_owned(), |path, place| {
                        let spellings = if foreign { &place.theirs } else { &place.nobodys };
                        let strange = chosen.contains(&place.placeholder);
                        let name = if strange { &spellings[spelling.min(spellings.len() - 1)] } else { &place.ours };
                        path.replace(place.placeholder, name)
                    })
                };
                let (foreign, unknown) = (fill(true), fill(false));
                let answers = [
                    essence(&call(client, method, &foreign, &body).await),
                    essence(&call(client, method, &unknown, &body).await),
                ];
                assert_eq!(answers[0].0, 404, "{method} {foreign}: {}", answers[0].1);
                assert_eq!(answers[0], answers[1], "{method} {foreign}");
            }
        }
    }
    // A task's id is no name of it, in whichever organization.
    ada.get(&format!("/agent-tasks/{}", theirs.task_id)).await.refused(404, "task_not_found");
    assert_eq!(world.footprint().await + &world.directory_footprint().await, before);
    // Ours is still open.
    assert_eq!(ada.get(&format!("/agent-tasks/{ours}")).await.body["open_requests"], 1);
    ada.post(
        &format!("/agent-tasks/{ours}/requests/{our_request}/resolve"),
        &json!({"status": "answered", "answer": "a"}),
    )
    .await
    .expect(201);
}

#[tokio::test]
async fn a_name_of_another_organization_is_as_free_as_an_unknown_one() {
    let world = World::with_artifacts().await;
    let theirs = neighbour(&world).await;
    let (ada, there) = (world.person("ada"), world.person("ada").in_organization("globex"));
    let names = names(&world, &theirs, ["T-1", UNKNOWN, UNKNOWN]).await;
    let makers: Vec<_> = routes().into_iter().filter(|(method, path, ..)| makes(method, path)).collect();
    assert_eq!(makers.len(), 6);
    for (method, path, _, body) in makers {
        let place = names.iter().find(|name| path.contains(name.placeholder)).unwrap();
        let filled = |name: &str| path.replace(place.placeholder, name);
        let kept = there.get(&filled(&place.theirs[0])).await;
        let mut members = Vec::new();
        for (name, bytes) in [(&place.theirs[0], "Theirs."), (&place.nobodys[0], "Nobody's.")] {
            let reply = if path.starts_with("/artifacts/") {
                ada.send_artifact(bytes, "text/plain").await.1
            } else {
                let mut body = body.clone();
                if path.starts_with("/models/") {
                    body["model_id"] = json!(name);
                }
                call(&ada, method, &filled(name), &body).await
            };
            let own = reply.expect(201).as_object().unwrap();
            members.push(own.iter().map(|(name, value)| (name.clone(), value.is_null())).collect::<Vec<_>>());
            if let Some(id) = kept.body.get("id") {
                assert_ne!(own["id"], *id, "{path}");
            }
        }
        assert_eq!(members[0], members[1], "{path}");
        let now = there.get(&filled(&place.theirs[0])).await;
        assert_eq!((now.status, &now.text), (200, &kept.text), "{path}");
    }
}

#[tokio::test]
async fn an_id_of_another_organization_in_a_body_or_query_answers_like_an_unknown_one() {
    let world = World::new().await;
    let theirs = neighbour(&world).await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let (ours, _) = world.working(&agent).await;
    Seed::agent(&world.db, theirs.seed.organization_id, "only-theirs").await;
    sqlx::query("INSERT INTO agent_directory.members VALUES ($1, 'grace', '{admin}', NULL, NULL, NULL, now(), now())")
        .bind(theirs.seed.organization_id)
        .execute(&world.db)
        .await
        .unwrap();
    sqlx::query("INSERT INTO agent_directory.model_names SELECT organization_id, 'their-model', id FROM agent_directory.models WHERE organization_id = $1")
        .bind(theirs.seed.organization_id)
        .execute(&world.db)
        .await
        .unwrap();
    let before = world.footprint().await;
    let task = |member: &str, value: &str| {
        let mut body = json!({"agent_slug": "reviewer", "title": "t", "description": ""});
        body[member] = json!(value);
        body
    };
    let usage = |member: &str, value: &str| {
        let mut body = json!({"idempotency_key": "k", "model_id": "sonnet", "tokens_in": 1});
        body[member] = json!(value);
        body
    };
    let path = |action: &str| format!("/agent-tasks/{ours}/{action}");
    let project = theirs.seed.project_id.to_string();
    let turn = json!([{"type": "turn", "payload": {"body": "x"}}]);
    let calls = [
        (&ada, "/agent-tasks/".to_owned(), task("agent_slug", "only-theirs"), task("agent_slug", "nobodys")),
        (&ada, "/agent-tasks/".to_owned(), task("project_id", &project), task("project_id", UNKNOWN)),
        (&ada, path("reassign"), json!({"owner": "grace"}), json!({"owner": "nobody"})),
        (&agent, path("usage"), usage("session_id", &theirs.session), usage("session_id", UNKNOWN)),
        (&agent, path("usage"), usage("corrects", &theirs.report), usage("corrects", UNKNOWN)),
        (
            &agent,
            path("events"),
            json!({"session_id": theirs.session, "events": turn}),
            json!({"session_id": UNKNOWN, "events": turn}),
        ),
        (
            &agent,
            path("requests"),
            json!({"kind": "feedback", "title": "t", "supersedes": theirs.request}),
            json!({"kind": "feedback", "title": "t", "supersedes": UNKNOWN}),
        ),
        (
            &agent,
            path("requests"),
            json!({"kind": "feedback", "title": "t", "session_id": theirs.session}),
            json!({"kind": "feedback", "title": "t", "session_id": UNKNOWN}),
        ),
        (
            &agent,
            path("outcome"),
            json!({"outcome": "done_acted", "session_id": theirs.session}),
            json!({"outcome": "done_acted", "session_id": UNKNOWN}),
        ),
    ];
    for (client, path, foreign, unknown) in calls {
        let answers = [essence(&client.post(&path, &foreign).await), essence(&client.post(&path, &unknown).await)];
        assert_eq!(answers[0].0, 422, "{path} {foreign}");
        assert_eq!(answers[0], answers[1], "{path} {foreign}");
    }
    let queries = [
        format!("/agent-tasks/?agent_id={}", theirs.seed.agent.id),
        format!("/agent-tasks/?project_id={project}"),
        format!("/requests?agent_id={}", theirs.seed.agent.id),
    ];
    for query in queries {
        assert_eq!(ada.get(&query).await.expect(200), &json!([]), "{query}");
    }
    assert_eq!(world.footprint().await, before);
    // Their model has no price here, their event id and their keys are free here.
    let priced = agent.post(&path("usage"), &usage("model_id", "their-model")).await;
    assert_eq!(priced.expect(201)["cost"], Value::Null);
    assert!(!agent.spend(&ours, "theirs", 1, 1).await.is_replayed());
    agent
        .append(&ours, json!([{"event_id": theirs.event, "type": "turn", "payload": {"body": "ours"}}]))
        .await
        .expect(201);
    let mine = task("idempotency_key", "theirs");
    assert_eq!(ada.post("/agent-tasks/", &mine).await.expect(201)["short_id"], "T-2");
}

#[tokio::test]
async fn a_service_account_is_nobody_in_another_organization() {
    let world = World::new().await;
    let theirs = neighbour(&world).await;
    let trigger = world.account(&theirs.seed.trigger_client_id, &theirs.seed.trigger_client_secret).await;
    let task = world.task().await;
    let before = world.footprint().await;
    for client in [theirs.agent.in_organization("acme"), trigger.in_organization("acme")] {
        for path in ["/agent-tasks/".to_owned(), format!("/agent-tasks/{task}"), "/agent-tasks/T-99".to_owned()] {
            client.get(&path).await.refused(403, "organization_forbidden");
        }
        client.finish(&task).await.refused(403, "organization_forbidden");
        client.append(&task, json!([])).await.refused(403, "organization_forbidden");
    }
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn lists_counts_and_cursors_stay_within_the_organization() {
    let world = World::new().await;
    let theirs = neighbour(&world).await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let ours = [world.task().await, world.task().await];
    agent.ask(&ours[0], &[]).await;
    let names = |reply: &Reply, member: &str| -> Vec<String> {
        let items = reply.expect(200).as_array().unwrap();
        items.iter().map(|item| item[member].as_str().unwrap().to_owned()).collect()
    };
    let there = ada.in_organization("globex");
    assert_eq!(names(&ada.get("/agent-tasks/").await, "title"), ["A task", "A task"]);
    assert_eq!(names(&there.get("/agent-tasks/").await, "title"), ["Theirs", "x"]);
    assert_eq!(names(&ada.get("/agent-tasks/?q=Theirs").await, "title"), Vec::<String>::new());
    for client in [&ada, &there] {
        assert_eq!(
            client.get("/agent-tasks/waiting").await.expect(200),
            &json!({"count": 1, "requests": 1, "feedback": 1, "approval": 0})
        );
        assert_eq!(client.get("/requests").await.expect(200).as_array().unwrap().len(), 1);
    }
    assert_eq!(there.get("/requests").await.body[0]["id"], json!(theirs.request));
    // Their cursor opens nothing here.
    let next = there.get("/agent-tasks/?limit=1").await.next().unwrap();
    let cursor = next.split_once('?').unwrap().1;
    there.get(&format!("/agent-tasks/?{cursor}")).await.expect(200);
    ada.get(&format!("/agent-tasks/?{cursor}")).await.refused(400, "invalid_cursor");
}
