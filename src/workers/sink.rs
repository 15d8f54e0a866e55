//! Carries what comes by the stream into the log store.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::log::sink::Sink;
use crate::service::{Clock, LogCounters};

/// How long to wait before a consumer that failed is made anew.
const PAUSE: Duration = Duration::from_secs(1);

/// Steps until `stop`, then leaves the consumer group. Any number of processes may run one: the group shares the
/// partitions.
pub async fn run_sink(sink: Arc<Sink>, counters: LogCounters, clock: Clock, stop: CancellationToken) {
    while !stop.is_cancelled() {
        match sink.step(&stop).await {
            Ok(landed) => {
                counters.landed(landed.rows, clock.now());
                counters.refused.inc_by(landed.refused);
            }
            Err(fault) => {
                tracing::warn!(%fault, "the sink begins anew");
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = tokio::time::sleep(PAUSE) => {}
                }
            }
        }
    }
    sink.close().await;
}
