"""Sources: every file of the code, its tests and the pages' Markdown as a static page of the site, line by line.

A link to a line then works wherever the site is read, and shows the very text that the build ran. The pages stand
outside the page pipeline and the search, carry no script, ask for nothing but their own stylesheet, and depend on
nothing but the files and the commit. What they show is the tree as it is: whether it is committed is `provenance`'s
claim.

How it is called: `write_source_pages(root, site_dir, commit)` after the site is written; `source_url` and `blob_url`
give the addresses that the pages link to.
"""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

import pygments

from bookproof.cache import Cache, digest
from bookproof.listing import listing

SOURCE_FOLDER = "source"
"""Where the pages stand in the site."""

_SUFFIXES = (".py", ".toml", ".md")
_LISTING = Path(__file__).with_name("listing.py")
_FEWEST = 8  # files for which another process is worth its start
_FORM = "2"  # to be raised with every change of `listing`, so that no remembered page is in an older form
_STYLE = """\
:root { color-scheme: light dark; --text: #1f2328; --page: #ffffff; --faint: #57606a; --mark: #fff5b1; --link: #0550ae;
  --keyword: #6f42c1; --string: #0a3069; --number: #0550ae; --name: #953800; --line: #d0d7de; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --page: #0d1117; --faint: #9198a1; --mark: #3a3110;
  --link: #79c0ff; --keyword: #d2a8ff; --string: #a5d6ff; --number: #79c0ff; --name: #ffa657; --line: #3d444d; } }
body { margin: 0; color: var(--text); background: var(--page); font: 1rem/1.5 system-ui, sans-serif; }
header, main, .files { padding: 0 1rem; }
header { border-bottom: 1px solid var(--line); padding-bottom: 0.75rem; }
h1 { font-size: 1.15rem; margin: 0.75rem 0 0.25rem; overflow-wrap: anywhere; }
p { margin: 0.25rem 0; }
a { color: var(--link); }
.skip { position: absolute; left: -99rem; }
.skip:focus { left: 1rem; top: 0.5rem; padding: 0.25rem 0.5rem; background: var(--page); }
pre, code { font: 0.85rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { overflow-x: auto; margin: 0.75rem 0; }
pre:focus-visible, a:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
.line { display: block; width: max-content; min-width: 100%; scroll-margin-top: 25vh; }
.line:target { background: var(--mark); }
.line > a::before { content: attr(data-n); display: inline-block; width: 3.5em; padding-right: 1.25em;
  text-align: right; color: var(--faint); user-select: none; }
.line > a { text-decoration: none; }
.keyword { color: var(--keyword); }
.string { color: var(--string); }
.number, .builtin { color: var(--number); }
.name { color: var(--name); }
.comment { color: var(--faint); font-style: italic; }
"""


def source_url(file: str, line: int = 0) -> str:
    """Return the site-relative address of a file's page.

    Parameters:
        file: Repository-relative POSIX path.
        line: 1-based line to go to; 0 for the top.
    """
    return f"{SOURCE_FOLDER}/{quote(file)}.html" + (f"#L{line}" if line else "")


def blob_url(repo_url: str, commit: str, file: str, first: int = 0, last: int = 0) -> str:
    """Return the forge's address of lines of a file at one commit, or an empty text where there can be none.

    Parameters:
        repo_url: The repository on its forge; empty when there is none.
        commit: The full hexadecimal commit id. A branch or an abbreviation gives no address: it could move.
        file: Repository-relative POSIX path.
        first: First line, 1-based; 0 for the whole file.
        last: Last line; the first when smaller.
    """
    if not repo_url or not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", commit):
        return ""
    host = (urlsplit(repo_url).hostname or "").lower()
    last = max(first, last)
    if "bitbucket" in host:
        middle, lines = "src", f"#lines-{first}:{last}"
    elif "gitlab" in host:
        middle, lines = "-/blob", f"#L{first}-{last}"
    elif any(name in host for name in ("codeberg", "gitea", "forgejo")):
        middle, lines = "src/commit", f"#L{first}-L{last}"
    else:
        middle, lines = "blob", f"#L{first}-L{last}"
    base = repo_url.rstrip("/").removesuffix(".git")
    return f"{base}/{middle}/{commit}/{quote(file)}" + (lines if first else "")


def issue_url(repo_url: str, file: str, commit: str) -> str:
    """Return the forge's address of a new issue that names a page and the commit it was read at.

    Parameters:
        repo_url: The repository on its forge; empty when there is none.
        file: Repository-relative POSIX path of the page.
        commit: The commit id; empty where there is none.

    Returns:
        An empty text where the forge is not known to take such an address.
    """
    host = (urlsplit(repo_url).hostname or "").lower()
    title, body = f"{file}: ", f"Page: {file}\nCommit: {commit or 'none'}\n\nWhat is wrong, and what did you expect?\n"
    base = repo_url.rstrip("/").removesuffix(".git")
    if "gitlab" in host:
        return f"{base}/-/issues/new?" + urlencode({"issue[title]": title, "issue[description]": body})
    if any(name in host for name in ("github", "codeberg", "gitea", "forgejo")):
        return f"{base}/issues/new?" + urlencode({"title": title, "body": body})
    return ""


def source_files(root: Path, folders: Sequence[str] = ("src", "tests")) -> tuple[str, ...]:
    """Return the files that get a page: Python, TOML and Markdown below the folders, sorted, hidden ones left out."""
    found = {
        path.relative_to(root)
        for folder in folders
        for path in (root / folder).rglob("*")
        if path.suffix in _SUFFIXES and path.is_file()
    }
    return tuple(
        sorted(
            path.as_posix()
            for path in found
            if not any(part.startswith(".") or part in {"__pycache__", "node_modules"} for part in path.parts)
        )
    )


def write_source_pages(
    root: Path,
    site_dir: Path,
    commit: str,
    *,
    folders: Sequence[str] = ("src", "tests"),
    repo_url: str = "",
    site_name: str = "",
    lang: str = "en",
    listings: Listings | None = None,
) -> tuple[str, ...]:
    """Write a page for each file, a list of them, and their stylesheet.

    Parameters:
        root: The repository.
        site_dir: The built site.
        commit: The full commit id; anything else, such as an empty text, makes the pages say "draft".
        folders: What to show.
        repo_url: The repository on its forge, for a link to the same file there.
        site_name: Named in the titles.
        lang: Language of the surrounding words.
        listings: The highlighted files, if they have been begun.

    Returns:
        The site-relative paths written, sorted.
    """
    files = source_files(root, folders)
    listings = listings or Listings(root, folders)
    pages = {f"{SOURCE_FOLDER}/source.css": _STYLE}
    for file in files:
        forge = blob_url(repo_url, commit, file)
        body = f'<main id="code">{listings.of(file)}</main>'
        pages[f"{SOURCE_FOLDER}/{file}.html"] = _page(file, body, commit, forge=forge, site_name=site_name, lang=lang)
    items = "".join(f'<li><a href="{escape(quote(file))}.html"><code>{escape(file)}</code></a></li>' for file in files)
    listing = f'<main id="code"><ul>{items}</ul></main>'
    pages[f"{SOURCE_FOLDER}/index.html"] = _page("", listing, commit, forge="", site_name=site_name, lang=lang)
    for name, text in pages.items():
        target = site_dir / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode("utf-8"))
    return tuple(sorted(pages))


def _page(file: str, body: str, commit: str, *, forge: str, site_name: str, lang: str) -> str:
    """Return one page; `file` is empty for the list of files."""
    up = "../" * (posixpath.join(SOURCE_FOLDER, file).count("/") if file else 1)
    published = bool(re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", commit))
    state = f"commit {commit[:12]}" if published else "draft"
    heading = file or "Source files"
    title = f"{heading} ({state})" + (f" - {site_name}" if site_name else "")
    links = [f'<a href="{up}index.html">{escape(site_name or "The site")}</a>']
    if file:
        links.append(f'<a href="{up}{SOURCE_FOLDER}/index.html">All source files</a>')
    if forge:
        links.append(f'<a href="{escape(forge)}">This file on its forge</a>')
    said = f"As of commit <code>{escape(commit)}</code>." if published else "Draft: not the text of a commit."
    return (
        f'<!doctype html>\n<html lang="{escape(lang)}">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n"
        '<link rel="icon" href="data:,">\n'  # or a browser asks the host for one
        f'<link rel="stylesheet" href="{up}{SOURCE_FOLDER}/source.css">\n</head>\n<body>\n'
        '<a class="skip" href="#code">Skip to the code</a>\n'
        f'<header>\n<h1>{escape(heading)}</h1>\n<nav aria-label="Places"><p>{" · ".join(links)}</p></nav>\n'
        f"<p>{said}</p>\n</header>\n{body}\n</body>\n</html>\n"
    )


class Listings:
    """The highlighted files of a site, most of them made in another process while the caller does something else.

    Parameters:
        root: The repository.
        folders: What will be shown.
        cache: Where they are remembered, by their content.
    """

    def __init__(self, root: Path, folders: Sequence[str] = ("src", "tests"), cache: Cache | None = None) -> None:
        self._root = root
        self._cache = cache or Cache(None)
        self._known: dict[str, str] = {}
        self._missing: list[tuple[str, str]] = []
        self._process: subprocess.Popen[bytes] | None = None
        for file in source_files(root, folders):
            text = self._text(file)
            if found := self._cache.get(_key(file, text)):
                self._known[file] = str(found["listing"])
            else:
                self._missing.append((file, text))
        if len(self._missing) < _FEWEST:
            return
        self._request, self._answer = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 (closed later)
        self._request.write(json.dumps(self._missing).encode())
        self._request.seek(0)
        command = [sys.executable, "-P", str(_LISTING)]
        self._process = subprocess.Popen(command, stdin=self._request, stdout=self._answer)

    def of(self, file: str) -> str:
        """Return the listing of a file; the first one that is not known waits for the other process."""
        if self._process is not None:
            self._receive(self._process)
            self._process = None
        if file not in self._known:
            text = self._text(file)
            self._known[file] = listing(file, text)
            self._cache.put(_key(file, text), {"listing": self._known[file]})
        return self._known[file]

    def _receive(self, process: subprocess.Popen[bytes]) -> None:
        """Take what the process made; where it failed, each listing is made when it is asked for."""
        with self._request, self._answer:
            if process.wait() != 0:
                return
            self._answer.seek(0)
            for (file, text), made in zip(self._missing, json.load(self._answer), strict=True):
                self._known[file] = made
                self._cache.put(_key(file, text), {"listing": made})

    def _text(self, file: str) -> str:
        return (self._root / file).read_text(encoding="utf-8", errors="replace")


def _key(file: str, text: str) -> str:
    return digest("listing", sys.version, pygments.__version__, _FORM, file, text)
