//! Tasks: created, listed, read.

use std::collections::BTreeSet;

use axum::extract::State;
use http::HeaderMap;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::auth::Authenticated;
use super::body::{Body, RawBody};
use super::conditional::Tag;
use super::query::Query;
use super::respond::{Answer, created, ok, page};
use super::views::{LedgerView, RequestView, SessionView, TaskView, WaitingView};
use super::{App, cursor};
use crate::domain::ids::{ReportId, TaskId};
use crate::domain::limits::{
    KEY_MAX, LABEL_FILTERS_MAX, LABEL_KEY_MAX, LABEL_VALUE_MAX, LABELS_MAX, NAME_MAX, TEXT_MAX, TITLE_MAX,
};
use crate::domain::outcome::{Ending, Outcome, OutcomeReason};
use crate::domain::payload::JsonText;
use crate::domain::principal::Permission;
use crate::domain::read::Fields;
use crate::domain::refusal::{Checked, Refusal};
use crate::domain::request::{Request, RequestStatus};
use crate::domain::task::Origin;
use crate::service::create::{ACCOUNTABLE, DELIVERY, NewTaskBody, NewTaskCall, OriginClaim, SCHEDULED_TASK, WEBHOOK};
use crate::service::{Principal, Sort, TaskFilter, TaskPosition};

/// Entries of a page of tasks when the query does not say.
pub const PAGE_DEFAULT: u32 = 50;

/// Characters of a search at least: the index holds what three make.
const SEARCH_MIN: usize = 3;

/// A task to create.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({
    "agent_slug": "reviewer", "title": "Review pull request 42", "description": "Look for missing tests.",
    "budget": "2.50", "subject": "github.com/acme/app#42", "labels": {"team": "core"}, "params": {"depth": 2}
}))]
#[allow(dead_code, reason = "describes the body; it is read field by field, so that one answer names every fault")]
pub struct CreateTask {
    /// The agent that shall work it.
    agent_slug: String,
    /// At most 500 characters.
    title: String,
    /// At most 20,000 characters.
    description: String,
    /// The primary project.
    project_id: Option<Uuid>,
    /// At most the agent's budget, in US dollars: a number or a decimal string.
    #[schema(value_type = Option<String>)]
    budget: Option<Value>,
    /// What the task is about.
    subject: Option<String>,
    /// At most 64 labels.
    labels: Option<std::collections::BTreeMap<String, String>>,
    /// Free parameters, kept verbatim.
    params: Option<Value>,
    /// Unique per origin and principal; may also be the `Idempotency-Key` header.
    idempotency_key: Option<String>,
    /// Only of triggers: closes the task from the start.
    initial_outcome: Option<String>,
    /// Only of triggers.
    initial_outcome_reason: Option<String>,
}

/// The members of a creation that are redacted.
pub(super) const CONTENT: &[&str] = &["title", "description", "subject", "labels", "params"];

pub(super) fn read_new_task(body: &Body<'_>) -> Checked<NewTaskBody> {
    let mut fields = body.fields();
    fields.text("agent_slug", 1..=NAME_MAX);
    let new = NewTaskBody {
        title: fields.text("title", 1..=TITLE_MAX),
        description: fields.text("description", 0..=TEXT_MAX),
        project_id: fields.id_opt("project_id"),
        budget: fields.money_opt("budget"),
        subject: fields.text_opt("subject", 1..=NAME_MAX),
        labels: fields.labels("labels", LABELS_MAX, LABEL_KEY_MAX, LABEL_VALUE_MAX),
        params: fields.member("params").map(|params| JsonText::new(&params.to_text())),
    };
    fields.finish(new)
}

/// Whether the body has the members that close a task from the start.
pub(super) fn names_initial(body: &Body<'_>) -> bool {
    ["initial_outcome", "initial_outcome_reason"].iter().any(|name| body.peek().member(name).is_some())
}

fn read_initial(body: &Body<'_>) -> Checked<Option<Ending>> {
    let mut fields = body.peek();
    let outcome = fields.parsed_opt::<Outcome>("initial_outcome");
    let ending = read_ending(&mut fields, outcome, "initial_outcome_reason");
    fields.finish(ending)
}

/// Pairs an outcome with the reason that the member `name` gives.
pub(super) fn read_ending(fields: &mut Fields<'_>, outcome: Option<Outcome>, name: &str) -> Option<Ending> {
    let reason = fields.parsed_opt::<OutcomeReason>(name);
    let Some(outcome) = outcome else {
        if reason.is_some() && fields.is_faultless() {
            fields.fault(name, "is given without an outcome");
        }
        return None;
    };
    let ending = Ending::new(outcome, reason);
    if ending.is_none() && fields.is_faultless() {
        let free = outcome.reasons().iter().filter(|reason| !reason.is_reserved());
        let free: Vec<_> = free.map(|reason| reason.as_str()).collect();
        let detail = match (outcome.reasons(), free.as_slice()) {
            ([], _) => format!("{outcome} takes no reason"),
            (_, []) => format!("only the server sets {outcome}, with its reason"),
            (_, free) => format!("the reason of {outcome} is one of {}", free.join(", ")),
        };
        fields.fault(name, detail);
    }
    ending
}

/// Whether a header names an origin, be it readable or not.
pub(super) fn names_origin(headers: &HeaderMap) -> bool {
    [SCHEDULED_TASK, WEBHOOK, DELIVERY, ACCOUNTABLE].iter().any(|name| headers.contains_key(*name))
}

fn claim(headers: &HeaderMap) -> Checked<OriginClaim> {
    let read = |name: &'static str| -> Checked<Option<String>> {
        let Some(value) = headers.get(name) else { return Ok(None) };
        let text = std::str::from_utf8(value.as_bytes()).unwrap_or_default().trim();
        if text.is_empty() || text.chars().count() > KEY_MAX {
            return Err(Refusal::invalid_header(name, format!("must have 1 to {KEY_MAX} characters")));
        }
        Ok(Some(text.to_owned()))
    };
    Ok(OriginClaim {
        scheduled_task: read(SCHEDULED_TASK)?,
        webhook: read(WEBHOOK)?,
        delivery: read(DELIVERY)?,
        accountable: read(ACCOUNTABLE)?,
    })
}

/// Create a task.
///
/// The origin is the caller: a person, or what a trigger's headers name. A repeated key answers the first task.
#[utoipa::path(post, path = "/organizations/{org}/agent-tasks/", operation_id = "create_task", tag = "tasks",
    params(("org" = String, Path, description = "The organization's slug"),
        ("Idempotency-Key" = Option<String>, Header, description = "Instead of idempotency_key"),
        ("X-Mandate-Scheduled-Task" = Option<String>, Header, description = "Of triggers: the scheduled task"),
        ("X-Mandate-Webhook" = Option<String>, Header, description = "Of triggers: the webhook"),
        ("X-Mandate-Delivery" = Option<String>, Header, description = "Of triggers: the webhook's delivery"),
        ("X-Mandate-Accountable" = Option<String>, Header, description = "Of triggers: the owner")),
    request_body = CreateTask,
    responses((status = 201, description = "The task was created", body = TaskView),
        (status = 200, description = "The key created it before", body = TaskView)))]
pub async fn create(State(app): State<App>, auth: Authenticated, headers: HeaderMap, body: RawBody) -> Answer {
    let caller = &auth.caller;
    match &caller.principal {
        Principal::Person { .. } | Principal::Agent { .. } => {
            caller.require(Permission::Create)?;
            if names_origin(&headers) {
                return Err(Refusal::OriginForbidden.into());
            }
        }
        Principal::Trigger { .. } => {}
    }
    let body = body.required(CONTENT)?;
    let new = NewTaskCall {
        agent_slug: body.peek().text_opt("agent_slug", 1..=NAME_MAX),
        key: body.key("idempotency_key"),
        origin: claim(&headers),
        initial: read_initial(&body),
        names_initial: names_initial(&body),
        body: read_new_task(&body),
    };
    let answered = app.service().create(&body.call(caller), new).await?;
    created(&TaskView::from(&answered.value), answered.replay)
}

/// List tasks.
///
/// The newest first, or `sort=status_since`: the longest in its status first. An agent's account sees its own agent's
/// tasks, a trigger those it created.
#[utoipa::path(get, path = "/organizations/{org}/agent-tasks/", operation_id = "list_tasks", tag = "tasks",
    params(("org" = String, Path, description = "The organization's slug"),
        ("status" = Option<Vec<String>>, Query, description = "Repeatable: any of these"),
        ("agent_id" = Option<Uuid>, Query, description = "Of this agent"),
        ("owner" = Option<String>, Query, description = "Of this owner"),
        ("mine" = Option<bool>, Query, description = "Owned by the caller"),
        ("project_id" = Option<Uuid>, Query, description = "With this primary project"),
        ("origin_kind" = Option<String>, Query, description = "human, schedule, webhook or task"),
        ("subject" = Option<String>, Query, description = "With this subject"),
        ("label" = Option<Vec<String>>, Query, description = "Repeatable `key=value`, up to 16: with all of these. The key ends at the first `=`"),
        ("q" = Option<String>, Query, min_length = 3, max_length = 500,
            description = "With this text in title, agent or project, or with this short id; limited in time"),
        ("sort" = Option<String>, Query, description = "status_since"),
        ("limit" = Option<u32>, Query, description = "1 to 100, default 50"),
        ("cursor" = Option<String>, Query, description = "Of the link to the next page")),
    responses((status = 200, description = "A page of tasks; the Link header leads on", body = Vec<TaskView>)))]
pub async fn list(State(app): State<App>, auth: Authenticated, query: Query) -> Answer {
    if matches!(auth.caller.principal, Principal::Person { .. }) {
        auth.caller.require(Permission::Read)?;
    }
    let mut parameters = query.parameters();
    let mut filter = TaskFilter {
        statuses: parameters.all_parsed("status"),
        agent: parameters.id("agent_id"),
        owner: parameters.text("owner").map(str::to_lowercase).and_then(|owner| person(&owner)),
        project: parameters.id("project_id"),
        origin_kind: parameters.text("origin_kind").map(str::to_owned),
        subject: parameters.text("subject").map(str::to_owned),
        text: parameters.text("q").map(str::to_owned),
        ..TaskFilter::default()
    };
    if filter.origin_kind.as_deref().is_some_and(|kind| !Origin::KINDS.contains(&kind)) {
        parameters.fault("origin_kind", format!("must be one of {}", Origin::KINDS.join(", ")));
    }
    if filter.text.as_ref().is_some_and(|text| !(SEARCH_MIN..=TITLE_MAX).contains(&text.chars().count())) {
        parameters.fault("q", format!("must have {SEARCH_MIN} to {TITLE_MAX} characters, a short id counts as well"));
    }
    let labels: BTreeSet<_> = parameters.all("label").into_iter().collect();
    if labels.len() > LABEL_FILTERS_MAX {
        parameters.fault("label", format!("at most {LABEL_FILTERS_MAX} labels"));
    }
    for label in labels.into_iter().take(LABEL_FILTERS_MAX) {
        match label.split_once('=') {
            Some((key, value)) => filter.labels.push((key.to_owned(), value.to_owned())),
            None => parameters.fault("label", "must be key=value"),
        }
    }
    if parameters.text("owner").is_some() && filter.owner.is_none() {
        parameters.fault("owner", "is no person's id");
    }
    let mut contradicting = false;
    if parameters.bool("mine") == Some(true) {
        match &auth.caller.principal {
            Principal::Person { id, .. } => {
                let owner = filter.owner.replace(id.clone());
                contradicting = owner.is_some_and(|owner| owner != *id);
            }
            Principal::Agent { .. } | Principal::Trigger { .. } => {
                parameters.fault("mine", "is for people; a service account owns no task");
            }
        }
    }
    let sort = match parameters.text("sort") {
        None | Some("created_at") => Sort::Newest,
        Some("status_since") => Sort::StatusSince,
        Some(_) => {
            parameters.fault("sort", "must be status_since");
            Sort::Newest
        }
    };
    let limit = parameters.limit(PAGE_DEFAULT, app.settings().page_size_max);
    let cursor = parameters.cursor();
    let filter = parameters.finish(filter)?;
    let fingerprint = query.fingerprint();
    let after = match cursor {
        Some(cursor) => {
            let (at, id) = cursor::read(&cursor, &fingerprint)?;
            Some(TaskPosition { at, id: TaskId(id) })
        }
        None => None,
    };
    if contradicting {
        // No task has two owners.
        return page::<TaskView>(&app, &[], None);
    }
    let found = app.service().list(&auth.caller, filter, sort, after, limit).await?;
    let views: Vec<_> = found.tasks.iter().map(TaskView::from).collect();
    let next = found.next.map(|next| query.with(&[("cursor", cursor::write(next.at, next.id.0, &fingerprint))]));
    page(&app, &views, next.as_deref())
}

fn person(text: &str) -> Option<crate::domain::ids::PersonId> {
    crate::domain::ids::PersonId::parse(text).ok()
}

/// Count the tasks that wait for a person.
#[utoipa::path(get, path = "/organizations/{org}/agent-tasks/waiting", operation_id = "count_waiting_tasks",
    tag = "tasks", params(("org" = String, Path, description = "The organization's slug")),
    responses((status = 200, description = "How many open tasks and requests wait", body = WaitingView)))]
pub async fn waiting(State(app): State<App>, auth: Authenticated) -> Answer {
    ok(&WaitingView::from(app.service().waiting(&auth.caller).await?))
}

/// Read a task.
#[utoipa::path(get, path = "/organizations/{org}/agent-tasks/{task}", operation_id = "read_task", tag = "tasks",
    params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The task's short id, in any letter case"),
        ("If-None-Match" = Option<String>, Header, description = "The `ETag` of what the caller has")),
    responses((status = 200, description = "The task; its ETag is `last_seq` in quotes until it is archived",
        body = TaskView), (status = 304, description = "The caller has it already")))]
pub async fn read(State(app): State<App>, auth: Authenticated, headers: HeaderMap) -> Answer {
    let task = app.service().task(&auth.caller, auth.param("task")).await?;
    let archived = if task.log_archived_at().is_some() { "archived" } else { "" };
    Tag::beside(task.facts().last_seq, archived).answer(&headers, || ok(&TaskView::from(&task)))
}

/// List a task's sessions.
#[utoipa::path(get, path = "/organizations/{org}/agent-tasks/{task}/sessions", operation_id = "list_sessions",
    tag = "sessions", params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The task's short id")),
    responses((status = 200, description = "The sessions, oldest first", body = Vec<SessionView>)))]
pub async fn sessions(State(app): State<App>, auth: Authenticated) -> Answer {
    let located = app.service().read(&auth.caller, auth.param("task")).await?;
    let sessions = app.service().sessions(&located).await?;
    ok(&sessions.iter().map(SessionView::from).collect::<Vec<_>>())
}

/// List a task's requests.
///
/// One whose time is over is shown as expired, though no worker has seen it yet; the `ETag` says so too.
#[utoipa::path(get, path = "/organizations/{org}/agent-tasks/{task}/requests", operation_id = "list_requests",
    tag = "requests", params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The task's short id"),
        ("If-None-Match" = Option<String>, Header, description = "The `ETag` of what the caller has")),
    responses((status = 200, description = "The requests, oldest first", body = Vec<RequestView>),
        (status = 304, description = "The caller has it already")))]
pub async fn requests(State(app): State<App>, auth: Authenticated, headers: HeaderMap) -> Answer {
    let located = app.service().read(&auth.caller, auth.param("task")).await?;
    let version = app.service().version(&located).await?;
    let requests = app.service().requests(&located).await?;
    // Time settles them without an event, until a worker writes it.
    let unwritten = |request: &&Request| request.status == RequestStatus::Expired && request.resolved_at.is_none();
    let tag = match requests.iter().filter(unwritten).count() {
        0 => Tag::of(version),
        some => Tag::beside(version, &some.to_string()),
    };
    tag.answer(&headers, || ok(&requests.iter().map(RequestView::from).collect::<Vec<_>>()))
}

/// List a task's ledger.
#[utoipa::path(get, path = "/organizations/{org}/agent-tasks/{task}/usage", operation_id = "list_usage",
    tag = "usage", params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The task's short id"),
        ("limit" = Option<u32>, Query, description = "1 to 100, default 50"),
        ("cursor" = Option<String>, Query, description = "Of the link to the next page"),
        ("If-None-Match" = Option<String>, Header, description = "The `ETag` of what the caller has")),
    responses((status = 200, description = "The ledger's rows, oldest first", body = Vec<LedgerView>),
        (status = 304, description = "The caller has it already")))]
pub async fn usage(State(app): State<App>, auth: Authenticated, headers: HeaderMap, query: Query) -> Answer {
    let located = app.service().read(&auth.caller, auth.param("task")).await?;
    let mut parameters = query.parameters();
    let limit = parameters.limit(PAGE_DEFAULT, app.settings().page_size_max);
    let cursor = parameters.cursor();
    parameters.finish(())?;
    let fingerprint = query.fingerprint();
    let after = match cursor {
        Some(cursor) => Some(ReportId(cursor::read(&cursor, &fingerprint)?.1)),
        None => None,
    };
    let tag = Tag::of(app.service().version(&located).await?);
    let (rows, more) = app.service().usage(&located, after, limit).await?;
    let last = rows.last().filter(|_| more);
    let next = last.map(|row| query.with(&[("cursor", cursor::write(row.recorded_at, row.id.0, &fingerprint))]));
    tag.answer(&headers, || page(&app, &rows.iter().map(LedgerView::from).collect::<Vec<_>>(), next.as_deref()))
}
