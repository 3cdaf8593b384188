"""Remembered: what other plugins make of an unchanged page, so that a build need not ask them again.

It promises that a page comes out byte for byte as they would render it. Of an object that mkdocstrings shows, its HTML,
headings and anchors are kept, under a key that covers the module with everything that it imports and all that is
configured; under which other names it is known depends on the whole source, and is asked again when any of that
changed. Of a page that Material indexes for its search, the entries are kept. A rendering that warned of something, or
in which a page showed an example, is never remembered, and none is where a site has templates or extensions of its own.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element

from jinja2 import BytecodeCache

from bookproof.cache import Cache, digest, files_digest
from bookproof.imports import Imports
from bookproof.options import Settings


@dataclass(frozen=True, slots=True)
class _Known:
    """Stands for a collected object that need not be rendered."""

    entry: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Memory:
    """What the handlers of one build share."""

    cache: Cache
    base: str
    """Everything that is configured."""
    source: str
    """Digest of the whole source."""
    imports: Imports
    autorefs: Any
    recorded: Callable[[], object]
    read: Callable[[Any], object]
    templates: BytecodeCache | None
    served: bool


def remember_search(plugin: Any, form: str, cache: Cache) -> None:
    """Let Material's search take the entries of a page from memory.

    Parameters:
        plugin: The plugin `material/search` after its own `on_config`.
        form: Everything that the look of a page depends on beside its text.
        cache: Where entries are remembered.
    """
    index: Any = getattr(plugin, "search_index", None)
    if not hasattr(index, "entries"):
        return  # another search, or one that is off
    add, base = index.add_entry_from_context, digest("search", form, repr(dict(plugin.config)))

    def add_entry_from_context(page: Any) -> None:
        meta = {name: page.meta.get(name) for name in ("search", "tags", "title")}
        key = digest(base, page.url, str(page.title), page.content, repr(list(_anchors_of(page.toc))), repr(meta))
        known = cache.get(key)
        if known is None:
            before = len(index.entries)
            add(page)
            cache.put(key, {"entries": index.entries[before:]})
        else:
            index.entries += known["entries"]

    index.add_entry_from_context = add_entry_from_context


def _anchors_of(toc: Any) -> Iterator[tuple[str, str]]:
    for item in toc:
        yield item.id, item.url
        yield from _anchors_of(item.children)


def remember_api_pages(
    settings: Settings,
    plugin: Any,
    autorefs: Any,
    form: str,
    cache: Cache,
    imports: Imports,
    recorded: Callable[[], object],
    read: Callable[[Any], object],
    templates: BytecodeCache | None,
    *,
    served: bool = False,
) -> None:
    """Let the handlers of one build answer from memory.

    Parameters:
        settings: The site's settings.
        plugin: The plugin `mkdocstrings` after its own `on_config`.
        autorefs: The plugin `autorefs`.
        form: Everything that the look of a page depends on beside its text.
        cache: Where renderings are remembered.
        imports: Which files an object depends on.
        recorded: Tells how much the page being rendered has shown, so that a rendering that added to it is noticed.
        read: Called with the packages that griffe has read, when they have been.
        templates: Where compiled templates are remembered.
        served: Whether a server asks, which soon asks again for other code.
    """
    configured = [plugin.config.custom_templates, *plugin.config.handlers.values()]
    if configured[0] or any("extensions" in (one or {}).get("options", {}) for one in configured[1:]):
        return  # files that no key here covers
    options = plain(repr(dict(plugin.config)))
    memory = _Memory(
        cache,
        digest("api", sys.version, form, options),
        files_digest(settings.root, [settings.src]),
        imports,
        autorefs,
        recorded,
        read,
        templates,
        served,
    )
    handlers = plugin.handlers
    make = handlers.get_handler

    def get_handler(name: str, *arguments: Any, **keywords: Any) -> Any:
        handler = make(name, *arguments, **keywords)
        if not isinstance(getattr(handler.collect, "__self__", None), _Handler):
            _Handler(memory, name, handler)
        return handler

    handlers.get_handler = get_handler


class _Handler:
    """Stands before one handler of mkdocstrings."""

    def __init__(self, memory: _Memory, name: str, handler: Any) -> None:
        self._memory, self._name, self._handler = memory, name, handler
        self._collect, self._render, self._get_aliases = handler.collect, handler.render, handler.get_aliases
        self._skipped: list[tuple[str, Any]] = []
        self._aliases: dict[str, tuple[str, ...]] = {}
        if getattr(handler, "env", None) is not None:
            handler.env.bytecode_cache = memory.templates
        self._key = ""
        """Of the object that was collected last; empty where it may not be remembered."""
        handler.collect, handler.render, handler.get_aliases = self.collect, self.render, self.get_aliases

    def collect(self, identifier: str, options: Any) -> Any:
        """Collect an object, or say that its rendering is known."""
        memory, page = self._memory, self._memory.autorefs.current_page
        files = memory.imports.digest(identifier)
        key = ""
        if files and page is not None:
            key = digest(memory.base, self._name, identifier, plain(repr(options)), files, page.url)
            if found := memory.cache.get(key):
                self._skipped.append((identifier, options))
                return _Known(found)
        with noted_warnings() as warned:
            data = self._collect(identifier, options)
        if modules := getattr(data, "modules_collection", None):
            memory.read(modules)
        self._key = "" if warned else key
        return data

    def render(self, data: Any, options: Any, **keywords: Any) -> str:
        """Render an object, or repeat what rendering it did."""
        headings = self._handler._headings  # noqa: SLF001 - handed over only once, and not to us
        if isinstance(data, _Known):
            for tag, attributes, text in data.entry["headings"]:
                headings.append(Element(tag, attributes))
                headings[-1].text = text
            for arguments, named in data.entry["anchors"]:
                self._memory.autorefs.register_anchor(self._memory.autorefs.current_page, *arguments, **named)
            return str(data.entry["html"])
        key, self._key = self._key, ""
        if not key or headings:  # headings of another rendering, in which this one is nested
            return str(self._render(data, options, **keywords))
        before = self._memory.recorded()
        with noted_warnings() as warned, noted_anchors(self._memory.autorefs) as anchors:
            html = str(self._render(data, options, **keywords))
        if not warned and self._memory.recorded() == before and not any(map(len, headings)):
            kept = [[one.tag, dict(one.attrib), one.text] for one in headings]
            self._memory.cache.put(key, {"html": html, "headings": kept, "anchors": anchors})
        return html

    def get_aliases(self, identifier: str) -> tuple[str, ...]:
        """Return under which names an object is known."""
        if identifier not in self._aliases:
            key = digest(self._memory.base, self._name, "aliases", self._memory.source, identifier)
            found = self._memory.cache.get(key)
            if found is None:
                while self._skipped:
                    self._collect(*self._skipped.pop(0))
                found = {"aliases": list(self._get_aliases(identifier))}
                if not self._memory.served:  # a file for each name takes longer than asking again
                    self._memory.cache.put(key, found)
            self._aliases[identifier] = tuple(found["aliases"])
        return self._aliases[identifier]


def plain(text: str) -> str:
    """Return a configuration's text without where its functions lie in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


@contextmanager
def noted_anchors(autorefs: Any) -> Iterator[list[Any]]:
    """Note the anchors that are registered meanwhile, without the page; none where there is no such plugin."""
    noted: list[Any] = []
    if autorefs is None:
        yield noted
        return
    register = autorefs.register_anchor

    def note(page: Any, *arguments: Any, **named: Any) -> None:
        noted.append([arguments, named])
        register(page, *arguments, **named)

    autorefs.register_anchor = note
    try:
        yield noted
    finally:
        autorefs.register_anchor = register  # perhaps that of one who notes all of a page


class _Noting(logging.Handler):
    def __init__(self, noted: list[logging.LogRecord], handlers: list[logging.Handler], level: int) -> None:
        super().__init__()
        self._noted, self._handlers, self._level = noted, handlers, level

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            self._noted.append(record)
        if record.levelno >= self._level:
            for handler in self._handlers:
                if record.levelno >= handler.level:
                    handler.handle(record)


@contextmanager
def noted_warnings() -> Iterator[list[logging.LogRecord]]:
    """Note what is warned of meanwhile, also where a quiet build would not even make the warnings."""
    noted: list[logging.LogRecord] = []
    logger = logging.getLogger("mkdocs")
    handlers, level = logger.handlers, logger.level
    logger.handlers = [_Noting(noted, handlers, logger.getEffectiveLevel())]
    if not logger.isEnabledFor(logging.WARNING):
        logger.setLevel(logging.WARNING)
    try:
        yield noted
    finally:
        logger.handlers = handlers
        logger.setLevel(level)
