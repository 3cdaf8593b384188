"""The simulation: the same seed is the same run, what it breaks is broken, and what is broken is noticed."""

from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sovereign_agent.context import append_message
from sovereign_agent.coordination import SessionClaim, claim_session, finish_session, register_host
from sovereign_agent.errors import Category, Refusal
from sovereign_agent.ids import SeededIds
from sovereign_agent.invariants import Invariant
from sovereign_agent.ledger import Ledger
from sovereign_agent.simulated_checker import Checker
from sovereign_agent.simulated_work import STEPS, WEIGHTS
from sovereign_agent.simulated_world import START, Crash, Fault, Host, World
from sovereign_agent.simulation import Setup, fault_names, shrink, simulate

ROOT = Path(__file__).parent.parent
SEEDS = 50


def load(name: str, path: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


breaking = load("breaking", ROOT / ".ci" / "simulation.py")
MUTATIONS = breaking.mutations()
TABLE = breaking.table()


# The same seed


def test_the_same_seed_gives_the_same_bytes_in_another_process_with_another_hash_seed() -> None:
    reports = [
        subprocess.run(
            [sys.executable, "-m", "sovereign_agent", "simulate", "--seed", "3", "--days", "2", "--json"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "TZ": zone},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed, zone in (("1", "UTC"), ("2", "Asia/Tokyo"))
    ]
    assert reports[0] == reports[1]
    assert json.loads(reports[0])["failure"] is None


def test_another_seed_another_run() -> None:
    one, other = (simulate(Setup(seed, days=1, steps=30)) for seed in (1, 2))
    assert one.events_digest != other.events_digest
    assert one.tables_digest != other.tables_digest


def test_without_faults_nothing_is_broken_and_nothing_goes_wrong() -> None:
    report = simulate(Setup(1, days=2, faults=frozenset()))
    assert report.failure is None
    assert not [name for name in report.counts if name.startswith("fault.")]
    assert "refused.ledger" not in report.counts


# Nothing is violated


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_no_invariant_is_violated(first: int) -> None:
    for seed in range(first, first + 10):
        report = simulate(Setup(seed, days=1 + seed % 2, hosts=2 + seed % 6))
        assert report.failure is None, report.setup.command


def test_three_weeks_meet_every_fault_every_kind_of_step_and_every_invariant() -> None:
    report = simulate(Setup(21))
    assert report.failure is None, report.setup.command
    assert report.steps <= 8_000
    assert [name for name, times in report.checked.items() if not times] == []
    assert [kind for kind in WEIGHTS if not report.counts.get(f"step.{kind}")] == []
    wanted = {"crash", "pause", "restart", "clock jump", "disk full", "locked"}
    wanted |= {"condition raised", "payload raised", "payload took long", "summarizer raised", "empty summary"}
    assert [name for name in sorted(wanted) if not report.counts.get(f"fault.{name}")] == []
    wanted = {"finish refused", "vector refused", "reported late", "delivery failed", "refused.signal", "refused.tools"}
    wanted |= {"takeover", "refused.ledger", "purged", "watcher REPLAYED", "watcher FAILED"}
    assert [name for name in sorted(wanted) if not report.counts.get(name)] == []


def soak_one(seed: int) -> str:
    report = simulate(Setup(seed))
    return "" if report.failure is None else f"{report.failure}: {report.setup.command}"


def test_a_run_leaves_no_connection_open(tmp_path: Path) -> None:
    """One that stays open keeps its locks, and in a browser the next run's file may be taken for the same one."""
    before = set(Path("/proc/self/fd").iterdir())
    simulate(Setup(7, days=1), root=tmp_path)
    left = {str(one.resolve()) for one in set(Path("/proc/self/fd").iterdir()) - before if one.exists()}
    assert not [name for name in left if name.startswith(str(tmp_path))]


def test_no_memory_is_replaced_by_itself() -> None:
    """Seed 186 repeats a request fifty steps later and then draws the very memory that it made."""
    report = simulate(Setup(186, days=1))
    assert report.failure is None


@pytest.mark.soak
def test_a_range_without_slots_in_a_new_epoch_follows_nothing() -> None:
    """Seed 643 sets a clock back while a run of no further slot is given up."""
    report = simulate(Setup(643))
    assert report.failure is None


@pytest.mark.soak
def test_a_thousand_seeds_of_three_weeks() -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        failures = [found for found in pool.map(soak_one, range(1_000)) if found]
    assert failures == []


# What is broken is noticed


def test_each_mutation_is_found_or_left_out_for_a_reason() -> None:
    """A new mutation must be put into one of the two lists."""
    found = [entry["mutation"] for entry in TABLE["found"]]
    left_out = [entry["mutation"] for entry in TABLE["not_simulated"]]
    assert sorted(found + left_out) == sorted(MUTATIONS)
    assert all(entry["reason"] for entry in TABLE["not_simulated"])


@pytest.mark.parametrize("entry", TABLE["found"], ids=lambda entry: entry["mutation"])
def test_a_broken_package_is_noticed_where_the_table_says(entry: dict[str, Any], tmp_path: Path) -> None:
    breaking.broken(MUTATIONS[entry["mutation"]], tmp_path)
    status, report = breaking.run(tmp_path, "--seed", str(entry["seed"]), "--days", str(breaking.DAYS), "--no-shrink")
    assert status == 1
    assert (report["failure"]["invariant"], report["failure"]["step"]) == (entry["invariant"], entry["step"])


@pytest.mark.soak
@pytest.mark.parametrize("entry", TABLE["found"], ids=lambda entry: entry["mutation"])
def test_a_broken_package_is_noticed_within_a_minute_from_other_seeds(entry: dict[str, Any]) -> None:
    assert breaking.find(MUTATIONS[entry["mutation"]], first_seed=5_000) is not None


def test_a_violation_comes_with_the_shortest_run_and_the_command_that_replays_it(tmp_path: Path) -> None:
    breaking.broken(MUTATIONS["refused-result-lost"], tmp_path)
    status, report = breaking.run(tmp_path, "--seed", "0", "--days", "2")
    assert status == 1
    shortest = report["shortest"]
    assert shortest["failure"]["invariant"] == report["failure"]["invariant"] == "refused-work-kept"
    assert shortest["setup"]["steps"] <= report["failure"]["step"]
    assert len(shortest["setup"]["without"]) >= 10
    assert len(shortest["setup"]["faults"]) <= 2
    words = shortest["command"].split()[2:]
    assert breaking.run(tmp_path, *words, "--no-shrink")[1]["failure"] == shortest["failure"]
    words[words.index("--steps") + 1] = str(shortest["setup"]["steps"] - 1)
    assert breaking.run(tmp_path, *words)[0] == 0


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[Ledger, Checker]]:
    """A ledger with a little of everything that is append-only or counted, and a checker that has seen it."""
    with Ledger.open(tmp_path, clock=lambda: START, ids=SeededIds(1), actor="host-a") as ledger:
        checker = Checker(tmp_path)
        register_host(ledger, "host-a")
        for session_id in ("one", "two"):
            append_message(ledger, session_id, "user", "Is anything low?")
            claim_session(ledger, session_id, "host-a")
        finish_session(ledger, SessionClaim("one", "host-a", 1, START), "done")
        checker.check_all()
        assert checker.violation is None
        yield ledger, checker
        checker.close()


@pytest.mark.parametrize(
    ("statements", "invariant"),
    [
        (["UPDATE transcript_messages SET content = 'x' WHERE session_id = 'two'"], Invariant.APPEND_ONLY),
        (["DELETE FROM events WHERE seq = 3"], Invariant.APPEND_ONLY),
        (["UPDATE session_completions SET result = 'x'"], Invariant.APPEND_ONLY),
        (["UPDATE session_claims SET ended = NULL, ended_at = NULL WHERE session_id = 'one'"], Invariant.STORY),
        (["UPDATE hosts SET boot = 7"], Invariant.STORY),
        (["INSERT INTO heartbeats VALUES ('x', '', '', 1)", "DELETE FROM session_claims"], Invariant.STORY),
    ],
)
def test_a_change_that_no_event_tells_of_is_noticed(
    watched: tuple[Ledger, Checker], statements: list[str], invariant: Invariant
) -> None:
    ledger, checker = watched
    raw = sqlite3.connect(ledger.path)
    for (trigger,) in raw.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
        raw.execute(f"DROP TRIGGER {trigger}")
    for statement in statements:
        raw.execute(statement)
    raw.commit()
    raw.close()
    checker.check_all()
    assert checker.violation is not None
    assert checker.violation.invariant is invariant


def test_an_answer_that_the_ledger_does_not_bear_out_is_noticed(watched: tuple[Ledger, Checker]) -> None:
    _, checker = watched
    claim = SessionClaim("one", "host-a", 1, START)
    checker.told_finished(claim, "done")
    assert checker.violation is None
    checker.told_finished(claim, "something else")
    assert checker.violation is not None
    assert checker.violation.invariant is Invariant.DONE


@pytest.mark.parametrize(
    ("told", "invariant"),
    [
        (lambda c: c.told_refused(SessionClaim("two", "host-a", 1, START), "lost"), Invariant.REFUSED_WORK),
        (lambda c: c.told_appended("two", 1, "Is anything high?"), Invariant.SOURCES),
        (lambda c: c.told_error(ZeroDivisionError("x")), Invariant.EXPLAINED),
        (lambda c: c.told_refusal(Refusal(Category.LEDGER, "x", "busy", "wait"), trouble=False), Invariant.EXPLAINED),
        (lambda c: c.offered("run-unknown"), Invariant.ONE_EFFECT),
        (lambda c: (c.effect("run-1", "stock", "a"), c.effect("run-1", "stock", "b")), Invariant.ONE_EFFECT),
        (lambda c: (c.signal_effect("run-1", "a"), c.signal_effect("run-1", "b")), Invariant.SIGNALS),
        (lambda c: c.authorized("wipe_disk", allowed=False, genuine=True), Invariant.TOOLS),
    ],
)
def test_what_a_host_was_told_is_held_against_the_ledger(
    watched: tuple[Ledger, Checker], told: Any, invariant: Invariant
) -> None:
    _, checker = watched
    told(checker)
    assert checker.violation is not None
    assert checker.violation.invariant is invariant


def test_a_refusal_that_no_event_tells_of_is_noticed(watched: tuple[Ledger, Checker]) -> None:
    _, checker = watched
    checker.told_refusal(Refusal(Category.SESSION, "two", "never asked", "ask"), trouble=False)
    checker.after_step()
    assert checker.violation is not None
    assert checker.violation.invariant is Invariant.REFUSALS


# What is simulated is real


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with Ledger.open(tmp_path, clock=lambda: START, actor="operator"):
        pass
    host = Host("host-a", timedelta(0))
    world = World(tmp_path, 1, frozenset(Fault), [host], Checker(tmp_path))
    world.start(host)
    yield world
    world.close()
    world.checker.close()


def rows(world: World) -> int:
    with Ledger.open(world.root, read_only=True) as ledger, ledger.read() as tx:
        return len(tx.all("SELECT 1 FROM transcript_messages"))


def test_a_crash_at_any_statement_keeps_all_of_a_transaction_or_nothing(world: World) -> None:
    """Between each two statements, at the commit, and right after it; the next process finds the ledger free."""
    host = world.hosts[0]
    outcomes = []
    for after in (False, True):
        for fuse in range(1, 30):
            before = rows(world)
            ledger = host.ledger or world.start(host)
            host.watched, host.fuse, host.after = True, fuse, after
            try:
                append_message(ledger, "chat", "assistant", "x")
                outcomes.append((rows(world) - before, "lived"))
            except Crash:
                world.end(host)
                outcomes.append((rows(world) - before, "died"))
            world.calm(host)
            append_message(host.ledger or world.start(host), "chat", "user", "still possible")
    assert set(outcomes) == {(0, "died"), (1, "died"), (1, "lived")}


def test_a_dead_host_cannot_write_another_word(world: World) -> None:
    """What the package does while a kill goes through it would not happen in a process that is gone."""
    host = world.hosts[0]
    ledger = host.ledger
    assert ledger is not None
    with pytest.raises(Crash), ledger.write():
        append_message(ledger, "chat", "user", "lost")
        host.kill()
    with pytest.raises(Crash):
        append_message(ledger, "chat", "user", "a ghost")
    world.end(host)
    assert rows(world) == 0


def test_a_full_disk_is_sqlites_own_error(world: World) -> None:
    host = world.hosts[0]
    assert host.ledger is not None
    world.fill_disk(host)
    with pytest.raises(Refusal) as refused:
        append_message(host.ledger, "chat", "user", "x" * 100_000)
    assert isinstance(refused.value.__cause__, sqlite3.OperationalError)
    assert refused.value.__cause__.sqlite_errorname == "SQLITE_FULL"
    world.calm(host)
    append_message(host.ledger, "chat", "user", "x" * 100_000)


def test_a_locked_ledger_is_sqlites_own_error(world: World) -> None:
    host = world.hosts[0]
    assert host.ledger is not None
    world.lock_after(host, 1)
    with pytest.raises(Refusal) as refused:
        append_message(host.ledger, "chat", "user", "x")
    assert isinstance(refused.value.__cause__, sqlite3.OperationalError)
    assert refused.value.__cause__.sqlite_errorname == "SQLITE_BUSY"
    world.calm(host)
    append_message(host.ledger, "chat", "user", "x")


# Arguments and the command


def test_every_kind_of_step_has_a_weight() -> None:
    assert list(STEPS) == list(WEIGHTS)


def test_faults_have_names() -> None:
    assert fault_names(["all"]) == frozenset(Fault)
    assert fault_names(["none"]) == frozenset()
    assert fault_names(["crash", "disk"]) == {Fault.CRASH, Fault.DISK}
    with pytest.raises(ValueError, match="'rain'"):
        fault_names(["rain"])


@pytest.mark.parametrize("wrong", [{"hosts": 0}, {"hosts": 27}, {"days": 0}, {"seed": -1}, {"steps": -1}])
def test_numbers_have_bounds(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Setup(**{"seed": 1, **wrong})


def test_an_unknown_kind_of_step_cannot_be_left_out() -> None:
    with pytest.raises(ValueError, match="dance"):
        Setup(1, without=frozenset({"dance"}))
    with pytest.raises(TypeError, match="seed"):
        Setup("1")  # type: ignore[arg-type]


def test_a_run_that_did_not_fail_has_no_shorter_one() -> None:
    with pytest.raises(ValueError, match="failed"):
        shrink(simulate(Setup(1, days=1, steps=1)))


def test_the_command_replays_the_setup() -> None:
    setup = Setup(5, 3, 2, frozenset({Fault.CRASH, Fault.PAUSE}), 40, frozenset({"beat", "tool"}))
    words = setup.command.split()
    assert words[:2] == ["sovereign-agent", "simulate"]
    done = subprocess.run(
        [sys.executable, "-m", "sovereign_agent", *words[1:], "--json"], capture_output=True, text=True, check=True
    )
    report = json.loads(done.stdout)
    assert report["tables_digest"] == simulate(setup).tables_digest
    assert simulate(replace(setup, seed=6)).tables_digest != report["tables_digest"]
