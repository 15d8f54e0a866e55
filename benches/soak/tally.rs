//! What was asked and how it was answered.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::report::Spread;

/// Counts of every kind of call.
#[derive(Default)]
pub struct Tally(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    calls: BTreeMap<&'static str, Calls>,
    repeats: BTreeMap<String, usize>,
}

#[derive(Default)]
struct Calls {
    statuses: BTreeMap<u16, usize>,
    /// How many microseconds each answer took; of calls that wait for something nothing is kept.
    took: Vec<i64>,
}

impl Tally {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn answered(&self, what: &'static str, status: u16, took: Duration, waited: bool) {
        let mut counts = self.counts();
        let calls = counts.calls.entry(what).or_default();
        *calls.statuses.entry(status).or_default() += 1;
        if !waited {
            calls.took.push(i64::try_from(took.as_micros()).unwrap_or(i64::MAX));
        }
    }

    /// A call was repeated, for this reason.
    pub fn repeated(&self, why: &str) {
        *self.counts().repeats.entry(why.to_owned()).or_default() += 1;
    }

    /// How many calls were answered.
    pub fn total(&self) -> usize {
        self.counts().calls.values().flat_map(|calls| calls.statuses.values()).sum()
    }

    /// Everything, for machines.
    pub fn json(&self) -> Value {
        let counts = self.counts();
        let calls: BTreeMap<_, _> = counts
            .calls
            .iter()
            .map(|(what, calls)| {
                let took = Spread::from(calls.took.clone()).json();
                (*what, json!({"statuses": calls.statuses, "took": took}))
            })
            .collect();
        json!({"calls": calls, "repeats": counts.repeats})
    }
}
