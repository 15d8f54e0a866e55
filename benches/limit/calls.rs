//! What the clients of the two HTTP servers send.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use uuid::Uuid;

use super::Failure;
use super::asked::{self, Questions};
use super::load::{Repeat, Script};
use super::operations::Operation;
use super::sample::{self, payload};
use super::seed::{Callers, ORG, Target};
use super::service::request;

/// A text as long as an id, which a counter is written into.
const KEY: &str = "kkkkkkkk-kkkk-kkkk-kkkk-kkkkkkkkkkkk";
/// Keys that were given out.
static KEYS: AtomicU64 = AtomicU64::new(0);

/// A read.
pub fn get(host: SocketAddr, path: &str, headers: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n{headers}\r\n").into_bytes()
}

/// What a client of Mandate sends: about its task `work`, or to read `reading`.
pub struct ToMandate<'a> {
    pub address: SocketAddr,
    pub callers: &'a Callers,
    pub questions: Questions,
}

impl ToMandate<'_> {
    /// The script of the client with that number.
    pub fn script(
        &self,
        operation: Operation,
        client: u32,
        work: &Target,
        reading: &Target,
    ) -> Result<Box<dyn Script>, Failure> {
        let (host, token) = (self.address, Some(self.callers.agent.token()));
        let task = format!("/organizations/{ORG}/agent-tasks/{}", work.short_id);
        let poll = |more: &str| {
            let path = format!("/organizations/{ORG}/agent-tasks/{}/events", reading.short_id);
            let after = reading.last_seq - operation.behind();
            let headers = format!("authorization: Bearer {}\r\n{more}", self.callers.agent.token());
            get(host, &format!("{path}?after_seq={after}&limit=100"), &headers)
        };
        Ok(match operation {
            Operation::Append1 | Operation::Append10 | Operation::Append100 => {
                let events = sample::events(work.session, operation.batch().unwrap_or(1)).to_string();
                Repeat::one(request(host, &format!("{task}/events"), token, &events))
            }
            Operation::Heartbeat => {
                Repeat::one(request(host, &format!("{task}/sessions/{}/heartbeat", work.session), token, ""))
            }
            Operation::PollNothing => Repeat::all(vec![(poll(""), Some(2))]),
            Operation::PollUnchanged => {
                let tag = format!("if-none-match: \"{}\"\r\n", reading.last_seq);
                Repeat::all(vec![(poll(&tag), Some(0))])
            }
            Operation::Poll10 => Box::new(Found { request: poll(""), length: None }),
            Operation::Usage => {
                let usage = sample::usage(work.session, KEY).to_string();
                Box::new(Keyed::new(request(host, &format!("{task}/usage"), token, &usage))?)
            }
            Operation::Resolve => Box::new(Answering {
                call: Call::ToMandate(host, self.callers.person.token().to_owned(), sample::answer().to_string()),
                next: client * self.questions.each,
                end: (client + 1) * self.questions.each,
                request: Vec::new(),
            }),
            Operation::Life => Box::new(Life {
                address: host,
                person: self.callers.person.token().to_owned(),
                agent: self.callers.agent.token().to_owned(),
                step: 0,
                task: String::new(),
                session: Uuid::nil(),
                request: Vec::new(),
            }),
        })
    }
}

/// What a client of the bare server sends.
pub fn to_bare(
    host: SocketAddr,
    questions: Questions,
    operation: Operation,
    client: u32,
    reading: &Target,
) -> Box<dyn Script> {
    let post = |path: &str, body: &str| request(host, &format!("/{path}/{client}"), None, body);
    let poll = || get(host, &format!("/poll/{client}/{}", reading.last_seq - operation.behind()), "");
    let turn = payload().to_string();
    match operation {
        Operation::Append1 | Operation::Append10 | Operation::Append100 => {
            let lines = vec![turn; operation.batch().unwrap_or(1)].join("\n");
            Repeat::one(post("append", &lines))
        }
        Operation::Heartbeat => Repeat::one(post("heartbeat", "")),
        Operation::PollNothing | Operation::PollUnchanged => Repeat::all(vec![(poll(), Some(2))]),
        Operation::Poll10 => Box::new(Found { request: poll(), length: None }),
        Operation::Usage => Repeat::one(post("usage", "")),
        Operation::Resolve => Box::new(Answering {
            call: Call::ToBare(host),
            next: client * questions.each,
            end: (client + 1) * questions.each,
            request: Vec::new(),
        }),
        Operation::Life => {
            let steps = [("create", ""), ("live/open", ""), ("live/append", turn.as_str()), ("live/usage", "")];
            let steps = steps.into_iter().chain([("live/close", "")]);
            Repeat::all(steps.map(|(step, body)| (post(step, body), None)).collect())
        }
    }
}

/// Polls that find something: the first answer is counted, later ones are as long.
struct Found {
    request: Vec<u8>,
    length: Option<usize>,
}

impl Script for Found {
    fn request(&mut self) -> Result<&[u8], Failure> {
        Ok(&self.request)
    }

    fn answered(&mut self, body: &[u8]) -> Result<bool, Failure> {
        let is_right = if let Some(length) = self.length {
            body.len() == length
        } else {
            let events: Vec<&serde_json::value::RawValue> = serde_json::from_slice(body)?;
            i64::try_from(events.len())? == super::scripts::FOUND
        };
        self.length = Some(body.len());
        if is_right { Ok(true) } else { Err(format!("not the events: {}", String::from_utf8_lossy(body)).into()) }
    }
}

/// The same request with a fresh key each time.
struct Keyed {
    request: Vec<u8>,
    at: usize,
}

impl Keyed {
    fn new(request: Vec<u8>) -> Result<Self, Failure> {
        let at = request.windows(KEY.len()).position(|window| window == KEY.as_bytes());
        Ok(Self { request, at: at.ok_or("a request without its key")? })
    }
}

impl Script for Keyed {
    fn request(&mut self) -> Result<&[u8], Failure> {
        let key = format!("{:036}", KEYS.fetch_add(1, Ordering::Relaxed));
        self.request[self.at..self.at + KEY.len()].copy_from_slice(key.as_bytes());
        Ok(&self.request)
    }

    fn answered(&mut self, _: &[u8]) -> Result<bool, Failure> {
        Ok(true)
    }
}

/// How a question is answered.
enum Call {
    ToMandate(SocketAddr, String, String),
    ToBare(SocketAddr),
}

/// Answers one question after the other.
struct Answering {
    call: Call,
    next: u32,
    end: u32,
    request: Vec<u8>,
}

impl Script for Answering {
    fn request(&mut self) -> Result<&[u8], Failure> {
        let number = self.next;
        if number == self.end {
            return Err("all questions are answered: this machine is too fast for so long a round".into());
        }
        self.next += 1;
        self.request = match &self.call {
            Call::ToMandate(host, token, body) => {
                let (task, question) = (asked::short_number(number), asked::id(number));
                let path = format!("/organizations/{ORG}/agent-tasks/T-{task}/requests/{question}/resolve");
                request(*host, &path, Some(token), body)
            }
            Call::ToBare(host) => request(*host, &format!("/resolve/{number}"), None, ""),
        };
        Ok(&self.request)
    }

    fn answered(&mut self, _: &[u8]) -> Result<bool, Failure> {
        Ok(true)
    }
}

/// Lives of tasks, one after the other.
struct Life {
    address: SocketAddr,
    person: String,
    agent: String,
    step: usize,
    task: String,
    session: Uuid,
    request: Vec<u8>,
}

/// The string behind `name` in a JSON text that is known to be written without white space.
fn after<'a>(body: &'a [u8], name: &str) -> Result<&'a str, Failure> {
    let text = std::str::from_utf8(body)?;
    let value = text.split_once(name).and_then(|(_, rest)| rest.split_once('"'));
    Ok(value.ok_or_else(|| format!("an answer without {name}: {text}"))?.0)
}

impl Script for Life {
    fn request(&mut self) -> Result<&[u8], Failure> {
        let base = format!("/organizations/{ORG}/agent-tasks/");
        let (action, body) = match self.step {
            0 => ("", sample::task()),
            1 => ("/sessions", serde_json::json!({"session_key": "bench"})),
            2 => ("/events", sample::events(self.session, 1)),
            3 => ("/usage", sample::usage(self.session, KEY)),
            _ => ("/outcome", sample::outcome(self.session)),
        };
        let token = if self.step == 0 { &self.person } else { &self.agent };
        let path = if self.step == 0 { base } else { format!("{base}{}{action}", self.task) };
        self.request = request(self.address, &path, Some(token), &body.to_string());
        Ok(&self.request)
    }

    fn answered(&mut self, body: &[u8]) -> Result<bool, Failure> {
        match self.step {
            0 => after(body, r#""short_id":""#)?.clone_into(&mut self.task),
            1 => self.session = after(body, r#""session":{"id":""#)?.parse()?,
            _ => {}
        }
        self.step = (self.step + 1) % 5;
        Ok(self.step == 0)
    }
}
