"""Finish: what the HTML of a page still needs before every reader can use it.

It promises that each header cell says what it heads, that each table has a caption, that each link to a heading is
named for it, that what a reader copies from a console is its commands alone, and that no browser lays out an element
for a token that looks like the text around it. It reads the HTML that the renderer wrote, as text, and leaves
everything else as it is, byte for byte.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from html import escape, unescape

_HEADING = re.compile(r"<h[1-6][^>]*>(?P<text>.*?)</h[1-6]>", re.DOTALL)
_PERMALINK = re.compile(r'<a\b[^>]*\bclass="headerlink"[^>]*>.*?</a>', re.DOTALL)
_CONSOLE = re.compile(
    r'(<div[^>]*class="[^"]*\blanguage-(?:console|pycon)\b[^"]*"[^>]*>\s*<pre>(?:<span></span>)?)<code>(.*?)</code>',
    re.DOTALL,
)
_PROMPTS = {"$ ": "> ", ">>> ": "... "}
"""What a command begins with, and what each further line of it begins with."""
_PIECE = re.compile(
    r"(?P<heading><h[1-6][^>]*>.*?</h[1-6]>)"
    r'|<div class="bookproof-example[^"]*" id="(?:example-)?(?P<example>[^"]*)"'
    r'|<span class="doc-section-title">(?P<section>[^<]*)</span>'
    r"|(?P<table><table>\s*(?P<captioned><caption)?)",
    re.DOTALL,
)
_TABLE = re.compile(r"<table\b.*?</table>", re.DOTALL)
_HEAD = re.compile(r"<thead>.*?</thead>", re.DOTALL)
_EMPTY_TH = re.compile(r"<th\b[^>]*></th>")
_CODE = re.compile(r"<code\b[^>]*>.*?</code>", re.DOTALL)
_PLAIN_TH = re.compile(r"<th(?=[ >])(?![^>]*\bscope=)")


def finish(html: str, plain_tokens: Sequence[str] = ()) -> str:
    """Return a page's HTML with scopes, captions, named permalinks and copied commands.

    Parameters:
        html: As it was rendered.
        plain_tokens: Pygments' short names of tokens that need no element in code, such as `w`, a blank.
    """
    html = _TABLE.sub(lambda found: _scoped(found[0]), html)
    if plain_tokens:
        token = re.compile(f'<span class="(?:{"|".join(map(re.escape, plain_tokens))})">([^<]*)</span>')
        html = _CODE.sub(lambda found: token.sub(r"\1", found[0]), html)
    return _CONSOLE.sub(_copied, _HEADING.sub(_named, _captioned(html)))


def commands(text: str) -> str:
    """Return the commands of a console's transcript, without prompts and output.

    Parameters:
        text: As it is shown.

    Returns:
        One command after the other; everything where nothing looks like a prompt.
    """
    found: list[str] = []
    further = ""
    for line in text.splitlines():
        prompt = next((one for one in _PROMPTS if line.startswith(one)), "")
        if prompt:
            further = _PROMPTS[prompt]
            found.append(line.removeprefix(prompt))
        elif further and line.startswith(further):
            found.append(line.removeprefix(further))
        else:
            further = ""
    return "\n".join(found) or text.rstrip()


def _scoped(table: str) -> str:
    table = _EMPTY_TH.sub("<td></td>", table)  # a corner heads nothing
    table = _HEAD.sub(lambda found: _PLAIN_TH.sub('<th scope="col"', found[0]), table)
    return _PLAIN_TH.sub('<th scope="row"', table)


def _captioned(html: str) -> str:
    """Give each table without a caption one that is made of what stands above it: heading, section, example."""
    above, section, used = "", "", Counter[str]()

    def piece(found: re.Match[str]) -> str:
        nonlocal above, section
        if found["heading"]:
            above, section = _words(found["heading"]), ""
        elif found["section"]:
            section = found["section"].strip().rstrip(":")
        elif found["example"]:
            section = f"printed by {found['example']}"
        elif found["table"] and not found["captioned"]:
            name = ": ".join(filter(None, (above, section))) or "Table"
            used[name] += 1
            number = f" ({used[name]})" if used[name] > 1 else ""
            return f'{found[0]}<caption class="bookproof-caption">{escape(name + number, quote=False)}</caption>'
        return found[0]

    return _PIECE.sub(piece, html)


def _named(heading: re.Match[str]) -> str:
    label = escape(f"Link to the section {_words(heading[0])}")
    return _PERMALINK.sub(
        lambda link: link[0].replace('class="headerlink"', f'class="headerlink" aria-label="{label}"', 1),
        heading[0],
    )


def _copied(block: re.Match[str]) -> str:
    text = unescape(re.sub(r"<[^>]*>", "", block[2]))
    copied = escape(commands(text)).replace("\n", "&#10;")
    return f'{block[1]}<code data-copy="{copied}">{block[2]}</code>'


def _words(heading: str) -> str:
    """Return the words of a heading, without its permalink."""
    text = re.sub(r"<[^>]*>", "", _PERMALINK.sub("", heading))
    return " ".join(unescape(text).split())
