//! Clients that write over HTTP, each answer counted.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mandate::domain::time::Timestamp;
use mandate::service::Clock;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::Failure;
use super::load::answer;

/// What was answered so far.
#[derive(Default)]
pub struct Answers {
    successes: AtomicUsize,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    statuses: BTreeMap<u16, usize>,
    /// When each call went out, and how many microseconds its answer took.
    calls: Vec<(Timestamp, i64)>,
    refusal: Option<String>,
}

impl Answers {
    /// How many calls succeeded.
    pub fn successes(&self) -> usize {
        self.successes.load(Ordering::Relaxed)
    }

    /// How many answers had each status.
    pub fn statuses(&self) -> BTreeMap<u16, usize> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).statuses.clone()
    }

    /// When each call went out, and how many microseconds its answer took.
    pub fn calls(&self) -> Vec<(Timestamp, i64)> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).calls.clone()
    }

    /// Nothing but successes is right: nobody here sends what may be refused.
    pub fn check(&self) -> Result<(), Failure> {
        match &self.seen.lock().unwrap_or_else(PoisonError::into_inner).refusal {
            Some(refusal) => Err(format!("not every call succeeded: {:?}; {refusal}", self.statuses()).into()),
            None => Ok(()),
        }
    }
}

/// Sends `total` calls, the `requests` in turn, over `clients` connections; `rate` a second or as fast as they are
/// answered. Answers how long that took.
pub async fn send(
    address: SocketAddr,
    requests: Vec<Vec<u8>>,
    total: usize,
    clients: usize,
    rate: Option<u32>,
    answers: &Arc<Answers>,
) -> Result<Duration, Failure> {
    let (requests, next, begin) = (Arc::new(requests), Arc::new(AtomicUsize::new(0)), Instant::now());
    let mut running = JoinSet::new();
    for _ in 0..clients {
        let client = Client {
            requests: Arc::clone(&requests),
            next: Arc::clone(&next),
            answers: Arc::clone(answers),
            total,
            begin,
            apart: rate.map_or(Duration::ZERO, |rate| Duration::from_secs(1) / rate),
        };
        running.spawn(client.run(address));
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    Ok(begin.elapsed())
}

struct Client {
    requests: Arc<Vec<Vec<u8>>>,
    next: Arc<AtomicUsize>,
    answers: Arc<Answers>,
    total: usize,
    begin: Instant,
    apart: Duration,
}

impl Client {
    async fn run(self, address: SocketAddr) -> Result<(), Failure> {
        let (mut stream, mut buffer) = (TcpStream::connect(address).await?, Vec::with_capacity(8 * 1024));
        stream.set_nodelay(true)?;
        let clock = Clock::system();
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.total {
                return Ok(());
            }
            if !self.apart.is_zero() {
                sleep_until(self.begin + self.apart * u32::try_from(number)?).await;
            }
            let (at, sent) = (clock.now(), Instant::now());
            stream.write_all(&self.requests[number % self.requests.len()]).await?;
            let status = answer(&mut stream, &mut buffer).await?;
            let took = i64::try_from(sent.elapsed().as_micros())?;
            let mut seen = self.answers.seen.lock().unwrap_or_else(PoisonError::into_inner);
            *seen.statuses.entry(status).or_default() += 1;
            seen.calls.push((at, took));
            if (200..300).contains(&status) {
                self.answers.successes.fetch_add(1, Ordering::Relaxed);
            } else {
                seen.refusal.get_or_insert_with(|| String::from_utf8_lossy(&buffer).into_owned());
            }
        }
    }
}
