"""The whole built site is checked: links, fragments, ids, expected pages, other hosts, markers left over."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from bookproof import diagrams, outputs
from bookproof.check import Origin, check_site, read_origins
from bookproof.cli import main

URL = "https://book.example/base/"


def site(folder: Path, **pages: str) -> Path:
    """Write files: `index` is `index.html`, `a` is `a/index.html`, and a name with a dot is taken as it is."""
    for name, text in pages.items():
        path = folder / (name if "." in name else "index.html" if name == "index" else f"{name}/index.html")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return folder


def found(folder: Path, **options: object) -> list[str]:
    options.setdefault("site_url", URL)
    return [str(failure) for failure in check_site(folder, **options)]  # type: ignore[arg-type]


SOUND = [
    '<a href="a/">x</a>',
    '<a href="a">x</a>',
    '<a href="./a/index.html">x</a>',
    '<a href="a/?q=1#here">x</a>',
    '<a href="a/#old-name">x</a>',
    '<a href="a/#%C3%A9t%C3%A9">x</a>',
    '<a href="a/#:~:text=word">x</a>',
    '<a href="#">x</a> <a href="#top">x</a> <a href="">x</a>',
    '<p id="p"></p><a href=#p>x</a>',
    '<a href="/base/">x</a> <a href="/base">x</a> <a href="/base/a/#here">x</a>',
    f'<a href="{URL}a/">x</a> <link rel="canonical" href="{URL}">',
    '<a href="https://elsewhere.example/x">x</a> <a href="//elsewhere.example/x">x</a>',
    '<a href="https://book.example/other-project/">x</a>',
    '<form action="https://elsewhere.example/search"></form>',
    '<a href="mailto:a@b.example">x</a> <a href="javascript:void(0)">x</a>',
    '<img src="data:image/png;base64,AAAA"> <img src="pixel%20one.png?v=3">',
    '<img srcset="pixel%20one.png 1x, a/ 2x" alt="">',
    '<svg><use href="#g"/><g id="g"/><use xlink:href="icons.svg#tick"/></svg>',
    '<!-- <a href="gone/">x</a> <script src="https://elsewhere.example/x.js"></script> -->',
    "<script>const x = \"<a href='gone/'>\"; // see https://elsewhere.example/</script>",
    '<script>const ns = "http://www.w3.org/2000/svg"; fetch("data:,x"); import("./a.js")</script>',
    '<script type="application/ld+json">{"@context": "https://schema.example"}</script>',
    '<title>a < b, <a href="gone/"></title>',
    '<p data-id="x"></p><p data-id="x"></p><p title=\'id="t"\'></p><p title=\'id="t"\'></p>',
    '<meta http-equiv="refresh" content="0; url=a/#here">',
    '<style>p { background: url(pixel%20one.png) } /* url(gone.png) */ i::after { content: "url(gone.png)" }</style>',
    '<style>@namespace url(http://www.w3.org/1999/xhtml); p { fill: url(#g) }</style><svg id="g"></svg>',
    "<code>&lt;a href=&quot;gone/&quot;&gt; -- 8 &lt;--</code>",
]


@pytest.mark.parametrize("body", SOUND)
def test_what_is_sound_is_no_failure(tmp_path: Path, body: str) -> None:
    target = '<h2 id="here">x</h2><a name="old-name"></a><h2 id="été">x</h2>'
    site(tmp_path, index=body, a=target, **{"pixel one.png": "", "icons.svg": '<svg><g id="tick"/></svg>'})
    assert found(tmp_path) == []


def elsewhere(address: str) -> str:
    host = address.partition("//")[2].partition("/")[0]
    return f"link '{address}' makes the browser fetch from elsewhere, {host}"


WRONG = {
    '<a href="gone/">x</a>': "link 'gone/' leads nowhere: the site has no gone/index.html",
    '<a href="gone.md">x</a>': "link 'gone.md' leads nowhere: the site has no gone.md",
    '<a href="A/">x</a>': "link 'A/' leads nowhere: the site has no A/index.html",
    '<a href=gone>x</a>': "link 'gone' leads nowhere: the site has no gone",
    '<a href="x&amp;y/">x</a>': "link 'x&y/' leads nowhere: the site has no x&y/index.html",
    '<a\nclass=">"\nhref="gone/">x</a>': "link 'gone/' leads nowhere: the site has no gone/index.html",
    '<a href="../">x</a>': "link '../' leads above the site's folder",
    '<a href="/elsewhere/">x</a>': "link '/elsewhere/' leads outside the site, which starts at /base/",
    '<a href="/basement/">x</a>': "link '/basement/' leads outside the site, which starts at /base/",
    '<a href="/base/gone/">x</a>': "link '/base/gone/' leads nowhere: the site has no gone/index.html",
    f'<a href="{URL}gone/">x</a>': f"link '{URL}gone/' leads nowhere: the site has no gone/index.html",
    f'<link rel="canonical" href="{URL}gone/">': f"link '{URL}gone/' leads nowhere: the site has no gone/index.html",
    '<a href="#gone">x</a>': "link '#gone' leads to no place: index.html has no id 'gone'",
    '<a href="a/#hare">x</a>': "link 'a/#hare' leads to no place: a/index.html has no id 'hare'; likely 'here'",
    '<a href="http://[x/">x</a>': "link 'http://[x/' is no address: Invalid IPv6 URL",
    '<img src="gone.png">': "link 'gone.png' leads nowhere: the site has no gone.png",
    '<img srcset="a/ 1x, gone.png 2x">': "link 'gone.png' leads nowhere: the site has no gone.png",
    '<video poster="gone.png"></video>': "link 'gone.png' leads nowhere: the site has no gone.png",
    '<object data="gone.svg"></object>': "link 'gone.svg' leads nowhere: the site has no gone.svg",
    '<svg><use xlink:href="#gone"/></svg>': "link '#gone' leads to no place: index.html has no id 'gone'",
    '<svg><rect fill="url(#gone)"/></svg>': "link '#gone' leads to no place: index.html has no id 'gone'",
    '<meta http-equiv="refresh" content="0; url=gone/">': "link 'gone/' leads nowhere: the site has no gone/index.html",
    '<p style="background: url(gone.png)">': "link 'gone.png' leads nowhere: the site has no gone.png",
    "<style>p { background: url('gone.png') }</style>": "link 'gone.png' leads nowhere: the site has no gone.png",
    '<base href="a/"><a href="gone/">x</a>': "link 'gone/' leads nowhere: the site has no a/gone/index.html",
    '<p id="x"></p><p ID=x></p>': "id 'x' stands 2 times on this page",
    '<script src="https://e.example/x.js"></script>': elsewhere("https://e.example/x.js"),
    '<script src="//e.example/x.js"></script>': elsewhere("//e.example/x.js"),
    '<script src="https://book.example/x.js"></script>': elsewhere("https://book.example/x.js"),
    '<img src="https://e.example/x.png">': elsewhere("https://e.example/x.png"),
    '<a href="https://e.example/x"><img src="https://e.example/x"></a>': elsewhere("https://e.example/x"),
    '<img src="https://e.example/x"><a href="https://e.example/x"></a>': elsewhere("https://e.example/x"),
    '<iframe src="https://e.example/"></iframe>': elsewhere("https://e.example/"),
    '<link rel="preconnect" href="https://e.example">': elsewhere("https://e.example"),
    '<link rel="alternate stylesheet" href="https://e.example/x">': elsewhere("https://e.example/x"),
    '<style>@import "https://e.example/x.css";</style>': elsewhere("https://e.example/x.css"),
    '<p style="background: url(//e.example/x.png)">': elsewhere("//e.example/x.png"),
    "<script>fetch('https://e.example/x')</script>": "script names another host: 'https://e.example/x'",
    "<script>new WebSocket(`wss://e.example`)</script>": "script names another host: 'wss://e.example'",
    "<script>import('//e.example/x.js')</script>": "script names another host: '//e.example/x.js'",
    r'<script>fetch("https:\/\/e.example\/x")</script>': r"script names another host: 'https:\/\/e.example\/x'",
    "<script>fetch(`https://${host}/x`)</script>": "script names another host: 'https://${host}/x'",
    '<script>fetch("http://localhost:80/x")</script>': "script names another host: 'http://localhost:80/x'",
    "<pre>--8&lt;-- file.py</pre>": "a snippet marker '--8<--' is shown instead of the snippet",
    '<span class="o">--</span><b>8</b>&lt;<i>--</i>': "a snippet marker '--8<--' is shown instead of the snippet",
}  # fmt: skip


@pytest.mark.parametrize("body", WRONG)
def test_what_is_wrong_is_one_failure_that_says_what(tmp_path: Path, body: str) -> None:
    site(tmp_path, index=body, a='<h2 id="here">x</h2>')
    assert found(tmp_path) == [f"index.html: {WRONG[body]}"]


def test_addresses_in_stylesheets_scripts_and_images_are_checked_too(tmp_path: Path) -> None:
    files = {
        "css/x.css": 'a { background: url("../gone.png") } @import url(https://e.example/x); b { src: url(y.woff) }',
        "css/y.woff": "",
        "js/x.mjs": 'import "https://e.example/x.js"',
        "x.svg": '<svg><image href="https://e.example/x.png"/></svg>',
    }
    assert found(site(tmp_path, **files)) == [
        "css/x.css: link '../gone.png' leads nowhere: the site has no gone.png",
        "css/x.css: link 'https://e.example/x' makes the browser fetch from elsewhere, e.example",
        "js/x.mjs: script names another host: 'https://e.example/x.js'",
        "x.svg: link 'https://e.example/x.png' makes the browser fetch from elsewhere, e.example",
    ]


def test_the_sitemap_and_the_search_index_lead_to_places_that_exist(tmp_path: Path) -> None:
    files = {
        "sitemap.xml": f"<loc>{URL}</loc><loc> {URL}gone/ </loc>",
        "search/search_index.json": '{"docs": [{"location": ""}, {"location": "#x"}, {"location": "gone/#x"}]}',
    }
    assert found(site(tmp_path, index='<p id="x">', **files)) == [
        "search/search_index.json: link '/base/gone/#x' leads nowhere: the site has no gone/index.html",
        f"sitemap.xml: link '{URL}gone/' leads nowhere: the site has no gone/index.html",
    ]


def test_the_site_address_is_read_from_the_front_page_when_it_is_not_given(tmp_path: Path) -> None:
    site(tmp_path, index=f'<link href="{URL}" rel="canonical"><a href="/base/a/">x</a><a href="/a/">x</a>', a="")
    assert found(tmp_path, site_url=None) == ["index.html: link '/a/' leads outside the site, which starts at /base/"]


def test_expected_pages_are_asked_for_by_name_and_by_source(tmp_path: Path) -> None:
    sources = {"a/index.html": Origin("docs/a.md"), "index.html": Origin("docs/index.md")}
    assert found(site(tmp_path, index=""), expected=["b/index.html"], sources=sources) == [
        "b/index.html: expected page b/index.html is not in the site",
        "docs/a.md: expected page a/index.html is not in the site",
    ]


SOURCE = """---
title: x
---
# Title

See [one](gone.md), [two](b.md#gone), [three](#gone) and [four][pkg.gone].

```python exec="on"
print("[five](printed.md)")
for n in range(1): print(f"[six](made-{n}.md)")
```

![seven](https://e.example/x.png)

~~~markdown
[nine](gone.md)
~~~

[eight](b.md) is fine. `--8<--` is not, and ;--8<-- is.

[nine](gone.md)
"""


def test_a_link_is_reported_where_it_was_written_or_printed_else_by_page_and_address(tmp_path: Path) -> None:
    """Every place that wrote it; the line of the code that spells it; the block that printed it; or the page."""
    html = (
        '<a href="../gone.md">1</a><a href="../b/#gone">2</a><a href="#gone">3</a><a href="../b/#pkg.gone">4</a>'
        '<a href="printed.md">5</a><a href="made-0.md">6</a><img src="https://e.example/x.png"><a href="../b/">8</a>'
        "<code>--8&lt;--</code> --8&lt;--"
        '<a href="../from-a-template/">x</a>'
    ).replace("../gone.md", "gone.md")
    sources = {
        "dir/a/index.html": Origin("docs/dir/a.md", SOURCE, ((8, "[five](printed.md)\n[six](made-0.md)\n"),)),
        "dir/b/index.html": Origin("docs/dir/b.md", "# B"),
    }
    site(tmp_path, **{"dir/a": html, "dir/b": ""})
    nowhere = "leads nowhere: the site has no dir"
    assert found(tmp_path, sources=sources) == [
        f"docs/dir/a.md: link '../from-a-template/' {nowhere}/from-a-template/index.html (in dir/a/index.html)",
        "docs/dir/a.md:6: link '#gone' leads to no place: dir/a/index.html has no id 'gone'",
        "docs/dir/a.md:6: link '../b/#gone' leads to no place: dir/b/index.html has no id 'gone'",
        "docs/dir/a.md:6: link '../b/#pkg.gone' leads to no place: dir/b/index.html has no id 'pkg.gone'",
        f"docs/dir/a.md:6: link 'gone.md' {nowhere}/a/gone.md",
        f"docs/dir/a.md:8: link 'made-0.md' {nowhere}/a/made-0.md",
        f"docs/dir/a.md:9: link 'printed.md' {nowhere}/a/printed.md",
        "docs/dir/a.md:13: link 'https://e.example/x.png' makes the browser fetch from elsewhere, e.example",
        "docs/dir/a.md:19: a snippet marker '--8<--' is shown instead of the snippet",
        f"docs/dir/a.md:21: link 'gone.md' {nowhere}/a/gone.md",
    ]


def test_a_finished_site_tells_what_its_pages_came_from(tmp_path: Path) -> None:
    """Lines are lent by a source, or an output, that is still the same; without a usable record, nothing is told."""
    links = '<a href="gone.md">x</a><a href="printed.md">x</a>'
    book = site(tmp_path / "site", a=links, b=links)
    texts = {"docs/a.md": "# é\n\n[x](gone.md)\n", "docs/b.md": "[x](gone.md)\n", "docs/c.md": "# C\n"}
    site(tmp_path, **texts)
    output = "[x](printed.md)\n"
    pages = {
        path: {
            "file": f"{path[5]}/index.html",
            "source": hashlib.sha256(text.encode()).hexdigest(),
            "examples": [{"id": "one", "line": 7, "output": hashlib.sha256(output.encode()).hexdigest()}],
        }
        for path, text in texts.items()
    }
    (book / "provenance.json").write_text(json.dumps({"pages": pages}))
    (tmp_path / "docs" / "b.md").write_text("# Edited\n\n[x](gone.md)\n")
    for name, text in {"a": output, "b": f"changed: {output}"}.items():
        committed = tmp_path / "tests" / "outputs" / f"{name}.txt"
        committed.parent.mkdir(parents=True, exist_ok=True)
        committed.write_text(outputs.write({"one": text}))
    expected = [
        "docs/a.md:3: link 'gone.md' leads nowhere: the site has no a/gone.md",
        "docs/a.md:7: link 'printed.md' leads nowhere: the site has no a/printed.md",
        "docs/b.md: link 'gone.md' leads nowhere: the site has no b/gone.md (in b/index.html)",
        "docs/b.md: link 'printed.md' leads nowhere: the site has no b/printed.md (in b/index.html)",
        "docs/c.md: expected page c/index.html is not in the site",
    ]
    assert found(book, sources=read_origins(book, tmp_path)) == expected
    done = CliRunner().invoke(main, ["check", str(book), "--root", str(tmp_path)])
    assert done.exit_code == 1
    assert done.stderr.splitlines() == expected
    assert done.stdout == ""
    for broken in ("", "[]", '{"pages": []}', '{"pages": {"a": 1}}'):
        (book / "provenance.json").write_text(broken)
        assert read_origins(book, tmp_path) == {}


def test_a_site_in_order_is_told_in_one_line(tmp_path: Path) -> None:
    """Silence could also mean that nothing was looked at."""
    site(tmp_path, index="", a="")
    done = CliRunner().invoke(main, ["check", str(tmp_path), "--root", str(tmp_path)])
    assert done.exit_code == 0, done.stderr
    said = "2 pages: every link, fragment and id is in order, and no page asks another host\n"
    assert (done.stdout, done.stderr) == (said, "")


def test_with_a_record_markers_in_pages_that_show_source_code_are_no_failures(tmp_path: Path) -> None:
    site(tmp_path, index="", **{"source/check.py.html": "--8&lt;--"})
    assert found(tmp_path, sources={"index.html": Origin("docs/index.md")}) == []


def test_a_marker_that_the_page_escaped_may_be_shown(tmp_path: Path) -> None:
    site(tmp_path, index="--8&lt;-- x")
    assert found(tmp_path, sources={"index.html": Origin("docs/index.md", ";--8<-- x")}) == []


def test_a_host_can_be_allowed_in_scripts_by_name(tmp_path: Path) -> None:
    site(tmp_path, index="<script>x = 'https://e.example/schema'</script>")
    assert found(tmp_path, allowed_hosts={"e.example"}) == []


def test_a_site_is_checked_in_less_time_than_it_takes_to_parse_it(tmp_path: Path) -> None:
    """Pages of 100 KB, full of links; against the standard library's parser, so that a busy machine slows both."""
    line = (
        '<p id="p{0}"><a class="x" href="../p{1}/#p{0}">x</a> <span class="n">f</span> words and words and words</p>\n'
    )
    for page in range(20):
        body = "".join(line.format(number, (page * 7 + number) % 20) for number in range(900))
        site(tmp_path, **{f"p{page}": body})
    assert (tmp_path / "p0" / "index.html").stat().st_size > 90_000
    for _ in range(3):  # one fair comparison is enough
        started = time.process_time()
        assert found(tmp_path) == []
        checked = time.process_time()
        for path in tmp_path.rglob("*.html"):
            HTMLParser().feed(path.read_text("utf-8"))
        ours, theirs = checked - started, time.process_time() - checked
        if ours < theirs:
            break
    assert ours < theirs


@pytest.mark.site
def test_a_material_site_is_clean_once_its_script_names_no_other_host(tmp_path: Path) -> None:
    """And each planted fault in its pages is found at its line."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "mkdocs.yml").write_text(
        f"site_name: x\nsite_url: {URL}\ntheme: {{name: material, font: false, features: [navigation.instant]}}\n"
    )
    index = "# One\n\n[b](b.md#two)\n"
    (tmp_path / "docs" / "index.md").write_text(index)
    (tmp_path / "docs" / "b.md").write_text("# Two\n\n[home](index.md) [self](#two)\n")

    def build() -> Path:
        subprocess.run(
            [sys.executable, "-m", "mkdocs", "build", "-q"],
            cwd=tmp_path,
            env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
            check=True,
            capture_output=True,
        )
        return tmp_path / "site"

    sources = {"index.html": Origin("docs/index.md", index)}
    assert {text.partition(": ")[0] for text in found(build())} == {
        path.relative_to(tmp_path / "site").as_posix() for path in (tmp_path / "site").rglob("bundle.*.js")
    }
    diagrams.cut_other_hosts(tmp_path / "site")
    assert found(tmp_path / "site", sources=sources, site_url=None) == []

    index += "\n[c](c.md)\n\n[d](b.md#three)\n\n![](https://e.example/x.png)\n"
    (tmp_path / "docs" / "index.md").write_text(index)
    diagrams.cut_other_hosts(build())
    sources = {"index.html": Origin("docs/index.md", index), "b/index.html": Origin("docs/b.md")}
    assert found(tmp_path / "site", sources=sources) == [
        "docs/index.md:5: link 'c.md' leads nowhere: the site has no c.md",
        "docs/index.md:7: link 'b/#three' leads to no place: b/index.html has no id 'three'",
        "docs/index.md:9: link 'https://e.example/x.png' makes the browser fetch from elsewhere, e.example",
    ]
