//! Logs that the domain itself writes, with every type of event in them.

use std::collections::BTreeMap;
use std::time::Duration;

use mandate::domain::aggregate::Aggregate;
use mandate::domain::change::{Context, Decision};
use mandate::domain::command::{ClaimedOutcome, Command, Correction, NewReport, NewRequest, NewResolution, NewSession};
use mandate::domain::decide;
use mandate::domain::digest::Digest;
use mandate::domain::event::{Actor, ActorKind, Channel, EventType};
use mandate::domain::harness_event::{BatchLimits, read_batch};
use mandate::domain::ids::{
    AccountId, AgentId, EventId, ModelId, OperationId, OrganizationId, PersonId, ProjectId, ReportId, RequestId,
    SessionId, ShortId, TaskId,
};
use mandate::domain::json;
use mandate::domain::money::{Prices, TokenCounts};
use mandate::domain::outcome::{Ending, Outcome, OutcomeReason};
use mandate::domain::payload::{Child, Dependency, JsonText, Payload, Project, TaskCreated};
use mandate::domain::request::{Artifact, RequestKind, RequestStatus};
use mandate::domain::task::Origin;
use mandate::domain::time::Timestamp;
use mandate::domain::usage::{LedgerRow, PricedModel};
use serde_json::{Value, json};
use uuid::Uuid;

/// The clock of the sample.
pub fn now() -> Timestamp {
    Timestamp::parse("2026-01-31T09:30:00.000001Z").unwrap()
}

/// Type and payload of every event of the sample; every event type is among them.
pub fn payloads() -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for log in [whole_life(), cancelled(), expired(), over_budget(), closed_from_the_start(), delegated()] {
        all.extend(log.into_iter().map(|(event_type, text)| (event_type, serde_json::from_str(&text).unwrap())));
    }
    all.extend(not_decided_yet());
    all
}

type Written = Vec<(String, String)>;

/// A task that is driven command by command.
struct Run {
    aggregate: Aggregate,
    ledger: Vec<LedgerRow>,
    written: Written,
    ids: u128,
}

fn id(n: u128) -> Uuid {
    Uuid::from_u128(0x0189_0a5d_ac96_774b_bcce_b302_0000_0000 + n)
}

fn person(name: &str) -> PersonId {
    PersonId::parse(name).unwrap()
}

fn actor() -> Actor {
    Actor { kind: ActorKind::Agent, id: id(2).to_string(), channel: Some(Channel::Harness) }
}

fn created(origin: Origin) -> TaskCreated {
    TaskCreated {
        short_id: String::new(),
        agent_id: AgentId(id(2)),
        agent_slug: "reviewer".to_owned(),
        agent_version: 3,
        prompt_version: 7,
        service_account_id: AccountId(id(3)),
        project_id: Some(ProjectId(id(4))),
        project_slug: Some("app".to_owned()),
        title: "Prüfe № 42".to_owned(),
        description: String::new(),
        subject: Some("acme/app#42".to_owned()),
        labels: BTreeMap::from([("team".to_owned(), "core".to_owned())]),
        params: Some(JsonText::new(r#"{"depth":1E2}"#)),
        origin,
        created_by_account: None,
        idempotency_key: Some("review-42".to_owned()),
        owner: person("ada"),
        budget: Some("2.5".parse().unwrap()),
        task_timeout_seconds: Some(3_600),
        max_depth: 5,
        max_children: 20,
        depth: 0,
    }
}

impl Run {
    fn create(created: TaskCreated, initial: Option<Ending>) -> Self {
        let mut ids = 1_000;
        let mut new_id = || {
            ids += 1;
            id(ids)
        };
        let actor = Actor { kind: ActorKind::Human, id: "ada".to_owned(), channel: Some(Channel::Web) };
        let mut context = Context { actor, now: now(), new_id: &mut new_id, body_hash: [0; 32], redacted: Vec::new() };
        let (organization, task) = (OrganizationId(id(0)), TaskId(id(1)));
        let decision = decide::create(organization, task, ShortId(12), created, initial, &mut context).unwrap();
        let Decision::Change(change) = decision else { panic!("a creation changes something") };
        let (aggregate, events, _) = change.into_parts();
        let written = events.into_iter().map(|event| (event.event_type.into_owned(), event.payload)).collect();
        Self { aggregate, ledger: Vec::new(), written, ids }
    }

    fn human() -> Self {
        Self::create(created(Origin::Human { user: person("ada") }), None)
    }

    fn give(&mut self, command: &Command) {
        let ids = &mut self.ids;
        let mut new_id = || {
            *ids += 1;
            id(*ids)
        };
        let mut context =
            Context { actor: actor(), now: now(), new_id: &mut new_id, body_hash: [0; 32], redacted: Vec::new() };
        let decision = self.aggregate.decide(command.clone(), &mut context);
        let decision = decision.unwrap_or_else(|refusal| panic!("{command:?}: {refusal:?}"));
        let Decision::Change(change) = decision else { panic!("{command:?} changes nothing") };
        let (aggregate, events, row) = change.into_parts();
        self.aggregate = aggregate;
        self.ledger.extend(row);
        self.written.extend(events.into_iter().map(|event| (event.event_type.into_owned(), event.payload)));
    }

    fn open_session(&mut self, key: &str, takeover: bool) -> SessionId {
        let harness_instance = takeover.then(|| "harness-7".to_owned());
        let session = NewSession { session_key: key.to_owned(), harness_instance, takeover };
        self.give(&Command::OpenSession { session: Ok(session), max_concurrent_tasks: None });
        self.aggregate.sessions().last().unwrap().id
    }

    fn report(&mut self, model: Option<PricedModel>, tokens_in: Option<i64>, corrects: Option<ReportId>) -> ReportId {
        let counts = tokens_in.map(|tokens_in| TokenCounts { tokens_in, tokens_out: 300, ..TokenCounts::default() });
        let corrects = corrects.map(|original| {
            let part = |row: &&LedgerRow| row.id == original || row.corrects == Some(original);
            Correction { original, chain: self.ledger.iter().filter(part).cloned().collect() }
        });
        let report = NewReport {
            idempotency_key: format!("run-{}", self.ledger.len()),
            account_id: AccountId(id(3)),
            model_id: "sonnet".to_owned(),
            model,
            counts,
            corrects,
        };
        self.give(&Command::Report { session: Ok(None), report: Ok(Box::new(report)) });
        self.ledger.last().unwrap().id
    }

    fn ask(&mut self, kind: RequestKind, key: Option<&str>, digest: Option<Digest>) -> RequestId {
        let artifact = |digest| Artifact {
            digest,
            name: "change.diff".to_owned(),
            media_type: "text/x-diff".to_owned(),
            size: 12,
            preview: None,
        };
        let feedback = kind == RequestKind::Feedback;
        let request = NewRequest {
            kind,
            title: "Merge?".to_owned(),
            why: feedback.then(|| "I cannot tell.".to_owned()),
            options: if feedback { vec!["yes".to_owned(), "no".to_owned()] } else { Vec::new() },
            artifacts: digest.map(artifact).into_iter().collect(),
            artifact_digests: digest.into_iter().collect(),
            expires_at: None,
            ttl: Duration::from_mins(1),
            request_key: key.map(str::to_owned),
        };
        self.give(&Command::OpenRequest { session: Ok(None), supersedes: None, request: Ok(Box::new(request)) });
        self.aggregate.requests().last().unwrap().id
    }

    fn resolve(&mut self, request: RequestId, status: RequestStatus, digest: Option<Digest>) {
        let feedback = status == RequestStatus::Answered;
        let resolution = NewResolution {
            status,
            answer: None,
            choice: feedback.then(|| "yes".to_owned()),
            constraints: (!feedback).then(|| JsonText::new(r#"{"window":"today"}"#)),
            artifact_digests: digest.map(|digest| vec![digest]),
        };
        self.give(&Command::Resolve { request, person: person("grace"), expected: None, resolution: Ok(resolution) });
    }

    fn end(&mut self, ending: Ending, result: Option<&str>) {
        let outcome = ClaimedOutcome { ending, result: result.map(JsonText::new) };
        self.give(&Command::SetOutcome { session: Ok(None), outcome: Ok(outcome) });
    }
}

fn model() -> PricedModel {
    let price = |text: &str| Some(text.parse().unwrap());
    let prices = Prices {
        input_cost_per_million: price("1.25"),
        output_cost_per_million: price("10"),
        cache_read_cost_per_million: price("0.625"),
        cache_write_cost_per_million: None,
    };
    PricedModel { id: ModelId(id(5)), prices }
}

fn harness_batch() -> Command {
    let body = json!({"events": [
        {"type": "turn", "payload": {"body": "Läuft.", "decision": "go"}},
        {"type": "tool.called", "payload": {"tool": "ls", "mutating": false, "arguments": {}, "duration_ms": 12}},
        {"type": "phase.changed", "payload": {"phase": "investigate", "furthest_milestone": "started"}},
        {"type": "todos.updated", "payload": {"todos": [{"title": "Report", "done": false}]}},
        {"type": "check.reported", "payload": {"name": "tests", "verdict": "pass", "value": 3}},
    ]})
    .to_string();
    let mut scanned = json::scan(body.as_bytes()).unwrap();
    let mut ids = 500;
    let mut new_id = || {
        ids += 1;
        id(ids)
    };
    let batch = read_batch(&mut scanned.value, &[], BatchLimits::default(), now(), &mut new_id);
    Command::Append { session: Ok(None), only_tool_calls: false, events: batch.events }
}

fn whole_life() -> Written {
    let mut run = Run::human();
    run.open_session("run-1", false);
    run.give(&harness_batch());
    run.report(Some(model()), Some(1_200), None);
    let unmeasured = run.report(Some(model()), None, None);
    let unpriced = run.report(None, Some(7), None);
    run.report(Some(model()), Some(90), Some(unmeasured));
    run.report(Some(model()), Some(3), Some(unpriced));
    let question = run.ask(RequestKind::Feedback, None, None);
    run.resolve(question, RequestStatus::Answered, None);
    let (old, new) = (Digest::of(b"old"), Digest::of(b"new"));
    run.ask(RequestKind::Approval, Some("merge"), Some(old));
    let approval = run.ask(RequestKind::Approval, Some("merge"), Some(new));
    run.resolve(approval, RequestStatus::Approved, Some(new));
    let withdrawn = run.ask(RequestKind::Approval, None, Some(old));
    run.give(&Command::Withdraw { request: withdrawn, session: Ok(None) });
    run.give(&Command::Pause { reason: Ok(Some("Wait.".to_owned())) });
    run.give(&Command::Resume { reason: Ok(None) });
    run.give(&Command::Reassign { owner: Ok(person("grace")) });
    run.give(&Command::Reply { event_id: EventId(id(900)), body: Ok("Go on.".to_owned()), hold: Ok(true) });
    run.give(&Command::Resume { reason: Ok(None) });
    run.ask(RequestKind::Feedback, None, None);
    let second = run.open_session("run-2", true);
    run.give(&Command::CloseSession { session: second, reason: Ok("waiting_for_reply".to_owned()) });
    let third = run.open_session("run-3", true);
    run.give(&Command::LoseSessions { sessions: vec![third], silent_since: now() });
    let last = run.open_session("run-4", false);
    let outcome = Ending::new(Outcome::DoneActed, None).unwrap();
    let result = Some(JsonText::new(r#"{"summary":"Opened 43.","artifacts":[]}"#));
    let claimed = ClaimedOutcome { ending: outcome, result };
    run.give(&Command::SetOutcome { session: Ok(Some(last)), outcome: Ok(claimed) });
    run.written
}

fn cancelled() -> Written {
    let mut run = Run::create(created(Origin::Schedule { scheduled_task: "nightly".to_owned() }), None);
    run.open_session("run-1", false);
    run.give(&Command::Cancel { reason: Ok(None), force: Ok(false) });
    run.end(Ending::because(OutcomeReason::CancelSeen), None);
    run.written
}

fn expired() -> Written {
    let mut run = Run::human();
    let request = run.ask(RequestKind::Feedback, None, None);
    run.give(&Command::ExpireRequests { due: vec![request] });
    run.written
}

fn over_budget() -> Written {
    let mut run = Run::human();
    run.open_session("run-1", false);
    run.report(Some(model()), Some(10_000_000), None);
    run.written
}

fn closed_from_the_start() -> Written {
    let origin = Origin::Webhook { webhook: "issues".to_owned(), delivery: "9f1c".to_owned() };
    let bare = TaskCreated {
        project_id: None,
        project_slug: None,
        subject: None,
        labels: BTreeMap::new(),
        params: None,
        created_by_account: Some(AccountId(id(6))),
        idempotency_key: None,
        budget: None,
        task_timeout_seconds: None,
        ..created(origin)
    };
    Run::create(bare, Some(Ending::because(OutcomeReason::SameSubjectOpen))).written
}

fn delegated() -> Written {
    let parent_short_id = ShortId(12).to_string();
    let origin = Origin::Task { parent_task_id: TaskId(id(1)), parent_short_id, agent_id: AgentId(id(2)) };
    Run::create(created(origin), None).written
}

/// Payloads of types that no command writes so far.
fn not_decided_yet() -> Vec<(String, Value)> {
    let dependency = Dependency {
        operation_id: OperationId(id(7)),
        side: "dependent".to_owned(),
        dependent_task_id: TaskId(id(1)),
        dependent_short_id: "T-12".to_owned(),
        prerequisite_task_id: TaskId(id(8)),
        prerequisite_short_id: "T-9".to_owned(),
        created_by_kind: ActorKind::Human.to_string(),
        created_by: "ada".to_owned(),
        created_at: now(),
    };
    let project = Project {
        project_id: ProjectId(id(4)),
        project_slug: "app".to_owned(),
        added_by_kind: ActorKind::Human.to_string(),
        added_by: "ada".to_owned(),
        added_at: now(),
    };
    let child = Child {
        child_task_id: TaskId(id(9)),
        child_short_id: "T-13".to_owned(),
        agent_id: AgentId(id(2)),
        set_aside_delta: "1.5".parse().unwrap(),
        outcome: None,
        outcome_reason: None,
        cost_total: "0".parse().unwrap(),
    };
    let closed = Child {
        set_aside_delta: "-1.25".parse().unwrap(),
        outcome: Some(Outcome::PartialCapped),
        outcome_reason: Some(OutcomeReason::TurnCap),
        cost_total: "0.25".parse().unwrap(),
        ..child.clone()
    };
    let payloads = [
        Payload::DependencyAdded(Box::new(dependency.clone())),
        Payload::DependencyRemoved(Box::new(dependency)),
        Payload::ProjectAssociated(project.clone()),
        Payload::ProjectDissociated(project),
        Payload::ChildCreated(Box::new(child)),
        Payload::ChildClosed(Box::new(closed.clone())),
        Payload::ChildAdjusted(Box::new(closed)),
    ];
    let written = |payload: &Payload| -> (EventType, String) { payload.write().unwrap() };
    payloads
        .iter()
        .map(written)
        .map(|(event_type, text)| (event_type.to_string(), serde_json::from_str(&text).unwrap()))
        .collect()
}
