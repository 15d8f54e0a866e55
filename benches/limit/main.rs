//! What Mandate costs beside the physical limit, measured side by side in one run, and what becomes of it as it grows:
//! `cargo bench --bench limit -- [--quick] [--parts table,growth,connections,start] [--rows append-1,…]
//! [--clients 1,16,64] [--seconds N] [--rounds N] [--publish] [--json FILE]`.

mod asked;
mod bare;
mod binding;
mod calls;
mod connections;
#[path = "../shared/figures.rs"]
mod figures;
mod fill;
mod growth;
#[path = "../shared/load.rs"]
mod load;
mod operations;
mod pgbench;
#[path = "../shared/process.rs"]
mod process;
#[path = "../shared/report.rs"]
#[allow(dead_code, reason = "no rates are told with it")]
mod report;
mod sample;
mod scripts;
#[path = "../shared/seed.rs"]
mod seed;
#[path = "../../tests/support/servers.rs"]
#[allow(clippy::unwrap_used, reason = "what it starts is a condition of what is asked for")]
mod servers;
#[path = "../shared/service.rs"]
mod service;
mod sizes;
mod start;
mod table;
mod world;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use tokio::runtime::Builder;
use tokio::signal::ctrl_c;
use tokio::signal::unix::{SignalKind, signal};

use operations::Operation;
use report::Section;
use servers::KafkaServer;

/// What goes wrong ends the run.
type Failure = Box<dyn Error + Send + Sync>;

/// Where Kafka's jars are, when it is asked for.
const KAFKA: &str = "MANDATE_TEST_KAFKA_LIBS";

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Every operation beside the bare handler and pgbench.
    Table,
    /// The same tasks worked in small and in large tables.
    Growth,
    /// Memory of a process with many connections.
    Connections,
    /// How long a process takes to be ready.
    Start,
}

/// Measures what Mandate costs.
#[derive(Debug, Clone, Parser)]
struct Arguments {
    /// The length of one round, in seconds.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Rounds of each row, for each contender.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How many clients call at once, each about a task of its own.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64])]
    clients: Vec<usize>,
    /// The rows of the table; by default all.
    #[arg(long, value_enum, value_delimiter = ',')]
    rows: Vec<Operation>,
    /// What to measure; by default everything.
    #[arg(long, value_enum, value_delimiter = ',')]
    parts: Vec<Part>,
    /// Tasks of the largest database of the part `growth`; the middle one has a tenth.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(20_000..))]
    tasks: u32,
    /// Connections of the part of that name.
    #[arg(long, default_value_t = 10_000)]
    connections: usize,
    /// A small run, which shows that everything works and no figures.
    #[arg(long)]
    quick: bool,
    /// Publishes to a Kafka of the run's own, whose jars `MANDATE_TEST_KAFKA_LIBS` names. Without it nothing is
    /// published.
    #[arg(long)]
    publish: bool,
    /// Writes the figures to this file too.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Says that cargo benches and does not merely try all targets.
    #[arg(long, hide = true)]
    bench: bool,
    /// Serves the bare routes instead, as this file says: how the benchmark starts its own other server.
    #[arg(long, hide = true)]
    bare: Option<PathBuf>,
    #[arg(skip)]
    publisher: Publisher,
}

/// Whether Mandate publishes what it commits, and where to.
#[derive(Debug, Clone)]
struct Publisher {
    name: &'static str,
    roles: &'static str,
    settings: Vec<(String, String)>,
}

impl Default for Publisher {
    fn default() -> Self {
        Self { name: "none", roles: "api", settings: Vec::new() }
    }
}

impl Publisher {
    fn to(kafka: &KafkaServer) -> Self {
        let stream = ("MANDATE_LOG__STREAM_URL".to_owned(), format!("kafka://{}", kafka.address()));
        Self { name: "a Kafka on this machine", roles: "api,publisher", settings: vec![stream] }
    }
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("limit: {fault}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut arguments: Arguments) -> Result<(), Failure> {
    if let Some(plan) = &arguments.bare {
        return Builder::new_multi_thread().enable_all().build()?.block_on(bare::serve(plan));
    }
    if !arguments.bench {
        println!("not measured: this is no `cargo bench`");
        return Ok(());
    }
    if arguments.quick {
        arguments = Arguments { seconds: 1, rounds: 1, ..arguments };
    }
    if arguments.rows.is_empty() {
        arguments.rows = Operation::value_variants().to_vec();
    }
    if arguments.publish && std::env::var_os(KAFKA).is_none() {
        return Err(format!("{KAFKA} does not say where Kafka's jars are; tests/run fetches them").into());
    }
    let kafka = arguments.publish.then(KafkaServer::start);
    arguments.publisher = kafka.as_ref().map(Publisher::to).unwrap_or_default();
    // One thread: what the clients cost is taken from the servers.
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut terminated = signal(SignalKind::terminate())?;
        tokio::select! {
            measured = measure(&arguments) => measured,
            // What is dropped removes its folder: some gigabytes, maybe.
            _ = ctrl_c() => Err("interrupted".into()),
            _ = terminated.recv() => Err("terminated".into()),
        }
    })
}

fn one((section, version): (Section, u32)) -> (Vec<Section>, u32) {
    (vec![section], version)
}

async fn measure(arguments: &Arguments) -> Result<(), Failure> {
    let (mut sections, mut version) = (Vec::new(), 0);
    for part in Part::value_variants() {
        if !arguments.parts.is_empty() && !arguments.parts.contains(part) {
            continue;
        }
        let (more, postgres) = match part {
            Part::Table => one(table::measure(arguments).await?),
            Part::Growth => growth::measure(arguments).await?,
            Part::Connections => one(connections::measure(arguments).await?),
            Part::Start => one(start::measure(arguments).await?),
        };
        version = postgres;
        for section in more {
            println!("{section}\n");
            sections.push(section);
        }
    }
    if let Some(file) = &arguments.json {
        std::fs::write(file, report::json(&sections, version).to_string())?;
    }
    Ok(())
}
