"""Alone: the extension without the plugin, under a tool that renders one page after the other and knows no events.

It promises that what one page can show is checked when that page ends: its examples, its citations with their tests and
mutations, its diagrams. What needs the whole site (links, source pages, the manifest) is left to `bookproof check`.
"""

from __future__ import annotations

from bookproof.article import Article, Facts
from bookproof.book import Book
from bookproof.diagrams import Diagram, NodeError, node_is_off, parse_diagrams
from bookproof.options import Settings
from bookproof.page import PageRecord
from bookproof.proofs import Proofs
from bookproof.provenance import read_tree


def alone(settings: Settings) -> Book:
    """Return a book whose pages are completed, and raise their failures, one by one."""
    book = Book(settings)
    tree = read_tree(settings.root)
    facts = Facts(tree.commit, (*tree.why_draft, "built without the plugin"), sources=False)

    def complete(html: str, record: PageRecord) -> str:
        proofs = Proofs(settings, cached=True)
        try:
            proofs.start(record.cited("test"), record.cited("mutation"))
            article = Article(settings, facts, proofs, proofs.verdicts() if record.claims else None, book.records)
            record.failures.extend(proofs.mutation_failures(proofs.verdicts()) if record.cited("mutation") else ())
            record.failures.extend(parse_diagrams(settings.root, diagrams_of(record)))
            return article.complete(html, record)
        finally:
            proofs.close()

    book.complete = complete
    try:
        book.diagram_class = "bookproof-diagram-source" if node_is_off() else "mermaid"
    except NodeError as error:
        book.failures.append(error.failure)
    return book


def diagrams_of(record: PageRecord) -> list[Diagram]:
    """Return a page's diagrams for Mermaid to read."""
    return [Diagram(record.path, one.line, one.text, one.printed) for one in record.diagrams]
