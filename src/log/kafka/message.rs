//! Rows as messages: key, value and headers, by the Kafka binding of `CloudEvents` in binary mode.

use rdkafka::message::{Header, OwnedHeaders};
use uuid::Uuid;

use crate::domain::ids::TaskId;
use crate::log::{EventRow, UsageRow};

/// A row on its way.
#[derive(Debug)]
pub(in crate::log) struct Record {
    /// Rows of one task stay in one partition.
    pub key: String,
    pub value: Vec<u8>,
    pub headers: OwnedHeaders,
}

impl Record {
    pub(super) fn of_event(row: &EventRow) -> Result<Self, serde_json::Error> {
        let headers = Attributes {
            id: row.event_id.0,
            kind: &row.event_type,
            organization: row.organization_id.0,
            task: row.task_id,
            time: row.recorded_at.to_string(),
            trace: row.trace.as_deref(),
        };
        Ok(Self { key: row.task_id.to_string(), value: serde_json::to_vec(row)?, headers: headers.write() })
    }

    pub(super) fn of_usage(row: &UsageRow) -> Result<Self, serde_json::Error> {
        let headers = Attributes {
            id: row.report_id.0,
            kind: "usage",
            organization: row.organization_id.0,
            task: row.task_id,
            time: row.recorded_at.to_string(),
            trace: row.trace.as_deref(),
        };
        Ok(Self { key: row.task_id.to_string(), value: serde_json::to_vec(row)?, headers: headers.write() })
    }
}

struct Attributes<'a> {
    id: Uuid,
    kind: &'a str,
    organization: Uuid,
    task: TaskId,
    time: String,
    trace: Option<&'a str>,
}

impl Attributes<'_> {
    /// The same for every resend of a row.
    fn write(&self) -> OwnedHeaders {
        let traceparent = self.trace.map_or_else(|| derived_trace(self.id), str::to_owned);
        [
            ("ce_specversion", "1.0"),
            ("ce_id", &self.id.to_string()),
            ("ce_source", &format!("/organizations/{}", self.organization)),
            ("ce_type", &format!("mandate.{}", self.kind)),
            ("ce_time", &self.time),
            ("ce_subject", &self.task.to_string()),
            // The binding's name of the attribute datacontenttype.
            ("content-type", "application/json"),
            ("traceparent", &traceparent),
        ]
        .into_iter()
        .fold(OwnedHeaders::new_with_capacity(8), |headers, (key, value)| {
            headers.insert(Header { key, value: Some(value) })
        })
    }
}

/// A trace context for a row whose call had none: a function of its id, so that resends join one trace. Not sampled.
fn derived_trace(id: Uuid) -> String {
    let (high, low) = id.as_u64_pair();
    // Neither the trace's id nor the span's may be zero.
    let span = (high ^ low).max(1);
    let trace = id.as_u128().max(1);
    format!("00-{trace:032x}-{span:016x}-00")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derived_trace_is_valid_and_always_the_same() {
        let id = Uuid::from_u128(0x0192_0000_0000_7000_8000_0000_0000_00ff);
        assert_eq!(derived_trace(id), "00-019200000000700080000000000000ff-8192000000007 0ff-00".replace(' ', ""));
        assert_eq!(derived_trace(id), derived_trace(id));
        assert_eq!(derived_trace(Uuid::nil()), format!("00-{:032x}-{:016x}-00", 1, 1));
        let same_halves = Uuid::from_u64_pair(7, 7);
        assert!(derived_trace(same_halves).ends_with("-0000000000000001-00"));
    }
}
