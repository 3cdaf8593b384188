"""Diagram text: what a Mermaid diagram says, in words, for whoever does not see it.

It promises that every message, note, relation and attribute of a sequence or entity diagram stands in the list, in
order, under the names that the picture shows. Of any other kind it shows the source, which is text as well.
"""

from __future__ import annotations

import re
from html import escape

_PARTICIPANT = re.compile(r"(?:participant|actor)\s+(?P<id>\S+)(?:\s+as\s+(?P<name>.+))?$")
_MESSAGE = re.compile(r"(?P<from>\w+)\s*(?:<<)?-{1,2}(?P<kind>>>|>|x|\))\s*[+-]?(?P<to>\w+)\s*:\s*(?P<text>.*)$")
_NOTE = re.compile(r"(?i:note)\s+(?P<where>over|left of|right of)\s+(?P<who>[\w, ]+?)\s*:\s*(?P<text>.*)$")
_RELATION = re.compile(
    r'(?P<from>\w+)\s+(?P<left>[|}]\S)(?:--|\.\.)(?P<right>\S[|{])\s+(?P<to>\w+)\s*:\s*"?(?P<text>[^"]*)"?$'
)
_MANY = {"||": "one", "|o": "at most one", "o|": "at most one", "}o": "any number of", "o{": "any number of"} | {
    "}|": "at least one",
    "|{": "at least one",
}


def diagram_text(source: str) -> str:
    """Return a fold that says in words what a diagram shows.

    Parameters:
        source: Mermaid's text.
    """
    lines = [line.strip() for line in source.strip().splitlines()]
    kind = lines[0] if lines else ""
    said = _sequence(lines[1:]) if kind == "sequenceDiagram" else _entities(lines[1:]) if kind == "erDiagram" else []
    if said:
        body = f"<ol>{''.join(f'<li>{one}</li>' for one in said)}</ol>"
    else:
        body = f'<pre tabindex="0"><code>{escape(source.strip(), quote=False)}</code></pre>'
    return f'<details class="bookproof-diagram-text"><summary>The diagram as text</summary>{body}</details>'


def _sequence(lines: list[str]) -> list[str]:
    names: dict[str, str] = {}
    said = []
    for line in lines:
        if found := _PARTICIPANT.match(line):
            names[found["id"]] = _plain(found["name"] or found["id"])
        elif found := _MESSAGE.match(line):
            who, whom = (names.get(found[part], found[part]) for part in ("from", "to"))
            said.append(f"{who} to {whom}: {_plain(found['text'])}")
        elif found := _NOTE.match(line):
            about = ", ".join(names.get(one.strip(), one.strip()) for one in found["who"].split(","))
            said.append(f"Note at {about}: {_plain(found['text'])}")
        elif line and not line.startswith("%%"):
            return []  # loops, alternatives: a list would lose them
    return said


def _entities(lines: list[str]) -> list[str]:
    said: list[str] = []
    within = ""
    attributes: list[str] = []
    for line in lines:
        if found := _RELATION.match(line):
            one, other = _MANY.get(found["left"], found["left"]), _MANY.get(found["right"], found["right"])
            said.append(f"{one} {_plain(found['from'])} to {other} {_plain(found['to'])}, by {_plain(found['text'])}")
        elif line.endswith("{"):
            within, attributes = line.rstrip("{ "), []
        elif line == "}":
            said.append(f"{_plain(within)}: {'; '.join(attributes)}")
            within = ""
        elif within:
            attributes.append(_plain(line))
        elif line:
            return []
    return said


def _plain(text: str) -> str:
    return escape(" ".join(re.sub(r"<br\s*/?>", " ", text).split()), quote=False)
