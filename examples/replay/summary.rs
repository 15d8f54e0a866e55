//! How a replay went.

use std::fmt;

use serde_json::Value;

/// A task after its replay, and what is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The task's quotable name.
    pub task: String,
    /// Its title.
    pub title: String,
    /// Its status.
    pub status: String,
    /// How it ended.
    pub outcome: Option<String>,
    /// Why so.
    pub outcome_reason: Option<String>,
    /// The length of its log.
    pub events: u64,
    /// Tokens in and out.
    pub tokens: (i64, i64),
    /// The cost in US dollars, as the server wrote it.
    pub cost: String,
    /// Reports without counts.
    pub unmeasured: i64,
    /// Reports without prices.
    pub unpriced: i64,
    /// Events that the server had already: of an earlier run, or of a call whose answer was lost.
    pub duplicates: u64,
    /// Calls that were tried again.
    pub retries: u64,
    /// What is not as it should be; empty: closed as intended, with a whole log and all of the recording in it.
    pub faults: Vec<String>,
}

impl Summary {
    /// Reads what the task's row says.
    pub fn of(task: &Value) -> Self {
        let text = |name: &str| task[name].as_str().map(str::to_owned);
        let number = |name: &str| task[name].as_i64().unwrap_or_default();
        Self {
            task: text("short_id").unwrap_or_default(),
            title: text("title").unwrap_or_default(),
            status: text("status").unwrap_or_default(),
            outcome: text("outcome"),
            outcome_reason: text("outcome_reason"),
            events: u64::try_from(number("last_seq")).unwrap_or_default(),
            tokens: (number("tokens_in"), number("tokens_out")),
            cost: text("cost_total").unwrap_or_default(),
            unmeasured: number("unmeasured_reports"),
            unpriced: number("unpriced_reports"),
            duplicates: 0,
            retries: 0,
            faults: Vec::new(),
        }
    }

    /// Whether the task closed as intended.
    pub fn is_as_intended(&self) -> bool {
        self.faults.is_empty()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "task    {} ({})", self.task, self.title)?;
        writeln!(f, "events  {} ({} there already, {} calls tried again)", self.events, self.duplicates, self.retries)?;
        writeln!(f, "tokens  {} in, {} out", self.tokens.0, self.tokens.1)?;
        write!(f, "cost    {} USD", self.cost)?;
        for (count, what) in [(self.unmeasured, "unmeasured"), (self.unpriced, "unpriced")] {
            if count > 0 {
                write!(f, ", and {count} reports {what}")?;
            }
        }
        write!(f, "\nstatus  {}", self.status)?;
        if let Some(outcome) = &self.outcome {
            write!(f, ": {outcome}")?;
        }
        if let Some(reason) = &self.outcome_reason {
            write!(f, ", {reason}")?;
        }
        for fault in &self.faults {
            write!(f, "\nFAULT   {fault}")?;
        }
        Ok(())
    }
}
