"""Served: what a live server shows of examples whose code has changed since they ran.

It promises that an author does not wait for every example of a book after an edit of the code: a page shows at once
what its blocks printed before, a script marks them as running, and then says what has changed or failed. A block whose
own text was edited, or that failed, runs before its page is shown. It publishes nothing.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from bookproof.ahead import Ahead, Ran
from bookproof.examples import Earlier
from bookproof.page import PageRecord

DATA = "bookproof/examples.json"
"""Site-relative file that the script in a page asks."""
PATIENCE_SECONDS = 0.5
"""How long a build waits for examples that can also be shown later."""


class Served:
    """What is known from build to build of one server."""

    def __init__(self) -> None:
        self.earlier: Earlier = {}
        self._lock = Lock()
        self._ahead: Ahead | None = None
        self._ran: dict[str, Ran] = {}
        self._shown: dict[str, PageRecord] = {}
        self._file: Path | None = None

    def begin(self) -> None:
        """Begin a build: what runs for the code of the last one is stopped."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()
        with self._lock:
            self._ran, self._shown, self._file = {}, {}, None

    def follow(self, ahead: Ahead) -> None:
        """Let the worker of a build go on after it."""
        self._ahead = ahead

    def ran(self, path: str, ran: Ran) -> None:
        """Note that a page was run with the present code."""
        with self._lock:
            self._ran[path] = ran
            if ran and ran[-1][1].failure:
                self.earlier.pop(path, None)  # so that the next build runs it, and shows the failure
            self._write()

    def failed(self, path: str) -> bool:
        """Tell whether a page was run with the present code and failed."""
        with self._lock:
            return any(outcome.failure for _, outcome in self._ran.get(path, ()))

    def built(self, site: Path, records: Mapping[str, PageRecord]) -> None:
        """Note what each page shows, and begin to tell its readers what has become of it."""
        with self._lock:
            self._shown, self._file = dict(records), site / DATA
            self._write()

    def _write(self) -> None:
        if self._file is None:
            return
        left = self._ahead.left() if self._ahead is not None else frozenset()
        told = {
            record.url.removeprefix("./"): state
            for path, record in self._shown.items()
            if (
                state := self._state(
                    record, running=path in left and path not in self._ran, ran=self._ran.get(path, [])
                )
            )
        }
        partial = self._file.with_suffix(".partial")
        with contextlib.suppress(OSError):  # the folder is gone when the server ends
            partial.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(told, sort_keys=True), "utf-8")
            partial.replace(self._file)

    def _state(self, record: PageRecord, *, running: bool, ran: Ran) -> dict[str, Any]:
        """Return what a page's reader is told beyond the page: nothing where it is as it should be."""
        if running:
            return {"running": True}
        shown = {one.id: one.output for one in record.examples if one.status == "passed"}
        told = {
            name: outcome.failure or outcome.output
            for name, outcome in ran
            if name in shown and (outcome.failure or outcome.output != shown[name])
        }
        return {"changed": told} if told else {}
