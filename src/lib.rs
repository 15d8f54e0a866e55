//! Mandate: the system of record and control point for the work of AI agents.
//!
//! The rooms and the way through them:
//! `domain ← store ← service ← { http, workers } ← app ← cli`, with the ports to the outside
//! (`auth`, `directory`, `log`) beside the service. `tests/architecture.rs` holds these arrows.

pub mod app;
pub mod artifacts;
pub mod auth;
pub mod cli;
pub mod config;
pub mod dev;
pub mod directory;
pub mod domain;
pub mod http;
pub mod log;
pub mod service;
pub mod shutdown;
pub mod store;
pub mod telemetry;
pub mod workers;
