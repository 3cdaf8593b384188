"""Citations: what a page says it proves, looked up in the source and in the tests, and the tests' verdicts.

A cited symbol is found without importing anything; a cited test is one that pytest itself collects; a verdict is what
one run of pytest in this build showed. What is not found is a failure that names the most likely new place. Nothing
here claims that the cited test is a good one: that is what mutations are for.

How it is called: `SymbolIndex(root)` and `collect_tests(root)` once per build; `symbol(index, name, path, line)` and
`test(index, name, path, line)` for each citation, which give the thing cited or a `Failure`; `run_tests(root, names)`
once with every cited test of the site; `test_failure(result, path, line)` for each citation. The HTML is in
`production_map`.
"""

from __future__ import annotations

import ast
import difflib
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bookproof.page import Failure
from bookproof.testrun import Run, Spec, environment, packages_of, run_once
from bookproof.verdicts import (
    TestResult,
    TestVerdict,
    covers,
    first_line,
    judge_test,
    last_line,
    normalise,
    why_pytest_refused,
)

if TYPE_CHECKING:
    import griffe

_SUGGESTIONS = 3
# Whole files, however the project's own options end a run early or reorder it; the cache goes to the scratch folder.
_OPTIONS = ("-q", "--tb=no", "--maxfail=0", "--continue-on-collection-errors")


@dataclass(frozen=True, slots=True)
class Symbol:
    """A module, class, function or attribute as it stands in the source."""

    name: str
    """Dotted name, as cited."""
    canonical: str
    """Dotted name of the definition, where `name` is a re-export."""
    kind: str
    """`module`, `class`, `function` or `attribute`."""
    signature: str
    file: str
    """Repository-relative POSIX path."""
    first: int
    """First line, 1-based; a decorator's, except of a property."""
    last: int
    summary: str
    """First paragraph of the docstring, on one line; empty where there is none."""


@dataclass(frozen=True, slots=True)
class CitedTest:
    """A test, a parametrised case, a class or a file of tests as pytest collected it."""

    __test__ = False

    name: str
    """Node id, as cited."""
    file: str
    first: int
    """First line, 1-based, decorators included."""
    last: int
    cases: tuple[str, ...]
    """Node ids of the cases that it stands for."""


# Symbols


class SymbolIndex:
    """The packages of a repository, read with griffe, each when it is first asked for; never imported.

    Parameters:
        root: The repository.
        search_paths: Folders in it that hold packages.
        modules: Packages that griffe has read already.
    """

    def __init__(
        self, root: Path, search_paths: Sequence[str] = ("src",), modules: griffe.ModulesCollection | None = None
    ) -> None:
        import griffe

        self._root = root.resolve()
        self._paths = [self._root / path for path in search_paths]
        self._loader = griffe.GriffeLoader(
            search_paths=self._paths,
            extensions=griffe.load_extensions(),
            allow_inspection=False,
            modules_collection=modules,
        )
        self._names: list[str] | None = None

    def find(self, name: str) -> Symbol | None:
        """Return the symbol of a dotted name, or None."""
        found = self._object(name)
        return None if found is None else _symbol(found, name, self._root)

    def likely(self, name: str) -> tuple[str, ...]:
        """Return where an unknown name most likely went: the same last part elsewhere, else names much like it."""
        if self._names is None:
            packages = [self._package(package) for package in packages_of(self._paths)]
            self._names = sorted({path for package in packages if package for path in _paths(package)})
        return _likely(name, self._names, ".")

    def _object(self, name: str) -> griffe.Object | None:
        import griffe

        package, _, rest = name.partition(".")
        found: Any = self._package(package)
        try:
            if found is not None and rest:
                found = found[rest]
            target: griffe.Object | None = found.final_target if found is not None and found.is_alias else found
        except (KeyError, griffe.AliasResolutionError, griffe.CyclicAliasError):
            return None
        return target

    def _package(self, name: str) -> griffe.Module | None:
        if name not in packages_of(self._paths):
            return None
        if name not in self._loader.modules_collection:
            self._loader.load(name)
            self._loader.resolve_aliases()
        module: griffe.Module = self._loader.modules_collection[name]
        return module


def symbol(index: SymbolIndex, name: str, path: str, line: int) -> Symbol | Failure:
    """Return a cited symbol.

    Parameters:
        index: Where to look.
        name: Dotted name.
        path: The page that cites it, repository-relative.
        line: The line of the citation.
    """
    import griffe

    try:
        found = index.find(name)
        return found or Failure(path, line, f"unknown symbol {name}" + _pointing(index.likely(name)))
    except griffe.GriffeError as error:  # a package that does not parse
        return Failure(path, line, f"symbol {name} cannot be looked up: {error}")


def _symbol(found: griffe.Object, name: str, root: Path) -> Symbol:
    file = found.filepath[0] if isinstance(found.filepath, list) else found.filepath
    lines = Path(file).read_text(encoding="utf-8").count("\n") if Path(file).is_file() else 1
    text = found.docstring.value if found.docstring else ""
    return Symbol(
        name=name,
        canonical=found.path,
        kind=found.kind.value,
        signature=_signature(found),
        file=Path(file).resolve().relative_to(root).as_posix(),
        first=found.lineno or 1,
        last=found.endlineno or max(lines, 1),
        summary=" ".join(text.strip().split("\n\n")[0].split()),
    )


def _signature(found: griffe.Object) -> str:
    """Return a definition's head, without its module."""
    import griffe

    parent = found.parent
    name = f"{parent.name}.{found.name}" if parent is not None and parent.is_class else found.name
    if isinstance(found, griffe.Function):
        return ("async " if "async" in found.labels else "") + found.signature(name=name)
    if isinstance(found, griffe.Class):
        return found.signature(name=name) or name
    if isinstance(found, griffe.Attribute):
        kind = f": {found.annotation}" if found.annotation is not None else ""
        value = f" = {found.value}" if found.value is not None and "property" not in found.labels else ""
        return name + kind + value
    return found.path


def _paths(module: griffe.Object) -> Iterator[str]:
    """Yield the dotted name of every definition; what is imported stands in its own module's list."""
    yield module.path
    for member in module.members.values():
        if not member.is_alias:
            yield from _paths(member)  # type: ignore[arg-type]  # an alias was just ruled out


# Tests


@dataclass(frozen=True, slots=True)
class TestIndex:
    """What pytest collects in a repository."""

    __test__ = False

    root: Path
    cases: Mapping[str, tuple[str, int]]
    """Node id of each case to its file and line."""
    broken: Mapping[str, str]
    """File that could not be collected, with the reason."""
    failure: str = ""
    """Why pytest could not collect at all."""
    _covered: dict[str, list[str]] = field(init=False, repr=False, compare=False, default_factory=dict)
    """By every name that a test can be cited by, its cases."""

    def __post_init__(self) -> None:
        """Sort the cases by name."""
        for case in self.cases:
            parts = case.partition("[")[0].split("::")
            for name in dict.fromkeys((*("::".join(parts[: end + 1]) for end in range(len(parts))), case)):
                self._covered.setdefault(name, []).append(case)

    def find(self, name: str) -> CitedTest | None:
        """Return the test of a node id, or None."""
        cases = tuple(self._covered.get(name, ()))
        if not cases:
            return None
        file, line = self.cases[cases[0]]
        first, last = _lines(self.root / file, name.partition("[")[0].split("::")[1:]) or (max(line, 1), max(line, 1))
        return CitedTest(name, file, first, last, cases)

    def likely(self, name: str) -> tuple[str, ...]:
        """Return where an unknown test most likely went."""
        return _likely(name.partition("[")[0], sorted({case.partition("[")[0] for case in self.cases}), "::")


def collect_tests(
    root: Path,
    files: Sequence[str] = (),
    *,
    search_paths: Sequence[str] = ("src",),
    timeout_seconds: float = 120.0,
) -> TestIndex:
    """Ask pytest, in one process, which tests there are.

    Parameters:
        root: The repository.
        files: Which files to ask about, relative to it; empty for all that the project's options name.
        search_paths: Folders in it whose packages the tests import.
        timeout_seconds: For the whole collection.
    """
    with tempfile.TemporaryDirectory(prefix="bookproof-") as scratch:
        run = run_once(
            root,
            Spec(("--collect-only", *_OPTIONS, *files)),
            env=environment([root.resolve() / path for path in search_paths]),
            scratch=Path(scratch),
            timeout_seconds=timeout_seconds,
        )
    return _index(root, run)


def _index(root: Path, run: Run) -> TestIndex:
    failure = "the time ran out" if run.timed_out else why_pytest_refused(run)
    if run.exit_code is None and not failure:
        failure = f"the process ended: {last_line(run.output)}"
    return TestIndex(root, {case: (file, line) for case, file, line in run.collected}, run.broken, failure)


def files_of(root: Path, names: Iterable[str]) -> tuple[str, ...]:
    """Return the files that hold these tests, as far as they exist, sorted."""
    return tuple(file for file in sorted({name.partition("::")[0] for name in names}) if (root / file).is_file())


def test(index: TestIndex, name: str, path: str, line: int) -> CitedTest | Failure:
    """Return a cited test.

    Parameters:
        index: Where to look.
        name: Node id of a test, a parametrised case, a class or a file.
        path: The page that cites it, repository-relative.
        line: The line of the citation.
    """
    found = index.find(name)
    if found is not None:
        return found
    for file, reason in index.broken.items():
        if covers(file, name):
            return Failure(path, line, f"test {name} is not collected: {first_line(reason)}")
    if index.failure:
        return Failure(path, line, f"test {name} is not collected: {index.failure}")
    return Failure(path, line, f"unknown test {name}" + _pointing(index.likely(name)))


test.__test__ = False  # type: ignore[attr-defined]  # pytest would collect it where it is imported


def run_tests(
    root: Path, names: Iterable[str], *, search_paths: Sequence[str] = ("src",), timeout_seconds: float = 300.0
) -> tuple[dict[str, TestResult], TestIndex]:
    """Run cited tests, all in one pytest process, under the project's own options.

    Parameters:
        root: The repository, or a copy of it.
        names: Node ids.
        search_paths: Folders in it whose packages the tests import; tests of a package from elsewhere prove nothing.
        timeout_seconds: For the whole run.

    Returns:
        A result for each name, sorted by name, and what the files of these tests hold.
    """
    wanted = tuple(sorted(set(names)))
    files = files_of(root, wanted)
    if not files:
        nothing = {name: TestResult(name, TestVerdict.NOT_COLLECTED, f"there is no test {name}") for name in wanted}
        return nothing, TestIndex(root, {}, {})
    sources = [root.resolve() / path for path in search_paths]
    with tempfile.TemporaryDirectory(prefix="bookproof-") as scratch:
        spec = Spec((*_OPTIONS, *files), wanted, packages_of(sources))
        run = run_once(root, spec, env=environment(sources), scratch=Path(scratch), timeout_seconds=timeout_seconds)
        places = {f"{Path(scratch) / 'tmp'}": "<tmp>", f"{root.resolve()}/": ""}
    elsewhere = "; ".join(f"{name} was loaded from {place}" for name, place in run.foreign.items())
    results = {}
    for name in wanted:
        result = judge_test(run, name)
        if elsewhere and result.verdict is TestVerdict.PASSED:
            result = replace(result, verdict=TestVerdict.NOT_RUN, reason=elsewhere)
        results[name] = replace(result, reason=normalise(result.reason, places))
    return results, _index(root, run)


def test_failure(result: TestResult, path: str, line: int) -> Failure | None:
    """Return what fails the build for a cited test, or None when it passed.

    Parameters:
        result: From `run_tests`.
        path: The page that cites it.
        line: The line of the citation.
    """
    if result.verdict is TestVerdict.PASSED:
        return None
    return Failure(path, line, f"cited test {result.test}: {result.verdict}: {result.reason}")


test_failure.__test__ = False  # type: ignore[attr-defined]  # as above


def _lines(file: Path, names: Sequence[str]) -> tuple[int, int] | None:
    """Return the first and last line of a nested definition; of the file when there is no name."""
    try:
        text = file.read_text(encoding="utf-8")
        body: Sequence[ast.stmt] = _statements(text)
    except (OSError, SyntaxError, ValueError):
        return None
    place = (1, max(1, len(text.splitlines())))
    for name in names:
        node = next((node for node in body if getattr(node, "name", None) == name), None)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return None  # inherited or generated: pytest's own line is used
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        place = (first, node.end_lineno or node.lineno)
        body = node.body
    return place


@lru_cache(maxsize=64)  # a page cites several tests of one file
def _statements(text: str) -> tuple[ast.stmt, ...]:
    return tuple(ast.parse(text).body)


# Likely places


def _likely(name: str, known: Sequence[str], separator: str) -> tuple[str, ...]:
    """Return known names with the same last part, nearest first; else those whose last part is spelt much like it."""
    lasts = [other.rpartition(separator)[2] for other in known]
    last = name.rpartition(separator)[2]
    alike = [last] if last in lasts else difflib.get_close_matches(last, set(lasts), _SUGGESTIONS, 0.75)
    found = [other for other, ending in zip(known, lasts, strict=True) if ending in alike]
    return tuple(sorted(found, key=lambda other: (-_ratio(name, other), other))[:_SUGGESTIONS])


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _pointing(places: Sequence[str]) -> str:
    if not places:
        return "; nothing with that name is left"
    others = f" (or {', '.join(places[1:])})" if places[1:] else ""
    return f"; most likely now {places[0]}{others}"
