//! What the rounds of one server come to.

use serde_json::{Value, json};

use super::load::Round;

/// All rounds of one server in one row.
pub struct Figures {
    rounds: Vec<f64>,
    pub throughput: f64,
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

/// The one in the middle.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

impl Figures {
    /// The median over the pairs of rounds: two that follow each other met the same machine.
    pub fn ratio_to(&self, other: &Self) -> f64 {
        median(self.rounds.iter().zip(&other.rounds).map(|(one, other)| one / other).collect())
    }

    /// p50 / p99, in milliseconds.
    pub fn latency(&self) -> String {
        format!("{:.2} / {:.2}", f64::from(self.p50_micros) / 1e3, f64::from(self.p99_micros) / 1e3)
    }

    /// Microseconds of CPU per request: the server's + PostgreSQL's.
    pub fn cpu(&self) -> String {
        format!("{:.0} + {:.0}", self.server_cpu_micros, self.postgres_cpu_micros)
    }

    /// Microseconds of PostgreSQL's CPU per request, where there is no server between.
    #[allow(dead_code, reason = "not every benchmark goes without one")]
    pub fn postgres_cpu(&self) -> String {
        format!("{:.0}", self.postgres_cpu_micros)
    }

    /// Everything, for machines.
    pub fn json(&self) -> Value {
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
