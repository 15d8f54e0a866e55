//! A log that was exported, one entry a line, and the proof by reading that it is whole.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::digest::{Digest, chain};
use super::event::{Actor, ActorKind, Channel, Event};
use super::ids::{EventId, SessionId, TaskId};
use super::time::Timestamp;

/// An entry as readers are given it. The payload is kept as its very text: another JSON writer could order it anew.
#[derive(Debug, Clone, Deserialize)]
pub struct ExportedEvent {
    /// The task; only in an export, where nothing else names it.
    #[serde(default)]
    pub task_id: Option<TaskId>,
    event_id: EventId,
    seq: i64,
    #[serde(rename = "type")]
    event_type: String,
    schema_version: i32,
    actor_kind: ActorKind,
    actor_id: String,
    channel: Option<Channel>,
    session_id: Option<SessionId>,
    at: Timestamp,
    recorded_at: Timestamp,
    payload: Box<RawValue>,
    #[serde(default)]
    redacted: Vec<String>,
    digest: Digest,
}

impl From<ExportedEvent> for Event {
    fn from(entry: ExportedEvent) -> Self {
        Self {
            event_id: entry.event_id,
            seq: entry.seq,
            event_type: entry.event_type.into(),
            schema_version: entry.schema_version,
            actor: Actor { kind: entry.actor_kind, id: entry.actor_id, channel: entry.channel },
            session_id: entry.session_id,
            at: entry.at,
            recorded_at: entry.recorded_at,
            payload: entry.payload.get().to_owned(),
            redacted: entry.redacted,
            digest: entry.digest,
        }
    }
}

/// Why a copy of a log is not the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExportFault {
    /// A line is no entry.
    #[error("no log entry: {0}")]
    Format(String),
    /// No line names the task.
    #[error("the entry names no task_id, and none was given")]
    NoTask,
    /// An entry of another task.
    #[error("the entry is of task {0}")]
    OtherTask(TaskId),
    /// An entry is missing, or there twice.
    #[error("seq {found} stands where seq {expected} belongs")]
    Sequence {
        /// What should stand here.
        expected: i64,
        /// What does.
        found: i64,
    },
    /// An entry is not what was logged.
    #[error("seq {seq} was changed: its content has the digest {computed}, it carries {carried}")]
    Digest {
        /// The entry.
        seq: i64,
        /// What its content and all before it come to.
        computed: Digest,
        /// What it says.
        carried: Digest,
    },
}

/// The proof of one log under way.
#[derive(Debug, Clone)]
pub struct Proving {
    task: Option<TaskId>,
    seq: i64,
    head: Digest,
}

impl Proving {
    /// Begins at the first entry. `task` is needed where the entries do not name it.
    pub fn new(task: Option<TaskId>) -> Self {
        Self { task, seq: 0, head: Digest::ZERO }
    }

    /// Adds one line.
    pub fn line(&mut self, line: &str) -> Result<(), ExportFault> {
        self.entry(serde_json::from_str(line).map_err(|fault| ExportFault::Format(fault.to_string()))?)
    }

    /// Adds the next entry.
    pub fn entry(&mut self, entry: ExportedEvent) -> Result<(), ExportFault> {
        let task = self.task.or(entry.task_id).ok_or(ExportFault::NoTask)?;
        if let Some(other) = entry.task_id.filter(|id| *id != task) {
            return Err(ExportFault::OtherTask(other));
        }
        let event = Event::from(entry);
        if event.seq != self.seq + 1 {
            return Err(ExportFault::Sequence { expected: self.seq + 1, found: event.seq });
        }
        let computed = chain(self.head, task, &event);
        if computed != event.digest {
            return Err(ExportFault::Digest { seq: event.seq, computed, carried: event.digest });
        }
        (self.task, self.seq, self.head) = (Some(task), event.seq, computed);
        Ok(())
    }

    /// The task.
    pub fn task(&self) -> Option<TaskId> {
        self.task
    }

    /// How many entries were read.
    pub fn entries(&self) -> i64 {
        self.seq
    }

    /// The head of what was read: a log is whole when its task says the same.
    pub fn head(&self) -> Digest {
        self.head
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    fn entry(task: Option<TaskId>, seq: i64, digest: Digest) -> ExportedEvent {
        let entry = json!({"task_id": task, "seq": seq, "event_id": Uuid::from_u128(9), "type": "turn",
            "schema_version": 1, "actor_kind": "agent", "actor_id": "reviewer", "channel": "api", "session_id": null,
            "at": "2026-01-31T09:30:00.000001Z", "recorded_at": "2026-01-31T09:30:00.000002Z",
            "payload": {"body": "Hi."}, "redacted": [], "digest": digest});
        serde_json::from_str(&entry.to_string()).unwrap()
    }

    /// The same with the digest that belongs there.
    fn next(proving: &Proving, task: TaskId, seq: i64) -> ExportedEvent {
        let wrong = proving.clone().entry(entry(Some(task), seq, Digest::ZERO));
        let Err(ExportFault::Digest { computed, .. }) = wrong else { panic!("{wrong:?}") };
        entry(Some(task), seq, computed)
    }

    #[test]
    fn a_proof_goes_on_entry_by_entry_and_says_what_is_in_the_way() {
        let (task, other) = (TaskId(Uuid::from_u128(1)), TaskId(Uuid::from_u128(2)));
        let mut proving = Proving::new(None);
        assert_eq!((proving.task(), proving.entries(), proving.head()), (None, 0, Digest::ZERO));
        assert!(matches!(proving.entry(entry(None, 1, Digest::ZERO)), Err(ExportFault::NoTask)));
        for seq in 1..=3 {
            proving.entry(next(&proving, task, seq)).unwrap();
            assert_eq!((proving.task(), proving.entries()), (Some(task), seq));
        }
        let foreign = proving.entry(entry(Some(other), 4, Digest::ZERO));
        assert!(matches!(foreign, Err(ExportFault::OtherTask(found)) if found == other), "{foreign:?}");
        for found in [3, 5] {
            let gap = proving.entry(entry(Some(task), found, Digest::ZERO));
            assert!(matches!(gap, Err(ExportFault::Sequence { expected: 4, found: told }) if told == found), "{gap:?}");
        }
        // What was in the way is not in the proof.
        proving.entry(next(&proving, task, 4)).unwrap();
    }
}
