//! Setting apart what the log store refuses, so that the rest goes on.

use std::fmt;

use super::{Batch, LogStore, LogStoreError};

/// Rows that the store refuses, one batch of one row each, with its reason.
pub type Refused = Vec<(Batch, Reason)>;

/// Why something is no row, or is one that the store refuses. Whatever prints it prints what may be shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Reason {
    /// In full, for whoever may see the row itself: it may quote it.
    pub full: String,
    /// Without anything of the row, for the log.
    pub shown: String,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reason({:?})", self.shown)
    }
}

/// Appends `batch`. When the store refuses a row, halves the batch until each refused row is found; everything else is
/// kept. Answers the refused rows.
///
/// # Errors
/// When the store is away: some rows may be kept already, so the whole batch may be appended again.
pub async fn append_or_set_apart(store: &dyn LogStore, batch: Batch) -> Result<Refused, LogStoreError> {
    let mut refused = Vec::new();
    // A stack: halving 5,000 rows is 13 deep.
    let mut left = vec![batch];
    while let Some(mut batch) = left.pop() {
        if batch.is_empty() {
            continue;
        }
        match store.append(&batch).await {
            Ok(()) => {}
            Err(LogStoreError::Refused(reason)) if batch.len() == 1 => refused.push((batch, reason)),
            Err(LogStoreError::Refused(_)) => {
                let half = batch.halve();
                left.push(half);
                left.push(batch);
            }
            Err(fault) => return Err(fault),
        }
    }
    Ok(refused)
}

impl Batch {
    /// Takes the second half off; a batch that has both kinds of rows is parted by kind first.
    fn halve(&mut self) -> Self {
        if !self.events.is_empty() && !self.usage.is_empty() {
            return Self { events: Vec::new(), usage: std::mem::take(&mut self.usage) };
        }
        Self { events: self.events.split_off(self.events.len() / 2), usage: self.usage.split_off(self.usage.len() / 2) }
    }
}
