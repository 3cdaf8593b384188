"""Slot arithmetic: every slot in exactly one place, against counting them one by one."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sovereign_agent.schedule import (
    MAX_JSON_BYTES,
    CatchUp,
    Grid,
    Span,
    before,
    failure_text,
    json_object,
    lease_is_over,
    next_slot,
    plan,
    pulled_back,
    through,
    whole_number,
)

FIRST = datetime(2026, 1, 5, 8, tzinfo=UTC)
SECOND = timedelta(seconds=1)
GRID = Grid(FIRST, 60 * SECOND)

micros = st.integers(-300_000_000, 900_000_000)
grids = st.integers(1_000_000, 90_000_000).map(lambda n: Grid(FIRST, timedelta(microseconds=n)))


def at(seconds: float) -> datetime:
    return FIRST + timedelta(seconds=seconds)


def counted(grid: Grid, start: datetime, end: datetime) -> list[datetime]:
    """`start` and each later slot up to `end`, by stepping through the grid."""
    if start > end:
        return []
    found = [start]
    slot = grid.first
    while slot <= end:
        if slot > start:
            found.append(slot)
        slot += grid.interval
    return found


@given(grids, micros)
def test_the_next_slot_is_the_first_one_after_an_instant(grid: Grid, offset: int) -> None:
    now = FIRST + timedelta(microseconds=offset)
    slot = next_slot(grid, now)
    assert slot > now
    assert (slot - grid.first) % grid.interval == timedelta(0)
    assert slot == grid.first or slot - grid.interval <= now


@given(grids, micros, micros)
def test_a_span_holds_its_start_and_every_later_slot(grid: Grid, start: int, end: int) -> None:
    begin, finish = FIRST + timedelta(microseconds=start), FIRST + timedelta(microseconds=end)
    slots = counted(grid, begin, finish)
    expected = Span(slots[0], slots[-1], len(slots)) if slots else None
    assert through(grid, begin, finish) == expected
    open_end = [slot for slot in slots if slot < finish]
    assert before(grid, begin, finish) == (Span(open_end[0], open_end[-1], len(open_end)) if open_end else None)


@given(grids, micros, st.integers(0, 900_000_000), st.integers(0, 400), st.sampled_from(CatchUp))
def test_a_plan_puts_every_slot_in_exactly_one_place(
    grid: Grid, start: int, passed: int, grace_seconds: int, catch_up: CatchUp
) -> None:
    pending = FIRST + timedelta(microseconds=start)
    now = pending + timedelta(microseconds=passed)
    grace = timedelta(seconds=grace_seconds)
    made = plan(grid, pending, now, catch_up=catch_up, grace=grace)
    places = {
        name: [] if span is None else counted(grid, span.first, span.last)
        for name, span in (("missed", made.missed), ("late", made.late), ("recent", made.recent))
    }
    slots = [slot for place in places.values() for slot in place] + ([made.slot] if made.slot else [])
    assert slots == counted(grid, pending, now)
    assert all(now - slot > grace for slot in places["missed"] + places["late"])
    assert all(now - slot <= grace for slot in places["recent"])
    assert made.slot is None or catch_up is CatchUp.ONCE or now - made.slot <= grace
    assert not places["missed"] if catch_up is CatchUp.ONCE else not places["late"]
    assert made.upcoming == next_slot(grid, now)
    for span in (made.missed, made.older, made.seen):
        assert span is None or span == through(grid, span.first, span.last)


def test_three_days_of_downtime_are_one_evaluation_and_one_range() -> None:
    made = plan(GRID, FIRST, at(3 * 86400), catch_up=CatchUp.ONCE, grace=timedelta(0))
    assert made.late == Span(FIRST, at(3 * 86400 - 60), 4320)
    assert made.slot == at(3 * 86400)


def test_skip_misses_only_what_is_later_than_the_grace_period() -> None:
    made = plan(GRID, FIRST, at(125), catch_up=CatchUp.SKIP, grace=65 * SECOND)
    assert (made.missed, made.recent, made.slot) == (Span(FIRST, FIRST, 1), Span(at(60), at(60), 1), at(120))
    assert plan(GRID, FIRST, at(125), catch_up=CatchUp.SKIP, grace=5 * SECOND).slot == at(120)
    assert plan(GRID, FIRST, at(125), catch_up=CatchUp.SKIP, grace=4 * SECOND).slot is None


def test_a_plan_needs_a_pending_slot() -> None:
    with pytest.raises(ValueError, match="pending must not lie after now"):
        plan(GRID, at(1), at(0), catch_up=CatchUp.ONCE, grace=SECOND)


def test_arithmetic_survives_the_end_of_time() -> None:
    last = datetime.max.replace(tzinfo=UTC)
    assert next_slot(GRID, last) == last
    first = datetime.min.replace(tzinfo=UTC)
    made = plan(Grid(first, SECOND), first, first + SECOND, catch_up=CatchUp.ONCE, grace=timedelta(days=1))
    assert made.slot == first + SECOND


@given(st.integers(-500, 500), st.integers(-500, 2000), st.integers(0, 300), st.integers(0, 10))
def test_a_due_time_is_pulled_back_only_when_nobody_can_have_set_it(
    now_s: int, due_s: int, floor_s: int, skew_s: int
) -> None:
    now, due, floor = at(now_s), at(due_s), at(floor_s)
    target = pulled_back(GRID, due, now, horizon=60 * SECOND, floor=floor, skew=skew_s * SECOND)
    if due_s - now_s <= 60 + skew_s or due <= floor:
        assert target is None
    else:
        assert target is None or now < target < due
        assert target is None or target >= floor
        assert target in {None, floor, next_slot(GRID, now)}


def test_a_clock_that_was_a_day_ahead_costs_at_most_one_interval() -> None:
    due = at(86400 + 60)
    assert pulled_back(GRID, due, at(90), horizon=60 * SECOND, floor=FIRST, skew=5 * SECOND) == at(120)


def test_a_small_step_back_repeats_no_slot() -> None:
    """The slot at 0 ran; the clock then steps back by two seconds. Pulling back would run that slot again."""
    assert pulled_back(GRID, at(60), at(-2), horizon=60 * SECOND, floor=FIRST, skew=5 * SECOND) is None


def test_another_hosts_lease_gets_the_skew() -> None:
    skew = 5 * SECOND
    assert not lease_is_over(at(10), at(9.999), own=True, skew=skew)
    assert lease_is_over(at(10), at(10), own=True, skew=skew)
    assert not lease_is_over(at(10), at(14.999), own=False, skew=skew)
    assert lease_is_over(at(10), at(15), own=False, skew=skew)


json_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), json_values, max_size=3))
def test_a_json_object_comes_back_as_it_was(value: dict[str, object]) -> None:
    text = json_object("state", value)
    assert json.loads(text) == value
    assert text == json_object("state", dict(reversed(value.items())))


def test_a_json_object_is_compact_and_sorted() -> None:
    assert json_object("state", {"b": 1, "a": [True, None, "é"]}) == '{"a":[true,null,"é"],"b":1}'


def test_the_size_of_a_json_object_counts_bytes() -> None:
    fits = "é" * ((MAX_JSON_BYTES - len('{"a":""}')) // 2)
    json_object("state", {"a": fits})
    with pytest.raises(ValueError, match="state must take at most 16384 bytes"):
        json_object("state", {"a": fits + "é"})


def endless() -> dict[str, object]:
    value: dict[str, object] = {}
    value["a"] = value
    return value


def deep() -> dict[str, object]:
    value: dict[str, object] = {}
    for _ in range(5000):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ([1], TypeError),
        (None, TypeError),
        ("{}", TypeError),
        ({"a": math.nan}, ValueError),
        ({"a": [math.inf]}, ValueError),
        ({1: "a"}, TypeError),
        ({"a": {None: 1}}, TypeError),
        ({"a": (1, 2)}, TypeError),
        ({"a": [{"b": (1,)}]}, TypeError),
        ({"a": {1, 2}}, TypeError),
        ({"a": b"x"}, TypeError),
        ({"a": FIRST}, TypeError),
        ({"a": "\ud800"}, ValueError),
        (endless(), ValueError),
        (deep(), ValueError),
    ],
)
def test_what_json_would_lose_or_change_is_refused(value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="state "):
        json_object("state", value)


def test_a_failure_is_one_printable_line_of_bounded_length() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert failure_text(OSError("a\n  b\x1b[31m")) == "OSError: a b?[31m"
    assert len(failure_text(OSError("x" * 41_000))) == 500
    assert failure_text(MuteError()) == "MuteError: (its message cannot be printed)"


@pytest.mark.parametrize(
    ("value", "error"), [(True, TypeError), (1.0, TypeError), ("1", TypeError), (0, ValueError), (10**14, ValueError)]
)
def test_a_whole_number_is_a_whole_number(value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="max_failures"):
        whole_number("max_failures", value)
