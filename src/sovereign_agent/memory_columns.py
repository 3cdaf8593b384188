"""The index behind `memory.recall` for many rows where numpy is missing: the same hits, with the standard library only.

Vectors are kept dimension by dimension, many rows in one whole number: to multiply it by a number of the query is to
multiply all its rows at once, at the speed of Python's arithmetic on large numbers. That costs precision, so what comes
out is a bound with a proved margin, from which `memory_select` finds the hits. Keeps words and vectors, no content.
"""

from __future__ import annotations

import heapq
import math
import sqlite3
import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import mul
from weakref import WeakKeyDictionary

from . import memory as plain
from .ledger import Ledger, Transaction
from .memory_select import EPOCH, SLACK, Block, select

_ROWS = 4_096  # rows of one whole number: 16 KiB, so that a product stays in the processor's nearest cache
_SLOT = 32  # bits for each row: those of a float32
_BITS = 15  # bits that are kept of each number of a vector
_STEP = 4 / 2**_BITS
_MIDDLE = 6.0
_ODD = 1e-3  # a length that is further from 1 than any rounding explains


@dataclass(frozen=True, slots=True)
class Asked:
    """A query's vector as whole numbers, and what follows from rounding it."""

    numbers: tuple[int, ...]
    lift: int
    """What is added to each row, so that no row's sum is below 0."""
    scale: float
    base: float
    """A row's cosine is at most `scale * sum + base`."""


def asked(vector: Sequence[float]) -> Asked:
    """Round a query's vector, and bound what that and the rounding of the rows may change; pure.

    A row's number x, between -1 and 1, is kept as the code c of `6 + x`: that lies in [4, 8), where float32 numbers are
    evenly spaced, so its `_BITS` highest fraction bits are a whole number, and x lies within `_STEP / 2 + 2**-22` of
    `(c + 1/2) * _STEP - 2`. With a query q rounded to the whole numbers k / s, the product of the two roundings is off
    by at most `sum |k / s| * (_STEP / 2 + 2**-22)` for the rows and, by the inequality of Cauchy and Schwarz,
    `|q - k / s|` times the row's length for the query. The sum of `|k| * c` stays below `2**_SLOT`, so no row's sum
    reaches the next row.

    Parameters:
        vector: Unit length, at most 16384 numbers.
    """
    size = math.fsum(map(abs, vector))
    s = (2 ** (_SLOT - _BITS) - len(vector)) / size
    numbers = tuple(round(number * s) for number in vector)
    lift = sum(-number for number in numbers if number < 0) * 2**_BITS
    off_rows = sum(map(abs, numbers)) / s * (_STEP / 2 + 2.0**-22)
    off_query = math.dist(vector, [number / s for number in numbers]) * (1 + _ODD)
    scale = _STEP / s
    base = sum(numbers) / s * (_STEP / 2 - 2) - lift * scale + off_rows + off_query + SLACK
    return Asked(numbers, lift, scale, base)


@dataclass(slots=True)
class _Vectors:
    """The vectors of one model and length, in chunks that grow at the end only."""

    dimensions: int
    positions: array[int] = field(default_factory=lambda: array("q"))
    chunks: list[tuple[int, list[int]]] = field(default_factory=list)
    """How many rows, and for each dimension their codes, 32 bits for each row, the first row lowest."""
    odd: list[int] = field(default_factory=list)
    """Rows whose stored vector is not of unit length, or none: nothing is promised of their product."""

    def extend(self, positions: Sequence[int], stored: Sequence[bytes]) -> None:
        """Add rows; an odd one as zeros."""
        self.positions.extend(positions)
        at = 0
        while at < len(stored):
            if not self.chunks or self.chunks[-1][0] == _ROWS:
                self.chunks.append((0, [0] * self.dimensions))
            count, columns = self.chunks[-1]
            values = array("f", b"".join(stored[at : at + _ROWS - count]))
            if sys.byteorder == "big":
                values.byteswap()
            added = len(values) // self.dimensions
            for row in range(added):
                place = slice(row * self.dimensions, (row + 1) * self.dimensions)
                if not abs(math.hypot(*values[place]) - 1) <= _ODD:
                    self.odd.append(positions[at + row])
                    values[place] = array("f", bytes(4 * self.dimensions))
            codes = _every(2**_BITS - 1, added)
            for dimension in range(self.dimensions):
                column = array("f", map(_MIDDLE.__add__, values[dimension :: self.dimensions]))
                bits = int.from_bytes(_little(column), "little") >> (23 - _BITS)
                columns[dimension] |= (bits & codes) << (_SLOT * count)
            self.chunks[-1] = (count + added, columns)
            at += added

    def bounds(self, query: Sequence[float], floor: float) -> Iterator[float]:
        """Yield an upper bound of each row's semantic component."""
        one = asked(query)
        scale, base = one.scale, one.base
        for count, columns in self.chunks:
            total = sum(map(mul, one.numbers, columns), _every(one.lift, count))
            sums = array("I", total.to_bytes(count * _SLOT // 8, "little"))
            if sys.byteorder == "big":
                sums.byteswap()
            for each in sums:
                cosine = scale * each + base
                yield min(cosine, 1.0) if cosine > floor else 0.0


def _every(number: int, count: int) -> int:
    """Return a whole number that holds one number in each of so many rows."""
    return int.from_bytes(number.to_bytes(_SLOT // 8, "little") * count, "little")


def _little(values: array[float]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


@dataclass(slots=True)
class _Block(Block):
    """The numbers that the scores of one visibility's rows are made of."""

    created: array[float] = field(default_factory=lambda: array("d"))
    """Seconds since 1970; minus infinity for a time that cannot be read."""
    importance: array[float] = field(default_factory=lambda: array("d"))
    counts: array[int] = field(default_factory=lambda: array("q"))
    """How many different words each row has."""
    having: defaultdict[str, array[int]] = field(default_factory=lambda: defaultdict(lambda: array("q")))
    """Where each word stands."""
    vectors: dict[tuple[str | None, int], _Vectors] = field(default_factory=dict)

    def take(self, rows: list[sqlite3.Row]) -> None:
        """Note new rows."""
        start = len(self.seqs)
        Block.take(self, rows)
        groups: dict[tuple[str | None, int], tuple[list[int], list[bytes]]] = {}
        for position, row in enumerate(rows, start):
            words = set((row["words"] or "").split())
            for word in words:
                self.having[word].append(position)
            self.counts.append(len(words))
            self.importance.append(min(1.0, max(0.0, row["importance"] or 0.0)))
            created = plain.instant(row["created_at"])
            self.created.append(-math.inf if created is None else (created - EPOCH).total_seconds())
            stored = row["embedding"] or b""
            if stored and not len(stored) % 4:
                positions, vectors = groups.setdefault((row["embedding_model"], len(stored) // 4), ([], []))
                positions.append(position)
                vectors.append(stored)
        for key, (positions, vectors) in groups.items():
            self.vectors.setdefault(key, _Vectors(key[1])).extend(positions, vectors)

    def bounds(self, query: plain.Query, weights: plain.Weights) -> list[tuple[float, int]]:
        """Return the upper bound of each candidate's score, negated, and its `seq`."""
        shared: Counter[int] = Counter()
        for word in query.words & self.having.keys():
            shared.update(self.having[word])
        semantic = array("d", bytes(8 * len(self.seqs)))
        group = self.vectors.get((query.model, len(query.vector or ())))
        if group is not None:
            for position, bound in zip(
                group.positions, group.bounds(query.vector or (), weights.semantic_floor), strict=True
            ):
                semantic[position] = bound
            for position in group.odd:
                semantic[position] = 1.0
        found = []
        asked_words, now = len(query.words), (query.now - EPOCH).total_seconds()
        life = plain.RECENCY_DAYS * 86_400
        rows = zip(self.seqs, self.live, self.created, self.importance, semantic, strict=True)
        for position, (seq, live, created, importance, alike) in enumerate(rows):
            both = shared.get(position, 0)
            if not live or not (both or alike):
                continue
            bound = (
                weights.semantic * alike
                + weights.recency / (1 + max(0.0, now - created) / life)
                + weights.importance * importance
                + SLACK
            )
            if both:
                bound += weights.lexical * both / (self.counts[position] + asked_words - both)
            found.append((-bound, seq))
        return found


_kept: WeakKeyDictionary[Ledger, dict[str, _Block]] = WeakKeyDictionary()


def hits(
    ledger: Ledger,
    tx: Transaction,
    labels: tuple[str, ...],
    query: plain.Query,
    limit: int,
    weights: plain.Weights,
) -> tuple[plain.MemoryHit, ...]:
    """Return what the plain definition returns for the rows of these visibilities, and touch no other rows.

    Parameters:
        ledger: Whose rows are kept between calls.
        tx: An open read of it, not inside a write.
        labels: The visibilities that the caller may see.
        query: As for `memory.score`.
        limit: As for `memory.rank`.
        weights: As for both.
    """
    blocks = _kept.setdefault(ledger, {})
    found: list[tuple[float, int]] = []
    for label in labels:
        block = blocks.setdefault(label, _Block(label))
        block.refresh(tx)
        found += block.bounds(query, weights)
    heapq.heapify(found)
    outside = ((-bound, seq) for bound, seq in iter(lambda: heapq.heappop(found) if found else None, None))
    return select(tx, outside, query, limit, weights)
