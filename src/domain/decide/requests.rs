//! Questions to people: opened, withdrawn, resolved, expired.

use std::time::Duration;

use crate::domain::aggregate::Aggregate;
use crate::domain::change::{Context, Decision, Draft};
use crate::domain::command::{NewRequest, NewResolution};
use crate::domain::ids::{PersonId, RequestId, SessionId};
use crate::domain::outcome::{Ending, OutcomeReason};
use crate::domain::payload::{Payload, RequestOpened, RequestResolved};
use crate::domain::refusal::{Checked, Refusal};
use crate::domain::request::{Request, RequestKind, RequestStatus};
use crate::domain::status::StateReason;

/// The furthest that a request may expire ahead.
pub const REQUEST_TTL_MAX: Duration = Duration::from_hours(90 * 24);

/// Opens a request. It voids the one that it supersedes: the one it names, or the open one of the same key. The same
/// key with the same digests changes nothing.
pub(super) fn open(
    base: &Aggregate,
    session: Checked<Option<SessionId>>,
    supersedes: Option<RequestId>,
    request: Checked<Box<NewRequest>>,
    context: &mut Context<'_>,
) -> Result<Decision, Refusal> {
    if let Ok(new) = &request {
        let key = new.request_key.as_deref();
        if base.requests().iter().any(|old| old.repeats(key, &new.artifact_digests)) {
            return Ok(Decision::Unchanged);
        }
    }
    let session = base.named_session(session, false)?;
    // What it supersedes is the state of a request, which ranks before the rest of the body.
    if let Some(old) = supersedes {
        let old = base.request(old).ok_or_else(|| Refusal::invalid("/supersedes", "names no request of this task"))?;
        if !old.is_open() {
            return Err(settled(old));
        }
    }
    let new = *request?;
    let mut draft = Draft::of(base, context);
    let expires_at = new.expires_at.unwrap_or_else(|| draft.now().plus(new.ttl));
    let id = RequestId(draft.new_id());
    let same_key = base
        .requests()
        .iter()
        .find(|request| request.is_open() && new.request_key.is_some() && request.request_key == new.request_key)
        .map(|request| request.id);
    let replaced = supersedes.or(same_key);
    for old in [supersedes, same_key].into_iter().flatten() {
        // Both may name the same request.
        if draft.next().request(old).is_some_and(Request::is_open) {
            draft.guards().unexpired.push(old);
            draft.void(old, Some(id))?;
        }
    }
    let opened = RequestOpened {
        request_id: id,
        kind: new.kind,
        title: new.title,
        why: new.why,
        options: new.options,
        artifacts: new.artifacts,
        artifact_digests: new.artifact_digests,
        expires_at,
        request_key: new.request_key,
        supersedes: replaced,
    };
    draft.request(id, &Payload::RequestOpened(Box::new(opened)), session)?;
    draft.settle(StateReason::RequestOpened)?;
    super::sign_of_life(&mut draft, session);
    Ok(draft.finish())
}

/// The refusal that names how a request was settled.
fn settled(request: &Request) -> Refusal {
    match request.status {
        RequestStatus::Expired => Refusal::RequestExpired(request.expires_at),
        status => Refusal::RequestResolved {
            status,
            resolved_by: request.resolved_by.clone(),
            resolved_at: request.resolved_at,
            superseded_by: request.superseded_by,
        },
    }
}

/// The harness takes a request back; one that is void already changes nothing.
pub(super) fn withdraw(
    base: &Aggregate,
    id: RequestId,
    session: Checked<Option<SessionId>>,
    context: &mut Context<'_>,
) -> Result<Decision, Refusal> {
    let request = base.request(id).ok_or(Refusal::RequestNotFound)?;
    match request.status {
        RequestStatus::Void => return Ok(Decision::Unchanged),
        RequestStatus::Open => {}
        _ => return Err(settled(request)),
    }
    let session = base.named_session(session, false)?;
    let mut draft = Draft::of(base, context);
    draft.guards().unexpired.push(id);
    draft.void(id, None)?;
    draft.settle(StateReason::RequestResolved)?;
    super::sign_of_life(&mut draft, session);
    Ok(draft.finish())
}

/// A person resolves a request. Exactly one resolution wins; the same person's same one again changes nothing.
///
/// The precondition ranks behind the request's state and before what the person says: a repeat is answered although its
/// own first call moved the task, and who looked at an old version is told so before anything else. The commit compares
/// the version once more.
pub(super) fn resolve(
    base: &Aggregate,
    id: RequestId,
    person: &PersonId,
    expected: Option<&[i64]>,
    resolution: Checked<NewResolution>,
    context: &mut Context<'_>,
) -> Result<Decision, Refusal> {
    let request = base.request(id).ok_or(Refusal::RequestNotFound)?;
    if !request.is_open() {
        let same = resolution.is_ok_and(|new| is_repeat(request, person, &new));
        return if same { Ok(Decision::Unchanged) } else { Err(settled(request)) };
    }
    let last_seq = base.task().facts().last_seq;
    if expected.is_some_and(|versions| !versions.contains(&last_seq)) {
        return Err(Refusal::PreconditionFailed { last_seq });
    }
    let new = resolution?;
    check(request, &new)?;
    let resolved = RequestResolved {
        request_id: id,
        status: new.status,
        answer: new.answer,
        choice: new.choice,
        constraints: new.constraints,
        artifact_digests: request.artifact_digests.clone(),
        resolved_by: Some(person.to_string()),
        superseded_by: None,
    };
    let mut draft = Draft::of(base, context);
    // Judged by the database's clock, in the statement that resolves.
    draft.guards().unexpired.push(id);
    draft.request(id, &Payload::RequestResolved(Box::new(resolved)), None)?;
    draft.settle(StateReason::RequestResolved)?;
    Ok(draft.finish())
}

fn is_repeat(request: &Request, person: &PersonId, new: &NewResolution) -> bool {
    let Some(old) = &request.resolution else { return false };
    request.resolved_by.as_deref() == Some(person.as_str())
        && request.status == new.status
        && old.answer == new.answer
        && old.choice == new.choice
        && old.constraints == new.constraints
        && new.artifact_digests.as_deref().is_none_or(|digests| request.binds_to(digests))
}

fn check(request: &Request, new: &NewResolution) -> Result<(), Refusal> {
    let choice_fits = new.choice.as_ref().is_none_or(|choice| request.options.contains(choice));
    match (request.kind, new.status) {
        (_, RequestStatus::Answered | RequestStatus::Approved | RequestStatus::Rejected) if !choice_fits => {
            return Err(Refusal::invalid("/choice", "is none of the request's options"));
        }
        (RequestKind::Feedback, RequestStatus::Answered) => {
            if new.choice.is_none() && new.answer.is_none() {
                return Err(Refusal::invalid("/answer", "an answer, or one of the options as choice, is required"));
            }
        }
        (RequestKind::Approval, RequestStatus::Approved | RequestStatus::Rejected) => {
            let needs_digests = new.status == RequestStatus::Approved;
            let fits = match &new.artifact_digests {
                Some(digests) => request.binds_to(digests),
                None => !needs_digests,
            };
            if !fits {
                return Err(Refusal::DigestMismatch(request.artifact_digests.clone()));
            }
        }
        (RequestKind::Feedback, _) => {
            return Err(Refusal::invalid("/status", "feedback is answered"));
        }
        (RequestKind::Approval, _) => {
            return Err(Refusal::invalid("/status", "an approval is approved or rejected"));
        }
    }
    Ok(())
}

/// Time expires requests, and with them the task: silence is never consent and never hangs a task.
pub(super) fn expire(base: &Aggregate, due: &[RequestId], context: &mut Context<'_>) -> Result<Decision, Refusal> {
    let mut expired: Vec<_> =
        base.requests().iter().filter(|request| request.is_open() && due.contains(&request.id)).cloned().collect();
    expired.sort_by_key(|request| (request.expires_at, request.id));
    let Some(first) = expired.first() else { return Ok(Decision::Unchanged) };
    let reason = match first.kind {
        RequestKind::Feedback => OutcomeReason::FeedbackExpired,
        RequestKind::Approval => OutcomeReason::ApprovalExpired,
    };
    let mut draft = Draft::of(base, context);
    for request in &expired {
        draft.expire(request)?;
    }
    draft.close(Ending::because(reason), None, None)?;
    Ok(draft.finish())
}
