"""Memory: access before ranking, every component shown, bad rows survived, forgetting that leaves a trace."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
import sqlite3
import struct
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest

import sovereign_agent
from sovereign_agent import memory, memory_columns
from sovereign_agent.clock import to_text
from sovereign_agent.errors import Category, Refusal
from sovereign_agent.ledger import Ledger
from sovereign_agent.memory import MemoryHit, Weights, forget, recall, remember, supersede, unit
from sovereign_agent.text import words


@pytest.fixture(autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test runs the plain path unless it asks for another."""
    chosen = str(getattr(request, "param", "plain"))
    if chosen == "fast":
        pytest.importorskip("numpy")
    if chosen == "columns":
        monkeypatch.setattr(memory, "_find_index", lambda: memory_columns)
    monkeypatch.setattr(memory, "FAST_FROM", math.inf if chosen == "plain" else 0)
    return chosen


def ids(hits: tuple[MemoryHit, ...]) -> list[str]:
    return [hit.id for hit in hits]


def corrupt(ledger: Ledger, **columns: object) -> None:
    """Store a row as a client would that ignores every check."""
    row = {
        "memory_id": "bad",
        "visibility": "public",
        "revision": 1_000,
        "content": "a bad note",
        "words": "a bad note",
        "importance": 0.5,
        "embedding": None,
        "embedding_model": None,
        "created_at": "2026-01-01T00:00:00.000000Z",
        "digest": "0" * 64,
        **columns,
    }
    with sqlite3.connect(ledger.path) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        names = ", ".join(row)
        connection.execute(f"INSERT INTO memories ({names}) VALUES ({', '.join(f':{name}' for name in row)})", row)
    connection.close()


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of every row that was scored."""
    seen: list[str] = []
    plain = memory.score

    def counting(query: memory.Query, row: memory.Memory, weights: Weights) -> memory.Score:
        seen.append(row.id)
        return plain(query, row, weights)

    monkeypatch.setattr(memory, "score", counting)
    return seen


# Access


@pytest.mark.parametrize("path", ["plain", "fast", "columns"], indirect=True)
def test_a_hidden_row_is_neither_loaded_nor_scored(
    ledger: Ledger, scored: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(ledger, "mine", "favourite city is Oslo", visibility="actor:uid1", embedding=[1, 0])
    remember(ledger, "all", "favourite city is a question of taste", embedding=[1, 1])
    remember(ledger, "theirs", "favourite city is Paris", visibility="actor:uid2", embedding=[1, 0])
    loaded: list[str] = []
    from_row = memory.from_row

    def counting(row: sqlite3.Row) -> memory.Memory:
        loaded.append(row["memory_id"])
        return from_row(row)

    monkeypatch.setattr(memory, "from_row", counting)
    hits = recall(ledger, "favourite city", actor_id="uid2", query_embedding=[1, 0], limit=20)
    assert sorted(ids(hits)) == sorted(scored) == sorted(loaded) == ["all", "theirs"]
    scored.clear()
    assert ids(recall(ledger, "favourite city", actor_id="uid3", query_embedding=[1, 0], limit=20)) == ["all"]
    assert scored == ["all"]


@pytest.mark.parametrize("path", ["plain", "fast", "columns"], indirect=True)
def test_a_poisoned_hidden_row_changes_nothing(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    remember(ledger, "mine", "the answer", visibility="actor:a", embedding=[1, 0])
    corrupt(ledger, memory_id="poison", visibility="actor:b", embedding=b"\x00\x00\xc0\x7f" * 2, created_at="never")
    from_row = memory.from_row

    def refuse_poison(row: sqlite3.Row) -> memory.Memory:
        assert row["memory_id"] != "poison", "a hidden row was loaded"
        return from_row(row)

    monkeypatch.setattr(memory, "from_row", refuse_poison)
    assert ids(recall(ledger, "answer", actor_id="a", query_embedding=[1, 0])) == ["mine"]


def test_two_hundred_better_rows_of_another_actor_do_not_crowd_out_the_own_one(ledger: Ledger) -> None:
    with ledger.write():
        for number in range(200):
            remember(ledger, f"other-{number}", "exact words", visibility="actor:b", importance=1)
        remember(ledger, "own", "exact words and many more that weaken it", visibility="actor:a", importance=0)
    assert ids(recall(ledger, "exact words", actor_id="a", limit=1)) == ["own"]


@pytest.mark.parametrize("actor_id", ["%", "*", "_", "actor:a", "public", "A", "a b", "' OR 1=1 --"])
def test_an_actor_id_is_compared_as_it_is(ledger: Ledger, actor_id: str) -> None:
    remember(ledger, "secret", "the answer", visibility="actor:a")
    assert recall(ledger, "answer", actor_id=actor_id) == ()


@pytest.mark.parametrize(
    ("actor_id", "error"), [(None, TypeError), (7, TypeError), ("", ValueError), (" ", ValueError)]
)
def test_nobody_is_no_actor(ledger: Ledger, actor_id: Any, error: type[Exception]) -> None:
    remember(ledger, "public", "the answer")
    with pytest.raises(error, match="actor_id"):
        recall(ledger, "answer", actor_id=actor_id)


def test_one_name_typed_in_two_ways_is_one_actor(ledger: Ledger) -> None:
    composed, decomposed = "José", "Jose\u0301"
    remember(ledger, "one", "first answer", visibility=f"actor:{decomposed}")
    remember(ledger, "two", "second answer", visibility=f"actor:{composed}")
    for actor_id in (composed, decomposed):
        assert sorted(ids(recall(ledger, "answer", actor_id=actor_id))) == ["one", "two"]
    remember(ledger, "caf\u00e9", "x")
    assert forget(ledger, "cafe\u0301")


@pytest.mark.parametrize(
    ("visibility", "error"),
    [
        ("private", ValueError),
        ("", ValueError),
        ("Public", ValueError),
        ("actor", ValueError),
        ("actor:", ValueError),
        ("actor: ", ValueError),
        ("actor:a ", ValueError),
        ("actor:None\n", ValueError),
        ("team:a", ValueError),
        (None, TypeError),
    ],
)
def test_a_visibility_is_public_or_names_one_actor(ledger: Ledger, visibility: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="visibility"):
        remember(ledger, "m", "content", visibility=visibility)


# Scores


def test_every_component_is_shown_and_adds_up(ledger: Ledger, T0: datetime) -> None:  # noqa: N803
    remember(ledger, "m", "blue boat", importance=0.2, embedding=[3, 4], created_at=T0 - timedelta(days=30))
    (hit,) = recall(ledger, "blue sea", actor_id="a", query_embedding=[1, 0], now=T0)
    assert hit == MemoryHit(
        id="m",
        content="blue boat",
        score=0.35 * hit.lexical + 0.35 * hit.semantic + 0.15 * hit.recency + 0.15 * hit.importance,
        lexical=1 / 3,
        semantic=pytest.approx(0.6, abs=1e-7),  # type: ignore[arg-type]  # stored as float32
        recency=0.5,
        importance=0.2,
        penalty=0.0,
        final=0.75 * hit.score,
        semantic_status=memory.SemanticStatus.USED,
        visibility="public",
    )


def test_a_memory_from_the_future_counts_as_new(ledger: Ledger, T0: datetime) -> None:  # noqa: N803
    remember(ledger, "m", "answer", created_at=T0 + timedelta(days=400))
    assert recall(ledger, "answer", actor_id="a", now=T0)[0].recency == 1.0


@pytest.mark.parametrize("path", ["plain", "fast", "columns"], indirect=True)
def test_recency_and_importance_never_retrieve_alone(ledger: Ledger) -> None:
    remember(ledger, "m", "unrelated", importance=1.0, embedding=[0, 1])
    assert recall(ledger, "answer", actor_id="a") == ()
    assert recall(ledger, "answer", actor_id="a", query_embedding=[1, 0]) == ()
    assert recall(ledger, "", actor_id="a") == ()


@pytest.mark.parametrize("path", ["plain", "fast", "columns"], indirect=True)
def test_an_opposite_vector_is_no_evidence_and_takes_nothing_from_a_lexical_hit(ledger: Ledger) -> None:
    remember(ledger, "m", "answer", embedding=[-1, 0])
    (hit,) = recall(ledger, "answer", actor_id="a", query_embedding=[1, 0])
    assert (hit.semantic, hit.lexical, hit.semantic_status) == (0.0, 1.0, "used")


@pytest.mark.parametrize("path", ["plain", "fast", "columns"], indirect=True)
def test_a_cosine_counts_only_above_the_floor(ledger: Ledger) -> None:
    remember(ledger, "m", "unrelated", embedding=[1, 1])
    at = recall(ledger, "x", actor_id="a", query_embedding=[1, 0])[0].semantic
    assert at == pytest.approx(math.sqrt(0.5))
    for floor, found in ((math.nextafter(at, 0), 1), (at, 0)):
        weights = Weights(semantic_floor=floor)
        assert len(recall(ledger, "x", actor_id="a", query_embedding=[1, 0], weights=weights)) == found


@pytest.mark.parametrize("path", ["plain", "fast", "columns"], indirect=True)
def test_vectors_of_another_length_or_model_are_survived_and_named(ledger: Ledger) -> None:
    """Three hits each time, whatever the query has."""
    remember(ledger, "old", "old note", embedding=[1.0] * 768)
    remember(ledger, "new", "new note", embedding=[1.0] * 384)
    remember(ledger, "model", "model note", embedding=[1.0] * 384, embedding_model="m2")
    remember(ledger, "plain", "plain note")

    def statuses(**query: Any) -> dict[str, str]:
        return {hit.id: str(hit.semantic_status) for hit in recall(ledger, "note", actor_id="a", **query)}

    incompatible, none = "incompatible", "unavailable"
    first = {"old": incompatible, "new": incompatible, "model": incompatible, "plain": none}
    assert statuses(query_embedding=[1.0] * 384) == {**first, "new": "used"}
    assert statuses(query_embedding=[1.0] * 768) == {**first, "old": "used"}
    assert statuses(query_embedding=[1.0] * 384, embedding_model="m2") == {**first, "model": "used"}
    assert statuses() == dict.fromkeys(first, none)


def test_without_a_vector_nothing_is_called_semantic(ledger: Ledger) -> None:
    remember(ledger, "m", "answer")
    (hit,) = recall(ledger, "answer", actor_id="a", query_embedding=[1, 0])
    assert (hit.semantic, hit.semantic_status) == (0.0, "unavailable")


@pytest.mark.parametrize("path", ["plain", "fast", "columns"], indirect=True)
@pytest.mark.parametrize(
    "columns",
    [
        {"created_at": "2026-01-01T00:00:00"},
        {"created_at": "never"},
        {"created_at": "0001-01-01T00:00:00+14:00"},
        {"embedding": b"\x00\x00\xc0\x7f" * 2},
        {"embedding": b"\x00\x00\x80\x7f\x00\x00\x80\xff"},
        {"embedding": b"\x00" * 7},
        {"embedding": b""},
        {"embedding": b"\x00" * 8},
        {"embedding": b"\xff\xff\x7f\x7f" * 2},
        {"importance": 9.0},
        {"importance": -9.0},
        {"importance": None},
        {"words": None},
    ],
    ids=str,
)
def test_a_bad_row_is_survived_by_everyone_who_may_see_it(ledger: Ledger, columns: dict[str, object]) -> None:
    remember(ledger, "good", "a good note", embedding=[1, 0])
    remember(ledger, "other", "one more note", embedding=[0, 1])
    corrupt(ledger, **columns)
    hits = recall(ledger, "note", actor_id="a", query_embedding=[1, 0], limit=5)
    assert {"good", "other"} <= set(ids(hits))
    for hit in hits:
        for component in (hit.score, hit.lexical, hit.semantic, hit.recency, hit.importance):
            assert 0 <= component <= 1


@pytest.mark.parametrize("path", ["plain", "fast", "columns"], indirect=True)
def test_a_stored_vector_of_another_length_than_one_is_still_scored_by_the_definition(ledger: Ledger) -> None:
    """Nothing is promised of its float32 product: 1e30 swallows the one number that counts."""
    for number, values in enumerate(itertools.permutations((1e30, 1.0, -1e30))):
        corrupt(ledger, memory_id=f"m{number}", revision=number + 1, words="x", embedding=struct.pack("<3f", *values))
    hits = recall(ledger, "unrelated", actor_id="a", query_embedding=[1, 1, 1], limit=10)
    assert {hit.id: hit.semantic for hit in hits} == dict.fromkeys(
        (f"m{number}" for number in range(6)), pytest.approx(math.sqrt(1 / 3))
    )


def test_a_bad_time_counts_as_infinitely_old_and_a_bad_vector_as_incompatible(ledger: Ledger) -> None:
    corrupt(ledger, created_at="2026-01-01T00:00:00", embedding=b"\x00\x00\xc0\x7f" * 2)
    (hit,) = recall(ledger, "note", actor_id="a", query_embedding=[1, 0])
    assert (hit.recency, hit.semantic_status, hit.semantic) == (0.0, "incompatible", 0.0)


@pytest.mark.parametrize(
    "weights",
    [{"lexical": -0.1}, {"semantic": 1.1}, {"recency": math.nan}, {"mmr_lambda": math.inf}, {"semantic_floor": -1}],
)
def test_a_weight_outside_zero_to_one_is_refused(weights: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(weights))):
        Weights(**weights)


@pytest.mark.parametrize("bad", [True, "0.5", None])
def test_a_weight_is_a_number(bad: Any) -> None:
    with pytest.raises(TypeError, match="lexical"):
        Weights(lexical=bad)


def test_a_changed_weight_moves_exactly_its_component(ledger: Ledger) -> None:
    remember(ledger, "m", "answer", importance=0.4)
    before = recall(ledger, "answer", actor_id="a")[0]
    after = recall(ledger, "answer", actor_id="a", weights=Weights(importance=0.65))[0]
    assert after.score - before.score == pytest.approx(0.5 * 0.4)


# Order


@pytest.mark.parametrize("path", ["plain", "fast", "columns"], indirect=True)
def test_near_duplicates_are_pushed_down_and_the_penalty_is_shown(ledger: Ledger) -> None:
    remember(ledger, "a1", "blue boat", embedding=[1, 0], importance=0.9)
    remember(ledger, "a2", "blue boat", embedding=[1, 0], importance=0.8)
    remember(ledger, "b", "blue", embedding=[0.7, 0.7], importance=0.1)
    hits = recall(ledger, "blue boat", actor_id="a", query_embedding=[1, 0])
    assert ids(hits) == ["a1", "a2", "b"]
    far = recall(ledger, "blue boat", actor_id="a", query_embedding=[1, 0], weights=Weights(mmr_lambda=0.3))
    assert ids(far) == ["a1", "b", "a2"]
    assert [hit.penalty for hit in hits] == [0.0, 0.25, pytest.approx(0.25 * math.sqrt(0.5))]
    for hit in hits:
        assert hit.final == 0.75 * hit.score - hit.penalty


def test_rows_that_cannot_be_compared_by_vectors_are_compared_by_words(ledger: Ledger) -> None:
    remember(ledger, "a", "blue boat", embedding=[1, 0], importance=1)
    remember(ledger, "b", "blue boat", embedding=[1, 0, 0])
    assert [hit.penalty for hit in recall(ledger, "blue", actor_id="a")] == [0.0, 0.25]


@pytest.mark.parametrize("path", ["plain", "fast", "columns"], indirect=True)
def test_equal_values_are_ordered_by_id(ledger: Ledger) -> None:
    for memory_id in ("m2", "m3", "m10", "m1"):
        remember(ledger, memory_id, "same")
    assert ids(recall(ledger, "same", actor_id="a")) == ["m1", "m10", "m2", "m3"]


def test_a_long_note_pays_for_its_other_words(ledger: Ledger) -> None:
    """Documented, not wished for: Jaccard is a share of all words of both."""
    remember(ledger, "chat", "which city")
    remember(ledger, "long", "the favourite city is Oslo " + " ".join(f"word{n}" for n in range(200)))
    assert ids(recall(ledger, "favourite city", actor_id="a", limit=1)) == ["chat"]


@pytest.mark.parametrize(
    ("content", "query"),
    [
        ("любимый город Осло", "ГОРОД"),
        ("我喜欢的城市是奥斯陆", "城市"),
        ("thành phố yêu thích", "thành phố"),
        ("große Straße", "STRASSE"),
    ],
)
def test_words_of_any_script_are_found(ledger: Ledger, content: str, query: str) -> None:
    remember(ledger, "m", content)
    remember(ledger, "decoy", "nothing of the kind, a b c")
    assert ids(recall(ledger, query, actor_id="a")) == ["m"]


@pytest.mark.parametrize("limit", [0, -1, 101, 2.5, True, None, "5"])
def test_a_limit_is_a_whole_number_in_range(ledger: Ledger, limit: Any) -> None:
    with pytest.raises(ValueError, match="limit"):
        recall(ledger, "x", actor_id="a", limit=limit)


@pytest.mark.parametrize(
    ("argument", "value"), [("query", None), ("weights", {"lexical": 1}), ("embedding_model", 7), ("now", "today")]
)
def test_an_argument_of_another_type_is_named(ledger: Ledger, argument: str, value: Any) -> None:
    arguments = {"query": "x", "actor_id": "a", argument: value}
    with pytest.raises(TypeError, match=argument):
        recall(ledger, **arguments)


def test_recall_changes_nothing_and_works_on_a_read_only_ledger(
    ledger: Ledger, open_ledger: Callable[..., Ledger]
) -> None:
    remember(ledger, "m", "answer")
    reader = open_ledger(read_only=True)
    assert ids(recall(reader, "answer", actor_id="a")) == ["m"]


# Storing


VECTORS: list[tuple[Any, type[Exception]]] = [
    ([], ValueError),
    ([0.0, 0], ValueError),
    ([1, math.nan], ValueError),
    ([1, math.inf], ValueError),
    ([10**400], ValueError),
    ([1.0] * 16_385, ValueError),
    ("12", TypeError),
    (b"12", TypeError),
    ([True, 1], TypeError),
    (["1"], TypeError),
    ([None], TypeError),
    ({1: 2}, TypeError),
    ({1, 2}, TypeError),
    (7, TypeError),
    ([1j], TypeError),
]


@pytest.mark.parametrize(("embedding", "error"), VECTORS, ids=[repr(vector)[:20] for vector, _ in VECTORS])
def test_a_vector_without_a_direction_is_refused_at_both_ends(
    ledger: Ledger, embedding: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="embedding"):
        remember(ledger, "m", "content", embedding=embedding)
    with pytest.raises(error, match="query_embedding"):
        recall(ledger, "content", actor_id="a", query_embedding=embedding)


@pytest.mark.parametrize(
    "values", [[3, 4], (0.3, 0.4), [3e300, 4e300], [3e-320, 4e-320], [Fraction(3), Fraction(4)], iter([3, 4])]
)
def test_a_vector_is_scaled_to_unit_length_whatever_its_size(values: Any) -> None:
    assert unit("embedding", values) == pytest.approx((0.6, 0.8), abs=1e-4)


def test_a_vector_is_stored_as_little_endian_float32_of_unit_length(ledger: Ledger) -> None:
    remember(ledger, "m", "content", embedding=[0, 2])
    with ledger.read() as tx:
        row = tx.one("SELECT embedding FROM memories")
    assert row is not None
    assert row["embedding"] == b"\x00\x00\x00\x00\x00\x00\x80\x3f"
    numpy = pytest.importorskip("numpy")
    remember(ledger, "n", "content", embedding=numpy.array([0, 2], dtype=numpy.float32))
    assert unit("e", numpy.array([3, 4])) == unit("e", [3, 4])


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"memory_id": ""}, ValueError),
        ({"memory_id": None}, TypeError),
        ({"content": " \n"}, ValueError),
        ({"content": None}, TypeError),
        ({"content": "x" * 65_537}, ValueError),
        ({"content": "\ud800"}, ValueError),
        ({"importance": 1.1}, ValueError),
        ({"importance": math.nan}, ValueError),
        ({"importance": True}, TypeError),
        ({"importance": "1"}, TypeError),
        ({"created_at": datetime(2026, 1, 1)}, ValueError),
        ({"created_at": "2026-01-01"}, TypeError),
        ({"embedding_model": ""}, ValueError),
        ({"now": datetime(2026, 1, 1)}, ValueError),
    ],
)
def test_a_malformed_memory_is_refused_and_nothing_is_stored(
    ledger: Ledger, changed: dict[str, Any], error: type[Exception]
) -> None:
    arguments: dict[str, Any] = {"memory_id": "m", "content": "content", **changed}
    with pytest.raises(error, match=next(iter(changed))):
        remember(ledger, **arguments)
    with ledger.read() as tx:
        assert tx.all("SELECT * FROM memories") == []


def test_remembering_the_same_again_changes_nothing_and_another_is_refused(ledger: Ledger, clock: Any) -> None:
    remember(ledger, "m", "content", embedding=[1, 2])
    clock.advance(60)
    remember(ledger, "m", "content", embedding=[2, 4])
    with ledger.read() as tx:
        assert len(tx.all("SELECT * FROM events WHERE kind LIKE 'memory.%'")) == 1
    for other in ({"importance": 0.6}, {"visibility": "actor:a"}, {"embedding": None}, {"created_at": clock.now}):
        with pytest.raises(Refusal, match="another memory") as refused:
            remember(ledger, "m", "content", **{"embedding": [1, 2], **other})
        assert refused.value.category is Category.MEMORY
    with pytest.raises(Refusal, match="another memory"):
        remember(ledger, "m", "other", embedding=[1, 2])


def test_events_name_digests_and_ids_but_no_content(ledger: Ledger, T0: datetime) -> None:  # noqa: N803
    remember(ledger, "m", "secret content")
    supersede(ledger, "m", "m2", "other secret")
    forget(ledger, "m2")
    with pytest.raises(Refusal):
        forget(ledger, "unknown")
    with ledger.read() as tx:
        rows = [
            tuple(row) for row in tx.all("SELECT kind, subject, at, detail FROM events WHERE kind != 'ledger.created'")
        ]
    assert [row[:2] for row in rows[:4]] == [
        ("memory.remembered", "m"),
        ("memory.remembered", "m2"),
        ("memory.superseded", "m"),
        ("memory.forgotten", "m2"),
    ]
    assert rows[4][0] == "refused"
    assert json.loads(rows[0][3]) == {"digest": hashlib.sha256(b"secret content").hexdigest()}
    assert {row[2] for row in rows} == {to_text(T0)}
    assert "secret" not in str(rows)


# Superseding and forgetting


@pytest.mark.parametrize("path", ["plain", "fast", "columns"], indirect=True)
def test_a_superseded_memory_is_kept_but_not_recalled(ledger: Ledger) -> None:
    remember(ledger, "old", "the city is Oslo", visibility="actor:a", importance=0.9, embedding=[1, 0])
    assert ids(recall(ledger, "city", actor_id="a")) == ["old"]
    supersede(ledger, "old", "new", "the city is Bergen")
    (hit,) = recall(ledger, "city", actor_id="a", query_embedding=[1, 0])
    assert (hit.id, hit.visibility, hit.importance, hit.semantic_status) == ("new", "actor:a", 0.9, "unavailable")
    assert recall(ledger, "city", actor_id="b") == ()
    with ledger.read() as tx:
        row = tx.one("SELECT content, superseded_by FROM memories WHERE memory_id = 'old'")
    assert row is not None
    assert tuple(row) == ("the city is Oslo", "new")


def test_superseding_again_changes_nothing_and_a_second_successor_is_refused(ledger: Ledger) -> None:
    remember(ledger, "old", "one")
    supersede(ledger, "old", "new", "two")
    supersede(ledger, "old", "new", "two")
    with pytest.raises(Refusal, match="new superseded it"):
        supersede(ledger, "old", "newer", "three")
    with pytest.raises(Refusal, match="another memory"):
        supersede(ledger, "old", "new", "three")
    supersede(ledger, "new", "newer", "three")
    supersede(ledger, "old", "new", "two")
    assert ids(recall(ledger, "one two three", actor_id="a")) == ["newer"]


def test_two_memories_cannot_supersede_each_other(ledger: Ledger) -> None:
    remember(ledger, "a", "one")
    supersede(ledger, "a", "b", "two")
    with pytest.raises(Refusal, match="no longer current"):
        supersede(ledger, "b", "a", "one")
    with pytest.raises(ValueError, match="new_id"):
        supersede(ledger, "b", "b", "two")
    assert ids(recall(ledger, "one two", actor_id="x")) == ["b"]


def test_a_refused_successor_leaves_nothing_behind(ledger: Ledger) -> None:
    with pytest.raises(Refusal, match="no such memory"):
        supersede(ledger, "unknown", "new", "content")
    remember(ledger, "gone", "content")
    forget(ledger, "gone")
    with pytest.raises(Refusal, match="forgotten"):
        supersede(ledger, "gone", "new", "content")
    assert recall(ledger, "content", actor_id="a") == ()


@pytest.mark.parametrize("path", ["plain", "fast", "columns"], indirect=True)
def test_forgetting_removes_the_content_and_leaves_id_times_and_digest(ledger: Ledger, clock: Any) -> None:
    remember(ledger, "m", "the secret", visibility="actor:a", embedding=[1, 0], embedding_model="model-x")
    stored = clock.now
    assert ids(recall(ledger, "secret", actor_id="a")) == ["m"]
    later = clock.advance(60)
    assert forget(ledger, "m") is True
    assert recall(ledger, "secret", actor_id="a", query_embedding=[1, 0], embedding_model="model-x") == ()
    with ledger.read() as tx:
        row = tx.one("SELECT * FROM memories")
    assert row is not None
    kept = {key: row[key] for key in row.keys() if row[key] is not None}  # noqa: SIM118 - a Row iterates over values
    assert kept == {
        "seq": 1,
        "memory_id": "m",
        "visibility": "actor:a",
        "revision": 2,
        "created_at": to_text(stored),
        "digest": hashlib.sha256(b"the secret").hexdigest(),
        "forgotten_at": to_text(later),
    }
    assert forget(ledger, "m") is False
    with pytest.raises(Refusal, match="forgotten"):
        remember(ledger, "m", "the secret", visibility="actor:a")
    with pytest.raises(Refusal, match="no such memory"):
        forget(ledger, "unknown")


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("UPDATE memories SET content = 'x'", "update refused"),
        ("UPDATE memories SET visibility = 'public', revision = 99", "update refused"),
        ("UPDATE memories SET superseded_by = NULL, superseded_at = NULL, revision = 99", "update refused"),
        ("UPDATE memories SET importance = 1", "update refused"),
        ("DELETE FROM memories", "delete refused"),
        ("INSERT OR REPLACE INTO memories SELECT * FROM memories", "replace refused"),
    ],
)
def test_a_client_that_leaves_the_schema_alone_cannot_edit_a_memory(ledger: Ledger, sql: str, message: str) -> None:
    remember(ledger, "m", "content", visibility="actor:a")
    supersede(ledger, "m", "n", "content")
    connection = sqlite3.connect(ledger.path)
    with pytest.raises(sqlite3.IntegrityError, match=message):
        connection.execute(sql)
    connection.close()


def test_the_words_that_are_stored_are_those_of_the_content(ledger: Ledger) -> None:
    remember(ledger, "m", "The boat, the BlueBoat — 图片")
    with ledger.read() as tx:
        row = tx.one("SELECT content, words FROM memories")
    assert row is not None
    assert set(row["words"].split()) == set(words(row["content"]))


# The fast path keeps what it saw


@pytest.mark.parametrize("path", ["fast", "columns"], indirect=True)
def test_what_another_connection_stores_is_seen_at_the_next_call(
    ledger: Ledger, open_ledger: Callable[..., Ledger]
) -> None:
    other = open_ledger()
    remember(other, "one", "answer", embedding=[1, 0])
    assert ids(recall(ledger, "answer", actor_id="a")) == ["one"]
    remember(other, "two", "answer", embedding=[1, 0])
    supersede(other, "one", "three", "answer", embedding=[0, 1])
    assert ids(recall(ledger, "answer", actor_id="a", query_embedding=[1, 0])) == ["two", "three"]
    forget(other, "two")
    assert ids(recall(ledger, "answer", actor_id="a", query_embedding=[1, 0])) == ["three"]


@pytest.mark.parametrize("path", ["fast", "columns"], indirect=True)
def test_what_a_rolled_back_write_saw_is_not_kept(ledger: Ledger) -> None:
    remember(ledger, "one", "answer")
    with pytest.raises(RuntimeError), ledger.write():
        remember(ledger, "two", "answer")
        forget(ledger, "one")
        assert ids(recall(ledger, "answer", actor_id="a")) == ["two"]
        raise RuntimeError
    assert ids(recall(ledger, "answer", actor_id="a")) == ["one"]


def test_few_rows_are_scored_without_the_index(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "FAST_FROM", 3)
    monkeypatch.setattr(memory, "_find_index", lambda: pytest.fail("the index was asked"))
    remember(ledger, "one", "answer")
    remember(ledger, "two", "answer", visibility="actor:b")
    remember(ledger, "three", "answer", visibility="actor:a")
    assert len(recall(ledger, "answer", actor_id="a")) == 2


@pytest.mark.parametrize("path", ["plain", "fast", "columns"], indirect=True)
def test_where_no_score_counts_the_first_ids_win(ledger: Ledger) -> None:
    """With `mmr_lambda=0` all finals are equal at first: a row of the lowest score may be the first hit."""
    remember(ledger, "z", "answer", importance=1.0)
    remember(ledger, "a", "answer among many other words", importance=0.0)
    assert ids(recall(ledger, "answer", actor_id="x", limit=1, weights=Weights(mmr_lambda=0.0))) == ["a"]


@pytest.mark.parametrize("path", ["fast", "columns"], indirect=True)
def test_of_many_rows_the_index_scores_few(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, scored: list[str]) -> None:
    """Counted instead of timed: what a recall costs is the rows that it loads and scores."""
    rows = 1_000
    monkeypatch.setattr(memory, "FAST_FROM", rows)
    source = random.Random(7)
    with ledger.write():
        for number in range(rows):
            remember(ledger, f"m{number}", f"note {number}", embedding=[source.gauss(0, 1) for _ in range(64)])
    query = [source.gauss(0, 1) for _ in range(64)]
    assert len(recall(ledger, "note", actor_id="a", query_embedding=query, limit=5)) == 5
    assert len(scored) <= rows // 4
    scored.clear()
    monkeypatch.setattr(memory, "FAST_FROM", rows + 1)
    recall(ledger, "note", actor_id="a", query_embedding=query, limit=5)
    assert len(scored) == rows


def test_without_numpy_the_index_of_the_standard_library_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.delitem(sys.modules, "sovereign_agent.memory_index", raising=False)
    monkeypatch.delattr(sovereign_agent, "memory_index", raising=False)
    memory._find_index.cache_clear()
    try:
        assert memory._find_index() is memory_columns
    finally:
        memory._find_index.cache_clear()


def test_each_refusal_of_a_memory_says_why_and_what_helps(ledger: Ledger) -> None:
    """Word for word: the reader acts on this sentence."""
    for name in ("old", "new", "gone", "other"):
        remember(ledger, name, f"content of {name}")
    supersede(ledger, "old", "new", "content of new")
    assert forget(ledger, "gone") is True
    for call, subject, sentence in (
        (
            lambda: remember(ledger, "new", "something else"),
            "new",
            "it stands for another memory; use another id, or supersede it",
        ),
        (lambda: remember(ledger, "gone", "content of gone"), "gone", "it was forgotten; use another id"),
        (lambda: supersede(ledger, "gone", "x", "y"), "gone", "it was forgotten; store the new memory with remember"),
        (lambda: supersede(ledger, "old", "x", "y"), "old", "new superseded it; supersede that one instead"),
        (lambda: supersede(ledger, "other", "old", "content of old"), "old", "it is no longer current; use a new id"),
        (lambda: supersede(ledger, "none", "x", "y"), "none", "there is no such memory; store it with remember"),
        (lambda: forget(ledger, "none"), "none", "there is no such memory; store it with remember"),
    ):
        with pytest.raises(Refusal) as refusal:
            call()
        assert str(refusal.value) == f"Memory refused for {subject}: {sentence}."


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda ledger: remember(ledger, "m", 3), TypeError, "content must be text, not int: 3"),
        (lambda ledger: remember(ledger, "m", " "), ValueError, "content must not be blank: ' '"),
        (
            lambda ledger: remember(ledger, "m", "x" * 65_537),
            ValueError,
            "content must be at most 65536 characters: 65537",
        ),
        (lambda ledger: remember(ledger, "m", "x", visibility=3), TypeError, "visibility must be text, not int: 3"),
        (
            lambda ledger: remember(ledger, "m", "x", visibility="actor"),
            ValueError,
            'visibility must be "public" or "actor:<id>": actor',
        ),
        (
            lambda ledger: remember(ledger, "m", "x", visibility="host:a"),
            ValueError,
            'visibility must be "public" or "actor:<id>": host:a',
        ),
        (
            lambda ledger: remember(ledger, "m", "x", importance="1"),
            TypeError,
            "importance must be a number, not str: 1",
        ),
        (lambda ledger: remember(ledger, "m", "x", importance=2), ValueError, "importance must lie between 0 and 1: 2"),
        (
            lambda ledger: remember(ledger, "m", "x", embedding="1"),
            TypeError,
            "embedding must be a sequence of numbers, not str: 1",
        ),
        (
            lambda ledger: remember(ledger, "m", "x", embedding=["1"]),
            TypeError,
            "embedding must hold real numbers, not str",
        ),
        (
            lambda ledger: remember(ledger, "m", "x", embedding=[]),
            ValueError,
            "embedding must have 1 to 16384 numbers: 0",
        ),
        (
            lambda ledger: remember(ledger, "m", "x", embedding=[math.nan]),
            ValueError,
            "embedding must hold finite numbers only",
        ),
        (
            lambda ledger: remember(ledger, "m", "x", embedding=[0]),
            ValueError,
            "embedding must not be all zero: it has no direction",
        ),
        (
            lambda ledger: remember(ledger, "m", "x", embedding_model=7),
            TypeError,
            "embedding_model must be text, not int: 7",
        ),
        (lambda ledger: supersede(ledger, "m", "m", "x"), ValueError, "new_id must differ from old_id: m"),
        (lambda ledger: recall(ledger, 3, actor_id="a"), TypeError, "query must be text, not int: 3"),
        (
            lambda ledger: recall(ledger, "x", actor_id="a", limit=0),
            ValueError,
            "limit must be a whole number from 1 to 100: 0",
        ),
        (lambda ledger: recall(ledger, "x", actor_id="a", weights=3), TypeError, "weights must be Weights, not int: 3"),
        (
            lambda ledger: recall(ledger, "x", actor_id="a", query_embedding=[0]),
            ValueError,
            "query_embedding must not be all zero: it has no direction",
        ),
    ],
)
def test_a_malformed_argument_is_named_with_what_was_expected(
    ledger: Ledger, call: Callable[[Ledger], object], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error) as caught:
        call(ledger)
    assert str(caught.value) == sentence


def test_a_row_is_stored_column_by_column_as_it_was_given(ledger: Ledger, T0: datetime) -> None:  # noqa: N803
    """Also what `supersede` takes over from the old row, and what it does not."""
    remember(
        ledger, "a", "Hello hello World", visibility="actor:x", importance=0.75, embedding=[2, 0], embedding_model="v",
        created_at=T0 - timedelta(days=1),
    )  # fmt: skip
    supersede(ledger, "a", "b", "Bye")
    remember(ledger, "c", "plain", embedding_model="ignored")
    columns = (
        "memory_id, visibility, revision, content, words, importance, embedding, embedding_model, created_at, digest, "
        "superseded_by, superseded_at, forgotten_at"
    )
    with ledger.read() as tx:
        found = [tuple(row) for row in tx.all(f"SELECT {columns} FROM memories ORDER BY memory_id")]
    digests = {text: hashlib.sha256(text.encode()).hexdigest() for text in ("Hello hello World", "Bye", "plain")}
    now, vector = to_text(T0), struct.pack("<2f", 1, 0)
    assert found == [
        ("a", "actor:x", 3, "Hello hello World", "hello world", 0.75, vector, "v", to_text(T0 - timedelta(days=1)),
         digests["Hello hello World"], "b", now, None),
        ("b", "actor:x", 2, "Bye", "bye", 0.75, None, None, now, digests["Bye"], None, None, None),
        ("c", "public", 1, "plain", "plain", 0.5, None, None, now, digests["plain"], None, None, None),
    ]  # fmt: skip
