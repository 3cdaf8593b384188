"""Crash points: what a ledger holds after a real process was killed between any two statements of one operation.

`crash_everywhere` forks a child for each statement that an operation begins, those of triggers, BEGIN and COMMIT
included, kills it there with SIGKILL, and compares every row of every table with what the operation commits when
nobody kills it. It promises nothing about a kill in the middle of one statement, nor about a loss of power.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sovereign_agent import archive, automation, context, coordination, delivery, heartbeat, memory, pulse
from sovereign_agent.errors import Refusal
from sovereign_agent.ids import SeededIds
from sovereign_agent.isolation import IsolationPolicy
from sovereign_agent.ledger import FILE, FOLDER, Ledger, record_refusal
from sovereign_agent.tools import Tool, ToolCatalog

T0 = datetime(2026, 1, 5, 8, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
Dump = dict[str, list[tuple[object, ...]]]
"""Every row of every table."""
Files = tuple[tuple[str, bytes], ...]
"""Names below a directory, and contents."""
MEMORY = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
"""Where ledgers stand that are killed and torn: the harness speaks of processes, and needs no disk."""


@dataclass(frozen=True, slots=True)
class Between:
    """A state that is committed on purpose before the operation is over."""

    name: str
    holds: str
    """SQL that gives one row whose first column is true in this state, and in no other one of the operation."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a public function that writes."""

    name: str
    run: Callable[[Ledger], object]
    prepare: Callable[[Ledger], object] = lambda ledger: None
    between: tuple[Between, ...] = ()
    """In the order in which they are committed."""


@dataclass(frozen=True, slots=True)
class Crashes:
    """What was tried and found for one operation."""

    name: str
    points: int
    """Children that were killed, each at another statement."""
    states: tuple[int, ...]
    """How many of them left the state before, each state between, and the state after."""


# The operations


def fires(state: dict[str, object]) -> automation.WatchDecision:
    """Fire, and count."""
    return automation.WatchDecision(fire=True, message="low", state={"n": int(str(state.get("n", 0))) + 1})


def other(state: dict[str, object]) -> automation.WatchDecision:
    """Fire with another message."""
    return automation.WatchDecision(fire=True, message="high", state=state)


def quiet(state: dict[str, object]) -> automation.WatchDecision:
    """Do not fire, and remember that."""
    return automation.WatchDecision(fire=False, state={"quiet": True})


def done(*_: object) -> str:
    """Succeed; as a summarizer, say something."""
    return "done"


def down(*_: object) -> Any:
    """Fail."""
    raise OSError("down")


def stopped(*_: object) -> Any:
    """Be interrupted."""
    raise KeyboardInterrupt


def watch(ledger: Ledger, *names: str) -> None:
    """Define watchers."""
    for name in names or ("w",):
        automation.create_automation(ledger, name, interval_seconds=60, payload="p", first_run_at=T0)


def host(ledger: Ledger) -> None:
    """Register a host."""
    coordination.register_host(ledger, "h", ttl_seconds=600)


def claim(ledger: Ledger) -> coordination.SessionClaim:
    """Register a host and let it claim a session."""
    host(ledger)
    return coordination.claim_session(ledger, "s", "h", ttl_seconds=600)


HELD = coordination.SessionClaim("s", "h", 1, T0 + 600 * timedelta(seconds=1))


def stale(ledger: Ledger) -> None:
    """Let the host claim a second time, so that its first claim is stale."""
    claim(ledger)
    coordination.claim_session(ledger, "s", "h", ttl_seconds=600)


def talk(ledger: Ledger) -> None:
    """Record four exchanges."""
    for _ in range(4):
        context.append_message(ledger, "c", "user", "question")
        context.append_message(ledger, "c", "assistant", "", tool_calls=["t"])
        context.append_message(ledger, "c", "tool", "answer", tool_call_id="t")


def ask(ledger: Ledger) -> None:
    """Record a call that waits for its result."""
    context.append_message(ledger, "c", "assistant", "", tool_calls=["t"])


def deliver(ledger: Ledger) -> None:
    """Begin an attempt, whose id the seed makes the same every time."""
    delivery.enqueue(ledger, "d", {"n": 1})
    delivery.begin_attempt(ledger, "d")


def signals(ledger: Ledger) -> None:
    """Record two signals."""
    for name in ("a", "b"):
        pulse.record_signal(ledger, name, "k", {})


def remember(ledger: Ledger) -> None:
    """Store a memory with a vector."""
    memory.remember(ledger, "m", "hello world", embedding=[1.0, 2.0], embedding_model="e")


def history(ledger: Ledger) -> None:
    """Fill most tables with what is over a day later."""
    watch(ledger, "w", "v")
    automation.run_due(ledger, "w", fires, done)
    automation.run_due(ledger, "v", quiet, done)
    automation.run_due(ledger, "w", fires, done, now=T0 + MINUTE)
    automation.run_due(ledger, "v", quiet, done, now=T0 + MINUTE)
    coordination.finish_session(ledger, claim(ledger), "result")
    with suppress(Refusal):
        coordination.finish_session(ledger, HELD, "another")
    with suppress(Refusal):
        coordination.finish_session(ledger, HELD, "a third")
    deliver(ledger)
    delivery.record_delivery_success(ledger, "d")
    signals(ledger)
    pulse.run_pulse(ledger, lambda _: True, done)
    heartbeat.beat(ledger, "later", now=T0 + timedelta(days=1))


def record(ledger: Ledger) -> Refusal:
    """Record a refusal that no ledger raised, and return it."""
    refusal = Refusal("tools", "t", "why", "remedy")
    record_refusal(ledger, refusal)
    return refusal


def write_fenced(ledger: Ledger) -> None:
    """Let two mechanisms write under one claim."""
    with coordination.fenced(ledger, HELD):
        context.append_message(ledger, "c", "user", "one")
        delivery.enqueue(ledger, "d")


def write_several(ledger: Ledger) -> None:
    """Let several mechanisms write in one transaction."""
    with ledger.write():
        heartbeat.beat(ledger, "source")
        remember(ledger)
        talk(ledger)
        deliver(ledger)


def refused(call: Callable[[Ledger], object]) -> Callable[[Ledger], object]:
    """Expect a refusal, whose evidence is what the operation writes, and return it."""

    def run(ledger: Ledger) -> Refusal:
        try:
            call(ledger)
        except Refusal as refusal:
            return refusal
        raise AssertionError("nothing was refused")

    return run


def interrupted(call: Callable[[Ledger], object]) -> Callable[[Ledger], object]:
    """Expect an interrupt."""

    def run(ledger: Ledger) -> None:
        with suppress(KeyboardInterrupt):
            call(ledger)

    return run


def renewing(ledger: Ledger) -> object:
    """Run a payload that extends its own lease."""

    def payload(run_id: str, _: str) -> None:
        automation.renew_run(ledger, run_id, now=T0 + timedelta(seconds=5))

    return automation.run_due(ledger, "w", fires, payload)


CLAIMED_RUN = Between(
    "claimed, and not committed: the state is the old one",
    "SELECT (SELECT group_concat(status || attempt) FROM automation_runs) IN ('RUNNING1', 'RUNNING2') "
    "AND (SELECT condition_state FROM automations WHERE automation_id = 'w') = '{}' "
    "AND (SELECT sum(renewals) FROM automation_runs) = 0",
)
RENEWED_RUN = Between(
    "its lease extended, and not committed",
    "SELECT status = 'RUNNING' AND renewals = 1 FROM automation_runs",
)
FIRST_SIGNAL_CLAIMED = Between(
    "the first signal is claimed, and not committed",
    "SELECT group_concat(status) = 'RUNNING,WAITING' FROM (SELECT status FROM signals ORDER BY seq)",
)
OPERATIONS = (
    Operation("Ledger.write", write_several),
    Operation("record_refusal", record),
    Operation("create_automation", watch),
    Operation(
        "update",
        lambda ledger: automation.update(ledger, "w", interval_seconds=30, condition_state={"n": 7}),
        watch,
    ),
    Operation("disable", lambda ledger: automation.disable(ledger, "w", reason="enough"), watch),
    Operation(
        "enable",
        lambda ledger: automation.enable(ledger, "w", now=T0 + 5 * MINUTE),
        lambda ledger: (watch(ledger), automation.disable(ledger, "w")),
    ),
    Operation("run_due, not firing", lambda ledger: automation.run_due(ledger, "w", quiet, done), watch),
    Operation("run_due, condition raises", lambda ledger: automation.run_due(ledger, "w", down, done), watch),
    Operation(
        "run_due, succeeding", lambda ledger: automation.run_due(ledger, "w", fires, done), watch, (CLAIMED_RUN,)
    ),
    Operation("run_due, failing", lambda ledger: automation.run_due(ledger, "w", fires, down), watch, (CLAIMED_RUN,)),
    Operation(
        "run_due, interrupted",
        interrupted(lambda ledger: automation.run_due(ledger, "w", fires, stopped)),
        watch,
        (CLAIMED_RUN,),
    ),
    Operation(
        "run_due, again after a failure and three slots",
        lambda ledger: automation.run_due(ledger, "w", fires, done, now=T0 + 3 * MINUTE),
        lambda ledger: (watch(ledger), automation.run_due(ledger, "w", fires, down)),
        (CLAIMED_RUN,),
    ),
    Operation(
        "run_due, with another message after a failure",
        lambda ledger: automation.run_due(ledger, "w", other, done, now=T0 + MINUTE),
        lambda ledger: (watch(ledger), automation.run_due(ledger, "w", fires, down)),
        (
            Between(
                "the failed run is abandoned, and the new one claimed",
                "SELECT group_concat(status) = 'ABANDONED,RUNNING' FROM "
                "(SELECT status FROM automation_runs ORDER BY status)",
            ),
        ),
    ),
    Operation(
        "run_all_due",
        lambda ledger: automation.run_all_due(ledger, {"p": automation.Handler(fires, done)}),
        lambda ledger: watch(ledger, "v", "w"),
        (
            Between("v claimed", "SELECT group_concat(automation_id || status) = 'vRUNNING' FROM automation_runs"),
            Between("v succeeded", "SELECT group_concat(automation_id || status) = 'vSUCCEEDED' FROM automation_runs"),
            Between(
                "v succeeded, w claimed",
                "SELECT group_concat(automation_id || status) = 'vSUCCEEDED,wRUNNING' FROM "
                "(SELECT * FROM automation_runs ORDER BY automation_id)",
            ),
        ),
    ),
    Operation("renew_run", renewing, watch, (CLAIMED_RUN, RENEWED_RUN)),
    Operation("beat", lambda ledger: heartbeat.beat(ledger, "source")),
    Operation("record_signal", lambda ledger: pulse.record_signal(ledger, "a", "k", {"n": 1})),
    Operation(
        "run_pulse, declined",
        lambda ledger: pulse.run_pulse(ledger, lambda _: False, done),
        signals,
        (
            Between(
                "the first signal is declined",
                "SELECT group_concat(status) = 'DECLINED,WAITING' FROM (SELECT status FROM signals ORDER BY seq)",
            ),
        ),
    ),
    Operation(
        "run_pulse, one of two succeeding and the other failing",
        lambda ledger: pulse.run_pulse(ledger, lambda _: True, lambda _, found: found.signal_id == "a" or down()),
        signals,
        (
            FIRST_SIGNAL_CLAIMED,
            Between(
                "the first signal succeeded",
                "SELECT group_concat(status) = 'SUCCEEDED,WAITING' FROM (SELECT status FROM signals ORDER BY seq)",
            ),
            Between(
                "the second signal is claimed",
                "SELECT group_concat(status) = 'SUCCEEDED,RUNNING' FROM (SELECT status FROM signals ORDER BY seq)",
            ),
        ),
    ),
    Operation("append_message, user", lambda ledger: context.append_message(ledger, "c", "user", "x")),
    Operation(
        "append_message, with calls",
        lambda ledger: context.append_message(ledger, "c", "assistant", "", tool_calls=["t", "u", "v"]),
        talk,
    ),
    Operation(
        "append_message, a result",
        lambda ledger: context.append_message(ledger, "c", "tool", "answer", tool_call_id="t"),
        ask,
    ),
    Operation(
        "append_message, refused",
        refused(lambda ledger: context.append_message(ledger, "c", "tool", "x", tool_call_id="none")),
        ask,
    ),
    Operation(
        "compact_one",
        lambda ledger: context.compact_one(ledger, "c", done, protect_head=1, protect_tail=1, max_rows=4),
        talk,
    ),
    Operation(
        "compact_until",
        lambda ledger: context.compact_until(ledger, "c", done, protect_head=0, protect_tail=0, max_rows=6),
        talk,
        (Between("one marker", "SELECT count(*) = 1 FROM context_compactions"),),
    ),
    Operation("register_host", host),
    Operation("register_host, again", host, claim),
    Operation("renew_host", lambda ledger: coordination.renew_host(ledger, "h", boot=1, ttl_seconds=900), host),
    Operation("claim_session", lambda ledger: coordination.claim_session(ledger, "s", "h", ttl_seconds=600), host),
    Operation(
        "claim_session, taking over",
        lambda ledger: coordination.claim_session(ledger, "s", "g", now=T0 + 60 * MINUTE),
        lambda ledger: (
            claim(ledger),
            coordination.register_host(ledger, "g", ttl_seconds=600, now=T0 + 59 * MINUTE),
        ),
    ),
    Operation(
        "claim_session, refused",
        refused(lambda ledger: coordination.claim_session(ledger, "s", "g")),
        lambda ledger: (claim(ledger), coordination.register_host(ledger, "g", ttl_seconds=600)),
    ),
    Operation("renew_session", lambda ledger: coordination.renew_session(ledger, HELD, ttl_seconds=900), claim),
    Operation("release_session", lambda ledger: coordination.release_session(ledger, HELD), claim),
    Operation("fenced", write_fenced, claim),
    Operation("fenced, stale", refused(write_fenced), stale),
    Operation("finish_session", lambda ledger: coordination.finish_session(ledger, HELD, "result"), claim),
    Operation(
        "finish_session, stale",
        refused(lambda ledger: coordination.finish_session(ledger, HELD, "result")),
        stale,
        (
            Between(
                "the refused result is kept, and the refusal not yet recorded",
                "SELECT (SELECT count(*) FROM refused_results) = 1 "
                "AND NOT EXISTS (SELECT 1 FROM events WHERE kind = 'refused')",
            ),
        ),
    ),
    Operation("enqueue", lambda ledger: delivery.enqueue(ledger, "d", {"n": 1})),
    Operation(
        "begin_attempt",
        lambda ledger: delivery.begin_attempt(ledger, "d"),
        lambda ledger: delivery.enqueue(ledger, "d"),
    ),
    Operation(
        "begin_attempt, after a lost one",
        lambda ledger: delivery.begin_attempt(ledger, "d", now=T0 + 60 * MINUTE),
        deliver,
    ),
    Operation("record_delivery_failure", lambda ledger: delivery.record_delivery_failure(ledger, "d", "down"), deliver),
    Operation(
        "record_delivery_failure, of an unknown one",
        lambda ledger: delivery.record_delivery_failure(ledger, "d", "down"),
    ),
    Operation(
        "record_delivery_failure, permanent",
        lambda ledger: delivery.record_delivery_failure(ledger, "d", "down", permanent=True),
        deliver,
    ),
    Operation("record_delivery_success", lambda ledger: delivery.record_delivery_success(ledger, "d"), deliver),
    Operation("remember", remember),
    Operation(
        "supersede",
        lambda ledger: memory.supersede(ledger, "m", "n", "other words", embedding=[2.0, 1.0], embedding_model="e"),
        remember,
    ),
    Operation("forget", lambda ledger: memory.forget(ledger, "m"), remember),
    Operation(
        "ToolCatalog.authorize",
        lambda ledger: ToolCatalog([Tool("t", "d")]).authorize(
            "t", IsolationPolicy(allowed_tools={"t"}), ledger=ledger
        ),
    ),
    Operation(
        "ToolCatalog.authorize, denied",
        refused(lambda ledger: ToolCatalog([Tool("t", "d")]).authorize("t", IsolationPolicy(), ledger=ledger)),
    ),
    Operation(
        "archive_before",
        lambda ledger: archive.archive_before(ledger, T0 + timedelta(hours=12), now=T0 + timedelta(days=2)),
        history,
    ),
)


# The crashes


class Counting(sqlite3.Connection):
    """A connection that ends its process when a given statement begins."""

    begun = 0
    """Statements so far in this process, over all its connections."""
    last = -1
    """The one that never begins; negative: there is none."""
    committed: Callable[[], None] | None = None
    """Called after each commit."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.set_trace_callback(begin)

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Run a statement, and tell of each commit."""
        cursor = super().execute(sql, parameters)
        if sql == "COMMIT" and Counting.committed is not None:
            Counting.committed()
        return cursor


def begin(_: str) -> None:
    """Count a statement, or end the process."""
    if Counting.begun == Counting.last:
        os.kill(os.getpid(), signal.SIGKILL)
    Counting.begun += 1


def counting(*arguments: Any, **options: Any) -> sqlite3.Connection:
    """Connect; the archive's own file counts too."""
    return CONNECT(*arguments, factory=Counting, **options)


CONNECT = sqlite3.connect


def open_at(root: Path, **options: Any) -> Ledger:
    """Open a ledger whose time stands still and whose ids are the same every time; it does not wait for the disk."""
    ledger = Ledger.open(root, clock=lambda: T0, ids=SeededIds(2), **options)
    ledger._live().execute("PRAGMA synchronous = OFF")  # no machine loses its power in here
    return ledger


def dump(database: Path | sqlite3.Connection) -> Dump:
    """Return every row of every table of a ledger, read through one of its connections or a new one."""
    if isinstance(database, Path):
        with closing(CONNECT(database)) as reader:
            return dump(reader)
    tables = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall()
    return {name: [tuple(row) for row in database.execute(f"SELECT * FROM {name}")] for (name,) in tables}


def sound(reader: sqlite3.Connection) -> bool:
    """Tell whether SQLite finds its file whole, and every reference leading somewhere."""
    found = reader.execute("PRAGMA integrity_check").fetchall()
    return [tuple(row) for row in found] == [("ok",)] and not reader.execute("PRAGMA foreign_key_check").fetchall()


def lay(root: Path, files: Files) -> Path:
    """Make a directory of these files alone."""
    shutil.rmtree(root, ignore_errors=True)
    for name, content in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def files_of(root: Path) -> Files:
    """Return what a directory holds, without the index of a log: SQLite makes that anew from the log."""
    found = sorted(path for path in root.rglob("*") if path.is_file() and path.suffix != ".db-shm")
    return tuple((str(path.relative_to(root)), path.read_bytes()) for path in found)


def kill_at(point: int, root: Path, operation: Operation) -> int:
    """Run the operation in a forked child that is killed when statement number `point` begins, or after the last one.

    Returns:
        The child's wait status.
    """
    child = os.fork()
    if child == 0:
        gc.disable()  # a collection would touch, and so copy, each page that the child shares with its parent
        try:
            run_counted(root, operation, point)
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]


def run_counted(root: Path, operation: Operation, last: int = -1) -> Ledger:
    """Open the ledger and run the operation; only its own statements count."""
    ledger = open_at(root, connect=counting)
    sqlite3.connect = counting  # type: ignore[assignment]
    Counting.begun, Counting.last = 0, last
    try:
        operation.run(ledger)
    finally:
        Counting.last = -1
        sqlite3.connect = CONNECT
    return ledger


def whole(root: Path, operation: Operation) -> tuple[list[Dump], int]:
    """Run the operation to its end.

    Returns:
        What the ledger holds before it, after each commit that changes something, and after it; and how many
        statements it has.
    """
    states = [dump(root / FOLDER / FILE)]

    def note() -> None:
        now = dump(root / FOLDER / FILE)
        if now != states[-1]:
            states.append(now)

    Counting.committed = note
    try:
        ledger = run_counted(root, operation)
    finally:
        Counting.committed = None
    statements = Counting.begun
    ledger.close()
    note()
    return states, statements


def holds(reader: sqlite3.Connection, between: Between) -> bool:
    """Ask the state its question."""
    row = reader.execute(between.holds).fetchone()
    return row is not None and bool(row[0])


def state_left(root: Path, operation: Operation, states: list[Dump], where: str) -> int:
    """Open what a killed child left, check it, and return the number of its state."""
    with open_at(root) as ledger:
        reader = ledger._live()
        now = dump(reader)
        assert now in states, f"{where}: the ledger is between two states"
        number = states.index(now)
        answers = [holds(reader, between) for between in operation.between]
        assert answers == [index == number for index in range(1, len(states) - 1)], f"{where}: {operation.between}"
        assert sound(reader), f"{where}: the file is damaged"
        heartbeat.beat(ledger, "afterwards")
    return number


def crash_everywhere(operation: Operation) -> Crashes:
    """Kill a child at each statement of the operation, and compare what it leaves.

    Every child begins from the same bytes, a log among them. Children that leave the same bytes, as all do that are
    killed before a commit, left the same ledger: it is opened and checked once.

    Parameters:
        operation: What to run.

    Returns:
        How many children were killed, and how many left which state.

    Raises:
        AssertionError: A ledger held something that is neither the state before, nor one that is committed on the way
            and has a name, nor the state after; or it was damaged, or could not be written any more.
    """
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        root = Path(folder) / "root"  # the same path each time, since an archive's path stands in the ledger
        with open_at(root) as ledger:
            operation.prepare(ledger)
            before = files_of(root)
        states, statements = whole(lay(root, before), operation)
        assert len(states) == len(operation.between) + 2, f"{operation.name}: {len(states)} states are committed"
        left = [0] * len(states)
        reached = 0
        known: dict[Files, int] = {}
        for point in range(statements + 1):
            where = f"{operation.name}, killed at statement {point} of {statements}"
            status = kill_at(point, lay(root, before), operation)
            assert status == signal.SIGKILL, f"{where}: the child ended with {status}"
            files = files_of(root)
            if files not in known:
                known[files] = state_left(root, operation, states, where)
            number = known[files]
            assert number >= reached, f"{where}: less is there than after a kill at an earlier statement"
            left[number] += 1
            reached = number
    assert reached == len(states) - 1, f"{operation.name}: done, and not all of it is there"
    return Crashes(operation.name, statements + 1, tuple(left))
