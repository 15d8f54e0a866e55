//! The permanent log, over every combination of stream and log store.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::missing_panics_doc, missing_docs)]

#[path = "../support/process.rs"]
mod process;
#[path = "../api/support/mod.rs"]
mod support;

mod archive;
mod away;
mod combination;
mod command_line;
mod contradictions;
mod costs;
mod duplicates;
mod ledgers;
mod operations;
mod proof;
mod races;
mod reading;
mod replay;
mod roles;
mod stale;
mod unreadable;
mod usage;
