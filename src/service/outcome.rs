//! Outcomes.

use super::caller::Located;
use super::{Call, Order, Service, ServiceError};
use crate::domain::command::{ClaimedOutcome, Command};
use crate::domain::ids::SessionId;
use crate::domain::refusal::Checked;
use crate::domain::task::Task;
use crate::store::Want;

impl Service {
    /// A harness ends the task; the recorded outcome again changes nothing.
    pub async fn set_outcome(
        &self,
        call: &Call,
        located: &Located,
        session: Checked<Option<SessionId>>,
        outcome: Checked<ClaimedOutcome>,
    ) -> Result<Task, ServiceError> {
        let want = Want { session: session.clone().ok().flatten(), ..Want::default() };
        let order = Order { want, ..Order::of(call, located.id) };
        let done = self.carry_out(order, &Command::SetOutcome { session, outcome }).await?;
        Ok(done.aggregate().task().clone())
    }
}
