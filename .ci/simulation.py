"""Break the package on purpose and see which invariant notices: `python .ci/simulation.py [--write] [ID]...`.

Each mutation of tests/mutations.toml that concerns a running system is applied to a copy, and seeds are simulated until
an invariant does not hold, for 60 seconds at most. `--write` keeps what was found in tests/simulation.toml; a mutation
that is listed there under `not_simulated`, with its reason, is left out.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from bookproof.mutations import Mutation, load_mutations

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "tests" / "simulation.toml"
DAYS = 2
SECONDS = 60


def mutations() -> dict[str, Mutation]:
    """Return every mutation by its id."""
    return {mutation.id: mutation for mutation in load_mutations(ROOT)[0]}


def table() -> dict[str, list[dict[str, str]]]:
    """Return what was found where, and what is not looked for."""
    found: dict[str, list[dict[str, str]]] = tomllib.loads(TABLE.read_text())
    return found


def broken(mutation: Mutation, folder: Path) -> Path:
    """Copy the package into a folder, break the copy, and return the folder."""
    shutil.copytree(
        ROOT / "src" / "sovereign_agent", folder / "sovereign_agent", ignore=shutil.ignore_patterns("*.pyc")
    )
    file = folder / Path(mutation.file).relative_to("src")
    file.write_text(mutation.applied(file.read_text()))
    return folder


def run(folder: Path, *arguments: str) -> tuple[int, dict[str, object]]:
    """Simulate with the package in a folder; returns the exit status and the report."""
    done = subprocess.run(
        [sys.executable, "-m", "sovereign_agent", "simulate", "--json", *arguments],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode not in (0, 1) or not done.stdout:
        raise RuntimeError(done.stderr)
    report: dict[str, object] = json.loads(done.stdout)
    return done.returncode, report


def find(mutation: Mutation, first_seed: int = 0) -> dict[str, object] | None:
    """Return seed, step and invariant at which a broken copy is noticed; None if it was not in time."""
    with tempfile.TemporaryDirectory() as folder:
        broken(mutation, Path(folder))
        until = time.monotonic() + SECONDS
        seed = first_seed
        while time.monotonic() < until:
            status, report = run(Path(folder), "--seed", str(seed), "--days", str(DAYS), "--no-shrink")
            failure = report["failure"]
            if status and isinstance(failure, dict):
                return {
                    "mutation": mutation.id,
                    "invariant": failure["invariant"],
                    "seed": seed,
                    "step": failure["step"],
                    "detail": failure["detail"],
                }
            seed += 1
    return None


def main(arguments: list[str]) -> int:
    """Look for each mutation, print what was found, and write it if asked."""
    chosen = [argument for argument in arguments if not argument.startswith("--")]
    left_out = {entry["mutation"] for entry in table()["not_simulated"]}
    known = {entry["mutation"]: entry for entry in table().get("found", [])}
    status = 0
    for name, mutation in mutations().items():
        if name in left_out or (chosen and name not in chosen):
            continue
        found = find(mutation)
        print(name, found or f"NOT FOUND in {SECONDS} s", flush=True)  # noqa: T201 - a command
        if found is None:
            status = 1
        else:
            known[name] = {key: value for key, value in found.items() if key != "detail"}  # type: ignore[misc]
    if "--write" in arguments:
        head = TABLE.read_text().partition("# Found\n")[0]
        entries = [
            "[[found]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in known[name].items())
            for name in mutations()
            if name in known
        ]
        TABLE.write_text(f"{head}# Found\n\n" + "\n".join(entries))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
