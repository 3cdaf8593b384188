"""A kill between any two statements, a torn log, a disk that fails: before or after, never between, nothing worse."""

from __future__ import annotations

import inspect
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sovereign_agent import archive, automation, context, coordination, delivery, heartbeat, memory, pulse, trace
from sovereign_agent.errors import Category, Refusal
from sovereign_agent.ledger import FILE, FOLDER, Ledger
from sovereign_agent.simulated_checker import Checker

from .crash_points import (
    MEMORY,
    OPERATIONS,
    Between,
    Dump,
    Operation,
    crash_everywhere,
    done,
    dump,
    history,
    lay,
    open_at,
    sound,
    talk,
)
from .full_disks import fill_up, small_disk

MODULES = (archive, automation, context, coordination, delivery, heartbeat, memory, pulse, trace)
READS = {
    *("list_archives", "list_automations", "list_runs", "history", "coverage", "render_context", "verify_markers"),
    *("dead_letters", "due", "liveness", "last_beat", "recall", "list_signals", "events", "status"),
}
"""Public functions on a ledger that write nothing."""


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A directory that needs no disk."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


# Kills


@needs_fork
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_a_kill_at_any_statement_leaves_the_state_before_or_after_or_one_that_has_a_name(
    operation: Operation,
) -> None:
    found = crash_everywhere(operation)
    assert found.points >= 5
    assert min(found.states) > 0, "every state is left by some kill"


def test_every_public_function_on_a_ledger_is_crashed_or_only_reads() -> None:
    crashed = {operation.name.split(",")[0].rpartition(".")[2] for operation in OPERATIONS}
    for module in MODULES:
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ != module.__name__ or name.startswith("_"):
                continue
            if next(iter(inspect.signature(function).parameters), "") == "ledger":
                assert (name in crashed) != (name in READS), name


def apart(ledger: Ledger) -> None:
    heartbeat.beat(ledger, "one")
    heartbeat.beat(ledger, "two")


@needs_fork
def test_two_writes_where_one_is_promised_are_noticed() -> None:
    with pytest.raises(AssertionError, match="3 states are committed"):
        crash_everywhere(Operation("apart", apart))
    named = Operation("apart", apart, between=(Between("one", "SELECT count(*) = 1 FROM heartbeats"),))
    assert crash_everywhere(named).states[1] > 0
    wrong = replace(named, between=(Between("one", "SELECT count(*) = 2 FROM heartbeats"),))
    with pytest.raises(AssertionError, match="killed at statement"):
        crash_everywhere(wrong)


# The loss of power: what stands in the files


def frames(wal: bytes) -> list[int]:
    """Return where each frame of a log begins, and where the last one ends."""
    size: int = struct.unpack(">I", wal[8:12])[0] + 24
    return list(range(32, len(wal) + 1, size))


def lived(folder: Path) -> tuple[bytes, bytes, bytes, list[Dump]]:
    """Return the three files of a live ledger, and what it held after each commit since its log was empty."""
    with open_at(folder) as ledger:
        talk(ledger)
    states = [dump(folder / FOLDER / FILE)]
    with open_at(folder) as ledger:
        for operation in (
            lambda: heartbeat.beat(ledger, "source"),
            lambda: coordination.register_host(ledger, "h"),
            lambda: coordination.claim_session(ledger, "s", "h"),
            lambda: memory.remember(ledger, "m", "hello " * 2000),
            lambda: delivery.enqueue(ledger, "d", {"n": 1}),
            lambda: context.compact_one(ledger, "c", done, protect_head=0, protect_tail=0),
            lambda: memory.forget(ledger, "m"),
        ):
            operation()
            states.append(dump(ledger.path))
        files = [Path(f"{ledger.path}{suffix}").read_bytes() for suffix in ("", "-wal", "-shm")]
    return files[0], files[1], files[2], states


def reopened(root: Path, database: bytes, wal: bytes, shm: bytes | None) -> Dump:
    """Lay the files, open the ledger, check all that must hold, and return what it holds."""
    files = {"": database, "-wal": wal, "-shm": shm}
    lay(root, tuple((f"{FOLDER}/{FILE}{end}", content) for end, content in files.items() if content is not None))
    with open_at(root) as ledger:
        held = dump(ledger._live())
        assert sound(ledger._live())
        checker = Checker(root)
        checker.after_step()
        checker.check_all()
        assert checker.violation is None, checker.violation
        checker.close()
        heartbeat.beat(ledger, "afterwards")
    return held


def test_a_log_that_lost_its_end_or_a_bit_gives_a_committed_prefix(in_memory: Path) -> None:
    """Cut at every frame, within every frame, and with a bit of every frame turned over; with and without its index."""
    database, wal, shm, states = lived(in_memory / "live")
    starts = frames(wal)
    assert len(starts) > 20
    cuts = sorted([0, 1, 31, *starts, *(start + part for start in starts[:-1] for part in (1, 23, 24, 2000))])
    logs = [wal[:cut] for cut in cuts]
    for start in starts[:-1]:
        for part in (2, 9, 20, 100, 4000):  # page number, salt, checksum, and the page itself
            broken = bytearray(wal)
            broken[start + part] ^= 0x10
            logs.append(bytes(broken))
    reached = set()
    for number, log in enumerate(logs):
        held = reopened(in_memory / "after", database, log, None)
        assert held in states, f"log {number} gives a state that nobody committed"
        reached.add(states.index(held))
        if number < len(cuts):
            assert states.index(held) == max(reached), "a longer log gives less"
    assert reached == set(range(len(states))), "each commit is the last one of some log"
    assert len(logs) > 200
    for index in (shm, bytes(len(shm))):
        assert reopened(in_memory / "after", database, wal, index) == states[-1]


# A disk that fails: a clear refusal, and nothing made worse


def refusal_of(call: Callable[[], object]) -> Refusal | None:
    try:
        call()
    except Refusal as refusal:
        return refusal
    return None


def read_all(root: Path) -> None:
    with Ledger.open(root, read_only=True) as ledger:
        for read in (trace.status, trace.events, automation.list_runs, pulse.list_signals, delivery.dead_letters):
            read(ledger)
        context.verify_markers(ledger, "c")


def write_one(root: Path) -> None:
    with open_at(root) as ledger:
        heartbeat.beat(ledger, "source")


def test_a_damaged_page_is_refused_and_the_refusal_changes_no_byte(in_memory: Path) -> None:
    """Each page of the file in turn is overwritten. Where nothing is refused, no page that was read was damaged."""
    write_one(in_memory / "good")
    with open_at(in_memory / "good") as ledger:
        history(ledger)
    good = (in_memory / "good" / FOLDER / FILE).read_bytes()
    size = struct.unpack(">H", good[16:18])[0]
    root = in_memory / "bad"
    database = root / FOLDER / FILE
    refused = 0
    for page in range(len(good) // size):
        broken = good[: page * size] + b"\xa5" * size + good[(page + 1) * size :]
        lay(root, ((f"{FOLDER}/{FILE}", broken),))
        refusal = refusal_of(lambda: read_all(root))
        refused += refusal is not None
        assert refusal is None or refusal.category is Category.LEDGER
        assert database.read_bytes() == broken, "a reader changed a byte"
        refusal = refusal_of(lambda: write_one(root))
        assert refusal is None or (refusal.category is Category.LEDGER and database.read_bytes() == broken)
    assert refused >= 10


LOST = """
from sovereign_agent.errors import Refusal
from sovereign_agent.ledger import Ledger
try:
    with Ledger.open(sys.argv[1]) as ledger, ledger.write() as tx:
        tx.event("test.happened", "s", at=ledger.now())
except Refusal as refusal:
    print(refusal.category, refusal)
else:
    print("written")
"""


@pytest.mark.parametrize(("folder", "file"), [(0o555, 0o444), (0o777, 0o444), (0o000, 0o600), (0o777, 0)])
def test_a_permission_that_is_lost_is_refused_and_changes_nothing(
    folder: int, file: int, open_to_all: Path, as_nobody: Any
) -> None:
    root = open_to_all / "root"
    write_one(root)
    database = root / FOLDER / FILE
    before = database.read_bytes()
    root.chmod(0o755)
    database.chmod(file)
    database.parent.chmod(folder)
    said = as_nobody(LOST, str(root))
    database.parent.chmod(0o700)
    assert said.stdout.startswith("ledger Ledger access refused"), said
    assert database.read_bytes() == before


@needs_fork
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
@pytest.mark.parametrize("way", ["log", pytest.param("space", marks=pytest.mark.soak)])
def test_a_full_disk_is_refused_or_the_work_is_done_and_the_connection_writes_again(
    way: str, operation: Operation, in_memory: Path
) -> None:
    """Room for no page, one, two, until there is enough; the last one is torn where the log is what may not grow."""
    if way != "space":
        assert fill_up(operation, way, in_memory).cases > 1
        return
    with small_disk() as disk:
        if disk is None:
            pytest.skip("no file system can be mounted here")
        assert fill_up(operation, way, disk).cases > 1


@needs_fork
def test_work_that_a_full_disk_swallowed_is_noticed(in_memory: Path) -> None:
    def swallows(ledger: Ledger) -> None:
        with suppress(Refusal):
            heartbeat.beat(ledger, "source")

    with pytest.raises(AssertionError, match="done, and not there"):
        fill_up(Operation("swallows", swallows), "log", in_memory)
