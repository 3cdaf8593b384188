"""Pages: which page is being rendered, which fences its source holds, what it showed, what is wrong with it.

This module promises that a failure names its page and line the way an editor can open it, and that the fences of a
page can be counted without asking the tool that renders them: `scan` reads the source on its own, so that a fence which
the renderer passed over is noticed. It runs nothing, and judges options only by their spelling as `key="value"`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markdown import Markdown

    from bookproof.options import FenceOptions

CLAIMED = ("python", "bash", "console")
"""Languages whose fences are examples."""
ALIASES = {
    "py": "python",
    "py3": "python",
    "python3": "python",
    "pycon": "python",
    "ipython": "python",
    "sh": "bash",
    "shell": "bash",
    "zsh": "bash",
    "shell-session": "console",
    "sh-session": "console",
}
"""Other names of the same languages: refused, unless the fence opts out, so that none is skipped in silence."""


@dataclass(frozen=True, slots=True, order=True)
class Failure:
    """One thing that is wrong, at the place where a person would mend it."""

    path: str
    """Repository-relative POSIX path, such as `docs/lessons/x.md`."""
    line: int
    """1-based line; 0 where no line is known."""
    text: str
    """What is wrong, first line first; further lines (a diff, the end of a traceback) may follow."""

    def __str__(self) -> str:
        """Return `docs/lessons/x.md:12: text`, or without the line where none is known."""
        return f"{self.path}:{self.line}: {self.text}" if self.line else f"{self.path}: {self.text}"

    def annotation(self) -> str:
        """Return the workflow command that marks the line in a review on GitHub."""
        escaped = self.text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
        line = f",line={self.line}" if self.line else ""
        return f"::error file={self.path}{line},title=bookproof::{escaped}"


class BookproofError(Exception):
    """A page cannot be published; carries every failure of it."""

    def __init__(self, failures: tuple[Failure, ...]) -> None:
        super().__init__("\n".join(str(failure) for failure in failures))
        self.failures = failures


@dataclass(frozen=True, slots=True)
class Fence:
    """A fence as it stands in the source of a page."""

    line: int
    """1-based line of the opening fence in the file, front matter counted."""
    language: str
    """As written; empty where there is none."""
    options: tuple[tuple[str, str], ...]
    """`key="value"` pairs in order; a bare word has itself as its value."""
    body: str
    """Lines between the fences, without their common prefix, joined by newlines."""
    problem: str = ""
    """Why no renderer would take it for a fence; empty when it is well formed."""


@dataclass(frozen=True, slots=True)
class ExampleRecord:
    """What became of one example in this build."""

    id: str
    line: int
    language: str
    code: str
    output: str
    """Normalised output, as published and as committed for review."""
    status: str
    """`passed`, `off` (the author opted out), `absent` (the host lacks something) or `failed`."""
    detail: str = ""
    """The author's reason, or what the host lacks."""
    rules: tuple[str, ...] = ()
    """Names of the normalisation rules that changed the output."""
    options: FenceOptions | None = None
    """The block's options; None where they could not be read."""


@dataclass(frozen=True, slots=True)
class DiagramRecord:
    """One Mermaid diagram."""

    line: int
    text: str
    printed: bool = False
    """Whether a block printed it."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One thing that a page cites."""

    kind: str
    """`symbol`, `test` or `mutation`."""
    name: str
    line: int
    in_map: bool
    """Whether the front matter names it, so that the production map shows it."""


@dataclass(slots=True)
class PageRecord:
    """Everything a page showed; filled while it is rendered."""

    path: str
    """Repository-relative POSIX path of the source."""
    url: str = ""
    """Site-relative address of the page."""
    examples: list[ExampleRecord] = field(default_factory=list)
    diagrams: list[DiagramRecord] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    """What the page cites."""
    source: str = ""
    """The whole file, as it was scanned."""
    failures: list[Failure] = field(default_factory=list)

    def cited(self, kind: str) -> list[str]:
        """Return the names of one kind that the page cites."""
        return [claim.name for claim in self.claims if claim.kind == kind]


@dataclass(frozen=True, slots=True)
class PageSource:
    """The page that a renderer is working on."""

    path: str
    """Relative to the documentation folder, POSIX."""
    url: str
    docs_dir: Path
    key: object
    """The tool's own object for the page: the same as long as the same page is rendered."""
    meta: dict[str, Any]
    text: str
    """The whole source, front matter included."""


def page_key(md: Markdown) -> object:
    """Return the tool's own object for the page that a Markdown instance renders; None for any other instance."""
    if "relpath" in md.treeprocessors and not hasattr(md, "bookproof_inner"):
        processor: Any = md.treeprocessors["relpath"]
        return processor.file
    if "rendering_context" in md.preprocessors:
        context: Any = md.preprocessors["rendering_context"]
        return context.page
    return None


def find_page(md: Markdown) -> PageSource | None:
    """Return the page that a Markdown instance renders, under MkDocs or Zensical; None for any other instance."""
    key: Any = page_key(md)
    if key is None:
        return None
    if "rendering_context" in md.preprocessors:
        context: Any = md.preprocessors["rendering_context"]
        docs_dir = Path(context.config["docs_dir"])
        text = (docs_dir / key.path).read_text("utf-8-sig")
        return PageSource(str(key.path), str(key.url), docs_dir, key, dict(key.meta), text)
    processor: Any = md.treeprocessors["relpath"]
    meta = dict(key.page.meta) if key.page is not None else {}
    return PageSource(key.src_uri, key.url, Path(processor.config.docs_dir), key, meta, key.content_string)


_FENCE = re.compile(r"(?P<fence>`{3,}|~{3,})(?P<rest>[^\n]*)$")
_PREFIX = re.compile(r"[> ]*")
_MARKER = re.compile(r"(?:[-*+]|\d+[.)])\s+(?=`{3,}|~{3,})")
_LANGUAGE = re.compile(r"[ \t]*\.?(?P<language>[\w#.+-]+)(?=\s|$)")
_OPTION = re.compile(r"""[ \t]*(?P<key>[a-zA-Z]\w*)(?:=(?P<quote>["'])(?P<value>.*?)(?P=quote))?(?=[ \t]|$)""")
_SNIPPET = re.compile(r"""^[ \t>]*-+8<-+(?:[ \t]*|[ \t]+(?:"(?:\\"|[^"])+"|'(?:\\'|[^'])+'))$""")
_SNIPPET_LIKE = re.compile(r"^[ \t>]*-+8<-+(?!\w)")


@lru_cache(maxsize=512)  # several parts of a build ask, and a server asks again in each build
def scan(source: str) -> tuple[Fence, ...]:
    """Return every outermost fence of a Markdown file, in order.

    Fences inside a longer fence are its text. Fences in lists, admonitions, tabs and block quotes are found through
    their prefix. A fence that a renderer would not take for one carries a `problem`.

    Parameters:
        source: The whole file, front matter included.
    """
    lines = source.expandtabs(4).splitlines()
    found: list[Fence] = []
    number = _front_matter_lines(lines)
    while number < len(lines):
        opened = _open(lines[number])
        if opened is None:
            number += 1
            continue
        prefix, fence, rest, problem = opened
        end = _end(lines, number + 1, prefix, fence)
        language, options, trouble = _header(rest)
        if end is None:
            # What follows is looked at again, so that a fence in it which is not shown is told as well.
            found.append(Fence(number + 1, language, options, "", problem or "the fence is never closed"))
            number += 1
            continue
        body = [_strip(line, len(prefix)) for line in lines[number + 1 : end]]
        found.append(Fence(number + 1, language, options, "\n".join(body), problem or trouble))
        number = end + 1
    return tuple(found)


def directives(source: str) -> tuple[tuple[int, str, str], ...]:
    """Return (line, name, argument) of each `<!-- bookproof: name argument -->` outside fences and code spans."""
    return tuple(
        (number, match.group("name"), match.group("argument"))
        for number, line in enumerate(outside_fences(source), start=1)
        for match in DIRECTIVE.finditer(_CODE_SPAN.sub("", line))
    )


def outside_fences(source: str) -> list[str]:
    """Return the lines of a page with those of fences and of the front matter emptied, so that numbers stay true."""
    lines = source.splitlines()
    kept = [""] * _front_matter_lines(lines) + lines[_front_matter_lines(lines) :]
    for fence in scan(source):
        end = fence.line + fence.body.count("\n") + 1
        kept[fence.line - 1 : end + 1] = [""] * len(kept[fence.line - 1 : end + 1])
    return kept


_CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)")
"""A code span: what it holds is text."""
DIRECTIVE = re.compile(r"<!--\s*bookproof:\s*(?P<name>[\w-]*)\s*(?P<argument>[^>]*?)\s*-->")
"""What an author writes where something computed is to stand: the production map, a mutation, a table of evidence."""


def bad_snippets(source: str) -> tuple[tuple[int, str], ...]:
    """Return (line, text) of each snippet directive that would be printed instead of followed."""
    return tuple(
        (number, line.strip())
        for number, line in enumerate(source.splitlines(), start=1)
        if _SNIPPET_LIKE.match(line) and not _SNIPPET.match(line)
    )


def _front_matter_lines(lines: list[str]) -> int:
    if not lines or lines[0].rstrip() != "---":
        return 0
    for number, line in enumerate(lines[1:], start=1):
        if line.rstrip() in {"---", "..."}:
            return number + 1
    return 0


def _open(line: str) -> tuple[str, str, str, str] | None:
    """Return (prefix, fence, rest of the line, problem) if the line opens a fence."""
    match = _PREFIX.match(line)
    prefix = match.group() if match else ""
    rest, problem = line[len(prefix) :], ""
    if marker := _MARKER.match(rest):
        prefix, rest = prefix + " " * marker.end(), rest[marker.end() :]
        problem = "a fence cannot begin on the line of a list marker: put it on the next line, indented"
    opening = _FENCE.match(rest)
    if opening is None:
        return None
    fence, header = opening.group("fence"), opening.group("rest")
    if "`" in header and fence[0] == "`":
        return None  # inline code that happens to begin with three backticks
    return prefix, fence, header, problem


def _end(lines: list[str], start: int, prefix: str, fence: str) -> int | None:
    """Return the index of the closing line; None if what holds the fence ends before it."""
    quoted = ">" in prefix
    for number in range(start, len(lines)):
        match = _PREFIX.match(lines[number])
        own = match.group() if match else ""
        text = lines[number][len(own) :].rstrip()
        if (quoted and ">" not in own) or (text and len(own) < len(prefix.rstrip(" ") if quoted else prefix)):
            return None
        if text and not text.strip(fence[0]) and len(text) >= len(fence) and len(own) <= len(prefix) + 3:
            return number
    return None


def _strip(line: str, width: int) -> str:
    head = line[:width]
    return line[width:] if not head.strip("> ") else line.lstrip("> ")


def _header(rest: str) -> tuple[str, tuple[tuple[str, str], ...], str]:
    """Return (language, options, problem) of what follows the opening fence."""
    match = _LANGUAGE.match(rest)
    language, position = (match.group("language"), match.end()) if match else ("", 0)
    tail = rest[position:].rstrip()
    if tail.lstrip().startswith("{"):
        attributes = re.findall(r"\.([\w+#-]+)", tail)
        language = language or (attributes[0] if attributes else "")
        return language, (), 'options stand as key="value" without braces'
    options: list[tuple[str, str]] = []
    position = 0
    while position < len(tail):
        option = _OPTION.match(tail, position)
        if option is None:
            token = tail[position:].split()[0]
            key, equals, value = token.partition("=")
            hint = f'option {token} is not quoted: write {key}="{value.strip(chr(34) + chr(39))}"'
            return language, tuple(options), hint if equals else f"cannot read {token!r} in the fence's header"
        value = option.group("value")
        options.append((option.group("key"), option.group("key") if value is None else value))
        position = option.end()
    return language, tuple(options), ""


def breakable(name: str) -> str:
    """Return a name as code in HTML, in which a line may break after a separator, and within a word only at need."""
    return "<code>" + _SEPARATOR.sub(r"\g<0><wbr>", escape(name)) + "</code>"


_SEPARATOR = re.compile(r"::|[/._](?=\w)")
