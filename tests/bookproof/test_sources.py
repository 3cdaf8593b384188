"""Source pages: the very text of each file, every line with its anchor, and nothing fetched from elsewhere."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bookproof.cache import Cache
from bookproof.listing import COLOURS, listing
from bookproof.sources import _STYLE, Listings, blob_url, source_files, source_url, write_source_pages

SHA = "0123456789abcdef0123456789abcdef01234567"


class Reader(HTMLParser):
    """Collects ids, links, opened and closed elements, and the text of the code."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.code = ""
        self.stack: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids += [values["id"] or ""] if "id" in values else []
        self.links += [values[name] or "" for name in ("href", "src") if name in values]
        if tag not in {"meta", "link"}:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if "pre" in self.stack:
            self.code += data


def write(root: Path, files: dict[str, str], **options: str) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text.encode())
    write_source_pages(root, root / "site", options.pop("commit", SHA), **options)  # type: ignore[arg-type]  # of a test
    return root / "site/source"


ODD = 'x = """\nfirst\n\n\tsecond <b>&amp;\n"""\n\n\n\ndef f():\n    return "\\x0c"  # \u2028 end'


def test_every_line_has_its_anchor_and_its_text(tmp_path: Path) -> None:
    page = (write(tmp_path, {"src/a/b.py": ODD}) / "src/a/b.py.html").read_text()
    reader = Reader(page)
    assert reader.code == ODD + "\n"
    assert [name for name in reader.ids if name.startswith("L")] == [f"L{n}" for n in range(1, ODD.count("\n") + 2)]
    lines = re.findall(r'<span class="line" id="L(\d+)">(.*)', page)
    shown = [html.unescape(re.sub(r"<[^>]*>", "", line)) for _, line in lines]
    assert shown == ODD.split("\n")


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r\0\ufeff"), max_size=60))
@example("")
@example("\n\n")
@example("'''\n\n'''")
def test_no_text_shifts_a_line(text: str) -> None:
    for name in ("src/x.py", "src/x.toml"):
        reader = Reader(listing(name, text))
        assert reader.code == (text if text.endswith("\n") or not text else text + "\n")
        assert len(reader.ids) == (reader.code.count("\n"))


def test_python_and_toml_are_coloured_by_what_they_are() -> None:
    code = 'def add(a):  # both\n    """Add\n    it."""\n    return len(a.len) + 1\n'
    parts = re.findall(r'<span class="(?!line)(\w+)">(.*?)</span>', listing("src/x.py", code))
    assert parts == [
        ("keyword", "def"), ("name", "add"), ("comment", "# both"), ("string", "&quot;&quot;&quot;Add"),
        ("string", "    it.&quot;&quot;&quot;"), ("keyword", "return"), ("builtin", "len"), ("number", "1"),
    ]  # fmt: skip
    parts = re.findall(r'<span class="(?!line)(\w+)">(.*?)</span>', listing("x.toml", '[a]\nb = "c"  # d\n'))
    told = {colour: "".join(text for name, text in parts if name == colour) for colour, _ in parts}
    assert told == {"keyword": "[a]", "string": "&quot;c&quot;", "comment": "# d"}
    assert set(COLOURS) >= {colour for colour, _ in parts}
    assert all(f".{colour}" in _STYLE for colour in COLOURS)


def test_links_stay_in_the_site_and_lead_somewhere(tmp_path: Path) -> None:
    source = write(
        tmp_path, {"src/a/b.py": "x = 1\n", "tests/m.toml": "[a]\nb = 1\n", "src/e.py": ""}, site_name="A & B"
    )
    (tmp_path / "site/index.html").write_text("")
    for page in source.rglob("*.html"):
        reader = Reader(page.read_text())
        assert len(set(reader.ids)) == len(reader.ids)
        for link in reader.links:
            if link == "data:,":  # the icon, asked for nowhere
                continue
            target, _, fragment = link.partition("#")
            assert not re.match(r"\w+:|//|/", target)
            assert fragment in ["", *reader.ids]
            assert not target or (page.parent / target).resolve().is_file(), link
        assert '<html lang="en">' in page.read_text()
        assert '<a class="skip" href="#code">' in page.read_text()
        assert "A &amp; B" in page.read_text()
        assert "<script" not in page.read_text()
    assert "prefers-color-scheme: dark" in (source / "source.css").read_text()
    assert "url(" not in (source / "source.css").read_text()


def test_only_code_and_its_data_get_a_page(tmp_path: Path) -> None:
    files = ("src/a.py", "tests/b/c.toml", "src/__pycache__/a.py", "src/.x/a.py", "tests/outputs/a.txt", "other/a.py")
    write(tmp_path, dict.fromkeys(files, ""))
    assert source_files(tmp_path) == ("src/a.py", "tests/b/c.toml")
    pages = write_source_pages(tmp_path, tmp_path / "new", SHA)
    assert pages == tuple(
        f"source/{name}" for name in ("index.html", "source.css", "src/a.py.html", "tests/b/c.toml.html")
    )
    assert source_url("src/a b.py", 7) == "source/src/a%20b.py.html#L7"


def test_pages_depend_on_the_files_and_the_commit_alone(tmp_path: Path) -> None:
    """Another folder, a cold cache and a warm one give the same bytes."""
    files = {"src/a.py": ODD, "tests/b.py": "def f(): ...\n"} | {f"src/m{one}.py": f"{one}\n" for one in range(8)}
    plain = write(tmp_path / "one", files)
    write(tmp_path / "two", files)
    for name in ("cold", "warm"):
        listings = Listings(tmp_path / "two", cache=Cache(tmp_path / "cache"))
        write_source_pages(tmp_path / "two", tmp_path / name, SHA, listings=listings)
        for page in plain.rglob("*.*"):
            assert (tmp_path / name / "source" / page.relative_to(plain)).read_bytes() == page.read_bytes()
    assert len(list((tmp_path / "cache").rglob("*.json"))) == len(files)


def test_a_page_says_whether_it_is_of_a_commit(tmp_path: Path) -> None:
    forge = "https://github.com/o/r"
    named = (write(tmp_path, {"src/a.py": ""}, repo_url=forge) / "src/a.py.html").read_text()
    assert f"As of commit <code>{SHA}</code>" in named
    assert f'href="{forge}/blob/{SHA}/src/a.py"' in named
    draft = (write(tmp_path, {"src/a.py": ""}, repo_url=forge, commit="") / "src/a.py.html").read_text()
    assert "Draft: not the text of a commit." in draft
    assert "(draft)" in draft
    assert forge not in draft


@pytest.mark.parametrize(
    ("repo", "expected"),
    [
        ("https://github.com/o/r/", f"https://github.com/o/r/blob/{SHA}/src/a%20b.py#L3-L9"),
        ("https://gitlab.com/o/r.git", f"https://gitlab.com/o/r/-/blob/{SHA}/src/a%20b.py#L3-9"),
        ("https://codeberg.org/o/r", f"https://codeberg.org/o/r/src/commit/{SHA}/src/a%20b.py#L3-L9"),
        ("https://bitbucket.org/o/r", f"https://bitbucket.org/o/r/src/{SHA}/src/a%20b.py#lines-3:9"),
        ("", ""),
    ],
)
def test_each_forge_has_its_form_of_address(repo: str, expected: str) -> None:
    assert blob_url(repo, SHA, "src/a b.py", 3, 9) == expected
    assert blob_url(repo, "main", "src/a b.py", 3, 9) == ""
    assert blob_url(repo, SHA[:10], "src/a b.py") == ""
