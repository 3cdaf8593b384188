"""For any transcript, head, tail, chunk size and summarizer: no orphan, no lost row, nothing covered twice.

The oracle here knows no index and no SQL: it works on the whole transcript, in another way than the package does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest
from hypothesis import event, given, note
from hypothesis import strategies as st

from sovereign_agent.context import (
    ContextItem,
    Edges,
    Exchange,
    PlacedRow,
    Reason,
    Role,
    Verdict,
    append_message,
    compact_one,
    compact_until,
    coverage,
    find_exchanges,
    next_chunk,
    render_context,
    verify_markers,
    view,
)
from sovereign_agent.errors import Refusal
from sovereign_agent.ledger import Ledger

_sessions = count()


@dataclass
class Group:
    """One exchange as the oracle sees it."""

    rows: list[int]
    awaited: set[str]
    by_id: bool


@dataclass
class Oracle:
    """A transcript and its markers, kept in plain lists."""

    rows: list[tuple[str, tuple[str, ...], str | None]] = field(default_factory=list)
    """Role, calls, answered call."""
    markers: list[list[int]] = field(default_factory=list)

    def groups(self) -> list[Group]:
        """Read the whole transcript and say which rows belong together."""
        found: list[Group] = []
        for seq, (role, calls, answered) in enumerate(self.rows, start=1):
            if role == "assistant":
                earlier = self.rows[seq - 2] if seq > 1 else ("", (), None)
                if calls and earlier[0] == "assistant" and earlier[1]:  # parts of one message
                    group = next(group for group in found if seq - 1 in group.rows)
                    group.rows.append(seq)
                    group.awaited |= set(calls)
                else:
                    found.append(Group([seq], set(calls), bool(calls)))
            elif role == "tool" and answered is not None:
                group = next(group for group in found if answered in group.awaited)
                group.rows.append(seq)
                group.awaited.remove(answered)
            elif role == "tool":
                next(group for group in found if seq - 1 in group.rows).rows.append(seq)
        return found

    def awaited(self) -> set[str]:
        return {call for group in self.groups() for call in group.awaited}

    def accepts(self, role: str, calls: tuple[str, ...], answered: str | None) -> bool:
        """Whether a row may be appended, by the rule as it is written down."""
        if role == "tool" and answered is not None:
            return answered in self.awaited()
        if role == "tool":
            at = len(self.rows)
            while at and self.rows[at - 1][0] == "tool" and self.rows[at - 1][2] is None:
                at -= 1
            return bool(at) and self.rows[at - 1][0] == "assistant" and not self.rows[at - 1][1]
        return not set(calls) & self.awaited()

    def complete(self, group: Group) -> bool:
        if group.by_id:
            return not group.awaited
        return group.rows[-1] < len(self.rows)

    def protected(self, head: int, tail: int) -> tuple[set[int], set[int]]:
        """Return the rows of head and of tail, each grown to whole exchanges."""
        length = len(self.rows)
        regions = (set(range(1, length + 1)[:head]), set(range(1, length + 1)[max(0, length - tail) :]))
        for region in regions:
            for group in self.groups():
                if region & set(group.rows):
                    region |= set(group.rows)
        return regions

    def chunk(self, head: int, tail: int, max_rows: int) -> list[int]:
        """Return the rows that the next summary must add."""
        shielded = set().union(*self.protected(head, tail)) | {seq for marker in self.markers for seq in marker}
        chosen: list[int] = []
        for group in sorted(self.groups(), key=lambda group: group.rows[0]):
            if not self.complete(group) or shielded & set(group.rows):
                continue
            if chosen and len(chosen) + len(group.rows) > max_rows:
                break
            chosen += group.rows
        return sorted(chosen)

    def reasons(self, head: int, tail: int) -> list[tuple[int, Reason, int | None]]:
        in_head, in_tail = self.protected(head, tail)
        listed = {seq: number for number, rows in enumerate(self.markers, start=1) for seq in rows}
        return [
            (
                seq,
                Reason.HEAD
                if seq in in_head
                else Reason.TAIL
                if seq in in_tail
                else Reason.COVERED
                if seq in listed
                else Reason.KEPT,
                listed.get(seq),
            )
            for seq in range(1, len(self.rows) + 1)
        ]


Row = tuple[str, tuple[str, ...], str | None]

roles = st.sampled_from(["system", "user", "assistant", "assistant", "tool", "tool", "tool"])
call_names = st.sampled_from(["A", "B", "C", "D"])
answered_calls = st.sampled_from([None, "oldest", "newest", "newest", "A", "B"])
attempts = st.tuples(roles, st.lists(call_names, max_size=2, unique=True).map(tuple), answered_calls)
"""A row that somebody tries to append: it may be refused."""
protected_rows = st.sampled_from([0, 0, 1, 2, 2, 3, 5, 9])
chunk_sizes = st.sampled_from([1, 2, 2, 3, 4, 6, 40])
answers = st.sampled_from(["good", "good", "good", "blank", "none", "raise"])
compactions = st.tuples(protected_rows, protected_rows, chunk_sizes, answers)
phases = st.lists(
    st.tuples(st.lists(attempts, min_size=4, max_size=14), st.lists(compactions, min_size=1, max_size=3)),
    min_size=1,
    max_size=4,
)


def fit(attempt: Row, oracle: Oracle) -> Row:
    """Return an attempt with what goes with its role, and with the id of the call that it means to answer."""
    role, calls, answered = attempt
    if role == "tool" and answered in ("oldest", "newest"):
        awaited = [call for group in oracle.groups() for call in sorted(group.awaited)] or ["none open"]
        answered = awaited[0 if answered == "oldest" else -1]
    return role, calls if role == "assistant" else (), answered if role == "tool" else None


def append_accepted(ledger: Ledger, session: str, oracle: Oracle, tried: list[Any]) -> list[Any]:
    """Append, in one transaction, up to the first row that the oracle refuses; return that row and the rest."""
    with ledger.write():
        for number, attempt in enumerate(tried):
            role, calls, answered = fit(attempt, oracle)
            if not oracle.accepts(role, calls, answered):
                return tried[number:]
            oracle.rows.append((role, calls, answered))
            seq = len(oracle.rows)
            assert append(ledger, session, role, calls, answered, f"row {seq}") == seq
    return []


def append_all(ledger: Ledger, session: str, oracle: Oracle, tried: list[Any]) -> None:
    """Append what may be appended; whatever the oracle accepts must be accepted, and nothing else."""
    while tried := append_accepted(ledger, session, oracle, tried):
        with pytest.raises(Refusal):
            append(ledger, session, *fit(tried[0], oracle), "refused")
        tried = tried[1:]


def append(ledger: Ledger, session: str, role: str, calls: tuple[str, ...], answered: str | None, content: str) -> int:
    return append_message(ledger, session, role, content, tool_calls=calls, tool_call_id=answered)


def items(oracle: Oracle) -> tuple[ContextItem, ...]:
    return tuple(
        ContextItem(seq, Role(role), f"row {seq}", tool_calls=calls, tool_call_id=answered)
        for seq, (role, calls, answered) in enumerate(oracle.rows, start=1)
    )


def stored_exchanges(ledger: Ledger, session: str) -> tuple[Exchange, ...]:
    names = ("first_seq", "last_seq", "rows", "results", "waiting", "declared", "marker")
    with ledger.read() as tx:
        found = tx.all("SELECT * FROM context_exchanges WHERE session_id = :s ORDER BY first_seq", s=session)
    return tuple(Exchange(*(row[name] for name in names)) for row in found)


def bytes_of(ledger: Ledger, session: str) -> list[tuple[Any, ...]]:
    with ledger.read() as tx:
        rows = tx.all("SELECT * FROM transcript_messages WHERE session_id = :s ORDER BY seq", s=session)
    return [tuple(row) for row in rows]


def listed(ledger: Ledger, session: str) -> list[list[int]]:
    with ledger.read() as tx:
        rows = tx.all("SELECT ranges FROM context_compactions WHERE session_id = :s ORDER BY marker", s=session)
    return [[seq for first, last in json.loads(row["ranges"]) for seq in range(first, last + 1)] for row in rows]


def check_view(ledger: Ledger, session: str, oracle: Oracle, head: int, tail: int) -> None:
    """Compare view and coverage with the oracle's, and the promises with both."""
    reasons = oracle.reasons(head, tail)
    told = coverage(ledger, session, protect_head=head, protect_tail=tail)
    assert [(row.seq, row.reason, row.marker) for row in told] == reasons
    hidden = [seq for seq, why, _ in reasons if why is Reason.COVERED]
    shown = render_context(ledger, session, protect_head=head, protect_tail=tail)
    verbatim = [item for item in items(oracle) if item.seq not in hidden]
    summaries = [item for item in shown if item.derived]
    assert [item for item in shown if not item.derived] == verbatim  # with `hidden`: every row is shown or covered
    assert [item.seq for item in summaries] == hidden[-1:]
    assert all(item.content == f"summary {len(oracle.markers)}" for item in summaries)
    assert [item.seq for item in shown] == sorted({item.seq for item in shown})
    visible = {item.seq for item in verbatim}
    for group in oracle.groups():  # no result without its call, no call without its result
        assert visible >= set(group.rows) or not visible & set(group.rows)


@pytest.fixture
def shared(ledger: Ledger) -> Callable[[], tuple[Ledger, str]]:
    """One ledger for all examples; each gets a session of its own, which is as good as a new ledger.

    It does not wait for the disk: no machine loses its power in here, and the kills are tested elsewhere.
    """
    assert ledger._connection is not None
    ledger._connection.execute("PRAGMA synchronous = OFF")
    return lambda: (ledger, f"session-{next(_sessions)}")


@given(phases=phases, views=st.lists(st.tuples(protected_rows, protected_rows), min_size=1, max_size=3))
def test_any_transcript_is_shown_or_covered_row_by_row_and_exchange_by_exchange(
    shared: Callable[[], tuple[Ledger, str]], phases: list[Any], views: list[tuple[int, int]]
) -> None:
    """Appends and compactions alternate; after each phase, view, coverage, markers and index agree with the oracle."""
    ledger, session = shared()
    oracle = Oracle()
    for tried, compacting in phases:
        append_all(ledger, session, oracle, tried)
        before = bytes_of(ledger, session)
        for head, tail, max_rows, answer in compacting:
            expected = oracle.chunk(head, tail, max_rows)
            given_rows: list[int] = []

            def summarizer(
                prior: str, exchange: tuple[ContextItem, ...], answer: str = answer, given_rows: list[int] = given_rows
            ) -> Any:
                number = len(oracle.markers)
                assert prior == (f"summary {number}" if number else "")
                given_rows += [item.seq for item in exchange]
                assert exchange == tuple(item for item in items(oracle) if item.seq in given_rows)
                if answer == "raise":
                    raise ArithmeticError
                return {"good": f"summary {number + 1}", "blank": " ", "none": None}[answer]

            options = {"protect_head": head, "protect_tail": tail, "max_rows": max_rows}
            if answer == "raise" and expected:
                with pytest.raises(ArithmeticError):
                    compact_one(ledger, session, summarizer, **options)
            else:
                stored = compact_one(ledger, session, summarizer, **options)
                assert stored == (answer == "good" and bool(expected))
                if stored:
                    oracle.markers.append(expected)
            assert given_rows == expected
            assert listed(ledger, session) == oracle.markers
        assert bytes_of(ledger, session) == before
        for head, tail in views:
            check_view(ledger, session, oracle, head, tail)
    note(f"{oracle.rows} {oracle.markers}")
    event(f"markers: {len(oracle.markers)}")
    covered = [seq for rows in oracle.markers for seq in rows]
    assert len(covered) == len(set(covered))
    assert all(check.verdict is Verdict.INTACT for check in verify_markers(ledger, session))


@given(
    tried=st.lists(attempts, min_size=12, max_size=40),
    head=protected_rows,
    tail=protected_rows,
    max_rows=chunk_sizes,
    rounds=st.integers(1, 3),
)
def test_the_index_says_what_the_plain_planner_says_of_the_whole_transcript(
    shared: Callable[[], tuple[Ledger, str]], tried: list[Any], head: int, tail: int, max_rows: int, rounds: int
) -> None:
    """The stored path reads a few rows of an index; the pure functions read everything. They agree."""
    ledger, session = shared()
    oracle = Oracle()
    append_all(ledger, session, oracle, tried)
    everything = items(oracle)
    plain = {exchange.first_seq: exchange for exchange in find_exchanges(everything)}
    edges = Edges.of(len(everything), head, tail)
    covered_by: dict[int, int] = {}

    def marked() -> list[Exchange]:
        return [replace(plain[first], marker=covered_by.get(first)) for first in sorted(plain)]

    for number in range(1, rounds + 1):
        chunk = next_chunk(marked(), edges, max_rows)
        told: list[int] = []

        def summarizer(prior: str, exchange: tuple[ContextItem, ...], told: list[int] = told) -> str:
            told += [item.seq for item in exchange]
            return "summary"

        assert compact_one(
            ledger, session, summarizer, protect_head=head, protect_tail=tail, max_rows=max_rows
        ) == bool(chunk)
        assert len(told) == sum(exchange.rows for exchange in chunk)
        covered_by |= {exchange.first_seq: number for exchange in chunk}
    assert list(stored_exchanges(ledger, session)) == marked()
    event(f"markers: {max(covered_by.values(), default=0)}")
    home = {seq: group.rows[0] for group in oracle.groups() for seq in group.rows}
    placed = []
    for item in everything:
        exchange = plain.get(home.get(item.seq, 0))
        if exchange is None:
            placed.append(PlacedRow(item, item.seq, item.seq, None))
        else:
            placed.append(PlacedRow(item, exchange.first_seq, exchange.last_seq, covered_by.get(exchange.first_seq)))
    shown = render_context(ledger, session, protect_head=head, protect_tail=tail)
    assert shown == view(placed, edges, "summary")


@given(
    tried=st.lists(attempts, min_size=12, max_size=40), head=protected_rows, tail=protected_rows, max_rows=chunk_sizes
)
def test_compacting_until_nothing_is_eligible_leaves_nothing_eligible(
    shared: Callable[[], tuple[Ledger, str]], tried: list[Any], head: int, tail: int, max_rows: int
) -> None:
    ledger, session = shared()
    oracle = Oracle()
    append_all(ledger, session, oracle, tried)
    stored = compact_until(
        ledger, session, lambda prior, _: "summary 1", protect_head=head, protect_tail=tail, max_rows=max_rows
    )
    while chunk := oracle.chunk(head, tail, max_rows):
        oracle.markers.append(chunk)
    assert listed(ledger, session) == oracle.markers
    assert stored == len(oracle.markers)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(content=texts, extra=st.dictionaries(texts, json_values, max_size=3), summary=texts)
def test_every_text_and_every_call_comes_back_as_it_was_given(
    shared: Callable[[], tuple[Ledger, str]], content: str, extra: dict[str, Any], summary: str
) -> None:
    """Also NUL, line ends and what a database or JSON might fold; also in the summary, if it is one."""
    ledger, session = shared()
    call = {**extra, "id": "A"}
    append_message(ledger, session, "assistant", content, tool_calls=[call])
    append_message(ledger, session, "tool", content, tool_call_id="A")
    assert render_context(ledger, session) == (
        ContextItem(1, Role.ASSISTANT, content, tool_calls=(call,)),
        ContextItem(2, Role.TOOL, content, tool_call_id="A"),
    )
    given_items: list[ContextItem] = []

    def summarizer(prior: str, exchange: tuple[ContextItem, ...]) -> str:
        given_items.extend(exchange)
        return summary

    shown = render_context(ledger, session)
    stored = compact_one(ledger, session, summarizer, protect_head=0, protect_tail=0)
    assert tuple(given_items) == shown
    assert stored == bool(summary.strip())
    if stored:
        expected = (ContextItem(2, Role.ASSISTANT, summary, derived=True),)
        assert render_context(ledger, session, protect_head=0, protect_tail=0) == expected
    assert all(check.verdict is Verdict.INTACT for check in verify_markers(ledger, session))
