//! Delegation: children, the tree that they make, and a cancel that goes down it.

use std::collections::BTreeSet;

use super::caller::Located;
use super::create::NewTaskBody;
use super::{ATTEMPTS_MAX, Answered, Call, Clock, Order, Service, ServiceError};
use crate::domain::command::Command;
use crate::domain::decide;
use crate::domain::ids::{SessionId, TaskId};
use crate::domain::payload::TaskCreated;
use crate::domain::refusal::{Checked, Refusal};
use crate::domain::task::{Origin, Task};
use crate::domain::tree::{Node, arrange};
use crate::store::{CommitError, Want};

/// How many tasks a cascading cancel takes between two looks.
const CASCADE_PAGE: i64 = 200;

/// A child as a route reads it.
#[derive(Debug, Clone)]
pub struct NewChildCall {
    /// The session of the parent that delegates.
    pub session: Checked<Option<SessionId>>,
    /// The agent's slug, when it could be read.
    pub agent_slug: Option<String>,
    /// The key.
    pub key: Checked<Option<String>>,
    /// Whether the body has the members that close a task from the start.
    pub names_initial: bool,
    /// The rest of the body.
    pub body: Checked<NewTaskBody>,
}

impl Service {
    /// Creates a child of the task, or answers the one that the key created before.
    pub async fn delegate(
        &self,
        call: &Call,
        located: &Located,
        new: NewChildCall,
    ) -> Result<Answered<Task>, ServiceError> {
        call.caller.harness_of(&located.task)?;
        if new.names_initial {
            return Err(Refusal::OriginForbidden.into());
        }
        // Whom the key belongs to is all that is looked at.
        let origin =
            Origin::Task { parent_task_id: located.id, parent_short_id: String::new(), agent_id: located.task.agent };
        let key = new.key.clone().ok().flatten();
        let session = new.session.clone().ok().flatten();
        if let Some(repeat) = self.delegated_before(call, located, &origin, key.as_deref(), session).await? {
            return Ok(repeat);
        }
        let refused = match self.delegate_anew(call, located, origin.clone(), new).await {
            Err(refused @ ServiceError::Refused(_)) => refused,
            Ok(repeat) if repeat.replay.is_some() => {
                self.lives(located, session).await?;
                return Ok(repeat);
            }
            other => return other,
        };
        // Another call with the key may have been first, and be what refuses this one.
        let repeat = self.delegated_before(call, located, &origin, key.as_deref(), session).await?;
        repeat.ok_or(refused)
    }

    /// The child that the key created before. A call that is answered by it is a sign of life of its session.
    async fn delegated_before(
        &self,
        call: &Call,
        located: &Located,
        origin: &Origin,
        key: Option<&str>,
        session: Option<SessionId>,
    ) -> Result<Option<Answered<Task>>, ServiceError> {
        let Some(key) = key else { return Ok(None) };
        let Some(first) = self.store.created_before(call.caller.organization, origin, key).await? else {
            return Ok(None);
        };
        self.lives(located, session).await?;
        Ok(Some(Answered::repeat(first.task, first.body_hash, call.body_hash)))
    }

    async fn delegate_anew(
        &self,
        call: &Call,
        located: &Located,
        origin: Origin,
        new: NewChildCall,
    ) -> Result<Answered<Task>, ServiceError> {
        let organization = call.caller.organization;
        let order = Order {
            want: Want { session: new.session.clone().ok().flatten(), ..Want::default() },
            ..Order::of(call, located.id)
        };
        let parent = self.load(&order).await?;
        decide::may_delegate(&parent, new.session.clone())?;
        let agent = match &new.agent_slug {
            Some(slug) => self.directory.agent(organization, slug.clone()).await?,
            None => None,
        };
        if agent.as_ref().is_some_and(|agent| !agent.enabled) {
            return Err(Refusal::AgentDisabled.into());
        }
        let body = new.body?;
        let agent = agent.ok_or_else(|| Refusal::invalid("/agent_slug", "names no agent of the organization"))?;
        let key = new.key?;
        let asked = body.budget.is_some();
        let project_slug = self.primary_project(organization, body.project_id).await?;
        let owner = parent.task().facts().owner.clone();
        let created = super::create::pinned(agent, body, project_slug, origin, owner, key)?;
        self.write_child(&order, call, new.session, created, asked).await
    }

    async fn write_child(
        &self,
        order: &Order<'_>,
        call: &Call,
        session: Checked<Option<SessionId>>,
        created: TaskCreated,
        asked: bool,
    ) -> Result<Answered<Task>, ServiceError> {
        let organization = order.organization;
        let task_id = TaskId(Clock::new_id());
        for _ in 0..ATTEMPTS_MAX {
            let held = self.hold(organization, &BTreeSet::from([order.task])).await;
            let parent = self.load(order).await?;
            let expected = (order.task, parent.task().facts().last_seq);
            let decide = |short_id| {
                self.with_context(order, |context| {
                    decide::delegate(&parent, session.clone(), task_id, short_id, created.clone(), asked, context)
                })
            };
            match self.store.create_child(organization, created.agent_id, expected, decide).await {
                Ok(Ok(delegation)) => {
                    drop(held);
                    self.committed(&delegation.child, None);
                    self.committed(&delegation.parent, None);
                    return Ok(Answered::first(delegation.child.next().task().clone()));
                }
                Ok(Err(refusal)) => return Err(refusal.into()),
                Err(CommitError::Conflict) => self.counters.conflict(),
                Err(CommitError::DuplicateKey) => return self.created_by_another(call, &created).await,
                Err(CommitError::AgentDeleted) => {
                    return Err(Refusal::invalid("/agent_slug", "names no agent of the organization").into());
                }
                Err(CommitError::Store(fault)) => return Err(fault.into()),
                Err(other) => return Err(ServiceError::Internal(other.to_string())),
            }
        }
        Err(ServiceError::Unavailable("the task changes too fast".to_owned()))
    }

    /// The task and every task below it, each before its children, with what it cost alone and with all below.
    pub async fn tree(&self, located: &Located) -> Result<Vec<Node>, ServiceError> {
        let tasks = self.store.tree(located.task.organization, located.id).await?;
        let arranged = arrange(located.id, tasks);
        arranged.ok_or_else(|| ServiceError::Internal(format!("the tree of task {} is torn", located.id)))
    }

    /// Cancels the open tasks below, nearest first, one transaction each and each by its own rules, until none is left.
    ///
    /// It looks again until it finds nothing to cancel: then everything below is cancelled or closed and has no new
    /// children, so none that was born meanwhile is missed.
    pub(super) async fn cancel_below(
        &self,
        call: &Call,
        located: &Located,
        command: &Command,
        forced: bool,
    ) -> Result<(), ServiceError> {
        // What waits for its harness is forced before the others, since a first cancel never is.
        let kinds: &[bool] = if forced { &[true, false] } else { &[false] };
        for cancelling in kinds {
            loop {
                let organization = call.caller.organization;
                let page = self.store.open_below(organization, located.id, Some(*cancelling), CASCADE_PAGE).await?;
                if page.is_empty() {
                    break;
                }
                for task in page {
                    self.cancel_one(call, task, command).await?;
                }
            }
        }
        Ok(())
    }

    async fn cancel_one(&self, call: &Call, task: TaskId, command: &Command) -> Result<(), ServiceError> {
        match self.carry_out(Order::of(call, task), command).await.map_err(ServiceError::from) {
            // It closed meanwhile.
            Ok(_) | Err(ServiceError::Refused(Refusal::TaskClosed(_) | Refusal::TaskArchived)) => Ok(()),
            Err(other) => Err(other),
        }
    }

    /// Whether a task below is open.
    pub(super) async fn has_open_below(&self, located: &Located) -> Result<bool, ServiceError> {
        Ok(!self.store.open_below(located.task.organization, located.id, None, 1).await?.is_empty())
    }
}
