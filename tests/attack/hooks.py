"""What schemathesis is told of the world (world.py), and what is checked of every answer beside its own checks."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import schemathesis

WORLD = json.loads(Path(os.environ["ATTACK_WORLD"]).read_text())
#: What a payload of each type must have beside whatever else it holds (openapi/events).
REQUIRED = {
    "turn": {"body": "I look."},
    "tool.called": {"tool": "shell", "mutating": False},
    "phase.changed": {"phase": "investigate"},
    "todos.updated": {"todos": []},
    "check.reported": {"name": "tests", "verdict": "pass"},
}
#: Whether the caller belongs to another organization than the one that is attacked.
IS_STRANGER = os.environ["ATTACK_CALLER"] == "stranger"


@schemathesis.hook
def before_call(_context: Any, case: Any, _kwargs: Any) -> None:
    """Lets ids that only the server can give name what there is, in all but a quarter of the calls.

    Well-formed ids that name nothing are 404 or 422, and behind them nothing would be attacked. Chains of calls
    (stateful) bring ids of their own, and what is to be wrong stays wrong.
    """
    meta = case.meta
    if meta is None or not meta.generation.mode.is_positive or meta.phase.name.value == "stateful":
        return
    path = case.path_parameters or {}
    chance = int.from_bytes(hashlib.sha256(repr((path, case.body)).encode()).digest()) % 4
    if chance == 0:
        return
    operation = case.operation.definition.raw.get("operationId")
    if chance == 1 and operation in WORLD["reserved"]:
        # However many tasks other calls have ended, this one is open until this operation ends it.
        path["task"] = WORLD["reserved"][operation]
    task = WORLD["work"].get(path.get("task"), {})
    if isinstance(case.body, dict) and "session_id" in case.body:
        # Of a task that is not the world's there is none: then it is as well to name none.
        case.body["session_id"] = task.get("session")
    if isinstance(case.body, dict) and {"idempotency_key", "request_key"} & case.body.keys():
        # A key stands in the body or in the header; two that differ are a fault.
        case.headers.pop("Idempotency-Key", None)
    if "session" in path and task:
        path["session"] = task["session"]
    match operation:
        case "append_events" if isinstance(case.body, dict):
            for event in case.body["events"]:
                event["payload"] = event["payload"] | REQUIRED[event["type"]]
                # Only the past has happened.
                event.pop("at", None)
        case "withdraw_request" if task:
            path["request"] = task["question"]
        case "resolve_request" if task:
            path["request"] = task["approval"]
        case "associate_project" | "dissociate_project":
            path["project"] = WORLD["project"]
        case "revoke_agent_credential" if path["agent"] in WORLD["spare"]:
            path["client_id"] = WORLD["spare"][path["agent"]]
        case "revoke_trigger_credential" if path["trigger"] in WORLD["spare"]:
            path["client_id"] = WORLD["spare"][path["trigger"]]
        case "read_artifact":
            path["digest"] = WORLD["artifact"]
        case "send_artifact" if isinstance(case.body, (str, bytes)):
            body = case.body.encode() if isinstance(case.body, str) else case.body
            path["digest"] = f"sha256:{hashlib.sha256(body).hexdigest()}"


@schemathesis.check
def strangers_get_nothing(_ctx: Any, response: Any, case: Any) -> None:
    """A principal of another organization is answered nothing but refusals."""
    # A preflight has no caller.
    if IS_STRANGER and case.operation.path.startswith("/organizations/") and response.request.method != "OPTIONS":
        assert response.status_code >= 400, f"a stranger is answered {response.status_code}"


@schemathesis.check
def a_refused_body_changes_nothing(_ctx: Any, response: Any, case: Any) -> None:
    """Where a first call and its repeat are both 200, a body that breaks the schema is a repeat or refused."""
    is_negative = case.meta is not None and case.meta.generation.mode.is_negative
    # Another method than the operation's is another call.
    is_call = response.request.method == case.operation.method.upper()
    if not (is_negative and is_call and response.status_code == 200):
        return
    match case.operation.definition.raw.get("operationId"):
        case "reply_to_task":
            assert "idempotency-replayed" in response.headers, "it was written"
        case "set_outcome":
            body = case.body if isinstance(case.body, dict) else {}
            recorded = {"outcome": body.get("outcome"), "outcome_reason": body.get("reason")}
            answered = {name: response.json()[name] for name in recorded}
            assert answered == recorded, f"{recorded} was recorded as {answered}"
