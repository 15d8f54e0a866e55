//! Calls that survive a server which is away, as README.md tells clients to make them: each is repeated, to the byte,
//! until it is answered, by either server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mandate::auth::mint::PersonMint;
use mandate::service::Clock;
use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use serde_json::{Map, Value};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, sleep_until};

use super::Failure;
use super::tally::Tally;

/// The organization's slug.
pub const ORG: &str = "soak";
/// Who issues people's tokens, and for whom.
pub const ISSUER: &str = "https://people.example.com";
pub const AUDIENCE: &str = "mandate";

/// How long one call may be repeated.
const PATIENCE: Duration = Duration::from_mins(3);
/// How long one attempt may take; those that wait or stream have longer.
pub const ATTEMPT: Duration = Duration::from_secs(35);
const LONG_ATTEMPT: Duration = Duration::from_secs(90);
/// How long to wait before the first repeat; each further wait doubles, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// People's tokens are made anew after so long, accounts' so long before they end.
const PERSON_TOKEN: Duration = Duration::from_mins(10);
const RENEW_BEFORE: Duration = Duration::from_secs(30);

/// Both servers, and what is counted about them.
pub struct Site {
    pub http: reqwest::Client,
    pub tally: Tally,
    bases: [String; 2],
    turn: AtomicUsize,
    apart: Duration,
    next: Mutex<Instant>,
}

impl Site {
    pub fn new(bases: [String; 2], rate: u32) -> Result<Self, Failure> {
        let http = reqwest::Client::builder().no_proxy().connect_timeout(Duration::from_secs(2)).build()?;
        let (turn, apart) = (AtomicUsize::new(0), Duration::from_secs(1) / rate.max(1));
        Ok(Self { http, tally: Tally::default(), bases, turn, apart, next: Mutex::new(Instant::now()) })
    }

    /// The server whose turn it is.
    pub fn base(&self) -> &str {
        &self.bases[self.turn.fetch_add(1, Ordering::Relaxed) % self.bases.len()]
    }

    /// Waits for the caller's turn, so that all together keep to the rate.
    async fn pace(&self) {
        let slot = {
            let mut next = self.next.lock().await;
            let slot = (*next).max(Instant::now());
            *next = slot + self.apart;
            slot
        };
        sleep_until(slot).await;
    }
}

/// As whom somebody calls.
pub enum Identity {
    Person { mint: Arc<PersonMint>, name: &'static str },
    Account { client_id: String, client_secret: String },
}

struct Token {
    text: String,
    renew_at: Instant,
}

/// Somebody who calls.
pub struct Caller {
    pub site: Arc<Site>,
    identity: Identity,
    token: Mutex<Option<Token>>,
}

/// What is sent.
#[derive(Clone, Default)]
enum Content {
    #[default]
    Nothing,
    Json(String),
    Bytes(Vec<u8>),
}

/// A call: fixed, so that a repeat is the same call.
#[derive(Clone)]
pub struct Call {
    what: &'static str,
    method: Method,
    path: String,
    headers: Vec<(&'static str, String)>,
    content: Content,
    /// One that waits for something takes no turn and may take longer.
    waits: bool,
}

impl Call {
    fn new(what: &'static str, method: Method, path: String) -> Self {
        Self { what, method, path, headers: Vec::new(), content: Content::Nothing, waits: false }
    }

    pub fn get(what: &'static str, path: impl Into<String>) -> Self {
        Self::new(what, Method::GET, path.into())
    }

    pub fn post(what: &'static str, path: impl Into<String>, body: &Value) -> Self {
        Self { content: Content::Json(body.to_string()), ..Self::new(what, Method::POST, path.into()) }
    }

    pub fn put(what: &'static str, path: impl Into<String>, body: &Value) -> Self {
        Self { content: Content::Json(body.to_string()), ..Self::new(what, Method::PUT, path.into()) }
    }

    /// One whose body is bytes.
    pub fn send(what: &'static str, path: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self { content: Content::Bytes(bytes), ..Self::new(what, Method::PUT, path.into()) }
    }

    /// One without a body.
    pub fn bare(what: &'static str, method: Method, path: impl Into<String>) -> Self {
        Self::new(what, method, path.into())
    }

    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    #[must_use]
    pub fn waiting(mut self) -> Self {
        self.waits = true;
        self
    }
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Reply {
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The body, where it is JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// Why it was refused.
    pub fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }

    /// Where the list goes on.
    pub fn next(&self) -> Option<String> {
        let link = self.headers.get("link")?.to_str().ok()?;
        Some(link.strip_prefix('<')?.split_once('>')?.0.to_owned())
    }
}

impl Caller {
    pub fn new(site: &Arc<Site>, identity: Identity) -> Arc<Self> {
        Arc::new(Self { site: Arc::clone(site), identity, token: Mutex::new(None) })
    }

    /// Makes a call, again and again until it is answered by something else than that the server cannot answer now.
    pub async fn call(&self, call: &Call) -> Result<Reply, Failure> {
        let (begin, mut pause) = (Instant::now(), FIRST_PAUSE);
        loop {
            if !call.waits {
                self.site.pace().await;
            }
            let token = self.token().await?;
            let sent = Instant::now();
            let (why, after) = match self.attempt(call, &token).await {
                Ok(reply) if !matches!(reply.status, 429 | 502..=504) => {
                    self.site.tally.answered(call.what, reply.status, sent.elapsed(), call.waits);
                    return Ok(reply);
                }
                Ok(reply) => {
                    let after = reply.headers.get(RETRY_AFTER).and_then(|after| after.to_str().ok()?.parse().ok());
                    (format!("{} {}", reply.status, reply.code()), after.map(Duration::from_secs))
                }
                Err(fault) => (kind(&fault).to_owned(), None),
            };
            if begin.elapsed() > PATIENCE {
                return Err(format!("{} {}: unanswered for {PATIENCE:?}: {why}", call.what, call.path).into());
            }
            self.site.tally.repeated(&why);
            sleep(after.unwrap_or(pause).min(LONGEST_PAUSE)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// A success, or the run ends.
    pub async fn must(&self, call: &Call) -> Result<Value, Failure> {
        let reply = self.call(call).await?;
        if reply.is_success() { Ok(reply.json()) } else { Err(unexpected(call, &reply)) }
    }

    /// A success, or `None` for one of the refusals that may happen here.
    pub async fn may(&self, call: &Call, refusals: &[&str]) -> Result<Option<Reply>, Failure> {
        let reply = self.call(call).await?;
        if reply.is_success() || reply.status == 304 {
            return Ok(Some(reply));
        }
        if refusals.contains(&reply.code().as_str()) { Ok(None) } else { Err(unexpected(call, &reply)) }
    }

    async fn attempt(&self, call: &Call, token: &str) -> Result<Reply, reqwest::Error> {
        let mut request = self.request(call, token).timeout(if call.waits { LONG_ATTEMPT } else { ATTEMPT });
        request = match &call.content {
            Content::Nothing => request,
            Content::Json(text) => request.header(CONTENT_TYPE, "application/json").body(text.clone()),
            Content::Bytes(bytes) => request.header(CONTENT_TYPE, "application/octet-stream").body(bytes.clone()),
        };
        let response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(Reply { status, headers, text: response.text().await? })
    }

    fn request(&self, call: &Call, token: &str) -> reqwest::RequestBuilder {
        // A link is a path from the root.
        let root = if call.path.starts_with("/organizations/") { "" } else { "/organizations/soak" };
        let url = format!("{}{root}{}", self.site.base(), call.path);
        let request = self.site.http.request(call.method.clone(), url).bearer_auth(token);
        call.headers.iter().fold(request, |request, (name, value)| request.header(*name, value))
    }

    /// Opens a stream; it ends when the server, the token or the task does.
    pub async fn open(&self, call: &Call) -> Result<reqwest::Result<reqwest::Response>, Failure> {
        let token = self.token().await?;
        Ok(self.request(call, &token).send().await)
    }

    async fn token(&self) -> Result<String, Failure> {
        let mut kept = self.token.lock().await;
        if let Some(token) = kept.as_ref().filter(|token| Instant::now() < token.renew_at) {
            return Ok(token.text.clone());
        }
        let (text, lasts) = match &self.identity {
            Identity::Person { mint, name } => {
                let now = Clock::system().now();
                (mint.mint(name, ISSUER, AUDIENCE, PERSON_TOKEN * 2, Map::new(), now), PERSON_TOKEN)
            }
            Identity::Account { client_id, client_secret } => self.issued(client_id, client_secret).await?,
        };
        *kept = Some(Token { text: text.clone(), renew_at: Instant::now() + lasts });
        Ok(text)
    }

    async fn issued(&self, client_id: &str, client_secret: &str) -> Result<(String, Duration), Failure> {
        let form = [("grant_type", "client_credentials"), ("client_id", client_id), ("client_secret", client_secret)];
        let begin = Instant::now();
        loop {
            let sent = Instant::now();
            let url = format!("{}/auth/token", self.site.base());
            let why = match self.site.http.post(url).form(&form).timeout(ATTEMPT).send().await {
                Ok(answer) if answer.status().is_success() => {
                    self.site.tally.answered("token", answer.status().as_u16(), sent.elapsed(), false);
                    let answer: Value = answer.json().await?;
                    let lasts = Duration::from_secs(answer["expires_in"].as_u64().unwrap_or_default());
                    let text = answer["access_token"].as_str().ok_or("an answer without a token")?;
                    return Ok((text.to_owned(), lasts.saturating_sub(RENEW_BEFORE)));
                }
                Ok(answer) if !matches!(answer.status().as_u16(), 429 | 502..=504) => {
                    return Err(format!("no token: {} {}", answer.status(), answer.text().await?).into());
                }
                Ok(answer) => answer.status().as_u16().to_string(),
                Err(fault) => kind(&fault).to_owned(),
            };
            if begin.elapsed() > PATIENCE {
                return Err(format!("no token for {PATIENCE:?}: {why}").into());
            }
            self.site.tally.repeated(&why);
            sleep(LONGEST_PAUSE).await;
        }
    }
}

fn unexpected(call: &Call, reply: &Reply) -> Failure {
    format!("{} {}: {} {}", call.what, call.path, reply.status, reply.text).into()
}

fn kind(fault: &reqwest::Error) -> &'static str {
    if fault.is_timeout() {
        "no answer in time"
    } else if fault.is_connect() {
        "no connection"
    } else {
        "the connection broke"
    }
}
