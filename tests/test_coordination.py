"""Sessions: who holds one, whose write counts, and that the number never goes back."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sovereign_agent.clock import to_text
from sovereign_agent.coordination import (
    MAX_REFUSED_RESULT_BYTES,
    SessionClaim,
    claim_session,
    fenced,
    finish_session,
    register_host,
    release_session,
    renew_host,
    renew_session,
    truncated,
)
from sovereign_agent.errors import Category, Refusal
from sovereign_agent.fence import Holding, Lapse, lapse, require_live
from sovereign_agent.ids import SeededIds
from sovereign_agent.ledger import Ledger, Transaction

T0 = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)  # where the clock of every test starts
S = timedelta(seconds=1)
HOUR = 3600.0


def two_hosts(ledger: Ledger, ttl_seconds: float = HOUR) -> None:
    for host in ("host-a", "host-b"):
        register_host(ledger, host, ttl_seconds=ttl_seconds)


def rows(ledger: Ledger, sql: str, **params: object) -> list[tuple[Any, ...]]:
    with ledger.read() as tx:
        return [tuple(row) for row in tx.all(sql, **params)]


def events(ledger: Ledger, kind: str) -> list[dict[str, Any]]:
    return [json.loads(detail) for (detail,) in rows(ledger, "SELECT detail FROM events WHERE kind = :k", k=kind)]


def note(tx: Transaction, subject: str) -> None:
    """Stand for the canonical write of a caller: an event is as good a row as any."""
    tx.event("test.written", subject, at=datetime(2026, 1, 5, tzinfo=UTC))


def written(ledger: Ledger) -> list[str]:
    return [subject for (subject,) in rows(ledger, "SELECT subject FROM events WHERE kind = 'test.written'")]


def plain_client(ledger: Ledger) -> sqlite3.Connection:
    return sqlite3.connect(ledger.path, isolation_level=None)


def purge(ledger: Ledger, table: str) -> None:
    connection = plain_client(ledger)
    connection.execute(f"DELETE FROM {table}")
    connection.close()


# Taking over


def test_a_live_claim_of_another_host_is_refused_by_its_name(ledger: Ledger) -> None:
    two_hosts(ledger)
    claim_session(ledger, "s", "host-a")
    with pytest.raises(Refusal, match="Session claim refused for s: live claim belongs to host-a") as refused:
        claim_session(ledger, "s", "host-b")
    assert refused.value.category is Category.SESSION
    assert [event["category"] for event in events(ledger, "refused")] == ["session"]


def test_takeover_after_expiry_raises_the_incarnation_and_fences_the_former_holder(ledger: Ledger) -> None:
    two_hosts(ledger)
    first = claim_session(ledger, "s", "host-a", now=T0, ttl_seconds=10)
    second = claim_session(ledger, "s", "host-b", now=T0 + 20 * S)
    assert (first.incarnation, second.incarnation) == (1, 2)
    with pytest.raises(Refusal, match=r"Session claim refused for s: stale or expired .* incarnation 2 of host-b"):
        finish_session(ledger, first, "old", now=T0 + 21 * S)
    finish_session(ledger, second, "new", now=T0 + 22 * S)
    assert rows(ledger, "SELECT host_id, incarnation, result, completed_at FROM session_completions") == [
        ("host-b", 2, "new", to_text(T0 + 22 * S))
    ]


def test_a_restarted_process_of_the_same_host_id_is_not_its_predecessor(ledger: Ledger) -> None:
    """Reported against aegra as numbers 502 and 547: worker names repeat, and the stalled one still finished."""
    register_host(ledger, "host-1-worker-0", now=T0)
    stalled = claim_session(ledger, "s", "host-1-worker-0", now=T0)
    register_host(ledger, "host-1-worker-0", now=T0 + 5 * S)
    restarted = claim_session(ledger, "s", "host-1-worker-0", now=T0 + 5 * S)
    assert restarted.incarnation > stalled.incarnation
    with pytest.raises(Refusal, match="stale or expired"):
        finish_session(ledger, stalled, "old", now=T0 + 6 * S)
    finish_session(ledger, restarted, "new", now=T0 + 7 * S)
    assert rows(ledger, "SELECT incarnation, result FROM session_completions") == [(2, "new")]


def test_the_same_host_claiming_again_supersedes_its_own_live_claim_without_a_new_boot(ledger: Ledger) -> None:
    two_hosts(ledger)
    first = claim_session(ledger, "s", "host-a")
    second = claim_session(ledger, "s", "host-a")
    assert second.incarnation == 2
    with pytest.raises(Refusal, match="stale or expired"):
        renew_session(ledger, first)
    assert [event["predecessor"] for event in events(ledger, "session.claimed")] == ["NONE", "SUPERSEDED"]


def test_registering_a_host_again_ends_the_claims_of_its_earlier_boot_at_once(ledger: Ledger) -> None:
    two_hosts(ledger)
    first = claim_session(ledger, "s", "host-a")
    assert register_host(ledger, "host-a").boot == 2
    with pytest.raises(Refusal, match=r"stale or expired.*host-a was registered again"):
        finish_session(ledger, first, "old")
    assert claim_session(ledger, "s", "host-b").incarnation == 2, "no need to wait for a lease of the earlier boot"


def test_a_claim_dies_with_its_host_however_long_its_own_lease(ledger: Ledger) -> None:
    register_host(ledger, "host-a", now=T0, ttl_seconds=60)
    register_host(ledger, "host-b", now=T0, ttl_seconds=HOUR)
    first = claim_session(ledger, "s", "host-a", now=T0, ttl_seconds=HOUR)
    with pytest.raises(Refusal, match="the lease of its host host-a ended at 2026-01-05T08:01:00"):
        finish_session(ledger, first, "late", now=T0 + 60 * S)
    assert claim_session(ledger, "s", "host-b", now=T0 + 61 * S).incarnation == 2


def test_a_refusal_says_that_the_claims_own_lease_ended(ledger: Ledger) -> None:
    two_hosts(ledger)
    claim = claim_session(ledger, "s", "host-a", now=T0, ttl_seconds=10)
    with pytest.raises(Refusal, match="its own lease ended at 2026-01-05T08:00:10"):
        renew_session(ledger, claim, now=T0 + 10 * S)


# Clocks


def test_a_clock_ahead_by_less_than_the_stated_skew_never_takes_a_live_claim(
    open_ledger: Callable[..., Ledger],
) -> None:
    """Reported against occurrent as number 659: a claim for 20 s, judged one second later by a clock 30 s ahead."""
    ledger = open_ledger(max_clock_skew_seconds=30)
    register_host(ledger, "host-a", now=T0)
    register_host(ledger, "host-b", now=T0 + 30 * S)
    claim = claim_session(ledger, "s", "host-a", now=T0, ttl_seconds=20)
    for true_second in (1, 19):
        with pytest.raises(Refusal, match="live claim belongs to host-a"):
            claim_session(ledger, "s", "host-b", now=T0 + (true_second + 30) * S)
    finish_session(ledger, claim, "done", now=T0 + 19 * S)


def test_skew_is_added_to_another_hosts_leases_and_never_to_ones_own(ledger: Ledger) -> None:
    two_hosts(ledger)
    claim_session(ledger, "s", "host-a", now=T0, ttl_seconds=10)
    with pytest.raises(Refusal, match="live claim"):
        claim_session(ledger, "s", "host-b", now=T0 + 14.999 * S)
    assert claim_session(ledger, "s", "host-b", now=T0 + 15 * S).incarnation == 2

    register_host(ledger, "short", now=T0, ttl_seconds=10)
    short = claim_session(ledger, "t", "short", now=T0, ttl_seconds=HOUR)
    with pytest.raises(Refusal, match="live claim belongs to short"):
        claim_session(ledger, "t", "host-b", now=T0 + 14.999 * S)
    with pytest.raises(Refusal, match="the lease of host short ended"):
        claim_session(ledger, "u", "short", now=T0 + 10 * S)
    with pytest.raises(Refusal, match="stale or expired"):
        renew_session(ledger, short, now=T0 + 10 * S)


def test_an_explicit_now_is_never_compared_with_the_clock_or_an_earlier_call(ledger: Ledger) -> None:
    past = T0 - timedelta(days=365)
    register_host(ledger, "host-a", now=past)
    claim = claim_session(ledger, "s", "host-a", now=past)
    with fenced(ledger, claim, now=past - timedelta(days=1)) as tx:
        note(tx, "earlier than the claim itself")
    finish_session(ledger, claim, "done", now=past + 59 * S)
    assert rows(ledger, "SELECT completed_at FROM session_completions") == [(to_text(past + 59 * S),)]


def test_the_clock_is_read_after_the_lock_is_held(ledger: Ledger, clock: Any) -> None:
    """A lease that ends while the call waits for another writer must not count as live."""
    two_hosts(ledger)
    claim = claim_session(ledger, "s", "host-a", ttl_seconds=10)
    other = plain_client(ledger)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Refusal, match="stale or expired"):
        _finish_while_locked(ledger, claim, clock, other)
    other.close()


def _finish_while_locked(ledger: Ledger, claim: SessionClaim, clock: Any, other: sqlite3.Connection) -> None:
    connection = ledger._connection
    assert connection is not None

    def waited(statement: str) -> None:
        if statement == "BEGIN IMMEDIATE":
            other.execute("ROLLBACK") if other.in_transaction else None
            clock.advance(11)

    connection.set_trace_callback(waited)
    try:
        finish_session(ledger, claim, "late")
    finally:
        connection.set_trace_callback(None)


@pytest.mark.parametrize("end", ["claim", "host"])
def test_a_lease_found_expired_never_lives_again(ledger: Ledger, end: str) -> None:
    register_host(ledger, "host-a", now=T0, ttl_seconds=10 if end == "host" else HOUR)
    claim = claim_session(ledger, "s", "host-a", now=T0, ttl_seconds=10 if end == "claim" else HOUR)
    with pytest.raises(Refusal):
        renew_session(ledger, claim, now=T0 + 10 * S)
    ended = "EXPIRED" if end == "claim" else "HOST_EXPIRED"
    assert rows(ledger, "SELECT ended, ended_at FROM session_claims") == [(ended, to_text(T0 + 10 * S))]
    assert rows(ledger, "SELECT expired_at IS NOT NULL FROM hosts") == [(end == "host",)]
    for act in (renew_session, release_session):
        with pytest.raises(Refusal, match="stale or expired"):
            act(ledger, claim, now=T0 + 1 * S)
    with pytest.raises(Refusal, match="stale or expired"):
        finish_session(ledger, claim, "x", now=T0 + 1 * S)
    if end == "host":
        with pytest.raises(Refusal, match="the lease of host host-a ended"):
            renew_host(ledger, "host-a", now=T0 + 1 * S)
    register_host(ledger, "host-a", now=T0 + 1 * S)
    assert claim_session(ledger, "s", "host-a", now=T0 + 1 * S).incarnation == 2


def test_a_host_lease_found_expired_by_the_host_itself_never_lives_again(ledger: Ledger) -> None:
    register_host(ledger, "host-a", now=T0, ttl_seconds=10)
    claim = claim_session(ledger, "s", "host-a", now=T0, ttl_seconds=HOUR)
    with pytest.raises(Refusal):
        renew_host(ledger, "host-a", now=T0 + 10 * S)
    with pytest.raises(Refusal):
        claim_session(ledger, "t", "host-a", now=T0 + 1 * S)
    with pytest.raises(Refusal, match="the lease of its host"):
        finish_session(ledger, claim, "x", now=T0 + 1 * S)
    assert [event["boot"] for event in events(ledger, "host.expired")] == [1]


def test_a_host_lease_found_expired_by_another_host_ends_all_its_claims(ledger: Ledger) -> None:
    register_host(ledger, "host-a", now=T0, ttl_seconds=10)
    register_host(ledger, "host-b", now=T0)
    taken = claim_session(ledger, "taken", "host-a", now=T0, ttl_seconds=HOUR)
    other = claim_session(ledger, "other", "host-a", now=T0, ttl_seconds=HOUR)
    claim_session(ledger, "taken", "host-b", now=T0 + 15 * S)
    for claim in (taken, other):
        with pytest.raises(Refusal, match="stale or expired"):
            finish_session(ledger, claim, "x", now=T0 + 1 * S)
    assert [event["reason"] for event in events(ledger, "session.lapsed")] == ["HOST_EXPIRED"] * 2
    assert [event["boot"] for event in events(ledger, "host.expired")] == [1]


def test_a_host_that_claims_its_own_expired_session_again_judges_it_without_skew(ledger: Ledger) -> None:
    two_hosts(ledger)
    claim_session(ledger, "s", "host-a", now=T0, ttl_seconds=10)
    claim_session(ledger, "s", "host-a", now=T0 + 9 * S, ttl_seconds=10)
    claim_session(ledger, "s", "host-a", now=T0 + 19 * S)
    assert [event["predecessor"] for event in events(ledger, "session.claimed")] == ["NONE", "SUPERSEDED", "EXPIRED"]


def test_marking_an_old_boots_lapse_leaves_the_new_boots_lease_alone(ledger: Ledger) -> None:
    register_host(ledger, "host-a", now=T0, ttl_seconds=10)
    claim = claim_session(ledger, "s", "host-a", now=T0, ttl_seconds=HOUR)
    with pytest.raises(Refusal):
        finish_session(ledger, claim, "x", now=T0 + 20 * S)
    register_host(ledger, "host-a", now=T0 + 20 * S)
    for _ in range(2):
        with pytest.raises(Refusal):
            finish_session(ledger, claim, "x", now=T0 + 20 * S)
    assert claim_session(ledger, "s", "host-a", now=T0 + 21 * S).incarnation == 2
    assert renew_host(ledger, "host-a", now=T0 + 22 * S).boot == 2


def test_a_lapse_found_inside_a_callers_transaction_is_marked_although_all_of_it_rolls_back(ledger: Ledger) -> None:
    two_hosts(ledger)
    claim = claim_session(ledger, "s", "host-a", now=T0, ttl_seconds=10)
    with pytest.raises(Refusal, match="stale or expired"), ledger.write() as tx:
        note(tx, "canonical")
        finish_session(ledger, claim, "kept although refused", now=T0 + 10 * S)
    assert written(ledger) == []
    assert rows(ledger, "SELECT ended FROM session_claims") == [("EXPIRED",)]
    assert rows(ledger, "SELECT result FROM refused_results") == [("kept although refused",)]
    assert [event["category"] for event in events(ledger, "refused")] == ["session"]


# Renewing and releasing


def test_renewals_extend_and_never_shorten(ledger: Ledger) -> None:
    register_host(ledger, "host-a", now=T0, ttl_seconds=100)
    assert renew_host(ledger, "host-a", now=T0 + 1 * S, ttl_seconds=10).expires_at == T0 + 100 * S
    assert renew_host(ledger, "host-a", now=T0 + 1 * S, ttl_seconds=200).expires_at == T0 + 201 * S
    claim = claim_session(ledger, "s", "host-a", now=T0, ttl_seconds=100)
    assert renew_session(ledger, claim, now=T0 - 50 * S, ttl_seconds=10).expires_at == T0 + 100 * S
    longer = renew_session(ledger, claim, now=T0 + 50 * S, ttl_seconds=100)
    assert longer == replace(claim, expires_at=T0 + 150 * S)
    assert renew_session(ledger, longer, now=T0 + 51 * S, ttl_seconds=1) == longer
    finish_session(ledger, claim, "the older object of the same incarnation", now=T0 + 149 * S)


def test_a_renewal_counts_in_its_row_and_writes_no_event(ledger: Ledger) -> None:
    two_hosts(ledger)
    claim = claim_session(ledger, "s", "host-a")
    before = rows(ledger, "SELECT count(*) FROM events")
    renew_session(ledger, claim)
    renew_host(ledger, "host-a")
    assert rows(ledger, "SELECT count(*) FROM events") == before
    assert rows(ledger, "SELECT renewals FROM session_claims") == [(1,)]
    assert rows(ledger, "SELECT renewals FROM hosts WHERE host_id = 'host-a'") == [(1,)]


def test_a_process_of_an_earlier_boot_that_presents_it_cannot_renew_the_host(ledger: Ledger) -> None:
    earlier = register_host(ledger, "host-a")
    later = register_host(ledger, "host-a")
    with pytest.raises(Refusal, match="boot 1 of host host-a is not the present one, which is 2"):
        renew_host(ledger, "host-a", boot=earlier.boot)
    assert renew_host(ledger, "host-a", boot=later.boot).boot == 2


def test_a_released_session_is_free_at_once_with_a_higher_incarnation(ledger: Ledger) -> None:
    two_hosts(ledger)
    claim = claim_session(ledger, "s", "host-a")
    release_session(ledger, claim)
    release_session(ledger, claim)
    with pytest.raises(Refusal, match=r"stale or expired.*it was released"):
        finish_session(ledger, claim, "late")
    assert claim_session(ledger, "s", "host-b").incarnation == 2
    with pytest.raises(Refusal, match="stale or expired"):
        release_session(ledger, claim)
    assert len(events(ledger, "session.released")) == 1


def test_claiming_and_renewing_need_a_registered_host(ledger: Ledger) -> None:
    with pytest.raises(Refusal, match="host nobody is not registered"):
        claim_session(ledger, "s", "nobody")
    with pytest.raises(Refusal, match="host nobody is not registered"):
        renew_host(ledger, "nobody")


# Finishing


def test_a_repeated_finish_of_the_same_claim_is_answered_as_done_also_later(ledger: Ledger) -> None:
    two_hosts(ledger)
    claim = claim_session(ledger, "s", "host-a", now=T0, ttl_seconds=10)
    finish_session(ledger, claim, "done", now=T0 + 1 * S)
    purge(ledger, "session_claims")
    finish_session(ledger, claim, "done", now=T0 + timedelta(days=30))
    assert len(events(ledger, "session.finished")) == 1
    assert rows(ledger, "SELECT result, completed_at FROM session_completions") == [("done", to_text(T0 + 1 * S))]


def test_another_result_or_another_claim_never_replaces_a_completion(ledger: Ledger) -> None:
    two_hosts(ledger)
    claim = claim_session(ledger, "s", "host-a")
    finish_session(ledger, claim, "done")
    with pytest.raises(Refusal, match="has finished it with another result"):
        finish_session(ledger, claim, "other")
    with pytest.raises(Refusal, match="stale or expired claim: the session is finished, by incarnation 1 of host-a"):
        finish_session(ledger, replace(claim, incarnation=2), "done")
    with pytest.raises(Refusal, match="stale or expired claim: the session is finished, by incarnation 1 of host-a"):
        finish_session(ledger, replace(claim, host_id="host-b"), "done")
    assert rows(ledger, "SELECT result FROM session_completions") == [("done",)]


def test_a_finished_session_refuses_every_new_claim(ledger: Ledger) -> None:
    two_hosts(ledger)
    claim = claim_session(ledger, "s", "host-a")
    finish_session(ledger, claim, "done")
    purge(ledger, "session_claims")
    for host in ("host-a", "host-b"):
        with pytest.raises(Refusal, match="the session is finished, by incarnation 1 of host-a"):
            claim_session(ledger, "s", host, now=T0 + 100 * S)
    with pytest.raises(Refusal, match="stale or expired"):
        renew_session(ledger, claim)


def test_a_claim_that_somebody_built_by_hand_is_judged_by_what_it_says(ledger: Ledger) -> None:
    two_hosts(ledger)
    claim = claim_session(ledger, "s", "host-a")
    for forged in (
        replace(claim, incarnation=2),
        replace(claim, host_id="host-b"),
        replace(claim, session_id="other"),
    ):
        with pytest.raises(Refusal, match="stale or expired"):
            finish_session(ledger, forged, "forged")
    forever = replace(claim, expires_at=T0 + timedelta(days=3650))
    with pytest.raises(Refusal, match="stale or expired"):
        finish_session(ledger, forever, "its own word on its expiry counts for nothing", now=T0 + 60 * S)


def test_a_refused_result_is_kept_once_and_named_by_its_digest(ledger: Ledger) -> None:
    two_hosts(ledger)
    claim = claim_session(ledger, "s", "host-a", now=T0, ttl_seconds=1)
    for _ in range(2):
        with pytest.raises(Refusal):
            finish_session(ledger, claim, "ergebnis: größe", now=T0 + 2 * S)
    digest = hashlib.sha256("ergebnis: größe".encode()).hexdigest()
    assert rows(
        ledger,
        "SELECT session_id, host_id, incarnation, result, result_bytes, result_digest, refused_at FROM refused_results",
    ) == [("s", "host-a", 1, "ergebnis: größe", 17, digest, to_text(T0 + 2 * S))]
    assert len(events(ledger, "refused")) == 2
    assert all("ergebnis" not in detail for (detail,) in rows(ledger, "SELECT detail FROM events"))


@pytest.mark.parametrize("text", ["x" * 20_000, "ß" * 20_000, "\N{SNOWMAN}" * 5462])
def test_a_long_refused_result_is_cut_visibly_within_16_kib(ledger: Ledger, text: str) -> None:
    two_hosts(ledger)
    claim = claim_session(ledger, "s", "host-a", now=T0, ttl_seconds=1)
    with pytest.raises(Refusal):
        finish_session(ledger, claim, text, now=T0 + 2 * S)
    ((kept, size, digest),) = rows(ledger, "SELECT result, result_bytes, result_digest FROM refused_results")
    assert MAX_REFUSED_RESULT_BYTES - 4 < len(kept.encode()) <= MAX_REFUSED_RESULT_BYTES == 16 * 1024
    assert kept.endswith(f"[cut: the whole has {size} bytes, sha256 {digest}]")
    assert (size, digest) == (len(text.encode()), hashlib.sha256(text.encode()).hexdigest())


def test_a_text_of_exactly_the_limit_is_not_cut() -> None:
    assert truncated("x" * 100, "d", 100) == "x" * 100
    assert "cut" in truncated("x" * 101, "d", 100)


# Any other write


def test_fenced_writes_commit_with_a_live_claim(ledger: Ledger) -> None:
    two_hosts(ledger)
    with fenced(ledger, claim_session(ledger, "s", "host-a")) as tx:
        note(tx, "counts")
    assert written(ledger) == ["counts"]


def test_a_stale_claim_does_not_even_enter_a_fenced_block(ledger: Ledger) -> None:
    two_hosts(ledger)
    stale = claim_session(ledger, "s", "host-a")
    claim_session(ledger, "s", "host-a")
    entered = False
    with pytest.raises(Refusal, match="stale or expired"), fenced(ledger, stale):
        entered = True
    assert not entered


def test_a_lease_that_ends_inside_a_fenced_block_rolls_the_whole_of_it_back(ledger: Ledger, clock: Any) -> None:
    two_hosts(ledger)
    claim = claim_session(ledger, "s", "host-a", ttl_seconds=10)
    with pytest.raises(Refusal, match="its own lease ended"), ledger.write() as outer:
        note(outer, "before")
        with fenced(ledger, claim) as tx:
            note(tx, "inside")
            clock.advance(10)
    assert written(ledger) == []
    assert rows(ledger, "SELECT ended FROM session_claims") == [("EXPIRED",)]


def test_an_explicit_now_is_the_time_of_the_whole_fenced_block(ledger: Ledger, clock: Any) -> None:
    two_hosts(ledger)
    claim = claim_session(ledger, "s", "host-a", ttl_seconds=10)
    with fenced(ledger, claim, now=T0 + 9 * S) as tx:
        note(tx, "counts")
        clock.advance(1000)
    assert written(ledger) == ["counts"]


def test_a_stale_refusal_that_the_caller_swallows_still_rolls_the_transaction_back(ledger: Ledger) -> None:
    two_hosts(ledger)
    stale = claim_session(ledger, "s", "host-a")
    claim_session(ledger, "s", "host-a")
    with pytest.raises(Refusal, match="nested") as refused, ledger.write() as tx:
        note(tx, "canonical")
        with pytest.raises(Refusal, match="stale or expired"):
            finish_session(ledger, stale, "old")
    assert refused.value.category is Category.LEDGER
    assert written(ledger) == []


def test_a_canonical_write_and_its_finish_commit_as_one(ledger: Ledger) -> None:
    two_hosts(ledger)
    claim = claim_session(ledger, "s", "host-a")
    with ledger.write() as tx:
        note(tx, "canonical")
        finish_session(ledger, claim, "done")
    assert written(ledger) == ["canonical"]
    assert rows(ledger, "SELECT result FROM session_completions") == [("done",)]


@pytest.mark.parametrize("give_up", ["finish", "release"])
def test_the_holder_may_finish_or_release_inside_its_fenced_block(ledger: Ledger, give_up: str) -> None:
    two_hosts(ledger)
    claim = claim_session(ledger, "s", "host-a")
    with fenced(ledger, claim) as tx:
        if give_up == "finish":
            finish_session(ledger, claim, "done")
        else:
            release_session(ledger, claim)
        note(tx, "with it")
    assert written(ledger) == ["with it"]


def test_finishing_inside_a_fenced_block_does_not_outlive_the_lease(ledger: Ledger, clock: Any) -> None:
    two_hosts(ledger)
    claim = claim_session(ledger, "s", "host-a", ttl_seconds=10)
    with pytest.raises(Refusal, match="its own lease ended"), fenced(ledger, claim) as tx:
        finish_session(ledger, claim, "done")
        clock.advance(10)
        note(tx, "too late")
    assert (written(ledger), rows(ledger, "SELECT * FROM session_completions")) == ([], [])


def test_a_new_claim_inside_a_fenced_block_makes_the_block_stale(ledger: Ledger) -> None:
    two_hosts(ledger)
    claim = claim_session(ledger, "s", "host-a")
    with pytest.raises(Refusal, match="stale or expired"), fenced(ledger, claim):
        claim_session(ledger, "s", "host-a")
    assert rows(ledger, "SELECT incarnation FROM session_claims") == [(1,)]


def test_an_exception_of_the_caller_leaves_a_fenced_block_unchanged_and_writes_nothing(ledger: Ledger) -> None:
    two_hosts(ledger)
    claim = claim_session(ledger, "s", "host-a")
    with pytest.raises(ZeroDivisionError), fenced(ledger, claim) as tx:
        note(tx, "lost")
        raise ZeroDivisionError
    assert written(ledger) == []
    assert events(ledger, "refused") == []


# Purging and plain clients


@pytest.mark.parametrize("table", ["session_claims", "hosts"])
def test_incarnations_and_boots_never_go_back_whatever_is_purged(ledger: Ledger, table: str) -> None:
    two_hosts(ledger)
    ancient = claim_session(ledger, "s", "host-a")
    purge(ledger, table)
    with pytest.raises(Refusal, match="stale or expired"):
        finish_session(ledger, ancient, "ancient")
    assert register_host(ledger, "host-a").boot == 2
    assert claim_session(ledger, "s", "host-a").incarnation == 2
    with pytest.raises(Refusal, match="stale or expired"):
        finish_session(ledger, ancient, "ancient")


def test_a_purged_and_registered_host_does_not_revive_the_claims_of_its_earlier_boot(ledger: Ledger) -> None:
    two_hosts(ledger)
    ancient = claim_session(ledger, "s", "host-a")
    purge(ledger, "hosts")
    register_host(ledger, "host-a")
    with pytest.raises(Refusal, match="registered again"):
        finish_session(ledger, ancient, "ancient")


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("UPDATE coordination_counters SET last = last - 1", "update refused"),
        ("UPDATE coordination_counters SET last = last", "update refused"),
        ("UPDATE coordination_counters SET subject = 'other'", "update refused"),
        ("DELETE FROM coordination_counters", "delete refused"),
        ("INSERT OR REPLACE INTO coordination_counters VALUES ('incarnation', 's', 1)", "replace refused"),
        ("UPDATE session_completions SET result = 'forged'", "update refused"),
        ("DELETE FROM session_completions", "delete refused"),
        ("INSERT OR REPLACE INTO session_completions VALUES ('s', 'host-a', 2, 'forged', 'x')", "replace refused"),
        ("UPDATE refused_results SET result = 'forged'", "update refused"),
        ("DELETE FROM refused_results", "delete refused"),
        (
            """
            INSERT OR REPLACE INTO refused_results
            SELECT refusal_seq, session_id, host_id, 9, 'forged', 6, 'x', 'x', 'x' FROM refused_results
            """,
            "replace refused",
        ),
    ],
)
def test_a_plain_client_cannot_rewrite_counters_completions_or_refused_results(
    ledger: Ledger, sql: str, message: str
) -> None:
    two_hosts(ledger)
    stale = claim_session(ledger, "s", "host-a")
    finish_session(ledger, claim_session(ledger, "s", "host-a"), "done")
    with pytest.raises(Refusal):
        finish_session(ledger, stale, "old")
    client = plain_client(ledger)
    with pytest.raises(sqlite3.IntegrityError, match=message):
        client.execute(sql)
    client.close()


# Arguments


@pytest.mark.parametrize("value", ["", "  ", "a\nb", "x" * 201, " x"])
def test_blank_or_unprintable_ids_are_value_errors(ledger: Ledger, value: str) -> None:
    for call in (
        lambda: register_host(ledger, value),
        lambda: renew_host(ledger, value),
        lambda: claim_session(ledger, value, "host-a"),
        lambda: claim_session(ledger, "s", value),
        lambda: SessionClaim(value, "host-a", 1, datetime(2026, 1, 1, tzinfo=UTC)),
        lambda: SessionClaim("s", value, 1, datetime(2026, 1, 1, tzinfo=UTC)),
    ):
        with pytest.raises(ValueError, match="must be 1 to 200 printable"):
            call()


@pytest.mark.parametrize("ttl", [0, -5, 0.5, float("nan"), float("inf"), 10**12, True, "60", None])
def test_a_ttl_that_is_no_sensible_number_of_seconds_is_refused_before_anything_is_written(
    ledger: Ledger, ttl: Any
) -> None:
    two_hosts(ledger)
    claim = claim_session(ledger, "s", "host-a")
    before = rows(ledger, "SELECT count(*) FROM events")
    for call in (
        lambda: register_host(ledger, "host-a", ttl_seconds=ttl),
        lambda: renew_host(ledger, "host-a", ttl_seconds=ttl),
        lambda: claim_session(ledger, "s", "host-a", ttl_seconds=ttl),
        lambda: renew_session(ledger, claim, ttl_seconds=ttl),
    ):
        with pytest.raises((TypeError, ValueError), match="ttl_seconds must"):
            call()
    assert rows(ledger, "SELECT count(*) FROM events") == before
    renew_session(ledger, claim)


def test_a_naive_time_is_refused_by_every_function(ledger: Ledger) -> None:
    naive = datetime(2026, 1, 5, 8, 0)
    two_hosts(ledger)
    claim = claim_session(ledger, "s", "host-a")
    for call in (
        lambda: register_host(ledger, "host-a", now=naive),
        lambda: renew_host(ledger, "host-a", now=naive),
        lambda: claim_session(ledger, "s", "host-a", now=naive),
        lambda: renew_session(ledger, claim, now=naive),
        lambda: release_session(ledger, claim, now=naive),
        lambda: finish_session(ledger, claim, "x", now=naive),
        lambda: fenced(ledger, claim, now=naive).__enter__(),
        lambda: SessionClaim("s", "host-a", 1, naive),
    ):
        with pytest.raises(ValueError, match="must be aware"):
            call()
    assert renew_host(ledger, "host-a").boot == 1


@pytest.mark.parametrize("value", [None, ("s", "host-a", 1), "s"])
def test_what_is_no_claim_is_a_type_error(ledger: Ledger, value: Any) -> None:
    for call in (
        lambda: renew_session(ledger, value),
        lambda: release_session(ledger, value),
        lambda: finish_session(ledger, value, "x"),
        lambda: fenced(ledger, value).__enter__(),
    ):
        with pytest.raises(TypeError, match="claim must be a SessionClaim"):
            call()
    with ledger.read() as tx, pytest.raises(TypeError, match="claim must be a SessionClaim"):
        require_live(tx, value, ledger.now())


@pytest.mark.parametrize(
    ("value", "error"), [(0, ValueError), (2**63, ValueError), (True, TypeError), ("1", TypeError)]
)
def test_an_incarnation_is_a_positive_whole_number(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="incarnation must"):
        SessionClaim("s", "host-a", value, datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(("value", "error"), [(None, TypeError), (b"x", TypeError), ("\ud800", ValueError)])
def test_a_result_is_text_that_can_be_stored(ledger: Ledger, value: Any, error: type[Exception]) -> None:
    two_hosts(ledger)
    with pytest.raises(error, match="result must be"):
        finish_session(ledger, claim_session(ledger, "s", "host-a"), value)


# The decision by itself


def test_the_reason_of_a_lapse_is_the_first_that_applies() -> None:
    live = Holding(SessionClaim("s", "host-a", 1, T0 + 10 * S), 1, None, 1, T0 + 20 * S, host_expired=False)
    assert lapse(live, T0 + 9.999999 * S) is None
    assert lapse(live, T0 + 10 * S) is Lapse.EXPIRED
    assert lapse(live, T0 + 12 * S, skew=3 * S) is None
    assert lapse(live, T0 + 13 * S, skew=3 * S) is Lapse.EXPIRED
    assert lapse(live, T0 + 20 * S) is Lapse.HOST_EXPIRED
    assert lapse(replace(live, host_expired=True), T0) is Lapse.HOST_EXPIRED
    assert lapse(replace(live, host_boot=2), T0 + 30 * S) is Lapse.HOST_RESTARTED
    assert lapse(replace(live, host_boot=None, host_expires_at=None), T0) is Lapse.HOST_UNKNOWN
    assert lapse(replace(live, ended=Lapse.RELEASED), T0 + 30 * S) is Lapse.RELEASED


# Any interleaving


@dataclass
class ModelHost:
    boot: int
    expires: int
    expired: bool = False


@dataclass
class ModelClaim:
    claim: SessionClaim
    boot: int
    expires: int
    ended: bool = False


HOSTS = st.sampled_from(["a", "b", "c"])
SESSIONS = st.sampled_from(["s", "t"])
TIMES = st.integers(0, 60)
TTLS = st.integers(1, 30)
SKEW = 5


class Interleavings(RuleBasedStateMachine):
    """Any order of calls, at any times (also backwards), against a plain model of who is live."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.ledger = Ledger.open(self.folder.name, ids=SeededIds(0), clock=lambda: T0, max_clock_skew_seconds=SKEW)
        self.client = sqlite3.connect(self.ledger.path, isolation_level=None)
        self.hosts: dict[str, ModelHost] = {}
        self.latest: dict[str, ModelClaim] = {}
        self.finished: dict[str, tuple[str, int]] = {}
        self.boots: dict[str, int] = {}
        self.given: dict[str, list[SessionClaim]] = {"s": [], "t": []}
        self.commits: list[tuple[str, int]] = []

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.client.close()
            self.ledger.close()
            self.folder.cleanup()

    def at(self, second: int) -> datetime:
        return T0 + second * S

    def live(self, model: ModelClaim | None, second: int, skew: int = 0) -> bool:
        if model is None or model.ended:
            return False
        host = self.hosts.get(model.claim.host_id)
        return (
            host is not None
            and host.boot == model.boot
            and not host.expired
            and second < host.expires + skew
            and second < model.expires + skew
        )

    def find_lapsed(self, model: ModelClaim, second: int, skew: int = 0) -> None:
        """Mark as the ledger must: what one call found lapsed never lives again."""
        if model.ended:
            return
        model.ended = True
        host = self.hosts.get(model.claim.host_id)
        if host is not None and host.boot == model.boot and second >= host.expires + skew:
            host.expired = True

    def holder(self, claim: SessionClaim) -> ModelClaim | None:
        model = self.latest.get(claim.session_id)
        return model if model is not None and model.claim.incarnation == claim.incarnation else None

    def host_lives(self, host_id: str, second: int) -> bool:
        host = self.hosts.get(host_id)
        if host is not None and second >= host.expires:
            host.expired = True
        return host is not None and not host.expired

    @rule(host=HOSTS, second=TIMES, ttl=TTLS)
    def register(self, host: str, second: int, ttl: int) -> None:
        lease = register_host(self.ledger, host, now=self.at(second), ttl_seconds=ttl)
        assert lease.boot > self.boots.get(host, 0)
        self.boots[host] = lease.boot
        self.hosts[host] = ModelHost(lease.boot, second + ttl)

    @rule(host=HOSTS, second=TIMES, ttl=TTLS)
    def renew_the_host(self, host: str, second: int, ttl: int) -> None:
        if not self.host_lives(host, second):
            with pytest.raises(Refusal):
                renew_host(self.ledger, host, now=self.at(second), ttl_seconds=ttl)
            return
        renew_host(self.ledger, host, now=self.at(second), ttl_seconds=ttl)
        self.hosts[host].expires = max(self.hosts[host].expires, second + ttl)

    @rule(session=SESSIONS, host=HOSTS, second=TIMES, ttl=TTLS)
    def claim(self, session: str, host: str, second: int, ttl: int) -> None:
        before = self.latest.get(session)
        skew = 0 if before is not None and before.claim.host_id == host else SKEW
        if session in self.finished:
            self.host_lives(host, second)
            allowed = False
        elif not self.host_lives(host, second):
            allowed = False
        else:
            allowed = skew == 0 or not self.live(before, second, skew)
        if not allowed:
            with pytest.raises(Refusal):
                claim_session(self.ledger, session, host, now=self.at(second), ttl_seconds=ttl)
            return
        if before is not None and not self.live(before, second, skew):
            self.find_lapsed(before, second, skew)
        claim = claim_session(self.ledger, session, host, now=self.at(second), ttl_seconds=ttl)
        assert claim.incarnation > max((given.incarnation for given in self.given[session]), default=0)
        self.given[session].append(claim)
        self.latest[session] = ModelClaim(claim, self.hosts[host].boot, second + ttl)

    @rule(session=SESSIONS, which=st.integers(0, 3), second=TIMES, ttl=TTLS, act=st.sampled_from(["renew", "write"]))
    def use(self, session: str, which: int, second: int, ttl: int, act: str) -> None:
        claim = self.pick(session, which)
        if claim is None:
            return
        model = self.holder(claim)
        if model is None or not self.live(model, second):
            with pytest.raises(Refusal, match="stale or expired"):
                self.act(act, claim, second, ttl)
            if model is not None:
                self.find_lapsed(model, second)
            return
        self.act(act, claim, second, ttl)
        if act == "renew":
            model.expires = max(model.expires, second + ttl)

    def act(self, act: str, claim: SessionClaim, second: int, ttl: int) -> None:
        if act == "renew":
            assert renew_session(self.ledger, claim, now=self.at(second), ttl_seconds=ttl) == replace(
                claim, expires_at=max(self.at(self.latest[claim.session_id].expires), self.at(second + ttl))
            )
            return
        with fenced(self.ledger, claim, now=self.at(second)) as tx:
            note(tx, claim.session_id)
        self.commits.append((claim.session_id, claim.incarnation))

    @rule(session=SESSIONS, which=st.integers(0, 3), second=TIMES)
    def release(self, session: str, which: int, second: int) -> None:
        claim = self.pick(session, which)
        if claim is None:
            return
        model = self.holder(claim)
        state = self.client.execute("SELECT ended FROM session_claims WHERE session_id = ?", (session,)).fetchone()
        if model is not None and state is not None and state[0] in ("RELEASED", "FINISHED"):
            release_session(self.ledger, claim, now=self.at(second))
        elif model is not None and self.live(model, second):
            release_session(self.ledger, claim, now=self.at(second))
            model.ended = True
        else:
            with pytest.raises(Refusal, match="stale or expired"):
                release_session(self.ledger, claim, now=self.at(second))
            if model is not None:
                self.find_lapsed(model, second)

    @rule(session=SESSIONS, which=st.integers(0, 3), second=TIMES, result=st.sampled_from("xy"))
    def finish(self, session: str, which: int, second: int, result: str) -> None:
        claim = self.pick(session, which)
        if claim is None:
            return
        model = self.holder(claim)
        if self.finished.get(session) == (result, claim.incarnation):
            finish_session(self.ledger, claim, result, now=self.at(second))
        elif session not in self.finished and model is not None and self.live(model, second):
            finish_session(self.ledger, claim, result, now=self.at(second))
            model.ended = True
            self.finished[session] = (result, claim.incarnation)
            self.commits.append((session, claim.incarnation))
        else:
            with pytest.raises(Refusal):
                finish_session(self.ledger, claim, result, now=self.at(second))
            if model is not None and not self.live(model, second):
                self.find_lapsed(model, second)

    @rule(table=st.sampled_from(["session_claims", "hosts"]))
    def purge(self, table: str) -> None:
        self.client.execute(f"DELETE FROM {table}")
        if table == "hosts":
            self.hosts.clear()
        else:
            self.latest.clear()

    def pick(self, session: str, which: int) -> SessionClaim | None:
        """The latest claims are picked most often: 0 is the latest, 1 the one before."""
        given = self.given[session]
        return given[-1 - min(which // 2, len(given) - 1)] if given else None

    @invariant()
    def at_most_one_claim_is_live_and_it_is_the_models(self) -> None:
        if not hasattr(self, "ledger"):
            return
        with self.ledger.read() as tx:
            for second in (0, 15, 30, 60):
                for session, given in self.given.items():
                    live = [claim.incarnation for claim in given if self.passes(tx, claim, second)]
                    model = self.latest.get(session)
                    expected = model is not None and self.live(model, second)
                    assert live == ([model.claim.incarnation] if model is not None and expected else [])

    def passes(self, tx: Transaction, claim: SessionClaim, second: int) -> bool:
        try:
            require_live(tx, claim, self.at(second))
        except Refusal:
            return False
        return True

    @invariant()
    def writes_of_one_session_never_go_back_to_an_earlier_incarnation(self) -> None:
        if hasattr(self, "ledger"):
            for session in ("s", "t"):
                order = [incarnation for name, incarnation in self.commits if name == session]
                assert order == sorted(order)


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=40, stateful_step_count=25)


def test_the_events_of_a_takeover_say_who_held_what_until_when(ledger: Ledger, clock: Any) -> None:
    """Each event in full: whoever reads the ledger afterwards has nothing else."""
    two_hosts(ledger)
    first = claim_session(ledger, "s", "host-a")
    clock.advance(100)
    second = claim_session(ledger, "s", "host-b")
    with pytest.raises(Refusal):
        finish_session(ledger, first, "late")
    third = claim_session(ledger, "s", "host-b")
    release_session(ledger, third)
    release_session(ledger, third)
    fourth = claim_session(ledger, "s", "host-b")
    finish_session(ledger, fourth, "done")
    late, done = (hashlib.sha256(text).hexdigest() for text in (b"late", b"done"))
    assert [one.incarnation for one in (first, second, third, fourth)] == [1, 2, 3, 4]
    found = [
        (kind, subject, json.loads(detail))
        for kind, subject, detail in rows(ledger, "SELECT kind, subject, detail FROM events ORDER BY seq")
        if kind not in ("ledger.created", "refused")
    ]
    a, b = {"host_id": "host-a"}, {"host_id": "host-b"}
    assert found == [
        ("host.registered", "host-a", {"boot": 1}),
        ("host.registered", "host-b", {"boot": 1}),
        ("session.claimed", "s", {**a, "incarnation": 1, "predecessor": "NONE"}),
        ("session.lapsed", "s", {**a, "incarnation": 1, "reason": "EXPIRED"}),
        ("session.claimed", "s", {**b, "incarnation": 2, "predecessor": "EXPIRED"}),
        ("session.result_kept", "s", {**a, "incarnation": 1, "result_bytes": 4, "result_sha256": late}),
        ("session.claimed", "s", {**b, "incarnation": 3, "predecessor": "SUPERSEDED"}),
        ("session.released", "s", {**b, "incarnation": 3}),
        ("session.claimed", "s", {**b, "incarnation": 4, "predecessor": "RELEASED"}),
        ("session.finished", "s", {**b, "incarnation": 4, "result_bytes": 4, "result_sha256": done}),
    ]
    at = to_text(T0 + 100 * S)
    assert rows(ledger, "SELECT DISTINCT at FROM events") == [(to_text(T0),), (at,)]
    assert rows(ledger, "SELECT * FROM session_completions") == [("s", "host-b", 4, "done", at)]
    assert rows(ledger, "SELECT ended, ended_at, renewals FROM session_claims") == [("FINISHED", at, 0)]
    assert rows(
        ledger, "SELECT host_id, result, result_bytes, result_digest, why, refused_at FROM refused_results"
    ) == [
        (
            *("host-a", "late", 4, late),
            "stale or expired claim: incarnation 1 of host-a is not the latest, which is incarnation 2 of host-b",
            at,
        )
    ]


def test_each_refusal_of_a_session_says_why_and_what_helps(ledger: Ledger, clock: Any) -> None:
    """Word for word: the operator of a host acts on this sentence."""
    two_hosts(ledger)
    register_host(ledger, "brief", ttl_seconds=10)
    claim = claim_session(ledger, "held", "host-a")
    done = claim_session(ledger, "done", "host-a")
    finish_session(ledger, done, "first")
    clock.advance(10)
    again = "claim the session again and start from what the ledger holds"
    finished = "the session is finished, by incarnation 1 of host-a"
    for call, subject, sentence in (
        (
            lambda: claim_session(ledger, "held", "host-b"),
            "held",
            (
                "live claim belongs to host-a (incarnation 1, until 2026-01-05T08:01:00.000000Z and 5 s of clock "
                "skew); wait for it to end, or let its holder release it"
            ),
        ),
        (
            lambda: claim_session(ledger, "done", "host-b"),
            "done",
            f"{finished}; read its result in session_completions, or start a session with another id",
        ),
        (lambda: claim_session(ledger, "new", "none"), "none", "host none is not registered; register the host first"),
        (lambda: renew_host(ledger, "none"), "none", "host none is not registered; register the host first"),
        (
            lambda: claim_session(ledger, "new", "brief"),
            "brief",
            (
                "the lease of host brief ended at 2026-01-05T08:00:10.000000Z; "
                "register the host again, which starts a new boot"
            ),
        ),
        (
            lambda: renew_host(ledger, "host-a", boot=7),
            "host-a",
            "boot 7 of host host-a is not the present one, which is 1; stop this process, or register the host again",
        ),
        (
            lambda: finish_session(ledger, done, "second"),
            "done",
            (
                "incarnation 1 of host-a has finished it with another result; "
                "keep the first result: a completion never changes"
            ),
        ),
        (
            lambda: finish_session(ledger, replace(done, host_id="host-b"), "first"),
            "done",
            f"stale or expired claim: {finished}; {again}",
        ),
        (
            lambda: renew_session(ledger, replace(claim, session_id="other")),
            "other",
            f"stale or expired claim: the ledger holds no claim of this session; {again}",
        ),
    ):
        with pytest.raises(Refusal) as refusal:
            call()
        assert str(refusal.value) == f"Session claim refused for {subject}: {sentence}."
    for malformed, error, text in (
        (lambda: renew_host(ledger, "host-a", boot="1"), TypeError, "boot must be a whole number, not str: '1'"),  # type: ignore[arg-type]
        (lambda: finish_session(ledger, claim, 3), TypeError, "result must be text, not int: 3"),  # type: ignore[arg-type]
        (lambda: finish_session(ledger, claim, "\ud800"), ValueError, r"result must be storable as UTF-8: '\ud800'"),
    ):
        with pytest.raises(error) as caught:
            malformed()
        assert str(caught.value) == text


def test_a_lease_lives_sixty_seconds_unless_it_is_told_otherwise(ledger: Ledger) -> None:
    register_host(ledger, "h")
    assert renew_host(ledger, "h", now=T0 + S).expires_at == T0 + 61 * S
    claim = claim_session(ledger, "s", "h")
    assert claim.expires_at == T0 + 60 * S
    assert renew_session(ledger, claim, now=T0 + 2 * S).expires_at == T0 + 62 * S
    assert register_host(ledger, "h", now=T0 + S).expires_at == T0 + 61 * S
    assert rows(ledger, "SELECT registered_at, renewals, boot FROM hosts") == [(to_text(T0 + S), 0, 2)]
