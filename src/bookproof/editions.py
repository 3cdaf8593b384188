"""Editions: the same book to print, as Markdown, and to open without a server, all of one commit.

`make` builds a site as `mkdocs build` does, byte for byte, and adds to it: `print/`, the whole book in one page; beside
each page its Markdown twin, with `llms.txt` that lists them and `llms-full.txt` that holds them; `offline.zip`, which
opens from a disk with search and diagrams, and says where a lab would be that it runs on the website only. What was
added stands with its digests in `editions.json`, which names the record of the site that it belongs to. Each edition is
the same bytes again when its commit is built again. It promises nothing about how a browser prints.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bookproof.labs import archive
from bookproof.provenance import FILE, file_digests, read_tree, refusals, write_editions

OFFLINE = "offline.zip"
"""The site that opens without a server."""
NO_LABS = (
    "This lab runs on the website only: the offline edition has no Python in it. "
    "What the build recorded stands on this page."
)
"""What stands in the place of each lab in the offline edition."""

_LEFT_OUT = re.compile(
    # The record is of another build than the one that can be repeated from mkdocs.yml, a disk needs no site map, and
    # Mermaid and the search index are there as classic scripts.
    r"provenance\.json|sitemap\.xml(\.gz)?|robots\.txt|.*\.map|assets/mermaid/.*\.mjs|search/search_index\.json"
)


class EditionsError(Exception):
    """The editions could not be made; its text says why."""


def make(config_file: Path, site: Path) -> list[str]:
    """Build a site and its editions.

    Parameters:
        config_file: MkDocs' configuration of the site.
        site: Where the site is written; what is there is replaced.

    Returns:
        Site-relative path of every file that was added.

    Raises:
        EditionsError: A build failed, or a link in an edition leads nowhere. Nothing is left in `site` then.
    """
    root = config_file.resolve().parent
    tree = read_tree(root, ignore=[site])
    if refused := refusals(tree):
        raise EditionsError("\n".join(map(str, refused)))
    with tempfile.TemporaryDirectory(prefix="bookproof-editions-") as name:
        scratch = Path(name)
        # A build that a commit is asked of remembers nothing from before; the second may remember the first.
        cache = str(scratch / "cache") if "SITE_COMMIT" in os.environ else ""
        _build("online", config_file, site, cache)
        try:
            _build("offline", config_file, scratch / "offline", cache)
            return _add(root, site, scratch / "offline")
        except BaseException:
            from mkdocs.utils import clean_directory

            clean_directory(str(site))
            raise


def build(kind: str, config_file: Path, site: Path, cache: str) -> None:
    """Make one of the two builds, in this process.

    Parameters:
        kind: `online` or `offline`.
        config_file: MkDocs' configuration of the site.
        site: Where it is written.
        cache: Where passes are remembered, if not where the configuration says.
    """
    from mkdocs.commands.build import build as run
    from mkdocs.config import load_config
    from mkdocs.config.defaults import MkDocsConfig

    from bookproof.edition_plugins import TEXTS, MarkdownTwins, OfflineEdition, PrintEdition

    unchecked = MkDocsConfig(config_file_path=str(config_file))
    with config_file.open("rb") as file:
        unchecked.load_file(file)
    written = unchecked.user_configs[0]
    offline = kind == "offline"
    options: dict[str, Any] = ({"cache": cache} if cache else {}) | ({"labs_off": NO_LABS} if offline else {})
    changes: dict[str, Any] = {"plugins": _plugins(written["plugins"], options, offline=offline)}
    if offline:
        changes |= _without_a_server(written)
    config = load_config(str(config_file), site_dir=str(site), strict=True, **changes)
    root = config_file.resolve().parent
    if offline:
        config.plugins["bookproof/offline"] = OfflineEdition(root)
    else:
        tree = read_tree(root, ignore=[site])
        whole = f"commit {tree.commit}" if not tree.why_draft else "a draft that no commit holds"
        twins = MarkdownTwins()
        twins.load_config({"full_output": TEXTS[1], "sections": {}})
        config.plugins["bookproof/twins"] = twins
        config.plugins["bookproof/print"] = PrintEdition(f"The whole book in one page, made from {whole}.")
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    config.plugins.on_startup(command="build", dirty=False)
    try:
        run(config)
    finally:
        config.plugins.on_shutdown()


def _add(root: Path, site: Path, offline: Path) -> list[str]:
    """Add what was built to open without a server, see that every link leads somewhere, and write the record."""
    from bookproof.check import check_site, read_origins

    source = json.loads((site / FILE).read_text("utf-8"))["source"]
    folder = f"offline-{'draft' if source['draft'] else source['commit'][:12]}"
    (site / OFFLINE).write_bytes(archive(_packed(offline, folder).items()))
    if failures := check_site(site, sources=read_origins(site, root)):
        raise EditionsError("\n".join(map(str, failures)))
    return write_editions(site)


def _plugins(written: list[Any], options: Mapping[str, Any], *, offline: bool) -> list[Any]:
    """Return the plugins of the configuration, with further options for bookproof."""
    found: list[Any] = []
    for one in written:
        name, given = next(iter(one.items())) if isinstance(one, dict) else (one, None)
        found.append({name: {**(given or {}), **options}} if name == "bookproof" and options else one)
    return [*found, "offline"] if offline else found


def _without_a_server(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the configuration has to say otherwise where pages are opened from a disk."""
    from bookproof.edition_plugins import SHIM

    theme = written.get("theme", {})
    if isinstance(theme, Mapping):
        features = [one for one in theme.get("features", []) if not one.startswith("navigation.instant")]
        theme = {**theme, "features": features}
    extra = written.get("extra") or {}
    return {"theme": theme, "use_directory_urls": False, "extra": {**extra, "polyfills": [SHIM]}}


def _build(kind: str, config_file: Path, site: Path, cache: str) -> None:
    """Make one build in a process of its own."""
    command = [sys.executable, "-m", "bookproof.editions", kind, str(config_file), str(site.resolve()), cache]
    kept = {name: value for name, value in os.environ.items() if name != "SITE_COMMIT"}
    done = subprocess.run(command, env={**kept, "NO_MKDOCS_2_WARNING": "1"}, check=False)
    if done.returncode:
        raise EditionsError(f"the {kind} build failed")


def _packed(site: Path, folder: str) -> dict[str, bytes]:
    names = sorted(file_digests(site))
    return {f"{folder}/{name}": (site / name).read_bytes() for name in names if not _LEFT_OUT.fullmatch(name)}


if __name__ == "__main__":
    build(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
