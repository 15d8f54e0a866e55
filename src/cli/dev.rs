//! `mandate dev`.

use std::path::PathBuf;

use clap::Args;

use super::{Failure, run};
use crate::dev::{self, DevOptions};

/// What `mandate dev` takes.
#[derive(Debug, Args)]
pub(super) struct DevArguments {
    /// The port; by default 8080, or any free one when that is taken.
    #[arg(long)]
    port: Option<u16>,
    /// Where everything is kept.
    #[arg(long, default_value = "./.mandate")]
    data: PathBuf,
    /// Write shell variables to this file once it is ready.
    #[arg(long)]
    env_file: Option<PathBuf>,
    /// Play one whole task and print what happened.
    #[arg(long)]
    demo: bool,
    /// End after the demo, with status 0 only if all went as the contract says.
    #[arg(long, requires = "demo")]
    once: bool,
    /// Install PostgreSQL with the system's package manager when it is missing.
    #[arg(long)]
    install: bool,
    /// The folder of PostgreSQL's programs; by default the newest that is found.
    #[arg(long, value_name = "DIR")]
    postgres: Option<PathBuf>,
}

/// Runs everything on this machine.
pub(super) fn dev(arguments: DevArguments) -> Result<(), Failure> {
    let options = DevOptions {
        port: arguments.port,
        data: arguments.data,
        env_file: arguments.env_file,
        demo: arguments.demo,
        once: arguments.once,
        install: arguments.install,
        programs: arguments.postgres,
    };
    run(async { Ok(dev::run(options).await?) })
}
