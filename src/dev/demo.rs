//! `mandate dev --demo`: one whole task, played over HTTP by an agent and two people, checked against the contract.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::Access;
use crate::domain::digest::Digest;
use crate::domain::event::Event;
use crate::domain::export::{ExportedEvent, Proving};
use crate::domain::ids::TaskId;

/// How long the demo waits for the log to be archived: the grace of `mandate dev` and a round of its sweep.
const ARCHIVED_WITHIN: Duration = Duration::from_mins(1);
/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_millis(200);
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

        let log = self.send("ada reads the log", &ada, Method::GET, &at("/events?limit=1000"), 200, None).await?;
        let closed = self.call("ada reads the task", &ada, Method::GET, &at(""), 200, None).await?;
        print_log(&log)?;
        let head = text(&closed, "log_digest")?;
        check_chain(&closed, &log, &head)?;
        self.check("the task's status", "closed", &closed["status"])?;
        self.check("the task's outcome", "done_acted", &closed["outcome"])?;
        self.check("the task's cost", EXPECTED_COST, &closed["cost_total"])?;
        self.check("what remains of its budget", "1.848", &closed["budget_remaining"])?;
        self.archived(&ada, &at("")).await?;
        let again =
            self.send("ada reads the archived log", &ada, Method::GET, &at("/events?limit=1000"), 200, None).await?;
        self.check("the archived log, byte for byte", &log, &Value::String(again))?;
        let proof = self.call("ada asks for its proof", &ada, Method::GET, &at("/proof"), 200, None).await?;
        self.check("the proven head", &head, &proof["log_digest"])?;
        self.check("where the log is", "log_store", &proof["location"])?;
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
        let (status, text) = self.ask(token, method, path, body).await?;
        let problem: Value = serde_json::from_str(&text).unwrap_or_default();
        let code = problem["code"].as_str().map(|code| format!(" ({code})")).unwrap_or_default();
        self.tell(step, status, &code);
        if status != expected {
            return Err(unexpected(step, &expected.to_string(), &format!("{status} {text}")));
        }
        Ok(text)
    }

    async fn ask(
        &self,
        token: &str,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<(u16, String), DemoError> {
        let url = format!("{}/organizations/{}/agent-tasks{path}", self.access.url, self.access.org);
        let mut request = self.http.request(method, url).bearer_auth(token);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await?;
        Ok((answer.status().as_u16(), answer.text().await?))
    }

    fn tell(&mut self, step: &str, status: u16, code: &str) {
        self.lines += 1;
        println!("{:>4}. {step}: {status}{code}", self.lines);
    }

    /// Waits until the sweep has moved the log of the task at `path` to the permanent log.
    async fn archived(&mut self, token: &str, path: &str) -> Result<(), DemoError> {
        let begun = tokio::time::Instant::now();
        loop {
            let step = "the sweep archives the log";
            let (status, text) = self.ask(token, Method::GET, path, None).await?;
            let task: Value = serde_json::from_str(&text).map_err(|fault| unexpected(step, "a task", &fault))?;
            if !task["log_archived_at"].is_null() {
                self.tell(step, status, "");
                return Ok(());
            }
            if begun.elapsed() > ARCHIVED_WITHIN {
                return Err(unexpected(step, &format!("within {} s", ARCHIVED_WITHIN.as_secs()), &text));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    #[allow(clippy::unused_self, reason = "reads as a step of the demo")]
    fn check(&self, step: &str, expected: &str, got: &Value) -> Result<(), DemoError> {
        if got == expected { Ok(()) } else { Err(unexpected(step, expected, got)) }
    }
}

fn print_log(log: &str) -> Result<(), DemoError> {
    let entries: Vec<ExportedEvent> = entries(log)?;
    println!("\n  the log:");
    for event in entries.into_iter().map(Event::from) {
        let payload: String = event.payload.chars().take(96).collect();
        println!("  {:>3} {:<16} {:<6} {payload}", event.seq, event.event_type, event.actor.kind.as_str());
    }
    Ok(())
}

fn entries(log: &str) -> Result<Vec<ExportedEvent>, DemoError> {
    serde_json::from_str(log).map_err(|fault| unexpected("the log", "events", &fault))
}

/// Recomputes the digest chain from what was read.
fn check_chain(task: &Value, log: &str, head: &str) -> Result<(), DemoError> {
    let id: TaskId = text(task, "id")?.parse().map_err(|fault| unexpected("reading id", "a UUID", &fault))?;
    let mut proving = Proving::new(Some(id));
    for entry in entries(log)? {
        proving.entry(entry).map_err(|fault| unexpected("the digest chain", "a whole log", &fault))?;
    }
    let found = proving.head().to_string();
    if found == head { Ok(()) } else { Err(unexpected("the head of the digest chain", head, &found)) }
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
