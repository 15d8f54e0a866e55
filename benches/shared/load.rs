//! Clients that keep their connection and wait for each answer, as a harness does, and what they see.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

use super::Failure;
use super::process::{cpu_seconds, family_cpu_seconds};

/// How long the clients call before it counts.
pub const WARM_UP: Duration = Duration::from_millis(300);

/// A server that is measured.
#[derive(Debug, Clone, Copy)]
pub struct Subject {
    pub address: SocketAddr,
    pub pid: u32,
}

/// What one client asks for, over and over: units of one request or of several.
pub trait Script: Send {
    /// The next request, ready to go.
    fn request(&mut self) -> Result<&[u8], Failure>;

    /// Takes the body of its answer, which was a success; answers whether the unit is done with it.
    fn answered(&mut self, body: &[u8]) -> Result<bool, Failure>;
}

/// The same request each time, or the same ones in turn, each with the length that its answers must have, if that is
/// known.
pub struct Repeat {
    requests: Vec<(Vec<u8>, Option<usize>)>,
    next: usize,
    /// Whether each of them counts, or all of them once.
    each: bool,
}

#[allow(dead_code, reason = "not every benchmark has all these scripts")]
impl Repeat {
    /// One.
    pub fn one(request: Vec<u8>) -> Box<dyn Script> {
        Self::all(vec![(request, None)])
    }

    /// All of them as one unit.
    pub fn all(requests: Vec<(Vec<u8>, Option<usize>)>) -> Box<dyn Script> {
        Box::new(Self { requests, next: 0, each: false })
    }

    /// Each of them as a unit.
    pub fn in_turn(requests: Vec<Vec<u8>>) -> Box<dyn Script> {
        Box::new(Self { requests: requests.into_iter().map(|request| (request, None)).collect(), next: 0, each: true })
    }
}

impl Script for Repeat {
    fn request(&mut self) -> Result<&[u8], Failure> {
        Ok(&self.requests[self.next].0)
    }

    fn answered(&mut self, body: &[u8]) -> Result<bool, Failure> {
        if self.requests[self.next].1.is_some_and(|length| length != body.len()) {
            return Err(format!("another answer than before: {}", String::from_utf8_lossy(body)).into());
        }
        self.next = (self.next + 1) % self.requests.len();
        Ok(self.each || self.next == 0)
    }
}

/// What one round showed.
#[derive(Debug)]
pub struct Round {
    /// Units a second.
    pub throughput: f64,
    /// CPU seconds of the server, per unit.
    pub server_cpu: f64,
    /// CPU seconds of PostgreSQL, per unit.
    pub postgres_cpu: f64,
    /// Of each unit, in microseconds.
    pub latencies: Vec<u32>,
    /// All units, also those that do not count because they were before or after.
    #[allow(dead_code, reason = "not every benchmark counts what was written")]
    pub total: u64,
}

/// Lets a client for each script call `subject` for so long. Any answer but success ends the run.
pub async fn round(
    subject: Subject,
    postgres: u32,
    scripts: Vec<Box<dyn Script>>,
    length: Duration,
) -> Result<Round, Failure> {
    let begin = Instant::now() + WARM_UP;
    let end = begin + length;
    let clients: Vec<_> =
        scripts.into_iter().map(|script| tokio::spawn(client(subject.address, script, begin, end))).collect();
    sleep_until(begin).await;
    let before = (cpu_seconds(subject.pid)?, family_cpu_seconds(postgres)?);
    sleep_until(end).await;
    let after = (cpu_seconds(subject.pid)?, family_cpu_seconds(postgres)?);
    let (mut latencies, mut total) = (Vec::new(), 0);
    for client in clients {
        let (seen, all) = client.await??;
        latencies.extend(seen);
        total += all;
    }
    if latencies.is_empty() {
        return Err("no answer in a whole round".into());
    }
    let units = f64::from(u32::try_from(latencies.len())?);
    Ok(Round {
        throughput: units / length.as_secs_f64(),
        server_cpu: (after.0 - before.0) / units,
        postgres_cpu: (after.1 - before.1) / units,
        latencies,
        total,
    })
}

/// Calls until the time is up and the unit is done; answers the latencies that count, and how many units there were.
async fn client(
    address: SocketAddr,
    mut script: Box<dyn Script>,
    begin: Instant,
    end: Instant,
) -> Result<(Vec<u32>, u64), Failure> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (mut buffer, mut latencies, mut total) = (Vec::with_capacity(8 * 1024), Vec::new(), 0);
    loop {
        let sent = Instant::now();
        if sent >= end {
            return Ok((latencies, total));
        }
        loop {
            stream.write_all(script.request()?).await?;
            let (status, body) = answer_with_body(&mut stream, &mut buffer).await?;
            if !(200..400).contains(&status) {
                return Err(format!("refused: {}", String::from_utf8_lossy(&buffer)).into());
            }
            if script.answered(&buffer[body..])? {
                break;
            }
        }
        let now = Instant::now();
        total += 1;
        if sent >= begin && now <= end {
            latencies.push(u32::try_from((now - sent).as_micros())?);
        }
    }
}

/// Reads one answer to its end; answers its status.
pub async fn answer(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<u16, Failure> {
    Ok(answer_with_body(stream, buffer).await?.0)
}

/// The same, and where its body begins.
async fn answer_with_body(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<(u16, usize), Failure> {
    buffer.clear();
    loop {
        if stream.read_buf(buffer).await? == 0 {
            return Err("the server hung up".into());
        }
        let Some(head) = buffer.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let text = std::str::from_utf8(&buffer[..head])?;
        let status = text.get(9..12).ok_or("an answer without a status")?.parse()?;
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length = match length {
            Some(length) => length.parse()?,
            // Has no body, ever.
            None if status == 304 => 0,
            None => return Err("an answer without a length".into()),
        };
        if buffer.len() < head + 4 + length {
            continue;
        }
        return Ok((status, head + 4));
    }
}
