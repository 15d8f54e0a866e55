//! Questions to people.

use super::caller::Located;
use super::{Answered, Call, Done, Failed, Order, Service, ServiceError};
use crate::domain::command::{Command, NewRequest, NewResolution};
use crate::domain::ids::{RequestId, SessionId};
use crate::domain::refusal::{Checked, Refusal};
use crate::domain::request::Request;
use crate::domain::task::Task;
use crate::store::Want;

impl Service {
    /// Opens a request; the same key with the same digests answers the row as it is now.
    pub async fn open_request(
        &self,
        call: &Call,
        located: &Located,
        session: Checked<Option<SessionId>>,
        key: Option<String>,
        request: Checked<Box<NewRequest>>,
    ) -> Result<Answered<(Request, Task)>, ServiceError> {
        if let (Some(key), Ok(new)) = (&key, &request) {
            if let Some(repeat) = self.asked_before(call, located, key, new).await? {
                return Ok(repeat);
            }
        }
        let supersedes = request.as_ref().ok().and_then(|new| new.supersedes);
        let want = Want {
            session: session.clone().ok().flatten(),
            requests: supersedes.into_iter().collect(),
            ..Want::default()
        };
        let order = Order { want, ..Order::of(call, located.id) };
        let command = Command::OpenRequest { session, request: request.clone() };
        let change = match self.carry_out(order, &command).await {
            Ok(Done::Changed(change)) => change,
            Ok(Done::Unchanged(_)) => {
                return Err(ServiceError::Internal("a request that changed nothing".to_owned()));
            }
            Err(failed) => return Err(failed.into()),
        };
        let opened = change.next().requests().iter().rfind(|request| request.is_open());
        let opened = opened.ok_or_else(|| ServiceError::Internal("an opened request is missing".to_owned()))?;
        Ok(Answered::first((opened.clone(), change.next().task().clone())))
    }

    async fn asked_before(
        &self,
        call: &Call,
        located: &Located,
        key: &str,
        new: &NewRequest,
    ) -> Result<Option<Answered<(Request, Task)>>, ServiceError> {
        let organization = call.caller.organization;
        let found = self.store.asked_before(organization, located.id, key, &new.artifact_digests).await?;
        let Some((request, first)) = found else { return Ok(None) };
        let task = self.snapshot(located).await?.task().clone();
        Ok(Some(Answered::repeat((request, task), first, call.body_hash)))
    }

    /// The harness takes a request back.
    pub async fn withdraw(
        &self,
        call: &Call,
        located: &Located,
        request: RequestId,
        session: Checked<Option<SessionId>>,
    ) -> Result<Task, ServiceError> {
        let want = Want { session: session.clone().ok().flatten(), requests: vec![request], ..Want::default() };
        let order = Order { want, ..Order::of(call, located.id) };
        let done = self.carry_out(order, &Command::Withdraw { request, session }).await?;
        Ok(done.aggregate().task().clone())
    }

    /// Refuses a request that is not the task's.
    pub async fn require_request(&self, located: &Located, request: RequestId) -> Result<(), ServiceError> {
        let organization = located.task.organization;
        match self.store.request(organization, located.id, request).await? {
            Some(_) => Ok(()),
            None => Err(Refusal::RequestNotFound.into()),
        }
    }

    /// A person resolves a request; the same person's same resolution again is a repeat.
    pub async fn resolve(
        &self,
        call: &Call,
        located: &Located,
        request: RequestId,
        resolution: Checked<NewResolution>,
    ) -> Result<Answered<(Request, Task)>, ServiceError> {
        let person = call.caller.person()?.clone();
        let want = Want { requests: vec![request], ..Want::default() };
        let order = Order { want, ..Order::of(call, located.id) };
        let command = Command::Resolve { request, person, resolution };
        let done = match self.carry_out(order, &command).await {
            Ok(done) => done,
            Err(Failed::Error(error)) => return Err(error),
            Err(failed) => return Err(failed.into()),
        };
        let aggregate = done.aggregate();
        let resolved = aggregate.request(request).ok_or(Refusal::RequestNotFound)?;
        let value = (resolved.clone(), aggregate.task().clone());
        Ok(match done {
            Done::Changed(_) => Answered::first(value),
            Done::Unchanged(_) => Answered { value, replay: Some(super::Replay { body_matches: true }) },
        })
    }
}
