"""The ledger: nesting, interruption, first open by many, append-only tables, and every clear refusal."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sovereign_agent.errors import Refusal
from sovereign_agent.ledger import Ledger, checked_id, record_refusal, recorded
from sovereign_agent.schema import APPLICATION_ID, VERSION

APPEND_ONLY = (
    "transcript_messages",
    "context_compactions",
    "session_completions",
    "refused_results",
    "delivery_attempts",
    "events",
)


def put(tx: Any, name: str) -> None:
    tx.run("INSERT INTO settings (name, value) VALUES (:name, 'x')", name=name)


def names(ledger: Ledger) -> set[str]:
    with ledger.read() as tx:
        return {row["name"] for row in tx.all("SELECT name FROM settings")} - {"max_clock_skew_seconds"}


def kinds(ledger: Ledger) -> list[str]:
    with ledger.read() as tx:
        return [row["kind"] for row in tx.all("SELECT kind FROM events ORDER BY seq")]


# Files


def test_a_new_ledger_is_private_and_complete(ledger: Ledger) -> None:
    assert stat.S_IMODE(ledger.path.parent.stat().st_mode) == 0o700
    with ledger.write() as tx:
        put(tx, "a")
    files = sorted(ledger.path.parent.iterdir())
    assert [file.name for file in files] == ["ledger.db", "ledger.db-shm", "ledger.db-wal"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_connection_settings_are_those_of_the_promise(ledger: Ledger) -> None:
    with ledger.read() as tx:
        settings = {
            name: tx.all(f"PRAGMA {name}")[0][0]
            for name in ("journal_mode", "synchronous", "foreign_keys", "recursive_triggers", "busy_timeout")
        }
    assert settings == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "recursive_triggers": 1,
        "busy_timeout": 5000,
    }


def test_opening_again_changes_nothing(ledger: Ledger, open_ledger: Any) -> None:
    again = open_ledger()
    assert kinds(again) == ["ledger.created"]


@pytest.mark.parametrize("bad", ["", "a\0b"])
def test_a_blank_root_is_a_value_error(bad: str) -> None:
    with pytest.raises(ValueError, match="root"):
        Ledger.open(bad)


@pytest.mark.parametrize("bad", [None, 3, b"x"])
def test_a_root_that_is_no_path_is_a_type_error(bad: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match="root"):
        Ledger.open(bad)


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    with pytest.raises(Refusal, match="not a directory"):
        Ledger.open(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "content"


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".sovereign").mkdir()
    (tmp_path / ".sovereign" / "ledger.db").write_bytes(b"not a database, but long enough to be read as one" * 50)
    before = (tmp_path / ".sovereign" / "ledger.db").read_bytes()
    with pytest.raises(Refusal, match="not a database"):
        Ledger.open(tmp_path)
    assert (tmp_path / ".sovereign" / "ledger.db").read_bytes() == before


def test_another_applications_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".sovereign").mkdir()
    path = tmp_path / ".sovereign" / "ledger.db"
    foreign = sqlite3.connect(path)
    foreign.execute("CREATE TABLE theirs (x)")
    foreign.close()
    before = path.read_bytes()
    with pytest.raises(Refusal, match="not a ledger"):
        Ledger.open(tmp_path)
    assert path.read_bytes() == before


def test_a_newer_schema_is_refused_naming_both_versions(ledger: Ledger, tmp_path: Path) -> None:
    ledger.close()
    raw = sqlite3.connect(ledger.path)
    raw.execute(f"PRAGMA user_version = {VERSION + 98}")
    raw.close()
    before = ledger.path.read_bytes()
    with pytest.raises(Refusal, match=f"version {VERSION + 98}, and this package knows {VERSION}"):
        Ledger.open(tmp_path)
    assert ledger.path.read_bytes() == before


def test_the_clock_skew_is_kept_from_creation(open_ledger: Any, tmp_path: Path) -> None:
    assert open_ledger(max_clock_skew_seconds=30).max_clock_skew.total_seconds() == 30
    assert open_ledger().max_clock_skew.total_seconds() == 30
    with pytest.raises(Refusal, match="skew of 30 seconds, not 5"):
        Ledger.open(tmp_path, max_clock_skew_seconds=5)


def test_a_read_only_directory_is_refused(open_to_all: Path, as_nobody: Any) -> None:
    code = (
        "import sys\nfrom sovereign_agent.ledger import Ledger\nfrom sovereign_agent.errors import Refusal\n"
        "try:\n    Ledger.open(sys.argv[1])\nexcept Refusal as refusal:\n    print(refusal)\n"
    )
    open_to_all.chmod(0o555)
    done = as_nobody(code, str(open_to_all))
    assert "permission denied" in done.stdout, done.stderr
    assert list(open_to_all.iterdir()) == []


# Read-only


def test_read_only_needs_a_ledger_and_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="there is no ledger"):
        Ledger.open(tmp_path / "missing", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_read_only_leaves_no_file_behind_and_refuses_writes(ledger: Ledger, tmp_path: Path) -> None:
    ledger.close()
    before = {file.name: file.read_bytes() for file in ledger.path.parent.iterdir()}
    with Ledger.open(tmp_path, read_only=True) as reader:
        assert kinds(reader) == ["ledger.created"]
        with pytest.raises(Refusal, match="read-only"), reader.write():
            pass
        with pytest.raises(Refusal, match="readonly"), reader.read() as tx:
            tx.run("DELETE FROM settings")
    assert {file.name: file.read_bytes() for file in ledger.path.parent.iterdir()} == before


def test_read_only_sees_what_a_live_writer_has_committed(ledger: Ledger, tmp_path: Path) -> None:
    with ledger.write() as tx:
        put(tx, "a")
    with Ledger.open(tmp_path, read_only=True) as reader:
        assert names(reader) == {"a"}


def test_read_only_works_in_a_directory_that_may_not_be_written(
    ledger: Ledger, open_to_all: Path, as_nobody: Any
) -> None:
    ledger.close()
    ledger.path.parent.chmod(0o755)
    ledger.path.chmod(0o444)
    ledger.path.parent.chmod(0o555)
    code = (
        "import sys\nfrom sovereign_agent.ledger import Ledger\n"
        "with Ledger.open(sys.argv[1], read_only=True) as ledger, ledger.read() as tx:\n"
        "    print(tx.one('SELECT kind FROM events')['kind'])\n"
    )
    done = as_nobody(code, str(open_to_all))
    ledger.path.parent.chmod(0o700)
    assert done.stdout == "ledger.created\n", done.stderr


# Transactions


def test_nested_writes_commit_as_one(ledger: Ledger) -> None:
    with ledger.write() as outer:
        put(outer, "a")
        with ledger.write() as inner:
            put(inner, "b")
    assert names(ledger) == {"a", "b"}


def test_an_outer_failure_undoes_the_inner_write(ledger: Ledger) -> None:
    with pytest.raises(RuntimeError, match="abort"), ledger.write() as outer:
        put(outer, "a")
        with ledger.write() as inner:
            put(inner, "b")
        raise RuntimeError("abort")
    assert names(ledger) == set()


def test_a_caught_inner_failure_dooms_the_outer_write(ledger: Ledger) -> None:
    """Half of a transaction may not commit because somebody swallowed the exception of the other half."""
    with pytest.raises(Refusal, match="nested write"), ledger.write() as outer:
        put(outer, "a")
        try:
            with ledger.write() as inner:
                put(inner, "b")
                raise KeyError("inner")
        except KeyError:
            pass
    assert names(ledger) == set()
    with ledger.write() as tx:
        put(tx, "c")
    assert names(ledger) == {"c"}


def test_a_doomed_write_refuses_further_statements(ledger: Ledger) -> None:
    with pytest.raises(Refusal, match="nested write"), ledger.write() as outer:
        try:
            with ledger.write():
                raise KeyError("inner")
        except KeyError:
            put(outer, "a")
    assert names(ledger) == set()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_rolls_back_at_once(ledger: Ledger, tmp_path: Path, interrupt: type[BaseException]) -> None:
    with pytest.raises(interrupt), ledger.write() as tx:
        put(tx, "a")
        raise interrupt
    assert names(ledger) == set()
    with Ledger.open(tmp_path, busy_timeout_seconds=0) as other, other.write() as tx:
        put(tx, "b")


def test_a_write_inside_a_read_is_refused_and_the_read_goes_on(ledger: Ledger) -> None:
    with ledger.read() as tx:
        with pytest.raises(Refusal, match="inside read"), ledger.write():
            pass
        assert tx.one("SELECT 1 AS one") is not None


def test_a_read_is_one_snapshot(ledger: Ledger, open_ledger: Any) -> None:
    other = open_ledger()
    with ledger.read() as tx:
        with other.write() as theirs:
            put(theirs, "later")
        assert tx.one("SELECT 1 FROM settings WHERE name = 'later'") is None
    assert names(ledger) == {"later"}


def test_a_read_sees_the_write_it_joined(ledger: Ledger) -> None:
    with ledger.write() as tx:
        put(tx, "a")
        with ledger.read() as inside:
            assert inside.one("SELECT 1 FROM settings WHERE name = 'a'") is not None


def test_a_read_cannot_write(ledger: Ledger) -> None:
    with pytest.raises(Refusal), ledger.read() as tx:
        put(tx, "a")
    with ledger.write() as tx:
        put(tx, "b")
    assert names(ledger) == {"b"}


def test_a_transaction_is_dead_after_its_block(ledger: Ledger) -> None:
    with ledger.write() as tx:
        put(tx, "a")
    with pytest.raises(Refusal, match="has ended"):
        put(tx, "b")


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "END"])
def test_a_statement_that_ends_the_transaction_is_refused(ledger: Ledger, statement: str) -> None:
    with pytest.raises(Refusal, match="ended the transaction"), ledger.write() as tx:
        tx.run(statement)


@pytest.mark.parametrize("sql", ["SELECT * FROM nowhere", "this is no SQL", "INSERT INTO settings VALUES (:a)"])
def test_every_sqlite_error_is_a_ledger_refusal(ledger: Ledger, sql: str) -> None:
    with pytest.raises(Refusal) as caught, ledger.write() as tx:
        tx.run(sql)
    assert caught.value.category == "ledger"
    assert isinstance(caught.value.__cause__, sqlite3.Error)


def test_a_lock_held_too_long_is_named(ledger: Ledger, tmp_path: Path) -> None:
    with ledger.write() as tx:
        put(tx, "a")
        with Ledger.open(tmp_path, busy_timeout_seconds=0.05) as other:
            started = time.monotonic()
            with pytest.raises(Refusal, match="locked for longer than the busy timeout"), other.write():
                pass
            assert time.monotonic() - started < 2
    assert names(ledger) == {"a"}


def test_a_full_disk_is_named_and_keeps_nothing(ledger: Ledger) -> None:
    with ledger.read() as tx:
        pages = tx.all("PRAGMA page_count")[0][0]
    ledger._live().execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(Refusal, match="free some space"), ledger.write() as tx:
        put(tx, "small")
        tx.run("INSERT INTO settings (name, value) VALUES ('big', :value)", value="x" * 5_000_000)
    assert names(ledger) == set()


def test_a_ledger_belongs_to_its_thread(ledger: Ledger) -> None:
    caught: list[Refusal] = []

    def use() -> None:
        try:
            with ledger.write():
                pass
        except Refusal as refusal:
            caught.append(refusal)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert "thread and process" in str(caught[0])


def test_another_thread_can_neither_join_nor_doom_the_owners_transaction(ledger: Ledger) -> None:
    caught: list[str] = []

    def use() -> None:
        for begin in (ledger.write, ledger.read):
            try:
                with begin() as tx:
                    tx.run("SELECT 1")
            except Refusal as refusal:
                caught.append(refusal.why)

    with ledger.write() as tx:
        put(tx, "a")
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        put(tx, "b")
    assert names(ledger) == {"a", "b"}
    assert caught == ["a Ledger belongs to the thread and process that opened it"] * 2


@pytest.mark.parametrize("value", [2**63, -(2**70), "\ud800"])
def test_a_parameter_that_sqlite_cannot_hold_is_a_value_error_and_rolls_back(ledger: Ledger, value: object) -> None:
    with pytest.raises(ValueError, match="cannot be stored"), ledger.write() as tx:
        put(tx, "a")
        tx.run("SELECT :value", value=value)
    assert names(ledger) == set()


def test_a_ledger_belongs_to_its_process(tmp_path: Path) -> None:
    code = """
import os, sys
from sovereign_agent.ledger import Ledger
from sovereign_agent.errors import Refusal
ledger = Ledger.open(sys.argv[1])
pid = os.fork()
if pid == 0:
    try:
        with ledger.read(): pass
    except Refusal as refusal:
        print(refusal.why, flush=True)
    ledger.close()
    os._exit(0)
os.waitpid(pid, 0)
with ledger.write() as tx:
    tx.run("INSERT INTO settings (name, value) VALUES ('parent', 'goes on')")
ledger.close()
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "thread and process" in done.stdout
    with Ledger.open(tmp_path) as ledger:
        assert names(ledger) == {"parent"}


def test_a_closed_ledger_says_so(ledger: Ledger) -> None:
    ledger.close()
    ledger.close()
    with pytest.raises(Refusal, match="closed"), ledger.read():
        pass


# Processes

OPEN = """
import sys, time
from sovereign_agent.ledger import Ledger
while time.time() < float(sys.argv[2]):
    pass
with Ledger.open(sys.argv[1]) as ledger, ledger.write() as tx:
    tx.event("test.opened", sys.argv[3], at=ledger.now())
"""


def test_eight_processes_open_a_new_ledger_at_once_six_times(tmp_path: Path) -> None:
    """48 of 48 succeed, and the schema was created once each time."""
    for number in range(6):
        root = tmp_path / str(number)
        start = str(time.time() + 0.6)
        children = [
            subprocess.Popen(
                [sys.executable, "-c", OPEN, str(root), start, str(child)], stderr=subprocess.PIPE, text=True
            )
            for child in range(8)
        ]
        errors = [child.communicate(timeout=60)[1] for child in children]
        assert [child.returncode for child in children] == [0] * 8, errors
        with Ledger.open(root) as ledger:
            assert sorted(kinds(ledger)) == ["ledger.created", *["test.opened"] * 8]


KILLED = """
import os, signal, sys
from sovereign_agent.ledger import Ledger
ledger = Ledger.open(sys.argv[1])
with ledger.write() as tx:
    tx.run("INSERT INTO settings (name, value) VALUES ('before', 'x')")
with ledger.write() as tx:
    tx.run("INSERT INTO settings (name, value) VALUES ('inside', 'x')")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_inside_a_transaction_keeps_what_was_committed_and_nothing_else(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -9
    with Ledger.open(tmp_path) as ledger:
        assert names(ledger) == {"before"}


def test_a_kill_while_the_schema_is_created_leaves_a_ledger_that_opens(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\nfrom sovereign_agent.ledger import Ledger, Transaction\n"
        "run, left = Transaction.run, [int(sys.argv[2])]\n"
        "def counted(self, sql, **params):\n"
        "    left[0] -= 1\n"
        "    if left[0] < 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return run(self, sql, **params)\n"
        "Transaction.run = counted\nLedger.open(sys.argv[1])\n"
    )
    for statements in (0, 1, 5, 12):
        root = tmp_path / str(statements)
        done = subprocess.run([sys.executable, "-c", code, str(root), str(statements)], check=False)
        assert done.returncode == -9
        with Ledger.open(root) as ledger:
            assert kinds(ledger) == ["ledger.created"]


# Append-only, for any client


@pytest.fixture
def raw(ledger: Ledger) -> Any:
    """A plain client with SQLite's own defaults: no recursive triggers, no foreign keys."""
    connection = sqlite3.connect(ledger.path, isolation_level=None)
    yield connection
    connection.close()


@pytest.mark.parametrize("table", APPEND_ONLY)
def test_append_only_tables_have_a_key_that_no_hidden_rowid_can_bypass(ledger: Ledger, table: str) -> None:
    with ledger.read() as tx:
        sql = tx.all("SELECT sql FROM sqlite_schema WHERE name = :table", table=table)[0]["sql"]
    assert "WITHOUT ROWID" in sql or "INTEGER PRIMARY KEY" in sql


@pytest.mark.parametrize("table", APPEND_ONLY)
def test_append_only_tables_guard_every_unique_key(ledger: Ledger, table: str) -> None:
    with ledger.read() as tx:
        trigger = tx.all("SELECT sql FROM sqlite_schema WHERE name = :name", name=f"{table}_no_replace")[0]["sql"]
        unique = [row["name"] for row in tx.all(f"PRAGMA index_list({table})") if row["unique"] and not row["partial"]]
        columns = {row["name"] for name in unique for row in tx.all(f"PRAGMA index_info({name})")}
        columns |= {row["name"] for row in tx.all(f"PRAGMA table_info({table})") if row["pk"]}
    assert columns
    for column in columns:
        assert f"NEW.{column}" in trigger, (table, column)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("UPDATE events SET kind = 'forged'", "update refused"),
        ("UPDATE OR REPLACE events SET kind = 'forged'", "update refused"),
        ("DELETE FROM events", "delete refused"),
        ("INSERT OR REPLACE INTO events VALUES (1, 't', 'forged', 'a', 's', '{}')", "replace refused"),
        ("REPLACE INTO events VALUES (1, 't', 'forged', 'a', 's', '{}')", "replace refused"),
        ("INSERT INTO events VALUES (1,'t','k','a','s','{}') ON CONFLICT DO UPDATE SET kind = 'f'", "replace refused"),
        ("REPLACE INTO events (rowid, at, kind, actor, subject, detail) VALUES (1,'t','k','a','s','{}')", "replace"),
    ],
)
def test_no_plain_client_rewrites_an_event(raw: sqlite3.Connection, ledger: Ledger, sql: str, message: str) -> None:
    with pytest.raises(sqlite3.IntegrityError, match=message):
        raw.execute(sql)
    assert kinds(ledger) == ["ledger.created"]


def test_no_row_can_block_later_events(raw: sqlite3.Connection, ledger: Ledger) -> None:
    """An automatic key reads as -1 in a BEFORE trigger: a row -1 would make every later append look like a replace."""
    with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        raw.execute("INSERT INTO events VALUES (-1, 't', 'k', 'a', 's', '{}')")
    with ledger.write() as tx:
        tx.event("test.happened", "s", at=ledger.now())
    assert kinds(ledger) == ["ledger.created", "test.happened"]


# Refusals as evidence


def refusal(subject: str = "s1") -> Refusal:
    return Refusal("session", subject, "live claim belongs to host-a", "wait")


def test_a_refusal_is_recorded_after_the_transaction_it_rolled_back(ledger: Ledger) -> None:
    with pytest.raises(Refusal), ledger.write() as tx:
        put(tx, "a")
        with recorded(ledger):
            raise refusal()
    assert names(ledger) == set()
    assert kinds(ledger) == ["ledger.created", "refused"]


def test_a_caught_refusal_is_recorded_after_the_commit(ledger: Ledger) -> None:
    with ledger.write() as tx:
        put(tx, "a")
        record_refusal(ledger, refusal())
        assert tx.one("SELECT 1 FROM events WHERE kind = 'refused'") is None
    assert names(ledger) == {"a"}
    assert kinds(ledger) == ["ledger.created", "refused"]


def test_a_refusal_inside_a_read_is_recorded_afterwards(ledger: Ledger) -> None:
    with pytest.raises(Refusal), ledger.read(), recorded(ledger):
        raise refusal()
    assert kinds(ledger) == ["ledger.created", "refused"]


def test_a_refusal_that_passes_two_recorders_is_recorded_once(ledger: Ledger) -> None:
    with pytest.raises(Refusal), recorded(ledger), recorded(ledger):
        raise refusal()
    assert kinds(ledger) == ["ledger.created", "refused"]


def test_a_refusal_that_cannot_be_written_now_is_written_later(ledger: Ledger, open_ledger: Any) -> None:
    other = open_ledger(busy_timeout_seconds=0)
    with ledger.write() as tx:
        put(tx, "a")
        with pytest.raises(Refusal) as caught, recorded(other):
            raise refusal()
        assert "not yet recorded" in caught.value.__notes__[0]
    with other.read():
        pass
    assert kinds(ledger) == ["ledger.created", "refused"]


def test_an_event_holds_what_was_said_and_when(ledger: Ledger, clock: Any) -> None:
    clock.advance(1.5)
    record_refusal(ledger, refusal())
    with ledger.read() as tx:
        row = tx.all("SELECT at, actor, subject, detail FROM events WHERE kind = 'refused'")[0]
    assert (row["at"], row["actor"], row["subject"]) == ("2026-01-05T08:00:01.500000Z", "local", "s1")
    assert json.loads(row["detail"]) == {"category": "session", "why": "live claim belongs to host-a"}


# Ids


@pytest.mark.parametrize("bad", ["", "  ", " a", "a\n", "x" * 201, "a\u200b", "\ud800"])
def test_a_bad_id_is_a_value_error_that_names_it(bad: str) -> None:
    with pytest.raises(ValueError, match="session_id"):
        checked_id("session_id", bad)


@pytest.mark.parametrize("bad", [None, 3, b"a", True])
def test_an_id_of_another_type_is_a_type_error(bad: object) -> None:
    with pytest.raises(TypeError, match="session_id"):
        checked_id("session_id", bad)


def test_the_application_id_is_readable_by_file(ledger: Ledger) -> None:
    ledger.close()
    assert int.from_bytes(ledger.path.read_bytes()[68:72]) == APPLICATION_ID


def test_a_copied_ledger_opens(ledger: Ledger, tmp_path: Path, open_ledger: Any) -> None:
    ledger.close()
    shutil.copytree(tmp_path / ".sovereign", tmp_path / "copy" / ".sovereign")
    assert kinds(open_ledger(tmp_path / "copy")) == ["ledger.created"]


def test_a_umask_does_not_open_the_files(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        with Ledger.open(tmp_path) as ledger, ledger.write() as tx:
            put(tx, "a")
            assert {stat.S_IMODE(f.stat().st_mode) for f in ledger.path.parent.iterdir()} == {0o600}
    finally:
        os.umask(previous)
