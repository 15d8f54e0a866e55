//! What operators read of the permanent log: costs, decisions, and proofs.

use axum::extract::State;

use super::auth::Authenticated;
use super::query::Query;
use super::respond::{Answer, ok, page};
use super::tasks::PAGE_DEFAULT;
use super::views::{AgentUsageView, OperationView, ProofView, json_text};
use super::{App, cursor};
use crate::domain::ids::TaskId;
use crate::domain::principal::Permission;
use crate::domain::refusal::Refusal;
use crate::domain::time::Timestamp;
use crate::service::{Operation, OperationKind, OperationPosition, OperationsQuery, UsageKey};

/// The type in the header of a proof's JWS: no access token has it, so that neither passes for the other.
const PROOF_TYPE: &str = "mandate-proof+jws";

/// Read what agents used and cost.
///
/// Sums over the permanent log, which is seconds behind; budgets never are. Corrections count in the month in which they
/// were recorded.
#[utoipa::path(get, path = "/organizations/{org}/agent-usage", operation_id = "read_agent_usage", tag = "operations",
    params(("org" = String, Path, description = "The organization's slug"),
        ("start" = Option<String>, Query, description = "A day (UTC) or a time with an offset; default: the first of the current month"),
        ("end" = Option<String>, Query, description = "Exclusive; a day (UTC) or a time with an offset; default: now"),
        ("group_by" = Option<Vec<String>>, Query, style = Form, explode = false,
            description = "Any of day, agent, model, project, separated by commas; default: one sum")),
    responses((status = 200, description = "The sums, and each agent's month to date beside its cap",
        body = AgentUsageView)))]
pub async fn agent_usage(State(app): State<App>, auth: Authenticated, query: Query) -> Answer {
    auth.caller.require(Permission::Read)?;
    let now = app.service().clock().now();
    let mut parameters = query.parameters();
    let start = parameters.day_or_time("start").unwrap_or(now.month_start());
    let end = parameters.day_or_time("end").unwrap_or(now);
    // What cannot be read is no order of times.
    if parameters.is_sound() && end < start {
        parameters.fault("end", "must not be before start");
    }
    let mut group_by: Vec<UsageKey> = Vec::new();
    for key in parameters.all("group_by").into_iter().flat_map(|keys| keys.split(',')) {
        match key.parse() {
            Ok(key) if group_by.contains(&key) => {}
            Ok(key) => group_by.push(key),
            Err(fault) => parameters.fault("group_by", format!("{key:?} is {fault}")),
        }
    }
    let group_by = parameters.finish(group_by)?;
    let names = group_by.iter().map(ToString::to_string).collect();
    let usage = app.service().agent_usage(&auth.caller, start, end, group_by).await?;
    ok(&AgentUsageView::new(start.to_string(), end.to_string(), names, &usage))
}

/// List resolutions and terminal outcomes.
///
/// A projection of the permanent log, which is seconds behind.
#[utoipa::path(get, path = "/organizations/{org}/operations-log", operation_id = "list_operations_log",
    tag = "operations", params(("org" = String, Path, description = "The organization's slug"),
        ("start" = Option<String>, Query, description = "A day (UTC) or a time with an offset"),
        ("end" = Option<String>, Query, description = "Exclusive; a day (UTC) or a time with an offset"),
        ("agent_id" = Option<Uuid>, Query, description = "Of this agent's tasks"),
        ("kind" = Option<String>, Query, description = "resolution or outcome"),
        ("limit" = Option<u32>, Query, description = "1 to 100, default 50"),
        ("cursor" = Option<String>, Query, description = "Of the link to the next page")),
    responses((status = 200, description = "A page, the newest first; the Link header leads on",
        body = Vec<OperationView>)))]
pub async fn operations_log(State(app): State<App>, auth: Authenticated, query: Query) -> Answer {
    auth.caller.require(Permission::Read)?;
    let mut parameters = query.parameters();
    let wanted = OperationsQuery {
        organization: auth.caller.organization,
        start: parameters.day_or_time("start"),
        end: parameters.day_or_time("end"),
        agent: parameters.id("agent_id"),
        kind: parameters.parsed::<OperationKind>("kind"),
        after: None,
        limit: parameters.limit(PAGE_DEFAULT, app.settings().page_size_max),
    };
    let cursor = parameters.cursor();
    if wanted.start.zip(wanted.end).is_some_and(|(start, end)| end < start) {
        parameters.fault("end", "must not be before start");
    }
    let wanted = parameters.finish(wanted)?;
    let fingerprint = query.fingerprint();
    let after = match cursor {
        Some(cursor) => Some(position(&cursor::read_name(&cursor, &fingerprint)?)?),
        None => None,
    };
    let found = app.service().operations_log(&auth.caller, OperationsQuery { after, ..wanted }).await?;
    let (operations, more) = found;
    let next = operations.last().filter(|_| more).map(|last| {
        let cursor = cursor::write_name(&place(last), &fingerprint);
        query.with(&[("cursor", cursor)])
    });
    page(&app, &operations.iter().map(OperationView::from).collect::<Vec<_>>(), next.as_deref())
}

fn place(operation: &Operation) -> String {
    format!("{} {} {}", operation.event.recorded_at.micros(), operation.task, operation.event.seq)
}

fn position(place: &str) -> Result<OperationPosition, Refusal> {
    let read = || {
        let mut parts = place.split(' ');
        Some(OperationPosition {
            recorded_at: Timestamp::from_micros(parts.next()?.parse().ok()?)?,
            task: TaskId(parts.next()?.parse().ok()?),
            seq: parts.next()?.parse().ok()?,
        })
    };
    read().ok_or(Refusal::InvalidCursor)
}

/// Read the proof of a task's log.
///
/// With it `mandate verify` tells from an exported log alone whether that is whole and unchanged (all but the lists of
/// what was redacted, which no digest covers).
#[utoipa::path(get, path = "/organizations/{org}/agent-tasks/{task}/proof", operation_id = "read_proof", tag = "events",
    params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The task's short id")),
    responses((status = 200, description = "The head of the log, signed", body = ProofView)))]
pub async fn proof(State(app): State<App>, auth: Authenticated) -> Answer {
    let located = app.service().read(&auth.caller, auth.param("task")).await?;
    let proof = app.service().proof(&located).await?;
    let issuer = app.verifier().issuer();
    let mut view = ProofView::new(&proof, issuer.issuer(), app.service().clock().now().to_string());
    view.jws = issuer.keyring().sign_jws(&json_text(&view)?, PROOF_TYPE);
    ok(&view)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    proptest! {
        #[test]
        fn a_position_is_read_or_refused(
            text in prop_oneof!["-?[0-9]{1,20} [0-9a-f]{32} -?[0-9]{1,20}( [0-9]+)?", any::<String>()],
        ) {
            match position(&text) {
                Ok(OperationPosition { recorded_at, task, seq }) => {
                    let again = format!("{} {task} {seq}", recorded_at.micros());
                    prop_assert_eq!(position(&again), position(&text));
                }
                Err(refusal) => prop_assert_eq!(refusal, Refusal::InvalidCursor),
            }
        }

        #[test]
        fn every_position_goes_round(micros in 0..4_000_000_000_000_000_i64, task: u128, seq in 1..=i64::MAX) {
            let (recorded_at, task) = (Timestamp::from_micros(micros).unwrap(), TaskId(Uuid::from_u128(task)));
            let read = position(&format!("{micros} {task} {seq}"));
            prop_assert_eq!(read, Ok(OperationPosition { recorded_at, task, seq }));
        }
    }
}
