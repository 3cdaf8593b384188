"""The search behind `tools.ToolCatalog.discover`: the highest sums of weight times strength, without adding up all.

A query's rare words decide most searches, so their tools are scored by themselves. The others stand in blocks, each
with the highest strength of each common word in it; a block whose words together could not win is not added up
(block-max indexes, Ding and Suel, 2011). The sums are those of the plain definition, bit for bit.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import add, mul

_RARE = 16  # a word is rare if at most one tool of so many has it
_BLOCK = 64  # positions that are added up together


@dataclass(frozen=True, slots=True)
class Having:
    """The positions that have one word, and how strongly it stands there."""

    count: int
    """How many they are."""
    strengths: Mapping[int, float] | list[float]
    """Of a rare word, the strength above 0 at each position that has it; of a common one, a row for all positions."""

    tops: tuple[float, ...] = ()
    """Of a common word, the highest strength in each block."""

    def at(self, position: int) -> float:
        """Return the strength at one position, 0 where the word is not."""
        if isinstance(self.strengths, list):
            return self.strengths[position]
        return self.strengths.get(position, 0.0)

    def positions(self) -> Iterable[int]:
        """Return where the word is."""
        if isinstance(self.strengths, list):
            return [position for position, strength in enumerate(self.strengths) if strength]
        return self.strengths.keys()

    def row(self, size: int) -> list[float]:
        """Return the strength at every position."""
        if isinstance(self.strengths, list):
            return self.strengths
        spread = [0.0] * size
        for position, strength in self.strengths.items():
            spread[position] = strength
        return spread


Term = tuple[float, Having]
"""One word of a query: its weight, above 0, and where it is."""
NOWHERE = Having(0, {})


def having(strengths: Mapping[int, float], size: int) -> Having:
    """Return what is kept of one word; pure.

    Parameters:
        strengths: The strength, above 0, at each position that has the word.
        size: How many positions there are.
    """
    rare = Having(len(strengths), strengths)
    return rare if rare.count * _RARE <= size else _common(rare.row(size))


def _common(row: list[float]) -> Having:
    tops = tuple(max(row[start : start + _BLOCK]) for start in range(0, len(row), _BLOCK))
    return Having(len(row) - row.count(0.0), row, tops)


def either(same: Having, others: Sequence[Having], factor: float, size: int) -> Having:
    """Return where a word or another form of it is, the best form deciding; pure.

    Parameters:
        same: The word itself.
        others: Its other forms.
        factor: What another form counts, above 0 and at most 1.
        size: How many positions there are.
    """
    others = [other for other in others if other.count]
    if not others:
        return same
    if all(isinstance(one.strengths, Mapping) for one in (same, *others)):
        merged: dict[int, float] = {}
        for share, one in ((1.0, same), *((factor, other) for other in others)):
            for position in one.positions():
                merged[position] = max(merged.get(position, 0.0), share * one.at(position))
        return having(merged, size)
    if not same.count and len(others) == 1:
        (only,) = others
        tops = tuple(factor * top for top in only.tops)
        return Having(only.count, list(map(mul, repeat(factor), only.row(size))), tops)
    row = same.row(size)
    for other in others:
        row = list(map(max, row, map(mul, repeat(factor), other.row(size))))
    return _common(row)


def highest(terms: Sequence[Term], size: int, most: int) -> list[int]:
    """Return the positions with the highest scores above 0, best first, the earlier of two equal ones first; pure.

    A position without a rare word scores at most what the common words give together where each is strongest in its
    block: each product and each sum, in the same order, is at most that of the block's, since rounding keeps order. So
    once the last of the best so far comes before a block's bound and first position, it comes before that whole block
    and all blocks after it.

    Parameters:
        terms: The query's words, in their order.
        size: How many positions there are.
        most: Most positions to return, at least 1.
    """
    rare = {position for _, one in terms if not one.tops for position in one.positions()}
    best = heapq.nsmallest(most, ((-score(terms, position), position) for position in rare))
    common = [(weight, one) for weight, one in terms if one.tops]
    bounds = _sums([(weight, one.tops) for weight, one in common])
    for bound, start in sorted((-bound, number * _BLOCK) for number, bound in enumerate(bounds)):
        if len(best) == most and best[-1] < (bound, start):
            break
        scores = _sums([(weight, one.row(size)[start : start + _BLOCK]) for weight, one in common])
        found = ((-total, position) for position, total in enumerate(scores, start) if total and position not in rare)
        best = heapq.nsmallest(most, [*best, *found])
    return [position for _, position in best]


def _sums(rows: Sequence[tuple[float, Sequence[float]]]) -> list[float]:
    """Return the sums of weight times strength, place by place; to add a product with 0 changes nothing."""
    total: list[float] = []
    for weight, row in rows:
        products = map(mul, repeat(weight), row)
        total = list(map(add, total, products) if total else products)
    return total


def score(terms: Iterable[Term], position: int) -> float:
    """Return the sum of weight times strength at one position, in the order of the terms; pure."""
    total = 0.0  # not sum(), which newer versions of Python round once
    for weight, one in terms:
        total += weight * one.at(position)
    return total


def matches(terms: Iterable[Term], size: int) -> int:
    """Return how many positions have at least one of the words; pure."""
    rows: list[list[float]] = []
    rare: set[int] = set()
    for _, one in terms:
        if one.count == size:
            return size
        if isinstance(one.strengths, list):
            rows.append(one.strengths)
        else:
            rare.update(one.positions())
    if not rows:
        return len(rare)
    best = list(map(max, *rows)) if len(rows) > 1 else rows[0]
    return size - best.count(0.0) + sum(not best[position] for position in rare)
