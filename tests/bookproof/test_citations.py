"""Citations: each name is found in the source or in pytest's own collection, each verdict is what a run showed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import griffe
import pytest

from bookproof import citations
from bookproof.citations import CitedTest, Symbol, SymbolIndex, TestIndex, collect_tests, run_tests
from bookproof.mutations import Mutation, MutationResult
from bookproof.page import Failure
from bookproof.production_map import (
    Links,
    MapRow,
    render_mutation_link,
    render_production_map,
    render_symbol_link,
    render_test_link,
    render_test_verdict,
)
from bookproof.verdicts import MutationVerdict, TestResult, TestVerdict

SHA = "0123456789abcdef0123456789abcdef01234567"

FILES = {
    # Options that would end a run early, hide its output, or need the cache.
    "pyproject.toml": """\
[tool.pytest.ini_options]
addopts = ["-x", "-qq", "--ff", "--no-header", "-m", "not slow", "--import-mode=importlib", "--strict-markers"]
markers = ["slow: slow"]
xfail_strict = true
""",
    "src/shop/__init__.py": "from shop.till import Till as Till\n",
    "src/shop/till.py": '''\
"""The till."""

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Till:
    """Holds money
    until the evening.

    More.
    """

    amount: int
    """In cents."""

    @property
    def full(self) -> bool:
        return self.amount > 100

    def add(self, cents: int, *, note: str = "") -> "Till":
        """Add."""


@cache
def total(*prices: int) -> int:
    """Sum."""
    return sum(prices)


LIMIT: int = 10
''',
    "src/shop/heavy.py": "import nothing_that_is_installed\n\n\ndef lift(): ...\n",
    "src/shop/counter.py": "def weigh(thing):\n    return 1\n",
    "tests/test_ok.py": """\
import os

import griffe
import pytest

from shop.counter import weigh


def test_plain():
    assert weigh("x") == 1


@pytest.mark.parametrize(
    "thing", ["a", "b c"]
)
def test_cases(thing):
    assert weigh(thing) == 1


@pytest.mark.parametrize("n", [0, 1])
def test_half(n):
    assert n == 0


class TestGroup:
    def test_inner(self):
        assert True

    class TestDeeper:
        @pytest.mark.usefixtures()
        def test_deep(self):
            assert True


def test_fails():
    assert weigh("x") == 2, os.path.abspath("tests")


@pytest.mark.skip(reason="not today")
def test_skip():
    pass


@pytest.mark.parametrize("n", [0, pytest.param(1, marks=pytest.mark.skip(reason="half a skip"))])
def test_half_skipped(n):
    pass


@pytest.mark.xfail(reason="known")
def test_xfail():
    assert False


@pytest.mark.xfail(reason="known")
def test_xpass():
    pass


@pytest.mark.xfail(reason="known", strict=False)
def test_xpass_lenient():
    pass


@pytest.mark.slow
def test_slow():
    pass


@pytest.fixture
def bad():
    raise OSError("no disk")


def test_setup(bad):
    pass


@pytest.fixture
def bad_end():
    yield
    raise OSError("no end")


def test_teardown(bad_end):
    pass
""",
    "tests/test_broken.py": "import nothing_that_is_installed\n\ndef test_a():\n    pass\n",
    "tests/test_whole_skip.py": "import pytest\npytest.importorskip('nothing_here')\n\ndef test_a():\n    pass\n",
    "tests/test_dies.py": "import os\n\n\ndef test_before():\n    pass\n\n\ndef test_dies():\n    os._exit(0)\n",
    "tests/test_hangs.py": "import time\n\n\ndef test_hangs():\n    time.sleep(60)\n",
}


@pytest.fixture(scope="module", autouse=True)
def without_plugins() -> Iterator[None]:
    """The tiny repositories need none, and start faster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny repository with a test of every sort."""
    root = tmp_path_factory.mktemp("shop")
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture(scope="module")
def symbols(root: Path) -> SymbolIndex:
    return SymbolIndex(root)


@pytest.fixture(scope="module")
def tests(root: Path) -> TestIndex:
    return collect_tests(root)


def line_of(file: str, text: str) -> int:
    return next(number for number, line in enumerate(FILES[file].splitlines(), 1) if text in line)


@pytest.mark.parametrize(
    ("name", "kind", "signature", "first", "last", "summary"),
    [
        ("shop.till", "module", "shop.till", '"""The till', "LIMIT", "The till."),
        ("shop.till.Till", "class", "Till(amount: int)", "@dataclass", '"""Add', "Holds money until the evening."),
        ("shop.Till", "class", "Till(amount: int)", "@dataclass", '"""Add', "Holds money until the evening."),
        ("shop.till.Till.amount", "attribute", "Till.amount: int", "amount: int", "amount: int", "In cents."),
        ("shop.till.Till.full", "attribute", "Till.full: bool", "def full", "return self", ""),
        (
            "shop.till.Till.add",
            "function",
            "Till.add(cents: int, *, note: str = '') -> Till",
            "def add",
            "Add.",
            "Add.",
        ),
        ("shop.till.total", "function", "total(*prices: int) -> int", "@cache", "return sum", "Sum."),
        ("shop.till.LIMIT", "attribute", "LIMIT: int = 10", "LIMIT", "LIMIT", ""),
    ],
)
def test_a_symbol_is_found_without_importing_it(
    symbols: SymbolIndex, name: str, kind: str, signature: str, first: str, last: str, summary: str
) -> None:
    found = citations.symbol(symbols, name, "docs/x.md", 3)
    assert isinstance(found, Symbol)
    assert (found.name, found.kind, found.signature, found.summary) == (name, kind, signature, summary)
    assert found.file == "src/shop/till.py"
    assert (found.first, found.last) == (line_of(found.file, first), line_of(found.file, last))
    assert found.canonical == name.replace("shop.Till", "shop.till.Till")


def test_packages_that_have_been_read_are_not_read_again(
    root: Path, symbols: SymbolIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = griffe.load("shop", search_paths=[str(root / "src")], allow_inspection=False)
    names = ("shop.till.Till", "shop.Till", "shop.till.Till.add", "shop.heavy.lift")
    expected = [symbols.find(name) for name in names]
    monkeypatch.setattr(griffe.GriffeLoader, "load", lambda *_, **__: pytest.fail("read again"))
    other = SymbolIndex(root, modules=read.modules_collection)
    assert [other.find(name) for name in names] == expected
    assert None not in expected


def test_a_symbol_of_a_module_that_cannot_be_imported_is_found(symbols: SymbolIndex) -> None:
    found = citations.symbol(symbols, "shop.heavy.lift", "docs/x.md", 3)
    assert isinstance(found, Symbol)
    assert (found.file, found.first) == ("src/shop/heavy.py", 4)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("shop.till.weigh", "most likely now shop.counter.weigh"),
        ("shop.register.Till.add", "most likely now shop.till.Till.add"),
        ("shop.till.totals", "most likely now shop.till.total"),
        ("shop.till.Till.sub.x", "nothing with that name is left"),
        ("shop.counter.wheigh", "most likely now shop.counter.weigh"),
        ("store.till.total", "most likely now shop.till.total"),
        ("os.path", "nothing with that name is left"),
        ("shop.till.dataclass", "nothing with that name is left"),
        ("", "unknown symbol"),
    ],
)
def test_an_unknown_symbol_is_a_failure_that_says_where_it_went(symbols: SymbolIndex, name: str, said: str) -> None:
    found = citations.symbol(symbols, name, "docs/x.md", 3)
    assert isinstance(found, Failure)
    assert (found.path, found.line) == ("docs/x.md", 3)
    assert said in found.text


@pytest.mark.parametrize(
    ("name", "first", "last", "cases"),
    [
        ("test_plain", "def test_plain", 'weigh("x") == 1', 1),
        ("test_cases", "@pytest.mark.parametrize(", "weigh(thing)", 2),
        ("test_cases[b c]", "@pytest.mark.parametrize(", "weigh(thing)", 1),
        ("TestGroup::TestDeeper::test_deep", "@pytest.mark.usefixtures", None, 1),
        ("TestGroup", "class TestGroup", None, 2),
    ],
)
def test_a_test_is_found_with_its_lines_and_cases(
    tests: TestIndex, name: str, first: str, last: str | None, cases: int
) -> None:
    found = citations.test(tests, f"tests/test_ok.py::{name}", "docs/x.md", 3)
    assert isinstance(found, CitedTest)
    assert found.file == "tests/test_ok.py"
    assert found.first == line_of(found.file, first)
    assert found.last == (line_of(found.file, last) if last else line_of(found.file, "def test_deep") + 1)
    assert len(found.cases) == cases


def test_a_file_of_tests_may_be_cited(tests: TestIndex) -> None:
    found = citations.test(tests, "tests/test_ok.py", "docs/x.md", 3)
    assert isinstance(found, CitedTest)
    assert (found.first, found.last) == (1, len(FILES["tests/test_ok.py"].splitlines()))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tests/test_old.py::test_plain", "most likely now tests/test_ok.py::test_plain"),
        ("tests/test_old.py::test_cases[a]", "most likely now tests/test_ok.py::test_cases"),
        ("tests/test_ok.py::test_plane", "most likely now tests/test_ok.py::test_plain"),
        ("tests/test_ok.py::test_cases[z]", "most likely now tests/test_ok.py::test_cases"),
        ("tests/test_ok.py::test_cas", "most likely now tests/test_ok.py::test_cases"),
        ("tests/test_ok.py::never_heard_of", "nothing with that name is left"),
        ("tests/test_broken.py::test_a", "is not collected: ModuleNotFoundError"),
    ],
)
def test_an_unknown_test_is_a_failure_that_says_where_it_went(tests: TestIndex, name: str, said: str) -> None:
    found = citations.test(tests, name, "docs/x.md", 3)
    assert isinstance(found, Failure)
    assert (found.path, found.line) == ("docs/x.md", 3)
    assert said in found.text


def test_a_collection_that_cannot_begin_says_why(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\naddopts = "--no-such-option"\n')
    found = citations.test(collect_tests(tmp_path), "tests/test_x.py::test_x", "docs/x.md", 3)
    assert isinstance(found, Failure)
    assert "--no-such-option" in found.text


VERDICTS = {
    "test_ok.py::test_plain": (TestVerdict.PASSED, ""),
    "test_ok.py::test_cases": (TestVerdict.PASSED, ""),
    "test_ok.py::test_cases[b c]": (TestVerdict.PASSED, ""),
    "test_ok.py::TestGroup": (TestVerdict.PASSED, ""),
    "test_ok.py::test_half[0]": (TestVerdict.PASSED, ""),
    "test_ok.py::test_half": (TestVerdict.FAILED, "call: AssertionError: assert 1 == 0"),
    "test_ok.py::test_fails": (TestVerdict.FAILED, "call: AssertionError: tests"),
    "test_ok.py::test_skip": (TestVerdict.SKIPPED, "not today"),
    "test_ok.py::test_half_skipped": (TestVerdict.SKIPPED, "half a skip"),
    "test_ok.py::test_xfail": (TestVerdict.XFAILED, "known"),
    "test_ok.py::test_xpass": (TestVerdict.XPASSED, "[XPASS(strict)] known"),
    "test_ok.py::test_xpass_lenient": (TestVerdict.XPASSED, "known"),
    "test_ok.py::test_slow": (TestVerdict.DESELECTED, "deselected by the project's options"),
    "test_ok.py::test_setup": (TestVerdict.ERROR, "setup: OSError: no disk"),
    "test_ok.py::test_teardown": (TestVerdict.ERROR, "teardown: OSError: no end"),
    "test_ok.py::test_gone": (TestVerdict.NOT_COLLECTED, "there is no test tests/test_ok.py::test_gone"),
    "test_gone.py::test_gone": (TestVerdict.NOT_COLLECTED, "there is no test"),
    "test_broken.py::test_a": (TestVerdict.ERROR, "could not be collected: ModuleNotFoundError"),
    "test_whole_skip.py::test_a": (TestVerdict.SKIPPED, "could not import 'nothing_here'"),
}


@pytest.fixture(scope="module")
def results(root: Path) -> dict[str, TestResult]:
    return run_tests(root, [f"tests/{name}" for name in VERDICTS])[0]


@pytest.mark.parametrize("name", VERDICTS)
def test_only_a_test_whose_every_case_passed_in_its_call_is_passed(results: dict[str, TestResult], name: str) -> None:
    result, (verdict, reason) = results[f"tests/{name}"], VERDICTS[name]
    assert result.verdict is verdict, result
    assert reason in result.reason
    failure = citations.test_failure(result, "docs/x.md", 3)
    assert (failure is None) == (verdict is TestVerdict.PASSED)
    shown = render_test_verdict(name, result)
    assert (
        ("bookproof-verdict--passed" in shown)
        == ("passed" in re.split(r"[ ,:<]", shown.partition(">")[2]))
        == (verdict is TestVerdict.PASSED)
    )


def test_a_process_that_dies_leaves_no_pass_behind_it(root: Path) -> None:
    results = run_tests(root, ["tests/test_dies.py::test_before", "tests/test_dies.py::test_dies", "tests/test_ok.py"])[
        0
    ]
    assert results["tests/test_dies.py::test_before"].verdict is TestVerdict.PASSED
    assert results["tests/test_dies.py::test_dies"].verdict is TestVerdict.NOT_RUN
    assert "the process ended during tests/test_dies.py::test_dies" in results["tests/test_dies.py::test_dies"].reason
    assert results["tests/test_ok.py"].verdict is not TestVerdict.PASSED


def test_a_run_that_never_ends_is_ended(root: Path) -> None:
    results, _ = run_tests(root, ["tests/test_hangs.py::test_hangs"], timeout_seconds=1)
    (result,) = results.values()
    assert result.verdict is TestVerdict.NOT_RUN
    assert result.reason.startswith("the time ran out")


def test_a_pass_on_a_package_from_elsewhere_does_not_count(root: Path, tmp_path: Path) -> None:
    (tmp_path / "src/shop").mkdir(parents=True)
    (tmp_path / "src/shop/__init__.py").write_text("")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_x.py").write_text(
        f"import sys\nsys.path.insert(0, {str(root / 'src')!r})\nimport shop.counter\n\ndef test_x():\n    pass\n"
    )
    (result,) = run_tests(tmp_path, ["tests/test_x.py::test_x"])[0].values()
    assert result.verdict is TestVerdict.ERROR or "was loaded from" in result.reason
    assert result.verdict is not TestVerdict.PASSED


LINKS = Links(base="../../", commit=SHA, repo_url="https://github.com/o/r.git/")


def test_inline_links_lead_into_the_site(symbols: SymbolIndex, tests: TestIndex) -> None:
    symbol, test = symbols.find("shop.till.total"), tests.find("tests/test_ok.py::test_plain")
    assert symbol is not None
    assert test is not None
    assert f'href="../../source/src/shop/till.py.html#L{symbol.first}"' in render_symbol_link(symbol, LINKS)
    assert f'href="../../source/tests/test_ok.py.html#L{test.first}"' in render_test_link(test, LINKS)
    mutation = Mutation("m", "t <", "f", "a", "b", "x", lines={"": 7})
    assert 'href="../../source/tests/mutations.toml.html#L7"' in render_mutation_link(mutation, LINKS)
    assert 'href="#mutation-m"' in render_mutation_link(mutation, LINKS, href="#mutation-m")
    assert 'title="t &lt;"' in render_mutation_link(mutation, LINKS)
    served = render_symbol_link(symbol, Links(sources=False))
    assert "href" not in served
    assert "left out while serving" in served


def test_the_production_map_links_each_line_and_shows_each_verdict(
    symbols: SymbolIndex, tests: TestIndex, results: dict[str, TestResult]
) -> None:
    symbol, test = symbols.find("shop.Till"), tests.find("tests/test_ok.py::test_skip")
    assert symbol is not None
    assert test is not None
    mutation = Mutation("m", "No <sum>", "f", "a", "b", "tests/x.py::y")
    killed = MutationResult(mutation, MutationVerdict.KILLED)
    html = render_production_map(
        [symbol], [(test, results[test.name]), (test, None)], [MapRow(mutation, killed)], LINKS
    )
    assert html.count("<caption>") == html.count("<table>") == 3
    assert html.count('<th scope="col">') == 9
    assert html.count('<th scope="row">') == 4
    assert f"https://github.com/o/r/blob/{SHA}/src/shop/till.py#L{symbol.first}-L{symbol.last}" in html
    assert '<autoref identifier="shop.till.Till">' in html
    assert "bookproof-verdict--skipped" in html
    assert "skipped: not today" in html
    assert "bookproof-verdict--running" in html
    assert "No &lt;sum&gt;" in html
    assert "<code>src/<wbr>shop/<wbr>till.<wbr>py</code>" in html, "a line breaks between the parts of a name"
    assert 'title="The test holds for the code as it is' in html
    assert 'href="#mutation-m"' in html, "to where the page shows it"
    assert "passed" not in html
    assert render_production_map([], [], [], LINKS) == ""


def test_a_branch_never_stands_in_a_link(symbols: SymbolIndex) -> None:
    symbol = symbols.find("shop.Till")
    assert symbol is not None
    for commit in ("main", "", SHA[:12]):
        assert "github" not in render_production_map([symbol], [], [], Links("", commit, "https://github.com/o/r"))


def test_without_autorefs_no_reference_is_left_unresolved(symbols: SymbolIndex) -> None:
    symbol = symbols.find("shop.Till")
    assert symbol is not None
    assert "autoref" not in render_production_map([symbol], [], [], Links(api=False))
