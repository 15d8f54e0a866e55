//! The answers' shapes. Every field is there, null included; money is a decimal string; times have six digits; names
//! from closed sets are plain strings to readers, because the sets grow.

mod events;
mod feed;
mod operations;
mod relations;
mod requests;
mod sessions;
mod tasks;
mod tree;
mod usage;

pub use events::{AppendedView, EventView};
pub use feed::{FeedEntryView, FeedTaskView};
pub use operations::{AgentUsageView, OperationView, ProofView};
pub use relations::{AssociatedProjectView, RelationsView};
pub use requests::{InboxView, RequestAnswer, RequestView, ResolveAnswer};
pub use sessions::{SessionAnswer, SessionView};
pub use tasks::{TaskState, TaskView, WaitingView};
pub use tree::TreeNodeView;
pub use usage::{LedgerView, UsageAnswer};

use serde::Serialize;
use serde_json::value::RawValue;

/// JSON text as JSON. Stored text was validated when it came in.
pub(super) fn raw(text: &str) -> Option<Box<RawValue>> {
    RawValue::from_string(text.to_owned()).ok()
}

/// Serializes for a response; a value that cannot be is a fault of ours.
pub fn json_text<T: Serialize>(value: &T) -> Result<Vec<u8>, super::problem::Problem> {
    serde_json::to_vec(value).map_err(|fault| super::problem::Problem::internal(fault.to_string()))
}
