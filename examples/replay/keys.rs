//! Keys and ids that follow from the recording's content, so that a retry or a second run repeats and adds nothing.

use uuid::Uuid;

/// The name space of every id that a replay makes.
const REPLAY: Uuid = Uuid::from_u128(0x6f0c_9a1e_8d1b_4b0f_9a59_5f6b_1d0e_7c42);

/// The keys of one run of one recording by one agent.
#[derive(Debug, Clone, Copy)]
pub struct Keys(Uuid);

impl Keys {
    /// `run` tells runs of the same recording apart; each is a task of its own.
    pub fn of(sha256: &[u8; 32], agent: &str, run: &str) -> Self {
        let recording = Uuid::new_v5(&REPLAY, sha256);
        let agent = Uuid::new_v5(&recording, agent.as_bytes());
        Self(Uuid::new_v5(&agent, run.as_bytes()))
    }

    /// The key that creates the task.
    pub fn task(&self) -> String {
        format!("replay-{}", self.0)
    }

    /// The key of the task's n-th session of ours, from 1.
    pub fn session(&self, number: u32) -> String {
        if number == 1 { self.task() } else { format!("{}-{number}", self.task()) }
    }

    /// The key of the report of the n-th model call, from 0.
    pub fn usage(&self, call: u64) -> String {
        format!("{}-call-{call}", self.task())
    }

    /// The id of the event at `place` of the run.
    pub fn event(&self, place: &str) -> Uuid {
        Uuid::new_v5(&self.0, place.as_bytes())
    }
}
