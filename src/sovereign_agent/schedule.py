"""Schedule: which slot is due, which slots a call missed, when to look again. Arithmetic only: no ledger, no clock.

A slot is an instant of a grid: `first + k * interval`, k = 0, 1, 2, ... What is decided here is a function of its
arguments, so a lesson can show it and a test can try every case. It promises that each slot between two calls falls
into exactly one of the spans of a plan. It does not promise that anyone calls in time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from .clock import later
from .errors import shown
from .ledger import checked_depth

MAX_JSON_BYTES = 16 * 1024
"""Largest condition state or signal payload, in bytes of its compact JSON (UTF-8)."""
_MOST = 1_000_000
_TICK = timedelta(microseconds=1)
_BEGINNING = datetime.min.replace(tzinfo=UTC)


class CatchUp(StrEnum):
    """What happens to slots that nobody was there to run."""

    ONCE = "once"
    """One run stands for all of them."""
    SKIP = "skip"
    """A slot seen later than the grace period is missed, and recorded as such."""


@dataclass(frozen=True, slots=True)
class Grid:
    """All slots of one definition."""

    first: datetime
    """The earliest slot."""
    interval: timedelta
    """The distance of two slots."""


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive slots."""

    first: datetime
    last: datetime
    slots: int
    """How many, both ends included."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one call does with all slots from the pending one to now; each slot is in exactly one place."""

    missed: Span | None
    """Older slots, seen later than the grace period, that the policy skips."""
    late: Span | None
    """Such slots under the other policy: the newest slot stands for them."""
    recent: Span | None
    """Older slots, seen within the grace period."""
    slot: datetime | None
    """The newest slot, which this call evaluates; None if the policy skips even that."""
    upcoming: datetime
    """The first slot after now."""

    @property
    def older(self) -> Span | None:
        """Every slot that the newest one stands for."""
        return _joined(self.late, self.recent)

    @property
    def seen(self) -> Span | None:
        """The newest slot and those within the grace period."""
        return _joined(self.recent, self.newest)

    @property
    def newest(self) -> Span | None:
        """The newest slot as a span."""
        return None if self.slot is None else Span(self.slot, self.slot, 1)


def next_slot(grid: Grid, after: datetime) -> datetime:
    """Return the first slot of the grid strictly after an instant."""
    if after < grid.first:
        return grid.first
    try:
        return later(grid.first, grid.interval * ((after - grid.first) // grid.interval + 1))
    except OverflowError:  # the product is no duration any more
        return later(grid.first, timedelta.max)


def through(grid: Grid, start: datetime, end: datetime) -> Span | None:
    """Return `start` and every later slot up to `end`, both included; None if `start` lies after `end`.

    Parameters:
        grid: The grid.
        start: A slot. It may lie off the grid: an operator may ask for one extra instant, or change the interval.
        end: Any instant.
    """
    if start > end:
        return None
    below = max((start - grid.first) // grid.interval, -1)
    newest = (end - grid.first) // grid.interval
    if newest <= below:
        return Span(start, start, 1)
    return Span(start, grid.first + newest * grid.interval, 1 + newest - below)


def before(grid: Grid, start: datetime, end: datetime) -> Span | None:
    """Return `start` and every later slot strictly before `end`; None if there is none."""
    return through(grid, start, end - _TICK) if start < end else None


def plan(grid: Grid, pending: datetime, now: datetime, *, catch_up: CatchUp, grace: timedelta) -> Plan:
    """Divide the slots from the pending one to now.

    Parameters:
        grid: The grid.
        pending: The first slot that no call has dealt with, not after `now`.
        now: The instant of the call.
        catch_up: With `ONCE` the newest slot is always evaluated, with `SKIP` only within the grace period.
        grace: A slot seen later than this counts as late.

    Returns:
        A plan whose spans and slot together are exactly the slots in `[pending, now]`.

    Raises:
        ValueError: `pending` lies after `now`.
    """
    owed = through(grid, pending, now)
    if owed is None:
        raise ValueError(f"pending must not lie after now: {shown(pending)}")
    upcoming = next_slot(grid, now)
    newest = owed.last
    if catch_up is CatchUp.SKIP and now - newest > grace:
        return Plan(owed, None, None, None, upcoming)
    late = before(grid, pending, min(newest, _earlier(now, grace)))
    recent = before(grid, pending if late is None else next_slot(grid, late.last), newest)
    if catch_up is CatchUp.SKIP:
        return Plan(late, None, recent, newest, upcoming)
    return Plan(None, late, recent, newest, upcoming)


def pulled_back(
    grid: Grid, due: datetime, now: datetime, *, horizon: timedelta, floor: datetime, skew: timedelta
) -> datetime | None:
    """Return the due time that a clock which stepped back calls for, or None if there is no sign of such a step.

    A due time is never set further ahead than the horizon (the interval, or a longer retry), unless someone asked for
    it: that is the floor. Further ahead therefore means that the clock was ahead when it was set.

    Parameters:
        grid: The grid.
        due: The due time.
        now: The instant of the call.
        horizon: How far ahead a due time is normally set.
        floor: The earliest due time that was asked for: the first run, or an operator's.
        skew: Steps up to this long are noise; pulling back for them would only run a slot twice.
    """
    if due <= later(later(now, horizon), skew):
        return None
    target = max(next_slot(grid, now), floor)
    return target if target < due else None


def lease_is_over(expires_at: datetime, now: datetime, *, own: bool, skew: timedelta) -> bool:
    """Tell whether a lease has run out; another host's clock may differ from ours by the skew."""
    return now >= (expires_at if own else later(expires_at, skew))


def checked_callable(name: str, value: object) -> None:
    """Refuse what cannot be called, before it counts as a failure of something that was never asked.

    Raises:
        TypeError: It is not callable.
    """
    if not callable(value):
        raise TypeError(f"{name} must be callable, not {type(value).__name__}: {shown(value)}")


def whole_number(name: str, value: object) -> int:
    """Return a whole number from 1 to a million, checked.

    Raises:
        TypeError: It is no `int`, or a `bool`.
        ValueError: It is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}: {shown(value)}")
    if not 1 <= value <= _MOST:
        raise ValueError(f"{name} must lie between 1 and {_MOST}: {shown(value)}")
    return value


def json_object(name: str, value: object) -> str:
    """Return a JSON object as it is stored: compact, keys sorted, readable.

    Parameters:
        name: The value's name, for the message.
        value: A dict whose keys are text and whose values are what JSON gives back unchanged.

    Raises:
        TypeError: It is no dict, or holds something that JSON has no equal for (a tuple, a key that is no text).
        ValueError: It holds NaN, an infinity, itself or text that is not Unicode, takes more than 16 KiB, or has more
            than 100 levels.
    """
    if not isinstance(value, dict):
        raise TypeError(f"{name} must be a JSON object (a dict), not {type(value).__name__}")
    checked_depth(name, value)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
        size = len(text.encode())
        foreign = _foreign(value)
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be Unicode text throughout (it has a lone surrogate)") from None
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name} must be a JSON object: {error}") from None
    if foreign is not None:
        raise TypeError(f"{name} must be a JSON object: it holds {foreign}")
    if size > MAX_JSON_BYTES:
        raise ValueError(f"{name} must take at most {MAX_JSON_BYTES} bytes as JSON, not {size}")
    return text


def _foreign(value: object) -> str | None:
    """Name what `json` would silently change: a key that is no text, or a tuple."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                return f"a key that is no text ({type(key).__name__})"
            if (found := _foreign(item)) is not None:
                return found
    elif isinstance(value, list):
        return next(filter(None, map(_foreign, value)), None)
    elif isinstance(value, tuple):
        return "a tuple (use a list)"
    return None


def failure_text(error: BaseException, limit: int = 500) -> str:
    """Return an exception as one printable line of at most `limit` characters."""
    try:
        message = str(error)
    except Exception:  # an exception that cannot be printed is still a failure to record
        message = "(its message cannot be printed)"
    line = " ".join(f"{type(error).__name__}: {message}".split())
    line = "".join(character if character.isprintable() else "?" for character in line)
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def _joined(first: Span | None, second: Span | None) -> Span | None:
    if first is None or second is None:
        return first or second
    return Span(first.first, second.last, first.slots + second.slots)


def _earlier(value: datetime, duration: timedelta) -> datetime:
    try:
        return value - duration
    except OverflowError:
        return _BEGINNING
