"""Times: how long this site takes to build, how long its author waits for an edit to show, and where the time goes.

`python .ci/times.py [RUNS]` clones HEAD and prints medians, each beside what it is meant to be; with `--write` they are
recorded in `docs/evidence/times.json`, which a page shows. It fails where a build fails, is missing or is one too many,
never for being slow: a machine that does other things at the same time would make that a lottery.

`python .ci/times.py --inside FILE ARGUMENTS` is `mkdocs ARGUMENTS`, with one line of JSON in FILE for each build: the
seconds of each of its parts, and how many seconds each process that it started has worked.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import record

DOCS = ("docs/lessons/tools.md", "lessons/tools/")
SRC = ("src/sovereign_agent/tools.py", "reference/api/tools/")
MEANT = {
    "strict build, nothing remembered": 25,
    "strict build, everything remembered": 5,
    "first page of a server": 4,
    "edit under docs/, until it shows": 3,
    "edit under src/, until it shows": 3,
}
"""Seconds within which each is meant to be."""
COLD, WARM, FIRST, EDIT_DOCS, EDIT_SRC = MEANT
MEASURED = ("src/bookproof/*.py", "mkdocs.yml", "pyproject.toml")
LIMIT_SECONDS = 120
TICK = 0.02
TICKS = os.sysconf("SC_CLK_TCK")
PARTS = {
    "config": "reading the configuration",
    "files": "starting the worker, the tests and the mutations",
    "env": "completing pages: citations, claims, diagrams, verdicts",
    "post_build": "source pages, search index, checks, manifest",
}
"""What a build does at each of MkDocs' events, as far as it takes time."""
PROCESSES = {
    "worker.py": "examples",
    "testrun_child.py run": "cited tests",
    "testrun_child.py serve": "mutations",
    "node": "diagrams and labs, in node",
}


def main(runs: int, *, keep: bool) -> None:
    """Measure, print, and record if asked."""
    if keep:
        record.require_commit()
    found = record.about(*MEASURED)
    taken: dict[str, list[float]] = {name: [] for name in MEANT}
    parts: dict[str, list[dict[str, Any]]] = {name: [] for name in MEANT}
    with tempfile.TemporaryDirectory(prefix="times-") as name:
        clone = Path(name) / "clone"
        subprocess.run(["git", "clone", "--quiet", str(record.ROOT), str(clone)], check=True)
        (clone / "node_modules").symlink_to(record.ROOT / "node_modules")
        for _ in range(runs):
            for what in (COLD, WARM):
                if what == COLD:
                    subprocess.run(["git", "clean", "-qfdx", "-e", "node_modules"], cwd=clone, check=True)
                start = time.monotonic()
                subprocess.run(mkdocs(clone, "build", "--strict", "-q"), cwd=clone, env=environment(clone), check=True)
                taken[what].append(time.monotonic() - start)
                parts[what].append(last(clone))
        for _ in range(runs + 1):  # the first finds nothing that it had remembered for a server
            with serving(clone) as (address, _log):
                taken[FIRST].append(wait(address, "", "<title>"))
                parts[FIRST].append(last(clone))
        with serving(clone) as (address, log):
            wait(address, "", "<title>")
            builds = quiet(log)
            for number in range(runs + 1):
                for what, (file, page) in ((EDIT_DOCS, DOCS), (EDIT_SRC, SRC)):
                    word = f"edit{number}{Path(file).suffix[1:]}"
                    path = clone / file
                    text = path.read_text("utf-8")
                    text = text + f"\n{word}\n" if file == DOCS[0] else text.replace('"""', f'"""{word} ', 1)
                    path.write_text(text, "utf-8")
                    taken[what].append(wait(address, page, word))
                    builds, before = quiet(log), builds
                    parts[what].append(last(clone))
                    if builds != before + 1:
                        sys.exit(f"{builds - before} builds for one edit of {file}:\n{log.read_text('utf-8')}")
    found["rows"] = [row(what, taken[what][-runs:], parts[what][-runs:]) for what in MEANT]
    print(json.dumps(found, indent=2))  # noqa: T201 (the measurement)
    if keep:
        record.write("times", found)


def row(what: str, taken: list[float], parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one measurement: its median, all its runs, and where the median one's time went."""
    middle = statistics.median_low(taken)
    noted = parts[taken.index(middle)]
    costs = noted["work"] if what == COLD else noted["parts"]  # where all cores are busy, work is what counts
    if what != COLD:
        costs["Python's start, or noticing the edit"] = round(middle - sum(costs.values()), 2)
    return {
        "what": what,
        "meant": MEANT[what],
        "median": round(statistics.median(taken), 2),
        "runs": [round(one, 2) for one in taken],
        "costs": dict(sorted(costs.items(), key=lambda one: -one[1])),
    }


def mkdocs(clone: Path, *arguments: str) -> list[str]:
    """Return the command that runs MkDocs and notes where the time goes."""
    return [sys.executable, __file__, "--inside", str(clone.parent / "parts"), *arguments]


def last(clone: Path) -> dict[str, Any]:
    """Return what the last build of a clone noted, once it has."""
    return dict(json.loads((clone.parent / "parts").read_text().splitlines()[-1]))


def environment(clone: Path) -> dict[str, str]:
    """Return what both the build and the server see."""
    known = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTHONDONTWRITEBYTECODE")}
    return known | {"PYTHONPATH": str(clone / "src"), "NO_MKDOCS_2_WARNING": "1"}


@contextmanager
def serving(clone: Path) -> Iterator[tuple[str, Path]]:
    """Serve the clone; give its address and its log."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = clone.parent / "serve.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            mkdocs(clone, "serve", "-a", f"127.0.0.1:{port}"),
            cwd=clone,
            env=environment(clone) | {"SITE_URL": f"http://127.0.0.1:{port}/"},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield f"http://127.0.0.1:{port}/", log
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def wait(address: str, page: str, word: str) -> float:
    """Return the seconds until a page holds a word."""
    start = time.monotonic()
    while time.monotonic() < start + LIMIT_SECONDS:
        try:
            with urllib.request.urlopen(address + page, timeout=30) as answer:  # noqa: S310 (our own server)
                if word in answer.read().decode():
                    return time.monotonic() - start
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass
        time.sleep(TICK)
    sys.exit(f"{page or 'the first page'} did not show {word} within {LIMIT_SECONDS} s")


def quiet(log: Path) -> int:
    """Return how many builds have begun, once no more begin."""
    before, now = -1, 0
    while before != now:
        before, now = now, len(re.findall("Building documentation", log.read_text("utf-8")))
        time.sleep(1.5)
    return now


def inside(file: Path, arguments: list[str]) -> None:
    """Run MkDocs, and note of each build where its time goes."""
    from mkdocs.__main__ import cli
    from mkdocs.commands import build, serve
    from mkdocs.plugins import PluginCollection

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    seconds: defaultdict[str, float] = defaultdict(float)
    work: dict[tuple[int, str], float] = {}
    done = threading.Event()
    threading.Thread(target=watch, args=(work, done), daemon=True).start()

    def timed(part: str, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        start = time.monotonic()
        try:
            return call(*given, **named)
        finally:
            seconds[part] += time.monotonic() - start

    def whole(call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        seconds.clear()
        before, start = time.process_time(), time.monotonic()
        try:
            return call(*given, **named)
        finally:
            parts = {name: round(one, 2) for name, one in seconds.items() if name}
            parts["all else"] = round(time.monotonic() - start - sum(parts.values()), 2)
            own = {"the pages themselves": round(time.process_time() - before, 2)}
            for kind in PROCESSES.values():
                own[kind] = round(sum(one for (_, of), one in work.items() if of == kind), 2)
            with file.open("a") as output:
                output.write(json.dumps({"parts": parts, "work": own}) + "\n")

    for name, told in (("_populate_page", "reading and rendering pages"), ("_build_page", "laying pages out")):
        setattr(build, name, partial(timed, told, getattr(build, name)))
    run_event = PluginCollection.run_event

    def event(self: PluginCollection, name: str, *given: Any, **named: Any) -> Any:
        return timed(PARTS.get(name, ""), run_event, self, name, *given, **named)

    PluginCollection.run_event = event  # type: ignore[method-assign]  # to look at it from outside
    build.build = serve.build = partial(whole, build.build)  # type: ignore[attr-defined]
    try:
        cli(arguments)
    finally:
        done.set()


def children(process: int) -> list[str]:
    """Return the processes that the threads of one have started and not yet waited for."""
    found = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):  # of a thread that has just ended
            found += path.read_text().split()
    return found


def watch(work: dict[tuple[int, str], float], done: threading.Event) -> None:
    """Note how many seconds each process that this one has started has worked, with those that it waited for."""
    me = os.getpid()
    while not done.wait(TICK):
        for child in children(me):
            try:
                line = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
                told = Path(f"/proc/{child}/stat").read_text().rpartition(") ")[2].split()
            except OSError:  # it has just ended
                continue
            kind = next((kind for sign, kind in PROCESSES.items() if sign in line), "")
            if kind:
                work[int(child), kind] = sum(map(int, told[11:15])) / TICKS


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        inside(Path(sys.argv[2]), sys.argv[3:])
    else:
        numbers = [int(one) for one in sys.argv[1:] if one != "--write"]
        main(numbers[0] if numbers else 5, keep="--write" in sys.argv)
