"""Sandbox: argv under bubblewrap, and the experiments that show what it contains.

`Sandbox.run` gives a child its own namespaces, the policy's roots to read and write, the system's programs to read, and
the policy's environment; where bubblewrap does not work it refuses, and it never runs anything outside instead.
There is no network inside, whatever the policy's hosts, because bubblewrap cannot filter by host. Not contained: the
system calls themselves (no seccomp filter), memory and processor time, and what a root's own sockets lead to.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .clock import as_utc, seconds, system_clock
from .errors import Category, Refusal, shorten, shown
from .isolation import BASE_ENVIRONMENT, Act, Experiment, IsolationPolicy, ProbeReport, kernel_name

if TYPE_CHECKING:
    import socket
    import subprocess

SYSTEM_DIRECTORIES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Bound read-only where they exist; one that is a link (as /bin to usr/bin) becomes the same link inside."""

SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives")
"""All that is seen of /etc: what the dynamic linker and Debian's links between programs need."""

OUTPUT_LIMIT_BYTES = 1 << 20
"""How much of each output stream is kept by default, in bytes."""


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """How a command inside the sandbox ended."""

    returncode: int
    """The command's exit status; 128 + n when signal n killed it; 124, as timeout(1) has it, when the time ran out."""
    stdout: bytes
    stderr: bytes
    timed_out: bool
    """The time ran out, and every process inside was killed."""
    truncated: bool
    """More was written than is kept; the rest was read and dropped."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A bubblewrap that worked when it was tried, or the reason why there is none."""

    executable: str | None
    """Absolute path of the program; None where no sandbox works."""
    name: str
    """What a report calls it, such as `bubblewrap 0.8.0`."""
    reason: str = ""
    """Why there is none; empty where it works."""

    @classmethod
    def detect(cls) -> Sandbox:
        """Find bubblewrap on PATH (0.8 or newer) and run one command under it.

        Never raises: where it is missing or does not work, the result says why, and its `run` and `prove` refuse.
        """
        executable = shutil.which("bwrap")
        if executable is None:
            return cls(None, "no sandbox", "bubblewrap (bwrap) is not on PATH")
        found = cls(str(Path(executable).absolute()), _version(executable))
        try:
            trial = found.run(("true",), IsolationPolicy(), timeout_seconds=10)
        except Refusal as refusal:
            return cls(None, "no sandbox", refusal.why)
        except OSError as error:
            return cls(None, "no sandbox", f"{found.name} could not be tried: {error.strerror}")
        if trial.returncode != 0:
            return cls(None, "no sandbox", f"{found.name} ran true, which ended with {trial.returncode}")
        return found

    @property
    def available(self) -> bool:
        """Tell whether a command can be run; `prove` says what that is worth."""
        return self.executable is not None

    def run(
        self,
        argv: Sequence[str],
        policy: IsolationPolicy,
        *,
        timeout_seconds: float = 60,
        cwd: str | Path | None = None,
        input: bytes = b"",  # noqa: A002 - the name that subprocess.run has
        read_only: Iterable[str | Path] = (),
        output_limit_bytes: int = OUTPUT_LIMIT_BYTES,
    ) -> SandboxResult:
        """Run a command inside; wait until it ends, or kill all of it when the time is over.

        The command sees the policy's roots (read and write), `SYSTEM_DIRECTORIES` (read), a private /tmp, /proc and
        /dev, and the environment of `policy.environment()` with the `PWD` that bubblewrap adds. Process, network, user,
        IPC, host name and cgroup namespaces are its own, and it dies with this process. A root that is replaced
        between the check here and bubblewrap's binding is not noticed.

        Parameters:
            argv: Program, looked up on the environment's PATH inside, and its arguments.
            policy: What the command may touch.
            timeout_seconds: Longest run, in seconds, at least 0.1.
            cwd: Directory to start in, inside a root; the first root when omitted, or /tmp where there is none.
            input: What the command reads from its standard input.
            read_only: Further places, bound read-only: outside the roots, the caller widens the policy by them; inside
                a root, they stay as they are.
            output_limit_bytes: How much of each stream is kept, in bytes.

        Raises:
            Refusal: `category="process"` where no sandbox works, a root or `read_only` place cannot be bound, or the
                command could not be started inside; `category="filesystem"` where `cwd` lies outside every root.
            TypeError: An argument is of another type.
            ValueError: `argv` is empty or holds NUL, or a number is out of range.
        """
        command = _checked_argv(argv)
        if not isinstance(policy, IsolationPolicy):
            raise TypeError(f"policy must be an IsolationPolicy, not {type(policy).__name__}: {shown(policy)}")
        limit = seconds("timeout_seconds", timeout_seconds, minimum=0.1).total_seconds()
        if not isinstance(input, bytes):
            raise TypeError(f"input must be bytes, not {type(input).__name__}")
        if isinstance(output_limit_bytes, bool) or not isinstance(output_limit_bytes, int):
            raise TypeError(f"output_limit_bytes must be a whole number: {shown(output_limit_bytes)}")
        if output_limit_bytes < 0:
            raise ValueError(f"output_limit_bytes must not be negative: {shown(output_limit_bytes)}")
        if self.executable is None:
            raise _refused(command[0], self.reason, "install bubblewrap, or allow user namespaces")
        options = [*_NAMESPACES, *_system_mounts(), *_binds(policy, read_only), "--chdir", _start(policy, cwd)]
        return _run(self.executable, options, command, policy.environment(), input, limit, output_limit_bytes)


def prove(sandbox: Sandbox, *, now: datetime | None = None) -> ProbeReport:
    """Run the negative experiments, and report what each met.

    A child of this process is the parent of the experiments: it holds a secret in its environment and a listener, and
    counts the signals it gets. It lets the same code try each act of `Act` twice, first outside the sandbox, where the
    act must succeed, then inside. An act counts as refused only if the code inside reported its failure, and the
    parent saw no effect.

    Parameters:
        sandbox: What to try.
        now: Aware instant of the report; the system's clock when omitted.

    Returns:
        The report, passed or not; where the child gave no answer, each experiment says so.

    Raises:
        Refusal: `category="process"` where no sandbox works.
    """
    import subprocess
    import tempfile

    at = system_clock() if now is None else as_utc("now", now)
    if sandbox.executable is None:
        raise _refused("the probe", sandbox.reason, "install bubblewrap, or allow user namespaces")
    with tempfile.TemporaryDirectory(prefix="sovereign-probe-") as folder:
        order = {"path": sys.path, "executable": sandbox.executable, "name": sandbox.name, "folder": folder}
        try:
            answer = subprocess.run(
                [sys.executable, "-c", _PARENT],
                input=json.dumps(order).encode(),
                env=os.environ | {_SECRET: os.urandom(16).hex()},
                capture_output=True,
                timeout=_PROOF_SECONDS,
                check=False,
            )
            found = {Act(item["act"]): item for item in json.loads(answer.stdout)}
        except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
            found, silence = {}, f"the experiments gave no answer: {type(error).__name__}"
        else:
            silence = "this experiment gave no answer"
    none = {"control": False, "refused": False, "detail": silence}
    experiments = (
        Experiment(act, answer["control"] is True, answer["refused"] is True, str(answer["detail"]))
        for act in Act
        for answer in [found.get(act, none)]
    )
    return ProbeReport(sandbox.name, kernel_name(), at, tuple(experiments))


# --- running ----------------------------------------------------------------------------------------------------------

_NAMESPACES = (
    *("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    "--disable-userns",  # inside a further one, the child would have every capability over it again
    *("--cap-drop", "ALL"),  # matters where the caller is root: bubblewrap would leave it its capabilities
    *("--die-with-parent", "--new-session", "--hostname", "sandbox"),
)
_KERNEL_PLACES = ("/proc", "/sys", "/dev")
# The kernel lets user 0 write these without any capability, and a caller who is root stays user 0 on the inside: one
# write to /proc/sys/kernel/core_pattern would be a way out.
_KERNEL_SWITCHES = tuple(
    f"/proc/{name}" for name in ("acpi", "bus", "fs", "irq", "mtrr", "scsi", "sys", "sysrq-trigger")
)
_TIMED_OUT = 124


def _refused(subject: str, why: str, remedy: str) -> Refusal:
    return Refusal(Category.PROCESS, subject, why, remedy)


def _version(executable: str) -> str:
    import subprocess

    try:
        shown = subprocess.run([executable, "--version"], capture_output=True, timeout=10, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return "bubblewrap"
    named = re.match(rb"bubblewrap [0-9.]{1,20}", shown)
    return named[0].decode() if named else "bubblewrap"


def _checked_argv(argv: Sequence[str]) -> list[str]:
    if isinstance(argv, str | bytes) or not isinstance(argv, Sequence):
        raise TypeError(f"argv must be a sequence of text, not {type(argv).__name__}: {shorten(argv)}")
    if not all(isinstance(word, str) for word in argv):
        raise TypeError(f"argv must hold text only: {shorten(argv)}")
    if not argv or not argv[0] or any("\0" in word for word in argv):
        raise ValueError(f"argv must name a program and hold no NUL: {shorten(argv)}")
    return list(argv)


def _system_mounts() -> list[str]:
    mounts = ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", BASE_ENVIRONMENT["HOME"]]  # noqa: S108 - inside
    for directory in map(Path, SYSTEM_DIRECTORIES):
        if directory.is_symlink():
            mounts += ["--symlink", str(directory.readlink()), str(directory)]
        elif directory.is_dir():
            mounts += ["--ro-bind", str(directory), str(directory)]
    for place in (*SYSTEM_FILES, *_KERNEL_SWITCHES):
        mounts += ["--ro-bind-try", place, place]
    return mounts


def _binds(policy: IsolationPolicy, read_only: Iterable[str | Path]) -> list[str]:
    """Bind outer directories before inner ones, so that neither hides the other; on one path read-only wins."""
    if isinstance(read_only, str | bytes | os.PathLike) or not isinstance(read_only, Iterable):
        raise TypeError(f"read_only must be a sequence of paths, not {type(read_only).__name__}: {shorten(read_only)}")
    places: dict[str, str] = {}
    for root in policy.roots:
        if not root.is_in_place():
            raise _refused(str(root.path), "the root was replaced after the policy was made", "make the policy anew")
        places[str(root.path)] = "--bind"
    for place in read_only:
        # A link stays a link in name: the command asks for what it leads to by this name.
        places[_absolute(place)] = "--ro-bind"
    for path in places:
        _bindable(path)
    return [word for path in sorted(places, key=lambda p: p.count("/")) for word in (places[path], path, path)]


def _absolute(place: object) -> str:
    text = os.fspath(place) if isinstance(place, os.PathLike) else place
    if not isinstance(text, str):
        raise TypeError(f"read_only must hold paths, not {type(place).__name__}: {shown(place)}")
    if not text or "\0" in text:
        raise ValueError(f"read_only must hold no empty path and no NUL character: {shown(text)}")
    try:
        return os.path.abspath(text)  # noqa: PTH100 - a link keeps its name
    except OSError as error:  # the current directory is gone
        raise _refused(text, (error.strerror or str(error)).lower(), "name it by its absolute path") from error


def _bindable(path: str) -> None:
    """Refuse what would hand the child this machine's processes or devices, or all of its files."""
    real = Path(os.path.realpath(path))
    if real == Path("/") or any(real.is_relative_to(place) for place in _KERNEL_PLACES):
        raise _refused(
            path, "bound into a sandbox it would leave nothing isolated", "use a directory of ordinary files"
        )


def _start(policy: IsolationPolicy, cwd: str | Path | None) -> str:
    if cwd is not None:
        if not isinstance(cwd, str | os.PathLike):
            raise TypeError(f"cwd must be text or a path, not {type(cwd).__name__}: {shown(cwd)}")
        return str(policy.authorize_path(cwd))
    return str(policy.roots[0].path) if policy.roots else "/tmp"  # noqa: S108 - the private one inside


def _run(
    executable: str,
    options: list[str],
    command: list[str],
    environment: dict[str, str],
    given: bytes,
    limit_seconds: float,
    limit_bytes: int,
) -> SandboxResult:
    """Start bubblewrap and collect what comes of it. The environment travels as one, never on a command line."""
    import subprocess
    import tempfile

    status_out, status_in = os.pipe()
    with tempfile.TemporaryFile() as source, os.fdopen(status_out, "rb") as status:
        try:
            source.write(given)
            source.seek(0)
            child = subprocess.Popen(
                [executable, "--json-status-fd", str(status_in), *options, "--", *command],
                env=environment,
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(status_in,),
                start_new_session=True,
            )
        except OSError as error:
            raise _refused(command[0], f"{executable} cannot be started: {error.strerror}", "install it") from error
        finally:
            os.close(status_in)
        deadline = time.monotonic() + limit_seconds
        with child:
            try:
                (stdout, more_out), (stderr, more_err) = _collect(child, deadline, limit_bytes)
                # A command may close its streams and go on.
                child.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                return SandboxResult(_TIMED_OUT, stdout, stderr, timed_out=True, truncated=more_out or more_err)
            finally:
                if child.poll() is None:
                    # The group holds process 1 of the namespace; when that dies, everything inside dies.
                    os.killpg(child.pid, signal.SIGKILL)
        ended = _exit_status(status.read())
    if ended is None:
        why = stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"it ended with {child.returncode}"]
        raise _refused(command[0], f"it did not start inside: {shorten(why[0])}", "nothing was run outside instead")
    return SandboxResult(ended, stdout, stderr, timed_out=False, truncated=more_out or more_err)


def _collect(child: subprocess.Popen[bytes], deadline: float, limit_bytes: int) -> list[tuple[bytes, bool]]:
    """Read both streams until they end or the time is over; keep the first bytes of each, and drop the rest."""
    import selectors

    streams = [stream.fileno() for stream in (child.stdout, child.stderr) if stream is not None]
    kept = {stream: bytearray() for stream in streams}
    dropped = dict.fromkeys(streams, False)
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                chunk = os.read(key.fd, 1 << 16)
                if not chunk:
                    selector.unregister(key.fd)
                room = limit_bytes - len(kept[key.fd])
                kept[key.fd] += chunk[:room]
                dropped[key.fd] |= len(chunk) > room
    return [(bytes(kept[stream]), dropped[stream]) for stream in streams]


def _exit_status(status: bytes) -> int | None:
    """Return the command's exit status from bubblewrap's own report; it has none where the command never started."""
    for line in reversed(status.splitlines()):
        code = json.loads(line).get("exit-code")
        if isinstance(code, int):
            return code
    return None


# --- experiments ------------------------------------------------------------------------------------------------------

_PROOF_SECONDS = 60
_ATTEMPT_SECONDS = 20
_SECRET = "SOVEREIGN_AGENT_PROBE_SECRET"  # noqa: S105 - the name of a variable

_PARENT = """
import json, sys
order = json.load(sys.stdin)
sys.path[:] = order["path"]
from sovereign_agent.sandbox import _experiment
print(json.dumps(_experiment(order)))
"""

# The same code outside and inside. It imports only what every Python has, since the package is not seen inside.
# An act may be attempted in several ways; what opens a file gives its content, so that the parent can compare it.
_CHILD = """
import json, os, signal, socket, sys
order = json.loads(sys.argv[1])

def read(path):
    with open(path, "rb") as file:
        return file.read().decode("utf-8", "replace")

def connect():
    socket.create_connection(("127.0.0.1", order["port"]), timeout=5).close()

def inherited():
    if order["variable"] not in os.environ:
        raise LookupError("not in the inherited environment")
    return os.environ[order["variable"]]

def found_in_proc():
    lines = read("/proc/%d/environ" % order["parent"]).split(chr(0))
    return dict(line.partition("=")[::2] for line in lines)[order["variable"]]

def signal_parent():
    os.kill(order["parent"], signal.SIGUSR1)

attempts = [("READ_FILE", lambda path=path: read(path)) for path in order["files"]]
attempts += [("CONNECT", connect), ("READ_SECRET", inherited), ("READ_SECRET", found_in_proc)]
attempts += [("SIGNAL", signal_parent)]
answers = []
for act, attempt in attempts:
    try:
        answers.append({"act": act, "done": True, "value": attempt()})
    except Exception as error:
        text = getattr(error, "strerror", None) or str(error)
        answers.append({"act": act, "done": False, "value": type(error).__name__ + ": " + text})
print(json.dumps(answers))
"""


def _experiment(order: dict[str, Any]) -> list[dict[str, object]]:
    """Be the parent: hold what must stay out of reach, let the same child try outside and inside, and compare."""
    import secrets
    import socket
    import subprocess

    folder = Path(order["folder"]).resolve()
    root, canary = folder / "root", folder / "canary"
    root.mkdir()
    canary.write_text(secrets.token_hex(16), encoding="ascii")
    # /etc/passwd lies on the system's own disk: a sandbox that hides no more than /tmp does not pass.
    files = [str(path) for path in (canary, Path("/etc/passwd")) if path.exists()]
    received: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _frame: received.append(number))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)

        def attempted(stdout: bytes) -> list[_Attempt]:
            held = {Act.READ_FILE: canary.read_text(encoding="ascii"), Act.READ_SECRET: os.environ[_SECRET]}
            reached = {Act.CONNECT: _accepted(listener), Act.SIGNAL: bool(received)}
            received.clear()
            return _attempts(stdout, held, reached)

        port = listener.getsockname()[1]
        question = {"files": files, "port": port, "variable": _SECRET, "parent": os.getpid()}
        python = os.path.realpath(sys.executable)
        argv = [python, "-I", "-S", "-c", _CHILD, json.dumps(question)]
        control = subprocess.run(argv, capture_output=True, timeout=_ATTEMPT_SECONDS, check=False)
        outside = attempted(control.stdout)
        try:
            policy = IsolationPolicy(filesystem_roots=[root])
            sandbox = Sandbox(order["executable"], order["name"])
            interpreter = {python, sys.base_prefix, sys.base_exec_prefix}
            ran = sandbox.run(argv, policy, timeout_seconds=_ATTEMPT_SECONDS, read_only=interpreter)
            silence = f"no answer from inside, exit status {ran.returncode}"
            inside = attempted(ran.stdout)
        except Refusal as refusal:
            silence, inside = str(refusal), []
    return [asdict(_judge(act, outside, inside, silence)) for act in Act]


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One way in which the child tried one act."""

    act: Act
    done: bool
    """The child says that it succeeded."""
    effect: bool
    """The parent saw it: a connection, a signal, or its own secret in the answer."""
    detail: str


def _attempts(stdout: bytes, held: dict[Act, str], reached: dict[Act, bool]) -> list[_Attempt]:
    """Read the child's answers beside what the parent saw; no content read by the child leaves this function."""
    try:
        answers = json.loads(stdout)
    except ValueError:
        return []
    return [
        _Attempt(
            act := Act[answer["act"]],
            done=answer["done"],
            effect=reached.get(act, False) or (act in held and held[act] in str(answer["value"])),
            detail="it succeeded" if answer["done"] else answer["value"],
        )
        for answer in answers
    ]


def _judge(act: Act, outside: list[_Attempt], inside: list[_Attempt], silence: str) -> Experiment:
    """Compare the attempts at one act; pure. No attempt at all is no refusal."""
    before = [attempt for attempt in outside if attempt.act is act]
    after = [attempt for attempt in inside if attempt.act is act]
    control = all(attempt.done for attempt in before) and any(attempt.effect for attempt in before)
    refused = bool(after) and not any(attempt.done or attempt.effect for attempt in after)
    detail = ", ".join(dict.fromkeys(attempt.detail for attempt in after)) or silence
    if not control:
        tried = ", ".join(dict.fromkeys(attempt.detail for attempt in before)) or "no answer"
        detail = f"outside, where it must succeed: {tried}; inside: {detail}"
    return Experiment(act, control, refused, detail)


def _accepted(listener: socket.socket) -> bool:
    """Tell whether anyone connected since the last call; take every connection off the queue."""
    accepted = False
    while True:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return accepted
        connection.close()
        accepted = True
