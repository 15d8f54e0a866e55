//! What the HTTP layer counts, and the text in which everything is told.

use std::time::Duration;

use http::StatusCode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::service::Counters;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: String,
    route: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    method: String,
    route: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabels {
    code: String,
}

fn latency() -> Histogram {
    // From half a millisecond to eight seconds.
    Histogram::new(exponential_buckets(0.000_5, 2.0, 15))
}

/// The metrics of one app.
pub struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    seconds: Family<RouteLabels, Histogram, fn() -> Histogram>,
    refusals: Family<CodeLabels, Counter>,
    open_sessions: Gauge,
}

impl Metrics {
    /// Registers everything, with the service's own counters.
    pub fn new(counters: &Counters) -> Self {
        let mut registry = Registry::with_prefix("mandate");
        let requests = Family::<RequestLabels, Counter>::default();
        let seconds = Family::new_with_constructor(latency as fn() -> Histogram);
        let refusals = Family::<CodeLabels, Counter>::default();
        let open_sessions = Gauge::default();
        registry.register("http_requests", "Requests answered", requests.clone());
        registry.register("http_request_seconds", "Time to answer", seconds.clone());
        registry.register("refusals", "Refusals by code", refusals.clone());
        registry.register("open_sessions", "Sessions that are open", open_sessions.clone());
        registry.register("commits", "Changes committed", counters.commits.clone());
        registry.register("events", "Events committed", counters.events.clone());
        registry.register("conflicts", "Commits that came second", counters.conflicts.clone());
        Self { registry, requests, seconds, refusals, open_sessions }
    }

    /// Counts an answer.
    pub fn answered(&self, method: &str, route: &str, status: StatusCode, took: Duration) {
        let (method, route) = (method.to_owned(), route.to_owned());
        let labels = RouteLabels { method: method.clone(), route: route.clone() };
        self.seconds.get_or_create(&labels).observe(took.as_secs_f64());
        self.requests.get_or_create(&RequestLabels { method, route, status: status.as_u16() }).inc();
    }

    /// Counts a refusal.
    pub fn refused(&self, code: &str) {
        self.refusals.get_or_create(&CodeLabels { code: code.to_owned() }).inc();
    }

    /// The text; `open_sessions` is counted by the database when it can be asked.
    pub fn encode(&self, open_sessions: Option<i64>) -> String {
        if let Some(count) = open_sessions {
            self.open_sessions.set(count);
        }
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
