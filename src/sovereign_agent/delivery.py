"""Deliveries: every attempt to send something is counted in the ledger, so a restart cannot turn attempt two into one.

An attempt holds a lease while it is made; retries back off; what cannot be delivered ends as a dead letter with its
reason. This is at least once: an attempt whose lease ran out may still have reached its receiver, so a receiver must
take the delivery id as its idempotency key. Nothing here sends anything.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from .clock import as_utc, later, seconds, to_text
from .errors import Category, Refusal, shorten, shown
from .ledger import Ledger, Transaction, checked_depth, checked_id, fresh_id, payload_differs, recorded, stored_instant

BACKOFF_BASE_SECONDS = 10
"""Upper end of the wait after the first failure, in seconds; it doubles with each further attempt."""
BACKOFF_CAP_SECONDS = 3600
"""Longest wait between two attempts, in seconds."""
DEFAULT_MAX_ATTEMPTS = 12
"""Attempts before a delivery becomes a dead letter; with the backoff above their waits add up to 1.7 to 3.4 hours."""
MAX_ERROR_CHARACTERS = 2000
"""Longest error text that is kept, in characters; a longer one is cut, and says so."""

_LARGEST_MAX_ATTEMPTS = 1_000_000


class DeliveryStatus(StrEnum):
    """Where a delivery stands."""

    PENDING = "PENDING"
    DELIVERED = "DELIVERED"
    DEAD = "DEAD"


class DeadReason(StrEnum):
    """Why a delivery became a dead letter."""

    PERMANENT = "PERMANENT"
    """The caller said that trying again cannot help."""
    MAX_ATTEMPTS = "MAX_ATTEMPTS"
    """All its attempts failed or lapsed."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One thing to deliver."""

    delivery_id: str
    payload: object
    """The JSON value given to `enqueue`; None where only a failure has named this id, or an archive holds it."""
    attempts: int
    """Attempts begun so far, whatever became of them."""
    process_after: datetime
    """Not to be attempted before."""
    status: DeliveryStatus


@dataclass(frozen=True, slots=True)
class Attempt:
    """The right to try one delivery once, until its lease ends."""

    attempt_id: str
    number: int
    """1 for the first attempt of this delivery."""
    expires_at: datetime
    """After this instant another worker may begin the next attempt."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A delivery that was given up."""

    delivery_id: str
    payload: object
    attempts: int
    reason: DeadReason
    error: str | None
    """The error of its latest failure, at most `MAX_ERROR_CHARACTERS`; None where every attempt lapsed."""
    died_at: datetime


# Deciding


def backoff(number: int, jitter: float) -> timedelta:
    """Return how long to wait after the failure of an attempt.

    `ceiling = min(BACKOFF_CAP_SECONDS, BACKOFF_BASE_SECONDS * 2 ** (number - 1))`, and the wait is
    `ceiling / 2 + jitter * ceiling / 2`: the "equal jitter" of Marc Brooker, "Exponential Backoff And Jitter", AWS
    Architecture Blog, 2015. Half of the wait is certain, and the other half spreads deliveries that failed together.

    Parameters:
        number: Number of the attempt that failed, from 1.
        jitter: From 0 to 1, from `Ledger.ids`.

    Raises:
        ValueError: `jitter` lies outside, as a source of the caller's may have it.
    """
    if not 0 <= jitter <= 1:  # NaN fails every comparison
        raise ValueError(f"jitter must lie between 0 and 1: {shown(jitter)}")
    ceiling = min(BACKOFF_CAP_SECONDS, BACKOFF_BASE_SECONDS * 2 ** min(number - 1, 32))
    return timedelta(seconds=ceiling / 2 + jitter * ceiling / 2)


def verdict(attempts: int, max_attempts: int, *, permanent: bool = False) -> DeadReason | None:
    """Return why a delivery is dead after an attempt that did not succeed, or None if it is to be tried again."""
    if permanent:
        return DeadReason.PERMANENT
    return DeadReason.MAX_ATTEMPTS if attempts >= max_attempts else None


# Public functions


def enqueue(
    ledger: Ledger,
    delivery_id: str,
    payload: object = None,
    *,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    now: datetime | None = None,
) -> Delivery:
    """Add a delivery, due at once. Again with the same payload and limit it changes nothing.

    Call it inside the `Ledger.write()` of the state change that the delivery tells of, so that both commit or neither.

    Parameters:
        ledger: Where deliveries are kept.
        delivery_id: The idempotency key that the receiver gets, too.
        payload: A JSON value (so with lists, not tuples, and text as keys).
        max_attempts: Attempts before it becomes a dead letter, 1 to a million.
        now: Aware instant of the call; the ledger's clock when omitted.

    Returns:
        The delivery as the ledger holds it. One that a failure had created keeps its attempts and gets this payload.

    Raises:
        Refusal: `category="delivery"`: this id was enqueued with another payload or limit.
        TypeError: An argument has the wrong type, or the payload is no JSON value.
        ValueError: An argument is out of its range, or the payload holds NaN or infinity, or more than 100 levels.
    """
    checked_id("delivery_id", delivery_id)
    encoded = _encode(payload)
    if isinstance(max_attempts, bool) or not isinstance(max_attempts, int):
        raise TypeError(
            f"max_attempts must be a whole number, not {type(max_attempts).__name__}: {shown(max_attempts)}"
        )
    if not 1 <= max_attempts <= _LARGEST_MAX_ATTEMPTS:
        raise ValueError(f"max_attempts must lie between 1 and {_LARGEST_MAX_ATTEMPTS}: {shown(max_attempts)}")
    with recorded(ledger, now), ledger.write() as tx:
        at = ledger.now(now)
        row = _read(tx, delivery_id)
        if row is None:
            row = _create(tx, delivery_id, at)
        if row["enqueued_at"] is None:
            tx.run(
                "UPDATE deliveries SET payload = :payload, max_attempts = :max_attempts, enqueued_at = :at "
                "WHERE delivery_id = :delivery_id",
                payload=encoded,
                max_attempts=max_attempts,
                at=to_text(at),
                delivery_id=delivery_id,
            )
            tx.event("delivery.enqueued", delivery_id, at=at, max_attempts=max_attempts)
            row = _reread(tx, delivery_id)
        other = [
            name
            for name, differs in (
                ("payload", payload_differs(row, encoded)),
                ("max_attempts", row["max_attempts"] != max_attempts),
            )
            if differs
        ]
        if other:
            raise _refuse(
                delivery_id, f"it was enqueued before with another {' and '.join(other)}", "use another delivery id"
            )
        return _delivery(row)


def due(ledger: Ledger, *, now: datetime | None = None) -> tuple[Delivery, ...]:
    """Return the deliveries that may be attempted now: pending, their time come, without a live attempt.

    A lease that this call finds expired is marked as lapsed and never lives again; a read-only ledger is only read.

    Parameters:
        ledger: Where deliveries are kept.
        now: Aware instant of the call; the ledger's clock when omitted.

    Returns:
        Deliveries by `process_after`, then by id.

    Raises:
        Refusal: `category="ledger"` inside `read()` when an expired lease has to be marked.
        ValueError: `now` is naive.
    """
    at = ledger.now(now)
    with ledger.read() as tx:
        lapsed = tx.all(
            "SELECT delivery_id FROM deliveries WHERE attempt_id IS NOT NULL AND lease_expires_at <= :at",
            at=to_text(at),
        )
    if lapsed and not ledger.read_only:
        with ledger.write() as tx:
            for row in lapsed:
                _settle(tx, _reread(tx, row["delivery_id"]), at)
    with ledger.read() as tx:
        rows = tx.all(
            "SELECT * FROM deliveries WHERE status = 'PENDING' AND process_after <= :at "
            "AND (attempt_id IS NULL OR (lease_expires_at <= :at AND attempts < max_attempts)) "
            "ORDER BY process_after, delivery_id",
            at=to_text(at),
        )
    return tuple(_delivery(row) for row in rows)


def begin_attempt(
    ledger: Ledger, delivery_id: str, *, now: datetime | None = None, lease_seconds: float = 60
) -> Attempt:
    """Begin the next attempt of a delivery that is due, and count it before anything is sent.

    Parameters:
        ledger: Where deliveries are kept.
        delivery_id: An enqueued delivery.
        now: Aware instant of the call; the ledger's clock when omitted.
        lease_seconds: How long no other attempt may begin, in seconds, 1 to ten years. An attempt names no host, so no
            clock skew is added: choose a lease longer than the attempt and the skew together.

    Returns:
        The attempt, whose id goes with its success or failure.

    Raises:
        Refusal: `category="delivery"`: unknown, not due yet, delivered, dead, or another attempt's lease is live.
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of its range.
    """
    checked_id("delivery_id", delivery_id)
    lease = seconds("lease_seconds", lease_seconds)
    with recorded(ledger, now):
        with ledger.write() as tx:
            at = ledger.now(now)
            row = _read(tx, delivery_id)
            if row is None:
                raise _refuse(delivery_id, "no such delivery", "enqueue it first")
            row = _settle(tx, row, at)
            refusal = _why_not(row, at)
            if refusal is None:
                attempt = Attempt(_new_id(ledger, tx), row["attempts"] + 1, later(at, lease))
                tx.run(
                    "UPDATE deliveries SET attempts = :number, attempt_id = :attempt_id, attempt_number = :number, "
                    "attempt_begun_at = :at, lease_expires_at = :expires_at WHERE delivery_id = :delivery_id",
                    number=attempt.number,
                    attempt_id=attempt.attempt_id,
                    at=to_text(at),
                    expires_at=to_text(attempt.expires_at),
                    delivery_id=delivery_id,
                )
                tx.event("delivery.begun", delivery_id, at=at, attempt_id=attempt.attempt_id, number=attempt.number)
                return attempt
        raise refusal  # after the commit, so that a lapse it found stays marked


def record_delivery_failure(
    ledger: Ledger,
    delivery_id: str,
    error: str,
    process_after: datetime | None = None,
    *,
    attempt_id: str | None = None,
    permanent: bool = False,
    now: datetime | None = None,
) -> int:
    """Record that an attempt failed and when to try again. An unknown delivery is created by its first failure.

    The same attempt counts once. After success, and for a dead letter, nothing changes.

    Parameters:
        ledger: Where deliveries are kept.
        delivery_id: The delivery.
        error: What went wrong; kept in `delivery_attempts`, at most `MAX_ERROR_CHARACTERS`, and in no event.
        process_after: Not to be tried again before this aware instant; one that has passed means due now. When omitted,
            `backoff` of the attempt's number decides. A dead letter is not tried again, whatever this says.
        attempt_id: The attempt that failed, from `begin_attempt` or the caller's own unique id. When omitted, the open
            attempt of this delivery is meant; without one this failure is an attempt of its own.
        permanent: Trying again cannot help: the delivery becomes a dead letter.
        now: Aware instant of the call; the ledger's clock when omitted.

    Returns:
        How many attempts this delivery has had, read in the same transaction.

    Raises:
        Refusal: `category="delivery"`: the attempt belongs to another delivery.
        TypeError: An argument has the wrong type.
        ValueError: An id is malformed or a time is naive.
    """
    checked_id("delivery_id", delivery_id)
    text = _bounded(error)
    wanted = None if process_after is None else as_utc("process_after", process_after)
    if not isinstance(permanent, bool):
        raise TypeError(f"permanent must be True or False: {shown(permanent)}")
    _checked_attempt_id(attempt_id)
    with recorded(ledger, now), ledger.write() as tx:
        at = ledger.now(now)
        row = _read(tx, delivery_id)
        if row is None:
            row = _create(tx, delivery_id, at)
        ended = _refuse_foreign(tx, delivery_id, attempt_id)
        if ended or row["status"] != DeliveryStatus.PENDING:
            return int(row["attempts"])
        attempt, row = _attempt(ledger, tx, row, attempt_id, at)
        reason = verdict(row["attempts"], row["max_attempts"], permanent=permanent)
        retry_at = None
        if reason is None:
            wait = later(at, backoff(attempt.number, ledger.ids.jitter())) if wanted is None else max(wanted, at)
            # A late report of an earlier attempt says nothing about when the newest one is to be followed.
            retry_at = wait if attempt.number == row["attempts"] else stored_instant(row["process_after"])
        _close(tx, delivery_id, attempt, "FAILED", at, error=text, process_after=retry_at)
        tx.event("delivery.failed", delivery_id, at=at, attempt_id=attempt.attempt_id, number=attempt.number)
        if reason is not None:
            _die(tx, delivery_id, reason, at)
        elif retry_at is not None:
            tx.run(
                "UPDATE deliveries SET process_after = :process_after WHERE delivery_id = :delivery_id",
                process_after=to_text(retry_at),
                delivery_id=delivery_id,
            )
        return int(row["attempts"])


def record_delivery_success(
    ledger: Ledger, delivery_id: str, *, attempt_id: str | None = None, now: datetime | None = None
) -> None:
    """Record that a delivery reached its receiver; nothing changes afterwards.

    It counts from any attempt, also one whose lease has run out and for a dead letter: it says what has happened.

    Parameters:
        ledger: Where deliveries are kept.
        delivery_id: A known delivery.
        attempt_id: As for `record_delivery_failure`.
        now: Aware instant of the call; the ledger's clock when omitted.

    Raises:
        Refusal: `category="delivery"`: the delivery is unknown, or the attempt belongs to another one.
        TypeError: An argument has the wrong type.
        ValueError: An id is malformed or `now` is naive.
    """
    checked_id("delivery_id", delivery_id)
    _checked_attempt_id(attempt_id)
    with recorded(ledger, now), ledger.write() as tx:
        at = ledger.now(now)
        row = _read(tx, delivery_id)
        if row is None:
            raise _refuse(delivery_id, "no such delivery", "enqueue it first")
        ended = _refuse_foreign(tx, delivery_id, attempt_id)
        if row["status"] == DeliveryStatus.DELIVERED:
            return
        if not ended:
            attempt, row = _attempt(ledger, tx, row, attempt_id, at)
            attempt_id = attempt.attempt_id
            _close(tx, delivery_id, attempt, "SUCCEEDED", at)
        _abandon(tx, delivery_id, at)
        tx.run(
            "UPDATE deliveries SET status = 'DELIVERED', reason = NULL, ended_at = :at "
            "WHERE delivery_id = :delivery_id",
            at=to_text(at),
            delivery_id=delivery_id,
        )
        tx.event("delivery.succeeded", delivery_id, at=at, attempt_id=attempt_id, attempts=row["attempts"])


def dead_letters(ledger: Ledger) -> tuple[DeadLetter, ...]:
    """Return the deliveries that were given up, the earliest first.

    Parameters:
        ledger: Where deliveries are kept.
    """
    with ledger.read() as tx:
        rows = tx.all(
            "SELECT d.*, (SELECT error FROM delivery_attempts AS a WHERE a.delivery_id = d.delivery_id "
            "AND a.outcome = 'FAILED' ORDER BY a.number DESC LIMIT 1) AS error "
            "FROM deliveries AS d WHERE status = 'DEAD' ORDER BY ended_at, delivery_id"
        )
    return tuple(
        DeadLetter(
            delivery_id=row["delivery_id"],
            payload=json.loads(row["payload"]),
            attempts=row["attempts"],
            reason=DeadReason(row["reason"]),
            error=row["error"],
            died_at=stored_instant(row["ended_at"]),
        )
        for row in rows
    )


# Storing


@dataclass(frozen=True, slots=True)
class _Open:
    """An attempt that is about to end."""

    attempt_id: str
    number: int
    begun_at: str


def _read(tx: Transaction, delivery_id: str) -> sqlite3.Row | None:
    return tx.one("SELECT * FROM deliveries WHERE delivery_id = :delivery_id", delivery_id=delivery_id)


def _reread(tx: Transaction, delivery_id: str) -> sqlite3.Row:
    row = _read(tx, delivery_id)
    assert row is not None  # noqa: S101 - written or read in this transaction
    return row


def _create(tx: Transaction, delivery_id: str, now: datetime) -> sqlite3.Row:
    tx.run(
        "INSERT INTO deliveries (delivery_id, payload, status, attempts, max_attempts, process_after) "
        "VALUES (:delivery_id, 'null', 'PENDING', 0, :max_attempts, :at)",
        delivery_id=delivery_id,
        max_attempts=DEFAULT_MAX_ATTEMPTS,
        at=to_text(now),
    )
    return _reread(tx, delivery_id)


def _new_id(ledger: Ledger, tx: Transaction) -> str:
    return fresh_id(ledger, "attempt", lambda new: _owner(tx, new) is not None)


def _owner(tx: Transaction, attempt_id: str) -> tuple[str, bool] | None:
    """Return which delivery an attempt belongs to, and whether it has ended."""
    row = tx.one(
        "SELECT delivery_id, 1 AS ended FROM delivery_attempts WHERE attempt_id = :attempt_id "
        "UNION ALL SELECT delivery_id, 0 FROM deliveries WHERE attempt_id = :attempt_id",
        attempt_id=attempt_id,
    )
    return None if row is None else (row["delivery_id"], bool(row["ended"]))


def _refuse_foreign(tx: Transaction, delivery_id: str, attempt_id: str | None) -> bool:
    """Tell whether an attempt of this delivery has ended before; refuse one of another delivery."""
    owner = None if attempt_id is None else _owner(tx, attempt_id)
    if owner is None:
        return False
    if owner[0] != delivery_id:
        raise _refuse(
            delivery_id,
            f"attempt {shorten(attempt_id)} belongs to delivery {shorten(owner[0])}",
            "give each attempt an id of its own",
        )
    return owner[1]


def _attempt(
    ledger: Ledger, tx: Transaction, row: sqlite3.Row, attempt_id: str | None, now: datetime
) -> tuple[_Open, sqlite3.Row]:
    """Return the open attempt if that is meant; count a new one otherwise."""
    if row["attempt_id"] is not None and attempt_id in (None, row["attempt_id"]):
        return _Open(row["attempt_id"], row["attempt_number"], row["attempt_begun_at"]), row
    tx.run("UPDATE deliveries SET attempts = attempts + 1 WHERE delivery_id = :id", id=row["delivery_id"])
    counted = _reread(tx, row["delivery_id"])
    return _Open(attempt_id or _new_id(ledger, tx), counted["attempts"], to_text(now)), counted


def _close(
    tx: Transaction,
    delivery_id: str,
    attempt: _Open,
    outcome: str,
    now: datetime,
    *,
    error: str | None = None,
    process_after: datetime | None = None,
) -> None:
    """Write the one row of an attempt, and take it off the delivery if it was the open one."""
    tx.run(
        "INSERT INTO delivery_attempts "
        "(attempt_id, delivery_id, number, outcome, begun_at, ended_at, error, process_after) "
        "VALUES (:attempt_id, :delivery_id, :number, :outcome, :begun_at, :at, :error, :process_after)",
        attempt_id=attempt.attempt_id,
        delivery_id=delivery_id,
        number=attempt.number,
        outcome=outcome,
        begun_at=attempt.begun_at,
        at=to_text(now),
        error=error,
        process_after=None if process_after is None else to_text(process_after),
    )
    tx.run(
        "UPDATE deliveries SET attempt_id = NULL, attempt_number = NULL, attempt_begun_at = NULL, "
        "lease_expires_at = NULL WHERE attempt_id = :attempt_id",
        attempt_id=attempt.attempt_id,
    )


def _settle(tx: Transaction, row: sqlite3.Row, now: datetime) -> sqlite3.Row:
    """Mark the open attempt as lapsed if its lease has ended, and return the delivery as it then is."""
    if row["attempt_id"] is None or stored_instant(row["lease_expires_at"]) > now:
        return row
    attempt = _Open(row["attempt_id"], row["attempt_number"], row["attempt_begun_at"])
    _close(tx, row["delivery_id"], attempt, "LAPSED", now)
    tx.event("delivery.lapsed", row["delivery_id"], at=now, attempt_id=attempt.attempt_id, number=attempt.number)
    reason = verdict(row["attempts"], row["max_attempts"])
    if reason is not None:
        _die(tx, row["delivery_id"], reason, now)
    return _reread(tx, row["delivery_id"])


def _abandon(tx: Transaction, delivery_id: str, now: datetime) -> None:
    """Close an attempt that is still open when the delivery ends by another one's report."""
    row = _reread(tx, delivery_id)
    if row["attempt_id"] is not None:
        attempt = _Open(row["attempt_id"], row["attempt_number"], row["attempt_begun_at"])
        _close(tx, delivery_id, attempt, "ABANDONED", now)


def _die(tx: Transaction, delivery_id: str, reason: DeadReason, now: datetime) -> None:
    _abandon(tx, delivery_id, now)
    tx.run(
        "UPDATE deliveries SET status = 'DEAD', reason = :reason, ended_at = :at WHERE delivery_id = :delivery_id",
        reason=reason,
        at=to_text(now),
        delivery_id=delivery_id,
    )
    tx.event("delivery.died", delivery_id, at=now, reason=reason)


def _why_not(row: sqlite3.Row, now: datetime) -> Refusal | None:
    """Return why the next attempt of a settled delivery may not begin, or None."""
    delivery_id = row["delivery_id"]
    if row["status"] == DeliveryStatus.DELIVERED:
        return _refuse(delivery_id, "it is delivered", "do not send it again")
    if row["status"] == DeliveryStatus.DEAD:
        return _refuse(delivery_id, f"it is a dead letter ({row['reason']})", "enqueue it again under another id")
    if row["attempt_id"] is not None:
        return _refuse(
            delivery_id,
            f"attempt {row['attempt_number']} holds a live lease until {row['lease_expires_at']}",
            "wait for its report or the end of its lease",
        )
    if stored_instant(row["process_after"]) > now:
        return _refuse(delivery_id, f"it is not due until {row['process_after']}", "ask due() which deliveries are")
    return None


def _delivery(row: sqlite3.Row) -> Delivery:
    return Delivery(
        delivery_id=row["delivery_id"],
        payload=json.loads(row["payload"]),
        attempts=row["attempts"],
        process_after=stored_instant(row["process_after"]),
        status=DeliveryStatus(row["status"]),
    )


def _refuse(delivery_id: str, why: str, remedy: str) -> Refusal:
    return Refusal(Category.DELIVERY, delivery_id, why, remedy)


# Arguments


def _checked_attempt_id(attempt_id: object) -> None:
    if attempt_id is not None:
        checked_id("attempt_id", attempt_id)


def _encode(payload: object) -> str:
    """Return the payload as compact JSON; refuse what would not come back equal."""
    checked_depth("payload", payload)
    try:
        text = json.dumps(payload, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except TypeError as error:
        raise TypeError(f"payload must be a JSON value: {error}") from None
    except ValueError as error:
        raise ValueError(f"payload must be a finite JSON value: {error}") from None
    if json.loads(text) != payload:
        raise TypeError(f"payload must be a JSON value, with lists and text as keys: {shorten(payload)}")
    return text


def _bounded(error: object) -> str:
    """Return an error text that can be stored, cut to its bound."""
    if not isinstance(error, str):
        raise TypeError(f"error must be text, not {type(error).__name__}: {shorten(error)}")
    text = error.encode(errors="backslashreplace").decode()
    if len(text) <= MAX_ERROR_CHARACTERS:
        return text
    note = f" [cut: the whole has {len(text)} characters]"
    return text[: MAX_ERROR_CHARACTERS - len(note)] + note
