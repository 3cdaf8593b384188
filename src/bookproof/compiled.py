"""Compiled: the sources of a site as bytecode, so that no process that a build starts has to compile them again.

Python itself checks each file by the hash of its source when it loads it, so a source edited within the second, or put
back to an earlier time, is never answered by the bytecode of another. A folder that cannot be written costs only time.
"""

from __future__ import annotations

import contextlib
import importlib.util
import py_compile
from collections.abc import Sequence
from pathlib import Path

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
