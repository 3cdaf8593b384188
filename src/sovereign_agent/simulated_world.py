"""A simulated world: hosts with clocks of their own that work on one real ledger, and what may go wrong with them.

It promises that a crash is what a kill is for the ledger: the connection ends between two statements, or right after a
commit, nothing of an open transaction is kept, and the host forgets what it held in memory. A full disk and a locked
ledger are SQLite's own errors. It does not simulate processes, threads, a file system or the loss of power: every host
is an object in one process, and only one statement runs at a time.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from random import Random

from .coordination import HostLease, SessionClaim
from .delivery import Attempt
from .ids import SeededIds
from .ledger import Ledger
from .simulated_checker import Checker

START = datetime(2026, 1, 5, 8, tzinfo=UTC)
"""The first instant of every simulation."""
MAX_SKEW_SECONDS = 300
"""The clock skew that the ledger is created with; hosts differ by less unless a clock jumps."""
_NO_LIMIT = 4294967294  # pages, the largest that SQLite knows
_DEPTH = 3
"""Most callables inside each other's calls during which time goes on."""


class Fault(StrEnum):
    """What may go wrong; the value is its name on the command line."""

    CRASH = "crash"
    """A host ends between two statements, and starts again later under the same name."""
    PAUSE = "pause"
    """A host sleeps for hours, often past its leases, and goes on with what it held."""
    RESTART = "restart"
    """A host is registered again under the same name while what held its sessions still runs."""
    SKEW = "skew"
    """Clocks differ, by less than what the ledger allows for."""
    JUMP = "jump"
    """A clock steps ahead or back by up to two days, and is put right later."""
    DISK = "disk"
    """No page can be added to the file: SQLITE_FULL."""
    LOCK = "lock"
    """Another connection holds the write lock: SQLITE_BUSY."""
    WATCHER = "watcher"
    """Conditions, payloads and gates raise, return nonsense, or take hours."""
    SUMMARIZER = "summarizer"
    """A summarizer returns nothing, raises, or takes so long that another compactor is first."""
    DELIVERY = "delivery"
    """Sending fails, or its outcome is reported late or never."""
    REPEAT = "repeat"
    """Signals, finishes and memories arrive twice, sometimes with another content."""
    EMBEDDER = "embedder"
    """A vector has numbers that are not finite."""
    COUNTERFEIT = "counterfeit"
    """A tool is asked for in another spelling, or by an equal copy of it."""
    PURGE = "purge"
    """An operator removes claims that are over."""


class Crash(BaseException):
    """The end of a host. No `Exception`, so that nothing in the package takes it for a failure of a callable."""


class Faulty(Exception):  # noqa: N818 - what a caller's callable raises, not an error of this package
    """What a callable of the simulation raises on purpose."""


class Connection(sqlite3.Connection):
    """A connection that tells its host about each statement."""

    host: Host

    def execute(self, sql: str, parameters: object = (), /) -> sqlite3.Cursor:
        """Run one statement, unless the host ends before it; called by the ledger."""
        host = self.host
        if not host.watched:
            return super().execute(sql, parameters)  # type: ignore[arg-type]
        host.before(sql, parameters, self.in_transaction)
        cursor = super().execute(sql, parameters)  # type: ignore[arg-type]
        host.behind()
        return cursor

    def command(self, sql: str) -> None:
        """Run a statement of the simulation itself, which counts for nothing."""
        with suppress(sqlite3.ProgrammingError):  # it was closed by the package
            super().execute(sql)


@dataclass(slots=True)
class Host:
    """One runtime holder: what it keeps in memory, its clock, and what is about to go wrong."""

    name: str
    skew: timedelta
    ledger: Ledger | None = None
    connections: list[Connection] = field(default_factory=list)
    lease: HostLease | None = None
    """Its own, as it knows it; None before it has registered."""
    starts: int = 0
    claims: list[SessionClaim] = field(default_factory=list)
    """What it believes to hold, the newest last; older ones may be stale."""
    attempts: dict[str, Attempt] = field(default_factory=dict)
    """Deliveries whose outcome it has not reported."""
    decision: int = -1
    """The number of its latest decision as a watcher."""
    jump: timedelta = timedelta(0)
    jumps_until: datetime = START
    asleep_until: datetime = START
    busy: bool = False
    """Inside a call; its callable may let time pass for the others."""
    watched: bool = False
    """Whether any of what follows is set, so that each statement is looked at."""
    dead: bool = False
    """It has ended: no further statement reaches the ledger."""
    fuse: int = 0
    """Statements until it ends; 0 while it is to live."""
    after: bool = False
    """Whether it ends after that statement instead of before it."""
    lock: int = 0
    """Statements until another connection takes the write lock; 0 while none does."""
    lock_now: Callable[[], None] = lambda: None
    statements: list[tuple[str, object]] = field(default_factory=list)
    """What was executed while it was watched."""

    def before(self, sql: str, parameters: object, in_transaction: bool) -> None:  # noqa: FBT001 - called once
        """Note one statement, which is about to be executed.

        Raises:
            Crash: The host ends here.
        """
        if self.dead:
            raise Crash
        self.statements.append((sql, parameters))
        if self.lock and not in_transaction:
            self.lock -= 1
            if not self.lock:
                self.lock_now()
        if self.fuse:
            self.fuse -= 1
            self.dead = not self.fuse
            if self.dead and not self.after:
                raise Crash

    def behind(self) -> None:
        """Note that the statement was executed.

        Raises:
            Crash: The host ends here.
        """
        if self.dead:
            raise Crash

    def kill(self) -> None:
        """End the host at once, in the middle of its own code.

        Raises:
            Crash: Always.
        """
        self.watched = self.dead = True
        raise Crash


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened, in true time, which no clock of the simulation shows."""

    day: float
    """Days since the start."""
    host: str
    what: str
    subject: str = ""
    """The session, where it is about one."""
    until: float | None = None
    """When it is over, in days since the start: the lease of a claim, the sleep of a host."""


@dataclass(slots=True)
class World:
    """Everything that is simulated: one ledger, its hosts, true time, and the checker that watches."""

    root: Path
    seed: int
    faults: frozenset[Fault]
    hosts: list[Host]
    checker: Checker
    now: datetime = START
    """True time, which no host sees."""
    step: int = 0
    """The number of the step that comes next."""
    advance: Callable[[], bool] = lambda: False
    """Runs the next step; False when there is none."""
    depth: int = 0
    blocker: sqlite3.Connection | None = None
    trouble: bool = False
    """Whether the present step has met a lock or a full disk on purpose."""
    counts: Counter[str] = field(default_factory=Counter)
    """How often what happened."""
    marks: list[Mark] = field(default_factory=list)

    def happens(self, rng: Random, fault: Fault, chance: float) -> bool:
        """Tell whether a fault happens now. The draw is the same when the fault is switched off."""
        drawn = rng.random() < chance
        return drawn and fault in self.faults

    def count(self, what: str) -> None:
        """Count one occurrence."""
        self.counts[what] += 1

    def mark(self, host: Host, what: str, subject: str = "", until: datetime | None = None) -> None:
        """Note for the picture what happened to a host, in true time."""
        self.marks.append(Mark(self.days, host.name, what, subject, None if until is None else _days(until)))

    def fault(self, host: Host, what: str, until: datetime | None = None) -> None:
        """Note a fault, and count it."""
        self.count(f"fault.{what}")
        self.mark(host, what, until=until)

    @property
    def days(self) -> float:
        """True time since the start, in days."""
        return _days(self.now)

    def clock(self, host: Host) -> datetime:
        """Return what a host's clock shows."""
        if host.jump and self.now >= host.jumps_until:
            host.jump = timedelta(0)
        return self.now + host.skew + host.jump

    def meanwhile(self, steps: int) -> None:
        """Let the others go on while a callable of one host takes its time."""
        self.unlock()
        self.checker.after_step()  # what this host has done so far comes before what the others do
        self.depth += 1
        if self.depth <= _DEPTH:
            for _ in range(steps):
                if not self.advance():
                    break
        self.depth -= 1

    # Starting and ending a host

    def start(self, host: Host) -> Ledger:
        """Open the ledger for a host, as a new process would.

        Raises:
            Crash: It did not come that far.
            Refusal: The ledger is locked.
        """
        host.starts += 1
        ids = SeededIds(hash_of(self.seed, host.name, host.starts))
        host.ledger = Ledger.open(
            self.root,
            clock=partial(self.clock, host),
            ids=ids,
            actor=host.name,
            busy_timeout_seconds=0,
            connect=partial(self._connect, host),
        )
        for connection in host.connections:  # nothing in a simulation loses power, so nothing waits for the disk
            connection.command("PRAGMA synchronous = OFF")
        return host.ledger

    def _connect(self, host: Host, *arguments: object, **options: object) -> Connection:
        options |= {"factory": Connection, "cached_statements": 512}
        connection: Connection = sqlite3.connect(*arguments, **options)  # type: ignore[call-overload]
        connection.host = host
        host.connections.append(connection)
        return connection

    def end(self, host: Host) -> None:
        """End a host: its connections are dropped without a commit, and its memory is gone."""
        self.calm(host)
        for connection in host.connections:
            with suppress(sqlite3.ProgrammingError):  # it was closed by the package
                connection.rollback()  # from Python 3.12 on, closing alone keeps the lock while a cursor lives
            connection.close()
        host.connections.clear()
        host.ledger = None
        host.claims.clear()
        host.attempts.clear()
        host.decision = -1

    # What goes wrong with the ledger

    def fill_disk(self, host: Host) -> None:
        """Let the file not grow, for one host."""
        self.trouble = True
        for connection in host.connections:
            connection.command("PRAGMA max_page_count = 1")  # SQLite takes the present size where that is larger

    def lock_after(self, host: Host, statements: int) -> None:
        """Let another connection take the write lock before one of the next statements."""
        host.watched, host.lock, host.lock_now = True, statements, self._lock

    def _lock(self) -> None:
        if self.blocker is None:
            self.blocker = sqlite3.connect(self.checker.path, isolation_level=None, timeout=0)
            self.blocker.execute("PRAGMA synchronous = OFF")
        with suppress(sqlite3.OperationalError):
            self.blocker.execute("BEGIN IMMEDIATE")
            self.trouble = True

    def unlock(self) -> None:
        """Give the lock back."""
        if self.blocker is not None and self.blocker.in_transaction:
            self.blocker.execute("ROLLBACK")

    def calm(self, host: Host) -> None:
        """Let nothing go wrong any more with the ledger of a host."""
        self.unlock()
        host.watched = host.dead = host.after = False
        host.fuse = host.lock = 0
        host.statements.clear()
        if self.trouble:
            for connection in host.connections:
                connection.command(f"PRAGMA max_page_count = {_NO_LIMIT}")

    def close(self) -> None:
        """Close every connection."""
        for host in self.hosts:
            self.end(host)
        if self.blocker is not None:
            self.blocker.close()


def _days(at: datetime) -> float:
    return (at - START).total_seconds() / 86_400


def hash_of(*parts: object) -> int:
    """Return a number for these parts, the same in every process."""
    return Random("/".join(map(str, parts))).getrandbits(48)  # noqa: S311 - repeatable on purpose
