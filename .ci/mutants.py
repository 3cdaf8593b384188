"""Mutants: change the six mechanism modules in small ways, one at a time, and see whether their tests notice.

`uv run --no-sync --with mutmut==3.8.1 python .ci/mutants.py FOLDER` copies this commit to FOLDER, lets mutmut make its
mutants there, draws some of each module with a fixed seed and runs their tests. `--again survivors` runs those that
were not killed once more, and `--again all` every one, with the tests of the working tree. `--write` records them
in `docs/evidence/mutants.json`, with the reasons that `.ci/mutants.toml` gives for survivors. mutmut makes no mutants
of decorated functions, nor of anything outside functions; what is computed at import is computed without the change.
Mutants in which only the case of SQL differs are not drawn: SQLite reads them alike, so nothing could kill them.

mutmut's own runner hands every test's id to pytest, which does not find all of them again and runs none. Here one
process per module collects the tests and learns which of them reach which function. Each mutant gets a fork of that
process, which runs those that reach the changed function, the quickest first, then those that start processes, which
may reach it there, until one fails, twice. Tests that take more than a few seconds, and files full of processes, are
left out unless nothing else reaches the function. A mutant has survived only if a test ran to its end.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import chdir, suppress
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

import record

ROOT = Path(__file__).parent.parent
SEED = 20260105
TESTS = {
    "isolation": ("tests/test_isolation.py", "tests/test_hosts.py"),
    "automation": ("tests/test_automation.py",),
    "context": ("tests/test_context.py", "tests/test_context_properties.py"),
    "coordination": ("tests/test_coordination.py",),
    "tools": ("tests/test_tools.py",),
    "memory": ("tests/test_memory.py", "tests/test_memory_properties.py"),
}
SHARED = ("tests/test_advanced_mechanisms.py", "tests/test_hostile.py")
PROCESSES = {
    "automation": ("tests/test_automation_processes.py",),
    "coordination": ("tests/test_coordination_processes.py",),
}
"""Run only for functions that no other test reaches."""
TIMED = ("tests/test_context.py::test_a_view_costs_what_it_shows",)
"""Not run: it looks at the time, so on a busy machine it would fail without noticing anything."""
SLOW_SECONDS = 3.0
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
REASONS = ROOT / ".ci/mutants.toml"
MEASURED = (
    *(f"src/sovereign_agent/{module}.py" for module in TESTS),
    *(file for files in TESTS.values() for file in files),
    *SHARED,
    "tests/conftest.py",
)
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


@functools.cache
def made(folder: Path, module: str) -> tuple[str, ...]:
    """Return every mutant of a module."""
    meta = json.loads((folder / f"mutants/src/sovereign_agent/{module}.py.meta").read_text())
    return tuple(sorted(meta["exit_code_by_key"]))


@functools.cache
def names(folder: Path, module: str) -> tuple[str, ...]:
    """Return the mutants of a module in the order in which they are drawn: more of them begin with fewer of them."""
    alike = same_sql((folder / f"mutants/src/sovereign_agent/{module}.py").read_text())
    found = list(made(folder, module))
    random.Random(f"{SEED} {module}").shuffle(found)  # noqa: S311 - repeatable on purpose
    return tuple(name for name in found if name.rpartition(".")[2] not in alike)


def same_sql(text: str) -> set[str]:
    """Return the mutants in a module full of them that differ only in how they write SQL, as `plain_sql` tells it."""
    bodies: dict[str, list[str]] = {}
    body: list[str] = []
    for line in text.splitlines():
        if begin := re.match(r" *def (x\S+__mutmut_(?:orig|\d+))\(", line):
            body = bodies[begin[1]] = []
        elif re.match(r" *(@|mutants_x)", line):
            body = []
        body.append(line.replace(begin[1], "f") if begin else line)
    found = set()
    for name, lines in bodies.items():
        plain = bodies[name.rpartition("__mutmut_")[0] + "__mutmut_orig"]
        same = [line.lower() for line in lines] == [line.lower() for line in plain]
        if same and lines != plain and plain_sql(lines) == plain_sql(plain):
            found.add(name)
    return found


def plain_sql(lines: list[str]) -> str:
    """Return a function with its SQL in small letters, but for parameters and what stands in quotes.

    SQL is what `tx.run`, `tx.one` and `tx.all` get first. SQLite does not tell the case of keywords and names.
    """
    tree = ast.parse("\n".join(["if True:", *(f" {line}" for line in lines)]))
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and re.fullmatch(r"tx\.(run|one|all)", ast.unparse(call.func)):
            for part in ast.walk(call.args[0]):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    part.value = re.sub(r"(:\w+|'[^']*')|\w+", lambda word: word[1] or word[0].lower(), part.value)
    return ast.dump(tree)


def source(root: Path, module: str) -> Path:
    """Return the file of a module."""
    return root / f"src/sovereign_agent/{module}.py"


def results(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the last result of each mutant that ran."""
    path = folder / "results.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {one["mutant"]: one for one in map(json.loads, lines)}


def worked() -> float:
    """Return the seconds of work of this process and of the children that it waited for."""
    return time.process_time() + children_worked()


def children_worked() -> float:
    """Return the seconds of work of the children that this process waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


class Runner:
    """A pytest plugin that runs the collected tests once per mutant, each time in a fork."""

    def __init__(self, folder: Path, mutants: list[str], before: dict[str, dict[str, Any]]) -> None:
        self.folder = folder
        self.mutants = mutants
        self.before = before
        self.failed = ""
        self.ran = False

    def pytest_collection(self) -> None:
        """Let a property fail at once: nobody reads the smallest example."""
        from hypothesis import Phase, settings

        settings.register_profile("mutants", settings(), phases=(Phase.explicit, Phase.generate))
        settings.load_profile("mutants")

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Remember the first test that failed, and whether one was run to its end."""
        if report.failed and not self.failed:
            self.failed = report.nodeid
        if report.when == "call" and report.passed:
            self.ran = True

    def pytest_runtestloop(self, session: Any) -> bool:
        """Take the place of pytest's own loop."""
        started = {self.start(session, lambda out: self.learn(session.items, out)): "learn"}
        (_, code, said), *_ = self.ended(started, {})
        if code:
            raise SystemExit(f"the tests end with {code} before any change")
        known = [json.loads(line) for line in said.splitlines()]
        (self.folder / f"tests-{self.mutants[0].split('.')[1]}.json").write_text(json.dumps(known))
        left_out = [one["test"] for one in known if not one["passed"]]
        sys.stderr.write(f"{len(known)} tests, {sum(one['seconds'] for one in known):.0f} s, left out: {left_out}\n")
        running: dict[int, str] = {}
        limits: dict[int, float] = {}
        waiting = iter(self.mutants)
        while True:
            for mutant in waiting:
                order = self.order(mutant, known)
                chosen = [(session.items[index], known[index]["seconds"]) for index in order]
                child = self.start(session, lambda out, m=mutant, i=chosen: self.suffer(m, i, out))
                running[child] = mutant
                limits[child] = 30 + 5 * sum(seconds for _, seconds in chosen)
                if len(running) == WORKERS:
                    break
            if not running:
                return True
            for mutant, code, said in self.ended(running, limits):
                status = {0: "survived", 1: "killed", 4: "not reached"}.get(code, f"exit {code}")
                status = "timeout" if code in (-signal.SIGKILL, -signal.SIGPROF) else status
                with (self.folder / "results.jsonl").open("a") as file:
                    file.write(json.dumps({"mutant": mutant, "status": status, "test": said}) + "\n")

    def order(self, mutant: str, known: list[dict[str, Any]]) -> list[int]:
        """Return which tests to run, by number: the one that failed before, then the quickest."""
        function = mutant.rpartition("__mutmut_")[0]
        passed = [index for index, one in enumerate(known) if one["passed"]]
        reaching = [index for index in passed if function in known[index]["hits"]]
        quick = [index for index in reaching if known[index]["seconds"] < SLOW_SECONDS]
        perhaps = [index for index in passed if known[index]["child"] and index not in reaching]
        failed = self.before.get(mutant, {}).get("test")

        def rank(index: int) -> tuple[bool, bool, float]:
            one = known[index]
            return one["test"] != failed, index in perhaps, one["seconds"]

        return sorted([*(quick or reaching), *perhaps], key=rank)

    def start(self, session: Any, call: Callable[[Path], None]) -> int:
        """Fork; the child leads a process group, has a directory of its own, and says what it found in a file."""
        child = os.fork()
        if child:
            return child
        os.setpgid(0, 0)
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
        except Exception:
            (base / "said").write_text(traceback.format_exc())
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
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    found = True
                    with suppress(ProcessLookupError):
                        os.killpg(child, signal.SIGKILL)  # what its tests left running
                    said = self.base(child) / "said"
                    words = said.read_text() if said.exists() else ""
                    shutil.rmtree(self.base(child), ignore_errors=True)
                    yield running.pop(child), os.waitstatus_to_exitcode(status), words
                elif child in limits and Path(f"/proc/{child}/stat").read_text().rpartition(") ")[2][0] == "S":
                    limits[child] -= TICK  # it sleeps; work has a limit for each test, and waiting for a core has none
                    if limits[child] < 0:
                        os.killpg(child, signal.SIGKILL)

    def learn(self, items: list[Any], out: Path) -> None:
        """Run each test once without any change, and note what it reaches in this process."""
        from mutmut.mutation import trampoline

        reached: set[str] = set()
        trampoline._mutant_under_test = "stats"  # noqa: SLF001 - in this process alone, not in those of the tests
        trampoline.record_trampoline_hit = lambda name, caller=None: reached.add(name)  # noqa: ARG005
        with out.open("w") as file:
            for item, following in zip(items, [*items[1:], None], strict=True):
                reached.clear()
                self.failed, self.ran = "", False
                start, children = worked(), children_worked()
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                one = {
                    "test": item.nodeid,
                    "passed": self.ran and not self.failed,
                    "seconds": worked() - start,
                    "child": children_worked() > children,
                }
                file.write(json.dumps({**one, "hits": sorted(reached)}) + "\n")
        os._exit(0)

    def suffer(self, mutant: str, chosen: list[tuple[Any, float]], out: Path) -> None:
        """Run the tests with one change, until one fails."""
        from mutmut.mutation.trampoline import set_mutant_under_test

        set_mutant_under_test(mutant)
        self.failed, self.ran = "", False
        for (item, seconds), (following, _) in zip(chosen, [*chosen[1:], (None, 0)], strict=False):
            out.write_text(item.nodeid)
            signal.setitimer(signal.ITIMER_PROF, 5 + 10 * seconds)  # nobody handles it, so it ends the process
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                self.failed = ""  # once more, since a test that waits for others may have been stopped itself
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                os._exit(1)
        out.write_text("")
        os._exit(0 if self.ran else 5 if chosen else 4)


def run(folder: Path, module: str, mutants: list[str], tests: tuple[str, ...]) -> None:
    """Run these mutants of a module in a process of its own, with these files of tests."""
    sys.stderr.write(f"{module}: {len(mutants)} to run\n")
    child = os.fork()
    if child == 0:
        import pytest

        inside = folder / "mutants"
        os.chdir(inside)
        sys.path.insert(0, str(inside / "src"))
        os.environ |= {"CI": "true", "PYTHONPATH": str(inside / "src")}
        native = "--tb=native"  # pytest's own parses the whole file of mutants, megabytes, at each failure: seconds
        left_out = [f"--deselect={test}" for test in TIMED]
        arguments = ["-q", "-s", "-p", "no:cacheprovider", native, *left_out, *tests]
        os._exit(pytest.main(arguments, plugins=[Runner(folder, mutants, results(folder))]))
    if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise SystemExit(f"{module}: exit {status}")


def summary(folder: Path, modules: list[str]) -> dict[str, Any]:
    """Return the counts of each module, and each mutant that no test killed, with the reason given for it."""
    known = results(folder)
    reasons = tomllib.loads(REASONS.read_text())
    counts: dict[str, dict[str, int]] = {}
    survivors = []
    for module in modules:
        drawn = [name for name in names(folder, module) if name in known]
        statuses = Counter(known[name]["status"] for name in drawn)
        alike = len(made(folder, module)) - len(names(folder, module))
        counts[module] = {"made": len(made(folder, module)), "same_sql": alike, "run": len(drawn), **statuses}
        for name in drawn:
            if known[name]["status"] not in ("killed", "timeout"):
                one = {"mutant": short(name), "status": known[name]["status"], "diff": difference(folder, name)}
                survivors.append(one | {"reason": reasons.get(short(name), "")})
    return {"tool": f"mutmut {version('mutmut')}", "seed": SEED, "modules": counts, "survivors": survivors}


def short(mutant: str) -> str:
    """Return `isolation.IsolationPolicy.explain 7` for the tool's own name of a mutant."""
    _, module, name = mutant.split(".")
    function, _, number = name.rpartition("__mutmut_")
    return f"{module}.{function.removeprefix('x').removeprefix('_').strip('ǁ').replace('ǁ', '.')} {number}"


def difference(folder: Path, mutant: str) -> str:
    """Return the lines that a mutant changes."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant

    with chdir(folder):
        lines = get_diff_for_mutant(mutant, path=f"src/sovereign_agent/{mutant.split('.')[1]}.py").splitlines()
    return "\n".join(line.rstrip() for line in lines[2:] if line[:1] in ("+", "-"))


def main() -> None:
    """Read the arguments and do it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--per-module", type=int, default=250)
    parser.add_argument("--modules", nargs="+", choices=TESTS, default=list(TESTS))
    parser.add_argument("--again", choices=("survivors", "all"))
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    folder = given.folder.resolve()
    about = record.about(*MEASURED)
    if given.write:
        record.require_commit()
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
                if name not in known
                or given.again == "all"
                or (given.again and known[name]["status"] not in ("killed", "timeout"))
            ]
            if wanted:
                run(folder, module, wanted, (*TESTS[module], *SHARED))
            known = results(folder)
            alone = [name for name in wanted if known[name]["status"] == "not reached"]
            if alone and module in PROCESSES:
                run(folder, module, alone, PROCESSES[module])
    found = summary(folder, given.modules)
    sys.stdout.write(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    if given.write:
        record.write("mutants", about | found)


if __name__ == "__main__":
    main()
