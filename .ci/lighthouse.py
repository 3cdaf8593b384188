"""Lighthouse: how it scores the first page and every lesson on a simulated phone, five times each, on this machine.

Lighthouse touches nothing, and the theme's script starts when a reader does. So what that start costs is measured
beside it: a tap in each page, on a processor slowed down as Lighthouse does.

`python .ci/lighthouse.py` needs a built site, Chromium and npm, which installs Lighthouse into a temporary folder; with
`--write` the medians are recorded in `docs/evidence/lighthouse.json`, which a page shows. The site is served on
loopback, compressed, as a host would; the slow network and processor are Lighthouse's simulation. What CI gates is
counted instead, in `tests/browser`: bytes, requests and how far the layout moves, the same on every machine.
"""

from __future__ import annotations

import gzip
import json
import mimetypes
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import record
from playwright.sync_api import sync_playwright

VERSION = "12.2.3"
PAGES = (
    "",
    *(f"lessons/{name}/" for name in ("isolation", "watchers", "context", "sessions", "tools", "memory")),
)
RUNS = 5
MEASURED = (
    "docs/assets/site.css",
    "docs/assets/site.js",
    "overrides/main.html",
    "overrides/partials/palette.html",
    "overrides/partials/javascripts/palette.html",
)
"""What the site adds to every page; the record says when it has changed since."""
TIMES = {
    "first_paint_ms": "first-contentful-paint",
    "largest_paint_ms": "largest-contentful-paint",
    "blocked_ms": "total-blocking-time",
    "layout_shift": "cumulative-layout-shift",
}
SLOWED = 4
"""How many times slower Lighthouse's phone is than this machine."""
LONG_TASKS = """window.tasks = [];
new PerformanceObserver((list) => tasks.push(...list.getEntries().map((one) => one.duration)))
  .observe({ type: "longtask" });"""
SITE = record.ROOT / "site"
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")


@cache
def _body(path: Path) -> bytes:
    return gzip.compress(path.read_bytes(), 9)


class _Handler(BaseHTTPRequestHandler):
    """Answers with compressed files that may be kept, as a host of static sites does."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        path = SITE / self.path.partition("?")[0].lstrip("/")
        path = path / "index.html" if path.is_dir() else path
        found = path.is_file()
        body = _body(path if found else SITE / "404.html")
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", mimetypes.guess_type(path.name)[0] or "text/html")
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "max-age=600")
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    """Measure, print, and record if asked."""
    if "--write" in sys.argv:
        record.require_commit()
    version = subprocess.run([CHROMIUM, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    about = record.about(*MEASURED, browser=f"Chromium {version}")
    with (
        tempfile.TemporaryDirectory(prefix="lighthouse-") as folder,
        ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server,
    ):
        command = ["npm", "install", "--silent", "--no-save", "--prefix", folder, f"lighthouse@{VERSION}"]
        subprocess.run(command, check=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        pages = {
            page: [
                run(Path(folder), address + page) | {"first_move_ms": first_move(address + page)} for _ in range(RUNS)
            ]
            for page in PAGES
        }
        server.shutdown()
    medians = {
        page: {name: round(statistics.median(one[name] for one in runs), 3) for name in runs[0]}
        for page, runs in pages.items()
    }
    scores = {page: [one["performance"] for one in runs] for page, runs in pages.items()}
    found = about | {"lighthouse": VERSION, "runs": RUNS, "median": medians, "performance": scores}
    print(json.dumps(found, indent=2))  # noqa: T201 (the measurement)
    if "--write" in sys.argv:
        record.write("lighthouse", found)


def run(folder: Path, address: str) -> dict[str, float]:
    """Return the scores, of 100, and the times of one visit."""
    command = [
        str(folder / "node_modules/.bin/lighthouse"),
        address,
        "--quiet",
        "--output=json",
        "--chrome-flags=--headless=new --no-sandbox --disable-gpu",
    ]
    environment = os.environ | {"CHROME_PATH": CHROMIUM}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=180)
    if done.returncode:
        sys.exit(f"{address}: {done.stderr}")
    told = json.loads(done.stdout)
    if told.get("runtimeError"):
        sys.exit(f"{address}: {told['runtimeError']}")
    scores = {name.replace("-", "_"): round(100 * one["score"]) for name, one in told["categories"].items()}
    return scores | {name: told["audits"][audit]["numericValue"] for name, audit in TIMES.items()}


def first_move(address: str) -> float:
    """Return for how many ms a tap in a page at rest leaves it without an answer: what each task takes beyond 50."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 412, "height": 823}, has_touch=True, is_mobile=True)
        page.goto(address, wait_until="networkidle")
        page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": SLOWED})
        page.evaluate(LONG_TASKS)
        page.touchscreen.tap(200, 400)
        page.wait_for_function("'component$' in window", timeout=60_000)
        page.wait_for_timeout(3000)
        tasks = page.evaluate("tasks")
        browser.close()
    return sum(max(0, task - 50) for task in tasks)


if __name__ == "__main__":
    main()
