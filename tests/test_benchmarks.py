"""The benchmark command still measures every row of its table; the figures themselves are not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(__file__).parent.parent / "benchmarks" / "run.py"

ROWS = [
    "opening an existing ledger",
    "sovereign-agent mechanisms as a process",
    "discover, words in every tool",
    "ToolCatalog construction",
    "run_all_due, 10 due",
    "claim + finish, rate against a bare loop",
    "8 processes together, rate against one",
    "render_context",
    "compact_one, cost against 1/100 of the rows",
    "append_message, cost against 1/1000 of the rows",
    "recall, warm",
    "recall, warm, a query word in every memory",
    "recall without numpy",
    "first recall in a new process",
    "memory of the first recall / raw vectors",
    "recall after another connection stored one / first recall",
]


def test_the_quick_run_measures_every_row(tmp_path: Path) -> None:
    """The run itself fails where recall differs from the plain definition or misses what another connection stored."""
    pytest.importorskip("numpy")
    written = tmp_path / "benchmarks.json"
    subprocess.run([sys.executable, str(COMMAND), "--quick", "-o", str(written)], check=True, timeout=300)
    found = json.loads(written.read_text())
    assert found["quick"] is True
    assert [row["operation"] for row in found["rows"]] == ROWS
    assert all(row["holds"] is None and row["figure"] > 0 for row in found["rows"]), "small sizes give no verdict"
