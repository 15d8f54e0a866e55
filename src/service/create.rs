//! Creation.

use std::collections::BTreeMap;

use super::{Answered, Call, Clock, Principal, Service, ServiceError};
use crate::directory::Agent;
use crate::domain::change::{Change, Context, Decision};
use crate::domain::decide;
use crate::domain::ids::{AccountId, OrganizationId, PersonId, ProjectId, ShortId, TaskId};
use crate::domain::money::Money;
use crate::domain::outcome::Ending;
use crate::domain::payload::{JsonText, TaskCreated};
use crate::domain::principal::Permission;
use crate::domain::refusal::{Checked, Fault, Refusal};
use crate::domain::task::{Origin, Task};
use crate::store::CommitError;

/// The header that names a scheduled task as the origin.
pub const SCHEDULED_TASK: &str = "X-Mandate-Scheduled-Task";
/// The header that names a webhook as the origin.
pub const WEBHOOK: &str = "X-Mandate-Webhook";
/// The header that names a webhook's delivery.
pub const DELIVERY: &str = "X-Mandate-Delivery";
/// The header that names the owner of a trigger's task.
pub const ACCOUNTABLE: &str = "X-Mandate-Accountable";

/// What a trigger's headers claim.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OriginClaim {
    /// `X-Mandate-Scheduled-Task`.
    pub scheduled_task: Option<String>,
    /// `X-Mandate-Webhook`.
    pub webhook: Option<String>,
    /// `X-Mandate-Delivery`.
    pub delivery: Option<String>,
    /// `X-Mandate-Accountable`.
    pub accountable: Option<String>,
}

/// The body of a creation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTaskBody {
    /// The title.
    pub title: String,
    /// The description.
    pub description: String,
    /// The primary project.
    pub project_id: Option<ProjectId>,
    /// A budget below the agent's default.
    pub budget: Option<Money>,
    /// What the task is about.
    pub subject: Option<String>,
    /// Free labels.
    pub labels: BTreeMap<String, String>,
    /// Free parameters.
    pub params: Option<JsonText>,
}

/// A creation as a route reads it.
#[derive(Debug, Clone)]
pub struct NewTaskCall {
    /// The agent's slug, when it could be read.
    pub agent_slug: Option<String>,
    /// The key.
    pub key: Checked<Option<String>>,
    /// What a trigger's headers claim.
    pub origin: Checked<OriginClaim>,
    /// Closes the task from the start.
    pub initial: Checked<Option<Ending>>,
    /// Whether the body has the members that close it from the start.
    pub names_initial: bool,
    /// The rest of the body.
    pub body: Checked<NewTaskBody>,
}

struct Requester {
    origin: Checked<Origin>,
    owner: Checked<PersonId>,
    account: Option<AccountId>,
}

impl Service {
    /// Creates a task, or answers the one that the key created before.
    pub async fn create(&self, call: &Call, new: NewTaskCall) -> Result<Answered<Task>, ServiceError> {
        let requester = self.requester(call, &new).await?;
        let claim = new.key.clone().ok().flatten().zip(requester.origin.clone().ok());
        if let Some(repeat) = self.created_for(call, claim.as_ref()).await? {
            return Ok(repeat);
        }
        match self.create_anew(call, new, requester).await {
            // Another call with the key may have been first; it is answered before any state.
            Err(refused @ ServiceError::Refused(_)) => self.created_for(call, claim.as_ref()).await?.ok_or(refused),
            other => other,
        }
    }

    /// The task that a key created before for whoever asks.
    async fn created_for(
        &self,
        call: &Call,
        claim: Option<&(String, Origin)>,
    ) -> Result<Option<Answered<Task>>, ServiceError> {
        let Some((key, origin)) = claim else { return Ok(None) };
        let first = self.store.created_before(call.caller.organization, origin, key).await?;
        Ok(first.map(|first| Answered::repeat(first.task, first.body_hash, call.body_hash)))
    }

    async fn create_anew(
        &self,
        call: &Call,
        new: NewTaskCall,
        requester: Requester,
    ) -> Result<Answered<Task>, ServiceError> {
        let organization = call.caller.organization;
        let agent = match &new.agent_slug {
            Some(slug) => self.directory.agent(organization, slug.clone()).await?,
            None => None,
        };
        // A task that is closed from the start records that the agent did not run: a disabled one did not.
        let closed_from_start = matches!(new.initial, Ok(Some(_)));
        if agent.as_ref().is_some_and(|agent| !agent.enabled) && !closed_from_start {
            return Err(Refusal::AgentDisabled.into());
        }
        let body = new.body?;
        let agent = agent.ok_or_else(|| Refusal::invalid("/agent_slug", "names no agent of the organization"))?;
        let initial = new.initial?;
        let (key, origin, owner) = (new.key?, requester.origin?, requester.owner?);
        let project_slug = self.primary_project(organization, body.project_id).await?;
        let created = pinned(agent, body, project_slug, origin, owner, key)?;
        let created = TaskCreated { created_by_account: requester.account, ..created };
        self.write(call, created, initial).await
    }

    async fn write(
        &self,
        call: &Call,
        created: TaskCreated,
        initial: Option<Ending>,
    ) -> Result<Answered<Task>, ServiceError> {
        let organization = call.caller.organization;
        let task_id = TaskId(Clock::new_id());
        let decide = |short_id: ShortId| -> Result<Box<Change>, Refusal> {
            let mut new_id = Clock::new_id;
            let mut context = Context {
                actor: call.caller.actor(),
                now: self.clock.now(),
                new_id: &mut new_id,
                body_hash: call.body_hash,
                redacted: call.redacted.clone(),
            };
            match decide::create(organization, task_id, short_id, created.clone(), initial, &mut context)? {
                Decision::Change(change) => Ok(change),
                Decision::Unchanged => Err(Refusal::invalid("", "creates nothing")),
            }
        };
        match self.store.create(organization, created.agent_id, decide).await {
            Ok(Ok(change)) => {
                self.committed(&change, None);
                Ok(Answered::first(change.next().task().clone()))
            }
            Ok(Err(refusal)) => Err(refusal.into()),
            Err(CommitError::DuplicateKey) => self.created_by_another(call, &created).await,
            Err(CommitError::AgentDeleted) => {
                Err(Refusal::invalid("/agent_slug", "names no agent of the organization").into())
            }
            Err(CommitError::Store(fault)) => Err(fault.into()),
            Err(other) => Err(ServiceError::Unavailable(other.to_string())),
        }
    }

    /// The task that another call created with the same key at the same time.
    pub(super) async fn created_by_another(
        &self,
        call: &Call,
        created: &TaskCreated,
    ) -> Result<Answered<Task>, ServiceError> {
        let key = created.idempotency_key.as_deref().unwrap_or_default();
        let first = self.store.created_before(call.caller.organization, &created.origin, key).await?;
        let first = first.ok_or_else(|| ServiceError::Internal("a creation key without its task".into()))?;
        Ok(Answered::repeat(first.task, first.body_hash, call.body_hash))
    }

    /// The slug of the primary project that a creation names.
    pub(super) async fn primary_project(
        &self,
        organization: OrganizationId,
        project: Option<ProjectId>,
    ) -> Result<Option<String>, ServiceError> {
        let Some(project) = project else { return Ok(None) };
        let slug = self.directory.project(organization, project).await?;
        let slug = slug.ok_or_else(|| Refusal::invalid("/project_id", "names no project of the organization"))?;
        Ok(Some(slug))
    }

    /// Who asks, as the origin records it: a person is themselves; a trigger names what it speaks for.
    async fn requester(&self, call: &Call, new: &NewTaskCall) -> Result<Requester, ServiceError> {
        match &call.caller.principal {
            Principal::Person { id, .. } => {
                call.caller.require(Permission::Create)?;
                if new.names_initial {
                    return Err(Refusal::OriginForbidden.into());
                }
                Ok(Requester { origin: Ok(Origin::Human { user: id.clone() }), owner: Ok(id.clone()), account: None })
            }
            Principal::Agent { .. } => Err(Refusal::PermissionDenied(Permission::Create).into()),
            Principal::Trigger { account } => {
                let origin = new.origin.clone().and_then(|claim| trigger_origin(&claim));
                let named = match &new.origin {
                    Ok(claim) => claim.accountable.as_deref().map(PersonId::parse),
                    Err(_) => None,
                };
                let owner = match named {
                    Some(Ok(person)) => {
                        self.member(call, person, Fault::header(ACCOUNTABLE, "names no member")).await?
                    }
                    Some(Err(fault)) => Err(Refusal::invalid_header(ACCOUNTABLE, fault.to_string())),
                    None => Err(Refusal::invalid_header(ACCOUNTABLE, "is required: it names the owner")),
                };
                Ok(Requester { origin, owner, account: Some(*account) })
            }
        }
    }
}

fn trigger_origin(claim: &OriginClaim) -> Result<Origin, Refusal> {
    match (&claim.scheduled_task, &claim.webhook, &claim.delivery) {
        (Some(task), None, None) => Ok(Origin::Schedule { scheduled_task: task.clone() }),
        (None, Some(webhook), Some(delivery)) => {
            Ok(Origin::Webhook { webhook: webhook.clone(), delivery: delivery.clone() })
        }
        (None, Some(_), None) => Err(Refusal::invalid_header(DELIVERY, "is required beside the webhook")),
        (None, None, Some(_)) => Err(Refusal::invalid_header(WEBHOOK, "is required beside the delivery")),
        (None, None, None) => Err(Refusal::invalid_header(
            SCHEDULED_TASK,
            "a trigger names its origin: this header, or X-Mandate-Webhook with X-Mandate-Delivery",
        )),
        (Some(_), _, _) => Err(Refusal::invalid_header(SCHEDULED_TASK, "excludes X-Mandate-Webhook")),
    }
}

/// What a creation pins. Number and depth are set when it is decided.
pub(super) fn pinned(
    agent: Agent,
    body: NewTaskBody,
    project_slug: Option<String>,
    origin: Origin,
    owner: PersonId,
    key: Option<String>,
) -> Result<TaskCreated, Refusal> {
    Ok(TaskCreated {
        short_id: String::new(),
        budget: budget(body.budget, &agent)?,
        agent_id: agent.id,
        agent_slug: agent.slug,
        agent_version: agent.version,
        prompt_version: agent.prompt_version,
        service_account_id: agent.service_account_id,
        project_id: body.project_id,
        project_slug,
        title: body.title,
        description: body.description,
        subject: body.subject,
        labels: body.labels,
        params: body.params,
        origin,
        created_by_account: None,
        idempotency_key: key,
        owner,
        task_timeout_seconds: agent.settings.task_timeout_seconds,
        max_depth: agent.settings.max_depth,
        max_children: agent.settings.max_children,
        depth: 0,
    })
}

/// The default budget is the agent's; a caller may only lower it.
fn budget(asked: Option<Money>, agent: &Agent) -> Result<Option<Money>, Refusal> {
    match (asked, agent.settings.task_budget) {
        (Some(asked), Some(default)) if asked > default => Err(Refusal::BudgetAboveDefault(default.to_string())),
        (Some(asked), _) => Ok(Some(asked)),
        (None, default) => Ok(default),
    }
}
