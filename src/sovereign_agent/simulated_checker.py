"""The checker: looks at a ledger after every step, at what that step changed, and from time to time at everything.

It reads the events in order and holds the tables against them. It promises that `after_step` compares whatever an event
says has changed, and `check_all` all that the events tell and the tables hold. Neither reads what an archive holds.
"""

from __future__ import annotations

import json
import math
import sqlite3
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path

from .automation import RunStatus
from .clock import from_text
from .context import Verdict, render_context, verify_markers
from .invariants import Invariant
from .ledger import Ledger
from .memory import from_bytes
from .pulse import SignalStatus
from .schedule import Grid, next_slot, through
from .simulated_witness import Witness

_APPEND_ONLY = {
    "events": "seq",
    "transcript_messages": "session_id || '/' || seq",
    "context_compactions": "session_id || '/' || marker",
    "session_completions": "session_id",
    "refused_results": "refusal_seq",
    "delivery_attempts": "attempt_id",
}
_RUN_EVENTS = {
    "automation.claimed": RunStatus.RUNNING,
    "automation.succeeded": RunStatus.SUCCEEDED,
    "automation.failed": RunStatus.FAILED,
    "automation.interrupted": RunStatus.FAILED,
    "automation.abandoned": RunStatus.ABANDONED,
    "automation.lease_expired": RunStatus.RUNNING,
}
_SIGNAL_EVENTS = {
    "pulse.recorded": SignalStatus.WAITING,
    "pulse.claimed": SignalStatus.RUNNING,
    "pulse.lease_expired": SignalStatus.RUNNING,
    "pulse.failed": SignalStatus.FAILED,
    "pulse.interrupted": SignalStatus.FAILED,
    "pulse.given_up": SignalStatus.GIVEN_UP,
    "pulse.declined": SignalStatus.DECLINED,
    "pulse.succeeded": SignalStatus.SUCCEEDED,
}
_DELIVERY_EVENTS = {"delivery.enqueued": "PENDING", "delivery.succeeded": "DELIVERED", "delivery.died": "DEAD"}


class Checker(Witness):
    """Watches one ledger.

    Parameters:
        root: The directory of the ledger, which exists.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._ledger = Ledger.open(root, read_only=True)
        self._skew = self._ledger.max_clock_skew
        self._version = -1
        self._seq = 0
        self._hosts: dict[str, sqlite3.Row] = {}
        self._automations: dict[str, sqlite3.Row] = {}
        self._slots: dict[str, tuple[int, int, str]] = {}
        """Number, epoch and last slot of the newest range of each watcher."""
        self._moved: set[str] = set()
        """Watchers whose grid an operator changed: their ranges may have gaps."""
        self._signal_runs: dict[str, str] = {}
        self._counted: dict[str, int] = {}
        self._digests: dict[str, object] = {}
        self._seen: dict[str, dict[object, int]] = {table: {} for table in _APPEND_ONLY}
        self._committed: set[tuple[str, int]] = set()
        self._refused: set[tuple[str, str]] = set()

    def close(self) -> None:
        """Close both connections."""
        self._reader.close()
        self._ledger.close()

    # After a step

    def after_step(self) -> None:
        """Check what changed since the last call."""
        version = self._reader.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version:
            self._version = version
            self._forget_purged()
            changes = self._reader.execute("SELECT * FROM events WHERE seq > ? ORDER BY seq", (self._seq,)).fetchall()
            self._committed.clear()
            self._refused.clear()
            for event in changes:
                self._seq = event["seq"]
                self._follow(event, json.loads(event["detail"]))
            self._look_at_automations()
            self._hosts = {row["host_id"]: row for row in self._reader.execute("SELECT * FROM hosts")}
            self._live = {
                row["session_id"]: row
                for row in self._reader.execute("SELECT * FROM session_claims WHERE ended IS NULL")
            }
        for refusal in self._refusals:
            self.require(
                Invariant.REFUSALS, (refusal.subject, refusal.why) in self._refused, f"not in the events: {refusal}"
            )
        self._refusals.clear()

    def _forget_purged(self) -> None:
        """Strike out of the story the claims whose rows an operator has removed."""
        for session_id in self._purging:
            if self._one("SELECT 1 FROM session_claims WHERE session_id = ?", session_id) is None:
                self._story.claims.pop(session_id, None)
                self._live.pop(session_id, None)
        self._purging.clear()

    def _follow(self, event: sqlite3.Row, detail: dict[str, object]) -> None:
        """Take one event into the story, and check what it says against what stands there now."""
        kind, subject = event["kind"], event["subject"]
        match kind.partition(".")[0]:
            case "refused":
                self._refused.add((subject, str(detail["why"])))
            case "host" | "session":
                self._follow_session(kind, subject, event, detail)
            case "automation":
                self._follow_automation(kind, subject, detail)
            case "pulse":
                self._follow_signal(kind, subject, detail)
            case "delivery":
                self._follow_delivery(kind, subject, detail)
            case "context":
                self._follow_context(kind, subject, detail)
            case "memory":
                self._follow_memory(kind, subject, detail)
            case _:
                pass

    # Sessions

    def _follow_session(self, kind: str, subject: str, event: sqlite3.Row, detail: dict[str, object]) -> None:
        story = self._story
        host, number = str(detail.get("host_id", "")), int(str(detail.get("incarnation", 0)))
        match kind:
            case "host.registered":
                boot = int(str(detail["boot"]))
                self.require(Invariant.INCARNATIONS, boot > story.boots.get(subject, 0), f"boot {boot} of {subject}")
                story.boots[subject] = boot
            case "session.claimed":
                highest = self._counted.get(f"incarnation {subject}", 0)
                self.require(
                    Invariant.INCARNATIONS,
                    number > highest,
                    f"{subject} was claimed as incarnation {number} after incarnation {highest}",
                )
                self._counted[f"incarnation {subject}"] = max(number, highest)
                self._check_takeover(subject, host, from_text(event["at"]), str(detail["predecessor"]))
                story.claims[subject] = (host, number, None)
            case "session.lapsed" | "session.released" | "session.finished":
                ended = {"session.released": "RELEASED", "session.finished": "FINISHED"}.get(kind)
                if subject in story.claims and story.claims[subject][:2] == (host, number):
                    story.claims[subject] = (host, number, ended or str(detail["reason"]))
                if kind == "session.finished":
                    self._check_completion(subject, host, number, event["at"])
                    story.finished[subject] = (host, number)
            case "session.result_kept":
                story.kept += 1
            case _:
                pass

    def _check_takeover(self, session_id: str, host_id: str, at: datetime, predecessor: str) -> None:
        """Compare with what stood there before this step."""
        claim = self._live.get(session_id)
        if claim is None or claim["host_id"] == host_id or predecessor not in ("EXPIRED", "HOST_EXPIRED"):
            return
        holder = self._hosts.get(claim["host_id"])
        ends = from_text(claim["expires_at"])
        if holder is not None and holder["boot"] == claim["boot"]:
            ends = at - self._skew if holder["expired_at"] else min(ends, from_text(holder["expires_at"]))
        self.require(
            Invariant.TAKEOVER,
            at >= ends + self._skew,
            f"{host_id} took {session_id} from {claim['host_id']} {(ends + self._skew - at).total_seconds():g} s early",
        )

    def _check_completion(self, session_id: str, host_id: str, incarnation: int, at: str) -> None:
        claim = self._one("SELECT * FROM session_claims WHERE session_id = ?", session_id)
        host = self._one("SELECT * FROM hosts WHERE host_id = ?", host_id)
        latest = self._counted.get(f"incarnation {session_id}", 0)
        self.require(
            Invariant.ONE_COMPLETION,
            session_id not in self._story.finished and incarnation == latest,
            f"{session_id} was finished by incarnation {incarnation} of {host_id}; the latest is {latest}",
        )
        self.require(
            Invariant.ONE_COMPLETION,
            claim is not None
            and host is not None
            and claim["boot"] == host["boot"]
            and claim["expires_at"] > at
            and host["expires_at"] > at,
            f"{session_id} was finished by {host_id} after a lease had ended",
        )

    # Watchers

    def _follow_automation(self, kind: str, subject: str, detail: dict[str, object]) -> None:
        story = self._story
        if kind in ("automation.created", "automation.updated"):
            story.versions[subject] = int(str(detail["version"]))
            story.enabled.setdefault(subject, 1)
            if {"interval_seconds", "next_run_at"} & set(map(str, detail.get("fields") or ())):  # type: ignore[call-overload]
                self._moved.add(subject)
        elif kind in ("automation.enabled", "automation.disabled"):
            story.enabled[subject] = int(kind.endswith("enabled"))
        status = _RUN_EVENTS.get(kind)
        if status is None:
            return
        run_id, attempt = str(detail["run_id"]), int(str(detail["attempt"]))
        before, latest = story.runs.get(run_id, ("", 0))
        if kind == "automation.claimed":
            row = self._one("SELECT message, automation_id FROM automation_runs WHERE run_id = ?", run_id)
            self.require(Invariant.ATTEMPTS, attempt == latest + 1, f"attempt {attempt} of {run_id} after {latest}")
            self.require(
                Invariant.ONE_EFFECT, before not in ("SUCCEEDED", "ABANDONED"), f"{run_id} is claimed again: {before}"
            )
            self.require(
                Invariant.QUIET,
                row is not None and (subject, row["message"]) in self._fired,
                f"{run_id} of {subject} has a message that no decision fired with",
            )
        else:
            self.require(
                Invariant.FENCE,
                attempt == latest and (before == "RUNNING" or status is RunStatus.ABANDONED),
                f"{kind} by attempt {attempt} of {run_id}, whose latest is {latest} ({before})",
            )
        if kind == "automation.succeeded":
            self.require(Invariant.ONE_EFFECT, run_id in self.effects, f"{run_id} succeeded without its effect")
            if detail["state_committed"]:
                self._committed.add((run_id, attempt))
        story.runs[run_id] = (status, max(attempt, latest))

    def _look_at_automations(self) -> None:
        for row in self._reader.execute("SELECT * FROM automations").fetchall():
            name = row["automation_id"]
            before = self._automations.get(name)
            if before is None or before["revision"] == row["revision"]:
                self._automations[name] = row
                continue
            self._automations[name] = row
            if before["condition_state"] != row["condition_state"]:
                self._check_state(name, before, row)
            self._check_slots(name, row)

    def _check_state(self, name: str, before: sqlite3.Row, row: sqlite3.Row) -> None:
        number = json.loads(row["condition_state"]).get("decision")
        if number is None:
            self.require(Invariant.STATE, row["version"] > before["version"], f"{name} was reset by nobody")
            return
        decision = self.decisions[number]
        due = decision.attempt in self._committed if decision.fire else row["quiet_ticks"] > before["quiet_ticks"]
        self.require(
            Invariant.STATE,
            due and decision.automation_id == name,
            f"{name} has the state of decision {number}, which {'did not succeed' if decision.fire else 'is not kept'}",
        )
        self.require(
            Invariant.STATE,
            decision.version == row["version"],
            f"{name} is defined anew (version {row['version']}) and has a state from version {decision.version}",
        )

    def _check_slots(self, name: str, automation: sqlite3.Row) -> None:
        grid = Grid(from_text(automation["first_run_at"]), timedelta(seconds=automation["interval_seconds"]))
        seq, epoch, last = self._slots.get(name, (0, 0, ""))
        for row in self._reader.execute(
            "SELECT * FROM automation_slots WHERE automation_id = ? AND seq >= ? ORDER BY seq", (name, max(seq, 1))
        ).fetchall():
            if row["seq"] > seq:
                self.require(Invariant.SLOTS, row["seq"] == seq + 1, f"{name} has no range {seq + 1}")
                if row["slots"] and last and row["epoch"] == epoch:
                    follows = row["first_slot"] > last
                    if name not in self._moved:
                        follows = from_text(row["first_slot"]) == next_slot(grid, from_text(last))
                    self.require(
                        Invariant.SLOTS,
                        follows,
                        f"range {row['seq']} of {name} does not follow the one that ends {last}",
                    )
            if row["slots"] and name not in self._moved:
                span = through(grid, from_text(row["first_slot"]), from_text(row["last_slot"]))
                self.require(
                    Invariant.SLOTS,
                    span is not None and span.slots == row["slots"],
                    f"range {row['seq']} of {name} counts {row['slots']} slots",
                )
            if row["slots"]:
                last = row["last_slot"]
            elif row["epoch"] != epoch:  # the clock was set back: nothing of before is followed
                last = ""
            seq, epoch = row["seq"], row["epoch"]
        self._slots[name] = (seq, epoch, last)
        if last and epoch == automation["epoch"] and name not in self._moved:
            self.require(
                Invariant.SLOTS,
                from_text(automation["cursor_at"]) == next_slot(grid, from_text(last)),
                f"the cursor of {name} does not follow its newest range",
            )

    # Signals and deliveries

    def _follow_signal(self, kind: str, subject: str, detail: dict[str, object]) -> None:
        before, latest = self._story.signals.get(subject, ("", 0))
        attempt = int(str(detail.get("attempt", latest)))
        run_id = str(detail.get("run_id") or self._signal_runs.get(subject, ""))
        self.require(
            Invariant.SIGNALS,
            before not in ("SUCCEEDED", "DECLINED", "GIVEN_UP")
            and self._signal_runs.setdefault(subject, run_id) in ("", run_id),
            f"{kind} of {subject}, which is {before}, under {run_id}",
        )
        if run_id:
            self._signal_runs[subject] = run_id
        if kind == "pulse.claimed":
            self.require(Invariant.ATTEMPTS, attempt == latest + 1, f"attempt {attempt} of {subject} after {latest}")
        elif kind in ("pulse.succeeded", "pulse.interrupted"):
            self.require(Invariant.FENCE, attempt == latest, f"{kind} by attempt {attempt} of {subject}: {latest}")
        if kind == "pulse.succeeded":
            self.require(Invariant.ONE_EFFECT, run_id in self.signal_effects, f"{run_id} succeeded without its effect")
        self._story.signals[subject] = (_SIGNAL_EVENTS.get(kind, before), max(attempt, latest))

    def _follow_delivery(self, kind: str, subject: str, detail: dict[str, object]) -> None:
        status, attempts = self._story.deliveries.get(subject, ("PENDING", 0))
        number = int(str(detail.get("number", detail.get("attempts", attempts))))
        self.require(
            Invariant.ATTEMPTS,
            status != "DELIVERED" and (number > attempts if kind == "delivery.begun" else number <= attempts + 1),
            f"{kind} number {number} of {subject} ({status}) after {attempts} attempts",
        )
        self._story.deliveries[subject] = (_DELIVERY_EVENTS.get(kind, status), max(number, attempts))
        row = self._one("SELECT attempts FROM deliveries WHERE delivery_id = ?", subject)
        counted = self._counted.get(f"delivery {subject}", 0)
        now = 0 if row is None else int(row["attempts"])
        self.require(Invariant.ATTEMPTS, now >= counted, f"{subject} has {now} attempts after {counted}")
        self._counted[f"delivery {subject}"] = now

    # Context and memory

    def _follow_context(self, kind: str, session_id: str, detail: dict[str, object]) -> None:
        if kind == "context.appended":
            seq = int(str(detail["seq"]))
            expected = self._story.rows.get(session_id, 0) + 1
            self.require(Invariant.STORY, seq == expected, f"row {seq} of {session_id} after {expected - 1}")
            self._story.rows[session_id] = seq
            row = self._one("SELECT * FROM transcript_messages WHERE session_id = ? AND seq = ?", session_id, seq)
            digest = self._digests.setdefault(session_id, sha256())
            digest.update(repr(None if row is None else tuple(row)).encode())  # type: ignore[attr-defined]
        elif kind == "context.compacted":
            self._story.markers[session_id] = self._story.markers.get(session_id, 0) + 1
            self.check_transcript(session_id)

    def check_transcript(self, session_id: str, edges: tuple[int, int] = (2, 2)) -> None:
        """Check the view and the markers of one session."""
        rows = self._reader.execute(
            "SELECT seq, role, content, exchange FROM transcript_messages WHERE session_id = ? ORDER BY seq",
            (session_id,),
        ).fetchall()
        covered: set[int] = set()
        for marker in self._reader.execute(
            "SELECT marker, ranges, summary FROM context_compactions WHERE session_id = ? ORDER BY marker",
            (session_id,),
        ).fetchall():
            listed = {seq for first, last in json.loads(marker["ranges"]) for seq in range(first, last + 1)}
            self.require(
                Invariant.MARKERS,
                marker["summary"].strip() and listed and not listed & covered,
                f"marker {marker['marker']} of {session_id} has no summary, no rows, or rows of another one",
            )
            covered |= listed
        parts = {row["exchange"] for row in rows if row["seq"] in covered}
        whole = all(row["seq"] in covered for row in rows if row["exchange"] in parts and row["exchange"] is not None)
        self.require(Invariant.MARKERS, whole, f"the markers of {session_id} cover a part of an exchange")
        view = render_context(self._ledger, session_id, protect_head=edges[0], protect_tail=edges[1])
        shown = {item.seq: item.content for item in view if not item.derived}
        summary = any(item.derived for item in view)
        for row in rows:
            seq = row["seq"]
            edge = seq <= edges[0] or seq > len(rows) - edges[1]
            if seq in shown:
                fine = shown[seq] == row["content"] and (row["exchange"] or seq) in shown
            else:
                fine = not edge and summary and seq in covered and row["exchange"] is not None
            self.require(Invariant.SHOWN, fine, f"row {seq} of {len(rows)} of {session_id} is hidden, or half shown")

    def _follow_memory(self, kind: str, subject: str, detail: dict[str, object]) -> None:
        successor, forgotten = self._story.memories.get(subject, (None, False))
        if kind == "memory.superseded":
            successor = str(detail["by"])
        forgotten = forgotten or kind == "memory.forgotten"
        self._story.memories[subject] = (successor, forgotten)
        row = self._one("SELECT embedding FROM memories WHERE memory_id = ?", subject)
        if row is not None and row["embedding"] is not None:
            vector = from_bytes(row["embedding"])
            self.require(
                Invariant.EVIDENCE,
                vector and abs(math.fsum(number * number for number in vector) - 1) < 1e-3,
                f"the vector of {subject} is no direction",
            )

    # Everything

    def check_all(self) -> None:
        """Check the whole ledger."""
        self.after_step()
        for table, key in _APPEND_ONLY.items():
            rows = self._reader.execute(f"SELECT {key}, * FROM {table}").fetchall()  # noqa: S608 - our own names
            now = {row[0]: hash(tuple(row)) for row in rows}
            kept = self._seen[table].items() <= now.items()
            self.require(Invariant.APPEND_ONLY, kept, f"a row of {table} was changed or is gone")
            self._seen[table] = now
        again: dict[str, object] = {}
        for row in self._reader.execute("SELECT * FROM transcript_messages ORDER BY session_id, seq"):
            again.setdefault(row["session_id"], sha256()).update(repr(tuple(row)).encode())  # type: ignore[attr-defined]
        for session_id, digest in self._digests.items():
            same = session_id in again and _hex(again[session_id]) == _hex(digest)
            self.require(Invariant.SOURCES, same, f"the transcript of {session_id} is not what was recorded")
        for session_id in self._story.markers:
            self.check_transcript(session_id, (1, 4))
            for check in verify_markers(self._ledger, session_id):
                self.require(
                    Invariant.MARKERS,
                    check.verdict is Verdict.INTACT,
                    f"marker {check.marker} of {session_id}: {check.detail}",
                )
        for what, told, held in self._story_and_tables():
            self.require(Invariant.STORY, told == held, f"{what}: {_first_difference(told, held)}")
        row = self._one(
            "SELECT delivery_id FROM deliveries AS d WHERE attempts <> (attempt_id IS NOT NULL) + "
            "(SELECT count(*) FROM delivery_attempts AS a WHERE a.delivery_id = d.delivery_id)"
        )
        self.require(Invariant.ATTEMPTS, row is None, "a delivery counts other attempts than it has rows")

    def _story_and_tables(self) -> list[tuple[str, dict[str, object], dict[str, object]]]:
        story = self._story
        wanted = (
            ("hosts", story.boots, "SELECT host_id, boot FROM hosts"),
            ("session_claims", story.claims, "SELECT session_id, host_id, incarnation, ended FROM session_claims"),
            ("session_completions", story.finished, "SELECT session_id, host_id, incarnation FROM session_completions"),
            ("refused_results", {"all": story.kept}, "SELECT 'all', count(*) FROM refused_results"),
            ("automations", story.versions, "SELECT automation_id, version FROM automations"),
            ("automations", story.enabled, "SELECT automation_id, enabled FROM automations"),
            ("automation_runs", story.runs, "SELECT run_id, status, attempt FROM automation_runs"),
            ("signals", story.signals, "SELECT signal_id, status, attempt FROM signals"),
            ("deliveries", story.deliveries, "SELECT delivery_id, status, attempts FROM deliveries"),
            ("transcripts", story.rows, "SELECT session_id, count(*) FROM transcript_messages GROUP BY 1"),
            ("markers", story.markers, "SELECT session_id, count(*) FROM context_compactions GROUP BY 1"),
            (
                "memories",
                story.memories,
                "SELECT memory_id, superseded_by, forgotten_at IS NOT NULL FROM memories",
            ),
        )
        found = []
        for what, told, sql in wanted:
            held = {row[0]: row[1] if len(row) == 2 else tuple(row)[1:] for row in self._reader.execute(sql)}
            found.append((what, dict(told), held))
        return found

    def digests(self) -> tuple[str, str]:
        """Return the SHA-256 of the events, and of every row of every table."""
        names = [
            row[0] for row in self._reader.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY 1")
        ]
        whole = sha256()
        events = ""
        for name in names:
            part = sha256()
            for row in self._reader.execute(f"SELECT * FROM {name}"):  # noqa: S608 - names from the schema
                part.update(repr(tuple(row)).encode())
            whole.update(f"{name} {part.hexdigest()}\n".encode())
            events = part.hexdigest() if name == "events" else events
        return events, whole.hexdigest()


def _hex(digest: object) -> str:
    return str(digest.hexdigest())  # type: ignore[attr-defined]


def _first_difference(told: dict[str, object], held: dict[str, object]) -> str:
    for key in sorted(told.keys() | held.keys(), key=str):
        if told.get(key) != held.get(key):
            return f"the events say {key} {told.get(key)}, the table {held.get(key)}"
    return "equal"
