//! The limits of what is kept. Lengths are in characters unless a name says bytes.

/// A payload's JSON text, in bytes: what is larger belongs into an artifact.
pub const PAYLOAD_BYTES_MAX: usize = 64 * 1024;
/// Events in one batch.
pub const BATCH_EVENTS_MAX: usize = 100;
/// Titles of tasks and requests.
pub const TITLE_MAX: usize = 500;
/// Descriptions, questions' reasons and answers.
pub const TEXT_MAX: usize = 20_000;
/// Reasons that people and harnesses give.
pub const REASON_MAX: usize = 1_000;
/// Idempotency keys, session keys and request keys.
pub const KEY_MAX: usize = 200;
/// Short names: harness instances, subjects, models, phases, tools.
pub const NAME_MAX: usize = 500;
/// Labels of a task.
pub const LABELS_MAX: usize = 64;
/// Labels that a list is filtered by: each is a join.
pub const LABEL_FILTERS_MAX: usize = 16;
/// The key of a label.
pub const LABEL_KEY_MAX: usize = 100;
/// The value of a label.
pub const LABEL_VALUE_MAX: usize = 500;
/// Options of a feedback request.
pub const OPTIONS_MAX: usize = 50;
/// Artifacts and digests of a request.
pub const ARTIFACTS_MAX: usize = 100;
/// How far ahead of the server's clock an event may lie, in seconds.
pub const CLOCK_AHEAD_SECONDS: u64 = 5 * 60;
