//! Status: a pure function of a task's facts.

use super::names::names;
use super::outcome::Outcome;

names! {
    /// What a task is doing.
    Status, StatusError: "status" {
        /// Waits for a harness.
        Queued = "queued",
        /// A session is open.
        Running = "running",
        /// A request to a person is open.
        Blocked = "blocked",
        /// A person paused it.
        Paused = "paused",
        /// Ended; final.
        Closed = "closed",
    }
}

names! {
    /// What people want of a task.
    Control, ControlError: "control" {
        /// Go on.
        Run = "run",
        /// Hold.
        Pause = "pause",
        /// End; cannot be taken back.
        Cancel = "cancel",
    }
}

names! {
    /// Why the status changed.
    StateReason, StateReasonError: "reason of a state change" {
        /// A session opened.
        SessionOpened = "session_opened",
        /// A session closed.
        SessionClosed = "session_closed",
        /// A request opened.
        RequestOpened = "request_opened",
        /// A request was settled.
        RequestResolved = "request_resolved",
        /// A person set the control.
        ControlChanged = "control_changed",
        /// The task closed.
        OutcomeSet = "outcome_set",
    }
}

/// The status that follows from the facts. The database holds the same function as a CHECK.
pub fn status(outcome: Option<Outcome>, control: Control, open_requests: u32, open_sessions: u32) -> Status {
    if outcome.is_some() {
        Status::Closed
    } else if control == Control::Pause {
        Status::Paused
    } else if open_requests > 0 {
        Status::Blocked
    } else if open_sessions > 0 {
        Status::Running
    } else {
        Status::Queued
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_the_first_that_the_facts_allow() {
        let done = Some(Outcome::DoneActed);
        for (outcome, control, requests, sessions, expected) in [
            (done, Control::Pause, 1, 1, Status::Closed),
            (None, Control::Pause, 1, 1, Status::Paused),
            (None, Control::Run, 1, 1, Status::Blocked),
            (None, Control::Cancel, 2, 0, Status::Blocked),
            (None, Control::Run, 0, 1, Status::Running),
            (None, Control::Cancel, 0, 2, Status::Running),
            (None, Control::Run, 0, 0, Status::Queued),
        ] {
            let facts = (outcome, control, requests, sessions);
            assert_eq!(status(outcome, control, requests, sessions), expected, "{facts:?}");
        }
    }
}
