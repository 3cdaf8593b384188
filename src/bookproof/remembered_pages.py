"""Remembered pages: what rendering an unchanged page gave, so that a build need not do it again.

It promises that a page comes out byte for byte as it would be rendered: the key covers the page, every file's address,
the code, its tests and the outputs under review, all that is configured and installed; and what blocks print that read
the checkout, which run every time. A page with a failure, a warning, a host's lack or a snippet is rendered every time,
and every page is where a site has Markdown extensions or plugins of which nothing is known here. So is one with
docstrings, but by a server, which publishes no inventory. What the theme made around a page is remembered too, once for
each page: the latest.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page
from mkdocs.structure.toc import get_toc
from mkdocs.utils import get_build_datetime

from bookproof.book import Book
from bookproof.cache import Cache, digest, files_digest, installed
from bookproof.imports import Imports
from bookproof.options import FenceOptions
from bookproof.page import Claim, DiagramRecord, ExampleRecord, PageRecord
from bookproof.remembered import noted_anchors, noted_warnings, plain

_PLUGINS = {"autorefs", "bookproof", "mkdocstrings", "search"}
_EXTENSIONS = {
    "abbr", "admonition", "attr_list", "bookproof", "def_list", "fenced_code", "footnotes", "md_in_html", "meta",
    "smarty", "tables", "toc", "AutorefsExtension", "MkdocstringsExtension",
    "pymdownx.betterem", "pymdownx.caret", "pymdownx.details", "pymdownx.emoji", "pymdownx.highlight",
    "pymdownx.inlinehilite", "pymdownx.keys", "pymdownx.mark", "pymdownx.smartsymbols", "pymdownx.snippets",
    "pymdownx.superfences", "pymdownx.tabbed", "pymdownx.tasklist", "pymdownx.tilde",
}  # fmt: skip
"""Those whose work on a page ends with the page, or is noted here."""
_ELSEWHERE = "8<"
"""Sign that a page depends on files that the key does not cover."""


def can_remember(config: MkDocsConfig) -> bool:
    """Tell whether everything that renders the pages of a site is known."""
    listed: list[Any] = config.markdown_extensions  # plugins add objects
    names = {one if isinstance(one, str) else type(one).__name__ for one in listed}
    plugins = {name.removeprefix("material/") for name in config.plugins}
    return names <= _EXTENSIONS and plugins <= _PLUGINS and not config.hooks


def remember_page(page: Page, text: str, autorefs: Any, book: Book, imports: Imports | None, *parts: str) -> None:
    """Let a page whose Markdown has been read be rendered from memory, or remembered once it has been rendered.

    Parameters:
        page: The page.
        text: Its Markdown, as it will be rendered.
        autorefs: The plugin of this name, if there is one.
        book: The book of this build.
        imports: Which files the objects depend on that a page shows by their docstrings; None where each such page is
            to be rendered, so that the inventory of objects is whole.
        *parts: Everything that the page depends on beside its own text and those files; where its blocks read the
            checkout, what they print.
    """
    source = page.file.content_string
    shown = [imports.digest(name) if imports is not None else "" for name in _objects(source)]
    if _ELSEWHERE in source or not all(shown):
        return
    path = f"{book.settings.docs}/{page.file.src_uri}"
    key = digest(*parts, *shown, page.file.src_uri, page.file.dest_uri, source, text, repr(sorted(page.meta.items())))
    cache, render = book.cache("pages"), page.render

    def remembered(config: MkDocsConfig, files: Files) -> None:
        found = cache.get(key)
        if found is not None:
            _restore(found, page, files, book, autorefs)
            return
        with noted_warnings() as warned, noted_anchors(autorefs) as anchors:
            render(config, files)
        record = book.records.get(path)
        if record is not None and not warned and _is_whole(record) and not (shown and record.examples):
            cache.put(key, _kept(page, record, anchors))

    page.render = remembered  # type: ignore[method-assign]  # of this page alone: MkDocs has no event that could skip it


def _objects(source: str) -> list[str]:
    """Return the names of the objects that a page shows by their docstrings."""
    return [line.strip()[3:].strip() for line in source.splitlines() if line.strip().startswith(":::")]


def remember_layout(
    env: Environment, pages: Iterable[Page], config: MkDocsConfig, nav: Navigation, cache: Cache
) -> None:
    """Let the theme lay out only pages that have changed, or that stand in a site that has.

    Parameters:
        env: The environment of the theme's templates, as it will be used.
        pages: Every page.
        config: MkDocs' configuration, as templates will see it.
        nav: The navigation.
        cache: Where the latest layout of each page is remembered.
    """
    theme = config.theme
    packages = Path(sysconfig.get_path("purelib"))
    own = [Path(folder) for folder in theme.dirs if not Path(folder).is_relative_to(packages)]
    told = {name: repr(value) for name, value in config.items() if name not in {"plugins", "theme"}}
    base = digest(
        plain(repr(sorted(told.items()))),
        _tools(config),
        repr((sorted((name, str(theme[name])) for name in theme), theme.dirs, sorted(theme.static_templates))),
        *(files_digest(folder, ["."]) for folder in own),
        str(nav),
        repr([(one.url, str(one.title), sorted(one.meta.items())) for one in nav.pages]),
        str(get_build_datetime()),
    )
    for name in {str(page.meta.get("template", "main.html")) for page in pages}:
        template: Any = env.get_template(name)
        template.render = partial(_laid_out, template.render, digest(base, name), cache)


def _laid_out(render: Any, base: str, cache: Cache, context: dict[str, Any]) -> str:
    """Return a page as its template lays it out, from memory if what it is made of is the same."""
    page = context.get("page")
    if page is None:
        return str(render(context))
    links, toc = (page.url, page.edit_url, page.canonical_url), [_token(item) for item in page.toc]
    key = digest(base, page.content, str(page.title), repr((links, toc, sorted(page.meta.items()))))
    place = digest(page.file.dest_uri)
    found = cache.get(place)
    if found is None or found["key"] != key:
        found = {"key": key, "html": str(render(context))}
        cache.put(place, found)
    return str(found["html"])


def site_key(config: MkDocsConfig, files: Files, *parts: str) -> str:
    """Return a digest over what every page of a site depends on.

    Parameters:
        config: MkDocs' configuration.
        files: Every file of the site, since links are resolved to their addresses.
        *parts: What else counts.
    """
    addresses = sorted((file.src_uri, file.dest_uri, str(file.inclusion)) for file in files)
    return digest(
        "page", repr(addresses), repr(config.validation), str(config.use_directory_urls), _tools(config), *parts
    )


def _tools(config: MkDocsConfig) -> str:
    """Return everything that is installed, and how each plugin is configured, as one text."""
    return plain(repr([(name, dict(plugin.config)) for name, plugin in config.plugins.items()])) + repr(installed())


def _is_whole(record: PageRecord) -> bool:
    return not record.failures and all(one.status in {"passed", "off"} for one in record.examples)


def _kept(page: Page, record: PageRecord, anchors: list[Any]) -> dict[str, Any]:
    return {
        "content": page.content,
        "toc": [_token(item) for item in page.toc],
        "title": page._title_from_render,  # noqa: SLF001 - the page's own name for it
        "ids": sorted(page.present_anchor_ids or ()),
        "links": {to.src_uri: links for to, links in (page.links_to_anchors or {}).items()},
        "anchors": anchors,
        "record": asdict(record),
    }


def _token(item: Any) -> dict[str, Any]:
    return {"name": item.title, "id": item.id, "level": item.level, "children": [_token(one) for one in item.children]}


def _restore(found: dict[str, Any], page: Page, files: Files, book: Book, autorefs: Any) -> None:
    page.content = found["content"]
    page.toc = get_toc(found["toc"])
    page._title_from_render = found["title"]  # noqa: SLF001
    page.present_anchor_ids = set(found["ids"])
    linked = {files.get_file_from_path(name): links for name, links in found["links"].items()}
    page.links_to_anchors = {file: links for file, links in linked.items() if file is not None}
    for arguments, named in found["anchors"]:
        autorefs.register_anchor(page, *arguments, **named)
    known = record_of(found["record"])
    record = book.begin(known.path, known.url)
    for field in fields(PageRecord):
        setattr(record, field.name, getattr(known, field.name))


def record_of(kept: dict[str, Any]) -> PageRecord:
    """Return the record of a page from what `asdict` and JSON made of one."""
    record = PageRecord(**{**kept, "examples": [], "diagrams": [], "claims": []})
    for row in kept["examples"]:
        options = row["options"] and FenceOptions(**_with_tuples(row["options"]))
        record.examples.append(ExampleRecord(**{**_with_tuples(row), "options": options}))
    record.diagrams.extend(DiagramRecord(**row) for row in kept["diagrams"])
    record.claims.extend(Claim(**row) for row in kept["claims"])
    return record


def _with_tuples(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the tuples that JSON made lists of."""

    def tuples(value: Any) -> Any:
        return tuple(map(tuples, value)) if isinstance(value, list) else value

    return {name: tuples(value) for name, value in row.items()}
