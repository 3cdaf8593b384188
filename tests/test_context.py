"""The context keeps its source, compacts whole exchanges, and shows every row or names the marker that covers it."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sovereign_agent.clock import to_text
from sovereign_agent.context import (
    MAX_CALLS_BYTES,
    MAX_CONTENT_BYTES,
    MAX_SUMMARY_BYTES,
    ContextItem,
    Edges,
    Exchange,
    Reason,
    Role,
    Verdict,
    append_message,
    compact_one,
    compact_until,
    coverage,
    find_exchanges,
    marker_digest,
    next_chunk,
    ranges,
    reason,
    render_context,
    summary_fault,
    verify_markers,
)
from sovereign_agent.coordination import claim_session, register_host
from sovereign_agent.errors import Category, Refusal
from sovereign_agent.ledger import Ledger

ROLES = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}


def write(ledger: Ledger, script: str, session: str = "s1") -> None:
    """Append rows: `a:A,B` is an assistant row that calls A and B, `t=A` the result of A, a bare letter a bare row."""
    with ledger.write():
        for token in script.split():
            calls = token.partition(":")[2]
            append_message(
                ledger,
                session,
                ROLES[token[0]],
                f"content of {token}",
                tool_calls=calls.split(",") if calls else (),
                tool_call_id=token.partition("=")[2] or None,
            )


def shape(items: tuple[ContextItem, ...]) -> str:
    """Return a view as text: `s1 u2 [4] u5`, where [4] is the summary."""
    return " ".join(f"[{item.seq}]" if item.derived else f"{item.role[0]}{item.seq}" for item in items)


def view(ledger: Ledger, head: int = 2, tail: int = 2, session: str = "s1") -> str:
    return shape(render_context(ledger, session, protect_head=head, protect_tail=tail))


class Asked:
    """A summarizer that remembers what it was given and answers with a fixed text."""

    def __init__(self, answer: Any = "so far") -> None:
        self.answer = answer
        self.given: list[str] = []

    def __call__(self, prior: str, exchange: tuple[ContextItem, ...]) -> Any:
        self.given.append(f"{prior} + {shape(exchange)}")
        return self.answer


def joined(prior: str, exchange: tuple[ContextItem, ...]) -> str:
    """A summarizer that tells what it was given."""
    return f"{prior}({shape(exchange)})"


def markers(ledger: Ledger, session: str = "s1") -> list[tuple[Any, ...]]:
    with ledger.read() as tx:
        rows = tx.all(
            "SELECT marker, ranges, through_seq, summary FROM context_compactions "
            "WHERE session_id = :session ORDER BY marker",
            session=session,
        )
    return [(row["marker"], json.loads(row["ranges"]), row["through_seq"], row["summary"]) for row in rows]


def events(ledger: Ledger, kind: str) -> list[dict[str, Any]]:
    with ledger.read() as tx:
        return [
            json.loads(row["detail"])
            for row in tx.all("SELECT detail FROM events WHERE kind = :kind ORDER BY seq", kind=kind)
        ]


def source(ledger: Ledger) -> list[tuple[Any, ...]]:
    with ledger.read() as tx:
        return [tuple(row) for row in tx.all("SELECT * FROM transcript_messages ORDER BY session_id, seq")]


# The main path


def test_seven_rows_become_six_items_of_which_one_is_a_summary(ledger: Ledger) -> None:
    write(ledger, "s u a t u a t")
    before = source(ledger)
    summarizer = Asked("looked it up")
    assert compact_one(ledger, "s1", summarizer)
    assert summarizer.given == [" + a3 t4"]
    assert view(ledger) == "s1 u2 [4] u5 a6 t7"
    assert render_context(ledger, "s1")[2] == ContextItem(4, Role.ASSISTANT, "looked it up", derived=True)
    assert source(ledger) == before
    assert not compact_one(ledger, "s1", joined)


def test_a_marker_holds_the_cumulative_summary_its_own_ranges_and_a_chained_digest(ledger: Ledger) -> None:
    write(ledger, "s u a:A u t=A a u u u")
    assert compact_one(ledger, "s1", joined, max_rows=2)
    assert compact_one(ledger, "s1", joined, max_rows=2)
    assert markers(ledger) == [(1, [[3, 3], [5, 5]], 5, "(a3 t5)"), (2, [[6, 6]], 6, "(a3 t5)(a6)")]
    with ledger.read() as tx:
        digests = tx.all("SELECT previous_digest, digest FROM context_compactions ORDER BY marker")
        rows = tx.all(
            "SELECT seq, role, content, tool_calls, tool_call_id, created_at FROM transcript_messages WHERE seq = 6"
        )
    assert digests[0]["previous_digest"] == ""
    assert digests[1]["previous_digest"] == digests[0]["digest"]
    assert digests[1]["digest"] == marker_digest(digests[0]["digest"], "s1", 2, "(a3 t5)(a6)", rows)
    assert view(ledger) == "s1 u2 u4 [6] u7 u8 u9"


def test_a_summary_stands_at_the_last_row_it_hides_and_never_beside_all_its_rows(ledger: Ledger) -> None:
    """A view with a larger tail shows covered rows as they are; the summary stays only for the others."""
    write(ledger, "s u a t u a t u a t")
    assert compact_until(ledger, "s1", joined, max_rows=2) == 2
    assert view(ledger) == "s1 u2 u5 [7] u8 a9 t10"
    assert view(ledger, tail=5) == "s1 u2 [4] u5 a6 t7 u8 a9 t10"
    assert view(ledger, tail=8) == "s1 u2 a3 t4 u5 a6 t7 u8 a9 t10"
    assert view(ledger, head=3, tail=0) == "s1 u2 a3 t4 u5 [7] u8 a9 t10"
    assert [(row.seq, row.reason, row.marker) for row in coverage(ledger, "s1", protect_head=1, protect_tail=4)] == [
        (1, Reason.HEAD, None),
        (2, Reason.KEPT, None),
        (3, Reason.COVERED, 1),
        (4, Reason.COVERED, 1),
        (5, Reason.KEPT, None),
        (6, Reason.TAIL, 2),
        (7, Reason.TAIL, 2),
        (8, Reason.TAIL, None),
        (9, Reason.TAIL, None),
        (10, Reason.TAIL, None),
    ]


def test_another_process_goes_on_where_the_first_stopped(
    ledger: Ledger, open_ledger: Callable[..., Ledger], tmp_path: Path
) -> None:
    write(ledger, "s u a t a t a t a t u")
    assert compact_one(ledger, "s1", joined, max_rows=2)
    ledger.close()
    again = open_ledger(tmp_path)
    assert compact_one(again, "s1", joined, max_rows=2)
    assert markers(again)[-1] == (2, [[5, 6]], 6, "(a3 t4)(a5 t6)")


def test_sessions_do_not_see_each_other(ledger: Ledger) -> None:
    write(ledger, "s u a:A", "one")
    write(ledger, "s u a t u u", "two")
    with pytest.raises(Refusal, match="no open call"):
        append_message(ledger, "two", "tool", "", tool_call_id="A")
    assert compact_one(ledger, "two", joined)
    assert view(ledger, session="one") == "s1 u2 a3"
    write(ledger, "a:A t=A", "two")
    write(ledger, "t=A", "one")
    assert render_context(ledger, "nobody") == ()
    assert coverage(ledger, "nobody") == ()
    assert verify_markers(ledger, "nobody") == ()
    assert not compact_one(ledger, "nobody", joined)


# Exchanges stay whole


@pytest.mark.parametrize(
    ("script", "head", "tail", "expected"),
    [
        ("s u a a t t u", 2, 2, "s1 u2 [3] a4 t5 t6 u7"),
        ("s u a:A,B t=A t=B a u", 2, 3, "s1 u2 a3 t4 t5 a6 u7"),
        ("a t t t", 2, 2, "a1 t2 t3 t4"),
        ("a t t t", 0, 2, "a1 t2 t3 t4"),
        ("u a t u u u", 2, 2, "u1 a2 t3 u4 u5 u6"),
        ("s a a t u u", 2, 2, "s1 a2 [4] u5 u6"),
        ("s u a:A a:B t=A t=B u", 2, 2, "s1 u2 a3 a4 t5 t6 u7"),
        ("s u a:A a:B t=A t=B u", 2, 0, "s1 u2 [6] u7"),
        ("s u a:A a:B t=A t=B u", 3, 0, "s1 u2 a3 a4 t5 t6 u7"),
        ("s u a:A a:B t=B u u u", 2, 0, "s1 u2 a3 a4 t5 u6 u7 u8"),
        ("s u a:A u u a t u u", 2, 2, "s1 u2 a3 u4 u5 [7] u8 u9"),
        ("s u a:A u u t=A u u", 2, 2, "s1 u2 u4 u5 [6] u7 u8"),
        ("s u a:A u a t u t=A", 2, 1, "s1 u2 a3 u4 [6] u7 t8"),
        ("s u a t u a t", 2, 0, "s1 u2 [4] u5 a6 t7"),
        ("s u a t u a t", 0, 0, "s1 u2 [4] u5 a6 t7"),
        ("s u a t u a:A t=A", 2, 0, "s1 u2 u5 [7]"),
        ("s u a t u a t", 99, 0, "s1 u2 a3 t4 u5 a6 t7"),
        ("s u a t u a t", 0, 10**30, "s1 u2 a3 t4 u5 a6 t7"),
    ],
)
def test_a_view_never_parts_a_call_and_its_results(
    ledger: Ledger, script: str, head: int, tail: int, expected: str
) -> None:
    """Head and tail grow to whole exchanges, zero means none, and what waits for a result is passed over."""
    write(ledger, script)
    compact_until(ledger, "s1", joined, protect_head=head, protect_tail=tail)
    assert view(ledger, head, tail) == expected


def test_four_interleaved_rows_are_covered_together_or_kept_together(ledger: Ledger) -> None:
    """Two calling rows in a row are one message sent in parts, so no chunk size can part them."""
    write(ledger, "s u a:A a:B t=A t=B u")
    assert not compact_one(ledger, "s1", joined, protect_tail=2)
    assert not compact_one(ledger, "s1", joined, protect_tail=3, max_rows=1)
    assert compact_one(ledger, "s1", joined, protect_tail=1, max_rows=1)
    assert markers(ledger) == [(1, [[3, 6]], 6, "(a3 a4 t5 t6)")]


def test_an_answer_that_comes_late_makes_its_exchange_the_oldest_eligible_one(ledger: Ledger) -> None:
    write(ledger, "s u a:late u a t u u")
    assert compact_one(ledger, "s1", joined)
    write(ledger, "t=late u u")
    assert compact_one(ledger, "s1", joined)
    assert [row[:3] for row in markers(ledger)] == [(1, [[5, 6]], 6), (2, [[3, 3], [9, 9]], 9)]


def test_a_chunk_is_the_oldest_whole_exchanges_that_fit_and_a_larger_one_goes_alone(ledger: Ledger) -> None:
    write(ledger, "s u a t t t a t a t a t t a t u u u")
    summarizer = Asked()
    assert compact_until(ledger, "s1", summarizer, max_rows=3) == 5
    given = ["a3 t4 t5 t6", "a7 t8", "a9 t10", "a11 t12 t13", "a14 t15"]
    assert summarizer.given == [f"{prior} + {rows}" for prior, rows in zip(["", *["so far"] * 4], given, strict=True)]
    assert [row[1] for row in markers(ledger)] == [[[3, 6]], [[7, 8]], [[9, 10]], [[11, 13]], [[14, 15]]]


def test_a_chunk_of_many_exchanges_misses_none_that_lies_within_another(ledger: Ledger) -> None:
    """The index is read 64 exchanges at a time; here the 64th encloses the 65th."""
    write(ledger, "a u " * 63 + "a:L u a:M t=M u t=L u")
    assert compact_one(ledger, "s1", joined, protect_head=0, protect_tail=0, max_rows=1000)
    assert all(exchange.marker == 1 for exchange in stored(ledger, "s1"))
    assert len(stored(ledger, "s1")) == 65


def test_system_and_user_rows_are_never_summarized(ledger: Ledger) -> None:
    """The limit that the page states: many user rows make a long view."""
    write(ledger, "s u " * 200)
    assert not compact_one(ledger, "s1", joined)
    assert len(render_context(ledger, "s1")) == 400


def test_an_assistant_row_at_the_very_end_is_not_complete_yet(ledger: Ledger) -> None:
    write(ledger, "u a")
    assert not compact_one(ledger, "s1", joined, protect_head=0, protect_tail=0)
    write(ledger, "t")
    assert not compact_one(ledger, "s1", joined, protect_head=0, protect_tail=0)
    write(ledger, "u")
    assert compact_one(ledger, "s1", joined, protect_head=0, protect_tail=0)
    assert view(ledger, 0, 0) == "u1 [3] u4"


# What append_message refuses


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("t", "without a tool_call_id it must directly follow an assistant row without calls"),
        ("s u t", "without a tool_call_id"),
        ("a u t", "without a tool_call_id"),
        ("a:A t", "without a tool_call_id"),
        ("a:A t=A t", "without a tool_call_id"),
        ("a:A a t=A t", "without a tool_call_id"),
        ("t=A", "no open call has this id"),
        ("a t=A", "no open call has this id"),
        ("a:A t=B", "no open call has this id"),
        ("a:A t=A t=A", "no open call has this id"),
        ("a:A a:B,A", "still unanswered"),
    ],
)
def test_a_result_that_belongs_to_no_open_call_is_refused_and_leaves_nothing(
    ledger: Ledger, script: str, why: str
) -> None:
    *before, last = script.split()
    write(ledger, " ".join(before))
    rows = source(ledger)
    with pytest.raises(Refusal, match=why) as refused:
        write(ledger, last)
    assert refused.value.category is Category.CONTEXT
    assert source(ledger) == rows
    assert events(ledger, "refused")[-1]["category"] == "context"


def test_an_answered_id_may_be_used_again(ledger: Ledger) -> None:
    """Some models number their calls anew in every message."""
    write(ledger, "u a:0 t=0 a:0 t=0 u")
    assert [exchange.last_seq for exchange in find_exchanges(render_context(ledger, "s1"))] == [3, 5]


def test_rows_return_their_numbers_and_come_back_as_they_were_given(ledger: Ledger) -> None:
    call = {"type": "function", "id": "B", "function": {"name": "größe", "arguments": '{"x": [1, 2.5, null]}'}}
    assert append_message(ledger, "s1", "assistant", "", tool_calls=["A", call]) == 1
    assert append_message(ledger, "s1", "tool", "", tool_call_id="B") == 2
    assert append_message(ledger, "s1", "tool", "nul \0 and 🦜\r\n", tool_call_id="A") == 3
    assert append_message(ledger, "s1", "user", "") == 4
    assert render_context(ledger, "s1") == (
        ContextItem(1, Role.ASSISTANT, "", tool_calls=("A", call)),
        ContextItem(2, Role.TOOL, "", tool_call_id="B"),
        ContextItem(3, Role.TOOL, "nul \0 and 🦜\r\n", tool_call_id="A"),
        ContextItem(4, Role.USER, ""),
    )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"session_id": ""}, ValueError, "session_id"),
        ({"session_id": " s"}, ValueError, "session_id"),
        ({"session_id": 7}, TypeError, "session_id"),
        ({"role": "developer"}, ValueError, "role must be one of system, user, assistant, tool: developer"),
        ({"role": "User"}, ValueError, "role"),
        ({"role": None}, TypeError, "role"),
        ({"content": b"bytes"}, TypeError, "content must be text, not bytes"),
        ({"content": 7}, TypeError, "content must be text, not int"),
        ({"content": None}, TypeError, "content"),
        ({"content": "ab\ud800"}, ValueError, "lone surrogate at character 2"),
        ({"content": "é" * (MAX_CONTENT_BYTES // 2) + "x"}, ValueError, "content must be at most 4194304 bytes"),
        ({"tool_calls": ["A"]}, ValueError, "tool_calls belong to an assistant row"),
        ({"tool_call_id": "A"}, ValueError, "tool_call_id belongs to a tool row"),
        ({"role": "assistant", "tool_call_id": "A"}, ValueError, "tool_call_id belongs to a tool row"),
        ({"role": "tool", "tool_call_id": " "}, ValueError, "tool_call_id"),
        ({"role": "tool", "tool_call_id": 1}, TypeError, "tool_call_id"),
        ({"role": "assistant", "tool_calls": "AB"}, TypeError, "tool_calls must be a sequence of calls, not str"),
        ({"role": "assistant", "tool_calls": {"id": "A"}}, TypeError, "not dict"),
        ({"role": "assistant", "tool_calls": None}, TypeError, "not NoneType"),
        ({"role": "assistant", "tool_calls": [1]}, TypeError, "ids or JSON objects, not int"),
        ({"role": "assistant", "tool_calls": [""]}, ValueError, "tool_calls id"),
        ({"role": "assistant", "tool_calls": ["A", "A"]}, ValueError, "different ids"),
        ({"role": "assistant", "tool_calls": [{"name": "x"}]}, ValueError, "with an id"),
        ({"role": "assistant", "tool_calls": [{"id": 3}]}, TypeError, "tool_calls id"),
        ({"role": "assistant", "tool_calls": [{"id": "A", "x": float("nan")}]}, ValueError, "must be JSON"),
        ({"role": "assistant", "tool_calls": [{"id": "A", "x": float("inf")}]}, ValueError, "must be JSON"),
        ({"role": "assistant", "tool_calls": [{"id": "A", "x": "\ud800"}]}, ValueError, "must be JSON"),
        ({"role": "assistant", "tool_calls": [{"id": "A", "x": (1,)}]}, ValueError, "must be JSON"),
        ({"role": "assistant", "tool_calls": [{"id": "A", 1: 1}]}, ValueError, "must be JSON"),
        ({"role": "assistant", "tool_calls": [{"id": "A", "x": object()}]}, ValueError, "must be JSON"),
        ({"role": "assistant", "tool_calls": [{"id": "A", "x": "y" * MAX_CALLS_BYTES}]}, ValueError, "at most 262144"),
        ({"claim": "claim"}, TypeError, "claim must be a SessionClaim"),
        ({"now": datetime(2026, 1, 5)}, ValueError, "now must be aware"),
    ],
)
def test_malformed_arguments_of_append_message_are_named(
    ledger: Ledger, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        append_message(ledger, **{"session_id": "s1", "role": "user", "content": "x", **arguments})
    assert source(ledger) == []


def test_a_row_of_the_largest_size_is_kept(ledger: Ledger) -> None:
    append_message(ledger, "s1", "user", "x" * MAX_CONTENT_BYTES)
    assert len(render_context(ledger, "s1")[0].content) == MAX_CONTENT_BYTES
    around = len('[{"id":"A","x":""}]')
    append_message(ledger, "s1", "assistant", "", tool_calls=[{"id": "A", "x": "y" * (MAX_CALLS_BYTES - around)}])
    assert len(json.dumps(render_context(ledger, "s1")[1].tool_calls, separators=(",", ":"))) == MAX_CALLS_BYTES


def test_calls_are_kept_as_ascii_and_come_back_as_they_were(ledger: Ledger) -> None:
    append_message(ledger, "s1", "assistant", "", tool_calls=[{"id": "A", "x": "é"}])
    assert '[{"id":"A","x":"\\u00e9"}]' in source(ledger)[0]
    assert render_context(ledger, "s1")[0].tool_calls == ({"id": "A", "x": "é"},)


def test_a_summary_of_the_largest_size_is_one_and_no_larger_one() -> None:
    assert summary_fault("é" * (MAX_SUMMARY_BYTES // 2)) is None
    assert summary_fault("x" * (MAX_SUMMARY_BYTES + 1)) == "too_large"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"protect_head": -1}, ValueError, "protect_head must be at least 0: -1"),
        ({"protect_tail": -1}, ValueError, "protect_tail"),
        ({"protect_head": True}, TypeError, "protect_head"),
        ({"protect_tail": 1.0}, TypeError, "protect_tail"),
        ({"max_rows": 0}, ValueError, "max_rows must be at least 1"),
        ({"max_rows": None}, TypeError, "max_rows"),
        ({"summarizer": "text"}, TypeError, "summarizer must be callable"),
        ({"session_id": "\n"}, ValueError, "session_id"),
        ({"max_calls": 0}, ValueError, "max_calls must be at least 1"),
    ],
)
def test_malformed_arguments_of_compacting_are_named(
    ledger: Ledger, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    function: Callable[..., object] = compact_until if "max_calls" in arguments else compact_one
    with pytest.raises(error, match=message):
        function(ledger, **{"session_id": "s1", "summarizer": joined, **arguments})
    if message.startswith("protect"):
        for show in (render_context, coverage):
            with pytest.raises(error, match=message):
                show(ledger, "s1", **arguments)


# Summarizers that fail


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ("", "blank"),
        (" \n\t", "blank"),
        (None, "not_text"),
        (b"bytes", "not_text"),
        (7, "not_text"),
        ("\ud800", "not_encodable"),
        ("é" * (MAX_SUMMARY_BYTES // 2 + 1), "too_large"),
    ],
)
def test_what_is_no_summary_makes_no_marker_and_the_next_one_sees_the_same_rows(
    ledger: Ledger, answer: Any, fault: str
) -> None:
    """An earlier summary stays, every row is still shown, and an event says what blocks."""
    write(ledger, "s u a t a t a t u u")
    assert compact_one(ledger, "s1", joined, max_rows=2)
    shown = view(ledger)
    summarizer = Asked(answer)
    assert not compact_one(ledger, "s1", summarizer, max_rows=2)
    assert compact_until(ledger, "s1", summarizer, max_rows=2) == 0
    assert summarizer.given == ["(a3 t4) + a5 t6"] * 2
    assert view(ledger) == shown == "s1 u2 [4] a5 t6 a7 t8 u9 u10"
    expected = {"fault": fault, "marker": 2, "ranges": [[5, 6]], "rows": 2, "through_seq": 6}
    assert events(ledger, "context.summary_refused") == [expected] * 2
    assert compact_one(ledger, "s1", joined, max_rows=2)
    assert markers(ledger)[-1] == (2, [[5, 6]], 6, "(a3 t4)(a5 t6)")


@pytest.mark.parametrize("error", [RuntimeError, Refusal, KeyboardInterrupt, SystemExit])
def test_what_the_summarizer_raises_propagates_and_leaves_no_marker(ledger: Ledger, error: type[BaseException]) -> None:
    raised = Refusal("memory", "x", "why", "remedy") if error is Refusal else error("secret text")

    def summarizer(prior: str, exchange: tuple[ContextItem, ...]) -> str:
        raise raised

    write(ledger, "s u a t u a t u u")
    with pytest.raises(error) as caught:
        compact_one(ledger, "s1", summarizer)
    assert caught.value is raised
    assert markers(ledger) == []
    failed = events(ledger, "context.summary_failed")
    expected = {"error": error.__name__, "marker": 1, "ranges": [[3, 4], [6, 7]], "rows": 4, "through_seq": 7}
    assert failed == ([expected] if issubclass(error, Exception) else [])
    assert compact_one(ledger, "s1", joined)


def test_what_the_summarizer_raises_propagates_also_where_nothing_can_be_recorded(ledger: Ledger) -> None:
    write(ledger, "s u a t u u")

    def summarizer(prior: str, exchange: tuple[ContextItem, ...]) -> str:
        ledger.close()
        raise OSError("down")

    with pytest.raises(OSError, match="down"):
        compact_one(ledger, "s1", summarizer)


def test_compact_until_stops_at_its_bound_and_when_nothing_is_left(ledger: Ledger) -> None:
    write(ledger, "s u " + "a t " * 9 + "u")
    summarizer = Asked()
    assert compact_until(ledger, "s1", summarizer, max_rows=2, max_calls=3) == 3
    assert compact_until(ledger, "s1", summarizer, max_rows=2) == 5
    assert compact_until(ledger, "s1", summarizer, max_rows=2) == 0
    assert len(summarizer.given) == len(markers(ledger)) == 8


# Transactions, rivals and claims


def test_the_summarizer_runs_outside_any_transaction(
    ledger: Ledger, open_ledger: Callable[..., Ledger], tmp_path: Path
) -> None:
    """So it may take its time, and may itself append to the transcript that is being compacted."""
    other = open_ledger(tmp_path)

    def summarizer(prior: str, exchange: tuple[ContextItem, ...]) -> str:
        assert not ledger.in_transaction
        append_message(other, "s1", "user", "meanwhile")
        append_message(ledger, "s1", "user", "also")
        return "done"

    write(ledger, "s u a t u a t")
    assert compact_one(ledger, "s1", summarizer)
    assert view(ledger) == "s1 u2 [4] u5 a6 t7 u8 u9"


@pytest.mark.parametrize("function", [compact_one, compact_until])
@pytest.mark.parametrize("transaction", ["read", "write"])
def test_compacting_refuses_to_start_inside_a_transaction(
    ledger: Ledger, function: Callable[..., object], transaction: str
) -> None:
    write(ledger, "s u a t u a t")
    summarizer = Asked()
    said = f"{function.__name__} runs the caller's code and cannot start inside a transaction"
    with getattr(ledger, transaction)(), pytest.raises(Refusal, match=said):
        function(ledger, "s1", summarizer)
    assert summarizer.given == []


def test_the_loser_of_two_compactors_stores_nothing(
    ledger: Ledger, open_ledger: Callable[..., Ledger], tmp_path: Path
) -> None:
    other = open_ledger(tmp_path)
    write(ledger, "s u a t a t u u")

    def slow(prior: str, exchange: tuple[ContextItem, ...]) -> str:
        assert compact_one(other, "s1", lambda prior, exchange: "quick", max_rows=2)
        return "slow"

    assert not compact_one(ledger, "s1", slow, max_rows=2)
    assert markers(ledger) == [(1, [[3, 4]], 4, "quick")]
    assert view(ledger) == "s1 u2 [4] a5 t6 u7 u8"


def test_compact_until_goes_on_after_a_lost_race(
    ledger: Ledger, open_ledger: Callable[..., Ledger], tmp_path: Path
) -> None:
    other = open_ledger(tmp_path)
    write(ledger, "s u a t a t u u")
    calls: list[str] = []

    def summarizer(prior: str, exchange: tuple[ContextItem, ...]) -> str:
        calls.append(shape(exchange))
        if len(calls) == 1:
            assert compact_one(other, "s1", joined, max_rows=2)
        return f"{prior}{len(calls)}"

    assert compact_until(ledger, "s1", summarizer, max_rows=2) == 1
    assert calls == ["a3 t4", "a5 t6"]
    assert [row[3] for row in markers(ledger)] == ["(a3 t4)", "(a3 t4)2"]


COMPACTOR = """
import sys, time
from pathlib import Path
from sovereign_agent.context import compact_one
from sovereign_agent.ledger import Ledger

root, me, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def summarizer(prior, exchange):
    (root / f"ready-{me}").touch()
    deadline = time.monotonic() + 30
    while len(list(root.glob("ready-*"))) < count and time.monotonic() < deadline:
        time.sleep(0.005)
    return "by " + me

with Ledger.open(root, busy_timeout_seconds=30) as ledger:
    print(compact_one(ledger, "s1", summarizer))
"""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def test_of_compactors_in_several_processes_one_stores_its_marker(ledger: Ledger, tmp_path: Path) -> None:
    """All of them are inside the summarizer at the same time."""
    write(ledger, "s u a t u a t")
    children = [start(COMPACTOR, tmp_path, name, 8) for name in "abcdefgh"]
    answers = [child.communicate(timeout=60)[0].strip() for child in children]
    assert sorted(answers) == ["False"] * 7 + ["True"]
    winner = "abcdefgh"[answers.index("True")]
    assert markers(ledger) == [(1, [[3, 4]], 4, f"by {winner}")]
    assert [check.verdict for check in verify_markers(ledger, "s1")] == [Verdict.INTACT]


def test_a_process_killed_inside_the_summarizer_leaves_no_trace_in_the_view(ledger: Ledger, tmp_path: Path) -> None:
    write(ledger, "s u a t u a t")
    child = start(COMPACTOR, tmp_path, "a", 2)
    deadline = time.monotonic() + 30
    while not (tmp_path / "ready-a").exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    child.kill()
    child.communicate()
    assert markers(ledger) == []
    assert view(ledger) == "s1 u2 a3 t4 u5 a6 t7"
    assert compact_one(ledger, "s1", joined)


APPENDER = """
import sys
from sovereign_agent.context import append_message
from sovereign_agent.ledger import Ledger

with Ledger.open(sys.argv[1], busy_timeout_seconds=30) as ledger:
    for number in range(20):
        with ledger.write():
            append_message(ledger, "s1", "assistant", "", tool_calls=[f"{sys.argv[2]}-{number}"])
        append_message(ledger, "s1", "tool", sys.argv[2], tool_call_id=f"{sys.argv[2]}-{number}")
"""


def test_appenders_in_several_processes_share_one_unbroken_numbering(ledger: Ledger, tmp_path: Path) -> None:
    children = [start(APPENDER, tmp_path, name) for name in "abcdefgh"]
    assert [child.wait(timeout=60) for child in children] == [0] * 8
    for child in children:
        child.communicate()
    items = render_context(ledger, "s1")
    assert [item.seq for item in items] == list(range(1, 321))
    assert sum(exchange.rows for exchange in find_exchanges(items)) == 320
    assert all(not exchange.waiting for exchange in find_exchanges(items))


def test_an_aborted_transaction_leaves_neither_row_nor_open_call(ledger: Ledger) -> None:
    with pytest.raises(RuntimeError), ledger.write():
        append_message(ledger, "s1", "assistant", "", tool_calls=["A"])
        raise RuntimeError
    assert source(ledger) == []
    with pytest.raises(Refusal, match="no open call"):
        append_message(ledger, "s1", "tool", "", tool_call_id="A")
    write(ledger, "a:A t=A")


def test_an_append_may_present_a_claim_which_must_be_live_in_the_same_write(ledger: Ledger, T0: datetime) -> None:  # noqa: N803
    """A host that was taken over cannot write one more row."""
    register_host(ledger, "host-a", ttl_seconds=1000)
    register_host(ledger, "host-b", ttl_seconds=1000)
    old = claim_session(ledger, "s1", "host-a", ttl_seconds=60)
    assert append_message(ledger, "s1", "user", "in time", claim=old) == 1
    late = T0 + timedelta(seconds=120)
    with pytest.raises(Refusal, match="stale or expired") as refused:
        append_message(ledger, "s1", "user", "too late", claim=old, now=late)
    assert refused.value.category is Category.SESSION
    new = claim_session(ledger, "s1", "host-b", ttl_seconds=60, now=late)
    with pytest.raises(Refusal, match="stale or expired"):
        append_message(ledger, "s1", "user", "stale", claim=old, now=T0)
    assert append_message(ledger, "s1", "user", "by the new host", claim=new, now=late) == 2
    with pytest.raises(Refusal, match="the claim is for session s1") as refused:
        append_message(ledger, "s2", "user", "elsewhere", claim=new, now=late)
    assert refused.value.category is Category.SESSION
    assert [row[3] for row in source(ledger)] == ["in time", "by the new host"]
    assert [event["category"] for event in events(ledger, "refused")] == ["session"] * 3


def test_a_view_may_be_read_from_a_read_only_ledger(
    ledger: Ledger, open_ledger: Callable[..., Ledger], tmp_path: Path
) -> None:
    write(ledger, "s u a t u a t")
    assert compact_one(ledger, "s1", joined)
    reader = open_ledger(tmp_path, read_only=True)
    assert view(reader) == "s1 u2 [4] u5 a6 t7"
    assert [check.verdict for check in verify_markers(reader, "s1")] == [Verdict.INTACT]


def test_an_explicit_now_is_the_time_of_the_whole_call(ledger: Ledger, T0: datetime) -> None:  # noqa: N803
    early = T0 - timedelta(days=400)
    for role in ("user", "assistant", "user"):
        append_message(ledger, "s1", role, "x", now=early)
    assert compact_one(ledger, "s1", joined, protect_head=0, protect_tail=0, now=early)
    with ledger.read() as tx:
        stored = tx.all(
            "SELECT created_at FROM transcript_messages UNION ALL SELECT created_at FROM context_compactions "
            "UNION ALL SELECT at FROM events WHERE kind LIKE 'context.%'"
        )
    assert {row[0] for row in stored} == {to_text(early)}
    assert len(stored) == 8


def test_events_hold_numbers_and_digests_and_no_content(ledger: Ledger) -> None:
    write(ledger, "s u a:secret-call t=secret-call u u")
    assert compact_one(ledger, "s1", lambda prior, exchange: "secret summary")
    with ledger.read() as tx:
        digest = tx.all("SELECT digest FROM context_compactions")[0]["digest"]
        text = " ".join(row["detail"] for row in tx.all("SELECT detail FROM events"))
    assert events(ledger, "context.compacted") == [
        {"digest": digest, "marker": 1, "ranges": [[3, 4]], "rows": 2, "through_seq": 4}
    ]
    assert events(ledger, "context.appended")[3] == {"exchange": 3, "role": "tool", "seq": 4}
    assert "secret" not in text
    assert "content of" not in text


# A source that does not change, and one that does


@pytest.mark.parametrize("table", ["transcript_messages", "context_compactions"])
@pytest.mark.parametrize("action", ["update", "delete", "replace"])
def test_a_plain_client_cannot_change_source_or_summary(ledger: Ledger, table: str, action: str) -> None:
    write(ledger, "s u a t u a t")
    assert compact_one(ledger, "s1", joined)
    text = "content" if table == "transcript_messages" else "summary"
    statement = {
        "update": f"UPDATE {table} SET {text} = 'FORGED'",
        "delete": f"DELETE FROM {table}",
        "replace": f"INSERT OR REPLACE INTO {table} SELECT * FROM {table}",
    }[action]
    plain = sqlite3.connect(ledger.path)
    try:
        with pytest.raises(sqlite3.IntegrityError, match=f"{action} refused"):
            plain.execute(statement)
    finally:
        plain.close()
    assert view(ledger) == "s1 u2 [4] u5 a6 t7"


def test_a_marker_cannot_reach_beyond_its_transcript_and_hides_nothing_that_it_does_not_list(ledger: Ledger) -> None:
    write(ledger, "s u a t u a t")
    insert = (
        "INSERT INTO context_compactions (session_id, marker, through_seq, ranges, summary, previous_digest, digest, "
        "created_at) VALUES ('s1', 1, :through, '[]', 'future', '', '', '')"
    )
    with pytest.raises(Refusal, match="FOREIGN KEY"), ledger.write() as tx:
        tx.run(insert, through=99)
    with ledger.write() as tx:
        tx.run(insert, through=7)
    assert view(ledger) == "s1 u2 a3 t4 u5 a6 t7"
    assert verify_markers(ledger, "s1")[0].verdict is Verdict.CHANGED


def test_a_covered_exchange_cannot_be_covered_again(ledger: Ledger) -> None:
    write(ledger, "s u a t u a t")
    assert compact_one(ledger, "s1", joined)
    with pytest.raises(Refusal, match="the exchange is covered"), ledger.write() as tx:
        tx.run("UPDATE context_exchanges SET marker = NULL WHERE first_seq = 3")
    with pytest.raises(Refusal, match="delete refused"), ledger.write() as tx:
        tx.run("DELETE FROM context_exchanges")


@pytest.mark.parametrize(
    ("tampering", "changed", "detail"),
    [
        ("UPDATE transcript_messages SET content = 'x' WHERE seq = 4", [1], "no longer what was summarized"),
        ("UPDATE transcript_messages SET created_at = 'x' WHERE seq = 6", [2], "no longer what was summarized"),
        ("UPDATE transcript_messages SET tool_calls = '[ \"A\"]' WHERE seq = 3", [1], "no longer what was summarized"),
        ("DELETE FROM transcript_messages WHERE seq = 4", [1], "its ranges are not its rows"),
        ("UPDATE context_compactions SET summary = 'x' WHERE marker = 2", [2], "no longer what was summarized"),
        ("UPDATE context_compactions SET through_seq = 9 WHERE marker = 2", [2], "its ranges are not its rows"),
        ("UPDATE context_compactions SET digest = 'x' WHERE marker = 1", [1, 2], "it does not follow"),
        ("DELETE FROM context_compactions WHERE marker = 1", [2, 3], "a marker is missing before it"),
        ("UPDATE context_compactions SET ranges = '[[3,6]]' WHERE marker = 2", [2], "that an earlier marker covers"),
        ("UPDATE context_exchanges SET marker = 1 WHERE first_seq = 5", [1, 2], "the index shows other rows"),
        *(
            (f"UPDATE context_compactions SET ranges = '{ranges}' WHERE marker = 2", [2], "its ranges are not its rows")
            for ranges in ("[[1e999,6]]", "[[5,99999999999999999999]]", "[[-99999999999999999999,6]]", "[5,6]", "{}")
        ),
    ],
)
def test_a_second_look_notices_a_change_that_went_around_the_triggers(
    ledger: Ledger, tampering: str, changed: list[int], detail: str
) -> None:
    write(ledger, "s u a:A t=A a:B t=B a:C t=C u u")
    assert compact_until(ledger, "s1", joined, max_rows=2) == 3
    assert [check.verdict for check in verify_markers(ledger, "s1")] == [Verdict.INTACT] * 3
    plain = sqlite3.connect(ledger.path)
    for (name,) in plain.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
        plain.execute(f"DROP TRIGGER {name}")
    plain.execute(tampering)
    plain.commit()
    plain.close()
    checks = verify_markers(ledger, "s1")
    assert [check.marker for check in checks if check.verdict is Verdict.CHANGED] == changed
    assert any(detail in check.detail for check in checks)


# What it costs


def fill(ledger: Ledger, session: str, rows: int) -> None:
    """Lay down a long transcript at once: in every 60 rows, one user row pair and 29 exchanges of two rows."""
    with ledger.write() as tx:
        tx.run(
            """
            WITH RECURSIVE n (seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM n WHERE seq < :rows)
            INSERT INTO transcript_messages
            SELECT :session, seq, CASE WHEN seq % 120 < 2 THEN 'user' WHEN seq % 2 = 0 THEN 'assistant' ELSE 'tool' END,
                   'row ' || seq,
                   CASE WHEN seq % 120 >= 2 AND seq % 2 = 0 THEN '["c' || seq || '"]' ELSE '[]' END,
                   CASE WHEN seq % 120 >= 2 AND seq % 2 = 1 THEN 'c' || (seq - 1) END,
                   CASE WHEN seq % 120 >= 2 THEN seq - seq % 2 END,
                   '2026-01-05T08:00:00.000000Z'
            FROM n
            """,
            session=session,
            rows=rows,
        )
        tx.run(
            """
            INSERT INTO context_exchanges
            SELECT session_id, seq, seq + 1, 2, 1, 0, 1, NULL FROM transcript_messages
            WHERE session_id = :session AND role = 'assistant'
            """,
            session=session,
        )


def steps(ledger: Ledger, action: Callable[[], object]) -> int:
    """Return how many instructions of SQLite's virtual machine an action takes: a cost that no busy machine blurs."""
    connection = ledger._connection
    assert connection is not None
    count = [0]

    def step() -> int:
        count[0] += 1
        return 0

    connection.set_progress_handler(step, 1)
    try:
        action()
    finally:
        connection.set_progress_handler(None, 0)
    return count[0]


@pytest.mark.parametrize("behind", [False, True], ids=["backlog", "all but the newest covered"])
def test_compacting_and_appending_cost_the_same_in_a_transcript_a_hundred_times_as_long(
    ledger: Ledger, *, behind: bool
) -> None:
    fill(ledger, "short", 301)
    fill(ledger, "long", 30_000)
    assert find_exchanges(render_context(ledger, "short")) == stored(ledger, "short")
    costs: dict[str, list[int]] = {}
    for session in ("short", "long"):
        if behind:
            compact_until(ledger, session, lambda prior, exchange: "so far", max_rows=5_000)
        with ledger.write():
            for number in range(8):
                append_message(ledger, session, "assistant", "", tool_calls=[f"n{number}"])
                append_message(ledger, session, "tool", "", tool_call_id=f"n{number}")

        def compact(session: str = session) -> None:
            assert compact_one(ledger, session, lambda prior, exchange: "so far", max_rows=4)

        def append(session: str = session) -> None:
            append_message(ledger, session, "assistant", "", tool_calls=["new"])
            append_message(ledger, session, "tool", "", tool_call_id="new")

        costs[session] = [steps(ledger, compact), steps(ledger, append)]
    for short, long in zip(costs["short"], costs["long"], strict=True):
        assert long <= 1.3 * short, costs


def test_a_view_costs_what_it_shows(ledger: Ledger) -> None:
    """30,000 rows of which some 500 survive; the time is the best of several, in seconds of this process."""
    fill(ledger, "s1", 30_000)
    compact_until(ledger, "s1", lambda prior, exchange: "so far", max_rows=5_000)
    items = render_context(ledger, "s1")
    assert 495 <= len(items) <= 510
    fill(ledger, "s2", 511)
    few = steps(ledger, lambda: render_context(ledger, "s2"))
    assert steps(ledger, lambda: render_context(ledger, "s1")) <= 1.3 * few
    taken = []
    for _ in range(9):
        begin = time.process_time()
        render_context(ledger, "s1")
        taken.append(time.process_time() - begin)
    assert min(taken) < 0.015


def stored(ledger: Ledger, session: str) -> tuple[Exchange, ...]:
    with ledger.read() as tx:
        rows = tx.all("SELECT * FROM context_exchanges WHERE session_id = :s ORDER BY first_seq", s=session)
    return tuple(
        Exchange(*(row[name] for name in ("first_seq", "last_seq", "rows", "results", "waiting", "declared", "marker")))
        for row in rows
    )


# The pure parts, as a lesson shows them


def test_ranges_join_neighbours() -> None:
    assert ranges([]) == ()
    assert ranges([3, 4, 7, 9, 10]) == ((3, 4), (7, 7), (9, 10))


def test_one_reason_for_each_row_in_the_order_head_tail_kept_covered() -> None:
    edges = Edges.of(10, 4, 8)
    assert edges == Edges(4, 3)
    assert reason(4, 4, covered=True, edges=edges) is Reason.HEAD
    assert reason(5, 9, covered=True, edges=edges) is Reason.TAIL
    inner = Edges.of(10, 1, 1)
    assert reason(5, 9, covered=True, edges=inner) is Reason.COVERED
    assert reason(5, 9, covered=False, edges=inner) is Reason.KEPT
    assert Edges.of(0, 2, 2) == Edges(0, 1)
    assert Edges.of(3, 0, 0) == Edges(0, 4)


def test_the_next_chunk_reads_no_further_than_it_needs() -> None:
    def endless() -> Any:
        number = 1
        while True:
            yield Exchange(number, number + 1, rows=2, results=1, waiting=0, declared=True)
            number += 2

    assert [exchange.first_seq for exchange in next_chunk(endless(), Edges(2, 10**9), 5)] == [3, 5]
    given = endless()
    assert [exchange.first_seq for exchange in next_chunk(given, Edges(2, 10**9), 4)] == [3, 5]
    assert next(given).first_seq == 7, "a chunk that is full asks for no other exchange"


def test_the_next_chunk_never_reaches_past_an_exchange_that_does_not_fit() -> None:
    """A summary told out of order would read as if the later came first."""
    sizes = (2, 3, 1)
    exchanges = [Exchange(10 * n, 10 * n + size - 1, size, size - 1, 0, True) for n, size in enumerate(sizes, start=1)]
    assert [exchange.rows for exchange in next_chunk(exchanges, Edges(0, 99), 4)] == [2]
    assert [exchange.rows for exchange in next_chunk(exchanges[1:], Edges(0, 99), 4)] == [3, 1]


def test_the_digest_of_a_marker_is_the_sha256_of_what_it_follows_says_and_covers() -> None:
    """Anybody can compute it again with nothing but a standard library."""
    rows = [(3, "assistant", "é", '["A"]', None, "t0"), (5, "tool", "", "[]", "A", "t1")]
    lines = (
        '["previous","s1",2,"sum"]\n'
        '[3,"assistant","\\u00e9","[\\"A\\"]",null,"t0"]\n'
        '[5,"tool","","[]","A","t1"]\n'
    )  # fmt: skip
    assert marker_digest("previous", "s1", 2, "sum", rows) == hashlib.sha256(lines.encode()).hexdigest()


def test_a_claim_that_ends_while_an_append_waits_for_the_lock_is_refused(ledger: Ledger, clock: Any) -> None:
    """The clock is read under the write lock, not before it."""
    from sovereign_agent.coordination import claim_session, register_host

    register_host(ledger, "host-a", ttl_seconds=3600)
    claim = claim_session(ledger, "s", "host-a", ttl_seconds=10)
    connection = ledger._connection
    assert connection is not None
    connection.set_trace_callback(lambda statement: clock.advance(11) if statement == "BEGIN IMMEDIATE" else None)
    try:
        with pytest.raises(Refusal, match="stale or expired"):
            append_message(ledger, "s", "user", "late", claim=claim)
    finally:
        connection.set_trace_callback(None)
    with ledger.read() as tx:
        assert tx.all("SELECT * FROM transcript_messages") == []


def test_the_life_of_a_transcript_can_be_read_from_its_ledger(ledger: Ledger, T0: datetime) -> None:  # noqa: N803
    """Every event and row of one story, in full: whoever looks afterwards has nothing else."""

    def breaks(*_: object) -> str:
        raise OSError("down")

    write(ledger, "s u a:A,B t=A t=B a u")
    options = {"protect_head": 1, "protect_tail": 1}
    assert compact_one(ledger, "s1", lambda *_: " ", **options) is False
    with pytest.raises(OSError, match="down"):
        compact_one(ledger, "s1", breaks, **options)
    assert compact_one(ledger, "s1", lambda prior, rows: f"{prior}{len(rows)}", **options, max_rows=3) is True
    assert compact_one(ledger, "s1", lambda prior, rows: f"{prior}+{len(rows)}", **options) is True
    assert compact_one(ledger, "s1", lambda *_: "unused", **options) is False

    def table(sql: str) -> list[tuple[Any, ...]]:
        with ledger.read() as tx:
            return [tuple(row) for row in tx.all(sql)]

    now = to_text(T0)
    first, second = (digest for (digest,) in table("SELECT digest FROM context_compactions ORDER BY marker"))
    assert table("SELECT * FROM context_compactions ORDER BY marker") == [
        ("s1", 1, 5, "[[3,5]]", "3", "", first, now),
        ("s1", 2, 6, "[[6,6]]", "3+1", first, second, now),
    ]
    assert table("SELECT * FROM context_exchanges ORDER BY first_seq") == [
        ("s1", 3, 5, 3, 2, 0, 1, 1),
        ("s1", 6, 6, 1, 0, 0, 0, 2),
    ]
    assert table("SELECT * FROM context_open_calls") == []
    assert table(
        "SELECT seq, role, content, tool_calls, tool_call_id, exchange, created_at FROM transcript_messages"
    ) == [
        (1, "system", "content of s", "[]", None, None, now),
        (2, "user", "content of u", "[]", None, None, now),
        (3, "assistant", "content of a:A,B", '["A","B"]', None, 3, now),
        (4, "tool", "content of t=A", "[]", "A", 3, now),
        (5, "tool", "content of t=B", "[]", "B", 3, now),
        (6, "assistant", "content of a", "[]", None, 6, now),
        (7, "user", "content of u", "[]", None, None, now),
    ]
    told = [
        (kind, at, json.loads(detail))
        for kind, subject, at, detail in table("SELECT kind, subject, at, detail FROM events ORDER BY seq")
        if subject == "s1"
    ]
    chunk = {"marker": 1, "ranges": [[3, 6]], "through_seq": 6, "rows": 4}
    three = {"marker": 1, "ranges": [[3, 5]], "through_seq": 5, "rows": 3}
    one = {"marker": 2, "ranges": [[6, 6]], "through_seq": 6, "rows": 1}
    assert told == [
        ("context.appended", now, {"seq": 1, "role": "system", "exchange": None}),
        ("context.appended", now, {"seq": 2, "role": "user", "exchange": None}),
        ("context.appended", now, {"seq": 3, "role": "assistant", "exchange": 3}),
        ("context.appended", now, {"seq": 4, "role": "tool", "exchange": 3}),
        ("context.appended", now, {"seq": 5, "role": "tool", "exchange": 3}),
        ("context.appended", now, {"seq": 6, "role": "assistant", "exchange": 6}),
        ("context.appended", now, {"seq": 7, "role": "user", "exchange": None}),
        ("context.summary_refused", now, {"fault": "blank", **chunk}),
        ("context.summary_failed", now, {"error": "OSError", **chunk}),
        ("context.compacted", now, {"digest": first, **three}),
        ("context.compacted", now, {"digest": second, **one}),
    ]
    assert [
        (check.marker, check.ranges, check.through_seq, check.verdict, check.detail)
        for check in verify_markers(ledger, "s1")
    ] == [
        (1, ((3, 5),), 5, Verdict.INTACT, ""),
        (2, ((6, 6),), 6, Verdict.INTACT, ""),
    ]


def test_each_refusal_of_a_transcript_says_why_and_what_helps(ledger: Ledger) -> None:
    """Word for word: the author of an agent acts on this sentence."""
    write(ledger, "u a:A u")
    register_host(ledger, "h")
    claim = claim_session(ledger, "another", "h")
    for options, begin in (
        (
            {"role": "tool"},
            (
                "Context refused for 'row 4': without a tool_call_id it must directly follow an assistant row "
                "without calls, or that row's results; give the tool_call_id that it answers."
            ),
        ),
        (
            {"role": "tool", "tool_call_id": "B"},
            (
                "Context refused for B: no open call has this id: it was never declared, or "
                "it is answered; declare the call in the tool_calls of an assistant row, and answer it once."
            ),
        ),
        (
            {"role": "assistant", "tool_calls": ["A"]},
            (
                "Context refused for A: a call with this id is still unanswered, so a result could not tell the two "
                "apart; record a result for the earlier call (that it was given up, if so), or choose another id."
            ),
        ),
        (
            {"role": "user", "claim": claim},
            (
                "Session claim refused for s1: the claim is for session another; "
                "present the claim of the session that is written to."
            ),
        ),
    ):
        with pytest.raises(Refusal) as refusal:
            append_message(ledger, "s1", content="x", **options)  # type: ignore[arg-type]
        assert str(refusal.value) == begin
    for options, error, text in (
        ({"role": 3}, TypeError, "role must be text, not int: 3"),
        ({"role": "x"}, ValueError, "role must be one of system, user, assistant, tool: x"),
        ({"role": "user", "content": 3}, TypeError, "content must be text, not int"),
        (
            {"role": "user", "content": "a\ud800"},
            ValueError,
            "content has a lone surrogate at character 1: not Unicode text",
        ),
        (
            {"role": "user", "content": "x" * (MAX_CONTENT_BYTES + 1)},
            ValueError,
            f"content must be at most {MAX_CONTENT_BYTES} bytes of UTF-8: {MAX_CONTENT_BYTES + 1}",
        ),
        (
            {"role": "user", "tool_calls": ["C"]},
            ValueError,
            "tool_calls belong to an assistant row, not to one of role user",
        ),
        (
            {"role": "user", "tool_call_id": "C"},
            ValueError,
            "tool_call_id belongs to a tool row, not to one of role user",
        ),
        ({"role": "user", "claim": 3}, TypeError, "claim must be a SessionClaim, not int: 3"),
        ({"role": "assistant", "tool_calls": 3}, TypeError, "tool_calls must be a sequence of calls, not int"),
        ({"role": "assistant", "tool_calls": [3]}, TypeError, "tool_calls must hold ids or JSON objects, not int: 3"),
        (
            {"role": "assistant", "tool_calls": [{"b": 1, "a": 2}]},
            ValueError,
            "tool_calls must hold JSON objects with an id: keys \"['a', 'b']\"",
        ),
        (
            {"role": "assistant", "tool_calls": ["C", "C"]},
            ValueError,
            "tool_calls must have different ids: \"('C', 'C')\"",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "C", "x": (1,)}]},
            ValueError,
            "tool_calls must be JSON: keys must be text, and arrays must be lists",
        ),
    ):
        with pytest.raises(error) as caught:
            append_message(ledger, "s1", **{"content": "x", **options})  # type: ignore[arg-type]
        assert str(caught.value) == text
    for options, error, text in (
        ({"summarizer": 3}, TypeError, "summarizer must be callable, not int: 3"),
        ({"max_rows": 0}, ValueError, "max_rows must be at least 1: 0"),
        ({"protect_head": -1}, ValueError, "protect_head must be at least 0: -1"),
        ({"protect_tail": "1"}, TypeError, "protect_tail must be a whole number, not str: 1"),
    ):
        with pytest.raises(error) as caught:
            compact_one(ledger, "s1", **{"summarizer": Asked(), **options})  # type: ignore[arg-type]
        assert str(caught.value) == text
    with pytest.raises(ValueError, match="max_calls must be at least 1: 0"):
        compact_until(ledger, "s1", Asked(), max_calls=0)
