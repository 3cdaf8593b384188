"""Automation: the unattended watcher, which asks a condition when a slot is due and runs a payload when it fires.

It promises that a due slot is claimed once, that the payload gets the same run id until the run has ended, that the
condition's state is committed only after the payload succeeded, and that every slot stands in the history with its
fate. It does not promise that a payload runs once: a process that dies, or outlives its lease, leaves a run that is
offered again, so the payload must use the run id as its idempotency key. Nor does it promise that anyone calls
`run_due` in time, or that a callable returns.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from .clock import as_utc, later, seconds, to_text
from .errors import Category, Refusal, shorten, shown
from .ledger import Ledger, Transaction, checked_id, fresh_id, readable, recorded, stored_instant
from .schedule import (
    CatchUp,
    Grid,
    Plan,
    Span,
    before,
    checked_callable,
    failure_text,
    json_object,
    lease_is_over,
    next_slot,
    plan,
    pulled_back,
    through,
    whole_number,
)

_COMMIT_TRIES = 3
_LEASE_OVER = "its lease is over"
# Every automation of which `enter` may say anything but "not due": due, further ahead than its interval (give or take a
# second, for the rounding of julianday), or with an open run. Each part is answered by an index of its own.
_WORTH_A_LOOK = """
    SELECT   *
    FROM     automations
    WHERE    enabled = 1 AND automation_id IN (
                 SELECT automation_id FROM automations WHERE enabled = 1 AND next_run_at <= :now
                 UNION
                 SELECT automation_id FROM automations
                 WHERE  enabled = 1 AND floor_at < next_run_at
                        AND julianday(next_run_at) * 86400 - interval_seconds > julianday(:now) * 86400 + :skew - 1
                 UNION
                 SELECT automation_id FROM automation_runs WHERE status IN ('RUNNING', 'FAILED')
             )
    ORDER BY next_run_at, automation_id
    """
_held: ContextVar[Mapping[str, int]] = ContextVar("held", default={})  # noqa: B039 - never changed in place
"""Attempts whose payload runs in this context, by run id: a payload knows its run id only, but is fenced by attempt."""


class Status(StrEnum):
    """What one call of `run_due` came to."""

    DISABLED = "DISABLED"
    """Switched off, by an operator or by failures; nothing changed."""
    NOT_DUE = "NOT_DUE"
    """No slot is due; the condition was not evaluated."""
    RUNNING = "RUNNING"
    """Another call holds a live run."""
    REPLAYED = "REPLAYED"
    """What this call would have done was settled by another call meanwhile; its own result was dropped."""
    NO_FIRE = "NO_FIRE"
    """The condition did not fire: state and next due time saved, no run row."""
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    """The payload or the condition failed; without a run id it was the condition, or a handler is missing."""


class RunStatus(StrEnum):
    """Where a run stands. A run that is `RUNNING` or `FAILED` is unfinished: it is offered again."""

    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    ABANDONED = "ABANDONED"
    """Closed unfinished, because the condition no longer fired or fired with another message."""


class Fate(StrEnum):
    """What became of a range of slots."""

    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    ABANDONED = "ABANDONED"
    NO_FIRE = "NO_FIRE"
    """Evaluated, quiet."""
    CONDITION_FAILED = "CONDITION_FAILED"
    COALESCED = "COALESCED"
    """Passed unattended, and one later evaluation or run stands for them."""
    MISSED = "MISSED"
    """Seen later than the grace period, and skipped by policy."""
    DISABLED = "DISABLED"
    """Passed while the automation was switched off."""
    SKIPPED = "SKIPPED"
    """Passed over by an operator who moved the next due time."""


@dataclass(frozen=True, slots=True)
class WatchDecision:
    """What a condition returns. A pure function from the previous state to this is all that a condition should be."""

    fire: bool
    message: str
    """Given to the payload; with the slot it makes the identity of a run."""
    state: dict[str, object]
    """The next state, a JSON object of at most 16 KiB. It is committed at once if quiet, after success if fired."""


Condition = Callable[[dict[str, object]], WatchDecision]
"""Gets the state that the latest success or quiet tick returned, `{}` at first."""
Payload = Callable[[str, str], object]
"""Gets `(run_id, message)`; what it returns is ignored, what it raises is a failure."""


@dataclass(frozen=True, slots=True)
class Handler:
    """The two callables behind a definition's `payload` name.

    Raises:
        TypeError: One of them is not callable.
    """

    condition: Condition
    payload: Payload

    def __post_init__(self) -> None:
        for name in ("condition", "payload"):
            checked_callable(name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class Automation:
    """One definition and where it stands, as read from the ledger."""

    automation_id: str
    payload: str
    """The name under which `run_all_due` looks up a `Handler`."""
    interval_seconds: float
    first_run_at: datetime
    """The first slot; the others follow at the interval."""
    max_failures: int
    """Failures in a row that disable it."""
    catch_up: CatchUp
    grace_seconds: float
    """A slot seen later than this counts as unattended."""
    lease_seconds: float
    """How long a run may go without `renew_run`."""
    retry_seconds: float | None
    """Delay after a failed payload; None means the interval."""
    version: int
    """Raised by every `update`; a run that began under an older one cannot commit its state."""
    revision: int
    """Raised by every change of this row."""
    enabled: bool
    disabled_reason: str | None
    disabled_at: datetime | None
    condition_state: dict[str, object]
    failure_count: int
    condition_failures: int
    """How many of those, at the end of the row, are failures of the condition; a quiet tick forgives them."""
    quiet_ticks: int
    """Evaluations that did not fire, ever."""
    last_status: Status | None
    next_run_at: datetime
    """When to look again; in the past while a run is unfinished or a slot is due."""
    cursor_at: datetime
    """The first slot without a fate."""
    floor_at: datetime
    """The earliest due time that was asked for: the first run, or an operator's."""
    epoch: int
    """How often the clock was found to have stepped back; slots are accounted for once in each epoch."""

    @property
    def grid(self) -> Grid:
        """The slots of this definition."""
        return Grid(self.first_run_at, timedelta(seconds=self.interval_seconds))

    @property
    def lease(self) -> timedelta:
        """The length of a lease."""
        return timedelta(seconds=self.lease_seconds)

    @property
    def retry(self) -> timedelta:
        """The delay after a failed payload."""
        return timedelta(seconds=self.interval_seconds if self.retry_seconds is None else self.retry_seconds)


@dataclass(frozen=True, slots=True)
class Run:
    """One run: a claimed slot and its message, over all attempts."""

    run_id: str
    """The idempotency key."""
    automation_id: str
    slot_at: datetime
    message: str
    status: RunStatus
    attempt: int
    """Counts from 1; fences the commit."""
    version: int
    """Of the definition under which this attempt began."""
    holder: str
    """The actor of the ledger that claimed it."""
    claimed_at: datetime
    lease_expires_at: datetime
    lease_expired_at: datetime | None
    """When a call found the lease over; such a lease never lives again."""
    interruptions: int
    """Attempts that ended without success or failure: killed, interrupted, or outlived by their lease."""
    ended_at: datetime | None
    error: str | None
    slot_seq: int
    """Its row in `automation_slots`."""

    def is_live(self, now: datetime, actor: str, skew: timedelta) -> bool:
        """Tell whether the lease of this run still holds."""
        own = self.holder == actor
        return (
            self.status is RunStatus.RUNNING
            and self.lease_expired_at is None
            and not lease_is_over(self.lease_expires_at, now, own=own, skew=skew)
        )


@dataclass(frozen=True, slots=True)
class AutomationResult:
    """What one call came to."""

    automation_id: str
    status: Status
    run_id: str | None
    detail: str
    """One sentence for a person."""


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """What became of a range of slots."""

    first_slot: datetime
    last_slot: datetime
    slots: int
    """How many; 0 for a run that took the place of another within its slot."""
    fate: Fate
    run_id: str | None
    attempt: int | None
    late_seconds: float
    """The largest lateness in the range, in seconds."""
    detail: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Entry:
    """What a call finds before it asks the condition."""

    answer: Status | None
    """The result, if the condition need not be asked."""
    expired: bool = False
    """The open run's lease is over, and its row does not say so yet."""
    shorten_lease_to: datetime | None = None
    """A live lease reaches further ahead than any lease can: the clock stepped back."""
    pull_back_to: datetime | None = None
    """So does the due time."""
    plan: Plan | None = None
    """The slots that this call deals with; None if all of them have a fate already (a retry within its slot)."""

    @property
    def writes(self) -> bool:
        """Whether something must be recorded before the condition is asked."""
        missed = self.answer is Status.NOT_DUE and self.plan is not None
        return self.expired or missed or self.shorten_lease_to is not None or self.pull_back_to is not None


def enter(automation: Automation, run: Run | None, now: datetime, *, actor: str, skew: timedelta) -> Entry:
    """Decide what a call does, from what the ledger holds; pure.

    Parameters:
        automation: The definition.
        run: Its unfinished run, if any.
        now: The instant of the call.
        actor: Who calls; the lease of another actor is given the skew.
        skew: How far two clocks may differ.
    """
    if not automation.enabled:
        return Entry(Status.DISABLED)
    if run is not None and run.is_live(now, actor, skew):
        longest = later(now, automation.lease)
        ahead = run.lease_expires_at > later(longest, skew)
        return Entry(Status.RUNNING, shorten_lease_to=longest if ahead else None)
    horizon = automation.grid.interval if run is None else max(automation.grid.interval, automation.retry)
    back = pulled_back(
        automation.grid, automation.next_run_at, now, horizon=horizon, floor=automation.floor_at, skew=skew
    )
    if back is not None or automation.next_run_at > now:
        return Entry(Status.NOT_DUE, pull_back_to=back)
    expired = run is not None and run.status is RunStatus.RUNNING and run.lease_expired_at is None
    if automation.cursor_at > now:
        # All slots have a fate. With an open run this is its retry; without one, the due time was moved by hand.
        todo = None if run else Plan(None, None, None, None, automation.cursor_at)
        return Entry(None if run else Status.NOT_DUE, expired=expired, plan=todo)
    todo = plan(
        automation.grid,
        automation.cursor_at,
        now,
        # An unfinished run is offered again however late: its slot was claimed in time.
        catch_up=CatchUp.ONCE if run else automation.catch_up,
        grace=timedelta(seconds=automation.grace_seconds),
    )
    return Entry(None if todo.slot else Status.NOT_DUE, expired=expired, plan=todo)


# Definitions


def create_automation(
    ledger: Ledger,
    automation_id: str,
    *,
    interval_seconds: float,
    payload: str,
    first_run_at: datetime | None = None,
    max_failures: int = 3,
    catch_up: str = CatchUp.ONCE,
    grace_seconds: float = 60,
    lease_seconds: float = 120,
    retry_seconds: float | None = None,
    now: datetime | None = None,
) -> Automation:
    """Make sure that a definition exists; a program may call this at every start.

    Parameters:
        ledger: The ledger.
        automation_id: Its name.
        interval_seconds: Distance of two slots in seconds, at least 1.
        payload: The name of its handler in `run_all_due`.
        first_run_at: The first slot, and the origin of the grid; now when omitted. Omitted, it is not compared.
        max_failures: This many failures in a row disable it, at least 1.
        catch_up: `once` (one run for all slots that passed unattended) or `skip` (those later than the grace period
            are missed).
        grace_seconds: A slot seen later than this counts as unattended, in seconds.
        lease_seconds: How long a payload may run without `renew_run`, in seconds, at least 1.
        retry_seconds: Delay after a failed payload in seconds; the interval when omitted.
        now: Aware instant; the ledger's clock when omitted.

    Returns:
        The definition as the ledger holds it.

    Raises:
        Refusal: `category="automation"` if it exists with another definition; the refusal names the fields.
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range.
    """
    checked_id("automation_id", automation_id)
    wanted: dict[str, object] = {
        "payload": checked_id("payload", payload),
        "interval_seconds": seconds("interval_seconds", interval_seconds).total_seconds(),
        "max_failures": whole_number("max_failures", max_failures),
        "catch_up": str(_catch_up(catch_up)),
        "grace_seconds": seconds("grace_seconds", grace_seconds, minimum=0).total_seconds(),
        "lease_seconds": seconds("lease_seconds", lease_seconds).total_seconds(),
        "retry_seconds": None
        if retry_seconds is None
        else seconds("retry_seconds", retry_seconds, minimum=0).total_seconds(),
    }
    if first_run_at is not None:
        wanted["first_run_at"] = to_text(as_utc("first_run_at", first_run_at))
    at = ledger.now(now)
    with recorded(ledger, at), ledger.write() as tx:
        row = tx.one("SELECT * FROM automations WHERE automation_id = :id", id=automation_id)
        if row is not None:
            differing = sorted(field for field, value in wanted.items() if row[field] != value)
            if differing:
                raise Refusal(
                    Category.AUTOMATION,
                    automation_id,
                    f"it exists with another definition ({', '.join(differing)})",
                    "change it with update(), or create it as the ledger holds it",
                )
            return _automation(row)
        tx.run(
            "INSERT INTO automations (automation_id, payload, interval_seconds, first_run_at, max_failures, catch_up, "
            "grace_seconds, lease_seconds, retry_seconds, next_run_at, cursor_at, floor_at, created_at) "
            "VALUES (:id, :payload, :interval_seconds, :first_run_at, :max_failures, :catch_up, "
            ":grace_seconds, :lease_seconds, :retry_seconds, :first_run_at, :first_run_at, :first_run_at, :now)",
            id=automation_id,
            now=to_text(at),
            **{"first_run_at": to_text(at), **wanted},
        )
        tx.event("automation.created", automation_id, at=at, version=1, interval_seconds=wanted["interval_seconds"])
        return _load(tx, automation_id)[0]


def update(
    ledger: Ledger,
    automation_id: str,
    *,
    interval_seconds: float | None = None,
    payload: str | None = None,
    max_failures: int | None = None,
    condition_state: dict[str, object] | None = None,
    next_run_at: datetime | None = None,
    now: datetime | None = None,
) -> Automation:
    """Change a definition, its state or its next due time; a run in progress can then no longer commit its state.

    The grid always starts at `first_run_at`. A new interval takes effect after now; a slot that is due stays due. A
    `next_run_at` off the grid is one extra slot; slots it passes over are recorded as skipped, and one that has a fate
    already cannot be repeated: the first slot without a fate is next.

    Parameters:
        ledger: The ledger.
        automation_id: Its name.
        interval_seconds: New interval in seconds, at least 1.
        payload: New handler name.
        max_failures: New bound, at least 1; it is compared at the next failure.
        condition_state: What the next condition sees, a JSON object of at most 16 KiB.
        next_run_at: When to look next; `now` and `next_run_at` equal means at once.
        now: Aware instant; the ledger's clock when omitted.

    Returns:
        The definition after the change. Without any argument nothing changes.

    Raises:
        Refusal: `category="automation"` if there is no such automation.
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range.
    """
    checked_id("automation_id", automation_id)
    changes: dict[str, object] = {}
    if interval_seconds is not None:
        changes["interval_seconds"] = seconds("interval_seconds", interval_seconds).total_seconds()
    if payload is not None:
        changes["payload"] = checked_id("payload", payload)
    if max_failures is not None:
        changes["max_failures"] = whole_number("max_failures", max_failures)
    if condition_state is not None:
        changes["condition_state"] = json_object("condition_state", condition_state)
    target = None if next_run_at is None else as_utc("next_run_at", next_run_at)
    at = ledger.now(now)
    with recorded(ledger, at), ledger.write() as tx:
        automation, run = _load(tx, automation_id)
        if not changes and target is None:
            return automation
        fields = [*changes, *(["next_run_at"] if target else [])]
        last = tx.one(
            "SELECT last_slot FROM automation_slots WHERE automation_id = :id AND epoch = :epoch "
            "ORDER BY seq DESC LIMIT 1",
            id=automation_id,
            epoch=automation.epoch,
        )
        last_slot = None if last is None else stored_instant(last["last_slot"])
        moved = automation
        if interval_seconds is not None:
            moved = _regridded(moved, run, last_slot, interval_seconds, at)
        if target is not None:
            if target > moved.cursor_at:
                _note(tx, automation, before(moved.grid, moved.cursor_at, target), Fate.SKIPPED, at)
            moved = _moved(moved, run, last_slot, target)
        times = _times(next_run_at=moved.next_run_at, cursor_at=moved.cursor_at, floor_at=moved.floor_at)
        _set(tx, automation_id, version=automation.version + 1, **changes, **times)
        tx.event("automation.updated", automation_id, at=at, version=automation.version + 1, fields=fields)
        return _load(tx, automation_id)[0]


def enable(ledger: Ledger, automation_id: str, *, now: datetime | None = None) -> Automation:
    """Switch on again, with a failure count of 0. Slots that passed while it was off are recorded as such.

    An unfinished run is offered again at once; otherwise the next slot of the grid that has not passed is next.

    Parameters:
        ledger: The ledger.
        automation_id: Its name.
        now: Aware instant; the ledger's clock when omitted.

    Raises:
        Refusal: `category="automation"` if there is no such automation.
    """
    checked_id("automation_id", automation_id)
    at = ledger.now(now)
    with recorded(ledger, at), ledger.write() as tx:
        automation, run = _load(tx, automation_id)
        if automation.enabled:
            return automation
        asleep = before(automation.grid, automation.cursor_at, at)
        cursor = automation.cursor_at
        if run is None and asleep is not None:
            _note(tx, automation, asleep, Fate.DISABLED, at)
            cursor = next_slot(automation.grid, asleep.last)
        _set(
            tx,
            automation_id,
            enabled=1,
            disabled_reason=None,
            disabled_at=None,
            failure_count=0,
            condition_failures=0,
            **_times(cursor_at=cursor, next_run_at=at if run else cursor),
        )
        tx.event("automation.enabled", automation_id, at=at)
        return _load(tx, automation_id)[0]


def disable(
    ledger: Ledger, automation_id: str, *, reason: str = "switched off by an operator", now: datetime | None = None
) -> Automation:
    """Switch off. A payload in progress may finish; nothing new starts.

    Parameters:
        ledger: The ledger.
        automation_id: Its name.
        reason: Kept in the definition, at most 200 characters.
        now: Aware instant; the ledger's clock when omitted.

    Raises:
        Refusal: `category="automation"` if there is no such automation.
    """
    checked_id("automation_id", automation_id)
    checked_id("reason", reason)
    at = ledger.now(now)
    with recorded(ledger, at), ledger.write() as tx:
        automation, _ = _load(tx, automation_id)
        if automation.enabled:
            _set(tx, automation_id, enabled=0, disabled_reason=reason, disabled_at=to_text(at))
            tx.event("automation.disabled", automation_id, at=at, failures=automation.failure_count)
        return _load(tx, automation_id)[0]


def list_automations(ledger: Ledger) -> tuple[Automation, ...]:
    """Return every definition, by id."""
    with ledger.read() as tx:
        return tuple(map(_automation, tx.all("SELECT * FROM automations ORDER BY automation_id")))


def list_runs(ledger: Ledger, automation_id: str | None = None) -> tuple[Run, ...]:
    """Return every run of one automation, or of all, in the order in which they were first claimed."""
    if automation_id is not None:
        checked_id("automation_id", automation_id)
    with ledger.read() as tx:
        rows = tx.all(
            "SELECT * FROM automation_runs WHERE :id IS NULL OR automation_id = :id "
            "ORDER BY automation_id, slot_seq, run_id",
            id=automation_id,
        )
    return tuple(map(_run, rows))


def history(ledger: Ledger, automation_id: str) -> tuple[SlotRecord, ...]:
    """Return what became of every slot so far, oldest first; ranges, never one record per missed or quiet slot.

    Parameters:
        ledger: The ledger; a read-only one will do.
        automation_id: Its name.

    Raises:
        Refusal: `category="automation"` if there is no such automation.
    """
    checked_id("automation_id", automation_id)
    with recorded(ledger), ledger.read() as tx:
        _load(tx, automation_id)
        rows = tx.all(
            "SELECT s.*, r.attempt, r.interruptions, r.error FROM automation_slots s "
            "LEFT JOIN automation_runs r ON r.run_id = s.run_id WHERE s.automation_id = :id ORDER BY s.seq",
            id=automation_id,
        )
    return tuple(
        SlotRecord(
            stored_instant(row["first_slot"]),
            stored_instant(row["last_slot"]),
            row["slots"],
            Fate(row["fate"]),
            row["run_id"],
            row["attempt"],
            row["late_seconds"],
            _fate_detail(row),
            row["epoch"],
        )
        for row in rows
    )


# Running


def run_due(
    ledger: Ledger, automation_id: str, condition: Condition, payload: Payload, *, now: datetime | None = None
) -> AutomationResult:
    """Ask the condition if a slot is due, and run the payload if it fires.

    Both callables run outside any transaction. The payload runs at least once per run id; it must use the run id as
    its idempotency key, and call `renew_run` if it may take longer than the lease.

    Parameters:
        ledger: The ledger.
        automation_id: Its name.
        condition: From the previous state to a `WatchDecision`; it gets a copy of the state.
        payload: Gets `(run_id, message)`.
        now: The instant of the whole call, completion included; the ledger's clock when omitted.

    Returns:
        What the call came to. An exception of a callable is a result, not raised.

    Raises:
        Refusal: `category="automation"` if there is no such automation; `category="ledger"` inside a transaction, or
            when the ledger fails (a payload that ran is then offered again after its lease).
        BaseException: What is no `Exception` (KeyboardInterrupt, SystemExit) frees the run for retry and goes on.
    """
    ledger.refuse_inside_transaction("run_due")
    checked_id("automation_id", automation_id)
    handler = Handler(condition, payload)
    return _tick(ledger, automation_id, lambda _: handler, now)


def run_all_due(
    ledger: Ledger, handlers: Mapping[str, Handler], *, now: datetime | None = None
) -> tuple[AutomationResult, ...]:
    """Call every automation that is due, one after the other, the longest due first; a failure stops nobody else.

    A callable that never returns does stop the others: run what may hang in a process of its own.

    Parameters:
        ledger: The ledger.
        handlers: By the definition's `payload` name.
        now: The instant of the whole call; the ledger's clock, read anew for each automation, when omitted.

    Returns:
        One result for each automation that was due. One whose handler is missing is `FAILED` without a run id;
        nothing is counted or changed, since another process may have the handler.

    Raises:
        Refusal: As `run_due`.
        TypeError: `handlers` is no mapping, or a handler no `Handler`.
    """
    ledger.refuse_inside_transaction("run_all_due")
    if not isinstance(handlers, Mapping):
        raise TypeError(f"handlers must be a mapping, not {type(handlers).__name__}: {shown(handlers)}")
    for name, handler in handlers.items():
        if not isinstance(handler, Handler):
            raise TypeError(f"handlers[{shown(name)}] must be a Handler, not {type(handler).__name__}")
    at = ledger.now(now)
    waiting: list[str] = []
    with ledger.read() as tx:
        for row in tx.all(_WORTH_A_LOOK, now=to_text(at), skew=ledger.max_clock_skew.total_seconds()):
            entry = enter(
                _automation(row),
                _open_run(tx, row["automation_id"]),
                at,
                actor=ledger.actor,
                skew=ledger.max_clock_skew,
            )
            if entry.answer is not Status.NOT_DUE or entry.writes:
                waiting.append(row["automation_id"])
    return tuple(_tick(ledger, name, lambda definition: handlers.get(definition.payload), now) for name in waiting)


def renew_run(ledger: Ledger, run_id: str, *, now: datetime | None = None) -> datetime:
    """Extend the lease of a run by the definition's `lease_seconds` from now; for payloads that take long.

    Called within a payload it speaks for that very attempt, so a payload that was taken over learns it here.

    Parameters:
        ledger: The ledger.
        run_id: What the payload was given.
        now: Aware instant; the ledger's clock when omitted.

    Returns:
        When the lease ends now.

    Raises:
        Refusal: `category="automation"` if the run has ended, was taken over, or its lease is over: stop the work.
    """
    checked_id("run_id", run_id)
    at = ledger.now(now)
    with recorded(ledger, at):
        with ledger.write() as tx:
            row = tx.one("SELECT * FROM automation_runs WHERE run_id = :id", id=run_id)
            if row is None:
                raise Refusal(
                    Category.AUTOMATION, run_id, "there is no such run", "use the id that the payload was given"
                )
            run = _run(row)
            why = _why_not_renewed(run, at, ledger)
            if why is None:
                automation, _ = _load(tx, run.automation_id)
                expires = max(run.lease_expires_at, later(at, automation.lease))
                tx.run(
                    "UPDATE automation_runs SET lease_expires_at = :expires, renewals = renewals + 1 "
                    "WHERE run_id = :id",
                    expires=to_text(expires),
                    id=run_id,
                )
                return expires
            if why == _LEASE_OVER and run.lease_expired_at is None:
                _mark_expired(tx, run, at)
                _set(tx, run.automation_id)
        raise Refusal(Category.AUTOMATION, run_id, why, "stop this payload; the run is offered again where it is open")


# One tick, in its four steps: enter, ask the condition, claim, commit


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the condition said, checked and ready to store."""

    fire: bool
    message: str
    state: str
    """As JSON."""
    failure: str | None = None
    """The condition failed, and this is why."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """What a commit must present."""

    automation_id: str
    run_id: str
    attempt: int
    version: int
    message: str
    state: str


def _tick(
    ledger: Ledger, automation_id: str, choose: Callable[[Automation], Handler | None], now: datetime | None
) -> AutomationResult:
    at = ledger.now(now)
    with recorded(ledger, at):
        automation, run, entry = _enter(ledger, automation_id, at)
    if entry.answer is not None:
        holding = run if entry.answer is Status.RUNNING else None
        return _result(automation_id, entry.answer, holding, _why(entry, automation, run))
    handler = choose(automation)
    if handler is None:
        detail = f"no handler for payload {shorten(automation.payload)}; nothing was counted"
        return _result(automation_id, Status.FAILED, None, detail)
    answer = _ask(handler.condition, automation)
    claimed_at = ledger.now(now)
    with ledger.write() as tx:
        current, run = _load(tx, automation_id)
        if current.revision != automation.revision:
            return _overtaken(ledger, automation, current, run, claimed_at)
        if answer.failure is not None:
            return _store_condition_failure(tx, current, entry, answer.failure, at)
        if not answer.fire:
            return _store_quiet(tx, current, run, entry, answer, at)
        claim = _store_claim(ledger, tx, current, run, entry, answer, (at, claimed_at))
    return _run_payload(ledger, claim, handler.payload, now)


def _enter(ledger: Ledger, automation_id: str, at: datetime) -> tuple[Automation, Run | None, Entry]:
    """Read what there is; write only if there is something to record, so that polling takes no lock."""
    with ledger.read() as tx:
        automation, run = _load(tx, automation_id)
    entry = enter(automation, run, at, actor=ledger.actor, skew=ledger.max_clock_skew)
    if not entry.writes:
        return automation, run, entry
    with ledger.write() as tx:
        automation, run = _load(tx, automation_id)
        entry = enter(automation, run, at, actor=ledger.actor, skew=ledger.max_clock_skew)
        if entry.writes:
            _repair(tx, automation, run, entry, at)
            automation, run = _load(tx, automation_id)
    return automation, run, entry


def _ask(condition: Condition, automation: Automation) -> _Answer:
    """Evaluate the condition; whatever is wrong with it is a failure to count."""
    try:
        return _checked(condition(automation.condition_state))
    except Exception as error:
        return _Answer(fire=False, message="", state="", failure=failure_text(error))


def _checked(decision: object) -> _Answer:
    if not isinstance(decision, WatchDecision):
        raise TypeError(f"the condition must return a WatchDecision, not {type(decision).__name__}")
    for field, kind in (("fire", bool), ("message", str)):
        if not isinstance(getattr(decision, field), kind):
            raise TypeError(f"{field} must be of type {kind.__name__}, not {type(getattr(decision, field)).__name__}")
    decision.message.encode()  # a lone surrogate cannot be stored
    return _Answer(decision.fire, decision.message, json_object("state", decision.state))


def _run_payload(ledger: Ledger, claim: _Claim, payload: Payload, now: datetime | None) -> AutomationResult:
    """Run the payload outside any transaction and commit what came of it."""
    token = _held.set({**_held.get(), claim.run_id: claim.attempt})
    failure: str | None = None
    try:
        try:
            payload(claim.run_id, claim.message)
        except Exception as error:
            failure = failure_text(error)
        return _commit(ledger, claim, failure, ledger.now(now))
    except Exception:
        raise
    except BaseException as stop:
        with suppress(Refusal):  # the lease then frees it later
            _store_interruption(ledger, claim, stop, ledger.now(now))
        raise
    finally:
        _held.reset(token)


def _commit(ledger: Ledger, claim: _Claim, failure: str | None, at: datetime) -> AutomationResult:
    """Store the outcome; a ledger that is busy is tried again, since the payload has run."""
    tries = _COMMIT_TRIES
    while True:
        tries -= 1
        try:
            with ledger.write() as tx:
                return _store_success(tx, claim, at) if failure is None else _store_failure(tx, claim, failure, at)
        except Refusal as refusal:
            if tries == 0:
                refusal.add_note(f"The payload of {claim.run_id} has run; it is offered again once its lease is over.")
                raise


# What each step stores


def _repair(tx: Transaction, automation: Automation, run: Run | None, entry: Entry, at: datetime) -> None:
    """Record an expired lease, a clock that stepped back, or slots that policy skips."""
    name = automation.automation_id
    changes: dict[str, datetime] = {}
    epoch = automation.epoch
    if run is not None and entry.expired:
        _mark_expired(tx, run, at)
    if run is not None and entry.shorten_lease_to is not None:
        lease = to_text(entry.shorten_lease_to)
        tx.run("UPDATE automation_runs SET lease_expires_at = :to WHERE run_id = :id", to=lease, id=run.run_id)
        tx.event("clock.stepped_back", name, at=at, run_id=run.run_id)
    if entry.pull_back_to is not None:
        changes = {"next_run_at": entry.pull_back_to}
        if automation.cursor_at > entry.pull_back_to:
            # Slots that a clock ahead of time used up come round again; the epoch keeps both accounts apart.
            changes["cursor_at"] = entry.pull_back_to
            epoch += 1
        due = {"due_was": to_text(automation.next_run_at), "due_is": to_text(entry.pull_back_to)}
        tx.event("clock.stepped_back", name, at=at, epoch=epoch, **due)
    elif entry.answer is Status.NOT_DUE and entry.plan is not None:
        _note_missed(tx, automation, entry.plan, at)
        changes = {"next_run_at": entry.plan.upcoming, "cursor_at": entry.plan.upcoming}
    _set(tx, name, epoch=epoch, **_times(**changes))


def _overtaken(
    ledger: Ledger, seen: Automation, current: Automation, run: Run | None, at: datetime
) -> AutomationResult:
    """Say why the answer to this call is dropped."""
    if not current.enabled:
        return _result(
            seen.automation_id, Status.DISABLED, None, "it was switched off while the condition was evaluated"
        )
    if run is not None and run.is_live(at, ledger.actor, ledger.max_clock_skew):
        return _result(seen.automation_id, Status.RUNNING, run, f"another call claimed the slot as {run.run_id}")
    if current.version != seen.version:
        return _result(seen.automation_id, Status.REPLAYED, run, "the definition changed while it was evaluated")
    return _result(seen.automation_id, Status.REPLAYED, run, "another call dealt with the slot meanwhile")


def _store_condition_failure(
    tx: Transaction, automation: Automation, entry: Entry, failure: str, at: datetime
) -> AutomationResult:
    """Count it and go on to the next slot; an unfinished run stays open."""
    cursor = automation.cursor_at
    if entry.plan is not None:
        _note_missed(tx, automation, entry.plan, at)
        _note(tx, automation, entry.plan.late, Fate.COALESCED, at)
        _note(tx, automation, entry.plan.seen, Fate.CONDITION_FAILED, at)
        cursor = entry.plan.upcoming
    tx.event("automation.condition_failed", automation.automation_id, at=at, error=_error_name(failure))
    count = _count_failure(
        tx,
        automation,
        failure,
        at,
        condition_failures=automation.condition_failures + 1,
        **_times(cursor_at=cursor, next_run_at=next_slot(automation.grid, at)),
    )
    return _result(automation.automation_id, Status.FAILED, None, f"the condition failed ({count}): {failure}")


def _store_quiet(
    tx: Transaction, automation: Automation, run: Run | None, entry: Entry, answer: _Answer, at: datetime
) -> AutomationResult:
    """Save state and next due time; an evaluation is not work, so there is no run row."""
    cursor = automation.cursor_at
    if run is not None:
        _abandon(tx, run, at)
    if entry.plan is not None:
        _note_missed(tx, automation, entry.plan, at)
        _note(tx, automation, entry.plan.late, Fate.COALESCED, at)
        _note(tx, automation, entry.plan.seen, Fate.NO_FIRE, at)
        cursor = entry.plan.upcoming
    if automation.last_status is not Status.NO_FIRE:
        tx.event("automation.quieted", automation.automation_id, at=at)
    _set(
        tx,
        automation.automation_id,
        condition_state=answer.state,
        failure_count=automation.failure_count - automation.condition_failures,
        condition_failures=0,
        quiet_ticks=automation.quiet_ticks + 1,
        last_status=str(Status.NO_FIRE),
        **_times(cursor_at=cursor, next_run_at=cursor),
    )
    return _result(automation.automation_id, Status.NO_FIRE, None, f"next due {to_text(cursor)}")


def _store_claim(
    ledger: Ledger,
    tx: Transaction,
    automation: Automation,
    run: Run | None,
    entry: Entry,
    answer: _Answer,
    times: tuple[datetime, datetime],
) -> _Claim:
    """Offer the unfinished run again if the message is the same; else close it and claim the slot with a new one.

    `times` are those of the entry, to which the slots belong, and of the claim, from which the lease counts.
    """
    at, claimed_at = times
    facts: dict[str, object] = {
        "version": automation.version,
        "holder": ledger.actor,
        "now": to_text(claimed_at),
        "lease": to_text(later(claimed_at, automation.lease)),
    }
    if run is not None and run.message == answer.message:
        run_id, attempt = run.run_id, run.attempt + 1
        _store_retry(tx, automation, run, entry.plan, at, facts)
    else:
        run_id, attempt = fresh_id(ledger, "run", lambda new: _run_exists(tx, new)), 1
        if run is not None:
            _abandon(tx, run, at)
        _store_new_run(tx, automation, run, entry.plan, at, run_id, {"message": answer.message, **facts})
    # The due time stays as it is: should this process die, a call after the lease finds the run due.
    cursor = automation.cursor_at if entry.plan is None else entry.plan.upcoming
    _set(tx, automation.automation_id, **_times(cursor_at=cursor))
    tx.event(
        "automation.claimed",
        automation.automation_id,
        at=claimed_at,
        run_id=run_id,
        attempt=attempt,
        version=automation.version,
        slots=0 if entry.plan is None else sum(span.slots for span in (entry.plan.older, entry.plan.newest) if span),
    )
    return _Claim(automation.automation_id, run_id, attempt, automation.version, answer.message, answer.state)


def _store_new_run(
    tx: Transaction,
    automation: Automation,
    replaced: Run | None,
    todo: Plan | None,
    at: datetime,
    run_id: str,
    facts: dict[str, object],
) -> None:
    if todo is None or todo.newest is None:
        assert replaced is not None, "without a slot of its own, a run replaces another within its slot"  # noqa: S101
        slot = Span(replaced.slot_at, replaced.slot_at, 0)
    else:
        slot = todo.newest
        _note_missed(tx, automation, todo, at)
        _note(tx, automation, todo.older, Fate.COALESCED, at, run_id=run_id)
    seq = _note(tx, automation, slot, Fate.RUNNING, at, run_id=run_id)
    tx.run(
        "INSERT INTO automation_runs (run_id, automation_id, slot_at, slot_seq, message, status, version, holder, "
        "claimed_at, lease_expires_at) "
        "VALUES (:run_id, :automation, :slot, :seq, :message, 'RUNNING', :version, :holder, :now, :lease)",
        run_id=run_id,
        automation=automation.automation_id,
        slot=to_text(slot.first),
        seq=seq,
        **facts,
    )


def _store_retry(
    tx: Transaction, automation: Automation, run: Run, todo: Plan | None, at: datetime, facts: dict[str, object]
) -> None:
    if todo is not None:
        _note(tx, automation, todo.older, Fate.COALESCED, at, run_id=run.run_id)
        _note(tx, automation, todo.newest, Fate.COALESCED, at, run_id=run.run_id)
    _set_fate(tx, run.run_id, Fate.RUNNING)
    tx.run(
        "UPDATE automation_runs SET status = 'RUNNING', attempt = attempt + 1, version = :version, holder = :holder, "
        "claimed_at = :now, lease_expires_at = :lease, lease_expired_at = NULL, error = NULL WHERE run_id = :id",
        id=run.run_id,
        **facts,
    )


def _store_success(tx: Transaction, claim: _Claim, at: datetime) -> AutomationResult:
    """Close the run and commit the state; a definition changed meanwhile keeps its own state and due time."""
    if not _end_attempt(tx, claim, RunStatus.SUCCEEDED, None, at):
        return _taken_over(claim)
    automation, _ = _load(tx, claim.automation_id)
    current = automation.version == claim.version
    tx.event(
        "automation.succeeded",
        claim.automation_id,
        at=at,
        run_id=claim.run_id,
        attempt=claim.attempt,
        state_committed=current,
    )
    cursor = automation.cursor_at
    if not current:
        _set(tx, claim.automation_id, **_times(next_run_at=max(automation.next_run_at, cursor)))
        return AutomationResult(
            claim.automation_id,
            Status.SUCCEEDED,
            claim.run_id,
            "the definition changed meanwhile: its state was dropped",
        )
    passed = through(automation.grid, cursor, at)
    if passed is not None:
        _note(tx, automation, passed, Fate.COALESCED, at, run_id=claim.run_id)
        cursor = next_slot(automation.grid, passed.last)
    _set(
        tx,
        claim.automation_id,
        condition_state=claim.state,
        failure_count=0,
        condition_failures=0,
        last_status=str(Status.SUCCEEDED),
        **_times(cursor_at=cursor, next_run_at=cursor),
    )
    return AutomationResult(claim.automation_id, Status.SUCCEEDED, claim.run_id, f"next due {to_text(cursor)}")


def _store_failure(tx: Transaction, claim: _Claim, failure: str, at: datetime) -> AutomationResult:
    """Keep the run open for its retry and count the failure, unless the definition changed meanwhile."""
    if not _end_attempt(tx, claim, RunStatus.FAILED, failure, at):
        return _taken_over(claim)
    automation, _ = _load(tx, claim.automation_id)
    current = automation.version == claim.version
    tx.event(
        "automation.failed",
        claim.automation_id,
        at=at,
        run_id=claim.run_id,
        attempt=claim.attempt,
        error=_error_name(failure),
        counted=current,
    )
    if not current:
        _set(tx, claim.automation_id)
        detail = f"the definition changed meanwhile, so this does not count: {failure}"
        return AutomationResult(claim.automation_id, Status.FAILED, claim.run_id, detail)
    due = later(at, automation.retry)
    count = _count_failure(tx, automation, failure, at, condition_failures=0, **_times(next_run_at=due))
    return AutomationResult(
        claim.automation_id, Status.FAILED, claim.run_id, f"the payload failed ({count}): {failure}"
    )


def _store_interruption(ledger: Ledger, claim: _Claim, stop: BaseException, at: datetime) -> None:
    """Free the run: it is due at once, and the attempt is no failure, since nobody knows how it would have ended."""
    with ledger.write() as tx:
        if not _end_attempt(tx, claim, RunStatus.FAILED, f"interrupted by {type(stop).__name__}", at):
            return
        tx.run("UPDATE automation_runs SET interruptions = interruptions + 1 WHERE run_id = :id", id=claim.run_id)
        _set(tx, claim.automation_id)
        tx.event("automation.interrupted", claim.automation_id, at=at, run_id=claim.run_id, attempt=claim.attempt)


# Small pieces


def _end_attempt(tx: Transaction, claim: _Claim, status: RunStatus, error: str | None, at: datetime) -> bool:
    """End an attempt, unless it was taken over: the attempt is the fence."""
    ended = tx.run(
        "UPDATE automation_runs SET status = :status, error = :error, ended_at = :now "
        "WHERE run_id = :id AND attempt = :attempt AND status = 'RUNNING'",
        status=str(status),
        error=error,
        now=to_text(at),
        id=claim.run_id,
        attempt=claim.attempt,
    )
    if ended:
        _set_fate(tx, claim.run_id, Fate(status))
    return bool(ended)


def _taken_over(claim: _Claim) -> AutomationResult:
    return AutomationResult(
        claim.automation_id,
        Status.REPLAYED,
        claim.run_id,
        f"attempt {claim.attempt} was taken over; its result is dropped",
    )


def _abandon(tx: Transaction, run: Run, at: datetime) -> None:
    tx.run(
        "UPDATE automation_runs SET status = 'ABANDONED', ended_at = :now WHERE run_id = :id",
        now=to_text(at),
        id=run.run_id,
    )
    _set_fate(tx, run.run_id, Fate.ABANDONED)
    tx.event("automation.abandoned", run.automation_id, at=at, run_id=run.run_id, attempt=run.attempt)


def _mark_expired(tx: Transaction, run: Run, at: datetime) -> None:
    tx.run(
        "UPDATE automation_runs SET lease_expired_at = :now, interruptions = interruptions + 1 WHERE run_id = :id",
        now=to_text(at),
        id=run.run_id,
    )
    tx.event("automation.lease_expired", run.automation_id, at=at, run_id=run.run_id, attempt=run.attempt)


def _why_not_renewed(run: Run, at: datetime, ledger: Ledger) -> str | None:
    if _held.get().get(run.run_id, run.attempt) != run.attempt:
        return f"it was taken over by attempt {run.attempt}"
    if run.status is not RunStatus.RUNNING:
        return f"its latest attempt has ended as {run.status}"
    if not run.is_live(at, ledger.actor, ledger.max_clock_skew):
        return _LEASE_OVER
    return None


def _count_failure(tx: Transaction, automation: Automation, failure: str, at: datetime, **changes: object) -> str:
    """Count one more failure in a row; at the bound, switch off."""
    count = automation.failure_count + 1
    if count >= automation.max_failures and automation.enabled:
        changes |= {
            "enabled": 0,
            "disabled_at": to_text(at),
            "disabled_reason": f"{count} failures in a row, the latest: {failure}",
        }
        tx.event("automation.disabled", automation.automation_id, at=at, failures=count)
    _set(tx, automation.automation_id, failure_count=count, last_status=str(Status.FAILED), **changes)
    return f"{count} of {automation.max_failures}"


def _note_missed(tx: Transaction, automation: Automation, todo: Plan, at: datetime) -> None:
    if todo.missed is not None:
        _note(tx, automation, todo.missed, Fate.MISSED, at)
        tx.event("automation.missed", automation.automation_id, at=at, slots=todo.missed.slots)


def _note(
    tx: Transaction, automation: Automation, span: Span | None, fate: Fate, at: datetime, *, run_id: str | None = None
) -> int:
    """Record what became of a span; it extends the latest range if that has the same fate. Returns the row's number."""
    latest = tx.one(
        "SELECT seq, epoch, fate, run_id FROM automation_slots WHERE automation_id = :id ORDER BY seq DESC LIMIT 1",
        id=automation.automation_id,
    )
    seq = 0 if latest is None else int(latest["seq"])
    if span is None:
        return seq
    values = {
        "id": automation.automation_id,
        "last": to_text(span.last),
        "slots": span.slots,
        "late": max((at - span.first).total_seconds(), 0.0),
        "now": to_text(at),
    }
    same = latest is not None and (latest["epoch"], latest["fate"], latest["run_id"]) == (
        automation.epoch,
        fate,
        run_id,
    )
    if same and fate is not Fate.RUNNING:
        tx.run(
            "UPDATE automation_slots SET last_slot = :last, slots = slots + :slots, "
            "late_seconds = max(late_seconds, :late), noted_at = :now WHERE automation_id = :id AND seq = :seq",
            seq=seq,
            **values,
        )
        return seq
    tx.run(
        "INSERT INTO automation_slots (automation_id, seq, epoch, first_slot, last_slot, slots, fate, run_id, "
        "late_seconds, noted_at) VALUES (:id, :seq, :epoch, :first, :last, :slots, :fate, :run_id, :late, :now)",
        seq=seq + 1,
        epoch=automation.epoch,
        first=to_text(span.first),
        fate=str(fate),
        run_id=run_id,
        **values,
    )
    return seq + 1


def _set_fate(tx: Transaction, run_id: str, fate: Fate) -> None:
    tx.run(
        "UPDATE automation_slots SET fate = :fate WHERE (automation_id, seq) = "
        "(SELECT automation_id, slot_seq FROM automation_runs WHERE run_id = :id)",
        fate=str(fate),
        id=run_id,
    )


def _set(tx: Transaction, automation_id: str, **changes: object) -> None:
    """Change columns of one definition and raise its revision."""
    columns = "".join(f", {column} = :{column}" for column in changes)
    tx.run(
        f"UPDATE automations SET revision = revision + 1{columns} WHERE automation_id = :automation_id",  # noqa: S608 - our own columns
        automation_id=automation_id,
        **changes,
    )


def _times(**instants: datetime) -> dict[str, str]:
    return {column: to_text(instant) for column, instant in instants.items()}


def _regridded(
    automation: Automation, run: Run | None, last_slot: datetime | None, interval_seconds: float, at: datetime
) -> Automation:
    """Return the definition with another interval: what is due, or was asked for, stays; the rest moves."""
    changed = replace(automation, interval_seconds=float(interval_seconds))
    if automation.cursor_at <= at or automation.floor_at > at:
        return changed
    cursor = next_slot(changed.grid, at if last_slot is None else max(at, last_slot))
    return replace(
        changed, cursor_at=cursor, next_run_at=cursor if run is None else min(automation.next_run_at, cursor)
    )


def _moved(automation: Automation, run: Run | None, last_slot: datetime | None, target: datetime) -> Automation:
    """Return the definition with another due time: never a slot that has a fate already."""
    if target > automation.cursor_at:
        return replace(automation, next_run_at=target, cursor_at=target, floor_at=target)
    if run is not None:  # the due time of an unfinished run is that of its retry, not of a slot
        return replace(automation, next_run_at=target, floor_at=target)
    cursor = target if last_slot is None or target > last_slot else automation.cursor_at
    return replace(automation, next_run_at=cursor, cursor_at=cursor, floor_at=cursor)


def _load(tx: Transaction, automation_id: str) -> tuple[Automation, Run | None]:
    row = tx.one("SELECT * FROM automations WHERE automation_id = :id", id=automation_id)
    if row is None:
        raise Refusal(
            Category.AUTOMATION, automation_id, "there is no such automation", "create it with create_automation()"
        )
    return _automation(row), _open_run(tx, automation_id)


def _run_exists(tx: Transaction, run_id: str) -> bool:
    return tx.one("SELECT 1 FROM automation_runs WHERE run_id = :id", id=run_id) is not None


def _open_run(tx: Transaction, automation_id: str) -> Run | None:
    row = tx.one(
        "SELECT * FROM automation_runs WHERE automation_id = :id AND status IN ('RUNNING', 'FAILED')", id=automation_id
    )
    return None if row is None else _run(row)


def _automation(row: sqlite3.Row) -> Automation:
    with readable(row["automation_id"]):
        return Automation(
            automation_id=row["automation_id"],
            payload=row["payload"],
            interval_seconds=_number(row["interval_seconds"]),
            first_run_at=stored_instant(row["first_run_at"]),
            max_failures=row["max_failures"],
            catch_up=CatchUp(row["catch_up"]),
            grace_seconds=_number(row["grace_seconds"]),
            lease_seconds=_number(row["lease_seconds"]),
            retry_seconds=None if row["retry_seconds"] is None else _number(row["retry_seconds"]),
            version=row["version"],
            revision=row["revision"],
            enabled=bool(row["enabled"]),
            disabled_reason=row["disabled_reason"],
            disabled_at=_instant(row["disabled_at"]),
            condition_state=json.loads(row["condition_state"]),
            failure_count=row["failure_count"],
            condition_failures=row["condition_failures"],
            quiet_ticks=row["quiet_ticks"],
            last_status=None if row["last_status"] is None else Status(row["last_status"]),
            next_run_at=stored_instant(row["next_run_at"]),
            cursor_at=stored_instant(row["cursor_at"]),
            floor_at=stored_instant(row["floor_at"]),
            epoch=row["epoch"],
        )


def _number(stored: float) -> float:
    return seconds("the stored duration", stored, minimum=0).total_seconds()


def _run(row: sqlite3.Row) -> Run:
    return Run(
        run_id=row["run_id"],
        automation_id=row["automation_id"],
        slot_at=stored_instant(row["slot_at"]),
        message=row["message"],
        status=RunStatus(row["status"]),
        attempt=row["attempt"],
        version=row["version"],
        holder=row["holder"],
        claimed_at=stored_instant(row["claimed_at"]),
        lease_expires_at=stored_instant(row["lease_expires_at"]),
        lease_expired_at=_instant(row["lease_expired_at"]),
        interruptions=row["interruptions"],
        ended_at=_instant(row["ended_at"]),
        error=row["error"],
        slot_seq=row["slot_seq"],
    )


def _instant(text: str | None) -> datetime | None:
    return None if text is None else stored_instant(text)


def _result(automation_id: str, status: Status, run: Run | None, detail: str) -> AutomationResult:
    return AutomationResult(automation_id, status, run.run_id if run else None, detail)


def _why(entry: Entry, automation: Automation, run: Run | None) -> str:
    if entry.answer is Status.DISABLED:
        return automation.disabled_reason or "switched off"
    if entry.answer is Status.RUNNING and run is not None:
        return f"attempt {run.attempt} of {run.run_id} holds the slot until {to_text(run.lease_expires_at)}"
    if entry.pull_back_to is not None:
        return f"the clock stepped back; next due {to_text(automation.next_run_at)}"
    if entry.plan is not None and entry.plan.missed is not None:
        return f"{entry.plan.missed.slots} slots were missed; next due {to_text(automation.next_run_at)}"
    return f"next due {to_text(automation.next_run_at)}"


def _fate_detail(row: sqlite3.Row) -> str:
    if row["attempt"] is None:
        return ""
    if row["fate"] == Fate.COALESCED:
        return f"into {row['run_id']}"
    parts = [f"attempt {row['attempt']}"]
    if row["interruptions"]:
        parts.append(f"interrupted {row['interruptions']}x")
    return "; ".join([*parts, *filter(None, [row["error"]])])


def _error_name(failure: str) -> str:
    return failure.split(":", 1)[0]


def _catch_up(value: str) -> CatchUp:
    if value not in list(CatchUp):
        raise ValueError(f"catch_up must be one of {', '.join(CatchUp)}: {shown(value)}")
    return CatchUp(value)
