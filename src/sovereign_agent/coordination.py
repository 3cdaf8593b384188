"""Sessions: at most one live claim each, and a number that tells a returning holder that it is no longer the holder.

Leases of hosts and claims say who may go on; the incarnation, compared in the transaction of the write, says whose
write counts. A lease alone proves nothing after a pause, so `finish_session` and `fenced` check both at the write. This
does not stop a stale holder from acting outside the ledger, nor does it say that a host is alive: only that it renewed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from .clock import later, seconds, to_text
from .errors import Category, Refusal, shorten, shown
from .fence import (
    Holding,
    Lapse,
    SessionClaim,
    apart,
    checked_claim,
    lapse,
    mark,
    mark_host,
    marking,
    read_holding,
    require_held,
    require_live,
    stale,
)
from .ledger import Ledger, Transaction, checked_id, record_refusal, stored_instant

__all__ = [
    "MAX_REFUSED_RESULT_BYTES",
    "HostLease",
    "SessionClaim",
    "claim_session",
    "fenced",
    "finish_session",
    "register_host",
    "release_session",
    "renew_host",
    "renew_session",
]

MAX_REFUSED_RESULT_BYTES = 16 * 1024
"""Longest refused result that is kept, in bytes of UTF-8, the note of the cut included."""


@dataclass(frozen=True, slots=True)
class HostLease:
    """The lease of one boot of one host."""

    host_id: str
    boot: int
    """Greater than that of every earlier registration of this host id."""
    expires_at: datetime


# Hosts


def register_host(ledger: Ledger, host_id: str, *, now: datetime | None = None, ttl_seconds: float = 60) -> HostLease:
    """Start a new boot of a host; claims of its earlier boots are no longer live.

    Parameters:
        ledger: Where hosts are kept.
        host_id: One runtime holder, usually one process.
        now: Aware instant of the call; the ledger's clock when omitted.
        ttl_seconds: Life of the lease in seconds, 1 to ten years.

    Returns:
        The new lease, with a boot number above every earlier one of this host id.

    Raises:
        Refusal: `category="ledger"` when the ledger cannot be written.
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of its range.
    """
    checked_id("host_id", host_id)
    ttl = seconds("ttl_seconds", ttl_seconds)
    with ledger.write() as tx:
        at = ledger.now(now)
        lease = HostLease(host_id, _next(tx, "boot", host_id), later(at, ttl))
        tx.run(
            "INSERT INTO hosts (host_id, boot, registered_at, expires_at) VALUES (:host_id, :boot, :at, :expires_at) "
            "ON CONFLICT (host_id) DO UPDATE SET boot = excluded.boot, registered_at = excluded.registered_at, "
            "expires_at = excluded.expires_at, renewals = 0, expired_at = NULL",
            host_id=host_id,
            boot=lease.boot,
            at=to_text(at),
            expires_at=to_text(lease.expires_at),
        )
        tx.event("host.registered", host_id, at=at, boot=lease.boot)
        return lease


def renew_host(
    ledger: Ledger,
    host_id: str,
    *,
    boot: int | None = None,
    now: datetime | None = None,
    ttl_seconds: float = 60,
) -> HostLease:
    """Extend the lease of a registered host; it is never shortened.

    Parameters:
        ledger: Where hosts are kept.
        host_id: A registered host.
        boot: The boot that the caller belongs to, from `HostLease.boot`. With it, a process of an earlier boot is
            refused; without it, whichever boot is the present one is renewed.
        now: Aware instant of the call; the ledger's clock when omitted.
        ttl_seconds: Life of the lease from now on, in seconds, 1 to ten years.

    Returns:
        The lease as the ledger now holds it.

    Raises:
        Refusal: `category="session"`: the host is unknown, its lease has ended, or another boot has begun.
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of its range.
    """
    checked_id("host_id", host_id)
    ttl = seconds("ttl_seconds", ttl_seconds)
    if boot is not None and (isinstance(boot, bool) or not isinstance(boot, int)):
        raise TypeError(f"boot must be a whole number, not {type(boot).__name__}: {shown(boot)}")
    with _marking_host(ledger, host_id, now), ledger.write() as tx:
        at = ledger.now(now)
        lease = _require_host(tx, host_id, at)
        if boot is not None and boot != lease.boot:
            raise _refuse(
                host_id,
                f"boot {shown(boot)} of host {shorten(host_id)} is not the present one, which is {lease.boot}",
                "stop this process, or register the host again",
            )
        expires_at = max(lease.expires_at, later(at, ttl))
        tx.run(
            "UPDATE hosts SET expires_at = :expires_at, renewals = renewals + 1 WHERE host_id = :host_id",
            expires_at=to_text(expires_at),
            host_id=host_id,
        )
        return HostLease(host_id, lease.boot, expires_at)


# Sessions


def claim_session(
    ledger: Ledger, session_id: str, host_id: str, *, now: datetime | None = None, ttl_seconds: float = 60
) -> SessionClaim:
    """Acquire a session for a host, with a higher incarnation than every claim before.

    The same host claiming again supersedes its own live claim: a restarted process is not its predecessor.

    Parameters:
        ledger: Where claims are kept.
        session_id: What is claimed.
        host_id: A registered host whose own lease lies ahead.
        now: Aware instant of the call; the ledger's clock when omitted.
        ttl_seconds: Life of the claim in seconds, 1 to ten years. It is live no longer than the lease of its host.

    Returns:
        The claim to present at every write.

    Raises:
        Refusal: `category="session"`: another host's claim is live (its leases count as ended only
            `Ledger.max_clock_skew` after their end), the session is finished, or the claiming host has no live lease.
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of its range.
    """
    checked_id("session_id", session_id)
    checked_id("host_id", host_id)
    ttl = seconds("ttl_seconds", ttl_seconds)
    with _marking_host(ledger, host_id, now), ledger.write() as tx:
        at = ledger.now(now)
        _refuse_if_finished(tx, session_id)
        host = _require_host(tx, host_id, at)
        holding = read_holding(tx, session_id)
        before = _predecessor(holding, host_id, at, ledger.max_clock_skew)
        if holding is not None and isinstance(before, Lapse):
            mark(tx, holding, before, at)
        claim = SessionClaim(session_id, host_id, _next(tx, "incarnation", session_id), later(at, ttl))
        tx.run(
            "INSERT INTO session_claims (session_id, host_id, boot, incarnation, claimed_at, expires_at) "
            "VALUES (:session_id, :host_id, :boot, :incarnation, :at, :expires_at) "
            "ON CONFLICT (session_id) DO UPDATE SET host_id = excluded.host_id, boot = excluded.boot, "
            "incarnation = excluded.incarnation, claimed_at = excluded.claimed_at, expires_at = excluded.expires_at, "
            "renewals = 0, ended = NULL, ended_at = NULL",
            session_id=session_id,
            host_id=host_id,
            boot=host.boot,
            incarnation=claim.incarnation,
            at=to_text(at),
            expires_at=to_text(claim.expires_at),
        )
        tx.event(
            "session.claimed", session_id, at=at, host_id=host_id, incarnation=claim.incarnation, predecessor=before
        )
        return claim


def renew_session(
    ledger: Ledger, claim: SessionClaim, *, now: datetime | None = None, ttl_seconds: float = 60
) -> SessionClaim:
    """Extend a live claim; it keeps its incarnation and is never shortened.

    Parameters:
        ledger: Where claims are kept.
        claim: The claim to extend.
        now: Aware instant of the call; the ledger's clock when omitted.
        ttl_seconds: Life of the claim from now on, in seconds, 1 to ten years.

    Returns:
        The same claim with its new expiry. The older object stays good for the same incarnation.

    Raises:
        Refusal: `category="session"`: the claim is "stale or expired".
        TypeError: An argument has the wrong type.
        ValueError: `ttl_seconds` is out of its range, or `now` is naive.
    """
    checked_claim(claim)
    ttl = seconds("ttl_seconds", ttl_seconds)
    with marking(ledger, claim, now), ledger.write() as tx:
        at = ledger.now(now)
        require_live(tx, claim, at)
        row = tx.one(
            "UPDATE session_claims SET expires_at = max(expires_at, :expires_at), renewals = renewals + 1 "
            "WHERE session_id = :session_id RETURNING expires_at",
            expires_at=to_text(later(at, ttl)),
            session_id=claim.session_id,
        )
        assert row is not None  # noqa: S101 - require_live has just read this row
        return SessionClaim(claim.session_id, claim.host_id, claim.incarnation, stored_instant(row["expires_at"]))


def release_session(ledger: Ledger, claim: SessionClaim, *, now: datetime | None = None) -> None:
    """Give a session up before its lease ends. Releasing one's own released or finished claim again changes nothing.

    Parameters:
        ledger: Where claims are kept.
        claim: A live claim.
        now: Aware instant of the call; the ledger's clock when omitted.

    Raises:
        Refusal: `category="session"`: the claim is "stale or expired".
        TypeError: `claim` is no `SessionClaim`.
    """
    checked_claim(claim)
    with marking(ledger, claim, now), ledger.write() as tx:
        at = ledger.now(now)
        if not _given_up(tx, claim):
            require_live(tx, claim, at)
            _end(tx, claim, Lapse.RELEASED, at)
            tx.event("session.released", claim.session_id, at=at, host_id=claim.host_id, incarnation=claim.incarnation)


@contextmanager
def fenced(ledger: Ledger, claim: SessionClaim, *, now: datetime | None = None) -> Iterator[Transaction]:
    """Open a write transaction in which any write counts only if the claim is live at its beginning and at its end.

    A stale claim rolls the whole transaction back, an enclosing `Ledger.write()` included. The holder may release or
    finish the session inside the block.

    Parameters:
        ledger: The ledger to write to.
        claim: The claim that entitles to the write.
        now: Aware instant of the whole block; when omitted the ledger's clock is asked at its beginning and at its end.

    Returns:
        A context manager that gives the transaction.

    Raises:
        Refusal: `category="session"`: the claim is "stale or expired".
        TypeError: `claim` is no `SessionClaim`.
    """
    checked_claim(claim)
    with marking(ledger, claim, now), ledger.write() as tx:
        require_live(tx, claim, ledger.now(now))
        yield tx
        require_held(tx, claim, ledger.now(now))


def finish_session(ledger: Ledger, claim: SessionClaim, result: str, *, now: datetime | None = None) -> None:
    """Store the result of a session, once, if the claim is live at this write.

    A repeated call of this very host and incarnation with the same result is answered as done, also after the lease has
    ended. A result that is refused is kept in `refused_results`, in a transaction of its own, so that it is not lost.

    Parameters:
        ledger: Where results are kept.
        claim: A live claim.
        result: The result, any text. Of a refused one at most 16 KiB are kept, with size and digest of the whole.
        now: Aware instant of the call, also the time of the completion; the ledger's clock when omitted.

    Raises:
        Refusal: `category="session"`: the claim is "stale or expired", or the session has another result. An
            enclosing `Ledger.write()` rolls back with it.
        TypeError: `claim` is no `SessionClaim`, or `result` no text.
        ValueError: `result` has surrogates, so that it cannot be stored as UTF-8.
    """
    checked_claim(claim)
    if not isinstance(result, str):
        raise TypeError(f"result must be text, not {type(result).__name__}: {shorten(result)}")
    try:
        encoded = result.encode()
    except UnicodeEncodeError:
        raise ValueError(f"result must be storable as UTF-8: {shorten(result)}") from None
    digest = hashlib.sha256(encoded).hexdigest()

    def keep_result(tx: Transaction, refusal: Refusal, at: datetime) -> None:
        _keep_refused(tx, claim, result, len(encoded), digest, refusal, at)

    with marking(ledger, claim, now, also=keep_result), ledger.write() as tx:
        at = ledger.now(now)
        if _already_done(tx, claim, result):
            return
        require_live(tx, claim, at)
        tx.run(
            "INSERT INTO session_completions (session_id, host_id, incarnation, result, completed_at) "
            "VALUES (:session_id, :host_id, :incarnation, :result, :at)",
            session_id=claim.session_id,
            host_id=claim.host_id,
            incarnation=claim.incarnation,
            result=result,
            at=to_text(at),
        )
        _end(tx, claim, Lapse.FINISHED, at)
        tx.event(
            "session.finished",
            claim.session_id,
            at=at,
            host_id=claim.host_id,
            incarnation=claim.incarnation,
            result_bytes=len(encoded),
            result_sha256=digest,
        )


# Deciding


def _predecessor(holding: Holding | None, host_id: str, now: datetime, skew: timedelta) -> Lapse | str:
    """Return what became of the claim before this one; refuse while that is live and another host's.

    The skew is added to the leases of another host only: a host judges its own leases by its own clock.
    """
    if holding is None:
        return "NONE"
    own = holding.claim.host_id == host_id
    ended = lapse(holding, now, timedelta(0) if own else skew)
    if ended is None and not own:
        held = holding.claim
        raise _refuse(
            held.session_id,
            f"live claim belongs to {shorten(held.host_id)} (incarnation {held.incarnation}, until "
            f"{to_text(min(held.expires_at, holding.host_expires_at or held.expires_at))} "
            f"and {skew.total_seconds():g} s of clock skew)",
            "wait for it to end, or let its holder release it",
        )
    return "SUPERSEDED" if ended is None else ended


def truncated(text: str, digest: str, limit_bytes: int) -> str:
    """Return a text of at most so many bytes of UTF-8; a cut is said at its end, with size and digest of the whole."""
    data = text.encode()
    if len(data) <= limit_bytes:
        return text
    note = f"\n[cut: the whole has {len(data)} bytes, sha256 {digest}]"
    return data[: limit_bytes - len(note)].decode(errors="ignore") + note


def _refuse(subject: str, why: str, remedy: str) -> Refusal:
    return Refusal(Category.SESSION, subject, why, remedy)


# Storing


def _next(tx: Transaction, kind: str, subject: str) -> int:
    """Return the next number of a counter that only grows, whatever rows are purged elsewhere."""
    row = tx.one(
        "UPDATE coordination_counters SET last = last + 1 WHERE kind = :kind AND subject = :subject RETURNING last",
        kind=kind,
        subject=subject,
    )
    if row is not None:
        return int(row["last"])
    tx.run(
        "INSERT INTO coordination_counters (kind, subject, last) VALUES (:kind, :subject, 1)",
        kind=kind,
        subject=subject,
    )
    return 1


def _read_host(tx: Transaction, host_id: str) -> tuple[HostLease, bool] | None:
    """Return the lease of a host, and whether a call has found it expired before."""
    row = tx.one("SELECT boot, expires_at, expired_at FROM hosts WHERE host_id = :host_id", host_id=host_id)
    if row is None:
        return None
    return HostLease(host_id, row["boot"], stored_instant(row["expires_at"])), row["expired_at"] is not None


def _require_host(tx: Transaction, host_id: str, now: datetime) -> HostLease:
    """Return the host's own live lease, judged without skew, or refuse."""
    found = _read_host(tx, host_id)
    if found is None:
        raise _refuse(host_id, f"host {shorten(host_id)} is not registered", "register the host first")
    lease, expired = found
    if expired or lease.expires_at <= now:
        raise _refuse(
            host_id,
            f"the lease of host {shorten(host_id)} ended at {to_text(lease.expires_at)}",
            "register the host again, which starts a new boot",
        )
    return lease


@contextmanager
def _marking_host(ledger: Ledger, host_id: str, now: datetime | None) -> Iterator[None]:
    """Record a refusal that leaves the block, and mark the caller's own host lease if that was found expired."""

    def keep(tx: Transaction, _: Refusal) -> None:
        at = ledger.now(now)
        found = _read_host(tx, host_id)
        if found is not None and found[0].expires_at <= at:
            mark_host(tx, host_id, found[0].boot, at)

    try:
        yield
    except Refusal as refusal:
        if refusal.category is Category.SESSION:
            apart(ledger, refusal, keep)
        record_refusal(ledger, refusal, now=now)
        raise


def _refuse_if_finished(tx: Transaction, session_id: str) -> None:
    row = tx.one(
        "SELECT host_id, incarnation FROM session_completions WHERE session_id = :session_id", session_id=session_id
    )
    if row is not None:
        raise _refuse(
            session_id,
            f"the session is finished, by incarnation {row['incarnation']} of {shorten(row['host_id'])}",
            "read its result in session_completions, or start a session with another id",
        )


def _already_done(tx: Transaction, claim: SessionClaim, result: str) -> bool:
    """Tell whether this very claim has stored this very result; refuse if the session has any other completion."""
    row = tx.one(
        "SELECT host_id, incarnation, result FROM session_completions WHERE session_id = :session_id",
        session_id=claim.session_id,
    )
    if row is None:
        return False
    if (row["host_id"], row["incarnation"]) != (claim.host_id, claim.incarnation):
        raise stale(claim, f"the session is finished, by incarnation {row['incarnation']} of {shorten(row['host_id'])}")
    if row["result"] != result:
        raise _refuse(
            claim.session_id,
            f"incarnation {claim.incarnation} of {shorten(claim.host_id)} has finished it with another result",
            "keep the first result: a completion never changes",
        )
    return True


def _given_up(tx: Transaction, claim: SessionClaim) -> bool:
    row = tx.one(
        "SELECT 1 FROM session_claims WHERE session_id = :session_id AND host_id = :host_id "
        "AND incarnation = :incarnation AND ended IN ('RELEASED', 'FINISHED')",
        session_id=claim.session_id,
        host_id=claim.host_id,
        incarnation=claim.incarnation,
    )
    return row is not None


def _end(tx: Transaction, claim: SessionClaim, ended: Lapse, now: datetime) -> None:
    tx.run(
        "UPDATE session_claims SET ended = :ended, ended_at = :at WHERE session_id = :session_id",
        ended=ended,
        at=to_text(now),
        session_id=claim.session_id,
    )


def _keep_refused(
    tx: Transaction, claim: SessionClaim, result: str, size: int, digest: str, refusal: Refusal, now: datetime
) -> None:
    """Keep a refused result; the same one is kept once, so that a stale holder in a loop cannot fill the disk."""
    kept = tx.run(
        "INSERT INTO refused_results "
        "(session_id, host_id, incarnation, result, result_bytes, result_digest, why, refused_at) "
        "SELECT :session_id, :host_id, :incarnation, :result, :size, :digest, :why, :at "
        "WHERE NOT EXISTS (SELECT 1 FROM refused_results WHERE session_id = :session_id AND host_id = :host_id "
        "AND incarnation = :incarnation AND result_digest = :digest)",
        session_id=claim.session_id,
        host_id=claim.host_id,
        incarnation=claim.incarnation,
        result=truncated(result, digest, MAX_REFUSED_RESULT_BYTES),
        size=size,
        digest=digest,
        why=refusal.why,
        at=to_text(now),
    )
    if kept:
        tx.event(
            "session.result_kept",
            claim.session_id,
            at=now,
            host_id=claim.host_id,
            incarnation=claim.incarnation,
            result_bytes=size,
            result_sha256=digest,
        )
