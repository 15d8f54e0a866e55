//! pgbench as the third column: `-M prepared`, with scripts of the same statements.
//!
//! Equal is the text of each statement, so its plan, its triggers and what it writes; the number of round trips; that
//! everything is prepared once; and that each client writes to a task of its own and raises `last_seq` each time, so
//! that every compare matches (the benchmark counts afterwards). Not equal is where values come from. pgbench can only
//! calculate with integers and sends text: payloads and names go over the wire as with the others, but what differs
//! from call to call is put together by the server (a number, a time, an id out of the number), which costs it a few
//! microseconds that the others spend in their own process.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use mandate::service::Clock;
use tokio::process::Command;
use tokio::time::{Instant, sleep_until};

use super::Failure;
use super::load::Round;
use super::process::family_cpu_seconds;

/// How long it may take until all clients have connected, prepared and warmed up.
const BEFORE: Duration = Duration::from_secs(1);
/// What it goes on beyond what counts.
const AFTER: Duration = Duration::from_secs(1);

/// A script, and the values that it names.
#[derive(Debug, Clone, Default)]
pub struct Script {
    pub text: String,
    pub values: Vec<(String, String)>,
}

/// How to reach PostgreSQL, and where to write files.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    pub programs: &'a Path,
    pub folder: &'a Path,
    pub url: &'a str,
    /// PostgreSQL's process.
    pub postgres: u32,
}

/// Runs it for so long. Any error of any client ends the run.
pub async fn round(place: Place<'_>, script: &Script, clients: usize, length: Duration) -> Result<Round, Failure> {
    let folder = place.folder.join("pgbench");
    // Files of the round before.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder)?;
    let (file, said) = (folder.join("script"), folder.join("said"));
    std::fs::write(&file, &script.text)?;
    let seconds = (BEFORE + length + AFTER).as_secs();
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get().min(clients));
    let mut command = Command::new(place.programs.join("pgbench"));
    command.args(["--no-vacuum", "--protocol=prepared", "--log"]).arg(format!("--time={seconds}"));
    command.arg(format!("--client={clients}")).arg(format!("--jobs={threads}"));
    command.arg(format!("--log-prefix={}", folder.join("log").display())).arg("--file").arg(&file);
    for (name, value) in &script.values {
        command.arg(format!("--define={name}={value}"));
    }
    command.arg(place.url).stdout(Stdio::null()).stderr(File::create(&said)?).kill_on_drop(true);

    let begin = Instant::now() + BEFORE;
    let mut child = command.spawn()?;
    sleep_until(begin).await;
    let (from, before) = (Clock::system().now().micros(), family_cpu_seconds(place.postgres)?);
    sleep_until(begin + length).await;
    let (to, after) = (Clock::system().now().micros(), family_cpu_seconds(place.postgres)?);
    let status = child.wait().await?;
    if !status.success() {
        return Err(format!("pgbench ended with {status}:\n{}", std::fs::read_to_string(said)?).into());
    }
    let (mut latencies, mut total, mut first) = (Vec::new(), 0, i64::MAX);
    for entry in std::fs::read_dir(&folder)? {
        let path = entry?.path();
        if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("log.")) {
            continue;
        }
        for line in std::fs::read_to_string(path)?.lines() {
            let (at, took) = read(line).ok_or_else(|| format!("a line of pgbench's log that is not known: {line}"))?;
            (total, first) = (total + 1, first.min(at));
            if at > from && at <= to {
                latencies.push(took);
            }
        }
    }
    if first > from {
        return Err(format!("pgbench took longer than {BEFORE:?} to begin").into());
    }
    if latencies.is_empty() {
        return Err("no transaction of pgbench in a whole round".into());
    }
    let units = f64::from(u32::try_from(latencies.len())?);
    let took = Duration::from_micros(u64::try_from(to - from)?);
    Ok(Round {
        throughput: units / took.as_secs_f64(),
        server_cpu: 0.0,
        postgres_cpu: (after - before) / units,
        latencies,
        total,
    })
}

/// When a transaction ended, in microseconds since 1970, and how many it took.
fn read(line: &str) -> Option<(i64, u32)> {
    let mut fields = line.split(' ').skip(2);
    let took = fields.next()?.parse().ok()?;
    let (seconds, micros) = (fields.nth(1)?.parse::<i64>().ok()?, fields.next()?.parse::<i64>().ok()?);
    Some((seconds * 1_000_000 + micros, took))
}
