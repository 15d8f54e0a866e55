//! The table, and the same as JSON.

use std::fmt;

use serde_json::{Value, json};

use super::load::{Operation, Round};

/// One operation at one number of clients, on both servers.
pub struct Row {
    pub operation: Operation,
    pub clients: usize,
    pub mandate: Figures,
    pub bare: Figures,
}

/// All rounds of one server in one row.
pub struct Figures {
    rounds: Vec<f64>,
    throughput: f64,
    server_cpu_micros: f64,
    postgres_cpu_micros: f64,
    p50_micros: u32,
    p99_micros: u32,
}

impl From<Vec<Round>> for Figures {
    fn from(rounds: Vec<Round>) -> Self {
        let all = |figure: fn(&Round) -> f64| rounds.iter().map(figure).collect::<Vec<_>>();
        let mut latencies: Vec<u32> = rounds.iter().flat_map(|round| &round.latencies).copied().collect();
        latencies.sort_unstable();
        let at = |percent: usize| latencies.get(latencies.len() * percent / 100).copied().unwrap_or_default();
        Self {
            throughput: median(all(|round| round.throughput)),
            server_cpu_micros: median(all(|round| round.server_cpu)) * 1e6,
            postgres_cpu_micros: median(all(|round| round.postgres_cpu)) * 1e6,
            rounds: all(|round| round.throughput),
            p50_micros: at(50),
            p99_micros: at(99),
        }
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

impl Figures {
    fn json(&self) -> Value {
        json!({
            "per_second": self.throughput,
            "per_second_by_round": self.rounds,
            "p50_micros": self.p50_micros,
            "p99_micros": self.p99_micros,
            "server_cpu_micros": self.server_cpu_micros,
            "postgres_cpu_micros": self.postgres_cpu_micros,
        })
    }
}

impl Row {
    /// The median over the pairs of rounds: two that follow each other met the same machine.
    fn ratio(&self) -> f64 {
        median(self.mandate.rounds.iter().zip(&self.bare.rounds).map(|(mandate, bare)| mandate / bare).collect())
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operation = match self.operation {
            Operation::Append => "append of 1 event",
            Operation::Heartbeat => "heartbeat",
        };
        let (mandate, bare) = (&self.mandate, &self.bare);
        let latency = |figures: &Figures| {
            format!("{:.2} / {:.2}", f64::from(figures.p50_micros) / 1e3, f64::from(figures.p99_micros) / 1e3)
        };
        let cpu = |figures: &Figures| format!("{:.0} + {:.0}", figures.server_cpu_micros, figures.postgres_cpu_micros);
        write!(
            f,
            "| {operation:<17} | {:>7} | {:>9.0} | {:>6.0} | {:>5.2} | {:>14} | {:>14} | {:>14} | {:>14} |",
            self.clients,
            mandate.throughput,
            bare.throughput,
            self.ratio(),
            latency(mandate),
            latency(bare),
            cpu(mandate),
            cpu(bare),
        )
    }
}

/// The rows under their heads.
pub fn table(rows: &[Row]) -> String {
    let mut lines = vec![
        "Rates are medians of the rounds, ratios medians of the pairs of rounds; latencies are p50 / p99 in ms; CPU is \
         that of the server + that of PostgreSQL, in µs per request."
            .to_owned(),
        String::new(),
        format!(
            "| {:<17} | {:>7} | {:>9} | {:>6} | {:>5} | {:>14} | {:>14} | {:>14} | {:>14} |",
            "", "clients", "Mandate/s", "bare/s", "ratio", "Mandate ms", "bare ms", "Mandate µs CPU", "bare µs CPU"
        ),
        format!("| --- |{}", " ---: |".repeat(8)),
    ];
    lines.extend(rows.iter().map(ToString::to_string));
    lines.join("\n")
}

/// Everything, for machines.
pub fn json(rows: &[Row], seconds: u64, postgres: u32) -> Value {
    let row = |row: &Row| {
        json!({
            "operation": row.operation,
            "clients": row.clients,
            "mandate": row.mandate.json(),
            "bare": row.bare.json(),
            "ratio": row.ratio(),
        })
    };
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    json!({
        "cores": cores,
        "postgres": postgres,
        "seconds_per_round": seconds,
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}
