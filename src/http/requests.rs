//! Questions to people: asked, withdrawn, resolved, listed.

use axum::extract::State;
use http::HeaderMap;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::auth::Authenticated;
use super::body::{Body, RawBody, path_id};
use super::query::Query;
use super::respond::{Answer, created, ok, page};
use super::tasks::PAGE_DEFAULT;
use super::views::{InboxView, RequestAnswer, RequestView, ResolveAnswer, TaskState, TaskView};
use super::{App, conditional, cursor};
use crate::domain::command::{NewRequest, NewResolution};
use crate::domain::decide::REQUEST_TTL_MAX;
use crate::domain::ids::RequestId;
use crate::domain::limits::{ARTIFACTS_MAX, NAME_MAX, OPTIONS_MAX, TEXT_MAX, TITLE_MAX};
use crate::domain::payload::JsonText;
use crate::domain::principal::Permission;
use crate::domain::read::Fields;
use crate::domain::refusal::{Checked, Refusal};
use crate::domain::request::{Artifact, RequestKind, RequestStatus};
use crate::domain::time::Timestamp;
use crate::service::InboxPage;
use crate::service::requests::AskedKey;

/// Something the person decides on.
#[derive(Debug, Deserialize, ToSchema)]
#[allow(dead_code, reason = "describes the body; it is read field by field, so that one answer names every fault")]
pub struct NewArtifact {
    /// `sha256:` and 64 lower-case hexadecimal digits.
    digest: String,
    /// What it is called.
    name: String,
    /// Its media type.
    media_type: String,
    /// Its size in bytes.
    size: i64,
    /// The first lines.
    preview: Option<String>,
}

/// A question to a person.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"kind": "approval", "title": "Merge pull request 42?", "why": "All checks are green.",
    "artifact_digests": ["sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"],
    "request_key": "run-1a2b3c4d-merge"}))]
#[allow(dead_code, reason = "describes the body; it is read field by field, so that one answer names every fault")]
pub struct AskPerson {
    /// `feedback` (a decision) or `approval` (a permitted effect, bound to digests).
    kind: String,
    /// At most 500 characters.
    title: String,
    /// Why it is asked.
    why: Option<String>,
    /// The answers to choose from.
    options: Option<Vec<String>>,
    /// What the person decides on.
    artifacts: Option<Vec<NewArtifact>>,
    /// Of an approval: at least one, unique.
    artifact_digests: Option<Vec<String>>,
    /// With an offset, at most 90 days ahead; default after the server's time to live.
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    /// The session that asks.
    session_id: Option<Uuid>,
    /// The same key with the same digests answers the request as it is now; may also be the `Idempotency-Key` header.
    request_key: Option<String>,
    /// The request that this one voids.
    supersedes: Option<Uuid>,
}

/// What a harness says when it takes a question back.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"session_id": "01890a5d-ac96-774b-bcce-b302099a8057"}))]
#[allow(dead_code, reason = "describes the body; it is read field by field, so that one answer names every fault")]
pub struct Withdraw {
    /// The session that withdraws.
    session_id: Option<Uuid>,
}

/// How a person resolves a request.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"status": "approved",
    "artifact_digests": ["sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"]}))]
#[allow(dead_code, reason = "describes the body; it is read field by field, so that one answer names every fault")]
pub struct Resolve {
    /// `answered` for feedback, `approved` or `rejected` for an approval.
    status: String,
    /// A free answer.
    answer: Option<String>,
    /// One of the request's options.
    choice: Option<String>,
    /// Conditions, kept verbatim.
    constraints: Option<Value>,
    /// To approve: the digests that were reviewed, the same set as the request's.
    artifact_digests: Option<Vec<String>>,
}

fn read_artifacts(fields: &mut Fields<'_>) -> Vec<Artifact> {
    let mut artifacts = Vec::new();
    let items = fields.list("artifacts", ARTIFACTS_MAX);
    for (index, item) in items.iter().enumerate() {
        let mut entry = Fields::new(item, format!("/artifacts/{index}"));
        let digest = entry.text("digest", 1..=NAME_MAX);
        let parsed = crate::domain::digest::Digest::parse(&digest);
        if parsed.is_none() && !digest.is_empty() {
            entry.fault("digest", "must be sha256: and 64 lower-case hexadecimal digits");
        }
        if entry.member("size").is_none() {
            entry.fault("size", "is required");
        }
        let artifact = Artifact {
            digest: parsed.unwrap_or(crate::domain::digest::Digest::ZERO),
            name: entry.text("name", 1..=NAME_MAX),
            media_type: entry.text("media_type", 1..=NAME_MAX),
            size: entry.integer_opt("size", 0..=i64::MAX).unwrap_or_default(),
            preview: entry.text_opt("preview", 0..=TEXT_MAX),
        };
        artifacts.push(artifact);
        fields.extend(entry.into_faults());
    }
    artifacts
}

fn read_request(app: &App, body: &Body<'_>, key: Option<String>) -> Checked<Box<NewRequest>> {
    let mut fields = body.fields();
    let kind = fields.parsed::<RequestKind>("kind");
    let options = fields.texts("options", OPTIONS_MAX, 1..=TITLE_MAX);
    let digests = fields.digests_opt("artifact_digests", ARTIFACTS_MAX).unwrap_or_default();
    match kind {
        Some(RequestKind::Approval) if digests.is_empty() && fields.is_faultless() => {
            fields.fault("artifact_digests", "an approval binds to at least one digest");
        }
        Some(RequestKind::Approval | RequestKind::Feedback) | None => {}
    }
    let now = app.service().clock().now();
    let expires_at = fields.time_opt("expires_at");
    check_expiry(&mut fields, expires_at, now);
    // Read again with the state; here its fault is told with the others.
    fields.id_opt::<RequestId>("supersedes");
    let request = NewRequest {
        kind: kind.unwrap_or(RequestKind::Feedback),
        title: fields.text("title", 1..=TITLE_MAX),
        why: fields.text_opt("why", 0..=TEXT_MAX),
        options,
        artifacts: read_artifacts(&mut fields),
        artifact_digests: digests,
        expires_at,
        ttl: app.service().settings().request_ttl,
        request_key: key,
    };
    fields.finish(Box::new(request))
}

fn check_expiry(fields: &mut Fields<'_>, expires_at: Option<Timestamp>, now: Timestamp) {
    let Some(at) = expires_at else { return };
    if at <= now {
        fields.fault("expires_at", "must lie ahead");
    } else if at > now.plus(REQUEST_TTL_MAX) {
        fields.fault("expires_at", "must lie at most 90 days ahead");
    }
}

/// Ask a person.
///
/// The task is blocked until every open request is settled.
#[utoipa::path(post, path = "/organizations/{org}/agent-tasks/{task}/requests", operation_id = "open_request",
    tag = "requests", params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The task's short id"),
        ("Idempotency-Key" = Option<String>, Header, description = "Instead of request_key")),
    request_body = AskPerson, responses((status = 201, description = "The request was opened", body = RequestAnswer),
        (status = 200, description = "The key opened it before", body = RequestAnswer)))]
pub async fn open(State(app): State<App>, auth: Authenticated, body: RawBody) -> Answer {
    let located = app.service().locate(&auth.caller, auth.param("task")).await?;
    auth.caller.harness_of(&located.task)?;
    let body = body.required(&["title", "why", "options", "artifacts"])?;
    let (key, request) = match body.key("request_key") {
        Ok(key) => (key.clone(), read_request(&app, &body, key)),
        // Told with the rest of the body, after the state was looked at.
        Err(refusal) => (None, Err(refusal)),
    };
    // Read apart, because a repeat is answered whatever else the body says: its `expires_at` may have passed by now.
    let mut peek = body.peek();
    let digests = peek.digests_opt("artifact_digests", ARTIFACTS_MAX).unwrap_or_default();
    let digests = peek.finish(digests).ok();
    let asked = key.zip(digests).map(|(key, digests)| AskedKey { key, digests });
    let supersedes = body.peek().id_opt::<RequestId>("supersedes");
    let call = body.call(&auth.caller);
    let answered = app.service().open_request(&call, &located, body.session(), asked, supersedes, request).await?;
    let (request, task) = &answered.value;
    created(&RequestAnswer { request: RequestView::from(request), task: app.task_state(task) }, answered.replay)
}

/// Take a question back.
#[utoipa::path(post, path = "/organizations/{org}/agent-tasks/{task}/requests/{request}/withdraw",
    operation_id = "withdraw_request", tag = "requests",
    params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The task's short id"),
        ("request" = Uuid, Path, description = "The request")),
    request_body = Option<Withdraw>, responses((status = 200, description = "The task's state", body = TaskState)))]
pub async fn withdraw(State(app): State<App>, auth: Authenticated, body: RawBody) -> Answer {
    let located = app.service().locate(&auth.caller, auth.param("task")).await?;
    let request = path_id(auth.param("request"), Refusal::RequestNotFound)?;
    app.service().require_request(&located, request).await?;
    auth.caller.harness_of(&located.task)?;
    let body = body.optional(&[])?;
    let task = app.service().withdraw(&body.call(&auth.caller), &located, request, body.session()).await?;
    ok(&app.task_state(&task))
}

/// Resolve a request.
///
/// Exactly one resolution wins; everyone after it is told who, when and what. Only people resolve. With `If-Match` the
/// task must be as it was looked at: its `ETag`, which is its `last_seq` in quotes.
#[utoipa::path(post, path = "/organizations/{org}/agent-tasks/{task}/requests/{request}/resolve",
    operation_id = "resolve_request", tag = "requests",
    params(("org" = String, Path, description = "The organization's slug"),
        ("task" = String, Path, description = "The task's short id"),
        ("request" = Uuid, Path, description = "The request"),
        ("If-Match" = Option<String>, Header, description = "Versions of the task that may be resolved on: `\"17\"`")),
    request_body = Resolve, responses((status = 201, description = "It was resolved", body = ResolveAnswer),
        (status = 200, description = "The same person's same resolution", body = ResolveAnswer)))]
pub async fn resolve(State(app): State<App>, auth: Authenticated, headers: HeaderMap, body: RawBody) -> Answer {
    let located = app.service().locate(&auth.caller, auth.param("task")).await?;
    let request = path_id(auth.param("request"), Refusal::RequestNotFound)?;
    app.service().require_request(&located, request).await?;
    auth.caller.person()?;
    auth.caller.require(Permission::Resolve)?;
    let body = body.required(&["answer", "choice", "constraints"])?;
    let mut fields = body.fields();
    let settles = [RequestStatus::Answered, RequestStatus::Approved, RequestStatus::Rejected];
    let status = fields.text("status", 1..=NAME_MAX).parse().ok().filter(|status| settles.contains(status));
    if status.is_none() && fields.is_faultless() {
        fields.fault("status", "must be answered, approved or rejected");
    }
    let resolution = NewResolution {
        status: status.unwrap_or(RequestStatus::Answered),
        answer: fields.text_opt("answer", 1..=TEXT_MAX),
        choice: fields.text_opt("choice", 1..=TITLE_MAX),
        constraints: fields.member("constraints").map(|value| JsonText::new(&value.to_text())),
        artifact_digests: fields.digests_opt("artifact_digests", ARTIFACTS_MAX),
    };
    let (expected, resolution) = match conditional::expected(&headers) {
        Ok(expected) => (expected, fields.finish(resolution)),
        // Told like a fault of the body, after the state was looked at.
        Err(refusal) => (None, Err(refusal)),
    };
    let call = body.call(&auth.caller);
    let answered = app.service().resolve(&call, &located, request, expected, resolution).await?;
    let (request, task) = &answered.value;
    created(&ResolveAnswer { request: RequestView::from(request), task: TaskView::from(task) }, answered.replay)
}

/// List the organization's requests.
///
/// The operators' inbox: oldest first, each with its task.
#[utoipa::path(get, path = "/organizations/{org}/requests", operation_id = "list_inbox", tag = "requests",
    params(("org" = String, Path, description = "The organization's slug"),
        ("status" = Option<String>, Query, description = "Default open"),
        ("kind" = Option<String>, Query, description = "feedback or approval"),
        ("agent_id" = Option<Uuid>, Query, description = "Of this agent's tasks"),
        ("limit" = Option<u32>, Query, description = "1 to 100, default 50"),
        ("cursor" = Option<String>, Query, description = "Of the link to the next page")),
    responses((status = 200, description = "A page of requests; the Link header leads on", body = Vec<InboxView>)))]
pub async fn inbox(State(app): State<App>, auth: Authenticated, query: Query) -> Answer {
    auth.caller.require(Permission::Read)?;
    let mut parameters = query.parameters();
    let status = parameters.parsed::<RequestStatus>("status").unwrap_or(RequestStatus::Open);
    let kind = parameters.parsed::<RequestKind>("kind");
    let agent = parameters.id("agent_id");
    let limit = parameters.limit(PAGE_DEFAULT, app.settings().page_size_max);
    let cursor = parameters.cursor();
    parameters.finish(())?;
    let fingerprint = query.fingerprint();
    let after = match cursor {
        Some(cursor) => {
            let (at, id) = cursor::read(&cursor, &fingerprint)?;
            Some(InboxPage { at, id: RequestId(id) })
        }
        None => None,
    };
    let (rows, next) = app.service().inbox(&auth.caller, status, kind, agent, after, limit).await?;
    let views: Vec<_> = rows
        .iter()
        .map(|row| InboxView { request: RequestView::from(&row.request), task: TaskView::from(&row.task) })
        .collect();
    let next = next.map(|next| query.with(&[("cursor", cursor::write(next.at, next.id.0, &fingerprint))]));
    page(&app, &views, next.as_deref())
}
