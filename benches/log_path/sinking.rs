//! The sink: from a topic with rows into ClickHouse, beside the `clickhouse` crate that inserts the same rows from
//! memory, in batches of the same size, one after the other, into the same server.

use std::sync::Arc;

use clickhouse::Client;
use mandate::log::kafka::KafkaStream;
use mandate::log::sink::Sink;
use mandate::log::{Batch, EventRow, LogStore, Stream as _};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::figures::median;
use super::report::{Section, rate};
use super::rows::{Bare, rows};
use super::world::{Installation, Way, World};
use super::{Arguments, Failure};

/// Rows that are handed to the stream at once.
const PRELOADED_AT_ONCE: usize = 5_000;
const TABLE: &str = "agent_task_events";

pub async fn measure(world: &World, arguments: &Arguments) -> Result<Section, Failure> {
    eprintln!("sink: {} rows a round, {} rounds", arguments.rows, arguments.rounds);
    let installation = world.installation("sinking", Way::KafkaAndClickHouse, None).await?;
    let rows = rows(arguments.rows);
    preload(&installation, &rows).await?;
    let batch = installation.kafka()?.batch_rows;
    let bare: Vec<Bare> = rows.iter().map(Bare::from).collect();
    let (mut sink, mut insert, mut sizes) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..arguments.rounds {
        for of_the_sink in [round % 2 == 0, round % 2 == 1] {
            let database = format!("sinking_{round}_{of_the_sink}");
            let store = world.store(&database)?;
            store.migrate().await?;
            if of_the_sink {
                let (rate, size) = drain(&installation, &database, Arc::new(store), rows.len()).await?;
                sink.push(rate);
                sizes.push(size);
            } else {
                let begin = Instant::now();
                insert_all(world, &database, &bare, batch).await?;
                insert.push(rate(rows.len(), begin.elapsed()));
            }
            let count = world.in_clickhouse(&database, format!("SELECT uniqExact(task_id, seq) FROM {TABLE}")).await?;
            if count != rows.len().to_string() {
                return Err(format!("{database} has {count} of {} rows", rows.len()).into());
            }
            world.in_clickhouse("default", format!("DROP DATABASE {database} SYNC")).await?;
        }
    }
    let ratios: Vec<f64> = sink.iter().zip(&insert).map(|(sink, insert)| sink / insert).collect();
    let json = json!({
        "rows": rows.len(),
        "batch_rows": batch,
        "sink_per_second": sink,
        "sink_rows_per_batch": sizes,
        "insert_per_second": insert,
        "ratios": ratios,
    });
    let rounds = |rates: &[f64]| rates.iter().map(|rate| format!("{rate:.0}")).collect::<Vec<_>>().join(" ");
    let line = |name: &str, rates: &[f64], size: usize| {
        vec![name.to_owned(), format!("{:.0}", median(rates.to_vec())), size.to_string(), rounds(rates)]
    };
    let size = sizes.iter().sum::<usize>() / sizes.len().max(1);
    Ok(Section {
        name: "sink",
        title: format!(
            "Sink: {} rows from a topic into ClickHouse; {:.2} of a bare client's rate",
            rows.len(),
            median(ratios)
        ),
        head: vec!["", "rows/s", "rows/batch", "by round"],
        rows: vec![line("sink", &sink, size), line("bare inserts from memory", &insert, batch)],
        json,
    })
}

async fn preload(installation: &Installation, rows: &[EventRow]) -> Result<(), Failure> {
    let stream = KafkaStream::new(installation.kafka()?);
    stream.prepare().await?;
    for some in rows.chunks(PRELOADED_AT_ONCE) {
        let published = stream.publish(Batch { events: some.to_vec(), usage: Vec::new() }).await;
        if let Some(fault) = published.fault {
            return Err(fault.into());
        }
    }
    Ok(())
}

/// A new group reads the whole topic. Its first batch, for which the group forms, does not count.
async fn drain(
    installation: &Installation,
    group: &str,
    store: Arc<dyn LogStore>,
    rows: usize,
) -> Result<(f64, usize), Failure> {
    let mut options = installation.kafka()?;
    group.clone_into(&mut options.group);
    let (sink, stop) = (Sink::new(options, store), CancellationToken::new());
    let first = sink.step(&stop).await?.rows.len();
    let (begin, mut landed, mut steps) = (Instant::now(), first, 0);
    while landed < rows {
        landed += sink.step(&stop).await?.rows.len();
        steps += 1;
    }
    let took = begin.elapsed();
    sink.close().await;
    Ok((rate(landed - first, took), (landed - first) / steps.max(1)))
}

async fn insert_all(world: &World, database: &str, rows: &[Bare], batch: usize) -> Result<(), Failure> {
    // An insert is written before it is answered, as the sink needs it.
    let client = Client::default().with_setting("async_insert", "0");
    let url = world.clickhouse.url().replacen("default@", "", 1);
    let client = client.with_url(url).with_user("default").with_database(database);
    for some in rows.chunks(batch) {
        let mut insert = client.insert::<Bare>(TABLE).await?;
        for row in some {
            insert.write(row).await?;
        }
        insert.end().await?;
    }
    Ok(())
}
