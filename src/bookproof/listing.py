"""Listing: the highlighted lines of a source file.

It promises that every line of a file stands on the line with its number, that no text of a file becomes markup, and
that the same text gives the same bytes. Python is read by the standard library's `tokenize`, several times as fast as
Pygments, which reads what is not Python: a site shows all of its sources, and a build waits for it.

Run as a script, it reads pairs of name and text as JSON and writes their listings.
"""

from __future__ import annotations

import builtins
import io
import json
import keyword
import sys
import tokenize
from collections.abc import Iterator
from html import escape

COLOURS = ("keyword", "string", "number", "name", "builtin", "comment")
"""Classes of the coloured parts."""
_DEFINES = {"def", "class"}
_BUILTINS = {name for name in dir(builtins) if not name.startswith("_")} | {"self", "cls"}
_KINDS = {tokenize.COMMENT: "comment", tokenize.NUMBER: "number", tokenize.STRING: "string"} | {
    getattr(tokenize, name): "string"
    for name in ("FSTRING_START", "FSTRING_MIDDLE", "FSTRING_END")
    if hasattr(tokenize, name)
}

Part = tuple[int, int, int, str]
"""Line from 0, first column, column after the last, colour."""


def listing(file: str, text: str) -> str:
    """Return the lines of a file, highlighted if it is Python or TOML.

    Parameters:
        file: Its name, which says what it is written in.
        text: Its content.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if not lines[-1]:
        lines.pop()
    try:
        read = {"py": _python, "toml": _toml}.get(file.rpartition(".")[2])
        parts = list(read(lines)) if read else []  # a page's Markdown is prose: it needs no colours
    except (tokenize.TokenError, SyntaxError, ValueError):
        parts = []  # no Python: shown as it is
    by_line: dict[int, list[Part]] = {}
    for part in parts:
        by_line.setdefault(part[0], []).append(part)
    # Numbers are drawn by the stylesheet, so that copying takes the code only; the links stay out of the tab order.
    numbered = "".join(
        f'<span class="line" id="L{number}">'
        f'<a href="#L{number}" data-n="{number}" tabindex="-1" aria-hidden="true"></a>'
        f"{_coloured(line, by_line.get(number - 1, []))}\n</span>"
        for number, line in enumerate(lines, 1)
    )
    return f'<pre tabindex="0" role="region" aria-label="{escape(file)}"><code>{numbered}</code></pre>'


def _coloured(line: str, parts: list[Part]) -> str:
    shown, at = [], 0
    for _, start, end, colour in parts:
        shown.append(f'{escape(line[at:start])}<span class="{colour}">{escape(line[start:end])}</span>')
        at = end
    return "".join([*shown, escape(line[at:])])


def _python(lines: list[str]) -> Iterator[Part]:
    before = ""
    for kind, text, start, end, _ in tokenize.generate_tokens(io.StringIO("\n".join(lines) + "\n").readline):
        colour = _KINDS.get(kind, "")
        if kind == tokenize.NAME:
            if before in _DEFINES:
                colour = "name"
            elif keyword.iskeyword(text):
                colour = "keyword"
            elif text in _BUILTINS and before != ".":
                colour = "builtin"
        before = text
        if colour:
            yield from _per_line(lines, start, end, colour)


def _per_line(lines: list[str], start: tuple[int, int], end: tuple[int, int], colour: str) -> Iterator[Part]:
    """Yield a part for each line that a token runs over."""
    for row in range(start[0], end[0] + 1):
        first = start[1] if row == start[0] else 0
        last = end[1] if row == end[0] else len(lines[row - 1])
        if first < last:
            yield row - 1, first, last, colour


def _toml(lines: list[str]) -> Iterator[Part]:
    from pygments.lexers import TOMLLexer
    from pygments.token import Comment, Keyword, Name, Number, String

    kinds = {Comment: "comment", Keyword: "keyword", Name.Tag: "keyword", Number: "number", String: "string"}
    row, column = 1, 0
    for token, value in TOMLLexer(stripnl=False, ensurenl=False).get_tokens("\n".join(lines)):
        *others, last = value.split("\n")
        end = (row + len(others), len(last) if others else column + len(last))
        colour = next((name for kind, name in kinds.items() if token in kind), "")
        if colour:
            yield from _per_line(lines, (row, column), end, colour)
        row, column = end


if __name__ == "__main__":
    json.dump([listing(file, text) for file, text in json.load(sys.stdin)], sys.stdout)
