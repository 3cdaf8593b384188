"""Archive: older events and closed rows move to a file of their own, and the ledger records that they left.

It promises that a row leaves the ledger only in the transaction that records the digest of a complete file which holds
that very row. So a kill at any point leaves the ledger as it was, or both, and the same call again completes the first.
What a later call may ask for stays: counters, ids of deliveries and signals, results of sessions, transcripts and
memories. It does not promise that anybody keeps the file, nor that the ledger's own file shrinks: SQLite uses its pages
again. What is removed is held in memory once, and other writers wait while it is compared and removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from glob import escape
from pathlib import Path

from .clock import as_utc, from_text, to_text
from .errors import Category, Refusal, shorten
from .ledger import Ledger, Transaction, readable

APPLICATION_ID = 0x53564141
"""Marks a file as an archive (`PRAGMA application_id`): "SVAA" in ASCII."""
VERSION = 1
"""`PRAGMA user_version` of an archive."""

_Rows = Mapping[str, Sequence[sqlite3.Row]]


@dataclass(frozen=True, slots=True)
class Archive:
    """One archive: a file, and what it holds."""

    path: Path
    before: datetime
    """Everything in it was over before this instant."""
    digest: str
    """SHA-256 of its rows: one line of JSON for `before` and one for each row, table by table, by key."""
    counts: dict[str, int]
    """How many rows of each table."""
    number: int | None = None
    """Its number in the ledger; None as long as no ledger is known to have recorded it."""
    archived_at: datetime | None = None
    """When its rows left the ledger; None as long as that is not known."""

    @property
    def rows(self) -> int:
        """How many rows in all."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class Part:
    """What of one table is archived."""

    table: str
    key: str
    """SQL for the text that names a row."""
    order: str
    """SQL for the order in which the digest reads the rows."""
    closed: str
    """SQL for "over before `:before`". Such a row never changes again, so it may be copied first and removed later."""
    payload_only: bool = False
    """The row stays without its payload, because its id must stay taken."""


# The newest row of a table stays where the next number or the next range is counted from it. What an automation ends
# with is also what its definition goes on from, so the run of its latest slot stays as well.
_CLOSED_RUN = (
    "status IN ('SUCCEEDED', 'ABANDONED') AND ended_at < :before AND run_id IS NOT "
    "(SELECT run_id FROM automation_slots AS s WHERE s.automation_id = automation_runs.automation_id "
    "ORDER BY seq DESC LIMIT 1)"
)
_DELIVERED = "status = 'DELIVERED' AND ended_at < :before AND enqueued_at IS NOT NULL AND payload_sha256 IS NULL"

PARTS = (
    Part(
        "events",
        "CAST(seq AS TEXT)",
        "seq",
        "at < :before AND kind NOT LIKE 'ledger.%' AND seq < (SELECT max(seq) FROM events)",
    ),
    Part("automation_runs", "run_id", "run_id", _CLOSED_RUN),
    Part(
        "automation_slots",
        "automation_id || '#' || seq",
        "automation_id, seq",
        "(run_id IS NULL AND noted_at < :before AND seq < "  # noqa: S608 - our own text
        "(SELECT max(seq) FROM automation_slots AS s WHERE s.automation_id = automation_slots.automation_id)) "
        f"OR run_id IN (SELECT run_id FROM automation_runs WHERE {_CLOSED_RUN})",
    ),
    Part("session_claims", "session_id", "session_id", "ended = 'FINISHED' AND ended_at < :before"),
    Part(
        "refused_results",
        "CAST(refusal_seq AS TEXT)",
        "refusal_seq",
        "refused_at < :before AND refusal_seq < (SELECT max(refusal_seq) FROM refused_results)",
    ),
    Part(
        "delivery_attempts",
        "attempt_id",
        "attempt_id",
        f"delivery_id IN (SELECT delivery_id FROM deliveries WHERE {_DELIVERED})",  # noqa: S608
    ),
    Part("deliveries", "delivery_id", "delivery_id", _DELIVERED, payload_only=True),
    Part(
        "signals",
        "signal_id",
        "seq",
        "status IN ('SUCCEEDED', 'DECLINED') AND ended_at < :before AND payload_sha256 IS NULL",
        payload_only=True,
    ),
)
"""Every table of which something is archived. Nothing of any other table ever is."""


def archive_before(
    ledger: Ledger,
    before: datetime,
    *,
    to: str | os.PathLike[str] | None = None,
    now: datetime | None = None,
) -> Archive | None:
    """Move what was over before an instant to a file, and record that it left.

    The file is complete, durable and verified before anything leaves the ledger. If a call was killed after that, the
    same call again finds the file, compares it row by row with the ledger, and goes on from there.

    Parameters:
        ledger: The ledger, opened for writing and outside any transaction.
        before: Aware instant, not ahead of now. A row that ended at this very instant stays.
        to: The file. By default one beside the ledger, named for `before`. It is never overwritten, nor added to.
        now: Aware instant of the call; the ledger's clock when omitted.

    Returns:
        The archive as the ledger records it; the earlier one, and nothing is done, where the file is recorded already;
        None where nothing was over before that instant.

    Raises:
        Refusal: `category="ledger"`: the file is something else, of another instant or ledger, or damaged; it cannot
            be written, or the ledger cannot. Nothing was removed.
        TypeError: An argument has the wrong type.
        ValueError: `before` is naive or lies ahead of `now`.
    """
    at = ledger.now(now)
    limit = as_utc("before", before)
    if limit > at:
        raise ValueError(f"before must not lie ahead of now, which is {to_text(at)}: {to_text(limit)}")
    path = _target(ledger, limit, to)
    if ledger.in_transaction:
        raise _refuse(ledger.path, "an archive cannot start inside a transaction", "call it outside read() and write()")
    if ledger.read_only:
        raise _refuse(ledger.path, "it was opened read-only", "open it without read_only to archive")
    with _refusing(path):
        there = path.exists()
    if not there:
        with ledger.read() as tx:
            rows = {part.table: _closed(tx, part, limit) for part in PARTS}
            columns = {part.table: _columns(tx, part) for part in PARTS}
        if not any(rows.values()):
            return None
        _write_file(path, limit, columns, rows)
    _settle(path)
    found, held = _verify(path)
    if found.before != limit:
        raise _refuse(path, f"it is an archive of what was before {to_text(found.before)}", "choose another file")
    return _remove(ledger, found, held, at)


def verify_archive(path: str | os.PathLike[str]) -> Archive:
    """Read an archive whole and compare its rows with the digest that it states; nothing is changed.

    Parameters:
        path: The file.

    Returns:
        What it holds. Whether a ledger has recorded this digest, `list_archives` tells.

    Raises:
        Refusal: `category="ledger"`: it is missing, unreadable, no archive, or not what its digest was made of.
    """
    return _verify(_absolute(path))[0]


def list_archives(ledger: Ledger) -> tuple[Archive, ...]:
    """Return every archive that the ledger has recorded, the first one first.

    Parameters:
        ledger: The ledger; a read-only one will do.

    Returns:
        Archives, each with the path under which it was written; it may have been moved since.
    """
    with ledger.read() as tx:
        rows = tx.all("SELECT * FROM archives ORDER BY archive")
    return tuple(map(_recorded, rows))


def _recorded(row: sqlite3.Row) -> Archive:
    with readable(f"archive {row['archive']}"):
        return Archive(
            Path(row["file"]),
            from_text(row["before"]),
            row["digest"],
            {part.table: json.loads(row["counts"])[part.table] for part in PARTS},
            row["archive"],
            from_text(row["archived_at"]),
        )


def digest_of(before: datetime, rows: _Rows) -> str:
    """Return the SHA-256 of rows as 64 hexadecimal digits: of what they say, not of the bytes of a database file."""
    digest = hashlib.sha256()
    lines = [["before", to_text(before)]]
    lines += [[part.table, *row] for part in PARTS for row in rows[part.table]]
    for line in lines:
        digest.update(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()


# The ledger's side


def _remove(ledger: Ledger, found: Archive, rows: _Rows, at: datetime) -> Archive:
    """Remove from the ledger what a verified archive holds, and record it; all or nothing."""
    keys = _read_keys(found.path)
    with ledger.write() as tx:
        for done in list_archives(ledger):
            if done.digest == found.digest:
                return replace(done, path=found.path)
        kept = tx.one("SELECT coalesce(max(archive), 0) + 1 AS number FROM archives")
        assert kept is not None  # noqa: S101 - an aggregate always gives a row
        number = int(kept["number"])
        # The next event ends this archive, and until then the triggers let go of the rows listed in `archiving`.
        tx.run(
            "INSERT INTO archives (archive, before, file, digest, counts, event_seq, archived_at) "
            "SELECT :number, :before, :file, :digest, :counts, max(seq) + 1, :at FROM events",
            number=number,
            before=to_text(found.before),
            file=str(found.path),
            digest=found.digest,
            counts=json.dumps(found.counts, sort_keys=True),
            at=to_text(at),
        )
        for part in PARTS:
            tx.run(
                "INSERT INTO archiving (table_name, key) SELECT :name, value FROM json_each(:keys)",
                name=part.table,
                keys=json.dumps(keys[part.table]),
            )
        leaving = {part.table: _closed(tx, part, found.before, listed=True) for part in PARTS}
        if any(leaving[part.table] != rows[part.table] for part in PARTS):
            raise _refuse(found.path, "its rows are not those of this ledger", "choose another file")
        for part in reversed(PARTS):
            _let_go(tx, part, leaving[part.table])
        tx.run("DELETE FROM archiving")
        tx.event(
            "ledger.archived",
            "ledger",
            at=at,
            archive=number,
            before=to_text(found.before),
            digest=found.digest,
            counts=found.counts,
            rows=found.rows,
        )
    return replace(found, number=number, archived_at=at)


def _closed(tx: Transaction, part: Part, before: datetime, *, listed: bool = False) -> list[sqlite3.Row]:
    """Return the rows of a table that may leave, all of them or those that are listed in `archiving`."""
    among = f" AND {part.key} IN (SELECT key FROM archiving WHERE table_name = :name)" if listed else ""  # noqa: S608
    return tx.all(
        f"SELECT * FROM {part.table} WHERE ({part.closed}){among} ORDER BY {part.order}",  # noqa: S608 - our own text
        before=to_text(before),
        name=part.table,
    )


def _let_go(tx: Transaction, part: Part, rows: Sequence[sqlite3.Row]) -> None:
    """Remove the listed rows of a table, or their payloads."""
    if not part.payload_only:
        tx.run(
            f"DELETE FROM {part.table} WHERE {part.key} IN (SELECT key FROM archiving WHERE table_name = :name)",  # noqa: S608
            name=part.table,
        )
        return
    for row in rows:
        tx.run(
            f"UPDATE {part.table} SET payload = 'null', payload_sha256 = :digest WHERE {part.key} = :key",  # noqa: S608
            digest=hashlib.sha256(row["payload"].encode()).hexdigest(),
            key=row[part.key],
        )


def _columns(tx: Transaction, part: Part) -> str:
    """Return the columns of a table with their types, as SQL."""
    rows = tx.all(f"SELECT name, type FROM pragma_table_info('{part.table}')")  # noqa: S608
    return ", ".join(f"{row['name']} {row['type']}" for row in rows)


# The file's side


def _target(ledger: Ledger, before: datetime, to: str | os.PathLike[str] | None) -> Path:
    if to is not None:
        return _absolute(to)
    stamp = to_text(before).replace("-", "").replace(":", "").replace(".000000", "")
    return ledger.path.with_name(f"archive-before-{stamp}.db")


def _absolute(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"the file must be a path, not {type(path).__name__}: {shorten(path)}")
    text = os.fspath(path)
    if not text or "\0" in text:
        raise ValueError(f"the file must be a path without NUL characters and not empty: {shorten(text)}")
    return Path(os.path.abspath(text))  # noqa: PTH100 - resolve() would follow links


def _write_file(path: Path, before: datetime, columns: Mapping[str, str], rows: _Rows) -> None:
    """Write an archive so that it stands under its name whole, durable and never in place of another file, or not."""
    with _refusing(path):
        handle, name = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".part", dir=path.parent)
        try:
            os.close(handle)
            _fill(name, before, columns, rows)
            _flush(name)
            os.link(name, path)  # fails where a rename would replace
        except (FileExistsError, FileNotFoundError):
            if not path.exists():
                raise
            # Another process was first and may have cleared this one's part away; its file will do.
        finally:
            Path(name).unlink(missing_ok=True)


def _settle(path: Path) -> None:
    """Make the file's name durable, and clear away what calls that were killed have left."""
    with _refusing(path):
        for part in path.parent.glob(f"{escape(path.name)}.*.part"):
            part.unlink(missing_ok=True)
        _flush(path.parent)


def _fill(name: str, before: datetime, columns: Mapping[str, str], rows: _Rows) -> None:
    with closing(sqlite3.connect(name, isolation_level=None)) as file:
        file.execute("PRAGMA journal_mode = OFF")  # until it has its name, a file that is not whole is no loss
        file.execute("BEGIN")
        file.execute("CREATE TABLE archive (before TEXT NOT NULL, digest TEXT NOT NULL, counts TEXT NOT NULL) STRICT")
        for part in PARTS:
            file.execute(f"CREATE TABLE {part.table} ({columns[part.table]}) STRICT")
            marks = ", ".join("?" * (columns[part.table].count(",") + 1))
            file.executemany(f"INSERT INTO {part.table} VALUES ({marks})", map(tuple, rows[part.table]))  # noqa: S608
        file.execute(
            "INSERT INTO archive VALUES (?, ?, ?)",
            (to_text(before), digest_of(before, rows), json.dumps(_count(rows), sort_keys=True)),
        )
        file.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        file.execute(f"PRAGMA user_version = {VERSION}")
        file.execute("COMMIT")


def _verify(path: Path) -> tuple[Archive, _Rows]:
    """Return an archive and its rows, whose digest is the one that it states; refuse any other."""
    before, stated, rows = _read_file(path)
    digest = digest_of(before, rows)
    if digest != stated:
        raise _refuse(path, f"its rows have the digest {digest}, and it states {stated}", "restore it from a copy")
    return Archive(path, before, digest, _count(rows)), rows


def _read_file(path: Path) -> tuple[datetime, str, dict[str, list[sqlite3.Row]]]:
    """Return the instant, the digest and the rows that an archive states, without judging them."""
    with _opened(path) as file:
        if file.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise _refuse(path, "it is no archive", "choose another file")
        if file.execute("PRAGMA user_version").fetchone()[0] > VERSION:
            raise _refuse(path, "a newer sovereign-agent has written it", "install that version")
        stated = file.execute("SELECT before, digest FROM archive").fetchone()
        rows = {
            part.table: file.execute(f"SELECT * FROM {part.table} ORDER BY {part.order}").fetchall()  # noqa: S608
            for part in PARTS
        }
        return from_text(stated["before"]), stated["digest"], rows


def _read_keys(path: Path) -> dict[str, list[str]]:
    """Return what names the rows of an archive, by table."""
    with _opened(path) as file:
        return {
            part.table: [row[0] for row in file.execute(f"SELECT {part.key} FROM {part.table}")]  # noqa: S608
            for part in PARTS
        }


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    with _refusing(path):
        path.stat()
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as file:
            file.row_factory = sqlite3.Row
            yield file


def _flush(path: str | Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _count(rows: _Rows) -> dict[str, int]:
    return {part.table: len(rows[part.table]) for part in PARTS}


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Turn errors of the file system and of an archive's database into refusals."""
    try:
        yield
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise _refuse(path, why, "choose a file in a directory that this user may write") from error
    except (sqlite3.Error, TypeError, ValueError) as error:
        full = getattr(error, "sqlite_errorname", "").startswith(("SQLITE_FULL", "SQLITE_IOERR"))
        if full and not path.is_dir():
            raise _refuse(
                path, str(error), "free some space and archive again; the ledger still has its rows"
            ) from error
        raise _refuse(path, f"it cannot be read as an archive ({error})", "choose another file") from error


def _refuse(path: Path, why: str, remedy: str) -> Refusal:
    return Refusal(Category.LEDGER, path, why, remedy)
