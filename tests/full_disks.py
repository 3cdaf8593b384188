"""Full disks: what a ledger holds when there is room for so much and no more, for every operation that writes.

`fill_up` runs an operation in a forked child that has room for no page, then for one, and so on until there is enough.
It promises that the child was told or had done its work, that the ledger then holds a state that the operation
commits, and that the child's own connection writes again once there is room. A file system that lies about what it has
written is not in here.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sovereign_agent import heartbeat
from sovereign_agent.errors import Category, Refusal
from sovereign_agent.ledger import Ledger

from .crash_points import (
    Dump,
    Files,
    Operation,
    dump,
    files_of,
    lay,
    open_at,
    sound,
    whole,
)

PAGE = 4096
DONE, REFUSED = 10, 11
"""How a child ends whose promise was kept."""
Narrow = Callable[[Ledger, int], Callable[[], None]]
"""Leaves a ledger so many pages; what it returns gives all the room back."""


@dataclass(frozen=True, slots=True)
class Filled:
    """What was tried and found for one operation."""

    name: str
    cases: int
    """Children, each with room for another number of pages; all but the last had too little."""


def bytes_of_log(ledger: Ledger, room: int) -> Callable[[], None]:
    """Let no file of the process grow beyond its log and so many pages, the last of them torn: SQLITE_IOERR_WRITE."""
    log = Path(f"{ledger.path}-wal")
    size = (log.stat().st_size if log.exists() else 0) + room * PAGE + 1000
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails instead
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)


def space(ledger: Ledger, room: int) -> Callable[[], None]:
    """Fill the file system up to so many pages: ENOSPC, as SQLITE_FULL."""
    filler = ledger.path.parent.parent.parent / "filler"
    with filler.open("wb", buffering=0) as file:
        free = os.statvfs(filler)
        for _ in range(max(0, free.f_bavail * free.f_frsize // PAGE - room)):
            file.write(bytes(PAGE))
    return filler.unlink


WAYS: dict[str, Narrow] = {"log": bytes_of_log, "space": space}


def use(root: Path, operation: Operation, states: list[Dump], narrow: Narrow, room: int) -> int:
    """Run the operation with little room, check what it leaves, and write again with all of it."""
    with open_at(root) as ledger:
        widen = narrow(ledger, room)
        try:
            answer = operation.run(ledger)
        except Refusal as refusal:
            answer = refusal
            if (
                refusal.category is not Category.LEDGER
                or not {"database or disk is full", "disk I/O error"} & {refusal.why}
                or "free some space" not in refusal.remedy
            ):
                raise
        assert not ledger.in_transaction
        widen()
        now = dump(ledger._live())
        if isinstance(answer, Refusal) and answer.category is not Category.LEDGER and now != states[-1]:
            assert "not kept" in str(answer.__notes__) or "not yet recorded" in str(answer.__notes__)
            assert without_evidence(now) == without_evidence(states[0])
        else:
            assert now in states, "the ledger is between two states"
            told = isinstance(answer, Refusal) or "interrupted" in operation.name
            assert told or now == states[-1], "done, and not there"
        assert sound(ledger._live())
        heartbeat.beat(ledger, "afterwards")
        return DONE if now == states[-1] else REFUSED


def without_evidence(held: Dump) -> Dump:
    """Leave out what tells of a refusal: a full disk may lose it, and the refusal then says so in a note."""
    return {name: rows for name, rows in held.items() if name not in ("events", "refused_results", "sqlite_sequence")}


def child(call: Callable[[], int]) -> tuple[int, str]:
    """Call in a fork; return the exit code and what went wrong."""
    answer, write = os.pipe()
    found = os.fork()
    if found == 0:
        gc.disable()
        code = 1
        try:
            code = call()
        except BaseException:
            os.write(write, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(answer, "rb") as said:
        text = said.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(found, 0)[1]), text


def fill_up(operation: Operation, way: str, folder: Path) -> Filled:
    """Give the operation room for no page, one, two, until it has enough.

    Parameters:
        operation: What to run.
        way: A name in `WAYS`.
        folder: A directory; the root of a file system of a few megabytes for `space`.

    Returns:
        How many children ran.

    Raises:
        AssertionError: A promise of this module did not hold.
    """
    root = folder / "root"
    with open_at(root) as ledger:
        operation.prepare(ledger)
        before: Files = files_of(root)
    states, _ = whole(lay(root, before), operation)
    for room in range(200):
        code, text = child(partial(use, lay(root, before), operation, states, WAYS[way], room))
        assert code in (DONE, REFUSED), f"{operation.name}, room for {room} pages in {way}: {code} {text}"
        with open_at(root) as ledger:
            assert heartbeat.last_beat(ledger, "afterwards"), f"{operation.name}: what was written then is not there"
            assert sound(ledger._live())
        if code == DONE:
            return Filled(operation.name, room + 1)
    raise AssertionError(f"{operation.name}: 200 pages are not enough")


@contextmanager
def small_disk(megabytes: int = 4) -> Iterator[Path | None]:
    """Mount a small file system in memory where this process may, else yield None."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder]
        try:
            mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            mounted = False
        try:
            yield Path(folder) if mounted else None
        finally:
            if mounted:
                subprocess.run(["umount", folder], check=True)
