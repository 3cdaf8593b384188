"""Benchmarks: what every mechanism costs at size, beside what tells whether that is much, in one run and one file.

`uv run python benchmarks/run.py -o FILE` measures all rows of the table and writes JSON; `--write` records it as
`docs/evidence/benchmarks.json`, which a page shows; `--quick` takes small sizes and shows only that everything still
runs. A figure is the median wall time of its repetitions on this machine under whatever load it had, which the file
names. Beside it stand its cost at 1/100 of the size, the plain definition where a fast path replaces one, and a peer
where one is at hand. Where a fast path answers otherwise than the plain definition, the run ends.

Not pytest-benchmark: it times one callable at a time, and most rows here are something else: a ratio of two things
measured in turn so that both meet the same load, a process, several processes at once, memory, a growth over sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import ranking

from sovereign_agent import automation, context, coordination, memory, memory_columns, memory_index
from sovereign_agent.ledger import Ledger
from sovereign_agent.text import words
from sovereign_agent.tools import Tool, ToolCatalog, forms, rarity, strengths

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / ".ci"))
import record  # noqa: E402 - beside the other commands that record a run

MEASURED = ("src/sovereign_agent/*.py", "benchmarks/*.py")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
DIMENSIONS = 384
WORKERS = 8
PROCESS = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""The environment of measured processes, which find the package compiled, as an installed one is."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    operation: str
    figure: float
    unit: str
    limit: str
    """`at most` or `at least`."""
    bound: float
    holds: bool | None
    """Whether the figure keeps its bound; None at the quick size, which gives no verdict."""
    hundredth: float | None = None
    """The same at 1/100 of the size."""
    plain: float | None = None
    """The plain definition, which does the same without a fast path."""
    peer: float | None = None
    peer_name: str = ""
    beside: Mapping[str, float] | None = None
    """What else was measured, by name with its unit."""


def most(operation: str, figure: float, unit: str, bound: float, **more: Any) -> Row:
    """Return a row whose figure must stay under its bound."""
    return Row(operation, figure, unit, "at most", bound, figure <= bound, **more)


def least(operation: str, figure: float, unit: str, bound: float, **more: Any) -> Row:
    """Return a row whose figure must reach its bound."""
    return Row(operation, figure, unit, "at least", bound, figure >= bound, **more)


@dataclass(frozen=True, slots=True)
class Growth:
    """What one operation costs at several sizes."""

    chart: str
    name: str
    points: tuple[tuple[int, float], ...]
    """Size and milliseconds."""


Measured = tuple[list[Row], list[Growth]]


def seconds(call: Callable[[], object], times: int) -> float:
    """Return the median wall time of some calls."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def growth(chart: str, name: str, cost: Mapping[int, float]) -> Growth:
    """Return a line of a chart from seconds by size."""
    return Growth(chart, name, tuple((size, taken * 1e3) for size, taken in sorted(cost.items())))


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


def plain_recall(kept: Ledger, query: str, embedding: Sequence[float]) -> tuple[memory.MemoryHit, ...]:
    """Return what recall returns without an index: every row loaded and scored."""
    with without_index():
        return memory.recall(kept, query, actor_id="a", query_embedding=embedding, now=NOW)


@contextmanager
def without_index() -> Iterator[None]:
    """Let recall take the plain path."""
    before, memory.FAST_FROM = memory.FAST_FROM, sys.maxsize
    try:
        yield
    finally:
        memory.FAST_FROM = before


@contextmanager
def using(index: object) -> Iterator[None]:
    """Let recall use one of the indexes."""
    before, memory._find_index = memory._find_index, lambda: index  # type: ignore[assignment, return-value]  # noqa: SLF001
    try:
        yield
    finally:
        memory._find_index = before  # noqa: SLF001


def require_same(kept: Ledger, source: random.Random, queries: int, *, whole: bool) -> int:
    """Compare both indexes with the plain definition: hits, order, every component; end the run where they differ.

    Parameters:
        kept: Where to recall.
        source: Where the queries come from.
        queries: How many.
        whole: Whether each plain answer reads the ledger, as recall does; else all rows are read once.
    """
    with kept.read() as tx:
        stored = (
            tx.all("SELECT * FROM memories WHERE content IS NOT NULL AND superseded_by IS NULL") if not whole else []
        )
    rows = list(map(memory.from_row, stored))
    for number in range(queries):
        asked = source.choice(["always", f"w{source.randrange(5_000)}", text(source), "always w7 w8", "nothing"])
        embedding = source.choice([vector(source), vector(source), None])
        limit, weights = source.choice([1, 5, 5, 20]), memory.Weights()
        if number % 4 == 3:
            weights = memory.Weights(*(source.random() for _ in range(5)))
        if whole:
            with without_index():
                plain = memory.recall(kept, asked, actor_id="a", query_embedding=embedding, limit=limit, now=NOW,
                                      weights=weights)  # fmt: skip
        else:
            unit = None if embedding is None else memory.unit("query", embedding)
            query = memory.Query(frozenset(words(asked)), unit, None, NOW)
            scored = [(one, memory.score(query, one, weights)) for one in rows]
            plain = memory.rank(scored, limit, weights)
        for index in (memory_index, memory_columns):
            with using(index):
                fast = memory.recall(kept, asked, actor_id="a", query_embedding=embedding, limit=limit, now=NOW,
                                     weights=weights)  # fmt: skip
            if fast != plain:
                raise SystemExit(f"{index.__name__} differs from the plain definition: {asked!r}")
    return queries


FIRST = """
import json, sys, time
from pathlib import Path
if sys.argv[2] == "without numpy":
    sys.modules["numpy"] = None
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

STORE = """
import json, sys
from sovereign_agent.ledger import Ledger
from sovereign_agent.memory import remember
kept = Ledger.open(sys.argv[1])
asked = json.loads(sys.stdin.readline())
for number in range(int(sys.argv[2])):
    remember(kept, f"late{number}", f"always late{number}", embedding=asked, importance=1.0)
    print(number, flush=True)  # it is committed
"""


def first_recall(folder: str, query: Sequence[float], how: str) -> tuple[float, float]:
    """Return seconds and bytes of the first recall in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST, folder, how],
        input=json.dumps(query), capture_output=True, text=True, check=True, env=PROCESS,
    )  # fmt: skip
    taken, kib = map(float, done.stdout.split())
    return taken, kib * 1024


def while_storing(kept: Ledger, folder: str, query: Sequence[float], times: int) -> list[float]:
    """Return what each recall took while another process stored; end the run where one missed a committed row."""
    taken: list[float] = []
    with subprocess.Popen(
        [sys.executable, "-c", STORE, folder, str(times)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=PROCESS,
    ) as other:  # fmt: skip
        if other.stdin is None or other.stdout is None:
            raise AssertionError("unreachable: both are pipes")
        other.stdin.write(json.dumps(query) + "\n")
        other.stdin.close()
        for line in other.stdout:
            start = time.perf_counter()
            hits = memory.recall(kept, f"late{line.strip()}", actor_id="a", query_embedding=query, now=NOW)
            taken.append(time.perf_counter() - start)
            if f"late{line.strip()}" not in {hit.id for hit in hits}:
                raise SystemExit("recall does not see what another process has stored")
    if len(taken) != times:
        raise SystemExit("the other process did not store")
    return taken


def measure_memory(size: int, asked: int, queries: int) -> Measured:
    """Measure recall: warm, with and without numpy, plainly, in a new process, and while another process stores."""
    source = random.Random(8)  # noqa: S311 - made-up data, the same in every run
    sizes = sorted({max(size // part, memory.FAST_FROM) for part in (100, 10, 1)})
    cost: dict[str, dict[int, float]] = {name: {} for name in ("rare", "common", "columns", "plain", "peer", "opening")}
    with tempfile.TemporaryDirectory() as folder, closing(Ledger.open(folder)) as kept:
        stored = compared = 0
        for count in sizes:
            while stored < count:
                remember(kept, source, stored, min(5_000, count - stored))
                stored = min(stored + 5_000, count)
            query = vector(source)

            def recall(query: Sequence[float] = query, said: str = "w7 w8") -> tuple[memory.MemoryHit, ...]:
                return memory.recall(kept, said, actor_id="a", query_embedding=query, now=NOW)

            def common(query: Sequence[float] = query) -> tuple[memory.MemoryHit, ...]:
                return memory.recall(kept, "always w7", actor_id="a", query_embedding=query, now=NOW)

            recall()
            cost["rare"][count], cost["common"][count] = seconds(recall, asked), seconds(common, asked)
            with using(memory_columns):
                recall()
                cost["columns"][count] = seconds(common, max(3, asked // 3))
            cost["plain"][count] = seconds(lambda query=query: plain_recall(kept, "always w7", query), 1)  # type: ignore[misc]
            cost["opening"][count] = seconds(lambda: Ledger.open(folder).close(), asked)
            if count == sizes[0]:
                compared = require_same(kept, source, queries, whole=False)
        compared_whole = require_same(kept, source, 3, whole=True)
        with kept.read() as tx:
            rows = tx.all("SELECT embedding FROM memories ORDER BY seq")
        matrix = np.frombuffer(b"".join(row["embedding"] for row in rows), "<f4").reshape(-1, DIMENSIONS)
        del rows
        asked_vector = np.array(query, dtype=np.float32)
        peer = seconds(lambda: np.argpartition(matrix @ asked_vector, -5)[-5:], asked)
        bare = seconds(lambda: bare_opening(kept.path), asked)
        first, held = first_recall(folder, query, "with numpy")
        first_columns, held_columns = first_recall(folder, query, "without numpy")
        storing = while_storing(kept, folder, query, asked)
    raw, small = 4 * DIMENSIONS * size, sizes[0]
    ms = {name: {count: taken * 1e3 for count, taken in by_size.items()} for name, by_size in cost.items()}
    same = {"peer_name": "numpy: one product of all vectors in memory, best cosines only"}
    rows_ = [
        most("recall, warm", ms["rare"][size], "ms", 30, hundredth=ms["rare"][small], plain=ms["plain"][size],
             peer=peer * 1e3, **same),
        most("recall, warm, a query word in every memory", ms["common"][size], "ms", 30,
             hundredth=ms["common"][small], plain=ms["plain"][size], peer=peer * 1e3, **same),
        least("queries on which both indexes equal the plain definition", compared, "queries", queries,
              beside={"memories": sizes[0], "more queries among all memories": compared_whole}),
        most("recall without numpy", cost["columns"][size], "s", 4, hundredth=cost["columns"][small],
             plain=cost["plain"][size]),
        least("plain definition / recall without numpy", cost["plain"][size] / cost["columns"][size], "times", 4),
        most("first recall in a new process", first, "s", 1.5, beside={"without numpy, s": first_columns}),
        most("memory of the first recall / raw vectors", held / raw, "times", 2.2,
             beside={"without numpy, times": held_columns / raw}),
        most("recall while another process stores / first recall", statistics.median(storing) / first, "times", 0.2,
             beside={"ms": statistics.median(storing) * 1e3, "slowest, ms": max(storing) * 1e3,
                     "stored meanwhile": len(storing)}),
        most("opening an existing ledger", ms["opening"][size], "ms", 5, hundredth=ms["opening"][small],
             peer=bare * 1e3, peer_name="sqlite3.connect and one SELECT"),
    ]  # fmt: skip
    chart = "recall, by memories"
    lines = [
        growth(chart, "plain definition", cost["plain"]),
        growth(chart, "standard library", cost["columns"]),
        growth(chart, "with numpy", cost["common"]),
    ]
    return rows_, lines


def bare_opening(path: Path) -> None:
    """Open a database without any check of ours, and ask one thing."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()


# Transcripts


def fill(kept: Ledger, session: str, count: int) -> None:
    """Append exchanges of one call and its result."""
    with kept.write():
        for number in range(count // 2):
            call = f"c{number}"
            context.append_message(kept, session, "assistant", "look", tool_calls=(call,), now=NOW)
            context.append_message(kept, session, "tool", "found", tool_call_id=call, now=NOW)


def measure_context(size: int, appended: int, times: int) -> Measured:
    """Measure compact_one, render_context and append_message at several sizes."""
    compact: dict[int, float] = {}
    render: dict[int, float] = {}
    append: dict[int, list[float]] = {}
    shown = 0
    for count in (size // 100, size // 10, size):
        with ledger() as kept:
            fill(kept, "s", count)
            before = context.coverage(kept, "s")
            compact[count] = seconds(
                lambda kept=kept: context.compact_one(kept, "s", lambda _, __: "sum", max_rows=2, now=NOW),  # type: ignore[misc]
                times,
            )
            if context.coverage(kept, "s") == before:
                raise SystemExit("nothing was compacted")
            left = max(10, count // 60)
            context.compact_one(kept, "s", lambda _, __: "all", max_rows=count - left, now=NOW)
            shown = len(context.render_context(kept, "s"))
            render[count] = seconds(lambda kept=kept: context.render_context(kept, "s"), times)  # type: ignore[misc]
    with ledger() as kept:
        counts = [max(2, appended // part) for part in (1_000, 100, 10, 1)]
        for count in counts:
            fill(kept, f"s{count}", count)
            append[count] = []
        for _ in range(times):  # in turn, so that all meet the same load
            for count, taken in append.items():
                taken.append(
                    seconds(lambda s=f"s{count}": context.append_message(kept, s, "user", "hello", now=NOW), 1)  # type: ignore[misc]
                )
    appends = {count: statistics.median(taken) for count, taken in append.items()}
    rows = [
        most("render_context", render[size] * 1e3, "ms", 15, hundredth=render[size // 100] * 1e3,
             beside={"items shown": shown}),
        most("compact_one, cost against 1/100 of the rows", compact[size] / compact[size // 100], "times", 1.3,
             beside={"ms": compact[size] * 1e3}),
        most("append_message, cost against 1/1000 of the rows", appends[counts[-1]] / appends[counts[0]], "times", 1.2,
             beside={"ms": appends[counts[-1]] * 1e3}),
    ]  # fmt: skip
    chart = "transcripts, by rows"
    return rows, [
        growth(chart, "render_context", render),
        growth(chart, "compact_one", compact),
        growth(chart, "append_message", appends),
    ]


# Tools, watchers


def catalog(size: int) -> list[Tool]:
    """Return made-up tools."""
    source = random.Random(4)  # noqa: S311 - made-up data, the same in every run
    verbs, nouns = ("read", "list", "send", "make", "drop"), [f"thing{n}" for n in range(500)]
    return [
        Tool(f"{source.choice(verbs)}_{source.choice(nouns)}_{n}", f"Use {source.choice(nouns)} to read one record")
        for n in range(size)
    ]


def plain_discover(tools: Sequence[Tool], query: str) -> list[str]:
    """Return the names of the best five tools by the definition: every tool's words against every word of the query."""
    asked = tuple(dict.fromkeys(words(query)))
    table = [(tool, strengths(tool)) for tool in tools]

    def strength(own: Mapping[str, float], word: str) -> float:
        return max(own.get(form, 0.0) * (1 if form == word else 0.8) for form in forms(word))

    weight = {word: rarity(len(table), sum(strength(own, word) > 0 for _, own in table)) for word in asked}
    scored = []
    for tool, own in table:
        total = 0.0
        for word in asked:
            total += weight[word] * strength(own, word)
        if total:
            scored.append((words(tool.name) != words(query), -total, tool.name))
    return [name for *_, name in sorted(scored)][:5]


def measure_tools(size: int, times: int) -> Measured:
    """Measure discover and its construction."""
    asked = {"discover": "read thing7 record", "discover, each word in every tool": "use to read one record"}
    cost: dict[str, dict[int, float]] = {name: {} for name in (*asked, "built", "plain", "peer", "peer built")}
    for count in (size // 100, size // 10, size):
        tools = catalog(count)
        start = time.perf_counter()
        made = ToolCatalog(tools)
        cost["built"][count] = time.perf_counter() - start
        for name, query in asked.items():
            cost[name][count] = seconds(lambda made=made, query=query: made.discover(query), times)  # type: ignore[misc]
            start = time.perf_counter()
            plain = plain_discover(tools, query)
            cost["plain"][count] = time.perf_counter() - start
            if plain != [tool.name for tool in made.discover(query).tools]:
                raise SystemExit("discover differs from the plain definition")
        start = time.perf_counter()
        peer = bm25s.BM25()
        peer.index([list(words(ranking.tool_text(tool))) for tool in tools], show_progress=False)
        cost["peer built"][count] = time.perf_counter() - start
        split = [list(words(asked["discover"]))]
        cost["peer"][count] = seconds(
            lambda peer=peer, split=split, count=count: peer.retrieve(split, k=min(5, count), show_progress=False),  # type: ignore[misc]
            times,
        )
    ms = {name: {count: taken * 1e3 for count, taken in by_size.items()} for name, by_size in cost.items()}
    rows = [
        most(name, ms[name][size], "ms", 5, hundredth=ms[name][size // 100], plain=ms["plain"][size],
             peer=ms["peer"][size], peer_name="bm25s, the five best")
        for name in asked
    ]  # fmt: skip
    built = most("ToolCatalog, construction", cost["built"][size], "s", 1.5, hundredth=cost["built"][size // 100],
                 peer=cost["peer built"][size], peer_name="bm25s, index")  # fmt: skip
    chart = "discover, by tools"
    lines = [
        growth(chart, "plain definition", cost["plain"]),
        growth(chart, "BM25 (bm25s)", cost["peer"]),
        growth(chart, "each word in every tool", cost["discover, each word in every tool"]),
        growth(chart, "one rare word", cost["discover"]),
    ]
    return [*rows, built], lines


def measure_watchers(size: int, times: int) -> Measured:
    """Measure run_all_due with ten due watchers among few and many."""
    due = min(10, size // 10)
    cost: dict[int, float] = {}
    plain: dict[int, float] = {}
    quiet = automation.WatchDecision(fire=False, message="", state={})
    handler = automation.Handler(lambda _: quiet, lambda _, __: None)
    for count in sorted({due, max(due, size // 10), size}):
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

            def each(kept: Ledger = kept, ticks: Iterator[int] = ticks, count: int = count) -> None:
                now = NOW + timedelta(seconds=60 * next(ticks))
                for number in range(count):
                    automation.run_due(kept, f"a{number}", handler.condition, handler.payload, now=now)

            plain[count] = seconds(each, 3)
    row = most("run_all_due, 10 due", cost[size] * 1e3, "ms", 25, hundredth=cost[due] * 1e3, plain=plain[size] * 1e3)
    chart = "watchers of which 10 are due"
    return [row], [growth(chart, "run_due for each", plain), growth(chart, "run_all_due", cost)]


# Sessions, processes

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


def measure_sessions(count: int) -> Measured:
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
        mine, peer = statistics.median(ours), statistics.median(theirs)
        alone_row = least("claim + finish, rate against a bare loop", peer / mine, "times", 0.45,
                          beside={"ms": mine * 1e3, "bare loop, ms": peer * 1e3})  # fmt: skip

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
                beside={"slowest call, s": slowest, "refused calls": refused})  # fmt: skip
    return [alone_row, replace(row, holds=bool(row.holds) and refused == 0)], []


def measure_process(times: int) -> Measured:
    """Measure the scenario as a process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "sovereign_agent", "mechanisms", "--root", folder]
        subprocess.run(command, check=True, capture_output=True, env=PROCESS)
        process = seconds(lambda: subprocess.run(command, check=True, capture_output=True, env=PROCESS), times)
        bare = seconds(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True, env=PROCESS), times)
        click = seconds(lambda: subprocess.run([sys.executable, "-c", "import click"], check=True, env=PROCESS), times)
    row = most("sovereign-agent mechanisms as a process", process * 1e3, "ms", 150, peer=bare * 1e3,
               peer_name="a Python process that does nothing", beside={"import of click, ms": click * 1e3})  # fmt: skip
    return [row], []


def run(*, quick: bool) -> dict[str, Any]:
    """Measure all rows, and say where and when."""
    found = record.about(*MEASURED)
    parts = [
        measure_process(2 if quick else 20),
        measure_tools(200 if quick else 10_000, 3 if quick else 50),
        measure_watchers(20 if quick else 1_000, 3 if quick else 20),
        measure_sessions(10 if quick else 200),
        measure_context(2_000 if quick else 30_000, 2_000 if quick else 100_000, 3 if quick else 40),
        measure_memory(1_500 if quick else 100_000, 3 if quick else 30, 10 if quick else 1_000),
    ]
    quality = {"tools": ranking.tools(), "memories": ranking.memories()}
    found["machine"] |= {"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}
    return found | {
        "quick": quick,
        "rows": [asdict(replace(row, holds=None) if quick else row) for rows, _ in parts for row in rows],
        "growth": [asdict(line) for _, lines in parts for line in lines],
        "ranking": {
            of: {group: {name: asdict(one) for name, one in by.items()} for group, by in groups.items()}
            for of, groups in quality.items()
        },
    }


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Measure every row of the table.")
    parser.add_argument("--quick", action="store_true", help="small sizes, seconds: shows that everything runs")
    parser.add_argument("--write", action="store_true", help="record the run for the evidence page")
    parser.add_argument("-o", "--output", type=Path, help="where to write the JSON; standard output when omitted")
    options = parser.parse_args()
    if options.write and options.quick:
        parser.error("a quick run is no record")
    if options.write:
        record.require_commit()
    found = run(quick=options.quick)
    if options.write:
        record.write("benchmarks", found)
    elif options.output:
        options.output.write_text(json.dumps(found, indent=2) + "\n")
    else:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
