//! The `mandate` program.

fn main() {}
