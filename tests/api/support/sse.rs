//! A reader of server-sent events.

use std::time::Duration;

use reqwest::{Method, Response};
use serde_json::Value;

use super::Client;

/// One block of a stream.
#[derive(Debug, Clone, PartialEq)]
pub enum Block {
    /// A line that readers pass over.
    Comment,
    /// An event: its id, its type, its data.
    Event(i64, String, Value),
}

/// A stream that is open.
pub struct Sse {
    pub response: Response,
    read: Vec<u8>,
}

impl Sse {
    /// Opens the stream of a task with this query and, when there is one, this `Last-Event-ID`.
    pub async fn open(client: &Client, task: &str, query: &str, last: Option<&str>) -> Self {
        let response = Self::ask(client, task, query, last).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        assert_eq!(response.headers()["cache-control"], "no-store");
        Self { response, read: Vec::new() }
    }

    /// The same, whatever the answer is.
    pub async fn ask(client: &Client, task: &str, query: &str, last: Option<&str>) -> Response {
        let mut request = client.request(Method::GET, &format!("/agent-tasks/{task}/events{query}"));
        request = request.header("accept", "text/event-stream");
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        request.send().await.unwrap()
    }

    /// The next block; none at the end.
    pub async fn block(&mut self) -> Option<Block> {
        loop {
            if let Some(end) = self.read.windows(2).position(|pair| pair == b"\n\n") {
                let block: Vec<u8> = self.read.drain(..end + 2).collect();
                return Some(parse(std::str::from_utf8(&block).unwrap().trim_end()));
            }
            let chunk = tokio::time::timeout(Duration::from_secs(20), self.response.chunk());
            let Some(chunk) = chunk.await.expect("a stream is never silent for so long").unwrap() else {
                assert_eq!(self.read, b"", "cut off");
                return None;
            };
            self.read.extend_from_slice(&chunk);
        }
    }

    /// The next event, comments passed over; none at the end.
    pub async fn event(&mut self) -> Option<(i64, String, Value)> {
        loop {
            match self.block().await? {
                Block::Comment => {}
                Block::Event(id, event_type, data) => return Some((id, event_type, data)),
            }
        }
    }

    /// Everything until the end.
    pub async fn rest(&mut self) -> Vec<(i64, String, Value)> {
        let mut events = Vec::new();
        while let Some(event) = self.event().await {
            events.push(event);
        }
        events
    }
}

fn parse(block: &str) -> Block {
    let (mut id, mut event, mut data) = (None, None, Vec::new());
    for line in block.lines() {
        match line.split_once(':').unwrap() {
            ("", _) => {}
            ("id", value) => id = Some(value.trim().parse().unwrap()),
            ("event", value) => event = Some(value.trim().to_owned()),
            ("data", value) => data.push(value.strip_prefix(' ').unwrap()),
            (field, _) => panic!("a field {field}"),
        }
    }
    match (id, event) {
        (None, None) => {
            assert!(data.is_empty() && block.starts_with(':'), "{block}");
            Block::Comment
        }
        (id, event) => Block::Event(id.unwrap(), event.unwrap(), serde_json::from_str(&data.join("\n")).unwrap()),
    }
}
