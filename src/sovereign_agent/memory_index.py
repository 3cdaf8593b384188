"""The index behind `memory.recall` for many rows: the same hits, order and components, bit for bit, in less time.

It keeps, per open ledger and visibility, the numbers that scores are made of, and asks SQL only for what changed since.
It computes an upper bound of every score, loads the most promising rows, and scores and ranks those with the plain
functions; it stops when no row outside can win. Needs numpy; keeps words and vectors, no content.

Why the hits are those of the plain definition: each turn of `rank` takes the highest `mmr_lambda * score - penalty`. A
penalty is never negative and never falls, so no turn's value exceeds an earlier turn's, and a row outside stays at or
below `mmr_lambda * bound`. Where that lies under the last hit's value, no turn would have taken the row.
"""

from __future__ import annotations

import sqlite3
from array import array
from dataclasses import dataclass, field
from datetime import UTC, datetime
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from . import memory as plain
from .ledger import Ledger, Transaction

_BATCH = 2_000  # rows per query and per chunk of vectors
_FIRST = 64  # rows that are scored before the first look at the bound
_SLACK = 1e-9  # the parts computed in double precision are good to about 1e-15, times to a microsecond
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

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
    """Rows whose stored vector is not of unit length: nothing is promised of their product."""

    def extend(self, positions: list[int], vectors: NDArray[np.float32]) -> None:
        squares = np.square(vectors, dtype=np.float64).sum(axis=1)
        self.odd.extend(np.array(positions)[np.abs(squares - 1) > 1e-5].tolist())
        self.positions.extend(positions)
        if self.chunks and len(self.chunks[-1]) < _BATCH:
            vectors = np.concatenate((self.chunks.pop(), vectors))
        self.chunks.append(vectors)

    def bounds(self, query: NDArray[np.float32], floor: float) -> Doubles:
        """Return an upper bound of each row's semantic component."""
        cosines = np.concatenate([chunk @ query for chunk in self.chunks]).astype(np.float64) + margin(len(query))
        return np.where(cosines > floor, np.minimum(cosines, 1.0), 0.0)


@dataclass(slots=True)
class _Block:
    """The rows of one visibility, in the order of their changes."""

    visibility: str
    revision: int = 0
    """The last change that was seen."""
    positions: dict[int, int] = field(default_factory=dict)
    """Where each `seq` stands."""
    seqs: array[int] = field(default_factory=lambda: array("q"))
    live: array[int] = field(default_factory=lambda: array("b"))
    created: array[float] = field(default_factory=lambda: array("d"))
    """Seconds since 1970; minus infinity for a time that cannot be read."""
    importance: array[float] = field(default_factory=lambda: array("d"))
    counts: array[float] = field(default_factory=lambda: array("d"))
    """How many different words each row has."""
    having: dict[str, array[int]] = field(default_factory=dict)
    """The rows that have a word."""
    vectors: dict[tuple[str | None, int], _Vectors] = field(default_factory=dict)

    def refresh(self, tx: Transaction) -> None:
        """Take in what was stored, superseded or forgotten since the last call."""
        while rows := tx.all(
            """
            SELECT   seq, revision, words, importance, created_at,
                     content IS NOT NULL AND superseded_by IS NULL AS live,
                     CASE WHEN superseded_by IS NULL THEN embedding END AS embedding, embedding_model
            FROM     memories
            WHERE    visibility = :visibility AND revision > :revision
            ORDER BY revision
            LIMIT    :batch
            """,
            visibility=self.visibility,
            revision=self.revision,
            batch=_BATCH,
        ):
            fresh: dict[tuple[str | None, int], tuple[list[int], list[bytes]]] = {}
            for row in rows:
                position = self._take(row)
                if position is not None and row["embedding"]:
                    key = (row["embedding_model"], len(row["embedding"]) // 4)
                    positions, stored = fresh.setdefault(key, ([], []))
                    positions.append(position)
                    stored.append(row["embedding"])
            for key, (positions, stored) in fresh.items():
                self._take_vectors(key, positions, stored)
            self.revision = rows[-1]["revision"]

    def _take(self, row: sqlite3.Row) -> int | None:
        """Note one row; return its position if it is new and current."""
        known = self.positions.get(row["seq"])
        if known is not None:
            self.live[known] = row["live"]
            return None
        if not row["live"]:
            return None
        position = self.positions[row["seq"]] = len(self.seqs)
        created = plain.instant(row["created_at"])
        found = set((row["words"] or "").split())
        self.seqs.append(row["seq"])
        self.live.append(1)
        self.created.append(-np.inf if created is None else (created - _EPOCH).total_seconds())
        self.importance.append(min(1.0, max(0.0, row["importance"] or 0.0)))
        self.counts.append(len(found))
        for word in found:
            self.having.setdefault(word, array("q")).append(position)
        return position

    def _take_vectors(self, key: tuple[str | None, int], positions: list[int], stored: list[bytes]) -> None:
        readable = [place for place, one in enumerate(stored) if len(one) == 4 * key[1]]
        matrix = np.frombuffer(b"".join(stored[place] for place in readable), "<f4").reshape(-1, key[1])
        finite = np.isfinite(matrix).all(axis=1)
        kept = [positions[place] for place, good in zip(readable, finite.tolist(), strict=True) if good]
        if kept:
            self.vectors.setdefault(key, _Vectors()).extend(kept, matrix[finite].astype(np.float32, copy=False))

    def bounds(self, query: plain.Query, weights: plain.Weights) -> Doubles:
        """Return an upper bound of each row's score, minus infinity where the row is no candidate."""
        shared = np.zeros(len(self.seqs))
        for word in query.words:
            shared[np.array(self.having.get(word, ()), dtype=np.int64)] += 1
        lexical = shared / np.maximum(np.array(self.counts) + len(query.words) - shared, 1)
        semantic = np.zeros(len(self.seqs))
        group = self.vectors.get((query.model, len(query.vector or ())))
        if group is not None:
            vector = np.array(query.vector, dtype=np.float32)
            semantic[np.array(group.positions)] = group.bounds(vector, weights.semantic_floor)
            semantic[group.odd] = 1.0
        age = np.maximum((query.now - _EPOCH).total_seconds() - np.array(self.created), 0.0) / 86_400
        total = (
            weights.lexical * lexical
            + weights.semantic * semantic
            + weights.recency / (1 + age / plain.RECENCY_DAYS)
            + weights.importance * np.array(self.importance)
            + _SLACK
        )
        candidate = (np.array(self.live) == 1) & ((shared > 0) | (semantic > 0))
        return np.where(candidate, total, -np.inf)


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
    order = np.flatnonzero(bounds > -np.inf)
    order = order[np.argsort(-bounds[order], kind="stable")]
    scored: list[tuple[plain.Memory, plain.Score]] = []
    wanted = max(_FIRST, 4 * limit)
    while True:
        for place in order[len(scored) : wanted].tolist():
            memory = _load(tx, int(seqs[place]))
            scored.append((memory, plain.score(query, memory, weights)))
        found = plain.rank(scored, limit, weights)
        if len(scored) == len(order):
            return found
        outside = weights.mmr_lambda * float(bounds[order[len(scored)]])
        if len(found) == limit and outside < found[-1].final:
            return found
        wanted *= 4


def _load(tx: Transaction, seq: int) -> plain.Memory:
    row = tx.one(
        """
        SELECT memory_id, content, visibility, words, embedding, embedding_model, importance, created_at
        FROM   memories
        WHERE  seq = :seq
        """,
        seq=seq,
    )
    if row is None:
        raise AssertionError("unreachable: a trigger keeps every row")
    return plain.from_row(row)
