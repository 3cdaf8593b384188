"""Heartbeat: a verdict per source about its latest beat, and nothing more."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sovereign_agent.heartbeat import Liveness, beat, judge, last_beat, liveness
from sovereign_agent.ledger import Ledger
from sovereign_agent.trace import events

T0 = datetime(2026, 1, 5, 8, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def kinds(ledger: Ledger) -> list[str]:
    return [event.kind for event in events(ledger) if event.kind.startswith("heartbeat.")]


def test_a_source_that_never_beat_is_neither_alive_nor_stale(ledger: Ledger) -> None:
    assert liveness(ledger, "worker-1") is Liveness.NEVER
    assert last_beat(ledger, "worker-1") is None


def test_a_beat_is_alive_up_to_the_bound_and_stale_after_it(ledger: Ledger) -> None:
    beat(ledger, "worker-1", now=T0)
    assert liveness(ledger, "worker-1", now=T0) == "ALIVE"
    assert liveness(ledger, "worker-1", now=T0 + 60 * SECOND) == "ALIVE"
    assert liveness(ledger, "worker-1", now=T0 + 60 * SECOND + timedelta(microseconds=1)) == "STALE"
    assert liveness(ledger, "worker-1", stale_after_seconds=600, now=T0 + 61 * SECOND) == "ALIVE"


def test_one_source_says_nothing_about_another(ledger: Ledger) -> None:
    beat(ledger, "worker-2", now=T0 - timedelta(days=900))
    beat(ledger, "worker-1", now=T0)
    assert liveness(ledger, "worker-1", now=T0) is Liveness.ALIVE
    assert liveness(ledger, "worker-2", now=T0) is Liveness.STALE


def test_a_beat_from_the_future_is_not_alive_until_a_true_one_arrives(ledger: Ledger) -> None:
    beat(ledger, "worker-1", now=T0 + timedelta(days=365))
    assert liveness(ledger, "worker-1", now=T0) is Liveness.FUTURE
    beat(ledger, "worker-1", now=T0)
    assert liveness(ledger, "worker-1", now=T0) is Liveness.ALIVE


def test_a_thousand_beats_are_one_row_and_one_event(ledger: Ledger) -> None:
    for number in range(1000):
        latest = beat(ledger, "worker-1", now=T0 + number * SECOND)
    assert (latest.beats, latest.first_at, latest.last_at) == (1000, T0, T0 + 999 * SECOND)
    assert latest == last_beat(ledger, "worker-1")
    with ledger.read() as tx:
        assert len(tx.all("SELECT 1 FROM heartbeats")) == 1
    assert kinds(ledger) == ["heartbeat.started"]


def test_a_beat_after_a_silence_is_an_event(ledger: Ledger) -> None:
    for offset in (0, 60, 121, 122):
        beat(ledger, "worker-1", now=T0 + offset * SECOND)
    assert kinds(ledger) == ["heartbeat.started", "heartbeat.resumed"]
    assert [event.detail for event in events(ledger, subject="worker-1")] == [{"was": "NEVER"}, {"was": "STALE"}]


def test_reading_a_verdict_writes_nothing(open_ledger: Callable[..., Ledger]) -> None:
    beat(open_ledger(), "worker-1", now=T0)
    reader = open_ledger(read_only=True)
    assert liveness(reader, "worker-1", now=T0) is Liveness.ALIVE


def test_the_ledgers_clock_answers_without_an_instant(ledger: Ledger, clock: Any) -> None:
    beat(ledger, "worker-1")
    clock.advance(61)
    assert liveness(ledger, "worker-1") is Liveness.STALE


@pytest.mark.parametrize(
    ("bound", "error"), [(-1, ValueError), (0, ValueError), (float("nan"), ValueError), (True, TypeError)]
)
def test_a_bound_must_be_a_positive_number(ledger: Ledger, bound: float, error: type[Exception]) -> None:
    with pytest.raises(error, match="stale_after_seconds"):
        liveness(ledger, "worker-1", stale_after_seconds=bound)


def test_a_source_and_an_instant_are_checked(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="source"):
        beat(ledger, " ")
    with pytest.raises(ValueError, match="now must be aware"):
        beat(ledger, "worker-1", now=datetime(2026, 1, 5))


@given(st.none() | st.integers(-10, 10), st.integers(1, 10))
def test_every_beat_gets_exactly_one_verdict(age: int | None, bound: int) -> None:
    verdict = judge(None if age is None else T0 - age * SECOND, T0, bound * SECOND)
    expected = "NEVER" if age is None else "FUTURE" if age < 0 else "STALE" if age > bound else "ALIVE"
    assert verdict == expected
