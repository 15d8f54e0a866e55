//! Clients that keep their connection and wait for each answer, as a harness does, and what they see.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

use super::Failure;

/// How long the clients call before it counts.
const WARM_UP: Duration = Duration::from_millis(300);
/// Clock ticks of `/proc/PID/stat` in a second, on every Linux that this runs on.
const TICKS: f64 = 100.0;

/// What the clients ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// One event.
    Append,
    /// A sign of life.
    Heartbeat,
}

/// A server that is measured, with what each client sends to it, ready to go.
pub struct Subject {
    address: SocketAddr,
    pid: u32,
    appends: Vec<Vec<u8>>,
    heartbeats: Vec<Vec<u8>>,
}

/// What one round showed.
#[derive(Debug)]
pub struct Round {
    /// Answers a second.
    pub throughput: f64,
    /// CPU seconds of the server, per answer.
    pub server_cpu: f64,
    /// CPU seconds of PostgreSQL, per answer.
    pub postgres_cpu: f64,
    /// Of each answer, in microseconds.
    pub latencies: Vec<u32>,
}

impl Subject {
    pub fn new(address: SocketAddr, pid: u32, clients: usize, request: impl Fn(Operation, usize) -> Vec<u8>) -> Self {
        let all = |operation| (0..clients).map(|client| request(operation, client)).collect();
        Self { address, pid, appends: all(Operation::Append), heartbeats: all(Operation::Heartbeat) }
    }
}

/// Lets `clients` call `subject` for so long. Any answer but success ends the run.
pub async fn round(
    subject: &Subject,
    postgres: u32,
    operation: Operation,
    clients: usize,
    length: Duration,
) -> Result<Round, Failure> {
    let begin = Instant::now() + WARM_UP;
    let end = begin + length;
    let requests = match operation {
        Operation::Append => &subject.appends,
        Operation::Heartbeat => &subject.heartbeats,
    };
    let clients: Vec<_> = requests
        .iter()
        .take(clients)
        .map(|request| tokio::spawn(client(subject.address, request.clone(), begin, end)))
        .collect();
    sleep_until(begin).await;
    let before = (cpu_seconds(subject.pid)?, family_cpu_seconds(postgres)?);
    sleep_until(end).await;
    let after = (cpu_seconds(subject.pid)?, family_cpu_seconds(postgres)?);
    let mut latencies = Vec::new();
    for client in clients {
        latencies.extend(client.await??);
    }
    let answers = f64::from(u32::try_from(latencies.len())?);
    if latencies.is_empty() {
        return Err("no answer in a whole round".into());
    }
    Ok(Round {
        throughput: answers / length.as_secs_f64(),
        server_cpu: (after.0 - before.0) / answers,
        postgres_cpu: (after.1 - before.1) / answers,
        latencies,
    })
}

async fn client(address: SocketAddr, request: Vec<u8>, begin: Instant, end: Instant) -> Result<Vec<u32>, Failure> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (mut buffer, mut latencies) = (Vec::with_capacity(8 * 1024), Vec::new());
    loop {
        let sent = Instant::now();
        if sent >= end {
            return Ok(latencies);
        }
        stream.write_all(&request).await?;
        let status = answer(&mut stream, &mut buffer).await?;
        if !(200..300).contains(&status) {
            return Err(format!("refused: {}", String::from_utf8_lossy(&buffer)).into());
        }
        let now = Instant::now();
        if sent >= begin && now <= end {
            latencies.push(u32::try_from((now - sent).as_micros())?);
        }
    }
}

/// Reads one answer to its end; answers its status.
pub async fn answer(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<u16, Failure> {
    buffer.clear();
    loop {
        if stream.read_buf(buffer).await? == 0 {
            return Err("the server hung up".into());
        }
        let Some(head) = buffer.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let text = std::str::from_utf8(&buffer[..head])?;
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.ok_or("an answer without a length")?.parse()?;
        if buffer.len() < head + 4 + length {
            continue;
        }
        return Ok(text.get(9..12).ok_or("an answer without a status")?.parse()?);
    }
}

/// The fields of a process after its name, from its state on.
fn stat(pid: u32) -> Result<Vec<u64>, Failure> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = text.rsplit_once(") ").ok_or("a process without a name")?;
    Ok(rest.split_ascii_whitespace().map(|field| field.parse().unwrap_or_default()).collect())
}

fn cpu_seconds(pid: u32) -> Result<f64, Failure> {
    let ticks: u64 = stat(pid)?.iter().skip(11).take(2).sum();
    Ok(f64::from(u32::try_from(ticks)?) / TICKS)
}

/// Of a process and its children.
fn family_cpu_seconds(pid: u32) -> Result<f64, Failure> {
    let mut sum = cpu_seconds(pid)?;
    for entry in std::fs::read_dir("/proc")? {
        let Some(child) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // One that has just ended is not there any more.
        if stat(child).is_ok_and(|fields| fields.get(1) == Some(&u64::from(pid))) {
            sum += cpu_seconds(child).unwrap_or_default();
        }
    }
    Ok(sum)
}
