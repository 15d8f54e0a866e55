//! Secrets are taken out before anything is stored, the pointers say where, and nothing else is touched.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::support::{Client, World};

/// An event with its payload as the very text.
#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    payload: &'a RawValue,
    redacted: Vec<String>,
}

/// A token of a known shape that was never one.
fn token() -> String {
    format!("ghp_{}", "a1B2".repeat(9))
}

/// No row of the runtime holds `secret`.
async fn assert_absent(world: &World, secret: &str) {
    for table in ["tasks", "sessions", "events", "requests", "budget_ledger"] {
        let query = format!("SELECT count(*) FROM agent_runtime.{table} t WHERE strpos(t::text, $1) > 0");
        let count: i64 =
            sqlx::query_scalar(sqlx::AssertSqlSafe(query)).bind(secret).fetch_one(&world.db).await.unwrap();
        assert_eq!(count, 0, "{table} holds {secret}");
    }
}

/// The type and sorted pointers of every event that had something redacted.
fn redacted(log: &[Value]) -> Vec<(String, Vec<String>)> {
    log.iter()
        .map(|event| {
            let pointers = event["redacted"].as_array().unwrap().iter();
            let mut pointers: Vec<_> = pointers.map(|pointer| pointer.as_str().unwrap().to_owned()).collect();
            pointers.sort_unstable();
            for pointer in &pointers {
                let at = event["payload"].pointer(pointer).unwrap_or_else(|| panic!("{pointer} in {event}"));
                assert!(at.as_str().unwrap().contains("[redacted]"), "{pointer} in {event}");
            }
            (event["type"].as_str().unwrap().to_owned(), pointers)
        })
        .filter(|(_, pointers)| !pointers.is_empty())
        .collect()
}

fn entry(event_type: &str, pointers: &[&str]) -> (String, Vec<String>) {
    (event_type.to_owned(), pointers.iter().map(|pointer| (*pointer).to_owned()).collect())
}

fn recorded_runs() -> Vec<Value> {
    let folder = PathBuf::from(std::env::var_os("MANDATE_TEST_DATA").expect("MANDATE_TEST_DATA names the data folder"));
    let mut files: Vec<_> =
        std::fs::read_dir(folder.join("trajectories")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()).collect()
}

/// Appends payloads of one type and checks that the log holds the very texts.
async fn assert_verbatim(agent: &Client, task: &str, event_type: &str, payloads: &[Value]) {
    for payloads in payloads.chunks(10) {
        let events: Vec<_> = payloads.iter().map(|payload| json!({"type": event_type, "payload": payload})).collect();
        let reply = agent.post(&format!("/agent-tasks/{task}/events"), &json!({"events": events})).await;
        let written = reply.expect(201)["written"].as_array().unwrap();
        let (first, count) = (written[0]["seq"].as_i64().unwrap(), written.len());
        let path = format!("/agent-tasks/{task}/events?after_seq={}&limit={count}", first - 1);
        let page = agent.get(&path).await;
        page.expect(200);
        let entries: Vec<Entry<'_>> = serde_json::from_str(&page.text).unwrap();
        assert_eq!(entries.len(), payloads.len());
        for (entry, sent) in entries.iter().zip(payloads) {
            assert_eq!(entry.redacted, Vec::<String>::new(), "{}", entry.payload);
            assert_eq!(entry.payload.get(), sent.to_string());
        }
    }
}

#[tokio::test]
async fn nothing_of_the_recorded_runs_is_touched() {
    let world = World::new().await;
    let agent = world.agent().await;
    let mut steps = 0;
    for run in recorded_runs() {
        let task = world.task().await;
        let trajectory = run["trajectory"].as_array().unwrap();
        steps += trajectory.len();
        let turns: Vec<_> = trajectory
            .iter()
            .map(|step| json!({"body": step["response"], "thought": step["thought"], "step": step}))
            .collect();
        assert_verbatim(&agent, &task, "turn", &turns).await;
        let calls: Vec<_> = trajectory
            .iter()
            .map(|step| {
                json!({"tool": "shell", "mutating": true, "arguments": {"command": step["action"]},
                    "result": step["observation"], "state": step["state"]})
            })
            .collect();
        assert_verbatim(&agent, &task, "tool.called", &calls).await;
        let messages = run["history"].as_array().unwrap();
        let messages: Vec<_> = messages.iter().map(|message| json!({"body": "", "message": message})).collect();
        assert_verbatim(&agent, &task, "turn", &messages).await;
        let statistics = json!({"body": "", "info": run["info"], "environment": run["environment"]});
        assert_verbatim(&agent, &task, "turn", &[statistics]).await;
    }
    assert_eq!(steps, 46);
}

#[tokio::test]
async fn secrets_of_a_payload_go_and_what_looks_alike_stays() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let token = token();
    let commit = "8da0b9b215ebfad5756051c891def88e426787e7";
    let sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    let payload = json!({"tool": "http", "mutating": false, "arguments": {
            "headers": {"Authorization": "Bearer hunter2hunter2", "Accept": "*/*"},
            "body": [{"token": "first-secret", "tokens_sent": 122_612, "max_tokens": 4_096}],
            "a/b~c": {"api_key": {"nested": ["second-secret"]}}},
        "result_summary": format!("I pushed with {token}, then went on."),
        "commit": commit, "sha256": sha256, "digest": format!("sha256:{sha256}"),
        "call_id": "550e8400-e29b-41d4-a716-446655440000", "token_type": "bearer", "password": null, "e": 0.10});
    let event = json!({"type": "tool.called", "payload": payload});
    let reply = agent.post(&format!("/agent-tasks/{task}/events"), &json!({"events": [event]})).await;
    let written = &reply.expect(201)["written"][0];
    let mut kept = payload.clone();
    kept["arguments"]["headers"]["Authorization"] = json!("[redacted]");
    kept["arguments"]["body"][0]["token"] = json!("[redacted]");
    kept["arguments"]["a/b~c"]["api_key"] = json!("[redacted]");
    kept["result_summary"] = json!("I pushed with [redacted], then went on.");
    assert_eq!(written["payload"], kept);
    let log = world.log(&task).await;
    assert_eq!(&log[1], written, "the answer is what the log holds");
    let pointers = [
        "/arguments/a~1b~0c/api_key",
        "/arguments/body/0/token",
        "/arguments/headers/Authorization",
        "/result_summary",
    ];
    assert_eq!(redacted(&log), [entry("tool.called", &pointers)]);
    for secret in [token.as_str(), "hunter2", "first-secret", "second-secret"] {
        assert_absent(&world, secret).await;
    }
}

#[tokio::test]
async fn the_phase_of_the_task_is_the_redacted_one() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let payload = json!({"phase": format!("with {}", token()), "furthest_milestone": token()});
    let event = json!({"type": "phase.changed", "payload": payload});
    agent.post(&format!("/agent-tasks/{task}/events"), &json!({"events": [event]})).await.expect(201);
    let read = agent.get(&format!("/agent-tasks/{task}")).await;
    assert_eq!(read.expect(200)["phase"], "with [redacted]");
    assert_eq!(read.body["furthest_milestone"], "[redacted]");
    let log = world.log(&task).await;
    assert_eq!(redacted(&log), [entry("phase.changed", &["/furthest_milestone", "/phase"])]);
    assert_absent(&world, &token()).await;
}

#[tokio::test]
async fn secrets_of_a_creation_go() {
    let world = World::new().await;
    let ada = world.person("ada");
    let token = token();
    let body = json!({"agent_slug": "reviewer", "title": format!("Use {token}"),
        "description": "Log in with password=hunter22x and look.", "subject": "repo#1",
        "labels": {"team": "core", "token": "label-secret", "note": format!("see {token}")},
        "params": {"depth": 2, "env": [{"API_KEY": "params-secret"}], "tokens_sent": 12}});
    let created = ada.post("/agent-tasks/", &body).await;
    let task = created.expect(201).clone();
    assert_eq!(task["title"], "Use [redacted]");
    assert_eq!(task["description"], "Log in with password=[redacted] and look.");
    assert_eq!(task["labels"], json!({"team": "core", "token": "[redacted]", "note": "see [redacted]"}));
    assert_eq!(task["params"], json!({"depth": 2, "env": [{"API_KEY": "[redacted]"}], "tokens_sent": 12}));
    assert_eq!(task["subject"], "repo#1");
    let short_id = task["short_id"].as_str().unwrap();
    let read = ada.get(&format!("/agent-tasks/{short_id}")).await;
    assert_eq!(read.expect(200), &task);
    let log = world.log(short_id).await;
    let pointers = ["/description", "/labels/note", "/labels/token", "/params/env/0/API_KEY", "/title"];
    assert_eq!(redacted(&log), [entry("task.created", &pointers)]);
    for secret in [token.as_str(), "hunter22x", "label-secret", "params-secret"] {
        assert_absent(&world, secret).await;
    }
}

#[tokio::test]
async fn secrets_of_what_people_say_go() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let (task, token) = (world.task().await, token());
    let path = format!("/agent-tasks/{task}");
    let said = format!("Use {token} for it.");
    ada.post(&format!("{path}/reply"), &json!({"body": said, "hold": true})).await.expect(200);
    ada.post(&format!("{path}/resume"), &json!({"reason": said})).await.expect(200);
    ada.post(&format!("{path}/pause"), &json!({"reason": "no secret"})).await.expect(200);
    let request = agent.ask(&task, &[]).await;
    let resolution = json!({"status": "answered", "answer": said,
        "constraints": {"password": "constraint-secret", "n": 1E5, "list": [said]}});
    let resolved = ada.post(&format!("{path}/requests/{request}/resolve"), &resolution).await;
    let resolved = &resolved.expect(201)["request"]["resolution"];
    assert_eq!(resolved["answer"], "Use [redacted] for it.");
    assert_eq!(resolved["constraints"]["password"], "[redacted]");
    let again = ada.post(&format!("{path}/requests/{request}/resolve"), &resolution).await;
    assert!(again.status == 200, "the same resolution, secrets and all: {}", again.text);
    let choice = agent.ask(&task, &["yes", &token]).await;
    let chosen = json!({"status": "answered", "choice": token});
    ada.post(&format!("{path}/requests/{choice}/resolve"), &chosen).await.expect(201);
    ada.post(&format!("{path}/cancel"), &json!({"reason": said})).await.expect(200);
    let log = world.log(&task).await;
    assert_eq!(
        redacted(&log),
        [
            entry("turn", &["/body"]),
            entry("control.changed", &["/reason"]),
            entry("request.resolved", &["/answer", "/constraints/list/0", "/constraints/password"]),
            entry("request.opened", &["/options/1"]),
            entry("request.resolved", &["/choice"]),
            entry("control.changed", &["/reason"]),
        ]
    );
    for secret in [token.as_str(), "constraint-secret"] {
        assert_absent(&world, secret).await;
    }
}

#[tokio::test]
async fn secrets_of_what_a_harness_asks_and_ends_with_go() {
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, token) = (world.task().await, token());
    let path = format!("/agent-tasks/{task}");
    let said = format!("With {token}.");
    let opened = json!({"session_key": "s1", "harness_instance": format!("pod {token}")});
    let opened = agent.post(&format!("{path}/sessions"), &opened).await;
    let session = opened.expect(201)["session"]["id"].as_str().unwrap().to_owned();
    assert_eq!(opened.body["session"]["harness_instance"], "pod [redacted]");
    let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
    let request = json!({"kind": "approval", "title": said, "why": said, "artifact_digests": [digest],
        "artifacts": [{"digest": digest, "name": said, "media_type": "text/plain", "size": 5, "preview": said}]});
    let asked = agent.post(&format!("{path}/requests"), &request).await;
    let asked = &asked.expect(201)["request"];
    assert_eq!((&asked["title"], &asked["why"]), (&json!("With [redacted]."), &json!("With [redacted].")));
    assert_eq!((&asked["artifact_digests"][0], &asked["artifacts"][0]["digest"]), (&json!(digest), &json!(digest)));
    let ended = json!({"reason": said});
    agent.post(&format!("{path}/sessions/{session}/close"), &ended).await.expect(200);
    let result = json!({"summary": said, "artifacts": [{"digest": digest, "client_secret": "result-secret"}]});
    let outcome = json!({"outcome": "done_acted", "result": result});
    agent.post(&format!("{path}/outcome"), &outcome).await.expect(200);
    let read = agent.get(&path).await;
    let expected = json!({"summary": "With [redacted].",
        "artifacts": [{"digest": digest, "client_secret": "[redacted]"}]});
    assert_eq!(read.expect(200)["result"], expected);
    let log = world.log(&task).await;
    assert_eq!(
        redacted(&log),
        [
            entry("session.opened", &["/harness_instance"]),
            entry("request.opened", &["/artifacts/0/name", "/artifacts/0/preview", "/title", "/why"]),
            entry("session.closed", &["/reason"]),
            entry("outcome.set", &["/result/artifacts/0/client_secret", "/result/summary"]),
        ]
    );
    for secret in [token.as_str(), "result-secret"] {
        assert_absent(&world, secret).await;
    }
}

/// Keys are identities: hidden they would all be one, so they are kept, and may not be a secret.
#[tokio::test]
async fn a_key_that_holds_a_token_is_refused_and_kept_nowhere() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let task = world.task().await;
    let before = world.footprint().await;
    let token = format!("ghp_{}", "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8");
    let reply = agent.on(&task, "sessions", json!({"session_key": token})).await;
    reply.invalid_at(&["/session_key"]);
    assert!(!reply.text.contains(&token), "{}", reply.text);
    let usage = json!({"idempotency_key": token, "model_id": "sonnet"});
    agent.on(&task, "usage", usage).await.invalid_at(&["/idempotency_key"]);
    let ask = json!({"kind": "feedback", "title": "?", "request_key": token});
    agent.on(&task, "requests", ask).await.invalid_at(&["/request_key"]);
    let create = json!({"agent_slug": "reviewer", "title": "t", "description": "d"});
    ada.post_keyed("/agent-tasks/", &token, &create).await.refused(422, "invalid_body");
    assert_eq!(world.footprint().await, before);
}
