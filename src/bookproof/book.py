"""Book: what one build knows, whoever renders its pages.

The Markdown extension fills it page by page; the MkDocs plugin opens it before the first page and reads it after the
last. Without the plugin a page's failures are raised at once; with it they are collected. It promises that a page that
was begun leaves a record, and that a failure is told once.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bookproof import outputs
from bookproof.ahead import Ahead, plans
from bookproof.cache import Cache, base_key, digest
from bookproof.examples import Passes, Plan, Runner, block_parts, hint
from bookproof.options import Settings
from bookproof.page import BookproofError, Failure, PageRecord
from bookproof.served import PATIENCE_SECONDS, Served


@dataclass(slots=True)
class Book:
    """The state of one build."""

    settings: Settings
    collecting: bool = False
    """Whether someone asks for the failures when all pages are rendered; otherwise each page raises its own."""
    accepting: bool = False
    """Whether outputs are about to be accepted, so that they are not compared."""
    cached: bool = True
    """Whether passes of earlier builds may stand for runs."""
    complete: Callable[[str, PageRecord], str] = lambda html, _record: html
    """Fills in what is known when more than the page has run; used at the end of each page when nobody collects."""
    form: str = ""
    """Everything that the look of a block depends on beside its text; empty: blocks are not remembered as HTML."""
    served: Served | None = None
    """What a server knows from build to build."""
    diagram_class: str = "mermaid"
    """Class of a diagram's element; another one where the theme must not draw it."""
    labs_off: str = ""
    """Why this build has no labs, for its pages to say."""
    records: dict[str, PageRecord] = field(default_factory=dict)
    """By repository-relative path, in order of rendering."""
    failures: list[Failure] = field(default_factory=list)
    """Failures that belong to no page."""
    _runner: Runner | None = None
    _ahead: Ahead | None = None
    _key: str = ""
    _deadline: float = 0.0
    """Until when a server waits for what can also be shown later, by the monotonic clock."""
    _later: set[str] = field(default_factory=set)
    """Pages whose blocks run after the build."""

    @property
    def runner(self) -> Runner:
        """The build's worker, started when the first example runs."""
        if self._runner is None:
            self._runner = self._new_runner(Passes())
        return self._runner

    def run_ahead(self, pages: Mapping[str, str]) -> None:
        """Begin to run the examples of pages that are still to be rendered.

        Parameters:
            pages: Source of each page by repository-relative path, in the order of rendering.
        """
        passes, served = Passes(), self.served
        self._runner = self._new_runner(passes)
        if served is None:
            self._ahead = Ahead(self.settings, self._new_runner(passes), pages)
        else:
            self._deadline = time.monotonic() + PATIENCE_SECONDS
            runner = self._new_runner(passes, patient=True)
            self._ahead = Ahead(self.settings, runner, pages, fewest=1, told=served.ran)

    def printed(self, path: str, text: str) -> str | None:
        """Return what the blocks of a page print and what is committed of it, run if they must be.

        Only for a server: what can be shown later is left to the worker that goes on after the build.

        Parameters:
            path: The page, repository-relative.
            text: Its source.

        Returns:
            One text that differs where any of it does; None where a block cannot be run, or failed.
        """
        planned = [one for one in plans(text, self.settings) if one.example.options.execute or one.complaints]
        if any(one.complaints or one.absent for one in planned):
            return None
        if self.served is not None and self._ahead is not None and self._printed_before(path, planned):
            self._ahead.wait(path, self._deadline)
            if not self.served.failed(path):
                self._later.add(path)
        self.open_page(path)
        found = []
        for one in planned:
            found.append(self.runner.run(one.example))
            if found[-1].failure:
                return None
        file = self.settings.root / self.outputs_file(path)
        return repr((found, file.read_text("utf-8") if self.settings.outputs and file.is_file() else ""))

    def _printed_before(self, path: str, planned: list[Plan]) -> bool:
        text, known = "", (self.served.earlier if self.served is not None else {}).get(path, {})
        for one in planned:
            text = text if one.example.apart else digest(text, *block_parts(one.example))
        return text in known

    def _new_runner(self, passes: Passes, *, patient: bool = False) -> Runner:
        earlier = self.served.earlier if self.served is not None else None
        return Runner(self.settings, self.cache("examples"), self.key, passes, earlier, patient=patient)

    @property
    def key(self) -> str:
        """The part of the key that everything shares which depends on the code; empty where nothing is remembered."""
        if self.remembers and not self._key:
            run = dataclasses.replace(self.settings, labs_off="", plain_tokens=())  # how a page looks changes no run
            self._key = base_key(self.settings, (self.settings.src, self.settings.tests), repr(run))
        return self._key

    def open_page(self, path: str) -> None:
        """Begin to run the examples of a page that is being rendered."""
        later = path in self._later
        if self._ahead is not None and not later:
            self._ahead.take(path)
        self.runner.open_page(path, later=later)

    @property
    def remembers(self) -> bool:
        """Whether anything of this build is remembered, or was."""
        return self.cached and bool(self.settings.cache)

    def cache(self, kind: str) -> Cache:
        """Return where one kind of thing is remembered; nowhere, if this build must not."""
        return Cache(self.cache_folder(kind))

    def cache_folder(self, kind: str) -> Path | None:
        """Return the folder of one kind of thing that is remembered; None if this build must not."""
        return self.settings.root / self.settings.cache / kind if self.remembers else None

    def begin(self, path: str, url: str) -> PageRecord:
        """Return a new record for a page; one of an earlier rendering is dropped."""
        record = self.records[path] = PageRecord(path, url)
        self.records = {**{key: value for key, value in self.records.items() if key != path}, path: record}
        return record

    def finish(self, record: PageRecord) -> None:
        """Compare a page's outputs with the committed ones; raise its failures if nobody collects them.

        Raises:
            BookproofError: The page has failures and nobody collects.
        """
        if not self.accepting:
            record.failures.extend(self.compare(record))
        record.failures[:] = sorted(set(record.failures))
        if record.failures and not self.collecting:
            raise BookproofError(tuple(record.failures))

    def compare(self, record: PageRecord) -> list[Failure]:
        """Return how a page's outputs differ from the committed ones."""
        if not self.settings.outputs:
            return []
        file = self.outputs_file(record.path)
        path = self.settings.root / file
        text = path.read_text("utf-8") if path.is_file() else None
        return outputs.compare(record.path, file, text, record.examples, hint)

    def outputs_file(self, page: str) -> str:
        """Return the repository-relative path of a page's committed outputs."""
        name = outputs.outputs_name(page.removeprefix(f"{self.settings.docs}/"))
        return f"{self.settings.outputs}/{name}"

    def all_failures(self) -> list[Failure]:
        """Return every failure of the build, in order of path and line, without folders of this machine."""
        pages = [failure for record in self.records.values() for failure in record.failures]
        root = f"{self.settings.root.resolve()}/"
        return sorted({dataclasses.replace(one, text=one.text.replace(root, "")) for one in (*pages, *self.failures)})

    def close(self) -> None:
        """End the workers; a server's second one goes on."""
        if self._ahead is not None and self.served is not None:
            self.served.follow(self._ahead)
        elif self._ahead is not None:
            self._ahead.close()
        self._ahead = None
        if self._runner is not None:
            self._runner.close()
            self._runner = None


def settings_from(options: dict[str, object], root: Path, docs_dir: Path) -> Settings:
    """Return settings from the options of a plugin or an extension; None means the default.

    Parameters:
        options: By name; unknown names are the caller's to refuse.
        root: The repository.
        docs_dir: The documentation folder.
    """
    names = {field.name for field in dataclasses.fields(Settings)} - {"root", "docs"}
    given = {name: value for name, value in options.items() if name in names and value is not None}
    docs = docs_dir.resolve()
    relative = docs.relative_to(root.resolve()).as_posix() if docs.is_relative_to(root.resolve()) else docs.name
    return dataclasses.replace(Settings(root=root, docs=relative), **given)  # type: ignore[arg-type]  # checked by the plugin
