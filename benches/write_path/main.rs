//! What Mandate costs beside the same SQL statement behind a bare route, measured side by side in one run:
//! `cargo bench --bench write_path -- [--seconds N] [--rounds N] [--json FILE]`.

mod bare;
mod figures;
mod load;
mod report;
mod seed;
mod service;
mod world;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tokio::runtime::Builder;

use load::{Operation, Round};
use report::Row;
use world::World;

/// What goes wrong ends the run.
type Failure = Box<dyn Error + Send + Sync>;

/// How many clients call at once, each on a task of its own.
const CLIENTS: [usize; 3] = [1, 16, 64];

/// Measures appends and heartbeats, complete, beside the bare statement.
#[derive(Debug, Parser)]
struct Arguments {
    /// The length of one round, in seconds.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Rounds of each row, for each of the two servers.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Writes the figures to this file too.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Says that cargo benches and does not merely try all targets.
    #[arg(long, hide = true)]
    bench: bool,
    /// Serves the bare routes instead, as this file says: how the benchmark starts its own other server.
    #[arg(long, hide = true)]
    bare: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("write_path: {fault}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    if let Some(plan) = &arguments.bare {
        return Builder::new_multi_thread().enable_all().build()?.block_on(bare::serve(plan));
    }
    if !arguments.bench {
        println!("not measured: this is no `cargo bench`");
        return Ok(());
    }
    // One thread: what the clients cost is taken from the servers.
    Builder::new_current_thread().enable_all().build()?.block_on(measure(arguments))
}

async fn measure(arguments: &Arguments) -> Result<(), Failure> {
    let most = CLIENTS.into_iter().max().unwrap_or_default();
    let world = World::start(most).await?;
    let mut rows = Vec::new();
    for operation in [Operation::Append, Operation::Heartbeat] {
        for clients in CLIENTS {
            let row = rounds(&world, operation, clients, arguments).await?;
            eprintln!("{row}");
            rows.push(row);
        }
    }
    println!("{}", report::table(&rows));
    if let Some(file) = &arguments.json {
        std::fs::write(file, report::json(&rows, arguments.seconds, world.postgres_version()).to_string())?;
    }
    world.stop().await
}

/// Alternating rounds: whatever else the machine does meets both servers.
async fn rounds(world: &World, operation: Operation, clients: usize, arguments: &Arguments) -> Result<Row, Failure> {
    let length = Duration::from_secs(arguments.seconds);
    let (mut mandate, mut bare): (Vec<Round>, Vec<Round>) = (Vec::new(), Vec::new());
    for round in 0..arguments.rounds {
        let mut order = [(&world.mandate, &mut mandate), (&world.bare, &mut bare)];
        if round % 2 == 1 {
            order.reverse();
        }
        for (subject, rounds) in order {
            rounds.push(load::round(subject, world.postgres_pid(), operation, clients, length).await?);
        }
    }
    Ok(Row { operation, clients, mandate: mandate.into(), bare: bare.into() })
}
