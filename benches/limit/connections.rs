//! What a process holds while many harnesses keep their connection and send a sign of life now and then.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::{Barrier, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

use super::load::answer;
use super::process::{require_files, resident};
use super::report::{Section, Spread};
use super::seed::{Callers, ORG, Target, people};
use super::service::{self, Service, request};
use super::{Arguments, Failure};

/// How often each sends one: what Mandate asks for by default.
const INTERVAL: Duration = Duration::from_secs(30);
/// The same in a quick run.
const QUICK: (usize, Duration) = (300, Duration::from_secs(2));
/// How often each does.
const ROUNDS: u32 = 2;
/// How long it may take until all have connected.
const CONNECTED: Duration = Duration::from_mins(2);
/// Connections that are opened at a time.
const AT_ONCE: usize = 64;

/// Measures it, with a session of a task of its own for each connection.
pub async fn measure(arguments: &Arguments) -> Result<(Section, u32), Failure> {
    let (connections, interval) = if arguments.quick { QUICK } else { (arguments.connections, INTERVAL) };
    require_files(connections)?;
    let folder = service::folder()?;
    let postgres = service::start_postgres(folder.path()).await?;
    postgres.ensure_database("mandate").await?;
    let url = postgres.url("mandate");
    let (mint, issuers) = people(&folder.path().join("people.json"))?;
    let http = reqwest::Client::builder().no_proxy().build()?;
    let settings = service::settings(folder.path(), &url, &issuers);
    let mut maker = Service::start(folder.path(), "maker", &settings, &http).await?;
    let callers = Callers::plant(&url, &maker.base(), &http, &mint).await?;
    eprintln!("connections: making {connections} tasks");
    let targets = callers.targets(connections).await?;
    maker.kill().await?;
    // A fresh process, which has answered nothing yet but that it is ready; all roles, as by default.
    let mut service = Service::start(folder.path(), "mandate", &settings, &http).await?;
    drop(http);
    let pid = service.pid()?;
    let mut seen = vec![("before".to_owned(), resident(pid)?)];

    let all = Arc::new(Barrier::new(connections + 1));
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let mut harnesses = Vec::with_capacity(connections);
    for (number, target) in (0..).zip(&targets) {
        let harness = Harness {
            call: call(&service, &callers, target),
            service: service.address(),
            permits: Arc::clone(&permits),
            all: Arc::clone(&all),
            // Spread over the whole interval.
            offset: interval * number / u32::try_from(connections)?,
            interval,
        };
        harnesses.push(tokio::spawn(harness.run()));
    }
    // Who fails never comes.
    timeout(CONNECTED, all.wait()).await.map_err(|_| format!("not all {connections} could connect"))?;
    let begin = Instant::now();
    seen.push(("connected".to_owned(), resident(pid)?));
    for round in 1..=ROUNDS {
        sleep_until(begin + interval * round).await;
        seen.push((format!("after {round} × {} s", interval.as_secs()), resident(pid)?));
    }
    let mut micros = Vec::new();
    for harness in harnesses {
        micros.extend(harness.await??);
    }
    let most = resident(pid)?.1;
    service.kill().await?;
    let version = postgres.programs().major;
    postgres.stop().await?;
    let (count, spread) = (micros.len(), Spread::from(micros));
    let [p50, p99, longest] = spread.fine_cells();
    let mut rows: Vec<_> = seen.iter().map(|(when, (now, _))| vec![when.clone(), format!("{now:.1}")]).collect();
    rows.push(vec!["at most".to_owned(), format!("{most:.1}")]);
    let section = Section {
        name: "connections",
        title: format!(
            "Memory of a process with {connections} connections\n\nResident, while each of them heartbeats every {} s \
             for a task of its own (promised: below 150 MB with 10,000). All {count} heartbeats were answered with 200 on \
             the connection that was opened first, p50 {p50}, p99 {p99}, max {longest} ms.",
            interval.as_secs()
        ),
        head: vec!["", "MB"],
        rows,
        json: json!({"connections": connections, "interval_seconds": interval.as_secs(), "most_mb": most,
            "mb": seen.iter().map(|(when, (now, _))| json!({"when": when, "mb": now})).collect::<Vec<_>>(),
            "heartbeats": spread.json()}),
    };
    Ok((section, version))
}

fn call(service: &Service, callers: &Callers, target: &Target) -> Vec<u8> {
    let path = format!("/organizations/{ORG}/agent-tasks/{}/sessions/{}/heartbeat", target.short_id, target.session);
    request(service.address(), &path, Some(callers.agent.token()), "")
}

struct Harness {
    service: std::net::SocketAddr,
    call: Vec<u8>,
    permits: Arc<Semaphore>,
    all: Arc<Barrier>,
    offset: Duration,
    interval: Duration,
}

impl Harness {
    /// Connects, and sends its signs of life when it is their time; answers how long each took, in microseconds.
    async fn run(self) -> Result<Vec<i64>, Failure> {
        let permit = self.permits.acquire().await?;
        let mut stream = TcpStream::connect(self.service).await?;
        stream.set_nodelay(true)?;
        // Nobody connects who has nothing to say, and the server cuts off who says nothing.
        self.call(&mut stream).await?;
        drop(permit);
        self.all.wait().await;
        let begin = Instant::now() + self.offset;
        let mut micros = Vec::new();
        for round in 0..ROUNDS {
            sleep_until(begin + self.interval * round).await;
            micros.push(self.call(&mut stream).await?);
        }
        // Stays until all are looked at.
        sleep_until(begin - self.offset + self.interval * ROUNDS + Duration::from_secs(1)).await;
        Ok(micros)
    }

    /// One sign of life; answers how long it took, in microseconds.
    async fn call(&self, stream: &mut TcpStream) -> Result<i64, Failure> {
        let (sent, mut buffer) = (Instant::now(), Vec::new());
        stream.write_all(&self.call).await?;
        match answer(stream, &mut buffer).await? {
            200 => Ok(i64::try_from(sent.elapsed().as_micros())?),
            _ => Err(format!("refused: {}", String::from_utf8_lossy(&buffer)).into()),
        }
    }
}
