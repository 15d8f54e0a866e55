//! Keys: a repeat answers the first result and writes nothing.

use reqwest::Method;
use reqwest::header::HeaderValue;
use serde_json::{Value, json};

use crate::support::{Client, Reply, Seed, World};

fn new_task(key: &str) -> Value {
    json!({"agent_slug": "reviewer", "title": "Review", "description": "", "idempotency_key": key})
}

/// A POST whose `Idempotency-Key` has these bytes.
async fn post_keyed_bytes(client: &Client, path: &str, key: &[u8], body: &Value) -> Reply {
    let key = HeaderValue::from_bytes(key).unwrap();
    client.send(client.request(Method::POST, path).header("idempotency-key", key).json(body)).await
}

/// A repeat: 200 with the header, and whether it says that the body was another.
#[track_caller]
fn repeats(reply: &Reply, body_matches: bool) -> &Value {
    let body = reply.expect(200);
    assert!(reply.is_replayed(), "{reply:?}");
    let expected = if body_matches { None } else { Some("false") };
    assert_eq!(reply.header("idempotency-body-match"), expected, "{}", reply.text);
    body
}

#[tokio::test]
async fn many_creates_with_one_key_make_one_task() {
    let world = World::new().await;
    let ada = world.person("ada");
    let calls: Vec<_> = (0..50)
        .map(|_| {
            let ada = ada.clone();
            tokio::spawn(async move { ada.post("/agent-tasks/", &new_task("k")).await })
        })
        .collect();
    let (mut first, mut ids) = (0, Vec::new());
    for call in calls {
        let reply = call.await.unwrap();
        if reply.status == 201 {
            assert!(!reply.is_replayed());
            first += 1;
        } else {
            repeats(&reply, true);
        }
        ids.push(reply.body["id"].clone());
    }
    ids.dedup();
    assert_eq!((first, ids.len()), (1, 1));
    let tasks = ada.get("/agent-tasks/").await;
    assert_eq!(tasks.expect(200).as_array().unwrap().len(), 1);
    assert_eq!(world.types("T-1").await, ["task.created"]);
    // Nothing was used up by those that came second.
    assert_eq!(world.task().await, "T-2");
}

#[tokio::test]
async fn a_key_belongs_to_its_principal_and_organization() {
    let world = World::new().await;
    Seed::plant(&world.db, "globex").await;
    let (ada, oscar) = (world.person("ada"), world.person("oscar"));
    let first = ada.post("/agent-tasks/", &new_task("k")).await;
    assert_eq!(first.expect(201)["short_id"], "T-1");
    let of_oscar = oscar.post("/agent-tasks/", &new_task("k")).await;
    assert_eq!(of_oscar.expect(201)["short_id"], "T-2");
    let elsewhere = ada.in_organization("globex").post("/agent-tasks/", &new_task("k")).await;
    assert_eq!(elsewhere.expect(201)["short_id"], "T-1");
    assert_ne!(elsewhere.body["id"], first.body["id"]);
    let before = world.footprint().await;
    for (person, body) in [(&ada, &first.body), (&oscar, &of_oscar.body)] {
        assert_eq!(repeats(&person.post("/agent-tasks/", &new_task("k")).await, true), body);
    }
    // The case of a person's id is folded, so it is the same person.
    assert_eq!(repeats(&world.person("ADA").post("/agent-tasks/", &new_task("k")).await, true), &first.body);
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn a_repeat_tells_another_body_from_a_reordered_one() {
    let world = World::new().await;
    let ada = world.person("ada");
    let first =
        r#"{"agent_slug":"reviewer","title":"One","description":"","params":{"a":1,"b":[2]},"idempotency_key":"k"}"#;
    let created = ada.post_raw("/agent-tasks/", first).await;
    created.expect(201);
    let before = world.footprint().await;
    let same = [
        r#"{"idempotency_key":"k","params":{"b":[2],"a":1},"description":"","title":"One","agent_slug":"reviewer"}"#,
        "{ \"agent_slug\" : \"\\u0072eviewer\",\n\"title\":\"One\",\"description\":\"\",\"params\":{\"a\":1,\"b\":[ 2 ]},\"idempotency_key\":\"k\"}",
    ];
    for text in same {
        assert_eq!(repeats(&ada.post_raw("/agent-tasks/", text).await, true), &created.body);
    }
    let other = [
        r#"{"agent_slug":"reviewer","title":"Two","description":"","params":{"a":1,"b":[2]},"idempotency_key":"k"}"#,
        r#"{"agent_slug":"reviewer","title":"One","description":"","params":{"a":1.0,"b":[2]},"idempotency_key":"k"}"#,
        r#"{"agent_slug":"nobody","title":"One","description":"","idempotency_key":"k"}"#,
        // Whatever the body: even one that could not have created anything.
        r#"{"idempotency_key":"k"}"#,
        r#"{"idempotency_key":"k","budget":"-1","title":"\u0000"}"#,
    ];
    for text in other {
        assert_eq!(repeats(&ada.post_raw("/agent-tasks/", text).await, false), &created.body);
    }
    // The key itself may stand in the header just as well.
    let no_key = r#"{"agent_slug":"reviewer","title":"One","description":"","params":{"a":1,"b":[2]}}"#;
    let request = ada.request(Method::POST, "/agent-tasks/").header("idempotency-key", "k");
    let by_header = ada.send(request.header("content-type", "application/json").body(no_key)).await;
    assert_eq!(repeats(&by_header, true), &created.body);
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn a_created_task_is_repeated_as_it_is_now_and_whatever_became_of_the_agent() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    ada.post("/agent-tasks/", &new_task("k")).await.expect(201);
    agent.finish("T-1").await.expect(200);
    sqlx::query("UPDATE agent_directory.agents SET enabled = false").execute(&world.db).await.unwrap();
    let repeat = ada.post("/agent-tasks/", &new_task("k")).await;
    assert_eq!(repeats(&repeat, true)["status"], "closed");
    ada.post("/agent-tasks/", &new_task("other")).await.refused(409, "agent_disabled");
}

#[tokio::test]
async fn two_reports_with_their_own_keys_count_twice_and_a_repeat_once() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, _) = world.working(&agent).await;
    let first = agent.spend(&task, "u1", 1_000_000, 0).await;
    assert_eq!(first.expect(201)["cost"], "1.25");
    assert_eq!(agent.spend(&task, "u2", 1_000_000, 0).await.expect(201)["task"]["cost_total"], "2.5");
    let before = world.footprint().await;
    let repeat = agent.spend(&task, "u1", 1_000_000, 0).await;
    assert_eq!(repeats(&repeat, true)["id"], first.body["id"]);
    assert_eq!(repeat.body["task"]["cost_total"], "2.5");
    let other = agent.spend(&task, "u1", 7, 7).await;
    assert_eq!((&repeats(&other, false)["id"], &other.body["cost"]), (&first.body["id"], &json!("1.25")));
    // Whatever the body, and before any state.
    let path = format!("/agent-tasks/{task}/usage");
    repeats(&agent.post(&path, &json!({"idempotency_key": "u1"})).await, false);
    let stranger = json!({"idempotency_key": "u1", "session_id": "01890a5d-ac96-774b-bcce-b302099a8057"});
    repeats(&agent.post(&path, &stranger).await, false);
    assert_eq!(world.footprint().await, before);
    let rows = world.person("ada").get(&path).await;
    assert_eq!(rows.expect(200).as_array().unwrap().len(), 2);
    // On another task the key is another report.
    let second = world.task().await;
    agent.spend(&second, "u1", 1_000_000, 0).await.expect(201);
    agent.finish(&task).await.expect(200);
    let late = agent.spend(&task, "u1", 1_000_000, 0).await;
    assert_eq!((&repeats(&late, true)["id"], &late.body["task"]["status"]), (&first.body["id"], &json!("closed")));
}

#[tokio::test]
async fn many_reports_with_one_key_make_one_row() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let calls: Vec<_> = (0..20)
        .map(|_| {
            let (agent, task) = (agent.clone(), task.clone());
            tokio::spawn(async move { agent.spend(&task, "u", 1_000_000, 0).await })
        })
        .collect();
    let mut first = 0;
    for call in calls {
        let reply = call.await.unwrap();
        assert_eq!(reply.body["task"]["cost_total"], "1.25", "{}", reply.text);
        first += u32::from(reply.status == 201);
    }
    assert_eq!(first, 1);
    assert_eq!(world.types(&task).await, ["task.created", "usage.reported"]);
}

#[tokio::test]
async fn a_reply_with_a_key_is_written_once() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let task = world.task().await;
    let path = format!("/agent-tasks/{task}/reply");
    let words = json!({"body": "Stop there.", "hold": true});
    let first = ada.post_keyed(&path, "r", &words).await;
    assert_eq!((&first.expect(200)["status"], first.is_replayed()), (&json!("paused"), false));
    ada.post_nothing(&format!("/agent-tasks/{task}/resume")).await.expect(200);
    let before = world.footprint().await;
    // It does not pause again, and it answers the task as it is now.
    let again = ada.post_keyed(&path, "r", &words).await;
    assert_eq!(repeats(&again, true)["status"], "queued");
    repeats(&ada.post_keyed(&path, "r", &json!({"body": "Go on."})).await, false);
    repeats(&ada.post_keyed(&path, "r", &json!({"body": 7})).await, false);
    assert_eq!(world.footprint().await, before);
    // The key is the person's.
    let of_oscar = world.person("oscar").post_keyed(&path, "r", &words).await;
    assert!(!of_oscar.is_replayed());
    assert_eq!(of_oscar.expect(200)["status"], "paused");
    agent.finish(&task).await.expect(200);
    assert_eq!(repeats(&ada.post_keyed(&path, "r", &words).await, true)["status"], "closed");
    ada.post_keyed(&path, "r2", &words).await.refused(409, "task_closed");
    let turns = world.types(&task).await.iter().filter(|name| *name == "turn").count();
    assert_eq!(turns, 2);
}

#[tokio::test]
async fn a_request_key_answers_the_request_as_it_is_now() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let task = world.task().await;
    let path = format!("/agent-tasks/{task}/requests");
    let question = json!({"kind": "feedback", "title": "Which?"});
    let first = agent.post_keyed(&path, "q", &question).await;
    assert_eq!(first.expect(201)["request"]["request_key"], "q");
    let id = first.body["request"]["id"].as_str().unwrap();
    let before = world.footprint().await;
    assert_eq!(repeats(&agent.post_keyed(&path, "q", &question).await, true)["request"], first.body["request"]);
    // The same key in the body is the same key, and does not make another body of it.
    let mut in_body = question.clone();
    in_body["request_key"] = json!("q");
    assert_eq!(repeats(&agent.post(&path, &in_body).await, true)["request"]["id"], id);
    let other = agent.post_keyed(&path, "q", &json!({"kind": "feedback", "title": "Who?"})).await;
    assert_eq!(repeats(&other, false)["request"]["title"], "Which?");
    assert_eq!(world.footprint().await, before);
    ada.post(&format!("{path}/{id}/resolve"), &json!({"status": "answered", "answer": "This."})).await.expect(201);
    let settled = agent.post_keyed(&path, "q", &question).await;
    let settled = repeats(&settled, true);
    assert_eq!((&settled["request"]["status"], &settled["task"]["status"]), (&json!("answered"), &json!("queued")));
    agent.finish(&task).await.expect(200);
    assert_eq!(repeats(&agent.post_keyed(&path, "q", &question).await, true)["task"]["status"], "closed");
    agent.post_keyed(&path, "new", &question).await.refused(409, "task_closed");
}

#[tokio::test]
async fn a_key_in_header_and_body_is_one_and_the_same() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let task = world.task().await;
    let routes = [
        (&ada, "/agent-tasks/".to_owned(), "idempotency_key", new_task("k"), 201),
        (&ada, format!("/agent-tasks/{task}/reply"), "idempotency_key", json!({"body": "x"}), 200),
        (&agent, format!("/agent-tasks/{task}/usage"), "idempotency_key", json!({"model_id": "sonnet"}), 201),
        (
            &agent,
            format!("/agent-tasks/{task}/requests"),
            "request_key",
            json!({"kind": "feedback", "title": "x"}),
            201,
        ),
    ];
    for (caller, path, member, mut body, success) in routes {
        body[member] = json!("k");
        let before = world.footprint().await;
        let differs = caller.post_keyed(&path, "K", &body).await;
        differs.invalid_at(&["Idempotency-Key"]);
        let long = "x".repeat(201);
        let mut nameless = body.clone();
        nameless[member] = Value::Null;
        for bad in [b"".as_slice(), long.as_bytes(), b"a\xff"] {
            let reply = post_keyed_bytes(caller, &path, bad, &nameless).await;
            reply.invalid_at(&["Idempotency-Key"]);
        }
        let twice = caller.request(Method::POST, &path).header("idempotency-key", "a").header("idempotency-key", "b");
        caller.send(twice.json(&nameless)).await.invalid_at(&["Idempotency-Key"]);
        for bad in [json!(""), json!(" "), json!(7), json!("x".repeat(201))] {
            body[member] = bad;
            let pointer = format!("/{member}");
            let reply = caller.post(&path, &body).await;
            assert!(reply.places().contains(&pointer.as_str()), "{path}: {}", reply.text);
            reply.refused(422, "invalid_body");
        }
        assert_eq!(world.footprint().await, before, "{path}");
        body[member] = json!("k");
        caller.post_keyed(&path, "k", &body).await.expect(success);
        assert!(caller.post_keyed(&path, "k", &body).await.is_replayed(), "{path}");
    }
}

#[tokio::test]
async fn a_key_that_is_no_ascii_is_a_key_like_any_other() {
    let world = World::new().await;
    let ada = world.person("ada");
    let body = json!({"agent_slug": "reviewer", "title": "t", "description": ""});
    let key = "schlüssel-鍵";
    let first = post_keyed_bytes(&ada, "/agent-tasks/", key.as_bytes(), &body).await;
    assert_eq!(first.expect(201)["idempotency_key"], key);
    let again = post_keyed_bytes(&ada, "/agent-tasks/", key.as_bytes(), &body).await;
    assert_eq!(repeats(&again, true)["id"], first.body["id"]);
    assert_eq!(repeats(&ada.post("/agent-tasks/", &new_task(key)).await, false)["id"], first.body["id"]);
}

#[tokio::test]
async fn without_a_key_every_creation_is_its_own() {
    let world = World::new().await;
    assert_eq!((world.task().await, world.task().await), ("T-1".to_owned(), "T-2".to_owned()));
    let agent = world.agent().await;
    let no_key = agent.post("/agent-tasks/T-1/usage", &json!({"model_id": "sonnet", "tokens_in": 1})).await;
    no_key.invalid_at(&["/idempotency_key"]);
}
