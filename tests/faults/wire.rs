//! Requests over a bare socket, for what no well-behaved client does.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{Client, World};

/// The bytes of a POST.
pub fn post(client: &Client, path: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let head = head(client, path, body.len());
    [head.as_bytes(), body.as_bytes()].concat()
}

/// The bytes of a GET.
pub fn get(client: &Client, path: &str) -> Vec<u8> {
    let token = client.token();
    format!("GET /organizations/acme{path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n").into()
}

/// The head of a POST whose body has so many bytes.
pub fn head(client: &Client, path: &str, length: usize) -> String {
    format!(
        "POST /organizations/acme{path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n",
        client.token()
    )
}

/// A connection on which these bytes were sent.
pub async fn send(world: &World, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(world.base.strip_prefix("http://").unwrap()).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

/// What the server says until it ends the connection, within ten seconds.
pub async fn rest(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answer)).await;
    // A reset is an end too.
    let _ = read.expect("the server keeps the connection open");
    String::from_utf8_lossy(&answer).into_owned()
}

/// The beginning of the answer, within ten seconds.
pub async fn answer(stream: &mut TcpStream) -> String {
    let mut buffer = [0; 4096];
    let read = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut buffer)).await;
    let length = read.expect("no answer within ten seconds").unwrap();
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

/// An answer whole, each part of it within ten seconds.
pub async fn whole(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    loop {
        let read = tokio::time::timeout(Duration::from_secs(10), stream.read_buf(&mut answer)).await;
        assert_ne!(read.expect("no whole answer within ten seconds").unwrap(), 0, "the answer ends too soon");
        let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = std::str::from_utf8(&answer[..end]).unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if answer.len() == end + 4 + length.unwrap().parse::<usize>().unwrap() {
            return String::from_utf8(answer).unwrap();
        }
    }
}
