"""Host: what a machine must have for some examples to run, and whether this one has it.

It promises that each fact is tried, once per process, by doing what it names; what was only looked up in a list of
kernel versions would be a guess. What follows from a missing fact is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial

_OPENAT2 = 437
"""Number of the system call, the same on every architecture."""
_RESOLVE_BENEATH = 8


def short_folder() -> str | None:
    """Return where folders are made whose names outputs may show; None: wherever the system says.

    Programs wrap, quote and cut a path by its length and its blanks, which no rule can undo afterwards: so the names
    are of the same form wherever they can be, whatever `TMPDIR` holds.
    """
    return "/tmp" if os.access("/tmp", os.W_OK | os.X_OK) else None  # noqa: S108 - a private folder is made in it


def known_facts(own: Mapping[str, str]) -> dict[str, bool]:
    """Return every known host fact, and whether it holds.

    Parameters:
        own: The site's further facts: name to a shell command that exits 0 where the fact holds.
    """
    lacks = os.environ.get("BOOKPROOF_HOST_LACKS", "").split(",")
    found = {name: _once(name, holds) for name, holds in _FACTS.items()}
    found |= {name: _once(f"{name}: {command}", partial(_runs, "bash", "-c", command)) for name, command in own.items()}
    return {name: found[name] and name not in lacks for name in sorted(found)}


def missing_facts(names: tuple[str, ...], own: Mapping[str, str]) -> tuple[str, ...]:
    """Return a reason for each host fact that does not hold here.

    Parameters:
        names: What an example needs.
        own: The site's further facts.

    Raises:
        ValueError: A fact is unknown.
    """
    if not names:
        return ()
    facts = known_facts(own)
    for name in names:
        if name not in facts:
            raise ValueError(f"unknown host fact {name!r}: known are {', '.join(facts)}")
    return tuple(f"this host has no {name}" for name in names if not facts[name])


_answers: dict[str, bool] = {}


def _once(key: str, holds: Callable[[], bool]) -> bool:
    if key not in _answers:
        _answers[key] = holds()
    return _answers[key]


def _runs(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _opens_beneath() -> bool:
    """Tell whether the kernel opens a file with `RESOLVE_BENEATH`; a filter may forbid a call that it has."""
    if not sys.platform.startswith("linux"):
        return False
    how = (ctypes.c_uint64 * 3)(os.O_RDONLY, 0, _RESOLVE_BENEATH)
    with contextlib.suppress(OSError, AttributeError):
        descriptor = int(ctypes.CDLL(None).syscall(_OPENAT2, -100, b".", ctypes.byref(how), ctypes.sizeof(how)))
        if descriptor >= 0:
            os.close(descriptor)
            return True
    return False


_FACTS: dict[str, Callable[[], bool]] = {
    "fork": lambda: hasattr(os, "fork"),
    "git": lambda: shutil.which("git") is not None,
    "linux": lambda: sys.platform.startswith("linux"),
    "openat2": _opens_beneath,
    "userns": lambda: _runs("unshare", "--user", "--map-root-user", "true"),
}
