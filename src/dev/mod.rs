//! What `mandate dev` and the tests need beside the server itself.

pub mod postgres;
