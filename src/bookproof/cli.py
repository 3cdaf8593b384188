"""The command `bookproof`: what an author, a reader and CI do beside building the site.

Each command exits 0 only when everything it looked at is in order, 1 when something is not, 2 when it was called
wrongly; it names files relative to the repository.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bookproof.page import Failure

if TYPE_CHECKING:
    from bookproof.check import Origin

_FILE = click.Path(path_type=Path)
_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Build, check and verify a book that cannot say what was not run."""


@main.command()
@click.argument("page", default="")
@click.option("--config-file", "-f", default="mkdocs.yml", show_default=True, help="The site's configuration.")
def accept(page: str, config_file: str) -> None:
    """Run the examples of PAGE, or of every page, and write their outputs where builds compare them."""
    with tempfile.TemporaryDirectory(prefix="bookproof-") as site:
        done = _mkdocs("build", "-q", "-f", config_file, "-d", site, environment={"BOOKPROOF_ACCEPT": page})
    sys.exit(done)


@main.command()
@click.option("--config-file", "-f", default="mkdocs.yml", show_default=True, help="The site's configuration.")
@click.option("--site-dir", "-d", default=None, help="Where the site is written.")
@click.option("--report", type=_FILE, default=None, help="Write what was run and what failed to this file, as JSON.")
def build(config_file: str, site_dir: str | None, report: Path | None) -> None:
    """Build the site: `mkdocs build --strict`, with a report."""
    where = ["-d", site_dir] if site_dir else []
    environment = {"BOOKPROOF_REPORT": str(report.resolve())} if report else {}
    sys.exit(_mkdocs("build", "--strict", "-f", config_file, *where, environment=environment))


@main.command()
@click.argument("site", type=_FOLDER)
@click.option("--site-url", default=None, help="Where the site will stand; read from the front page when omitted.")
@click.option("--root", type=_FOLDER, default=".", help="The repository, for the lines of its pages.")
@click.option("--docs", default="docs", show_default=True, help="The documentation folder in it.")
@click.option("--outputs", default="tests/outputs", show_default=True, help="Its folder of committed outputs.")
@click.option("--report", type=_FILE, default=None, help="Write the failures to this file, as JSON.")
def check(site: Path, site_url: str | None, root: Path, docs: str, outputs: str, report: Path | None) -> None:
    """Check every link, fragment and id of a built SITE, that no page is missing, and that it asks no other host."""
    from bookproof.check import check_site, read_origins

    # Without a record, as after another renderer, nobody can say which pages there should be.
    sources = read_origins(site, root, docs=docs, committed=outputs) or _origins(site, root, docs)
    failures = check_site(site, site_url=site_url, sources=sources)
    if not failures:
        pages = sum(1 for _ in site.rglob("*.html"))
        click.echo(f"{pages} pages: every link, fragment and id is in order, and no page asks another host")
    _end(failures, report)


@main.command()
@click.option(
    "--config-file", "-f", type=_FILE, default="mkdocs.yml", show_default=True, help="The site's configuration."
)
@click.option("--site-dir", "-d", type=_FILE, default="site", show_default=True, help="Where the site is written.")
def editions(config_file: Path, site_dir: Path) -> None:
    """Build the site, and add to it the book to print, as Markdown, and to open without a server."""
    from bookproof.editions import EditionsError, make

    try:
        added = make(config_file, site_dir)
    except EditionsError as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    click.echo(f"{site_dir}: {len(added)} files added, listed in editions.json")


@main.command()
@click.argument("ids", nargs=-1)
@click.option("--root", type=_FOLDER, default=".", help="The repository.")
@click.option("--mutations", default="tests/mutations.toml", show_default=True, help="The file of the mutations.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def mutate(ids: tuple[str, ...], root: Path, mutations: str, *, as_json: bool) -> None:
    """Apply the mutations IDS, or all, each to a copy of the tree, and see that their tests catch them."""
    from bookproof.mutations import UnusableMutations
    from bookproof.mutations import mutate as run

    try:
        results = run(root, ids, path=mutations)
    except UnusableMutations as unusable:
        click.echo(str(unusable), err=True)
        sys.exit(2)
    if as_json:
        click.echo(json.dumps([result.as_json() for result in results], indent=1, sort_keys=True))
    else:
        for result in results:
            click.echo(str(result))
    sys.exit(any(result.failure() for result in results))


@main.command()
@click.argument("page")
@click.option("--config-file", "-f", default="mkdocs.yml", show_default=True, help="The site's configuration.")
def run(page: str, config_file: str) -> None:
    """Run the examples of PAGE, or of PAGE#ID that one after those above it, and print what they print."""
    from bookproof.run import read_settings, run_page

    path, _, example = page.partition("#")
    failed = False
    try:
        for ran in run_page(read_settings(Path(config_file)), path, example):
            if not example:
                click.echo(f"== {ran.id}")
            if ran.skipped:
                click.echo(f"not run: {ran.skipped}", err=True)
            elif ran.failure is not None:
                failed = True
                click.echo(str(ran.failure), err=True)
            else:
                click.echo(ran.output, nl=False)
    except ValueError as wrong:
        click.echo(str(wrong), err=True)
        sys.exit(2)
    sys.exit(failed)


@main.command()
@click.argument("site", type=_FOLDER)
@click.option("--repo", type=_FOLDER, default=".", help="A clone that holds the recorded commit.")
def verify(site: Path, repo: Path) -> None:
    """Check every digest of a built SITE, build its commit again, and compare byte by byte."""
    from bookproof.provenance import verify as run

    found = run(site, repo)
    click.echo(str(found))
    if found.details:
        click.echo(found.details, err=True)
    sys.exit(not found.ok)


def _origins(site: Path, root: Path, docs: str) -> dict[str, Origin]:
    """Return the source of each page that is in the site, by the page's file, where the site has no record of it."""
    from bookproof.check import Origin

    found = {}
    for path in sorted((root / docs).rglob("*.md")):
        name = path.relative_to(root / docs).with_suffix("").as_posix()
        stem = name.removesuffix("index").removesuffix("README").rstrip("/")
        for file in (f"{stem}/index.html".lstrip("/"), f"{name}.html"):
            if (site / file).is_file():
                found[file] = Origin(path.relative_to(root).as_posix(), path.read_text("utf-8"))
                break
    return found


def _end(failures: Sequence[Failure], report: Path | None) -> None:
    """Tell the failures and end the process."""
    if report is not None:
        told = [{"path": failure.path, "line": failure.line, "text": failure.text} for failure in failures]
        report.write_text(json.dumps({"failures": told}, indent=2, sort_keys=True) + "\n", "utf-8")
    for failure in failures:
        click.echo(str(failure), err=True)
        if os.environ.get("GITHUB_ACTIONS") == "true":
            click.echo(failure.annotation())
    sys.exit(bool(failures))


def _mkdocs(*arguments: str, environment: dict[str, str]) -> int:
    command = [sys.executable, "-m", "mkdocs", *arguments]
    # The theme's notice about its end of life would stand between the messages.
    environment = {"NO_MKDOCS_2_WARNING": "1", **environment}
    return subprocess.run(command, env={**os.environ, **environment}, check=False).returncode
