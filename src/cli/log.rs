//! `mandate sweep` and `mandate verify`.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use clap::Args;

use super::{Failure, run};
use crate::app::Mandate;
use crate::config::Settings;
use crate::domain::digest::Digest;
use crate::domain::export::Proving;
use crate::domain::ids::TaskId;
use crate::service::Clock;
use crate::telemetry;

/// What `mandate sweep` takes.
#[derive(Debug, Args)]
pub(super) struct SweepArguments {
    /// Run one round and print what it did. (Without it, run `mandate serve --roles sweep`.)
    #[arg(long, required = true)]
    once: bool,
    /// First put the logs back on the list that were left because the log store contradicts them.
    #[arg(long)]
    retry_mismatched: bool,
    /// The settings file.
    #[arg(long)]
    config: Option<PathBuf>,
}

/// Runs one round of the sweep.
pub(super) fn sweep(arguments: &SweepArguments) -> Result<(), Failure> {
    let settings = Settings::load(arguments.config.as_deref())?;
    settings.validate()?;
    telemetry::init(&settings.telemetry)?;
    run(async {
        let mandate = Mandate::build(settings, Clock::system()).await?;
        let sweep = mandate.sweep();
        if arguments.retry_mismatched {
            println!("{} logs are tried again", sweep.retry_left().await?);
        }
        let swept = sweep.round().await;
        let backlog = mandate.service().log_backlog().await;
        mandate.close().await;
        let swept = swept?;
        if swept.elsewhere {
            println!("another process sweeps");
            return Ok(());
        }
        println!(
            "{} tasks compared, {} whole in the log store; {} rows sent again, {} could not be; {} logs archived, {} \
             contradicted by the store; {} tasks failed",
            swept.compared,
            swept.whole,
            swept.republished,
            swept.unpublished,
            swept.archived,
            swept.mismatched,
            swept.failed
        );
        if swept.more {
            println!("more waits to be archived: run it again");
        }
        let (oldest, left) = backlog.map_err(|fault| format!("{fault:?}"))?;
        println!("the oldest unverified entry is {oldest} s old; {left} logs are left as contradicted");
        if swept.mismatched > 0 || left > 0 {
            return Err("the log store contradicts logs; they stay in postgres".into());
        }
        Ok(())
    })
}

/// What `mandate verify` takes.
#[derive(Debug, Args)]
pub(super) struct VerifyArguments {
    /// An exported log, one entry a line (`Accept: application/x-ndjson` on the events route); `-`: standard input.
    file: PathBuf,
    /// The head that the log must have, as `GET …/proof` or the task says it: `sha256:` and 64 digits.
    #[arg(long)]
    head: Option<String>,
    /// The task's id, where the entries do not name it.
    #[arg(long)]
    task: Option<TaskId>,
}

/// Checks an exported log without a server.
pub(super) fn verify(arguments: &VerifyArguments) -> Result<(), Failure> {
    let expected = match &arguments.head {
        Some(text) => Some(Digest::parse(text).ok_or("--head: must be sha256: and 64 lower-case hexadecimal digits")?),
        None => None,
    };
    let proved = read(&arguments.file, arguments.task)?;
    let (entries, head) = (proved.entries(), proved.head());
    if entries == 0 {
        return Err("the file holds no log entry".into());
    }
    if let Some(expected) = expected.filter(|expected| *expected != head) {
        return Err(format!("{entries} entries follow from one another, but end in {head}, not in {expected}").into());
    }
    match expected {
        Some(_) => println!("whole: {entries} entries, head {head}"),
        None => println!(
            "{entries} entries follow from one another, head {head}; compare it with the proof's, or the end may be missing"
        ),
    }
    Ok(())
}

fn read(file: &Path, task: Option<TaskId>) -> Result<Proving, Failure> {
    let name = file.display();
    let input: Box<dyn BufRead> = if file.as_os_str() == "-" {
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::new(File::open(file).map_err(|fault| format!("{name}: {fault}"))?))
    };
    let mut proving = Proving::new(task);
    for (line, number) in input.lines().zip(1_u64..) {
        let line = line.map_err(|fault| format!("{name}, line {number}: {fault}"))?;
        if line.trim().is_empty() {
            continue;
        }
        proving.line(&line).map_err(|fault| format!("{name}, line {number}: {fault}"))?;
    }
    Ok(proving)
}
