//! Plays the recording of an agent's run through Mandate, over HTTP alone, as a harness would.
//!
//! The way through: [`recording`] reads the file, [`plan`] says what a harness would have reported of it, [`player`]
//! reports that through [`client`]. A test that wants a whole real run includes this folder as a module:
//! `Recording::read(path)`, `Plan::of(&recording, &Keys::of(…))`, `player::play(&options, &plan, &mut |_| ())`.

pub mod client;
pub mod keys;
pub mod plan;
pub mod player;
pub mod recording;
pub mod summary;
pub mod text;

use std::time::Duration;

/// Where to play, as whom, and with how much patience.
#[derive(Clone)]
pub struct Options {
    /// The server's base URL.
    pub url: String,
    /// The organization's slug.
    pub org: String,
    /// The slug of the agent that works the task.
    pub agent: String,
    /// The model that usage reports name.
    pub model: String,
    /// The client id of the agent's account.
    pub client_id: String,
    /// Its secret.
    pub client_secret: String,
    /// The token of the person who creates the task.
    pub token: String,
    /// For how long one call is tried while the server is away.
    pub patience: Duration,
    /// How long to wait before each step.
    pub pace: Duration,
}

/// Why a recording could not be played to its end.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The options make no call possible.
    #[error("{0}")]
    Options(String),
    /// The server stayed away for longer than the patience.
    #[error("{call}: gave up after {seconds} s: {last}")]
    Patience {
        /// What was tried.
        call: String,
        /// For how long.
        seconds: u64,
        /// What happened last.
        last: String,
    },
    /// The server refused, and trying again would not help.
    #[error("{call}: {status} {code}: {detail}")]
    Refused {
        /// What was tried.
        call: String,
        /// The HTTP status.
        status: u16,
        /// The problem's code; empty when the answer was no problem document.
        code: String,
        /// The problem's detail.
        detail: String,
    },
    /// The server answered something that is not in the contract.
    #[error("{call}: the answer has no {what}")]
    Answer {
        /// What was called.
        call: String,
        /// What is missing.
        what: &'static str,
    },
}

impl Fault {
    /// The code of the refusal, if it is one.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { code, .. } => Some(code),
            Self::Options(_) | Self::Patience { .. } | Self::Answer { .. } => None,
        }
    }
}
