//! Tenants: what belongs to another organization answers like what does not exist.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Client, Reply, Seed, World};

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

#[tokio::test]
async fn an_id_of_another_organization_answers_like_an_unknown_one() {
    let world = World::new().await;
    let theirs = neighbour(&world).await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let (ours, _) = world.working(&agent).await;
    assert_eq!(ours, "T-1");
    let our_request = agent.ask(&ours, &[]).await;
    let before = world.footprint().await;
    let get = |path: String| (ada.clone(), Method::GET, path, json!(null));
    let person = |path: String, body: Value| (ada.clone(), Method::POST, path, body);
    let harness = |path: String, body: Value| (agent.clone(), Method::POST, path, body);
    let set = |method: Method, path: String| (ada.clone(), method, path, json!(null));
    let our_project = world.seed.project_id;
    // Every route that names a task, a session or a request: with theirs, and with one that nobody has.
    let in_path = |task: &str, session: &str, request: &str, project: &str| {
        vec![
            get(format!("/agent-tasks/{task}")),
            get(format!("/agent-tasks/{task}/events")),
            get(format!("/agent-tasks/{task}/sessions")),
            get(format!("/agent-tasks/{task}/requests")),
            get(format!("/agent-tasks/{task}/usage")),
            person(format!("/agent-tasks/{task}/pause"), json!({})),
            person(format!("/agent-tasks/{task}/resume"), json!({})),
            person(format!("/agent-tasks/{task}/cancel"), json!({"force": true})),
            person(format!("/agent-tasks/{task}/reassign"), json!({"owner": "ada"})),
            person(format!("/agent-tasks/{task}/reply"), json!({"body": "x"})),
            get(format!("/agent-tasks/{task}/proof")),
            get(format!("/agent-tasks/{task}/tree")),
            get(format!("/agent-tasks/{task}/relations")),
            get(format!("/agent-tasks/{task}/projects")),
            set(Method::PUT, format!("/agent-tasks/{task}/requires/{ours}")),
            set(Method::PUT, format!("/agent-tasks/{ours}/requires/{task}")),
            set(Method::DELETE, format!("/agent-tasks/{task}/requires/{ours}")),
            set(Method::DELETE, format!("/agent-tasks/{ours}/requires/{task}")),
            set(Method::PUT, format!("/agent-tasks/{task}/projects/{our_project}")),
            set(Method::DELETE, format!("/agent-tasks/{task}/projects/{our_project}")),
            set(Method::PUT, format!("/agent-tasks/{ours}/projects/{project}")),
            set(Method::DELETE, format!("/agent-tasks/{ours}/projects/{project}")),
            person(
                format!("/agent-tasks/{task}/requests/{request}/resolve"),
                json!({"status": "answered", "answer": "a"}),
            ),
            person(
                format!("/agent-tasks/{ours}/requests/{request}/resolve"),
                json!({"status": "answered", "answer": "a"}),
            ),
            harness(format!("/agent-tasks/{task}/sessions"), json!({"session_key": "k"})),
            harness(
                format!("/agent-tasks/{task}/events"),
                json!({"events": [{"type": "turn", "payload": {"body": "x"}}]}),
            ),
            harness(format!("/agent-tasks/{task}/usage"), json!({"idempotency_key": "theirs", "model_id": "sonnet"})),
            harness(format!("/agent-tasks/{task}/requests"), json!({"kind": "feedback", "title": "t"})),
            harness(
                format!("/agent-tasks/{task}/children"),
                json!({"agent_slug": "reviewer", "title": "t", "description": "", "idempotency_key": "theirs"}),
            ),
            harness(format!("/agent-tasks/{task}/outcome"), json!({"outcome": "done_acted"})),
            harness(format!("/agent-tasks/{task}/sessions/{session}/heartbeat"), json!({})),
            harness(format!("/agent-tasks/{task}/sessions/{session}/close"), json!({"reason": "r"})),
            harness(format!("/agent-tasks/{ours}/sessions/{session}/heartbeat"), json!({})),
            harness(format!("/agent-tasks/{ours}/sessions/{session}/close"), json!({"reason": "r"})),
            harness(format!("/agent-tasks/{task}/requests/{request}/withdraw"), json!({})),
            harness(format!("/agent-tasks/{ours}/requests/{request}/withdraw"), json!({})),
        ]
    };
    let foreign = in_path("T-2", &theirs.session, &theirs.request, &theirs.seed.project_id.to_string());
    let pairs = foreign.into_iter().zip(in_path("T-99", UNKNOWN, UNKNOWN, UNKNOWN));
    for (foreign, unknown) in pairs {
        let mut answers = Vec::new();
        for (client, method, path, body) in [&foreign, &unknown] {
            let request = client.request(method.clone(), path);
            let request = if body.is_null() { request } else { request.json(body) };
            answers.push(essence(&client.send(request).await));
        }
        assert_eq!(answers[0].0, 404, "{} {}", foreign.1, foreign.2);
        assert_eq!(answers[0], answers[1], "{} {}", foreign.1, foreign.2);
    }
    // A task's id is no name of it, in whichever organization.
    ada.get(&format!("/agent-tasks/{}", theirs.task_id)).await.refused(404, "task_not_found");
    assert_eq!(world.footprint().await, before);
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
