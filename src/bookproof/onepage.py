"""One page: the HTML of a whole book's pages, put into one without a clash, so that it can be printed.

It promises that ids stay unique, that a link from page to page leads to its place inside the one page, and that every
other relative address still leads where it led. It reads HTML as the renderer wrote it, and draws nothing: diagrams are
left for the site's own script, and a lab, which paper cannot run, is replaced by a sentence that says so.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape, unescape
from urllib.parse import urlsplit

_TAG = re.compile(r"<[a-zA-Z][^\s/>]*(?:[^>\"']|\"[^\"]*\"|'[^']*')*>")
_ATTRIBUTE = re.compile(r"(?<=[\s\"'])(?P<name>[a-z][a-z:-]*)=\"(?P<value>[^\"]*)\"")
_OWN = frozenset({"id", "for", "name"})
"""Attributes that hold one id, or the name that joins the buttons of one set of tabs."""
_LISTS = frozenset({"aria-labelledby", "aria-describedby", "aria-controls", "headers"})
_ADDRESSES = frozenset({"href", "src", "xlink:href"})
_INSIDE = re.compile(r"url\(#([^)\s]+)\)")
_LAB = re.compile(r'<div class="bookproof-lab" data-bookproof-lab="(?P<kind>\w+)"[^>]*>[^<]*</div>')
_FOLDED = re.compile(r"<details(?![^>]*\sopen\b)")
_STYLE = """
<style>
.bookproof-book { margin: 0 auto; max-width: 56em; }
.bookproof-book > section { margin-top: 4rem; }
.bookproof-book .bookproof-locally { display: none; }
.bookproof-book .tabbed-labels { display: none; }
.bookproof-book .tabbed-block { display: block; }
@media print {
  .bookproof-book > section { break-before: page; }
  .bookproof-book :is(h1, h2, h3, h4) { break-after: avoid; }
  .bookproof-book :is(figure, svg, .bookproof-drawn, tr) { break-inside: avoid; }
  .bookproof-book pre > code { white-space: pre-wrap; overflow-wrap: anywhere; }
  .bookproof-book { max-width: none; }
}
</style>
"""


@dataclass(frozen=True, slots=True)
class Chapter:
    """One page of the book."""

    title: str
    url: str
    """Its address, relative to the site, as MkDocs gives it: `lessons/x/`, empty for the front page."""
    html: str
    """Its content, without the theme around it."""
    part: str = ""
    """The section of the navigation that it stands in."""

    @property
    def key(self) -> str:
        """Return what all ids of this page begin with."""
        return re.sub(r"\W+", "-", self.url.removesuffix(".html")).strip("-") or "front"


def book(chapters: Sequence[Chapter], *, at: str, title: str, said: str) -> str:
    """Return the content of the one page.

    Parameters:
        chapters: Every page, in the order of the navigation.
        at: The address of the one page, relative to the site.
        title: The name of the book.
        said: What the page says of itself, as text.
    """
    keys = {chapter.url: chapter.key for chapter in chapters}
    if len(set(keys.values())) < len(chapters):
        raise ValueError(f"two pages share one key: {sorted(keys.values())}")
    parts = [f"{_STYLE}<h1>{escape(title)}</h1>\n<p>{escape(said)}</p>", *_contents(chapters)]
    for chapter in chapters:
        parts.append(f'<section id="{chapter.key}" aria-label="{escape(chapter.title)}">')
        parts.append(section(chapter, keys, at))
        parts.append("</section>")
    return '<div class="bookproof-book">' + "\n".join(parts) + "\n</div>"


def section(chapter: Chapter, keys: Mapping[str, str], at: str) -> str:
    """Return one page's content, as it stands in the one page.

    Parameters:
        chapter: The page.
        keys: The key of every page in the book, by its address.
        at: The address of the one page.
    """

    def attribute(found: re.Match[str]) -> str:
        name, value = found["name"], found["value"]
        if name in _OWN and value:
            value = f"{chapter.key}--{value}"
        elif name in _LISTS:
            value = " ".join(f"{chapter.key}--{one}" for one in value.split())
        elif name in _ADDRESSES:
            value = escape(_address(unescape(value), chapter, keys, at))
        else:
            value = _INSIDE.sub(rf"url(#{chapter.key}--\1)", value)
        return f'{name}="{value}"'

    html = _LAB.sub(lambda found: f'<p class="bookproof-note">{escape(lab_note(found["kind"]))}</p>', chapter.html)
    html = _FOLDED.sub("<details open", html)
    return _TAG.sub(lambda tag: _ATTRIBUTE.sub(attribute, tag[0]), html)


def lab_note(kind: str) -> str:
    """Return what stands in the place of a lab where nothing can be run.

    Parameters:
        kind: What `labs.lab_place` was given.
    """
    what, recorded = {
        "run": ("run and change this example", "output above"),
        "knobs": ("turn this example's knobs", "output above"),
        "crash": ("end this process at a moment of their choice", "output above"),
        "mutation": ("make this change and mend it", "verdict above"),
        "agree": ("run every example in their own browser", "tables above"),
    }.get(kind, ("try this", "result above"))
    verb = "are" if recorded.endswith("s") else "is"
    return f"On the website, readers can {what}. The {recorded} {verb} what the build recorded."


def _contents(chapters: Sequence[Chapter]) -> Iterator[str]:
    yield '<nav aria-label="Contents">\n<h2>Contents</h2>'
    part = None
    for chapter in chapters:
        if chapter.part != part:
            if part is not None:
                yield "</ul>"
            part = chapter.part
            yield (f"<p><strong>{escape(part)}</strong></p>" if part else "") + "<ul>"
        yield f'<li><a href="#{chapter.key}">{escape(chapter.title)}</a></li>'
    yield "</ul>\n</nav>" if chapters else "</nav>"


def _address(address: str, chapter: Chapter, keys: Mapping[str, str], at: str) -> str:
    """Return where an address of a page leads from the one page."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc or address.startswith("/"):
        return address
    if not parts.path:
        return f"#{chapter.key}--{parts.fragment}" if parts.fragment else f"#{chapter.key}"
    target = posixpath.normpath(
        posixpath.join("/", chapter.url if chapter.url.endswith("/") else posixpath.dirname(chapter.url), parts.path)
    )
    folder = parts.path.endswith(("/", "/..", "/.")) or parts.path in {".", ".."}
    target = target.lstrip("/") + ("/" if folder and target != "/" else "")
    if target in keys:
        return f"#{keys[target]}--{parts.fragment}" if parts.fragment else f"#{keys[target]}"
    here = at if at.endswith("/") else posixpath.dirname(at)
    relative = posixpath.relpath("/" + target, "/" + here) + ("/" if folder else "")
    return relative + address[len(parts.path) :]
