"""Mutants: change the six mechanism modules in small ways, one at a time, and see whether their tests notice.

`uv run --no-sync --with mutmut==3.8.1 python .ci/mutants.py FOLDER --per-module N` copies this commit to FOLDER, draws
N mutants of each module with a fixed seed and runs them; `--write` reads FOLDER again and writes the record. The
tool makes no mutants of decorated functions, nor of anything outside functions.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import random
import subprocess
import sys
import tarfile
from collections import Counter
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "docs/evidence/mutants.json"
SEED = 20260105
MODULES = ("isolation", "automation", "context", "coordination", "tools", "memory")
TESTS = (
    *(f"tests/test_{module}.py" for module in MODULES),
    "tests/test_context_properties.py",
    "tests/test_memory_properties.py",
    "tests/test_advanced_mechanisms.py",
)
# A mutated module imports the tool and is slower; these tests forbid that.
LEFT_OUT = (
    "tests/test_isolation.py::test_the_module_starts_no_process_and_loads_no_foreign_library",
    "tests/test_context.py::test_a_view_costs_what_it_shows",
)
# The limit on a mutant's time is (the time of its tests + constant) * multiplier, and twice that in processor seconds.
SETTINGS = f"""
[tool.mutmut]
source_paths = ["src"]
only_mutate = {[f"src/sovereign_agent/{module}.py" for module in MODULES]}
pytest_add_cli_args = ["-p", "no:cacheprovider", {", ".join(f'"--deselect={test}"' for test in LEFT_OUT)}]
pytest_add_cli_args_test_selection = {list(TESTS)}
timeout_multiplier = 2.0
timeout_constant = 5.0
track_dependencies = false
use_git_change_detection = false
"""
STATUS = {0: "survived", 1: "killed", 3: "killed", 5: "no tests", 33: "no tests"}
STATUS |= dict.fromkeys((-24, 24, 36, 152, 255), "timeout")


def copy(folder: Path) -> None:
    """Copy the commit, with the settings of the tool added."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    with (folder / "pyproject.toml").open("a") as settings:
        settings.write(SETTINGS)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (folder / "commit").write_text(commit.strip())


def mutmut(folder: Path, *names: str) -> int:
    """Run the tool in the copy, with derandomized property tests."""
    environment = {**os.environ, "CI": "true", "PYTHONPATH": ""}
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", "2", *names]
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


def outcomes(folder: Path, module: str) -> dict[str, int | None]:
    """Return the exit code of each mutant, None where it did not run."""
    meta = json.loads((folder / f"mutants/src/sovereign_agent/{module}.py.meta").read_text())
    return dict(sorted(meta["exit_code_by_key"].items()))


def draw(folder: Path, per_module: int) -> list[str]:
    """Draw the mutants: the same ones for the same sources, and a larger draw goes on from a smaller one."""
    drawn: list[str] = []
    for module in MODULES:
        found = outcomes(folder, module)
        names = list(found)
        random.Random(f"{SEED} {module}").shuffle(names)  # noqa: S311 - repeatable on purpose
        drawn += [name for name in names[:per_module] if found[name] is None]
    return drawn


def record(folder: Path) -> dict[str, object]:
    """Count what FOLDER holds."""
    modules: dict[str, dict[str, int]] = {}
    survivors: list[str] = []
    for module in MODULES:
        found = outcomes(folder, module)
        counts = Counter(STATUS.get(code, f"exit {code}") for code in found.values() if code is not None)
        modules[module] = {"made": len(found), "ran": counts.total(), **dict(sorted(counts.items()))}
        survivors += [name for name, code in found.items() if STATUS.get(code or 0) == "survived" and code is not None]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": (folder / "commit").read_text(),
        "tool": f"mutmut {importlib.metadata.version('mutmut')}",
        "seed": SEED,
        "modules": modules,
        "survivors": survivors,
    }


def main() -> None:
    """Read the arguments and do it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--per-module", type=int, default=50)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    if not given.write:
        if not given.folder.exists():
            given.folder.mkdir(parents=True)
            copy(given.folder)
            mutmut(given.folder, "none-of-them")  # only makes the mutants and learns which test reaches which
        mutmut(given.folder, *draw(given.folder, given.per_module))
    else:
        RECORD.write_text(json.dumps(record(given.folder), indent=1) + "\n")


if __name__ == "__main__":
    main()
