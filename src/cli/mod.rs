//! The command line.

mod serve;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    },
    /// Bring the database's schema up to date.
    Migrate {
        /// The settings file.
        #[arg(long)]
        config: Option<PathBuf>,
    },
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
        Command::Serve { config } => serve::serve(config.as_deref()),
        Command::Migrate { config } => serve::migrate(config.as_deref()),
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

/// A runtime for a command.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}

/// What a command says when it fails.
type Failure = Box<dyn std::error::Error>;
