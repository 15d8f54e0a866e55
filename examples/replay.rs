//! Replays a recorded run of an agent through a running Mandate, as a harness would.
//!
//! ```text
//! mandate dev --env-file mandate.env      # in another terminal
//! set -a; . ./mandate.env; set +a
//! cargo run --example replay -- FILE.traj
//! ```
//!
//! A second run of the same file continues where the first one ended and adds nothing twice. Status 0: the task closed
//! as intended, with the whole recording in its log; 1: it did not; 2: the command line or the file is at fault.

#[path = "replay/mod.rs"]
mod replay;
#[cfg(test)]
#[path = "replay/tests/mod.rs"]
mod tests;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use replay::keys::Keys;
use replay::plan::Plan;
use replay::recording::Recording;
use replay::{Fault, Options, player};

/// Plays a recorded run of an agent through Mandate, as a harness would.
#[derive(Parser)]
#[command(name = "replay")]
struct Arguments {
    /// A .traj file of SWE-agent.
    file: PathBuf,
    /// The server's base URL; default: `MANDATE_URL`.
    #[arg(long)]
    url: Option<String>,
    /// The organization's slug; default: `MANDATE_ORG`.
    #[arg(long)]
    org: Option<String>,
    /// The agent's slug; default: `MANDATE_AGENT`.
    #[arg(long)]
    agent: Option<String>,
    /// The model that usage is reported for; default: `MANDATE_MODEL`.
    #[arg(long)]
    model: Option<String>,
    /// The client id of the agent's account; default: `MANDATE_CLIENT_ID`.
    #[arg(long)]
    client_id: Option<String>,
    /// Its secret; default: `MANDATE_CLIENT_SECRET`.
    #[arg(long)]
    client_secret: Option<String>,
    /// The token of the person who creates the task; default: `MANDATE_TOKEN`.
    #[arg(long)]
    token: Option<String>,
    /// For how long a call is tried again while the server is away.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    patience: u64,
    /// How long to wait before each step, so that a person can look on and pause or cancel.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 0)]
    pace: u64,
    /// Tells runs of the same file apart: each name is a task of its own.
    #[arg(long, value_name = "NAME", default_value = "")]
    run: String,
}

/// The option, or the environment's variable of its name.
fn setting(given: Option<&String>, name: &str) -> Result<String, Fault> {
    let found = given.cloned().or_else(|| std::env::var(name).ok()).filter(|value| !value.trim().is_empty());
    found.ok_or_else(|| {
        let option = name.trim_start_matches("MANDATE_").to_lowercase().replace('_', "-");
        Fault::Options(format!("--{option} or {name} is required; `mandate dev --env-file FILE` writes all of them"))
    })
}

impl Arguments {
    fn options(&self) -> Result<Options, Fault> {
        Ok(Options {
            url: setting(self.url.as_ref(), "MANDATE_URL")?,
            org: setting(self.org.as_ref(), "MANDATE_ORG")?,
            agent: setting(self.agent.as_ref(), "MANDATE_AGENT")?,
            model: setting(self.model.as_ref(), "MANDATE_MODEL")?,
            client_id: setting(self.client_id.as_ref(), "MANDATE_CLIENT_ID")?,
            client_secret: setting(self.client_secret.as_ref(), "MANDATE_CLIENT_SECRET")?,
            token: setting(self.token.as_ref(), "MANDATE_TOKEN")?,
            patience: Duration::from_secs(self.patience),
            pace: Duration::from_millis(self.pace),
        })
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let recording = match Recording::read(&arguments.file) {
        Ok(recording) => recording,
        Err(fault) => {
            eprintln!("replay: {}: {fault}", arguments.file.display());
            return ExitCode::from(2);
        }
    };
    let played = match arguments.options() {
        Ok(options) => {
            let plan = Plan::of(&recording, Keys::of(&recording.sha256, &options.agent, &arguments.run));
            player::play(&options, &plan, &mut |line| eprintln!("replay: {line}")).await
        }
        Err(fault) => Err(fault),
    };
    match played {
        Ok(summary) => {
            println!("{summary}");
            if summary.is_as_intended() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(fault) => {
            eprintln!("replay: {fault}");
            ExitCode::from(if matches!(fault, Fault::Options(_)) { 2 } else { 1 })
        }
    }
}
