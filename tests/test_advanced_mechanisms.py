"""The proof pack: one focused test for each claim that the lessons cite.

It needs pytest and the package, nothing else: no process, no thread, no socket, no Hypothesis. So it also runs in a
browser, and each of its tests can be the one that catches a mutation.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sovereign_agent import context, memory
from sovereign_agent.automation import WatchDecision, create_automation, history, list_runs, run_due, update
from sovereign_agent.context import append_message, compact_one, coverage, render_context
from sovereign_agent.coordination import (
    SessionClaim,
    claim_session,
    fenced,
    finish_session,
    register_host,
    release_session,
    renew_session,
)
from sovereign_agent.delivery import record_delivery_failure
from sovereign_agent.errors import Refusal
from sovereign_agent.ids import SeededIds
from sovereign_agent.isolation import IsolationPolicy
from sovereign_agent.ledger import Ledger
from sovereign_agent.memory import recall, remember
from sovereign_agent.tools import Tool, ToolCatalog

T0 = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path, clock=lambda: T0, ids=SeededIds(1)) as opened:
        yield opened


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def value(ledger: Ledger, sql: str) -> object:
    with ledger.read() as tx:
        row = tx.one(sql)
    return None if row is None else row[0]


# Isolation


def test_isolation_resolves_symlinks_before_authorizing(tmp_path: Path) -> None:
    """A link inside the root is judged by where it leads, and leaving is refused."""
    root = tmp_path / "workspace"
    root.mkdir()
    (tmp_path / "secret").write_text("outside")
    (root / "note").write_text("inside")
    (root / "escape").symlink_to(tmp_path / "secret")
    (root / "alias").symlink_to(root / "note")
    policy = IsolationPolicy(filesystem_roots={root})
    assert policy.authorize_path(root / "alias") == (root / "note").resolve()
    with pytest.raises(Refusal, match="outside") as caught:
        policy.authorize_path(root / "escape")
    assert caught.value.category == "filesystem"
    with pytest.raises(Refusal):
        policy.open_path(root / "escape")


def test_isolation_reports_each_plane_and_upgrades_none(tmp_path: Path) -> None:
    """Enforcement on four planes says nothing about the process, whatever a probe returns short of proof."""
    policy = IsolationPolicy(filesystem_roots={tmp_path}, allowed_tools={"read_inventory"})

    def missing() -> bool:
        raise FileNotFoundError("bwrap")

    for probe, verdict in (
        (None, "UNAVAILABLE"),
        (missing, "UNAVAILABLE"),
        (lambda: "yes", "UNAVAILABLE"),
        (lambda: True, "ENFORCED"),
    ):
        planes = {str(status.plane): str(status.verdict) for status in policy.explain(probe)}
        assert planes == {
            "process": verdict,
            "filesystem": "ENFORCED",
            "network": "ENFORCED",
            "credentials": "ENFORCED",
            "tools": "ENFORCED",
        }


def test_isolation_pins_a_root_when_the_policy_is_made(tmp_path: Path) -> None:
    """Re-pointing a link afterwards does not move the root."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "note").write_text(name)
    (tmp_path / "link").symlink_to(tmp_path / "first")
    policy = IsolationPolicy(filesystem_roots={tmp_path / "link"})
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(tmp_path / "second")
    assert policy.authorize_path(tmp_path / "first" / "note").read_text() == "first"
    with pytest.raises(Refusal):
        policy.authorize_path(tmp_path / "link" / "note")


def test_isolation_denies_a_tool_in_every_spelling() -> None:
    """Deny wins, and both sides are compared in one canonical form."""
    policy = IsolationPolicy(allowed_tools={"Delete_File", "read"}, denied_tools={"delete_file"})
    assert policy.authorize_tool("READ") == "read"
    for name in ("delete_file", "DELETE_FILE", "delete_\ufb01le"):
        with pytest.raises(Refusal, match="denied"):
            policy.authorize_tool(name)


# Watchers


def test_failed_payload_keeps_condition_state_retryable_and_auto_disables(ledger: Ledger) -> None:
    """A checkpoint that a failed payload did not earn is not kept; too many failures disable, with reason and time."""
    create_automation(ledger, "reorder", interval_seconds=60, payload="mail", first_run_at=T0, max_failures=2)
    seen: list[dict[str, object]] = []

    def condition(state: dict[str, object]) -> WatchDecision:
        seen.append(state)
        return WatchDecision(True, "stock is low", {"notified": True})

    def payload(run_id: str, message: str) -> None:
        raise ConnectionError("supplier does not answer")

    first = run_due(ledger, "reorder", condition, payload, now=T0)
    second = run_due(ledger, "reorder", condition, payload, now=at(60))
    assert [first.status, second.status] == ["FAILED", "FAILED"]
    assert first.run_id == second.run_id, "the same work keeps its idempotency key"
    assert seen == [{}, {}], "the second look starts from the state before the failure"
    with ledger.read() as tx:
        row = tx.all("SELECT condition_state, failure_count, enabled, disabled_reason, disabled_at FROM automations")[0]
    assert (row["condition_state"], row["failure_count"], row["enabled"]) == ("{}", 2, 0)
    assert row["disabled_reason"]
    assert row["disabled_at"] == "2026-01-05T08:01:00.000000Z"
    assert run_due(ledger, "reorder", condition, payload, now=at(120)).status == "DISABLED"


def test_quiet_watcher_saves_its_state_without_a_run_row(ledger: Ledger) -> None:
    """An evaluation is not work: state and next due time move, the run history stays empty."""
    create_automation(ledger, "quiet", interval_seconds=60, payload="mail", first_run_at=T0)
    result = run_due(
        ledger,
        "quiet",
        lambda state: WatchDecision(False, "", {"checks": 1}),
        lambda run_id, message: pytest.fail("a quiet watcher ran its payload"),
        now=T0,
    )
    assert (result.status, result.run_id) == ("NO_FIRE", None)
    assert value(ledger, "SELECT condition_state FROM automations") == '{"checks":1}'
    assert value(ledger, "SELECT next_run_at FROM automations") == "2026-01-05T08:01:00.000000Z"
    assert value(ledger, "SELECT count(*) FROM automation_runs") == 0


def test_downtime_gives_one_run_and_an_account_of_every_slot(ledger: Ledger) -> None:
    """Three days down at 60 seconds: one payload, next due on the original grid, every missed slot in the history."""
    create_automation(ledger, "report", interval_seconds=60, payload="mail", first_run_at=T0)
    runs: list[str] = []
    late = at(3 * 86_400 + 30)
    fired = run_due(
        ledger, "report", lambda s: WatchDecision(True, "m", {}), lambda run_id, m: runs.append(run_id), now=late
    )
    again = run_due(
        ledger, "report", lambda s: WatchDecision(True, "m", {}), lambda run_id, m: runs.append(run_id), now=late
    )
    assert (fired.status, again.status, len(runs)) == ("SUCCEEDED", "NOT_DUE", 1)
    assert value(ledger, "SELECT next_run_at FROM automations") == "2026-01-08T08:01:00.000000Z"
    records = history(ledger, "report")
    assert sum(record.slots for record in records) == 3 * 1440 + 1
    assert len(records) <= 3, "ranges, never one row per slot"


def test_an_edit_during_a_run_drops_the_state_of_the_old_definition(ledger: Ledger) -> None:
    """Whoever reset the state while a payload ran finds the reset, not what the old run would have written."""
    create_automation(ledger, "edited", interval_seconds=60, payload="mail", first_run_at=T0)

    def payload(run_id: str, message: str) -> None:
        update(ledger, "edited", condition_state={"reset": True}, now=at(1))

    result = run_due(ledger, "edited", lambda s: WatchDecision(True, "m", {"old": True}), payload, now=T0)
    assert result.status == "SUCCEEDED"
    assert value(ledger, "SELECT condition_state FROM automations") == '{"reset":true}'


def test_a_payload_that_was_taken_over_cannot_commit(ledger: Ledger) -> None:
    """The commit is fenced by attempt: after its lease ran out and another attempt began, the first one is too late."""
    create_automation(ledger, "slow", interval_seconds=600, payload="mail", first_run_at=T0, lease_seconds=10)
    ids: list[str] = []

    def fast(run_id: str, message: str) -> None:
        ids.append(run_id)

    def slow(run_id: str, message: str) -> None:
        ids.append(run_id)
        other = run_due(ledger, "slow", lambda s: WatchDecision(True, "m", {"by": "second"}), fast, now=at(30))
        assert other.status == "SUCCEEDED"

    first = run_due(ledger, "slow", lambda s: WatchDecision(True, "m", {"by": "first"}), slow, now=T0)
    assert first.status == "REPLAYED"
    assert value(ledger, "SELECT condition_state FROM automations") == '{"by":"second"}'
    assert len(set(ids)) == 1, "both attempts carry one idempotency key"
    assert [(run.attempt, run.status) for run in list_runs(ledger, "slow")] == [(2, "SUCCEEDED")]


# Context


def seven_rows(ledger: Ledger, session_id: str = "s") -> list[str]:
    contents = ["be brief", "how many bolts?", "I look", "bolts: 12", "and nuts?", "again", "nuts: 40"]
    for role, content in zip(
        ("system", "user", "assistant", "tool", "user", "assistant", "tool"), contents, strict=True
    ):
        append_message(ledger, session_id, role, content)
    return contents


def test_compaction_appends_a_view_and_preserves_every_source_byte(ledger: Ledger) -> None:
    """A summary is a view: the source stays, byte for byte, and refuses to be changed."""
    contents = seven_rows(ledger)
    given: list[str] = []

    def summarizer(prior: str, exchange: tuple[context.ContextItem, ...]) -> str:
        given.extend(item.role for item in exchange)
        return "12 bolts."

    assert compact_one(ledger, "s", summarizer)
    assert given == ["assistant", "tool"]
    view = render_context(ledger, "s")
    assert (len(view), [item.content for item in view if item.derived]) == (6, ["12 bolts."])
    with ledger.read() as tx:
        assert [row["content"] for row in tx.all("SELECT content FROM transcript_messages ORDER BY seq")] == contents
    raw = sqlite3.connect(ledger.path, isolation_level=None)
    try:
        for statement in ("UPDATE transcript_messages SET content = ''", "DELETE FROM transcript_messages"):
            with pytest.raises(sqlite3.IntegrityError, match="refused"):
                raw.execute(statement)
    finally:
        raw.close()


def test_an_empty_or_failed_summary_leaves_no_marker(ledger: Ledger) -> None:
    """What was not summarized is shown to the next attempt whole."""
    seven_rows(ledger)
    for nothing in ("", "   ", None):
        assert not compact_one(ledger, "s", lambda prior, exchange, nothing=nothing: nothing)

    def broken(prior: str, exchange: tuple[context.ContextItem, ...]) -> str:
        raise TimeoutError("no model")

    with pytest.raises(TimeoutError):
        compact_one(ledger, "s", broken)
    assert value(ledger, "SELECT count(*) FROM context_compactions") == 0
    assert len(render_context(ledger, "s")) == 7


def test_of_two_compactors_at_once_one_stores_a_marker(ledger: Ledger) -> None:
    """While one asks its model, another stores a marker over the same rows: the slower one has lost."""
    seven_rows(ledger)
    stored: list[bool] = []

    def slow(prior: str, exchange: tuple[context.ContextItem, ...]) -> str:
        stored.append(compact_one(ledger, "s", lambda prior, exchange: "from the quick one"))
        return "from the slow one"

    stored.append(compact_one(ledger, "s", slow))
    assert stored == [True, False]
    assert [item.content for item in render_context(ledger, "s") if item.derived] == ["from the quick one"]


def test_no_result_is_shown_without_its_call(ledger: Ledger) -> None:
    """The tail grows until it holds whole exchanges, so a boundary never falls between a call and its result."""
    rows = (
        ("system", "be brief", {}),
        ("user", "two cities", {}),
        ("assistant", "", {"tool_calls": [{"id": "A"}]}),
        ("assistant", "", {"tool_calls": [{"id": "B"}]}),
        ("tool", "Oslo", {"tool_call_id": "A"}),
        ("tool", "Rome", {"tool_call_id": "B"}),
        ("user", "thanks", {}),
    )
    for role, content, more in rows:
        append_message(ledger, "s", role, content, **more)
    compact_one(ledger, "s", lambda prior, exchange: "two cities were named", protect_tail=2)
    for tail in range(8):
        shown = [item.seq for item in render_context(ledger, "s", protect_tail=tail) if not item.derived]
        assert set(range(8 - tail, 8)) <= set(shown), "the tail is shown whole"
        assert (3 in shown) == (5 in shown)
        assert (4 in shown) == (6 in shown)


def test_a_result_needs_an_open_call(ledger: Ledger) -> None:
    """A result that answers nothing is refused before it is stored."""
    append_message(ledger, "s", "user", "hello")
    with pytest.raises(Refusal) as caught:
        append_message(ledger, "s", "tool", "12", tool_call_id="never-made")
    assert caught.value.category == "context"
    assert value(ledger, "SELECT count(*) FROM transcript_messages") == 1


def test_every_row_is_accounted_for_after_three_compactions(ledger: Ledger) -> None:
    """Each row is head, tail, kept or covered, and the markers list exactly the covered ones."""
    append_message(ledger, "s", "system", "be brief")
    for number in range(6):
        append_message(ledger, "s", "user", f"question {number}")
        append_message(ledger, "s", "assistant", f"look {number}")
        append_message(ledger, "s", "tool", f"answer {number}")
    for _ in range(3):
        assert compact_one(ledger, "s", lambda prior, exchange: prior + "x", max_rows=2)
    covered = {row.seq for row in coverage(ledger, "s") if row.reason == "covered"}
    shown = {item.seq for item in render_context(ledger, "s") if not item.derived}
    assert shown | covered == set(range(1, 20))
    assert not shown & covered
    assert [item.content for item in render_context(ledger, "s") if item.derived] == ["xxx"]


# Sessions


def test_session_takeover_increments_incarnation_and_fences_stale_finish(ledger: Ledger) -> None:
    """After a takeover the earlier holder is refused, also when it has the same host id."""
    register_host(ledger, "host-a", now=T0, ttl_seconds=3600)
    first = claim_session(ledger, "night", "host-a", now=T0, ttl_seconds=10)
    register_host(ledger, "host-b", now=at(20), ttl_seconds=3600)
    second = claim_session(ledger, "night", "host-b", now=at(20), ttl_seconds=10)
    assert (first.incarnation, second.incarnation) == (1, 2)
    with pytest.raises(Refusal, match="stale or expired"):
        finish_session(ledger, first, "by a", now=at(21))
    # The same host id again: host and lease agree with the stale claim, and only the incarnation can tell them apart.
    third = claim_session(ledger, "night", "host-b", now=at(22), ttl_seconds=10)
    assert third.incarnation == 3
    with pytest.raises(Refusal, match="stale or expired"):
        finish_session(ledger, second, "by the dead process", now=at(23))
    finish_session(ledger, third, "by the live process", now=at(24))
    with ledger.read() as tx:
        done = [tuple(row) for row in tx.all("SELECT host_id, incarnation, result FROM session_completions")]
        kept = [tuple(row) for row in tx.all("SELECT incarnation, result FROM refused_results ORDER BY refusal_seq")]
    assert done == [("host-b", 3, "by the live process")]
    assert kept == [(1, "by a"), (2, "by the dead process")]


def test_a_live_claim_of_another_host_is_refused(ledger: Ledger) -> None:
    """Nobody is evicted while both leases lie ahead, with the clock skew added for a foreign judge."""
    for host in ("host-a", "host-b"):
        register_host(ledger, host, now=T0, ttl_seconds=3600)
    claim_session(ledger, "night", "host-a", now=T0, ttl_seconds=10)
    for seconds in (0, 9, 14):
        with pytest.raises(Refusal, match="live claim belongs to host-a"):
            claim_session(ledger, "night", "host-b", now=at(seconds))
    assert claim_session(ledger, "night", "host-b", now=at(15)).incarnation == 2


def test_an_incarnation_outlives_the_rows_that_showed_it(ledger: Ledger) -> None:
    """A purge of claims does not let an ancient claim look current."""
    register_host(ledger, "host-a", now=T0, ttl_seconds=3600)
    ancient = claim_session(ledger, "night", "host-a", now=T0)
    release_session(ledger, ancient, now=at(1))
    with ledger.write() as tx:
        tx.run("DELETE FROM session_claims")
    assert claim_session(ledger, "night", "host-a", now=at(2)).incarnation == 2
    with pytest.raises(Refusal, match="stale or expired"):
        finish_session(ledger, ancient, "from the past", now=at(3))


def test_a_fenced_write_of_a_stale_holder_rolls_back_whole(ledger: Ledger) -> None:
    """The fence covers any write, not only the finish."""
    register_host(ledger, "host-a", now=T0, ttl_seconds=3600)
    claim = claim_session(ledger, "night", "host-a", now=T0, ttl_seconds=10)
    with fenced(ledger, claim, now=at(5)) as tx:
        tx.event("note.kept", "n1", at=at(5))
    with pytest.raises(Refusal, match="stale or expired"), fenced(ledger, claim, now=at(10)) as tx:
        tx.event("note.kept", "n2", at=at(10))
    assert value(ledger, "SELECT group_concat(subject) FROM events WHERE kind = 'note.kept'") == "n1"


def test_a_repeated_finish_is_answered_as_done(ledger: Ledger) -> None:
    """A lost acknowledgement is no reason to fail; another result is."""
    register_host(ledger, "host-a", now=T0, ttl_seconds=3600)
    claim = claim_session(ledger, "night", "host-a", now=T0, ttl_seconds=10)
    finish_session(ledger, claim, "sent", now=at(1))
    finish_session(ledger, claim, "sent", now=at(9999))
    with pytest.raises(Refusal):
        finish_session(ledger, claim, "sent twice", now=at(2))
    with pytest.raises(Refusal, match="finished"):
        claim_session(ledger, "night", "host-a", now=at(3))
    assert value(ledger, "SELECT count(*) FROM session_completions") == 1


def test_a_renewal_presents_its_claim_and_keeps_its_incarnation(ledger: Ledger) -> None:
    register_host(ledger, "host-a", now=T0, ttl_seconds=3600)
    claim = claim_session(ledger, "night", "host-a", now=T0, ttl_seconds=10)
    renewed = renew_session(ledger, claim, now=at(9), ttl_seconds=10)
    assert (renewed.incarnation, renewed.expires_at) == (1, at(19))
    stranger = SessionClaim("night", "host-a", 7, at(19))
    with pytest.raises(Refusal, match="stale or expired"):
        renew_session(ledger, stranger, now=at(10))


def test_delivery_attempts_survive_a_restart(tmp_path: Path) -> None:
    """A new process does not turn attempt two back into attempt one."""
    for expected in (1, 2, 3):
        with Ledger.open(tmp_path, clock=lambda: T0) as ledger:
            assert record_delivery_failure(ledger, "invoice-7", "timed out") == expected


# Tools


def catalog() -> ToolCatalog:
    return ToolCatalog(
        [
            Tool("read_inventory", "Read the stock of an article.", ("stock",)),
            Tool("delete_inventory", "Delete an article and its stock.", ("remove",)),
            Tool("send_mail", "Send a message.", ("notify",)),
        ]
    )


def test_discovery_does_not_authorize_a_matching_tool(ledger: Ledger) -> None:
    """The best match may be denied: found, and refused in every way of asking, before anything runs."""
    tools = catalog()
    policy = IsolationPolicy(allowed_tools={"read_inventory", "delete_inventory"}, denied_tools={"delete_inventory"})
    found = tools.discover("delete stock")
    assert found.tools[0].name == "delete_inventory"
    forged = Tool("delete_inventory", "Delete an article and its stock.", ("remove",))
    for asked in (found.tools[0], forged, "delete_inventory", "Delete_Inventory"):
        with pytest.raises(Refusal) as caught:
            tools.authorize(asked, policy, ledger=ledger)
        assert caught.value.category == "tools"
    assert value(ledger, "SELECT count(*) FROM events WHERE kind = 'refused'") == 4
    assert tools.authorize("read_inventory", policy).name == "read_inventory"


def test_discovery_says_what_it_left_out() -> None:
    found = catalog().discover("stock", limit=1)
    assert (len(found.tools), found.total_matches, found.truncated) == (1, 2, True)
    for limit in (0, 11, 2.5, True):
        with pytest.raises(ValueError, match="limit"):
            catalog().discover("stock", limit=limit)  # type: ignore[arg-type]


def test_an_exact_name_comes_first_and_rare_words_weigh_more() -> None:
    tools = ToolCatalog(
        [
            *(Tool(f"get_{word}", f"Get the {word} for a user.") for word in ("mail", "news", "map", "user")),
            Tool("forecast_lookup", "Look up the weather for a city."),
        ]
    )
    assert tools.discover("get the weather for Paris").tools[0].name == "forecast_lookup"
    assert tools.discover("Get News").tools[0].name == "get_news"


def test_discovery_reads_every_script() -> None:
    """Queries outside ASCII find what they name, and only that."""
    tools = ToolCatalog([Tool("image_generate", "Make a picture.", ("tạo ảnh", "生成图片")), Tool("decoy", "t o nh")])
    for query in ("tạo ảnh", "生成图片"):
        assert [tool.name for tool in tools.discover(query).tools] == ["image_generate"]


def test_authorization_is_for_the_catalogues_own_object() -> None:
    """An equal copy is not the tool that was reviewed; the receipt names the definition and the policy."""
    tools = catalog()
    policy = IsolationPolicy(allowed_tools={"read_inventory"})
    copy = Tool("read_inventory", "Read the stock of an article.", ("stock",))
    with pytest.raises(Refusal):
        tools.authorize(copy, policy)
    receipt = tools.authorize(tools.discover("read_inventory").tools[0], policy)
    assert len(receipt.tool_digest) == len(receipt.policy_digest) == 64


# Memory


def test_memory_filters_access_before_ranking_and_exposes_score_components(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hidden row is never scored, and a hit shows what its score is made of."""
    for number in range(3):
        remember(
            ledger,
            f"hidden-{number}",
            "favourite city is Oslo",
            visibility="actor:uid1",
            importance=1.0,
            embedding=[1, 0],
        )
    remember(ledger, "own", "favourite dish is soup", visibility="actor:uid2", embedding=[0.6, 0.8])
    remember(ledger, "unrelated", "the printer is on the second floor", importance=1.0)
    scored: list[str] = []
    plain = memory.score

    def counted(query: memory.Query, row: memory.Memory, weights: memory.Weights) -> memory.Score:
        scored.append(row.id)
        return plain(query, row, weights)

    monkeypatch.setattr(memory, "score", counted)
    hits = recall(ledger, "favourite city", actor_id="uid2", query_embedding=[1, 0], limit=20)
    assert sorted(scored) == ["own", "unrelated"]
    assert [hit.id for hit in hits] == ["own"]
    hit = hits[0]
    assert hit.lexical == pytest.approx(1 / 5)  # {favourite} of {favourite, city, dish, is, soup}
    assert hit.semantic == pytest.approx(0.6, abs=1e-6)
    assert hit.recency == 1.0
    assert hit.score == pytest.approx(0.35 * hit.lexical + 0.35 * hit.semantic + 0.15 * hit.recency + 0.15 * 0.5)
    assert (hit.penalty, hit.final) == (0.0, pytest.approx(0.75 * hit.score))


def test_memory_never_calls_lexical_search_semantic(ledger: Ledger) -> None:
    """Without a comparable vector the status says so, for each hit, and nothing is raised."""
    remember(ledger, "old note", "note", embedding=[1.0] * 768, embedding_model="large")
    remember(ledger, "new note", "note", embedding=[1.0] * 384, embedding_model="small")
    remember(ledger, "plain note", "note")

    def statuses(**query: object) -> dict[str, str]:
        return {hit.id: str(hit.semantic_status) for hit in recall(ledger, "note", actor_id="a", **query)}  # type: ignore[arg-type]

    assert statuses(query_embedding=[1.0] * 384, embedding_model="small") == {
        "old note": "incompatible",
        "new note": "used",
        "plain note": "unavailable",
    }
    assert set(statuses().values()) == {"unavailable"}


def test_memory_penalizes_near_duplicates_and_shows_by_how_much(ledger: Ledger) -> None:
    """The second of two twins loses a quarter of its likeness, and a different note overtakes it."""
    remember(ledger, "a", "bolts come on monday", embedding=[1, 0])
    remember(ledger, "b", "bolts come on monday", embedding=[1, 0])
    remember(ledger, "c", "bolts are counted in boxes", embedding=[0, 1])
    hits = recall(ledger, "when do bolts come", actor_id="x", query_embedding=[1, 1])
    assert [hit.id for hit in hits] == ["a", "c", "b"]
    assert hits[0].penalty == 0
    assert hits[2].penalty == pytest.approx(0.25)
    for hit in hits:
        assert hit.final == pytest.approx(0.75 * hit.score - hit.penalty)


def test_importance_and_recency_retrieve_nothing_alone(ledger: Ledger) -> None:
    remember(ledger, "loud", "completely different", importance=1.0)
    assert recall(ledger, "bolts", actor_id="a") == ()


def test_a_vector_that_could_win_every_query_is_refused_when_stored(ledger: Ledger) -> None:
    for vector in ([float("nan"), 1.0], [float("inf"), 0.0], [0.0, 0.0], []):
        with pytest.raises(ValueError, match="embedding"):
            remember(ledger, "bad", "text", embedding=vector)
    assert value(ledger, "SELECT count(*) FROM memories") == 0
