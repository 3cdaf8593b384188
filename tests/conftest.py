"""What every test may use: a settable clock, and ledgers that are closed afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sovereign_agent.clock import Clock
from sovereign_agent.ids import SeededIds
from sovereign_agent.ledger import Ledger

START = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)

try:
    import hypothesis
except ImportError:  # the proof pack runs without it
    pass
else:
    hypothesis.settings.register_profile(
        "default",
        deadline=None,
        derandomize="CI" in os.environ,
        max_examples=40,
        suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
    )
    hypothesis.settings.load_profile("default")


class SettableClock:
    """A clock that moves only when a test says so."""

    def __init__(self, now: datetime = START) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now


def run_as_nobody(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a child that is not root, so that file modes count; `sys.argv[1:]` are the arguments.

    The package is imported before the change of user, since the interpreter itself may live where only root can read.
    """
    start = (
        "import os, sys, subprocess, encodings.idna, urllib.parse, sovereign_agent.ledger\n"
        "if os.getuid() == 0:\n    os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", start + code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def as_nobody() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run_as_nobody`, for tests that root would pass by being root."""
    return run_as_nobody


@pytest.fixture
def open_to_all(tmp_path: Path) -> Path:
    """The test's directory, which every user may enter."""
    for folder in (*tmp_path.parents, tmp_path):
        if folder == tmp_path or folder.name.startswith(("pytest-", "popen-")):  # of pytest, and of each of its workers
            folder.chmod(0o755)
    return tmp_path


@pytest.fixture
def T0() -> datetime:  # noqa: N802 - reads as the instant it is
    """The instant at which the clock of every test starts."""
    return START


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def open_ledger(tmp_path: Path, clock: Clock) -> Iterator[Callable[..., Ledger]]:
    """Open ledgers under the test's own directory; every one is closed when the test ends."""
    opened: list[Ledger] = []

    def open_one(root: Path = tmp_path, **options: Any) -> Ledger:
        ledger = Ledger.open(root, **{"clock": clock, "ids": SeededIds(len(opened)), **options})
        opened.append(ledger)
        return ledger

    yield open_one
    for ledger in opened:
        ledger.close()


@pytest.fixture
def ledger(open_ledger: Callable[..., Ledger]) -> Ledger:
    """A new ledger with a settable clock and seeded ids."""
    return open_ledger()
