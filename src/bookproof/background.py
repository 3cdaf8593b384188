"""Background: while an author writes, tests and mutations run in one process beside the server, on a copy.

It promises that a page in `mkdocs serve` never shows a verdict of other code than the one it was built from: it says
"running" until the process for this very code is done, and a small script then writes the verdicts in, without a
rebuild. It publishes nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from bookproof.cache import base_key
from bookproof.options import Settings
from bookproof.proofs import Proofs

SERVE_SCRIPT = "bookproof/verdicts.js"
"""Site-relative script that writes verdicts into pages."""
_DATA = "bookproof/verdicts.json"
_SCRIPT = """\
// Writes the verdicts of the background run into the page, once they are in, and what examples print meanwhile.
(function () {
  const source = new URL("verdicts.json", document.currentScript.src);
  const examples = new URL("examples.json", document.currentScript.src);
  const root = new URL("..", source).href;
  function show(kind, verdicts) {
    for (const element of document.querySelectorAll("[data-bookproof-" + kind + "]")) {
      const found = verdicts[element.getAttribute("data-bookproof-" + kind)];
      if (!found || element.tagName !== "SPAN") continue;
      const word = found.verdict.replaceAll(" ", "-");
      element.className = "bookproof-verdict bookproof-verdict--" + word;
      element.textContent = found.reason ? found.verdict + ": " + found.reason : found.verdict;
    }
  }
  function box(kind, words, text) {
    const element = document.createElement("div");
    element.className = "admonition bookproof-again " + kind;
    element.setAttribute("role", "status");
    element.append(Object.assign(document.createElement("p"), { textContent: words }));
    if (text) element.append(Object.assign(document.createElement("pre"), { textContent: text }));
    return element;
  }
  async function follow() {
    const page = location.href.split(/[?#]/)[0].slice(root.length).replace(/index\\.html$/, "");
    const answer = await fetch(examples, { cache: "no-store" }).catch(() => null);
    const state = answer && answer.ok ? (await answer.json())[page] || {} : {};
    document.querySelectorAll(".bookproof-again").forEach((element) => element.remove());
    if (state.running) {
      const first = document.querySelector(".bookproof-example");
      if (first) first.before(box("info", "The code has changed: the examples of this page are running again."));
      return setTimeout(follow, 500);
    }
    for (const [name, text] of Object.entries(state.changed || {})) {
      const element = document.getElementById("example-" + name) || document.getElementById(name);
      if (element) element.after(box("warning", "With the code as it is now, this example gives:", text));
    }
  }
  async function look() {
    if (!document.querySelector(".bookproof-verdict--running")) return;
    const answer = await fetch(source, { cache: "no-store" }).catch(() => null);
    const verdicts = answer && answer.ok ? await answer.json() : { running: true };
    if (verdicts.running) return setTimeout(look, 1000);
    show("test", verdicts.tests);
    show("mutation", verdicts.mutations);
  }
  let page;
  const both = () => {
    if (page === location.pathname) return;
    page = location.pathname;
    look();
    follow();
  };
  const start = () => {
    both();
    new MutationObserver(both).observe(document.body, { childList: true }); // a theme may swap pages without a load
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
"""


class Background:
    """At most one process, for the code of the last build."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._key = ""
        self._folder: Path | None = None

    def start(self, settings: Settings, tests: tuple[str, ...], site: Path) -> None:
        """Write the script, and the verdicts if they are in; else see that a process for this code runs."""
        script = site / SERVE_SCRIPT
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(_SCRIPT, "utf-8")
        shown = site / _DATA
        key = base_key(settings, (settings.src, settings.tests), repr(tests))
        if key != self._key or self._folder is None:
            self.stop()
            self._key, self._folder = key, Path(tempfile.mkdtemp(prefix="bookproof-serve-"))
            shown.write_text('{"running": true}', "utf-8")
            orders = {
                "root": str(settings.root.resolve()),
                "src": settings.src,
                "tests": settings.tests,
                "mutations": settings.mutations,
                "cache": str((settings.root / settings.cache).resolve()) if settings.cache else "",
                "cited": tests,
                "result": str(self._folder / "verdicts.json"),
                "shown": str(shown),
                "copy": str(self._folder / "copy"),
            }
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bookproof.background", json.dumps(orders)],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
                start_new_session=True,
            )
        elif (self._folder / "verdicts.json").is_file():
            shutil.copyfile(self._folder / "verdicts.json", shown)
        else:
            shown.write_text('{"running": true}', "utf-8")

    def stop(self) -> None:
        """End the process and forget what it did."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.terminate()
            process.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._key, self._folder = "", None


def _main(orders: dict[str, str]) -> None:
    os.nice(19)  # the author waits for the next page, not for a verdict
    root, copy = Path(orders["root"]), Path(orders["copy"])
    copy.mkdir(parents=True)
    for name in (orders["src"], orders["tests"]):
        if (root / name).is_dir():
            shutil.copytree(root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    if (root / "pyproject.toml").is_file():
        shutil.copy(root / "pyproject.toml", copy)
    settings = Settings(copy, src=orders["src"], tests=orders["tests"], mutations=orders["mutations"])
    proofs = Proofs(replace(settings, cache=orders["cache"]), cached=True)
    proofs.start(orders["cited"])
    verdicts = proofs.verdicts()
    proofs.close()
    for name in ("result", "shown"):
        target = Path(orders[name])
        if target.parent.is_dir():
            partial = target.with_suffix(".partial")
            partial.write_text(json.dumps(verdicts.as_json(), sort_keys=True), "utf-8")
            partial.replace(target)
    for failure in proofs.mutation_failures(verdicts):
        print(failure, file=sys.stderr, flush=True)  # noqa: T201 (beside the server's own log)


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
