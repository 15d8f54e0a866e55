//! `mandate dev --demo`: one whole task, played over HTTP by an agent and two people, checked against the contract.

use reqwest::Method;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::Access;
use crate::domain::digest::{Digest, chain};
use crate::domain::event::{Actor, ActorKind, Channel, Event};
use crate::domain::ids::{EventId, SessionId, TaskId};
use crate::domain::time::Timestamp;

/// What the demo's tokens cost at the seeded model's prices: 12,000 × 10 + 900 × 30 + 5,000 × 1 per million.
const EXPECTED_COST: &str = "0.152";

/// Why the demo is not content.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The server did not answer.
    #[error("the server does not answer: {0}")]
    Http(#[from] reqwest::Error),
    /// It answered something else than the contract says.
    #[error("{step}: expected {expected}, got {got}")]
    Unexpected {
        /// What the demo did.
        step: String,
        /// What the contract says.
        expected: String,
        /// What came.
        got: String,
    },
}

struct Demo<'a> {
    http: reqwest::Client,
    access: &'a Access,
    agent_token: String,
    lines: u32,
}

/// Plays the demo and prints what happened.
pub async fn play(access: &Access) -> Result<(), DemoError> {
    let http = reqwest::Client::builder().no_proxy().build()?;
    let form = [
        ("grant_type", "client_credentials"),
        ("client_id", access.client_id.as_str()),
        ("client_secret", access.client_secret.as_str()),
    ];
    let answer: Value = http.post(format!("{}/auth/token", access.url)).form(&form).send().await?.json().await?;
    let agent_token = text(&answer, "access_token")?;
    let mut demo = Demo { http, access, agent_token, lines: 0 };
    demo.whole_task().await
}

impl Demo<'_> {
    async fn whole_task(&mut self) -> Result<(), DemoError> {
        let (ada, grace) = (self.access.token.clone(), self.access.token_2.clone());
        let agent = self.agent_token.clone();
        let body = json!({"agent_slug": self.access.agent, "title": "Fix the flaky login test", "budget": "2.00",
            "description": "It fails one time in ten.", "labels": {"demo": "yes"}, "params": {"retries": 10}});
        let task = self.call("ada creates a task", &ada, Method::POST, "/", 201, Some(body)).await?;
        let short_id = text(&task, "short_id")?;
        let at = |rest: &str| format!("/{short_id}{rest}");

        let body = json!({"session_key": "demo-1", "harness_instance": "mandate-demo"});
        let opened =
            self.call("the agent opens a session", &agent, Method::POST, &at("/sessions"), 201, Some(body)).await?;
        let session = text(&opened["session"], "id")?;

        let body = json!({"session_id": session, "events": [
            {"type": "phase.changed", "payload": {"phase": "investigate", "furthest_milestone": "reproduced"}},
            {"type": "todos.updated", "payload": {"todos": [{"title": "Find the race", "done": false}]}},
            {"type": "turn", "payload": {"body": "The test does not wait for the redirect."}},
            {"type": "tool.called", "payload": {"tool": "shell", "mutating": false,
                "arguments": {"command": "grep -rn sleep tests/"}, "result_summary": "3 places", "duration_ms": 41}}
        ]});
        self.call("the agent appends what it did", &agent, Method::POST, &at("/events"), 201, Some(body)).await?;

        let body = json!({"idempotency_key": "demo-1-call-1", "model_id": self.access.model, "tokens_in": 12_000,
            "tokens_out": 900, "cache_read_tokens": 5_000, "session_id": session});
        let usage =
            self.call("the agent reports tokens", &agent, Method::POST, &at("/usage"), 201, Some(body.clone())).await?;
        self.check("the report's cost", EXPECTED_COST, &usage["cost"])?;
        let again = self
            .call("the same report again counts once", &agent, Method::POST, &at("/usage"), 200, Some(body))
            .await?;
        self.check("the cost after the repeat", EXPECTED_COST, &again["task"]["cost_total"])?;

        let body = json!({"kind": "feedback", "title": "Raise the timeout or wait for the redirect?",
            "options": ["timeout", "redirect"], "session_id": session, "request_key": "demo-1-ask"});
        let asked =
            self.call("the agent asks a question", &agent, Method::POST, &at("/requests"), 201, Some(body)).await?;
        self.check("the status while it waits", "blocked", &asked["task"]["status"])?;
        let question = at(&format!("/requests/{}/resolve", text(&asked["request"], "id")?));
        let body = json!({"status": "answered", "choice": "redirect"});
        self.call("grace answers", &grace, Method::POST, &question, 201, Some(body.clone())).await?;
        self.call("ada comes second and is told so", &ada, Method::POST, &question, 409, Some(body)).await?;

        let digest = Digest::of(b"--- a/tests/login.rs\n+++ b/tests/login.rs\n");
        let body = json!({"kind": "approval", "title": "Merge the fix?", "why": "All checks are green.",
            "artifacts": [{"digest": digest, "name": "fix.patch", "media_type": "text/x-diff", "size": 44}],
            "artifact_digests": [digest], "session_id": session, "request_key": "demo-1-merge"});
        let asked = self
            .call("the agent asks for an approval", &agent, Method::POST, &at("/requests"), 201, Some(body))
            .await?;
        let approval = at(&format!("/requests/{}/resolve", text(&asked["request"], "id")?));
        let wrong = json!({"status": "approved", "artifact_digests": [Digest::of(b"another patch")]});
        self.call("ada approves another patch and is refused", &ada, Method::POST, &approval, 409, Some(wrong)).await?;
        let right = json!({"status": "approved", "artifact_digests": [digest]});
        self.call("ada approves what she reviewed", &ada, Method::POST, &approval, 201, Some(right.clone())).await?;
        self.call("the agent may not approve for itself", &agent, Method::POST, &approval, 403, Some(right)).await?;

        let body = json!({"session_id": session, "events": [
            {"type": "check.reported", "payload": {"name": "login test × 100", "verdict": "pass", "value": 100}},
            {"type": "todos.updated", "payload": {"todos": [{"title": "Find the race", "done": true}]}},
            {"type": "phase.changed", "payload": {"phase": "done"}}
        ]});
        self.call("the agent reports its checks", &agent, Method::POST, &at("/events"), 201, Some(body)).await?;
        let body = json!({"outcome": "done_acted", "reason": null, "session_id": session,
            "result": {"summary": "The test waits for the redirect.", "artifacts": []}});
        self.call("the agent ends the task", &agent, Method::POST, &at("/outcome"), 200, Some(body.clone())).await?;
        let body = json!({"outcome": "partial_capped", "reason": "turn_cap"});
        self.call("nothing that is closed reopens", &agent, Method::POST, &at("/outcome"), 409, Some(body)).await?;

        let events = self.send("ada reads the log", &ada, Method::GET, &at("/events?limit=1000"), 200, None).await?;
        let events: Vec<LogEntry> =
            serde_json::from_str(&events).map_err(|fault| unexpected("the log", "events", &fault))?;
        let closed = self.call("ada reads the task", &ada, Method::GET, &at(""), 200, None).await?;
        print_log(&events);
        check_chain(&closed, events)?;
        self.check("the task's status", "closed", &closed["status"])?;
        self.check("the task's outcome", "done_acted", &closed["outcome"])?;
        self.check("the task's cost", EXPECTED_COST, &closed["cost_total"])?;
        self.check("what remains of its budget", "1.848", &closed["budget_remaining"])?;
        println!();
        println!(
            "  {short_id} closed as done_acted: {} events, cost {} USD of {} USD, log head {}",
            closed["last_seq"],
            as_text(&closed["cost_total"]),
            as_text(&closed["budget"]),
            as_text(&closed["log_digest"])
        );
        Ok(())
    }

    async fn call(
        &mut self,
        step: &str,
        token: &str,
        method: Method,
        path: &str,
        expected: u16,
        body: Option<Value>,
    ) -> Result<Value, DemoError> {
        let text = self.send(step, token, method, path, expected, body).await?;
        serde_json::from_str(&text).map_err(|fault| unexpected(step, "JSON", &fault))
    }

    async fn send(
        &mut self,
        step: &str,
        token: &str,
        method: Method,
        path: &str,
        expected: u16,
        body: Option<Value>,
    ) -> Result<String, DemoError> {
        let url = format!("{}/organizations/{}/agent-tasks{path}", self.access.url, self.access.org);
        let mut request = self.http.request(method, url).bearer_auth(token);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await?;
        let status = answer.status().as_u16();
        let text = answer.text().await?;
        self.lines += 1;
        let problem: Value = serde_json::from_str(&text).unwrap_or_default();
        let code = problem["code"].as_str().map(|code| format!(" ({code})")).unwrap_or_default();
        println!("{:>4}. {step}: {status}{code}", self.lines);
        if status != expected {
            return Err(unexpected(step, &expected.to_string(), &format!("{status} {text}")));
        }
        Ok(text)
    }

    #[allow(clippy::unused_self, reason = "reads as a step of the demo")]
    fn check(&self, step: &str, expected: &str, got: &Value) -> Result<(), DemoError> {
        if got == expected { Ok(()) } else { Err(unexpected(step, expected, got)) }
    }
}

/// An entry of the log, with its payload as it was sent: another JSON writer could order it anew.
#[derive(serde::Deserialize)]
struct LogEntry {
    event_id: EventId,
    seq: i64,
    #[serde(rename = "type")]
    event_type: String,
    schema_version: i32,
    actor_kind: ActorKind,
    actor_id: String,
    channel: Option<Channel>,
    session_id: Option<SessionId>,
    at: Timestamp,
    recorded_at: Timestamp,
    payload: Box<RawValue>,
    digest: Digest,
}

fn print_log(events: &[LogEntry]) {
    println!("\n  the log:");
    for event in events {
        let payload: String = event.payload.get().chars().take(96).collect();
        println!("  {:>3} {:<16} {:<6} {payload}", event.seq, event.event_type, event.actor_kind);
    }
}

/// Recomputes the digest chain from what was read.
fn check_chain(task: &Value, events: Vec<LogEntry>) -> Result<(), DemoError> {
    let id: TaskId = text(task, "id")?.parse().map_err(|fault| unexpected("reading id", "a UUID", &fault))?;
    let mut head = Digest::ZERO;
    for (entry, number) in events.into_iter().zip(1..) {
        let event = Event {
            event_id: entry.event_id,
            seq: entry.seq,
            event_type: entry.event_type.into(),
            schema_version: entry.schema_version,
            actor: Actor { kind: entry.actor_kind, id: entry.actor_id, channel: entry.channel },
            session_id: entry.session_id,
            at: entry.at,
            recorded_at: entry.recorded_at,
            payload: entry.payload.get().to_owned(),
            redacted: Vec::new(),
            digest: entry.digest,
        };
        head = chain(head, id, &event);
        if event.seq != number || head != event.digest {
            return Err(unexpected("the digest chain", &head.to_string(), &event.digest));
        }
    }
    if task["log_digest"] == head.to_string() {
        Ok(())
    } else {
        Err(unexpected("the head of the digest chain", &head.to_string(), &task["log_digest"]))
    }
}

fn unexpected(step: &str, expected: &str, got: &dyn std::fmt::Display) -> DemoError {
    DemoError::Unexpected { step: step.to_owned(), expected: expected.to_owned(), got: got.to_string() }
}

fn as_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn text(value: &Value, name: &str) -> Result<String, DemoError> {
    value[name].as_str().map(str::to_owned).ok_or_else(|| DemoError::Unexpected {
        step: format!("reading {name}"),
        expected: "a string".to_owned(),
        got: value.to_string(),
    })
}
