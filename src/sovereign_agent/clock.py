"""Time: aware instants only, stored as text whose order is the order of time.

Every instant is UTC, ISO-8601, with microseconds and of one fixed width, so that SQLite can compare instants as text.
A clock is any function that returns an aware `datetime`; nothing here promises that a clock is right or monotonic.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from .errors import shown

Clock = Callable[[], datetime]
"""A source of aware instants; a `Ledger` has one."""

MAX_SECONDS = 10 * 366 * 24 * 3600
"""Longest duration that any argument accepts, in seconds: ten years. Longer ones are mistakes of unit."""


def system_clock() -> datetime:
    """Return the present instant of this machine's wall clock, in UTC."""
    return datetime.now(UTC)


def as_utc(name: str, value: object) -> datetime:
    """Return an aware instant in UTC.

    Parameters:
        name: The argument's name, for the message.
        value: What the caller gave.

    Raises:
        TypeError: The value is not a `datetime`.
        ValueError: The value is naive, or cannot be expressed in UTC between the years 1 and 9999.
    """
    if not isinstance(value, datetime):
        raise TypeError(f"{name} must be an aware datetime, not {type(value).__name__}: {shown(value)}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise ValueError(f"{name} must be aware (it has no time zone): {shown(value)}")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{name} is outside the years 1 to 9999: {shown(value)}") from None


def to_text(value: datetime) -> str:
    """Return an aware instant as it is stored: `2026-01-02T03:04:05.000006Z`, 27 characters.

    Raises:
        TypeError: The value is not a `datetime`.
        ValueError: The value is naive, or cannot be expressed in UTC between the years 1 and 9999.
    """
    return as_utc("value", value).isoformat(timespec="microseconds").replace("+00:00", "Z")


def from_text(text: str) -> datetime:
    """Return the instant that `to_text` stored.

    Raises:
        ValueError: The text is no aware instant.
    """
    return as_utc("the stored instant", datetime.fromisoformat(text))


def seconds(name: str, value: object, *, minimum: float = 1, maximum: float = MAX_SECONDS) -> timedelta:
    """Return a duration given in seconds, checked.

    Parameters:
        name: The argument's name, for the message.
        value: A whole or fractional number of seconds; `bool` and non-finite numbers are refused.
        minimum: Smallest accepted number of seconds.
        maximum: Largest accepted number of seconds.

    Raises:
        TypeError: The value is not a number.
        ValueError: The value is not finite, below the minimum, or above the maximum.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}: {shown(value)}")
    if not minimum <= value <= maximum:  # NaN fails every comparison
        raise ValueError(f"{name} must lie between {minimum} and {maximum} seconds: {shown(value)}")
    return timedelta(seconds=value)


def later(value: datetime, duration: timedelta) -> datetime:
    """Return `value + duration`, or the last representable instant where that would overflow."""
    try:
        return value + duration
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
