"""The editions in a browser: the page to print is whole, and the zip opens from a disk with search and diagrams."""

from __future__ import annotations

import json
import os
import re
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

ROOT = Path(__file__).parents[2]
EDITIONS = ROOT / "build/editions"

pytestmark = pytest.mark.browser


class _Handler(SimpleHTTPRequestHandler):
    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript"}  # noqa: RUF012 (the base's form)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def served(editions: Path) -> Iterator[str]:
    """Where the editions stand, under a path of their own."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(editions.parent))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/{editions.name}/"
        server.shutdown()


@pytest.fixture(scope="module")
def editions() -> Path:
    """What `bookproof editions -d build/editions` left."""
    if not (EDITIONS / "editions.json").is_file():
        missing = "there are no editions: run `bookproof editions -d build/editions`"
        if "CI" in os.environ:
            pytest.fail(f"{missing}, and nothing is skipped in CI")
        pytest.skip(missing)
    return EDITIONS


@pytest.fixture
def opened(browser: Browser) -> Iterator[Page]:
    """A page in which no script may fail, no console may complain, and nothing leaves this machine."""
    wrong: list[str] = []
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        # The theme draws into a closed root, into which nobody else can look.
        context.add_init_script(
            "const attach = Element.prototype.attachShadow;"
            "Element.prototype.attachShadow = function (how) { return attach.call(this, { ...how, mode: 'open' }); };"
        )
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: wrong.append(f"script error: {error}"))
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.on("requestfailed", lambda request: wrong.append(f"failed: {request.url}"))
        own = ("file:", "data:", "blob:", "http://127.0.0.1:")
        page.on("request", lambda one: None if one.url.startswith(own) else wrong.append(f"to elsewhere: {one.url}"))
        yield page
    assert not wrong


@pytest.fixture(scope="module")
def unpacked(editions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a folder with spaces")
    with zipfile.ZipFile(editions / "offline.zip") as packed:
        packed.extractall(folder)
    (site,) = folder.iterdir()
    return site


def test_the_page_to_print_has_every_page_and_every_diagram(editions: Path, served: str, opened: Page) -> None:
    pages = json.loads((editions / "provenance.json").read_text())["pages"]
    diagrams = sum(len(page["diagrams"]) for page in pages.values())
    opened.goto(f"{served}print/")
    opened.wait_for_function("document.body.dataset.drawn")
    assert opened.locator(".bookproof-book > section").count() == len(pages)
    titles = opened.locator(".bookproof-book > section h1").all_inner_texts()
    for lesson in sorted((ROOT / "docs/lessons").glob("*.md")):
        title = f"\n{lesson.read_text('utf-8')}".split("\n# ", 1)[1].split("\n", 1)[0]
        assert any(shown.startswith(title) for shown in titles), lesson.name
    assert diagrams > 5
    boxes = [one.bounding_box() for one in opened.locator(".bookproof-drawn svg").all()]
    assert len(boxes) == diagrams
    assert all(box and box["width"] > 50 and box["height"] > 50 for box in boxes)
    # A link between pages leads to its place on this page.
    opened.locator('nav a[href="#lessons-memory"]').click()
    opened.wait_for_function("document.getElementById('lessons-memory').getBoundingClientRect().top < 200")


def test_the_zip_is_searched_from_a_disk(unpacked: Path, opened: Page) -> None:
    opened.goto((unpacked / "index.html").as_uri())
    opened.keyboard.press("/")
    opened.keyboard.type("incarnation")
    opened.locator('.md-search-result__link[href*="lessons/sessions.html"]').first.click()
    expect(opened).to_have_url(re.compile(r"/lessons/sessions\.html"))


def test_the_zip_draws_a_diagram_from_a_disk(unpacked: Path, opened: Page) -> None:
    opened.goto((unpacked / "lessons/memory.html").as_uri())
    opened.locator("pre.mermaid").first.scroll_into_view_if_needed()
    opened.locator("div.mermaid svg").first.wait_for()
    box = opened.locator("div.mermaid svg").first.bounding_box()
    assert box
    assert box["height"] > 100


def test_the_zip_says_where_a_lab_would_be_that_it_needs_the_website(unpacked: Path, opened: Page) -> None:
    opened.goto((unpacked / "lessons/memory.html").as_uri())
    assert opened.get_by_text("This lab runs on the website only").count() >= 1
    assert opened.locator("[data-bookproof-lab]").count() == 0
    assert not (unpacked / "lab").exists()


def test_the_site_beside_its_editions_is_the_site_alone(site: Path, editions: Path) -> None:
    """Only when both are of the same state: the record of the site says so by itself."""
    if (site / "provenance.json").read_bytes() != (editions / "provenance.json").read_bytes():
        pytest.skip("the site and the editions were built from two states")
    added = json.loads((editions / "editions.json").read_text())["files"].keys() | {"editions.json"}
    names = {path.relative_to(editions).as_posix() for path in editions.rglob("*") if path.is_file()}
    assert names - added == {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
