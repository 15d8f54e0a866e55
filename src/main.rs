//! The `mandate` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    mandate::cli::main()
}
