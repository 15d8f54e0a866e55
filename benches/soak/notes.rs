//! What clients were told: the log must say the same.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use uuid::Uuid;

use super::Failure;

/// How many tasks count as recent.
const RECENT: usize = 40;

/// What was acknowledged about one task.
#[derive(Debug, Clone, Default)]
pub struct Noted {
    /// Its harness's events in the order in which they were sent; with their seq where the answer said it.
    pub events: Vec<(Uuid, Option<i64>)>,
    /// Usage reports, corrections among them.
    pub reports: usize,
    /// Requests that were opened.
    pub requests: HashSet<Uuid>,
    /// Requests that a person resolved, and how.
    pub resolutions: HashMap<Uuid, String>,
    /// What people said.
    pub replies: usize,
    /// Children.
    pub children: HashSet<Uuid>,
    /// The outcome that its harness set.
    pub outcome: Option<String>,
    /// Artifacts that its log refers to.
    pub artifacts: Vec<String>,
}

/// Everybody's notes.
#[derive(Default)]
pub struct Notes {
    tasks: Mutex<HashMap<String, Noted>>,
    recent: Mutex<Vec<String>>,
}

impl Notes {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Noted>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A task was created.
    pub fn created(&self, short_id: &str) -> Result<(), Failure> {
        if self.lock().insert(short_id.to_owned(), Noted::default()).is_some() {
            return Err(format!("two creations were answered with {short_id}").into());
        }
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() == RECENT {
            recent.remove(0);
        }
        recent.push(short_id.to_owned());
        Ok(())
    }

    /// Adds to what is known of a task.
    pub fn about(&self, short_id: &str, add: impl FnOnce(&mut Noted)) {
        if let Some(noted) = self.lock().get_mut(short_id) {
            add(noted);
        }
    }

    /// Tasks that were created lately.
    pub fn recent(&self) -> Vec<String> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Everything.
    pub fn all(&self) -> Vec<(String, Noted)> {
        let mut all: Vec<_> = self.lock().iter().map(|(name, noted)| (name.clone(), noted.clone())).collect();
        all.sort_by_key(|(name, _)| name.trim_start_matches("T-").parse::<u64>().unwrap_or_default());
        all
    }
}

/// The text at a pointer.
pub fn text<'a>(value: &'a Value, pointer: &str) -> Result<&'a str, Failure> {
    value.pointer(pointer).and_then(Value::as_str).ok_or_else(|| format!("an answer without {pointer}: {value}").into())
}

/// The id at a pointer.
pub fn id(value: &Value, pointer: &str) -> Result<Uuid, Failure> {
    Ok(text(value, pointer)?.parse()?)
}
