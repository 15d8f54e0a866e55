//! Mandate: the system of record and control point for the work of AI agents.
//!
//! The rooms and the way through them:
//! `domain ← store ← service ← { http, workers } ← app ← cli`, with the ports to the outside
//! (`auth`, `directory`) beside the service. `tests/architecture.rs` holds these arrows.

pub mod config;
pub mod dev;
pub mod domain;
pub mod shutdown;
pub mod telemetry;
