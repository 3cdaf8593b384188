"""Test run, outside: pytest in another process, and what it did there as plain data.

`run_once` runs pytest in one process (the cited tests of a whole site, or a collection); a `WarmRunner` runs one test
after the other, each in a process forked from an interpreter that has pytest loaded and the tested package not. Neither
judges: `citations` and `mutations` do. Neither raises for what a test does, however it ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_CHILD = Path(__file__).with_name("testrun_child.py")
# What would change which tests run, or how pytest prints an assertion.
_DROPPED = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "BUILD_NUMBER", "FORCE_COLOR", "PY_COLORS", "PYTEST_CURRENT_TEST")


@dataclass(frozen=True, slots=True)
class Spec:
    """What one process is to run."""

    args: tuple[str, ...]
    """Arguments for pytest: options and whole files."""
    select: tuple[str, ...] | None = None
    """Node ids to keep of what the files hold; None keeps all."""
    packages: Mapping[str, Path] = field(default_factory=dict)
    """Top-level name to the folder or file that it must have been loaded from, if it was loaded."""
    modules: tuple[str, ...] = ()
    """Modules that must be importable after the run."""
    bytecode: bool = False
    """Whether Python may write compiled files into the tree."""
    apart: bool = False
    """Whether each of `select` runs in a forked process of its own, once all are collected; needs fork."""

    def as_json(self) -> dict[str, Any]:
        """Return what the child process reads."""
        return {
            "args": list(self.args),
            "select": None if self.select is None else list(self.select),
            "packages": {name: str(place) for name, place in self.packages.items()},
            "modules": list(self.modules),
            "bytecode": self.bytecode,
            "apart": self.apart,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """One phase of one case, as pytest judged it."""

    case: str
    """Node id, parameters included."""
    when: str
    """`setup`, `call` or `teardown`."""
    outcome: str
    """`passed`, `failed` or `skipped`."""
    xfail: bool
    """The case was expected to fail (then `skipped` means that it did, anything else that it did not)."""
    reason: str
    """Why it was skipped or expected to fail."""
    errors: tuple[str, ...]
    """Class names of the exception and its bases, most specific first; empty when nothing was raised."""
    text: str
    """The exception as Python prints it."""
    file: str
    """Absolute path of the failing statement."""
    line: int
    """1-based."""
    code: str
    """The failing statement."""


@dataclass(frozen=True, slots=True)
class Run:
    """What happened in one process."""

    collected: tuple[tuple[str, str, int], ...]
    """Node id, file relative to pytest's root, 1-based line of each case."""
    deselected: tuple[str, ...]
    reports: tuple[Report, ...]
    broken: Mapping[str, str]
    """File that could not be collected, with the error."""
    skipped_files: Mapping[str, str]
    """File that was skipped as a whole, with the reason."""
    foreign: Mapping[str, str]
    """Package that was loaded from elsewhere, with the place."""
    unimportable: Mapping[str, str]
    exit_code: int | None
    """pytest's exit code; None when the process ended before pytest did."""
    timed_out: bool
    running: str
    """The case that had begun and not ended when the process did."""
    output: str
    """The last lines of standard output and error."""


def run_of(events: Iterable[Mapping[str, Any]]) -> Run:
    """Return the events of one process as data."""
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    running = ""
    for event in events:
        by_kind.setdefault(event["event"], []).append(event)
        if event["event"] == "start":
            running = event["id"]
        elif event["event"] == "report" and event["when"] == "teardown":
            running = ""

    def some(kind: str) -> list[Mapping[str, Any]]:
        return by_kind.get(kind, [])

    return Run(
        collected=tuple((event["id"], event["file"], event["line"]) for event in some("collected")),
        deselected=tuple(event["id"] for event in some("deselected")),
        reports=tuple(_report(event) for event in some("report")),
        broken={event["id"]: event["text"] for event in some("broken")},
        skipped_files={event["id"]: event["text"] for event in some("skipped_file")},
        foreign={event["name"]: event["file"] for event in some("foreign")},
        unimportable={event["name"]: event["text"] for event in some("unimportable")},
        exit_code=next((event["exit"] for event in some("end")), None),
        timed_out=bool(some("timeout")),
        running=running,
        output=next((event["output"] for event in some("done")), ""),
    )


def _report(event: Mapping[str, Any]) -> Report:
    return Report(
        case=event["id"],
        when=event["when"],
        outcome=event["outcome"],
        xfail=event["xfail"],
        reason=event["reason"],
        errors=tuple(event["errors"]),
        text=event["text"],
        file=event["file"],
        line=event["line"],
        code=event["code"],
    )


def environment(search_paths: Sequence[Path], **extra: str) -> dict[str, str]:
    """Return the environment of a test run: the caller's, with the search paths first and a fixed hash seed.

    `CI` is set, everywhere alike: it makes Hypothesis choose its examples from the test alone.

    Parameters:
        search_paths: Folders that the tested packages are to be loaded from.
        **extra: Variables to set.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _DROPPED}
    inherited = [kept["PYTHONPATH"]] if kept.get("PYTHONPATH") else []
    paths = os.pathsep.join([*map(str, search_paths), *inherited])
    return kept | {"PYTHONPATH": paths, "PYTHONHASHSEED": "0", "NO_COLOR": "1", "COLUMNS": "120", "CI": "1"} | extra


def packages_of(search_paths: Iterable[Path]) -> dict[str, Path]:
    """Return the top-level packages and modules of folders, with the place that each is loaded from."""
    found: dict[str, Path] = {}
    for folder in search_paths:
        for place in sorted(folder.iterdir()) if folder.is_dir() else ():
            if place.suffix == ".py" or (place.is_dir() and next(place.rglob("*.py"), None) is not None):
                found.setdefault(place.stem if place.suffix == ".py" else place.name, place)
    return found


def run_once(root: Path, spec: Spec, *, env: Mapping[str, str], scratch: Path, timeout_seconds: float) -> Run:
    """Run pytest in one process, in `root`.

    Parameters:
        root: The working directory.
        spec: What to run.
        env: The whole environment, from `environment`.
        scratch: An empty folder for the run's own files; temporary paths of tests stand in its `tmp`.
        timeout_seconds: After this long the process and everything that it started is killed.
    """
    events_file = scratch / "events"
    # The project's options may ask for pytest's cache, so it is moved and not switched off.
    message = spec.as_json()
    message["args"] += [f"--basetemp={scratch / 'tmp'}", "-o", f"cache_dir={scratch / 'cache'}"]
    with (scratch / "output").open("w+b") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", str(_CHILD), "run", str(events_file)],
            cwd=root,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        timed_out = False
        try:
            process.communicate(json.dumps(message).encode(), timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _kill(process)
        output.seek(0)
        tail = "\n".join(output.read().decode(errors="replace").splitlines()[-20:])
    lines = events_file.read_text(encoding="utf-8").splitlines(keepends=True) if events_file.exists() else []
    # A killed process may leave half a line.
    events = [json.loads(line) for line in lines if line.endswith("\n")]
    if timed_out:
        events.append({"event": "timeout"})
    return run_of([*events, {"event": "done", "output": tail}])


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and whatever it left running in its session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (AttributeError, ProcessLookupError, PermissionError):
        process.kill()
    process.wait()


class WarmRunner:
    """An interpreter that has pytest loaded and forks a fresh child for every run; a context manager.

    Parameters:
        root: The tree that it works in.
        search_paths: Folders whose packages the tests import; they stay unloaded until a child runs.
        warm: Modules from elsewhere that the tests import; loaded once, those that are missing here are passed over.
        fork: Use fork where there is one; otherwise each run is a fresh process.
    """

    def __init__(
        self, root: Path, search_paths: Sequence[Path], *, warm: Sequence[str] = (), fork: bool = True
    ) -> None:
        env = environment(search_paths, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_CHILD), "serve"],
            cwd=root,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._send({"warm": list(warm), "cold": sorted(packages_of(search_paths)), "fork": fork})

    def run(self, spec: Spec, *, timeout_seconds: float) -> Run:
        """Run pytest in a fresh child.

        Parameters:
            spec: What to run.
            timeout_seconds: The child is killed after this long without a sign of life (a case begun or ended).
        """
        self._send(spec.as_json() | {"timeout_seconds": timeout_seconds})
        events: list[dict[str, Any]] = []
        assert self._process.stdout is not None  # noqa: S101 - for the type checker: it was opened as a pipe
        for line in self._process.stdout:
            events.append(json.loads(line))
            if events[-1]["event"] == "done":
                return run_of(events)
        return run_of([*events, {"event": "done", "output": "the test runner ended before its answer"}])

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None  # noqa: S101 - for the type checker: it was opened as a pipe
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:  # it is gone; the answer that does not come says so
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
