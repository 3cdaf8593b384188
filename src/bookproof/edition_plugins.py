"""What a build of an edition does beside an ordinary build: a page to print, a Markdown twin of each page, no server.

It promises that these plugins are given the finished pages, with every verdict and cross-reference in them, and that
they touch no page of the site. No site lists them: `bookproof editions` puts them into the builds that it makes.
"""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from bs4 import BeautifulSoup
from jinja2 import Environment
from mkdocs.commands.build import get_context
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import BasePlugin, event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page
from mkdocs_llmstxt import MkdocsLLMsTxtPlugin

from bookproof.diagrams import copy_installed
from bookproof.onepage import Chapter, book, lab_note

T = TypeVar("T")

PRINT = "print"
"""The folder of the page to print."""
TEXTS = ("llms.txt", "llms-full.txt")
"""The list of all twins, and all of them in one file."""
SHIM = "assets/offline/iframe-worker.js"
"""What lets the theme search without a server: browsers start no worker from a disk."""

_CONTROLS = frozenset({"button", "script", "style", "template"})
_NEVER = frozenset({"headerlink", "bookproof-locally"})
_LANGUAGES = frozenset({"mermaid", "bookproof-diff"})
_PRE = re.compile(r"<pre\b.*?</pre>", re.DOTALL)
_SPAN = re.compile(r"</?span\b[^>]*>")  # colours: most of a page's elements, and nothing in Markdown
# The theme's page without what paper has no use for. Its script would need minutes for so many listings.
_TEMPLATE = """{% extends "main.html" %}
{% block header %}{% endblock %}
{% block tabs %}{% endblock %}
{% block site_nav %}{% endblock %}
{% block footer %}{% endblock %}
{% block config %}{% endblock %}
{% block scripts %}<script type="module" src="draw.mjs"></script>{% endblock %}
"""
_LAST = -200  # after bookproof has written the record of the site, which editions are no part of


class PrintEdition(BasePlugin):  # type: ignore[no-untyped-call, type-arg]  # MkDocs' own hook has no types
    """Writes the whole book as one page."""

    def __init__(self, said: str) -> None:
        self._said = said
        self._env: Environment
        self._files: Files
        self._nav: Navigation

    @event_priority(_LAST)
    def on_env(self, env: Environment, *, config: MkDocsConfig, files: Files) -> Environment:  # noqa: ARG002
        """Keep what a page is rendered with."""
        self._env, self._files = env, files
        return env

    def on_nav(self, nav: Navigation, *, config: MkDocsConfig, files: Files) -> Navigation:  # noqa: ARG002
        """Keep the order of the pages."""
        self._nav = nav
        return nav

    @event_priority(_LAST)
    def on_post_build(self, *, config: MkDocsConfig) -> None:
        """Render the one page with the theme."""
        file = File(f"{PRINT}.md", "", config.site_dir, use_directory_urls=True)
        page = Page("The whole book", file, config)
        chapters = [
            Chapter(str(one.title), one.url, one.content or "", _part(one)) for one in self._nav.pages if one.content
        ]
        page.content = book(chapters, at=page.url, title=config.site_name, said=self._said)
        page.meta = {"hide": ["navigation", "toc", "path"], "title": f"{config.site_name}: the whole book"}
        page.edit_url = None
        context = get_context(self._nav, self._files, config, page)
        target = Path(config.site_dir) / file.dest_uri
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(self._env.from_string(_TEMPLATE).render(context), "utf-8")
        draw = files("bookproof") / "assets" / "print-draw.mjs"
        target.with_name("draw.mjs").write_bytes(draw.read_bytes())


class MarkdownTwins(MkdocsLLMsTxtPlugin):  # type: ignore[no-untyped-call]  # likewise
    """Writes each page as Markdown, `llms.txt` and `llms-full.txt`, from the finished pages."""

    def on_files(self, files: Files, *, config: MkDocsConfig) -> Files | None:
        """List every page, by the sections of the navigation."""
        listed: dict[str, Any] = dict(_sections(config.nav or []))
        known = {name for names in listed.values() for name in names}
        more = [file.src_uri for file in files.documentation_pages() if file.src_uri not in known]
        self.config.sections = listed | ({"More": more} if more else {})
        return super().on_files(files, config=config)

    def on_page_content(self, html: str, *, page: Page, **kwargs: Any) -> str | None:  # noqa: ARG002
        """Leave the page: its verdicts and references are not in it yet."""
        return html

    @event_priority(_LAST)
    def on_env(self, env: Environment, *, config: MkDocsConfig, files: Files) -> Environment:  # noqa: ARG002
        """Convert every page, now that it is finished."""
        pages = [file.page for file in files.documentation_pages() if file.page is not None and file.page.content]
        self._md_pages.update(shared_out(self._convert, pages))
        return env

    def _convert(self, pages: Sequence[Page]) -> dict[str, Any]:
        for page in pages:
            super().on_page_content(plain(page.content or ""), page=page)
        return self._md_pages

    @event_priority(_LAST)
    def on_post_build(self, *, config: MkDocsConfig, **kwargs: Any) -> None:
        """Write the files."""
        super().on_post_build(config=config, **kwargs)


class OfflineEdition(BasePlugin):  # type: ignore[no-untyped-call, type-arg]  # likewise
    """Puts what a browser needs without a server into a site that is built to be opened from a disk."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def on_post_build(self, *, config: MkDocsConfig) -> None:
        """Copy the pinned shim and Mermaid's classic script; the site is checked afterwards."""
        names = {
            SHIM: "iframe-worker/shim/index.js",
            f"{Path(SHIM).parent.as_posix()}/LICENSE": "iframe-worker/LICENSE",
            "assets/mermaid/mermaid.min.js": "mermaid/dist/mermaid.min.js",
        }
        copy_installed(self._root, Path(config.site_dir), names, wanted_by="the offline edition")


def shared_out(work: Callable[[Sequence[T]], dict[str, Any]], items: Sequence[T]) -> dict[str, Any]:
    """Return what a function makes of all items, each processor at work on a share of them.

    Parameters:
        work: Returns what can be pickled; it is called in forked processes and, for one share, in this one. A share
            whose process fails is done again here, so that what goes wrong is raised here.
        items: In any order.
    """
    count = (os.cpu_count() or 1) if "fork" in multiprocessing.get_all_start_methods() else 1
    first, *others = [items[at::count] for at in range(count)]
    readers = []
    for share in others:
        reader, writer = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(
            target=lambda share=share, writer=writer: writer.send(work(share)), daemon=True
        )
        process.start()
        writer.close()
        readers.append((reader, share))
    found = dict(work(first))
    for reader, share in readers:
        try:
            found |= reader.recv()
        except EOFError:
            found |= work(share)
    return found


def plain(html: str) -> str:
    """Return a page's HTML as its Markdown twin is made of: without controls, in elements that Markdown has."""
    soup = BeautifulSoup(_PRE.sub(lambda found: _SPAN.sub("", found[0]), html), "html.parser")
    for one in soup.find_all(lambda _: True):
        if one.decomposed:
            continue
        classes = set(one.get("class") or ())
        if one.name in _CONTROLS or one.has_attr("hidden") or classes & _NEVER:
            one.decompose()
        elif "bookproof-lab" in classes:
            one.name, one.string = "p", lab_note(str(one.get("data-bookproof-lab")))
        elif one.name == "pre" and (language := _LANGUAGES & classes):
            one["class"] = "language-diff" if "bookproof-diff" in language else "language-mermaid"
        elif one.name == "abbr" or (one.name == "a" and str(one.get("href", "")).startswith("#")):
            one.unwrap()  # Markdown has no place inside a page to lead to
        elif one.name in {"summary", "figcaption", "caption", "dt"}:
            around = one.wrap(soup.new_tag("p"))
            one.name = "strong"
            if around.parent is not None and around.parent.name == "table":
                around.parent.insert_before(around.extract())
        elif one.name in {"dl", "dd"}:
            one.name = "div"  # listings stand in them, which Markdown's own form cannot hold
    return str(soup)


def _sections(nav: list[Any], name: str = "Start") -> Iterator[tuple[str, list[str]]]:
    """Yield the top sections of a written navigation, each with its pages."""
    first = [path for item in nav if (path := _page(item))]
    if first:
        yield name, first
    for item in nav:
        if isinstance(item, Mapping):
            for title, value in item.items():
                if isinstance(value, list):
                    yield title, list(_pages(value))


def _pages(items: list[Any]) -> Iterator[str]:
    for item in items:
        if path := _page(item):
            yield path
        elif isinstance(item, Mapping):
            for value in item.values():
                yield from _pages(value)


def _page(item: Any) -> str:
    """Return the page that an entry of the navigation names, if it is one."""
    value = next(iter(item.values())) if isinstance(item, Mapping) else item
    return value if isinstance(value, str) and value.endswith(".md") else ""


def _part(page: Page) -> str:
    """Return the names of the sections that a page stands in."""
    return ": ".join(str(one.title) for one in reversed(list(page.ancestors)))
