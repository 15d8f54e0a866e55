//! A caller, and the answers it gets.

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

/// Somebody who calls, within one organization.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    org: String,
    token: Option<String>,
}

/// An answer that keeps the contract's form: JSON, and a problem with its request's id where it refuses.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub body: Value,
    pub text: String,
}

impl Client {
    pub(super) fn new(http: reqwest::Client, base: String, org: String, token: Option<String>) -> Self {
        Self { http, base, org, token }
    }

    /// The same caller on the routes of another organization.
    pub fn in_organization(&self, org: &str) -> Self {
        Self { org: org.to_owned(), ..self.clone() }
    }

    /// The same caller at another server.
    pub fn at(&self, base: &str) -> Self {
        Self { base: base.to_owned(), ..self.clone() }
    }

    /// A POST that may meet no server, or one that goes away before it answers.
    pub async fn try_post(&self, path: &str, body: &Value) -> Option<Reply> {
        let answer = self.request(Method::POST, path).json(body).send().await.ok()?;
        Reply::read(answer).await.ok()
    }

    /// The bearer token.
    pub fn token(&self) -> &str {
        self.token.as_deref().unwrap()
    }

    /// A request to a route of the organization, or to one at the top when the path begins with `//`.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let url = match path.strip_prefix("//") {
            Some(top) => format!("{}/{top}", self.base),
            None => format!("{}/organizations/{}{path}", self.base, self.org),
        };
        let request = self.http.request(method, url);
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Sends a request and checks the form of its answer.
    pub async fn send(&self, request: RequestBuilder) -> Reply {
        Reply::of(request.send().await.unwrap()).await
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send(self.request(Method::GET, path)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.send(self.request(Method::POST, path).json(body)).await
    }

    /// A POST to a route of a task.
    pub async fn on(&self, task: &str, path: &str, body: Value) -> Reply {
        self.post(&format!("/agent-tasks/{task}/{path}"), &body).await
    }

    /// A POST without body and content type.
    pub async fn post_nothing(&self, path: &str) -> Reply {
        self.send(self.request(Method::POST, path)).await
    }

    /// A POST of raw bytes as JSON.
    pub async fn post_raw(&self, path: &str, body: impl Into<reqwest::Body>) -> Reply {
        let request = self.request(Method::POST, path).header("content-type", "application/json").body(body);
        self.send(request).await
    }

    /// A POST with an `Idempotency-Key`.
    pub async fn post_keyed(&self, path: &str, key: &str, body: &Value) -> Reply {
        self.send(self.request(Method::POST, path).header("idempotency-key", key).json(body)).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Reply {
        self.send(self.request(Method::PUT, path).json(body)).await
    }

    /// Sends an artifact under its digest, which it answers with the reply.
    pub async fn send_artifact(&self, bytes: impl Into<Vec<u8>>, media_type: &str) -> (String, Reply) {
        let bytes = bytes.into();
        let digest = super::digest_of(&bytes);
        let request = self.request(Method::PUT, &format!("/artifacts/{digest}")).header("content-type", media_type);
        (digest, self.send(request.body(bytes)).await)
    }

    /// Reads an artifact.
    pub async fn artifact(&self, digest: &str) -> Reply {
        self.get(&format!("/artifacts/{digest}")).await
    }

    pub async fn delete(&self, path: &str) -> Reply {
        self.send(self.request(Method::DELETE, path)).await
    }

    /// The pages of a list, from the first to the last, as its links lead.
    pub async fn pages(&self, path: &str) -> Vec<Vec<Value>> {
        let mut pages = Vec::new();
        let mut reply = self.get(path).await;
        loop {
            pages.push(reply.expect(200).as_array().unwrap().clone());
            let Some(next) = reply.next() else { return pages };
            assert!(pages.len() < 10_000, "links without an end: {next}");
            reply = self.get(&format!("/{next}")).await;
        }
    }

    /// All entries of a list.
    pub async fn all(&self, path: &str) -> Vec<Value> {
        self.pages(path).await.concat()
    }

    /// Appends events without naming a session.
    pub async fn append(&self, task: &str, events: Value) -> Reply {
        self.post(&format!("/agent-tasks/{task}/events"), &json!({"events": events})).await
    }

    /// Opens a session and answers its id.
    pub async fn open_session(&self, task: &str, key: &str) -> String {
        let reply = self.post(&format!("/agent-tasks/{task}/sessions"), &json!({"session_key": key})).await;
        reply.expect(201)["session"]["id"].as_str().unwrap().to_owned()
    }

    /// Appends one turn.
    pub async fn say(&self, task: &str, session: &str, words: &str) -> Reply {
        let body = json!({"session_id": session, "events": [{"type": "turn", "payload": {"body": words}}]});
        self.post(&format!("/agent-tasks/{task}/events"), &body).await
    }

    /// Reports uncached input and output tokens of the seeded model.
    pub async fn spend(&self, task: &str, key: &str, tokens_in: i64, tokens_out: i64) -> Reply {
        let body =
            json!({"idempotency_key": key, "model_id": "sonnet", "tokens_in": tokens_in, "tokens_out": tokens_out});
        self.post(&format!("/agent-tasks/{task}/usage"), &body).await
    }

    /// Asks for feedback and answers the request's id.
    pub async fn ask(&self, task: &str, options: &[&str]) -> String {
        let body = json!({"kind": "feedback", "title": "Which?", "options": options});
        let reply = self.post(&format!("/agent-tasks/{task}/requests"), &body).await;
        reply.expect(201)["request"]["id"].as_str().unwrap().to_owned()
    }

    /// Ends the task with `done_acted`.
    pub async fn finish(&self, task: &str) -> Reply {
        self.post(&format!("/agent-tasks/{task}/outcome"), &json!({"outcome": "done_acted"})).await
    }
}

impl Reply {
    async fn of(answer: reqwest::Response) -> Self {
        Self::read(answer).await.unwrap()
    }

    async fn read(answer: reqwest::Response) -> Result<Self, reqwest::Error> {
        let status = answer.status().as_u16();
        let headers = answer.headers().clone();
        let text = answer.text().await?;
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        let reply = Self { status, headers, body, text };
        reply.check_form();
        Ok(reply)
    }

    fn check_form(&self) {
        assert!(self.header("x-request-id").is_some(), "an answer without a request id: {self:?}");
        if self.status < 400 || self.body.get("error").is_some() {
            return;
        }
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        for member in ["type", "title", "status", "detail", "code", "request_id"] {
            assert!(!self.body[member].is_null(), "a problem without {member}: {self:?}");
        }
        assert_eq!(self.body["status"], self.status, "{self:?}");
        assert_eq!(self.body["request_id"].as_str(), self.header("x-request-id"), "{self:?}");
    }

    /// A header's text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The body of an answer of this status.
    #[track_caller]
    pub fn expect(&self, status: u16) -> &Value {
        assert_eq!(self.status, status, "{}", self.text);
        &self.body
    }

    /// The body of a refusal of this status and code.
    #[track_caller]
    pub fn refused(&self, status: u16, code: &str) -> &Value {
        assert_eq!((self.status, self.body["code"].as_str()), (status, Some(code)), "{}", self.text);
        &self.body
    }

    /// The places that a refusal names: pointers into the body, headers, parameters of the query.
    pub fn places(&self) -> Vec<&str> {
        let errors = self.body["errors"].as_array().map(Vec::as_slice).unwrap_or_default();
        let place =
            |error: &'_ Value| ["pointer", "header", "parameter"].into_iter().find(|name| !error[name].is_null());
        errors.iter().map(|error| error[place(error).unwrap()].as_str().unwrap()).collect()
    }

    /// A refusal of the body, at exactly these places.
    #[track_caller]
    pub fn invalid_at(&self, places: &[&str]) {
        self.refused(422, "invalid_body");
        assert_eq!(self.places(), places, "{}", self.text);
    }

    /// Whether it is marked as a repeat.
    pub fn is_replayed(&self) -> bool {
        self.header("idempotency-replayed") == Some("true")
    }

    /// The path and query of the next page.
    pub fn next(&self) -> Option<String> {
        let link = self.header("link")?;
        let (target, rest) = link.strip_prefix('<')?.split_once('>')?;
        assert_eq!(rest, "; rel=\"next\"");
        Some(target.to_owned())
    }
}
