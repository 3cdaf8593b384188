"""The process that runs examples: a fresh interpreter, forked once per page, spoken to through two pipes.

It promises that what one page does to its interpreter never reaches another page, that everything written to the
descriptors 1 and 2 is captured (by the block, by the package, by child processes), and that a block is over only when
its threads are. It decides nothing about options or verdicts, imports nothing but the standard library, and is started
as a script: `python -P worker.py REQUEST_FD RESPONSE_FD`. Stopping a block that hangs is the parent's task.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import linecache
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import traceback
import types
from pathlib import Path
from typing import Any

_COMMON = (
    "argparse", "ast", "concurrent.futures", "dataclasses", "datetime", "decimal", "fractions", "hashlib", "inspect",
    "logging", "platform", "random", "secrets", "shutil", "sqlite3", "statistics", "tempfile", "textwrap", "typing",
    "unicodedata", "urllib.parse", "uuid",
)  # fmt: skip
_LENGTH = struct.Struct("!I")
_BASH_PRELUDE = 'unset BASH_ENV; trap \'printf "%s %s" "$LINENO" "$?" > "$BOOKPROOF_ERR"\' ERR\n'

Message = dict[str, Any]


def send(descriptor: int, message: Message) -> None:
    """Write one message: its length, then JSON."""
    data = json.dumps(message).encode()
    view = memoryview(_LENGTH.pack(len(data)) + data)
    while view:
        view = view[os.write(descriptor, view) :]


def receive(descriptor: int) -> Message | None:
    """Read one message; None when the other side has closed its end."""
    head = _read(descriptor, _LENGTH.size)
    if head is None:
        return None
    body = _read(descriptor, _LENGTH.unpack(head)[0])
    message: Message | None = None if body is None else json.loads(body)
    return message


def _read(descriptor: int, size: int) -> bytes | None:
    parts: list[bytes] = []
    while size:
        part = os.read(descriptor, min(size, 1 << 16))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class Page:
    """One page's interpreter state: sessions by name, and the descriptors that capture."""

    def __init__(self, opening: Message) -> None:
        self._capture: str = opening["capture"]
        self._sessions: dict[str, types.ModuleType] = {}
        self._threads: list[BaseException] = []
        os.chdir(opening["workdir"])
        os.environ.update(opening["environment"])
        sys.path[:0] = opening["path"]
        sys.argv[:] = [""]
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115 (open as long as the page is)
        threading.excepthook = self._thread_failed

    def run(self, request: Message) -> Message:
        """Run one block and return what happened, with what it wrote."""
        out, err = self._capture + ".out", self._capture + ".err"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        written = os.open(out, flags, 0o600)
        errors = written if request["merge"] else os.open(err, flags, 0o600)
        here = Path.cwd()
        os.dup2(written, 1)
        os.dup2(errors, 2)
        sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False, buffering=1)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False, buffering=1)  # noqa: SIM115
        try:
            if request["workdir"]:
                os.chdir(request["workdir"])
            if request["language"] != "python":
                answer = self._bash(request)
            else:
                answer = self._python_to_be_killed(request) if request["killed"] else self._python(request)
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            os.chdir(here)
            os.close(written)
            if errors != written:
                os.close(errors)
        answer["stdout"] = _text(out)
        answer["stderr"] = "" if request["merge"] else _text(err)
        return answer

    def _thread_failed(self, arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_value is not None and not isinstance(arguments.exc_value, SystemExit):
            self._threads.append(arguments.exc_value)

    def _python(self, request: Message) -> Message:
        label: str = request["label"]
        code = request["code"] + "\n"
        linecache.cache[label] = (len(code), None, code.splitlines(keepends=True), label)
        module = types.ModuleType("__main__")
        if request["session"]:
            module = self._sessions.setdefault(request["session"], module)
        sys.modules["__main__"] = module
        before = set(threading.enumerate())
        self._threads.clear()
        error: BaseException | None = None
        try:
            exec(compile(code, label, "exec", dont_inherit=True), module.__dict__)  # noqa: S102
        except BaseException as caught:
            error = caught
        for thread in set(threading.enumerate()) - before:
            if not thread.daemon:
                thread.join()
        if error is not None:
            return _described(error, label, in_thread=False)
        if self._threads:
            return _described(self._threads[0], label, in_thread=True)
        return {"kind": "ended"}

    def _python_to_be_killed(self, request: Message) -> Message:
        """Run a block that kills its own process: in a child, so that the page's process lives on."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                send(writer, self._python(request))
            finally:
                os._exit(0)
        os.close(writer)
        answer = receive(reader)
        os.close(reader)
        status = os.waitpid(child, 0)[1]
        if os.waitstatus_to_exitcode(status) == -signal.SIGKILL:
            return {"kind": "killed"}
        return answer or {"kind": "ended"}

    def _bash(self, request: Message) -> Message:
        noted = self._capture + ".err-line"
        prelude = Path(self._capture + ".sh")
        Path(noted).unlink(missing_ok=True)
        prelude.write_text(_BASH_PRELUDE, encoding="utf-8")
        done = subprocess.run(
            ["bash", "-Eeu", "-o", "pipefail", "-c", request["code"]],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "BASH_ENV": str(prelude), "BOOKPROOF_ERR": noted},
            check=False,
        )
        position = _text(noted).split()
        return {"kind": "exited", "returncode": done.returncode, "line": int(position[0]) if position else 0}


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def _described(error: BaseException, label: str, *, in_thread: bool) -> Message:
    """Return what a parent needs to name an exception, its place in the block, and its classes."""
    trace = traceback.TracebackException.from_exception(error)
    lines = [frame.lineno for frame in trace.stack if frame.filename == label and frame.lineno]
    if isinstance(error, SyntaxError) and error.filename == label and error.lineno:
        lines.append(error.lineno)
    classes = [kind for kind in type(error).__mro__ if kind is not object]
    # The frames of this file are no part of the reader's program.
    trace.stack[:] = [frame for frame in trace.stack if frame.filename != __file__]
    return {
        "kind": "raised",
        "line": lines[-1] if lines else 0,
        "classes": [kind.__name__ for kind in classes] + [f"{kind.__module__}.{kind.__qualname__}" for kind in classes],
        "message": re.sub(r"^__main__\.", "", "".join(trace.format_exception_only())).strip(),
        "traceback": "".join(trace.format()),
        "in_thread": in_thread,
    }


def serve_page(opening: Message, requests: int, responses: int) -> None:
    """Answer the blocks of one page until it ends."""
    page = Page(opening)
    send(responses, {"kind": "opened", "pid": os.getpid()})
    while (request := receive(requests)) is not None and request["kind"] == "run":
        send(responses, page.run(request))


def _warm() -> None:
    """Load what most programs load, so that no page waits for it: modules of Python, which hold nothing of ours."""
    for name in _COMMON:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # what every page inherits needs no search for garbage in each of them


def main(requests: int, responses: int) -> None:
    """Serve pages, each in a fork of its own; without fork, serve one page and end."""
    _warm()
    for descriptor in (requests, responses):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 (the standard library's signature)
    while (opening := receive(requests)) is not None:
        if not opening["fork"]:
            serve_page(opening, requests, responses)
            return
        child = os.fork()
        if child == 0:
            try:
                os.setsid()
                serve_page(opening, requests, responses)
            finally:
                os._exit(0)
        status = os.waitpid(child, 0)[1]
        send(responses, {"kind": "gone", "status": os.waitstatus_to_exitcode(status)})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
