//! What breaks on the way to the permanent log: brokers and log stores that stop, hang or lose their data, processes
//! that are killed. Afterwards every acknowledged write is archived, once, and no log by half.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::missing_panics_doc, missing_docs)]

mod beside;
mod broker;
mod edges;
mod kill;
mod place;
#[path = "../support/process.rs"]
mod process;
mod proof;
mod queue;
mod refusal;
mod secrecy;
#[path = "../support/servers.rs"]
mod servers;
mod stop;
mod store;
mod stubborn;
#[path = "../api/support/mod.rs"]
mod support;
#[path = "../support/writers.rs"]
mod writers;
