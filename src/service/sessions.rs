//! Sessions: opening, heartbeats, closing.

use super::caller::Located;
use super::{Answered, Call, Done, Order, Service, ServiceError};
use crate::domain::command::{Command, NewSession};
use crate::domain::ids::SessionId;
use crate::domain::refusal::{Checked, Refusal};
use crate::domain::session::Session;
use crate::domain::task::{Standing, Task};
use crate::store::Want;

impl Service {
    /// Opens a session; the key of an open one answers that.
    pub async fn open_session(
        &self,
        call: &Call,
        located: &Located,
        session: Checked<NewSession>,
    ) -> Result<Answered<(Session, Task)>, ServiceError> {
        let key = session.as_ref().ok().map(|session| session.session_key.clone());
        let agent = located.task.agent;
        // Not pinned: how many tasks the agent may work is a matter of now.
        let agent = self.directory.agent_by_id(call.caller.organization, agent).await?;
        let command = Command::OpenSession {
            session,
            max_concurrent_tasks: agent.and_then(|agent| agent.settings.max_concurrent_tasks),
        };
        let want = Want { session_key: key.clone(), ..Want::default() };
        let order = Order { want, ..Order::of(call, located.id) };
        let done = self.carry_out(order, &command).await?;
        let aggregate = done.aggregate();
        let opened = aggregate
            .sessions()
            .iter()
            .find(|session| Some(&session.session_key) == key.as_ref())
            .ok_or_else(|| ServiceError::Internal("an opened session is missing".to_owned()))?;
        let value = (opened.clone(), aggregate.task().clone());
        Ok(match done {
            Done::Changed(_) => Answered::first(value),
            Done::Unchanged(_) => {
                self.lives(located, Some(opened.id)).await?;
                let first = self.store.session_hash(call.caller.organization, located.id, opened.id).await?;
                Answered::repeat(value, first, call.body_hash)
            }
        })
    }

    /// Records a sign of life. Nothing reopens: a closed session or task refuses.
    pub async fn heartbeat(&self, located: &Located, session: SessionId) -> Result<Standing, ServiceError> {
        let organization = located.task.organization;
        if let Some(standing) = self.store.heartbeat(organization, located.id, session).await? {
            return Ok(standing);
        }
        let want = Want { session: Some(session), ..Want::default() };
        let aggregate = self.store.load(organization, located.id, &want).await?.ok_or(Refusal::TaskNotFound)?;
        Err(match aggregate.session(session) {
            None => Refusal::SessionNotFound.into(),
            Some(_) => match aggregate.heartbeat_refusal(session) {
                Some(refusal) => refusal.into(),
                None => ServiceError::Unavailable("the session moved while it was looked at".to_owned()),
            },
        })
    }

    /// A call that names a session and is answered without a change (it is a repeat) is a sign of life too. What is
    /// closed stays so.
    pub(super) async fn lives(&self, located: &Located, session: Option<SessionId>) -> Result<(), ServiceError> {
        if let Some(session) = session {
            self.store.heartbeat(located.task.organization, located.id, session).await?;
        }
        Ok(())
    }

    /// Refuses a session that is not the task's.
    pub async fn require_session(&self, located: &Located, session: SessionId) -> Result<(), ServiceError> {
        let organization = located.task.organization;
        match self.store.session(organization, located.id, session).await? {
            Some(_) => Ok(()),
            None => Err(Refusal::SessionNotFound.into()),
        }
    }

    /// Closes a session.
    pub async fn close_session(
        &self,
        call: &Call,
        located: &Located,
        session: SessionId,
        reason: Checked<String>,
    ) -> Result<Task, ServiceError> {
        let want = Want { session: Some(session), ..Want::default() };
        let order = Order { want, ..Order::of(call, located.id) };
        let done = self.carry_out(order, &Command::CloseSession { session, reason }).await?;
        Ok(done.aggregate().task().clone())
    }
}
