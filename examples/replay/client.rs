//! Calls that survive a server which is away, busy or restarting.

use std::time::{Duration, Instant};

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::{Method, StatusCode};
use serde_json::Value;
use url::{Host, Url, form_urlencoded};

use super::{Fault, Options};

/// How long to wait before the first retry; each further wait doubles, up to the longest.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_LONGEST: Duration = Duration::from_secs(2);
/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(30);
const CONNECT: Duration = Duration::from_secs(5);

/// As whom a call is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum As {
    /// The person, by the token that was given.
    Person,
    /// The agent's account, by client credentials.
    Agent,
}

/// A call. Its body and key are fixed, so that every retry repeats it to the byte.
#[derive(Debug, Clone)]
pub struct Call {
    caller: As,
    method: Method,
    url: Url,
    key: Option<String>,
    body: Option<String>,
}

impl Call {
    /// A call without a body.
    pub fn get(caller: As, url: Url) -> Self {
        Self { caller, method: Method::GET, url, key: None, body: None }
    }

    /// A call with a JSON body, or with none at all.
    pub fn post(caller: As, url: Url, body: Option<String>) -> Self {
        Self { caller, method: Method::POST, url, key: None, body }
    }

    /// The same with an `Idempotency-Key`.
    #[must_use]
    pub fn with_key(mut self, key: String) -> Self {
        self.key = Some(key);
        self
    }

    fn name(&self) -> String {
        format!("{} {}", self.method, self.url.path())
    }
}

struct Token {
    text: String,
    renew_at: Instant,
}

/// What an attempt led to.
enum Attempt {
    Done(Value),
    Again { why: String, after: Option<Duration> },
    Unauthenticated(Fault),
    Failed(Fault),
}

/// A client of one server.
pub struct Client {
    http: reqwest::Client,
    base: Url,
    options: Options,
    token: Option<Token>,
    retries: u64,
}

impl Client {
    /// A client with these options. It calls nothing yet.
    pub fn new(options: &Options) -> Result<Self, Fault> {
        let base = Url::parse(&options.url).map_err(|fault| Fault::Options(format!("{}: {fault}", options.url)))?;
        if !matches!(base.scheme(), "http" | "https") || base.cannot_be_a_base() {
            return Err(Fault::Options(format!("{base} is no http or https URL")));
        }
        let mut builder = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT)
            .timeout(ATTEMPT)
            .user_agent(concat!("mandate-replay/", env!("CARGO_PKG_VERSION")));
        if is_loopback(&base) {
            // A proxy has another idea of what is local.
            builder = builder.no_proxy();
        }
        if base.scheme() == "http" {
            // Nothing is encrypted, so that a machine without root certificates will do.
            builder = builder.tls_certs_only([]);
        }
        let http = builder.build().map_err(|fault| Fault::Options(format!("no HTTP client: {}", chain(&fault))))?;
        Ok(Self { http, base, options: options.clone(), token: None, retries: 0 })
    }

    /// The options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// How many calls were tried again so far.
    pub fn retries(&self) -> u64 {
        self.retries
    }

    /// The URL of a path under the base, segment by segment; an empty last one ends in a slash.
    pub fn url(&self, segments: &[&str]) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        url
    }

    /// Makes a call, again and again while the server is away or busy, until the patience ends.
    pub async fn call(&mut self, call: &Call) -> Result<Value, Fault> {
        let mut patience = Patience::new(self.options.patience);
        let mut renewed = false;
        loop {
            let token = match call.caller {
                As::Person => self.options.token.clone(),
                As::Agent => self.agent_token(&mut patience).await?,
            };
            match self.attempt(call, &token).await {
                Attempt::Done(answer) => return Ok(answer),
                // The key was rotated, or the clocks differ: a fresh token tells.
                Attempt::Unauthenticated(_) if call.caller == As::Agent && !renewed => {
                    renewed = true;
                    self.token = None;
                }
                Attempt::Failed(fault) | Attempt::Unauthenticated(fault) => return Err(fault),
                Attempt::Again { why, after } => {
                    self.retries += 1;
                    patience.wait(&call.name(), why, after).await?;
                }
            }
        }
    }

    async fn attempt(&self, call: &Call, token: &str) -> Attempt {
        let mut request = self.http.request(call.method.clone(), call.url.clone());
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        if let Some(key) = &call.key {
            request = request.header("Idempotency-Key", key);
        }
        if let Some(body) = &call.body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.clone());
        }
        self.send(request, &call.name()).await
    }

    async fn send(&self, request: reqwest::RequestBuilder, name: &str) -> Attempt {
        let response = match request.send().await {
            Ok(response) => response,
            Err(fault) if fault.is_builder() => return Attempt::Failed(Fault::Options(chain(&fault))),
            Err(fault) => return Attempt::Again { why: chain(&fault), after: None },
        };
        let (status, after) = (response.status(), retry_after(response.headers()));
        let bytes = match response.bytes().await {
            Ok(bytes) => bytes,
            // The server ended in the midst of its answer; what it did it will answer again.
            Err(fault) => return Attempt::Again { why: chain(&fault), after: None },
        };
        let answer = serde_json::from_slice::<Value>(&bytes);
        if status.is_success() {
            return match answer {
                Ok(answer) => Attempt::Done(answer),
                Err(_) => Attempt::Failed(Fault::Answer { call: name.to_owned(), what: "JSON" }),
            };
        }
        let refused = refused(name, status, &answer.unwrap_or_default());
        match status {
            StatusCode::UNAUTHORIZED => Attempt::Unauthenticated(refused),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => {
                Attempt::Again { why: refused.to_string(), after }
            }
            status if status.is_server_error() => Attempt::Again { why: refused.to_string(), after },
            _ => Attempt::Failed(refused),
        }
    }

    /// The agent's token, renewed before it ends.
    async fn agent_token(&mut self, patience: &mut Patience) -> Result<String, Fault> {
        if let Some(token) = self.token.as_ref().filter(|token| Instant::now() < token.renew_at) {
            return Ok(token.text.clone());
        }
        let url = self.url(&["auth", "token"]);
        let name = format!("POST {}", url.path());
        let form = form_urlencoded::Serializer::new(String::new())
            .append_pair("grant_type", "client_credentials")
            .append_pair("client_id", &self.options.client_id)
            .append_pair("client_secret", &self.options.client_secret)
            .finish();
        let answer = loop {
            let request = self.http.post(url.clone()).header(CONTENT_TYPE, "application/x-www-form-urlencoded");
            match self.send(request.body(form.clone()), &name).await {
                Attempt::Done(answer) => break answer,
                Attempt::Failed(fault) | Attempt::Unauthenticated(fault) => return Err(fault),
                Attempt::Again { why, after } => {
                    self.retries += 1;
                    patience.wait(&name, why, after).await?;
                }
            }
        };
        let missing = |what| Fault::Answer { call: name.clone(), what };
        let text = answer["access_token"].as_str().ok_or_else(|| missing("access_token"))?.to_owned();
        let lives = Duration::from_secs(answer["expires_in"].as_u64().unwrap_or(60).min(24 * 60 * 60));
        let margin = (lives / 4).min(Duration::from_secs(30));
        self.token = Some(Token { text: text.clone(), renew_at: Instant::now() + lives.saturating_sub(margin) });
        Ok(text)
    }
}

/// How long to go on trying: it begins with the first failure.
pub struct Patience {
    whole: Duration,
    since: Option<Instant>,
    backoff: Duration,
}

impl Patience {
    /// Patience for so long.
    pub fn new(whole: Duration) -> Self {
        Self { whole, since: None, backoff: BACKOFF_FIRST }
    }

    /// Waits before another attempt, at least for as long as the server asks; fails when that is too long.
    pub async fn wait(&mut self, call: &str, last: String, after: Option<Duration>) -> Result<(), Fault> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let wait = self.backoff.max(after.unwrap_or_default());
        if since.elapsed() + wait > self.whole {
            return Err(Fault::Patience { call: call.to_owned(), seconds: self.whole.as_secs(), last });
        }
        self.backoff = (self.backoff * 2).min(BACKOFF_LONGEST);
        tokio::time::sleep(wait).await;
        Ok(())
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// A problem document, or an OAuth error of the token route.
fn refused(call: &str, status: StatusCode, answer: &Value) -> Fault {
    let text = |names: [&str; 2]| names.iter().find_map(|name| answer[name].as_str()).unwrap_or_default().to_owned();
    Fault::Refused {
        call: call.to_owned(),
        status: status.as_u16(),
        code: text(["code", "error"]),
        detail: text(["detail", "error_description"]),
    }
}

/// The fault with its causes: reqwest says only "error sending request" by itself.
fn chain(fault: &dyn std::error::Error) -> String {
    let mut text = fault.to_string();
    let mut source = fault.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}
