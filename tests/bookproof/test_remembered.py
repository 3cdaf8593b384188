"""API pages that are remembered are those that mkdocstrings would render, and nothing that was told is lost."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mkdocs.config import load_config
from mkdocs.structure.files import Files

from bookproof.cache import Cache
from bookproof.imports import Imports
from bookproof.options import FenceOptions
from bookproof.page import Claim, DiagramRecord, ExampleRecord, PageRecord
from bookproof.remembered_pages import record_of, site_key

if TYPE_CHECKING:
    from conftest import Build, TinySite

SHOP = '''
    """Shop, see [`shop.till.Till`][]."""

    from shop.till import Till

    __all__ = ["Till", "sell"]

    def sell(price: int) -> Till:
        """Sell.

        Parameters:
            price: In cents.

        ## Heading of a docstring

        Text with `code`, [a link](other.md) and

        | a | b |
        |---|---|
        | 1 | 2 |
        """
        return Till(price)
'''
TILL = '''
    """Till."""

    class Till:
        """A till."""

        def __init__(self, cents: int) -> None:
            """Open it."""
            self.cents = cents
            """What is in it."""
'''


@pytest.fixture
def book(site: TinySite) -> TinySite:
    site.plugins = (
        "  - material/search: {lang: en, separator: '[ -]+', pipeline: [stemmer]}\n"
        "  - autorefs\n  - mkdocstrings: {handlers: {python: {paths: [src], options: {show_source: false}}}}"
    )
    site.options = 'outputs: ""\ncache: .bookproof'
    site.write("src/shop/__init__.py", SHOP)
    site.write("src/shop/till.py", TILL)
    site.write("docs/other.md", "# Other\n\n::: shop.till\n")
    site.write(
        "docs/index.md",
        "# Home\n\n[sell][shop.sell], [its heading][shop.sell--heading-of-a-docstring]\n\n::: shop.sell\n",
    )
    return site


def contents(built: Build) -> dict[str, bytes]:
    assert built.returncode == 0, built.log
    return {str(path.relative_to(built.site)): path.read_bytes() for path in built.site.rglob("*") if path.is_file()}


def remembered(site: TinySite) -> set[str]:
    return {path.name for kind in ("api", "search") for path in (site.root / ".bookproof" / kind).rglob("*.json")}


@pytest.mark.site
def test_pages_inventory_and_search_are_those_of_a_build_without_memory(book: TinySite) -> None:
    """Also where one page is known and the other is not, and after an edit of either module."""
    cold = contents(book.build("--strict"))
    assert b"Heading of a docstring" in cold["search/search_index.json"]
    assert b"shop.Till" in zlib.decompress(cold["objects.inv"].split(b"\n", 4)[4])
    kept = remembered(book)
    assert kept
    assert contents(book.build("--strict")) == cold
    assert remembered(book) == kept
    edits = {
        "src/shop/till.py": TILL.replace("What is in it", "Cents in it"),
        "src/shop/__init__.py": SHOP.replace("import Till", "import Till, Till as Register"),
        "docs/index.md": "---\nsearch: {boost: 2}\n---\n# Home\n\n::: shop.sell\n",
        "docs/other.md": "# Other\n\n::: shop.till\n    options:\n      show_bases: false\n",
    }
    for name, text in edits.items():
        book.write(name, text)
        warm = contents(book.build("--strict"))
        assert warm != cold
        book.options = 'outputs: ""\ncache: ""'
        cold = contents(book.build("--strict"))
        book.options = 'outputs: ""\ncache: .bookproof'
        assert warm == cold


@pytest.mark.site
def test_the_inventory_is_that_of_a_build_without_memory_where_other_pages_resolve_its_names(book: TinySite) -> None:
    """Another name of an object is known once a page shows where it is imported, be that page remembered or not."""
    book.write("src/shop/desk.py", '"""Desk."""\n\nfrom shop.till import Till\n\n\ndef desk() -> Till: ...\n')
    book.write("src/shop/apart.py", '"""Apart."""\n')
    book.write("docs/desk.md", "# Desk\n\n::: shop.desk\n    options: {members: true}\n")
    cold = contents(book.build("--strict"))
    assert b"shop.desk.Till" in zlib.decompress(cold["objects.inv"].split(b"\n", 4)[4])
    for name, text in (("src/shop/apart.py", '"""Elsewhere."""\n'), ("docs/desk.md", "# Desk\n")):
        book.write(name, text)
        warm = contents(book.build("--strict"))
        book.options = 'outputs: ""\ncache: ""'
        cold = contents(book.build("--strict"))
        book.options = 'outputs: ""\ncache: .bookproof'
        assert warm == cold, name


@pytest.mark.site
def test_a_package_is_read_once_in_a_build(book: TinySite) -> None:
    book.write("docs/index.md", "---\nsymbols: [shop.sell, shop.till.Till]\n---\n# Home\n")
    book.write(
        "hook.py",
        "import griffe\n\nload = griffe.GriffeLoader.load\n\n\ndef noted(self, *names, **options):\n"
        "    open('read', 'a').write(f'{names[0]}\\n')\n    return load(self, *names, **options)\n\n\n"
        "griffe.GriffeLoader.load = noted\n",
    )
    book.extensions = "hooks: [hook.py]"
    built = book.build()
    assert built.returncode == 0, built.log
    assert (book.root / "read").read_text() == "shop\n"


@pytest.mark.site
def test_what_mkdocstrings_warns_of_is_told_in_every_build(book: TinySite) -> None:
    book.write("src/shop/__init__.py", SHOP.replace("price: In cents", "prize: In cents"))
    first = book.build("-q")  # in which no warning is even made
    assert first.returncode == 0, first.log
    for _ in range(2):
        built = book.build("--strict")
        assert built.returncode == 1
        assert "prize" in built.log


@pytest.mark.site
def test_a_quiet_build_remembers_as_much(book: TinySite) -> None:
    loud = book.build()
    assert loud.returncode == 0, loud.log
    kept = remembered(book)
    shutil.rmtree(book.root / ".bookproof")
    quiet = book.build("-q")
    assert quiet.log == ""
    assert remembered(book) == kept


LAYOUT = """
    <html><head><title>{{ page.title }} of {{ config.site_name }}</title></head><body>
    {% include "part.html" %}
    {% for one in nav.pages %}<a href="{{ one.url|url }}">{{ one.title }} {{ one.meta.status }}</a>{% endfor %}
    {{ page.previous_page.title }} {{ page.next_page.title }} {{ page.edit_url }} {{ config.extra.word }}
    {% for one in page.toc recursive %}<a href="{{ one.url }}">{{ one.title }}</a>{{ loop(one.children) }}{% endfor %}
    {{ page.meta.status }} {{ page.content }}</body></html>
"""


@pytest.mark.site
def test_a_page_is_laid_out_again_where_it_or_its_site_has_changed_and_only_there(book: TinySite) -> None:
    book.theme = LAYOUT
    book.environment = {
        "SOURCE_DATE_EPOCH": "1800000000"
    }  # templates are told the time, which without git is that of the build
    book.write("theme/part.html", "<p>Part.</p>")
    book.write("docs/plain.md", "# Plain\n\n## Below\n")
    first = contents(book.build("--strict"))
    for path in (book.root / ".bookproof/layouts").rglob("*.json"):
        path.write_text(path.read_text("utf-8").replace("<p>Part.</p>", "<p>From memory.</p>"), "utf-8")
    shown = contents(book.build("--strict"))["plain/index.html"]
    assert shown == first["plain/index.html"].replace(b"Part.", b"From memory.")

    def configured() -> None:
        book.extensions = "extra: {word: hello}"

    edits: dict[str, Callable[[], object]] = {
        "a part of the theme": lambda: book.write("theme/part.html", "<p>Another part.</p>"),
        "the page": lambda: book.write("docs/plain.md", "# Plain\n\n## Under\n"),
        "its front matter": lambda: book.write("docs/plain.md", "---\nstatus: new\n---\n# Plain\n\n## Under\n"),
        "the title of another page": lambda: book.write("docs/other.md", "# Others\n\n::: shop.till\n"),
        "the front matter of another page": lambda: book.write(
            "docs/other.md", "---\nstatus: old\n---\n# Others\n\n::: shop.till\n"
        ),
        "another page more": lambda: book.write("docs/zeta.md", "# Zeta\n"),
        "what is configured": configured,
    }
    before = contents(book.build("--strict"))
    for what, edit in edits.items():
        edit()
        warm = contents(book.build("--strict"))
        assert warm["plain/index.html"] != before["plain/index.html"], what
        book.options = 'outputs: ""\ncache: ""'
        assert contents(book.build("--strict")) == warm, what
        book.options = 'outputs: ""\ncache: .bookproof'
        before = warm


def test_a_page_is_not_known_where_a_plugin_is_configured_otherwise(book: TinySite) -> None:
    """A server takes whole pages with docstrings from memory, and mkdocstrings renders them as its options say."""

    def key() -> str:
        book.configure()
        return site_key(load_config(str(book.root / "mkdocs.yml")), Files([]), "")

    first = key()
    assert key() == first
    book.plugins = book.plugins.replace("show_source: false", "show_source: true")
    assert key() != first


@pytest.mark.site
def test_an_example_in_a_docstring_is_run_in_every_build(book: TinySite) -> None:
    book.write(
        "src/shop/till.py",
        TILL.replace(
            '"""A till."""', '"""A till.\n\n        ```bash exec="on"\n        echo ran\n        ```\n        """'
        ),
    )
    for _ in range(2):
        assert "1 example run" in book.build("--strict").html("other")


def test_the_record_of_a_page_survives_being_remembered() -> None:
    """Every field of it, those of a block's options included, whatever is added to them."""
    options = FenceOptions(session="s", normalise=("ids", "times"), display=(("title", "x"),), lab="run")
    example = ExampleRecord("a", 3, "python", "1", "1\n", "passed", "", ("ids",), options)
    bare = ExampleRecord("b", 9, "bash", "", "", "off", "why")
    record = PageRecord("docs/x.md", "x/", source="# X\n")
    record.examples += [example, bare]
    record.diagrams.append(DiagramRecord(2, "graph LR", printed=True))
    record.claims.append(Claim("test", "tests/x.py::y", 1, in_map=True))
    assert record_of(json.loads(json.dumps(asdict(record)))) == record


def test_a_module_depends_on_what_it_imports_and_on_nothing_else(tmp_path: Path) -> None:
    files = {
        "a/__init__.py": "",
        "a/one.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a import two\n",
        "a/two.py": "def f():\n    from . import three\n",
        "a/three.py": "import a.sub.deep as d\n",
        "a/sub/__init__.py": "",
        "a/sub/deep.py": "from ..four import *\n",
        "a/four.py": (
            "class C:\n    with x:\n        while y:\n            import a.n1\n        else:\n            import a.n2\n"
            "try:\n    import a.n3\nexcept E:\n    import a.n4\nelse:\n    import a.n5\nfinally:\n    import a.n6\n"
            "match x:\n    case 1:\n        import a.n7\n"
        ),
        **{f"a/n{number}.py": "" for number in range(1, 8)},
        "a/apart.py": "",
        "b.py": "import os\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def changed(name: str) -> set[str]:
        before = {one: Imports(tmp_path, Cache(None)).digest(one) for one in ("a", "a.one.f", "a.sub", "b", "b.c")}
        (tmp_path / name).write_text(files[name] + "\n")
        return {one for one, digest in before.items() if Imports(tmp_path, Cache(None)).digest(one) != digest}

    assert Imports(tmp_path, Cache(None)).digest("os") == ""
    assert changed("a/apart.py") == {"a"}
    assert changed("a/one.py") == {"a", "a.one.f"}
    assert changed("a/four.py") == {"a", "a.one.f", "a.sub"}
    assert changed("a/sub/__init__.py") == {"a", "a.one.f", "a.sub"}
    for number in range(1, 8):
        assert changed(f"a/n{number}.py") == {"a", "a.one.f", "a.sub"}, number
    assert changed("b.py") == {"b", "b.c"}
