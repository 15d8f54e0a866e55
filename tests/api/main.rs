//! The API, by resource, through the real router over TCP on a real Postgres.
//!
//! `tests/run` starts what is needed and names it in `MANDATE_TEST_DATABASE_URL`. Every test has a database of its
//! own, which stays for `tests/aftermath.rs` to audit.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, missing_docs)]

mod support;

mod life;
mod pool;
