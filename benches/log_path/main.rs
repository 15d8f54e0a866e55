//! What the way to the permanent log does and costs, over real servers of the benchmark's own (PostgreSQL, Kafka,
//! ClickHouse): `cargo bench --bench log_path -- [--quick] [--parts acceptance,sink,sweep,publishing] [--json FILE]`.

mod acceptance;
#[path = "../shared/figures.rs"]
mod figures;
#[path = "../shared/load.rs"]
mod load;
mod observed;
mod outages;
#[path = "../shared/process.rs"]
#[allow(dead_code, reason = "here nobody asks for memory")]
mod process;
mod publishing;
#[path = "../shared/report.rs"]
mod report;
mod rows;
#[path = "../shared/seed.rs"]
mod seed;
#[path = "../../tests/support/servers.rs"]
#[allow(clippy::unwrap_used, reason = "what it starts is a condition of everything here")]
mod servers;
#[path = "../shared/service.rs"]
mod service;
mod sinking;
mod sweeping;
mod world;
mod writers;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use mimalloc::MiMalloc;
use tokio::runtime::Builder;

use report::Section;
use world::World;

/// As in the program itself.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// What goes wrong ends the run.
type Failure = Box<dyn Error + Send + Sync>;

/// Where the programs of the servers are.
const PROGRAMS: [&str; 3] =
    ["MANDATE_TEST_KAFKA_LIBS", "MANDATE_TEST_CLICKHOUSE_SERVER", "MANDATE_TEST_CLICKHOUSE_LIB"];

const HOW_TO_SET_THEM: &str = r#"They say where Kafka's jars, ClickHouse's library and the program that serves it are.
What fetches them, once, for tests/run sets them too; in the project's folder:

  bash -c 'root=$PWD; say() { echo "$*" >&2; }; die() { say "$*"; exit 1; }; have() { command -v "$1" >/dev/null; }
    . tests/services/services.sh; fetch_services; exec cargo bench --bench log_path'"#;

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// What publishing costs an append.
    Publishing,
    /// The sink beside a client that inserts the same rows from memory.
    Sink,
    /// Verifying and archiving, and rounds with nothing to do.
    Sweep,
    /// Everything at once, while servers restart, until every log is archived.
    Acceptance,
}

/// Measures the way from the commit to the permanent log.
#[derive(Debug, Clone, Parser)]
struct Arguments {
    /// Tasks of the acceptance run, and of a round of the sweep.
    #[arg(long, default_value_t = 500)]
    tasks: usize,
    /// Events that are written to each of them.
    #[arg(long, default_value_t = 100)]
    events: usize,
    /// Clients of the acceptance run.
    #[arg(long, default_value_t = 8)]
    clients: usize,
    /// Events a second that they write while servers restart.
    #[arg(long, default_value_t = 400)]
    rate: u32,
    /// Rows of a round of the sink.
    #[arg(long, default_value_t = 200_000)]
    rows: usize,
    /// The length of one round of appends, in seconds.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Alternating rounds of each part but the acceptance run.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
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
            eprintln!("log_path: {fault}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut arguments: Arguments) -> Result<(), Failure> {
    if !arguments.bench {
        println!("not measured: this is no `cargo bench`");
        return Ok(());
    }
    let missing: Vec<_> = PROGRAMS.into_iter().filter(|name| std::env::var_os(name).is_none()).collect();
    if !missing.is_empty() {
        return Err(format!("{} not set. {HOW_TO_SET_THEM}", missing.join(", ")).into());
    }
    if arguments.quick {
        let small = Arguments { tasks: 40, events: 25, rate: 40, rows: 20_000, seconds: 1, rounds: 1, ..arguments };
        arguments = small;
    }
    Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(measure(&arguments))
}

async fn measure(arguments: &Arguments) -> Result<(), Failure> {
    let mut world = World::start().await?;
    let mut sections: Vec<Section> = Vec::new();
    for part in Part::value_variants() {
        if !arguments.parts.is_empty() && !arguments.parts.contains(part) {
            continue;
        }
        let section = match part {
            Part::Publishing => publishing::measure(&world, arguments).await?,
            Part::Sink => sinking::measure(&world, arguments).await?,
            Part::Sweep => sweeping::measure(&world, arguments).await?,
            Part::Acceptance => acceptance::measure(&mut world, arguments).await?,
        };
        println!("{section}\n");
        sections.push(section);
    }
    if let Some(file) = &arguments.json {
        std::fs::write(file, report::json(&sections, world.postgres_version()).to_string())?;
    }
    world.stop().await
}
