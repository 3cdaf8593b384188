"""The watcher under real processes and real SIGKILLs: what they find afterwards is what the promise says."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sovereign_agent.automation import (
    Fate,
    RunStatus,
    Status,
    WatchDecision,
    create_automation,
    history,
    list_automations,
    list_runs,
    run_due,
)
from sovereign_agent.ledger import Ledger

T0 = datetime(2026, 1, 5, 8, tzinfo=UTC)
PATIENCE_SECONDS = 30

CHILD = """
import os, sys, time
from datetime import datetime, timedelta
from pathlib import Path
from sovereign_agent import automation
from sovereign_agent.automation import WatchDecision, run_due
from sovereign_agent.ledger import Ledger

root, name = Path(sys.argv[1]), sys.argv[2]
T0 = datetime.fromisoformat("2026-01-05T08:00:00+00:00")

def touch(file):
    (root / file).touch()

def wait_for(*files):
    while not all((root / file).exists() for file in files):
        time.sleep(0.005)

def hang(*_):
    touch("here")
    time.sleep(60)

def hang_in(function):
    getattr(automation, function)  # a rename must not turn a kill into a plain run
    setattr(automation, function, hang)

def counting(previous):
    return WatchDecision(True, "low", {"n": previous.get("n", 0) + 1})

def log(run_id, message):
    line = f"{run_id} {message}\\n".encode()
    descriptor = os.open(root / "payloads", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, line)
    os.close(descriptor)

ledger = Ledger.open(root, busy_timeout_seconds=30)
"""


@contextmanager
def child(root: Path, name: str, code: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD + code, str(root), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the child never got there"
        time.sleep(0.005)


def payloads(root: Path) -> list[str]:
    file = root / "payloads"
    return file.read_text().splitlines() if file.exists() else []


def watch(ledger: Ledger) -> None:
    create_automation(ledger, "w", interval_seconds=60, payload="notify", first_run_at=T0, now=T0)


def counting(previous: dict[str, Any]) -> WatchDecision:
    return WatchDecision(True, "low", {"n": previous.get("n", 0) + 1})


def test_twelve_processes_on_one_due_slot_are_one_payload(ledger: Ledger, tmp_path: Path) -> None:
    watch(ledger)
    code = """
for line in sys.stdin:
    print(run_due(ledger, "w", counting, log, now=T0 + timedelta(seconds=60 * int(line))).status, flush=True)
"""
    rounds = 6
    with contextlib.ExitStack() as started:
        children = [started.enter_context(child(tmp_path, str(number), code)) for number in range(12)]
        for number in range(rounds):
            for process in children:
                assert process.stdin is not None
                process.stdin.write(f"{number}\n")
            for process in children:
                assert process.stdin is not None
                process.stdin.flush()
            answers = [process.stdout.readline().strip() for process in children if process.stdout]
            assert answers.count(Status.SUCCEEDED) == 1, [process.poll() for process in children]
            assert set(answers) <= {Status.SUCCEEDED, Status.REPLAYED, Status.RUNNING, Status.NOT_DUE}
            assert len(payloads(tmp_path)) == number + 1
    assert list_automations(ledger)[0].condition_state == {"n": rounds}
    runs = list_runs(ledger)
    assert payloads(tmp_path) == [f"{run.run_id} low" for run in runs]
    assert [(run.status, run.attempt) for run in runs] == [(RunStatus.SUCCEEDED, 1)] * rounds
    assert [(record.slots, record.fate) for record in history(ledger, "w")] == [(1, Fate.SUCCEEDED)] * rounds


KILL_POINTS = {
    "in the condition": "run_due(ledger, 'w', hang, log, now=T0)",
    "between claim and payload": "hang_in('_run_payload'); run_due(ledger, 'w', counting, log, now=T0)",
    "in the payload": "run_due(ledger, 'w', counting, hang, now=T0)",
    "between payload and commit": "hang_in('_commit'); run_due(ledger, 'w', counting, log, now=T0)",
    "inside the commit": """
end_attempt = automation._end_attempt
def end_and_hang(*arguments):
    end_attempt(*arguments)
    hang()
automation._end_attempt = end_and_hang
run_due(ledger, 'w', counting, log, now=T0)
""",
}


@pytest.mark.parametrize("point", KILL_POINTS)
def test_a_kill_leaves_the_old_state_and_a_run_to_offer_again(ledger: Ledger, tmp_path: Path, point: str) -> None:
    watch(ledger)
    with child(tmp_path, "victim", KILL_POINTS[point]) as process:
        wait_until(lambda: (tmp_path / "here").exists() or process.poll() is not None)
        assert process.poll() is None, process.stderr and process.stderr.read()
        process.kill()
    assert process.returncode == -9

    (definition,) = list_automations(ledger)
    assert (definition.condition_state, definition.failure_count, definition.enabled) == ({}, 0, True)
    runs = list_runs(ledger)
    claimed = point != "in the condition"
    assert [(run.status, run.attempt) for run in runs] == ([(RunStatus.RUNNING, 1)] if claimed else [])
    ran = point in {"between payload and commit", "inside the commit"}
    assert payloads(tmp_path) == ([f"{runs[0].run_id} low"] if ran else [])

    offered: list[str] = []
    if claimed:
        early = run_due(
            ledger, "w", counting, lambda run_id, _: offered.append(run_id), now=T0 + timedelta(seconds=119)
        )
        assert (early.status, early.run_id) == (Status.RUNNING, runs[0].run_id)
    later = T0 + timedelta(seconds=180)
    result = run_due(ledger, "w", counting, lambda run_id, _: offered.append(run_id), now=later)
    assert (result.status, offered) == (Status.SUCCEEDED, [result.run_id])
    (run,) = list_runs(ledger)
    assert (run.status, run.attempt, run.interruptions) == (RunStatus.SUCCEEDED, 1 + claimed, int(claimed))
    assert not claimed or run.run_id == runs[0].run_id
    assert list_automations(ledger)[0].condition_state == {"n": 1}
    assert sum(record.slots for record in history(ledger, "w")) == 4


BOTH_INSIDE = """
def condition(previous):
    touch(f"in-{name}")
    wait_for("in-1", "in-2")
    %s
    return counting(previous)

def payload(run_id, message):
    log(run_id, message)
    touch(f"won-{name}")
    %s

result = run_due(ledger, "w", condition, payload, now=T0)
print(result.status, flush=True)
touch(f"out-{name}")
"""


def statuses(root: Path, code: str) -> list[str]:
    with child(root, "1", code) as one, child(root, "2", code) as two:
        outputs = [process.communicate(timeout=PATIENCE_SECONDS) for process in (one, two)]
    assert [error for _, error in outputs] == ["", ""]
    return sorted(output.strip() for output, _ in outputs)


def test_of_two_inside_the_condition_one_succeeds_and_the_late_one_is_replayed(ledger: Ledger, tmp_path: Path) -> None:
    watch(ledger)
    code = BOTH_INSIDE % ("wait_for(*(['out-1'] if name == '2' else []))", "pass")
    assert statuses(tmp_path, code) == [Status.REPLAYED, Status.SUCCEEDED]
    assert len(payloads(tmp_path)) == 1
    assert list_automations(ledger)[0].condition_state == {"n": 1}


def test_of_two_inside_the_condition_one_is_told_of_the_running_other(ledger: Ledger, tmp_path: Path) -> None:
    watch(ledger)
    code = BOTH_INSIDE % ("pass", "wait_for('out-2' if name == '1' else 'out-1')")
    assert statuses(tmp_path, code) == [Status.RUNNING, Status.SUCCEEDED]
    assert len(payloads(tmp_path)) == 1
