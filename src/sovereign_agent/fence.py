"""Fences: the claim of a session, and the check at the write that it is still the latest and still live.

A claim that passes `require_live` inside a write transaction is live at the given instant, and nobody can take the
session over before that transaction ends. The incarnation is the fencing token. A claim is a fact, not a secret: code
in the same process can build one by hand, and the check then answers for whatever that claim says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from .clock import as_utc, later, to_text
from .errors import Category, Refusal, shorten, shown
from .ledger import Ledger, Transaction, checked_id, readable, record_refusal, stored_instant

_LARGEST_INTEGER = 2**63 - 1  # of SQLite


@dataclass(frozen=True, slots=True)
class SessionClaim:
    """One continuous hold of one session by one host: `claim_session` returns it, every fenced write presents it."""

    session_id: str
    host_id: str
    incarnation: int
    """The fencing token: greater than that of every earlier claim of this session."""
    expires_at: datetime
    """When the lease ends as this object knows it. The ledger's row decides: a later renewal may have extended it."""

    def __post_init__(self) -> None:
        checked_id("session_id", self.session_id)
        checked_id("host_id", self.host_id)
        if isinstance(self.incarnation, bool) or not isinstance(self.incarnation, int):
            raise TypeError(f"incarnation must be a whole number, not {type(self.incarnation).__name__}")
        if not 1 <= self.incarnation <= _LARGEST_INTEGER:
            raise ValueError(f"incarnation must lie between 1 and {_LARGEST_INTEGER}: {shown(self.incarnation)}")
        as_utc("expires_at", self.expires_at)


def checked_claim(claim: object) -> None:
    """Refuse what is no claim.

    Raises:
        TypeError: `claim` is no `SessionClaim`.
    """
    if not isinstance(claim, SessionClaim):
        raise TypeError(f"claim must be a SessionClaim, not {type(claim).__name__}: {shorten(claim)}")


class Lapse(StrEnum):
    """Why the latest claim of a session is not live; the value stands in `session_claims.ended` and in events."""

    EXPIRED = "EXPIRED"
    """Its own lease ran out."""
    HOST_EXPIRED = "HOST_EXPIRED"
    """The lease of its host ran out."""
    HOST_RESTARTED = "HOST_RESTARTED"
    """Its host id was registered again since: another boot."""
    HOST_UNKNOWN = "HOST_UNKNOWN"
    """The row of its host is gone."""
    RELEASED = "RELEASED"
    FINISHED = "FINISHED"


@dataclass(frozen=True, slots=True)
class Holding:
    """What the ledger knows of the latest claim of a session and of the host that made it."""

    claim: SessionClaim
    """As stored, so with the expiry of the latest renewal."""
    boot: int
    """The boot of the host under which the claim was made."""
    ended: Lapse | None
    """Set once: a claim that was found lapsed never lives again."""
    host_boot: int | None
    """The present boot of that host id; None where its row is gone."""
    host_expires_at: datetime | None
    host_expired: bool
    """Whether a call has found the host's lease expired; such a lease never lives again."""


def lapse(holding: Holding, now: datetime, skew: timedelta = timedelta(0)) -> Lapse | None:
    """Return why a claim is not live at an instant, or None while it is.

    Parameters:
        holding: The latest claim and its host.
        now: Aware instant. A lease that ends at this very instant has ended.
        skew: How far the judge's clock may run ahead of the holder's: zero for one's own lease.

    Returns:
        The first reason that applies, in the order: what the row says, the host's boot, its lease, the claim's lease.
    """
    if holding.ended is not None:
        return holding.ended
    if holding.host_boot is None or holding.host_expires_at is None:
        return Lapse.HOST_UNKNOWN
    if holding.host_boot != holding.boot:
        return Lapse.HOST_RESTARTED
    if holding.host_expired or later(holding.host_expires_at, skew) <= now:
        return Lapse.HOST_EXPIRED
    if later(holding.claim.expires_at, skew) <= now:
        return Lapse.EXPIRED
    return None


def read_holding(tx: Transaction, session_id: str) -> Holding | None:
    """Return the latest claim of a session as the ledger knows it, or None where it knows none."""
    row = tx.one(
        "SELECT c.host_id, c.incarnation, c.expires_at, c.boot, c.ended, "
        "       h.boot AS host_boot, h.expires_at AS host_expires_at, h.expired_at AS host_expired_at "
        "FROM session_claims AS c LEFT JOIN hosts AS h ON h.host_id = c.host_id "
        "WHERE c.session_id = :session_id",
        session_id=session_id,
    )
    if row is None:
        return None
    with readable(session_id):
        claim = SessionClaim(session_id, row["host_id"], row["incarnation"], stored_instant(row["expires_at"]))
    return Holding(
        claim=claim,
        boot=row["boot"],
        ended=Lapse(row["ended"]) if row["ended"] else None,
        host_boot=row["host_boot"],
        host_expires_at=stored_instant(row["host_expires_at"]) if row["host_expires_at"] else None,
        host_expired=row["host_expired_at"] is not None,
    )


def require_live(tx: Transaction, claim: SessionClaim, now: datetime) -> None:
    """Refuse unless the claim is the latest of its session and live.

    Inside `Ledger.write()` this is a fence: what the transaction writes beside it stands or falls with the claim. Wrap
    the transaction in `marking`, so that a lease found expired stays expired although the refusal rolls back.

    Parameters:
        tx: The transaction of the write that the claim entitles to.
        claim: What `claim_session` or `renew_session` returned.
        now: The aware instant of the call.

    Raises:
        Refusal: `category="session"`, with "stale or expired" and which lease ended.
        TypeError: `claim` is no `SessionClaim`.
    """
    holding = _latest(tx, claim)
    ended = lapse(holding, now)
    if ended is not None:
        raise stale(claim, _explain(holding, ended))


def require_held(tx: Transaction, claim: SessionClaim, now: datetime) -> None:
    """Refuse as `require_live` does, but allow a claim that its own holder has released or finished.

    This is the check at the end of a transaction that began with `require_live`: the write lock was held all the time,
    so nobody but the holder can have ended the claim.

    Raises:
        Refusal: As `require_live`.
    """
    holding = _latest(tx, claim)
    given_up = holding.ended in (Lapse.RELEASED, Lapse.FINISHED)
    ended = lapse(replace(holding, ended=None) if given_up else holding, now)
    if ended is not None:
        raise stale(claim, _explain(holding, ended))


def stale(claim: SessionClaim, why: str) -> Refusal:
    """Return the refusal of a claim that entitles to nothing any more."""
    return Refusal(
        Category.SESSION,
        claim.session_id,
        f"stale or expired claim: {why}",
        "claim the session again and start from what the ledger holds",
    )


def mark(tx: Transaction, holding: Holding, ended: Lapse, now: datetime) -> None:
    """Mark in its row a claim that was found lapsed, and the lease of its host where that is the reason."""
    if holding.ended is not None:  # marked before; its host may have started a new boot since
        return
    claim = holding.claim
    tx.run(
        "UPDATE session_claims SET ended = :ended, ended_at = :at "
        "WHERE session_id = :session_id AND incarnation = :incarnation",
        ended=ended,
        at=to_text(now),
        session_id=claim.session_id,
        incarnation=claim.incarnation,
    )
    tx.event(
        "session.lapsed", claim.session_id, at=now, host_id=claim.host_id, incarnation=claim.incarnation, reason=ended
    )
    if ended is Lapse.HOST_EXPIRED:
        mark_host(tx, claim.host_id, holding.boot, now)


def mark_host(tx: Transaction, host_id: str, boot: int, now: datetime) -> None:
    """Mark in its row the lease of a host's present boot that was found expired."""
    changed = tx.run(
        "UPDATE hosts SET expired_at = :at WHERE host_id = :host_id AND expired_at IS NULL",
        at=to_text(now),
        host_id=host_id,
    )
    if changed:
        tx.event("host.expired", host_id, at=now, boot=boot)


@contextmanager
def marking(
    ledger: Ledger,
    claim: SessionClaim,
    now: datetime | None = None,
    also: Callable[[Transaction, Refusal, datetime], None] | None = None,
) -> Iterator[None]:
    """Record a refusal that leaves the block, and mark the lease that it found expired, once its write has rolled back.

    Parameters:
        ledger: The ledger of the write inside the block.
        claim: The claim that the block presents.
        now: The instant of the call; the ledger's clock when omitted.
        also: Further evidence to keep when the session refuses.
    """

    def keep(tx: Transaction, refusal: Refusal) -> None:
        at = ledger.now(now)
        holding = read_holding(tx, claim.session_id)
        if holding is not None and _same(holding.claim, claim):
            ended = lapse(holding, at)
            if ended is not None:
                mark(tx, holding, ended, at)
        if also is not None:
            also(tx, refusal, at)

    try:
        yield
    except Refusal as refusal:
        if refusal.category is Category.SESSION:
            apart(ledger, refusal, keep)
        record_refusal(ledger, refusal, now=now)
        raise


def apart(ledger: Ledger, refusal: Refusal, keep: Callable[[Transaction, Refusal], None]) -> None:
    """Write evidence in a transaction of its own, after the one that the refusal rolled back.

    Where that fails (a lock held too long), the refusal gets a note that says so, and stays the refusal it was.
    """
    try:
        if not ledger.in_transaction:
            with ledger.write() as tx:
                keep(tx, refusal)
            return
        # The caller's own write() is still open, yet already rolled back, so its lock is free for another connection.
        root = ledger.path.parent.parent
        with (
            Ledger.open(root, ids=ledger.ids, actor=ledger.actor, connect=ledger.connect) as other,
            other.write() as tx,
        ):
            keep(tx, refusal)
    except Refusal as failure:
        refusal.add_note(f"The evidence of this refusal was not kept: {failure}")


def _latest(tx: Transaction, claim: SessionClaim) -> Holding:
    """Return the latest claim of the session if it is this one; refuse otherwise."""
    checked_claim(claim)
    holding = read_holding(tx, claim.session_id)
    if holding is None:
        raise stale(claim, "the ledger holds no claim of this session")
    if not _same(holding.claim, claim):
        latest = holding.claim
        raise stale(
            claim,
            f"incarnation {claim.incarnation} of {shorten(claim.host_id)} is not the latest, which is "
            f"incarnation {latest.incarnation} of {shorten(latest.host_id)}",
        )
    return holding


def _same(one: SessionClaim, other: SessionClaim) -> bool:
    return (one.session_id, one.host_id, one.incarnation) == (other.session_id, other.host_id, other.incarnation)


def _explain(holding: Holding, ended: Lapse) -> str:
    host = shorten(holding.claim.host_id)
    match ended:
        case Lapse.EXPIRED:
            return f"its own lease ended at {to_text(holding.claim.expires_at)}"
        case Lapse.HOST_EXPIRED:
            when = "" if holding.host_expires_at is None else f" at {to_text(holding.host_expires_at)}"
            return f"the lease of its host {host} ended{when}"
        case Lapse.HOST_RESTARTED:
            return f"its host {host} was registered again since"
        case Lapse.HOST_UNKNOWN:
            return f"its host {host} is not registered"
        case Lapse.RELEASED:
            return "it was released"
        case Lapse.FINISHED:
            return "the session is finished"
