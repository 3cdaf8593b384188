"""The benchmark command still measures every row of its table; the figures themselves are not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHARTS = {"recall, by memories", "transcripts, by rows", "discover, by tools", "watchers of which 10 are due"}
COMMAND = Path(__file__).parent.parent / "benchmarks" / "run.py"

ROWS = [
    "sovereign-agent mechanisms as a process",
    "discover",
    "discover, each word in every tool",
    "ToolCatalog, construction",
    "run_all_due, 10 due",
    "claim + finish, rate against a bare loop",
    "8 processes together, rate against one",
    "render_context",
    "compact_one, cost against 1/100 of the rows",
    "append_message, cost against 1/1000 of the rows",
    "recall, warm",
    "recall, warm, a query word in every memory",
    "queries on which both indexes equal the plain definition",
    "recall without numpy",
    "plain definition / recall without numpy",
    "first recall in a new process",
    "memory of the first recall / raw vectors",
    "recall while another process stores / first recall",
    "opening an existing ledger",
]


def test_the_quick_run_measures_every_row(tmp_path: Path) -> None:
    """The run itself ends where a fast path differs from the plain definition or misses what was stored meanwhile."""
    pytest.importorskip("numpy")
    written = tmp_path / "benchmarks.json"
    subprocess.run([sys.executable, str(COMMAND), "--quick", "-o", str(written)], check=True, timeout=300)
    found = json.loads(written.read_text())
    assert found["quick"] is True
    assert found["measured_files"] == ["src/sovereign_agent/*.py", "benchmarks/*.py"]
    assert [row["operation"] for row in found["rows"]] == ROWS
    assert all(row["holds"] is None and row["figure"] > 0 for row in found["rows"]), "small sizes give no verdict"
    assert {line["chart"] for line in found["growth"]} == CHARTS
    assert all(len(line["points"]) >= 2 and min(map(min, line["points"])) > 0 for line in found["growth"])
    assert set(found["ranking"]) == {"tools", "memories"}


def test_a_quick_run_is_no_record() -> None:
    done = subprocess.run(
        [sys.executable, str(COMMAND), "--quick", "--write"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no record" in done.stderr
