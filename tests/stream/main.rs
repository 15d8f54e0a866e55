//! The streams and the sink, over a real broker and a real log store.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../api/support/database.rs"]
#[allow(dead_code, reason = "shared with other test programs")]
mod database;

mod direct;
mod group;
mod publishing;
mod sinking;
mod store;
mod support;
