"""The archive: what is over leaves whole and recorded, what may be asked for stays, and no kill leaves a half."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sovereign_agent import archive as module
from sovereign_agent.archive import PARTS, Archive, archive_before, list_archives, verify_archive
from sovereign_agent.automation import (
    Status,
    WatchDecision,
    create_automation,
    history,
    list_runs,
    run_due,
    update,
)
from sovereign_agent.cli import main
from sovereign_agent.context import append_message, compact_one, render_context
from sovereign_agent.coordination import claim_session, finish_session, register_host, release_session
from sovereign_agent.delivery import (
    DeliveryStatus,
    begin_attempt,
    dead_letters,
    due,
    enqueue,
    record_delivery_failure,
    record_delivery_success,
)
from sovereign_agent.errors import Refusal
from sovereign_agent.ids import SeededIds
from sovereign_agent.ledger import Ledger
from sovereign_agent.memory import recall, remember
from sovereign_agent.pulse import record_signal, run_pulse

T0 = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)
LAST = 12


def minutes(count: float) -> datetime:
    return T0 + timedelta(minutes=count)


def a_minute(ledger: Ledger, n: int) -> None:
    """Let every mechanism do something in one minute of a busy life; sessions and deliveries end a minute later."""
    now = minutes(n)
    ledger._clock = lambda: now
    create_automation(ledger, "watch", interval_seconds=60, payload="p", first_run_at=T0, max_failures=99, now=now)

    def payload(run_id: str, message: str) -> None:
        if n % 4 == 3:
            raise ConnectionError("no answer")

    run_due(ledger, "watch", lambda state: WatchDecision(n % 3 != 0, f"low {n // 4}", {"n": n}), payload, now=now)
    for host in ("a", "b"):
        register_host(ledger, host, now=now)
    claim = claim_session(ledger, f"s{n}", "a", now=now, ttl_seconds=20)
    later = now + timedelta(seconds=40)
    second = claim_session(ledger, f"s{n}", "b", now=later)
    with pytest.raises(Refusal, match="stale"):
        finish_session(ledger, claim, f"stale {n}", now=later)
    if n % 5:
        finish_session(ledger, second, f"result {n}", now=later)
    enqueue(ledger, f"d{n}", {"mail": n}, now=now)
    record_delivery_failure(ledger, f"d{n}", "try later", now, attempt_id=f"d{n}/1", permanent=n % 6 == 5, now=now)
    if n % 6 < 4:
        record_delivery_success(ledger, f"d{n}", attempt_id=f"d{n}/2", now=later)
    record_signal(ledger, f"g{n}", "sale", {"n": n}, now=now)
    run_pulse(ledger, lambda found: n % 2 == 0, payload, now=now)
    append_message(ledger, "talk", "user" if n % 2 else "assistant", f"row {n}", now=now)
    remember(ledger, f"m{n}", f"memory {n}", created_at=now)


def live(ledger: Ledger, count: int = LAST) -> None:
    for n in range(count):
        a_minute(ledger, n)


def contents(ledger: Ledger) -> dict[str, list[tuple[Any, ...]]]:
    """Everything a ledger holds, but its own account of archives."""
    with ledger.read() as tx:
        names = [row["name"] for row in tx.all("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")]
        return {
            name: [tuple(row) for row in tx.all(f"SELECT * FROM {name}")]
            for name in names
            if name not in ("archives", "archiving") and not name.startswith("sqlite_")
        }


def archived(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    with closing(sqlite3.connect(path)) as file:
        return {part.table: file.execute(f"SELECT * FROM {part.table}").fetchall() for part in PARTS}


def rejoined(now: dict[str, list[tuple[Any, ...]]], *files: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Put archives back into what a ledger holds; a payload that left comes back into its row."""
    whole = {table: list(rows) for table, rows in now.items()}
    for path in files:
        for part in PARTS:
            rows = archived(path)[part.table]
            if part.payload_only:
                back = {row[0] if part.table == "deliveries" else row[1] for row in rows}
                key = 0 if part.table == "deliveries" else 1
                whole[part.table] = [row for row in whole[part.table] if row[key] not in back]
            whole[part.table] += rows
    whole["events"] = [row for row in whole["events"] if row[2] != "ledger.archived"]
    return {table: sorted(rows, key=repr) for table, rows in whole.items()}


def ordered(rows: dict[str, list[tuple[Any, ...]]]) -> dict[str, list[tuple[Any, ...]]]:
    return {table: sorted(found, key=repr) for table, found in rows.items()}


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger that has lived; tests work on copies."""
    root = tmp_path_factory.mktemp("grown")
    with Ledger.open(root, clock=lambda: T0, ids=SeededIds(1)) as ledger:
        live(ledger)
    return root


@pytest.fixture
def copy(grown: Path, tmp_path: Path) -> Iterator[Ledger]:
    shutil.copytree(grown, tmp_path / "copy")
    with Ledger.open(tmp_path / "copy", clock=lambda: minutes(60), ids=SeededIds(2)) as ledger:
        yield ledger


# What leaves and what stays


@given(first=st.integers(-1, LAST + 1), second=st.integers(-1, LAST + 1))
@settings(max_examples=15)
def test_the_ledger_and_its_archives_together_are_what_the_ledger_was(
    grown: Path, tmp_path_factory: pytest.TempPathFactory, first: int, second: int
) -> None:
    root = tmp_path_factory.mktemp("root")
    shutil.copytree(grown, root, dirs_exist_ok=True)
    with Ledger.open(root, clock=lambda: minutes(60), ids=SeededIds(3)) as ledger:
        before = contents(ledger)
        done = [archive_before(ledger, minutes(n), to=root / f"{i}.db") for i, n in enumerate((first, second))]
        files = [one.path for one in done if one is not None]
        assert rejoined(contents(ledger), *files) == ordered(before)
        assert [kept.number for kept in list_archives(ledger)] == [one.number for one in done if one is not None]
        assert all(verify_archive(one.path).digest == one.digest for one in done if one is not None)
        limit = max(minutes(first), minutes(second)).isoformat(timespec="microseconds").replace("+00:00", "Z")
        with ledger.read() as tx:
            assert tx.all("SELECT 1 FROM archiving") == []
            assert tx.all("PRAGMA foreign_key_check") == []
            old = tx.all("SELECT seq, kind FROM events WHERE at < :limit AND kind NOT LIKE 'ledger.%'", limit=limit)
        assert [row["seq"] for row in old] in ([], [len(before["events"])]), "the newest event may stay"


def test_every_table_gives_what_is_over_and_only_that(copy: Ledger) -> None:
    done = archive_before(copy, minutes(60))
    assert done is not None
    rows = archived(done.path)
    assert min(done.counts.values()) > 0, done.counts
    with copy.read() as tx:
        left = {part.table: tx.all(f"SELECT * FROM {part.table}") for part in PARTS}
    assert {row["kind"] for row in left["events"][:-2]} == {"ledger.created"}
    assert [row["status"] for row in left["automation_runs"]] == ["FAILED"]
    assert {row["ended"] for row in left["session_claims"]} == {None}
    assert len(left["refused_results"]) == 1
    assert {row["delivery_id"] for row in left["delivery_attempts"]} == {
        row["delivery_id"] for row in left["deliveries"] if row["status"] != "DELIVERED"
    }
    assert {(row["status"], row["payload"] == "null") for row in left["deliveries"]} == {
        ("DELIVERED", True),
        ("PENDING", False),
        ("DEAD", False),
    }
    assert len(left["deliveries"]) == len(left["signals"]) == LAST
    assert {row[0] for row in rows["deliveries"]}.isdisjoint(row.delivery_id for row in dead_letters(copy))


def test_what_ended_at_the_very_instant_stays(copy: Ledger) -> None:
    with copy.read() as tx:
        at = tx.all("SELECT at FROM events ORDER BY at")[1]["at"]
    assert archive_before(copy, datetime.fromisoformat(at)) is None


def test_nothing_over_makes_no_file_and_no_event(copy: Ledger) -> None:
    before = contents(copy)
    assert archive_before(copy, T0 - timedelta(days=1)) is None
    assert contents(copy) == before
    assert list(copy.path.parent.glob("archive*")) == []


def test_the_event_names_digest_counts_and_instant_but_no_content(copy: Ledger) -> None:
    done = archive_before(copy, minutes(9))
    assert done is not None
    with copy.read() as tx:
        event = tx.all("SELECT * FROM events ORDER BY seq DESC LIMIT 1")[0]
    assert (event["kind"], event["subject"]) == ("ledger.archived", "ledger")
    assert json.loads(event["detail"]) == {
        "archive": 1,
        "before": "2026-01-05T08:09:00.000000Z",
        "counts": done.counts,
        "digest": done.digest,
        "rows": done.rows,
    }
    assert list_archives(copy) == (done,)
    assert done.archived_at == minutes(60)


# Promises that hold beyond an archive


def test_numbers_go_on(copy: Ledger) -> None:
    """Neither an event's nor a refused result's number, neither a boot nor an incarnation comes twice."""
    with copy.read() as tx:
        seq = tx.all("SELECT max(seq) AS n FROM events")[0]["n"]
        refusal = tx.all("SELECT max(refusal_seq) AS n FROM refused_results")[0]["n"]
    archive_before(copy, minutes(60))
    assert register_host(copy, "a").boot == LAST + 1
    register_host(copy, "b")
    assert claim_session(copy, "s0", "a").incarnation == 3
    with pytest.raises(Refusal):
        finish_session(copy, claim_session(copy, "s5", "b", now=minutes(60)), "late", now=minutes(90))
    with copy.read() as tx:
        assert tx.all("SELECT max(refusal_seq) AS n FROM refused_results")[0]["n"] == refusal + 1
        found = [row["seq"] for row in tx.all("SELECT seq FROM events WHERE kind <> 'ledger.created' ORDER BY seq")]
    assert found[0] >= seq
    with closing(sqlite3.connect(copy.path)) as raw, pytest.raises(sqlite3.IntegrityError, match="never used again"):
        raw.execute("INSERT INTO events VALUES (5, 't', 'forged', 'a', 's', '{}')")


def test_a_finished_session_stays_finished_and_its_repeated_finish_is_done(copy: Ledger) -> None:
    with copy.read() as tx:
        row = tx.all("SELECT * FROM session_claims WHERE session_id = 's1'")[0]
    archive_before(copy, minutes(60))
    register_host(copy, "a")
    with pytest.raises(Refusal, match="the session is finished, by incarnation 2 of b"):
        claim_session(copy, "s1", "a")
    claim = module_claim(row)
    finish_session(copy, claim, "result 1")
    with pytest.raises(Refusal, match="another result"):
        finish_session(copy, claim, "something else")


def module_claim(row: sqlite3.Row) -> Any:
    from sovereign_agent.fence import SessionClaim

    expires = datetime.fromisoformat(row["expires_at"])
    return SessionClaim(row["session_id"], row["host_id"], row["incarnation"], expires)


def test_a_delivered_delivery_is_still_known_by_its_id_and_payload(copy: Ledger) -> None:
    archive_before(copy, minutes(60))
    before = contents(copy)
    again = enqueue(copy, "d0", {"mail": 0})
    assert (again.status, again.attempts, again.payload) == (DeliveryStatus.DELIVERED, 2, None)
    assert record_delivery_failure(copy, "d0", "a late report", attempt_id="d0/1") == 2
    record_delivery_success(copy, "d0", attempt_id="d0/3")
    assert contents(copy) == before
    assert "d0" not in [delivery.delivery_id for delivery in due(copy)]
    with pytest.raises(Refusal, match="it is delivered"):
        begin_attempt(copy, "d0")
    with pytest.raises(Refusal, match="enqueued before with another payload"):
        enqueue(copy, "d0", {"mail": 1})
    with pytest.raises(Refusal, match="enqueued before with another payload"):
        enqueue(copy, "d0", None)


def test_a_settled_signal_is_still_known_by_its_id_and_payload(copy: Ledger) -> None:
    archive_before(copy, minutes(60))
    assert record_signal(copy, "g0", "sale", {"n": 0}) is False
    with pytest.raises(Refusal, match="another payload"):
        record_signal(copy, "g0", "sale", {"n": 1})
    with pytest.raises(Refusal, match="another kind"):
        record_signal(copy, "g0", "return", {"n": 0})
    results = run_pulse(copy, lambda found: True, lambda run_id, found: None)
    assert "g0" not in [result.signal_id for result in results]


def test_transcripts_and_memories_stay(copy: Ledger) -> None:
    view = render_context(copy, "talk")
    hits = recall(copy, "memory 3", actor_id="x", now=minutes(60))
    archive_before(copy, minutes(60))
    assert render_context(copy, "talk") == view
    assert recall(copy, "memory 3", actor_id="x", now=minutes(60)) == hits
    assert compact_one(copy, "talk", lambda prior, exchange: "short", protect_head=1, protect_tail=1)


def test_an_automation_goes_on_where_it_was(copy: Ledger) -> None:
    """The state, the open run, the grid and the rule that no slot gets two fates do not need what has left."""
    open_run = next(run for run in list_runs(copy, "watch") if run.status == "FAILED")
    latest = history(copy, "watch")[-1]
    archive_before(copy, minutes(60))
    assert history(copy, "watch")[-1] == latest
    moved = update(copy, "watch", next_run_at=minutes(0))
    assert moved.cursor_at > latest.last_slot
    again = run_due(
        copy, "watch", lambda state: WatchDecision(True, open_run.message, state), lambda run_id, message: None
    )
    assert (again.status, again.run_id) == (Status.SUCCEEDED, open_run.run_id)
    more = archive_before(copy, minutes(61), now=minutes(61))
    assert more is not None
    assert more.counts["automation_runs"] == 0, "the run of the latest slot stays"


def test_the_latest_quiet_slot_stays_so_that_none_is_looked_at_twice(ledger: Ledger) -> None:
    create_automation(ledger, "quiet", interval_seconds=60, payload="p", first_run_at=T0)
    for n in range(3):
        state = {"n": n}
        run_due(
            ledger,
            "quiet",
            lambda _, now=state: WatchDecision(fire=False, message="", state=now),
            print,
            now=minutes(n),
        )
    before = history(ledger, "quiet")
    archive_before(ledger, minutes(30), now=minutes(60))
    assert history(ledger, "quiet") == before
    assert update(ledger, "quiet", next_run_at=T0, now=minutes(60)).cursor_at == minutes(3)


def test_a_released_session_is_not_over(ledger: Ledger) -> None:
    """It may be claimed again, so its row could change between the copy and the removal."""
    register_host(ledger, "a", now=T0)
    release_session(ledger, claim_session(ledger, "s", "a", now=T0), now=T0)
    done = archive_before(ledger, minutes(30), now=minutes(60))
    assert done is not None
    assert done.counts["session_claims"] == 0


# The only permitted delete


@pytest.mark.parametrize("table", ["events", "refused_results", "delivery_attempts", "session_completions", "archives"])
@pytest.mark.parametrize("forged", [False, True], ids=["plain", "with rows in archiving"])
def test_no_plain_client_deletes_what_no_archive_is_taking(copy: Ledger, table: str, *, forged: bool) -> None:
    archive_before(copy, minutes(5))
    with closing(sqlite3.connect(copy.path, isolation_level=None)) as raw:
        if forged:
            key = next(row[1] for row in raw.execute(f"PRAGMA table_info({table})") if row[5])
            raw.execute(f"INSERT INTO archiving SELECT '{table}', CAST({key} AS TEXT) FROM {table}")
        with pytest.raises(sqlite3.IntegrityError, match="delete refused"):
            raw.execute(f"DELETE FROM {table}")


def test_a_record_of_an_archive_is_never_changed_nor_made_for_later(copy: Ledger) -> None:
    archive_before(copy, minutes(5))
    with closing(sqlite3.connect(copy.path, isolation_level=None)) as raw:
        for statement, message in (
            ("UPDATE archives SET digest = ''", "update refused"),
            ("REPLACE INTO archives SELECT * FROM archives", "refused"),
            (
                "INSERT INTO archives SELECT 9, before, file, substr(digest, 2) || 'x', counts, 999, '' FROM archives",
                "the next event ends an archive",
            ),
        ):
            with pytest.raises(sqlite3.IntegrityError, match=message):
                raw.execute(statement)


# Files that are not what they should be


def other_ledgers_archive(path: Path, tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "other", clock=lambda: minutes(60), ids=SeededIds(7)) as other:
        live(other, 3)
        archive_before(other, minutes(9), to=path, now=minutes(60))


def an_archive_of_another_instant(path: Path, tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "copy", clock=lambda: minutes(60)) as ledger:
        kill_before_removal(ledger, minutes(4), path)


def a_row_changed(path: Path, tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "copy", clock=lambda: minutes(60)) as ledger:
        kill_before_removal(ledger, minutes(9), path)
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("UPDATE events SET kind = 'forged' WHERE seq = 3")


def an_open_row_slipped_in(path: Path, tmp_path: Path) -> None:
    """The digest of the file is right, but it names a run that is not over."""
    with Ledger.open(tmp_path / "copy", clock=lambda: minutes(60)) as ledger:
        kill_before_removal(ledger, minutes(9), path)
        with ledger.read() as tx:
            run = tx.all("SELECT * FROM automation_runs WHERE status = 'FAILED'")[0]
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute(f"INSERT INTO automation_runs VALUES ({', '.join('?' * len(run))})", tuple(run))
    before, _, rows = module._read_file(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("UPDATE archive SET digest = ?", (module.digest_of(before, rows),))


def kill_before_removal(ledger: Ledger, before: datetime, path: Path) -> None:
    """Leave what a call leaves that was killed after its file was whole."""
    with ledger.read() as tx:
        rows = {part.table: module._closed(tx, part, before) for part in PARTS}
        columns = {part.table: module._columns(tx, part) for part in PARTS}
    module._write_file(path, before, columns, rows)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path, tmp_path: path.write_text("my notes"), "cannot be read as an archive"),
        (lambda path, tmp_path: path.mkdir(), "cannot be read as an archive"),
        (lambda path, tmp_path: shutil.copy(tmp_path / "copy/.sovereign/ledger.db", path), "it is no archive"),
        (other_ledgers_archive, "its rows are not those of this ledger"),
        (an_archive_of_another_instant, "it is an archive of what was before 2026-01-05T08:04:00.000000Z"),
        (a_row_changed, "its rows have the digest"),
        (an_open_row_slipped_in, "its rows are not those of this ledger"),
    ],
)
def test_a_file_that_is_something_else_is_refused_and_nothing_changes(
    copy: Ledger, tmp_path: Path, make: Callable[[Path, Path], object], message: str
) -> None:
    path = tmp_path / "file.db"
    make(path, tmp_path)
    before, file = contents(copy), path.read_bytes() if path.is_file() else None
    with pytest.raises(Refusal, match=message):
        archive_before(copy, minutes(9), to=path)
    assert contents(copy) == before
    assert list_archives(copy) == ()
    assert file is None or path.read_bytes() == file


def test_a_directory_that_is_missing_is_refused(copy: Ledger, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="no such file or directory"):
        archive_before(copy, minutes(9), to=tmp_path / "missing" / "file.db")


def test_arguments_that_are_malformed_are_named(copy: Ledger, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="before must be aware"):
        archive_before(copy, datetime(2026, 1, 5))
    with pytest.raises(ValueError, match="before must not lie ahead"):
        archive_before(copy, minutes(61))
    with pytest.raises(ValueError, match="file"):
        archive_before(copy, minutes(9), to="")
    with pytest.raises(TypeError, match="file"):
        archive_before(copy, minutes(9), to=3)  # type: ignore[arg-type]
    with copy.write(), pytest.raises(Refusal, match="inside a transaction"):
        archive_before(copy, minutes(9))
    with (
        Ledger.open(tmp_path / "copy", read_only=True) as reader,
        pytest.raises(Refusal, match="opened read-only"),
    ):
        archive_before(reader, minutes(9), now=minutes(60))


def test_the_same_call_again_is_answered_as_done(copy: Ledger) -> None:
    first = archive_before(copy, minutes(9))
    before = contents(copy)
    assert archive_before(copy, minutes(9)) == first
    assert contents(copy) == before


def test_what_ends_late_with_an_earlier_time_leaves_with_the_next_archive(copy: Ledger) -> None:
    first = archive_before(copy, minutes(9))
    record_signal(copy, "late", "sale", {}, now=minutes(1))
    run_pulse(copy, lambda found: False, lambda run_id, found: None, now=minutes(1))
    assert archive_before(copy, minutes(9)) == first, "a recorded file takes nothing more"
    more = archive_before(copy, minutes(9.5))
    assert more is not None
    assert more.number == 2
    assert [row[1] for row in archived(more.path)["signals"]][-1] == "late"


# Kills and contenders

KILLED = """
import os, signal, sys
from datetime import UTC, datetime
from sovereign_agent import archive, ledger as base

left = int(sys.argv[2])

def trace(frame, event, argument):
    global left
    if frame.f_code.co_filename not in (archive.__file__, base.__file__):
        return None
    if event == "line":
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return trace

with base.Ledger.open(sys.argv[1]) as ledger:
    sys.settrace(trace)
    archive.archive_before(ledger, datetime(2026, 1, 5, 8, 9, tzinfo=UTC), now=datetime(2026, 1, 5, 9, tzinfo=UTC))
    sys.settrace(None)
print(left)
"""


def run_killed(root: Path, lines: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", KILLED, str(root), str(lines)], capture_output=True, text=True, check=False, timeout=60
    )


def test_a_kill_at_any_line_leaves_the_ledger_as_it_was_or_both_and_the_same_call_completes(
    grown: Path, tmp_path: Path
) -> None:
    """Lines are counted by a trace; the kills are spread over all of them, denser at the end, where rows leave."""
    shutil.copytree(grown, tmp_path / "whole")
    done = run_killed(tmp_path / "whole", 10**9)
    assert done.returncode == 0, done.stderr
    total = 10**9 - int(done.stdout)
    with Ledger.open(grown, read_only=True) as ledger:
        whole = ordered(contents(ledger))
    seen = set()
    for point in sorted({10, 60, 110, 160, total // 2} | {total - n for n in range(0, 90, 15)}):
        root = tmp_path / str(point)
        shutil.copytree(grown, root)
        assert run_killed(root, point).returncode == -signal.SIGKILL
        with Ledger.open(root, clock=lambda: minutes(60)) as ledger:
            files = list((root / ".sovereign").glob("archive*.db"))
            gone = list_archives(ledger)
            if gone:
                assert rejoined(contents(ledger), gone[0].path) == whole
            else:
                assert ordered(contents(ledger)) == whole
            seen.add((bool(files), bool(gone)))
            again = archive_before(ledger, minutes(9))
            assert again is not None
            assert rejoined(contents(ledger), again.path) == whole
            assert len(list_archives(ledger)) == 1
            assert list((root / ".sovereign").glob("*.part")) == []
        shutil.rmtree(root)
    assert seen == {(False, False), (True, False), (True, True)}


def test_contenders_make_one_archive_and_agree_on_it(grown: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(grown, root)
    with Ledger.open(grown, read_only=True) as ledger:
        whole = ordered(contents(ledger))
    command = [sys.executable, "-m", "sovereign_agent", "archive", "--root", str(root), "--before", "2026-01-06"]
    children = [
        subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    results = [child.communicate(timeout=60) for child in children]
    assert [child.returncode for child in children] == [0] * 4, results
    assert len({json.loads(out)["digest"] for out, _ in results if out != "null\n"}) == 1
    with Ledger.open(root) as ledger:
        (only,) = list_archives(ledger)
        assert rejoined(contents(ledger), only.path) == whole
    assert list((root / ".sovereign").glob("*.part")) == []


def test_a_file_that_appears_meanwhile_is_not_replaced(copy: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    path = copy.path.with_name("meanwhile.db")
    fill = module._fill

    def fill_while_another_writes(*arguments: Any) -> None:
        fill(*arguments)
        path.write_text("my notes")

    monkeypatch.setattr(module, "_fill", fill_while_another_writes)
    before = contents(copy)
    with pytest.raises(Refusal, match="cannot be read as an archive"):
        archive_before(copy, minutes(9), to=path)
    assert path.read_text() == "my notes"
    assert contents(copy) == before


def test_what_a_killed_call_left_is_cleared_away(copy: Ledger) -> None:
    path = copy.path.with_name("file.db")
    left, other = (path.with_name(f"{name}.abc.part") for name in ("file.db", "other.db"))
    left.write_text("half")
    other.write_text("not ours")
    archive_before(copy, minutes(9), to=path)
    assert not left.exists()
    assert other.exists()


def test_a_writer_goes_on_while_rows_are_copied(copy: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the comparison and the removal hold the write lock."""
    fill = module._fill

    def fill_while_another_writes(*arguments: Any) -> None:
        with Ledger.open(tmp_path / "copy", busy_timeout_seconds=0, clock=lambda: minutes(60)) as other:
            enqueue(other, "meanwhile", 1)
        fill(*arguments)

    monkeypatch.setattr(module, "_fill", fill_while_another_writes)
    assert isinstance(archive_before(copy, minutes(9)), Archive)
    assert "meanwhile" in [delivery.delivery_id for delivery in due(copy)]


# The command


def run_main(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


def test_the_command_prints_what_left_and_where_it_is(copy: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    root = copy.path.parent.parent
    code, out, err = run_main(capsys, "archive", "--root", root, "--before", "2026-01-05T10:09:00+02:00")
    assert (code, err) == (0, "")
    (only,) = list_archives(copy)
    assert only.path == copy.path.with_name("archive-before-20260105T080900Z.db")
    assert out.splitlines()[0] == f"archive 1: {only.rows} rows that were over before 2026-01-05T08:09:00.000000Z"
    assert out.splitlines()[-2:] == [f"  file    {only.path}", f"  sha256  {only.digest}"]
    assert only.path.stat().st_mode & 0o777 == 0o600
    code, out, _ = run_main(capsys, "archive", "--root", root, "--before", "2026-01-05", "--json")
    assert (code, out) == (0, "null\n")
    code, out, _ = run_main(capsys, "archive", "--root", root, "--before", "2026-01-05")
    assert (code, out) == (0, "nothing was over before 2026-01-05T00:00:00.000000Z\n")


@pytest.mark.parametrize(
    ("before", "status", "message"),
    [
        ("tomorrow", 2, "is neither a date nor"),
        ("2026-01-05T08:00:00", 2, "has no time zone"),
        ("9999-01-01", 2, "must not lie ahead"),
        ("2026-01-05", 1, "there is no ledger"),
    ],
)
def test_the_command_names_what_is_wrong_and_creates_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, before: str, status: int, message: str
) -> None:
    root = tmp_path / "none"
    if status == 2 and before == "9999-01-01":
        root = tmp_path / "made"
        Ledger.open(root).close()
    code, out, err = run_main(capsys, "archive", "--root", root, "--before", before)
    assert (code, out) == (status, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "none").exists()
