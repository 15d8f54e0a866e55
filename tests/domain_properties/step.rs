//! Random steps in the life of a task, made into commands on the task as it is then.

use std::time::Duration;

use mandate::domain::aggregate::Aggregate;
use mandate::domain::command::{
    ClaimedOutcome, Command, Correction, HarnessEvent, NewReport, NewRequest, NewResolution, NewSession,
};
use mandate::domain::digest::Digest;
use mandate::domain::event::{ActorKind, EventType};
use mandate::domain::ids::{AccountId, EventId, ModelId, PersonId, ProjectId, ReportId, RequestId, SessionId};
use mandate::domain::money::{Prices, TokenCounts};
use mandate::domain::outcome::{Ending, Outcome};
use mandate::domain::payload::{JsonText, PhaseChanged, Project};
use mandate::domain::refusal::{Checked, Refusal};
use mandate::domain::request::{RequestKind, RequestStatus};
use mandate::domain::time::Timestamp;
use mandate::domain::usage::{LedgerRow, PricedModel};
use proptest::prelude::*;
use uuid::Uuid;

/// What a step does. Those that end a task are rarer, so that sequences live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    OpenSession,
    CloseSession,
    LoseSessions,
    Append,
    Report,
    Correct,
    OpenRequest,
    Withdraw,
    Resolve,
    Expire,
    Pause,
    Resume,
    Cancel,
    Reassign,
    Reply,
    Associate,
    Dissociate,
    SetOutcome,
    TimeOut,
    Stop,
    DeleteAgent,
    Archive,
}

/// A step: what, on which of the things that are there, with which words, and how much later.
#[derive(Debug, Clone)]
pub struct Step {
    pub kind: Kind,
    pub picks: (u8, u8),
    pub flags: (bool, bool, bool),
    pub amount: u32,
    /// Which checked part of the command is faulty.
    pub fault: Option<bool>,
    pub seconds: u32,
}

pub fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        10 => Just(Kind::OpenSession),
        6 => Just(Kind::CloseSession),
        2 => Just(Kind::LoseSessions),
        12 => Just(Kind::Append),
        8 => Just(Kind::Report),
        5 => Just(Kind::Correct),
        10 => Just(Kind::OpenRequest),
        3 => Just(Kind::Withdraw),
        8 => Just(Kind::Resolve),
        1 => Just(Kind::Expire),
        4 => Just(Kind::Pause),
        4 => Just(Kind::Resume),
        2 => Just(Kind::Cancel),
        3 => Just(Kind::Reassign),
        4 => Just(Kind::Reply),
        2 => Just(Kind::Associate),
        2 => Just(Kind::Dissociate),
        2 => Just(Kind::SetOutcome),
        1 => Just(Kind::TimeOut),
        1 => Just(Kind::Stop),
        1 => Just(Kind::DeleteAgent),
        1 => Just(Kind::Archive),
    ];
    let fault = prop_oneof![8 => Just(None), 1 => any::<bool>().prop_map(Some)];
    (kind, any::<(u8, u8)>(), any::<(bool, bool, bool)>(), 0_u32..2_000_000, fault, 0_u32..90)
        .prop_map(|(kind, picks, flags, amount, fault, seconds)| Step { kind, picks, flags, amount, fault, seconds })
}

/// Sequences of steps.
pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec(step(), 1..50)
}

/// An id that names nothing.
const NOWHERE: Uuid = Uuid::from_u128(7);

impl Step {
    fn checked<T>(&self, part: bool, value: T) -> Checked<T> {
        if self.fault == Some(part) { Err(Refusal::invalid("/x", "is faulty")) } else { Ok(value) }
    }

    /// One of `all`, or now and then what is not there.
    fn pick<T: Copy>(&self, all: &[T], nowhere: T) -> T {
        let index = usize::from(self.picks.0);
        if all.is_empty() || index % 11 == 10 { nowhere } else { all[index % all.len()] }
    }

    fn session(&self, task: &Aggregate) -> SessionId {
        let all: Vec<_> = task.sessions().iter().map(|session| session.id).collect();
        self.pick(&all, SessionId(NOWHERE))
    }

    /// The session that a harness's write names, if it names one.
    fn named(&self, task: &Aggregate) -> Checked<Option<SessionId>> {
        let named = self.flags.0.then(|| self.session(task));
        self.checked(false, named)
    }

    fn request(&self, task: &Aggregate) -> RequestId {
        let all: Vec<_> = task.requests().iter().map(|request| request.id).collect();
        self.pick(&all, RequestId(NOWHERE))
    }

    fn text(&self) -> Option<String> {
        self.flags.2.then(|| format!("words {}", self.picks.1))
    }

    /// The command on `task`; `ledger` holds its rows so far. `None` when the step is no command.
    pub fn command(&self, task: &Aggregate, ledger: &[LedgerRow], new_id: &mut dyn FnMut() -> Uuid) -> Option<Command> {
        let Step { picks, flags, .. } = self;
        Some(match self.kind {
            Kind::OpenSession => Command::OpenSession {
                session: self.checked(
                    true,
                    NewSession {
                        session_key: format!("key-{}", picks.1 % 9),
                        harness_instance: self.text(),
                        takeover: flags.0 && flags.1,
                    },
                ),
                max_concurrent_tasks: flags.1.then_some(3),
            },
            Kind::CloseSession => {
                Command::CloseSession { session: self.session(task), reason: self.checked(true, "done".to_owned()) }
            }
            Kind::LoseSessions => Command::LoseSessions {
                sessions: task
                    .sessions()
                    .iter()
                    .filter(|s| s.generation % 2 == u32::from(flags.0))
                    .map(|s| s.id)
                    .collect(),
                silent_since: Timestamp::EPOCH,
            },
            Kind::Append => {
                let events: Vec<_> = (0..=picks.1 % 4).map(|nth| self.event(nth, new_id)).collect();
                Command::Append {
                    session: self.named(task),
                    only_tool_calls: events.iter().all(|event| event.event_type == EventType::ToolCalled),
                    events: self.checked(true, events),
                }
            }
            Kind::Report => Command::Report { session: self.named(task), report: self.report(None, new_id) },
            Kind::Correct => {
                let all: Vec<_> = ledger.iter().map(|row| row.id).collect();
                let original = self.pick(&all, ReportId(NOWHERE));
                let of_chain = |row: &&LedgerRow| row.id == original || row.corrects == Some(original);
                let chain = ledger.iter().filter(of_chain).cloned().collect();
                let report = self.report(Some(Correction { original, chain }), new_id);
                Command::Report { session: self.named(task), report }
            }
            Kind::OpenRequest => Command::OpenRequest {
                session: self.named(task),
                supersedes: (picks.1 % 7 == 1).then(|| self.request(task)),
                request: self.checked(true, Box::new(self.ask())),
            },
            Kind::Withdraw => Command::Withdraw { request: self.request(task), session: self.named(task) },
            Kind::Resolve => self.resolve(task),
            Kind::Expire => Command::ExpireRequests {
                due: task
                    .requests()
                    .iter()
                    .filter(|r| r.expires_at.micros() % 2 == 0 || flags.0)
                    .map(|r| r.id)
                    .collect(),
            },
            Kind::Pause => Command::Pause { reason: self.checked(true, self.text()) },
            Kind::Resume => Command::Resume { reason: self.checked(true, self.text()) },
            Kind::Cancel => {
                Command::Cancel { reason: self.checked(true, self.text()), force: self.checked(false, flags.0) }
            }
            Kind::Reassign => {
                let owner = PersonId::parse(["ada", "oscar", "abe"][usize::from(picks.0 % 3)]).unwrap();
                Command::Reassign { owner: self.checked(true, owner) }
            }
            Kind::Reply => Command::Reply {
                event_id: EventId(new_id()),
                body: self.checked(true, "Go on.".to_owned()),
                hold: self.checked(false, flags.0),
            },
            Kind::Associate => {
                Command::AssociateProject { project: self.project(), slug: "app".to_owned(), found: self.associated() }
            }
            Kind::Dissociate => Command::DissociateProject { project: self.project(), found: self.associated() },
            Kind::SetOutcome => {
                let outcome = Outcome::ALL[usize::from(picks.0) % Outcome::ALL.len()];
                let reason = outcome.reasons().get(usize::from(picks.1) % outcome.reasons().len().max(1)).copied();
                let result = flags.1.then(|| JsonText::new(r#"{"summary":"ok","artifacts":[]}"#));
                let ending = Ending::new(outcome, reason).unwrap();
                let outcome = self.checked(true, ClaimedOutcome { ending, result });
                Command::SetOutcome { session: self.named(task), outcome }
            }
            Kind::TimeOut => Command::TimeOut,
            Kind::Stop => Command::Stop,
            Kind::DeleteAgent => Command::DeleteAgent,
            Kind::Archive => return None,
        })
    }

    fn project(&self) -> ProjectId {
        ProjectId(Uuid::from_u128(u128::from(self.picks.0 % 3)))
    }

    /// The row of the project, if the task has it already.
    fn associated(&self) -> Option<Project> {
        self.flags.0.then(|| Project {
            project_id: self.project(),
            project_slug: "app".to_owned(),
            added_by_kind: "human".to_owned(),
            added_by: "ada".to_owned(),
            added_at: Timestamp::EPOCH,
        })
    }

    fn event(&self, nth: u8, new_id: &mut dyn FnMut() -> Uuid) -> HarnessEvent {
        let types = [EventType::ToolCalled, EventType::Turn, EventType::PhaseChanged, EventType::TodosUpdated];
        let event_type = if self.flags.1 { types[0] } else { types[usize::from(nth ^ self.picks.0) % 4] };
        let phase = PhaseChanged { phase: format!("phase-{nth}"), furthest_milestone: self.text() };
        let (payload, phase) = match event_type {
            EventType::PhaseChanged => {
                let milestone =
                    phase.furthest_milestone.as_ref().map(|text| format!(r#","furthest_milestone":"{text}""#));
                (format!(r#"{{"phase":"{}"{}}}"#, phase.phase, milestone.unwrap_or_default()), Some(phase))
            }
            EventType::ToolCalled => (r#"{"tool":"sh","mutating":true,"n":1.50}"#.to_owned(), None),
            EventType::TodosUpdated => (r#"{"todos":[]}"#.to_owned(), None),
            _ => (r#"{"body":"I begin."}"#.to_owned(), None),
        };
        HarnessEvent {
            event_id: EventId(new_id()),
            event_type,
            schema_version: 1,
            actor_kind: if nth == 3 { ActorKind::Subagent } else { ActorKind::Agent },
            actor_id: self.text(),
            at: self.flags.2.then_some(Timestamp::EPOCH),
            payload,
            redacted: Vec::new(),
            phase,
            spilled: None,
        }
    }

    fn report(&self, corrects: Option<Correction>, new_id: &mut dyn FnMut() -> Uuid) -> Checked<Box<NewReport>> {
        let count = i64::from(self.amount);
        let counts = TokenCounts {
            tokens_in: if self.picks.1 % 16 == 7 { i64::MAX / 3 } else { count },
            tokens_out: count / 7,
            cache_read_tokens: if self.flags.1 { count } else { 0 },
            cache_write_tokens: 0,
        };
        let price = |text: &str| Some(text.parse().unwrap());
        let prices = Prices {
            input_cost_per_million: price("1.25"),
            output_cost_per_million: price("10"),
            // A count of a kind that has no price.
            cache_read_cost_per_million: if self.flags.2 { price("0.625") } else { None },
            cache_write_cost_per_million: None,
        };
        let model = (!self.picks.1.is_multiple_of(5)).then(|| PricedModel { id: ModelId(Uuid::from_u128(3)), prices });
        let report = NewReport {
            idempotency_key: new_id().to_string(),
            account_id: AccountId(Uuid::from_u128(4)),
            model_id: "sonnet".to_owned(),
            model,
            counts: (self.picks.1 % 6 != 1).then_some(counts),
            corrects,
        };
        self.checked(true, Box::new(report))
    }

    fn ask(&self) -> NewRequest {
        let kind = if self.flags.1 { RequestKind::Feedback } else { RequestKind::Approval };
        let digests = match kind {
            RequestKind::Feedback => Vec::new(),
            RequestKind::Approval => vec![Digest::of(&[self.picks.1]), Digest::of(b"both")],
        };
        NewRequest {
            kind,
            title: "Which?".to_owned(),
            why: self.text(),
            options: if self.flags.2 { vec!["yes".to_owned(), "no".to_owned()] } else { Vec::new() },
            artifacts: Vec::new(),
            artifact_digests: digests,
            expires_at: None,
            ttl: Duration::from_secs(60 + u64::from(self.seconds)),
            request_key: (!self.picks.1.is_multiple_of(3)).then(|| format!("ask-{}", self.picks.1 % 4)),
        }
    }

    fn resolve(&self, task: &Aggregate) -> Command {
        let request = self.request(task);
        let found = task.request(request);
        let fitting = match found.map(|request| request.kind) {
            Some(RequestKind::Feedback) | None => RequestStatus::Answered,
            Some(RequestKind::Approval) if self.flags.0 => RequestStatus::Approved,
            Some(RequestKind::Approval) => RequestStatus::Rejected,
        };
        let status = if self.picks.1.is_multiple_of(9) { RequestStatus::Approved } else { fitting };
        let choice = found.and_then(|request| request.options.first().cloned());
        let resolution = NewResolution {
            status,
            answer: self.text(),
            choice: if self.picks.1 % 8 == 2 { Some("maybe".to_owned()) } else { choice },
            constraints: self.flags.1.then(|| JsonText::new(r#"{"only":["a"]}"#)),
            artifact_digests: match self.picks.1 % 5 {
                0 => None,
                1 => Some(vec![Digest::of(b"other")]),
                _ => found.map(|request| request.artifact_digests.iter().rev().copied().collect()),
            },
        };
        let person = PersonId::parse(["ada", "abe"][usize::from(self.picks.1 % 2)]).unwrap();
        Command::Resolve { request, person, expected: None, resolution: self.checked(true, resolution) }
    }
}
