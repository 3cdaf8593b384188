"""The MkDocs plugin: opens the book, lets every page collect its failures, and publishes all of it or nothing.

It promises that a build with a failure anywhere ends with a non-zero exit at every verbosity, names all failures of
all pages in one run, and leaves no site behind, strict mode's own abort included; and that `mkdocs serve` shows a
failure in its page and lives on. What a page shows is checked by the extension; this module decides only when.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import re
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader
from markdown_exec import markdown_config
from mkdocs import utils
from mkdocs.config import base
from mkdocs.config import config_options as c
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import BasePlugin, CombinedEvent, event_priority
from mkdocs.structure.files import Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

from bookproof import diagrams, extension, labs, outputs
from bookproof.ahead import has_examples
from bookproof.background import SERVE_SCRIPT, Background
from bookproof.book import Book, settings_from
from bookproof.build import Build as _Build
from bookproof.build import show_failures
from bookproof.cache import files_digest, installed
from bookproof.compiled import compiled_templates
from bookproof.imports import Imports
from bookproof.options import Settings
from bookproof.page import Failure, PageRecord
from bookproof.remembered import remember_api_pages, remember_search
from bookproof.remembered_pages import can_remember, remember_layout, remember_page, site_key
from bookproof.served import Served

_log = logging.getLogger("mkdocs.plugins.bookproof")
_READS_CHECKOUT = "workdir="
"""Sign that what a page's blocks print is told by running them alone."""


class BookproofConfig(base.Config):  # type: ignore[no-untyped-call]  # MkDocs' own hook has no types
    """Options of the plugin; `bookproof.options.Settings` says what each one means."""

    root = c.Optional(c.Type(str))
    src = c.Type(str, default="src")
    tests = c.Type(str, default="tests")
    timeout_seconds = c.Type((int, float), default=10.0)
    outputs = c.Type(str, default="tests/outputs")
    mutations = c.Type(str, default="tests/mutations.toml")
    evidence = c.Type(str, default="evidence/index.md")
    cache = c.Type(str, default=".bookproof")
    labs_off = c.Type(str, default="")
    environment = c.Type(dict, default={})
    host_facts = c.Type(dict, default={})
    normalise = c.Type(dict, default={})
    plain_tokens = c.ListOfItems(c.Type(str), default=[])
    node_files = c.Type(dict, default={})
    report = c.Type(str, default="")


class BookproofPlugin(BasePlugin[BookproofConfig]):  # type: ignore[no-untyped-call]  # likewise
    """MkDocs plugin `bookproof`."""

    def __init__(self) -> None:
        self._serving = False
        self._site: Path | None = None
        self._build: _Build | None = None
        self._background = Background()
        self._served = Served()
        self._page_base = ""
        """What every page of this build depends on; empty until the first is read."""
        self._imports: Imports | None = None
        self._nav: Navigation | None = None

    def on_startup(self, *, command: Literal["build", "gh-deploy", "serve"], dirty: bool) -> None:  # noqa: ARG002
        """Remember whether failures end the process or stand in the page."""
        self._serving = command == "serve"
        gc.set_threshold(50_000)  # a build keeps nearly all that it makes: looking for garbage costs a second

    @event_priority(-50)
    def on_config(self, config: MkDocsConfig) -> MkDocsConfig:
        """Open a new book, and see that the extension is there."""
        self._close()
        self._served.begin()
        self._page_base = ""
        self._site = Path(config.site_dir)
        if address := os.environ.get("SITE_URL"):
            config.site_url = address if address.endswith("/") else f"{address}/"
        settings = site_settings(dict(self.config), config)
        served = self._served if self._serving else None
        self._build = build = _Build(settings, config, served)
        if refused := build.refused:
            raise PluginError("\n".join(map(str, refused)))
        build.node_files = dict(self.config.node_files)
        config.extra["bookproof_node"] = not build.node_off  # for templates that name what comes from there
        extension.use(build.book)
        _list_extension(config)
        build.book.form = "\n".join((build.book.diagram_class, build.book.labs_off, _form(config)))
        self._imports = self._nav = None
        _pass_over_icons(config)
        if build.book.remembers:
            self._imports = build.imports if self._serving else None
            _remember(build, config)
        folders = [settings.root / name for name in (settings.src, settings.tests)]
        config.watch.extend(str(folder) for folder in folders if folder.is_dir())
        return config

    @event_priority(-100)
    def on_files(self, files: Files, *, config: MkDocsConfig) -> Files:  # noqa: ARG002
        """Start the cited tests and the mutations beside the rendering of the pages."""
        self._current.start(files)
        return files

    @event_priority(-100)  # when the navigation has been made, which may follow the order of the files
    def on_nav(self, nav: Navigation, *, config: MkDocsConfig, files: Files) -> Navigation:  # noqa: ARG002
        """Let pages without examples be rendered first, while those of the others run."""
        for file in files.documentation_pages():
            if has_examples(file.content_string):
                files.remove(file)
                files.append(file)
        self._nav = nav
        return nav

    @event_priority(-100)
    def on_page_markdown(self, markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
        """Let an unchanged page be taken from memory."""
        book = self._current.book
        if not book.remembers or book.accepting or not can_remember(config):
            return markdown
        if not self._page_base:
            self._page_base = site_key(config, files, book.form)
        source, printed = page.file.content_string, None
        if self._serving or _READS_CHECKOUT in source:
            printed = book.printed(f"{book.settings.docs}/{page.file.src_uri}", source)
            if printed is None:
                return markdown
        code = "" if self._serving else book.key  # to a server's reader it does not matter which code printed it
        parts = (self._page_base, code, printed or "")
        remember_page(page, markdown, config.plugins.get("autorefs"), book, self._imports, *parts)
        return markdown

    @event_priority(100)  # before references are resolved, so that those of the production map are
    def _complete(self, env: Any, *, config: MkDocsConfig, files: Files) -> Any:  # noqa: ARG002
        env.bytecode_cache = compiled_templates(self._current.book.cache_folder("templates"))
        self._current.complete(files)
        return env

    @event_priority(-100)
    def _settle_pages(self, env: Any, *, config: MkDocsConfig, files: Files) -> Any:
        build = self._current
        if build.book.accepting:
            accept(build.book, os.environ.get("BOOKPROOF_ACCEPT", ""))
        if any(record.diagrams for record in build.book.records.values()) and not build.node_off:
            config.extra_javascript.append(diagrams.SCRIPT)
        if build.labs:
            config.extra_javascript.append(labs.SCRIPT)
        if self._serving:
            config.extra_javascript.append(SERVE_SCRIPT)
            show_failures(build.book, files)
        self._settle()
        if build.book.remembers and self._nav is not None and can_remember(config):
            pages = [file.page for file in files.documentation_pages() if file.page is not None]
            remember_layout(env, pages, config, self._nav, build.book.cache("layouts"))
        return env

    on_env = CombinedEvent(_complete, _settle_pages)

    @event_priority(-100)
    def on_post_build(self, *, config: MkDocsConfig) -> None:
        """Write what needs the whole site, check the site, and write the manifest last."""
        build = self._current
        if build.book.accepting:
            return
        build.finish(config)
        if self._serving:
            self._background.start(build.book.settings, build.cited, Path(config.site_dir))
            self._served.built(Path(config.site_dir), build.book.records)
            return
        self._settle()
        build.write_provenance(config)

    def on_build_error(self, *, error: Exception) -> None:  # noqa: ARG002
        """Leave no site behind: whatever ended the build, what is there is not to be published."""
        self._close()
        if not self._serving and self._site is not None:
            with contextlib.suppress(OSError):
                utils.clean_directory(str(self._site))

    def on_shutdown(self) -> None:
        """End the worker and what runs in the background."""
        self._close()
        self._served.begin()
        self._background.stop()

    @property
    def _current(self) -> _Build:
        if self._build is None:
            raise PluginError("bookproof: no build was begun")
        return self._build

    def _close(self) -> None:
        if self._build is not None:
            self._build.close()
        extension.use(None)

    def _settle(self) -> None:
        """Tell all failures; end the build if it is one to be published."""
        book = self._current.book
        failures = book.all_failures()
        if report := os.environ.get("BOOKPROOF_REPORT") or self.config.report:
            Path(report).write_text(report_json(book.records.values(), failures), "utf-8")
        if not failures:
            return
        if os.environ.get("GITHUB_ACTIONS") == "true":
            print("\n".join(failure.annotation() for failure in failures), flush=True)  # noqa: T201 (read by the runner)
        if self._serving:
            for failure in failures:
                _log.error("%s", failure)
            return
        count = "1 failure" if len(failures) == 1 else f"{len(failures)} failures"
        raise PluginError("\n".join(("bookproof: " + count, *map(str, failures))))


def report_json(records: Any, failures: list[Failure]) -> str:
    """Return what a build did, for a program: failures, and each page's examples by status."""
    pages = {
        record.path: {
            "examples": [{"id": one.id, "line": one.line, "status": one.status} for one in record.examples],
        }
        for record in records
    }
    told = [{"path": failure.path, "line": failure.line, "text": failure.text} for failure in failures]
    return json.dumps({"failures": told, "pages": pages}, indent=2, sort_keys=True) + "\n"


def site_settings(options: dict[str, Any], config: MkDocsConfig) -> Settings:
    """Return the settings of a site.

    Parameters:
        options: Those of the plugin.
        config: MkDocs' configuration, which says where the site is.
    """
    folder = Path(config.config_file_path or "mkdocs.yml").parent
    return settings_from(options, (folder / (options.get("root") or ".")).resolve(), Path(config.docs_dir))


def _list_extension(config: MkDocsConfig) -> None:
    """See that SuperFences and the extension are listed, in this order, and tell markdown-exec what is listed."""
    names = config.markdown_extensions
    if "pymdownx.superfences" not in names:
        names.append("pymdownx.superfences")
    if "bookproof" in names:
        names.remove("bookproof")
    names.append("bookproof")
    if "pymdownx.snippets" in names:
        config.mdx_configs.setdefault("pymdownx.snippets", {}).setdefault("check_paths", True)
    highlight = config.mdx_configs.get("pymdownx.highlight", {})
    if highlight.get("anchor_linenums"):
        raise PluginError(
            "bookproof: pymdownx.highlight: anchor_linenums repeats ids in executed blocks; set it to false"
        )
    markdown_config.save(names, config.mdx_configs)


def _form(config: MkDocsConfig) -> str:
    """Return everything that the look of a block depends on beside its text."""
    versions = [f"{name} {version(name)}" for name in ("markdown", "markdown-exec", "pymdown-extensions", "pygments")]
    own = files_digest(Path(__file__).parent, ["extension.py", "remembered.py", "diagram_text.py"])
    # Functions in the configuration are told by their names, not by where they lie in memory.
    configured = re.sub(r" at 0x[0-9a-f]+", "", repr((config.markdown_extensions, config.mdx_configs)))
    return "\n".join((*versions, own, configured))


def _pass_over_icons(config: MkDocsConfig) -> None:
    """Let the files of a theme be listed without those in hidden folders, which MkDocs would drop one by one.

    Material has fourteen thousand icons in such a folder.
    """
    make = config.theme.get_env

    def get_env() -> Environment:
        env = make()
        if isinstance(env.loader, FileSystemLoader):
            folders = [Path(folder) for folder in env.loader.searchpath]
            env.loader.list_templates = lambda: _listed(folders)  # type: ignore[method-assign]  # of this one
        return env

    config.theme.get_env = get_env  # type: ignore[method-assign]  # likewise


def _listed(folders: Iterable[Path]) -> list[str]:
    found = set()
    for folder in folders:
        for place, inner, names in os.walk(folder):
            inner[:] = [name for name in inner if not name.startswith(".")]
            found |= {Path(place, name).relative_to(folder).as_posix() for name in names}
    return sorted(found)


def _remember(build: _Build, config: MkDocsConfig) -> None:
    """Let other plugins take from memory what they made of pages that have not changed."""
    book = build.book
    plugins: Any = config.plugins
    theme = f"{config.theme.name} {config.theme.get('language')}"
    form = "\n".join((book.form, repr(installed()), theme))
    if "mkdocstrings" in plugins and plugins["mkdocstrings"].plugin_enabled:
        remember_api_pages(
            book.settings,
            plugins["mkdocstrings"],
            plugins["autorefs"],
            form if book.served is not None else "\n".join((form, _shown_by_api(book.settings))),
            book.cache("api"),
            build.imports,
            extension.recorded,
            build.read,
            compiled_templates(book.cache_folder("templates")),
            served=book.served is not None,
        )
    for name in ("search", "material/search"):
        if name in plugins:
            remember_search(plugins[name], form, book.cache("search"))


def _shown_by_api(settings: Settings) -> str:
    """Return a digest over every source and every page that shows one.

    Rendering an object makes known under which other names it is imported, and the inventory lists them: it is that of
    a build without memory only if all such pages are remembered, or none. A server's reader asks for no inventory.
    """
    docs = settings.root / settings.docs
    pages = [str(path.relative_to(docs)) for path in sorted(docs.rglob("*.md")) if ":::" in path.read_text("utf-8")]
    return files_digest(settings.root, [settings.src]) + files_digest(docs, pages)


def accept(book: Book, page: str) -> None:
    """Write the outputs of one page, or of all, where the next build compares them."""
    folder = book.settings.root / book.settings.outputs
    written = set()
    for record in book.records.values():
        file = book.settings.root / book.outputs_file(record.path)
        written.add(file)
        if page and not _is_named(record, page, book.settings.docs):
            continue
        failed = {example.id for example in record.examples if example.status == "failed"}
        if failed or record.failures:
            continue
        known = outputs.read(file.read_text("utf-8")) if file.is_file() else {}
        kept = {
            example.id: example.output if example.status == "passed" else known[example.id].output
            for example in record.examples
            if example.status == "passed" or (example.status == "absent" and example.id in known)
        }
        if kept:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(outputs.write(kept), "utf-8")
        else:
            file.unlink(missing_ok=True)
    if not page:
        for file in folder.rglob("*.txt"):
            if file not in written:
                file.unlink()


def _is_named(record: PageRecord, page: str, docs: str) -> bool:
    name = page.removeprefix(f"{docs}/").removesuffix(".md").removesuffix(".txt")
    return record.path == f"{docs}/{name}.md" or record.path.endswith(f"/{name}.md")
