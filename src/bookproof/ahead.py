"""Ahead: the examples of later pages, run in a second worker while earlier pages are rendered.

It promises nothing but time. What it finds out are passes, under the keys by which the renderer asks for them; a page
whose blocks it does not see as the renderer does (an included one, one of a docstring), or in which one fails, is run
again by the renderer, who alone judges.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Condition, Thread

from bookproof.examples import Runner, plan
from bookproof.options import Settings
from bookproof.page import CLAIMED, scan

_FEWEST = 4
"""Pages with examples from which a second process is worth its start."""


def has_examples(text: str) -> bool:
    """Tell whether a page's source seems to hold blocks that are to be run."""
    return any(f"{fence}{name} " in text for name in CLAIMED for fence in ("```", "~~~"))


class Ahead:
    """Runs pages from the last to the first, until it meets the renderer.

    Parameters:
        settings: The site's settings.
        runner: The second worker; ended when there is nothing left to do.
        pages: Source of each page by repository-relative path, in the order in which they will be rendered.
    """

    def __init__(self, settings: Settings, runner: Runner, pages: Mapping[str, str]) -> None:
        self._settings = settings
        self._runner = runner
        self._waiting = {path: text for path, text in pages.items() if has_examples(text)}
        self._current = ""
        self._closed = False
        self._changed = Condition()
        self._thread = Thread(target=self._work, daemon=True)
        if len(self._waiting) < _FEWEST:
            self._waiting.clear()
        self._thread.start()

    def take(self, path: str) -> None:
        """Leave a page to the renderer; wait for it, if it has been begun here."""
        with self._changed:
            self._waiting.pop(path, None)
            self._changed.wait_for(lambda: self._current != path)

    def close(self) -> None:
        """End the worker, whatever it does."""
        with self._changed:
            self._waiting.clear()
            self._closed = True
        self._runner.kill()
        self._thread.join(10)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    break
                self._current, text = self._waiting.popitem()
            try:
                self._run(self._current, text)
            finally:
                with self._changed:
                    self._current = ""
                    self._changed.notify_all()
        self._runner.close()

    def _run(self, path: str, text: str) -> None:
        ids: set[str] = set()
        self._runner.open_page(path)
        for fence in scan(text):
            if self._closed:
                break
            if fence.language not in CLAIMED or fence.problem:
                continue
            planned = plan(fence.language, fence.options, fence.body, fence.line, ids, self._settings)
            if planned.complaints:
                break
            if planned.example.options.execute and not planned.absent and self._runner.run(planned.example).failure:
                break
