"""Lab run: runs a page's blocks and the tests of mutations where a reader's browser has Python.

It promises the build's own judgement: blocks are executed by the build's `worker`, their outputs normalised and judged
by `examples`, tests reported by `testrun_child` and judged by `verdicts`. It knows no browser: whoever calls it gives
a function for what is to be told while something runs, and one that ends the process. Blocks of a shell and threads are
beyond it.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import platform
import shutil
import signal
import sqlite3
import sys
import sysconfig
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from bookproof.examples import ADDRESSES, OPTIONAL_RULES, STRUCTURED, Example, Outcome, judge, normalise, path_rules
from bookproof.options import FenceOptions
from bookproof.verdicts import TestVerdict, first_line, judge_mutation, judge_test
from bookproof.verdicts import normalise as normalise_report
from bookproof.worker import Page

Tell = Callable[[str], None]
"""Receives what happens as JSON, while it happens."""


class Lab:
    """One interpreter in a browser.

    Parameters:
        project: Folder of the repository's copy.
        scratch: Folder whose content outlives the process, if the caller keeps it.
        src: The folder of the packages, within the project.
        tell: Receives events.
        end: Ends the process at once; never returns.
    """

    def __init__(self, project: str, scratch: str, src: str, tell: Tell, end: Callable[[], NoReturn]) -> None:
        self._project, self._scratch, self._src = Path(project), Path(scratch), Path(project) / src
        self._tell, self._end = tell, end
        self._page: _BrowserPage | None = None
        self._frozen = False
        self._littered = False
        """Whether a block has run since the last test."""
        # Compiled files make the next run of the same code several times faster; those of a changed file are dropped.
        sys.dont_write_bytecode = False

    def versions(self) -> str:
        """Return what a reader compares with the build: the versions of Python and SQLite, as JSON."""
        return json.dumps({"python": platform.python_version(), "sqlite": sqlite3.sqlite_version})

    def answer(self, order: str) -> str:
        """Carry out one order and return its result; both are JSON.

        Parameters:
            order: `kind` is `blocks`, `source` or `test`; the rest are that method's parameters.
        """
        given = json.loads(order)
        kinds: dict[str, Callable[..., Any]] = {"blocks": self.blocks, "source": self.source, "test": self.test}
        return json.dumps(kinds[given.pop("kind")](**given))

    def blocks(self, blocks: Sequence[Mapping[str, Any]], *, fresh: bool = True) -> list[dict[str, Any]]:
        """Run blocks one after the other, as one page of a build does, and return what each one did.

        Parameters:
            blocks: For each its `id`, `code` and `options`.
            fresh: Whether the scratch folder is empty when the first one begins.
        """
        self._littered = True
        if self._page is None or fresh:
            self._page = self._new_page(fresh=fresh)
        return [self._block(self._page, block) for block in blocks]

    def source(self, file: str, before: str, after: str) -> dict[str, Any]:
        """Return the text of a changed file, and the 1-based line where the change begins."""
        text, changed = self._change(file, before, after)
        return {"text": changed, "line": text[: text.index(before)].count("\n") + 1}

    def test(self, file: str, test: str, before: str = "", after: str = "", text: str = "") -> dict[str, Any]:
        """Run one test, on changed code or as it is, and put the code back.

        Parameters:
            file: The file to change, within the project.
            test: Node id of the test.
            before: The exact text to replace; empty: nothing is replaced.
            after: What stands there instead.
            text: The whole text of the file instead of a replacement; empty: its own.
        """
        target = self._project / file
        if text and (wrong := _no_python(file, text)):
            return wrong
        original = target.read_bytes()
        changed = self._change(file, before, after)[1] if before else text
        start = time.perf_counter()
        try:
            if changed:
                _write(target, changed.encode())
            events = self._pytest(test)
        finally:
            if changed:
                _write(target, original)
            self._forget()
        return {**self._judged(events, test, mutated=bool(before)), "seconds": time.perf_counter() - start}

    def _change(self, file: str, before: str, after: str) -> tuple[str, str]:
        text = (self._project / file).read_text("utf-8")
        count = text.count(before)
        if count != 1:
            raise ValueError(f"what is to be replaced occurs {count} times in {file}, not once")
        return text, text.replace(before, after)

    def _new_page(self, *, fresh: bool) -> _BrowserPage:
        os.chdir("/")
        if fresh:
            shutil.rmtree(self._scratch, ignore_errors=True)
        for name in ("work", "home", "tmp"):
            (self._scratch / name).mkdir(parents=True, exist_ok=True)
        return _BrowserPage(self._scratch, self._src, self._tell, self._end)

    def _block(self, page: _BrowserPage, block: Mapping[str, Any]) -> dict[str, Any]:
        options = FenceOptions(**{**block["options"], "normalise": tuple(block["options"]["normalise"])})
        example = Example(block["id"], 0, "python", block["code"], options)
        rules = (*path_rules(self._places()), ADDRESSES, *(OPTIONAL_RULES[name] for name in options.normalise))
        page.rules = rules
        answer = page.run(
            {
                "id": example.id,
                "code": example.code,
                "label": f"{example.id}.py",
                "session": options.session,
                "merge": options.result not in STRUCTURED,
                "workdir": str(self._project) if options.workdir == "root" else "",
            }
        )
        result = block_result(example, judge(example, answer, rules), answer.get("line", 0))
        self._tell(json.dumps({"event": "block", **result}))
        return result

    def _places(self) -> dict[str, str]:
        names = {f"<{name}>": str(self._scratch / name) for name in ("work", "home", "tmp")}
        more = {"<project>": self._project, "<python>": sys.prefix, "<stdlib>": sysconfig.get_path("stdlib")}
        return names | {name: str(place) for name, place in more.items() if str(place) != "/"}

    def _pytest(self, test: str) -> list[dict[str, Any]]:
        from bookproof.testrun_child import run_pytest

        self._forget()
        if self._littered:  # what blocks left open is no fault of the test during which it would be found
            self._littered = False
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                gc.collect()
        self._scratch.mkdir(exist_ok=True)
        os.chdir(self._project)
        for place in (str(self._src), str(self._project)):
            if place not in sys.path:
                sys.path.append(place)
        events: list[dict[str, Any]] = []
        temporary = f"--basetemp={self._scratch / 'pytest'}"
        spec = {
            "args": ["-q", "--tb=no", "-p", "no:cacheprovider", "--maxfail=0", temporary, test.partition("::")[0]],
            "select": [test],
            "packages": {path.name: str(path) for path in self._src.iterdir() if path.is_dir()},
            "modules": [],
            "apart": False,
        }
        printed = io.StringIO()
        os.environ |= {"CI": "1", "COLUMNS": "120", "NO_COLOR": "1"}  # as in a build: the report is the same text
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            run_pytest(spec, events.append)
        os.environ["COLUMNS"] = "100"
        if not self._frozen:
            self._frozen = True
            gc.collect()
            gc.freeze()  # pytest collects garbage at its end: what it loaded once need not be searched again
        return [*events, {"event": "done", "output": printed.getvalue()}]

    def _judged(self, events: list[dict[str, Any]], test: str, *, mutated: bool) -> dict[str, Any]:
        from bookproof.testrun import run_of

        run = run_of(events)
        found = judge_test(run, test)
        failed = next((report for report in run.reports if report.outcome == "failed"), None)
        verdict, detail = str(found.verdict), found.reason
        if mutated:
            judged, detail, report = judge_mutation(run, test)
            verdict, failed = str(judged), report or failed
        shown = normalise_report(failed.text, {f"{self._project}/": "", str(self._scratch): "<tmp>"}) if failed else ""
        return {
            "verdict": verdict,
            "detail": detail,
            "green": found.verdict is TestVerdict.PASSED and found.cases > 0,
            "cases": found.cases,
            "file": failed.file.removeprefix(f"{self._project}/") if failed else "",
            "line": failed.line if failed else 0,
            "code": failed.code if failed else "",
            "text": shown,
            "headline": first_line(shown),
        }

    def _forget(self) -> None:
        """Drop every module that was loaded from the project, so that the next run reads its files again."""
        for name, module in list(sys.modules.items()):
            file = str(getattr(module, "__file__", None) or "")
            if file.startswith(f"{self._project}/"):
                del sys.modules[name]
        self._page = None


def block_result(example: Example, outcome: Outcome, line: int) -> dict[str, Any]:
    """Return what a block did, for the lab's script: `line` is that of the block, 0 where none is to blame."""
    return {"id": example.id, "output": outcome.output, "failure": outcome.failure, "line": line}


def _no_python(file: str, text: str) -> dict[str, Any]:
    """Return what a test of a file that does not compile would come to, with the line to mend; empty if it does."""
    try:
        compile(text, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", 0) or 0
        lines = text.splitlines()
        return {
            "verdict": str(TestVerdict.ERROR),
            "detail": f"{type(error).__name__}: {getattr(error, 'msg', error)}",
            "green": False,
            "cases": 0,
            "file": file,
            "line": line,
            "code": lines[line - 1].strip() if 0 < line <= len(lines) else "",
            "text": "",
            "headline": "",
            "seconds": 0.0,
        }
    return {}


def _write(file: Path, data: bytes) -> None:
    """Write a file of Python whose compiled form must not be older than the text."""
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        compiled.unlink()
    file.write_bytes(data)


class _BrowserPage(Page):
    """The build's page, without descriptors to capture: what is written is told at once, and kept."""

    def __init__(self, scratch: Path, src: Path, tell: Tell, end: Callable[[], NoReturn]) -> None:
        self.rules: Any = ()
        self._tell, self._end = tell, end
        known = [place for place in sys.path if place != str(src)]
        sys.path[:] = known
        environment = {"HOME": str(scratch / "home"), "TMPDIR": str(scratch / "tmp")}
        opening = {"capture": "", "workdir": str(scratch / "work"), "path": [str(src)], "environment": environment}
        super().__init__(opening)
        import tempfile

        tempfile.tempdir = None  # so that the folder is looked up again

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one block and return what happened, with what it wrote."""
        written = _Told(lambda text: self._tell(json.dumps({"event": "text", "id": request["id"], "text": text})))
        errors = written if request["merge"] else io.StringIO()
        real_kill, here = os.kill, Path.cwd()

        def kill(pid: int, number: int) -> None:
            if pid != os.getpid() or number != signal.SIGKILL:
                real_kill(pid, number)
            output = normalise(written.getvalue(), self.rules)[0]
            self._tell(json.dumps({"event": "killed", "id": request["id"], "output": output}))
            self._end()

        os.kill = kill
        try:
            if request["workdir"]:
                os.chdir(request["workdir"])
            with contextlib.redirect_stdout(written), contextlib.redirect_stderr(errors):
                answer = self._python(request)
        finally:
            os.kill = real_kill
            os.chdir(here)
        return {**answer, "stdout": written.getvalue(), "stderr": "" if request["merge"] else errors.getvalue()}


class _Told(io.StringIO):
    """Text that is kept, and told line by line or in larger pieces."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell_text = tell

    def write(self, text: str) -> int:
        self._tell_text(text)
        return super().write(text)
