"""The world that is attacked: keys and tokens of people, and two organizations that their administrators set up.

world.py keys FOLDER                        makes the issuer's key and the people's tokens, before the server starts
world.py seed FOLDER URL                    sets up the organizations over HTTP, once it runs
world.py variables FOLDER                   prints what `mandate dev --env-file` writes
world.py principals FOLDER CALLER STRANGER  writes principals.json, which tells schemathesis who calls

Writes FOLDER/world.json: who may call, with what, and what there is.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ISSUER = "mandate-attack"
AUDIENCE = "mandate"
TOKEN_SECONDS = 6 * 60 * 60
#: Of `acme`: an administrator, who alone can change members, and two people; of `rival`: its administrator.
PEOPLE = ("ada", "grace", "oscar", "mallory")
#: Tasks of `acme` that are there before the attack begins; schemathesis.toml names them.
TASKS = 16
ARTIFACT = b"--- a/tests/login.rs\n+++ b/tests/login.rs\n"
PRICES = {"input": "10", "output": "30", "cache_read": "1", "cache_write": "12.5"}


def keys(folder: Path) -> None:
    key = Ed25519PrivateKey.generate()
    encoding, kind = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    (folder / "people.pem").write_bytes(key.public_key().public_bytes(encoding, kind))
    now = int(time.time())
    claims = {"iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + TOKEN_SECONDS}
    tokens = {person: jwt.encode({**claims, "sub": person}, key, algorithm="EdDSA") for person in PEOPLE}
    write(folder, {"tokens": tokens})


def write(folder: Path, world: dict[str, Any]) -> None:
    (folder / "world.json").write_text(json.dumps(world, indent=2))


class Caller:
    """Someone who calls the routes of an organization."""

    def __init__(self, url: str, organization: str, token: str) -> None:
        self.base = f"{url}/organizations/{organization}"
        headers = {"Authorization": f"Bearer {token}"}
        self.http = httpx.Client(base_url=f"{self.base}/", headers=headers, trust_env=False)

    def call(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        answer = self.http.request(method, path, json=body, **more)
        if not answer.is_success:
            sys.exit(f"world.py: {method} {path}: {answer.status_code} {answer.text}")
        return answer.json()

    def named(self, kind: str, slug: str) -> Any:
        """Makes what needs nothing but a name."""
        return self.call("PUT", f"{kind}/{slug}", {"name": slug.title()})


def token(url: str, account: Any) -> str:
    """An access token of the account that a PUT made."""
    form = {"grant_type": "client_credentials"} | {name: account[name] for name in ("client_id", "client_secret")}
    answer = httpx.post(f"{url}/auth/token", data=form, trust_env=False)
    return str(answer.raise_for_status().json()["access_token"])


def work(person: Caller, harness: Caller, count: int) -> dict[str, dict[str, str]]:
    """Tasks of the reviewer, each with an open session, a question and an approval to give."""
    # What the document's example of a resolution approves.
    digest = f"sha256:{hashlib.sha256(b'hello').hexdigest()}"
    made = {}
    for number in range(count):
        task = {"agent_slug": "reviewer", "title": f"Task {number + 1}", "description": "One of the first."}
        name = person.call("POST", "agent-tasks/", task)["short_id"]
        session = harness.call("POST", f"agent-tasks/{name}/sessions", {"session_key": "first"})["session"]["id"]
        question = {"kind": "feedback", "title": "Go on?", "session_id": session}
        approval = {"kind": "approval", "title": "Merge?", "artifact_digests": [digest], "session_id": session}
        question, approval = (
            harness.call("POST", f"agent-tasks/{name}/requests", asked)["request"]["id"]
            for asked in (question, approval)
        )
        made[name] = {"session": session, "question": question, "approval": approval}
    return made


def operations_on_a_task(url: str) -> list[str]:
    """Those that change one."""
    paths = httpx.get(f"{url}/openapi.json", trust_env=False).raise_for_status().json()["paths"]
    return [
        operation["operationId"]
        for path, operations in paths.items()
        for method, operation in operations.items()
        if "{task}" in path and method in ("post", "put", "delete")
    ]


def seed(folder: Path, url: str) -> None:
    world = read(folder)
    tokens = world["tokens"]
    acme, rival = Caller(url, "acme", tokens["ada"]), Caller(url, "rival", tokens["mallory"])
    for person in ("grace", "oscar"):
        acme.call("PUT", f"members/{person}", {"roles": ["operator", "approver"]})
    project = acme.named("projects", "website")["id"]
    model = {"provider": "openai", "model_id": "gpt-4-1106-preview", "aliases": ["sonnet"]}
    model |= {f"{kind}_cost_per_million": price for kind, price in PRICES.items()}
    model = acme.call("PUT", "models/gpt-4-turbo", model)
    accounts = {slug: acme.named("agents", slug) for slug in ("reviewer", "tester", "expendable", "example")}
    accounts["nightly"] = acme.named("triggers", "nightly")
    acme.named("triggers", "expendable")
    accounts["rival"] = rival.named("agents", "reviewer")
    tokens |= {slug: token(url, account) for slug, account in accounts.items()}
    reviewer = Caller(url, "acme", tokens["reviewer"])
    digest = f"sha256:{hashlib.sha256(ARTIFACT).hexdigest()}"
    for sender in (acme, reviewer):
        sender.call("PUT", f"artifacts/{digest}", content=ARTIFACT, headers={"Content-Type": "text/x-diff"})
    spare = {
        slug: acme.call("POST", f"{kind}/{slug}/credentials")["client_id"]
        for kind, slug in [("agents", "reviewer"), ("agents", "tester"), ("triggers", "nightly")]
    }
    changing = operations_on_a_task(url)
    made = work(acme, reviewer, TASKS + len(changing))
    reserved = dict(zip(changing, list(made)[TASKS:], strict=True))
    usage = {"idempotency_key": "first", "model_id": "sonnet", "tokens_in": 100}
    report = reviewer.call("POST", f"agent-tasks/{next(iter(made))}/usage", usage)["id"]
    write(
        folder,
        world
        | {
            "url": url,
            "accounts": accounts,
            "project": project,
            "model": model["id"],
            "artifact": digest,
            "spare": spare,
            "work": made,
            "reserved": reserved,
            "report": report,
        },
    )


def read(folder: Path) -> Any:
    return json.loads((folder / "world.json").read_text())


def variables(folder: Path) -> None:
    world = read(folder)
    account, tokens = world["accounts"]["example"], world["tokens"]
    values = {
        "URL": world["url"],
        "ORG": "acme",
        "AGENT": "example",
        "MODEL": "gpt-4-turbo",
        "CLIENT_ID": account["client_id"],
        "CLIENT_SECRET": account["client_secret"],
        "TOKEN": tokens["grace"],
        "TOKEN_2": tokens["oscar"],
    }
    for name, value in values.items():
        print(f"export MANDATE_{name}={value}")


def principals(folder: Path, caller: str, stranger: str) -> None:
    """In the form of the Web Fuzzing Commons."""
    tokens = read(folder)["tokens"]

    def principal(name: str, who: str) -> Any:
        return {"name": name, "fixedHeaders": [{"name": "Authorization", "value": f"Bearer {tokens[who]}"}]}

    both = [principal("caller", caller), principal("stranger", stranger)]
    (folder / "principals.json").write_text(json.dumps({"auth": both}))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["keys", folder]:
            keys(Path(folder))
        case ["seed", folder, url]:
            seed(Path(folder), url)
        case ["variables", folder]:
            variables(Path(folder))
        case ["principals", folder, caller, stranger]:
            principals(Path(folder), caller, stranger)
        case _:
            sys.exit(__doc__)
