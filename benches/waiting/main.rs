//! How soon reads that wait have what was committed, and what they hold, over a PostgreSQL of the benchmark's own with
//! fsync on: `cargo bench --bench waiting -- [--quick] [--parts same,other,feed,crowd,memory] [--json FILE]`.
//!
//! A wake is measured with one clock, the machine's. It ends when the reader has the whole event. Its beginning, the
//! commit, is seen by nobody from outside, so there are two columns around it: *since recorded* counts from the event's
//! `recorded_at`, which is before the commit, so that the commit itself (fsync and all) is in it; *after answered*
//! counts from when the writer had its answer, which is behind the commit, and is negative where the reader knew first.
//! The truth lies between; what is promised must hold for the first.

mod client;
mod crowd;
#[path = "../shared/load.rs"]
#[allow(dead_code, reason = "only how answers are read is shared")]
mod load;
mod memory;
#[path = "../shared/process.rs"]
mod process;
#[path = "../shared/report.rs"]
#[allow(dead_code, reason = "no rates are told here")]
mod report;
#[path = "../shared/seed.rs"]
mod seed;
#[path = "../shared/service.rs"]
mod service;
mod waking;
mod world;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use tokio::runtime::Builder;

use world::World;

/// What goes wrong ends the run.
type Failure = Box<dyn Error + Send + Sync>;

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// One reader, in the process that commits.
    Same,
    /// Readers in another process than the one that commits.
    Other,
    /// The organization's feed, in the process that commits.
    Feed,
    /// One commit that wakes many readers of one task.
    Crowd,
    /// What a process holds while many reads wait.
    Memory,
}

/// Measures reads that wait.
#[derive(Debug, Clone, Parser)]
struct Arguments {
    /// Wakes of each row.
    #[arg(long, default_value_t = 500)]
    wakes: usize,
    /// Wakes of the reader that polls: each takes a second or so.
    #[arg(long, default_value_t = 60)]
    polls: usize,
    /// Readers that one commit wakes.
    #[arg(long, default_value_t = 1_000)]
    crowd: usize,
    /// Commits that wake them.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Reads that wait at once while memory is measured.
    #[arg(long, default_value_t = 5_000)]
    waiters: usize,
    /// On so many tasks.
    #[arg(long, default_value_t = 500)]
    tasks: usize,
    /// What to measure; by default everything.
    #[arg(long, value_enum, value_delimiter = ',')]
    parts: Vec<Part>,
    /// A small run, which shows that everything works and no figures.
    #[arg(long)]
    quick: bool,
    /// Writes the figures to this file too.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Says that cargo benches and does not merely try all targets.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("waiting: {fault}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut arguments: Arguments) -> Result<(), Failure> {
    if !arguments.bench {
        println!("not measured: this is no `cargo bench`");
        return Ok(());
    }
    if arguments.quick {
        arguments = Arguments { wakes: 40, polls: 3, crowd: 100, rounds: 2, waiters: 300, tasks: 30, ..arguments };
    }
    process::require_files(arguments.crowd.max(arguments.waiters))?;
    // One thread: what the clients cost is taken from the servers.
    Builder::new_current_thread().enable_all().build()?.block_on(measure(&arguments))
}

async fn measure(arguments: &Arguments) -> Result<(), Failure> {
    let world = World::start().await?;
    let mut sections = Vec::new();
    for part in Part::value_variants() {
        if !arguments.parts.is_empty() && !arguments.parts.contains(part) {
            continue;
        }
        let section = match part {
            Part::Same => waking::same(&world, arguments).await?,
            Part::Other => waking::other(&world, arguments).await?,
            Part::Feed => waking::feed(&world, arguments).await?,
            Part::Crowd => crowd::measure(&world, arguments).await?,
            Part::Memory => memory::measure(&world, arguments).await?,
        };
        println!("{section}\n");
        sections.push(section);
    }
    if let Some(file) = &arguments.json {
        std::fs::write(file, report::json(&sections, world.postgres_version()).to_string())?;
    }
    world.stop().await
}
