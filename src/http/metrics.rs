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
    waiting: Gauge,
    queued: Gauge,
    oldest_unverified: Gauge,
    log_mismatch: Gauge,
}

/// What is asked of the database, or of the process, at the moment of a scrape; absent: it did not answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scraped {
    /// Sessions that are open.
    pub open_sessions: Option<i64>,
    /// Committed rows that wait to be handed over.
    pub queued: usize,
    /// Reads that wait or stream.
    pub waiting: usize,
    /// For how many seconds the oldest entry waits that is not known to be in the log store, and how many logs the store
    /// contradicts for good.
    pub backlog: Option<(i64, i64)>,
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
        let waiting = Gauge::default();
        registry.register("waiting_reads", "Reads that wait for events, or stream them", waiting.clone());
        let (queued, oldest_unverified, log_mismatch) = (Gauge::default(), Gauge::default(), Gauge::default());
        registry.register("log_queued_rows", "Committed rows that wait to be handed over", queued.clone());
        registry.register(
            "log_oldest_unverified_seconds",
            "Age of the oldest entry that is not known to be in the log store",
            oldest_unverified.clone(),
        );
        registry.register("log_mismatch", "Logs that the log store contradicts for good", log_mismatch.clone());
        let log = &counters.log;
        registry.register("log_published_rows", "Rows that the stream acknowledged", log.published.clone());
        registry.register(
            "log_unpublished_rows",
            "Rows not handed over; the sweep sends them",
            log.unpublished.clone(),
        );
        registry.register("log_refused_rows", "Rows that the log store refuses; set apart", log.refused.clone());
        registry.register("log_stored_rows", "Rows put into the log store", log.stored.clone());
        registry.register("log_lag_seconds", "From the commit to the log store", log.lag.clone());
        registry.register("log_republished_rows", "Missing rows that the sweep sent again", log.republished.clone());
        registry.register("log_archived_tasks", "Logs archived", log.archived.clone());
        registry.register("log_contradictions", "Verifications that failed", log.mismatched.clone());
        registry.register("sweep_rounds", "Rounds of the sweep that ended well", log.rounds.clone());
        registry.register("sweep_failed_rounds", "Rounds of the sweep that did not", log.failed_rounds.clone());
        registry.register("commits", "Changes committed", counters.commits.clone());
        registry.register("events", "Events committed", counters.events.clone());
        registry.register("conflicts", "Commits that came second", counters.conflicts.clone());
        Self { registry, requests, seconds, refusals, open_sessions, waiting, queued, oldest_unverified, log_mismatch }
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

    /// The text. A gauge whose source did not answer keeps its last value.
    pub fn encode(&self, scraped: Scraped) -> String {
        if let Some(count) = scraped.open_sessions {
            self.open_sessions.set(count);
        }
        if let Some((oldest, mismatches)) = scraped.backlog {
            self.oldest_unverified.set(oldest);
            self.log_mismatch.set(mismatches);
        }
        self.waiting.set(i64::try_from(scraped.waiting).unwrap_or(i64::MAX));
        self.queued.set(i64::try_from(scraped.queued).unwrap_or(i64::MAX));
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
