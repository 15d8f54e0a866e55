"""What schemathesis found, from its report: verdict.py REPORT OUTPUT. One count for each operation, one for chains."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PHASES = ("examples", "coverage", "fuzzing", "stateful")


def faults(found: Any) -> list[str]:
    """What went wrong: operations, chains of them, and the run itself."""
    operations, phases = found["operations"], found["phases"]
    failed = sorted({label for failure in found["failures"] for label in failure["operations"]})
    failed += [f"an error: {error}" for error in found["errors"]]
    if not found["complete"] or operations["tested"] != operations["total"]:
        failed.append(f"{operations['tested']} of {operations['total']} operations were called: {found['stop_reason']}")
    # A failure in a phase is one of an operation's; anything else means that the phase was not played.
    states = {name: phases.get(name, {}).get("status") for name in PHASES}
    failed += [f"{name}: {state}" for name, state in states.items() if state not in ("success", "failure")]
    if found["exit_code"] != 0 and not failed:
        failed.append(f"it ended with {found['exit_code']}")
    return failed


def main(report: Path, output: Path) -> int:
    found = json.loads(report.read_text()) if report.exists() else None
    failed = faults(found) if found else ["it has made no report"]
    counted = found["operations"]["tested"] + 1 if found else 0
    if found:
        calls, operations = found["test_cases"]["generated"], found["operations"]["tested"]
        print(f"schemathesis: {calls} calls of {operations} operations, seed {found['seed']}", file=sys.stderr)
    if failed:
        print(output.read_text() if output.exists() else "", file=sys.stderr)
    for fault in failed:
        print(f"schemathesis: {fault}", file=sys.stderr)
    verdict = "FAILED" if failed else "ok"
    print(f"test result: {verdict}. {max(counted - len(failed), 0)} passed; {len(failed)} failed; 0 ignored")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
