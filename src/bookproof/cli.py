"""The command `bookproof`: what an author, a reader and CI do beside building the site.

Each command exits 0 only when everything it looked at is in order, and names files relative to the repository.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Check a book that proves itself."""


@main.command()
@click.argument("page", default="")
@click.option("--config-file", "-f", default="mkdocs.yml", show_default=True, help="The site's configuration.")
def accept(page: str, config_file: str) -> None:
    """Run the examples of PAGE, or of every page, and commit their outputs to the next builds' comparison."""
    with tempfile.TemporaryDirectory(prefix="bookproof-") as site:
        done = _mkdocs("build", "-q", "-f", config_file, "-d", site, environment={"BOOKPROOF_ACCEPT": page})
    sys.exit(done)


@main.command()
@click.option("--config-file", "-f", default="mkdocs.yml", show_default=True, help="The site's configuration.")
@click.option("--site-dir", "-d", default=None, help="Where the site is written.")
@click.option("--report", default=None, help="Write what was run and what failed to this file, as JSON.")
def build(config_file: str, site_dir: str | None, report: str | None) -> None:
    """Build the site: `mkdocs build --strict`, with a report."""
    where = ["-d", site_dir] if site_dir else []
    environment = {"BOOKPROOF_REPORT": str(Path(report).resolve())} if report else {}
    sys.exit(_mkdocs("build", "--strict", "-f", config_file, *where, environment=environment))


def _mkdocs(*arguments: str, environment: dict[str, str]) -> int:
    # The theme's notice about its end of life would stand between the messages.
    environment = {"NO_MKDOCS_2_WARNING": "1", **environment}
    command = [sys.executable, "-m", "mkdocs", *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, check=False).returncode
