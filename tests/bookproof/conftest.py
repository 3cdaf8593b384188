"""Tiny sites for bookproof's own tests, built by MkDocs in a process of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

import pytest

# One interpreter has MkDocs imported and forks for each build: a build is a real process with a real exit code, but
# does not spend a second on imports.
_SERVER = """
import json, os, sys, traceback
import markdown.extensions.toc, mkdocs.commands.build, mkdocs.contrib.search, mkdocs.theme
import mkdocs_autorefs, mkdocstrings_handlers.python, pymdownx.highlight, pymdownx.snippets
import pygments.formatters.html, pygments.lexers.python
from mkdocs.__main__ import cli
import bookproof.plugin
for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if child == 0:
        os.setsid()
        target = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for descriptor in (1, 2):
            os.dup2(target, descriptor)
        os.chdir(order["root"])
        os.environ.update(order["environment"])
        code = 70
        try:
            cli(["build", *order["arguments"]])
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1 if end.code else 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Build:
    """What a build left."""

    returncode: int
    log: str
    site: Path

    @property
    def failures(self) -> list[str]:
        """Return the first line of each failure."""
        return [line for line in self.log.splitlines() if re.match(r"[\w./-]+(?::\d+)?: ", line)]

    def html(self, page: str = "index") -> str:
        """Return a page."""
        name = "index.html" if page == "index" else f"{page}/index.html"
        return (self.site / name).read_text("utf-8")


@dataclass(slots=True)
class TinySite:
    """A site of a few lines in a folder of its own."""

    root: Path
    server: subprocess.Popen[str]
    options: str = 'outputs: ""'
    extensions: str = ""
    plugins: str = ""
    theme: str = "<html><body>{{ page.content }}</body></html>"
    environment: dict[str, str] = field(default_factory=dict)

    def write(self, path: str, text: str) -> Path:
        """Write a file below the root, whole in one step, as editors do: a server that watches sees one change."""
        target, partial = self.root / path, self.root.parent / f"{self.root.name}.partial"
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(dedent(text).lstrip("\n"), "utf-8")
        partial.replace(target)
        return target

    def configure(self) -> None:
        """Write the configuration and the theme, which shows nothing but the page unless told otherwise."""
        self.write("theme/main.html", self.theme)
        options = "".join(f"\n      {line}" for line in self.options.splitlines())
        text = f"""\
site_name: tiny
theme: {{name: null, custom_dir: theme}}
markdown_extensions:
  - admonition
  - tables
  - pymdownx.tabbed: {{alternate_style: true}}
  - pymdownx.snippets
  - pymdownx.superfences
{self.extensions}
plugins:
{self.plugins}
  - bookproof:{options}
"""
        self.write("mkdocs.yml", text)

    def build(self, *arguments: str, **environment: str) -> Build:
        """Build the site as `mkdocs build ARGUMENTS` does."""
        self.configure()
        log = self.root / "build.log"
        order = {
            "root": str(self.root),
            "log": str(log),
            "arguments": arguments,
            "environment": {**self.environment, **environment},
        }
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps(order) + "\n")
        self.server.stdin.flush()
        returncode = int(self.server.stdout.readline())
        return Build(returncode, log.read_text("utf-8"), self.root / "site")

    def accept(self, page: str = "") -> Build:
        """Accept the outputs of one page, or of all."""
        return self.build("-q", "-d", str(self.root / "accepted"), BOOKPROOF_ACCEPT=page)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the heaviest end-to-end tests to CI, which leaves out nothing."""
    for item in items:
        if item.get_closest_marker("ci") and "CI" not in os.environ:
            item.add_marker(pytest.mark.skip(reason="end to end, half a minute; set CI=true, as .ci/run does"))


def _needs(there: object, otherwise: str) -> None:
    if not there and "CI" in os.environ:
        pytest.fail(f"{otherwise}, and nothing is skipped in CI")
    if not there:
        pytest.skip(otherwise)


@pytest.fixture(scope="session")
def needs() -> Callable[[object, str], None]:
    """Skip a test where a tool is missing, with a reason; in CI that is an error."""
    return _needs


@pytest.fixture(scope="session")
def build_server() -> Iterator[subprocess.Popen[str]]:
    dropped = ("SITE_COMMIT", "GITHUB_ACTIONS", "BOOKPROOF_REPORT", "BOOKPROOF_ACCEPT")
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as server:
        yield server
        assert server.stdin is not None
        server.stdin.close()


@pytest.fixture
def site(tmp_path: Path, build_server: subprocess.Popen[str]) -> TinySite:
    return TinySite(tmp_path, build_server)
