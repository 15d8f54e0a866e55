//! Questions to people.

use super::caller::Located;
use super::{Answered, Call, Done, Failed, Order, Service, ServiceError};
use crate::domain::command::{Command, NewRequest, NewResolution};
use crate::domain::digest::Digest;
use crate::domain::ids::{RequestId, SessionId};
use crate::domain::refusal::{Checked, Refusal};
use crate::domain::request::{Request, RequestStatus};
use crate::domain::task::Task;
use crate::store::Want;

/// What makes a question the same as an earlier one.
#[derive(Debug, Clone)]
pub struct AskedKey {
    /// The harness's key for it.
    pub key: String,
    /// The digests that it binds to.
    pub digests: Vec<Digest>,
}

impl Service {
    /// Opens a request; the same key with the same digests answers the row as it is now, whatever the rest of the body.
    pub async fn open_request(
        &self,
        call: &Call,
        located: &Located,
        session: Checked<Option<SessionId>>,
        asked: Option<AskedKey>,
        supersedes: Option<RequestId>,
        request: Checked<Box<NewRequest>>,
    ) -> Result<Answered<(Request, Task)>, ServiceError> {
        let named = session.clone().ok().flatten();
        if let Some(repeat) = self.asked_before(call, located, asked.as_ref()).await? {
            self.lives(located, named).await?;
            return Ok(repeat);
        }
        let want = Want {
            session: named,
            requests: supersedes.into_iter().collect(),
            request_key: asked.as_ref().map(|asked| asked.key.clone()),
            ..Want::default()
        };
        let order = Order { want, ..Order::of(call, located.id) };
        let command = Command::OpenRequest { session, supersedes, request };
        let failed = match self.carry_out(order, &command).await {
            Ok(Done::Changed(change)) => {
                let opened = change.next().requests().iter().rfind(|request| request.is_open());
                let opened = opened.ok_or_else(|| ServiceError::Internal("an opened request is missing".to_owned()))?;
                return Ok(Answered::first((opened.clone(), change.next().task().clone())));
            }
            Ok(Done::Unchanged(_)) => Failed::DuplicateKey,
            Err(failed @ Failed::Error(ServiceError::Refused(_))) => failed,
            Err(failed) => return Err(failed.into()),
        };
        // Another call with the key was first; it is answered before any state.
        match self.asked_before(call, located, asked.as_ref()).await? {
            Some(repeat) => {
                self.lives(located, named).await?;
                Ok(repeat)
            }
            None => Err(failed.into()),
        }
    }

    async fn asked_before(
        &self,
        call: &Call,
        located: &Located,
        asked: Option<&AskedKey>,
    ) -> Result<Option<Answered<(Request, Task)>>, ServiceError> {
        let Some(AskedKey { key, digests }) = asked else { return Ok(None) };
        let organization = call.caller.organization;
        let found = self.store.asked_before(organization, located.id, key, digests).await?;
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
        let named = session.clone().ok().flatten();
        let want = Want { session: named, requests: vec![request], ..Want::default() };
        let order = Order { want, ..Order::of(call, located.id) };
        match self.carry_out(order, &Command::Withdraw { request, session }).await {
            Ok(done) => {
                if matches!(done, Done::Unchanged(_)) {
                    self.lives(located, named).await?;
                }
                Ok(done.aggregate().task().clone())
            }
            Err(failed) => Err(self.expired_first(located, request, failed).await?),
        }
    }

    /// Why a withdrawal or resolution failed. That the request has expired, by the database's clock, is its state: it
    /// ranks before whatever else is wrong with the call, also while no worker has written it yet.
    async fn expired_first(
        &self,
        located: &Located,
        id: RequestId,
        failed: Failed,
    ) -> Result<ServiceError, ServiceError> {
        let error = ServiceError::from(failed);
        if !matches!(error, ServiceError::Refused(_)) || matches!(error, ServiceError::Refused(Refusal::TaskArchived)) {
            return Ok(error);
        }
        let organization = located.task.organization;
        let request = self.store.request(organization, located.id, id).await?;
        let expired = request.filter(|request| request.status == RequestStatus::Expired);
        Ok(expired.map_or(error, |request| Refusal::RequestExpired(request.expires_at).into()))
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
        expected: Option<Vec<i64>>,
        resolution: Checked<NewResolution>,
    ) -> Result<Answered<(Request, Task)>, ServiceError> {
        let person = call.caller.person()?.clone();
        let want = Want { requests: vec![request], ..Want::default() };
        let order = Order { want, ..Order::of(call, located.id) };
        let command = Command::Resolve { request, person, expected, resolution };
        let done = match self.carry_out(order, &command).await {
            Ok(done) => done,
            Err(failed) => return Err(self.expired_first(located, request, failed).await?),
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
