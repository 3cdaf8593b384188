"""Ids and jitter: the system's randomness by default, a seeded source where a run must be repeatable.

An id is unguessable only with `SystemIds`; `SeededIds` is for examples, tests and simulation, where the same seed must
give the same ledger.
"""

from __future__ import annotations

import os
from typing import Protocol


class Ids(Protocol):
    """What a `Ledger` needs of a source of ids."""

    def new(self, kind: str) -> str:
        """Return a new id, prefixed by its kind: `run-5f0c…`."""

    def jitter(self) -> float:
        """Return a number in [0, 1) that spreads retries."""


class SystemIds:
    """Ids with 96 bits of the operating system's randomness."""

    def new(self, kind: str) -> str:
        """Return a new id, prefixed by its kind."""
        return f"{kind}-{os.urandom(12).hex()}"

    def jitter(self) -> float:
        """Return a number in [0, 1)."""
        return (int.from_bytes(os.urandom(7)) >> 3) / 2**53


class SeededIds:
    """Ids from a seeded generator: the same seed and the same calls give the same ids."""

    def __init__(self, seed: int) -> None:
        import random  # not at the top: each command would load it, and only examples and simulations use it

        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose

    def new(self, kind: str) -> str:
        """Return a new id, prefixed by its kind."""
        return f"{kind}-{self._random.getrandbits(48):012x}"

    def jitter(self) -> float:
        """Return a number in [0, 1)."""
        return self._random.random()
