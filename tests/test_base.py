"""Refusals, instants and ids: the small things that every mechanism stands on."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sovereign_agent.clock import as_utc, from_text, later, seconds, to_text
from sovereign_agent.errors import Category, Refusal, shorten
from sovereign_agent.ids import SeededIds, SystemIds

instants = st.datetimes(
    timezones=st.timezones() | st.just(UTC), min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1)
)


@given(instants)
def test_an_instant_survives_being_stored(instant: datetime) -> None:
    assert from_text(to_text(instant)) == instant.astimezone(UTC)


@given(instants, instants)
def test_text_order_is_time_order(one: datetime, two: datetime) -> None:
    assert (to_text(one) < to_text(two)) == (one.astimezone(UTC) < two.astimezone(UTC))
    assert len(to_text(one)) == len(to_text(two)) == 27


@pytest.mark.parametrize("bad", [datetime(2026, 1, 1), None, "2026-01-01", 0])
def test_only_aware_instants_are_accepted(bad: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="now"):
        as_utc("now", bad)


def test_an_instant_that_utc_cannot_hold_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="now"):
        as_utc("now", datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1, 0, 10**12])
def test_a_duration_out_of_range_is_a_value_error(bad: float) -> None:
    with pytest.raises(ValueError, match="ttl_seconds"):
        seconds("ttl_seconds", bad)


@pytest.mark.parametrize("bad", [True, "60", None, [60]])
def test_a_duration_of_another_type_is_a_type_error(bad: Any) -> None:
    with pytest.raises(TypeError, match="ttl_seconds"):
        seconds("ttl_seconds", bad)


def test_adding_never_overflows() -> None:
    assert later(datetime.max.replace(tzinfo=UTC), timedelta(days=1)) == datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize("category", list(Category))
def test_a_refusal_is_one_sentence_with_reason_and_remedy(category: Category) -> None:
    refusal = Refusal(category, "s1", "the reason", "the remedy")
    assert str(refusal).endswith(" refused for s1: the reason; the remedy.")
    assert "\n" not in str(refusal)


def test_a_refusal_survives_pickling() -> None:
    refusal = Refusal("credentials", "sk-live-0123456789", "not listed", "list it", secret=True)
    again = pickle.loads(pickle.dumps(refusal))
    assert (str(again), again.category) == (str(refusal), Category.CREDENTIALS)


def test_an_unknown_category_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="weather"):
        Refusal("weather", "s", "w", "r")


@pytest.mark.parametrize("category", list(Category))
def test_a_path_is_printed_whole_and_other_long_subjects_are_cut(category: Category) -> None:
    """Which ledger was meant is no secret; what an agent asked a tool for may be one."""
    path = "/srv/" + "deep/" * 30 + "ledger.db"
    assert (path in str(Refusal(category, path, "x", "y"))) == (category in {Category.LEDGER, Category.FILESYSTEM})
    assert "x" * 201 not in str(Refusal(category, "x" * 1000, "y", "z"))


@given(st.text(min_size=5))
def test_a_possible_secret_is_never_printed_whole(secret: str) -> None:
    shown = shorten(secret, secret=True)
    assert secret not in shown or secret.isupper()


@given(st.text())
def test_a_subject_is_printed_on_one_bounded_line(subject: str) -> None:
    shown = shorten(subject)
    assert len(shown.splitlines()) == 1
    assert len(shown) < 64 * 12


@given(st.integers())
def test_the_same_seed_gives_the_same_ids(seed: int) -> None:
    one, two = SeededIds(seed), SeededIds(seed)
    assert [one.new("run") for _ in range(5)] == [two.new("run") for _ in range(5)]
    assert one.jitter() == two.jitter()


def test_system_ids_differ() -> None:
    ids = SystemIds()
    assert len({ids.new("run") for _ in range(1000)}) == 1000
    assert all(0 <= ids.jitter() < 1 for _ in range(1000))
