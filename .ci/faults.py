"""Faults: count the kills, full disks and hostile arguments that are stood, and the weeks without a violation.

`python .ci/faults.py [--write] [--only PART] [--seeds FIRST LAST]` runs the harness of the tests over all operations
and all functions (`crashes`, `fuzz`), or as many seeds of 21 days as asked; with `--write` the counts are recorded in
`docs/evidence/faults.json`, which an evidence page shows. Each part that is run replaces its own record. A promise that
does not hold ends it, and records nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import record

PACKAGE = "src/sovereign_agent/*.py"
MEASURED = {"crashes": (PACKAGE,), "fuzz": (PACKAGE, "tests/test_hostile.py"), "soak": (PACKAGE,)}
sys.path.insert(0, str(record.ROOT))


def main() -> None:
    """Count, and record what was counted."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--write", action="store_true")
    asked.add_argument("--seeds", nargs=2, type=int, metavar=("FIRST", "LAST"))
    asked.add_argument("--only", choices=PARTS)
    options = asked.parse_args()
    if options.write:
        record.require_commit()
    found = record.read("faults")
    if options.seeds:
        found["soak"] = record.about(*MEASURED["soak"]) | soak(*options.seeds)
    else:
        for part in (options.only,) if options.only else PARTS:
            found[part] = record.about(*MEASURED[part]) | PARTS[part]()
    if options.write:
        record.write("faults", found)
    sys.stdout.write(f"{json.dumps(found, indent=2)}\n")


def crashes() -> dict[str, Any]:
    """Kill, and fill disks, at every point of every operation."""
    from tests.crash_points import MEMORY, OPERATIONS, crash_everywhere  # type: ignore[attr-defined]
    from tests.full_disks import fill_up, small_disk

    found: dict[str, Any] = {"operations": {}}
    for operation in OPERATIONS:
        kills = crash_everywhere(operation)
        row: dict[str, Any] = {"kills": kills.points, "states": list(kills.states)}
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            row["log"] = fill_up(operation, "log", Path(folder)).cases
        with small_disk() as disk:
            row["space"] = None if disk is None else fill_up(operation, "space", disk).cases
        found["operations"][operation.name] = row
    return found


def fuzz() -> dict[str, Any]:
    """Call every public function with one hostile argument at a time, and count how it answers."""
    from tests import test_hostile as hostile  # type: ignore[attr-defined]

    found: dict[str, dict[str, int]] = {}
    for case in hostile.CASES:
        with tempfile.TemporaryDirectory() as folder:
            found[case] = dict(hostile.fuzz_with_ledger(case, Path(folder)))
    found |= {case: dict(hostile.fuzz_without_ledger(case)) for case in hostile.FREE}
    found |= {case: dict(hostile.fuzz_plain(case)) for case in hostile.PLAIN}
    return {"values": len(hostile.HOSTILE), "functions": found}


PARTS = {"crashes": crashes, "fuzz": fuzz}


def soak(first: int, last: int) -> dict[str, Any]:
    """Simulate 21 days with each seed from the first to the one before the last."""
    total: Counter[str] = Counter()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for steps, checked in pool.map(weeks, range(first, last)):
            total.update({"steps": steps, "checks": sum(checked.values())})
    return {"first": first, "seeds": last - first, "days": 21, **total}


def weeks(seed: int) -> tuple[int, dict[str, int]]:
    """Simulate one seed; a violation ends everything."""
    from sovereign_agent.simulation import Setup, simulate

    report = simulate(Setup(seed))
    if report.failure is not None:
        raise SystemExit(f"seed {seed}: {report.failure}; replay it with {report.setup.command}")
    return report.steps, dict(report.checked)


if __name__ == "__main__":
    main()
