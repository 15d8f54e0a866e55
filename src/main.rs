//! The `mandate` program.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// Requests and rows are made of many small texts, which the system's allocator handles at twice the cost.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    mandate::cli::main()
}
