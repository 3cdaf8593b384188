"""Production map: what a page proves, as HTML, with a link to every line and the verdict of this build.

A verdict is written as a word and never only as a colour, and no test is shown as passed without a result that says so.
Links lead into the site's own source pages; a link to the forge names the exact commit or is not there.

How it is called: one `Links` for each page; `render_production_map` at the page's end, the other functions for inline
roles. `data-bookproof-test` and `data-bookproof-mutation` mark each verdict, for a script that fills it in later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from bookproof.citations import CitedTest, Symbol
from bookproof.mutations import Mutation, MutationResult
from bookproof.page import breakable
from bookproof.sources import blob_url, source_url
from bookproof.verdicts import MutationVerdict, TestResult, TestVerdict


@dataclass(frozen=True, slots=True)
class Links:
    """What the links of one page are made of."""

    base: str = ""
    """From the page to the site's root: empty, or dots and slashes ending in a slash."""
    commit: str = ""
    """The full commit id, when the tree is exactly that; anything else makes no link to the forge."""
    repo_url: str = ""
    """The repository on its forge."""
    api: bool = True
    """Whether mkdocs-autorefs resolves references in this build."""
    sources: bool = True
    """Whether the site carries its source pages."""


@dataclass(frozen=True, slots=True)
class MapRow:
    """A cited mutation with its result, or without one while it is still to come."""

    mutation: Mutation
    result: MutationResult | None = None


def render_symbol_link(symbol: Symbol, links: Links) -> str:
    """Return the symbol's name, linked to its definition."""
    return _link(breakable(symbol.name), symbol.file, symbol.first, links, symbol.signature, "symbol")


def render_test_link(test: CitedTest, links: Links) -> str:
    """Return the test's name, linked to its definition; a tooltip has the whole node id."""
    return _link(breakable(test.name.partition("::")[2]), test.file, test.first, links, test.name, "test")


def render_mutation_link(mutation: Mutation, links: Links, *, href: str = "") -> str:
    """Return the mutation's id, linked to where it is shown, or else to where it is written."""
    content = breakable(mutation.id)
    if href:
        return (
            f'<a class="bookproof-mutation-link" href="{escape(href)}" title="{escape(mutation.title)}">{content}</a>'
        )
    return _link(content, mutation.path, mutation.lines.get("", 0), links, mutation.title, "mutation-link")


def render_test_verdict(name: str, result: TestResult | None) -> str:
    """Return the verdict of a cited test in words.

    Parameters:
        name: The node id.
        result: None while the run is still to come.
    """
    if result is None:
        return _verdict("test", name, "running", "running")
    said = str(result.verdict) + (f": {result.reason}" if result.verdict is not TestVerdict.PASSED else "")
    if result.verdict is TestVerdict.PASSED and result.cases > 1:
        said = f"passed, {result.cases} cases"
    return _verdict("test", name, said, str(result.verdict))


def render_mutation_verdict(name: str, result: MutationResult | None) -> str:
    """Return the verdict of a mutation in words.

    Parameters:
        name: The id.
        result: None while the run is still to come.
    """
    if result is None:
        return _verdict("mutation", name, "running", "running")
    said = str(result.verdict) + (f": {result.detail}" if result.verdict is not MutationVerdict.KILLED else "")
    return _verdict("mutation", name, said, str(result.verdict))


def render_production_map(
    symbols: Sequence[Symbol],
    tests: Sequence[tuple[CitedTest, TestResult | None]],
    mutations: Sequence[MapRow],
    links: Links,
) -> str:
    """Return the tables of what a page cites; an empty text when it cites nothing.

    Parameters:
        symbols: In the order of the page.
        tests: Each with its result in this build, or None while that is still to come.
        mutations: Likewise.
        links: Of this page.
    """
    tables = [
        _table(
            "Code that this page describes",
            ("Definition", "Source", "Reference"),
            [
                (_definition(symbol), _places(symbol.file, symbol.first, symbol.last, links), _api(symbol, links))
                for symbol in symbols
            ],
        ),
        _table(
            "Tests that this build ran",
            ("Test", "Source", "Verdict in this build"),
            [
                (
                    breakable(test.name),
                    _places(test.file, test.first, test.last, links),
                    render_test_verdict(test.name, result),
                )
                for test, result in tests
            ],
        ),
        _table(
            "Changes to the code that a test must catch",
            ("Mutation", "Test", "Verdict in this build"),
            [
                (
                    f"{render_mutation_link(row.mutation, links, href=_figure(row))}: {escape(row.mutation.title)}",
                    breakable(row.mutation.test),
                    render_mutation_verdict(row.mutation.id, row.result),
                )
                for row in mutations
            ],
        ),
    ]
    shown = "".join(tables)
    return f'<div class="bookproof-map">{shown}</div>' if shown else ""


def _table(caption: str, heads: Sequence[str], rows: Sequence[tuple[str, str, str]]) -> str:
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = "".join(
        f'<tr><th scope="row">{first}</th><td>{second}</td><td>{third}</td></tr>' for first, second, third in rows
    )
    return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _figure(row: MapRow) -> str:
    """Return where the page shows a mutation of its map, once it is judged."""
    return f"#mutation-{row.mutation.id}" if row.result is not None else ""


def _definition(symbol: Symbol) -> str:
    summary = f"<br><small>{escape(symbol.summary)}</small>" if symbol.summary else ""
    return f"<code>{escape(symbol.signature)}</code>{summary}"


def _api(symbol: Symbol, links: Links) -> str:
    """Return a reference for mkdocs-autorefs to resolve when all pages are known; it warns when there is no target."""
    if not links.api:
        return breakable(symbol.name)
    return f'<autoref identifier="{escape(symbol.canonical)}">{breakable(symbol.name)}</autoref>'


def _places(file: str, first: int, last: int, links: Links) -> str:
    lines = f"line {first}" if last <= first else f"lines {first} to {last}"
    inside = _link(f"{breakable(file)}, {lines}", file, first, links, "", "source")
    forge = blob_url(links.repo_url, links.commit, file, first, last)
    outside = f' (<a class="bookproof-forge" href="{escape(forge)}">on its forge</a>)' if forge else ""
    return inside + outside


def _link(content: str, file: str, line: int, links: Links, title: str, kind: str) -> str:
    said = f' title="{escape(title)}"' if title else ""
    if not links.sources:
        return f'<span class="bookproof-{kind}" title="Source pages are left out while serving.">{content}</span>'
    return f'<a class="bookproof-{kind}" href="{escape(links.base + source_url(file, line))}"{said}>{content}</a>'


_GLOSSES = {
    "killed": "The test holds for the code as it is and fails on the changed copy: somebody would notice.",
    "survived": "The test holds for the changed copy too: nobody would notice.",
}


def _verdict(kind: str, name: str, said: str, verdict: str) -> str:
    word = verdict.replace(" ", "-")
    gloss = f' title="{_GLOSSES[word]}"' if word in _GLOSSES else ""
    return (
        f'<span class="bookproof-verdict bookproof-verdict--{word}" data-bookproof-{kind}="{escape(name)}"{gloss}>'
        f"{escape(said)}</span>"
    )
