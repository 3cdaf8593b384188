"""Compiled: sources and templates as bytecode, so that no process that a build starts has to compile them again.

Python itself checks each source by its hash when it loads it, and Jinja each template by its own, so one edited within
the second, or put back to an earlier time, is never answered by the bytecode of another. Both lie in a `__pycache__`:
of the sources of a site beside them, of templates beside bookproof, since most belong to a theme that many sites share.
A folder that cannot be written costs only time.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import py_compile
import sys
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemBytecodeCache
from jinja2.bccache import Bucket

from bookproof.sources import source_files

_CHECKED_HASH = (0b11).to_bytes(4, "little")  # PEP 552: by hash, and to be checked


def compile_sources(root: Path, folders: Sequence[str]) -> None:
    """Write what is missing or outdated beside the sources, in `__pycache__`; a source that is no Python is left alone.

    Parameters:
        root: The repository, or a copy of it.
        folders: In it, searched to their leaves; hidden ones are passed over.
    """
    for name in source_files(root, folders):
        source = root / name
        if source.suffix != ".py":
            continue
        with contextlib.suppress(OSError, NotImplementedError, py_compile.PyCompileError):
            compiled = Path(importlib.util.cache_from_source(str(source)))
            if not _is_current(compiled, source.read_bytes()):
                mode = py_compile.PycInvalidationMode.CHECKED_HASH
                py_compile.compile(str(source), str(compiled), doraise=True, invalidation_mode=mode)


def _is_current(compiled: Path, source: bytes) -> bool:
    head = importlib.util.MAGIC_NUMBER + _CHECKED_HASH + importlib.util.source_hash(source)
    try:
        with compiled.open("rb") as file:
            return file.read(len(head)) == head
    except FileNotFoundError:
        return False


def compiled_templates(otherwise: Path | None) -> FileSystemBytecodeCache | None:
    """Return where compiled templates are kept.

    Parameters:
        otherwise: A folder for them where bookproof's own cannot be written; None for none.

    Returns:
        None where Python is told to write no bytecode, or has no place for it.
    """
    for folder in (Path(__file__).parent / "__pycache__" / "templates", otherwise):
        if folder is not None and not sys.dont_write_bytecode:
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return _Templates(str(folder))
    return None


class _Templates(FileSystemBytecodeCache):
    """Jinja's own, for environments of many sites: what a template compiles to depends on how each is set."""

    def get_bucket(self, environment: Environment, name: str, filename: str | None, source: str) -> Bucket:
        """Return what is kept of a template, under a name that covers its environment."""
        return super().get_bucket(environment, f"{name}\n{_form(environment)}", filename, source)


def _form(environment: Environment) -> str:
    """Return what a template's code may depend on beside its text: options, and functions that meet constants."""
    options = (environment.trim_blocks, environment.lstrip_blocks, environment.is_async, sorted(environment.extensions))
    named = {**environment.filters, **environment.tests, "autoescape": environment.autoescape}
    return repr((options, [(name, _named(one)) for name, one in sorted(named.items())]))


def _named(value: object) -> str:
    if callable(value):  # by its name, not by where it lies in memory
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    return repr(value)
