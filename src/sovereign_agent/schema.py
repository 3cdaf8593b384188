"""The schema: every table of the ledger, and the triggers that make some of them append-only.

Append-only holds for every client that leaves the schema alone, whatever its settings: UPDATE, DELETE, and any INSERT
that meets an existing key (so also INSERT OR REPLACE) are refused. Whoever drops a trigger is outside the promise.
"""

from __future__ import annotations

APPLICATION_ID = 0x53564147
"""Marks the file as a ledger (`PRAGMA application_id`): "SVAG" in ASCII."""
VERSION = 1
"""`PRAGMA user_version` of this schema."""


def append_only(table: str, *keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the triggers that make a table append-only.

    Parameters:
        table: The table's name.
        keys: Every unique key of the table, as tuples of columns.

    Returns:
        Three CREATE TRIGGER statements, with messages that begin "update refused", "delete refused", "replace refused".
    """
    taken = " OR ".join(
        f"EXISTS (SELECT 1 FROM {table} WHERE {' AND '.join(f'{column} IS NEW.{column}' for column in key)})"  # noqa: S608
        for key in keys
    )
    rules = (("update", "UPDATE", "TRUE"), ("delete", "DELETE", "TRUE"), ("replace", "INSERT", taken))
    return tuple(
        f"CREATE TRIGGER {table}_no_{name} BEFORE {action} ON {table} WHEN {condition} "
        f"BEGIN SELECT RAISE(ABORT, '{name} refused: {table} is append-only'); END"
        for name, action, condition in rules
    )


BASE = (
    """
    CREATE TABLE settings (
        name  TEXT PRIMARY KEY,
        value TEXT NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    # An automatic key stands as -1 in a BEFORE INSERT trigger, so a row -1 would block every append: hence the CHECK.
    """
    CREATE TABLE events (
        seq     INTEGER PRIMARY KEY CHECK (seq > 0),
        at      TEXT NOT NULL,
        kind    TEXT NOT NULL,
        actor   TEXT NOT NULL,
        subject TEXT NOT NULL,
        detail  TEXT NOT NULL CHECK (json_valid(detail))
    ) STRICT
    """,
    *append_only("events", ("seq",)),
)

AUTOMATION: tuple[str, ...] = ()

HEARTBEAT: tuple[str, ...] = ()

PULSE: tuple[str, ...] = ()

CONTEXT: tuple[str, ...] = ()

SESSIONS: tuple[str, ...] = (
    # The single source of incarnations and boots. It may only grow, so that neither starts again when a row is purged.
    """
    CREATE TABLE coordination_counters (
        kind    TEXT NOT NULL CHECK (kind IN ('boot', 'incarnation')),
        subject TEXT NOT NULL,
        last    INTEGER NOT NULL CHECK (last >= 1),
        PRIMARY KEY (kind, subject)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE TRIGGER coordination_counters_grow BEFORE UPDATE ON coordination_counters "
    "WHEN NEW.kind IS NOT OLD.kind OR NEW.subject IS NOT OLD.subject OR NEW.last <= OLD.last "
    "BEGIN SELECT RAISE(ABORT, 'update refused: coordination_counters only grow'); END",
    *append_only("coordination_counters", ("kind", "subject"))[1:],
    """
    CREATE TABLE hosts (
        host_id       TEXT PRIMARY KEY,
        boot          INTEGER NOT NULL CHECK (boot >= 1),
        registered_at TEXT NOT NULL,
        expires_at    TEXT NOT NULL,
        renewals      INTEGER NOT NULL DEFAULT 0,
        expired_at    TEXT  -- when a call found the lease expired; such a lease never lives again
    ) STRICT
    """,
    # One row per session: its latest claim. Earlier ones stand in the events. No foreign key: any row may be purged.
    """
    CREATE TABLE session_claims (
        session_id  TEXT PRIMARY KEY,
        host_id     TEXT NOT NULL,
        boot        INTEGER NOT NULL,
        incarnation INTEGER NOT NULL CHECK (incarnation >= 1),
        claimed_at  TEXT NOT NULL,
        expires_at  TEXT NOT NULL,
        renewals    INTEGER NOT NULL DEFAULT 0,
        ended       TEXT CHECK (
            ended IN ('EXPIRED', 'HOST_EXPIRED', 'HOST_RESTARTED', 'HOST_UNKNOWN', 'RELEASED', 'FINISHED')),
        ended_at    TEXT,
        CHECK ((ended IS NULL) = (ended_at IS NULL))
    ) STRICT
    """,
    """
    CREATE TABLE session_completions (
        session_id   TEXT PRIMARY KEY,
        host_id      TEXT NOT NULL,
        incarnation  INTEGER NOT NULL,
        result       TEXT NOT NULL,
        completed_at TEXT NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    *append_only("session_completions", ("session_id",)),
    """
    CREATE TABLE refused_results (
        refusal_seq   INTEGER PRIMARY KEY CHECK (refusal_seq > 0),
        session_id    TEXT NOT NULL,
        host_id       TEXT NOT NULL,
        incarnation   INTEGER NOT NULL,
        result        TEXT NOT NULL CHECK (length(CAST(result AS BLOB)) <= 16384),
        result_bytes  INTEGER NOT NULL,
        result_digest TEXT NOT NULL,
        why           TEXT NOT NULL,
        refused_at    TEXT NOT NULL
    ) STRICT
    """,
    *append_only("refused_results", ("refusal_seq",)),
    "CREATE INDEX refused_results_by_session ON refused_results (session_id, host_id, incarnation)",
)

DELIVERY: tuple[str, ...] = ()

MEMORY: tuple[str, ...] = ()

SCHEMA: tuple[str, ...] = (
    *BASE,
    *AUTOMATION,
    *HEARTBEAT,
    *PULSE,
    *CONTEXT,
    *SESSIONS,
    *DELIVERY,
    *MEMORY,
)
"""Every statement, in order."""
