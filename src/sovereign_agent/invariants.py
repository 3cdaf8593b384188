"""Invariants: what must hold in a ledger after every step, whoever crashed, slept, or was told a lie by a clock.

Each has a name, under which a violation is reported, and one sentence. `Findings` counts how often each was compared
with something and keeps the first that did not hold. It does not promise that what is not named here is right.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum


class Invariant(StrEnum):
    """What must hold; the value is its name in reports."""

    ONE_COMPLETION = "one-completion"
    """A session has one completion at most, by its latest incarnation, while its lease and that of its host held."""
    INCARNATIONS = "incarnations-increase"
    """Each claim of a session has a higher incarnation than any before it, and each boot of a host a higher number."""
    TAKEOVER = "takeover-after-lease"
    """A session is taken from another host only once its lease, or that of its host, and the clock skew are over."""
    DONE = "done-stays-done"
    """A finish that was answered as done is in the ledger with that result, and is answered as done again."""
    REFUSED_WORK = "refused-work-kept"
    """The result of a refused finish is kept as evidence."""
    SLOTS = "slots-once"
    """Every slot of a watcher has one fate: the ranges follow each other without gap or overlap, up to the cursor."""
    QUIET = "quiet-is-no-run"
    """Every run carries the message of a decision that fired."""
    ONE_EFFECT = "one-effect-per-run"
    """A run id stands for one watcher and one message, has its effect before it counts as succeeded, and ends then."""
    FENCE = "latest-attempt-commits"
    """What ends a run or a signal is its latest attempt."""
    STATE = "state-after-success"
    """A condition's state comes from a quiet look, a success of that attempt under that definition, or an operator."""
    ATTEMPTS = "attempts-never-decrease"
    """Attempts of runs, signals and deliveries are counted up, and each attempt of a delivery has its row."""
    SIGNALS = "one-run-per-signal"
    """A signal keeps its run id, and is not offered again once it is settled."""
    SOURCES = "sources-unchanged"
    """Every byte of a transcript is as it was recorded."""
    SHOWN = "shown-or-covered"
    """Every row is shown as it is or listed by one marker; head and tail stand whole; no result without its call."""
    MARKERS = "markers-intact"
    """Every marker has a summary, covers whole exchanges once, and its digest follows from the one before."""
    HIDDEN = "hidden-never-loaded"
    """A recall loads no memory of another actor."""
    EVIDENCE = "hits-have-evidence"
    """A hit is current and visible, has words or a direction in common with the query, and its vector is one."""
    TOOLS = "denied-never-authorized"
    """A receipt names a tool that the policy allows, and is given for the catalogue's own object."""
    REFUSALS = "refusals-recorded"
    """Every refusal that a host was given stands in the events."""
    EXPLAINED = "failures-explained"
    """Nothing but a refusal leaves a call, and the ledger itself fails only while it is locked or its disk is full."""
    APPEND_ONLY = "append-only"
    """No row of an append-only table is changed or gone."""
    STORY = "events-tell-the-tables"
    """The events, read from the first to the last, give what the tables hold."""


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that did not hold."""

    invariant: Invariant
    detail: str


class Findings:
    """What was compared so far. The first violation stays in `violation`; nothing is raised."""

    def __init__(self) -> None:
        self.violation: Violation | None = None
        self.checked: Counter[Invariant] = Counter()
        """How often each was compared with something."""

    def require(self, invariant: Invariant, holds: object, detail: str) -> None:
        """Count one comparison, and keep the first that fails."""
        self.checked[invariant] += 1
        if not holds and self.violation is None:
            self.violation = Violation(invariant, detail)
