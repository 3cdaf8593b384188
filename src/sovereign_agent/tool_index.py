"""The search behind `tools.ToolCatalog.discover`: the highest sums of weight times strength, without adding up all.

A query's rare words decide most searches, so only their tools are scored, and all tools only where one without a rare
word could still win. The sums are those of the plain definition, bit for bit: added in the order of the query.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

Term = tuple[float, Mapping[int, float]]
"""One word of a query: its weight, and its strength, above 0, at each position that has it."""
_RARE = 16  # a word is rare if at most one tool of so many has it


def highest(terms: Sequence[Term], size: int, most: int) -> list[int]:
    """Return the positions with the highest scores above 0, best first, the earlier of two equal ones first; pure.

    A position without a rare word scores at most what the common words give together where each is strongest: each
    product and each sum in the same order is at most that of the bound, since rounding keeps order. So if the last of
    the rare words' best lies above that bound, no other position comes before it.

    Parameters:
        terms: The query's words, in their order.
        size: How many positions there are.
        most: Most positions to return, at least 1.
    """
    rare = {position for _, having in terms if len(having) * _RARE <= size for position in having}
    best = heapq.nsmallest(most, ((-score(terms, position), position) for position in rare))
    bound = 0.0
    for weight, having in terms:
        if len(having) * _RARE > size:
            bound += weight * max(having.values())
    if not bound or (len(best) == most and -best[-1][0] > bound):
        return [position for _, position in best]
    scores = [0.0] * size
    for weight, having in terms:
        for position, strength in having.items():
            scores[position] += weight * strength
    least = min(heapq.nlargest(most, scores))
    above = [position for position, total in enumerate(scores) if total > least]
    equal = (position for position, total in enumerate(scores) if total == least > 0)
    return sorted(above, key=lambda position: (-scores[position], position)) + list(islice(equal, most - len(above)))


def score(terms: Iterable[Term], position: int) -> float:
    """Return the sum of weight times strength at one position, in the order of the terms; pure."""
    total = 0.0  # not sum(), which newer versions of Python round once
    for weight, having in terms:
        total += weight * having.get(position, 0.0)
    return total


def matches(terms: Iterable[Term], size: int) -> int:
    """Return how many positions have at least one of the words; pure."""
    found: set[int] = set()
    for _, having in terms:
        if len(having) == size:
            return size
        found.update(having)
    return len(found)
