"""Committed outputs: the normalised output of every example as text, so that a changed result shows in a review.

One file per page, one entry per example. It promises that writing and reading are inverse, so that a difference is a
difference of output. It never decides to rewrite a file: `bookproof accept` does.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from bookproof.page import ExampleRecord, Failure

_LONG = 160
"""Characters, more than a line of prose or code has."""
_HEAD = "=== "
_INDENT = "    "
_NO_NEWLINE = "--- no newline at the end"


@dataclass(frozen=True, slots=True)
class Entry:
    """One example's committed output."""

    line: int
    """1-based line of the entry's heading in its file."""
    output: str


def outputs_name(page: str) -> str:
    """Return the file name for a page: `lessons/x.md` has `lessons/x.txt`."""
    return page.removesuffix(".md") + ".txt"


def write(outputs: Mapping[str, str]) -> str:
    """Return the text of a file that holds these outputs, by example id, in order."""
    parts = []
    for name, output in outputs.items():
        lines = output.removesuffix("\n").split("\n") if output else []
        body = "".join(f"{_INDENT}{line}\n" if line else "\n" for line in lines)
        parts.append(f"{_HEAD}{name}\n{body}" + (f"{_NO_NEWLINE}\n" if output and not output.endswith("\n") else ""))
    return "\n".join(parts)


def read(text: str) -> dict[str, Entry]:
    """Return the entries of a file by example id; the inverse of `write`."""
    entries: dict[str, Entry] = {}
    name, start, body, newline = "", 0, list[str](), True

    def close() -> None:
        if name:
            if body and not body[-1]:
                body.pop()  # the line that separates entries
            entries[name] = Entry(start, "\n".join(body) + ("\n" if body and newline else ""))

    for number, line in enumerate(text.split("\n"), start=1):
        if line.startswith(_HEAD):
            close()
            name, start, body, newline = line.removeprefix(_HEAD), number, [], True
        elif line == _NO_NEWLINE:
            newline = False
        else:
            body.append(line.removeprefix(_INDENT))
    close()
    return entries


def compare(
    path: str,
    file: str,
    text: str | None,
    examples: Iterable[ExampleRecord],
    hint: Callable[[str, str], str] = lambda _committed, _new: "",
) -> list[Failure]:
    """Return how a page's outputs differ from the committed ones.

    Parameters:
        path: The page, repository-relative.
        file: The file of outputs, repository-relative.
        text: Its content; None when there is none.
        examples: What the page showed in this build.
        hint: Says what a difference may be due to, from the committed and the new output.
    """
    committed = read(text or "")
    examples = list(examples)
    page = file.rpartition("/")[2].removesuffix(".txt")
    failures = []
    for example in examples:
        entry = committed.pop(example.id, None)
        if example.status != "passed":
            continue
        if entry is None:
            told = f"example {example.id} has no committed output: run `bookproof accept {page}`"
            failures.append(Failure(path, example.line, told))
        elif entry.output != example.output:
            before, after = _lines(entry.output), _lines(example.output)
            diff = "\n".join(difflib.unified_diff(before, after, f"{file}:{entry.line}", "this build", "", "", 2, ""))
            told = f"the output of example {example.id} changed{hint(entry.output, example.output)}\n{diff}"
            failures.append(Failure(path, example.line, told))
    failures += [
        Failure(file, entry.line, f"no example of {path} has the id {name}: run `bookproof accept {page}`")
        for name, entry in committed.items()
    ]
    return failures


def _lines(output: str) -> list[str]:
    """Return an output's lines for a diff; a long one, such as that of a figure, is broken between its elements."""
    broken = (re.sub("(?<=>)(?=<)", "\n", line) if len(line) > _LONG else line for line in output.split("\n"))
    return "\n".join(broken).split("\n")
