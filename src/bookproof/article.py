"""Article: what is filled into a page when more than the page is known: citations, verdicts, the map, the end.

It promises that a page shows no verdict that this build did not reach, and that every claim which does not hold is a
failure at the claim's line. It runs nothing: `proofs` does.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape, unescape

from bookproof import citations
from bookproof import production_map as html
from bookproof.citations import CitedTest, Symbol
from bookproof.claims import value_of
from bookproof.finish import finish
from bookproof.labs import lab_place
from bookproof.mutations import Mutation, MutationResult, render_mutation, unknown_mutation
from bookproof.options import Settings
from bookproof.page import DIRECTIVE, Claim, Failure, PageRecord, breakable
from bookproof.production_map import Links, MapRow
from bookproof.proofs import Proofs, Verdicts
from bookproof.sources import issue_url, source_url

ROLE_HTML = re.compile(r'<span data-bookproof-role="(?P<kind>\w+)">(?P<name>[^<]*)</span>')
"""What the Markdown extension leaves where a role stands."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What this build knows about itself."""

    commit: str = ""
    """Full commit id; empty where there is no git."""
    drafts: tuple[str, ...] = ()
    """Why the site is only a draft; empty for one that may be published."""
    repo_url: str = ""
    api: bool = False
    """Whether references to API pages are resolved."""
    sources: bool = True
    """Whether the site carries its source pages."""
    evidence: str = ""
    """Site-relative address of the evidence page; empty where there is none."""
    labs_off: str = ""
    """Why there are no labs; empty where there are."""


@dataclass(slots=True)
class Article:
    """Fills in the pages of one build.

    Parameters:
        settings: The site's settings.
        facts: What the build knows about itself.
        proofs: What was collected.
        verdicts: What ran; None while it is still running.
    """

    settings: Settings
    facts: Facts
    proofs: Proofs
    verdicts: Verdicts | None
    records: Mapping[str, PageRecord] = field(default_factory=dict)
    """Every page of the site, for the evidence page."""

    def complete(self, text: str, record: PageRecord, *, edit_url: str = "") -> str:
        """Return a page's HTML with everything filled in; what does not hold is noted in its record.

        Parameters:
            text: The HTML that was rendered.
            record: The page's.
            edit_url: Where the page's source can be edited; empty where it cannot.
        """
        base = posixpath.relpath(".", posixpath.dirname(record.url) or ".")
        links = Links(
            "" if base == "." else f"{base}/",
            "" if self.facts.drafts else self.facts.commit,
            self.facts.repo_url,
            self.facts.api,
            self.facts.sources,
        )
        page = _Page(self, record, links)
        page.resolve()
        text = ROLE_HTML.sub(page.role, text)
        placed: set[str] = set()

        def directive(found: re.Match[str]) -> str:
            placed.add(f"{found['name']} {found['argument']}".strip())
            return page.directive(found["name"], found["argument"])

        text = DIRECTIVE.sub(directive, text)
        rest = [page.figure(name) for name in page.mapped("mutation") if f"mutation {name}" not in placed]
        if "production-map" not in placed:
            rest.append(page.production_map())
        rest.append(self.end(record, links, edit_url))
        return finish("\n".join((text, *filter(None, rest))), self.settings.plain_tokens)

    def end(self, record: PageRecord, links: Links, edit_url: str = "") -> str:
        """Return what closes a page: the commit, how many examples ran, and the ways to evidence, source and edits."""
        facts = self.facts
        count = {status: sum(one.status == status for one in record.examples) for status in ("passed", "absent", "off")}
        commit = f"Commit <code>{facts.commit[:12]}</code>" if facts.commit else "No commit"
        run = {0: "", 1: "1 example run"}.get(count["passed"], f"{count['passed']} examples run")
        parts = [commit, run or ("no example run" if record.examples else "no examples on this page")]
        if count["absent"]:
            parts.append(f"{count['absent']} not run on this host")
        if count["off"]:
            parts.append(f"{count['off']} shown without being run")
        if facts.evidence:
            parts.append(f'<a href="{escape(links.base + facts.evidence)}">Evidence</a>')
        if facts.sources:
            parts.append(f'<a href="{escape(links.base + source_url(record.path))}">Source of this page</a>')
        if edit_url:
            parts.append(f'<a href="{escape(edit_url)}" rel="edit">Edit this page</a>')
        if issue := issue_url(facts.repo_url, record.path, facts.commit):
            parts.append(f'<a href="{escape(issue)}">Report a mistake</a>')
        draft = ""
        if facts.drafts:
            draft = f'<p class="bookproof-draft"><strong>Draft</strong>: {escape("; ".join(facts.drafts))}.</p>'
        return f'<footer class="bookproof-end">{draft}<p>{" · ".join(parts)}</p></footer>'


@dataclass(slots=True)
class _Page:
    """One page's citations, resolved."""

    article: Article
    record: PageRecord
    links: Links
    symbols: dict[str, Symbol] = field(default_factory=dict)
    tests: dict[str, CitedTest] = field(default_factory=dict)
    mutations: dict[str, Mutation] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)

    def resolve(self) -> None:
        """Look up every claim; note those that do not hold."""
        declared = {mutation.id: mutation for mutation in self.article.proofs.declared}
        for claim in self.record.claims:
            failure: Failure | None = None
            if claim.kind == "symbol":
                failure = self._symbol(claim)
            elif claim.kind == "test":
                failure = self._test(claim)
            elif claim.kind == "value":
                failure = self._value(claim)
            elif claim.name in declared:
                self.mutations[claim.name] = declared[claim.name]
            else:
                failure = Failure(self.record.path, claim.line, unknown_mutation(claim.name, declared))
            if failure is not None:
                self.record.failures.append(failure)

    def _symbol(self, claim: Claim) -> Failure | None:
        found = self.article.proofs.symbol(claim.name, self.record.path, claim.line)
        if isinstance(found, Failure):
            return found
        self.symbols[claim.name] = found
        return None

    def _test(self, claim: Claim) -> Failure | None:
        found = citations.test(self.article.proofs.index(), claim.name, self.record.path, claim.line)
        if isinstance(found, Failure):
            return found
        self.tests[claim.name] = found
        verdicts = self.article.verdicts
        result = verdicts.tests.get(claim.name) if verdicts is not None else None
        return None if result is None else citations.test_failure(result, self.record.path, claim.line)

    def _value(self, claim: Claim) -> Failure | None:
        value, wrong = value_of(claim.name, self.record.examples)
        example = claim.name.partition(":")[0].strip()
        if wrong and any(one.id == example and one.status == "failed" for one in self.record.examples):
            return None  # told where it failed
        self.values[claim.name] = value
        return Failure(self.record.path, claim.line, wrong) if wrong else None

    def mapped(self, kind: str) -> list[str]:
        """Return the names that the front matter cites and that hold, without repetition."""
        known = {"symbol": [*self.symbols], "test": [*self.tests], "mutation": [*self.mutations]}[kind]
        names = [claim.name for claim in self.record.claims if claim.kind == kind and claim.in_map]
        return [name for name in dict.fromkeys(names) if name in known]

    def role(self, found: re.Match[str]) -> str:
        """Return the link of an inline role."""
        kind, name = found["kind"], unescape(found["name"])
        if kind == "symbol" and name in self.symbols:
            return html.render_symbol_link(self.symbols[name], self.links)
        if kind == "test" and name in self.tests:
            return f"{html.render_test_link(self.tests[name], self.links)}: {self._test_verdict(name)}"
        if kind == "mutation" and name in self.mutations:
            mutation = self.mutations[name]
            verdict = html.render_mutation_verdict(name, self._mutation_result(name))
            return f"{html.render_mutation_link(mutation, self.links)}: {verdict}"
        if value := self.values.get(name):
            example = escape(name.partition(":")[0].strip())
            title = f"Printed by the example {example} of this page"
            return f'<a class="bookproof-value" href="#example-{example}" title="{title}">{escape(value)}</a>'
        return f"<code>{escape(name)}</code>"

    def directive(self, name: str, argument: str) -> str:
        """Return what a directive stands for."""
        if name == "production-map":
            return self.production_map()
        if name == "mutation":
            return self.figure(argument)
        if name == "agree":
            return self.lab("agree", "agree")
        if name == "evidence":
            return _evidence(self.article, self.links)
        return ""

    def figure(self, name: str) -> str:
        """Return a mutation with its diff, its test and the line that caught it."""
        mutation, result = self.mutations.get(name), self._mutation_result(name)
        if mutation is None:
            return ""
        if result is None:
            verdict = html.render_mutation_verdict(name, None)
            link = html.render_mutation_link(mutation, self.links)
            return f'<p class="bookproof-mutation-pending">{link}: {verdict}</p>'
        href = self.links.base + source_url(result.file, result.line) if result.file and self.links.sources else ""
        lab = "" if self.article.facts.labs_off else self.lab("mutation", name)
        if lab and not mutation.browser:
            lab = f'<p class="bookproof-note">Not in a browser: {escape(mutation.why)}</p>'
        return render_mutation(result, failing_href=href, lab=lab)

    def lab(self, kind: str, name: str) -> str:
        """Return the place of a lab."""
        page = self.record.path.removeprefix(f"{self.article.settings.docs}/")
        return lab_place(kind, name, page, self.article.facts.labs_off)

    def production_map(self) -> str:
        """Return the tables of what the front matter cites."""
        verdicts = self.article.verdicts
        return html.render_production_map(
            [self.symbols[name] for name in self.mapped("symbol")],
            [(self.tests[name], verdicts.tests.get(name) if verdicts else None) for name in self.mapped("test")],
            [MapRow(self.mutations[name], self._mutation_result(name)) for name in self.mapped("mutation")],
            self.links,
        )

    def _test_verdict(self, name: str) -> str:
        verdicts = self.article.verdicts
        return html.render_test_verdict(name, verdicts.tests.get(name) if verdicts else None)

    def _mutation_result(self, name: str) -> MutationResult | None:
        verdicts = self.article.verdicts
        return verdicts.mutations.get(name) if verdicts is not None else None


def _evidence(article: Article, links: Links) -> str:
    """Return what was run for this commit, with counts."""
    records = list(article.records.values())
    examples = [one for record in records for one in record.examples]
    verdicts = article.verdicts
    tests = sorted(verdicts.tests.items()) if verdicts else []
    mutations = list(verdicts.mutations.items()) if verdicts else []
    counts = (
        ("Examples run", sum(one.status == "passed" for one in examples)),
        ("Examples not run on this host", sum(one.status == "absent" for one in examples)),
        ("Blocks shown without being run", sum(one.status == "off" for one in examples)),
        ("Diagrams parsed", sum(len(record.diagrams) for record in records)),
        ("Cited tests run", len(tests)),
        ("Mutations run", len(mutations)),
    )
    parts = [_rows("What this build ran", ("What", "Count"), [(name, str(count)) for name, count in counts])]
    per_page = [
        (
            f'<a href="{escape(links.base + record.url)}">{escape(record.path)}</a>',
            str(sum(one.status == "passed" for one in record.examples)),
        )
        for record in records
        if record.examples
    ]
    parts.append(_rows("Examples by page", ("Page", "Run"), per_page))
    shown = [(breakable(name), html.render_test_verdict(name, result)) for name, result in tests]
    parts.append(_rows("Cited tests", ("Test", "Verdict"), shown))
    killed = [
        (html.render_mutation_link(result.mutation, links), html.render_mutation_verdict(name, result))
        for name, result in mutations
    ]
    parts.append(_rows("Mutations", ("Mutation", "Verdict"), killed))
    return f'<div class="bookproof-evidence">{"".join(parts)}</div>'


def _rows(caption: str, heads: tuple[str, str], rows: Iterable[tuple[str, str]]) -> str:
    body = "".join(f'<tr><th scope="row">{first}</th><td>{second}</td></tr>' for first, second in rows)
    if not body:
        return ""
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
