"""The trace: what the ledger holds, as tables, as events and as a sequence diagram.

The events show which state changes were committed, in which order, by whom; the tables show what stands now. Neither
shows content, and the events say nothing of quiet ticks, renewals and beats, which are counters in their own tables.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from sqlite3 import Row

from .errors import shown
from .ledger import Ledger, readable, stored_instant

MAX_EVENTS = 10_000
_LARGEST_SEQ = 2**63 - 1  # of SQLite
MAX_ROWS = 200
"""Most rows of one table that `status` returns."""


@dataclass(frozen=True, slots=True)
class Event:
    """One committed state change."""

    seq: int
    """Position in the ledger; later events have higher numbers."""
    at: datetime
    """The instant of the call, in UTC; an explicit `now` of the caller stands here as it was given."""
    kind: str
    """`mechanism.verb`, or `refused`."""
    actor: str
    subject: str
    """The id that changed."""
    detail: dict[str, object]
    """Ids, numbers, digests and verdicts."""


@dataclass(frozen=True, slots=True)
class Table:
    """What one table of the ledger holds now."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    """The newest rows, in order."""
    total: int
    """How many rows there are."""


_STATUS = {
    "automations": (
        "automations",
        "automation_id, payload, enabled, next_run_at, failure_count, quiet_ticks, last_status, disabled_reason",
        "created_at, automation_id",
    ),
    "runs": (
        "automation_runs",
        "run_id, automation_id, slot_at, status, attempt, claimed_at, lease_expires_at, ended_at",
        "claimed_at, run_id",
    ),
    "sessions": (
        "session_claims",
        "session_id, host_id, incarnation, claimed_at, expires_at, ended, ended_at",
        "claimed_at, session_id",
    ),
    "hosts": ("hosts", "host_id, boot, registered_at, expires_at, renewals, expired_at", "registered_at, host_id"),
    "deliveries": ("deliveries", "delivery_id, status, attempts, process_after", "process_after, delivery_id"),
}


def status(ledger: Ledger, *, limit: int = MAX_ROWS) -> tuple[Table, ...]:
    """Return automations, runs, sessions, hosts and deliveries as they stand, in one snapshot.

    Parameters:
        ledger: Where to read; a read-only one will do.
        limit: Most rows of each table, the newest ones, 1 to 200.

    Raises:
        Refusal: `category="ledger"` when the ledger cannot be read.
        ValueError: `limit` is out of range.
    """
    if type(limit) is not int or not 1 <= limit <= MAX_ROWS:  # True is no number
        raise ValueError(f"limit must be a whole number from 1 to {MAX_ROWS}: {shown(limit)}")
    tables = []
    with ledger.read() as tx:
        for name, (table, columns, order) in _STATUS.items():
            backwards = ", ".join(f"{column} DESC" for column in order.split(", "))
            rows = tx.all(f"SELECT {columns} FROM {table} ORDER BY {backwards} LIMIT :limit", limit=limit)  # noqa: S608
            count = tx.all(f"SELECT count(*) AS total FROM {table}")[0]["total"]  # noqa: S608 - names of our own
            tables.append(Table(name, tuple(columns.split(", ")), tuple(tuple(row) for row in reversed(rows)), count))
    return tuple(tables)


def events(
    ledger: Ledger, *, subject: str | None = None, after_seq: int = 0, limit: int = MAX_EVENTS
) -> tuple[Event, ...]:
    """Return events in the order in which they were committed.

    Parameters:
        ledger: Where to read; a read-only one will do.
        subject: Only events of this id.
        after_seq: Only events after this number.
        limit: At most this many, the newest ones, 1 to 10,000.

    Raises:
        Refusal: `category="ledger"` when the ledger, or one of the events, cannot be read.
        TypeError: `subject` is no text.
        ValueError: `limit` or `after_seq` is out of range.
    """
    if type(limit) is not int or not 1 <= limit <= MAX_EVENTS:
        raise ValueError(f"limit must be a whole number from 1 to {MAX_EVENTS}: {shown(limit)}")
    if type(after_seq) is not int or not 0 <= after_seq <= _LARGEST_SEQ:
        raise ValueError(f"after_seq must be a whole number from 0 to {_LARGEST_SEQ}: {shown(after_seq)}")
    if subject is not None and not isinstance(subject, str):
        raise TypeError(f"subject must be text, not {type(subject).__name__}: {shown(subject)}")
    if subject is not None and not subject.isascii() and any("\ud800" <= c <= "\udfff" for c in subject):
        return ()  # SQLite holds no such text, so no event has it
    with ledger.read() as tx:
        rows = tx.all(
            "SELECT seq, at, kind, actor, subject, detail FROM events "
            "WHERE seq > :after AND (:subject IS NULL OR subject = :subject) ORDER BY seq DESC LIMIT :limit",
            after=after_seq,
            subject=subject,
            limit=limit,
        )
    return tuple(map(_event, reversed(rows)))


def _event(row: Row) -> Event:
    with readable(f"event {row['seq']}"):
        detail = json.loads(row["detail"])
        if not isinstance(detail, dict):
            raise TypeError("its detail is no JSON object")
        return Event(row["seq"], stored_instant(row["at"]), row["kind"], row["actor"], row["subject"], detail)


def sequence_diagram(trace: Iterable[Event], *, ledger_name: str = "ledger") -> str:
    """Return a Mermaid sequence diagram: who changed what in the ledger, and what it refused.

    The participants are the actors of the events, so give each process that opens the ledger an actor of its own. An
    event of kind `refused` is an answer that points back.

    Parameters:
        trace: Events in order.
        ledger_name: The name under which the ledger stands in the diagram.

    Returns:
        Mermaid source, the same for the same events.

    Raises:
        TypeError: `trace` is no sequence of events, or `ledger_name` no text.
    """
    shown = _checked(trace, ledger_name)
    actors = list(dict.fromkeys(event.actor for event in shown))
    lines = ["sequenceDiagram"]
    lines += [f"    participant P{number} as {_label(actor)}" for number, actor in enumerate(actors)]
    lines.insert(2, f"    participant L as {_label(ledger_name)}")
    for event in shown:
        who = f"P{actors.index(event.actor)}"
        if event.kind == "refused":
            lines.append(f"    L--x{who}: {_label(f'REFUSED {event.subject}', str(event.detail.get('why', '')))}")
        else:
            facts = ", ".join(f"{key} {value}" for key, value in event.detail.items() if _shown(key, value, event))
            lines.append(f"    {who}->>L: {_label(f'{event.kind} {event.subject}', facts)}")
    return "\n".join(lines) + "\n"


def _checked(trace: object, ledger_name: object) -> tuple[Event, ...]:
    shown = tuple(trace) if isinstance(trace, Iterable) else (None,)
    if not all(isinstance(event, Event) for event in shown):
        raise TypeError("trace must hold Event objects only")
    if not isinstance(ledger_name, str):
        raise TypeError(f"ledger_name must be text, not {type(ledger_name).__name__}")
    return shown


_LEFT_OUT = ("digest", "sha256", "bytes", "version", "_at")


def _shown(key: str, value: object, event: Event) -> bool:
    """Leave out digests and sizes, which nobody reads in a picture, and what the participant says already."""
    return isinstance(value, str | int | float) and value != event.actor and not key.endswith(_LEFT_OUT)


def _label(*parts: str) -> str:
    """Return texts in which Mermaid sees no syntax of its own, each on lines of its own of about 28 characters."""
    lines: list[str] = []
    for part in parts:
        plain = re.sub(r"[;#<>{}\"]", " ", part.encode(errors="replace").decode())
        lines += textwrap.wrap(textwrap.shorten(plain, _PART, placeholder="\u2026"), _LINE, break_on_hyphens=False)
    return "<br/>".join(lines)


_PART = 160
_LINE = 28  # so that three participants can be read on a narrow screen
