//! The text of the hot statements, for a benchmark that runs them without everything around them. A text is no way in:
//! the pool stays private to the store.

/// The statement that appends; its parameters are told where it is written.
pub fn append() -> &'static str {
    &super::statements::APPEND
}

/// The statement of a heartbeat: organization, task, session.
pub fn heartbeat() -> &'static str {
    &super::heartbeat::HEARTBEAT
}
