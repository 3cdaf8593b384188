"""Mutants: change the six mechanism modules in small ways, one at a time, and see whether their tests notice.

`uv run --no-sync --with mutmut==3.8.1 python .ci/mutants.py FOLDER` copies this commit to FOLDER, lets mutmut make its
mutants there, draws some of each module with a fixed seed and runs their tests; `--again` runs those that survived
once more, with the tests of the working tree. mutmut makes no mutants of decorated
functions, nor of anything outside functions, and a value computed at import is computed without the change.

mutmut's own runner hands every test's id to pytest, which does not find all of them again and runs none. Here one
process per module collects the tests, and each mutant gets a fork of it: the tests that reach the changed function
first, then all others of the module, until one fails.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SEED = 20260105
TESTS = {
    "isolation": ("tests/test_isolation.py",),
    "automation": ("tests/test_automation.py", "tests/test_automation_processes.py"),
    "context": ("tests/test_context.py", "tests/test_context_properties.py"),
    "coordination": ("tests/test_coordination.py", "tests/test_coordination_processes.py"),
    "tools": ("tests/test_tools.py",),
    "memory": ("tests/test_memory.py", "tests/test_memory_properties.py"),
}
SHARED = ("tests/test_advanced_mechanisms.py",)
SETTINGS = f"""
[tool.mutmut]
source_paths = ["src"]
only_mutate = {[f"src/sovereign_agent/{module}.py" for module in TESTS]}
"""
MAKE = """
import os
from mutmut import __main__ as mutmut
mutmut.set_mutant_under_test("mutant_generation")
os.makedirs("mutants", exist_ok=True)
mutmut.copy_src_dir()
mutmut.copy_also_copy_files()
mutmut.setup_source_paths()
mutmut.create_mutants(2)
"""
WORKERS = 2
TICK = 0.05
"""Seconds between two looks at the children. Time in which this process was itself stopped does not count."""


def make(folder: Path) -> None:
    """Copy the commit, and let the tool write its mutants."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    with (folder / "pyproject.toml").open("a") as settings:
        settings.write(SETTINGS)
    subprocess.run([sys.executable, "-c", MAKE], cwd=folder, check=True)


def names(folder: Path, module: str) -> list[str]:
    """Return the mutants of a module in the order in which they are drawn: more of them begin with fewer of them."""
    meta = json.loads((folder / f"mutants/src/sovereign_agent/{module}.py.meta").read_text())
    found = sorted(meta["exit_code_by_key"])
    random.Random(f"{SEED} {module}").shuffle(found)  # noqa: S311 - repeatable on purpose
    return found


def source(root: Path, module: str) -> Path:
    """Return the file of a module."""
    return root / f"src/sovereign_agent/{module}.py"


def results(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the last result of each mutant that ran."""
    path = folder / "results.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {one["mutant"]: one for one in map(json.loads, lines)}


class Runner:
    """A pytest plugin that runs the collected tests once per mutant, each time in a fork."""

    def __init__(self, folder: Path, mutants: list[str]) -> None:
        self.folder = folder
        self.mutants = mutants
        self.failed = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Remember the first test that failed."""
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_runtestloop(self, session: Any) -> bool:
        """Take the place of pytest's own loop."""
        started = {self.start(session, lambda out: self.learn(session.items, out)): "learn"}
        (_, code, said), *_ = self.ended(started, {})
        if code:
            raise SystemExit(f"the tests end with {code} before any change")
        known = [json.loads(line) for line in said.splitlines()]
        left_out = [one["test"] for one in known if not one["passed"]]
        sys.stderr.write(f"{len(known)} tests, left out: {left_out}\n")
        with (self.folder / "left_out.jsonl").open("a") as file:
            file.writelines(json.dumps(test) + "\n" for test in left_out)
        running: dict[int, str] = {}
        limits: dict[int, float] = {}
        waiting = iter(self.mutants)
        while True:
            for mutant in waiting:
                function = mutant.rpartition("__mutmut_")[0]
                order = sorted(
                    (function not in one["hits"], one["seconds"], index)
                    for index, one in enumerate(known)
                    if one["passed"]
                )
                items = [session.items[index] for *_, index in order]
                limit = 30 + 3 * sum(seconds for _, seconds, _ in order)
                child = self.start(session, lambda out, m=mutant, i=items: self.suffer(m, i, out), limit)
                running[child], limits[child] = mutant, 2 * limit
                if len(running) == WORKERS:
                    break
            if not running:
                return True
            for mutant, code, said in self.ended(running, limits):
                status = {0: "survived", 1: "killed"}.get(code, "timeout" if code in (-9, -24) else f"exit {code}")
                with (self.folder / "results.jsonl").open("a") as file:
                    file.write(json.dumps({"mutant": mutant, "status": status, "test": said}) + "\n")

    def start(self, session: Any, call: Callable[[Path], None], limit: float = 36_000) -> int:
        """Fork; the child leads a process group, has a directory of its own, and says what it found in a file."""
        child = os.fork()
        if child:
            return child
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 5))
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        sink = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(sink, stream)
        base = self.base(os.getpid())
        (base / "pytest").mkdir(parents=True)
        session.config._tmp_path_factory._basetemp = base / "pytest"  # noqa: SLF001 - a fork needs another one
        tempfile.tempdir = str(base)
        try:
            call(base / "said")
        finally:
            os._exit(3)

    def base(self, child: int) -> Path:
        """Return the directory of a child."""
        return Path(os.environ["MUTANTS_TEMP"]) / str(child)

    def ended(self, running: dict[int, str], limits: dict[int, float]) -> Iterator[tuple[str, int, str]]:
        """Wait until a child has ended, and yield the exit code and the words of each that has."""
        found = False
        while not found:
            time.sleep(TICK)
            for child in list(running):
                limits[child] = limits.get(child, 36_000) - TICK
                if limits[child] < 0:
                    os.killpg(child, signal.SIGKILL)
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    found = True
                    with suppress(ProcessLookupError):
                        os.killpg(child, signal.SIGKILL)  # what its tests left running
                    said = self.base(child) / "said"
                    words = said.read_text() if said.exists() else ""
                    shutil.rmtree(self.base(child), ignore_errors=True)
                    yield running.pop(child), os.waitstatus_to_exitcode(status), words

    def learn(self, items: list[Any], out: Path) -> None:
        """Run each test once without any change, and note what it reaches in this process."""
        from mutmut.mutation import trampoline

        reached: set[str] = set()
        trampoline._mutant_under_test = "stats"  # noqa: SLF001 - in this process alone, not in those of the tests
        trampoline.record_trampoline_hit = lambda name, caller=None: reached.add(name)  # noqa: ARG005
        with out.open("w") as file:
            for item, following in zip(items, [*items[1:], None], strict=True):
                reached.clear()
                self.failed = ""
                start = time.monotonic()
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                one = {"test": item.nodeid, "passed": not self.failed, "seconds": time.monotonic() - start}
                file.write(json.dumps({**one, "hits": sorted(reached)}) + "\n")
        os._exit(0)

    def suffer(self, mutant: str, items: list[Any], out: Path) -> None:
        """Run the tests with one change, until one fails."""
        from mutmut.mutation.trampoline import set_mutant_under_test

        set_mutant_under_test(mutant)
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                out.write_text(self.failed)
                os._exit(1)
        os._exit(0)


def run(folder: Path, module: str, mutants: list[str]) -> None:
    """Run these mutants of a module in a process of its own."""
    sys.stderr.write(f"{module}: {len(mutants)} to run\n")
    child = os.fork()
    if child == 0:
        import pytest

        inside = folder / "mutants"
        os.chdir(inside)
        sys.path.insert(0, str(inside / "src"))
        os.environ |= {"CI": "true", "PYTHONPATH": str(inside / "src")}
        arguments = ["-q", "-s", "-p", "no:cacheprovider", *TESTS[module], *SHARED]
        os._exit(pytest.main(arguments, plugins=[Runner(folder, mutants)]))
    if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise SystemExit(f"{module}: exit {status}")


def main() -> None:
    """Read the arguments and do it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--per-module", type=int, default=250)
    parser.add_argument("--modules", nargs="+", choices=TESTS, default=list(TESTS))
    parser.add_argument("--again", action="store_true")
    given = parser.parse_args()
    folder = given.folder.resolve()
    if not folder.exists():
        folder.mkdir(parents=True)
        make(folder)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as temporary:
        Path(temporary).chmod(0o755)
        os.environ["MUTANTS_TEMP"] = temporary
        if given.again:
            shutil.copytree(ROOT / "tests", folder / "mutants/tests", dirs_exist_ok=True)
        for module in given.modules:
            if source(folder, module).read_bytes() != source(ROOT, module).read_bytes():
                raise SystemExit(f"{module} has changed since its mutants were made")
            known = results(folder)
            drawn = names(folder, module)[: given.per_module]
            wanted = [
                name
                for name in drawn
                if name not in known or (given.again and known[name]["status"] not in ("killed", "timeout"))
            ]
            if wanted:
                run(folder, module, wanted)
    known = results(folder)
    for one, count in sorted(Counter((name.split(".")[1], one["status"]) for name, one in known.items()).items()):
        sys.stdout.write(f"{one[0]}: {count} {one[1]}\n")


if __name__ == "__main__":
    main()
