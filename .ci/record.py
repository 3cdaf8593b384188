"""Records: what ran once and at length, on which machine, at which commit, and of which files it speaks.

A command takes `about` before it begins and calls `write` at its end; a page shows the record in `docs/evidence` with
`where` and `since`. A record names a commit, so nothing is recorded from a tree that differs from it in more than
records. It proves nothing: whoever doubts it runs the command again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sqlite3
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs/evidence"
NAMES = {
    "browser": "{}",
    "processor": "{}",
    "cores": "{} cores",
    "system": "{}",
    "python": "Python {}",
    "sqlite": "SQLite {}",
    "load": "load average {}",
}
"""What a page says of a machine, in this order, where the record has it."""
_MANY = 6
"""So many files are no longer listed in a sentence."""


def about(*measured: str, **machine: object) -> dict[str, Any]:
    """Return when, where and of what a run is.

    Parameters:
        measured: Files on which the result depends most, as globs from the root of the repository.
        machine: More facts about the machine, such as the version of a browser.
    """
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": _git("rev-parse", "HEAD"),
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
            "system": f"{platform.system()} {platform.release().partition('-')[0]}",
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            **machine,
        },
        "measured_files": list(measured),
        "measured_digest": digest(measured),
    }


def write(name: str, record: dict[str, Any]) -> None:
    """Keep a record as `docs/evidence/<name>.json`."""
    require_commit()
    (FOLDER / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n", "utf-8")


def read(name: str) -> dict[str, Any]:
    """Return the record of this name; empty if there is none yet."""
    path = FOLDER / f"{name}.json"
    return dict(json.loads(path.read_text("utf-8"))) if path.is_file() else {}


def require_commit() -> None:
    """Exit if the tree differs from its commit in anything but records."""
    if changes := _git("status", "--porcelain", "--", ".", ":!docs/evidence/*.json"):
        raise SystemExit(f"a record names a commit, and the tree differs from it:\n{changes}")


def digest(measured: Sequence[str]) -> str:
    """Return one sha256 over the content of the files, glob by glob and each in the order of the names."""
    total = hashlib.sha256()
    for pattern in measured:
        found = sorted(ROOT.glob(pattern))
        if not found:
            raise FileNotFoundError(f"no file is called {pattern}")
        for path in found:
            total.update(path.read_bytes())
    return total.hexdigest()


def where(record: dict[str, Any]) -> str:
    """Return one sentence for a page: when and where a run was made."""
    machine = record["machine"]
    told = [form.format(machine[name]) for name, form in NAMES.items() if name in machine]
    return f"{record['date']}, commit `{record['commit'][:12]}`, {', '.join(told)}.\n"


def since(record: dict[str, Any]) -> str:
    """Return one sentence for a page: whether the record still speaks of the files of this commit."""
    files = record["measured_files"]
    names = ", ".join(f"`{name}`" for name in files) if len(files) < _MANY else f"{len(files)} that the record names"
    if stale(record):
        return f"\n**The measured files have changed since** ({names})."
    return f"\nThe measured files are the same at this commit ({names})."


def stale(record: dict[str, Any]) -> bool:
    """Return whether a measured file has changed, or is gone, since the run."""
    try:
        return digest(record["measured_files"]) != str(record["measured_digest"])
    except FileNotFoundError:
        return True


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
