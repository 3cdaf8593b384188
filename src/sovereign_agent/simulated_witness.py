"""The witness: compares a ledger with what hosts were told by it, and with what receivers got.

It promises to notice an answer that the ledger does not bear out: a finish that was answered as done, a refusal, a row
that was recorded, a run that was offered. What nobody was told is the checker's business (see `simulated_checker`).
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from .coordination import SessionClaim
from .errors import Category, Refusal
from .invariants import Findings, Invariant
from .ledger import FILE, FOLDER
from .memory import MemoryHit, SemanticStatus


@dataclass(slots=True)
class Decision:
    """What a condition said, as the simulation knows it."""

    automation_id: str
    fire: bool
    message: str
    version: int
    """Of the definition when the condition was asked."""
    attempt: tuple[str, int] | None = None
    """The run and the attempt that it led to."""


@dataclass(slots=True)
class Story:
    """What the events have told so far."""

    boots: dict[str, int] = field(default_factory=dict)
    claims: dict[str, tuple[str, int, str | None]] = field(default_factory=dict)
    """Host, incarnation and end of each session's latest claim."""
    finished: dict[str, tuple[str, int]] = field(default_factory=dict)
    kept: int = 0
    versions: dict[str, int] = field(default_factory=dict)
    enabled: dict[str, int] = field(default_factory=dict)
    runs: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Status and attempt."""
    signals: dict[str, tuple[str, int]] = field(default_factory=dict)
    deliveries: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Status and attempts."""
    rows: dict[str, int] = field(default_factory=dict)
    markers: dict[str, int] = field(default_factory=dict)
    memories: dict[str, tuple[str | None, bool]] = field(default_factory=dict)
    """What superseded it, and whether it is forgotten."""


class Witness(Findings):
    """Knows what was said, and reads the ledger with a connection of its own.

    Parameters:
        root: The directory of the ledger, which exists.
    """

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.path = root / FOLDER / FILE
        self.decisions: list[Decision] = []
        """What the conditions of watchers said, by number."""
        self.effects: dict[str, tuple[str, str]] = {}
        """What the idempotent receiver got: run id to watcher and message."""
        self.signal_effects: dict[str, str] = {}
        """The same for signals: run id to signal."""
        self._reader = sqlite3.connect(self.path, isolation_level=None, cached_statements=512)
        self._reader.row_factory = sqlite3.Row
        self._reader.execute("PRAGMA query_only = ON")
        self._story = Story()
        self._live: dict[str, sqlite3.Row] = {}
        """The claims that were not over at the last look."""
        self._fired: set[tuple[str, str]] = set()
        self._purging: set[str] = set()
        """Sessions whose claim may be gone without an event."""
        self._refusals: list[Refusal] = []
        """Those that the events must show at the next look."""

    # What the simulation may ask

    def holder(self, session_id: str) -> str:
        """Return who holds a session, as far as the checker has seen; empty where nobody does."""
        return str(self._live[session_id]["host_id"]) if session_id in self._live else ""

    def is_finished(self, session_id: str) -> bool:
        """Tell whether an event has told of a completion of a session."""
        return session_id in self._story.finished

    def version_of(self, automation_id: str) -> int:
        """Return the version of a definition."""
        row = self._one("SELECT version FROM automations WHERE automation_id = ?", automation_id)
        return 0 if row is None else int(row["version"])

    def current_memories(self) -> list[str]:
        """Return the ids of memories that are neither superseded nor forgotten, in the order of the events."""
        return [name for name, fate in self._story.memories.items() if fate == (None, False)]

    # What hosts were told, and receivers got

    def told_finished(self, claim: SessionClaim, result: str) -> None:
        """Note that a finish was answered as done."""
        row = self._one("SELECT * FROM session_completions WHERE session_id = ?", claim.session_id)
        told = (claim.host_id, claim.incarnation, result)
        self.require(
            Invariant.DONE,
            row is not None and (row["host_id"], row["incarnation"], row["result"]) == told,
            f"{claim.session_id} was answered as done to incarnation {claim.incarnation} of {claim.host_id}, "
            f"and the ledger holds {'nothing' if row is None else row['incarnation']}",
        )

    def told_again(self, claim: SessionClaim, refusal: Refusal | None) -> None:
        """Note how the repetition of a finish that had been answered as done was answered."""
        self.require(Invariant.DONE, refusal is None, f"the repeated finish of {claim.session_id}: {refusal}")

    def told_refused(self, claim: SessionClaim, result: str) -> None:
        """Note that a finish was refused, and that nothing kept the ledger from writing its evidence."""
        digest = sha256(result.encode()).hexdigest()
        row = self._one(
            "SELECT 1 FROM refused_results WHERE session_id = ? AND host_id = ? AND incarnation = ? "
            "AND result_digest = ?",
            claim.session_id,
            claim.host_id,
            claim.incarnation,
            digest,
        )
        self.require(
            Invariant.REFUSED_WORK,
            row is not None,
            f"the refused result of incarnation {claim.incarnation} of {claim.session_id} is not kept",
        )

    def told_appended(self, session_id: str, seq: int, content: str) -> None:
        """Note what was recorded under which number."""
        row = self._one("SELECT content FROM transcript_messages WHERE session_id = ? AND seq = ?", session_id, seq)
        self.require(
            Invariant.SOURCES,
            row is not None and row["content"] == content,
            f"row {seq} of {session_id} is not what was recorded",
        )

    def told_refusal(self, refusal: Refusal, *, trouble: bool) -> None:
        """Note a refusal that left a call; `trouble` says whether the ledger was locked or full on purpose."""
        if refusal.category is Category.LEDGER:
            self.require(Invariant.EXPLAINED, trouble, f"the ledger refused without a cause: {refusal.why}")
        elif not getattr(refusal, "__notes__", None):
            self._refusals.append(refusal)

    def told_error(self, error: BaseException) -> None:
        """Note an exception that is no refusal and that no callable raised."""
        self.require(Invariant.EXPLAINED, holds=False, detail=f"{type(error).__name__} left a call: {error}")

    def decided(self, decision: Decision) -> int:
        """Note what a condition is about to say; returns the number of this decision."""
        self.decisions.append(decision)
        if decision.fire:
            self._fired.add((decision.automation_id, decision.message))
        return len(self.decisions) - 1

    def effect(self, run_id: str, automation_id: str, message: str) -> None:
        """Note that a payload reached its receiver, which does the same work once."""
        before = self.effects.setdefault(run_id, (automation_id, message))
        self.require(
            Invariant.ONE_EFFECT,
            before == (automation_id, message),
            f"{run_id} stands for {before} and for {(automation_id, message)}",
        )

    def offered(self, run_id: str) -> int:
        """Note that a payload was called; returns the attempt that the ledger counts."""
        row = self._one("SELECT status, attempt FROM automation_runs WHERE run_id = ?", run_id)
        status = self._story.runs.get(run_id, ("", 0))[0]
        self.require(
            Invariant.ONE_EFFECT,
            row is not None and row["status"] == "RUNNING" and status not in ("SUCCEEDED", "ABANDONED"),
            f"{run_id} is offered although it is {status or 'not claimed'}",
        )
        return 0 if row is None else int(row["attempt"])

    def signal_offered(self, signal_id: str) -> None:
        """Note that the payload of a signal was called."""
        status = self._story.signals.get(signal_id, ("", 0))[0]
        self.require(
            Invariant.SIGNALS,
            status not in ("SUCCEEDED", "DECLINED", "GIVEN_UP"),
            f"{signal_id} is offered although it is {status}",
        )

    def signal_effect(self, run_id: str, signal_id: str) -> None:
        """Note that the payload of a signal reached its receiver, which does the same work once."""
        before = self.signal_effects.setdefault(run_id, signal_id)
        self.require(Invariant.SIGNALS, before == signal_id, f"{run_id} stands for {before} and for {signal_id}")

    def recalled(self, actor_id: str, statements: list[tuple[str, object]], hits: tuple[MemoryHit, ...]) -> None:
        """Note a recall: the statements by which it read, and what it returned."""
        allowed = {"public", f"actor:{actor_id}"}
        for sql, parameters in statements:
            if "FROM" in sql and "memories" in sql and "content" in sql:
                loaded = self._reader.execute(sql, parameters).fetchall()  # type: ignore[arg-type]
                hidden = [row["memory_id"] for row in loaded if row["visibility"] not in allowed]
                self.require(Invariant.HIDDEN, not hidden, f"a recall of {actor_id} loaded {', '.join(hidden[:3])}")
        for hit in hits:
            row = self._one("SELECT * FROM memories WHERE memory_id = ?", hit.id)
            current = row is not None and row["content"] == hit.content and row["superseded_by"] is None
            self.require(
                Invariant.EVIDENCE,
                current and hit.visibility in allowed and (hit.lexical > 0 or hit.semantic > 0),
                f"{hit.id} was recalled for {actor_id} without being current, visible and to the point",
            )

    def compared(self, hits: tuple[MemoryHit, ...], model: str, length: int) -> None:
        """Note the model and the length of the vector that a recall asked with."""
        for hit in hits:
            row = self._one("SELECT embedding, embedding_model FROM memories WHERE memory_id = ?", hit.id)
            same = (
                row is not None
                and row["embedding"] is not None
                and (row["embedding_model"], len(row["embedding"]) // 4) == (model, length)
            )
            self.require(
                Invariant.EVIDENCE,
                same or hit.semantic_status is not SemanticStatus.USED,
                f"{hit.id} was compared with a vector of another model",
            )

    def authorized(self, name: str, *, allowed: bool, genuine: bool) -> None:
        """Note a receipt: for which tool, whether the policy allows that, and whether its own object was presented."""
        self.require(Invariant.TOOLS, allowed, f"a receipt was given for {name}, which the policy denies")
        self.require(Invariant.TOOLS, genuine, f"a receipt for {name} was given to a copy")

    def purging(self, session_ids: list[str]) -> None:
        """Note whose claims an operator is about to remove; whether that was committed, the next look tells."""
        self._purging.update(session_ids)

    def _one(self, sql: str, *parameters: object) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self._reader.execute(sql, parameters).fetchone()
        return row
