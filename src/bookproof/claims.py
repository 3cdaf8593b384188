"""Claims: what a page says it proves, in its front matter and in its text.

It promises that every claim is found with the line where it is made; whether it is true is judged elsewhere. The front
matter lists `symbols`, `tests` and `mutation` (one id or a list); in the text a claim is a role: {symbol}, {test},
{mutation} or {value}, followed by a name between backticks. The name of a value is that of an example of the page and
of what it printed: `id: key`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bookproof.page import Claim, ExampleRecord, Failure, directives, outside_fences

ROLE = re.compile(r"\{(?P<kind>symbol|test|mutation|value)\}`(?P<name>[^`\n]+)`")
"""How a claim is written in a sentence."""
ROLE_LIKE = re.compile(r"\{(?P<kind>\w+)\}`[^`\n]+`")
LONG_CODE = re.compile(r"(?<!`)(``+)(?!`).+?(?<!`)\1(?!`)")
"""A code span between two or more backticks, in which a page can show how a role is written."""
_KEYS = {"symbols": "symbol", "tests": "test", "mutation": "mutation"}
_NEAR = {"symbol": "symbols", "test": "tests", "mutations": "mutation"}


def claims(path: str, source: str, meta: Mapping[str, Any]) -> tuple[tuple[Claim, ...], tuple[Failure, ...]]:
    """Return what a page cites, in order, and what is wrong with the way it says so.

    Parameters:
        path: The page, repository-relative.
        source: The whole file.
        meta: Its front matter, parsed.
    """
    found: list[Claim] = []
    failures: list[Failure] = []
    for key, kind in _KEYS.items():
        names = meta.get(key, [])
        names = [names] if isinstance(names, str) else names
        if not isinstance(names, list) or not all(isinstance(name, str) and name.strip() for name in names):
            failures.append(Failure(path, _line(source, f"{key}:"), f"front matter: {key} is a list of names"))
            continue
        found += [Claim(kind, name, _line(source, name), in_map=True) for name in names]
    failures += [
        Failure(path, _line(source, f"{key}:"), f"front matter: write {proper}, not {key}")
        for key, proper in _NEAR.items()
        if key in meta
    ]
    found += [
        Claim("mutation", argument, number, in_map=False)
        for number, name, argument in directives(source)
        if name == "mutation" and argument
    ]
    for number, written in enumerate(outside_fences(source), start=1):
        line = LONG_CODE.sub("", written)
        found += [Claim(match["kind"], match["name"], number, in_map=False) for match in ROLE.finditer(line)]
        failures += list(_misspelt(path, number, line))
    return tuple(found), tuple(failures)


def value_of(name: str, records: Iterable[ExampleRecord]) -> tuple[str, str]:
    """Return what an example of a page printed for a key, and what is wrong; one of them is empty.

    The key stands before `=` or `: `, or is a cell of a table whose next cell is the value. Where it stands more than
    once, all its values must be the same.

    Parameters:
        name: `id: key`, as the role says it.
        records: The examples of the page.
    """
    example, _, key = (part.strip() for part in name.partition(":"))
    record = next((one for one in records if one.id == example), None)
    if not key:
        return "", f"a value is named by an example and a key, such as `setup: rows`, not {name!r}"
    if record is None or record.status == "off":
        return "", f"no example {example!r} ran on this page"
    if record.status == "absent":
        return "not computed on this host", ""
    start = rf"(?<![\w.-]){re.escape(key)}"
    found = re.findall(rf"{start}=([^\s,;|)]+)|{start}: +(\S.*?)(?=  |[,;]|$)", record.output, re.MULTILINE)
    cells = re.findall(rf"^\|(?:.*\|)? *{re.escape(key)} *\| *(.*?) *\|", record.output, re.MULTILINE)
    values = {*map("".join, found), *cells}
    if len(values) == 1:
        return values.pop(), ""
    told = "nothing" if not values else "several values: " + ", ".join(sorted(values))
    return "", f"example {example!r} printed {told} for {key!r}"


def _misspelt(path: str, number: int, line: str) -> Iterator[Failure]:
    for match in ROLE_LIKE.finditer(line):
        if not ROLE.match(match.group()):
            kind = match["kind"]
            yield Failure(
                path, number, f"unknown role {{{kind}}}: known are {{symbol}}, {{test}}, {{mutation}} and {{value}}"
            )


def _line(source: str, text: str) -> int:
    """Return the line of the front matter that holds a text as a whole word; its first line where none does."""
    whole = re.compile(rf"(?<![\w./:-]){re.escape(text)}(?![\w./:\[-])")
    lines = source.splitlines()
    for number, line in enumerate(lines[1:], start=2):
        if line.rstrip() in {"---", "..."}:
            break
        if whole.search(line):
            return number
    return 1
