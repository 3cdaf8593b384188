"""Mutations: killed only by a judgement of the named test; every other way to fail has another verdict."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bookproof.mutations import (
    Mutation,
    MutationResult,
    MutationVerdict,
    UnusableMutations,
    load_mutations,
    mutate,
    normalise,
    render_mutation,
    run_mutations,
)
from bookproof.page import Failure
from bookproof.testrun import Spec, WarmRunner

PACKAGE = '''\
"""Shop."""

LIMIT = 10


def total(prices):
    """Sum."""
    return sum(prices)


def label(price):
    return f"{price} EUR"
'''

TESTS = """\
import os
import threading
import time

import pytest

from shop.till import total
from shop import till


@pytest.fixture
def basket():
    return [till.LIMIT, total([1])]


def test_total():
    prices = [1, 2]
    assert total(prices) == 3, "the sum is wrong"


@pytest.mark.parametrize("n", [0, 3, 5])
def test_cases(n):
    assert total([n]) < 5 or n == 5


class TestTill:
    def test_label(self):
        assert till.label(3) == "3 EUR"


def test_basket(basket):
    assert basket[1] == 1


def test_skips():
    if till.LIMIT > 10:
        pytest.skip("not today")
    assert till.LIMIT == 10


def test_exits():
    if till.LIMIT > 10:
        os._exit(0)


def test_loops():
    while till.LIMIT > 10:
        time.sleep(0.01)


def test_leaves_a_process(tmp_path):
    import subprocess
    subprocess.Popen(["sleep", "30"])
    assert till.LIMIT == 10, tmp_path


def test_raises():
    with pytest.raises(ValueError):
        if till.LIMIT == 10:
            raise ValueError


def test_late():
    assert True


@pytest.fixture
def late():
    yield
    assert till.LIMIT == 10


def test_teardown(late):
    pass


@pytest.mark.skip(reason="too slow")
def test_skipped():
    assert total([1]) == 1


@pytest.mark.xfail(reason="known", strict=False)
def test_xfail():
    assert total([1]) == 2


@pytest.mark.xfail(reason="known", strict=False)
def test_xpass():
    assert total([1]) == 1


@pytest.mark.slow
def test_slow():
    assert total([1]) == 1


def test_fails():
    assert total([1]) == 2


@pytest.fixture
def absent_resource():
    raise OSError("no such disk")


def test_fixture_error(absent_resource):
    assert total([1]) == 1


def test_never_ends():
    time.sleep(60)
"""

CONFIG = """\
[tool.pytest.ini_options]
addopts = ["-m", "not slow", "-q", "--import-mode=importlib"]
markers = ["slow: slow"]
"""

KILLER = {
    "file": "src/shop/till.py",
    "before": "sum(prices)",
    "after": "sum(prices) + 1",
    "test": "tests/test_till.py::test_total",
}


def make_shop(root: Path) -> Path:
    """Write a tiny package with tests of every sort."""
    for name, text in {
        "pyproject.toml": CONFIG,
        "src/shop/__init__.py": "",
        "src/shop/till.py": PACKAGE,
        "src/shop/unused.py": "VALUE = 1\n",
        "tests/test_till.py": TESTS,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return make_shop(tmp_path / "shop")


def mutation(**changes: object) -> Mutation:
    lines = {"": 1, "id": 2, "title": 3, "file": 4, "before": 5, "after": 6, "test": 7}
    values = {"id": "m", "title": "The sum is one too high", **KILLER, "lines": lines, **changes}
    return Mutation(**values)  # type: ignore[arg-type]  # the values of a test


def run(root: Path, **changes: object) -> MutationResult:
    (result,) = run_mutations(root, [mutation(**changes)], timeout_seconds=60)
    return result


LIMIT = {"before": "LIMIT = 10", "after": "LIMIT = 11"}
WRONG = {
    "ImportError": ({"before": '"""Shop."""', "after": "from os import nothing_of_the_kind"}, "import", "broken"),
    "ModuleNotFoundError": ({"before": '"""Shop."""', "after": "import nothing_of_the_kind"}, "nothing_of", "broken"),
    "late ImportError": (
        {"before": "    return sum(", "after": "    import nope\n    return sum("},
        "ImportError",
        "broken",
    ),
    "SyntaxError": ({"before": "return sum(prices)", "after": "return sum(prices"}, "no Python: SyntaxError", "broken"),
    "NameError": ({"before": "sum(prices)", "after": "summ(prices)"}, "NameError", "broken"),
    "UnboundLocalError": ({"before": "sum(prices)", "after": "x\n    x = 1"}, "NameError", "broken"),
    "AttributeError": ({"before": "sum(prices)", "after": "prices.total()"}, "AttributeError", "broken"),
    "error in a group": (
        {"before": "return sum(prices)", "after": "raise ExceptionGroup('many', [NameError('x')])"},
        "NameError",
        "broken",
    ),
    "fixture error": (
        {"before": "sum(prices)", "after": "1 / 0", "test": "tests/test_till.py::test_basket"},
        "in its setup",
        "broken",
    ),
    "teardown error": (LIMIT | {"test": "tests/test_till.py::test_teardown"}, "in its teardown", "broken"),
    "skipped": (LIMIT | {"test": "tests/test_till.py::test_skips"}, "skipped: not today", "broken"),
    "process gone": (LIMIT | {"test": "tests/test_till.py::test_exits"}, "process ended during", "broken"),
    "time-out": (
        LIMIT | {"test": "tests/test_till.py::test_loops"},
        "the time ran out during tests/test_till.py::test_loops",
        "timeout",
    ),
    "survivor": (LIMIT, "passes on the changed code too", "survived"),
    "name gone elsewhere": (
        {"file": "src/shop/unused.py", "before": "VALUE = 1", "after": "VALUE = one"},
        "shop.unused can no longer be imported: NameError",
        "broken",
    ),
    "no file": ({"file": "src/shop/gone.py"}, "no file src/shop/gone.py", "invalid"),
    "file outside": ({"file": "../shop.py"}, "no file ../shop.py", "invalid"),
    "matches twice": ({"before": "price"}, "occurs 4 times", "invalid"),
    "matches nowhere": ({"before": "sum( prices )"}, "occurs 0 times", "invalid"),
    "no such test": ({"test": "tests/test_till.py::test_gone"}, "there is no test", "invalid"),
    "no such test file": ({"test": "tests/test_gone.py::test_total"}, "there is no test", "invalid"),
    "skipped before": ({"test": "tests/test_till.py::test_skipped"}, "skipped: too slow", "invalid"),
    "xfailed before": ({"test": "tests/test_till.py::test_xfail"}, "xfailed: known", "invalid"),
    "xpassed before": ({"test": "tests/test_till.py::test_xpass"}, "xpassed: known", "invalid"),
    "deselected before": ({"test": "tests/test_till.py::test_slow"}, "is deselected", "invalid"),
    "failed before": (
        {"test": "tests/test_till.py::test_fails"},
        "failed: call: AssertionError: assert 1 == 2",
        "invalid",
    ),
    "fixture error before": (
        {"test": "tests/test_till.py::test_fixture_error"},
        "error: setup: OSError: no such disk",
        "invalid",
    ),
    "never ends before": ({"test": "tests/test_till.py::test_never_ends"}, "the time ran out during", "invalid"),
}


ENDLESS = ("time-out", "never ends before", "behind the first", "behind the second")
PLAIN = {
    "killed": {"title": "1 < 2 & more"},
    "one case": {"after": "sum(prices) + 3", "test": "tests/test_till.py::test_cases[3]"},
    "another case": {"after": "sum(prices) + 3", "test": "tests/test_till.py::test_cases[5]"},
    "behind the first": {},
    "behind the second": {"test": "tests/test_till.py::test_cases", "after": "sum(prices) + 5"},
    "class": {"before": '{price} EUR"', "after": '{price} USD"', "test": "tests/test_till.py::TestTill"},
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, MutationResult]:
    """Run them all in one go, as a build does: none may disturb another."""
    root = make_shop(tmp_path_factory.mktemp("batch"))
    changes = {kind: mutation(**row[0]) for kind, row in WRONG.items()}
    changes |= {kind: mutation(**row) for kind, row in PLAIN.items()}
    found: dict[str, MutationResult] = {}
    for endless, timeout_seconds in ((False, 60), (True, 5)):
        batch = {kind: one for kind, one in changes.items() if (kind in ENDLESS) == endless}
        found |= zip(batch, run_mutations(root, list(batch.values()), timeout_seconds=timeout_seconds), strict=True)
    assert (root / "src/shop/till.py").read_text() == PACKAGE
    return found


@pytest.mark.parametrize("kind", WRONG)
def test_every_other_way_to_fail_is_no_kill(kind: str, results: dict[str, MutationResult]) -> None:
    result, (_, said, verdict) = results[kind], WRONG[kind]
    assert result.verdict == verdict, result
    assert said in result.detail
    failure = result.failure()
    assert failure is not None
    assert said in failure.text


def test_fresh_processes_serve_where_fork_is_missing(shop: Path) -> None:
    (killed,) = run_mutations(shop, [mutation()], timeout_seconds=60, fork=False)
    assert killed == run_mutations(shop, [mutation()])[0]
    with WarmRunner(shop, [shop / "src"], fork=False) as runner:
        spec = Spec(("tests/test_till.py",), ("tests/test_till.py::test_never_ends",))
        assert runner.run(spec, timeout_seconds=1).timed_out


def test_a_change_that_the_test_notices_is_killed(results: dict[str, MutationResult]) -> None:
    result = results["killed"]
    assert result.verdict is MutationVerdict.KILLED, result
    assert result.failure() is None
    assert result.detail == ""
    assert (result.file, result.code) == ("tests/test_till.py", 'assert total(prices) == 3, "the sum is wrong"')
    assert TESTS.splitlines()[result.line - 1].strip() == result.code
    assert result.text.startswith("AssertionError: the sum is wrong\nassert 4 == 3")
    assert "-    return sum(prices)\n+    return sum(prices) + 1\n" in result.diff


def test_the_failing_statement_is_found_whatever_strings_stand_around_it(shop: Path) -> None:
    """A method whose strings reach the margin is Python only as it is indented."""
    text = """
from shop.till import total

class TestTill:
    def test_total(self):
        listing = '''
margin
'''
        assert listing
        assert (
            total([1, 2]) == 3
        )
"""
    (shop / "tests/test_method.py").write_text(text)
    result = run(shop, test="tests/test_method.py::TestTill::test_total")
    assert result.verdict is MutationVerdict.KILLED, result
    assert result.code == "assert (\n    total([1, 2]) == 3\n)"


def test_a_test_that_names_one_case_or_a_class_is_run_as_such(results: dict[str, MutationResult]) -> None:
    assert results["one case"].verdict is MutationVerdict.KILLED
    assert results["another case"].verdict is MutationVerdict.SURVIVED
    assert results["class"].verdict is MutationVerdict.KILLED


def test_the_copy_is_what_runs_even_where_the_project_is_installed(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed project stands on the path of every process; the copy's folder comes before it."""
    monkeypatch.setenv("PYTHONPATH", str(shop / "src"))
    assert run(shop).verdict is MutationVerdict.KILLED


def test_a_package_from_elsewhere_is_noticed(shop: Path, tmp_path: Path) -> None:
    """A conftest that puts another tree first would have the untouched code tested: no verdict comes of that."""
    other = make_shop(tmp_path / "other")
    (shop / "tests/conftest.py").write_text(f"import sys\nsys.path.insert(0, {str(other / 'src')!r})\n")
    result = run(shop)
    assert result.verdict is MutationVerdict.INVALID
    assert "shop was loaded from" in result.detail


def test_a_test_that_never_ends_stops_no_other(results: dict[str, MutationResult]) -> None:
    assert results["behind the first"].verdict is MutationVerdict.KILLED
    assert results["behind the second"].verdict is MutationVerdict.KILLED


def test_a_test_that_leans_on_another_does_not_pass_before(shop: Path) -> None:
    """Alone on the changed code it would fail for want of the other, and be counted as a kill."""
    (shop / "tests/test_till.py").write_text(
        "from shop.till import total\nSEEN = []\n"
        "def test_first():\n    SEEN.append(total([1]))\n"
        "def test_total():\n    assert SEEN == [1]\n"
    )
    both = [mutation(test="tests/test_till.py::test_first"), mutation()]
    first, second = run_mutations(shop, both, workers=1)
    assert first.verdict is MutationVerdict.SURVIVED
    assert second.verdict is MutationVerdict.INVALID


def test_options_of_plugins_that_are_not_loaded_are_reported(shop: Path) -> None:
    (shop / "pyproject.toml").write_text('[tool.pytest.ini_options]\naddopts = "--no-such-option"\n')
    result = run(shop)
    assert result.verdict is MutationVerdict.INVALID
    assert "--no-such-option" in result.detail


def test_two_runs_give_the_same_result(shop: Path) -> None:
    """Neither the temporary folder, nor an address, nor the time of day stands in it."""
    (shop / "tests/test_till.py").write_text(
        "from datetime import datetime, UTC\nfrom shop.till import total\n"
        "def test_total(tmp_path):\n    now = datetime.now(UTC)\n"
        "    assert total([1]) == 1, (tmp_path, object(), str(now), {'a', 'b', 'c'})\n"
    )
    first, second = run(shop), run(shop)
    assert first == second
    assert first.verdict is MutationVerdict.KILLED
    assert "<tmp>" in first.text
    assert "<address>" in first.text
    assert "<time>" in first.text


def test_a_time_that_the_test_names_is_kept() -> None:
    assert (
        normalise("2001-02-03T04:05:06.000000Z in /x/y/z", {"/x/y": "<tmp>"})
        == "2001-02-03T04:05:06.000000Z in <tmp>/z"
    )


TOML = """\
[[mutation]]
id = "sum"
title = "The sum is one too high"
file = "src/shop/till.py"
before = '''
[[mutation]]
id = "not this one"
'''
after = ""
test = "tests/test_till.py::test_total"

[[mutation]]
id = "limit"
title = "The limit grows"
file = "src/shop/till.py"
before = "LIMIT = 10"
after = "LIMIT = 11"
test = "tests/test_till.py::test_leaves_a_process"
mechanism = "till"
browser = false
why = "starts a process"
"""


def load(root: Path, text: str) -> tuple[tuple[Mutation, ...], tuple[Failure, ...]]:
    (root / "tests").mkdir(exist_ok=True)
    (root / "tests/mutations.toml").write_text(text)
    return load_mutations(root)


def test_mutations_are_read_with_the_line_of_each_key(tmp_path: Path) -> None:
    (first, second), failures = load(tmp_path, TOML)
    assert failures == ()
    assert (first.id, first.browser, first.before) == ("sum", True, '[[mutation]]\nid = "not this one"\n')
    assert (second.id, second.browser, second.why, second.mechanism) == ("limit", False, "starts a process", "till")
    assert (first.lines[""], first.lines["id"], second.lines[""], second.lines["before"]) == (1, 2, 12, 16)
    assert second.failure("before", "x") == Failure("tests/mutations.toml", 16, "mutation limit: x")
    assert second.failure("no such key", "x").line == 12


def test_a_repository_without_the_file_has_no_mutation(tmp_path: Path) -> None:
    assert load_mutations(tmp_path) == ((), ())
    assert run_mutations(tmp_path, ()) == ()


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ('id = "limit"', 'id = "sum"', 13, "taken since line 2"),
        ('id = "limit"', 'id = "Sum It"', 13, "lower-case"),
        ('id = "limit"', "id = 3", 13, "'id' must be text"),
        ('id = "limit"', 'id = "limit"\ntset = "x"', 14, "unknown key 'tset'; did you mean 'test'?"),
        ('title = "The limit grows"\n', "", 12, "has no 'title'"),
        ('title = "The limit grows"', 'title = " "', 14, "'title' is blank"),
        ('after = "LIMIT = 11"', 'after = "LIMIT = 10"', 17, "nothing would change"),
        ('why = "starts a process"', "", 20, "needs a 'why'"),
        ("browser = false", 'browser = "no"', 20, "'browser' must be true or false"),
        ("browser = false", "browser = no", 20, "not valid TOML"),
        (TOML, "mutation = 3", 0, "array of tables"),
        (TOML, TOML + "[extra]\n", 0, "unknown top-level key 'extra'"),
    ],
)
def test_a_fault_in_the_file_is_reported_at_its_line(tmp_path: Path, old: str, new: str, line: int, said: str) -> None:
    _, failures = load(tmp_path, TOML.replace(old, new, 1))
    assert len(failures) == 1
    assert (failures[0].path, failures[0].line) == ("tests/mutations.toml", line)
    assert said in failures[0].text


def test_an_invalid_mutation_is_reported_at_the_key_to_blame(results: dict[str, MutationResult]) -> None:
    assert [
        failure.line for kind in ("matches twice", "no file", "no such test") if (failure := results[kind].failure())
    ] == [5, 4, 7]


def test_mutate_runs_what_is_asked_for(shop: Path) -> None:
    load(shop, TOML)
    (result,) = mutate(shop, ["limit"], timeout_seconds=60)
    assert result.verdict is MutationVerdict.KILLED
    assert str(result).startswith("killed   limit: tests/test_till.py:")
    assert result.as_json()["failing"]["text"].startswith("AssertionError: PosixPath('<tmp>/test_leaves_a_process0")
    with pytest.raises(UnusableMutations, match="no mutation 'limits'; did you mean 'limit'"):
        mutate(shop, ["limits"])


def test_the_figure_marks_lines_by_sign_and_element(results: dict[str, MutationResult]) -> None:
    html = render_mutation(results["killed"], failing_href="../x.html#L1")
    assert "<figcaption>Mutation: 1 &lt; 2 &amp; more</figcaption>" in html
    assert '<del class="bookproof-diff-removed">-    return sum(prices)</del>' in html
    assert '<ins class="bookproof-diff-added">+    return sum(prices) + 1</ins>' in html
    assert re.search(r'<a href="../x.html#L1"><code>tests/test_till.py:\d+</code></a>', html.replace("<wbr>", ""))
    assert 'bookproof-verdict--killed">killed: the test passed before' in html
    assert 'id="mutation-m"' in html


def test_at_most_three_mutations_are_out_of_a_readers_reach(tmp_path: Path) -> None:
    """The fourth is reported at its own line; the others stand."""
    (tmp_path / "tests").mkdir()
    keys = (
        'title = "t"\nfile = "f.py"\nbefore = "a"\nafter = "b"\ntest = "t.py::t"\nbrowser = false\nwhy = "a process"\n'
    )
    entry = '[[mutation]]\nid = "m{0}"\n' + keys
    (tmp_path / "tests" / "mutations.toml").write_text("".join(entry.format(number) for number in range(4)))
    mutations, failures = load_mutations(tmp_path)
    assert len(mutations) == 4
    assert [(failure.line, failure.text) for failure in failures] == [
        (35, "at most 3 mutations may say browser = false")
    ]
