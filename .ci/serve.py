"""Serve: how long an author waits for the first page and for an edit to show, on the whole site.

`python .ci/serve.py [RUNS]` clones HEAD, builds it once so that what is remembered is there, and prints medians, each
beside what it is meant to be. It fails where a build is missing or one too many, never for being slow: a machine that
does other things at the same time would make that a lottery.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ("docs/lessons/tools.md", "lessons/tools/")
SRC = ("src/sovereign_agent/tools.py", "reference/api/tools/")
LIMIT_SECONDS = 120


def main(runs: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="serve-") as name:
        clone = Path(name) / "clone"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        subprocess.run([*mkdocs(), "build", "-q"], cwd=clone, env=environment(clone), check=True)
        first, docs, src = [], [], []
        for _ in range(runs):
            with serving(clone) as (address, _log):
                first.append(wait(address, "", "<title>"))
        with serving(clone) as (address, log):
            wait(address, "", "<title>")
            builds = quiet(log)
            for number in range(runs):
                for (file, page), times in ((DOCS, docs), (SRC, src)):
                    word = f"edit{number}{Path(file).suffix[1:]}"
                    path = clone / file
                    text = path.read_text("utf-8")
                    text = text + f"\n{word}\n" if file == DOCS[0] else text.replace('"""', f'"""{word} ', 1)
                    path.write_text(text, "utf-8")
                    times.append(wait(address, page, word))
                    builds, before = quiet(log), builds
                    if builds != before + 1:
                        sys.exit(f"{builds - before} builds for one edit of {file}:\n{log.read_text('utf-8')}")
    for what, times, meant in (("first page", first, 4), ("edit under docs/", docs, 3), ("edit under src/", src, 3)):
        shown = " ".join(f"{seconds:.1f}" for seconds in times)
        print(f"{what}: median {statistics.median(times):.1f} s of {shown}; meant to be under {meant} s")  # noqa: T201
    print(f"load average: {os.getloadavg()[0]:.1f}")  # noqa: T201


def mkdocs() -> list[str]:
    """Return the command."""
    return [sys.executable, "-m", "mkdocs"]


def environment(clone: Path) -> dict[str, str]:
    """Return what both the build and the server see."""
    return os.environ | {"PYTHONPATH": str(clone / "src"), "NO_MKDOCS_2_WARNING": "1"}


def _heed() -> None:
    """Let the signal that ends the server end it also where this is a job in the background, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def serving(clone: Path) -> Iterator[tuple[str, Path]]:
    """Serve the clone; give its address and its log."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = clone.parent / "serve.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*mkdocs(), "serve", "-a", f"127.0.0.1:{port}"],
            cwd=clone,
            env=environment(clone) | {"SITE_URL": f"http://127.0.0.1:{port}/"},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_heed,  # noqa: PLW1509 (nothing here runs in a thread)
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
        time.sleep(0.02)
    sys.exit(f"{page or 'the first page'} did not show {word} within {LIMIT_SECONDS} s")


def quiet(log: Path) -> int:
    """Return how many builds have begun, once no more begin."""
    before, now = -1, 0
    while before != now:
        before, now = now, len(re.findall("Building documentation", log.read_text("utf-8")))
        time.sleep(1.5)
    return now


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
