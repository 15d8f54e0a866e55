"""What a principal of another organization gets of the first one's: nothing.

    strangers.py FOLDER    with the world.json of a world that runs

Calls every documented operation of `acme` as the people's and the agent's principals of `rival`, and every one of
`rival` that takes an id with an id of `acme`, one at a time. Any 2xx is a failure.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from world import Caller

METHODS = ("get", "put", "post", "delete")


@dataclass
class Operation:
    id: str
    method: str
    #: Behind `/organizations/{org}`.
    path: str
    names: list[str]
    body: Any
    media_type: str

    def call(self, caller: Caller, values: dict[str, str], body: Any = None) -> Any:
        url = caller.base + self.path.format(**values)
        headers = {"Content-Type": self.media_type} if self.media_type else {}
        sent = self.body if body is None else body
        content = b"" if sent is None else json.dumps(sent)
        return caller.http.request(self.method, url, content=content, headers=headers)


def operations(document: Any) -> Iterator[Operation]:
    for path, methods in document["paths"].items():
        prefix, scoped, rest = path.partition("/organizations/{org}")
        for method in METHODS if scoped and not prefix else ():
            if operation := methods.get(method):
                content = operation.get("requestBody", {}).get("content", {})
                media_type = next(iter(content), "")
                names = [part.split("}")[0] for part in rest.split("{")[1:]]
                body = content.get(media_type, {}).get("example")
                yield Operation(operation["operationId"], method.upper(), rest, names, body, media_type)


class Outcome:
    """Counts, and says what went wrong."""

    def __init__(self) -> None:
        self.passed = self.failed = 0

    def of(self, what: str, answer: Any, is_right: Callable[[Any], bool]) -> None:
        if is_right(answer):
            self.passed += 1
        else:
            self.failed += 1
            print(f"strangers.py: {what}: {answer.status_code} {answer.text[:500]}", file=sys.stderr)


def forbidden(answer: Any) -> bool:
    return bool(answer.status_code == 403 and answer.json()["code"] == "organization_forbidden")


def refused(answer: Any) -> bool:
    return bool(400 <= answer.status_code < 500)


def main(folder: Path) -> int:
    world = json.loads((folder / "world.json").read_text())
    url, tokens, outcome = world["url"], world["tokens"], Outcome()
    task, work = next(iter(world["work"].items()))
    foreign = {
        "task": task,
        "other": task,
        "session": work["session"],
        "request": work["question"],
        "person": "grace",
        "agent": world["accounts"]["reviewer"]["id"],
        "trigger": world["accounts"]["nightly"]["id"],
        "project": world["project"],
        "model": world["model"],
        "digest": world["artifact"],
        "client_id": world["spare"]["reviewer"],
    }
    strangers = [Caller(url, "rival", tokens["mallory"]), Caller(url, "rival", tokens["rival"])]
    person, agent = strangers
    all_operations = list(operations(person.http.get(f"{url}/openapi.json").json()))

    # The first organization's routes, with what there is.
    for token in ("mallory", "rival"):
        intruder = Caller(url, "acme", tokens[token])
        for operation in all_operations:
            outcome.of(f"{token}: {operation.id}", operation.call(intruder, foreign), forbidden)

    # One's own routes, with one id of the first organization.
    own_task = person.call("POST", "agent-tasks/", {"agent_slug": "reviewer", "title": "Own", "description": ""})
    own = {"task": own_task["short_id"], "agent": "reviewer", "trigger": "x"}
    # Every organization may have a member of that name, and bytes of that digest, of its own.
    apart = {("put_member", "person"), ("send_artifact", "digest")}
    for operation in all_operations:
        for name in operation.names:
            # Short ids are each organization's own, and the only task here is the one's own.
            values = {**foreign, **own, name: "T-999" if name in ("task", "other") else foreign[name]}
            if (operation.id, name) not in apart:
                for stranger in strangers:
                    outcome.of(f"{operation.id} with a foreign {name}", operation.call(stranger, values), refused)

    # The same in bodies and filters.
    session = agent.call("POST", f"agent-tasks/{own['task']}/sessions", {"session_key": "own"})["session"]["id"]
    named = {operation.id: operation for operation in all_operations}
    new = {"agent_slug": "reviewer", "title": "Own", "description": ""}
    turn = {"type": "turn", "payload": {"body": "Own"}}
    question = {"kind": "feedback", "title": "Own?", "session_id": session}
    for operation_id, stranger, body in [
        ("create_task", person, new | {"project_id": world["project"]}),
        ("create_task", person, new | {"agent_slug": "tester"}),
        ("create_task", person, new | {"agent_slug": world["accounts"]["reviewer"]["id"]}),
        ("reassign_task", person, {"owner": "grace"}),
        ("append_events", agent, {"events": [turn], "session_id": work["session"]}),
        ("report_usage", agent, {"idempotency_key": "own", "model_id": "x", "corrects": world["report"]}),
        ("open_request", agent, question | {"supersedes": work["question"]}),
        ("open_request", agent, question | {"session_id": work["session"]}),
        ("delegate_task", agent, new | {"project_id": world["project"]}),
        ("delegate_task", agent, new | {"session_id": work["session"]}),
        ("set_outcome", agent, {"outcome": "done_acted", "session_id": work["session"]}),
    ]:
        answer = named[operation_id].call(stranger, {**foreign, **own}, body)
        outcome.of(f"{operation_id} of {body}", answer, refused)
    for path in [
        f"agent-tasks/?agent_id={foreign['agent']}",
        f"agent-tasks/?project_id={foreign['project']}",
        f"requests?agent_id={foreign['agent']}",
        f"operations-log?agent_id={foreign['agent']}",
    ]:
        outcome.of(path, person.http.get(path), lambda answer: answer.status_code == 200 and answer.json() == [])
    feed = person.http.get("agent-events?limit=1000").text
    seen = [name for name in (work["session"], foreign["agent"], foreign["project"]) if name in feed]
    outcome.of(f"the feed shows {seen}", person.http.get("agent-events"), lambda _: not seen)

    verdict = "FAILED" if outcome.failed else "ok"
    print(f"test result: {verdict}. {outcome.passed} passed; {outcome.failed} failed; 0 ignored")
    return 1 if outcome.failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
