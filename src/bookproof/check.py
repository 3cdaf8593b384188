"""Check of the whole site: links, fragments, ids, expected pages, and nothing that a browser fetches from elsewhere.

This module promises that every address in a built site that leads into the site has a target there, that no id stands
twice on a page, and that neither HTML, SVG, CSS nor script names another host to fetch from. It reads files and answers
with failures; it runs nothing, asks no network, and does not know whether a link to another site still works.

How it is called: `check_site(site_dir, site_url=…, sources=…)` after the site is written, by the plugin or by hand.
`sources` maps each page's file in the site (`lessons/x/index.html`) to the `Origin` it was rendered from. With it,
a link that the page wrote or printed is reported at its line of the source; one that came from a docstring or a
template is reported by page and address. Every page in `sources` is expected to exist. By hand, `read_origins` gives
them back from the site's own record.

What counts as another host: whatever a browser would fetch without being asked (`src`, stylesheets, `url()`, `@import`,
`<link rel=preload>`), and a string in a script that is an address. A link to click does not count, nor does
`<link rel=canonical>`, nor the name of an XML namespace.
"""

from __future__ import annotations

import difflib
import hashlib
import html
import json
import os
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from bookproof import outputs
from bookproof.cache import Cache, digest, files_digest
from bookproof.page import Failure

NAMESPACE_HOSTS = frozenset({"www.w3.org"})
"""Hosts whose addresses in scripts are names (of XML namespaces), which nothing fetches."""

# Relations of <link> that only say something; every other one makes a browser fetch or connect.
_SAID = frozenset({"alternate", "author", "canonical", "edit", "help", "license", "me", "next", "prev", "search", "up"})
# (tag, attribute) pairs that a reader has to click, or that send what a reader typed.
_CLICKED = frozenset(
    {("a", "href"), ("area", "href"), ("a", "xlink:href"), ("form", "action"), ("button", "formaction")}
)
_LISTS = frozenset({"srcset", "imagesrcset"})
_READ = _LISTS | {
    "href", "src", "xlink:href", "poster", "data", "action", "formaction", "background", "manifest", "content",
}  # fmt: skip

# A tag with its attributes, a comment, or an element whose content is not markup. Possessive, so that no input is slow;
# most tags have no attribute but a class, and so nothing to check: they are left out at once.
_QUOTED = r"(?:[^>\"']++|\"[^\"]*+\"|'[^']*+')*+"
_TAG = re.compile(
    r"<!--.*?-->"
    rf"|<(?P<raw>script|style|textarea|title)\b({_QUOTED})(?<!/)>(.*?)</(?P=raw)\s*>"
    rf"|<(?!\w+(?: class=\"[^\"]*\")?>)([a-zA-Z][^\s/>]*)({_QUOTED})>",
    re.DOTALL | re.IGNORECASE,
)
_ATTRIBUTE = re.compile(r"([^\s\"'>/=]+)(?:\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'=<>`]+)))?")
_CSS = re.compile(
    r"/\*.*?\*/"
    r"|@namespace\b[^;]*;"
    r"|(?:@import\s+|\burl\(\s*)(?:\"(?P<double>[^\"]*)\"|'(?P<single>[^']*)')"
    r"|\burl\(\s*(?P<bare>[^\s\"')]+)"
    r"|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'",
    re.DOTALL | re.IGNORECASE,
)
# A string that starts as an address; the second form has its host put together while the script runs.
_SCRIPT_ADDRESS = re.compile(
    r"[\"'`](?P<address>"
    r"(?:(?:https?|wss?):)?\\?/\\?/(?P<host>[\w-]+(?:\.[\w-]+)+|localhost)(?=[/\\:?#\"'`$])[^\s\"'`]{0,120}"
    r"|(?:https?|wss?)://\$\{[^\s\"'`]{0,120})"
)
_MARKUP = r"(?:<[^>]*+>)*+"
_SNIPPET = re.compile(_MARKUP.join(["-", "-", "8", "(?:&lt;|<)", "-", "-"]))
_SNIPPET_SOURCE = re.compile(r"(?<!;)-{2}8<-{2}")
_FENCE = re.compile(r"^[\s>]*(`{3,}|~{3,})")


@dataclass(frozen=True, slots=True)
class Origin:
    """What a page was rendered from, so that a failure can name the line to mend."""

    path: str
    """Repository-relative POSIX path of the Markdown file."""
    text: str = ""
    """The whole file, front matter included, so that line numbers are the file's."""
    printed: tuple[tuple[int, str], ...] = ()
    """What blocks of the page printed, each with the 1-based line of its block."""

    def lines_with(self, clue: str) -> list[int]:
        """Return the lines that hold the clue as a word of its own: those of prose, else of code, else of a block."""
        whole = re.compile(rf"(?<![\w/.#-]){re.escape(clue)}(?![\w/#-]|\.\w)")
        prose: list[int] = []
        code: list[int] = []
        for number, line, in_fence in _numbered(self.text):
            if whole.search(line):
                (code if in_fence else prose).append(number)
        return prose or code or [line for line, output in self.printed if whole.search(output)]


@dataclass(slots=True)
class _Page:
    """What one HTML or SVG file says."""

    ids: dict[str, int] = field(default_factory=dict)
    """Each id, and how often it stands there."""
    names: dict[str, bool] = field(default_factory=dict)
    links: dict[str, bool] = field(default_factory=dict)
    """Each address, and whether a browser fetches it unasked."""
    scripts: list[Sequence[str]] = field(default_factory=list)
    """Each address that a script of the page holds, with its host."""
    base: str = ""
    snippets: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return its fields, uncopied: `asdict` would copy every address of every page."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(frozen=True, slots=True)
class _Target:
    """What an address leads to: a file of the site, another host, or (with a reason) nothing."""

    file: str = ""
    reason: str = ""
    host: str = ""


def check_site(
    site_dir: Path,
    *,
    site_url: str | None = None,
    expected: Collection[str] = (),
    sources: Mapping[str, Origin] | None = None,
    allowed_hosts: Collection[str] = NAMESPACE_HOSTS,
    cache: Cache | None = None,
) -> list[Failure]:
    """Check a built site.

    Parameters:
        site_dir: The folder that a web server would serve as `site_url`.
        site_url: Where the site will stand; read from the front page's canonical link when omitted.
        expected: Files that must exist, as site-relative POSIX paths, beside the pages of `sources`.
        sources: Site-relative file of each page that was rendered from Markdown, and its source.
        allowed_hosts: Hosts whose addresses may stand in scripts.
        cache: Where it is remembered what a file says, by its content; never what is wrong with it.

    Returns:
        Every failure, sorted by path and line.
    """
    site = _Site(site_dir, site_url, sources or {}, frozenset(allowed_hosts), cache or Cache(None))
    failures = {
        Failure(_shown(site.sources, name), 0, f"expected page {name} is not in the site")
        for name in {*expected, *site.sources} - site.files
    }
    for name in sorted(site.files):
        suffix = posixpath.splitext(name)[1].lower()
        if suffix in {".html", ".htm", ".svg"}:
            failures.update(site.check_page(name))
        elif suffix == ".css":
            failures.update(site.check_links(name, dict.fromkeys(site.said(name, "css", _css_addresses), True)))
        elif suffix in {".js", ".mjs", ".cjs"}:
            failures.update(site.check_script(name, site.said(name, "script", _script_addresses)))
    for name, addresses in site.indexes():
        failures.update(site.check_links(name, dict.fromkeys(addresses, False)))
    return sorted(failures)


class _Site:
    """The files of one site, each page read once."""

    def __init__(
        self,
        folder: Path,
        site_url: str | None,
        sources: Mapping[str, Origin],
        allowed_hosts: frozenset[str],
        cache: Cache,
    ) -> None:
        self.folder = folder
        self.sources = sources
        self.allowed_hosts = allowed_hosts
        self._cache = cache
        self._form = files_digest(Path(__file__).parent, ["check.py"])
        self.files = {
            posixpath.join(os.path.relpath(at, folder).replace(os.sep, "/"), name).removeprefix("./")
            for at, _, names in os.walk(folder)
            for name in names
        }
        self._pages: dict[str, _Page] = {}
        self._targets: dict[tuple[str, str, str], _Target] = {}
        self.url = urlsplit(self._canonical() if site_url is None else site_url)
        self.root = self.url.path.rstrip("/") + "/"

    def read(self, name: str) -> str:
        return (self.folder / name).read_bytes().decode("utf-8", "replace")

    def said(self, name: str, kind: str, read: Callable[[str], Any]) -> Any:
        """Return what a file says, as `read` finds it in its text."""
        data = (self.folder / name).read_bytes()
        key = digest(self._form, kind, _sha256(data))
        found = self._cache.get(key)
        if found is None:
            found = {"said": read(data.decode("utf-8", "replace"))}
            self._cache.put(key, found)
        return found["said"]

    def page(self, name: str) -> _Page:
        if name not in self._pages:
            said = self.said(name, "page", lambda text: _read_page(text).as_json())
            self._pages[name] = _Page(**said)
        return self._pages[name]

    def check_page(self, name: str) -> Iterator[Failure]:
        page = self.page(name)
        for identifier, count in page.ids.items():
            if count > 1:
                yield from self._at(
                    name, [f"#{identifier}", f'"{identifier}"'], f"id '{identifier}' stands {count} times on this page"
                )
        yield from self.check_links(name, page.links, base=page.base)
        yield from self.check_script(name, page.scripts)
        source = self.sources.get(name)
        # Without a record every page counts; with one, only Markdown can have left a marker: other pages show sources.
        if page.snippets > (source.text.count(";--8<--") if source else 0) and (source or not self.sources):
            lines = (
                [number for number, line, _ in _numbered(source.text) if _SNIPPET_SOURCE.search(line)] if source else []
            )
            for line in lines or [0]:
                yield Failure(
                    _shown(self.sources, name), line, "a snippet marker '--8<--' is shown instead of the snippet"
                )

    def check_links(self, name: str, links: Mapping[str, bool], *, base: str = "") -> Iterator[Failure]:
        folder = posixpath.dirname(name)
        for address, fetched in links.items():
            if (wrong := self._wrong(name, folder, address, base, fetched=fetched)) is not None:
                target, reason = wrong
                yield from self._at(name, self._clues(name, address, target), f"link '{address}' {reason}")

    def check_script(self, name: str, addresses: Iterable[Sequence[str]]) -> Iterator[Failure]:
        for address, host in addresses:
            if host not in {*self.allowed_hosts, self.url.hostname}:
                yield from self._at(name, [address], f"script names another host: '{address}'")

    def indexes(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the sitemap and the search index with the addresses they send readers to, relative to the site."""
        if "sitemap.xml" in self.files:
            yield (
                "sitemap.xml",
                [html.unescape(url.strip()) for url in re.findall(r"<loc>(.*?)</loc>", self.read("sitemap.xml"))],
            )
        if "search/search_index.json" in self.files:
            entries = json.loads(self.read("search/search_index.json")).get("docs", [])
            yield "search/search_index.json", [f"{self.root}{entry['location']}" for entry in entries]

    def _wrong(self, name: str, folder: str, address: str, base: str, *, fetched: bool) -> tuple[str, str] | None:
        """Return the target (or "") and what is wrong with an address, or None if nothing is."""
        before, _, fragment = address.strip().partition("#")
        # A site repeats its navigation on every page: each path is looked up once per folder.
        key = (base, folder if before else name, before)
        if key not in self._targets:
            self._targets[key] = self._target(name, base, before)
        target = self._targets[key]
        if target.host:
            return ("", f"makes the browser fetch from elsewhere, {target.host}") if fetched else None
        if target.reason:
            return target.file, target.reason
        reason = self._no_place(target.file, fragment) if target.file and fragment else ""
        return (target.file, reason) if reason else None

    def _target(self, name: str, base: str, address: str) -> _Target:
        """Find what an address without its fragment leads to."""
        try:
            url = urlsplit(urljoin(base, address) if base else address)
        except ValueError as error:
            return _Target(reason=f"is no address: {error}")
        if url.scheme and url.scheme not in {"http", "https", "ws", "wss"}:
            return _Target()  # mailto, data, javascript: no request
        path = unquote(url.path)
        inside = f"{path}/".startswith(self.root)
        if url.netloc and not (url.netloc == self.url.netloc and inside):
            return _Target(host=url.netloc)
        if not url.netloc and not path:
            return _Target(name)
        if not url.netloc and not path.startswith("/"):
            return self._file(posixpath.join(posixpath.dirname(name), path))
        if not inside:
            return _Target(reason=f"leads outside the site, which starts at {self.root}")
        return self._file(path.removeprefix(self.root.rstrip("/")).lstrip("/") or ".")

    def _file(self, path: str) -> _Target:
        folder = path.endswith(("/", "/.", "/..")) or path in {".", ".."}
        path = posixpath.normpath(path)
        if path.startswith("../") or path == "..":
            return _Target(reason="leads above the site's folder")
        # A server sends `x` on to `x/` where x is a folder; nothing makes it add `.html`.
        index = posixpath.normpath(posixpath.join(path, "index.html"))
        if index in self.files:
            return _Target(index)
        if folder or path not in self.files:
            return _Target(path, f"leads nowhere: the site has no {index if folder else path}")
        return _Target(path)

    def _no_place(self, file: str, fragment: str) -> str:
        fragment = fragment.partition(":~:")[0]
        if fragment in {"", "top"} or not file.endswith((".html", ".htm", ".svg")):
            return ""
        page, plain = self.page(file), unquote(fragment)
        if any(name in page.ids or name in page.names for name in (fragment, plain)):
            return ""
        near = difflib.get_close_matches(plain, list(page.ids)[:5000], n=1)
        return f"leads to no place: {file} has no id '{plain}'" + (f"; likely '{near[0]}'" if near else "")

    def _clues(self, name: str, address: str, target: str) -> list[str]:
        """Return what the source may say where the page says `address`, the surest first."""
        clues = [address]
        fragment = urlsplit(address).fragment if "#" in address else ""
        here, there = self.sources.get(name), self.sources.get(target)
        if here and there:
            relative = posixpath.relpath(there.path, posixpath.dirname(here.path) or ".")
            clues.append(f"{relative}#{fragment}" if fragment else relative)
        if fragment:
            clues += [f"#{fragment}", f"[{fragment}]"]
        return clues

    def _at(self, name: str, clues: Iterable[str], text: str) -> Iterator[Failure]:
        source = self.sources.get(name)
        for clue in clues if source else ():
            if source and (lines := source.lines_with(clue)):
                yield from (Failure(source.path, line, text) for line in lines)
                return
        shown = _shown(self.sources, name)
        yield Failure(shown, 0, text if shown == name else f"{text} (in {name})")

    def _canonical(self) -> str:
        if "index.html" not in self.files:
            return ""
        for match in re.finditer(r"<link\b[^>]*>", self.read("index.html"), re.IGNORECASE):
            attributes = _attributes(match[0][5:-1])
            if attributes.get("rel") == "canonical":
                return attributes.get("href", "")
        return ""


def read_origins(
    site_dir: Path, root: Path, *, docs: str = "docs", committed: str = "tests/outputs"
) -> dict[str, Origin]:
    """Return what the pages of a site came from, as its `provenance.json` tells; nothing if it has none.

    Parameters:
        site_dir: The built site.
        root: The repository; a file in it lends its lines only if it still is what the page was rendered from.
        docs: Its documentation folder.
        committed: Its folder of committed outputs, which say what a page printed as long as they are the same.
    """
    try:
        pages = json.loads((site_dir / "provenance.json").read_bytes())["pages"]
        origins = {}
        for path, entry in pages.items():
            data = (root / path).read_bytes() if (root / path).is_file() else b""
            text = data.decode("utf-8", "replace") if _sha256(data) == entry["source"] else ""
            file = root / committed / outputs.outputs_name(path.removeprefix(f"{docs}/"))
            known = outputs.read(file.read_text("utf-8")) if file.is_file() else {}
            origins[entry["file"]] = Origin(path, text, tuple(_printed(entry["examples"], known)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return origins


def _printed(examples: Iterable[Mapping[str, Any]], known: Mapping[str, outputs.Entry]) -> Iterator[tuple[int, str]]:
    for example in examples:
        entry = known.get(example["id"])
        if entry is not None and _sha256(entry.output.encode("utf-8")) == example["output"]:
            yield example["line"], entry.output


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _shown(sources: Mapping[str, Origin], name: str) -> str:
    return sources[name].path if name in sources else name


def _numbered(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield each line with its number and whether it stands in a fence, opening and closing lines included."""
    fence = ""
    for number, line in enumerate(text.splitlines(), start=1):
        mark = _FENCE.match(line)
        if fence:
            yield number, line, True
            if mark and mark[1].startswith(fence) and not line.strip(" \t>`~"):
                fence = ""
        else:
            fence = mark[1] if mark else ""
            yield number, line, bool(mark)


def _read_page(text: str) -> _Page:
    page = _Page(snippets=len(_SNIPPET.findall(text)))
    for match in _TAG.finditer(text):
        raw, raw_attributes, content, tag, attributes = match.groups()
        if raw:
            tag, attributes = raw.lower(), raw_attributes
            if tag == "style":
                page.links |= dict.fromkeys(_css_addresses(content), True)
            elif tag == "script" and "json" not in attributes:
                page.scripts += _script_addresses(content)
        if attributes:
            _read_tag(page, tag.lower(), _attributes(attributes))
    return page


def _read_tag(page: _Page, tag: str, attributes: Mapping[str, str]) -> None:
    for name, value in attributes.items():
        if name == "id":
            page.ids[value] = page.ids.get(value, 0) + 1
        elif name == "name" and tag == "a":
            page.names[value] = True
        elif name == "href" and tag == "base":
            page.base = value
        elif name in _READ or "url(" in value:
            said = tag == "link" and _SAID.issuperset(attributes.get("rel", "").lower().split())
            fetched = not said and (tag, name) not in _CLICKED
            for address in _addresses(tag, name, value, attributes):
                page.links[address] = fetched or page.links.get(address, False)


def _addresses(tag: str, name: str, value: str, attributes: Mapping[str, str]) -> list[str]:
    if name in _LISTS:
        return [part.split()[0] for part in re.split(r",\s+|,(?=\S+\s)", value) if part.strip()]
    if name == "data" and tag != "object":
        return []
    if name == "content":
        refresh = tag == "meta" and attributes.get("http-equiv", "").lower() == "refresh"
        return re.findall(r"url\s*=\s*['\"]?([^'\"\s]+)", value, re.IGNORECASE) if refresh else []
    return [value] if name in _READ else _css_addresses(value)


def _attributes(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, double, single, bare in _ATTRIBUTE.findall(text):
        value = double or single or bare
        # Of two attributes of one name, a browser takes the first.
        found.setdefault(name.lower(), html.unescape(value) if "&" in value else value)
    return found


def _script_addresses(text: str) -> list[Sequence[str]]:
    return sorted(set(_SCRIPT_ADDRESS.findall(text)))


def _css_addresses(text: str) -> list[str]:
    found = (match["double"] or match["single"] or match["bare"] for match in _CSS.finditer(text))
    return [address for address in found if address]
