"""Pulse: one durable signal starts at most one run, under one run id, however often and by however many it is asked.

It promises that a recorded signal is judged by the gate until one answer of it was stored, that a signal which
qualified keeps its run id over every attempt, and that a signal which fails holds up no other. It does not promise that
a payload runs once: like a watcher's, it is offered again after a crash and must use the run id as its idempotency key.
A gate's "no" is final, since a signal never changes: what should be judged again is a new signal.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from .clock import later, seconds, to_text
from .errors import Category, Refusal
from .ledger import Ledger, Transaction, checked_id, fresh_id, payload_differs, recorded, stored_instant
from .schedule import checked_callable, failure_text, json_object, lease_is_over, whole_number

_COMMIT_TRIES = 3


class PulseStatus(StrEnum):
    """What one pass came to for one signal."""

    RUNNING = "RUNNING"
    """Another call claimed it while this one asked the gate."""
    REPLAYED = "REPLAYED"
    """Another call settled it meanwhile; what this one would have done was dropped."""
    NO_FIRE = "NO_FIRE"
    """The gate declined; this signal is not judged again."""
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    """The gate or the payload failed; the signal is tried again later."""
    GIVEN_UP = "GIVEN_UP"
    """It failed for the last time."""


class SignalStatus(StrEnum):
    """Where a signal stands in the ledger."""

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    FAILED = "FAILED"
    """To be tried again."""
    SUCCEEDED = "SUCCEEDED"
    DECLINED = "DECLINED"
    GIVEN_UP = "GIVEN_UP"


@dataclass(frozen=True, slots=True)
class Signal:
    """A fact of the domain, as recorded."""

    signal_id: str
    kind: str
    payload: dict[str, object]
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class SignalState:
    """What became of a signal so far."""

    signal_id: str
    kind: str
    status: SignalStatus
    run_id: str | None
    """Given by its first claim, and never another."""
    attempt: int
    failure_count: int
    interruptions: int
    """Attempts that ended without success or failure: killed, interrupted, or outlived by their lease."""
    recorded_at: datetime
    due_at: datetime | None
    """After a failure: not tried again before this."""
    error: str | None


@dataclass(frozen=True, slots=True)
class PulseResult:
    """What one pass came to for one signal."""

    signal_id: str
    status: PulseStatus
    run_id: str | None
    detail: str
    """One sentence for a person."""


Gate = Callable[[Signal], bool]
"""Decides whether a signal qualifies; a pure function of the signal is all that it should be."""
PulsePayload = Callable[[str, Signal], object]
"""Gets `(run_id, signal)`; what it returns is ignored, what it raises is a failure."""


def record_signal(
    ledger: Ledger, signal_id: str, kind: str, payload: dict[str, object], *, now: datetime | None = None
) -> bool:
    """Record a signal once; a sender may repeat it.

    Parameters:
        ledger: The ledger.
        signal_id: The sender's id of this fact.
        kind: What sort of fact it is.
        payload: A JSON object of at most 16 KiB.
        now: Aware instant; the ledger's clock when omitted.

    Returns:
        True if it is new, False if exactly this signal was recorded before.

    Raises:
        Refusal: `category="signal"` if the id was recorded with another kind or payload.
        TypeError: An argument has the wrong type.
        ValueError: An id is malformed, or the payload is no JSON object or too large.
    """
    checked_id("signal_id", signal_id)
    checked_id("kind", kind)
    content = json_object("payload", payload)
    at = ledger.now(now)
    with recorded(ledger, at), ledger.write() as tx:
        added = tx.run(
            "INSERT INTO signals (signal_id, kind, payload, recorded_at) "
            "VALUES (:id, :kind, :content, :now) ON CONFLICT (signal_id) DO NOTHING",
            id=signal_id,
            kind=kind,
            content=content,
            now=to_text(at),
        )
        if added:
            tx.event("pulse.recorded", signal_id, at=at, signal_kind=kind)
            return True
        row = tx.one("SELECT kind, payload, payload_sha256 FROM signals WHERE signal_id = :id", id=signal_id)
        assert row is not None  # noqa: S101 - met by the insert above, in this transaction
        same = {"kind": row["kind"] == kind, "payload": not payload_differs(row, content)}
        differing = [name for name, equal in same.items() if not equal]
        if differing:
            why = f"it was recorded with another {' and '.join(differing)}"
            raise Refusal(Category.SIGNAL, signal_id, why, "a signal never changes: record a new one under its own id")
        return False


def list_signals(ledger: Ledger) -> tuple[SignalState, ...]:
    """Return what became of every signal, in the order in which they were recorded."""
    with ledger.read() as tx:
        rows = tx.all("SELECT * FROM signals ORDER BY seq")
    return tuple(
        SignalState(
            signal_id=row["signal_id"],
            kind=row["kind"],
            status=SignalStatus(row["status"]),
            run_id=row["run_id"],
            attempt=row["attempt"],
            failure_count=row["failure_count"],
            interruptions=row["interruptions"],
            recorded_at=stored_instant(row["recorded_at"]),
            due_at=None if row["due_at"] is None else stored_instant(row["due_at"]),
            error=row["error"],
        )
        for row in rows
    )


def run_pulse(
    ledger: Ledger,
    gate: Gate,
    payload: PulsePayload,
    *,
    max_failures: int = 3,
    retry_seconds: float = 60,
    lease_seconds: float = 120,
    now: datetime | None = None,
) -> tuple[PulseResult, ...]:
    """Make one pass over the signals that are due, oldest first, each at most once; a failure stops nobody else.

    Both callables run outside any transaction. A callable that never returns does stop the pass.

    Parameters:
        ledger: The ledger.
        gate: Returns True if the signal qualifies for a run. False is final: the signal is not judged again.
        payload: Gets `(run_id, signal)`.
        max_failures: After this many failures of gate and payload together a signal is given up, at least 1.
        retry_seconds: Delay after a failure, in seconds.
        lease_seconds: How long a payload may run before the signal may be offered again, in seconds, at least 1.
        now: The instant of the whole call, completion included; the ledger's clock when omitted.

    Returns:
        One result for each signal that this pass asked the gate about.

    Raises:
        Refusal: `category="ledger"` inside a transaction, or when the ledger fails.
        TypeError: An argument has the wrong type.
        ValueError: A number is out of range.
        BaseException: What is no `Exception` (KeyboardInterrupt, SystemExit) frees the signal for retry and goes on.
    """
    ledger.refuse_inside_transaction("run_pulse")
    checked_callable("gate", gate)
    checked_callable("payload", payload)
    bounds = _Bounds(
        whole_number("max_failures", max_failures),
        seconds("retry_seconds", retry_seconds, minimum=0),
        seconds("lease_seconds", lease_seconds),
    )
    at = ledger.now(now)
    with ledger.read() as tx:
        rows = tx.all(
            "SELECT signal_id, due_at FROM signals WHERE status IN ('WAITING', 'RUNNING', 'FAILED') ORDER BY seq"
        )
    results = (
        _try_signal(ledger, row["signal_id"], gate, payload, bounds, now)
        for row in rows
        if _is_due(ledger, row, bounds, at)
    )
    return tuple(result for result in results if result is not None)


@dataclass(frozen=True, slots=True)
class _Bounds:
    max_failures: int
    retry: timedelta
    lease: timedelta


@dataclass(frozen=True, slots=True)
class _Claim:
    """What a commit must present."""

    signal_id: str
    run_id: str
    attempt: int


def _try_signal(
    ledger: Ledger, signal_id: str, gate: Gate, payload: PulsePayload, bounds: _Bounds, now: datetime | None
) -> PulseResult | None:
    at = ledger.now(now)
    row = _enter(ledger, signal_id, bounds, at)
    if row is None:
        return None
    fires, failure, signal = False, None, None
    try:
        signal = Signal(signal_id, row["kind"], _object(row["payload"]), stored_instant(row["recorded_at"]))
        fires = _checked(gate(signal))
    except Exception as error:
        failure = failure_text(error)
    at = ledger.now(now)
    with ledger.write() as tx:
        current = _load(tx, signal_id)
        if current is None or current["revision"] != row["revision"]:
            return _overtaken(ledger, signal_id, current, at)
        if failure is not None or signal is None:
            return _store_failure(tx, current, failure or "", bounds, at)
        if not fires:
            _end(tx, signal_id, SignalStatus.DECLINED, at)
            tx.event("pulse.declined", signal_id, at=at)
            return PulseResult(signal_id, PulseStatus.NO_FIRE, None, "the gate declined; it is not asked again")
        claim = _store_claim(ledger, tx, current, bounds, at)
    return _run_payload(ledger, claim, payload, signal, bounds, now)


def _enter(ledger: Ledger, signal_id: str, bounds: _Bounds, at: datetime) -> sqlite3.Row | None:
    """Return the signal unless it is settled or held; mark a lease that is over, shorten one set by a clock ahead."""
    with ledger.read() as tx:
        row = _load(tx, signal_id)
    if row is None or row["status"] != SignalStatus.RUNNING or row["lease_expired_at"] is not None:
        return row if row is not None and _is_open(row) and _is_due(ledger, row, bounds, at) else None
    try:
        longest = later(at, seconds("lease_seconds", row["lease_seconds"]))
        live = _is_live(ledger, row, at)
    except (Refusal, TypeError, ValueError):  # another client wrote there: a lease that nobody can read holds nothing
        longest, live = at, False
    if live and row["lease_expires_at"] <= to_text(later(longest, ledger.max_clock_skew)):
        return None
    with ledger.write() as tx:
        current = _load(tx, signal_id)
        if current is None or current["revision"] != row["revision"]:
            return None
        if live:
            _set(tx, signal_id, lease_expires_at=to_text(longest))
            tx.event("clock.stepped_back", signal_id, at=at, run_id=row["run_id"])
            return None
        _set(tx, signal_id, lease_expired_at=to_text(at), interruptions=row["interruptions"] + 1)
        tx.event("pulse.lease_expired", signal_id, at=at, run_id=row["run_id"], attempt=row["attempt"])
        return _load(tx, signal_id)


def _run_payload(
    ledger: Ledger, claim: _Claim, payload: PulsePayload, signal: Signal, bounds: _Bounds, now: datetime | None
) -> PulseResult:
    failure: str | None = None
    try:
        try:
            payload(claim.run_id, signal)
        except Exception as error:
            failure = failure_text(error)
        return _commit(ledger, claim, failure, bounds, ledger.now(now))
    except Exception:
        raise
    except BaseException as stop:
        with suppress(Refusal):  # the lease then frees it later
            _store_interruption(ledger, claim, stop, ledger.now(now))
        raise


def _commit(ledger: Ledger, claim: _Claim, failure: str | None, bounds: _Bounds, at: datetime) -> PulseResult:
    """Store the outcome; a ledger that is busy is tried again, since the payload has run."""
    tries = _COMMIT_TRIES
    while True:
        tries -= 1
        try:
            with ledger.write() as tx:
                row = _load(tx, claim.signal_id)
                if row is None or not _is_held(row, claim):
                    detail = f"attempt {claim.attempt} was taken over; its result is dropped"
                    return PulseResult(claim.signal_id, PulseStatus.REPLAYED, claim.run_id, detail)
                if failure is not None:
                    return _store_failure(tx, row, failure, bounds, at)
                _end(tx, claim.signal_id, SignalStatus.SUCCEEDED, at)
                tx.event("pulse.succeeded", claim.signal_id, at=at, run_id=claim.run_id, attempt=claim.attempt)
                return PulseResult(claim.signal_id, PulseStatus.SUCCEEDED, claim.run_id, f"attempt {claim.attempt}")
        except Refusal as refusal:
            if tries == 0:
                refusal.add_note(f"The payload of {claim.run_id} has run; it is offered again once its lease is over.")
                raise


def _store_claim(ledger: Ledger, tx: Transaction, row: sqlite3.Row, bounds: _Bounds, at: datetime) -> _Claim:
    run_id = row["run_id"] or fresh_id(ledger, "run", lambda new: _run_exists(tx, new))
    claim = _Claim(row["signal_id"], run_id, row["attempt"] + 1)
    _set(
        tx,
        claim.signal_id,
        status=str(SignalStatus.RUNNING),
        run_id=claim.run_id,
        attempt=claim.attempt,
        holder=ledger.actor,
        lease_seconds=bounds.lease.total_seconds(),
        lease_expires_at=to_text(later(at, bounds.lease)),
        lease_expired_at=None,
        error=None,
    )
    tx.event("pulse.claimed", claim.signal_id, at=at, run_id=claim.run_id, attempt=claim.attempt)
    return claim


def _store_failure(tx: Transaction, row: sqlite3.Row, failure: str, bounds: _Bounds, at: datetime) -> PulseResult:
    """Count a failure of the gate or the payload; at the bound, give the signal up."""
    count = row["failure_count"] + 1
    last = count >= bounds.max_failures
    _set(
        tx,
        row["signal_id"],
        status=str(SignalStatus.GIVEN_UP if last else SignalStatus.FAILED),
        failure_count=count,
        error=failure,
        due_at=to_text(later(at, bounds.retry)),
        ended_at=to_text(at) if last else None,
    )
    tx.event(
        "pulse.given_up" if last else "pulse.failed",
        row["signal_id"],
        at=at,
        run_id=row["run_id"],
        failures=count,
        error=failure.split(":", 1)[0],
    )
    status = PulseStatus.GIVEN_UP if last else PulseStatus.FAILED
    return PulseResult(row["signal_id"], status, row["run_id"], f"{count} of {bounds.max_failures}: {failure}")


def _store_interruption(ledger: Ledger, claim: _Claim, stop: BaseException, at: datetime) -> None:
    """Free the signal: it is due at once, and the attempt is no failure, since nobody knows how it would have ended."""
    with ledger.write() as tx:
        row = _load(tx, claim.signal_id)
        if row is None or not _is_held(row, claim):
            return
        _set(
            tx,
            claim.signal_id,
            status=str(SignalStatus.FAILED),
            error=f"interrupted by {type(stop).__name__}",
            interruptions=row["interruptions"] + 1,
            due_at=None,
        )
        tx.event("pulse.interrupted", claim.signal_id, at=at, run_id=claim.run_id, attempt=claim.attempt)


def _end(tx: Transaction, signal_id: str, status: SignalStatus, at: datetime) -> None:
    _set(tx, signal_id, status=str(status), ended_at=to_text(at), error=None)


def _set(tx: Transaction, signal_id: str, **changes: object) -> None:
    """Change columns of one signal and raise its revision, against which decisions are compared."""
    columns = "".join(f", {column} = :{column}" for column in changes)
    tx.run(
        f"UPDATE signals SET revision = revision + 1{columns} WHERE signal_id = :signal_id",  # noqa: S608 - our own columns
        signal_id=signal_id,
        **changes,
    )


def _overtaken(ledger: Ledger, signal_id: str, row: sqlite3.Row | None, at: datetime) -> PulseResult:
    if row is None:
        return PulseResult(signal_id, PulseStatus.REPLAYED, None, "it is gone from the ledger")
    if _is_live(ledger, row, at):
        return PulseResult(signal_id, PulseStatus.RUNNING, row["run_id"], "another call claimed it meanwhile")
    return PulseResult(signal_id, PulseStatus.REPLAYED, row["run_id"], "another call settled it meanwhile")


def _is_open(row: sqlite3.Row) -> bool:
    return row["status"] in (SignalStatus.WAITING, SignalStatus.RUNNING, SignalStatus.FAILED)


def _is_due(ledger: Ledger, row: sqlite3.Row, bounds: _Bounds, at: datetime) -> bool:
    """Tell whether a signal may be tried; a due time beyond any retry was set by a clock that was ahead."""
    furthest = later(later(at, bounds.retry), ledger.max_clock_skew)
    return row["due_at"] is None or not to_text(at) < row["due_at"] <= to_text(furthest)


def _is_live(ledger: Ledger, row: sqlite3.Row, at: datetime) -> bool:
    if row["status"] != SignalStatus.RUNNING or row["lease_expired_at"] is not None:
        return False
    own = row["holder"] == ledger.actor
    return not lease_is_over(stored_instant(row["lease_expires_at"]), at, own=own, skew=ledger.max_clock_skew)


def _is_held(row: sqlite3.Row, claim: _Claim) -> bool:
    """Tell whether an attempt is still the latest one: the attempt is the fence."""
    return bool(row["status"] == SignalStatus.RUNNING and row["attempt"] == claim.attempt)


def _run_exists(tx: Transaction, run_id: str) -> bool:
    return tx.one("SELECT 1 FROM signals WHERE run_id = :id", id=run_id) is not None


def _load(tx: Transaction, signal_id: str) -> sqlite3.Row | None:
    return tx.one("SELECT * FROM signals WHERE signal_id = :id", id=signal_id)


def _object(text: str) -> dict[str, object]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise TypeError(f"the recorded payload is no JSON object but {type(value).__name__}")
    return value


def _checked(answer: object) -> bool:
    if not isinstance(answer, bool):
        raise TypeError(f"the gate must return True or False, not {type(answer).__name__}")
    return answer
