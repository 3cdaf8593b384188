"""Build: what one run of MkDocs does for a book, in the order in which the plugin's events ask for it.

It promises that everything it shows or records belongs to this build. It decides neither when a step comes nor what
becomes of failures: the plugin does.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.utils.meta import get_data

from bookproof.alone import diagrams_of
from bookproof.article import Article, Facts
from bookproof.book import Book
from bookproof.check import Origin, check_site
from bookproof.claims import claims
from bookproof.compiled import compile_sources
from bookproof.diagrams import (
    Cut,
    NodeError,
    copy_mermaid,
    copy_node_files,
    cut_other_hosts,
    find_node,
    node_is_off,
    parse_diagrams,
)
from bookproof.host import known_facts
from bookproof.imports import Imports
from bookproof.labs import UNPINNED, has_labs, lab_mutations, labs_off, write_labs
from bookproof.mutations import Mutation
from bookproof.options import Settings
from bookproof.page import Failure, PageRecord
from bookproof.proofs import Proofs, Verdicts
from bookproof.provenance import compose, environment, lock_digest, page_entry, read_tree, refusals, set_epoch, write
from bookproof.served import Served
from bookproof.sources import Listings, write_source_pages


class Build:
    """One run of MkDocs.

    Parameters:
        settings: The site's settings.
        config: MkDocs' configuration.
        served: What a server knows from build to build, where the site is only shown to its author.
    """

    def __init__(self, settings: Settings, config: MkDocsConfig, served: Served | None = None) -> None:
        self._settings = settings
        self._config = config
        self._serving = served is not None
        accepting = "BOOKPROOF_ACCEPT" in os.environ
        self._cached = not (accepting or "SITE_COMMIT" in os.environ)
        self._tree = read_tree(settings.root, ignore=[Path(config.site_dir)])
        self.refused = refusals(self._tree)
        set_epoch(self._tree)
        self.book = Book(settings, collecting=True, accepting=accepting, cached=self._cached, served=served)
        self.imports = Imports(settings.root / settings.src, self.book.cache("imports"))
        """Which files of the packages depend on which."""
        self.node_off = self._node_off()
        self.labs: list[tuple[PageRecord, list[Mutation]]] = []
        """Every page with a lab, and the mutations that its reader may try."""
        self.book.labs_off = self._labs_off()
        self.node_files: dict[str, str] = {}
        """Site-relative path of each file that is taken from an installed package of node, and its path there."""
        self.cited: tuple[str, ...] = ()
        """Node ids of every cited test."""
        self._proofs: Proofs | None = None
        self._verdicts: Verdicts | None = None
        self._origins: dict[str, Origin] = {}
        self._cuts: list[Cut] = []
        self._node = "off" if self.node_off else None
        self._drafts: tuple[str, ...] = ()
        self._listings: Listings | None = None

    def start(self, files: Files) -> None:
        """Begin what runs beside the rendering of the pages."""
        if not self._serving:  # a server watches the folder, and would take what is written there for an edit
            compile_sources(self._settings.root, (self._settings.src,))
        texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
        self.book.run_ahead({f"{self._settings.docs}/{name}": text for name, text in texts.items()})
        if self.book.accepting:
            return
        tests = set()
        for name, text in texts.items():
            found, _ = claims(name, text, get_data(text)[1])
            tests |= {claim.name for claim in found if claim.kind == "test"}
        self.cited = tuple(sorted(tests))
        self._proofs = Proofs(self._settings, cached=self._cached, serving=self._serving, imports=self.imports)
        self._proofs.start(self.cited, run=not self._serving)

    def read(self, modules: Any) -> None:
        """Take packages that griffe has read for another plugin, so that they need not be read once more."""
        if self._proofs is not None:
            self._proofs.modules = modules

    def complete(self, files: Files) -> None:
        """Fill in every page, now that all have run."""
        book, proofs = self.book, self._proofs
        book.close()
        if proofs is None:
            return
        if not self._serving:
            self._listings = Listings(self._settings.root, self._folders(), book.cache("sources"))
        parsed = self._parse()
        self._verdicts = None if self._serving else proofs.verdicts()
        if self._verdicts is not None:
            book.failures.extend(proofs.mutation_failures(self._verdicts))
        self._drafts = self._why_draft()
        article = Article(self._settings, self._facts(files), proofs, self._verdicts, book.records)
        for file in files.documentation_pages():
            record = book.records.get(f"{self._settings.docs}/{file.src_uri}")
            if record is None or file.page is None or file.page.content is None:
                continue
            file.page.content = article.complete(file.page.content, record, edit_url=file.page.edit_url or "")
            if has_labs(file.page.content):
                names = lab_mutations(file.page.content)
                self.labs.append((record, [one for one in proofs.declared if one.id in names]))
            printed = tuple((one.line, one.output) for one in record.examples)
            self._origins[file.dest_uri] = Origin(record.path, record.source, printed)
        book.failures.extend(parsed.result())

    def finish(self, config: MkDocsConfig) -> None:
        """Write what stands outside the pages, and check the site that is there now."""
        site = Path(config.site_dir)
        settings = self._settings
        if not self._serving:
            commit = "" if self._drafts else self._tree.commit
            write_source_pages(
                settings.root,
                site,
                commit,
                folders=self._folders(),
                repo_url=config.repo_url or "",
                site_name=config.site_name,
                listings=self._listings,
            )
        try:
            copy_node_files(settings.root, site, self.node_files)
            if any(record.diagrams for record in self.book.records.values()):
                copy_mermaid(settings.root, site)
            if self.labs:
                write_labs(site, settings, self.labs, cache=self.book.cache_folder("labs"))
        except NodeError as error:
            self.book.failures.append(error.failure)
        self._cuts = cut_other_hosts(site)
        if not self._serving:
            cache = self.book.cache("check")
            failures = check_site(site, site_url=config.site_url, sources=self._origins, cache=cache)
            self.book.failures.extend(failures)

    def write_provenance(self, config: MkDocsConfig) -> None:
        """Write the manifest; nothing may touch the site afterwards."""
        settings, verdicts = self._settings, self._verdicts or Verdicts()
        by_path = {origin.path: file for file, origin in self._origins.items()}
        pages = {
            path: page_entry(record, by_path[path]) for path, record in self.book.records.items() if path in by_path
        }
        config_file = Path(config.config_file_path or "mkdocs.yml").resolve()
        within = config_file.is_relative_to(settings.root)
        document = compose(
            self._tree,
            environment=environment(node=self._node, host=known_facts(settings.host_facts)),
            lock=lock_digest(settings.root),
            site_url=config.site_url or "",
            config_file=config_file.relative_to(settings.root).as_posix() if within else config_file.name,
            src=settings.src,
            pages=pages,
            tests={name: {"verdict": str(one.verdict), "cases": one.cases} for name, one in verdicts.tests.items()},
            mutations={name: one.as_json() for name, one in verdicts.mutations.items()},
            why_draft=[why for why in self._drafts if why not in self._tree.why_draft],
            notes={"cut": [f"{cut.file}: {cut.host}" for cut in self._cuts]},
        )
        write(Path(config.site_dir), document)

    def close(self) -> None:
        """End what still runs."""
        self.book.close()
        if self._proofs is not None:
            self._proofs.close()

    def _parse(self) -> Future[list[Failure]]:
        """Let Mermaid read the diagrams while the tests run."""
        found = [diagram for record in self.book.records.values() for diagram in diagrams_of(record)]
        cached = self._cached and self._settings.cache
        cache = self._settings.root / self._settings.cache / "diagrams.json" if cached else None
        if found and not self.node_off:
            self._node = _node_version()
        pool = ThreadPoolExecutor(1)
        parsed = pool.submit(parse_diagrams, self._settings.root, found, cache=cache)
        pool.shutdown(wait=False)
        return parsed

    def _folders(self) -> list[str]:
        """Return the folders whose files are shown."""
        settings = self._settings
        return [name for name in (settings.docs, settings.src, settings.tests) if (settings.root / name).is_dir()]

    def _node_off(self) -> bool:
        try:
            off = node_is_off()
        except NodeError as error:
            self.book.failures.append(error.failure)
            return False
        self.book.diagram_class = "bookproof-diagram-source" if off else "mermaid"
        return off

    def _labs_off(self) -> str:
        try:
            return labs_off(self._settings.root, serving=self._serving) or self._settings.labs_off
        except NodeError as error:
            self.book.failures.append(error.failure)
            return ""

    def _why_draft(self) -> tuple[str, ...]:
        # A server does not name what was edited: with each file's first edit every page would be another one.
        reasons = ["it is being served to its author"] if self._serving else list(self._tree.why_draft)
        absent = sorted(
            {one.detail for record in self.book.records.values() for one in record.examples if one.status == "absent"}
        )
        if absent:
            reasons.append(f"not every example ran: {', '.join(absent)}")
        if self.node_off:
            reasons.append("diagrams were not read (BOOKPROOF_NODE=off)")
        if (
            self.book.labs_off not in {"", UNPINNED, self._settings.labs_off}
            and not self._serving
            and not self.node_off
        ):
            reasons.append("the labs were left out (BOOKPROOF_LABS=off)")
        return tuple(reasons)

    def _facts(self, files: Files) -> Facts:
        page = files.get_file_from_path(self._settings.evidence) if self._settings.evidence else None
        return Facts(
            commit=self._tree.commit,
            drafts=self._drafts,
            repo_url=self._config.repo_url or "",
            api="autorefs" in self._config.plugins,
            sources=not self._serving,
            evidence=page.url if page is not None else "",
            labs_off=self.book.labs_off,
        )


def _node_version() -> str | None:
    import subprocess

    try:
        done = subprocess.run([*find_node(), "--version"], capture_output=True, text=True, check=False)
    except (NodeError, OSError):
        return None
    return done.stdout.strip() or None


def show_failures(book: Book, files: Files) -> None:
    """Put the failures of each page at its top, and those of no page at the top of every page."""
    for file in files.documentation_pages():
        record = book.records.get(f"{book.settings.docs}/{file.src_uri}")
        if record is None or file.page is None or file.page.content is None:
            continue
        failures: list[Any] = sorted({*record.failures, *book.failures})
        boxes = [
            f'<div class="admonition failure bookproof-failure" role="alert"><pre>{escape(str(failure))}</pre></div>'
            for failure in failures
        ]
        file.page.content = "\n".join((*boxes, file.page.content))
