//! A section for each part: a table for people, and the same for machines.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

/// What one part showed.
pub struct Section {
    pub name: &'static str,
    pub title: String,
    pub head: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
    pub json: Value,
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = || std::iter::once(self.head.iter().map(ToString::to_string).collect()).chain(self.rows.clone());
        let width = |column: usize| {
            lines().filter_map(|line: Vec<String>| line.get(column).map(|cell| cell.chars().count())).max()
        };
        let widths: Vec<usize> = (0..self.head.len()).map(|column| width(column).unwrap_or_default()).collect();
        writeln!(f, "## {}\n", self.title)?;
        for (number, line) in lines().enumerate() {
            for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
                if column == 0 {
                    write!(f, "| {cell:<width$} |")?;
                } else {
                    write!(f, " {cell:>width$} |")?;
                }
            }
            if number == 0 {
                write!(f, "\n| --- |{}", " ---: |".repeat(self.head.len() - 1))?;
            }
            if number < self.rows.len() {
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

/// Everything, for machines.
pub fn json(sections: &[Section], postgres: u32) -> Value {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let parts: serde_json::Map<String, Value> =
        sections.iter().map(|section| (section.name.to_owned(), section.json.clone())).collect();
    json!({"cores": cores, "postgres": postgres, "parts": parts})
}

/// A count as a number to calculate with.
#[allow(clippy::cast_precision_loss, reason = "no count here comes near 2^52")]
pub fn number(count: usize) -> f64 {
    count as f64
}

/// How many a second.
pub fn rate(count: usize, took: Duration) -> f64 {
    number(count) / took.as_secs_f64()
}

/// Exact order statistics of a number of durations, in microseconds.
#[derive(Debug, Clone)]
pub struct Spread {
    count: usize,
    p50: i64,
    p99: i64,
    max: i64,
}

impl From<Vec<i64>> for Spread {
    fn from(mut micros: Vec<i64>) -> Self {
        micros.sort_unstable();
        let at = |percent: usize| micros.get(micros.len() * percent / 100).copied().unwrap_or_default();
        Self { count: micros.len(), p50: at(50), p99: at(99), max: micros.last().copied().unwrap_or_default() }
    }
}

impl Spread {
    /// As cells: how many, then p50, p99 and maximum in milliseconds.
    pub fn cells(&self) -> [String; 4] {
        let millis = |micros: i64| format!("{}.{}", micros / 1_000, micros % 1_000 / 100);
        [self.count.to_string(), millis(self.p50), millis(self.p99), millis(self.max)]
    }

    /// p50, p99 and maximum, in milliseconds to the hundredth.
    #[allow(dead_code, reason = "not every benchmark is as fine")]
    pub fn fine_cells(&self) -> [String; 3] {
        #[allow(clippy::cast_precision_loss, reason = "no duration here comes near 2^52 microseconds")]
        [self.p50, self.p99, self.max].map(|micros| format!("{:.2}", micros as f64 / 1e3))
    }

    /// For machines.
    pub fn json(&self) -> Value {
        json!({"count": self.count, "p50_micros": self.p50, "p99_micros": self.p99, "max_micros": self.max})
    }
}
