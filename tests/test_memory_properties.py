"""Scores and selection: bounds, independence of insertion order, and two definitions that agree bit for bit."""

from __future__ import annotations

import importlib
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sovereign_agent import memory, memory_columns, memory_select
from sovereign_agent.ids import SeededIds
from sovereign_agent.ledger import Ledger, Transaction
from sovereign_agent.memory import (
    Memory,
    MemoryHit,
    Query,
    Weights,
    cosine,
    jaccard,
    rank,
    recall,
    remember,
    score,
    similarity,
    unit,
)
from sovereign_agent.text import words

NOW = datetime(2026, 1, 5, tzinfo=UTC)

shares = st.floats(0, 1)
numbers = st.floats(-1e6, 1e6, width=32).filter(lambda number: number == 0 or abs(number) > 1e-6)
vocabulary = st.sampled_from(["blue", "boat", "city", "der", "город", "图片", "x"])
sentences = st.lists(vocabulary, min_size=1, max_size=5).map(" ".join)


def vectors(dimensions: int) -> st.SearchStrategy[list[float]]:
    """Vectors with many ties, opposites and right angles, and some of any numbers."""
    small = st.lists(st.sampled_from([-1.0, 0.0, 1.0, 2.0]), min_size=dimensions, max_size=dimensions)
    free = st.lists(numbers, min_size=dimensions, max_size=dimensions)
    return (small | free).filter(any)


embeddings = st.none() | vectors(2) | vectors(3)
weightings = st.builds(Weights, shares, shares, shares, shares, shares, st.sampled_from([0.0, 1e-6, 0.5])) | st.just(
    Weights()
)


@dataclass(frozen=True)
class Row:
    """What `remember` is called with."""

    memory_id: str
    content: str
    visibility: str
    importance: float
    embedding: list[float] | None
    embedding_model: str | None
    created_at: datetime


single_rows = st.builds(
    Row,
    memory_id=st.integers(0, 99).map("m{}".format),
    content=sentences,
    visibility=st.sampled_from(["public", "public", "actor:a", "actor:b"]),
    importance=st.sampled_from([0.0, 0.5, 1.0]) | shares,
    embedding=embeddings,
    embedding_model=st.sampled_from([None, None, "m1"]),
    created_at=st.sampled_from([0, 30, -3, 400]).map(lambda days: NOW - timedelta(days=days)),
)
rows = st.lists(single_rows, max_size=8, unique_by=lambda row: row.memory_id)


@dataclass(frozen=True)
class Asked:
    """What `recall` is called with."""

    query: str
    query_embedding: list[float] | None
    embedding_model: str | None
    limit: int
    weights: Weights


questions = st.builds(
    Asked,
    query=sentences | st.just(""),
    query_embedding=embeddings,
    embedding_model=st.sampled_from([None, None, "m1"]),
    limit=st.integers(1, 6),
    weights=weightings,
)


def as_memory(row: Row) -> Memory:
    vector = None if row.embedding is None else unit("embedding", row.embedding)
    return Memory(
        id=row.memory_id,
        content=row.content,
        visibility=row.visibility,
        words=frozenset(words(row.content)),
        vector=vector,
        model=None if vector is None else row.embedding_model,
        importance=row.importance,
        created_at=row.created_at,
    )


def as_query(asked: Asked) -> Query:
    vector = None if asked.query_embedding is None else unit("query_embedding", asked.query_embedding)
    return Query(frozenset(words(asked.query)), vector, asked.embedding_model, NOW)


class _RollBackError(Exception):
    pass


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """One ledger for every example of this file: each example's rows are rolled back."""
    with Ledger.open(tmp_path_factory.mktemp("kept"), clock=lambda: NOW, ids=SeededIds(0)) as ledger:
        yield ledger


@contextmanager
def stored(ledger: Ledger, given_rows: list[Row]) -> Iterator[Transaction]:
    with suppress(_RollBackError), ledger.write() as tx:
        for row in given_rows:
            remember(
                ledger,
                row.memory_id,
                row.content,
                visibility=row.visibility,
                importance=row.importance,
                embedding=row.embedding,
                embedding_model=row.embedding_model,
                created_at=row.created_at,
            )
        yield tx
        raise _RollBackError


def ask(ledger: Ledger, asked: Asked) -> tuple[MemoryHit, ...]:
    return recall(
        ledger,
        asked.query,
        actor_id="a",
        query_embedding=asked.query_embedding,
        embedding_model=asked.embedding_model,
        limit=asked.limit,
        weights=asked.weights,
    )


@contextmanager
def fast_from(limit: float) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "FAST_FROM", limit)
        yield


def brute_force(given_rows: list[Row], asked: Asked) -> list[tuple[str, float, float]]:
    """The definition, written once more and as plainly as can be: id, penalty, final value."""
    query, weights = as_query(asked), asked.weights

    def alike(a: Memory, b: Memory) -> float:
        if a.vector and b.vector and len(a.vector) == len(b.vector) and a.model == b.model:
            return min(1.0, max(0.0, math.fsum(x * y for x, y in zip(a.vector, b.vector, strict=True))))
        return len(a.words & b.words) / len(a.words | b.words) if a.words & b.words else 0.0

    left: dict[str, tuple[Memory, float]] = {}
    for row in given_rows:
        if row.visibility not in ("public", "actor:a"):
            continue
        one = as_memory(row)
        lexical = len(query.words & one.words) / len(query.words | one.words) if query.words & one.words else 0.0
        semantic = 0.0
        if query.vector and one.vector and len(query.vector) == len(one.vector) and query.model == one.model:
            near = min(1.0, math.fsum(x * y for x, y in zip(query.vector, one.vector, strict=True)))
            semantic = near if near > weights.semantic_floor else 0.0
        age = max(0.0, (NOW - row.created_at).total_seconds() / 86400)
        total = (
            weights.lexical * lexical
            + weights.semantic * semantic
            + weights.recency * (1 / (1 + age / 30))
            + weights.importance * row.importance
        )
        if lexical or semantic:
            left[one.id] = (one, total)
    chosen: list[Memory] = []
    found: list[tuple[str, float, float]] = []
    while left and len(found) < asked.limit:
        turns = []
        for one, total in left.values():
            penalty = (1 - weights.mmr_lambda) * max((alike(one, other) for other in chosen), default=0.0)
            turns.append((-(weights.mmr_lambda * total - penalty), one.id, penalty))
        final, best, penalty = min(turns)
        chosen.append(left.pop(best)[0])
        found.append((best, penalty, -final))
    return found


@given(rows, questions)
@settings(max_examples=40)
def test_hits_equal_the_definition_by_brute_force(kept: Ledger, given_rows: list[Row], asked: Asked) -> None:
    with stored(kept, given_rows):
        found = [(hit.id, hit.penalty, hit.final) for hit in ask(kept, asked)]
    assert found == brute_force(given_rows, asked)


@given(rows, questions, st.integers())
@settings(max_examples=40)
def test_hits_do_not_depend_on_the_order_of_insertion(
    kept: Ledger, given_rows: list[Row], asked: Asked, seed: int
) -> None:
    shuffled = list(given_rows)
    random.Random(seed).shuffle(shuffled)
    with stored(kept, given_rows):
        one = ask(kept, asked)
    with stored(kept, shuffled):
        assert ask(kept, asked) == one


@given(rows, questions)
@settings(max_examples=40)
def test_every_component_and_every_final_value_keeps_its_bounds(given_rows: list[Row], asked: Asked) -> None:
    weights = asked.weights
    whole = weights.lexical + weights.semantic + weights.recency + weights.importance
    scored = [(one, score(as_query(asked), one, weights)) for one in map(as_memory, given_rows)]
    for _, parts in scored:
        for component in (parts.lexical, parts.semantic, parts.recency, parts.importance):
            assert 0 <= component <= 1
        assert 0 <= parts.score <= whole + 1e-12
    hits = rank(scored, asked.limit, weights)
    assert len(hits) == min(asked.limit, sum(parts.lexical > 0 or parts.semantic > 0 for _, parts in scored))
    assert len({hit.id for hit in hits}) == len(hits)
    assert not hits or hits[0].penalty == 0
    for hit in hits:
        assert 0 <= hit.penalty <= 1 - weights.mmr_lambda
        assert hit.final == weights.mmr_lambda * hit.score - hit.penalty
        assert hit.lexical or hit.semantic > weights.semantic_floor
    finals = [hit.final for hit in hits]
    assert finals == sorted(finals, reverse=True), "no turn's value exceeds an earlier one's: the index relies on it"


@given(rows, questions)
@settings(max_examples=30)
def test_fewer_hits_are_the_beginning_of_more(given_rows: list[Row], asked: Asked) -> None:
    scored = [(one, score(as_query(asked), one, asked.weights)) for one in map(as_memory, given_rows)]
    assert rank(scored, asked.limit, asked.weights) == rank(scored, 100, asked.weights)[: asked.limit]


@given(st.integers(1, 60), st.integers())
def test_a_cosine_does_not_depend_on_the_order_of_the_numbers(dimensions: int, seed: int) -> None:
    source = random.Random(seed)
    a, b = (unit("v", [source.gauss(0, 1) for _ in range(dimensions)]) for _ in range(2))
    order = source.sample(range(dimensions), dimensions)
    assert cosine(a, b) == cosine(tuple(a[i] for i in order), tuple(b[i] for i in order)) == cosine(b, a)
    assert -1 <= cosine(a, b) <= 1
    assert cosine(a, a) == pytest.approx(1, abs=1e-6)


@given(single_rows, single_rows)
def test_two_memories_are_alike_to_a_share_whichever_comes_first(one: Row, other: Row) -> None:
    a, b = as_memory(one), as_memory(other)
    assert 0 <= similarity(a, b) == similarity(b, a) <= 1


@given(vectors(4), st.floats(1e-3, 1e3))
def test_scaling_a_vector_leaves_its_direction(values: list[float], factor: float) -> None:
    scaled = unit("b", [number * factor for number in values])
    assert scaled == pytest.approx(unit("a", values), abs=1e-6)
    assert math.fsum(number * number for number in scaled) == pytest.approx(1, abs=1e-6)
    assert memory.from_bytes(memory.to_bytes(scaled)) == scaled


@given(st.frozensets(vocabulary), st.frozensets(vocabulary))
def test_jaccard_is_a_symmetric_share(a: frozenset[str], b: frozenset[str]) -> None:
    assert 0 <= jaccard(a, b) == jaccard(b, a) <= 1
    assert (jaccard(a, b) == 0) == (not a & b)
    assert (jaccard(a, b) == 1) == (a == b and bool(a))


@given(st.floats(0, 4000), st.floats(0, 4000))
def test_recency_falls_with_age(one: float, two: float) -> None:
    query = Query(frozenset("x"), None, None, NOW)
    base = Memory("m", "x", "public", frozenset("x"), None, None, 0.5, NOW)
    fresher, older = (
        score(query, replace(base, created_at=NOW - timedelta(days=days)), Weights()).recency
        for days in sorted((one, two))
    )
    assert 0 < older <= fresher <= 1


# The indexes


@pytest.fixture(params=["memory_index", "memory_columns"], scope="module")
def index(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The index that needs numpy, and the one that needs the standard library only."""
    if request.param == "memory_index":
        pytest.importorskip("numpy")
    chosen = importlib.import_module(f"sovereign_agent.{request.param}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "_find_index", lambda: chosen)
        yield chosen


@given(rows, questions)
@settings(max_examples=50)
@example(
    [Row(f"m{n}", "blue", "public", 0.5, [1.0, float(n % 3)], None, NOW) for n in range(9)],
    Asked("blue", [1.0, 0.0], None, 4, Weights()),
)
def test_the_index_returns_the_plain_hits_bit_for_bit(
    index: Any, kept: Ledger, given_rows: list[Row], asked: Asked
) -> None:
    with stored(kept, given_rows) as tx:
        index._kept.pop(kept, None)  # the rows of the example before were rolled back
        labels = ("public", "actor:a")
        fast = index.hits(kept, tx, labels, as_query(asked), asked.limit, asked.weights)
        assert fast == ask(kept, asked), "inside a write, recall takes the plain path"


@pytest.mark.parametrize("dimensions", [8, 384])
def test_the_index_agrees_on_many_rows_while_they_change(
    index: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dimensions: int
) -> None:
    """Near-ties on purpose: few words, few directions, so that the margin and the bound decide often."""
    monkeypatch.setattr(memory_select, "BATCH", 50)
    monkeypatch.setattr(index, "BATCH", 50, raising=False)
    monkeypatch.setattr(index, "_ROWS", 32, raising=False)
    monkeypatch.setattr(index, "_FIRST", 4, raising=False)
    if dimensions == 8:
        monkeypatch.setattr(index, "_WORDS", 2, raising=False)  # different words share a number
    source = random.Random(dimensions)
    centres = [[source.gauss(0, 1) for _ in range(dimensions)] for _ in range(4)]

    def near() -> list[float]:
        sign = source.choice((1, 1, -1))
        return [sign * number + source.choice((0.0, 0.0, 1e-7, 0.1)) for number in source.choice(centres)]

    def sentence() -> str:
        return " ".join(source.choices(["blue", "boat", "city", "sea", "sun"], k=source.randint(1, 3)))

    pools: list[int] = []
    plain_score = memory.score

    def counting(*arguments: Any) -> memory.Score:
        pools[-1] += 1
        return plain_score(*arguments)

    count = 160 if dimensions == 384 else 300
    seen = ""
    with Ledger.open(tmp_path, clock=lambda: NOW) as ledger:
        for first in range(0, count, 20):
            with ledger.write():
                for number in range(first, first + 20):
                    remember(
                        ledger,
                        f"m{number}",
                        sentence(),
                        visibility=source.choice(["public", "actor:a", "actor:b"]),
                        importance=source.choice([0.0, 0.5, source.random()]),
                        embedding=source.choice([None, near(), near(), near()[:-1]]),
                        created_at=NOW - timedelta(days=source.choice([0, 1, source.random() * 100])),
                    )
                for number in source.sample(range(first, first + 20), 2):
                    memory.supersede(ledger, f"m{number}", f"n{number}", sentence(), embedding=near())
                if seen:  # the index has seen this one while it was current
                    memory.supersede(ledger, seen, f"o{first}", sentence(), embedding=near())
                seen = f"n{number}"
                memory.forget(ledger, f"m{source.randint(0, first + 19)}")
            for _ in range(3):
                asked = Asked(sentence(), source.choice([near(), None]), None, source.choice([1, 3, 8]), Weights())
                with fast_from(math.inf):
                    plain = ask(ledger, asked)
                pools.append(0)
                with fast_from(0), monkeypatch.context() as patch:
                    patch.setattr(memory, "score", counting)
                    assert ask(ledger, asked) == plain
    assert max(pools) < count, "the index left out rows"


@pytest.mark.parametrize("kept_words", [2**22, 3, 1])
def test_the_index_agrees_on_rows_that_a_foreign_client_wrote(
    index: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_words: int
) -> None:
    """Words repeated or parted oddly, words that share a number, times of another form, vectors that are none."""
    monkeypatch.setattr(index, "_WORDS", kept_words, raising=False)
    odd_words = [
        "blue sun sun sun",
        "blue sea x",
        "blue blue sea",
        " blue\tsea  ",
        "| blue",
        "||| sea | blue",
        "",
        "\n",
        "sea sea sea blue",
        "blue",
    ]
    odd_times = ["2026-01-04T00:00:00.000000Z", "2026-01-04T01:00:00.0+01:00", "no instant of any kind....Z"]
    odd_vectors = [
        None,
        b"\x00\x00\x80\x7f" * 2,
        b"\x00\x00\xc0\x7f" * 2,
        memory.to_bytes((3.0, 4.0)),
        memory.to_bytes((3e38, 3e38)),
        memory.to_bytes((0.6, 0.8)),
    ]
    with Ledger.open(tmp_path, clock=lambda: NOW) as ledger:
        for number in range(60):
            with ledger.write() as tx:
                tx.run(
                    """
                    INSERT INTO memories (memory_id, visibility, revision, content, words, importance, embedding,
                                          created_at, digest)
                    VALUES (:id, 'public', :revision, 'c', :words, 0.5, :embedding, :created_at, :digest)
                    """,
                    id=f"m{number:02}",
                    revision=number + 1,
                    words=odd_words[number % len(odd_words)],
                    embedding=odd_vectors[number % len(odd_vectors)],
                    created_at=odd_times[0 if number < 20 else number % len(odd_times)],
                    digest="0" * 64,
                )
        for vector, query, limit in product((None, [0.6, 0.8], [1.0, 0.0]), ("blue", "sea blue", "other"), (1, 5, 20)):
            asked = Asked(query, vector, None, limit, Weights(mmr_lambda=1.0))
            with fast_from(math.inf):
                plain = ask(ledger, asked)
            with fast_from(0):
                assert ask(ledger, asked) == plain


@given(st.sampled_from([1, 2, 3, 31, 384, 1000]), st.integers())
@settings(max_examples=25)
def test_the_margin_covers_the_error_of_float32(dimensions: int, seed: int) -> None:
    np = pytest.importorskip("numpy")
    from sovereign_agent.memory_index import margin

    source = random.Random(seed)
    a, b = (unit("v", [source.gauss(0, 1) for _ in range(dimensions)]) for _ in range(2))
    for one, two in ((a, b), (a, a), (b, unit("v", [-number for number in b]))):
        fast = (np.array([one], dtype=np.float32) @ np.array(two, dtype=np.float32)).item()
        assert abs(fast - math.fsum(x * y for x, y in zip(one, two, strict=True))) <= margin(dimensions)


@given(st.sampled_from([1, 2, 3, 31, 384, 1536, 16_384]), st.integers(), st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_the_columns_bound_each_cosine_closely(dimensions: int, seed: int, shape: int) -> None:
    """No cosine lies above its bound, and none far below; the sums of one row never reach the next one."""
    source = random.Random(seed)

    def one() -> tuple[float, ...]:
        numbers = [source.gauss(0, 1) if source.random() < 10.0**-shape else 0.0 for _ in range(dimensions)]
        return unit("v", numbers if any(numbers) else [*numbers[1:], -1.0])

    query = one()
    opposite = tuple(-number for number in query)
    same = [query, opposite, *(one() for _ in range(3))]
    kept_vectors = memory_columns._Vectors(dimensions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_columns, "_ROWS", 4)
        for first in (0, 1):  # the second time, in the middle of a chunk
            kept_vectors.extend([5 * first + at for at in range(5)], [memory.to_bytes(vector) for vector in same])
    cosines = [cosine(query, vector) for vector in same] * 2
    for exact, bound in zip(cosines, kept_vectors.bounds(query, 0.0), strict=True):
        assert max(exact, 0.0) <= bound
        assert bound == 0 or bound - exact < (0.005 if dimensions <= 1536 else 0.2)


def test_a_vector_of_another_length_than_one_is_bounded_by_one() -> None:
    """Also one whose numbers are no numbers; its neighbours keep their bounds."""
    kept_vectors = memory_columns._Vectors(2)
    stored_bytes = [memory.to_bytes((0.6, 0.8)), memory.to_bytes((3.0, 4.0)), b"\x00\x00\xc0\x7f" * 2]
    kept_vectors.extend([7, 8, 9], [*stored_bytes, stored_bytes[0]][:3])
    kept_vectors.extend([10], stored_bytes[:1])
    assert kept_vectors.odd == [8, 9]
    first, *_, last = kept_vectors.bounds(unit("q", (0.6, 0.8)), 0.0)
    assert first == last == 1.0
