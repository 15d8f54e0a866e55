//! What time closes: expired requests, lost sessions, task timeouts. Each through the same commit as everything else,
//! so that several processes may do it side by side.

use super::{Done, Order, Service, ServiceError};
use crate::domain::command::Command;
use crate::domain::event::Actor;
use crate::domain::ids::{OrganizationId, TaskId};
use crate::store::{DueRequests, DueSessions, Want};

/// What one step closed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Closed {
    /// Tasks closed because a request expired.
    pub expired: u64,
    /// Tasks that lost a session.
    pub lost: u64,
    /// Tasks whose time limit passed.
    pub timed_out: u64,
    /// Tasks at which the step failed; they are due again at the next one.
    pub failed: u64,
}

impl Closed {
    /// Whether the step found anything to do.
    pub fn is_idle(&self) -> bool {
        *self == Self::default()
    }
}

impl Service {
    async fn by_time(
        &self,
        organization: OrganizationId,
        task: TaskId,
        want: Want,
        command: &Command,
    ) -> Result<bool, ServiceError> {
        let order = Order {
            organization,
            task,
            want,
            hot: false,
            account: None,
            actor: Actor::worker(),
            body_hash: [0; 32],
            redacted: &[],
        };
        let done = self.carry_out(order, command).await?;
        Ok(matches!(done, Done::Changed(_)))
    }

    /// One step: closes at most `batch` of each kind that is due now. Idempotent.
    pub async fn close_what_is_due(&self, batch: i64) -> Result<Closed, ServiceError> {
        let mut closed = Closed::default();
        for due in self.store.due_requests(batch).await? {
            let DueRequests { organization, task, requests } = due;
            let want = Want { requests: requests.clone(), ..Want::default() };
            let result = self.by_time(organization, task, want, &Command::ExpireRequests { due: requests }).await;
            count(result, task, &mut closed.expired, &mut closed.failed);
        }
        for due in self.store.due_sessions(batch).await? {
            let DueSessions { organization, task, sessions, silent_since } = due;
            let command = Command::LoseSessions { sessions, silent_since };
            let result = self.by_time(organization, task, Want::default(), &command).await;
            count(result, task, &mut closed.lost, &mut closed.failed);
        }
        for (organization, task) in self.store.due_tasks(self.clock.now(), batch).await? {
            let result = self.by_time(organization, task, Want::default(), &Command::TimeOut).await;
            count(result, task, &mut closed.timed_out, &mut closed.failed);
        }
        Ok(closed)
    }

    /// How many sessions are open, over all organizations.
    pub async fn open_sessions(&self) -> Result<i64, ServiceError> {
        Ok(self.store.open_sessions().await?)
    }
}

fn count(result: Result<bool, ServiceError>, task: TaskId, done: &mut u64, failed: &mut u64) {
    match result {
        Ok(changed) => *done += u64::from(changed),
        Err(error) => {
            tracing::warn!(%task, ?error, "what time closes could not be closed; it is due again");
            *failed += 1;
        }
    }
}
