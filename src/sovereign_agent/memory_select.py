"""What both indexes of memories share: they take in what changed since the last call, and they select the hits.

An index gives each row a bound that its score does not exceed. Rows are loaded in the order of their bounds, and only
those that may win a turn are scored and compared, with the plain functions: the hits are the plain ones, bit for bit.
"""

from __future__ import annotations

import heapq
import math
import sqlite3
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import repeat

from . import memory as plain
from .ledger import Transaction

BATCH = 2_000
"""Rows per query."""
SLACK = 1e-9
"""More than any error of the parts computed in double precision, about 1e-15, and of times, a microsecond."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Block:
    """The rows of one visibility, in the order of their changes."""

    visibility: str
    revision: int = 0
    """The last change that was seen."""
    positions: dict[int, int] = field(default_factory=dict)
    """Where each `seq` stands."""
    seqs: array[int] = field(default_factory=lambda: array("q"))
    live: array[int] = field(default_factory=lambda: array("b"))

    def refresh(self, tx: Transaction) -> None:
        """Take in what was stored, superseded or forgotten since the last call."""
        while rows := tx.all(
            """
            SELECT   seq, content IS NOT NULL AND superseded_by IS NULL AS live, revision, words, importance,
                     created_at, CASE WHEN superseded_by IS NULL THEN embedding END AS embedding, embedding_model
            FROM     memories
            WHERE    visibility = :visibility AND revision > :revision
            ORDER BY revision
            LIMIT    :batch
            """,
            visibility=self.visibility,
            revision=self.revision,
            batch=BATCH,
        ):
            self.revision = rows[-1]["revision"]
            if not self.positions.keys().isdisjoint(row["seq"] for row in rows):
                rows = [row for row in rows if not self._note(row["seq"], row["live"])]
            self.take([row for row in rows if row["live"]])  # without those that were retired before they were seen

    def take(self, rows: list[sqlite3.Row]) -> None:
        """Note new rows: their places, and in each index what its bounds are made of."""
        start = len(self.seqs)
        seqs = [row["seq"] for row in rows]
        self.positions.update(zip(seqs, range(start, start + len(seqs)), strict=True))
        self.seqs.extend(seqs)
        self.live.extend(repeat(1, len(seqs)))

    def _note(self, seq: int, live: int) -> bool:
        """Note whether a known row is still current; tell whether it is known."""
        known = self.positions.get(seq)
        if known is not None:
            self.live[known] = live
        return known is not None


def select(
    tx: Transaction, outside: Iterator[tuple[float, int]], query: plain.Query, limit: int, weights: plain.Weights
) -> tuple[plain.MemoryHit, ...]:
    """Return the hits of the plain definition, comparing only what may win a turn.

    Each turn of `plain.rank` takes the least `(-final, id)`, with `final = mmr_lambda * score - penalty`. In the heap a
    row stands with its `final` as of an earlier turn. A row's penalty never falls from turn to turn, and float
    multiplication and subtraction keep order, so that value is at least the present one, and a row outside the heap
    reaches at most `mmr_lambda * bound`. So when the heap's first row is up to date and no row outside reaches it,
    each other row's `(-final, id)` is larger: this is the row that the plain definition takes, equal values included.
    The chosen rows alone, ranked plainly, take the same turns, since each turn's winner is among them.

    Parameters:
        tx: An open read.
        query: As for `memory.score`.
        outside: Bound and `seq` of each candidate, the highest bound first; no score lies above its bound.
        limit: As for `memory.rank`.
        weights: As for `memory.rank`.
    """
    chosen: list[tuple[plain.Memory, plain.Score]] = []
    heap: list[tuple[float, str, int, float, plain.Memory, plain.Score]] = []

    def push(compared: int, nearest: float, memory: plain.Memory, scores: plain.Score) -> None:
        final = weights.mmr_lambda * scores.score - (1 - weights.mmr_lambda) * nearest
        heapq.heappush(heap, (-final, memory.id, compared, nearest, memory, scores))  # ids differ: no more is compared

    bound, seq = next(outside, (-math.inf, 0))
    while len(chosen) < limit:
        if bound > -math.inf and (not heap or weights.mmr_lambda * bound >= -heap[0][0]):
            memory = _load(tx, seq)
            scores = plain.score(query, memory, weights)
            if scores.lexical or scores.semantic:
                push(0, 0.0, memory, scores)
            bound, seq = next(outside, (-math.inf, 0))
            continue
        if not heap:
            break
        _, _, compared, nearest, memory, scores = heapq.heappop(heap)
        if compared == len(chosen):
            chosen.append((memory, scores))
        else:
            fresh = (plain.similarity(one, memory) for one, _ in chosen[compared:])
            push(len(chosen), max(nearest, *fresh), memory, scores)
    return plain.rank(chosen, limit, weights)


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
