//! What a page of a list costs at a thousand and at a million tasks: `cargo bench --bench finding -- [--calls N]
//! [--tasks N] [--json FILE]`.

#[path = "../../tests/support/generated_tasks.rs"]
#[allow(dead_code, reason = "a test uses the rest")]
mod generated_tasks;
#[path = "../shared/service.rs"]
#[allow(dead_code, reason = "here no process of Mandate is started")]
mod service;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use mandate::app::store_options;
use mandate::config::{SecretUrl, Settings};
use mandate::store::{Sort, Store, TaskFilter};
use serde_json::{Value, json};
use tokio::runtime::Builder;

use generated_tasks::{filters, generate, organization};

/// What goes wrong ends the run.
type Failure = Box<dyn Error + Send + Sync>;

/// So many tasks in the small table.
const FEW: u32 = 1_000;
/// Entries of a page.
const PAGE: u32 = 50;
/// Calls before those that count.
const WARM_UP: usize = 10;

/// Measures the lists of tasks in a small table and in a large one.
#[derive(Debug, Parser)]
struct Arguments {
    /// Calls of each list.
    #[arg(long, default_value_t = 200)]
    calls: usize,
    /// Tasks in the large table.
    #[arg(long, default_value_t = 1_000_000)]
    tasks: u32,
    /// Writes the figures to this file too.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Says that cargo benches and does not merely try all targets.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("finding: {fault}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    if !arguments.bench {
        println!("not measured: this is no `cargo bench`");
        return Ok(());
    }
    Builder::new_current_thread().enable_all().build()?.block_on(measure(arguments))
}

async fn measure(arguments: &Arguments) -> Result<(), Failure> {
    let folder = service::folder()?;
    let postgres = service::start_postgres(folder.path()).await?;
    let mut tables = Vec::new();
    for (name, tasks) in [("few", FEW), ("many", arguments.tasks)] {
        postgres.ensure_database(name).await?;
        let url = postgres.url(name);
        Store::migrate_url(&url).await?;
        generate(&url, tasks).await?;
        let mut settings = Settings::default();
        settings.database.url = SecretUrl::new(url);
        tables.push(Store::connect(&store_options(&settings))?);
    }
    let mut rows = Vec::new();
    println!("| list | p50 at {FEW} | p50 at {} | ratio | p99 at {} |", arguments.tasks, arguments.tasks);
    println!("| --- | --- | --- | --- | --- |");
    for (name, filter) in filters() {
        let mut sorts = vec![(name.clone(), Sort::Newest)];
        if filter == (TaskFilter { statuses: filter.statuses.clone(), ..TaskFilter::default() }) {
            sorts.push((format!("{name}, longest first"), Sort::StatusSince));
        }
        for (name, sort) in sorts {
            rows.push(compare(&tables, &name, &filter, sort, arguments.calls).await?);
        }
    }
    if let Some(file) = &arguments.json {
        std::fs::write(file, json!({"few": FEW, "many": arguments.tasks, "lists": rows}).to_string())?;
    }
    for store in tables {
        store.close().await;
    }
    Ok(postgres.stop().await?)
}

/// Calls take turns, so that whatever else the machine does meets both tables.
async fn compare(
    tables: &[Store],
    name: &str,
    filter: &TaskFilter,
    sort: Sort,
    calls: usize,
) -> Result<Value, Failure> {
    let mut micros = vec![Vec::with_capacity(calls); tables.len()];
    for call in 0..WARM_UP + calls {
        for (store, micros) in tables.iter().zip(&mut micros) {
            let begun = Instant::now();
            store.tasks(organization(), filter, sort, None, PAGE).await?;
            if call >= WARM_UP {
                micros.push(u32::try_from(begun.elapsed().as_micros())?);
            }
        }
    }
    for micros in &mut micros {
        micros.sort_unstable();
    }
    let at =
        |table: usize, percent: usize| micros[table].get(micros[table].len() * percent / 100).copied().unwrap_or(0);
    let (few, many, tail) = (at(0, 50), at(1, 50), at(1, 99));
    let ratio = f64::from(many) / f64::from(few.max(1));
    println!("| {name} | {few} µs | {many} µs | {ratio:.2} | {tail} µs |");
    Ok(json!({"list": name, "few_p50_micros": few, "many_p50_micros": many, "ratio": ratio, "many_p99_micros": tail}))
}
