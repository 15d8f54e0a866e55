//! What breaks around the service: clients, processes, connections, the database. Afterwards every acknowledged write
//! is there, nothing is half-written, and the service serves.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::missing_panics_doc, missing_docs)]

mod beside;
mod crash;
mod database;
mod feed;
mod greedy;
mod hang_up;
mod kill;
mod pooler;
#[path = "../support/process.rs"]
mod process;
mod secrecy;
mod slow;
mod stop;
#[path = "../api/support/mod.rs"]
mod support;
mod trees;
mod wire;
#[path = "../support/writers.rs"]
mod writers;
