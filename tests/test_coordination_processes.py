"""Sessions under real processes: contenders at once, and holders that are killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from sovereign_agent.coordination import SessionClaim, claim_session, fenced, finish_session, register_host
from sovereign_agent.errors import Refusal
from sovereign_agent.ledger import Ledger

HOSTS = 8
CLAIMS = 60

CONTEND = """
import json, sys
from sovereign_agent.coordination import claim_session, register_host
from sovereign_agent.errors import Refusal
from sovereign_agent.ledger import Ledger

root, host, claims = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Ledger.open(root, busy_timeout_seconds=60) as ledger:
    register_host(ledger, host, ttl_seconds=600)
    print("ready", flush=True)
    sys.stdin.readline()
    won, refused, other = [], {}, []
    for number in range(claims):
        session = f"session-{number:02}"
        try:
            won.append((session, claim_session(ledger, session, host, ttl_seconds=600).incarnation))
        except Refusal as refusal:
            if refusal.category == "session" and "live claim belongs to host-" in str(refusal):
                refused[session] = str(refusal).split("belongs to ")[1].split()[0]
            else:
                other.append(str(refusal))
    print(json.dumps({"won": won, "refused": refused, "other": other}))
"""

HOLD = """
import sys, time
from sovereign_agent.coordination import claim_session, fenced, finish_session, register_host
from sovereign_agent.ledger import Ledger

root, where = sys.argv[1], sys.argv[2]
ledger = Ledger.open(root, busy_timeout_seconds=30)
register_host(ledger, "host-a", ttl_seconds=600)
claim = claim_session(ledger, "s", "host-a", ttl_seconds=600)

def stop():
    print("there", flush=True)
    time.sleep(600)

if where == "between claim and finish":
    stop()
if where == "inside a fenced write":
    with fenced(ledger, claim) as tx:
        tx.event("test.written", "s", at=ledger.now())
        stop()
if where == "between the finish and its commit":
    with ledger.write():
        finish_session(ledger, claim, "never acknowledged")
        stop()
finish_session(ledger, claim, "done by the killed one")
stop()
"""


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_eight_processes_claim_sixty_sessions_and_each_has_one_winner(tmp_path: Path) -> None:
    """No lock error escapes, every loser is told the winner's name, and the ledger agrees."""
    with Ledger.open(tmp_path):
        pass
    contenders = {f"host-{n}": start(CONTEND, str(tmp_path), f"host-{n}", str(CLAIMS)) for n in range(HOSTS)}
    try:
        assert [line(process) for process in contenders.values()] == ["ready"] * HOSTS
        for process in contenders.values():
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        reports = {}
        for host, process in contenders.items():
            out, err = process.communicate(timeout=120)
            assert (process.returncode, err) == (0, "")
            reports[host] = json.loads(out)
    finally:
        for process in contenders.values():
            process.kill()
            process.communicate()

    assert [report["other"] for report in reports.values()] == [[]] * HOSTS
    winners = {session: host for host, report in reports.items() for session, _ in report["won"]}
    assert sum(len(report["won"]) for report in reports.values()) == CLAIMS == len(winners)
    assert {incarnation for report in reports.values() for _, incarnation in report["won"]} == {1}
    for host, report in reports.items():
        assert len(report["won"]) + len(report["refused"]) == CLAIMS
        assert all(winners[session] == named != host for session, named in report["refused"].items())
    with Ledger.open(tmp_path) as ledger, ledger.read() as tx:
        held = {row["session_id"]: row["host_id"] for row in tx.all("SELECT session_id, host_id FROM session_claims")}
        refusals = tx.one("SELECT count(*) AS n FROM events WHERE kind = 'refused'")
        integrity = tx.one("PRAGMA integrity_check")
    assert held == winners
    assert refusals is not None
    assert refusals["n"] == CLAIMS * (HOSTS - 1)
    assert integrity is not None
    assert integrity[0] == "ok"


def killed(tmp_path: Path, where: str) -> None:
    process = start(HOLD, str(tmp_path), where)
    try:
        assert line(process) == "there", process.communicate()[1]
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "where", ["between claim and finish", "inside a fenced write", "between the finish and its commit"]
)
def test_a_killed_holder_leaves_a_claim_that_runs_out_and_no_half_of_its_write(tmp_path: Path, where: str) -> None:
    killed(tmp_path, where)
    with Ledger.open(tmp_path) as ledger:
        with ledger.read() as tx:
            assert tx.all("SELECT * FROM session_completions") == []
            assert tx.all("SELECT * FROM events WHERE kind = 'test.written'") == []
            (row,) = tx.all("SELECT host_id, incarnation, ended FROM session_claims")
            assert tuple(row) == ("host-a", 1, None)
        register_host(ledger, "host-b", ttl_seconds=6000)
        with pytest.raises(Refusal, match="live claim belongs to host-a"):
            claim_session(ledger, "s", "host-b")
        later = ledger.now() + timedelta(seconds=606)
        claim = claim_session(ledger, "s", "host-b", now=later)
        assert claim.incarnation == 2
        of_the_dead = SessionClaim("s", "host-a", 1, later)
        with pytest.raises(Refusal, match="stale or expired"), fenced(ledger, of_the_dead, now=later):
            pass
        finish_session(ledger, claim, "done", now=later)


def test_the_restarted_process_of_a_killed_holder_goes_on_at_once_under_a_new_incarnation(tmp_path: Path) -> None:
    killed(tmp_path, "between claim and finish")
    with Ledger.open(tmp_path) as ledger:
        register_host(ledger, "host-a")
        claim = claim_session(ledger, "s", "host-a")
        assert claim.incarnation == 2
        finish_session(ledger, claim, "done")


def test_a_holder_killed_after_its_finish_has_finished(tmp_path: Path) -> None:
    killed(tmp_path, "after the finish")
    with Ledger.open(tmp_path) as ledger:
        register_host(ledger, "host-a")
        with pytest.raises(Refusal, match="the session is finished, by incarnation 1 of host-a"):
            claim_session(ledger, "s", "host-a")
        with ledger.read() as tx:
            assert [row["result"] for row in tx.all("SELECT * FROM session_completions")] == ["done by the killed one"]


def test_two_processes_that_share_a_host_id_never_both_commit(tmp_path: Path) -> None:
    """One holds and sleeps; the other registers the same id. Only the second one's write counts."""
    process = start(HOLD, str(tmp_path), "between claim and finish")
    try:
        assert line(process) == "there"
        with Ledger.open(tmp_path) as ledger:
            register_host(ledger, "host-a")
            with pytest.raises(Refusal, match="host-a was registered again"):
                finish_session(ledger, SessionClaim("s", "host-a", 1, ledger.now()), "old")
            finish_session(ledger, claim_session(ledger, "s", "host-a"), "new")
            with ledger.read() as tx:
                assert [row["result"] for row in tx.all("SELECT result FROM refused_results")] == ["old"]
    finally:
        process.kill()
        process.communicate()
