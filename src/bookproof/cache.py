"""Passes remembered between builds, so that an unchanged example is not run again.

It promises that only passes are remembered, and only under a key that covers everything that could change them: the
folders `src` and `tests`, `pyproject.toml`, bookproof itself, Python, SQLite, the platform, the host's facts and the
site's settings; the caller adds the examples themselves. It is a convenience: a build for a named commit never uses it,
and whoever deletes the folder loses time only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import sqlite3
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bookproof.host import known_facts
from bookproof.options import Settings


def digest(*parts: str) -> str:
    """Return one sha256 over several texts, told apart by their lengths."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        total.update(f"{len(data)}:".encode() + data)
    return total.hexdigest()


def files_digest(root: Path, names: Iterable[str]) -> str:
    """Return one sha256 over the paths and bytes of files and folders below a root; caches of Python are left out."""
    total = hashlib.sha256()
    for name in names:
        top = root / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
                data = path.read_bytes()
                total.update(f"{path.relative_to(root).as_posix()}\0{len(data)}\0".encode() + data)
    return total.hexdigest()


def base_key(settings: Settings, folders: Iterable[str], also: str) -> str:
    """Return the part of the key that is the same for all examples of a build.

    Parameters:
        settings: The site's.
        folders: What the examples may import or run, relative to the root.
        also: Everything else that a result may depend on, as text.
    """
    own = Path(__file__).parent
    facts = (sys.version, sqlite3.sqlite_version, platform.platform(), sys.prefix, str(os.cpu_count()))
    return digest(
        files_digest(settings.root, (*folders, "pyproject.toml")),
        files_digest(own, sorted(path.name for path in own.glob("*.py"))),
        *facts,
        repr(known_facts(settings.host_facts)),
        repr(installed()),  # pytest, Pygments and everything else that an example or a test may be run by
        also,
    )


def installed() -> dict[str, str]:
    """Return every installed distribution, by the names of the folders that describe them: reading each is slow."""
    found: dict[str, str] = {}
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for path in Path(place).glob("*.dist-info"):
            name, _, version = path.name.removesuffix(".dist-info").rpartition("-")
            found[re.sub(r"[-_.]+", "-", name).lower()] = version
    return dict(sorted(found.items()))


class Cache:
    """A folder of small JSON files, one per key; a folder of None remembers nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._made: set[Path] = set()

    def get(self, key: str) -> dict[str, Any] | None:
        """Return what was remembered under a key."""
        if self._folder is None:
            return None
        try:
            found: dict[str, Any] = json.loads((self._folder / key[:2] / f"{key}.json").read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return found

    def put(self, key: str, value: dict[str, Any]) -> None:
        """Remember a pass; a folder that cannot be written is no failure."""
        if self._folder is None:
            return
        path = self._folder / key[:2] / f"{key}.json"
        with contextlib.suppress(OSError):
            if path.parent not in self._made:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._made.add(path.parent)
            partial = path.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(value), "utf-8")  # as it is: the order of keys may matter to the one who asks
            partial.replace(path)
