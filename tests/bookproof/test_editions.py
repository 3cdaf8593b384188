"""Editions: one page holds the book without a clash, twins hold what was computed, and their record is checked."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from bookproof.diagrams import ensure_node_modules
from bookproof.edition_plugins import plain, shared_out
from bookproof.onepage import Chapter, book, section
from bookproof.page import PageRecord
from bookproof.provenance import EDITIONS, Tree, VerifyVerdict, compose, page_entry, verify, write, write_editions

ROOT = Path(__file__).parents[2]
LAB = '<div class="bookproof-lab" data-bookproof-lab="run" data-name="x" data-page="a">Labs need JavaScript.</div>'


def chapter(html: str, url: str = "lessons/memory/") -> Chapter:
    return Chapter("Title", url, html)


def one(html: str, url: str = "lessons/memory/") -> str:
    keys = {"": "front", "lessons/memory/": "lessons-memory", "lessons/": "lessons", "a.html": "a"}
    return section(chapter(html, url), keys, "print/")


@pytest.mark.parametrize(
    ("address", "leads"),
    [
        ("#run", "#lessons-memory--run"),
        ("../../", "#front"),
        ("../", "#lessons"),
        ("..#top", "#lessons--top"),
        ("../#top", "#lessons--top"),
        ("./", "#lessons-memory"),
        ("../../a.html#b", "#a--b"),
        ("../../source/src/x.py.html#L3", "../source/src/x.py.html#L3"),
        ("../../assets/a b.png?v=1", "../assets/a b.png?v=1"),
        ("https://example.org/x#y", "https://example.org/x#y"),
        ("mailto:a@example.org", "mailto:a@example.org"),
    ],
)
def test_a_link_leads_to_its_place_in_the_one_page_or_where_it_led(address: str, leads: str) -> None:
    assert one(f'<a class="x" href="{address}">y</a>') == f'<a class="x" href="{leads}">y</a>'


def test_an_id_and_everything_that_names_it_get_the_key_of_their_page() -> None:
    html = (
        '<p id="a" data-name="a">id="a"</p><svg aria-labelledby="a b"><g clip-path="url(#a)"/></svg>'
        '<input id="a" name="n"><label for="a">'
    )
    key = "lessons-memory--"
    assert one(html) == (
        f'<p id="{key}a" data-name="a">id="a"</p>'
        f'<svg aria-labelledby="{key}a {key}b"><g clip-path="url(#{key}a)"/></svg>'
        f'<input id="{key}a" name="{key}n"><label for="{key}a">'
    )


def test_paper_unfolds_what_is_folded_and_says_what_a_lab_would_do() -> None:
    shown = one(f'{LAB}<details class="x"><summary>s</summary>y</details><details open>z</details>')
    assert "data-bookproof-lab" not in shown
    assert "readers can run and change this example. The output above is what the build recorded." in shown
    assert shown.count("<details open") == 2


def test_the_book_lists_its_chapters_and_holds_them_in_order() -> None:
    chapters = [Chapter("One", "", "<h1 id='x'>1</h1>"), Chapter("Two & more", "two/", '<h2 id="x">2</h2>', "Part")]
    html = book(chapters, at="print/", title="T", said="S")
    assert re.findall(r'<a href="#([\w-]+)">([^<]+)</a>', html) == [("front", "One"), ("two", "Two &amp; more")]
    assert re.findall(r'<section id="([\w-]+)"', html) == ["front", "two"]
    with pytest.raises(ValueError, match="share one key"):
        book([chapter("", "a/b/"), chapter("", "a-b/")], at="print/", title="T", said="S")


def test_a_twin_is_made_of_what_stands_on_the_page_and_of_no_control() -> None:
    html = (
        '<h2>Run<a class="headerlink" href="#run">&para;</a></h2><button>b</button><p hidden>h</p>'
        f'{LAB}<pre class="mermaid"><code>flowchart</code></pre><pre><code><span class="k">x</span></code></pre>'
        '<table><caption>The contract</caption><tr><td>1</td></tr></table><a href="#run">0.36</a>'
    )
    made = plain(html)
    assert "&para;" not in made
    assert "¶" not in made
    assert not re.search("<button|hidden|<span|href", made)
    assert '<pre class="language-mermaid">' in made
    assert "<p><strong>The contract</strong></p><table>" in made
    assert "The output above is what the build recorded." in made
    assert made.endswith("0.36")


def recorded(folder: Path) -> Path:
    """A site of a draft, with its record."""
    folder.mkdir()
    (folder / "index.html").write_text("<p>1")
    pages = {"docs/index.md": page_entry(PageRecord("docs/index.md"), "index.html")}
    write(folder, compose(Tree(), environment={}, lock="", pages=pages))
    return folder


def test_work_is_shared_out_whole_and_what_goes_wrong_is_raised_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for count in (1, 2, 3, 20):
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
        for items in (range(9), range(1), range(0)):
            assert shared_out(lambda some: {str(one): one * one for one in some}, items) == {
                str(one): one * one for one in items
            }

    def divide(some: Sequence[int]) -> dict[str, float]:
        return {str(one): 1 / one for one in some}

    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    for items in ((0, 1), (1, 0)):
        with pytest.raises(ZeroDivisionError):
            shared_out(divide, items)


def test_what_editions_add_is_no_tampering_and_tampering_with_it_is(tmp_path: Path) -> None:
    site = recorded(tmp_path / "site")
    (site / "index.md").write_text("1")
    assert verify(site, tmp_path).verdict is VerifyVerdict.ALTERED  # nobody says what the file is
    assert write_editions(site) == ["index.md"]
    assert verify(site, tmp_path).verdict is VerifyVerdict.DRAFT
    (site / "index.md").write_text("2")
    assert verify(site, tmp_path).changed == ("index.md",)
    (site / "index.md").write_text("1")
    (site / "evil.html").write_text("1")
    assert verify(site, tmp_path).added == ("evil.html",)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"files": {"index.html": "0"}}, "it claims index.html"),
        ({"files": {EDITIONS: "0"}}, f"it claims {EDITIONS}"),
        ({"provenance": "0"}, "it names another provenance.json"),
        ({"schema": 99}, "it is not a record of schema"),
        ({"files": []}, "it is not a record of schema"),
    ],
)
def test_a_record_of_editions_speaks_for_this_site_and_never_for_a_file_of_it(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    site = recorded(tmp_path / "site")
    write_editions(site)
    document = json.loads((site / EDITIONS).read_text())
    (site / EDITIONS).write_text(json.dumps(document | change))
    found = verify(site, tmp_path)
    assert found.verdict is VerifyVerdict.ALTERED
    assert said in found.summary


MKDOCS = """\
site_name: tiny
site_url: https://example.org/sub/path/
theme: {name: material, font: false, features: [navigation.instant]}
markdown_extensions:
  - pymdownx.highlight: {pygments_lang_class: true, anchor_linenums: false}
  - pymdownx.superfences:
      custom_fences: [{name: mermaid, class: mermaid, format: !!python/name:pymdownx.superfences.fence_code_format }]
plugins:
  - search
  - bookproof: {outputs: "", cache: ""}
nav: [index.md, {Learn: [lesson.md]}]
"""
LESSON = """\
# A lesson

[Back](index.md)

```python exec="on" id="sum"
print(f"the sum is {20 + 22}")
```

```mermaid
flowchart LR
  a --> b
```
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A book of two pages, with the packages of this repository."""
    ensure_node_modules(ROOT)
    root = tmp_path / "tiny"
    (root / "docs").mkdir(parents=True)
    (root / "mkdocs.yml").write_text(MKDOCS)
    (root / "docs/index.md").write_text("# Front\n\n[A lesson](lesson.md#a-lesson)\n")
    (root / "docs/lesson.md").write_text(LESSON)
    shutil.copy(ROOT / "package-lock.json", root)
    (root / "node_modules").symlink_to(ROOT / "node_modules")
    return root


def editions(root: Path, site: Path, seed: str = "0") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bookproof", "editions", "-f", str(root / "mkdocs.yml"), "-d", str(site)]
    dropped = {"SITE_URL", "SITE_COMMIT", "BOOKPROOF_NODE", "BOOKPROOF_LABS"}
    environment = {name: value for name, value in os.environ.items() if name not in dropped} | {"PYTHONHASHSEED": seed}
    return subprocess.run(command, env=environment, cwd=site.parent, capture_output=True, text=True, check=False)


def contents(site: Path) -> dict[str, bytes]:
    return {path.relative_to(site).as_posix(): path.read_bytes() for path in site.rglob("*") if path.is_file()}


@pytest.mark.site
def test_the_editions_of_a_book_are_whole_and_the_same_bytes_again(tiny: Path, tmp_path: Path) -> None:
    """Another folder, hash seed and start make no difference, and the site itself is what `mkdocs build` makes."""
    site, again, plainly = tmp_path / "site", tmp_path / "an other/place", tmp_path / "plainly"
    again.parent.mkdir()
    done = editions(tiny, site)
    assert done.returncode == 0, done.stdout + done.stderr
    assert editions(tiny, again, seed="7").returncode == 0
    assert contents(site) == contents(again)
    build = [sys.executable, "-m", "mkdocs", "build", "-q", "-f", str(tiny / "mkdocs.yml"), "-d", str(plainly)]
    subprocess.run(build, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, stderr=subprocess.DEVNULL)
    added = json.loads((site / EDITIONS).read_text())["files"].keys() | {EDITIONS}
    assert {name: data for name, data in contents(site).items() if name not in added} == contents(plainly)
    assert added == {
        "editions.json", "index.md", "lesson/index.md", "llms-full.txt", "llms.txt", "offline.zip",
        "print/draw.mjs", "print/index.html",
    }  # fmt: skip

    twin = (site / "lesson/index.md").read_text()
    assert "```text\nthe sum is 42\n```" in twin
    assert "```mermaid\nflowchart LR" in twin
    assert "[Back](https://example.org/sub/path/index.md)" in twin
    assert "- [A lesson](https://example.org/sub/path/lesson/index.md)" in (site / "llms.txt").read_text()
    assert "the sum is 42" in (site / "llms-full.txt").read_text()
    printed = (site / "print/index.html").read_text()
    assert '<a href="#lesson--a-lesson">A lesson</a>' in printed
    assert '<h1 id="lesson--a-lesson">' in printed
    with zipfile.ZipFile(site / "offline.zip") as packed:
        names = {name.removeprefix("offline-draft/") for name in packed.namelist()}
        page = packed.read("offline-draft/lesson.html").decode()
    assert {"index.html", "search/search_index.js", "assets/offline/iframe-worker.js"} <= names
    assert {"assets/mermaid/mermaid.min.js", "assets/mermaid/load.js"} <= names
    assert not {"provenance.json", "sitemap.xml"} & names
    assert 'src="assets/offline/iframe-worker.js"' in page
    assert "navigation.instant" not in page


@pytest.mark.site
def test_what_ran_for_the_site_does_not_run_again_for_the_editions(tiny: Path, tmp_path: Path) -> None:
    """The offline edition says of its labs what the site does not, which no example can see."""
    settings = (tiny / "mkdocs.yml").read_text()
    (tiny / "mkdocs.yml").write_text(settings.replace('cache: ""', "cache: .bookproof"))
    note = f"open({str(tmp_path / 'ran')!r}, 'a').write('once ')\n"
    (tiny / "docs/lesson.md").write_text(LESSON.replace("print(", note + "print("))
    assert editions(tiny, tmp_path / "site").returncode == 0
    assert (tmp_path / "ran").read_text() == "once "


@pytest.mark.site
def test_a_book_that_fails_leaves_neither_site_nor_editions(tiny: Path, tmp_path: Path) -> None:
    (tiny / "docs/lesson.md").write_text(LESSON.replace("20 + 22", "1 / 0"))
    done = editions(tiny, tmp_path / "site")
    assert done.returncode == 1
    assert "docs/lesson.md:6: python example failed: ZeroDivisionError" in done.stderr
    assert contents(tmp_path / "site") == {}
