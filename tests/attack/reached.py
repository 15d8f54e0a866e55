"""How far the attack came, by the server's own counters.

reached.py URL                 every documented operation has succeeded once: behind refusals nothing is attacked
reached.py --faults URL LOG    no answer was a 5xx, no row was refused by the log store, and the log names no error
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import httpx

#: How the log level is written.
ERROR = re.compile(r"Z\s+ERROR\s")
#: Counters that stay at zero as long as all is well.
ZERO = ("mandate_log_refused_rows_total", "mandate_log_mismatch", "mandate_log_unpublished_rows_total")


class Server:
    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, trust_env=False)
        self.metrics = self.http.get("/metrics").raise_for_status().text

    def answers(self) -> dict[tuple[str, str], set[str]]:
        """The statuses that each route answered."""
        found: dict[tuple[str, str], set[str]] = {}
        for labels in re.findall(r"^mandate_http_requests_total\{(.*)\} \d+", self.metrics, re.MULTILINE):
            label = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            found.setdefault((label["method"], label["route"]), set()).add(label["status"])
        return found

    def operations(self) -> list[tuple[str, str]]:
        paths = self.http.get("/openapi.json").raise_for_status().json()["paths"]
        return [(method.upper(), path) for path, operations in paths.items() for method in operations]

    def not_zero(self) -> list[str]:
        lines = [line for line in self.metrics.splitlines() if line.startswith(ZERO)]
        return [line for line in lines if float(line.rsplit(" ", 1)[1]) != 0]


def reached(server: Server) -> int:
    answers = server.answers()
    operations = server.operations()
    succeeded = {operation for operation, statuses in answers.items() if min(statuses) < "3"}
    missed = [operation for operation in operations if operation not in succeeded]
    for method, path in missed:
        print(f"reached.py: no call of {method} {path} has succeeded", file=sys.stderr)
    verdict = "FAILED" if missed else "ok"
    print(f"test result: {verdict}. {len(operations) - len(missed)} passed; {len(missed)} failed; 0 ignored")
    return 1 if missed else 0


def faults(server: Server, log: Path) -> int:
    faults = [f"{route}: {sorted(statuses)}" for route, statuses in server.answers().items() if max(statuses) >= "5"]
    faults += server.not_zero()
    faults += [line for line in log.read_text().splitlines() if ERROR.search(line)]
    for fault in faults:
        print(f"reached.py: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--faults", url, log]:
            sys.exit(faults(Server(url), Path(log)))
        case [url]:
            sys.exit(reached(Server(url)))
        case _:
            sys.exit(__doc__)
