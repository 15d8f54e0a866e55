//! Values and rules: no async, no SQL, no HTTP and no clock live here.

pub mod aggregate;
pub mod artifact;
pub mod change;
pub mod command;
pub mod decide;
pub mod digest;
pub mod event;
pub mod export;
pub mod feed;
pub mod harness_event;
pub mod ids;
pub mod json;
pub mod limits;
pub mod log_page;
pub mod money;
pub(crate) mod names;
pub mod outcome;
pub mod payload;
pub mod principal;
#[cfg(test)]
mod properties;
pub mod read;
pub mod redaction;
pub mod refusal;
pub mod relation;
pub mod request;
pub mod session;
pub mod status;
pub mod task;
pub mod time;
pub mod tree;
pub mod usage;
