"""The ledger: one SQLite file that holds the evidence of every mechanism and survives a restart.

It promises that what commits is whole, ordered and durable on this machine's disk, that nested writes stand or fall
together, and that a client which leaves the schema alone cannot rewrite what is append-only. It does not promise
anything about other machines, a disk that lies about flushing, or a client that drops a trigger.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from threading import get_ident
from types import TracebackType

from .clock import Clock, as_utc, from_text, seconds, system_clock, to_text
from .errors import Category, Refusal, shorten, shown
from .ids import Ids, SystemIds
from .schema import APPLICATION_ID, SCHEMA, VERSION

Connect = Callable[..., sqlite3.Connection]
"""Makes a connection from the arguments of `sqlite3.connect`."""

FOLDER = ".sovereign"
FILE = "ledger.db"
DEFAULT_MAX_CLOCK_SKEW_SECONDS = 5
MAX_ID_CHARACTERS = 200
MAX_JSON_DEPTH = 100
"""Most levels of a JSON value; the limits of SQLite and of Python's stack are far above it."""
_OLDEST_SQLITE = (3, 37, 0)  # STRICT tables
_MAX_PENDING_REFUSALS = 1000
_MOST_REPEATED_IDS = 10_000


def checked_id(name: str, value: object) -> str:
    """Return an id after checking it: printable text that is not blank, at most 200 characters.

    Parameters:
        name: The argument's name, for the message.
        value: What the caller gave.

    Raises:
        TypeError: The value is no `str`.
        ValueError: It is blank, has unprintable characters or outer white space, or is longer than 200 characters.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text, not {type(value).__name__}: {shorten(value)}")
    if not value.strip() or value != value.strip() or not value.isprintable() or len(value) > MAX_ID_CHARACTERS:
        raise ValueError(
            f"{name} must be 1 to {MAX_ID_CHARACTERS} printable characters without outer blanks: {shorten(value)}"
        )
    return value


def checked_depth(name: str, value: object) -> None:
    """Refuse a JSON value that is nested so deeply that a reader with a deep stack could not read it back.

    Raises:
        ValueError: It holds more than 100 levels of lists and objects, or itself.
    """
    pending = [(value, 1)]
    while pending:
        item, depth = pending.pop()
        if not isinstance(item, dict | list | tuple):
            continue
        if depth > MAX_JSON_DEPTH:
            raise ValueError(f"{name} must not be nested more than {MAX_JSON_DEPTH} levels deep, nor hold itself")
        pending.extend((part, depth + 1) for part in (item.values() if isinstance(item, dict) else item))


class Transaction:
    """The statements of one open transaction. SQL takes named parameters, given as keywords."""

    __slots__ = ("_ledger", "_write")

    def __init__(self, ledger: Ledger, *, write: bool) -> None:
        self._ledger = ledger
        self._write = write

    def run(self, sql: str, **params: object) -> int:
        """Execute one statement and return how many rows it changed.

        Raises:
            Refusal: `category="ledger"` for any SQLite error, or when the transaction was rolled back before.
        """
        return self._ledger._execute(sql, params, write=self._write).rowcount  # noqa: SLF001 - one module

    def one(self, sql: str, **params: object) -> sqlite3.Row | None:
        """Execute one statement and return its first row, or None.

        Raises:
            Refusal: As `run`.
        """
        rows = self.all(sql, **params)
        return rows[0] if rows else None

    def all(self, sql: str, **params: object) -> list[sqlite3.Row]:
        """Execute one statement and return its rows.

        Raises:
            Refusal: As `run`.
        """
        with _as_refusal(self._ledger.path):
            return self._ledger._execute(sql, params, write=self._write).fetchall()  # noqa: SLF001

    def event(self, kind: str, subject: str, *, at: datetime, **detail: object) -> None:
        """Record one state change, in this transaction.

        Parameters:
            kind: `mechanism.verb`, such as `session.claimed`.
            subject: The id that changed.
            at: The instant of the call that changed it.
            detail: Ids, numbers, digests and verdicts as JSON; never content, messages or credentials.

        Raises:
            Refusal: As `run`.
            TypeError: A detail is nothing that JSON has.
            ValueError: A number is not finite, or a detail is nested too deeply.
        """
        try:
            text = json.dumps(detail, sort_keys=True, separators=(",", ":"), allow_nan=False)
        except RecursionError:
            raise ValueError(f"detail must not be nested so deeply, in the event {shorten(kind)}") from None
        self.run(
            "INSERT INTO events (at, kind, actor, subject, detail) VALUES (:at, :kind, :actor, :subject, :detail)",
            at=to_text(at),
            kind=kind,
            actor=self._ledger.actor,
            subject=subject,
            detail=text,
        )


class Ledger:
    """An open ledger. It belongs to the thread and the process that opened it; use it as a context manager.

    Make one with `Ledger.open`, never with the constructor.
    """

    path: Path
    """The database file, absolute."""
    connect: Connect
    """What made its connection, and makes that of a second one on the same file."""
    ids: Ids
    actor: str
    """Who the events name."""
    read_only: bool
    max_clock_skew: timedelta
    """Added before another host's lease counts as expired; fixed when the ledger is created."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        *,
        clock: Clock,
        ids: Ids,
        actor: str,
        read_only: bool,
        connect: Connect = sqlite3.connect,
    ) -> None:
        self.path = path
        self.connect = connect
        self.ids = ids
        self.actor = actor
        self.read_only = read_only
        self.max_clock_skew = timedelta(seconds=DEFAULT_MAX_CLOCK_SKEW_SECONDS)
        self._clock = clock
        self._connection: sqlite3.Connection | None = connection
        self._owner = (os.getpid(), get_ident())
        self._mode = ""  # "", "read" or "write": the kind of the outermost transaction
        self._doomed = False
        self._pending: list[tuple[Refusal, datetime]] = []

    # Opening and closing

    @classmethod
    def open(
        cls,
        root: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        ids: Ids | None = None,
        actor: str = "local",
        read_only: bool = False,
        busy_timeout_seconds: float = 5,
        max_clock_skew_seconds: float | None = None,
        connect: Connect = sqlite3.connect,
    ) -> Ledger:
        """Open the ledger under a directory; create what is missing. Any number of processes may do so at once.

        Parameters:
            root: A directory. The ledger is `<root>/.sovereign/ledger.db`; the folder gets mode 0700, the files 0600.
            clock: Where the time comes from when a call has no `now`; the system's wall clock by default.
            ids: Where ids and jitter come from; the system's randomness by default.
            actor: The name under which events are recorded.
            read_only: Create and change nothing; the ledger must exist.
            busy_timeout_seconds: How long a write waits for another process, 0 to an hour.
            max_clock_skew_seconds: How far the clocks of two hosts may differ. Kept when the ledger is created
                (5 seconds by default); later it must be omitted or be the same.
            connect: What makes the connection, called as `sqlite3.connect` is. A simulation gives its own, to end it
                between two statements.

        Returns:
            The open ledger.

        Raises:
            Refusal: `category="ledger"`: the place is not a ledger, is newer than this package, is read-only, is
                missing (with `read_only`), is locked for too long, or has another clock skew. Nothing was changed.
            TypeError: `root` is no path, or a number is none.
            ValueError: A number or `actor` is out of its range, or `root` is blank.
        """
        if not isinstance(root, str | os.PathLike):
            raise TypeError(f"root must be a path, not {type(root).__name__}: {shown(root)}")
        folder_text = os.fspath(root)
        if not isinstance(folder_text, str):
            raise TypeError(f"root must be a path of text, not of bytes: {shown(root)}")
        if not folder_text or "\0" in folder_text:
            raise ValueError(f"root must be a path without NUL characters and not empty: {shown(folder_text)}")
        try:
            os.fsencode(folder_text)
        except UnicodeEncodeError:
            raise ValueError(f"root must be a path that a file system can hold: {shown(folder_text)}") from None
        checked_id("actor", actor)
        if clock is not None and not callable(clock):
            raise TypeError(f"clock must be a function, not {type(clock).__name__}: {shown(clock)}")
        timeout = seconds("busy_timeout_seconds", busy_timeout_seconds, minimum=0, maximum=3600).total_seconds()
        skew = None
        if max_clock_skew_seconds is not None:
            skew = seconds("max_clock_skew_seconds", max_clock_skew_seconds, minimum=0).total_seconds()
        with _as_refusal(Path(folder_text)):
            path = Path(os.path.abspath(folder_text)) / FOLDER / FILE  # noqa: PTH100 - resolve() would follow links
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise _refuse(path, f"SQLite {sqlite3.sqlite_version} is too old", "use a Python with SQLite 3.37 or newer")
        with _as_refusal(path):
            connection = _connect_read_only(path, timeout, connect) if read_only else _connect(path, timeout, connect)
        ledger = cls(
            path,
            connection,
            clock=clock or system_clock,
            ids=ids or SystemIds(),
            actor=actor,
            read_only=read_only,
            connect=connect,
        )
        try:
            ledger._prepare(timeout, skew)
        except BaseException:
            ledger.close()
            raise
        return ledger

    def _prepare(self, timeout: float, skew: float | None) -> None:
        """Bring the file to this package's version and set up the connection."""
        connection = self._live()
        with _as_refusal(self.path):
            version = _version(self.path, connection)
            if version == 0:
                if self.read_only:
                    remedy = (
                        "choose another directory, or restore a backup; opening it for writing creates an empty ledger"
                    )
                    raise _refuse(self.path, "it holds no ledger", remedy)
                _use_wal(connection, timeout)
            if self.read_only:
                connection.execute("PRAGMA query_only = ON")
            else:
                connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA recursive_triggers = ON")
        if version == 0:
            self._migrate(DEFAULT_MAX_CLOCK_SKEW_SECONDS if skew is None else skew)
        with self.read() as tx:
            row = tx.one("SELECT value FROM settings WHERE name = 'max_clock_skew_seconds'")
        kept = float(DEFAULT_MAX_CLOCK_SKEW_SECONDS)
        if row is not None:
            with readable("max_clock_skew_seconds"):
                kept = seconds("max_clock_skew_seconds", float(row["value"]), minimum=0).total_seconds()
        if skew is not None and skew != kept:
            raise _refuse(
                self.path,
                f"it was created with a clock skew of {kept:g} seconds, not {skew:g}",
                "omit max_clock_skew_seconds or give the same number",
            )
        self.max_clock_skew = timedelta(seconds=kept)

    def _migrate(self, skew: float) -> None:
        """Create the schema, unless another process was first: the version is read again under the write lock."""
        with self.write() as tx:
            if _version(self.path, self._live()) == VERSION:
                return
            for statement in SCHEMA:
                tx.run(statement)
            tx.run("INSERT INTO settings (name, value) VALUES ('max_clock_skew_seconds', :value)", value=repr(skew))
            tx.run(f"PRAGMA application_id = {APPLICATION_ID}")
            tx.run(f"PRAGMA user_version = {VERSION}")
            tx.event("ledger.created", "ledger", at=self.now(), version=VERSION, max_clock_skew_seconds=skew)

    def close(self) -> None:
        """Close the file; an open transaction is rolled back. Closing twice does nothing."""
        connection, self._connection = self._connection, None
        if connection is not None and self._owner[0] == os.getpid():
            # In a forked child the handle belongs to the parent: closing it there would drop the parent's locks.
            connection.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # Time

    def now(self, now: datetime | None = None) -> datetime:
        """Return the instant of a call: the explicit one, checked, or the ledger's clock.

        Raises:
            TypeError: `now` is no `datetime`.
            ValueError: `now` is naive.
        """
        return as_utc("the ledger's clock", self._clock()) if now is None else as_utc("now", now)

    # Transactions

    @property
    def in_transaction(self) -> bool:
        """Whether a read or a write is open."""
        return bool(self._mode)

    @property
    def in_write(self) -> bool:
        """Whether a write is open."""
        return self._mode == "write"

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """Open a write transaction (BEGIN IMMEDIATE), or join the one that is open.

        Any exception that leaves a block rolls the whole transaction back at once, also when an outer block catches
        it: the outer block is then refused at its next statement and at its end.

        Raises:
            Refusal: `category="ledger"`: inside `read()`, on a read-only ledger, after a nested block failed, when the
                lock is held for longer than the busy timeout, or for any other SQLite error.
        """
        connection = self._live()
        if self.read_only:
            raise _refuse(self.path, "it was opened read-only", "open it without read_only to write")
        if self._mode == "read":
            raise _refuse(self.path, "a write cannot start inside read()", "end the read first")
        if self._mode == "write":
            yield from self._nested_write()
            return
        self._doomed = False
        try:
            try:
                with _as_refusal(self.path):
                    if connection.in_transaction:  # left by an interrupt between BEGIN and the body of an earlier call
                        connection.execute("ROLLBACK")
                    connection.execute("BEGIN IMMEDIATE")
                self._mode = "write"
                yield Transaction(self, write=True)
                self._refuse_if_doomed()
                self._live()  # a child that was forked inside the block must not commit for its parent
                with _as_refusal(self.path):
                    connection.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
        finally:
            self._mode = ""
            self._record_pending()

    def _nested_write(self) -> Iterator[Transaction]:
        self._refuse_if_doomed()
        try:
            yield Transaction(self, write=True)
            self._refuse_if_doomed()
        except BaseException:
            self._roll_back()
            raise

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        """Open one consistent snapshot, or join the transaction that is open.

        Raises:
            Refusal: `category="ledger"` for any SQLite error.
        """
        connection = self._live()
        if self._mode:
            self._refuse_if_doomed()
            yield Transaction(self, write=self._mode == "write")
            return
        try:
            with _as_refusal(self.path):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                connection.execute("PRAGMA query_only = ON")
                connection.execute("BEGIN")
                connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()  # BEGIN alone takes no snapshot
            self._mode = "read"
            self._doomed = False
            yield Transaction(self, write=False)
        finally:
            self._mode = ""
            if self._owner == (os.getpid(), get_ident()):
                with suppress(sqlite3.Error):
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    if not self.read_only:
                        connection.execute("PRAGMA query_only = OFF")
            self._record_pending()

    def refuse_inside_transaction(self, function: str) -> None:
        """Refuse what runs a callable of the caller inside a transaction, or where its result could not be written.

        Raises:
            Refusal: `category="ledger"` inside `read()` or `write()`, and on a ledger that is closed, read-only or of
                another thread or process.
        """
        self._live()
        if self.read_only:
            raise _refuse(self.path, "it was opened read-only", "open it without read_only to write")
        if self._mode:
            raise _refuse(
                self.path,
                f"{function} runs the caller's code and cannot start inside a transaction",
                "call it outside of read() and write()",
            )

    def _live(self) -> sqlite3.Connection:
        if self._connection is None:
            raise _refuse(self.path, "it is closed", "open it again")
        if self._owner != (os.getpid(), get_ident()):
            raise _refuse(
                self.path,
                "a Ledger belongs to the thread and process that opened it",
                "open one in each thread and process",
            )
        return self._connection

    def _refuse_if_doomed(self) -> None:
        if self._doomed:
            raise _refuse(
                self.path,
                "an exception left a nested write(), so the whole transaction was rolled back",
                "let the exception leave the outer write() too, and start again",
            )

    def _roll_back(self) -> None:
        self._doomed = True
        connection = self._connection
        if connection is not None and self._owner == (os.getpid(), get_ident()):
            with suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def _execute(self, sql: str, params: dict[str, object], *, write: bool) -> sqlite3.Cursor:
        connection = self._live()
        if not self._mode or (write and self._mode != "write"):
            raise _refuse(self.path, "the transaction has ended", "use it only inside its with block")
        self._refuse_if_doomed()
        try:
            with _as_refusal(self.path):
                cursor = connection.execute(sql, params)
        except (OverflowError, UnicodeEncodeError) as error:
            raise ValueError(f"a parameter cannot be stored: {error}") from error
        if not connection.in_transaction:
            self._doomed = True
            raise _refuse(
                self.path,
                "a statement ended the transaction by itself",
                "leave BEGIN, COMMIT and ROLLBACK to write() and read()",
            )
        return cursor

    # Refusals as evidence

    def _record_pending(self) -> None:
        """Write the events of refusals, in a transaction of their own; keep them for later where that is impossible."""
        if self._mode or not self._pending or self.read_only or self._connection is None:
            return
        pending, self._pending = self._pending, []
        try:
            with self.write() as tx:
                for refusal, at in pending:
                    tx.event("refused", refusal.subject, at=at, category=str(refusal.category), why=refusal.why)
        except Refusal as failure:
            self._pending = pending[-_MAX_PENDING_REFUSALS:]
            for refusal, _ in pending:
                refusal.add_note(f"This refusal is not yet recorded: {failure}")


def fresh_id(ledger: Ledger, kind: str, is_taken: Callable[[str], bool]) -> str:
    """Return a new id that nothing has had: a seeded source starts again when a ledger is opened again.

    Parameters:
        ledger: Whose source of ids to ask.
        kind: What the id is for.
        is_taken: Whether an id is in use.

    Raises:
        Refusal: `category="ledger"`: the source repeats itself.
        TypeError: The source gave no text.
        ValueError: The source gave no printable id.
    """
    for _ in range(_MOST_REPEATED_IDS):
        candidate = checked_id(f"an id of kind {kind}", ledger.ids.new(kind))
        if not is_taken(candidate):
            return candidate
    why = f"its source of ids gave {_MOST_REPEATED_IDS} ids in a row that are taken"
    raise _refuse(ledger.path, why, "open the ledger with another source of ids")


def record_refusal(ledger: Ledger, refusal: Refusal, *, now: datetime | None = None) -> None:
    """Record a refusal as an event, in a transaction of its own once the outermost one has ended, committed or not.

    A refusal of category `ledger` is not recorded: the ledger is what failed. One that cannot be written (read-only,
    locked) gets a note and is tried again after the next transaction.

    Parameters:
        ledger: Where to record it.
        refusal: What was refused; the same object is recorded once.
        now: The instant of the call that was refused.

    Raises:
        TypeError: `refusal` is no `Refusal`.
    """
    if not isinstance(refusal, Refusal):
        raise TypeError(f"refusal must be a Refusal, not {type(refusal).__name__}: {shown(refusal)}")
    if refusal.category is Category.LEDGER or refusal.recorded:
        return
    refusal.recorded = True
    if ledger.read_only:
        refusal.add_note("This refusal is not recorded: the ledger was opened read-only.")
        return
    if ledger._connection is None:  # noqa: SLF001 - one module
        refusal.add_note("This refusal is not recorded: the ledger is closed.")
        return
    ledger._pending.append((refusal, ledger.now(now)))  # noqa: SLF001
    ledger._record_pending()  # noqa: SLF001


@contextmanager
def recorded(ledger: Ledger, now: datetime | None = None) -> Iterator[None]:
    """Record any refusal that leaves the block, and let it go on."""
    try:
        yield
    except Refusal as refusal:
        record_refusal(ledger, refusal, now=now)
        raise


@contextmanager
def readable(subject: object) -> Iterator[None]:
    """Turn the errors of reading a stored row into a refusal: another client may have written anything there.

    Parameters:
        subject: What the row is about.
    """
    try:
        yield
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        why = f"its row in the ledger cannot be read ({shorten(error)})"
        raise Refusal(Category.LEDGER, subject, why, "put the row right, or restore a backup") from error


def stored_instant(text: str) -> datetime:
    """Return an instant that the ledger holds.

    Raises:
        Refusal: `category="ledger"`: another client wrote something else there.
    """
    with readable(text):
        return from_text(text)


def payload_differs(row: sqlite3.Row, encoded: str) -> bool:
    """Tell whether a payload is another than that of a row, also where an archive holds that and only a digest stayed.

    Parameters:
        row: A row with `payload` and `payload_sha256`.
        encoded: The other payload, as it would be stored.
    """
    if row["payload_sha256"] is None:
        return bool(row["payload"] != encoded)
    return bool(row["payload_sha256"] != hashlib.sha256(encoded.encode()).hexdigest())


# Opening, in small steps


def _refuse(path: Path, why: str, remedy: str) -> Refusal:
    return Refusal(Category.LEDGER, path, why, remedy)


@contextmanager
def _as_refusal(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and of the file system into refusals that say what helps."""
    try:
        yield
    except sqlite3.Error as error:
        why, remedy = _explain(error)
        raise _refuse(path, why, remedy) from error
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        remedy = "choose a directory that this user may write"
        if error.errno in (errno.EEXIST, errno.ENOTDIR):
            why, remedy = "it is not a directory", "choose a directory"
        elif error.errno == errno.ENOENT:
            why, remedy = "there is no ledger", "open it once for writing to create one, or choose another directory"
        raise _refuse(path, why, remedy) from error


def _explain(error: sqlite3.Error) -> tuple[str, str]:
    name = getattr(error, "sqlite_errorname", "") or ""
    text = str(error)[:300]  # it may quote a whole statement
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")):
        return (
            f"{text or 'database is locked'} for longer than the busy timeout",
            "retry, or raise busy_timeout_seconds",
        )
    if name.startswith(("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_CANTOPEN", "SQLITE_AUTH")):
        return f"{text}", "choose a place that this user may write, or open it with read_only"
    if name.startswith("SQLITE_FULL"):
        return f"{text}", "free some space; nothing of this transaction was kept"
    if name.startswith("SQLITE_IOERR"):
        return f"{text}", "look at the disk and free some space, and then whether this transaction was kept"
    if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
        return f"{text}", "choose another directory, or restore a backup; nothing was changed"
    if name.startswith("SQLITE_CONSTRAINT"):
        return text, "leave recorded rows as they are and use the functions of this package"
    return text or type(error).__name__, "check the statement and its parameters"


def _connect(path: Path, timeout: float, connect: Connect) -> sqlite3.Connection:
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    # SQLite gives its -wal and -shm files the mode of the database, so that one file decides for all three.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW, 0o600))
    return _sqlite(path, "rw", timeout, connect)


def _connect_read_only(path: Path, timeout: float, connect: Connect) -> sqlite3.Connection:
    """Connect so that nothing is left behind.

    A read-only connection to a WAL database creates -wal and -shm and does not remove them, while a writable one does;
    so the writable one is used (with query_only) unless a -wal exists already. Where the directory itself is read-only
    and has no -wal, nobody is writing, and only `immutable` can read.
    """
    path.stat()
    if _wal(path).exists():
        return _sqlite(path, "ro", timeout, connect)
    for mode in ("rw", "ro", "ro&immutable=1"):
        connection = _sqlite(path, mode, timeout, connect)
        try:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
        except sqlite3.OperationalError as error:
            connection.close()
            if not error.sqlite_errorname.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN")):
                raise
            if "immutable" in mode or _wal(path).exists():
                raise
        else:
            return connection
    raise AssertionError("unreachable: the last mode returns or raises")


def _wal(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _sqlite(path: Path, mode: str, timeout: float, connect: Connect) -> sqlite3.Connection:
    connection = connect(
        f"{path.as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=timeout, check_same_thread=False
    )
    connection.row_factory = sqlite3.Row
    return connection


def _version(path: Path, connection: sqlite3.Connection) -> int:
    """Return the schema's version, 0 for an empty file; refuse what is not a ledger or is newer."""
    # One snapshot: another process may be creating the schema between two of these reads.
    own = not connection.in_transaction
    if own:
        connection.execute("BEGIN")
    try:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        empty = connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is None
    finally:
        if own and connection.in_transaction:
            connection.execute("ROLLBACK")
    if application == 0 and version == 0 and empty:
        return 0
    if application != APPLICATION_ID:
        raise _refuse(path, "the file is not a ledger of this package", "choose another directory")
    if version > VERSION:
        raise _refuse(
            path,
            f"its schema has version {version}, and this package knows {VERSION}",
            "install a newer sovereign-agent",
        )
    return version


def _use_wal(connection: sqlite3.Connection, timeout: float) -> None:
    """Switch to WAL. SQLite does not wait for the lock this needs, so we do."""
    deadline = time.monotonic() + max(timeout, 1.0)
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return
