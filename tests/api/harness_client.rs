//! The one harness client that exists for the contract, as it was recorded: it must work unmodified.

use std::collections::BTreeMap;
use std::path::PathBuf;

use reqwest::Method;
use serde_json::{Value, json};

use crate::log::assert_chain;
use crate::money::assert_totals;
use crate::support::{Client, World};

/// The recorded client: its steps, and what it has learned so far.
struct Recorded {
    steps: BTreeMap<String, Value>,
    client: Client,
    task: String,
    /// `session.id` and the like, as the steps name them between angle brackets.
    known: BTreeMap<String, String>,
    /// The last event that it has seen.
    seq: i64,
}

/// What the client reads off the log while it waits.
#[derive(Debug, PartialEq)]
enum News {
    Answered(Value),
    Ended { outcome: String, reason: Value },
}

impl Recorded {
    /// Reads the recording and gets a token, as its first step says.
    async fn begin(world: &World, task: &str) -> Self {
        let folder =
            PathBuf::from(std::env::var_os("MANDATE_TEST_DATA").expect("MANDATE_TEST_DATA names the data folder"));
        let recording = std::fs::read(folder.join("harness-client.json")).unwrap();
        let recording: Value = serde_json::from_slice(&recording).unwrap();
        let mut steps = BTreeMap::new();
        for step in recording["steps"].as_array().unwrap() {
            let name = step["step"].as_str().unwrap();
            // The client appends twice.
            let name = if steps.contains_key(name) { format!("{name} again") } else { name.to_owned() };
            steps.insert(name, step.clone());
        }
        assert_eq!(steps.len(), 13);
        let form = steps["token"]["form"].as_object().unwrap().clone();
        let credentials =
            [("client_id", &world.seed.agent.client_id), ("client_secret", &world.seed.agent.client_secret)];
        let form: BTreeMap<_, _> = form
            .into_iter()
            .map(|(key, value)| {
                let own = credentials.iter().find(|(name, _)| **name == key).map(|(_, own)| (*own).clone());
                (key, own.unwrap_or_else(|| value.as_str().unwrap().to_owned()))
            })
            .collect();
        let anyone = world.anyone();
        let path = format!("/{}", steps["token"]["path"].as_str().unwrap());
        let answer = anyone.send(anyone.request(Method::POST, &path).form(&form)).await;
        let client = world.bearer(answer.expect(200)["access_token"].as_str().unwrap());
        Self { steps, client, task: task.to_owned(), known: BTreeMap::new(), seq: 0 }
    }

    /// The recorded value with what it leaves open filled in.
    fn filled(&self, recorded: &Value) -> Value {
        match recorded {
            Value::String(text) if text == "<uuid4>" => json!(uuid4()),
            Value::String(text) if text == "<model slug>" => json!("sonnet"),
            Value::String(text) => match text.strip_prefix('<').and_then(|text| text.strip_suffix('>')) {
                Some(name) => json!(self.known[name]),
                None => recorded.clone(),
            },
            Value::Array(items) => items.iter().map(|item| self.filled(item)).collect(),
            Value::Object(members) => {
                Value::Object(members.iter().map(|(key, value)| (key.clone(), self.filled(value))).collect())
            }
            other => other.clone(),
        }
    }

    /// Plays a step as it was recorded: any status of 400 and above stops it, and so does a missing field.
    async fn play(&mut self, name: &str) -> Value {
        let step = self.steps[name].clone();
        let mut path = step["path"].as_str().unwrap().replace('…', &format!("/agent-tasks/{}", self.task));
        for (key, value) in &self.known {
            path = path.replace(&format!("<{key}>"), value);
        }
        path = path.replace("<seq>", &self.seq.to_string());
        let method = step["method"].as_str().unwrap().parse().unwrap();
        let mut request = self.client.request(method, &path);
        if step["json"].is_object() {
            request = request.json(&self.filled(&step["json"]));
        }
        let reply = self.client.send(request).await;
        assert!(reply.status < 400, "{name}: {}", reply.text);
        for field in step["reads"].as_array().unwrap() {
            let field = field.as_str().unwrap();
            if field.starts_with("[]") {
                continue;
            }
            let pointer = format!("/{}", field.replace('.', "/"));
            assert!(reply.body.pointer(&pointer).is_some(), "{name} reads {field}: {}", reply.text);
        }
        reply.body
    }

    async fn open(&mut self, step: &str, name: &str) -> String {
        let opened = self.play(step).await;
        self.known.insert(name.to_owned(), opened["session"]["id"].as_str().unwrap().to_owned());
        opened["task"]["control"].as_str().unwrap().to_owned()
    }

    /// Begins to work and asks; answers the request.
    async fn work_and_ask(&mut self) -> String {
        assert_eq!(self.open("open session", "session.id").await, "run");
        self.play("append").await;
        assert_eq!(self.play("usage").await["task"]["status"], "running");
        assert_eq!(self.play("heartbeat").await["control"], "run");
        let asked = self.play("ask").await;
        self.seq = asked["task"]["last_seq"].as_i64().unwrap();
        self.play("close session").await;
        asked["request"]["id"].as_str().unwrap().to_owned()
    }

    /// One poll: what the client makes of the first event that concerns it, in order.
    async fn poll(&mut self, request: &str) -> Option<News> {
        let events = self.play("poll, every 2 s").await;
        for event in events.as_array().unwrap() {
            let seq = event["seq"].as_i64().unwrap();
            assert!(seq > self.seq, "a seq comes twice");
            self.seq = seq;
            let payload = event["payload"].as_object().unwrap();
            match event["type"].as_str().unwrap() {
                "request.resolved" if payload["request_id"] == request => {
                    return Some(News::Answered(payload["answer"].clone()));
                }
                "outcome.set" => {
                    let outcome = payload["outcome"].as_str().unwrap().to_owned();
                    return Some(News::Ended { outcome, reason: payload["reason"].clone() });
                }
                _ => {}
            }
        }
        None
    }

    /// Comes back with a second session and works to the end.
    async fn come_back_and_finish(&mut self) -> Value {
        self.open("open a second session", "id").await;
        let beat = self.play("heartbeat until control is not pause").await;
        assert_ne!(beat["control"], "pause");
        self.play("append again").await;
        self.play("outcome").await
    }
}

#[allow(clippy::disallowed_methods, reason = "the client makes its own ids")]
fn uuid4() -> uuid::Uuid {
    uuid::Uuid::new_v4()
}

#[tokio::test]
async fn the_recorded_client_runs_through_to_the_end() {
    let world = World::new().await;
    let ada = world.person("ada");
    let task = world.task_with(json!({"budget": "5"})).await;
    let mut client = Recorded::begin(&world, &task).await;
    let request = client.work_and_ask().await;
    assert_eq!(client.poll(&request).await, None, "nobody has answered");
    let resolve = format!("/agent-tasks/{task}/requests/{request}/resolve");
    ada.post(&resolve, &json!({"status": "answered", "answer": "Go on."})).await.expect(201);
    assert_eq!(client.poll(&request).await, Some(News::Answered(json!("Go on."))));
    let ended = client.come_back_and_finish().await;
    assert_eq!((&ended["status"], &ended["outcome"]), (&json!("closed"), &json!("done_acted")));
    assert_eq!(client.poll(&request).await, Some(News::Ended { outcome: "done_acted".into(), reason: Value::Null }));

    let types = assert_chain(&ada, &task).await;
    let expected = [
        "task.created",
        "session.opened",
        "state.changed",
        "phase.changed",
        "turn",
        "tool.called",
        "usage.reported",
        "request.opened",
        "state.changed",
        "session.closed",
        "request.resolved",
        "state.changed",
        "session.opened",
        "state.changed",
        "todos.updated",
        "check.reported",
        "phase.changed",
        "turn",
        "session.closed",
        "state.changed",
        "outcome.set",
    ];
    assert_eq!(types, expected);
    let read = ada.get(&format!("/agent-tasks/{task}")).await;
    let row = read.expect(200);
    // 1,200 × 1.25 + 300 × 10 + 5,000 × 0.625 + 800 × 2, per million.
    assert_eq!((&row["cost_total"], &row["budget_remaining"]), (&json!("0.009225"), &json!("4.990775")));
    assert_eq!(row["phase"], "done");
    assert_totals(&ada, &task).await;
}

#[tokio::test]
async fn the_recorded_client_asks_waits_through_a_pause_and_is_answered_by_a_choice() {
    let world = World::new().await;
    let (ada, abe) = (world.person("ada"), world.person("abe"));
    let task = world.task().await;
    let mut client = Recorded::begin(&world, &task).await;
    let request = client.work_and_ask().await;
    ada.post_nothing(&format!("/agent-tasks/{task}/pause")).await.expect(200);
    assert_eq!(client.poll(&request).await, None);
    let resolve = format!("/agent-tasks/{task}/requests/{request}/resolve");
    abe.post(&resolve, &json!({"status": "answered", "choice": "yes"})).await.expect(201);
    assert_eq!(client.poll(&request).await, Some(News::Answered(Value::Null)), "answer is there, and null");
    assert_eq!(client.open("open a second session", "id").await, "pause");
    let beat = client.play("heartbeat until control is not pause").await;
    assert_eq!((&beat["control"], &beat["status"]), (&json!("pause"), &json!("paused")));
    ada.post_nothing(&format!("/agent-tasks/{task}/resume")).await.expect(200);
    assert_eq!(client.play("heartbeat until control is not pause").await["control"], "run");
    client.play("append again").await;
    assert_eq!(client.play("outcome").await["outcome"], "done_acted");
    assert_chain(&ada, &task).await;
}

#[tokio::test]
async fn cancelled_while_it_waits_the_recorded_client_meets_the_outcome_first_and_stops() {
    let world = World::new().await;
    let ada = world.person("ada");
    let task = world.task().await;
    let mut client = Recorded::begin(&world, &task).await;
    let request = client.work_and_ask().await;
    ada.post(&format!("/agent-tasks/{task}/cancel"), &json!({"reason": "No longer needed."})).await.expect(200);
    let ended = News::Ended { outcome: "cancelled_by_human".into(), reason: json!("cancelled_without_session") };
    assert_eq!(client.poll(&request).await, Some(ended));
    let types = assert_chain(&ada, &task).await;
    let tail = ["control.changed", "state.changed", "outcome.set", "request.resolved"];
    assert_eq!(types[types.len() - 4..], tail);
    let log = world.log(&task).await;
    let void = &log[log.len() - 1]["payload"];
    assert_eq!((&void["request_id"], &void["status"]), (&json!(request), &json!("void")));
    assert_eq!(void["answer"], Value::Null);
}

#[tokio::test]
async fn cancelled_in_the_middle_the_recorded_client_sees_it_in_its_heartbeat_and_ends() {
    let world = World::new().await;
    let ada = world.person("ada");
    let task = world.task().await;
    let mut client = Recorded::begin(&world, &task).await;
    client.open("open session", "session.id").await;
    client.play("append").await;
    ada.post_nothing(&format!("/agent-tasks/{task}/cancel")).await.expect(200);
    assert_eq!(client.play("heartbeat").await["control"], "cancel");
    assert_eq!(client.play("usage").await["task"]["status"], "running", "the turn in flight is still told");
    let ended = client.play("outcome after a cancel").await;
    assert_eq!((&ended["status"], &ended["outcome"]), (&json!("closed"), &json!("cancelled_by_human")));
    assert_eq!(ended["outcome_reason"], "cancel_seen");
    assert_chain(&ada, &task).await;
}

#[tokio::test]
async fn the_recorded_client_may_send_every_step_twice() {
    let world = World::new().await;
    let ada = world.person("ada");
    let task = world.task().await;
    let mut client = Recorded::begin(&world, &task).await;
    let first = client.play("open session").await;
    assert_eq!(client.play("open session").await["session"]["id"], first["session"]["id"]);
    client.known.insert("session.id".to_owned(), first["session"]["id"].as_str().unwrap().to_owned());
    let row = client.play("usage").await;
    assert_eq!(client.play("usage").await["id"], row["id"]);
    // No body, and the JSON literal null.
    client.play("heartbeat").await;
    let beat = format!("/agent-tasks/{task}/sessions/{}/heartbeat", client.known["session.id"]);
    assert_eq!(client.client.post(&beat, &Value::Null).await.expect(200)["control"], "run");
    let asked = client.play("ask").await;
    assert_eq!(client.play("ask").await["request"]["id"], asked["request"]["id"]);
    client.play("close session").await;
    let before = ada.get(&format!("/agent-tasks/{task}")).await.expect(200).clone();
    client.play("close session").await;
    client.play("usage").await;
    assert_eq!(ada.get(&format!("/agent-tasks/{task}")).await.expect(200), &before);
}
