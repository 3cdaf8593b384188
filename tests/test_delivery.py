"""Deliveries: attempts are counted in the ledger, retried later and later, and end with a reason."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sovereign_agent.delivery import (
    BACKOFF_BASE_SECONDS,
    BACKOFF_CAP_SECONDS,
    DEFAULT_MAX_ATTEMPTS,
    MAX_ERROR_CHARACTERS,
    DeadReason,
    Delivery,
    DeliveryStatus,
    backoff,
    begin_attempt,
    dead_letters,
    due,
    enqueue,
    record_delivery_failure,
    record_delivery_success,
    verdict,
)
from sovereign_agent.errors import Category, Refusal
from sovereign_agent.ids import SeededIds
from sovereign_agent.ledger import Ledger

T0 = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)  # where the clock of every test starts
S = timedelta(seconds=1)
YEAR = timedelta(days=365)


def rows(ledger: Ledger, sql: str, **params: object) -> list[tuple[Any, ...]]:
    with ledger.read() as tx:
        return [tuple(row) for row in tx.all(sql, **params)]


def attempts(ledger: Ledger) -> list[tuple[Any, ...]]:
    return rows(ledger, "SELECT number, outcome, error FROM delivery_attempts ORDER BY delivery_id, number")


def due_ids(ledger: Ledger, now: datetime | None = None) -> list[str]:
    return [delivery.delivery_id for delivery in due(ledger, now=now)]


# Enqueueing


def test_an_enqueued_delivery_is_due_at_once_with_its_payload(ledger: Ledger) -> None:
    enqueue(ledger, "d", {"to": "ops", "lines": [1, 2.5, None, True, "größe"]})
    (found,) = due(ledger)
    assert found == Delivery("d", {"to": "ops", "lines": [1, 2.5, None, True, "größe"]}, 0, T0, DeliveryStatus.PENDING)


def test_a_delivery_commits_or_rolls_back_with_the_state_change_that_it_tells_of(ledger: Ledger) -> None:
    with pytest.raises(ZeroDivisionError), ledger.write():
        enqueue(ledger, "d")
        raise ZeroDivisionError
    assert due(ledger) == ()


def test_enqueueing_again_with_the_same_payload_changes_nothing_whatever_has_happened(ledger: Ledger) -> None:
    first = enqueue(ledger, "d", {"a": 1, "b": 2})
    assert enqueue(ledger, "d", {"b": 2, "a": 1}) == first
    record_delivery_success(ledger, "d")
    assert enqueue(ledger, "d", {"a": 1, "b": 2}).status is DeliveryStatus.DELIVERED
    assert rows(ledger, "SELECT count(*) FROM events WHERE kind = 'delivery.enqueued'") == [(1,)]


def test_enqueueing_again_with_something_else_is_refused_and_names_the_field(ledger: Ledger) -> None:
    enqueue(ledger, "d", "one")
    with pytest.raises(Refusal, match="Delivery refused for d: it was enqueued before with another payload") as refused:
        enqueue(ledger, "d", "two")
    assert refused.value.category is Category.DELIVERY
    with pytest.raises(Refusal, match="another payload and max_attempts"):
        enqueue(ledger, "d", "two", max_attempts=3)
    assert [delivery.payload for delivery in due(ledger)] == ["one"]
    assert rows(ledger, "SELECT count(*) FROM events WHERE kind = 'refused'") == [(2,)]


@pytest.mark.parametrize("payload", [{1: "x"}, (1, 2), {"a": {1, 2}}, b"x", object()])
def test_a_payload_that_would_not_come_back_equal_is_a_type_error(ledger: Ledger, payload: Any) -> None:
    with pytest.raises(TypeError, match="payload must be a JSON value"):
        enqueue(ledger, "d", payload)


@pytest.mark.parametrize("payload", [float("nan"), [float("inf")]])
def test_a_payload_with_numbers_that_are_none_is_a_value_error(ledger: Ledger, payload: Any) -> None:
    with pytest.raises(ValueError, match="payload must be a finite JSON value"):
        enqueue(ledger, "d", payload)


# Counting


def test_failures_are_counted_across_a_restart(open_ledger: Callable[..., Ledger]) -> None:
    first = open_ledger()
    assert record_delivery_failure(first, "d", "timeout") == 1
    first.close()
    assert record_delivery_failure(open_ledger(), "d", "timeout again") == 2


def test_an_unknown_delivery_is_created_by_its_first_failure_and_keeps_its_count_when_enqueued(ledger: Ledger) -> None:
    record_delivery_failure(ledger, "d", "timeout", T0)
    assert due(ledger) == (Delivery("d", None, 1, T0, DeliveryStatus.PENDING),)
    assert enqueue(ledger, "d", "content", max_attempts=3).attempts == 1
    assert due(ledger) == (Delivery("d", "content", 1, T0, DeliveryStatus.PENDING),)
    with pytest.raises(Refusal, match="another payload"):
        enqueue(ledger, "d", "other", max_attempts=3)


def test_the_same_attempt_counts_once_whoever_chose_its_id(ledger: Ledger) -> None:
    enqueue(ledger, "d")
    begun = begin_attempt(ledger, "d")
    assert [record_delivery_failure(ledger, "d", "x", T0, attempt_id=begun.attempt_id) for _ in range(3)] == [1, 1, 1]
    assert [record_delivery_failure(ledger, "d", "y", T0, attempt_id="mine") for _ in range(3)] == [2, 2, 2]
    assert attempts(ledger) == [(1, "FAILED", "x"), (2, "FAILED", "y")]


def test_a_failure_without_attempt_id_is_that_of_the_open_attempt(ledger: Ledger) -> None:
    enqueue(ledger, "d")
    assert begin_attempt(ledger, "d").number == 1
    assert record_delivery_failure(ledger, "d", "x", T0) == 1
    assert record_delivery_failure(ledger, "d", "no attempt is open now", T0) == 2


def test_the_count_is_read_in_the_transaction_that_raised_it(
    ledger: Ledger, open_ledger: Callable[..., Ledger]
) -> None:
    """Another worker's failure between our commit and our answer must not be counted into the answer."""
    other = open_ledger()
    connection = ledger._connection
    assert connection is not None
    state = {"commits": 0}

    def after_commit(statement: str) -> None:
        state["commits"] += statement == "COMMIT"
        if state["commits"] and not statement.startswith("COMMIT"):
            raise AssertionError(f"read after the commit: {statement}")

    connection.set_trace_callback(after_commit)
    assert record_delivery_failure(ledger, "d", "x") == 1
    connection.set_trace_callback(None)
    assert state["commits"] == 1
    assert record_delivery_failure(other, "d", "x") == 2


def test_an_attempt_is_counted_before_anything_is_sent(ledger: Ledger) -> None:
    enqueue(ledger, "d")
    begin_attempt(ledger, "d", now=T0, lease_seconds=60)
    assert begin_attempt(ledger, "d", now=T0 + 60 * S).number == 2, "the first worker was killed, and still counts"


def test_attempt_ids_are_new_although_a_seeded_source_starts_again(ledger: Ledger, open_ledger: Any) -> None:
    assert record_delivery_failure(ledger, "d", "x", T0) == 1
    for number in (2, 3):
        again = open_ledger(ids=SeededIds(0))
        assert begin_attempt(again, "d").number == number
        assert record_delivery_failure(again, "d", "x", T0) == number
    assert len(attempts(ledger)) == 3


# Leases of attempts


def test_a_second_attempt_is_refused_while_the_lease_of_the_first_is_live(ledger: Ledger) -> None:
    enqueue(ledger, "d")
    attempt = begin_attempt(ledger, "d", now=T0, lease_seconds=10)
    assert attempt.expires_at == T0 + 10 * S
    with pytest.raises(Refusal, match="attempt 1 holds a live lease until 2026-01-05T08:00:10"):
        begin_attempt(ledger, "d", now=T0 + 9.999999 * S)
    assert due_ids(ledger, T0 + 9 * S) == []
    assert due_ids(ledger, T0 + 10 * S) == ["d"]


@pytest.mark.parametrize("found_by", ["due", "begin_attempt"])
def test_a_lapsed_attempt_is_marked_and_never_lives_again(ledger: Ledger, found_by: str) -> None:
    enqueue(ledger, "d", max_attempts=2)
    begin_attempt(ledger, "d", now=T0, lease_seconds=10)
    if found_by == "due":
        assert due_ids(ledger, T0 + 10 * S) == ["d"]
    else:
        begin_attempt(ledger, "d", now=T0 + 10 * S, lease_seconds=10)
        with pytest.raises(Refusal, match=r"dead letter \(MAX_ATTEMPTS\)"):
            begin_attempt(ledger, "d", now=T0 + 20 * S)
        assert attempts(ledger) == [(1, "LAPSED", None), (2, "LAPSED", None)]
        return
    assert attempts(ledger) == [(1, "LAPSED", None)]
    assert begin_attempt(ledger, "d", now=T0 + 1 * S).number == 2


def test_a_lapse_that_a_refused_begin_found_stays_marked(ledger: Ledger) -> None:
    enqueue(ledger, "d", max_attempts=1)
    begin_attempt(ledger, "d", now=T0, lease_seconds=10)
    with pytest.raises(Refusal, match="dead letter"):
        begin_attempt(ledger, "d", now=T0 + 10 * S)
    assert [letter.reason for letter in dead_letters(ledger)] == [DeadReason.MAX_ATTEMPTS]
    with pytest.raises(Refusal, match="dead letter"):
        begin_attempt(ledger, "d", now=T0 + 1 * S)


def test_a_read_only_ledger_answers_due_without_marking(ledger: Ledger, open_ledger: Callable[..., Ledger]) -> None:
    enqueue(ledger, "again")
    enqueue(ledger, "spent", max_attempts=1)
    for name in ("again", "spent"):
        begin_attempt(ledger, name, now=T0, lease_seconds=10)
    reader = open_ledger(read_only=True)
    assert due_ids(reader, T0 + 10 * S) == ["again"]
    assert attempts(ledger) == []
    assert due_ids(ledger, T0 + 10 * S) == ["again"]
    assert len(attempts(ledger)) == 2


def test_an_attempt_begins_only_when_its_time_has_come(ledger: Ledger) -> None:
    enqueue(ledger, "d")
    record_delivery_failure(ledger, "d", "x", T0 + 100 * S)
    with pytest.raises(Refusal, match="it is not due until 2026-01-05T08:01:40"):
        begin_attempt(ledger, "d", now=T0 + 99 * S)
    assert begin_attempt(ledger, "d", now=T0 + 100 * S).number == 2
    with pytest.raises(Refusal, match="no such delivery"):
        begin_attempt(ledger, "unknown")


def test_a_late_failure_of_a_lapsed_attempt_changes_nothing(ledger: Ledger) -> None:
    enqueue(ledger, "d")
    late = begin_attempt(ledger, "d", now=T0, lease_seconds=10)
    second = begin_attempt(ledger, "d", now=T0 + 10 * S)
    assert record_delivery_failure(ledger, "d", "late", attempt_id=late.attempt_id, now=T0 + 11 * S) == 2
    record_delivery_failure(ledger, "d", "own", T0, attempt_id=second.attempt_id, now=T0 + 12 * S)
    assert attempts(ledger) == [(1, "LAPSED", None), (2, "FAILED", "own")]


def test_a_failure_reported_after_the_lease_but_before_anyone_looked_keeps_its_error(ledger: Ledger) -> None:
    enqueue(ledger, "d")
    late = begin_attempt(ledger, "d", now=T0, lease_seconds=10)
    record_delivery_failure(ledger, "d", "slow", attempt_id=late.attempt_id, now=T0 + 30 * S)
    assert attempts(ledger) == [(1, "FAILED", "slow")]


def test_an_earlier_attempt_does_not_reset_the_time_that_a_later_one_set(ledger: Ledger) -> None:
    enqueue(ledger, "d")
    open_one = begin_attempt(ledger, "d", now=T0)
    record_delivery_failure(ledger, "d", "x", T0 + 500 * S, attempt_id="unleased", now=T0)
    record_delivery_failure(ledger, "d", "y", T0 + 1 * S, attempt_id=open_one.attempt_id, now=T0)
    assert due_ids(ledger, T0 + 499 * S) == []
    assert due_ids(ledger, T0 + 500 * S) == ["d"]


def test_an_attempt_of_another_delivery_is_refused(ledger: Ledger) -> None:
    enqueue(ledger, "d")
    enqueue(ledger, "e")
    attempt = begin_attempt(ledger, "d")
    for report in (
        lambda: record_delivery_failure(ledger, "e", "x", attempt_id=attempt.attempt_id),
        lambda: record_delivery_success(ledger, "e", attempt_id=attempt.attempt_id),
        lambda: record_delivery_failure(ledger, "unknown", "x", attempt_id=attempt.attempt_id),
    ):
        with pytest.raises(Refusal, match="belongs to delivery d"):
            report()
    assert rows(ledger, "SELECT delivery_id, attempts FROM deliveries ORDER BY 1") == [("d", 1), ("e", 0)]


# Waiting


def test_the_wait_doubles_up_to_its_cap_and_half_of_it_is_certain() -> None:
    assert [backoff(number, 0.0).total_seconds() for number in (1, 2, 3, 9, 10, 500)] == [5, 10, 20, 1280, 1800, 1800]
    assert backoff(3, 0.5) == timedelta(seconds=30)


@given(number=st.integers(1, 10_000), jitter=st.floats(0, 1, exclude_max=True))
def test_every_wait_lies_within_its_bounds(number: int, jitter: float) -> None:
    wait = backoff(number, jitter).total_seconds()
    assert BACKOFF_BASE_SECONDS / 2 <= wait <= BACKOFF_CAP_SECONDS
    assert wait <= BACKOFF_BASE_SECONDS * 2.0 ** min(number - 1, 100)
    assert backoff(number + 1, 0.0) >= backoff(number, 0.0)


def test_the_jitter_comes_from_the_ledgers_ids(open_ledger: Callable[..., Ledger], tmp_path: Path) -> None:
    def retry_at(root: str, seed: int) -> datetime:
        ledger = open_ledger(tmp_path / root, ids=SeededIds(seed))
        record_delivery_failure(ledger, "d", "x", now=T0)
        (found,) = due(ledger, now=T0 + 60 * S)
        return found.process_after

    first = retry_at("one", 7)
    assert first == retry_at("two", 7)
    assert first != retry_at("three", 8)
    assert T0 + 5 * S <= first < T0 + 10 * S


def test_an_explicit_time_wins_over_the_backoff_and_a_past_one_means_due_now(ledger: Ledger) -> None:
    record_delivery_failure(ledger, "later", "x", T0 + YEAR, now=T0)
    record_delivery_failure(ledger, "past", "x", datetime(1970, 1, 1, tzinfo=UTC), now=T0)
    assert due_ids(ledger, T0) == ["past"]
    assert due(ledger, now=T0)[0].process_after == T0
    assert due_ids(ledger, T0 + YEAR - S) == ["past"]
    assert due_ids(ledger, T0 + YEAR) == ["past", "later"]


def test_due_is_ordered_by_time_and_then_by_id(ledger: Ledger) -> None:
    for name, second in (("b", 2), ("c", 1), ("a", 2)):
        record_delivery_failure(ledger, name, "x", T0 + second * S)
    assert due_ids(ledger, T0 + 2 * S) == ["c", "a", "b"]


# Ending


def test_the_last_allowed_attempt_that_fails_makes_a_dead_letter_with_its_last_error(ledger: Ledger) -> None:
    enqueue(ledger, "d", ["content"], max_attempts=3)
    for number in (1, 2, 3):
        attempt = begin_attempt(ledger, "d", now=T0 + number * S)
        record_delivery_failure(ledger, "d", f"e{number}", T0, attempt_id=attempt.attempt_id, now=T0 + number * S)
    (letter,) = dead_letters(ledger)
    assert (letter.delivery_id, letter.payload, letter.attempts) == ("d", ["content"], 3)
    assert (letter.reason, letter.error, letter.died_at) == (DeadReason.MAX_ATTEMPTS, "e3", T0 + 3 * S)
    assert due_ids(ledger, T0 + YEAR) == []
    with pytest.raises(Refusal, match=r"dead letter \(MAX_ATTEMPTS\)"):
        begin_attempt(ledger, "d", now=T0 + YEAR)


def test_the_default_limit_ends_what_fails_for_ever(ledger: Ledger) -> None:
    counts = [record_delivery_failure(ledger, "d", f"error {n}", T0) for n in range(1, 51)]
    assert counts == [*range(1, DEFAULT_MAX_ATTEMPTS + 1), *[DEFAULT_MAX_ATTEMPTS] * (50 - DEFAULT_MAX_ATTEMPTS)]
    assert [error for _, _, error in attempts(ledger)] == [f"error {n}" for n in range(1, DEFAULT_MAX_ATTEMPTS + 1)]
    assert len(dead_letters(ledger)) == 1


def test_a_permanent_failure_is_a_dead_letter_at_once(ledger: Ledger) -> None:
    assert record_delivery_failure(ledger, "d", "no such address", T0, permanent=True) == 1
    assert [(letter.reason, letter.error) for letter in dead_letters(ledger)] == [
        (DeadReason.PERMANENT, "no such address")
    ]
    assert due_ids(ledger, T0 + YEAR) == []


def test_a_permanent_failure_closes_the_attempt_that_another_worker_still_holds(ledger: Ledger) -> None:
    enqueue(ledger, "d")
    held = begin_attempt(ledger, "d")
    assert record_delivery_failure(ledger, "d", "no such address", attempt_id="unleased", permanent=True) == 2
    assert attempts(ledger) == [(1, "ABANDONED", None), (2, "FAILED", "no such address")]
    assert record_delivery_failure(ledger, "d", "x", attempt_id=held.attempt_id) == 2


def test_after_success_nothing_changes(ledger: Ledger) -> None:
    enqueue(ledger, "d")
    attempt = begin_attempt(ledger, "d")
    record_delivery_success(ledger, "d", attempt_id=attempt.attempt_id)
    before = rows(ledger, "SELECT * FROM deliveries"), attempts(ledger), rows(ledger, "SELECT count(*) FROM events")
    record_delivery_success(ledger, "d", attempt_id=attempt.attempt_id)
    record_delivery_success(ledger, "d")
    assert record_delivery_failure(ledger, "d", "late") == 1
    assert record_delivery_failure(ledger, "d", "late", attempt_id=attempt.attempt_id, permanent=True) == 1
    assert record_delivery_failure(ledger, "d", "late", attempt_id="other") == 1
    after = rows(ledger, "SELECT * FROM deliveries"), attempts(ledger), rows(ledger, "SELECT count(*) FROM events")
    assert before == after
    assert due_ids(ledger, T0 + YEAR) == []
    with pytest.raises(Refusal, match="it is delivered"):
        begin_attempt(ledger, "d")


def test_a_late_success_counts_even_after_the_lease_and_after_death(ledger: Ledger) -> None:
    enqueue(ledger, "d", max_attempts=1)
    attempt = begin_attempt(ledger, "d", now=T0, lease_seconds=10)
    assert due_ids(ledger, T0 + 10 * S) == []
    assert len(dead_letters(ledger)) == 1
    record_delivery_success(ledger, "d", attempt_id=attempt.attempt_id, now=T0 + 11 * S)
    assert dead_letters(ledger) == ()
    assert rows(ledger, "SELECT status, attempts FROM deliveries") == [("DELIVERED", 1)]
    assert attempts(ledger) == [(1, "LAPSED", None)], "the row of the attempt is evidence and stays"


def test_a_success_closes_the_attempt_that_another_worker_still_holds(ledger: Ledger) -> None:
    enqueue(ledger, "d")
    first = begin_attempt(ledger, "d", now=T0, lease_seconds=10)
    second = begin_attempt(ledger, "d", now=T0 + 10 * S)
    record_delivery_success(ledger, "d", attempt_id=first.attempt_id, now=T0 + 11 * S)
    assert attempts(ledger) == [(1, "LAPSED", None), (2, "ABANDONED", None)]
    assert record_delivery_failure(ledger, "d", "x", attempt_id=second.attempt_id) == 2


def test_a_success_of_an_unknown_delivery_is_refused(ledger: Ledger) -> None:
    with pytest.raises(Refusal, match="Delivery refused for typo: no such delivery"):
        record_delivery_success(ledger, "typo")
    assert rows(ledger, "SELECT count(*) FROM deliveries") == [(0,)]


def test_what_becomes_of_an_attempt_is_decided_by_count_and_permanence() -> None:
    assert verdict(1, 2) is None
    assert verdict(2, 2) is DeadReason.MAX_ATTEMPTS
    assert verdict(3, 2) is DeadReason.MAX_ATTEMPTS
    assert verdict(1, 2, permanent=True) is DeadReason.PERMANENT


# Evidence


def test_error_texts_are_bounded_and_stand_in_no_event(ledger: Ledger) -> None:
    enqueue(ledger, "d", "the-content")
    record_delivery_failure(ledger, "d", "secret-in-error " + "x" * 5000 + "\ud800", T0)
    ((_, _, error),) = attempts(ledger)
    assert len(error) == MAX_ERROR_CHARACTERS
    assert error.endswith("[cut: the whole has 5022 characters]")
    with pytest.raises(Refusal):
        begin_attempt(ledger, "d", now=T0 - S)
    details = [detail for (detail,) in rows(ledger, "SELECT detail FROM events")]
    assert all("secret" not in detail and "content" not in detail for detail in details)
    kinds = [kind for (kind,) in rows(ledger, "SELECT kind FROM events WHERE subject = 'd' ORDER BY seq")]
    assert kinds == ["delivery.enqueued", "delivery.failed", "refused"]


def test_events_tell_the_course_of_a_delivery(ledger: Ledger) -> None:
    enqueue(ledger, "d", max_attempts=2)
    begin_attempt(ledger, "d", now=T0, lease_seconds=1)
    begin_attempt(ledger, "d", now=T0 + 1 * S)
    record_delivery_failure(ledger, "d", "x", now=T0 + 2 * S)
    course = rows(ledger, "SELECT kind, detail FROM events WHERE subject = 'd' ORDER BY seq")
    assert [kind for kind, _ in course] == [
        "delivery.enqueued",
        "delivery.begun",
        "delivery.lapsed",
        "delivery.begun",
        "delivery.failed",
        "delivery.died",
    ]
    assert json.loads(course[-1][1]) == {"reason": "MAX_ATTEMPTS"}


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("UPDATE delivery_attempts SET outcome = 'SUCCEEDED'", "update refused"),
        ("DELETE FROM delivery_attempts", "delete refused"),
        (
            "INSERT OR REPLACE INTO delivery_attempts VALUES ('mine', 'x', 9, 'FAILED', '', '', '', '')",
            "replace refused",
        ),
        (
            "INSERT OR REPLACE INTO delivery_attempts VALUES ('new', 'd', 1, 'FAILED', '', '', '', '')",
            "replace refused",
        ),
    ],
)
def test_a_plain_client_cannot_rewrite_attempts(ledger: Ledger, sql: str, message: str) -> None:
    record_delivery_failure(ledger, "d", "x", attempt_id="mine")
    client = sqlite3.connect(ledger.path, isolation_level=None)
    with pytest.raises(sqlite3.IntegrityError, match=message):
        client.execute(sql)
    client.close()


# Arguments


def test_malformed_arguments_are_refused_before_anything_is_written(ledger: Ledger) -> None:
    naive = datetime(2026, 1, 5, 8, 0)
    calls: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: enqueue(ledger, ""), ValueError, "delivery_id must be"),
        (lambda: enqueue(ledger, "d", max_attempts=0), ValueError, "max_attempts must"),
        (lambda: enqueue(ledger, "d", max_attempts=True), TypeError, "max_attempts must"),
        (lambda: enqueue(ledger, "d", now=naive), ValueError, "now must be aware"),
        (lambda: due(ledger, now=naive), ValueError, "now must be aware"),
        (lambda: begin_attempt(ledger, "d", lease_seconds=0), ValueError, "lease_seconds must"),
        (lambda: begin_attempt(ledger, " "), ValueError, "delivery_id must be"),
        (lambda: begin_attempt(ledger, "d", now=naive), ValueError, "now must be aware"),
        (lambda: record_delivery_failure(ledger, "", "x"), ValueError, "delivery_id must be"),
        (lambda: record_delivery_failure(ledger, "d", "x", naive), ValueError, "process_after must be aware"),
        (lambda: record_delivery_failure(ledger, "d", "x", now=naive), ValueError, "now must be aware"),
        (lambda: record_delivery_failure(ledger, "d", None), TypeError, "error must be text"),  # type: ignore[arg-type] # what is refused
        (lambda: record_delivery_failure(ledger, "d", "x", permanent=1), TypeError, "permanent must"),  # type: ignore[arg-type] # what is refused
        (lambda: record_delivery_failure(ledger, "d", "x", attempt_id=""), ValueError, "attempt_id must be"),
        (lambda: record_delivery_success(ledger, "d", attempt_id=" "), ValueError, "attempt_id must be"),
        (lambda: record_delivery_success(ledger, "d", now=naive), ValueError, "now must be aware"),
    ]
    for call, error, message in calls:
        with pytest.raises(error, match=message):
            call()
    assert rows(ledger, "SELECT count(*) FROM deliveries") == [(0,)]


# Processes and any interleaving


FAIL_ONCE = """
import sys
from sovereign_agent.delivery import record_delivery_failure
from sovereign_agent.ledger import Ledger
with Ledger.open(sys.argv[1], busy_timeout_seconds=30) as ledger:
    print(*(record_delivery_failure(ledger, "d", "x") for _ in range(3)))
"""


def test_workers_that_fail_together_are_each_told_their_own_count(ledger: Ledger) -> None:
    enqueue(ledger, "d", max_attempts=1000)
    root = str(ledger.path.parent.parent)
    workers = [
        subprocess.Popen([sys.executable, "-c", FAIL_ONCE, root], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    counts = [int(count) for worker in workers for count in worker.communicate(timeout=60)[0].split()]
    assert sorted(counts) == list(range(1, 13))


class AnyCourse(RuleBasedStateMachine):
    """Any order of calls at any times keeps the books straight."""

    @initialize(limit=st.integers(1, 4))
    def begin(self, limit: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.ledger = Ledger.open(self.folder.name, ids=SeededIds(0), clock=lambda: T0)
        enqueue(self.ledger, "d", max_attempts=limit)
        self.limit = limit
        self.begun: list[str] = []
        self.delivered = False

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.close()
            self.folder.cleanup()

    def state(self) -> tuple[Any, ...]:
        return rows(self.ledger, "SELECT * FROM deliveries")[0]

    @rule(second=st.integers(0, 60), lease=st.integers(1, 20))
    def attempt(self, second: int, lease: int) -> None:
        expected = due_ids(self.ledger, T0 + second * S) == ["d"]
        try:
            self.begun.append(begin_attempt(self.ledger, "d", now=T0 + second * S, lease_seconds=lease).attempt_id)
        except Refusal:
            assert not expected
        else:
            assert expected

    @rule(
        second=st.integers(0, 60), which=st.integers(-1, 2), wait=st.integers(-5, 40) | st.none(), never=st.booleans()
    )
    def fail(self, second: int, which: int, wait: int | None, never: bool) -> None:
        attempt_id = self.begun[which % len(self.begun)] if which >= 0 and self.begun else None
        after = None if wait is None else T0 + (second + wait) * S
        before = self.state()
        count = record_delivery_failure(
            self.ledger, "d", "x", after, attempt_id=attempt_id, permanent=never and wait == 0, now=T0 + second * S
        )
        assert count == rows(self.ledger, "SELECT attempts FROM deliveries")[0][0]
        if self.delivered:
            assert self.state() == before

    @rule(second=st.integers(0, 60), which=st.integers(0, 2))
    def succeed(self, second: int, which: int) -> None:
        if self.begun and which == 0:
            record_delivery_success(self.ledger, "d", attempt_id=self.begun[-1], now=T0 + second * S)
            self.delivered = True

    @invariant()
    def every_attempt_has_one_number_and_at_most_one_is_open(self) -> None:
        if not hasattr(self, "ledger"):
            return
        ((count, status, open_number),) = rows(self.ledger, "SELECT attempts, status, attempt_number FROM deliveries")
        closed = [number for number, _, _ in attempts(self.ledger)]
        numbers = sorted([*closed, *([open_number] if open_number is not None else [])])
        assert numbers == list(range(1, count + 1))
        assert (status == "DELIVERED") == self.delivered
        if status != "PENDING":
            assert open_number is None
        elif open_number is None:
            assert count < self.limit


TestAnyCourse = AnyCourse.TestCase
TestAnyCourse.settings = settings(max_examples=30, stateful_step_count=20)
