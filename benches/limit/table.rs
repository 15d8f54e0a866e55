//! The table: every operation at every number of clients, by all three in turns.

use std::time::Duration;

use serde_json::{Value, json};

use super::figures::Figures;
use super::operations::{Contender, Operation};
use super::report::Section;
use super::world::World;
use super::{Arguments, Failure};

/// One operation at one number of clients.
struct Row {
    operation: Operation,
    clients: usize,
    mandate: Figures,
    bare: Figures,
    pgbench: Figures,
}

pub async fn measure(arguments: &Arguments) -> Result<(Section, u32), Failure> {
    let most = arguments.clients.iter().copied().max().unwrap_or_default();
    let mut world = World::start(most, arguments.publisher.roles, &arguments.publisher.settings).await?;
    let mut rows = Vec::new();
    for operation in &arguments.rows {
        for clients in &arguments.clients {
            let row = rounds(&mut world, *operation, *clients, arguments).await?;
            eprintln!("{}", row.cells().join(" | "));
            rows.push(row);
        }
    }
    let version = world.postgres_version();
    world.stop().await?;
    let section = Section {
        name: "table",
        title: format!(
            "Mandate beside a bare handler and pgbench\n\nMandate over HTTP, complete (publisher: {}); a bare handler \
             with the same statement; `pgbench -M prepared` with it. {} rounds of {} s each in turns: rates and CPU are \
             medians of the rounds, ratios medians of pairs of rounds, latencies p50 / p99, CPU per call that of the \
             server + that of PostgreSQL.",
            arguments.publisher.name, arguments.rounds, arguments.seconds
        ),
        head: vec![
            "",
            "clients",
            "Mandate/s",
            "bare/s",
            "pgbench/s",
            "of bare",
            "of pgbench",
            "Mandate ms",
            "bare ms",
            "pgbench ms",
            "Mandate µs",
            "bare µs",
            "pgbench µs",
        ],
        rows: rows.iter().map(Row::cells).collect(),
        json: rows.iter().map(Row::json).collect(),
    };
    Ok((section, version))
}

/// Rounds in turns, beginning with another one each time: whatever else the machine does meets all three.
async fn rounds(
    world: &mut World,
    operation: Operation,
    clients: usize,
    arguments: &Arguments,
) -> Result<Row, Failure> {
    world.tidy().await?;
    let length = Duration::from_secs(arguments.seconds);
    let (mut mandate, mut bare, mut pgbench) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..arguments.rounds {
        for turn in 0..Contender::ALL.len() {
            let contender = Contender::ALL[(number + turn) % Contender::ALL.len()];
            let round = world.round(contender, operation, clients, length).await?;
            match contender {
                Contender::Mandate => mandate.push(round),
                Contender::Bare => bare.push(round),
                Contender::Pgbench => pgbench.push(round),
            }
        }
    }
    Ok(Row { operation, clients, mandate: mandate.into(), bare: bare.into(), pgbench: pgbench.into() })
}

impl Row {
    fn cells(&self) -> Vec<String> {
        let Self { mandate, bare, pgbench, .. } = self;
        let rate = |figures: &Figures| format!("{:.0}", figures.throughput);
        let ratio = |other: &Figures| format!("{:.2}", mandate.ratio_to(other));
        vec![
            self.operation.title().to_owned(),
            self.clients.to_string(),
            rate(mandate),
            rate(bare),
            rate(pgbench),
            ratio(bare),
            ratio(pgbench),
            mandate.latency(),
            bare.latency(),
            pgbench.latency(),
            mandate.cpu(),
            bare.cpu(),
            pgbench.postgres_cpu(),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "operation": self.operation,
            "clients": self.clients,
            "mandate": self.mandate.json(),
            "bare": self.bare.json(),
            "pgbench": self.pgbench.json(),
            "ratio_to_bare": self.mandate.ratio_to(&self.bare),
            "ratio_to_pgbench": self.mandate.ratio_to(&self.pgbench),
        })
    }
}
