"""Zensical: what of this book another generator builds today, told from a build and never from memory.

`python .ci/zensical.py` builds the lessons of HEAD with Zensical in a clone, runs every example there and compares the
outputs with those of this checkout's `site/provenance.json`, and sees that one planted mistake ends a build. With
`--write` it builds the whole book, which takes minutes, and records the run in `docs/evidence/zensical.json`, which a
page shows. What Zensical lacks is printed and fails nothing; a planted mistake that passes does, and so does an example
with another output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs/evidence/zensical.json"
LIMIT_SECONDS = 300
CHANGES = (
    ("[!relative $config_dir]", "['.']", "`!relative` is unknown to it"),
    (
        "  - pymdownx.tabbed:\n",
        """\
  - bookproof:
      normalise:
        ports: {pattern: '(?<=\\b127\\.0\\.0\\.1:)\\d+', replace: <port>}
  - pymdownx.tabbed:
""",
        "bookproof is listed as an extension, since its plugin is not loaded",
    ),
)
"""What the configuration has to say otherwise: before, after, and why."""
# The extension's own records outlive the build; they say what ran, which the pages would only repeat.
DRIVER = """
import atexit, hashlib, json, sys
import bookproof.extension as extension
def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()
def tell():
    book = extension._State.book
    ran = {
        record.path: {one.id: [one.status, digest(one.output)] for one in record.examples}
        for record in (book.records.values() if book else ())
    }
    open(sys.argv[1], "w").write(json.dumps(ran))
atexit.register(tell)
from zensical.main import cli
cli(["build", "--clean", "--config-file", sys.argv[2]])
"""
PLANTED = '# Planted\n\n```python exec="on"\nprint(1 / 0)\n```\n'


def main() -> int:
    """Build, compare, plant, tell."""
    whole = "--write" in sys.argv
    commit = git("rev-parse", "HEAD")
    provenance = json.loads((ROOT / "site/provenance.json").read_text("utf-8"))
    expected = {
        (path, one["id"]): one["output"]
        for path, page in provenance["pages"].items()
        for one in page["examples"]
        if one["status"] == "passed" and (whole or path.startswith("docs/lessons/"))
    }
    with tempfile.TemporaryDirectory(prefix="zensical-") as name:
        clone = Path(name) / "clone"
        git("clone", "--quiet", str(ROOT), str(clone))
        (clone / "node_modules").symlink_to(ROOT / "node_modules")
        changed = prepare(clone)
        own_template = not one_page(clone, "# Well\n").returncode
        if not own_template:  # left out, so that the rest can be seen
            (clone / "overrides/404.html").unlink()
        red = planted(clone)
        if not whole:
            only_lessons(clone)
        begun = time.monotonic()
        done, ran = build(clone, Path(name) / "ran.json")
        seconds = round(time.monotonic() - begun)
        same = [key for key, digest in expected.items() if ran.get(key[0], {}).get(key[1]) == ["passed", digest]]
        differing = sorted(
            f"{path}#{one}" for path, found in ran.items() for one, told in found.items()
            if told[0] == "passed" and expected.get((path, one), told[1]) != told[1]
        )  # fmt: skip
        parts = look(clone, provenance, own_template=own_template, exit_code=done.returncode) if whole else []
    count = sum(status == "passed" for found in ran.values() for status, _ in found.values())
    record: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit,
        "versions": {"python": sys.version.split()[0], "zensical": version("zensical")},
        "seconds": seconds,
        "configuration": changed,
        "examples": {"expected": len(expected), "ran": count, "same": len(same), "differing": differing},
        "planted": red,
        "parts": parts,
    }
    print(json.dumps(record, indent=1))  # noqa: T201 (read in CI's log)
    if whole:
        RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    if done.returncode:
        print(done.stdout[-2000:] + done.stderr[-2000:])  # noqa: T201 (likewise)
    return int(not red["ended"] or bool(differing))


def prepare(clone: Path) -> list[str]:
    """Change what Zensical cannot read; return why."""
    config = clone / "mkdocs.yml"
    text = config.read_text("utf-8")
    for before, after, _ in CHANGES:
        if text.count(before) != 1:
            sys.exit(f"mkdocs.yml no longer holds {before!r} once: adapt this script")
        text = text.replace(before, after)
    config.write_text(text, "utf-8")
    return [why for _, _, why in CHANGES]


def only_lessons(clone: Path) -> None:
    """Leave every page out but the lessons."""
    config = clone / "mkdocs.yml"
    config.write_text(config.read_text("utf-8").split("\nnav:\n")[0] + "\n", "utf-8")
    for page in (clone / "docs").rglob("*.md"):
        if page.parent.name != "lessons":
            page.unlink()


def build(
    clone: Path, told: Path, config: str = "mkdocs.yml"
) -> tuple[subprocess.CompletedProcess[str], dict[str, dict[str, list[str]]]]:
    """Build once; return how it ended, and by page and example what ran."""
    environment = os.environ | {"PYTHONPATH": str(clone / "src")}
    command = [sys.executable, "-c", DRIVER, str(told), config]
    done = subprocess.run(
        command, cwd=clone, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS
    )
    return done, json.loads(told.read_text("utf-8")) if told.is_file() else {}


def look(clone: Path, provenance: dict[str, Any], *, own_template: bool, exit_code: int) -> list[dict[str, Any]]:
    """Return what is there and what is not, each as it was seen."""
    site = clone / "site"
    files = [page["file"] for page in provenance["pages"].values()]
    there = [file for file in files if (site / file).is_file()]
    api = site / "reference/api/ledger/index.html"
    command = [sys.executable, "-m", "bookproof", "check", str(site), "--root", str(clone)]
    environment = os.environ | {"PYTHONPATH": str(clone / "src")}
    check = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=False)
    broken = len(check.stderr.strip().splitlines())

    def part(name: str, detail: str, *, passes: bool) -> dict[str, Any]:
        return {"part": name, "passes": passes, "seen": detail}

    def file(name: str, path: str) -> dict[str, Any]:
        found = (site / path).exists()
        return part(name, f"`{path}` is {'there' if found else 'not there'}", passes=found)

    return [
        part("the build ends well", f"exit code {exit_code}", passes=not exit_code),
        part("every page", f"{len(there)} of {len(files)}", passes=len(there) == len(files)),
        part(
            "the page for what is not found",
            "our own template is rendered" if own_template else "our own template ends the build; it was left out",
            passes=own_template,
        ),
        part("the API pages", "signatures are rendered", passes=api.is_file() and "doc-signature" in api.read_text()),
        part("links, fragments, ids", f"`bookproof check` names {broken}", passes=not check.returncode),
        file("tests and mutations are run, with a record", "provenance.json"),
        file("pages of source", "source/index.html"),
        file("labs", "lab/lab.json"),
        file("Mermaid from this site", "assets/mermaid/load.js"),
        file("the search index as our tests read it", "search/search_index.json"),
    ]


def planted(clone: Path) -> dict[str, Any]:
    """Build one page with one mistake; return how that ended."""
    done = one_page(clone, PLANTED)
    said = [line.strip() for line in (done.stderr + done.stdout).splitlines() if "planted/index.md:" in line]
    return {"ended": done.returncode != 0 and bool(said), "exit_code": done.returncode, "said": said[:1]}


def one_page(clone: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Build one page under the site's own configuration."""
    config = (clone / "mkdocs.yml").read_text("utf-8").split("\nnav:\n")[0]
    (clone / "planted.yml").write_text(config + "\ndocs_dir: planted\n", "utf-8")
    (clone / "planted").mkdir(exist_ok=True)
    (clone / "planted/index.md").write_text(text, "utf-8")
    return build(clone, clone / "planted.json", "planted.yml")[0]


def git(*arguments: str) -> str:
    """Run git and return what it printed."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
