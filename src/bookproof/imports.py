"""Imports: which files of a folder a module depends on, found by reading it.

It promises that a digest over them changes whenever the module, or anything that it imports from the folder, does; what
is imported by a name that is computed is not found. Nothing is imported.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from bookproof.cache import Cache, digest


class Imports:
    """Which files of a folder a module depends on: its own, and those of everything that it imports, and so on.

    Parameters:
        folder: The folder of the packages.
        cache: Where what a file imports is remembered.
    """

    def __init__(self, folder: Path, cache: Cache) -> None:
        self._folder, self._cache = folder, cache
        self._direct: dict[Path, tuple[Path, ...]] = {}
        self._modules: dict[str, tuple[Path, ...]] = {}
        self._read: dict[Path, str] = {}
        self._found: dict[tuple[Path, ...], str] = {}

    def digest(self, identifier: str) -> str:
        """Return a digest over the files that an object's page depends on; empty where it is not in the folder."""
        own = self._files(identifier)
        if own not in self._found:
            self._found[own] = self._digest_of(own)
        return self._found[own]

    def _digest_of(self, own: tuple[Path, ...]) -> str:
        found: set[Path] = set()
        waiting = list(own)
        while waiting:
            path = waiting.pop()
            if path not in found:
                found.add(path)
                waiting += self._imported(path)
        names = sorted((path.relative_to(self._folder).as_posix(), path) for path in found)
        return digest(*(part for name, path in names for part in (name, self._digest(path)))) if names else ""

    def _digest(self, path: Path) -> str:
        if path not in self._read:
            self._read[path] = hashlib.sha256(path.read_bytes()).hexdigest()
        return self._read[path]

    def _files(self, name: str) -> tuple[Path, ...]:
        """Return the files of the longest part of a dotted name that is a module, packages above it included.

        A package that is named itself counts with everything in it, since its page may show all of that.
        """
        parts = name.split(".")
        for end in range(len(parts), 0, -1):
            place = self._folder.joinpath(*parts[:end])
            above = [self._folder.joinpath(*parts[:depth], "__init__.py") for depth in range(1, end)]
            own = (
                sorted(place.rglob("*.py*"))
                if place.is_dir()
                else [place.with_suffix(".py"), place.with_suffix(".pyi")]
            )
            if any(path.is_file() for path in own):
                return tuple(path for path in (*above, *own) if path.is_file() and path.suffix in {".py", ".pyi"})
        return ()

    def _imported(self, path: Path) -> tuple[Path, ...]:
        if path not in self._direct:
            here = path.relative_to(self._folder).with_suffix("").parts
            package = here[:-1]  # of `__init__`, too, which is the last part
            key = digest("imports", *package, self._digest(path))
            names = (self._cache.get(key) or {}).get("names")
            if names is None:
                names = imported_names(path.read_bytes(), package)
                self._cache.put(key, {"names": names})
            self._modules |= {name: self._module(name) for name in names if name not in self._modules}
            self._direct[path] = tuple(one for name in names for one in self._modules[name])
        return self._direct[path]

    def _module(self, name: str) -> tuple[Path, ...]:
        """Return the files that importing a name runs: of a package, its own file only."""
        parts = name.split(".")
        tried = [self._folder.joinpath(*parts[:end]) for end in range(1, len(parts) + 1)]
        files = [file for place in tried for file in (place / "__init__.py", place.with_suffix(".py"))]
        return tuple(file for file in files if file.is_file())


def imported_names(text: bytes, package: tuple[str, ...]) -> list[str]:
    """Return the dotted names that a module of a package imports, anywhere in it."""
    names: set[str] = set()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    for node in _statements(tree.body):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *filter(None, [node.module])))
            names |= {f"{base}.{alias.name}" if base else alias.name for alias in node.names}
    return sorted(names)


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield every statement, wherever it stands; what one is made of holds no imports, and is most of a file."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(node, name, ()))
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            yield from _statements(part.body)
