"""Labs: how long a reader waits for a first and for a second result, measured in a browser on this machine.

`python .ci/labs.py` needs a built site and Chromium; with `--write` the run is recorded in `docs/evidence/labs.json`,
which the evidence page shows. Every sample of a first result begins in a browser with an empty cache, on loopback. It
measures time only: that the results are right is tested in `tests/browser`.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import record
from playwright.sync_api import Browser, sync_playwright

MEASURED = (
    "package-lock.json",
    "src/bookproof/assets/lab-editor.mjs",
    "src/bookproof/assets/lab-load.js",
    "src/bookproof/assets/lab-worker.mjs",
    "src/bookproof/assets/lab.css",
    "src/bookproof/assets/lab.mjs",
    "src/bookproof/assets/pyodide-compile.mjs",
    "src/bookproof/labrun.py",
    "src/bookproof/labs.py",
)
"""What the times depend on most; the record says when one of them has changed since."""
PAGE, BLOCK, MUTATION = "lessons/tools/", "search", "found-is-allowed"
SAMPLES = 5
# Press a button and wait for the lab's verdict, timed by the page itself.
PRESS = """([kind, name, label]) => new Promise((resolve) => {
  const place = document.querySelector(`[data-bookproof-lab="${kind}"][data-name="${name}"]`);
  const button = [...place.querySelectorAll("button")].find((one) => one.textContent === label);
  const start = performance.now();
  const look = () => {
    const state = place.querySelector('.bookproof-lab-state:is([data-tone="good"], [data-tone="bad"])');
    if (state) watch.disconnect(), resolve([(performance.now() - start) / 1000, state.textContent]);
  };
  const watch = new MutationObserver(look);
  button.click();
  watch.observe(place, { subtree: true, childList: true, attributes: true });
})"""


class _Handler(SimpleHTTPRequestHandler):
    extensions_map = {  # noqa: RUF012 (the base class's form)
        **SimpleHTTPRequestHandler.extensions_map,
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def main() -> None:
    """Measure, print, and record if asked."""
    if "--write" in sys.argv:
        record.require_commit()
    handler = partial(_Handler, directory=str(record.ROOT / "site"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, sync_playwright() as playwright:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/{PAGE}"
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        about = record.about(*MEASURED, browser=f"Chromium {browser.version}")
        samples: dict[str, list[float]] = {name: [] for name in ("first", "again", "first_test", "test_again")}
        for _ in range(SAMPLES):
            sample(browser, address, samples)
        found = about | {
            "seconds": {name: [round(value, 3) for value in values] for name, values in samples.items()},
            "median_seconds": {name: round(statistics.median(values), 3) for name, values in samples.items()},
        }
        server.shutdown()
    print(json.dumps(found, indent=2))  # noqa: T201 (the measurement)
    if "--write" in sys.argv:
        record.write("labs", found)


def sample(browser: Browser, address: str, samples: dict[str, list[float]]) -> None:
    """Measure one reader: a block twice, then the test of a mutation twice."""
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(address, wait_until="networkidle")
        page.wait_for_selector("[data-bookproof-armed]")

        def press(kind: str, name: str, label: str, expected: str) -> float:
            seconds, told = page.evaluate(PRESS, [kind, name, label])
            if not told.startswith(expected):
                sys.exit(f"{name} said {told!r}, not {expected!r}")
            return float(seconds)

        samples["first"].append(press("run", BLOCK, "Run", "Equal"))
        samples["again"].append(press("run", BLOCK, "Run", "Equal"))
        samples["first_test"].append(press("mutation", MUTATION, "Break it", "Red"))
        samples["test_again"].append(press("mutation", MUTATION, "Restore", "Green"))


if __name__ == "__main__":
    main()
