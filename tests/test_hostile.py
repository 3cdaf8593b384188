"""Hostile arguments, rows, ids, clocks and ledgers: what comes out is a result, or an error that the caller expects.

A right or a state that is missing is a Refusal, also a row that another client wrote and nobody can read; a malformed
argument is a ValueError or TypeError that names it.
"""

from __future__ import annotations

import importlib
import inspect
import math
import os
import pkgutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, chdir, closing, suppress
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sovereign_agent
from sovereign_agent import (
    archive,
    automation,
    clock,
    context,
    coordination,
    delivery,
    fence,
    heartbeat,
    ids,
    isolation,
    mechanisms,
    memory,
    pulse,
    schedule,
    text,
    tools,
    trace,
)
from sovereign_agent import ledger as ledger_module
from sovereign_agent.errors import Category, Refusal, shorten, shown
from sovereign_agent.ids import SeededIds
from sovereign_agent.invariants import Invariant
from sovereign_agent.isolation import IsolationPolicy
from sovereign_agent.ledger import Ledger, record_refusal
from sovereign_agent.sandbox import Sandbox, prove
from sovereign_agent.simulated_checker import Checker
from sovereign_agent.tools import Tool, ToolCatalog

T0 = datetime(2026, 1, 5, 8, tzinfo=UTC)
LATER = T0 + timedelta(seconds=500)


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text for you")


def nested(levels: int, kind: type = list) -> Any:
    value: Any = kind()
    for _ in range(levels):
        value = {"a": value} if kind is dict else [value]
    return value


LOOP: list[Any] = []
LOOP.append(LOOP)
HOSTILE: list[Any] = [
    *(None, True, 0, -1, 2**63, 2**70, 10**5000, 0.5, math.nan, math.inf, Decimal("NaN"), Fraction(10**400), 1j),
    *("", " ", "\0", "a\0b", "\ud800", "x\ud800", "a" * 300, "a" * 100_000, "é" * 70_000, "\u202e\u200b", "a\nb", "💥"),
    *(b"", b"x", bytearray(b"y"), [], (), {}, {1: 2}, {"a": math.nan}, {"a": (1,)}, {"a": "\ud800"}, {"x"}, [None]),
    *([10**400], nested(500), nested(5000), nested(120, dict), nested(5000, dict), LOOP, {"a": LOOP}, {"a": 10**5000}),
    *(object(), Unprintable(), [Unprintable()], int, datetime(2026, 1, 1), datetime.min.replace(tzinfo=UTC)),
    *(datetime.max.replace(tzinfo=timezone(-timedelta(hours=14))), T0.date(), timedelta.max, range(3), Ellipsis),
]


def fires(state: dict[str, object]) -> automation.WatchDecision:
    return automation.WatchDecision(fire=True, message="m", state={"n": 1})


def done(*_: object) -> str:
    return "done"


def fail(*_: object) -> None:
    raise OSError("down")


def hurry(ledger: Ledger) -> Ledger:
    """Leave out the flushing to disk, which no test here is about."""
    ledger._live().execute("PRAGMA synchronous = OFF")
    return ledger


def fill(root: Path) -> Ledger:
    """Open a ledger with at least one row in every table."""
    (root / ".sovereign").mkdir(parents=True, exist_ok=True)
    (root / ".sovereign" / "ledger.db").write_bytes(filled())
    return hurry(Ledger.open(root, clock=lambda: T0, ids=SeededIds(2)))


@cache
def filled() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        with hurry(Ledger.open(folder, clock=lambda: T0, ids=SeededIds(1))) as ledger:
            fill_with_rows(ledger)
        return ledger.path.read_bytes()


def fill_with_rows(ledger: Ledger) -> None:
    for name in ("a", "b"):
        automation.create_automation(ledger, name, interval_seconds=60, payload="p", first_run_at=T0)
    automation.run_due(ledger, "b", fires, fail)
    for name in ("s0", "s1"):
        pulse.record_signal(ledger, name, "k", {})
    pulse.run_pulse(ledger, lambda signal: signal.signal_id == "s1" or bool(1 / 0), fail)
    for host in ("g", "h"):
        coordination.register_host(ledger, host)
    coordination.claim_session(ledger, "s", "h")
    claim = coordination.claim_session(ledger, "s2", "h")
    coordination.finish_session(ledger, claim, "r")
    with suppress(Refusal):
        coordination.finish_session(ledger, claim, "another")
    for name in ("d", "d3"):
        delivery.enqueue(ledger, name, {"x": 1})
    delivery.begin_attempt(ledger, "d")
    delivery.record_delivery_failure(ledger, "dd", "e", permanent=True)
    memory.remember(ledger, "m", "hello world", embedding=[1.0, 2.0], embedding_model="m")
    heartbeat.beat(ledger, "source")
    for role in ("system", "user", "assistant", "tool", "user", "assistant", "tool", "user", "user"):
        context.append_message(ledger, "c", role, "text")
    context.compact_one(ledger, "c", done)
    context.append_message(ledger, "c", "assistant", "x", tool_calls=["c1"])
    heartbeat.beat(ledger, "older", now=T0 - timedelta(days=2))
    archive.archive_before(ledger, T0 - timedelta(days=1))


def enter(block: AbstractContextManager[object]) -> None:
    """Run a block that holds nothing."""
    with block:
        pass


def inside(ledger: Ledger, method: str, **given: Any) -> None:
    """Call a method of a transaction in a write of its own."""
    with ledger.write() as tx:
        getattr(tx, method)(**given)


TOOL = Tool("t", "desc", ("k",))
CATALOG = ToolCatalog([TOOL])
POLICY = IsolationPolicy(allowed_tools={"t"})
CLAIM = coordination.SessionClaim("s", "h", 1, T0)

CASES: dict[str, tuple[Callable[..., object], dict[str, Any]]] = {
    "create_automation": (
        automation.create_automation,
        {
            "automation_id": "z",
            "interval_seconds": 60,
            "payload": "p",
            "first_run_at": T0,
            "max_failures": 3,
            "catch_up": "once",
            "grace_seconds": 1,
            "lease_seconds": 5,
            "retry_seconds": 3,
            "now": T0,
        },
    ),
    "update": (
        automation.update,
        {
            "automation_id": "a",
            "interval_seconds": 60,
            "payload": "p",
            "max_failures": 3,
            "next_run_at": T0,
            "condition_state": {"a": 1},
            "now": T0,
        },
    ),
    "enable": (automation.enable, {"automation_id": "a", "now": T0}),
    "disable": (automation.disable, {"automation_id": "a", "reason": "r", "now": T0}),
    "list_runs": (automation.list_runs, {"automation_id": "a"}),
    "history": (automation.history, {"automation_id": "a"}),
    "run_due": (automation.run_due, {"automation_id": "a", "condition": fires, "payload": done, "now": T0}),
    "run_all_due": (automation.run_all_due, {"handlers": {"p": automation.Handler(fires, done)}, "now": T0}),
    "renew_run": (automation.renew_run, {"run_id": "a", "now": T0}),
    "beat": (heartbeat.beat, {"source": "a", "now": T0}),
    "liveness": (heartbeat.liveness, {"source": "a", "stale_after_seconds": 5, "now": T0}),
    "record_signal": (pulse.record_signal, {"signal_id": "s9", "kind": "k", "payload": {"a": 1}, "now": T0}),
    "run_pulse": (
        pulse.run_pulse,
        {"gate": lambda _: True, "payload": done, "max_failures": 3, "retry_seconds": 1, "lease_seconds": 2, "now": T0},
    ),
    "append_message": (
        context.append_message,
        {"session_id": "s", "role": "assistant", "content": "x", "tool_calls": ["c9"], "claim": CLAIM, "now": T0},
    ),
    "append_message of a result": (
        context.append_message,
        {"session_id": "c", "role": "tool", "content": "x", "tool_call_id": "c1", "now": T0},
    ),
    "compact_one": (
        context.compact_one,
        {"session_id": "c", "summarizer": done, "protect_head": 1, "protect_tail": 1, "max_rows": 3, "now": T0},
    ),
    "compact_until": (
        context.compact_until,
        {"session_id": "c", "summarizer": done, "protect_head": 1, "protect_tail": 1, "max_calls": 3, "now": T0},
    ),
    "render_context": (context.render_context, {"session_id": "c", "protect_head": 1, "protect_tail": 1}),
    "coverage": (context.coverage, {"session_id": "c", "protect_head": 1, "protect_tail": 1}),
    "verify_markers": (context.verify_markers, {"session_id": "c"}),
    "register_host": (coordination.register_host, {"host_id": "h", "now": T0, "ttl_seconds": 5}),
    "renew_host": (coordination.renew_host, {"host_id": "h", "boot": 1, "now": T0, "ttl_seconds": 5}),
    "claim_session": (
        coordination.claim_session,
        {"session_id": "s", "host_id": "h", "now": T0, "ttl_seconds": 5},
    ),
    "renew_session": (coordination.renew_session, {"claim": CLAIM, "now": T0, "ttl_seconds": 5}),
    "release_session": (coordination.release_session, {"claim": CLAIM, "now": T0}),
    "finish_session": (coordination.finish_session, {"claim": CLAIM, "result": "r", "now": T0}),
    "enqueue": (delivery.enqueue, {"delivery_id": "n", "payload": {"a": 1}, "max_attempts": 3, "now": T0}),
    "due": (delivery.due, {"now": T0}),
    "begin_attempt": (delivery.begin_attempt, {"delivery_id": "d3", "now": T0, "lease_seconds": 3}),
    "record_delivery_failure": (
        delivery.record_delivery_failure,
        {"delivery_id": "d", "error": "e", "process_after": T0, "attempt_id": "x", "permanent": False, "now": T0},
    ),
    "record_delivery_success": (
        delivery.record_delivery_success,
        {"delivery_id": "d", "attempt_id": "x", "now": T0},
    ),
    "remember": (
        memory.remember,
        {
            "memory_id": "n",
            "content": "c",
            "visibility": "public",
            "importance": 0.5,
            "embedding": [1.0],
            "embedding_model": "m",
            "created_at": T0,
            "now": T0,
        },
    ),
    "supersede": (
        memory.supersede,
        {
            "old_id": "m",
            "new_id": "n",
            "content": "c",
            "visibility": "public",
            "importance": 0.5,
            "embedding": [1.0],
            "embedding_model": "m",
            "created_at": T0,
            "now": T0,
        },
    ),
    "forget": (memory.forget, {"memory_id": "m", "now": T0}),
    "recall": (
        memory.recall,
        {
            "query": "hello",
            "actor_id": "a",
            "query_embedding": [1.0, 2.0],
            "embedding_model": "m",
            "limit": 3,
            "now": T0,
            "weights": memory.Weights(),
        },
    ),
    "status": (trace.status, {"limit": 5}),
    "events": (trace.events, {"subject": "a", "after_seq": 0, "limit": 5}),
    "archive_before": (archive.archive_before, {"before": T0, "to": "archive.db", "now": LATER}),
    "fenced": (
        lambda ledger, claim, now: enter(coordination.fenced(ledger, claim, now=now)),
        {"claim": CLAIM, "now": T0},
    ),
    "last_beat": (heartbeat.last_beat, {"source": "a"}),
    "list_automations": (automation.list_automations, {}),
    "list_archives": (archive.list_archives, {}),
    "list_signals": (pulse.list_signals, {}),
    "dead_letters": (delivery.dead_letters, {}),
    "record_refusal": (record_refusal, {"refusal": Refusal("tools", "x", "y", "z"), "now": T0}),
    "Ledger.now": (Ledger.now, {"now": T0}),
    "Transaction.event": (
        lambda ledger, **given: inside(ledger, "event", **given),
        {"kind": "k", "subject": "s", "at": T0, "detail": 1},
    ),
    "Transaction.run": (
        lambda ledger, **given: inside(ledger, "run", **given),
        {"sql": "UPDATE hosts SET boot = boot WHERE host_id = :parameter", "parameter": "h"},
    ),
    "Transaction.one": (
        lambda ledger, **given: inside(ledger, "one", **given),
        {"sql": "SELECT :parameter", "parameter": 1},
    ),
    "Transaction.all": (
        lambda ledger, **given: inside(ledger, "all", **given),
        {"sql": "SELECT :parameter", "parameter": 1},
    ),
}
UNNAMED = ("Transaction.event", "Transaction.run", "Transaction.one", "Transaction.all")
"""They take the caller's own SQL and details, whose parts have no names of ours."""
FREE: dict[str, tuple[Callable[..., object], dict[str, Any]]] = {
    "authorize": (CATALOG.authorize, {"tool": "t", "policy": IsolationPolicy(allowed_tools={"t"}), "ledger": None}),
    "discover": (CATALOG.discover, {"query": "t", "limit": 3}),
    "IsolationPolicy": (
        IsolationPolicy,
        {
            "filesystem_roots": ["/"],
            "network_hosts": ["a.example"],
            "credential_names": ["A"],
            "allowed_tools": ["a"],
            "denied_tools": ["b"],
        },
    ),
    "authorize_path": (POLICY.authorize_path, {"path": "/"}),
    "open_path": (lambda **given: POLICY.open_path(**given).close(), {"path": "/none", "mode": "rb"}),
    "authorize_network": (POLICY.authorize_network, {"host": "a.example"}),
    "authorize_credential": (POLICY.authorize_credential, {"name": "A"}),
    "authorize_tool": (POLICY.authorize_tool, {"name": "t"}),
    "Sandbox.run": (
        Sandbox("/bin/false", "no sandbox at all").run,
        {"argv": ["true"], "policy": POLICY, "timeout_seconds": 1, "cwd": None, "input": b"", "read_only": ()},
    ),
    "Tool": (Tool, {"name": "n", "description": "d", "keywords": ("k",)}),
    "ToolCatalog": (ToolCatalog, {"tools": [TOOL]}),
    "SessionClaim": (
        coordination.SessionClaim,
        {"session_id": "s", "host_id": "h", "incarnation": 1, "expires_at": T0},
    ),
    "Handler": (automation.Handler, {"condition": fires, "payload": done}),
    "Weights": (memory.Weights, dict.fromkeys(("lexical", "recency", "mmr_lambda"), 0.5)),
    "verify_archive": (archive.verify_archive, {"path": "none"}),
    "explain": (POLICY.explain, {"process_probe": None, "now": T0}),
    "prove": (lambda **given: prove(Sandbox("/bin/false", "no sandbox at all"), **given), {"now": T0}),
    "sequence_diagram": (trace.sequence_diagram, {"trace": (), "ledger_name": "ledger"}),
    "to_text": (clock.to_text, {"value": T0}),
    "Refusal": (Refusal, {"category": "tools", "subject": "s", "why": "w", "remedy": "r"}),
}
GRID = schedule.Grid(T0, timedelta(minutes=1))
SECOND = timedelta(seconds=1)
PLAIN: dict[str, tuple[Callable[..., object], dict[str, Any]]] = {
    "Edges.of": (context.Edges.of, {"length": 5, "protect_head": 1, "protect_tail": 1}),
    "backoff": (delivery.backoff, {"number": 1, "jitter": 0.5}),
    "before": (schedule.before, {"grid": GRID, "start": T0, "end": T0}),
    "canonical_name": (text.canonical_name, {"name": "x"}),
    "checked_depth": (ledger_module.checked_depth, {"name": "n", "value": []}),
    "cosine": (memory.cosine, {"a": (1.0,), "b": (1.0,)}),
    "fold": (text.fold, {"text": "x"}),
    "forms": (tools.forms, {"word": "x"}),
    "from_bytes": (memory.from_bytes, {"stored": b"abcd"}),
    "from_text": (clock.from_text, {"text": "x"}),
    "instant": (memory.instant, {"text": "x"}),
    "is_plain_name": (text.is_plain_name, {"name": "x"}),
    "jaccard": (memory.jaccard, {"a": frozenset("a"), "b": frozenset("b")}),
    "judge": (heartbeat.judge, {"last_at": T0, "now": T0, "stale_after": SECOND}),
    "later": (clock.later, {"value": T0, "duration": SECOND}),
    "lease_is_over": (schedule.lease_is_over, {"expires_at": T0, "now": T0, "own": True, "skew": SECOND}),
    "marker_digest": (
        context.marker_digest,
        {"previous": "", "session_id": "s", "marker": 1, "summary": "x", "rows": ()},
    ),
    "mixes_alphabets": (text.mixes_alphabets, {"name": "x"}),
    "next_slot": (schedule.next_slot, {"grid": GRID, "after": T0}),
    "parse_host": (isolation.parse_host, {"text": "a", "wildcard": False}),
    "plan": (
        schedule.plan,
        {"grid": GRID, "pending": T0, "now": T0, "catch_up": schedule.CatchUp.ONCE, "grace": SECOND},
    ),
    "pulled_back": (
        schedule.pulled_back,
        {"grid": GRID, "due": T0, "now": T0, "horizon": SECOND, "floor": T0, "skew": SECOND},
    ),
    "resolve": (isolation.resolve, {"path": "/x"}),
    "SeededIds.new": (SeededIds(1).new, {"kind": "run"}),
    "skeleton": (text.skeleton, {"name": "x"}),
    "stored_instant": (ledger_module.stored_instant, {"text": "x"}),
    "summary_fault": (context.summary_fault, {"summary": "x"}),
    "SystemIds.new": (ids.SystemIds().new, {"kind": "run"}),
    "through": (schedule.through, {"grid": GRID, "start": T0, "end": T0}),
    "truncated": (coordination.truncated, {"text": "x", "digest": "d", "limit_bytes": 1000}),
    "verdict": (delivery.verdict, {"attempts": 1, "max_attempts": 3, "permanent": False}),
    "words": (text.words, {"text": "x"}),
}
"""Small functions without a check of their own: each gets hostile values of the types that it names."""
MORE: dict[type, list[Any]] = {
    str: [
        *("9999-12-31T23:59:59-14:00", "2026-01-05T08:00:00Z", "[::1]:99999", "*.", "a." * 200, "../" * 500, "1e400"),
        *("\u0130" * 300, "\ufdfa" * 1000, "\u1100" * 50, "xn--" + "a" * 70, "\U0001f3f3\ufe0f\u200d\U0001f308"),
    ],
    int: [1, 2, 100, 10**18, -(10**30), 2**31],
    float: [1e308, -1e308, 5e-324, -0.0, 1.0],
    bytes: [b"\0" * 3, b"\xff" * 8, b"\0\0\x80\x7f", b"\0\0\xc0\x7f" * 2],
    datetime: [T0, datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)],
    timedelta: [timedelta(0), timedelta.max, timedelta.min, timedelta(microseconds=1), -SECOND],
    frozenset: [frozenset(), frozenset({"a"}), frozenset(map(str, range(1000)))],
    tuple: [(), (1.0,), (math.nan,), (math.inf, -math.inf), (1e308, 1e308), (-0.0,)],
    bool: [True, False],
}
"""More values of a type; instants in UTC, as every function hands them on."""
CHECKS = (
    *(clock.as_utc, clock.seconds, ledger_module.checked_id, memory.unit, fence.checked_claim),
    *(schedule.checked_callable, schedule.whole_number, schedule.json_object),
)
"""What checks one value for the others, by the name of the argument."""
PARTS = {"keywords": "keyword", "to": "file"}  # a part of the argument is what the message names


def attempt(call: Callable[..., object], given: dict[str, Any], name: str, *, named: bool = True) -> str:
    """Let a call answer, and say how; whatever it raises must be allowed, name the argument and stay short."""
    try:
        call(**given)
    except (Refusal, ValueError, TypeError) as error:
        message = str(error)
        if named:
            assert len(message) < 1000, (name, len(message))
        if isinstance(error, Refusal):
            return "refusals"
        if named:
            assert PARTS.get(name, name) in message, message
        return "type_errors" if isinstance(error, TypeError) else "value_errors"
    return "results"


def fuzz_with_ledger(case: str, root: Path) -> Counter[str]:
    """Count how a function answers one hostile argument at a time; after each, no transaction may be open."""
    call, good = CASES[case]
    answers: Counter[str] = Counter()
    with chdir(root), fill(root) as ledger:  # the archives go to the current directory
        for name in good:
            for value in HOSTILE:
                given = {**good, name: value}
                answers[attempt(partial(call, ledger), given, name, named=case not in UNNAMED)] += 1
                assert not ledger.in_transaction
        assert trace.status(ledger)
    return answers


def fuzz_without_ledger(case: str) -> Counter[str]:
    """Count likewise for what needs no ledger."""
    call, good = FREE[case]
    names = [name for name in good if case != "Refusal" or name not in ("why", "remedy")]
    return Counter(attempt(call, {**good, name: value}, name) for name in names for value in HOSTILE)


def fuzz_plain(case: str) -> Counter[str]:
    """Count likewise for a small function, which gets values of its own types only."""
    call, good = PLAIN[case]
    answers: Counter[str] = Counter()
    for name, usual in good.items():
        kind = type(usual)
        hostile = [value for value in HOSTILE if type(value) is kind and kind is not datetime]
        for value in [*hostile, *MORE.get(kind, [])]:
            try:
                answers[attempt(call, {**good, name: value}, name, named=False)] += 1
            except OSError:
                assert case == "resolve", "whose callers turn it into a Refusal"
                answers["refusals"] += 1
    return answers


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_argument_is_answered_and_named(case: str, tmp_path: Path) -> None:
    assert fuzz_with_ledger(case, tmp_path).total() == len(CASES[case][1]) * len(HOSTILE)


@pytest.mark.parametrize("case", FREE)
def test_a_hostile_argument_of_what_needs_no_ledger_is_answered_and_named(case: str) -> None:
    assert fuzz_without_ledger(case).total() >= len(HOSTILE)


@pytest.mark.parametrize("case", PLAIN)
def test_a_hostile_value_of_the_right_type_is_answered(case: str) -> None:
    assert fuzz_plain(case).total() >= len(PLAIN[case][1])


@pytest.mark.parametrize("check", CHECKS)
def test_what_checks_a_value_names_its_argument(check: Callable[..., object]) -> None:
    name = "claim" if check is fence.checked_claim else "value"
    for value in HOSTILE:
        attempt(lambda given: check(*([given] if name == "claim" else [name, given])), {"given": value}, name)


@pytest.mark.parametrize("name", ["root", "clock", "actor", "busy_timeout_seconds", "max_clock_skew_seconds"])
def test_a_hostile_argument_of_open_is_answered_and_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good = {"root": "x", "clock": lambda: T0, "actor": "a", "busy_timeout_seconds": 1, "max_clock_skew_seconds": 5}
    for value in HOSTILE:
        attempt(lambda **given: Ledger.open(**given).close(), {**good, name: value}, name)


def test_what_is_no_name_of_a_mechanism_is_named(tmp_path: Path) -> None:
    for value in HOSTILE[1:]:
        attempt(lambda only: mechanisms.run(tmp_path, only=only), {"only": value}, "only")


def test_a_directory_that_is_gone_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(Refusal, match="Ledger access refused"):
        Ledger.open("below")


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: type(value).__name__)
def test_any_value_can_be_shown_in_a_message(value: object) -> None:
    for message in (shorten(value), shorten(value, secret=True), shown(value)):
        assert isinstance(message, str)
        assert len(message) < 500


# Everything public, with anything

INNER = {
    "archive": "digest_of",
    "automation": "enter Run.is_live",
    "clock": "system_clock",
    "context": "advance find_exchanges reason next_chunk view ranges call_ids PlacedRow.reason",
    "errors": "shown shorten",
    "fence": "lapse read_holding require_live require_held stale mark mark_host marking apart",
    "ids": "Ids.new Ids.jitter SystemIds.jitter SeededIds.jitter",
    "isolation": "kernel_name IsolationPolicy.environment IsolationPolicy.digest IsolationPolicy.open_path "
    "PinnedRoot.is_same PinnedRoot.is_in_place Host.covers",
    "ledger": "fresh_id recorded readable payload_differs Transaction.run Transaction.one Transaction.all "
    "Transaction.event Ledger.open Ledger.close Ledger.write Ledger.read Ledger.refuse_inside_transaction",
    "memory": "comparable score similarity rank to_bytes from_row",
    "memory_columns": "asked hits",
    "memory_index": "margin hits",
    "memory_select": "Block.refresh Block.take select",
    "sandbox": "Sandbox.detect prove",
    "schedule": "failure_text",
    "schema": "append_only",
    "tool_index": "Having.at Having.positions Having.row having either highest score matches",
    "tools": "Tool.digest strengths rarity",
}
"""Public functions without arguments; that get only objects which the package itself made; or that a test above calls
in other words (`Ledger.open`, `prove`, the methods of a transaction)."""
WHOLE = {
    "cli": "its arguments are text that click has parsed: tests/test_cli.py",
    "invariants": "names and counts",
    "mechanisms": "the functions behind one command, which this file calls with every name",
    "simulated_checker": "the simulation's own parts, with arguments of the simulation",
    "simulated_witness": "the same",
    "simulated_work": "the same",
    "simulated_world": "the same",
    "simulation": "the same: tests/test_simulation.py",
}
"""Modules that are left out as a whole, and why."""


def public_functions() -> Iterator[tuple[str, str, object]]:
    """Yield module, name and object of every public function and method that the package defines."""
    for found in pkgutil.iter_modules(sovereign_agent.__path__):
        module = importlib.import_module(f"sovereign_agent.{found.name}")
        for name, value in vars(module).items():
            if name.startswith("_") or getattr(value, "__module__", "") != module.__name__:
                continue
            if inspect.isfunction(value):
                yield found.name, name, value
            elif inspect.isclass(value):
                for part, method in vars(value).items():
                    if not part.startswith("_") and inspect.isroutine(getattr(value, part)):
                        yield found.name, f"{name}.{part}", method


def test_every_public_function_gets_hostile_arguments_or_is_named_as_one_that_does_not() -> None:
    called = [getattr(call, "__func__", call) for call, _ in (*CASES.values(), *FREE.values(), *PLAIN.values())]
    called += [*CHECKS, coordination.fenced]
    unclassified = []
    named = {f"{module}.{name}" for module, names in INNER.items() for name in names.split()}
    for module, name, value in public_functions():
        if module.startswith("_") or module in WHOLE:
            continue
        if f"{module}.{name}" in named:
            named.discard(f"{module}.{name}")
        elif getattr(value, "__func__", value) not in called:
            unclassified.append(f"{module}.{name}")
    assert unclassified == []
    assert named == set(), "gone, or called as well"


anything = st.one_of(
    st.sampled_from(HOSTILE),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    ),
    st.datetimes(timezones=st.none() | st.just(UTC)),
    st.timedeltas(),
    st.decimals(),
)


class Tables(Checker):
    """Checks all that the ledger alone can tell: nobody here bears witness to what the callables did."""

    def require(self, invariant: Invariant, holds: object, detail: str) -> None:
        if invariant not in (Invariant.QUIET, Invariant.ONE_EFFECT, Invariant.STATE):
            super().require(invariant, holds, detail)


@settings(max_examples=20)
@given(st.data())
def test_a_ledger_that_was_fed_anything_keeps_every_invariant(data: st.DataObject) -> None:
    """Several calls in a row, each with several hostile arguments at once, and between them calls that do something."""
    with tempfile.TemporaryDirectory() as folder, fill(Path(folder)) as ledger, chdir(folder):
        checker = Tables(Path(folder))
        checker.after_step()
        for _ in range(12):
            call, good = CASES[data.draw(st.sampled_from(sorted(CASES)), label="function")]
            changed = data.draw(
                st.dictionaries(st.sampled_from(sorted(good)), anything, max_size=3) if good else st.just({})
            )
            with suppress(Refusal, ValueError, TypeError):
                call(ledger, **{**good, **changed})
            assert not ledger.in_transaction
            checker.after_step()  # it compares a row with what it was before the call
        checker.check_all()
        checker.close()
        assert checker.violation is None, checker.violation
        assert sum(checker.checked.values()) > 20


# Rows that another client wrote

Calls = tuple[Callable[[Ledger], object], ...]
READERS: dict[str, Calls] = {
    "automation": (
        automation.list_automations,
        automation.list_runs,
        lambda ledger: automation.history(ledger, "b"),
        lambda ledger: automation.run_due(ledger, "a", fires, done, now=LATER),
        lambda ledger: automation.run_all_due(ledger, {"p": automation.Handler(fires, done)}, now=LATER),
        lambda ledger: automation.update(ledger, "b", interval_seconds=30),
        lambda ledger: automation.disable(ledger, "b"),
        lambda ledger: automation.enable(ledger, "b", now=LATER),
    ),
    "signals": (pulse.list_signals, lambda ledger: pulse.run_pulse(ledger, lambda _: True, done, now=LATER)),
    "heartbeats": (
        lambda ledger: heartbeat.liveness(ledger, "source"),
        lambda ledger: heartbeat.beat(ledger, "source", now=LATER),
    ),
    "transcript": (
        lambda ledger: context.render_context(ledger, "c"),
        lambda ledger: context.coverage(ledger, "c"),
        lambda ledger: context.verify_markers(ledger, "c"),
        lambda ledger: context.append_message(ledger, "c", "tool", "x", tool_call_id="c1"),
        lambda ledger: context.compact_until(ledger, "c", done, protect_tail=0),
    ),
    "session": (
        lambda ledger: coordination.renew_host(ledger, "h"),
        lambda ledger: coordination.renew_session(ledger, CLAIM),
        lambda ledger: coordination.claim_session(ledger, "s", "g", now=LATER),
        lambda ledger: coordination.claim_session(ledger, "s", "h"),
        lambda ledger: coordination.finish_session(ledger, CLAIM, "x"),
    ),
    "deliver": (
        delivery.dead_letters,
        lambda ledger: delivery.due(ledger, now=LATER),
        lambda ledger: delivery.begin_attempt(ledger, "d", now=LATER),
        lambda ledger: delivery.record_delivery_failure(ledger, "d3", "e", now=LATER),
        lambda ledger: delivery.record_delivery_success(ledger, "d", now=LATER),
        lambda ledger: delivery.enqueue(ledger, "d3", {"x": 1}),
    ),
    "memories": (
        lambda ledger: memory.recall(ledger, "hello", actor_id="x", query_embedding=[1.0, 2.0]),
        lambda ledger: memory.supersede(ledger, "m", "m2", "other"),
        lambda ledger: memory.forget(ledger, "m"),
    ),
    "events": (lambda ledger: trace.sequence_diagram(trace.events(ledger)),),
    "archives": (archive.list_archives,),
}
"""What reads a table, by the beginning of the table's name."""
READERS |= dict.fromkeys(("context",), READERS["transcript"])
READERS |= dict.fromkeys(("hosts", "coordination", "refused"), READERS["session"])

STORED: dict[str, tuple[object, ...]] = {
    "TEXT": ("x", "9999-12-31T23:59:59-14:00", "[[null,1]]"),
    "REAL": (2.0**62, None),
    "INTEGER": (2**62,),
    "BLOB": (b"x",),
}


def columns(database: Path) -> list[tuple[str, str, str]]:
    with closing(sqlite3.connect(database)) as client:
        tables = client.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        return [
            (table, column, kind)
            for (table,) in tables.fetchall()
            for _, column, kind, *_ in client.execute(f"PRAGMA table_info({table})")
        ]


def overwrite(database: Path, table: str, column: str, value: object) -> bool:
    """Do what a client can that drops the triggers; tell whether SQLite took it."""
    with closing(sqlite3.connect(database, isolation_level=None)) as client, suppress(sqlite3.Error):
        client.execute("PRAGMA synchronous = OFF")
        found = client.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ?", (table,))
        for (trigger,) in found.fetchall():
            client.execute(f"DROP TRIGGER {trigger}")
        return client.execute(f"UPDATE {table} SET {column} = ?", (value,)).rowcount > 0
    return False


def test_a_row_that_another_client_wrote_gives_a_result_or_a_refusal(tmp_path: Path) -> None:
    """Every column of every table in turn, with every value that SQLite takes there."""
    fill(tmp_path).close()
    database = tmp_path / ".sovereign" / "ledger.db"
    good = database.read_bytes()
    tried = 0
    for table, column, kind in columns(database):
        for value in STORED[kind]:
            database.write_bytes(good)
            if overwrite(database, table, column, value):
                tried += 1
                answer_all(tmp_path, table, f"{table}.{column} = {value!r}")
    assert tried > 100


def answer_all(root: Path, table: str, what: str) -> None:
    try:
        ledger = hurry(Ledger.open(root, clock=lambda: T0, ids=SeededIds(5)))
    except Refusal:
        return
    readers = next((calls for begin, calls in READERS.items() if table.startswith(begin)), ())
    with ledger:
        for number, read in enumerate((*readers, trace.status)):
            try:
                read(ledger)
            except Refusal:
                pass
            except Exception as error:
                raise AssertionError(f"call {number} with {what}") from error
            assert not ledger.in_transaction


def test_a_lease_that_nobody_can_read_starves_no_signal(tmp_path: Path) -> None:
    with fill(tmp_path) as ledger:
        pulse.record_signal(ledger, "s2", "k", {})
    with closing(sqlite3.connect(ledger.path)) as client:
        client.execute("UPDATE signals SET status = 'RUNNING', lease_expires_at = 'soon' WHERE signal_id = 's0'")
        client.commit()
    with Ledger.open(tmp_path, clock=lambda: T0) as ledger:
        found = pulse.run_pulse(ledger, lambda _: True, done, now=LATER)
    assert {result.signal_id: str(result.status) for result in found}["s2"] == "SUCCEEDED"


# Values at the edge of what is accepted


def test_what_was_stored_is_read_back_from_a_deep_stack(tmp_path: Path) -> None:
    """A value that could be written near the limit of the stack must not become unreadable one call further down."""

    def deeper(levels: int) -> None:
        if levels:
            deeper(levels - 1)
            return
        automation.list_automations(ledger)
        delivery.due(ledger)
        context.render_context(ledger, "c")

    with fill(tmp_path) as ledger:
        for levels in range(90, 1000, 5):
            with suppress(ValueError):
                automation.update(ledger, "a", condition_state={"a": nested(levels)})
            with suppress(ValueError):
                delivery.enqueue(ledger, f"deep-{levels}", nested(levels))
            with suppress(ValueError):
                context.append_message(
                    ledger, f"deep-{levels}", "assistant", "", tool_calls=[{"id": "x", "a": nested(levels)}]
                )
        deeper(600)


class Repeating(SeededIds):
    """A source that gives one id for ever."""

    def new(self, kind: str) -> str:
        return f"{kind}-same"


def test_ids_that_a_reopened_source_repeats_are_passed_over(tmp_path: Path) -> None:
    for round_ in range(3):
        with Ledger.open(tmp_path, clock=lambda: T0, ids=SeededIds(7)) as ledger:
            automation.create_automation(ledger, f"a{round_}", interval_seconds=60, payload="p", first_run_at=T0)
            pulse.record_signal(ledger, f"s{round_}", "k", {})
            delivery.enqueue(ledger, f"d{round_}")
            assert automation.run_due(ledger, f"a{round_}", fires, done).status is automation.Status.SUCCEEDED
            assert [r.status for r in pulse.run_pulse(ledger, lambda _: True, done)] == [pulse.PulseStatus.SUCCEEDED]
            delivery.begin_attempt(ledger, f"d{round_}")


def test_a_source_that_gives_one_id_for_ever_is_refused_and_hangs_nothing(tmp_path: Path) -> None:
    with Ledger.open(tmp_path, clock=lambda: T0, ids=Repeating(1)) as ledger:
        for name in ("x", "y"):
            automation.create_automation(ledger, name, interval_seconds=60, payload="p", first_run_at=T0)
            pulse.record_signal(ledger, name, "k", {})
            delivery.enqueue(ledger, name)
        automation.run_due(ledger, "x", fires, done)
        delivery.begin_attempt(ledger, "x")
        for call in (
            lambda: automation.run_due(ledger, "y", fires, done),
            lambda: pulse.run_pulse(ledger, lambda _: True, done),
            lambda: delivery.begin_attempt(ledger, "y"),
        ):
            with pytest.raises(Refusal, match="ids") as caught:
                call()
            assert caught.value.category is Category.LEDGER
        assert [run.run_id for run in automation.list_runs(ledger)] == ["run-same"]


@pytest.mark.parametrize("answer", [datetime(2026, 1, 5), None, "now", 1.5])
def test_a_clock_that_gives_no_aware_instant_changes_nothing(tmp_path: Path, answer: Any) -> None:
    with fill(tmp_path) as ledger:
        before = trace.events(ledger)
        ledger._clock = lambda: answer
        for call in (
            lambda: automation.run_due(ledger, "a", fires, done),
            lambda: coordination.claim_session(ledger, "s9", "h"),
            lambda: context.append_message(ledger, "c", "user", "x"),
            lambda: delivery.enqueue(ledger, "d9"),
            lambda: memory.remember(ledger, "m9", "x"),
            lambda: heartbeat.beat(ledger, "source"),
            lambda: pulse.run_pulse(ledger, lambda _: True, done),
        ):
            with pytest.raises((ValueError, TypeError), match="clock"):
                call()
        assert trace.events(ledger) == before


# A ledger that cannot be written

WRITERS: dict[str, Callable[[Ledger], object]] = {
    name: lambda ledger, case=name: CASES[case][0](ledger, **CASES[case][1])  # type: ignore[misc]  # bound per case
    for name in CASES
    if name not in ("list_runs", "history", "liveness", "render_context", "coverage", "verify_markers", "recall", "due")
    and name not in ("last_beat", "list_automations", "list_archives", "list_signals", "dead_letters")
    and name not in ("status", "events", "record_refusal", "Ledger.now", *UNNAMED[1:])
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_writing_function_refuses_a_ledger_that_it_cannot_write(writer: str, tmp_path: Path) -> None:
    """Read-only or closed: a Refusal of category ledger, before any callable of the caller has run."""
    fill(tmp_path).close()
    call, given = CASES[writer]
    ran: list[object] = []
    watched = {name: (lambda *got: ran.append(got)) if callable(value) else value for name, value in given.items()}
    if "handlers" in watched:
        watched["handlers"] = {"p": automation.Handler(lambda *got: ran.append(got), done)}  # type: ignore[arg-type]  # never called
    with Ledger.open(tmp_path, clock=lambda: T0, read_only=True) as ledger:
        before = trace.events(ledger)
        with pytest.raises(Refusal, match="read-only") as caught:
            call(ledger, **watched)
        assert caught.value.category is Category.LEDGER
        assert trace.events(ledger) == before
    with pytest.raises(Refusal, match=r"closed|read-only"):
        call(ledger, **watched)
    assert ran == []


def test_a_refusal_that_a_closed_ledger_cannot_keep_says_so(tmp_path: Path) -> None:
    ledger = fill(tmp_path)
    ledger.close()
    with pytest.raises(Refusal, match="Tool access") as caught:
        CATALOG.authorize("t", IsolationPolicy(), ledger=ledger)
    assert "not recorded" in caught.value.__notes__[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("leave", ["normally", "by an exception"])
def test_a_child_forked_inside_a_write_neither_commits_nor_rolls_back_for_its_parent(
    tmp_path: Path, leave: str
) -> None:
    with Ledger.open(tmp_path, clock=lambda: T0) as ledger:
        child = 0
        parent = os.getpid()
        answer, write = os.pipe()
        try:
            with ledger.write():
                heartbeat.beat(ledger, "before")
                child = os.fork()
                if child == 0 and leave != "normally":
                    raise KeyError
                if child:
                    os.waitpid(child, 0)
                    heartbeat.beat(ledger, "after")
        except BaseException as error:
            if os.getpid() == parent:
                raise
            os.write(write, type(error).__name__.encode())
        finally:
            if os.getpid() != parent:
                os._exit(0)
        os.close(write)
        with os.fdopen(answer, "rb") as said:
            assert said.read().decode() == ("Refusal" if leave == "normally" else "KeyError")
        assert heartbeat.last_beat(ledger, "before")
        assert heartbeat.last_beat(ledger, "after")
        with ledger.read() as tx:
            assert tx.all("PRAGMA integrity_check")[0][0] == "ok"


# Several mechanisms in one transaction

STEPS: dict[str, Callable[[Ledger, int], object]] = {
    "remember": lambda ledger, n: memory.remember(ledger, f"new-{n}", "text"),
    "remember another": lambda ledger, n: memory.remember(ledger, "m", f"text {n}"),  # refused
    "enqueue": lambda ledger, n: delivery.enqueue(ledger, f"new-{n}"),
    "enqueue another": lambda ledger, n: delivery.enqueue(ledger, "d", n),  # refused
    "begin": lambda ledger, _: delivery.begin_attempt(ledger, "d3"),
    "fail": lambda ledger, n: delivery.record_delivery_failure(ledger, f"failed-{n % 2}", "down"),
    "append": lambda ledger, _: context.append_message(ledger, "c", "user", "text"),
    "answer": lambda ledger, _: context.append_message(ledger, "c", "tool", "text", tool_call_id="c1"),
    "claim": lambda ledger, _: coordination.claim_session(ledger, "s", "h"),
    "claim of a finished one": lambda ledger, _: coordination.claim_session(ledger, "s2", "h"),  # refused
    "finish": lambda ledger, _: coordination.finish_session(ledger, CLAIM, "r"),  # refused once claimed again
    "beat": lambda ledger, _: heartbeat.beat(ledger, "source"),
    "signal": lambda ledger, n: pulse.record_signal(ledger, f"new-{n}", "k", {}),
    "update": lambda ledger, _: automation.update(ledger, "a", max_failures=5),
    "update of none": lambda ledger, _: automation.update(ledger, "none", max_failures=5),  # refused
    "run": lambda ledger, _: automation.run_due(ledger, "a", fires, done),  # refused inside a transaction
    "receipt": lambda ledger, _: CATALOG.authorize("t", POLICY, ledger=ledger),
    "denied": lambda ledger, _: CATALOG.authorize(
        "t", IsolationPolicy(), ledger=ledger
    ),  # refused, recorded afterwards
    "raise": lambda *_: 1 / 0,
}
EVIDENCE = {"refused_results"}  # kept also where the rest rolls back


def content(ledger: Ledger) -> dict[str, list[tuple[object, ...]]]:
    """Return every row, but for the evidence of refusals."""
    with ledger.read() as tx:
        tables = tx.all(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
        )
        found = {name: [tuple(row) for row in tx.all(f"SELECT * FROM {name}")] for (name,) in tables}
    found["events"] = [row for row in found["events"] if row[2] not in ("refused", "session.result_kept")]
    return {name: rows for name, rows in found.items() if name not in EVIDENCE}


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.booleans()), max_size=8))
def test_several_mechanisms_in_one_write_stand_or_fall_together(steps: list[tuple[str, bool]]) -> None:
    """Whatever is refused inside, caught or not: all of it is there, or nothing but the evidence of the refusals."""
    with tempfile.TemporaryDirectory() as folder, fill(Path(folder)) as ledger:
        before = content(ledger)
        refused = 0
        outcome = "committed"
        try:
            with ledger.write():
                for number, (step, caught) in enumerate(steps):
                    try:
                        STEPS[step](ledger, number)
                    except (Refusal, ZeroDivisionError) as error:
                        refused += isinstance(error, Refusal) and error.category is not Category.LEDGER
                        if not caught:
                            raise
        except (Refusal, ZeroDivisionError):
            outcome = "rolled back"
        after = content(ledger)
        assert not ledger.in_transaction
        if outcome == "rolled back":
            assert after == before
        else:
            written = [step for step, _ in steps if step in ("remember", "enqueue", "append", "signal")]
            assert sum(len(after[table]) - len(before[table]) for table in before if table != "events") >= len(written)
        recorded = [event for event in trace.events(ledger) if event.kind == "refused"]
        assert len(recorded) == 1 + refused  # one of `fill`
        heartbeat.beat(ledger, "afterwards")
        assert heartbeat.last_beat(ledger, "afterwards")
