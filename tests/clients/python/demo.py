"""A whole task, played by an agent and two people with the client that openapi-python-client generates.

Needs the variables that `mandate dev --env-file` writes, and `mandate` on the PATH (or its place in MANDATE_BIN).
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, TypeVar

from mandate_client import AuthenticatedClient, Client
from mandate_client.api.artifacts import read_artifact, send_artifact
from mandate_client.api.auth import issue_token
from mandate_client.api.delegation import delegate_task
from mandate_client.api.events import append_events, follow_events, read_events, read_proof
from mandate_client.api.outcome import set_outcome
from mandate_client.api.requests import open_request, resolve_request
from mandate_client.api.sessions import heartbeat, open_session
from mandate_client.api.tasks import create_task, read_task
from mandate_client.api.usage import report_usage
from mandate_client.models import (
    AppendedView,
    AppendEvents,
    AskPerson,
    CreateTask,
    DelegateTask,
    EventView,
    FeedEntryView,
    GrantName,
    HarnessEventName,
    NewArtifact,
    NewEvent,
    NewEventPayload,
    OpenSession,
    OutcomeName,
    OutcomeResult,
    Problem,
    ProofView,
    ReportUsage,
    RequestAnswer,
    RequestKindName,
    ResolutionName,
    Resolve,
    ResolveAnswer,
    SessionAnswer,
    SetOutcome,
    StoredArtifactView,
    TaskState,
    TaskView,
    TokenAnswer,
    TokenRequest,
    UsageAnswer,
)
from mandate_client.types import File, Response

URL, ORG, AGENT = os.environ["MANDATE_URL"], os.environ["MANDATE_ORG"], os.environ["MANDATE_AGENT"]
PATCH = b"--- a/tests/login.py\n+++ b/tests/login.py\n"
#: 12,000 × 10 + 900 × 30 + 5,000 × 1 US dollars per million.
COST = "0.152"

T = TypeVar("T")


def is_a(kind: type[T], answer: Response[Any], status: int) -> T:
    """The answer's body, which must be of that kind and come with that status."""
    assert answer.status_code == status, f"{status} expected, {answer.status_code} came: {answer.content!r}"
    assert isinstance(answer.parsed, kind), answer.parsed
    return answer.parsed


def are(kind: type[T], answer: Response[Any]) -> list[T]:
    """A page's entries."""
    return [entry for entry in is_a(list, answer, 200) if isinstance(entry, kind)]


def refused(answer: Response[Any], status: int, code: str) -> None:
    problem = is_a(Problem, answer, status)
    assert problem.code == code, problem


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def event(kind: HarnessEventName, **payload: Any) -> NewEvent:
    return NewEvent(type_=kind, payload=NewEventPayload.from_dict(payload))


def agents_token() -> str:
    """Service accounts get their short-lived tokens from Mandate itself."""
    credential = os.environ["MANDATE_CLIENT_ID"], os.environ["MANDATE_CLIENT_SECRET"]
    grant = TokenRequest(GrantName.CLIENT_CREDENTIALS, client_id=credential[0], client_secret=credential[1])
    return is_a(TokenAnswer, issue_token.sync_detailed(client=Client(URL), body=grant), 200).access_token


ada = AuthenticatedClient(URL, os.environ["MANDATE_TOKEN"])
grace = AuthenticatedClient(URL, os.environ["MANDATE_TOKEN_2"])
agent = AuthenticatedClient(URL, agents_token())


def created() -> str:
    """A person creates a task and says what it may cost."""
    title = "Fix the flaky login test"
    wanted = CreateTask(agent_slug=AGENT, title=title, description="It fails one time in ten.", budget="2.00")
    task = is_a(TaskView, create_task.sync_detailed(ORG, client=ada, body=wanted), 201)
    assert (task.status, task.budget) == ("queued", "2")
    return task.short_id


def worked(task: str) -> Any:
    """The agent opens a session, appends what it does and reports what it cost."""
    opening = OpenSession(session_key="python-1", harness_instance="demo.py")
    opened = is_a(SessionAnswer, open_session.sync_detailed(ORG, task, client=agent, body=opening), 201)
    session = opened.session.id
    state = is_a(TaskState, heartbeat.sync_detailed(ORG, task, session, client=agent), 200)
    assert (state.status, state.control, state.budget_remaining) == ("running", "run", "2")
    batch = AppendEvents(
        session_id=session,
        events=[
            event(HarnessEventName.PHASE_CHANGED, phase="investigate", furthest_milestone="reproduced"),
            event(HarnessEventName.TURN, body="The test does not wait for the redirect."),
            event(HarnessEventName.TOOL_CALLED, tool="shell", mutating=False, arguments={"command": "grep -rn sleep"}),
        ],
    )
    appended = is_a(AppendedView, append_events.sync_detailed(ORG, task, client=agent, body=batch), 201)
    assert [entry.type_ for entry in appended.written] == ["phase.changed", "turn", "tool.called"]
    report = ReportUsage(
        model_id=os.environ["MANDATE_MODEL"],
        tokens_in=12_000,
        tokens_out=900,
        cache_read_tokens=5_000,
        idempotency_key="python-1-call-1",
        session_id=session,
    )
    first = is_a(UsageAnswer, report_usage.sync_detailed(ORG, task, client=agent, body=report), 201)
    again = report_usage.sync_detailed(ORG, task, client=agent, body=report)
    repeat = is_a(UsageAnswer, again, 200)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert (first.cost, repeat.task.cost_total) == (COST, COST), "the same report counts once"
    return session


def asked(task: str, question: AskPerson) -> Any:
    answer = is_a(RequestAnswer, open_request.sync_detailed(ORG, task, client=agent, body=question), 201)
    assert answer.task.status == "blocked"
    return answer.request.id


def decided(task: str, session: Any) -> None:
    """The agent asks; exactly one person answers."""
    question = asked(
        task,
        AskPerson(
            kind=RequestKindName.FEEDBACK,
            title="Raise the timeout or wait for the redirect?",
            options=["timeout", "redirect"],
            session_id=session,
        ),
    )
    answer = Resolve(status=ResolutionName.ANSWERED, choice="redirect")
    resolved = resolve_request.sync_detailed(ORG, task, question, client=grace, body=answer)
    assert is_a(ResolveAnswer, resolved, 201).request.resolved_by is not None
    refused(resolve_request.sync_detailed(ORG, task, question, client=ada, body=answer), 409, "request_resolved")


def approved(task: str, session: Any) -> str:
    """The agent asks to merge a patch; a person approves the very bytes that she read."""
    digest = digest_of(PATCH)
    patch = File(io.BytesIO(PATCH))
    kept = is_a(StoredArtifactView, send_artifact.sync_detailed(ORG, digest, client=agent, body=patch), 201)
    request = asked(
        task,
        AskPerson(
            kind=RequestKindName.APPROVAL,
            title="Merge the fix?",
            why="All checks are green.",
            session_id=session,
            artifact_digests=[digest],
            artifacts=[NewArtifact(digest=digest, name="fix.patch", media_type=kept.media_type, size=kept.size)],
        ),
    )
    read = is_a(File, read_artifact.sync_detailed(ORG, digest, client=ada), 200).payload.read()
    wrong = Resolve(status=ResolutionName.APPROVED, artifact_digests=[digest_of(b"another patch")])
    right = Resolve(status=ResolutionName.APPROVED, artifact_digests=[digest_of(read)])
    refused(resolve_request.sync_detailed(ORG, task, request, client=ada, body=wrong), 409, "digest_mismatch")
    refused(resolve_request.sync_detailed(ORG, task, request, client=agent, body=right), 403, "person_required")
    resolved = resolve_request.sync_detailed(ORG, task, request, client=ada, body=right)
    assert is_a(ResolveAnswer, resolved, 201).request.status == "approved"
    return digest


def delegated(task: str, session: Any) -> None:
    """A part of the budget goes to a child; what it does not spend comes back."""
    part = DelegateTask(
        agent_slug=AGENT,
        title="Check the other tests",
        description="Look for the same race.",
        budget="0.25",
        session_id=session,
    )
    child = is_a(TaskView, delegate_task.sync_detailed(ORG, task, client=agent, body=part), 201)
    parent = is_a(TaskView, read_task.sync_detailed(ORG, task, client=ada), 200)
    assert (parent.set_aside, parent.budget_remaining) == ("0.25", "1.598")
    ending = SetOutcome(outcome=OutcomeName.DONE_ACTED)
    is_a(TaskState, set_outcome.sync_detailed(ORG, child.short_id, client=agent, body=ending), 200)
    waited = read_events.sync_detailed(ORG, task, client=agent, type_=["child.closed"], wait=20)
    assert len(are(EventView, waited)) == 1


def closed(task: str, session: Any, digest: str) -> TaskView:
    """The agent ends the task. Nothing that is closed reopens."""
    result = OutcomeResult.from_dict({"summary": "The test waits for the redirect.", "artifacts": [digest]})
    ending = SetOutcome(outcome=OutcomeName.DONE_ACTED, result=result, session_id=session)
    state = is_a(TaskState, set_outcome.sync_detailed(ORG, task, client=agent, body=ending), 200)
    assert (state.status, state.outcome, state.budget_remaining) == ("closed", "done_acted", "1.848")
    other = SetOutcome(outcome=OutcomeName.NO_REASON_TO_RUN)
    refused(set_outcome.sync_detailed(ORG, task, client=agent, body=other), 409, "task_closed")
    return is_a(TaskView, read_task.sync_detailed(ORG, task, client=ada), 200)


def log_of(task: str) -> list[EventView]:
    """The whole log, page by page."""
    log: list[EventView] = []
    while True:
        after = log[-1].seq if log else 0
        page = are(EventView, read_events.sync_detailed(ORG, task, client=ada, after_seq=after, limit=5))
        if not page:
            return log
        log += page


def feed_until(event_id: Any) -> list[FeedEntryView]:
    """The organization's events up to the one of that id."""
    entries: list[FeedEntryView] = []
    while not entries or entries[-1].event_id != event_id:
        after = entries[-1].cursor if entries else ""
        # One entry a page would do too; what follows the event is of no interest here.
        for entry in are(FeedEntryView, follow_events.sync_detailed(ORG, client=ada, after=after, wait=20)):
            entries.append(entry)
            if entry.event_id == event_id:
                break
    return entries


def verified(task: str, head: str) -> None:
    """Exports the log and has it proven without the server, by the head that the server signs."""
    proof = is_a(ProofView, read_proof.sync_detailed(ORG, task, client=ada), 200)
    assert proof.log_digest == head
    path = f"/organizations/{ORG}/agent-tasks/{task}/events"
    lines = ada.get_httpx_client().get(path, headers={"Accept": "application/x-ndjson"})
    with tempfile.TemporaryDirectory() as folder:
        export = Path(folder, "log.ndjson")
        export.write_bytes(lines.raise_for_status().content)
        subprocess.run([os.environ.get("MANDATE_BIN", "mandate"), "verify", export, "--head", head], check=True)


def main() -> None:
    task = created()
    session = worked(task)
    decided(task, session)
    digest = approved(task, session)
    delegated(task, session)
    ended = closed(task, session, digest)
    log = log_of(task)
    assert [entry.seq for entry in log] == list(range(1, ended.last_seq + 1)), "a log has no gap"
    assert log[-1].digest == ended.log_digest
    fed = [entry.seq for entry in feed_until(log[-1].event_id) if entry.task.id == ended.id]
    assert fed == [entry.seq for entry in log], "the feed has every event, in order"
    verified(task, ended.log_digest)
    print(f"{task} closed as {ended.outcome}: {ended.last_seq} events, {ended.cost_total} of {ended.budget} US dollars")


if __name__ == "__main__":
    main()
