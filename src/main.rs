//! The `mandate` program.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// Requests and rows are made of many small texts. Its feature `no_thp` keeps it from asking for huge pages: with ten
/// thousand connections they made a third of the process's memory, empty.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    mandate::cli::main()
}
