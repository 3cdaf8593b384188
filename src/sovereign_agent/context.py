"""Context: a transcript that is never changed, and a view of it in which summaries stand for old exchanges.

It promises that every recorded row is either shown as it is or listed by exactly one marker, that no result is shown
without its call, and that a summary can be traced to the rows and the bytes it was made from. It does not promise that
a summary is true, nor that the view fits a model: system and user rows are never summarized, so many of them make a
long view.

An exchange is an assistant message with every result of the tools it called. Assistant rows with calls that stand
directly one after the other are one message, sent in parts: they are compacted together or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from sqlite3 import Row

from .clock import to_text
from .errors import Category, Refusal, shorten, shown
from .fence import SessionClaim, marking, require_live
from .ledger import Ledger, Transaction, checked_depth, checked_id, recorded

MAX_CONTENT_BYTES = 4 * 1024 * 1024
"""Longest content of a row, in bytes of UTF-8."""
MAX_CALLS_BYTES = 256 * 1024
"""Longest `tool_calls` of a row, in bytes of their JSON."""
MAX_SUMMARY_BYTES = 256 * 1024
"""Longest summary, in bytes of UTF-8; a longer one makes no marker."""
_PAGE = 64
_LARGEST_SEQ = 2**63 - 1  # of SQLite

ToolCall = str | Mapping[str, object]
"""One call: its id, or a JSON object with an `id` and whatever else the model's interface has (name, arguments)."""


class Role(StrEnum):
    """Who speaks in a row."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class ContextItem:
    """One row of a transcript, or the summary that stands for covered rows."""

    seq: int
    """Place in the transcript, from 1. A summary has that of the last row it stands for."""
    role: Role
    """A summary speaks as the assistant: it tells what assistant and tools said, with no authority beyond theirs."""
    content: str
    derived: bool = False
    """Whether this is a summary instead of a recorded row."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """The call that a tool row answers; None where it follows its assistant row instead."""


Summarizer = Callable[[str, tuple[ContextItem, ...]], str]
"""`summarizer(prior_summary, exchange)` returns the summary of both; the prior one is empty at first."""


# Deciding: nothing below knows a ledger, up to the next heading


@dataclass(frozen=True, slots=True)
class Exchange:
    """An assistant message with its results so far. Its rows need not be adjacent."""

    first_seq: int
    last_seq: int
    rows: int
    results: int
    waiting: int
    """Results still missing. A message without declared calls waits, with 1, for a row that is not its result."""
    declared: bool
    """Whether results are matched by the id of a declared call; otherwise by directly following."""
    marker: int | None = None
    """The marker that covers it."""


@dataclass(frozen=True, slots=True)
class Edges:
    """Where the protected head ends and the protected tail begins."""

    head_through: int
    tail_from: int

    @classmethod
    def of(cls, length: int, protect_head: int, protect_tail: int) -> Edges:
        """Return the edges of a transcript of `length` rows; zero protected rows means none."""
        return cls(min(protect_head, length), length - min(protect_tail, length) + 1)


class Reason(StrEnum):
    """Why a row is in the view, or why it is not."""

    HEAD = "head"
    """In the protected head, or in an exchange that reaches into it."""
    TAIL = "tail"
    """In the protected tail, or in an exchange that reaches into it."""
    KEPT = "kept"
    """A system or user row, or one that no marker lists yet."""
    COVERED = "covered"
    """A summary stands for it."""


def advance(row: ContextItem, before: Exchange | None, open_calls: Mapping[str, Exchange]) -> tuple[Exchange, ...]:
    """Return the exchanges that change when a row is appended: the one it ends, then the one it opens or joins.

    Parameters:
        row: The new row.
        before: The exchange of the row directly before it; None at the start and after a system or user row.
        open_calls: The unanswered calls by id, with the exchange that declared each.

    Raises:
        Refusal: `category="context"`: a result that belongs to no open call, or a call whose id is already open.
    """
    undeclared = before if before is not None and not before.declared else None
    if row.role is Role.TOOL and row.tool_call_id is None:
        if undeclared is None:
            raise _no_open_call(row)
        return (_joined(undeclared, row, results=1),)
    ended = () if undeclared is None else (replace(undeclared, waiting=0),)
    if row.role is Role.TOOL:
        asked = open_calls.get(row.tool_call_id or "")
        if asked is None:
            raise _no_open_call(row)
        return (*ended, _joined(asked, row, results=1, waiting=-1))
    if row.role is not Role.ASSISTANT:
        return ended
    calls = call_ids(row.tool_calls)
    for call_id in calls:
        if call_id in open_calls:
            raise _call_still_open(call_id)
    if calls and before is not None and before.declared and not before.results:  # one message, sent in parts
        return (_joined(before, row, waiting=len(calls)),)
    return (*ended, Exchange(row.seq, row.seq, rows=1, results=0, waiting=len(calls) or 1, declared=bool(calls)))


def find_exchanges(rows: Iterable[ContextItem]) -> tuple[Exchange, ...]:
    """Return the exchanges of a whole transcript in order of their first rows: `advance`, row by row.

    Raises:
        Refusal: As `advance`.
    """
    found: dict[int, Exchange] = {}
    waiting: dict[str, int] = {}
    before: Exchange | None = None
    for row in rows:
        named = {call_id: found[waiting[call_id]] for call_id in _named(row) if call_id in waiting}
        changed = advance(row, before, named)
        found.update((exchange.first_seq, exchange) for exchange in changed)
        before = None if row.role in (Role.SYSTEM, Role.USER) else changed[-1]
        if before is not None:
            waiting.update(dict.fromkeys(call_ids(row.tool_calls), before.first_seq))
        waiting.pop(row.tool_call_id or "", None)
    return tuple(found[first] for first in sorted(found))


def reason(first_seq: int, last_seq: int, *, covered: bool, edges: Edges) -> Reason:
    """Return the one reason of every row of an exchange, or of a single row that belongs to none.

    Parameters:
        first_seq: First row of the exchange, or the row itself.
        last_seq: Last row of the exchange, or the row itself.
        covered: Whether a marker lists it.
        edges: The protected head and tail. An exchange that reaches into one is protected whole.
    """
    if first_seq <= edges.head_through:
        return Reason.HEAD
    if last_seq >= edges.tail_from:
        return Reason.TAIL
    return Reason.COVERED if covered else Reason.KEPT


@dataclass(frozen=True, slots=True)
class PlacedRow:
    """A row, and where the exchange that it belongs to begins and ends."""

    item: ContextItem
    first_seq: int
    """That of the row itself where it belongs to none."""
    last_seq: int
    marker: int | None
    """The marker that lists it."""

    def reason(self, edges: Edges) -> Reason:
        """Return why the row is shown, or that it is covered."""
        return reason(self.first_seq, self.last_seq, covered=self.marker is not None, edges=edges)


def next_chunk(exchanges: Iterable[Exchange], edges: Edges, max_rows: int) -> tuple[Exchange, ...]:
    """Return what the next summary adds: the oldest eligible whole exchanges.

    Eligible is what is complete, wholly outside head and tail, and not covered.

    Parameters:
        exchanges: In order of their first rows; read no further than needed.
        edges: The protected head and tail.
        max_rows: Most rows of the chunk together. One exchange that is larger goes alone.
    """
    chosen: list[Exchange] = []
    room = max_rows
    for exchange in exchanges:
        covered = exchange.marker is not None
        place = reason(exchange.first_seq, exchange.last_seq, covered=covered, edges=edges)
        if exchange.waiting or place is not Reason.KEPT:
            continue
        if chosen and exchange.rows > room:
            break
        chosen.append(exchange)
        room -= exchange.rows
        if room <= 0:
            break
    return tuple(chosen)


def view(rows: Sequence[PlacedRow], edges: Edges, summary: str) -> tuple[ContextItem, ...]:
    """Return what is shown of some rows: each as it is, and the summary in place of the last row that is covered.

    Parameters:
        rows: Rows with the exchange that each belongs to, in any order.
        edges: The protected head and tail.
        summary: The latest one.
    """
    covered = [row.item.seq for row in rows if row.reason(edges) is Reason.COVERED]
    shown = [row.item for row in rows if row.reason(edges) is not Reason.COVERED]
    if covered:
        shown.append(ContextItem(max(covered), Role.ASSISTANT, summary, derived=True))
    return tuple(sorted(shown, key=lambda item: item.seq))


def ranges(seqs: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return ascending numbers as inclusive ranges: 3, 4, 7 gives (3, 4), (7, 7)."""
    found: list[tuple[int, int]] = []
    for seq in seqs:
        if found and seq == found[-1][1] + 1:
            found[-1] = (found[-1][0], seq)
        else:
            found.append((seq, seq))
    return tuple(found)


def marker_digest(previous: str, session_id: str, marker: int, summary: str, rows: Iterable[Sequence[object]]) -> str:
    """Return the digest of a marker: SHA-256 over what it follows, what it says and every byte it was made from.

    Parameters:
        previous: The digest of the marker before, empty for the first: this chains them.
        session_id: Whose transcript.
        marker: Its number, from 1.
        summary: Its summary.
        rows: The covered rows, ascending: seq, role, content, tool_calls, tool_call_id, created_at as stored.

    Returns:
        64 hexadecimal digits, over one line of ASCII JSON for the marker and one for each row.
    """
    digest = sha256(_line([previous, session_id, marker, summary]))
    for row in rows:
        digest.update(_line(list(row)))
    return digest.hexdigest()


def call_ids(tool_calls: Iterable[ToolCall]) -> tuple[str, ...]:
    """Return the ids of declared calls."""
    return tuple(call if isinstance(call, str) else str(call["id"]) for call in tool_calls)


def summary_fault(summary: object) -> str | None:
    """Return why something is no summary: `not_text`, `blank`, `not_encodable` or `too_large`; None if it is one."""
    if not isinstance(summary, str):
        return "not_text"
    if not summary.strip():
        return "blank"
    try:
        size = len(summary.encode())
    except UnicodeEncodeError:
        return "not_encodable"
    return "too_large" if size > MAX_SUMMARY_BYTES else None


def _joined(exchange: Exchange, row: ContextItem, *, results: int = 0, waiting: int = 0) -> Exchange:
    return replace(
        exchange,
        last_seq=row.seq,
        rows=exchange.rows + 1,
        results=exchange.results + results,
        waiting=exchange.waiting + waiting,
    )


def _named(row: ContextItem) -> tuple[str, ...]:
    """Return the ids of calls that a row declares or answers."""
    return call_ids(row.tool_calls) if row.tool_call_id is None else (row.tool_call_id,)


def _line(values: list[object]) -> bytes:
    return json.dumps(values, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def _no_open_call(row: ContextItem) -> Refusal:
    if row.tool_call_id is None:
        return Refusal(
            Category.CONTEXT,
            f"row {row.seq}",
            "without a tool_call_id it must directly follow an assistant row without calls, or that row's results",
            "give the tool_call_id that it answers",
        )
    return Refusal(
        Category.CONTEXT,
        row.tool_call_id,
        "no open call has this id: it was never declared, or it is answered",
        "declare the call in the tool_calls of an assistant row, and answer it once",
    )


def _call_still_open(call_id: str) -> Refusal:
    return Refusal(
        Category.CONTEXT,
        call_id,
        "a call with this id is still unanswered, so a result could not tell the two apart",
        "record a result for the earlier call (that it was given up, if so), or choose another id",
    )


# Recording


def append_message(
    ledger: Ledger,
    session_id: str,
    role: str,
    content: str,
    *,
    tool_calls: Iterable[ToolCall] = (),
    tool_call_id: str | None = None,
    claim: SessionClaim | None = None,
    now: datetime | None = None,
) -> int:
    """Append one row to a transcript. Its cost does not depend on the transcript's length.

    Parameters:
        ledger: Where to record it.
        session_id: The session; it needs no creation.
        role: `system`, `user`, `assistant` or `tool`.
        content: Any text, also empty, of at most 4 MiB in UTF-8. It is stored and shown byte for byte.
        tool_calls: Of an assistant row: the calls it makes, each an id or a JSON object with an `id`; 256 KiB at most.
        tool_call_id: Of a tool row: the open call that it answers. Without it the row must directly follow an assistant
            row without declared calls, or that row's other results.
        claim: A claim of this session, which must then be live in the transaction of the write.
        now: Aware instant; the ledger's clock when omitted.

    Returns:
        The row's `seq`: 1 for the first of the session, then one more each time.

    Raises:
        Refusal: `category="context"` for a result that belongs to no open call, or a call whose id is still open;
            `category="session"` for a claim that is not live or of another session.
        TypeError: An argument has another type.
        ValueError: An argument is out of its bounds, or does not go with the role.
    """
    checked_id("session_id", session_id)
    row = ContextItem(
        0, _role(role), _text("content", content), tool_calls=_calls(tool_calls), tool_call_id=tool_call_id
    )
    if row.tool_calls and row.role is not Role.ASSISTANT:
        raise ValueError(f"tool_calls belong to an assistant row, not to one of role {row.role}")
    if tool_call_id is not None:
        checked_id("tool_call_id", tool_call_id)
        if row.role is not Role.TOOL:
            raise ValueError(f"tool_call_id belongs to a tool row, not to one of role {row.role}")
    # The clock is read under the write lock: a claim that ended while this call waited for it entitles to nothing.
    if claim is None:
        with recorded(ledger, now), ledger.write() as tx:
            return _append(tx, session_id, row, ledger.now(now))
    if not isinstance(claim, SessionClaim):
        raise TypeError(f"claim must be a SessionClaim, not {type(claim).__name__}: {shorten(claim)}")
    with marking(ledger, claim, now), ledger.write() as tx:
        if claim.session_id != session_id:
            raise Refusal(
                Category.SESSION,
                session_id,
                f"the claim is for session {shorten(claim.session_id)}",
                "present the claim of the session that is written to",
            )
        at = ledger.now(now)
        require_live(tx, claim, at)
        return _append(tx, session_id, row, at)


def _append(tx: Transaction, session_id: str, row: ContextItem, now: datetime) -> int:
    last = tx.one(
        "SELECT m.seq, x.* FROM transcript_messages AS m LEFT JOIN context_exchanges AS x "
        "    ON x.session_id = m.session_id AND x.first_seq = m.exchange "
        "WHERE m.session_id = :session_id ORDER BY m.seq DESC LIMIT 1",
        session_id=session_id,
    )
    row = replace(row, seq=1 if last is None else last["seq"] + 1)
    before = None if last is None or last["first_seq"] is None else _exchange(last)
    changed = advance(row, before, _open_calls(tx, session_id, _named(row)))
    home = None if row.role in (Role.SYSTEM, Role.USER) else changed[-1].first_seq
    tx.run(
        "INSERT INTO transcript_messages "
        "    (session_id, seq, role, content, tool_calls, tool_call_id, exchange, created_at) "
        "VALUES (:session_id, :seq, :role, :content, :tool_calls, :tool_call_id, :exchange, :created_at)",
        session_id=session_id,
        seq=row.seq,
        role=row.role,
        content=row.content,
        tool_calls=_calls_text(row.tool_calls),
        tool_call_id=row.tool_call_id,
        exchange=home,
        created_at=to_text(now),
    )
    for exchange in changed:
        _store(tx, session_id, exchange)
    for call_id in call_ids(row.tool_calls):
        tx.run(
            "INSERT INTO context_open_calls (session_id, call_id, first_seq) "
            "VALUES (:session_id, :call_id, :first_seq)",
            session_id=session_id,
            call_id=call_id,
            first_seq=home,
        )
    if row.tool_call_id is not None:
        tx.run(
            "DELETE FROM context_open_calls WHERE session_id = :session_id AND call_id = :call_id",
            session_id=session_id,
            call_id=row.tool_call_id,
        )
    tx.event("context.appended", session_id, at=now, seq=row.seq, role=row.role, exchange=home)
    return row.seq


def _open_calls(tx: Transaction, session_id: str, call_ids_asked: Iterable[str]) -> dict[str, Exchange]:
    found = {}
    for call_id in call_ids_asked:
        row = tx.one(
            "SELECT x.* FROM context_open_calls AS c JOIN context_exchanges AS x "
            "    ON x.session_id = c.session_id AND x.first_seq = c.first_seq "
            "WHERE c.session_id = :session_id AND c.call_id = :call_id",
            session_id=session_id,
            call_id=call_id,
        )
        if row is not None:
            found[call_id] = _exchange(row)
    return found


def _store(tx: Transaction, session_id: str, exchange: Exchange) -> None:
    tx.run(
        "INSERT INTO context_exchanges (session_id, first_seq, last_seq, rows, results, waiting, declared) "
        "VALUES (:session_id, :first_seq, :last_seq, :rows, :results, :waiting, :declared) "
        "ON CONFLICT (session_id, first_seq) DO UPDATE SET "
        "    last_seq = excluded.last_seq, rows = excluded.rows, results = excluded.results, "
        "    waiting = excluded.waiting",
        session_id=session_id,
        first_seq=exchange.first_seq,
        last_seq=exchange.last_seq,
        rows=exchange.rows,
        results=exchange.results,
        waiting=exchange.waiting,
        declared=exchange.declared,
    )


# Compacting


class _Outcome(StrEnum):
    STORED = "stored"
    NOTHING = "nothing eligible"
    NO_SUMMARY = "no usable summary"
    LOST = "another compactor was first"


def compact_one(
    ledger: Ledger,
    session_id: str,
    summarizer: Summarizer,
    *,
    protect_head: int = 2,
    protect_tail: int = 2,
    max_rows: int = 40,
    now: datetime | None = None,
) -> bool:
    """Summarize the oldest eligible exchanges with at most one call, and append a marker that covers them.

    The call runs outside any transaction. Its result is stored only if no other marker was stored meanwhile. A result
    that is blank, no text, not encodable or longer than 256 KiB makes no marker and an event with the reason, so that
    a blockage shows; the next attempt sees the same rows again.

    Parameters:
        ledger: Where the transcript is.
        session_id: The session.
        summarizer: Called with the latest summary (empty at first) and the rows to add to it, ascending by `seq`.
        protect_head: First rows that are left alone, with every exchange that reaches into them; 0 means none.
        protect_tail: Last rows that are left alone, likewise.
        max_rows: Most rows for one call; one exchange that is larger goes alone.
        now: Aware instant of the whole call; the ledger's clock when omitted.

    Returns:
        True if and only if a marker was stored.

    Raises:
        Refusal: `category="ledger"` inside a transaction.
        TypeError: A number is no whole number, or the summarizer is not callable.
        ValueError: A number is below its minimum: 0 protected rows, 1 row.
        Exception: Whatever the summarizer raises, after an event; nothing is stored.
    """
    ledger.refuse_inside_transaction("compact_one")
    outcome = _compact(
        ledger, session_id, summarizer, protect_head=protect_head, protect_tail=protect_tail, max_rows=max_rows, now=now
    )
    return outcome is _Outcome.STORED


def compact_until(
    ledger: Ledger,
    session_id: str,
    summarizer: Summarizer,
    *,
    protect_head: int = 2,
    protect_tail: int = 2,
    max_rows: int = 40,
    max_calls: int = 100,
    now: datetime | None = None,
) -> int:
    """Compact until nothing is eligible, a summary is unusable, or the summarizer was called `max_calls` times.

    Parameters:
        ledger: As for `compact_one`, like all that is not listed here.
        session_id: The session.
        summarizer: Called once for each marker.
        protect_head: Rows.
        protect_tail: Rows.
        max_rows: Rows for one call.
        max_calls: Most calls of the summarizer, at least 1.
        now: Aware instant of the whole call.

    Returns:
        How many markers were stored.

    Raises:
        Exception: As `compact_one`; the markers stored before stay.
    """
    ledger.refuse_inside_transaction("compact_until")
    stored = 0
    for _ in range(_count("max_calls", max_calls, minimum=1)):
        outcome = _compact(
            ledger,
            session_id,
            summarizer,
            protect_head=protect_head,
            protect_tail=protect_tail,
            max_rows=max_rows,
            now=now,
        )
        stored += outcome is _Outcome.STORED
        if outcome in (_Outcome.NOTHING, _Outcome.NO_SUMMARY):
            break
    return stored


def _compact(
    ledger: Ledger,
    session_id: str,
    summarizer: Summarizer,
    *,
    protect_head: int,
    protect_tail: int,
    max_rows: int,
    now: datetime | None,
) -> _Outcome:
    checked_id("session_id", session_id)
    if not callable(summarizer):
        raise TypeError(f"summarizer must be callable, not {type(summarizer).__name__}: {shorten(summarizer)}")
    _count("max_rows", max_rows, minimum=1)
    now = ledger.now(now)
    with ledger.read() as tx:
        edges = _edges(tx, session_id, protect_head, protect_tail)
        chunk = next_chunk(_uncovered(tx, session_id, edges), edges, max_rows)
        if not chunk:
            return _Outcome.NOTHING
        rows = _chunk_rows(tx, session_id, chunk)
        prior = _latest_marker(tx, session_id)
    marker = 1 if prior is None else prior["marker"] + 1
    span = ranges(row["seq"] for row in rows)
    place = {"marker": marker, "ranges": span, "through_seq": span[-1][1], "rows": len(rows)}
    try:
        summary = summarizer("" if prior is None else prior["summary"], tuple(_item(row) for row in rows))
    except Exception as error:
        with suppress(Refusal), ledger.write() as tx:  # the summarizer's own error is what the caller must see
            tx.event("context.summary_failed", session_id, at=now, error=type(error).__name__, **place)
        raise
    fault = summary_fault(summary)
    if fault is not None:
        with ledger.write() as tx:
            tx.event("context.summary_refused", session_id, at=now, fault=fault, **place)
        return _Outcome.NO_SUMMARY
    previous = "" if prior is None else prior["digest"]
    digest = marker_digest(previous, session_id, marker, summary, rows)
    with ledger.write() as tx:
        latest = _latest_marker(tx, session_id)
        if (0 if latest is None else latest["marker"]) != marker - 1:
            return _Outcome.LOST
        tx.run(
            "INSERT INTO context_compactions "
            "    (session_id, marker, through_seq, ranges, summary, previous_digest, digest, created_at) "
            "VALUES (:session_id, :marker, :through_seq, :ranges, :summary, :previous, :digest, :created_at)",
            session_id=session_id,
            marker=marker,
            through_seq=span[-1][1],
            ranges=json.dumps(span, separators=(",", ":")),
            summary=summary,
            previous=previous,
            digest=digest,
            created_at=to_text(now),
        )
        for exchange in chunk:
            tx.run(
                "UPDATE context_exchanges SET marker = :marker "
                "WHERE session_id = :session_id AND first_seq = :first_seq",
                session_id=session_id,
                marker=marker,
                first_seq=exchange.first_seq,
            )
        tx.event("context.compacted", session_id, at=now, digest=digest, **place)
    return _Outcome.STORED


def _uncovered(tx: Transaction, session_id: str, edges: Edges) -> Iterator[Exchange]:
    """Yield the complete exchanges that no marker lists, oldest first, a page at a time."""
    after = edges.head_through
    while True:
        page = tx.all(
            "SELECT x.* FROM context_exchanges AS found CROSS JOIN context_exchanges AS x "
            "WHERE found.session_id = :session_id AND found.marker IS NULL AND found.waiting = 0 "
            "    AND found.first_seq > :after AND x.session_id = :session_id AND x.first_seq = found.first_seq "
            "ORDER BY found.first_seq LIMIT :page",
            session_id=session_id,
            after=after,
            page=_PAGE,
        )
        yield from map(_exchange, page)
        if len(page) < _PAGE:
            return
        after = page[-1]["first_seq"]


def _chunk_rows(tx: Transaction, session_id: str, chunk: Iterable[Exchange]) -> list[Row]:
    rows = [
        row
        for exchange in chunk
        for row in tx.all(
            "SELECT m.seq, m.role, m.content, m.tool_calls, m.tool_call_id, m.created_at "
            "FROM transcript_messages AS found CROSS JOIN transcript_messages AS m "
            "WHERE found.session_id = :session_id AND found.exchange = :first_seq "
            "    AND m.session_id = :session_id AND m.seq = found.seq",
            session_id=session_id,
            first_seq=exchange.first_seq,
        )
    ]
    return sorted(rows, key=lambda row: int(row["seq"]))


def _latest_marker(tx: Transaction, session_id: str) -> Row | None:
    return tx.one(
        "SELECT marker, summary, digest FROM context_compactions WHERE session_id = :session_id "
        "ORDER BY marker DESC LIMIT 1",
        session_id=session_id,
    )


# Showing


def render_context(
    ledger: Ledger, session_id: str, *, protect_head: int = 2, protect_tail: int = 2
) -> tuple[ContextItem, ...]:
    """Return the view of a transcript: rows as they were recorded, and one summary for all rows that are not shown.

    Shown are the rows of head and tail (with every exchange that reaches into them, covered or not), every system and
    user row, and every row that no marker lists. Head and tail need not be those of the compaction. Its cost depends
    on what is shown, not on the transcript's length.

    Parameters:
        ledger: Where the transcript is.
        session_id: The session; an unknown one gives an empty view.
        protect_head: First rows that are shown in any case; 0 means none.
        protect_tail: Last rows that are shown in any case; 0 means none.

    Returns:
        Items in ascending order of `seq`. The summary stands at the last row it stands for.

    Raises:
        TypeError: A number is no whole number.
        ValueError: A number is negative.
    """
    checked_id("session_id", session_id)
    with ledger.read() as tx:
        edges = _edges(tx, session_id, protect_head, protect_tail)
        rows = tx.all(_ROWS_THAT_MATTER, session_id=session_id, head=edges.head_through, tail=edges.tail_from)
        latest = _latest_marker(tx, session_id)
    placed = [PlacedRow(_item(row), row["first_seq"], row["last_seq"], row["marker"]) for row in rows]
    return view(placed, edges, "" if latest is None else latest["summary"])


# Each range is found in an index that holds all it needs, and only then are rows read: what is covered in between is
# never touched. Of the covered exchanges outside head and tail only the last is read, where the summary is to stand.
_ROWS_THAT_MATTER = """
    WITH exchanges (first_seq) AS (
        SELECT first_seq FROM context_exchanges WHERE session_id = :session_id AND marker IS NULL
        UNION
        SELECT first_seq FROM context_exchanges WHERE session_id = :session_id AND first_seq <= :head
        UNION
        SELECT first_seq FROM context_exchanges
        WHERE session_id = :session_id AND marker IS NOT NULL AND last_seq >= :tail
        UNION
        SELECT first_seq FROM (
            SELECT first_seq FROM context_exchanges
            WHERE session_id = :session_id AND marker IS NOT NULL AND last_seq < :tail AND +first_seq > :head
            ORDER BY last_seq DESC LIMIT 1
        ) AS last_hidden
    ),
    found (seq, first_seq) AS (
        SELECT seq, NULL FROM transcript_messages WHERE session_id = :session_id AND exchange IS NULL
        UNION ALL
        SELECT r.seq, e.first_seq FROM exchanges AS e CROSS JOIN transcript_messages AS r
        WHERE r.session_id = :session_id AND r.exchange = e.first_seq
    )
    SELECT m.seq, m.role, m.content, m.tool_calls, m.tool_call_id, x.marker,
           coalesce(x.first_seq, m.seq) AS first_seq, coalesce(x.last_seq, m.seq) AS last_seq
    FROM found CROSS JOIN transcript_messages AS m
    LEFT JOIN context_exchanges AS x ON x.session_id = :session_id AND x.first_seq = found.first_seq
    WHERE m.session_id = :session_id AND m.seq = found.seq
"""


@dataclass(frozen=True, slots=True)
class RowCoverage:
    """Why one row is in the view, or why it is not."""

    seq: int
    reason: Reason
    marker: int | None
    """The marker that lists the row, also where head or tail show it all the same."""


def coverage(
    ledger: Ledger, session_id: str, *, protect_head: int = 2, protect_tail: int = 2
) -> tuple[RowCoverage, ...]:
    """Return one reason for every row, the first that applies of head, tail, kept, covered.

    Parameters:
        ledger: Where the transcript is.
        session_id: The session; an unknown one has no rows.
        protect_head: As for the `render_context` that it explains.
        protect_tail: Likewise.

    Returns:
        One entry for each row, ascending. `render_context` shows exactly those whose reason is not covered.

    Raises:
        TypeError: A number is no whole number.
        ValueError: A number is negative.
    """
    checked_id("session_id", session_id)
    with ledger.read() as tx:
        edges = _edges(tx, session_id, protect_head, protect_tail)
        rows = tx.all(
            "SELECT m.seq, x.marker, "
            "       coalesce(x.first_seq, m.seq) AS first_seq, coalesce(x.last_seq, m.seq) AS last_seq "
            "FROM transcript_messages AS m LEFT JOIN context_exchanges AS x "
            "    ON x.session_id = m.session_id AND x.first_seq = m.exchange "
            "WHERE m.session_id = :session_id ORDER BY m.seq",
            session_id=session_id,
        )
    return tuple(
        RowCoverage(
            row["seq"],
            reason(row["first_seq"], row["last_seq"], covered=row["marker"] is not None, edges=edges),
            row["marker"],
        )
        for row in rows
    )


# Checking


class Verdict(StrEnum):
    """What a second look at a marker found."""

    INTACT = "INTACT"
    CHANGED = "CHANGED"


@dataclass(frozen=True, slots=True)
class MarkerCheck:
    """A marker, computed again from the transcript as it is now."""

    marker: int
    ranges: tuple[tuple[int, int], ...]
    """The rows that it adds to those of the markers before, inclusive."""
    through_seq: int
    verdict: Verdict
    detail: str
    """What differs; empty when intact."""


def verify_markers(ledger: Ledger, session_id: str) -> tuple[MarkerCheck, ...]:
    """Compute every marker of a session again, so that a changed source, summary or order is noticed.

    This notices what went around the append-only triggers. It cannot notice a client that rewrote a whole chain with
    fresh digests; keep the latest digest elsewhere (it stands in the event `context.compacted`) to notice that too.

    Parameters:
        ledger: Where the transcript is.
        session_id: The session.

    Returns:
        One check for each marker, in order.
    """
    checked_id("session_id", session_id)
    checks: list[MarkerCheck] = []
    seen: set[int] = set()
    previous = ""
    with ledger.read() as tx:
        for marker in tx.all(
            "SELECT * FROM context_compactions WHERE session_id = :session_id ORDER BY marker", session_id=session_id
        ):
            span = _stored_ranges(marker["ranges"])
            rows = [
                row
                for first, last in span
                for row in tx.all(
                    "SELECT seq, role, content, tool_calls, tool_call_id, created_at FROM transcript_messages "
                    "WHERE session_id = :session_id AND seq BETWEEN :first AND :last ORDER BY seq",
                    session_id=session_id,
                    first=first,
                    last=last,
                )
            ]
            seqs = [int(row["seq"]) for row in rows]
            indexed = tx.all(
                "SELECT m.seq FROM context_exchanges AS x CROSS JOIN transcript_messages AS m "
                "WHERE x.session_id = :session_id AND x.marker = :marker "
                "    AND m.session_id = :session_id AND m.exchange = x.first_seq ORDER BY m.seq",
                session_id=session_id,
                marker=marker["marker"],
            )
            digest = marker_digest(marker["previous_digest"], session_id, marker["marker"], marker["summary"], rows)
            findings = (
                (marker["marker"] != len(checks) + 1, "a marker is missing before it"),
                (marker["previous_digest"] != previous, "it does not follow from the marker before it"),
                (digest != marker["digest"], "its summary, or a row that it covers, is no longer what was summarized"),
                (ranges(seqs) != span or marker["through_seq"] != max(seqs, default=0), "its ranges are not its rows"),
                (not seen.isdisjoint(seqs), "it covers a row that an earlier marker covers"),
                ([row["seq"] for row in indexed] != seqs, "the index shows other rows as covered by it"),
            )
            detail = "; ".join(text for found, text in findings if found)
            verdict = Verdict.CHANGED if detail else Verdict.INTACT
            checks.append(MarkerCheck(marker["marker"], span, marker["through_seq"], verdict, detail))
            seen.update(seqs)
            previous = marker["digest"]
    return tuple(checks)


def _stored_ranges(text: str) -> tuple[tuple[int, int], ...]:
    """Return the ranges of a marker; none where what is stored cannot be read, so that the check finds it changed."""
    try:
        span = tuple((int(first), int(last)) for first, last in json.loads(text))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return ()
    return span if all(1 <= first <= last <= _LARGEST_SEQ for first, last in span) else ()


# Rows and arguments


def _edges(tx: Transaction, session_id: str, protect_head: int, protect_tail: int) -> Edges:
    head = _count("protect_head", protect_head, minimum=0)
    tail = _count("protect_tail", protect_tail, minimum=0)
    last = tx.one(
        "SELECT seq FROM transcript_messages WHERE session_id = :session_id ORDER BY seq DESC LIMIT 1",
        session_id=session_id,
    )
    return Edges.of(0 if last is None else last["seq"], head, tail)


def _exchange(row: Row) -> Exchange:
    return Exchange(
        row["first_seq"],
        row["last_seq"],
        row["rows"],
        row["results"],
        row["waiting"],
        bool(row["declared"]),
        row["marker"],
    )


def _item(row: Row) -> ContextItem:
    return ContextItem(
        row["seq"],
        Role(row["role"]),
        row["content"],
        tool_calls=() if row["tool_calls"] == "[]" else tuple(json.loads(row["tool_calls"])),
        tool_call_id=row["tool_call_id"],
    )


def _count(name: str, value: int, *, minimum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}: {shorten(value)}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}: {shown(value)}")
    return value


def _role(role: str) -> Role:
    if not isinstance(role, str):
        raise TypeError(f"role must be text, not {type(role).__name__}: {shorten(role)}")
    try:
        return Role(role)
    except ValueError:
        raise ValueError(f"role must be one of {', '.join(Role)}: {shorten(role)}") from None


def _text(name: str, value: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text, not {type(value).__name__}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} has a lone surrogate at character {error.start}: not Unicode text") from None
    if size > MAX_CONTENT_BYTES:
        raise ValueError(f"{name} must be at most {MAX_CONTENT_BYTES} bytes of UTF-8: {size}")
    return value


def _calls(tool_calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
    if isinstance(tool_calls, str | bytes | Mapping) or not isinstance(tool_calls, Iterable):
        raise TypeError(f"tool_calls must be a sequence of calls, not {type(tool_calls).__name__}")
    calls = tuple(tool_calls)
    for call in calls:
        if not isinstance(call, str | Mapping):
            raise TypeError(f"tool_calls must hold ids or JSON objects, not {type(call).__name__}: {shorten(call)}")
        if isinstance(call, Mapping) and "id" not in call:
            raise ValueError(f"tool_calls must hold JSON objects with an id: keys {shorten(sorted(map(str, call)))}")
        checked_id("tool_calls id", call if isinstance(call, str) else call["id"])
    ids = call_ids(calls)
    if len(set(ids)) != len(ids):
        raise ValueError(f"tool_calls must have different ids: {shorten(ids)}")
    text = _calls_text(calls)
    if len(text) > MAX_CALLS_BYTES:
        raise ValueError(f"tool_calls must be at most {MAX_CALLS_BYTES} bytes of JSON: {len(text)}")
    return calls


def _calls_text(calls: Sequence[ToolCall]) -> str:
    """Return calls as ASCII JSON, in the order given, after checking that they come back as they are."""
    plain = [call if isinstance(call, str) else dict(call) for call in calls]
    checked_depth("tool_calls", plain)
    try:
        json.dumps(plain, ensure_ascii=False).encode()
        text = json.dumps(plain, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
        same = json.loads(text) == plain
    except (TypeError, ValueError) as error:
        raise ValueError(f"tool_calls must be JSON: {error}") from None
    if not same:
        raise ValueError("tool_calls must be JSON: keys must be text, and arrays must be lists")
    return text
