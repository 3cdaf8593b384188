"""Mutations: a small change to the code that a named test must catch, and whether it did.

A mutation is killed only if its test passes on the untouched code and fails on the changed one, in its call phase, by a
judgement of the test: a change that merely breaks an import, a name, an attribute or a fixture, or that never ends,
proves nothing about the test and gets another verdict. Nothing is ever changed in the tree itself, only in copies.

How it is called: `load_mutations(root)` gives the mutations and the failures of `tests/mutations.toml`;
`run_mutations(root, mutations)` runs them; `result.failure()` is None for a killed one; `render_mutation(result, ...)`
is the HTML of the figure. `mutate(root, ids)` is all of it for the command line and raises `UnusableMutations`.
"""

from __future__ import annotations

import ast
import difflib
import queue
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from bookproof.compiled import compile_sources
from bookproof.host import short_folder
from bookproof.page import Failure, breakable
from bookproof.testrun import Run, Spec, WarmRunner, packages_of
from bookproof.verdicts import MutationVerdict, covers, judge_mutation, normalise, why_not_passed

MUTATIONS_FILE = "tests/mutations.toml"
MAX_NOT_IN_BROWSER = 3
"""Most mutations whose test a reader cannot run: one that needs more than pytest and the package proves too little."""
_KEYS: Mapping[str, type] = {
    "id": str,
    "title": str,
    "file": str,
    "before": str,
    "after": str,
    "test": str,
    "browser": bool,
    "why": str,
    "mechanism": str,
}
_REQUIRED = ("id", "title", "file", "before", "after", "test")
_CONFIG_FILES = ("pyproject.toml", "pytest.toml", ".pytest.toml", "pytest.ini", "tox.ini", "setup.cfg", "conftest.py")
_TEXT_LINES = 12


@dataclass(frozen=True, slots=True)
class Mutation:
    """One `[[mutation]]`."""

    id: str
    """Lower-case letters, digits, `-` and `_`: the name in pages and on the command line."""
    title: str
    """What the change takes away, in a few words."""
    file: str
    """The file to change, repository-relative."""
    before: str
    """The exact text to replace; it must occur once."""
    after: str
    """What stands there instead."""
    test: str
    """Node id of the test that must fail."""
    browser: bool = True
    """Whether the test also runs in a reader's browser."""
    why: str = ""
    """Why it does not."""
    mechanism: str = ""
    """What the mutation belongs to; free text, for grouping."""
    path: str = MUTATIONS_FILE
    """The file that it was read from."""
    lines: Mapping[str, int] = field(default_factory=dict)
    """1-based line of each key in that file; `""` is the header's."""

    def failure(self, key: str, text: str) -> Failure:
        """Return a failure at the line of a key, or of the header where the key is absent."""
        return Failure(self.path, self.lines.get(key, self.lines.get("", 0)), f"mutation {self.id}: {text}")

    def applied(self, text: str) -> str:
        """Return the changed text of its file.

        Parameters:
            text: The untouched text.

        Raises:
            ValueError: What is to be replaced does not occur once.
        """
        count = text.count(self.before)
        if count != 1:
            raise ValueError(f"'before' occurs {count} times in {self.file}, not once")
        return text.replace(self.before, self.after)


@dataclass(frozen=True, slots=True)
class MutationResult:
    """What one mutation did in this run. Deterministic for a deterministic test: no temporary path, no time of day."""

    mutation: Mutation
    verdict: MutationVerdict
    detail: str = ""
    """Why it is not `KILLED`; empty where it is."""
    key: str = ""
    """The key of the mutation that is to blame, if one is."""
    file: str = ""
    """File of the failing statement, repository-relative."""
    line: int = 0
    """1-based line of the failing statement."""
    code: str = ""
    """The failing statement."""
    text: str = ""
    """The exception as the test run printed it, at most 12 lines."""
    diff: str = ""
    """Unified diff of the change, with three lines of context."""

    def failure(self) -> Failure | None:
        """Return what fails the build, or None when the mutation was killed."""
        if self.verdict is MutationVerdict.KILLED:
            return None
        return self.mutation.failure(self.key or "test", f"{self.verdict}: {self.detail}")

    def as_json(self) -> dict[str, Any]:
        """Return the result for `--json` and for the manifest."""
        return {
            "id": self.mutation.id,
            "title": self.mutation.title,
            "mechanism": self.mutation.mechanism,
            "file": self.mutation.file,
            "test": self.mutation.test,
            "browser": self.mutation.browser,
            "why": self.mutation.why,
            "verdict": str(self.verdict),
            "detail": self.detail,
            "failing": {"file": self.file, "line": self.line, "code": self.code, "text": self.text},
            "diff": self.diff,
        }

    def __str__(self) -> str:
        """Return one line: verdict, id, and the failing line or the reason."""
        where = f"{self.file}:{self.line}" if self.file else self.detail
        return f"{self.verdict:<8} {self.mutation.id}: {where}"


class UnusableMutations(Exception):  # noqa: N818 - named for the situation, as the messages inside it are the errors
    """The mutations cannot be run as asked; `failures` says where and why."""

    def __init__(self, failures: Sequence[Failure]) -> None:
        self.failures = tuple(failures)
        super().__init__("\n".join(map(str, self.failures)))


# Reading the file


def load_mutations(root: Path, path: str = MUTATIONS_FILE) -> tuple[tuple[Mutation, ...], tuple[Failure, ...]]:
    """Read the mutations of a repository.

    Parameters:
        root: The repository.
        path: The file, relative to it. A file that does not exist holds no mutation.

    Returns:
        The well-formed mutations in the file's order, and what is wrong with the others.
    """
    file = root / path
    if not file.is_file():
        return (), ()
    text = file.read_text(encoding="utf-8")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))
        return (), (Failure(path, int(found[1]) if found else len(text.splitlines()), f"not valid TOML: {error}"),)
    tables = data.get("mutation", [])
    failures = [
        Failure(path, 0, f"unknown top-level key {key!r}; expected [[mutation]]") for key in data.keys() - {"mutation"}
    ]
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        return (), (*failures, Failure(path, 0, "`mutation` must be an array of tables: [[mutation]]"))
    mutations: list[Mutation] = []
    first_line: dict[str, int] = {}
    for table, lines in zip(tables, _lines_of(text, len(tables)), strict=True):
        problems = [Failure(path, lines.get(key, lines.get("", 0)), problem) for key, problem in _problems(table)]
        mutation_id = table.get("id")
        if isinstance(mutation_id, str) and mutation_id in first_line:
            problems.append(
                Failure(
                    path,
                    lines.get("id", 0),
                    f"mutation id {mutation_id!r} is taken since line {first_line[mutation_id]}",
                )
            )
        elif isinstance(mutation_id, str):
            first_line[mutation_id] = lines.get("id", 0)
        failures += problems
        if not problems:
            mutations.append(Mutation(**table, path=path, lines=lines))
    for mutation in [mutation for mutation in mutations if not mutation.browser][MAX_NOT_IN_BROWSER:]:
        line = mutation.lines.get("browser", 0)
        failures.append(Failure(path, line, f"at most {MAX_NOT_IN_BROWSER} mutations may say browser = false"))
    return tuple(mutations), tuple(failures)


def _problems(table: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield each problem of one table with the key that it belongs to."""
    for key in table:
        if key not in _KEYS:
            close = difflib.get_close_matches(key, _KEYS, 1)
            yield key, f"unknown key {key!r}" + (f"; did you mean {close[0]!r}?" if close else "")
        elif not isinstance(table[key], _KEYS[key]):
            yield key, f"{key!r} must be {'true or false' if _KEYS[key] is bool else 'text'}"
    for key in _REQUIRED:
        if key not in table:
            yield "", f"[[mutation]] has no {key!r}"
        elif key != "after" and isinstance(table[key], str) and not table[key].strip():
            yield key, f"{key!r} is blank"
    if isinstance(table.get("id"), str) and not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", table["id"]):
        yield "id", f"id {table['id']!r} may hold lower-case letters, digits, '-' and '_' only"
    if "before" in table and table["before"] == table.get("after"):
        yield "after", "'after' equals 'before': nothing would change"
    if table.get("browser") is False and not str(table.get("why", "")).strip():
        yield "browser", "browser = false needs a 'why'"


def _lines_of(text: str, count: int) -> list[dict[str, int]]:
    """Return, for each `[[mutation]]`, the line of its header and of each key; no line where the form is unusual."""
    lines = text.splitlines()
    starts: list[int] = []
    for number, line in enumerate(lines):
        # A header inside a multi-line string is no header: what stands between it and the last one is no TOML.
        if re.match(r"\s*\[\[\s*mutation\s*\]\]", line) and _is_toml(lines[starts[-1] if starts else 0 : number]):
            starts.append(number)
    if len(starts) != count:
        return [{} for _ in range(count)]
    found: list[dict[str, int]] = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        keys = {"": start + 1}
        for number in range(start + 1, end):
            key = re.match(r"\s*[\"']?([\w-]+)[\"']?\s*=", lines[number])
            if key:
                keys.setdefault(key[1], number + 1)
        found.append(keys)
    return found


def _is_toml(lines: Sequence[str]) -> bool:
    try:
        tomllib.loads("\n".join(lines))
    except tomllib.TOMLDecodeError:
        return False
    return True


# Running


def mutate(
    root: Path, ids: Sequence[str] = (), *, path: str = MUTATIONS_FILE, **options: Any
) -> tuple[MutationResult, ...]:
    """Load and run mutations: what `bookproof mutate [ID]` does.

    Parameters:
        root: The repository.
        ids: Which to run; empty for all.
        path: The file of the mutations.
        **options: As `run_mutations` takes them.

    Raises:
        UnusableMutations: The file has a fault, or an id is unknown.
    """
    mutations, failures = load_mutations(root, path)
    known = {mutation.id: mutation for mutation in mutations}
    unknown = [Failure(path, 0, unknown_mutation(name, known)) for name in ids if name not in known]
    if failures or unknown:
        raise UnusableMutations([*failures, *unknown])
    return run_mutations(root, [known[name] for name in dict.fromkeys(ids)] if ids else mutations, **options)


def unknown_mutation(name: str, known: Iterable[str]) -> str:
    """Return the message for an id that no mutation has."""
    close = difflib.get_close_matches(name, list(known), 1, 0.5)
    return f"no mutation {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")


def run_mutations(
    root: Path,
    mutations: Sequence[Mutation],
    *,
    folders: Sequence[str] = ("src", "tests"),
    search_paths: Sequence[str] = ("src",),
    workers: int = 2,
    timeout_seconds: float = 60.0,
    pytest_args: Sequence[str] = (),
    fork: bool = True,
    warm: Sequence[str] | None = None,
) -> tuple[MutationResult, ...]:
    """Run mutations, each on a copy of the tree, with pytest's plug-in autoload off.

    Every test runs alone, in a process of its own: first unchanged (once for all mutations that name it), then changed.

    Parameters:
        root: The repository.
        mutations: What to run.
        folders: What is copied, besides `pyproject.toml` and pytest's other configuration files.
        search_paths: Folders, within those, that hold the packages under test.
        workers: Copies, and so runs at a time.
        timeout_seconds: A run without a sign of life for so long is over.
        pytest_args: Further options, such as `("-p", "some_plugin")`.
        fork: Use fork where there is one.
        warm: What `outside_modules` returns, if it has been called already.

    Returns:
        One result for each mutation, in their order.
    """
    if not mutations:
        return ()
    with tempfile.TemporaryDirectory(prefix="bookproof-", dir=short_folder()) as folder, ExitStack() as stack:
        copies: queue.SimpleQueue[_Copy] = queue.SimpleQueue()
        if warm is None:
            warm = outside_modules(root, mutations, folders=folders, search_paths=search_paths)
        for number in range(min(workers, len(mutations))):
            place = Path(folder).resolve() / f"copy{number}"
            _copy_tree(root, place, folders, search_paths)
            sources = [place / path for path in search_paths]
            compile_sources(place, search_paths)
            runner = stack.enter_context(WarmRunner(place, sources, warm=warm, fork=fork))
            copies.put(_Copy(place, runner, packages_of(sources), tuple(pytest_args), timeout_seconds))
        with ThreadPoolExecutor(copies.qsize()) as pool:

            def some(tests: tuple[str, ...]) -> dict[str, str]:
                copy = copies.get()
                try:
                    return copy.baselines(tests) if fork else {test: copy.baseline(test) for test in tests}
                finally:
                    copies.put(copy)

            def one(mutation: Mutation) -> MutationResult:
                copy = copies.get()
                try:
                    return _run_one(copy, mutation, baselines[mutation.test])
                finally:
                    copies.put(copy)

            parts = _parts([mutation.test for mutation in mutations], copies.qsize())
            baselines = {test: why for found in pool.map(some, parts) for test, why in found.items()}
            return tuple(pool.map(one, mutations))


@dataclass(frozen=True, slots=True)
class _Copy:
    """One copy of the tree, with the runner that works in it."""

    place: Path
    runner: WarmRunner
    packages: Mapping[str, Path]
    pytest_args: tuple[str, ...]
    timeout_seconds: float

    def names(self) -> dict[str, str]:
        """Return what stands for the copy's paths in a message: repository-relative paths, and one word for scratch."""
        return {f"{self.place.with_suffix('.tmp')}": "<tmp>", f"{self.place}/": "", f"{self.place}": "."}

    def baseline(self, test: str) -> str:
        """Return why a test does not pass on the untouched code; empty where it does."""
        return normalise(why_not_passed(self.run((test,), bytecode=True), test), self.names())

    def baselines(self, tests: Sequence[str]) -> dict[str, str]:
        """Do the same for tests of one file: it is collected once, and each test runs in its own process."""
        found: dict[str, str] = {}
        left = list(tests)
        while left:
            run = self.run(tuple(left), bytecode=True, apart=True)
            found |= {test: normalise(why_not_passed(run, test), self.names()) for test in left}
            # One that never ends takes the run with it: those behind it get another.
            hanging = [number for number, test in enumerate(left) if run.timed_out and covers(test, run.running)]
            left = left[hanging[0] + 1 :] if hanging else []
        return found

    def run(
        self, tests: tuple[str, ...], *, modules: tuple[str, ...] = (), bytecode: bool = False, apart: bool = False
    ) -> Run:
        """Run tests of one file. Compiled files are kept only of the untouched code, so that none can be stale."""
        file = tests[0].partition("::")[0]
        scratch = f"--basetemp={self.place.with_suffix('.tmp')}"
        args = ("-q", "--tb=no", "-p", "no:cacheprovider", "--maxfail=0", scratch, *self.pytest_args, file)
        spec = Spec(args, tests, self.packages, modules, bytecode, apart)
        return self.runner.run(spec, timeout_seconds=self.timeout_seconds)


def _run_one(copy: _Copy, mutation: Mutation, baseline: str) -> MutationResult:
    """Apply one mutation to a copy, run its test, put the file back."""
    target = (copy.place / mutation.file).resolve()
    if not target.is_relative_to(copy.place) or not target.is_file():
        return _invalid(mutation, "file", f"no file {mutation.file} among what is copied")
    original = target.read_bytes()
    text = original.decode("utf-8")
    try:
        changed = mutation.applied(text)
    except ValueError as error:
        return _invalid(mutation, "before", str(error))
    if baseline:
        return _invalid(mutation, "test", f"on the untouched code {baseline}")
    diff = _diff(mutation.file, text, changed)
    if target.suffix == ".py":
        try:
            compile(changed, mutation.file, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            return MutationResult(
                mutation,
                MutationVerdict.BROKEN,
                f"the changed file is no Python: {type(error).__name__}: {error}",
                "after",
                diff=diff,
            )
    modules = _module_names(copy, target)
    if not modules:  # Python checks the bytecode of a package by its hash; any other goes by time and size
        for compiled in (target.parent / "__pycache__").glob(f"{target.stem}.*"):
            compiled.unlink()
    try:
        target.write_bytes(changed.encode("utf-8"))
        run = copy.run((mutation.test,), modules=modules)
    finally:
        target.write_bytes(original)
    verdict, detail, report = judge_mutation(run, mutation.test)
    places = copy.names()
    detail = normalise(detail, places)
    if report is None:
        return MutationResult(mutation, verdict, detail, diff=diff)
    return MutationResult(
        mutation,
        verdict,
        detail,
        file=normalise(report.file, places),
        line=report.line,
        code=report.code,
        text=_cut(normalise(report.text, places)),
        diff=diff,
    )


def _parts(tests: Iterable[str], count: int) -> list[tuple[str, ...]]:
    """Return the distinct tests, so grouped that each group is of one file and `count` can be worked on at a time."""
    by_file: dict[str, list[str]] = {}
    for test in dict.fromkeys(tests):
        by_file.setdefault(test.partition("::")[0], []).append(test)
    return [part for group in by_file.values() for start in range(count) if (part := tuple(group[start::count]))]


def _invalid(mutation: Mutation, key: str, detail: str) -> MutationResult:
    return MutationResult(mutation, MutationVerdict.INVALID, detail, key)


def _cut(text: str) -> str:
    """Keep the first lines, without pytest's advice on its own options."""
    lines = [
        line.rstrip() for line in text.splitlines() if not re.match(r"\s*(Use -v|\.\.\.Full output truncated)", line)
    ]
    kept = lines[:_TEXT_LINES] + (["..."] if len(lines) > _TEXT_LINES else [])
    return "\n".join(kept).rstrip()


def _diff(file: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), f"a/{file}", f"b/{file}", lineterm="")
    return "".join(f"{line}\n" for line in lines)


def _copy_tree(root: Path, place: Path, folders: Sequence[str], search_paths: Sequence[str]) -> None:
    """Copy what a test run needs, and what is compiled of the packages."""
    place.mkdir(parents=True)
    unwanted = (".*_cache", ".hypothesis", "node_modules")
    for folder in folders:
        if (root / folder).is_dir():
            compiled = () if folder in search_paths else ("__pycache__", "*.pyc")
            ignore = shutil.ignore_patterns(*unwanted, *compiled)
            shutil.copytree(root / folder, place / folder, ignore=ignore)
    for name in _CONFIG_FILES:
        if (root / name).is_file():
            shutil.copy2(root / name, place / name)


def _module_names(copy: _Copy, target: Path) -> tuple[str, ...]:
    """Return the name under which a file of a package under test is imported, if it is one."""
    for place in copy.packages.values():
        if target.suffix == ".py" and (target == place or target.is_relative_to(place)):
            parts = target.relative_to(place.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            return () if parts[-1] == "__main__" else (name,)
    return ()


def outside_modules(
    root: Path,
    mutations: Sequence[Mutation],
    *,
    folders: Sequence[str] = ("src", "tests"),
    search_paths: Sequence[str] = ("src",),
) -> list[str]:
    """Return what the tests import from elsewhere and the packages from the standard library, to be loaded once.

    It parses, and CPython 3.11 sometimes fails to do so (`SystemError`) while another thread does the same.
    """
    if not mutations:
        return []
    inside = {*packages_of(root / path for path in search_paths), *folders, "conftest"}
    files = {root / one.test.partition("::")[0] for one in mutations} | set((root / "tests").glob("conftest.py"))
    files |= set(root.glob("conftest.py"))
    packages = {file for path in search_paths for file in (root / path).rglob("*.py")}
    found: set[str] = set()
    for file in sorted(files | packages):
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError):  # the run itself says so
            continue
        names = set(_imported(tree.body))
        found |= {
            name
            for name in names
            if name.partition(".")[0] not in inside
            and (file in files or name.partition(".")[0] in sys.stdlib_module_names)
        }
    return sorted(found - {"", "__future__"})


def _imported(body: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield what a module imports when it is loaded, conditions and attempts included."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""
        elif isinstance(node, ast.Try | ast.If):
            yield from _imported([*node.body, *node.orelse])


# Showing


def render_mutation(
    result: MutationResult, *, test_html: str = "", failing_href: str = "", show_id: bool = True, lab: str = ""
) -> str:
    """Return the figure of one mutation: the change, the test, the line where it failed.

    Added and removed lines are marked by their sign, by `ins` and `del`, and by class, so that none depends on colour.

    Parameters:
        result: What happened.
        test_html: The link to the test, from `citations.render_test_link`; its node id when empty.
        failing_href: Where the failing line can be read.
        show_id: Give the figure the id `mutation-ID`; off where a page shows the same mutation twice.
        lab: The element that a lab's script fills.
    """
    mutation = result.mutation
    where = breakable(f"{result.file}:{result.line}")
    if failing_href:
        where = f'<a href="{escape(failing_href)}">{where}</a>'
    rows = [
        ("Test", test_html or breakable(mutation.test)),
        ("Verdict", _verdict_html(result)),
    ]

    def identity(part: str = "") -> str:
        return f' id="mutation-{escape(mutation.id)}{part}"' if show_id else ""

    if result.file:
        rows.append(("Failing line", f"{where}<pre{identity('-line')}><code>{escape(result.code)}</code></pre>"))
        rows.append(("Reported", f"<pre{identity('-report')}><code>{escape(result.text)}</code></pre>"))
    listing = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows)
    return (
        f'<figure class="bookproof-mutation"{identity()} data-bookproof-mutation="{escape(mutation.id)}">'
        f"<figcaption>Mutation: {escape(mutation.title)}</figcaption>"
        f'<pre class="bookproof-diff"{identity("-diff")} tabindex="0" role="region" '
        f'aria-label="Change {escape(mutation.id)} to {escape(mutation.file)}">'
        f"<code>{render_diff(result.diff)}</code></pre>"
        f"<dl>{listing}</dl>{lab}</figure>"
    )


def render_diff(diff: str) -> str:
    """Return a unified diff as HTML, one element for each line."""
    shown = []
    for line in diff.splitlines():
        text = escape(line)
        if line.startswith(("---", "+++", "@@")):
            shown.append(f'<span class="bookproof-diff-head">{text}</span>')
        elif line.startswith("-"):
            shown.append(f'<del class="bookproof-diff-removed">{text}</del>')
        elif line.startswith("+"):
            shown.append(f'<ins class="bookproof-diff-added">{text}</ins>')
        else:
            shown.append(f"<span>{text}</span>")
    return "\n".join(shown)


def _verdict_html(result: MutationResult) -> str:
    said = f"{result.verdict}" + (f": {result.detail}" if result.detail else "")
    if result.verdict is MutationVerdict.KILLED:
        said = "killed: the test passed before the change and failed after it"
    return f'<span class="bookproof-verdict bookproof-verdict--{result.verdict}">{escape(said)}</span>'
