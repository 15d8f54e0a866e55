//! A stand-in for the server: as much of the contract as a harness meets, and the misfortunes that a test asks for.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, Method, StatusCode, Uri};
use serde_json::{Value, json};

use crate::replay::Options;

/// What happens to a call, in the order in which calls of the route come.
#[derive(Debug, Clone, Copy)]
pub enum Misfortune {
    /// The call is answered as usual.
    None,
    /// The call is not looked at.
    Status(u16),
    /// The call is carried out and its answer lost.
    AnswerLost,
    /// A person cancels the task just before.
    Cancel,
    /// A person pauses the task just before.
    Pause,
    /// A person resumes it just before.
    Resume,
    /// The session was lost.
    SessionLost,
    /// The task was closed by the server.
    Close,
}

/// What the server knows.
#[derive(Debug, Default)]
pub struct Known {
    /// Route and misfortunes to come.
    pub script: Vec<(&'static str, VecDeque<Misfortune>)>,
    /// Every call: its last path segment.
    pub calls: Vec<String>,
    /// Bodies of creations and reports.
    pub bodies: Vec<Value>,
    /// Ids and types of the events in the log.
    pub log: Vec<(String, String)>,
    /// Keys and tokens of reports.
    pub reports: Vec<(String, Option<i64>)>,
    /// Keys of sessions, and whether they are open.
    pub sessions: Vec<(String, bool)>,
    /// Tokens that were issued.
    pub tokens: u64,
    /// The control.
    pub control: String,
    /// Outcome and reason.
    pub ended: Option<(String, Option<String>)>,
}

/// The stand-in, shared with the test.
pub type Shared = Arc<Mutex<Known>>;

/// Serves a stand-in on a free port.
pub async fn serve(script: &[(&'static str, &[Misfortune])]) -> (Shared, Options) {
    let script = script.iter().map(|(route, fates)| (*route, fates.iter().copied().collect())).collect();
    let known = Arc::new(Mutex::new(Known { script, control: "run".to_owned(), ..Known::default() }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = options(&format!("http://{}/", listener.local_addr().unwrap()));
    let router = Router::new().fallback(answer).with_state(Arc::clone(&known));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (known, options)
}

/// Options that name a server at `url`.
pub fn options(url: &str) -> Options {
    Options {
        url: url.to_owned(),
        org: "acme".to_owned(),
        agent: "reviewer".to_owned(),
        model: "sonnet".to_owned(),
        client_id: "id".to_owned(),
        client_secret: "a secret & more".to_owned(),
        token: "person".to_owned(),
        patience: Duration::from_secs(3),
        pace: Duration::ZERO,
    }
}

fn problem(status: u16, code: &str) -> Response {
    let status = StatusCode::from_u16(status).unwrap();
    let mut response = (status, json!({"code": code, "detail": "so it is"}).to_string()).into_response();
    response.headers_mut().insert("retry-after", "0".parse().unwrap());
    response
}

async fn answer(State(known): State<Shared>, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let mut known = known.lock().unwrap();
    let path = uri.path().trim_end_matches('/');
    let route = path.rsplit('/').next().unwrap_or_default().to_owned();
    known.calls.push(route.clone());
    let fate = known.script.iter_mut().find(|(of, _)| *of == route).and_then(|(_, fates)| fates.pop_front());
    match fate.unwrap_or(Misfortune::None) {
        Misfortune::None | Misfortune::AnswerLost => {}
        Misfortune::Status(status) => return problem(status, "misfortune"),
        Misfortune::Cancel => known.control = "cancel".to_owned(),
        Misfortune::Pause => known.control = "pause".to_owned(),
        Misfortune::Resume => known.control = "run".to_owned(),
        Misfortune::SessionLost => known.sessions.iter_mut().for_each(|(_, open)| *open = false),
        Misfortune::Close => known.close("exceeded_ceiling", Some("budget")),
    }
    let caller = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let agent = format!("Bearer agent-{}", known.tokens);
    let allowed = match route.as_str() {
        "token" => String::from_utf8_lossy(&body).contains("client_secret=a+secret+%26+more"),
        "agent-tasks" => caller == "Bearer person" && headers.contains_key("idempotency-key"),
        _ => caller == agent,
    };
    if !allowed {
        return problem(401, "unauthenticated");
    }
    let body = serde_json::from_slice(&body).unwrap_or_default();
    let answered = known.carry_out(&method, &route, uri.query(), &body);
    match (fate, answered) {
        (Some(Misfortune::AnswerLost), _) => problem(502, "answer_lost"),
        (_, Ok(answer)) => answer.to_string().into_response(),
        (_, Err((status, code))) => problem(status, code),
    }
}

impl Known {
    fn close(&mut self, outcome: &str, reason: Option<&str>) {
        self.ended = Some((outcome.to_owned(), reason.map(str::to_owned)));
        self.sessions.iter_mut().for_each(|(_, open)| *open = false);
    }

    fn state(&self) -> Value {
        let (outcome, reason) = self.ended.clone().unzip();
        let tokens: i64 = self.reports.iter().filter_map(|(_, tokens)| *tokens).sum();
        json!({"short_id": "T-1", "title": "Replay", "control": self.control, "heartbeat_interval_seconds": 1,
            "status": if self.ended.is_some() { "closed" } else { "running" }, "outcome": outcome,
            "outcome_reason": reason.flatten(), "last_seq": self.log.len(), "cost_total": "0",
            "tokens_in": tokens, "tokens_out": 0, "unpriced_reports": 0,
            "unmeasured_reports": self.reports.iter().filter(|(_, tokens)| tokens.is_none()).count()})
    }

    fn check_session(&self, id: &Value) -> Result<(), (u16, &'static str)> {
        let number = id.as_str().and_then(|id| uuid::Uuid::parse_str(id).ok()).map_or(0, |id| id.as_u128());
        let session = usize::try_from(number).ok().and_then(|number| self.sessions.get(number.checked_sub(1)?));
        match session {
            Some((_, true)) => Ok(()),
            Some((_, false)) => Err((409, "session_closed")),
            None => Err((404, "session_not_found")),
        }
    }

    fn carry_out(
        &mut self,
        method: &Method,
        route: &str,
        query: Option<&str>,
        body: &Value,
    ) -> Result<Value, (u16, &'static str)> {
        let closed = self.ended.is_some();
        match (method.as_str(), route) {
            (_, "token") => {
                self.tokens += 1;
                Ok(json!({"access_token": format!("agent-{}", self.tokens), "expires_in": 900}))
            }
            (_, "agent-tasks") => {
                self.bodies.push(body.clone());
                Ok(self.state())
            }
            ("GET", "events") => {
                let after: usize =
                    query.and_then(|query| query.strip_prefix("after_seq=")?.split_once('&')?.0.parse().ok()).unwrap();
                let entry = |(index, (id, kind)): (usize, &(String, String))| json!({"seq": index + 1, "event_id": id, "type": kind});
                Ok(self.log.iter().enumerate().skip(after).take(7).map(entry).collect())
            }
            ("GET", "sessions") => {
                let session = |(index, (key, open)): (usize, &(String, bool))| {
                    let id = uuid::Uuid::from_u128(index as u128 + 1);
                    json!({"id": id, "session_key": key, "closed_at": if *open { Value::Null } else { json!("then") }})
                };
                Ok(self.sessions.iter().enumerate().map(session).collect())
            }
            ("GET", _) => Ok(self.state()),
            (_, "sessions" | "heartbeat") if closed => Err((409, "task_closed")),
            (_, "sessions") if self.control == "cancel" => Err((409, "task_cancelled")),
            (_, "sessions") => {
                let key = body["session_key"].as_str().unwrap();
                let found = self.sessions.iter().position(|(known, _)| known == key);
                let index = found.unwrap_or(self.sessions.len());
                if found.is_none() {
                    self.sessions.push((key.to_owned(), true));
                }
                if !self.sessions[index].1 {
                    return Err((409, "session_closed"));
                }
                Ok(json!({"session": {"id": uuid::Uuid::from_u128(index as u128 + 1)}, "task": self.state()}))
            }
            (_, "heartbeat") => {
                // The stand-in's harness has one session at a time: the last.
                let last = uuid::Uuid::from_u128(self.sessions.len() as u128);
                self.check_session(&json!(last)).map(|()| self.state())
            }
            (_, "events") => self.append(body),
            (_, "usage") => {
                let key = body["idempotency_key"].as_str().unwrap().to_owned();
                if !self.reports.iter().any(|(known, _)| *known == key) {
                    self.reports.push((key, body["tokens_in"].as_i64()));
                    self.log.push((
                        uuid::Uuid::from_u128(1_000 + self.log.len() as u128).to_string(),
                        "usage.reported".into(),
                    ));
                }
                Ok(json!({"task": self.state()}))
            }
            (_, "outcome") => {
                let reason = body["reason"].as_str();
                let outcome = body["outcome"].as_str().unwrap();
                if let Some((recorded, _)) = &self.ended {
                    return if recorded == outcome { Ok(self.state()) } else { Err((409, "task_closed")) };
                }
                if !body["session_id"].is_null() {
                    self.check_session(&body["session_id"])?;
                }
                self.close(outcome, reason);
                Ok(self.state())
            }
            _ => Err((404, "not_found")),
        }
    }

    fn append(&mut self, body: &Value) -> Result<Value, (u16, &'static str)> {
        let events = body["events"].as_array().unwrap();
        let text = |event: &Value, name: &str| event[name].as_str().unwrap().to_owned();
        let (known, fresh): (Vec<_>, Vec<_>) =
            events.iter().partition(|event| self.log.iter().any(|(id, _)| *id == text(event, "event_id")));
        let calls_only = events.iter().all(|event| event["type"] == "tool.called");
        if !fresh.is_empty() && !calls_only {
            if self.ended.is_some() {
                return Err((409, "task_closed"));
            }
            self.check_session(&body["session_id"])?;
        }
        self.log.extend(fresh.iter().map(|event| (text(event, "event_id"), text(event, "type"))));
        Ok(
            json!({"written": fresh, "duplicates": known.iter().map(|event| text(event, "event_id")).collect::<Vec<_>>()}),
        )
    }
}
