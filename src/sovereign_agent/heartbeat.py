"""Heartbeat: the record that a source reached the ledger at T, and nothing else.

It promises one row per source and a verdict about that source alone. It does not promise that the source works, is due
for anything, or makes progress: an agent that is stuck can go on beating. A verdict is a reading, not a right: it must
not decide who may take over a session or a run.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from .clock import seconds, to_text
from .ledger import Ledger, checked_id, stored_instant

STALE_AFTER_SECONDS = 60.0


class Liveness(StrEnum):
    """What the latest beat of a source says at an instant."""

    ALIVE = "ALIVE"
    """It beat recently."""
    STALE = "STALE"
    """Its latest beat is older than the bound."""
    FUTURE = "FUTURE"
    """Its latest beat lies ahead of now: one of the two clocks is wrong, so nothing is known."""
    NEVER = "NEVER"
    """It has never beaten."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What the ledger holds of one source."""

    source: str
    first_at: datetime
    last_at: datetime
    """The instant of the beat that arrived last, also when an earlier one claimed a later instant."""
    beats: int
    """How many arrived, ever."""


def judge(last_at: datetime | None, now: datetime, stale_after: timedelta) -> Liveness:
    """Return the verdict about a latest beat; pure. A beat exactly as old as the bound is still alive."""
    if last_at is None:
        return Liveness.NEVER
    if last_at > now:
        return Liveness.FUTURE
    return Liveness.STALE if now - last_at > stale_after else Liveness.ALIVE


def beat(ledger: Ledger, source: str, *, now: datetime | None = None) -> Heartbeat:
    """Record that a source reached the ledger.

    A beat adds to a counter. It writes an event only if the verdict it finds, with the default bound, is not alive: the
    first beat, the first after a silence, the first after a beat that lay ahead.

    Parameters:
        ledger: The ledger.
        source: Who beats.
        now: Aware instant; the ledger's clock when omitted.

    Returns:
        The source's row after the beat.
    """
    checked_id("source", source)
    at = ledger.now(now)
    with ledger.write() as tx:
        row = tx.one("SELECT last_at FROM heartbeats WHERE source = :source", source=source)
        found = judge(
            None if row is None else stored_instant(row["last_at"]), at, timedelta(seconds=STALE_AFTER_SECONDS)
        )
        kept = tx.all(
            "INSERT INTO heartbeats (source, first_at, last_at) VALUES (:source, :now, :now) "
            "ON CONFLICT (source) DO UPDATE SET last_at = :now, beats = beats + 1 RETURNING *",
            source=source,
            now=to_text(at),
        )
        if found is not Liveness.ALIVE:
            tx.event("heartbeat.resumed" if row else "heartbeat.started", source, at=at, was=str(found))
    return _heartbeat(kept[0])


def liveness(
    ledger: Ledger, source: str, *, stale_after_seconds: float = STALE_AFTER_SECONDS, now: datetime | None = None
) -> Liveness:
    """Return the verdict about one source; reading it changes nothing.

    Parameters:
        ledger: The ledger; a read-only one will do.
        source: Whose beats.
        stale_after_seconds: A beat older than this is stale, in seconds, more than 0.
        now: Aware instant; the ledger's clock when omitted.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: `stale_after_seconds` is not above 0.
    """
    bound = seconds("stale_after_seconds", stale_after_seconds, minimum=1e-6)
    at = ledger.now(now)
    latest = last_beat(ledger, source)
    return judge(None if latest is None else latest.last_at, at, bound)


def last_beat(ledger: Ledger, source: str) -> Heartbeat | None:
    """Return what the ledger holds of a source: the evidence behind its verdict."""
    checked_id("source", source)
    with ledger.read() as tx:
        row = tx.one("SELECT * FROM heartbeats WHERE source = :source", source=source)
    return None if row is None else _heartbeat(row)


def _heartbeat(row: sqlite3.Row) -> Heartbeat:
    return Heartbeat(row["source"], stored_instant(row["first_at"]), stored_instant(row["last_at"]), row["beats"])
