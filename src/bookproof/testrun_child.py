"""Test run, inside: the process in which pytest runs, and the small plugin that says what happened there.

Started by path (`python -P testrun_child.py run|serve`), never imported by the process that starts it, and importing
nothing of bookproof: the tested package is loaded from where the caller's `PYTHONPATH` points, be it bookproof itself.
It reports what pytest did, one JSON object a line, while it happens; it judges nothing.

`run EVENTS` reads one specification from standard input and writes the events to the file EVENTS. `serve` imports
pytest once and then forks a child for every specification line, so that a run costs tens of milliseconds, starts from
the same state every time, and can be killed with everything it started.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import inspect
import json
import linecache
import os
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import types
from collections.abc import Callable, Generator
from pathlib import Path
from typing import IO, Any, NoReturn

import pytest

_TAIL_LINES = 20


class Reporter:
    """A pytest plugin that emits what was collected, deselected, begun and reported.

    Parameters:
        emit: Receives each event.
        select: Node ids to keep: a test, a parametrised case, a class or a file. None keeps all.
        apart: Run each of them in a forked process of its own, once all are collected.
    """

    def __init__(self, emit: Callable[[dict[str, Any]], None], select: list[str] | None, *, apart: bool) -> None:
        self._emit = emit
        self._select = select
        self._apart = apart

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> None:
        """Keep the run in this process where the project's options ask for several."""
        for name, value in (("numprocesses", 0), ("dist", "no"), ("tx", [])):
            if hasattr(config.option, name):
                setattr(config.option, name, value)

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Emit a collected case with its place (`line` is 1-based, 0 where pytest knows none)."""
        file, line, _ = item.location
        self._emit({"event": "collected", "id": item.nodeid, "file": file, "line": (line or -1) + 1})

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        """Emit what `-m`, `-k` or `--deselect` of the project left out."""
        for item in items:
            self._emit({"event": "deselected", "id": item.nodeid})

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep what was asked for. Files are given to pytest whole, so that an unknown test cannot stop the others."""
        if self._select is not None:
            items[:] = [item for item in items if any(_covers(wanted, item.nodeid) for wanted in self._select)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run what was asked for apart, so that no test can lean on one that ran before it."""
        if not self._apart:
            return None
        for wanted in self._select or ():
            items = [item for item in session.items if _covers(wanted, item.nodeid)]
            pid = os.fork()
            if pid == 0:
                try:
                    for item, following in zip(items, [*items[1:], None], strict=True):
                        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                finally:
                    os._exit(0)
            os.waitpid(pid, 0)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Emit a file that could not be collected, or was skipped as a whole."""
        report = yield
        if report.failed:
            self._emit({"event": "broken", "id": report.nodeid, "text": _last_lines(str(report.longrepr))})
        elif report.skipped:
            self._emit({"event": "skipped_file", "id": report.nodeid, "text": _skip_reason(report.longrepr)})
        return report

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Emit the start, so that a run that is killed leaves the name of the test that was running."""
        self._emit({"event": "start", "id": nodeid})

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Emit each phase as pytest finally judges it, with the kind and the place of a failure."""
        report = yield
        event: dict[str, Any] = {
            "event": "report",
            "id": item.nodeid,
            "when": report.when,
            "outcome": report.outcome,
            "xfail": hasattr(report, "wasxfail") or str(report.longrepr).startswith("[XPASS(strict)]"),
            "reason": getattr(report, "wasxfail", "") or (_skip_reason(report.longrepr) if report.skipped else ""),
            "errors": [],
            "text": "",
            "file": "",
            "line": 0,
            "code": "",
        }
        if report.failed:
            event["text"] = str(report.longrepr) if call.excinfo is None else call.excinfo.exconly()
            if call.excinfo is not None:
                event |= {"errors": _kinds(call.excinfo.value), **_place(call.excinfo, Path(item.path))}
        self._emit(event)
        return report


def _covers(wanted: str, nodeid: str) -> bool:
    return nodeid == wanted or nodeid.startswith((wanted + "[", wanted + "::"))


def _kinds(error: BaseException) -> list[str]:
    """Return the names of the error's classes, and of those that a group holds."""
    names = [kind.__name__ for kind in type(error).__mro__]
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            names += _kinds(inner)
    return names


def _place(excinfo: pytest.ExceptionInfo[BaseException], test_file: Path) -> dict[str, Any]:
    """Return the failing statement: the test's own deepest one, else the deepest of all."""
    entries = list(excinfo.traceback)
    if not entries:
        return {}
    entry = next((entry for entry in reversed(entries) if Path(entry.path) == test_file), entries[-1])
    line = entry.lineno + 1
    return {"file": str(entry.path), "line": line, "code": _statement(entry.frame.code.raw, line)}


def _statement(code: types.CodeType, line: int) -> str:
    """Return the statement at a line, of a compound one its head; empty where the source cannot be read.

    pytest's own answer parses the whole file and looks through every loaded module for its name.
    """
    lines = linecache.getlines(code.co_filename)
    if code.co_name != "<module>":
        first = code.co_firstlineno - 1
        # Below a line of its own an indented block is Python, whatever its strings hold at the margin.
        block = inspect.getblock(lines[first:])
        lines, line = ["if True:\n" if block and block[0][0].isspace() else "\n", *block], line - first + 1
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return ""
    around = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and node.lineno <= line <= _end(node)]
    if not around:
        return ""
    innermost = max(around, key=lambda node: node.lineno)
    body = getattr(innermost, "body", None)
    end = max(innermost.lineno, body[0].lineno - 1) if body else _end(innermost)
    return textwrap.dedent("".join(lines[innermost.lineno - 1 : end])).strip()


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _skip_reason(longrepr: object) -> str:
    reason = str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)
    return reason.removeprefix("Skipped: ")


def _last_lines(text: str) -> str:
    """Return the lines that pytest marks as the error itself, or else the last ones."""
    lines = text.splitlines()
    marked = [line[1:].strip() for line in lines if line.startswith("E ")]
    return "\n".join(marked or lines[-_TAIL_LINES:])


def run_pytest(spec: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """Run pytest as the specification says, then check where the tested packages came from.

    Parameters:
        spec: `args` for pytest; `select`, node ids or null; `apart`, whether each of them runs in its own process;
            `packages`, name to the folder or file that it must be loaded from; `modules`, names that must still be
            importable after the run.
        emit: Receives each event; the last is `end` with pytest's exit code.
    """
    code = int(pytest.main(spec["args"], plugins=[Reporter(emit, spec["select"], apart=spec["apart"])]))
    for name in spec["modules"]:
        try:
            importlib.import_module(name)
        except BaseException as error:  # whatever a module raises makes it unusable
            emit({"event": "unimportable", "name": name, "text": f"{type(error).__name__}: {error}"})
    for name, expected in spec["packages"].items():
        module = sys.modules.get(name)
        if module is not None and not _loaded_from(module, Path(expected)):
            emit({"event": "foreign", "name": name, "file": str(getattr(module, "__file__", None))})
    emit({"event": "end", "exit": code})


def _loaded_from(module: Any, expected: Path) -> bool:
    places = [module.__file__] if getattr(module, "__file__", None) else list(getattr(module, "__path__", []))
    return bool(places) and all(Path(place).resolve().is_relative_to(expected.resolve()) for place in places)


def _emitter(stream: IO[str]) -> Callable[[dict[str, Any]], None]:
    def emit(event: dict[str, Any]) -> None:
        stream.write(json.dumps(event) + "\n")
        stream.flush()

    return emit


def _enter(spec: dict[str, Any]) -> None:
    """Take the place in the file system and in `sys.path` that a fresh process for this tree would have."""
    sys.path.append(str(Path.cwd()))  # last: what `python -m pytest` finds is found, and nothing is hidden
    sys.dont_write_bytecode = not spec["bytecode"]
    if sys.dont_write_bytecode:
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def _child(spec: dict[str, Any], pipe: int, output: int) -> NoReturn:
    """Be the forked process: run, and leave without the exit handlers of the process that was forked."""
    try:
        os.setpgid(0, 0)  # whatever the test starts dies with it
        os.dup2(output, 1)
        os.dup2(output, 2)
        with os.fdopen(pipe, "w") as stream:
            _enter(spec)
            run_pytest(spec, _emitter(stream))
    finally:
        os._exit(0)


def _forked(spec: dict[str, Any], timeout_seconds: float, emit: Callable[[dict[str, Any]], None]) -> None:
    """Run in a forked child; it is killed when it stays silent longer than the time-out."""
    with tempfile.TemporaryFile() as output:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _child(spec, writer, output.fileno())
        os.close(writer)
        ended, rest, deadline = False, b"", time.monotonic() + timeout_seconds
        # A process that the test left behind may hold the pipe open: the `end` event ends the run, not only its close.
        while not ended:
            ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(reader, 65536) if ready else b""
            if not chunk:
                break
            deadline = time.monotonic() + timeout_seconds
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                event = json.loads(line)
                ended = ended or event["event"] == "end"
                emit(event)
        if not ended and not ready:
            emit({"event": "timeout", "seconds": timeout_seconds})
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
        output.seek(0)
        _done(emit, output.read())


def _spawned(spec: dict[str, Any], timeout_seconds: float, emit: Callable[[dict[str, Any]], None]) -> None:
    """Run in a fresh process, where forking is missing: slower, and timed as a whole."""
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "events"
        try:
            done = subprocess.run(
                [sys.executable, "-P", __file__, "run", str(events)],
                input=json.dumps(spec).encode(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout_seconds,
                check=False,
            )
            output, timed_out = done.stdout, False
        except subprocess.TimeoutExpired as error:
            output, timed_out = error.stdout or b"", True
        for line in events.read_text().splitlines() if events.exists() else ():
            emit(json.loads(line))
        if timed_out:
            emit({"event": "timeout", "seconds": timeout_seconds})
        _done(emit, output)


def _done(emit: Callable[[dict[str, Any]], None], output: bytes) -> None:
    lines = output.decode(errors="replace").splitlines()
    emit({"event": "done", "output": "\n".join(lines[-_TAIL_LINES:])})


def serve() -> None:
    """Answer specification lines until standard input ends; the first line names modules to import beforehand."""
    requests, emit = os.fdopen(os.dup(0)), _emitter(os.fdopen(os.dup(1), "w"))
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nothing, stream)
    first = json.loads(requests.readline())
    for name in [*_pytest_modules(), *first["warm"]]:
        with contextlib.suppress(Exception):  # a module that is missing here is the test's own concern
            importlib.import_module(name)
    for name in list(sys.modules):
        if name.partition(".")[0] in first["cold"]:
            del sys.modules[name]
    gc.freeze()  # what every child inherits needs no search for garbage in each of them
    run = _forked if first["fork"] and hasattr(os, "fork") else _spawned
    for line in requests:
        spec = json.loads(line)
        run(spec, spec["timeout_seconds"], emit)


def _pytest_modules() -> list[str]:
    """Return what pytest itself loads on its first run; only speed depends on it."""
    with contextlib.suppress(ImportError):
        from _pytest.config import default_plugins

        return [f"_pytest.{name}" for name in default_plugins]
    return []


def main() -> None:
    """Run the mode named on the command line, giving way where the process that started it does."""
    if hasattr(os, "nice") and (niceness := os.nice(0)) > 0:
        with contextlib.suppress(OSError):  # Linux may weigh whole sessions against each other, and this is one
            Path("/proc/self/autogroup").write_text(str(niceness))
    if sys.argv[1] == "serve":
        serve()
    else:
        spec = json.loads(sys.stdin.read())
        _enter(spec)
        with Path(sys.argv[2]).open("w", encoding="utf-8") as stream:
            run_pytest(spec, _emitter(stream))


if __name__ == "__main__":
    main()
