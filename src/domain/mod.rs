//! Values and rules: no async, no SQL, no HTTP and no clock live here.

pub mod event;
pub mod ids;
pub mod json;
pub mod money;
mod names;
pub mod principal;
pub mod redaction;
pub mod time;
