//! The text of the hot statements, for a benchmark that runs them without everything around them. A text is no way in:
//! the pool stays private to the store.

use std::sync::LazyLock;

use uuid::Uuid;

use crate::domain::ids::{OrganizationId, TaskId};
use crate::domain::log_page::EventPage;

/// The statement that appends; its parameters are told where it is written.
pub fn append() -> &'static str {
    &super::statements::APPEND
}

/// The statement of a usage report.
pub fn report() -> &'static str {
    &super::statements::REPORT
}

/// The statement of any other change.
pub fn change() -> &'static str {
    &super::statements::CHANGE
}

/// The statement that takes the next number, in the transaction in which [`create`] follows: organization, agent.
pub fn next_number() -> &'static str {
    super::create::NEXT_NUMBER
}

/// The statement that creates a task.
pub fn create() -> &'static str {
    &super::statements::CREATE
}

/// The statement of a heartbeat: organization, task, session.
pub fn heartbeat() -> &'static str {
    &super::heartbeat::HEARTBEAT
}

/// The statement of a poll: after which seq, one more than the limit, organization, task.
pub fn poll() -> &'static str {
    static POLL: LazyLock<String> = LazyLock::new(|| {
        let (organization, task) = (OrganizationId(Uuid::nil()), TaskId(Uuid::nil()));
        let page = EventPage { after_seq: Some(0), ..EventPage::default() };
        super::events::read(organization, task, &page).sql().as_str().to_owned()
    });
    &POLL
}
