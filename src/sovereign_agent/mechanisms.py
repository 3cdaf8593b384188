"""The scenario: all six mechanisms once, on one ledger, with what each verdict claims and what it does not.

Each run works under ids of its own, so that runs may share a directory, one after another or at once: every run
prints the same six lines and leaves the evidence of the others untouched. The lines are observations of this run only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from . import automation, context, coordination, memory
from .errors import Category, Refusal, Unproved, shown
from .isolation import IsolationPolicy
from .ledger import Ledger
from .tools import Tool, ToolCatalog

WORKSPACE = "workspace"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one mechanism showed in this run."""

    mechanism: str
    line: str
    """The verdict, in one line."""
    claims: tuple[str, ...]
    """What the run observed and the line therefore claims."""
    not_claimed: tuple[str, ...]
    """What a reader might borrow from the line and must not."""
    facts: dict[str, object] = field(default_factory=dict)
    """The values behind the line, for programs."""


def isolation(ledger: Ledger) -> Finding:
    """Ask the five planes of a policy, after trying to leave its workspace through a link.

    Raises:
        Refusal: `category="filesystem"` when the workspace itself is a link.
        Unproved: The escape was allowed.
    """
    with _workspace(ledger) as (workspace, outside):
        policy = IsolationPolicy(
            filesystem_roots={workspace},
            network_hosts={"inventory.example:443"},
            credential_names={"INVENTORY_TOKEN"},
            allowed_tools={"read_inventory"},
            denied_tools={"delete_inventory"},
        )
        (workspace / "escape").symlink_to(outside)
        escape = _refusal(lambda: policy.authorize_path(workspace / "escape" / "note"))
        planes = {str(status.plane): status for status in policy.explain()}
    return Finding(
        "isolation",
        "isolation: " + ", ".join(f"{plane}={status.verdict}" for plane, status in planes.items()),
        (
            f"filesystem: a link that leads out of the workspace was refused ({escape.why})",
            *(f"{plane}: {planes[plane].detail}" for plane in ("network", "credentials", "tools")),
        ),
        (f"process: {planes['process'].detail}", f"filesystem: {planes['filesystem'].detail}"),
        {plane: str(status.verdict) for plane, status in planes.items()},
    )


def tools(ledger: Ledger) -> Finding:
    """Find two tools with a limit of one, and ask the policy about both."""
    catalog = ToolCatalog(
        [
            Tool("read_inventory", "Read how much of an article is in stock.", ("stock",)),
            Tool("delete_inventory", "Delete an article and its stock.", ("stock", "remove")),
        ]
    )
    policy = IsolationPolicy(allowed_tools={"read_inventory", "delete_inventory"}, denied_tools={"delete_inventory"})
    found = catalog.discover("read stock", limit=1)
    receipt = catalog.authorize(found.tools[0], policy, ledger=ledger)
    denied = _refusal(lambda: catalog.authorize("delete_inventory", policy, ledger=ledger))
    return Finding(
        "tools",
        f"tools: discovered={found.tools[0].name} authorized={receipt.name} truncated={found.truncated}",
        (
            f"{found.total_matches} tools matched and {len(found.tools)} was returned",
            f"delete_inventory, which matched as well, was refused ({denied.why})",
        ),
        ("that a tool which was found may be used", "that anything was executed: the package invokes no tool"),
        {
            "discovered": [tool.name for tool in found.tools],
            "authorized": receipt.name,
            "truncated": found.truncated,
            "total_matches": found.total_matches,
        },
    )


def watcher(ledger: Ledger) -> Finding:
    """Let one watcher look once at something that is quiet.

    Raises:
        Unproved: The watcher did not behave as the line says.
    """
    automation_id = ledger.ids.new("watcher")
    now = ledger.now()
    automation.create_automation(ledger, automation_id, interval_seconds=60, payload="reorder", first_run_at=now)
    result = automation.run_due(
        ledger,
        automation_id,
        lambda state: automation.WatchDecision(
            fire=False, message="", state={"checks": _number(state.get("checks")) + 1}
        ),
        _never,
        now=now,
    )
    with ledger.read() as tx:
        row = tx.one("SELECT condition_state FROM automations WHERE automation_id = :id", id=automation_id)
    state = "" if row is None else row["condition_state"]
    runs = len(automation.list_runs(ledger, automation_id))
    _observe(result.status is automation.Status.NO_FIRE, f"a quiet watcher gave {result.status}")
    _observe(runs == 0, f"a quiet watcher left {runs} runs")
    _observe(state == '{"checks":1}', f"the watcher's state was not kept: {state}")
    return Finding(
        "automation",
        f"automation: {result.status}, runs={runs}, state persisted",
        (f"the watcher {automation_id} looked once, kept {state} and is due again in 60 seconds",),
        ("that work was done: an evaluation is not a run", "that the process which looked is still alive"),
        {"status": str(result.status), "runs": runs, "condition_state": state},
    )


def transcript(ledger: Ledger) -> Finding:
    """Compact one exchange of a transcript of seven rows and render what a model would see."""
    session_id = ledger.ids.new("transcript")
    rows = (
        ("system", "You keep the shelves full."),
        ("user", "How many bolts are there?"),
        ("assistant", "I look."),
        ("tool", "bolts: 12"),
        ("user", "And nuts?"),
        ("assistant", "I look again."),
        ("tool", "nuts: 40"),
    )
    with ledger.write():
        for role, content in rows:
            context.append_message(ledger, session_id, role, content)
    marked = context.compact_one(ledger, session_id, lambda _prior, _exchange: "Stock of bolts was read: 12.")
    view = context.render_context(ledger, session_id)
    with ledger.read() as tx:
        kept = tx.all("SELECT content FROM transcript_messages WHERE session_id = :id ORDER BY seq", id=session_id)
    covered = [row.seq for row in context.coverage(ledger, session_id) if row.reason is context.Reason.COVERED]
    shown = [item.seq for item in view if not item.derived]
    _observe(marked, "no marker was stored")
    _observe([row["content"] for row in kept] == [content for _, content in rows], "the source changed")
    _observe(sorted([*covered, *shown]) == list(range(1, len(rows) + 1)), "a row is neither shown nor covered")
    summaries = sum(item.derived for item in view)
    return Finding(
        "context",
        f"context: source={len(kept)} rendered={len(view)} summaries={summaries}",
        ("every source row is unchanged, and each row that is not shown is listed by the summary's marker",),
        ("that the summary is true: it is derived, and can be derived again from the source",),
        {"source": len(kept), "rendered": len(view), "summaries": summaries},
    )


def sessions(ledger: Ledger) -> Finding:
    """Let one host pause beyond its lease, another take over, and the first one try to finish.

    Raises:
        Unproved: The stale finish was accepted.
    """
    session_id = ledger.ids.new("session")
    host_a, host_b = ledger.ids.new("host-a"), ledger.ids.new("host-b")
    now = ledger.now()
    coordination.register_host(ledger, host_a, now=now, ttl_seconds=3600)
    first = coordination.claim_session(ledger, session_id, host_a, now=now, ttl_seconds=20)
    after = now + timedelta(seconds=21) + ledger.max_clock_skew
    coordination.register_host(ledger, host_b, now=after)
    second = coordination.claim_session(ledger, session_id, host_b, now=after)
    stale = _refusal(lambda: coordination.finish_session(ledger, first, "written by a", now=after))
    coordination.finish_session(ledger, second, "written by b", now=after)
    return Finding(
        "coordination",
        f"coordination: incarnation {first.incarnation}->{second.incarnation}",
        (
            f"the finish of the first holder was refused ({stale.why})",
            "its result is kept as evidence, not as the result",
        ),
        (
            "that the first holder stopped working: its effects outside the ledger are not fenced",
            "that the second holder is alive: a claim is no heartbeat",
        ),
        {"incarnations": [first.incarnation, second.incarnation], "stale_finish_refused": True},
    )


def recall(ledger: Ledger) -> Finding:
    """Store a memory of this run's actor and one of another, and recall as the first.

    Raises:
        Unproved: The other actor's memory was returned.
    """
    actor, other = ledger.ids.new("actor"), ledger.ids.new("actor")
    own, foreign = ledger.ids.new("memory"), ledger.ids.new("memory")
    text, vector = "The supplier of bolts answers on weekdays.", (1.0, 0.0)
    with ledger.write():
        for name, whose in ((own, actor), (foreign, other)):
            memory.remember(
                ledger, name, text, visibility=f"actor:{whose}", embedding=vector, embedding_model="example-2"
            )
    hits = memory.recall(
        ledger, "supplier of bolts", actor_id=actor, query_embedding=vector, embedding_model="example-2"
    )
    mine = [hit for hit in hits if hit.id == own]
    _observe(bool(mine) and all(hit.id != foreign for hit in hits), f"recall returned {[hit.id for hit in hits]}")
    visible = sum(hit.visibility == f"actor:{actor}" for hit in hits)
    return Finding(
        "memory",
        f"memory: visible={visible} semantic={mine[0].semantic_status}",
        ("a memory of another actor, with the same words and vector, was neither loaded nor scored",),
        ("that the best hit is true or recent", "that the vector means anything: it came from the caller"),
        {"visible": visible, "semantic_status": str(mine[0].semantic_status), "score": mine[0].score},
    )


SCENARIO: dict[str, Callable[[Ledger], Finding]] = {
    "isolation": isolation,
    "tools": tools,
    "automation": watcher,
    "context": transcript,
    "coordination": sessions,
    "memory": recall,
}
"""Every mechanism by the name that begins its line, in the order of the lines."""


def run(root: str | os.PathLike[str], *, only: str | None = None) -> tuple[Finding, ...]:
    """Run the scenario on the ledger under a directory.

    Parameters:
        root: The directory; made where it is missing.
        only: The name of one mechanism; all six when omitted.

    Raises:
        Refusal: The directory cannot hold a ledger, or its workspace is a link.
        ValueError: `only` is no mechanism.
    """
    if only is not None and only not in list(SCENARIO):
        raise ValueError(f"only must be one of {', '.join(SCENARIO)}: {shown(only)}")
    with Ledger.open(root) as ledger:
        return tuple(step(ledger) for name, step in SCENARIO.items() if only in (None, name))


@contextmanager
def _workspace(ledger: Ledger) -> Iterator[tuple[Path, Path]]:
    """Make two directories of this run, one to work in and one outside of it; remove both afterwards."""
    shared = ledger.path.parent.parent / WORKSPACE
    try:
        shared.mkdir(mode=0o700, exist_ok=True)
        if shared.is_symlink():
            raise Refusal(Category.FILESYSTEM, shared, "the workspace is a link", "remove it, or choose another --root")
        inside, outside = (shared / ledger.ids.new(kind) for kind in ("inside", "outside"))
        for folder in (inside, outside):
            folder.mkdir(mode=0o700)
        (outside / "note").write_text("out of reach\n")
        try:
            yield inside, outside
        finally:
            for folder in (inside, outside):
                shutil.rmtree(folder, ignore_errors=True)  # links are removed, not followed
    except OSError as error:  # also where somebody takes the workspace away while this runs
        why = (error.strerror or str(error)).lower()
        raise Refusal(Category.FILESYSTEM, shared, f"the workspace: {why}", "choose another --root") from error


def _refusal(attempt: Callable[[], object]) -> Refusal:
    """Return the refusal of an attempt that must be refused."""
    try:
        outcome = attempt()
    except Refusal as refusal:
        return refusal
    raise Unproved(f"this should have been refused, and gave {shown(outcome)}")


def _observe(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - the observation itself
    """Raise unless an observation holds that a line is about to claim."""
    if not holds:
        raise Unproved(otherwise)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _never(run_id: str, message: str) -> None:
    raise AssertionError(f"a quiet watcher has no payload to run: {run_id} {message}")
