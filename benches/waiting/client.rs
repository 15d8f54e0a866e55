//! A writer, and readers that note when they have an event.

use std::net::SocketAddr;

use mandate::domain::time::Timestamp;
use mandate::service::Clock;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::Failure;
use super::load::answer;
use super::seed::{ORG, Target};
use super::service::{self, Service};

/// Now, in microseconds since 1970: of the clock that the servers have too.
pub fn now() -> i64 {
    Clock::system().now().micros()
}

/// A connection that is kept.
pub struct Connection {
    address: SocketAddr,
    token: String,
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// An answer.
pub struct Reply {
    /// When the last byte of it was there.
    pub at: i64,
    head: String,
    pub body: Value,
}

/// An event that was written.
#[derive(Debug, Clone, Copy)]
pub struct Written {
    pub seq: i64,
    /// Its `recorded_at`: before the commit.
    pub recorded: i64,
    /// When the writer had its answer: behind the commit.
    pub answered: i64,
}

/// The path of the log of a task.
pub fn log_of(target: &Target) -> String {
    format!("/organizations/{ORG}/agent-tasks/{}/events", target.short_id)
}

impl Connection {
    pub async fn open(service: &Service, token: &str) -> Result<Self, Failure> {
        let stream = TcpStream::connect(service.address()).await?;
        stream.set_nodelay(true)?;
        Ok(Self { address: service.address(), token: token.to_owned(), stream, buffer: Vec::with_capacity(4 * 1024) })
    }

    async fn ask(&mut self, path: &str, accept: &str) -> Result<(), Failure> {
        let (host, token) = (self.address, &self.token);
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\naccept: {accept}\r\n\r\n");
        Ok(self.stream.write_all(request.as_bytes()).await?)
    }

    async fn reply(&mut self) -> Result<Reply, Failure> {
        let status = answer(&mut self.stream, &mut self.buffer).await?;
        let at = now();
        let text = std::str::from_utf8(&self.buffer)?;
        if !(200..300).contains(&status) {
            return Err(format!("refused: {text}").into());
        }
        let (head, body) = text.split_once("\r\n\r\n").ok_or("an answer without a head")?;
        Ok(Reply { at, head: head.to_owned(), body: serde_json::from_str(body)? })
    }

    /// A read.
    pub async fn get(&mut self, path: &str) -> Result<Reply, Failure> {
        self.ask(path, "application/json").await?;
        self.reply().await
    }

    /// Appends one event.
    pub async fn append(&mut self, target: &Target) -> Result<Written, Failure> {
        let payload = json!({"body": "I read the failing test and the function that it covers. ".repeat(4)});
        let body = json!({"session_id": target.session, "events": [{"type": "turn", "payload": payload}]});
        let call = service::request(self.address, &log_of(target), Some(&self.token), &body.to_string());
        self.stream.write_all(&call).await?;
        let reply = self.reply().await?;
        let event = reply.body.pointer("/written/0").ok_or("nothing was written")?;
        let recorded = event["recorded_at"].as_str().ok_or("an event without recorded_at")?;
        Ok(Written { seq: seq(event)?, recorded: Timestamp::parse(recorded)?.micros(), answered: reply.at })
    }

    /// Waits with one read for the event behind `after`; answers when it was there.
    pub async fn long_poll(&mut self, target: &Target, after: i64) -> Result<i64, Failure> {
        let reply = self.get(&format!("{}?after_seq={after}&wait=55", log_of(target))).await?;
        match reply.body.as_array().map(Vec::as_slice) {
            Some([event]) if seq(event)? == after + 1 => Ok(reply.at),
            _ => Err(format!("not the one event behind {after}: {}", reply.body).into()),
        }
    }

    /// Opens a stream of what comes behind `after`.
    pub async fn follow(mut self, target: &Target, after: i64) -> Result<Following, Failure> {
        self.ask(&format!("{}?after_seq={after}", log_of(target)), "text/event-stream").await?;
        self.buffer.clear();
        let mut following = Following { connection: self, last: after };
        let head = following.until(b"\r\n\r\n").await?;
        if !head.starts_with(b"HTTP/1.1 200") {
            return Err(format!("refused: {}", String::from_utf8_lossy(&head)).into());
        }
        // The first comment: the stream has looked.
        following.until(b":\n\n").await?;
        Ok(following)
    }
}

impl Reply {
    /// Where the `Link` header leads.
    pub fn next(&self) -> Result<&str, Failure> {
        let link = self.head.lines().find_map(|line| line.strip_prefix("link: <")?.split_once('>'));
        Ok(link.ok_or("an answer that leads nowhere")?.0)
    }
}

/// A stream.
pub struct Following {
    connection: Connection,
    last: i64,
}

impl Following {
    /// When the next event was there whole.
    pub async fn next(&mut self) -> Result<i64, Failure> {
        self.last += 1;
        let id = format!("id: {}\n", self.last);
        self.until(id.as_bytes()).await?;
        // A chunk is an event whole, so its lines are not torn apart by the framing of chunks.
        self.until(b"\n\n").await?;
        Ok(now())
    }

    /// Reads on until these bytes were there; takes what comes up to their end.
    async fn until(&mut self, bytes: &[u8]) -> Result<Vec<u8>, Failure> {
        let Connection { stream, buffer, .. } = &mut self.connection;
        loop {
            if let Some(begin) = buffer.windows(bytes.len()).position(|window| window == bytes) {
                return Ok(buffer.drain(..begin + bytes.len()).collect());
            }
            if stream.read_buf(buffer).await? == 0 {
                return Err("the server ended the stream".into());
            }
        }
    }
}

fn seq(event: &Value) -> Result<i64, Failure> {
    event["seq"].as_i64().ok_or_else(|| format!("no event: {event}").into())
}
