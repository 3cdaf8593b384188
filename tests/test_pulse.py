"""Pulse: one signal, one run id, whatever fails and however many ask."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sovereign_agent.errors import Refusal
from sovereign_agent.ids import SeededIds
from sovereign_agent.ledger import Ledger
from sovereign_agent.pulse import (
    PulseResult,
    PulseStatus,
    Signal,
    SignalStatus,
    list_signals,
    record_signal,
    run_pulse,
)
from sovereign_agent.trace import events

T0 = datetime(2026, 1, 5, 8, tzinfo=UTC)
DAY = 86400


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def record(ledger: Ledger, *names: str) -> None:
    for name in names:
        record_signal(ledger, name, "sale", {"sku": name}, now=T0)


def yes(signal: Signal) -> bool:
    return True


def no(signal: Signal) -> bool:
    return False


def does_nothing(run_id: str, signal: Signal) -> None:
    pass


def fails(run_id: str, signal: Signal) -> None:
    raise OSError("supplier unreachable")


def pulse(
    ledger: Ledger, gate: Any = yes, payload: Any = does_nothing, seconds: float = 0, **options: Any
) -> dict[str, PulseResult]:
    results = run_pulse(ledger, gate, payload, now=at(seconds), **options)
    assert len({result.signal_id for result in results}) == len(results)
    return {result.signal_id: result for result in results}


def statuses(results: dict[str, PulseResult]) -> dict[str, str]:
    return {name: str(result.status) for name, result in results.items()}


def kinds(ledger: Ledger, subject: str = "s0") -> list[str]:
    return [event.kind for event in events(ledger, subject=subject)]


class Killed(BaseException):
    """Stands for a death that nobody could clean up after."""


def dies(ledger: Ledger) -> Any:
    def payload(run_id: str, signal: Signal) -> None:
        ledger.close()
        raise Killed

    return payload


# Recording


def test_a_signal_is_recorded_once(ledger: Ledger) -> None:
    assert record_signal(ledger, "s0", "sale", {"b": 1, "a": 2}, now=T0) is True
    assert record_signal(ledger, "s0", "sale", {"a": 2, "b": 1}, now=at(5)) is False
    assert [signal.recorded_at for signal in list_signals(ledger)] == [T0]
    assert kinds(ledger) == ["pulse.recorded"]


def test_the_same_id_with_other_content_is_refused_and_recorded(ledger: Ledger) -> None:
    record(ledger, "s0")
    with pytest.raises(Refusal, match="Signal refused for s0: it was recorded with another payload"):
        record_signal(ledger, "s0", "sale", {"sku": "other"}, now=T0)
    with pytest.raises(Refusal, match="another kind and payload") as refused:
        record_signal(ledger, "s0", "return", {}, now=T0)
    assert refused.value.category == "signal"
    assert kinds(ledger) == ["pulse.recorded", "refused", "refused"]


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        (("", "sale", {}), ValueError, "signal_id"),
        (("s", "a\nb", {}), ValueError, "kind"),
        (("s", "sale", [1]), TypeError, "payload"),
        (("s", "sale", {"a": float("nan")}), ValueError, "payload"),
        (("s", "sale", {"a": "x" * 16_384}), ValueError, "payload"),
    ],
)
def test_a_malformed_signal_is_an_error_that_names_the_argument(
    ledger: Ledger, arguments: Any, error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        record_signal(ledger, *arguments)
    assert list_signals(ledger) == ()


# One pass


def test_a_signal_that_qualifies_runs_once_under_its_run_id(ledger: Ledger) -> None:
    record(ledger, "s0")
    seen: list[tuple[str, Signal]] = []
    result = pulse(ledger, payload=lambda run_id, signal: seen.append((run_id, signal)))["s0"]
    assert result.status is PulseStatus.SUCCEEDED
    assert seen == [(result.run_id, Signal("s0", "sale", {"sku": "s0"}, T0))]
    assert pulse(ledger, payload=fails, seconds=DAY) == {}
    assert kinds(ledger) == ["pulse.recorded", "pulse.claimed", "pulse.succeeded"]


def test_a_quiet_signal_is_judged_once_whatever_the_number_of_passes(ledger: Ledger) -> None:
    record(ledger, *(f"s{number}" for number in range(100)))
    asked: Counter[str] = Counter()

    def gate(signal: Signal) -> bool:
        asked[signal.signal_id] += 1
        return False

    results = [pulse(ledger, gate, fails, 60 * number) for number in range(10)]
    assert set(asked.values()) == {1}
    assert [len(result) for result in results] == [100] + [0] * 9
    assert set(statuses(results[0]).values()) == {"NO_FIRE"}
    assert all((signal.status, signal.run_id) == (SignalStatus.DECLINED, None) for signal in list_signals(ledger))


def test_a_bad_signal_starves_nobody(ledger: Ledger) -> None:
    record(ledger, *(f"s{number}" for number in range(5)))

    def gate(signal: Signal) -> bool:
        if signal.signal_id == "s1":
            raise LookupError
        return True

    assert statuses(pulse(ledger, gate)) == {
        "s0": "SUCCEEDED",
        "s1": "FAILED",
        "s2": "SUCCEEDED",
        "s3": "SUCCEEDED",
        "s4": "SUCCEEDED",
    }


def test_a_row_that_no_one_can_read_starves_nobody(ledger: Ledger) -> None:
    record(ledger, "s0", "s1", "s2", "s3")
    with ledger.write() as tx:
        tx.run("UPDATE signals SET payload = 'no json' WHERE signal_id = 's0'")
        tx.run("UPDATE signals SET payload = '[1]' WHERE signal_id = 's1'")
        tx.run("UPDATE signals SET recorded_at = 'once' WHERE signal_id = 's2'")
    assert list(statuses(pulse(ledger)).values()) == ["FAILED", "FAILED", "FAILED", "SUCCEEDED"]


def test_a_signal_that_vanishes_during_the_pass_starves_nobody(ledger: Ledger) -> None:
    record(ledger, "s0", "s1", "s2", "s3")

    def gate(signal: Signal) -> bool:
        if signal.signal_id == "s0":
            with ledger.write() as tx:
                tx.run("DELETE FROM signals WHERE signal_id IN ('s0', 's1')")
        return True

    def payload(run_id: str, signal: Signal) -> None:
        if signal.signal_id == "s2":
            with ledger.write() as tx:
                tx.run("DELETE FROM signals WHERE signal_id = 's2'")

    assert statuses(pulse(ledger, gate, payload)) == {"s0": "REPLAYED", "s2": "REPLAYED", "s3": "SUCCEEDED"}


@pytest.mark.parametrize("gate", [lambda _: 1, lambda _: None, lambda _: 1 / 0])
def test_a_gate_must_answer_true_or_false(ledger: Ledger, gate: Any) -> None:
    record(ledger, "s0")
    assert statuses(pulse(ledger, gate)) == {"s0": "FAILED"}
    assert list_signals(ledger)[0].run_id is None


def test_a_failing_signal_is_retried_under_the_same_id_and_given_up_at_the_bound(ledger: Ledger) -> None:
    record(ledger, "s0")
    first = pulse(ledger, payload=fails)["s0"]
    assert pulse(ledger, payload=fails, seconds=59) == {}
    second = pulse(ledger, payload=fails, seconds=60)["s0"]
    third = pulse(ledger, payload=fails, seconds=120)["s0"]
    assert [r.status for r in (first, second, third)] == [
        PulseStatus.FAILED,
        PulseStatus.FAILED,
        PulseStatus.GIVEN_UP,
    ]
    assert len({first.run_id, second.run_id, third.run_id}) == 1
    assert pulse(ledger, payload=fails, seconds=DAY) == {}
    (signal,) = list_signals(ledger)
    assert (signal.status, signal.attempt, signal.failure_count) == (SignalStatus.GIVEN_UP, 3, 3)
    assert signal.error == "OSError: supplier unreachable"
    assert kinds(ledger)[-1] == "pulse.given_up"


def test_failures_of_gate_and_payload_count_together(ledger: Ledger) -> None:
    record(ledger, "s0")
    pulse(ledger, lambda _: 1 / 0, max_failures=2)
    assert statuses(pulse(ledger, yes, fails, 60, max_failures=2)) == {"s0": "GIVEN_UP"}


def test_a_retry_can_succeed(ledger: Ledger) -> None:
    record(ledger, "s0")
    first = pulse(ledger, payload=fails, retry_seconds=5)["s0"]
    assert pulse(ledger, seconds=5, retry_seconds=5)["s0"] == PulseResult(
        "s0", PulseStatus.SUCCEEDED, first.run_id, "attempt 2"
    )


# Leases


def test_a_killed_run_is_offered_again_after_its_lease(ledger: Ledger, open_ledger: Any) -> None:
    record(ledger, "s0")
    with pytest.raises(Killed):
        pulse(ledger, payload=dies(ledger))
    ledger = open_ledger()
    (before_it,) = list_signals(ledger)
    assert pulse(ledger, seconds=119) == {}
    result = pulse(ledger, seconds=120)["s0"]
    assert (result.status, result.run_id) == (PulseStatus.SUCCEEDED, before_it.run_id)
    (signal,) = list_signals(ledger)
    assert (signal.attempt, signal.interruptions, signal.failure_count) == (2, 1, 0)
    assert kinds(ledger)[1:] == ["pulse.claimed", "pulse.lease_expired", "pulse.claimed", "pulse.succeeded"]


def test_another_actors_lease_is_given_the_clock_skew(ledger: Ledger, open_ledger: Any) -> None:
    record(ledger, "s0")
    with pytest.raises(Killed):
        pulse(ledger, payload=dies(ledger))
    other = open_ledger(actor="host-b")
    assert pulse(other, seconds=124.9) == {}
    assert statuses(pulse(other, seconds=125)) == {"s0": "SUCCEEDED"}


@pytest.mark.parametrize("ending", [does_nothing, fails])
def test_a_payload_that_was_taken_over_cannot_commit(ledger: Ledger, open_ledger: Any, ending: Any) -> None:
    record(ledger, "s0")
    other = open_ledger()
    inner: list[str] = []

    def slow(run_id: str, signal: Signal) -> None:
        with contextlib.suppress(Killed):
            pulse(other, payload=dies(other), seconds=130)  # attempt 2 still holds it when this one ends
        inner.append(run_id)
        ending(run_id, signal)

    result = pulse(ledger, payload=slow)["s0"]
    assert (result.status, result.run_id) == (PulseStatus.REPLAYED, inner[0])
    (signal,) = list_signals(ledger)
    assert (signal.status, signal.attempt, signal.failure_count) == (SignalStatus.RUNNING, 2, 0)


def test_a_claim_lost_during_the_gate_is_dropped(ledger: Ledger, open_ledger: Any) -> None:
    record(ledger, "s0", "s1")
    other = open_ledger()

    def gate(signal: Signal) -> bool:
        if signal.signal_id == "s0":
            assert statuses(pulse(other)) == {"s0": "SUCCEEDED", "s1": "SUCCEEDED"}
        return True

    assert statuses(pulse(ledger, gate, fails)) == {"s0": "REPLAYED"}

    record(ledger, "s2")

    def gate_of_the_living(signal: Signal) -> bool:
        with contextlib.suppress(Killed):
            pulse(other, payload=dies(other))
        return True

    assert statuses(pulse(ledger, gate_of_the_living, fails)) == {"s2": "RUNNING"}


def test_a_signal_that_failed_elsewhere_during_the_pass_waits_for_its_retry(ledger: Ledger, open_ledger: Any) -> None:
    record(ledger, "s0", "s1")
    other = open_ledger()

    def gate(signal: Signal) -> bool:
        if signal.signal_id == "s0":
            pulse(other, payload=fails)
        return True

    assert statuses(pulse(ledger, gate, fails)) == {"s0": "REPLAYED"}
    assert [signal.failure_count for signal in list_signals(ledger)] == [1, 1]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_frees_the_signal_for_retry_and_goes_on(ledger: Ledger, stop: type[BaseException]) -> None:
    record(ledger, "s0")

    def payload(run_id: str, signal: Signal) -> None:
        raise stop

    with pytest.raises(stop):
        pulse(ledger, payload=payload, max_failures=1)
    (before_it,) = list_signals(ledger)
    assert (before_it.failure_count, before_it.interruptions) == (0, 1)
    assert pulse(ledger)["s0"].run_id == before_it.run_id


def test_a_clock_that_was_ahead_holds_up_no_signal(ledger: Ledger, open_ledger: Any) -> None:
    record_signal(ledger, "s0", "sale", {}, now=at(DAY))
    record_signal(ledger, "s1", "sale", {}, now=at(DAY))
    record_signal(ledger, "s2", "sale", {}, now=at(DAY))

    def payload(run_id: str, signal: Signal) -> None:
        if signal.signal_id == "s1":
            dies(ledger)(run_id, signal)
        raise OSError

    with pytest.raises(Killed):
        pulse(ledger, payload=payload, seconds=DAY)
    ledger = open_ledger()
    assert statuses(pulse(ledger, seconds=0)) == {"s0": "SUCCEEDED", "s2": "SUCCEEDED"}
    assert "clock.stepped_back" in kinds(ledger, "s1")
    assert pulse(ledger, seconds=119) == {}
    assert statuses(pulse(ledger, seconds=120)) == {"s1": "SUCCEEDED"}


def test_callables_run_outside_any_transaction_and_a_pass_starts_outside_one(ledger: Ledger) -> None:
    record(ledger, "s0")
    seen: list[bool] = []

    def gate(signal: Signal) -> bool:
        seen.append(ledger.in_transaction)
        return True

    pulse(ledger, gate, lambda run_id, signal: seen.append(ledger.in_transaction))
    assert seen == [False, False]
    with ledger.write(), pytest.raises(Refusal, match="run_pulse runs the caller's code"):
        pulse(ledger)


def test_a_ledger_that_stays_busy_at_the_commit_leaves_the_signal_to_its_lease(open_ledger: Any) -> None:
    ledger, blocker = open_ledger(busy_timeout_seconds=0), open_ledger()
    record(ledger, "s0")
    with contextlib.ExitStack() as held, pytest.raises(Refusal, match="database is locked") as refused:
        pulse(ledger, payload=lambda run_id, signal: held.enter_context(blocker.write()))
    assert "has run; it is offered again" in refused.value.__notes__[0]
    assert statuses(pulse(ledger, seconds=120)) == {"s0": "SUCCEEDED"}


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("max_failures", 0, ValueError),
        ("max_failures", True, TypeError),
        ("retry_seconds", -1, ValueError),
        ("lease_seconds", float("nan"), ValueError),
    ],
)
def test_bounds_are_checked(ledger: Ledger, option: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=option):
        pulse(ledger, **{option: value})


def test_events_hold_no_content(ledger: Ledger) -> None:
    record_signal(ledger, "s0", "sale", {"card": "hunter2"}, now=T0)

    def leaks(run_id: str, signal: Signal) -> None:
        raise OSError("token=hunter2")

    pulse(ledger, payload=leaks)
    with ledger.read() as tx:
        assert "hunter2" not in "".join(row["detail"] for row in tx.all("SELECT detail FROM events"))


# Any sequence, any number of processes


@settings(max_examples=15)
@given(passes=st.lists(st.tuples(*[st.sampled_from(["yes", "no", "bad", "fail", "die"])] * 3), max_size=6))
def test_no_signal_ever_gets_a_second_run_id_or_runs_after_it_ended(
    passes: list[tuple[str, ...]], tmp_path: Path
) -> None:
    root = tmp_path / str(time.monotonic_ns())
    ledger = Ledger.open(root, ids=SeededIds(1))
    record(ledger, "s0", "s1", "s2")
    ids: dict[str, set[str]] = {}
    asked_after_the_end: list[str] = []
    ended: set[str] = set()
    for number, answers in enumerate(passes):
        answer = dict(zip(("s0", "s1", "s2"), answers, strict=True))

        def gate(signal: Signal, answer: dict[str, str] = answer, ended: set[str] = ended) -> bool:
            if signal.signal_id in ended:
                asked_after_the_end.append(signal.signal_id)
            if answer[signal.signal_id] == "bad":
                raise LookupError
            return answer[signal.signal_id] != "no"

        def payload(run_id: str, signal: Signal, answer: dict[str, str] = answer, ledger: Ledger = ledger) -> None:
            ids.setdefault(signal.signal_id, set()).add(run_id)
            if answer[signal.signal_id] == "fail":
                raise OSError
            if answer[signal.signal_id] == "die":
                dies(ledger)(run_id, signal)

        with contextlib.suppress(Killed):
            pulse(ledger, gate, payload, number * 130)
        ledger.close()
        ledger = Ledger.open(root, ids=SeededIds(number + 2))
        closed = (SignalStatus.SUCCEEDED, SignalStatus.DECLINED, SignalStatus.GIVEN_UP)
        ended = {signal.signal_id for signal in list_signals(ledger) if signal.status in closed}
    ledger.close()
    assert asked_after_the_end == []
    assert all(len(run_ids) == 1 for run_ids in ids.values())
    assert len(set.union(set(), *ids.values())) == len(ids)


CHILD = """
import os, sys, time
from datetime import datetime
from pathlib import Path
from sovereign_agent.ledger import Ledger
from sovereign_agent.pulse import run_pulse

root, mode = Path(sys.argv[1]), sys.argv[2]

def payload(run_id, signal):
    descriptor = os.open(root / "payloads", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{signal.signal_id} {run_id}\\n".encode())
    os.close(descriptor)
    if mode == "hang":
        (root / "here").touch()
        time.sleep(60)

now = datetime.fromisoformat("2026-01-05T08:00:00+00:00")
with Ledger.open(root, busy_timeout_seconds=30) as ledger:
    print("ready", flush=True)
    sys.stdin.readline()
    results = run_pulse(ledger, lambda signal: True, payload, now=now)
    print(*sorted({str(result.status) for result in results}), flush=True)
"""


def start(root: Path, mode: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(root), mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_six_processes_on_twenty_signals_are_twenty_payloads(ledger: Ledger, tmp_path: Path) -> None:
    record(ledger, *(f"s{number}" for number in range(20)))
    children = [start(tmp_path, "run") for _ in range(6)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    outputs = []
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    outputs = [child.communicate(timeout=60)[0] for child in children]
    assert [child.returncode for child in children] == [0] * 6
    assert {word for output in outputs for word in output.split()} <= {"SUCCEEDED", "REPLAYED", "RUNNING"}
    lines = (tmp_path / "payloads").read_text().splitlines()
    assert sorted(lines) == sorted(f"{signal.signal_id} {signal.run_id}" for signal in list_signals(ledger))


def test_a_process_killed_in_the_payload_leaves_the_same_run_id(ledger: Ledger, tmp_path: Path) -> None:
    record(ledger, "s0", "s1")
    with start(tmp_path, "hang") as child:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
        deadline = time.monotonic() + 30
        while not (tmp_path / "here").exists():
            assert time.monotonic() < deadline
            time.sleep(0.005)
        child.kill()
    (line,) = (tmp_path / "payloads").read_text().splitlines()
    run_ids: list[str] = []
    assert statuses(pulse(ledger, payload=lambda run_id, signal: run_ids.append(run_id), seconds=120)) == {
        "s0": "SUCCEEDED",
        "s1": "SUCCEEDED",
    }
    assert f"s0 {run_ids[0]}" == line
    assert [signal.attempt for signal in list_signals(ledger)] == [2, 1]
