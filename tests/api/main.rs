//! The API, by resource, through the real router over TCP on a real Postgres.
//!
//! `tests/run` starts what is needed and names it in `MANDATE_TEST_DATABASE_URL`. Every test has a database of its
//! own, which stays for `tests/aftermath.rs` to audit.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::missing_panics_doc, missing_docs)]

#[path = "../support/event_schemas.rs"]
mod schemas;
mod support;

mod appending;
mod artifact_access;
mod artifact_removal;
mod artifacts;
mod bucket;
mod conditional;
mod control;
mod corrections;
mod creation;
mod cursors;
mod delegation;
mod directory;
mod directory_accounts;
mod directory_agents;
mod directory_audit;
mod directory_models;
mod duplicates;
mod expiry;
mod feed;
mod feed_stream;
mod feed_writers;
mod forms;
mod grouping;
mod guards;
mod harness_client;
mod hostile;
mod idempotency;
mod life;
mod lists;
mod liveness;
mod log;
mod money;
mod nginx;
mod outcome;
mod payloads;
mod people;
mod pool;
mod projects;
mod ranking;
mod redaction;
mod relations;
mod replay;
mod reply;
mod requests;
mod resolutions;
mod roles;
mod sessions;
mod spill;
mod stream;
mod tenancy;
mod tokens;
mod trees;
mod triggers;
mod usage;
mod waiting;
