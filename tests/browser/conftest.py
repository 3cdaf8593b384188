"""The built site in Debian's Chromium: served under a sub-path of this machine, with every other host out of reach."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

ROOT = Path(__file__).parents[2]
SITE = ROOT / "site"
PREFIX = "/some/path/"
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


class _Handler(SimpleHTTPRequestHandler):
    """Serves the site, with the address in its sitemap that it is served at: the theme's navigation compares them."""

    extensions_map = {  # noqa: RUF012 (the base class's form)
        **SimpleHTTPRequestHandler.extensions_map,
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        if not self.path.startswith(PREFIX):
            self.send_error(404)
            return
        self.path = "/" + self.path.removeprefix(PREFIX)
        host, port = self.server.server_address[:2]
        if self.path == "/sitemap.xml":
            whole = f"<loc>http://{host}:{port}{PREFIX}"
            text = re.sub(r"<loc>https?://[^/]+/", whole, (SITE / "sitemap.xml").read_text())
            self._answer(200, "application/xml", text)
        elif not Path(self.translate_path(self.path)).exists():
            # A host answers with this page, whatever was asked for: its addresses begin at the root.
            text = re.sub(r'((?:href|src|"base": ?|"search": ?)=?)"/', rf'\1"{PREFIX}', (SITE / "404.html").read_text())
            self._answer(404, "text/html", text)
        else:
            super().do_GET()

    def _answer(self, status: int, kind: str, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the browser in CI, and where somebody asks for this folder."""
    asked = "CI" in os.environ or any("browser" in argument for argument in config.invocation_params.args)
    for item in items:
        if item.get_closest_marker("browser") and not asked:
            item.add_marker(pytest.mark.skip(reason="minutes in a browser: run `pytest tests/browser` on a built site"))


@pytest.fixture(scope="session")
def site() -> Path:
    """The site of this checkout, as `bookproof build` left it; an old one would test nothing."""
    missing = ""
    if not (SITE / "lab/lab.json").is_file():
        missing = "there is no site with labs: run `bookproof build`"
    elif not shutil.which(CHROMIUM):
        missing = f"{CHROMIUM} is not installed"
    if missing and "CI" in os.environ:
        pytest.fail(f"{missing}, and nothing is skipped in CI")
    if missing:
        pytest.skip(missing)
    return SITE


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    """Where the site is served."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}{PREFIX}"
        server.shutdown()


@pytest.fixture(scope="session")
def browser(site: Path) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield opened
        opened.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    with browser.new_context(viewport={"width": 1280, "height": 900}) as opened:
        opened.set_default_timeout(60_000)
        yield opened


@pytest.fixture
def tab(context: BrowserContext, guard: Callable[[Page], list[str]]) -> Iterator[Page]:
    """A page of a fresh browser that fails the test for every script error and every request to another host."""
    opened = context.new_page()
    wrong = guard(opened)
    yield opened
    assert not wrong


@pytest.fixture(scope="session")
def guard(address: str) -> Callable[[Page], list[str]]:
    """What must not happen in a page, noted while it happens."""
    return partial(_watch, address)


def _watch(address: str, page: Page) -> list[str]:
    """Return a list that grows with everything that must not happen in a page."""
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(f"script error: {error}"))
    page.context.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((address, "data:", "blob:"))
            else wrong.append(f"request to elsewhere: {request.url}")
        ),
    )
    return wrong


@pytest.fixture(scope="session")
def wake() -> Callable[[Page], None]:
    """Move, as every reader does: the theme's script starts with it, and knows all pages when this ends."""

    def move(page: Page) -> None:
        with page.expect_response("**/sitemap.xml"):
            page.mouse.move(5, 5)
            page.mouse.move(6, 6)
        page.wait_for_function("'component$' in window")

    return move
