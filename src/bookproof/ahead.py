"""Ahead: the examples of later pages, run in a second worker while earlier pages are rendered.

It promises nothing but time. What it finds out are passes, under the keys by which the renderer asks for them; a page
whose blocks it does not see as the renderer does (an included one, one of a docstring), or in which one fails, is run
again by the renderer, who alone judges. A server lets it go on when the build is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from threading import Condition, Thread

from bookproof.examples import Outcome, Plan, Runner, plan
from bookproof.options import Settings
from bookproof.page import CLAIMED, scan

_FEWEST = 4
"""Pages with examples from which a second process is worth its start."""

Ran = list[tuple[str, Outcome]]
"""The blocks of a page by id, with what each did; the last one may have failed."""


def has_examples(text: str) -> bool:
    """Tell whether a page's source seems to hold blocks that are to be run."""
    return any(f"{fence}{name} " in text for name in CLAIMED for fence in ("```", "~~~"))


def plans(text: str, settings: Settings) -> Iterator[Plan]:
    """Yield what is to become of each block of a page's source, in order.

    Parameters:
        text: The source.
        settings: The site's settings.
    """
    ids: set[str] = set()
    for fence in scan(text):
        if fence.language in CLAIMED and not fence.problem:
            yield plan(fence.language, fence.options, fence.body, fence.line, ids, settings)


class Ahead:
    """Runs pages from the last to the first, until it meets the renderer.

    Parameters:
        settings: The site's settings.
        runner: The second worker; ended when there is nothing left to do.
        pages: Source of each page by repository-relative path, in the order in which they will be rendered.
        fewest: With fewer pages with examples, none is run.
        told: Called, from another thread, with each page that was run.
    """

    def __init__(
        self,
        settings: Settings,
        runner: Runner,
        pages: Mapping[str, str],
        *,
        fewest: int = _FEWEST,
        told: Callable[[str, Ran], None] = lambda _path, _ran: None,
    ) -> None:
        self._settings = settings
        self._runner = runner
        self._told = told
        self._waiting = {path: text for path, text in pages.items() if has_examples(text)}
        self._current = ""
        self._closed = False
        self._changed = Condition()
        self._thread = Thread(target=self._work, daemon=True)
        if len(self._waiting) < fewest:
            self._waiting.clear()
        self._thread.start()

    def take(self, path: str) -> None:
        """Leave a page to the renderer; wait for it, if it has been begun here."""
        with self._changed:
            self._waiting.pop(path, None)
            self._changed.wait_for(lambda: self._current != path)

    def wait(self, path: str, deadline: float) -> None:
        """Wait for a page, but no longer than until a time of the monotonic clock; it stays here."""
        with self._changed:
            self._changed.wait_for(lambda: not self._has(path), max(0.0, deadline - time.monotonic()))

    def left(self) -> frozenset[str]:
        """Return the pages that have not been run yet."""
        with self._changed:
            return frozenset((*self._waiting, *([self._current] if self._current else [])))

    def close(self) -> None:
        """End the worker, whatever it does."""
        with self._changed:
            self._waiting.clear()
            self._closed = True
        self._runner.kill()
        self._thread.join(10)

    def _has(self, path: str) -> bool:
        return path in self._waiting or path == self._current

    def _work(self) -> None:
        try:
            while True:
                with self._changed:
                    if not self._waiting:
                        break
                    self._current, text = self._waiting.popitem()
                ran = self._run(self._current, text)
                if not self._closed:
                    self._told(self._current, ran)
                self._end()
            self._runner.close()
        except Exception:
            if not self._closed:  # a worker that was killed says nothing of the page
                raise
        finally:
            with self._changed:
                self._waiting.clear()  # if this ended early, the renderer does what is left
            self._end()

    def _end(self) -> None:
        with self._changed:
            self._current = ""
            self._changed.notify_all()

    def _run(self, path: str, text: str) -> Ran:
        ran: Ran = []
        self._runner.open_page(path)
        for planned in plans(text, self._settings):
            if self._closed or planned.complaints or (ran and ran[-1][1].failure):
                break
            if planned.example.options.execute and not planned.absent:
                ran.append((planned.example.id, self._runner.run(planned.example)))
        return ran
