//! The command line.

mod admin;
mod dev;
mod log;
mod serve;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::Role;

/// The system of record and control point for the work of AI agents.
#[derive(Debug, Parser)]
#[command(name = "mandate", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the API and run the workers.
    Serve {
        /// The settings file; `MANDATE_<PART>__<SETTING>` variables overlay it.
        #[arg(long)]
        config: Option<PathBuf>,
        /// What this process does, separated by commas: api, publisher, sink, sweep, expiry. Overrules `workers.roles`.
        #[arg(long, value_delimiter = ',', value_parser = clap::builder::ValueParser::new(str::parse::<Role>))]
        roles: Option<Vec<Role>>,
    },
    /// Run everything on this machine, without a setting: a private PostgreSQL, the service, and a seed to try it with.
    Dev(dev::DevArguments),
    /// Set up what no route can.
    Admin {
        #[command(subcommand)]
        command: admin::AdminCommand,
    },
    /// The server's signing keys.
    Keys {
        #[command(subcommand)]
        command: admin::KeysCommand,
    },
    /// Bring the database's schema, the log store's and the stream's topics up to date.
    Migrate {
        /// The settings file.
        #[arg(long)]
        config: Option<PathBuf>,
    },
    /// Replay every log, compare it with the rows and add up the ledger; ends with status 1 when something is wrong.
    Audit {
        /// The settings file.
        #[arg(long)]
        config: Option<PathBuf>,
    },
    /// Compare what moved with the log store, send again what it lacks, archive what is due.
    Sweep(log::SweepArguments),
    /// Check an exported log without a server.
    Verify(log::VerifyArguments),
    /// Print the OpenAPI document.
    Openapi,
    /// Print the settings as a table.
    Settings,
    /// Ask a running server whether it is ready; ends with status 0 when it is.
    Healthcheck {
        /// What to ask.
        #[arg(long, default_value = "http://127.0.0.1:8080/readyz")]
        url: String,
    },
}

/// Runs the program; what goes wrong is told on the standard error.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.command {
        Command::Serve { config, roles } => serve::serve(config.as_deref(), roles),
        Command::Dev(arguments) => dev::dev(arguments),
        Command::Admin { command } => admin::admin(command),
        Command::Keys { command } => admin::keys(command),
        Command::Migrate { config } => serve::migrate(config.as_deref()),
        Command::Audit { config } => serve::audit(config.as_deref()),
        Command::Sweep(arguments) => log::sweep(&arguments),
        Command::Verify(arguments) => log::verify(&arguments),
        Command::Openapi => serve::openapi(),
        Command::Settings => {
            print!("{}", crate::config::Settings::reference());
            Ok(())
        }
        Command::Healthcheck { url } => serve::healthcheck(&url),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("mandate: {fault}");
            ExitCode::FAILURE
        }
    }
}

/// How long threads that wait for a driver may hold up the end of a command.
const LAST_WAIT: std::time::Duration = std::time::Duration::from_secs(1);

/// Runs a command. Its end does not wait for a broker that does not answer.
fn run(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(command);
    runtime.shutdown_timeout(LAST_WAIT);
    result
}

/// What a command says when it fails.
type Failure = Box<dyn std::error::Error>;
