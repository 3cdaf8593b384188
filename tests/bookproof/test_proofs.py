"""What a page cites is looked up, run, shown with this build's verdict, and red at its line where it does not hold."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import TinySite

pytestmark = pytest.mark.site

TESTS = """
    import pytest
    import pack

    def test_adds():
        assert pack.add(1, 2) == 3

    def test_fails():
        assert pack.add(1, 2) == 4

    @pytest.mark.skip(reason="not today")
    def test_skipped():
        pass

    @pytest.mark.xfail
    def test_expected_to_fail():
        assert False
"""
MUTATION = """
    [[mutation]]
    id = "minus"
    title = "Subtract instead"
    file = "src/pack.py"
    before = "a + b"
    after = "a - b"
    test = "tests/test_pack.py::test_adds"
"""
PAGE = """
    ---
    symbols:
      - pack.add
    tests:
      - tests/test_pack.py::test_adds
    mutation: minus
    ---
    # Add

    See {symbol}`pack.add`, {test}`tests/test_pack.py::test_adds` and {mutation}`minus`.

    <!-- bookproof: mutation minus -->

    <!-- bookproof: production-map -->

    ## After
"""


@pytest.fixture
def book(site: TinySite) -> TinySite:
    site.write("src/pack.py", "def add(a: int, b: int) -> int:\n    return a + b\n")
    site.write("pyproject.toml", "[tool.pytest.ini_options]\n")
    site.write("tests/test_pack.py", TESTS)
    site.write("docs/index.md", "# Home\n")
    return site


def test_a_page_shows_what_it_proves(book: TinySite) -> None:
    book.write("tests/mutations.toml", MUTATION)
    book.write("docs/index.md", PAGE)
    book.write("docs/evidence/index.md", "# Evidence\n\n<!-- bookproof: evidence -->\n")
    built = book.build("--strict")
    assert built.returncode == 0, built.log
    html = built.html()
    assert html.index("bookproof-mutation") < html.index('<div class="bookproof-map">') < html.index("After</h2>")
    assert html.count('<div class="bookproof-map">') == 1
    assert html.count('<figure class="bookproof-mutation"') == 1
    assert 'data-bookproof-test="tests/test_pack.py::test_adds">passed<' in html
    assert 'href="source/src/pack.py.html#L1"' in html
    assert re.search(r"assert -1 == 3", html), "the failing line's report"
    assert "{symbol}" not in html
    assert '<a href="evidence/">Evidence</a>' in html
    evidence = built.html("evidence")
    assert "Mutations run</th><td>1<" in evidence
    assert 'href="../source/tests/mutations.toml.html#L1"' in evidence
    record = json.loads((built.site / "provenance.json").read_text())
    assert record["tests"]["tests/test_pack.py::test_adds"]["verdict"] == "passed"
    assert record["mutations"]["minus"]["verdict"] == "killed"
    assert "source/src/pack.py.html" in record["files"]


def test_what_a_page_says_without_ground_is_red_at_its_line(book: TinySite) -> None:
    book.write(
        "docs/index.md",
        """
        ---
        symbols:
          - pack.added
        tests:
          - tests/test_pack.py::test_adds
          - tests/test_pack.py::test_fails
          - tests/test_pack.py::test_skipped
          - tests/test_pack.py::test_expected_to_fail
          - tests/test_gone.py::test_adds
        mutation: [plus]
        ---
        # Home

        Said in the text: {symbol}`pack.gone` and {tests}`x`.
        """,
    )
    built = book.build("-q")
    assert built.returncode == 1
    told = {line.split(": ")[0]: line for line in built.failures if line.startswith("docs/index.md")}
    assert "unknown symbol pack.added; most likely now pack.add" in told["docs/index.md:3"]
    assert "docs/index.md:5" not in told
    assert "test_fails: failed" in told["docs/index.md:6"]
    assert "skipped: not today" in told["docs/index.md:7"].replace("Skipped: ", "")
    assert "test_expected_to_fail: xfailed" in told["docs/index.md:8"]
    assert "most likely now tests/test_pack.py::test_adds" in told["docs/index.md:9"]
    assert "plus" in told["docs/index.md:10"]
    lines = [line for line in built.failures if line.startswith("docs/index.md:14")]
    assert len(lines) == 2, "the unknown symbol and the unknown role"


def test_a_surviving_mutation_is_red_at_its_own_line(book: TinySite) -> None:
    book.write("tests/mutations.toml", MUTATION.replace("a - b", "b + a"))
    built = book.build("-q")
    assert built.returncode == 1
    assert re.search(r"tests/mutations\.toml:7: mutation minus: survived", built.log), built.log


def test_front_matter_with_another_name_or_form_is_red(book: TinySite) -> None:
    book.write("docs/index.md", "---\ntest: tests/test_pack.py::test_adds\nsymbols: 3\n---\n# Home\n")
    told = book.build("-q").failures
    assert told == [
        "docs/index.md:2: front matter: write tests, not test",
        "docs/index.md:3: front matter: symbols is a list of names",
    ]


def test_a_module_that_does_not_parse_is_a_failure_of_the_page_that_cites_it(book: TinySite) -> None:
    book.write("src/pack.py", "def add(:\n")
    book.write("docs/index.md", "# Home\n\n{symbol}`pack.add`\n")
    built = book.build("-q")
    assert "docs/index.md:3: symbol pack.add cannot be looked up" in built.log
    assert str(book.root) not in "\n".join(built.failures)


def test_the_whole_site_is_checked_and_nothing_is_left_of_a_bad_one(book: TinySite) -> None:
    book.write(
        "docs/index.md",
        """
        # Home

        ![picture](https://example.org/a.png)

        <p id="twice"></p><p id="twice"></p>

        <a href="nowhere/">raw</a>
        """,
    )
    built = book.build("-q")
    assert built.returncode == 1
    lines = {failure.split(": ")[0] for failure in built.failures}
    assert {"docs/index.md:3", "docs/index.md:5", "docs/index.md:7"} <= lines, built.log
    assert list(built.site.iterdir()) == []


def test_every_verdict_runs_again_when_the_code_changes(book: TinySite) -> None:
    book.write("tests/mutations.toml", MUTATION)
    book.write("docs/index.md", PAGE)
    assert book.build("-q").returncode == 0
    book.write("src/pack.py", "def add(a: int, b: int) -> int:\n    return a + b + 1\n")
    built = book.build("-q")
    assert built.returncode == 1
    assert "docs/index.md:5: cited test tests/test_pack.py::test_adds: failed" in built.log


def test_a_page_that_another_extension_cannot_render_is_one_failure_among_others(book: TinySite) -> None:
    book.plugins = "  - mkdocstrings: {handlers: {python: {paths: [src]}}}"
    book.write("docs/api.md", "# API\n\n::: pock\n")
    book.write("docs/index.md", '```python exec="on"\n1 / 0\n```\n')
    built = book.build("-q")
    assert built.returncode == 1
    assert "docs/api.md:3: this page cannot be rendered" in built.log
    assert "docs/index.md:2: python example failed" in built.log
