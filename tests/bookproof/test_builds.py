"""Whole builds of tiny sites: what a page shows, what is compared, and what is left when a build fails."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import TinySite

pytestmark = pytest.mark.site

CLEAN = """
    # Clean

    ```python exec="on" id="sum"
    print(1 + 1)
    ```
"""
FAILING = '```python exec="on"\nraise ValueError("empty")\n```\n'


def text_of(html: str) -> str:
    """Return the text of a page, without tags."""
    return re.sub(r"<[^>]+>", "", html).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def test_a_clean_site_is_green_without_a_warning(site: TinySite) -> None:
    site.options = "timeout_seconds: 5"
    site.write("docs/index.md", CLEAN)
    assert site.accept().returncode == 0
    built = site.build("--strict")
    assert built.returncode == 0
    assert "WARNING" not in built.log
    assert "2\n" in text_of(built.html())
    assert (built.site / "provenance.json").is_file()


@pytest.mark.parametrize("flags", [(), ("--strict",), ("-q",), ("-v",), ("-q", "--strict"), ("-v", "--strict")])
def test_a_failure_is_told_and_leaves_no_site_at_every_verbosity(site: TinySite, flags: tuple[str, ...]) -> None:
    site.write("docs/index.md", FAILING)
    (site.root / "site").mkdir()
    (site.root / "site" / "old.html").write_text("of an earlier build")
    built = site.build(*flags)
    assert built.returncode == 1
    assert "docs/index.md:2: python example failed: ValueError: empty" in built.log
    assert list(built.site.iterdir()) == []


def test_all_failures_of_all_pages_come_in_one_run(site: TinySite) -> None:
    site.write("docs/index.md", FAILING + "\n" + FAILING)
    site.write("docs/deep/other.md", '---\ntitle: x\n---\n\n```python exec="on"\nimport sys\nsys.exit()\n```\n')
    built = site.build("-q")
    places = [failure.partition(" ")[0] for failure in built.failures]
    assert places == ["docs/deep/other.md:7:", "docs/index.md:2:", "docs/index.md:6:"]


def test_the_abort_of_strict_mode_leaves_no_site(site: TinySite) -> None:
    site.write("docs/index.md", "[dead](nowhere.md)\n")
    built = site.build("--strict")
    assert built.returncode == 1
    assert list(built.site.iterdir()) == []


def test_an_error_of_the_theme_leaves_no_site(site: TinySite) -> None:
    """Whatever ends a build, what was there before is not to be published."""
    site.write("docs/index.md", "---\ntemplate: broken.html\n---\n# Home\n")
    site.write("theme/broken.html", "{{ nothing.at.all }}")
    (site.root / "site").mkdir()
    (site.root / "site" / "old.html").write_text("of an earlier build")
    built = site.build()
    assert built.returncode != 0
    assert list(built.site.iterdir()) == []


@pytest.mark.parametrize(
    "wrapped", ["", "!!! note\n\n    ", '=== "Tab"\n\n    ', "- item\n\n    ", "> ", "1. a\n\n    - b\n\n        "]
)
def test_the_line_is_right_in_every_container(site: TinySite, wrapped: str) -> None:
    head, _, prefix = wrapped.rpartition("\n")
    block = "\n".join(prefix + line for line in FAILING.rstrip().split("\n"))
    page = f"---\ntitle: x\n---\n\n{head}{chr(10) if head else ''}{block}\n"
    site.write("docs/index.md", page)
    line = page.split("\n").index(f'{prefix}raise ValueError("empty")') + 1
    assert f"docs/index.md:{line}: python example failed" in site.build("-q").log


def test_everything_that_is_written_is_shown(site: TinySite) -> None:
    """Prints of the package, of child processes and through sys.stdout, with sep and end, in their order."""
    site.write("src/pack.py", "import sys\n\ndef speak():\n    print('package')\n    sys.stdout.write('written\\n')\n")
    site.write(
        "docs/index.md",
        """
        ```python exec="on"
        import os, pack, sys
        pack.speak()
        print("a", "b", sep="|", end="!\\n")
        os.system("echo child")
        print("error", file=sys.stderr)
        ```
        """,
    )
    built = site.build()
    assert "package\nwritten\na|b!\nchild\nerror\n" in text_of(built.html())
    assert "package" not in built.log


def test_pages_share_nothing(site: TinySite) -> None:
    site.write(
        "docs/a.md",
        """
        ```python exec="on" session="s"
        import builtins, os, pathlib, sys
        builtins.leak = sys.leak = os.environ["LEAK"] = "leaked"
        pathlib.Path("leak").touch()
        ```
        """,
    )
    site.write(
        "docs/index.md",
        """
        ```python exec="on" session="s"
        import builtins, os, pathlib, sys
        print("clean:", "LEAK" not in os.environ, not hasattr(sys, "leak"), not pathlib.Path("leak").exists())
        ```
        """,
    )
    assert "clean: True True True" in text_of(site.build().html())


def test_blocks_of_a_page_share_a_folder_and_their_session(site: TinySite) -> None:
    site.write(
        "docs/index.md",
        """
        ```python exec="on" session="s"
        def double(x): return factor * x
        ```

        ```bash exec="on"
        echo 21 > number
        ```

        ```python exec="on" session="s"
        factor = 2
        print(double(int(open("number").read())))
        ```

        ```python exec="on" raises="NameError"
        factor
        ```
        """,
    )
    html = text_of(site.build().html())
    assert "42" in html
    assert "NameError: name 'factor' is not defined" in html


def test_a_block_that_is_meant_to_fail_is_shown_failing(site: TinySite) -> None:
    site.write("src/pack.py", "class Refusal(Exception): ...\nclass Narrow(Refusal): ...\n")
    site.write(
        "docs/index.md",
        """
        ```python exec="on" raises="Refusal"
        import pack
        print("before")
        raise pack.Narrow("not yours")
        ```

        ```console exec="on" returncode="3"
        $ echo before
        $ echo "refused" >&2; exit 3
        ```
        """,
    )
    html = text_of(site.build().html())
    assert "before\npack.Narrow: not yours\n" in html
    assert "\u2717 Fails on purpose: raises Refusal" in html
    assert "refused" in html
    assert "\u2717 Fails on purpose: exit code 3" in html
    assert site.build().html().count('class="bookproof-example bookproof-example--fails"') == 2
    listings = re.findall(r'<div id="([^"]+)" class="[^"]*highlight"', site.build().html())
    assert len(set(listings)) == len(listings) == 3, "a copy button finds its own listing by id"


def test_markdown_that_a_block_prints_is_rendered_and_its_links_are_checked(site: TinySite) -> None:
    site.write("docs/other.md", "# Other\n")
    site.write(
        "docs/index.md",
        """
        # Home

        ```python exec="on" id="made" source="none" result="markdown"
        print("## Printed\\n\\n| a |\\n|--:|\\n| 1 |\\n\\n[other](other.md)")
        ```
        """,
    )
    html = site.build("--strict").html()
    assert '<h2 id="made-printed">Printed</h2>' in html
    assert 'style="text-align: right;">1</td>' in html
    assert 'href="other/"' in html
    assert "<p><div" not in html


def test_printed_headings_and_tables_keep_what_they_mean(site: TinySite) -> None:
    """A heading stands in the table of contents; a caption, a scope and the heads of a table stay what they are."""
    site.theme = (
        "{% for one in page.toc.items %}[{{ one.title }}: {{ one.children[0].url }}]{% endfor %}{{ page.content }}"
    )
    site.write(
        "docs/index.md",
        """
        # Home

        ```python exec="on" id="made" source="none" result="markdown"
        print("## Printed\\n\\n| head |\\n|---|\\n| cell |\\n")
        print('<table><caption>What</caption><tr><th scope="row">a</th><td>1</td></tr></table>')
        ```
        """,
    )
    html = site.build("--strict").html()
    assert "[Home: #made-printed]" in html
    assert '<thead>\n<tr>\n<th scope="col">head</th>' in html
    assert '<table><caption>What</caption><tr><th scope="row">a</th><td>1</td></tr></table>' in html


def test_a_lab_is_found_by_its_name(site: TinySite) -> None:
    site.write("docs/index.md", '```python exec="on" id="sum" lab\nprint(1 + 1)\n```\n')
    element = '<div class="bookproof-example bookproof-example--lab" id="example-sum" data-lab="sum">'
    html = site.build("--strict", BOOKPROOF_LABS="off").html()
    assert element in html
    assert "The labs are left out of this draft (BOOKPROOF_LABS=off)." in html


def test_labs_that_nothing_pins_are_red(site: TinySite) -> None:
    site.write("docs/index.md", '```python exec="on" id="sum" lab\nprint(1 + 1)\n```\n')
    built = site.build("-q")
    assert built.returncode == 1
    assert "docs/index.md:1: labs need Pyodide, and nothing pins it" in built.log


def test_a_page_that_was_drawn_without_labs_is_not_remembered_for_a_build_with_them(site: TinySite) -> None:
    site.options = 'outputs: ""\ncache: .bookproof'
    site.write("docs/index.md", '```python exec="on" id="sum" lab\nprint(1 + 1)\n```\n')
    assert "left out of this draft" in site.build("-q", BOOKPROOF_LABS="off").html()
    assert site.build("-q").returncode == 1, "nothing pins Pyodide"


def test_a_dead_link_that_a_block_prints_is_red(site: TinySite) -> None:
    site.write("docs/index.md", '```python exec="on" result="markdown"\nprint("[dead](nowhere.md)")\n```\n')
    built = site.build("-q")
    assert built.returncode == 1
    assert "docs/index.md:" in built.log
    assert "nowhere.md" in built.log


def test_what_was_normalised_is_said(site: TinySite) -> None:
    site.write(
        "docs/index.md",
        """
        ```python exec="on" normalise="times,durations"
        import datetime, os, pathlib, pack
        print(datetime.datetime.now().isoformat(), "in 0.31 s", object())
        print(os.getcwd(), pathlib.Path.home(), pack.__file__)
        ```

        ```python exec="on"
        print("2026-01-05T08:00:00+00:00")
        ```
        """,
    )
    site.write("src/pack.py", "")
    html = text_of(site.build().html())
    assert "<time> in <duration> <object object at <address>>\n<work> <home> <project>/src/pack.py" in html
    assert "With placeholders for what differs from run to run: paths, addresses, times, durations" in html
    assert "2026-01-05T08:00:00+00:00" in html, "a time that a lesson is about stays"


def test_a_block_that_the_host_cannot_run_is_shown_as_not_run(site: TinySite) -> None:
    site.options = 'outputs: ""\nhost_facts: {moon: "false"}'
    site.write("docs/index.md", '```bash exec="on" host="moon"\nfalse\n```\n')
    html = text_of(site.build("--strict").html())
    assert "not run: this host has no moon" in html
    assert "Draft" in html
    assert "no example run" in html


def test_ids_stay_when_another_page_gains_a_block(site: TinySite) -> None:
    block = '```python exec="on" result="markdown"\nprint("## Heading")\n```\n'
    site.write("docs/index.md", block)
    site.write("docs/a.md", "# A\n")
    before = site.build().html()
    site.write("docs/a.md", block + "\n" + block)
    assert site.build().html() == before


# Outputs under review


def test_a_changed_output_is_red_with_a_diff_until_it_is_accepted(site: TinySite) -> None:
    site.options = "cache: .bookproof"
    site.write("docs/index.md", CLEAN)
    assert "docs/index.md:3: example sum has no committed output: run `bookproof accept index`" in site.build("-q").log
    assert site.accept("index").returncode == 0
    committed = site.root / "tests/outputs/index.txt"
    assert committed.read_text() == "=== sum\n    2\n"
    site.write("docs/index.md", CLEAN.replace("1 + 1", "1 + 2"))
    built = site.build("-q")
    assert built.returncode == 1
    assert "docs/index.md:3: the output of example sum changed" in built.log
    assert "tests/outputs/index.txt:1" in built.log
    assert "-2\n+3" in built.log
    assert committed.read_text() == "=== sum\n    2\n", "a build never rewrites"
    assert site.accept().returncode == 0
    assert site.build("-q").returncode == 0


def test_an_output_without_an_example_is_red_at_its_line(site: TinySite) -> None:
    site.options = "cache: .bookproof"
    site.write("docs/index.md", CLEAN)
    site.write("tests/outputs/index.txt", "=== sum\n    2\n\n=== gone\n    x\n")
    assert "tests/outputs/index.txt:4: no example of docs/index.md has the id gone" in site.build("-q").log


def test_a_failing_page_is_not_accepted(site: TinySite) -> None:
    site.options = "cache: .bookproof"
    site.write("docs/index.md", FAILING)
    assert site.accept().returncode == 1
    assert not (site.root / "tests/outputs/index.txt").exists()


def test_a_time_in_an_output_is_recognised_as_what_differs(site: TinySite) -> None:
    site.options = "cache: .bookproof"
    site.write("docs/index.md", '```python exec="on"\nprint("2026-01-01 10:00:00")\n```\n')
    site.write("tests/outputs/index.txt", "=== example-1\n    2025-12-31 10:00:00\n")
    assert 'changed (normalise="times" would make both equal)' in site.build("-q").log


# The cache


def counting(site: TinySite) -> int:
    counter = site.root / "counter"
    return len(counter.read_text()) if counter.exists() else 0


def test_only_passes_are_remembered_and_cold_and_warm_builds_are_equal(site: TinySite) -> None:
    site.write("src/pack.py", "value = 1\n")
    site.write("tests/test_pack.py", "")
    page = f'```bash exec="on"\nprintf . >> {site.root}/counter\n```\n\n'
    page += '```python exec="on" id="use"\nimport pack\nprint(pack.value)\n```\n'
    site.write("docs/index.md", page)
    cold = {path.name: path.read_bytes() for path in site.build().site.rglob("*") if path.is_file()}
    warm = {path.name: path.read_bytes() for path in site.build().site.rglob("*") if path.is_file()}
    assert counting(site) == 1
    assert cold == warm
    site.write("src/pack.py", "value = 2\n")
    assert ">2\n" in site.build().html()
    assert counting(site) == 2, "the code changed"
    site.write("docs/index.md", page + "\nMore text.\n")
    site.build()
    assert counting(site) == 2, "prose is not part of the key"
    site.write("docs/index.md", page + "\n" + FAILING)
    site.build("-q")
    site.build("-q")
    assert counting(site) == 4, "a failure is found again, with everything before it"


def test_a_block_that_reads_the_repository_runs_in_every_build(site: TinySite) -> None:
    """And so does what follows it, since it may use what was read."""
    read = '```python exec="on" session="s" workdir="root"\nfound = open("note.txt").read()\n```\n\n'
    site.write("docs/index.md", read + '```python exec="on" session="s"\nprint("note", found)\n```\n')
    for note in ("one", "two"):
        site.write("note.txt", note)
        assert f"note {note}" in text_of(site.build().html())


def test_a_page_that_reads_the_repository_is_remembered_by_what_its_blocks_print(site: TinySite) -> None:
    """Whatever they read, and however the option is written; a block that fails is shown as it is."""
    site.options = "cache: .bookproof"
    block = "```python exec='on' id='a' workdir='root'\nprint(open('note').read())\n```\n"
    site.write("docs/index.md", f"# Home\n\n{block}")
    site.write("note", "one")
    site.accept()
    known, shown = [], []
    for note in ("one", "one", "two", "one"):
        site.write("note", note)
        if note == "two":
            assert "docs/index.md:3" in site.build("-q").failures[0], "what was accepted is another output"
            site.accept()
        shown.append(site.build("--strict").html())
        known.append({path.name for path in (site.root / ".bookproof/pages").rglob("*.json")})
        if note == "two":
            assert "two" in text_of(shown[-1])
            site.write("note", "one")
            site.accept()
    assert shown[0] == shown[1] == shown[3]
    assert known[0] == known[1]
    assert len(known[0]) == 1
    (site.root / "note").unlink()
    assert "docs/index.md:4: python example failed: FileNotFoundError" in site.build("-q").failures[0]


def test_a_block_that_reads_the_repository_alone_shares_nothing_with_its_page(site: TinySite) -> None:
    """Neither sees what the other changed; the page's other blocks stay remembered."""
    counted = site.root.parent / f"{site.root.name}.counted"
    mark = 'import json\nprint(hasattr(json, "mark"))\njson.mark = 1\n'
    others = f'```python exec="on"\nopen({str(counted)!r}, "a").write("x")\n{mark}```\n\n'
    alone = f'```python exec="on" workdir="root"\nprint(open("note.txt").read())\n{mark}```\n\n'
    site.options = 'outputs: ""\ncache: .bookproof'
    site.write("docs/index.md", f"# Home\n\n{others}{alone}{alone}{others}")
    for note in ("one", "two"):
        site.write("note.txt", note)
        seen = [word for word in text_of(site.build().html()).split() if word in {"True", "False", note}]
        assert seen == ["False", note, "False", note, "False", "True"]
    assert counted.read_text() == "xx"


def test_a_remembered_page_is_as_if_rendered(site: TinySite) -> None:
    """A link to a page that has moved, an output that was accepted, a reworded sentence: each is seen at once."""
    site.options = "cache: .bookproof"
    site.write(
        "docs/index.md", '# Home\n\nSee [the other](other.md#part).\n\n```python exec="on" id="a"\nprint(1)\n```\n'
    )
    site.write("docs/other.md", "# Other\n\n## Part\n")
    site.accept()
    cold = {path.name: path.read_bytes() for path in site.build("--strict").site.rglob("*") if path.is_file()}
    assert list((site.root / ".bookproof/pages").rglob("*.json"))
    warm = {path.name: path.read_bytes() for path in site.build("--strict").site.rglob("*") if path.is_file()}
    assert cold == warm
    outputs = site.root / "tests/outputs/index.txt"
    outputs.write_text(outputs.read_text().replace("1", "2"))
    assert "docs/index.md:5" in site.build("-q").failures[0]
    site.accept()
    site.build()
    (site.root / "docs/other.md").rename(site.root / "docs/third.md")
    told = [line for line in site.build("--strict").log.splitlines() if "other.md" in line]
    assert len(told) == 2, "MkDocs says so as well, when it renders the page"
    site.write("docs/other.md", "# Other\n\n## Section\n")
    assert "docs/index.md:3: link 'other/#part'" in site.build("-q").failures[0]


def test_what_mkdocs_warns_of_a_page_is_told_in_every_build(site: TinySite) -> None:
    """A folder's link holds in the finished site, but MkDocs does not know it for one of a page."""
    site.options = 'outputs: ""\ncache: .bookproof'
    site.extensions = "validation: {unrecognized_links: warn}"
    site.write("docs/index.md", "# Home\n\n[the other](other/)\n")
    site.write("docs/other.md", "# Other\n")
    for _ in range(2):
        built = site.build("--strict")
        assert built.returncode == 1
        assert "contains an unrecognized relative link 'other/'" in built.log


def test_a_later_block_meets_the_state_of_remembered_ones(site: TinySite) -> None:
    first = '```python exec="on" session="s"\nx = 20\nopen("f", "w").write("22")\n```\n'
    site.write("docs/index.md", first)
    site.build()
    site.write("docs/index.md", first + '\n```python exec="on" session="s"\nprint(x + int(open("f").read()))\n```\n')
    assert "42" in text_of(site.build().html())


def test_a_build_for_a_named_commit_uses_no_cache(site: TinySite) -> None:
    site.write("docs/index.md", f'```bash exec="on"\nprintf . >> {site.root.parent}/counter\n```\n')
    site.write(".gitignore", ".bookproof\nsite\nbuild.log\n")
    site.configure()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], cwd=site.root, check=True)
    commit = subprocess.check_output([*git, "rev-parse", "HEAD"], cwd=site.root, text=True).strip()
    counter = site.root.parent / "counter"
    for runs in (1, 2):
        built = site.build(SITE_COMMIT=commit)
        assert built.returncode == 0, built.log
        assert len(counter.read_text()) == runs
    assert not (site.root / ".bookproof").exists()
    assert f"Commit {commit[:12]}" in text_of(built.html())
    site.write("docs/new.md", "# New\n")
    refused = site.build(SITE_COMMIT=commit)
    assert refused.returncode == 1
    assert "asks for a clean tree" in refused.log
    assert list(refused.site.iterdir()) == []


# For CI


def test_failures_are_annotations_and_a_report(site: TinySite) -> None:
    site.write("docs/index.md", FAILING)
    report = site.root / "report.json"
    built = site.build("-q", GITHUB_ACTIONS="true", BOOKPROOF_REPORT=str(report))
    assert "::error file=docs/index.md,line=2,title=bookproof::python example failed: ValueError: empty%0A" in built.log
    data = json.loads(report.read_text())
    assert [(one["path"], one["line"]) for one in data["failures"]] == [("docs/index.md", 2)]
    assert data["pages"]["docs/index.md"]["examples"][0]["status"] == "failed"


def test_it_works_from_a_process_of_its_own_and_without_fork(site: TinySite) -> None:
    """The real command line, and the way for systems without fork."""
    site.write("docs/index.md", CLEAN)
    site.write("docs/a.md", FAILING)
    site.configure()
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build"],
        cwd=site.root,
        env={"PATH": "/usr/bin:/bin", "BOOKPROOF_FORK": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "docs/a.md:2: python example failed: ValueError: empty" in done.stderr
    assert "docs/index.md" not in done.stderr


VALUES = """\
# Home

It took {value}`run: attempts` attempts, {value}`run: rows` rows, and {value}`run: the mean` in the mean.

```python exec="on" id="run" result="markdown"
print("attempts=3, rows: 12 of 20; other: 1\\n\\n| what | is |\\n|---|---|\\n| the mean | 0.25 s |")
```
"""


def test_a_sentence_shows_what_an_example_printed(site: TinySite) -> None:
    site.options = 'outputs: ""'
    site.write("docs/index.md", VALUES)
    for _ in range(2):  # also from memory
        html = site.build("--strict").html()
        assert "It took 3 attempts, 12 of 20 rows, and 0.25 s in the mean." in text_of(html)
        assert html.count('class="bookproof-value" href="#example-run"') == 3


@pytest.mark.parametrize(
    ("role", "told"),
    [
        ("run: gone", "example 'run' printed nothing for 'gone'"),
        ("away: rows", "no example 'away' ran on this page"),
        ("run", "a value is named by an example and a key"),
        ("run: is", "printed several values: 1, 2 for 'is'"),
    ],
)
def test_a_value_that_no_example_printed_is_red_at_its_line(site: TinySite, role: str, told: str) -> None:
    site.options = 'outputs: ""'
    page = f"# Home\n\nIt is {{value}}`{role}`.\n\n"
    site.write("docs/index.md", page + '```python exec="on" id="run"\nprint("a is=1 is=2 this=3")\n```\n')
    (failure,) = site.build("-q").failures
    assert failure.startswith("docs/index.md:3: ")
    assert told in failure


def test_a_page_can_show_how_directives_and_roles_are_written(site: TinySite) -> None:
    site.write("docs/index.md", "`<!-- bookproof: mutation ID -->` and ``{test}`tests/x.py` ``\n")
    built = site.build("--strict")
    assert built.returncode == 0, built.log
    assert "bookproof: mutation ID" in text_of(built.html())
    assert "{test}`tests/x.py`" in text_of(built.html())
