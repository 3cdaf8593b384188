"""Benchmarks: what every mechanism costs at size, beside its own cost at 1/100 of the size, in one run and one file.

`uv run python benchmarks/run.py -o FILE` measures all rows of the table and writes JSON; `--quick` takes small sizes
and shows only that everything still runs. A figure is the median wall time of its repetitions on this machine under
whatever load it had, which the file names. Nothing here decides whether a figure is good enough on another machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sovereign_agent import automation, context, coordination, memory
from sovereign_agent.ledger import Ledger
from sovereign_agent.tools import Tool, ToolCatalog

ROOT = Path(__file__).parent.parent
NOW = datetime(2026, 1, 1, tzinfo=UTC)
DIMENSIONS = 384
WORKERS = 8


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    operation: str
    figure: float
    unit: str
    bound: float
    holds: bool | None
    """Whether the figure keeps its bound; None at the quick size, which gives no verdict."""
    beside: dict[str, float]
    """What was measured in the same run to compare with, by name, in the row's unit unless the name says otherwise."""


def most(operation: str, figure: float, unit: str, bound: float, **beside: float) -> Row:
    """Return a row whose figure must stay under its bound."""
    return Row(operation, figure, unit, bound, figure <= bound, beside)


def least(operation: str, figure: float, unit: str, bound: float, **beside: float) -> Row:
    """Return a row whose figure must reach its bound."""
    return Row(operation, figure, unit, bound, figure >= bound, beside)


def seconds(call: Callable[[], object], times: int) -> float:
    """Return the median wall time of some calls."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


@contextmanager
def ledger() -> Iterator[Ledger]:
    """Open a new ledger in a folder that goes away."""
    with tempfile.TemporaryDirectory() as folder, closing(Ledger.open(folder)) as opened:
        yield opened


# Memory


def vector(source: random.Random) -> list[float]:
    """Return a random direction."""
    return [source.gauss(0, 1) for _ in range(DIMENSIONS)]


def text(source: random.Random) -> str:
    """Return ten words of a vocabulary of 5,000, one of which stands in every memory."""
    return " ".join(["always", *(f"w{source.randrange(5_000)}" for _ in range(9))])


def remember(kept: Ledger, source: random.Random, start: int, count: int) -> None:
    """Store memories in one transaction."""
    with kept.write():
        for number in range(start, start + count):
            memory.remember(
                kept, f"m{number}", text(source), embedding=vector(source), importance=source.random(),
                created_at=NOW - timedelta(days=source.random() * 365), now=NOW,
            )  # fmt: skip


def plain_recall(kept: Ledger, query: memory.Query, limit: int) -> tuple[memory.MemoryHit, ...]:
    """Return what the plain definition returns, all rows scored by the functions that the lesson shows."""
    with kept.read() as tx:
        rows = tx.all("SELECT * FROM memories WHERE content IS NOT NULL AND superseded_by IS NULL ORDER BY seq")
    weights = memory.Weights()
    seen = map(memory.from_row, rows)
    return memory.rank([(one, memory.score(query, one, weights)) for one in seen], limit, weights)


FIRST = """
import json, sys, time
from pathlib import Path
from sovereign_agent.ledger import Ledger
from sovereign_agent.memory import recall
kept = Ledger.open(sys.argv[1])
asked = json.loads(sys.stdin.read())
def kib(name):  # getrusage would answer with the parent's peak
    return int(Path("/proc/self/status").read_text().split(name + ":")[1].split()[0])
before = kib("VmRSS")
start = time.perf_counter()
recall(kept, "always w7", actor_id="a", query_embedding=asked)
print(time.perf_counter() - start, kib("VmHWM") - before)
"""


def measure_memory(size: int, asked: int) -> list[Row]:
    """Measure recall, warm, common, plain, in a new process, and after another process stored."""
    source = random.Random(8)  # noqa: S311 - made-up data, the same in every run
    warm: dict[int, dict[str, float]] = {}
    rows: list[Row] = []
    for count in (max(size // 100, memory.FAST_FROM), size):
        with tempfile.TemporaryDirectory() as folder, closing(Ledger.open(folder)) as kept:
            remember(kept, source, 0, count)
            query = vector(source)

            def recall(words: str, kept: Ledger = kept, query: Sequence[float] = query) -> tuple[memory.MemoryHit, ...]:
                return memory.recall(kept, words, actor_id="a", query_embedding=query, now=NOW)

            recall("w7 w8")
            warm[count] = {
                "rare": seconds(lambda recall=recall: recall("w7 w8"), asked),  # type: ignore[misc]
                "common": seconds(lambda recall=recall: recall("always w7"), asked),  # type: ignore[misc]
            }
            if count < size:
                continue
            question = memory.Query(frozenset({"always", "w7"}), memory.unit("query", query), None, NOW)
            start = time.perf_counter()
            same = plain_recall(kept, question, 5) == recall("always w7")
            plain = time.perf_counter() - start
            if not same:
                raise SystemExit("recall differs from the plain definition")
            done = subprocess.run(
                [sys.executable, "-c", FIRST, folder],
                input=json.dumps(query),
                capture_output=True,
                text=True,
                check=True,
            )
            first, kib = map(float, done.stdout.split())
            with closing(Ledger.open(folder)) as other:
                memory.remember(other, "late", "always w7", importance=1.0, embedding=query, created_at=NOW, now=NOW)
            start = time.perf_counter()
            seen = recall("always w7")[0].id
            after = time.perf_counter() - start
            if seen != "late":
                raise SystemExit("recall does not see what another connection stored")
            small = warm[min(warm)]
            ms = {name: value * 1e3 for name, value in warm[count].items()}
            rows += [
                most("recall, warm", ms["rare"], "ms", 30, at_hundredth=small["rare"] * 1e3, plain=plain * 1e3),
                most("recall, warm, a query word in every memory", ms["common"], "ms", 30,
                     at_hundredth=small["common"] * 1e3, plain=plain * 1e3),
                most("recall without numpy", plain, "s", 4),
                most("first recall in a new process", first, "s", 1.5),
                most("memory of the first recall / raw vectors", kib * 1024 / (4 * DIMENSIONS * count), "times", 2.2),
                most("recall after another connection stored one / first recall", after / first, "times", 0.2,
                     ms=after * 1e3),
            ]  # fmt: skip
    return rows


# Transcripts


def fill(kept: Ledger, session: str, count: int) -> None:
    """Append exchanges of one call and its result."""
    with kept.write():
        for number in range(count // 2):
            call = f"c{number}"
            context.append_message(kept, session, "assistant", "look", tool_calls=(call,), now=NOW)
            context.append_message(kept, session, "tool", "found", tool_call_id=call, now=NOW)


def measure_context(size: int, appended: int, times: int) -> list[Row]:
    """Measure compact_one, render_context and append_message, each beside 1/100 of the size."""
    rows: list[Row] = []
    cost: dict[int, float] = {}
    for count in (size // 100, size):
        with ledger() as kept:
            fill(kept, "s", count)
            before = context.coverage(kept, "s")
            cost[count] = seconds(
                lambda kept=kept: context.compact_one(kept, "s", lambda _, __: "sum", max_rows=2, now=NOW),  # type: ignore[misc]
                times,
            )
            if context.coverage(kept, "s") == before:
                raise SystemExit("nothing was compacted")
            if count == size:
                left = min(500, count // 2)
                context.compact_one(kept, "s", lambda _, __: "all", max_rows=count - left, now=NOW)
                shown = len(context.render_context(kept, "s"))
                render = seconds(lambda kept=kept: context.render_context(kept, "s"), times)  # type: ignore[misc]
                rows.append(most("render_context", render * 1e3, "ms", 15, items_shown=float(shown)))
    rows.append(most("compact_one, cost against 1/100 of the rows", cost[size] / cost[size // 100], "times", 1.3,
                     ms=cost[size] * 1e3))  # fmt: skip
    with ledger() as kept:
        for session, count in (("small", max(2, appended // 1_000)), ("large", appended)):
            fill(kept, session, count)
        taken: dict[str, list[float]] = {"small": [], "large": []}
        for number in range(times * 2):  # in turn, so that both meet the same load
            session = ("small", "large")[number % 2]
            taken[session].append(
                seconds(lambda s=session: context.append_message(kept, s, "user", "hello", now=NOW), 1)  # type: ignore[misc]
            )
    small, large = (statistics.median(taken[name]) for name in ("small", "large"))
    rows.append(most("append_message, cost against 1/1000 of the rows", large / small, "times", 1.2, ms=large * 1e3))
    return rows


# Tools, watchers


def catalog(size: int) -> ToolCatalog:
    """Return a catalogue of made-up tools."""
    source = random.Random(4)  # noqa: S311 - made-up data, the same in every run
    verbs, nouns = ("read", "list", "send", "make", "drop"), [f"thing{n}" for n in range(500)]
    return ToolCatalog(
        [
            Tool(f"{source.choice(verbs)}_{source.choice(nouns)}_{n}", f"Use {source.choice(nouns)} to read one record")
            for n in range(size)
        ]
    )


def measure_tools(size: int, times: int) -> list[Row]:
    """Measure discover and its construction."""
    cost: dict[int, float] = {}
    for count in (size // 100, size):
        built = seconds(lambda count=count: catalog(count), 1)  # type: ignore[misc]
        made = catalog(count)
        cost[count] = seconds(lambda made=made: made.discover("read thing7 record"), times)  # type: ignore[misc]
    return [
        most("discover, words in every tool", cost[size] * 1e3, "ms", 5, at_hundredth=cost[size // 100] * 1e3),
        most("ToolCatalog construction", built, "s", 1.5),
    ]


def measure_watchers(size: int, times: int) -> list[Row]:
    """Measure run_all_due with ten due watchers among few and many."""
    due = min(10, size // 10)
    cost: dict[int, float] = {}
    quiet = automation.WatchDecision(fire=False, message="", state={})
    handler = automation.Handler(lambda _: quiet, lambda _, __: None)
    for count in (due, size):
        with ledger() as kept:
            with kept.write():
                for number in range(count):
                    first = NOW if number < due else NOW + timedelta(days=365)
                    automation.create_automation(
                        kept, f"a{number}", interval_seconds=60, payload="p", first_run_at=first, now=NOW
                    )
            ticks = iter(range(1, 10_000))
            ran = automation.run_all_due(kept, {"p": handler}, now=NOW + timedelta(seconds=30))
            if [one.status for one in ran] != ["NO_FIRE"] * due:
                raise SystemExit(f"the due watchers did not run: {ran}")
            cost[count] = seconds(
                lambda kept=kept, ticks=ticks: automation.run_all_due(  # type: ignore[misc]
                    kept, {"p": handler}, now=NOW + timedelta(seconds=60 * next(ticks))
                ),
                times,
            )
    return [most("run_all_due, 10 due", cost[size] * 1e3, "ms", 25, only_the_due=cost[due] * 1e3)]


# Sessions, opening

CLAIMS = """
import sys, time
from sovereign_agent import coordination
from sovereign_agent.errors import Refusal
from sovereign_agent.ledger import Ledger
kept = Ledger.open(sys.argv[1]); host = sys.argv[2]; count = int(sys.argv[3])
coordination.register_host(kept, host, ttl_seconds=3600)
slowest = 0.0; refused = 0; start = time.time()
for number in range(count):
    for step in (lambda: globals().update(claim=coordination.claim_session(kept, f"{host}-{number}", host)),
                 lambda: coordination.finish_session(kept, claim, "done")):
        began = time.perf_counter()
        try:
            step()
        except Refusal:  # the lock was held for longer than the busy timeout
            refused += 1
            break
        finally:
            slowest = max(slowest, time.perf_counter() - began)
print(start, time.time(), slowest, refused)
"""


def measure_sessions(count: int) -> list[Row]:
    """Measure claim and finish against a bare loop of two commits, and eight processes against one."""
    with ledger() as kept, tempfile.TemporaryDirectory() as folder:
        bare = sqlite3.connect(Path(folder) / "bare.db", isolation_level=None)
        bare.execute("PRAGMA journal_mode = WAL")
        bare.execute("PRAGMA synchronous = FULL")
        bare.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT)")
        coordination.register_host(kept, "h", ttl_seconds=3600)
        numbers = iter(range(10_000_000))

        def two_commits() -> None:
            for _ in range(2):
                bare.execute("BEGIN IMMEDIATE")
                bare.execute("INSERT INTO t (b) VALUES ('x')")
                bare.execute("COMMIT")

        def claim_and_finish() -> None:
            coordination.finish_session(kept, coordination.claim_session(kept, f"s{next(numbers)}", "h"), "done")

        ours, theirs = [], []
        for _ in range(count):  # in turn, so that both meet the same load
            theirs.append(seconds(two_commits, 1))
            ours.append(seconds(claim_and_finish, 1))
        bare.close()
        rows = [least("claim + finish, rate against a bare loop", statistics.median(theirs) / statistics.median(ours),
                      "times", 0.45, ms=statistics.median(ours) * 1e3)]  # fmt: skip

    def together(workers: int) -> tuple[float, float, float]:
        with tempfile.TemporaryDirectory() as folder:
            Ledger.open(folder).close()
            running = [
                subprocess.Popen([sys.executable, "-c", CLAIMS, folder, f"h{n}", str(count)], stdout=subprocess.PIPE)
                for n in range(workers)
            ]
            said = [process.communicate()[0].split() for process in running]
            if any(process.returncode for process in running):
                raise SystemExit("a process that claims sessions failed")
        spans = [tuple(map(float, one)) for one in said]
        wall = max(span[1] for span in spans) - min(span[0] for span in spans)
        refused = sum(span[3] for span in spans)
        return (workers * count - refused) / wall, max(span[2] for span in spans), refused

    alone, _, _ = together(1)
    all_of_them, slowest, refused = together(WORKERS)
    row = least("8 processes together, rate against one", all_of_them / alone, "times", 0.4,
                slowest_call_seconds=slowest, refused_calls=refused)  # fmt: skip
    return [*rows, replace(row, holds=bool(row.holds) and refused == 0)]


def measure_opening(times: int) -> list[Row]:
    """Measure opening an existing ledger, and the scenario as a process."""
    with tempfile.TemporaryDirectory() as folder:
        Ledger.open(folder).close()
        opened = seconds(lambda: Ledger.open(folder).close(), times)
        command = [sys.executable, "-m", "sovereign_agent", "mechanisms", "--root", folder]
        process = seconds(lambda: subprocess.run(command, check=True, capture_output=True), max(1, times // 3))
        bare = seconds(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True), max(1, times // 3))
    return [
        most("opening an existing ledger", opened * 1e3, "ms", 5),
        most("sovereign-agent mechanisms as a process", process * 1e3, "ms", 150, bare_python=bare * 1e3),
    ]


def digest() -> str:
    """Return one digest of the files that are measured, and of this one."""
    found = hashlib.sha256()
    for path in sorted([*(ROOT / "src/sovereign_agent").glob("*.py"), Path(__file__)]):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def run(*, quick: bool) -> dict[str, object]:
    """Measure all rows, and say where and when."""
    load, measured = os.getloadavg()[0], digest()
    rows = [
        *measure_opening(3 if quick else 30),
        *measure_tools(200 if quick else 10_000, 3 if quick else 50),
        *measure_watchers(20 if quick else 1_000, 3 if quick else 20),
        *measure_sessions(10 if quick else 200),
        *measure_context(2_000 if quick else 30_000, 2_000 if quick else 100_000, 3 if quick else 40),
        *measure_memory(1_500 if quick else 100_000, 3 if quick else 30),
    ]
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "quick": quick,
        "commit": commit.stdout.strip(),
        "measured": measured,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {
            "cores": os.cpu_count(),
            "system": platform.platform(terse=True),
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            "load_before": round(load, 2),
            "load_after": round(os.getloadavg()[0], 2),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        },
        "rows": [asdict(replace(row, holds=None) if quick else row) for row in rows],
    }


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Measure every row of the table.")
    parser.add_argument("--quick", action="store_true", help="small sizes, seconds: shows that everything runs")
    parser.add_argument("-o", "--output", type=Path, help="where to write the JSON; standard output when omitted")
    options = parser.parse_args()
    found = json.dumps(run(quick=options.quick), indent=2) + "\n"
    if options.output:
        options.output.write_text(found)
    else:
        sys.stdout.write(found)


if __name__ == "__main__":
    main()
