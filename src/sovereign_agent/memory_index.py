"""The index behind `memory.recall` for many rows: the same hits, order and components, bit for bit, in less time.

It keeps, per open ledger and visibility, the numbers that scores are made of, asks SQL only for what changed since, and
computes an upper bound of every score, from which `memory_select` finds the hits. Needs numpy; keeps hashes of words
and vectors, no content.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from . import memory as plain
from .ledger import Ledger, Transaction
from .memory_select import BATCH, EPOCH, SLACK, Block, select

_FIRST = 256  # rows that are sorted by their bounds before more are asked for
_ODD = 1e-3  # the square of a length that is further from 1 than any rounding explains
_WORDS = 2**22  # words are kept as so many numbers, and two that share one raise a bound at most

Doubles = NDArray[np.float64]


def margin(dimensions: int) -> float:
    """Return how far a float32 product of two stored vectors may lie from their cosine.

    A sum of n products in any order errs by at most `n u / (1 - n u)` times the product of both lengths, with
    u = 2**-24 (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). Twice that, and a little, covers
    lengths that rounding left beside 1 and products too small for float32.
    """
    return (2 * dimensions + 8) * 2.0**-24


@dataclass(slots=True)
class _Vectors:
    """The vectors of one model and length, in chunks that grow at the end only."""

    positions: array[int] = field(default_factory=lambda: array("q"))
    chunks: list[NDArray[np.float32]] = field(default_factory=list)
    odd: list[int] = field(default_factory=list)
    """Rows whose stored vector is not of unit length, or none: nothing is promised of their product."""

    def extend(self, positions: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        """Add rows; an odd one as zeros, since its numbers may be too large to multiply, or none."""
        with np.errstate(all="ignore"):  # a foreign row may hold any number
            squares = np.einsum("ij,ij->i", vectors, vectors)
        odd = ~(np.abs(squares - 1) <= _ODD)
        if odd.any():
            self.odd.extend(positions[odd].tolist())
            vectors = np.where(odd[:, None], np.float32(0), vectors)
        self.positions.frombytes(positions.tobytes())
        if self.chunks and len(self.chunks[-1]) < BATCH:
            vectors = np.concatenate((self.chunks.pop(), vectors))
        self.chunks.append(vectors)

    def bounds(self, query: NDArray[np.float32], floor: float) -> Doubles:
        """Return an upper bound of each row's semantic component."""
        cosines = np.concatenate([chunk @ query for chunk in self.chunks]).astype(np.float64) + margin(len(query))
        return np.where(cosines > floor, np.minimum(cosines, 1.0), 0.0)


@dataclass(slots=True)
class _Block(Block):
    """The numbers that the scores of one visibility's rows are made of."""

    created: array[float] = field(default_factory=lambda: array("d"))
    """Seconds since 1970; minus infinity for a time that cannot be read."""
    importance: array[float] = field(default_factory=lambda: array("d"))
    counts: array[float] = field(default_factory=lambda: array("d"))
    """How many different words each row has."""
    word_ids: array[int] = field(default_factory=lambda: array("i"))
    """The numbers of all rows' words (their hashes modulo `_WORDS`), row after row."""
    word_rows: array[int] = field(default_factory=lambda: array("i"))
    """Whose word each of them is."""
    vectors: dict[tuple[str | None, int], _Vectors] = field(default_factory=dict)

    def take(self, rows: list[sqlite3.Row]) -> None:
        """Note new rows, column by column."""
        if not rows:
            return
        start = len(self.seqs)
        Block.take(self, rows)
        _, _, _, texts, importance, created, stored, models = zip(*rows, strict=True)
        self.created.frombytes(_instants(created).tobytes())
        self.importance.frombytes(np.clip([value or 0.0 for value in importance], 0.0, 1.0).tobytes())
        counts = self._take_words([text or "" for text in texts], start)
        self.counts.frombytes(counts.astype(np.float64).tobytes())
        lengths = [len(one or b"") for one in stored]
        for model, length in set(zip(models, lengths, strict=True)):
            if not length or length % 4:
                continue
            places = [at for at, key in enumerate(zip(models, lengths, strict=True)) if key == (model, length)]
            matrix = np.frombuffer(b"".join([stored[at] for at in places]), "<f4").reshape(-1, length // 4)
            self.vectors.setdefault((model, length // 4), _Vectors()).extend(np.array(places) + start, matrix)

    def _take_words(self, texts: list[str], start: int) -> NDArray[np.int64]:
        """Note the words of rows from a position on; return how many different numbers each row has."""
        parted = [text.split() for text in texts]
        lengths = list(map(len, parted))
        numbers = np.fromiter(map(hash, chain.from_iterable(parted)), np.int64, sum(lengths)) % _WORDS
        keys = (np.repeat(np.arange(len(texts)), lengths) << 32) + numbers
        keys.sort()
        keys = keys[np.diff(keys, prepend=-1) != 0]  # once for each row, should a foreign one repeat a word
        rows = keys >> 32
        self.word_ids.frombytes((keys & 0xFFFFFFFF).astype(np.intc).tobytes())
        self.word_rows.frombytes((rows + start).astype(np.intc).tobytes())
        return np.bincount(rows, minlength=len(texts))

    def bounds(self, query: plain.Query, weights: plain.Weights) -> Doubles:
        """Return an upper bound of each row's score, minus infinity where the row is no candidate."""
        counts = np.array(self.counts)
        alike = Counter(hash(word) % _WORDS for word in query.words)
        asked = np.array(list(alike), dtype=np.intc)
        kind: Literal["sort", "table"] = "sort" if len(asked) < 16 else "table"  # few words: one comparison for each
        met = np.flatnonzero(np.isin(np.array(self.word_ids), asked, kind=kind))
        shared = np.bincount(np.array(self.word_rows)[met], minlength=len(counts)).astype(np.float64)
        shared *= max(alike.values(), default=1)  # so many of the query's words may stand behind one number
        lexical = shared / np.maximum(counts + len(query.words) - shared, 1)
        semantic = np.zeros(len(self.seqs))
        group = self.vectors.get((query.model, len(query.vector or ())))
        if group is not None:
            vector = np.array(query.vector, dtype=np.float32)
            semantic[np.array(group.positions)] = group.bounds(vector, weights.semantic_floor)
            semantic[group.odd] = 1.0
        age = np.maximum((query.now - EPOCH).total_seconds() - np.array(self.created), 0.0) / 86_400
        total = (
            weights.lexical * lexical
            + weights.semantic * semantic
            + weights.recency / (1 + age / plain.RECENCY_DAYS)
            + weights.importance * np.array(self.importance)
            + SLACK
        )
        candidate = (np.array(self.live) == 1) & ((shared > 0) | (semantic > 0))
        return np.where(candidate, total, -np.inf)


def _instants(texts: Sequence[str]) -> Doubles:
    """Return seconds since 1970, minus infinity for a text that is no instant."""
    letters = np.array(texts, "U27")  # the schema's length
    with suppress(ValueError):  # text of another form than ours: each is read by itself
        if (letters.view("U1")[26::27] == "Z").all():
            return letters.astype("U26").astype("datetime64[us]").astype(np.int64) / 1e6
    found = [plain.instant(text) for text in texts]
    return np.array([-np.inf if one is None else (one - EPOCH).total_seconds() for one in found])


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
    mine = [blocks.setdefault(label, _Block(label)) for label in labels]
    for block in mine:
        block.refresh(tx)
    bounds = np.concatenate([block.bounds(query, weights) for block in mine])
    seqs = np.concatenate([np.array(block.seqs, dtype=np.int64) for block in mine])
    return select(tx, _descending(bounds, seqs), query, limit, weights)


def _descending(bounds: Doubles, seqs: NDArray[np.int64]) -> Iterator[tuple[float, int]]:
    """Yield each candidate's bound and `seq`, the highest bound first; no more is sorted than is asked for."""
    left = np.flatnonzero(bounds > -np.inf)
    wanted = _FIRST
    while len(left):
        if wanted < len(left):
            parted = np.argpartition(-bounds[left], wanted)
            left, later = left[parted[:wanted]], left[parted[wanted:]]
        else:
            later = left[:0]
        first = left[np.argsort(-bounds[left])]
        yield from zip(bounds[first].tolist(), seqs[first].tolist(), strict=True)
        left, wanted = later, wanted * 4
