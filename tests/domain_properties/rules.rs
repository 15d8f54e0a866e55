//! The rules, one function each. Each says what the contract says in its own words, not in those of the code.

use std::collections::BTreeSet;

use mandate::domain::aggregate::Aggregate;
use mandate::domain::change::{Change, Decision};
use mandate::domain::command::Command;
use mandate::domain::event::Event;
use mandate::domain::money::{Money, TokenCounts};
use mandate::domain::outcome::OutcomeReason;
use mandate::domain::payload::Payload;
use mandate::domain::refusal::Refusal;
use mandate::domain::request::RequestStatus;
use mandate::domain::status::{Control, Status, status};
use mandate::domain::task::Facts;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::life::{Life, Stepped};

pub type Held = Result<(), TestCaseError>;
pub type Look = fn(&Life, &Stepped) -> Held;

fn change(stepped: &Stepped) -> Option<&Change> {
    match &stepped.decision {
        Ok(Decision::Change(change)) => Some(change),
        Ok(Decision::Unchanged) | Err(_) => None,
    }
}

fn read(event: &Event) -> Payload {
    Payload::read(&event.event_type, &event.payload).unwrap()
}

fn types(change: &Change) -> Vec<&str> {
    change.events().iter().map(|event| event.event_type.as_ref()).collect()
}

/// What may never move again once a task is closed.
fn state(facts: &Facts) -> impl PartialEq + std::fmt::Debug + use<> {
    (
        (facts.status, facts.status_since, facts.control, facts.ending, facts.closed_at),
        (facts.phase.clone(), facts.furthest_milestone.clone(), facts.owner.clone(), facts.result.clone()),
        (facts.open_requests, facts.open_sessions, facts.last_generation, facts.taken_over, facts.timeout_at),
    )
}

pub fn closed_is_final(life: &Life, stepped: &Stepped) -> Held {
    let (before, after) = (stepped.before.task().facts(), life.task.task().facts());
    if before.ending.is_some() {
        prop_assert_eq!(state(before), state(after));
        prop_assert_eq!(stepped.before.sessions(), life.task.sessions());
        prop_assert_eq!(stepped.before.requests(), life.task.requests());
        let added = ["usage.reported", "tool.called", "project.associated", "project.dissociated"];
        for name in change(stepped).map(types).unwrap_or_default() {
            prop_assert!(added.contains(&name), "{} after the close", name);
        }
    }
    prop_assert_eq!(after.ending.is_some(), after.closed_at.is_some());
    prop_assert_eq!(after.ending.is_some(), after.status == Status::Closed);
    Ok(())
}

pub fn events_number_the_log(life: &Life, stepped: &Stepped) -> Held {
    if let Some(change) = change(stepped) {
        prop_assert!(!change.events().is_empty());
        prop_assert_eq!(change.expected_seq(), stepped.before.task().facts().last_seq);
        prop_assert!(change.events().iter().all(|event| event.recorded_at == life.now));
    }
    let numbers: Vec<_> = life.log.iter().map(|event| event.seq).collect();
    let expected: Vec<_> = (1..=i64::try_from(life.log.len()).unwrap()).collect();
    prop_assert_eq!(numbers, expected);
    let ids: BTreeSet<_> = life.log.iter().map(|event| event.event_id).collect();
    prop_assert_eq!(ids.len(), life.log.len());
    let facts = life.task.task().facts();
    prop_assert_eq!(facts.last_seq, life.log.last().unwrap().seq);
    prop_assert_eq!(facts.log_digest, life.log.last().unwrap().digest);
    Ok(())
}

pub fn status_follows(life: &Life, stepped: &Stepped) -> Held {
    let facts = life.task.task().facts();
    // The CHECK of the table, word for word.
    let expected = match () {
        () if facts.ending.is_some() => "closed",
        () if facts.control.as_str() == "pause" => "paused",
        () if facts.open_requests > 0 => "blocked",
        () if facts.open_sessions > 0 => "running",
        () => "queued",
    };
    prop_assert_eq!(facts.status.as_str(), expected);
    let outcome = life.task.task().outcome();
    prop_assert_eq!(facts.status, status(outcome, facts.control, facts.open_requests, facts.open_sessions));
    let Some(change) = change(stepped) else { return Ok(()) };
    let before = stepped.before.task().facts().status;
    let changes: Vec<_> = change
        .events()
        .iter()
        .filter_map(|event| match read(event) {
            Payload::StateChanged(change) => Some((change.from, change.to)),
            _ => None,
        })
        .collect();
    let expected = if before == facts.status { vec![] } else { vec![(before, facts.status)] };
    prop_assert_eq!(changes, expected);
    if before == facts.status {
        prop_assert_eq!(facts.status_since, stepped.before.task().facts().status_since);
    } else {
        prop_assert_eq!(facts.status_since, life.now);
    }
    Ok(())
}

pub fn totals_are_sums(life: &Life, stepped: &Stepped) -> Held {
    let facts = life.task.task().facts();
    let (mut cost, mut tokens, mut unmeasured, mut unpriced) = (Money::ZERO, TokenCounts::default(), 0, 0);
    for row in &life.ledger {
        cost = cost.checked_add(row.cost.unwrap_or_default()).unwrap();
        tokens = tokens.checked_add(row.tokens).unwrap();
        unmeasured += i64::from(row.unmeasured_delta);
        unpriced += i64::from(row.unpriced_delta);
        prop_assert!(row.measured || (row.cost.is_none() && row.tokens == TokenCounts::default()));
    }
    prop_assert_eq!(facts.cost_total, cost);
    prop_assert_eq!(facts.tokens, tokens);
    prop_assert_eq!((facts.unmeasured_reports, facts.unpriced_reports), (unmeasured, unpriced));
    prop_assert!(unmeasured >= 0 && unpriced >= 0, "{} {}", unmeasured, unpriced);
    prop_assert!(!cost.is_negative(), "{}", cost);
    if let Some(change) = change(stepped) {
        let reports: Vec<_> = change.events().iter().filter(|event| event.event_type == "usage.reported").collect();
        prop_assert_eq!(reports.len(), usize::from(change.ledger().is_some()));
        if let (Some(row), Some(event)) = (change.ledger(), reports.first()) {
            let Payload::UsageReported(reported) = read(event) else { panic!("{event:?}") };
            prop_assert_eq!((row.seq, row.cost, row.id), (event.seq, reported.cost, reported.report_id));
            prop_assert_eq!(reported.cost_total, facts.cost_total);
            prop_assert_eq!(reported.budget_remaining, life.task.task().budget_remaining());
        }
    }
    Ok(())
}

pub fn counts_match(life: &Life, _: &Stepped) -> Held {
    let facts = life.task.task().facts();
    let sessions = life.task.sessions();
    let open = |count: usize| u32::try_from(count).unwrap();
    prop_assert_eq!(facts.open_sessions, open(sessions.iter().filter(|s| s.is_open()).count()));
    prop_assert_eq!(facts.open_requests, open(life.task.requests().iter().filter(|r| r.is_open()).count()));
    let generations: Vec<_> = sessions.iter().map(|session| session.generation).collect();
    prop_assert_eq!(&generations, &(1..=facts.last_generation).collect::<Vec<_>>());
    let keys: BTreeSet<_> = sessions.iter().map(|session| &session.session_key).collect();
    prop_assert_eq!(keys.len(), sessions.len(), "a key names two sessions");
    for request in life.task.requests() {
        prop_assert_eq!(request.is_open(), request.resolved_at.is_none());
        let by_person =
            matches!(request.status, RequestStatus::Answered | RequestStatus::Approved | RequestStatus::Rejected);
        prop_assert_eq!(request.resolution.is_some(), by_person);
        prop_assert_eq!(request.resolved_by.is_some(), by_person);
        if let Some(resolution) = &request.resolution {
            prop_assert_eq!(&resolution.artifact_digests, &request.artifact_digests);
        }
    }
    let open: Vec<_> =
        life.task.requests().iter().filter(|r| r.is_open()).filter_map(|r| r.request_key.as_ref()).collect();
    prop_assert_eq!(open.iter().collect::<BTreeSet<_>>().len(), open.len(), "a key names two open requests");
    Ok(())
}

pub fn cancel_stays(life: &Life, stepped: &Stepped) -> Held {
    let (before, after) = (stepped.before.task().facts(), life.task.task().facts());
    if before.control == Control::Cancel {
        prop_assert_eq!(after.control, Control::Cancel);
    }
    if after.control == Control::Cancel && after.ending.is_none() {
        prop_assert!(after.open_sessions > 0, "a cancelled task without a session hangs");
    }
    Ok(())
}

pub fn closing_order(_: &Life, stepped: &Stepped) -> Held {
    let Some(change) = change(stepped) else { return Ok(()) };
    let types = types(change);
    let Some(outcome) = types.iter().position(|name| *name == "outcome.set") else { return Ok(()) };
    prop_assert_eq!(types.iter().filter(|name| **name == "outcome.set").count(), 1);
    prop_assert_eq!(types[outcome - 1], "state.changed");
    for event in &change.events()[outcome + 1..] {
        let Payload::RequestResolved(resolved) = read(event) else { panic!("{event:?} after the outcome") };
        prop_assert_eq!(resolved.status, RequestStatus::Void);
    }
    // The sessions close right before the status changes, none after.
    let closed_by_task: Vec<_> = (0..outcome)
        .filter(|at| matches!(read(&change.events()[*at]), Payload::SessionClosed(closed) if closed.reason == "task_closed"))
        .collect();
    let expected: Vec<_> = (outcome - 1 - closed_by_task.len()..outcome - 1).collect();
    prop_assert_eq!(closed_by_task, expected);
    let next = change.next().task().facts();
    prop_assert_eq!((next.open_sessions, next.open_requests, next.status), (0, 0, Status::Closed));
    Ok(())
}

pub fn touched_rows(_: &Life, stepped: &Stepped) -> Held {
    let Some(change) = change(stepped) else { return Ok(()) };
    let (before, next) = (&stepped.before, change.next());
    let changed: BTreeSet<_> =
        next.sessions().iter().filter(|s| before.session(s.id) != Some(s)).map(|session| session.id).collect();
    prop_assert_eq!(&changed, &change.touched_sessions().iter().copied().collect());
    let changed: BTreeSet<_> =
        next.requests().iter().filter(|r| before.request(r.id) != Some(r)).map(|request| request.id).collect();
    prop_assert_eq!(&changed, &change.touched_requests().iter().copied().collect());
    if let Some(alive) = change.alive() {
        prop_assert!(next.session(alive).is_some_and(mandate::domain::session::Session::is_open));
    }
    for id in &change.guards().unexpired {
        prop_assert!(changed.contains(id), "a guard on a request that is not settled");
    }
    Ok(())
}

pub fn budget_closes(life: &Life, stepped: &Stepped) -> Held {
    let task = life.task.task();
    let Some(remaining) = task.budget_remaining() else { return Ok(()) };
    if remaining.is_negative() {
        prop_assert!(task.facts().ending.is_some(), "open at {}", remaining);
    }
    let budget = Some(OutcomeReason::Budget);
    if task.outcome_reason() == budget && stepped.before.task().outcome_reason() != budget {
        prop_assert!(remaining.is_negative(), "closed for its budget at {}", remaining);
        let by_report = matches!(stepped.command, Command::Report { .. });
        prop_assert!(by_report);
    }
    Ok(())
}

/// What must be refused, and how, by the life of the task alone.
pub fn table(_: &Life, stepped: &Stepped) -> Held {
    let task = stepped.before.task();
    let facts = task.facts();
    let by_time_or_operator = matches!(
        stepped.command,
        Command::LoseSessions { .. }
            | Command::ExpireRequests { .. }
            | Command::TimeOut
            | Command::Stop
            | Command::DeleteAgent
    );
    if task.log_archived_at().is_some() {
        let expected = if by_time_or_operator { Ok(Decision::Unchanged) } else { Err(Refusal::TaskArchived) };
        prop_assert_eq!(&stepped.decision, &expected);
    } else if facts.ending.is_some() {
        closed_table(&stepped.before, stepped, by_time_or_operator)?;
    } else if facts.control == Control::Cancel {
        let refusal = stepped.decision.as_ref().err();
        match &stepped.command {
            Command::OpenSession { .. } | Command::OpenRequest { .. } => {
                prop_assert_eq!(refusal, Some(&Refusal::TaskCancelled));
            }
            Command::Pause { .. } | Command::Resume { .. } | Command::Reply { hold: Ok(true), .. } => {
                prop_assert_eq!(refusal, Some(&Refusal::CancelPending(facts.status)));
            }
            Command::Cancel { reason: Ok(_), force: Ok(force) } => {
                prop_assert_eq!(change(stepped).is_some(), *force);
            }
            _ => {}
        }
    } else {
        let refusal = stepped.decision.as_ref().err();
        let for_later = matches!(
            refusal,
            Some(Refusal::TaskClosed(_) | Refusal::TaskArchived | Refusal::TaskCancelled | Refusal::CancelPending(_))
        );
        prop_assert!(!for_later, "{:?}", refusal);
        if let Command::SetOutcome { session: Ok(None), outcome: Ok(claimed) } = &stepped.command {
            let reserved = claimed.ending.is_reserved();
            let cancelled = claimed.ending.outcome().as_str() == "cancelled_by_human";
            if !facts.taken_over {
                prop_assert_eq!(stepped.decision.is_err(), reserved || cancelled);
            }
        }
    }
    Ok(())
}

fn closed_table(before: &Aggregate, stepped: &Stepped, by_time_or_operator: bool) -> Held {
    let facts = before.task().facts();
    let refusal = stepped.decision.as_ref().err();
    let closed = |refusal: Option<&Refusal>| matches!(refusal, Some(Refusal::TaskClosed(c)) if Some(c.ending) == facts.ending && c.last_seq == facts.last_seq);
    match &stepped.command {
        _ if by_time_or_operator => prop_assert_eq!(&stepped.decision, &Ok(Decision::Unchanged)),
        Command::CloseSession { .. } => {
            let unchanged = stepped.decision == Ok(Decision::Unchanged);
            let refused = matches!(refusal, Some(Refusal::SessionSuperseded { .. } | Refusal::SessionNotFound));
            prop_assert!(unchanged || refused, "{:?}", stepped.decision);
        }
        Command::Append { only_tool_calls: true, .. } | Command::Report { .. } => prop_assert!(!closed(refusal)),
        Command::AssociateProject { .. } | Command::DissociateProject { .. } => {
            prop_assert!(!closed(refusal), "projects may change after the close");
        }
        Command::Withdraw { .. } | Command::Resolve { .. } => {
            // Nothing is open, so the state of the request answers.
            let settled = matches!(
                refusal,
                Some(Refusal::RequestResolved { .. } | Refusal::RequestExpired(_) | Refusal::RequestNotFound)
            );
            prop_assert!(settled || stepped.decision == Ok(Decision::Unchanged), "{:?}", stepped.decision);
        }
        Command::SetOutcome { outcome: Ok(claimed), .. } if Some(claimed.ending) == facts.ending => {
            prop_assert_eq!(&stepped.decision, &Ok(Decision::Unchanged));
        }
        _ => prop_assert!(closed(refusal), "{:?}", stepped.decision),
    }
    Ok(())
}
