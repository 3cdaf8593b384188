"""Examples: run a page's blocks in its own process, and say what each one did.

It promises that a block which raises, exits, hangs, or fails in the middle is never taken for one that passed, that one
which is meant to fail and does not is a failure too, and that the output it returns is free of paths and addresses of
this machine. It does not render anything and does not know what a page is beyond a name.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bookproof import worker
from bookproof.cache import Cache, digest
from bookproof.host import missing_facts, short_folder
from bookproof.knobs import check_knobs
from bookproof.options import FenceOptions, Settings, parse


@dataclass(frozen=True, slots=True)
class Example:
    """One block that is to be run."""

    id: str
    """Unique on its page."""
    line: int
    """Line of the opening fence in the page's file; 0 where it is not known."""
    language: str
    code: str
    options: FenceOptions

    @property
    def apart(self) -> bool:
        """Whether it reads the checkout and shares no variables: it runs in each build, and nothing depends on it."""
        return self.options.workdir == "root" and not self.options.session


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to become of one claimed fence."""

    example: Example
    numbered: bool
    """Whether its id was given by counting, because the author gave none."""
    complaints: tuple[str, ...] = ()
    """Why it cannot be run as it stands."""
    absent: tuple[str, ...] = ()
    """What it needs and this host lacks."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a block did; `failure` is empty for a pass."""

    output: str
    """Normalised."""
    rules: tuple[str, ...] = ()
    """Normalisation rules that changed the output."""
    failure: str = ""
    line: int = 0
    """Line of the page that failed."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One named way of taking out what differs from run to run."""

    name: str
    pattern: re.Pattern[str]
    replace: str


ADDRESSES = Rule("addresses", re.compile(r"\bat 0x[0-9a-fA-F]{6,16}\b"), "at <address>")
OPTIONAL_RULES = {
    rule.name: rule
    for rule in (
        Rule(
            "times",
            re.compile(
                r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?"
                r"|\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b"
            ),
            "<time>",
        ),
        Rule(
            "durations", re.compile(r"\b\d+(?:\.\d+)?(?:e-?\d+)? ?(?:ns|µs|us|ms|s|seconds?|minutes?)\b"), "<duration>"
        ),
        Rule("ids", re.compile(r"\b(?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|[0-9a-f]{12,64})\b"), "<id>"),
        Rule("pids", re.compile(r"(?i)\b(pid[ =:]+)\d+"), r"\1<pid>"),
    )
}
"""Rules that a block asks for by name, because the same text may be what a lesson is about."""


def optional_rules(settings: Settings) -> dict[str, Rule]:
    """Return the rules that a block may name: the built-in ones and the site's own."""
    own = {name: Rule(name, re.compile(rule["pattern"]), rule["replace"]) for name, rule in settings.normalise.items()}
    return OPTIONAL_RULES | own


def path_rules(places: Mapping[str, str]) -> tuple[Rule, ...]:
    """Return rules that replace folders of this machine by names, the longest folder first."""
    ordered = sorted(places.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(
        Rule("paths", re.compile(re.escape(folder) + r"(?![\w-])"), name) for name, folder in ordered if folder
    )


def normalise(text: str, rules: tuple[Rule, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the text after all rules, and the names of those that changed it."""
    applied: list[str] = []
    for rule in rules:
        text, count = rule.pattern.subn(rule.replace, text)
        if count and rule.name not in applied:
            applied.append(rule.name)
    return text, tuple(applied)


def hint(committed: str, new: str) -> str:
    """Return which rule would make two outputs equal, as the rest of a sentence."""
    for rule in OPTIONAL_RULES.values():
        if rule.pattern.sub(rule.replace, committed) == rule.pattern.sub(rule.replace, new):
            return f' (normalise="{rule.name}" would make both equal)'
    return ""


def console_script(code: str) -> tuple[str, list[str]]:
    """Return a script that shows each `$ ` command before it runs it, and complaints about other lines.

    The script has a line for each line of the block, so that line numbers stay true.
    """
    complaints: list[str] = []
    commands: list[list[str]] = []
    for number, line in enumerate(code.split("\n"), start=1):
        if line.startswith("$ "):
            commands.append([line[2:]])
        elif line.startswith("> ") and commands:
            commands[-1].append(line[2:])
        elif line.strip():
            complaints.append(
                f"line {number} of the block is neither `$ command` nor `> continuation`: output is computed"
            )
        elif commands:
            commands[-1].append("")
    script = []
    for command in commands:
        shown = "\n> ".join(command).rstrip("\n> ")
        quoted = shown.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
        script.append(f"printf '%s\\n' $'$ {quoted}'; " + "\n".join(command))
    return "\n".join(script), complaints


def plan(
    language: str, written: tuple[tuple[str, str], ...], code: str, line: int, ids: set[str], settings: Settings
) -> Plan:
    """Return what is to become of a claimed fence, and count its id.

    Parameters:
        language: As written.
        written: Its options, in order.
        code: Its body.
        line: Line of the opening fence; 0 where it is not known.
        ids: Ids of the page's blocks so far; the block's is added.
        settings: The site's.
    """
    options, complaints = parse(language, written, settings)
    name = options.id or f"example-{len(ids) + 1}"
    if name in ids:
        complaints.append(f"another example of this page has the id {name}")
    ids.add(name)
    rules = optional_rules(settings)
    complaints += [
        f"unknown normalisation rule {rule!r}: known are {', '.join(sorted(rules))}"
        for rule in options.normalise
        if rule not in rules
    ]
    if language == "console" and options.execute:
        complaints += console_script(code)[1]
    if not code.strip():
        complaints.append("the block is empty")
    if options.lab == "knobs":
        complaints += check_knobs(code)
    absent: tuple[str, ...] = ()
    try:
        absent = missing_facts(options.host, settings.host_facts)
    except ValueError as error:
        complaints.append(str(error))
    example = Example(name, line, language, code, options)
    return Plan(example, not options.id, tuple(complaints), absent)


@dataclass(frozen=True, slots=True)
class Passes:
    """What passed in one build; shared by its runners."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """By the cache's keys."""
    salt: str = field(default_factory=lambda: os.urandom(16).hex())
    """Part of the key of what no other build may take over."""


def block_parts(example: Example) -> tuple[str, ...]:
    """Return what tells one block from another, wherever it stands."""
    return example.id, example.language, example.code, repr(asdict(example.options))


Earlier = dict[str, dict[str, Outcome]]
"""What the same blocks printed with whatever code there was then, by page and by a digest of the blocks so far."""


class Stopped(Exception):  # noqa: N818 (an event, not an error of this program)
    """The page's process ended, or was ended, before it answered."""


@dataclass(slots=True)
class _Page:
    name: str
    scratch: Path | None = None
    """Where the page's blocks work; made when the first of them runs."""
    opened: bool = False
    """Whether the worker has forked for this page."""
    pid: int = 0
    chain: str = ""
    """Digest of every block so far: the state that the next one meets."""
    text: str = ""
    """The same, whatever the code."""
    later: bool = False
    """Whether what a block printed earlier will do."""
    pending: list[Example] = field(default_factory=list)
    """Blocks whose passes were remembered, not run: they are run first if a later one must be."""
    lost: str = ""
    """Why the interpreter of this page is gone."""
    sessions: set[str] = field(default_factory=set)
    """Sessions that have variables in this interpreter."""
    lost_sessions: set[str] = field(default_factory=set)


class Runner:
    """Runs the examples of one build: one worker process, forked once per page.

    Parameters:
        settings: The site's settings.
        cache: Where passes are remembered.
        base: The part of the cache's key that all examples share.
        passes: What passed in this build; shared with the other runner of the build.
        earlier: Where passes are noted whatever the code was; shared by the builds of one server.
        patient: Whether it leaves the processors to whoever else wants them.
    """

    def __init__(
        self,
        settings: Settings,
        cache: Cache | None = None,
        base: str = "",
        passes: Passes | None = None,
        earlier: Earlier | None = None,
        *,
        patient: bool = False,
    ) -> None:
        self._settings = settings
        self._patient = patient
        self._cache = cache or Cache(None)
        self._passes = passes or Passes()
        self._base = base
        self._earlier = {} if earlier is None else earlier
        self._process: subprocess.Popen[bytes] | None = None
        self._requests = self._responses = -1
        self._page: _Page | None = None
        self._apart: Runner | None = None
        self._rules = optional_rules(settings)
        self.fork = hasattr(os, "fork") and os.environ.get("BOOKPROOF_FORK", "on") != "off"

    def open_page(self, name: str, *, later: bool = False) -> None:
        """Begin a page: nothing of an earlier one is left.

        Parameters:
            name: The page.
            later: Its blocks are run by somebody else, later: what they printed earlier will do.
        """
        self.close_page()
        self._page = _Page(name, chain=digest(self._base, name), later=later)

    def close_page(self) -> None:
        """End the page: its process, its child processes and its files are gone."""
        page, self._page = self._page, None
        if page is None:
            return
        if page.opened:
            self._end_page(page)
        if page.scratch is not None:
            shutil.rmtree(page.scratch, ignore_errors=True)

    def close(self) -> None:
        """End the worker."""
        self.close_page()
        self._stop()
        if self._apart is not None:
            self._apart.close()

    def kill(self) -> None:
        """Stop what runs, from another thread: the block that is being waited for ends as one that was killed."""
        page, process = self._page, self._process
        if self._apart is not None:
            self._apart.kill()
        if page is not None:
            _kill_group(page.pid)
        if process is not None:
            _kill_group(process.pid)

    def run(self, example: Example) -> Outcome:
        """Run one block of the open page and judge it; a pass may be remembered from an earlier build."""
        page = self._opened()
        if example.apart:
            return self._run_apart(page, example)
        if example.options.workdir == "root":
            page.chain = digest(page.chain, self._passes.salt)  # it may read what no key covers
        block = block_parts(example)
        page.chain, page.text = digest(page.chain, *block), digest(page.text, *block)
        earlier = self._earlier.setdefault(page.name, {})
        known = self._known(page.chain)
        if found := known or (earlier.get(page.text) if page.later else None):
            earlier[page.text] = found
            page.pending.append(example)
            return found
        if example.options.session in page.lost_sessions:
            return Outcome("", failure=f"not run: its session ended with {page.lost}", line=example.line)
        pending, page.pending = page.pending, []
        for one in pending:
            self._run(page, one)
        outcome = self._run(page, example)
        if not outcome.failure:
            earlier[page.text] = outcome
            self._passes.outcomes[page.chain] = outcome
            self._cache.put(page.chain, {"output": outcome.output, "rules": list(outcome.rules)})
        else:
            page.chain = digest(page.chain, "failed", os.urandom(8).hex())  # what follows a failure is not remembered
        return outcome

    def _run_apart(self, page: _Page, example: Example) -> Outcome:
        """Run a block that reads the checkout and shares no variables in a process of its own.

        It depends on nothing of its page, and nothing of its page on it: only this block is run in each build.
        """
        key = digest(page.name, self._passes.salt, *block_parts(example))
        if found := self._passes.outcomes.get(key):
            return found
        if self._apart is None:
            self._apart = Runner(self._settings)
        self._apart.open_page(page.name)
        outcome = self._apart._run(self._apart._opened(), example)  # noqa: SLF001 (its own kind)
        self._apart.close_page()
        if not outcome.failure:
            self._passes.outcomes[key] = outcome
        return outcome

    def _opened(self) -> _Page:
        if self._page is None:
            raise RuntimeError("no page is open")
        return self._page

    def _known(self, chain: str) -> Outcome | None:
        if chain not in self._passes.outcomes and (found := self._cache.get(chain)):
            return Outcome(found["output"], tuple(found["rules"]))
        return self._passes.outcomes.get(chain)

    def _run(self, page: _Page, example: Example) -> Outcome:
        scratch = page.scratch or _new_scratch()
        page.scratch = scratch
        rules = self._rules_for(scratch, example)
        code = example.code
        if example.options.session:
            page.sessions.add(example.options.session)
        if example.language == "console":
            code, _ = console_script(code)
        request = {
            "kind": "run",
            "language": "python" if example.language == "python" else "bash",
            "code": code,
            "label": f"{example.id}.py",
            "session": example.options.session,
            "merge": example.options.result not in STRUCTURED,
            "killed": example.options.lab == "crash",
            "workdir": str(self._settings.root.resolve()) if example.options.workdir == "root" else "",
        }
        try:
            if not page.opened:
                self._open(page, scratch)
            answer = self._ask(page, request, example.options.timeout_seconds)
        except Stopped as stopped:
            page.lost = f"example {example.id} on line {example.line}"
            page.lost_sessions |= page.sessions
            written = _tail(normalise(_captured(scratch), rules)[0])
            return Outcome("", failure=f"{example.language} example {stopped}{written}", line=example.line)
        return judge(example, answer, rules)

    def _rules_for(self, scratch: Path, example: Example) -> tuple[Rule, ...]:
        places = {
            "<work>": str(scratch / "work"),
            "<home>": str(scratch / "home"),
            "<tmp>": str(scratch / "tmp"),
            "<project>": str(self._settings.root.resolve()),
            "<python>": sys.prefix,
            "<stdlib>": sysconfig.get_path("stdlib"),
        }
        asked = tuple(self._rules[name] for name in example.options.normalise)
        return (*path_rules(places), ADDRESSES, *asked)

    def _ask(self, page: _Page, request: worker.Message, timeout_seconds: float) -> worker.Message:
        self._send(request)
        answer = self._receive(timeout_seconds)
        if answer is None:
            self._kill(page)
            raise Stopped(f"was stopped after {timeout_seconds:g} s (timeout)")
        if answer["kind"] == "gone":
            self._kill(page)
            code = answer["status"]
            how = f"the exit code {code} (os._exit)" if code >= 0 else f"signal {signal.Signals(-code).name}"
            raise Stopped(f"ended its own process with {how}")
        return answer

    def _open(self, page: _Page, scratch: Path) -> None:
        self._start()
        source = self._settings.root.resolve() / self._settings.src
        opening = {
            "kind": "page",
            "fork": self.fork,
            "capture": str(scratch / "capture"),
            "workdir": str(scratch / "work"),
            "path": [str(source)] if source.is_dir() else [],
            "environment": {"HOME": str(scratch / "home"), "TMPDIR": str(scratch / "tmp")},
        }
        self._send(opening)
        answer = self._receive(30)
        if answer is None or answer["kind"] != "opened":
            raise RuntimeError("the worker process did not start a page")
        page.opened, page.pid = True, answer["pid"]

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._stop()
        request_end, self._requests = os.pipe()
        self._responses, response_end = os.pipe()
        source = self._settings.root.resolve() / self._settings.src
        self._process = subprocess.Popen(
            [sys.executable, "-P", worker.__file__, str(request_end), str(response_end)],
            pass_fds=(request_end, response_end),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=child_environment(self._settings.environment, source),
            start_new_session=True,
        )
        if self._patient:
            os.setpriority(os.PRIO_PROCESS, self._process.pid, 19)  # its forks inherit it
        os.close(request_end)
        os.close(response_end)

    def _stop(self) -> None:
        process, self._process = self._process, None
        for descriptor in (self._requests, self._responses):
            if descriptor >= 0:
                os.close(descriptor)
        self._requests = self._responses = -1
        if process is not None:
            _kill_group(process.pid)
            process.wait()

    def _end_page(self, page: _Page) -> None:
        try:
            self._send({"kind": "end"})
            if self.fork:
                self._receive(5)
        except OSError:
            self._stop()
        else:
            _kill_group(page.pid)
        if not self.fork:
            self._stop()

    def _kill(self, page: _Page) -> None:
        _kill_group(page.pid)
        self._stop()
        page.opened = False

    def _send(self, message: worker.Message) -> None:
        with contextlib.suppress(BrokenPipeError):
            worker.send(self._requests, message)

    def _receive(self, timeout_seconds: float) -> worker.Message | None:
        """Return the next message; None when there is none in time; an ended worker counts as gone."""
        deadline = time.monotonic() + timeout_seconds
        ready, _, _ = select.select([self._responses], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        answer = worker.receive(self._responses)
        if answer is None:
            status = self._process.wait() if self._process is not None else 1
            return {"kind": "gone", "status": status}
        return answer


STRUCTURED = ("markdown", "html", "mermaid", "json")
"""Results in which a stray line of standard error would break the form."""


def child_environment(extra: Mapping[str, str], source: Path) -> dict[str, str]:
    """Return the environment of everything that a build runs: the same on every host, in every locale and time zone."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("LD_", "FAKETIME", "DYLD_")) or name in {"VIRTUAL_ENV", "SYSTEMROOT"}
    }
    search = [str(Path(sys.executable).parent), *os.environ.get("PATH", os.defpath).split(os.pathsep)]
    fixed = {
        "PATH": os.pathsep.join(dict.fromkeys(search)),
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "COLUMNS": "100",
        "LINES": "40",
        "TERM": "dumb",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",  # one of the second before would be taken for that of a file edited since
        "PYTHONUTF8": "1",
    }
    if source.is_dir():
        fixed["PYTHONPATH"] = str(source)
    return {**kept, **fixed, **extra}


def _new_scratch() -> Path:
    scratch = Path(tempfile.mkdtemp(prefix="bookproof-", dir=short_folder())).resolve()
    for folder in ("work", "home", "tmp"):
        (scratch / folder).mkdir()
    return scratch


def _captured(scratch: Path) -> str:
    path = scratch / "capture.out"
    return path.read_text("utf-8", "replace") if path.exists() else ""


def _kill_group(pid: int) -> None:
    if pid > 0:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def judge(example: Example, answer: worker.Message, rules: tuple[Rule, ...]) -> Outcome:
    """Return the outcome of a block that answered: it did what its options say, or it failed."""
    output, applied = normalise(answer["stdout"], rules)
    errors, _ = normalise(answer["stderr"], rules)
    failed, line = _difference(example, answer, rules)
    if failed:
        return Outcome(output, applied, failed + _tail(output + errors), line)
    if errors.strip():
        told = (
            f"{example.language} example wrote to standard error, which result={example.options.result!r} cannot show"
        )
        return Outcome(output, applied, told + _tail(errors), example.line)
    if answer["kind"] == "raised":
        message, more = normalise(answer["message"], rules)
        output, applied = f"{output}{message}\n", tuple(dict.fromkeys((*applied, *more)))
    return Outcome(output, applied)


def _difference(example: Example, answer: worker.Message, rules: tuple[Rule, ...]) -> tuple[str, int]:
    """Return how a block differed from what its options say, and the line; empty where it did not."""
    wanted, options = example.options.raises, example.options
    within = example.line + answer.get("line", 0) if example.line else 0
    if answer["kind"] == "exited":
        code = answer["returncode"]
        if code == options.returncode:
            return "", 0
        if not options.returncode:
            return f"{example.language} example failed: a command ended with exit code {code}", within
        return (
            f"{example.language} example was to end with exit code {options.returncode}, but ended with {code}",
            within,
        )
    if answer["kind"] == "killed":
        return "", 0
    if answer["kind"] == "ended" and options.lab == "crash":
        return "python example was to kill its own process, but ended", example.line
    if answer["kind"] == "ended":
        return (f"python example was to raise {wanted}, but raised nothing", example.line) if wanted else ("", 0)
    message = _headline(normalise(answer["message"], rules)[0])
    if wanted and not answer["in_thread"]:
        if wanted in answer["classes"]:
            return "", 0
        return f"python example was to raise {wanted}, but raised {message}", within
    where = " in a thread" if answer["in_thread"] else ""
    trace = normalise(answer["traceback"], rules)[0].replace("<project>/", "")
    if "SystemExit" in answer["classes"]:
        return f"python example called sys.exit ({message})", within
    return f"python example failed{where}: {message}\n{_indented(trace)}", within


def _headline(message: str) -> str:
    """Return the line of an exception's message that says what it is; that of a syntax error comes last."""
    lines = message.split("\n")
    return lines[-1] if lines[0].startswith("File ") else lines[0]


def _tail(text: str) -> str:
    lines = text.rstrip().split("\n")
    if not text.strip():
        return ""
    return "\n" + _indented("\n".join(("it wrote:", *lines[-12:])))


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().split("\n"))
