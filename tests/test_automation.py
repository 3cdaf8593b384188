"""The watcher: what one call does, what survives, and that every slot stands in the history exactly once."""

from __future__ import annotations

import contextlib
import json
import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sovereign_agent import automation
from sovereign_agent.automation import (
    AutomationResult,
    Condition,
    Fate,
    Handler,
    Payload,
    RunStatus,
    Status,
    WatchDecision,
    create_automation,
    disable,
    enable,
    history,
    list_automations,
    list_runs,
    renew_run,
    run_all_due,
    run_due,
    update,
)
from sovereign_agent.clock import to_text
from sovereign_agent.errors import Refusal
from sovereign_agent.ids import SeededIds
from sovereign_agent.ledger import Ledger
from sovereign_agent.schedule import Grid, next_slot, through
from sovereign_agent.trace import events

T0 = datetime(2026, 1, 5, 8, tzinfo=UTC)
DAY = 86400
W = "watcher"


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def watch(ledger: Ledger, automation_id: str = W, **options: Any) -> None:
    create_automation(
        ledger, automation_id, **{"interval_seconds": 60, "payload": "notify", "first_run_at": T0, "now": T0, **options}
    )


def fires(message: str = "low", **state: object) -> Condition:
    return lambda _: WatchDecision(True, message, dict(state))


def quiet(**state: object) -> Condition:
    return lambda _: WatchDecision(False, "", dict(state))


def counting(previous: dict[str, object]) -> WatchDecision:
    """Fires each time and counts the successes it has seen."""
    seen = previous.get("n", 0)
    assert isinstance(seen, int)
    return WatchDecision(True, "low", {"n": seen + 1})


def does_nothing(run_id: str, message: str) -> None:
    pass


def fails(run_id: str, message: str) -> None:
    raise OSError("supplier unreachable")


class Inbox(list[tuple[str, str]]):
    """A payload that keeps what it was given."""

    def __call__(self, run_id: str, message: str) -> None:
        self.append((run_id, message))


def call(
    ledger: Ledger, condition: Condition, payload: Payload = does_nothing, seconds: float = 0, automation_id: str = W
) -> AutomationResult:
    return run_due(ledger, automation_id, condition, payload, now=at(seconds))


def row(ledger: Ledger) -> Any:
    with ledger.read() as tx:
        return tx.one("SELECT * FROM automations WHERE automation_id = :id", id=W)


def state(ledger: Ledger) -> str:
    return str(row(ledger)["condition_state"])


def kinds(ledger: Ledger) -> list[str]:
    return [event.kind for event in events(ledger) if event.kind != "ledger.created"]


def fates(ledger: Ledger, automation_id: str = W) -> list[tuple[float, float, int, str]]:
    return [
        ((r.first_slot - T0).total_seconds(), (r.last_slot - T0).total_seconds(), r.slots, str(r.fate))
        for r in history(ledger, automation_id)
    ]


class Killed(BaseException):
    """Stands for a death that nobody could clean up after; `tests/test_automation_processes.py` uses real ones."""


def dies(ledger: Ledger) -> Payload:
    def payload(run_id: str, message: str) -> None:
        ledger.close()
        raise Killed

    return payload


# The three transitions


def test_a_quiet_tick_saves_state_and_due_time_but_no_run(ledger: Ledger) -> None:
    watch(ledger)
    result = call(ledger, quiet(stock=9, checks=1))
    assert (result.status, result.run_id) == (Status.NO_FIRE, None)
    assert state(ledger) == '{"checks":1,"stock":9}'
    assert row(ledger)["next_run_at"] == "2026-01-05T08:01:00.000000Z"
    assert list_runs(ledger) == ()


def test_a_payload_gets_the_run_id_and_success_commits_the_state(ledger: Ledger) -> None:
    watch(ledger)
    inbox = Inbox()
    result = call(ledger, fires("low", n=1), inbox)
    assert result.status is Status.SUCCEEDED
    assert inbox == [(result.run_id, "low")]
    assert state(ledger) == '{"n":1}'
    assert [run.status for run in list_runs(ledger)] == [RunStatus.SUCCEEDED]


def test_the_state_is_not_committed_before_the_payload_succeeded(ledger: Ledger) -> None:
    watch(ledger)
    seen: list[str] = []
    call(ledger, fires(n=1), lambda run_id, message: seen.append(state(ledger)))
    assert seen == ["{}"]


def test_failures_keep_the_state_and_disable_at_the_bound(ledger: Ledger) -> None:
    watch(ledger, max_failures=2)
    assert [call(ledger, counting, fails, s).status for s in (0, 60)] == [Status.FAILED, Status.FAILED]
    automation = list_automations(ledger)[0]
    assert (automation.enabled, automation.failure_count, state(ledger)) == (False, 2, "{}")
    assert automation.disabled_at == at(60)
    assert automation.disabled_reason == "2 failures in a row, the latest: OSError: supplier unreachable"
    assert call(ledger, counting, fails, 600).status is Status.DISABLED
    assert kinds(ledger)[-2:] == ["automation.failed", "automation.disabled"]


def test_a_success_resets_the_count(ledger: Ledger) -> None:
    watch(ledger, max_failures=2)
    for s, payload in ((0, fails), (60, does_nothing), (120, fails), (180, does_nothing)):
        call(ledger, counting, payload, s)
    assert list_automations(ledger)[0].enabled
    assert row(ledger)["failure_count"] == 0


def test_a_condition_gets_a_copy_of_the_state(ledger: Ledger) -> None:
    watch(ledger)
    call(ledger, quiet(items=[1]))

    def spoils(previous: dict[str, Any]) -> WatchDecision:
        previous["items"].append(2)
        previous["more"] = True
        raise LookupError

    call(ledger, spoils, seconds=60)
    assert state(ledger) == '{"items":[1]}'


# Before the condition is asked


def never(previous: dict[str, object]) -> WatchDecision:
    raise AssertionError("the condition must not be evaluated")


def test_not_due_and_disabled_change_nothing(ledger: Ledger) -> None:
    watch(ledger)
    call(ledger, quiet())
    before_it = tuple(row(ledger))
    assert call(ledger, never, seconds=59).status is Status.NOT_DUE
    assert tuple(row(ledger)) == before_it
    disable(ledger, W, now=at(59))
    before_it, events_before = tuple(row(ledger)), len(events(ledger))
    assert call(ledger, never, seconds=59).status is Status.DISABLED
    assert call(ledger, never, seconds=60).status is Status.DISABLED
    assert (tuple(row(ledger)), len(events(ledger))) == (before_it, events_before)


def test_polling_takes_no_write_lock(open_ledger: Callable[..., Ledger]) -> None:
    ledger = open_ledger(busy_timeout_seconds=0)
    watch(ledger, first_run_at=at(60))
    with open_ledger().write():
        assert call(ledger, never).status is Status.NOT_DUE


def test_a_live_run_is_running_and_its_condition_is_not_asked(ledger: Ledger, open_ledger: Any) -> None:
    watch(ledger)
    other = open_ledger()
    seen: list[AutomationResult] = []
    result = call(ledger, fires(), lambda run_id, message: seen.append(call(other, never, seconds=90)))
    assert result.status is Status.SUCCEEDED
    assert (seen[0].status, seen[0].run_id) == (Status.RUNNING, result.run_id)


def test_a_caller_of_callables_refuses_to_start_inside_a_transaction(ledger: Ledger) -> None:
    watch(ledger)
    with ledger.write(), pytest.raises(Refusal, match="cannot start inside a transaction"):
        call(ledger, never)
    with ledger.read(), pytest.raises(Refusal, match="cannot start inside a transaction"):
        run_all_due(ledger, {"notify": Handler(never, fails)}, now=T0)


def test_both_callables_run_outside_any_transaction(ledger: Ledger) -> None:
    watch(ledger)
    seen: list[bool] = []

    def condition(previous: dict[str, object]) -> WatchDecision:
        seen.append(ledger.in_transaction)
        return WatchDecision(True, "low", {})

    call(ledger, condition, lambda run_id, message: seen.append(ledger.in_transaction))
    assert seen == [False, False]


def test_a_payload_that_fails_inside_its_own_write_leaves_nothing_half_written(ledger: Ledger) -> None:
    watch(ledger)

    def payload(run_id: str, message: str) -> None:
        with ledger.write() as tx:
            tx.run("INSERT INTO settings (name, value) VALUES ('half', 'x')")
            raise OSError

    assert call(ledger, fires(), payload).status is Status.FAILED
    with ledger.read() as tx:
        assert tx.one("SELECT 1 FROM settings WHERE name = 'half'") is None


def test_an_unknown_automation_is_refused_and_recorded(ledger: Ledger) -> None:
    with pytest.raises(Refusal, match="Automation refused for nobody: there is no such automation"):
        call(ledger, never, automation_id="nobody")
    assert kinds(ledger) == ["refused"]


# One run id per slot and message


def test_a_failed_run_is_offered_again_under_the_same_id(ledger: Ledger) -> None:
    watch(ledger)
    inbox = Inbox()
    first = call(ledger, counting, fails)
    second = call(ledger, counting, inbox, 60)
    assert (second.status, second.run_id) == (Status.SUCCEEDED, first.run_id)
    assert inbox == [(first.run_id, "low")]
    (run,) = list_runs(ledger)
    assert (run.attempt, run.slot_at) == (2, T0)
    assert fates(ledger) == [(0, 0, 1, "SUCCEEDED"), (60, 60, 1, "COALESCED")]
    assert {record.run_id for record in history(ledger, W)} == {first.run_id}


def test_a_daily_watcher_retries_within_its_slot(ledger: Ledger) -> None:
    watch(ledger, interval_seconds=DAY, retry_seconds=300)
    first = call(ledger, fires(), fails, 10)
    waiting = call(ledger, never, seconds=309)
    assert (waiting.status, waiting.run_id) == (Status.NOT_DUE, None)
    errors: list[str | None] = []
    second = call(ledger, fires(), lambda run_id, message: errors.extend(run.error for run in list_runs(ledger)), 310)
    assert (second.status, second.run_id) == (Status.SUCCEEDED, first.run_id)
    assert errors == [None], "what the first attempt raised is no longer said of a run that is tried again"
    assert [event.detail["slots"] for event in events(ledger) if event.kind == "automation.claimed"] == [1, 0]
    assert row(ledger)["next_run_at"] == "2026-01-06T08:00:00.000000Z"
    assert fates(ledger) == [(0, 0, 1, "SUCCEEDED")]


def test_the_default_retry_comes_one_interval_after_the_failure(ledger: Ledger) -> None:
    watch(ledger)
    call(ledger, fires(), fails, 21)
    assert call(ledger, never, seconds=80).status is Status.NOT_DUE
    assert call(ledger, fires(), seconds=81).status is Status.SUCCEEDED
    assert row(ledger)["next_run_at"] == "2026-01-05T08:02:00.000000Z"


def test_a_retry_may_follow_at_once(ledger: Ledger) -> None:
    watch(ledger, retry_seconds=0)
    call(ledger, fires(), fails, 21)
    assert call(ledger, fires(), seconds=21).status is Status.SUCCEEDED


def test_another_message_closes_the_failed_run(ledger: Ledger) -> None:
    watch(ledger)
    first = call(ledger, fires("9 left"), fails)
    second = call(ledger, fires("5 left"), seconds=60)
    assert second.run_id != first.run_id
    assert [run.status for run in list_runs(ledger)] == [RunStatus.ABANDONED, RunStatus.SUCCEEDED]
    assert fates(ledger) == [(0, 0, 1, "ABANDONED"), (60, 60, 1, "SUCCEEDED")]


def test_another_message_within_the_slot_adds_no_slot(ledger: Ledger) -> None:
    watch(ledger, interval_seconds=DAY, retry_seconds=5)
    call(ledger, fires("9 left"), fails)
    call(ledger, fires("5 left"), seconds=5)
    assert fates(ledger) == [(0, 0, 1, "ABANDONED"), (0, 0, 0, "SUCCEEDED")]


def test_a_condition_that_no_longer_fires_closes_the_failed_run(ledger: Ledger) -> None:
    watch(ledger)
    call(ledger, fires(), fails)
    assert call(ledger, quiet(ok=True), seconds=60).status is Status.NO_FIRE
    assert [run.status for run in list_runs(ledger)] == [RunStatus.ABANDONED]
    assert fates(ledger) == [(0, 0, 1, "ABANDONED"), (60, 60, 1, "NO_FIRE")]
    assert state(ledger) == '{"ok":true}'
    assert row(ledger)["failure_count"] == 1  # a quiet tick is no success of the payload


def test_each_slot_of_its_own_gets_a_new_run_id(ledger: Ledger) -> None:
    watch(ledger)
    assert call(ledger, fires()).run_id != call(ledger, fires(), seconds=60).run_id


# A lease that runs out


def killed_at_8(ledger: Ledger, open_ledger: Any, **options: Any) -> Ledger:
    watch(ledger, **options)
    with pytest.raises(Killed):
        call(ledger, counting, dies(ledger))
    reopened: Ledger = open_ledger()
    return reopened


def test_a_killed_run_is_offered_again_and_the_state_is_the_old_one(ledger: Ledger, open_ledger: Any) -> None:
    """Slot 08:00, killed in the payload, restarted at 08:03: the same run id, and the interruption is listed."""
    ledger = killed_at_8(ledger, open_ledger, interval_seconds=3600)
    (run,) = list_runs(ledger)
    assert call(ledger, never, seconds=119).status is Status.RUNNING
    seen: list[object] = []

    def condition(previous: dict[str, object]) -> WatchDecision:
        seen.append((previous, list_runs(ledger)[0].lease_expired_at, history(ledger, W)[0].detail))
        return counting(previous)

    result = call(ledger, condition, seconds=180)
    assert (result.status, result.run_id) == (Status.SUCCEEDED, run.run_id)
    assert seen == [({}, at(180), "attempt 1; interrupted 1x")]
    assert (list_runs(ledger)[0].attempt, state(ledger)) == (2, '{"n":1}')
    assert row(ledger)["failure_count"] == 0
    assert "automation.lease_expired" in kinds(ledger)


def test_another_actors_lease_is_given_the_clock_skew(ledger: Ledger, open_ledger: Any) -> None:
    ledger = killed_at_8(ledger, open_ledger)
    other = open_ledger(actor="host-b")
    assert call(other, never, seconds=124.9).status is Status.RUNNING
    assert call(other, fires(), seconds=125).status is Status.SUCCEEDED


def test_a_payload_that_was_taken_over_cannot_commit(ledger: Ledger, open_ledger: Any) -> None:
    watch(ledger)
    other = open_ledger()
    taken: list[AutomationResult] = []

    def slow(run_id: str, message: str) -> None:
        taken.append(call(other, fires("low", by="other"), seconds=130))

    result = call(ledger, fires("low", by="slow"), slow)
    assert (result.status, taken[0].status) == (Status.REPLAYED, Status.SUCCEEDED)
    assert result.run_id == taken[0].run_id
    assert state(ledger) == '{"by":"other"}'


def test_a_failure_that_was_taken_over_neither_counts_nor_disables(ledger: Ledger, open_ledger: Any) -> None:
    watch(ledger, max_failures=1)
    other = open_ledger()

    def slow(run_id: str, message: str) -> None:
        call(other, fires(), seconds=130)
        raise OSError

    assert call(ledger, fires(), slow).status is Status.REPLAYED
    assert (row(ledger)["enabled"], row(ledger)["failure_count"]) == (1, 0)


def test_a_call_taken_over_by_an_attempt_that_still_runs_cannot_commit(ledger: Ledger, open_ledger: Any) -> None:
    """The run row says RUNNING, but for the successor: it is the attempt that fences."""
    watch(ledger)
    begun, taken = threading.Event(), threading.Event()
    slow: list[AutomationResult] = []

    def first(run_id: str, message: str) -> None:
        begun.set()
        assert taken.wait(30)

    def call_first() -> None:
        slow.append(call(open_ledger(), fires("low", by="slow"), first))

    thread = threading.Thread(target=call_first)
    thread.start()
    assert begun.wait(30)

    def second(run_id: str, message: str) -> None:
        taken.set()
        thread.join()

    result = call(ledger, fires("low", by="second"), second, 130)
    assert [slow[0].status, result.status] == [Status.REPLAYED, Status.SUCCEEDED]
    assert state(ledger) == '{"by":"second"}'


def test_an_overlong_payload_that_nobody_took_over_still_commits(ledger: Ledger, clock: Any) -> None:
    watch(ledger)
    result = run_due(ledger, W, fires("low", n=1), lambda run_id, message: clock.advance(1000))
    assert result.status is Status.SUCCEEDED
    assert row(ledger)["next_run_at"] == "2026-01-05T08:17:00.000000Z"
    assert fates(ledger) == [(0, 0, 1, "SUCCEEDED"), (60, 960, 16, "COALESCED")]


def test_renewing_keeps_a_long_payload_its_run(ledger: Ledger, open_ledger: Any) -> None:
    watch(ledger)
    other = open_ledger()
    seen: list[Status] = []

    def long(run_id: str, message: str) -> None:
        for minute in (1, 2, 3, 4):
            assert renew_run(ledger, run_id, now=at(60 * minute)) == at(60 * minute + 120)
            seen.append(call(other, never, seconds=60 * minute + 100).status)

    events_before = len(events(ledger))
    assert call(ledger, fires(), long).status is Status.SUCCEEDED
    assert seen == [Status.RUNNING] * 4
    assert len(events(ledger)) == events_before + 2  # claimed, succeeded: renewals are a counter
    with ledger.read() as tx:
        assert [r["renewals"] for r in tx.all("SELECT renewals FROM automation_runs")] == [4]


def test_a_renewal_never_shortens_a_lease(ledger: Ledger) -> None:
    watch(ledger)
    ends: list[datetime] = []
    call(ledger, fires(), lambda run_id, message: ends.append(renew_run(ledger, run_id, now=at(-60))))
    assert ends == [at(120)]


def test_a_lease_that_was_found_over_is_marked_and_never_lives_again(ledger: Ledger, open_ledger: Any) -> None:
    ledger = killed_at_8(ledger, open_ledger)
    (run,) = list_runs(ledger)
    with pytest.raises(Refusal, match="its lease is over"):
        renew_run(ledger, run.run_id, now=at(121))
    assert list_runs(ledger)[0].lease_expired_at == at(121)
    with pytest.raises(Refusal, match="its lease is over"):
        renew_run(ledger, run.run_id, now=at(1))
    assert list_runs(ledger)[0].lease_expired_at == at(121)
    assert call(ledger, fires(), seconds=2).status in {Status.SUCCEEDED, Status.FAILED}


def test_a_taken_over_payload_cannot_renew_its_successors_lease(ledger: Ledger, open_ledger: Any) -> None:
    watch(ledger)
    other = open_ledger()
    refusals: list[str] = []

    def outer(run_id: str, message: str) -> None:
        with pytest.raises(Killed):
            call(other, fires(), dies(other), 130)
        with pytest.raises(Refusal) as refused:
            renew_run(ledger, run_id, now=at(131))
        refusals.append(refused.value.why)

    call(ledger, fires(), outer)
    assert refusals == ["it was taken over by attempt 2"]


def test_a_run_that_ended_or_never_was_cannot_be_renewed(ledger: Ledger) -> None:
    watch(ledger)
    run_id = call(ledger, fires()).run_id
    assert run_id is not None
    with pytest.raises(Refusal, match="ended as SUCCEEDED"):
        renew_run(ledger, run_id, now=T0)
    with pytest.raises(Refusal, match="there is no such run"):
        renew_run(ledger, "run-0", now=T0)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_frees_the_run_for_retry_and_goes_on(ledger: Ledger, stop: type[BaseException]) -> None:
    watch(ledger, max_failures=1)

    def payload(run_id: str, message: str) -> None:
        raise stop

    with pytest.raises(stop):
        call(ledger, counting, payload)
    (run,) = list_runs(ledger)
    assert (run.status, run.interruptions, run.error) == (RunStatus.FAILED, 1, f"interrupted by {stop.__name__}")
    again = call(ledger, counting)
    assert (again.status, again.run_id) == (Status.SUCCEEDED, run.run_id)
    assert state(ledger) == '{"n":1}'


def test_an_interrupted_condition_leaves_no_trace(ledger: Ledger) -> None:
    watch(ledger)
    before_it = tuple(row(ledger))

    def condition(previous: dict[str, object]) -> WatchDecision:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call(ledger, condition)
    assert tuple(row(ledger)) == before_it


def test_a_ledger_that_stays_busy_at_the_commit_leaves_the_run_to_its_lease(open_ledger: Any) -> None:
    ledger, blocker = open_ledger(busy_timeout_seconds=0), open_ledger()
    watch(ledger)
    with contextlib.ExitStack() as held:
        with pytest.raises(Refusal, match="database is locked") as refused:
            call(ledger, fires("low", n=1), lambda run_id, message: held.enter_context(blocker.write()))
        assert "has run; it is offered again" in refused.value.__notes__[0]
    (run,) = list_runs(ledger)
    assert (run.status, state(ledger)) == (RunStatus.RUNNING, "{}")
    again = call(ledger, fires("low", n=1), seconds=121)
    assert (again.status, again.run_id) == (Status.SUCCEEDED, run.run_id)


def test_a_commit_that_meets_a_busy_ledger_is_tried_again(open_ledger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, blocker, held = open_ledger(busy_timeout_seconds=0), open_ledger(), contextlib.ExitStack()
    watch(ledger)
    write = ledger.write

    @contextlib.contextmanager
    def frees_the_lock_when_refused() -> Iterator[Any]:
        try:
            with write() as tx:
                yield tx
        except Refusal:
            held.close()
            raise

    monkeypatch.setattr(ledger, "write", frees_the_lock_when_refused)
    with held:
        result = call(ledger, fires("low", n=1), lambda run_id, message: held.enter_context(blocker.write()))
    assert (result.status, state(ledger)) == (Status.SUCCEEDED, '{"n":1}')


# Contenders


def contend(ledger: Ledger, other: Ledger, inner: Condition, outer: Condition, meanwhile: Payload) -> list[Status]:
    """Let a second call do everything while the first is inside its condition."""
    seen: list[Status] = []

    def condition(previous: dict[str, object]) -> WatchDecision:
        seen.append(call(other, inner, meanwhile).status)
        return outer(previous)

    seen.append(call(ledger, condition, fails).status)
    return seen


def test_a_slot_that_ended_while_the_condition_ran_is_replayed(ledger: Ledger, open_ledger: Any) -> None:
    watch(ledger)
    assert contend(ledger, open_ledger(), counting, counting, does_nothing) == [Status.SUCCEEDED, Status.REPLAYED]
    assert (state(ledger), len(list_runs(ledger))) == ('{"n":1}', 1)


def test_a_quiet_contender_cannot_overwrite_a_success(ledger: Ledger, open_ledger: Any) -> None:
    watch(ledger)
    assert contend(ledger, open_ledger(), counting, quiet(old=1), does_nothing)[1] is Status.REPLAYED
    assert state(ledger) == '{"n":1}'


def test_a_failing_contender_counts_nothing(ledger: Ledger, open_ledger: Any) -> None:
    watch(ledger)

    def broken(previous: dict[str, object]) -> WatchDecision:
        raise LookupError

    assert contend(ledger, open_ledger(), counting, broken, does_nothing)[1] is Status.REPLAYED
    assert row(ledger)["failure_count"] == 0


def test_a_claim_lost_to_a_live_run_is_running(ledger: Ledger, open_ledger: Any) -> None:
    watch(ledger)
    other = open_ledger()

    def condition(previous: dict[str, object]) -> WatchDecision:
        with pytest.raises(Killed):
            call(other, fires(), dies(other))
        return WatchDecision(True, "low", {})

    lost = call(ledger, condition, fails)
    assert (lost.automation_id, lost.status, lost.run_id) == (W, Status.RUNNING, list_runs(ledger)[0].run_id)


@pytest.mark.parametrize(
    ("edit", "status"),
    [
        (lambda ledger: disable(ledger, W, now=T0), Status.DISABLED),
        (lambda ledger: update(ledger, W, condition_state={"reset": 1}, now=T0), Status.REPLAYED),
    ],
)
def test_the_claim_checks_again_what_changed_while_the_condition_ran(
    ledger: Ledger, edit: Callable[[Ledger], object], status: Status
) -> None:
    watch(ledger)

    def condition(previous: dict[str, object]) -> WatchDecision:
        edit(ledger)
        return WatchDecision(True, "low", {"n": 1})

    assert call(ledger, condition, fails).status is status
    assert list_runs(ledger) == ()
    assert call(ledger, quiet(ok=1)).status is (Status.DISABLED if status is Status.DISABLED else Status.NO_FIRE)


# Edits during a run


@pytest.mark.parametrize("payload", [does_nothing, fails])
def test_a_reset_during_a_run_is_what_the_next_condition_sees(ledger: Ledger, payload: Payload) -> None:
    watch(ledger, max_failures=1)

    def edits(run_id: str, message: str) -> None:
        update(ledger, W, condition_state={"reset": 1}, now=T0)
        payload(run_id, message)

    result = call(ledger, fires("low", n=1), edits)
    assert result.status is (Status.SUCCEEDED if payload is does_nothing else Status.FAILED)
    assert "the definition changed meanwhile" in result.detail
    ended = events(ledger)[-1]
    kept = ended.detail["state_committed" if payload is does_nothing else "counted"]
    assert (ended.kind, kept) == (f"automation.{result.status.lower()}", False)
    assert (row(ledger)["failure_count"], row(ledger)["enabled"]) == (0, 1)
    seen: list[dict[str, object]] = []

    def condition(previous: dict[str, object]) -> WatchDecision:
        seen.append(previous)
        return WatchDecision(False, "", previous)

    call(ledger, condition, seconds=60)
    assert seen == [{"reset": 1}]


def test_a_slot_that_succeeded_under_an_older_definition_is_no_longer_due(ledger: Ledger) -> None:
    watch(ledger)
    call(ledger, fires(), lambda run_id, message: update(ledger, W, max_failures=9, now=T0))
    assert list_automations(ledger)[0].next_run_at == at(60)
    assert call(ledger, never, seconds=59).status is Status.NOT_DUE


def test_a_due_time_set_during_a_run_is_kept(ledger: Ledger) -> None:
    watch(ledger)
    call(ledger, fires(), lambda run_id, message: update(ledger, W, next_run_at=at(DAY), now=T0))
    assert list_automations(ledger)[0].next_run_at == at(DAY)
    assert call(ledger, never, seconds=3600).status is Status.NOT_DUE  # asked for, so no sign of a wrong clock
    assert call(ledger, quiet(), seconds=DAY).status is Status.NO_FIRE
    assert fates(ledger) == [(0, 0, 1, "SUCCEEDED"), (60, DAY - 60, 1439, "SKIPPED"), (DAY, DAY, 1, "NO_FIRE")]


def test_switching_off_during_a_run_lets_it_finish(ledger: Ledger) -> None:
    watch(ledger)
    result = call(ledger, fires("low", n=1), lambda run_id, message: disable(ledger, W, now=T0))
    assert (result.status, state(ledger)) == (Status.SUCCEEDED, '{"n":1}')
    assert call(ledger, never, seconds=60).status is Status.DISABLED


# Downtime


def test_three_days_down_are_one_run_on_the_original_grid(ledger: Ledger) -> None:
    watch(ledger)
    inbox = Inbox()
    call(ledger, fires(), inbox, 3 * DAY + 7)
    assert call(ledger, never, seconds=3 * DAY + 59).status is Status.NOT_DUE
    assert len(inbox) == 1
    assert list_automations(ledger)[0].next_run_at == at(3 * DAY + 60)
    assert fates(ledger) == [(0, 3 * DAY - 60, 4320, "COALESCED"), (3 * DAY, 3 * DAY, 1, "SUCCEEDED")]
    assert [record.late_seconds for record in history(ledger, W)] == [3 * DAY + 7, 7]


def test_an_hour_down_is_one_evaluation(ledger: Ledger) -> None:
    watch(ledger, interval_seconds=1)
    asked: list[int] = []

    def condition(previous: dict[str, object]) -> WatchDecision:
        asked.append(1)
        return WatchDecision(False, "", {})

    call(ledger, condition, seconds=3600)
    call(ledger, never, seconds=3600.5)
    assert len(asked) == 1
    assert fates(ledger) == [(0, 3539, 3540, "COALESCED"), (3540, 3600, 61, "NO_FIRE")]


def test_a_late_slot_runs_once_and_its_lateness_is_recorded(ledger: Ledger) -> None:
    """Slot 21:00 every 12 hours, down from 20:59:50 to 21:00:21."""
    nine = datetime(2026, 1, 5, 21, tzinfo=UTC)
    watch(ledger, interval_seconds=12 * 3600, first_run_at=nine, grace_seconds=10)
    assert call(ledger, never, seconds=13 * 3600 - 10).status is Status.NOT_DUE
    assert call(ledger, fires(), seconds=13 * 3600 + 21).status is Status.SUCCEEDED
    (record,) = history(ledger, W)
    assert (record.first_slot, record.slots, record.fate, record.late_seconds) == (nine, 1, Fate.SUCCEEDED, 21)
    assert list_automations(ledger)[0].next_run_at == nine + timedelta(hours=12)


def test_with_skip_a_late_slot_is_recorded_as_missed(ledger: Ledger) -> None:
    nine = datetime(2026, 1, 5, 21, tzinfo=UTC)
    watch(ledger, interval_seconds=12 * 3600, first_run_at=nine, grace_seconds=10, catch_up="skip")
    result = call(ledger, never, seconds=13 * 3600 + 21)
    assert (result.status, result.detail[:21]) == (Status.NOT_DUE, "1 slots were missed; ")
    (record,) = history(ledger, W)
    assert (record.first_slot, record.slots, record.fate, record.late_seconds) == (nine, 1, Fate.MISSED, 21)
    assert list_automations(ledger)[0].next_run_at == nine + timedelta(hours=12)
    assert "automation.missed" in kinds(ledger)


def test_skip_still_runs_what_is_within_the_grace_period(ledger: Ledger) -> None:
    watch(ledger, catch_up="skip", grace_seconds=90)
    assert call(ledger, fires(), seconds=3600 + 30).status is Status.SUCCEEDED
    assert fates(ledger) == [
        (0, 3480, 59, "MISSED"),
        (3540, 3540, 1, "COALESCED"),
        (3600, 3600, 1, "SUCCEEDED"),
    ]


def test_skip_does_not_drop_a_run_that_was_claimed_in_time(ledger: Ledger, open_ledger: Any) -> None:
    ledger = killed_at_8(ledger, open_ledger, catch_up="skip", grace_seconds=1)
    (run,) = list_runs(ledger)
    assert call(ledger, fires(), seconds=DAY + 30).run_id == run.run_id
    assert fates(ledger) == [(0, 0, 1, "SUCCEEDED"), (60, DAY, 1440, "COALESCED")]


def test_two_hundred_quiet_ticks_are_one_range_and_one_event(ledger: Ledger) -> None:
    watch(ledger)
    for tick in range(200):
        call(ledger, quiet(), seconds=60 * tick + tick % 50)
    assert fates(ledger) == [(0, 199 * 60, 200, "NO_FIRE")]
    assert kinds(ledger) == ["automation.created", "automation.quieted"]
    assert row(ledger)["quiet_ticks"] == 200


# A clock that steps


def test_a_clock_that_was_a_day_ahead_silences_nothing(ledger: Ledger) -> None:
    watch(ledger)
    call(ledger, fires(), seconds=DAY)
    inbox = Inbox()
    result = call(ledger, never, inbox, 30)
    assert (result.status, result.detail) == (
        Status.NOT_DUE,
        "the clock stepped back; next due 2026-01-05T08:01:00.000000Z",
    )
    assert call(ledger, fires(), inbox, 60).status is Status.SUCCEEDED
    assert len(inbox) == 1
    (event,) = [event for event in events(ledger) if event.kind == "clock.stepped_back"]
    assert event.detail == {
        "due_was": "2026-01-06T08:01:00.000000Z",
        "due_is": "2026-01-05T08:01:00.000000Z",
        "epoch": 1,
    }
    assert [(record.epoch, record.slots) for record in history(ledger, W)] == [(0, 1440), (0, 1), (1, 1)]


def test_a_due_time_is_never_pulled_back_before_the_first_run(ledger: Ledger) -> None:
    watch(ledger, first_run_at=at(3600))
    assert call(ledger, never, seconds=-DAY).status is Status.NOT_DUE
    assert list_automations(ledger)[0].next_run_at == at(3600)
    call(ledger, quiet(), seconds=DAY)
    call(ledger, never, seconds=-DAY)
    assert list_automations(ledger)[0].next_run_at == at(3600)


def test_a_lease_set_by_a_clock_ahead_lasts_no_longer_than_any_lease(ledger: Ledger, open_ledger: Any) -> None:
    watch(ledger)
    with pytest.raises(Killed):
        call(ledger, fires(), dies(ledger), DAY)
    ledger = open_ledger()
    assert call(ledger, never, seconds=0).status is Status.RUNNING
    assert "clock.stepped_back" in kinds(ledger)
    assert call(ledger, never, seconds=119).status is Status.RUNNING
    assert call(ledger, fires(), seconds=120).status is Status.SUCCEEDED
    assert [run.attempt for run in list_runs(ledger)] == [2]
    assert call(ledger, never, seconds=130).status is Status.NOT_DUE
    assert list_automations(ledger)[0].next_run_at == at(180)


def test_a_long_retry_is_no_sign_of_a_wrong_clock(ledger: Ledger) -> None:
    watch(ledger, retry_seconds=3600)
    call(ledger, fires(), fails)
    assert call(ledger, never, seconds=60).status is Status.NOT_DUE
    assert "clock.stepped_back" not in kinds(ledger)
    assert call(ledger, fires(), seconds=3600).status is Status.SUCCEEDED


# A condition that is broken


BROKEN: list[Callable[[dict[str, object]], Any]] = [
    lambda _: 1 / 0,
    lambda _: None,
    lambda _: (True, "low", {}),
    lambda _: WatchDecision(1, "low", {}),  # type: ignore[arg-type]  # what a caller without a type checker does
    lambda _: WatchDecision(True, None, {}),  # type: ignore[arg-type]  # same
    lambda _: WatchDecision(True, "\ud800", {}),
    lambda _: WatchDecision(True, "low", [1]),  # type: ignore[arg-type]  # same
    lambda _: WatchDecision(False, "", {"a": float("nan")}),
    lambda _: WatchDecision(False, "", {"a": "x" * 16_384}),
    lambda _: WatchDecision(False, "", {1: "a"}),  # type: ignore[dict-item]  # same
]


@pytest.mark.parametrize("condition", BROKEN)
def test_a_broken_condition_is_a_counted_failure_without_a_run(ledger: Ledger, condition: Condition) -> None:
    watch(ledger, max_failures=2)
    result = call(ledger, condition, seconds=10)
    assert (result.status, result.run_id) == (Status.FAILED, None)
    assert (row(ledger)["failure_count"], state(ledger), list_runs(ledger)) == (1, "{}", ())
    assert call(ledger, never, seconds=59).status is Status.NOT_DUE  # the next grid slot, no tight loop
    assert "automation.condition_failed" in kinds(ledger)
    assert call(ledger, condition, seconds=60).status is Status.FAILED
    assert call(ledger, never, seconds=120).status is Status.DISABLED
    assert fates(ledger) == [(0, 60, 2, "CONDITION_FAILED")]


def test_a_quiet_tick_forgives_failures_of_the_condition_only(ledger: Ledger) -> None:
    watch(ledger, max_failures=3)
    steps: list[tuple[Condition, Payload, int]] = [
        (fires(), fails, 1),
        (BROKEN[0], fails, 2),
        (quiet(), fails, 1),
        (BROKEN[0], fails, 2),
        (fires(), fails, 3),
    ]
    for tick, (condition, payload, count) in enumerate(steps):
        call(ledger, condition, payload, 60 * tick)
        assert row(ledger)["failure_count"] == count
    assert row(ledger)["enabled"] == 0


def test_a_broken_condition_leaves_an_unfinished_run_open(ledger: Ledger) -> None:
    watch(ledger)
    first = call(ledger, fires(), fails)
    assert call(ledger, BROKEN[0], seconds=60).status is Status.FAILED
    again = call(ledger, fires(), seconds=120)
    assert (again.status, again.run_id) == (Status.SUCCEEDED, first.run_id)
    assert sum(slots for _, _, slots, _ in fates(ledger)) == 3


def test_events_hold_no_content(ledger: Ledger) -> None:
    watch(ledger)

    def leaks(run_id: str, message: str) -> None:
        raise OSError("token=hunter2")

    call(ledger, fires("message-hunter2", secret="state-hunter2"), leaks)
    with ledger.read() as tx:
        assert "hunter2" not in "".join(r["detail"] for r in tx.all("SELECT detail FROM events"))


def test_the_runs_of_one_automation_are_told_from_those_of_all(ledger: Ledger) -> None:
    for name in ("a", "b"):
        watch(ledger, name)
        call(ledger, fires(), automation_id=name)
    assert [run.automation_id for run in list_runs(ledger, "b")] == ["b"]
    assert [run.automation_id for run in list_runs(ledger)] == ["a", "b"]


# Definitions


def test_creating_again_with_the_same_definition_returns_it(ledger: Ledger) -> None:
    watch(ledger)
    call(ledger, fires("low", n=1))
    again = create_automation(ledger, W, interval_seconds=60, payload="notify", now=at(999))
    assert (again.first_run_at, again.condition_state, again.version) == (T0, {"n": 1}, 1)
    watch(ledger)
    assert kinds(ledger).count("automation.created") == 1


def test_creating_again_with_another_definition_names_the_fields(ledger: Ledger) -> None:
    watch(ledger)
    with pytest.raises(
        Refusal, match=r"another definition \(first_run_at, interval_seconds, max_failures\)"
    ) as refused:
        watch(ledger, interval_seconds=61, max_failures=4, first_run_at=at(1))
    assert refused.value.category == "automation"
    assert kinds(ledger)[-1] == "refused"
    with pytest.raises(Refusal, match=r"\(catch_up, grace_seconds, lease_seconds, payload, retry_seconds\)"):
        watch(ledger, catch_up="skip", grace_seconds=1, lease_seconds=1, payload="x", retry_seconds=1)


def test_without_a_first_run_the_first_slot_is_now(ledger: Ledger, clock: Any) -> None:
    automation = create_automation(ledger, W, interval_seconds=60, payload="notify")
    assert (automation.first_run_at, automation.next_run_at) == (T0, T0)


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("interval_seconds", 0.5, ValueError),
        ("interval_seconds", True, TypeError),
        ("interval_seconds", 10**14, ValueError),
        ("interval_seconds", float("nan"), ValueError),
        ("interval_seconds", "60", TypeError),
        ("max_failures", 0, ValueError),
        ("max_failures", 1.5, TypeError),
        ("catch_up", "twice", ValueError),
        ("grace_seconds", -1, ValueError),
        ("lease_seconds", 0, ValueError),
        ("retry_seconds", -1, ValueError),
        ("payload", " ", ValueError),
        ("first_run_at", datetime(2026, 1, 5), ValueError),
        ("first_run_at", "2026-01-05", TypeError),
        ("now", datetime(2026, 1, 5), ValueError),
    ],
)
def test_a_malformed_definition_is_an_error_that_names_the_argument(
    ledger: Ledger, option: str, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=option):
        watch(ledger, **{option: value})
    assert list_automations(ledger) == ()


@pytest.mark.parametrize("automation_id", ["", "  ", "a\nb", "x" * 201])
def test_an_id_is_checked(ledger: Ledger, automation_id: str) -> None:
    with pytest.raises(ValueError, match="automation_id"):
        watch(ledger, automation_id)


def test_a_fraction_of_a_second_is_kept(ledger: Ledger) -> None:
    watch(ledger, interval_seconds=1.9)
    call(ledger, quiet())
    assert list_automations(ledger)[0].next_run_at == at(1.9)


def test_switching_on_again_resets_the_count_and_records_the_pause(ledger: Ledger) -> None:
    watch(ledger)
    disable(ledger, W, reason="supplier closed", now=at(0))
    assert list_automations(ledger)[0].disabled_reason == "supplier closed"
    automation = enable(ledger, W, now=at(150))
    assert (automation.enabled, automation.disabled_reason, automation.next_run_at) == (True, None, at(180))
    assert fates(ledger) == [(0, 120, 3, "DISABLED")]
    assert kinds(ledger)[-2:] == ["automation.disabled", "automation.enabled"]
    assert enable(ledger, W, now=at(999)) == automation
    assert call(ledger, never, seconds=179).status is Status.NOT_DUE


def test_switching_on_after_failures_offers_the_same_run_at_once(ledger: Ledger) -> None:
    watch(ledger, max_failures=1)
    first = call(ledger, fires(), fails)
    enable(ledger, W, now=at(600))
    assert row(ledger)["failure_count"] == 0
    assert call(ledger, fires(), seconds=600).run_id == first.run_id
    assert fates(ledger) == [(0, 0, 1, "SUCCEEDED"), (60, 600, 10, "COALESCED")]


def test_a_rewound_due_time_advances_past_what_ran(ledger: Ledger) -> None:
    watch(ledger)
    call(ledger, fires())
    assert update(ledger, W, next_run_at=T0, now=at(1)).next_run_at == at(60)
    assert call(ledger, never, seconds=59).status is Status.NOT_DUE
    assert call(ledger, fires(), seconds=60).status is Status.SUCCEEDED


def test_an_operator_may_ask_for_an_extra_slot_at_once(ledger: Ledger) -> None:
    watch(ledger, interval_seconds=3600)
    call(ledger, quiet())
    update(ledger, W, next_run_at=at(100), now=at(100))
    assert call(ledger, fires(), seconds=100).status is Status.SUCCEEDED
    assert list_automations(ledger)[0].next_run_at == at(3600)
    assert fates(ledger) == [(0, 0, 1, "NO_FIRE"), (100, 100, 1, "SUCCEEDED")]


def test_a_retry_may_be_moved(ledger: Ledger) -> None:
    watch(ledger, interval_seconds=3600)
    first = call(ledger, fires(), fails)
    update(ledger, W, next_run_at=at(10), now=at(10))
    assert call(ledger, fires(), seconds=10).run_id == first.run_id
    assert list_automations(ledger)[0].next_run_at == at(3600)


def test_a_new_interval_takes_effect_after_now(ledger: Ledger) -> None:
    watch(ledger, interval_seconds=3600)
    call(ledger, quiet())
    assert update(ledger, W, interval_seconds=60, now=at(1000)).next_run_at == at(1020)
    assert update(ledger, W, interval_seconds=DAY, now=at(1001)).next_run_at == at(DAY)
    call(ledger, quiet(), seconds=DAY)
    assert fates(ledger) == [(0, DAY, 2, "NO_FIRE")]


def test_a_slot_that_is_due_stays_due_under_a_new_interval(ledger: Ledger) -> None:
    watch(ledger, interval_seconds=3600)
    call(ledger, quiet())
    update(ledger, W, interval_seconds=1700, now=at(3700))
    assert call(ledger, fires(), seconds=3700).status is Status.SUCCEEDED
    assert fates(ledger)[-1] == (3600, 3600, 1, "SUCCEEDED")
    assert list_automations(ledger)[0].next_run_at == at(5100)


def test_an_update_raises_the_version_and_is_checked(ledger: Ledger) -> None:
    watch(ledger)
    assert update(ledger, W, now=T0).version == 1
    automation = update(ledger, W, payload="other", max_failures=9, condition_state={"a": 1}, now=T0)
    assert (automation.version, automation.payload, automation.max_failures) == (2, "other", 9)
    assert automation.condition_state == {"a": 1}
    (event,) = [event for event in events(ledger) if event.kind == "automation.updated"]
    assert event.detail == {"version": 2, "fields": ["payload", "max_failures", "condition_state"]}
    with pytest.raises(TypeError, match="condition_state"):
        update(ledger, W, condition_state=[1], now=T0)  # type: ignore[arg-type]  # malformed on purpose
    with pytest.raises(ValueError, match="next_run_at must be aware"):
        update(ledger, W, next_run_at=datetime(2026, 1, 5), now=T0)
    with pytest.raises(Refusal, match="no such automation"):
        update(ledger, "nobody", max_failures=1, now=T0)


def test_a_due_time_moved_by_hand_behind_the_history_is_put_right(ledger: Ledger) -> None:
    watch(ledger)
    call(ledger, fires())
    with ledger.write() as tx:
        tx.run("UPDATE automations SET next_run_at = first_run_at")
    assert call(ledger, never, seconds=1).status is Status.NOT_DUE
    assert list_automations(ledger)[0].next_run_at == at(60)


# All that is due


def test_all_due_goes_on_after_failures_and_keeps_its_order(ledger: Ledger) -> None:
    for name, first in (("b", 0), ("a", 0), ("later", 60), ("early", -60), ("broken", 0), ("off", 0)):
        watch(ledger, name, first_run_at=at(first), payload=name)
    disable(ledger, "off", now=T0)
    inbox = Inbox()
    handlers = {name: Handler(fires(name), inbox) for name in ("b", "later", "early", "off")}
    handlers["a"] = Handler(fires("a"), fails)
    handlers["broken"] = Handler(BROKEN[0], inbox)
    results = run_all_due(ledger, handlers, now=T0)
    assert [(result.automation_id, result.status) for result in results] == [
        ("early", Status.SUCCEEDED),
        ("a", Status.FAILED),
        ("b", Status.SUCCEEDED),
        ("broken", Status.FAILED),
    ]
    assert [message for _, message in inbox] == ["early", "b"]


def test_a_due_automation_without_a_handler_is_reported(ledger: Ledger) -> None:
    watch(ledger, "a", payload="gone")
    watch(ledger, "b")
    first, second = run_all_due(ledger, {"notify": Handler(quiet(), fails)}, now=T0)
    assert (first.automation_id, first.status, first.run_id) == ("a", Status.FAILED, None)
    assert first.detail == "no handler for payload gone; nothing was counted"
    assert second.status is Status.NO_FIRE
    automation = list_automations(ledger)[0]
    assert (automation.failure_count, automation.next_run_at) == (0, T0)


def test_all_due_finds_what_a_wrong_clock_pushed_away(ledger: Ledger) -> None:
    watch(ledger)
    handlers = {"notify": Handler(fires(), does_nothing)}
    run_all_due(ledger, handlers, now=at(DAY))
    assert [result.status for result in run_all_due(ledger, handlers, now=at(30))] == [Status.NOT_DUE]
    assert [result.status for result in run_all_due(ledger, handlers, now=at(60))] == [Status.SUCCEEDED]
    assert run_all_due(ledger, handlers, now=at(61)) == ()


def considered(ledger: Ledger, now: datetime) -> list[str]:
    """Ask `enter`, the plain definition, about every enabled row, the longest due first."""
    found = []
    with ledger.read() as tx:
        for row in tx.all("SELECT * FROM automations WHERE enabled = 1 ORDER BY next_run_at, automation_id"):
            one, run = automation._automation(row), automation._open_run(tx, row["automation_id"])
            entry = automation.enter(one, run, now, actor=ledger.actor, skew=ledger.max_clock_skew)
            if entry.answer is not Status.NOT_DUE or entry.writes:
                found.append(one.automation_id)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_all_due_considers_what_the_plain_definition_considers(ledger: Ledger, seed: int) -> None:
    """Due times, floors and leases around every border, runs open or over, rows switched off."""
    source = random.Random(seed)
    skew = ledger.max_clock_skew.total_seconds()
    for number in range(60):
        interval, name = source.choice((60, 86_400)), f"w{number}"
        watch(ledger, name, interval_seconds=interval, retry_seconds=source.choice((None, 7200)))
        near = [offset + tick for offset in (0, interval, interval + skew, 7200 + skew) for tick in (-1e-6, 0, 1e-6, 3)]
        due = at(source.choice([*near, -1e6, 1e6]))
        with ledger.write() as tx:
            tx.run(
                """
                UPDATE automations SET next_run_at = :due, cursor_at = :cursor, floor_at = :floor
                WHERE automation_id = :id
                """,
                due=to_text(due),
                cursor=to_text(source.choice((due, T0, at(60)))),
                floor=to_text(source.choice((T0, due, at(-1e7)))),
                id=name,
            )
            if source.random() < 0.4:
                tx.run(
                    """
                    INSERT INTO automation_runs (run_id, automation_id, slot_at, slot_seq, message, status, version,
                                                 holder, claimed_at, lease_expires_at)
                    VALUES (:id, :id, :due, 1, 'm', :status, 1, :holder, :due, :expires)
                    """,
                    id=name,
                    due=to_text(due),
                    status=source.choice(("RUNNING", "FAILED", "SUCCEEDED")),
                    holder=source.choice((ledger.actor, "another")),
                    expires=to_text(at(source.choice((-1, 0, skew, 120, 1e6)))),
                )
        if source.random() < 0.1:
            disable(ledger, name, now=T0)
    expected = considered(ledger, T0)
    assert 10 < len(expected) < 50, "some are considered, some are not"
    assert [result.automation_id for result in run_all_due(ledger, {}, now=T0)] == expected


def test_all_due_reads_no_row_that_waits(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among many watchers, the cost is that of the due ones."""
    for number in range(50):
        watch(ledger, f"w{number}", first_run_at=at(0 if number == 7 else 30 if number % 2 else DAY * 365))
    read: list[str] = []
    plain = automation._automation
    monkeypatch.setattr(automation, "_automation", lambda row: read.append(row["automation_id"]) or plain(row))
    assert [result.status for result in run_all_due(ledger, {"notify": Handler(quiet(), fails)}, now=T0)] == ["NO_FIRE"]
    assert set(read) == {"w7"}


def test_a_handler_must_be_one(ledger: Ledger) -> None:
    with pytest.raises(TypeError, match=r"handlers\['notify'\] must be a Handler"):
        run_all_due(ledger, {"notify": (quiet(), fails)})  # type: ignore[dict-item]  # malformed on purpose


# Every slot, under any sequence of calls


class Accounting(RuleBasedStateMachine):
    """Calls, failures, kills, pauses, downtime and clock steps in any order: the history tiles the grid."""

    catch_up = "once"

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.ledger = Ledger.open(self.folder.name, ids=SeededIds(1))
        self.now = T0
        self.called_at: datetime | None = None
        self.committed: dict[str, object] = {}
        self.offered: dict[str, set[str]] = {}
        watch(self.ledger, catch_up=self.catch_up, grace_seconds=30, max_failures=3, retry_seconds=100)

    def teardown(self) -> None:
        self.ledger.close()
        self.folder.cleanup()

    def tick(self, message: str, payload: Payload, *, fire: bool = True) -> None:
        next_state: dict[str, object] = {"at": self.now.isoformat()}

        def offered(run_id: str, text: str) -> None:
            self.offered.setdefault(run_id, set()).add(text)
            payload(run_id, text)

        def condition(previous: dict[str, object]) -> WatchDecision:
            assert previous == self.committed
            return WatchDecision(fire, message, next_state)

        self.called_at = self.now
        result = run_due(self.ledger, W, condition, offered, now=self.now)
        if result.status in {Status.SUCCEEDED, Status.NO_FIRE}:
            self.committed = next_state

    @rule(seconds=st.integers(1, 400) | st.integers(1, 200_000))
    def wait(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(seconds=st.integers(1, 200_000))
    def step_back(self, seconds: int) -> None:
        self.now -= timedelta(seconds=seconds)

    @rule()
    def stay_quiet(self) -> None:
        self.tick("", fails, fire=False)

    @rule(message=st.sampled_from("ab"))
    def succeed(self, message: str) -> None:
        self.tick(message, does_nothing)

    @rule(message=st.sampled_from("ab"))
    def fail(self, message: str) -> None:
        self.tick(message, fails)

    @rule()
    def break_the_condition(self) -> None:
        run_due(self.ledger, W, BROKEN[0], fails, now=self.now)

    @rule(message=st.sampled_from("ab"))
    def die(self, message: str) -> None:
        with contextlib.suppress(Killed):
            self.tick(message, dies(self.ledger))
        self.ledger.close()
        self.ledger = Ledger.open(self.folder.name, ids=SeededIds(len(self.offered) + 1000))

    @rule()
    def pause(self) -> None:
        disable(self.ledger, W, now=self.now)

    @rule()
    def resume(self) -> None:
        enable(self.ledger, W, now=self.now)

    @precondition(lambda self: self.offered)
    @rule()
    def reset(self) -> None:
        update(self.ledger, W, condition_state={"reset": 1}, now=self.now)
        self.committed = {"reset": 1}

    @invariant()
    def every_slot_stands_in_the_history_exactly_once(self) -> None:
        (automation,) = list_automations(self.ledger)
        grid = Grid(T0, timedelta(seconds=60))
        records = [record for record in history(self.ledger, W) if record.slots]
        for record in records:
            span = through(grid, record.first_slot, record.last_slot)
            assert span is not None
            assert span.slots == record.slots
            assert (record.first_slot - T0) % grid.interval == timedelta(0)
        for earlier, later in pairwise(records):
            assert later.epoch >= earlier.epoch
            if later.epoch == earlier.epoch:
                assert later.first_slot == next_slot(grid, earlier.last_slot)
        if records and records[0].epoch == 0:
            assert records[0].first_slot == T0
        if records and records[-1].epoch == automation.epoch:
            assert automation.cursor_at == next_slot(grid, records[-1].last_slot)

    @invariant()
    def the_state_is_the_one_last_committed(self) -> None:
        (automation,) = list_automations(self.ledger)
        assert automation.condition_state == self.committed

    @invariant()
    def a_run_id_belongs_to_one_message_and_at_most_one_run_is_open(self) -> None:
        assert all(len(messages) == 1 for messages in self.offered.values())
        runs = list_runs(self.ledger)
        assert sum(run.status in {RunStatus.RUNNING, RunStatus.FAILED} for run in runs) <= 1
        assert {run.run_id for run in runs} == set(self.offered)

    @invariant()
    def it_is_silent_for_at_most_a_retry(self) -> None:
        """After any call, whatever the clock did, the due time is near."""
        (automation,) = list_automations(self.ledger)
        if automation.enabled and self.called_at == self.now and automation.floor_at <= self.now:
            assert automation.next_run_at <= self.now + timedelta(seconds=100 + 5)


class SkippingAccounting(Accounting):
    catch_up = "skip"


Accounting.TestCase.settings = settings(max_examples=10, stateful_step_count=25)
SkippingAccounting.TestCase.settings = settings(max_examples=6, stateful_step_count=25)
TestAccountingOnce = Accounting.TestCase
TestAccountingSkip = SkippingAccounting.TestCase


def test_the_life_of_a_watcher_can_be_read_from_its_ledger(ledger: Ledger, clock: Any) -> None:
    """Every detail, event and row of one story, in full: whoever looks afterwards has nothing else."""

    def fires(state: dict[str, Any]) -> WatchDecision:
        number = state.get("n", 0)
        return WatchDecision(True, f"n={number}", {"n": number + 1})

    def stays_quiet(state: dict[str, Any]) -> WatchDecision:
        return WatchDecision(False, "", {**state, "seen": True})

    def breaks(_: object) -> WatchDecision:
        raise OSError("down")

    def tick(minute: float, condition: Condition, payload: Payload = does_nothing) -> tuple[str, str]:
        clock.now = at(60 * minute)
        result = run_due(ledger, W, condition, payload)
        return str(result.status), result.detail

    create_automation(ledger, W, interval_seconds=60, payload="p", max_failures=2, catch_up="skip", grace_seconds=10)
    assert [
        tick(0, stays_quiet),
        tick(1, stays_quiet),
        tick(1.5, stays_quiet),
        tick(2, fires, fails),
        tick(3, fires),
        tick(9.5, fires),
        tick(10, breaks),
        tick(11, fires, fails),
        tick(12, fires),
    ] == [
        ("NO_FIRE", "next due 2026-01-05T08:01:00.000000Z"),
        ("NO_FIRE", "next due 2026-01-05T08:02:00.000000Z"),
        ("NOT_DUE", "next due 2026-01-05T08:02:00.000000Z"),
        ("FAILED", "the payload failed (1 of 2): OSError: supplier unreachable"),
        ("SUCCEEDED", "next due 2026-01-05T08:04:00.000000Z"),
        ("NOT_DUE", "6 slots were missed; next due 2026-01-05T08:10:00.000000Z"),
        ("FAILED", "the condition failed (1 of 2): OSError: down"),
        ("FAILED", "the payload failed (2 of 2): OSError: supplier unreachable"),
        ("DISABLED", "2 failures in a row, the latest: OSError: supplier unreachable"),
    ]
    enable(ledger, W)
    assert tick(13, fires) == ("SUCCEEDED", "next due 2026-01-05T08:14:00.000000Z")
    update(
        ledger, W, interval_seconds=30, payload="q", max_failures=5, condition_state={"n": 7}, next_run_at=at(14 * 60)
    )
    disable(ledger, W, reason="for lunch")
    assert tick(13, fires) == ("DISABLED", "for lunch")
    enable(ledger, W)

    def table(sql: str) -> list[tuple[Any, ...]]:
        with ledger.read() as tx:
            return [tuple(row) for row in tx.all(sql)]

    first, second = (run_id for (run_id,) in table("SELECT run_id FROM automation_runs ORDER BY slot_seq"))
    told = [
        (kind, json.loads(detail))
        for kind, subject, detail in table("SELECT kind, subject, detail FROM events ORDER BY seq")
        if subject == W
    ]
    changed = ["interval_seconds", "payload", "max_failures", "condition_state", "next_run_at"]
    assert told == [
        ("automation.created", {"interval_seconds": 60, "version": 1}),
        ("automation.quieted", {}),
        ("automation.claimed", {"attempt": 1, "run_id": first, "slots": 1, "version": 1}),
        ("automation.failed", {"attempt": 1, "counted": True, "error": "OSError", "run_id": first}),
        ("automation.claimed", {"attempt": 2, "run_id": first, "slots": 1, "version": 1}),
        ("automation.succeeded", {"attempt": 2, "run_id": first, "state_committed": True}),
        ("automation.missed", {"slots": 6}),
        ("automation.condition_failed", {"error": "OSError"}),
        ("automation.claimed", {"attempt": 1, "run_id": second, "slots": 1, "version": 1}),
        ("automation.failed", {"attempt": 1, "counted": True, "error": "OSError", "run_id": second}),
        ("automation.disabled", {"failures": 2}),
        ("automation.enabled", {}),
        ("automation.claimed", {"attempt": 2, "run_id": second, "slots": 2, "version": 1}),
        ("automation.succeeded", {"attempt": 2, "run_id": second, "state_committed": True}),
        ("automation.updated", {"fields": changed, "version": 2}),
        ("automation.disabled", {"failures": 0}),
        ("automation.enabled", {}),
    ]
    minute = [to_text(at(60 * number)) for number in range(16)]
    assert table(
        "SELECT first_slot, last_slot, slots, fate, run_id, late_seconds, noted_at, epoch FROM automation_slots "
        "ORDER BY seq"
    ) == [
        (minute[0], minute[1], 2, "NO_FIRE", None, 0, minute[1], 0),
        (minute[2], minute[2], 1, "SUCCEEDED", first, 0, minute[2], 0),
        (minute[3], minute[3], 1, "COALESCED", first, 0, minute[3], 0),
        (minute[4], minute[9], 6, "MISSED", None, 330, to_text(at(570)), 0),
        (minute[10], minute[10], 1, "CONDITION_FAILED", None, 0, minute[10], 0),
        (minute[11], minute[11], 1, "SUCCEEDED", second, 0, minute[11], 0),
        (minute[12], minute[13], 2, "COALESCED", second, 60, minute[13], 0),
        (to_text(at(810)), to_text(at(810)), 1, "SKIPPED", None, 0, minute[13], 0),
    ]
    assert table(
        "SELECT run_id, slot_at, message, status, attempt, version, holder, claimed_at, lease_expires_at, ended_at, "
        "error, renewals, interruptions, lease_expired_at FROM automation_runs ORDER BY slot_seq"
    ) == [
        (first, minute[2], "n=0", "SUCCEEDED", 2, 1, "local", minute[3], minute[5], minute[3], None, 0, 0, None),
        (second, minute[11], "n=1", "SUCCEEDED", 2, 1, "local", minute[13], minute[15], minute[13], None, 0, 0, None),
    ]
    stored = row(ledger)
    assert {name: stored[name] for name in stored.keys() if name != "revision"} == {  # noqa: SIM118 - a Row is no dict
        "automation_id": W,
        "payload": "q",
        "interval_seconds": 30,
        "first_run_at": minute[0],
        "max_failures": 5,
        "catch_up": "skip",
        "grace_seconds": 10,
        "lease_seconds": 120,
        "retry_seconds": None,
        "version": 2,
        "enabled": 1,
        "disabled_reason": None,
        "disabled_at": None,
        "condition_state": '{"n":7}',
        "failure_count": 0,
        "condition_failures": 0,
        "quiet_ticks": 2,
        "last_status": "SUCCEEDED",
        "next_run_at": minute[14],
        "cursor_at": minute[14],
        "floor_at": minute[14],
        "epoch": 0,
        "created_at": minute[0],
    }


def test_each_refusal_of_a_watcher_says_why_and_what_helps(ledger: Ledger) -> None:
    """Word for word: the operator acts on this sentence."""
    watch(ledger)
    done = call(ledger, fires(), does_nothing).run_id
    failed = call(ledger, fires(), fails, 60).run_id
    stop = "stop this payload; the run is offered again where it is open"
    for refused, subject, sentence in (
        (
            lambda: watch(ledger, interval_seconds=30, payload="other"),
            W,
            (
                "it exists with another definition (interval_seconds, payload); "
                "change it with update(), or create it as the ledger holds it"
            ),
        ),
        (
            lambda: call(ledger, fires(), automation_id="none"),
            "none",
            "there is no such automation; create it with create_automation()",
        ),
        (lambda: renew_run(ledger, "none"), "none", "there is no such run; use the id that the payload was given"),
        (lambda: renew_run(ledger, str(done)), done, f"its latest attempt has ended as SUCCEEDED; {stop}"),
        (lambda: renew_run(ledger, str(failed)), failed, f"its latest attempt has ended as FAILED; {stop}"),
    ):
        with pytest.raises(Refusal) as refusal:
            refused()
        assert str(refusal.value) == f"Automation refused for {subject}: {sentence}."


def test_a_malformed_answer_of_a_condition_is_named_with_what_was_expected(ledger: Ledger) -> None:
    watch(ledger, max_failures=100)
    for number, (answer, sentence) in enumerate(
        (
            (3, "TypeError: the condition must return a WatchDecision, not int"),
            (WatchDecision(1, "", {}), "TypeError: fire must be of type bool, not int"),  # type: ignore[arg-type]
            (WatchDecision(True, 1, {}), "TypeError: message must be of type str, not int"),  # type: ignore[arg-type]
            (WatchDecision(True, "", []), "TypeError: state must be a JSON object (a dict), not list"),  # type: ignore[arg-type]
        )
    ):
        found = call(ledger, lambda _, given=answer: given, does_nothing, 60 * number)  # type: ignore[misc]
        assert found.detail == f"the condition failed ({number + 1} of 100): {sentence}"
    with pytest.raises(TypeError) as caught:
        run_all_due(ledger, [])  # type: ignore[arg-type]
    assert str(caught.value) == "handlers must be a mapping, not list: []"
    with pytest.raises(TypeError) as caught:
        run_all_due(ledger, {"p": 3})  # type: ignore[dict-item]
    assert str(caught.value) == "handlers['p'] must be a Handler, not int"
    with pytest.raises(ValueError) as error:
        watch(ledger, "other", catch_up="all")
    assert str(error.value) == "catch_up must be one of once, skip: 'all'"
