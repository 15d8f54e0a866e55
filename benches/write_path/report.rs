//! The table, and the same as JSON.

use std::fmt;

use serde_json::{Value, json};

use super::figures::Figures;
use super::load::Operation;

/// One operation at one number of clients, on both servers.
pub struct Row {
    pub operation: Operation,
    pub clients: usize,
    pub mandate: Figures,
    pub bare: Figures,
}

impl Row {
    /// The median over the pairs of rounds: two that follow each other met the same machine.
    fn ratio(&self) -> f64 {
        self.mandate.ratio_to(&self.bare)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operation = match self.operation {
            Operation::Append => "append of 1 event",
            Operation::Heartbeat => "heartbeat",
        };
        let (mandate, bare) = (&self.mandate, &self.bare);
        write!(
            f,
            "| {operation:<17} | {:>7} | {:>9.0} | {:>6.0} | {:>5.2} | {:>14} | {:>14} | {:>14} | {:>14} |",
            self.clients,
            mandate.throughput,
            bare.throughput,
            self.ratio(),
            mandate.latency(),
            bare.latency(),
            mandate.cpu(),
            bare.cpu(),
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
