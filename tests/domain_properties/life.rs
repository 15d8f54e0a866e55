//! A task with its log and its ledger, as random steps lead it.

use std::collections::BTreeMap;
use std::sync::Arc;

use mandate::domain::aggregate::Aggregate;
use mandate::domain::change::{Change, Context, Decision};
use mandate::domain::command::Command;
use mandate::domain::decide;
use mandate::domain::event::{Actor, ActorKind, Channel, Event};
use mandate::domain::ids::{AccountId, AgentId, OrganizationId, PersonId, ShortId, TaskId};
use mandate::domain::outcome::Ending;
use mandate::domain::payload::TaskCreated;
use mandate::domain::refusal::Refusal;
use mandate::domain::request::Request;
use mandate::domain::task::{Origin, Pinned, Task};
use mandate::domain::time::Timestamp;
use mandate::domain::usage::LedgerRow;
use uuid::Uuid;

use crate::step::Step;

pub const ORGANIZATION: OrganizationId = OrganizationId(Uuid::from_u128(1));
pub const TASK: TaskId = TaskId(Uuid::from_u128(2));

/// A task in the making.
pub struct Life {
    pub task: Aggregate,
    pub log: Vec<Event>,
    pub ledger: Vec<LedgerRow>,
    pub now: Timestamp,
    ids: u128,
}

/// What one step did.
pub struct Stepped {
    pub before: Aggregate,
    pub command: Command,
    pub decision: Result<Decision, Refusal>,
}

pub fn created(budget: Option<&str>) -> TaskCreated {
    TaskCreated {
        short_id: String::new(),
        agent_id: AgentId(Uuid::from_u128(5)),
        agent_slug: "reviewer".to_owned(),
        agent_version: 1,
        prompt_version: 1,
        service_account_id: AccountId(Uuid::from_u128(4)),
        project_id: None,
        project_slug: None,
        title: "A task".to_owned(),
        description: "Do it.".to_owned(),
        subject: None,
        labels: BTreeMap::new(),
        params: None,
        origin: Origin::Human { user: PersonId::parse("ada").unwrap() },
        created_by_account: None,
        idempotency_key: None,
        owner: PersonId::parse("ada").unwrap(),
        budget: budget.map(|text| text.parse().unwrap()),
        task_timeout_seconds: Some(1_200),
        max_depth: 5,
        max_children: 50,
        depth: 0,
    }
}

pub fn create(budget: Option<&str>, initial: Option<Ending>) -> Result<Box<Change>, Refusal> {
    let mut ids = 1_000;
    let mut new_id = || next(&mut ids);
    let mut context = context(Timestamp::from_micros(1_000_000).unwrap(), &mut new_id);
    let decision = decide::create(ORGANIZATION, TASK, ShortId(1), created(budget), initial, &mut context)?;
    let Decision::Change(change) = decision else { panic!("a creation that creates nothing") };
    Ok(change)
}

fn next(ids: &mut u128) -> Uuid {
    *ids += 1;
    Uuid::from_u128(*ids)
}

/// What `decide` decides for `actor` two seconds after 1970, with ids that no life has.
pub fn decided_by<T>(actor: Actor, decide: impl FnOnce(&mut Context<'_>) -> T) -> T {
    let mut ids = 50_000;
    let mut new_id = || next(&mut ids);
    let now = Timestamp::from_micros(2_000_000).unwrap();
    decide(&mut Context { actor, ..context(now, &mut new_id) })
}

fn context(now: Timestamp, new_id: &mut dyn FnMut() -> Uuid) -> Context<'_> {
    Context {
        actor: Actor { kind: ActorKind::Human, id: "ada".to_owned(), channel: Some(Channel::Api) },
        now,
        new_id,
        body_hash: [7; 32],
        redacted: Vec::new(),
    }
}

impl Life {
    pub fn begin(budget: Option<&str>) -> Self {
        let change = create(budget, None).unwrap();
        let now = Timestamp::from_micros(1_000_000).unwrap();
        let (task, log, _) = change.into_parts();
        Self { task, log, ledger: Vec::new(), now, ids: 10_000 }
    }

    /// Takes `step`; `None` when it was no command.
    pub fn take(&mut self, step: &Step) -> Option<Stepped> {
        self.now = self.now.plus(std::time::Duration::from_secs(u64::from(step.seconds)));
        let mut ids = self.ids;
        let command = step.command(&self.task, &self.ledger, &mut || next(&mut ids));
        self.ids = ids;
        let Some(command) = command else {
            self.archive();
            return None;
        };
        let before = self.task.clone();
        let decision = self.decide(&self.task, command.clone());
        if let Ok(Decision::Change(change)) = &decision {
            self.task = change.next().clone();
            self.log.extend(change.events().iter().cloned());
            self.ledger.extend(change.ledger().cloned());
            self.ids += 1_000;
        }
        Some(Stepped { before, command, decision })
    }

    /// Writes what `command` leads to, which must be something.
    pub fn write(&mut self, command: Command) -> Change {
        let decision = self.decide(&self.task, command);
        let Ok(Decision::Change(change)) = decision else { panic!("nothing was written: {decision:?}") };
        self.task = change.next().clone();
        self.ids += 1_000;
        *change
    }

    /// Decides on `task` with the same clock and ids as [`take`](Self::take) would.
    pub fn decide(&self, task: &Aggregate, command: Command) -> Result<Decision, Refusal> {
        let mut ids = self.ids;
        task.decide(command, &mut context(self.now, &mut || next(&mut ids)))
    }

    /// Seals the log of a closed task.
    fn archive(&mut self) {
        if self.task.task().facts().ending.is_some() {
            self.task = sealed(&self.task, self.now);
        }
    }

    /// The task, closed and with its log sealed.
    pub fn archived(task: &Aggregate) -> Aggregate {
        let now = Timestamp::from_micros(3_000_000).unwrap();
        let mut new_id = || Uuid::from_u128(90_000);
        let closed = task.decide(Command::Stop, &mut context(now, &mut new_id));
        let Ok(Decision::Change(change)) = closed else { panic!("not closed: {closed:?}") };
        sealed(change.next(), now)
    }

    pub fn is_archived(&self) -> bool {
        self.task.task().log_archived_at().is_some()
    }
}

fn sealed(task: &Aggregate, now: Timestamp) -> Aggregate {
    let (sessions, requests) = (task.sessions().to_vec(), task.requests().to_vec());
    let task = task.task();
    let sealed = Task::restore(Arc::new(copy(task.pinned())), task.facts().clone(), Some(now)).unwrap();
    Aggregate::new(sealed, sessions, requests)
}

/// The snapshot that the store reads for `command`: what is open, and what the command names.
pub fn snapshot(full: &Aggregate, command: &Command) -> Aggregate {
    let mut snapshot = full.clone();
    snapshot.trim();
    let by_id = |id| full.session(id).cloned();
    let (session, request) = match command {
        Command::OpenSession { session, .. } => {
            let key = session.as_ref().ok().map(|new| new.session_key.clone());
            (full.sessions().iter().find(|session| Some(&session.session_key) == key.as_ref()).cloned(), None)
        }
        Command::CloseSession { session, .. } => (by_id(*session), None),
        Command::Append { session, .. } | Command::Report { session, .. } | Command::SetOutcome { session, .. } => {
            (session.clone().ok().flatten().and_then(by_id), None)
        }
        Command::OpenRequest { session, supersedes, .. } => {
            let superseded = supersedes.and_then(|id| full.request(id).cloned());
            (session.clone().ok().flatten().and_then(by_id), superseded)
        }
        Command::Withdraw { session, request } => {
            (session.clone().ok().flatten().and_then(by_id), full.request(*request).cloned())
        }
        Command::Resolve { request, .. } => (None, full.request(*request).cloned()),
        Command::LoseSessions { .. }
        | Command::ExpireRequests { .. }
        | Command::Pause { .. }
        | Command::Resume { .. }
        | Command::Cancel { .. }
        | Command::Reassign { .. }
        | Command::Reply { .. }
        | Command::AssociateProject { .. }
        | Command::DissociateProject { .. }
        | Command::TimeOut
        | Command::Stop
        | Command::DeleteAgent => (None, None),
    };
    snapshot.complete(session, request);
    if let Command::OpenRequest { request: Ok(new), .. } = command {
        // The requests of its key, settled or not: a repeat is told from them.
        let of_key = |old: &&Request| new.request_key.is_some() && old.request_key == new.request_key;
        for old in full.requests().iter().filter(of_key) {
            snapshot.complete(None, Some(old.clone()));
        }
    }
    snapshot
}

pub fn copy(pinned: &Pinned) -> Pinned {
    Pinned {
        organization_id: pinned.organization_id,
        id: pinned.id,
        short_id: pinned.short_id,
        agent_id: pinned.agent_id,
        agent_slug: pinned.agent_slug.clone(),
        agent_version: pinned.agent_version,
        prompt_version: pinned.prompt_version,
        service_account_id: pinned.service_account_id,
        project_id: pinned.project_id,
        project_slug: pinned.project_slug.clone(),
        title: pinned.title.clone(),
        description: pinned.description.clone(),
        subject: pinned.subject.clone(),
        labels: pinned.labels.clone(),
        params: pinned.params.clone(),
        origin: pinned.origin.clone(),
        created_by_account: pinned.created_by_account,
        idempotency_key: pinned.idempotency_key.clone(),
        budget: pinned.budget,
        task_timeout_seconds: pinned.task_timeout_seconds,
        max_depth: pinned.max_depth,
        max_children: pinned.max_children,
        depth: pinned.depth,
        created_at: pinned.created_at,
    }
}
