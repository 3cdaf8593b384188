"""Proofs: the cited tests and the mutations of a site, run once per build beside the rendering of its pages.

It promises that a verdict is of this very code: what is remembered between builds are passes, under a key that covers
the sources, the tests and the tools. It starts threads that wait for processes, and renders nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from bookproof import citations
from bookproof.cache import Cache, base_key, digest
from bookproof.citations import Symbol, SymbolIndex, TestIndex, collect_tests, files_of, run_tests
from bookproof.imports import Imports
from bookproof.mutations import Mutation, MutationResult, load_mutations, outside_modules, run_mutations
from bookproof.options import Settings
from bookproof.page import Failure
from bookproof.verdicts import MutationVerdict, TestResult, TestVerdict


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What ran in this build."""

    tests: Mapping[str, TestResult] = field(default_factory=dict)
    """By node id as cited."""
    mutations: Mapping[str, MutationResult] = field(default_factory=dict)
    """By id."""

    def as_json(self) -> dict[str, Any]:
        """Return the verdicts for a script in the page."""
        return {
            "tests": {name: {"verdict": str(one.verdict), "reason": one.reason} for name, one in self.tests.items()},
            "mutations": {
                name: {"verdict": str(one.verdict), "reason": one.detail} for name, one in self.mutations.items()
            },
        }


class Proofs:
    """The tests and mutations of one build.

    Parameters:
        settings: The site's settings.
        cached: Whether passes of earlier builds may stand for runs.
        serving: Whether what pytest collects may be remembered as long as no test changes, whatever else does.
        imports: Which files of the packages depend on which, where another part of the build asks for that, too.
    """

    def __init__(
        self, settings: Settings, *, cached: bool, serving: bool = False, imports: Imports | None = None
    ) -> None:
        root = settings.root
        self._settings = settings
        self._folders = (settings.src, settings.tests)
        self.declared, self.failures = load_mutations(root, settings.mutations)
        folder = root / settings.cache / "proofs" if cached and settings.cache else None
        self._cache = Cache(folder)
        self._base = base_key(settings, self._folders, settings.mutations) if folder else ""
        self._collected = (
            base_key(settings, (settings.tests,), "collected") if serving else digest(self._base, "collected")
        )
        self._imports = imports or Imports(root / settings.src, self._cache)
        self.modules: Any = None
        """The packages as griffe has read them for another part of the build, if it has."""
        self._symbols: SymbolIndex | None = None
        self._outside = base_key(settings, (), "symbols") if folder else ""
        self._pool = ThreadPoolExecutor(2)
        self._tests: Future[tuple[TestIndex, dict[str, TestResult]]] | None = None
        self._mutations: Future[dict[str, MutationResult]] | None = None

    def symbol(self, name: str, path: str, line: int) -> Symbol | Failure:
        """Return a cited symbol; the packages are read when the first unknown one is asked for.

        Parameters:
            name: Dotted name.
            path: The page that cites it, repository-relative.
            line: The line of the citation.
        """
        key = digest(self._outside, name, self._imports.digest(name))
        if known := self._cache.get(key):
            return Symbol(**known)
        if self._symbols is None:
            self._symbols = SymbolIndex(self._settings.root, (self._settings.src,), self.modules)
        found = citations.symbol(self._symbols, name, path, line)
        if isinstance(found, Symbol):
            self._cache.put(key, asdict(found))
        return found

    def start(self, tests: Collection[str], mutations: Collection[str] | None = None, *, run: bool = True) -> None:
        """Begin to collect and run, beside whatever the caller does next.

        Parameters:
            tests: Node ids of the tests that are cited.
            mutations: Ids of the mutations to run; None: all.
            run: Run them; otherwise only collect.
        """
        names = tuple(sorted(set(tests)))
        self._tests = self._pool.submit(self._prove, names, run=run) if names else None
        if run:
            chosen = tuple(one for one in self.declared if mutations is None or one.id in mutations)
            known = {one.id: found for one in chosen if (found := self._cache.get(self._key(one)))}
            missing = [one for one in chosen if one.id not in known]
            root, paths = self._settings.root, (self._settings.src,)
            warm = outside_modules(root, missing, folders=self._folders, search_paths=paths)
            self._mutations = self._pool.submit(self._run_mutations, chosen, known, missing, warm)

    def index(self) -> TestIndex:
        """Return what pytest collects: of the cited files, or of all if one of the cited tests is not in them."""
        return self._tests.result()[0] if self._tests is not None else TestIndex(self._settings.root, {}, {})

    def verdicts(self) -> Verdicts:
        """Wait for every run, and return what it showed."""
        tests = self._tests.result()[1] if self._tests is not None else {}
        return Verdicts(tests, self._mutations.result() if self._mutations is not None else {})

    def close(self) -> None:
        """Let what has not begun never begin."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _prove(self, names: tuple[str, ...], *, run: bool) -> tuple[TestIndex, dict[str, TestResult]]:
        """Find the cited tests and, if asked, run them: in the same process, which has to collect them anyway."""
        root, paths = self._settings.root, (self._settings.src,)
        files = files_of(root, names)
        key = digest(self._collected, *files)
        index = self._remembered_index(key)
        results, missing = self._remembered_passes(names) if run else ({}, [])
        if missing:
            fresh, found = run_tests(root, missing, search_paths=paths)
            results |= fresh
            if files_of(root, missing) == files:
                index = index or found
            for name in missing:
                if fresh[name].verdict is TestVerdict.PASSED:
                    self._cache.put(digest(self._base, "test", name), {"cases": fresh[name].cases})
        if index is None and files:
            index = collect_tests(root, files, search_paths=paths)
        if index is None or any(index.find(name) is None for name in names):
            index = collect_tests(root, search_paths=paths)  # to say where a test most likely went
        elif not index.broken and not index.failure:
            self._cache.put(key, {"cases": {case: list(place) for case, place in index.cases.items()}})
        return index, {name: results[name] for name in names if name in results}

    def _remembered_index(self, key: str) -> TestIndex | None:
        known = self._cache.get(key)
        if known is None:
            return None
        return TestIndex(self._settings.root, {case: (file, line) for case, (file, line) in known["cases"].items()}, {})

    def _remembered_passes(self, names: tuple[str, ...]) -> tuple[dict[str, TestResult], list[str]]:
        """Return the passes that are known, and the names of which none is."""
        known = {name: found for name in names if (found := self._cache.get(digest(self._base, "test", name)))}
        passes = {name: TestResult(name, TestVerdict.PASSED, "", found["cases"]) for name, found in known.items()}
        return passes, [name for name in names if name not in known]

    def _key(self, mutation: Mutation) -> str:
        return digest(self._base, "mutation", repr(_identity(mutation)))

    def _run_mutations(
        self,
        chosen: Sequence[Mutation],
        known: Mapping[str, dict[str, Any]],
        missing: Sequence[Mutation],
        warm: Sequence[str],
    ) -> dict[str, MutationResult]:
        root, paths = self._settings.root, (self._settings.src,)
        fresh = run_mutations(root, missing, folders=self._folders, search_paths=paths, warm=warm)
        results = {result.mutation.id: result for result in fresh}
        for result in fresh:
            if result.verdict is MutationVerdict.KILLED:
                self._cache.put(self._key(result.mutation), _remembered(result))
        return {
            one.id: results.get(one.id) or MutationResult(one, MutationVerdict.KILLED, **known[one.id])
            for one in chosen
        }

    def mutation_failures(self, verdicts: Verdicts) -> list[Failure]:
        """Return what is wrong with the mutations of the site."""
        found = [failure for result in verdicts.mutations.values() if (failure := result.failure())]
        return [*self.failures, *found]


def _identity(mutation: Mutation) -> tuple[str, ...]:
    return (mutation.id, mutation.title, mutation.file, mutation.before, mutation.after, mutation.test)


def _remembered(result: MutationResult) -> dict[str, Any]:
    return {key: value for key, value in asdict(result).items() if key not in {"mutation", "verdict"}}
