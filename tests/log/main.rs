//! The permanent log, over every combination of stream and log store.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

#[path = "../api/support/mod.rs"]
mod support;

mod archive;
mod combination;
mod contradictions;
mod duplicates;
mod operations;
mod proof;
mod races;
mod reading;
mod replay;
mod usage;
