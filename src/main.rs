//! The `mandate` program.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// Requests and rows are made of many small texts.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    mandate::cli::main()
}
