"""Memory: who may see a row is decided before anything is scored, and every hit shows what its score is made of.

Visibility is filtered in SQL; a hidden row is neither loaded nor scored. What is left is ranked by four components and
thinned of near-duplicates. The ranking is a policy, not the truth: words count as sets (Jaccard), so a long note that
holds the answer can rank below a short one that shares a single word, and inflected words do not match. Vectors come
from the caller, and nothing is called semantic where none was compared.
"""

from __future__ import annotations

import functools
import hashlib
import math
import sqlite3
import struct
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from numbers import Real
from operator import mul
from types import ModuleType

from .clock import as_utc, to_text
from .errors import Category, Refusal, shorten, shown
from .ledger import Ledger, Transaction, checked_id, recorded
from .text import words

PUBLIC = "public"
MAX_CONTENT = 65_536
"""Longest memory, in characters."""
MAX_DIMENSIONS = 16_384
MAX_LIMIT = 100
"""Most hits of one recall."""
RECENCY_DAYS = 30
"""Age at which recency has fallen to one half, in days."""
FAST_FROM = 1_000
"""Rows from which on an index is used; the hits are the same."""

Vector = tuple[float, ...]
"""Unit length, every number a float32: what `unit` returns."""


class SemanticStatus(StrEnum):
    """Whether a hit's vector was compared with the query's."""

    USED = "used"
    UNAVAILABLE = "unavailable"
    """The memory or the query has no vector."""
    INCOMPATIBLE = "incompatible"
    """Another length, another model, or a stored vector that cannot be read."""


def _share(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}: {shorten(value)}")
    if not 0 <= value <= 1:  # NaN fails every comparison
        raise ValueError(f"{name} must lie between 0 and 1: {shown(value)}")
    return float(value)


@dataclass(frozen=True, slots=True)
class Weights:
    """How a score is made up. Every number lies between 0 and 1.

    Raises:
        TypeError: Something is no number.
        ValueError: A number is outside 0 to 1.
    """

    lexical: float = 0.35
    semantic: float = 0.35
    recency: float = 0.15
    importance: float = 0.15
    mmr_lambda: float = 0.75
    """Share of the score in the final value; the rest is the largest possible penalty for repeating a hit."""
    semantic_floor: float = 1e-6
    """Cosines up to this are no evidence."""

    def __post_init__(self) -> None:
        for field in fields(self):
            _share(field.name, getattr(self, field.name))


@dataclass(frozen=True, slots=True)
class Memory:
    """One stored memory, as the pure functions see it."""

    id: str
    content: str
    visibility: str
    words: frozenset[str]
    vector: Vector | None
    """Empty when the stored bytes are no vector."""
    model: str | None
    importance: float
    created_at: datetime | None
    """None when the stored text is no instant; such a memory counts as infinitely old."""


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked for, and when."""

    words: frozenset[str]
    vector: Vector | None
    model: str | None
    now: datetime


@dataclass(frozen=True, slots=True)
class Score:
    """One memory's components for one query, each between 0 and 1."""

    score: float
    """The weighted sum."""
    lexical: float
    semantic: float
    recency: float
    importance: float
    semantic_status: SemanticStatus


@dataclass(frozen=True, slots=True)
class MemoryHit:
    """One recalled memory, with everything that put it where it is."""

    id: str
    content: str
    score: float
    lexical: float
    semantic: float
    recency: float
    importance: float
    penalty: float
    """What was taken off for being like a hit above; 0 for the first."""
    final: float
    """`mmr_lambda * score - penalty`."""
    semantic_status: SemanticStatus
    visibility: str


# Deciding


def jaccard(a: AbstractSet[str], b: AbstractSet[str]) -> float:
    """Return the share of common words among all words of two texts, 0 where both have none; pure.

    The Jaccard index (1901): a long note pays for each word that the query does not have.
    """
    shared = len(a & b)
    return shared / (len(a) + len(b) - shared) if shared else 0.0


def cosine(a: Vector, b: Vector) -> float:
    """Return the cosine of two stored vectors of one length, between -1 and 1; pure.

    The product of two float32 numbers is exact in double precision and `fsum` rounds once, so the value depends on
    nothing but the numbers: not on their order, the machine or the version of Python.
    """
    return max(-1.0, min(1.0, math.fsum(map(mul, a, b))))


def comparable(a: Memory | Query, b: Memory | Query) -> bool:
    """Tell whether both have a vector, of one length and one model; pure."""
    return bool(a.vector and b.vector) and len(a.vector or ()) == len(b.vector or ()) and a.model == b.model


def score(query: Query, memory: Memory, weights: Weights) -> Score:
    """Score one memory for one query; pure.

    `lexical` is the Jaccard index of the words. `semantic` is the cosine where it exceeds `weights.semantic_floor`,
    else 0. `recency` is `1 / (1 + age_days / 30)`, with an age below 0 taken as 0. `importance` is what was stored.
    """
    lexical = jaccard(query.words, memory.words)
    semantic = 0.0
    if query.vector is None or memory.vector is None:
        status = SemanticStatus.UNAVAILABLE
    elif comparable(query, memory):
        status = SemanticStatus.USED
        near = cosine(query.vector, memory.vector)
        semantic = near if near > weights.semantic_floor else 0.0
    else:
        status = SemanticStatus.INCOMPATIBLE
    recency = 0.0
    if memory.created_at is not None:
        age_days = max(0.0, (query.now - memory.created_at).total_seconds() / 86_400)
        recency = 1 / (1 + age_days / RECENCY_DAYS)
    return Score(
        score=weights.lexical * lexical
        + weights.semantic * semantic
        + weights.recency * recency
        + weights.importance * memory.importance,
        lexical=lexical,
        semantic=semantic,
        recency=recency,
        importance=memory.importance,
        semantic_status=status,
    )


def similarity(a: Memory, b: Memory) -> float:
    """Return how alike two memories are, between 0 and 1: by their vectors where comparable, else by words; pure."""
    if comparable(a, b):
        return max(0.0, cosine(a.vector or (), b.vector or ()))
    return jaccard(a.words, b.words)


def rank(scored: Iterable[tuple[Memory, Score]], limit: int, weights: Weights) -> tuple[MemoryHit, ...]:
    """Select the best hits one by one, each as little like the earlier ones as it may; pure.

    Maximal marginal relevance (Carbonell and Goldstein, 1998): each turn takes the memory with the highest
    `mmr_lambda * score - (1 - mmr_lambda) * similarity to the most similar hit so far`; equal values go by id. A memory
    without lexical and semantic evidence is no candidate, however recent or important.

    Returns:
        At most `limit` hits, in the order of selection.
    """
    left = {memory.id: (memory, scores) for memory, scores in scored if scores.lexical or scores.semantic}
    nearest = dict.fromkeys(left, 0.0)
    hits: list[MemoryHit] = []

    def penalty(memory_id: str) -> float:
        return (1 - weights.mmr_lambda) * nearest[memory_id]

    def final(memory_id: str) -> float:
        return weights.mmr_lambda * left[memory_id][1].score - penalty(memory_id)

    while left and len(hits) < limit:
        chosen = min(left, key=lambda memory_id: (-final(memory_id), memory_id))
        memory, scores = left[chosen]
        hits.append(
            MemoryHit(
                id=memory.id,
                content=memory.content,
                score=scores.score,
                lexical=scores.lexical,
                semantic=scores.semantic,
                recency=scores.recency,
                importance=scores.importance,
                penalty=penalty(chosen),
                final=final(chosen),
                semantic_status=scores.semantic_status,
                visibility=memory.visibility,
            )
        )
        del left[chosen]
        if len(hits) < limit:
            for other_id, (other, _) in left.items():
                nearest[other_id] = max(nearest[other_id], similarity(memory, other))
    return tuple(hits)


# Vectors


def unit(name: str, values: object) -> Vector:
    """Return a vector scaled to unit length in double precision, each number then rounded to float32.

    Parameters:
        name: The argument's name, for the message.
        values: Real numbers: a list, a tuple, an array.

    Raises:
        TypeError: It is no sequence of real numbers.
        ValueError: It is empty, longer than 16384, all zero, or holds a number that is not finite.
    """
    if isinstance(values, str | bytes | Mapping | AbstractSet) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a sequence of numbers, not {type(values).__name__}: {shorten(values)}")
    given = list(values)
    for kind in set(map(type, given)):  # asked once for each type: asking for each number costs more than the rest
        if issubclass(kind, bool) or not issubclass(kind, Real):
            raise TypeError(f"{name} must hold real numbers, not {kind.__name__}")
    try:
        numbers = list(map(float, given))
    except OverflowError:
        numbers = [math.inf]
    if not 1 <= len(numbers) <= MAX_DIMENSIONS:
        raise ValueError(f"{name} must have 1 to {MAX_DIMENSIONS} numbers: {len(numbers)}")
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"{name} must hold finite numbers only")
    largest = max(map(abs, numbers))
    if largest == 0:
        raise ValueError(f"{name} must not be all zero: it has no direction")
    scaled = [number / largest for number in numbers]  # so that no square overflows or vanishes
    length = math.sqrt(math.fsum(map(mul, scaled, scaled)))
    return from_bytes(to_bytes(tuple(number / length for number in scaled)))


def to_bytes(vector: Vector) -> bytes:
    """Return a vector as it is stored: little-endian float32."""
    return struct.pack(f"<{len(vector)}f", *vector)


def from_bytes(stored: bytes) -> Vector:
    """Return a stored vector; empty when the bytes are none, so that it is comparable with nothing."""
    if len(stored) % 4:
        return ()
    vector = struct.unpack(f"<{len(stored) // 4}f", stored)
    return vector if math.isfinite(sum(vector)) else ()  # float32 numbers cannot overflow a double


# Storing


def remember(
    ledger: Ledger,
    memory_id: str,
    content: str,
    *,
    visibility: str = PUBLIC,
    importance: float = 0.5,
    embedding: Sequence[float] | None = None,
    embedding_model: str | None = None,
    created_at: datetime | None = None,
    now: datetime | None = None,
) -> None:
    """Store one memory. The same call again changes nothing.

    Parameters:
        ledger: Where to store it.
        memory_id: Its id, for ever.
        content: At most 65536 characters, not blank; kept as it is.
        visibility: `"public"`, or `"actor:<id>"` for one actor; compared in Unicode form NFC.
        importance: The caller's judgment, 0 to 1.
        embedding: The content's vector, if there is one.
        embedding_model: Whose vector it is; vectors of different models are never compared. Ignored without a vector.
        created_at: When it was learned, aware; `now` when omitted. A later instant counts as age 0.
        now: Instant of this call; the ledger's clock when omitted.

    Raises:
        Refusal: `category="memory"`: the id stands for something else, or was forgotten.
        TypeError: An argument is of another type.
        ValueError: An argument is blank, too long, naive or out of its range; the message names it.
    """
    row = _row(memory_id, content, visibility, importance, embedding, embedding_model, created_at)
    now = ledger.now(now)
    with recorded(ledger, now), ledger.write() as tx:
        _insert(tx, row, now)


def supersede(
    ledger: Ledger,
    old_id: str,
    new_id: str,
    content: str,
    *,
    visibility: str | None = None,
    importance: float | None = None,
    embedding: Sequence[float] | None = None,
    embedding_model: str | None = None,
    created_at: datetime | None = None,
    now: datetime | None = None,
) -> None:
    """Store a memory that replaces another: the old row is kept, but no longer recalled. Again, it changes nothing.

    Parameters:
        ledger: Where both are stored.
        old_id: The memory that is no longer current.
        new_id: The id of the new one.
        content: As in `remember`.
        visibility: The old one's when omitted, so that replacing shows nothing to anyone new.
        importance: The old one's when omitted.
        embedding: As in `remember`; never taken over from the old one.
        embedding_model: As in `remember`.
        created_at: As in `remember`.
        now: Instant of this call; the ledger's clock when omitted.

    Raises:
        Refusal: `category="memory"`: the old memory is unknown, forgotten or superseded by another, or the new id
            stands for something else or is no longer current.
        TypeError: As in `remember`.
        ValueError: As in `remember`, or both ids are the same.
    """
    old_id, new_id = _id("old_id", old_id), _id("new_id", new_id)
    if old_id == new_id:
        raise ValueError(f"new_id must differ from old_id: {shorten(new_id)}")
    row = _row(
        new_id,
        content,
        PUBLIC if visibility is None else visibility,
        0.5 if importance is None else importance,
        embedding,
        embedding_model,
        created_at,
    )
    now = ledger.now(now)
    with recorded(ledger, now), ledger.write() as tx:
        old = _stored(tx, old_id)
        if old["forgotten_at"]:
            raise Refusal(Category.MEMORY, old_id, "it was forgotten", "store the new memory with remember")
        if old["superseded_by"] not in (None, new_id):
            raise Refusal(
                Category.MEMORY, old_id, f"{shorten(old['superseded_by'])} superseded it", "supersede that one instead"
            )
        row["visibility"] = old["visibility"] if visibility is None else row["visibility"]
        row["importance"] = old["importance"] if importance is None else row["importance"]
        _insert(tx, row, now)
        if old["superseded_by"] is None:
            if _stored(tx, new_id)["superseded_by"]:  # two rows that supersede each other would both be lost
                raise Refusal(Category.MEMORY, new_id, "it is no longer current", "use a new id")
            tx.run(
                """
                UPDATE memories
                SET superseded_by = :new_id, superseded_at = :now,
                    revision = (SELECT max(revision) + 1 FROM memories AS m WHERE m.visibility = memories.visibility)
                WHERE memory_id = :old_id
                """,
                old_id=old_id,
                new_id=new_id,
                now=to_text(now),
            )
            tx.event("memory.superseded", old_id, at=now, by=new_id)


def forget(ledger: Ledger, memory_id: str, *, now: datetime | None = None) -> bool:
    """Remove what a memory says: content, words, vector and importance. Its id, times and digest stay.

    The digest is the content's SHA-256: it tells whether a text is the one that was forgotten, so a short text can be
    guessed from it. SQLite overwrites the row; its free pages, the write-ahead log and backups may hold it for longer.

    Parameters:
        ledger: Where it is stored.
        memory_id: Which one.
        now: Instant of this call; the ledger's clock when omitted.

    Returns:
        True if this call removed it, False if an earlier one did.

    Raises:
        Refusal: `category="memory"`: there is no such memory.
    """
    memory_id = _id("memory_id", memory_id)
    now = ledger.now(now)
    with recorded(ledger, now), ledger.write() as tx:
        if _stored(tx, memory_id)["forgotten_at"]:
            return False
        tx.run(
            """
            UPDATE memories
            SET content = NULL, words = NULL, importance = NULL, embedding = NULL, embedding_model = NULL,
                forgotten_at = :now,
                revision = (SELECT max(revision) + 1 FROM memories AS m WHERE m.visibility = memories.visibility)
            WHERE memory_id = :memory_id
            """,
            memory_id=memory_id,
            now=to_text(now),
        )
        tx.event("memory.forgotten", memory_id, at=now)
    return True


def recall(
    ledger: Ledger,
    query: str,
    *,
    actor_id: str,
    query_embedding: Sequence[float] | None = None,
    embedding_model: str | None = None,
    limit: int = 5,
    now: datetime | None = None,
    weights: Weights = Weights(),
) -> tuple[MemoryHit, ...]:
    """Return the memories that answer a query best, among those that one actor may see.

    A memory that cannot be compared with the query's vector stays a lexical candidate, and its `semantic_status` says
    why. Superseded and forgotten memories are not recalled.

    Parameters:
        ledger: Where they are stored.
        query: What is looked for, in any language.
        actor_id: Who asks: sees `public` and `actor:<actor_id>`, nothing else.
        query_embedding: The query's vector, if there is one.
        embedding_model: Whose vector that is.
        limit: Most hits, 1 to 100.
        now: Instant from which ages are counted; the ledger's clock when omitted.
        weights: How scores are made up.

    Returns:
        Hits in the order of selection (see `rank`), which is not the order of `score`.

    Raises:
        Refusal: `category="ledger"` for any SQLite error.
        TypeError: An argument is of another type; `actor_id=None` too.
        ValueError: `actor_id` is blank, the vector is empty, zero or not finite, or `limit` is no whole number from 1
            to 100.
    """
    labels = (PUBLIC, f"actor:{_id('actor_id', actor_id)}")
    asked = Query(
        words=frozenset(words(_text("query", query))),
        vector=None if query_embedding is None else unit("query_embedding", query_embedding),
        model=None if embedding_model is None else checked_id("embedding_model", embedding_model),
        now=ledger.now(now),
    )
    if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:  # True is no number
        raise ValueError(f"limit must be a whole number from 1 to {MAX_LIMIT}: {shown(limit)}")
    if not isinstance(weights, Weights):
        raise TypeError(f"weights must be Weights, not {type(weights).__name__}: {shorten(weights)}")
    with ledger.read() as tx:
        index = _index(ledger, tx, labels)
        if index is not None:
            hits: tuple[MemoryHit, ...] = index.hits(ledger, tx, labels, asked, limit, weights)
            return hits
        rows = tx.all(
            """
            SELECT   memory_id, content, visibility, words, embedding, embedding_model, importance, created_at
            FROM     memories
            WHERE    visibility IN (:public, :own) AND content IS NOT NULL AND superseded_by IS NULL
            ORDER BY seq
            """,
            public=labels[0],
            own=labels[1],
        )
    seen = map(from_row, rows)
    return rank([(memory, score(asked, memory, weights)) for memory in seen], limit, weights)


def from_row(row: sqlite3.Row) -> Memory:
    """Return a stored row as a `Memory`. Never raises: what cannot be read counts for nothing."""
    return Memory(
        id=row["memory_id"],
        content=row["content"],
        visibility=row["visibility"],
        words=frozenset((row["words"] or "").split()),
        vector=None if row["embedding"] is None else from_bytes(row["embedding"]),
        model=row["embedding_model"],
        importance=min(1.0, max(0.0, row["importance"] or 0.0)),
        created_at=instant(row["created_at"]),
    )


def instant(text: str) -> datetime | None:
    """Return a stored instant, or None when the text is none."""
    try:
        return as_utc("created_at", datetime.fromisoformat(text))
    except ValueError:
        return None


# Small steps


def _index(ledger: Ledger, tx: Transaction, labels: tuple[str, str]) -> ModuleType | None:
    """Return the index, where there is enough to look through.

    Not inside a write: what that wrote may be rolled back, and the index would keep it.
    """
    newest = tx.one(
        """
        SELECT coalesce((SELECT max(revision) FROM memories WHERE visibility = :public), 0)
             + coalesce((SELECT max(revision) FROM memories WHERE visibility = :own), 0) AS changes
        """,
        public=labels[0],
        own=labels[1],
    )
    if ledger.in_write or newest is None or newest["changes"] < FAST_FROM:
        return None
    return _find_index()


@functools.cache
def _find_index() -> ModuleType:
    try:
        from . import memory_index
    except ImportError:  # without numpy
        from . import memory_columns

        return memory_columns
    return memory_index


def _row(
    memory_id: object,
    content: object,
    visibility: object,
    importance: object,
    embedding: object,
    embedding_model: object,
    created_at: object,
) -> dict[str, object]:
    """Return a memory's columns, checked; `created_at` is None when the call's instant is meant."""
    text = _text("content", content)
    if not text.strip():
        raise ValueError(f"content must not be blank: {shorten(text)}")
    vector = None if embedding is None else to_bytes(unit("embedding", embedding))
    model = None if embedding_model is None else checked_id("embedding_model", embedding_model)
    return {
        "memory_id": _id("memory_id", memory_id),
        "visibility": _visibility(visibility),
        "content": text,
        "words": " ".join(sorted(set(words(text)))),
        "importance": _share("importance", importance),
        "embedding": vector,
        "embedding_model": None if vector is None else model,
        "created_at": None if created_at is None else to_text(as_utc("created_at", created_at)),
        "digest": hashlib.sha256(text.encode()).hexdigest(),
    }


def _insert(tx: Transaction, row: dict[str, object], now: datetime) -> None:
    """Store a row, unless the very same one is stored already; refuse another under its id."""
    old = tx.one("SELECT * FROM memories WHERE memory_id = :memory_id", memory_id=row["memory_id"])
    if old is not None:
        if old["forgotten_at"]:
            raise Refusal(Category.MEMORY, row["memory_id"], "it was forgotten", "use another id")
        if any(old[column] != value for column, value in row.items() if (column, value) != ("created_at", None)):
            raise Refusal(
                Category.MEMORY, row["memory_id"], "it stands for another memory", "use another id, or supersede it"
            )
        return
    row = {**row, "created_at": row["created_at"] or to_text(now)}
    tx.run(
        """
        INSERT INTO memories (memory_id, visibility, revision, content, words, importance, embedding, embedding_model,
                              created_at, digest)
        VALUES (:memory_id, :visibility,
                (SELECT coalesce(max(revision), 0) + 1 FROM memories WHERE visibility = :visibility),
                :content, :words, :importance, :embedding, :embedding_model, :created_at, :digest)
        """,
        **row,
    )
    tx.event("memory.remembered", str(row["memory_id"]), at=now, digest=row["digest"])


def _stored(tx: Transaction, memory_id: str) -> sqlite3.Row:
    row = tx.one("SELECT * FROM memories WHERE memory_id = :memory_id", memory_id=memory_id)
    if row is None:
        raise Refusal(Category.MEMORY, memory_id, "there is no such memory", "store it with remember")
    return row


def _id(name: str, value: object) -> str:
    """Return an id in NFC, so that one name typed in two ways is one name."""
    return unicodedata.normalize("NFC", checked_id(name, value))


def _visibility(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"visibility must be text, not {type(value).__name__}: {shorten(value)}")
    kind, colon, actor = value.partition(":")
    if value == PUBLIC:
        return value
    if kind != "actor" or not colon:
        raise ValueError(f'visibility must be "public" or "actor:<id>": {shorten(value)}')
    return f"actor:{_id('visibility', actor)}"


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text, not {type(value).__name__}: {shorten(value)}")
    if len(value) > MAX_CONTENT:
        raise ValueError(f"{name} must be at most {MAX_CONTENT} characters: {len(value)}")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{name} must not hold lone surrogates: {shorten(ascii(value))}")
    return value
